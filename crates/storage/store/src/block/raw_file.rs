//! A file or block device without a namespace around it: for programs of this machine that read and write it directly.

use std::io;
use std::os::fd::AsFd;

use reactor::File;

use super::file_open::{self, FileSettings, Opened};
use crate::open_error::OpenError;

/// An open file or block device, locked against use by others as a namespace on it would be.
#[derive(Debug)]
pub struct RawFile(Opened);

impl RawFile {
    /// Opens a file or device, with direct I/O where its file system has that.
    ///
    /// # Errors
    /// The problem of the storage, with its remedy.
    pub fn open(settings: &FileSettings) -> Result<Self, OpenError> {
        file_open::open(settings).map(Self)
    }

    /// Its size, bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.0.bytes
    }

    /// Bytes of a block: reads and writes begin and end at multiples of it.
    #[must_use]
    pub fn block_bytes(&self) -> u32 {
        self.0.block_bytes
    }

    /// Whether reads and writes bypass the page cache.
    #[must_use]
    pub fn is_direct(&self) -> bool {
        self.0.traits.is_direct
    }

    /// Whether ranges can be given back.
    #[must_use]
    pub fn can_deallocate(&self) -> bool {
        self.0.traits.can_punch
    }

    /// Bytes of a regular file that have no space on the disk: the file system answers reads of them itself.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn hole_bytes(&self) -> io::Result<u64> {
        let stat = rustix::fs::fstat(&self.0.data)?;
        let is_regular = rustix::fs::FileType::from_raw_mode(stat.st_mode).is_file();
        let kept = u64::try_from(stat.st_blocks).unwrap_or(0).saturating_mul(512);
        Ok(if is_regular { self.0.bytes.saturating_sub(kept) } else { 0 })
    }

    /// A handle for the operations of one thread.
    ///
    /// # Errors
    /// No descriptor is free.
    pub fn handle(&self) -> io::Result<File> {
        Ok(File::new(self.0.data.as_fd().try_clone_to_owned()?))
    }
}

impl Drop for RawFile {
    /// The kernel keeps files registered with a ring for a while after the ring has gone: without this, their lock too.
    fn drop(&mut self) {
        file_open::unlock(&self.0);
    }
}
