//! A key-value namespace in RAM.

use std::io;
use std::sync::Arc;

use kv::{Eviction, MemoryLimit, Partition, Processor, Settings};
use linux::Moment;

use super::random::Random;
use super::{KeyValueShape, check_memory, prefault};
use crate::open_error::OpenError;

/// Settings of a key-value namespace in RAM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyValueSettings {
    /// Memory of all partitions together, at the beginning.
    pub bytes: u64,
    /// Whether unused pairs are evicted to make room for new ones.
    pub evicts: bool,
    /// The longest value that memcached clients may store.
    pub item_bytes: u32,
    /// Whether memcached clients may remove everything at once.
    pub allows_flush: bool,
    /// Whether memory is prefaulted.
    pub prefaults: bool,
}

/// A key-value namespace in RAM.
pub(super) struct KeyValueMemory {
    settings: KeyValueSettings,
    /// Hash seed, the same for all partitions; secret, so that peers cannot construct collisions.
    seed: u64,
    limit: Arc<MemoryLimit>,
}

impl KeyValueMemory {
    pub(super) fn new(settings: KeyValueSettings, random: &Random) -> Self {
        Self { settings, seed: random.hash_seed(), limit: Arc::new(MemoryLimit::new(settings.bytes)) }
    }

    pub(super) fn set_reactor_count(&self, count: usize) -> Result<(), OpenError> {
        check_memory(self.bytes(), count, self.limit.share_bytes_min())?;
        self.limit.divide(count);
        Ok(())
    }

    pub(super) fn attach(&self, now: Moment) -> io::Result<Partition> {
        let mut processor = Processor::new(Settings {
            memory_bytes: self.limit.share(),
            eviction: if self.settings.evicts { Eviction::Clock } else { Eviction::None },
            seed: self.seed,
            ..Settings::default()
        })?;
        if self.settings.prefaults {
            prefault::begin(&mut processor)?;
        }
        Ok(Partition::new(processor, now).within(&self.limit))
    }

    pub(super) fn shape(&self) -> KeyValueShape {
        let value_bytes_max = u32::try_from(Settings::default().value_bytes_max).unwrap_or(u32::MAX);
        let KeyValueSettings { item_bytes, allows_flush, .. } = self.settings;
        KeyValueShape { bytes: self.bytes(), value_bytes_max, item_bytes, allows_flush }
    }

    pub(super) fn bytes(&self) -> u64 {
        self.limit.bytes()
    }

    pub(super) fn limit(&self) -> &MemoryLimit {
        &self.limit
    }
}

#[cfg(test)]
mod tests {
    use kv::{Attributes, Condition, Stored};

    use super::*;

    #[test]
    fn a_full_memory_evicts_only_where_it_may() {
        for evicts in [true, false] {
            let settings = KeyValueSettings {
                bytes: 1 << 20,
                evicts,
                item_bytes: 1 << 20,
                allows_flush: false,
                prefaults: false,
            };
            let memory = KeyValueMemory::new(settings, &Random::System);
            memory.set_reactor_count(1).unwrap();
            let mut partition = memory.attach(Moment::default()).unwrap();
            let processor = &mut partition.processor;
            let mut store = |number: u32| {
                let key = number.to_le_bytes();
                let hash = processor.hash(&key);
                processor.store(hash, &key, &[1; 1000], Attributes::default(), Condition::Always)
            };
            let refused_count = (0..2000).filter(|&number| store(number) == Stored::NoMemory).count();
            assert_eq!(refused_count == 0, evicts, "{refused_count} refused");
            assert_eq!(processor.counters().evicted_count > 0, evicts);
        }
    }
}
