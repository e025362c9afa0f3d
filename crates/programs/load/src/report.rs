//! The result of a run, and its forms: tables for people, JSON for programs, a line per second meanwhile.

pub mod fio_json;
pub mod fio_logs;
pub mod text;

use std::collections::BTreeMap;
use std::time::Duration;

use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};

use crate::cpu::CpuTime;
use crate::environment::Environment;
use crate::generator::Counters;
use crate::histogram::{Bin, Histogram};
use crate::recorder::{KindTally, Tally};
use crate::workload::{Arrival, Kind, Pace, Plan, Regions, Shares};

/// Percentiles of latency that are reported: those of fio and of `spdk_nvme_perf`.
pub const PERCENTAGES: [f64; 26] = [
    1.0, 5.0, 10.0, 20.0, 25.0, 30.0, 40.0, 50.0, 60.0, 70.0, 75.0, 80.0, 90.0, 95.0, 98.0, 99.0, 99.5, 99.9,
    99.95, 99.99, 99.995, 99.999, 99.9999, 99.99999, 99.999_999, 100.0,
];

/// Everything about one run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// Name of the run.
    pub name: String,
    /// Address of the target.
    pub target: String,
    /// The environment of the run.
    pub environment: Environment,
    /// The workload.
    pub workload: Description,
    /// Measured time, from the end of the warm-up to the last completion, ns.
    pub elapsed_ns: u64,
    /// Results of each kind that occurred.
    pub kinds: Vec<KindResult>,
    /// All kinds together.
    pub total: KindResult,
    /// One entry per interval.
    pub series: Vec<Sample>,
    /// Processor time on both sides.
    pub cpu: Cpu,
    /// Time that both sides lost to other load on this machine.
    pub disturbance: crate::disturbance::Disturbance,
    /// Counters of all lanes, summed.
    pub counters: CounterResult,
    /// How local storage was used, in place of lanes to a target.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub storage: Option<StorageResult>,
    /// Each lane's own counters.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub lanes: Vec<LaneResult>,
    /// Time of commands by phase, in the order in which they go through the phases: of all lanes, from their first
    /// command on, sampled from one command in 64.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub phases: Vec<PhaseResult>,
    /// The first blocks that were wrong, in words.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub mismatches: Vec<String>,
    /// Steadiness of the rate, if requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub steady: Option<SteadyResult>,
    /// Additional fields.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub extra: BTreeMap<String, serde_json::Value>,
}

impl Report {
    /// A report on `tally`, measured for `elapsed_ns`; everything else may be filled in afterwards.
    pub fn new(plan: &Plan, environment: Environment, tally: &Tally, elapsed_ns: u64) -> Self {
        let occurred = |kind: &Kind| {
            let tally = tally.kind(*kind);
            tally.operations() > 0 || tally.error_count() > 0
        };
        let kinds = Kind::ALL.into_iter().filter(occurred);
        Self {
            name: plan.workload().pattern.name().to_owned(),
            target: String::new(),
            environment,
            workload: Description::new(plan),
            elapsed_ns,
            kinds: kinds.map(|kind| KindResult::new(kind.name(), tally.kind(kind), elapsed_ns)).collect(),
            total: KindResult::new("total", &tally.all(), elapsed_ns),
            series: Vec::new(),
            cpu: Cpu::default(),
            disturbance: crate::disturbance::Disturbance::default(),
            counters: CounterResult::default(),
            storage: None,
            lanes: Vec::new(),
            phases: Vec::new(),
            mismatches: Vec::new(),
            steady: None,
            extra: BTreeMap::new(),
        }
    }

    /// Results of `kind`, if it occurred.
    pub fn kind(&self, kind: Kind) -> Option<&KindResult> {
        self.kinds.iter().find(|result| result.kind == kind.name())
    }
}

/// A workload in plain words and numbers.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Description {
    /// Lanes by class, such as `default=1,read=2,poll=1`, if there are several classes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queues: Option<String>,
    /// Percent of the operations that are polled for, if there are lanes for such.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub polled_percent: Option<u8>,
    /// Name of the pattern, as `spdk_nvme_perf` and fio know it.
    pub pattern: &'static str,
    /// Percent of reads.
    pub read_percent: u8,
    /// Percent of writes.
    pub write_percent: u8,
    /// Percent of trims.
    pub trim_percent: u8,
    /// Percent of write zeroes.
    pub write_zeroes_percent: u8,
    /// One size, or several with percentages.
    pub sizes: String,
    /// The largest size.
    pub size_bytes_max: u32,
    /// Bytes of one block.
    pub lba_bytes: u32,
    /// Operations in flight per lane.
    pub depth: u32,
    /// Number of lanes.
    pub lanes: u32,
    /// First LBA of the range.
    pub first_lba: u64,
    /// Blocks of the range.
    pub block_count: u64,
    /// Whether lanes share the range.
    pub shared_range: bool,
    /// How places are drawn.
    pub distribution: String,
    /// Operations per second of an open loop.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate_per_s: Option<f64>,
    /// How an open loop's operations arrive: constant or poisson.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub arrival: Option<&'static str>,
    /// Time limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub runtime_s: Option<f64>,
    /// Limit of operations.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub operation_limit: Option<u64>,
    /// Limit of bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub byte_limit: Option<u64>,
    /// Warm-up.
    pub warm_up_s: f64,
    /// Whether reads were checked.
    pub verify: bool,
    /// Whether the range was written first.
    pub fill: bool,
    /// Start of all random choices.
    pub seed: u64,
}

impl Description {
    /// Of a plan.
    pub fn new(plan: &Plan) -> Self {
        let workload = plan.workload();
        let Shares { read, write, trim, write_zeroes } = workload.pattern.shares();
        let (rate_per_s, arrival) = match workload.pace {
            Pace::Closed => (None, None),
            Pace::Open { rate_per_s, arrival: Arrival::Constant } => (Some(rate_per_s), Some("constant")),
            Pace::Open { rate_per_s, arrival: Arrival::Poisson } => (Some(rate_per_s), Some("poisson")),
        };
        let range = plan.range();
        Self {
            queues: None,
            polled_percent: None,
            pattern: workload.pattern.name(),
            read_percent: read,
            write_percent: write,
            trim_percent: trim,
            write_zeroes_percent: write_zeroes,
            sizes: workload.sizes.to_string(),
            size_bytes_max: workload.sizes.largest_bytes(),
            lba_bytes: plan.geometry().lba_bytes,
            depth: workload.depth,
            lanes: workload.lanes,
            first_lba: range.first,
            block_count: range.blocks,
            shared_range: plan.regions() == Regions::Shared,
            distribution: workload.distribution.to_string(),
            rate_per_s,
            arrival,
            runtime_s: workload.stop.runtime.as_ref().map(Duration::as_secs_f64),
            operation_limit: workload.stop.operations,
            byte_limit: workload.stop.bytes,
            warm_up_s: workload.warm_up.as_secs_f64(),
            verify: workload.verifies(),
            fill: workload.fill,
            seed: workload.seed,
        }
    }
}

/// Results of one kind of operation, or of all.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct KindResult {
    /// Name of the kind, or `total`.
    pub kind: &'static str,
    /// Operations that succeeded.
    pub operations: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Operations per second.
    pub iops: f64,
    /// Bytes per second.
    pub bytes_per_s: f64,
    /// Operations that failed.
    pub error_count: u64,
    /// Failures by cause, with their counts.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub errors: BTreeMap<String, u64>,
    /// From submission to completion.
    pub service: Latency,
    /// From the moment an operation was due to its completion; only in an open loop.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub response: Option<Latency>,
}

impl KindResult {
    fn new(kind: &'static str, tally: &KindTally, elapsed_ns: u64) -> Self {
        Self {
            kind,
            operations: tally.operations(),
            bytes: tally.bytes,
            iops: per_second(tally.operations(), elapsed_ns),
            bytes_per_s: per_second(tally.bytes, elapsed_ns),
            error_count: tally.error_count(),
            errors: tally.errors.iter().map(|(failure, &count)| (failure.to_string(), count)).collect(),
            service: Latency::of(&tally.service),
            response: (tally.response.count() > 0).then(|| Latency::of(&tally.response)),
        }
    }

    /// The latency that the caller saw: response time in an open loop, else service time.
    pub fn latency(&self) -> &Latency {
        self.response.as_ref().unwrap_or(&self.service)
    }
}

/// `count` things in `elapsed_ns`, per second; 0 if no time passed.
fn per_second(count: u64, elapsed_ns: u64) -> f64 {
    if elapsed_ns == 0 { 0.0 } else { count as f64 * 1e9 / elapsed_ns as f64 }
}

/// A latency, summed up. Percentiles and bins are within 0.8 %, the rest is exact but for the spread.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Latency {
    /// Number of values.
    pub count: u64,
    /// The smallest, ns.
    pub min_ns: u64,
    /// The largest, ns.
    pub max_ns: u64,
    /// The mean, ns.
    pub mean_ns: f64,
    /// The standard deviation, ns.
    pub stddev_ns: f64,
    /// Percentage and latency in ns, one for each of [`PERCENTAGES`].
    #[serde(rename = "percentile_ns", serialize_with = "percentile_map")]
    pub percentiles: Vec<(f64, u64)>,
    /// The histogram. Not in our JSON object; fio's has it on demand.
    #[serde(skip)]
    pub bins: Vec<Bin>,
}

impl Latency {
    /// Of a histogram of nanoseconds.
    pub fn of(histogram: &Histogram) -> Self {
        let percentile = |percent| (percent, histogram.percentile(percent));
        Self {
            count: histogram.count(),
            min_ns: histogram.min(),
            max_ns: histogram.max(),
            mean_ns: histogram.mean(),
            stddev_ns: histogram.stddev(),
            percentiles: PERCENTAGES.map(percentile).to_vec(),
            bins: histogram.bins().collect(),
        }
    }

    /// The latency at one of [`PERCENTAGES`], ns.
    pub fn percentile_ns(&self, percent: f64) -> Option<u64> {
        self.percentiles.iter().find(|(known, _)| *known == percent).map(|&(_, ns)| ns)
    }
}

/// A map from percentages with six decimals, as fio writes them.
fn percentile_map<S: Serializer>(percentiles: &[(f64, u64)], serializer: S) -> Result<S::Ok, S::Error> {
    let mut map = serializer.serialize_map(Some(percentiles.len()))?;
    for (percent, ns) in percentiles {
        map.serialize_entry(&format!("{percent:.6}"), ns)?;
    }
    map.end()
}

/// Results of one interval.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Sample {
    /// End of the interval, seconds after the end of the warm-up.
    pub end_s: f64,
    /// Operations per second.
    pub iops: f64,
    /// Bytes per second.
    pub bytes_per_s: f64,
    /// Operations per second by kind, where there were any.
    pub iops_by_kind: BTreeMap<&'static str, f64>,
    /// Bytes per second by kind, where there were any.
    pub bytes_per_s_by_kind: BTreeMap<&'static str, f64>,
    /// Operations that failed.
    pub error_count: u64,
    /// Mean latency, ns. This and the following: response time in an open loop, else service time.
    pub mean_ns: f64,
    /// Mean latency by kind, where there were any, ns.
    pub mean_ns_by_kind: BTreeMap<&'static str, f64>,
    /// Median latency, ns.
    pub p50_ns: u64,
    /// 99 % were faster, ns.
    pub p99_ns: u64,
    /// 99.9 % were faster, ns.
    pub p999_ns: u64,
    /// The slowest, ns.
    pub max_ns: u64,
}

impl Sample {
    /// The interval of `length_ns` that ended `end_ns` after the warm-up.
    pub fn new(interval: &Tally, end_ns: u64, length_ns: u64) -> Self {
        let all = interval.all();
        let latency = all.latency();
        let by_kind = |count: fn(&KindTally) -> u64| {
            let counts = Kind::ALL.into_iter().map(|kind| (kind.name(), count(interval.kind(kind))));
            let occurred = counts.filter(|&(_, count)| count > 0);
            occurred.map(|(name, count)| (name, per_second(count, length_ns))).collect()
        };
        Self {
            end_s: end_ns as f64 / 1e9,
            iops: per_second(all.operations(), length_ns),
            bytes_per_s: per_second(all.bytes, length_ns),
            iops_by_kind: by_kind(KindTally::operations),
            bytes_per_s_by_kind: by_kind(|tally| tally.bytes),
            error_count: all.error_count(),
            mean_ns: latency.mean(),
            mean_ns_by_kind: kinds_with_operations(interval)
                .map(|(name, tally)| (name, tally.latency().mean()))
                .collect(),
            p50_ns: latency.percentile(50.0),
            p99_ns: latency.percentile(99.0),
            p999_ns: latency.percentile(99.9),
            max_ns: latency.max(),
        }
    }
}

/// The kinds of operations that completed, by name.
fn kinds_with_operations(interval: &Tally) -> impl Iterator<Item = (&'static str, &KindTally)> {
    let kinds = Kind::ALL.into_iter().map(|kind| (kind.name(), interval.kind(kind)));
    kinds.filter(|(_, tally)| tally.operations() > 0)
}

/// Processor time of the measured part.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Cpu {
    /// Of this process.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub generator: Option<CpuShare>,
    /// Of the target, if it runs on this machine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target: Option<CpuShare>,
    /// Time of the whole machine per operation, ns: of all programs, the kernel and interrupts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub machine_ns_per_operation: Option<f64>,
    /// Percent of the whole machine spent in deferred interrupt work.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub soft_interrupt_percent: Option<f64>,
    /// Percent of the whole machine that the hypervisor took.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub steal_percent: Option<f64>,
}

/// Processor time of one process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct CpuShare {
    /// User time per operation, ns.
    pub user_ns_per_operation: f64,
    /// System time per operation, ns.
    pub system_ns_per_operation: f64,
    /// User time, percent of one core.
    pub user_percent: f64,
    /// System time, percent of one core.
    pub system_percent: f64,
    /// Times it gave a core up.
    pub voluntary_switches: u64,
    /// Times a core was taken from it.
    pub involuntary_switches: u64,
}

impl CpuShare {
    /// Of the time used while `elapsed_ns` passed and `operations` completed.
    pub fn new(used: CpuTime, elapsed_ns: u64, operations: u64) -> Self {
        let share = |ns: u64, of: u64| if of == 0 { 0.0 } else { ns as f64 / of as f64 };
        Self {
            user_ns_per_operation: share(used.user_ns, operations),
            system_ns_per_operation: share(used.system_ns, operations),
            user_percent: share(used.user_ns, elapsed_ns) * 100.0,
            system_percent: share(used.system_ns, elapsed_ns) * 100.0,
            voluntary_switches: used.voluntary_switches,
            involuntary_switches: used.involuntary_switches,
        }
    }

    /// User and system time per operation, ns.
    pub const fn ns_per_operation(&self) -> f64 {
        self.user_ns_per_operation + self.system_ns_per_operation
    }
}

/// Counters of the lanes besides results.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CounterResult {
    /// Operations that were due in an open loop when it ended and were never sent.
    pub overdue: u64,
    /// Operations in flight when the run ended without their answers.
    pub unanswered: u64,
    /// Operations that waited for an earlier one on the same blocks, to be verifiable.
    pub held_back: u64,
    /// Blocks read and checked.
    pub blocks_checked: u64,
    /// Of these, wrong ones.
    pub mismatch_count: u64,
    /// Operations by the number in flight when they were sent: 1, 2 to 3, 4 to 7, up to 64 and more.
    pub depth_levels: [u64; 7],
}

impl CounterResult {
    /// Of all lanes' counters, merged, and the number of overdue operations at the end.
    pub const fn new(counters: &Counters, overdue: u64) -> Self {
        Self {
            overdue,
            unanswered: 0,
            held_back: counters.held_back,
            blocks_checked: counters.blocks_checked,
            mismatch_count: counters.mismatch_count,
            depth_levels: counters.depth_levels,
        }
    }
}

/// One lane's counters.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct LaneResult {
    /// Number of the lane, from 0.
    pub lane: u32,
    /// Class of its commands.
    pub class: &'static str,
    /// Core of its thread, if pinned.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub core: Option<usize>,
    /// Each counter's name and value.
    pub counters: BTreeMap<String, serde_json::Value>,
}

/// Use of local storage, from the first operation of the run on.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct StorageResult {
    /// Size of the file or device, bytes.
    pub bytes: u64,
    /// Whether reads and writes bypassed the page cache.
    pub is_direct: bool,
    /// Whether buffers were registered with the kernel.
    pub has_registered_buffers: bool,
    /// Whether the file was.
    pub has_registered_file: bool,
    /// Operations that completed.
    pub operation_count: u64,
    /// Calls of the kernel that submitted operations or took in completions.
    pub call_count: u64,
    /// Calls of these that slept.
    pub sleep_count: u64,
}

/// How long commands spent in one phase.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PhaseResult {
    /// Which.
    pub phase: &'static str,
    /// Commands that were followed.
    pub count: u64,
    /// The mean, ns.
    pub mean_ns: u64,
    /// The median, ns, to a factor of two.
    pub p50_ns: u64,
    /// The 99th percentile, ns, to a factor of two.
    pub p99_ns: u64,
    /// The longest, ns.
    pub max_ns: u64,
}

impl PhaseResult {
    /// The result of `phase`.
    pub fn new(phase: &'static str, times: &reactor::Durations) -> Self {
        Self {
            phase,
            count: times.count,
            mean_ns: times.mean_ns(),
            p50_ns: times.percentile_ns(50),
            p99_ns: times.percentile_ns(99),
            max_ns: times.max_ns,
        }
    }
}

/// How steady the rate was at the end.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct SteadyResult {
    /// Whether the slope was within the limit.
    pub attained: bool,
    /// Slope of the last window, percent of the mean per sample.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slope_percent: Option<f64>,
    /// The limit.
    pub limit_percent: f64,
}

/// A made-up result for the tests of the forms.
#[cfg(test)]
pub(crate) mod example {
    use super::*;
    use crate::environment::{Interface, Jitter};
    use crate::recorder::{Failure, Recorder};
    use crate::workload::{Deallocated, Geometry, Pattern, Workload};

    pub(crate) fn environment() -> Environment {
        Environment {
            nvlane_version: "0.1.0".into(),
            commit: Some("abc1234".into()),
            command_line: "nvlane perf 127.0.0.1:4420 -q 32 -w randrw".into(),
            unix_ms: 1_735_689_599_123,
            date: "2024-12-31T23:59:59Z".into(),
            kernel: Some("6.12.1".into()),
            architecture: "x86_64".into(),
            cpu_model: Some("Some Processor".into()),
            core_count: 2,
            virtual_machine: true,
            emulated: false,
            governor: None,
            mitigations: Some("mitigated: spectre_v2".into()),
            memory_bytes: Some(8 << 30),
            congestion_control: Some("cubic".into()),
            interface: Some(Interface { name: "lo".into(), mtu: 65_536 }),
            jitter: Some(Jitter { duration_ns: 20_000_000, gap_ns_max: 31_000, lost_percent: 0.5 }),
        }
    }

    pub(crate) fn report(pace: Pace) -> Report {
        let pattern = Pattern::named("randrw", Some(70)).unwrap();
        let geometry = Geometry {
            lba_bytes: 512,
            block_count: 2048,
            transfer_limit_bytes: None,
            deallocated: Deallocated::Zeroes,
        };
        let workload = Workload { pattern, pace, ..Workload::default() };
        let plan = workload.plan(&geometry, 1).unwrap();
        let mut recorder = Recorder::new(pace != Pace::Closed);
        for i in 0..1000 {
            let kind = if i % 10 < 7 { Kind::Read } else { Kind::Write };
            recorder.record(kind, 4096, 0, 2_000, 22_000 + i * 100);
        }
        recorder.record(Kind::Write, 4096, 0, 0, 30_000_000_000);
        recorder.record_failure(Kind::Write, Failure::Status { sct: 0, sc: 0x80 });
        let mut interval = Tally::default();
        recorder.roll(&mut interval);
        let mut report = Report::new(&plan, environment(), &recorder.into_total(), 2_000_000_000);
        report.target = "127.0.0.1:4420".into();
        report.series = vec![Sample::new(&interval, 1_000_000_000, 1_000_000_000), Sample::default()];
        let used =
            CpuTime { user_ns: 300_000, system_ns: 500_000, voluntary_switches: 12, involuntary_switches: 3 };
        report.cpu.generator = Some(CpuShare::new(used, 2_000_000_000, 1_001));
        report.cpu.target = Some(CpuShare::new(
            used - CpuTime { user_ns: 100_000, ..CpuTime::default() },
            2_000_000_000,
            1_001,
        ));
        report.cpu.steal_percent = Some(0.25);
        let counters =
            Counters { blocks_checked: 5_600, depth_levels: [1, 2, 4, 8, 16, 970, 0], ..Counters::default() };
        report.counters = CounterResult::new(&counters, if pace == Pace::Closed { 0 } else { 47 });
        report.lanes = vec![LaneResult {
            lane: 0,
            class: "default",
            core: Some(1),
            counters: [("caravans", 77), ("commands", 308), ("sent_bytes", 22_176), ("rings_turn", 77)]
                .map(|(name, count)| (name.to_owned(), count.into()))
                .into(),
        }];
        let mut times = reactor::Durations::default();
        [400, 600, 5_000].into_iter().for_each(|ns| times.add(ns));
        report.phases = vec![PhaseResult::new("doorbell", &times)];
        report
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_over_the_measured_time() {
        let report = example::report(Pace::Closed);
        let read = report.kind(Kind::Read).unwrap();
        assert_eq!((read.operations, read.bytes, read.iops), (700, 700 * 4096, 350.0));
        assert_eq!(report.total.iops, 500.5);
        assert_eq!(report.total.error_count, 1);
        assert_eq!(report.kind(Kind::Trim), None);
        assert_eq!(per_second(5, 0), 0.0);
    }

    #[test]
    fn an_open_loop_reports_both_times_and_prefers_the_response() {
        let report = example::report(Pace::Open { rate_per_s: 500.0, arrival: Arrival::Poisson });
        let read = report.kind(Kind::Read).unwrap();
        assert_eq!(read.service.min_ns, 20_000);
        assert_eq!(read.response.as_ref().unwrap().min_ns, 22_000);
        assert_eq!(read.latency().min_ns, 22_000);
        assert_eq!(report.workload.arrival, Some("poisson"));
    }

    #[test]
    fn processor_time_is_per_operation_and_per_core() {
        let used = CpuTime { user_ns: 1_000, system_ns: 3_000, ..CpuTime::default() };
        let share = CpuShare::new(used, 8_000, 10);
        assert_eq!((share.user_ns_per_operation, share.system_ns_per_operation), (100.0, 300.0));
        assert_eq!((share.user_percent, share.system_percent), (12.5, 37.5));
        assert_eq!(share.ns_per_operation(), 400.0);
        assert_eq!(CpuShare::new(used, 0, 0).user_percent, 0.0);
    }

    #[test]
    fn percentiles_are_found_by_their_percentage() {
        let report = example::report(Pace::Closed);
        let latency = report.total.latency();
        assert!(latency.percentile_ns(99.0).is_some());
        assert_eq!(latency.percentile_ns(100.0), Some(30_000_000_000));
        assert_eq!(latency.percentile_ns(99.1), None);
    }
}
