//! Last accesses of items, while they are moved, evicted and replaced.

use std::collections::HashMap;

use linux::Moment;
use linux::random::SplitMix64;

use crate::pair::{Attributes, Condition, Stored};
use crate::partition::Partition;
use crate::processor::Processor;
use crate::settings::Settings;

const START_S: i64 = 1_700_000_000;

fn partition(memory_bytes: usize) -> Partition {
    let settings = Settings { memory_bytes, seed: 3, ..Settings::default() };
    Partition::new(Processor::new(settings).expect("memory"), at(START_S))
}

fn at(unix_s: i64) -> Moment {
    Moment { boot: 1, since_boot_s: unix_s - START_S, unix_s }
}

fn put(partition: &mut Partition, key: &[u8], length: usize) {
    let processor = &mut partition.processor;
    let hash = processor.hash(key);
    let stored = processor.store(hash, key, &vec![1; length], Attributes::default(), Condition::Always);
    assert_eq!(stored, Stored::Done);
}

/// Reads a key. Returns the second of its access before, in Unix time.
fn read(partition: &mut Partition, key: &[u8], counts: bool) -> Option<i64> {
    let processor = &mut partition.processor;
    let place = processor.find(processor.hash(key), key)?;
    let at_s = processor.last_access_s(place).expect("too large for the index");
    if counts {
        processor.touch(place);
    }
    Some(processor.clock().unix_of(at_s))
}

/// Steps of 20 s with stores of new keys, reads, and another memory now and then.
#[test]
fn the_last_access_is_known_to_its_resolution_whatever_happens_to_the_item() {
    let mut partition = partition(4 << 20);
    let mut random = SplitMix64::new(11);
    let mut accessed: HashMap<u64, i64> = HashMap::new();
    let mut seen = [0; 4];
    for step in 0..6000u64 {
        let now_s = START_S + 20 * step.cast_signed();
        // Requests come in many receives.
        (0..8).for_each(|_| partition.set_now(at(now_s)));
        for _ in 0..3 {
            let number = random.draw() % 12_000;
            put(
                &mut partition,
                format!("key-of-an-item-{number}").as_bytes(),
                30 + (number % 7) as usize * 300,
            );
            accessed.insert(number, now_s);
        }
        if step % 1500 == 1499 {
            partition.processor.resize(if step % 3000 == 1499 { 2 << 20 } else { 4 << 20 }).expect("memory");
            while partition.processor.is_resizing() {
                partition.processor.resize_step();
            }
        }
        for round in 0..4 {
            let number = random.draw() % 12_000;
            let key = format!("key-of-an-item-{number}");
            let counts = round == 0;
            let Some(known_s) = read(&mut partition, key.as_bytes(), counts) else { continue };
            let access_s = accessed[&number];
            assert!(known_s <= access_s, "step {step}, {number}: in the future");
            // The start of a tick is up to 20 s late here.
            let (row, resolution_s) = match now_s - access_s {
                ..360 => (0, 80),
                360..9_000 => (1, 800),
                9_000..102_000 => (2, 8_000),
                _ => (3, i64::MAX),
            };
            assert!(
                access_s - known_s < resolution_s,
                "step {step}, {number}: {known_s} for {access_s} at {now_s}"
            );
            seen[row] += 1;
            if counts {
                accessed.insert(number, now_s);
            }
        }
    }
    assert!(seen[..3].iter().all(|&count| count > 100), "{seen:?}");
    assert!(
        partition.processor.counters().evicted_count > 0 && partition.processor.counters().moved_count > 0
    );
}

/// A GET writes the line of an item with a use or in a new tick; else it reads two lines and writes none.
#[test]
fn an_item_is_written_once_per_tick() {
    let mut partition = partition(4 << 20);
    let key = b"sixteen bytes ..";
    put(&mut partition, key, 32);
    for minute in 0..3 {
        partition.set_now(at(START_S + 60 * minute));
        assert!((0..3).all(|_| read(&mut partition, key, true).is_some()));
        let before = partition.processor.touches();
        assert!((0..100).all(|_| read(&mut partition, key, true).is_some()));
        let after = partition.processor.touches();
        assert_eq!(after.written_count, before.written_count);
        assert_eq!(after.read_count - before.read_count, 200);
    }
}
