//! The time of its cores that a measurement lost to others: run-queue wait, time stolen by the hypervisor,
//! preemptions.
//!
//! A measurement on a machine that is busy with something else says nothing about the program measured. Each side of a
//! measurement (the threads that make the load, the target's threads) has an account in the kernel:
//! `/proc/PID/task/TID/schedstat` counts the time that a thread was ready to run and did not have a core. On a calm
//! machine a spinning thread waits for less than 1 % of the time; a second busy thread on its core makes it wait for
//! half of it.
//!
//! ```text
//! Snapshot (start) ──┐
//!                    ├─▶ Loss of each side ──▶ Disturbance ──▶ judge ──▶ measurement, or the reason why it is none
//! Snapshot (end)   ──┘
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs;
use std::path::Path;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize, Serializer};

use crate::cpu;
use crate::others::{OTHERS_PERCENT_MAX, Others};

/// Operations below which a rate or a percentile is a matter of chance.
pub const OPERATIONS_MIN: f64 = 30.0;

/// Lost time from which on a measurement is invalid, percent of the time measured.
pub const LOST_PERCENT_MAX: f64 = 5.0;

/// Share of the ceiling above which something else than the load slowed the ceiling down.
pub const SHARE_MAX: f64 = 1.1;

/// Times of one thread so far, as the scheduler counts them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ThreadTimes {
    /// On a core, ns.
    pub run_ns: u64,
    /// Ready to run, without a core, ns.
    pub wait_ns: u64,
    /// Times that it came to a core.
    pub slices: u64,
    /// Times that the core was taken from it.
    pub preemptions: u64,
    /// Cores it may run on, as the kernel writes them (`0-1`).
    pub cores: String,
    /// Nice value.
    pub nice: i32,
}

/// The threads of one side at one moment. Both snapshots of a loss are taken by one process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Snapshot {
    /// Time since the process that takes snapshots took its first, ns.
    taken_ns: u64,
    threads: BTreeMap<u32, ThreadTimes>,
    /// Ticks stolen from each core, by its number.
    stolen: BTreeMap<usize, u64>,
    /// Duration of a tick, ns.
    tick_ns: u64,
}

/// Time that one side of a measurement lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Loss {
    /// Time between both snapshots, ns.
    pub elapsed_ns: u64,
    /// Run-queue wait of the thread that waited longest, without what other threads of the same side used on its core,
    /// ns.
    pub wait_ns: u64,
    /// Taken by the hypervisor from a core of that side, ns.
    pub stolen_ns: u64,
    /// Times that the core was taken from a thread.
    pub preemptions: u64,
}

impl Loss {
    /// Time lost, percent of the time that passed.
    #[must_use]
    pub fn percent(&self) -> f64 {
        let lost_ns = self.wait_ns.saturating_add(self.stolen_ns);
        if self.elapsed_ns == 0 { 0.0 } else { lost_ns as f64 * 100.0 / self.elapsed_ns as f64 }
    }

    /// This loss without a part of its wait, ns: its thread waited for others that do a part of the work.
    #[must_use]
    pub fn explained(self, ns: u64) -> Self {
        Self { wait_ns: self.wait_ns.saturating_sub(ns), ..self }
    }

    /// The larger of two.
    #[must_use]
    pub fn worse(self, other: Self) -> Self {
        if other.percent() > self.percent() { other } else { self }
    }
}

/// A side of a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Side {
    /// The threads that make the load.
    Host,
    /// The target's threads.
    Target,
    /// The threads of the ceiling, either end.
    Ceiling,
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Host => "host",
            Self::Target => "target",
            Self::Ceiling => "ceiling",
        })
    }
}

/// Processor time that the sides of a measurement lost, as far as the kernel reports it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Disturbance {
    losses: Vec<(Side, Loss)>,
    others: Vec<(Place, Others)>,
    has_mixed_regimes: bool,
    operations: Option<f64>,
}

/// The machine of a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Place {
    /// That of the load.
    Here,
    /// That of the targets, if it is another one.
    Targets,
}

/// Why a measurement is invalid.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Unmeasured {
    /// A side lost more than [`LOST_PERCENT_MAX`] of its time to others.
    LostTime {
        /// Which.
        side: Side,
        /// The loss.
        loss: Loss,
    },
    /// Others had more than [`OTHERS_PERCENT_MAX`] of a side's time.
    Others {
        /// Where.
        place: Place,
        /// Their time.
        others: Others,
    },
    /// Fewer than [`OPERATIONS_MIN`] operations finished.
    Few(f64),
    /// More than [`SHARE_MAX`] of the ceiling: the ceiling was disturbed.
    Share(f64),
    /// Not one operation finished.
    Nothing,
    /// The time of a cache line between both cores changed by a multiple, and with it what the numbers mean.
    Regime,
}

impl fmt::Display for Unmeasured {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::LostTime { side, loss } => {
                write!(f, "other load took {:.0} % of the {side}'s core", loss.percent().min(100.0))?;
                match loss.stolen_ns {
                    0 => Ok(()),
                    stolen_ns => write!(f, " ({} ms stolen by the hypervisor)", stolen_ns / 1_000_000),
                }
            }
            Self::Others { place, others } => {
                let percent = |ns| others.percent_of_core(ns);
                write!(f, "other programs took {:.0} % of a core", percent(others.run_ns))?;
                if percent(others.stolen_ns) >= 0.5 {
                    write!(f, ", the hypervisor {:.0} %", percent(others.stolen_ns))?;
                }
                match place {
                    Place::Here => Ok(()),
                    Place::Targets => f.write_str(" on the targets' machine"),
                }
            }
            Self::Few(operations) => write!(f, "only {operations:.0} operations finished"),
            Self::Share(share) => {
                write!(f, "{share:.2} of the ceiling: other load slowed the ceiling down")
            }
            Self::Nothing => f.write_str("no operation finished"),
            Self::Regime => f.write_str("the cores shared a cache in one part of it, and none in another"),
        }
    }
}

impl Serialize for Unmeasured {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl Serialize for Disturbance {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Told {
            side: Side,
            lost_percent: f64,
            #[serde(flatten)]
            loss: Loss,
        }
        #[derive(Serialize)]
        struct ToldOthers {
            place: Place,
            others_percent: f64,
            #[serde(flatten)]
            others: Others,
        }
        #[derive(Serialize)]
        #[serde(untagged)]
        enum Either {
            Loss(Told),
            Others(ToldOthers),
        }
        let losses = self
            .losses
            .iter()
            .map(|&(side, loss)| Either::Loss(Told { side, lost_percent: loss.percent(), loss }));
        let others = self.others.iter().map(|&(place, others)| {
            Either::Others(ToldOthers { place, others_percent: others.percent(), others })
        });
        serializer.collect_seq(losses.chain(others))
    }
}

impl Disturbance {
    /// Adds the loss of a side.
    pub fn add(&mut self, side: Side, loss: Option<Loss>) {
        self.losses.extend(loss.map(|loss| (side, loss)));
    }

    /// The cores of both sides shared a cache in one part of the measurement, and none in another.
    #[must_use]
    pub fn of_mixed_regimes() -> Self {
        Self { has_mixed_regimes: true, ..Self::default() }
    }

    /// Adds the time of others on a machine. Then this time decides, and no longer the loss of threads: the same rule
    /// for threads that spin and for those that sleep, of processes and of the kernel.
    pub fn add_others(&mut self, place: Place, others: Others) {
        self.others.push((place, others));
    }

    /// Sets the number of finished operations.
    pub fn count(&mut self, operations: Option<f64>) {
        self.operations = operations;
    }

    /// Adds all of another one.
    pub fn merge(&mut self, other: &Self) {
        self.losses.extend_from_slice(&other.losses);
        self.others.extend_from_slice(&other.others);
        self.operations = self.operations.or(other.operations);
        self.has_mixed_regimes |= other.has_mixed_regimes;
    }

    /// The loss of each side.
    #[must_use]
    pub fn losses(&self) -> &[(Side, Loss)] {
        &self.losses
    }

    /// The side that lost most.
    #[must_use]
    pub fn worst(&self) -> Option<(Side, Loss)> {
        self.losses.iter().copied().max_by(|(_, a), (_, b)| a.percent().total_cmp(&b.percent()))
    }

    /// The time of others on the machine where they had most.
    #[must_use]
    pub fn most_others(&self) -> Option<(Place, Others)> {
        self.others.iter().copied().max_by(|(_, a), (_, b)| a.percent().total_cmp(&b.percent()))
    }

    /// Percent of a side's time that was lost to others.
    #[must_use]
    pub fn percent(&self) -> f64 {
        let lost = || self.worst().map_or(0.0, |(_, loss)| loss.percent());
        self.most_others().map_or_else(lost, |(_, others)| others.percent())
    }

    /// Whether a measurement taken meanwhile is valid.
    ///
    /// # Errors
    /// Why it is not.
    pub fn judge(&self, operations: Option<f64>, share: Option<f64>) -> Result<(), Unmeasured> {
        // The time of others explains why few operations or none finished.
        let others = self.most_others();
        if let Some((place, others)) = others.filter(|(_, others)| others.percent() > OTHERS_PERCENT_MAX) {
            return Err(Unmeasured::Others { place, others });
        }
        if operations.is_some_and(|operations| operations <= 0.0) {
            return Err(Unmeasured::Nothing);
        }
        let worst = self.worst().filter(|(_, loss)| loss.percent() > LOST_PERCENT_MAX);
        if let Some((side, loss)) = worst.filter(|_| others.is_none()) {
            return Err(Unmeasured::LostTime { side, loss });
        }
        if let Some(operations) = self.operations.filter(|count| *count < OPERATIONS_MIN) {
            return Err(Unmeasured::Few(operations));
        }
        if self.has_mixed_regimes {
            return Err(Unmeasured::Regime);
        }
        match share {
            Some(share) if share > SHARE_MAX => Err(Unmeasured::Share(share)),
            _ => Ok(()),
        }
    }
}

impl Snapshot {
    /// Of all threads of a process; `None` where the kernel keeps no such account, or the process has ended.
    #[must_use]
    pub fn of_process(pid: u32) -> Option<Self> {
        let tasks = fs::read_dir(format!("/proc/{pid}/task")).ok()?.filter_map(Result::ok);
        let read = |task: fs::DirEntry| {
            let tid = task.file_name().to_str()?.parse().ok()?;
            // A thread may end between listing and reading.
            Some((tid, read_thread(&task.path())?))
        };
        Self::of(tasks.filter_map(read).collect())
    }

    /// Of the calling thread.
    #[must_use]
    pub fn of_thread() -> Option<Self> {
        Self::of(BTreeMap::from([(0, read_thread(Path::new("/proc/thread-self"))?)]))
    }

    fn of(threads: BTreeMap<u32, ThreadTimes>) -> Option<Self> {
        let stolen = fs::read_to_string("/proc/stat").map(|text| parse_stolen(&text)).unwrap_or_default();
        // Where the kernel keeps no account all three numbers are 0.
        let is_kept = threads.values().any(|times| times.slices > 0);
        let tick_ns = 1_000_000_000 / cpu::ticks_per_second();
        is_kept.then(|| Self { taken_ns: now_ns(), threads, stolen, tick_ns })
    }

    /// Time that all threads have had a core, ns.
    #[must_use]
    pub fn run_ns(&self) -> u64 {
        self.threads.values().fold(0, |sum, times| sum.saturating_add(times.run_ns))
    }

    /// Cores that some of the threads may run on.
    #[must_use]
    pub fn cores(&self) -> BTreeSet<usize> {
        self.threads.values().flat_map(|times| parse_cores(&times.cores)).collect()
    }

    /// Time that these threads lost since this snapshot. Those that began or ended meanwhile are not counted.
    #[must_use]
    pub fn loss_until(&self, later: &Self) -> Loss {
        let elapsed = Duration::from_nanos(later.taken_ns.saturating_sub(self.taken_ns));
        let mut loss = loss_of(&self.threads, &later.threads, elapsed);
        let stolen = later.threads.values().flat_map(|times| parse_cores(&times.cores)).map(|core| {
            let (before, after) = (self.stolen.get(&core), later.stolen.get(&core));
            before.zip(after).map_or(0, |(before, after)| after.saturating_sub(*before))
        });
        // Ticks are counted in whole: the first may have been nearly over.
        let ticks = stolen.max().unwrap_or(0).saturating_sub(1);
        loss.stolen_ns = ticks.saturating_mul(self.tick_ns).min(loss.elapsed_ns);
        loss
    }
}

/// Time since the first call, ns.
fn now_ns() -> u64 {
    static START: OnceLock<Instant> = OnceLock::new();
    u64::try_from(START.get_or_init(Instant::now).elapsed().as_nanos()).unwrap_or(u64::MAX)
}

/// The loss of threads: the longest wait, as far as other threads of the same side that share its cores do not explain
/// it. Threads of a lower priority than others of the side wait by design: their wait is not lost.
pub fn loss_of(
    before: &BTreeMap<u32, ThreadTimes>,
    after: &BTreeMap<u32, ThreadTimes>,
    elapsed: Duration,
) -> Loss {
    let elapsed_ns = u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX);
    let since = |tid: &u32, now: &ThreadTimes| {
        let then = before.get(tid)?;
        Some((*tid, now.run_ns.saturating_sub(then.run_ns), now.wait_ns.saturating_sub(then.wait_ns)))
    };
    let mut loss = Loss { elapsed_ns, ..Loss::default() };
    let first_nice = after.values().map(|times| times.nice).min().unwrap_or(0);
    for (tid, times) in after.iter().filter(|(_, times)| times.nice == first_nice) {
        let Some((_, _, wait_ns)) = since(tid, times) else { continue };
        let preemptions =
            before.get(tid).map_or(0, |then| times.preemptions.saturating_sub(then.preemptions));
        loss.preemptions = loss.preemptions.saturating_add(preemptions);
        // Threads that take turns on the same cores wait for each other by design.
        let sharing = after.iter().filter(|(other, theirs)| *other != tid && theirs.cores == times.cores);
        let (count, used_ns) = sharing
            .filter_map(|(other, theirs)| since(other, theirs))
            .filter(|(_, run_ns, _)| *run_ns > 0)
            .fold((1, 0u64), |(count, sum), (_, run_ns, _)| (count + 1, sum.saturating_add(run_ns)));
        let is_crowded = count > parse_cores(&times.cores).len().max(1);
        let explained_ns = if is_crowded { used_ns } else { 0 };
        loss.wait_ns = loss.wait_ns.max(wait_ns.saturating_sub(explained_ns));
    }
    loss.wait_ns = loss.wait_ns.min(elapsed_ns);
    loss
}

/// Watches one side while something is measured.
#[derive(Debug)]
pub struct Watch {
    pid: Option<u32>,
    before: Option<Snapshot>,
}

impl Watch {
    /// The calling thread.
    #[must_use]
    pub fn thread() -> Self {
        Self { pid: None, before: Snapshot::of_thread() }
    }

    /// All threads of a process.
    #[must_use]
    pub fn process(pid: u32) -> Self {
        Self { pid: Some(pid), before: Snapshot::of_process(pid) }
    }

    /// Time lost so far; `None` if the kernel does not report it.
    #[must_use]
    pub fn loss(&self) -> Option<Loss> {
        let after = self.pid.map_or_else(Snapshot::of_thread, Snapshot::of_process)?;
        Some(self.before.as_ref()?.loss_until(&after))
    }
}

fn read_thread(directory: &Path) -> Option<ThreadTimes> {
    let (run_ns, wait_ns, slices) = parse_schedstat(&fs::read_to_string(directory.join("schedstat")).ok()?)?;
    let status = fs::read_to_string(directory.join("status")).ok()?;
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    let preemptions = field("nonvoluntary_ctxt_switches:").and_then(|count| count.parse().ok());
    Some(ThreadTimes {
        run_ns,
        wait_ns,
        slices,
        preemptions: preemptions.unwrap_or(0),
        cores: field("Cpus_allowed_list:").unwrap_or_default().to_owned(),
        nice: fs::read_to_string(directory.join("stat")).ok().and_then(|text| parse_nice(&text)).unwrap_or(0),
    })
}

/// The nice value, from `/proc/PID/task/TID/stat`: the 17th field behind the name in brackets.
fn parse_nice(text: &str) -> Option<i32> {
    text.rsplit_once(')')?.1.split_ascii_whitespace().nth(16)?.parse().ok()
}

/// Time on a core, time without one, ns, and the number of time slices, from `/proc/PID/task/TID/schedstat`.
pub fn parse_schedstat(text: &str) -> Option<(u64, u64, u64)> {
    let mut fields = text.split_ascii_whitespace();
    let mut number = || fields.next()?.parse().ok();
    Some((number()?, number()?, number()?))
}

/// Ticks stolen from each core, from `/proc/stat`.
fn parse_stolen(text: &str) -> BTreeMap<usize, u64> {
    let of_core = |line: &str| {
        let mut fields = line.strip_prefix("cpu")?.split_ascii_whitespace();
        let core = fields.next().filter(|_| !line.starts_with("cpu "))?.parse().ok()?;
        Some((core, fields.nth(7)?.parse().ok()?))
    };
    text.lines().filter_map(of_core).collect()
}

/// No machine has more cores: a list from another machine is not believed beyond it.
const CORE_MAX: usize = 1 << 16;

/// The cores of a list such as `0,2-3`.
pub(crate) fn parse_cores(list: &str) -> Vec<usize> {
    let range = |part: &str| -> Option<std::ops::RangeInclusive<usize>> {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let last = last.trim().parse::<usize>().ok()?;
        Some(first.trim().parse().ok()?..=last.min(CORE_MAX))
    };
    list.split(',').filter_map(range).flatten().take(CORE_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn thread(run_ms: u64, wait_ms: u64, cores: &str) -> ThreadTimes {
        ThreadTimes {
            run_ns: run_ms * MS,
            wait_ns: wait_ms * MS,
            slices: 1,
            preemptions: wait_ms,
            cores: cores.into(),
            nice: 0,
        }
    }

    /// Loss of threads that began at zero, over one second.
    fn loss(threads: &[ThreadTimes]) -> Loss {
        let after: BTreeMap<_, _> = (1..).zip(threads.iter().cloned()).collect();
        let before = after.iter().map(|(tid, times)| (*tid, thread(0, 0, &times.cores))).collect();
        loss_of(&before, &after, Duration::from_secs(1))
    }

    fn judge(host: &[ThreadTimes], target: &[ThreadTimes]) -> Result<(), Unmeasured> {
        let mut disturbance = Disturbance::default();
        disturbance.add(Side::Host, Some(loss(host)));
        disturbance.add(Side::Target, Some(loss(target)));
        disturbance.judge(Some(1.0), Some(0.9))
    }

    #[test]
    fn two_threads_that_spin_on_their_own_cores_are_calm() {
        assert_eq!(judge(&[thread(995, 5, "0")], &[thread(990, 10, "1")]), Ok(()));
        assert_eq!(judge(&[thread(952, 48, "0")], &[thread(1000, 0, "1")]), Ok(()), "up to the threshold");
        assert_eq!(judge(&[thread(20, 1, "0")], &[thread(10, 0, "1")]), Ok(()), "sleepers lose nothing");
    }

    #[test]
    fn a_core_shared_with_others_is_no_place_to_measure() {
        let told = |result: Result<(), Unmeasured>| result.expect_err("disturbed").to_string();
        assert_eq!(
            told(judge(&[thread(500, 500, "0")], &[thread(1000, 0, "1")])),
            "other load took 50 % of the host's core"
        );
        assert_eq!(
            told(judge(&[thread(1000, 0, "0")], &[thread(10, 0, "0-1"), thread(900, 100, "1")])),
            "other load took 10 % of the target's core"
        );
    }

    #[test]
    fn threads_of_one_side_that_share_a_core_wait_for_each_other() {
        let shared = [thread(500, 490, "0"), thread(490, 500, "0")];
        assert_eq!(loss(&shared).wait_ns, 0);
        let disturbed = [thread(330, 670, "0"), thread(330, 670, "0")];
        assert_eq!(loss(&disturbed).wait_ns, 340 * MS, "a third thread has the rest");
        // Two threads on two cores need not wait for each other.
        assert_eq!(loss(&[thread(800, 200, "0-1"), thread(800, 0, "0-1")]).wait_ns, 200 * MS);
        // Another core explains nothing.
        assert_eq!(loss(&[thread(800, 200, "0"), thread(800, 0, "1")]).wait_ns, 200 * MS);
    }

    #[test]
    fn a_thread_that_gives_way_by_design_has_lost_nothing() {
        let gives_way = ThreadTimes { nice: 10, ..thread(300, 700, "0-1") };
        assert_eq!(loss(&[thread(980, 20, "1"), gives_way.clone()]).wait_ns, 20 * MS);
        assert_eq!(
            loss(&[gives_way]).wait_ns,
            700 * MS,
            "all threads of a process that was started so count"
        );
    }

    #[test]
    fn a_thread_that_came_in_between_is_not_counted() {
        let before = BTreeMap::from([(1, thread(0, 0, "0"))]);
        let after = BTreeMap::from([(1, thread(100, 0, "0")), (2, thread(0, 900, "0"))]);
        assert_eq!(loss_of(&before, &after, Duration::from_secs(1)).wait_ns, 0);
        assert_eq!(loss_of(&after, &before, Duration::ZERO).percent(), 0.0);
    }

    #[test]
    fn impossible_numbers_are_no_measurement_on_a_calm_machine_either() {
        let calm = Disturbance::default();
        assert_eq!(calm.judge(Some(1.0), Some(1.1)), Ok(()));
        assert_eq!(calm.judge(Some(1.0), Some(2.25)), Err(Unmeasured::Share(2.25)));
        assert_eq!(calm.judge(Some(0.0), None), Err(Unmeasured::Nothing));
        assert_eq!(calm.judge(None, None), Ok(()));
    }

    #[test]
    fn numbers_of_two_regimes_are_no_measurement() {
        let mut disturbance = Disturbance::default();
        disturbance.merge(&Disturbance::of_mixed_regimes());
        disturbance.merge(&Disturbance::default());
        assert_eq!(disturbance.judge(Some(1.0), Some(0.9)), Err(Unmeasured::Regime));
    }

    #[test]
    fn what_others_had_decides_over_what_threads_lost() {
        let others = |run_ms: u64| Others {
            elapsed_ns: 1000 * MS,
            core_count: 2,
            run_ns: run_ms * MS,
            stolen_ns: 10 * MS,
        };
        let judge = |wait_ms, run_ms| {
            let mut disturbance = Disturbance::default();
            disturbance.add(Side::Host, Some(loss(&[thread(900, wait_ms, "0")])));
            disturbance.add_others(Place::Here, others(run_ms));
            disturbance.judge(Some(1.0), Some(0.9))
        };
        // The threads of one stack share a core and wait for each other; those of another stack do not wait.
        assert_eq!([judge(600, 40), judge(0, 40)], [Ok(()), Ok(())]);
        for wait_ms in [0, 600] {
            let told = judge(wait_ms, 620).expect_err("62 %").to_string();
            assert_eq!(told, "other programs took 62 % of a core, the hypervisor 1 %");
        }
        let mut disturbance = Disturbance::default();
        disturbance.count(Some(3.0));
        disturbance.add_others(Place::Targets, Others { stolen_ns: MS, ..others(620) });
        let told = disturbance.judge(Some(9.0), None).expect_err("why there are so few").to_string();
        assert_eq!(told, "other programs took 62 % of a core on the targets' machine");
    }

    #[test]
    fn a_handful_of_operations_is_no_measurement() {
        let mut disturbance = Disturbance::default();
        disturbance.count(Some(7.2));
        assert_eq!(disturbance.judge(Some(20.7), None), Err(Unmeasured::Few(7.2)));
        assert_eq!(Unmeasured::Few(7.2).to_string(), "only 7 operations finished");
        disturbance.count(Some(30.0));
        assert_eq!(disturbance.judge(Some(86.0), None), Ok(()));
    }

    #[test]
    fn stolen_time_is_lost_time() {
        let loss = Loss { elapsed_ns: 1000 * MS, wait_ns: 30 * MS, stolen_ns: 30 * MS, preemptions: 0 };
        let mut disturbance = Disturbance::default();
        disturbance.add(Side::Ceiling, Some(loss));
        let told = disturbance.judge(None, None).expect_err("6 %").to_string();
        assert_eq!(told, "other load took 6 % of the ceiling's core (30 ms stolen by the hypervisor)");
    }

    #[test]
    fn the_kernels_forms_are_read() {
        assert_eq!(parse_schedstat("3876129 1200 7\n"), Some((3_876_129, 1200, 7)));
        assert_eq!(parse_schedstat("12"), None);
        let stat = "7 (a) b) S 1 7 7 0 -1 4194560 100 0 0 0 3 2 0 0 30 10 4 0 8000 1 2 3";
        assert_eq!((parse_nice(stat), parse_nice("7 (a) S 1")), (Some(10), None));
        assert_eq!(parse_cores("0,2-3"), [0, 2, 3]);
        assert!(parse_cores("").is_empty());
        let stat = "cpu  1 2 3 4 5 6 7 8 0 0\ncpu0 1 2 3 4 5 6 7 80 0 0\ncpu1 1 1 1 1 1 1 1 90 0 0\nintr 5\n";
        assert_eq!(parse_stolen(stat), BTreeMap::from([(0, 80), (1, 90)]));
    }

    #[test]
    fn this_process_has_an_account() {
        let watch = Watch::process(std::process::id());
        let loss = watch.loss().expect("schedstat is there");
        assert!(loss.percent() <= 100.0 && Watch::thread().loss().is_some());
    }
}
