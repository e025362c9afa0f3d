//! Random numbers that repeat: streams of one seed, and numbers below a count by multiplication.

use linux::random::SplitMix64;
pub use linux::random::mix;

/// A seeded generator of 64-bit numbers. Not for secrets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prng(SplitMix64);

impl Prng {
    /// A generator that repeats for the same `seed`.
    pub const fn new(seed: u64) -> Self {
        Self(SplitMix64::new(mix(seed)))
    }

    /// The generator of one of many streams of the same `seed`, such as one lane of a run.
    pub const fn stream(seed: u64, stream: u64) -> Self {
        Self::new(mix(seed) ^ mix(!stream))
    }

    /// The next number, uniform over all 64 bits.
    #[inline]
    pub fn draw(&mut self) -> u64 {
        self.0.draw()
    }

    /// The next number below `count`, uniform but for a bias of `count` / 2^64. Zero for a `count` of zero.
    #[inline]
    pub fn below(&mut self, count: u64) -> u64 {
        scale(self.draw(), count).0
    }
}

/// Reads `random` as a fraction of 2^64 and multiplies it by `count`: the whole part, below `count`, and the
/// fraction that is left, which is itself uniform.
#[inline]
pub(crate) fn scale(random: u64, count: u64) -> (u64, u64) {
    let product = u128::from(random) * u128::from(count);
    #[expect(clippy::cast_possible_truncation, reason = "the two halves of a 128-bit product")]
    ((product >> 64) as u64, product as u64)
}

/// The inverse of [`mix`].
pub const fn unmix(value: u64) -> u64 {
    let value = unshift(value, 31).wrapping_mul(inverse(0x94d0_49bb_1331_11eb));
    let value = unshift(value, 27).wrapping_mul(inverse(0xbf58_476d_1ce4_e5b9));
    unshift(value, 30)
}

/// Solves `x ^ (x >> shift) == value` for `x`; `shift` is at least 22.
const fn unshift(value: u64, shift: u32) -> u64 {
    value ^ (value >> shift) ^ (value >> (2 * shift))
}

/// The number that undoes a multiplication by the odd `factor`, modulo 2^64.
const fn inverse(factor: u64) -> u64 {
    // Newton's iteration doubles the number of correct low bits; an odd number is its own inverse modulo 8.
    let mut inverse = factor;
    let mut correct_bits = 3;
    while correct_bits < 64 {
        inverse = inverse.wrapping_mul(2u64.wrapping_sub(factor.wrapping_mul(inverse)));
        correct_bits *= 2;
    }
    inverse
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_numbers() {
        let draws = |seed| {
            let mut prng = Prng::new(seed);
            [prng.draw(), prng.draw(), prng.draw()]
        };
        assert_eq!(draws(7), draws(7));
        assert_ne!(draws(7), draws(8));
    }

    #[test]
    fn streams_of_one_seed_differ() {
        let mut first: Vec<u64> = (0..1000).map(|stream| Prng::stream(1, stream).draw()).collect();
        first.sort_unstable();
        first.dedup();
        assert_eq!(first.len(), 1000);
    }

    #[test]
    fn numbers_below_a_count_are_spread_evenly() {
        let mut prng = Prng::new(3);
        let mut hits = [0u32; 10];
        for _ in 0..100_000 {
            hits[usize::try_from(prng.below(10)).unwrap()] += 1;
        }
        assert!(hits.iter().all(|&hits| (9_600..10_400).contains(&hits)), "{hits:?}");
    }

    proptest! {
        #[test]
        fn mixing_can_be_undone(value: u64) {
            prop_assert_eq!(unmix(mix(value)), value);
        }
    }
}
