//! Values of mebibytes compared with a map: stored whole or in pieces, changed, evicted, abandoned half-way, and read
//! while others replace them.

use std::collections::HashMap;

use memory::{CHUNK_BYTES, Chunk};
use proptest::prelude::*;

use crate::allocator::ResizeStep;
use crate::chunked::ChunkList;
use crate::pair::{Attributes, Condition, Stored};
use crate::processor::Processor;
use crate::settings::{Eviction, Settings};

#[derive(Clone, Copy, Debug)]
enum Step {
    Store {
        key: u8,
        length: usize,
    },
    /// Takes memory for an arriving value.
    Take {
        key: u8,
        length: usize,
    },
    Arrive {
        at: u8,
    },
    GiveUp {
        at: u8,
    },
    Keep {
        key: u8,
    },
    LetGo {
        at: u8,
    },
    Change {
        key: u8,
    },
    Delete {
        key: u8,
    },
    StoreSmall {
        from: u16,
        count: u16,
        length: usize,
    },
    Clear,
    Memory {
        mib: u8,
        steps: u8,
    },
}

fn length() -> impl Strategy<Value = usize> {
    let edges =
        [0, 1, 65_000, 70_000, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, 2 * CHUNK_BYTES + 65_536];
    prop_oneof![2 => 0usize..7 * CHUNK_BYTES / 2, 1 => prop::sample::select(edges.to_vec())]
}

fn step() -> impl Strategy<Value = Step> {
    let key = || 0u8..6;
    prop_oneof![
        8 => (key(), length()).prop_map(|(key, length)| Step::Store { key, length }),
        4 => (key(), length()).prop_map(|(key, length)| Step::Take { key, length }),
        3 => any::<u8>().prop_map(|at| Step::Arrive { at }),
        1 => any::<u8>().prop_map(|at| Step::GiveUp { at }),
        3 => key().prop_map(|key| Step::Keep { key }),
        3 => any::<u8>().prop_map(|at| Step::LetGo { at }),
        3 => key().prop_map(|key| Step::Change { key }),
        2 => key().prop_map(|key| Step::Delete { key }),
        3 => (0u16..2000, 1u16..2000, 1usize..3000)
            .prop_map(|(from, count, length)| Step::StoreSmall { from, count, length }),
        1 => Just(Step::Clear),
        2 => (4u8..20, any::<u8>()).prop_map(|(mib, steps)| Step::Memory { mib, steps }),
    ]
}

/// The content of a value: pages of one byte each, which increases from page to page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Content {
    first: u8,
    length: usize,
}

impl Content {
    fn byte(self, at: usize) -> u8 {
        self.first.wrapping_add((at / 4096) as u8)
    }

    fn write(self, from: usize, into: &mut [u8]) {
        let mut at = 0;
        while at < into.len() {
            let count = (4096 - (from + at) % 4096).min(into.len() - at);
            into[at..at + count].fill(self.byte(from + at));
            at += count;
        }
    }

    fn is(self, from: usize, bytes: &[u8]) -> bool {
        let mut expected = vec![0; bytes.len()];
        self.write(from, &mut expected);
        expected == bytes
    }
}

struct Arriving {
    key: u8,
    content: Content,
    chunks: Vec<Chunk>,
}

struct Twins {
    processor: Processor,
    model: HashMap<u8, Content>,
    arriving: Vec<Arriving>,
    kept: Vec<(ChunkList, Content)>,
    first: u8,
}

impl Twins {
    fn content(&mut self, length: usize) -> Content {
        self.first = self.first.wrapping_add(37);
        Content { first: self.first, length }
    }

    fn compare(&mut self, key: u8) {
        let hash = self.processor.hash(&[key]);
        let Some(place) = self.processor.find(hash, &[key]) else {
            let expected = self.model.remove(&key);
            let is_evicting = self.processor.settings().eviction == Eviction::Clock;
            return assert!(expected.is_none() || is_evicting, "key {key} is gone");
        };
        let content = self.model[&key];
        let value = self.processor.value(place);
        assert_eq!((value.len(), self.processor.value_bytes(place)), (content.length, content.length));
        let mut at = 0;
        for part in value.parts() {
            assert!(content.is(at, part), "key {key} at {at}");
            at += part.len();
        }
        assert_eq!(at, content.length);
        let chunk_count = self.processor.chunks(place).map_or(0, |chunks| chunks.len());
        assert_eq!(chunk_count, content.length / CHUNK_BYTES);
    }

    fn on_stored(&mut self, key: u8, content: Content, stored: Stored) {
        match stored {
            Stored::Done => {
                self.model.insert(key, content);
            }
            Stored::NoMemory => {}
            other => panic!("{other:?}"),
        }
        self.compare(key);
    }

    fn run(&mut self, step: Step) {
        match step {
            Step::Store { key, length } => {
                let content = self.content(length);
                let mut value = vec![0; length];
                content.write(0, &mut value);
                let hash = self.processor.hash(&[key]);
                let stored =
                    self.processor.store(hash, &[key], &value, Attributes::default(), Condition::Always);
                self.on_stored(key, content, stored);
            }
            Step::Take { key, length } => {
                let content = self.content(length);
                if let Some(mut chunks) = self.processor.take_chunks(length / CHUNK_BYTES) {
                    for (at, chunk) in chunks.iter_mut().enumerate() {
                        content.write(at * CHUNK_BYTES, chunk);
                    }
                    self.arriving.push(Arriving { key, content, chunks });
                }
            }
            Step::Arrive { at } if !self.arriving.is_empty() => {
                let at = usize::from(at) % self.arriving.len();
                let Arriving { key, content, chunks } = self.arriving.swap_remove(at);
                let mut rest = vec![0; content.length % CHUNK_BYTES];
                content.write(chunks.len() * CHUNK_BYTES, &mut rest);
                let hash = self.processor.hash(&[key]);
                let attributes = Attributes { flags: 1 << 20, expiry_s: 0 };
                let stored =
                    self.processor.store_chunks(hash, &[key], chunks, &rest, attributes, Condition::Always);
                self.on_stored(key, content, stored);
            }
            Step::GiveUp { at } if !self.arriving.is_empty() => {
                self.arriving.swap_remove(usize::from(at) % self.arriving.len());
            }
            Step::Keep { key } => {
                let hash = self.processor.hash(&[key]);
                if let Some(place) = self.processor.find(hash, &[key])
                    && let Some(chunks) = self.processor.chunks(place)
                {
                    self.kept.push((ChunkList::clone(chunks), self.model[&key]));
                }
            }
            Step::LetGo { at } if !self.kept.is_empty() => {
                let (chunks, content) = self.kept.swap_remove(usize::from(at) % self.kept.len());
                for (at, chunk) in chunks.iter().enumerate() {
                    assert!(content.is(at * CHUNK_BYTES, chunk), "a value changed while it was read");
                }
            }
            Step::Change { key } => {
                let hash = self.processor.hash(&[key]);
                let Some(place) = self.processor.find(hash, &[key]) else { return };
                let add = |bytes: &mut [u8]| bytes.iter_mut().for_each(|byte| *byte = byte.wrapping_add(3));
                if self.processor.change(hash, &[key], place, 1, add) {
                    let content = self.model.get_mut(&key).expect("found");
                    content.first = content.first.wrapping_add(3);
                }
                self.compare(key);
            }
            Step::Delete { key } => {
                let hash = self.processor.hash(&[key]);
                let was_there = self.processor.delete(hash, &[key]);
                assert!(self.model.remove(&key).is_some() || !was_there);
            }
            Step::StoreSmall { from, count, length } => {
                let value = vec![9; length];
                for key in from..from + count {
                    let key = [b's', (key >> 8) as u8, key as u8];
                    let hash = self.processor.hash(&key);
                    self.processor.store(hash, &key, &value, Attributes::default(), Condition::Always);
                }
            }
            Step::Clear => {
                self.processor.clear();
                self.model.clear();
            }
            Step::Memory { mib, steps } => {
                self.processor.resize(usize::from(mib) << 20).expect("address space");
                for _ in 0..steps {
                    self.processor.resize_step();
                }
            }
            Step::Arrive { .. } | Step::GiveUp { .. } | Step::LetGo { .. } => {}
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn large_values_and_map_agree(steps in prop::collection::vec(step(), 1..60), evicts: bool) {
        let eviction = if evicts { Eviction::Clock } else { Eviction::None };
        let settings = Settings { memory_bytes: 12 << 20, eviction, seed: 5, ..Settings::default() };
        let mut twins = Twins {
            processor: Processor::new(settings).expect("memory"),
            model: HashMap::new(),
            arriving: Vec::new(),
            kept: Vec::new(),
            first: 0,
        };
        for step in steps {
            twins.run(step);
            let processor = &twins.processor;
            prop_assert!(processor.is_resizing() || processor.used_bytes() <= processor.settings().memory_bytes);
        }
        (0..6).for_each(|key| twins.compare(key));
        // Whatever was under way, all memory is freed.
        twins.arriving.clear();
        twins.kept.clear();
        twins.processor.clear();
        let processor = &mut twins.processor;
        prop_assert_eq!(processor.pairs_mut().heap.chunked.taken_bytes(), 0);
        while processor.pairs_mut().heap.close_chunk() {}
        prop_assert!((0..1000).any(|_| processor.resize_step() == ResizeStep::Done));
        // Except for that of the smallest index.
        prop_assert_eq!(processor.pairs_mut().heap.regions.free_count() + 1, processor.pairs_mut().heap.regions.count());
    }
}

#[test]
fn values_in_chunks_and_small_pairs_take_turns() {
    let settings = Settings { memory_bytes: 16 << 20, seed: 5, ..Settings::default() };
    let mut processor = Processor::new(settings).expect("memory");
    let store = |processor: &mut Processor, key: u32, value: &[u8]| {
        let key = key.to_be_bytes();
        let hash = processor.hash(&key);
        processor.store(hash, &key, value, Attributes::default(), Condition::Always)
    };
    let large = vec![1; 2 * CHUNK_BYTES];
    for round in 0..3 {
        for key in 0..300_000 {
            assert_eq!(store(&mut processor, round << 24 | key, &[2; 48]), Stored::Done);
        }
        for key in 0..10 {
            assert_eq!(store(&mut processor, round << 24 | 1 << 20 | key, &large), Stored::Done);
        }
        let held = (0..10)
            .filter(|&key| {
                let key = (round << 24 | 1 << 20 | key).to_be_bytes();
                let hash = processor.hash(&key);
                processor.find(hash, &key).is_some()
            })
            .count();
        assert!(held >= 3, "{held} of the last ten values in round {round}");
    }
}

#[test]
fn a_value_beyond_memory_is_refused_and_takes_nothing_along() {
    let settings = Settings { memory_bytes: 8 << 20, eviction: Eviction::None, ..Settings::default() };
    let mut processor = Processor::new(settings).expect("memory");
    let hash = processor.hash(b"small");
    assert_eq!(
        processor.store(hash, b"small", b"stays", Attributes::default(), Condition::Always),
        Stored::Done
    );
    assert!(processor.take_chunks(9).is_none());
    assert_eq!(processor.pairs_mut().heap.chunked.taken_bytes(), 0);
    assert!(processor.find(hash, b"small").is_some());
    let some = processor.take_chunks(3).expect("there is room for three");
    assert!(processor.take_chunks(7).is_none(), "not beside them");
    drop(some);
}

#[test]
fn chunks_are_touched_ahead_of_those_that_are_taken_and_no_memory_is_lost() {
    let settings = Settings { memory_bytes: 64 << 20, eviction: Eviction::None, ..Settings::default() };
    let mut processor = Processor::new(settings).expect("memory");
    let (sender, touched) = std::sync::mpsc::sync_channel(6);
    let untouched = processor.touch_ahead(move |chunk| sender.try_send(chunk).is_ok());
    assert!(untouched.len() > 60 << 20);
    let first = processor.take_chunks(1).expect("memory");
    let made: Vec<Chunk> = touched.try_iter().collect();
    assert_eq!(made.len(), 2, "two for one");
    let places: Vec<_> = made.iter().map(|chunk| chunk.as_ptr()).collect();
    drop(made);
    let next = processor.take_chunks(2).expect("memory");
    assert!(next.iter().all(|chunk| places.contains(&chunk.as_ptr())), "what was touched is taken first");
    // No more of them wait than the toucher accepts.
    let all = processor.take_chunks(40).expect("memory");
    assert_eq!(touched.try_iter().count(), 6);
    drop((first, next, all, touched));
    // The toucher is gone: chunks are available all the same.
    assert!(processor.take_chunks(58).is_some());
    // And regions get the memory back.
    let value = vec![7; 60_000];
    for number in 0..900u32 {
        let key = number.to_le_bytes();
        let hash = processor.hash(&key);
        let stored = processor.store(hash, &key, &value, Attributes::default(), Condition::Always);
        assert_eq!(stored, Stored::Done, "{number}");
    }
}
