//! Steadiness of a rate, and the spread of several results.

use std::collections::VecDeque;
use std::str::FromStr;

use serde::Serialize;

/// Decides whether the slope of the last samples, as percent of their mean per sample, is small enough.
#[derive(Clone, Debug)]
pub struct Steady {
    samples: VecDeque<f64>,
    window: usize,
    limit_percent: f64,
}

impl Steady {
    /// Judges the last `window` samples (two at least) by a slope of at most `limit_percent`.
    pub fn new(window: usize, limit_percent: f64) -> Self {
        let window = window.max(2);
        Self { samples: VecDeque::with_capacity(window), window, limit_percent }
    }

    /// Takes the next sample, such as the IOPS of one more second, and returns whether the rate is steady now.
    pub fn on_sample(&mut self, rate: f64) -> bool {
        if self.samples.len() == self.window {
            self.samples.pop_front();
        }
        self.samples.push_back(rate);
        self.slope_percent().is_some_and(|slope| slope.abs() <= self.limit_percent)
    }

    /// Slope of the best straight line through the window, percent of the mean per sample. `None` until the window
    /// is full, or if nothing happens at all.
    pub fn slope_percent(&self) -> Option<f64> {
        let count = self.samples.len() as f64;
        let mean = self.samples.iter().sum::<f64>() / count;
        if self.samples.len() < self.window || mean == 0.0 {
            return None;
        }
        let middle = (count - 1.0) / 2.0;
        let (mut products, mut squares) = (0.0, 0.0);
        for (i, sample) in self.samples.iter().enumerate() {
            let x = i as f64 - middle;
            products += x * (sample - mean);
            squares += x * x;
        }
        Some(products / squares * 100.0 / mean)
    }
}

/// The limit of a steady state, in fio's words.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SlopeLimit {
    /// Percent of the mean per sample.
    pub percent: f64,
}

impl FromStr for SlopeLimit {
    type Err = String;

    /// `iops_slope:0.1%`, or the percentage alone.
    fn from_str(text: &str) -> Result<Self, String> {
        let number = text.strip_prefix("iops_slope:").unwrap_or(text);
        let percent = number.strip_suffix('%').unwrap_or(number).parse().ok();
        percent
            .filter(|&percent| percent > 0.0 && percent <= 100.0)
            .map(|percent| Self { percent })
            .ok_or_else(|| {
                format!("{text:?} is not a slope: write the percentage per second, such as iops_slope:0.1%")
            })
    }
}

/// Location and spread of several results.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Spread {
    /// Number of results.
    pub count: usize,
    /// The middle one.
    pub median: f64,
    /// Median of their distances from the median, which no single outlier moves.
    pub mad: f64,
    /// A quarter of them lie below this.
    pub quartile_1: f64,
    /// A quarter of them lie above this.
    pub quartile_3: f64,
    /// The smallest.
    pub min: f64,
    /// The largest.
    pub max: f64,
}

impl Spread {
    /// Of any numbers in any order; `None` if there are none.
    pub fn of(values: &[f64]) -> Option<Self> {
        let sorted = sorted(values);
        let (&min, &max) = (sorted.first()?, sorted.last()?);
        let median = quantile(&sorted, 0.5);
        let distances: Vec<f64> = values.iter().map(|value| (value - median).abs()).collect();
        Some(Self {
            count: values.len(),
            median,
            mad: quantile(&self::sorted(&distances), 0.5),
            quartile_1: quantile(&sorted, 0.25),
            quartile_3: quantile(&sorted, 0.75),
            min,
            max,
        })
    }

    /// Distance between the quartiles.
    pub const fn interquartile(&self) -> f64 {
        self.quartile_3 - self.quartile_1
    }
}

/// The middle of any numbers in any order; `None` if there are none.
pub fn median(values: &[f64]) -> Option<f64> {
    Spread::of(values).map(|spread| spread.median)
}

fn sorted(values: &[f64]) -> Vec<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted
}

/// The value below which `fraction` of the sorted values lie, on the straight line between the two nearest.
fn quantile(sorted: &[f64], fraction: f64) -> f64 {
    let place = fraction * (sorted.len() - 1) as f64;
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "an index of the slice")]
    let below = place.floor() as usize;
    let above = (below + 1).min(sorted.len() - 1);
    sorted[below] + (sorted[above] - sorted[below]) * (place - place.floor())
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_rising_rate_is_not_steady_until_it_levels_off() {
        let mut steady = Steady::new(4, 0.5);
        let verdicts: Vec<bool> = [100.0, 200.0, 300.0, 400.0, 400.0, 400.0, 400.0, 402.0]
            .map(|rate| steady.on_sample(rate))
            .to_vec();
        assert_eq!(verdicts, [false, false, false, false, false, false, true, true]);
    }

    #[test]
    fn the_slope_is_percent_of_the_mean_per_sample() {
        let mut steady = Steady::new(5, 0.1);
        for rate in [98.0, 99.0, 100.0, 101.0, 102.0] {
            assert!(!steady.on_sample(rate));
        }
        assert!((steady.slope_percent().unwrap() - 1.0).abs() < 1e-9);
    }

    #[test]
    fn nothing_at_all_is_not_steady() {
        let mut steady = Steady::new(2, 100.0);
        assert!(!steady.on_sample(0.0) && !steady.on_sample(0.0) && !steady.on_sample(0.0));
    }

    #[test]
    fn slopes_are_read_as_fio_writes_them() {
        assert_eq!("iops_slope:0.1%".parse(), Ok(SlopeLimit { percent: 0.1 }));
        assert_eq!("2".parse(), Ok(SlopeLimit { percent: 2.0 }));
        for text in ["", "0", "-1%", "bw_slope:1%", "nan"] {
            assert!(text.parse::<SlopeLimit>().is_err(), "{text}");
        }
    }

    #[test]
    fn an_outlier_moves_neither_median_nor_mad() {
        let spread = Spread::of(&[10.0, 11.0, 9.0, 10.5, 1_000.0]).unwrap();
        assert_eq!((spread.median, spread.mad), (10.5, 0.5));
        assert_eq!((spread.quartile_1, spread.quartile_3, spread.interquartile()), (10.0, 11.0, 1.0));
        assert_eq!((spread.min, spread.max, spread.count), (9.0, 1_000.0, 5));
        assert_eq!(Spread::of(&[]), None);
        assert_eq!(median(&[1.0, 2.0]), Some(1.5));
    }

    proptest! {
        #[test]
        fn the_parts_of_a_spread_are_in_order(values in vec(-1e9f64..1e9, 1..50)) {
            let s = Spread::of(&values).unwrap();
            prop_assert!(s.min <= s.quartile_1 && s.quartile_1 <= s.median);
            prop_assert!(s.median <= s.quartile_3 && s.quartile_3 <= s.max);
        }
    }
}
