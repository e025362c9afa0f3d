//! `kv-atomics`: increments of one counter, and of up to a million.

use load::key_value::KeyValueLoad;

use super::prelude::*;
use crate::key_value::{Pairs, mix, values};

const KEY_COUNTS: [u64; 4] = [1, 100, 10_000, 1_000_000];

/// Owners of the keys: the reactor of the lane, or that and a second one.
const ONE: &str = "one reactor";
const TWO: &str = "two reactors";

/// Operations of a batch, and batches in flight.
const BATCH: u16 = 64;
const DEPTH: u16 = 4;

const HOT: Bar = Bar::AtLeast(0.9);

pub(crate) const ABOUT: About = About {
    name: "kv-atomics",
    title: "Does a hot counter slow down?",
    method: "Fetch-and-add on 1 to 1,000,000 counters of 8 bytes, batches of 64, four in flight on one lane. With one reactor every \
             counter is where the lane is; with two, one on the load's core, half of them are in the other one's partition, or the only one \
             is, which the reactor of the lane uses where it lies. Operations on one key run one after the other where it is: the cache forwards \
             what the one before has written, and nothing waits.",
    claims: &[Claim {
        source: "KV-Direct (SOSP 2017)",
        says: "Atomics on a single key: 180 million per second with out-of-order execution, 0.94 million when each waits for \
               the one before.",
        number: "191 times",
        ours: "hot_over_million_one",
    }],
    machines: Machines::TwoWithout("two reactors, because one of them is on the core of the load"),
    judged_by: "ops_per_cpu",
    columns: "ops_per_cpu ops target_ns p50_us p99_us",
};

/// Increments of different numbers of counters.
#[derive(Debug, Default)]
pub(crate) struct KvAtomics {
    /// With one reactor, and with two.
    pairs: Kept<bool, Pairs>,
}

impl Experiment for KvAtomics {
    fn cells(&self) -> Vec<Cell> {
        let of = |where_: &'static str, keys: u64| {
            Cell::new(cell_name(where_, keys)).with("where", where_).with("keys", keys)
        };
        [ONE, TWO].into_iter().flat_map(|where_| KEY_COUNTS.map(|keys| of(where_, keys))).collect()
    }

    fn suits(&self, cell: &Cell, bench: &Bench) -> bool {
        !bench.is_remote() || cell.text("where") == ONE
    }

    fn check(&self, bench: &Bench) -> Result<(), Error> {
        match bench.cores {
            Some(_) => Ok(()),
            None => Err(Error::Lacking("two reactors need two cores: give this process a second one".into())),
        }
    }

    fn measure(&mut self, cell: &Cell, bench: &Bench) -> Result<Values, Error> {
        let is_one = cell.text("where") == ONE;
        let serve = if is_one { Pairs::serve } else { Pairs::share };
        let pairs = self.pairs.get(is_one, || serve(bench, ServedOptions::of(["kv:ram:256M"])))?;
        let load = KeyValueLoad {
            mix: mix("add"),
            keys: cell.number("keys"),
            batch: BATCH,
            depth: DEPTH,
            fill: false,
            ..KeyValueLoad::default()
        };
        Ok(values(&pairs.run(bench, load)?))
    }

    fn answer(&self, measured: &Measured, headlines: &mut Headlines) {
        for (where_, name) in [(ONE, "one"), (TWO, "two")] {
            let most = cell_name(where_, 1_000_000);
            let hot = measured.ratio(&cell_name(where_, 1), &most, "ops_per_cpu");
            headlines.push(format!("hot_over_million_{name}"), hot, Some(HOT));
        }
    }

    fn figures(&self, measured: &Measured) -> Vec<Figure> {
        let over = |where_: &str| {
            let cells = measured.cells.iter().filter(|cell| cell.cell.text("where") == where_);
            line(where_, cells, "keys", "ops_per_cpu")
        };
        vec![Figure::new(
            "Increments per core of the target",
            "Operations for each second of the target's processor time. Higher is better.",
            Plot::lines(
                Axis::log("counters"),
                ticks(&KEY_COUNTS, |count| count.to_string()),
                Axis::linear("operations per core"),
                vec![over(ONE), over(TWO)],
            ),
        )]
    }
}

fn cell_name(where_: &str, keys: u64) -> String {
    format!("{where_}, {keys} {}", if keys == 1 { "key" } else { "keys" })
}
