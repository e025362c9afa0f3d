//! Keys that collide, for tests that know the seed of the hash.
//!
//! The hash multiplies a block of eight bytes of the key, combined with a secret, by the next block. Where the first
//! block is the secret itself, the product is zero whatever the next block is.

use std::sync::OnceLock;

use rapidhash::v3::RapidSecrets;

use crate::key::KeyHasher;

/// Bits of the bucket that near keys share: as many buckets as the index of a small partition has, and more.
const BUCKET_BITS: u32 = 11;

/// Kinds of keys. All keys of a kind have one hash.
pub(crate) const KIND_COUNT: u32 = 6;

/// A key of a partition whose seed is `seed`. Keys of one kind have the whole hash in common; those of kinds that are
/// equal modulo two have their bucket and their tag in common. Some are short enough for the index.
pub(crate) fn colliding_key(seed: u64, kind: u32, number: u16) -> Vec<u8> {
    static FILLERS: OnceLock<Vec<(u64, Vec<u32>)>> = OnceLock::new();
    // Those of two seeds, which tests use.
    let fillers = FILLERS.get_or_init(|| [0, 5].into_iter().map(|seed| (seed, fillers(seed))).collect());
    let (_, fillers) = fillers.iter().find(|(of, _)| *of == seed).expect("one of the two seeds");
    key_of(seed, kind, fillers[kind as usize], number)
}

fn key_of(seed: u64, kind: u32, filler: u32, number: u16) -> Vec<u8> {
    let secrets = RapidSecrets::seed(seed).secrets;
    let (length, secret) = match kind {
        0 => (12, secrets[1]),
        1 => (16, secrets[1]),
        2 | 3 => (40, secrets[2]),
        _ => (200, secrets[0]),
    };
    let mut key = vec![b'.'; length];
    key[..8].copy_from_slice(&secret.to_le_bytes());
    key[8..10].copy_from_slice(&number.to_le_bytes());
    if length > 16 {
        key[length - 4..].copy_from_slice(&filler.to_le_bytes());
    }
    key
}

/// What ends the keys of each kind, so that its hash is near that of the first kind with which it shares a bucket.
fn fillers(seed: u64) -> Vec<u32> {
    let hasher = KeyHasher::new(seed);
    let bits = |kind, filler| {
        let hash = hasher.hash(&key_of(seed, kind, filler, 0)).raw();
        (hash >> (64 - BUCKET_BITS), hash as u8)
    };
    let filler = |kind: u32| match kind {
        0 | 1 => 0,
        _ => (0..).find(|&filler| bits(kind, filler) == bits(kind % 2, 0)).expect("one of 2^32"),
    };
    (0..KIND_COUNT).map(filler).collect()
}

#[test]
fn keys_of_a_kind_have_one_hash_and_kinds_have_others() {
    for seed in [0, 5] {
        let hasher = KeyHasher::new(seed);
        let hash = |kind, number| hasher.hash(&colliding_key(seed, kind, number)).raw();
        let hashes: Vec<u64> = (0..KIND_COUNT).map(|kind| hash(kind, 0)).collect();
        for (kind, &first) in (0..).zip(&hashes) {
            assert!((1..1000).all(|number| hash(kind, number) == first), "kind {kind} of seed {seed}");
            assert_eq!(hashes.iter().filter(|&&other| other == first).count(), 1);
            let near = hashes[kind as usize % 2];
            assert_eq!((first >> 53, first as u8), (near >> 53, near as u8), "kind {kind} of seed {seed}");
        }
    }
}
