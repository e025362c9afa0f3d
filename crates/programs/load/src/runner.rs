//! A load on a namespace of a target or on local storage, from the first connection to the report: one thread for each
//! core, its queues its own.
//!
//! ```text
//! run (remote: lanes of an association) ──┐
//!                                         ├─▶ drive ──▶ a worker per thread ──▶ queues (the seam)
//! run_local (local: a ring per thread) ───┘
//! ```

mod buffer;
mod local;
mod queues;
mod remote;
mod worker;

pub use local::{LocalStorage, run_local};

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use host::{Association, LaneClass, Namespace, Phases, QueueMap};
use wire::identify::namespace::DeallocatedValue;

use crate::account::{Account, Reading};
use crate::cpu::{self, CpuTime, MachineTime};
use crate::disturbance::{Disturbance, Loss, Side};
use crate::environment::Environment;
use crate::generator::Counters;
use crate::kernel_threads::KernelThreads;
use crate::recorder::Tally;
use crate::report::{CounterResult, CpuShare, PhaseResult, Report, Sample, SteadyResult};
use crate::steady::{SlopeLimit, Steady};
use crate::workload::{Deallocated, Geometry, Invalid, Plan, Workload};
use queues::{Closed, Destination, RingUse};
use remote::Remote;
use worker::{Message, NOT_STARTED, Shared, Worker};

/// One entry of the series, ns.
const INTERVAL_NS: u64 = 1_000_000_000;

/// From the last lane being ready to the start: every thread must have seen it.
const START_DELAY_NS: u64 = 2_000_000;

/// Samples that a steady state is judged by.
const STEADY_WINDOW: usize = 10;

/// Operations in flight at the end have this long to finish, unless the settings say otherwise.
const DRAIN: Duration = Duration::from_secs(10);

/// The same after a run was stopped: the user is waiting.
const DRAIN_STOPPED: Duration = Duration::from_secs(2);

/// Duration of the check for disturbances.
const JITTER: Duration = Duration::from_millis(20);

/// Settings of a run.
#[derive(Clone, Debug)]
pub struct RunSettings {
    /// A thread on each of these cores. Without any there is one thread, tied to none.
    pub cores: Vec<usize>,
    /// Lanes by class. `None` for one lane per lane of the workload. With classes, a lane of the workload only bounds
    /// the operations in flight, which go to the lanes of their class that their thread has.
    pub queues: Option<QueueMap>,
    /// Percent of the operations that are polled for: they go to poll lanes.
    pub polled_percent: u8,
    /// Whether threads of their own drive the lanes to the target: those that make the load hand over to them by
    /// mailbox.
    pub hand_over: bool,
    /// Ends the load as soon as the IOPS are so steady.
    pub steady: Option<SlopeLimit>,
    /// The account of the target's process, if it can be read: its processor time is reported.
    pub target: Option<Arc<dyn Account>>,
    /// Whether the kernel's threads do a part of the work of either side, as they do for its NVMe host and target: the
    /// wait of a thread for them does not count as lost then.
    pub beside_kernel_threads: bool,
    /// Operations in flight at the end have this long to finish; then the run ends without them. No more than two
    /// seconds if the run was told to stop.
    pub drain: Duration,
}

impl Default for RunSettings {
    fn default() -> Self {
        Self {
            cores: Vec::new(),
            queues: None,
            polled_percent: 0,
            hand_over: false,
            steady: None,
            target: None,
            beside_kernel_threads: false,
            drain: DRAIN,
        }
    }
}

/// Observer of a run's progress.
pub trait Observer {
    /// Bytes filled so far, of the total.
    fn on_fill(&mut self, done_bytes: u64, total_bytes: u64) {
        let _ = (done_bytes, total_bytes);
    }

    /// An interval has ended.
    fn on_sample(&mut self, sample: &Sample) {
        let _ = sample;
    }

    /// Whether the load is to end now. Asked several times a second.
    fn stops(&mut self) -> bool {
        false
    }
}

/// Ignores progress.
impl Observer for () {}

/// Why there is no report.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The load cannot be put on this namespace.
    #[error(transparent)]
    Workload(#[from] Invalid),
    /// The target could not be reached, or did not last until the load began.
    #[error(transparent)]
    Host(#[from] host::Error),
    /// Nothing happened for too long before the load began.
    #[error("the target did not answer for {waited_s} s while the load was prepared")]
    Silent {
        /// How long, s.
        waited_s: u64,
    },
    /// The local storage cannot be used.
    #[error(transparent)]
    Storage(#[from] store::OpenError),
    /// It was stopped before the load began.
    #[error("stopped before the load began")]
    Stopped,
}

/// A report, and what ended the load early.
#[derive(Debug)]
pub struct Finished {
    /// The report of the measured part.
    pub report: Report,
    /// All results, for comparisons.
    pub tally: Tally,
    /// The association ended before the load did, or the ring failed.
    pub error: Option<host::Error>,
    /// Operations that were in flight when the time for them was over.
    pub unanswered: u64,
    /// The time that they had after the end of the load.
    pub drain: Duration,
}

/// Results of one thread.
#[derive(Debug)]
struct Results {
    queues: Closed,
    /// Of its generators, together.
    generator: Counters,
    overdue: u64,
    /// In flight when the time for that was over.
    unanswered: u64,
    /// Time that the thread lost to others while it was measured.
    loss: Option<Loss>,
    /// Its core.
    core: Option<usize>,
    tally: Tally,
    measured_from_ns: u64,
    last_done_ns: u64,
    /// Processor time of the thread, from the end of the warm-up.
    used: CpuTime,
    mismatches: Vec<String>,
    error: Option<host::Error>,
}

/// The properties of a namespace that a plan needs.
#[must_use]
pub fn geometry(namespace: &Namespace) -> Geometry {
    Geometry {
        lba_bytes: namespace.lba_bytes(),
        block_count: namespace.block_count(),
        transfer_limit_bytes: Some(namespace.transfer_blocks_max().saturating_mul(namespace.lba_bytes())),
        deallocated: match namespace.info().deallocated_value {
            DeallocatedValue::ZEROES => Deallocated::Zeroes,
            DeallocatedValue::ONES => Deallocated::Ones,
            _ => Deallocated::NotReported,
        },
    }
}

/// Puts `workload` on `namespace`, with a lane of `association` for each of its lanes or with lanes by class, and
/// reports.
///
/// # Errors
/// [`RunError`], before the load has begun. Later failures are in the report.
///
/// # Panics
/// If a thread of the run panics.
pub fn run(
    association: &Association,
    namespace: &Namespace,
    workload: &Workload,
    settings: &RunSettings,
    observer: &mut dyn Observer,
) -> Result<Finished, RunError> {
    let plan = workload.plan(&geometry(namespace), crate::verify::new_run_id())?;
    let remote = Remote { association, namespace, settings };
    remote.check_commands(&plan)?;
    let environment = Environment::collect(
        association.address().resolve().ok().and_then(|addresses| Some(addresses.first()?.ip())),
        JITTER,
    );
    let (mut finished, _) = drive(&remote, &plan, environment, settings, observer)?;
    finished.report.target = association.address().to_string();
    if let Some(queues) = settings.queues {
        finished.report.workload.queues = Some(queues.to_string());
        finished.report.workload.polled_percent = Some(settings.polled_percent);
    }
    Ok(finished)
}

/// Carries out a plan, whatever its destination. Gives the use of rings too, if there were any.
fn drive<D: Destination>(
    destination: &D,
    plan: &Plan,
    environment: Environment,
    settings: &RunSettings,
    observer: &mut dyn Observer,
) -> Result<(Finished, Option<RingUse>), RunError> {
    let shared = Shared {
        clock: Instant::now(),
        start_ns: AtomicU64::new(NOT_STARTED),
        stops: AtomicBool::new(false),
        is_abandoned: AtomicBool::new(false),
    };
    let threads = threads(settings, plan.workload().lanes);
    let thread_count = threads.len();
    let (messages, inbox) = channel();
    std::thread::scope(|scope| {
        for thread in threads {
            let worker = Worker {
                destination,
                plan,
                shared: &shared,
                thread,
                hand_over: settings.hand_over,
                messages: messages.clone(),
            };
            let builder = std::thread::Builder::new().name("nvlane-load".into());
            let spawned = builder.spawn_scoped(scope, move || worker.run());
            spawned
                .map_err(|error| host::Error::System { doing: "start a thread", cause: error.into() })
                .inspect_err(|_| shared.stops.store(true, Ordering::Relaxed))?;
        }
        drop(messages);
        let mut watch = Watch {
            destination,
            plan,
            shared: &shared,
            settings,
            observer,
            abandon_ns: None,
            kernel_before: None,
            inbox: &inbox,
            thread_count,
            series: Vec::new(),
            steady: settings.steady.map(|limit| (limit, Steady::new(STEADY_WINDOW, limit.percent), false)),
        };
        let started = watch.fill();
        if started.is_err() {
            shared.stops.store(true, Ordering::Relaxed);
        }
        started?;
        let (results, usage) = watch.load()?;
        let drain = watch.drain();
        let (series, steady) = (watch.series, watch.steady);
        let steady = steady.map(|(limit, steady, attained)| SteadyResult {
            attained,
            slope_percent: steady.slope_percent(),
            limit_percent: limit.percent,
        });
        let (mut finished, rings) = report(plan, environment, results, &usage);
        finished.drain = drain;
        finished.report.series = series;
        finished.report.steady = steady;
        Ok((finished, rings))
    })
}

/// The lanes of one thread.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Thread {
    core: Option<usize>,
    /// Lanes of the workload, by number.
    loads: Vec<u32>,
    /// Lanes to the target, by class.
    lanes: Vec<LaneClass>,
}

/// Assigns lanes to threads: those of the workload go round, those to the target too, each class from the first core
/// on.
fn threads(settings: &RunSettings, load_count: u32) -> Vec<Thread> {
    let cores: Vec<_> = match &settings.cores[..] {
        [] => vec![None],
        cores => cores.iter().copied().map(Some).collect(),
    };
    let count = cores.len();
    let of = |thread: usize, core| {
        let loads: Vec<_> = (0..load_count).skip(thread).step_by(count).collect();
        let lanes = match settings.queues {
            None => vec![LaneClass::Default; loads.len()],
            Some(queues) => {
                let numbers = (1..=queues.count()).filter(|&number| queues.place(number, count) == thread);
                numbers.map(|number| queues.class_of(number)).collect()
            }
        };
        Thread { core, loads, lanes }
    };
    let threads = cores.into_iter().enumerate().map(|(thread, core)| of(thread, core));
    threads.filter(|thread| !thread.loads.is_empty()).collect()
}

/// Processor time besides the threads'.
#[derive(Debug, Default)]
struct Usage {
    target: Option<CpuTime>,
    /// Of all our threads, where some are not those that make the load.
    own: Option<CpuTime>,
    machine: Option<(MachineTime, MachineTime)>,
    /// Time that the target's threads lost to others.
    target_loss: Option<Loss>,
    /// Of the target's machine, if that is another one, ns.
    target_machine_ns: Option<u64>,
    /// The kernel's threads before and after, where they do a part of the work.
    kernel: Option<(KernelThreads, KernelThreads)>,
}

impl Usage {
    /// The loss of a core's thread, without its wait for the kernel's threads where they do a part of the work.
    fn without_kernel(&self, loss: Loss, core: Option<usize>) -> Loss {
        let Some((before, after)) = &self.kernel else { return loss };
        loss.explained(after.ran_since(before, core, loss.elapsed_ns))
    }

    /// The loss of the target's threads between two readings; on this machine without their wait for the kernel's
    /// threads.
    fn target_loss(&self, before: &Reading, after: &Reading) -> Option<Loss> {
        let loss = after.loss_since(before)?;
        if self.target_machine_ns.is_some() {
            return Some(loss);
        }
        let cores = after.threads.as_ref()?.cores();
        let each = cores.into_iter().map(|core| self.without_kernel(loss, Some(core)));
        Some(each.min_by_key(|loss| loss.wait_ns).unwrap_or(loss))
    }
}

/// The thread that started a run, waiting for those that carry it out.
struct Watch<'a, D> {
    destination: &'a D,
    plan: &'a Plan,
    shared: &'a Shared,
    settings: &'a RunSettings,
    observer: &'a mut dyn Observer,
    inbox: &'a Receiver<Message>,
    thread_count: usize,
    series: Vec<Sample>,
    steady: Option<(SlopeLimit, Steady, bool)>,
    /// When threads that have not ended are given up, once that is known.
    abandon_ns: Option<u64>,
    /// The kernel's threads before the load began, where they do a part of the work.
    kernel_before: Option<KernelThreads>,
}

impl<D: Destination> Watch<'_, D> {
    /// Takes the next message; none at intervals, so that the caller can check the time and the flags.
    fn next(&mut self) -> Option<Message> {
        if self.observer.stops() {
            self.shared.stops.store(true, Ordering::Relaxed);
        }
        self.abandon_if_late();
        match self.inbox.recv_timeout(Duration::from_millis(50)) {
            Ok(message) => Some(message),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => panic!("a thread of the run has panicked"),
        }
    }

    /// How long operations in flight at the end may take.
    fn drain(&self) -> Duration {
        let is_stopped = self.shared.stops.load(Ordering::Relaxed);
        if is_stopped { self.settings.drain.min(DRAIN_STOPPED) } else { self.settings.drain }
    }

    /// Ends the threads without their operations in flight, once the time for those is over: a target that answers
    /// nothing must not keep the run from its end. Closing the association wakes those that wait for a connection.
    fn abandon_if_late(&mut self) {
        if self.shared.is_abandoned.load(Ordering::Relaxed) {
            return;
        }
        let ns = |duration: Duration| u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        let now_ns = self.shared.now_ns();
        let drain_ns = ns(self.drain());
        if self.shared.stops.load(Ordering::Relaxed) {
            let stopped_ns = now_ns.saturating_add(drain_ns);
            self.abandon_ns = Some(self.abandon_ns.map_or(stopped_ns, |at_ns| at_ns.min(stopped_ns)));
        } else if let (Some(runtime), start_ns) =
            (self.plan.workload().stop.runtime, self.shared.start_ns.load(Ordering::Acquire))
            && start_ns != NOT_STARTED
        {
            let load_ns = ns(self.plan.workload().warm_up).saturating_add(ns(runtime));
            self.abandon_ns = Some(start_ns.saturating_add(load_ns).saturating_add(drain_ns));
        }
        if self.abandon_ns.is_some_and(|at_ns| at_ns <= now_ns) {
            self.abandon();
        }
    }

    fn abandon(&self) {
        self.shared.stops.store(true, Ordering::Relaxed);
        self.shared.is_abandoned.store(true, Ordering::Relaxed);
        self.destination.abandon();
    }

    /// Waits until all threads are ready, and starts them.
    fn fill(&mut self) -> Result<(), RunError> {
        let lba_bytes = u64::from(self.plan.geometry().lba_bytes);
        let total_bytes = self.plan.range().blocks * lba_bytes;
        let (mut ready, mut done) = (0, 0);
        // Lanes connect and the fill begins within this time, and the fill continues after it.
        let silence = self.settings.drain.saturating_add(self.destination.open_timeout());
        let mut heard = Instant::now();
        while ready < self.thread_count {
            if heard.elapsed() >= silence && !self.shared.is_abandoned.load(Ordering::Relaxed) {
                self.abandon();
                return Err(RunError::Silent { waited_s: silence.as_secs() });
            }
            match self.next() {
                Some(Message::Filled) => {
                    ready += 1;
                    heard = Instant::now();
                }
                Some(Message::Filling(blocks)) => {
                    done += blocks;
                    if blocks > 0 {
                        heard = Instant::now();
                    }
                    if self.plan.workload().fill {
                        self.observer.on_fill(done * lba_bytes, total_bytes);
                    }
                }
                Some(Message::Failed(_)) if self.shared.stops.load(Ordering::Relaxed) => {
                    return Err(RunError::Stopped);
                }
                Some(Message::Failed(error)) => return Err((*error).into()),
                Some(Message::Interval(..) | Message::Ended(_)) | None => {}
            }
        }
        self.kernel_before = self.kernel_threads();
        self.shared.start_ns.store(self.shared.now_ns() + START_DELAY_NS, Ordering::Release);
        Ok(())
    }

    /// Waits until all threads have ended.
    fn load(&mut self) -> Result<(Vec<Results>, Usage), RunError> {
        let warm_up_ns = u64::try_from(self.plan.workload().warm_up.as_nanos()).unwrap_or(u64::MAX);
        let start_ns = self.shared.start_ns.load(Ordering::Acquire);
        let measured_from_ns = start_ns.saturating_add(warm_up_ns);
        let mut intervals: BTreeMap<usize, (usize, Tally)> = BTreeMap::new();
        let mut results = Vec::new();
        let mut before = None;
        while results.len() < self.thread_count {
            if before.is_none() && self.shared.now_ns() >= measured_from_ns {
                before = Some((self.target_reading(), self.own_time(), cpu::of_machine().ok()));
            }
            match self.next() {
                Some(Message::Interval(index, tally)) => {
                    let (count, sum) = intervals.entry(index).or_default();
                    *count += 1;
                    sum.merge(&tally);
                    // Threads that have ended send none, but then the last interval is not a whole one.
                    if *count == self.thread_count {
                        let (_, tally) = intervals.remove(&index).unwrap_or_default();
                        self.on_interval(index, &tally);
                    }
                }
                Some(Message::Ended(result)) => results.push(*result),
                Some(Message::Failed(error)) => {
                    self.shared.stops.store(true, Ordering::Relaxed);
                    return Err((*error).into());
                }
                Some(Message::Filling(_) | Message::Filled) | None => {}
            }
        }
        let mut usage = Usage::default();
        let Some((target, own, machine)) = before else { return Ok((results, usage)) };
        usage.own = own.zip(self.own_time()).map(|(before, after)| after - before);
        usage.machine = machine.zip(cpu::of_machine().ok());
        let target = target.zip(self.target_reading());
        usage.kernel = self.kernel_before.take().zip(self.kernel_threads());
        if let Some((before, after)) = target {
            usage.target = after.time.zip(before.time).map(|(after, before)| after - before);
            let busy_ns = after.machine_busy_ns.zip(before.machine_busy_ns);
            usage.target_machine_ns = busy_ns.map(|(after, before)| after.saturating_sub(before));
            usage.target_loss = usage.target_loss(&before, &after);
        }
        Ok((results, usage))
    }

    fn own_time(&self) -> Option<CpuTime> {
        let is_wanted = self.settings.hand_over;
        is_wanted.then(|| cpu::of_pid(std::process::id()).ok()).flatten()
    }

    fn kernel_threads(&self) -> Option<KernelThreads> {
        self.settings.beside_kernel_threads.then(KernelThreads::now)
    }

    fn target_reading(&self) -> Option<Reading> {
        self.settings.target.as_ref()?.read()
    }

    fn on_interval(&mut self, index: usize, tally: &Tally) {
        let sample = Sample::new(tally, (index as u64 + 1) * INTERVAL_NS, INTERVAL_NS);
        self.observer.on_sample(&sample);
        if let Some((_, steady, attained)) = &mut self.steady
            && steady.on_sample(sample.iops)
        {
            *attained = true;
            self.shared.stops.store(true, Ordering::Relaxed);
        }
        self.series.push(sample);
    }
}

/// Combines the results of all threads.
fn report(
    plan: &Plan,
    environment: Environment,
    results: Vec<Results>,
    usage: &Usage,
) -> (Finished, Option<RingUse>) {
    let (mut tally, mut counters, mut overdue) = (Tally::default(), Counters::default(), 0);
    let (mut lanes, mut mismatches, mut error) = (Vec::new(), Vec::new(), None);
    let mut phases = None::<Phases>;
    let mut rings = None::<RingUse>;
    let (mut unanswered, mut loss) = (0, None::<Loss>);
    let (mut from_ns, mut until_ns, mut used) = (u64::MAX, 0, CpuTime::default());
    for result in results {
        tally.merge(&result.tally);
        from_ns = from_ns.min(result.measured_from_ns);
        until_ns = until_ns.max(result.last_done_ns);
        used = used + result.used;
        mismatches.extend(result.mismatches);
        error = error.or(result.error);
        counters.merge(&result.generator);
        overdue += result.overdue;
        unanswered += result.unanswered;
        let lost = result.loss.map(|loss| usage.without_kernel(loss, result.core));
        loss = match (loss, lost) {
            (Some(loss), Some(other)) => Some(loss.worse(other)),
            (loss, other) => loss.or(other),
        };
        lanes.extend(result.queues.lanes);
        if let Some(of_thread) = result.queues.phases {
            phases.get_or_insert_default().merge(&of_thread);
        }
        rings = match (rings, result.queues.ring) {
            (Some(rings), Some(ring)) => Some(rings.with(ring)),
            (rings, ring) => rings.or(ring),
        };
    }
    lanes.sort_by_key(|lane| lane.lane);
    let elapsed_ns = until_ns.saturating_sub(from_ns);
    let mut report = Report::new(plan, environment, &tally, elapsed_ns);
    let operations = report.total.operations;
    report.cpu.generator = Some(CpuShare::new(usage.own.unwrap_or(used), elapsed_ns, operations));
    report.cpu.target = usage.target.map(|used| CpuShare::new(used, elapsed_ns, operations));
    if let Some((before, after)) = &usage.machine {
        let (soft_interrupt, steal) = after.percent_since(before);
        let busy_ns = after.busy_ns_since(before) + usage.target_machine_ns.unwrap_or(0) as f64;
        report.cpu.machine_ns_per_operation = Some(busy_ns / operations.max(1) as f64);
        report.cpu.soft_interrupt_percent = Some(soft_interrupt);
        report.cpu.steal_percent = Some(steal);
    }
    report.counters = CounterResult::new(&counters, overdue);
    report.counters.unanswered = unanswered;
    let mut disturbance = Disturbance::default();
    disturbance.add(Side::Host, loss);
    disturbance.add(Side::Target, usage.target_loss);
    report.disturbance = disturbance;
    report.lanes = lanes;
    if let Some(phases) = phases {
        report.phases = phases.named().map(|(name, times)| PhaseResult::new(name, times)).to_vec();
    }
    report.mismatches = mismatches;
    (Finished { report, tally, error, unanswered, drain: Duration::ZERO }, rings)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lanes_go_round_the_cores() {
        let loads_of = |cores: &[usize], count| {
            let settings = RunSettings { cores: cores.to_vec(), ..RunSettings::default() };
            let threads = threads(&settings, count);
            assert!(threads.iter().all(|thread| thread.lanes.len() == thread.loads.len()));
            threads.into_iter().map(|thread| (thread.core, thread.loads)).collect::<Vec<_>>()
        };
        assert_eq!(loads_of(&[], 3), [(None, vec![0, 1, 2])]);
        assert_eq!(loads_of(&[4, 2], 3), [(Some(4), vec![0, 2]), (Some(2), vec![1])]);
        assert_eq!(loads_of(&[0, 1], 1), [(Some(0), vec![0])], "a core without a lane has no thread");
    }

    #[test]
    fn each_class_of_lanes_begins_with_the_first_core() {
        use LaneClass::{Default, Poll, Read};
        let queues = Some(QueueMap { default: 2, read: 3, poll: 1 });
        let settings = RunSettings { cores: vec![4, 2], queues, ..RunSettings::default() };
        let lanes: Vec<_> = threads(&settings, 2).into_iter().map(|thread| thread.lanes).collect();
        assert_eq!(lanes, [vec![Default, Read, Read, Poll], vec![Default, Read]]);
    }
}
