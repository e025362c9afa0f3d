//! Key-value namespaces: one partition of the key space per reactor, in RAM, with a log in a file, or with objects in a
//! Ceph cluster.

mod durable;
mod examine;
pub(crate) mod file;
mod logged;
pub(crate) mod mark;
mod memory;
mod prefault;
mod rados;
mod random;
mod recovery;
mod sectors;
pub(crate) mod superblock;
mod unfinished;

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use kv::{MemoryLimit, Partition, PartitionAccess, Settings, Usage};
use linux::Moment;

pub use crate::key_value::durable::{DurablePartition, KeyList, Need, Pause};
pub use crate::key_value::examine::{ExaminedFile, PartitionReport};
use crate::key_value::file::KeyValueFile;
pub use crate::key_value::file::KeyValueFileSettings;
use crate::key_value::memory::KeyValueMemory;
pub use crate::key_value::memory::KeyValueSettings;
pub use crate::key_value::rados::RadosPlace;
pub(crate) use crate::key_value::rados::{
    KeyValueRados, MEMORY_BYTES_DEFAULT as RADOS_MEMORY_BYTES_DEFAULT, NAMESPACE_DEFAULT,
};
use crate::key_value::random::Random;
pub use crate::key_value::recovery::{DamagePassedOver, RecoveryProgress};
pub use crate::key_value::unfinished::Unfinished;
use crate::namespace::BlockStore;
use crate::open_error::OpenError;

/// The longest value that memcached clients may store unless the specification says otherwise: memcached's own limit, a
/// mebibyte with its header.
pub const ITEM_BYTES_DEFAULT: u32 = 1_048_500;

/// Properties of a key-value namespace that clients see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyValueShape {
    /// Memory of all partitions together.
    pub bytes: u64,
    /// The longest value.
    pub value_bytes_max: u32,
    /// The longest value that memcached clients may store.
    pub item_bytes: u32,
    /// Whether memcached clients may remove everything at once.
    pub allows_flush: bool,
}

/// How the partition of a key is found: `memory::partition_of` of the bits of a `memory::Partitioner`. Hosts are told it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Partitioning {
    /// Seed of the partitioner.
    pub seed: u64,
    /// Number of partitions: that of the reactors, each of which has the one with its number.
    pub count: u16,
}

/// The storage of a key-value namespace, opened once and shared by all reactors: each attaches one partition.
pub struct KeyValueStore(Kind);

enum Kind {
    Memory(KeyValueMemory),
    File(KeyValueFile),
    Rados(KeyValueRados),
}

/// One reactor's partition of a key-value namespace.
#[expect(clippy::large_enum_variant, reason = "one for each reactor and namespace, moved once")]
pub enum KeyValueBackend {
    /// In RAM, the only partition: every operation completes at once.
    Memory(Partition),
    /// In RAM, one of several: all reactors use it where it lies.
    Shared(Arc<PartitionAccess>),
    /// With a log, or in a cluster: operations may wait for values, and answers for changes.
    Durable(Box<dyn DurablePartition>),
}

impl KeyValueStore {
    /// The unit in which the size of a key-value namespace is reported as blocks, bytes.
    pub(crate) const UNIT_BYTES: u32 = 4096;

    /// Creates an empty namespace in RAM. Each reactor allocates its memory as it attaches.
    #[must_use]
    pub fn in_memory(settings: KeyValueSettings) -> Self {
        Self(Kind::Memory(KeyValueMemory::new(settings, &Random::System)))
    }

    /// As [`in_memory`](Self::in_memory), with this hash seed: for simulators.
    #[must_use]
    pub fn simulated_memory(settings: KeyValueSettings, hash_seed: u64) -> Self {
        let random = Random::Simulated { count: AtomicU64::new(0), hash_seed };
        Self(Kind::Memory(KeyValueMemory::new(settings, &random)))
    }

    /// Creates a namespace in a file that is already open, with one log per reactor.
    #[must_use]
    pub fn in_file(settings: KeyValueFileSettings, below: Arc<dyn BlockStore>) -> Self {
        Self(Kind::File(KeyValueFile::new(settings, below)))
    }

    /// Opens a namespace in a pool of a Ceph cluster. Waits for the cluster, and for the lease of a dead owner.
    ///
    /// # Errors
    /// The problem of the libraries or the cluster, or who owns the keys.
    pub fn in_cluster(place: &RadosPlace) -> Result<Self, OpenError> {
        Ok(Self(Kind::Rados(KeyValueRados::open(place)?)))
    }

    /// As [`in_file`](Self::in_file), on a simulated disk. The file begins with `head`, of
    /// [`simulated_head_bytes`](Self::simulated_head_bytes), which is durable when the namespace is served; random
    /// numbers count on from the number, which no other start may have used. A new file has the hash seed.
    ///
    /// # Errors
    /// If the file is divided into another number of partitions, or is too small.
    pub fn simulated_file(
        settings: KeyValueFileSettings,
        below: Arc<dyn BlockStore>,
        head: &mut [u8],
        partition_count: usize,
        (number, hash_seed): (u64, u64),
    ) -> Result<Self, OpenError> {
        let random = Random::Simulated { count: AtomicU64::new(number), hash_seed };
        let file = KeyValueFile::simulated(settings, below, head, partition_count as u64, random)?;
        Ok(Self(Kind::File(file)))
    }

    /// Bytes of a file of this many partitions before the first segment.
    #[must_use]
    pub fn simulated_head_bytes(partition_count: usize) -> usize {
        superblock::head_length(partition_count as u64)
    }

    /// Sets the number of reactors that will attach, before the first does.
    ///
    /// # Errors
    /// If a file is divided into another number of partitions, or memory does not suffice for this number.
    pub fn set_reactor_count(&self, count: usize) -> Result<(), OpenError> {
        match &self.0 {
            Kind::Memory(memory) => memory.set_reactor_count(count),
            Kind::File(file) => file.set_reactor_count(count),
            Kind::Rados(rados) => rados.set_reactor_count(count),
        }
    }

    /// Attaches the calling reactor to the partition of its number.
    ///
    /// # Errors
    /// The reason why this thread cannot use the partition: no memory, or a file that is not divided yet.
    pub fn attach(&self, reactor: usize, now: Moment) -> io::Result<KeyValueBackend> {
        match &self.0 {
            Kind::Memory(memory) => memory.attach(reactor, now),
            Kind::File(file) => {
                let logged = file.attach(reactor, now)?;
                Ok(KeyValueBackend::Durable(Box::new(logged)))
            }
            Kind::Rados(rados) => rados.attach(reactor, now).map(KeyValueBackend::Durable),
        }
    }

    /// The properties that clients see.
    #[must_use]
    pub fn shape(&self) -> KeyValueShape {
        match &self.0 {
            Kind::Memory(memory) => memory.shape(),
            Kind::File(file) => file.shape(),
            Kind::Rados(rados) => rados.shape(),
        }
    }

    /// How a key's partition is found, if there are several and hosts may know. The partitions of a file depend on its
    /// hash seed, which is secret.
    #[must_use]
    pub fn partitioning(&self) -> Option<Partitioning> {
        match &self.0 {
            Kind::Memory(memory) => memory.partitioning(),
            // Which partition a key belongs to makes no difference between starts, but hosts have no lanes to gain by it:
            // each command goes to its partition by message.
            Kind::File(_) | Kind::Rados(_) => None,
        }
    }

    /// Size, bytes: of the memory, or of the file.
    pub(crate) fn bytes(&self) -> u64 {
        let bytes = match &self.0 {
            Kind::Memory(memory) => memory.bytes(),
            Kind::File(file) => file.bytes(),
            Kind::Rados(rados) => rados.limit().bytes(),
        };
        bytes - bytes % u64::from(Self::UNIT_BYTES)
    }

    /// How far the logs of a file have been read; `None` once they are, or without logs.
    pub(crate) fn recovery(&self) -> Option<RecoveryProgress> {
        match &self.0 {
            Kind::Memory(_) | Kind::Rados(_) => None,
            Kind::File(file) => file.recovery(),
        }
    }

    /// Damage found in the logs of a file and passed over, if there is any.
    pub(crate) fn damage(&self) -> Option<DamagePassedOver> {
        match &self.0 {
            Kind::Memory(_) | Kind::Rados(_) => None,
            Kind::File(file) => file.damage(),
        }
    }

    fn limit(&self) -> &MemoryLimit {
        match &self.0 {
            Kind::Memory(memory) => memory.limit(),
            Kind::File(file) => file.limit(),
            Kind::Rados(rados) => rados.limit(),
        }
    }

    /// Memory of all partitions, bytes.
    #[must_use]
    pub fn memory_bytes(&self) -> u64 {
        self.limit().bytes()
    }

    /// The least memory of all partitions, bytes.
    #[must_use]
    pub fn memory_bytes_min(&self) -> u64 {
        let limit = self.limit();
        limit.share_bytes_min().saturating_mul(limit.partition_count() as u64)
    }

    /// The usage of the present pairs, as last reported by the partitions.
    #[must_use]
    pub fn usage(&self) -> Usage {
        self.limit().usage()
    }

    /// The least memory for the present pairs, bytes, as of when partitions last reported it: 0 if they may be evicted.
    #[must_use]
    pub fn needed_bytes(&self) -> u64 {
        self.limit().needed_bytes()
    }

    /// Sets the memory of all partitions, which follow once their reactors are notified.
    ///
    /// # Errors
    /// If it is too little or too much for the partitions, or pairs that may not be evicted need more.
    pub fn set_memory(&self, bytes: u64) -> Result<(), OpenError> {
        let limit = self.limit();
        let partition_count = limit.partition_count();
        check_memory(bytes, partition_count, limit.share_bytes_min())?;
        let bytes_max = MemoryLimit::bytes_max(partition_count);
        if bytes > bytes_max {
            return Err(OpenError::MemoryTooLarge { bytes, bytes_max });
        }
        let needed_bytes = self.needed_bytes();
        if bytes < limit.bytes() && bytes < needed_bytes {
            return Err(OpenError::MemoryInUse { bytes, needed_bytes });
        }
        limit.set(bytes);
        Ok(())
    }

    pub(crate) fn resize(&self, bytes: u64) -> io::Result<()> {
        match &self.0 {
            Kind::Memory(_) | Kind::Rados(_) => self.set_memory(bytes).map_err(io::Error::other),
            Kind::File(_) => {
                Err(io::Error::new(io::ErrorKind::Unsupported, "a key-value file keeps its size"))
            }
        }
    }

    pub(crate) fn reopen(&self) -> io::Result<()> {
        match &self.0 {
            Kind::Memory(_) => Ok(()),
            Kind::File(_) => {
                let message = "a key-value file is opened anew when the target is started again";
                Err(io::Error::new(io::ErrorKind::Unsupported, message))
            }
            Kind::Rados(rados) => match rados.closed_because() {
                None => Ok(()),
                Some(why) => {
                    let message =
                        format!("{why}: keys in a cluster are opened anew when the target is started again");
                    Err(io::Error::new(io::ErrorKind::Unsupported, message))
                }
            },
        }
    }

    /// Why the keys of a cluster are served no more, if so.
    pub(crate) fn closed_because(&self) -> Option<String> {
        match &self.0 {
            Kind::Memory(_) | Kind::File(_) => None,
            Kind::Rados(rados) => rados.closed_because(),
        }
    }

    /// A name of the storage that no other has on any machine, if it is in a cluster.
    pub(crate) fn identity(&self) -> Option<String> {
        match &self.0 {
            Kind::Memory(_) | Kind::File(_) => None,
            Kind::Rados(rados) => Some(rados.identity()),
        }
    }

    /// The block storage of the logs, if there are logs.
    pub(crate) fn below(&self) -> Option<&dyn BlockStore> {
        match &self.0 {
            Kind::Memory(_) | Kind::Rados(_) => None,
            Kind::File(file) => Some(file.below()),
        }
    }
}

/// Minimum memory of one partition, bytes.
pub(crate) const MEMORY_BYTES_MIN: u64 = Settings::MEMORY_BYTES_MIN as u64;

/// Minimum memory of one partition with a log, bytes.
pub(crate) const MEMORY_BYTES_MIN_WITH_LOG: u64 = Settings::MEMORY_BYTES_MIN_WITH_LOG as u64;

/// Checks that `bytes` of memory suffice for `partition_count` partitions of `share_bytes_min` at least.
pub(crate) fn check_memory(
    bytes: u64,
    partition_count: usize,
    share_bytes_min: u64,
) -> Result<(), OpenError> {
    let partition_count = partition_count.max(1) as u64;
    let bytes_min = partition_count.saturating_mul(share_bytes_min);
    if bytes < bytes_min {
        return Err(OpenError::MemoryTooSmall { bytes, partition_count, bytes_min });
    }
    Ok(())
}
