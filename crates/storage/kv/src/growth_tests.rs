//! Growth and shrinking of the index: every key is found, listed once, and moved in small steps; memory is used
//! whatever is stored.

use std::collections::BTreeMap;

use proptest::prelude::*;

use crate::pair::{Attributes, Condition, Stored};
use crate::processor::Processor;
use crate::settings::{Eviction, Settings};
use crate::table::ListPosition;

fn processor(memory_bytes: usize, eviction: Eviction) -> Processor {
    Processor::new(Settings { memory_bytes, eviction, seed: 9, ..Settings::default() }).expect("memory")
}

/// Keys of eight bytes, some of sixteen; some are stored in the index and some are not.
fn key(number: u32) -> Vec<u8> {
    let mut key = format!("{number:08}").into_bytes();
    if number.is_multiple_of(3) {
        key.extend_from_slice(b"-longer-");
    }
    key
}

fn put(processor: &mut Processor, key: &[u8], value: &[u8]) -> Stored {
    let hash = processor.hash(key);
    processor.store(hash, key, value, Attributes::default(), Condition::Always)
}

fn get(processor: &mut Processor, key: &[u8]) -> Option<Vec<u8>> {
    let hash = processor.hash(key);
    processor.find(hash, key).map(|place| processor.value(place).to_vec())
}

fn delete(processor: &mut Processor, key: &[u8]) -> bool {
    let hash = processor.hash(key);
    processor.delete(hash, key)
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Store { from: u32, count: u32, length: usize },
    Delete { from: u32, count: u32 },
    Resize { groups: u64, steps: usize },
}

fn step() -> impl Strategy<Value = Step> {
    let from = || 0u32..12_000;
    prop_oneof![
        4 => (from(), 1u32..4000, prop_oneof![0usize..13, 13usize..200])
            .prop_map(|(from, count, length)| Step::Store { from, count, length }),
        3 => (from(), 1u32..6000).prop_map(|(from, count)| Step::Delete { from, count }),
        2 => (8u64..400, 0usize..3000).prop_map(|(groups, steps)| Step::Resize { groups, steps }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn an_index_of_any_size_and_a_map_agree(steps in prop::collection::vec(step(), 1..24)) {
        let mut processor = processor(8 << 20, Eviction::None);
        let mut model = BTreeMap::new();
        for step in steps {
            match step {
                Step::Store { from, count, length } => for number in from..from + count {
                    let value = vec![number as u8; length];
                    prop_assert_eq!(put(&mut processor, &key(number), &value), Stored::Done);
                    model.insert(number, value);
                },
                Step::Delete { from, count } => for number in from..from + count {
                    let is_there = model.remove(&number).is_some();
                    prop_assert_eq!(delete(&mut processor, &key(number)), is_there);
                },
                Step::Resize { groups, steps } => processor.writer.allocator.resize_partly(groups, steps),
            }
            processor.assert_index();
            prop_assert!(processor.used_bytes() <= 8 << 20);
        }
        for number in 0..16_000 {
            prop_assert_eq!(get(&mut processor, &key(number)), model.get(&number).cloned());
        }
    }

    /// A list in pages, each from the last key of the previous one, contains every key that exists throughout exactly
    /// once, in one order, whatever is stored, removed and moved between two pages.
    #[test]
    fn a_list_in_pages_is_whole_while_the_index_changes(
        kept_count in 1u32..3000,
        page_count in 1usize..700,
        changes in prop::collection::vec((0u32..20_000, 0u32..1500, any::<bool>(), 8u64..300, 0usize..1500), 1..20),
    ) {
        let mut processor = processor(8 << 20, Eviction::None);
        let kept = |number: u32| format!("kept-{number}").into_bytes();
        for number in 0..kept_count {
            put(&mut processor, &kept(number), b"1");
        }
        let mut listed: Vec<Vec<u8>> = Vec::new();
        let mut changes = changes.iter().cycle();
        let mut next = Some(ListPosition::default());
        while let Some(position) = next {
            let mut left_count = page_count;
            next = processor.list(position, |key| {
                let has_room = left_count > 0;
                if has_room {
                    listed.push(key.to_vec());
                    left_count -= 1;
                }
                has_room
            });
            let &(from, count, stores, groups, steps) = changes.next().expect("it never ends");
            for number in from..from + count {
                if stores {
                    put(&mut processor, &key(number), b"2");
                } else {
                    delete(&mut processor, &key(number));
                }
            }
            processor.writer.allocator.resize_partly(groups, steps);
        }
        let hashes: Vec<u64> = listed.iter().map(|key| processor.hash(key).raw()).collect();
        prop_assert!(hashes.is_sorted_by(|one, other| one < other), "listed twice, or out of order");
        let kept_listed = listed.iter().filter(|key| key.starts_with(b"kept-")).count();
        prop_assert_eq!(kept_listed, kept_count as usize);
    }
}

/// A list over expired pairs, and over many buckets, ends early and is continued.
#[test]
fn no_list_does_more_than_a_little_at_a_time() {
    let mut processor = processor(16 << 20, Eviction::None);
    let attributes = Attributes { flags: 0, expiry_s: 10 };
    for number in 0..50_000u32 {
        let key = format!("expired-{number}");
        let hash = processor.hash(key.as_bytes());
        processor.store(hash, key.as_bytes(), b"", attributes, Condition::Always);
    }
    put(&mut processor, b"stays", b"1");
    processor.set_now(11);
    let (mut listed, mut calls, mut next) = (Vec::new(), 0, Some(ListPosition::default()));
    while let Some(position) = next {
        let before = processor.touches().read_count;
        next = processor.list(position, |key| {
            listed.push(key.to_vec());
            true
        });
        calls += 1;
        // A bucket's line, and with it each item's.
        assert!(processor.touches().read_count - before < 20_000);
    }
    assert_eq!(listed, [b"stays"]);
    assert!((12..40).contains(&calls), "{calls}");
}

#[test]
fn no_store_moves_more_than_a_bucket_of_a_growing_index() {
    let mut processor = processor(24 << 20, Eviction::None);
    let (mut most, mut sum, mut count) = (0, 0, 0_u32);
    for number in 0.. {
        let before = processor.touches();
        let key = format!("{number:016}");
        if put(&mut processor, key.as_bytes(), &[7; 32]) != Stored::Done {
            break;
        }
        let after = processor.touches();
        let lines = after.read_count + after.written_count - before.read_count - before.written_count;
        most = most.max(lines);
        sum += lines;
        count += 1;
    }
    println!("a store touches {:.2} lines in the mean, {most} at most", sum as f64 / f64::from(count));
    assert!(processor.index_bytes() > 2 << 20, "the index has not grown");
    assert!(most < 250 && sum < 20 * u64::from(count));
}

/// Number of pairs that fit into memory, and the fraction of memory that their bytes take.
fn capacity(memory_bytes: usize, key_bytes: usize, value_bytes: usize) -> f64 {
    let mut processor = processor(memory_bytes, Eviction::None);
    let value = vec![7; value_bytes];
    for number in 0.. {
        let key = &format!("{number:016x}").into_bytes()[16 - key_bytes..];
        if put(&mut processor, key, &value) != Stored::Done {
            break;
        }
    }
    assert!(processor.used_bytes() <= memory_bytes);
    let counters = processor.counters();
    let share = counters.pair_bytes as f64 / memory_bytes as f64;
    println!(
        "{key_bytes} + {value_bytes} bytes: {:.1} bytes per pair, {:.0} % is keys and values, {:.1} % is index",
        memory_bytes as f64 / counters.pair_count as f64,
        100.0 * share,
        100.0 * processor.index_bytes() as f64 / memory_bytes as f64
    );
    share
}

#[test]
fn memory_is_put_to_use_whatever_the_pairs_are() {
    for (key_bytes, value_bytes, least) in [
        (6, 2, 0.5),
        (8, 8, 0.44),
        (16, 32, 0.66),
        (16, 100, 0.57),
        (16, 500, 0.75),
        (16, 4000, 0.9),
        (16, 30_000, 0.85),
    ] {
        let share = capacity(12 << 20, key_bytes, value_bytes);
        assert!(share >= least, "{key_bytes} + {value_bytes}: {share}");
    }
}

#[test]
fn the_index_follows_from_large_pairs_to_small_ones_and_back() {
    let mut processor = processor(12 << 20, Eviction::Clock);
    let mut held = Vec::new();
    for (round, length) in [4000, 32, 4000, 100].into_iter().enumerate() {
        for number in 0..300_000_u32 {
            let key = format!("{round}-{number:014}");
            assert_eq!(put(&mut processor, key.as_bytes(), &vec![7; length]), Stored::Done);
            if length == 4000 && number == 20_000 {
                break;
            }
        }
        processor.assert_index();
        let index = processor.index_bytes();
        let bytes = processor.counters().pair_bytes;
        println!("values of {length}: {bytes} bytes of pairs, {index} of index");
        held.push((bytes, index));
    }
    let index = |round: usize| held[round].1;
    assert!(index(0) < 1 << 17 && index(1) > 1 << 20 && index(2) < index(1) / 3 && index(3) > 1 << 18);
    assert!(
        held[0].0 > 10 << 20 && held[1].0 > 7 << 20 && held[2].0 > 9 << 20 && held[3].0 > 6 << 20,
        "{held:?}"
    );
}

/// A full memory is not searched for expired pairs by each store that it refuses.
#[test]
fn a_refused_store_looks_for_expired_pairs_only_when_some_have() {
    let mut processor = processor(16 << 20, Eviction::None);
    let store = |processor: &mut Processor, number: u32, expiry_s| {
        let before = processor.touches().read_count;
        let key = format!("{number:016}");
        let hash = processor.hash(key.as_bytes());
        let attributes = Attributes { flags: 0, expiry_s };
        let stored = processor.store(hash, key.as_bytes(), &[7; 32], attributes, Condition::Always);
        (stored, processor.touches().read_count - before)
    };
    let mut count = 0;
    while store(&mut processor, count, if count.is_multiple_of(3) { 100 } else { 0 }).0 == Stored::Done {
        count += 1;
    }
    assert!(count > 100_000);
    for now_s in [10, 50, 99] {
        processor.set_now(now_s);
        for _ in 0..100 {
            let (stored, read_count) = store(&mut processor, count, 0);
            assert!(stored != Stored::Done && read_count < 100, "{read_count} lines at second {now_s}");
        }
    }
    processor.set_now(100);
    let full_count = count;
    while store(&mut processor, count, 0).0 == Stored::Done {
        count += 1;
    }
    assert!(count - full_count > full_count / 4, "in the place of the expired ones: {}", count - full_count);
    let read_counts = [(); 3].map(|()| store(&mut processor, count, 0).1);
    assert!(read_counts[2] < 100, "{read_counts:?}");
}
