//! Mounts and unmounts: by system calls, or by `fusermount3` of the package fuse3 for users who may not.

use std::fs;
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use linux::mounts;
use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketFlags, SocketType, recvmsg,
    socketpair,
};
use rustix::process::{getgid, getuid};

const DEVICE: &str = "/dev/fuse";

/// The type that `mount` and `/proc/mounts` show.
const FILE_SYSTEM: &str = "fuse.nvlane";

/// The source that they show.
const SOURCE: &str = "nvlane";

/// The program that mounts for users.
const HELPER: &str = "fusermount3";

/// How a directory is mounted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MountSettings {
    pub(crate) is_read_only: bool,
    pub(crate) allow_other: bool,
}

/// A directory cannot be mounted or unmounted.
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    /// The mount point is not there, or cannot be looked at.
    #[error("{}: {error}; name a directory that is there and empty", place.display())]
    Place {
        /// The mount point.
        place: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// It is no directory.
    #[error("{} is not a directory; name one that is empty", place.display())]
    NoDirectory {
        /// The mount point.
        place: PathBuf,
    },
    /// It has entries, which would be hidden.
    #[error("{} is not empty; name an empty directory", place.display())]
    NotEmpty {
        /// The mount point.
        place: PathBuf,
    },
    /// Something is mounted there.
    #[error(
        "{} is a mount point already ({file_system}, of {}); unmount it, or name another directory",
        place.display(), source_name.display()
    )]
    Mounted {
        /// The mount point.
        place: PathBuf,
        /// Its type.
        file_system: String,
        /// Its source.
        source_name: PathBuf,
    },
    /// The kernel has no FUSE.
    #[error(
        "{DEVICE}: {error}: load the kernel's module fuse (modprobe fuse), or give the container the device; \
         `nvlane attach nbd` needs neither"
    )]
    NoDevice {
        /// What opening it says.
        error: io::Error,
    },
    /// The user may not mount, and the program that may is not there.
    #[error(
        "this user may not mount ({error}), and {HELPER} is not installed: install the package fuse3, or run as root; \
         `nvlane attach nbd` needs neither"
    )]
    NoHelper {
        /// What mounting says.
        error: io::Error,
    },
    /// That program failed.
    #[error("{HELPER}: {message}")]
    Helper {
        /// What it says.
        message: String,
    },
    /// A system call failed.
    #[error("{}: {error}", place.display())]
    System {
        /// The mount point.
        place: PathBuf,
        /// Why.
        error: io::Error,
    },
}

/// How a directory was unmounted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unmounted {
    /// No process had a file of it open.
    Idle,
    /// It was in use: it is out of sight, and ends with its last user.
    Busy,
    /// It was not mounted any more.
    Before,
}

/// A directory that is mounted.
#[derive(Debug)]
pub(crate) struct Mount {
    place: PathBuf,
    is_by_helper: bool,
}

impl Mount {
    /// Mounts. A mount that a killed bridge has left is removed before. Returns the device, too.
    ///
    /// # Errors
    /// [`MountError`].
    pub(crate) fn new(place: &Path, settings: MountSettings) -> Result<(Self, OwnedFd), MountError> {
        let place = usable(place)?;
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let refused = match open(DEVICE, flags, Mode::empty()) {
            Ok(device) => match mount_by_call(&place, &device, settings) {
                Ok(()) => return Ok((Self { place, is_by_helper: false }, device)),
                Err(error @ (Errno::PERM | Errno::ACCESS)) => error,
                Err(Errno::NODEV) => return Err(MountError::NoDevice { error: Errno::NODEV.into() }),
                Err(error) => return Err(MountError::System { place, error: error.into() }),
            },
            // The program opens the device by itself.
            Err(error @ (Errno::PERM | Errno::ACCESS)) => error,
            Err(error) => return Err(MountError::NoDevice { error: error.into() }),
        };
        let device = mount_by_helper(&place, settings, refused)?;
        Ok((Self { place, is_by_helper: true }, device))
    }

    pub(crate) fn place(&self) -> &Path {
        &self.place
    }

    /// Unmounts, also while it is in use.
    ///
    /// # Errors
    /// [`MountError`].
    pub(crate) fn unmount(&self) -> Result<Unmounted, MountError> {
        if mounted_at(&self.place).is_none_or(|mount| mount.file_system != FILE_SYSTEM) {
            return Ok(Unmounted::Before);
        }
        if self.is_by_helper {
            return match unmount_by_helper(&self.place, false) {
                Ok(()) => Ok(Unmounted::Idle),
                Err(_) => unmount_by_helper(&self.place, true).map(|()| Unmounted::Busy),
            };
        }
        let unmounted = match unmount(&self.place, UnmountFlags::NOFOLLOW) {
            Ok(()) => Ok(Unmounted::Idle),
            Err(Errno::BUSY) => {
                let flags = UnmountFlags::NOFOLLOW | UnmountFlags::DETACH;
                unmount(&self.place, flags).map(|()| Unmounted::Busy)
            }
            Err(Errno::INVAL | Errno::NOENT) => Ok(Unmounted::Before),
            Err(error) => Err(error),
        };
        unmounted.map_err(|error| MountError::System { place: self.place.clone(), error: error.into() })
    }
}

/// The mount that is seen at a path.
fn mounted_at(place: &Path) -> Option<mounts::Mount> {
    let text = fs::read("/proc/self/mountinfo").ok()?;
    mounts::parse(&text).into_iter().rev().find(|mount| mount.at == place)
}

/// A mount point, with the path that the kernel shows for it. A dead mount of a bridge is removed.
fn usable(place: &Path) -> Result<PathBuf, MountError> {
    let failed = |error| MountError::Place { place: place.to_owned(), error };
    let whole = resolved(place).map_err(failed)?;
    while let Some(mount) = mounted_at(&whole) {
        // Attributes that the kernel has kept would not tell.
        let is_dead = fs::read_dir(&whole).is_err_and(|error| is_unconnected(&error));
        if !is_dead || mount.file_system != FILE_SYSTEM {
            return Err(MountError::Mounted {
                place: whole,
                file_system: mount.file_system,
                source_name: mount.source,
            });
        }
        tracing::info!(place = %whole.display(), "mount of a bridge that is gone is removed");
        let flags = UnmountFlags::NOFOLLOW | UnmountFlags::DETACH;
        match unmount(&whole, flags) {
            Ok(()) | Err(Errno::INVAL) => {}
            Err(Errno::PERM) => unmount_by_helper(&whole, true)?,
            Err(error) => return Err(MountError::System { place: whole, error: error.into() }),
        }
    }
    if !fs::metadata(&whole).map_err(failed)?.is_dir() {
        return Err(MountError::NoDirectory { place: whole });
    }
    if fs::read_dir(&whole).map_err(failed)?.next().is_some() {
        return Err(MountError::NotEmpty { place: whole });
    }
    Ok(whole)
}

/// The path without links. The last part of it may be a dead mount.
fn resolved(place: &Path) -> io::Result<PathBuf> {
    match fs::canonicalize(place) {
        Err(error) if is_unconnected(&error) => {
            let whole = std::path::absolute(place)?;
            match (whole.parent(), whole.file_name()) {
                (Some(parent), Some(name)) => Ok(fs::canonicalize(parent)?.join(name)),
                _ => Err(error),
            }
        }
        resolved => resolved,
    }
}

fn is_unconnected(error: &io::Error) -> bool {
    Errno::from_io_error(error) == Some(Errno::NOTCONN)
}

fn mount_by_call(place: &Path, device: &OwnedFd, settings: MountSettings) -> Result<(), Errno> {
    let options = format!(
        "fd={},rootmode=40000,user_id={},group_id={},{}",
        device.as_raw_fd(),
        getuid().as_raw(),
        getgid().as_raw(),
        options(settings),
    );
    let options = std::ffi::CString::new(options).map_err(|_| Errno::INVAL)?;
    let mut flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOATIME;
    flags.set(MountFlags::RDONLY, settings.is_read_only);
    mount(SOURCE, place, FILE_SYSTEM, flags, options.as_c_str())
}

/// The kernel checks permissions.
fn options(settings: MountSettings) -> &'static str {
    if settings.allow_other { "default_permissions,allow_other" } else { "default_permissions" }
}

/// `fusermount3` mounts, and sends the device over its standard input.
fn mount_by_helper(place: &Path, settings: MountSettings, refused: Errno) -> Result<OwnedFd, MountError> {
    let system = |error: Errno| MountError::System { place: place.to_owned(), error: error.into() };
    let (ours, theirs) =
        socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).map_err(system)?;
    let access = if settings.is_read_only { "ro" } else { "rw" };
    let options =
        format!("{access},nosuid,nodev,noatime,fsname={SOURCE},subtype=nvlane,{}", options(settings));
    let mut command = Command::new(HELPER);
    command.args(["-o", &options, "--"]).arg(place).env("_FUSE_COMMFD", "0").stdin(theirs);
    help(command, refused)?;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    recvmsg(&ours, &mut [IoSliceMut::new(&mut [0])], &mut ancillary, flags).map_err(system)?;
    let mut descriptors = ancillary.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
        _ => None,
    });
    let device = descriptors.next().and_then(|mut descriptors| descriptors.next());
    let device = device.ok_or_else(|| MountError::Helper { message: "it sent no device".into() })?;
    rustix::io::ioctl_fionbio(&device, true).map_err(system)?;
    Ok(device)
}

fn unmount_by_helper(place: &Path, is_lazy: bool) -> Result<(), MountError> {
    let mut command = Command::new(HELPER);
    command.args(if is_lazy { &["-u", "-z"][..] } else { &["-u"] }).arg("--").arg(place).stdin(Stdio::null());
    help(command, Errno::PERM)
}

/// Runs `fusermount3`.
fn help(mut command: Command, refused: Errno) -> Result<(), MountError> {
    let output = match command.stdout(Stdio::null()).output() {
        Ok(output) => output,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(MountError::NoHelper { error: refused.into() });
        }
        Err(error) => return Err(MountError::Helper { message: error.to_string() }),
    };
    if output.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&output.stderr);
    let message = text.trim().trim_start_matches(HELPER).trim_start_matches(": ");
    let message = if message.is_empty() { output.status.to_string() } else { message.replace('\n', "; ") };
    Err(MountError::Helper { message })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_point_is_an_empty_directory() {
        let directory = tempfile::tempdir().expect("a directory");
        let place = directory.path().join("disk");
        assert!(matches!(usable(&place), Err(MountError::Place { .. })));
        fs::create_dir(&place).expect("it is made");
        assert_eq!(usable(&place).expect("it is empty"), fs::canonicalize(&place).expect("it is there"));
        let file = place.join("file");
        fs::write(&file, "text").expect("it is written");
        assert!(matches!(usable(&place), Err(MountError::NotEmpty { .. })));
        assert!(matches!(usable(&file), Err(MountError::NoDirectory { .. })));
        let error = usable(Path::new("/proc")).expect_err("it is mounted");
        assert!(error.to_string().starts_with("/proc is a mount point already (proc, of "), "{error}");
    }
}
