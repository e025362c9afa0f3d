//! Builds the snapshot of the target's state.

use std::collections::BTreeMap;
use std::sync::Arc;

use proto::controller::ControllerState as MachineState;
use reactor::Counter;
use store::{DamagePassedOver, RecoveryProgress, Store};
use wire::id::{Nsid, Qid};

use super::associations::Associations;
use super::authentications::Authentications;
use crate::messages::state::{
    ControllerState, DamageState, Detail, ListenerState, LogState, NamespaceParts, NamespaceState,
    PairCounters, PairsState, QueueState, RecoveryState, StateParts, SubsystemState, TargetState,
    TrafficState,
};
use crate::names::lane_counters::LaneCounters;
use crate::names::lane_id::LaneId;
use crate::objects::catalog::Catalog;
use crate::objects::controller::{ControllerKind, ControllerRecord, Life, Transition};
use crate::objects::subsystem::{Namespace, Subsystem, SubsystemId};

/// The parts of the control plane that the snapshot shows.
pub(super) struct Snapshot<'a> {
    pub(super) catalog: &'a Catalog,
    pub(super) associations: &'a Associations,
    pub(super) authentications: &'a Authentications,
    /// The version of the namespace table that every reactor serves.
    pub(super) version_in_use: u64,
    pub(super) detail: Detail,
}

/// The keys and values of a namespace, if it has any.
fn pairs(store: &Store) -> Option<PairsState> {
    let usage = store.usage()?;
    let log = LogState {
        used_bytes: usage.log_bytes,
        usable_bytes: usage.log_bytes_max,
        headroom_bytes: usage.log_headroom_bytes,
        refused_count: usage.log_full_count,
    };
    Some(PairsState {
        counters: PairCounters::default(),
        count: usage.pair_count,
        bytes: usage.pair_bytes,
        memory_bytes: store.memory_bytes(),
        used_memory_bytes: usage.memory_bytes,
        refused_memory_count: usage.no_memory_count,
        pinned_count: usage.pinned_count,
        pinned_bytes: usage.pinned_bytes,
        log: (usage.log_bytes_max > 0).then_some(log),
    })
}

impl Snapshot<'_> {
    pub(super) fn target(&self) -> StateParts {
        let discovery = &self.catalog.discovery;
        let listeners = discovery.listeners.values().map(|listener| ListenerState {
            address: listener.address.to_string(),
            advertise: listener.advertise.map(|advertised| match advertised.port {
                Some(port) => std::net::SocketAddr::new(advertised.ip, port).to_string(),
                None => advertised.ip.to_string(),
            }),
            subsystems: listener.serves_subsystems,
            discovery: listener.serves_discovery,
        });
        let subsystems = self.catalog.subsystems.iter();
        let (hosts, gone) = self.associations.hosts();
        let namespaces = self.catalog.subsystems.values().enumerate().flat_map(|(subsystem, of)| {
            let traffic = of.namespaces.values().enumerate();
            traffic.map(move |(namespace, of)| NamespaceParts {
                at: (subsystem, namespace),
                id: of.id,
                traffic: Arc::clone(&of.traffic),
            })
        });
        let namespaces = namespaces.collect();
        let state = TargetState {
            discovery_nqn: discovery.nqn.to_string(),
            discovery_generation: discovery.generation,
            listeners: listeners.collect(),
            subsystems: subsystems.map(|(id, subsystem)| self.subsystem(*id, subsystem)).collect(),
            discovery_controllers: self.controllers(ControllerKind::Discovery),
            ..TargetState::default()
        };
        let subsystem_ids = self.catalog.subsystems.keys().copied().collect();
        StateParts { state, hosts, gone, namespaces, subsystem_ids }
    }

    fn subsystem(&self, id: SubsystemId, subsystem: &Subsystem) -> SubsystemState {
        let of_namespace = |(nsid, namespace): (&Nsid, &Namespace)| NamespaceState {
            nsid: nsid.get(),
            uuid: namespace.uuid.to_string(),
            storage: namespace.storage.clone(),
            bytes: namespace.store.bytes(),
            block_bytes: namespace.store.block_bytes(),
            read_only: namespace.store.is_read_only(),
            write_protected: namespace.store.health().is_write_protected,
            full: namespace.store.health().is_full,
            spare_percent: namespace.store.health().spare_percent,
            free_bytes: namespace.store.health().free_bytes,
            hosts: self.listed(|| namespace.rights.newest().visible_to.names()),
            write_hosts: self.listed(|| namespace.rights.newest().writable_by.names()),
            key_prefixes: self.listed(|| namespace.rights.newest().keys.prefixes()),
            rate_limits: namespace.meter.as_ref().map(|meter| meter.limits),
            shown: namespace.shown_from <= self.version_in_use
                && namespace.rights.are_settled(self.version_in_use),
            closed: namespace.store.closed_because(),
            closed_kind: namespace.store.closed_kind(),
            closing_count: namespace.store.generation().closing_count(),
            traffic: TrafficState::default(),
            recovery: namespace.store.recovery().map(|progress| {
                let RecoveryProgress { partition_count, read_bytes, bytes } = progress;
                RecoveryState { partition_count, read_bytes, bytes }
            }),
            pairs: pairs(&namespace.store),
            damage: namespace.store.damage().map(|damage| {
                let DamagePassedOver { count, lost_key_count, lost_unknown_count } = damage;
                DamageState { count, lost_key_count, lost_unknown_count }
            }),
        };
        SubsystemState {
            nqn: subsystem.nqn.to_string(),
            serial: subsystem.serial.clone(),
            model: subsystem.model.clone(),
            hosts: self.listed(|| subsystem.access.names()),
            host_rate_limits: match self.detail {
                Detail::Lanes => {
                    let limits = subsystem.host_meters.iter();
                    limits.map(|(host, meter)| (host.to_string(), meter.limits)).collect()
                }
                Detail::Sums => BTreeMap::new(),
            },
            namespaces: subsystem.namespaces.iter().map(of_namespace).collect(),
            controllers: self.controllers(ControllerKind::Io(id)),
        }
    }

    /// What is only in the full state.
    fn listed<T>(&self, list: impl FnOnce() -> Option<T>) -> Option<T> {
        match self.detail {
            Detail::Lanes => list(),
            Detail::Sums => None,
        }
    }

    fn controllers(&self, kind: ControllerKind) -> Vec<ControllerState> {
        if self.detail == Detail::Sums {
            return Vec::new();
        }
        self.associations.of_kind(kind).map(|record| self.controller(record)).collect()
    }

    fn queue(&self, record: &ControllerRecord, qid: Qid, lane: LaneId) -> QueueState {
        let counters = record.counters.get(&lane);
        let count = |of: fn(&LaneCounters) -> &Counter| counters.map_or(0, |counters| of(counters).get());
        QueueState {
            qid: qid.get(),
            reactor: lane.reactor,
            napi_id: count(|lane| &lane.napi_id),
            authentication: self.authentications.describe(lane),
            doorbell: self.associations.lane(lane).map_or_else(String::new, |lane| lane.doorbell.to_string()),
            read_count: count(|lane| &lane.read_count),
            write_count: count(|lane| &lane.write_count),
            send_count: count(|lane| &lane.send_count),
            pdu_count: count(|lane| &lane.pdu_count),
            receive_count: count(|lane| &lane.receive_count),
            counters: counters.map(|counters| counters.report()).unwrap_or_default(),
        }
    }

    fn controller(&self, record: &ControllerRecord) -> ControllerState {
        let totals = record.totals();
        let queues = record.io.iter().map(|(qid, lane)| self.queue(record, *qid, *lane));
        ControllerState {
            cntlid: record.key.cntlid.get(),
            host: record.host.to_string(),
            hostid: record.hostid.to_string(),
            state: match (record.life, record.transition, record.machine.state()) {
                (Life::Ending, ..) => "ending",
                (_, Transition::Reset { .. }, _) => "resetting",
                (.., MachineState::Disabled) => "disabled",
                (.., MachineState::Ready) => "ready",
                (.., MachineState::ShuttingDown) => "shutting down",
                (.., MachineState::ShutDown) => "shut down",
            },
            keep_alive_ms: record.keep_alive.timeout_ms(),
            queues: queues.collect(),
            read_count: totals.read_count,
            write_count: totals.write_count,
            read_bytes: totals.read_bytes,
            written_bytes: totals.written_bytes,
            failed_count: totals.failed_count,
        }
    }
}
