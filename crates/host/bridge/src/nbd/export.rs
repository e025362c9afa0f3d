//! Exports: the namespaces that clients connect to, with their size, block size and flags.

use std::fmt;

/// The flags of an export that the transmission begins with.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct ExportFlags(u16);

impl ExportFlags {
    /// The other flags count; Flush and FUA are supported; a flush on one connection covers writes of all.
    pub const BASE: Self = Self(1 | 1 << 2 | 1 << 3 | 1 << 8);
    /// No writes.
    pub const READ_ONLY: Self = Self(1 << 1);
    /// Trim is supported.
    pub const TRIM: Self = Self(1 << 5);
    /// Write Zeroes is supported.
    pub const WRITE_ZEROES: Self = Self(1 << 6);
    /// A read may ask for one chunk.
    pub const DF: Self = Self(1 << 7);
    /// Cache is supported.
    pub const CACHE: Self = Self(1 << 10);
    /// Write Zeroes may ask to fail unless it is fast.
    pub const FAST_ZERO: Self = Self(1 << 11);

    /// The bits.
    #[must_use]
    pub const fn bits(self) -> u16 {
        self.0
    }

    /// With the flags of both.
    #[must_use]
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// With the flags of `other` if `is_so`.
    #[must_use]
    pub const fn with_if(self, other: Self, is_so: bool) -> Self {
        if is_so { self.with(other) } else { self }
    }

    /// Without the flags of `other`.
    #[must_use]
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Whether it has all flags of `other`.
    #[must_use]
    pub const fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

impl fmt::Debug for ExportFlags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ExportFlags({:#06x})", self.0)
    }
}

/// An export.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Export {
    /// Its name; empty for the default export.
    pub name: String,
    /// A line for people.
    pub description: String,
    /// Size, bytes.
    pub size_bytes: u64,
    /// Block size, bytes: requests are multiples of it. A power of two from 512.
    pub block_bytes: u32,
    /// Preferred size of a request, bytes: a power of two, at least a block.
    pub preferred_bytes: u32,
    /// Longest read whose data can be sent in one piece, bytes.
    pub whole_read_bytes_max: u32,
    /// What it supports.
    pub flags: ExportFlags,
    /// Write Zeroes that may leave holes is as fast as Trim.
    pub zeroes_fast: bool,
}
