//! Rate limits of a run.

use subsystem::rate_limit::RateLimits;

use super::Scenario;
use crate::random::Random;

/// The limits of both namespaces and of the first host; none in most runs.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RateScenario {
    pub(crate) first: RateLimits,
    pub(crate) second: RateLimits,
    pub(crate) host: RateLimits,
}

impl RateScenario {
    /// Whether commands wait for nothing.
    pub(crate) fn is_none(&self) -> bool {
        [self.first, self.second, self.host].iter().all(RateLimits::is_none)
    }
}

impl Scenario {
    /// They have draws of their own, so that the others stay what they were.
    pub(super) fn draw_rates(&mut self) {
        let mut random = Random::new(self.seed, 95);
        let r = &mut random;
        if !r.one_in(4) {
            return;
        }
        let mut limits = || RateLimits {
            iops: r.one_in(2).then(|| r.scaled(1000, 100_000)),
            read_iops: r.one_in(6).then(|| r.scaled(1000, 100_000)),
            write_iops: r.one_in(6).then(|| r.scaled(1000, 100_000)),
            bytes_per_s: r.one_in(4).then(|| r.scaled(32 << 20, 4 << 30)),
            write_bytes_per_s: r.one_in(6).then(|| r.scaled(32 << 20, 4 << 30)),
            burst_ms: r.one_in(2).then(|| r.between(1, 30) as u32),
            min_iops: r.one_in(6).then(|| r.scaled(100, 1_000_000)),
            ..RateLimits::default()
        };
        self.rates = RateScenario { first: limits(), second: limits(), host: limits() };
    }
}
