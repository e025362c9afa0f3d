//! Keys that collide, for tests and simulators that know the seed of the hash.
//!
//! The hash multiplies a block of eight bytes of the key, combined with a secret, by the next block. Where the first
//! block is the secret itself, the product is zero whatever the next block is.

use rapidhash::v3::RapidSecrets;

use crate::key::{KeyHash, KeyHasher};

/// Bits of the bucket that near keys share: as many buckets as the index of a small partition has, and more.
const BUCKET_BITS: u32 = 11;

/// Bytes at the end of the longer keys.
const FILLER_BYTES: usize = 8;

/// Makes keys that collide.
///
/// All keys of a kind have one hash. Those of kinds that are equal modulo two have their bucket and their tag in
/// common. Keys of kinds 0 and 1 are short enough for the index, and for NVMe.
#[derive(Clone, Debug)]
pub struct CollidingKeys {
    secrets: RapidSecrets,
    /// The last bytes of the keys of each kind, chosen so that its hash is near that of the first kind with which it
    /// shares a bucket.
    fillers: [u32; Self::KIND_COUNT as usize],
}

impl CollidingKeys {
    /// Kinds of keys.
    pub const KIND_COUNT: u32 = 6;

    /// Keys for partitions with this seed. Near keys belong to the same one of `partition_count` partitions.
    #[must_use]
    pub fn new(seed: u64, partition_count: usize) -> Self {
        let hasher = KeyHasher::new(seed, None);
        let mut keys = Self { secrets: RapidSecrets::seed(seed), fillers: [0; Self::KIND_COUNT as usize] };
        let place = |key: &[u8]| {
            let hash = hasher.hash(key);
            (bucket(hash), hash.tag(), hash.partition(partition_count))
        };
        for kind in 2..Self::KIND_COUNT {
            let wanted = place(&keys.key(kind % 2, 0));
            let mut key = keys.key(kind, 0);
            let filler = (0..).find(|&filler| {
                fill(&mut key, filler);
                place(&key) == wanted
            });
            keys.fillers[kind as usize] = filler.expect("one of 2^32");
        }
        keys
    }

    /// A key of this kind. It is text if the secrets are text.
    ///
    /// # Panics
    /// If there is no such kind.
    #[must_use]
    pub fn key(&self, kind: u32, number: u16) -> Vec<u8> {
        let secrets = &self.secrets.secrets;
        let (length, secret) = match kind {
            0 => (12, secrets[1]),
            1 => (16, secrets[1]),
            2 | 3 => (40, secrets[2]),
            _ => (200, secrets[0]),
        };
        let mut key = vec![b'.'; length];
        key[..8].copy_from_slice(&secret.to_le_bytes());
        key[8..12].copy_from_slice(format!("{number:04x}").as_bytes());
        if kind > 1 {
            fill(&mut key, self.fillers[kind as usize]);
        }
        key
    }
}

/// Ends a key with these bits.
fn fill(key: &mut [u8], filler: u32) {
    let at = key.len() - FILLER_BYTES;
    for (digit, byte) in key[at..].iter_mut().enumerate() {
        *byte = b'a' + (filler >> (4 * digit) & 0xf) as u8;
    }
}

fn bucket(hash: KeyHash) -> u64 {
    hash.raw() >> (64 - BUCKET_BITS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_a_kind_have_one_hash_and_kinds_have_others() {
        for (seed, partition_count) in [(0, 1), (5, 1), (5, 3)] {
            let (hasher, keys) = (KeyHasher::new(seed, None), CollidingKeys::new(seed, partition_count));
            let hash = |kind, number| hasher.hash(&keys.key(kind, number));
            let hashes: Vec<KeyHash> = (0..CollidingKeys::KIND_COUNT).map(|kind| hash(kind, 0)).collect();
            for (kind, &first) in (0..).zip(&hashes) {
                assert!((1..1000).all(|number| hash(kind, number) == first), "kind {kind} of seed {seed}");
                assert_eq!(hashes.iter().filter(|&&other| other == first).count(), 1);
                let near = hashes[kind as usize % 2];
                let place = |hash: KeyHash| (bucket(hash), hash.tag(), hash.partition(partition_count));
                assert_eq!(place(first), place(near), "kind {kind} of seed {seed}");
            }
        }
    }
}
