//! A memory that holds few of the values: they leave it, are fetched, and are written, all at the same time.

use super::*;
use crate::station::{Arrival, Station};

/// A log with values of up to 256 KiB, and what waits for it.
struct Pressed {
    bench: Bench,
    random: SplitMix64,
    /// Reads under way: they end in any order.
    reads: Vec<Work>,
    station: Station<u8>,
    /// By key: its value's first byte and length.
    expected: BTreeMap<u8, (u8, usize)>,
    /// Gets that were answered, and fetches that did not suffice for it.
    answered_count: usize,
    refetched_count: usize,
}

impl Pressed {
    fn new(sync: Sync, memory_bytes: usize, seed: u64) -> Self {
        let settings = LogSettings {
            start: 8192,
            segment_bytes: 2 << 20,
            segment_count: 12,
            block_bytes: 4096,
            ..settings(sync)
        };
        Self::of(settings, memory_bytes, seed)
    }

    fn of(settings: LogSettings, memory_bytes: usize, seed: u64) -> Self {
        let mut bench = Bench::open_with(settings, Disk::new(&settings), memory_bytes);
        bench.recover();
        Self {
            bench,
            random: SplitMix64::new(seed),
            reads: Vec::new(),
            station: Station::new(usize::MAX),
            expected: BTreeMap::new(),
            answered_count: 0,
            refetched_count: 0,
        }
    }

    /// Whether a command may store a value of this length now.
    fn may_store(&mut self, length: usize) -> bool {
        let Bench { processor, log, .. } = &mut self.bench;
        log.admits(processor, 1 + length) && processor.has_room(length, None)
    }

    /// Stores a value once there is memory, as commands do. Returns how it went.
    fn set(&mut self, key: u8, first: u8, length: usize) -> Stored {
        let mut waited_for = None;
        while !self.bench.processor.has_room(length, None) {
            let progress = self.bench.log.progress(&mut self.bench.processor);
            if progress.is_none() {
                break;
            }
            if waited_for.replace(progress) == Some(progress) {
                self.step();
            }
        }
        let stored = self.bench.set(&[key], &vec![first; length]);
        if stored == Stored::Done {
            self.expected.insert(key, (first, length));
        }
        stored
    }

    fn get(&mut self, key: u8) {
        let hash = self.bench.processor.hash(&[key]);
        if !self.station.is_reserved(&[key]) && !self.bench.processor.is_stub(hash, &[key]) {
            return self.check(key);
        }
        if self.station.on_operation(&[key], key) == Arrival::Fetch {
            self.bench.log.fetch(&mut self.bench.processor, &[key]);
        }
    }

    fn check(&mut self, key: u8) {
        let hash = self.bench.processor.hash(&[key]);
        let place = self.bench.processor.find(hash, &[key]);
        let value = place.map(|place| self.bench.processor.value(place).to_vec());
        let expected = self.expected.get(&key).map(|&(first, length)| vec![first; length]);
        assert!(value == expected, "key {key}");
        self.answered_count += 1;
    }

    /// Begins an operation, or ends one. Returns whether there was one.
    fn step(&mut self) -> bool {
        let mut worked = false;
        if self.reads.len() < 64
            && self.random.below(3) > 0
            && let Some(work) = self.bench.log.next(&mut self.bench.processor)
        {
            worked = true;
            match work {
                Work::Read { .. } => self.reads.push(work),
                work => self.bench.carry_out(work),
            }
        } else if self.bench.write.is_some() && self.random.below(4) == 0 {
            worked = self.bench.step();
        } else if !self.reads.is_empty() {
            let at = self.random.below(self.reads.len() as u64) as usize;
            let work = self.reads.swap_remove(at);
            self.bench.carry_out(work);
            worked = true;
        }
        // Several operations may end before the gets that wait for them are answered.
        while (!worked || self.random.below(3) == 0)
            && let Some(loaded) = self.bench.log.next_loaded()
        {
            worked = true;
            assert_eq!(loaded.result, Ok(()), "key {:?}", loaded.key);
            let mut waiting = Vec::new();
            self.station.on_value(&loaded.key, |key| waiting.push(key));
            for key in waiting {
                let before = self.answered_count;
                self.get(key);
                self.refetched_count += usize::from(self.answered_count == before);
            }
        }
        assert_eq!(self.bench.log.failure(), None);
        worked
    }

    /// Continues until nothing waits and nothing is under way.
    fn settle(&mut self) {
        let mut idle_count = 0;
        for _ in 0..1_000_000 {
            idle_count = if self.step() { 0 } else { idle_count + 1 };
            if idle_count > 1000 {
                break;
            }
        }
        assert!(idle_count > 1000, "it never becomes idle");
        assert!(self.station.is_empty(), "values that never arrive");
    }
}

/// Whatever is fetched, stored and written at once: every get has its value, after a bounded number of fetches, and
/// every Flush ends.
#[test]
fn values_that_leave_memory_are_there_for_every_get() {
    for seed in 0..9 {
        let sync = [Sync::Always, Sync::Batch, Sync::None][seed as usize % 3];
        let mut pressed = Pressed::new(sync, 1 << 20, seed);
        let mut get_count = 0;
        for round in 0..1500u32 {
            let key = pressed.random.below(48) as u8;
            if pressed.random.below(3) == 0 && !pressed.station.is_reserved(&[key]) {
                let length = [100, 3000, 60_000, 200_000, 262_144][pressed.random.below(5) as usize];
                pressed.set(key, round as u8, length);
            } else {
                pressed.get(key);
                get_count += 1;
            }
            for _ in 0..pressed.random.below(6) {
                pressed.step();
            }
            if pressed.random.below(50) == 0 {
                let wanted = pressed.bench.log.request_flush(&mut pressed.bench.processor);
                pressed.settle();
                assert!(pressed.bench.log.settled(&mut pressed.bench.processor) >= wanted, "seed {seed}");
            }
        }
        pressed.settle();
        assert_eq!(pressed.answered_count, get_count, "seed {seed}");
        assert!(pressed.refetched_count <= get_count, "seed {seed}: {}", pressed.refetched_count);
        assert!(pressed.bench.processor.counters().demoted_count > 20, "seed {seed}");
    }
}

/// Stores fill the memory again as soon as there is room, while segments are short and values of the oldest one are in
/// the log only: cleaning fetches them all the same, long ones among short ones too.
#[test]
fn cleaning_goes_on_while_memory_is_full_of_unwritten_values() {
    for seed in 0..12 {
        let sync = [Sync::Always, Sync::Batch, Sync::None][seed as usize % 3];
        let has_long = seed % 2 == 0;
        let segment_bytes = if has_long { 2 << 20 } else { 64 << 10 };
        let settings = LogSettings { segment_bytes, ..settings(sync) };
        let memory_bytes = Settings::memory_bytes_min_with_log(settings.value_bytes_max());
        let mut pressed = Pressed::of(settings, memory_bytes, seed);
        for round in 0..if has_long { 12_000 } else { 3000 } {
            let (key, length) = if has_long && pressed.random.below(40) == 0 {
                (100 + pressed.random.below(24) as u8, 262_144)
            } else {
                (pressed.random.below(60) as u8, pressed.random.below(8000) as usize)
            };
            let mut idle_count = 0;
            while !pressed.may_store(length) {
                idle_count = if pressed.step() { 0 } else { idle_count + 1 };
                assert!(idle_count < 1000, "seed {seed}, round {round}: {:?}", pressed.bench.log.counters);
            }
            pressed.set(key, round as u8, length);
        }
        pressed.settle();
        for key in 0..124 {
            pressed.get(key);
            pressed.settle();
        }
        let cleaned_count = pressed.bench.log.counters().cleaned_count;
        assert!(cleaned_count > 10, "seed {seed}: {cleaned_count}");
    }
}
