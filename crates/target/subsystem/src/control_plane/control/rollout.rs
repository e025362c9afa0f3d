//! Distribution of namespace table versions to all reactors.
//!
//! Hosts are notified of a change once every reactor serves it, so any lane they then use finds the announced state.
//! Storage removed from the table is released at the same moment.
//!
//! ```text
//! change ─▶ Table to every reactor ─▶ TableInUse from every reactor ─▶ hosts told, listeners opened, storage released
//! ```

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::mpsc::Sender;

use reactor::{Listener, ListenerTag};
use store::Store;
use wire::id::Nsid;

use super::associations::Associations;
use super::outputs::Outputs;
use crate::messages::message::{Message, OrderAnswer, ReactorMessage};
use crate::objects::access::Concerned;
use crate::objects::catalog::Catalog;
use crate::objects::subsystem::{NamespaceId, SubsystemId};

/// The versions of the namespace table that reactors serve, and what follows when all serve one.
pub(super) struct Rollouts {
    /// The version sent out last.
    version: u64,
    /// Version in use, by reactor.
    in_use: Vec<u64>,
    /// Those whose version is not in use everywhere, in order.
    waiting: VecDeque<Rollout>,
}

/// The actions to perform once a version is in use everywhere.
pub(super) struct Rollout {
    pub(super) version: u64,
    /// The version that every reactor served before.
    pub(super) version_in_use: u64,
    /// Namespaces that were added, removed or changed, and the hosts to notify.
    pub(super) changed: Vec<(SubsystemId, Nsid, Concerned)>,
    pub(super) listeners: Vec<(ListenerTag, Listener)>,
    /// Storage that no namespace uses any more, and its id on the reactors.
    pub(super) retired: Vec<(NamespaceId, Store)>,
    answers: Sender<OrderAnswer>,
}

impl Rollouts {
    pub(super) fn new(reactor_count: u16) -> Self {
        Self { version: 0, in_use: vec![0; reactor_count.into()], waiting: VecDeque::new() }
    }

    /// The version that every reactor serves.
    pub(super) fn version_in_use(&self) -> u64 {
        self.in_use.iter().copied().min().unwrap_or(self.version)
    }

    /// Records the version that a reactor serves.
    pub(super) fn on_table_in_use(&mut self, reactor: u16, version: u64) {
        if let Some(in_use) = self.in_use.get_mut(usize::from(reactor)) {
            *in_use = (*in_use).max(version.min(self.version));
        }
    }

    /// Begins the next version.
    #[expect(clippy::arithmetic_side_effects, reason = "a count of our own changes")]
    pub(super) fn begin(&self, answers: &Sender<OrderAnswer>) -> Rollout {
        Rollout {
            version: self.version + 1,
            version_in_use: self.version_in_use(),
            changed: Vec::new(),
            listeners: Vec::new(),
            retired: Vec::new(),
            answers: answers.clone(),
        }
    }

    /// Sends the table of a version to every reactor.
    pub(super) fn send(&mut self, mut rollout: Rollout, catalog: &Catalog, outputs: &mut Outputs) {
        let in_use: BTreeSet<NamespaceId> = catalog.namespaces().map(|namespace| namespace.id).collect();
        rollout.retired.retain(|(id, _)| !in_use.contains(id));
        self.version = rollout.version;
        self.waiting.push_back(rollout);
        let table = Arc::new(catalog.table(self.version));
        outputs.post_to_all(|| Message::Reactor(ReactorMessage::Table(Arc::clone(&table))));
    }

    /// The next version that has come to be in use everywhere.
    pub(super) fn next_done(&mut self) -> Option<Rollout> {
        if self.waiting.front()?.version > self.version_in_use() {
            return None;
        }
        self.waiting.pop_front()
    }

    /// Closes the listeners that wait to be opened.
    pub(super) fn close_listeners(&mut self) {
        self.waiting.iter_mut().for_each(|rollout| rollout.listeners.clear());
    }
}

impl Rollout {
    /// Opens its listeners, notifies hosts and releases storage.
    pub(super) fn finish(self, catalog: &Catalog, associations: &mut Associations, outputs: &mut Outputs) {
        for (tag, listener) in self.listeners {
            // A listener that was removed meanwhile stays closed.
            if catalog.has_listener(tag) {
                outputs.post(0, Message::Reactor(ReactorMessage::Listen(tag, listener)));
            }
        }
        associations.on_namespaces_changed(&self.changed, outputs);
        if !self.retired.is_empty() {
            // Closing may block, so the operator's thread does it if it still waits.
            let stores = self.retired.into_iter().map(|(_, store)| store).collect();
            let _ = self.answers.send(OrderAnswer::Released(stores));
        }
    }
}
