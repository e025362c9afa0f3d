//! Limits the rate of lines of one kind, so that a flood of refused connections neither fills the disk nor hides
//! lines of other kinds.

use std::time::Instant;

/// Lines of one kind that are written at once.
const BURST: f64 = 500.0;

/// Lines of one kind per second, sustained.
const LINES_PER_S: f64 = 10.0;

/// What one kind may still write.
#[derive(Clone, Copy, Debug)]
pub(super) struct Allowance {
    lines: f64,
    since: Instant,
}

impl Allowance {
    pub(super) fn new(now: Instant) -> Self {
        Self { lines: BURST, since: now }
    }

    /// Whether a line may be written now.
    pub(super) fn take(&mut self, now: Instant) -> bool {
        let earned = now.saturating_duration_since(self.since).as_secs_f64() * LINES_PER_S;
        (self.lines, self.since) = ((self.lines + earned).min(BURST), now.max(self.since));
        let has_one = self.lines >= 1.0;
        if has_one {
            self.lines -= 1.0;
        }
        has_one
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_flood_is_cut_to_its_burst_and_then_to_its_rate() {
        let start = Instant::now();
        let mut allowance = Allowance::new(start);
        assert_eq!((0..100_000).filter(|_| allowance.take(start)).count(), 500);
        let later = start + Duration::from_secs(2);
        assert_eq!((0..100_000).filter(|_| allowance.take(later)).count(), 20);
    }

    #[test]
    fn a_trickle_is_not_limited_and_a_clock_that_goes_back_earns_nothing() {
        let start = Instant::now() + Duration::from_secs(100);
        let mut allowance = Allowance::new(start);
        let at = |tenths: u64| start + Duration::from_millis(tenths * 101);
        assert!((0..10_000).all(|tenths| allowance.take(at(tenths))));
        let mut allowance = Allowance::new(start);
        let earlier = start - Duration::from_secs(50);
        assert_eq!((0..1000).filter(|_| allowance.take(earlier)).count(), 500);
        assert_eq!((0..1000).filter(|_| allowance.take(start)).count(), 0);
    }
}
