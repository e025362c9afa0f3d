//! `low-load-latency`: what batching costs when there is nothing to batch.

use std::time::Duration;

use load::workload::{Arrival, Pace};

use super::{IO_BYTES, bars};
use crate::bench::{Bench, values};
use crate::doorbell::{self, ADAPTIVE, FIXED, IMMEDIATE, POLICIES, TURN};
use crate::experiment::{About, Cell, Claim, Error, Experiment, Values};
use crate::figure::{Axis, Figure, Plot};
use crate::headline::{Bar, Headline, Headlines};
use crate::measured::Measured;

/// Name and operations per second of an open loop; none for one operation after the other.
const LOADS: [(&str, Option<u32>); 4] =
    [("qd1", None), ("1k per s", Some(1_000)), ("5k per s", Some(5_000)), ("20k per s", Some(20_000))];

/// Operations in flight at most, in an open loop.
const DEPTH: u32 = 32;

/// What the default may add to p99, µs.
const ADDED: Bar = Bar::AtMost(2.0);

/// Every policy under little load.
#[derive(Debug, Default)]
pub(crate) struct LowLoadLatency;

impl Experiment for LowLoadLatency {
    fn about(&self) -> About {
        About {
            name: "low-load-latency",
            title: "What does waiting for company cost who is alone?",
            method: "One lane, reads of 4 KiB, one core for each side: one operation after the other, and Poisson arrivals far below \
                     what the lane can carry, with latency from the moment each was due. Both sides spin, so that waking up, which costs more than \
                     any policy, is not what is measured. What a policy adds to p99 is its distance \
                     from ringing at once, each in its quietest round (what disturbs a round only ever adds), under the load where \
                     that is largest.",
            claims: vec![Claim {
                source: "i10, Netdev 0x14 (2020)",
                says: "Delayed doorbells: the tail latency is 117 µs higher than with RDMA, most of it waiting for company.",
                number: "+117 µs",
                ours: "adaptive_p99_added_us",
            }],
            judged_by: "p50_us",
            columns: &["p50_us", "p99_us", "p999_us", "iops", "host_us", "target_us"],
        }
    }

    fn cells(&self) -> Vec<Cell> {
        let of =
            |load: &str, policy| Cell::new(cell_name(load, policy)).with("load", load).with("policy", policy);
        LOADS.into_iter().flat_map(|(load, _)| POLICIES.map(|policy| of(load, policy))).collect()
    }

    fn measure(&mut self, cell: &Cell, bench: &Bench) -> Result<Values, Error> {
        let policy = cell.text("policy");
        // Of several that spin each would have a part of the core.
        let served = doorbell::serve(bench, policy, &["--spin", "always"])?;
        let rate = LOADS.into_iter().find(|(name, _)| *name == cell.text("load")).and_then(|(_, rate)| rate);
        let mut load = bench.load("randread", None, IO_BYTES, 1).with_doorbell(policy);
        load.options.spin = Duration::MAX;
        if let Some(rate) = rate {
            load.workload.pace = Pace::Open { rate_per_s: rate.into(), arrival: Arrival::Poisson };
            load.workload.depth = DEPTH;
        }
        Ok(values(&bench.run(&served, load)?.report))
    }

    fn headline(&self, measured: &Measured) -> Vec<Headline> {
        // What disturbs a round only ever adds.
        let quietest = |load: &str, policy: &str| {
            let rounds = measured.cell(&cell_name(load, policy))?.each("p99_us");
            rounds.into_iter().min_by(f64::total_cmp)
        };
        let added = |policy: &str| {
            let of =
                |(load, _): (&str, Option<u32>)| Some(quietest(load, policy)? - quietest(load, IMMEDIATE)?);
            LOADS.into_iter().filter_map(of).max_by(f64::total_cmp)
        };
        let mut headlines = Headlines::default();
        headlines.push("adaptive_p99_added_us", added(ADAPTIVE), Some(ADDED));
        headlines.push("fixed_p99_added_us", added(FIXED), None);
        headlines.push("turn_p99_added_us", added(TURN), None);
        headlines.into_vec()
    }

    fn figures(&self, measured: &Measured) -> Vec<Figure> {
        let figure = |title: &str, value: &str| {
            let names = LOADS.map(|(load, _)| load.to_owned()).to_vec();
            let of =
                |policy: &str| bars(policy, measured, LOADS.map(|(load, _)| cell_name(load, policy)), value);
            Figure {
                title: title.into(),
                note: "From the moment an operation was due to its completion. Lower is better.".into(),
                plot: Plot::bars("", names, Axis::log("µs"), POLICIES.map(of).into()),
            }
        };
        vec![figure("p50 under little load", "p50_us"), figure("p99 under little load", "p99_us")]
    }
}

fn cell_name(load: &str, policy: &str) -> String {
    format!("{load} {policy}")
}
