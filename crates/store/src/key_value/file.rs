//! A key-value namespace in a file: one log per reactor.

use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use kv::log::Sync;
use kv::{Eviction, Partition, Processor, Settings};

use super::logged::Logged;
use super::random::Random;
use super::superblock::Superblock;
use super::{KeyValueShape, MEMORY_BYTES_MIN, check_memory, prefault};
use crate::namespace::BlockStore;
use crate::open_error::OpenError;

/// Default memory of a key-value file: its size divided by this, but at least [`MEMORY_BYTES_LEAST`].
const MEMORY_SHARE: u64 = 4;

/// Minimum default memory of a key-value file, bytes.
const MEMORY_BYTES_LEAST: u64 = 16 << 20;

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
    superblock: Mutex<Option<Superblock>>,
    random: Random,
}

impl KeyValueFile {
    /// Creates one on storage that is already open.
    pub(super) fn new(settings: KeyValueFileSettings, below: Arc<dyn BlockStore>) -> Self {
        Self { settings, below, superblock: Mutex::default(), random: Random::System }
    }

    /// Creates one on a simulated disk, where the file's first block is `first`: its caller writes it back.
    ///
    /// # Errors
    /// As [`set_reactor_count`](Self::set_reactor_count).
    pub(super) fn simulated(
        settings: KeyValueFileSettings,
        below: Arc<dyn BlockStore>,
        first: &mut [u8],
        partition_count: u64,
        random: Random,
    ) -> Result<Self, OpenError> {
        let bytes = below.geometry().bytes();
        let read = Superblock::read_or_new(first, &settings.path, bytes, partition_count, &random)?;
        Ok(Self { settings, below, superblock: Mutex::new(Some(read.0)), random })
    }

    fn memory_bytes(&self, partition_count: u64) -> u64 {
        let share = self.below.geometry().bytes() / MEMORY_SHARE;
        let least = MEMORY_BYTES_LEAST.max(partition_count.saturating_mul(MEMORY_BYTES_MIN));
        self.settings.memory_bytes.unwrap_or(share.max(least))
    }

    fn superblock(&self) -> Option<Superblock> {
        *self.superblock.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn attach(&self, reactor: usize, unix_s: i64) -> io::Result<Logged> {
        let superblock =
            self.superblock().ok_or_else(|| io::Error::other("the number of reactors was not set"))?;
        let log = superblock.log(reactor as u64, self.settings.sync, self.random.draw());
        let memory_bytes = self.memory_bytes(superblock.partition_count) / superblock.partition_count;
        let mut processor = Processor::new(Settings {
            memory_bytes: usize::try_from(memory_bytes).unwrap_or(usize::MAX),
            inline_bytes_max: 0,
            eviction: Eviction::None,
            value_bytes_max: log.value_bytes_max(),
            seed: superblock.seed,
        })?;
        if self.settings.prefaults {
            prefault::begin(&mut processor)?;
        }
        let partition = Partition::with_log(processor, unix_s, log);
        let below = self.below.attach()?;
        Ok(Logged::new(partition, below))
    }

    pub(super) fn set_reactor_count(&self, count: usize) -> Result<(), OpenError> {
        if let Some(bytes) = self.settings.memory_bytes {
            check_memory(bytes, count)?;
        }
        let bytes = self.below.geometry().bytes();
        let superblock = Superblock::open(&self.settings.path, bytes, count.max(1) as u64, &self.random)?;
        *self.superblock.lock().unwrap_or_else(PoisonError::into_inner) = Some(superblock);
        Ok(())
    }

    pub(super) fn shape(&self) -> KeyValueShape {
        let value_bytes_max = self
            .superblock()
            .map_or(0, |superblock| superblock.log(0, self.settings.sync, 0).value_bytes_max());
        let value_bytes_max = u32::try_from(value_bytes_max).unwrap_or(u32::MAX);
        let KeyValueFileSettings { item_bytes, allows_flush, .. } = self.settings;
        let bytes = self.below.geometry().bytes();
        KeyValueShape { bytes, value_bytes_max, item_bytes: item_bytes.min(value_bytes_max), allows_flush }
    }

    pub(super) fn bytes(&self) -> u64 {
        self.below.geometry().bytes()
    }

    pub(super) fn below(&self) -> &dyn BlockStore {
        &*self.below
    }
}
