//! `kv-batching`: from one operation to hundreds in a capsule.

use load::key_value::{KeyValueLoad, Mix};

use super::prelude::*;
use crate::key_value::{Pairs, values};

const KINDS: [&str; 3] = ["get", "set", "add"];
const SIZES: [u32; 4] = [1, 16, 64, 256];

/// Batches in flight.
const BATCH_DEPTH: u16 = 4;
/// Commands in flight that carry one operation each: as many operations as the largest batches have.
const SINGLE_DEPTH: u16 = 1023;

const GAIN: Bar = Bar::AtLeast(10.0);

pub(crate) const ABOUT: About = About {
    name: "kv-batching",
    title: "What does it save to carry many key-value operations in one capsule?",
    method: "Gets, sets and increments on 100,000 keys of 16 bytes, values of 32, one lane, one core for each side. Batches of 16 to 256: \
             one pair of commands for all of them, four batches in flight. Single: one command for each operation, as many \
             operations in flight as in batches of 256, which share sends and receives already; or, sparse, as many commands \
             in flight as batches. Speed is for each second of the target's processor time, and the target never spins: what it \
             waits for the load is not counted.",
    claims: &[Claim {
        source: "KV-Direct (SOSP 2017)",
        says: "Batching on the client's side: up to four times the throughput, for under a microsecond more latency.",
        number: "4 times",
        ours: "get_256_over_single",
    }],
    machines: Machines::OneOrTwo,
    judged_by: "ops_per_cpu",
    columns: &["ops_per_cpu", "ops", "target_ns", "host_ns", "p50_us", "p99_us"],
};

/// The same operations in separate commands, and in batches.
#[derive(Debug, Default)]
pub(crate) struct KvBatching {
    pairs: Kept<(), Pairs>,
}

impl Experiment for KvBatching {
    fn cells(&self) -> Vec<Cell> {
        let of = |kind: &'static str, size: u32| {
            Cell::new(cell_name(kind, size)).with("kind", kind).with("batch", size)
        };
        let sparse = |kind: &'static str| {
            Cell::new(sparse_name(kind)).with("kind", kind).with("batch", 1u32).with("sparse", 1u32)
        };
        KINDS
            .into_iter()
            .flat_map(|kind| SIZES.map(|size| of(kind, size)).into_iter().chain([sparse(kind)]))
            .collect()
    }

    fn measure(&mut self, cell: &Cell, bench: &Bench) -> Result<Values, Error> {
        let pairs = self.pairs.get((), || {
            let tuning = TargetTuning { spin: Some(Spin::Never), ..TargetTuning::default() };
            Pairs::serve(bench, ServedOptions::of(["kv:ram:256M"]).tuned(tuning))
        })?;
        let batch = u16::try_from(cell.number("batch")).expect("batches of ours");
        let mix: Mix = cell.text("kind").parse().expect("a mix of one kind");
        let is_single = batch == 1 && cell.name != sparse_name(cell.text("kind"));
        let depth = if is_single { SINGLE_DEPTH } else { BATCH_DEPTH };
        Ok(values(&pairs.run(bench, KeyValueLoad { mix, batch, depth, ..KeyValueLoad::default() })?))
    }

    fn answer(&self, measured: &Measured, headlines: &mut Headlines) {
        for kind in KINDS {
            for size in [16, 64, 256] {
                let gain = measured.ratio(&cell_name(kind, size), &cell_name(kind, 1), "ops_per_cpu");
                let bar = (size == 256).then_some(GAIN);
                headlines.push(format!("{kind}_{size}_over_single"), gain, bar);
            }
            let gain = measured.ratio(&cell_name(kind, 256), &sparse_name(kind), "ops_per_cpu");
            headlines.push(format!("{kind}_256_over_sparse"), gain, None);
        }
    }

    fn figures(&self, measured: &Measured) -> Vec<Figure> {
        let names = KINDS.map(str::to_owned).to_vec();
        let of = |size: u32| {
            let name = if size == 1 { "single".to_owned() } else { format!("batches of {size}") };
            bars(&name, measured, KINDS.map(|kind| cell_name(kind, size)), "ops_per_cpu")
        };
        let sparse = bars("single, sparse", measured, KINDS.map(sparse_name), "ops_per_cpu");
        vec![Figure::new(
            "Speed per core of the target",
            "Operations for each second of the target's processor time. Higher is better.",
            Plot::bars(
                "",
                names,
                Axis::log("operations per core"),
                [sparse].into_iter().chain(SIZES.map(of)).collect(),
            ),
        )]
    }
}

fn cell_name(kind: &str, size: u32) -> String {
    if size == 1 { format!("{kind} single") } else { format!("{kind} in {size}") }
}

fn sparse_name(kind: &str) -> String {
    format!("{kind} single, sparse")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiments::testing::{headline_of, of_key};

    #[test]
    fn batches_are_compared_with_single_commands() {
        let value = |cell: &Cell| if cell.number("batch") == 256 { 12e6 } else { 1e6 };
        let headline = headline_of(&KvBatching::default(), |cell| [("ops_per_cpu", value(cell))]);
        let of = |key| of_key(&headline, key);
        assert_eq!(
            (of("get_256_over_single").value, of("get_256_over_single").is_reached()),
            (12.0, Some(true))
        );
        assert_eq!((of("add_16_over_single").value, of("add_16_over_single").is_reached()), (1.0, None));
    }
}
