//! The I/O of a reactor, which implements [`Io`]: its sockets and listeners, and which of them are polled or watched.
//!
//! ```text
//!             readable                    dry, where many are polled; the reactor sleeps
//! Watched ───────────────▶ Polled ──────────────────────────────────────────▶ Watched
//!    └───── pause ──────────┴──▶ Paused ── resume ──▶ Polled
//! ```
//!
//! A socket is *watched* while the engine reports when it is readable, and *polled* after that: it is read in each turn
//! without asking whether it is ready. Before the reactor sleeps, every polled socket is watched again. Where many are
//! polled, one is watched again as soon as it is empty: an empty receive on each costs more than one call that asks for
//! all. A *paused* socket is neither: the application has no room for its input.
//!
//! A socket is *unestablished* until the application has established it. Anyone may open such sockets, and thousands
//! may be readable at once, if only with their end. They are read after all others, one after the other, within a slice
//! of each turn; expired timers, many of which close such sockets, have another slice, and few connections are
//! accepted. So connections that have not completed Connect share a bounded part of each turn, regardless of their
//! number.

use std::collections::{BTreeSet, VecDeque};
use std::io::{self, IoSliceMut};
use std::os::fd::{AsFd, OwnedFd};
use std::time::Instant;

use crate::accept_pace::AcceptPace;
use crate::busy_poll::{Arrival, BusyPolling};
use crate::engine::Engine;
use crate::event::Interest;
use crate::io::{Application, Connection, ConnectionHandle, Io, ListenerTag, SocketId};
use crate::mailbox::{Address, Mailbox};
use crate::operation::{Operation, Token};
use crate::socket::{Listener, Received, Sent, Socket};
use crate::timers::Timers;
use crate::zero_copy::{Held, LingeringClose, Notice, abort_all};
use linux::{Moment, MomentClock};
use memory::Pool;
use memory::Segment;

/// Polled sockets beyond this many are watched again at once.
const POLLED_SOCKET_COUNT_MAX: usize = 8;

/// Turns in which a polled socket may be dry while others find work.
const DRY_TURN_COUNT_MAX: u32 = 64;

/// Connections accepted from one listener in one turn: connections that exist already wait for them.
const ACCEPT_COUNT_MAX: usize = 2;

/// Time budget per turn for unestablished sockets, and again for expired timers, ns. Closing one connection takes about
/// 10 us.
const SLICE_NS: u64 = 30_000;

/// Pause of a listener when the system has no descriptor or memory left for a connection, and of a socket or listener
/// that the system has no memory to watch, ns.
const PAUSE_NS: u64 = 100_000_000;

/// Least time between two warnings of one kind, ns.
const WARNING_NS: u64 = 10_000_000_000;

/// Everything of a reactor but its application and its loop.
pub(crate) struct ReactorIo<M> {
    pub(crate) engine: Engine,
    pool: Pool,
    pub(crate) mailbox: Mailbox<M>,
    addresses: Vec<Address<M>>,
    index: usize,
    sockets: Vec<Slot>,
    free_slots: Vec<u32>,
    /// Polled sockets that are established.
    polled: Vec<SocketId>,
    /// Polled sockets that are not, in the order in which they became readable.
    unestablished: VecDeque<SocketId>,
    listeners: Vec<(ListenerTag, Listener, SocketId)>,
    /// Listeners that accept nothing before a time, ns.
    paused_listeners: Vec<(u64, SocketId)>,
    /// Sockets that the engine could not watch, and when it tries again, ns.
    unwatched: BTreeSet<(SocketId, Interest)>,
    watch_again_ns: u64,
    /// Closed connections from whose memory the kernel still transmits.
    lingering: Vec<LingeringClose>,
    accept_pace: AcceptPace,
    /// Time of the next warning about connections that cannot be accepted, at the earliest, ns.
    accept_warning_ns: u64,
    /// The same for sockets and listeners that cannot be watched, ns.
    watch_warning_ns: u64,
    /// Messages to ourselves.
    own_messages: VecDeque<M>,
    timers: Timers,
    start: Instant,
    moments: MomentClock,
    pub(crate) now_ns: u64,
    pub(crate) stops: bool,
    pub(crate) busy_polling: BusyPolling,
}

/// The generation before that of the first socket in a slot. It is near the limit of the 24 bits in ids, so that
/// generations wrap soon, and not only after 2^24 sockets.
const FIRST_GENERATION: u32 = 0x00ff_ffff - 2;

/// The slot of a socket or listener. Each new one in it increments the generation.
struct Slot {
    generation: u32,
    use_: Use,
}

impl Slot {
    /// The id of its socket or listener, for slot `index`.
    #[inline]
    fn id(&self, index: usize) -> SocketId {
        SocketId::new(u32::try_from(index).expect("ids hold 32 bits"), self.generation)
    }
}

enum Use {
    Free,
    Listener,
    Socket {
        socket: Socket,
        attention: Attention,
        waits_to_send: bool,
        is_zero_copy: bool,
        is_established: bool,
    },
}

/// How the reactor learns that a socket is readable.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Attention {
    /// The engine reports it.
    Watched,
    /// It is read in each turn. `dry_turn_count` counts the last turns without input; `is_emptied` says that the last
    /// receive took all there was.
    Polled { dry_turn_count: u32, is_emptied: bool },
    /// Not at all.
    Paused,
}

impl<M: Send + 'static> ReactorIo<M> {
    /// The I/O of a reactor without [peers](Self::set_peers).
    pub(crate) fn new(
        engine: Engine,
        pool: Pool,
        mailbox: Mailbox<M>,
        accepts_per_s: u32,
        busy_polling: BusyPolling,
    ) -> Self {
        let start = Instant::now();
        Self {
            engine,
            pool,
            addresses: vec![mailbox.address()],
            mailbox,
            index: 0,
            sockets: Vec::new(),
            free_slots: Vec::new(),
            polled: Vec::new(),
            unestablished: VecDeque::new(),
            listeners: Vec::new(),
            paused_listeners: Vec::new(),
            unwatched: BTreeSet::new(),
            watch_again_ns: 0,
            lingering: Vec::new(),
            accept_pace: AcceptPace::new(accepts_per_s),
            accept_warning_ns: 0,
            watch_warning_ns: 0,
            own_messages: VecDeque::new(),
            timers: Timers::default(),
            start,
            moments: MomentClock::new(start),
            now_ns: 0,
            stops: false,
            busy_polling,
        }
    }

    /// Makes this reactor number `index` of those reached at `addresses`, all of which count time from `start`.
    pub(crate) fn set_peers(&mut self, index: usize, addresses: Vec<Address<M>>, start: Instant) {
        assert!(index < addresses.len(), "reactor {index} of {}", addresses.len());
        (self.index, self.addresses, self.start) = (index, addresses, start);
        self.moments = MomentClock::new(start);
    }

    pub(crate) fn read_clock(&mut self) {
        self.now_ns = self.now_ns.max(elapsed_ns(self.start));
    }

    pub(crate) fn next_message(&mut self) -> Option<M> {
        self.own_messages.pop_front().or_else(|| self.mailbox.next_message())
    }

    pub(crate) fn next_deadline_ns(&self) -> Option<u64> {
        let paused = self.paused_listeners.iter().map(|(until_ns, _)| *until_ns).min();
        let lingering = (!self.lingering.is_empty()).then(|| LingeringClose::next_look_ns(self.now_ns));
        let unwatched = (!self.unwatched.is_empty()).then_some(self.watch_again_ns);
        [paused, unwatched, lingering, self.timers.next_deadline_ns()].into_iter().flatten().min()
    }

    fn insert(&mut self, use_: Use) -> SocketId {
        let index = self.free_slots.pop().unwrap_or_else(|| {
            self.sockets.push(Slot { generation: FIRST_GENERATION, use_: Use::Free });
            u32::try_from(self.sockets.len() - 1).expect("fewer sockets than descriptors")
        });
        let slot = &mut self.sockets[index as usize];
        slot.generation = slot.generation.wrapping_add(1);
        slot.use_ = use_;
        SocketId::new(index, slot.generation)
    }

    /// The slot of `id`, if that socket is still open.
    fn slot(&mut self, id: SocketId) -> Option<&mut Slot> {
        let slot = self.sockets.get_mut(id.index())?;
        (slot.id(id.index()) == id).then_some(slot)
    }

    fn open_socket(&self, id: SocketId) -> Option<&Socket> {
        let slot = self.sockets.get(id.index()).filter(|slot| slot.id(id.index()) == id)?;
        match &slot.use_ {
            Use::Socket { socket, .. } => Some(socket),
            Use::Free | Use::Listener => None,
        }
    }

    fn socket(&mut self, id: SocketId) -> Option<(&Socket, &mut Attention, &mut bool)> {
        match &mut self.slot(id)?.use_ {
            Use::Socket { socket, attention, waits_to_send, .. } => Some((socket, attention, waits_to_send)),
            Use::Free | Use::Listener => None,
        }
    }

    pub(crate) fn on_readable<A: Application<Message = M>>(&mut self, application: &mut A, id: SocketId) {
        match self.slot(id).map(|slot| &slot.use_) {
            Some(Use::Listener) => self.accept(application, id),
            // A polled socket is read later in this turn anyway.
            Some(Use::Socket { attention: Attention::Watched, .. }) => {
                self.start_polling(id);
            }
            _ => {}
        }
    }

    /// Has a socket read in each turn, with the established sockets or with the others.
    fn start_polling(&mut self, id: SocketId) {
        self.set_attention(id, Attention::Polled { dry_turn_count: 0, is_emptied: false });
        if self.is_established(id) { self.polled.push(id) } else { self.unestablished.push_back(id) }
    }

    fn is_established(&mut self, id: SocketId) -> bool {
        matches!(self.slot(id).map(|slot| &slot.use_), Some(Use::Socket { is_established: true, .. }))
    }

    fn set_attention(&mut self, id: SocketId, new: Attention) {
        if let Some((_, attention, _)) = self.socket(id) {
            *attention = new;
        }
    }

    /// Reads every polled socket, in the order in which they became readable; those that stay dry are watched again.
    /// Returns whether any had something.
    pub(crate) fn read_polled<A: Application<Message = M>>(&mut self, application: &mut A) -> bool {
        let count = self.polled.len();
        let (mut worked, mut has_left) = (false, false);
        for at in 0..count {
            let id = self.polled[at];
            let found = self.is_polled(id) && application.on_readable(self, id);
            worked |= found;
            let looks_again = self.engine.looks_when_armed();
            // The call may have closed or paused it.
            if let Some((_, Attention::Polled { dry_turn_count, is_emptied }, _)) = self.socket(id) {
                *dry_turn_count = if found { 0 } else { *dry_turn_count + 1 };
                let is_spent = *dry_turn_count > 0 || (*is_emptied && looks_again);
                let is_crowded = count > POLLED_SOCKET_COUNT_MAX;
                if !is_spent || !is_crowded && (!worked || *dry_turn_count <= DRY_TURN_COUNT_MAX) {
                    continue;
                }
                self.watch(id);
            }
            self.polled[at] = SocketId::NONE;
            has_left = true;
        }
        if has_left {
            self.polled.retain(|id| *id != SocketId::NONE);
        }
        worked
    }

    /// Reads unestablished sockets that have something, each once, within their slice of the turn. Returns whether any
    /// are left.
    pub(crate) fn read_unestablished<A: Application<Message = M>>(&mut self, application: &mut A) -> bool {
        let until_ns = elapsed_ns(self.start) + SLICE_NS;
        for _ in 0..self.unestablished.len() {
            let Some(id) = self.unestablished.pop_front() else { break };
            let found = self.is_polled(id) && application.on_readable(self, id);
            let looks_again = self.engine.looks_when_armed();
            // The call may have closed, paused or established it.
            if let Some((_, Attention::Polled { is_emptied, .. }, _)) = self.socket(id) {
                let is_spent = !found || (*is_emptied && looks_again);
                if self.is_established(id) {
                    self.polled.push(id);
                } else if is_spent {
                    self.watch(id);
                } else {
                    self.unestablished.push_back(id);
                }
            }
            if elapsed_ns(self.start) >= until_ns {
                break;
            }
        }
        !self.unestablished.is_empty()
    }

    /// Fires expired timers within their slice of the turn. Returns whether any are left.
    pub(crate) fn fire_timers<A: Application<Message = M>>(&mut self, application: &mut A) -> bool {
        let until_ns = elapsed_ns(self.start) + SLICE_NS;
        while let Some(token) = self.timers.next_due(self.now_ns) {
            application.on_timer(self, token);
            if elapsed_ns(self.start) >= until_ns {
                return true;
            }
        }
        false
    }

    /// Whether unestablished sockets wait to be read.
    pub(crate) fn has_unestablished(&self) -> bool {
        !self.unestablished.is_empty()
    }

    /// Whether a timer has expired.
    pub(crate) fn has_expired_timer(&self) -> bool {
        self.timers.next_deadline_ns().is_some_and(|deadline_ns| deadline_ns <= self.now_ns)
    }

    /// Drops closed connections whose memory the kernel has released.
    pub(crate) fn release_lingering(&mut self) {
        if !self.lingering.is_empty() {
            let now_ns = self.now_ns;
            self.lingering.retain_mut(|lingering| !lingering.is_over(now_ns));
        }
    }

    /// Announces the sleep of this reactor, unless there are messages.
    pub(crate) fn prepare_sleep(&mut self) -> bool {
        if self.own_messages.is_empty()
            && let Some(message) = self.mailbox.prepare_sleep()
        {
            self.own_messages.push_front(message);
        }
        self.own_messages.is_empty()
    }

    /// Closes every connection, and waits until the kernel no longer reads their memory.
    pub(crate) fn end(&mut self) {
        LingeringClose::end_all(std::mem::take(&mut self.lingering));
        let slots = self.sockets.drain(..);
        abort_all(slots.filter_map(|slot| match slot.use_ {
            Use::Socket { socket, is_zero_copy: true, .. } => Some(socket),
            _ => None,
        }));
    }

    fn is_polled(&mut self, id: SocketId) -> bool {
        matches!(self.socket(id), Some((_, Attention::Polled { .. }, _)))
    }

    /// Has the engine watch a socket again.
    fn watch(&mut self, id: SocketId) {
        self.set_attention(id, Attention::Watched);
        self.arm(id, Interest::Read);
    }

    /// Has the engine watch every polled socket: the reactor is about to sleep.
    pub(crate) fn watch_all(&mut self) {
        while let Some(id) = self.polled.pop().or_else(|| self.unestablished.pop_front()) {
            if self.is_polled(id) {
                self.watch(id);
            }
        }
    }

    /// Removes a socket from its slot and from the engine.
    fn take_socket(&mut self, id: SocketId) -> Option<Socket> {
        let slot = self.slot(id)?;
        if !matches!(slot.use_, Use::Socket { .. }) {
            return None;
        }
        let Use::Socket { socket, .. } = std::mem::replace(&mut slot.use_, Use::Free) else {
            unreachable!("just matched");
        };
        self.engine.disarm(id.key(), socket.as_fd());
        self.free_slots.push(u32::try_from(id.index()).expect("ids hold 32 bits"));
        Some(socket)
    }

    fn arm(&mut self, id: SocketId, interest: Interest) {
        let Some(slot) = self.sockets.get(id.index()) else { return };
        let Use::Socket { socket, .. } = &slot.use_ else { return };
        if let Err(error) = self.engine.arm(id.key(), socket.as_fd(), interest) {
            if self.unwatched.is_empty() {
                self.watch_again_ns = self.now_ns + PAUSE_NS;
            }
            self.unwatched.insert((id, interest));
            self.warn_of_watch(&error);
        }
    }

    fn warn_of_watch(&mut self, error: &io::Error) {
        if self.now_ns >= self.watch_warning_ns {
            let remedy = match rustix::io::Errno::from_io_error(error) {
                Some(rustix::io::Errno::NOSPC) => "; raise fs.epoll.max_user_watches (sysctl)",
                _ => "",
            };
            let waiting = self.unwatched.len();
            tracing::warn!(
                %error, waiting, "cannot watch connections or listeners; they wait, and each is tried again{remedy}"
            );
            self.watch_warning_ns = self.now_ns + WARNING_NS;
        }
    }

    /// Watches the sockets that could not be watched before. The engine reports input that has arrived meanwhile.
    pub(crate) fn watch_again(&mut self) {
        if self.unwatched.is_empty() || self.now_ns < self.watch_again_ns {
            return;
        }
        for (id, interest) in std::mem::take(&mut self.unwatched) {
            if self.open_socket(id).is_some() {
                self.arm(id, interest);
            }
        }
    }

    pub(crate) fn may_send_again(&mut self, id: SocketId) -> bool {
        self.socket(id).is_some_and(|(_, _, waits_to_send)| std::mem::take(waits_to_send))
    }

    fn accept<A: Application<Message = M>>(&mut self, application: &mut A, id: SocketId) {
        let Some(at) = self.listeners.iter().position(|(_, _, listener)| *listener == id) else { return };
        for _ in 0..ACCEPT_COUNT_MAX {
            if let Err(until_ns) = self.accept_pace.check(self.now_ns) {
                return self.paused_listeners.push((until_ns, id));
            }
            let (tag, listener, _) = &self.listeners[at];
            let tag = *tag;
            match listener.accept() {
                Ok(Some(fd)) => {
                    self.accept_pace.on_accepted(self.now_ns);
                    application.on_accept(self, tag, connection(fd));
                }
                Ok(None) => break,
                Err(error) => {
                    if self.now_ns >= self.accept_warning_ns {
                        let remedy = linux::descriptor_remedy(&error).unwrap_or_default();
                        tracing::warn!(%error, "cannot accept connections; the listener pauses between attempts{remedy}");
                        self.accept_warning_ns = self.now_ns + WARNING_NS;
                    }
                    self.paused_listeners.push((self.now_ns + PAUSE_NS, id));
                    return;
                }
            }
        }
        self.arm_listener(at);
    }

    fn arm_listener(&mut self, at: usize) {
        let (_, listener, id) = &self.listeners[at];
        let id = *id;
        if let Err(error) = self.engine.arm_listener(id.key(), listener.as_fd()) {
            self.paused_listeners.push((self.now_ns + PAUSE_NS, id));
            self.warn_of_watch(&error);
        }
    }

    pub(crate) fn resume_listeners(&mut self) {
        while let Some(at) = self.paused_listeners.iter().position(|(until_ns, _)| *until_ns <= self.now_ns) {
            let (_, id) = self.paused_listeners.swap_remove(at);
            // The engine reports it as soon as it is armed, if a connection waits.
            if let Some(at) = self.listeners.iter().position(|(_, _, listener)| *listener == id) {
                self.arm_listener(at);
            }
        }
    }
}

/// Time since `start`, ns.
#[inline]
fn elapsed_ns(start: Instant) -> u64 {
    u64::try_from(start.elapsed().as_nanos()).expect("centuries from now")
}

fn connection(fd: OwnedFd) -> Connection {
    let peer = rustix::net::getpeername(&fd).ok().flatten().and_then(|address| address.try_into().ok());
    let local = rustix::net::getsockname(&fd).ok().and_then(|address| address.try_into().ok());
    Connection { peer, local, handle: ConnectionHandle::Os(fd) }
}

impl<M: Send + 'static> Io<M> for ReactorIo<M> {
    #[inline]
    fn now_ns(&self) -> u64 {
        self.now_ns
    }

    fn clock_ns(&self) -> u64 {
        elapsed_ns(self.start)
    }

    #[inline]
    fn moment(&self) -> Moment {
        self.moments.at(self.now_ns)
    }

    fn listen(&mut self, tag: ListenerTag, listener: Listener) -> io::Result<()> {
        let id = self.insert(Use::Listener);
        self.listeners.push((tag, listener, id));
        self.arm_listener(self.listeners.len() - 1);
        Ok(())
    }

    fn unlisten(&mut self, tag: ListenerTag) {
        while let Some(at) = self.listeners.iter().position(|(listener, _, _)| *listener == tag) {
            let (_, listener, id) = self.listeners.swap_remove(at);
            self.engine.disarm(id.key(), listener.as_fd());
            if let Some(slot) = self.slot(id) {
                slot.use_ = Use::Free;
                self.free_slots.push(u32::try_from(id.index()).expect("ids hold 32 bits"));
            }
        }
    }

    fn adopt(&mut self, connection: Connection) -> io::Result<SocketId> {
        let ConnectionHandle::Os(fd) = connection.handle else {
            return Err(io::ErrorKind::Unsupported.into());
        };
        let socket = Socket::new(fd)?;
        if self.busy_polling.wanted.is_on() {
            self.busy_polling.on_socket(socket.set_busy_poll(self.busy_polling.wanted));
        }
        let id = self.insert(Use::Socket {
            socket,
            attention: Attention::Watched,
            waits_to_send: false,
            is_zero_copy: false,
            is_established: false,
        });
        self.arm(id, Interest::Read);
        Ok(id)
    }

    fn establish(&mut self, socket: SocketId) {
        if let Some(Use::Socket { is_established, .. }) = self.slot(socket).map(|slot| &mut slot.use_) {
            *is_established = true;
        }
    }

    fn release(&mut self, socket: SocketId) -> Option<Connection> {
        self.take_socket(socket).map(|socket| connection(socket.into()))
    }

    fn arrival(&self, socket: SocketId) -> Arrival {
        self.open_socket(socket).map(Socket::arrival).unwrap_or_default()
    }

    fn arrived_ns(&self, socket: SocketId) -> u64 {
        let ago = self.open_socket(socket).map(Socket::since_arrival).unwrap_or_default();
        self.now_ns.saturating_sub(u64::try_from(ago.as_nanos()).unwrap_or(u64::MAX))
    }

    #[inline]
    fn receive(&mut self, socket: SocketId, into: &mut [IoSliceMut<'_>]) -> Received {
        let Some((socket, attention, _)) = self.socket(socket) else {
            return Received::Failed(io::ErrorKind::NotConnected.into());
        };
        let (received, room) = match into {
            [one] => (socket.receive(one), one.len()),
            several => (socket.receive_vectored(several), several.iter().map(|part| part.len()).sum()),
        };
        if let (Attention::Polled { is_emptied, .. }, Received::Bytes(count)) = (attention, &received) {
            *is_emptied = *count < room;
        }
        received
    }

    #[inline]
    fn send(&mut self, socket: SocketId, segments: &[Segment<'_>]) -> Sent {
        match self.socket(socket) {
            Some((socket, _, _)) => socket.send(segments, false),
            None => Sent::Failed(io::ErrorKind::NotConnected.into()),
        }
    }

    fn allow_zero_copy(&mut self, socket: SocketId) -> bool {
        match self.slot(socket).map(|slot| &mut slot.use_) {
            Some(Use::Socket { socket, is_zero_copy, .. }) => {
                *is_zero_copy = socket.allow_zero_copy();
                *is_zero_copy
            }
            _ => false,
        }
    }

    fn send_zero_copy(&mut self, socket: SocketId, segments: &[Segment<'_>]) -> (Sent, bool) {
        match self.socket(socket) {
            Some((socket, _, _)) => socket.send_zero_copy(segments),
            None => (Sent::Failed(io::ErrorKind::NotConnected.into()), false),
        }
    }

    fn next_notice(&mut self, socket: SocketId) -> Option<Notice> {
        self.socket(socket)?.0.next_notice()
    }

    fn await_writable(&mut self, socket: SocketId) {
        if let Some((_, _, waits_to_send)) = self.socket(socket)
            && !std::mem::replace(waits_to_send, true)
        {
            self.arm(socket, Interest::Write);
        }
    }

    fn pause(&mut self, socket: SocketId) {
        self.set_attention(socket, Attention::Paused);
    }

    fn resume(&mut self, socket: SocketId) {
        if let Some((_, Attention::Paused, _)) = self.socket(socket) {
            self.start_polling(socket);
        }
    }

    fn finish(&mut self, socket: SocketId) {
        if let Some((socket, _, _)) = self.socket(socket) {
            socket.finish();
        }
    }

    fn close(&mut self, socket: SocketId) {
        drop(self.take_socket(socket));
    }

    fn close_holding(&mut self, socket: SocketId, held: Held) {
        if let Some(socket) = self.take_socket(socket) {
            self.lingering.push(LingeringClose::new(socket, held, self.now_ns));
        }
    }

    fn start(&mut self, token: Token, operation: Operation) -> Result<(), Operation> {
        self.engine.start(token, operation)
    }

    fn set_timer(&mut self, deadline_ns: u64, token: Token) {
        self.timers.set(deadline_ns, token);
    }

    fn post(&mut self, to: usize, message: M) {
        if to == self.index {
            self.own_messages.push_back(message);
        } else if !self.addresses[to].post(message) {
            tracing::debug!(to, "message to a reactor that has ended");
        }
    }

    fn reactor(&self) -> usize {
        self.index
    }

    fn reactor_count(&self) -> usize {
        self.addresses.len()
    }

    fn pool(&self) -> &Pool {
        &self.pool
    }

    fn busy_polling(&self) -> BusyPolling {
        self.busy_polling
    }

    fn stop(&mut self) {
        self.stops = true;
    }
}
