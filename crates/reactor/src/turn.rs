//! The loop of a reactor: take in events, run the application, ring doorbells, then spin or sleep.
//!
//! ```text
//! collect ─▶ messages ─▶ hot sockets ─▶ fresh ones ─▶ timers ─▶ on_turn_end ─▶ worked? ──yes──▶ next turn
//!    ▲                                                                            │no
//!    └────────── sleep until an event ◀── arm hot sockets ◀── budget spent? ──no──┴──▶ next turn (spin)
//! ```
//!
//! A socket is *cold* while the engine watches it and *hot* after it was readable: then it is read in each turn
//! without asking whether it is ready. Before the reactor sleeps, every hot socket goes cold. Where many are hot, one goes cold as soon
//! as it has given all it had: asking each in vain costs more than one call that asks for all. A *paused* socket is neither: the
//! application has no room for what it may bring.
//!
//! A socket is *fresh* until the application has established it: anyone may open such, and thousands may have something at once, if it is
//! only their end. They are read after all others and one after the other, for a short time in each turn; timers, many of which end them,
//! have as much, and few connections are accepted. So whoever only connects never has more than a small part of a turn.

use std::collections::VecDeque;
use std::io::{self, IoSliceMut};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use crate::buffers::Pool;
use crate::busy_poll::{Arrival, Asked, BusyPoll, BusyPolling};
use crate::counter::Counter;
use crate::engine::{Engine, EngineKind, Event, Interest, Patience};
use crate::epoll::EpollEngine;
use crate::io::{Application, Connection, ConnectionHandle, Io, ListenerTag, SocketId};
use crate::mailbox::{Address, Mailbox};
use crate::operation::{Operation, Token};
use crate::ring::RingEngine;
use crate::segment::Segment;
use crate::socket::{Listener, Received, Sent, Socket};
use crate::spin::{SpinBudget, spin_ns_max};
use crate::timers::Timers;
use crate::zero_copy::{Held, LingeringClose, Notice, abort_all};

/// How a reactor is to be.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Which engine.
    pub engine: EngineKind,
    /// Whether epoll will do where there is no ring to be had after all: no memory, say.
    pub falls_back: bool,
    /// Size of the buffer pool, bytes. It is mapped at start and touched as needed.
    pub pool_bytes: usize,
    /// The longest spin before a sleep, ns; 0 never spins, `u64::MAX` never sleeps.
    pub spin_ns_max: u64,
    /// How it polls the devices of its sockets.
    pub busy_poll: BusyPoll,
    /// Connections accepted in a second; more wait in the system's queue.
    pub accepts_per_s: u32,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            engine: EngineKind::Uring,
            falls_back: false,
            pool_bytes: 64 << 20,
            spin_ns_max: spin_ns_max(),
            busy_poll: BusyPoll::OFF,
            accepts_per_s: ACCEPTS_PER_S,
        }
    }
}

/// Hot sockets beyond this many go cold at once.
const HOT_SOCKET_COUNT_MAX: usize = 8;

/// Turns in which a hot socket may be dry while others find work.
const DRY_TURN_COUNT_MAX: u32 = 64;

/// Connections accepted in a second unless the settings say otherwise: at 20 to 50 us each, a tenth of a core or two for those who do nothing
/// but connect.
const ACCEPTS_PER_S: u32 = 4000;

/// Connections taken from one listener in one turn: those who are connected already wait for them.
const ACCEPT_COUNT_MAX: usize = 2;

/// Fresh sockets are read for so long in one turn, and as long timers ring, ns: a few of each, for one is closed in 10 us.
const UNHURRIED_NS: u64 = 30_000;

/// So many connections are accepted at once after a time without any.
const ACCEPT_BURST: u32 = 256;

/// How long a listener rests when the system has no descriptor or memory left for a connection, ns.
const ACCEPT_PAUSE_NS: u64 = 100_000_000;

/// How often that is said at most, ns.
const ACCEPT_WARNING_NS: u64 = 10_000_000_000;

/// Turns with work after which events are collected even if the engine does not ask for it.
const TURNS_PER_COLLECT: u32 = 16;

/// What a reactor has done, for anyone to read.
#[derive(Debug, Default)]
pub struct TurnCounters {
    /// Turns in which there was work.
    pub busy_turn_count: Counter,
    /// Turns spent spinning.
    pub spin_turn_count: Counter,
    /// Sleeps.
    pub sleep_count: Counter,
    /// Time asleep, ns.
    pub asleep_ns: Counter,
}

/// One thread's loop around an application.
pub struct Reactor<A: Application> {
    application: A,
    core: Core<A::Message>,
    events: Vec<Event>,
    spin: SpinBudget,
}

/// Everything of a reactor but its application: what [`Io`] works on.
struct Core<M> {
    engine: Engine,
    pool: Pool,
    mailbox: Mailbox<M>,
    addresses: Vec<Address<M>>,
    index: usize,
    sockets: Vec<Slot>,
    free_slots: Vec<u32>,
    hot: Vec<SocketId>,
    /// Hot ones that are not established, in the order in which they were found so.
    fresh: VecDeque<SocketId>,
    /// The last turn has left something for the next one.
    is_behind: bool,
    listeners: Vec<(ListenerTag, Listener, SocketId)>,
    paused_listeners: Vec<(u64, SocketId)>,
    /// Connections that are closed while the kernel still transmits from our memory.
    lingering: Vec<LingeringClose>,
    pace: Pace,
    /// Before this, ns, nothing is said of connections that cannot be accepted.
    accept_warning_ns: u64,
    /// Messages to ourselves.
    own_messages: VecDeque<M>,
    timers: Timers,
    start: Instant,
    now_ns: u64,
    stops: bool,
    counters: Arc<TurnCounters>,
    busy_polling: BusyPolling,
}

/// Where a socket lives. A slot's generation grows with each new socket.
struct Slot {
    generation: u32,
    use_: Use,
}

impl Slot {
    /// The id of what is in it, if it is slot `index`.
    fn id(&self, index: usize) -> SocketId {
        SocketId::new(u32::try_from(index).expect("ids hold 32 bits"), self.generation)
    }
}

enum Use {
    Free,
    Listener,
    Socket { socket: Socket, heat: Heat, waits_to_send: bool, is_zero_copy: bool, is_established: bool },
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Heat {
    /// The engine watches it.
    Cold,
    /// It is read each turn; so many turns in vain. The last receive may have taken all there was.
    Hot { dry_turn_count: u32, is_emptied: bool },
    /// Nobody looks at it.
    Paused,
}

impl<A: Application> Reactor<A> {
    /// A reactor around what `make` makes of its buffers. Call it on the thread that will run it.
    ///
    /// # Errors
    /// If the engine cannot be had or memory is short.
    pub fn new(
        settings: &Settings,
        mailbox: Mailbox<A::Message>,
        make: impl FnOnce(&Pool) -> A,
    ) -> io::Result<Self> {
        let pool = Pool::new(settings.pool_bytes)?;
        let mut engine = match settings.engine {
            EngineKind::Uring => match RingEngine::new(&pool) {
                Ok(engine) => Engine::Uring(Box::new(engine)),
                Err(error) if settings.falls_back => {
                    tracing::warn!(%error, "io_uring is not to be had for this reactor, using epoll");
                    Engine::Epoll(Box::new(EpollEngine::new()?))
                }
                Err(error) => return Err(error),
            },
            EngineKind::Epoll => Engine::Epoll(Box::new(EpollEngine::new()?)),
        };
        engine.set_bell(mailbox.bell().clone())?;
        let wanted = settings.busy_poll;
        let mut busy_polling = BusyPolling { wanted, ..BusyPolling::default() };
        if wanted.is_on() {
            busy_polling.engine = Asked::of(engine.set_busy_poll(wanted));
        }
        // Where a wait cannot poll devices, receives do while we spin.
        let spin_floor_ns = match busy_polling.engine {
            Asked::Refused(_) => wanted.wait_ns(),
            Asked::No | Asked::Accepted => 0,
        };
        let application = make(&pool);
        let core = Core {
            engine,
            pool,
            addresses: vec![mailbox.address()],
            mailbox,
            index: 0,
            sockets: Vec::new(),
            free_slots: Vec::new(),
            hot: Vec::new(),
            fresh: VecDeque::new(),
            is_behind: false,
            listeners: Vec::new(),
            paused_listeners: Vec::new(),
            lingering: Vec::new(),
            pace: Pace::new(settings.accepts_per_s),
            accept_warning_ns: 0,
            own_messages: VecDeque::new(),
            timers: Timers::default(),
            start: Instant::now(),
            now_ns: 0,
            stops: false,
            counters: Arc::default(),
            busy_polling,
        };
        Ok(Self {
            application,
            core,
            events: Vec::with_capacity(256),
            spin: SpinBudget::new(settings.spin_ns_max).with_floor(spin_floor_ns),
        })
    }

    /// Makes this reactor number `index` of those reached at `addresses`, its own among them. All of them
    /// count time from `start`.
    ///
    /// # Panics
    /// If `index` is not in `addresses`.
    #[must_use]
    pub fn with_peers(mut self, index: usize, addresses: Vec<Address<A::Message>>, start: Instant) -> Self {
        assert!(index < addresses.len(), "reactor {index} of {}", addresses.len());
        self.core.index = index;
        self.core.addresses = addresses;
        self.core.start = start;
        self
    }

    /// Its engine.
    pub fn engine(&self) -> EngineKind {
        match self.core.engine {
            Engine::Uring(_) => EngineKind::Uring,
            Engine::Epoll(_) => EngineKind::Epoll,
        }
    }

    /// The application.
    pub fn application(&mut self) -> &mut A {
        &mut self.application
    }

    /// What it has done, now and later.
    #[must_use]
    pub fn counters(&self) -> Arc<TurnCounters> {
        Arc::clone(&self.core.counters)
    }

    /// Runs until the application stops it, then waits for the storage operations under way.
    ///
    /// # Errors
    /// If the engine fails, which leaves nothing to go on with.
    pub fn run(&mut self) -> io::Result<()> {
        let mut idle_since_ns = None;
        let mut turns_since_collect = 0;
        self.core.read_clock();
        self.application.on_start(&mut self.core);
        while !self.core.stops {
            turns_since_collect += 1;
            if turns_since_collect >= TURNS_PER_COLLECT || self.core.is_behind || self.core.engine.has_work()
            {
                turns_since_collect = 0;
                self.collect(Patience::None)?;
            }
            if self.turn() {
                self.core.counters.busy_turn_count.add(1);
                self.core.busy_polling.spin_hit_count += u64::from(idle_since_ns.take().is_some());
                continue;
            }
            let now_ns = self.core.now_ns;
            self.core.busy_polling.spin_count += u64::from(idle_since_ns.is_none());
            let idle_ns = now_ns - *idle_since_ns.get_or_insert(now_ns);
            if self.spin.allows(idle_ns) {
                self.core.counters.spin_turn_count.add(1);
                std::hint::spin_loop();
                continue;
            }
            self.sleep()?;
            idle_since_ns = None;
        }
        Ok(())
    }

    /// One pass over everything that is not asleep. Says whether there was work.
    fn turn(&mut self) -> bool {
        let (application, core) = (&mut self.application, &mut self.core);
        core.read_clock();
        let mut worked = !self.events.is_empty();
        for event in self.events.drain(..) {
            match event {
                Event::Readable(key) => core.on_readable(application, SocketId::from_key(key)),
                Event::Writable(key) => {
                    let id = SocketId::from_key(key);
                    if core.may_send_again(id) {
                        application.on_writable(core, id);
                    }
                }
                Event::Completed(completion) => application.on_completion(core, completion),
                Event::Rung => {}
            }
        }
        while let Some(message) = core.next_message() {
            application.on_message(core, message);
            worked = true;
        }
        worked |= core.read_hot(application);
        core.is_behind = false;
        if !core.fresh.is_empty() {
            core.is_behind = core.read_fresh(application);
            worked = true;
        }
        if core.timers.next_deadline_ns().is_some_and(|deadline_ns| deadline_ns <= core.now_ns) {
            core.is_behind |= core.ring_timers(application);
            worked = true;
        }
        core.resume_listeners();
        if !core.lingering.is_empty() {
            let now_ns = core.now_ns;
            core.lingering.retain_mut(|lingering| !lingering.is_over(now_ns));
        }
        worked | application.on_turn_end(core)
    }

    fn collect(&mut self, patience: Patience) -> io::Result<()> {
        self.core.engine.collect(patience, &mut self.events)
    }

    /// Sleeps until an event, a message or a deadline.
    fn sleep(&mut self) -> io::Result<()> {
        let core = &mut self.core;
        core.cool_all();
        core.mailbox.bell().announce_sleep();
        if let Some(message) = core.next_message() {
            core.mailbox.bell().announce_awake();
            core.own_messages.push_front(message);
            return Ok(());
        }
        let deadline_ns = core.next_deadline_ns();
        core.read_clock();
        let asleep_at_ns = core.now_ns;
        let patience = match deadline_ns {
            None => Patience::Forever,
            Some(deadline_ns) => match deadline_ns.saturating_sub(asleep_at_ns) {
                0 => Patience::None,
                wait_ns => Patience::For(wait_ns),
            },
        };
        self.collect(patience)?;
        let core = &mut self.core;
        core.mailbox.bell().announce_awake();
        core.read_clock();
        let slept_ns = core.now_ns - asleep_at_ns;
        core.counters.sleep_count.add(1);
        core.counters.asleep_ns.add(slept_ns);
        if core.busy_polling.engine == Asked::Accepted && patience != Patience::None {
            core.busy_polling.sleep_count += 1;
            core.busy_polling.sleep_hit_count +=
                u64::from(slept_ns < core.busy_polling.wanted.wait_ns() && !self.events.is_empty());
        }
        self.spin.on_woken(slept_ns);
        Ok(())
    }
}

impl<M: Send + 'static> Core<M> {
    fn read_clock(&mut self) {
        self.now_ns = self.now_ns.max(elapsed_ns(self.start));
    }

    fn next_message(&mut self) -> Option<M> {
        self.own_messages.pop_front().or_else(|| self.mailbox.next_message())
    }

    fn next_deadline_ns(&self) -> Option<u64> {
        let paused = self.paused_listeners.iter().map(|(until_ns, _)| *until_ns).min();
        let lingering = (!self.lingering.is_empty()).then(|| LingeringClose::next_look_ns(self.now_ns));
        [paused, lingering, self.timers.next_deadline_ns()].into_iter().flatten().min()
    }

    fn insert(&mut self, use_: Use) -> SocketId {
        let index = self.free_slots.pop().unwrap_or_else(|| {
            self.sockets.push(Slot { generation: 0, use_: Use::Free });
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

    fn socket(&mut self, id: SocketId) -> Option<(&Socket, &mut Heat, &mut bool)> {
        match &mut self.slot(id)?.use_ {
            Use::Socket { socket, heat, waits_to_send, .. } => Some((socket, heat, waits_to_send)),
            Use::Free | Use::Listener => None,
        }
    }

    fn on_readable<A: Application<Message = M>>(&mut self, application: &mut A, id: SocketId) {
        match self.slot(id).map(|slot| &slot.use_) {
            Some(Use::Listener) => self.accept(application, id),
            // A hot socket is read later in this turn anyway.
            Some(Use::Socket { heat: Heat::Cold, .. }) => {
                self.heat(id);
            }
            _ => {}
        }
    }

    /// From now on a socket is read without asking, the sooner if it is established.
    fn heat(&mut self, id: SocketId) {
        self.set_heat(id, Heat::Hot { dry_turn_count: 0, is_emptied: false });
        if self.is_established(id) { self.hot.push(id) } else { self.fresh.push_back(id) }
    }

    fn is_established(&mut self, id: SocketId) -> bool {
        matches!(self.slot(id).map(|slot| &slot.use_), Some(Use::Socket { is_established: true, .. }))
    }

    fn set_heat(&mut self, id: SocketId, new: Heat) {
        if let Some((_, heat, _)) = self.socket(id) {
            *heat = new;
        }
    }

    /// Reads every hot socket; those that stay dry go cold. Says whether any had something.
    fn read_hot<A: Application<Message = M>>(&mut self, application: &mut A) -> bool {
        let mut worked = false;
        let mut at = 0;
        while let Some(&id) = self.hot.get(at) {
            let found = self.is_hot(id) && application.on_readable(self, id);
            worked |= found;
            let is_crowded = self.hot.len() > HOT_SOCKET_COUNT_MAX;
            let looks_again = self.engine.looks_when_armed();
            // The call may have closed or paused it.
            let Some((_, Heat::Hot { dry_turn_count, is_emptied }, _)) = self.socket(id) else {
                self.hot.swap_remove(at);
                continue;
            };
            *dry_turn_count = if found { 0 } else { *dry_turn_count + 1 };
            let is_spent = *dry_turn_count > 0 || (*is_emptied && looks_again);
            if is_spent && (is_crowded || (worked && *dry_turn_count > DRY_TURN_COUNT_MAX)) {
                self.hot.swap_remove(at);
                self.cool(id);
                continue;
            }
            at += 1;
        }
        worked
    }

    /// Reads fresh sockets that have something, each once and for a short time. Says whether any are left.
    fn read_fresh<A: Application<Message = M>>(&mut self, application: &mut A) -> bool {
        let until_ns = elapsed_ns(self.start) + UNHURRIED_NS;
        for _ in 0..self.fresh.len() {
            let Some(id) = self.fresh.pop_front() else { break };
            let found = self.is_hot(id) && application.on_readable(self, id);
            let looks_again = self.engine.looks_when_armed();
            // The call may have closed, paused or established it.
            if let Some((_, Heat::Hot { is_emptied, .. }, _)) = self.socket(id) {
                let is_spent = !found || (*is_emptied && looks_again);
                if self.is_established(id) {
                    self.hot.push(id);
                } else if is_spent {
                    self.cool(id);
                } else {
                    self.fresh.push_back(id);
                }
            }
            if elapsed_ns(self.start) >= until_ns {
                break;
            }
        }
        !self.fresh.is_empty()
    }

    /// Rings timers that are due, for a short time. Says whether any are left.
    fn ring_timers<A: Application<Message = M>>(&mut self, application: &mut A) -> bool {
        let until_ns = elapsed_ns(self.start) + UNHURRIED_NS;
        while let Some(token) = self.timers.next_due(self.now_ns) {
            application.on_timer(self, token);
            if elapsed_ns(self.start) >= until_ns {
                return true;
            }
        }
        false
    }

    fn is_hot(&mut self, id: SocketId) -> bool {
        matches!(self.socket(id), Some((_, Heat::Hot { .. }, _)))
    }

    /// Hands a socket back to the engine's watch.
    fn cool(&mut self, id: SocketId) {
        self.set_heat(id, Heat::Cold);
        self.arm(id, Interest::Read);
    }

    fn cool_all(&mut self) {
        while let Some(id) = self.hot.pop().or_else(|| self.fresh.pop_front()) {
            if self.is_hot(id) {
                self.cool(id);
            }
        }
    }

    /// Takes a socket out of the engine's watch and ours.
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
            // Only a broken engine refuses; the next collect reports that.
            tracing::error!(%error, "cannot watch a socket");
        }
    }

    fn may_send_again(&mut self, id: SocketId) -> bool {
        self.socket(id).is_some_and(|(_, _, waits_to_send)| std::mem::take(waits_to_send))
    }

    fn accept<A: Application<Message = M>>(&mut self, application: &mut A, id: SocketId) {
        let Some(at) = self.listeners.iter().position(|(_, _, listener)| *listener == id) else { return };
        for _ in 0..ACCEPT_COUNT_MAX {
            if let Err(until_ns) = self.pace.check(self.now_ns) {
                return self.paused_listeners.push((until_ns, id));
            }
            let (tag, listener, _) = &self.listeners[at];
            let tag = *tag;
            match listener.accept() {
                Ok(Some(fd)) => {
                    self.pace.on_accepted(self.now_ns);
                    application.on_accept(self, tag, connection(fd));
                }
                Ok(None) => break,
                Err(error) => {
                    if self.now_ns >= self.accept_warning_ns {
                        tracing::warn!(%error, "cannot accept connections: the listener rests now and then");
                        self.accept_warning_ns = self.now_ns + ACCEPT_WARNING_NS;
                    }
                    self.paused_listeners.push((self.now_ns + ACCEPT_PAUSE_NS, id));
                    return;
                }
            }
        }
        self.arm_listener(at);
    }

    fn arm_listener(&mut self, at: usize) {
        let (_, listener, id) = &self.listeners[at];
        if let Err(error) = self.engine.arm_listener(id.key(), listener.as_fd()) {
            tracing::error!(%error, "cannot watch a listener");
        }
    }

    fn resume_listeners(&mut self) {
        while let Some(at) = self.paused_listeners.iter().position(|(until_ns, _)| *until_ns <= self.now_ns) {
            let (_, id) = self.paused_listeners.swap_remove(at);
            // The engine reports it as soon as it is armed, if a connection waits.
            if let Some(at) = self.listeners.iter().position(|(_, _, listener)| *listener == id) {
                self.arm_listener(at);
            }
        }
    }
}

impl<A: Application> Drop for Reactor<A> {
    /// Connections that the application still has are closed, and their notices awaited, before its memory is freed. An application that has panicked is
    /// not asked: its connections are reset, and caravans that no notice has come for leak themselves.
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.application.on_end(&mut self.core);
        }
        LingeringClose::end_all(std::mem::take(&mut self.core.lingering));
        let slots = self.core.sockets.drain(..);
        abort_all(slots.filter_map(|slot| match slot.use_ {
            Use::Socket { socket, is_zero_copy: true, .. } => Some(socket),
            _ => None,
        }));
    }
}

/// How fast connections are accepted: evenly, but for a burst after a pause.
struct Pace {
    interval_ns: u64,
    /// When the connections accepted so far would have been accepted, had they come evenly.
    due_ns: u64,
}

impl Pace {
    fn new(per_s: u32) -> Self {
        Self { interval_ns: 1_000_000_000 / u64::from(per_s.max(1)), due_ns: 0 }
    }

    /// Whether one more may be accepted, or when.
    fn check(&self, now_ns: u64) -> Result<(), u64> {
        let at_ns = self.due_ns.saturating_sub(self.interval_ns * u64::from(ACCEPT_BURST));
        if at_ns <= now_ns { Ok(()) } else { Err(at_ns) }
    }

    fn on_accepted(&mut self, now_ns: u64) {
        self.due_ns = self.due_ns.max(now_ns) + self.interval_ns;
    }
}

fn elapsed_ns(start: Instant) -> u64 {
    u64::try_from(start.elapsed().as_nanos()).expect("centuries from now")
}

fn connection(fd: OwnedFd) -> Connection {
    let peer = rustix::net::getpeername(&fd).ok().flatten().and_then(|address| address.try_into().ok());
    let local = rustix::net::getsockname(&fd).ok().and_then(|address| address.try_into().ok());
    Connection { peer, local, handle: ConnectionHandle::Os(fd) }
}

impl<M: Send + 'static> Io<M> for Core<M> {
    #[inline]
    fn now_ns(&self) -> u64 {
        self.now_ns
    }

    fn clock_ns(&self) -> u64 {
        elapsed_ns(self.start)
    }

    fn listen(&mut self, tag: ListenerTag, listener: Listener) -> io::Result<()> {
        let id = self.insert(Use::Listener);
        self.engine.arm_listener(id.key(), listener.as_fd())?;
        self.listeners.push((tag, listener, id));
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
            heat: Heat::Cold,
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
        let slot = self.sockets.get(socket.index());
        match slot.map(|slot| (slot.id(socket.index()), &slot.use_)) {
            Some((id, Use::Socket { socket: open, .. })) if id == socket => open.arrival(),
            _ => Arrival::default(),
        }
    }

    #[inline]
    fn receive(&mut self, socket: SocketId, into: &mut [IoSliceMut<'_>]) -> Received {
        let Some((socket, heat, _)) = self.socket(socket) else {
            return Received::Failed(io::ErrorKind::NotConnected.into());
        };
        let (received, room) = match into {
            [one] => (socket.receive(one), one.len()),
            several => (socket.receive_vectored(several), several.iter().map(|part| part.len()).sum()),
        };
        if let (Heat::Hot { is_emptied, .. }, Received::Bytes(count)) = (heat, &received) {
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
        self.set_heat(socket, Heat::Paused);
    }

    fn resume(&mut self, socket: SocketId) {
        if let Some((_, Heat::Paused, _)) = self.socket(socket) {
            self.heat(socket);
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
