//! Settings of a partition.

use crate::regions::REGION_BYTES;
use crate::reserve;

/// Policy when memory is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Eviction {
    /// New pairs are refused.
    None,
    /// The oldest pairs are evicted, except those that were used.
    Clock,
}

/// Settings of a partition.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Memory for index, pairs and their records, bytes.
    pub memory_bytes: usize,
    /// Size of the largest pair, key plus value, that is stored in the index itself.
    pub inline_bytes_max: usize,
    /// Policy when memory is full.
    pub eviction: Eviction,
    /// Length of the longest value.
    pub value_bytes_max: usize,
    /// Hash seed; secret, so that peers cannot construct collisions.
    pub seed: u64,
    /// Seed of the function that selects the partition of a key, if hosts are told that function; by default bits of
    /// the hash do.
    pub partition_seed: Option<u64>,
}

impl Settings {
    /// Minimum memory of a partition, bytes: for its index, pairs of several classes, and records.
    pub const MEMORY_BYTES_MIN: usize = 4 * REGION_BYTES;

    /// Minimum memory of a partition with the smallest log, bytes.
    pub const MEMORY_BYTES_MIN_WITH_LOG: usize = Self::memory_bytes_min_with_log(1);

    /// Minimum memory of a partition with a log of values of up to `value_bytes_max`, bytes: the longest can be stored,
    /// and whatever is stored can be read.
    #[must_use]
    pub const fn memory_bytes_min_with_log(value_bytes_max: usize) -> usize {
        reserve::memory_bytes_min(value_bytes_max).next_multiple_of(REGION_BYTES)
    }
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            memory_bytes: 64 << 20,
            inline_bytes_max: 20,
            eviction: Eviction::Clock,
            value_bytes_max: 256 << 20,
            seed: 0,
            partition_seed: None,
        }
    }
}
