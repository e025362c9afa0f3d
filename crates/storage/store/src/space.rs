//! Space of files, allocated ahead of writes or given back.

use std::fs::File;

use rustix::fs::FallocateFlags;
use rustix::io::Errno;

/// Allocates space for all of a file. Returns whether the file system can; if not, each write allocates its own.
pub(crate) fn allocate(file: &File, bytes: u64) -> Result<bool, Errno> {
    match rustix::fs::fallocate(file, FallocateFlags::empty(), 0, bytes) {
        Ok(()) => Ok(true),
        Err(errno) if is_unsupported(errno) => Ok(false),
        Err(errno) => Err(errno),
    }
}

/// Whether the file system or device does not support this at all.
pub(crate) fn is_unsupported(errno: Errno) -> bool {
    matches!(errno, Errno::OPNOTSUPP | Errno::NOSYS | Errno::NODEV)
}
