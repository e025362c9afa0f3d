//! Why a command ended without success.

use wire::status::Status;

/// Why a command failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Failure {
    /// The controller refused it or failed it. A Compare that differs is [`Status::COMPARE_FAILURE`].
    #[error("{0}")]
    Status(Status),
    /// The controller gave this status each time, and there is no time or retry left; see [`retry`](crate::retry). With no retry it was
    /// never sent: its namespace was not accessible, and the status says how.
    #[error("{status}: given up after {waited_ms} ms (retries: {retry_count})")]
    GaveUp {
        /// The last status.
        status: Status,
        /// Times that it was submitted again.
        retry_count: u8,
        /// Time since the first such status, ms.
        waited_ms: u32,
    },
    /// No connection to the target for as long as [`Tuning::fast_io_fail`](crate::Tuning::fast_io_fail) allows: the
    /// command has not happened.
    #[error("no connection to the target for {waited_ms} ms: the command has not happened")]
    NoConnection {
        /// Time without a connection, ms.
        waited_ms: u32,
    },
    /// The connection was lost before the controller answered: it may or may not have happened, and it may still
    /// happen. See [`reconnect`](crate::reconnect).
    #[error("connection lost before the answer: the command may or may not have happened")]
    Interrupted,
    /// No answer in time, even to an Abort; the connection was closed: as [`Failure::Interrupted`].
    #[error("no answer in time: the command may or may not have happened")]
    TimedOut,
    /// The first flush after a reconnect: what was written before it and not flushed may be lost.
    #[error(
        "reconnected since the last flush: what was written before and not flushed must be written again"
    )]
    Unflushed,
    /// Cancelled by us before it took effect.
    #[error("cancelled")]
    Cancelled,
    /// The association has ended for good, and the command has not happened.
    #[error("the target is gone: the command has not happened")]
    Unreachable,
}

impl Failure {
    /// Whether a command that changes data may have done so all the same.
    #[must_use]
    pub fn may_have_happened(self) -> bool {
        matches!(self, Self::Interrupted | Self::TimedOut)
    }

    /// The controller's status, if it gave one: the last one, if the command was submitted again.
    #[must_use]
    pub fn status(self) -> Option<Status> {
        match self {
            Self::Status(status) | Self::GaveUp { status, .. } => Some(status),
            _ => None,
        }
    }
}
