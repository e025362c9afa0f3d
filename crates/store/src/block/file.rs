//! A namespace on a file or block device: what all reactors share of it.
//!
//! ```text
//! Open(generation) ──a flush or durable write fails, on any reactor──▶ Closed(generation)
//!   ▲  └──────────────────── reopen ──────────┐                            │
//!   └───────────────────── Open(generation + 1) ◀──────── reopen ──────────┘
//! ```
//!
//! After one failed `fdatasync` the kernel reports success, so nobody may ask it again: the namespace is closed. What
//! was started in an earlier state never ends well in a later one.
//!
//! The kernel tells an error of writing back once to each open file description. Each reactor therefore has
//! descriptions of its own, and a separate one for flushes: no durable write can take the error that a flush must see.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use reactor::File;
use rustix::io::Errno;

use super::OpenError;
use super::error::check_size;
use super::file_backend::FileBackend;
use super::file_open::{self, FileKind, FileSettings, Opened, Traits};
use crate::namespace::{Backend, Geometry, Store, StoreError};

/// A namespace on a file or block device.
pub struct FileStore {
    shared: Arc<Shared>,
}

/// What all reactors share.
pub(super) struct Shared {
    /// What a log calls it.
    name: String,
    source: Source,
    block_bytes: u32,
    /// The generation, and in the lowest bit whether it is closed.
    gate: AtomicU64,
    bytes: AtomicU64,
    is_read_only: bool,
    is_direct: AtomicBool,
    has_volatile_cache: AtomicBool,
    can_punch: AtomicBool,
    /// Whether ranges can be zeroed without writing them.
    can_zero: AtomicBool,
    /// Whether it was said that the file is gone or cut.
    was_missed: AtomicBool,
    write_grain_bytes: u32,
    deallocate_grain_bytes: u32,
}

/// Where the bytes are.
enum Source {
    /// In a file or device of the system.
    Os { settings: FileSettings, current: Mutex<Current> },
    /// In a file of a simulated disk.
    Simulated(File),
}

/// The file of the present generation.
struct Current {
    /// `None` after an attempt to reopen has failed.
    opened: Option<Opened>,
}

/// The file descriptions of one reactor.
#[derive(Clone)]
pub(super) struct Descriptions {
    /// For reads and writes.
    pub(super) data: File,
    /// For flushes.
    pub(super) sync: File,
    /// Whether to look for the file being cut or deleted: it is a regular one, and had a name.
    pub(super) watch: Watch,
}

/// What can happen to a file behind our back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Watch {
    /// Nothing that can be seen: a device, a simulated file.
    Nothing,
    /// It can be cut.
    Size,
    /// It can be cut, and lose its name.
    SizeAndName,
}

/// A state of the gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Gate(u64);

impl Gate {
    pub(super) fn is_closed(self) -> bool {
        self.0 & 1 == 1
    }
}

impl FileStore {
    /// Opens a file or device, and keeps others from using it.
    ///
    /// # Errors
    /// What is not in order with it, and what to do.
    pub fn open(settings: &FileSettings) -> Result<Self, OpenError> {
        let opened = file_open::open(settings)?;
        let (bytes, block_bytes, traits) = (opened.bytes, opened.block_bytes, opened.traits);
        let name = settings.path.display().to_string();
        tracing::debug!(name, bytes, block_bytes, ?traits, "opened");
        let current = Mutex::new(Current { opened: Some(opened) });
        let source = Source::Os { settings: settings.clone(), current };
        Ok(Self::new(name, source, bytes, block_bytes, settings.is_read_only, traits))
    }

    /// A namespace on a file of a simulated disk.
    #[must_use]
    pub fn simulated(file: File, geometry: &Geometry) -> Self {
        let traits = Traits {
            is_direct: true,
            has_name: false,
            has_volatile_cache: geometry.has_volatile_cache,
            can_punch: geometry.can_deallocate,
            write_grain_bytes: geometry.preferred_write_blocks * geometry.block_bytes,
            deallocate_grain_bytes: geometry.preferred_deallocate_blocks * geometry.block_bytes,
        };
        let (bytes, source) = (geometry.bytes(), Source::Simulated(file));
        Self::new("simulated".into(), source, bytes, geometry.block_bytes, geometry.is_read_only, traits)
    }

    fn new(
        name: String,
        source: Source,
        bytes: u64,
        block_bytes: u32,
        is_read_only: bool,
        traits: Traits,
    ) -> Self {
        let shared = Shared {
            name,
            source,
            block_bytes,
            gate: AtomicU64::new(0),
            bytes: AtomicU64::new(bytes),
            is_read_only,
            is_direct: AtomicBool::new(traits.is_direct),
            has_volatile_cache: AtomicBool::new(traits.has_volatile_cache),
            can_punch: AtomicBool::new(traits.can_punch),
            can_zero: AtomicBool::new(true),
            was_missed: AtomicBool::new(false),
            write_grain_bytes: traits.write_grain_bytes,
            deallocate_grain_bytes: traits.deallocate_grain_bytes,
        };
        Self { shared: Arc::new(shared) }
    }
}

impl Shared {
    pub(super) fn geometry(&self) -> Geometry {
        let block_bytes = self.block_bytes;
        let can_deallocate = !self.is_read_only && self.can_punch();
        let blocks = |bytes: u32| (bytes / block_bytes).max(1);
        Geometry {
            block_bytes,
            block_count: self.bytes() / u64::from(block_bytes),
            is_read_only: self.is_read_only,
            has_volatile_cache: self.has_volatile_cache.load(Ordering::Relaxed),
            can_deallocate,
            reads_zeroes_after_deallocate: can_deallocate,
            preferred_write_blocks: blocks(self.write_grain_bytes),
            preferred_deallocate_blocks: blocks(self.deallocate_grain_bytes),
        }
    }

    pub(super) fn block_bytes(&self) -> u32 {
        self.block_bytes
    }

    pub(super) fn is_read_only(&self) -> bool {
        self.is_read_only
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Acquire)
    }

    pub(super) fn gate(&self) -> Gate {
        Gate(self.gate.load(Ordering::Acquire))
    }

    pub(super) fn can_punch(&self) -> bool {
        self.can_punch.load(Ordering::Relaxed)
    }

    pub(super) fn can_zero(&self) -> bool {
        self.can_zero.load(Ordering::Relaxed)
    }

    /// Remembers that punching is not supported.
    pub(super) fn on_punch_unsupported(&self) {
        if self.can_punch.swap(false, Ordering::Relaxed) {
            tracing::warn!(name = self.name, "space cannot be given back here: deallocation does nothing");
        }
    }

    /// Remembers that zeroing without writing is not supported.
    pub(super) fn on_zero_unsupported(&self) {
        if self.can_zero.swap(false, Ordering::Relaxed) {
            tracing::info!(name = self.name, "ranges cannot be zeroed here: zeroes are written");
        }
    }

    /// Closes the namespace for all reactors, if it is still in the state of `gate`.
    pub(super) fn close(&self, gate: Gate, why: &str, error: &io::Error) {
        let closed = gate.0 | 1;
        if self.gate.compare_exchange(gate.0, closed, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            tracing::error!(name = self.name, why, %error, "the namespace is closed until it is reopened");
        }
    }

    /// Whether a failed durable write leaves it unknown what else is durable. Its data may have been written and the
    /// flush after it failed, which then has reported an error of others. What is refused before anything is written
    /// is harmless; but through the page cache, lack of space can be an error of writing back.
    pub(super) fn failed_durable_write_closes(&self, errno: Errno) -> bool {
        let is_refusal =
            matches!(errno, Errno::NOSPC | Errno::DQUOT | Errno::INVAL | Errno::OPNOTSUPP | Errno::FBIG);
        !(is_refusal && self.is_direct.load(Ordering::Relaxed))
    }

    /// Descriptions for a reactor, of the present generation.
    pub(super) fn describe(&self) -> io::Result<Descriptions> {
        let (settings, current) = match &self.source {
            Source::Os { settings, current } => (settings, lock(current)),
            Source::Simulated(file) => {
                let (data, sync) = (file.clone(), file.clone());
                return Ok(Descriptions { data, sync, watch: Watch::Nothing });
            }
        };
        let Some(opened) = &current.opened else {
            return Err(io::Error::other(format!("{} could not be reopened", self.name)));
        };
        let is_direct = opened.traits.is_direct;
        let open = || {
            file_open::open_again(settings, opened.identity, is_direct)
                .map(File::new)
                .map_err(io::Error::other)
        };
        // Through the page cache, a process that is killed ends after its writes.
        let data = if is_direct { File::new(opened.data.try_clone()?) } else { open()? };
        // Without writes there is nothing to flush.
        let sync = if self.is_read_only { data.clone() } else { open()? };
        let watch = match (settings.kind, opened.traits.has_name) {
            (FileKind::Device, _) => Watch::Nothing,
            (FileKind::Regular, false) => Watch::Size,
            (FileKind::Regular, true) => Watch::SizeAndName,
        };
        Ok(Descriptions { data, sync, watch })
    }

    /// Whether a device ends before `end` now. What fails then is not for lack of space.
    pub(super) fn is_cut(&self, file: &File, end: u64) -> bool {
        file.descriptor().is_ok_and(|file| file_open::size(file).is_ok_and(|bytes| bytes < end))
    }

    /// Whether the file is still what it was, as far as `end`.
    pub(super) fn inspect(&self, files: &Descriptions, end: u64) -> Result<(), StoreError> {
        if files.watch == Watch::Nothing {
            return Ok(());
        }
        let Ok(file) = files.data.descriptor() else { return Ok(()) };
        let stat = rustix::fs::fstat(file).map_err(|errno| StoreError::WriteFailed(errno.raw_os_error()))?;
        let error = if files.watch == Watch::SizeAndName && stat.st_nlink == 0 {
            StoreError::Gone
        } else if stat.st_size.cast_unsigned() < end {
            StoreError::Truncated
        } else {
            return Ok(());
        };
        if !self.was_missed.swap(true, Ordering::Relaxed) {
            tracing::error!(name = self.name, %error, "writes are refused until the namespace is reopened");
        }
        Err(error)
    }

    /// Sizes the file, which `opened` keeps.
    fn resize_file(&self, settings: &FileSettings, opened: &mut Opened, bytes: u64) -> io::Result<()> {
        if settings.kind == FileKind::Device {
            // It may have been resized by whoever made it; we cannot.
            let actual = file_open::size(&opened.keeper)?;
            if bytes != actual {
                let message = format!("{} has a fixed size of {actual} bytes", self.name);
                return Err(io::Error::new(io::ErrorKind::Unsupported, message));
            }
        } else {
            let before = self.bytes();
            if bytes < before {
                // Nothing is started past the new end from now on.
                self.bytes.store(bytes, Ordering::Release);
            } else {
                // A write that was late when we last shrank may have left something.
                rustix::fs::ftruncate(&opened.keeper, before)?;
            }
            if let Err(errno) = rustix::fs::ftruncate(&opened.keeper, bytes) {
                self.bytes.store(before, Ordering::Release);
                return Err(errno.into());
            }
            if let Err(errno) = rustix::fs::fdatasync(&opened.keeper) {
                let error = errno.into();
                self.close(self.gate(), "a flush has failed", &error);
                return Err(error);
            }
        }
        opened.bytes = bytes;
        self.bytes.store(bytes, Ordering::Release);
        Ok(())
    }

    fn open_next_generation(&self) {
        let gate = self.gate.load(Ordering::Acquire);
        // Open states are even.
        self.gate.store((gate | 1) + 1, Ordering::Release);
    }
}

fn lock(current: &Mutex<Current>) -> MutexGuard<'_, Current> {
    current.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Store for FileStore {
    fn geometry(&self) -> Geometry {
        self.shared.geometry()
    }

    fn attach(&self) -> io::Result<Box<dyn Backend>> {
        let shared = Arc::clone(&self.shared);
        // The state is read first: if a reopen comes between, the descriptions are merely asked for again.
        let gate = shared.gate();
        let files = shared.describe()?;
        Ok(Box::new(FileBackend::new(shared, gate, files)))
    }

    fn resize(&self, bytes: u64) -> io::Result<()> {
        let shared = &self.shared;
        check_size(&shared.name, bytes, shared.block_bytes).map_err(io::Error::other)?;
        if shared.is_read_only {
            return Err(io::Error::new(io::ErrorKind::ReadOnlyFilesystem, "the namespace is read-only"));
        }
        match &shared.source {
            Source::Os { settings, current } => match &mut lock(current).opened {
                Some(opened) if !shared.gate().is_closed() => shared.resize_file(settings, opened, bytes),
                _ => Err(io::Error::other(StoreError::Closed)),
            },
            Source::Simulated(_) => {
                shared.bytes.store(bytes, Ordering::Release);
                Ok(())
            }
        }
    }

    fn reopen(&self) -> io::Result<()> {
        let shared = &self.shared;
        if let Source::Os { settings, current } = &shared.source {
            let mut current = lock(current);
            // Closed first: without the lock and the claim that the old description holds, nothing may run.
            shared.gate.fetch_or(1, Ordering::AcqRel);
            if let Some(opened) = current.opened.take() {
                file_open::unlock(&opened);
            }
            let opened = file_open::reopen(settings, shared.block_bytes).map_err(io::Error::other)?;
            shared.bytes.store(opened.bytes, Ordering::Release);
            let traits = opened.traits;
            shared.is_direct.store(traits.is_direct, Ordering::Relaxed);
            shared.has_volatile_cache.store(traits.has_volatile_cache, Ordering::Relaxed);
            shared.can_punch.store(traits.can_punch, Ordering::Relaxed);
            shared.can_zero.store(true, Ordering::Relaxed);
            shared.was_missed.store(false, Ordering::Relaxed);
            current.opened = Some(opened);
            shared.open_next_generation();
        } else {
            shared.open_next_generation();
        }
        tracing::info!(name = shared.name, "reopened");
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block::Contents;
    use crate::testing::{Bench, Outcome, Rig, Step, check_against_model, model_steps, open_in_time};
    use proptest::prelude::*;
    use reactor::EngineKind;
    use std::os::unix::fs::{FileExt, MetadataExt};
    use std::path::{Path, PathBuf};
    use tempfile::TempDir;

    const ENGINES: [EngineKind; 2] = [EngineKind::Uring, EngineKind::Epoll];

    fn settings(path: &Path, bytes: u64) -> FileSettings {
        FileSettings {
            path: path.to_owned(),
            kind: FileKind::Regular,
            contents: Contents::Blocks,
            bytes: Some(bytes),
            block_bytes: Some(512),
            is_read_only: false,
        }
    }

    /// Directories on the file systems of this machine: with direct I/O, and without zeroing of ranges.
    fn directories() -> Vec<TempDir> {
        let mut all = vec![tempfile::tempdir().unwrap()];
        match tempfile::tempdir_in("/dev/shm") {
            Ok(directory) => all.push(directory),
            Err(error) => eprintln!("skipped: no tmpfs in /dev/shm: {error}"),
        }
        all
    }

    /// A new file in each of them, with each engine that there is.
    fn on_every_system(bytes: u64, mut check: impl FnMut(&Path, &Arc<dyn Store>, &mut Rig)) {
        for directory in directories() {
            for engine in ENGINES {
                let path = directory.path().join(format!("{engine:?}"));
                let store: Arc<dyn Store> = Arc::new(FileStore::open(&settings(&path, bytes)).unwrap());
                if let Some(mut rig) = Rig::attach(&store, engine) {
                    check(&path, &store, &mut rig);
                }
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(12))]
        #[test]
        fn a_file_is_a_vector_of_bytes(steps in model_steps(64, true)) {
            let mut result = Ok(());
            on_every_system(64 * 512, |_, store, rig| {
                if result.is_ok() {
                    result = check_against_model(&**store, rig, steps.clone());
                }
            });
            result?;
        }
    }

    #[test]
    fn space_that_is_deallocated_comes_back() {
        const BYTES: u64 = 8 << 20;
        on_every_system(BYTES, |path, store, rig| {
            let used = || std::fs::metadata(path).unwrap().blocks() * 512;
            assert_eq!(used(), 0, "a new file is sparse");
            for offset in (0..BYTES).step_by(1 << 20) {
                assert_eq!(rig.write(offset, &vec![1; 1 << 20]), Ok(vec![]));
            }
            assert_eq!(rig.flush(), Ok(vec![]));
            assert!(used() >= BYTES);
            assert!(store.geometry().can_deallocate);
            assert_eq!(rig.run(Step::Deallocate { offset: 0, length: BYTES / 2 }), Ok(vec![]));
            assert!(used() <= BYTES / 2 + (1 << 16), "{} are used", used());
            let zeroes = Step::WriteZeroes {
                offset: BYTES / 2,
                length: BYTES / 2,
                is_durable: true,
                may_deallocate: true,
            };
            assert_eq!(rig.run(zeroes), Ok(vec![]));
            assert!(used() <= 1 << 16, "{} are used", used());
            assert_eq!(rig.read(BYTES - 4096, 4096), Ok(vec![0; 4096]));
        });
    }

    #[test]
    fn a_storm_of_durable_writes_and_flushes_ends() {
        on_every_system(1 << 20, |_, _, rig| {
            let steps = (0..1500u64).map(|n| match n % 3 {
                0 => Step::Flush,
                1 => {
                    Step::Write { offset: n % 256 * 4096, data: vec![n as u8; 512], is_durable: n % 30 == 1 }
                }
                _ => Step::WriteZeroes {
                    offset: n % 256 * 4096 + 2048,
                    length: 1024,
                    is_durable: true,
                    may_deallocate: n % 2 == 0,
                },
            });
            assert!(rig.run_all(steps.collect()).iter().all(Outcome::is_ok));
        });
    }

    #[test]
    fn two_reactors_see_one_namespace() {
        on_every_system(1 << 20, |_, store, rig| {
            let Some(mut other) = Rig::attach(store, EngineKind::Epoll) else { return };
            rig.write(4096, &[3; 4096]).unwrap();
            assert_eq!(other.read(4096, 4096), Ok(vec![3; 4096]));
            store.resize(8192).unwrap();
            store.resize(1 << 20).unwrap();
            other.write(8192, &[4; 512]).unwrap();
            assert_eq!(rig.read(8192, 1024), Ok([[4; 512], [0; 512]].concat()));
        });
    }

    #[test]
    fn a_file_that_is_cut_is_not_extended() {
        on_every_system(1 << 20, |path, store, rig| {
            rig.write(0, &[1; 8192]).unwrap();
            let file = std::fs::OpenOptions::new().write(true).open(path).unwrap();
            file.set_len(6000).unwrap();
            let zeroes = |may_deallocate| Step::WriteZeroes {
                offset: 65536,
                length: 4096,
                is_durable: true,
                may_deallocate,
            };
            for step in [
                Step::Write { offset: 4096, data: vec![2; 4096], is_durable: false },
                Step::Write { offset: 65536, data: vec![2; 4096], is_durable: true },
                Step::Read { offset: 65536, length: 4096 },
                Step::Read { offset: 4096, length: 4096 },
                zeroes(true),
                zeroes(false),
                Step::Deallocate { offset: 65536, length: 4096 },
                Step::Flush,
            ] {
                assert_eq!(rig.run(step.clone()), Err(StoreError::Truncated), "{step:?}");
            }
            assert_eq!(file.metadata().unwrap().len(), 6000);
            assert_eq!(rig.read(0, 512), Ok(vec![1; 512]), "what is left is served");
            // As it is, it makes no namespace.
            assert!(store.reopen().is_err());
            assert_eq!(rig.read(0, 512), Err(StoreError::Closed));
            file.set_len(8192).unwrap();
            store.reopen().unwrap();
            assert_eq!(store.geometry().block_count, 16);
            assert_eq!(rig.read(0, 512), Ok(vec![1; 512]));
        });
    }

    #[test]
    fn what_lies_behind_the_end_never_comes_into_the_namespace() {
        on_every_system(65536, |path, store, rig| {
            let file = std::fs::OpenOptions::new().write(true).open(path).unwrap();
            file.write_all_at(&[9; 8192], 65536).unwrap();
            store.resize(2 * 65536).unwrap();
            assert_eq!(rig.read(65536, 65536), Ok(vec![0; 65536]));
        });
    }

    #[test]
    fn nothing_is_written_to_a_file_that_was_deleted_or_replaced() {
        on_every_system(65536, |path, store, rig| {
            rig.write(0, &[1; 4096]).unwrap();
            let aside = path.with_extension("new");
            std::fs::write(&aside, vec![9; 65536]).unwrap();
            std::fs::rename(&aside, path).unwrap();
            assert_eq!(rig.write(0, &[2; 4096]), Err(StoreError::Gone));
            assert_eq!(rig.flush(), Err(StoreError::Gone));
            assert_eq!(rig.read(0, 4096), Ok(vec![1; 4096]), "what was there can still be read");
            assert!(store.attach().is_err(), "no reactor may begin with the other file");
            store.reopen().unwrap();
            assert_eq!(rig.read(0, 4096), Ok(vec![9; 4096]));
            assert_eq!(rig.write(0, &[2; 4096]), Ok(vec![]));
            std::fs::remove_file(path).unwrap();
            assert_eq!(rig.write(0, &[2; 4096]), Err(StoreError::Gone));
            assert!(store.reopen().is_err());
            assert_eq!(rig.write(0, &[2; 4096]), Err(StoreError::Closed));
            assert!(!path.exists(), "reopening creates nothing");
        });
    }

    #[test]
    fn a_reopened_file_is_locked_as_before() {
        let directory = tempfile::tempdir().unwrap();
        let settings = settings(&directory.path().join("a"), 65536);
        let store = FileStore::open(&settings).unwrap();
        store.reopen().unwrap();
        assert!(matches!(FileStore::open(&settings), Err(OpenError::Locked { .. })));
        drop(store);
        assert!(open_in_time(|| FileStore::open(&settings)).is_ok());
    }

    #[test]
    fn what_is_being_written_keeps_the_lock() {
        let directory = tempfile::tempdir().unwrap();
        let settings = settings(&directory.path().join("a"), 65536);
        let store = FileStore::open(&settings).unwrap();
        if !store.shared.is_direct.load(Ordering::Relaxed) {
            return;
        }
        // As the kernel has it while a write runs, whatever becomes of the process.
        let running = store.shared.describe().unwrap().data;
        drop(store);
        assert!(matches!(FileStore::open(&settings), Err(OpenError::Locked { .. })));
        drop(running);
        assert!(open_in_time(|| FileStore::open(&settings)).is_ok());
    }

    #[test]
    fn a_loop_device_is_a_vector_of_bytes() {
        let Some(device) = LoopDevice::new(64 << 10) else { return };
        let mut settings = FileSettings {
            kind: FileKind::Device,
            bytes: None,
            block_bytes: None,
            ..settings(&device.path, 0)
        };
        let store = FileStore::open(&settings).unwrap();
        assert_eq!(store.geometry().block_bytes, 4096, "what the device has");
        assert_eq!(store.geometry().bytes(), 64 << 10);
        assert!(store.resize(32 << 10).is_err() && store.resize(64 << 10).is_ok());
        assert!(matches!(FileStore::open(&settings), Err(OpenError::Busy { .. })));
        let store: Arc<dyn Store> = Arc::new(store);
        for engine in ENGINES {
            let Some(rig) = Rig::attach(&store, engine) else { continue };
            let rig = std::cell::RefCell::new(rig);
            proptest!(ProptestConfig::with_cases(8), |(steps in model_steps(16, false))| {
                // As new.
                let zeroes =
                    Step::WriteZeroes { offset: 0, length: 64 << 10, is_durable: true, may_deallocate: true };
                prop_assert_eq!(rig.borrow_mut().run(zeroes), Ok(vec![]));
                check_against_model(&*store, &mut *rig.borrow_mut(), steps)?;
            });
            store.reopen().unwrap();
            assert_eq!(rig.into_inner().flush(), Ok(vec![]));
        }
        device.cut(32 << 10);
        if let Some(mut rig) = Rig::attach(&store, EngineKind::Epoll) {
            for step in [
                Step::Write { offset: 32 << 10, data: vec![1; 4096], is_durable: false },
                Step::Read { offset: 32 << 10, length: 4096 },
            ] {
                assert_eq!(rig.run(step), Err(StoreError::Truncated));
            }
            assert_eq!(rig.write(0, &[1; 4096]), Ok(vec![]));
        }
        store.resize(32 << 10).unwrap();
        drop(store);
        settings.block_bytes = Some(512);
        let refused = FileStore::open(&settings).err().unwrap();
        assert!(matches!(refused, OpenError::BlockTooSmall { block_bytes_min: 4096, .. }), "{refused}");
    }

    /// A block device on a file, for as long as it lives.
    struct LoopDevice {
        path: PathBuf,
        file: tempfile::NamedTempFile,
    }

    impl LoopDevice {
        fn new(bytes: u64) -> Option<Self> {
            let file = tempfile::NamedTempFile::new().unwrap();
            file.as_file().set_len(bytes).unwrap();
            let made = std::process::Command::new("losetup")
                .args(["--find", "--show", "--sector-size", "4096"])
                .arg(file.path())
                .output();
            match made {
                Ok(output) if output.status.success() => {
                    let path = String::from_utf8(output.stdout).unwrap();
                    Some(Self { path: path.trim().into(), file })
                }
                other => {
                    eprintln!("skipped: no loop device can be made here (that takes root): {other:?}");
                    None
                }
            }
        }

        fn cut(&self, bytes: u64) {
            self.file.as_file().set_len(bytes).unwrap();
            let status = std::process::Command::new("losetup").arg("--set-capacity").arg(&self.path).status();
            assert!(status.unwrap().success());
        }
    }

    impl Drop for LoopDevice {
        fn drop(&mut self) {
            let _ = std::process::Command::new("losetup").arg("--detach").arg(&self.path).status();
        }
    }
}
