//! A reactor in memory: one application of the target, its sockets as byte queues, and a manual clock.

use std::collections::VecDeque;
use std::io::{self, IoSliceMut, Read};

use linux::Moment;
use memory::{Pool, Segment};
use reactor::{
    Application, Arrival, BusyPolling, Connection, Io, Listener, ListenerTag, Operation, Received, Sent,
    SocketId, Timers, Token,
};
use subsystem::Serving;
use subsystem::message::Message;

/// Maximum turns without idling; more count as an endless loop.
const TURN_COUNT_MAX: usize = 100_000;

/// The listener of all connections.
pub(crate) const LISTENER: ListenerTag = 1;

/// The only generation: connections are never reused.
const GENERATION: u32 = 1;

/// One application and its environment.
pub(crate) struct MemoryReactor {
    application: Serving,
    core: Core,
    /// Free bytes of the pool when the target is idle.
    idle_free_bytes: usize,
}

struct Core {
    now_ns: u64,
    pool: Pool,
    links: Vec<Link>,
    timers: Timers,
    messages: VecDeque<Message>,
    has_stopped: bool,
}

/// A connection, as the reactor and its peer see it.
struct Link {
    to_target: VecDeque<u8>,
    from_target: Vec<u8>,
    /// Free space of the peer's receive buffer, bytes.
    room: usize,
    is_taken: bool,
    is_closed: bool,
    has_peer_closed: bool,
    is_paused: bool,
    waits_to_send: bool,
}

impl MemoryReactor {
    /// Starts the only application.
    pub(crate) fn new(application: Serving) -> Self {
        let core = Core {
            now_ns: 1,
            pool: Pool::new(1).expect("a little memory"),
            links: Vec::new(),
            timers: Timers::default(),
            messages: VecDeque::new(),
            has_stopped: false,
        };
        let mut reactor = Self { application, core, idle_free_bytes: 0 };
        reactor.application.on_start(&mut reactor.core);
        reactor.settle();
        reactor.idle_free_bytes = reactor.core.pool.free_bytes();
        reactor
    }

    /// A peer connects; it receives `room` bytes before it must read.
    pub(crate) fn dial(&mut self, room: usize) -> usize {
        let id = self.core.links.len();
        self.core.links.push(Link {
            to_target: VecDeque::new(),
            from_target: Vec::new(),
            room,
            is_taken: false,
            is_closed: false,
            has_peer_closed: false,
            is_paused: false,
            waits_to_send: false,
        });
        self.application.on_accept(&mut self.core, LISTENER, Connection::simulated(id as u64));
        self.settle();
        id
    }

    /// A peer sends.
    pub(crate) fn send(&mut self, id: usize, bytes: &[u8]) {
        let link = &mut self.core.links[id];
        if !link.is_closed && !link.has_peer_closed {
            link.to_target.extend(bytes);
        }
        self.settle();
    }

    /// A peer reads the received bytes.
    pub(crate) fn receive(&mut self, id: usize) -> Vec<u8> {
        let mut bytes = std::mem::take(&mut self.core.links[id].from_target);
        self.settle();
        // Bytes that did not fit before.
        while !self.core.links[id].from_target.is_empty() && bytes.len() < 64 << 20 {
            bytes.append(&mut self.core.links[id].from_target);
            self.settle();
        }
        bytes
    }

    /// A peer closes.
    pub(crate) fn hang_up(&mut self, id: usize) {
        self.core.links[id].has_peer_closed = true;
        self.settle();
    }

    /// Whether the target has closed.
    pub(crate) fn is_closed(&self, id: usize) -> bool {
        self.core.links[id].is_closed
    }

    /// Advances the clock.
    pub(crate) fn pass(&mut self, ns: u64) {
        let until_ns = self.core.now_ns.saturating_add(ns);
        while let Some(next_ns) = self.core.timers.next_deadline_ns().filter(|next_ns| *next_ns <= until_ns) {
            self.core.now_ns = self.core.now_ns.max(next_ns);
            self.settle();
        }
        self.core.now_ns = until_ns;
        self.settle();
    }

    /// Free bytes of the pool.
    #[cfg(test)]
    pub(crate) fn free_bytes(&self) -> usize {
        self.core.pool.free_bytes()
    }

    /// Closes every peer; all buffers held for them must be returned.
    pub(crate) fn end(mut self) {
        for link in &mut self.core.links {
            link.has_peer_closed = true;
            link.from_target.clear();
        }
        self.settle();
        // Longer than any timer of a lane.
        self.pass(60_000_000_000);
        assert!(self.core.links.iter().all(|link| link.is_closed), "a connection is still open");
        assert_eq!(self.core.pool.free_bytes(), self.idle_free_bytes, "buffers that are not back");
    }

    /// Runs turns until the application is idle.
    fn settle(&mut self) {
        let has_settled = (0..TURN_COUNT_MAX).any(|_| !self.turn());
        assert!(has_settled, "it never comes to rest");
    }

    /// One turn, as `reactor::Reactor` runs it. Returns whether there was work.
    fn turn(&mut self) -> bool {
        let Self { application, core, .. } = self;
        let mut worked = false;
        for at in 0..core.links.len() {
            let link = &mut core.links[at];
            if link.waits_to_send && (link.from_target.len() < link.room || link.has_peer_closed) {
                link.waits_to_send = false;
                application.on_writable(core, socket(at));
                worked = true;
            }
        }
        while let Some(message) = core.messages.pop_front() {
            application.on_message(core, message);
            worked = true;
        }
        for at in 0..core.links.len() {
            let link = &core.links[at];
            let is_readable = !link.to_target.is_empty() || link.has_peer_closed;
            if link.is_taken && !link.is_closed && !link.is_paused && is_readable {
                worked |= application.on_readable(core, socket(at));
            }
        }
        while let Some(token) = core.timers.next_due(core.now_ns) {
            application.on_timer(core, token);
            worked = true;
        }
        worked |= application.on_turn_end(core);
        assert!(!core.has_stopped, "it stopped without an order");
        worked || !core.messages.is_empty()
    }
}

fn socket(at: usize) -> SocketId {
    SocketId::new(u32::try_from(at).expect("few connections"), GENERATION)
}

impl Core {
    /// The connection, unless the target has closed it.
    fn link(&mut self, socket: SocketId) -> Option<&mut Link> {
        self.links.get_mut(socket.index()).filter(|link| !link.is_closed)
    }
}

impl Io<Message> for Core {
    fn now_ns(&self) -> u64 {
        self.now_ns
    }

    fn moment(&self) -> Moment {
        let since_boot_s = (self.now_ns / 1_000_000_000).cast_signed();
        Moment { boot: 1, since_boot_s, unix_s: 1_700_000_000 + since_boot_s }
    }

    fn listen(&mut self, _: ListenerTag, _: Listener) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn unlisten(&mut self, _: ListenerTag) {}

    fn adopt(&mut self, connection: Connection) -> io::Result<SocketId> {
        let id = connection.simulated_id().ok_or(io::ErrorKind::InvalidInput)?;
        let at = usize::try_from(id).map_err(|_| io::ErrorKind::InvalidInput)?;
        self.links[at].is_taken = true;
        Ok(socket(at))
    }

    fn release(&mut self, _: SocketId) -> Option<Connection> {
        // With a single reactor nothing is handed over.
        None
    }

    fn arrival(&self, _: SocketId) -> Arrival {
        Arrival::default()
    }

    fn arrived_ns(&self, _: SocketId) -> u64 {
        self.now_ns()
    }

    fn busy_polling(&self) -> BusyPolling {
        BusyPolling::default()
    }

    fn receive(&mut self, socket: SocketId, into: &mut [IoSliceMut<'_>]) -> Received {
        let Some(link) = self.link(socket) else {
            return Received::Failed(io::ErrorKind::NotConnected.into());
        };
        let mut count = 0;
        for place in into {
            let mut place = &mut place[..];
            while !place.is_empty() {
                // The contiguous part of the queue.
                let length = link.to_target.read(place).expect("memory");
                if length == 0 {
                    break;
                }
                place = &mut place[length..];
                count += length;
            }
        }
        match count {
            0 if link.has_peer_closed => Received::Ended,
            0 => Received::Dry,
            count => Received::Bytes(count),
        }
    }

    fn send(&mut self, socket: SocketId, segments: &[Segment<'_>]) -> Sent {
        let Some(link) = self.link(socket) else {
            return Sent::Failed(io::ErrorKind::NotConnected.into());
        };
        if link.has_peer_closed {
            return Sent::Failed(io::ErrorKind::BrokenPipe.into());
        }
        let room = link.room.saturating_sub(link.from_target.len());
        if room == 0 {
            return Sent::Blocked;
        }
        let start = link.from_target.len();
        for segment in segments {
            if link.from_target.len() - start >= room {
                break;
            }
            segment.append_to(&mut link.from_target);
        }
        link.from_target.truncate(start + room);
        Sent::Bytes(link.from_target.len() - start)
    }

    fn await_writable(&mut self, socket: SocketId) {
        if let Some(link) = self.link(socket) {
            link.waits_to_send = true;
        }
    }

    fn pause(&mut self, socket: SocketId) {
        if let Some(link) = self.link(socket) {
            link.is_paused = true;
        }
    }

    fn resume(&mut self, socket: SocketId) {
        if let Some(link) = self.link(socket) {
            link.is_paused = false;
        }
    }

    fn finish(&mut self, _: SocketId) {}

    fn close(&mut self, socket: SocketId) {
        if let Some(link) = self.link(socket) {
            link.is_closed = true;
            link.waits_to_send = false;
            link.to_target.clear();
        }
    }

    fn start(&mut self, token: Token, operation: Operation) -> Result<(), Operation> {
        // Namespaces in memory have none.
        unreachable!("operation {token} on a file: {operation:?}")
    }

    fn set_timer(&mut self, deadline_ns: u64, token: Token) {
        self.timers.set(deadline_ns, token);
    }

    fn post(&mut self, _: usize, message: Message) {
        self.messages.push_back(message);
    }

    fn reactor(&self) -> usize {
        0
    }

    fn reactor_count(&self) -> usize {
        1
    }

    fn pool(&self) -> &Pool {
        &self.pool
    }

    fn stop(&mut self) {
        self.has_stopped = true;
    }
}
