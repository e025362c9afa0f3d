//! `core-latency`: the load that one core carries before latency rises steeply, on storage without a time of its own, with a
//! fixed one, and on a file.

use std::collections::BTreeMap;

use load::runner::Finished;
use load::workload::{Arrival, Pace};

use super::prelude::*;
use crate::bench::Load;
use crate::doorbell::{ADAPTIVE, FIXED, IMMEDIATE, POLICIES, PolicyTargets, TURN};
use crate::study_file::StudyFile;

/// Offered load, percent of the throughput of a closed loop of depth [`DEPTH`] on this machine.
const PERCENTAGES: [u64; 8] = [5, 15, 30, 45, 60, 75, 90, 105];

/// Maximum of operations in flight; operations due beyond it wait, and the wait counts as latency.
const DEPTH: u32 = 256;

/// Limit of p50 at the knee, µs: at overload p50 rises beyond it at once. p99, which stalls of the machine dominate,
/// is in the table and the figures.
const P50_US: f64 = 1000.0;

/// A rate is sustained if this share of the offered operations completes.
const CARRIED_SHARE: f64 = 0.97;

const GAIN: Bar = Bar::AtLeast(1.5);

/// Storage without a time of its own, as `--storage` names it: the usual one.
const NULL: &str = "null";
/// Storage that takes a fixed time for each operation.
const DELAY: &str = "delay";
/// A file that was written once.
const FILE: &str = "file";

/// Storage, and its description in titles.
const STORAGES: [(&str, &str); 3] = [(NULL, ""), (DELAY, ", storage of 100 µs"), (FILE, ", file")];

/// Namespace of [`DELAY`]: about the time of a read from an SSD.
const DELAYED: &str = "null:1T?delay=100us";

/// Size of the file, bytes.
const FILE_BYTES: u64 = 256 << 20;

pub(crate) const ABOUT: About = About {
    name: "core-latency",
    title: "How much load does a core carry before its latency rises steeply?",
    method: "One lane, reads of 4 KiB with Poisson arrivals at rising rates, one core for each side; latency from the moment each \
             was due, so that falling behind cannot hide. The rates are shares of what a closed loop carries, the same for \
             all policies. The knee is the most that is carried whole with p50 below one millisecond. On storage that takes 100 µs \
             for each operation (--storage delay), and on a file of 256 MiB with direct I/O (--storage file), the rates are shares of \
             what that storage carries in a closed loop.",
    claims: &[
        Claim {
            source: "i10, Netdev 0x14 (2020)",
            says: "A core carries about twice as much over RDMA as over the kernel's NVMe over TCP, and with i10 as much as over RDMA.",
            number: "≈ 2 times",
            ours: "knee_gain_adaptive_over_immediate",
        },
        Claim {
            source: "ADQ, Netdev 0x14 (2020)",
            says: "Memcached within one millisecond at p99.9: 8 million operations per second without ADQ, 19 million with it.",
            number: "2.4 times",
            ours: "knee_gain_adaptive_over_immediate",
        },
    ],
    machines: Machines::OneOrTwo,
    judged_by: "iops",
    columns: "offered_iops iops p50_us p99_us p999_us host_us target_us",
};

/// Every policy under rising load.
#[derive(Debug, Default)]
pub(crate) struct CoreLatency {
    targets: PolicyTargets,
    file: Kept<(), StudyFile>,
    /// Throughput of the closed loop on each storage: 100 %.
    full_iops: BTreeMap<&'static str, f64>,
}

impl CoreLatency {
    /// The closed loop from which the offered load of all policies follows.
    fn full_iops(&mut self, storage: &'static str, bench: &Bench) -> Result<f64, Error> {
        if let Some(iops) = self.full_iops.get(storage) {
            return Ok(*iops);
        }
        let load = bench.load("randread", None, IO_BYTES, DEPTH).with_doorbell(TURN);
        let iops = self.run(storage, TURN, bench, load)?.report.total.iops;
        self.full_iops.insert(storage, iops);
        Ok(iops)
    }

    /// Runs a load on a target with this storage and policy.
    fn run(&mut self, storage: &str, policy: &str, bench: &Bench, load: Load) -> Result<Finished, Error> {
        let namespace = match storage {
            NULL => return bench.run(self.targets.get(bench, policy)?, load),
            DELAY => ServedOptions::of([DELAYED]),
            _ => self.file.get((), || StudyFile::new(bench, FILE_BYTES))?.served(),
        };
        // A file is locked by the target that has it: one at a time.
        let tuning = TargetTuning { doorbell: policy.parse().ok(), ..TargetTuning::default() };
        let served = bench.serve_with(namespace.tuned(tuning))?;
        let finished = bench.run(&served, load)?;
        served.stop()?;
        Ok(finished)
    }
}

impl Experiment for CoreLatency {
    fn cells(&self) -> Vec<Cell> {
        let of = |storage: &str, policy: &str, percent: u64| {
            let storage_name = if storage == NULL { String::new() } else { format!("{storage} ") };
            Cell::new(format!("{storage_name}{policy} {percent} %"))
                .with("storage", storage)
                .with("policy", policy)
                .with("percent", percent)
        };
        let mut cells = Vec::new();
        for (storage, _) in STORAGES {
            for percent in PERCENTAGES {
                cells.extend(POLICIES.map(|policy| of(storage, policy, percent)));
            }
        }
        cells
    }

    fn measure(&mut self, cell: &Cell, bench: &Bench) -> Result<Values, Error> {
        let (storage, _) = cell.one_of("storage", STORAGES, |storage| storage.0);
        let offered = self.full_iops(storage, bench)? * f64::from(cell.word("percent")) / 100.0;
        let policy = cell.text("policy");
        let mut load = bench.load("randread", None, IO_BYTES, DEPTH).with_doorbell(policy);
        load.workload.pace = Pace::Open { rate_per_s: offered, arrival: Arrival::Poisson };
        let mut values = values(&self.run(storage, policy, bench, load)?.report);
        values.insert("offered_iops", offered);
        Ok(values)
    }

    fn answer(&self, measured: &Measured, headlines: &mut Headlines) {
        for (storage, _) in STORAGES {
            let knee = |policy| knee(measured, storage, policy);
            let over_immediate = |policy| Some(knee(policy)? / opposite_knee(measured, storage, IMMEDIATE)?);
            let (of, bar) =
                if storage == NULL { (String::new(), Some(GAIN)) } else { (format!("{storage}_"), None) };
            for (policy, bar) in [(ADAPTIVE, bar), (FIXED, None), (TURN, None)] {
                headlines.push(format!("knee_gain_{of}{policy}_over_immediate"), over_immediate(policy), bar);
            }
            for policy in POLICIES {
                headlines.tell(format!("knee_iops_{of}{policy}"), knee(policy));
            }
        }
    }

    fn figures(&self, measured: &Measured) -> Vec<Figure> {
        let figure = |(storage, of): (&str, &str), percentile: &str, value: &str| {
            let series =
                POLICIES.map(|policy| against(policy, cells_of(measured, storage, policy), ("iops", value)));
            let plot = Plot::lines(
                Axis::linear("IOPS of one core each"),
                Vec::new(),
                Axis::log("µs"),
                series.into(),
            );
            let plot = plot.with_mark("1 ms", P50_US);
            let title = format!("{percentile} against throughput{of}");
            Figure::new(title, "To the right is more throughput, down is less latency.", plot)
        };
        let is_measured =
            |(storage, _): &(&str, &str)| measured.of("storage", storage).any(|cell| cell.calm_count() > 0);
        let of = |storage| {
            [("p50", "p50_us"), ("p99", "p99_us"), ("p99.9", "p999_us")]
                .map(|(percentile, value)| figure(storage, percentile, value))
        };
        STORAGES.into_iter().filter(is_measured).flat_map(of).collect()
    }
}

/// The cells of a policy on a storage.
fn cells_of<'a>(
    measured: &'a Measured,
    storage: &'a str,
    policy: &'a str,
) -> impl Iterator<Item = &'a CellRounds> {
    measured.of("policy", policy).filter(move |cell| cell.cell.text("storage") == storage)
}

/// Highest throughput of a policy at which p50 is within [`P50_US`], IOPS.
fn knee(measured: &Measured, storage: &str, policy: &str) -> Option<f64> {
    knee_by(measured, storage, policy, [CellRounds::median, CellRounds::opposite_median])
}

/// As above, at the other end of its interval, for a number that falls as this knee rises.
fn opposite_knee(measured: &Measured, storage: &str, policy: &str) -> Option<f64> {
    knee_by(measured, storage, policy, [CellRounds::opposite_median, CellRounds::median])
}

/// The knee by a median of rates, which raises it, and one of latencies, which lowers it.
fn knee_by(
    measured: &Measured,
    storage: &str,
    policy: &str,
    [rate, latency]: [fn(&CellRounds, &str) -> Option<f64>; 2],
) -> Option<f64> {
    let is_carried = |cell: &&CellRounds| {
        let rates = rate(cell, "iops").zip(cell.spread("offered_iops"));
        let is_whole = rates.is_some_and(|(iops, offered)| iops >= offered.median * CARRIED_SHARE);
        is_whole && latency(cell, "p50_us").is_some_and(|us| us <= P50_US)
    };
    let carried = cells_of(measured, storage, policy).filter(is_carried);
    carried.filter_map(|cell| rate(cell, "iops")).max_by(f64::total_cmp)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiments::testing::{headline_of, of_key};
    use crate::measured::of_rounds;

    #[test]
    fn what_is_not_carried_whole_is_past_the_knee() {
        let headline = headline_of(&CoreLatency::default(), |cell| {
            let offered = f64::from(cell.word("percent")) * 1e4;
            let iops = if cell.text("policy") == IMMEDIATE { offered.min(3e5) } else { offered };
            [("iops", iops), ("offered_iops", offered), ("p50_us", 10.0)]
        });
        assert_eq!(of_key(&headline, "knee_gain_adaptive_over_immediate").value, 3.5);
    }

    #[test]
    fn the_knee_is_the_most_that_stays_in_time() {
        let headline = headline_of(&CoreLatency::default(), |cell| {
            let percent = f64::from(cell.word("percent"));
            let knee = if cell.text("policy") == IMMEDIATE { 30.0 } else { 75.0 };
            let p50_us = if percent <= knee { 100.0 } else { 50_000.0 };
            [("iops", percent * 1e4), ("offered_iops", percent * 1e4), ("p50_us", p50_us)]
        });
        assert_eq!(of_key(&headline, "knee_gain_turn_over_immediate").value, 2.5);
        assert_eq!(of_key(&headline, "knee_iops_immediate").value, 300_000.0);
    }

    #[test]
    fn each_storage_has_its_knee_and_its_figures() {
        let values = |cell: &Cell| {
            let percent = f64::from(cell.word("percent"));
            let knee = if cell.text("storage") == DELAY { 60.0 } else { 90.0 };
            let p50_us = if percent <= knee { 200.0 } else { 9_000.0 };
            [("iops", percent * 1e3), ("offered_iops", percent * 1e3), ("p50_us", p50_us)]
        };
        let headline = headline_of(&CoreLatency::default(), values);
        assert_eq!(of_key(&headline, "knee_iops_delay_adaptive").value, 60e3);
        assert_eq!(of_key(&headline, "knee_iops_file_turn").value, 90e3);
        assert_eq!(of_key(&headline, "knee_gain_delay_adaptive_over_immediate").is_reached(), None);
        assert!(of_key(&headline, "knee_gain_adaptive_over_immediate").is_reached().is_some());
        let experiment = CoreLatency::default();
        let on = |wanted: &[&str]| {
            let cells = experiment.cells().into_iter().filter(|cell| wanted.contains(&cell.text("storage")));
            let measured =
                of_rounds(cells.map(|cell| (cell.clone(), vec![values(&cell).to_vec()])).collect());
            experiment.figures(&measured)
        };
        let titles: Vec<String> = on(&[NULL]).into_iter().map(|figure| figure.title).collect();
        assert_eq!(titles, ["p50 against throughput", "p99 against throughput", "p99.9 against throughput"]);
        let of_two = on(&[DELAY, FILE]);
        assert_eq!(of_two.len(), 6);
        assert_eq!(of_two[0].title, "p50 against throughput, storage of 100 µs");
        assert!(of_two[0].plot.series.iter().all(|series| series.points.len() == PERCENTAGES.len()));
    }
}
