//! A namespace on a file or block device: what all reactors share of it.
//!
//! ```text
//! Open(generation) ──a flush or durable write fails on any reactor, or the storage is found cut or deleted──▶ Closed
//!   ▲  └──────────────────── reopen ──────────┐                                                                │
//!   └───────────────────── Open(generation + 1) ◀──────────────────────── reopen ──────────────────────────────┘
//! ```
//!
//! After one failed `fdatasync` the kernel reports success, so no reactor may ask it again: the namespace is closed. A
//! file that was cut has lost data, also if it grows again later. A request that was started in an earlier state never
//! succeeds in a later one.
//!
//! The kernel tells an error of writing back once to each open file description. Each reactor therefore has
//! descriptions of its own, and a separate one for flushes: no durable write can take the error that a flush must see.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use reactor::File;
use rustix::io::Errno;

use super::OpenError;
use super::error::check_size;
use super::file_backend::FileBackend;
use super::file_open::{self, Contents, FileKind, FileSettings, Opened, Traits};
use crate::namespace::{Backend, BlockStore, Generation, Geometry, Grown, StoreError};
use crate::size::Size;

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
    /// Why the namespace is closed.
    reason: Mutex<Option<String>>,
    /// Whether the namespace has been made smaller: what lies behind its end may be a late write of its own.
    has_shrunk: AtomicBool,
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
    /// `None` after an attempt to reopen a device has failed.
    opened: Option<Opened>,
    /// The size that the configuration says; `None` for what the file has.
    wanted: Option<u64>,
    /// What was logged about the path or size last, so that each change is logged once.
    noted: Option<String>,
}

/// The file descriptions of one reactor.
#[derive(Clone)]
pub(super) struct Descriptions {
    /// For reads and writes.
    pub(super) data: File,
    /// For flushes.
    pub(super) sync: File,
    /// What to look for before storage is changed or flushed.
    pub(super) watch: Watch,
}

/// What can happen to storage underneath the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Watch {
    /// Nothing: a simulated file.
    Nothing,
    /// A device can become smaller or go away. A write past its end fails by itself, so only flushes look.
    Device,
    /// A file can be cut.
    Size,
    /// A file can be cut, and lose its name.
    SizeAndName,
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
        let current = Mutex::new(Current { opened: Some(opened), wanted: settings.bytes, noted: None });
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
            reason: Mutex::default(),
            has_shrunk: AtomicBool::new(false),
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

    pub(super) fn gate(&self) -> Generation {
        Generation(self.gate.load(Ordering::Acquire))
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
    pub(super) fn close(&self, gate: Generation, why: &dyn fmt::Display) {
        let closed = gate.0 | 1;
        if self.gate.compare_exchange(gate.0, closed, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            *lock(&self.reason) = Some(why.to_string());
            tracing::error!(
                name = self.name, %why,
                "the namespace is closed until it is reopened (SIGHUP, nvlane reload)"
            );
        }
    }

    /// Whether a write that failed so was refused before anything was written: then every earlier write is as durable as
    /// it was. All other failures may be that of a flush, which has reported a loss of other writes. Through the page
    /// cache, lack of space can be an error of writing back.
    pub(super) fn is_refusal(&self, error: StoreError) -> bool {
        let is_direct = self.is_direct.load(Ordering::Relaxed);
        match error {
            StoreError::FileSizeLimit => true,
            StoreError::NoSpace => is_direct,
            StoreError::WriteFailed(errno) => {
                is_direct && [Errno::INVAL, Errno::OPNOTSUPP].map(Errno::raw_os_error).contains(&errno)
            }
            _ => false,
        }
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
        Ok(Descriptions { data, sync, watch: watch_of(settings, opened) })
    }

    /// Looks at a file before it is written, zeroed or given back: a write past its end would make it longer again.
    ///
    /// # Errors
    /// What was found; the namespace is closed then.
    pub(super) fn inspect(&self, files: &Descriptions, gate: Generation) -> Result<(), StoreError> {
        match files.watch {
            Watch::Nothing | Watch::Device => Ok(()),
            Watch::Size | Watch::SizeAndName => self.inspect_whole(files, gate),
        }
    }

    /// Looks at a file or device: it is to be as long as the namespace, and to have its name.
    ///
    /// # Errors
    /// What was found; the namespace is closed then.
    pub(super) fn inspect_whole(&self, files: &Descriptions, gate: Generation) -> Result<(), StoreError> {
        let Ok(file) = files.data.descriptor() else { return Ok(()) };
        self.inspect_open(file, files.watch, gate)
    }

    fn inspect_open(&self, file: BorrowedFd<'_>, watch: Watch, gate: Generation) -> Result<(), StoreError> {
        // A resize runs on another thread: the file is as long as the smaller of both sizes at any moment.
        let before = self.bytes();
        let (actual, link_count) = match watch {
            Watch::Nothing => return Ok(()),
            Watch::Device => (file_open::size(file), 1),
            Watch::Size | Watch::SizeAndName => match rustix::fs::fstat(file) {
                Ok(stat) => (Ok(stat.st_size.cast_unsigned()), stat.st_nlink),
                Err(errno) => (Err(errno.into()), 1),
            },
        };
        let actual = actual.map_err(|error| StoreError::WriteFailed(error.raw_os_error().unwrap_or(0)))?;
        let wanted = before.min(self.bytes());
        if watch == Watch::SizeAndName && link_count == 0 {
            // Whoever deleted it by mistake can still copy it, as long as the description is open.
            let process = std::process::id();
            let descriptor = file.as_raw_fd();
            let why = format!(
                "its file was deleted or replaced; /proc/{process}/fd/{descriptor} still has the data (cp --preserve=xattr)"
            );
            self.close(gate, &why);
            return Err(StoreError::Gone);
        }
        if actual < wanted {
            let (is, was) = (Size(actual), Size(wanted));
            let why = match (watch, actual) {
                (Watch::Device, 0) => "its device was removed".to_owned(),
                _ => format!("its storage was cut from {was} to {is}, what lay behind is lost"),
            };
            self.close(gate, &why);
            return Err(StoreError::Truncated);
        }
        Ok(())
    }

    /// Looks for a cut after an operation has met the end of its storage.
    pub(super) fn is_cut(&self, files: &Descriptions, gate: Generation) -> bool {
        self.inspect_whole(files, gate) == Err(StoreError::Truncated)
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
                self.has_shrunk.store(true, Ordering::Relaxed);
                self.bytes.store(bytes, Ordering::Release);
            } else if self.has_shrunk.load(Ordering::Relaxed) {
                // A write that was late when we last shrank may have left something.
                rustix::fs::ftruncate(&opened.keeper, before)?;
            } else {
                // What another program has put behind the end stays: it comes into the namespace, or is not touched.
                let actual = file_open::size(&opened.keeper)?;
                if actual > bytes {
                    let message = format!("{} has {} already: make it no smaller", self.name, Size(actual));
                    return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
                }
            }
            if let Err(errno) = rustix::fs::ftruncate(&opened.keeper, bytes) {
                self.bytes.store(before, Ordering::Release);
                return Err(errno.into());
            }
            if let Err(errno) = rustix::fs::fdatasync(&opened.keeper) {
                let error: io::Error = errno.into();
                self.close(self.gate(), &format_args!("a flush has failed: {error}"));
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

fn watch_of(settings: &FileSettings, opened: &Opened) -> Watch {
    match (settings.kind, opened.traits.has_name) {
        (FileKind::Device, _) => Watch::Device,
        (FileKind::Regular, false) => Watch::Size,
        (FileKind::Regular, true) => Watch::SizeAndName,
    }
}

fn lock<T>(current: &Mutex<T>) -> MutexGuard<'_, T> {
    current.lock().unwrap_or_else(PoisonError::into_inner)
}

impl BlockStore for FileStore {
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
            Source::Os { settings, current } => {
                let mut current = lock(current);
                match &mut current.opened {
                    Some(opened) if !shared.gate().is_closed() => {
                        shared.resize_file(settings, opened, bytes)?;
                    }
                    _ => return Err(io::Error::other(StoreError::Closed)),
                }
                if settings.kind == FileKind::Regular {
                    current.wanted = Some(bytes);
                }
                Ok(())
            }
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
            // Closed first: while another file takes its place, nothing may run.
            if !Generation(shared.gate.fetch_or(1, Ordering::AcqRel)).is_closed() {
                *lock(&shared.reason) = Some("it is being reopened".to_owned());
            }
            current.reopen(settings, shared).map_err(io::Error::other)?;
        }
        *lock(&shared.reason) = None;
        shared.open_next_generation();
        tracing::info!(name = shared.name, "reopened");
        Ok(())
    }

    fn generation(&self) -> Generation {
        self.shared.gate()
    }

    fn closed_because(&self) -> Option<String> {
        if !self.shared.gate().is_closed() {
            return None;
        }
        // The gate closes a moment before the reason is there.
        Some(lock(&self.shared.reason).clone().unwrap_or_else(|| StoreError::Closed.to_string()))
    }

    fn can_change_underneath(&self) -> bool {
        matches!(self.shared.source, Source::Os { .. })
    }

    fn revalidate(&self) -> Option<Grown> {
        let shared = &self.shared;
        let Source::Os { settings, current } = &shared.source else { return None };
        let mut current = lock(current);
        let gate = shared.gate();
        if gate.is_closed() {
            return None;
        }
        let opened = current.opened.as_ref()?;
        shared.inspect_open(opened.data.as_fd(), watch_of(settings, opened), gate).ok()?;
        let actual = file_open::size(&opened.data).ok()?;
        current.note_place(settings, &shared.name);
        let before = shared.bytes();
        let after = actual - actual % u64::from(shared.block_bytes);
        if after <= before || settings.contents == Contents::Pairs {
            return None;
        }
        if current.wanted.is_some() {
            let message = format!(
                "it has {} by now, and the namespace keeps {} as the configuration says: write size={}, or leave size out, \
                 to use the rest",
                Size(actual),
                Size(before),
                Size(after)
            );
            current.note(&shared.name, message);
            return None;
        }
        if let Some(opened) = &mut current.opened {
            opened.bytes = after;
        }
        shared.bytes.store(after, Ordering::Release);
        Some(Grown { before, after })
    }
}

/// Whether hosts may take `opened` for the file that was served `before`: it is that file, or a copy that has its identity.
fn may_follow(opened: &Opened, before: &Opened) -> bool {
    let identity = crate::identity::of_open(&before.data);
    opened.identity == before.identity
        || identity.is_some() && crate::identity::of_open(&opened.data) == identity
}

impl Current {
    /// Opens what the path leads to now. If that fails, the old file stays open: it may be the last way to its data.
    fn reopen(&mut self, settings: &FileSettings, shared: &Shared) -> Result<(), OpenError> {
        file_open::check_place(settings)?;
        let before = match (settings.kind, self.opened.take()) {
            (FileKind::Regular, Some(opened)) => {
                file_open::unlock(&opened);
                Some(opened)
            }
            // The claim on a device is one, and nothing but the device has its data.
            (_, opened) => {
                opened.iter().for_each(file_open::unlock);
                None
            }
        };
        let opened = file_open::reopen(settings, shared.block_bytes).and_then(|opened| {
            let path = settings.path.clone();
            match (self.wanted.filter(|wanted| opened.bytes < *wanted), &before) {
                (_, Some(before)) if !may_follow(&opened, before) => Err(OpenError::OtherIdentity { path }),
                (Some(wanted), _) => Err(OpenError::Cut { path, bytes: opened.bytes, wanted }),
                (None, _) => Ok(opened),
            }
        });
        let opened = match opened {
            Ok(opened) => opened,
            Err(error) => {
                if let Some(before) = &before {
                    file_open::lock_again(settings, before);
                }
                self.opened = before;
                return Err(error);
            }
        };
        let lost = shared.bytes().saturating_sub(opened.bytes);
        if lost > 0 {
            tracing::warn!(
                name = shared.name, size = %Size(opened.bytes), lost = %Size(lost),
                "reopened smaller than it was: what lay behind is lost"
            );
        }
        if before.is_some_and(|before| before.identity != opened.identity) {
            tracing::warn!(
                name = shared.name,
                "another file is in the place of the one that was served before"
            );
        }
        shared.bytes.store(opened.bytes, Ordering::Release);
        let traits = opened.traits;
        shared.is_direct.store(traits.is_direct, Ordering::Relaxed);
        shared.has_volatile_cache.store(traits.has_volatile_cache, Ordering::Relaxed);
        shared.can_punch.store(traits.can_punch, Ordering::Relaxed);
        shared.can_zero.store(true, Ordering::Relaxed);
        shared.has_shrunk.store(false, Ordering::Relaxed);
        *self = Self { opened: Some(opened), wanted: self.wanted, noted: None };
        Ok(())
    }

    /// Logs that the path does not lead to the file any more: a restart would not find it.
    fn note_place(&mut self, settings: &FileSettings, name: &str) {
        let Some(opened) = self.opened.as_ref().filter(|opened| opened.traits.has_name) else { return };
        let message = match file_open::identity_at(settings) {
            Ok(identity) if identity == opened.identity => return,
            Ok(_) => "its path leads to another file by now: a restart would serve that one".to_owned(),
            Err(error) => format!("its path leads to it no more ({error}): a restart would not find it"),
        };
        self.note(name, message);
    }

    fn note(&mut self, name: &str, message: String) {
        if self.noted.as_ref() != Some(&message) {
            tracing::warn!(name, "{message}");
            self.noted = Some(message);
        }
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
    fn on_every_system(bytes: u64, mut check: impl FnMut(&Path, &Arc<dyn BlockStore>, &mut Rig)) {
        for directory in directories() {
            for engine in ENGINES {
                let path = directory.path().join(format!("{engine:?}"));
                let store: Arc<dyn BlockStore> = Arc::new(FileStore::open(&settings(&path, bytes)).unwrap());
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

    fn zeroes_at(offset: u64, is_durable: bool, may_deallocate: bool) -> Step {
        Step::WriteZeroes { offset, length: 4096, is_durable, may_deallocate }
    }

    /// Everything that a host may ask of blocks that are still there.
    fn one_of_each() -> Vec<Step> {
        vec![
            Step::Read { offset: 0, length: 512 },
            Step::Write { offset: 0, data: vec![2; 4096], is_durable: false },
            Step::Write { offset: 0, data: vec![2; 4096], is_durable: true },
            zeroes_at(0, true, true),
            zeroes_at(0, false, false),
            Step::Deallocate { offset: 0, length: 4096 },
            Step::Flush,
        ]
    }

    fn open_for_writing(path: &Path) -> std::fs::File {
        std::fs::OpenOptions::new().write(true).open(path).unwrap()
    }

    #[test]
    fn whatever_meets_a_cut_file_first_closes_it_until_it_is_reopened() {
        let first_to_meet = [
            Step::Write { offset: 4096, data: vec![2; 4096], is_durable: false },
            Step::Write { offset: 0, data: vec![2; 4096], is_durable: true },
            Step::Read { offset: 65536, length: 4096 },
            Step::Read { offset: 4096, length: 4096 },
            zeroes_at(65536, true, true),
            zeroes_at(0, false, false),
            Step::Deallocate { offset: 65536, length: 4096 },
            Step::Flush,
        ];
        for step in first_to_meet {
            on_every_system(1 << 20, |path, store, rig| {
                let mut other = Rig::attach(store, EngineKind::Epoll).unwrap();
                rig.write(0, &[1; 8192]).unwrap();
                let file = open_for_writing(path);
                file.set_len(6000).unwrap();
                assert_eq!(rig.run(step.clone()), Err(StoreError::Truncated), "{step:?}");
                assert_eq!(file.metadata().unwrap().len(), 6000, "{step:?} made it longer");
                let why = store.closed_because().expect("closed");
                assert!(why.contains("cut from 1M to"), "{why}");
                // It is as long as before, and what lay behind the cut reads as zeroes.
                file.set_len(1 << 20).unwrap();
                for bench in [rig, &mut other] {
                    for next in one_of_each() {
                        assert_eq!(
                            bench.run(next.clone()),
                            Err(StoreError::Closed),
                            "{next:?} after {step:?}"
                        );
                    }
                }
            });
        }
    }

    #[test]
    fn a_file_that_is_too_short_for_its_size_is_not_reopened() {
        on_every_system(1 << 20, |path, store, rig| {
            rig.write(0, &[1; 8192]).unwrap();
            let file = open_for_writing(path);
            file.set_len(8192).unwrap();
            assert_eq!(rig.flush(), Err(StoreError::Truncated));
            let refused = store.reopen().unwrap_err().to_string();
            assert!(refused.contains("has 8K and size=1M is more: it was cut"), "{refused}");
            assert_eq!(rig.read(0, 512), Err(StoreError::Closed));
            file.set_len(1 << 20).unwrap();
            let before = store.generation();
            store.reopen().unwrap();
            assert!(before.is_closed() && store.generation() == before.open());
            assert_eq!(store.closed_because(), None);
            assert_eq!(rig.read(0, 512), Ok(vec![1; 512]));
            for step in one_of_each() {
                assert!(rig.run(step.clone()).is_ok(), "{step:?}");
            }
        });
    }

    #[test]
    fn a_file_without_a_size_is_reopened_as_it_is_and_the_namespace_is_smaller() {
        on_every_system(1 << 20, |path, _, _| {
            let settings = FileSettings { bytes: None, ..settings(path, 0) };
            std::fs::rename(path, path.with_extension("b")).unwrap();
            let settings = FileSettings { path: path.with_extension("b"), ..settings };
            let Ok(_) = std::fs::File::open(&settings.path) else { return };
            // The first store still has the lock on this file: a copy of its own.
            std::fs::copy(&settings.path, path).unwrap();
            let settings = FileSettings { path: path.to_owned(), ..settings };
            let store: Arc<dyn BlockStore> = Arc::new(open_in_time(|| FileStore::open(&settings)).unwrap());
            let mut rig = Rig::attach(&store, EngineKind::Epoll).unwrap();
            rig.write(0, &[1; 4096]).unwrap();
            open_for_writing(path).set_len(8192 + 100).unwrap();
            assert_eq!(store.revalidate(), None);
            assert!(store.closed_because().is_some(), "the look alone closes it");
            assert!(store.reopen().is_err(), "no whole number of blocks");
            open_for_writing(path).set_len(8192).unwrap();
            store.reopen().unwrap();
            assert_eq!(store.geometry().block_count, 16);
            assert_eq!(rig.read(0, 4096), Ok(vec![1; 4096]));
            assert_eq!(rig.read(8192, 512), Err(StoreError::Truncated), "past its end now");
            assert_eq!(store.closed_because(), None, "which closes nothing");
        });
    }

    #[test]
    fn a_namespace_grows_with_its_file_if_no_size_is_said() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a");
        std::fs::File::create(&path).unwrap().set_len(65536).unwrap();
        let store: Arc<dyn BlockStore> =
            Arc::new(FileStore::open(&FileSettings { bytes: None, ..settings(&path, 0) }).unwrap());
        let mut rig = Rig::attach(&store, EngineKind::Epoll).unwrap();
        assert_eq!(store.revalidate(), None);
        let file = open_for_writing(&path);
        file.write_all_at(&[9; 1000], 65536).unwrap();
        assert_eq!(
            store.revalidate(),
            Some(Grown { before: 65536, after: 65536 + 512 }),
            "whole blocks only"
        );
        assert_eq!(rig.read(65536, 512), Ok(vec![9; 512]), "with what was written there");
        assert_eq!(store.revalidate(), None, "once");
        assert_eq!(rig.write(65536, &[1; 512]), Ok(vec![]));
        drop(rig);
        drop(store);

        let store = open_in_time(|| FileStore::open(&settings(&path, 131_072))).unwrap();
        file.set_len(200_000).unwrap();
        assert_eq!(store.revalidate(), None, "the configuration says its size");
        assert_eq!(store.geometry().bytes(), 131_072);
        assert!(store.resize(150_016).unwrap_err().to_string().contains("already"), "nothing is cut off");
        assert_eq!(file.metadata().unwrap().len(), 200_000);
    }

    #[test]
    fn what_a_late_write_left_behind_the_end_never_comes_into_the_namespace() {
        on_every_system(65536, |path, store, rig| {
            store.resize(32768).unwrap();
            open_for_writing(path).write_all_at(&[9; 8192], 32768).unwrap();
            store.resize(65536).unwrap();
            assert_eq!(rig.read(32768, 32768), Ok(vec![0; 32768]));
        });
    }

    #[test]
    fn what_another_program_has_written_behind_the_end_comes_into_the_namespace() {
        on_every_system(65536, |path, store, rig| {
            open_for_writing(path).write_all_at(&[9; 8192], 65536).unwrap();
            store.resize(65536 + 8192).unwrap();
            assert_eq!(rig.read(65536, 8192), Ok(vec![9; 8192]));
        });
    }

    #[test]
    fn a_file_that_was_deleted_or_replaced_closes_its_namespace_until_it_is_back() {
        on_every_system(65536, |path, store, rig| {
            let claimed = crate::identity::claim(path, crate::identity::random().unwrap());
            rig.write(0, &[1; 4096]).unwrap();
            let other = path.with_extension("other");
            std::fs::write(&other, vec![9; 65536]).unwrap();
            std::fs::rename(&other, path).unwrap();
            assert_eq!(rig.write(0, &[2; 4096]), Err(StoreError::Gone));
            for step in one_of_each() {
                assert_eq!(rig.run(step), Err(StoreError::Closed));
            }
            assert!(store.attach().is_err(), "no reactor may begin with the other file");
            let refused = store.reopen().unwrap_err().to_string();
            assert!(refused.contains("another file than the one that was served"), "{refused}");
            std::fs::remove_file(path).unwrap();
            assert!(store.reopen().is_err());
            assert_eq!(rig.read(0, 4096), Err(StoreError::Closed));
            assert!(!path.exists(), "reopening creates nothing");
            // While it is open its data can be brought back, and its identity with it.
            let why = store.closed_because().unwrap();
            let named = why.split_whitespace().find(|word| word.starts_with("/proc/")).expect("where it is");
            let is_it = |at: &PathBuf| {
                std::fs::read_link(at)
                    .is_ok_and(|to| to.to_string_lossy() == format!("{} (deleted)", path.display()))
            };
            // A number that was closed after the look: the file is kept open under another.
            let all = std::fs::read_dir("/proc/self/fd").unwrap().map(|entry| entry.unwrap().path());
            let from =
                std::iter::once(PathBuf::from(named)).chain(all).find(is_it).expect("it is still open");
            let copied =
                std::process::Command::new("cp").arg("--preserve=xattr").arg(&from).arg(path).status();
            assert!(copied.unwrap().success());
            match claimed {
                Ok((uuid, _)) => {
                    store.reopen().unwrap();
                    assert_eq!(rig.read(0, 4096), Ok(vec![1; 4096]));
                    assert_eq!(crate::identity::read(path), Some(uuid));
                }
                Err(_) => assert!(store.reopen().is_err(), "nothing tells that it is a copy"),
            }
        });
    }

    #[test]
    fn a_file_that_was_moved_stays_open() {
        on_every_system(65536, |path, store, rig| {
            let elsewhere = path.with_extension("moved");
            std::fs::rename(path, &elsewhere).unwrap();
            assert_eq!(store.revalidate(), None);
            assert_eq!(store.closed_because(), None);
            assert_eq!(rig.write(0, &[2; 4096]), Ok(vec![]));
            assert_eq!(rig.flush(), Ok(vec![]));
            assert_eq!(std::fs::read(elsewhere).unwrap()[..4096], [2; 4096]);
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
        let store: Arc<dyn BlockStore> = Arc::new(store);
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
        for step in [
            Step::Write { offset: 32 << 10, data: vec![1; 4096], is_durable: false },
            Step::Read { offset: 32 << 10, length: 4096 },
            Step::Flush,
        ] {
            for engine in ENGINES {
                let Some(mut rig) = Rig::attach(&store, engine) else { continue };
                device.size(32 << 10);
                assert_eq!(rig.run(step.clone()), Err(StoreError::Truncated));
                device.size(64 << 10);
                assert_eq!(rig.write(0, &[1; 4096]), Err(StoreError::Closed));
                assert_eq!(rig.flush(), Err(StoreError::Closed));
                store.reopen().unwrap();
                assert_eq!(rig.flush(), Ok(vec![]));
            }
        }
        device.size(128 << 10);
        assert_eq!(store.revalidate(), Some(Grown { before: 64 << 10, after: 128 << 10 }));
        device.size(64 << 10);
        assert_eq!(store.revalidate(), None);
        assert!(store.closed_because().is_some());
        store.reopen().unwrap();
        assert_eq!(store.geometry().bytes(), 64 << 10, "a device has the size that it has");
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

        fn size(&self, bytes: u64) {
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
