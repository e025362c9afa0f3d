//! The memcached door of a reactor: its connections, and what goes to and comes from the other partitions.
//!
//! ```text
//! receive ─▶ Session ─▶ own partition ─▶ output ─┐
//!               └─▶ batch per reactor ─ turn end ─▶ KeyValueMessage ─▶ there ─▶ back ─▶ output ─▶ one send per turn
//! ```

use std::net::SocketAddr;
use std::sync::Arc;

use kv::{Kept, KeyHash};
use memcached::{
    AnswerId, Command, Executor, LargeStore, ListenerStats, PartitionStats, Progress, RemoteBatch, Router,
    Session,
};
use proto::receive::Receive;
use proto::{ReceivePlan, SendBudget};
use reactor::{Chunk, Connection, Io, Received, Segment, Sent, SocketId};

use crate::admission::{GuestCounters, Visitor, reason};
use crate::attached::Attachments;
use crate::key_value::{KeyValueMessage, RemoteAnswers};
use crate::message::{AdmissionMessage, Message};
use crate::subsystem::NamespaceId;

/// Set in the tags of the door's listeners, and in what a socket's index stands for.
pub(crate) const DOOR: u32 = 1 << 31;

/// A connection with output that the peer does not take ends after this long, ns.
const SEND_NS_MAX: u64 = 30_000_000_000;
/// A command that does not come to its end within this long ends the connection, ns.
const COMMAND_NS_MAX: u64 = 30_000_000_000;
/// Pieces handed to the kernel in one call.
const SEGMENT_COUNT: usize = 8;
/// How connections receive: a value whose size is known is received in place.
const RECEIVE: ReceivePlan = ReceivePlan::for_target(Receive::Staging, 1);
/// How often connections are looked at for that.
const SWEEP_NS: u64 = 5_000_000_000;

/// One connection.
struct Guest {
    socket: SocketId,
    peer: Option<SocketAddr>,
    generation: u32,
    session: Session,
    /// Bytes of the peer wait for output to be sent.
    is_stalled: bool,
    is_closing: bool,
    is_dirty: bool,
    is_blocked: bool,
    /// When something last moved.
    moved_ns: u64,
}

/// A reactor's door.
pub(crate) struct Door {
    guests: Vec<Option<Box<Guest>>>,
    /// Connections that came before the namespace.
    waiting: Vec<Connection>,
    free: Vec<u32>,
    generation: u32,
    /// Guests with something to send.
    dirty: Vec<u32>,
    /// By reactor: commands on their way there.
    batches: Vec<RemoteBatch>,
    /// Which namespace they are for: in another one keys have other hashes.
    batches_for: Option<NamespaceId>,
    stats: ListenerStats,
    /// Of all reactors' doors.
    counters: Arc<GuestCounters>,
    is_sweep_set: bool,
}

/// What a session sees of the target.
struct Route<'a, I> {
    io: &'a mut I,
    executor: Executor<'a>,
    batches: &'a mut Vec<RemoteBatch>,
    stats: ListenerStats,
    counters: &'a GuestCounters,
    session: u64,
    namespace: NamespaceId,
}

impl<I: Io<Message>> Router for Route<'_, I> {
    fn executor(&mut self) -> Executor<'_> {
        self.executor.reborrow()
    }

    fn position(&self) -> (usize, usize) {
        (self.io.reactor(), self.io.reactor_count())
    }

    fn send(&mut self, to: usize, ticket: AnswerId, hash: KeyHash, command: &Command<'_>) {
        if self.batches.len() <= to {
            self.batches.resize_with(to + 1, RemoteBatch::default);
        }
        self.batches[to].push(self.session, ticket, hash, command);
    }

    fn send_all(&mut self, ticket: AnswerId, flush: Option<i64>, with_own: bool) {
        let from = self.io.reactor();
        // What was asked before comes before.
        post_batches(self.io, self.batches, self.namespace);
        for to in (0..self.io.reactor_count()).filter(|&to| with_own || to != from) {
            let (namespace, session) = (self.namespace, self.session);
            let ask = KeyValueMessage::Ask { from, namespace, session, ticket, flush };
            self.io.post(to, Message::KeyValue(Box::new(ask)));
        }
    }

    fn reserve(&mut self, to: usize, count: usize) {
        let (from, namespace, session) = (self.io.reactor(), self.namespace, self.session);
        let reserve = KeyValueMessage::Reserve { from, namespace, session, count };
        self.io.post(to, Message::KeyValue(Box::new(reserve)));
    }

    fn store_large(&mut self, to: usize, ticket: AnswerId, store: LargeStore) {
        // What was asked before comes before.
        post_batches(self.io, self.batches, self.namespace);
        let (from, namespace, session) = (self.io.reactor(), self.namespace, self.session);
        let store = KeyValueMessage::StoreLarge { from, namespace, session, ticket, store };
        self.io.post(to, Message::KeyValue(Box::new(store)));
    }

    fn fetch(&mut self, to: usize, kept: Arc<Kept>, offset: usize) {
        let (from, namespace, session) = (self.io.reactor(), self.namespace, self.session);
        let fetch = KeyValueMessage::Fetch { from, namespace, session, kept, offset };
        self.io.post(to, Message::KeyValue(Box::new(fetch)));
    }

    /// This reactor's traffic, and the connections of all reactors.
    fn listener_stats(&self) -> ListenerStats {
        ListenerStats {
            connection_count: self.counters.count.get(),
            connection_total_count: self.counters.admitted_count.get(),
            rejected_count: self.counters.rejected_count.get(),
            ..self.stats
        }
    }
}

/// Posts what waits for other reactors.
fn post_batches(io: &mut impl Io<Message>, batches: &mut [RemoteBatch], namespace: NamespaceId) {
    let from = io.reactor();
    for (to, batch) in batches.iter_mut().enumerate().filter(|(_, batch)| !batch.is_empty()) {
        let run = KeyValueMessage::Run { from, namespace, batch: std::mem::take(batch) };
        io.post(to, Message::KeyValue(Box::new(run)));
    }
}

/// The partition that the door leads to, its clock set.
fn partition(namespaces: &mut Attachments) -> Option<(NamespaceId, Executor<'_>)> {
    let (namespace, executor) = namespaces.key_value()?;
    executor.partition.set_now(store::unix_s());
    Some((namespace, executor))
}

impl Door {
    pub(crate) fn new(counters: Arc<GuestCounters>) -> Self {
        Self {
            guests: Vec::new(),
            waiting: Vec::new(),
            free: Vec::new(),
            generation: 0,
            dirty: Vec::new(),
            batches: Vec::new(),
            batches_for: None,
            stats: ListenerStats::default(),
            counters,
            is_sweep_set: false,
        }
    }

    fn guest(&mut self, index: u32) -> Option<&mut Guest> {
        self.guests.get_mut(index as usize)?.as_deref_mut()
    }

    /// Whether something is to be sent or posted.
    pub(crate) fn has_work(&self) -> bool {
        !self.dirty.is_empty() || self.batches.iter().any(|batch| !batch.is_empty())
    }

    /// A connection has come: it is let in when the namespace is there.
    pub(crate) fn expect(&mut self, connection: Connection) {
        self.waiting.push(connection);
    }

    /// Takes over a connection that waits. Returns its socket, and what is to be noted for it.
    pub(crate) fn next_in(
        &mut self,
        io: &mut impl Io<Message>,
        namespaces: &mut Attachments,
    ) -> Option<(SocketId, u32)> {
        let (_, executor) = namespaces.key_value()?;
        let settings = *executor.service.settings();
        let (socket, peer) = loop {
            let connection = self.waiting.pop()?;
            let peer = connection.peer;
            // Those that died while they waited are passed over.
            match io.adopt(connection) {
                Ok(socket) => break (socket, peer),
                Err(_) => io.post(
                    0,
                    Message::Admission(AdmissionMessage::Gone(Visitor::Guest, peer.map(|peer| peer.ip()))),
                ),
            }
        };
        // There is nothing more for a guest to show: one is as good as another.
        io.establish(socket);
        let index = self.free.pop().unwrap_or_else(|| {
            self.guests.push(None);
            u32::try_from(self.guests.len() - 1).expect("fewer than descriptors")
        });
        self.generation = self.generation.wrapping_add(1);
        self.guests[index as usize] = Some(Box::new(Guest {
            socket,
            peer,
            generation: self.generation,
            session: Session::new(settings),
            is_stalled: false,
            is_closing: false,
            is_dirty: false,
            is_blocked: false,
            moved_ns: io.now_ns(),
        }));
        self.stats.thread_count = io.reactor_count() as u64;
        Some((socket, index | DOOR))
    }

    /// Receives once. Says whether anything came.
    pub(crate) fn receive(
        &mut self,
        io: &mut impl Io<Message>,
        namespaces: &mut Attachments,
        index: u32,
        socket: SocketId,
        staging: &mut [u8],
    ) -> bool {
        let Some(guest) = self.guest(index).filter(|guest| guest.socket == socket) else { return false };
        if guest.is_stalled || guest.is_closing {
            return false;
        }
        let (received, extent) =
            RECEIVE.receive(guest.session.place(), staging, |into| io.receive(socket, into));
        match received {
            Received::Bytes(count) => {
                let placed = extent.in_place(count);
                guest.session.on_placed(placed);
                self.stats.received_bytes += count as u64;
                self.run(io, namespaces, index, Some(&staging[..count - placed]));
                true
            }
            Received::Dry => false,
            Received::Ended | Received::Failed(_) => {
                self.close(io, index);
                true
            }
        }
    }

    /// Has a session take in bytes, or go on with those it has.
    fn run(
        &mut self,
        io: &mut impl Io<Message>,
        namespaces: &mut Attachments,
        index: u32,
        bytes: Option<&[u8]>,
    ) {
        let now_ns = io.now_ns();
        let Some(guest) = self.guests.get_mut(index as usize).and_then(Option::as_deref_mut) else { return };
        let Some((namespace, executor)) = partition(namespaces) else {
            guest.is_closing = true;
            return self.mark(index);
        };
        if self.batches_for != Some(namespace)
            && let Some(before) = self.batches_for.replace(namespace)
        {
            post_batches(io, &mut self.batches, before);
        }
        let session = u64::from(guest.generation) << 32 | u64::from(index);
        let (batches, counters) = (&mut self.batches, &*self.counters);
        let mut route = Route { io, executor, batches, stats: self.stats, counters, session, namespace };
        let progress = match bytes {
            Some(bytes) => guest.session.on_bytes(&mut route, bytes),
            None => guest.session.resume(&mut route),
        };
        guest.moved_ns = now_ns;
        let was_stalled = guest.is_stalled;
        guest.is_stalled = progress == Progress::Stalled;
        guest.is_closing = progress == Progress::Close;
        if guest.is_stalled && !was_stalled {
            io.pause(guest.socket);
        } else if was_stalled && !guest.is_stalled && !guest.is_closing {
            io.resume(guest.socket);
        }
        if guest.session.is_within_command() && !self.is_sweep_set {
            self.is_sweep_set = true;
            io.set_timer(now_ns + SWEEP_NS, super::DOOR_TIMER);
        }
        self.mark(index);
    }

    fn mark(&mut self, index: u32) {
        if let Some(guest) = self.guest(index)
            && !std::mem::replace(&mut guest.is_dirty, true)
        {
            self.dirty.push(index);
        }
    }

    /// The socket takes bytes again.
    pub(crate) fn on_writable(&mut self, index: u32, socket: SocketId) {
        if let Some(guest) = self.guest(index).filter(|guest| guest.socket == socket) {
            guest.is_blocked = false;
            self.mark(index);
        }
    }

    /// Sends what there is, and posts what is for others: once per turn.
    pub(crate) fn flush(&mut self, io: &mut impl Io<Message>, namespaces: &mut Attachments) {
        let count = self.dirty.len();
        for at in 0..count {
            self.send(io, namespaces, self.dirty[at]);
        }
        self.dirty.drain(..count);
        if let Some(namespace) = self.batches_for {
            post_batches(io, &mut self.batches, namespace);
        }
    }

    /// Sends what a session has, as far as its socket takes it and a turn has room for.
    fn send(&mut self, io: &mut impl Io<Message>, namespaces: &mut Attachments, index: u32) {
        let now_ns = io.now_ns();
        let mut budget = SendBudget::TURN;
        if let Some(guest) = self.guest(index) {
            guest.is_dirty = false;
        }
        loop {
            let Some(guest) = self.guests.get_mut(index as usize).and_then(Option::as_deref_mut) else {
                return;
            };
            if guest.is_blocked {
                return;
            }
            if guest.session.has_long() && !self.fetch(io, namespaces, index) {
                return self.close(io, index);
            }
            let Some(guest) = self.guests.get_mut(index as usize).and_then(Option::as_deref_mut) else {
                return;
            };
            if budget.is_spent() {
                return self.mark(index);
            }
            let (mut segments, mut count, mut length) = ([Segment::EMPTY; SEGMENT_COUNT], 0, 0);
            for piece in guest.session.pieces().take(SEGMENT_COUNT) {
                let end = budget.end_of(0..piece.len(), length, 1);
                segments[count] = Segment::new(&piece[..end]);
                (count, length) = (count + 1, length + end);
                if end < piece.len() {
                    break;
                }
            }
            if length == 0 {
                if guest.is_closing && !guest.session.is_awaiting() {
                    return self.close(io, index);
                }
                return;
            }
            match io.send(guest.socket, &segments[..count]) {
                Sent::Bytes(count) => {
                    self.stats.sent_bytes += count as u64;
                    guest.session.on_sent(count);
                    budget.on_sent(count);
                    guest.moved_ns = now_ns;
                    if count < length {
                        guest.is_blocked = true;
                        io.await_writable(guest.socket);
                    }
                    if guest.is_stalled && guest.session.goes_on() {
                        self.run(io, namespaces, index, None);
                        continue;
                    }
                }
                Sent::Blocked => {
                    guest.is_blocked = true;
                    io.await_writable(guest.socket);
                    if !self.is_sweep_set {
                        self.is_sweep_set = true;
                        io.set_timer(now_ns + SWEEP_NS, super::DOOR_TIMER);
                    }
                    return;
                }
                Sent::Failed(_) => return self.close(io, index),
            }
        }
    }

    fn close(&mut self, io: &mut impl Io<Message>, index: u32) {
        if let Some(guest) = self.guests[index as usize].take() {
            io.close(guest.socket);
            self.free.push(index);
            io.post(
                0,
                Message::Admission(AdmissionMessage::Gone(Visitor::Guest, guest.peer.map(|peer| peer.ip()))),
            );
        }
    }

    /// Ends connections that do not move, and gives back memory of those that are idle.
    pub(crate) fn sweep(&mut self, io: &mut impl Io<Message>) {
        let now_ns = io.now_ns();
        self.is_sweep_set = false;
        for index in 0..u32::try_from(self.guests.len()).expect("fewer than descriptors") {
            let Some(guest) = self.guest(index) else { continue };
            let idle_ns = now_ns - guest.moved_ns;
            let waits_to_send = guest.is_blocked && idle_ns > SEND_NS_MAX;
            let waits_for_rest =
                guest.session.is_within_command() && !guest.is_stalled && idle_ns > COMMAND_NS_MAX;
            let is_waiting = guest.is_blocked || guest.session.is_within_command();
            guest.session.shrink();
            if waits_to_send || waits_for_rest {
                let reason = if waits_to_send { reason::GUEST_READS_NOTHING } else { reason::GUEST_STALLS };
                let peer = guest.peer;
                io.post(0, Message::Admission(AdmissionMessage::Complaint { peer, reason }));
                self.close(io, index);
            } else {
                self.is_sweep_set |= is_waiting;
            }
        }
        if self.is_sweep_set {
            io.set_timer(now_ns + SWEEP_NS, super::DOOR_TIMER);
        }
    }

    /// The session of a guest that is still the same.
    fn session(&mut self, session: u64) -> Option<u32> {
        let index = u32::try_from(session & 0xffff_ffff).expect("masked");
        self.guest(index).filter(|guest| u64::from(guest.generation) == session >> 32).map(|_| index)
    }

    /// Another partition has answered.
    pub(crate) fn on_answers(
        &mut self,
        io: &mut impl Io<Message>,
        namespaces: &mut Attachments,
        answers: &RemoteAnswers,
    ) {
        answers.for_each_output(|session, ticket, answer| {
            let Some(index) = self.session(session) else { return };
            if let Some(guest) = self.guest(index) {
                guest.session.on_reply(ticket, answer);
            }
            self.mark(index);
        });
        // Only now, so that what had to wait goes on in batches as well.
        answers.for_each(|session, _, _, _| {
            let Some(index) = self.session(session) else { return };
            let goes_on = |guest: &mut Guest| guest.is_stalled && guest.session.goes_on();
            if self.guest(index).is_some_and(goes_on) {
                self.run(io, namespaces, index, None);
            }
        });
    }

    /// Another partition has given memory for a value that arrives, or has none.
    pub(crate) fn on_room(
        &mut self,
        io: &mut impl Io<Message>,
        namespaces: &mut Attachments,
        session: u64,
        chunks: Vec<Chunk>,
    ) {
        let Some(index) = self.session(session) else { return };
        let Some((namespace, executor)) = partition(namespaces) else { return self.close(io, index) };
        let Some(guest) = self.guests[index as usize].as_deref_mut() else { return };
        let (batches, counters) = (&mut self.batches, &*self.counters);
        let mut route = Route { io, executor, batches, stats: self.stats, counters, session, namespace };
        guest.session.on_room(&mut route, chunks);
        if guest.is_stalled && guest.session.goes_on() {
            self.run(io, namespaces, index, None);
        }
    }

    /// Has a session fetch what it is to send next of a long value. `false` if that is gone: its namespace is.
    fn fetch(&mut self, io: &mut impl Io<Message>, namespaces: &mut Attachments, index: u32) -> bool {
        let Some((namespace, executor)) = partition(namespaces) else { return false };
        let Some(guest) = self.guests[index as usize].as_deref_mut() else { return false };
        let session = u64::from(guest.generation) << 32 | u64::from(index);
        let (batches, counters) = (&mut self.batches, &*self.counters);
        let mut route = Route { io, executor, batches, stats: self.stats, counters, session, namespace };
        guest.session.fetch(&mut route)
    }

    /// Another partition has given the next piece of a long value, or has none.
    pub(crate) fn on_piece(&mut self, io: &mut impl Io<Message>, session: u64, piece: Vec<u8>) {
        let Some(index) = self.session(session) else { return };
        let is_there = self.guest(index).is_some_and(|guest| guest.session.on_piece(piece));
        if is_there { self.mark(index) } else { self.close(io, index) }
    }

    /// Another partition has said what it holds, or that it has flushed.
    pub(crate) fn on_stats(
        &mut self,
        io: &mut impl Io<Message>,
        namespaces: &mut Attachments,
        session: u64,
        ticket: AnswerId,
        stats: &PartitionStats,
    ) {
        let Some(index) = self.session(session) else { return };
        let Some((namespace, executor)) = partition(namespaces) else { return self.close(io, index) };
        let Some(guest) = self.guests[index as usize].as_deref_mut() else { return };
        let (batches, counters) = (&mut self.batches, &*self.counters);
        let mut route = Route { io, executor, batches, stats: self.stats, counters, session, namespace };
        guest.session.on_stats(&mut route, ticket, stats);
        if guest.is_stalled && guest.session.goes_on() {
            self.run(io, namespaces, index, None);
        }
        self.mark(index);
    }
}
