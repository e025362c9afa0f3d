//! Keys: their length and hash.

use memory::Partitioner;
use rapidhash::v3::{RapidSecrets, rapidhash_v3_micro_inline};

/// Longest key, bytes.
pub const KEY_BYTES_MAX: usize = 250;

/// The name of a key in the log: a checksum of it, the same at each start.
pub(crate) fn name_of(key: &[u8]) -> u32 {
    memory::crc32c::checksum(key)
}

/// Where the bits that select a partition begin. They affect neither bucket nor tag.
const SELECTING_AT: u32 = 8;

/// The bits that select a partition.
const SELECTING: u64 = 0xff_ffff << SELECTING_AT;

/// The hash of a key, which determines its partition, bucket and tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyHash(pub(crate) u64);

impl KeyHash {
    /// Which of `count` partitions the key belongs to.
    #[inline]
    #[must_use]
    pub fn partition(self, count: usize) -> usize {
        memory::partition_of(((self.0 & SELECTING) >> SELECTING_AT) as u32, count)
    }

    #[inline]
    pub(crate) fn tag(self) -> u8 {
        self.0 as u8
    }

    /// All bits of the hash.
    #[inline]
    #[must_use]
    pub fn raw(self) -> u64 {
        self.0
    }

    #[cfg(test)]
    pub(crate) fn of(bits: u64) -> Self {
        Self(bits)
    }
}

/// Hashes keys. All hashers with the same seeds agree.
pub(crate) struct KeyHasher {
    secrets: RapidSecrets,
    /// Selects the partition, if hosts are told how: a seed of its own, as that of the index stays secret. In a box, so
    /// that it takes no room beside the other fields of a partition that has none.
    partitioner: Option<Box<Partitioner>>,
}

impl KeyHasher {
    pub(crate) fn new(seed: u64, partition_seed: Option<u64>) -> Self {
        let partitioner = partition_seed.map(|seed| Box::new(Partitioner::new(seed)));
        Self { secrets: RapidSecrets::seed(seed), partitioner }
    }

    /// The hash of a key.
    #[inline(always)]
    pub(crate) fn hash(&self, key: &[u8]) -> KeyHash {
        let hash = self.index_hash(key);
        match &self.partitioner {
            None => hash,
            Some(partitioner) => {
                KeyHash(hash.0 & !SELECTING | u64::from(partitioner.bits(key)) << SELECTING_AT)
            }
        }
    }

    /// The hash of a key, with the right bucket and tag only.
    #[inline(always)]
    pub(crate) fn index_hash(&self, key: &[u8]) -> KeyHash {
        KeyHash(rapidhash_v3_micro_inline::<true, false>(key, &self.secrets))
    }
}
