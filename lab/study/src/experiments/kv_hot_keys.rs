//! `kv-hot-keys`: the gain by the processor's cache where some keys are used more often than others.

use std::path::Path;

use load::disturbance::{Side, Watch};
use load::key_value::KeyValueLoad;
use load::keys::Distribution;

use super::prelude::*;
use crate::bench::on_core;
use crate::key_value::{Pairs, mix, values};
use crate::lookups::Lookups;

/// Memory of the pairs, MiB.
const SIZES_MIB: [u32; 5] = [1, 8, 32, 128, 512];
const SMALLEST: u32 = SIZES_MIB[0];
const LARGEST: u32 = SIZES_MIB[SIZES_MIB.len() - 1];

/// Memory of a pair of 16 and 32 bytes with its part of the index, bytes: see `kv-memory`.
const PAIR_BYTES: u64 = 72;

/// Memory for the pairs of all targets and partitions.
const FREE_BYTES: u64 = 3 << 30;

/// Operations of a batch, and batches in flight.
const BATCH: u16 = 256;
const DEPTH: u16 = 4;

/// Where keys are looked up.
const SERVED: &str = "served";
const ALONE: &str = "partition";
const ONE_BY_ONE: &str = "one by one";
const PLACES: [&str; 3] = [SERVED, ALONE, ONE_BY_ONE];

const UNIFORM: &str = "uniform";
const ZIPF: &str = "zipf:0.99";
/// Popularities of keys, and their names.
const POPULARITIES: [(&str, &str); 2] = [(UNIFORM, "uniform"), (ZIPF, "Zipf 0.99")];

pub(crate) const ABOUT: About = About {
    name: "kv-hot-keys",
    title: "What do hot keys gain from the processor's cache?",
    method: "GETs of pairs of 16 and 32 bytes that take 1 to 512 MiB, all keys alike or by Zipf's law with exponent 0.99. Served: batches of \
             256, four in flight on one lane, one core for each side, by the target's processor time. Partition: the same look-ups in a \
             partition of this process without a network, 64 keys at a time, whose lines are prefetched before the first is read. One by one: \
             without prefetching, so each look-up waits for its lines. KV-Direct's card has memory of its own and reaches the host's \
             over PCIe; it divides lines between them so that both are used. In nvlane the last-level cache is what the card's \
             memory is there, and the processor decides what is in it: nothing is dispatched, hot lines stay by themselves. Prefetching \
             stands for its out-of-order execution, which hides the time of an access.",
    claims: &[Claim {
        source: "KV-Direct (SOSP 2017)",
        says: "With a part of the lines in the card's memory: 184 million operations per second, where PCIe alone allows 120 million.",
        number: "1.5 times",
        ours: "zipf_over_uniform_served_512m",
    }],
    machines: Machines::TwoWithout(
        "the partition without a network, which would be in the memory of the load's machine",
    ),
    judged_by: "ops_per_cpu",
    columns: "ops_per_cpu target_ns ops p50_us p99_us",
};

/// Look-ups in stores of different sizes.
#[derive(Debug, Default)]
pub(crate) struct KvHotKeys {
    /// A target for each size, and a partition.
    served: Kept<u32, Pairs>,
    alone: Kept<u32, Lookups>,
    /// The last-level cache, or why it is not known.
    cache: Option<String>,
}

impl KvHotKeys {
    fn measure_served(&mut self, cell: &Cell, bench: &Bench) -> Result<Values, Error> {
        let mib = cell.word("mib");
        let pairs = self.served.get(mib, || {
            let namespace = format!("kv:ram:{}", memory_bytes(mib));
            Pairs::serve(bench, ServedOptions::of([namespace]).without_spin())
        })?;
        let load = KeyValueLoad {
            mix: mix("get"),
            distribution: distribution(cell),
            keys: pair_count(mib),
            batch: BATCH,
            depth: DEPTH,
            ..KeyValueLoad::default()
        };
        Ok(values(&pairs.run(bench, load)?))
    }

    fn measure_alone(&mut self, cell: &Cell, bench: &Bench) -> Result<Values, Error> {
        let mib = cell.word("mib");
        let memory_bytes = usize::try_from(memory_bytes(mib)).expect("it can be addressed");
        let lookups = self.alone.get(mib, || Lookups::new(pair_count(mib), memory_bytes))?;
        let prefetches = cell.text("place") == ALONE;
        let ns = on_core(bench.cores.map(|cores| cores.target), || {
            let watch = Watch::thread();
            let times = (bench.times.warm_up, bench.times.measure);
            let ns = lookups.run(distribution(cell), prefetches, times, &|| bench.is_stopped())?;
            bench.note_loss(Side::Target, watch.loss());
            Ok(ns)
        })?;
        Ok(Values::from([("ops_per_cpu", 1e9 / ns), ("target_ns", ns)]))
    }
}

impl Experiment for KvHotKeys {
    fn cells(&self) -> Vec<Cell> {
        let of = |place: &'static str, keys: &'static str, mib: u32| {
            let cell = Cell::new(cell_name(place, keys, mib)).with("place", place);
            cell.with("keys", keys).with("mib", mib)
        };
        let of_size = |mib| POPULARITIES.into_iter().map(move |(keys, _)| (keys, mib));
        let of_place =
            |place| SIZES_MIB.into_iter().flat_map(of_size).map(move |(keys, mib)| of(place, keys, mib));
        PLACES.into_iter().flat_map(of_place).collect()
    }

    fn suits(&self, cell: &Cell, bench: &Bench) -> bool {
        !bench.is_remote() || cell.text("place") == SERVED
    }

    fn check(&self, bench: &Bench) -> Result<(), Error> {
        bench.check_memory(FREE_BYTES)
    }

    fn conditions(&self, _: &Measured) -> Option<String> {
        self.cache.clone()
    }

    fn measure(&mut self, cell: &Cell, bench: &Bench) -> Result<Values, Error> {
        self.cache.get_or_insert_with(|| match bench.cores {
            _ if bench.is_remote() => {
                "The last-level cache of the targets' machine is not known here.".to_owned()
            }
            cores => {
                last_level_cache(Path::new("/sys/devices/system/cpu"), cores.map_or(0, |cores| cores.target))
            }
        });
        if cell.text("place") == SERVED {
            self.measure_served(cell, bench)
        } else {
            self.measure_alone(cell, bench)
        }
    }

    fn answer(&self, measured: &Measured, headlines: &mut Headlines) {
        let ratio = |above: &str, below: &str| measured.ratio(above, below, "ops_per_cpu");
        for (place, key) in [(SERVED, "served"), (ALONE, "partition")] {
            for mib in [SMALLEST, LARGEST] {
                let gain = ratio(&cell_name(place, ZIPF, mib), &cell_name(place, UNIFORM, mib));
                headlines.tell(format!("zipf_over_uniform_{key}_{mib}m"), gain);
            }
            for (keys, name) in [(UNIFORM, "uniform"), (ZIPF, "zipf")] {
                let left = ratio(&cell_name(place, keys, LARGEST), &cell_name(place, keys, SMALLEST));
                headlines.tell(format!("largest_over_smallest_{key}_{name}"), left);
            }
        }
        for mib in [SMALLEST, LARGEST] {
            let gain = ratio(&cell_name(ALONE, UNIFORM, mib), &cell_name(ONE_BY_ONE, UNIFORM, mib));
            headlines.tell(format!("prefetch_gain_{mib}m"), gain);
        }
    }

    fn figures(&self, measured: &Measured) -> Vec<Figure> {
        let over = |name: String, place: &str, keys: &str| {
            let cells = SIZES_MIB.iter().filter_map(|&mib| measured.cell(&cell_name(place, keys, mib)));
            line(&name, cells, "mib", "ops_per_cpu")
        };
        let figure = |title: &str, note: &str, series: Vec<Series>| {
            let sizes = ticks(&SIZES_MIB.map(u64::from), |mib| mib.to_string());
            let x = Axis::log("memory of the pairs, MiB");
            Figure::new(title, note, Plot::lines(x, sizes, Axis::linear("GETs per core"), series))
        };
        let of_place = |place| POPULARITIES.map(|(keys, name)| over(name.to_owned(), place, keys));
        let ways = [(ALONE, "prefetched"), (ONE_BY_ONE, "one by one")].into_iter();
        let ways = ways.flat_map(|(place, way)| {
            POPULARITIES.map(|(keys, name)| over(format!("{name}, {way}"), place, keys))
        });
        vec![
            figure(
                "GETs of a target by the size of the store",
                "For each second of the target's processor time, the network included. Higher is better.",
                of_place(SERVED).into(),
            ),
            figure(
                "GETs of a partition without a network",
                "For each second of one core: hash, index and value. Higher is better.",
                ways.collect(),
            ),
        ]
    }
}

/// The last-level cache of a core in a sentence, from a directory like `/sys/devices/system/cpu`.
fn last_level_cache(directory: &Path, core: usize) -> String {
    let directory = directory.join(format!("cpu{core}/cache"));
    let read = |index: usize, name: &str| {
        let text = std::fs::read_to_string(directory.join(format!("index{index}/{name}")));
        text.ok().map(|text| text.trim().to_owned())
    };
    let levels = (0..8).filter_map(|index| Some((read(index, "level")?.parse::<u32>().ok()?, index)));
    let last = levels.filter(|(_, index)| read(*index, "type").as_deref() != Some("Instruction")).max();
    let size = last.and_then(|(_, index)| load::workload::parse_bytes(&read(index, "size")?).ok());
    match (last, size) {
        (Some((level, index)), Some(size)) => {
            let size = crate::format::bytes(size as f64);
            let sharers = read(index, "shared_cpu_list").unwrap_or_default();
            format!(
                "The last-level cache (level {level}) of the target's core has {size}, for cores {sharers}; other virtual machines may share it."
            )
        }
        _ => "The system does not tell the size of the last-level cache.".to_owned(),
    }
}

fn distribution(cell: &Cell) -> Distribution {
    cell.text("keys").parse().expect("a known distribution")
}

/// Pairs that take this memory.
fn pair_count(mib: u32) -> u64 {
    (u64::from(mib) << 20) / PAIR_BYTES
}

/// Memory of a namespace for them: nothing is evicted.
fn memory_bytes(mib: u32) -> u64 {
    (u64::from(mib) << 20) / 4 * 5 + (8 << 20)
}

fn cell_name(place: &str, keys: &str, mib: u32) -> String {
    format!("{place}, {keys}, {mib} MiB")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiments::testing::{headline_of, of_key};

    #[test]
    fn hot_keys_are_compared_within_a_size_and_sizes_within_a_popularity() {
        let headline = headline_of(&KvHotKeys::default(), |cell| {
            let is_zipf = cell.text("keys") == ZIPF;
            let ops = match (cell.text("place"), cell.word("mib")) {
                (_, SMALLEST) => 10e6,
                (ONE_BY_ONE, _) => 1e6,
                _ if is_zipf => 8e6,
                _ => 4e6,
            };
            [("ops_per_cpu", ops)]
        });
        let of = |key| of_key(&headline, key).value;
        assert_eq!((of("zipf_over_uniform_served_512m"), of("zipf_over_uniform_served_1m")), (2.0, 1.0));
        assert_eq!(of("largest_over_smallest_partition_uniform"), 0.4);
        assert_eq!((of("prefetch_gain_512m"), of("prefetch_gain_1m")), (4.0, 1.0));
    }

    #[test]
    fn the_last_level_cache_is_the_largest_level_with_data() {
        let directory = tempfile::tempdir().unwrap();
        let caches = directory.path().join("cpu3/cache");
        for (index, level, kind, size) in [
            (0, 1, "Data", "32K"),
            (1, 1, "Instruction", "32K"),
            (2, 2, "Unified", "512K"),
            (3, 3, "Unified", "16384K"),
        ] {
            let cache = caches.join(format!("index{index}"));
            std::fs::create_dir_all(&cache).unwrap();
            for (name, text) in [("level", level.to_string()), ("type", kind.into()), ("size", size.into())] {
                std::fs::write(cache.join(name), text + "\n").unwrap();
            }
            std::fs::write(cache.join("shared_cpu_list"), "0-3\n").unwrap();
        }
        let told = last_level_cache(directory.path(), 3);
        assert!(told.contains("(level 3) of the target's core has 16.0 MiB, for cores 0-3"), "{told}");
        assert!(last_level_cache(directory.path(), 0).starts_with("The system does not tell"));
    }

    #[test]
    fn pairs_take_the_memory_that_their_cell_names() {
        assert_eq!(pair_count(1), 14_563);
        assert!(pair_count(512) * PAIR_BYTES <= 512 << 20);
        let all: u64 = SIZES_MIB.iter().map(|&mib| 2 * memory_bytes(mib)).sum();
        assert!(all < FREE_BYTES);
    }
}
