//! The system calls of a pool. Tests implement them too, and cut the power between any two.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use linux::whole_file::{FileCalls, SystemFiles};
use rustix::fs::{FlockOperation, OFlags, XattrFlags, flock};
use rustix::io::Errno;

use super::record::{ATTRIBUTE, BYTES_MAX};

/// How long an operation waits for that of another process in the same pool.
const LOCK_TIME: Duration = Duration::from_secs(5);

/// A regular file in the directory of a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolEntry {
    /// Its name.
    pub name: String,
    /// Its record; `None` for files that are no volumes.
    pub record: Option<Vec<u8>>,
    /// Its size, bytes.
    pub bytes: u64,
    /// Blocks that it has of the file system, bytes. Those it shares with others count.
    pub allocated_bytes: u64,
}

/// The content of a new volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NewData {
    /// None: it reads as zeroes, and has no blocks.
    Zeroes {
        /// Its size, bytes.
        bytes: u64,
    },
    /// The blocks of another file, shared with it.
    Shared {
        /// The other file.
        with: PathBuf,
        /// Its size, bytes: not less than that of the other one.
        bytes: u64,
        /// Whether it will never change.
        is_read_only: bool,
    },
}

/// The calls of a pool. [`write`](FileCalls::write) makes a file with a record, and no content.
pub trait PoolCalls: FileCalls {
    /// Gives a file that was just made its content and size. Nothing of it is durable.
    ///
    /// # Errors
    /// The system's error. It has a [`Lacks`] inside if the file system cannot share blocks.
    fn fill(&mut self, path: &Path, data: &NewData) -> io::Result<()>;

    /// Makes a file larger. The new size is durable afterwards.
    ///
    /// # Errors
    /// The system's error; the file has its old or new size.
    fn grow(&mut self, path: &Path, bytes: u64) -> io::Result<()>;

    /// The regular files in a directory.
    ///
    /// # Errors
    /// The system's error.
    fn list(&mut self, directory: &Path) -> io::Result<Vec<PoolEntry>>;

    /// Keeps other processes from changing the pool, until the answer is dropped.
    ///
    /// # Errors
    /// The system's error, or that another process takes long.
    fn lock(&mut self, directory: &Path) -> io::Result<Option<File>>;

    /// Whether a target has a file open.
    ///
    /// # Errors
    /// The system's error.
    fn is_in_use(&mut self, path: &Path) -> io::Result<bool>;
}

/// What a file system lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Lacks {
    /// Files cannot share blocks.
    #[error("files share no blocks")]
    Reflink,
    /// Files have no extended attributes.
    #[error("files have no extended attributes")]
    Attributes,
}

impl Lacks {
    /// What the system's error says of the file system, if it does.
    pub(super) fn of(error: &io::Error) -> Option<Self> {
        error.get_ref()?.downcast_ref().copied()
    }

    fn or(self, errno: Errno) -> io::Error {
        let is_lack =
            matches!(errno, Errno::OPNOTSUPP | Errno::NOTTY | Errno::NOSYS | Errno::XDEV | Errno::INVAL);
        if is_lack { io::Error::new(io::ErrorKind::Unsupported, self) } else { errno.into() }
    }
}

/// The files of this machine.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct VolumeFiles;

impl FileCalls for VolumeFiles {
    fn write(&mut self, path: &Path, record: &[u8]) -> io::Result<()> {
        let mut options = OpenOptions::new();
        // Other users must not read the data that a peer stores there.
        let file = options.read(true).write(true).create_new(true).mode(0o600).open(path)?;
        rustix::fs::fsetxattr(&file, ATTRIBUTE, record, XattrFlags::CREATE)
            .map_err(|errno| Lacks::Attributes.or(errno))
    }

    fn sync(&mut self, path: &Path) -> io::Result<()> {
        SystemFiles.sync(path)
    }

    fn link(&mut self, from: &Path, to: &Path) -> io::Result<()> {
        SystemFiles.link(from, to)
    }

    fn rename(&mut self, from: &Path, to: &Path) -> io::Result<()> {
        SystemFiles.rename(from, to)
    }

    fn remove(&mut self, path: &Path) -> io::Result<()> {
        SystemFiles.remove(path)
    }
}

impl PoolCalls for VolumeFiles {
    fn fill(&mut self, path: &Path, data: &NewData) -> io::Result<()> {
        let file = OpenOptions::new().read(true).write(true).open(path)?;
        match data {
            NewData::Zeroes { bytes } => file.set_len(*bytes),
            NewData::Shared { with, bytes, is_read_only } => {
                // The kernel waits for direct writes in flight and holds new ones back: the content is that of one moment.
                rustix::fs::ioctl_ficlone(&file, &open(with)?).map_err(|errno| Lacks::Reflink.or(errno))?;
                if file.metadata()?.len() < *bytes {
                    file.set_len(*bytes)?;
                }
                if *is_read_only {
                    file.set_permissions(std::fs::Permissions::from_mode(0o400))?;
                }
                Ok(())
            }
        }
    }

    fn grow(&mut self, path: &Path, bytes: u64) -> io::Result<()> {
        let file = OpenOptions::new().write(true).open(path)?;
        file.set_len(bytes)?;
        file.sync_all()
    }

    fn list(&mut self, directory: &Path) -> io::Result<Vec<PoolEntry>> {
        let mut entries = Vec::new();
        for entry in std::fs::read_dir(directory)? {
            let entry = entry?;
            let Ok(name) = entry.file_name().into_string() else { continue };
            if !entry.file_type().is_ok_and(|kind| kind.is_file()) {
                continue;
            }
            match entry_at(&entry.path(), name) {
                Ok(entry) => entries.push(entry),
                // It was removed meanwhile.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        Ok(entries)
    }

    fn lock(&mut self, directory: &Path) -> io::Result<Option<File>> {
        let file = File::open(directory)?;
        let begun = Instant::now();
        loop {
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(Some(file)),
                Err(Errno::WOULDBLOCK) if begun.elapsed() < LOCK_TIME => {
                    std::thread::sleep(Duration::from_millis(5));
                }
                Err(Errno::WOULDBLOCK) => {
                    return Err(io::Error::new(io::ErrorKind::TimedOut, "another process works in the pool"));
                }
                // A network file system without locks.
                Err(Errno::NOSYS | Errno::OPNOTSUPP | Errno::NOLCK) => return Ok(None),
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    fn is_in_use(&mut self, path: &Path) -> io::Result<bool> {
        let file = open(path)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) => Ok(true),
            // Unlocked now, not by closing the description, which a process that is being started may have as well.
            Ok(()) => Ok(flock(&file, FlockOperation::NonBlockingUnlock).is_err()),
            Err(_) => Ok(false),
        }
    }
}

/// Opens a regular file, and waits for nothing else.
fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new()
        .read(true)
        .custom_flags((OFlags::NONBLOCK | OFlags::NOFOLLOW).bits().cast_signed())
        .open(path)
}

/// The file of this path and name.
pub(super) fn entry_at(path: &Path, name: String) -> io::Result<PoolEntry> {
    let metadata = std::fs::symlink_metadata(path)?;
    let mut value = [0; BYTES_MAX];
    let record = match rustix::fs::lgetxattr(path, ATTRIBUTE, &mut value[..]) {
        Ok(length) => value.get(..length).map(<[u8]>::to_vec),
        Err(Errno::NODATA | Errno::OPNOTSUPP) => None,
        // A longer one is none of ours.
        Err(Errno::RANGE) => Some(Vec::new()),
        Err(errno) => return Err(errno.into()),
    };
    let allocated_bytes = metadata.blocks().saturating_mul(512);
    Ok(PoolEntry { name, record, bytes: metadata.len(), allocated_bytes })
}

/// Whether files in a directory can share blocks: tried with files without names.
pub(super) fn can_share(directory: &Path) -> bool {
    let nameless = || {
        let mut options = OpenOptions::new();
        options.read(true).write(true).mode(0o600).custom_flags(OFlags::TMPFILE.bits().cast_signed());
        options.open(directory)
    };
    let tried = || {
        let (one, other) = (nameless()?, nameless()?);
        rustix::io::pwrite(&one, &[1; 4096], 0)?;
        rustix::fs::ioctl_ficlone(&other, &one)?;
        io::Result::Ok(())
    };
    // The field has another type on other machines.
    #[allow(clippy::cast_sign_loss, clippy::unnecessary_cast)]
    let magic = || Some(rustix::fs::statfs(directory).ok()?.f_type as u64 & 0xffff_ffff);
    shares(&tried(), magic)
}

/// Whether a file system shares blocks, by what a trial has ended with. One that is full cannot be tried: then those of a kind that
/// has it do, also XFS, whatever it was made with.
pub(super) fn shares(tried: &io::Result<()>, magic: impl FnOnce() -> Option<u64>) -> bool {
    const XFS: u64 = 0x5846_5342;
    const BTRFS: u64 = 0x9123_683e;
    const BCACHEFS: u64 = 0xca45_1a4e;
    match tried {
        Ok(()) => true,
        Err(error) => {
            let is_full = matches!(Errno::from_io_error(error), Some(Errno::NOSPC | Errno::DQUOT));
            is_full && matches!(magic(), Some(XFS | BTRFS | BCACHEFS))
        }
    }
}

/// A pool's calls, for content that is put in place as a whole.
pub(super) struct Placing<'a> {
    pub(super) calls: &'a mut dyn PoolCalls,
    pub(super) data: NewData,
}

impl FileCalls for Placing<'_> {
    fn write(&mut self, path: &Path, record: &[u8]) -> io::Result<()> {
        self.calls.write(path, record)?;
        self.calls.fill(path, &self.data)
    }

    fn sync(&mut self, path: &Path) -> io::Result<()> {
        self.calls.sync(path)
    }

    fn link(&mut self, from: &Path, to: &Path) -> io::Result<()> {
        self.calls.link(from, to)
    }

    fn rename(&mut self, from: &Path, to: &Path) -> io::Result<()> {
        self.calls.rename(from, to)
    }

    fn remove(&mut self, path: &Path) -> io::Result<()> {
        self.calls.remove(path)
    }
}
