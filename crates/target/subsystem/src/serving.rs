//! The code that each reactor of the target runs: its lanes, the commands in flight, and on reactor 0 the control
//! plane.

mod dispatch;
mod exponentiator;
mod held;
mod lanes;
mod memcached_connections;
mod pressure;
mod recorder;
mod settings;
mod timers;

use std::sync::Arc;

use kv::ResizeStep;
use memcached::Watchers;
use reactor::{Application, Completion, Connection, Io, ListenerTag, SocketId, Token};
use store::Ticket;

use crate::control_plane::admission::MemcachedCounters;
use crate::control_plane::control::Control;
use crate::control_plane::placement::Placement;
use crate::io_path::attached::AttachedIndex;
use crate::io_path::commands::Commands;
use crate::io_path::exclusion::{Audience, LockManager};
use crate::io_path::executor::IoExecutor;
use crate::io_path::fused::FusedExecutor;
use crate::io_path::key_value_io;
use crate::io_path::store_access::TICKET_TIMER;
use crate::messages::key_value::message::{KeyValueMessage, MemcachedReply, PartitionRequest};
use crate::messages::message::{
    AdmissionMessage, ConnectionMessage, ControlMessage, LaneMessage, LockMessage, Message, PlacementMessage,
    Placing, ReactorMessage, Visitor,
};
use crate::messages::state::ReactorReport;
use crate::names::listener_gate::ListenerGate;
use crate::names::placement_policy::PlacementPolicy;
use crate::names::socket_priority::SocketPriority;

pub(crate) use exponentiator::Exponentiator;
use exponentiator::Job;
use lanes::LaneServer;
pub use memcached_connections::MEMCACHED;
use memcached_connections::MemcachedConnections;
pub(crate) use settings::ServingSettings;
use timers::{
    CONTROL_TIMER, MEMCACHED_TIMER, NOTICE_TIMER, PRESSURE_TIMER, RESIZE_TIMER, SWEEP_TIMER, THROTTLE_TIMER,
    VALUES_TIMER, WINDOW_TIMER,
};

/// Maximum size of one receive: whole caravans in few calls, into memory that stays in the cache.
const STAGING_BYTES: usize = 256 * 1024;

/// Time that a resize of memory waits for obstacles, ns.
const RESIZE_WAIT_NS: u64 = 20_000_000;
/// Interval at which values that wait for memory are tried again.
const VALUES_WAIT_NS: u64 = 20_000_000;

/// The reactor of the control plane.
pub(crate) struct Home {
    pub(crate) control: Control,
    pub(crate) locks: LockManager,
    placement: Placement,
    /// Of new connections.
    priorities: Vec<SocketPriority>,
    exponentiator: Exponentiator,
    timer_ns: u64,
}

impl Home {
    /// Creates one for each of the reactors on these cores.
    pub(crate) fn new(control: Control, cores: Vec<Option<usize>>, exponentiator: Exponentiator) -> Self {
        let locks = LockManager::new(u16::try_from(cores.len()).expect("counted in 16 bits"));
        let placement = Placement::new(PlacementPolicy::default(), cores);
        Self { control, locks, placement, priorities: Vec::new(), exponentiator, timer_ns: u64::MAX }
    }
}

/// One reactor of a target: its lanes, their commands, and on reactor 0 the control plane. It reaches the outside only
/// through [`Io`].
pub struct Serving {
    reactor: u16,
    /// By index of the socket: the place of its lane, or with [`MEMCACHED`] that of its memcached connection.
    by_socket: Vec<u32>,
    commands: Commands,
    lanes: LaneServer,
    memcached: MemcachedConnections,
    /// Memcached connections of all reactors that watch events.
    watchers: Arc<Watchers>,
    /// Whether there were any in the last turn.
    was_watched: bool,
    home: Option<Home>,
    gate: Arc<ListenerGate>,
    /// Staging buffer for receives that are not in place.
    staging: Box<[u8]>,
    /// Version of the namespace table last reported to the control plane as in use.
    table_version_told: u64,
    /// Requests that another reactor sent before this one got the table with their namespace.
    early: Vec<PartitionRequest>,
    /// Whether it stops once its logs have.
    is_stopping: bool,
    /// Whether resizes of memory wait for their timer.
    is_resize_waiting: bool,
    /// Values that wait for memory are tried again by a timer.
    is_values_timer_set: bool,
}

impl Serving {
    /// `memcached_counters` and `gate` are shared by the reactors of one target.
    pub(crate) fn new(
        settings: ServingSettings,
        memcached_counters: Arc<MemcachedCounters>,
        gate: Arc<ListenerGate>,
        reactor: u16,
        home: Option<Home>,
    ) -> Self {
        let mut commands = Commands::new(settings.limits, reactor);
        commands.namespaces.watchers = Arc::clone(&memcached_counters.watchers);
        Self {
            reactor,
            by_socket: Vec::new(),
            watchers: Arc::clone(&memcached_counters.watchers),
            was_watched: false,
            commands,
            lanes: LaneServer::new(settings, Arc::clone(&gate), reactor),
            memcached: MemcachedConnections::new(memcached_counters, &settings, Arc::clone(&gate)),
            home,
            gate,
            staging: vec![0; STAGING_BYTES].into(),
            table_version_told: 0,
            early: Vec::new(),
            is_stopping: false,
            is_resize_waiting: false,
            is_values_timer_set: false,
        }
    }

    /// Reports to the control plane once that nothing of an older table is in use.
    fn report_table(&mut self, io: &mut impl Io<Message>) {
        if let Some(version) = self.commands.namespaces.settled_version()
            && version > self.table_version_told
        {
            self.table_version_told = version;
            io.post(0, Message::Control(ControlMessage::TableInUse { reactor: self.reactor, version }));
        }
    }

    /// Reports ranges in which no write is in flight any more, to the fused commands of any reactor that wait for it.
    fn report_quiet(&mut self, io: &mut impl Io<Message>) {
        let running = &self.commands.running;
        let namespaces = &mut self.commands.namespaces;
        for holder in namespaces.take_released() {
            io.post(0, Message::Lock(LockMessage::Excluded(holder)));
        }
        namespaces.for_each(|at: AttachedIndex, attached| {
            let Some(blocks) = attached.blocks() else { return };
            while blocks.exclusions.has_unreported()
                && let Some(holder) =
                    blocks.exclusions.next_quiet(|blocks, number| running.changes(at, blocks, number))
            {
                io.post(0, Message::Lock(LockMessage::Excluded(holder)));
            }
        });
    }

    fn on_lock(&mut self, io: &mut impl Io<Message>, message: LockMessage) {
        match message {
            LockMessage::Exclude(lock) => match self.commands.namespaces.by_id_or_leaving(lock.namespace) {
                Some(at) => {
                    self.commands.namespaces.blocks_mut(at).exclusions.exclude(&lock);
                    self.report_quiet(io);
                }
                // Not attached here any more, so nothing of it runs here.
                None => io.post(0, Message::Lock(LockMessage::Excluded(lock.holder))),
            },
            LockMessage::Release(lock) => {
                if let Some(at) = self.commands.namespaces.by_id_or_leaving(lock.namespace) {
                    self.commands.namespaces.blocks_mut(at).exclusions.release(lock.holder);
                }
            }
            LockMessage::Grant(number) => {
                FusedExecutor { commands: &mut self.commands, io }.on_lock_granted(number);
            }
            LockMessage::Ask(_) | LockMessage::Excluded(_) | LockMessage::Unlock(_) => {
                let Some(home) = &mut self.home else { return };
                home.locks.on_message(message);
                while let Some((audience, message)) = home.locks.next_message() {
                    let to = match audience {
                        Audience::All => 0..io.reactor_count(),
                        Audience::One(reactor) => reactor.into()..usize::from(reactor) + 1,
                    };
                    for reactor in to {
                        io.post(reactor, Message::Lock(message.clone()));
                    }
                }
            }
        }
    }

    /// Assigns a reactor to an I/O lane; on reactor 0 only.
    fn place(&mut self, io: &mut impl Io<Message>, placing: Placing) {
        let Some(home) = &mut self.home else { return };
        let Placing { connecting, connect } = placing;
        let to = home.placement.on_connect(connecting);
        if to == connecting.reactor {
            self.on_control(io, ControlMessage::Request(connect));
        } else {
            io.post(
                connecting.reactor,
                Message::Connection(ConnectionMessage::HandOver { to, connect: Box::new(connect) }),
            );
        }
    }

    /// Posts the messages of the control plane.
    fn drain_control(&mut self, io: &mut impl Io<Message>) {
        let Some(home) = &mut self.home else { return };
        while let Some((reactor, message)) = home.control.next_message() {
            io.post(reactor, message);
        }
        while let Some((lane, exponentiation)) = home.control.next_exponentiation() {
            home.exponentiator.run(io, Job::OfLane(lane, exponentiation));
        }
        if home.exponentiator.works_ahead()
            && let Some(exponentiation) = home.control.next_key_pair()
        {
            home.exponentiator.run(io, Job::KeyPair(exponentiation));
        }
        if let Some(deadline_ns) = home.control.next_deadline_ns()
            && deadline_ns < home.timer_ns
        {
            home.timer_ns = deadline_ns;
            io.set_timer(deadline_ns, CONTROL_TIMER);
        }
    }

    #[cold]
    #[inline(never)]
    fn receive_memcached(&mut self, io: &mut impl Io<Message>, index: u32, socket: SocketId) -> bool {
        let namespaces = &mut self.commands.namespaces;
        self.memcached.receive(io, namespaces, index & !MEMCACHED, socket, &mut self.staging)
    }

    /// Adopts memcached connections that waited for a key-value namespace.
    fn let_in(&mut self, io: &mut impl Io<Message>) {
        while let Some((socket, index)) = self.memcached.next_in(io, &mut self.commands.namespaces) {
            self.index_socket(socket, index);
        }
    }

    fn index_socket(&mut self, socket: SocketId, index: u32) {
        if self.by_socket.len() <= socket.index() {
            self.by_socket.resize(socket.index() + 1, u32::MAX);
        }
        self.by_socket[socket.index()] = index;
    }

    fn on_key_value(&mut self, io: &mut impl Io<Message>, message: KeyValueMessage) {
        let namespaces = &mut self.commands.namespaces;
        match message {
            KeyValueMessage::Request(request) if namespaces.is_to_come(request.namespace) => {
                self.early.push(request);
            }
            KeyValueMessage::Request(request) => key_value_io::serve(io, namespaces, request),
            KeyValueMessage::Failed(namespace, failure) => {
                if let Some(keys) = namespaces.keys_of(namespace) {
                    keys.fail(failure);
                    self.let_in(io);
                }
            }
            KeyValueMessage::Connections { from, session, ticket } => {
                let connections = self.memcached.describe(io, session);
                io.post(from, MemcachedReply::Connections { session, ticket, connections }.into());
            }
            KeyValueMessage::ToMemcached(reply) => self.memcached.on_reply(io, namespaces, reply),
            KeyValueMessage::ToCommand(reply) => {
                key_value_io::on_reply(&mut self.commands, io, reply);
                self.lanes.drain_commands(io, &mut self.commands);
            }
        }
    }

    fn on_placement(&mut self, io: &mut impl Io<Message>, message: PlacementMessage) {
        let Some(Home { placement, priorities, .. }) = &mut self.home else { return };
        match message {
            PlacementMessage::Place(placing) => self.place(io, *placing),
            PlacementMessage::NotMoved { from, to, is_gone } => placement.on_not_moved(from, to, is_gone),
            PlacementMessage::Left(left) => placement.on_left(left),
            PlacementMessage::Active { reactor, count } => placement.on_active(reactor, count),
            PlacementMessage::SetPolicy(policy) => placement.set_policy(policy),
            PlacementMessage::SetPriorities(wanted) => *priorities = wanted,
        }
    }

    fn on_admission(&mut self, io: &mut impl Io<Message>, message: AdmissionMessage) {
        let Some(Home { control, .. }) = &mut self.home else { return };
        match message {
            AdmissionMessage::Gone(visitor, address) => control.admission.on_gone(visitor, address),
            AdmissionMessage::Complaint { peer, reason, detail } => {
                control.admission.on_complaint(io.now_ns(), peer, reason, detail.as_deref());
            }
            AdmissionMessage::MemcachedClient { client, is_known } => {
                control.admission.on_memcached_client(io.now_ns(), *client, is_known);
            }
        }
    }

    /// Polls the logs, and continues the commands that wait for them.
    #[cold]
    #[inline(never)]
    fn tend_logs(&mut self, io: &mut impl Io<Message>) -> bool {
        let worked = key_value_io::tend_logs(&mut self.commands, io);
        if worked {
            self.lanes.drain_commands(io, &mut self.commands);
            self.let_in(io);
        }
        worked
    }

    /// Continues resizes of the memory of keys and values by a step. Returns whether there is more to do at once.
    #[cold]
    #[inline(never)]
    fn resize_memory(&mut self, io: &mut impl Io<Message>) -> bool {
        let step = self.commands.namespaces.resize_step();
        if step == ResizeStep::Waits {
            self.is_resize_waiting = true;
            io.set_timer(io.now_ns() + RESIZE_WAIT_NS, RESIZE_TIMER);
        }
        step == ResizeStep::More
    }

    /// Posts the events of this turn to the connections that watch.
    #[cold]
    #[inline(never)]
    fn post_watched(&mut self, io: &mut impl Io<Message>) {
        let unix_us = io.unix_us();
        let mut post = |reactor, session, lines| {
            io.post(reactor, MemcachedReply::Watched { session, lines }.into());
        };
        self.memcached.flush_watched(unix_us, &mut post);
        self.commands.namespaces.flush_watched(unix_us, &mut post);
    }

    fn on_control(&mut self, io: &mut impl Io<Message>, message: ControlMessage) {
        let Some(Home { control, .. }) = &mut self.home else { return };
        let now_ns = io.now_ns();
        match message {
            ControlMessage::Request(request) => control.on_request(now_ns, request),
            ControlMessage::TableInUse { reactor, version } => control.on_table_in_use(reactor, version),
            ControlMessage::Aborted { asked_by, is_aborted } => control.on_aborted(asked_by, is_aborted),
            ControlMessage::Flushed { asked_by } => control.on_flushed(asked_by),
            ControlMessage::Exponentiated { lane, result } => control.on_exponentiated(now_ns, lane, *result),
            ControlMessage::KeyPair(result) => control.on_key_pair(*result),
            ControlMessage::Order(order) => control.on_order(now_ns, order),
        }
        self.drain_control(io);
    }

    fn on_lane_message(&mut self, io: &mut impl Io<Message>, message: LaneMessage) {
        match message {
            LaneMessage::Answer(answer) => self.lanes.on_answer(io, &mut self.commands, *answer),
            LaneMessage::End(id) => self.lanes.end(io, &mut self.commands, id),
            LaneMessage::Abort { lane, cid, asked_by } => {
                self.lanes.on_abort(io, &mut self.commands, lane, cid, asked_by);
            }
            LaneMessage::Authenticated(id, joined) => self.lanes.join(io, &mut self.commands, id, *joined),
            LaneMessage::SetDoorbell(id, policy) => {
                if let Some(lane) = self.lanes.lanes.by_id(id) {
                    lane.set_doorbell(policy);
                }
            }
        }
    }

    fn on_reactor_message(&mut self, io: &mut impl Io<Message>, message: ReactorMessage) {
        match message {
            ReactorMessage::Table(table) => {
                self.lanes.on_table(io, &mut self.commands, table, self.reactor);
                for request in std::mem::take(&mut self.early) {
                    self.on_key_value(io, request.into());
                }
                self.let_in(io);
                self.report_table(io);
            }
            ReactorMessage::Flush { subsystem, asked_by } => {
                IoExecutor { commands: &mut self.commands, io }.flush_all(subsystem, asked_by);
                self.lanes.drain_commands(io, &mut self.commands);
            }
            ReactorMessage::Listen(tag, listener) => {
                if tag & MEMCACHED != 0 {
                    self.memcached.begin_listener(tag, &listener);
                }
                if let Err(error) = io.listen(tag, listener) {
                    tracing::error!(%error, tag, "cannot listen");
                }
            }
            ReactorMessage::Unlisten(tag) => {
                io.unlisten(tag);
                if tag & MEMCACHED != 0 {
                    self.memcached.end_listener(io, tag);
                }
            }
            ReactorMessage::Describe(to) => {
                self.commands.namespaces.report_needed_memory();
                let placement = self.home.as_ref().map(|home| (&home.placement).into());
                // The send fails if the operator has given up waiting.
                let key_values = self.commands.namespaces.key_value_counters();
                let reactor = self.lanes.describe(io, &self.commands);
                let _ = to.send(ReactorReport { reactor, placement, key_values });
            }
            ReactorMessage::SetSlow(threshold) => self.lanes.set_slow(io, &self.commands, threshold),
            ReactorMessage::Trace(order) => self.lanes.on_trace(io, &self.commands, order),
            ReactorMessage::Stop => {
                self.is_stopping = true;
                self.memcached.close_all(io);
                key_value_io::stop_logs(&mut self.commands, io);
            }
        }
    }

    fn on_connection(&mut self, io: &mut impl Io<Message>, message: ConnectionMessage) {
        match message {
            ConnectionMessage::Adopt(..) if self.is_stopping => {}
            ConnectionMessage::Adopt(connection, listener, _) if listener & MEMCACHED != 0 => {
                self.memcached.expect(io, connection, listener);
                self.let_in(io);
            }
            ConnectionMessage::Adopt(connection, listener, napi) => {
                if let Some((socket, index)) =
                    self.lanes.adopt(io, &mut self.commands, connection, listener, napi)
                {
                    self.index_socket(socket, index);
                }
            }
            ConnectionMessage::HandOver { to, connect } => {
                self.lanes.hand_over(io, &mut self.commands, to, *connect);
            }
            ConnectionMessage::TakeOver(moving) => {
                if let Some((socket, index)) = self.lanes.take_over(io, *moving) {
                    self.index_socket(socket, index);
                }
            }
        }
    }
}

impl Application for Serving {
    type Message = Message;

    fn on_start(&mut self, io: &mut impl Io<Message>) {
        self.commands.set_aside(io.pool());
        self.drain_control(io);
    }

    fn on_accept(&mut self, io: &mut impl Io<Message>, listener: ListenerTag, connection: Connection) {
        let Some(home) = &mut self.home else { return };
        let visitor = if listener & MEMCACHED == 0 { Visitor::Host } else { Visitor::Memcached };
        if !self.gate.admits(listener, connection.peer.map(|peer| peer.ip())) {
            return home.control.admission.on_forbidden_address(io.now_ns(), visitor, connection.peer);
        }
        if !home.control.admission.admit(io.now_ns(), visitor, connection.peer) {
            return;
        }
        let of = |local| home.priorities.iter().find(|wanted| wanted.matches(local));
        if let Some(wanted) = connection.local.and_then(of) {
            // Where it is refused, its packets leave with the others; the owner of the target has been notified.
            let _ = connection.set_priority(wanted.priority);
        }
        let arrival = connection.arrival();
        let to = match (listener & MEMCACHED, self.gate.memcached.partition(listener)) {
            (0, _) => home.placement.on_accept(arrival),
            (_, Some(partition)) => partition.into(),
            _ => home.placement.on_memcached(arrival),
        };
        io.post(to, Message::Connection(ConnectionMessage::Adopt(connection, listener, arrival.napi_id)));
    }

    #[inline]
    fn on_readable(&mut self, io: &mut impl Io<Message>, socket: SocketId) -> bool {
        let Some(&index) = self.by_socket.get(socket.index()) else { return false };
        if index & MEMCACHED != 0 {
            return self.receive_memcached(io, index, socket);
        }
        self.lanes.receive(io, &mut self.commands, index, socket, &mut self.staging)
    }

    fn on_writable(&mut self, io: &mut impl Io<Message>, socket: SocketId) {
        let Some(&index) = self.by_socket.get(socket.index()) else { return };
        if index & MEMCACHED != 0 {
            self.memcached.on_writable(index & !MEMCACHED, socket);
        } else {
            self.lanes.on_writable(index, socket);
        }
        let _ = io;
    }

    fn on_completion(&mut self, io: &mut impl Io<Message>, completion: Completion) {
        self.commands.on_completion(io, completion);
    }

    fn on_timer(&mut self, io: &mut impl Io<Message>, token: Token) {
        if token & TICKET_TIMER != 0 {
            self.commands.on_timer(io, Ticket(token & !TICKET_TIMER));
        } else if token == CONTROL_TIMER {
            let now_ns = io.now_ns();
            if let Some(home) = &mut self.home {
                home.timer_ns = u64::MAX;
                home.control.on_deadline(now_ns);
            }
            self.drain_control(io);
        } else if token == SWEEP_TIMER {
            self.lanes.sweep(io, &self.commands);
        } else if token == NOTICE_TIMER {
            self.lanes.on_notice_timer(io);
        } else if token == MEMCACHED_TIMER {
            self.memcached.sweep(io);
        } else if token == PRESSURE_TIMER {
            self.lanes.relieve_pressure(io, &mut self.commands);
        } else if token == WINDOW_TIMER {
            // The end of the turn continues what waits.
        } else if token == THROTTLE_TIMER {
            self.commands.throttle.on_timer();
        } else if token == RESIZE_TIMER {
            self.is_resize_waiting = false;
        } else if token == VALUES_TIMER {
            self.is_values_timer_set = false;
            key_value_io::try_waiting(io, &mut self.commands.namespaces);
        } else {
            let index = u32::try_from(token & 0xffff_ffff).expect("masked");
            let generation = u32::try_from(token >> 32).expect("30 bits");
            self.lanes.on_lane_timer(io, &mut self.commands, index, generation);
        }
    }

    fn on_message(&mut self, io: &mut impl Io<Message>, message: Message) {
        match message {
            Message::Control(message) => self.on_control(io, message),
            Message::Admission(message) => self.on_admission(io, message),
            Message::Placement(message) => self.on_placement(io, message),
            Message::Lane(message) => self.on_lane_message(io, message),
            Message::Reactor(message) => self.on_reactor_message(io, message),
            Message::Connection(message) => self.on_connection(io, message),
            Message::Lock(message) => self.on_lock(io, message),
            Message::KeyValue(message) => self.on_key_value(io, *message),
        }
    }

    fn on_end(&mut self, io: &mut impl Io<Message>) {
        self.lanes.close_all(io);
    }

    fn on_turn_end(&mut self, io: &mut impl Io<Message>) -> bool {
        let mut worked = self.lanes.drain_commands(io, &mut self.commands);
        if self.commands.namespaces.has_logs {
            worked |= self.tend_logs(io);
        }
        if self.commands.namespaces.is_resizing && !self.is_resize_waiting {
            worked |= self.resize_memory(io);
        }
        if !self.commands.namespaces.waiting_values.is_empty() && !self.is_values_timer_set {
            self.is_values_timer_set = true;
            io.set_timer(io.now_ns() + VALUES_WAIT_NS, VALUES_TIMER);
        }
        worked |= self.lanes.end_turn(io, &mut self.commands);
        while let Some((index, socket)) = self.memcached.next_with_input() {
            worked |= self.receive_memcached(io, index, socket);
        }
        if self.memcached.has_work() {
            self.memcached.flush(io, &mut self.commands.namespaces);
            worked = true;
        }
        let is_watched = self.watchers.is_watched();
        if is_watched || self.was_watched {
            // Once more after the last watcher has left: evictions are no longer recorded.
            self.post_watched(io);
            self.was_watched = is_watched;
        }
        self.commands.namespaces.report_usage(io.now_ns(), worked);
        if self.commands.table_settled {
            self.commands.table_settled = false;
            self.report_table(io);
        }
        if self.commands.namespaces.has_exclusions() {
            self.report_quiet(io);
        }
        if self.is_stopping && key_value_io::have_logs_stopped(&mut self.commands.namespaces) {
            tracing::debug!(reactor = self.reactor, held = ?self.held(), "reactor stops");
            io.stop();
        }
        worked
    }
}
