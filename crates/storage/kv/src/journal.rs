//! The journal of a partition with a log: changes to be written, and the capacity of the log.

use std::collections::BTreeSet;
use std::ops::Range;

use crate::changes::Changes;
use crate::counters::Counters;
use crate::headroom::Headroom;
use crate::key::{KeyHash, name_of};
use crate::record::{NAME_BYTES, RECORD_EXTRA_BYTES};
use crate::regions::Purpose;

/// Changes that are to be written to a log.
#[derive(Debug)]
pub(crate) struct Journal {
    pub(crate) changes: Changes,
    headroom: Headroom,
    /// Bytes of the longest record, as far as known.
    longest_bytes: u64,
    /// The longest value.
    pub(crate) value_bytes_max: usize,
    /// The present purpose of taking memory: recovery, and then stores.
    pub(crate) purpose: Purpose,
    /// Whether answers wait until their changes are durable.
    answers_wait: bool,
    /// The names of keys whose only records are damaged.
    pub(crate) hidden: BTreeSet<u32>,
    /// The part of the file that is being written, and cannot be read yet.
    pub(crate) in_flight: Range<u64>,
    /// The offset of a record that takes several writes, while it is written.
    pub(crate) streamed: Option<u64>,
}

impl Journal {
    /// The journal of an empty partition, whose longest value may have `value_bytes_max`. The log is read first.
    pub(crate) fn new(headroom: Headroom, value_bytes_max: usize, answers_wait: bool) -> Self {
        Self {
            changes: Changes::default(),
            headroom,
            longest_bytes: 0,
            value_bytes_max,
            purpose: Purpose::Recovery,
            answers_wait,
            hidden: BTreeSet::new(),
            in_flight: 0..0,
            streamed: None,
        }
    }

    /// Records that a key has changed, and has a value of this length now, or was removed.
    #[inline]
    pub(crate) fn note(&mut self, hash: KeyHash, key: &[u8], value_bytes: usize) {
        self.changes.note(hash, key, value_bytes);
        if !self.hidden.is_empty() {
            self.hidden.remove(&name_of(key));
        }
    }

    /// Records that all pairs were removed.
    pub(crate) fn note_clear(&mut self) {
        self.changes.note_clear();
        self.hidden.clear();
    }

    /// Whether the only record of a key may be damaged.
    pub(crate) fn is_hidden(&self, key: &[u8]) -> bool {
        !self.hidden.is_empty() && self.hidden.contains(&name_of(key))
    }

    /// Whether the record at this offset of the file is written as a whole.
    pub(crate) fn is_written(&self, offset: u64) -> bool {
        !self.in_flight.contains(&offset) && self.streamed != Some(offset)
    }

    /// The change that an answer about a key must wait for, if any.
    pub(crate) fn awaited(&self, hash: KeyHash) -> Option<u64> {
        if self.answers_wait { self.changes.unsettled(hash) } else { None }
    }

    /// Notes a pair whose record must have place in the log.
    #[inline]
    pub(crate) fn note_length(&mut self, pair_bytes: usize) {
        self.longest_bytes = self.longest_bytes.max(record_bytes(pair_bytes));
    }

    /// All pairs were removed.
    pub(crate) fn forget_lengths(&mut self) {
        self.longest_bytes = 0;
    }

    /// Whether the log has room for one more pair of `pair_bytes`, in place of one of `replaced_bytes`.
    pub(crate) fn has_room(
        &self,
        counters: &Counters,
        pair_bytes: usize,
        replaced_bytes: Option<usize>,
    ) -> bool {
        let new_bytes = record_bytes(pair_bytes);
        let live_bytes = live_bytes(counters) - replaced_bytes.map_or(0, record_bytes);
        live_bytes + new_bytes <= self.headroom.live_bytes_max(self.longest_bytes.max(new_bytes))
    }

    /// Number of free segments below which the oldest is cleaned.
    pub(crate) fn cleaned_below(&self, counters: &Counters) -> usize {
        self.headroom.cleaned_below(live_bytes(counters), self.longest_bytes)
    }

    /// The space of the log that the pairs take.
    pub(crate) fn room(&self, counters: &Counters) -> LogRoom {
        let live_bytes_max = self.headroom.live_bytes_max(self.longest_bytes);
        let bytes = self.headroom.bytes();
        LogRoom { live_bytes: live_bytes(counters), live_bytes_max, headroom_bytes: bytes - live_bytes_max }
    }
}

crate::counters! {
    /// The space of its log that the pairs of a partition take.
    pub struct LogRoom {
        /// Bytes of the records of all pairs.
        pub live_bytes: u64,
        /// Limit on these.
        pub live_bytes_max: u64,
        /// The rest of the log: for cleaning, headers, and the ends of writes and of segments.
        pub headroom_bytes: u64,
    }
}

/// Bytes of the record of a pair, besides key and value, and of its name in a list.
const EXTRA_BYTES: usize = RECORD_EXTRA_BYTES + NAME_BYTES;

/// Bytes of the record of a pair and of its name.
fn record_bytes(pair_bytes: usize) -> u64 {
    (EXTRA_BYTES + pair_bytes) as u64
}

/// Bytes of the records of all pairs and of their names.
fn live_bytes(counters: &Counters) -> u64 {
    counters.pair_bytes + counters.pair_count * EXTRA_BYTES as u64
}
