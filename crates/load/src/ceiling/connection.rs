//! One end of one connection of the ceiling: messages out, as pieces, and messages in, cut from what is received.

use std::io;

use reactor::{Received, Segment, Sent, Socket};

/// Bytes of a command capsule without data, and of every other header.
const CAPSULE_BYTES: usize = 72;
const HEADER_BYTES: usize = 24;

/// Pieces of one send.
const SEGMENT_COUNT: usize = 256;

/// First byte of everything that is sent: what it is, and so how long.
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

/// Where one side's outgoing bytes come from: a header of each kind, and one payload for all.
pub(super) struct Material {
    headers: Vec<[u8; CAPSULE_BYTES]>,
    payload: Vec<u8>,
}

impl Material {
    pub(super) fn new(io_bytes: usize) -> Self {
        let headers = Message::ALL.map(|message| {
            let mut header = [0; CAPSULE_BYTES];
            header[0] = message as u8;
            header
        });
        Self { headers: headers.into(), payload: vec![0x5a; io_bytes] }
    }
}

/// Messages that wait to be sent, as pieces. What fits into one call leaves in one.
pub(super) struct Outgoing<'a> {
    material: &'a Material,
    segments: Vec<Segment<'a>>,
    /// Bytes of the first piece that are sent.
    sent: usize,
}

impl<'a> Outgoing<'a> {
    pub(super) fn new(material: &'a Material) -> Self {
        Self { material, segments: Vec::new(), sent: 0 }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.segments.is_empty()
    }

    pub(super) fn push(&mut self, message: Message) {
        let header = &self.material.headers[message as usize - 1];
        let payload = Segment::new(&self.material.payload);
        match message {
            Message::Read | Message::WriteByR2t => self.segments.push(Segment::new(header)),
            Message::WriteInCapsule => self.segments.extend([Segment::new(header), payload]),
            Message::H2cData => {
                self.segments.extend([Segment::new(&header[..HEADER_BYTES]), payload]);
            }
            Message::ReadResponse => {
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
    /// The other side has gone.
    Ended,
}

impl Incoming {
    pub(super) fn new() -> Self {
        Self { left: 0, message: Message::Read }
    }

    /// Receives once and calls `each` for each message that is complete.
    pub(super) fn receive(
        &mut self,
        socket: &Socket,
        staging: &mut [u8],
        io_bytes: usize,
        mut each: impl FnMut(Message),
    ) -> io::Result<Took> {
        let count = match socket.receive(staging) {
            Received::Bytes(count) => count,
            Received::Dry => return Ok(Took::Nothing),
            Received::Ended => return Ok(Took::Ended),
            Received::Failed(error) => return Err(error),
        };
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
        Ok(if count == staging.len() { Took::Full } else { Took::All })
    }
}
