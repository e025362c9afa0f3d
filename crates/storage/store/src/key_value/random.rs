//! Random numbers of key-value namespaces: hash seeds, identities of files, runs of logs.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};

use linux::random::mix;
use linux::randomness::Randomness;

/// A source of random numbers.
pub(super) enum Random {
    /// The system: peers cannot predict them.
    System,
    /// A simulator, which counts on from a number of its own, and has a hash seed for each new namespace.
    Simulated { count: AtomicU64, hash_seed: u64 },
}

impl Random {
    /// A number that no earlier start has drawn.
    pub(super) fn draw(&self) -> u64 {
        match self {
            Self::System => RandomState::new().build_hasher().finish(),
            // Distinct for distinct counts.
            Self::Simulated { count, .. } => mix(count.fetch_add(1, Ordering::Relaxed)),
        }
    }

    /// The hash seed of a new namespace, secret, so that peers cannot construct collisions.
    pub(super) fn hash_seed(&self) -> u64 {
        match self {
            Self::System => self.draw(),
            Self::Simulated { hash_seed, .. } => *hash_seed,
        }
    }

    /// The seed that selects the partitions of a new namespace. Hosts are told it, and learn nothing about the hash seed
    /// from it.
    pub(super) fn partition_seed(&self) -> u64 {
        match self {
            Self::System => {
                // Not by `draw`: the numbers that a thread draws come from keys that differ by a counter.
                let mut bytes = [0; 8];
                Randomness::System.fill(&mut bytes).expect("as the hash seed has come from there");
                u64::from_le_bytes(bytes)
            }
            Self::Simulated { hash_seed, .. } => mix(!hash_seed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_number_is_drawn_twice_in_a_row() {
        for random in [Random::System, Random::Simulated { count: AtomicU64::new(0), hash_seed: 7 }] {
            assert_ne!(random.draw(), random.draw());
        }
    }
}
