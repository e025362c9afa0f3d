//! Random choices that a seed determines, the same on every machine.

use linux::random::{SplitMix64, mix};

/// A stream of random numbers.
#[derive(Clone, Debug)]
pub(crate) struct Random(SplitMix64);

impl Random {
    /// The stream of a seed. Streams of different names have nothing in common.
    #[must_use]
    pub(crate) fn new(seed: u64, name: u64) -> Self {
        let mut random = Self(SplitMix64::new(seed ^ name.wrapping_mul(0xd6e8_feb8_6659_fd93)));
        random.next();
        random
    }

    /// The stream of one of several things with the same name, distinguished by `numbers`. It does not depend on draws
    /// from the others.
    pub(crate) fn of(seed: u64, name: u64, numbers: &[u64]) -> Self {
        Self::new(numbers.iter().fold(seed, |seed, number| mix(seed.rotate_left(17) ^ mix(!number))), name)
    }

    /// Any 64 bits.
    pub(crate) fn next(&mut self) -> u64 {
        self.0.draw()
    }

    /// Below `end`; 0 if that is 0.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        // The bias of a remainder below 2^40 is of no interest here.
        self.0.below(end)
    }

    /// From `low` to `high`, both included.
    pub(crate) fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low + 1)
    }

    /// As [`between`](Self::between), small numbers as likely as large ones: each power of two has its share.
    pub(crate) fn scaled(&mut self, low: u64, high: u64) -> u64 {
        let (first, last) = (64 - low.leading_zeros(), 64 - high.leading_zeros());
        let bits = self.between(first.into(), last.into());
        let top = 1u64.checked_shl(u32::try_from(bits).expect("at most 64")).map_or(u64::MAX, |top| top - 1);
        self.between(top / 2, top).clamp(low, high)
    }

    /// Draws an event with a probability in millionths.
    pub(crate) fn happens(&mut self, per_million: u32) -> bool {
        per_million > 0 && self.below(1_000_000) < u64::from(per_million)
    }

    /// Once in `count` times.
    pub(crate) fn one_in(&mut self, count: u64) -> bool {
        self.below(count) == 0
    }

    /// One of several.
    pub(crate) fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        self.0.pick(of)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_stay_in_their_range_and_reach_its_ends() {
        let mut random = Random::new(1, 2);
        let drawn: Vec<u64> = (0..2000).map(|_| random.scaled(1, 100)).collect();
        assert!(drawn.iter().all(|n| (1..=100).contains(n)));
        assert!(drawn.contains(&1) && drawn.iter().any(|n| *n > 90));
        assert!((0..1000).all(|_| (3..=5).contains(&random.between(3, 5))));
        assert_eq!(random.below(0), 0);
    }
}
