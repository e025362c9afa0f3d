//! Key-value namespaces: one partition of the key space per reactor, in RAM or with a log in a file.

mod file;
mod logged;
pub(crate) mod mark;
mod prefault;
pub(crate) mod superblock;

use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};

use kv::{Eviction, Partition, Processor, Settings};
use reactor::{Completion, Payload, Pool};
use rustix::time::{ClockId, clock_gettime};

use crate::block::OpenError;
pub use crate::key_value::file::{KeyValueFile, KeyValueFileSettings};
pub use crate::key_value::logged::Logged;
use crate::namespace::{Backend, BlockStore, Geometry, Reply, Request, StoreError, StoreIo, Ticket};

/// The unit in which the size of a key-value namespace is told where blocks are asked for.
const UNIT_BYTES: u32 = 4096;

/// How a key-value namespace is to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyValueSettings {
    /// Memory of all partitions together.
    pub bytes: u64,
    /// Whether pairs that nobody uses make room for others.
    pub evicts: bool,
    /// The longest value that memcached's clients may store.
    pub item_bytes: u32,
    /// Whether memcached's clients may remove everything at once.
    pub allows_flush: bool,
    /// Whether the memory is touched ahead.
    pub prefaults: bool,
}

/// The longest value that memcached's clients may store unless the specification says otherwise, as memcached has it:
/// a mebibyte with its header.
pub const ITEM_BYTES_DEFAULT: u32 = 1_048_500;

/// What clients are told of a key-value namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyValueShape {
    /// Memory of all partitions together.
    pub bytes: u64,
    /// The longest value.
    pub value_bytes_max: u32,
    /// The longest value that memcached's clients may store.
    pub item_bytes: u32,
    /// Whether memcached's clients may remove everything at once.
    pub allows_flush: bool,
}

/// A key-value namespace.
pub struct KeyValueStore {
    settings: KeyValueSettings,
    /// Where keys go: the same for all partitions, and unknown to peers.
    seed: u64,
    reactor_count: AtomicUsize,
}

/// One reactor's partition, in RAM.
struct InMemory {
    partition: Partition,
    geometry: Geometry,
}

impl KeyValueStore {
    /// A namespace without keys. Its memory is taken by each reactor for itself, as it attaches.
    #[must_use]
    pub fn new(settings: KeyValueSettings) -> Self {
        let seed = RandomState::new().build_hasher().finish();
        Self { settings, seed, reactor_count: AtomicUsize::new(1) }
    }
}

impl BlockStore for KeyValueStore {
    fn geometry(&self) -> Geometry {
        geometry(self.settings.bytes)
    }

    fn attach(&self) -> io::Result<Box<dyn Backend>> {
        let count = self.reactor_count.load(Ordering::Acquire).max(1) as u64;
        let mut processor = Processor::new(Settings {
            memory_bytes: usize::try_from(self.settings.bytes / count).unwrap_or(usize::MAX),
            eviction: if self.settings.evicts { Eviction::Clock } else { Eviction::None },
            seed: self.seed,
            ..Settings::default()
        })?;
        if self.settings.prefaults {
            prefault::begin(&mut processor)?;
        }
        let partition = Partition::new(processor, unix_s());
        // Commands on blocks find none.
        let geometry = Geometry { block_count: 0, ..self.geometry() };
        Ok(Box::new(InMemory { partition, geometry }))
    }

    fn resize(&self, _: u64) -> io::Result<()> {
        let message = "a key-value namespace keeps its size until the target is started again";
        Err(io::Error::new(io::ErrorKind::Unsupported, message))
    }

    fn reopen(&self) -> io::Result<()> {
        Ok(())
    }

    fn set_reactor_count(&self, count: usize) -> Result<(), OpenError> {
        check_memory(self.settings.bytes, count)?;
        self.reactor_count.store(count, Ordering::Release);
        Ok(())
    }

    fn key_value(&self) -> Option<KeyValueShape> {
        let value_bytes_max = u32::try_from(Settings::default().value_bytes_max).unwrap_or(u32::MAX);
        let KeyValueSettings { bytes, item_bytes, allows_flush, .. } = self.settings;
        Some(KeyValueShape { bytes, value_bytes_max, item_bytes, allows_flush })
    }
}

/// The least memory of one partition, bytes.
pub(crate) const MEMORY_BYTES_MIN: u64 = Settings::MEMORY_BYTES_MIN as u64;

/// Checks that memory is enough to be divided among so many partitions.
pub(crate) fn check_memory(bytes: u64, partition_count: usize) -> Result<(), OpenError> {
    let partition_count = partition_count.max(1) as u64;
    let bytes_min = partition_count.saturating_mul(MEMORY_BYTES_MIN);
    if bytes < bytes_min {
        return Err(OpenError::MemoryTooSmall { bytes, partition_count, bytes_min });
    }
    Ok(())
}

/// What is told of a key-value namespace where blocks are asked for.
fn geometry(bytes: u64) -> Geometry {
    Geometry {
        block_bytes: UNIT_BYTES,
        block_count: bytes / u64::from(UNIT_BYTES),
        is_read_only: false,
        has_volatile_cache: false,
        can_deallocate: false,
        reads_zeroes_after_deallocate: false,
        preferred_write_blocks: 1,
        preferred_deallocate_blocks: 1,
    }
}

/// Unix time, s: what keys and values expire by.
#[must_use]
pub fn unix_s() -> i64 {
    // As of the kernel's last tick: every command asks, so no clock is read for it.
    clock_gettime(ClockId::RealtimeCoarse).tv_sec
}

/// A key-value namespace has no blocks: what is asked of them fails.
impl Backend for InMemory {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn read_now(
        &mut self,
        _: Option<&Pool>,
        _: u64,
        _: usize,
        _: bool,
    ) -> Option<Result<Payload, StoreError>> {
        Some(Err(StoreError::Unsupported))
    }

    fn write_now(&mut self, _: u64, _: &[u8], _: bool) -> Option<Result<(), StoreError>> {
        Some(Err(StoreError::Unsupported))
    }

    fn compare_now(&mut self, _: u64, _: &[u8]) -> Option<Result<bool, StoreError>> {
        Some(Err(StoreError::Unsupported))
    }

    fn start(&mut self, io: &mut dyn StoreIo, ticket: Ticket, request: Request) {
        let (result, buffer) = match request {
            // What is in RAM is as durable as it gets.
            Request::Flush => (Ok(()), None),
            Request::Read { buffer, .. } | Request::Write { buffer, .. } => {
                (Err(StoreError::Unsupported), Some(buffer))
            }
            Request::Deallocate { .. } | Request::WriteZeroes { .. } => (Err(StoreError::Unsupported), None),
        };
        io.reply(ticket, Reply { result, buffer });
    }

    fn on_completion(&mut self, _: &mut dyn StoreIo, _: Ticket, _: Completion) {}

    fn on_timer(&mut self, _: &mut dyn StoreIo, _: Ticket) {}

    fn key_value(&mut self) -> Option<&mut Partition> {
        Some(&mut self.partition)
    }
}
