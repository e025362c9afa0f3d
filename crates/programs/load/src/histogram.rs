//! Latency by log-linear buckets: recording is a shift, an increment and a few sums.

/// Linear buckets per power of two, as a power of two: fio's layout, so its tools read ours.
const LINEAR_BITS: u32 = 6;
/// Values of this many bits have buckets; longer ones fall into the last: 2^40 ns, 18 minutes.
const VALUE_BITS: u32 = 40;
/// Number of buckets.
const BUCKET_COUNT: usize = ((VALUE_BITS - LINEAR_BITS + 1) << LINEAR_BITS) as usize;

/// Number of values per bucket. Values are nanoseconds here, but any unit will do.
///
/// Values below 128 have a bucket each; above, each power of two has 64 buckets. A value read back is the middle
/// of its bucket and so within 0.8 %; the smallest, the largest and the mean are exact.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Histogram {
    counts: Box<[u64; BUCKET_COUNT]>,
    count: u64,
    sum: u128,
    min: u64,
    max: u64,
}

/// One bucket that has counted something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bin {
    /// Smallest value that falls here.
    pub from: u64,
    /// Largest value that falls here (more in the last bucket).
    pub to: u64,
    /// The value that stands for all of them.
    pub middle: u64,
    /// Number of values.
    pub count: u64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self::new()
    }
}

impl Histogram {
    /// An empty histogram, 18 KiB.
    pub fn new() -> Self {
        Self { counts: Box::new([0; BUCKET_COUNT]), count: 0, sum: 0, min: u64::MAX, max: 0 }
    }

    /// Counts one value.
    #[inline]
    pub fn record(&mut self, value: u64) {
        self.counts[bucket(value)] += 1;
        self.count += 1;
        self.sum += u128::from(value);
        self.min = self.min.min(value);
        self.max = self.max.max(value);
    }

    /// Adds all that `other` counted.
    pub fn merge(&mut self, other: &Self) {
        if other.count == 0 {
            return;
        }
        for (mine, theirs) in self.counts.iter_mut().zip(other.counts.iter()) {
            *mine += theirs;
        }
        self.count += other.count;
        self.sum += other.sum;
        self.min = self.min.min(other.min);
        self.max = self.max.max(other.max);
    }

    /// Forgets everything, keeping the memory.
    pub fn clear(&mut self) {
        if self.count > 0 {
            self.counts.fill(0);
            (self.count, self.sum, self.min, self.max) = (0, 0, u64::MAX, 0);
        }
    }

    /// Number of values.
    pub const fn count(&self) -> u64 {
        self.count
    }

    /// Sum of all values, exact.
    pub const fn sum(&self) -> u128 {
        self.sum
    }

    /// The smallest value, exact; 0 if there is none.
    pub const fn min(&self) -> u64 {
        if self.count == 0 { 0 } else { self.min }
    }

    /// The largest value, exact; 0 if there is none.
    pub const fn max(&self) -> u64 {
        self.max
    }

    /// The mean, exact; 0 if there are no values.
    pub fn mean(&self) -> f64 {
        if self.count == 0 { 0.0 } else { self.sum as f64 / self.count as f64 }
    }

    /// The standard deviation over all values, from the middles of the buckets.
    pub fn stddev(&self) -> f64 {
        let mean = self.mean();
        let squares: f64 = self.bins().map(|bin| (bin.middle as f64 - mean).powi(2) * bin.count as f64).sum();
        if self.count == 0 { 0.0 } else { (squares / self.count as f64).sqrt() }
    }

    /// The smallest value that at least `percent` of all values do not exceed, within 0.8 %; exact for 100. Zero
    /// if there are none.
    pub fn percentile(&self, percent: f64) -> u64 {
        if percent >= 100.0 {
            return self.max;
        }
        // The small term takes back what the product's rounding may have added to a whole number.
        let wanted = percent / 100.0 * self.count as f64 - 1e-6;
        let mut seen = 0;
        let reached = self.bins().find(|bin| {
            seen += bin.count;
            seen as f64 >= wanted
        });
        // No value lies outside the extremes.
        reached.map_or(0, |bin| bin.middle.max(self.min).min(self.max))
    }

    /// The buckets that counted something, ascending.
    pub fn bins(&self) -> impl Iterator<Item = Bin> {
        let counted = self.counts.iter().enumerate().filter(|&(_, &count)| count > 0);
        counted.map(|(index, &count)| {
            let shift = (index >> LINEAR_BITS).saturating_sub(1);
            let from = ((index - (shift << LINEAR_BITS)) as u64) << shift;
            let width = 1u64 << shift;
            Bin { from, to: from + (width - 1), middle: from + width / 2, count }
        })
    }
}

/// The bucket of a value: its seven leading bits, and how far they were shifted.
#[inline]
fn bucket(value: u64) -> usize {
    // Values below 64 count as 64 here, which leaves them unshifted.
    let shift = 63 - LINEAR_BITS - (value | 1 << LINEAR_BITS).leading_zeros();
    let index = (u64::from(shift) << LINEAR_BITS) + (value >> shift);
    #[expect(clippy::cast_possible_truncation, reason = "below 64 * 64")]
    let index = index as usize;
    index.min(BUCKET_COUNT - 1)
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    fn histogram(values: &[u64]) -> Histogram {
        let mut histogram = Histogram::new();
        values.iter().for_each(|&value| histogram.record(value));
        histogram
    }

    #[test]
    fn an_empty_histogram_is_all_zero() {
        let empty = Histogram::new();
        assert_eq!((empty.count(), empty.min(), empty.max(), empty.percentile(99.0)), (0, 0, 0, 0));
        assert_eq!((empty.mean(), empty.stddev()), (0.0, 0.0));
    }

    #[test]
    fn small_values_and_extremes_are_exact() {
        let histogram = histogram(&[3, 3, 127, 1_000_003]);
        assert_eq!((histogram.min(), histogram.max()), (3, 1_000_003));
        assert_eq!(histogram.percentile(50.0), 3);
        assert_eq!(histogram.percentile(75.0), 127);
        assert_eq!(histogram.percentile(100.0), 1_000_003);
        assert_eq!(histogram.mean(), 250_034.0);
    }

    #[test]
    fn a_hundred_seconds_still_have_their_own_bucket_and_more_is_kept_as_maximum() {
        let histogram = histogram(&[100_000_000_000, 120_000_000_000, u64::MAX]);
        assert_eq!(histogram.bins().count(), 3);
        assert_eq!(histogram.max(), u64::MAX);
    }

    #[test]
    fn percentiles_of_a_thousand_are_not_off_by_one() {
        let histogram = histogram(&(1..=1000).map(|i| if i <= 999 { 10 } else { 50 }).collect::<Vec<_>>());
        assert_eq!(histogram.percentile(99.9), 10);
        assert_eq!(histogram.percentile(99.91), 50);
    }

    proptest! {
        #[test]
        fn neighbours_share_a_bucket_or_have_neighbouring_ones(bits in 0u32..VALUE_BITS, random: u64) {
            let value = random & ((1 << bits) - 1) | 1 << bits;
            for value in [value, (1 << bits) - 1].into_iter().filter(|value| value >> VALUE_BITS == 0) {
                prop_assert!(bucket(value + 1) - bucket(value) <= 1);
            }
        }

        #[test]
        fn a_value_read_back_is_within_the_error_bound(value in 0u64..1 << VALUE_BITS) {
            let bin = histogram(&[value]).bins().next().unwrap();
            prop_assert!(bin.from <= value && value <= bin.to);
            prop_assert!(bin.middle.abs_diff(value) as f64 <= value as f64 * 0.008);
        }

        #[test]
        fn percentiles_are_within_the_error_bound(mut values in vec(0u64..10_000_000, 1..300), percent in 0.1f64..=100.0) {
            let ours = histogram(&values).percentile(percent);
            values.sort_unstable();
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "small and positive")]
            let rank = (percent / 100.0 * values.len() as f64 - 1e-6).ceil().max(1.0) as usize;
            let exact = values[rank - 1];
            prop_assert!(ours.abs_diff(exact) as f64 <= exact as f64 * 0.008, "{} {}", ours, exact);
        }

        #[test]
        fn merging_equals_recording_everything_in_one(a in vec(any::<u64>(), 0..50), b in vec(any::<u64>(), 0..50)) {
            let mut merged = histogram(&a);
            merged.merge(&histogram(&b));
            prop_assert_eq!(merged, histogram(&[a, b].concat()));
        }

        #[test]
        fn mean_and_spread_are_those_of_the_values(values in vec(0u64..1_000_000, 1..100)) {
            let histogram = histogram(&values);
            let mean = values.iter().sum::<u64>() as f64 / values.len() as f64;
            let variance = values.iter().map(|&v| (v as f64 - mean).powi(2)).sum::<f64>() / values.len() as f64;
            prop_assert!((histogram.mean() - mean).abs() < 1e-6 * mean.max(1.0));
            prop_assert!((histogram.stddev() - variance.sqrt()).abs() <= 0.008 * 1_000_000.0);
        }
    }
}
