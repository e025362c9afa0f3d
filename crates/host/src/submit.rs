//! Commands on their way in, completions on their way out.

use wire::sqe::Sqe;

use crate::failure::Failure;
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
