//! The result of a check on the other side's behaviour.

use std::fmt;

/// Why a check did not pass.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Finding {
    /// The other side did something wrong.
    #[error("{0}")]
    Differs(String),
    /// The other side did nothing in time.
    #[error("{0}")]
    Hangs(String),
    /// The other side is gone.
    #[error("{0}")]
    Dies(String),
    /// The check does not apply to this peer.
    #[error("{0}")]
    Skipped(String),
}

/// The result of a step: `Err` ends the check.
pub type Check<T = ()> = Result<T, Finding>;

impl Finding {
    /// Prefixes the text with `what`, unless the check does not apply: the reason is the same at every step.
    #[must_use]
    pub fn about(self, what: impl fmt::Display) -> Self {
        let before = |text: String| format!("{what}: {text}");
        match self {
            Self::Differs(text) => Self::Differs(before(text)),
            Self::Hangs(text) => Self::Hangs(before(text)),
            Self::Dies(text) => Self::Dies(before(text)),
            Self::Skipped(text) => Self::Skipped(text),
        }
    }
}

/// Names the step in the finding of a check that did not pass.
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

/// Fails with [`Finding::Differs`].
///
/// # Errors
/// Always.
pub fn differs<T>(what: impl fmt::Display) -> Check<T> {
    Err(Finding::Differs(what.to_string()))
}

/// Fails with [`Finding::Skipped`].
///
/// # Errors
/// Always.
pub fn skipped<T>(why: impl fmt::Display) -> Check<T> {
    Err(Finding::Skipped(why.to_string()))
}

/// Fails unless `condition` holds.
///
/// # Errors
/// [`Finding::Differs`] with the text `otherwise`.
pub fn holds(condition: bool, otherwise: impl fmt::Display) -> Check {
    if condition { Ok(()) } else { differs(otherwise) }
}
