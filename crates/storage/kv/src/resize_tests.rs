//! Memory that shrinks and grows while it is used: bounded steps, nothing stale, and then as a memory of that size.

use crate::allocator::ResizeStep;
use crate::item::LARGE;
use crate::pair::{Attributes, Condition, Stored};
use crate::processor::Processor;
use crate::regions::{Slots, Use};
use crate::settings::{Eviction, Settings};

fn processor(mib: usize, eviction: Eviction) -> Processor {
    let settings = Settings { memory_bytes: mib << 20, eviction, seed: 3, ..Settings::default() };
    Processor::new(settings).expect("memory")
}

fn put(processor: &mut Processor, key: u64, length: usize) -> Stored {
    let mut value = vec![key as u8; length];
    let marked = length.min(8);
    value[..marked].copy_from_slice(&key.to_le_bytes()[..marked]);
    let key = format!("key-{key:09}");
    let hash = processor.hash(key.as_bytes());
    processor.store(hash, key.as_bytes(), &value, Attributes::default(), Condition::Always)
}

/// Whether a key is present; its value is the one that was stored.
fn get(processor: &mut Processor, key: u64, length: usize) -> bool {
    let name = format!("key-{key:09}");
    let hash = processor.hash(name.as_bytes());
    let Some(place) = processor.find(hash, name.as_bytes()) else { return false };
    let value = processor.value(place).to_vec();
    let marked = length.min(8);
    assert_eq!((value.len(), &value[..marked]), (length, &key.to_le_bytes()[..marked]), "{name}");
    assert!(value[marked..].iter().all(|&byte| byte == key as u8), "{name}");
    true
}

/// Steps until the resize is complete.
fn finish(processor: &mut Processor) -> usize {
    let step = |processor: &mut Processor| processor.resize_step() == ResizeStep::Done;
    (1..20_000).find(|_| step(processor)).expect("a resize ends")
}

fn held(processor: &mut Processor, keys: std::ops::Range<u64>, length: usize) -> usize {
    keys.filter(|&key| get(processor, key, length)).count()
}

/// Lengths of which each kind of memory holds some: the index, items, pieces, chunks.
const LENGTHS: [usize; 4] = [2, 300, 40_000, 2_200_000];

fn length_of(key: u64) -> usize {
    match key % 2000 {
        0 if key.is_multiple_of(20_000) => LENGTHS[3],
        0..10 => LENGTHS[2],
        10..1000 => LENGTHS[1],
        _ => LENGTHS[0],
    }
}

/// Regions from `first` on that are used for: items, slots of each kind, the index, chunks.
fn uses_beyond(processor: &mut Processor, first: u32) -> [usize; 5] {
    let regions = &processor.pairs_mut().heap.regions;
    let mut counts = [0; 5];
    for region in first..regions.count() as u32 {
        match regions.use_of(region) {
            Use::Free => {}
            Use::Items(_) => counts[0] += 1,
            Use::Slots(Slots::Pieces) => counts[1] += 1,
            Use::Slots(Slots::Buckets) => counts[2] += 1,
            Use::Index => counts[3] += 1,
            Use::Lent => counts[4] += 1,
        }
    }
    counts
}

#[test]
fn memory_with_everything_in_it_shrinks_step_by_step_while_it_is_used() {
    let mut processor = processor(64, Eviction::Clock);
    let mut next = 0;
    let mut put_next = |processor: &mut Processor| {
        next += 1;
        assert_eq!(put(processor, next, length_of(next)), Stored::Done, "key {next}");
        next
    };
    while put_next(&mut processor) < 300_000 {}
    let beyond = uses_beyond(&mut processor, 160);
    assert!(beyond.iter().all(|&count| count > 0), "{beyond:?}");
    processor.resize(10 << 20).expect("memory");
    // Many pairs stored meanwhile are evicted by the next store, but none is refused or wrong.
    let mut steps = 0;
    while processor.is_resizing() {
        let evicted_before = processor.counters().evicted_count;
        assert_ne!(processor.resize_step(), ResizeStep::Waits);
        let evicted = processor.counters().evicted_count - evicted_before;
        assert!(evicted < 10_000, "one step evicts {evicted} pairs");
        steps += 1;
        let key = put_next(&mut processor);
        assert!(get(&mut processor, key, length_of(key)));
    }
    assert!(steps < 4000, "{steps} steps");
    assert!(processor.used_bytes() <= 10 << 20);
    assert_eq!(processor.pairs_mut().heap.regions.count(), regions_of_new(10));
    processor.assert_index();
    let last = put_next(&mut processor);
    let kept = (1..=last).filter(|&key| get(&mut processor, key, length_of(key))).count() as u64;
    assert_eq!(kept, processor.counters().pair_count);
    assert!(kept > 1000, "{kept} pairs are left");
}

/// Regions of a new memory of this size.
fn regions_of_new(mib: usize) -> usize {
    processor(mib, Eviction::Clock).pairs_mut().heap.regions.count()
}

/// Values of a length that a memory holds once three times as many were stored.
fn held_when_full(processor: &mut Processor, from: u64, length: usize) -> usize {
    let count = (3 * processor.settings().memory_bytes / (length + 40)) as u64;
    for key in from..from + count {
        assert_eq!(put(processor, key, length), Stored::Done);
    }
    held(processor, from..from + count, length)
}

#[test]
fn memory_of_any_history_holds_as_much_as_a_new_one_of_its_size() {
    for length in [10, 100, 500, 4000, 20_000, 300_000, 1_500_000] {
        // Little memory has many short values.
        let (few, many) = if length < 4000 { (4, 8) } else { (12, 24) };
        let fresh = |mib| held_when_full(&mut processor(mib, Eviction::Clock), 0, length);
        let (small, large) = (fresh(few), fresh(many));
        let mut resized = processor(many, Eviction::Clock);
        held_when_full(&mut resized, 0, length);
        for (round, (mib, expected)) in [(few, small), (many, large), (few, small)].into_iter().enumerate() {
            resized.resize(mib << 20).expect("memory");
            finish(&mut resized);
            let held = held_when_full(&mut resized, (round as u64 + 1) << 24, length);
            let share = held as f64 / expected as f64;
            assert!(share > 0.96, "values of {length}: {held} of {expected} in {mib} MiB, round {round}");
        }
    }
}

#[test]
fn memory_that_shrinks_keeps_what_fits_and_was_used() {
    let mut processor = processor(32, Eviction::Clock);
    for key in 0..200_000 {
        assert_eq!(put(&mut processor, key, 100), Stored::Done);
        // The first ones are used again and again.
        get(&mut processor, key % 10_000, 100);
        let name = format!("key-{:09}", key % 10_000);
        let hash = processor.hash(name.as_bytes());
        let place = processor.find(hash, name.as_bytes());
        place.into_iter().for_each(|place| processor.touch(place));
    }
    processor.resize(4 << 20).expect("memory");
    finish(&mut processor);
    let used = held(&mut processor, 0..10_000, 100);
    assert!(used > 7000, "{used} of 10,000 used pairs are left");
    let all = held(&mut processor, 0..200_000, 100);
    assert!(all * 150 > 3 << 20, "{all} pairs in 4 MiB");
}

#[test]
fn memory_without_eviction_loses_nothing_however_far_it_shrinks() {
    for length in [2, 100, 5000, 1_100_000] {
        let mut processor = processor(24, Eviction::None);
        let count = (5 << 20) / (length as u64 + 48);
        for key in 0..4 * count {
            assert_eq!(put(&mut processor, key, length), Stored::Done);
        }
        // Three of four go, here and there.
        for key in (0..4 * count).filter(|key| key % 4 != 0) {
            let name = format!("key-{key:09}");
            let hash = processor.hash(name.as_bytes());
            processor.delete(hash, name.as_bytes());
        }
        let kept = held(&mut processor, 0..4 * count, length);
        let needed_bytes = processor.needed_bytes();
        assert!(needed_bytes < 16 << 20, "{needed_bytes} bytes for values of {length}");
        processor.resize(needed_bytes).expect("memory");
        finish(&mut processor);
        assert_eq!(held(&mut processor, 0..4 * count, length), kept);
        // A size too small is not reached, and does no harm.
        processor.resize(1 << 20).expect("memory");
        let step = (0..10_000).map(|_| processor.resize_step()).find(|step| *step != ResizeStep::More);
        assert_eq!(step, Some(ResizeStep::Waits));
        assert_eq!(held(&mut processor, 0..4 * count, length), kept);
        assert_eq!(put(&mut processor, 1 << 30, 60_000), Stored::NoMemory);
        processor.resize(24 << 20).expect("memory");
        finish(&mut processor);
        assert_eq!(put(&mut processor, 1 << 30, 60_000), Stored::Done);
        assert_eq!(held(&mut processor, 0..4 * count, length), kept);
        assert_eq!(processor.counters().evicted_count, 0);
    }
}

#[test]
fn what_is_held_is_waited_for() {
    let mut processor = processor(16, Eviction::Clock);
    (0..60_000).for_each(|key| assert_eq!(put(&mut processor, key, 300), Stored::Done));
    let regions = &processor.pairs_mut().heap.regions;
    let is_of_items = |region: &u32| matches!(regions.use_of(*region), Use::Items(_));
    let last = (0..regions.count() as u32).rev().find(is_of_items).expect("items");
    let key = (0..60_000u64).rev().find(|&key| {
        let name = format!("key-{key:09}");
        let hash = processor.hash(name.as_bytes());
        let item = processor.find(hash, name.as_bytes()).and_then(crate::place::PairPlace::item);
        item.is_some_and(|item| processor.pairs_mut().heap.regions.region_of(item) == last)
    });
    let name = format!("key-{:09}", key.expect("something is in the last region"));
    let hash = processor.hash(name.as_bytes());
    let place = processor.find(hash, name.as_bytes()).expect("found");
    let kept = processor.keep(place).expect("an item");
    processor.resize(4 << 20).expect("memory");
    let step = (0..10_000).map(|_| processor.resize_step()).find(|step| *step != ResizeStep::More);
    assert_eq!(step, Some(ResizeStep::Waits));
    assert!(processor.pairs_mut().heap.header(place.item().expect("an item")).bits & LARGE == 0);
    assert_eq!(processor.piece(&kept, 0, 300).map(|piece| piece.len()), Some(300));
    drop(kept);
    processor.pairs_mut().heap.release_returned_pins();
    finish(&mut processor);
    assert_eq!(processor.pairs_mut().heap.regions.count(), regions_of_new(4));
}

#[test]
fn a_size_that_changes_again_on_the_way_is_reached() {
    let mut processor = processor(16, Eviction::Clock);
    let mut next = 0;
    for (round, mib) in [4, 64, 8, 2, 32, 1, 16].into_iter().enumerate() {
        for _ in 0..20_000 {
            next += 1;
            assert_eq!(put(&mut processor, next, 100 + round), Stored::Done);
        }
        processor.resize(mib << 20).expect("memory");
        for _ in 0..37 * round {
            processor.resize_step();
        }
    }
    finish(&mut processor);
    assert_eq!(processor.pairs_mut().heap.regions.count(), regions_of_new(16));
    processor.assert_index();
    let too_much = usize::MAX / 2;
    assert!(processor.resize(too_much).is_err());
    assert_eq!(processor.settings().memory_bytes, 16 << 20);
}
