//! What a row comes to.

use std::fmt;

use serde::Serialize;

/// Why a row did not pass.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Finding {
    /// The peer did something else than is right.
    #[error("{0}")]
    Differs(String),
    /// The peer did nothing in time.
    #[error("{0}")]
    Hangs(String),
    /// The peer is gone.
    #[error("{0}")]
    Dies(String),
    /// The row cannot be tried on this peer.
    #[error("{0}")]
    Skipped(String),
}

/// The result of a step: go on, or the row is decided.
pub type Check<T = ()> = Result<T, Finding>;

impl Finding {
    /// The same with what it is about said first.
    #[must_use]
    pub fn about(self, what: impl fmt::Display) -> Self {
        let before = |text: String| format!("{what}: {text}");
        match self {
            Self::Differs(text) => Self::Differs(before(text)),
            Self::Hangs(text) => Self::Hangs(before(text)),
            Self::Dies(text) => Self::Dies(before(text)),
            Self::Skipped(text) => Self::Skipped(before(text)),
        }
    }
}

/// Says what a step was about, if it did not pass.
pub trait About<T> {
    /// See [`Finding::about`].
    ///
    /// # Errors
    /// As before.
    fn about(self, what: impl fmt::Display) -> Check<T>;
}

impl<T> About<T> for Check<T> {
    fn about(self, what: impl fmt::Display) -> Check<T> {
        self.map_err(|finding| finding.about(what))
    }
}

/// The peer does something else than is right.
///
/// # Errors
/// Always.
pub fn differs<T>(what: impl fmt::Display) -> Check<T> {
    Err(Finding::Differs(what.to_string()))
}

/// The row cannot be tried on this peer.
///
/// # Errors
/// Always.
pub fn skipped<T>(why: impl fmt::Display) -> Check<T> {
    Err(Finding::Skipped(why.to_string()))
}

/// Decides a row unless this holds.
///
/// # Errors
/// [`Finding::Differs`].
pub fn holds(condition: bool, otherwise: impl fmt::Display) -> Check {
    if condition { Ok(()) } else { differs(otherwise) }
}

/// What a row came to, in one word.
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
