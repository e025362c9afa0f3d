//! Keys: their length and hash.

use rapidhash::v3::{RapidSecrets, rapidhash_v3_micro_inline};

/// Longest key, bytes.
pub const KEY_BYTES_MAX: usize = 250;

/// The name of a key in the log: a checksum of it, the same at each start.
pub(crate) fn name_of(key: &[u8]) -> u32 {
    memory::crc32c::checksum(key)
}

/// The hash of a key, which determines its partition, bucket and tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyHash(pub(crate) u64);

impl KeyHash {
    /// Which of `count` partitions the key belongs to.
    #[inline]
    #[must_use]
    pub fn partition(self, count: usize) -> usize {
        // Bits that affect neither bucket nor tag.
        (((self.0 >> 8 & 0xff_ffff) * count as u64) >> 24) as usize
    }

    #[inline]
    pub(crate) fn tag(self) -> u8 {
        self.0 as u8
    }

    /// All bits of the hash.
    #[inline]
    pub(crate) fn raw(self) -> u64 {
        self.0
    }

    #[cfg(test)]
    pub(crate) fn of(bits: u64) -> Self {
        Self(bits)
    }
}

/// Hashes keys. All hashers with one seed agree.
pub(crate) struct KeyHasher {
    secrets: RapidSecrets,
}

impl KeyHasher {
    pub(crate) fn new(seed: u64) -> Self {
        Self { secrets: RapidSecrets::seed(seed) }
    }

    /// The hash of a key.
    #[inline(always)]
    pub(crate) fn hash(&self, key: &[u8]) -> KeyHash {
        KeyHash(rapidhash_v3_micro_inline::<true, false>(key, &self.secrets))
    }
}
