//! Opening a file or block device: checks its kind and block size, and locks it.

use std::fs::{Metadata, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{Access, AtFlags, CWD, FallocateFlags, FlockOperation, OFlags, Stat, StatxFlags};
use rustix::io::Errno;

use crate::holders;
use crate::key_value::{mark, superblock};
use crate::namespace::{BLOCK_BYTES, BLOCK_BYTES_DEFAULT};
use crate::open_error::{OpenError, check_size};
use crate::size::Size;
use crate::space::{self, is_unsupported};

/// The kind of file behind a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileKind {
    /// A regular file.
    Regular,
    /// A block device.
    Device,
}

/// The content of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contents {
    /// The blocks of hosts.
    Blocks,
    /// Key logs behind a superblock.
    Pairs,
}

/// Settings for opening a file or block device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileSettings {
    /// Its path.
    pub path: PathBuf,
    /// The required kind.
    pub kind: FileKind,
    /// The required content. A file with the other content is left alone.
    pub contents: Contents,
    /// The size that a file is created with or grows to; `None` for its current size.
    pub bytes: Option<u64>,
    /// Bytes of a logical block; if `None`, 4096, and for devices their own block size.
    pub block_bytes: Option<u32>,
    /// Whether writes are refused.
    pub is_read_only: bool,
    /// Whether a new file gets space only when it is written.
    pub is_sparse: bool,
}

/// An open file or device that has passed all checks.
#[derive(Debug)]
pub(super) struct Opened {
    /// Used to claim a device, and to resize.
    pub(super) keeper: OwnedFd,
    /// Holds the lock. Direct reads and writes of all reactors use this description: the kernel keeps it, and the lock
    /// with it, until the last of them has completed, even if the process is killed.
    pub(super) data: OwnedFd,
    pub(super) identity: Identity,
    pub(super) bytes: u64,
    pub(super) block_bytes: u32,
    pub(super) traits: Traits,
}

/// Identity of the file, wherever its path leads now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Identity {
    device: u64,
    inode: u64,
    /// Identity of the device, if it is one.
    special: u64,
}

/// Properties of the storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Traits {
    /// Whether direct I/O bypasses the page cache.
    pub(super) is_direct: bool,
    /// Whether the file had a name when it was opened.
    pub(super) has_name: bool,
    pub(super) can_punch: bool,
    /// Preferred granularity of writes, or of deallocation, bytes.
    pub(super) write_grain_bytes: u32,
    pub(super) deallocate_grain_bytes: u32,
}

impl Opened {
    /// The same descriptions once more, and whether they bypass the page cache.
    fn share(&self) -> io::Result<(OwnedFd, OwnedFd, bool)> {
        Ok((self.keeper.try_clone()?, self.data.try_clone()?, self.traits.is_direct))
    }
}

impl Identity {
    pub(super) fn of(stat: &Stat) -> Self {
        Self { device: stat.st_dev, inode: stat.st_ino, special: stat.st_rdev }
    }
}

/// Opens for the first time: creates the file, or grows it, if a size is given.
pub(super) fn open(settings: &FileSettings) -> Result<Opened, OpenError> {
    if let (FileKind::Regular, Some(bytes)) = (settings.kind, settings.bytes) {
        let block_bytes = settings.block_bytes.unwrap_or(BLOCK_BYTES_DEFAULT);
        check_bytes(settings, format!("the namespace on {}", settings.path.display()), bytes, block_bytes)?;
        match std::fs::metadata(&settings.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return create(settings, bytes),
            _ => {}
        }
    }
    open_existing(settings, settings.bytes, None)
}

/// Reopens storage. Never creates or changes a file. If the path still leads to the file of `before`, its description
/// for data and the lock are kept: at no time can another target take the lock while operations are in flight.
pub(super) fn reopen(
    settings: &FileSettings,
    block_bytes: u32,
    before: Option<&Opened>,
) -> Result<Opened, OpenError> {
    let settings = FileSettings { block_bytes: Some(block_bytes), ..settings.clone() };
    open_existing(&settings, None, before)
}

/// Whether a file of the right kind exists at the path.
pub(super) fn check_place(settings: &FileSettings) -> Result<(), OpenError> {
    check_kind(settings, &look_up(settings)?)
}

/// The file that the path leads to now.
pub(super) fn identity_at(settings: &FileSettings) -> io::Result<Identity> {
    Ok(Identity::of(&rustix::fs::stat(&settings.path)?))
}

fn look_up(settings: &FileSettings) -> Result<Metadata, OpenError> {
    std::fs::metadata(&settings.path).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => missing(settings),
        _ => system("open", &settings.path, error),
    })
}

/// A separate description for I/O on the file of `opened`: each description gets its writeback errors once.
pub(super) fn open_again(
    settings: &FileSettings,
    identity: Identity,
    direct: bool,
) -> Result<OwnedFd, OpenError> {
    let flags = if direct { OFlags::DIRECT } else { OFlags::empty() };
    let file = open_with(settings, flags).map_err(|error| system("open", &settings.path, error))?;
    let stat = rustix::fs::fstat(&file).map_err(|errno| system("look at", &settings.path, errno.into()))?;
    if Identity::of(&stat) == identity {
        Ok(file)
    } else {
        Err(OpenError::Replaced { path: settings.path.clone() })
    }
}

/// A new file of this many bytes. It gets its name with its size, where the system can do that: a file that is empty
/// after a crash was cut.
fn new_file(path: &Path, directory: &Path, bytes: u64) -> Result<std::fs::File, OpenError> {
    let give_size = |file: &std::fs::File| {
        file.set_len(bytes).map_err(|error| system("give its size to", path, error))?;
        file.sync_all().map_err(|error| system("flush", path, error))
    };
    let mut options = OpenOptions::new();
    // Other users must not read the data that a peer stored there.
    options.read(true).write(true).mode(0o600);
    let nameless = options.clone().custom_flags(OFlags::TMPFILE.bits().cast_signed()).open(directory);
    if let Ok(file) = nameless {
        give_size(&file)?;
        let descriptor = format!("/proc/self/fd/{}", file.as_raw_fd());
        match rustix::fs::linkat(CWD, descriptor, CWD, path, AtFlags::SYMLINK_FOLLOW) {
            Ok(()) => return Ok(file),
            Err(Errno::EXIST) => return Err(system("create", path, Errno::EXIST.into())),
            // Without /proc.
            Err(_) => {}
        }
    }
    let file = options.create_new(true).open(path).map_err(|error| system("create", path, error))?;
    if let Err(error) = give_size(&file) {
        // Leave nothing half done. If even this fails, report the first error.
        let _ = std::fs::remove_file(path);
        return Err(error);
    }
    Ok(file)
}

fn create(settings: &FileSettings, bytes: u64) -> Result<Opened, OpenError> {
    let path = &settings.path;
    if settings.is_read_only {
        return Err(missing(settings));
    }
    let directory = directory_of(path);
    let file = new_file(path, directory, bytes)?;
    let made = (|| {
        // The name must survive a crash, as must the size.
        let directory = std::fs::File::open(directory);
        directory
            .and_then(|it| it.sync_all())
            .map_err(|error| system("flush the directory of", path, error))?;
        let opened = open_existing(settings, None, None)?;
        if !settings.is_sparse {
            match space::allocate(&file, bytes) {
                Ok(true) => {}
                Ok(false) => return Err(OpenError::CannotAllocate { path: path.clone() }),
                Err(errno) => return Err(system("allocate space for", path, errno.into())),
            }
        }
        Ok(opened)
    })();
    if !matches!(made, Ok(_) | Err(OpenError::Locked { .. })) {
        // Leave nothing half done. If even this fails, report the first error.
        let _ = std::fs::remove_file(path);
    }
    made
}

fn open_existing(
    settings: &FileSettings,
    grow_to: Option<u64>,
    before: Option<&Opened>,
) -> Result<Opened, OpenError> {
    let path = &settings.path;
    // Checked before opening: opening a FIFO would wait for its other end.
    check_place(settings)?;
    let place = identity_at(settings).map_err(|error| system("look at", path, error))?;
    check_device(settings)?;
    let kept = before.filter(|before| before.identity == place);
    let (keeper, data, is_direct) = match kept {
        Some(before) => before.share().map_err(|error| system("open", path, error))?,
        None => {
            check_free(settings)?;
            let (keeper, is_direct) = open_keeper(settings, |flags| open_with(settings, flags))?;
            let stat = rustix::fs::fstat(&keeper).map_err(|errno| system("look at", path, errno.into()))?;
            let data = open_again(settings, Identity::of(&stat), is_direct)?;
            lock(settings, &data)?;
            lock_as_qemu(settings, &data)?;
            (keeper, data, is_direct)
        }
    };
    let stat = rustix::fs::fstat(&keeper).map_err(|errno| system("look at", path, errno.into()))?;
    check_contents(settings, Identity::of(&stat))?;
    let alignment = if is_direct { alignment(settings, &keeper)? } else { 1 };
    let default = match settings.kind {
        FileKind::Regular => BLOCK_BYTES_DEFAULT,
        FileKind::Device => alignment.max(*BLOCK_BYTES.start()),
    };
    let block_bytes = settings.block_bytes.unwrap_or(default);
    if block_bytes < alignment {
        return Err(OpenError::BlockTooSmall { path: path.clone(), block_bytes, block_bytes_min: alignment });
    }
    let mut bytes = size(&keeper).map_err(|error| system("find the size of", path, error))?;
    let is_divided =
        settings.contents == Contents::Pairs && is_divided(settings, Identity::of(&stat), bytes, grow_to)?;
    if let Some(wanted) = grow_to.filter(|_| !is_divided) {
        bytes = grow(settings, &keeper, bytes, wanted)?;
    }
    if bytes == 0 && settings.kind == FileKind::Regular {
        return Err(OpenError::Empty {
            name: path.display().to_string(),
            remedy: "add ?size=10G to give it a size",
        });
    }
    check_bytes(settings, path.display().to_string(), bytes, block_bytes)?;
    let traits = match settings.kind {
        FileKind::Regular => of_file(settings, &keeper, &stat, is_direct, bytes),
        FileKind::Device => of_device(&stat, is_direct, block_bytes),
    };
    Ok(Opened { keeper, data, identity: Identity::of(&stat), bytes, block_bytes, traits })
}

fn check_kind(settings: &FileSettings, metadata: &Metadata) -> Result<(), OpenError> {
    let (kind, path) = (metadata.file_type(), settings.path.clone());
    let (is, remedy) = match settings.kind {
        FileKind::Regular if kind.is_file() => return Ok(()),
        FileKind::Device if kind.is_block_device() => return Ok(()),
        FileKind::Regular if kind.is_block_device() => ("a block device", "write device: in place of file:"),
        FileKind::Device if kind.is_file() => ("a regular file", "write file: in place of device:"),
        _ if kind.is_dir() => ("a directory", "name a file in it"),
        _ => ("neither a regular file nor a block device", "name one of these"),
    };
    Err(OpenError::WrongKind { path, is, remedy })
}

/// Checks block size and size. Block size is fixed for keys and values.
fn check_bytes(settings: &FileSettings, name: String, bytes: u64, block_bytes: u32) -> Result<(), OpenError> {
    match check_size(&name, bytes, block_bytes) {
        Err(OpenError::SizeNotBlocks { .. }) if settings.contents == Contents::Pairs => {
            Err(OpenError::SizeNotWhole { name, bytes, unit_bytes: block_bytes })
        }
        result => result,
    }
}

/// Protects data of one kind of namespace from being overwritten by the other.
fn check_contents(settings: &FileSettings, identity: Identity) -> Result<(), OpenError> {
    let path = &settings.path;
    // The page cache requires no alignment.
    let file = std::fs::File::from(open_again(settings, identity, false)?);
    let unreadable = |error| system("read", path, error);
    let has_superblock = superblock::is_in(&file).map_err(unreadable)?;
    let (is, remedy) = match settings.contents {
        Contents::Blocks if !has_superblock => {
            mark::clear(&file);
            return Ok(());
        }
        Contents::Blocks if !mark::is_set(&file) => {
            // A host may have written it.
            tracing::warn!(path = %path.display(), "what is served as blocks looks like a file of keys and values");
            return Ok(());
        }
        Contents::Blocks => ("a file of keys and values, not of blocks", "write kv:file: in place of file:"),
        Contents::Pairs => {
            if has_superblock || superblock::is_zero(&file).map_err(unreadable)? {
                mark::set(&file);
                return Ok(());
            }
            ("no key-value file, and not empty", "name another one")
        }
    };
    Err(OpenError::WrongKind { path: path.clone(), is, remedy })
}

/// Whether a key-value file was divided for its size, which it keeps. Refuses one that was cut: growing it would
/// replace its pairs by zeroes.
fn is_divided(
    settings: &FileSettings,
    identity: Identity,
    bytes: u64,
    wanted: Option<u64>,
) -> Result<bool, OpenError> {
    let path = &settings.path;
    if bytes == 0 && wanted.is_some() {
        return Err(OpenError::Empty {
            name: path.display().to_string(),
            remedy: "it was cut, or never used; remove it to begin an empty store",
        });
    }
    let file = std::fs::File::from(open_again(settings, identity, false)?);
    let divided = superblock::divided_bytes(path, &file, bytes)?;
    match (divided, wanted) {
        (Some(_), Some(wanted)) if wanted > bytes => {
            Err(OpenError::PairsKeepSize { path: path.clone(), bytes, wanted })
        }
        // An earlier version made it longer, which it does not use.
        (Some(divided), Some(wanted)) if wanted < divided => {
            Err(OpenError::TooLarge { path: path.clone(), bytes, wanted })
        }
        _ => Ok(divided.is_some()),
    }
}

fn open_with(settings: &FileSettings, flags: OFlags) -> io::Result<OwnedFd> {
    let flags = flags | OFlags::CLOEXEC | OFlags::NOCTTY;
    let mut options = OpenOptions::new();
    options.read(true).write(!settings.is_read_only).custom_flags(flags.bits().cast_signed());
    Ok(options.open(&settings.path)?.into())
}

/// Opens with direct I/O if the file system supports it, and returns whether it does.
fn open_keeper(
    settings: &FileSettings,
    open: impl Fn(OFlags) -> io::Result<OwnedFd>,
) -> Result<(OwnedFd, bool), OpenError> {
    // On a block device this claims it: refused if it is mounted.
    let claim = match settings.kind {
        FileKind::Device if !settings.is_read_only => OFlags::EXCL,
        _ => OFlags::empty(),
    };
    let path = &settings.path;
    let refused = |error: io::Error| match Errno::from_io_error(&error) {
        // A target claims it as well, but locks it first of all.
        Some(Errno::BUSY) if std::fs::File::open(path).is_ok_and(|file| is_locked(&file)) => {
            OpenError::Locked { path: path.clone() }
        }
        Some(Errno::BUSY) => OpenError::Busy { path: path.clone() },
        _ => system("open", path, error),
    };
    match open(OFlags::DIRECT | claim) {
        Err(error) if Errno::from_io_error(&error) == Some(Errno::INVAL) => {}
        opened => {
            let file = opened.map_err(refused)?;
            // Some file systems accept such opens but use the page cache.
            if direct_alignment(&file) != Some(0) {
                return Ok((file, true));
            }
        }
    }
    tracing::warn!(
        path = %path.display(),
        "the file system has no direct I/O: reads and writes go through the page cache"
    );
    Ok((open(claim).map_err(refused)?, false))
}

fn lock(settings: &FileSettings, data: &OwnedFd) -> Result<(), OpenError> {
    let wanted = if settings.is_read_only {
        FlockOperation::NonBlockingLockShared
    } else {
        FlockOperation::NonBlockingLockExclusive
    };
    match rustix::fs::flock(data, wanted) {
        Ok(()) => Ok(()),
        Err(Errno::WOULDBLOCK) => Err(OpenError::Locked { path: settings.path.clone() }),
        // Some network file systems have no locks: serving is better than refusing.
        Err(errno @ (Errno::NOSYS | Errno::OPNOTSUPP | Errno::NOLCK)) => {
            tracing::warn!(
                path = %settings.path.display(), %errno,
                "file system without locks: a second target is not prevented"
            );
            Ok(())
        }
        Err(errno) => Err(system("lock", &settings.path, errno.into())),
    }
}

/// Bytes that QEMU locks in files of disks: one for each right that a process uses, and one for each that it does not
/// share with others. (`RAW_LOCK_PERM_BASE`, `RAW_LOCK_SHARED_BASE`, `BLK_PERM_*`)
const QEMU_USED: u64 = 100;
const QEMU_UNSHARED: u64 = 200;
const QEMU_READ: u64 = 0;
const QEMU_WRITE: u64 = 1;
const QEMU_RESIZE: u64 = 3;
/// The rights that a writable namespace uses, and those that it denies to other programs.
const QEMU_USES: [u64; 3] = [QEMU_READ, QEMU_WRITE, QEMU_RESIZE];
const QEMU_KEEPS: [u64; 2] = [QEMU_WRITE, QEMU_RESIZE];

/// Keeps QEMU and its tools away from a file that is written here, and respects their locks.
fn lock_as_qemu(settings: &FileSettings, data: &OwnedFd) -> Result<(), OpenError> {
    if settings.is_read_only || settings.kind == FileKind::Device || !check_qemu(settings, data)? {
        return Ok(());
    }
    let own = QEMU_USES.map(|right| QEMU_USED + right).into_iter();
    for byte in own.chain(QEMU_KEEPS.map(|right| QEMU_UNSHARED + right)) {
        linux::lock_range_shared(data.as_fd(), byte, 1)
            .map_err(|error| system("lock", &settings.path, error))?;
    }
    Ok(())
}

/// Whether the file system has such locks; an error if another program has one in our way.
fn check_qemu(settings: &FileSettings, file: &impl AsFd) -> Result<bool, OpenError> {
    let in_the_way = QEMU_USES.map(|right| QEMU_UNSHARED + right).into_iter();
    for byte in in_the_way.chain(QEMU_KEEPS.map(|right| QEMU_USED + right)) {
        match linux::is_range_locked(file.as_fd(), byte, 1) {
            Ok(false) => {}
            Ok(true) => return Err(held(settings, "QEMU or one of its tools")),
            // Without locks, nothing keeps others away.
            Err(_) => return Ok(false),
        }
    }
    Ok(true)
}

/// Refuses a file that is to be written while others have it open for writing: a loop device, or another process.
fn check_free(settings: &FileSettings) -> Result<(), OpenError> {
    if settings.is_read_only || settings.kind == FileKind::Device {
        return Ok(());
    }
    if let Some(device) = loop_device(&settings.path) {
        return Err(OpenError::Held { path: settings.path.clone(), by: device });
    }
    // If it cannot be read, opening reports that.
    let Ok(file) = std::fs::File::open(&settings.path) else { return Ok(()) };
    let is_written = linux::is_open_for_writing(file.as_fd()) == Some(true) && !is_locked(&file);
    match is_written && !holders::writers(&settings.path).is_empty() {
        true => Err(held(settings, "another process")),
        false => Ok(()),
    }
}

/// Whether storage could be opened for writing, without doing so.
///
/// # Errors
/// The error that opening it would report.
pub(crate) fn check_writable(settings: &FileSettings) -> Result<(), OpenError> {
    let path = &settings.path;
    check_access(path, Access::READ_OK | Access::WRITE_OK)
        .map_err(|errno| system("open", path, errno.into()))?;
    if settings.kind == FileKind::Device {
        check_device(settings)?;
        return open_keeper(settings, |flags| {
            open_with(&FileSettings { is_read_only: true, ..settings.clone() }, flags)
        })
        .map(drop);
    }
    check_free(settings)?;
    let file = std::fs::File::open(path).map_err(|error| system("open", path, error))?;
    if is_locked(&file) { Ok(()) } else { check_qemu(settings, &file).map(drop) }
}

/// Whether a file could be made, as far as can be seen without doing so.
///
/// # Errors
/// The error that making it would report.
pub(crate) fn check_creatable(settings: &FileSettings) -> Result<(), OpenError> {
    let path = &settings.path;
    let directory = directory_of(path);
    check_access(directory, Access::WRITE_OK | Access::EXEC_OK)
        .map_err(|errno| system("create", path, errno.into()))?;
    let bytes = settings.bytes.unwrap_or(0);
    check_bytes(
        settings,
        format!("the namespace on {}", path.display()),
        bytes,
        settings.block_bytes.unwrap_or(BLOCK_BYTES_DEFAULT),
    )?;
    let free = rustix::fs::statvfs(directory).map(|system| system.f_bavail.saturating_mul(system.f_frsize));
    if !settings.is_sparse && free.is_ok_and(|free| free < bytes) {
        return Err(system("allocate space for", path, Errno::NOSPC.into()));
    }
    Ok(())
}

/// Whether the process may do this with a file.
fn check_access(path: &Path, wanted: Access) -> Result<(), Errno> {
    match rustix::fs::accessat(CWD, path, wanted, AtFlags::EACCESS) {
        Err(errno @ (Errno::ACCESS | Errno::ROFS)) => Err(errno),
        // Where this check is forbidden (seccomp), opening reports the error.
        _ => Ok(()),
    }
}

fn check_device(settings: &FileSettings) -> Result<(), OpenError> {
    let path = &settings.path;
    let place = identity_at(settings).map_err(|error| system("look at", path, error))?;
    let is_refused = !settings.is_read_only
        && settings.kind == FileKind::Device
        && is_device_read_only(place.special) == Some(true);
    if is_refused { Err(OpenError::WriteProtected { path: path.clone() }) } else { Ok(()) }
}

pub(crate) fn directory_of(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Whether another target has locked the file.
fn is_locked(file: &std::fs::File) -> bool {
    match rustix::fs::flock(file, FlockOperation::NonBlockingLockShared) {
        Err(errno) => errno == Errno::WOULDBLOCK,
        // Unlocked now, not by closing the description, which a process that is being started may have as well.
        Ok(()) => rustix::fs::flock(file, FlockOperation::NonBlockingUnlock).is_err(),
    }
}

/// A loop device that is attached to a file.
fn loop_device(path: &Path) -> Option<String> {
    let path = path.canonicalize().ok()?;
    let devices = std::fs::read_dir("/sys/block").ok()?.flatten();
    let mut attached = devices.filter(|device| {
        let backing = std::fs::read_to_string(device.path().join("loop/backing_file"));
        backing.is_ok_and(|backing| Path::new(backing.trim_end_matches('\n')) == path)
    });
    let name = attached.next()?.file_name().to_string_lossy().into_owned();
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let mount = mounts.lines().find_map(|line| {
        let mut words = line.split(' ');
        let partition = words.next()?.strip_prefix("/dev/")?.strip_prefix(&name)?;
        (partition.is_empty() || partition.starts_with('p')).then_some(words.next()?)
    });
    Some(match mount {
        Some(place) => format!("/dev/{name}, mounted on {place}"),
        None => format!("/dev/{name} (losetup --detach)"),
    })
}

/// The error of a file that others write; `by` where no process is seen.
fn held(settings: &FileSettings, by: &str) -> OpenError {
    let by = holders::writers(&settings.path).first().map_or_else(|| by.to_owned(), ToString::to_string);
    OpenError::Held { path: settings.path.clone(), by }
}

/// The alignment of offsets and lengths for direct I/O on the file, if the kernel reports it (Linux 6.1); 0 if direct
/// I/O is unsupported.
fn direct_alignment(file: &OwnedFd) -> Option<u32> {
    let statx = rustix::fs::statx(file, c"", rustix::fs::AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN).ok()?;
    (statx.stx_mask & StatxFlags::DIOALIGN.bits() != 0).then_some(statx.stx_dio_offset_align)
}

/// Releases the locks, although the description may still be in use.
pub(super) fn unlock(opened: &Opened) {
    // Where the file system has no such locks, there is nothing to release.
    let _ = linux::unlock_ranges(opened.data.as_fd());
    if let Err(errno) = rustix::fs::flock(&opened.data, FlockOperation::NonBlockingUnlock) {
        tracing::debug!(%errno, "was not locked");
    }
}

/// The smallest block for direct reads and writes.
fn alignment(settings: &FileSettings, keeper: &OwnedFd) -> Result<u32, OpenError> {
    if settings.kind == FileKind::Device {
        let size = rustix::fs::ioctl_blksszget(keeper);
        return size.map_err(|errno| system("find the block size of", &settings.path, errno.into()));
    }
    // Older kernels must be tried: they refuse an offset that they do not support.
    Ok(direct_alignment(keeper).unwrap_or_else(|| {
        let mut memory = vec![0; 2 * 4096];
        let start = memory.as_ptr().align_offset(4096);
        match rustix::io::pread(keeper, &mut memory[start..start + 512], 512) {
            Err(Errno::INVAL) => 4096,
            _ => 512,
        }
    }))
}

/// The size of a file or device.
pub(super) fn size(file: impl AsFd) -> io::Result<u64> {
    // A device has no size in its metadata, but an end.
    Ok(rustix::fs::seek(file, rustix::fs::SeekFrom::End(0))?)
}

fn grow(settings: &FileSettings, keeper: &OwnedFd, bytes: u64, wanted: u64) -> Result<u64, OpenError> {
    let path = &settings.path;
    if bytes > wanted {
        return Err(OpenError::TooLarge { path: path.clone(), bytes, wanted });
    }
    if bytes < wanted {
        if settings.is_read_only {
            return Err(OpenError::CannotGrow { path: path.clone(), bytes, wanted });
        }
        let grown = rustix::fs::ftruncate(keeper, wanted).and_then(|()| rustix::fs::fsync(keeper));
        grown.map_err(|errno| system("grow", path, errno.into()))?;
        // It may also have been cut since it was last served: then zeroes replace its data.
        tracing::warn!(
            path = %path.display(), before = %Size(bytes), after = %Size(wanted),
            "the file was shorter than its size= says, and was made that long with zeroes"
        );
    }
    Ok(wanted)
}

fn of_file(settings: &FileSettings, keeper: &OwnedFd, stat: &Stat, is_direct: bool, bytes: u64) -> Traits {
    // Tried where no data can be lost: past the end, with the size kept.
    let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    let can_punch = !settings.is_read_only
        && !matches!(rustix::fs::fallocate(keeper, mode, bytes, 4096), Err(errno) if is_unsupported(errno));
    let grain = u32::try_from(stat.st_blksize).unwrap_or(4096);
    Traits {
        is_direct,
        has_name: stat.st_nlink > 0,
        can_punch,
        write_grain_bytes: grain,
        deallocate_grain_bytes: grain,
    }
}

fn of_device(stat: &Stat, is_direct: bool, block_bytes: u32) -> Traits {
    let (major, minor) = (rustix::fs::major(stat.st_rdev), rustix::fs::minor(stat.st_rdev));
    let device = PathBuf::from(format!("/sys/dev/block/{major}:{minor}"));
    // A partition's limits are those of its disk.
    let queues = [device.join("queue"), device.join("../queue")];
    let number = |name: &str| {
        let text = queues.iter().find_map(|queue| std::fs::read_to_string(queue.join(name)).ok());
        text.and_then(|text| text.trim().parse::<u64>().ok()).unwrap_or(0)
    };
    let grain = |bytes: u64| u32::try_from(bytes).unwrap_or(block_bytes).max(block_bytes);
    Traits {
        is_direct,
        has_name: false,
        // Punching requires a device that can zero by itself; deallocation, one that discards.
        can_punch: number("write_zeroes_max_bytes") > 0 && number("discard_max_bytes") > 0,
        write_grain_bytes: grain(number("optimal_io_size").max(number("physical_block_size"))),
        deallocate_grain_bytes: grain(number("discard_granularity")),
    }
}

fn missing(settings: &FileSettings) -> OpenError {
    let remedy = match settings.kind {
        FileKind::Regular if settings.is_read_only => "a read-only namespace needs a file that is there",
        FileKind::Regular => "add ?size=10G to create a file of that size",
        FileKind::Device => "see lsblk for the devices that there are",
    };
    OpenError::Missing { path: settings.path.clone(), remedy }
}

fn system(action: &'static str, path: &Path, source: io::Error) -> OpenError {
    OpenError::System { action, path: path.to_owned(), source }
}

/// Whether the kernel holds a block device read-only (`blockdev --getro`); `None` if it does not report it.
pub(super) fn is_device_read_only(device: u64) -> Option<bool> {
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let path = PathBuf::from(format!("/sys/dev/block/{major}:{minor}/ro"));
    Some(std::fs::read_to_string(path).ok()?.trim() == "1")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block::FileStore;
    use crate::namespace::BlockStore;
    use crate::testing::open_in_time;

    struct Place(tempfile::TempDir);

    impl Place {
        fn settings(&self, name: &str) -> FileSettings {
            FileSettings {
                path: self.0.path().join(name),
                kind: FileKind::Regular,
                contents: Contents::Blocks,
                bytes: None,
                block_bytes: None,
                is_read_only: false,
                is_sparse: true,
            }
        }

        fn file(&self, name: &str, bytes: u64) -> FileSettings {
            let settings = self.settings(name);
            std::fs::File::create(&settings.path).unwrap().set_len(bytes).unwrap();
            settings
        }

        /// The error of opening as the user sees it.
        fn refusal(&self, settings: &FileSettings) -> String {
            let error =
                open_in_time(|| FileStore::open(settings)).err().expect("it must be refused").to_string();
            error.replace(self.0.path().to_str().unwrap(), "/data")
        }
    }

    /// Between creation, size and flush the power may go at any time.
    #[test]
    fn a_file_that_was_left_half_made_becomes_what_was_asked_for() {
        let place = Place(tempfile::tempdir().unwrap());
        for (name, left_bytes) in [("empty", 0), ("part", 4096), ("whole", 8192)] {
            let settings = FileSettings { bytes: Some(8192), ..place.file(name, left_bytes) };
            let store = open_in_time(|| FileStore::open(&settings)).unwrap();
            assert_eq!(store.geometry().bytes(), 8192, "{name}");
            assert_eq!(std::fs::metadata(&settings.path).unwrap().len(), 8192, "{name}");
        }
    }

    #[test]
    fn what_cannot_be_opened_says_why_and_what_to_do() {
        let place = Place(tempfile::tempdir().unwrap());
        let mut refusals = Vec::new();
        let mut refuse = |settings: FileSettings| refusals.push(place.refusal(&settings));
        refuse(place.settings("none"));
        refuse(FileSettings { is_read_only: true, bytes: Some(4096), ..place.settings("none") });
        refuse(FileSettings { bytes: Some(4096), ..place.settings("none/none") });
        refuse(FileSettings { bytes: Some(10_000), ..place.settings("none") });
        refuse(FileSettings { bytes: Some(0), ..place.settings("none") });
        refuse(FileSettings { bytes: Some(8192), block_bytes: Some(1000), ..place.settings("none") });
        refuse(place.file("odd", 10_000));
        refuse(place.file("half", 4096 * 3 + 512));
        refuse(place.file("empty", 0));
        refuse(FileSettings { bytes: Some(4096), ..place.file("large", 8192) });
        refuse(FileSettings { bytes: Some(8192), is_read_only: true, ..place.file("small", 4096) });
        refuse(FileSettings { kind: FileKind::Device, ..place.file("file", 4096) });
        refuse(FileSettings { kind: FileKind::Device, ..place.settings("none") });
        refuse(FileSettings { path: place.0.path().into(), ..place.settings("") });
        refuse(FileSettings { path: "/dev/null".into(), ..place.settings("") });
        let used = place.file("used", 4096);
        let _user = open_in_time(|| FileStore::open(&used)).unwrap();
        refuse(used.clone());
        refuse(FileSettings { is_read_only: true, ..used });
        insta::assert_snapshot!(refusals.join("\n"), @r"
        /data/none does not exist: add ?size=10G to create a file of that size
        /data/none does not exist: a read-only namespace needs a file that is there
        cannot create /data/none/none: No such file or directory (os error 2)
        the namespace on /data/none has 10000 bytes, not a multiple of its block size 4096: make it 12288
        the namespace on /data/none is empty: give it a size
        a logical block cannot have 1000 bytes: take a power of two from 512 to 65536
        /data/odd has 10000 bytes, not a multiple of its block size 4096: make it 12288
        /data/half has 12800 bytes, not a multiple of its block size 4096: use lba=512, or make it 16384
        /data/empty is empty: add ?size=10G to give it a size
        /data/large has 8K and size=4K is less: leave size out to use all of it
        /data/small has 4K and cannot grow to size=8K: it is opened read-only
        /data/file is a regular file: write file: in place of device:
        /data/none does not exist: see lsblk for the devices that there are
        /data is a directory: name a file in it
        /dev/null is neither a regular file nor a block device: name one of these
        /data/used is in use by another namespace or target process: two would destroy each other's data
        /data/used is in use by another namespace or target process: two would destroy each other's data
        ");
        assert!(!place.0.path().join("none").exists(), "nothing is left behind");
    }

    #[test]
    fn neither_kind_of_namespace_writes_over_the_other() {
        // Where this program is: there is no tmpfs, which has attributes of users only since Linux 6.6.
        let beside = std::env::current_exe().unwrap();
        let place = Place(tempfile::tempdir_in(beside.parent().unwrap()).unwrap());
        let text = |settings: &FileSettings| std::fs::read(&settings.path).unwrap();
        let as_spec = |scheme: &str, settings: &FileSettings, options: &str| {
            let spec = format!("{scheme}:{}{options}", settings.path.display());
            let store = open_in_time(|| spec.parse::<crate::Spec>().unwrap().open(false))
                .map_err(|error| error.to_string())?;
            store.set_reactor_count(1).map_err(|error| error.to_string())
        };
        let pairs = place.settings("pairs");
        as_spec("kv:file", &pairs, "?size=1M").unwrap();
        let before = text(&pairs);
        if !mark::is_set(&std::fs::File::open(&pairs.path).unwrap()) {
            // A file system without extended attributes: nothing distinguishes it from what a host may write.
            open_in_time(|| FileStore::open(&pairs)).unwrap();
            return;
        }
        let mut refusals = vec![place.refusal(&pairs)];
        refusals.push(place.refusal(&FileSettings { is_read_only: true, ..pairs.clone() }));
        refusals.push(place.refusal(&FileSettings { bytes: Some(2 << 20), ..pairs.clone() }));
        assert_eq!(text(&pairs), before, "neither written nor grown");
        as_spec("kv:file", &pairs, "").unwrap();

        // One that was written near its beginning, and one that was written only at its end.
        for (name, at) in [("begun", 0), ("ended", (1 << 20) - 1)] {
            let blocks = place.file(name, 1 << 20);
            let file = OpenOptions::new().write(true).open(&blocks.path).unwrap();
            std::os::unix::fs::FileExt::write_all_at(&file, &[1], at).unwrap();
            let before = text(&blocks);
            for options in ["", "?size=2M"] {
                let refused = as_spec("kv:file", &blocks, options).unwrap_err();
                refusals.push(refused.replace(place.0.path().to_str().unwrap(), "/data"));
            }
            assert_eq!(text(&blocks), before, "neither written nor grown");
            open_in_time(|| FileStore::open(&blocks)).unwrap();
        }
        let odd = place.settings("odd");
        let refused = as_spec("kv:file", &odd, "?size=1000001").unwrap_err();
        refusals.push(refused.replace(place.0.path().to_str().unwrap(), "/data"));
        insta::assert_snapshot!(refusals.join("\n"), @r"
        /data/pairs is a file of keys and values, not of blocks: write kv:file: in place of file:
        /data/pairs is a file of keys and values, not of blocks: write kv:file: in place of file:
        /data/pairs is a file of keys and values, not of blocks: write kv:file: in place of file:
        /data/begun is no key-value file, and not empty: name another one
        /data/begun is no key-value file, and not empty: name another one
        /data/ended is no key-value file, and not empty: name another one
        /data/ended is no key-value file, and not empty: name another one
        the namespace on /data/odd has 1000001 bytes, not a multiple of 4096: make it 1003520
        ");
        // Hosts of blocks may write anything, and the file is not refused for it.
        let copy = place.settings("copy");
        std::fs::write(&copy.path, &before).unwrap();
        open_in_time(|| FileStore::open(&copy)).unwrap();
        // A file of zeroes may hold blocks.
        std::fs::write(&pairs.path, vec![0; before.len()]).unwrap();
        open_in_time(|| FileStore::open(&pairs)).unwrap();
        std::fs::write(&pairs.path, &before).unwrap();
        open_in_time(|| FileStore::open(&pairs)).unwrap();
        // Written zeroes are no content either.
        let zeroes = place.settings("zeroes");
        std::fs::write(&zeroes.path, vec![0; 3 << 20]).unwrap();
        as_spec("kv:file", &zeroes, "").unwrap();
    }

    #[test]
    fn a_file_system_without_direct_io_is_served_through_the_page_cache() {
        let place = Place(tempfile::tempdir().unwrap());
        let settings = place.file("file", 4096);
        let refusing = |errno: Errno, refused: OFlags| {
            let settings = settings.clone();
            move |flags: OFlags| {
                if flags.contains(refused) { Err(errno.into()) } else { open_with(&settings, flags) }
            }
        };
        let (_, is_direct) = open_keeper(&settings, refusing(Errno::INVAL, OFlags::DIRECT)).unwrap();
        assert!(!is_direct);
        let refused = open_keeper(&settings, refusing(Errno::INVAL, OFlags::empty())).unwrap_err();
        assert!(matches!(refused, OpenError::System { action: "open", .. }), "{refused}");
        let device = FileSettings { kind: FileKind::Device, ..settings.clone() };
        let refused = open_keeper(&device, refusing(Errno::BUSY, OFlags::EXCL)).unwrap_err();
        assert!(matches!(refused, OpenError::Busy { .. }), "{refused}");
    }

    #[test]
    fn a_size_creates_a_file_or_lets_it_grow() {
        let place = Place(tempfile::tempdir().unwrap());
        let settings = FileSettings { bytes: Some(1 << 20), ..place.settings("new") };
        let store = open_in_time(|| FileStore::open(&settings)).unwrap();
        let geometry = store.geometry();
        assert_eq!((geometry.bytes(), geometry.block_bytes), (1 << 20, 4096));
        assert!(geometry.can_deallocate);
        drop(store);
        let settings = FileSettings { bytes: Some(2 << 20), ..settings };
        assert_eq!(open_in_time(|| FileStore::open(&settings)).unwrap().geometry().bytes(), 2 << 20);
        assert_eq!(std::fs::metadata(&settings.path).unwrap().len(), 2 << 20);
        let settings = FileSettings { bytes: None, block_bytes: Some(512), ..settings };
        assert_eq!(open_in_time(|| FileStore::open(&settings)).unwrap().geometry().block_count, 4096);
    }

    #[test]
    fn many_may_read_what_nobody_writes() {
        let place = Place(tempfile::tempdir().unwrap());
        let settings = FileSettings { is_read_only: true, ..place.file("shared", 8192) };
        let first = open_in_time(|| FileStore::open(&settings)).unwrap();
        let _second = open_in_time(|| FileStore::open(&settings)).unwrap();
        let geometry = first.geometry();
        assert!(geometry.is_read_only && !geometry.can_deallocate);
        let writer = FileSettings { is_read_only: false, ..settings };
        assert!(matches!(FileStore::open(&writer), Err(OpenError::Locked { .. })));
        assert!(first.resize(4096).is_err());
    }

    #[test]
    fn a_file_without_a_name_serves_as_well() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(65536).unwrap();
        let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file));
        let settings = FileSettings { path: path.into(), ..Place(tempfile::tempdir().unwrap()).settings("") };
        let store: std::sync::Arc<dyn BlockStore> =
            std::sync::Arc::new(open_in_time(|| FileStore::open(&settings)).unwrap());
        let mut rig = crate::testing::Rig::attach(&store, reactor::EngineKind::Epoll).unwrap();
        assert_eq!(crate::testing::Bench::write(&mut rig, 0, &[1; 4096]), Ok(vec![]));
    }
}
