//! A command on its way to a server and back.
// circle with wire.rs: a command is what its connection has of a task, and the connection reads and writes commands

use std::ops::Range;

use nbd_wire::block_status::{STATE_HOLE, STATE_ZERO};
use nbd_wire::command::{BLOCK_STATUS, FLUSH, READ, WRITE, WRITE_ZEROES};
use nbd_wire::{CommandFlags, ReplyForm, ReplyViolation, Request};

use super::wire::NbdWire;
use crate::block::remote::{Task, Tasks, Verb, place};

/// Bytes of a request's head.
const HEAD_BYTES: usize = Request::head_bytes(ReplyForm::Structured);

/// The command under way.
#[derive(Default)]
pub(crate) struct Command {
    cookie: u64,
    head: [u8; HEAD_BYTES],
    /// The server has all of it.
    is_sent: bool,
    /// Bytes of data that have arrived.
    received: u64,
    /// Bytes of the range behind the last data that came.
    next: u64,
    /// Data has come out of order: what did not come by then was zeroed.
    is_scattered: bool,
    /// The block status has come.
    has_status: bool,
    errno: Option<u32>,
}

impl Task<NbdWire> {
    /// Writes the head of the command under way.
    pub(super) fn set_cookie(&mut self, cookie: u64) {
        let part = self.part();
        let mut flags = CommandFlags::default();
        if part.is_durable {
            flags.0 |= CommandFlags::FUA.0;
        }
        if part.verb == (Verb::Zero { may_deallocate: false }) {
            flags.0 |= CommandFlags::NO_HOLE.0;
        }
        let command = match part.verb {
            Verb::Read => READ,
            Verb::Write => WRITE,
            Verb::Flush => FLUSH,
            Verb::Zero { .. } => WRITE_ZEROES,
            Verb::Find => BLOCK_STATUS,
        };
        let request = Request { flags, command, cookie, offset: part.offset, length: part.bytes };
        self.command = Command { cookie, head: request.to_compact(), ..Command::default() };
    }

    /// The head and the data of the command under way.
    pub(super) fn output(&self) -> (&[u8], &[u8]) {
        (&self.command.head, self.data())
    }

    pub(super) fn set_sent(&mut self) {
        self.command.is_sent = true;
    }

    /// Bytes that the command under way reads.
    fn bytes_read(&self) -> Option<u64> {
        let part = self.part();
        (part.verb == Verb::Read).then_some(part.bytes)
    }

    /// A part of the data of the command under way, within its request.
    fn range_of(&self, start: u64, end: u64) -> Range<usize> {
        let at = self.part().at;
        place(at + start)..place(at + end)
    }

    /// Data of a simple reply: all.
    pub(super) fn expect_all(&mut self) -> Option<Range<usize>> {
        let bytes = self.bytes_read()?;
        self.command.received = bytes;
        Some(self.range_of(0, bytes))
    }

    /// `length` bytes of data, or of zeroes, come for `offset` of the export: where they go within the request.
    pub(super) fn expect(&mut self, offset: u64, length: u64) -> Result<Range<usize>, ReplyViolation> {
        let bytes = self.bytes_read().ok_or(ReplyViolation::Data)?;
        let start = offset.checked_sub(self.part().offset).ok_or(ReplyViolation::Data)?;
        let end = start.checked_add(length).ok_or(ReplyViolation::Data)?;
        let received = self.command.received.saturating_add(length);
        if length == 0 || end > bytes || received > bytes {
            return Err(ReplyViolation::Data);
        }
        self.command.received = received;
        let next = self.command.next;
        if start != next && !self.command.is_scattered {
            // A server that leaves something out must not show what the buffer had before.
            self.command.is_scattered = true;
            let unread = self.range_of(next, bytes);
            self.memory.bytes_mut().get_mut(unread).unwrap_or_default().fill(0);
        }
        self.command.next = end;
        Ok(self.range_of(start, end))
    }

    /// The block status comes, in one chunk.
    pub(super) fn expect_status(&mut self) -> bool {
        self.part().verb == Verb::Find && !std::mem::replace(&mut self.command.has_status, true)
    }

    /// An extent of `base:allocation`. A hole that does not read as zeroes is none to hosts.
    pub(super) fn on_extent(&mut self, length: u32, status: u32) {
        let hole = STATE_HOLE | STATE_ZERO;
        self.add_extent(length.into(), status & hole != hole);
    }

    /// An error of the command under way; the first one counts.
    pub(super) fn set_error(&mut self, errno: u32) {
        self.command.errno.get_or_insert(errno);
    }

    /// The reply to the command under way is complete: its error, if any.
    pub(super) fn end_command(&self) -> Result<Option<u32>, ReplyViolation> {
        let Command { errno, received, .. } = self.command;
        let is_short = self.bytes_read().is_some_and(|bytes| received < bytes);
        if errno.is_none() && is_short { Err(ReplyViolation::Data) } else { Ok(errno) }
    }
}

impl Tasks<NbdWire> {
    /// The task that a reply with this cookie is for.
    pub(super) fn answered(&mut self, cookie: u64) -> Result<(u32, &mut Task<NbdWire>), ReplyViolation> {
        let slot = u32::try_from(cookie & u64::from(u32::MAX)).unwrap_or(u32::MAX);
        match self.get_mut(slot) {
            Some(task) if task.command.cookie == cookie && task.command.is_sent => Ok((slot, task)),
            _ => Err(ReplyViolation::Cookie { cookie }),
        }
    }
}
