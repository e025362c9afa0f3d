//! The journal of a partition with a log: changes to be written, and the capacity of the log.

use std::ops::Range;

use crate::changes::Changes;
use crate::counters::Counters;
use crate::key::KeyHash;
use crate::record::RECORD_EXTRA_BYTES;
use crate::regions::Purpose;

/// Changes that are to be written to a log.
#[derive(Debug)]
pub(crate) struct Journal {
    pub(crate) changes: Changes,
    /// Limit on the records of all pairs, bytes.
    log_bytes_max: u64,
    /// The longest value.
    pub(crate) value_bytes_max: usize,
    /// What memory is taken for: recovery, and then stores.
    pub(crate) purpose: Purpose,
    /// Whether answers wait until their changes are durable.
    answers_wait: bool,
    /// The part of the file that is being written, and cannot be read yet.
    pub(crate) in_flight: Range<u64>,
}

impl Journal {
    /// The journal of an empty partition, whose records may take `log_bytes_max`, and the longest value
    /// `value_bytes_max`. What is in the log is read first.
    pub(crate) fn new(log_bytes_max: u64, value_bytes_max: usize, answers_wait: bool) -> Self {
        Self {
            changes: Changes::default(),
            log_bytes_max,
            value_bytes_max,
            purpose: Purpose::Recovery,
            answers_wait,
            in_flight: 0..0,
        }
    }

    /// The change that an answer about a key must wait for, if any.
    pub(crate) fn awaited(&self, hash: KeyHash) -> Option<u64> {
        if self.answers_wait { self.changes.unsettled(hash) } else { None }
    }

    /// Whether the log has room for one more pair of `pair_bytes`.
    pub(crate) fn has_room(&self, counters: &Counters, pair_bytes: usize) -> bool {
        let used = counters.pair_bytes + (counters.pair_count + 1) * RECORD_EXTRA_BYTES as u64;
        used + pair_bytes as u64 <= self.log_bytes_max
    }
}
