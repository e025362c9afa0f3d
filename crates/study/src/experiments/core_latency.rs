//! `core-latency`: the load that one core carries before latency rises steeply.

use load::workload::{Arrival, Pace};

use super::prelude::*;
use crate::doorbell::{ADAPTIVE, FIXED, IMMEDIATE, POLICIES, PolicyTargets, TURN};

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

pub(crate) const ABOUT: About = About {
    name: "core-latency",
    title: "How much does a core carry before latency runs away?",
    method: "One lane, reads of 4 KiB with Poisson arrivals at rising rates, one core for each side; latency from the moment each \
             was due, so that falling behind cannot hide. The rates are shares of what a closed loop carries, the same for \
             all policies. The knee is the most that is carried whole with p50 below one millisecond.",
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
    columns: &["offered_iops", "iops", "p50_us", "p99_us", "p999_us", "host_us", "target_us"],
};

/// Every policy under rising load.
#[derive(Debug, Default)]
pub(crate) struct CoreLatency {
    targets: PolicyTargets,
    /// Throughput of the closed loop: 100 %.
    full_iops: Option<f64>,
}

impl CoreLatency {
    /// The closed loop from which the offered load of all policies follows.
    fn full_iops(&mut self, bench: &Bench) -> Result<f64, Error> {
        if let Some(iops) = self.full_iops {
            return Ok(iops);
        }
        let served = self.targets.get(bench, TURN)?;
        let load = bench.load("randread", None, IO_BYTES, DEPTH).with_doorbell(TURN);
        let iops = bench.run(served, load)?.report.total.iops;
        Ok(*self.full_iops.insert(iops))
    }
}

impl Experiment for CoreLatency {
    fn cells(&self) -> Vec<Cell> {
        let of = |policy: &str, percent: u64| {
            Cell::new(format!("{policy} {percent} %")).with("policy", policy).with("percent", percent)
        };
        PERCENTAGES.into_iter().flat_map(|percent| POLICIES.map(|policy| of(policy, percent))).collect()
    }

    fn measure(&mut self, cell: &Cell, bench: &Bench) -> Result<Values, Error> {
        let offered = self.full_iops(bench)? * f64::from(cell.word("percent")) / 100.0;
        let policy = cell.text("policy");
        let served = self.targets.get(bench, policy)?;
        let mut load = bench.load("randread", None, IO_BYTES, DEPTH).with_doorbell(policy);
        load.workload.pace = Pace::Open { rate_per_s: offered, arrival: Arrival::Poisson };
        let mut values = values(&bench.run(served, load)?.report);
        values.insert("offered_iops", offered);
        Ok(values)
    }

    fn answer(&self, measured: &Measured, headlines: &mut Headlines) {
        let over_immediate = |policy| Some(knee(measured, policy)? / knee(measured, IMMEDIATE)?);
        headlines.push("knee_gain_adaptive_over_immediate", over_immediate(ADAPTIVE), Some(GAIN));
        headlines.push("knee_gain_fixed_over_immediate", over_immediate(FIXED), None);
        headlines.push("knee_gain_turn_over_immediate", over_immediate(TURN), None);
        for policy in POLICIES {
            headlines.push(format!("knee_iops_{policy}"), knee(measured, policy), None);
        }
    }

    fn figures(&self, measured: &Measured) -> Vec<Figure> {
        let figure = |title: &str, value: &str| {
            let series =
                POLICIES.map(|policy| against(policy, measured.of("policy", policy), ("iops", value)));
            let plot = Plot::lines(
                Axis::linear("IOPS of one core each"),
                Vec::new(),
                Axis::log("µs"),
                series.into(),
            );
            let plot = plot.with_mark("1 ms", P50_US);
            Figure::new(title, "To the right is more throughput, down is less latency.", plot)
        };
        vec![
            figure("p50 against throughput", "p50_us"),
            figure("p99 against throughput", "p99_us"),
            figure("p99.9 against throughput", "p999_us"),
        ]
    }
}

/// Highest throughput of a policy at which p50 is within [`P50_US`], IOPS.
fn knee(measured: &Measured, policy: &str) -> Option<f64> {
    let is_carried = |cell: &&CellRounds| {
        let median = |value| cell.median(value);
        let is_whole =
            median("iops").zip(median("offered_iops")).map(|(iops, offered)| iops >= offered * CARRIED_SHARE);
        is_whole == Some(true) && median("p50_us").is_some_and(|us| us <= P50_US)
    };
    let carried = measured.of("policy", policy).filter(is_carried);
    carried.filter_map(|cell| cell.median("iops")).max_by(f64::total_cmp)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiments::testing::{headline_of, of_key};

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
}
