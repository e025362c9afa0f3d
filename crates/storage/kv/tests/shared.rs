//! Partitions that several threads use where they lie: what holds beside the work of the others.
#![allow(missing_docs, clippy::cast_possible_truncation, clippy::unwrap_used)]

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, mpsc};
use std::thread;
use std::time::Duration;

use linux::Moment;
use linux::random::SplitMix64;
use nvlane_kv::{
    Atomic, AtomicResult, Attributes, Condition, Eviction, MemoryLimit, Partition, PartitionAccess,
    PartitionSet, Parts, Processor, Seen, Settings, Stored,
};

const NOW: Moment = Moment { boot: 1, since_boot_s: 1000, unix_s: 1_700_000_000 };
const SEED: u64 = 5;
/// How long a thread is given to release what it holds.
const PATIENCE: Duration = Duration::from_secs(20);

fn set(count: usize, memory_bytes: usize) -> Arc<PartitionSet> {
    let set = Arc::new(PartitionSet::new(count, SEED, None));
    for number in 0..count {
        let settings =
            Settings { memory_bytes, seed: SEED, eviction: Eviction::Clock, ..Settings::default() };
        set.put(number, Partition::new(Processor::new(settings).expect("memory"), NOW));
    }
    set
}

/// Runs `work` on a thread for each partition, all at once.
fn on_threads(set: &Arc<PartitionSet>, count: usize, work: impl Fn(usize, &PartitionAccess) + Sync) {
    let barrier = Barrier::new(count);
    thread::scope(|scope| {
        for own in 0..count {
            let (work, barrier) = (&work, &barrier);
            scope.spawn(move || {
                let access = PartitionAccess::new(Arc::clone(set), own);
                assert!(access.is_complete());
                barrier.wait();
                work(own, &access);
            });
        }
    });
}

/// Sorts the operations of a batch by the partitions of their keys.
fn sorted(access: &PartitionAccess, keys: &[[u8; 4]]) -> Parts {
    let mut parts = Parts::default();
    let owners = keys.iter().map(|key| Some(access.partition_of(access.hash(key))));
    parts.sort(access.position().1, owners);
    parts
}

#[test]
fn additions_of_all_threads_count_and_each_part_keeps_its_order() {
    const ROUNDS: usize = 400;
    let (set, count) = (set(3, 4 << 20), 3);
    let keys: Vec<[u8; 4]> = (0..40u32).map(u32::to_le_bytes).collect();
    on_threads(&set, count, |own, access| {
        let mut random = SplitMix64::new(own as u64);
        for _ in 0..ROUNDS {
            // Each key three times: the numbers before the additions rise in the order of the batch.
            let mut batch: Vec<[u8; 4]> = keys.iter().flat_map(|key| [*key; 3]).collect();
            let at = random.index(batch.len());
            batch.rotate_left(at);
            let mut before = vec![None; batch.len()];
            access.for_each_part(&mut sorted(access, &batch), NOW, |partition, numbers| {
                for &number in numbers {
                    let key = &batch[number as usize];
                    let (hash, processor) = (access.hash(key), &mut partition.processor);
                    let place = processor.find(hash, key).or_else(|| {
                        let stored =
                            processor.store(hash, key, &[0; 8], Attributes::default(), Condition::Absent);
                        assert_eq!(stored, Stored::Done);
                        processor.find(hash, key)
                    });
                    match processor.atomic(hash, key, place.unwrap(), Atomic::Add(1)) {
                        AtomicResult::Done(old) => before[number as usize] = Some(old),
                        _ => panic!("a number of eight bytes"),
                    }
                }
            });
            for key in &keys {
                let of_key = batch.iter().zip(&before).filter(|(of, _)| *of == key);
                let numbers: Vec<u64> = of_key.map(|(_, before)| before.expect("executed")).collect();
                assert_eq!(numbers.len(), 3);
                assert!(numbers.is_sorted_by(|one, next| one < next), "out of order: {numbers:?}");
            }
        }
    });
    let access = PartitionAccess::new(Arc::clone(&set), 0);
    for key in &keys {
        let hash = access.hash(key);
        let mut partition = access.exclusive(access.partition_of(hash));
        let place = partition.processor.find(hash, key).expect("stored");
        let value: [u8; 8] = partition.processor.value(place).as_whole().unwrap().try_into().unwrap();
        assert_eq!(u64::from_le_bytes(value), (3 * count * ROUNDS) as u64);
    }
}

/// The value of a key in some version: its first bytes tell all others.
fn value_of(key: u32, version: u64) -> Vec<u8> {
    let length = 40 + (version as usize * 97 + key as usize) % 900;
    let mut value = Vec::with_capacity(length + 16);
    value.extend(version.to_le_bytes());
    value.extend(u64::from(key).to_le_bytes());
    value.resize(length + 16, (version as u8) ^ (key as u8));
    value
}

fn assert_whole(key: u32, value: &[u8]) {
    let version = u64::from_le_bytes(value[..8].try_into().unwrap());
    assert!(value == value_of(key, version), "key {key}, version {version}");
}

#[test]
fn readers_see_whole_values_beside_stores_eviction_and_resizes() {
    const KEYS: u64 = 20_000;
    let count = 3;
    let set = set(count, 4 << 20);
    let (read_count, is_storing) = (AtomicUsize::new(0), AtomicBool::new(true));
    on_threads(&set, count, |own, access| {
        let mut random = SplitMix64::new(100 + own as u64);
        let mut keys =
            || -> Vec<[u8; 4]> { (0..64).map(|_| (random.below(KEYS) as u32).to_le_bytes()).collect() };
        if own == 0 {
            // More than there is memory for, while the memory of each partition shrinks and grows.
            for round in 0..1500u64 {
                let batch = keys();
                access.for_each_part(&mut sorted(access, &batch), NOW, |partition, numbers| {
                    for &number in numbers {
                        let key = &batch[number as usize];
                        let value = value_of(u32::from_le_bytes(*key), round);
                        let (hash, processor) = (access.hash(key), &mut partition.processor);
                        let stored =
                            processor.store(hash, key, &value, Attributes::default(), Condition::Always);
                        assert!(matches!(stored, Stored::Done | Stored::NoMemory));
                    }
                });
                let number = round as usize % count;
                let processor = &mut access.exclusive_at(number, NOW).processor;
                if round % 200 < count as u64 {
                    let bytes = if round % 400 < 200 { 2 << 20 } else { 4 << 20 };
                    processor.resize(bytes).expect("memory");
                }
                if processor.is_resizing() {
                    processor.resize_step();
                }
            }
            is_storing.store(false, Ordering::Release);
            return;
        }
        while is_storing.load(Ordering::Acquire) {
            let batch = keys();
            let mut locks = access.read_locks(NOW);
            let taken = locks.release_count();
            let mut homes = Vec::new();
            for key in &batch {
                let hash = access.hash(key);
                homes.push((hash, locks.get(access.partition_of(hash)).0.processor.prefetch_home(hash)));
            }
            for (key, (hash, home)) in batch.iter().zip(homes) {
                let (partition, release_count) = locks.get(access.partition_of(hash));
                let place = if release_count == taken {
                    partition.processor.prefetch_item_of(hash, home)
                } else {
                    None
                };
                if let Seen::Whole { value, .. } = partition.processor.see(hash, key, place) {
                    assert_whole(u32::from_le_bytes(*key), value);
                    read_count.fetch_add(1, Ordering::Relaxed);
                }
            }
        }
    });
    assert!(read_count.into_inner() > 0);
    let access = PartitionAccess::new(Arc::clone(&set), 0);
    let evicted = |number| access.exclusive(number).processor.counters().evicted_count;
    assert!((0..count).map(evicted).sum::<u64>() > 0, "the test evicts");
}

/// A thread that reaches the partitions of a set, and one key of each.
fn with_keys(set: &Arc<PartitionSet>, own: usize) -> (PartitionAccess, [[u8; 4]; 3]) {
    let access = PartitionAccess::new(Arc::clone(set), own);
    let key_of = |partition: usize| {
        let mut keys = (0u32..).map(u32::to_le_bytes);
        keys.find(|key| access.partition_of(access.hash(key)) == partition).unwrap()
    };
    let keys = [0, 1, 2].map(key_of);
    (access, keys)
}

#[test]
fn the_part_of_a_busy_partition_is_left_for_the_end() {
    let set = set(3, 1 << 20);
    let (mine, keys) = with_keys(&set, 1);
    let order = |busy: usize| {
        let (is_taken, is_left) = (Barrier::new(2), Barrier::new(2));
        let mut order = Vec::new();
        thread::scope(|scope| {
            scope.spawn(|| {
                let other = PartitionAccess::new(Arc::clone(&set), 0);
                let guard = other.exclusive(busy);
                is_taken.wait();
                is_left.wait();
                drop(guard);
            });
            is_taken.wait();
            mine.for_each_part(&mut sorted(&mine, &keys), NOW, |_, numbers| {
                order.extend_from_slice(numbers);
                if order.len() == 2 {
                    is_left.wait();
                }
            });
        });
        order
    };
    // The own one first, then those behind it.
    assert_eq!(order(0), [1, 2, 0]);
    assert_eq!(order(1), [2, 0, 1]);
    assert_eq!(order(2), [1, 0, 2]);
}

#[test]
fn a_reader_that_waits_for_a_partition_holds_no_other_one() {
    let set = &set(3, 1 << 20);
    let (mine, _) = with_keys(set, 1);
    let is_held = &Barrier::new(3);
    let (has_changed, changed) = mpsc::channel();
    thread::scope(|scope| {
        scope.spawn(move || {
            let other = PartitionAccess::new(Arc::clone(set), 2);
            let _guard = other.exclusive(2);
            is_held.wait();
            changed.recv_timeout(PATIENCE).expect("the reader keeps partitions while it waits");
        });
        scope.spawn(move || {
            let other = PartitionAccess::new(Arc::clone(set), 0);
            is_held.wait();
            // The reader has both, and releases them when it waits for the third.
            (0..2).for_each(|number| drop(other.exclusive(number)));
            has_changed.send(()).expect("the other thread waits");
        });
        let mut locks = mine.read_locks(NOW);
        assert_eq!((locks.get(0).1, locks.get(1).1), (0, 0));
        is_held.wait();
        assert_eq!(locks.get(2).1, 1);
        assert_eq!(locks.get(0).1, 1);
    });
}

#[test]
fn a_reader_sets_the_clock_that_is_behind_and_pairs_expire() {
    let set = set(2, 1 << 20);
    let access = PartitionAccess::new(Arc::clone(&set), 0);
    let (key, hash) = (b"key", access.hash(b"key"));
    let number = access.partition_of(hash);
    let expiry_s = access.exclusive_at(number, NOW).processor.now_s() + 10;
    let attributes = Attributes { flags: 3, expiry_s };
    let stored =
        access.exclusive_at(number, NOW).processor.store(hash, key, &[7; 30], attributes, Condition::Always);
    assert_eq!(stored, Stored::Done);
    let seen = |since_boot_s| {
        let mut locks = access.read_locks(Moment { since_boot_s, ..NOW });
        let (partition, _) = locks.get(number);
        match partition.processor.see(hash, key, None) {
            Seen::Whole { flags, value, .. } => Some((flags, value.to_vec())),
            Seen::Other => None,
            Seen::Absent => panic!("nothing removes it"),
        }
    };
    assert_eq!(seen(1000), Some((3, vec![7; 30])));
    assert_eq!(seen(1009), Some((3, vec![7; 30])));
    assert_eq!(seen(1010), None);
    // A thread whose turn began earlier does not set the clock back.
    assert_eq!(seen(1009), None);
    assert!(access.exclusive(number).processor.find(hash, key).is_none());
}

#[test]
fn the_usage_of_changed_partitions_is_reported_once_they_are_free() {
    let limit = Arc::new(MemoryLimit::new(2 << 20));
    limit.divide(2);
    let set = Arc::new(PartitionSet::new(2, SEED, None));
    for number in 0..2 {
        let settings = Settings { memory_bytes: limit.share(), seed: SEED, ..Settings::default() };
        set.put(number, Partition::new(Processor::new(settings).unwrap(), NOW).within(&limit));
    }
    let access = PartitionAccess::new(Arc::clone(&set), 0);
    for key in 0u32..100 {
        let key = key.to_le_bytes();
        let hash = access.hash(&key);
        let processor = &mut access.exclusive_at(access.partition_of(hash), NOW).processor;
        let stored = processor.store(hash, &key, &[1; 50], Attributes::default(), Condition::Always);
        assert_eq!(stored, Stored::Done);
    }
    let is_busy = Barrier::new(2);
    thread::scope(|scope| {
        scope.spawn(|| {
            let other = PartitionAccess::new(Arc::clone(&set), 1);
            let guard = other.exclusive(1);
            is_busy.wait();
            is_busy.wait();
            drop(guard);
        });
        is_busy.wait();
        access.report_usage();
        let pair_count = limit.usage().pair_count;
        assert!((1..100).contains(&pair_count), "one partition of two: {pair_count}");
        is_busy.wait();
    });
    access.report_usage();
    assert_eq!(limit.usage().pair_count, 100);
}
