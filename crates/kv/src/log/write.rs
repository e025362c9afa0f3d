//! Writing: changes become records at the head.

use super::{Failure, Log, PIECE_BYTES, Phase, RESERVE_COUNT, Segment, Sync, Write};
use crate::changes::Due;
use crate::item::Header;
use crate::item::MARKS;
use crate::pins::Pin;
use crate::place::Place;
use crate::processor::Processor;
use crate::record::{Checksum, HEAD_BYTES, Head, Kind, Location, SegmentHeader, TAIL_BYTES};
use crate::stub::Stub;

/// A write under way, and the log's state once it completes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Flight {
    /// End of the head.
    end: u64,
    /// All changes up to this one are written.
    taken: u64,
    /// Number of keys rewritten for cleaning.
    rewrites: u64,
}

/// A record that takes several writes. Its value is kept unchanged meanwhile.
#[derive(Debug)]
pub(super) struct Stream {
    pin: Pin,
    /// Bytes of the value, and how many of them are written.
    value_bytes: usize,
    done: usize,
    checksum: Checksum,
    /// First byte of the record in the file.
    log_offset: u64,
    /// Changes taken before it.
    taken: u64,
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
        if self.flight.is_some() || self.is_flushing {
            return false;
        }
        if self.stream.is_some() || self.needs_header_update() {
            return true;
        }
        let only_rewrites = self.is_short_of_segments();
        let Some(due) = self.due(processor, only_rewrites) else { return false };
        let found = self.find(processor, &due);
        self.fits(found.head.record_bytes()) || self.can_roll()
    }

    /// Whether segments are short, so that only writes that free segments may proceed.
    fn is_short_of_segments(&self) -> bool {
        self.usable_count() <= RESERVE_COUNT
    }

    /// Whether to rewrite the newest segment's header with a newer oldest generation: segments freed since it was
    /// written may not be overwritten before.
    fn needs_header_update(&self) -> bool {
        self.is_short_of_segments() && self.stream.is_none() && self.usable_count() < self.free.len()
    }

    fn due(&self, processor: &mut Processor, only_rewrites: bool) -> Option<Due> {
        processor.pairs_mut().changes().due(only_rewrites)
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
            },
            item: None,
        };
        let (hash, key) = match due {
            Due::Clear => return none(Kind::Cleared, 0),
            Due::Key { hash, key, length, .. } => (*hash, &key[..*length]),
        };
        let Some(place) = processor.pairs().locate(hash, key) else {
            return none(Kind::Removed, key.len());
        };
        let item = place.item().expect("with a log, pairs lie outside of the index");
        let Header { cas, expiry, bits, .. } = processor.pairs().heap.header(item);
        let head = Head {
            kind: Kind::Pair,
            key_bytes: key.len(),
            marks: bits & MARKS,
            value_bytes: processor.pairs().heap.pair_bytes(item) - key.len(),
            flags: processor.attributes(place).flags,
            cas,
            expiry_s: if expiry == 0 { 0 } else { processor.clock().base_s() + i64::from(expiry) },
        };
        Found { head, item: Some(item) }
    }

    fn head_end(&self) -> u64 {
        self.segments.back().map_or(0, |segment| segment.end)
    }

    fn fits(&self, bytes: usize) -> bool {
        self.has_head && self.head_end() + bytes as u64 <= self.settings.segment_bytes
    }

    /// Whether the next segment can begin: one is free, and everything before it is durable.
    fn can_roll(&mut self) -> bool {
        if self.settings.sync == Sync::None && self.is_unflushed {
            self.wants_flush_now = true;
            return false;
        }
        self.usable_count() > 0
    }

    /// Begins the next segment. Writes its header to `into`.
    fn roll(&mut self, next_cas: u64, into: &mut [u8]) {
        let (_, slot) = self.free.pop_front().expect("looked at before");
        let generation = self.segments.back().map_or(1, |last| last.generation + 1);
        let oldest = self.segments.front().map_or(generation, |first| first.generation);
        let header = SegmentHeader {
            log: self.settings.identity,
            run: self.settings.run,
            generation,
            oldest,
            previous_end: self.head_end(),
            next_cas,
        };
        into.fill(0);
        header.encode(into);
        let run = self.settings.run;
        self.segments.push_back(Segment { run, generation, slot, end: 0 });
        self.recorded_oldest = oldest;
        self.newest = Some(header);
        self.has_head = true;
    }

    /// Begins the first segment of an empty log, or rewrites the header of the newest: with the CAS number to go on with.
    fn settle_header(&mut self, processor: &mut Processor, buffer: &mut [u8]) -> Write {
        let next_cas = processor.writer.next_cas;
        let Some(header) = self.newest else {
            self.roll(next_cas, buffer);
            let slot = self.segments.back().expect("it has begun").slot;
            self.flight = Some(Flight { end: buffer.len() as u64, taken: 0, rewrites: 0 });
            return self.header_write(slot, buffer.len());
        };
        self.update_header(processor, SegmentHeader { next_cas, ..header }, buffer)
    }

    /// Rewrites the header of the newest segment with the current oldest generation. It fits in one sector, so a torn
    /// write leaves either the old or the new one.
    fn update_header(
        &mut self,
        processor: &mut Processor,
        header: SegmentHeader,
        buffer: &mut [u8],
    ) -> Write {
        let oldest = self.segments.front().expect("there is a newest").generation;
        let header = SegmentHeader { oldest, ..header };
        buffer.fill(0);
        header.encode(buffer);
        (self.newest, self.recorded_oldest) = (Some(header), oldest);
        let Segment { slot, end, .. } = *self.segments.back().expect("there is a newest");
        let taken = processor.pairs_mut().changes().taken();
        self.flight = Some(Flight { end, taken, rewrites: self.cleaner.rewrites_taken });
        self.header_write(slot, buffer.len())
    }

    fn header_write(&self, slot: u64, length: usize) -> Write {
        let is_durable = self.settings.sync != Sync::None;
        Write { offset: self.slot_start(slot), length, is_durable }
    }

    /// Fills a buffer of [`PIECE_BYTES`] with the next write. `None` if there is nothing to write.
    pub fn fill(&mut self, processor: &mut Processor, buffer: &mut [u8]) -> Option<Write> {
        let buffer = &mut buffer[..PIECE_BYTES];
        let block_bytes = self.settings.block_bytes as usize;
        if let Phase::Settling { is_header_written: false } = self.phase {
            return Some(self.settle_header(processor, &mut buffer[..block_bytes]));
        }
        if !self.wants_write(processor) {
            return None;
        }
        if let Some(header) = self.newest.filter(|_| self.needs_header_update()) {
            return Some(self.update_header(processor, header, &mut buffer[..block_bytes]));
        }
        let only_rewrites = self.is_short_of_segments();
        let mut at = 0;
        if self.stream.is_none() {
            let due = self.due(processor, only_rewrites)?;
            if !self.fits(self.find(processor, &due).head.record_bytes()) {
                self.roll(processor.writer.next_cas, &mut buffer[..block_bytes]);
                at = block_bytes;
            }
        }
        let Segment { generation, slot, end: start, .. } = *self.segments.back().expect("there is a head");
        let slot_start = self.slot_start(slot);
        let first_offset = self.stream.as_ref().map_or(slot_start + start, |stream| stream.log_offset);
        loop {
            if let Some(stream) = &mut self.stream {
                at += stream.write_part(processor, &mut buffer[at..]);
                if !stream.is_complete() {
                    break;
                }
                let stream = self.stream.take().expect("just seen");
                processor.pairs_mut().heap.unpin(stream.pin);
            }
            let Some(due) = self.due(processor, only_rewrites) else { break };
            let Found { head, item } = self.find(processor, &due);
            let record_bytes = head.record_bytes();
            let position = start + at as u64;
            let is_large = record_bytes > PIECE_BYTES - block_bytes;
            if position + record_bytes as u64 > self.settings.segment_bytes
                || !is_large && record_bytes > buffer.len() - at
                || is_large && buffer.len() - at < block_bytes
            {
                break;
            }
            if let (Due::Key { hash, key, length, is_rewrite, .. }, Some(item)) = (&due, item)
                && Stub::read(&processor.pairs().heap, item).is_some()
            {
                // Its value has been dropped from memory since.
                processor.pairs_mut().changes().take(&due);
                if *is_rewrite {
                    self.fetch_for_rewrite(processor, *hash, &key[..*length]);
                }
                continue;
            }
            let taken = processor.pairs_mut().changes().taken();
            processor.pairs_mut().changes().take(&due);
            let key = match &due {
                Due::Clear => &[],
                Due::Key { key, length, .. } => &key[..*length],
            };
            self.cleaner.rewrites_taken += u64::from(matches!(due, Due::Key { is_rewrite: true, .. }));
            self.counters.record_count += 1;
            let location = Location { run: self.settings.run, generation, position };
            head.encode(key, location, &mut buffer[at..]);
            at += HEAD_BYTES + key.len();
            let log_offset = slot_start + position;
            let mut checksum = Checksum::default();
            if let Some(item) = item {
                processor.pairs_mut().set_log_offset(item, log_offset);
                if is_large {
                    let heap = &mut processor.pairs_mut().heap;
                    let pin = heap.pin(Place::of_item(item)).expect("it is an item");
                    let value_bytes = head.value_bytes;
                    self.stream = Some(Stream { pin, value_bytes, done: 0, checksum, log_offset, taken });
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
        }
        if at == 0 {
            // What was due is in the log already: nothing is to be written for it.
            self.written = processor.pairs_mut().changes().taken();
            if !self.is_unflushed {
                processor.pairs_mut().changes().settle(self.written);
            }
            return None;
        }
        let length = at.next_multiple_of(block_bytes);
        buffer[at..length].fill(0);
        let changes = processor.pairs_mut().changes();
        let taken = self.stream.as_ref().map_or(changes.taken(), |stream| stream.taken);
        let end = start + length as u64;
        self.flight = Some(Flight { end, taken, rewrites: self.cleaner.rewrites_taken });
        let journal = processor.pairs_mut().journal.as_mut().expect("there is a log");
        journal.in_flight = first_offset..slot_start + end;
        Some(Write { offset: slot_start + start, length, is_durable: self.settings.sync != Sync::None })
    }

    /// Handles a completed write.
    pub fn on_written(&mut self, processor: &mut Processor, is_good: bool) {
        let Some(flight) = self.flight.take() else { return };
        if !is_good {
            return self.fail(Failure::Unwritable);
        }
        if let Phase::Settling { is_header_written } = &mut self.phase {
            *is_header_written = true;
        }
        let head = self.segments.back_mut().expect("there is a head");
        self.counters.write_count += 1;
        self.counters.written_bytes += flight.end - head.end;
        head.end = flight.end;
        self.written = flight.taken;
        self.fetches_await_memory = false;
        if self.stream.is_none() {
            processor.pairs_mut().journal.as_mut().expect("there is a log").in_flight = 0..0;
            self.cleaner.rewrites_written = flight.rewrites;
        }
        if self.settings.sync == Sync::None {
            self.is_unflushed = true;
        } else {
            processor.pairs_mut().changes().settle(flight.taken);
            self.cleaner.on_settled();
        }
        self.advance_cleaning(processor);
    }
}

impl Stream {
    /// Bytes still to be written, including the checksum.
    fn is_complete(&self) -> bool {
        self.done == self.value_bytes + TAIL_BYTES
    }

    fn write_part(&mut self, processor: &Processor, into: &mut [u8]) -> usize {
        let mut at = 0;
        while at < into.len() && self.done < self.value_bytes {
            let part = processor.pairs().heap.pinned(&self.pin).part(self.done);
            let part = &part[..part.len().min(into.len() - at)];
            self.checksum.update(part);
            into[at..at + part.len()].copy_from_slice(part);
            at += part.len();
            self.done += part.len();
        }
        while at < into.len() && self.done >= self.value_bytes && !self.is_complete() {
            into[at] = self.checksum.finish().to_le_bytes()[self.done - self.value_bytes];
            self.done += 1;
            at += 1;
        }
        at
    }
}
