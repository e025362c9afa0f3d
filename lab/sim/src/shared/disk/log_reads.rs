//! Reads of the log of keys: fetched values, and segments that are cleaned.

use std::collections::BTreeSet;
use std::ops::Range;

use crate::pair_settings::{BLOCK_BYTES, PairSettings};

/// The log reads the beginning of a segment, or a value, in at most this many bytes; more for cleaning.
const SHORT_READ_BYTES_MAX: usize = 16 << 10;

/// Whether a write of the log begins a segment with the rest of a value: behind the header and a list of names.
pub(super) fn has_rest(bytes: &[u8]) -> bool {
    const NAMES: u8 = 5;
    const REST: u8 = 8;
    const RECORD_EXTRA_BYTES: usize = 36;
    let Some((b"nvlkvseg", records)) = bytes.split_first_chunk() else { return false };
    let records = &records[BLOCK_BYTES - 8..];
    let names_bytes = u32::from_le_bytes(records[8..12].try_into().expect("four bytes")) as usize;
    records[0] == NAMES && records.get(RECORD_EXTRA_BYTES + names_bytes) == Some(&REST)
}

/// The reads of a log that writes.
#[derive(Debug, Default)]
pub(super) struct LogReads {
    /// The segment that it has cleaned last, or cleans.
    cleaning: Range<u64>,
    cleaned_count: u64,
    /// Where values were fetched.
    fetched: BTreeSet<u64>,
}

impl LogReads {
    /// Records a read of the log and returns its coverage events. Long values are read in the units of a segment.
    pub(super) fn note(&mut self, offset: u64, length: usize, settings: &PairSettings) -> Vec<&'static str> {
        if length <= SHORT_READ_BYTES_MAX {
            let mut events = vec!["value fetched from the log"];
            if self.cleaning.contains(&offset) {
                events.push("value fetched from a segment that is cleaned");
            }
            if !self.fetched.insert(offset) {
                events.push("value fetched again from its record");
            }
            return events;
        }
        if settings.has_long_values() {
            return Vec::new();
        }
        self.cleaning = offset..offset + length as u64;
        self.cleaned_count += 1;
        let mut events = vec!["segment of the log cleaned"];
        if self.cleaned_count > settings.segment_count_max() {
            events.push("segment of the log cleaned a second time");
        }
        events
    }
}
