//! `kv-ycsb`: the YCSB workloads, by which key-value stores are compared.

use load::key_value::{KeyValueLoad, Mix};
use load::keys::Distribution;
use load::workload::Sizes;

use super::prelude::*;
use crate::key_value::{Pairs, values};

const LETTERS: [&str; 5] = ["a", "b", "c", "d", "f"];
const KEYS: [&str; 2] = ["uniform", "zipf:0.99"];

/// Distributions of value lengths, and their names.
const LENGTHS: [(&str, &str); 2] = [("small", "32"), ("mixed", "16/40:256/40:4k/20")];

/// Operations of a batch, and batches in flight.
const BATCH: u16 = 64;
const DEPTH: u16 = 4;

pub(crate) const ABOUT: About = About {
    name: "kv-ycsb",
    title: "How fast are the YCSB mixes?",
    method: "YCSB's workloads A (half sets), B (5 % sets), C (gets), D (5 % inserts) and F (half read-modify-writes) on 100,000 keys of \
             16 bytes, uniform and Zipf 0.99, values of 32 bytes and mixed ones up to 4 KiB, batches of 64, four in flight on one lane, \
             one core for each side. D draws its gets as the others do, not the latest first. Speed is for each second of the \
             target's processor time.",
    claims: &[],
    machines: Machines::OneOrTwo,
    judged_by: "ops_per_cpu",
    columns: "ops_per_cpu ops mib_per_s p50_us p99_us",
};

/// YCSB's workloads except E, which scans.
#[derive(Debug, Default)]
pub(crate) struct KvYcsb {
    /// A target for each distribution.
    pairs: Kept<String, Pairs>,
}

impl Experiment for KvYcsb {
    fn cells(&self) -> Vec<Cell> {
        let of = |letter: &'static str, keys: &'static str, (length, sizes): (&'static str, &'static str)| {
            Cell::new(cell_name(letter, keys, length))
                .with("mix", letter)
                .with("keys", keys)
                .with("sizes", sizes)
        };
        let lengths = LENGTHS.into_iter();
        let keys = lengths.flat_map(|length| KEYS.map(|keys| (keys, length)));
        keys.flat_map(|(keys, length)| LETTERS.map(|letter| of(letter, keys, length))).collect()
    }

    fn measure(&mut self, cell: &Cell, bench: &Bench) -> Result<Values, Error> {
        let sizes = cell.text("sizes");
        let serve = || Pairs::serve(bench, ServedOptions::of(["kv:ram:512M"]));
        let pairs = self.pairs.get(sizes.to_owned(), serve)?;
        let load = KeyValueLoad {
            mix: format!("ycsb-{}", cell.text("mix")).parse::<Mix>().expect("a known mix"),
            distribution: cell.text("keys").parse::<Distribution>().expect("a known distribution"),
            sizes: sizes.parse::<Sizes>().expect("valid sizes"),
            batch: BATCH,
            depth: DEPTH,
            ..KeyValueLoad::default()
        };
        Ok(values(&pairs.run(bench, load)?))
    }

    fn answer(&self, measured: &Measured, headlines: &mut Headlines) {
        for letter in LETTERS {
            let rate = measured.median(&cell_name(letter, "zipf:0.99", "small"), "ops_per_cpu");
            headlines.tell(format!("{letter}_zipf_small_ops_per_cpu"), rate);
        }
    }

    fn figures(&self, measured: &Measured) -> Vec<Figure> {
        let names = LETTERS.map(str::to_uppercase).to_vec();
        let series = LENGTHS.into_iter().flat_map(|(length, _)| KEYS.map(|keys| (length, keys)));
        let of = |(length, keys): (&str, &str)| {
            let cells = LETTERS.map(|letter| cell_name(letter, keys, length));
            bars(&format!("{length} values, {keys}"), measured, cells, "ops_per_cpu")
        };
        vec![Figure::new(
            "Speed per core of the target",
            "Operations for each second of the target's processor time. Higher is better.",
            Plot::bars("", names, Axis::log("operations per core"), series.map(of).collect()),
        )]
    }
}

fn cell_name(letter: &str, keys: &str, length: &str) -> String {
    format!("{} {keys} {length}", letter.to_uppercase())
}
