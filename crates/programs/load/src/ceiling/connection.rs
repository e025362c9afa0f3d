//! One end of one connection of the ceiling: messages out, as pieces, and messages in, cut from received bytes.

use std::io;

use super::blocks::Walk;
use super::channel::Channel;
use super::{CeilingSpec, STAGING_BYTES};
use host::Receive;
use memory::Segment;
use reactor::{Received, Sent};

/// Bytes of a command capsule without data, and of every other header.
const CAPSULE_BYTES: usize = 72;
const HEADER_BYTES: usize = 24;

/// Bytes of the common part of a header.
const COMMON_BYTES: usize = 8;

/// Received into memory at once, at most: as much as a target does in a turn.
const PLACED_BYTES_MAX: usize = 512 << 10;

/// Receives of one turn, where each brings a part of a PDU.
const PART_COUNT_MAX: usize = 1024;

/// Pieces of one send.
const SEGMENT_COUNT: usize = 256;

/// The side that sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sender {
    Near,
    Far,
}

/// The other side broke the form of the exchange.
pub(super) fn wrong(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

/// First byte of every message: its kind, which determines its length.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Message {
    Read = 1,
    WriteInCapsule,
    WriteByR2t,
    H2cData,
    ReadResponse,
    WriteResponse,
    R2t,
}

impl Message {
    pub(super) const ALL: [Self; 7] = [
        Self::Read,
        Self::WriteInCapsule,
        Self::WriteByR2t,
        Self::H2cData,
        Self::ReadResponse,
        Self::WriteResponse,
        Self::R2t,
    ];

    /// The message that begins with this byte, if `sender` sends it.
    fn from_byte(byte: u8, sender: Sender) -> Option<Self> {
        let message = *Self::ALL.get(usize::from(byte).checked_sub(1)?)?;
        (message.sender() == sender).then_some(message)
    }

    fn sender(self) -> Sender {
        match self {
            Self::Read | Self::WriteInCapsule | Self::WriteByR2t | Self::H2cData => Sender::Near,
            Self::ReadResponse | Self::WriteResponse | Self::R2t => Sender::Far,
        }
    }

    /// Bytes before the data, if it has any.
    fn data_offset(self) -> Option<usize> {
        match self {
            Self::WriteInCapsule => Some(CAPSULE_BYTES),
            Self::H2cData | Self::ReadResponse => Some(HEADER_BYTES),
            Self::Read | Self::WriteByR2t | Self::WriteResponse | Self::R2t => None,
        }
    }

    /// Bytes from `at` on that are received at once by a host that receives PDU by PDU: the common header, the rest of
    /// the header, the data.
    fn part(self, at: usize, io_bytes: usize) -> usize {
        let data = if self == Self::ReadResponse { io_bytes } else { 0 };
        let second = HEADER_BYTES + data;
        let ends = [COMMON_BYTES, HEADER_BYTES, second, second + COMMON_BYTES, second + HEADER_BYTES];
        ends.into_iter().find(|&end| end > at).map_or(1, |end| end - at)
    }

    fn length(self, io_bytes: usize) -> usize {
        match self {
            Self::Read | Self::WriteByR2t => CAPSULE_BYTES,
            Self::WriteInCapsule => CAPSULE_BYTES + io_bytes,
            Self::H2cData => HEADER_BYTES + io_bytes,
            Self::ReadResponse => 2 * HEADER_BYTES + io_bytes,
            Self::WriteResponse | Self::R2t => HEADER_BYTES,
        }
    }
}

/// Source of one side's outgoing bytes: a header of each kind, and memory for payloads.
pub(super) struct Material {
    headers: Vec<[u8; CAPSULE_BYTES]>,
    payload: Vec<u8>,
}

impl Material {
    /// One for all connections, or one for each if they have memory of their own.
    pub(super) fn of(spec: &CeilingSpec) -> Vec<Self> {
        let count = if spec.memory_bytes == 0 { 1 } else { spec.connections.max(1) };
        (0..count).map(|_| Self::new(spec.memory_bytes.max(spec.io_bytes as usize))).collect()
    }

    fn new(payload_bytes: usize) -> Self {
        let headers = Message::ALL.map(|message| {
            let mut header = [0; CAPSULE_BYTES];
            header[0] = message as u8;
            header
        });
        Self { headers: headers.into(), payload: vec![0x5a; payload_bytes] }
    }
}

/// Messages that wait to be sent, as pieces. Pieces that fit into one call leave in one.
pub(super) struct Outgoing<'a> {
    material: &'a Material,
    io_bytes: usize,
    /// Where the next payload begins.
    next: usize,
    segments: Vec<Segment<'a>>,
    /// Where payloads come from in place of the material.
    blocks: Option<Walk<'a>>,
    /// Bytes of the first piece that are sent.
    sent: usize,
}

impl<'a> Outgoing<'a> {
    pub(super) fn new(material: &'a Material, io_bytes: usize, blocks: Option<Walk<'a>>) -> Self {
        Self { material, io_bytes, next: 0, segments: Vec::new(), blocks, sent: 0 }
    }

    fn payload(&mut self) -> Segment<'a> {
        if let Some(blocks) = &mut self.blocks {
            return blocks.next();
        }
        if self.next + self.io_bytes > self.material.payload.len() {
            self.next = 0;
        }
        let start = self.next;
        self.next += self.io_bytes;
        Segment::new(&self.material.payload[start..self.next])
    }

    pub(super) fn is_empty(&self) -> bool {
        self.segments.is_empty()
    }

    /// Pieces that wait.
    pub(super) fn piece_count(&self) -> usize {
        self.segments.len()
    }

    pub(super) fn push(&mut self, message: Message) {
        let header = &self.material.headers[message as usize - 1];
        match message {
            Message::Read | Message::WriteByR2t => self.segments.push(Segment::new(header)),
            Message::WriteInCapsule => {
                let payload = self.payload();
                self.segments.extend([Segment::new(header), payload]);
            }
            Message::H2cData => {
                let payload = self.payload();
                self.segments.extend([Segment::new(&header[..HEADER_BYTES]), payload]);
            }
            Message::ReadResponse => {
                let payload = self.payload();
                let trailer = Segment::new(&header[HEADER_BYTES..2 * HEADER_BYTES]);
                self.segments.extend([Segment::new(&header[..HEADER_BYTES]), payload, trailer]);
            }
            Message::WriteResponse | Message::R2t => {
                self.segments.push(Segment::new(&header[..HEADER_BYTES]));
            }
        }
    }

    /// Sends as much as the socket takes.
    pub(super) fn flush(&mut self, channel: &mut Channel) -> io::Result<()> {
        let mut done = 0;
        while done < self.segments.len() {
            let count = (self.segments.len() - done).min(SEGMENT_COUNT);
            let batch = &mut self.segments[done..done + count];
            let whole = batch[0];
            if self.sent > 0 {
                batch[0] = whole.after(self.sent);
            }
            let sent = channel.send(batch);
            batch[0] = whole;
            let mut bytes = match sent {
                Sent::Bytes(bytes) => bytes + self.sent,
                Sent::Blocked => break,
                Sent::Failed(error) => return Err(error),
            };
            let first = done;
            while done < first + count && bytes >= self.segments[done].len() {
                bytes -= self.segments[done].len();
                done += 1;
            }
            self.sent = bytes;
            if done < first + count {
                break;
            }
        }
        self.segments.drain(..done);
        Ok(())
    }
}

/// Cuts received bytes into messages, whose content is ignored.
pub(super) struct Incoming<'a> {
    /// The side that sends them.
    sender: Sender,
    /// Bytes of a message that has begun and not ended.
    left: usize,
    /// The kind of that message.
    message: Message,
    /// Memory for the data of long messages, used from the first byte to the last and again; empty if the data is
    /// dropped.
    memory: Vec<u8>,
    /// Offset of the next data in it.
    at: usize,
    receives: Receive,
    /// Blocks that the data of writes is copied to, if there are any.
    blocks: Option<Walk<'a>>,
}

/// Outcome of a receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Took {
    /// Nothing is there.
    Nothing,
    /// All available bytes.
    All,
    /// As much as fits, or as TLS gives at once; there may be more.
    Full,
    /// The other side has closed the connection.
    Ended,
}

impl<'a> Incoming<'a> {
    /// Of messages that `sender` sends.
    pub(super) fn new(
        sender: Sender,
        memory_bytes: usize,
        receives: Receive,
        blocks: Option<Walk<'a>>,
    ) -> Self {
        let memory = vec![1; memory_bytes];
        Self { sender, left: 0, message: Message::Read, memory, at: 0, receives, blocks }
    }

    /// Receives once, or PDU by PDU as long as there is something, and calls `each` for each message that is complete.
    pub(super) fn receive(
        &mut self,
        channel: &mut Channel,
        staging: &mut [u8],
        io_bytes: usize,
        mut each: impl FnMut(Message),
    ) -> io::Result<Took> {
        if self.receives == Receive::Staging {
            return self.receive_once(channel, staging, io_bytes, each);
        }
        for count in 0..PART_COUNT_MAX {
            let part = match self.left {
                0 => COMMON_BYTES,
                left => self.message.part(self.message.length(io_bytes) - left, io_bytes),
            };
            let room = part.min(staging.len());
            match self.receive_once(channel, &mut staging[..room], io_bytes, &mut each)? {
                Took::Nothing if count > 0 => return Ok(Took::All),
                // The first part of a message, or a part of one.
                Took::All | Took::Full => {}
                other => return Ok(other),
            }
        }
        Ok(Took::Full)
    }

    fn receive_once(
        &mut self,
        channel: &mut Channel,
        staging: &mut [u8],
        io_bytes: usize,
        mut each: impl FnMut(Message),
    ) -> io::Result<Took> {
        let is_placed = self.left >= STAGING_BYTES && !self.memory.is_empty();
        let into = if is_placed {
            let end = self.memory.len().min(self.at + self.left.min(PLACED_BYTES_MAX));
            &mut self.memory[self.at..end]
        } else {
            &mut *staging
        };
        let (received, may_have_more) = channel.receive(into);
        let count = match received {
            Received::Bytes(count) => count,
            Received::Dry => return Ok(Took::Nothing),
            Received::Ended => return Ok(Took::Ended),
            Received::Failed(error) => return Err(error),
        };
        let took = if may_have_more { Took::Full } else { Took::All };
        if is_placed {
            self.left -= count;
            self.at = (self.at + count) % self.memory.len();
            if self.left == 0 {
                each(self.message);
            }
            return Ok(took);
        }
        let mut at = 0;
        while at < count {
            if self.left == 0 {
                self.message = Message::from_byte(staging[at], self.sender)
                    .ok_or_else(|| wrong("the other side sends no message of a ceiling"))?;
                self.left = self.message.length(io_bytes);
            }
            let taken = self.left.min(count - at);
            if let (Some(blocks), Some(offset)) = (&mut self.blocks, self.message.data_offset()) {
                let before = self.message.length(io_bytes) - self.left;
                let header = offset.saturating_sub(before).min(taken);
                if before + header == offset {
                    blocks.advance();
                }
                if before + header >= offset {
                    blocks.copy_in(before + header - offset, &staging[at + header..at + taken]);
                }
            }
            (self.left, at) = (self.left - taken, at + taken);
            if self.left == 0 {
                each(self.message);
            }
        }
        Ok(took)
    }
}
