//! A model of what a reactor's turn works with: an engine, one socket that is always open, timers and an application.

/// Busy polling, which the model leaves off.
pub(crate) mod busy_poll {
    use std::io;

    #[derive(Clone, Copy, Debug)]
    pub(crate) struct BusyPoll;

    impl BusyPoll {
        pub(crate) const OFF: Self = Self;

        pub(crate) fn is_on(self) -> bool {
            false
        }

        pub(crate) fn wait_ns(self) -> u64 {
            0
        }
    }

    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    #[expect(dead_code, reason = "the kernel's other replies")]
    pub(crate) enum Asked {
        No,
        Accepted,
        Refused(i32),
    }

    impl Asked {
        pub(crate) fn of(_reply: io::Result<()>) -> Self {
            Self::No
        }
    }

    #[derive(Debug)]
    pub(crate) struct BusyPolling {
        pub(crate) wanted: BusyPoll,
        pub(crate) engine: Asked,
        pub(crate) spin_count: u64,
        pub(crate) spin_hit_count: u64,
        pub(crate) sleep_count: u64,
        pub(crate) sleep_hit_count: u64,
    }

    impl Default for BusyPolling {
        fn default() -> Self {
            let (engine, counts) = (Asked::No, [0; 4]);
            let [spin_count, spin_hit_count, sleep_count, sleep_hit_count] = counts;
            Self { wanted: BusyPoll, engine, spin_count, spin_hit_count, sleep_count, sleep_hit_count }
        }
    }
}

/// Counters without a value: the model reads none.
pub(crate) mod counter {
    #[derive(Debug, Default)]
    pub(crate) struct Counter;

    impl Counter {
        pub(crate) fn add(&self, _count: u64) {}
    }
}

/// An engine that watches the bell always, and the socket once each time it is armed.
pub(crate) mod engine {
    use std::io;

    use crate::event::{Event, Patience};
    use crate::mailbox::Bell;
    use crate::sync::Arc;

    pub(crate) enum Engine {
        Uring(Box<crate::ring::RingEngine>),
        Epoll(Box<crate::epoll::EpollEngine>),
    }

    impl Engine {
        fn watch(&mut self) -> &mut Watch {
            match self {
                Self::Uring(engine) => &mut engine.0,
                Self::Epoll(engine) => &mut engine.0,
            }
        }

        pub(crate) fn set_bell(&mut self, bell: Arc<Bell>) -> io::Result<()> {
            self.watch().bell = Some(bell);
            Ok(())
        }

        pub(crate) fn set_busy_poll(&mut self, _wanted: crate::busy_poll::BusyPoll) -> io::Result<()> {
            Ok(())
        }

        /// Events wait in the kernel until they are collected.
        pub(crate) fn has_work(&self) -> bool {
            false
        }

        pub(crate) fn has_operations(&self) -> bool {
            false
        }

        pub(crate) fn arm_socket(&mut self) {
            self.watch().is_armed = true;
        }

        pub(crate) fn slept_ns(&mut self) -> u64 {
            self.watch().slept_ns
        }

        pub(crate) fn receive(&mut self) -> bool {
            self.watch().bell().fd.receive()
        }

        /// A sleep with a deadline reaches it: nothing else has to end it. No time passes but in such sleeps.
        pub(crate) fn collect(&mut self, patience: Patience, events: &mut Vec<Event>) -> io::Result<()> {
            let watch = self.watch();
            let bell = watch.bell();
            match patience {
                Patience::None => {}
                Patience::For(ns) => watch.slept_ns += ns,
                Patience::Forever => bell.fd.wait(watch.is_armed),
            }
            let ready = bell.fd.ready();
            if ready.is_rung {
                bell.reset();
                events.push(Event::Rung);
            }
            if ready.is_readable && std::mem::take(&mut watch.is_armed) {
                events.push(Event::Readable(0));
            }
            Ok(())
        }
    }

    #[derive(Default)]
    pub(crate) struct Watch {
        bell: Option<Arc<Bell>>,
        is_armed: bool,
        slept_ns: u64,
    }

    impl Watch {
        fn bell(&self) -> Arc<Bell> {
            Arc::clone(self.bell.as_ref().expect("the reactor sets it"))
        }
    }
}

/// The engine of kernels with io_uring.
pub(crate) mod ring {
    use std::io;

    use memory::Pool;

    #[derive(Default)]
    pub(crate) struct RingEngine(pub(crate) crate::engine::Watch);

    impl RingEngine {
        pub(crate) fn new(_pool: &Pool) -> io::Result<Self> {
            Ok(Self::default())
        }
    }
}

/// The engine of others.
pub(crate) mod epoll {
    use std::io;

    #[derive(Default)]
    pub(crate) struct EpollEngine(pub(crate) crate::engine::Watch);

    impl EpollEngine {
        pub(crate) fn new() -> io::Result<Self> {
            Ok(Self::default())
        }
    }
}

/// No storage operations.
pub(crate) mod operation {
    #[derive(Debug)]
    pub(crate) struct Completion;
}

/// No spinning: each idle turn sleeps.
pub(crate) mod spin {
    pub(crate) fn spin_ns_max() -> u64 {
        0
    }

    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    #[allow(dead_code, reason = "nothing spins here")]
    pub(crate) enum Pause {
        Spin,
        Sleep { ns: u64 },
    }

    pub(crate) struct SpinBudget;

    impl SpinBudget {
        pub(crate) fn new(_limit_ns: u64) -> Self {
            Self
        }

        pub(crate) fn with_floor(self, _floor_ns: u64) -> Self {
            self
        }

        pub(crate) fn pause(&self, _idle_ns: u64) -> Pause {
            Pause::Sleep { ns: u64::MAX }
        }

        pub(crate) fn on_work(&mut self, _waited_ns: u64, _was_asleep: bool) {}
    }
}

/// No timers of the kernel.
pub(crate) mod wake {
    pub(crate) fn refuse_timer_slack() {}
}

/// The application: it counts what reaches it, and stops the reactor when it has had everything.
pub(crate) mod io {
    use crate::operation::Completion;
    use crate::reactor_io::ReactorIo;

    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) struct SocketId;

    impl SocketId {
        pub(crate) fn from_key(_key: u64) -> Self {
            Self
        }
    }

    pub(crate) trait Application {
        type Message: Send + 'static;

        fn on_start(&mut self, io: &mut ReactorIo<Self::Message>);
        fn on_readable(&mut self, io: &mut ReactorIo<Self::Message>) -> bool;
        fn on_writable(&mut self, io: &mut ReactorIo<Self::Message>, socket: SocketId);
        fn on_completion(&mut self, io: &mut ReactorIo<Self::Message>, completion: Completion);
        fn on_timer(&mut self, io: &mut ReactorIo<Self::Message>);
        fn on_message(&mut self, io: &mut ReactorIo<Self::Message>, message: Self::Message);
        fn on_turn_end(&mut self, io: &mut ReactorIo<Self::Message>) -> bool;
        fn on_end(&mut self, io: &mut ReactorIo<Self::Message>);
    }

    /// An application that stops after this many messages, inputs and timers. If it waits for a timer, a message sets
    /// it.
    #[derive(Clone, Copy, Debug, Default)]
    pub(crate) struct StopsAfter {
        pub(crate) message_count: u32,
        pub(crate) input_count: u32,
        pub(crate) timer_count: u32,
    }

    impl Application for StopsAfter {
        type Message = u32;

        fn on_start(&mut self, _io: &mut ReactorIo<u32>) {}

        fn on_readable(&mut self, io: &mut ReactorIo<u32>) -> bool {
            let has_input = io.engine.receive();
            self.input_count -= u32::from(has_input);
            has_input
        }

        fn on_writable(&mut self, _io: &mut ReactorIo<u32>, _socket: SocketId) {}

        fn on_completion(&mut self, _io: &mut ReactorIo<u32>, _completion: Completion) {}

        fn on_timer(&mut self, _io: &mut ReactorIo<u32>) {
            self.timer_count -= 1;
        }

        fn on_message(&mut self, io: &mut ReactorIo<u32>, _message: u32) {
            self.message_count -= 1;
            if self.timer_count > 0 {
                io.deadline_ns = Some(io.now_ns + 1);
            }
        }

        fn on_turn_end(&mut self, io: &mut ReactorIo<u32>) -> bool {
            io.stops = self.message_count + self.input_count + self.timer_count == 0;
            false
        }

        fn on_end(&mut self, _io: &mut ReactorIo<u32>) {}
    }
}

/// A reactor's I/O: a socket that is polled in each turn until the reactor sleeps, and a timer.
pub(crate) mod reactor_io {
    use std::collections::VecDeque;
    use std::time::Instant;

    use crate::busy_poll::BusyPolling;
    use crate::engine::Engine;
    use crate::io::{Application, SocketId};
    use crate::mailbox::{Address, Mailbox};
    use memory::Pool;

    /// How the reactor learns that the socket is readable.
    enum Attention {
        Watched,
        Polled,
    }

    pub(crate) struct ReactorIo<M> {
        pub(crate) engine: Engine,
        pub(crate) mailbox: Mailbox<M>,
        pub(crate) busy_polling: BusyPolling,
        pub(crate) now_ns: u64,
        pub(crate) stops: bool,
        pub(crate) deadline_ns: Option<u64>,
        own_messages: VecDeque<M>,
        attention: Attention,
    }

    impl<M: Send + 'static> ReactorIo<M> {
        pub(crate) fn new(
            engine: Engine,
            _pool: Pool,
            mailbox: Mailbox<M>,
            _accepts_per_s: u32,
            busy_polling: BusyPolling,
        ) -> Self {
            Self {
                engine,
                mailbox,
                busy_polling,
                now_ns: 0,
                stops: false,
                deadline_ns: None,
                own_messages: VecDeque::new(),
                attention: Attention::Polled,
            }
        }

        pub(crate) fn set_peers(&mut self, _index: usize, _addresses: Vec<Address<M>>, _start: Instant) {}

        pub(crate) fn read_clock(&mut self) {
            self.now_ns = self.engine.slept_ns();
        }

        pub(crate) fn next_message(&mut self) -> Option<M> {
            self.own_messages.pop_front().or_else(|| self.mailbox.next_message())
        }

        pub(crate) fn on_readable<A: Application<Message = M>>(
            &mut self,
            _application: &mut A,
            _socket: SocketId,
        ) {
            self.attention = Attention::Polled;
        }

        pub(crate) fn may_send_again(&mut self, _socket: SocketId) -> bool {
            false
        }

        pub(crate) fn read_polled<A: Application<Message = M>>(&mut self, application: &mut A) -> bool {
            matches!(self.attention, Attention::Polled) && application.on_readable(self)
        }

        pub(crate) fn has_unestablished(&self) -> bool {
            false
        }

        pub(crate) fn read_unestablished<A: Application<Message = M>>(
            &mut self,
            _application: &mut A,
        ) -> bool {
            false
        }

        pub(crate) fn has_expired_timer(&self) -> bool {
            self.deadline_ns.is_some_and(|deadline_ns| deadline_ns <= self.now_ns)
        }

        pub(crate) fn fire_timers<A: Application<Message = M>>(&mut self, application: &mut A) -> bool {
            self.deadline_ns = None;
            application.on_timer(self);
            false
        }

        pub(crate) fn resume_listeners(&mut self) {}

        pub(crate) fn watch_again(&mut self) {}

        pub(crate) fn release_lingering(&mut self) {}

        pub(crate) fn watch_all(&mut self) {
            self.attention = Attention::Watched;
            self.engine.arm_socket();
        }

        pub(crate) fn prepare_sleep(&mut self) -> bool {
            if self.own_messages.is_empty()
                && let Some(message) = self.mailbox.prepare_sleep()
            {
                self.own_messages.push_front(message);
            }
            self.own_messages.is_empty()
        }

        pub(crate) fn next_deadline_ns(&self) -> Option<u64> {
            self.deadline_ns
        }

        pub(crate) fn end(&mut self) {}
    }
}
