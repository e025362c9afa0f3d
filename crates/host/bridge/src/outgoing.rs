//! Replies on their way to the client.

use std::collections::VecDeque;
use std::io::{self, IoSlice};

use reactor::Sent;

use crate::buffers::{Buffer, Pool};
use crate::client_socket::{ClientSocket, SEND_PIECES_MAX};
use crate::nbd::ReplyHead;

/// From this number of pieces on no request is read.
const PIECES_MAX: usize = 256;

#[derive(Debug)]
enum Piece {
    Head(ReplyHead),
    Data(Buffer),
}

impl Piece {
    #[inline]
    fn as_bytes(&self) -> &[u8] {
        match self {
            Self::Head(head) => head.as_bytes(),
            Self::Data(buffer) => buffer.as_bytes(),
        }
    }
}

/// Heads and data, in the order in which they are sent.
#[derive(Debug)]
pub(crate) struct Outgoing {
    pieces: VecDeque<Piece>,
    /// Bytes of the first piece that were sent.
    sent: usize,
    /// The socket took only a part of the last send.
    is_blocked: bool,
    /// The client is gone: nothing is kept.
    is_closed: bool,
}

impl Outgoing {
    pub(crate) fn new() -> Self {
        let pieces = VecDeque::with_capacity(2 * PIECES_MAX);
        Self { pieces, sent: 0, is_blocked: false, is_closed: false }
    }

    /// Appends a head.
    #[inline]
    pub(crate) fn push_head(&mut self, head: ReplyHead) {
        if !self.is_closed {
            self.pieces.push_back(Piece::Head(head));
        }
    }

    /// Appends data. Its buffer goes to the pool once it is sent.
    #[inline]
    pub(crate) fn push_data(&mut self, buffer: Buffer, pool: &mut Pool) {
        if self.is_closed {
            pool.put(buffer);
        } else {
            self.pieces.push_back(Piece::Data(buffer));
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Whether replies wait until the socket takes more.
    pub(crate) fn is_blocked(&self) -> bool {
        self.is_blocked
    }

    /// The socket takes bytes again.
    pub(crate) fn on_writable(&mut self) {
        self.is_blocked = false;
    }

    /// Whether another request may be read.
    pub(crate) fn has_room(&self) -> bool {
        self.pieces.len() < PIECES_MAX
    }

    /// Drops everything, now and from now on.
    pub(crate) fn close(&mut self, pool: &mut Pool) {
        self.is_closed = true;
        self.is_blocked = false;
        for piece in self.pieces.drain(..) {
            if let Piece::Data(buffer) = piece {
                pool.put(buffer);
            }
        }
    }

    /// Sends as much as the socket takes.
    ///
    /// # Errors
    /// The connection is broken.
    #[inline]
    pub(crate) fn send(&mut self, socket: &mut ClientSocket<'_>, pool: &mut Pool) -> io::Result<()> {
        while !self.pieces.is_empty() && !self.is_blocked {
            let mut slices = [IoSlice::new(&[]); SEND_PIECES_MAX];
            let mut offered = 0;
            let mut count = 0;
            for (slice, piece) in slices.iter_mut().zip(&self.pieces) {
                let bytes = &piece.as_bytes()[if count == 0 { self.sent } else { 0 }..];
                *slice = IoSlice::new(bytes);
                offered += bytes.len();
                count += 1;
            }
            let sent = match socket.send(&slices[..count]) {
                Sent::Bytes(sent) => sent,
                Sent::Blocked => 0,
                Sent::Failed(error) => return Err(error),
            };
            self.is_blocked = sent < offered;
            self.on_sent(sent, pool);
        }
        Ok(())
    }

    fn on_sent(&mut self, mut sent: usize, pool: &mut Pool) {
        sent += self.sent;
        while let Some(first) = self.pieces.front() {
            let length = first.as_bytes().len();
            if sent < length {
                break;
            }
            sent -= length;
            if let Some(Piece::Data(buffer)) = self.pieces.pop_front() {
                pool.put(buffer);
            }
        }
        self.sent = sent;
    }
}
