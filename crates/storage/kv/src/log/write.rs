//! Writing: changes become records at the head.
//!
//! Records are written in groups, mostly one per write. A group of changes ends once no change is left to be written,
//! so at that moment the log holds the present state of every key; a group of rewritten keys changes nothing. Recovery
//! applies complete groups only, so it always returns to the state after some change and all before it.
//!
//! ```text
//!   ┌──▶ none ──changes──▶ Changes: all of them, also those that are noted meanwhile ──none is left──▶ end ──┐
//!   │     └──keys to rewrite──▶ Rewrites: as many as fit in the write ───────────────────────────────▶ end ──┤
//!   └────────────────────────────────────────────────────────────────────────────────────────────────────────┘
//! ```
//! A key with a change is not rewritten, since its present state belongs to a group of changes.
//!
//! Keys to be rewritten are collected until they fill a write, as long as more can come: the rest of a write's last
//! block is empty.
//!
//! A write begins with the names of the keys written before it.
//!
//! A long value that does not fit in the rest of the head is begun there, if the next segment is free. It is written
//! like one that takes several writes: the next one begins that segment, and goes on behind the names.

use super::{Failure, Log, PIECE_BYTES, Phase, Segment, Sync, Write};
use crate::changes::Due;
use crate::item::Header;
use crate::item::MARKS;
use crate::key::{KEY_BYTES_MAX, name_of};
use crate::log_header::{LogSuperblock, SegmentHeader};
use crate::pins::Pin;
use crate::place::PairPlace;
use crate::processor::Processor;
use crate::record::{Checksum, HEAD_BYTES, Head, Kind, Location, RECORD_EXTRA_BYTES, TAIL_BYTES};

/// Bytes of the changes of a group, which fit in one write with a segment's header and the end of the group.
const GROUP_BYTES: usize = PIECE_BYTES - 4096 - RECORD_EXTRA_BYTES;

/// The least bytes of a record that is begun.
pub(super) const BEGUN_BYTES_MIN: usize = RECORD_EXTRA_BYTES + KEY_BYTES_MAX + 64;

/// Names that a write may leave to a later one.
const DEFERRED_NAMES_MAX: usize = 32;

/// A write under way, and the log's state once it completes.
#[derive(Clone, Copy, Debug)]
pub(super) enum Flight {
    Records {
        /// End of the head.
        end: u64,
        /// The changes written then, if the write ends a group.
        written: Option<Written>,
    },
    Superblock(LogSuperblock),
}

/// The changes in complete groups.
#[derive(Clone, Copy, Debug)]
pub(super) struct Written {
    /// All changes up to this one.
    taken: u64,
    /// Number of keys rewritten for cleaning.
    rewrites: u64,
}

/// The groups of records: the one that is written, and what the next one takes.
#[derive(Debug, Default)]
pub(super) struct Groups {
    pub(super) current: Option<Group>,
    /// The records that the next one takes if there is a choice.
    turn: Takes,
    /// Whether the next one takes changes in any case.
    pub(super) wants_changes: bool,
}

/// A group of records that is not complete.
#[derive(Clone, Copy, Debug)]
pub(super) struct Group {
    takes: Takes,
    record_count: u32,
    /// Whether it began with an earlier write.
    is_continued: bool,
}

/// The records of a group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Takes {
    /// All changes.
    #[default]
    Changes,
    /// Keys without a change, rewritten for cleaning.
    Rewrites,
}

/// A record that takes several writes, or two segments. Its value is kept unchanged meanwhile.
#[derive(Debug)]
pub(super) struct Stream {
    pin: Pin,
    head: Head,
    key: Box<[u8]>,
    /// Bytes of the value that are written once this segment has its part, and how many are.
    part_end: usize,
    done: usize,
    /// Bytes of the checksum of that part that are written.
    tail_done: usize,
    checksum: Checksum,
    /// First byte of the record in the file.
    log_offset: u64,
}

/// A record to be written.
struct Found {
    head: Head,
    /// Line of the pair, if there is one.
    item: Option<u32>,
}

impl Log {
    /// Whether something can be written now.
    pub(super) fn wants_write(&mut self, processor: &mut Processor) -> bool {
        if self.flight.is_some() || self.flushes.is_flushing() {
            return false;
        }
        if self.needs_superblock(processor) {
            return true;
        }
        if let Some(stream) = &self.head.stream {
            return !stream.awaits_segment() || self.can_roll();
        }
        let Some(due) = self.next_due(processor) else { return false };
        let found = self.find(processor, &due);
        self.fits_next(&found) || self.can_roll()
    }

    /// Whether a change of `bytes` of key and value may be made now. Changes wait while a group of changes goes on in
    /// another write, and while those to be written fill a write: so groups end, and are short.
    #[must_use]
    pub fn admits(&self, processor: &mut Processor, bytes: usize) -> bool {
        let pending_bytes = processor.pairs_mut().changes().pending_bytes();
        let is_continued = |group: &Group| group.is_continued && group.takes == Takes::Changes;
        let limit = u64::min(GROUP_BYTES as u64, self.settings.segment_bytes / 2);
        let limit = limit.saturating_sub(self.head.names.record_bytes() as u64);
        let fits = pending_bytes == 0 || (pending_bytes + RECORD_EXTRA_BYTES + bytes) as u64 <= limit;
        fits && !self.groups.current.as_ref().is_some_and(is_continued) && !self.is_short_of_segments()
    }

    /// Whether segments are short, so that only writes that free segments may proceed.
    pub(super) fn is_short_of_segments(&self) -> bool {
        self.usable_count() <= self.headroom.reserve_count
    }

    /// Whether to write a superblock before anything else.
    fn needs_superblock(&self, processor: &mut Processor) -> bool {
        let newest = self.segments.back().map_or(0, |head| head.generation);
        if newest > self.superblock.recorded.newest {
            return true;
        }
        // Segments freed since it was written may not be overwritten before.
        if self.is_short_of_segments() && self.usable_count() < self.free.len() {
            return true;
        }
        if self.head.stream.is_some() {
            return false;
        }
        if self.is_time_due(processor) {
            return true;
        }
        if !self.head.is_own {
            return false;
        }
        if self.superblock.recorded.is_closed {
            return processor.pairs_mut().changes().has_due();
        }
        if self.needs_names(processor) {
            return false;
        }
        let behind_bytes = self.head.durable_end.saturating_sub(self.superblock.recorded.known_end);
        let is_marked = self.superblock.is_mark_wanted && behind_bytes > 0 && !self.flushes.is_unflushed();
        is_marked || behind_bytes >= self.mark_bytes() || self.is_over(processor)
    }

    /// Whether to write the names of the last write before the superblock that ends the log for now: they do not fit
    /// in it.
    fn needs_names(&self, processor: &mut Processor) -> bool {
        if self.head.names.fits_behind(self.settings.block_bytes as usize) || !self.head.is_own {
            return false;
        }
        let is_between = self.groups.is_between() && self.head.stream.is_none();
        let end = self.head_end() + (self.head.names.record_bytes() + RECORD_EXTRA_BYTES) as u64;
        let is_wanted = self.superblock.is_mark_wanted && !self.flushes.is_unflushed() || self.is_stopping;
        is_wanted && is_between && end <= self.settings.segment_bytes && self.has_settled(processor)
    }

    /// Bytes of a segment after which a superblock names its end.
    fn mark_bytes(&self) -> u64 {
        (self.settings.segment_bytes / 4).clamp(PIECE_BYTES as u64, 16 << 20)
    }

    /// Whether it was stopped and everything is durable.
    fn is_over(&self, processor: &mut Processor) -> bool {
        self.is_stopping && self.groups.current.is_none() && self.has_settled(processor)
    }

    /// The next record to be written. Without one, everything is written.
    fn next_due(&mut self, processor: &mut Processor) -> Option<Due> {
        while let Some(due) = self.choose(processor) {
            let Due::Key { hash, key, length, is_rewrite } = &due else { return Some(due) };
            let key = &key[..*length];
            let stub = processor.pairs().stub(*hash, key);
            if *is_rewrite && processor.pairs_mut().changes().is_pending(*hash, key) {
                self.await_change(processor, *hash);
            } else if stub.is_some_and(|stub| !stub.is_lost()) {
                // Its value has been dropped from memory since, and is in the log.
                if *is_rewrite {
                    self.fetch_for_rewrite(processor, *hash, key);
                }
            } else {
                return Some(due);
            }
            processor.pairs_mut().changes().take(&due);
        }
        let taken = processor.pairs_mut().changes().taken();
        if self.groups.current.is_none() && self.flushes.written < taken {
            self.flushes.written = taken;
            if !self.flushes.is_unflushed() {
                self.settle_written(processor);
            }
        }
        None
    }

    /// Everything written is durable: changes are, once a superblock names the segment.
    fn settle_written(&mut self, processor: &mut Processor) {
        if self.segments.back().is_none_or(|head| head.generation == self.superblock.recorded.newest) {
            processor.pairs_mut().changes().settle(self.flushes.written);
            self.cleaner.on_settled();
        }
    }

    /// The next record of the group, or of one that begins now. Groups of changes and of rewritten keys take turns.
    fn choose(&mut self, processor: &mut Processor) -> Option<Due> {
        let is_short = self.is_short_of_segments();
        let are_rewrites_due = self.are_rewrites_due(processor);
        let changes = processor.pairs_mut().changes();
        if let Some(Group { takes, record_count, is_continued }) = self.groups.current {
            let due = match takes {
                Takes::Changes => changes.due_change(),
                Takes::Rewrites => changes.due_rewrite().filter(|_| !is_continued),
            };
            if due.is_some() || record_count > 0 {
                return due.or(Some(Due::GroupEnd));
            }
            self.groups.current = None;
        }
        if self.needs_names(processor) {
            self.groups.begin(Takes::Rewrites);
            return Some(Due::GroupEnd);
        }
        let changes = processor.pairs_mut().changes();
        let takes_changes = !is_short || self.groups.wants_changes || changes.is_clear_due();
        let is_turn = self.groups.turn == Takes::Changes || self.groups.wants_changes || !are_rewrites_due;
        let change = changes.due_change().filter(|_| takes_changes && is_turn);
        let (takes, due) = match change {
            Some(due) => (Takes::Changes, due),
            None => (Takes::Rewrites, changes.due_rewrite().filter(|_| are_rewrites_due)?),
        };
        self.groups.begin(takes);
        Some(due)
    }

    /// Whether there are keys to be rewritten, and they fill a write, or no more come before some are written.
    fn are_rewrites_due(&self, processor: &mut Processor) -> bool {
        let changes = processor.pairs_mut().changes();
        let is_full = changes.rewrite_bytes() >= self.headroom.gathered_bytes;
        let may_grow = self.cleaner.is_collecting(changes.rewrite_count()) && !self.fetches.await_memory;
        changes.rewrite_count() > 0 && (is_full || !may_grow)
    }

    /// Whether a record can begin at this position of the head, in the rest of the buffer, with the end of its group
    /// behind it.
    fn has_place(&self, position: u64, head: &Head, room: usize) -> bool {
        let record_bytes = head.record_bytes();
        let end_bytes = if head.kind == Kind::GroupEnd { 0 } else { RECORD_EXTRA_BYTES };
        let is_there = if self.is_large(record_bytes) {
            room >= self.settings.block_bytes as usize
        } else {
            record_bytes + end_bytes <= room
        };
        let left_bytes = self.settings.segment_bytes.saturating_sub(position);
        if record_bytes as u64 <= left_bytes {
            return is_there;
        }
        // The end of the segment may be the end of the buffer, too.
        let is_there = room as u64 >= left_bytes.min(self.settings.block_bytes);
        is_there && self.is_begun_in(left_bytes, head)
    }

    /// Whether a record that does not fit in the rest of the head is begun there: its value is longer than a block, and
    /// the next segment can follow.
    fn is_begun_in(&self, left_bytes: u64, head: &Head) -> bool {
        let is_long = head.kind == Kind::Pair && head.value_bytes as u64 > self.settings.block_bytes;
        is_long && left_bytes >= BEGUN_BYTES_MIN as u64 && self.usable_count() > 0
    }

    /// Whether a record may take several writes.
    fn is_large(&self, record_bytes: usize) -> bool {
        record_bytes > PIECE_BYTES - self.settings.block_bytes as usize
    }

    /// The present state of a key that is due.
    fn find(&self, processor: &Processor, due: &Due) -> Found {
        let none = |kind, key_bytes| Found {
            head: Head {
                kind,
                key_bytes,
                marks: 0,
                value_bytes: 0,
                flags: 0,
                cas: processor.writer.next_cas,
                expiry_s: 0,
                is_first: false,
            },
            item: None,
        };
        let (hash, key) = match due {
            Due::Clear => return none(Kind::Cleared, 0),
            Due::GroupEnd => {
                let Found { head, item } = none(Kind::GroupEnd, 0);
                let record_count = self.groups.current.map_or(0, |group| group.record_count);
                let log_s = processor.clock().log_s();
                return Found { head: Head { flags: record_count, expiry_s: log_s, ..head }, item };
            }
            Due::Key { hash, key, length, .. } => (*hash, &key[..*length]),
        };
        let Some(place) = processor.pairs().locate(hash, key) else {
            return none(Kind::Removed, key.len());
        };
        let item = place.item().expect("with a log, pairs lie outside of the index");
        let Header { cas, expiry, bits, .. } = processor.pairs().heap.header(item);
        if processor.pairs().is_lost(item) {
            let Found { head, item } = none(Kind::Lost, key.len());
            return Found { head: Head { cas, ..head }, item };
        }
        let head = Head {
            kind: Kind::Pair,
            key_bytes: key.len(),
            marks: bits & MARKS,
            value_bytes: processor.pairs().heap.pair_bytes(item) - key.len(),
            flags: processor.attributes(place).flags,
            cas,
            expiry_s: processor.clock().logged(expiry),
            is_first: false,
        };
        Found { head, item: Some(item) }
    }

    pub(super) fn head_end(&self) -> u64 {
        self.segments.back().map_or(0, |segment| segment.end)
    }

    /// Whether a write that begins with a record, behind the names of those before it, fits in the head.
    fn fits_next(&self, found: &Found) -> bool {
        let start = self.head_end() + self.head.names.record_bytes() as u64;
        let left_bytes = self.settings.segment_bytes.saturating_sub(start);
        let fits = found.head.record_bytes() as u64 <= left_bytes;
        self.head.is_own && (fits || self.is_begun_in(left_bytes, &found.head))
    }

    /// Whether the next segment can begin: one is free, and everything before it is durable.
    fn can_roll(&mut self) -> bool {
        if self.settings.sync == Sync::None && self.flushes.is_unflushed() {
            self.flushes.want_now();
            return false;
        }
        self.usable_count() > 0
    }

    /// Begins the next segment. Writes its header to `into`.
    fn roll(&mut self, next_cas: u64, into: &mut [u8]) {
        let (_, slot) = self.free.pop_front().expect("looked at before");
        let generation = self.superblock.recorded.newest + 1;
        let run = self.settings.run;
        let header = SegmentHeader {
            log: self.settings.identity,
            run,
            generation,
            oldest: self.segments.front().map_or(generation, |first| first.generation),
            previous_end: self.head_end(),
            previous_run: self.segments.back().map_or(0, |last| last.run),
            next_cas,
            is_ordered: self.settings.sync != Sync::None,
        };
        into.fill(0);
        header.encode(into);
        let last = self.segments.back().map_or(0, |last| last.generation);
        debug_assert!(generation > last, "generations go back from {last} to {generation}");
        self.segments.push_back(Segment { run, generation, slot, end: 0, rest_at: 0 });
        self.head.is_own = true;
        self.head.durable_end = 0;
    }

    /// Writes the superblock that is not the last one written, with the present extent of the log.
    fn write_superblock(&mut self, processor: &mut Processor, buffer: &mut [u8]) -> Write {
        let (last, is_over) = (self.superblock.recorded, self.is_over(processor));
        let (newest, run) = self.segments.back().map_or((0, 0), |head| (head.generation, head.run));
        let superblock = LogSuperblock {
            log: self.settings.identity,
            sequence: last.sequence + 1,
            oldest: self.segments.front().map_or(last.oldest, |first| first.generation),
            newest,
            run,
            known_end: self.head.durable_end,
            is_closed: !self.head.is_own || is_over,
            next_cas: processor.writer.next_cas,
            time: Some(processor.clock().log_time(is_over)),
        };
        // Before that, the last one is of an earlier start, and may have any time.
        if let (Phase::Ready, Some(before), Some(now)) = (&self.phase, last.time, superblock.time) {
            let (before_s, now_s) = (before.log_s, now.log_s);
            debug_assert!(now_s >= before_s, "the time of the log goes back from {before_s} s to {now_s} s");
        }
        buffer.fill(0);
        superblock.encode(buffer);
        // A power cut may take back bytes that are not durable: that is no damage.
        if self.head.names.generation == newest && self.head_end() == self.head.durable_end {
            self.head.names.to = self.head_end();
            self.head.names.encode_behind(&superblock, buffer);
        }
        self.flight = Some(Flight::Superblock(superblock));
        let offset = self.settings.superblock_start + superblock.copy() * self.settings.block_bytes;
        Write { offset, length: buffer.len(), is_durable: true }
    }

    /// Fills a buffer of [`PIECE_BYTES`] with the next write. `None` if there is nothing to write.
    pub fn fill(&mut self, processor: &mut Processor, buffer: &mut [u8]) -> Option<Write> {
        let buffer = &mut buffer[..PIECE_BYTES];
        let block_bytes = self.settings.block_bytes as usize;
        if matches!(self.phase, Phase::Settling { .. }) {
            return Some(self.write_superblock(processor, &mut buffer[..block_bytes]));
        }
        if !self.wants_write(processor) {
            return None;
        }
        if self.needs_superblock(processor) {
            return Some(self.write_superblock(processor, &mut buffer[..block_bytes]));
        }
        let mut at = 0;
        let must_roll = match &self.head.stream {
            Some(stream) => stream.awaits_segment(),
            None => {
                let due = self.next_due(processor)?;
                !self.fits_next(&self.find(processor, &due))
            }
        };
        if must_roll {
            self.roll(processor.writer.next_cas, &mut buffer[..block_bytes]);
            at = block_bytes;
        }
        let Segment { generation, slot, end: start, .. } = *self.segments.back().expect("there is a head");
        let slot_start = self.slot_start(slot);
        let buffer = self.within_segment(start, buffer);
        let first_position = start + at as u64;
        let streamed = self.head.stream.as_ref().map(|stream| stream.log_offset);
        let (mut written, mut has_names) = (None, false);
        if must_roll && streamed.is_some() {
            let location = Location { run: self.settings.run, generation, position: first_position };
            at += self.write_names(location, first_position, &mut buffer[at..]);
            let location = Location { position: start + at as u64, ..location };
            at += self.write_rest(location, first_position, &mut buffer[at..]);
            has_names = true;
        }
        while written.is_none() {
            if let Some(stream) = &mut self.head.stream {
                at += stream.write_part(processor, &mut buffer[at..]);
                if !stream.is_complete() {
                    break;
                }
                let stream = self.head.stream.take().expect("just seen");
                processor.pairs_mut().heap.unpin(stream.pin);
            }
            let Some(mut due) = self.next_due(processor) else { break };
            let mut found = self.find(processor, &due);
            if !std::mem::replace(&mut has_names, true) && !self.defers_names(generation, at, &found) {
                let location = Location { run: self.settings.run, generation, position: start + at as u64 };
                at += self.write_names(location, first_position, &mut buffer[at..]);
            }
            let position = start + at as u64;
            let has_place = |found: &Found| self.has_place(position, &found.head, PIECE_BYTES - at);
            if !has_place(&found) {
                if !matches!(due, Due::Key { is_rewrite: true, .. }) {
                    break;
                }
                // The next group rewrites it.
                due = Due::GroupEnd;
                found = self.find(processor, &due);
                if !has_place(&found) {
                    break;
                }
            }
            let Found { mut head, item } = found;
            let (mut part_bytes, left_bytes) = (head.record_bytes(), self.settings.segment_bytes - position);
            if part_bytes as u64 > left_bytes {
                (head.kind, part_bytes) = (Kind::Begun, left_bytes as usize);
            }
            processor.pairs_mut().changes().take(&due);
            let key = match &due {
                Due::Key { key, length, .. } => &key[..*length],
                Due::Clear | Due::GroupEnd => &[],
            };
            self.cleaner.rewrites_taken += u64::from(matches!(due, Due::Key { is_rewrite: true, .. }));
            self.counters.record_count += u64::from(!matches!(due, Due::GroupEnd));
            let location = Location { run: self.settings.run, generation, position };
            let head = Head { is_first: position == first_position, ..head };
            let mut checksum = head.encode(key, location, &mut buffer[at..]);
            at += HEAD_BYTES + key.len();
            let log_offset = slot_start + position;
            if let Some(group) = &mut self.groups.current {
                group.record_count += 1;
            }
            if !matches!(due, Due::GroupEnd) {
                self.head.names.names.push(name_of(key));
            }
            if let Some(item) = item {
                self.superblock.expires_until_s = self.superblock.expires_until_s.max(head.expiry_s);
                processor.pairs_mut().set_log_offset(item, log_offset);
                if self.is_large(head.record_bytes()) || head.kind == Kind::Begun {
                    let heap = &mut processor.pairs_mut().heap;
                    let pin = heap.pin(PairPlace::of_item(item)).expect("it is an item");
                    let (part_end, key) = (head.value_bytes_in(part_bytes), key.into());
                    let (done, tail_done) = (0, 0);
                    self.head.stream =
                        Some(Stream { pin, head, key, part_end, done, tail_done, checksum, log_offset });
                    continue;
                }
                for part in processor.pairs().heap.item_value(item).parts() {
                    checksum.update(part);
                    buffer[at..at + part.len()].copy_from_slice(part);
                    at += part.len();
                }
            }
            buffer[at..at + TAIL_BYTES].copy_from_slice(&checksum.finish().to_le_bytes());
            at += TAIL_BYTES;
            if matches!(due, Due::GroupEnd) {
                written = Some(self.end_group(processor));
            }
        }
        if let Some(group) = &mut self.groups.current {
            group.is_continued = true;
        }
        let length = at.next_multiple_of(block_bytes);
        debug_assert!(length > 0, "what fits is written");
        buffer[at..length].fill(0);
        let end = start + length as u64;
        self.flight = Some(Flight::Records { end, written });
        let journal = processor.pairs_mut().journal.as_mut().expect("there is a log");
        journal.in_flight = slot_start + start..slot_start + end;
        journal.streamed = streamed;
        // A superblock names the segment next: no power cut may take it back then.
        let is_durable = self.settings.sync != Sync::None || must_roll;
        Some(Write { offset: slot_start + start, length, is_durable })
    }

    /// Whether few names are left to a later write, since this one, whose next record is at this byte of it, would take
    /// one more block for them.
    fn defers_names(&self, generation: u64, at: usize, next: &Found) -> bool {
        let bytes = at + next.head.record_bytes() + RECORD_EXTRA_BYTES;
        let blocks = |bytes: usize| bytes.div_ceil(self.settings.block_bytes as usize);
        let is_longer = blocks(bytes) < blocks(bytes + self.head.names.record_bytes());
        is_longer
            && self.head.names.generation == generation
            && self.head.names.names.len() < DEFERRED_NAMES_MAX
    }

    /// Writes the names of the records before this location, if there is place for them, and begins the next list.
    /// Returns the bytes written. Without a list it is unknown what damage there may hide.
    fn write_names(&mut self, location: Location, first_position: u64, into: &mut [u8]) -> usize {
        let Location { generation, position, .. } = location;
        let record_bytes = self.head.names.record_bytes();
        let head =
            Head { is_first: position == first_position, ..Head::names(self.head.names.value_bytes()) };
        let is_written = record_bytes > 0 && self.has_place(position, &head, into.len());
        if is_written {
            let is_before = |segment: &&Segment| segment.generation == self.head.names.generation;
            let before = self.segments.iter().rev().find(is_before);
            self.head.names.to = if self.head.names.generation == generation {
                position
            } else {
                before.map_or(self.head.names.from, |segment| segment.end)
            };
            let mut checksum = head.encode(&[], location, into);
            let value = &mut into[HEAD_BYTES..record_bytes - TAIL_BYTES];
            self.head.names.encode(value);
            checksum.update(value);
            into[record_bytes - TAIL_BYTES..record_bytes].copy_from_slice(&checksum.finish().to_le_bytes());
        }
        self.head.names.restart(generation, position);
        if is_written { record_bytes } else { 0 }
    }

    /// The part of a buffer that fits in the segment from a position on.
    fn within_segment<'a>(&self, position: u64, buffer: &'a mut [u8]) -> &'a mut [u8] {
        let room = usize::try_from(self.settings.segment_bytes - position).unwrap_or(usize::MAX);
        let length = room.min(buffer.len());
        &mut buffer[..length]
    }

    /// Writes the head of the rest of a value that was begun in the segment before. Returns the bytes written.
    fn write_rest(&mut self, location: Location, first_position: u64, into: &mut [u8]) -> usize {
        let stream = self.head.stream.as_mut().expect("it was begun");
        let value_bytes = stream.head.value_bytes - stream.done;
        let is_first = location.position == first_position;
        let head = Head { kind: Kind::Rest, value_bytes, is_first, ..stream.head };
        stream.checksum = head.encode(&stream.key, location, into);
        (stream.part_end, stream.tail_done) = (stream.head.value_bytes, 0);
        self.segments.back_mut().expect("it has begun").rest_at = location.position;
        HEAD_BYTES + stream.key.len()
    }

    /// Ends a group. Returns the changes that are written once its last write is.
    fn end_group(&mut self, processor: &mut Processor) -> Written {
        let group = self.groups.current.take().expect("it has an end");
        (self.groups.turn, self.groups.wants_changes) = match group.takes {
            Takes::Changes => (Takes::Rewrites, false),
            Takes::Rewrites => (Takes::Changes, self.groups.wants_changes),
        };
        Written { taken: processor.pairs_mut().changes().taken(), rewrites: self.cleaner.rewrites_taken }
    }

    /// Handles a completed write.
    pub fn on_written(&mut self, processor: &mut Processor, is_good: bool) {
        let Some(flight) = self.flight.take() else { return };
        if !is_good {
            return self.fail(Failure::Unwritable);
        }
        self.fetches.await_memory = false;
        match flight {
            Flight::Superblock(superblock) => {
                self.superblock.recorded = superblock;
                self.superblock.is_mark_wanted = false;
                if matches!(self.phase, Phase::Settling { .. }) {
                    self.phase = Phase::Ready;
                }
            }
            Flight::Records { end, written } => {
                let head = self.segments.back_mut().expect("there is a head");
                self.counters.write_count += 1;
                self.counters.written_bytes += end - head.end;
                debug_assert!(end > head.end, "the head of the log goes back from {} to {end}", head.end);
                head.end = end;
                self.flushes.on_written(self.settings.sync != Sync::None);
                let journal = processor.pairs_mut().journal.as_mut().expect("there is a log");
                journal.in_flight = 0..0;
                journal.streamed = self.head.stream.as_ref().map(|stream| stream.log_offset);
                if written.is_some() && !self.flushes.is_unflushed() {
                    let before = self.head.durable_end;
                    debug_assert!(end >= before, "the durable end goes back from {before} to {end}");
                    self.head.durable_end = end;
                }
                if let Some(Written { taken, rewrites }) = written {
                    let before = self.flushes.written;
                    debug_assert!(taken >= before, "written changes go back from {before} to {taken}");
                    self.flushes.written = taken;
                    self.cleaner.rewrites_written = rewrites;
                }
            }
        }
        if self.settings.sync != Sync::None {
            self.settle_written(processor);
        }
        self.advance_cleaning(processor);
    }
}

impl Groups {
    fn begin(&mut self, takes: Takes) {
        self.current = Some(Group { takes, record_count: 0, is_continued: false });
    }

    /// Whether no record of a group is written without the others.
    pub(super) fn is_between(&self) -> bool {
        self.current.is_none_or(|group| group.record_count == 0)
    }
}

impl Stream {
    /// Whether all is written.
    fn is_complete(&self) -> bool {
        self.is_part_complete() && self.part_end == self.head.value_bytes
    }

    /// Whether the rest follows in the next segment.
    fn awaits_segment(&self) -> bool {
        self.is_part_complete() && self.part_end < self.head.value_bytes
    }

    fn is_part_complete(&self) -> bool {
        self.tail_done == TAIL_BYTES
    }

    fn write_part(&mut self, processor: &Processor, into: &mut [u8]) -> usize {
        let mut at = 0;
        while at < into.len() && self.done < self.part_end {
            let part = processor.pairs().heap.pinned(&self.pin).part(self.done);
            let part = &part[..part.len().min(into.len() - at).min(self.part_end - self.done)];
            self.checksum.update(part);
            into[at..at + part.len()].copy_from_slice(part);
            at += part.len();
            self.done += part.len();
        }
        while at < into.len() && self.done == self.part_end && !self.is_part_complete() {
            into[at] = self.checksum.finish().to_le_bytes()[self.tail_done];
            self.tail_done += 1;
            at += 1;
        }
        at
    }
}
