//! Cleaning segments: current records of the oldest are rewritten at the head.
//!
//! ```text
//! Idle ──short of segments──▶ Scanning ──end of the segment──▶ Settling ──all rewritten is durable──▶ Idle
//! ```
//!
//! A pair whose record was replaced is rewritten too, unless the newer record is durable: until then the old one is all
//! that a power cut leaves of the pair. For a removed pair the removal is rewritten.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use super::passed_over::DamageKind;
use super::scan::{Ending, Scanner, Sink};
use super::{Failure, Job, Log, Notice, PIECE_BYTES, Segment, Sync, Work};
use crate::key::KeyHash;
use crate::processor::Processor;
use crate::record::{Head, Kind, Location};
use crate::stub::Stub;

/// Keys waiting to be rewritten above which scanning pauses.
const REWRITE_COUNT_MAX: usize = 4096;
/// Fetches of values to be rewritten above which scanning pauses.
const FETCH_COUNT_MAX: usize = 8;

/// Progress of cleaning the oldest segment.
#[derive(Debug, Default)]
pub(super) struct Cleaner {
    pub(super) state: CleanerState,
    /// Keys of pairs with a record in the segment and a newer state that was not durable when it was scanned.
    replaced: BTreeSet<Box<[u8]>>,
    /// Those that were rewritten, and a generation before which no segment has that record: it replaces all older ones.
    rescued: BTreeMap<Box<[u8]>, u64>,
    /// Values being fetched to be rewritten.
    pub(super) fetch_count: usize,
    /// Rewritten records put into a write so far; of those, written; of those, durable.
    pub(super) rewrites_taken: u64,
    pub(super) rewrites_written: u64,
    rewrites_settled: u64,
    /// The last change of keys that were to be rewritten, and are written as changed instead.
    awaited: u64,
    /// Segments cleaned since a change was made, and the number of changes then: after a round, more of them free
    /// nothing.
    idle: (u64, u64),
}

/// What is done with the oldest segment.
#[derive(Debug, Default)]
pub(super) enum CleanerState {
    /// It is not cleaned.
    #[default]
    Idle,
    /// Its records are read.
    Scanning { scanner: Box<Scanner>, is_reading: bool },
    /// It is freed once all that is rewritten is durable.
    Settling,
}

impl Cleaner {
    /// Whether the segment was read, and is not freed yet.
    pub(super) fn is_settling(&self) -> bool {
        matches!(self.state, CleanerState::Settling)
    }

    /// A read could not be started.
    pub(super) fn put_back(&mut self) {
        if let CleanerState::Scanning { is_reading, .. } = &mut self.state {
            *is_reading = false;
        }
    }

    /// Records that everything written so far is durable.
    pub(super) fn on_settled(&mut self) {
        self.rewrites_settled = self.rewrites_written;
    }

    /// Whether more keys to be rewritten are collected before any of them are written.
    pub(super) fn is_collecting(&self, rewrite_count: usize) -> bool {
        let is_scanning = matches!(self.state, CleanerState::Scanning { .. });
        is_scanning && rewrite_count <= REWRITE_COUNT_MAX || self.fetch_count > 0
    }

    /// Notes a segment that was cleaned, or the number of changes. Returns whether cleaning segments now may free
    /// anything.
    fn is_useful(&mut self, change_count: u64, segment_count: u64) -> bool {
        let (cleaned_count, before) = self.idle;
        if change_count != before {
            self.idle = (0, change_count);
        }
        change_count != before || cleaned_count < segment_count
    }
}

impl Log {
    /// Begins, continues and ends the cleaning of the oldest segment.
    pub(super) fn advance_cleaning(&mut self, processor: &mut Processor) {
        if self.is_clear_awaited(processor) {
            return;
        }
        if self.cleaner.is_settling() {
            let settled = processor.pairs_mut().changes().settled();
            let rewrite_count = processor.pairs_mut().changes().rewrite_count();
            let Some(cleaner) =
                Some(&mut self.cleaner).filter(|it| rewrite_count == 0 && it.fetch_count == 0)
            else {
                return;
            };
            if cleaner.rewrites_settled < cleaner.rewrites_taken || settled < cleaner.awaited {
                let is_written = cleaner.rewrites_written == cleaner.rewrites_taken;
                let is_written = is_written && cleaner.awaited <= self.flushes.written;
                if self.settings.sync == Sync::None && is_written {
                    self.flushes.want_now();
                }
                return;
            }
            cleaner.state = CleanerState::Idle;
            let segment = self.segments.pop_front().expect("the one that was read");
            self.free.push_back((segment.generation, segment.slot));
            self.counters.cleaned_count += 1;
            self.cleaner.idle.0 += 1;
        }
        if matches!(self.cleaner.state, CleanerState::Idle) && self.is_cleaning_due(processor) {
            let oldest = self.segments.front().expect("more than one");
            self.cleaner.rescued.retain(|_, generation| *generation > oldest.generation);
            let Segment { run, generation, end, .. } = *oldest;
            let location = Location { run, generation, position: self.settings.block_bytes };
            let scanner = Scanner::new(location, &self.settings, end).whole_to(end);
            self.cleaner.state = match scanner.next_position() {
                Some(_) => CleanerState::Scanning { scanner: Box::new(scanner), is_reading: false },
                None => CleanerState::Settling,
            };
        }
    }

    /// Whether the oldest segment is to be cleaned: few are free, and stores wait for more, or cleaning brings some.
    fn is_cleaning_due(&mut self, processor: &mut Processor) -> bool {
        let low = processor.pairs().cleaned_below();
        let is_low = self.free.len() < low && self.segments.len() > 1;
        let change_count = processor.pairs_mut().changes().count();
        is_low
            && matches!(self.phase, super::Phase::Ready)
            && (self.is_short_of_segments()
                || self.cleaner.is_useful(change_count, self.settings.segment_count))
    }

    /// Whether cleaning waits until the removal of all pairs is durable: without the records in the segment some of
    /// them would be gone earlier.
    fn is_clear_awaited(&mut self, processor: &mut Processor) -> bool {
        let Some(number) = processor.pairs_mut().changes().unsettled_clear() else { return false };
        if self.settings.sync == Sync::None && self.flushes.written >= number {
            self.flushes.want_now();
        }
        true
    }

    /// Has the segment freed only once the change of one of its keys is durable.
    pub(super) fn await_change(&mut self, processor: &mut Processor, hash: KeyHash) {
        if let Some(number) = processor.pairs_mut().changes().unsettled(hash) {
            self.cleaner.awaited = self.cleaner.awaited.max(number);
            self.groups.wants_changes = true;
        }
    }

    pub(super) fn next_clean(&mut self, processor: &mut Processor) -> Option<Work> {
        if self.is_clear_awaited(processor) {
            return None;
        }
        let cleaner = &mut self.cleaner;
        let rewrite_count = processor.pairs_mut().changes().rewrite_count();
        let is_behind = cleaner.fetch_count >= FETCH_COUNT_MAX || rewrite_count > REWRITE_COUNT_MAX;
        let CleanerState::Scanning { scanner, is_reading } = &mut cleaner.state else { return None };
        if *is_reading || is_behind {
            return None;
        }
        let position = scanner.next_position()?;
        *is_reading = true;
        let start = self.slot_start(self.segments.front().expect("the one that is read").slot);
        let length = (self.settings.segment_bytes - position).min(PIECE_BYTES as u64) as usize;
        Some(Work::Read { job: Job::Clean, offset: start + position, length })
    }

    pub(super) fn on_clean(&mut self, processor: &mut Processor, bytes: Option<&[u8]>) {
        let mut scanner = match std::mem::take(&mut self.cleaner.state) {
            CleanerState::Scanning { scanner, .. } => scanner,
            other => return self.cleaner.state = other,
        };
        let Some(bytes) = bytes else { return self.fail(Failure::Unreadable) };
        let oldest = *self.segments.front().expect("the one that is read");
        let start = self.slot_start(oldest.slot);
        let Cleaner { replaced, rescued, .. } = &mut self.cleaner;
        let mut sink = CleanSink {
            processor,
            start,
            replaced,
            rescued,
            stubs: Vec::new(),
            head_at: 0,
            damaged: Vec::new(),
            hole: None,
        };
        scanner.on_bytes(bytes, &mut sink);
        let is_over = scanner.next_position().is_none();
        if is_over {
            scanner.on_end(&mut sink);
        }
        let CleanSink { stubs, damaged, hole, .. } = sink;
        // A value that is in memory, or was replaced, is not lost.
        for position in damaged {
            let (generation, offset) = (oldest.generation, start + position);
            self.notice(Notice::Passed { kind: DamageKind::Value, generation, offset });
        }
        // Records hidden by damage that was there at the start have been known since then.
        let known = |hole: &Range<u64>| self.findings.holes.contains(&(oldest.generation, hole.start));
        if let Some(hole) = hole.filter(|hole| !known(hole)) {
            let (generation, offset) = (oldest.generation, start + hole.start);
            return self.fail(Failure::Damaged { generation, offset });
        }
        if !is_over {
            self.cleaner.state = CleanerState::Scanning { scanner, is_reading: false };
        } else if scanner.end() == oldest.end {
            self.cleaner.state = CleanerState::Settling;
        } else {
            let (generation, offset) = (oldest.generation, start + scanner.end());
            return self.fail(Failure::Damaged { generation, offset });
        }
        for (hash, key) in stubs {
            self.fetch_for_rewrite(processor, hash, &key);
        }
        if self.cleaner.is_settling() {
            for key in std::mem::take(&mut self.cleaner.replaced) {
                self.rewrite_replaced(processor, &key);
            }
        }
        self.advance_cleaning(processor);
    }

    /// Rewrites a pair, unless its present state has become durable.
    fn rewrite_replaced(&mut self, processor: &mut Processor, key: &[u8]) {
        let hash = processor.hash(key);
        let changes = processor.pairs_mut().changes();
        if changes.unsettled(hash).is_none() {
            return;
        }
        self.cleaner.rescued.insert(key.into(), self.segments.back().map_or(0, |head| head.generation));
        if processor.pairs().stub(hash, key).is_some_and(|stub| !stub.is_lost()) {
            self.fetch_for_rewrite(processor, hash, key);
        } else {
            let pairs = processor.pairs_mut();
            let pair_bytes = pairs.item(hash, key).map_or(key.len(), |item| pairs.heap.pair_bytes(item));
            pairs.changes().request_rewrite(hash, key, pair_bytes);
        }
    }
}

struct CleanSink<'a> {
    processor: &'a mut Processor,
    start: u64,
    replaced: &'a mut BTreeSet<Box<[u8]>>,
    rescued: &'a BTreeMap<Box<[u8]>, u64>,
    /// Keys whose values are only in this segment.
    stubs: Vec<(KeyHash, Box<[u8]>)>,
    /// Position of the present record, and of records whose values are damaged.
    head_at: u64,
    damaged: Vec<u64>,
    /// A range whose records cannot be read.
    hole: Option<Range<u64>>,
}

impl CleanSink<'_> {
    /// The present state of a pair is in another record, or in none yet.
    fn on_replaced(&mut self, hash: KeyHash, key: &[u8]) {
        let is_settled = self.processor.pairs_mut().changes().unsettled(hash).is_none();
        if !is_settled && !self.rescued.contains_key(key) && !self.replaced.contains(key) {
            self.replaced.insert(key.into());
        }
    }
}

impl Sink for CleanSink<'_> {
    fn on_head(&mut self, head: &Head, key: &[u8], position: u64) {
        let hash = self.processor.hash(key);
        let pairs = self.processor.pairs_mut();
        self.head_at = position;
        // The rest of a value belongs to the record before, which is in an older segment, or was.
        if !matches!(head.kind, Kind::Pair | Kind::Begun | Kind::Lost) {
            return;
        }
        let Some(item) = pairs.item(hash, key) else { return self.on_replaced(hash, key) };
        if pairs.is_lost(item) {
            return pairs.changes().request_rewrite(hash, key, key.len());
        }
        let here = self.start + position;
        let stub = Stub::read(&pairs.heap, item);
        let offset = stub.as_ref().map(|stub| stub.log_offset).or_else(|| pairs.log_offset(item));
        if pairs.heap.header(item).cas != head.cas || offset.is_some_and(|offset| offset != here) {
            self.on_replaced(hash, key);
        } else if stub.is_some() {
            self.stubs.push((hash, key.into()));
        } else {
            pairs.rewrite(hash, key, item);
        }
    }

    fn on_value(&mut self, _: &[u8]) {}

    fn on_end(&mut self, ending: Ending) {
        if ending == Ending::Damaged {
            self.damaged.push(self.head_at);
        }
    }

    fn on_corrected(&mut self, _: u64) {}

    fn on_hole(&mut self, range: Range<u64>) {
        self.hole.get_or_insert(range);
    }
}

#[cfg(test)]
mod tests {
    use super::super::LogSettings;
    use super::*;
    use crate::settings::Settings;

    const BLOCK_BYTES: u64 = 512;
    const START: u64 = 1024;
    const SLOT: u64 = 3;

    /// A log that cleans a segment of this size, of which nothing is read yet.
    fn cleaning(segment_bytes: u64) -> (Processor, Log) {
        let settings = Settings { memory_bytes: 1 << 20, ..Settings::default() };
        let mut processor = Processor::new(settings).expect("memory");
        let settings = LogSettings {
            identity: 7,
            run: 1,
            superblock_start: 0,
            start: START,
            segment_bytes,
            segment_count: 12,
            block_bytes: BLOCK_BYTES,
            sync: Sync::Always,
        };
        let mut log = Log::new(settings, &mut processor);
        log.segments = [Segment { run: 1, generation: 5, slot: SLOT, end: segment_bytes, rest_at: 0 }].into();
        let location = Location { run: 1, generation: 5, position: BLOCK_BYTES };
        let scanner = Box::new(Scanner::new(location, &settings, segment_bytes));
        log.cleaner.state = CleanerState::Scanning { scanner, is_reading: false };
        (processor, log)
    }

    fn read(segment_bytes: u64, length: usize) -> Option<Work> {
        let offset = START + SLOT * segment_bytes + BLOCK_BYTES;
        Some(Work::Read { job: Job::Clean, offset, length })
    }

    #[test]
    fn a_piece_of_the_segment_is_read_at_a_time_and_nothing_behind_its_end() {
        for (segment_bytes, length) in [(8192, 7680), (4 * PIECE_BYTES as u64, PIECE_BYTES)] {
            let (mut processor, mut log) = cleaning(segment_bytes);
            assert_eq!(log.next_clean(&mut processor), read(segment_bytes, length));
            assert_eq!(log.next_clean(&mut processor), None, "one is under way");
            log.put_back(read(segment_bytes, length).expect("the same"));
            assert_eq!(log.next_clean(&mut processor), read(segment_bytes, length));
        }
        let (mut processor, mut log) = cleaning(8192);
        log.cleaner.state = CleanerState::Idle;
        assert_eq!(log.next_clean(&mut processor), None, "nothing is cleaned");
    }

    #[test]
    fn no_more_is_read_while_many_records_or_values_wait_to_be_rewritten() {
        let (mut processor, mut log) = cleaning(8192);
        log.cleaner.fetch_count = FETCH_COUNT_MAX;
        assert_eq!(log.next_clean(&mut processor), None);
        log.cleaner.fetch_count = FETCH_COUNT_MAX - 1;
        assert_eq!(log.next_clean(&mut processor), read(8192, 7680));
        log.cleaner.put_back();
        let hash = processor.hash(b"key");
        for _ in 0..REWRITE_COUNT_MAX {
            processor.pairs_mut().changes().request_rewrite(hash, b"key", 3);
        }
        assert_eq!(log.next_clean(&mut processor), read(8192, 7680), "so many may wait");
        log.cleaner.put_back();
        processor.pairs_mut().changes().request_rewrite(hash, b"key", 3);
        assert_eq!(log.next_clean(&mut processor), None);
        assert!(matches!(log.cleaner.state, CleanerState::Scanning { is_reading: false, .. }));
    }
}
