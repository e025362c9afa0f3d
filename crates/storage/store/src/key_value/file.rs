//! A key-value namespace in a file: one log per reactor.

use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use kv::log::Sync;
use kv::{Eviction, MemoryLimit, Partition, Processor, Settings};
use linux::Moment;

use super::logged::Logged;
use super::random::Random;
use super::recovery::{DamagePassedOver, RecoveryProgress, SharedProgress};
use super::superblock::{self, Superblock};
use super::{KeyValueShape, check_memory, prefault};
use crate::namespace::BlockStore;
use crate::open_error::OpenError;

/// Default memory of a key-value file: its size divided by this, but at least [`MEMORY_BYTES_LEAST`].
const MEMORY_SHARE: u64 = 4;

/// Minimum default memory of a key-value file, bytes.
const MEMORY_BYTES_LEAST: u64 = 16 << 20;

/// Memory of all partitions of a key-value file of this many bytes, if none is given and it suffices for them.
pub(crate) fn memory_bytes_default(file_bytes: u64) -> u64 {
    MEMORY_BYTES_LEAST.max(file_bytes / MEMORY_SHARE)
}

/// Minimum memory of each of `partition_count` partitions of a key-value file of this many bytes: whatever is stored
/// can be read.
pub(crate) fn share_bytes_min(file_bytes: u64, partition_count: u64) -> u64 {
    let value_bytes_max = superblock::value_bytes_max(file_bytes, partition_count);
    Settings::memory_bytes_min_with_log(value_bytes_max) as u64
}

/// Settings of a key-value namespace in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyValueFileSettings {
    /// Path of the file.
    pub path: PathBuf,
    /// Memory of all partitions together, if given.
    pub memory_bytes: Option<u64>,
    /// When answers are sent.
    pub sync: Sync,
    /// Whether memcached clients may remove everything at once.
    pub allows_flush: bool,
    /// The longest value that memcached clients may store.
    pub item_bytes: u32,
    /// Whether memory is prefaulted.
    pub prefaults: bool,
}

/// A key-value namespace in a file.
pub(super) struct KeyValueFile {
    settings: KeyValueFileSettings,
    below: Arc<dyn BlockStore>,
    /// `None` until the number of reactors is set.
    divided: Mutex<Option<Divided>>,
    limit: Arc<MemoryLimit>,
    random: Random,
}

/// The division of the file, and how far its logs have been read.
#[derive(Clone)]
struct Divided {
    superblock: Superblock,
    progress: Arc<SharedProgress>,
}

impl Divided {
    fn new(superblock: Superblock) -> Self {
        let partition_count = usize::try_from(superblock.partition_count).unwrap_or(usize::MAX);
        Self { superblock, progress: Arc::new(SharedProgress::new(partition_count)) }
    }
}

impl KeyValueFile {
    /// Creates one on storage that is already open.
    pub(super) fn new(settings: KeyValueFileSettings, below: Arc<dyn BlockStore>) -> Self {
        let limit = Arc::new(MemoryLimit::with_logs(memory_bytes(&settings, &*below, 1)));
        Self { settings, below, divided: Mutex::default(), limit, random: Random::System }
    }

    /// Creates one on a simulated disk, where `head` is everything before the first segment: its caller writes it back.
    ///
    /// # Errors
    /// As [`set_reactor_count`](Self::set_reactor_count).
    pub(super) fn simulated(
        settings: KeyValueFileSettings,
        below: Arc<dyn BlockStore>,
        head: &mut [u8],
        partition_count: u64,
        random: Random,
    ) -> Result<Self, OpenError> {
        let bytes = below.geometry().bytes();
        let superblock = Superblock::open_simulated(head, &settings.path, bytes, partition_count, &random)?;
        let limit = Arc::new(MemoryLimit::with_logs(memory_bytes(&settings, &*below, partition_count)));
        limit.divide(usize::try_from(partition_count).unwrap_or(usize::MAX));
        limit.require(share_bytes_min(bytes, partition_count));
        Ok(Self { settings, below, divided: Mutex::new(Some(Divided::new(superblock))), limit, random })
    }

    fn divided(&self) -> Option<Divided> {
        self.divided.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// How far the logs have been read; `None` once they are.
    pub(super) fn recovery(&self) -> Option<RecoveryProgress> {
        self.divided()?.progress.get()
    }

    /// Damage found in the logs, if there is any.
    pub(super) fn damage(&self) -> Option<DamagePassedOver> {
        self.divided()?.progress.damage()
    }

    pub(super) fn attach(&self, reactor: usize, now: Moment) -> io::Result<Logged> {
        let Divided { superblock, progress } =
            self.divided().ok_or_else(|| io::Error::other("the number of reactors was not set"))?;
        let log = superblock.log(reactor as u64, self.settings.sync, self.random.draw());
        let mut processor = Processor::new(Settings {
            memory_bytes: self.limit.share(),
            inline_bytes_max: 0,
            eviction: Eviction::None,
            value_bytes_max: log.value_bytes_max(),
            seed: superblock.seed,
            partition_seed: None,
        })?;
        if self.settings.prefaults {
            prefault::begin(&mut processor)?;
        }
        let partition = Partition::with_log(processor, now, log).within(&self.limit);
        let below = self.below.attach()?;
        Ok(Logged::new(partition, below, (self.settings.path.clone(), reactor), progress))
    }

    pub(super) fn set_reactor_count(&self, count: usize) -> Result<(), OpenError> {
        let bytes = self.below.geometry().bytes();
        let share_bytes_min = share_bytes_min(bytes, count.max(1) as u64);
        if let Some(bytes) = self.settings.memory_bytes {
            check_memory(bytes, count, share_bytes_min)?;
        }
        let superblock = Superblock::open(&self.settings.path, bytes, count.max(1) as u64, &self.random)?;
        *self.divided.lock().unwrap_or_else(PoisonError::into_inner) = Some(Divided::new(superblock));
        self.limit.divide(count);
        self.limit.require(share_bytes_min);
        self.limit.set(memory_bytes(&self.settings, &*self.below, count as u64));
        Ok(())
    }

    pub(super) fn shape(&self) -> KeyValueShape {
        let value_bytes_max = self
            .divided()
            .map_or(0, |divided| divided.superblock.log(0, self.settings.sync, 0).value_bytes_max());
        let value_bytes_max = u32::try_from(value_bytes_max).unwrap_or(u32::MAX);
        let KeyValueFileSettings { item_bytes, allows_flush, .. } = self.settings;
        let bytes = self.below.geometry().bytes();
        KeyValueShape { bytes, value_bytes_max, item_bytes: item_bytes.min(value_bytes_max), allows_flush }
    }

    pub(super) fn bytes(&self) -> u64 {
        self.below.geometry().bytes()
    }

    pub(super) fn limit(&self) -> &MemoryLimit {
        &self.limit
    }

    pub(super) fn below(&self) -> &dyn BlockStore {
        &*self.below
    }
}

/// Memory of all partitions: as the settings say, or enough for the file and for each partition.
fn memory_bytes(settings: &KeyValueFileSettings, below: &dyn BlockStore, partition_count: u64) -> u64 {
    let file_bytes = below.geometry().bytes();
    let least = partition_count.saturating_mul(share_bytes_min(file_bytes, partition_count));
    settings.memory_bytes.unwrap_or(memory_bytes_default(file_bytes).max(least))
}
