//! The cumulative distribution of latency: on a grid of latencies, the percentage of operations that took no longer.
//!
//! ```text
//! percent   0    0.4   38   97.1   99.8   100       the grid has 40 latencies in each decade, each
//! µs       94   100   106   112    119   126       5.9 % above the one before, from 1 µs to 10 s
//! ```
//!
//! A fixed grid makes rounds comparable, and bounds the size of a distribution, however long a measurement was.

use load::steady::Spread;
use serde_json::{Value, json};

/// Latencies of the grid in each decade.
const STEPS_PER_DECADE: u32 = 40;

/// The last latency of the grid, 10 s, which also stands for longer ones.
const STEP_MAX: usize = 7 * STEPS_PER_DECADE as usize;

/// The distribution of one measurement.
#[derive(Clone, Debug, PartialEq)]
pub struct Distribution {
    /// Index of the first latency that an operation took.
    first: usize,
    /// Percentages from there on; the last one is 100.
    percents: Vec<f64>,
}

/// Percentages at a latency of the grid, over all rounds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Share {
    /// The latency, µs.
    pub us: f64,
    /// Percentage of operations that took no longer.
    pub percent: Spread,
}

impl Distribution {
    /// Of a histogram: latencies, µs, and their numbers of operations, in any order. `None` without an operation.
    pub fn of(bins: impl IntoIterator<Item = (f64, u64)>) -> Option<Self> {
        let mut counts = [0_u64; STEP_MAX + 1];
        for (us, count) in bins {
            counts[step(us)] += count;
        }
        let first = counts.iter().position(|count| *count > 0)?;
        let last = counts.iter().rposition(|count| *count > 0)?;
        let percent = |count: u64, total: u64| count as f64 * 100.0 / total as f64;
        let total = counts.iter().sum();
        let mut seen = 0;
        let up_to = |count: &u64| {
            seen += count;
            percent(seen, total)
        };
        Some(Self { first, percents: counts[first..=last].iter().map(up_to).collect() })
    }

    /// The percentage at a place of the grid.
    fn percent(&self, step: usize) -> f64 {
        let Some(at) = step.checked_sub(self.first) else { return 0.0 };
        self.percents.get(at).copied().unwrap_or(100.0)
    }

    /// The last place of the grid that it reaches.
    fn last(&self) -> usize {
        self.first + self.percents.len() - 1
    }
}

/// The distributions of several rounds as one: from the latency before the shortest to the longest of any round.
pub fn over_rounds(rounds: &[Distribution]) -> Vec<Share> {
    let first = rounds.iter().map(|round| round.first).min();
    let last = rounds.iter().map(Distribution::last).max();
    let Some((first, last)) = first.zip(last) else { return Vec::new() };
    let share = |step| {
        let percents: Vec<f64> = rounds.iter().map(|round| round.percent(step)).collect();
        Some(Share { us: latency_us(step), percent: Spread::of(&percents)? })
    };
    (first.saturating_sub(1)..=last).filter_map(share).collect()
}

/// The form in `results.json`: latencies, and of each the quartiles of the percentage.
pub(crate) fn to_json(shares: &[Share]) -> Value {
    let each = |of: fn(&Share) -> f64, digits: i32| -> Vec<f64> {
        shares.iter().map(|share| rounded(of(share), digits)).collect()
    };
    json!({
        "us": each(|share| share.us, 3),
        "percent": each(|share| share.percent.median, 5),
        "quartile_1": each(|share| share.percent.quartile_1, 5),
        "quartile_3": each(|share| share.percent.quartile_3, 5),
    })
}

fn rounded(value: f64, digits: i32) -> f64 {
    let scale = 10_f64.powi(digits);
    (value * scale).round() / scale
}

/// The latency at a place of the grid, µs.
fn latency_us(step: usize) -> f64 {
    let decades = step as f64 / f64::from(STEPS_PER_DECADE);
    10_f64.powf(decades)
}

/// The place of the shortest latency of the grid that is not below this one.
fn step(us: f64) -> usize {
    // The small term takes back what rounding may have added to a latency of the grid.
    let place = us.max(1.0).log10() * f64::from(STEPS_PER_DECADE) - 1e-9;
    #[allow(clippy::cast_possible_truncation)] // Not below zero, and saturating.
    let place = place.ceil().max(0.0) as usize;
    place.min(STEP_MAX)
}

#[cfg(test)]
mod tests {
    use load::random::Prng;

    use super::*;

    #[test]
    fn each_latency_has_the_place_that_is_not_below_it() {
        for (us, expected) in
            [(0.0, 1.0), (1.0, 1.0), (10.0, 10.0), (1000.0, 1000.0), (1e7, 1e7), (1e12, 1e7)]
        {
            assert!((latency_us(step(us)) - expected).abs() < expected * 1e-9, "{us}");
        }
        assert_eq!(step(f64::NAN), 0);
        assert_eq!(step(10.01), step(10.0) + 1);
    }

    #[test]
    fn percentages_add_up_to_a_hundred() {
        let distribution = Distribution::of([(100.0, 1), (10.0, 6), (9.9, 2), (1000.0, 1)]).unwrap();
        let percent = |us: f64| distribution.percent(step(us));
        assert_eq!([1.0, 9.9, 10.0, 99.0, 100.0, 999.0].map(percent), [0.0, 80.0, 80.0, 90.0, 90.0, 100.0]);
        assert_eq!(percent(1e6), 100.0);
        assert_eq!(Distribution::of([]), None);
        assert_eq!(Distribution::of([(5.0, 0)]), None);
    }

    #[test]
    fn rounds_have_one_grid_with_the_quartiles_of_each_latency() {
        let round = |us| Distribution::of([(us, 50), (100.0, 50)]).unwrap();
        let shares = over_rounds(&[round(10.0), round(10.0), round(50.0)]);
        let at = |us: f64| shares.iter().find(|share| (share.us - us).abs() < 1e-6).unwrap().percent;
        assert_eq!((at(10.0).quartile_1, at(10.0).median, at(10.0).quartile_3), (25.0, 50.0, 50.0));
        assert_eq!(shares[0].percent.median, 0.0, "begins where nothing has ended yet");
        assert_eq!(shares.last().unwrap().percent.median, 100.0);
        assert!(over_rounds(&[]).is_empty());
        let json = to_json(&shares);
        assert_eq!(json["us"].as_array().unwrap().len(), shares.len());
        assert_eq!(
            (&json["us"][1], &json["percent"][1], &json["quartile_1"][1]),
            (&json!(10.0), &json!(50.0), &json!(25.0))
        );
    }

    #[test]
    fn a_distribution_is_bounded_and_never_falls() {
        let mut random = Prng::new(1);
        for length in 1..100 {
            // Latencies of all lengths, from below a nanosecond to hours.
            let mut bin =
                || (10_f64.powi(random.below(14) as i32 - 4) * random.below(1000) as f64, random.below(1000));
            let bins: Vec<_> = (0..length).map(|_| bin()).collect();
            let Some(distribution) = Distribution::of(bins) else { continue };
            let shares = over_rounds(&[distribution.clone(), distribution]);
            assert!(shares.len() <= STEP_MAX + 1);
            assert!(shares.windows(2).all(|pair| pair[0].percent.median <= pair[1].percent.median));
            assert_eq!(shares.last().map(|share| share.percent.median), Some(100.0));
        }
    }
}
