//! The target as a memcached session reaches it: all partitions in RAM in place, of those with a log its reactor's own
//! one at once, and those of other reactors by message.

use std::ops::Range;
use std::sync::Arc;

use kv::{Kept, KeyHash};
use memcached::{
    AnswerId, CollectiveRequest, Command, Executor, InPlace, LargeStore, ListenerAddress, ListenerStats,
    ListenerTrust, PartitionOfPort, RemoteBatch, Router,
};
use reactor::{Io, ListenerTag};

use crate::audit::OfMemcached;
use crate::control_plane::admission::{MemcachedCounters, MemcachedTraffic};
use crate::io_path::own_partition::SessionKeys;
use crate::messages::key_value::message::{KeyValueMessage, PartitionRequest, Work, connection_number};
use crate::messages::message::{AdmissionMessage, Message};
use crate::names::listener_gate::ListenerGate;
use crate::objects::subsystem::NamespaceId;

/// The target as a session reaches it.
pub(super) struct Route<'a, I> {
    pub(super) io: &'a mut I,
    pub(super) keys: SessionKeys<'a>,
    pub(super) batches: &'a mut Vec<RemoteBatch>,
    pub(super) counters: &'a MemcachedCounters,
    pub(super) session: u64,
    pub(super) namespace: NamespaceId,
    pub(super) idle_ns_max: Option<u64>,
    pub(super) traffic: &'a MemcachedTraffic,
    pub(super) gate: &'a ListenerGate,
    pub(super) listener: ListenerTag,
    pub(super) trust: ListenerTrust,
    /// The session uses the keys of its reactor's partition only, whatever their hashes.
    pub(super) is_of_partition: bool,
    /// For an attempt to authenticate that fails.
    pub(super) client: Option<OfMemcached>,
    pub(super) user: Option<String>,
}

/// State that the routes of all sessions of a reactor share.
pub(super) struct Routing {
    /// By reactor: commands to be posted there.
    pub(super) batches: Vec<RemoteBatch>,
    pub(super) traffic: Arc<MemcachedTraffic>,
    /// Statistics of all reactors.
    pub(super) counters: Arc<MemcachedCounters>,
    pub(super) gate: Arc<ListenerGate>,
    /// A connection is closed once it has been without a command for this long, ns.
    pub(super) idle_ns_max: Option<u64>,
}

impl Routing {
    /// The route of a session to the partitions. Last: its listener, the listener's requirements, and whether it is for
    /// this reactor's partition only.
    pub(super) fn route<'a, I>(
        &'a mut self,
        io: &'a mut I,
        (namespace, mut keys): (NamespaceId, SessionKeys<'a>),
        session: u64,
        (listener, trust, is_of_partition): (ListenerTag, ListenerTrust, bool),
    ) -> Route<'a, I> {
        keys.service().begin_client(|| connection_number(session));
        Route {
            io,
            keys,
            batches: &mut self.batches,
            counters: &self.counters,
            session,
            namespace,
            idle_ns_max: self.idle_ns_max,
            traffic: &self.traffic,
            gate: &self.gate,
            listener,
            trust,
            is_of_partition,
            client: None,
            user: None,
        }
    }
}

impl<I: Io<Message>> Route<'_, I> {
    fn post(&mut self, to: usize, work: Work) {
        let (from, namespace) = (self.io.reactor(), self.namespace);
        self.io.post(to, PartitionRequest { from, namespace, work }.into());
    }

    /// The reactors whose partitions have the session's keys.
    fn reactors(&self) -> Range<usize> {
        let own = self.io.reactor();
        if self.is_of_partition { own..own + 1 } else { 0..self.io.reactor_count() }
    }
}

impl<I: Io<Message>> Router for Route<'_, I> {
    #[inline]
    fn executor(&mut self) -> Executor<'_> {
        self.keys.executor()
    }

    #[inline]
    fn in_place(&mut self) -> Option<InPlace<'_>> {
        if self.is_of_partition { None } else { self.keys.in_place() }
    }

    fn position(&self) -> (usize, usize) {
        (self.io.reactor(), self.reactors().len())
    }

    fn session(&self) -> u64 {
        self.session
    }

    fn send(&mut self, to: usize, ticket: AnswerId, hash: KeyHash, command: &Command<'_>) {
        if self.batches.len() <= to {
            self.batches.resize_with(to + 1, RemoteBatch::default);
        }
        self.batches[to].push(self.session, ticket, hash, command);
    }

    fn send_all(&mut self, ticket: AnswerId, request: CollectiveRequest, with_own: bool) {
        let from = self.io.reactor();
        // Earlier commands go first.
        post_batches(self.io, self.batches, self.namespace);
        for to in self.reactors().filter(|&to| with_own || to != from) {
            self.post(to, Work::Collect { session: self.session, ticket, request });
        }
    }

    fn reserve(&mut self, to: usize, count: usize) {
        self.post(to, Work::Reserve { session: self.session, count });
    }

    fn store_large(&mut self, to: usize, ticket: AnswerId, store: LargeStore) {
        // Earlier commands go first.
        post_batches(self.io, self.batches, self.namespace);
        self.post(to, Work::StoreLarge { session: self.session, ticket, store });
    }

    fn fetch(&mut self, to: usize, kept: Arc<Kept>, offset: usize) {
        self.post(to, Work::Fetch { session: self.session, kept, offset });
    }

    fn request_connections(&mut self, ticket: AnswerId) {
        let (from, session) = (self.io.reactor(), self.session);
        for to in self.reactors() {
            let request = KeyValueMessage::Connections { from, session, ticket };
            self.io.post(to, Message::KeyValue(Box::new(request)));
        }
    }

    fn listeners(&self) -> Vec<ListenerAddress> {
        self.counters.listeners()
    }

    fn listener_stats(&self) -> ListenerStats {
        ListenerStats {
            idle_s_max: self.idle_ns_max.map_or(0, |idle_ns| idle_ns / 1_000_000_000),
            trust: self.trust,
            partition: self
                .is_of_partition
                .then(|| PartitionOfPort { number: self.io.reactor(), count: self.io.reactor_count() }),
            ..self.counters.stats()
        }
    }

    fn reset_listener_stats(&mut self) {
        self.counters.reset();
    }

    fn authenticate(&mut self, user: &[u8], password: &[u8]) -> bool {
        self.traffic.authentication_count.add(1);
        match self.gate.memcached.authenticate(self.listener, user, password) {
            Ok(user) => self.user = Some(user),
            Err(user) => {
                self.traffic.authentication_failed_count.add(1);
                if let Some(client) = &self.client {
                    let client = Box::new(OfMemcached { user, ..client.clone() });
                    self.io.post(
                        0,
                        Message::Admission(AdmissionMessage::MemcachedClient { client, is_known: false }),
                    );
                }
            }
        }
        self.user.is_some()
    }
}

/// Posts the commands for other reactors.
pub(super) fn post_batches(io: &mut impl Io<Message>, batches: &mut [RemoteBatch], namespace: NamespaceId) {
    let from = io.reactor();
    for (to, batch) in batches.iter_mut().enumerate().filter(|(_, batch)| !batch.is_empty()) {
        let work = Work::Execute(std::mem::take(batch));
        io.post(to, PartitionRequest { from, namespace, work }.into());
    }
}
