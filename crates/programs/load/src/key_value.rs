//! Load on keys and values: operations in a mix, by commands of their own or in batches, on one or several lanes.
//!
//! A key is the sixteen hexadecimal digits of its number; counters have names of their own. A value names its key and
//! the store that wrote it, so that [`verify`](KeyValueLoad::verify) can check each that is retrieved.

mod own_keys;
mod value;
mod worker;

use std::fmt;
use std::str::FromStr;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use host::{Association, KeyValueNamespace};
use serde::Serialize;

use crate::account::Account;
use crate::cpu::{self, CpuTime};
use crate::disturbance::Loss;
use crate::histogram::Histogram;
use crate::keys::Distribution;
use crate::workload::{Invalid, Sizes};

pub use value::{check, counter, fill, key};
use worker::Worker;

/// Kind of operation on a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Its value is retrieved.
    Get,
    /// A value is stored.
    Set,
    /// A counter grows by one.
    Add,
    /// Its value is retrieved, and then one is stored.
    Modify,
    /// A value is stored under a key that was not there.
    Insert,
    /// Its value, a vector of 64-bit numbers, grows by one in every element, where it is.
    Update,
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 6] = [Self::Get, Self::Set, Self::Add, Self::Modify, Self::Insert, Self::Update];

    /// As the command line has it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Get => "get",
            Self::Set => "set",
            Self::Add => "add",
            Self::Modify => "modify",
            Self::Insert => "insert",
            Self::Update => "update",
        }
    }
}

/// Share of each kind, percent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mix(Vec<(Kind, u8)>);

impl Mix {
    /// One kind only.
    #[must_use]
    pub fn only(kind: Kind) -> Self {
        Self(vec![(kind, 100)])
    }

    /// A workload of YCSB by its letter: A (half and half), B (95 % reads), C (reads), D (reads and inserts), F
    /// (read, modify, write).
    #[must_use]
    pub fn ycsb(letter: char) -> Option<Self> {
        Some(Self(match letter.to_ascii_lowercase() {
            'a' => vec![(Kind::Get, 50), (Kind::Set, 50)],
            'b' => vec![(Kind::Get, 95), (Kind::Set, 5)],
            'c' => vec![(Kind::Get, 100)],
            'd' => vec![(Kind::Get, 95), (Kind::Insert, 5)],
            'f' => vec![(Kind::Get, 50), (Kind::Modify, 50)],
            _ => return None,
        }))
    }

    /// The kind that a number below 100 stands for.
    fn kind(&self, number: u64) -> Kind {
        let mut sum = 0;
        for &(kind, percent) in &self.0 {
            sum += u64::from(percent);
            if number < sum {
                return kind;
            }
        }
        self.0.last().map_or(Kind::Get, |&(kind, _)| kind)
    }

    /// Whether there is any of a kind.
    #[must_use]
    pub fn has(&self, kind: Kind) -> bool {
        self.0.iter().any(|&(other, percent)| other == kind && percent > 0)
    }
}

impl fmt::Display for Mix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, (kind, percent)) in self.0.iter().enumerate() {
            write!(f, "{}{}={percent}", if at == 0 { "" } else { "," }, kind.name())?;
        }
        Ok(())
    }
}

/// An invalid mix.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is not a mix: write ycsb-a to ycsb-d or ycsb-f, or percentages such as get=90,set=10, which add up to 100"
)]
pub struct NoMix(String);

impl FromStr for Mix {
    type Err = NoMix;

    /// `get=90,set=10`, one kind alone (`get`), or `ycsb-a`.
    fn from_str(text: &str) -> Result<Self, NoMix> {
        let none = || NoMix(text.to_owned());
        if let Some(letter) = text.strip_prefix("ycsb-") {
            let mut letters = letter.chars();
            let mix = letters.next().and_then(Self::ycsb).filter(|_| letters.next().is_none());
            return mix.ok_or_else(none);
        }
        let kind = |name: &str| Kind::ALL.into_iter().find(|kind| kind.name() == name);
        if let Some(kind) = kind(text) {
            return Ok(Self::only(kind));
        }
        let entry = |part: &str| {
            let (name, percent) = part.split_once('=')?;
            Some((kind(name)?, percent.parse().ok().filter(|percent| *percent <= 100)?))
        };
        let entries: Option<Vec<(Kind, u8)>> = text.split(',').map(entry).collect();
        let entries = entries.ok_or_else(none)?;
        let sum: u32 = entries.iter().map(|&(_, percent)| u32::from(percent)).sum();
        if sum == 100 { Ok(Self(entries)) } else { Err(none()) }
    }
}

/// A load.
#[derive(Clone, Debug)]
pub struct KeyValueLoad {
    /// The operations.
    pub mix: Mix,
    /// Number of keys.
    pub keys: u64,
    /// Distribution of the keys used.
    pub distribution: Distribution,
    /// Lengths of values.
    pub sizes: Sizes,
    /// Operations of one batch; 1 for commands of their own.
    pub batch: u16,
    /// Batches or commands in flight on each lane.
    pub depth: u16,
    /// Lanes, each with a thread.
    pub lanes: u16,
    /// Divides the keys among the lanes as the target divides them among its reactors, if it tells that and there are as
    /// many lanes as partitions: each lane has the keys of the partition that it is near.
    pub follows_partitions: bool,
    /// Stores every key before anything else.
    pub fill: bool,
    /// Checks every value that is retrieved.
    pub verify: bool,
    /// Time under load before anything counts.
    pub warm_up: Duration,
    /// How long to measure.
    pub runtime: Duration,
    /// Operations in flight at the end have this long to finish; then they count as failed.
    pub drain: Duration,
    /// Where random choices begin.
    pub seed: u64,
}

impl Default for KeyValueLoad {
    fn default() -> Self {
        Self {
            mix: Mix::only(Kind::Get),
            keys: 100_000,
            distribution: Distribution::Uniform,
            sizes: Sizes::one(32),
            batch: 1,
            depth: 32,
            lanes: 1,
            follows_partitions: false,
            fill: true,
            verify: false,
            warm_up: Duration::from_secs(1),
            runtime: Duration::from_secs(10),
            drain: Duration::from_secs(10),
            seed: 0,
        }
    }
}

impl KeyValueLoad {
    /// Commands that are outstanding on a lane: two for each batch.
    #[must_use]
    pub fn lane_depth(&self) -> u16 {
        if self.batch > 1 { self.depth.saturating_mul(2) } else { self.depth }
    }

    fn check(&self) -> Result<(), KeyValueError> {
        if self.mix.has(Kind::Update) {
            if self.verify {
                return Err(KeyValueError::Unverifiable);
            }
            if let Some(&(bytes, _)) = self.sizes.entries().iter().find(|(bytes, _)| bytes % 8 != 0) {
                return Err(KeyValueError::NoVector { bytes });
            }
        }
        for (what, value) in [
            ("the number of keys", self.keys),
            ("the size of a batch", self.batch.into()),
            ("the depth", self.depth.into()),
            ("the number of lanes", self.lanes.into()),
        ] {
            if value == 0 {
                return Err(Invalid::Zero(what).into());
            }
        }
        Ok(())
    }
}

/// Results of one kind of operation.
#[derive(Clone, Debug, Default)]
pub struct KindResult {
    /// Operations that ended well; absent keys are a good end of a get.
    pub count: u64,
    /// Gets that found a value.
    pub found_count: u64,
    /// From submission to completion, of the whole batch where there is one, ns.
    pub latency: Histogram,
}

/// Results of a load.
#[derive(Clone, Debug, Default)]
pub struct KeyValueResult {
    /// By kind, as [`Kind::ALL`] has them.
    pub kinds: [KindResult; Kind::ALL.len()],
    /// Operations that ended with an error.
    pub failed_count: u64,
    /// The first of those.
    pub first_failure: Option<String>,
    /// Values that differ from the stored ones.
    pub mismatch_count: u64,
    /// Bytes of values.
    pub value_bytes: u64,
    /// Whether each lane had the keys of a partition only.
    pub is_divided: bool,
    /// Duration of the measurement.
    pub elapsed: Duration,
    /// Processor time of this process meanwhile.
    pub generator: CpuTime,
    /// Processor time of the target meanwhile, if its account can be read.
    pub target: Option<CpuTime>,
    /// Time that the target's threads lost to others meanwhile.
    pub target_loss: Option<Loss>,
}

impl KeyValueResult {
    /// Operations that ended well.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.kinds.iter().map(|kind| kind.count).sum()
    }

    /// Operations per second.
    #[must_use]
    #[allow(clippy::cast_precision_loss)] // A rate.
    pub fn per_second(&self) -> f64 {
        self.count() as f64 / self.elapsed.as_secs_f64().max(1e-9)
    }

    /// Operations for each second of the target's processor time.
    #[must_use]
    #[allow(clippy::cast_precision_loss)] // A rate.
    pub fn per_target_second(&self) -> Option<f64> {
        let ns = self.target?.total_ns();
        (ns > 0).then(|| self.count() as f64 / (ns as f64 / 1e9))
    }

    /// Latency of all kinds.
    #[must_use]
    pub fn latency(&self) -> Histogram {
        let mut all = Histogram::new();
        self.kinds.iter().for_each(|kind| all.merge(&kind.latency));
        all
    }

    fn merge(&mut self, other: Self) {
        for (mine, theirs) in self.kinds.iter_mut().zip(&other.kinds) {
            mine.count += theirs.count;
            mine.found_count += theirs.found_count;
            mine.latency.merge(&theirs.latency);
        }
        self.failed_count += other.failed_count;
        self.mismatch_count += other.mismatch_count;
        self.value_bytes += other.value_bytes;
        if self.first_failure.is_none() {
            self.first_failure = other.first_failure;
        }
    }
}

/// Why there is no result.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KeyValueError {
    /// The load makes no sense.
    #[error(transparent)]
    Load(#[from] Invalid),
    /// An updated value is no longer the stored one.
    #[error("values that are updated cannot be verified")]
    Unverifiable,
    /// An update is of whole elements.
    #[error("values of {bytes} bytes are not vectors of 64-bit numbers: updates need multiples of 8")]
    NoVector {
        /// Bytes of a value.
        bytes: u32,
    },
    /// The target cannot be reached, or does not support the load.
    #[error(transparent)]
    Host(#[from] host::Error),
    /// It was stopped before the load began.
    #[error("stopped before the load began")]
    Stopped,
    /// The system.
    #[error("{0}")]
    System(#[from] std::io::Error),
}

/// Interval of the check whether all lanes are filled.
const LOOK_FILLED: Duration = Duration::from_millis(1);

/// Phase of a run, common to all threads.
const FILLING: u8 = 0;
const WARMING: u8 = 1;
const MEASURING: u8 = 2;
const DONE: u8 = 3;
/// Operations in flight are no longer awaited.
const ABANDONED: u8 = 4;

/// Time for operations in flight to end after a run was stopped: the user is waiting.
const DRAIN_STOPPED: Duration = Duration::from_secs(2);

/// Puts a load on a namespace, each lane on a thread of its own, on these cores in turn. `stops` is asked now and then.
///
/// # Errors
/// Why the load cannot be put there. Operations that fail are counted.
///
/// # Panics
/// If a thread of the load panics.
pub fn run(
    association: &Association,
    namespace: &KeyValueNamespace,
    load: &KeyValueLoad,
    cores: &[usize],
    target: Option<&dyn Account>,
    stops: &mut dyn FnMut() -> bool,
) -> Result<KeyValueResult, KeyValueError> {
    load.check()?;
    let workers = (0..load.lanes)
        .map(|lane| Worker::new(association, namespace, load, lane))
        .collect::<Result<Vec<_>, _>>()?;
    let is_divided = workers.iter().all(Worker::is_divided);
    let phase = AtomicU8::new(FILLING);
    let filled = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        let threads: Vec<_> = workers
            .into_iter()
            .enumerate()
            .map(|(at, worker)| {
                let core = cores.get(at % cores.len().max(1)).copied();
                let (phase, filled) = (&phase, &filled);
                scope.spawn(move || -> Result<KeyValueResult, KeyValueError> {
                    let pinned = core.map_or(Ok(()), linux::pin);
                    worker.run(phase, filled, pinned.err())
                })
            })
            .collect();
        while filled.load(Ordering::Relaxed) < threads.len() {
            if stops() {
                phase.store(ABANDONED, Ordering::Relaxed);
                return Err(KeyValueError::Stopped);
            }
            std::thread::sleep(LOOK_FILLED);
        }
        phase.store(WARMING, Ordering::Relaxed);
        let mut wait = |time: Duration| {
            let end = Instant::now() + time;
            while Instant::now() < end
                && !stops()
                && !threads.iter().any(std::thread::ScopedJoinHandle::is_finished)
            {
                let left = end.saturating_duration_since(Instant::now());
                std::thread::sleep(left.min(Duration::from_millis(50)));
            }
        };
        wait(load.warm_up);
        let target = || target.and_then(Account::read);
        let before = (Instant::now(), cpu::of_process(), target());
        phase.store(MEASURING, Ordering::Relaxed);
        wait(load.runtime);
        phase.store(DONE, Ordering::Relaxed);
        let after = (before.0.elapsed(), cpu::of_process(), target());
        let mut result = KeyValueResult { elapsed: after.0, is_divided, ..KeyValueResult::default() };
        result.generator = after.1? - before.1?;
        let drain = if stops() { load.drain.min(DRAIN_STOPPED) } else { load.drain };
        let end = Instant::now() + drain;
        while Instant::now() < end && !threads.iter().all(std::thread::ScopedJoinHandle::is_finished) {
            std::thread::sleep(LOOK_FILLED);
        }
        phase.store(ABANDONED, Ordering::Relaxed);
        if let Some((after, before)) = after.2.zip(before.2) {
            result.target = after.time.zip(before.time).map(|(after, before)| after - before);
            result.target_loss = after.loss_since(&before);
        }
        for thread in threads {
            result.merge(thread.join().expect("the load does not panic")?);
        }
        Ok(result)
    })
}

/// JSON of a result: the load and its outcome.
#[derive(Debug, Serialize)]
pub struct Report {
    mix: String,
    keys: u64,
    distribution: String,
    value_bytes: String,
    batch: u16,
    depth: u16,
    lanes: u16,
    /// Each lane had the keys of a partition only.
    is_divided: bool,
    is_verified: bool,
    seconds: f64,
    operations: u64,
    operations_per_s: f64,
    value_bytes_per_s: f64,
    failed: u64,
    mismatches: u64,
    kinds: Vec<KindReport>,
    /// Of this process, ns per operation.
    generator_ns_per_operation: f64,
    /// Of a target on this machine, ns per operation.
    #[serde(skip_serializing_if = "Option::is_none")]
    target_ns_per_operation: Option<f64>,
    /// Operations for each second of the target's processor time.
    #[serde(skip_serializing_if = "Option::is_none")]
    operations_per_target_s: Option<f64>,
}

#[derive(Debug, Serialize)]
struct KindReport {
    kind: &'static str,
    operations: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    found: Option<u64>,
    mean_us: f64,
    p50_us: f64,
    p99_us: f64,
    p999_us: f64,
    max_us: f64,
}

impl Report {
    /// The report of a run.
    #[must_use]
    #[allow(clippy::cast_precision_loss)] // Rates and times.
    pub fn new(load: &KeyValueLoad, result: &KeyValueResult) -> Self {
        let us = |ns: u64| ns as f64 / 1e3;
        let count = result.count().max(1) as f64;
        let seconds = result.elapsed.as_secs_f64();
        let kinds = Kind::ALL.into_iter().zip(&result.kinds).filter(|(_, kind)| kind.count > 0);
        Self {
            mix: load.mix.to_string(),
            keys: load.keys,
            distribution: load.distribution.to_string(),
            value_bytes: load.sizes.to_string(),
            batch: load.batch,
            depth: load.depth,
            lanes: load.lanes,
            is_divided: result.is_divided,
            is_verified: load.verify,
            seconds,
            operations: result.count(),
            operations_per_s: result.per_second(),
            value_bytes_per_s: result.value_bytes as f64 / seconds.max(1e-9),
            failed: result.failed_count,
            mismatches: result.mismatch_count,
            kinds: kinds
                .map(|(kind, result)| KindReport {
                    kind: kind.name(),
                    operations: result.count,
                    found: matches!(kind, Kind::Get | Kind::Modify).then_some(result.found_count),
                    mean_us: result.latency.mean() / 1e3,
                    p50_us: us(result.latency.percentile(50.0)),
                    p99_us: us(result.latency.percentile(99.0)),
                    p999_us: us(result.latency.percentile(99.9)),
                    max_us: us(result.latency.percentile(100.0)),
                })
                .collect(),
            generator_ns_per_operation: result.generator.total_ns() as f64 / count,
            target_ns_per_operation: result.target.map(|target| target.total_ns() as f64 / count),
            operations_per_target_s: result.per_target_second(),
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{} over {} keys ({}), values of {}, {} in a batch, {} in flight on {} {}: {:.1} s",
            self.mix,
            self.keys,
            self.distribution,
            self.value_bytes,
            self.batch,
            self.depth,
            self.lanes,
            if self.lanes == 1 { "lane" } else { "lanes" },
            self.seconds,
        )?;
        if self.is_divided {
            writeln!(f, "each lane has the keys of the partition that it is near")?;
        }
        writeln!(
            f,
            "{:<8} {:>12} {:>12} {:>9} {:>9} {:>9} {:>9}",
            "", "operations", "per second", "mean us", "p50 us", "p99 us", "p99.9 us"
        )?;
        for kind in &self.kinds {
            #[allow(clippy::cast_precision_loss)] // A rate.
            let rate = kind.operations as f64 / self.seconds.max(1e-9);
            writeln!(
                f,
                "{:<8} {:>12} {:>12.0} {:>9.1} {:>9.1} {:>9.1} {:>9.1}",
                kind.kind, kind.operations, rate, kind.mean_us, kind.p50_us, kind.p99_us, kind.p999_us
            )?;
        }
        write!(f, "in all {:>14} {:>12.0} operations per second", self.operations, self.operations_per_s)?;
        if let Some(rate) = self.operations_per_target_s {
            write!(f, ", {rate:.0} per second of the target's processor time")?;
        }
        writeln!(f)?;
        for kind in &self.kinds {
            if let Some(found) = kind.found.filter(|found| *found < kind.operations) {
                writeln!(
                    f,
                    "{}: {} of {} keys were not there",
                    kind.kind,
                    kind.operations - found,
                    kind.operations
                )?;
            }
        }
        if self.is_verified {
            writeln!(f, "verified: {} values differ from the stored ones", self.mismatches)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mixes_are_read_and_written() {
        for (text, written) in [
            ("get", "get=100"),
            ("get=90,set=10", "get=90,set=10"),
            ("ycsb-f", "get=50,modify=50"),
            ("YCSB-A", ""),
            ("get=90", ""),
            ("get=90,put=10", ""),
            ("ycsb-e", ""),
            ("", ""),
        ] {
            let mix = text.parse::<Mix>();
            assert_eq!(mix.map(|mix| mix.to_string()).unwrap_or_default(), written, "{text}");
        }
    }

    #[test]
    fn kinds_come_as_often_as_they_should() {
        let mix: Mix = "get=70,set=25,add=5".parse().expect("a mix");
        let count = |kind| (0..100).filter(|&number| mix.kind(number) == kind).count();
        assert_eq!([Kind::Get, Kind::Set, Kind::Add, Kind::Modify].map(count), [70, 25, 5, 0]);
        assert!(mix.has(Kind::Add) && !mix.has(Kind::Insert));
    }

    #[test]
    fn a_report_tells_rates_and_what_went_wrong() {
        let mut result = KeyValueResult { elapsed: Duration::from_secs(2), ..KeyValueResult::default() };
        result.kinds[0].count = 1000;
        result.kinds[0].found_count = 990;
        result.kinds[0].latency.record(5000);
        result.target = Some(CpuTime { user_ns: 500_000_000, ..CpuTime::default() });
        let report = Report::new(&KeyValueLoad { verify: true, ..KeyValueLoad::default() }, &result);
        let text = report.to_string();
        for part in
            ["500 operations per second, 2000 per second of the target", "10 of 1000 keys", "verified: 0"]
        {
            assert!(text.contains(part), "{part:?} in {text}");
        }
        let json = serde_json::to_value(&report).expect("JSON");
        assert_eq!((&json["operations"], &json["kinds"][0]["found"]), (&1000.into(), &990.into()));
    }
}
