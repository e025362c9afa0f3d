//! The key-value namespace of a run, if it has one.

use std::rc::Rc;

use store::KeyValueStore;

use crate::key_names::{HASH_SEED, key_names};
use crate::random::Random;

/// When answers are sent, and which pairs survive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PairDurability {
    /// In RAM: none survives the end of the target.
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
    /// The shortest and the longest value that is drawn.
    pub(crate) value_bytes_min: usize,
    pub(crate) value_bytes_max: usize,
    pub(crate) key_count: usize,
    /// The first of them, which collide in the index.
    pub(crate) colliding_count: usize,
    pub(crate) partition_count: usize,
    pub(crate) client_count: usize,
    /// Commands that a client sends at most, beside those that read every key in the end.
    pub(crate) client_command_limit: u64,
    /// Commands of a client that are out at once.
    pub(crate) depth: usize,
    /// Whether clients may remove everything at once.
    pub(crate) allows_flush: bool,
    pub(crate) pressure: MemoryPressure,
    /// Whether hosts name keys of values in the data of other commands. The target receives a value in chunks, for which
    /// there is memory.
    pub(crate) has_paired: bool,
}

/// The effects of a lack of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MemoryPressure {
    /// Everything fits.
    None,
    /// Values leave memory for the log and are fetched from there; stores may be refused.
    Refuses,
    /// Pairs are evicted, and stores may be refused.
    Evicts,
}

/// Memory of a partition without a log, as little as a configuration may have it, bytes.
const MEMORY_BYTES: u64 = 256 << 10;

/// Memory of a partition with a log, as little as a configuration may have it: it holds few of its values, bytes.
const SHORT_MEMORY_BYTES: u64 = kv::Settings::MEMORY_BYTES_MIN_WITH_LOG as u64;

/// Memory of a partition for values that arrive in chunks, bytes.
const CHUNKS_BYTES: u64 = 128 << 20;

/// The smallest segments of a log, and the smallest log.
const SEGMENT_BYTES: u64 = 64 << 10;
const LOG_BYTES: u64 = 12 * SEGMENT_BYTES;

/// A block of the file, bytes.
pub(crate) const BLOCK_BYTES: usize = 4096;

/// A value that takes three writes of the log, the file of a partition whose segments are eight times as long, and
/// memory for some of them, bytes.
const LONG_ITEM_BYTES_MAX: usize = 540 << 10;
const LONG_LOG_BYTES: u64 = 64 * 8 * LONG_ITEM_BYTES_MAX as u64;
const LONG_MEMORY_BYTES: u64 = 3 << 20;

/// One log of this number has such values, and its run few commands.
const LONG_ONE_IN: u64 = 48;
const LONG_COMMAND_COUNT: u64 = 30;

/// The longest value of a namespace in RAM whose values are up to some chunks, one of this number of them; its run has
/// few commands, too.
const CHUNKED_ITEM_BYTES_MAX: usize = (5 << 20) / 2;
const CHUNKED_ONE_IN: u64 = 3;
const CHUNKED_COMMAND_COUNT: u64 = 20;

/// One log of this number, all of whose pairs fit in memory, is written over and over: long values of few keys.
const CHURNS_ONE_IN: u64 = 6;

/// In one of this number of runs keys collide, up to a maximum.
const COLLIDING_ONE_IN: u64 = 3;
const COLLIDING_COUNT_MAX: u64 = 16;

/// Factor of commands over other runs, to fill a memory that is short, or a log again and again.
const LONG_VALUES_FACTOR: u64 = 3;

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
        let is_short = r.one_in(4);
        let pressure = match is_short {
            false => MemoryPressure::None,
            true if is_in_memory => MemoryPressure::Evicts,
            true => MemoryPressure::Refuses,
        };
        let memory_bytes = if is_short && is_in_memory {
            MEMORY_BYTES
        } else if is_short {
            SHORT_MEMORY_BYTES
        } else {
            r.scaled(2 * MEMORY_BYTES, 2 << 20).max(if is_in_memory { 0 } else { SHORT_MEMORY_BYTES })
        };
        let memory_bytes = partition_count * memory_bytes;
        // More than memory, if that is short.
        let log_bytes_min = if is_short { 2 * LOG_BYTES } else { LOG_BYTES };
        let log_bytes = r.scaled(log_bytes_min, 2 * log_bytes_min) & !4095;
        let head_bytes = KeyValueStore::simulated_head_bytes(partition_count as usize) as u64;
        let file_bytes = head_bytes + partition_count * log_bytes;
        let mut settings = Self {
            durability,
            bytes: if is_in_memory { memory_bytes } else { file_bytes },
            memory_bytes,
            item_bytes_max: ITEM_BYTES_MAX,
            value_bytes_min: if is_short { ITEM_BYTES_MAX / 2 } else { 1 },
            value_bytes_max: if is_short { ITEM_BYTES_MAX - 200 } else { r.scaled(16, 2000) as usize },
            key_count: match pressure {
                MemoryPressure::None => r.between(3, 12),
                MemoryPressure::Evicts => r.between(40, 80),
                MemoryPressure::Refuses => r.between(100, 300),
            } as usize,
            colliding_count: 0,
            partition_count: partition_count as usize,
            client_count: r.between(1, 3) as usize,
            client_command_limit: u64::MAX,
            depth: r.scaled(1, 16) as usize,
            allows_flush: r.one_in(4),
            pressure,
            has_paired: is_short,
        };
        let mut random = Random::new(seed, 96);
        if !random.one_in(3) && !is_short {
            settings.add_chunks();
        }
        if !is_in_memory && !is_short && r.one_in(LONG_ONE_IN) {
            settings.bytes = head_bytes + partition_count * LONG_LOG_BYTES;
            settings.memory_bytes = partition_count * LONG_MEMORY_BYTES;
            settings.has_paired = true;
            settings.item_bytes_max = LONG_ITEM_BYTES_MAX;
            settings.value_bytes_max = LONG_ITEM_BYTES_MAX - 200;
            settings.pressure = MemoryPressure::Refuses;
        }
        let mut random = Random::new(seed, 97);
        if is_in_memory && random.one_in(CHUNKED_ONE_IN) {
            settings.has_paired = true;
            settings.item_bytes_max = CHUNKED_ITEM_BYTES_MAX;
            settings.value_bytes_min = CHUNKED_ITEM_BYTES_MAX / 4;
            settings.value_bytes_max = CHUNKED_ITEM_BYTES_MAX - 200;
            settings.key_count = random.between(3, 8) as usize;
            settings.memory_bytes =
                partition_count * if is_short { random.between(3, 8) << 20 } else { CHUNKS_BYTES };
            settings.bytes = settings.memory_bytes;
        }
        let mut random = Random::new(seed, 49);
        if !is_in_memory && settings.pressure == MemoryPressure::None && random.one_in(CHURNS_ONE_IN) {
            settings.bytes = head_bytes + partition_count * LOG_BYTES;
            settings.value_bytes_min = ITEM_BYTES_MAX / 4;
            settings.value_bytes_max = ITEM_BYTES_MAX - 200;
            settings.key_count = random.between(6, COLLIDING_COUNT_MAX) as usize;
        }
        let mut random = Random::new(seed, 48);
        if random.one_in(COLLIDING_ONE_IN) {
            settings.colliding_count = random.between(2, COLLIDING_COUNT_MAX) as usize;
            settings.key_count = settings.key_count.max(settings.colliding_count);
        }
        Some(settings)
    }

    /// Adds memory for the chunks of values that arrive, so that it is never short.
    fn add_chunks(&mut self) {
        self.has_paired = true;
        self.memory_bytes += self.partition_count as u64 * CHUNKS_BYTES;
        if self.durability == PairDurability::Memory {
            self.bytes = self.memory_bytes;
        }
    }

    /// The names of all keys.
    pub(crate) fn key_names(&self) -> Vec<Rc<str>> {
        key_names(self.key_count, self.colliding_count, self.partition_count)
    }

    /// The hash seed of a new namespace; a number of the run where no key collides by intent.
    pub(crate) fn hash_seed(&self, number: u64) -> u64 {
        if self.colliding_count > 0 { HASH_SEED } else { number }
    }

    /// The least and the most memory that the namespace may get while it is used, bytes: without pressure, enough for
    /// all pairs.
    pub(crate) fn memory_range(&self, partition_count: u64) -> (u64, u64) {
        let least = match (self.durability, self.pressure) {
            (PairDurability::Memory, MemoryPressure::None) => self.memory_bytes,
            (PairDurability::Memory, _) => partition_count * MEMORY_BYTES,
            _ if self.has_long_values() => self.memory_bytes,
            (_, MemoryPressure::None) if self.has_paired => self.memory_bytes,
            _ => partition_count * SHORT_MEMORY_BYTES,
        };
        (least, (2 * self.memory_bytes).max(least))
    }

    /// Whether values may take several writes of the log.
    pub(crate) fn has_long_values(&self) -> bool {
        self.item_bytes_max == LONG_ITEM_BYTES_MAX
    }

    /// Whether values may be several chunks.
    pub(crate) fn has_chunks(&self) -> bool {
        self.item_bytes_max == CHUNKED_ITEM_BYTES_MAX
    }

    /// Segments of each log with the smallest segments, at most.
    pub(crate) fn segment_count_max(&self) -> u64 {
        self.bytes / self.partition_count as u64 / SEGMENT_BYTES
    }

    /// Factor of its run's commands over those of other runs.
    pub(crate) fn command_factor(&self) -> u64 {
        if self.value_bytes_min > 1 && !self.has_chunks() { LONG_VALUES_FACTOR } else { 1 }
    }

    /// Maximum number of commands of a run: long values take long.
    pub(crate) fn command_count_max(&self) -> u64 {
        match (self.has_long_values(), self.has_chunks()) {
            (true, _) => LONG_COMMAND_COUNT,
            (_, true) => CHUNKED_COMMAND_COUNT,
            _ => u64::MAX,
        }
    }
}
