//! The processor compared with a map, for all that is stored, changed, pinned, evicted, moved and expired.

use std::collections::HashMap;
use std::sync::LazyLock;

use proptest::prelude::*;

use crate::allocator::ResizeStep;
use crate::colliding::CollidingKeys;
use crate::leases::Leased;
use crate::pair::{Attributes, Condition, Stored};
use crate::pending::Pending;
use crate::pins::Pin;
use crate::processor::Processor;
use crate::settings::{Eviction, Settings};
use crate::table::ListPosition;

/// Hash seed of the partitions.
const SEED: u64 = 5;

/// One key in this many collides with others.
const COLLIDING_EVERY: u16 = 4;

#[derive(Clone, Copy, Debug)]
enum Step {
    Store { key: u16, length: u32, condition: u8, flags: u32, expiry: u8 },
    Find { key: u16 },
    Delete { key: u16 },
    Expire { key: u16, expiry: u8 },
    Increase { key: u16, by: u8 },
    Cas { key: u16 },
    Pin { key: u16 },
    Unpin { at: u8 },
    Lease { key: u16, seconds: u8 },
    EndLease { key: u16 },
    Begin { key: u16, length: u32 },
    Commit { at: u8 },
    Abandon { at: u8 },
    Wait { seconds: u8 },
    RemoveExpired,
    DeleteMany { from: u16, count: u16, step: u8 },
    StoreMany { from: u16, count: u16, length: u32 },
    Clear,
    Resize { groups: u16, steps: u16 },
    Memory { kib: u16, steps: u8 },
}

fn length() -> impl Strategy<Value = u32> {
    prop_oneof![6 => 0u32..16, 6 => 0u32..100, 4 => 100u32..3000, 2 => 3000u32..66_000, 1 => 66_000u32..300_000]
}

fn step() -> impl Strategy<Value = Step> {
    let key = || 0u16..600;
    let flags = prop_oneof![4 => Just(0u32), 1 => 1u32..65_536, 1 => 65_536u32..=u32::MAX];
    prop_oneof![
        20 => (key(), length(), 0u8..5, flags, 0u8..8)
            .prop_map(|(key, length, condition, flags, expiry)| Step::Store { key, length, condition, flags, expiry }),
        10 => key().prop_map(|key| Step::Find { key }),
        5 => key().prop_map(|key| Step::Delete { key }),
        3 => (key(), 0u8..8).prop_map(|(key, expiry)| Step::Expire { key, expiry }),
        5 => (key(), any::<u8>()).prop_map(|(key, by)| Step::Increase { key, by }),
        3 => key().prop_map(|key| Step::Cas { key }),
        2 => key().prop_map(|key| Step::Pin { key }),
        2 => any::<u8>().prop_map(|at| Step::Unpin { at }),
        8 => (key(), 1u8..6).prop_map(|(key, seconds)| Step::Lease { key, seconds }),
        2 => key().prop_map(|key| Step::EndLease { key }),
        2 => (key(), length()).prop_map(|(key, length)| Step::Begin { key, length }),
        2 => any::<u8>().prop_map(|at| Step::Commit { at }),
        1 => any::<u8>().prop_map(|at| Step::Abandon { at }),
        2 => (0u8..4).prop_map(|seconds| Step::Wait { seconds }),
        1 => Just(Step::RemoveExpired),
        2 => (key(), 1u16..400, 1u8..4).prop_map(|(from, count, step)| Step::DeleteMany { from, count, step }),
        5 => (key(), 1u16..600, length()).prop_map(|(from, count, length)| Step::StoreMany { from, count, length }),
        1 => Just(Step::Clear),
        4 => (1u16..250, 0u16..900).prop_map(|(groups, steps)| Step::Resize { groups, steps }),
        4 => (512u16..3072, 0u8..80).prop_map(|(kib, steps)| Step::Memory { kib, steps }),
    ]
}

/// All keys from a position on, in pages of `page_count`.
fn all_keys(processor: &Processor, first: ListPosition, page_count: usize) -> Vec<Vec<u8>> {
    let (mut keys, mut next) = (Vec::new(), Some(first));
    while let Some(position) = next {
        let mut left_count = page_count;
        next = processor.list(position, |key| {
            let has_room = left_count > 0;
            if has_room {
                keys.push(key.to_vec());
                left_count -= 1;
            }
            has_room
        });
        assert!(keys.len() < 3000, "a list never ends");
    }
    keys
}

/// Keys of all lengths, some of them similar. Those that collide have few hashes.
fn key_bytes(key: u16) -> Vec<u8> {
    if key.is_multiple_of(COLLIDING_EVERY) {
        static KEYS: LazyLock<CollidingKeys> = LazyLock::new(|| CollidingKeys::new(SEED, 1));
        return KEYS.key(u32::from(key / COLLIDING_EVERY) % CollidingKeys::KIND_COUNT, key);
    }
    let mut bytes = key.to_be_bytes().to_vec();
    let padding = match key % 7 {
        0 => 0,
        1 => 6,
        2 | 3 => 14,
        4 => 15,
        5 => 40,
        _ => 248,
    };
    bytes.resize(2 + padding, b'.');
    bytes
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Pair {
    value: Vec<u8>,
    flags: u32,
    expiry_s: u32,
}

struct Pinned {
    pin: Pin,
    value: Vec<u8>,
}

struct Filling {
    pending: Pending,
    key: u16,
    value: Vec<u8>,
}

struct Twins {
    processor: Processor,
    model: HashMap<u16, Pair>,
    pinned: Vec<Pinned>,
    filling: Vec<Filling>,
    /// By leased key: how often it was leased, and until when.
    leased: HashMap<u16, (u32, u32)>,
    evicted_count: u64,
    seed: u8,
}

impl Twins {
    fn value(&mut self, length: u32) -> Vec<u8> {
        self.seed = self.seed.wrapping_add(41);
        (0..length).map(|at| (at as u8).wrapping_mul(7) ^ (at >> 8) as u8 ^ self.seed).collect()
    }

    fn is_expired(&self, pair: &Pair) -> bool {
        pair.expiry_s != 0 && pair.expiry_s <= self.processor.now_s()
    }

    /// The pair in the model, unless it has expired. An evicted pair is removed from the model.
    fn expected(&mut self, key: u16) -> Option<Pair> {
        let pair = self.model.get(&key)?.clone();
        if self.is_expired(&pair) {
            self.model.remove(&key);
            self.leased.remove(&key);
            return None;
        }
        let bytes = key_bytes(key);
        let hash = self.processor.hash(&bytes);
        if self.processor.find(hash, &bytes).is_none() {
            let now_s = self.processor.now_s();
            let lease = self.leased.remove(&key);
            assert!(
                lease.is_none_or(|(_, end_s)| end_s <= now_s),
                "key {key} was evicted although it is leased"
            );
            self.evicted_count += 1;
            self.model.remove(&key);
            return None;
        }
        Some(pair)
    }

    fn compare(&mut self, key: u16) {
        let expected = self.expected(key);
        let bytes = key_bytes(key);
        let hash = self.processor.hash(&bytes);
        self.processor.prefetch(hash);
        self.processor.prefetch_item(hash);
        let place = self.processor.find(hash, &bytes);
        let found = place.map(|place| {
            self.processor.touch(place);
            let Attributes { flags, expiry_s } = self.processor.attributes(place);
            Pair { value: self.processor.value(place).to_vec(), flags, expiry_s }
        });
        assert_eq!(found, expected, "key {key}");
    }

    fn store(&mut self, key: u16, length: u32, condition: u8, flags: u32, expiry_s: u32) {
        let value = self.value(length);
        let bytes = key_bytes(key);
        let hash = self.processor.hash(&bytes);
        let old = self.expected(key);
        let condition = match condition {
            0 => Condition::Absent,
            1 => Condition::Present,
            2 => Condition::Unchanged(self.processor.cas(hash, &bytes).unwrap_or(7)),
            _ => Condition::Always,
        };
        let old = old.and_then(|_| self.expected(key));
        let stored = self.processor.store(hash, &bytes, &value, Attributes { flags, expiry_s }, condition);
        match stored {
            Stored::Done => {
                match condition {
                    Condition::Absent => assert_eq!(old, None),
                    Condition::Present | Condition::Unchanged(_) => assert!(old.is_some()),
                    Condition::Always => {}
                }
                self.model.insert(key, Pair { value, flags, expiry_s });
                self.check_lease(key, length);
            }
            // A pair in the index gets no CAS number if there is no memory to take it out.
            Stored::Exists => {
                assert!(old.is_some() && matches!(condition, Condition::Absent | Condition::Unchanged(7)));
            }
            Stored::NotFound => assert!(old.is_none()),
            Stored::NoMemory => {
                assert!(
                    self.processor.settings().eviction == Eviction::None
                        || length > 60_000
                        || !self.pinned.is_empty()
                        || !self.leased.is_empty()
                        || !self.filling.is_empty(),
                    "no memory for {length} bytes"
                );
                // The old value may have been removed.
                if self.processor.find(hash, &bytes).is_none() {
                    self.model.remove(&key);
                    self.leased.remove(&key);
                }
            }
            Stored::TooLarge | Stored::LogFull => panic!("nothing is too large here, and there is no log"),
        }
    }

    /// A pair that was replaced stays leased, unless all that is leased would be too much.
    fn check_lease(&mut self, key: u16, length: u32) {
        if self.leased.contains_key(&key) && !self.processor.pairs().is_leased(&key_bytes(key)) {
            let charged = self.processor.counters().pinned_bytes + u64::from(length) + 8192;
            let regions = self.processor.pairs().heap.regions.target() as u64;
            assert!(
                charged > regions * crate::regions::REGION_BYTES as u64 / 2,
                "the lease of {key} is lost"
            );
            self.leased.remove(&key);
        }
    }

    fn run(&mut self, step: Step) {
        match step {
            Step::Store { key, length, condition, flags, expiry } => {
                let expiry_s = if expiry > 5 { self.processor.now_s() + u32::from(expiry) - 5 } else { 0 };
                self.store(key, length, condition, flags, expiry_s);
                self.compare(key);
            }
            Step::Find { key } => self.compare(key),
            Step::Delete { key } => self.delete(key),
            Step::Expire { key, expiry } => {
                let expiry_s = if expiry == 0 { 0 } else { self.processor.now_s() + u32::from(expiry) };
                let expected = self.expected(key);
                let bytes = key_bytes(key);
                let hash = self.processor.hash(&bytes);
                if self.processor.set_expiry(hash, &bytes, expiry_s) {
                    assert!(expected.is_some());
                    self.model.get_mut(&key).expect("expected").expiry_s = expiry_s;
                }
                self.compare(key);
            }
            Step::Increase { key, by } => {
                let expected = self.expected(key);
                let bytes = key_bytes(key);
                let hash = self.processor.hash(&bytes);
                let Some(place) = self.processor.find(hash, &bytes) else {
                    return assert_eq!(expected, None);
                };
                let cas = |this: &mut Self| {
                    this.processor.find(hash, &bytes).and_then(|place| {
                        place.item()?;
                        this.processor.cas(hash, &bytes)
                    })
                };
                let before = cas(self);
                let place = self.processor.find(hash, &bytes).unwrap_or(place);
                let add = |bytes: &mut [u8]| bytes.iter_mut().for_each(|byte| *byte = byte.wrapping_add(by));
                if self.processor.change(hash, &bytes, place, 1, add) {
                    add(&mut self.model.get_mut(&key).expect("expected").value);
                    let after = cas(self);
                    assert!(before.is_none() || before != after, "a changed value has another number");
                }
                self.compare(key);
            }
            Step::Cas { key } => {
                let bytes = key_bytes(key);
                let hash = self.processor.hash(&bytes);
                let expected = self.expected(key);
                if let Some(cas) = self.processor.cas(hash, &bytes) {
                    assert!(expected.is_some());
                    assert_eq!(self.processor.cas(hash, &bytes), Some(cas));
                }
                self.compare(key);
            }
            Step::Pin { key } => {
                let bytes = key_bytes(key);
                let hash = self.processor.hash(&bytes);
                if let Some(place) = self.processor.find(hash, &bytes)
                    && let Some(pin) = self.processor.pairs_mut().heap.pin(place)
                {
                    let value = self.processor.pairs_mut().heap.pinned(&pin).to_vec();
                    self.pinned.push(Pinned { pin, value });
                }
            }
            Step::Unpin { at } => {
                if !self.pinned.is_empty() {
                    let pinned = self.pinned.swap_remove(usize::from(at) % self.pinned.len());
                    assert!(
                        self.processor.pairs_mut().heap.pinned(&pinned.pin).to_vec() == pinned.value,
                        "a pinned value changed"
                    );
                    self.processor.pairs_mut().heap.unpin(pinned.pin);
                }
            }
            Step::Lease { key, seconds } => {
                let is_present = self.expected(key).is_some();
                let bytes = key_bytes(key);
                let hash = self.processor.hash(&bytes);
                let leased = self.processor.pin(hash, &bytes, seconds.into());
                assert_eq!(leased == Leased::Absent, !is_present);
                if leased == Leased::Done && self.processor.settings().eviction == Eviction::Clock {
                    let end_s = self.processor.now_s() + u32::from(seconds);
                    let lease = self.leased.entry(key).or_default();
                    *lease = (lease.0 + 1, lease.1.max(end_s));
                }
                self.compare(key);
            }
            Step::EndLease { key } => {
                let is_present = self.expected(key).is_some();
                let bytes = key_bytes(key);
                let hash = self.processor.hash(&bytes);
                assert_eq!(self.processor.unpin(hash, &bytes), is_present);
                if let Some((count, _)) = self.leased.get_mut(&key) {
                    *count -= 1;
                    if *count == 0 {
                        self.leased.remove(&key);
                    }
                }
            }
            Step::Begin { key, length } => {
                let value = self.value(length);
                if let Some(pending) =
                    self.processor.writer.begin(&key_bytes(key), value.len(), Attributes::default())
                {
                    self.filling.push(Filling { pending, key, value });
                }
            }
            Step::Commit { at } => {
                if self.filling.is_empty() {
                    return;
                }
                let Filling { pending, key, value } =
                    self.filling.swap_remove(usize::from(at) % self.filling.len());
                let cut = value.len() * usize::from(at) / 256;
                pending.fill(&mut self.processor.pairs_mut().heap, 0, &value[..cut]);
                pending.fill(&mut self.processor.pairs_mut().heap, cut, &value[cut..]);
                let bytes = key_bytes(key);
                let hash = self.processor.hash(&bytes);
                match self.processor.writer.link(hash, &bytes, pending) {
                    Stored::Done => {
                        let length = value.len() as u32;
                        self.model.insert(key, Pair { value, flags: 0, expiry_s: 0 });
                        self.check_lease(key, length);
                    }
                    other => assert_eq!(other, Stored::NoMemory),
                }
                self.compare(key);
            }
            Step::Abandon { at } => {
                if !self.filling.is_empty() {
                    let filling = self.filling.swap_remove(usize::from(at) % self.filling.len());
                    self.processor.writer.abandon(filling.pending);
                }
            }
            Step::Wait { seconds } => {
                let now_s = self.processor.now_s() + u32::from(seconds);
                self.processor.set_now(now_s);
                self.leased.retain(|_, (_, end_s)| *end_s > now_s);
            }
            Step::RemoveExpired => {
                self.processor.writer.allocator.remove_expired(3);
            }
            Step::DeleteMany { from, count, step } => {
                (from..from + count).step_by(step.into()).for_each(|key| self.delete(key));
            }
            Step::StoreMany { from, count, length } => {
                let length = if count > 100 { length % 700 } else { length };
                (from..from + count).for_each(|key| self.store(key, length, 4, 0, 0));
            }
            Step::Resize { groups, steps } => {
                self.processor.writer.allocator.resize_partly(groups.into(), steps.into());
            }
            Step::Memory { kib, steps } => {
                self.processor.resize(usize::from(kib) << 10).expect("address space");
                // The leases that end first may have ended.
                let Self { processor, leased, .. } = self;
                leased.retain(|&key, _| processor.pairs().is_leased(&key_bytes(key)));
                for _ in 0..steps {
                    self.processor.resize_step();
                }
            }
            Step::Clear => {
                self.processor.clear();
                self.model.clear();
                self.leased.clear();
                assert_eq!(self.processor.counters().pair_count, 0);
            }
        }
    }

    fn delete(&mut self, key: u16) {
        let expected = self.expected(key);
        let bytes = key_bytes(key);
        let hash = self.processor.hash(&bytes);
        assert_eq!(self.processor.delete(hash, &bytes), expected.is_some(), "key {key}");
        self.model.remove(&key);
        self.leased.remove(&key);
    }

    fn check_all(&mut self) {
        for key in 0..1300 {
            self.compare(key);
        }
        self.processor.assert_index();
        let mut listed = all_keys(&self.processor, ListPosition::default(), 1000);
        assert_eq!(listed, all_keys(&self.processor, ListPosition::default(), 1), "in pages of one key");
        let mut keys: Vec<Vec<u8>> = self.model.keys().map(|&key| key_bytes(key)).collect();
        if let Some(start) = listed.get(listed.len() / 2) {
            let rest = all_keys(&self.processor, ListPosition::of(self.processor.hash(start), start), 50);
            assert_eq!(rest, listed[listed.len() / 2..]);
        }
        listed.sort();
        keys.sort();
        assert_eq!(listed, keys);
        let counters = self.processor.counters();
        assert_eq!(counters.pair_count as usize, keys.len());
        let bytes: usize =
            self.model.iter().map(|(&key, pair)| key_bytes(key).len() + pair.value.len()).sum();
        assert_eq!(counters.pair_bytes as usize, bytes);
        assert!(self.evicted_count <= counters.evicted_count);
        if self.processor.settings().eviction == Eviction::None {
            assert_eq!(counters.evicted_count, 0);
        }
        for pinned in self.pinned.drain(..) {
            assert!(
                self.processor.pairs_mut().heap.pinned(&pinned.pin).to_vec() == pinned.value,
                "a pinned value changed"
            );
            self.processor.pairs_mut().heap.unpin(pinned.pin);
        }
        for filling in self.filling.drain(..) {
            self.processor.writer.abandon(filling.pending);
        }
        for key in keys {
            let hash = self.processor.hash(&key);
            assert!(self.processor.delete(hash, &key));
        }
        let step_count = (0..1000).find(|_| self.processor.resize_step() == ResizeStep::Done);
        assert!(step_count.is_some(), "nothing is in the way of a resize any more");
        let spare_regions = self.processor.pairs_mut().heap.regions.count()
            - self.processor.pairs_mut().heap.regions.free_count();
        let index_regions = self.processor.index_bytes().div_ceil(crate::regions::REGION_BYTES);
        assert!(spare_regions <= 1 + index_regions, "{spare_regions} regions are lost");
    }
}

fn settings(eviction: Eviction) -> Settings {
    Settings { memory_bytes: 1 << 20, eviction, seed: SEED, ..Settings::default() }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn processor_and_map_agree(
        steps in prop::collection::vec(step(), 1..120),
        evicts: bool,
    ) {
        let eviction = if evicts { Eviction::Clock } else { Eviction::None };
        let mut twins = Twins {
            processor: Processor::new(settings(eviction)).expect("memory"),
            model: HashMap::new(),
            pinned: Vec::new(),
            filling: Vec::new(),
            leased: HashMap::new(),
            evicted_count: 0,
            seed: 0,
        };
        for step in steps {
            twins.run(step);
        }
        twins.check_all();
    }
}

fn put(processor: &mut Processor, key: u32, length: usize) -> Stored {
    let key = format!("key-{key:012}");
    let hash = processor.hash(key.as_bytes());
    let value = vec![7; length];
    processor.store(hash, key.as_bytes(), &value, Attributes::default(), Condition::Always)
}

fn get(processor: &mut Processor, key: u32) -> bool {
    let key = format!("key-{key:012}");
    let hash = processor.hash(key.as_bytes());
    let place = processor.find(hash, key.as_bytes());
    if let Some(place) = place {
        processor.touch(place);
    }
    place.is_some()
}

#[test]
fn what_is_used_stays_while_others_come_and_go() {
    let mut processor = Processor::new(settings(Eviction::Clock)).expect("memory");
    for key in 0..200 {
        assert_eq!(put(&mut processor, key, 32), Stored::Done);
    }
    for key in 1000..100_000 {
        assert_eq!(put(&mut processor, key, 32), Stored::Done);
        if key % 1000 == 0 {
            (0..200).for_each(|key| {
                get(&mut processor, key);
            });
        }
    }
    let kept = (0..200).filter(|&key| get(&mut processor, key)).count();
    assert!(kept >= 190, "{kept} of 200 used keys are left");
    assert!(processor.counters().evicted_count > 80_000);
}

#[test]
fn a_part_of_a_loop_longer_than_memory_stays() {
    let mut processor = Processor::new(settings(Eviction::Clock)).expect("memory");
    // A half more than memory holds.
    let count = (3 << 19) / 500;
    let mut hits = 0;
    for at in 0..count * 40 {
        let key = at % count;
        let is_hit = get(&mut processor, key);
        hits += u32::from(is_hit && at >= count * 30);
        if !is_hit {
            assert_eq!(put(&mut processor, key, 450), Stored::Done);
        }
    }
    let share = f64::from(hits) / f64::from(count * 10);
    assert!(share > 0.25, "{share:.2} of the reads hit");
}

#[test]
fn memory_follows_the_sizes_that_are_stored() {
    let mut processor = Processor::new(settings(Eviction::Clock)).expect("memory");
    for (round, length) in [32, 700, 5000, 100].into_iter().enumerate() {
        // Used values stay until twelve times the memory is stored.
        let (first, count) = (round as u32 * 1_000_000, (14 << 20) / (length as u32 + 32));
        for key in first..first + count {
            assert_eq!(put(&mut processor, key, length), Stored::Done);
        }
        let held = (first..first + count).filter(|&key| get(&mut processor, key)).count();
        let bytes = held * (length + 32);
        assert!(bytes > 490 << 10, "{bytes} of 1 MiB after values of {length}");
    }
    assert!(processor.counters().reclaimed_count > 30);
}

#[test]
fn regions_that_are_half_empty_make_room_without_any_loss() {
    let mut processor = Processor::new(settings(Eviction::None)).expect("memory");
    let count = (0..).find(|&key| put(&mut processor, key, 32) != Stored::Done).expect("memory ends");
    for key in (0..count).filter(|key| key % 4 != 0) {
        let key = format!("key-{key:012}");
        let hash = processor.hash(key.as_bytes());
        assert!(processor.delete(hash, key.as_bytes()));
    }
    // Three quarters of memory are free, but no region is.
    let large = (count..).find(|&key| put(&mut processor, key, 5000) != Stored::Done).expect("memory ends");
    assert!(large - count > 90, "only {} large ones fit", large - count);
    assert!((0..count).step_by(4).all(|key| get(&mut processor, key)));
    assert!(processor.counters().moved_count > 0 && processor.counters().evicted_count == 0);
}
