//! The configuration as it runs: subsystems with their namespaces, and the listeners at which hosts find them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use proto::doorbell::Policy;
use reactor::ListenerTag;
use store::Store;
use wire::nqn::Nqn;

use crate::objects::controller::ControllerKind;
use crate::objects::discovery::Discovery;
use crate::objects::namespace_table::{NamespaceEntry, NamespaceTable};
use crate::objects::namespace_traffic::NamespaceTraffic;
use crate::objects::rate_limit::Pressure;
use crate::objects::step_error::StepError;
use crate::objects::subsystem::{Namespace, NamespaceId, Subsystem, SubsystemId};

/// The subsystems, namespaces and listeners of a target.
pub(crate) struct Catalog {
    pub(crate) subsystems: BTreeMap<SubsystemId, Subsystem>,
    pub(crate) discovery: Discovery,
    /// Removed listeners, and the time at which the associations that came in there end, ns.
    pub(crate) removed_listeners: BTreeMap<ListenerTag, u64>,
    /// The memcached listeners.
    pub(crate) memcached_listeners: BTreeSet<ListenerTag>,
    /// Doorbell policy where neither the subsystem nor the listener sets one.
    pub(crate) doorbell: Policy,
    pressure: Arc<Pressure>,
    reactor_count: u16,
    last_subsystem: u32,
    last_namespace: u64,
}

impl Catalog {
    /// An empty catalog, for a target of `reactor_count` reactors.
    pub(crate) fn new(discovery: Discovery, reactor_count: u16) -> Self {
        Self {
            subsystems: BTreeMap::new(),
            discovery,
            removed_listeners: BTreeMap::new(),
            memcached_listeners: BTreeSet::new(),
            doorbell: Policy::default(),
            pressure: Arc::default(),
            reactor_count,
            last_subsystem: 0,
            last_namespace: 0,
        }
    }

    /// The subsystem of controllers of this kind; `None` for discovery.
    pub(crate) fn subsystem_of(&self, kind: ControllerKind) -> Option<&Subsystem> {
        match kind {
            ControllerKind::Io(subsystem) => self.subsystems.get(&subsystem),
            ControllerKind::Discovery => None,
        }
    }

    /// The subsystem of this name.
    pub(crate) fn named(&self, nqn: &Nqn) -> Option<(SubsystemId, &Subsystem)> {
        let mut subsystems = self.subsystems.iter();
        subsystems.find(|(_, subsystem)| subsystem.nqn == *nqn).map(|(id, subsystem)| (*id, subsystem))
    }

    /// The subsystem of this name, to change it.
    pub(crate) fn named_mut(&mut self, nqn: &Nqn) -> Result<(SubsystemId, &mut Subsystem), StepError> {
        let mut subsystems = self.subsystems.iter_mut();
        let known = subsystems.find(|(_, subsystem)| subsystem.nqn == *nqn);
        known.map(|(id, subsystem)| (*id, subsystem)).ok_or(StepError::NoSubsystem)
    }

    /// Whether a listener was added and not removed since.
    pub(crate) fn has_listener(&self, tag: ListenerTag) -> bool {
        self.discovery.listeners.contains_key(&tag) || self.memcached_listeners.contains(&tag)
    }

    /// The namespaces of all subsystems.
    pub(crate) fn namespaces(&self) -> impl Iterator<Item = &Namespace> {
        self.subsystems.values().flat_map(|subsystem| subsystem.namespaces.values())
    }

    /// Adds a subsystem without namespaces.
    #[expect(clippy::arithmetic_side_effects, reason = "the operator adds them")]
    pub(crate) fn add_subsystem(&mut self, new: Subsystem) -> Result<(), StepError> {
        if self.named(&new.nqn).is_some() {
            return Err(StepError::SubsystemExists);
        }
        self.last_subsystem += 1;
        self.subsystems.insert(SubsystemId(self.last_subsystem), new);
        Ok(())
    }

    /// The id by which reactors know a namespace's storage. Storage that gets another identity or another path keeps
    /// its id, so reactors keep what they have attached; so does storage in `retired`. RAM may be attached only once,
    /// or its keys would be lost; a second log in one file would overwrite the first.
    #[expect(clippy::arithmetic_side_effects, reason = "the operator adds them")]
    pub(crate) fn namespace_id(&mut self, store: &Store, retired: &[(NamespaceId, Store)]) -> NamespaceId {
        let present = self.namespaces().map(|namespace| (namespace.id, &namespace.store));
        let retired = retired.iter().map(|(id, store)| (*id, store));
        if let Some((id, _)) = present.chain(retired).find(|(_, known)| known.is_same(store)) {
            return id;
        }
        self.last_namespace += 1;
        NamespaceId(self.last_namespace)
    }

    /// The counters for a namespace's storage: the existing ones if another subsystem has it too.
    pub(crate) fn traffic_of_storage(&self, id: NamespaceId) -> Arc<NamespaceTraffic> {
        let known = self.namespaces().find(|namespace| namespace.id == id);
        known.map_or_else(
            || Arc::new(NamespaceTraffic::new(self.reactor_count)),
            |known| Arc::clone(&known.traffic),
        )
    }

    /// The doorbell policy of a lane: that of the subsystem, else of the listener, else the target's.
    pub(crate) fn doorbell_of(&self, kind: ControllerKind, listener: ListenerTag) -> Policy {
        let of_subsystem = self.subsystem_of(kind).and_then(|subsystem| subsystem.doorbell);
        let of_listener = || self.discovery.listeners.get(&listener).and_then(|listener| listener.doorbell);
        of_subsystem.or_else(of_listener).unwrap_or(self.doorbell)
    }

    /// The namespaces as reactors use them.
    pub(crate) fn table(&self, version: u64) -> NamespaceTable {
        let entries = |subsystem: &Subsystem| {
            let entries = subsystem.namespaces.iter().map(|(nsid, namespace)| NamespaceEntry {
                nsid: *nsid,
                id: namespace.id,
                store: namespace.store.clone(),
                rights: namespace.rights.newest().clone(),
                traffic: Arc::clone(&namespace.traffic),
                meter: namespace.meter.clone(),
            });
            entries.collect()
        };
        let subsystems = self.subsystems.iter().map(|(id, subsystem)| (*id, entries(subsystem)));
        let limited = self.subsystems.iter().filter(|(_, subsystem)| !subsystem.host_meters.is_empty());
        let host_meters = limited.map(|(id, subsystem)| (*id, subsystem.host_meters.clone()));
        NamespaceTable {
            version,
            subsystems: subsystems.collect(),
            host_meters: host_meters.collect(),
            pressure: Arc::clone(&self.pressure),
        }
    }
}
