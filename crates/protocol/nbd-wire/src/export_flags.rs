//! The flags of an export.

use std::fmt;

/// The flags of an export that the transmission begins with.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct ExportFlags(u16);

impl ExportFlags {
    /// The other flags count.
    pub const HAS_FLAGS: Self = Self(1);
    /// Flush is supported.
    pub const FLUSH: Self = Self(1 << 2);
    /// Commands may ask to be durable before their reply (FUA).
    pub const FUA: Self = Self(1 << 3);
    /// Several connections are one client: a flush on one covers writes of all.
    pub const MULTI_CONN: Self = Self(1 << 8);
    /// The other flags count; Flush and FUA are supported; a flush on one connection covers writes of all.
    pub const BASE: Self = Self::HAS_FLAGS.with(Self::FLUSH).with(Self::FUA).with(Self::MULTI_CONN);
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

    /// The flags with these bits.
    #[must_use]
    pub const fn from_bits(bits: u16) -> Self {
        Self(bits)
    }

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
