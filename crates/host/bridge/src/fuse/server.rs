//! A directory that is mounted, and the thread that serves it.

use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use host::{Association, Nsid};
use rustix::io::writev;

use super::directory::ROOT;
use super::mount::{Mount, MountError, MountSettings};
use super::reply::Reply;
use super::shared::{FuseSettings, Served, Shared, name, node};
use super::worker::{Ended, Worker};
use crate::exports::{Exports, NoExport};
use crate::lanes::connect_lane;
use crate::memory_pressure::keep_memory;

pub use super::mount::Unmounted;

/// Time in which the lane is connected, while the target may be lost.
const LANE_TIME: Duration = Duration::from_secs(30);

/// Pause between two looks at what is still under way at the end.
const END_PAUSE: Duration = Duration::from_millis(5);

/// A directory is not mounted.
#[derive(Debug, thiserror::Error)]
pub enum FuseError {
    /// There is nothing to serve.
    #[error(transparent)]
    NoExport(#[from] NoExport),
    /// There is no lane.
    #[error(transparent)]
    Host(#[from] host::Error),
    /// It cannot be mounted.
    #[error(transparent)]
    Mount(#[from] MountError),
    /// A call failed.
    #[error("{0}")]
    System(#[from] io::Error),
}

/// A file of a directory that is mounted.
#[derive(Clone, Debug)]
pub struct MountedFile {
    /// Where it is.
    pub path: PathBuf,
    /// Bytes.
    pub size_bytes: u64,
    /// Bytes of a block.
    pub block_bytes: u32,
}

/// A directory with a file for each namespace of an association.
pub struct FuseMount {
    shared: Arc<Shared>,
    mount: Mount,
}

impl std::fmt::Debug for FuseMount {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FuseMount").field("place", &self.mount.place()).finish_non_exhaustive()
    }
}

impl FuseMount {
    /// Mounts the namespace that the association's address names, or all its block namespaces, and serves them on a thread with
    /// a lane. `on_end` is called there if it ends by itself: the directory was unmounted, or the device failed.
    ///
    /// # Errors
    /// [`FuseError`].
    pub fn mount(
        association: Association,
        settings: FuseSettings,
        place: &Path,
        on_end: impl FnOnce(&str) + Send + 'static,
    ) -> Result<Self, FuseError> {
        let exports = Exports::new(association, settings.export.clone())?;
        let is_ending = AtomicBool::new(false);
        let mut lane = connect_lane(exports.association(), || false, Instant::now() + LANE_TIME)?;
        let (mount, device) = Mount::new(
            place,
            MountSettings { is_read_only: settings.export.is_read_only, allow_other: settings.allow_other },
        )?;
        let (has_changed, in_work) = (AtomicBool::new(false), AtomicUsize::new(0));
        let shared = Arc::new(Shared { exports, settings, device, is_ending, in_work, has_changed });
        let of_thread = Arc::clone(&shared);
        let started = std::thread::Builder::new().name("fuse".into()).spawn(move || {
            keep_memory();
            let ended = Worker::new(of_thread).run(&mut lane);
            match ended {
                Ended::Asked => {}
                Ended::Unmounted => on_end("the directory was unmounted"),
                Ended::Failed => on_end("the FUSE device failed"),
            }
        });
        if let Err(error) = started {
            let _ = mount.unmount();
            return Err(error.into());
        }
        Ok(Self { shared, mount })
    }

    /// The directory.
    #[must_use]
    pub fn place(&self) -> &Path {
        self.mount.place()
    }

    /// The files of this moment.
    #[must_use]
    pub fn files(&self) -> Vec<MountedFile> {
        let file = |Served { info, .. }: Served| MountedFile {
            path: self.mount.place().join(&info.name),
            size_bytes: info.size_bytes,
            block_bytes: info.block_bytes,
        };
        self.shared.served().into_iter().map(file).collect()
    }

    /// These namespaces were added, removed or changed: programs see it.
    pub fn on_changed(&self, nsids: &[Nsid]) {
        self.shared.has_changed.store(true, Ordering::Relaxed);
        let association = self.shared.exports.association();
        for nsid in nsids {
            if association.namespace(*nsid).is_ok() {
                self.notify(Reply::node_changed(node(*nsid)), &[]);
            } else {
                let name = name(*nsid, &self.shared.settings.export);
                let name_bytes = u32::try_from(name.len()).unwrap_or(u32::MAX);
                self.notify(Reply::name_changed(ROOT, name_bytes), &[name.as_bytes(), b"\0"].concat());
            }
        }
    }

    /// Tells the kernel, which knows of nothing that it has not asked for.
    fn notify(&self, head: Reply, rest: &[u8]) {
        let slices = [io::IoSlice::new(head.as_bytes()), io::IoSlice::new(rest)];
        let _ = writev(self.shared.device.as_fd(), &slices);
    }

    /// Unmounts the directory; the requests under way are answered, for at most `limit`. Returns whether they were, and how it
    /// was unmounted.
    ///
    /// # Errors
    /// It cannot be unmounted.
    pub fn end(&self, limit: Duration) -> Result<(bool, Unmounted), MountError> {
        let unmounted = self.mount.unmount();
        self.shared.is_ending.store(true, Ordering::Relaxed);
        let until = Instant::now() + limit;
        let is_idle = || self.shared.in_work.load(Ordering::Relaxed) == 0;
        while !is_idle() && Instant::now() < until {
            std::thread::sleep(END_PAUSE);
        }
        Ok((is_idle(), unmounted?))
    }
}
