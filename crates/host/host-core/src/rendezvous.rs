//! Which of several targets has a key: weighted rendezvous hashing, in integers alone, so that programs in any language
//! compute the same. `docs/design/spread.md` states it byte by byte.
//!
//! ```text
//! hash(bytes):  h = 0; for each 8 bytes, little endian, the last ones followed by zeros: h = mix(h ^ word); mix(h ^ length)
//! score:        u = mix(hash(key) ^ hash(name of the target)); cost(u) / weight: the lowest has the key
//! ```

use linux::random::mix;

/// Most targets.
pub const TARGET_COUNT_MAX: usize = 64;

/// Most weight of a target.
pub const WEIGHT_MAX: u16 = u16::MAX;

/// Bits behind the point of a [`cost`].
const FRACTION_BITS: u32 = 24;

/// A hash of bytes that is the same everywhere, and no secret: who chooses keys can choose their target.
#[must_use]
pub fn hash(bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<8>();
    let mut hash = words.iter().fold(0, |hash, word| mix(hash ^ u64::from_le_bytes(*word)));
    if !rest.is_empty() {
        let mut word = [0; 8];
        word[..rest.len()].copy_from_slice(rest);
        hash = mix(hash ^ u64::from_le_bytes(word));
    }
    mix(hash ^ bytes.len() as u64)
}

/// The negative binary logarithm of `u / 2^64`, in units of 2^-24, rounded up. `u` is not 0.
fn cost(u: u64) -> u64 {
    let zeros = u.leading_zeros();
    let mut mantissa = u << zeros;
    let mut fraction = 0u64;
    for _ in 0..FRACTION_BITS {
        let square = (u128::from(mantissa) * u128::from(mantissa)) >> 63;
        let is_two = square >> 64 != 0;
        fraction = fraction << 1 | u64::from(is_two);
        #[expect(clippy::cast_possible_truncation, reason = "below 2^64 once it is halved")]
        {
            mantissa = if is_two { square >> 1 } else { square } as u64;
        }
    }
    (u64::from(zeros + 1) << FRACTION_BITS) - fraction
}

/// Targets among which keys are spread.
#[derive(Clone, Debug, Default)]
pub struct Rendezvous {
    /// Hash of the name, and weight.
    targets: Vec<(u64, u16)>,
    /// Whether the weights differ.
    is_weighted: bool,
}

impl Rendezvous {
    /// Targets with these names and weights. A target of weight 0 has no key.
    #[must_use]
    pub fn new<'a>(targets: impl IntoIterator<Item = (&'a str, u16)>) -> Self {
        let targets: Vec<_> =
            targets.into_iter().map(|(name, weight)| (hash(name.as_bytes()), weight)).collect();
        let is_weighted = targets.windows(2).any(|pair| pair[0].1 != pair[1].1);
        Self { targets, is_weighted }
    }

    /// The first target in the rank of a key with this [`hash`], of those that `is_eligible`. Other targets do not change
    /// the order of these.
    #[inline]
    pub fn first(&self, key_hash: u64, is_eligible: impl Fn(usize) -> bool) -> Option<usize> {
        let mut best: Option<(usize, u64, u64)> = None;
        for (index, &(name, weight)) in self.targets.iter().enumerate() {
            if weight == 0 || !is_eligible(index) {
                continue;
            }
            let u = mix(key_hash ^ name).max(1);
            // With equal weights the highest `u` has the lowest cost.
            let cost = if self.is_weighted { cost(u) } else { 0 };
            let is_better = best.is_none_or(|(other, other_u, other_cost)| {
                let (mine, others) =
                    (cost * u64::from(self.targets[other].1), other_cost * u64::from(weight));
                mine < others || mine == others && u > other_u
            });
            if is_better {
                best = Some((index, u, cost));
            }
        }
        best.map(|(index, ..)| index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(number: usize) -> Vec<u8> {
        format!("meta-llama/Llama-3.1-8B@0000000{}@0@{number:064x}", number % 8).into_bytes()
    }

    /// Those of `docs/design/spread.md`, from its program in Python.
    #[test]
    fn hash_cost_and_rank_are_as_documented() {
        for (bytes, expected) in [
            (&b"a"[..], 0x4cd3_b69d_188e_71bd),
            (b"12345678", 0x95a8_cf53_4c58_6ae8),
            (b"123456789", 0x56ef_b705_f25f_77c7),
            (b"192.0.2.1:4420/nqn.2026-01.com.example:cache", 0x30a9_d7a7_d31c_29e7),
        ] {
            assert_eq!(hash(bytes), expected, "{}", bytes.escape_ascii());
        }
        for (u, expected) in [
            (1, 0x4000_0000),
            (2, 0x3f00_0000),
            (3, 0x3e6a_3fe6),
            (1 << 63, 0x0100_0000),
            (u64::MAX, 1),
            (0x9e37_79b9_7f4a_7c15, 0x00b1_b9d7),
        ] {
            assert_eq!(cost(u), expected, "{u:#x}");
        }
        let names = [1, 2, 3].map(|number| format!("192.0.2.{number}:4420/nqn.2026-01.com.example:cache"));
        let of = |weights: [u16; 3]| Rendezvous::new(names.iter().map(String::as_str).zip(weights));
        let ranks =
            |spread: &Rendezvous| [0, 1, 2, 5].map(|number| rank(spread, format!("key-{number}").as_bytes()));
        assert_eq!(ranks(&of([1, 1, 1])), [[2, 0, 1], [1, 0, 2], [1, 0, 2], [1, 2, 0]]);
        assert_eq!(ranks(&of([1, 2, 3])), [[2, 0, 1], [1, 0, 2], [1, 2, 0], [1, 2, 0]]);
    }

    fn rank(spread: &Rendezvous, key: &[u8]) -> Vec<usize> {
        let mut rank: Vec<usize> = Vec::new();
        while let Some(next) = spread.first(hash(key), |target| !rank.contains(&target)) {
            rank.push(next);
        }
        rank
    }

    fn named(weights: &[u16]) -> Rendezvous {
        let names: Vec<_> = (0..weights.len()).map(|number| format!("target-{number}")).collect();
        Rendezvous::new(names.iter().map(String::as_str).zip(weights.iter().copied()))
    }

    #[test]
    fn keys_are_distributed_by_weight() {
        const KEY_COUNT: usize = 40_000;
        for weights in [&[1u16; 7][..], &[1, 2, 3, 4], &[100, 150], &[1, 65_535], &[7; 64], &[0, 1, 1]] {
            let spread = named(weights);
            let mut counts = vec![0usize; weights.len()];
            for number in 0..KEY_COUNT {
                counts[spread.first(hash(&key(number)), |_| true).expect("a target")] += 1;
            }
            let sum: f64 = weights.iter().copied().map(f64::from).sum();
            for (count, weight) in counts.iter().zip(weights) {
                let expected = KEY_COUNT as f64 * f64::from(*weight) / sum;
                // Five standard deviations.
                assert!((*count as f64 - expected).abs() <= 5.0 * expected.sqrt(), "{weights:?}: {counts:?}");
            }
        }
    }

    #[test]
    fn an_added_target_takes_its_share_and_no_other_key_moves() {
        for weights in [&[1u16, 1, 1, 1][..], &[3, 1, 4, 2]] {
            let (before, after) = (named(&weights[..3]), named(weights));
            let mut moved = 0usize;
            for number in 0..40_000 {
                let key = key(number);
                let (before, after) = (rank(&before, &key), rank(&after, &key));
                moved += usize::from(after[0] == 3);
                let others: Vec<_> = after.into_iter().filter(|target| *target != 3).collect();
                assert_eq!(others, before, "those that were there keep their order");
            }
            let share = f64::from(weights[3]) / f64::from(weights.iter().sum::<u16>());
            assert!((moved as f64 / 40_000.0 - share).abs() < 0.015, "{moved} of 40,000 for {share}");
        }
    }
}
