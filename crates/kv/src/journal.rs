//! The journal of a partition with a log: what has changed, and what the log has room for.

use std::ops::Range;

use crate::changes::Changes;
use crate::counters::Counters;
use crate::key::KeyHash;
use crate::record::RECORD_EXTRA_BYTES;

/// Changes that are to be written to a log.
#[derive(Debug)]
pub(crate) struct Journal {
    pub(crate) changes: Changes,
    /// Bytes that the records of all pairs may have.
    log_bytes_max: u64,
    /// Answers wait until what they tell of survives.
    settles_answers: bool,
    /// What is being written: not to be read back yet.
    pub(crate) in_flight: Range<u64>,
}

impl Journal {
    /// Of an empty partition, the records of all of whose pairs may take so many bytes.
    pub(crate) fn new(log_bytes_max: u64, settles_answers: bool) -> Self {
        Self { changes: Changes::default(), log_bytes_max, settles_answers, in_flight: 0..0 }
    }

    /// The change that an answer about a key has to wait for, if it has to wait at all.
    pub(crate) fn awaited(&self, hash: KeyHash) -> Option<u64> {
        if self.settles_answers { self.changes.unsettled(hash) } else { None }
    }

    /// Whether the log has room for one more pair of so many bytes.
    pub(crate) fn has_room(&self, counters: &Counters, pair_bytes: usize) -> bool {
        let used = counters.pair_bytes + (counters.pair_count + 1) * RECORD_EXTRA_BYTES as u64;
        used + pair_bytes as u64 <= self.log_bytes_max
    }
}
