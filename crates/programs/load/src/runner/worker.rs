//! One thread of a run: its lanes, their generators, its recorder.
//!
//! ```text
//! fill ──▶ Filled ── all have ──▶ start ──▶ turn: give out, wait, take back ──▶ every second a tally ──▶ Ended
//! ```

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use host::Error;

use super::queues::{DataRoom, Destination, Done, Queues};
use super::remote::lasting;
use super::{INTERVAL_NS, Results, Thread};
use crate::cpu::{self, CpuTime};
use crate::disturbance::{self, Loss};
use crate::generator::{Counters, Generator, Operation, Phase};
use crate::recorder::{Failure, Recorder, Tally};
use crate::stream::Step;
use crate::workload::{Kind, Pace, Plan};

/// Mismatches described in detail, per thread.
const MISMATCH_COUNT: usize = 8;

/// In an open loop the last of each gap is spun through: a sleep ends some 60 µs late.
const SLEEP_MARGIN_NS: u64 = 100_000;

/// The longest wait between two looks at the clock and the flags.
const WAIT_NS_MAX: u64 = 10_000_000;

/// No start yet.
pub(super) const NOT_STARTED: u64 = u64::MAX;

/// State shared by all threads of a run.
#[derive(Debug)]
pub(super) struct Shared {
    /// Time 0 of the run.
    pub(super) clock: Instant,
    /// When all lanes start.
    pub(super) start_ns: AtomicU64,
    /// No more operations are issued.
    pub(super) stops: AtomicBool,
    /// Operations in flight are no longer awaited.
    pub(super) is_abandoned: AtomicBool,
}

impl Shared {
    #[inline]
    pub(super) fn now_ns(&self) -> u64 {
        u64::try_from(self.clock.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }
}

/// Message of a worker thread to the main one.
#[derive(Debug)]
pub(super) enum Message {
    /// Blocks written since the last message.
    Filling(u64),
    /// Ready to start.
    Filled,
    /// An interval has ended, counted from 0 after the warm-up.
    Interval(usize, Box<Tally>),
    /// The load is over.
    Ended(Box<Results>),
    /// It cannot go on.
    Failed(Box<host::Error>),
}

/// One thread of a run, before it runs.
#[derive(Debug)]
pub(super) struct Worker<'a, D> {
    pub(super) destination: &'a D,
    pub(super) plan: &'a Plan,
    pub(super) shared: &'a Shared,
    pub(super) thread: Thread,
    /// Whether threads that operations are handed over to may share its core.
    pub(super) hand_over: bool,
    pub(super) messages: Sender<Message>,
}

impl<'a, D: Destination> Worker<'a, D> {
    /// Runs to the end.
    pub(super) fn run(self) {
        let messages = self.messages.clone();
        let ended = match self.open() {
            Ok(mut running) => running.run().map(|results| Message::Ended(Box::new(results))),
            Err(error) => Err(error),
        };
        // The receiver is gone if the run was given up.
        let _ = messages.send(ended.unwrap_or_else(|error| Message::Failed(Box::new(error))));
    }

    fn open(self) -> Result<Running<'a, D>, host::Error> {
        if let Some(core) = self.thread.core {
            linux::pin(core).map_err(|error| host::Error::System {
                doing: "tie a thread to its core",
                cause: error.into(),
            })?;
        }
        let mut queues = self.destination.open(&self.thread, self.plan)?;
        let depth = self.plan.workload().depth as usize;
        let capacity = self.plan.buffer_bytes();
        let loads = self.thread.loads.iter().map(|&number| {
            let buffers =
                (0..depth as u64).map(|slot| queues.buffer(capacity, u64::from(number) << 16 | slot));
            Ok(Load {
                generator: Generator::new(self.plan, number),
                operations: vec![NO_OPERATION; depth],
                free: (0..depth as u64).rev().collect(),
                buffers: buffers.collect::<Result<_, _>>()?,
            })
        });
        let loads = loads.collect::<Result<_, host::Error>>()?;
        let is_open = self.plan.workload().pace != Pace::Closed;
        let recorder = Recorder::new(is_open);
        Ok(Running {
            queues,
            loads,
            recorder,
            mismatches: Vec::new(),
            last_done_ns: 0,
            error: None,
            worker: self,
        })
    }
}

const NO_OPERATION: Operation =
    Operation { step: Step { kind: Kind::Read, slba: 0, blocks: 0 }, due_ns: 0, submitted_ns: 0 };

/// One load of the plan and its operations in flight.
struct Load<B> {
    generator: Generator,
    /// Operations in flight, by slot.
    operations: Vec<Operation>,
    /// Free slots; the one used last is used first.
    free: Vec<u64>,
    /// Free buffers; the warmest is used first.
    buffers: Vec<B>,
}

/// Identifies an operation: its load, and its slot there.
const LOAD_SHIFT: u32 = 32;

struct Running<'a, D: Destination> {
    worker: Worker<'a, D>,
    queues: D::Queues,
    loads: Vec<Load<<D::Queues as Queues>::Buffer>>,
    recorder: Recorder,
    mismatches: Vec<String>,
    last_done_ns: u64,
    /// The error that ended the run early.
    error: Option<Error>,
}

impl<D: Destination> Running<'_, D> {
    fn run(&mut self) -> Result<Results, host::Error> {
        self.fill()?;
        let _ = self.worker.messages.send(Message::Filled);
        let shared = self.worker.shared;
        let start_ns = loop {
            let start_ns = shared.start_ns.load(Ordering::Acquire);
            if start_ns != NOT_STARTED || shared.stops.load(Ordering::Relaxed) {
                break start_ns;
            }
            std::thread::sleep(Duration::from_micros(100));
        };
        if start_ns == NOT_STARTED {
            return Err(host::Error::Ended);
        }
        self.loads.iter_mut().for_each(|load| load.generator.start(start_ns));
        let (measured_from_ns, used, loss) = self.load()?;
        Ok(self.results(measured_from_ns, used, loss))
    }

    /// Writes every block once, if that is wanted.
    fn fill(&mut self) -> Result<(), host::Error> {
        let (mut done, mut told_ns) = (0, self.worker.shared.now_ns());
        while self.loads.iter().any(|load| matches!(load.generator.phase(), Phase::Filling { .. })) {
            if self.worker.shared.stops.load(Ordering::Relaxed) {
                return Err(host::Error::Ended);
            }
            let now_ns = self.worker.shared.now_ns();
            done += self.give_out(now_ns);
            self.take_back(WAIT_NS_MAX);
            if let Some(error) = self.error.take() {
                return Err(error);
            }
            if now_ns - told_ns > INTERVAL_NS / 5 {
                let _ = self.worker.messages.send(Message::Filling(std::mem::take(&mut done)));
                told_ns = now_ns;
            }
        }
        let _ = self.worker.messages.send(Message::Filling(done));
        Ok(())
    }

    /// The load itself. Gives the end of the warm-up, the processor time used since, and the time lost to others.
    fn load(&mut self) -> Result<(u64, CpuTime, Option<Loss>), host::Error> {
        let shared = self.worker.shared;
        let cpu_time = || {
            cpu::of_thread().map_err(|error| host::Error::System {
                doing: "read this thread's processor time",
                cause: error.into(),
            })
        };
        let is_open = self.worker.plan.workload().pace != Pace::Closed;
        let spins = self.queues.never_sleeps();
        let measured_from_ns =
            self.loads.first().and_then(|load| load.generator.measured_from_ns()).unwrap_or(0);
        let (mut used_before, mut watch) = (None, None);
        let own_pid = std::process::id();
        let (mut interval, mut interval_end_ns) = (0, measured_from_ns.saturating_add(INTERVAL_NS));
        while !self.loads.iter().all(|load| load.generator.is_over()) {
            if shared.is_abandoned.load(Ordering::Relaxed) {
                break;
            }
            let now_ns = shared.now_ns();
            if now_ns >= measured_from_ns && used_before.is_none() {
                used_before = Some(cpu_time()?);
                // Threads that commands are handed over to may share this core.
                watch = Some(match self.worker.hand_over {
                    true => disturbance::Watch::process(own_pid),
                    false => disturbance::Watch::thread(),
                });
            }
            while now_ns >= interval_end_ns {
                let mut tally = Box::<Tally>::default();
                self.recorder.roll(&mut tally);
                let _ = self.worker.messages.send(Message::Interval(interval, tally));
                (interval, interval_end_ns) = (interval + 1, interval_end_ns + INTERVAL_NS);
            }
            if shared.stops.load(Ordering::Relaxed) {
                self.loads.iter_mut().for_each(|load| load.generator.stop());
            }
            self.give_out(now_ns);
            let deadline_ns = self.loads.iter().filter_map(|load| load.generator.next_deadline_ns()).min();
            let until_ns = deadline_ns.map_or(WAIT_NS_MAX, |at_ns| at_ns.saturating_sub(now_ns));
            let wait_ns = if is_open { until_ns.saturating_sub(SLEEP_MARGIN_NS) } else { until_ns };
            let wait_ns = wait_ns.min(WAIT_NS_MAX);
            if spins && is_open {
                self.take_back(0);
            } else if self.queues.outstanding() == 0 && wait_ns > 0 {
                std::thread::sleep(Duration::from_nanos(wait_ns));
            } else {
                self.take_back(wait_ns);
            }
        }
        let used_after = cpu_time()?;
        let loss = watch.and_then(|watch| watch.loss());
        Ok((measured_from_ns, used_after - used_before.unwrap_or(used_after), loss))
    }

    /// Submits every operation that is due. Returns their blocks.
    #[inline]
    fn give_out(&mut self, now_ns: u64) -> u64 {
        let mut blocks = 0;
        for (index, load) in self.loads.iter_mut().enumerate() {
            while let Some(operation) = load.generator.next_operation(now_ns) {
                let step = operation.step;
                blocks += u64::from(step.blocks);
                let slot = load.free.pop().expect("a generator keeps to its depth");
                let kept = &mut load.operations[usize::try_from(slot).expect("a slot")];
                *kept = operation;
                let buffer = matches!(step.kind, Kind::Read | Kind::Write).then(|| {
                    let mut buffer = load.buffers.pop().expect("as many as slots");
                    buffer.resize(load.generator.length_bytes(kept));
                    if step.kind == Kind::Write {
                        load.generator.stamp(kept, 0, buffer.bytes_mut());
                    }
                    buffer
                });
                let user = (index as u64) << LOAD_SHIFT | slot;
                let Err(refusal) = self.queues.submit(index, step, buffer, user) else { continue };
                load.buffers.extend(refusal.buffer);
                self.error.get_or_insert(*refusal.error);
                load.free.push(slot);
                let kept = load.operations[usize::try_from(slot).expect("a slot")];
                load.generator.on_failure(&kept, Failure::Disconnected, &mut self.recorder);
                load.generator.stop();
                self.worker.shared.stops.store(true, Ordering::Relaxed);
            }
        }
        blocks
    }

    /// Waits for completions up to the timeout, and processes them.
    #[inline]
    fn take_back(&mut self, wait_ns: u64) {
        let Self { worker, queues, loads, recorder, mismatches, last_done_ns, error, .. } = self;
        // All completions of a batch have come by when the first is seen.
        let mut now_ns = 0;
        let mut each = |done: Done<<D::Queues as Queues>::Buffer>| {
            if now_ns == 0 {
                now_ns = worker.shared.now_ns();
            }
            let load = &mut loads[usize::try_from(done.user >> LOAD_SHIFT).expect("a load")];
            let slot = done.user & ((1 << LOAD_SHIFT) - 1);
            let operation = load.operations[usize::try_from(slot).expect("a slot")];
            match done.result {
                Ok(()) => {
                    if operation.step.kind == Kind::Read
                        && let Some(buffer) = &done.buffer
                        && let Err(mismatch) = load.generator.check(&operation, 0, buffer.bytes())
                        && mismatches.len() < MISMATCH_COUNT
                    {
                        mismatches.push(mismatch.to_string());
                    }
                    load.generator.on_done(&operation, now_ns, recorder);
                }
                Err(failure) => {
                    load.generator.on_failure(&operation, failure, recorder);
                    if let Some(failure) = lasting(failure) {
                        error.get_or_insert(Error::Failed { command: operation.step.kind.name(), failure });
                        load.generator.stop();
                        worker.shared.stops.store(true, Ordering::Relaxed);
                    }
                }
            }
            load.free.push(slot);
            if let Some(buffer) = done.buffer {
                load.buffers.push(buffer);
            }
        };
        let taken = queues.take(Duration::from_nanos(wait_ns), &mut each);
        *last_done_ns = now_ns.max(*last_done_ns);
        if let Err(error) = taken {
            // Operations in flight cannot be awaited any more.
            self.error.get_or_insert(error);
            self.worker.shared.stops.store(true, Ordering::Relaxed);
            self.worker.shared.is_abandoned.store(true, Ordering::Relaxed);
        }
    }

    fn results(&mut self, measured_from_ns: u64, used: CpuTime, loss: Option<Loss>) -> Results {
        let now_ns = self.worker.shared.now_ns();
        let runtime = self.worker.plan.workload().stop.runtime;
        let runtime_ns =
            runtime.map_or(u64::MAX, |runtime| u64::try_from(runtime.as_nanos()).unwrap_or(u64::MAX));
        let queues = self.queues.close(&self.worker.thread);
        let (mut generator, mut overdue, mut unanswered) = (Counters::default(), 0, 0);
        for load in &mut self.loads {
            generator.merge(load.generator.counters());
            overdue += load.generator.overdue(now_ns);
            unanswered += u64::from(load.generator.in_flight());
        }
        Results {
            queues,
            generator,
            overdue,
            unanswered,
            loss,
            core: self.worker.thread.core,
            tally: std::mem::replace(&mut self.recorder, Recorder::new(false)).into_total(),
            measured_from_ns,
            // A target that fell silent was under load until the load ended.
            last_done_ns: match unanswered {
                0 => self.last_done_ns.max(measured_from_ns),
                _ => now_ns.min(measured_from_ns.saturating_add(runtime_ns)).max(self.last_done_ns),
            },
            used,
            mismatches: std::mem::take(&mut self.mismatches),
            error: self.error.take(),
        }
    }
}
