//! Pseudo-random numbers that repeat for the same seed, on every machine. Not for secrets.

/// Distance between two successive states: the odd number nearest to 2^64 divided by the golden ratio.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// The SplitMix64 generator: a counter behind [`mix`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SplitMix64(u64);

impl SplitMix64 {
    /// A generator in this state.
    #[must_use]
    pub const fn new(state: u64) -> Self {
        Self(state)
    }

    /// The `number`-th draw from this state, counted from 1, without the ones before.
    #[must_use]
    pub const fn nth(state: u64, number: u64) -> u64 {
        mix(state.wrapping_add(number.wrapping_mul(STEP)))
    }

    /// Draws the next number, uniform over all 64 bits.
    #[inline]
    pub const fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(STEP);
        mix(self.0)
    }

    /// Draws a number below `end`, by remainder; 0 if `end` is 0.
    #[inline]
    pub const fn below(&mut self, end: u64) -> u64 {
        if end == 0 { 0 } else { self.draw() % end }
    }

    /// Draws an index of a slice of `length` elements; 0 if it is empty.
    #[expect(clippy::cast_possible_truncation, reason = "below a usize")]
    pub const fn index(&mut self, length: usize) -> usize {
        self.below(length as u64) as usize
    }

    /// Draws one of `choices`.
    ///
    /// # Panics
    /// If there are none.
    pub fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.index(choices.len())]
    }
}

/// A bijection of 64 bits in which each input bit changes about half of the output bits.
#[inline]
#[must_use]
pub const fn mix(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The reference implementation's first outputs for the state 1234567.
    #[test]
    fn draws_are_those_of_splitmix64() {
        let mut random = SplitMix64::new(1_234_567);
        let drawn = [random.draw(), random.draw(), random.draw()];
        assert_eq!(drawn, [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423]);
        assert_eq!(SplitMix64::nth(1_234_567, 3), drawn[2]);
    }

    #[test]
    fn numbers_below_an_end_reach_all_of_them() {
        let mut random = SplitMix64::new(3);
        let mut hits = [0u32; 10];
        (0..1000).for_each(|_| hits[random.index(10)] += 1);
        assert!(hits.iter().all(|&hits| hits > 50), "{hits:?}");
        assert_eq!((random.below(0), random.pick(&[7])), (0, 7));
    }
}
