//! A backend on a real reactor, in a thread of its own.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;

use linux::Moment;
use memory::Pool;
use reactor::{
    Address, Application, Completion, Connection, EngineKind, Io, ListenerTag, Mailbox, Operation, Reactor,
    Settings, SocketId, Token,
};

use super::{Bench, Step, StepResult, begin, outcome_of};
use crate::namespace::{Backend, BlockStore, Reply, StoreIo, Ticket};

/// A reactor that serves one namespace.
pub(crate) struct Rig {
    address: Address<Message>,
    thread: Option<JoinHandle<()>>,
}

enum Message {
    Run(Vec<Step>, Sender<Report>),
    Stop,
}

/// The number of a step, and its outcome.
type Report = (usize, StepResult);

struct Server {
    backend: Box<dyn Backend>,
    desk: Desk,
}

/// The running requests.
#[derive(Default)]
struct Desk {
    next_ticket: u64,
    steps: HashMap<Ticket, (Step, usize, Sender<Report>)>,
    /// Operations that found no room.
    waiting: VecDeque<(Ticket, Operation)>,
}

/// The reactor as the backend sees it.
struct Bridge<'a, I> {
    io: &'a mut I,
    desk: &'a mut Desk,
}

impl<I: Io<Message>> StoreIo for Bridge<'_, I> {
    fn now_ns(&self) -> u64 {
        self.io.now_ns()
    }

    fn moment(&self) -> Moment {
        self.io.moment()
    }

    fn pool(&self) -> &Pool {
        self.io.pool()
    }

    fn start(&mut self, ticket: Ticket, operation: Operation) {
        if let Err(operation) = self.io.start(ticket.0, operation) {
            self.desk.waiting.push_back((ticket, operation));
        }
    }

    fn set_timer(&mut self, deadline_ns: u64, ticket: Ticket) {
        self.io.set_timer(deadline_ns, ticket.0);
    }

    fn reply(&mut self, ticket: Ticket, reply: Reply) {
        let (step, index, sender) = self.desk.steps.remove(&ticket).expect("a request gets one reply");
        sender.send((index, outcome_of(&step, reply))).unwrap();
    }
}

impl Application for Server {
    type Message = Message;

    fn on_start(&mut self, _: &mut impl Io<Message>) {}

    fn on_accept(&mut self, _: &mut impl Io<Message>, _: ListenerTag, _: Connection) {}

    fn on_readable(&mut self, _: &mut impl Io<Message>, _: SocketId) -> bool {
        false
    }

    fn on_writable(&mut self, _: &mut impl Io<Message>, _: SocketId) {}

    fn on_completion(&mut self, io: &mut impl Io<Message>, completion: Completion) {
        let ticket = Ticket(completion.token);
        let mut bridge = Bridge { io, desk: &mut self.desk };
        self.backend.on_completion(&mut bridge, ticket, completion);
        while let Some((ticket, operation)) = self.desk.waiting.pop_front() {
            if let Err(operation) = io.start(ticket.0, operation) {
                self.desk.waiting.push_front((ticket, operation));
                break;
            }
        }
    }

    fn on_timer(&mut self, io: &mut impl Io<Message>, token: Token) {
        self.backend.on_timer(&mut Bridge { io, desk: &mut self.desk }, Ticket(token));
    }

    fn on_message(&mut self, io: &mut impl Io<Message>, message: Message) {
        let (steps, sender) = match message {
            Message::Run(steps, sender) => (steps, sender),
            Message::Stop => return io.stop(),
        };
        for (index, step) in steps.into_iter().enumerate() {
            let ticket = Ticket(self.desk.next_ticket);
            self.desk.next_ticket += 1;
            self.desk.steps.insert(ticket, (step.clone(), index, sender.clone()));
            let mut bridge = Bridge { io, desk: &mut self.desk };
            if let Some(outcome) = begin(&mut *self.backend, &mut bridge, ticket, step) {
                self.desk.steps.remove(&ticket);
                sender.send((index, outcome)).unwrap();
            }
        }
    }

    fn on_turn_end(&mut self, _: &mut impl Io<Message>) -> bool {
        false
    }
}

impl Rig {
    /// Starts a reactor and attaches it; `None` if this machine does not have the engine.
    pub(crate) fn attach(store: &Arc<dyn BlockStore>, engine: EngineKind) -> Option<Self> {
        let mailbox = Mailbox::new().unwrap();
        let address = mailbox.address();
        let store = Arc::clone(store);
        let (to_caller, from_thread) = channel();
        let thread = std::thread::spawn(move || {
            let settings = Settings { engine, pool_bytes: 64 << 20, spin_ns_max: 0, ..Settings::default() };
            let made = Reactor::new(&settings, mailbox, |_| Server {
                backend: store.attach().unwrap(),
                desk: Desk::default(),
            });
            match made {
                Ok(mut reactor) => {
                    to_caller.send(true).unwrap();
                    reactor.run().unwrap();
                }
                Err(error) => {
                    eprintln!("skipped: no {engine:?} here: {error}");
                    to_caller.send(false).unwrap();
                }
            }
        });
        let is_there = from_thread.recv().expect("the reactor's thread reports");
        is_there.then_some(Self { address, thread: Some(thread) })
    }
}

impl Bench for Rig {
    fn run_all(&mut self, steps: Vec<Step>) -> Vec<StepResult> {
        let count = steps.len();
        let (to_us, from_reactor) = channel();
        assert!(self.address.post(Message::Run(steps, to_us)));
        let mut outcomes: Vec<Option<StepResult>> = vec![None; count];
        for (index, outcome) in from_reactor {
            outcomes[index] = Some(outcome);
        }
        outcomes.into_iter().map(|outcome| outcome.expect("the reactor has ended early")).collect()
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        self.address.post(Message::Stop);
        if let Some(thread) = self.thread.take() {
            let ended = thread.join();
            if !std::thread::panicking() {
                ended.unwrap();
            }
        }
    }
}
