//! `kv-allocation`: the cost of taking and freeing memory by the size of values, and the loss of memory.

use std::collections::BTreeMap;

use super::prelude::*;
use crate::bench::on_core;
use crate::churn::{Churned, Lengths, churn};

/// Lengths of the values that are replaced, and of those in their place.
struct Work {
    name: &'static str,
    old: Lengths,
    new: Lengths,
}

const fn same(name: &'static str, lengths: Lengths) -> Work {
    Work { name, old: lengths, new: lengths }
}

/// The first ones are of one length.
const WORKS: [Work; 10] = [
    same("32", (32, 32)),
    same("64", (64, 64)),
    same("100", (100, 100)),
    same("200", (200, 200)),
    same("500", (500, 500)),
    same("1000", (1000, 1000)),
    same("4000", (4000, 4000)),
    same("8 to 1000", (8, 1000)),
    Work { name: "32 then 500", old: (32, 32), new: (500, 500) },
    Work { name: "500 then 32", old: (500, 500), new: (32, 32) },
];
/// Those whose partition is filled with the lengths of which it is then changed.
const STEADY_COUNT: usize = 8;

/// Memory of a partition.
const MEMORY_BYTES: usize = 32 << 20;

/// The smallest slab of KV-Direct, bytes; each further one has twice the size of the one before.
const SLAB_BYTES: usize = 32;
/// Key of a pair, and header of an item, bytes.
const BESIDE_VALUE_BYTES: usize = 16 + kv::ITEM_HEADER_BYTES;

pub(crate) const ABOUT: About = About {
    name: "kv-allocation",
    title: "What does memory allocation for values of any size cost?",
    method: "A partition of 32 MiB without eviction, in this process and without a network, is filled with keys of 16 bytes and values of one \
             length until it refuses a pair; a tenth is deleted. Then random pairs are deleted and new ones stored, in steps of 64 stores, \
             until as many bytes were stored as the memory has, after one such turn that is not measured. Two rows change the length \
             for the one turn that is measured. KV-Direct takes memory in slabs of 32 to 512 bytes, which it splits and \
             merges. nvlane has no sizes that own memory: blocks follow each other in regions of 64 KiB, in units of 32 bytes. What \
             corresponds to splitting is a region that is begun, to merging a region that is emptied by moving the pairs that are left in \
             it. Times are of the processor, and include the hash and the index.",
    claims: &[],
    machines: Machines::Here("it measures a partition of its own process, and has no target"),
    judged_by: "store_ns",
    columns: "store_ns delete_ns moved_per_store emptied_percent pairs_percent headers_percent \
              rounding_percent index_percent rest_percent",
};

/// Pairs of different lengths replaced in a full partition.
#[derive(Debug, Default)]
pub(crate) struct KvAllocation {
    /// Number of measurements of each cell.
    rounds: BTreeMap<String, u64>,
}

impl Experiment for KvAllocation {
    fn cells(&self) -> Vec<Cell> {
        WORKS.iter().map(|work| Cell::new(cell_name(work.name)).with("values", work.name)).collect()
    }

    fn measure(&mut self, cell: &Cell, bench: &Bench) -> Result<Values, Error> {
        let round = self.rounds.entry(cell.name.clone()).or_default();
        *round += 1;
        let seed = *round;
        let work = cell.one_of("values", WORKS, |work| work.name);
        let churned = on_core(bench.cores.map(|cores| cores.host), || {
            churn(MEMORY_BYTES, work.old, work.new, seed, &|| bench.is_stopped())
        })?;
        let Churned { store_ns, delete_ns, moved_per_store, emptied_percent, shares } = churned;
        let mut values = Values::from([
            ("store_ns", store_ns),
            ("delete_ns", delete_ns),
            ("moved_per_store", moved_per_store),
            ("emptied_percent", emptied_percent),
        ]);
        // Where lengths change, the old values filled the memory.
        if work.old == work.new {
            values.extend([
                ("pairs_percent", shares.pairs),
                ("headers_percent", shares.headers),
                ("rounding_percent", shares.rounding),
                ("index_percent", shares.index),
                ("rest_percent", shares.rest),
            ]);
        }
        Ok(values)
    }

    fn answer(&self, measured: &Measured, headlines: &mut Headlines) {
        for work in &WORKS {
            let of = |value| measured.median(&cell_name(work.name), value);
            let us = |value| of(value).map(|ns| ns / 1e3);
            let key = work.name.replace(' ', "_");
            headlines.tell(format!("store_us_{key}"), us("store_ns"));
            headlines.tell(format!("delete_us_{key}"), us("delete_ns"));
            headlines.tell(format!("moved_per_store_{key}"), of("moved_per_store"));
        }
        for work in WORKS.iter().take(STEADY_COUNT) {
            let lost = measured.median(&cell_name(work.name), "rounding_percent");
            headlines.tell(format!("rounding_percent_{}", work.name.replace(' ', "_")), lost);
        }
    }

    fn figures(&self, measured: &Measured) -> Vec<Figure> {
        let names = || WORKS.iter().map(|work| work.name.to_owned());
        let cells = || WORKS.iter().map(|work| cell_name(work.name));
        let steady = || cells().take(STEADY_COUNT);
        let label = "value, bytes";
        let shares = [
            ("keys and values", "pairs_percent"),
            ("headers", "headers_percent"),
            ("rounding", "rounding_percent"),
            ("index", "index_percent"),
            ("regions, and between pairs", "rest_percent"),
        ];
        let shares = shares.map(|(name, value)| bars(name, measured, steady(), value));
        let slabs = (0u32..).zip(WORKS.iter().take(STEADY_COUNT)).map(|(at, work)| {
            let lost = slab_loss_percent(work.new);
            Point { x: at.into(), y: lost, low: lost, high: lost }
        });
        let slabs = Series::of("slabs that double, computed", slabs.collect()).as_reference();
        vec![
            Figure::new(
                "Time of a store and of a delete",
                "In a nearly full partition whose pairs are replaced, with moving pairs where a region is emptied. Lower is better.",
                Plot::bars(
                    label,
                    names().collect(),
                    Axis::log("ns"),
                    vec![
                        bars("store", measured, cells(), "store_ns"),
                        bars("delete", measured, cells(), "delete_ns"),
                    ],
                ),
            ),
            Figure::new(
                "Pairs moved for a store",
                "The counterpart of merging slabs: pairs copied elsewhere so that their region becomes free. Lower is better.",
                Plot::bars(
                    label,
                    names().collect(),
                    Axis::linear("pairs per store"),
                    vec![bars("moved", measured, cells(), "moved_per_store")],
                ),
            ),
            Figure::new(
                "Memory lost to rounding",
                "Percent of all memory when it is full; beside it the same pairs in slabs of 32 bytes, 64, 128 and so on. Lower is better.",
                Plot::bars(
                    label,
                    names().take(STEADY_COUNT).collect(),
                    Axis::linear("% of the memory"),
                    vec![bars("nvlane", measured, steady(), "rounding_percent"), slabs],
                ),
            ),
            Figure::new(
                "Where the memory is",
                "Percent of a partition that refuses a pair.",
                Plot::stacks(
                    label,
                    names().take(STEADY_COUNT).collect(),
                    Axis::linear("% of the memory"),
                    shares.into(),
                ),
            ),
        ]
    }
}

/// The part of slabs, each twice as large as the one before, that pairs with values of these lengths leave unused.
fn slab_loss_percent((least, most): Lengths) -> f64 {
    let slab = |bytes: usize| bytes.next_power_of_two().max(SLAB_BYTES);
    let sum = |each: &dyn Fn(usize) -> usize| {
        (least..=most).map(|value| each(value + BESIDE_VALUE_BYTES)).sum::<usize>()
    };
    let (slabs, pairs) = (sum(&slab), sum(&|bytes| bytes));
    100.0 * (slabs - pairs) as f64 / slabs as f64
}

fn cell_name(values: &str) -> String {
    format!("values of {values} B")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiments::testing::{headline_of, of_key};

    #[test]
    fn slabs_that_double_lose_a_quarter_of_varied_lengths_and_nothing_of_their_own() {
        assert_eq!(slab_loss_percent((32, 32)), 0.0);
        assert!((slab_loss_percent((33, 33)) - 63.0 / 128.0 * 100.0).abs() < 1e-9);
        assert!((20.0..30.0).contains(&slab_loss_percent((8, 1000))));
    }

    #[test]
    fn numbers_are_told_for_each_length() {
        let headline = headline_of(&KvAllocation::default(), |cell| {
            let is_change = cell.text("values").contains("then");
            let moved = if is_change { 3.0 } else { 0.5 };
            [("store_ns", 250.0), ("moved_per_store", moved), ("rounding_percent", 4.0)]
        });
        assert_eq!(of_key(&headline, "store_us_4000").value, 0.25);
        assert_eq!(of_key(&headline, "moved_per_store_32_then_500").value, 3.0);
        assert_eq!(of_key(&headline, "rounding_percent_8_to_1000").value, 4.0);
        assert!(!headline.iter().any(|known| known.key == "rounding_percent_32_then_500"));
    }

    #[test]
    fn only_the_first_rows_keep_their_lengths() {
        assert!(WORKS.iter().take(STEADY_COUNT).all(|work| work.old == work.new));
        assert!(WORKS.iter().skip(STEADY_COUNT).all(|work| work.old != work.new));
    }
}
