//! The log on a disk that loses power: after every step, with all kinds of resulting disk contents.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use reactor::random::SplitMix64;

use super::*;
use crate::clock::Clock;
use crate::pair::{Attributes, Condition, Stored};
use crate::processor::Processor;
use crate::settings::{Eviction, Settings};

const SECTOR_BYTES: usize = 512;
const UNIX_S: i64 = 1_000_000;

fn settings(sync: Sync) -> LogSettings {
    LogSettings {
        identity: 77,
        run: 0,
        start: 1024,
        segment_bytes: 8192,
        segment_count: 12,
        block_bytes: 512,
        sync,
    }
}

/// A disk with durable contents, and unflushed sectors.
#[derive(Clone)]
struct Disk {
    durable: Vec<u8>,
    /// Contents as read.
    bytes: Vec<u8>,
    /// Sectors that may or may not have been written, in order.
    unsure: Vec<(usize, Vec<u8>)>,
}

impl Disk {
    fn new(settings: &LogSettings) -> Self {
        let bytes = vec![0; (settings.start + settings.segment_count * settings.segment_bytes) as usize];
        Self { durable: bytes.clone(), bytes, unsure: Vec::new() }
    }

    fn of(bytes: Vec<u8>) -> Self {
        Self { durable: bytes.clone(), bytes, unsure: Vec::new() }
    }

    /// Contents after a power cut, with the unflushed sectors for which `is_there` holds.
    fn cut(&self, is_there: impl Fn(usize) -> bool) -> Vec<u8> {
        let mut bytes = self.durable.clone();
        for (_, (offset, sector)) in self.unsure.iter().enumerate().filter(|(at, _)| is_there(*at)) {
            bytes[*offset..*offset + SECTOR_BYTES].copy_from_slice(sector);
        }
        bytes
    }

    fn settle(&mut self) {
        self.durable.clone_from(&self.bytes);
        self.unsure.clear();
    }
}

struct Bench {
    processor: Processor,
    log: Log,
    disk: Disk,
    buffer: Vec<u8>,
    write: Option<Write>,
    /// Whether writes are reported as failed.
    fails: bool,
}

impl Bench {
    fn open(settings: LogSettings, disk: Disk) -> Self {
        let memory_bytes = if settings.value_bytes_max() > PIECE_BYTES { 8 << 20 } else { 1 << 20 };
        Self::open_with(settings, disk, memory_bytes)
    }

    fn open_with(settings: LogSettings, disk: Disk, memory_bytes: usize) -> Self {
        let processor = Processor::new(Settings {
            memory_bytes,
            eviction: Eviction::None,
            value_bytes_max: settings.value_bytes_max(),
            ..Settings::default()
        });
        let mut processor = processor.expect("memory");
        processor.pairs_mut().clock = Clock::at(UNIX_S);
        static RUN: AtomicU64 = AtomicU64::new(1);
        let settings = LogSettings { run: RUN.fetch_add(1, Ordering::Relaxed), ..settings };
        let log = Log::new(settings, &mut processor);
        Self { processor, log, disk, buffer: vec![0; PIECE_BYTES], write: None, fails: false }
    }

    /// Begins or ends one operation. Returns whether there was one.
    fn step(&mut self) -> bool {
        if let Some(write) = self.write.take() {
            if write.is_durable {
                self.disk.settle();
            }
            self.log.on_written(&mut self.processor, !self.fails);
            return true;
        }
        let Some(work) = self.log.next(&mut self.processor) else { return false };
        self.carry_out(work);
        true
    }

    fn carry_out(&mut self, work: Work) {
        match work {
            Work::Read { job, offset, length } => {
                let bytes = self.disk.bytes[offset as usize..offset as usize + length].to_vec();
                self.log.on_read(&mut self.processor, job, Some(&bytes));
            }
            Work::Write => {
                let Some(write) = self.log.fill(&mut self.processor, &mut self.buffer) else { return };
                assert!(write.offset.is_multiple_of(512) && write.length.is_multiple_of(512));
                let start = write.offset as usize;
                for at in (0..write.length).step_by(SECTOR_BYTES) {
                    let sector = self.buffer[at..at + SECTOR_BYTES].to_vec();
                    self.disk.bytes[start + at..start + at + SECTOR_BYTES].copy_from_slice(&sector);
                    self.disk.unsure.push((start + at, sector));
                }
                self.write = Some(write);
            }
            Work::Flush => {
                self.disk.settle();
                self.log.on_flushed(&mut self.processor, true);
            }
        }
    }

    fn settle(&mut self) {
        let mut left = 100_000;
        while self.step() {
            left -= 1;
            assert!(left > 0, "the log never becomes idle");
        }
    }

    fn recover(&mut self) {
        while !self.log.is_ready() {
            assert!(self.step(), "{:?}", self.log.failure());
        }
    }

    fn value(&mut self, key: &[u8]) -> Option<Vec<u8>> {
        let hash = self.processor.hash(key);
        if self.processor.is_stub(hash, key) {
            self.log.fetch(&mut self.processor, key);
            loop {
                assert!(self.step(), "the value is never loaded");
                if let Some(loaded) = self.log.next_loaded() {
                    assert!(loaded.is_good && *loaded.key == *key);
                    break;
                }
            }
        }
        let place = self.processor.find(hash, key)?;
        Some(self.processor.value(place).to_vec())
    }

    fn set(&mut self, key: &[u8], value: &[u8]) -> Stored {
        let hash = self.processor.hash(key);
        self.processor.store(hash, key, value, Attributes::default(), Condition::Always)
    }
}

/// Known states of each key, each with the change that made it.
#[derive(Clone, Default)]
struct History {
    states: BTreeMap<u8, Vec<State>>,
}

/// A value and the change that made it.
type State = (u64, Option<Vec<u8>>);

impl History {
    fn note(&mut self, key: u8, number: u64, value: Option<Vec<u8>>) {
        self.states.entry(key).or_default().push((number, value));
    }

    /// After recovery, the only known state of a key is the recovered one.
    fn restart(&mut self, bench: &mut Bench) {
        for key in KEYS {
            let value = bench.value(&[key]);
            self.states.insert(key, vec![(0, value)]);
        }
    }

    /// Whether a key may have this value after a power cut, when changes up to `settled` were reported durable.
    fn allows(&self, key: u8, settled: u64, value: &Option<Vec<u8>>) -> bool {
        let Some(states) = self.states.get(&key) else { return value.is_none() };
        let last = states.iter().rposition(|(number, _)| *number <= settled);
        if last.is_none() && value.is_none() {
            return true;
        }
        states[last.unwrap_or(0)..].iter().any(|(_, state)| state == value)
    }
}

const KEYS: std::ops::Range<u8> = 1..7;

fn change(bench: &mut Bench, history: &mut History, random: &mut SplitMix64) {
    let key = KEYS.start + random.below(6) as u8;
    let name = [key];
    let hash = bench.processor.hash(&name);
    match random.below(12) {
        0..8 => {
            let length = [3, 20, 200, 700, 1000][random.below(5) as usize];
            let value: Vec<u8> = (0..length).map(|_| random.below(256) as u8).collect();
            assert_eq!(bench.set(&name, &value), Stored::Done);
            history.note(key, bench.processor.pairs_mut().changes().count(), Some(value));
        }
        8 | 9 if bench.processor.delete(hash, &name) => {
            history.note(key, bench.processor.pairs_mut().changes().count(), None);
        }
        10 => {
            bench.processor.writer.allocator.demote_region();
        }
        _ if random.below(4) == 0 => {
            bench.processor.clear();
            let number = bench.processor.pairs_mut().changes().count();
            KEYS.for_each(|key| history.note(key, number, None));
        }
        _ => {}
    }
}

/// Recovers a disk image, and compares it with the history. Returns the recovered bench.
fn check(settings: LogSettings, image: Vec<u8>, history: &History, settled: u64, seed: u64) -> Bench {
    let mut bench = Bench::open(settings, Disk::of(image));
    while !bench.log.is_ready() {
        assert!(bench.step(), "seed {seed}: {:?}", bench.log.failure());
    }
    for key in KEYS {
        let value = bench.value(&[key]);
        assert!(
            history.allows(key, settled, &value),
            "seed {seed}, key {key}, settled {settled}: {:?} in {:?}",
            value.map(|value| value.len()),
            history.states.get(&key).map(|states| states
                .iter()
                .map(|(number, value)| (*number, value.as_ref().map(Vec::len)))
                .collect::<Vec<_>>())
        );
    }
    bench
}

fn crash_states(sync: Sync, seeds: std::ops::Range<u64>) -> usize {
    let settings = settings(sync);
    let mut state_count = 0;
    for seed in seeds {
        let mut random = SplitMix64::new(seed * 2 + 1);
        let mut history = History::default();
        let mut bench = Bench::open(settings, Disk::new(&settings));
        bench.recover();
        for _ in 0..60 {
            for _ in 0..random.below(4) {
                change(&mut bench, &mut history, &mut random);
            }
            if random.below(8) == 0 {
                bench.log.ask_flush(&mut bench.processor);
            }
            for _ in 0..random.below(5) {
                bench.step();
                // No more than this is reported as durable.
                let settled = bench.log.settled(&mut bench.processor);
                let count = bench.disk.unsure.len();
                let bits = random.draw();
                let mut images = vec![
                    bench.disk.cut(|_| false),
                    bench.disk.cut(|_| true),
                    bench.disk.cut(|at| bits >> (at % 61) & 1 == 1),
                ];
                if count > 1 {
                    let at = random.below(count as u64) as usize;
                    images.push(bench.disk.cut(|other| other < at));
                    images.push(bench.disk.cut(|other| other >= at));
                    images.push(bench.disk.cut(|other| other == at));
                }
                for image in images {
                    state_count += 1;
                    check(settings, image, &history, settled, seed);
                }
            }
            if random.below(20) == 0 {
                // The run continues with the image of a power cut.
                let settled = bench.log.settled(&mut bench.processor);
                let bits = random.draw();
                let image = bench.disk.cut(|at| bits >> (at % 61) & 1 == 1);
                bench = check(settings, image, &history, settled, seed);
                history.restart(&mut bench);
            }
        }
        bench.log.ask_flush(&mut bench.processor);
        bench.settle();
        assert_eq!(bench.log.settled(&mut bench.processor), bench.processor.pairs_mut().changes().count());
        assert!(bench.log.failure().is_none());
    }
    state_count
}

/// Runs that end with their first write take segments and free none; the next run continues as long as one is free.
#[test]
fn a_log_of_lives_of_one_write_goes_on() {
    for sync in [Sync::Always, Sync::Batch, Sync::None] {
        let settings = LogSettings { segment_bytes: 1 << 20, ..settings(sync) };
        let open = |disk| {
            let mut bench = Bench::open_with(settings, disk, 16 << 20);
            bench.recover();
            bench
        };
        let mut bench = open(Disk::new(&settings));
        // Three quarters of the limit for live records. The contents of a segment take several writes.
        for key in 0..40u8 {
            assert_eq!(bench.set(&[key + 1], &[key; 100_000]), Stored::Done);
        }
        for round in 0..5u8 {
            assert_eq!(bench.set(b"key", &[round]), Stored::Done);
            let count = bench.processor.pairs_mut().changes().count();
            bench.log.ask_flush(&mut bench.processor);
            bench.settle();
            assert_eq!(bench.log.settled(&mut bench.processor), count, "{sync:?}, round {round}");
            while bench.log.free.len() > 1 {
                bench = open(Disk::of(bench.disk.durable));
                assert_eq!(bench.set(b"key", &[round]), Stored::Done);
                bench.log.ask_flush(&mut bench.processor);
                while bench.write.is_none() && bench.step() {}
                bench.disk.settle();
            }
            bench = open(Disk::of(bench.disk.durable));
        }
        for key in 0..40u8 {
            assert_eq!(bench.value(&[key + 1]), Some(vec![key; 100_000]), "{sync:?}");
        }
    }
}

/// Runs too short for freeing a segment, each with a head of its own, take all segments; then segments are freed
/// without rewriting anything.
#[test]
fn a_log_of_many_short_lives_goes_on() {
    for sync in [Sync::Always, Sync::Batch, Sync::None] {
        let settings = settings(sync);
        let mut disk = Disk::new(&settings);
        for life in 0..50 {
            let mut bench = Bench::open(settings, disk);
            bench.recover();
            assert_eq!(bench.set(b"key", &[life]), Stored::Done);
            let count = bench.processor.pairs_mut().changes().count();
            bench.log.ask_flush(&mut bench.processor);
            while let Some(work) = bench.log.next(&mut bench.processor) {
                match work {
                    // The read ends too late.
                    Work::Read { .. } => {}
                    work => bench.carry_out(work),
                }
                while bench.write.is_some() {
                    bench.step();
                }
            }
            if bench.log.settled(&mut bench.processor) < count {
                // No free segment: this run is longer.
                bench = Bench::open(settings, bench.disk);
                bench.recover();
                assert_eq!(bench.set(b"key", &[life]), Stored::Done);
                let count = bench.processor.pairs_mut().changes().count();
                bench.log.ask_flush(&mut bench.processor);
                bench.settle();
                assert_eq!(bench.log.settled(&mut bench.processor), count, "{sync:?}, life {life}");
            }
            disk = Disk::of(bench.disk.durable);
        }
        let mut bench = Bench::open(settings, disk);
        bench.recover();
        assert_eq!(bench.value(b"key"), Some(vec![49]), "{sync:?}");
    }
}

#[test]
fn what_was_acknowledged_is_there_after_every_cut_when_answers_wait() {
    println!("{} states", crash_states(Sync::Always, 0..20));
}

#[test]
fn what_was_flushed_is_there_after_every_cut_when_nothing_waits() {
    println!("{} states", crash_states(Sync::None, 100..120));
}

/// Every state of every write: all its prefixes, suffixes, each sector alone and each missing, and every combination
/// for few sectors. With batches of keys, with values that take several writes, and starting from an earlier power cut.
#[test]
fn what_was_acknowledged_is_there_however_a_write_is_torn() {
    let small = settings(Sync::Always);
    // Values up to 300 KiB: a record takes several pieces.
    let large = LogSettings { segment_bytes: 640 << 12, start: 4096, block_bytes: 4096, ..small };
    let lengths: [&[usize]; 2] = [&[3, 200, 700, 1000], &[100, 300_000]];
    for sync in [Sync::Always, Sync::Batch] {
        for (settings, lengths, rounds, seeds) in [(small, lengths[0], 12, 4), (large, lengths[1], 2, 1)] {
            let settings = LogSettings { sync, ..settings };
            let mut state_count = 0;
            for seed in 1..=seeds {
                state_count += torn_writes(settings, lengths, rounds, seed);
            }
            println!("{state_count} states, segments of {} bytes, {sync:?}", settings.segment_bytes);
        }
    }
}

fn torn_writes(settings: LogSettings, lengths: &[usize], rounds: u64, seed: u64) -> usize {
    let mut random = SplitMix64::new(seed * 2 + 1);
    let mut bench = Bench::open(settings, Disk::new(&settings));
    bench.recover();
    let mut history = History::default();
    let mut state_count = 0;
    for _ in 0..rounds {
        // A batch: all of it is recorded before any of it is written.
        for _ in 0..=random.below(lengths.len() as u64) {
            let key = KEYS.start + random.below(6) as u8;
            let length = lengths[random.below(lengths.len() as u64) as usize];
            let value: Vec<u8> = (0..length).map(|_| random.below(256) as u8).collect();
            assert_eq!(bench.set(&[key], &value), Stored::Done);
            history.note(key, bench.processor.pairs_mut().changes().count(), Some(value));
        }
        loop {
            let settled = bench.log.settled(&mut bench.processor);
            for image in torn(&bench.disk) {
                state_count += 1;
                check(settings, image, &history, settled, seed);
            }
            if !bench.step() {
                break;
            }
        }
        if random.below(4) == 0 {
            // Continue with a log whose last write is torn.
            let key = KEYS.start;
            assert_eq!(bench.set(&[key], &[9; 900]), Stored::Done);
            history.note(key, bench.processor.pairs_mut().changes().count(), Some(vec![9; 900]));
            bench.step();
            let settled = bench.log.settled(&mut bench.processor);
            let image = bench.disk.cut(|at| at % 2 == 0);
            bench = check(settings, image, &history, settled, seed);
            history.restart(&mut bench);
        }
    }
    state_count
}

/// Possible contents after a power cut: every combination of few sectors; of many, those torn at one position or
/// missing one sector.
fn torn(disk: &Disk) -> Vec<Vec<u8>> {
    let count = disk.unsure.len();
    if count <= 6 {
        return (0..1u32 << count).map(|kept| disk.cut(|at| kept >> at & 1 == 1)).collect();
    }
    // For long writes only some are checked: the first and the last sectors, and a few between.
    let is_looked_at = |at: &usize| *at < 2 || *at + 2 >= count || at.is_multiple_of(count / 4 + 1);
    let places: Vec<_> = (0..count).filter(is_looked_at).collect();
    let mut images = vec![disk.cut(|_| false), disk.cut(|_| true)];
    for at in places {
        images.push(disk.cut(|other| other < at));
        images.push(disk.cut(|other| other >= at));
        images.push(disk.cut(|other| other == at));
        images.push(disk.cut(|other| other != at));
    }
    images
}

#[test]
fn segments_are_freed_as_fast_as_they_are_needed() {
    for sync in [Sync::Always, Sync::None] {
        let settings = settings(sync);
        let mut bench = Bench::open(settings, Disk::new(&settings));
        bench.recover();
        let mut random = SplitMix64::new(5);
        let mut expected = BTreeMap::new();
        for round in 0..3000u32 {
            let key = random.below(30) as u8;
            let value = vec![round as u8; 300 + random.below(500) as usize];
            assert_eq!(bench.set(&[b'k', key], &value), Stored::Done, "round {round}");
            expected.insert(key, value);
            if random.below(5) == 0 {
                bench.processor.writer.allocator.demote_region();
            }
            if random.below(3) == 0 {
                bench.settle();
            }
        }
        bench.settle();
        assert!(bench.log.counters().cleaned_count > 100, "{:?}", bench.log.counters());
        for (key, value) in &expected {
            assert!(bench.value(&[b'k', *key]).as_ref() == Some(value));
        }
        bench.log.ask_flush(&mut bench.processor);
        bench.settle();
        let mut again = Bench::open(settings, Disk::of(bench.disk.durable.clone()));
        again.recover();
        for (key, value) in &expected {
            assert!(again.value(&[b'k', *key]).as_ref() == Some(value));
        }
    }
}

#[test]
fn a_full_log_refuses_and_takes_again_what_was_made_room_for() {
    let settings = settings(Sync::Always);
    let mut bench = Bench::open(settings, Disk::new(&settings));
    bench.recover();
    let mut count = 0u8;
    while bench.set(&[b'k', count], &[7; 900]) == Stored::Done {
        bench.settle();
        count += 1;
    }
    assert!(u64::from(count) * 900 > settings.live_bytes_max() * 8 / 10, "{count}");
    let hash = bench.processor.hash(&[b'k', 3]);
    assert!(bench.processor.delete(hash, &[b'k', 3]));
    assert_eq!(bench.set(b"kx", &[7; 900]), Stored::Done);
    bench.settle();
    assert_eq!(bench.log.settled(&mut bench.processor), bench.processor.pairs_mut().changes().count());
}

#[test]
fn a_damaged_or_missing_segment_is_not_passed_over() {
    let settings = settings(Sync::Always);
    let mut bench = Bench::open(settings, Disk::new(&settings));
    bench.recover();
    for key in 0..30u8 {
        assert_eq!(bench.set(&[b'k', key], &[key; 900]), Stored::Done);
        bench.settle();
    }
    let open = |image: Vec<u8>| {
        let mut bench = Bench::open(settings, Disk::of(image));
        while bench.step() {}
        bench.log.failure()
    };
    assert_eq!(open(bench.disk.durable.clone()), None);
    let mut image = bench.disk.durable.clone();
    image[1024 + 8192 + 2000] ^= 1;
    assert_eq!(open(image), Some(Failure::Damaged(1024 + 8192)));
    let mut image = bench.disk.durable.clone();
    image[1024 + 8192] ^= 1;
    assert_eq!(open(image), Some(Failure::Missing(2)));
}

#[test]
fn a_write_that_fails_ends_it() {
    let settings = settings(Sync::Always);
    let mut bench = Bench::open(settings, Disk::new(&settings));
    bench.recover();
    bench.set(b"k", b"v");
    bench.fails = true;
    bench.settle();
    assert_eq!(bench.log.failure(), Some(Failure::Unwritable));
    assert_eq!(bench.log.settled(&mut bench.processor), 0);
}

#[test]
fn attributes_numbers_and_expiry_come_back() {
    let settings = settings(Sync::Always);
    let mut bench = Bench::open(settings, Disk::new(&settings));
    bench.recover();
    let now_s = bench.processor.now_s();
    for (key, expiry_s, flags) in [(b"a", now_s + 100, 70_000), (b"b", now_s + 1, 5), (b"c", 0, 0)] {
        let hash = bench.processor.hash(key);
        let attributes = Attributes { flags, expiry_s };
        bench.processor.store(hash, key, &[9; 300], attributes, Condition::Always);
    }
    let hash = bench.processor.hash(b"a");
    let cas = bench.processor.cas(hash, b"a");
    bench.settle();
    let mut again = Bench::open(settings, Disk::of(bench.disk.durable.clone()));
    again.processor.pairs_mut().clock.set(UNIX_S + 10);
    again.recover();
    assert!(again.value(b"b").is_none() && again.value(b"c").is_some());
    let place = again.processor.find(hash, b"a").expect("it has not ended");
    assert_eq!(again.processor.attributes(place).flags, 70_000);
    assert_eq!(again.processor.cas(hash, b"a"), cas);
    again.set(b"a", b"new");
    assert!(again.processor.cas(hash, b"a") > cas);
    again.processor.pairs_mut().clock.set(UNIX_S + 200);
    assert!(again.value(b"a").is_some(), "it was stored again");
}

/// Values longer than a piece, more of them than memory holds.
#[test]
fn large_values_are_written_in_pieces_and_leave_memory() {
    let settings = LogSettings {
        segment_bytes: 8 << 20,
        segment_count: 16,
        block_bytes: 4096,
        ..settings(Sync::Always)
    };
    let settings = LogSettings { start: 4096, ..settings };
    let memory_bytes = 6 << 20;
    let mut bench = Bench::open_with(settings, Disk::new(&settings), memory_bytes);
    bench.recover();
    let value = |key: u8| -> Vec<u8> { (0..900_001u32).map(|at| (at / 7) as u8 ^ key).collect() };
    for key in 0..20 {
        assert_eq!(bench.set(&[key], &value(key)), Stored::Done, "{key}");
        bench.settle();
    }
    assert!(bench.processor.counters().demoted_count > 10);
    for key in 0..20 {
        assert!(bench.value(&[key]) == Some(value(key)), "{key}");
    }
    let mut again = Bench::open_with(settings, Disk::of(bench.disk.durable.clone()), memory_bytes);
    again.recover();
    for key in 0..20 {
        assert!(again.value(&[key]) == Some(value(key)), "{key}");
    }
}

/// Increments of one key whose value is only in the log: together at the station, or one by one. Returns the accesses
/// per increment.
fn accesses_per_increment(count: u64, has_station: bool) -> f64 {
    let settings = settings(Sync::Always);
    let mut bench = Bench::open(settings, Disk::new(&settings));
    bench.recover();
    let key = b"hot";
    let hash = bench.processor.hash(key);
    let mut value = vec![0; 800];
    bench.set(key, &value);
    bench.settle();
    let before = bench.log.counters();
    let demote = |bench: &mut Bench| {
        bench.processor.writer.allocator.demote_region();
        assert!(bench.processor.is_stub(hash, key));
    };
    let add = |bench: &mut Bench| {
        let place = bench.processor.find(hash, key).expect("there");
        let is_done = bench.processor.change(hash, key, place, 1, |part| {
            let sum = u64::from_le_bytes(part[..8].try_into().expect("eight bytes")) + 1;
            part[..8].copy_from_slice(&sum.to_le_bytes());
        });
        assert!(is_done);
    };
    demote(&mut bench);
    if has_station {
        let mut station = crate::Station::new(count as usize);
        for number in 0..count {
            match station.on_operation(key, number) {
                crate::Arrival::Fetch => bench.log.fetch(&mut bench.processor, key),
                crate::Arrival::Waits => {}
                crate::Arrival::Full(_) => unreachable!("room for all"),
            }
        }
        while station.is_reserved(key) {
            assert!(bench.step());
            while let Some(loaded) = bench.log.next_loaded() {
                station.on_value(&loaded.key, |_| add(&mut bench));
            }
        }
        bench.settle();
    } else {
        for _ in 0..count {
            assert!(bench.value(key).is_some());
            add(&mut bench);
            bench.settle();
            demote(&mut bench);
        }
    }
    value[..8].copy_from_slice(&count.to_le_bytes());
    assert_eq!(bench.value(key), Some(value));
    let after = bench.log.counters();
    let accesses = after.fetch_count + after.write_count - before.fetch_count - before.write_count;
    accesses as f64 / count as f64
}

#[test]
fn operations_on_a_hot_key_in_the_log_share_its_fetch_and_its_write() {
    let together = accesses_per_increment(1000, true);
    let one_by_one = accesses_per_increment(100, false);
    println!("{together} accesses per operation with the station, {one_by_one} without");
    assert!(together <= 0.05 && one_by_one / together >= 200.0, "{together} and {one_by_one}");
}
