//! A command of a lane, from submission to completion.

use proto::host_queue::{DataBuffer, Transfer};
use wire::sqe::{Fuse, Sqe};

use crate::buffer::Data;
use crate::failure::Failure;
use crate::reconnect::Class;
use crate::submit::{Command, Completion, Refused, RefusedReason};

/// A lane's data about a command, kept in the queue while the command is outstanding.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tag {
    pub(super) user: u64,
    /// Order of submission; wraps.
    pub(super) sequence: u32,
    /// [`moment`](super::timeouts::moment) when the command was first seen outstanding, or was aborted; 0 before.
    pub(super) seen_at: u32,
    /// Moment when the command was held for the first time; 0 for never.
    pub(super) held_at: u32,
    pub(super) class: Class,
    pub(super) retry_count: u8,
    pub(super) flags: u8,
}

/// Of the queue itself: its Connect, and its authentication.
pub(super) const IS_OWN: u8 = 1 << 0;
/// A read that must fill its whole buffer.
pub(super) const IS_EXACT: u8 = 1 << 1;
/// Cancelled by the caller.
pub(super) const IS_CANCELLED: u8 = 1 << 2;
/// Its timeout has expired.
pub(super) const IS_LATE: u8 = 1 << 3;
/// Its phases are measured.
pub(super) const IS_TIMED: u8 = 1 << 4;
/// It may have been executed, completely or in part: it was outstanding on a connection that was lost, or has failed in
/// one of its ranges.
pub(super) const IS_UNCERTAIN: u8 = 1 << 5;

impl Tag {
    #[inline]
    pub(super) fn new(user: u64, sequence: u32, class: Class, flags: u8) -> Self {
        Self { user, sequence, seen_at: 0, held_at: 0, class, retry_count: 0, flags }
    }

    #[inline]
    pub(super) fn has(self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    /// Prepares for another submission.
    pub(super) fn reset(&mut self) {
        self.seen_at = 0;
        self.flags &= !IS_TIMED;
    }

    /// Sequence number of the other half, if this command is half of a fused pair.
    pub(super) fn partner(self, sqe: &Sqe) -> Option<u32> {
        match sqe.flags.fuse() {
            Fuse::FIRST => Some(self.sequence.wrapping_add(1)),
            Fuse::SECOND => Some(self.sequence.wrapping_sub(1)),
            _ => None,
        }
    }

    /// The failure of a command that is not sent (again).
    pub(super) fn stopped(self, failure: Failure) -> Failure {
        if self.has(IS_UNCERTAIN) { Failure::Interrupted } else { failure }
    }
}

/// A command that the lane keeps, not (or no longer) outstanding in its queue.
#[derive(Debug)]
pub(super) struct KeptCommand<B> {
    pub(super) sqe: Sqe,
    pub(super) transfer: Transfer<Data<B>>,
    pub(super) tag: Tag,
}

impl<B> KeptCommand<B> {
    /// Ends the command with this failure.
    pub(super) fn end(self, failure: Failure) -> Completion<B> {
        self.complete(Err(failure))
    }

    /// Ends the command because it is not sent (again): with this failure, unless it may have been executed before.
    pub(super) fn stop(self, failure: Failure) -> Completion<B> {
        let failure = self.tag.stopped(failure);
        self.end(failure)
    }

    /// Ends the command with this result, without received data.
    pub(super) fn complete(self, result: Result<u64, Failure>) -> Completion<B> {
        let buffer = match self.transfer {
            Transfer::None => None,
            Transfer::ToController(buffer) | Transfer::FromController { buffer, .. } => buffer.into_caller(),
        };
        Completion { user: self.tag.user, result, received: 0, buffer }
    }

    /// Sequence number of the other half, if this is half of a fused pair.
    pub(super) fn partner(&self) -> Option<u32> {
        self.tag.partner(&self.sqe)
    }
}

/// The refusal of a command whose buffer does not have its length.
#[cold]
pub(super) fn misfit<B: DataBuffer>(command: &Command, buffer: Option<B>) -> Refused<B> {
    let expected = command.buffer_bytes().unwrap_or(0);
    let given = buffer.as_ref().map_or(0, DataBuffer::length);
    let reason = match given == expected as usize {
        true => RefusedReason::TooLong { length: expected },
        false => RefusedReason::Length { expected, given },
    };
    Refused { reason, buffer }
}
