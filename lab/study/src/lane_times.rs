//! Times of operations by lane: whether one of many lanes waits longer than the others.
//!
//! They are written one behind the other and sorted after the measurement: with a histogram for each of thousands of
//! lanes every operation would touch memory of its own, which the plain sockets beside it do not.

use load::histogram::Histogram;

/// Operations of the median lane from which on a p99 is one.
const OPERATION_COUNT_MIN: usize = 100;

/// Times of operations, with their lanes.
#[derive(Clone, Debug, Default)]
pub(crate) struct LaneTimes {
    /// Lane, and time in ns.
    log: Vec<(u32, u32)>,
}

impl LaneTimes {
    /// With memory for this number of operations, touched already; later ones are left out.
    pub(crate) fn with_room(count: usize) -> Self {
        let mut log = vec![(u32::MAX, u32::MAX); count];
        log.clear();
        Self { log }
    }

    /// An operation on a lane has ended.
    #[inline]
    pub(crate) fn record(&mut self, lane: usize, ns: u64) {
        if self.log.len() < self.log.capacity() {
            self.log.push((u32::try_from(lane).unwrap_or(u32::MAX), u32::try_from(ns).unwrap_or(u32::MAX)));
        }
    }

    /// The p99 of the lane with the highest over that of the median lane. `None` where lanes have too few operations
    /// for a p99, and for a single lane.
    pub(crate) fn worst_over_median(mut self) -> Option<f64> {
        self.log.sort_unstable_by_key(|(lane, _)| *lane);
        let lanes = self.log.chunk_by(|one, next| one.0 == next.0);
        let mut counts: Vec<usize> = lanes.clone().map(<[_]>::len).collect();
        counts.sort_unstable();
        if counts.len() < 2 || counts[counts.len() / 2] < OPERATION_COUNT_MIN {
            return None;
        }
        let mut p99s: Vec<u64> = lanes.map(p99_ns).collect();
        p99s.sort_unstable();
        Some(*p99s.last()? as f64 / p99s[p99s.len() / 2] as f64)
    }
}

fn p99_ns(operations: &[(u32, u32)]) -> u64 {
    let mut histogram = Histogram::new();
    operations.iter().for_each(|(_, ns)| histogram.record((*ns).into()));
    histogram.percentile(99.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lane_that_waits_longest_is_compared_with_the_median_lane() {
        let mut times = LaneTimes::with_room(3 * 200);
        for _ in 0..200 {
            for (lane, ns) in [(2, 3_000_000), (0, 1_000_000), (1, 1_500_000)] {
                times.record(lane, ns);
            }
        }
        times.record(7, 1);
        let spread = times.worst_over_median().unwrap();
        assert!((spread - 2.0).abs() < 0.02, "{spread}");
    }

    #[test]
    fn few_operations_and_a_single_lane_have_no_spread() {
        let of = |lanes: usize, operations: usize| {
            let mut times = LaneTimes::with_room(lanes * operations);
            (0..lanes * operations).for_each(|at| times.record(at % lanes, 1000));
            times.worst_over_median()
        };
        assert_eq!((of(1, 1000), of(4, 99), of(4, 100)), (None, None, Some(1.0)));
    }
}
