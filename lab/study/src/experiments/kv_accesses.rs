//! `kv-accesses`: the cache lines that a GET and a PUT touch.

use std::collections::BTreeMap;

use super::prelude::*;
use crate::line_counts::{Level, PairSizes, count};

/// Key and value of the pairs of a partition, bytes.
const PAIRS: [(u32, u32); 4] = [(4, 4), (8, 8), (16, 32), (16, 240)];

/// Size of the largest pair in the index, bytes: for the pairs above that of the product.
const INLINE_BYTES_MAX: u32 = 20;
/// Those that are compared: none, some and all of the pairs below.
const THRESHOLDS: [u32; 5] = [0, 10, 15, 20, 25];
/// Pairs of 9 to 23 bytes, for the thresholds.
const VARIED: PairSizes = PairSizes { key_bytes: 8, value_bytes: (1, 15) };

/// Memory of a partition.
const MEMORY_BYTES: usize = 32 << 20;

/// Fill levels, percent of the pairs that fit.
const LEVELS: [u64; 6] = [10, 25, 50, 75, 90, 100];
/// The level of the headline numbers.
const HALF: u64 = 50;
const FULL: u64 = 100;

const GET: Bar = Bar::AtMost(1.1);
const PUT: Bar = Bar::AtMost(2.1);

pub(crate) const ABOUT: About = About {
    name: "kv-accesses",
    title: "How many memory accesses does a key-value operation take?",
    method: "A partition of 32 MiB without eviction, in this process and without a network, is filled with pairs of one size until one \
             is refused. At 10 to 100 % of the pairs that fit, 20,000 GETs of random keys, and as many PUTs over the old value, are counted: \
             every cache line of 64 bytes that an operation reads, and every one that it writes, once each. A PUT of a new key is \
             the mean since the level before, the growth of the index included. Then the same for pairs of 9 to 23 bytes, with different \
             sizes of the largest pair in the index. What a counted access costs is another question: lines are prefetched in batches, \
             and the tables of regions are in the near caches and not counted. Each round has another hash seed, which decides where \
             the keys are.",
    claims: &[
        Claim {
            source: "KV-Direct (SOSP 2017)",
            says: "A GET of a small pair takes close to one memory access, as the pair is in the hash table.",
            number: "≈ 1",
            ours: "get_lines_4_and_4",
        },
        Claim {
            source: "KV-Direct (SOSP 2017)",
            says: "A PUT of a small pair takes close to two: it reads a bucket and writes it.",
            number: "≈ 2",
            ours: "put_lines_4_and_4",
        },
    ],
    machines: Machines::Here("it counts in a partition of its own process, and has no target"),
    judged_by: "get_lines",
    columns: "get_lines put_lines insert_lines utilisation_percent inline_percent",
};

/// Lines touched in a partition while it fills.
#[derive(Debug, Default)]
pub(crate) struct KvAccesses {
    /// By partition and round: the levels of a partition are counted together.
    levels: Kept<(String, u64), Vec<Level>>,
    /// Number of measurements of each cell.
    rounds: BTreeMap<String, u64>,
}

impl Experiment for KvAccesses {
    fn cells(&self) -> Vec<Cell> {
        let partitions = PAIRS.map(|pair| (pair_name(pair), INLINE_BYTES_MAX)).into_iter();
        let partitions = partitions.chain(THRESHOLDS.map(|threshold| (threshold_name(threshold), threshold)));
        let of = |(partition, threshold): (String, u32), level: u64| {
            Cell::new(cell_name(&partition, level))
                .with("pairs", partition.as_str())
                .with("inline_bytes_max", threshold)
                .with("level_percent", level)
        };
        partitions.flat_map(|partition| LEVELS.map(|level| of(partition.clone(), level))).collect()
    }

    fn is_disturbed_by_others(&self, _: &Cell) -> bool {
        false
    }

    fn measure(&mut self, cell: &Cell, bench: &Bench) -> Result<Values, Error> {
        let round = self.rounds.entry(cell.name.clone()).or_default();
        *round += 1;
        let partition = cell.text("pairs");
        let levels = self.levels.get((partition.to_owned(), *round), || {
            let threshold = cell.word("inline_bytes_max") as usize;
            count(MEMORY_BYTES, (sizes(partition), threshold), *round, &LEVELS, &|| bench.is_stopped())
        })?;
        let at = LEVELS.iter().position(|level| *level == cell.number("level_percent"));
        let level = levels[at.expect("a level of ours")];
        Ok(Values::from([
            ("get_lines", level.get),
            ("put_lines", level.put),
            ("insert_lines", level.insert),
            ("utilisation_percent", level.utilisation_percent),
            ("inline_percent", level.inline_percent),
        ]))
    }

    fn answer(&self, measured: &Measured, headlines: &mut Headlines) {
        for pair in PAIRS {
            let (key, value) = pair;
            let of = |level, name| measured.median(&cell_name(&pair_name(pair), level), name);
            let bars = (pair == PAIRS[0]).then_some((GET, PUT)).unzip();
            headlines.push(format!("get_lines_{key}_and_{value}"), of(HALF, "get_lines"), bars.0);
            headlines.push(format!("put_lines_{key}_and_{value}"), of(HALF, "put_lines"), bars.1);
            headlines.tell(format!("get_lines_full_{key}_and_{value}"), of(FULL, "get_lines"));
            headlines.tell(format!("utilisation_percent_{key}_and_{value}"), of(FULL, "utilisation_percent"));
        }
        for threshold in THRESHOLDS {
            let of = |level, name| measured.median(&cell_name(&threshold_name(threshold), level), name);
            headlines.tell(format!("get_lines_inline_{threshold}"), of(HALF, "get_lines"));
            headlines
                .tell(format!("utilisation_percent_inline_{threshold}"), of(FULL, "utilisation_percent"));
        }
    }

    fn figures(&self, measured: &Measured) -> Vec<Figure> {
        let over = |name: String, partition: &str, value: &str| {
            against(&name, measured.of("pairs", partition), ("utilisation_percent", value))
        };
        let figure = |title: &str, note: &str, series: Vec<Series>| {
            let x = Axis::linear("keys and values, % of the memory");
            Figure::new(title, note, Plot::lines(x, Vec::new(), Axis::linear("lines per operation"), series))
        };
        let pairs = |value: &str| {
            PAIRS.map(|pair| over(format!("{} B", pair_name(pair)), &pair_name(pair), value)).to_vec()
        };
        let thresholds = |value: &str| {
            THRESHOLDS.map(|bytes| over(threshold_words(bytes), &threshold_name(bytes), value)).to_vec()
        };
        vec![
            figure(
                "Lines of a GET",
                "By length of key and value; a line ends where the next pair is refused. Lower is better, further to the right is more in \
                 the same memory.",
                pairs("get_lines"),
            ),
            figure("Lines of a PUT over an old value", "The same. Lower is better.", pairs("put_lines")),
            figure(
                "Lines of a PUT of a new key",
                "The same, with the growth of the index. Lower is better.",
                pairs("insert_lines"),
            ),
            figure(
                "Lines of a GET by inline threshold",
                "Pairs of 9 to 23 bytes, by the size up to which they are in the index. Lower is better, further to the right is more \
                 in the same memory.",
                thresholds("get_lines"),
            ),
            figure(
                "Lines of a PUT by inline threshold",
                "The same, over an old value. Lower is better.",
                thresholds("put_lines"),
            ),
        ]
    }
}

/// Lengths of the pairs of a partition.
fn sizes(partition: &str) -> PairSizes {
    let fixed = PAIRS.into_iter().find(|pair| pair_name(*pair) == partition);
    fixed.map_or(VARIED, |(key, value)| PairSizes {
        key_bytes: key as usize,
        value_bytes: (value as usize, value as usize),
    })
}

fn pair_name((key, value): (u32, u32)) -> String {
    format!("{key} + {value}")
}

fn threshold_name(bytes: u32) -> String {
    format!("9 to 23, inline {bytes}")
}

fn threshold_words(bytes: u32) -> String {
    if bytes == 0 { "none".to_owned() } else { format!("up to {bytes} B") }
}

fn cell_name(partition: &str, level: u64) -> String {
    format!("{partition} B, {level} %")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiments::testing::{headline_of, of_key};

    #[test]
    fn numbers_are_those_of_half_and_of_all_pairs() {
        let headline = headline_of(&KvAccesses::default(), |cell| {
            let level = f64::from(cell.word("level_percent"));
            let is_small = cell.text("pairs") == pair_name((4, 4));
            let get = if is_small { 1.0 } else { 2.0 } + level / 1000.0;
            [("get_lines", get), ("put_lines", get + 1.1), ("utilisation_percent", level / 2.0)]
        });
        let of = |key| of_key(&headline, key);
        assert_eq!((of("get_lines_4_and_4").value, of("get_lines_4_and_4").is_reached()), (1.05, Some(true)));
        assert_eq!(of("put_lines_4_and_4").is_reached(), Some(false));
        assert_eq!(
            (of("get_lines_full_16_and_32").value, of("utilisation_percent_16_and_32").value),
            (2.1, 50.0)
        );
        assert_eq!(of("get_lines_inline_25").value, 2.05);
    }

    #[test]
    fn every_cell_has_the_lengths_of_its_partition() {
        for cell in KvAccesses::default().cells() {
            let sizes = sizes(cell.text("pairs"));
            assert_eq!(sizes == VARIED, cell.text("pairs").contains("inline"), "{}", cell.name);
        }
        assert_eq!(sizes("16 + 32"), PairSizes { key_bytes: 16, value_bytes: (32, 32) });
    }
}
