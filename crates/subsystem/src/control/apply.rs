//! Applies the operator's steps.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::mem;
use std::sync::Arc;
use std::sync::mpsc::Sender;

use store::Store;
use wire::async_event::AsyncEvent;
use wire::nqn::{HostName, Nqn};
use zerocopy::IntoBytes;

use super::lifecycle::Cause;
use super::rollout::Rollout;
use super::{Control, MILLISECOND_NS};
use crate::controller::{ControllerKey, ControllerKind, ControllerRecord, Life};
use crate::message::{
    Message, NewNamespace, NewSubsystem, OrderAnswer, PlacementMessage, REMOVED_LISTENER_GRACE_MS,
    ReactorMessage, Step, StepError, StepOutcome,
};
use crate::namespace_traffic::NamespaceTraffic;
use crate::subsystem::{Namespace, NamespaceId, Subsystem, SubsystemId};

impl Control {
    /// Applies steps. Their effects on reactors and hosts come with one new version of the namespace table.
    pub(super) fn apply(
        &mut self,
        now_ns: u64,
        steps: Vec<Step>,
        answers: &Sender<OrderAnswer>,
    ) -> Vec<StepOutcome> {
        let is_seen = steps.iter().any(Step::changes_discovery);
        let listings = if is_seen { self.listings() } else { BTreeMap::new() };
        let mut rollout = self.rollouts.begin(answers);
        let outcomes = steps.into_iter().map(|step| self.apply_step(now_ns, step, &mut rollout)).collect();
        let namespaces = self.subsystems.values().flat_map(|subsystem| subsystem.namespaces.values());
        let in_use: BTreeSet<NamespaceId> = namespaces.map(|namespace| namespace.id).collect();
        rollout.retired.retain(|(id, _)| !in_use.contains(id));
        self.roll_out(rollout);
        self.tell_doorbells();
        if is_seen {
            self.tell_listings_changed(&listings);
        }
        outcomes
    }

    fn apply_step(&mut self, now_ns: u64, step: Step, rollout: &mut Rollout) -> StepOutcome {
        let mut ended_count = 0;
        match step {
            Step::AddListener { tag, entry, socket } => {
                self.discovery.listeners.insert(tag, entry);
                self.removed_listeners.remove(&tag);
                rollout.listeners.push((tag, socket));
            }
            Step::RemoveListener { tag } => {
                self.discovery.listeners.remove(&tag).ok_or(StepError::NoListener)?;
                self.post(0, Message::Reactor(ReactorMessage::Unlisten(tag)));
                let grace_ns = REMOVED_LISTENER_GRACE_MS.saturating_mul(MILLISECOND_NS);
                let until_ns = now_ns.saturating_add(grace_ns);
                self.removed_listeners.insert(tag, until_ns);
                self.wake_at(until_ns);
                ended_count = self.associations_of_listener(tag).len();
            }
            Step::ChangeListener { tag, entry } => {
                *self.discovery.listeners.get_mut(&tag).ok_or(StepError::NoListener)? = entry;
            }
            Step::SetReferrals(referrals) => self.discovery.referrals = referrals,
            Step::SetPlacement(policy) => {
                self.post(0, Message::Placement(PlacementMessage::SetPolicy(policy)));
            }
            Step::SetDoorbell(policy) => self.doorbell = policy,
            Step::SetSubsystemDoorbell(nqn, policy) => self.subsystem_mut(&nqn)?.1.doorbell = policy,
            Step::AddSubsystem(subsystem) => self.add_subsystem(subsystem)?,
            Step::RemoveSubsystem(nqn) => {
                let id = self.id_of(&nqn)?;
                ended_count = self.end_associations_of(now_ns, id, |_| true);
                let removed = self.subsystems.remove(&id);
                let namespaces = removed.into_iter().flat_map(|subsystem| subsystem.namespaces.into_values());
                rollout.retired.extend(namespaces.map(|namespace| (namespace.id, namespace.store)));
            }
            Step::SetAccess(nqn, access) => {
                let id = self.id_of(&nqn)?;
                ended_count = self.end_associations_of(now_ns, id, |host| !access.allows(host));
                self.subsystem_mut(&nqn)?.1.access = access;
            }
            Step::SetCntlids(nqn, range) => self.subsystem_mut(&nqn)?.1.cntlids = range,
            Step::AddNamespace { subsystem, nsid, namespace } => {
                let shown_from = self.rollouts.next_version();
                let id = self.namespace_id(&namespace.store, rollout);
                let traffic = self.traffic_of_storage(id);
                let (subsystem_id, known) = self.subsystem_mut(&subsystem)?;
                if known.namespaces.contains_key(&nsid) {
                    return Err(StepError::NamespaceExists);
                }
                known.namespaces.insert(nsid, configured(namespace, id, shown_from, traffic));
                rollout.changed.entry(subsystem_id).or_default().insert(nsid);
            }
            Step::RemoveNamespace { subsystem, nsid } => {
                let (id, known) = self.subsystem_mut(&subsystem)?;
                let removed = known.namespaces.remove(&nsid).ok_or(StepError::NoNamespace)?;
                rollout.retired.push((removed.id, removed.store));
                rollout.changed.entry(id).or_default().insert(nsid);
            }
            Step::ReplaceNamespace { subsystem, nsid, namespace } => {
                let shown_from = self.rollouts.next_version();
                let id = self.namespace_id(&namespace.store, rollout);
                let traffic = self.traffic_of_storage(id);
                let (subsystem_id, known) = self.subsystem_mut(&subsystem)?;
                let known = known.namespaces.get_mut(&nsid).ok_or(StepError::NoNamespace)?;
                // A namespace whose identity stays is still the same one to hosts: it never disappears for them.
                let is_same = (known.uuid, known.nguid) == (namespace.uuid, namespace.nguid);
                let shown_from = if is_same { known.shown_from } else { shown_from };
                let replaced = mem::replace(known, configured(namespace, id, shown_from, traffic));
                rollout.retired.push((replaced.id, replaced.store));
                rollout.changed.entry(subsystem_id).or_default().insert(nsid);
            }
            Step::NamespaceResized { subsystem, nsid, storage } => {
                let (id, known) = self.subsystem_mut(&subsystem)?;
                let known = known.namespaces.get_mut(&nsid).ok_or(StepError::NoNamespace)?;
                known.storage = storage;
                rollout.changed.entry(id).or_default().insert(nsid);
            }
            Step::StorageChanged { subsystem, nsid } => {
                let (id, known) = self.subsystem_mut(&subsystem)?;
                known.namespaces.get(&nsid).ok_or(StepError::NoNamespace)?;
                rollout.changed.entry(id).or_default().insert(nsid);
            }
        }
        Ok(ended_count)
    }

    #[expect(clippy::arithmetic_side_effects, reason = "the operator adds them")]
    fn add_subsystem(&mut self, new: NewSubsystem) -> Result<(), StepError> {
        if self.subsystem_named(&new.nqn).is_some() {
            return Err(StepError::SubsystemExists);
        }
        self.next_subsystem += 1;
        let subsystem = Subsystem {
            nqn: new.nqn,
            serial: new.serial,
            model: new.model,
            access: new.access,
            cntlids: new.cntlids,
            doorbell: new.doorbell,
            namespaces: BTreeMap::new(),
        };
        self.subsystems.insert(SubsystemId(self.next_subsystem), subsystem);
        Ok(())
    }

    fn id_of(&self, nqn: &Nqn) -> Result<SubsystemId, StepError> {
        self.subsystem_named(nqn).ok_or(StepError::NoSubsystem)
    }

    fn subsystem_mut(&mut self, nqn: &Nqn) -> Result<(SubsystemId, &mut Subsystem), StepError> {
        let id = self.id_of(nqn)?;
        let subsystem = self.subsystems.get_mut(&id);
        subsystem.map(|subsystem| (id, subsystem)).ok_or(StepError::NoSubsystem)
    }

    /// The id by which reactors know a namespace's storage. Storage that gets another identity or another path keeps
    /// its id, so reactors keep what they have attached. RAM may be attached only once, or its keys would be lost; a
    /// second log in one file would overwrite the first.
    #[expect(clippy::arithmetic_side_effects, reason = "the operator adds them")]
    fn namespace_id(&mut self, store: &Store, rollout: &Rollout) -> NamespaceId {
        let namespaces = self.subsystems.values().flat_map(|subsystem| subsystem.namespaces.values());
        let present = namespaces.map(|namespace| (namespace.id, &namespace.store));
        let retired = rollout.retired.iter().map(|(id, store)| (*id, store));
        if let Some((id, _)) = present.chain(retired).find(|(_, known)| known.is_same(store)) {
            return id;
        }
        self.next_namespace += 1;
        NamespaceId(self.next_namespace)
    }

    /// Ends the associations with a subsystem whose host matches `is_to_go`. Returns their number.
    fn end_associations_of(
        &mut self,
        now_ns: u64,
        id: SubsystemId,
        is_to_go: impl Fn(&HostName) -> bool,
    ) -> usize {
        let to_go = |record: &&ControllerRecord| {
            record.key.kind == ControllerKind::Io(id) && record.life == Life::Live && is_to_go(&record.host)
        };
        let keys: Vec<ControllerKey> =
            self.controllers.values().filter(to_go).map(|record| record.key).collect();
        for key in &keys {
            self.end_association(now_ns, *key, Cause::Removed);
        }
        keys.len()
    }

    /// A digest of the log that each discovery controller sees.
    fn listings(&self) -> BTreeMap<ControllerKey, u64> {
        let discovery =
            self.controllers.values().filter(|record| record.key.kind == ControllerKind::Discovery);
        let listing = |record: &ControllerRecord| {
            let entries = self.discovery.entries(&record.host, &record.route, self.subsystems.values());
            let mut hasher = DefaultHasher::new();
            entries.as_bytes().hash(&mut hasher);
            (record.key, hasher.finish())
        };
        discovery.map(listing).collect()
    }

    /// The counters for a namespace's storage: the existing ones if another subsystem has it too.
    fn traffic_of_storage(&self, id: NamespaceId) -> Arc<NamespaceTraffic> {
        let mut known = self.subsystems.values().flat_map(|subsystem| subsystem.namespaces.values());
        known.find(|namespace| namespace.id == id).map_or_else(
            || Arc::new(NamespaceTraffic::new(self.rollouts.reactor_count())),
            |namespace| Arc::clone(&namespace.traffic),
        )
    }

    /// Notifies the hosts whose discovery log has changed.
    fn tell_listings_changed(&mut self, before: &BTreeMap<ControllerKey, u64>) {
        // A host without a controller gets no event: it sees the change by the generation. wire §28.26
        self.discovery.generation = self.discovery.generation.wrapping_add(1);
        for (key, listing) in self.listings() {
            if before.get(&key) == Some(&listing) {
                continue;
            }
            if let Some(record) = self.controllers.get_mut(&key) {
                record.events.raise(AsyncEvent::DISCOVERY_CHANGE);
            }
            self.tell_events(key);
        }
    }
}

fn configured(
    new: NewNamespace,
    id: NamespaceId,
    shown_from: u64,
    traffic: Arc<NamespaceTraffic>,
) -> Namespace {
    let NewNamespace { store, storage, uuid, nguid } = new;
    Namespace { id, store, traffic, uuid, nguid, storage, shown_from }
}
