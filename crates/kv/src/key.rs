//! Keys: how long they are, and where they are looked for.

use rapidhash::v3::{RapidSecrets, rapidhash_v3_micro_inline};

/// Longest key, bytes.
pub const KEY_BYTES_MAX: usize = 250;

/// The hash of a key: where it is looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyHash(pub(crate) u64);

impl KeyHash {
    /// Which of `count` partitions the key belongs to.
    #[inline]
    #[must_use]
    pub fn partition(self, count: usize) -> usize {
        // Bits that neither bucket nor tag depend on.
        (((self.0 >> 8 & 0xff_ffff) * count as u64) >> 24) as usize
    }

    #[inline]
    pub(crate) fn tag(self) -> u8 {
        self.0 as u8
    }

    /// All of its bits.
    #[inline]
    pub(crate) fn raw(self) -> u64 {
        self.0
    }

    #[cfg(test)]
    pub(crate) fn of(bits: u64) -> Self {
        Self(bits)
    }
}

/// Hashes keys. All of one seed agree.
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
