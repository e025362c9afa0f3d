//! The loop of a reactor: take in events, run the application, then spin or sleep.
//!
//! ```text
//! collect ─▶ messages ─▶ polled sockets ─▶ unestablished ones ─▶ timers ─▶ on_turn_end ─▶ worked? ──yes──▶ next turn
//!    ▲                                                                                      │no
//!    └──────────── sleep until an event ◀── watch polled sockets ◀── spin budget spent? ──no┴──▶ next turn (spin)
//! ```
//!
//! Which sockets are polled and which are watched: see `reactor_io`.

use std::io;
use std::sync::Arc;
use std::time::Instant;

use crate::busy_poll::{Asked, BusyPoll, BusyPolling};
use crate::counter::Counter;
use crate::engine::Engine;
use crate::epoll::EpollEngine;
use crate::event::{EngineKind, Event, Patience};
use crate::io::{Application, SocketId};
use crate::mailbox::{Address, Mailbox};
use crate::reactor_io::ReactorIo;
use crate::ring::RingEngine;
use crate::spin::{Pause, SpinBudget, spin_ns_max};
use crate::wait::Wait;
use crate::wake::refuse_timer_slack;
use memory::Pool;

/// Configuration of a reactor.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The engine it waits and does storage I/O with.
    pub engine: EngineKind,
    /// Whether it falls back to epoll if io_uring is unavailable, for want of locked memory for example.
    pub falls_back: bool,
    /// Size of the buffer pool, bytes. It is mapped at start and touched as needed.
    pub pool_bytes: usize,
    /// The longest spin before a sleep, ns; 0 never spins, `u64::MAX` never sleeps.
    pub spin_ns_max: u64,
    /// Busy polling of the devices of its sockets.
    pub busy_poll: BusyPoll,
    /// Connections accepted per second; others wait in the kernel's queue.
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

/// Default of [`Settings::accepts_per_s`]. One takes 20 to 50 us: a flood of connections costs a tenth or two of a
/// core.
const ACCEPTS_PER_S: u32 = 4000;

/// Turns after which events are collected even if the engine has none to report.
const TURNS_PER_COLLECT: u32 = 16;

/// Counters of a reactor's turns, readable from any thread.
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
    /// Time spent spinning, ns.
    pub spun_ns: Counter,
}

/// One thread's loop around an application.
pub struct Reactor<A: Application> {
    application: A,
    pub(crate) io: ReactorIo<A::Message>,
    counters: Arc<TurnCounters>,
    /// Whether the last turn left work for the next one.
    is_behind: bool,
    events: Vec<Event>,
    /// For waits while storage operations run, and for others: a device answers in a time of its own.
    spin_for_storage: SpinBudget,
    spin: SpinBudget,
}

impl<A: Application> Reactor<A> {
    /// A reactor around the application that `make` builds, which may use its buffers. Call it on the thread that will
    /// run it.
    ///
    /// # Errors
    /// If the engine is unavailable or memory is short.
    pub fn new(
        settings: &Settings,
        mailbox: Mailbox<A::Message>,
        make: impl FnOnce(&Pool) -> A,
    ) -> io::Result<Self> {
        refuse_timer_slack();
        let pool = Pool::new(settings.pool_bytes)?;
        let mut engine = match settings.engine {
            EngineKind::Uring => match RingEngine::new(&pool) {
                Ok(engine) => Engine::Uring(Box::new(engine)),
                Err(error) if settings.falls_back => {
                    tracing::warn!(%error, "io_uring unavailable on this reactor; falling back to epoll");
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
        // If a wait cannot poll devices, the receives of a spin do.
        let spin_floor_ns = match busy_polling.engine {
            Asked::Refused(_) => wanted.wait_ns(),
            Asked::No | Asked::Accepted => 0,
        };
        let application = make(&pool);
        let io = ReactorIo::new(engine, pool, mailbox, settings.accepts_per_s, busy_polling);
        Ok(Self {
            application,
            io,
            counters: Arc::default(),
            is_behind: false,
            events: Vec::with_capacity(256),
            spin_for_storage: SpinBudget::new(settings.spin_ns_max).with_floor(spin_floor_ns),
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
        self.io.set_peers(index, addresses, start);
        self
    }

    /// Its engine.
    pub fn engine(&self) -> EngineKind {
        match self.io.engine {
            Engine::Uring(_) => EngineKind::Uring,
            Engine::Epoll(_) => EngineKind::Epoll,
        }
    }

    /// The application.
    pub fn application(&mut self) -> &mut A {
        &mut self.application
    }

    /// Its counters, which go on counting.
    #[must_use]
    pub fn counters(&self) -> Arc<TurnCounters> {
        Arc::clone(&self.counters)
    }

    /// Runs until the application stops it, then waits for the storage operations under way.
    ///
    /// # Errors
    /// If the engine fails.
    pub fn run(&mut self) -> io::Result<()> {
        // With it: whether storage operations ran when it began.
        let mut wait: Option<(Wait, bool)> = None;
        // Up to when the time of this wait is counted, spinning or asleep.
        let mut counted_ns = 0;
        let mut turns_since_collect = 0;
        self.io.read_clock();
        self.application.on_start(&mut self.io);
        while !self.io.stops {
            turns_since_collect += 1;
            if turns_since_collect >= TURNS_PER_COLLECT || self.is_behind || self.io.engine.has_work() {
                turns_since_collect = 0;
                self.collect(Patience::None)?;
            }
            let has_worked = self.turn();
            let now_ns = self.io.now_ns;
            if has_worked {
                self.counters.busy_turn_count.add(1);
                if let Some((wait, is_for_storage)) = wait.take() {
                    self.counters.spun_ns.add(now_ns.saturating_sub(counted_ns));
                    self.io.busy_polling.spin_hit_count += u64::from(!wait.has_slept());
                    wait.on_work(now_ns, self.spin_of(is_for_storage));
                }
                continue;
            }
            if wait.is_some() {
                self.counters.spun_ns.add(now_ns.saturating_sub(counted_ns));
            }
            counted_ns = now_ns;
            let (wait, is_for_storage) = wait.get_or_insert_with(|| {
                self.io.busy_polling.spin_count += 1;
                (Wait::new(now_ns), self.io.engine.has_operations())
            });
            let pause = self.spin_of(*is_for_storage).pause(wait.idle_ns(now_ns));
            match wait.on_pause(pause) {
                Pause::Spin => {
                    self.counters.spin_turn_count.add(1);
                    std::hint::spin_loop();
                }
                Pause::Sleep { ns } => {
                    self.sleep(ns)?;
                    counted_ns = self.io.now_ns;
                }
            }
        }
        Ok(())
    }

    /// The spin budget of waits while storage operations run, or of others.
    fn spin_of(&mut self, is_for_storage: bool) -> &mut SpinBudget {
        if is_for_storage { &mut self.spin_for_storage } else { &mut self.spin }
    }

    /// Handles the events collected, then everything that is polled. Returns whether there was work.
    fn turn(&mut self) -> bool {
        let (application, io) = (&mut self.application, &mut self.io);
        io.read_clock();
        let mut worked = !self.events.is_empty();
        for event in self.events.drain(..) {
            match event {
                Event::Readable(key) => io.on_readable(application, SocketId::from_key(key)),
                Event::Writable(key) => {
                    let id = SocketId::from_key(key);
                    if io.may_send_again(id) {
                        application.on_writable(io, id);
                    }
                }
                Event::Completed(completion) => application.on_completion(io, completion),
                Event::Rung => {}
            }
        }
        while let Some(message) = io.next_message() {
            application.on_message(io, message);
            worked = true;
        }
        worked |= io.read_polled(application);
        self.is_behind = false;
        if io.has_unestablished() {
            self.is_behind = io.read_unestablished(application);
            worked = true;
        }
        if io.has_expired_timer() {
            self.is_behind |= io.fire_timers(application);
            worked = true;
        }
        io.resume_listeners();
        io.watch_again();
        io.release_lingering();
        worked | application.on_turn_end(io)
    }

    fn collect(&mut self, patience: Patience) -> io::Result<()> {
        self.io.engine.collect(patience, &mut self.events)
    }

    /// Sleeps until an event, a message or a deadline, for `limit_ns` at most.
    fn sleep(&mut self, limit_ns: u64) -> io::Result<()> {
        let io = &mut self.io;
        io.watch_all();
        if !io.prepare_sleep() {
            return Ok(());
        }
        let deadline_ns = io.next_deadline_ns();
        io.read_clock();
        let asleep_at_ns = io.now_ns;
        let wait_ns = deadline_ns.map_or(u64::MAX, |at_ns| at_ns.saturating_sub(asleep_at_ns)).min(limit_ns);
        let patience = match wait_ns {
            0 => Patience::None,
            u64::MAX => Patience::Forever,
            wait_ns => Patience::For(wait_ns),
        };
        self.collect(patience)?;
        let io = &mut self.io;
        io.mailbox.bell().announce_awake();
        io.read_clock();
        let slept_ns = io.now_ns - asleep_at_ns;
        self.counters.sleep_count.add(1);
        self.counters.asleep_ns.add(slept_ns);
        if io.busy_polling.engine == Asked::Accepted && patience != Patience::None {
            io.busy_polling.sleep_count += 1;
            io.busy_polling.sleep_hit_count +=
                u64::from(slept_ns < io.busy_polling.wanted.wait_ns() && !self.events.is_empty());
        }
        Ok(())
    }
}

impl<A: Application> Drop for Reactor<A> {
    /// Closes the application's connections and awaits their zero-copy notices before its memory is freed. An
    /// application that has panicked is not called: its connections are reset, and caravans without their notices leak.
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.application.on_end(&mut self.io);
        }
        self.io.end();
    }
}
