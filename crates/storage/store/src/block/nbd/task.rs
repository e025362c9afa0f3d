//! Requests that a reactor has in flight at a server, each in a slot.

use std::ops::Range;
use std::sync::Arc;

use memory::Buffer;
use nbd_wire::command::{FLUSH, READ, WRITE, WRITE_ZEROES};
use nbd_wire::{CommandFlags, ExportFlags, ReplyForm, ReplyViolation, Request};

use super::connect::ExportInfo;
use super::shared::{Call, Inbox, Kind};
use crate::namespace::{Generation, Ticket};

/// Bytes zeroed by one request without data.
const ZEROED_BYTES: u64 = 64 << 20;

/// The data of zeroes for servers that have no such command.
static ZEROES: [u8; 256 << 10] = [0; 256 << 10];

/// Bytes of a request's head.
pub(super) const HEAD_BYTES: usize = Request::head_bytes(ReplyForm::Structured);

/// The asker of a request.
pub(super) enum Origin {
    /// Our own reactor.
    Ticket(Ticket),
    /// Another one, which calls the request by this number.
    Job(Arc<Inbox>, u64),
}

/// The data of a request.
pub(super) enum Memory {
    None,
    Buffer(Buffer),
    /// Of a job.
    Copy(Vec<u8>),
}

/// A request in flight, carried out by one command after the other.
pub(super) struct Task {
    pub(super) origin: Origin,
    pub(super) call: Call,
    pub(super) memory: Memory,
    /// The state of the namespace when it was started.
    pub(super) gate: Generation,
    pub(super) begun_ns: u64,
    /// It has been answered by its deadline.
    pub(super) is_overdue: bool,
    /// Bytes of the range that earlier commands have done.
    done: u64,
    /// Its range is done, and is flushed.
    is_flushing: bool,
    /// Changes that its flush covers.
    pub(super) covered: u64,
    command: Command,
}

/// The command under way.
#[derive(Default)]
struct Command {
    cookie: u64,
    head: [u8; HEAD_BYTES],
    bytes: u64,
    has_data: bool,
    /// The server has all of it.
    is_sent: bool,
    /// Bytes of data that have arrived.
    received: u64,
    /// Where data goes if it comes in order.
    next: u64,
    /// Data has come out of order: what did not come by then was zeroed.
    is_scattered: bool,
    errno: Option<u32>,
}

/// A place within a buffer, none of which is longer than memory.
fn place(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

impl Memory {
    pub(super) fn bytes(&self) -> &[u8] {
        match self {
            Self::None => &[],
            Self::Buffer(buffer) => buffer,
            Self::Copy(bytes) => bytes,
        }
    }

    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        match self {
            Self::None => &mut [],
            Self::Buffer(buffer) => buffer,
            Self::Copy(bytes) => bytes,
        }
    }
}

impl Task {
    pub(super) fn new(origin: Origin, call: Call, memory: Memory, gate: Generation, now_ns: u64) -> Self {
        Self {
            origin,
            call,
            memory,
            gate,
            begun_ns: now_ns,
            is_overdue: false,
            done: 0,
            is_flushing: false,
            covered: 0,
            command: Command::default(),
        }
    }

    /// Whether the command under way is a flush.
    pub(super) fn flushes(&self) -> bool {
        self.is_flushing || self.call.kind == Kind::Flush
    }

    /// From the beginning, on another connection: what was done may be lost.
    pub(super) fn restart(&mut self) {
        (self.done, self.is_flushing) = (0, false);
    }

    /// Prepares the next command.
    pub(super) fn prepare(&mut self, export: &ExportInfo, cookie: u64) {
        let Call { kind, offset, length, is_durable } = self.call;
        let left = length - self.done;
        let by_data = u64::from(export.payload_bytes_max);
        let has_zeroes = export.flags.has(ExportFlags::WRITE_ZEROES);
        let (command, bytes, has_data) = match kind {
            _ if self.flushes() => (FLUSH, 0, false),
            Kind::Read | Kind::Flush => (READ, left.min(by_data), false),
            Kind::Write => (WRITE, left.min(by_data), true),
            Kind::Zero { .. } if has_zeroes => (WRITE_ZEROES, left.min(ZEROED_BYTES), false),
            Kind::Zero { .. } => (WRITE, left.min(by_data).min(ZEROES.len() as u64), true),
        };
        let mut flags = CommandFlags::default();
        if is_durable && matches!(command, WRITE | WRITE_ZEROES) && export.flags.has(ExportFlags::FUA) {
            flags.0 |= CommandFlags::FUA.0;
        }
        if command == WRITE_ZEROES && kind == (Kind::Zero { may_deallocate: false }) {
            flags.0 |= CommandFlags::NO_HOLE.0;
        }
        let offset = if command == FLUSH { 0 } else { offset + self.done };
        let head = Request { flags, command, cookie, offset, length: bytes }.to_compact();
        self.command = Command { cookie, head, bytes, has_data, next: self.done, ..Command::default() };
    }

    pub(super) fn cookie(&self) -> u64 {
        self.command.cookie
    }

    /// The head and the data of the command under way.
    pub(super) fn output(&self) -> (&[u8], &[u8]) {
        let Command { head, bytes, has_data, .. } = &self.command;
        let data = match self.call.kind {
            _ if !has_data => &[],
            Kind::Write => self.memory.bytes().get(place(self.done)..).unwrap_or_default(),
            _ => &ZEROES[..],
        };
        (head, data.get(..place(*bytes)).unwrap_or_default())
    }

    pub(super) fn set_sent(&mut self) {
        self.command.is_sent = true;
    }

    /// Whether replies to the command under way may come.
    pub(super) fn is_sent(&self) -> bool {
        self.command.is_sent
    }

    /// The range of the command under way that is read, within the request.
    fn read_range(&self) -> Option<Range<u64>> {
        let is_read = self.call.kind == Kind::Read;
        is_read.then(|| self.done..self.done + self.command.bytes)
    }

    /// Data of a simple reply: all.
    pub(super) fn expect_all(&mut self) -> Option<Range<usize>> {
        let range = self.read_range()?;
        self.command.received = self.command.bytes;
        Some(place(range.start)..place(range.end))
    }

    /// `length` bytes of data, or of zeroes, come for `offset` of the export: where they go within the request.
    pub(super) fn expect(&mut self, offset: u64, length: u64) -> Result<Range<usize>, ReplyViolation> {
        let range = self.read_range().ok_or(ReplyViolation::Data)?;
        let start = offset.checked_sub(self.call.offset).ok_or(ReplyViolation::Data)?;
        let end = start.checked_add(length).ok_or(ReplyViolation::Data)?;
        let received = self.command.received.saturating_add(length);
        if length == 0 || start < range.start || end > range.end || received > self.command.bytes {
            return Err(ReplyViolation::Data);
        }
        let command = &mut self.command;
        command.received = received;
        if start != command.next && !command.is_scattered {
            // A server that leaves something out must not show what the buffer had before.
            command.is_scattered = true;
            let unread = place(command.next)..place(range.end);
            self.memory.bytes_mut().get_mut(unread).unwrap_or_default().fill(0);
        }
        command.next = end;
        Ok(place(start)..place(end))
    }

    /// An error of the command under way; the first one counts.
    pub(super) fn set_error(&mut self, errno: u32) {
        self.command.errno.get_or_insert(errno);
    }

    /// The reply to the command under way is complete: its error, if any.
    pub(super) fn end_command(&self) -> Result<Option<u32>, ReplyViolation> {
        let Command { errno, received, bytes, .. } = self.command;
        let is_short = self.read_range().is_some() && received < bytes;
        if errno.is_none() && is_short { Err(ReplyViolation::Data) } else { Ok(errno) }
    }

    /// The command under way has succeeded. Returns whether the request needs no other.
    pub(super) fn advance(&mut self, export: &ExportInfo) -> bool {
        if self.flushes() {
            return true;
        }
        self.done += self.command.bytes;
        let is_whole = self.done >= self.call.length;
        self.is_flushing = is_whole && self.call.is_durable && !export.flags.has(ExportFlags::FUA);
        is_whole && !self.is_flushing
    }
}

/// Tasks by slot.
#[derive(Default)]
pub(super) struct Tasks {
    slots: Vec<Option<Task>>,
    free: Vec<u32>,
    serial: u32,
}

impl Tasks {
    pub(super) fn insert(&mut self, task: Task) -> u32 {
        if let Some(slot) = self.free.pop() {
            self.slots[slot as usize] = Some(task);
            return slot;
        }
        self.slots.push(Some(task));
        u32::try_from(self.slots.len() - 1).expect("there are fewer buffers")
    }

    pub(super) fn remove(&mut self, slot: u32) -> Option<Task> {
        let task = self.slots.get_mut(slot as usize)?.take()?;
        self.free.push(slot);
        Some(task)
    }

    pub(super) fn get_mut(&mut self, slot: u32) -> Option<&mut Task> {
        self.slots.get_mut(slot as usize)?.as_mut()
    }

    /// The task that a reply with this cookie is for.
    pub(super) fn answered(&mut self, cookie: u64) -> Result<(u32, &mut Task), ReplyViolation> {
        let slot = u32::try_from(cookie & u64::from(u32::MAX)).unwrap_or(u32::MAX);
        match self.get_mut(slot) {
            Some(task) if task.cookie() == cookie && task.is_sent() => Ok((slot, task)),
            _ => Err(ReplyViolation::Cookie { cookie }),
        }
    }

    /// Prepares the next command of the task.
    pub(super) fn prepare(&mut self, slot: u32, export: &ExportInfo) {
        self.serial = self.serial.wrapping_add(1);
        let cookie = u64::from(self.serial) << 32 | u64::from(slot);
        if let Some(task) = self.get_mut(slot) {
            task.prepare(export, cookie);
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.free.len() == self.slots.len()
    }

    /// The slots of the tasks for which `is_meant`.
    pub(super) fn slots(&self, is_meant: impl Fn(&Task) -> bool) -> Vec<u32> {
        let slots = (0..).zip(&self.slots);
        slots.filter(|(_, task)| task.as_ref().is_some_and(&is_meant)).map(|(slot, _)| slot).collect()
    }
}
