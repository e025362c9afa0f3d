//! Writing a log offline, from pairs that were read from another one.

use std::io;

use super::examine::{Examined, Kept};
use super::names::NameList;
use super::segment_bytes::ReadAt;
use super::write::BEGUN_BYTES_MIN;
use super::{LogSettings, PIECE_BYTES, SUPERBLOCK_COUNT};
use crate::key::name_of;
use crate::log_header::{LogSuperblock, SegmentHeader};
use crate::record::{HEAD_BYTES, Head, Kind, Location, NAME_BYTES, RECORD_EXTRA_BYTES, TAIL_BYTES};

/// Writes bytes of the file at an offset.
pub type WriteAt<'a> = dyn FnMut(u64, &[u8]) -> io::Result<()> + 'a;

/// Writes a log of pairs of another one: segments, then superblocks that say that it is complete. The file is all
/// zeros before.
///
/// # Errors
/// If a file cannot be read or written, or the pairs do not fit.
pub fn rebuild(
    settings: &LogSettings,
    examined: &Examined,
    kept: &[Kept<'_>],
    read: &mut ReadAt<'_>,
    write: &mut WriteAt<'_>,
) -> io::Result<()> {
    let block_bytes = settings.block_bytes as usize;
    let next_cas = examined.next_cas();
    let segment = SegmentWriter { write, start: 0, written_bytes: 0, pending: Vec::new() };
    let names = NameList::default();
    let mut log =
        LogWriter { settings, next_cas, generation: 0, previous_end: 0, record_count: 0, names, segment };
    for pair in kept {
        log.write_pair(pair, read)?;
    }
    if log.generation > 0 {
        log.end_segment()?;
    }
    if log.record_count > 0 {
        log.begin_segment()?;
        log.end_segment()?;
    }
    let LogWriter { generation, previous_end, mut names, segment, .. } = log;
    for sequence in 0..SUPERBLOCK_COUNT as u64 {
        let superblock = LogSuperblock {
            log: settings.identity,
            sequence,
            oldest: 1,
            newest: generation,
            run: if generation == 0 { 0 } else { settings.run },
            known_end: previous_end,
            is_closed: true,
            next_cas,
            time: examined.time,
        };
        let mut block = vec![0; block_bytes];
        superblock.encode(&mut block);
        names.to = previous_end;
        names.encode_behind(&superblock, &mut block);
        (segment.write)(settings.superblock_start + superblock.copy() * settings.block_bytes, &block)?;
    }
    Ok(())
}

/// The segments of a log as they are written, one after the other.
struct LogWriter<'a, 'b> {
    settings: &'a LogSettings,
    next_cas: u64,
    /// Generation of the segment; 0 before the first one.
    generation: u64,
    /// End of the segment before.
    previous_end: u64,
    /// Records of the group. It ends with a segment, if there is room for its end.
    record_count: u32,
    names: NameList,
    segment: SegmentWriter<'a, 'b>,
}

impl LogWriter<'_, '_> {
    fn write_pair(&mut self, pair: &Kept<'_>, read: &mut ReadAt<'_>) -> io::Result<()> {
        let (block_bytes, segment_bytes) = (self.settings.block_bytes as usize, self.settings.segment_bytes);
        let record_bytes = pair.record_bytes as usize;
        let mut needed_bytes = self.names.record_bytes() + record_bytes + RECORD_EXTRA_BYTES;
        if pair.head.value_bytes > block_bytes {
            // There is room for a part of a long one.
            needed_bytes = needed_bytes.min(self.names.record_bytes() + NAME_BYTES + BEGUN_BYTES_MIN);
        }
        if self.generation == 0 || self.segment.len() + needed_bytes > segment_bytes as usize {
            if self.generation > 0 {
                self.end_segment()?;
            }
            self.begin_segment()?;
        }
        self.add_name(pair.key);
        self.record_count += 1;
        let left_bytes = segment_bytes as usize - self.segment.len();
        let mut value = PairValue { parts: pair.value, read, piece: Vec::new() };
        if record_bytes <= left_bytes {
            return self.write_record(pair.head, pair.key, record_bytes, &mut value);
        }
        let head = Head { kind: Kind::Begun, ..pair.head };
        let rest_bytes = pair.head.value_bytes - head.value_bytes_in(left_bytes);
        self.write_record(head, pair.key, left_bytes, &mut value)?;
        self.end_segment()?;
        self.begin_segment()?;
        let head = Head { kind: Kind::Rest, value_bytes: rest_bytes, ..pair.head };
        self.write_record(head, pair.key, head.record_bytes(), &mut value)
    }

    /// Adds the name of the next record. If the list becomes too long for a superblock, it is written, and another one
    /// begins with that name.
    fn add_name(&mut self, key: &[u8]) {
        self.names.names.push(name_of(key));
        if !self.names.fits_behind(self.settings.block_bytes as usize) {
            self.names.names.pop();
            self.names.to = self.segment.len() as u64;
            self.write_names(false);
            self.names.names.push(name_of(key));
        }
    }

    /// Writes a record of this length, with as much of the value as there is place for.
    fn write_record(
        &mut self,
        head: Head,
        key: &[u8],
        record_bytes: usize,
        value: &mut PairValue<'_, '_>,
    ) -> io::Result<()> {
        let is_first = self.segment.len() == self.settings.block_bytes as usize;
        let (head, location) = (Head { is_first, ..head }, self.location());
        let mut checksum = head.encode(key, location, self.segment.next(HEAD_BYTES + key.len()));
        let mut left_bytes = head.value_bytes_in(record_bytes);
        while left_bytes > 0 {
            let piece = value.next(left_bytes)?;
            left_bytes -= piece.len();
            checksum.update(piece);
            self.segment.next(piece.len()).copy_from_slice(piece);
            self.segment.write_pieces()?;
        }
        self.segment.next(TAIL_BYTES).copy_from_slice(&checksum.finish().to_le_bytes());
        self.segment.write_pieces()
    }

    /// Begins the next segment.
    fn begin_segment(&mut self) -> io::Result<()> {
        let LogSettings { identity, run, start, segment_bytes, segment_count, .. } = *self.settings;
        self.generation += 1;
        if self.generation > segment_count {
            return Err(io::Error::other("the pairs do not fit in a log of this size"));
        }
        let header = SegmentHeader {
            log: identity,
            run,
            generation: self.generation,
            oldest: 1,
            previous_end: self.previous_end,
            previous_run: if self.generation == 1 { 0 } else { run },
            next_cas: self.next_cas,
            is_ordered: true,
        };
        (self.segment.start, self.segment.written_bytes) = (start + (self.generation - 1) * segment_bytes, 0);
        header.encode(self.segment.next(self.settings.block_bytes as usize));
        self.names.to = self.previous_end;
        self.write_names(true);
        Ok(())
    }

    /// Writes the names of the records before, if there are any, and begins the next list.
    fn write_names(&mut self, is_first: bool) {
        let location = self.location();
        if self.names.generation > 0 {
            let head = Head { is_first, ..Head::names(self.names.value_bytes()) };
            let mut checksum = head.encode(&[], location, self.segment.next(HEAD_BYTES));
            let value = self.segment.next(head.value_bytes);
            self.names.encode(value);
            checksum.update(value);
            self.segment.next(TAIL_BYTES).copy_from_slice(&checksum.finish().to_le_bytes());
        }
        self.names.restart(location.generation, location.position);
    }

    /// Ends the segment, and with it the group if there is room for that.
    fn end_segment(&mut self) -> io::Result<()> {
        if self.segment.len() + RECORD_EXTRA_BYTES <= self.settings.segment_bytes as usize {
            self.end_group();
        }
        let end = self.segment.len().next_multiple_of(self.settings.block_bytes as usize);
        self.segment.next(end - self.segment.len());
        self.segment.write_pending()?;
        self.previous_end = end as u64;
        Ok(())
    }

    fn end_group(&mut self) {
        let head = Head {
            kind: Kind::GroupEnd,
            key_bytes: 0,
            marks: 0,
            value_bytes: 0,
            flags: std::mem::take(&mut self.record_count),
            cas: 0,
            expiry_s: 0,
            is_first: false,
        };
        let location = self.location();
        let checksum = head.encode(&[], location, self.segment.next(HEAD_BYTES));
        self.segment.next(TAIL_BYTES).copy_from_slice(&checksum.finish().to_le_bytes());
    }

    /// Where the next record begins.
    fn location(&self) -> Location {
        let position = self.segment.len() as u64;
        Location { run: self.settings.run, generation: self.generation, position }
    }
}

/// The value of a pair in another log, read piece by piece.
struct PairValue<'a, 'b> {
    /// The parts left to be read: the first byte in the file, and the length.
    parts: [(u64, usize); 2],
    read: &'a mut ReadAt<'b>,
    piece: Vec<u8>,
}

impl PairValue<'_, '_> {
    /// The next bytes, at most `count`.
    fn next(&mut self, count: usize) -> io::Result<&[u8]> {
        let at = usize::from(self.parts[0].1 == 0);
        let (offset, left_bytes) = &mut self.parts[at];
        self.piece.resize(count.min(*left_bytes).min(PIECE_BYTES), 0);
        (self.read)(*offset, &mut self.piece)?;
        *offset += self.piece.len() as u64;
        *left_bytes -= self.piece.len();
        Ok(&self.piece)
    }
}

/// A segment that is written in pieces.
struct SegmentWriter<'a, 'b> {
    write: &'a mut WriteAt<'b>,
    /// First byte of the segment in the file.
    start: u64,
    written_bytes: usize,
    /// The next bytes.
    pending: Vec<u8>,
}

impl SegmentWriter<'_, '_> {
    fn len(&self) -> usize {
        self.written_bytes + self.pending.len()
    }

    /// The next bytes, still zero.
    fn next(&mut self, count: usize) -> &mut [u8] {
        let at = self.pending.len();
        self.pending.resize(at + count, 0);
        &mut self.pending[at..]
    }

    /// Writes the pending bytes, if they are many.
    fn write_pieces(&mut self) -> io::Result<()> {
        if self.pending.len() >= PIECE_BYTES { self.write_pending() } else { Ok(()) }
    }

    fn write_pending(&mut self) -> io::Result<()> {
        (self.write)(self.start + self.written_bytes as u64, &self.pending)?;
        self.written_bytes += self.pending.len();
        self.pending.clear();
        Ok(())
    }
}
