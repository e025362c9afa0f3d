//! How close look-ups and stores come to what memory allows. One run measures everything interleaved; the
//! numbers are medians.
//!
//! `cargo bench -p nvlane-kv --bench processor [-- PAIRS [ROUNDS]]`, ten million pairs of 16 and 32 bytes by
//! default.
//!
//! - *array*: the same keys, hashed the same way, read 32 bytes each from a plain array of lines, prefetched
//!   as well as we know how: what memory allows.
//! - *two arrays*: the same with an array of lines in front that says where to read: what memory allows when
//!   an index is asked first.
//! - *batch*: the processor's look-ups in batches.
//! - *single*: one look-up after the other, as fast as the processor overlaps them by itself.
//! - *dependent*: each look-up waits for the one before, as between two commands of a server.

#![allow(missing_docs, clippy::cast_possible_truncation)]

use std::hint::black_box;
use std::time::Instant;

use nvlane_kv::{Attributes, Condition, Eviction, KeyHash, Processor, Settings, Stored};
use reactor::{Lines, prefetch};

const BATCH: usize = 256;

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }
}

fn key(number: u64) -> [u8; 16] {
    let mut key = [0; 16];
    key[..8].copy_from_slice(&number.to_le_bytes());
    key[8..].copy_from_slice(&number.wrapping_mul(0xff51_afd7_ed55_8ccd).to_le_bytes());
    key
}

/// Keys of one round, made before the clock runs.
fn keys(random: &mut Random, pair_count: u64, count: usize) -> Vec<[u8; 16]> {
    (0..count).map(|_| key(random.next() % pair_count)).collect()
}

fn sum(bytes: &[u8]) -> u64 {
    bytes.chunks_exact(8).fold(0, |sum, word| sum ^ u64::from_le_bytes(word.try_into().expect("eight bytes")))
}

fn array(lines: &Lines, processor: &Processor, keys: &[[u8; 16]]) -> u64 {
    let spot = |hash: KeyHash| (hash.partition(1 << 24) * lines.len()) >> 24;
    let mut sums = 0;
    let mut spots = [0; BATCH];
    for batch in keys.chunks(BATCH) {
        for (at, key) in batch.iter().enumerate() {
            spots[at] = spot(processor.hash(key));
            prefetch(&lines[spots[at]]);
            if at >= 16 {
                sums ^= sum(&lines[spots[at - 16]].0[32..]);
            }
        }
        for &spot in &spots[batch.len().saturating_sub(16)..batch.len()] {
            sums ^= sum(&lines[spot].0[32..]);
        }
    }
    sums
}

fn two_arrays(index: &Lines, lines: &Lines, processor: &Processor, keys: &[[u8; 16]]) -> u64 {
    const WINDOW: usize = 12;
    let mut sums = 0;
    let mut spots = [0; 2 * BATCH];
    for batch in keys.chunks(BATCH) {
        for at in 0..batch.len() + 2 * WINDOW {
            if at < batch.len() {
                spots[at] = (processor.hash(&batch[at]).partition(1 << 24) * index.len()) >> 24;
                prefetch(&index[spots[at]]);
            }
            if at >= WINDOW && at - WINDOW < batch.len() {
                let at = at - WINDOW;
                let word = index[spots[at]].0[..4].try_into().expect("four bytes");
                spots[at + BATCH] = u32::from_le_bytes(word) as usize;
                prefetch(&lines[spots[at + BATCH]]);
            }
            if at >= 2 * WINDOW {
                sums ^= sum(&lines[spots[at - 2 * WINDOW + BATCH]].0[32..]);
            }
        }
    }
    sums
}

fn batch(processor: &mut Processor, keys: &[[u8; 16]]) -> u64 {
    let mut sums = 0;
    for batch in keys.chunks(BATCH) {
        processor.find_each(
            batch.len(),
            |at| &batch[at],
            |processor, _, _, place| {
                sums ^= sum(processor.value(place.expect("stored")).head());
            },
        );
    }
    sums
}

fn single(processor: &mut Processor, keys: &[[u8; 16]]) -> u64 {
    let mut sums = 0;
    for key in keys {
        let hash = processor.hash(key);
        let place = processor.find(hash, key).expect("stored");
        sums ^= sum(processor.value(place).head());
    }
    sums
}

fn dependent(processor: &mut Processor, keys: &[[u8; 16]]) -> u64 {
    let mut last = 0;
    for key in keys {
        let mut key = *key;
        // All values are alike: this changes nothing, but the processor cannot know.
        key[0] ^= (last & 1) as u8;
        let hash = processor.hash(&key);
        let place = processor.find(hash, &key).expect("stored");
        last = sum(processor.value(place).head());
    }
    last
}

fn put(processor: &mut Processor, keys: &[[u8; 16]]) -> u64 {
    for batch in keys.chunks(BATCH) {
        let mut hashes = [processor.hash(&[]); BATCH];
        for (hash, key) in hashes.iter_mut().zip(batch) {
            *hash = processor.hash(key);
        }
        for (hashes, keys) in hashes[..batch.len()].chunks(16).zip(batch.chunks(16)) {
            processor.prefetch_all(hashes);
            for (hash, key) in hashes.iter().zip(keys) {
                let stored = processor.store(*hash, key, &[2; 32], Attributes::default(), Condition::Always);
                assert_eq!(stored, Stored::Done);
            }
        }
    }
    0
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn main() {
    let numbers: Vec<u64> = std::env::args().filter_map(|word| word.parse().ok()).collect();
    let pair_count = numbers.first().copied().unwrap_or(10_000_000);
    let rounds = numbers.get(1).copied().unwrap_or(15);
    let memory_bytes =
        usize::try_from(pair_count * 72 + if pair_count < 1_000_000 { 1 << 20 } else { 0 }).expect("memory");
    let settings = Settings { memory_bytes, eviction: Eviction::None, ..Settings::default() };
    let mut processor = Processor::new(settings).expect("memory");
    let start = Instant::now();
    for number in 0..pair_count {
        let key = key(number);
        let hash = processor.hash(&key);
        let stored = processor.store(hash, &key, &[2; 32], Attributes::default(), Condition::Always);
        assert_eq!(stored, Stored::Done, "pair {number} of {pair_count} does not fit into 72 bytes each");
    }
    println!(
        "{pair_count} pairs of 16 + 32 bytes in {:.3} bytes each ({:.3} taken), stored at {:.2} M/s",
        processor.used_bytes() as f64 / pair_count as f64,
        processor.taken_bytes() as f64 / pair_count as f64,
        pair_count as f64 / start.elapsed().as_secs_f64() / 1e6
    );
    let mut lines = Lines::new(usize::try_from(pair_count).expect("memory")).expect("memory");
    lines.bytes_mut().fill(2);
    let mut random = Random(1);
    let mut index = Lines::new(lines.len() / 10).expect("memory");
    for line in index.iter_mut() {
        let to = (random.next() % pair_count) as u32;
        line.0[..4].copy_from_slice(&to.to_le_bytes());
    }
    let names = ["array", "two arrays", "batch", "single", "dependent", "put"];
    let mut rates = vec![Vec::new(); names.len()];
    for _ in 0..rounds {
        let keys = keys(&mut random, pair_count, 400_000);
        for (which, rates) in rates.iter_mut().enumerate() {
            let start = Instant::now();
            black_box(match which {
                0 => array(&lines, &processor, &keys),
                1 => two_arrays(&index, &lines, &processor, &keys),
                2 => batch(&mut processor, &keys),
                3 => single(&mut processor, &keys),
                4 => dependent(&mut processor, &keys),
                _ => put(&mut processor, &keys),
            });
            rates.push(keys.len() as f64 / start.elapsed().as_secs_f64() / 1e6);
        }
    }
    let medians: Vec<f64> = rates.into_iter().map(median).collect();
    for (name, rate) in names.iter().zip(&medians) {
        println!("{name:10} {rate:7.2} M/s   {:5.1} ns   {:.2} of the array", 1e3 / rate, rate / medians[0]);
    }
}
