//! Density of the layout: lines touched per operation, bytes per pair.

use crate::index::GROUP_BUCKETS;
use crate::pair::{Attributes, Condition, Stored};
use crate::processor::Processor;
use crate::settings::{Eviction, Settings};

/// Lines read per GET, and read and written per PUT, at a given load of the index.
struct Touched {
    get: f64,
    replace: f64,
    insert: f64,
}

/// Groups of the index under test.
const GROUPS: u64 = 10_000;

fn key(number: usize, key_bytes: usize, into: &mut [u8; 32]) -> &[u8] {
    let mixed = (number as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    into[..8].copy_from_slice(&mixed.to_le_bytes());
    // Short keys keep the bits that differ.
    if key_bytes < 8 {
        into[..4].copy_from_slice(&(number as u32).to_le_bytes());
    }
    &into[..key_bytes]
}

fn put(processor: &mut Processor, key: &[u8], value: &[u8]) {
    let hash = processor.hash(key);
    let stored = processor.store(hash, key, value, Attributes::default(), Condition::Always);
    assert_eq!(stored, Stored::Done);
}

/// Fills the index to `load` of its buckets' cells with pairs that take `cells` each, and counts the lines that
/// operations touch, each line once per operation and kind. An operation that writes a line that it has read counts
/// both; one that is written and then read counts once.
fn measure(key_bytes: usize, value_bytes: usize, cells: usize, load: f64) -> Touched {
    let settings = Settings { memory_bytes: 48 << 20, eviction: Eviction::None, ..Settings::default() };
    let mut processor = Processor::new(settings).expect("memory");
    processor.writer.allocator.spread_over(GROUPS);
    let pair_count = (GROUPS * GROUP_BUCKETS * 12) as f64 * load / cells as f64;
    let pair_count = pair_count as usize;
    let mut room = [0; 32];
    let value = vec![7; value_bytes];
    let last = pair_count / 50;
    for number in 0..pair_count - last {
        put(&mut processor, key(number, key_bytes, &mut room), &value);
    }
    let sum = |processor: &Processor| {
        let touches = processor.touches();
        (touches.read_count + touches.written_count) as f64
    };
    let before = sum(&processor);
    for number in pair_count - last..pair_count {
        put(&mut processor, key(number, key_bytes, &mut room), &value);
    }
    let insert = (sum(&processor) - before) / last as f64;
    let before = sum(&processor);
    for number in 0..pair_count {
        let key = key(number, key_bytes, &mut room);
        let hash = processor.hash(key);
        let place = processor.find(hash, key).expect("stored");
        assert_eq!(processor.value(place).head(), value);
    }
    let get = (sum(&processor) - before) / pair_count as f64;
    let before = sum(&processor);
    for number in 0..pair_count {
        put(&mut processor, key(number, key_bytes, &mut room), &value);
    }
    let replace = (sum(&processor) - before) / pair_count as f64;
    assert_eq!(processor.index_bytes() as u64, GROUPS * 512, "the index was to keep its size");
    println!(
        "{key_bytes:2} + {value_bytes:2} bytes, load {load:.2}: GET {get:.3}, PUT {replace:.3}, new PUT {insert:.3}"
    );
    Touched { get, replace, insert }
}

#[test]
fn small_pairs_cost_one_line_to_read_and_two_to_write() {
    for load in [0.25, 0.5, 0.75] {
        let touched = measure(4, 4, 2, load);
        assert!(touched.get <= 1.1 && touched.replace <= 2.1 && touched.insert <= 2.5);
    }
    // Wider pairs pack less well.
    assert!(measure(8, 8, 4, 0.5).get <= 1.1);
    measure(8, 8, 4, 0.75);
    measure(8, 4, 3, 0.75);
}

#[test]
fn pairs_of_16_and_32_bytes_cost_one_line_more() {
    for load in [0.5, 0.75] {
        let touched = measure(16, 32, 1, load);
        assert!(touched.get <= 2.1 && touched.replace <= 3.1 && touched.insert <= 3.4);
    }
}

/// Number of pairs of 16 and 32 bytes that fit into `memory_bytes`.
fn capacity(memory_bytes: usize) -> usize {
    let settings = Settings { memory_bytes, eviction: Eviction::None, ..Settings::default() };
    let mut processor = Processor::new(settings).expect("memory");
    let mut room = [0; 32];
    for number in 0.. {
        let key = key(number, 16, &mut room);
        let hash = processor.hash(key);
        if processor.store(hash, key, &[7; 32], Attributes::default(), Condition::Always) != Stored::Done {
            assert!(processor.used_bytes() <= memory_bytes);
            return number;
        }
    }
    unreachable!("memory ends")
}

#[test]
fn a_pair_of_16_and_32_bytes_costs_at_most_72_bytes() {
    let memory_bytes = 72 << 20;
    let count = capacity(memory_bytes);
    println!("{:.3} bytes per pair", memory_bytes as f64 / count as f64);
    assert!(count >= 1 << 20);
}

/// Stores keys of 8 bytes with values of 1 to 15, outside of the index, from `first` on until one is refused. Their
/// blocks have one or two units, and those of two begin at a line. Returns the first number that was refused.
fn store_short_items(processor: &mut Processor, first: usize) -> usize {
    let mut room = [0; 32];
    for number in first.. {
        let key = key(number, 8, &mut room);
        let hash = processor.hash(key);
        let value = &[7; 15][..1 + number * 7 % 15];
        let stored = processor.store(hash, key, value, Attributes::default(), Condition::Always);
        if stored != Stored::Done {
            return number;
        }
    }
    unreachable!("memory ends")
}

#[test]
fn items_are_not_moved_for_units_that_are_skipped_again() {
    let settings = Settings {
        memory_bytes: 2 << 20,
        inline_bytes_max: 0,
        eviction: Eviction::None,
        ..Settings::default()
    };
    let mut processor = Processor::new(settings).expect("memory");
    let count = store_short_items(&mut processor, 0);
    let moved_count = processor.counters().moved_count;
    println!("{moved_count} of {count} items moved");
    assert_eq!(moved_count, 0, "nothing was freed");
    // Freed blocks between others are used again, and each refused store ends.
    let mut room = [0; 32];
    for number in (0..count).step_by(3) {
        let key = key(number, 8, &mut room);
        let hash = processor.hash(key);
        assert!(processor.delete(hash, key));
    }
    let stored_count = store_short_items(&mut processor, count) - count;
    let moved_count = processor.counters().moved_count;
    println!("{moved_count} items moved for {stored_count} in place of {}", count / 3);
    assert!(stored_count * 10 >= count / 3 * 9 && moved_count <= 2 * count as u64);
}

#[test]
fn items_of_one_unit_and_of_two_in_turn_are_evicted_without_moving_all_others() {
    let settings = Settings { memory_bytes: 2 << 20, inline_bytes_max: 0, ..Settings::default() };
    let mut processor = Processor::new(settings).expect("memory");
    let mut room = [0; 32];
    // Every fourth unit is skipped, as much as a region that is emptied has free.
    for number in 0..100_000 {
        let value = &[7; 20][..if number % 2 == 0 { 1 } else { 20 }];
        put(&mut processor, key(number, 8, &mut room), value);
    }
    let counters = processor.counters();
    println!("{} items moved, {} evicted", counters.moved_count, counters.evicted_count);
    assert!(counters.evicted_count > 50_000 && counters.moved_count < counters.stored_count);
}
