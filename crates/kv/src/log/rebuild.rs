//! Writing a log offline, from pairs that were read from another one.

use std::io;

use super::examine::{Examined, Kept, ReadAt};
use super::{LogSettings, SUPERBLOCK_COUNT};
use crate::log_header::{LogSuperblock, SegmentHeader};
use crate::record::{Head, Kind, Location, RECORD_EXTRA_BYTES, TAIL_BYTES};

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
    let (mut generation, mut previous_end, mut segment) = (0, 0, Vec::new());
    let mut record_count = 0;
    let at = |generation| Location { run, generation, position: 0 };
    let slot_start = |generation: u64| settings.start + (generation - 1) * settings.segment_bytes;
    for pair in kept {
        let record_bytes = pair.record_bytes as usize;
        // Each segment is a group, whose end is a record.
        let has_room = segment.len() + record_bytes + RECORD_EXTRA_BYTES <= settings.segment_bytes as usize;
        if generation == 0 || !has_room {
            if generation > 0 {
                previous_end = end_segment(&mut segment, record_count, at(generation), block_bytes);
                record_count = 0;
                write(slot_start(generation), &segment)?;
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
            segment.clear();
            segment.resize(block_bytes, 0);
            header.encode(&mut segment);
        }
        record_count += 1;
        let position = segment.len();
        let head = Head { is_first: position == block_bytes, ..pair.head };
        segment.resize(position + record_bytes, 0);
        let record = &mut segment[position..];
        let mut checksum =
            head.encode(pair.key, Location { run, generation, position: position as u64 }, record);
        let value_at = record_bytes - TAIL_BYTES - head.value_bytes;
        let (value, tail) = record[value_at..].split_at_mut(head.value_bytes);
        read(pair.value_offset, value)?;
        checksum.update(value);
        tail.copy_from_slice(&checksum.finish().to_le_bytes());
    }
    if generation > 0 {
        previous_end = end_segment(&mut segment, record_count, at(generation), block_bytes);
        write(slot_start(generation), &segment)?;
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
        };
        let mut block = vec![0; block_bytes];
        superblock.encode(&mut block);
        write(settings.superblock_start + superblock.copy() * settings.block_bytes, &block)?;
    }
    Ok(())
}

/// Ends the group of a segment, and fills its last block. Returns the segment's end.
fn end_segment(segment: &mut Vec<u8>, record_count: u32, location: Location, block_bytes: usize) -> u64 {
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
    let position = segment.len();
    segment.resize(position + RECORD_EXTRA_BYTES, 0);
    let location = Location { position: position as u64, ..location };
    let checksum = head.encode(&[], location, &mut segment[position..]);
    segment[position + RECORD_EXTRA_BYTES - TAIL_BYTES..].copy_from_slice(&checksum.finish().to_le_bytes());
    segment.resize(segment.len().next_multiple_of(block_bytes), 0);
    segment.len() as u64
}
