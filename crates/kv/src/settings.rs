//! Settings of a partition.

use crate::regions::REGION_BYTES;

/// What is done when memory is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Eviction {
    /// Nothing new is stored.
    None,
    /// Pairs not used lately make room. A pair used twice since stays for two rounds of the hand, a new one
    /// for none.
    Clock,
}

/// Settings of a partition.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Memory for index, pairs and the records about them.
    pub memory_bytes: usize,
    /// The largest pair, key and value, that lies in the index itself.
    pub inline_bytes_max: usize,
    /// What is done when memory is full.
    pub eviction: Eviction,
    /// The longest value.
    pub value_bytes_max: usize,
    /// Where keys go, secret from peers.
    pub seed: u64,
}

impl Settings {
    /// The least memory of a partition, bytes: for its index, pairs of several classes, and records.
    pub const MEMORY_BYTES_MIN: usize = 4 * REGION_BYTES;
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            memory_bytes: 64 << 20,
            inline_bytes_max: 20,
            eviction: Eviction::Clock,
            value_bytes_max: 256 << 20,
            seed: 0,
        }
    }
}
