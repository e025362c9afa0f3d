//! The log on a disk in memory, which knows the bytes that a power cut may take back.

mod clock;
mod crash;
mod damage;
mod disk;
mod far;
mod full_log;
mod full_memory;
mod late;
mod limits;
mod many_losses;
mod pressure;

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use linux::Moment;
use linux::random::SplitMix64;

use super::*;
use crate::clock::Clock;
use crate::pair::{Attributes, Condition, Marks, Stored};
use crate::processor::Processor;
use crate::record::RECORD_EXTRA_BYTES;
use crate::settings::{Eviction, Settings};
use disk::Disk;

const SECTOR_BYTES: usize = 512;
const UNIX_S: i64 = 1_000_000;

/// `seconds` after the first moment, of one boot.
fn after(seconds: i64) -> Moment {
    Moment { boot: 1, since_boot_s: 1000 + seconds, unix_s: UNIX_S + seconds }
}

fn settings(sync: Sync) -> LogSettings {
    LogSettings {
        identity: 77,
        run: 0,
        superblock_start: 0,
        start: 1024,
        segment_bytes: 8192,
        segment_count: 12,
        block_bytes: 512,
        sync,
    }
}

struct Bench {
    processor: Processor,
    log: Log,
    disk: Disk,
    buffer: Vec<u8>,
    write: Option<Write>,
    /// Reads of recovery under way.
    reads: VecDeque<Work>,
    /// Whether operations are reported as failed.
    fails: bool,
    /// Whether every operation is put back once before it is carried out.
    puts_back: bool,
    /// Operations under way, if they end late.
    late: Option<late::Late>,
    /// Whether many numbered keys have one hash.
    collides: bool,
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
        processor.pairs_mut().clock = Clock::at(after(0));
        static RUN: AtomicU64 = AtomicU64::new(1);
        let settings = LogSettings { run: RUN.fetch_add(1, Ordering::Relaxed), ..settings };
        let log = Log::new(settings, &mut processor);
        Self {
            processor,
            log,
            disk,
            buffer: vec![0; PIECE_BYTES],
            write: None,
            reads: VecDeque::new(),
            fails: false,
            puts_back: false,
            late: None,
            collides: false,
        }
    }

    /// Begins or ends one operation. Returns whether there was one.
    fn step(&mut self) -> bool {
        if self.late.is_some() {
            return self.step_late();
        }
        if self.write.is_some() {
            self.end_write();
            return true;
        }
        let Some(work) = self.log.next(&mut self.processor) else {
            let Some(read) = self.reads.pop_front() else { return false };
            self.carry_out(read);
            return true;
        };
        if self.puts_back {
            self.log.put_back(work);
            assert_eq!(self.log.next(&mut self.processor), Some(work), "it comes again");
        }
        match work {
            // As many as it wants are under way before the first has ended.
            Work::Read { job: Job::Recover, .. } => self.reads.push_back(work),
            work => self.carry_out(work),
        }
        true
    }

    fn end_write(&mut self) {
        let write = self.write.take().expect("one is under way");
        if write.is_durable {
            let start = self.disk.index(write.offset, write.length).expect("it was written");
            self.disk.settle(&(start..start + write.length));
        }
        self.log.on_written(&mut self.processor, !self.fails);
    }

    fn carry_out(&mut self, work: Work) {
        match work {
            Work::Read { job, offset, length } => {
                let bytes = self.disk.read(offset, length);
                self.log.on_read(&mut self.processor, job, Some(&bytes[..]).filter(|_| !self.fails));
            }
            Work::Write => {
                let Some(write) = self.log.fill(&mut self.processor, &mut self.buffer) else { return };
                assert!(write.offset.is_multiple_of(512) && write.length.is_multiple_of(512));
                self.disk.write(write.offset, &self.buffer[..write.length]);
                self.write = Some(write);
            }
            Work::Flush => {
                if !self.fails {
                    self.disk.settle(&(0..usize::MAX));
                }
                self.log.on_flushed(&mut self.processor, !self.fails);
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
        while self.processor.is_stub(hash, key) {
            self.log.fetch(&mut self.processor, key);
            assert!(self.step(), "the value is never loaded");
            while let Some(loaded) = self.log.next_loaded() {
                assert_eq!(loaded.result, Ok(()), "key {:?}", loaded.key);
            }
        }
        let place = self.processor.find(hash, key)?;
        Some(self.processor.value(place).to_vec())
    }

    /// Drops every value from memory that may leave it.
    fn demote_all(&mut self) {
        for _ in 0..64 {
            self.processor.writer.allocator.demote_region();
        }
    }

    fn set(&mut self, key: &[u8], value: &[u8]) -> Stored {
        let hash = self.processor.hash(key);
        self.processor.store(hash, key, value, Attributes::default(), Condition::Always)
    }
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
            bench.log.request_flush(&mut bench.processor);
            bench.settle();
            assert_eq!(bench.log.settled(&mut bench.processor), count, "{sync:?}, round {round}");
            while bench.log.free.len() > 1 {
                bench = open(Disk::of(bench.disk.durable()));
                assert_eq!(bench.set(b"key", &[round]), Stored::Done);
                bench.log.request_flush(&mut bench.processor);
                while bench.write.is_none() && bench.step() {}
                bench.disk.settle(&(0..usize::MAX));
            }
            bench = open(Disk::of(bench.disk.durable()));
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
            bench.log.request_flush(&mut bench.processor);
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
                bench.log.request_flush(&mut bench.processor);
                bench.settle();
                assert_eq!(bench.log.settled(&mut bench.processor), count, "{sync:?}, life {life}");
            }
            disk = Disk::of(bench.disk.durable());
        }
        let mut bench = Bench::open(settings, disk);
        bench.recover();
        assert_eq!(bench.value(b"key"), Some(vec![49]), "{sync:?}");
    }
}

/// Every operation that cannot be started at first comes again.
#[test]
fn segments_are_freed_as_fast_as_they_are_needed() {
    for sync in [Sync::Always, Sync::None] {
        let settings = settings(sync);
        let mut bench = Bench { puts_back: true, ..Bench::open(settings, Disk::new(&settings)) };
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
        bench.log.request_flush(&mut bench.processor);
        bench.settle();
        let mut again = Bench { puts_back: true, ..Bench::open(settings, Disk::of(bench.disk.durable())) };
        again.recover();
        for (key, value) in &expected {
            assert!(again.value(&[b'k', *key]).as_ref() == Some(value));
        }
    }
}

/// Writes and bytes of the log for `count` changes of `pair_bytes`, each answered before the next or as many at once as
/// the log admits.
fn cost_of_changes(count: u32, value_bytes: usize, is_pipelined: bool) -> LogCounters {
    let settings = LogSettings { segment_bytes: 8 << 20, block_bytes: 4096, ..settings(Sync::Always) };
    let settings = LogSettings { start: 8192, ..settings };
    let mut bench = Bench::open_with(settings, Disk::new(&settings), 64 << 20);
    bench.recover();
    for number in 0..count {
        let key = number.to_le_bytes();
        if !is_pipelined {
            bench.settle();
        }
        while !bench.log.admits(&mut bench.processor, key.len() + value_bytes) {
            assert!(bench.step(), "changes wait for nothing");
        }
        assert_eq!(bench.set(&key, &vec![1; value_bytes]), Stored::Done);
        // The first of them begins a write, and the others wait for its end.
        if is_pipelined && bench.write.is_none() {
            bench.step();
        }
    }
    bench.settle();
    bench.log.counters()
}

#[test]
fn a_change_takes_one_write_and_pipelined_ones_fill_theirs() {
    for value_bytes in [32, 1000, 4000] {
        let one_by_one = cost_of_changes(2000, value_bytes, false);
        // A key and its name have four bytes each.
        let record_bytes = (RECORD_EXTRA_BYTES + 4 + 4 + value_bytes) as u64;
        let block_bytes = record_bytes.next_multiple_of(4096);
        println!("{value_bytes} bytes, one by one: {one_by_one:?}");
        assert_eq!((one_by_one.write_count, one_by_one.record_count), (2000, 2000));
        assert!(one_by_one.written_bytes * 20 <= 2000 * block_bytes * 21, "{value_bytes}: {one_by_one:?}");
        let pipelined = cost_of_changes(4000, value_bytes, true);
        println!("{value_bytes} bytes, pipelined: {pipelined:?}");
        let fewest = 4000 * record_bytes / PIECE_BYTES as u64;
        assert!(pipelined.write_count <= fewest * 21 / 20 + 3, "{value_bytes}: {pipelined:?}, {fewest}");
        assert!(pipelined.written_bytes * 20 <= 4000 * record_bytes * 21, "{value_bytes}: {pipelined:?}");
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
    assert_eq!(bench.set(&[b'k', count], &[7; 900]), Stored::LogFull);
    let room = bench.processor.log_room().expect("there is a log");
    assert!(room.live_bytes + 1000 > room.live_bytes_max, "{room:?}");
    assert_eq!(room.live_bytes_max + room.headroom_bytes, settings.segment_count * settings.segment_bytes);
    assert_eq!(bench.set(&[b'k', 5], &[8; 900]), Stored::Done, "in place of one that is as long");
    let hash = bench.processor.hash(&[b'k', 3]);
    assert!(bench.processor.delete(hash, &[b'k', 3]));
    assert_eq!(bench.set(b"kx", &[7; 900]), Stored::Done);
    assert_eq!(bench.set(&[b'k', count], &[7; 900]), Stored::LogFull);
    assert!(bench.processor.counters().log_full_count >= 3);
    assert_eq!(bench.processor.counters().no_memory_count, 0);
    bench.settle();
    assert_eq!(bench.log.settled(&mut bench.processor), bench.processor.pairs_mut().changes().count());
}

#[test]
fn a_damaged_value_is_passed_over_and_a_missing_segment_is_not() {
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
        (bench.log.failure(), bench.log.counters().lost_key_count)
    };
    assert_eq!(open(bench.disk.durable()), (None, 0));
    let mut image = bench.disk.durable();
    image[1024 + 8192 + 1000] ^= 1;
    assert_eq!(open(image), (None, 1));
    let mut image = bench.disk.durable();
    image[1024 + 8192..][..SECTOR_BYTES].fill(0);
    assert_eq!(open(image), (Some(Failure::Missing { generation: 2 }), 0));
}

#[test]
fn a_write_or_flush_that_fails_ends_it() {
    for sync in [Sync::Always, Sync::None] {
        let settings = settings(sync);
        let mut bench = Bench::open(settings, Disk::new(&settings));
        bench.recover();
        bench.set(b"k", b"v");
        if sync == Sync::None {
            bench.settle();
            bench.log.request_flush(&mut bench.processor);
        }
        bench.fails = true;
        bench.settle();
        assert_eq!(bench.log.failure(), Some(Failure::Unwritable));
        assert_eq!(bench.log.settled(&mut bench.processor), 0);
    }
}

#[test]
fn a_read_that_fails_ends_recovery_and_cleaning() {
    let settings = settings(Sync::Always);
    let mut bench = Bench { fails: true, ..Bench::open(settings, Disk::new(&settings)) };
    bench.settle();
    assert_eq!(bench.log.failure(), Some(Failure::Unreadable));
    let mut bench = Bench::open(settings, Disk::new(&settings));
    bench.recover();
    for round in 0..200u8 {
        bench.set(&[round % 10], &[round; 900]);
        while let Some(work) = bench.log.next(&mut bench.processor) {
            bench.fails = matches!(work, Work::Read { job: Job::Clean, .. });
            bench.carry_out(work);
            while bench.write.is_some() {
                bench.step();
            }
        }
    }
    assert_eq!(bench.log.failure(), Some(Failure::Unreadable));
    assert_eq!(bench.log.counters().cleaned_count, 0);
}

/// A value that cannot be read is reported; the log goes on, and the next fetch may succeed.
#[test]
fn a_fetch_that_fails_is_reported_and_ends_nothing() {
    let settings = settings(Sync::Always);
    let mut bench = Bench::open(settings, Disk::new(&settings));
    bench.recover();
    bench.set(b"k", &[7; 900]);
    bench.settle();
    bench.processor.writer.allocator.demote_region();
    bench.fails = true;
    bench.log.fetch(&mut bench.processor, b"k");
    bench.settle();
    assert_eq!(
        bench.log.next_loaded(),
        Some(Loaded { key: b"k"[..].into(), result: Err(FetchError::Unreadable) })
    );
    assert_eq!(bench.log.failure(), None);
    bench.fails = false;
    assert_eq!(bench.value(b"k"), Some(vec![7; 900]));
}

/// Answers wait for durability only with `sync=always`; in all modes the log is behind until everything is written.
#[test]
fn it_says_what_answers_wait_for_and_whether_it_is_behind() {
    for sync in [Sync::Always, Sync::Batch, Sync::None] {
        let settings = settings(sync);
        let mut bench = Bench::open(settings, Disk::new(&settings));
        bench.recover();
        assert_eq!(bench.log.progress(&mut bench.processor), None);
        assert_eq!(bench.log.awaited_last(&mut bench.processor), None);
        let before = bench.log.counters().write_count;
        for change in 1..4 {
            bench.set(b"k", b"v");
            assert_eq!(bench.log.progress(&mut bench.processor), Some(before + change - 1));
            let awaited = (sync == Sync::Always).then_some(change);
            assert_eq!(bench.log.awaited_last(&mut bench.processor), awaited);
            assert!(bench.step() && bench.write.is_some());
            let progress = bench.log.progress(&mut bench.processor);
            assert_eq!(progress, Some(before + change - 1), "the write is under way");
            bench.settle();
            assert_eq!(bench.log.progress(&mut bench.processor), None);
            assert_eq!(bench.log.awaited_last(&mut bench.processor), None);
        }
    }
}

/// Each condition in its turn: nothing is written yet, a change waits, a write is under way, the end is named.
#[test]
fn it_says_when_its_end_is_to_be_named() {
    for sync in [Sync::Always, Sync::Batch, Sync::None] {
        let mut bench = Bench::open(settings(sync), Disk::new(&settings(sync)));
        bench.recover();
        let lacks_mark = |bench: &mut Bench| bench.log.lacks_mark(&mut bench.processor);
        assert!(!lacks_mark(&mut bench), "{sync:?}: nothing was written");
        for round in 0..3 {
            assert_eq!(bench.set(b"key", &[round; 100]), Stored::Done);
            assert!(!lacks_mark(&mut bench), "{sync:?}: a change waits");
            bench.settle();
            // The first segment is named with its first write, which is durable in two of the modes.
            if round > 0 || sync == Sync::None {
                assert!(lacks_mark(&mut bench), "{sync:?}: the end is not named");
                assert_eq!(bench.set(b"other", &[round; 100]), Stored::Done);
                assert!(!lacks_mark(&mut bench), "{sync:?}: another change waits");
                bench.settle();
                bench.log.mark();
                bench.settle();
            }
            assert!(!lacks_mark(&mut bench), "{sync:?}: the end is named");
        }
        assert_eq!(bench.set(b"key", b"last"), Stored::Done);
        bench.settle();
        bench.log.stop();
        assert!(!lacks_mark(&mut bench), "{sync:?}: a log that stops names it anyway");
    }
}

/// Without durable writes, nothing is flushed before that is asked for, and then only once all of it is written.
#[test]
fn it_flushes_once_everything_before_the_request_is_written() {
    let settings = settings(Sync::None);
    let mut bench = Bench::open(settings, Disk::new(&settings));
    bench.recover();
    let before = bench.log.counters().flush_count;
    bench.set(b"k", b"1");
    bench.settle();
    assert_eq!(bench.log.counters().flush_count, before);
    bench.set(b"k", b"2");
    let wanted = bench.log.request_flush(&mut bench.processor);
    assert_eq!(wanted, 2);
    assert!(bench.step() && bench.write.is_some());
    assert_eq!(bench.log.next(&mut bench.processor), None, "the write is under way");
    bench.settle();
    assert_eq!(bench.log.settled(&mut bench.processor), wanted);
    assert_eq!(bench.log.counters().flush_count, before + 1);
    bench.set(b"k", b"3");
    bench.settle();
    assert_eq!(bench.log.counters().flush_count, before + 1, "the request was served");
    assert_eq!(bench.log.settled(&mut bench.processor), wanted);
}

/// A change during a flush is written after it: the flush would not cover it.
#[test]
fn nothing_is_written_during_a_flush() {
    let settings = settings(Sync::None);
    let mut bench = Bench::open(settings, Disk::new(&settings));
    bench.recover();
    bench.set(b"k", b"1");
    bench.settle();
    assert_eq!(bench.log.request_flush(&mut bench.processor), 1);
    assert_eq!(bench.log.next(&mut bench.processor), Some(Work::Flush));
    bench.set(b"k", b"2");
    assert_eq!(bench.log.next(&mut bench.processor), None, "the flush is under way");
    bench.carry_out(Work::Flush);
    assert_eq!(bench.log.settled(&mut bench.processor), 1);
    bench.settle();
    assert_eq!(bench.log.settled(&mut bench.processor), 1, "no second flush was asked for");
    bench.log.request_flush(&mut bench.processor);
    bench.settle();
    assert_eq!(bench.log.settled(&mut bench.processor), 2);
}

/// A flush does not cover a write that ends during it, so it waits for the write.
#[test]
fn no_flush_begins_during_a_write() {
    let settings = settings(Sync::None);
    let mut bench = Bench::open(settings, Disk::new(&settings));
    bench.recover();
    bench.set(b"k", b"1");
    bench.settle();
    assert_eq!(bench.log.request_flush(&mut bench.processor), 1);
    bench.set(b"k", b"2");
    assert!(bench.step() && bench.write.is_some());
    assert_eq!(bench.log.next(&mut bench.processor), None, "the write is under way");
    bench.settle();
    assert_eq!(bench.log.settled(&mut bench.processor), 2);
}

/// A log that is stopped makes its changes durable, and reads nothing else.
#[test]
fn a_stopped_log_settles_without_being_asked_to_flush() {
    for sync in [Sync::Always, Sync::Batch, Sync::None] {
        let settings = settings(sync);
        let mut bench = Bench::open(settings, Disk::new(&settings));
        bench.log.stop();
        assert_eq!(bench.log.next(&mut bench.processor), None, "recovery ends");
        assert_eq!(bench.log.failure(), Some(Failure::Stopped));
        let mut bench = Bench::open(settings, Disk::new(&settings));
        bench.recover();
        bench.set(b"k", b"1");
        bench.log.stop();
        assert!(!bench.log.is_settled(&mut bench.processor));
        bench.set(b"k", b"2");
        bench.settle();
        assert!(bench.log.is_settled(&mut bench.processor) && bench.log.is_ready(), "{sync:?}");
        let mut again = Bench::open(settings, Disk::of(bench.disk.durable()));
        again.recover();
        assert_eq!(again.value(b"k"), Some(b"2".to_vec()), "{sync:?}");
    }
}

#[test]
fn attributes_marks_numbers_and_expiry_come_back() {
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
    let marks = Marks { is_stale: true, ..Marks::default() };
    assert!(bench.processor.set_marks(hash, b"a", marks));
    bench.settle();
    assert_eq!(bench.log.counters().record_count, 3, "each key once");
    let mut again = Bench::open(settings, Disk::of(bench.disk.durable()));
    again.processor.pairs_mut().clock.set(after(10));
    again.recover();
    assert!(again.value(b"b").is_none() && again.value(b"c").is_some());
    let place = again.processor.find(hash, b"a").expect("it has not ended");
    assert_eq!(again.processor.attributes(place).flags, 70_000);
    assert_eq!(again.processor.marks(place), marks);
    assert_eq!(again.processor.cas(hash, b"a"), cas);
    again.set(b"a", b"new");
    assert!(again.processor.cas(hash, b"a") > cas);
    again.processor.pairs_mut().clock.set(after(200));
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
    let settings = LogSettings { start: 8192, ..settings };
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
    let mut again = Bench::open_with(settings, Disk::of(bench.disk.durable()), memory_bytes);
    again.recover();
    for key in 0..20 {
        assert!(again.value(&[key]) == Some(value(key)), "{key}");
    }
}

/// The log does not have the value before.
#[test]
fn a_value_leaves_memory_once_its_record_is_written() {
    const VALUE_BYTES: usize = 30_000;
    let settings = LogSettings { segment_bytes: 1 << 20, ..settings(Sync::Always) };
    let mut bench = Bench::open(settings, Disk::new(&settings));
    bench.recover();
    assert_eq!(bench.set(b"other", &[1; VALUE_BYTES]), Stored::Done);
    bench.settle();
    assert_eq!(bench.set(b"k", &[7; VALUE_BYTES]), Stored::Done);
    let hash = bench.processor.hash(b"k");
    while bench.write.is_none_or(|write| write.length < VALUE_BYTES) {
        assert!(bench.step());
    }
    bench.demote_all();
    assert!(!bench.processor.is_stub(hash, b"k"));
    bench.settle();
    bench.demote_all();
    assert!(bench.processor.is_stub(hash, b"k"));
    assert_eq!(bench.value(b"k"), Some(vec![7; VALUE_BYTES]));
}

/// The same for one that takes two segments, while the second part of it is written.
#[test]
fn a_value_of_two_segments_leaves_memory_once_its_rest_is_written() {
    const VALUE_BYTES: usize = 30_000;
    let settings = LogSettings { segment_bytes: 256 << 10, ..settings(Sync::Always) };
    let mut bench = Bench::open(settings, Disk::new(&settings));
    bench.recover();
    let mut key = 0;
    let is_resting = |bench: &Bench| bench.log.segments.back().is_some_and(|head| head.rest_at > 0);
    while !is_resting(&bench) {
        bench.settle();
        key += 1;
        assert_eq!(bench.set(&[key], &[key; VALUE_BYTES]), Stored::Done);
        while !is_resting(&bench) && bench.step() {}
    }
    assert!(bench.write.is_some() && key > 4);
    let hash = bench.processor.hash(&[key]);
    bench.demote_all();
    assert!(!bench.processor.is_stub(hash, &[key]));
    bench.settle();
    bench.demote_all();
    assert!(bench.processor.is_stub(hash, &[key]));
    assert_eq!(bench.value(&[key]), Some(vec![key; VALUE_BYTES]));
}

/// A record that fits in a write is in one, so that none takes more writes than it must.
#[test]
fn a_record_that_fits_in_a_write_is_not_divided() {
    let settings = LogSettings { segment_bytes: 1 << 20, ..settings(Sync::Always) };
    let mut bench = Bench::open_with(settings, Disk::new(&settings), 16 << 20);
    bench.recover();
    for key in 0..3 {
        assert_eq!(bench.set(&[key], &[key; 100_000]), Stored::Done);
    }
    let mut lengths = Vec::new();
    while bench.step() {
        lengths.extend(bench.write.map(|write| write.length).filter(|length| *length > 1024));
    }
    let expected = [200_000, 100_000].map(|bytes| bytes..bytes + 2048);
    assert_eq!(lengths.len(), expected.len(), "{lengths:?}");
    for (length, expected) in lengths.iter().zip(expected) {
        assert!(expected.contains(length), "{lengths:?}");
    }
}

/// The end of a group is in two sectors, and a power cut takes the second one.
#[test]
fn a_group_without_the_whole_of_its_end_is_not_complete() {
    let settings = settings(Sync::Always);
    let mut bench = Bench::open(settings, Disk::new(&settings));
    bench.recover();
    // The header of the segment, the record, and the end without its checksum fill two sectors.
    const VALUE_BYTES: usize = SECTOR_BYTES - 1 - RECORD_EXTRA_BYTES - (RECORD_EXTRA_BYTES - 4);
    assert_eq!(bench.set(b"k", &[7; VALUE_BYTES]), Stored::Done);
    while bench.write.is_none() {
        assert!(bench.step());
    }
    assert_eq!(bench.write.map(|write| write.length), Some(3 * SECTOR_BYTES));
    let mut bench = Bench::open(settings, Disk::of(bench.disk.cut(|at| at < 2)));
    bench.recover();
    assert_eq!(bench.value(b"k"), None);
    let mut bench = Bench::open(settings, Disk::of(bench.disk.cut(|_| true)));
    bench.recover();
    assert_eq!(bench.value(b"k"), None);
}

/// The checksum of a record that takes several writes is in one of them or in two.
#[test]
fn a_long_record_may_end_anywhere_in_a_write() {
    let settings = LogSettings { segment_bytes: 8 << 20, ..settings(Sync::Always) };
    // The first write begins with the header of the segment and of the record.
    let fills_two = 2 * PIECE_BYTES - settings.block_bytes as usize - RECORD_EXTRA_BYTES - 1;
    for value_bytes in fills_two - 1..fills_two + 10 {
        let mut bench = Bench::open(settings, Disk::new(&settings));
        bench.recover();
        let value: Vec<u8> = (0..value_bytes).map(|at| (at / 7) as u8).collect();
        assert_eq!(bench.set(b"k", &value), Stored::Done);
        bench.settle();
        let mut again = Bench::open(settings, Disk::of(bench.disk.durable()));
        again.recover();
        assert!(again.value(b"k") == Some(value), "{value_bytes} bytes");
    }
}

/// Recovery loads values until less than a quarter of the memory would be free, and none that takes the place of
/// another one.
#[test]
fn recovery_leaves_a_quarter_of_the_memory_free() {
    const COUNT: u8 = 60;
    let settings = LogSettings { segment_bytes: 1 << 20, segment_count: 16, ..settings(Sync::Always) };
    let mut bench = Bench::open_with(settings, Disk::new(&settings), 4 << 20);
    bench.recover();
    for key in 0..COUNT {
        assert_eq!(bench.set(&[key], &[key; 100_000]), Stored::Done, "{key}");
        bench.settle();
    }
    let mut again = Bench::open_with(settings, Disk::of(bench.disk.durable()), 4 << 20);
    again.recover();
    assert_eq!(again.processor.counters().demoted_count, 0);
    let regions = &again.processor.pairs().heap.regions;
    let (free, count) = (regions.free_count(), regions.count());
    // The last value that is loaded takes two regions.
    assert!((count / 4 - 2..count / 2).contains(&free), "{free} of {count}");
    for key in 0..COUNT {
        assert_eq!(again.value(&[key]), Some(vec![key; 100_000]), "{key}");
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

/// A full memory is not searched for values to drop by each store that it refuses.
#[test]
fn a_refused_store_looks_for_values_to_drop_only_where_some_may_be() {
    let settings = LogSettings { segment_bytes: 1 << 20, segment_count: 32, ..settings(Sync::None) };
    let mut bench = Bench::open_with(settings, Disk::new(&settings), 2 << 20);
    bench.recover();
    // Too small to leave memory.
    let key = |number: u32| format!("{number:016}").into_bytes();
    let mut count = 0;
    while bench.set(&key(count), &[7; 32]) == Stored::Done {
        bench.settle();
        count += 1;
    }
    assert!(count > 10_000);
    let before = bench.processor.touches().read_count;
    for _ in 0..100 {
        assert_ne!(bench.set(&key(count), &[7; 32]), Stored::Done);
        bench.settle();
    }
    let read_count = bench.processor.touches().read_count - before;
    assert!(read_count < 10_000, "{read_count} lines for 100 stores");
}

/// Values that a recovery left in the log expire like others, and make room.
#[test]
fn expired_pairs_make_room_after_a_recovery() {
    let settings = LogSettings { segment_bytes: 1 << 20, segment_count: 32, ..settings(Sync::None) };
    let mut bench = Bench::open_with(settings, Disk::new(&settings), 1 << 20);
    bench.recover();
    let expiry_s = bench.processor.now_s() + 1000;
    // Recovery leaves those of the end in the log.
    let attributes_of =
        |number: u32| Attributes { flags: 0, expiry_s: if number >= 4_000 { expiry_s } else { 0 } };
    let store = |bench: &mut Bench, number: u32, attributes| {
        let key = format!("{number:016}").into_bytes();
        let hash = bench.processor.hash(&key);
        let stored = bench.processor.store(hash, &key, &[7; 300], attributes, Condition::Always);
        bench.settle();
        stored
    };
    let mut count = 0;
    while store(&mut bench, count, attributes_of(count)) == Stored::Done {
        count += 1;
    }
    let has_log_room = |bench: &Bench| bench.processor.pairs().has_log_room(316, None);
    assert!(has_log_room(&bench), "memory is full, and the log is not");
    let mut bench = Bench::open_with(settings, bench.disk, 1 << 20);
    bench.recover();
    while store(&mut bench, count, Attributes::default()) == Stored::Done {
        count += 1;
    }
    let now_s = bench.processor.now_s();
    bench.processor.set_now(now_s + 1000);
    assert_eq!(store(&mut bench, count, Attributes::default()), Stored::Done);
}
