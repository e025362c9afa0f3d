//! The simulated reactor: what [`Io`] does on a virtual network, disk and clock.

use std::collections::VecDeque;
use std::io::{self, IoSliceMut};
use std::rc::Rc;
use std::sync::Arc;

use linux::Moment;
use memory::{BLOCK_BYTES_MIN, Buffer, Pool, Segment};
use reactor::{
    Application, Arrival, BusyPolling, Completion, Connection, Held, Io, Listener, ListenerTag, Notice,
    Operation, Received, Sent, SocketId, Timers, Token,
};
use subsystem::Serving;
use subsystem::association::Association;
use subsystem::message::Message;

use crate::scenario::US;
use crate::sent_bytes::SentBytes;
use crate::shared::network::{Got, Took};
use crate::shared::{Actor, Shared, Side};

/// Turns without work, while a socket has input, after which a reactor wastes its core.
const IDLE_COUNT_MAX: u32 = 10_000;

/// One reactor of the target.
pub(crate) struct SimReactor {
    application: Serving,
    core: Core,
}

/// Everything of a reactor but its application.
struct Core {
    index: usize,
    count: usize,
    pool: Pool,
    /// Buffers that keep the pool small.
    _ballast: Vec<Buffer>,
    ballast_bytes: usize,
    sockets: Vec<Slot>,
    free: Vec<u32>,
    timers: Timers,
    /// The time that its thread has read, ns.
    clock_ns: u64,
    own: VecDeque<Message>,
    /// From other reactors and from outside, with the time of their arrival.
    inbox: VecDeque<(u64, Message)>,
    accepted: Vec<usize>,
    completions: Vec<Completion>,
    /// Zero-copy sends of open connections whose bytes may still be read.
    unnoticed: Vec<ZeroCopySend>,
    /// Those of closed connections.
    lingering: Vec<LingeringClose>,
    /// Turns since there was work in which a socket had input that was not received.
    idle_count: u32,
    stops: bool,
    /// The process is dead: its calls have no effect.
    is_gone: bool,
}

struct ZeroCopySend {
    socket: SocketId,
    number: u32,
    /// When it is over, ns.
    until_ns: u64,
    bytes: Rc<SentBytes>,
}

/// A closed connection of which the simulated kernel may still read something.
struct LingeringClose {
    until_ns: u64,
    sends: Vec<ZeroCopySend>,
    held: Held,
}

impl LingeringClose {
    /// Gives notice of everything.
    fn end(self) {
        let Self { mut held, .. } = self;
        held.on_notice(held.awaited_count());
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    generation: u32,
    connection: Option<usize>,
    is_paused: bool,
    waits_to_send: bool,
    /// Sends without a copy.
    zero_copy_count: u32,
}

/// The reactor as an application sees it.
struct SimIo<'a> {
    shared: &'a mut Shared,
    core: &'a mut Core,
    outbox: &'a mut Vec<(usize, Message)>,
}

impl SimReactor {
    pub(crate) fn new(application: Serving, index: usize, count: usize, pool_bytes: usize) -> Self {
        let pool = Pool::new(1).expect("a little memory");
        let mut ballast = Vec::new();
        while let Some(over) =
            pool.free_bytes().checked_sub(pool_bytes).filter(|over| *over >= BLOCK_BYTES_MIN)
            && let Some(buffer) = pool.take(1 << over.ilog2())
        {
            ballast.push(buffer);
        }
        let ballast_bytes = pool.capacity_bytes() - pool.free_bytes();
        let core = Core {
            index,
            count,
            pool,
            _ballast: ballast,
            ballast_bytes,
            sockets: Vec::new(),
            free: Vec::new(),
            timers: Timers::default(),
            clock_ns: 0,
            own: VecDeque::new(),
            inbox: VecDeque::new(),
            accepted: Vec::new(),
            completions: Vec::new(),
            unnoticed: Vec::new(),
            lingering: Vec::new(),
            idle_count: 0,
            stops: false,
            is_gone: false,
        };
        Self { application, core }
    }

    pub(crate) fn start(&mut self, shared: &mut Shared, outbox: &mut Vec<(usize, Message)>) {
        let Self { application, core } = self;
        let actor = core.index;
        core.clock_ns = shared.now_ns;
        application.on_start(&mut SimIo { shared, core, outbox });
        // The reserve taken at start must be back at the end.
        core.ballast_bytes = core.pool.capacity_bytes() - core.pool.free_bytes();
        shared.wake(actor);
    }

    pub(crate) fn has_stopped(&self) -> bool {
        self.core.stops
    }

    /// Buffers that are out, or in where they should be out, bytes: the ballast, and those set aside at the start.
    pub(crate) fn used_bytes(&self) -> usize {
        let out_bytes = self.core.pool.capacity_bytes() - self.core.pool.free_bytes();
        out_bytes.abs_diff(self.core.ballast_bytes)
    }

    /// The counts of state that the target reports for connections of this reactor.
    pub(crate) fn held(&self) -> Vec<(&'static str, usize)> {
        self.application.held()
    }

    /// The associations that have lanes here.
    pub(crate) fn associations(&self) -> impl Iterator<Item = &Arc<Association>> {
        self.application.associations()
    }

    pub(crate) fn socket_count(&self) -> usize {
        self.core.sockets.iter().filter(|slot| slot.connection.is_some()).count()
    }

    /// A message arrives at `at_ns`, after all that were sent before.
    pub(crate) fn deliver(&mut self, at_ns: u64, message: Message) -> u64 {
        let at_ns = self.core.inbox.back().map_or(at_ns, |(last_ns, _)| at_ns.max(*last_ns));
        self.core.inbox.push_back((at_ns, message));
        at_ns
    }

    pub(crate) fn accept(&mut self, connection: usize) {
        self.core.accepted.push(connection);
    }

    pub(crate) fn complete(&mut self, completion: Completion) {
        self.core.completions.push(completion);
    }

    /// One pass over everything that is not asleep, as `reactor::Reactor` does it.
    pub(crate) fn turn(&mut self, shared: &mut Shared, outbox: &mut Vec<(usize, Message)>) {
        let Self { application, core } = self;
        if core.stops {
            return;
        }
        let now_ns = shared.now_ns;
        core.clock_ns = core.clock_ns.max(now_ns - shared.clock_age_ns(core.index).min(now_ns));
        let mut worked = false;
        core.end_lingering(shared, now_ns);
        let io = &mut SimIo { shared, core, outbox };
        while !io.core.completions.is_empty() {
            let at = io.shared.random.below(io.core.completions.len() as u64) as usize;
            let completion = io.core.completions.swap_remove(at);
            application.on_completion(io, completion);
            worked = true;
        }
        for at in 0..io.core.sockets.len() {
            let slot = &mut io.core.sockets[at];
            if let Some(connection) = slot.connection
                && slot.waits_to_send
                && io.shared.is_writable(connection, Side::Target)
            {
                slot.waits_to_send = false;
                let id = SocketId::new(at as u32, slot.generation);
                application.on_writable(io, id);
                worked = true;
            }
        }
        for connection in std::mem::take(&mut io.core.accepted) {
            let (listener, peer) = io.shared.on_accepted(connection);
            let message_count = io.core.own.len() + io.outbox.len();
            let mut accepted = Connection::simulated(connection as u64);
            accepted.peer = Some(peer);
            application.on_accept(io, listener, accepted);
            if io.core.own.len() + io.outbox.len() == message_count {
                // The kernel closes a connection that the application drops.
                io.shared.on_turned_away(connection);
            }
            worked = true;
        }
        while let Some(message) = io.core.next_message(now_ns) {
            application.on_message(io, message);
            worked = true;
        }
        let count = io.core.sockets.len();
        let first = io.shared.random.below(count as u64) as usize;
        for at in (0..count).map(|at| (first + at) % count) {
            let slot = io.core.sockets[at];
            if let Some(connection) = slot.connection
                && !slot.is_paused
                && io.shared.is_readable(connection, Side::Target)
            {
                worked |= application.on_readable(io, SocketId::new(at as u32, slot.generation));
            }
        }
        while let Some(token) = io.core.timers.next_due(io.core.clock_ns) {
            application.on_timer(io, token);
            worked = true;
        }
        worked |= application.on_turn_end(io);
        let Self { core, .. } = self;
        if core.stops {
            shared.read_all_sources();
            core.end_lingering(shared, u64::MAX);
            return;
        }
        let next_ns = [core.timers.next_deadline_ns(), core.inbox.front().map(|(at_ns, _)| *at_ns)];
        if let Some(next_ns) = next_ns.into_iter().flatten().min() {
            shared.wake_at(core.index, next_ns);
        }
        let has_readable = core.has_readable(shared);
        core.idle_count = if worked { 0 } else { core.idle_count + u32::from(has_readable) };
        if core.idle_count > IDLE_COUNT_MAX {
            shared
                .find(format!("reactor {} spins: it does not receive what a socket has for it", core.index));
        }
        if worked || !core.own.is_empty() || has_readable {
            shared.wake(core.index);
        }
    }

    /// Closes every socket: the process ends in good order.
    pub(crate) fn close_all(&mut self, shared: &mut Shared) {
        let Self { application, core } = self;
        shared.read_all_sources();
        core.clock_ns = shared.now_ns;
        application.on_end(&mut SimIo { shared, core, outbox: &mut Vec::new() });
        for slot in &mut core.sockets {
            if let Some(connection) = slot.connection.take() {
                shared.close(connection, Side::Target);
            }
        }
        core.end_lingering(shared, u64::MAX);
    }

    /// The process is killed. Its memory goes with it: nothing is left for the kernel to read, nor to leak.
    pub(crate) fn kill(mut self, shared: &mut Shared) {
        self.core.is_gone = true;
        shared.read_all_sources();
        let Self { application, core } = &mut self;
        application.on_end(&mut SimIo { shared, core, outbox: &mut Vec::new() });
        core.lingering.drain(..).for_each(LingeringClose::end);
    }
}

impl Core {
    /// Reads what closed connections referred to until now, once more, and gives notice of it.
    fn end_lingering(&mut self, shared: &mut Shared, now_ns: u64) {
        for close in self.lingering.extract_if(.., |close| close.until_ns <= now_ns) {
            for send in &close.sends {
                check(shared, send);
            }
            close.end();
        }
    }

    fn next_message(&mut self, now_ns: u64) -> Option<Message> {
        self.own.pop_front().or_else(|| {
            let is_there = self.inbox.front().is_some_and(|(at_ns, _)| *at_ns <= now_ns);
            if is_there { self.inbox.pop_front().map(|(_, message)| message) } else { None }
        })
    }

    fn has_readable(&self, shared: &Shared) -> bool {
        let is_readable = |slot: &Slot| {
            !slot.is_paused && slot.connection.is_some_and(|id| shared.is_readable(id, Side::Target))
        };
        self.sockets.iter().any(is_readable)
    }

    fn slot(&mut self, socket: SocketId) -> Option<&mut Slot> {
        let index = socket.index();
        let slot = self.sockets.get_mut(index)?;
        (SocketId::new(index as u32, slot.generation) == socket && slot.connection.is_some()).then_some(slot)
    }
}

/// Checks that data sent without a copy is unchanged.
fn check(shared: &mut Shared, send: &ZeroCopySend) {
    if let Err(finding) = send.bytes.check() {
        shared.find(finding);
    }
}

impl SimIo<'_> {
    fn connection(&mut self, socket: SocketId) -> Option<usize> {
        self.core.slot(socket)?.connection
    }

    fn actor(&self) -> Actor {
        self.core.index
    }

    /// When the kernel gives notice of the bytes sent last: once they have arrived.
    fn notice_ns(&mut self, socket: SocketId) -> u64 {
        let at_ns = self.shared.now_ns + self.shared.random.below(NOTICE_NS_MAX);
        let arrived_ns = self.connection(socket).and_then(|id| self.shared.arrived_ns(id, Side::Host));
        at_ns.max(arrived_ns.unwrap_or(0))
    }

    /// Sends as much as fits; if the kernel was given it by reference, returns its location.
    fn transmit(
        &mut self,
        socket: SocketId,
        segments: &[Segment<'_>],
        by_reference: bool,
    ) -> (Sent, Option<Rc<SentBytes>>) {
        let Some(id) = self.connection(socket) else {
            return (Sent::Failed(io::ErrorKind::NotConnected.into()), None);
        };
        if self.shared.refuses("kernel has no memory for a send", 32) {
            self.shared.break_connection(id);
            return (Sent::Failed(io::ErrorKind::OutOfMemory.into()), None);
        }
        let length = segments.iter().map(Segment::len).sum();
        match self.shared.begin_send(id, Side::Target, length) {
            Took::Bytes(count) => {
                let mut bytes = Vec::with_capacity(count);
                for segment in segments {
                    if bytes.len() >= count {
                        break;
                    }
                    segment.append_to(&mut bytes);
                }
                bytes.truncate(count);
                let count = if count < length { self.shared.stop_in_header(id, &bytes) } else { count };
                bytes.truncate(count);
                let source = by_reference.then(|| Rc::new(SentBytes::new(segments, &bytes)));
                self.shared.send(id, Side::Target, &bytes, source.as_ref());
                (Sent::Bytes(count), source)
            }
            Took::Blocked => (Sent::Blocked, None),
            Took::Reset => (Sent::Failed(io::ErrorKind::BrokenPipe.into()), None),
        }
    }
}

impl Io<Message> for SimIo<'_> {
    fn now_ns(&self) -> u64 {
        self.core.clock_ns
    }

    fn moment(&self) -> Moment {
        self.shared.clocks.moment(self.shared.now_ns)
    }

    fn unix_us(&self) -> u64 {
        self.shared.clocks.unix_ns(self.shared.now_ns) / US
    }

    fn listen(&mut self, _: ListenerTag, _: Listener) -> io::Result<()> {
        // Connections arrive at the first one, which is never removed.
        self.shared.network.is_listening = true;
        Ok(())
    }

    fn unlisten(&mut self, _: ListenerTag) {}

    fn adopt(&mut self, connection: Connection) -> io::Result<SocketId> {
        let id = connection.simulated_id().ok_or(io::ErrorKind::InvalidInput)? as usize;
        if self.shared.refuses("kernel refuses to serve a connection", 1) {
            self.shared.break_connection(id);
            self.shared.close(id, Side::Target);
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        let index = self.core.free.pop().unwrap_or_else(|| {
            self.core.sockets.push(Slot::default());
            self.core.sockets.len() as u32 - 1
        });
        let slot = &mut self.core.sockets[index as usize];
        *slot = Slot { generation: slot.generation + 1, connection: Some(id), ..Slot::default() };
        let socket = SocketId::new(index, slot.generation);
        let actor = self.actor();
        self.shared.on_served(id, actor);
        Ok(socket)
    }

    fn release(&mut self, socket: SocketId) -> Option<Connection> {
        let id = self.core.slot(socket)?.connection.take()?;
        self.core.free.push(socket.index() as u32);
        self.shared.connection(id).owners[1] = None;
        Some(Connection::simulated(id as u64))
    }

    fn arrival(&self, _: SocketId) -> Arrival {
        Arrival::default()
    }

    fn arrived_ns(&self, socket: SocketId) -> u64 {
        let id = self.core.sockets.get(socket.index()).and_then(|slot| slot.connection);
        id.map_or(self.shared.now_ns, |id| self.shared.network.connections[id].heard_ns)
    }

    fn receive(&mut self, socket: SocketId, into: &mut [IoSliceMut<'_>]) -> Received {
        let Some(id) = self.connection(socket) else {
            return Received::Failed(io::ErrorKind::NotConnected.into());
        };
        if self.shared.refuses("receive is interrupted", 1) {
            return Received::Dry;
        }
        let mut places: Vec<&mut [u8]> = into.iter_mut().map(|place| &mut place[..]).collect();
        match self.shared.receive(id, Side::Target, &mut places) {
            Got::Bytes(count) => {
                self.shared.on_taken_in(id, self.core.clock_ns);
                Received::Bytes(count)
            }
            Got::Dry => Received::Dry,
            Got::Ended => Received::Ended,
            Got::Reset => Received::Failed(io::ErrorKind::ConnectionReset.into()),
        }
    }

    fn send(&mut self, socket: SocketId, segments: &[Segment<'_>]) -> Sent {
        self.transmit(socket, segments, false).0
    }

    fn note_encrypted(&mut self, socket: SocketId, plaintext: &[u8]) {
        if let Some(id) = self.connection(socket) {
            self.shared.on_encrypted(id, Side::Target, plaintext);
        }
    }

    fn note_decrypted(&mut self, socket: SocketId, plaintext: &[u8]) {
        if let Some(id) = self.connection(socket) {
            self.shared.on_decrypted(id, Side::Target, plaintext);
        }
    }

    fn allow_zero_copy(&mut self, _: SocketId) -> bool {
        !self.shared.refuses("socket cannot send without a copy", 1)
    }

    /// Now and then the kernel has no pages to spare, and sends a copy.
    fn send_zero_copy(&mut self, socket: SocketId, segments: &[Segment<'_>]) -> (Sent, bool) {
        let by_reference = self.shared.random.below(8) != 0;
        let (sent, source) = self.transmit(socket, segments, by_reference);
        let Some(bytes) = source else { return (sent, false) };
        let until_ns = self.notice_ns(socket);
        if let Some(slot) = self.core.slot(socket) {
            let number = slot.zero_copy_count;
            slot.zero_copy_count += 1;
            self.core.unnoticed.push(ZeroCopySend { socket, number, until_ns, bytes });
            let actor = self.actor();
            self.shared.wake_at(actor, until_ns);
        }
        (sent, true)
    }

    /// In any order, one by one. The bytes are read once more before.
    fn next_notice(&mut self, socket: SocketId) -> Option<Notice> {
        let now_ns = self.shared.now_ns;
        let id = self.connection(socket)?;
        self.shared.arrived_ns(id, Side::Host)?;
        let is_due = |send: &ZeroCopySend| send.socket == socket && send.until_ns <= now_ns;
        let at = self.core.unnoticed.iter().position(is_due)?;
        let send = self.core.unnoticed.swap_remove(at);
        check(self.shared, &send);
        Some(Notice { first: send.number, last: send.number, is_copied: false })
    }

    fn await_writable(&mut self, socket: SocketId) {
        let Some(id) = self.connection(socket) else { return };
        if let Some(slot) = self.core.slot(socket) {
            slot.waits_to_send = true;
        }
        if self.shared.is_writable(id, Side::Target) {
            let actor = self.actor();
            self.shared.wake(actor);
        }
    }

    fn pause(&mut self, socket: SocketId) {
        if let Some(slot) = self.core.slot(socket) {
            slot.is_paused = true;
        }
    }

    fn resume(&mut self, socket: SocketId) {
        if let Some(slot) = self.core.slot(socket) {
            slot.is_paused = false;
        }
    }

    fn finish(&mut self, socket: SocketId) {
        if let Some(id) = self.connection(socket) {
            self.shared.finish(id, Side::Target);
        }
    }

    fn close(&mut self, socket: SocketId) {
        let Some(slot) = self.core.slot(socket) else { return };
        let Some(id) = slot.connection.take() else { return };
        self.core.free.push(socket.index() as u32);
        if self.core.is_gone {
            return;
        }
        let is_of = |send: &ZeroCopySend| send.socket == socket;
        if self.core.unnoticed.iter().any(is_of) {
            self.shared
                .find(format!("connection {id} is closed and nothing keeps what the kernel still reads"));
        }
        self.core.unnoticed.retain(|send| !is_of(send));
        self.shared.close(id, Side::Target);
    }

    fn close_holding(&mut self, socket: SocketId, held: Held) {
        let sends = self.core.unnoticed.extract_if(.., |send| send.socket == socket).collect();
        let mut close = LingeringClose { until_ns: self.shared.now_ns, sends, held };
        if !self.core.is_gone {
            close.until_ns = self.notice_ns(socket);
            let actor = self.actor();
            self.shared.wake_at(actor, close.until_ns);
        }
        self.core.lingering.push(close);
        self.close(socket);
    }

    fn start(&mut self, token: Token, operation: Operation) -> Result<(), Operation> {
        let actor = self.actor();
        self.shared.start_disk(actor, token, operation)
    }

    fn set_timer(&mut self, deadline_ns: u64, token: Token) {
        self.core.timers.set(deadline_ns, token);
    }

    fn post(&mut self, to: usize, message: Message) {
        if to == self.core.index {
            self.core.own.push_back(message);
        } else {
            self.outbox.push((to, message));
        }
    }

    fn reactor(&self) -> usize {
        self.core.index
    }

    fn reactor_count(&self) -> usize {
        self.core.count
    }

    fn pool(&self) -> &Pool {
        &self.core.pool
    }

    fn busy_polling(&self) -> BusyPolling {
        BusyPolling::default()
    }

    fn stop(&mut self) {
        self.core.stops = true;
    }
}

/// Maximum time for which the kernel may read bytes that were sent without a copy, ns.
const NOTICE_NS_MAX: u64 = 2000 * US;

/// Maximum time of a message from one reactor to another, ns.
pub(crate) const MESSAGE_NS_MAX: u64 = 20 * US;
