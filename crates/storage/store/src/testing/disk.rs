//! A disk in memory, and a reactor without a thread: the test decides when operations run, in which order, and which
//! fail.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::rc::Rc;

use linux::Moment;
use memory::{Buffer, Pool};
use reactor::{Allocation, Completion, File, Operation, Timers};
use rustix::io::Errno;

use super::{Bench, Step, StepResult, begin, outcome_of};
use crate::block::FileStore;
use crate::namespace::{Backend, BlockStore, Geometry, Reply, StoreIo, Ticket};

/// The content of the disk.
pub(crate) struct Media {
    /// As it reads.
    pub(crate) bytes: Vec<u8>,
    /// As it would read after a power cut that loses all that may be lost.
    pub(crate) durable: Vec<u8>,
    /// Operations carried out so far, by name.
    pub(crate) log: Vec<&'static str>,
    /// Decides the outcome of an operation, by its number and kind.
    pub(crate) fault: Box<Plan>,
}

/// Decides the fault that an operation meets.
type Plan = dyn FnMut(usize, &Operation) -> Option<Fault>;

/// A fault of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// It fails, and nothing is done.
    Error(Errno),
    /// It stops after this number of bytes.
    Short(usize),
}

/// A reactor's disk: several reactors may share one.
pub(crate) type SharedMedia = Rc<RefCell<Media>>;

impl Media {
    pub(crate) fn new(bytes: usize) -> SharedMedia {
        Rc::new(RefCell::new(Self {
            bytes: vec![0; bytes],
            durable: vec![0; bytes],
            log: Vec::new(),
            fault: Box::new(|_, _| None),
        }))
    }

    fn perform(&mut self, operation: &mut Operation) -> io::Result<usize> {
        let fault = (self.fault)(self.log.len(), operation);
        self.log.push(match operation {
            Operation::Read { .. } => "read",
            Operation::Write { durable: false, .. } => "write",
            Operation::Write { durable: true, .. } => "write durably",
            Operation::Sync { .. } => "sync",
            Operation::Await { .. } => "await",
            Operation::FindData { .. } => "find data",
            Operation::Allocate { change: Allocation::Punch, .. } => "punch",
            Operation::Allocate { change: Allocation::Zero, .. } => "zero",
        });
        let limit = match fault {
            Some(Fault::Error(errno)) => return Err(errno.into()),
            Some(Fault::Short(count)) => count,
            None => usize::MAX,
        };
        if let Operation::Read { offset, .. } | Operation::Write { offset, .. } = operation {
            assert!(offset.is_multiple_of(512), "direct I/O begins at whole blocks only");
        }
        match operation {
            Operation::Read { offset, buffer, skip, .. } => {
                let from = &self.bytes[self.bytes.len().min(*offset as usize)..];
                let into = &mut buffer[*skip..];
                let count = into.len().min(from.len()).min(limit);
                into[..count].copy_from_slice(&from[..count]);
                Ok(count)
            }
            Operation::Write { offset, buffer, skip, durable, .. } => {
                let from = &buffer[*skip..];
                let start = *offset as usize;
                assert!(start + from.len() <= self.bytes.len(), "a write past the end extends the file");
                let count = from.len().min(limit);
                self.bytes[start..start + count].copy_from_slice(&from[..count]);
                if *durable {
                    self.durable[start..start + count].copy_from_slice(&from[..count]);
                }
                Ok(count)
            }
            // The writes that it covers were settled when it began.
            Operation::Sync { .. } | Operation::Await { .. } => Ok(0),
            // In blocks of 512 bytes that are not zero.
            Operation::FindData { map, .. } => {
                for (at, block) in (0..).zip(self.bytes.chunks(512)) {
                    if block.iter().any(|byte| *byte != 0) && !map.add(at * 512..(at + 1) * 512) {
                        break;
                    }
                }
                Ok(0)
            }
            Operation::Allocate { offset, length, .. } => {
                let start = *offset as usize;
                self.bytes[start..start + *length as usize].fill(0);
                Ok(0)
            }
        }
    }
}

/// A backend on such a disk, and the reactor around it.
pub(crate) struct Double {
    pub(crate) backend: Box<dyn Backend>,
    pub(crate) io: DiskIo,
    steps: BTreeMap<Ticket, Step>,
    pub(crate) outcomes: BTreeMap<Ticket, StepResult>,
    next_ticket: u64,
}

/// The [`StoreIo`] of a [`Double`].
pub(crate) struct DiskIo {
    pub(crate) now_ns: u64,
    /// For how long the turn has run, ns.
    pub(crate) turn_ns: u64,
    pub(crate) pool: Pool,
    /// Kept aside, and lent.
    pub(crate) reserve: Option<Buffer>,
    has_lent: bool,
    pub(crate) running: Vec<(Ticket, Operation)>,
    pub(crate) timers: Timers,
    place: SharedMedia,
    replies: Vec<(Ticket, Reply)>,
}

impl StoreIo for DiskIo {
    fn now_ns(&self) -> u64 {
        self.now_ns
    }

    fn clock_ns(&self) -> u64 {
        self.now_ns + self.turn_ns
    }

    fn moment(&self) -> Moment {
        let since_boot_s = (self.now_ns / 1_000_000_000).cast_signed();
        Moment { boot: 1, since_boot_s, unix_s: 1_000_000 + since_boot_s }
    }

    fn pool(&self) -> &Pool {
        &self.pool
    }

    fn take_critical(&mut self, length: usize) -> Option<Buffer> {
        if let Some(buffer) = self.pool.take(length) {
            return Some(buffer);
        }
        let mut buffer = self.reserve.take()?;
        self.has_lent = true;
        buffer.set_len(length);
        Some(buffer)
    }

    fn give_back(&mut self, buffer: Option<Buffer>) {
        if std::mem::take(&mut self.has_lent) {
            self.reserve = buffer;
        }
    }

    fn start(&mut self, ticket: Ticket, operation: Operation) {
        assert!(
            self.running.iter().all(|(other, _)| *other != ticket),
            "one operation of a ticket at a time"
        );
        if matches!(operation, Operation::Sync { .. }) {
            // The worst that the system may do: nothing that comes later is covered.
            let media = &mut *self.place.borrow_mut();
            media.durable.clone_from(&media.bytes);
        }
        self.running.push((ticket, operation));
    }

    fn set_timer(&mut self, deadline_ns: u64, ticket: Ticket) {
        self.timers.set(deadline_ns, ticket.0);
    }

    fn reply(&mut self, ticket: Ticket, reply: Reply) {
        self.replies.push((ticket, reply));
    }
}

impl Double {
    /// One more reactor for a namespace.
    pub(crate) fn attach(store: &dyn BlockStore, place: &SharedMedia) -> Self {
        let io = DiskIo {
            now_ns: 0,
            turn_ns: 0,
            pool: Pool::new(16 << 20).unwrap(),
            reserve: None,
            has_lent: false,
            running: Vec::new(),
            timers: Timers::default(),
            place: Rc::clone(place),
            replies: Vec::new(),
        };
        let (steps, outcomes) = (BTreeMap::new(), BTreeMap::new());
        Self { backend: store.attach().unwrap(), io, steps, outcomes, next_ticket: 0 }
    }

    /// A namespace on a disk of its own.
    pub(crate) fn file(bytes: usize, block_bytes: u32) -> (FileStore, SharedMedia, Self) {
        let place = Media::new(bytes);
        let store = FileStore::simulated(File::simulated(0), &geometry(bytes, block_bytes));
        let double = Self::attach(&store, &place);
        (store, place, double)
    }

    pub(crate) fn start(&mut self, step: Step) -> Ticket {
        let ticket = Ticket(self.next_ticket);
        self.next_ticket += 1;
        self.steps.insert(ticket, step.clone());
        if let Some(outcome) = begin(&mut *self.backend, &mut self.io, ticket, step) {
            self.steps.remove(&ticket);
            self.outcomes.insert(ticket, outcome);
        }
        self.take_replies();
        ticket
    }

    /// Carries out the `index`-th operation that waits.
    pub(crate) fn perform(&mut self, index: usize) {
        let (ticket, mut operation) = self.io.running.remove(index);
        let result = self.io.place.borrow_mut().perform(&mut operation);
        let buffer = match operation {
            Operation::Read { buffer, .. } | Operation::Write { buffer, .. } => Some(buffer),
            _ => None,
        };
        let completion = Completion { token: ticket.0, result, buffer };
        self.backend.on_completion(&mut self.io, ticket, completion);
        self.take_replies();
    }

    /// Lets `ns` pass.
    pub(crate) fn pass(&mut self, ns: u64) {
        self.io.now_ns += ns;
        while let Some(token) = self.io.timers.next_due(self.io.now_ns) {
            self.backend.on_timer(&mut self.io, Ticket(token));
            self.take_replies();
        }
    }

    /// Goes on until nothing is left to do.
    pub(crate) fn settle(&mut self) {
        loop {
            if !self.io.running.is_empty() {
                self.perform(0);
            } else if let Some(deadline_ns) = self.io.timers.next_deadline_ns() {
                self.pass(deadline_ns.saturating_sub(self.io.now_ns));
            } else {
                break;
            }
        }
        assert!(self.steps.is_empty(), "without a reply: {:?}", self.steps);
        assert_eq!(self.io.pool.free_bytes(), self.io.pool.capacity_bytes(), "buffers are lost");
    }

    fn take_replies(&mut self) {
        for (ticket, reply) in self.io.replies.drain(..) {
            let step = self.steps.remove(&ticket).expect("a request gets one reply");
            self.outcomes.insert(ticket, outcome_of(&step, reply));
        }
    }
}

impl Bench for Double {
    fn run_all(&mut self, steps: Vec<Step>) -> Vec<StepResult> {
        let tickets: Vec<Ticket> = steps.into_iter().map(|step| self.start(step)).collect();
        self.settle();
        tickets.iter().map(|ticket| self.outcomes.remove(ticket).expect("settled")).collect()
    }
}

fn geometry(bytes: usize, block_bytes: u32) -> Geometry {
    Geometry::new(block_bytes, bytes as u64 / u64::from(block_bytes))
}
