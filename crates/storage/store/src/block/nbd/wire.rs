//! One connection to a server: commands go out, replies come in, without waiting.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use nbd_wire::chunk::{BLOCK_STATUS, IS_ERROR, NONE, OFFSET_DATA, OFFSET_HOLE};
use nbd_wire::command::DISCONNECT;
use nbd_wire::{CommandFlags, ReceivedHead, ReplyViolation, Request};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags};

use super::command::Command;
use crate::block::remote::{Ended, Lost, Wire};

type Tasks = crate::block::remote::Tasks<NbdWire>;

/// Bytes of replies taken in at once, but for data that goes to its place.
const STAGING_BYTES: usize = 64 << 10;

/// Data of at least this length is received in its place.
const DIRECT_BYTES: usize = 8 << 10;

/// Longest chunk that is neither data nor a hole, bytes: an error with its text.
const OTHER_BYTES_MAX: u32 = 8 << 10;

/// Bytes of an extent, and the longest chunk of them: nbdkit sends up to a mebi.
const EXTENT_BYTES: u32 = 8;
const STATUS_BYTES_MAX: u32 = 4 + EXTENT_BYTES * (1 << 20);

/// A connection.
pub(crate) struct NbdWire {
    socket: OwnedFd,
    /// The number of `base:allocation`.
    allocation: Option<u32>,
    /// Of the last command, so that a reply to an earlier one is seen.
    serial: u32,
    /// Slots of tasks whose commands go out, and the bytes of the first one that are out.
    out: VecDeque<u32>,
    sent: usize,
    /// What has arrived, and which part of it is still to be looked at.
    staging: Box<[u8]>,
    staged: Range<usize>,
    expected: Expected,
}

/// What comes next.
#[derive(Clone, Debug)]
enum Expected {
    Head,
    /// Data for this part of the task's memory.
    Data {
        slot: u32,
        range: Range<usize>,
        is_last: bool,
    },
    /// A chunk, or its beginning, of `length` bytes.
    Chunk {
        slot: u32,
        kind: u16,
        length: u32,
        is_last: bool,
    },
    /// Extents of block status: so many bytes.
    Extents {
        slot: u32,
        length: u32,
        is_last: bool,
    },
}

impl From<ReplyViolation> for Lost {
    fn from(violation: ReplyViolation) -> Self {
        Self::Violation(violation.to_string())
    }
}

/// The server ends: another one may come.
const ESHUTDOWN: u32 = 108;

impl NbdWire {
    pub(super) fn new(socket: OwnedFd, allocation: Option<u32>) -> Self {
        Self {
            socket,
            allocation,
            serial: 0,
            out: VecDeque::new(),
            sent: 0,
            staging: vec![0; STAGING_BYTES].into(),
            staged: 0..0,
            expected: Expected::Head,
        }
    }
}

impl Wire for NbdWire {
    type Command = Command;

    fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    fn queue(&mut self, tasks: &mut Tasks, slot: u32) {
        self.serial = self.serial.wrapping_add(1);
        if let Some(task) = tasks.get_mut(slot) {
            task.set_cookie(u64::from(self.serial) << 32 | u64::from(slot));
            self.out.push_back(slot);
        }
    }

    fn send(&mut self, tasks: &mut Tasks) -> Result<bool, Lost> {
        while let Some(&slot) = self.out.front() {
            // A task leaves only after its command was sent.
            let Some(task) = tasks.get_mut(slot) else { return Err(Lost::Ended) };
            let (head, data) = task.output();
            let length = head.len() + data.len();
            let rest_of_head = head.get(self.sent..).unwrap_or_default();
            let rest_of_data = data.get(self.sent.saturating_sub(head.len())..).unwrap_or_default();
            let more = if self.out.len() > 1 { SendFlags::MORE } else { SendFlags::empty() };
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL | more;
            let slices = [IoSlice::new(rest_of_head), IoSlice::new(rest_of_data)];
            match rustix::net::sendmsg(&self.socket, &slices, &mut SendAncillaryBuffer::default(), flags) {
                Ok(count) => self.sent += count,
                Err(Errno::AGAIN) => return Ok(true),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
            if self.sent >= length {
                task.set_sent();
                self.out.pop_front();
                self.sent = 0;
            }
        }
        Ok(false)
    }

    fn receive(&mut self, tasks: &mut Tasks) -> Result<bool, Lost> {
        let is_direct = match &self.expected {
            Expected::Data { range, .. } => self.staged.is_empty() && range.len() >= DIRECT_BYTES,
            _ => false,
        };
        let received = if let (true, Expected::Data { slot, range, .. }) = (is_direct, &mut self.expected) {
            let memory = tasks.get_mut(*slot).map(|task| task.memory.bytes_mut()).unwrap_or_default();
            let into = memory.get_mut(range.clone()).ok_or(ReplyViolation::Data)?;
            let received = rustix::net::recv(&self.socket, into, RecvFlags::DONTWAIT);
            received.map(|(count, _)| {
                range.start += count.min(range.len());
                count
            })
        } else {
            // The rest, less than a head or a short chunk, moves to the front.
            self.staging.copy_within(self.staged.clone(), 0);
            self.staged = 0..self.staged.len();
            let into = self.staging.get_mut(self.staged.end..).unwrap_or_default();
            let received = rustix::net::recv(&self.socket, into, RecvFlags::DONTWAIT);
            received.map(|(count, _)| {
                self.staged.end += count;
                count
            })
        };
        match received {
            Ok(0) => Err(Lost::Ended),
            Ok(_) => Ok(true),
            Err(Errno::AGAIN | Errno::INTR) => Ok(false),
            Err(errno) => Err(errno.into()),
        }
    }

    fn next_ended(&mut self, tasks: &mut Tasks) -> Result<Option<Ended>, Lost> {
        match self.next_reply(tasks)? {
            Some((_, Some(ESHUTDOWN))) => Err(Lost::Ended),
            ended => Ok(ended),
        }
    }

    /// Tells the server that this is the end, if the socket takes it.
    fn leave(&mut self) {
        if self.out.is_empty() {
            let flags = CommandFlags::default();
            let head = Request { flags, command: DISCONNECT, cookie: 0, offset: 0, length: 0 }.to_compact();
            let _ = rustix::net::send(&self.socket, &head, SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
        }
    }
}

impl NbdWire {
    fn staged(&self) -> &[u8] {
        self.staging.get(self.staged.clone()).unwrap_or_default()
    }

    fn skip(&mut self, count: usize) {
        self.staged.start += count.min(self.staged.len());
    }

    /// The end of the next command whose reply has arrived.
    fn next_reply(&mut self, tasks: &mut Tasks) -> Result<Option<Ended>, ReplyViolation> {
        loop {
            let (slot, is_last) = match self.expected.clone() {
                Expected::Head => match ReceivedHead::from_bytes(self.staged())? {
                    None => return Ok(None),
                    Some((head, length)) => {
                        self.skip(length);
                        match self.on_head(head, tasks)? {
                            Some(end) => end,
                            None => continue,
                        }
                    }
                },
                Expected::Data { slot, mut range, is_last } => {
                    let count = range.len().min(self.staged.len());
                    let task = tasks.get_mut(slot).ok_or(ReplyViolation::Data)?;
                    let into = task.memory.bytes_mut().get_mut(range.start..range.start + count);
                    let from = self.staged().get(..count).unwrap_or_default();
                    into.ok_or(ReplyViolation::Data)?.copy_from_slice(from);
                    self.skip(count);
                    range.start += count;
                    if !range.is_empty() {
                        self.expected = Expected::Data { slot, range, is_last };
                        return Ok(None);
                    }
                    (slot, is_last)
                }
                Expected::Chunk { slot, kind, length, is_last } => {
                    let needed = match kind {
                        OFFSET_DATA => 8,
                        BLOCK_STATUS => 4,
                        _ => length as usize,
                    };
                    let Some(payload) = self.staged().get(..needed) else { return Ok(None) };
                    let task = tasks.get_mut(slot).ok_or(ReplyViolation::Data)?;
                    let wrong = ReplyViolation::Chunk { kind, length };
                    match kind {
                        NONE => {}
                        BLOCK_STATUS => {
                            let context = payload.first_chunk::<4>().ok_or(wrong)?;
                            if Some(u32::from_be_bytes(*context)) != self.allocation || !task.expect_status()
                            {
                                return Err(wrong);
                            }
                            self.skip(needed);
                            let length = length.saturating_sub(4);
                            self.expected = Expected::Extents { slot, length, is_last };
                            continue;
                        }
                        OFFSET_DATA | OFFSET_HOLE => {
                            let (offset, rest) = payload.split_first_chunk::<8>().ok_or(wrong)?;
                            let offset = u64::from_be_bytes(*offset);
                            if kind == OFFSET_DATA {
                                let range = task.expect(offset, u64::from(length).saturating_sub(8))?;
                                self.skip(needed);
                                self.expected = Expected::Data { slot, range, is_last };
                                continue;
                            }
                            let zeroed = rest.first_chunk::<4>().ok_or(wrong)?;
                            let range = task.expect(offset, u32::from_be_bytes(*zeroed).into())?;
                            task.memory.bytes_mut().get_mut(range).ok_or(wrong)?.fill(0);
                        }
                        _ => {
                            let errno = payload.first_chunk::<4>().ok_or(wrong)?;
                            task.set_error(u32::from_be_bytes(*errno).max(1));
                        }
                    }
                    self.skip(needed);
                    (slot, is_last)
                }
                Expected::Extents { slot, length, is_last } => {
                    let task = tasks.get_mut(slot).ok_or(ReplyViolation::Data)?;
                    let count = (length as usize).min(self.staged().len()) / EXTENT_BYTES as usize;
                    let taken = count * EXTENT_BYTES as usize;
                    for extent in self.staged().get(..taken).unwrap_or_default().as_chunks::<8>().0 {
                        let [a, b, c, d, status @ ..] = *extent;
                        task.on_extent(u32::from_be_bytes([a, b, c, d]), u32::from_be_bytes(status));
                    }
                    self.skip(taken);
                    let length = length.saturating_sub(u32::try_from(taken).unwrap_or(u32::MAX));
                    if length > 0 {
                        self.expected = Expected::Extents { slot, length, is_last };
                        return Ok(None);
                    }
                    (slot, is_last)
                }
            };
            self.expected = Expected::Head;
            if is_last {
                let task = tasks.get_mut(slot).ok_or(ReplyViolation::Data)?;
                return Ok(Some((slot, task.end_command()?)));
            }
        }
    }

    /// The slot of a reply or chunk that has nothing behind its head, and whether it is the last of its request.
    fn on_head(
        &mut self,
        head: ReceivedHead,
        tasks: &mut Tasks,
    ) -> Result<Option<(u32, bool)>, ReplyViolation> {
        match head {
            ReceivedHead::Simple { errno, cookie } => {
                let (slot, task) = tasks.answered(cookie)?;
                if errno != 0 {
                    task.set_error(errno);
                } else if let Some(range) = task.expect_all() {
                    self.expected = Expected::Data { slot, range, is_last: true };
                    return Ok(None);
                }
                Ok(Some((slot, true)))
            }
            ReceivedHead::Chunk { is_last, kind, cookie, length } => {
                let (slot, _) = tasks.answered(cookie)?;
                let is_valid = match kind {
                    NONE => length == 0 && is_last,
                    OFFSET_DATA => length > 8,
                    OFFSET_HOLE => length == 12,
                    BLOCK_STATUS => {
                        (4 + EXTENT_BYTES..=STATUS_BYTES_MAX).contains(&length) && length % EXTENT_BYTES == 4
                    }
                    kind => kind & IS_ERROR != 0 && (6..=OTHER_BYTES_MAX).contains(&length),
                };
                if !is_valid {
                    return Err(ReplyViolation::Chunk { kind, length });
                }
                self.expected = Expected::Chunk { slot, kind, length, is_last };
                Ok(None)
            }
        }
    }
}
