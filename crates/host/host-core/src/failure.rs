//! Failures of commands.

use std::fmt;
use std::time::Duration;

use wire::status::Status;

/// Why a command failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Failure {
    /// The controller's status. A Compare that differs ends with [`Status::COMPARE_FAILURE`].
    #[error("{0}")]
    Status(Status),
    /// The controller returned this status until no retry or time was left; see [`retry`](crate::retry). With a retry
    /// count of 0 the command was never sent: its namespace was not accessible, for the reason in the status.
    #[error("{status}: given up after {waited} (retries: {retry_count})")]
    GaveUp {
        /// The last status.
        status: Status,
        /// Retries.
        retry_count: u8,
        /// Time since the first such status.
        waited: Waited,
    },
    /// There was no connection to the target for `Tuning::fast_io_fail`. The command was
    /// not executed.
    #[error("no connection to the target for {waited}: the command has not happened")]
    NoConnection {
        /// Time without a connection.
        waited: Waited,
    },
    /// The connection was lost before the controller answered. The command may or may not have been executed, and it
    /// may still be executed later. See [`reconnect`](crate::reconnect).
    #[error("connection lost before the answer: the command may or may not have happened")]
    Interrupted,
    /// The command timed out, also after an Abort, and the connection was closed: as [`Failure::Interrupted`].
    #[error("no answer in time: the command may or may not have happened")]
    TimedOut,
    /// The first Flush after a reconnect: writes before the reconnect that were not flushed may be lost.
    #[error(
        "reconnected since the last flush: earlier unflushed writes may be lost and must be written again"
    )]
    Unflushed,
    /// Cancelled by the caller before it was executed.
    #[error("cancelled")]
    Cancelled,
    /// Other storage than before answers under the namespace's id, as after a reconnect to another machine. The command
    /// was not sent to it. The log has both identifiers.
    #[error("other storage answers under this namespace id: the command has not happened")]
    Replaced,
    /// The association ended for good, and the command was not executed.
    #[error("the target is gone: the command has not happened")]
    Unreachable,
}

impl Failure {
    /// Whether a command that changes data may have been executed.
    #[must_use]
    pub fn may_have_happened(self) -> bool {
        matches!(self, Self::Interrupted | Self::TimedOut)
    }

    /// The controller's status, if there is one: the last one, if the command was retried.
    #[must_use]
    pub fn status(self) -> Option<Status> {
        match self {
            Self::Status(status) | Self::GaveUp { status, .. } => Some(status),
            _ => None,
        }
    }
}

/// A time that a command has waited, to the millisecond.
// Not a Duration: a failure is in every completion, which would grow by 16 bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Waited {
    ms: u32,
}

impl Waited {
    /// A number of milliseconds.
    #[must_use]
    pub const fn from_ms(ms: u32) -> Self {
        Self { ms }
    }

    /// The time.
    #[must_use]
    pub const fn duration(self) -> Duration {
        Duration::from_millis(self.ms as u64)
    }
}

impl fmt::Display for Waited {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ms", self.ms)
    }
}

const _: () = assert!(size_of::<Failure>() == 8);
