//! Memory of a partition that evicts: nothing that fits is refused, and memory follows the sizes that are stored.
//!
//! A value *fits* if its block, its pieces and its chunks take at most three quarters of the regions of the partition.

use std::collections::{BTreeMap, HashMap};

use memory::CHUNK_BYTES;
use proptest::prelude::*;

use crate::allocator::ResizeStep;
use crate::counters::Counters;
use crate::index::GROUP_BUCKETS;
use crate::item::HEADER_BYTES as ITEM_HEADER_BYTES;
use crate::leases::Leased;
use crate::pair::{Attributes, Condition, Stored};
use crate::processor::Processor;
use crate::regions::REGION_BYTES;
use crate::settings::Settings;

fn processor(memory_bytes: usize) -> Processor {
    Processor::new(Settings { memory_bytes, seed: 3, ..Settings::default() }).expect("memory")
}

fn put(processor: &mut Processor, key: &str, value: &[u8]) -> Stored {
    let hash = processor.hash(key.as_bytes());
    let count = value.len() / CHUNK_BYTES;
    let Some(mut chunks) = processor.take_chunks(count) else { return Stored::NoMemory };
    for (chunk, part) in chunks.iter_mut().zip(value.chunks(CHUNK_BYTES)) {
        chunk.copy_from_slice(part);
    }
    let rest = &value[count * CHUNK_BYTES..];
    let (attributes, condition) = (Attributes::default(), Condition::Always);
    processor.store_chunks(hash, key.as_bytes(), chunks, rest, attributes, condition)
}

/// Stores `count` values of `length` under the keys of a round.
fn fill(processor: &mut Processor, round: &str, count: usize, length: usize) {
    let value = vec![7; length];
    for number in 0..count {
        let stored = put(processor, &format!("{round}{number:08}"), &value);
        assert_eq!(stored, Stored::Done, "value {number} of {length} bytes");
        assert!(processor.used_bytes() <= processor.settings().memory_bytes);
    }
}

/// Values of a round that are held.
fn held(processor: &mut Processor, round: &str, count: usize) -> usize {
    let is_held = |number: &usize| {
        let key = format!("{round}{number:08}");
        let hash = processor.hash(key.as_bytes());
        processor.find(hash, key.as_bytes()).is_some()
    };
    (0..count).filter(is_held).count()
}

#[test]
fn values_slightly_longer_than_pieces_and_regions_are_never_refused() {
    for (memory, length) in
        [(64, 983_100), (3, 66_560), (16, 197_000), (32, 197_000), (24, 525_000), (24, 1_200_000), (8, 4097)]
    {
        let memory_bytes = memory << 20;
        let mut processor = processor(memory_bytes);
        let count = 3 * memory_bytes / length;
        fill(&mut processor, "key", count, length);
        let bytes = held(&mut processor, "key", count) * length;
        let share = bytes as f64 / memory_bytes as f64;
        // One value fewer than would fit may be held, while the next arrives.
        let least = 0.93 - length as f64 / memory_bytes as f64;
        assert!(share > least, "values of {length} fill {share:.3} of {memory} MiB");
    }
}

#[test]
fn memory_full_of_inline_pairs_gives_way_to_values_of_any_size() {
    let memory_bytes = 16 << 20;
    for length in [1_000_000, 1 << 20, 4000, 200] {
        let mut processor = processor(memory_bytes);
        fill(&mut processor, "a", 500_000, 2);
        assert!(processor.index_bytes() > memory_bytes / 2, "{} bytes of index", processor.index_bytes());
        let count = 20 * memory_bytes / 16 / length;
        fill(&mut processor, "b", count, length);
        let share = (held(&mut processor, "b", count) * length) as f64 / memory_bytes as f64;
        let least = if length == 200 { 0.7 } else { 0.85 } - length as f64 / memory_bytes as f64;
        assert!(share > least, "values of {length} fill {share:.3}");
    }
}

#[test]
fn memory_follows_sizes_that_shift() {
    let memory_bytes = 16 << 20;
    let sizes = [4000, 200, 500, 4000, 1 << 20, 100, 1 << 20, 30_000, 10, 2, 983_100, 10];
    let mut processor = processor(memory_bytes);
    for (round, length) in sizes.into_iter().enumerate() {
        let round = format!("{round}:");
        let count = (3 * memory_bytes / (length + 60)).min(400_000);
        fill(&mut processor, &round, count, length);
        let mut fresh = self::processor(memory_bytes);
        fill(&mut fresh, &round, count, length);
        let (shifted, alone) = (held(&mut processor, &round, count), held(&mut fresh, &round, count));
        println!("{length}: {shifted} after others, {alone} alone");
        assert!(shifted * 100 >= alone * 93, "values of {length}: {shifted} after others, {alone} alone");
    }
}

/// Buckets of the index that one store may move, and pairs: in all, and for each region that it needs.
const BUCKETS_MOVED: (u64, u64) = (6144, 2048);
const PAIRS_MOVED: (u64, u64) = (4096, 2048);
/// Mean cells taken per bucket, of eleven, beyond which look-ups follow long lists of overflow lines.
const CELLS_MAX: u64 = 14;

#[test]
fn a_store_moves_a_bounded_part_of_a_full_memory_while_sizes_shift_and_the_index_follows() {
    let memory_bytes = 16 << 20;
    let sizes = [2, 1_000_000, 2, 4000, 100, 1_000_000, 10, 30_000, 60_000];
    let value = vec![7; 1_000_000];
    let mut processor = processor(memory_bytes);
    for (round, length) in sizes.into_iter().enumerate() {
        let count = (2 * memory_bytes / (length + 40)).min(memory_bytes / 24);
        let region_count = (length / REGION_BYTES + 1) as u64;
        let most = [BUCKETS_MOVED, PAIRS_MOVED].map(|(all, each)| all + each * region_count);
        let moved = |processor: &mut Processor| {
            let pairs = processor.pairs_mut();
            [pairs.table.index.moved_count, pairs.counters.moved_count]
        };
        for number in 0..count {
            let key = |number: usize| format!("{round:02}:{number:08}");
            let before = moved(&mut processor);
            assert_eq!(put(&mut processor, &key(number), &value[..length]), Stored::Done);
            let after = moved(&mut processor);
            let by_this: [u64; 2] = std::array::from_fn(|at| after[at] - before[at]);
            let is_bounded = by_this.iter().zip(most).all(|(&moved, most)| moved <= most);
            assert!(is_bounded, "a store of {length} bytes moved {by_this:?} buckets and pairs of {most:?}");
            // Half of those stored lately are used.
            let key = key(number - number / 8 * (number % 4) / 4);
            let hash = processor.hash(key.as_bytes());
            if let Some(place) = processor.find(hash, key.as_bytes()) {
                processor.touch(place);
            }
        }
        let index = &processor.pairs_mut().table.index;
        let (cells, buckets) = (index.used_cells, index.group_count() * GROUP_BUCKETS);
        assert!(cells < CELLS_MAX * buckets, "after values of {length}: {cells} cells in {buckets} buckets");
    }
}

/// Items that memcached 1.6.45 holds in 64 MiB (`-m 64 -t 1`), by the length of their values; keys of 13 bytes.
const MEMCACHED_ITEMS: [(usize, usize); 12] = [
    (10, 699_008),
    (50, 441_472),
    (100, 349_504),
    (200, 220_736),
    (500, 111_808),
    (1000, 56_640),
    (2000, 28_864),
    (4000, 14_720),
    (20_000, 3072),
    (100_000, 640),
    (300_000, 192),
    (1_000_000, 63),
];

/// Lengths of values that fill the memory before those of another length are counted.
const SHIFTS: [(usize, usize); 4] = [(4000, 200), (500, 4000), (1_000_000, 100), (100, 1_000_000)];

#[test]
fn as_many_items_as_in_memcached_fit_also_after_others() {
    // Short values are counted in a quarter of the memory.
    let holds = |before: Option<usize>, length: usize| {
        let (_, least) = *MEMCACHED_ITEMS.iter().find(|(of, _)| *of == length).expect("measured");
        let share = if length < 100_000 { 4 } else { 1 };
        let (memory_bytes, least) = ((64 << 20) / share, least / share);
        let mut processor = processor(memory_bytes);
        if let Some(before) = before {
            fill(&mut processor, "old:0", memory_bytes / before, before);
        }
        fill(&mut processor, "key:0", least * 3 / 2, length);
        let held = held(&mut processor, "key:0", least * 3 / 2);
        println!("{length} bytes after {before:?}: {held} items, {least} in memcached");
        assert!(held >= least, "{length} bytes after {before:?}: {held} items, {least} in memcached");
    };
    for (length, _) in MEMCACHED_ITEMS {
        holds(None, length);
    }
    for (before, length) in SHIFTS {
        holds(Some(before), length);
    }
}

/// An LRU list of values, limited by the sum of their bytes.
#[derive(Default)]
struct Lru {
    /// By key: the time of the last use, and bytes.
    values: HashMap<u64, (u64, usize)>,
    by_use: BTreeMap<u64, u64>,
    bytes: usize,
    time: u64,
}

impl Lru {
    /// Reads a value, or stores it. Returns whether it was there.
    fn read(&mut self, key: u64, bytes: usize, bytes_max: usize) -> bool {
        self.time += 1;
        self.by_use.insert(self.time, key);
        if let Some((used_at, _)) = self.values.insert(key, (self.time, bytes)) {
            self.by_use.remove(&used_at);
            return true;
        }
        self.bytes += bytes;
        while self.bytes > bytes_max {
            let (_, oldest) = self.by_use.pop_first().expect("a value takes the bytes");
            self.bytes -= self.values.remove(&oldest).expect("in both").1;
        }
        false
    }
}

/// Requests for keys whose popularity follows Zipf's law with exponent .99, and their lengths.
struct Requests {
    seed: u64,
    sums: Vec<f64>,
}

impl Requests {
    fn new(key_count: u32) -> Self {
        let sum = |sum: &mut f64, rank: u32| {
            *sum += f64::from(rank).powf(-0.99);
            Some(*sum)
        };
        Self { seed: 1, sums: (1..=key_count).scan(0.0, sum).collect() }
    }

    /// The rank of the next key.
    fn rank(&mut self) -> u64 {
        self.seed ^= self.seed << 13;
        self.seed ^= self.seed >> 7;
        self.seed ^= self.seed << 17;
        let at = (self.seed >> 11) as f64 / (1u64 << 53) as f64 * self.sums[self.sums.len() - 1];
        self.sums.partition_point(|&sum| sum < at) as u64
    }

    /// The length of a key's value, 100 to 4000 bytes.
    fn length(key: u64) -> usize {
        100 + (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize % 3901
    }
}

#[test]
fn it_hits_more_often_than_an_lru_and_hardly_less_often_while_popularity_drifts() {
    const KEY_COUNT: u32 = 75_000;
    const REQUEST_COUNT: u64 = 250_000;
    let memory_bytes = 8 << 20;
    let value = vec![7; 4000];
    // A request in three is for a key that comes once; the popularity moves on; a request in two is for a key that
    // comes twice; or all keys are others from time to time.
    for (name, gain) in
        [("steady", 0.02), ("scan", 0.03), ("drift", -0.01), ("twice", 0.04), ("jumps", -0.015)]
    {
        let (mut requests, mut processor) = (Requests::new(KEY_COUNT), processor(memory_bytes));
        let (mut lru, mut hits, mut lru_hits, mut count) = (Lru::default(), 0u64, 0u64, 0u64);
        for number in 0..REQUEST_COUNT {
            let is_scan = name == "scan" && number % 3 == 0;
            let key = match (name, number % 4) {
                ("twice", 0) => 1 << 32 | number,
                ("twice", 2) => 1 << 32 | (number - 2).saturating_sub(2000),
                ("jumps", _) => (number / 30_000) << 32 | requests.rank(),
                ("drift", _) => (requests.rank() + number / 1000 * 50) % u64::from(KEY_COUNT),
                _ if is_scan => 1 << 32 | number,
                _ => requests.rank(),
            };
            let bytes = format!("key-{key:012}").into_bytes();
            let hash = processor.hash(&bytes);
            let length = Requests::length(key);
            let place = processor.find(hash, &bytes);
            match place {
                Some(place) => processor.touch(place),
                None => {
                    let stored = processor.put(hash, &bytes, &value[..length], Attributes::default(), None);
                    assert_eq!(stored, Stored::Done);
                }
            }
            let item_bytes = ITEM_HEADER_BYTES + bytes.len() + length;
            let is_lru_hit = lru.read(key, item_bytes, memory_bytes);
            if number >= REQUEST_COUNT / 2 && !is_scan {
                count += 1;
                hits += u64::from(place.is_some());
                lru_hits += u64::from(is_lru_hit);
            }
        }
        let (ratio, lru_ratio) = (hits as f64 / count as f64, lru_hits as f64 / count as f64);
        println!("{name}: {ratio:.3}, LRU without any waste {lru_ratio:.3}");
        assert!(ratio >= lru_ratio + gain, "{name}: {ratio:.3}, LRU {lru_ratio:.3}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, ..ProptestConfig::default() })]

    /// Whatever sizes come and go, a value that fits is stored, memory stays within its limit, and the index is whole.
    #[test]
    fn a_value_that_fits_is_never_refused(
        memory_mib in 2usize..10,
        phases in prop::collection::vec((0u32..21, 1usize..100, 0usize..3), 1..12),
    ) {
        let memory_bytes = memory_mib << 20;
        let mut processor = processor(memory_bytes);
        let mut seed = 0u32;
        for (log, percent, kind) in phases {
            let longest = (1usize << log) * (100 + percent) / 100;
            let longest = longest.min(memory_bytes * 3 / 4 - (64 << 10));
            let count = (2 * memory_bytes / (longest + 40)).clamp(3, 60_000);
            for number in 0..count {
                seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                let length = if kind == 0 { longest } else { seed as usize % (longest + 1) };
                let key = format!("{}", seed % 50_000);
                let hash = processor.hash(key.as_bytes());
                match (kind, seed >> 28) {
                    (2, 0..4) => { processor.delete(hash, key.as_bytes()); }
                    (2, 4..8) => if let Some(place) = processor.find(hash, key.as_bytes()) {
                        processor.touch(place);
                    },
                    _ => {
                        let stored = put(&mut processor, &key, &vec![number as u8; length]);
                        prop_assert_eq!(stored, Stored::Done, "{} bytes in {} MiB", length, memory_mib);
                    }
                }
                prop_assert!(processor.used_bytes() <= memory_bytes);
            }
            processor.assert_index();
        }
    }
}

/// Pins the values of a round for some seconds. Returns how many could be.
fn pin(processor: &mut Processor, round: &str, count: usize, seconds: u32) -> usize {
    let is_pinned = |number: &usize| {
        let key = format!("{round}{number:08}");
        let hash = processor.hash(key.as_bytes());
        processor.pin(hash, key.as_bytes(), seconds) == Leased::Done
    };
    (0..count).filter(is_pinned).count()
}

#[test]
fn pinned_pairs_stay_whatever_comes_and_the_hand_never_passes_over_them() {
    for (length, mib) in [(8, 2), (300, 4), (5000, 16), (70_000, 16), (1_200_000, 16)] {
        let memory_bytes = mib << 20;
        let mut pairs = processor(memory_bytes);
        pairs.set_now(10);
        let count = memory_bytes / 4 / (length + 400);
        fill(&mut pairs, "a", count, length);
        assert_eq!(pin(&mut pairs, "a", count, 100), count, "a quarter of memory in values of {length}");
        let moved_count = pairs.counters().moved_count;
        for _ in 0..4 {
            fill(&mut pairs, "b", 2 * memory_bytes / (length + 40), length);
        }
        assert_eq!(held(&mut pairs, "a", count), count, "values of {length}");
        let Counters { evicted_count, moved_count: later, .. } = pairs.counters();
        // Without a log each move is that of an item that was used, or to empty a sparse region.
        assert!(later - moved_count < evicted_count / 2 + 100, "{length}: {later} moves");
        // A client that pinned them is gone: its leases end, and what was pinned is evicted as other pairs.
        pairs.set_now(110);
        for _ in 0..16 {
            fill(&mut pairs, "c", 2 * memory_bytes / (length + 40), length);
        }
        assert_eq!(held(&mut pairs, "a", count), 0, "values of {length}");
        let counters = pairs.counters();
        assert_eq!((counters.pinned_count, counters.pin_ended_count), (0, count as u64));
    }
}

#[test]
fn half_of_memory_can_be_pinned_and_the_rest_goes_on() {
    let memory_bytes = 16 << 20;
    let mut pairs = processor(memory_bytes);
    fill(&mut pairs, "a", 12, 1 << 20);
    assert_eq!(pin(&mut pairs, "a", 12, 1000), 7, "with their records they are a little longer");
    assert_eq!(pin(&mut pairs, "a", 7, 1000), 7, "a second pin takes nothing");
    assert_eq!((pairs.counters().pin_refused_count, pairs.counters().pin_count), (5, 14));
    fill(&mut pairs, "b", 40, 1 << 20);
    assert_eq!(held(&mut pairs, "a", 12), 7);
    // A value longer than what may be evicted is refused before anything is.
    let evicted_count = pairs.counters().evicted_count;
    assert_eq!(put(&mut pairs, "long", &vec![1; 10 << 20]), Stored::NoMemory);
    assert_eq!(pairs.counters().evicted_count, evicted_count);
    // Each pin is taken back once; a deleted pair has none.
    let unpin = |pairs: &mut Processor, number: usize| {
        let key = format!("a{number:08}");
        pairs.unpin(pairs.hash(key.as_bytes()), key.as_bytes())
    };
    assert!((0..7).all(|number| unpin(&mut pairs, number)));
    assert_eq!(pairs.counters().pinned_count, 7);
    assert!((0..6).all(|number| unpin(&mut pairs, number)) && unpin(&mut pairs, 0) && !unpin(&mut pairs, 99));
    assert!(pairs.delete(pairs.hash(b"a00000006"), b"a00000006"));
    assert_eq!((pairs.counters().pinned_count, pairs.counters().pinned_bytes), (0, 0));
    fill(&mut pairs, "c", 10, 1 << 20);
    // With less memory the leases that end first end at once.
    assert_eq!((pin(&mut pairs, "c", 4, 100), pin(&mut pairs, "c", 2, 200)), (4, 2));
    pairs.resize(6 << 20).expect("memory");
    while pairs.resize_step() != ResizeStep::Done {}
    assert_eq!(pairs.counters().pinned_count, 2);
    assert_eq!(held(&mut pairs, "c", 2), 2);
}

#[test]
fn a_value_that_is_being_sent_is_pinned_and_unpinned_like_others() {
    let mut pairs = processor(4 << 20);
    pairs.set_now(10);
    fill(&mut pairs, "a", 3, 10_000);
    let kept: Vec<_> = (0..3)
        .map(|number| {
            let key = format!("a{number:08}");
            let place = pairs.find(pairs.hash(key.as_bytes()), key.as_bytes()).expect("stored");
            pairs.keep(place).expect("an item")
        })
        .collect();
    assert_eq!(pin(&mut pairs, "a", 2, 20), 2);
    fill(&mut pairs, "b", 1000, 10_000);
    drop(kept);
    fill(&mut pairs, "b", 3000, 10_000);
    assert_eq!(held(&mut pairs, "a", 3), 2, "what was sent moves aside when the hand comes");
    let key = b"a00000000";
    let hash = pairs.hash(key);
    let place = pairs.find(hash, key).expect("pinned");
    let kept = pairs.keep(place);
    assert!(pairs.unpin(hash, key));
    assert_eq!(pairs.counters().pinned_count, 2, "it cannot move yet");
    drop(kept);
    pairs.set_now(12);
    fill(&mut pairs, "b", 9000, 10_000);
    assert_eq!((held(&mut pairs, "a", 2), pairs.counters().pinned_count), (1, 1));
}

#[test]
fn short_pairs_that_are_pinned_are_pinned_under_their_next_values() {
    let mut pairs = processor(1 << 20);
    fill(&mut pairs, "a", 100, 3);
    assert_eq!(pin(&mut pairs, "a", 100, 1000), 100);
    fill(&mut pairs, "a", 50, 4);
    fill(&mut pairs, "a", 20, 6000);
    assert_eq!(pairs.counters().pinned_count, 100);
    fill(&mut pairs, "b", 100_000, 3);
    fill(&mut pairs, "b", 10_000, 900);
    assert_eq!(held(&mut pairs, "a", 100), 100);
    pairs.clear();
    assert_eq!((pairs.counters().pinned_count, held(&mut pairs, "a", 100)), (0, 0));
}
