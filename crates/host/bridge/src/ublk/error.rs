//! Why there is no block device.

use std::io;

use rustix::io::Errno;

/// Why there is no device.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum UblkError {
    /// The kernel has no ublk.
    #[error(
        "no /dev/ublk-control: load the kernel's module ublk_drv (as root: modprobe ublk_drv). It comes with Linux 6.0; Debian's \
         kernels have it from 6.12 on, Debian 12 by linux-image-6.12-amd64. nvlane attach nbd needs no module"
    )]
    NoDriver,
    /// This user may not.
    #[error(
        "{path}: permission denied. Run as root, or have a udev rule make it accessible to this user (docs/guide/bridges.md); \
         nvlane attach nbd needs neither"
    )]
    NotPermitted {
        /// The device.
        path: String,
    },
    /// There is no io_uring.
    #[error(
        "ublk is served by io_uring, which is forbidden here ({0}): by kernel.io_uring_disabled, or by the profile of a container. \
         nvlane attach nbd needs none"
    )]
    NoRing(io::Error),
    /// The kernel's ublk is of before Linux 6.5.
    #[error("the kernel's ublk is too old ({0}): Linux 6.5 is needed; nvlane attach nbd needs no module")]
    TooOld(io::Error),
    /// Blocks that are larger than the kernel's pages.
    #[error(
        "the namespace has blocks of {0} bytes, and a block device at most 4096: nvlane attach nbd serves it"
    )]
    BlockTooLarge(u32),
    /// A living bridge serves the namespace already.
    #[error("{path} is this namespace's device already, served by process {process}: end that bridge first")]
    Served {
        /// The block device.
        path: String,
        /// The process.
        process: i32,
    },
    /// The wanted number is that of another device.
    #[error("{path} is another device: take another --number, or none")]
    Taken {
        /// The block device.
        path: String,
    },
    /// The device of the bridge that has ended is another one than wanted, or is not like the namespace any more.
    #[error(
        "{path}, which a bridge that has ended has left for this namespace, cannot be taken over: {why}. Unmount it, and remove it \
         by nvlane attach ublk --remove {path}"
    )]
    Unfit {
        /// The block device.
        path: String,
        /// Why it does not fit.
        why: String,
    },
    /// The kernel refuses.
    #[error("{what}: {error}")]
    System {
        /// What was asked for.
        what: &'static str,
        /// Its answer.
        error: io::Error,
    },
    /// There is no such namespace, or no lane.
    #[error(transparent)]
    Host(#[from] host::Error),
}

/// Names what the kernel has refused.
pub(super) fn system(what: &'static str) -> impl Fn(io::Error) -> UblkError {
    move |error| UblkError::System { what, error }
}

/// Whether it is this error of the kernel.
pub(super) fn is(error: &io::Error, errno: Errno) -> bool {
    error.raw_os_error() == Some(errno.raw_os_error())
}
