//! The partition of a key, as targets and hosts compute it. docs/kv-commands.md §6

use rapidhash::v3::{RapidSecrets, rapidhash_v3_micro_inline};

/// Bits of the hash that select a partition.
const SELECTING_BITS: u32 = 24;

/// Selects partitions of keys. All with one seed agree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Partitioner {
    secrets: RapidSecrets,
}

impl Partitioner {
    /// With this seed.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self { secrets: RapidSecrets::seed(seed) }
    }

    /// The bits of a key that [`partition_of`] needs.
    #[inline]
    #[must_use]
    pub fn bits(&self, key: &[u8]) -> u32 {
        let hash = rapidhash_v3_micro_inline::<true, false>(key, &self.secrets);
        // The upper ones, which the last multiplication mixes as well as any.
        (hash >> (u64::BITS - SELECTING_BITS)) as u32
    }
}

/// Which of `count` partitions a key with these bits belongs to.
#[inline]
#[must_use]
pub const fn partition_of(bits: u32, count: usize) -> usize {
    ((bits as u64 * count as u64) >> SELECTING_BITS) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The examples of docs/kv-commands.md §6.
    #[test]
    fn keys_have_the_partitions_of_the_document() {
        let partitioner = Partitioner::new(0x0123_4567_89ab_cdef);
        let bits = [&b"a"[..], b"key", b"0123456789abcdef"].map(|key| partitioner.bits(key));
        assert_eq!(bits, [0x2d_ed22, 0x09_3fa7, 0xbc_d3b7]);
    }

    #[test]
    fn partitions_have_equal_shares() {
        for seed in 0..4 {
            let partitioner = Partitioner::new(seed);
            for count in [1, 2, 3, 7, 16] {
                let mut keys = vec![0u32; count];
                for number in 0..48_000 {
                    keys[partition_of(partitioner.bits(format!("{number:016x}").as_bytes()), count)] += 1;
                }
                let share = 48_000 / count as u32;
                assert!(keys.iter().all(|keys| keys.abs_diff(share) < share / 10 + 1), "{keys:?}");
            }
        }
    }
}
