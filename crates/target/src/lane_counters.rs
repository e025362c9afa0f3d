//! Counters of one lane: written by its reactor alone, read by anyone.

use std::sync::atomic::{AtomicU64, Ordering};

/// A number that one thread adds to, with a plain load and store, and others read.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds; only the owning reactor may.
    #[inline]
    pub fn add(&self, count: u64) {
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(count), Ordering::Relaxed);
    }

    /// Notes what is no sum; only the owning reactor may.
    pub fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }

    /// The sum so far.
    #[must_use]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// What a lane has done.
#[derive(Debug, Default)]
pub struct LaneCounters {
    /// Read commands completed.
    pub read_count: Counter,
    /// Write commands completed.
    pub write_count: Counter,
    /// Other commands completed.
    pub other_count: Counter,
    /// Commands that failed.
    pub failed_count: Counter,
    /// Bytes read by the host.
    pub read_bytes: Counter,
    /// Bytes written by the host.
    pub written_bytes: Counter,
    /// Media errors.
    pub media_error_count: Counter,
    /// Sends, each a caravan or the rest of one.
    pub send_count: Counter,
    /// Receives that brought something.
    pub receive_count: Counter,
    /// PDUs sent.
    pub pdu_count: Counter,
    /// The device queue that its packets came in through when it connected; 0 for none.
    pub napi_id: Counter,
}

/// Counters of several lanes, summed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LaneTotals {
    /// Read commands completed.
    pub read_count: u64,
    /// Write commands completed.
    pub write_count: u64,
    /// Other commands completed.
    pub other_count: u64,
    /// Commands that failed.
    pub failed_count: u64,
    /// Bytes read by the host.
    pub read_bytes: u64,
    /// Bytes written by the host.
    pub written_bytes: u64,
    /// Media errors.
    pub media_error_count: u64,
}

impl LaneTotals {
    /// Adds what a lane has done so far.
    pub fn add(&mut self, lane: &LaneCounters) {
        self.read_count = self.read_count.saturating_add(lane.read_count.get());
        self.write_count = self.write_count.saturating_add(lane.write_count.get());
        self.other_count = self.other_count.saturating_add(lane.other_count.get());
        self.failed_count = self.failed_count.saturating_add(lane.failed_count.get());
        self.read_bytes = self.read_bytes.saturating_add(lane.read_bytes.get());
        self.written_bytes = self.written_bytes.saturating_add(lane.written_bytes.get());
        self.media_error_count = self.media_error_count.saturating_add(lane.media_error_count.get());
    }
}
