//! How much of a log its pairs may fill, and the room that is kept for cleaning.
//!
//! ```text
//! all segments │ records of pairs …
//!              ├ stores of more end here
//!              │ the segment being filled, and what each round of cleaning gains at least
//!              │ reserve                               begun for cleaning only: stores wait meanwhile
//! ```
//! In each segment the header is no record, nor are the rest of the last block of each write, the list of names of the
//! write before, and an end that the next record does not fit in: little more than a block, since longer records are
//! begun there, and have a second head in the next segment. A name in a list counts as a part of its record.
//!
//! Rewriting the records of a segment may take more room than they took. If all records lie in the oldest segments, and
//! these are full to the last byte, the reserve covers that until cleaning comes to the first empty space. So cleaning
//! ends every shortage, whatever the lengths and the order of the records.

use crate::record::{KEYED_BYTES_MAX, NAMES_EXTRA_BYTES, RECORD_EXTRA_BYTES, TAIL_BYTES};

/// Segments of the reserve besides those for the rests of blocks: one is filled while another one is cleaned, and one
/// is for changes that must be durable before a segment is freed.
const WORKING_COUNT: u64 = 2;
/// Bytes of the rest of a value besides the value.
const REST_EXTRA_BYTES: u64 = (KEYED_BYTES_MAX + TAIL_BYTES) as u64;
/// Segments besides the reserve: the one being filled, and what each round of cleaning gains.
const SPARE_COUNT: u64 = 2;
/// The part of the segments that records may fill at most, in thousandths: with more, cleaning would write some twenty
/// times as much as stores.
const LIVE_MAX: u64 = 925;
/// The part of the memory that values waiting to be rewritten may take: one in this many.
const GATHERED_ONE_IN: usize = 16;

/// The uses of the space of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Headroom {
    segment_bytes: u64,
    segment_count: u64,
    /// Bytes of the longest end of a segment that no record is begun in.
    end_bytes_max: u64,
    /// Bytes of a segment that are not of records, without its end.
    overhead_bytes: u64,
    /// Free segments that only cleaning may begin.
    pub(crate) reserve_count: usize,
    /// Bytes of records to be rewritten that are collected for a write.
    pub(crate) gathered_bytes: usize,
}

impl Headroom {
    /// The headroom of a log of `segment_count` segments, written in blocks and at most `write_bytes_max` at a time, of
    /// a partition with `memory_bytes`.
    pub(crate) fn new(
        (segment_count, segment_bytes, block_bytes): (u64, u64, u64),
        write_bytes_max: usize,
        memory_bytes: usize,
    ) -> Self {
        let gathered_bytes = (memory_bytes / GATHERED_ONE_IN).clamp(block_bytes as usize, write_bytes_max);
        // Each write has a list of names, the end of a group and the rest of a block.
        let write_count = segment_bytes.div_ceil(gathered_bytes as u64);
        let writes_bytes = write_count * (block_bytes + (NAMES_EXTRA_BYTES + RECORD_EXTRA_BYTES) as u64);
        let extra_bytes = writes_bytes + REST_EXTRA_BYTES;
        // The longest value may be begun in the segment that is cleaned, and is written again as a whole.
        let begun_bytes = segment_bytes / 4;
        let reserve_count =
            WORKING_COUNT + (segment_count * extra_bytes + begun_bytes).div_ceil(segment_bytes);
        Self {
            segment_bytes,
            segment_count,
            end_bytes_max: block_bytes + KEYED_BYTES_MAX as u64,
            overhead_bytes: block_bytes + extra_bytes,
            reserve_count: reserve_count as usize,
            gathered_bytes,
        }
    }

    /// Bytes of records that a segment holds at least once they were rewritten, if the longest has `longest_bytes`.
    fn full_bytes(&self, longest_bytes: u64) -> u64 {
        self.segment_bytes.saturating_sub(self.overhead_bytes + longest_bytes.min(self.end_bytes_max))
    }

    /// Bytes of all segments.
    pub(crate) fn bytes(&self) -> u64 {
        self.segment_count * self.segment_bytes
    }

    /// Limit on the records of all pairs, bytes, if the longest has `longest_bytes`.
    pub(crate) fn live_bytes_max(&self, longest_bytes: u64) -> u64 {
        let live_count = self.segment_count.saturating_sub(self.reserve_count as u64 + SPARE_COUNT);
        (live_count * self.full_bytes(longest_bytes)).min(self.bytes() / 1000 * LIVE_MAX)
    }

    /// Number of free segments below which the oldest is cleaned, if the records of all pairs take `live_bytes`: half
    /// of what cleaning can free, but at most a quarter of all, and more than stores need to go on.
    pub(crate) fn cleaned_below(&self, live_bytes: u64, longest_bytes: u64) -> usize {
        let live_count = live_bytes.div_ceil(self.full_bytes(longest_bytes).max(1)) + 1;
        let free_count = self.segment_count.saturating_sub(live_count) as usize;
        let quarter = self.segment_count as usize / 4;
        let (least, most) = (self.reserve_count + 1, free_count.max(self.reserve_count + 1));
        (free_count / 2).min(quarter).clamp((least + 1).min(most), most)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCK_BYTES: u64 = 4096;

    /// The share of a log for records of at most `longest_bytes`.
    fn share(segment_count: u64, segment_bytes: u64, longest_bytes: u64, memory_bytes: usize) -> f64 {
        let headroom = Headroom::new((segment_count, segment_bytes, BLOCK_BYTES), 256 << 10, memory_bytes);
        headroom.live_bytes_max(longest_bytes) as f64 / headroom.bytes() as f64
    }

    #[test]
    fn nine_tenths_of_a_log_of_32_mebibytes_and_more_are_for_records() {
        for segment_bytes in [256 << 10, 512 << 10, 1 << 20, 8 << 20, 1 << 30] {
            let share = share(128, segment_bytes, segment_bytes / 100, 8 << 20);
            assert!((0.9..=0.925).contains(&share), "{share} of segments of {segment_bytes}");
        }
        assert!(share(64, 256 << 10, 4096, 8 << 20) > 0.86, "of 16 mebibytes");
        assert!(share(12, 64 << 10, 4096, 1 << 20) > 0.35, "of the smallest log");
        // Few records are collected for a write where memory is short.
        assert!((0.8..0.9).contains(&share(128, 512 << 10, 4096, 1 << 20)), "with a mebibyte of memory");
        assert!(share(128, 512 << 10, 128 << 10, 8 << 20) > 0.91, "with the longest values");
    }

    #[test]
    fn cleaning_begins_before_stores_wait_and_ends_where_it_gains_nothing() {
        let headroom = Headroom::new((128, 512 << 10, BLOCK_BYTES), 256 << 10, 8 << 20);
        let live_bytes_max = headroom.live_bytes_max(4096);
        assert_eq!(headroom.cleaned_below(0, 4096), 32, "a quarter");
        assert_eq!(headroom.cleaned_below(live_bytes_max, 4096), headroom.reserve_count + 1);
        assert!(headroom.cleaned_below(live_bytes_max / 10 * 8, 4096) > headroom.reserve_count + 2);
    }
}
