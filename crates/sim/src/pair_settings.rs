//! The key-value namespace of a run, if it has one.

use crate::random::Random;

/// When answers are sent, and what is left of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PairDurability {
    /// In RAM: nothing is left when the target ends.
    Memory,
    /// Answers wait for the log.
    Always,
    /// Answers do not wait; the log is written durably all the time.
    Batch,
    /// Answers do not wait; the log is flushed now and then.
    None,
}

/// The settings of a key-value namespace.
#[derive(Clone, Debug)]
pub(crate) struct PairSettings {
    pub(crate) durability: PairDurability,
    /// Size of the file; of the memory without one.
    pub(crate) bytes: u64,
    /// Memory of all partitions of a file.
    pub(crate) memory_bytes: u64,
    /// The longest value that memcached clients may store.
    pub(crate) item_bytes_max: usize,
    /// The longest value that is drawn.
    pub(crate) value_bytes_max: usize,
    pub(crate) key_count: usize,
    pub(crate) client_count: usize,
    /// Commands that a client sends at most, beside those that read every key in the end.
    pub(crate) client_command_limit: u64,
    /// Commands of a client that are out at once.
    pub(crate) depth: usize,
    /// Whether clients may remove everything at once.
    pub(crate) allows_flush: bool,
    pub(crate) pressure: MemoryPressure,
}

/// What happens for lack of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MemoryPressure {
    /// Everything fits.
    None,
    /// Pairs are evicted, and stores may be refused.
    Evicts,
}

/// Memory of a partition, as little as a configuration may have it, bytes.
const MEMORY_BYTES: u64 = 256 << 10;

/// The smallest file of one partition beside its superblock: twelve segments of 64 KiB.
const LOG_BYTES: u64 = 12 * (64 << 10);

/// The superblock, bytes.
pub(crate) const SUPERBLOCK_BYTES: usize = 4096;

/// The longest value of a file with the smallest segments: an eighth of one.
const ITEM_BYTES_MAX: usize = 8 << 10;

impl PairSettings {
    /// Size of the file, bytes; 0 without one.
    pub(crate) fn file_bytes(&self) -> usize {
        if self.durability == PairDurability::Memory { 0 } else { self.bytes as usize }
    }

    /// Draws the settings of a seed; `None` for three of four.
    pub(crate) fn draw(seed: u64, partition_count: u64) -> Option<Self> {
        let mut random = Random::new(seed, 40);
        let r = &mut random;
        if !r.one_in(4) {
            return None;
        }
        let durability = match r.below(8) {
            0 | 1 => PairDurability::Memory,
            2 => PairDurability::Batch,
            3 => PairDurability::None,
            _ => PairDurability::Always,
        };
        let is_in_memory = durability == PairDurability::Memory;
        let is_short = is_in_memory && r.one_in(4);
        let pressure = if is_short { MemoryPressure::Evicts } else { MemoryPressure::None };
        let memory_bytes = if is_short { MEMORY_BYTES } else { r.scaled(2 * MEMORY_BYTES, 2 << 20) };
        let memory_bytes = partition_count * memory_bytes;
        let log_bytes = r.scaled(LOG_BYTES, 2 * LOG_BYTES) & !4095;
        let file_bytes = SUPERBLOCK_BYTES as u64 + partition_count * log_bytes;
        Some(Self {
            durability,
            bytes: if is_in_memory { memory_bytes } else { file_bytes },
            memory_bytes,
            item_bytes_max: ITEM_BYTES_MAX,
            value_bytes_max: if is_short { ITEM_BYTES_MAX - 200 } else { r.scaled(16, 2000) as usize },
            key_count: if is_short { r.between(40, 80) } else { r.between(3, 12) } as usize,
            client_count: r.between(1, 3) as usize,
            client_command_limit: u64::MAX,
            depth: r.scaled(1, 16) as usize,
            allows_flush: r.one_in(4),
            pressure,
        })
    }
}
