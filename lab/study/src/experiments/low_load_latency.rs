//! `low-load-latency`: the latency that batching adds when there is nothing to batch.

use std::collections::BTreeMap;
use std::time::Duration;

use load::workload::{Arrival, Pace};

use super::prelude::*;
use crate::bench::Times;
use crate::doorbell::{self, ADAPTIVE, FIXED, IMMEDIATE, POLICIES, TURN};

/// Name and operations per second of an open loop; `None`: a closed loop at depth 1.
const LOADS: [(&str, Option<u32>); 4] =
    [("qd1", None), ("1k per s", Some(1_000)), ("5k per s", Some(5_000)), ("20k per s", Some(20_000))];

/// Operations in flight at most, in an open loop.
const DEPTH: u32 = 32;

/// Short measurements whose median is one measurement.
const PART_COUNT: u32 = 10;

/// Time that the default policy may add to p99, µs.
const ADDED: Bar = Bar::AtMost(2.0);

pub(crate) const ABOUT: About = About {
    name: "low-load-latency",
    title: "What does batching delay cost a lone request?",
    method: "One lane, reads of 4 KiB, one core for each side: one operation after the other, and Poisson arrivals far below \
             what the lane can carry, with latency from the moment each was due. Both sides spin, so that waking up, which costs more than \
             any policy, is not what is measured. A measurement is ten short ones, of which the median counts: a virtual machine stands \
             still for milliseconds a few times a second, and p99 of a longer stretch under so little load reflects only that. What a policy \
             adds to p99 is its distance from ringing at once in the same round, the median of rounds, under the load where that is \
             largest.",
    claims: &[Claim {
        source: "i10, Netdev 0x14 (2020)",
        says: "Delayed doorbells: the tail latency is 117 µs higher than with RDMA, most of it waiting for other requests.",
        number: "+117 µs",
        ours: "adaptive_p99_added_us",
    }],
    machines: Machines::OneOrTwo,
    judged_by: "p50_us",
    columns: "p50_us p99_us mean_us iops",
};

/// Every policy under low load.
#[derive(Debug, Default)]
pub(crate) struct LowLoadLatency;

impl Experiment for LowLoadLatency {
    fn cells(&self) -> Vec<Cell> {
        let of =
            |load: &str, policy| Cell::new(cell_name(load, policy)).with("load", load).with("policy", policy);
        LOADS.into_iter().flat_map(|(load, _)| POLICIES.map(|policy| of(load, policy))).collect()
    }

    fn measure(&mut self, cell: &Cell, bench: &Bench) -> Result<Values, Error> {
        let policy = cell.text("policy");
        // One target at a time: several that spin would share the core.
        let served = doorbell::serve(
            bench,
            policy,
            TargetTuning { spin: Some(Spin::Always), ..TargetTuning::default() },
        )?;
        let rate = LOADS.into_iter().find(|(name, _)| *name == cell.text("load")).and_then(|(_, rate)| rate);
        let mut load = bench.load("randread", None, IO_BYTES, 1).with_doorbell(policy);
        load.options.tuning.spin = Duration::MAX;
        if let Some(rate) = rate {
            load.workload.pace = Pace::Open { rate_per_s: rate.into(), arrival: Arrival::Poisson };
            load.workload.depth = DEPTH;
        }
        let short = Bench { times: Times::of(bench.times.measure / PART_COUNT), ..bench.clone() };
        let mut parts = Vec::new();
        for _ in 0..PART_COUNT {
            parts.push(values(&short.run(&served, load.clone())?.report));
        }
        Ok(medians(&parts))
    }

    fn answer(&self, measured: &Measured, headlines: &mut Headlines) {
        let added = |policy: &str| {
            let of = |(load, _): (&str, Option<u32>)| {
                measured.difference(&cell_name(load, policy), &cell_name(load, IMMEDIATE), "p99_us")
            };
            LOADS.into_iter().filter_map(of).max_by(f64::total_cmp)
        };
        headlines.push("adaptive_p99_added_us", added(ADAPTIVE), Some(ADDED));
        headlines.tell("fixed_p99_added_us", added(FIXED));
        headlines.tell("turn_p99_added_us", added(TURN));
    }

    fn figures(&self, measured: &Measured) -> Vec<Figure> {
        let figure = |title: &str, value: &str| {
            let names = LOADS.map(|(load, _)| load.to_owned()).to_vec();
            let of =
                |policy: &str| bars(policy, measured, LOADS.map(|(load, _)| cell_name(load, policy)), value);
            let plot = Plot::bars("", names, Axis::log("µs"), POLICIES.map(of).into());
            Figure::new(
                title,
                "From the moment an operation was due to its completion. Lower is better.",
                plot,
            )
        };
        vec![figure("p50 under little load", "p50_us"), figure("p99 under little load", "p99_us")]
    }
}

/// The median of each value.
fn medians(parts: &[Values]) -> Values {
    let names = parts.first().into_iter().flat_map(BTreeMap::keys).copied();
    let median = |name: &str| {
        let mut each: Vec<f64> = parts.iter().filter_map(|part| part.get(name).copied()).collect();
        each.sort_by(f64::total_cmp);
        each[each.len() / 2]
    };
    names.map(|name| (name, median(name))).collect()
}

fn cell_name(load: &str, policy: &str) -> String {
    format!("{load} {policy}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_disturbs_a_few_parts_does_not_count() {
        let parts = [9.0, 8.0, 900.0, 8.5, 700.0].map(|p99| Values::from([("p99_us", p99)]));
        assert_eq!(medians(&parts), Values::from([("p99_us", 9.0)]));
        assert!(medians(&[]).is_empty());
    }
}
