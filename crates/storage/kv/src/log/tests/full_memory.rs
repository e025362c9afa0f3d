//! Memory that is full of keys, their stubs and short values: whatever is stored can be read, at once and after a
//! restart with the same settings.

use super::*;

/// Lengths of keys and values of a workload.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mix {
    pub(super) key_bytes: &'static [usize],
    pub(super) value_bytes: &'static [usize],
}

/// A partition and the pairs that it must have. For the number of each key: the length of the key, and the first byte and
/// the length of the value.
pub(super) struct Full {
    settings: LogSettings,
    memory_bytes: usize,
    pub(super) bench: Bench,
    pub(super) random: SplitMix64,
    mix: Mix,
    pub(super) pairs: BTreeMap<u32, (usize, u8, usize)>,
}

fn key(number: u32, bytes: usize) -> Vec<u8> {
    let mut key = format!("{number:08x}").into_bytes();
    key.resize(bytes, b'k');
    key
}

impl Full {
    pub(super) fn new(settings: LogSettings, memory_bytes: usize, mix: Mix, seed: u64) -> Self {
        let mut bench = Bench::open_with(settings, Disk::new(&settings), memory_bytes);
        bench.recover();
        Self { settings, memory_bytes, bench, random: SplitMix64::new(seed), mix, pairs: BTreeMap::new() }
    }

    fn one_of(&mut self, of: &[usize]) -> usize {
        of[self.random.below(of.len() as u64) as usize]
    }

    /// Stores a value of a key, as soon as the log admits it. Returns whether there was room.
    pub(super) fn store(&mut self, number: u32) -> bool {
        let key_bytes = self.pairs.get(&number).map(|pair| pair.0);
        let key_bytes = key_bytes.unwrap_or_else(|| self.one_of(self.mix.key_bytes));
        let value_bytes = self.one_of(self.mix.value_bytes);
        let first = self.random.draw() as u8;
        while !self.bench.log.admits(&mut self.bench.processor, key_bytes + value_bytes) {
            assert!(self.bench.step(), "changes wait for nothing");
        }
        loop {
            match self.bench.set(&key(number, key_bytes), &vec![first; value_bytes]) {
                Stored::Done => break,
                // Once more is written, more can leave memory.
                _ if self.bench.step() => {}
                _ => return false,
            }
        }
        self.pairs.insert(number, (key_bytes, first, value_bytes));
        true
    }

    /// Stores new keys until some are refused one after the other.
    pub(super) fn fill(&mut self, first: u32) -> u32 {
        let (mut number, mut refused_count) = (first, 0);
        while refused_count < 20 {
            if self.store(number) { number += 1 } else { refused_count += 1 }
        }
        number
    }

    fn delete(&mut self, number: u32) {
        let Some((key_bytes, ..)) = self.pairs.remove(&number) else { return };
        let key = key(number, key_bytes);
        let hash = self.bench.processor.hash(&key);
        assert!(self.bench.processor.delete(hash, &key));
        self.bench.settle();
    }

    /// Reads a key.
    fn check(&mut self, number: u32) {
        let (key_bytes, first, value_bytes) = self.pairs[&number];
        let value = self.bench.value(&key(number, key_bytes));
        assert!(value == Some(vec![first; value_bytes]), "{number}: {:?}", self.mix);
    }

    /// Reads every key once, in any order.
    pub(super) fn check_all(&mut self) {
        let mut numbers: Vec<u32> = self.pairs.keys().copied().collect();
        while !numbers.is_empty() {
            let at = self.random.below(numbers.len() as u64) as usize;
            self.check(numbers.swap_remove(at));
        }
    }

    pub(super) fn restart(&mut self) {
        self.bench.log.request_flush(&mut self.bench.processor);
        self.bench.settle();
        let disk = Disk::of(self.bench.disk.durable());
        self.bench = Bench::open_with(self.settings, disk, self.memory_bytes);
        self.bench.recover();
    }

    /// Fills memory, reads, changes and deletes, and starts again, a few times.
    fn run(&mut self) {
        let mut end = 0;
        for round in 0..3 {
            end = self.fill(end);
            assert!(
                self.bench.processor.pairs().has_log_room(2000, None),
                "memory is full, and the log is not"
            );
            self.check_all();
            for _ in 0..500 {
                let number = self.random.below(end.into()) as u32;
                match self.random.below(4) {
                    0 => _ = self.store(number),
                    1 if round % 2 == 1 => self.delete(number),
                    _ if self.pairs.contains_key(&number) => self.check(number),
                    _ => {}
                }
            }
            self.restart();
            self.check_all();
        }
    }
}

fn roomy(sync: Sync, segment_bytes: u64) -> LogSettings {
    LogSettings { segment_bytes, segment_count: (64 << 20) / segment_bytes, ..settings(sync) }
}

/// Fills memories from the smallest on, with logs of short and of long values.
fn check_mix(seed: u64, key_bytes: &'static [usize], value_bytes: &'static [usize]) {
    let mix = Mix { key_bytes, value_bytes };
    let sync = [Sync::Always, Sync::Batch, Sync::None][seed as usize % 3];
    for segment_bytes in [64 << 10, 1 << 20] {
        let settings = roomy(sync, segment_bytes);
        let least = Settings::memory_bytes_min_with_log(settings.value_bytes_max());
        // Half as much again, of the shorter segments: memory for long ones has ten times the pairs.
        let more = (segment_bytes < 1 << 20).then_some(least * 3 / 2);
        for memory_bytes in [least].into_iter().chain(more) {
            let mut full = Full::new(settings, memory_bytes, mix, seed);
            full.run();
            let counters = full.bench.processor.counters();
            println!("{mix:?}, {segment_bytes}, {memory_bytes}: {} pairs", counters.pair_count);
            assert!(counters.pair_count > 100, "{mix:?}, {memory_bytes} bytes: {counters:?}");
        }
    }
}

#[test]
fn stubs_of_one_line_can_be_read_at_once_and_after_a_restart() {
    check_mix(0, &[17], &[100]);
}

#[test]
fn stubs_among_short_values_can_be_read_at_once_and_after_a_restart() {
    check_mix(1, &[16, 40], &[20, 30, 300]);
    check_mix(2, &[20], &[10, 4097, 8000]);
}

#[test]
fn values_of_long_keys_can_be_read_at_once_and_after_a_restart() {
    check_mix(3, &[250, 12], &[100, 576, 1000]);
    check_mix(4, &[8, 33, 64], &[0, 40, 2000]);
}

#[test]
fn values_of_all_lengths_can_be_read_at_once_and_after_a_restart() {
    check_mix(5, &[10, 100], &[1, 50, 90, 200, 500, 1000, 4000]);
}

/// Recovery refuses a log that was filled with more memory and does not fit. The memory that the failure names suffices.
#[test]
fn a_log_that_does_not_fit_says_how_much_memory_it_needs() {
    let settings = roomy(Sync::Batch, 64 << 10);
    let mut full = Full::new(settings, 4 << 20, Mix { key_bytes: &[16, 40], value_bytes: &[20, 30, 300] }, 7);
    full.fill(0);
    full.memory_bytes = Settings::memory_bytes_min_with_log(settings.value_bytes_max());
    full.bench.log.request_flush(&mut full.bench.processor);
    full.bench.settle();
    let image = full.bench.disk.durable();
    let mut bench = Bench::open_with(settings, Disk::of(image.clone()), full.memory_bytes);
    while bench.step() {}
    let Some(Failure::NoMemory { needed_bytes }) = bench.log.failure() else {
        panic!("{:?}", bench.log.failure())
    };
    assert!((2 << 20..5 << 20).contains(&needed_bytes), "{needed_bytes}");
    full.memory_bytes = needed_bytes as usize;
    full.restart();
    full.check_all();
}

/// A command that brings a value and needs another one, as `ms` does, may find room or not: the value that was fetched
/// for it stays either way, or it would be fetched without end.
#[test]
fn room_for_a_value_is_not_made_by_dropping_the_one_that_its_command_needs() {
    let settings = roomy(Sync::Always, 64 << 10);
    let longest = settings.value_bytes_max();
    let memory_bytes = Settings::memory_bytes_min_with_log(longest);
    let mut full = Full::new(settings, memory_bytes, Mix { key_bytes: &[16], value_bytes: &[20, 8000] }, 8);
    full.fill(0);
    full.bench.settle();
    let mut found_count = 0;
    for number in 0..full.pairs.len() as u32 {
        let key = key(number, 16);
        full.check(number);
        let Bench { processor, log, .. } = &mut full.bench;
        found_count += u32::from(processor.has_room(longest, Some(&key)));
        assert_eq!(log.progress(processor), None, "there is nothing to wait for");
        assert!(!processor.is_stub(processor.hash(&key), &key), "{number} is to be fetched again");
        assert!(!processor.pairs().heap.is_any_held(), "it is kept no longer than that");
    }
    assert!(found_count > 0, "other values are dropped");
}
