//! Recovery: reading the log at the start.

use super::scan::{Scanner, Sink};
use super::{Failure, Job, Log, LogSettings, PIECE_BYTES, Phase, Segment, Work};
use crate::item::MARKS;
use crate::key::{KEY_BYTES_MAX, KeyHash};
use crate::pair::Attributes;
use crate::pending::Pending;
use crate::processor::Processor;
use crate::record::{Head, Kind, SegmentHeader};
use crate::stub::Stub;

/// CAS numbers skipped at recovery: they may have been given to values that were lost with the power.
const CAS_LOST_COUNT: u64 = 1 << 24;

/// Progress of recovery.
#[derive(Debug)]
pub(super) struct Recovery {
    pub(super) is_reading: bool,
    headers: Vec<Option<SegmentHeader>>,
    slot_count: u64,
    /// Segments to read, from the oldest on, and the index of the current one.
    segments: Vec<Segment>,
    at: usize,
    scanner: Option<Scanner>,
    replay: Replay,
}

/// The record being read.
#[derive(Debug, Default)]
struct Replay {
    /// First byte of the segment in the file.
    start: u64,
    key: Vec<u8>,
    found: Option<Found>,
    is_short_of_memory: bool,
}

#[derive(Debug)]
enum Found {
    Removed,
    Cleared,
    /// A pair with its value, of which this many bytes are filled.
    Whole(Stub, KeyHash, Pending, usize),
    Stub(Stub, KeyHash),
}

impl Recovery {
    pub(super) fn new(slot_count: u64) -> Self {
        Self {
            is_reading: false,
            headers: Vec::new(),
            slot_count,
            segments: Vec::new(),
            at: 0,
            scanner: None,
            replay: Replay { key: Vec::with_capacity(KEY_BYTES_MAX), ..Replay::default() },
        }
    }

    pub(super) fn next(&mut self, settings: &LogSettings) -> Option<Work> {
        if self.is_reading {
            return None;
        }
        self.is_reading = true;
        let slot = self.headers.len() as u64;
        if slot < self.slot_count {
            let offset = settings.start + slot * settings.segment_bytes;
            return Some(Work::Read { job: Job::Recover, offset, length: settings.block_bytes as usize });
        }
        let position = self.scanner.as_ref().and_then(Scanner::next_position).expect("something is left");
        let start = settings.start + self.segments[self.at].slot * settings.segment_bytes;
        Some(segment_read(settings, Job::Recover, start, position))
    }
}

/// The next read of a segment that begins at `start`.
pub(super) fn segment_read(settings: &LogSettings, job: Job, start: u64, position: u64) -> Work {
    debug_assert!(position.is_multiple_of(settings.block_bytes));
    let length = (settings.segment_bytes - position).min(PIECE_BYTES as u64);
    Work::Read { job, offset: start + position, length: length as usize }
}

impl Log {
    pub(super) fn on_recovered(&mut self, processor: &mut Processor, bytes: Option<&[u8]>) {
        let Phase::Recovering(recovery) = &mut self.phase else { return };
        recovery.is_reading = false;
        let Some(bytes) = bytes else { return self.fail(Failure::Unreadable) };
        if (recovery.headers.len() as u64) < recovery.slot_count {
            recovery.headers.push(SegmentHeader::decode(bytes, self.settings.identity));
            if recovery.headers.len() as u64 == recovery.slot_count {
                self.determine_segments(processor);
            }
            return;
        }
        let mut sink = ReplaySink { processor, replay: &mut recovery.replay };
        let scanner = recovery.scanner.as_mut().expect("a segment is being read");
        scanner.on_bytes(bytes, &mut sink);
        if scanner.next_position().is_some() {
            return;
        }
        scanner.on_end(&mut sink);
        let is_last = recovery.at + 1 == recovery.segments.len();
        let segment = &mut recovery.segments[recovery.at];
        if is_last {
            segment.end = scanner.end();
        } else if scanner.end() != segment.end {
            let offset = self.settings.start + segment.slot * self.settings.segment_bytes;
            return self.fail(Failure::Damaged(offset));
        }
        if recovery.replay.is_short_of_memory {
            return self.fail(Failure::NoMemory);
        }
        recovery.at += 1;
        self.begin_segment(processor);
    }

    /// Determines the log from all headers: it is the newest segment, the oldest one it needs, and all between them.
    fn determine_segments(&mut self, processor: &mut Processor) {
        let Phase::Recovering(recovery) = &mut self.phase else { return };
        let headers = recovery.headers.iter().zip(0..);
        let mut known: Vec<(SegmentHeader, u64)> =
            headers.filter_map(|(header, slot)| Some(((*header)?, slot))).collect();
        known.sort_unstable_by_key(|(header, _)| header.generation);
        let Some(&(newest, _)) = known.last() else {
            self.free = (0..self.settings.segment_count).map(|slot| (0, slot)).collect();
            return self.settle(processor);
        };
        let needed = known.partition_point(|(header, _)| header.generation < newest.oldest);
        let needed = &known[needed..];
        for (&(header, _), generation) in needed.iter().zip(newest.oldest..) {
            if header.generation != generation {
                return self.fail(Failure::Missing(generation));
            }
        }
        let ends = needed[1..].iter().map(|(next, _)| next.previous_end);
        let ends = ends.chain([self.settings.segment_bytes]);
        let segments = needed.iter().zip(ends);
        recovery.segments = segments
            .map(|(&(header, slot), end)| {
                let SegmentHeader { run, generation, .. } = header;
                Segment { run, generation, slot, end }
            })
            .collect();
        self.recorded_oldest = newest.oldest;
        self.newest = Some(newest);
        processor.writer.next_cas = processor.writer.next_cas.max(newest.next_cas);
        // The other slots, in the order in which they were freed, as far as that is known.
        let mut free: Vec<(u64, u64)> = (0..self.settings.segment_count)
            .filter(|slot| !recovery.segments.iter().any(|segment| segment.slot == *slot))
            .map(|slot| (recovery.headers[slot as usize].map_or(0, |header| header.generation), slot))
            .collect();
        free.sort_unstable();
        self.free = free.into();
        self.begin_segment(processor);
    }

    /// Continues with the next segment, or ends reading.
    fn begin_segment(&mut self, processor: &mut Processor) {
        let Phase::Recovering(recovery) = &mut self.phase else { return };
        match recovery.segments.get(recovery.at) {
            Some(segment) => {
                let block_bytes = self.settings.block_bytes;
                recovery.scanner =
                    Some(Scanner::new(segment.run, segment.generation, block_bytes, segment.end));
                recovery.replay.start = self.settings.start + segment.slot * self.settings.segment_bytes;
                if segment.end <= block_bytes {
                    recovery.at += 1;
                    self.begin_segment(processor);
                }
            }
            None => {
                self.segments = std::mem::take(&mut recovery.segments).into();
                self.settle(processor);
            }
        }
    }

    /// Ends reading: passes over the CAS numbers of lost values.
    fn settle(&mut self, processor: &mut Processor) {
        let next_cas = &mut processor.writer.next_cas;
        *next_cas = (*next_cas + CAS_LOST_COUNT) & ((1 << 48) - 1);
        self.phase = Phase::Settling { is_header_written: false };
    }
}

struct ReplaySink<'a> {
    processor: &'a mut Processor,
    replay: &'a mut Replay,
}

impl Sink for ReplaySink<'_> {
    fn on_head(&mut self, head: &Head, key: &[u8], position: u64) {
        let replay = &mut *self.replay;
        replay.key.clear();
        replay.key.extend_from_slice(key);
        let processor = &mut *self.processor;
        processor.writer.next_cas = processor.writer.next_cas.max(head.cas);
        replay.found = Some(match head.kind {
            Kind::Removed => Found::Removed,
            Kind::Cleared => Found::Cleared,
            Kind::Pair => {
                let now_s = i64::from(self.processor.now_s());
                let expiry_s = match head.expiry_s {
                    0 => 0,
                    expiry_s if expiry_s - self.processor.clock().base_s() <= now_s => {
                        // The pair has expired, and replaces the previous one all the same.
                        replay.found = Some(Found::Removed);
                        return;
                    }
                    expiry_s => u32::try_from(expiry_s - self.processor.clock().base_s()).unwrap_or(u32::MAX),
                };
                let attributes = Attributes { flags: head.flags, expiry_s };
                let pair = Stub {
                    value_bytes: head.value_bytes,
                    attributes,
                    marks: head.marks & MARKS,
                    cas: head.cas,
                    log_offset: replay.start + position,
                };
                let processor = &mut *self.processor;
                let hash = processor.hash(key);
                let pairs = processor.pairs();
                let layout = pairs.layout(key.len(), head.value_bytes, head.flags);
                let may_be_stub = layout.log_offset_at != 0;
                let is_short = pairs.heap.regions.free_count() < pairs.heap.regions.count() / 4;
                let pending = if may_be_stub && is_short {
                    None
                } else {
                    processor.writer.begin(key, head.value_bytes, attributes)
                };
                match pending {
                    Some(pending) => Found::Whole(pair, hash, pending, 0),
                    None if may_be_stub => Found::Stub(pair, hash),
                    None => {
                        replay.is_short_of_memory = true;
                        Found::Removed
                    }
                }
            }
        });
    }

    fn on_value(&mut self, part: &[u8]) {
        if let Some(Found::Whole(_, _, pending, filled)) = &mut self.replay.found {
            pending.fill(&mut self.processor.pairs_mut().heap, *filled, part);
            *filled += part.len();
        }
    }

    fn on_end(&mut self, is_whole: bool) {
        let processor = &mut *self.processor;
        let key = &self.replay.key[..];
        let is_done = match self.replay.found.take() {
            Some(Found::Whole(_, _, pending, _)) if !is_whole => {
                processor.writer.abandon(pending);
                true
            }
            None => true,
            Some(_) if !is_whole => true,
            Some(Found::Whole(pair, hash, pending, _)) => {
                processor.writer.restore(hash, key, &pair, pending, 0)
            }
            Some(Found::Stub(pair, hash)) => processor.writer.restore_stub(hash, key, &pair),
            Some(Found::Removed) => {
                let hash = processor.hash(key);
                if let Some(place) = processor.pairs().locate(hash, key) {
                    processor.pairs_mut().unlink(hash, place);
                }
                true
            }
            Some(Found::Cleared) => {
                processor.writer.allocator.clear();
                true
            }
        };
        self.replay.is_short_of_memory |= !is_done;
    }
}
