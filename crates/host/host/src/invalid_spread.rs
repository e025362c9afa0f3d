//! Why keys cannot be spread over targets.

use std::time::Duration;

use host_core::rendezvous::{TARGET_COUNT_MAX, WEIGHT_MAX};

/// Why keys cannot be spread over targets.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidSpread {
    /// No target, or too many.
    #[error("keys can be spread over 1 to {TARGET_COUNT_MAX} targets, not {count}")]
    TargetCount {
        /// Targets.
        count: usize,
    },
    /// Two targets have one name.
    #[error("two targets are named {name}: each has a name of its own")]
    SameName {
        /// The name.
        name: String,
    },
    /// A weight is 0.
    #[error("target {name} has weight 0: write 1 to {WEIGHT_MAX}")]
    Weight {
        /// Name of the target.
        name: String,
    },
    /// No copy, or more copies than targets.
    #[error("{copies} copies on {targets} targets: write 1 to {targets}")]
    Copies {
        /// Copies.
        copies: u8,
        /// Targets.
        targets: usize,
    },
    /// Copies of values that may be replaced.
    #[error(
        "copies are for immutable values: a copy that was out of reach when its value was replaced would be served later"
    )]
    MutableCopies,
    /// Calls would end before they begin.
    #[error("deadline {deadline:?}: write at least 1 ms")]
    Deadline {
        /// The deadline.
        deadline: Duration,
    },
}
