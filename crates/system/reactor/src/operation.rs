//! Storage operations that a reactor carries out beside its sockets, and their results.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use memory::Buffer;

/// Identifies an operation to its starter.
pub type Token = u64;

/// An open file or block device, shared by the reactors that use it.
#[derive(Clone, Debug)]
pub struct File(Arc<Handle>);

#[derive(Debug)]
enum Handle {
    Os(OwnedFd),
    Simulated(u64),
}

impl File {
    /// A file of the system. Operations run with the flags it was opened with (O_DIRECT as a rule).
    #[must_use]
    pub fn new(file: OwnedFd) -> Self {
        Self(Arc::new(Handle::Os(file)))
    }

    /// A file of a simulated disk, known there by `id`.
    #[must_use]
    pub fn simulated(id: u64) -> Self {
        Self(Arc::new(Handle::Simulated(id)))
    }

    /// The number given to [`simulated`](Self::simulated), if this is such a file.
    #[must_use]
    pub fn simulated_id(&self) -> Option<u64> {
        match *self.0 {
            Handle::Os(_) => None,
            Handle::Simulated(id) => Some(id),
        }
    }

    /// Whether both are one open file description, which holds one lock.
    #[must_use]
    pub fn is_same_description(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// The system's descriptor, or an error for a simulated file.
    ///
    /// # Errors
    /// `Unsupported` for a simulated file.
    pub fn descriptor(&self) -> io::Result<BorrowedFd<'_>> {
        match &*self.0 {
            Handle::Os(fd) => Ok(fd.as_fd()),
            Handle::Simulated(_) => Err(io::ErrorKind::Unsupported.into()),
        }
    }
}

/// One asynchronous operation on a file. Offsets and lengths are bytes.
#[derive(Debug)]
pub enum Operation {
    /// Reads into the buffer's first `len()` bytes. May come back short.
    Read {
        /// The file to read.
        file: File,
        /// First byte in the file.
        offset: u64,
        /// The buffer to fill, from `skip` on.
        buffer: Buffer,
        /// Bytes of the buffer that are filled already.
        skip: usize,
    },
    /// Writes the buffer. May come back short.
    Write {
        /// The file to write.
        file: File,
        /// Byte in the file where `buffer[skip..]` goes.
        offset: u64,
        /// The buffer to write, from `skip` on.
        buffer: Buffer,
        /// Bytes of the buffer that are written already.
        skip: usize,
        /// Complete only when the data is on stable media (`RWF_DSYNC`).
        durable: bool,
    },
    /// Makes all writes that completed before this was started durable (`fdatasync`).
    Sync {
        /// The file.
        file: File,
    },
    /// Completes once the descriptor has something to read: an eventfd by which another library tells of its
    /// completions. It takes no buffer and no room of other operations, and a reactor that ends does not wait for it.
    /// With epoll, a descriptor is awaited by one operation at a time.
    Await {
        /// The descriptor.
        file: File,
    },
    /// Changes how a range is backed (`fallocate`, size kept).
    Allocate {
        /// The file.
        file: File,
        /// First byte.
        offset: u64,
        /// Bytes, not 0.
        length: u64,
        /// The change to the range.
        change: Allocation,
    },
}

/// The effect of [`Operation::Allocate`] on a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Allocation {
    /// Gives the space back; the range reads as zeroes.
    Punch,
    /// The range reads as zeroes and keeps its space.
    Zero,
}

/// The end of an [`Operation`].
#[derive(Debug)]
pub struct Completion {
    /// As given at the start.
    pub token: Token,
    /// Bytes read or written (0 for the others), or the error.
    pub result: io::Result<usize>,
    /// The buffer of a read or write, back from the kernel.
    pub buffer: Option<Buffer>,
}

/// The rest of a buffer behind the bytes that are done.
///
/// # Panics
/// If more are done than there are.
pub(crate) fn rest_of(buffer: &mut Buffer, done: usize) -> &mut [u8] {
    let length = buffer.len();
    buffer.get_mut(done..).unwrap_or_else(|| panic!("{done} bytes are done of a buffer of {length}"))
}

impl Operation {
    /// The file it works on.
    #[must_use]
    pub fn file(&self) -> &File {
        match self {
            Self::Read { file, .. }
            | Self::Write { file, .. }
            | Self::Sync { file }
            | Self::Await { file }
            | Self::Allocate { file, .. } => file,
        }
    }

    /// The buffer of a read or write.
    #[must_use]
    pub fn into_buffer(self) -> Option<Buffer> {
        match self {
            Self::Read { buffer, .. } | Self::Write { buffer, .. } => Some(buffer),
            Self::Sync { .. } | Self::Await { .. } | Self::Allocate { .. } => None,
        }
    }

    /// Ends the operation: gives the buffer back.
    pub(crate) fn complete(self, token: Token, result: io::Result<usize>) -> Completion {
        Completion { token, result, buffer: self.into_buffer() }
    }
}

impl Allocation {
    /// The mode of `fallocate`.
    pub(crate) fn mode(self) -> rustix::fs::FallocateFlags {
        use rustix::fs::FallocateFlags;
        FallocateFlags::KEEP_SIZE
            | match self {
                Self::Punch => FallocateFlags::PUNCH_HOLE,
                Self::Zero => FallocateFlags::ZERO_RANGE,
            }
    }
}
