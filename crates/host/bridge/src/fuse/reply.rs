//! Replies to the kernel, and notifications.
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

use rustix::io::Errno;
use zerocopy::{Immutable, IntoBytes};

use super::wire::{DirectoryEntry, EntryOut, InvalEntryOut, InvalInodeOut, OutHeader, WriteOut, notify};

/// Longest reply, but for data and listings.
pub const REPLY_BYTES_MAX: usize = size_of::<OutHeader>() + size_of::<EntryOut>();

/// Alignment of entries of a directory.
const ENTRY_ALIGNMENT: usize = 8;

/// A reply, or what of it precedes data.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Reply {
    bytes: [u8; REPLY_BYTES_MAX],
    length: u8,
}

impl std::fmt::Debug for Reply {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Reply({:02x?})", self.as_bytes())
    }
}

impl Reply {
    fn new(unique: u64, error: i32, body: &[u8], data_bytes: u32) -> Self {
        let mut reply = Self { bytes: [0; REPLY_BYTES_MAX], length: 0 };
        let own = size_of::<OutHeader>().saturating_add(body.len());
        debug_assert!(own <= REPLY_BYTES_MAX, "a reply of {own} bytes");
        let len = u32::try_from(own).unwrap_or(u32::MAX).saturating_add(data_bytes);
        let header = OutHeader { len, error, unique };
        let (head, rest) = reply.bytes.split_at_mut(size_of::<OutHeader>());
        head.copy_from_slice(header.as_bytes());
        if let (Some(room), Ok(length)) = (rest.get_mut(..body.len()), u8::try_from(own)) {
            room.copy_from_slice(body);
            reply.length = length;
        }
        reply
    }

    /// Done, without data.
    #[must_use]
    pub fn done(unique: u64) -> Self {
        Self::new(unique, 0, &[], 0)
    }

    /// An error.
    #[must_use]
    pub fn failed(unique: u64, errno: Errno) -> Self {
        Self::new(unique, errno.raw_os_error().saturating_neg(), &[], 0)
    }

    /// What precedes this number of bytes.
    #[inline]
    #[must_use]
    pub fn data(unique: u64, data_bytes: u32) -> Self {
        Self::new(unique, 0, &[], data_bytes)
    }

    /// So many bytes were written.
    #[inline]
    #[must_use]
    pub fn written(unique: u64, size: u32) -> Self {
        Self::of(unique, &WriteOut { size, padding: 0 })
    }

    /// A structure.
    pub(crate) fn of(unique: u64, body: &(impl IntoBytes + Immutable)) -> Self {
        Self::new(unique, 0, body.as_bytes(), 0)
    }

    /// Tells the kernel that the attributes of a node have changed.
    pub(crate) fn node_changed(node: u64) -> Self {
        let body = InvalInodeOut { ino: node, off: -1, len: 0 };
        Self::new(0, notify::INVAL_INODE, body.as_bytes(), 0)
    }

    /// What precedes a name, with its zero byte: this name of the directory has changed.
    pub(crate) fn name_changed(directory: u64, name_bytes: u32) -> Self {
        let body = InvalEntryOut { parent: directory, namelen: name_bytes, flags: 0 };
        Self::new(0, notify::INVAL_ENTRY, body.as_bytes(), name_bytes.saturating_add(1))
    }

    /// The bytes.
    #[inline]
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..usize::from(self.length)).unwrap_or_default()
    }
}

/// Entries of a directory, at most as many bytes as the kernel takes.
#[derive(Debug, Default)]
pub struct Listing {
    bytes: Vec<u8>,
}

impl Listing {
    /// Begins anew.
    pub fn clear(&mut self) {
        self.bytes.clear();
    }

    /// The entries.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Adds an entry. `off` is the number of entries with it, and `kind` the type in the upper bits of a mode. Returns whether
    /// there was room.
    pub(crate) fn push(&mut self, ino: u64, off: u64, kind: u32, name: &[u8], length_max: usize) -> bool {
        let namelen = u32::try_from(name.len()).unwrap_or(u32::MAX);
        let entry = DirectoryEntry { ino, off, namelen, kind };
        let own = size_of::<DirectoryEntry>().saturating_add(name.len());
        let padded = own.checked_next_multiple_of(ENTRY_ALIGNMENT).unwrap_or(usize::MAX);
        let end = self.bytes.len().saturating_add(padded);
        if end > length_max {
            return false;
        }
        self.bytes.extend_from_slice(entry.as_bytes());
        self.bytes.extend_from_slice(name);
        self.bytes.resize(end, 0);
        true
    }
}
