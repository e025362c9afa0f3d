//! The outcome of a row, for reports.

use std::fmt;

use peer::finding::{Check, Finding};
use serde::Serialize;

/// Outcome of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// Everything was right.
    Pass,
    /// Something else than is right.
    Differs,
    /// Nothing in time.
    Hangs,
    /// The peer is gone.
    Dies,
    /// Not tried.
    Skipped,
}

impl From<&Check> for Outcome {
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

impl fmt::Display for Outcome {
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
