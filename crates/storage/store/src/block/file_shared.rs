//! State of a file or device that all reactors share: its generation, and the detection of cuts, deletion and failure.
//!
//! ```text
//! Open(generation) ──a flush or durable write fails on any reactor, or the storage is found cut or deleted──▶ Closed
//!   ▲  └──────────────────── reopen ──────────┐                                                                │
//!   └───────────────────── Open(generation + 1) ◀──────────────────────── reopen ──────────────────────────────┘
//! ```
//!
//! After one failed `fdatasync` the kernel reports success, so no reactor may call it again: the namespace is closed. A
//! file that was cut has lost data, also if it grows again later. A request started in an earlier state never succeeds
//! in a later one.
//!
//! The kernel reports a writeback error once to each open file description. Each reactor therefore has descriptions of
//! its own, and a separate one for flushes: no durable write can consume the error that a flush must see.

use std::fmt;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use reactor::File;
use rustix::io::Errno;

use super::file_health::{self, HealthCell, Looks};
use super::file_open::{self, FileKind, FileSettings, Opened};
use crate::namespace::{Generation, Geometry, StoreError};
use crate::open_error::OpenError;
use crate::size::Size;

/// State of a file or device that all reactors share.
pub(super) struct Shared {
    /// Its name in log lines.
    pub(super) name: String,
    pub(super) source: Source,
    pub(super) block_bytes: u32,
    /// The generation, whose lowest bit says whether it is closed.
    pub(super) gate: AtomicU64,
    pub(super) bytes: AtomicU64,
    pub(super) is_read_only: bool,
    pub(super) is_direct: AtomicBool,
    pub(super) can_punch: AtomicBool,
    /// Whether ranges can be zeroed without writing them.
    pub(super) can_zero: AtomicBool,
    /// The reason why the namespace is closed.
    pub(super) reason: Mutex<Option<String>>,
    /// Whether the namespace has been shrunk: bytes behind its end may come from its own late writes.
    pub(super) has_shrunk: AtomicBool,
    pub(super) health: HealthCell,
    pub(super) write_grain_bytes: u32,
    pub(super) deallocate_grain_bytes: u32,
}

/// The underlying file.
pub(super) enum Source {
    /// A file or device of the system.
    Os { settings: FileSettings, current: Mutex<Current> },
    /// A file of a simulated disk.
    Simulated(File),
}

/// The file of the current generation.
pub(super) struct Current {
    /// `None` after an attempt to reopen a device has failed.
    pub(super) opened: Option<Opened>,
    /// The configured size; `None` for the file's own.
    pub(super) wanted: Option<u64>,
    /// The last logged state of path or size, so that each change is logged once.
    pub(super) noted: Option<String>,
    pub(super) looks: Box<Looks>,
}

/// The file descriptions of one reactor.
#[derive(Clone)]
pub(super) struct Descriptions {
    /// For reads and writes.
    pub(super) data: File,
    /// For flushes.
    pub(super) sync: File,
    /// The check before storage is changed or flushed.
    pub(super) watch: Watch,
}

/// Changes that can happen to storage underneath the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Watch {
    /// None: a simulated file.
    Nothing,
    /// A device can shrink or disappear. A write past its end fails by itself, so only flushes check.
    Device,
    /// A file can be cut.
    Size,
    /// A file can be cut and deleted.
    SizeAndName,
}

impl Shared {
    pub(super) fn geometry(&self) -> Geometry {
        let block_bytes = self.block_bytes;
        let blocks = |bytes: u32| (bytes / block_bytes).max(1);
        Geometry {
            block_bytes,
            block_count: self.bytes() / u64::from(block_bytes),
            is_read_only: self.refuses_writes(),
            can_deallocate: !self.is_read_only && self.can_punch(),
            preferred_write_blocks: blocks(self.write_grain_bytes),
            preferred_deallocate_blocks: blocks(self.deallocate_grain_bytes),
            has_other_writers: false,
        }
    }

    pub(super) fn block_bytes(&self) -> u32 {
        self.block_bytes
    }

    pub(super) fn is_read_only(&self) -> bool {
        self.is_read_only
    }

    /// Whether writes are refused: by the configuration, or by the storage.
    pub(super) fn refuses_writes(&self) -> bool {
        self.is_read_only || self.health.is_write_protected()
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

    /// Records that punching is not supported.
    pub(super) fn on_punch_unsupported(&self) {
        if self.can_punch.swap(false, Ordering::Relaxed) {
            tracing::warn!(
                name = self.name,
                "deallocation unsupported by the storage: Deallocate does nothing"
            );
        }
    }

    /// Records that zeroing without writing is not supported.
    pub(super) fn on_zero_unsupported(&self) {
        if self.can_zero.swap(false, Ordering::Relaxed) {
            tracing::info!(
                name = self.name,
                "zeroing of ranges unsupported by the storage: zeroes are written"
            );
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

    /// Whether a write that failed with this error was refused before anything was written: then every earlier write is
    /// as durable as before. Any other failure may be that of a flush, which has reported a loss of other writes.
    /// Through the page cache, lack of space can be a writeback error.
    pub(super) fn is_refusal(&self, error: StoreError) -> bool {
        let is_direct = self.is_direct.load(Ordering::Relaxed);
        match error {
            StoreError::FileSizeLimit => true,
            // A device checks first whether it is read-only; a read-only file system may also have failed to flush.
            StoreError::ReadOnly => self.is_device(),
            StoreError::NoSpace => is_direct,
            StoreError::WriteFailed(errno) => {
                is_direct && [Errno::INVAL, Errno::OPNOTSUPP].map(Errno::raw_os_error).contains(&errno)
            }
            _ => false,
        }
    }

    /// Records that the storage has refused a write or flush, if it will refuse others too.
    pub(super) fn on_refusal(&self, error: StoreError) {
        match error {
            StoreError::NoSpace => self.health.on_full(&self.name),
            StoreError::ReadOnly => self.health.on_write_protected(&self.name),
            _ => {}
        }
    }

    fn is_device(&self) -> bool {
        matches!(&self.source, Source::Os { settings, .. } if settings.kind == FileKind::Device)
    }

    /// Descriptions for a reactor, of the current generation.
    pub(super) fn describe(&self) -> io::Result<Descriptions> {
        let (settings, current) = match &self.source {
            Source::Os { settings, current } => (settings, lock(current)),
            Source::Simulated(file) => {
                // As with a file of the system, the description for data holds the lock.
                let (data, sync) = (file.clone(), File::simulated(file.simulated_id().unwrap_or(0)));
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

    /// Checks a file before it is written, zeroed or deallocated: a write past its end would extend it again.
    ///
    /// # Errors
    /// The problem found; the namespace is closed then.
    pub(super) fn inspect(&self, files: &Descriptions, gate: Generation) -> Result<(), StoreError> {
        match files.watch {
            Watch::Nothing | Watch::Device => Ok(()),
            Watch::Size | Watch::SizeAndName => self.inspect_whole(files, gate),
        }
    }

    /// Checks a file or device: it must be as long as the namespace, and must not be deleted.
    ///
    /// # Errors
    /// The problem found; the namespace is closed then.
    pub(super) fn inspect_whole(&self, files: &Descriptions, gate: Generation) -> Result<(), StoreError> {
        let Ok(file) = files.data.descriptor() else { return Ok(()) };
        self.inspect_open(file, files.watch, gate)
    }

    pub(super) fn inspect_open(
        &self,
        file: BorrowedFd<'_>,
        watch: Watch,
        gate: Generation,
    ) -> Result<(), StoreError> {
        // A resize runs on another thread: the file is never shorter than the smaller of both sizes.
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
            // If it was deleted by mistake, it can still be copied while the description is open.
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

    /// Checks for a cut after an operation has reached the end of its storage.
    pub(super) fn is_cut(&self, files: &Descriptions, gate: Generation) -> bool {
        self.inspect_whole(files, gate) == Err(StoreError::Truncated)
    }

    /// Resizes the file, which `opened` keeps open.
    pub(super) fn resize_file(
        &self,
        settings: &FileSettings,
        opened: &mut Opened,
        bytes: u64,
    ) -> io::Result<()> {
        if settings.kind == FileKind::Device {
            // Its owner may have resized it; the target cannot.
            let actual = file_open::size(&opened.keeper)?;
            if bytes != actual {
                let message = format!("{} has a fixed size of {actual} bytes", self.name);
                return Err(io::Error::new(io::ErrorKind::Unsupported, message));
            }
        } else {
            let before = self.bytes();
            if bytes < before {
                // From now on no operation starts past the new end.
                self.has_shrunk.store(true, Ordering::Relaxed);
                self.bytes.store(bytes, Ordering::Release);
            } else if self.has_shrunk.load(Ordering::Relaxed) {
                // A late write during the last shrink may have left data.
                rustix::fs::ftruncate(&opened.keeper, before)?;
            } else {
                // Data that another program wrote past the end stays: it becomes part of the namespace, or is not
                // touched.
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

    pub(super) fn open_next_generation(&self) {
        let gate = self.gate.load(Ordering::Acquire);
        // Open states are even.
        self.gate.store((gate | 1) + 1, Ordering::Release);
    }
}

pub(super) fn watch_of(settings: &FileSettings, opened: &Opened) -> Watch {
    match (settings.kind, opened.traits.has_name) {
        (FileKind::Device, _) => Watch::Device,
        (FileKind::Regular, false) => Watch::Size,
        (FileKind::Regular, true) => Watch::SizeAndName,
    }
}

pub(super) fn lock<T>(current: &Mutex<T>) -> MutexGuard<'_, T> {
    current.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Current {
    /// Opens the file that the path leads to now. If that fails, the old file stays open: it may be the last way to its
    /// data.
    pub(super) fn reopen(&mut self, settings: &FileSettings, shared: &Shared) -> Result<(), OpenError> {
        file_open::check_place(settings)?;
        // There is a single claim on a device, and on one that was removed it stands in the way of the next.
        let is_still_there = |opened: &Opened| {
            file_open::identity_at(settings).is_ok_and(|place| place == opened.identity)
                && matches!(file_open::size(&opened.keeper), Ok(1..))
        };
        let before = match self.opened.take() {
            Some(opened) if settings.kind == FileKind::Device && !is_still_there(&opened) => {
                file_open::unlock(&opened);
                None
            }
            opened => opened,
        };
        let opened = file_open::reopen(settings, shared.block_bytes, before.as_ref()).and_then(|opened| {
            let path = settings.path.clone();
            match (self.wanted.filter(|wanted| opened.bytes < *wanted), &before) {
                (_, Some(before)) if !may_follow(&opened, before) => Err(OpenError::OtherIdentity { path }),
                (Some(wanted), _) => Err(OpenError::Cut { path, bytes: opened.bytes, wanted }),
                (None, _) => Ok(opened),
            }
        });
        let opened = opened.and_then(|opened| file_health::check_use(settings, &opened).map(|()| opened));
        let opened = match opened {
            Ok(opened) => opened,
            Err(error) => {
                self.opened = before;
                return Err(error);
            }
        };
        let lost = shared.bytes().saturating_sub(opened.bytes);
        if lost > 0 {
            tracing::warn!(
                name = shared.name, size = %Size(opened.bytes), lost = %Size(lost),
                "storage reopened smaller; data beyond the new end is lost"
            );
        }
        if before.is_some_and(|before| before.identity != opened.identity) {
            tracing::warn!(
                name = shared.name,
                "storage replaced: another file has the path of the one that was served"
            );
        }
        shared.bytes.store(opened.bytes, Ordering::Release);
        let traits = opened.traits;
        shared.is_direct.store(traits.is_direct, Ordering::Relaxed);
        shared.can_punch.store(traits.can_punch, Ordering::Relaxed);
        shared.can_zero.store(true, Ordering::Relaxed);
        shared.has_shrunk.store(false, Ordering::Relaxed);
        let looks = Box::default();
        *self = Self { opened: Some(opened), wanted: self.wanted, noted: None, looks };
        Ok(())
    }

    /// Logs that the path does not lead to the file any more: a restart would not find it.
    pub(super) fn note_place(&mut self, settings: &FileSettings, name: &str) {
        let Some(opened) = self.opened.as_ref().filter(|opened| opened.traits.has_name) else { return };
        let message = match file_open::identity_at(settings) {
            Ok(identity) if identity == opened.identity => return,
            Ok(_) => "its path leads to another file by now: a restart would serve that one".to_owned(),
            Err(error) => format!("its path leads to it no more ({error}): a restart would not find it"),
        };
        self.note(name, message);
    }

    pub(super) fn note(&mut self, name: &str, message: String) {
        if self.noted.as_ref() != Some(&message) {
            tracing::warn!(name, "{message}");
            self.noted = Some(message);
        }
    }
}

/// Whether hosts may take `opened` for the file served `before`: it is that file, or a copy with its identity.
fn may_follow(opened: &Opened, before: &Opened) -> bool {
    let identity = crate::identity::of_open(&before.data);
    opened.identity == before.identity
        || identity.is_some() && crate::identity::of_open(&opened.data) == identity
}
