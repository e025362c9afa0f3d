//! A key-value namespace in a file: one log per reactor.

use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use kv::log::Sync;
use kv::{Eviction, Partition, Processor, Settings};

use super::logged::Logged;
use super::superblock::Superblock;
use super::{KeyValueShape, MEMORY_BYTES_MIN, check_memory, geometry, prefault, unix_s};
use crate::block::OpenError;
use crate::namespace::{Backend, BlockStore, Generation, Geometry, Grown};

/// Memory for a key-value file, if nothing is said of it: this share of the file, and at least so much.
const MEMORY_SHARE: u64 = 4;
const MEMORY_BYTES_LEAST: u64 = 16 << 20;

/// How a key-value file is to be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyValueFileSettings {
    /// Which.
    pub path: PathBuf,
    /// Memory of all partitions together, if given.
    pub memory_bytes: Option<u64>,
    /// When answers leave.
    pub sync: Sync,
    /// Whether memcached's clients may remove everything at once.
    pub allows_flush: bool,
    /// The longest value that memcached's clients may store.
    pub item_bytes: u32,
    /// Whether the memory is touched ahead.
    pub prefaults: bool,
}

/// A key-value namespace in a file.
pub struct KeyValueFile {
    settings: KeyValueFileSettings,
    below: Arc<dyn BlockStore>,
    /// Once it is known how many reactors attach.
    superblock: Mutex<Option<Superblock>>,
}

impl KeyValueFile {
    /// On storage that is open already.
    #[must_use]
    pub fn new(settings: KeyValueFileSettings, below: Arc<dyn BlockStore>) -> Self {
        Self { settings, below, superblock: Mutex::default() }
    }

    fn memory_bytes(&self, partition_count: u64) -> u64 {
        let share = self.below.geometry().bytes() / MEMORY_SHARE;
        let least = MEMORY_BYTES_LEAST.max(partition_count.saturating_mul(MEMORY_BYTES_MIN));
        self.settings.memory_bytes.unwrap_or(share.max(least))
    }

    fn superblock(&self) -> Option<Superblock> {
        *self.superblock.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl BlockStore for KeyValueFile {
    fn geometry(&self) -> Geometry {
        Geometry {
            has_volatile_cache: self.settings.sync != Sync::Always,
            ..geometry(self.below.geometry().bytes())
        }
    }

    fn attach_as(&self, reactor: usize) -> io::Result<Box<dyn Backend>> {
        let superblock =
            self.superblock().ok_or_else(|| io::Error::other("nobody has said how many attach"))?;
        let log = superblock.log(reactor as u64, self.settings.sync);
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
        let partition = Partition::with_log(processor, unix_s(), log);
        let below = self.below.attach()?;
        // Commands on blocks find none.
        let geometry = Geometry { block_count: 0, ..self.geometry() };
        Ok(Box::new(Logged::new(partition, below, geometry)))
    }

    fn attach(&self) -> io::Result<Box<dyn Backend>> {
        self.attach_as(0)
    }

    fn resize(&self, _: u64) -> io::Result<()> {
        let message = "a key-value file keeps its size";
        Err(io::Error::new(io::ErrorKind::Unsupported, message))
    }

    fn reopen(&self) -> io::Result<()> {
        let message = "a key-value file is opened anew when the target is started again";
        Err(io::Error::new(io::ErrorKind::Unsupported, message))
    }

    fn generation(&self) -> Generation {
        self.below.generation()
    }

    fn closed_because(&self) -> Option<String> {
        self.below.closed_because()
    }

    fn can_change_underneath(&self) -> bool {
        self.below.can_change_underneath()
    }

    fn revalidate(&self) -> Option<Grown> {
        self.below.revalidate()
    }

    fn set_reactor_count(&self, count: usize) -> Result<(), OpenError> {
        if let Some(bytes) = self.settings.memory_bytes {
            check_memory(bytes, count)?;
        }
        let bytes = self.below.geometry().bytes();
        let superblock = Superblock::open(&self.settings.path, bytes, count.max(1) as u64)?;
        *self.superblock.lock().unwrap_or_else(PoisonError::into_inner) = Some(superblock);
        Ok(())
    }

    fn key_value(&self) -> Option<KeyValueShape> {
        let value_bytes_max =
            self.superblock().map_or(0, |superblock| superblock.log(0, self.settings.sync).value_bytes_max());
        let value_bytes_max = u32::try_from(value_bytes_max).unwrap_or(u32::MAX);
        let KeyValueFileSettings { item_bytes, allows_flush, .. } = self.settings;
        let bytes = self.below.geometry().bytes();
        Some(KeyValueShape {
            bytes,
            value_bytes_max,
            item_bytes: item_bytes.min(value_bytes_max),
            allows_flush,
        })
    }
}
