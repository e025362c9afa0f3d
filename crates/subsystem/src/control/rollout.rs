//! Distribution of namespace table versions to all reactors.
//!
//! Hosts are notified of a change once every reactor serves it, so any lane they then use finds what was announced.
//! Storage removed from the table is released at the same moment.
//!
//! ```text
//! change ─▶ Table to every reactor ─▶ TableInUse from every reactor ─▶ hosts told, listeners opened, storage let go
//! ```

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::mpsc::Sender;

use reactor::{Listener, ListenerTag};
use store::Store;
use wire::async_event::AsyncEvent;
use wire::id::Nsid;

use super::Control;
use crate::controller::{ControllerKind, Life};
use crate::message::{Message, OrderAnswer, ReactorMessage};
use crate::namespace_table::{NamespaceEntry, NamespaceTable};
use crate::subsystem::{Namespace, NamespaceId, SubsystemId};

/// Progress of the versions.
#[derive(Debug)]
pub(super) struct Rollouts {
    /// The version sent out last.
    version: u64,
    /// Version in use, by reactor.
    in_use: Vec<u64>,
    /// Actions that wait for their version to be in use everywhere, in order.
    waiting: VecDeque<Rollout>,
}

/// An action to perform once a version is in use everywhere.
pub(super) struct Rollout {
    version: u64,
    pub(super) changed: BTreeMap<SubsystemId, BTreeSet<Nsid>>,
    pub(super) listeners: Vec<(ListenerTag, Listener)>,
    /// Storage that no namespace uses any more, and its id on the reactors.
    pub(super) retired: Vec<(NamespaceId, Store)>,
    answers: Sender<OrderAnswer>,
}

impl std::fmt::Debug for Rollout {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Rollout({}, {:?})", self.version, self.changed)
    }
}

impl Rollouts {
    pub(super) fn new(reactor_count: u16) -> Self {
        Self { version: 0, in_use: vec![0; reactor_count.into()], waiting: VecDeque::new() }
    }

    #[expect(clippy::expect_used, reason = "it was made of one")]
    pub(super) fn reactor_count(&self) -> u16 {
        u16::try_from(self.in_use.len()).expect("made of one")
    }

    /// The version that every reactor serves.
    pub(super) fn version_in_use(&self) -> u64 {
        self.in_use.iter().copied().min().unwrap_or(self.version)
    }

    /// The version that the next table will have.
    #[expect(clippy::arithmetic_side_effects, reason = "a count of our own changes")]
    pub(super) fn next_version(&self) -> u64 {
        self.version + 1
    }

    /// Records the version a reactor serves. Returns whether the version served by all of them has advanced.
    pub(super) fn on_table_in_use(&mut self, reactor: u16, version: u64) -> bool {
        let before = self.version_in_use();
        if let Some(in_use) = self.in_use.get_mut(usize::from(reactor)) {
            *in_use = (*in_use).max(version.min(self.version));
        }
        self.version_in_use() > before
    }

    /// Starts the actions that a change makes possible.
    pub(super) fn begin(&self, answers: &Sender<OrderAnswer>) -> Rollout {
        Rollout {
            version: self.next_version(),
            changed: BTreeMap::new(),
            listeners: Vec::new(),
            retired: Vec::new(),
            answers: answers.clone(),
        }
    }
}

impl Control {
    /// Sends the table of a new version to every reactor, and queues the actions that follow it.
    pub(super) fn roll_out(&mut self, rollout: Rollout) {
        self.rollouts.version = rollout.version;
        let entries = |namespaces: &BTreeMap<Nsid, Namespace>| {
            let entry = |(nsid, namespace): (&Nsid, &Namespace)| NamespaceEntry {
                nsid: *nsid,
                id: namespace.id,
                store: namespace.store.clone(),
                traffic: Arc::clone(&namespace.traffic),
            };
            namespaces.iter().map(entry).collect()
        };
        let subsystems = self.subsystems.iter();
        let table = Arc::new(NamespaceTable {
            version: rollout.version,
            subsystems: subsystems.map(|(id, subsystem)| (*id, entries(&subsystem.namespaces))).collect(),
        });
        self.rollouts.waiting.push_back(rollout);
        for reactor in 0..self.rollouts.reactor_count() {
            self.post(reactor, Message::Reactor(ReactorMessage::Table(Arc::clone(&table))));
        }
    }

    /// Performs the actions of versions that are in use everywhere.
    pub(super) fn finish_rollouts(&mut self) {
        let version = self.rollouts.version_in_use();
        while self.rollouts.waiting.front().is_some_and(|rollout| rollout.version <= version) {
            let Some(rollout) = self.rollouts.waiting.pop_front() else { return };
            if self.stopping.is_none() {
                for (tag, listener) in rollout.listeners {
                    // A listener that was removed meanwhile stays closed.
                    if self.discovery.listeners.contains_key(&tag) {
                        self.post(0, Message::Reactor(ReactorMessage::Listen(tag, listener)));
                    }
                }
            }
            for (subsystem, nsids) in &rollout.changed {
                self.tell_namespaces_changed(*subsystem, nsids);
            }
            if !rollout.retired.is_empty() {
                // Closing may block, so the operator's thread does it if it still waits.
                let stores = rollout.retired.into_iter().map(|(_, store)| store).collect();
                let _ = rollout.answers.send(OrderAnswer::Released(stores));
            }
        }
    }

    /// Notifies the hosts of a subsystem that these namespaces were added, removed or resized.
    fn tell_namespaces_changed(&mut self, subsystem: SubsystemId, nsids: &BTreeSet<Nsid>) {
        let kind = ControllerKind::Io(subsystem);
        let concerned = self.controllers.values_mut();
        let concerned = concerned.filter(|record| record.key.kind == kind && record.life == Life::Live);
        let mut keys = Vec::new();
        for record in concerned {
            record.changed.extend(nsids);
            record.events.raise(AsyncEvent::NAMESPACE_ATTRIBUTE);
            keys.push(record.key);
        }
        for key in keys {
            self.tell_events(key);
        }
    }
}
