//! Recovery: reading the log at the start.

use std::collections::BTreeSet;
use std::ops::Range;

use super::names::NameList;
use super::passed_over::{DamageKind, Passed, keys_named};
use super::scan::{Ending, Scanner, Sink};
use super::{Failure, Job, Log, LogSettings, Notice, PIECE_BYTES, Phase, SUPERBLOCK_COUNT, Segment, Work};
use crate::item::{MARKS, later_cas};
use crate::key::{KEY_BYTES_MAX, KeyHash, name_of};
use crate::log_header::{LogSuperblock, SegmentHeader};
use crate::pair::Attributes;
use crate::pending::Pending;
use crate::processor::Processor;
use crate::record::{Head, Kind, Location};
use crate::regions::{Purpose, REGION_BYTES, Regions};
use crate::reserve::memory_bytes_for;
use crate::stub::Stub;

/// CAS numbers skipped at recovery: they may have been given to values that were lost with the power.
pub(super) const CAS_LOST_COUNT: u64 = 1 << 24;

/// Reads under way at once.
const READ_COUNT_MAX: usize = 16;

/// Progress of recovery.
#[derive(Debug)]
pub(super) struct Recovery {
    ahead: ReadAhead,
    superblock: Option<LogSuperblock>,
    /// The names of the keys of the last write.
    last_names: Option<NameList>,
    headers: Vec<Option<SegmentHeader>>,
    /// Slots in whose headers a wrong bit was corrected.
    corrected_slots: Vec<u64>,
    slot_count: u64,
    /// Segments to read, from the oldest on, and the index of the current one.
    segments: Vec<Segment>,
    at: usize,
    scanner: Option<Scanner>,
    /// Bytes of the next read that were handled before.
    skipped: usize,
    replay: Replay,
    /// Once all records are read, unless their end is known.
    tail: Option<Tail>,
}

/// The reads of recovery: several are under way, and their results are handled in order.
#[derive(Debug)]
struct ReadAhead {
    next: NextRead,
    /// The last one, if it could not be started.
    put_back: Option<Work>,
    /// Reads under way; the first `stale_count` of them are no longer needed.
    count: usize,
    stale_count: usize,
}

/// The next read.
#[derive(Clone, Copy, Debug)]
enum NextRead {
    Superblocks,
    /// The header of the segment in this slot.
    Header(u64),
    /// From this position of the segment of this index on.
    Records {
        at: usize,
        position: u64,
    },
    /// From this position of the newest segment on, up to another one.
    Tail {
        position: u64,
        limit: u64,
    },
    /// Nothing, until what is being read shows what to read.
    Nothing,
}

/// The bytes behind the last whole record of the newest segment.
#[derive(Clone, Copy, Debug)]
struct Tail {
    /// One past the last whole record.
    end: u64,
    /// The next block to look at.
    position: u64,
    /// One past the last block to look at.
    limit: u64,
    is_ordered: bool,
    /// The end of the segment.
    segment_end: u64,
    /// Start of bytes that belong to no write.
    dropped_from: Option<u64>,
}

/// A position in the log: generation, and offset in the segment.
type Order = (u64, u64);

/// The group of records being read, and the record.
#[derive(Debug, Default)]
struct Replay {
    /// First byte of the segment in the file.
    start: u64,
    segment_bytes: u64,
    generation: u64,
    /// Everything before this position of it was written.
    whole_to: u64,
    /// The run that wrote the group: no other one completes it.
    run: u64,
    /// One past the last complete group of the segment.
    end: u64,
    key: Vec<u8>,
    /// The present record, and its position.
    found: Option<Found>,
    position: u64,
    /// Where the rest of a value is in the segment; 0 if there is none.
    rest_at: u64,
    /// Complete records of the group, each with its segment and position, and its key.
    group: Vec<(Order, Box<[u8]>, Found)>,
    /// A pair of the group that is only begun, and its length without the rest.
    begun: Option<(Order, usize)>,
    /// The present record has the rest of the value that began here.
    rest_of: Option<Order>,
    passed: Passed,
    /// Whether the group is the first of the log: the beginning of it may have been in a segment that was freed.
    is_first: bool,
    /// Whether records of the group are missing: it was never complete, and nothing of this run follows it.
    is_torn: bool,
    /// Bytes of the values of the group in memory: they cannot leave it before the group is complete.
    held_bytes: usize,
    /// The latest expiry of a pair, in log time.
    expires_until_s: i64,
    /// Whether pairs found no memory within the limit. Pairs read beyond it show how much they need.
    is_short_of_memory: bool,
}

#[derive(Debug)]
enum Found {
    Removed,
    Cleared,
    /// The end of the group, which has this many records and ends at this byte of the segment.
    GroupEnd(u32, u64),
    /// A pair with its value, of which this many bytes are filled.
    Whole(Stub, KeyHash, Pending, usize),
    /// A pair with its value so far, too short to leave memory.
    Short(Stub, KeyHash, Vec<u8>),
    Stub(Stub, KeyHash),
    /// A list of names, as far as it was read.
    Names(Vec<u8>),
}

impl Recovery {
    pub(super) fn new(slot_count: u64) -> Self {
        Self {
            ahead: ReadAhead { next: NextRead::Superblocks, put_back: None, count: 0, stale_count: 0 },
            superblock: None,
            last_names: None,
            headers: Vec::new(),
            corrected_slots: Vec::new(),
            slot_count,
            segments: Vec::new(),
            at: 0,
            scanner: None,
            skipped: 0,
            replay: Replay { key: Vec::with_capacity(KEY_BYTES_MAX), is_first: true, ..Replay::default() },
            tail: None,
        }
    }

    pub(super) fn next(&mut self, settings: &LogSettings) -> Option<Work> {
        if self.ahead.count >= READ_COUNT_MAX {
            return None;
        }
        let put_back = self.ahead.put_back.take();
        let work = put_back.or_else(|| self.next_read(settings))?;
        self.ahead.count += 1;
        Some(work)
    }

    pub(super) fn put_back(&mut self, work: Work) {
        self.ahead.count -= 1;
        self.ahead.put_back = Some(work);
    }

    fn next_read(&mut self, settings: &LogSettings) -> Option<Work> {
        let block_bytes = settings.block_bytes;
        let read = |offset, length: u64| Work::Read { job: Job::Recover, offset, length: length as usize };
        let slot_start = |slot: u64| settings.start + slot * settings.segment_bytes;
        loop {
            let (slot, position, limit) = match self.ahead.next {
                NextRead::Nothing => return None,
                NextRead::Superblocks => {
                    self.ahead.next = NextRead::Nothing;
                    return Some(read(settings.superblock_start, SUPERBLOCK_COUNT as u64 * block_bytes));
                }
                NextRead::Header(slot) => {
                    let is_last = slot + 1 == self.slot_count;
                    self.ahead.next = if is_last { NextRead::Nothing } else { NextRead::Header(slot + 1) };
                    return Some(read(slot_start(slot), block_bytes));
                }
                NextRead::Records { at, position } => {
                    let segment = self.segments.get(at)?;
                    if position >= segment.end {
                        self.ahead.next = NextRead::Records { at: at + 1, position: block_bytes };
                        continue;
                    }
                    (segment.slot, position, segment.end.next_multiple_of(block_bytes))
                }
                NextRead::Tail { position, limit } if position >= limit => return None,
                NextRead::Tail { position, limit } => (self.segments[self.at].slot, position, limit),
            };
            let length = (limit - position).min(PIECE_BYTES as u64);
            if let NextRead::Records { position, .. } | NextRead::Tail { position, .. } = &mut self.ahead.next
            {
                *position += length;
            }
            return Some(read(slot_start(slot) + position, length));
        }
    }
}

impl Log {
    pub(super) fn on_recovered(&mut self, processor: &mut Processor, bytes: Option<&[u8]>) {
        let Phase::Recovering(recovery) = &mut self.phase else { return };
        recovery.ahead.count -= 1;
        let Some(bytes) = bytes else { return self.fail(Failure::Unreadable) };
        if recovery.ahead.stale_count > 0 {
            recovery.ahead.stale_count -= 1;
            return;
        }
        if recovery.superblock.is_none() {
            return self.on_superblocks(processor, bytes);
        }
        if (recovery.headers.len() as u64) < recovery.slot_count {
            let mut header = SegmentHeader::decode(bytes, self.settings.identity);
            if header.is_none() {
                header = SegmentHeader::correct(&mut bytes.to_vec(), self.settings.identity);
                let slot = recovery.headers.len() as u64;
                recovery.corrected_slots.extend(header.map(|_| slot));
            }
            recovery.headers.push(header);
            if recovery.headers.len() as u64 == recovery.slot_count {
                self.determine_segments(processor);
            }
            return;
        }
        self.recovered_bytes.0 += bytes.len() as u64;
        if recovery.tail.is_some() {
            return self.on_tail(processor, bytes);
        }
        let mut sink = ReplaySink { processor, replay: &mut recovery.replay };
        let scanner = recovery.scanner.as_mut().expect("a segment is being read");
        scanner.on_bytes(&bytes[std::mem::take(&mut recovery.skipped)..], &mut sink);
        let is_over = scanner.next_position().is_none();
        if is_over {
            scanner.on_end(&mut sink);
        }
        recovery.segments[recovery.at].rest_at = recovery.replay.rest_at;
        let notices = std::mem::take(&mut recovery.replay.passed.notices);
        notices.into_iter().for_each(|notice| self.notice(notice));
        if is_over {
            self.on_scanned(processor);
        }
    }

    /// Takes the newer of the superblocks.
    fn on_superblocks(&mut self, processor: &mut Processor, bytes: &[u8]) {
        let Phase::Recovering(recovery) = &mut self.phase else { return };
        let offset = self.settings.superblock_start;
        let block_bytes = self.settings.block_bytes;
        for (copy, at) in bytes.chunks(block_bytes as usize).zip((offset..).step_by(block_bytes as usize)) {
            let found = LogSuperblock::decode(copy, self.settings.identity);
            if found.is_none() {
                self.findings.notices.push_back(Notice::Superblock { offset: at });
            }
            let is_newer = |found: &LogSuperblock| {
                recovery.superblock.is_none_or(|before| before.sequence < found.sequence)
            };
            if let Some(found) = found.filter(is_newer) {
                recovery.superblock = Some(found);
                recovery.last_names = NameList::decode_behind(&found, copy);
            }
        }
        match recovery.superblock {
            Some(superblock) => {
                self.superblock.recorded = superblock;
                if let Some(time) = &superblock.time {
                    processor.pairs_mut().clock.resume(time);
                }
                recovery.ahead.next = NextRead::Header(0);
            }
            None => self.fail(Failure::Superblocks { offset }),
        }
    }

    /// The records of a segment are read: checks that none is missing at its end.
    fn on_scanned(&mut self, processor: &mut Processor) {
        let Phase::Recovering(recovery) = &mut self.phase else { return };
        let end = recovery.scanner.as_ref().expect("it was read").end();
        let Segment { run, generation, slot, end: limit, .. } = recovery.segments[recovery.at];
        let known_end = match self.superblock.recorded {
            _ if recovery.at + 1 < recovery.segments.len() => limit,
            superblock if superblock.newest < generation => 0,
            superblock => superblock.known_end,
        };
        let is_ordered = recovery.headers[slot as usize].is_some_and(|header| header.is_ordered);
        let next = recovery.segments.get(recovery.at + 1).copied();
        let is_end = next.is_none_or(|next| next.run != run);
        if is_end {
            recovery.replay.end_damaged_group(processor, (generation, known_end.min(end)));
        }
        let group_end = recovery.replay.end.max(1).next_multiple_of(self.settings.block_bytes).min(end);
        // A run and a superblock end with a complete group.
        let whole_end = if is_end { group_end } else { end };
        let is_torn = recovery.replay.is_torn && (next.is_some() || is_ordered);
        if whole_end < known_end || is_torn {
            let offset = self.settings.start + slot * self.settings.segment_bytes + whole_end;
            return self.fail(Failure::Damaged { generation, offset });
        }
        if next.is_none() {
            // Records behind the last complete group never count.
            recovery.segments[recovery.at].end = group_end;
        }
        if end == limit {
            if next.is_none() {
                recovery.replay.end_damaged_group(processor, (generation, u64::MAX));
                let group_end = recovery.replay.end.next_multiple_of(self.settings.block_bytes).min(end);
                recovery.segments[recovery.at].end = group_end.max(self.settings.block_bytes.min(end));
            }
            recovery.at += 1;
            return self.begin_segment(processor);
        }
        let LogSettings { block_bytes, segment_bytes, .. } = self.settings;
        let position = end / block_bytes * block_bytes;
        // A write behind the missing one begins within the longest record and a write from here. If writes are not
        // ordered, it does not prove that one is missing.
        let reach = if is_ordered { self.settings.record_bytes_max() + 2 * PIECE_BYTES as u64 } else { 1 };
        let limit = (end + reach).next_multiple_of(block_bytes).min(segment_bytes);
        let (segment_end, dropped_from) = (segment_bytes, None);
        recovery.tail = Some(Tail { end, position, limit, is_ordered, segment_end, dropped_from });
        // Reads ahead began behind the end.
        recovery.ahead.stale_count = recovery.ahead.count;
        recovery.ahead.put_back = None;
        recovery.ahead.next = NextRead::Tail { position, limit };
        self.recovered_bytes.1 = self.recovered_bytes.0 + limit - position;
    }

    /// Looks for writes behind the end of the newest segment: the one that should be there was complete before any
    /// later one began, so it is damaged.
    fn on_tail(&mut self, processor: &mut Processor, bytes: &[u8]) {
        let Phase::Recovering(recovery) = &mut self.phase else { return };
        let tail = recovery.tail.as_mut().expect("it is being read");
        let Segment { run, generation, slot, .. } = recovery.segments[recovery.at];
        let (settings, Tail { end, is_ordered, .. }) = (&self.settings, *tail);
        let offset = settings.start + slot * settings.segment_bytes + end;
        let blocks = bytes.chunks(settings.block_bytes as usize);
        for (block, position) in blocks.zip((tail.position..).step_by(settings.block_bytes as usize)) {
            let is_write = |head: Head| head.is_first && position > end;
            if Head::read(block, Location { run, generation, position }).is_some_and(is_write) && is_ordered {
                return self.pass_over(end, position);
            }
            let behind = end.saturating_sub(position) as usize;
            let is_first = position + settings.block_bytes > end && position <= end;
            if is_first && block[behind..].iter().any(|&byte| byte != 0) {
                tail.dropped_from = Some(offset);
            }
        }
        tail.position += bytes.len() as u64;
        if tail.position == tail.limit {
            let dropped_from = tail.dropped_from;
            recovery.tail = None;
            recovery.replay.end_damaged_group(processor, (generation, u64::MAX));
            let group_end = recovery.replay.end.next_multiple_of(settings.block_bytes).min(end);
            recovery.segments[recovery.at].end = group_end.max(settings.block_bytes.min(end));
            recovery.at += 1;
            if let Some(offset) = dropped_from {
                self.notice(Notice::Dropped { generation, offset });
            }
            self.begin_segment(processor);
        }
    }

    /// Reads the newest segment on from the end of its last record: bytes from there up to `whole_to` are damaged.
    fn pass_over(&mut self, end: u64, whole_to: u64) {
        let Phase::Recovering(recovery) = &mut self.phase else { return };
        let tail = recovery.tail.take().expect("it is being read");
        let (at, block_bytes) = (recovery.at, self.settings.block_bytes);
        let segment = &mut recovery.segments[at];
        segment.end = tail.segment_end;
        let Segment { run, generation, end: limit, .. } = *segment;
        let location = Location { run, generation, position: end };
        recovery.scanner = Some(Scanner::new(location, &self.settings, limit).whole_to(whole_to));
        recovery.skipped = (end % block_bytes) as usize;
        recovery.replay.whole_to = whole_to;
        recovery.ahead.stale_count = recovery.ahead.count;
        recovery.ahead.put_back = None;
        recovery.ahead.next = NextRead::Records { at, position: end - end % block_bytes };
        self.recovered_bytes.1 = self.recovered_bytes.0 + limit - end;
    }

    /// Determines the log from all headers: it is the newest segment, the oldest one it needs, and all between them.
    fn determine_segments(&mut self, processor: &mut Processor) {
        let Phase::Recovering(recovery) = &mut self.phase else { return };
        let headers = recovery.headers.iter().zip(0..);
        let mut known: Vec<(SegmentHeader, u64)> =
            headers.filter_map(|(header, slot)| Some(((*header)?, slot))).collect();
        known.sort_unstable_by_key(|(header, _)| header.generation);
        let superblock = self.superblock.recorded;
        let last = known.last().map(|(header, _)| *header);
        let newest = last.map_or(0, |header| header.generation);
        let oldest = last.map_or(1, |header| header.oldest).max(superblock.oldest);
        let needed = known.partition_point(|(header, _)| header.generation < oldest);
        let needed = &known[needed..];
        for (generation, at) in (oldest..=newest.max(superblock.newest)).zip(0..) {
            if needed.get(at).is_none_or(|(header, _)| header.generation != generation) {
                return self.fail(Failure::Missing { generation });
            }
        }
        let is_end_known = superblock.newest == newest && superblock.is_closed;
        let end = if is_end_known { superblock.known_end } else { self.settings.segment_bytes };
        let ends = needed.iter().skip(1).map(|(next, _)| next.previous_end);
        let segments = needed.iter().zip(ends.chain([end]));
        recovery.segments = segments
            .map(|(&(header, slot), end)| {
                let SegmentHeader { run, generation, .. } = header;
                Segment { run, generation, slot, end, rest_at: 0 }
            })
            .collect();
        self.recovered_bytes.1 = recovery.segments.iter().map(|segment| segment.end).sum();
        let next_cas = last.map_or(0, |header| header.next_cas).max(superblock.next_cas);
        processor.writer.next_cas = processor.writer.next_cas.max(next_cas);
        // The other slots, in the order in which they were freed, as far as that is known.
        let mut free: Vec<(u64, u64)> = (0..self.settings.segment_count)
            .filter(|slot| !recovery.segments.iter().any(|segment| segment.slot == *slot))
            .map(|slot| (recovery.headers[slot as usize].map_or(0, |header| header.generation), slot))
            .collect();
        free.sort_unstable();
        self.free = free.into();
        recovery.ahead.next = NextRead::Records { at: 0, position: self.settings.block_bytes };
        let corrected = &recovery.corrected_slots;
        let corrected = recovery.segments.iter().filter(|segment| corrected.contains(&segment.slot));
        for Segment { generation, slot, .. } in corrected.copied().collect::<Vec<_>>() {
            let offset = self.slot_start(slot);
            self.notice(Notice::Passed { kind: DamageKind::Header, generation, offset });
        }
        self.begin_segment(processor);
    }

    /// Continues with the next segment, or ends reading.
    fn begin_segment(&mut self, processor: &mut Processor) {
        let Phase::Recovering(recovery) = &mut self.phase else { return };
        match recovery.segments.get(recovery.at) {
            Some(segment) => {
                let block_bytes = self.settings.block_bytes;
                let Segment { run, generation, end, .. } = *segment;
                let whole_to = match self.superblock.recorded {
                    _ if recovery.at + 1 < recovery.segments.len() => end,
                    superblock if superblock.newest < generation => 0,
                    superblock => superblock.known_end,
                };
                let location = Location { run, generation, position: block_bytes };
                recovery.scanner = Some(Scanner::new(location, &self.settings, end).whole_to(whole_to));
                let replay = &mut recovery.replay;
                replay.segment_bytes = self.settings.segment_bytes;
                replay.start = self.settings.start + segment.slot * self.settings.segment_bytes;
                (replay.generation, replay.whole_to, replay.end) = (generation, whole_to, 0);
                replay.rest_at = 0;
                if std::mem::replace(&mut replay.run, segment.run) != segment.run {
                    replay.drop_group(processor);
                }
                if segment.end <= block_bytes {
                    recovery.at += 1;
                    self.begin_segment(processor);
                }
            }
            None => {
                recovery.replay.drop_group(processor);
                let newest = recovery.segments.last().map_or((0, 0), |last| (last.generation, last.end));
                let last_names = recovery.last_names.take_if(|names| names.generation == newest.0);
                if let Some(names) = &last_names {
                    recovery.replay.take_names(processor, names, None);
                }
                if let Some((generation, position)) = recovery.replay.passed.unbounded() {
                    let segment = recovery.segments.iter().find(|segment| segment.generation == generation);
                    let start = segment.map_or(0, |segment| segment.slot * self.settings.segment_bytes);
                    let offset = self.settings.start + start + position;
                    return self.fail(Failure::Damaged { generation, offset });
                }
                // It has the names of records that could not be read, too.
                let last_names = last_names.filter(|names| names.to == newest.1);
                let recent = &recovery.replay.passed.recent;
                self.head.names = last_names.unwrap_or_else(|| recent.list(newest.0, newest.1));
                let (pairs, is_short) = (processor.pairs(), recovery.replay.is_short_of_memory);
                let needed_count = pairs.needed_regions();
                if is_short || needed_count > pairs.heap.regions.count() {
                    let needed_bytes = memory_bytes_for(needed_count, self.settings.value_bytes_max()) as u64;
                    return self.fail(Failure::NoMemory { needed_bytes });
                }
                self.superblock.expires_until_s = recovery.replay.expires_until_s;
                self.segments = std::mem::take(&mut recovery.segments).into();
                let passed = std::mem::take(&mut recovery.replay.passed);
                self.settle(processor);
                self.tell_lost(processor, passed);
            }
        }
    }

    /// Ends reading: passes over the CAS numbers of lost values.
    fn settle(&mut self, processor: &mut Processor) {
        if let Some(seconds) = processor.end_recovery(self.superblock.expires_until_s) {
            self.findings.notices.push_back(Notice::ClockBehind { seconds });
        }
        processor.writer.next_cas += CAS_LOST_COUNT;
        self.head.durable_end = self.head_end();
        self.phase = Phase::Settling { is_flushed: false };
    }
}

/// Regions for the keys of a group of changes and its short values.
const GROUP_REGIONS: usize = PIECE_BYTES / REGION_BYTES;

/// Whether there is memory to keep a value, if those of its group then take `held_bytes`: a quarter stays free, and
/// room for as much again that does not leave memory.
fn has_room_for_value(regions: &Regions, held_bytes: usize) -> bool {
    let kept_count = regions.target() - regions.usable_count();
    let wanted = kept_count + 2 * (held_bytes.div_ceil(REGION_BYTES) + 1) + GROUP_REGIONS;
    regions.free_count() >= wanted.max(regions.count() / 4)
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
        replay.position = position;
        if !matches!(head.kind, Kind::GroupEnd | Kind::Names | Kind::Rest) {
            replay.passed.recent.on_record(replay.generation, position, name_of(key));
        }
        let processor = &mut *self.processor;
        processor.writer.next_cas = later_cas(processor.writer.next_cas, head.cas);
        replay.found = Some(match head.kind {
            Kind::Names => Found::Names(Vec::with_capacity(head.value_bytes)),
            Kind::Lost => Found::Stub(Stub::lost(head.cas), processor.hash(key)),
            Kind::Removed => Found::Removed,
            Kind::Cleared => Found::Cleared,
            Kind::GroupEnd => {
                processor.pairs_mut().clock.on_log_time(head.expiry_s);
                Found::GroupEnd(head.flags, position + head.record_bytes() as u64)
            }
            Kind::Rest => {
                replay.rest_at = position;
                replay.found = replay.take_begun(head, key);
                return;
            }
            Kind::Pair | Kind::Begun => {
                if head.kind == Kind::Begun {
                    replay.end_begun(processor);
                    let part_bytes = head.bytes_at(position, replay.segment_bytes);
                    let value_bytes = part_bytes.map_or(0, |bytes| head.value_bytes_in(bytes));
                    replay.begun = Some(((replay.generation, position), value_bytes));
                }
                replay.expires_until_s = replay.expires_until_s.max(head.expiry_s);
                let Some(expiry_s) = self.processor.clock().restored(head.expiry_s) else {
                    // The pair has expired, and replaces the previous one all the same.
                    replay.found = Some(Found::Removed);
                    return;
                };
                let attributes = Attributes { flags: head.flags, expiry_s };
                let pair = Stub {
                    value_bytes: head.value_bytes,
                    attributes,
                    marks: head.marks & MARKS,
                    cas: head.cas,
                    stamp: self.processor.pairs().heap.access.now(),
                    log_offset: replay.start + position,
                };
                let processor = &mut *self.processor;
                let hash = processor.hash(key);
                let pairs = processor.pairs();
                let layout = pairs.layout(key.len(), head.value_bytes, head.flags);
                let may_be_stub = layout.log_offset_at != 0;
                let is_short = !has_room_for_value(&pairs.heap.regions, replay.held_bytes + head.value_bytes);
                let pending = if !may_be_stub {
                    // It may only reuse the space of the pair that it replaces.
                    replay.found = Some(Found::Short(pair, hash, Vec::new()));
                    return;
                } else if is_short {
                    None
                } else {
                    processor.writer.begin_fetched(key, head.value_bytes, attributes, Purpose::Recovery)
                };
                match pending {
                    Some(pending) => {
                        replay.held_bytes += head.value_bytes;
                        Found::Whole(pair, hash, pending, 0)
                    }
                    None => Found::Stub(pair, hash),
                }
            }
        });
    }

    fn on_value(&mut self, part: &[u8]) {
        match &mut self.replay.found {
            Some(Found::Whole(_, _, pending, filled)) => {
                pending.fill(&mut self.processor.pairs_mut().heap, *filled, part);
                *filled += part.len();
            }
            Some(Found::Short(_, _, value) | Found::Names(value)) => value.extend_from_slice(part),
            _ => {}
        }
    }

    fn on_end(&mut self, ending: Ending) {
        let replay = &mut *self.replay;
        let Some(mut found) = replay.found.take() else { return };
        let order = replay.rest_of.take().unwrap_or((replay.generation, replay.position));
        if ending == Ending::Damaged {
            let is_list = matches!(found, Found::Names(_));
            replay.pass(if is_list { DamageKind::Names } else { DamageKind::Value }, replay.position);
            found = found.without_value(self.processor);
            if let Found::Stub(pair, _) = &found {
                replay.passed.doubt(&replay.key, pair.log_offset);
            }
        }
        match found {
            Found::Names(value) => {
                if ending == Ending::Whole
                    && let Some(names) = NameList::decode(&value)
                {
                    replay.take_names(self.processor, &names, Some(order));
                }
            }
            Found::GroupEnd(record_count, end) if ending != Ending::Cut && !replay.is_torn => {
                // Without a flush, a power cut may take back a part of a group and leave the next one.
                let (found, wanted) = (replay.group.len(), record_count as usize);
                let is_damaged = replay.passed.is_group_damaged();
                let is_torn = !is_damaged && (found > wanted || found < wanted && !replay.is_first);
                replay.is_torn = is_torn && replay.position >= replay.whole_to;
                replay.is_first = false;
                if is_torn && !replay.is_torn {
                    // It is unknown whether a record was in the empty rest of a block.
                    let first = replay.group.first().map_or(order, |(first, ..)| *first);
                    replay.pass(DamageKind::Records, replay.position);
                    replay.passed.on_gap(first, (order.0, order.1 + 1));
                }
                if !replay.is_torn {
                    replay.end = end;
                    replay.apply_group(self.processor);
                }
            }
            found if ending != Ending::Cut && !replay.is_torn => {
                if let Found::Stub(pair, _) = &found
                    && pair.is_lost()
                {
                    replay.passed.doubt(&replay.key, pair.log_offset);
                }
                replay.group.push((order, replay.key[..].into(), found));
            }
            found => found.abandon(self.processor),
        }
    }

    fn on_corrected(&mut self, position: u64) {
        self.replay.pass(DamageKind::Bit, position);
    }

    fn on_hole(&mut self, range: Range<u64>) {
        self.replay.on_hole(range);
    }
}

impl Replay {
    /// Damage at a position of the segment is passed over.
    fn pass(&mut self, kind: DamageKind, position: u64) {
        let (generation, offset) = (self.generation, self.start + position);
        self.passed.notices.push(Notice::Passed { kind, generation, offset });
    }

    /// Records in a range of the segment cannot be read.
    fn on_hole(&mut self, range: Range<u64>) {
        self.pass(DamageKind::Records, range.start);
        self.passed.on_hole(self.generation, range);
    }

    /// Names were read of records that were written: keys whose last records are in holes are lost.
    fn take_names(&mut self, processor: &mut Processor, names: &NameList, at: Option<(u64, u64)>) {
        let hole_count = self.passed.hole_count();
        if let Some((from, lost)) = self.passed.on_names(names)
            && !lost.is_empty()
        {
            self.lose(processor, &lost, from);
        }
        if self.passed.hole_count() > hole_count {
            self.pass(DamageKind::Records, names.from);
        }
        if let Some((generation, position)) = at {
            self.passed.recent.restart(generation, position);
        }
    }

    /// The last records of keys with these names are in a hole that begins here.
    fn lose(&mut self, processor: &mut Processor, names: &BTreeSet<u32>, from: (u64, u64)) {
        let mut unknown = names.clone();
        for (order, key, found) in &mut self.group {
            let is_lost = *order < from && names.contains(&name_of(key));
            if is_lost && !matches!(found, Found::Cleared) {
                unknown.remove(&name_of(key));
                self.passed.doubt(key, Stub::LOST);
                let stub = Found::Stub(Stub::lost(found.cas()), processor.hash(key));
                std::mem::replace(found, stub).abandon(processor);
            }
        }
        for (key, cas) in keys_named(processor, names) {
            unknown.remove(&name_of(&key));
            self.passed.doubt(&key, Stub::LOST);
            let hash = processor.hash(&key);
            self.is_short_of_memory |= !processor.writer.restore_stub(hash, &key, &Stub::lost(cas));
        }
        self.passed.hidden.extend(unknown);
    }

    /// Ends a group whose end could not be read. If everything up to `whole_to` is known to be written, with the end of
    /// a group, its records up to there count. Else those before a hole do, and others are of the next group.
    fn end_damaged_group(&mut self, processor: &mut Processor, whole_to: (u64, u64)) {
        let hole = self.passed.last_hole().filter(|(from, _)| *from < whole_to);
        let is_whole = whole_to.1 < u64::MAX;
        let Some(to) =
            hole.map(|(from, _)| from).filter(|_| !is_whole).or(Some(whole_to).filter(|_| is_whole))
        else {
            return;
        };
        let count = self.group.partition_point(|(order, ..)| *order < to);
        if whole_to.1 == 0 || count == 0 && hole.is_none() {
            return;
        }
        let rest = self.group.split_off(count);
        let mut orders = self.group.iter().map(|(order, ..)| *order);
        let behind = orders.find(|order| hole.is_none_or(|(from, _)| *order > from));
        if is_whole && let Some(first) = behind {
            self.pass(DamageKind::Records, first.1);
            self.passed.on_gap(first, whole_to);
        }
        let end = if is_whole { Some(whole_to) } else { hole.map(|(from, end)| (from.0, end)) };
        if let Some((_, end)) = end.filter(|(generation, _)| *generation == self.generation) {
            self.end = self.end.max(end);
        }
        self.apply_group(processor);
        self.group = rest;
    }

    /// Takes the pair from the group of which this is the head of the rest; `None` if its beginning was not read: it is
    /// damaged, or in a segment that was freed.
    fn take_begun(&mut self, head: &Head, key: &[u8]) -> Option<Found> {
        let (order, done_bytes) = self.begun?;
        let at = self.group.iter().rposition(|(at, ..)| *at == order)?;
        let (_, begun_key, found) = &self.group[at];
        let is_it = match found {
            Found::Whole(pair, ..) | Found::Short(pair, ..) | Found::Stub(pair, _) => {
                pair.is_lost() || pair.cas == head.cas && pair.value_bytes == done_bytes + head.value_bytes
            }
            _ => true,
        };
        if !is_it || **begun_key != *key {
            return None;
        }
        (self.begun, self.rest_of) = (None, Some(order));
        Some(self.group.remove(at).2)
    }

    /// No rest follows the beginning of a value: it cannot be read.
    fn end_begun(&mut self, processor: &mut Processor) {
        let Some((order, _)) = self.begun else { return };
        let Some((_, key, found)) = self.group.iter_mut().find(|(at, ..)| *at == order) else { return };
        self.begun = None;
        let stub = std::mem::replace(found, Found::Removed).without_value(processor);
        if let Found::Stub(pair, _) = &stub {
            self.passed.doubt(key, pair.log_offset);
        }
        *found = stub;
    }

    /// Applies the records of a complete group.
    fn apply_group(&mut self, processor: &mut Processor) {
        self.end_begun(processor);
        self.held_bytes = 0;
        self.passed.end_group();
        for (_, key, found) in std::mem::take(&mut self.group) {
            match found {
                Found::Cleared => self.passed.hidden.clear(),
                _ if self.passed.hidden.is_empty() => {}
                _ => drop(self.passed.hidden.remove(&name_of(&key))),
            }
            if !found.apply(processor, &key) {
                self.is_short_of_memory = true;
                processor.writer.allocator.exceed_limit();
            }
        }
    }

    /// Drops the records of a group that was never complete.
    fn drop_group(&mut self, processor: &mut Processor) {
        (self.is_torn, self.held_bytes, self.begun) = (false, 0, None);
        self.passed.end_group();
        self.group.drain(..).for_each(|(_, _, found)| found.abandon(processor));
    }
}

impl Found {
    /// Gives a key the state of the record. Returns whether there was memory.
    fn apply(self, processor: &mut Processor, key: &[u8]) -> bool {
        match self {
            Self::Whole(pair, hash, pending, _) => processor.writer.restore(hash, key, &pair, pending, 0),
            Self::Short(pair, hash, value) => {
                let Some(pending) = processor.writer.begin_short(key, value.len(), pair.attributes) else {
                    return false;
                };
                pending.fill(&mut processor.pairs_mut().heap, 0, &value);
                processor.writer.restore(hash, key, &pair, pending, 0)
            }
            Self::Stub(pair, hash) => processor.writer.restore_stub(hash, key, &pair),
            Self::Removed => {
                let hash = processor.hash(key);
                if let Some(place) = processor.pairs().locate(hash, key) {
                    processor.pairs_mut().unlink(hash, place);
                }
                true
            }
            Self::Cleared => {
                processor.writer.allocator.clear();
                true
            }
            Self::GroupEnd(..) | Self::Names(_) => true,
        }
    }

    /// The CAS number of its pair.
    fn cas(&self) -> u64 {
        match self {
            Self::Whole(pair, ..) | Self::Short(pair, ..) | Self::Stub(pair, _) => pair.cas,
            _ => 0,
        }
    }

    /// The same record with a damaged value: the pair stays in the log, where it cannot be read.
    fn without_value(self, processor: &mut Processor) -> Self {
        match self {
            Self::Whole(pair, hash, pending, _) => {
                processor.writer.abandon(pending);
                Self::Stub(pair, hash)
            }
            Self::Short(pair, hash, _) => Self::Stub(pair, hash),
            found => found,
        }
    }

    fn abandon(self, processor: &mut Processor) {
        if let Self::Whole(_, _, pending, _) = self {
            processor.writer.abandon(pending);
        }
    }
}
