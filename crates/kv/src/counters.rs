//! Counters of a partition.

/// What a partition holds and has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Pairs, expired ones included until they are met.
    pub pair_count: u64,
    /// Those of them that lie in the index.
    pub inline_count: u64,
    /// Bytes of keys and values.
    pub pair_bytes: u64,
    /// Stores ever.
    pub stored_count: u64,
    /// Pairs that made room for others.
    pub evicted_count: u64,
    /// Pairs evicted that nobody had read.
    pub evicted_unread_count: u64,
    /// Pairs that ended by their expiry.
    pub expired_count: u64,
    /// Items moved so that a region became free.
    pub moved_count: u64,
    /// Regions emptied by eviction or moving.
    pub reclaimed_count: u64,
    /// Values that are in the log only, to make room for others.
    pub demoted_count: u64,
    /// Values that were fetched from the log.
    pub loaded_count: u64,
}
