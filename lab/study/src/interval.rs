//! The precision of a median over rounds: the interval that it lies in.
//!
//! A verdict needs an interval on one side of its goal. The interval is between two of the rounds' numbers in order, which holds for
//! any distribution of them: it has the median in at least 99 % of all cases. Fewer than eight rounds have no two such
//! numbers; there the interval reaches beyond the least and the greatest by a part of their distance, as much as a normal distribution
//! needs for the same. One round has no interval.
//!
//! Goals are checked after each round until one side is certain, and each check may be wrong. With 99 % for one check,
//! a number right at its goal gets a wrong verdict in some 4 of 100 studies of up to 18 rounds (the test below).

use load::steady::Spread;
use serde::{Serialize, Serializer};

/// The certainty that an interval has the median.
const CONFIDENCE: f64 = 0.99;

/// How far the interval of this number of rounds reaches beyond their numbers, in parts of the distance of the least
/// from the greatest: for 2 rounds and more.
const BEYOND: [f64; 6] = [31.4, 2.5, 0.84, 0.37, 0.16, 0.06];

/// An interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Interval {
    /// Lower end.
    pub low: f64,
    /// Upper end.
    pub high: f64,
}

impl Serialize for Interval {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        [self.low, self.high].serialize(serializer)
    }
}

/// The number in place of the median of rounds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Rank {
    /// The median of the rounds.
    #[default]
    Median,
    /// The lower end of its interval.
    Low,
    /// The upper end.
    High,
}

impl Rank {
    /// The other end.
    #[must_use]
    pub const fn opposite(self) -> Self {
        match self {
            Self::Median => Self::Median,
            Self::Low => Self::High,
            Self::High => Self::Low,
        }
    }

    /// The number in place of the median of these; `None` if there is none.
    pub fn of(self, values: &[f64]) -> Option<f64> {
        match self {
            Self::Median => Spread::of(values).map(|spread| spread.median),
            Self::Low => Interval::of_median(values).map(|interval| interval.low),
            Self::High => Interval::of_median(values).map(|interval| interval.high),
        }
    }
}

impl Interval {
    /// The interval of the median of the population that these rounds sample; `None` of fewer than two.
    pub fn of_median(values: &[f64]) -> Option<Self> {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let (&least, &most) = (sorted.first()?, sorted.last()?);
        match outside(sorted.len()) {
            Some(count) => Some(Self { low: sorted[count], high: sorted[sorted.len() - 1 - count] }),
            None => {
                let beyond = BEYOND.get(sorted.len().checked_sub(2)?)? * (most - least);
                Some(Self { low: least - beyond, high: most + beyond })
            }
        }
    }
}

/// Number of rounds below the interval, and of those above it, for this number of rounds; `None` if it has no interval.
#[allow(clippy::cast_possible_truncation)] // Some rounds.
fn outside(count: usize) -> Option<usize> {
    // The probability that at most this many rounds are below the median, as of tosses of a coin.
    let mut term = 0.5_f64.powi(count as i32);
    let (mut below, mut outside) = (0.0, None);
    for least in 0..count / 2 {
        below += term;
        if 2.0 * below > 1.0 - CONFIDENCE {
            break;
        }
        outside = Some(least);
        term *= (count - least) as f64 / (least + 1) as f64;
    }
    outside
}

#[cfg(test)]
mod tests {
    use load::random::Prng;

    use super::*;

    #[test]
    fn an_interval_is_between_two_rounds_or_wider_than_all() {
        assert_eq!([7, 8, 11, 12, 18, 30].map(outside), [None, Some(0), Some(0), Some(1), Some(3), Some(7)]);
        let of = |values: &[f64]| Interval::of_median(values).map(|Interval { low, high }| (low, high));
        assert_eq!(of(&[]), None);
        assert_eq!(of(&[1.0]), None);
        assert_eq!(of(&[3.0, 1.0, 2.0]), Some((-4.0, 8.0)));
        assert_eq!(of(&[5.0; 3]), Some((5.0, 5.0)), "what does not vary is certain");
        let twelve: Vec<f64> = (0..12).map(f64::from).collect();
        assert_eq!(of(&twelve), Some((1.0, 10.0)));
        assert_eq!(Rank::Low.opposite().of(&twelve), Some(10.0));
        assert_eq!(Rank::Median.of(&twelve), Some(5.5));
    }

    /// Numbers with the median 0.
    struct Noise(Prng);

    impl Noise {
        fn uniform(&mut self) -> f64 {
            (self.0.below(1 << 40) as f64 + 0.5) / (1_u64 << 40) as f64
        }

        fn normal(&mut self) -> f64 {
            (-2.0 * self.uniform().ln()).sqrt() * (std::f64::consts::TAU * self.uniform()).cos()
        }

        /// Of two sides alike, far out now and then.
        fn stalls(&mut self) -> f64 {
            let far = if self.uniform() < 0.1 { 50.0 } else { 1.0 };
            self.normal() * far
        }

        /// Far to one side.
        fn skewed(&mut self) -> f64 {
            self.normal().exp() - 1.0
        }
    }

    /// Percent of studies that judge a number whose median is 0 against 0: with one check after a number of rounds, or
    /// with one after each from the first number of rounds on.
    fn wrong_percent(of: fn(&mut Noise) -> f64, rounds: std::ops::RangeInclusive<usize>) -> f64 {
        const STUDIES: usize = 4000;
        let mut noise = Noise(Prng::new(7));
        let mut is_wrong = || {
            let values: Vec<f64> = (0..*rounds.end()).map(|_| of(&mut noise)).collect();
            rounds.clone().any(|count| {
                let Interval { low, high } = Interval::of_median(&values[..count]).unwrap();
                low > 0.0 || high < 0.0
            })
        };
        (0..STUDIES).filter(|_| is_wrong()).count() as f64 * 100.0 / STUDIES as f64
    }

    #[test]
    fn an_interval_misses_the_median_in_one_of_a_hundred_cases() {
        for count in [3, 5, 6, 7] {
            let percent = wrong_percent(Noise::normal, count..=count);
            assert!((0.4..1.6).contains(&percent), "{percent} % of {count} rounds");
        }
        for count in [8, 12, 18] {
            for of in [Noise::normal, Noise::stalls, Noise::skewed] {
                let percent = wrong_percent(of, count..=count);
                assert!(percent < 1.4, "{percent} % of {count} rounds");
            }
        }
    }

    #[test]
    fn looking_after_each_round_judges_wrongly_in_few_of_a_hundred_studies() {
        for of in [Noise::normal, Noise::stalls, Noise::skewed] {
            let percent = wrong_percent(of, 6..=18);
            assert!(percent < 5.0, "{percent} %");
        }
    }

    #[test]
    fn a_number_that_is_far_from_its_goal_is_known_after_a_few_rounds() {
        let mut noise = Noise(Prng::new(3));
        let decided = (0..1000).filter(|_| {
            let values: Vec<f64> = (0..6).map(|_| 0.95 + 0.01 * noise.normal()).collect();
            Interval::of_median(&values).unwrap().low > 0.9
        });
        assert!(decided.count() > 980);
    }
}
