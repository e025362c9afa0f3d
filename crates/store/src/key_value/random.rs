//! Random numbers of key-value namespaces: hash seeds, identities of files, runs of logs.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};

use reactor::random::mix;

/// A source of random numbers.
pub(super) enum Random {
    /// The system: peers cannot predict them.
    System,
    /// A simulator, which counts on from a number of its own.
    Simulated(AtomicU64),
}

impl Random {
    /// A number that no earlier start has drawn.
    pub(super) fn draw(&self) -> u64 {
        match self {
            Self::System => RandomState::new().build_hasher().finish(),
            // Distinct for distinct counts.
            Self::Simulated(count) => mix(count.fetch_add(1, Ordering::Relaxed)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_number_is_drawn_twice_in_a_row() {
        for random in [Random::System, Random::Simulated(AtomicU64::new(0))] {
            assert_ne!(random.draw(), random.draw());
        }
    }
}
