//! Cache lines that operations of a partition touch while its memory fills, counted in this process.
//!
//! The partition is one of `crates/storage/kv` with a counter in front of each access. A line counts once
//! per operation when it is read, and once when it is written; one that was written is in the cache and free.

use kv::{CountedPairs, Eviction, Settings, Stored};
use load::random::Prng;

use crate::error::{Doing, Error};

/// Operations of each kind that are counted at a fill level.
const SAMPLE_COUNT: u64 = 20_000;

/// Longest key.
const KEY_BYTES_MAX: usize = 16;

/// Lengths of the pairs of a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PairSizes {
    pub(crate) key_bytes: usize,
    /// Values have from the first to the second of these lengths, each as often as the others.
    pub(crate) value_bytes: (usize, usize),
}

impl PairSizes {
    /// The key with this number; different for every number below 2^32.
    fn key(self, number: u64, into: &mut [u8; KEY_BYTES_MAX]) -> &[u8] {
        // Multiplication by an odd number is a bijection of the low 32 bits, and so of keys of four bytes.
        into[..8].copy_from_slice(&number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes());
        &into[..self.key_bytes]
    }

    /// Length of the value with this number.
    fn value_length(self, number: u64) -> usize {
        let (least, most) = self.value_bytes;
        let choices = (most - least + 1) as u64;
        least + usize::try_from(Prng::stream(2, number).below(choices)).unwrap_or(0)
    }
}

/// Counts at one fill level, means over operations.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Level {
    /// Lines of a GET.
    pub(crate) get: f64,
    /// Lines of a PUT over a value of the same length.
    pub(crate) put: f64,
    /// Lines of a PUT of a new key, since the level before: growth of the index included.
    pub(crate) insert: f64,
    /// Bytes of keys and values, percent of the memory.
    pub(crate) utilisation_percent: f64,
    /// Pairs in the index, percent of all.
    pub(crate) inline_percent: f64,
}

/// Fills a partition of `memory_bytes` until it refuses a pair, and counts at each of these percentages of the pairs that
/// fit. `seed` decides in which buckets the keys are, and which of them are sampled.
pub(crate) fn count(
    memory_bytes: usize,
    (sizes, inline_bytes_max): (PairSizes, usize),
    seed: u64,
    levels_percent: &[u64],
    is_stopped: &dyn Fn() -> bool,
) -> Result<Vec<Level>, Error> {
    let partition = || Counted::new(memory_bytes, sizes, inline_bytes_max, seed);
    let mut full = partition()?;
    full.store_until(u64::MAX, is_stopped)?;
    let fitting_count = full.pair_count;
    drop(full);
    let mut partition = partition()?;
    let mut random = Prng::new(seed);
    let mut levels = Vec::new();
    for percent in levels_percent {
        let (pairs_before, lines_before) = (partition.pair_count, partition.lines());
        partition.store_until(fitting_count * percent / 100, is_stopped)?;
        let insert = per_operation(partition.lines() - lines_before, partition.pair_count - pairs_before);
        let counters = partition.pairs.counters();
        let percent_of = |part: u64, whole: u64| 100.0 * per_operation(part, whole);
        levels.push(Level {
            get: partition.sample(&mut random, Counted::get),
            put: partition.sample(&mut random, Counted::put),
            insert,
            utilisation_percent: percent_of(counters.pair_bytes, memory_bytes as u64),
            inline_percent: percent_of(counters.inline_count, counters.pair_count),
        });
    }
    Ok(levels)
}

fn per_operation(count: u64, operations: u64) -> f64 {
    count as f64 / operations.max(1) as f64
}

/// A partition and the pairs in it.
struct Counted {
    pairs: CountedPairs,
    sizes: PairSizes,
    pair_count: u64,
    value: Vec<u8>,
}

impl Counted {
    fn new(memory_bytes: usize, sizes: PairSizes, inline_bytes_max: usize, seed: u64) -> Result<Self, Error> {
        let settings = Settings {
            memory_bytes,
            inline_bytes_max,
            eviction: Eviction::None,
            seed,
            ..Settings::default()
        };
        let pairs = CountedPairs::new(&settings).doing("memory of a partition")?;
        Ok(Self { pairs, sizes, pair_count: 0, value: vec![7; sizes.value_bytes.1] })
    }

    /// Lines read and written so far.
    fn lines(&self) -> u64 {
        let touches = self.pairs.touches();
        touches.read_count + touches.written_count
    }

    /// Stores new pairs until there are this many, or one is refused.
    fn store_until(&mut self, count: u64, is_stopped: &dyn Fn() -> bool) -> Result<(), Error> {
        while self.pair_count < count && self.put(self.pair_count) {
            self.pair_count += 1;
            if self.pair_count.is_multiple_of(1 << 16) && is_stopped() {
                return Err(Error::Stopped);
            }
        }
        Ok(())
    }

    /// Lines of an operation on a stored pair, the mean of a sample.
    fn sample(&mut self, random: &mut Prng, operation: impl Fn(&mut Self, u64) -> bool) -> f64 {
        let before = self.lines();
        let done = (0..SAMPLE_COUNT).filter(|_| {
            let number = random.below(self.pair_count);
            operation(self, number)
        });
        let done = done.count() as u64;
        per_operation(self.lines() - before, done)
    }

    fn get(&mut self, number: u64) -> bool {
        let mut room = [0; KEY_BYTES_MAX];
        let key = self.sizes.key(number, &mut room);
        self.pairs.get(key) == Some(self.sizes.value_length(number))
    }

    fn put(&mut self, number: u64) -> bool {
        let mut room = [0; KEY_BYTES_MAX];
        let key = self.sizes.key(number, &mut room);
        let value = &self.value[..self.sizes.value_length(number)];
        self.pairs.put(key, value) == Stored::Done
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(sizes: PairSizes, inline_bytes_max: usize) -> Vec<Level> {
        count(4 << 20, (sizes, inline_bytes_max), 3, &[50, 100], &|| false).unwrap()
    }

    #[test]
    fn a_pair_in_the_index_takes_one_line_to_read_and_two_to_replace_and_an_item_one_more() {
        let small = counted(PairSizes { key_bytes: 4, value_bytes: (4, 4) }, 20);
        assert!((1.0..1.3).contains(&small[0].get) && (2.0..2.3).contains(&small[0].put), "{small:?}");
        assert_eq!(small[0].inline_percent, 100.0);
        let item = counted(PairSizes { key_bytes: 16, value_bytes: (32, 32) }, 20);
        assert!((2.0..2.3).contains(&item[0].get) && (3.0..3.3).contains(&item[0].put), "{item:?}");
        assert_eq!(item[0].inline_percent, 0.0);
        for levels in [small, item] {
            assert!(levels[1].get >= levels[0].get && levels[1].insert > levels[1].put, "{levels:?}");
            let ratio = levels[1].utilisation_percent / levels[0].utilisation_percent;
            assert!((ratio - 2.0).abs() < 0.01, "{levels:?}");
        }
    }

    #[test]
    fn the_threshold_decides_which_pairs_are_in_the_index() {
        let sizes = PairSizes { key_bytes: 8, value_bytes: (1, 15) };
        let half = counted(sizes, 15)[0];
        assert!((40.0..55.0).contains(&half.inline_percent), "{half:?}");
        let [none, all] = [0, 25].map(|threshold| counted(sizes, threshold)[0]);
        assert_eq!((none.inline_percent, all.inline_percent), (0.0, 100.0));
        assert!(all.get < half.get && half.get < none.get);
    }

    #[test]
    fn a_study_that_is_stopped_counts_no_further() {
        let sizes = PairSizes { key_bytes: 4, value_bytes: (4, 4) };
        assert!(matches!(count(4 << 20, (sizes, 20), 1, &[100], &|| true), Err(Error::Stopped)));
    }
}
