//! The number of rounds that a study takes.

use std::time::Duration;

/// Number of rounds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rounds {
    /// Minimum.
    pub min: usize,
    /// Maximum.
    pub max: usize,
    /// Enough once half the width of each median's 95 % interval is no more than this part of it.
    pub tolerance: f64,
    /// Rounds beyond the most begin within this time, if cells were disturbed; as long as the rounds took, if it is not
    /// given.
    pub extra: Option<Duration>,
}

impl Rounds {
    /// As many as it takes.
    pub const USUAL: Self = Self { min: 3, max: 9, tolerance: 0.05, extra: None };
    /// Few.
    pub const QUICK: Self = Self::exactly(3);

    /// Exactly this number, whether or not the medians are stable.
    #[must_use]
    pub const fn exactly(count: usize) -> Self {
        Self { min: count, max: count, tolerance: 0.05, extra: None }
    }
}
