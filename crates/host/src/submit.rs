//! Commands on their way in, completions on their way out.

use wire::sqe::Sqe;
use wire::status::Status;

use crate::queue_map::LaneClass;
use crate::reconnect::Class;

/// A command for a lane: made by a [`Namespace`](crate::Namespace), or raw.
#[derive(Clone, Debug)]
pub struct Command {
    pub(crate) sqe: Sqe,
    pub(crate) class: Class,
    pub(crate) moves: Moves,
    /// Bytes of the buffer it moves.
    pub(crate) length: u32,
    pub(crate) payload: Payload,
    /// Somebody polls for it.
    pub(crate) is_polled: bool,
}

/// What data a command moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Moves {
    Nothing,
    /// All of the buffer.
    ToController,
    /// All of the buffer must be filled.
    FromController,
    /// As much of the buffer as there is to say.
    AtMostFromController,
    /// The payload that is part of the command.
    Payload,
}

/// A range of Dataset Management as it is sent.
// In whole words: an enum with bytes in it lies at odd places, and is copied in parts that the processor has to put together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(align(8))]
pub(crate) struct RangeBytes(pub(crate) [u8; 16]);

/// Data that is part of the command.
#[derive(Clone, Debug)]
pub(crate) enum Payload {
    None,
    /// One range: the usual deallocation, without an allocation of its own.
    Range(RangeBytes),
    Own(Box<[u8]>),
}

impl Command {
    #[inline]
    pub(crate) fn new(sqe: Sqe, class: Class, moves: Moves, length: u32) -> Self {
        Self { sqe, class, moves, length, payload: Payload::None, is_polled: false }
    }

    pub(crate) fn with_payload(sqe: Sqe, class: Class, payload: Payload) -> Self {
        Self { sqe, class, moves: Moves::Payload, length: 0, payload, is_polled: false }
    }

    /// A command without data, as it is; cid and data pointer are set on submission. It is not submitted again after a
    /// reconnect unless [`read_only`](Self::read_only) or [`idempotent`](Self::idempotent) says that it may be.
    #[must_use]
    pub fn raw(sqe: Sqe) -> Self {
        Self::new(sqe, Class::Other, Moves::Nothing, 0)
    }

    /// A raw command that sends `length` bytes.
    #[inline]
    #[must_use]
    pub fn raw_to_controller(sqe: Sqe, length: u32) -> Self {
        Self::new(sqe, Class::Other, Moves::ToController, length)
    }

    /// A raw command that receives at most `length` bytes; the completion says how many came.
    #[inline]
    #[must_use]
    pub fn raw_from_controller(sqe: Sqe, length: u32) -> Self {
        Self::new(sqe, Class::Other, Moves::AtMostFromController, length)
    }

    /// It changes nothing: it may be submitted again.
    #[must_use]
    pub fn read_only(self) -> Self {
        Self { class: Class::ReadOnly, ..self }
    }

    /// Doing it twice is the same as doing it once: it may be submitted again if the policy allows.
    #[must_use]
    pub fn idempotent(self) -> Self {
        Self { class: Class::Idempotent, ..self }
    }

    /// Whoever waits for it will poll, and wants it before all else: it goes to a poll lane, if there is one.
    #[must_use]
    pub fn polled(self) -> Self {
        Self { is_polled: true, ..self }
    }

    /// The class of lanes it belongs to, if they are there; else it goes with [what it is otherwise](Self::class_unpolled).
    #[inline]
    #[must_use]
    pub fn lane_class(&self) -> LaneClass {
        if self.is_polled { LaneClass::Poll } else { self.class_unpolled() }
    }

    /// The class of lanes it belongs to if nobody polled for it.
    #[inline]
    #[must_use]
    pub fn class_unpolled(&self) -> LaneClass {
        let brings_data = matches!(self.moves, Moves::FromController | Moves::AtMostFromController);
        if brings_data && self.class == Class::ReadOnly { LaneClass::Read } else { LaneClass::Default }
    }

    /// On stable media before it completes (FUA): for Write, Write Zeroes and Copy. On Read it reads what is there.
    #[must_use]
    pub fn fua(self) -> Self {
        Self { sqe: self.sqe.with_fua(), ..self }
    }

    /// Bytes of the buffer to submit it with; `None` if it takes none.
    #[must_use]
    pub fn buffer_bytes(&self) -> Option<u32> {
        let takes_none = matches!(self.moves, Moves::Nothing | Moves::Payload);
        (!takes_none).then_some(self.length)
    }

    /// The command as it will be sent, but for cid and data pointer.
    #[must_use]
    pub fn sqe(&self) -> &Sqe {
        &self.sqe
    }
}

/// The end of a command.
#[derive(Debug)]
pub struct Completion<B> {
    /// As given when it was submitted.
    pub user: u64,
    /// The result dwords, or why it failed.
    pub result: Result<u64, Failure>,
    /// Bytes received into the buffer.
    pub received: u32,
    /// The buffer it was submitted with.
    pub buffer: Option<B>,
}

impl<B> Completion<B> {
    /// Whether the command succeeded.
    #[inline]
    #[must_use]
    pub fn is_ok(&self) -> bool {
        self.result.is_ok()
    }
}

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
    /// No connection to the target for as long as [`Options::fast_io_fail`](crate::Options::fast_io_fail) allows: the
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

/// A command that was not taken, with the buffer it came with.
#[derive(Debug, thiserror::Error)]
#[error("{reason}")]
pub struct Refused<B> {
    /// Why.
    pub reason: RefusedReason,
    /// The buffer.
    pub buffer: Option<B>,
}

/// Why a command was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RefusedReason {
    /// As many commands are outstanding as may be: take completions first.
    #[error("the lane is full: take completions first")]
    Full,
    /// The buffer has another length than the command.
    #[error("the command moves {expected} bytes, the buffer has {given}")]
    Length {
        /// Bytes the command moves; 0 if it takes no buffer.
        expected: u32,
        /// Bytes the buffer has; 0 if there is none.
        given: usize,
    },
    /// More data than one command can move on the wire.
    #[error("the command moves {length} bytes, more than one can")]
    TooLong {
        /// Bytes the command moves.
        length: u32,
    },
    /// The association has ended for good.
    #[error("the association has ended")]
    Ended,
}
