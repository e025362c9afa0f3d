//! Commands that lanes accept, and their completions.

use wire::sqe::Sqe;

use crate::failure::Failure;
use crate::queue_map::LaneClass;
use crate::reconnect::Class;

/// A command for a lane: constructed by a [`Namespace`](crate::Namespace), or raw.
#[derive(Clone, Debug)]
pub struct Command {
    pub(crate) sqe: Sqe,
    pub(crate) class: Class,
    pub(crate) moves: Moves,
    /// Length of its buffer, bytes.
    pub(crate) length: u32,
    pub(crate) payload: Payload,
    /// See [`polled`](Self::polled).
    pub(crate) is_polled: bool,
}

/// Data transfer of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Moves {
    Nothing,
    /// The whole buffer.
    ToController,
    /// Fills the whole buffer.
    FromController,
    /// Fills at most the buffer.
    AtMostFromController,
    /// Sends the command's own payload.
    Payload,
}

/// A range of Dataset Management in wire format.
// Aligned to words: an enum with unaligned bytes is copied in parts, which is slower.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(align(8))]
pub(crate) struct RangeBytes(pub(crate) [u8; 16]);

/// Payload of a command itself.
#[derive(Clone, Debug)]
pub(crate) enum Payload {
    None,
    /// One range, stored in place: the usual deallocation needs no allocation.
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

    /// A raw command without data; cid and data pointer are set on submission. It is not submitted again after a
    /// reconnect unless marked [`read_only`](Self::read_only) or [`idempotent`](Self::idempotent).
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

    /// A raw command that receives at most `length` bytes; the completion has the received length.
    #[inline]
    #[must_use]
    pub fn raw_from_controller(sqe: Sqe, length: u32) -> Self {
        Self::new(sqe, Class::Other, Moves::AtMostFromController, length)
    }

    /// Marks a command that changes nothing: it may be submitted again.
    #[must_use]
    pub fn read_only(self) -> Self {
        Self { class: Class::ReadOnly, ..self }
    }

    /// Marks a command whose repetition has no further effect: it may be submitted again if the policy allows.
    #[must_use]
    pub fn idempotent(self) -> Self {
        Self { class: Class::Idempotent, ..self }
    }

    /// Marks a latency-critical command: the caller busy-polls for its completion. It goes to a poll lane if there is
    /// one.
    #[must_use]
    pub fn polled(self) -> Self {
        Self { is_polled: true, ..self }
    }

    /// Whether the command may change data.
    #[inline]
    #[must_use]
    pub fn changes_data(&self) -> bool {
        matches!(self.class, Class::Idempotent | Class::Other)
    }

    /// The preferred class of lanes; if there are none, [`class_unpolled`](Self::class_unpolled).
    #[inline]
    #[must_use]
    pub fn lane_class(&self) -> LaneClass {
        if self.is_polled { LaneClass::Poll } else { self.class_unpolled() }
    }

    /// The class of lanes for the command if it were not [`polled`](Self::polled).
    #[inline]
    #[must_use]
    pub fn class_unpolled(&self) -> LaneClass {
        let brings_data = matches!(self.moves, Moves::FromController | Moves::AtMostFromController);
        if brings_data && self.class == Class::ReadOnly { LaneClass::Read } else { LaneClass::Default }
    }

    /// Sets FUA: Write, Write Zeroes and Copy complete once the data is durable; Read reads from the medium.
    #[must_use]
    pub fn fua(self) -> Self {
        Self { sqe: self.sqe.with_fua(), ..self }
    }

    /// Length of the buffer to submit the command with, bytes; `None` if it takes no buffer.
    #[must_use]
    pub fn buffer_bytes(&self) -> Option<u32> {
        let takes_none = matches!(self.moves, Moves::Nothing | Moves::Payload);
        (!takes_none).then_some(self.length)
    }

    /// The submission queue entry; cid and data pointer are set on submission.
    #[must_use]
    pub fn sqe(&self) -> &Sqe {
        &self.sqe
    }
}

/// The completion of a command.
#[derive(Debug)]
pub struct Completion<B> {
    /// The value passed at submission.
    pub user: u64,
    /// The result dwords, or why the command failed.
    pub result: Result<u64, Failure>,
    /// Bytes received into the buffer.
    pub received: u32,
    /// The buffer passed at submission.
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

/// A command that a lane refused, with its buffer.
#[derive(Debug, thiserror::Error)]
#[error("{reason}")]
pub struct Refused<B> {
    /// Why.
    pub reason: RefusedReason,
    /// The buffer.
    pub buffer: Option<B>,
}

/// Why a lane refused a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RefusedReason {
    /// The maximum number of commands is outstanding: take completions first.
    #[error("the lane is full: take completions first")]
    Full,
    /// The buffer does not have the command's length.
    #[error("the command transfers {expected} bytes, the buffer has {given}")]
    Length {
        /// Length of the command's data, bytes; 0 if it takes no buffer.
        expected: u32,
        /// Length of the buffer, bytes; 0 if there is none.
        given: usize,
    },
    /// More data than one command transfers.
    #[error("the command transfers {length} bytes, more than the maximum")]
    TooLong {
        /// Length of the command's data, bytes.
        length: u32,
    },
    /// The association ended for good.
    #[error("the association has ended")]
    Ended,
}
