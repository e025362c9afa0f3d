//! A key-value namespace in RAM.

use std::io;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use kv::{Eviction, MemoryLimit, Partition, PartitionAccess, PartitionSet, Processor, Settings};
use linux::Moment;

use super::random::Random;
use super::{KeyValueBackend, KeyValueShape, Partitioning, check_memory, prefault};
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
    /// Seed of the function that selects partitions, which hosts are told.
    partition_seed: u64,
    limit: Arc<MemoryLimit>,
    /// The partitions of all reactors, as long as one is attached.
    partitions: Mutex<Weak<PartitionSet>>,
}

impl KeyValueMemory {
    pub(super) fn new(settings: KeyValueSettings, random: &Random) -> Self {
        Self {
            settings,
            seed: random.hash_seed(),
            partition_seed: random.partition_seed(),
            limit: Arc::new(MemoryLimit::new(settings.bytes)),
            partitions: Mutex::default(),
        }
    }

    pub(super) fn set_reactor_count(&self, count: usize) -> Result<(), OpenError> {
        check_memory(self.bytes(), count, self.limit.share_bytes_min())?;
        self.limit.divide(count);
        Ok(())
    }

    /// Makes the partition of a reactor. One of several is put where all reactors find it; each makes its own, so that
    /// its memory is close to the reactor.
    pub(super) fn attach(&self, reactor: usize, now: Moment) -> io::Result<KeyValueBackend> {
        let partition = self.partition(now)?;
        let count = self.limit.partition_count();
        if count == 1 {
            return Ok(KeyValueBackend::Memory(partition));
        }
        let mut partitions = self.partitions.lock().unwrap_or_else(PoisonError::into_inner);
        // A reactor that attaches again begins anew.
        let set = partitions.upgrade().filter(|set| !set.has(reactor));
        let set = set.unwrap_or_else(|| Arc::new(PartitionSet::new(count, self.seed, self.partition_seed())));
        *partitions = Arc::downgrade(&set);
        set.put(reactor, partition);
        Ok(KeyValueBackend::Shared(Arc::new(PartitionAccess::new(set, reactor))))
    }

    fn partition(&self, now: Moment) -> io::Result<Partition> {
        let mut processor = Processor::new(Settings {
            memory_bytes: self.limit.share(),
            eviction: if self.settings.evicts { Eviction::Clock } else { Eviction::None },
            seed: self.seed,
            partition_seed: self.partition_seed(),
            ..Settings::default()
        })?;
        if self.settings.prefaults {
            prefault::begin(&mut processor)?;
        }
        Ok(Partition::new(processor, now).within(&self.limit))
    }

    /// The seed that selects partitions, if there are several.
    fn partition_seed(&self) -> Option<u64> {
        (self.limit.partition_count() > 1).then_some(self.partition_seed)
    }

    /// How a key's partition is found, if there are several.
    pub(super) fn partitioning(&self) -> Option<Partitioning> {
        let count = u16::try_from(self.limit.partition_count()).ok()?;
        self.partition_seed().map(|seed| Partitioning { seed, count })
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

    fn settings(evicts: bool) -> KeyValueSettings {
        KeyValueSettings {
            bytes: 1 << 20,
            evicts,
            item_bytes: 1 << 20,
            allows_flush: false,
            prefaults: false,
        }
    }

    fn shared(backend: io::Result<KeyValueBackend>) -> Arc<PartitionAccess> {
        match backend.unwrap() {
            KeyValueBackend::Shared(access) => access,
            _ => panic!("several partitions are shared"),
        }
    }

    #[test]
    fn reactors_share_their_partitions_and_one_that_attaches_again_begins_anew() {
        let memory =
            KeyValueMemory::new(KeyValueSettings { bytes: 4 << 20, ..settings(true) }, &Random::System);
        memory.set_reactor_count(2).unwrap();
        let attach = |reactor| shared(memory.attach(reactor, Moment::default()));
        let first = attach(0);
        assert!(!first.is_complete());
        let second = attach(1);
        assert!(first.is_complete() && second.is_complete());
        let pair_count = |access: &PartitionAccess| access.exclusive(0).processor.counters().pair_count;
        let hash = first.hash(b"key");
        let number = first.partition_of(hash);
        let store = |access: &PartitionAccess| {
            let processor = &mut access.exclusive(0).processor;
            processor.store(hash, b"key", b"value", Attributes::default(), Condition::Always)
        };
        assert_eq!(number, second.partition_of(second.hash(b"key")));
        assert_eq!(store(&second), Stored::Done);
        assert_eq!(pair_count(&first), 1);
        let again = attach(0);
        assert!(!again.is_complete());
        assert_eq!((pair_count(&again), pair_count(&second)), (0, 1));
        let second_again = attach(1);
        assert!(again.is_complete());
        assert_eq!(store(&second_again), Stored::Done);
        assert_eq!(pair_count(&again), 1);
    }

    /// docs/kv-commands.md §6
    #[test]
    fn partitions_are_those_that_hosts_compute() {
        let memory =
            KeyValueMemory::new(KeyValueSettings { bytes: 16 << 20, ..settings(true) }, &Random::System);
        memory.set_reactor_count(1).unwrap();
        assert_eq!(memory.partitioning(), None);
        memory.set_reactor_count(3).unwrap();
        let Partitioning { seed, count } = memory.partitioning().expect("three partitions");
        assert_eq!(count, 3);
        let accesses: Vec<_> =
            (0..3).map(|number| shared(memory.attach(number, Moment::default()))).collect();
        let partitioner = memory::Partitioner::new(seed);
        for number in 0..1000u32 {
            let key = number.to_le_bytes();
            let expected = memory::partition_of(partitioner.bits(&key), 3);
            for access in &accesses {
                let hash = access.hash(&key);
                assert_eq!(access.partition_of(hash), expected);
                assert_eq!(access.exclusive(0).processor.hash(&key), hash);
            }
        }
        let other =
            KeyValueMemory::new(KeyValueSettings { bytes: 16 << 20, ..settings(true) }, &Random::System);
        other.set_reactor_count(3).unwrap();
        assert_ne!(other.partitioning(), memory.partitioning(), "each start has its own");
        assert_ne!(other.seed, memory.seed);
        assert_ne!(memory.seed, seed, "the seed of the index stays secret");
    }

    #[test]
    fn a_full_memory_evicts_only_where_it_may() {
        for evicts in [true, false] {
            let memory = KeyValueMemory::new(settings(evicts), &Random::System);
            memory.set_reactor_count(1).unwrap();
            let mut partition = memory.partition(Moment::default()).unwrap();
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
