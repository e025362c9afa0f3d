//! Draws places below `count`: uniformly, or some much more often than others.

use std::fmt;

use crate::random::{Prng, mix, scale};

/// Frequency of each place.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Distribution {
    /// Every place as often as any other.
    Uniform,
    /// The place of rank `k` (from 1) in proportion to `k` to the power of minus `theta`. Ranks are scattered
    /// over all places, so that hot places are not neighbours.
    Zipf {
        /// Skew: above 0 (near 0 is uniform) up to [`THETA_LIMIT`]; 0.99 is the usual one for key-value stores.
        theta: f64,
    },
}

/// Largest skew of [`Distribution::Zipf`].
pub const THETA_LIMIT: f64 = 10.0;

impl fmt::Display for Distribution {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Uniform => f.write_str("uniform"),
            Self::Zipf { theta } => write!(f, "zipf:{theta}"),
        }
    }
}

/// Draws places from `0..count` by a [`Distribution`].
#[derive(Clone, Debug)]
pub enum Keys {
    /// Uniform over this many places.
    Uniform {
        /// Number of places.
        count: u64,
    },
    /// Skewed.
    Zipf(Box<Zipf>),
}

impl Keys {
    /// Prepares drawing from `0..count`. Those with the same `seed` agree on which places are hot.
    pub fn new(distribution: Distribution, count: u64, seed: u64) -> Self {
        match distribution {
            Distribution::Uniform => Self::Uniform { count },
            Distribution::Zipf { theta } => Self::Zipf(Box::new(Zipf::new(count, theta, seed))),
        }
    }

    /// The next place, below `count`.
    #[inline]
    pub fn draw(&self, prng: &mut Prng) -> u64 {
        match self {
            Self::Uniform { count } => prng.below(*count),
            Self::Zipf(zipf) => zipf.draw(prng),
        }
    }
}

/// Ranks with a bucket of their own.
const EXACT_RANKS: u64 = 256;
/// Buckets per doubling of the rank behind them.
const BUCKETS_PER_OCTAVE: u64 = 32;

/// A Zipf distribution by table: no logarithm or power is taken while drawing.
///
/// The first ranks have a bucket each, those behind share buckets that grow with the rank. A bucket has exactly
/// the probability of its ranks together; inside it they are alike, so a rank is off by less than `theta` * 1.6 %
/// of its own probability. Drawing picks a bucket by Walker's alias method, then a rank inside, then the rank's
/// place: about as much work as three uniform draws, whatever `count` and `theta` are.
///
/// Chosen over rejection-inversion and over Gray's formula because both take a power per draw, which costs more
/// than all the rest of an operation in the generator, and Gray's ends at a `theta` of 1.
#[derive(Clone, Debug)]
pub struct Zipf {
    columns: Box<[Column]>,
    buckets: Box<[Bucket]>,
    scatter: Scatter,
}

/// One column of the alias table: its own bucket below the threshold, else the other one.
#[derive(Clone, Copy, Debug)]
struct Column {
    threshold: u64,
    alias: u32,
}

/// Ranks `first .. first + width`, counted from 0.
#[derive(Clone, Copy, Debug)]
struct Bucket {
    first: u64,
    width: u64,
}

impl Zipf {
    /// Prepares ranks `0..count`; takes microseconds. `theta` in `0.0..=`[`THETA_LIMIT`], else it is clamped.
    pub fn new(count: u64, theta: f64, seed: u64) -> Self {
        let count = count.max(1);
        let theta = theta.clamp(0.0, THETA_LIMIT);
        let mut buckets = Vec::new();
        let mut first = 0;
        while first < count {
            let width = if first < EXACT_RANKS { 1 } else { (first / BUCKETS_PER_OCTAVE).min(count - first) };
            buckets.push(Bucket { first, width });
            first += width;
        }
        let weights: Vec<f64> = buckets.iter().map(|bucket| bucket.weight(theta)).collect();
        Self {
            columns: alias_table(&weights),
            buckets: buckets.into_boxed_slice(),
            scatter: Scatter::new(count, seed),
        }
    }

    /// The next place, below `count`.
    #[inline]
    pub fn draw(&self, prng: &mut Prng) -> u64 {
        self.scatter.place(self.rank(prng))
    }

    /// The next rank, 0 for the hottest.
    #[inline]
    fn rank(&self, prng: &mut Prng) -> u64 {
        let (own, fraction) = scale(prng.draw(), self.columns.len() as u64);
        #[expect(clippy::cast_possible_truncation, reason = "below the length of a slice")]
        let own = own as usize;
        let column = self.columns[own];
        let chosen = if fraction < column.threshold { own } else { column.alias as usize };
        let bucket = self.buckets[chosen];
        bucket.first + prng.below(bucket.width)
    }
}

impl Bucket {
    /// The sum of `k` to the power of minus `theta` over its ranks, `k` counted from 1.
    fn weight(self, theta: f64) -> f64 {
        if self.width == 1 {
            return (as_f64(self.first) + 1.0).powf(-theta);
        }
        // The midpoint rule: behind rank 256 the integral differs from the sum by less than a millionth.
        let (from, to) = (as_f64(self.first) + 0.5, as_f64(self.first + self.width) + 0.5);
        let (power, ratio) = (1.0 - theta, (to / from).ln());
        let scaled = if power.abs() < 1e-9 { ratio } else { (power * ratio).exp_m1() / power };
        from.powf(power) * scaled
    }
}

/// Nearest float, for weights.
fn as_f64(value: u64) -> f64 {
    value as f64
}

/// Splits `weights` into columns of equal weight, each shared by at most two buckets (Vose's construction).
fn alias_table(weights: &[f64]) -> Box<[Column]> {
    let mean = weights.iter().sum::<f64>() / as_f64(weights.len() as u64);
    let mut share: Vec<f64> = weights.iter().map(|weight| weight / mean).collect();
    let mut columns: Vec<Column> =
        (0u32..).zip(weights).map(|(alias, _)| Column { threshold: u64::MAX, alias }).collect();
    let (mut small, mut large): (Vec<usize>, Vec<usize>) = (0..share.len()).partition(|&i| share[i] < 1.0);
    while let (Some(&poor), Some(&rich)) = (small.last(), large.last()) {
        small.pop();
        columns[poor] = Column { threshold: fraction_of_2_64(share[poor]), alias: columns[rich].alias };
        share[rich] -= 1.0 - share[poor];
        // An alias must name the bucket, which is the column's own index until the column is filled.
        if share[rich] < 1.0 {
            large.pop();
            small.push(rich);
        }
    }
    columns.into_boxed_slice()
}

/// `fraction` in 0..1 as a threshold for 64 random bits.
fn fraction_of_2_64(fraction: f64) -> u64 {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "float casts saturate")]
    let threshold = (fraction * 2f64.powi(64)) as u64;
    threshold
}

/// A bijection of `0..count` onto itself that tears neighbours apart.
#[derive(Clone, Copy, Debug)]
struct Scatter {
    count: u64,
    mask: u64,
    shift: u32,
    offset: u64,
}

impl Scatter {
    fn new(count: u64, seed: u64) -> Self {
        let bits = (64 - (count - 1).leading_zeros()).max(1);
        Self { count, mask: u64::MAX >> (64 - bits), shift: bits.div_ceil(2), offset: mix(seed) }
    }

    /// Every step is a bijection of the power of two that holds `count`; a number that lands outside goes round again,
    /// less than twice on average.
    #[inline]
    fn place(&self, rank: u64) -> u64 {
        let mut place = rank;
        loop {
            place = place.wrapping_add(self.offset).wrapping_mul(0xd6e8_feb8_6659_fd93) & self.mask;
            place ^= place >> self.shift;
            place = place.wrapping_mul(0xcf1b_bcdc_b7a5_6463) & self.mask;
            place ^= place >> self.shift;
            if place < self.count {
                return place;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    /// The probability that the table gives each bucket.
    fn bucket_probabilities(zipf: &Zipf) -> Vec<f64> {
        let mut probabilities = vec![0.0; zipf.buckets.len()];
        let column_weight = 1.0 / as_f64(zipf.columns.len() as u64);
        for (own, column) in zipf.columns.iter().enumerate() {
            let share = as_f64(column.threshold) / 2f64.powi(64);
            probabilities[own] += share * column_weight;
            probabilities[column.alias as usize] += (1.0 - share) * column_weight;
        }
        probabilities
    }

    #[test]
    fn every_rank_has_its_probability_within_the_promised_error() {
        for (count, theta) in
            [(1, 0.99), (10, 0.5), (300, 1.0), (100_000, 0.99), (100_000, 1.0), (50_000, 1.8)]
        {
            let zipf = Zipf::new(count, theta, 0);
            let sum: f64 = (1..=count).map(|k| as_f64(k).powf(-theta)).sum();
            for (bucket, probability) in zipf.buckets.iter().zip(bucket_probabilities(&zipf)) {
                for rank in [bucket.first, bucket.first + bucket.width - 1] {
                    let exact = (as_f64(rank) + 1.0).powf(-theta) / sum;
                    let ours = probability / as_f64(bucket.width);
                    assert!(
                        (ours / exact - 1.0).abs() < theta * 0.016 + 1e-9,
                        "{count} {theta}: rank {rank} has {ours}, not {exact}"
                    );
                }
            }
        }
    }

    #[test]
    fn draws_follow_the_table() {
        let zipf = Zipf::new(1_000, 0.99, 5);
        let mut prng = Prng::new(1);
        let mut hits = vec![0.0; 1_000];
        for _ in 0..1_000_000 {
            hits[usize::try_from(zipf.rank(&mut prng)).unwrap()] += 1.0;
        }
        let sum: f64 = (1..=1_000).map(|k| f64::from(k).powf(-0.99)).sum();
        for rank in [0, 1, 2, 5, 10, 50] {
            let expected = 1e6 * (f64::from(rank) + 1.0).powf(-0.99) / sum;
            let hits = hits[usize::try_from(rank).unwrap()];
            assert!(
                (hits - expected).abs() < 5.0 * f64::sqrt(expected),
                "rank {rank}: {hits}, not {expected}"
            );
        }
    }

    #[test]
    fn a_huge_range_takes_a_small_table() {
        assert!(Zipf::new(1 << 40, 0.99, 0).columns.len() < 1_500);
    }

    #[test]
    fn hot_places_are_no_neighbours() {
        let zipf = Zipf::new(1_000_000, 1.2, 9);
        let mut hits = HashMap::new();
        let mut prng = Prng::new(2);
        for _ in 0..100_000 {
            *hits.entry(zipf.draw(&mut prng)).or_insert(0) += 1;
        }
        let mut hottest: Vec<(i32, u64)> = hits.into_iter().map(|(place, hits)| (hits, place)).collect();
        hottest.sort_unstable();
        let mut places: Vec<u64> = hottest.iter().rev().take(10).map(|&(_, place)| place).collect();
        places.sort_unstable();
        assert!(places.windows(2).all(|pair| pair[1] - pair[0] > 1_000), "{places:?}");
    }

    proptest! {
        #[test]
        fn scattering_loses_and_doubles_no_place(count in 1u64..5_000, seed: u64) {
            let scatter = Scatter::new(count, seed);
            let mut places: Vec<u64> = (0..count).map(|rank| scatter.place(rank)).collect();
            places.sort_unstable();
            prop_assert!(places.into_iter().eq(0..count));
        }

        #[test]
        fn draws_stay_in_range(count in 1u64..1 << 50, theta in 0.01f64..THETA_LIMIT, seed: u64, zipf: bool) {
            let distribution = if zipf { Distribution::Zipf { theta } } else { Distribution::Uniform };
            let keys = Keys::new(distribution, count, seed);
            let mut prng = Prng::new(seed);
            for _ in 0..100 {
                prop_assert!(keys.draw(&mut prng) < count);
            }
        }
    }
}
