//! Counters and duration histograms that one thread adds to and others read.

use std::sync::atomic::{AtomicU64, Ordering};

/// A number that one thread adds to, with a plain load and store, and others read.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds; only the owning thread may.
    #[inline]
    pub fn add(&self, count: u64) {
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(count), Ordering::Relaxed);
    }

    /// Sets the number; only the owning thread may.
    #[inline]
    pub fn set(&self, count: u64) {
        self.0.store(count, Ordering::Relaxed);
    }

    /// The sum so far.
    #[must_use]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Bins of [`Durations`]: the first is for less than 128 ns, each further one reaches twice as far, the last to the
/// end.
const BIN_COUNT: usize = 26;
const FIRST_BIN_BITS: u32 = 7;

/// A histogram of durations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Durations {
    /// Number of durations.
    pub count: u64,
    /// Sum, ns.
    pub sum_ns: u64,
    /// The longest, ns.
    pub max_ns: u64,
    bins: [u64; BIN_COUNT],
}

impl Durations {
    /// Adds one.
    pub fn add(&mut self, ns: u64) {
        self.count += 1;
        self.sum_ns = self.sum_ns.saturating_add(ns);
        self.max_ns = self.max_ns.max(ns);
        self.bins[bin(ns)] += 1;
    }

    /// Adds all of another.
    pub fn merge(&mut self, other: &Self) {
        self.count += other.count;
        self.sum_ns = self.sum_ns.saturating_add(other.sum_ns);
        self.max_ns = self.max_ns.max(other.max_ns);
        self.bins.iter_mut().zip(other.bins).for_each(|(bin, count)| *bin += count);
    }

    /// The mean, ns; 0 if there was none.
    #[must_use]
    pub fn mean_ns(&self) -> u64 {
        self.sum_ns.checked_div(self.count).unwrap_or(0)
    }

    /// The number of durations in each bin, shortest first, each with the bound that its durations are below, ns. The last
    /// bin has none: its bound is `u64::MAX`.
    pub fn bins(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        let bound =
            |index| if index + 1 == BIN_COUNT { u64::MAX } else { 1u64 << (FIRST_BIN_BITS as usize + index) };
        self.bins.iter().enumerate().map(move |(index, count)| (bound(index), *count))
    }

    /// A percentile, ns, to a factor of two; 0 if there are none.
    #[must_use]
    pub fn percentile_ns(&self, percent: u64) -> u64 {
        let rank = self.count.saturating_mul(percent).div_ceil(100);
        let mut seen = 0;
        for (index, count) in self.bins.iter().enumerate() {
            seen += count;
            if seen >= rank {
                return self.max_ns.min((1 << (FIRST_BIN_BITS as usize + index)) - 1);
            }
        }
        self.max_ns
    }
}

/// As [`Durations`], added to by one thread and read by others.
#[derive(Debug, Default)]
pub struct SharedDurations {
    sum_ns: Counter,
    max_ns: AtomicU64,
    bins: [Counter; BIN_COUNT],
}

impl SharedDurations {
    /// Adds one; only the owning thread may.
    pub fn add(&self, ns: u64) {
        self.sum_ns.add(ns);
        self.bins[bin(ns)].add(1);
        if ns > self.max_ns.load(Ordering::Relaxed) {
            self.max_ns.store(ns, Ordering::Relaxed);
        }
    }

    /// The durations so far.
    #[must_use]
    pub fn get(&self) -> Durations {
        let bins = std::array::from_fn(|index| self.bins[index].get());
        let (sum_ns, max_ns) = (self.sum_ns.get(), self.max_ns.load(Ordering::Relaxed));
        Durations { count: bins.iter().sum(), sum_ns, max_ns, bins }
    }
}

fn bin(ns: u64) -> usize {
    let bits = u64::BITS - ns.leading_zeros();
    (bits.saturating_sub(FIRST_BIN_BITS) as usize).min(BIN_COUNT - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_known_to_a_factor_of_two() {
        let mut durations = Durations::default();
        assert_eq!((durations.mean_ns(), durations.percentile_ns(99)), (0, 0));
        (0..98).for_each(|_| durations.add(1_000));
        durations.add(5_000);
        durations.add(1 << 40);
        assert_eq!(durations.percentile_ns(50), 1_023);
        assert_eq!(durations.percentile_ns(99), 8_191);
        let bins: Vec<_> = durations.bins().filter(|(_, count)| *count > 0).collect();
        assert_eq!(bins, [(1_024, 98), (8_192, 1), (u64::MAX, 1)]);
        assert_eq!(durations.max_ns, 1 << 40);
    }

    #[test]
    fn what_one_thread_adds_others_read() {
        let shared = SharedDurations::default();
        let mut plain = Durations::default();
        for ns in [0, 127, 128, 255, 256, 3_000_000_000, u64::MAX >> 8] {
            shared.add(ns);
            plain.add(ns);
        }
        assert_eq!(shared.get(), plain);
        let mut both = plain;
        both.merge(&shared.get());
        assert_eq!((both.count, both.percentile_ns(50)), (14, plain.percentile_ns(50)));
    }
}
