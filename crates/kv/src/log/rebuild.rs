//! Writing a log offline, from pairs that were read from another one.

use std::io;

use super::examine::{Examined, Kept};
use super::names::NameList;
use super::segment_bytes::ReadAt;
use super::{LogSettings, PIECE_BYTES, SUPERBLOCK_COUNT};
use crate::key::name_of;
use crate::log_header::{LogSuperblock, SegmentHeader};
use crate::record::{HEAD_BYTES, Head, Kind, Location, RECORD_EXTRA_BYTES, TAIL_BYTES};

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
    let (run, next_cas) = (settings.run, examined.next_cas());
    let (mut generation, mut previous_end) = (0, 0);
    let mut segment = SegmentWriter { write, start: 0, written_bytes: 0, pending: Vec::new() };
    let mut piece = Vec::new();
    let mut record_count = 0;
    let mut names = NameList::default();
    let at = |generation| Location { run, generation, position: 0 };
    let slot_start = |generation: u64| settings.start + (generation - 1) * settings.segment_bytes;
    for pair in kept {
        let record_bytes = pair.record_bytes as usize;
        // Each segment is a group, whose end is a record.
        let needed_bytes = names.record_bytes() + record_bytes + RECORD_EXTRA_BYTES;
        let has_room = segment.len() + needed_bytes <= settings.segment_bytes as usize;
        if generation == 0 || !has_room {
            if generation > 0 {
                previous_end = end_segment(&mut segment, record_count, at(generation), block_bytes)?;
                record_count = 0;
            }
            generation += 1;
            if generation > settings.segment_count {
                return Err(io::Error::other("the pairs do not fit in a log of this size"));
            }
            let header = SegmentHeader {
                log: settings.identity,
                run,
                generation,
                oldest: 1,
                previous_end,
                previous_run: if generation == 1 { 0 } else { run },
                next_cas,
                is_ordered: true,
            };
            (segment.start, segment.written_bytes) = (slot_start(generation), 0);
            header.encode(segment.next(block_bytes));
            names.to = previous_end;
            write_names(&mut segment, &mut names, at(generation), true);
        }
        names.names.push(name_of(pair.key));
        if !names.fits_behind(block_bytes) {
            names.names.pop();
            names.to = segment.len() as u64;
            write_names(&mut segment, &mut names, at(generation), false);
            names.names.push(name_of(pair.key));
        }
        record_count += 1;
        let position = segment.len();
        let head = Head { is_first: position == block_bytes, ..pair.head };
        let location = Location { run, generation, position: position as u64 };
        let keyed = segment.next(record_bytes - TAIL_BYTES - head.value_bytes);
        let mut checksum = head.encode(pair.key, location, keyed);
        for from in (0..head.value_bytes).step_by(PIECE_BYTES) {
            piece.resize(PIECE_BYTES.min(head.value_bytes - from), 0);
            read(pair.value_offset + from as u64, &mut piece)?;
            checksum.update(&piece);
            segment.next(piece.len()).copy_from_slice(&piece);
            segment.write_pieces()?;
        }
        segment.next(TAIL_BYTES).copy_from_slice(&checksum.finish().to_le_bytes());
        segment.write_pieces()?;
    }
    if generation > 0 {
        previous_end = end_segment(&mut segment, record_count, at(generation), block_bytes)?;
    }
    for sequence in 0..SUPERBLOCK_COUNT as u64 {
        let superblock = LogSuperblock {
            log: settings.identity,
            sequence,
            oldest: 1,
            newest: generation,
            run: if generation == 0 { 0 } else { run },
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

/// A segment that is written in pieces.
struct SegmentWriter<'a, 'b> {
    write: &'a mut WriteAt<'b>,
    /// First byte of the segment in the file.
    start: u64,
    written_bytes: usize,
    /// What comes next.
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

    /// Writes what is pending, if it is long.
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

/// Writes the names of the records before, if there are any, and begins the next list.
fn write_names(
    segment: &mut SegmentWriter<'_, '_>,
    names: &mut NameList,
    location: Location,
    is_first: bool,
) {
    let location = Location { position: segment.len() as u64, ..location };
    if names.generation > 0 {
        let head = Head { is_first, ..Head::names(names.value_bytes()) };
        let mut checksum = head.encode(&[], location, segment.next(HEAD_BYTES));
        let value = segment.next(head.value_bytes);
        names.encode(value);
        checksum.update(value);
        segment.next(TAIL_BYTES).copy_from_slice(&checksum.finish().to_le_bytes());
    }
    names.restart(location.generation, location.position);
}

/// Ends the group of a segment, and fills its last block. Returns the segment's end.
fn end_segment(
    segment: &mut SegmentWriter<'_, '_>,
    record_count: u32,
    location: Location,
    block_bytes: usize,
) -> io::Result<u64> {
    let head = Head {
        kind: Kind::GroupEnd,
        key_bytes: 0,
        marks: 0,
        value_bytes: 0,
        flags: record_count,
        cas: 0,
        expiry_s: 0,
        is_first: false,
    };
    let location = Location { position: segment.len() as u64, ..location };
    let checksum = head.encode(&[], location, segment.next(RECORD_EXTRA_BYTES - TAIL_BYTES));
    segment.next(TAIL_BYTES).copy_from_slice(&checksum.finish().to_le_bytes());
    let end = segment.len().next_multiple_of(block_bytes);
    segment.next(end - segment.len());
    segment.write_pending()?;
    Ok(end as u64)
}
