//! The memcached connections of a reactor: their commands are executed on all partitions in RAM; with a log, on its own
//! one or by the other reactors.
//!
//! ```text
//! receive ─▶ Session ─▶ partition ─▶ output ───────────────────────────────────────────────┐
//!               └─▶ batch per reactor ─ turn end ─▶ PartitionRequest ─▶ there ─▶ back ─▶ output ─▶ one send per turn
//! ```

mod connection;
mod route;

use std::net::SocketAddr;
use std::sync::Arc;

use memcached::{AnswerId, ConnectionStats, PartitionStats, Session, WatchLog, connection_stats};
use memory::{Chunk, Segment};
use proto::receive::Receive;
use proto::{ReceivePlan, SendBudget};
use reactor::{Connection, Io, Listener, ListenerTag, Received, Sent, SocketId};
use security::tls::Failure;
use zeroize::Zeroize;

use super::settings::ServingSettings;
use crate::control_plane::admission::{MemcachedCounters, reason};
use crate::io_path::attached::Attachments;
use crate::io_path::maybe_tls_socket::MaybeTlsSocket;
use crate::messages::key_value::message::{MemcachedReply, RemoteAnswers, connection_number, session_of};
use crate::messages::message::{AdmissionMessage, Message, Visitor};
use crate::names::listener_gate::ListenerGate;
use crate::names::memcached_trust::MemcachedPassage;
use crate::names::unconnected::Unconnected;
use crate::objects::subsystem::NamespaceId;
use connection::{Input, MemcachedConnection};
use route::{Route, Routing, post_batches};

/// Set in the tags of memcached listeners and in the indexes of memcached connections; clear in those of lanes.
pub const MEMCACHED: u32 = 1 << 31;

/// A connection is closed once its peer has taken none of its output for this long, ns.
const SEND_NS_MAX: u64 = 30_000_000_000;
/// A connection is closed once a command of it has been incomplete for this long, ns.
const COMMAND_NS_MAX: u64 = 30_000_000_000;
/// Pieces handed to the kernel in one call.
const SEGMENT_COUNT: usize = 8;
/// How connections receive: a value whose size is known is received in place.
const RECEIVE: ReceivePlan = ReceivePlan::for_target(Receive::Staging, 1);
/// The largest number of connections of a reactor in `stats conns`.
const DESCRIBED_COUNT_MAX: usize = 1024;
/// Interval of the check for connections without progress, ns.
const SWEEP_NS: u64 = 5_000_000_000;

/// The memcached connections of a reactor.
pub(crate) struct MemcachedConnections {
    connections: Vec<Option<Box<MemcachedConnection>>>,
    /// Connections accepted before a namespace of keys and values was attached.
    waiting: Vec<(Connection, ListenerTag)>,
    /// Removed listeners: connections from there may still arrive from reactor 0.
    ended: Vec<ListenerTag>,
    free: Vec<u32>,
    generation: u32,
    /// Indexes of connections with output to send.
    dirty: Vec<u32>,
    /// Indexes of connections that may have plaintext of which their sockets raise no event.
    with_input: Vec<u32>,
    /// Those that are not established.
    unestablished: Unconnected,
    routing: Routing,
    /// The namespace that the batches of `routing` are for: in another one keys have other hashes.
    batches_for: Option<NamespaceId>,
    /// Begins and ends of connections, for the connections that watch them.
    log: WatchLog,
    is_sweep_set: bool,
    /// Connections have freed buffers of TLS in the last sweep.
    has_freed: bool,
    /// A connection is closed if it is not established within this time, ns.
    establish_ns_max: u64,
}

/// Why a connection ends, as memcached calls it.
#[derive(Clone, Copy)]
struct Closing(&'static str);

impl Closing {
    const ERROR: Self = Self("error");
    const NORMAL: Self = Self("normal");
    const IDLE: Self = Self("idle_timeout");
    const SHUTDOWN: Self = Self("shutdown");
}

/// The number of this reactor's connection with an index: different from those of other reactors.
fn number_of<M>(io: &impl Io<M>, index: u32) -> u32 {
    let number = index as usize * io.reactor_count() + io.reactor();
    u32::try_from(number).expect("fewer connections than descriptors")
}

/// Reports to the admission of connections that a connection has closed.
fn report_gone(io: &mut impl Io<Message>, peer: Option<SocketAddr>) {
    let gone = AdmissionMessage::Gone(Visitor::Memcached, peer.map(|peer| peer.ip()));
    io.post(0, Message::Admission(gone));
}

/// Reports to the admission of connections why one was refused or closed.
fn complain(
    io: &mut impl Io<Message>,
    peer: Option<SocketAddr>,
    reason: &'static str,
    detail: Option<Box<str>>,
) {
    io.post(0, Message::Admission(AdmissionMessage::Complaint { peer, reason, detail }));
}

impl MemcachedConnections {
    /// The number of connections.
    pub(super) fn count(&self) -> usize {
        self.connections.iter().flatten().count() + self.waiting.len()
    }

    pub(crate) fn new(
        counters: Arc<MemcachedCounters>,
        settings: &ServingSettings,
        gate: Arc<ListenerGate>,
    ) -> Self {
        Self {
            connections: Vec::new(),
            waiting: Vec::new(),
            ended: Vec::new(),
            free: Vec::new(),
            // It wraps soon, and not only after 2^32 connections.
            generation: u32::MAX - 2,
            dirty: Vec::new(),
            with_input: Vec::new(),
            unestablished: Unconnected::new(settings.unconnected_count_max, settings.reactor_count),
            batches_for: None,
            log: WatchLog::new(Arc::clone(&counters.watchers)),
            routing: Routing {
                batches: Vec::new(),
                traffic: counters.new_traffic(),
                counters,
                gate,
                idle_ns_max: settings.memcached_idle_ns,
            },
            is_sweep_set: false,
            has_freed: false,
            establish_ns_max: settings.timeouts.connect_ns,
        }
    }

    fn connection(&mut self, index: u32) -> Option<&mut MemcachedConnection> {
        self.connections.get_mut(index as usize)?.as_deref_mut()
    }

    /// Whether there is output to send or a batch to post.
    pub(crate) fn has_work(&self) -> bool {
        !self.dirty.is_empty() || self.routing.batches.iter().any(|batch| !batch.is_empty())
    }

    /// Queues an accepted connection until a namespace of keys and values is attached.
    pub(crate) fn expect(
        &mut self,
        io: &mut impl Io<Message>,
        connection: Connection,
        listener: ListenerTag,
    ) {
        if self.ended.contains(&listener) {
            return report_gone(io, connection.peer);
        }
        self.waiting.push((connection, listener));
    }

    /// A listener was added.
    pub(crate) fn begin_listener(&mut self, tag: ListenerTag, listener: &Listener) {
        let address = match listener.path() {
            Some(path) => connection_stats::path(&path.to_string_lossy()),
            None => connection_stats::address(listener.address()),
        };
        self.routing.counters.add_listener(tag, address);
    }

    /// Describes the first connections for `session`.
    pub(crate) fn describe(&self, io: &impl Io<Message>, session: u64) -> Vec<ConnectionStats> {
        let open = (0..).zip(&self.connections);
        let open = open.filter_map(|(index, connection)| Some((index, connection.as_deref()?)));
        let describe = |(index, connection): (u32, &MemcachedConnection)| ConnectionStats {
            number: number_of(io, index),
            listener: connection.listener,
            peer: connection.peer,
            state: connection.state(number_of(io, index) == connection_number(session)),
            idle_s: (io.now_ns() - connection.moved_ns) / 1_000_000_000,
        };
        open.take(DESCRIBED_COUNT_MAX).map(describe).collect()
    }

    /// A listener was removed: closes its connections once their commands are answered.
    pub(crate) fn end_listener(&mut self, io: &mut impl Io<Message>, listener: ListenerTag) {
        self.ended.push(listener);
        self.routing.counters.remove_listener(listener);
        for (connection, _) in self.waiting.extract_if(.., |(_, from)| *from == listener) {
            report_gone(io, connection.peer);
        }
        for index in 0..u32::try_from(self.connections.len()).expect("fewer than descriptors") {
            let of_listener = self.connection(index).filter(|connection| connection.listener == listener);
            let Some(connection) = of_listener else { continue };
            if connection.is_blocked || connection.session.is_watching() {
                self.close(io, index, Closing::NORMAL);
            } else {
                connection.enter(io, connection.input.closing());
                self.mark(index);
            }
        }
    }

    /// Adopts a queued connection. Returns its socket and its index.
    pub(crate) fn next_in(
        &mut self,
        io: &mut impl Io<Message>,
        namespaces: &mut Attachments,
    ) -> Option<(SocketId, u32)> {
        let (_, mut keys) = namespaces.key_value(io.moment())?;
        let settings = *keys.service().settings();
        let (socket, (peer, local), listener, passage) = loop {
            let (connection, listener) = self.waiting.pop()?;
            let addresses = (connection.peer, connection.local);
            let Some(passage) = self.routing.gate.memcached.passage(listener) else {
                complain(io, addresses.0, reason::NO_POLICY, None);
                report_gone(io, addresses.0);
                continue;
            };
            // Connections that closed while they waited are skipped.
            match io.adopt(connection) {
                Ok(socket) => break (socket, addresses, listener, passage),
                Err(_) => report_gone(io, addresses.0),
            }
        };
        let MemcachedPassage { tls, authenticates, trust, is_of_partition } = passage;
        let is_established = tls.is_none() && !authenticates;
        let index = self.free.pop().unwrap_or_else(|| {
            self.connections.push(None);
            u32::try_from(self.connections.len() - 1).expect("fewer than descriptors")
        });
        self.generation = self.generation.wrapping_add(1);
        self.connections[index as usize] = Some(Box::new(MemcachedConnection {
            transport: MaybeTlsSocket::new(socket, tls),
            listener,
            peer,
            local,
            trust,
            is_of_partition,
            user: None,
            unestablished_since_ns: (!is_established).then(|| io.now_ns()),
            generation: self.generation,
            session: if authenticates { Session::authenticating(settings) } else { Session::new(settings) },
            input: Input::Open,
            is_dirty: false,
            is_blocked: false,
            moved_ns: io.now_ns(),
        }));
        self.log.log_connection(peer, number_of(io, index), None);
        if is_established {
            // No Connect follows: it gets its full share of turns at once.
            io.establish(socket);
        } else {
            self.unestablished.add(index);
            if let Some(oldest) = self.unestablished.next_to_leave() {
                let peer = self.connection(oldest).and_then(|connection| connection.peer);
                complain(io, peer, reason::MEMCACHED_MADE_ROOM, None);
                self.close(io, oldest, Closing::ERROR);
            }
        }
        if self.routing.idle_ns_max.is_some() || !is_established {
            self.set_sweep(io);
        }
        Some((socket, index | MEMCACHED))
    }

    /// Serves a connection like all others once TLS is set up and its client has authenticated, where it has to.
    fn establish(&mut self, io: &mut impl Io<Message>, index: u32) {
        let Some(connection) = self.connection(index) else { return };
        let is_let_in = connection.is_open() && !connection.session.is_unauthenticated();
        if connection.is_established() || !is_let_in {
            return;
        }
        connection.unestablished_since_ns = None;
        io.establish(connection.transport.id());
        let client = Box::new(connection.client());
        self.unestablished.on_left(index);
        if client.user.is_some() || client.tls.as_ref().is_some_and(|tls| tls.client.is_some()) {
            io.post(0, Message::Admission(AdmissionMessage::MemcachedClient { client, is_known: true }));
        }
    }

    /// A connection with TLS has received: TLS may have failed.
    #[cold]
    fn on_tls(&mut self, io: &mut impl Io<Message>, index: u32) {
        let Some(connection) = self.connection(index) else { return };
        let peer = connection.peer;
        let Some(failure) = connection.transport.newly_failed() else { return };
        let (reason, detail) = match failure {
            Failure::NotTls => (reason::IN_CLEAR, None),
            _ => (reason::TLS, Some(failure.to_string().into())),
        };
        complain(io, peer, reason, detail);
        self.routing.traffic.tls_failed_count.add(1);
    }

    /// The next connection that may have plaintext of which its socket raises no event.
    pub(crate) fn next_with_input(&mut self) -> Option<(u32, SocketId)> {
        loop {
            let index = self.with_input.pop()?;
            if let Some(connection) = self.connection(index) {
                return Some((index, connection.transport.id()));
            }
        }
    }

    /// Receives the available bytes. Returns whether there was input.
    pub(crate) fn receive(
        &mut self,
        io: &mut impl Io<Message>,
        namespaces: &mut Attachments,
        index: u32,
        socket: SocketId,
        staging: &mut [u8],
    ) -> bool {
        let mut worked = false;
        while self.receive_once(io, namespaces, index, socket, staging) {
            worked = true;
            if !self.connection(index).is_some_and(|connection| connection.transport.has_input()) {
                break;
            }
        }
        worked
    }

    fn receive_once(
        &mut self,
        io: &mut impl Io<Message>,
        namespaces: &mut Attachments,
        index: u32,
        socket: SocketId,
        staging: &mut [u8],
    ) -> bool {
        let Some(connection) =
            self.connection(index).filter(|connection| connection.transport.id() == socket)
        else {
            return false;
        };
        if connection.input.is_paused() {
            return false;
        }
        let MemcachedConnection { transport, session, .. } = connection;
        let (received, extent) =
            RECEIVE.receive(session.place(), staging, |into| transport.receive(io, into));
        if !connection.is_established() && connection.transport.is_tls() {
            self.on_tls(io, index);
            self.establish(io, index);
        }
        match received {
            Received::Bytes(count) => {
                let placed = extent.in_place(count);
                let Some(connection) = self.connection(index) else { return true };
                connection.session.on_placed(placed);
                let is_secret = connection.session.is_unauthenticated();
                self.routing.traffic.received_bytes.add(count as u64);
                let bytes = &mut staging[..count - placed];
                self.run(io, namespaces, index, Some(bytes));
                if is_secret {
                    // A password is among the bytes.
                    bytes.zeroize();
                    self.establish(io, index);
                }
                true
            }
            Received::Dry => false,
            Received::Ended | Received::Failed(_) => {
                self.on_tls(io, index);
                self.close(io, index, Closing::NORMAL);
                true
            }
        }
    }

    /// Feeds `bytes` to a session, or resumes it with the bytes that it has.
    fn run(
        &mut self,
        io: &mut impl Io<Message>,
        namespaces: &mut Attachments,
        index: u32,
        bytes: Option<&[u8]>,
    ) {
        let now_ns = io.now_ns();
        let Some(connection) = self.connections.get_mut(index as usize).and_then(Option::as_deref_mut) else {
            return;
        };
        if let Some(refusal) = namespaces.key_value_refusal()
            && !bytes.is_some_and(|bytes| connection.session.needs_no_pairs(bytes))
        {
            connection.session.refuse(refusal.answer.line);
        }
        let Some((namespace, keys)) = namespaces.key_value(io.moment()) else {
            connection.enter(io, connection.input.closing());
            return self.mark(index);
        };
        if self.batches_for != Some(namespace)
            && let Some(before) = self.batches_for.replace(namespace)
        {
            post_batches(io, &mut self.routing.batches, before);
        }
        let session = session_of(connection.generation, number_of(io, index));
        let asked = (connection.listener, connection.trust, connection.is_of_partition);
        let mut route = self.routing.route(io, (namespace, keys), session, asked);
        route.client = connection.session.is_unauthenticated().then(|| connection.client());
        route.user = connection.user.take();
        let progress = match bytes {
            Some(bytes) => connection.session.on_bytes(&mut route, bytes),
            None => connection.session.resume(&mut route),
        };
        connection.user = route.user.take();
        drop(route);
        connection.moved_ns = now_ns;
        connection.enter(io, connection.input.after(progress));
        if bytes.is_none() && !connection.input.is_stalled() && connection.transport.has_input() {
            self.with_input.push(index);
        }
        let Some(connection) = self.connection(index) else { return };
        if connection.session.is_within_command() || connection.transport.is_tls() {
            self.set_sweep(io);
        }
        self.mark(index);
    }

    fn mark(&mut self, index: u32) {
        if let Some(connection) = self.connection(index)
            && !std::mem::replace(&mut connection.is_dirty, true)
        {
            self.dirty.push(index);
        }
    }

    /// The socket is writable again.
    pub(crate) fn on_writable(&mut self, index: u32, socket: SocketId) {
        let connection = self.connection(index);
        if let Some(connection) = connection.filter(|connection| connection.transport.id() == socket) {
            connection.is_blocked = false;
            self.mark(index);
        }
    }

    /// Sends output and posts batches, once per turn.
    pub(crate) fn flush(&mut self, io: &mut impl Io<Message>, namespaces: &mut Attachments) {
        let count = self.dirty.len();
        for at in 0..count {
            self.send(io, namespaces, self.dirty[at]);
        }
        self.dirty.drain(..count);
        if let Some(namespace) = self.batches_for {
            post_batches(io, &mut self.routing.batches, namespace);
        }
    }

    /// Sends a session's output within the turn's send budget, as far as its socket takes it.
    fn send(&mut self, io: &mut impl Io<Message>, namespaces: &mut Attachments, index: u32) {
        let now_ns = io.now_ns();
        let mut budget = SendBudget::TURN;
        if let Some(connection) = self.connection(index) {
            connection.is_dirty = false;
        }
        loop {
            let Some(connection) = self.connections.get_mut(index as usize).and_then(Option::as_deref_mut)
            else {
                return;
            };
            if connection.is_blocked {
                return;
            }
            if connection.session.has_long() {
                // The next piece of a long value, if its namespace still exists.
                let fetched = self.routed(io, namespaces, index, |session, route| session.fetch(route));
                if fetched != Some(true) {
                    return self.close(io, index, Closing::ERROR);
                }
            }
            let Some(connection) = self.connections.get_mut(index as usize).and_then(Option::as_deref_mut)
            else {
                return;
            };
            if budget.is_spent() {
                return self.mark(index);
            }
            let (mut segments, mut count, mut length) = ([Segment::EMPTY; SEGMENT_COUNT], 0, 0);
            for piece in connection.session.pieces().take(SEGMENT_COUNT) {
                let end = budget.end_of(0..piece.len(), length, 1);
                segments[count] = Segment::new(&piece[..end]);
                (count, length) = (count + 1, length + end);
                if end < piece.len() {
                    break;
                }
            }
            if length == 0 {
                match connection.transport.flush(io) {
                    Sent::Bytes(_) => {}
                    Sent::Blocked => return io.await_writable(connection.transport.id()),
                    Sent::Failed(_) => return self.close(io, index, Closing::NORMAL),
                }
                if connection.input.is_closing() && !connection.session.is_awaiting() {
                    let is_broken = connection.session.is_broken();
                    return self.close(io, index, if is_broken { Closing::ERROR } else { Closing::NORMAL });
                }
                return;
            }
            match connection.transport.send(io, &segments[..count]) {
                Sent::Bytes(count) => {
                    self.routing.traffic.sent_bytes.add(count as u64);
                    connection.session.on_sent(count);
                    budget.on_sent(count);
                    connection.moved_ns = now_ns;
                    if count < length {
                        connection.is_blocked = true;
                        io.await_writable(connection.transport.id());
                    }
                    if connection.can_resume() {
                        self.run(io, namespaces, index, None);
                        continue;
                    }
                }
                Sent::Blocked => {
                    connection.is_blocked = true;
                    io.await_writable(connection.transport.id());
                    return self.set_sweep(io);
                }
                Sent::Failed(_) => return self.close(io, index, Closing::NORMAL),
            }
        }
    }

    fn close(&mut self, io: &mut impl Io<Message>, index: u32, closing: Closing) {
        if let Some(mut connection) = self.connections[index as usize].take() {
            self.log.log_connection(connection.peer, number_of(io, index), Some(closing.0));
            if connection.is_open() {
                connection.transport.end(io);
            }
            io.close(connection.transport.id());
            if !connection.is_established() {
                self.unestablished.on_left(index);
            }
            self.free.push(index);
            report_gone(io, connection.peer);
        }
    }

    /// Closes every connection, those that wait for a namespace included.
    pub(crate) fn close_all(&mut self, io: &mut impl Io<Message>) {
        self.waiting.clear();
        for index in 0..u32::try_from(self.connections.len()).expect("fewer than descriptors") {
            self.close(io, index, Closing::SHUTDOWN);
        }
    }

    /// Passes the begins and ends of connections in this turn to `post`, for the connections that watch them.
    pub(crate) fn flush_watched(&mut self, unix_us: u64, post: impl FnMut(usize, u64, Vec<u8>)) {
        self.log.flush(unix_us, post);
    }

    /// Closes connections that make no progress or have been idle for too long, and shrinks the buffers of the others.
    pub(crate) fn sweep(&mut self, io: &mut impl Io<Message>) {
        let (now_ns, idle_ns_max, establish_ns_max) =
            (io.now_ns(), self.routing.idle_ns_max, self.establish_ns_max);
        self.is_sweep_set = false;
        let mut has_waiting = false;
        let mut has_freed = false;
        for index in 0..u32::try_from(self.connections.len()).expect("fewer than descriptors") {
            let Some(connection) = self.connection(index) else { continue };
            let idle_ns = now_ns - connection.moved_ns;
            let waits_to_send =
                connection.is_blocked && !connection.session.is_watching() && idle_ns > SEND_NS_MAX;
            let waits_for_rest = connection.session.is_within_command()
                && !connection.input.is_stalled()
                && idle_ns > COMMAND_NS_MAX;
            // A connection that watches loses lines instead.
            let is_in_use = connection.is_blocked
                || connection.session.is_watching()
                || connection.session.is_within_command()
                || connection.session.is_awaiting();
            let is_idle = !is_in_use && idle_ns_max.is_some_and(|idle_ns_max| idle_ns > idle_ns_max);
            connection.session.shrink();
            // Buffers of TLS are freed in the first sweep that finds nothing new.
            let is_shrunk = !connection.transport.is_tls() || idle_ns >= SWEEP_NS;
            if is_shrunk {
                connection.transport.shrink();
                has_freed |= connection.transport.is_tls() && idle_ns < 2 * SWEEP_NS;
            }
            let is_late = connection
                .unestablished_since_ns
                .is_some_and(|since_ns| now_ns - since_ns > establish_ns_max);
            let is_awaited = !connection.is_established() || !is_shrunk;
            if is_late {
                let peer = connection.peer;
                complain(io, peer, reason::MEMCACHED_TOO_LATE, None);
                self.close(io, index, Closing::ERROR);
            } else if waits_to_send || waits_for_rest {
                let reason =
                    if waits_to_send { reason::MEMCACHED_READS_NOTHING } else { reason::MEMCACHED_STALLS };
                let peer = connection.peer;
                complain(io, peer, reason, None);
                self.close(io, index, Closing::ERROR);
            } else if is_idle {
                self.routing.traffic.idle_closed_count.add(1);
                self.close(io, index, Closing::IDLE);
            } else {
                has_waiting |= is_in_use || is_awaited || idle_ns_max.is_some();
            }
        }
        if std::mem::replace(&mut self.has_freed, has_freed) {
            allocators::give_back_freed_memory();
        }
        if has_waiting || has_freed {
            self.set_sweep(io);
        }
    }

    /// Sets the timer of the next [`sweep`](Self::sweep), unless it is set.
    fn set_sweep(&mut self, io: &mut impl Io<Message>) {
        if !std::mem::replace(&mut self.is_sweep_set, true) {
            io.set_timer(io.now_ns() + SWEEP_NS, super::timers::MEMCACHED_TIMER);
        }
    }

    /// The index of the connection with this session, unless it was closed meanwhile.
    fn session<M>(&mut self, io: &impl Io<M>, session: u64) -> Option<u32> {
        let index = u32::try_from(connection_number(session) as usize / io.reactor_count()).ok()?;
        self.connection(index)
            .filter(|connection| u64::from(connection.generation) == session >> 32)
            .map(|_| index)
    }

    /// A partition has replied.
    pub(crate) fn on_reply(
        &mut self,
        io: &mut impl Io<Message>,
        namespaces: &mut Attachments,
        reply: MemcachedReply,
    ) {
        match reply {
            MemcachedReply::Answers(answers) => self.on_answers(io, namespaces, &answers),
            MemcachedReply::Room { session, chunks } => self.on_room(io, namespaces, session, chunks),
            MemcachedReply::Piece { session, piece } => self.on_piece(io, session, piece),
            MemcachedReply::Watched { session, lines } => {
                let Some(index) = self.session(io, session) else { return };
                if let Some(connection) = self.connection(index) {
                    connection.session.on_watched(&lines);
                }
                self.mark(index);
            }
            MemcachedReply::Connections { session, ticket, connections } => {
                let index = self.pass_on(io, namespaces, session, |session, route| {
                    session.on_connections(route, ticket, &connections);
                });
                index.into_iter().for_each(|index| self.mark(index));
            }
            MemcachedReply::Stats { session, ticket, stats } => {
                self.on_stats(io, namespaces, session, ticket, &stats);
            }
        }
    }

    /// Another partition has answered.
    fn on_answers(
        &mut self,
        io: &mut impl Io<Message>,
        namespaces: &mut Attachments,
        answers: &RemoteAnswers,
    ) {
        answers.for_each_output(|session, ticket, outcome| {
            let Some(index) = self.session(io, session) else { return };
            if let Some(connection) = self.connection(index) {
                match outcome {
                    Ok(answer) => connection.session.on_reply(ticket, answer),
                    Err(refusal) => connection.session.on_refused(ticket, refusal),
                }
                if connection.session.is_closing() {
                    connection.enter(io, connection.input.closing());
                }
            }
            self.mark(index);
        });
        // Last, so that commands that had to wait are batched as well.
        answers.for_each(|session, _, _, _| {
            let Some(index) = self.session(io, session) else { return };
            if self.connection(index).is_some_and(|connection| connection.can_resume()) {
                self.run(io, namespaces, index, None);
            }
        });
    }

    /// Another partition has reserved memory for an arriving value, or has none.
    fn on_room(
        &mut self,
        io: &mut impl Io<Message>,
        namespaces: &mut Attachments,
        session: u64,
        chunks: Vec<Chunk>,
    ) {
        self.pass_on(io, namespaces, session, |session, route| session.on_room(route, chunks));
    }

    /// Passes an answer of another partition to its session, if that still exists, and returns its index. The
    /// connection is closed if its namespace is gone.
    fn pass_on<I: Io<Message>>(
        &mut self,
        io: &mut I,
        namespaces: &mut Attachments,
        session: u64,
        pass: impl FnOnce(&mut Session, &mut Route<'_, I>),
    ) -> Option<u32> {
        let index = self.session(io, session)?;
        let Some(()) = self.routed(io, namespaces, index, pass) else {
            self.close(io, index, Closing::ERROR);
            return None;
        };
        if self.connection(index)?.can_resume() {
            self.run(io, namespaces, index, None);
        }
        Some(index)
    }

    /// Calls a session with its route to the target. `None` if its namespace is gone.
    fn routed<I: Io<Message>, T>(
        &mut self,
        io: &mut I,
        namespaces: &mut Attachments,
        index: u32,
        call: impl FnOnce(&mut Session, &mut Route<'_, I>) -> T,
    ) -> Option<T> {
        let (namespace, keys) = namespaces.key_value(io.moment())?;
        let connection = self.connections[index as usize].as_deref_mut()?;
        let session = session_of(connection.generation, number_of(io, index));
        let asked = (connection.listener, connection.trust, connection.is_of_partition);
        let mut route = self.routing.route(io, (namespace, keys), session, asked);
        Some(call(&mut connection.session, &mut route))
    }

    /// Another partition has returned the next piece of a long value, or has none.
    fn on_piece(&mut self, io: &mut impl Io<Message>, session: u64, piece: Vec<u8>) {
        let Some(index) = self.session(io, session) else { return };
        let is_there = self.connection(index).is_some_and(|connection| connection.session.on_piece(piece));
        if is_there { self.mark(index) } else { self.close(io, index, Closing::ERROR) }
    }

    /// Another partition has returned its statistics, or has flushed.
    fn on_stats(
        &mut self,
        io: &mut impl Io<Message>,
        namespaces: &mut Attachments,
        session: u64,
        ticket: AnswerId,
        stats: &PartitionStats,
    ) {
        let index =
            self.pass_on(io, namespaces, session, |session, route| session.on_stats(route, ticket, stats));
        if let Some(index) = index {
            self.mark(index);
        }
    }
}
