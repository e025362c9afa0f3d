//! Requests of the kernel.
// What is read from the device must not cause a panic: see docs/testing.md.
#![cfg_attr(
    not(test),
    deny(
        clippy::arithmetic_side_effects,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::unwrap_used
    )
)]

use rustix::fs::OFlags;
use zerocopy::FromBytes;

use super::wire::{
    FallocateIn, HandleIn, InHeader, InitIn, OpenIn, SetAttributesIn, TransferIn, init_flag, opcode,
    set_attributes,
};

/// Bytes of a WRITE before its payload.
pub const WRITE_HEAD_BYTES: usize = size_of::<InHeader>() + size_of::<TransferIn>();

/// `FALLOC_FL_KEEP_SIZE`, `FALLOC_FL_PUNCH_HOLE` and `FALLOC_FL_ZERO_RANGE`.
pub(crate) const KEEP_SIZE: u32 = 1;
pub(crate) const PUNCH_HOLE: u32 = 2;
pub(crate) const ZERO_RANGE: u32 = 16;

/// A request without its payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request<'a> {
    /// What its reply carries.
    pub unique: u64,
    /// The file or directory.
    pub node: u64,
    /// What is asked for.
    pub operation: Operation<'a>,
}

/// Operations that are carried out, or refused with an error of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation<'a> {
    /// The first request: versions and flags.
    Init {
        /// Major version of the kernel.
        major: u32,
        /// Its minor version.
        minor: u32,
        /// Bytes of read-ahead.
        max_readahead: u32,
        /// What the kernel can do.
        flags: u64,
    },
    /// The last one.
    Destroy,
    /// The kernel forgets nodes. Without a reply.
    Forget,
    /// An earlier request is interrupted.
    Interrupt,
    /// A name in a directory.
    Lookup {
        /// The name.
        name: &'a [u8],
    },
    /// Attributes.
    GetAttributes,
    /// Changes of attributes.
    SetAttributes {
        /// The new size, if it is to change.
        size: Option<u64>,
        /// Owner or permissions are to change.
        has_owner_or_mode: bool,
    },
    /// Opens a file.
    Open {
        /// To read and write, or to write.
        is_for_writing: bool,
        /// Without the page cache.
        is_direct: bool,
    },
    /// The last descriptor of a handle is closed.
    Release {
        /// The handle.
        handle: u64,
    },
    /// Reads.
    Read {
        /// First byte.
        offset: u64,
        /// Bytes.
        length: u32,
        /// The file is open with `O_DIRECT`.
        is_direct: bool,
    },
    /// Writes the payload, which follows [`WRITE_HEAD_BYTES`].
    Write {
        /// First byte.
        offset: u64,
        /// Bytes.
        length: u32,
        /// The file is open with `O_DIRECT`.
        is_direct: bool,
    },
    /// Makes durable what was written.
    Sync {
        /// The handle.
        handle: u64,
    },
    /// Deallocates or zeroes a range, or allocates it.
    Allocate {
        /// First byte.
        offset: u64,
        /// Bytes.
        length: u64,
        /// Flags of `fallocate(2)`.
        mode: u32,
    },
    /// Sizes of the file system.
    Statfs,
    /// Opens a directory.
    OpenDirectory,
    /// Entries of a directory.
    ReadDirectory {
        /// Entries that the kernel has.
        offset: u64,
        /// Bytes that it takes.
        length: u32,
    },
    /// A directory is closed.
    ReleaseDirectory,
    /// A name is to be made, removed or changed.
    ChangeNames,
    /// Any other.
    Unknown {
        /// Its number.
        opcode: u32,
    },
}

/// A request is no request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequestViolation {
    /// It is shorter than its structure.
    #[error("request of {length} bytes with the operation {opcode} is too short")]
    Short {
        /// Bytes.
        length: usize,
        /// The number of the operation, if there is one.
        opcode: u32,
    },
    /// Its length is not that of what was read.
    #[error("request of {length} bytes says it has {said}")]
    Length {
        /// Bytes.
        length: usize,
        /// What it says.
        said: u32,
    },
    /// A name has no end.
    #[error("name without an end")]
    Name,
}

impl<'a> Request<'a> {
    /// The `unique` of a request, whatever else is in it.
    #[must_use]
    pub fn unique_of(bytes: &[u8]) -> Option<u64> {
        InHeader::read_from_prefix(bytes).ok().map(|(header, _)| header.unique)
    }

    /// A request of `length` bytes. Of a WRITE `bytes` may end behind [`WRITE_HEAD_BYTES`].
    ///
    /// # Errors
    /// [`RequestViolation`].
    #[inline]
    pub fn from_bytes(bytes: &'a [u8], length: usize) -> Result<Self, RequestViolation> {
        let short = |opcode| RequestViolation::Short { length, opcode };
        let (header, body) = InHeader::read_from_prefix(bytes).map_err(|_| short(0))?;
        let said = header.len;
        if usize::try_from(said) != Ok(length) {
            return Err(RequestViolation::Length { length, said });
        }
        let operation = operation_of(&header, body, length).ok_or_else(|| short(header.opcode))?;
        if operation == (Operation::Lookup { name: &[] }) {
            return Err(RequestViolation::Name);
        }
        Ok(Self { unique: header.unique, node: header.nodeid, operation })
    }
}

/// The operation; `None` if its structure is not complete.
#[inline]
fn operation_of<'a>(header: &InHeader, body: &'a [u8], length: usize) -> Option<Operation<'a>> {
    Some(match header.opcode {
        opcode::READ => {
            let read: TransferIn = structure(body)?;
            let is_direct = is_direct(read.flags);
            Operation::Read { offset: read.offset, length: read.size, is_direct }
        }
        opcode::WRITE => {
            let write: TransferIn = structure(body)?;
            let payload = length.checked_sub(WRITE_HEAD_BYTES)?;
            if usize::try_from(write.size) != Ok(payload) {
                return None;
            }
            let is_direct = is_direct(write.flags);
            Operation::Write { offset: write.offset, length: write.size, is_direct }
        }
        opcode::INIT => {
            let init: InitIn = structure(body)?;
            let has_more = u64::from(init.flags) & init_flag::INIT_EXT != 0;
            let more = if has_more { structure::<[u32; 5]>(body)?.last().copied()? } else { 0 };
            let flags = u64::from(init.flags) | u64::from(more) << 32;
            let InitIn { major, minor, max_readahead, .. } = init;
            Operation::Init { major, minor, max_readahead, flags }
        }
        opcode::DESTROY => Operation::Destroy,
        opcode::FORGET | opcode::BATCH_FORGET => Operation::Forget,
        opcode::INTERRUPT => Operation::Interrupt,
        opcode::LOOKUP => {
            // Without its zero byte the name is empty, and no file has that name.
            let end = body.iter().position(|byte| *byte == 0).unwrap_or(0);
            Operation::Lookup { name: body.get(..end)? }
        }
        opcode::GETATTR => Operation::GetAttributes,
        opcode::SETATTR => {
            let set: SetAttributesIn = structure(body)?;
            let owner_or_mode = set_attributes::MODE | set_attributes::UID | set_attributes::GID;
            Operation::SetAttributes {
                size: (set.valid & set_attributes::SIZE != 0).then_some(set.size),
                has_owner_or_mode: set.valid & owner_or_mode != 0,
            }
        }
        opcode::OPEN => {
            let open: OpenIn = structure(body)?;
            let is_for_writing = open.flags & OFlags::ACCMODE.bits() != OFlags::RDONLY.bits();
            Operation::Open { is_for_writing, is_direct: is_direct(open.flags) }
        }
        opcode::RELEASE => Operation::Release { handle: structure::<HandleIn>(body)?.fh },
        opcode::FSYNC => Operation::Sync { handle: structure::<HandleIn>(body)?.fh },
        opcode::FALLOCATE => {
            let FallocateIn { offset, length, mode, .. } = structure(body)?;
            Operation::Allocate { offset, length, mode }
        }
        opcode::STATFS => Operation::Statfs,
        opcode::OPENDIR => Operation::OpenDirectory,
        opcode::READDIR => {
            let read: TransferIn = structure(body)?;
            Operation::ReadDirectory { offset: read.offset, length: read.size }
        }
        opcode::RELEASEDIR => Operation::ReleaseDirectory,
        opcode::SYMLINK
        | opcode::MKNOD
        | opcode::MKDIR
        | opcode::UNLINK
        | opcode::RMDIR
        | opcode::RENAME
        | opcode::LINK
        | opcode::CREATE
        | opcode::RENAME2
        | opcode::TMPFILE => Operation::ChangeNames,
        opcode => Operation::Unknown { opcode },
    })
}

#[inline]
fn structure<T: FromBytes>(body: &[u8]) -> Option<T> {
    T::read_from_prefix(body).ok().map(|(value, _)| value)
}

fn is_direct(flags: u32) -> bool {
    flags & OFlags::DIRECT.bits() != 0
}
