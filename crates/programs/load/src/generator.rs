//! The load of one lane as a sans-io machine: it yields operations and takes their results.
//!
//! A driver is a loop around it. It submits while there is something to submit, and hands completions back; here
//! the namespace is a vector and completes at once:
//!
//! ```
//! use std::time::Duration;
//!
//! use nvlane_load::generator::Generator;
//! use nvlane_load::recorder::Recorder;
//! use nvlane_load::verify::new_run_id;
//! use nvlane_load::workload::{Deallocated, Geometry, Kind, Pattern, Stop, Workload};
//!
//! let geometry = Geometry {
//!     lba_bytes: 512,
//!     block_count: 1024,
//!     transfer_limit_bytes: None,
//!     deallocated: Deallocated::Zeroes,
//! };
//! let workload = Workload {
//!     pattern: Pattern::named("randrw", Some(70))?,
//!     stop: Stop { operations: Some(1000), ..Stop::default() },
//!     warm_up: Duration::ZERO,
//!     verify: true,
//!     ..Workload::default()
//! };
//! let plan = workload.plan(&geometry, new_run_id())?;
//!
//! let mut namespace = vec![0; 1024 * 512];
//! let mut buffer = vec![0; plan.buffer_bytes()];
//! let mut generator = Generator::new(&plan, 0);
//! let mut recorder = Recorder::new(false);
//! let mut now_ns = 0;
//! generator.start(now_ns);
//! while !generator.is_over() {
//!     while let Some(operation) = generator.next_operation(now_ns) {
//!         let data = &mut buffer[..generator.length_bytes(&operation)];
//!         let place = &mut namespace[operation.step.slba as usize * 512..][..data.len()];
//!         match operation.step.kind {
//!             Kind::Read => data.copy_from_slice(place),
//!             Kind::Write => {
//!                 generator.stamp(&operation, 0, data);
//!                 place.copy_from_slice(data);
//!             }
//!             Kind::Trim | Kind::WriteZeroes => place.fill(0),
//!         }
//!         now_ns += 1000;
//!         if operation.step.kind == Kind::Read {
//!             generator.check(&operation, 0, data)?;
//!         }
//!         generator.on_done(&operation, now_ns, &mut recorder);
//!     }
//! }
//! assert_eq!(recorder.into_total().all().operations(), 1000);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use crate::arrival::Schedule;
use crate::ledger::{Ledger, WriteOutcome};
use crate::recorder::{Failure, Recorder};
use crate::stream::{Region, Step, Stream};
use crate::verify::{Marker, Mismatch};
use crate::workload::{Budget, Kind, Pace, Plan};

/// One operation in flight. The driver keeps it and gives it back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operation {
    /// The operation itself.
    pub step: Step,
    /// When it was due; in a closed loop, when it was given out.
    pub due_ns: u64,
    /// When it was given out.
    pub submitted_ns: u64,
}

/// Phase of a lane's load.
///
/// ```text
/// Filling ──last block written──▶ Ready ──start──▶ Running ──end, budget or stop──▶ Over
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Every block is written once; from `next` on they are still to be given out.
    Filling {
        /// Next LBA to write.
        next: u64,
    },
    /// Nothing to do before [`Generator::start`].
    Ready,
    /// Under load.
    Running {
        /// No operation is given out from here on.
        end_ns: u64,
    },
    /// Nothing more is given out.
    Over,
}

/// Number of depth classes: 1, 2, 4, 8, 16, 32, 64 and more.
pub const DEPTH_LEVELS: usize = 7;

/// Counters of a lane besides its results.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Operations given out.
    pub operations: u64,
    /// Operations that waited for an earlier one on the same blocks (only when verifying).
    pub held_back: u64,
    /// Blocks read and checked.
    pub blocks_checked: u64,
    /// Of these, wrong ones.
    pub mismatch_count: u64,
    /// Measured operations by the number in flight when they were given out: 1, 2 to 3, 4 to 7 and so on.
    pub depth_levels: [u64; DEPTH_LEVELS],
}

impl Counters {
    /// Adds those of another lane.
    pub fn merge(&mut self, other: &Self) {
        self.operations += other.operations;
        self.held_back += other.held_back;
        self.blocks_checked += other.blocks_checked;
        self.mismatch_count += other.mismatch_count;
        for (mine, theirs) in self.depth_levels.iter_mut().zip(other.depth_levels) {
            *mine += theirs;
        }
    }
}

/// The load of one lane.
///
/// Outside inputs are `on_done` and `on_failure`, wishes `start`, `stop` and `end_at`, the output is
/// `next_operation`. Nothing is allocated per operation.
#[derive(Clone, Debug)]
pub struct Generator {
    phase: Phase,
    /// End of the warm-up; never, before the start.
    measured_from_ns: u64,
    stream: Stream,
    schedule: Schedule,
    /// An operation that waits for its blocks, and when it was due.
    held: Option<(Step, u64)>,
    in_flight: u32,
    depth: u32,
    budget: Budget,
    lba_bytes: u32,
    marker: Marker,
    /// Present when verifying.
    ledger: Option<Ledger>,
    counters: Counters,
    fill: Region,
    fill_blocks: u32,
    lane: Lane,
}

/// The part of the plan that `start` needs.
#[derive(Clone, Copy, Debug)]
struct Lane {
    lane: u32,
    lanes: u32,
    pace: Pace,
    seed: u64,
    warm_up_ns: u64,
    runtime_ns: u64,
}

impl Generator {
    /// The load of lane `lane`, counted from 0. It begins with the fill if the workload has one, else ready.
    pub fn new(plan: &Plan, lane: u32) -> Self {
        let workload = plan.workload();
        let geometry = plan.geometry();
        let fill = plan.fill_region(lane);
        let ns = |duration: std::time::Duration| u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        Self {
            phase: if workload.fill { Phase::Filling { next: fill.first } } else { Phase::Ready },
            measured_from_ns: u64::MAX,
            stream: plan.stream(lane),
            schedule: Schedule::closed(),
            held: None,
            in_flight: 0,
            depth: workload.depth,
            budget: plan.budget(lane),
            lba_bytes: geometry.lba_bytes,
            marker: Marker::new(plan.run_id()),
            ledger: workload.verifies().then(|| Ledger::new(plan.region(lane), geometry.deallocated)),
            counters: Counters::default(),
            fill,
            fill_blocks: plan.command_blocks_max(),
            lane: Lane {
                lane,
                lanes: workload.lanes,
                pace: workload.pace,
                seed: workload.seed,
                warm_up_ns: ns(workload.warm_up),
                runtime_ns: workload.stop.runtime.map_or(u64::MAX, ns),
            },
        }
    }

    /// Starts warm-up and load. All lanes of a run start at the same `now_ns`.
    ///
    /// # Panics
    /// In a debug build, if the lane is not ready.
    pub fn start(&mut self, now_ns: u64) {
        debug_assert_eq!(self.phase, Phase::Ready, "a lane starts once, when it is filled");
        let Lane { lane, lanes, pace, seed, warm_up_ns, runtime_ns } = self.lane;
        self.schedule = Schedule::of_lane(pace, lane, lanes, now_ns, seed);
        self.measured_from_ns = now_ns.saturating_add(warm_up_ns);
        self.phase = Phase::Running { end_ns: self.measured_from_ns.saturating_add(runtime_ns) };
    }

    /// Gives nothing more out.
    pub fn stop(&mut self) {
        self.phase = Phase::Over;
    }

    /// Moves the end of the running load, such as to extend it until it is steady.
    pub fn end_at(&mut self, end_ns: u64) {
        if let Phase::Running { .. } = self.phase {
            self.phase = Phase::Running { end_ns };
        }
    }

    /// The next operation to submit at `now_ns`, if there is one. To be called until `None`, after completions and
    /// at [`Generator::next_deadline_ns`].
    #[inline(always)] // An operation stays in registers: read back from memory it waits for its own stores.
    pub fn next_operation(&mut self, now_ns: u64) -> Option<Operation> {
        if self.in_flight >= self.depth {
            return None;
        }
        let Phase::Running { end_ns } = self.phase else {
            return self.next_fill().map(|step| Operation { step, due_ns: now_ns, submitted_ns: now_ns });
        };
        if now_ns >= end_ns || self.budget.operations == 0 || self.budget.bytes == 0 {
            self.phase = Phase::Over;
            return None;
        }
        let held = self.held.take();
        let is_new = held.is_none();
        let (step, due_ns) = if let Some(held) = held {
            held
        } else {
            let due_ns = self.schedule.take(now_ns)?;
            (self.stream.step(), due_ns)
        };
        if let Some(ledger) = &mut self.ledger
            && !ledger.begin(&step)
        {
            self.counters.held_back += u64::from(is_new);
            self.held = Some((step, due_ns));
            return None;
        }
        self.in_flight += 1;
        self.counters.operations += 1;
        let operation = Operation { step, due_ns, submitted_ns: now_ns };
        if self.is_measured(&operation) {
            self.budget.operations -= 1;
            self.budget.bytes = self.budget.bytes.saturating_sub(self.bytes(&step));
            self.counters.depth_levels[(self.in_flight.ilog2() as usize).min(DEPTH_LEVELS - 1)] += 1;
        }
        Some(operation)
    }

    /// The next write of the fill.
    #[cold]
    fn next_fill(&mut self) -> Option<Step> {
        let Phase::Filling { next } = self.phase else { return None };
        let left = self.fill.end() - next;
        if left == 0 {
            return None;
        }
        let blocks = u32::try_from(left).map_or(self.fill_blocks, |left| left.min(self.fill_blocks));
        let step = Step { kind: Kind::Write, slba: next, blocks };
        // Only the fill is in flight and it passes each block once, so nothing is in its way.
        let admitted = self.ledger.as_mut().is_none_or(|ledger| ledger.begin(&step));
        debug_assert!(admitted, "the fill meets no other operation");
        self.phase = Phase::Filling { next: next + u64::from(blocks) };
        self.in_flight += 1;
        self.counters.operations += 1;
        Some(step)
    }

    /// Bytes that an operation reads, writes, zeroes or deallocates.
    #[inline]
    fn bytes(&self, step: &Step) -> u64 {
        u64::from(step.blocks) * u64::from(self.lba_bytes)
    }

    /// Puts the content of a write into `data`, which holds its blocks from `first_block` on, in whole blocks.
    /// Leaves `data` as it is unless the load is verified.
    #[inline]
    pub fn stamp(&self, operation: &Operation, first_block: u32, data: &mut [u8]) {
        let Some(ledger) = &self.ledger else { return };
        let lbas = operation.step.slba + u64::from(first_block)..;
        for (lba, block) in lbas.zip(data.chunks_exact_mut(self.lba_bytes as usize)) {
            self.marker.stamp(block, lba, ledger.generation(lba));
        }
    }

    /// Checks the data of a successful read: `data` holds its blocks from `first_block` on, in whole blocks. To be
    /// called before the operation is handed back. Does nothing unless the load is verified.
    ///
    /// # Errors
    /// The first wrong block; all are counted.
    #[inline]
    pub fn check(
        &mut self,
        operation: &Operation,
        first_block: u32,
        data: &[u8],
    ) -> Result<(), Box<Mismatch>> {
        let Some(ledger) = &mut self.ledger else { return Ok(()) };
        let mut result = Ok(());
        let lbas = operation.step.slba + u64::from(first_block)..;
        for (lba, block) in lbas.zip(data.chunks_exact(self.lba_bytes as usize)) {
            self.counters.blocks_checked += 1;
            match self.marker.check(block, lba, &ledger.expectation(lba)) {
                Ok(content) => ledger.observe(lba, content),
                Err(mismatch) => {
                    self.counters.mismatch_count += 1;
                    result = result.and(Err(mismatch));
                }
            }
        }
        result
    }

    /// Takes back an operation that succeeded at `now_ns`.
    #[inline]
    pub fn on_done(&mut self, operation: &Operation, now_ns: u64, recorder: &mut Recorder) {
        if self.is_measured(operation) {
            let Operation { step, due_ns, submitted_ns } = *operation;
            recorder.record(step.kind, self.bytes(&step), due_ns, submitted_ns, now_ns);
        }
        self.end(operation, WriteOutcome::Done);
    }

    /// Takes back an operation that failed, which is counted even in the fill and the warm-up. A change may have
    /// happened all the same.
    #[cold]
    pub fn on_failure(&mut self, operation: &Operation, failure: Failure, recorder: &mut Recorder) {
        recorder.record_failure(operation.step.kind, failure);
        self.end(operation, WriteOutcome::Uncertain);
    }

    #[inline(always)]
    fn end(&mut self, operation: &Operation, outcome: WriteOutcome) {
        debug_assert!(self.in_flight > 0, "an operation ended that was not in flight");
        self.in_flight -= 1;
        if let Some(ledger) = &mut self.ledger {
            ledger.end(&operation.step, outcome);
        }
        if self.in_flight == 0 && self.phase == (Phase::Filling { next: self.fill.end() }) {
            self.phase = Phase::Ready;
        }
    }

    /// The next moment at which time alone brings something to do: an operation falls due, or the load ends.
    #[inline]
    pub fn next_deadline_ns(&self) -> Option<u64> {
        let Phase::Running { end_ns } = self.phase else { return None };
        let may_give = self.in_flight < self.depth && self.held.is_none();
        let due_ns = self.schedule.next_due_ns().filter(|_| may_give);
        Some(due_ns.map_or(end_ns, |due_ns| due_ns.min(end_ns))).filter(|&at_ns| at_ns < u64::MAX)
    }

    /// Operations due at `now_ns` that were not given out, because the depth was reached; 0 in a closed loop.
    /// At the end of a run, how far the target fell behind.
    pub fn overdue(&mut self, now_ns: u64) -> u64 {
        if self.schedule.is_open() { self.schedule.due(now_ns) } else { 0 }
    }

    /// The phase of the load.
    pub const fn phase(&self) -> Phase {
        self.phase
    }

    /// Whether an operation counts: not in the fill and the warm-up.
    #[inline]
    pub const fn is_measured(&self, operation: &Operation) -> bool {
        operation.submitted_ns >= self.measured_from_ns
    }

    /// The end of the warm-up, from where time is measured; `None` before the start.
    pub fn measured_from_ns(&self) -> Option<u64> {
        Some(self.measured_from_ns).filter(|&ns| ns < u64::MAX)
    }

    /// Bytes that an operation reads, writes, deallocates or zeroes.
    #[inline]
    pub const fn length_bytes(&self, operation: &Operation) -> usize {
        operation.step.blocks as usize * self.lba_bytes as usize
    }

    /// Operations in flight.
    pub const fn in_flight(&self) -> u32 {
        self.in_flight
    }

    /// Whether all is done: nothing more to give out and nothing in flight.
    pub fn is_over(&self) -> bool {
        self.phase == Phase::Over && self.in_flight == 0
    }

    /// Whether written blocks need [`Generator::stamp`] and read ones [`Generator::check`].
    pub const fn verifies(&self) -> bool {
        self.ledger.is_some()
    }

    /// The counters so far.
    pub const fn counters(&self) -> &Counters {
        &self.counters
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;
    use crate::random::Prng;
    use crate::recorder::Tally;
    use crate::verify::Problem;
    use crate::workload::{
        Arrival, Deallocated, Geometry, Mix, Order, Pattern, Shares, Sizes, Stop, Workload,
    };

    const LBA_BYTES: usize = 512;
    const BLOCKS: usize = 256;

    fn plan(workload: &Workload) -> Plan {
        let geometry = Geometry {
            lba_bytes: 512,
            block_count: BLOCKS as u64,
            transfer_limit_bytes: None,
            deallocated: Deallocated::Zeroes,
        };
        workload.plan(&geometry, 77).unwrap()
    }

    fn generator(workload: &Workload) -> Generator {
        Generator::new(&plan(workload), 0)
    }

    /// A load of 100 operations without warm-up.
    fn hundred() -> Workload {
        Workload {
            stop: Stop { operations: Some(100), ..Stop::default() },
            warm_up: Duration::ZERO,
            ..Workload::default()
        }
    }

    /// A fault of the namespace in a test.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum Fault {
        None,
        /// Completes a write without doing it.
        LosesWrite,
        /// Writes one block further on.
        MisdirectsWrite,
        /// Writes the first half of each block.
        TearsWrite,
        /// Flips a bit on the way back.
        FlipsBit,
    }

    /// Runs a verified load against a namespace in memory that completes operations in any order, fails some
    /// writes, done or not, and has a fault once. Gives the counters and the problems found.
    fn run(workload: &Workload, seed: u64, fault: Fault) -> (Counters, Tally, Vec<Problem>) {
        let mut generator = generator(workload);
        let mut recorder = Recorder::new(false);
        let mut prng = Prng::new(seed);
        let mut namespace = vec![0x5a; BLOCKS * LBA_BYTES];
        let mut in_flight: Vec<(Operation, Vec<u8>, bool)> = Vec::new();
        let (mut problems, mut now, mut faults_left) = (Vec::new(), 0, u32::from(fault != Fault::None));
        if generator.phase() == Phase::Ready {
            generator.start(now);
        }
        while !generator.is_over() {
            now += 1;
            while let Some(operation) = generator.next_operation(now) {
                let mut data = vec![0; operation.step.blocks as usize * LBA_BYTES];
                if operation.step.kind == Kind::Write {
                    generator.stamp(&operation, 0, &mut data);
                }
                in_flight.push((operation, data, false));
            }
            if generator.phase() == Phase::Ready {
                generator.start(now);
            }
            if in_flight.is_empty() {
                continue;
            }
            // Something takes effect, and something that took effect, or failed, completes.
            let turn = |prng: &mut Prng, count: usize| usize::try_from(prng.below(count as u64)).unwrap();
            let (at, completes) = (turn(&mut prng, in_flight.len()), turn(&mut prng, 2) == 0);
            let (operation, data, executed) = &mut in_flight[at];
            let is_write = operation.step.kind == Kind::Write;
            if !*executed {
                let faulty = faults_left > 0
                    && generator.is_measured(operation)
                    && match fault {
                        Fault::FlipsBit => operation.step.kind == Kind::Read,
                        _ => is_write && operation.step.slba + 9 < BLOCKS as u64,
                    };
                faults_left -= u32::from(faulty);
                let from = usize::try_from(operation.step.slba).unwrap() * LBA_BYTES;
                let shift = if faulty && fault == Fault::MisdirectsWrite { data.len() } else { 0 };
                let place = &mut namespace[from + shift..][..data.len()];
                match operation.step.kind {
                    Kind::Read => data.copy_from_slice(place),
                    Kind::Write if faulty && fault == Fault::LosesWrite => {}
                    Kind::Write if faulty && fault == Fault::TearsWrite => {
                        place[..LBA_BYTES / 2].copy_from_slice(&data[..LBA_BYTES / 2]);
                    }
                    Kind::Write => place.copy_from_slice(data),
                    Kind::WriteZeroes | Kind::Trim => place.fill(0),
                }
                if faulty && fault == Fault::FlipsBit {
                    data[100] ^= 1;
                }
                *executed = true;
            }
            let fails = prng.below(20) == 0 && generator.is_measured(operation) && fault == Fault::None;
            if fails {
                let (operation, ..) = in_flight.swap_remove(at);
                generator.on_failure(&operation, Failure::Disconnected, &mut recorder);
            } else if completes {
                let (operation, data, _) = in_flight.swap_remove(at);
                if operation.step.kind == Kind::Read {
                    problems
                        .extend(generator.check(&operation, 0, &data).err().map(|mismatch| mismatch.problem));
                }
                generator.on_done(&operation, now, &mut recorder);
            }
        }
        (*generator.counters(), recorder.into_total(), problems)
    }

    fn verified(operations: u64) -> Workload {
        let shares = Shares { read: 60, write: 30, trim: 5, write_zeroes: 5 };
        Workload {
            pattern: Pattern { order: Order::Random, mix: Mix::Shares(shares) },
            sizes: Sizes::mixed(vec![(512, 50), (4096, 50)]).unwrap(),
            depth: 8,
            verify: true,
            fill: true,
            stop: Stop { operations: Some(operations), ..Stop::default() },
            warm_up: Duration::ZERO,
            ..Workload::default()
        }
    }

    #[test]
    fn a_closed_loop_keeps_its_depth_and_ends_with_its_budget() {
        let mut generator = generator(&Workload { depth: 7, ..hundred() });
        let mut recorder = Recorder::new(false);
        assert_eq!(generator.next_operation(0), None, "not started");
        generator.start(0);
        let mut in_flight: Vec<Operation> = Vec::new();
        let mut now = 0;
        while !generator.is_over() {
            in_flight.extend(std::iter::from_fn(|| generator.next_operation(now)));
            assert!(in_flight.len() == 7 || generator.phase() == Phase::Over);
            now += 10;
            generator.on_done(&in_flight.remove(0), now, &mut recorder);
        }
        let total = recorder.into_total();
        assert_eq!(total.kind(Kind::Read).operations(), 100);
        assert_eq!(total.kind(Kind::Read).bytes, 100 * 4096);
        assert_eq!(total.kind(Kind::Read).service.max(), 70);
        assert_eq!(generator.counters().depth_levels, [1, 2, 97, 0, 0, 0, 0]);
    }

    #[test]
    fn what_is_given_out_in_the_warm_up_does_not_count() {
        let stop = Stop { runtime: Some(Duration::from_nanos(100)), ..Stop::default() };
        let workload = Workload { depth: 1, stop, warm_up: Duration::from_nanos(50), ..Workload::default() };
        let mut generator = generator(&workload);
        let mut recorder = Recorder::new(false);
        generator.start(1_000);
        for now in (1_000..).step_by(10) {
            let Some(operation) = generator.next_operation(now) else { break };
            assert_eq!(generator.is_measured(&operation), now >= 1_050);
            generator.on_done(&operation, now + 10, &mut recorder);
        }
        assert!(generator.is_over());
        assert_eq!(recorder.into_total().kind(Kind::Read).operations(), 10);
    }

    #[test]
    fn a_stall_of_the_target_is_in_the_response_time_of_every_operation_it_kept_waiting() {
        let pace = Pace::Open { rate_per_s: 1e6, arrival: Arrival::Constant };
        let mut generator = generator(&Workload { pace, depth: 4, ..hundred() });
        let mut recorder = Recorder::new(true);
        generator.start(0);
        let stalled: Vec<Operation> = std::iter::from_fn(|| generator.next_operation(50_000)).collect();
        assert_eq!(stalled.len(), 4);
        assert_eq!(generator.overdue(50_000), 47);
        let mut in_flight = stalled;
        while !generator.is_over() {
            for operation in in_flight.drain(..) {
                generator.on_done(&operation, 50_000, &mut recorder);
            }
            in_flight.extend(std::iter::from_fn(|| generator.next_operation(50_000)));
            if in_flight.is_empty() {
                break;
            }
        }
        let total = recorder.into_total();
        assert_eq!(total.kind(Kind::Read).operations(), 51);
        assert_eq!(total.kind(Kind::Read).service.max(), 0);
        assert_eq!(total.kind(Kind::Read).response.max(), 50_000);
        assert_eq!(total.kind(Kind::Read).response.mean(), 25_000.0);
        assert_eq!(generator.next_deadline_ns(), Some(51_000));
    }

    #[test]
    fn the_end_can_be_moved_and_load_can_be_stopped() {
        let stop = Stop { runtime: Some(Duration::from_nanos(100)), ..Stop::default() };
        let mut generator = generator(&Workload { stop, ..hundred() });
        generator.start(0);
        assert_eq!(generator.next_deadline_ns(), Some(100));
        generator.end_at(200);
        assert!(generator.next_operation(150).is_some());
        generator.stop();
        assert!(generator.next_operation(150).is_none());
        assert!(!generator.is_over(), "one is in flight");
    }

    #[test]
    fn the_fill_writes_every_block_once_before_the_load() {
        let workload = Workload { sizes: Sizes::one(512 * 100), fill: true, ..hundred() };
        let mut generator = generator(&workload);
        let mut recorder = Recorder::new(false);
        let writes: Vec<Operation> = std::iter::from_fn(|| generator.next_operation(0)).collect();
        let places: Vec<(u64, u32)> =
            writes.iter().map(|write| (write.step.slba, write.step.blocks)).collect();
        assert_eq!(places, [(0, 100), (100, 100), (200, 56)]);
        writes.iter().for_each(|write| generator.on_done(write, 5, &mut recorder));
        assert_eq!(generator.phase(), Phase::Ready);
        assert_eq!(recorder.into_total(), Tally::default());
    }

    #[test]
    fn each_fault_of_a_namespace_is_found() {
        for fault in [Fault::LosesWrite, Fault::MisdirectsWrite, Fault::TearsWrite, Fault::FlipsBit] {
            let is_named = |problem: &Problem| match fault {
                Fault::None => false,
                Fault::LosesWrite => matches!(problem, Problem::Older { .. } | Problem::NeverWritten),
                Fault::MisdirectsWrite => matches!(problem, Problem::OtherLba { .. }),
                Fault::TearsWrite => matches!(problem, Problem::Torn { at: 256..264, .. }),
                Fault::FlipsBit => matches!(problem, Problem::Damaged { from: 100, to: 100, .. }),
            };
            let faulty = |seed| run(&Workload { seed, ..verified(3_000) }, seed, fault).2;
            let found: Vec<Problem> = (0..5).flat_map(faulty).collect();
            assert!(found.iter().any(is_named), "{fault:?}: {found:?}");
        }
    }

    #[test]
    fn every_block_that_was_read_is_checked_and_failures_are_counted() {
        let (counters, total, problems) = run(&verified(5_000), 1, Fault::None);
        assert_eq!(problems, []);
        assert_eq!(counters.mismatch_count, 0);
        assert_eq!(counters.blocks_checked, total.kind(Kind::Read).bytes / 512);
        assert!(counters.held_back > 0);
        let ended = total.all();
        assert_eq!(ended.operations() + ended.error_count(), 5_000);
        assert!(ended.errors[&Failure::Disconnected] > 100);
    }

    proptest! {
        #[test]
        fn a_correct_namespace_passes_whatever_the_load(
            seed: u64, depth in 1u32..20, name in prop::sample::select(vec!["verify", "randverify", "randrw", "rw"]),
            fill: bool, large in 1u32..30,
        ) {
            let sizes = Sizes::mixed(vec![(512, 70), (512 * large, 30)]).unwrap();
            let pattern = Pattern::named(name, None).unwrap();
            let workload = Workload { pattern, sizes, depth, fill, seed, ..verified(300) };
            let (_, _, problems) = run(&workload, seed, Fault::None);
            prop_assert_eq!(problems, []);
        }
    }
}
