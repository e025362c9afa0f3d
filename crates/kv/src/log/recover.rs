//! Recovery: reading the log at the start.

use super::scan::{Scanner, Sink};
use super::{Failure, Job, Log, LogSettings, Notice, PIECE_BYTES, Phase, SUPERBLOCK_COUNT, Segment, Work};
use crate::item::MARKS;
use crate::key::{KEY_BYTES_MAX, KeyHash};
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
    headers: Vec<Option<SegmentHeader>>,
    slot_count: u64,
    /// Segments to read, from the oldest on, and the index of the current one.
    segments: Vec<Segment>,
    at: usize,
    scanner: Option<Scanner>,
    replay: Replay,
    /// Once all records are read, unless their end is known.
    tail: Option<Tail>,
}

/// The reads of recovery: several are under way, and what they return is handled in their order.
#[derive(Debug)]
struct ReadAhead {
    next: NextRead,
    /// The last one, if it could not be started.
    put_back: Option<Work>,
    /// Reads under way; the first `stale_count` of them are for what need not be read any more.
    count: usize,
    stale_count: usize,
}

/// What is read next.
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

/// What follows the last whole record of the newest segment.
#[derive(Clone, Copy, Debug)]
struct Tail {
    /// One past the last whole record.
    end: u64,
    /// The next block to look at.
    position: u64,
    /// One past the last block to look at.
    limit: u64,
    is_ordered: bool,
}

/// The group of records being read, and the record.
#[derive(Debug, Default)]
struct Replay {
    /// First byte of the segment in the file.
    start: u64,
    /// The run that wrote the group: no other one completes it.
    run: u64,
    /// One past the last complete group of the segment.
    end: u64,
    key: Vec<u8>,
    found: Option<Found>,
    /// Complete records of the group, with their keys.
    group: Vec<(Box<[u8]>, Found)>,
    /// Whether the group is the first of the log: the beginning of it may have been in a segment that was freed.
    is_first: bool,
    /// Whether records of the group are missing: it was never complete, and nothing of this run follows it.
    is_torn: bool,
    /// Bytes of the values of the group in memory: they cannot leave it before the group is complete.
    held_bytes: usize,
    /// The latest expiry of a pair, in log time.
    expires_until_s: i64,
    /// Whether pairs found no memory within the limit. What is read beyond it shows how much they need.
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
    /// A pair with its value, too short to leave memory.
    Short(Stub, KeyHash, Vec<u8>),
    Stub(Stub, KeyHash),
}

impl Recovery {
    pub(super) fn new(slot_count: u64) -> Self {
        Self {
            ahead: ReadAhead { next: NextRead::Superblocks, put_back: None, count: 0, stale_count: 0 },
            superblock: None,
            headers: Vec::new(),
            slot_count,
            segments: Vec::new(),
            at: 0,
            scanner: None,
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
            recovery.headers.push(SegmentHeader::decode(bytes, self.settings.identity));
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
        scanner.on_bytes(bytes, &mut sink);
        if scanner.next_position().is_some() {
            return;
        }
        scanner.on_end(&mut sink);
        self.on_scanned(processor);
    }

    /// Takes the newer of the superblocks.
    fn on_superblocks(&mut self, processor: &mut Processor, bytes: &[u8]) {
        let Phase::Recovering(recovery) = &mut self.phase else { return };
        let offset = self.settings.superblock_start;
        let block_bytes = self.settings.block_bytes;
        for (copy, at) in bytes.chunks(block_bytes as usize).zip((offset..).step_by(block_bytes as usize)) {
            let found = LogSuperblock::decode(copy, self.settings.identity);
            if found.is_none() {
                self.notices.push_back(Notice::Superblock { offset: at });
            }
            let is_newer = |found: &LogSuperblock| {
                recovery.superblock.is_none_or(|before| before.sequence < found.sequence)
            };
            recovery.superblock = found.filter(is_newer).or(recovery.superblock);
        }
        match recovery.superblock {
            Some(superblock) => {
                self.recorded = superblock;
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
        let Segment { run, generation, slot, end: limit } = recovery.segments[recovery.at];
        let known_end = match self.recorded {
            _ if recovery.at + 1 < recovery.segments.len() => limit,
            superblock if superblock.newest < generation => 0,
            superblock => superblock.known_end,
        };
        let is_ordered = recovery.headers[slot as usize].is_some_and(|header| header.is_ordered);
        let next = recovery.segments.get(recovery.at + 1);
        let group_end = recovery.replay.end.max(1).next_multiple_of(self.settings.block_bytes).min(end);
        // A run and a superblock end with a complete group.
        let whole_end = if next.is_some_and(|next| next.run == run) { end } else { group_end };
        let is_torn = recovery.replay.is_torn && (next.is_some() || is_ordered);
        if whole_end < known_end || is_torn {
            let offset = self.settings.start + slot * self.settings.segment_bytes + whole_end;
            return self.fail(Failure::Damaged { generation, offset });
        }
        if next.is_none() {
            // What follows the last complete group never counts.
            recovery.segments[recovery.at].end = group_end;
        }
        if end == limit {
            recovery.at += 1;
            return self.begin_segment(processor);
        }
        let LogSettings { block_bytes, segment_bytes, .. } = self.settings;
        let position = end / block_bytes * block_bytes;
        // A write behind the one that should be here begins within the longest record and a write from here. Without an
        // order of writes nothing follows from one.
        let reach = if is_ordered { self.settings.record_bytes_max() + 2 * PIECE_BYTES as u64 } else { 1 };
        let limit = (end + reach).next_multiple_of(block_bytes).min(segment_bytes);
        recovery.tail = Some(Tail { end, position, limit, is_ordered });
        // What is read ahead began behind the end.
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
                return self.fail(Failure::Damaged { generation, offset });
            }
            let behind = end.saturating_sub(position) as usize;
            let is_first = position + settings.block_bytes > end && position <= end;
            if is_first && block[behind..].iter().any(|&byte| byte != 0) {
                self.notices.push_back(Notice::Dropped { generation, offset });
            }
        }
        tail.position += bytes.len() as u64;
        if tail.position == tail.limit {
            recovery.tail = None;
            recovery.at += 1;
            self.begin_segment(processor);
        }
    }

    /// Determines the log from all headers: it is the newest segment, the oldest one it needs, and all between them.
    fn determine_segments(&mut self, processor: &mut Processor) {
        let Phase::Recovering(recovery) = &mut self.phase else { return };
        let headers = recovery.headers.iter().zip(0..);
        let mut known: Vec<(SegmentHeader, u64)> =
            headers.filter_map(|(header, slot)| Some(((*header)?, slot))).collect();
        known.sort_unstable_by_key(|(header, _)| header.generation);
        let superblock = self.recorded;
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
                Segment { run, generation, slot, end }
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
                let replay = &mut recovery.replay;
                replay.start = self.settings.start + segment.slot * self.settings.segment_bytes;
                replay.end = 0;
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
                let (pairs, is_short) = (processor.pairs(), recovery.replay.is_short_of_memory);
                let needed_count = pairs.needed_regions();
                if is_short || needed_count > pairs.heap.regions.count() {
                    let needed_bytes = memory_bytes_for(needed_count, self.settings.value_bytes_max()) as u64;
                    return self.fail(Failure::NoMemory { needed_bytes });
                }
                self.expires_until_s = recovery.replay.expires_until_s;
                self.segments = std::mem::take(&mut recovery.segments).into();
                self.settle(processor);
            }
        }
    }

    /// Ends reading: passes over the CAS numbers of lost values.
    fn settle(&mut self, processor: &mut Processor) {
        if let Some(seconds) = processor.end_recovery(self.expires_until_s) {
            self.notices.push_back(Notice::ClockBehind { seconds });
        }
        let next_cas = &mut processor.writer.next_cas;
        *next_cas = (*next_cas + CAS_LOST_COUNT) & ((1 << 48) - 1);
        self.durable_end = self.head_end();
        self.phase = Phase::Settling { is_flushed: false };
    }
}

/// Regions for the keys of a group of changes and its short values.
const GROUP_REGIONS: usize = PIECE_BYTES / REGION_BYTES;

/// Whether there is memory to keep a value, if those of its group then take `held_bytes`: a quarter stays free, and room
/// for as much again that does not leave memory.
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
        let processor = &mut *self.processor;
        processor.writer.next_cas = processor.writer.next_cas.max(head.cas);
        replay.found = Some(match head.kind {
            Kind::Removed => Found::Removed,
            Kind::Cleared => Found::Cleared,
            Kind::GroupEnd => {
                processor.pairs_mut().clock.on_log_time(head.expiry_s);
                Found::GroupEnd(head.flags, position + head.record_bytes() as u64)
            }
            Kind::Pair => {
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
                    // Only the pair that it replaces may leave room for it.
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
            Some(Found::Short(_, _, value)) => value.extend_from_slice(part),
            _ => {}
        }
    }

    fn on_end(&mut self, is_whole: bool) {
        let replay = &mut *self.replay;
        let Some(found) = replay.found.take() else { return };
        match found {
            Found::GroupEnd(record_count, end) if is_whole && !replay.is_torn => {
                // Without a flush, a power cut may take back a part of a group and leave the next one.
                let (found, wanted) = (replay.group.len(), record_count as usize);
                replay.is_torn = found > wanted || found < wanted && !replay.is_first;
                replay.is_first = false;
                if !replay.is_torn {
                    replay.end = end;
                    replay.apply_group(self.processor);
                }
            }
            found if is_whole && !replay.is_torn => replay.group.push((replay.key[..].into(), found)),
            found => found.abandon(self.processor),
        }
    }
}

impl Replay {
    /// Applies the records of a complete group.
    fn apply_group(&mut self, processor: &mut Processor) {
        self.held_bytes = 0;
        for (key, found) in std::mem::take(&mut self.group) {
            if !found.apply(processor, &key) {
                self.is_short_of_memory = true;
                processor.writer.allocator.exceed_limit();
            }
        }
    }

    /// Drops the records of a group that was never complete.
    fn drop_group(&mut self, processor: &mut Processor) {
        (self.is_torn, self.held_bytes) = (false, 0);
        self.group.drain(..).for_each(|(_, found)| found.abandon(processor));
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
            Self::GroupEnd(..) => true,
        }
    }

    fn abandon(self, processor: &mut Processor) {
        if let Self::Whole(_, _, pending, _) = self {
            processor.writer.abandon(pending);
        }
    }
}
