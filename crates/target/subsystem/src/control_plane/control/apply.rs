//! Applies the operator's steps.

use std::mem;

use reactor::ListenerTag;
use security::tls::GeneratedKeys;
use wire::id::Nsid;
use wire::nqn::Nqn;

use super::associations::Associations;
use super::outputs::{MILLISECOND_NS, Outputs};
use super::rollout::Rollout;
use crate::messages::message::{
    Message, NewNamespace, PlacementMessage, REMOVED_LISTENER_GRACE_MS, ReactorMessage, Step, StepOutcome,
};
use crate::objects::access::{Concerned, VersionedRights};
use crate::objects::catalog::Catalog;
use crate::objects::rate_limit::Meter;
use crate::objects::step_error::StepError;
use crate::objects::subsystem::Namespace;

/// Applies the steps of an order. Their effects on reactors and hosts come with one new version of the namespace table.
pub(super) struct Change<'a> {
    pub(super) now_ns: u64,
    pub(super) catalog: &'a mut Catalog,
    pub(super) associations: &'a mut Associations,
    pub(super) generated: &'a GeneratedKeys,
    pub(super) outputs: &'a mut Outputs,
    pub(super) rollout: &'a mut Rollout,
}

impl Change<'_> {
    pub(super) fn apply(&mut self, step: Step) -> StepOutcome {
        let mut ended_count = 0;
        match step {
            Step::AddListener { tag, entry, socket } => {
                self.catalog.discovery.listeners.insert(tag, entry);
                self.catalog.removed_listeners.remove(&tag);
                self.rollout.listeners.push((tag, socket));
            }
            Step::RemoveListener { tag } => ended_count = self.remove_listener(tag)?,
            Step::ChangeListener { tag, entry } => {
                let known = self.catalog.discovery.listeners.get_mut(&tag);
                *known.ok_or(StepError::NoListener)? = entry;
            }
            Step::AddMemcachedListener { tag, socket } => {
                self.catalog.memcached_listeners.insert(tag);
                self.rollout.listeners.push((tag, socket));
            }
            Step::ChangeMemcachedListener { tag } => {
                if !self.catalog.memcached_listeners.contains(&tag) {
                    return Err(StepError::NoListener);
                }
            }
            Step::RemoveMemcachedListener { tag } => {
                if !self.catalog.memcached_listeners.remove(&tag) {
                    return Err(StepError::NoListener);
                }
                self.outputs.post_to_all(|| Message::Reactor(ReactorMessage::Unlisten(tag)));
            }
            Step::SetReferrals(referrals) => self.catalog.discovery.referrals = referrals,
            Step::SetPlacement(policy) => {
                self.outputs.post(0, Message::Placement(PlacementMessage::SetPolicy(policy)));
            }
            Step::SetSlow(threshold) => {
                self.outputs.post_to_all(|| Message::Reactor(ReactorMessage::SetSlow(threshold)));
            }
            Step::SetDoorbell(policy) => self.catalog.doorbell = policy,
            Step::SetSubsystemDoorbell(nqn, policy) => self.catalog.named_mut(&nqn)?.1.doorbell = policy,
            Step::AddSubsystem(subsystem) => self.catalog.add_subsystem(subsystem)?,
            Step::RemoveSubsystem(nqn) => {
                let (id, _) = self.catalog.named_mut(&nqn)?;
                ended_count = self.associations.end_of_hosts(self.now_ns, id, |_| true, self.outputs);
                self.generated.end_by(self.now_ns, |_, of| *of == nqn);
                let removed = self.catalog.subsystems.remove(&id);
                let namespaces = removed.into_iter().flat_map(|subsystem| subsystem.namespaces.into_values());
                self.rollout.retired.extend(namespaces.map(|namespace| (namespace.id, namespace.store)));
            }
            Step::SetAccess(nqn, access) => {
                let (id, known) = self.catalog.named_mut(&nqn)?;
                known.access = access;
                let is_to_go = |host: &_| !known.access.allows(host);
                ended_count = self.associations.end_of_hosts(self.now_ns, id, is_to_go, self.outputs);
            }
            Step::SetAuthentication { subsystem, authentication, overlap_ms } => {
                let (_, known) = self.catalog.named_mut(&subsystem)?;
                let before = mem::replace(&mut known.authentication, authentication);
                if !before.has_same_secrets(&known.authentication) {
                    let until_ns = self.now_ns.saturating_add(overlap_ms.saturating_mul(MILLISECOND_NS));
                    // Keys that hosts have generated with earlier secrets end with those secrets.
                    let after = &known.authentication;
                    self.generated
                        .end_by(until_ns, |host, of| *of == subsystem && before.of(host) != after.of(host));
                    known.earlier = Some((before, until_ns));
                }
            }
            Step::SetCntlids(nqn, range) => self.catalog.named_mut(&nqn)?.1.cntlids = range,
            Step::AddNamespace { subsystem, nsid, namespace } => {
                let namespace = self.configured(namespace);
                let (id, known) = self.catalog.named_mut(&subsystem)?;
                if known.namespaces.contains_key(&nsid) {
                    return Err(StepError::NamespaceExists);
                }
                let rights = namespace.rights.newest().clone();
                known.namespaces.insert(nsid, namespace);
                self.rollout.changed.push((id, nsid, Concerned::WhoSees(rights)));
            }
            Step::RemoveNamespace { subsystem, nsid } => {
                let (id, known) = self.catalog.named_mut(&subsystem)?;
                let removed = known.namespaces.remove(&nsid).ok_or(StepError::NoNamespace)?;
                self.rollout.retired.push((removed.id, removed.store));
                let rights = removed.rights.newest().clone();
                self.rollout.changed.push((id, nsid, Concerned::WhoSees(rights)));
            }
            Step::ReplaceNamespace { subsystem, nsid, namespace } => {
                let mut namespace = self.configured(namespace);
                let known = self.namespace_to_change(&subsystem, nsid)?;
                namespace.rights = known.rights.clone();
                namespace.meter.clone_from(&known.meter);
                // A namespace whose identity stays is still the same one to hosts: it never disappears for them.
                if (known.uuid, known.nguid) == (namespace.uuid, namespace.nguid) {
                    namespace.shown_from = known.shown_from;
                }
                let replaced = mem::replace(known, namespace);
                self.rollout.retired.push((replaced.id, replaced.store));
            }
            Step::SetRights { subsystem, nsid, rights } => {
                let (version, in_use) = (self.rollout.version, self.rollout.version_in_use);
                let (id, known) = self.catalog.named_mut(&subsystem)?;
                let known = known.namespaces.get_mut(&nsid).ok_or(StepError::NoNamespace)?;
                let before = known.rights.replace(rights.clone(), version, in_use);
                self.rollout.changed.push((id, nsid, Concerned::WhoseRightChanges(before, rights)));
            }
            Step::SetNamespaceLimits { subsystem, nsid, limits } => {
                let (_, known) = self.catalog.named_mut(&subsystem)?;
                let known = known.namespaces.get_mut(&nsid).ok_or(StepError::NoNamespace)?;
                known.meter = Meter::renewed(known.meter.as_ref(), limits);
            }
            Step::SetHostLimits(nqn, limits) => {
                let (_, known) = self.catalog.named_mut(&nqn)?;
                let before = mem::take(&mut known.host_meters);
                let meter = |(host, limits)| Some((Meter::renewed(before.get(&host), limits)?, host));
                known.host_meters =
                    limits.into_iter().filter_map(meter).map(|(meter, host)| (host, meter)).collect();
            }
            Step::StorageChanged { subsystem, nsid, storage } => {
                let known = self.namespace_to_change(&subsystem, nsid)?;
                storage.into_iter().for_each(|storage| known.storage = storage);
            }
            Step::SpaceLow { subsystem, nsid } => {
                let (id, known) = self.catalog.named_mut(&subsystem)?;
                let rights = known.namespaces.get(&nsid).ok_or(StepError::NoNamespace)?.rights.newest();
                self.associations.on_space_low(id, rights, self.outputs);
            }
        }
        Ok(ended_count)
    }

    fn remove_listener(&mut self, tag: ListenerTag) -> StepOutcome {
        self.catalog.discovery.listeners.remove(&tag).ok_or(StepError::NoListener)?;
        self.outputs.post(0, Message::Reactor(ReactorMessage::Unlisten(tag)));
        let until_ns = self.now_ns.saturating_add(REMOVED_LISTENER_GRACE_MS.saturating_mul(MILLISECOND_NS));
        self.catalog.removed_listeners.insert(tag, until_ns);
        self.outputs.wake_at(until_ns);
        Ok(self.associations.of_listener(tag).len())
    }

    /// The namespace with this number. Hosts are notified that it has changed.
    fn namespace_to_change(&mut self, subsystem: &Nqn, nsid: Nsid) -> Result<&mut Namespace, StepError> {
        let (id, known) = self.catalog.named_mut(subsystem)?;
        let namespace = known.namespaces.get_mut(&nsid).ok_or(StepError::NoNamespace)?;
        let rights = namespace.rights.newest().clone();
        self.rollout.changed.push((id, nsid, Concerned::WhoSees(rights)));
        Ok(namespace)
    }

    fn configured(&mut self, new: NewNamespace) -> Namespace {
        let NewNamespace { store, storage, uuid, nguid, rights, limits } = new;
        let id = self.catalog.namespace_id(&store, &self.rollout.retired);
        let traffic = self.catalog.traffic_of_storage(id);
        let (rights, shown_from) = (VersionedRights::new(rights), self.rollout.version);
        Namespace { id, store, traffic, meter: Meter::new(limits), uuid, nguid, rights, storage, shown_from }
    }
}
