//! The number of rounds that a study takes.

use std::time::Duration;

/// Number of rounds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rounds {
    /// Minimum.
    pub min: usize,
    /// Maximum.
    pub max: usize,
    /// Minimum where a number has a goal.
    pub judged_min: usize,
    /// Maximum while a number has no verdict.
    pub judged_max: usize,
    /// Medians are stable when half the width of each 95 % interval is at most this fraction of the median.
    pub tolerance: f64,
    /// Time within which rounds beyond the maximum begin for disturbed cells; `None`: as long as the rounds before
    /// took.
    pub extra: Option<Duration>,
}

impl Rounds {
    /// Rounds until medians are stable.
    pub const USUAL: Self =
        Self { min: 3, max: 9, judged_min: 6, judged_max: 18, tolerance: 0.05, extra: None };
    /// A few rounds, for a first result.
    pub const QUICK: Self = Self { judged_max: 6, ..Self::exactly(3) };

    /// Exactly this number, whether or not the medians are stable.
    pub const fn exactly(count: usize) -> Self {
        Self { min: count, max: count, judged_min: count, judged_max: count, tolerance: 0.05, extra: None }
    }
}
