//! One end of one connection of the ceiling: messages out, as pieces, and messages in, cut from what is received.

use std::io;

use super::{CeilingSpec, STAGING_BYTES};
use reactor::{Received, Segment, Sent, Socket};

/// Bytes of a command capsule without data, and of every other header.
const CAPSULE_BYTES: usize = 72;
const HEADER_BYTES: usize = 24;

/// Received into memory at once, at most: as much as a target does in a turn.
const PLACED_BYTES_MAX: usize = 512 << 10;

/// Pieces of one send.
const SEGMENT_COUNT: usize = 256;

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

    /// # Panics
    /// On a byte that neither side sends.
    fn from_byte(byte: u8) -> Self {
        Self::ALL[usize::from(byte) - 1]
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

/// Where one side's outgoing bytes come from: a header of each kind, and memory for payloads.
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

/// Messages that wait to be sent, as pieces. What fits into one call leaves in one.
pub(super) struct Outgoing<'a> {
    material: &'a Material,
    io_bytes: usize,
    /// Where the next payload begins.
    next: usize,
    segments: Vec<Segment<'a>>,
    /// Bytes of the first piece that are sent.
    sent: usize,
}

impl<'a> Outgoing<'a> {
    pub(super) fn new(material: &'a Material, io_bytes: usize) -> Self {
        Self { material, io_bytes, next: 0, segments: Vec::new(), sent: 0 }
    }

    fn payload(&mut self) -> Segment<'a> {
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
    pub(super) fn flush(&mut self, socket: &Socket) -> io::Result<()> {
        let mut done = 0;
        while done < self.segments.len() {
            let count = (self.segments.len() - done).min(SEGMENT_COUNT);
            let batch = &mut self.segments[done..done + count];
            let whole = batch[0];
            if self.sent > 0 {
                batch[0] = whole.after(self.sent);
            }
            let sent = socket.send(batch, false);
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

/// Cuts received bytes into messages, whose content means nothing.
pub(super) struct Incoming {
    /// Bytes of a message that has begun and not ended.
    left: usize,
    /// What that is.
    message: Message,
    /// Where the data of long messages go, from the first byte to the last and again; empty where they go nowhere.
    memory: Vec<u8>,
    /// Where the next of them go.
    at: usize,
}

/// How a receive went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Took {
    /// Nothing is there.
    Nothing,
    /// All there was.
    All,
    /// As much as fits; there may be more.
    Full,
    /// The other side has closed the connection.
    Ended,
}

impl Incoming {
    pub(super) fn new(memory_bytes: usize) -> Self {
        Self { left: 0, message: Message::Read, memory: vec![1; memory_bytes], at: 0 }
    }

    /// Receives once and calls `each` for each message that is complete.
    pub(super) fn receive(
        &mut self,
        socket: &Socket,
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
        let room = into.len();
        let count = match socket.receive(into) {
            Received::Bytes(count) => count,
            Received::Dry => return Ok(Took::Nothing),
            Received::Ended => return Ok(Took::Ended),
            Received::Failed(error) => return Err(error),
        };
        let took = if count == room { Took::Full } else { Took::All };
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
                self.message = Message::from_byte(staging[at]);
                self.left = self.message.length(io_bytes);
            }
            let taken = self.left.min(count - at);
            (self.left, at) = (self.left - taken, at + taken);
            if self.left == 0 {
                each(self.message);
            }
        }
        Ok(took)
    }
}
