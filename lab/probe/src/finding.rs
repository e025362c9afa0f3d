//! The outcome of a row, as reports contain it.

use std::fmt;

use peer::finding::{Check, Finding};
use serde::Serialize;

/// Outcome of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum RowOutcome {
    /// The reaction was right.
    Pass,
    /// The reaction was not the right one.
    Differs,
    /// No reaction within the time limit.
    Hangs,
    /// The peer is gone.
    Dies,
    /// The row was not run.
    Skipped,
}

impl From<&Check> for RowOutcome {
    fn from(check: &Check) -> Self {
        match check {
            Ok(()) => Self::Pass,
            Err(Finding::Differs(_)) => Self::Differs,
            Err(Finding::Hangs(_)) => Self::Hangs,
            Err(Finding::Dies(_)) => Self::Dies,
            Err(Finding::Skipped(_)) => Self::Skipped,
        }
    }
}

impl fmt::Display for RowOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Pass => "pass",
            Self::Differs => "differs",
            Self::Hangs => "hangs",
            Self::Dies => "dies",
            Self::Skipped => "skipped",
        })
    }
}
