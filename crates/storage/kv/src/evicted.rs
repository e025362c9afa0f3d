//! A record of evicted pairs, kept on request.

/// Pairs recorded between two calls of [`take`](EvictedPairs::take): more are only counted.
const COUNT_MAX: usize = 1024;

/// A pair that was evicted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Evicted {
    /// Its key.
    pub key: Vec<u8>,
    /// Length of its value.
    pub value_bytes: usize,
    /// The second at which it would have expired, or 0.
    pub expiry_s: u32,
    /// The second of its last access, as far as it was known.
    pub accessed_s: u32,
    /// Whether it was read since it was stored.
    pub is_fetched: bool,
}

/// The record.
#[derive(Debug, Default)]
pub(crate) struct EvictedPairs {
    pairs: Vec<Evicted>,
    /// Pairs that were not recorded for lack of room.
    lost_count: u64,
}

impl EvictedPairs {
    /// Records a pair.
    pub(crate) fn record(&mut self, pair: impl FnOnce() -> Evicted) {
        if self.pairs.len() < COUNT_MAX {
            self.pairs.push(pair());
        } else {
            self.lost_count += 1;
        }
    }

    /// The pairs since the last call, and the number of those that were lost.
    pub(crate) fn take(&mut self) -> (Vec<Evicted>, u64) {
        (std::mem::take(&mut self.pairs), std::mem::take(&mut self.lost_count))
    }
}
