//! Memory of a partition that evicts: nothing that fits is refused, and memory follows the sizes that are stored.
//!
//! A value *fits* if its block, its pieces and its chunks take at most three quarters of the regions of the partition.

use reactor::CHUNK_BYTES;

use crate::pair::{Attributes, Condition, Stored};
use crate::processor::Processor;
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

/// Items that memcached 1.6.45 holds in 64 MiB (`-m 64`), by the length of their values; keys of 13 bytes.
const MEMCACHED_ITEMS: [(usize, usize); 12] = [
    (10, 699_000),
    (50, 559_000),
    (100, 350_000),
    (200, 220_000),
    (500, 112_000),
    (1000, 57_000),
    (2000, 29_000),
    (4000, 14_700),
    (20_000, 3_100),
    (100_000, 640),
    (300_000, 210),
    (1_000_000, 60),
];

#[test]
fn as_many_items_as_in_memcached_fit() {
    let memory_bytes = 64 << 20;
    for (length, least) in MEMCACHED_ITEMS {
        let mut processor = processor(memory_bytes);
        let count = least * 3 / 2;
        fill(&mut processor, "key:0", count, length);
        let held = held(&mut processor, "key:0", count);
        println!("{length} bytes: {held} items, {least} in memcached");
        assert!(held >= least, "{length} bytes: {held} items, {least} in memcached");
    }
}
