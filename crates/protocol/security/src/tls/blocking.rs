//! A session on a stream that blocks, which is read and written as any other.

use std::io::{self, ErrorKind, IoSliceMut, Read, Write};

use memory::Segment;
use reactor::{Received, Sent};

use super::{ByteSocket, Established, Session, Stream};

/// A session on a stream that blocks, such as a TCP connection with timeouts. An end of the stream without
/// close_notify is an end: protocols above have their own lengths.
#[derive(Debug)]
pub struct BlockingStream<S> {
    stream: Stream,
    below: Below<S>,
}

#[derive(Debug)]
struct Below<S>(S);

/// Whether a call may be repeated: it has run into the stream's timeout, or a signal.
fn is_passing(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted)
}

impl<S: Read + Write> ByteSocket for Below<S> {
    fn receive(&mut self, into: &mut [u8]) -> Received {
        match self.0.read(into) {
            Ok(0) => Received::Ended,
            Ok(count) => Received::Bytes(count),
            Err(error) if is_passing(&error) => Received::Dry,
            Err(error) => Received::Failed(error),
        }
    }

    fn send(&mut self, bytes: &[u8]) -> Sent {
        match self.0.write(bytes) {
            Ok(0) => Sent::Blocked,
            Ok(count) => Sent::Bytes(count),
            Err(error) if is_passing(&error) => Sent::Blocked,
            Err(error) => Sent::Failed(error),
        }
    }
}

impl<S: Read + Write> BlockingStream<S> {
    /// A session on a stream.
    #[must_use]
    pub const fn new(session: Session, below: S) -> Self {
        Self { stream: Stream::new(session), below: Below(below) }
    }

    /// Continues the handshake until it is complete; returns whether it is. It is not if the stream's timeout has passed.
    ///
    /// # Errors
    /// The session has failed: the error is a [`Failure`](super::Failure) then; or the stream has.
    pub fn handshake(&mut self) -> io::Result<bool> {
        self.stream.handshake(&mut self.below)
    }

    /// The parameters that the handshake has agreed on, once it is complete.
    #[must_use]
    pub fn established(&self) -> Option<&Established> {
        self.stream.established()
    }

    /// The identity that the peer has offered and not proved.
    #[must_use]
    pub fn claimed(&self) -> Option<&str> {
        self.stream.claimed()
    }

    /// The stream below.
    pub const fn below_mut(&mut self) -> &mut S {
        &mut self.below.0
    }
}

impl<S: Read + Write> Read for BlockingStream<S> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if into.is_empty() {
            return Ok(0);
        }
        match self.stream.receive(&mut [IoSliceMut::new(into)], &mut self.below) {
            Received::Bytes(count) => Ok(count),
            Received::Dry => Err(ErrorKind::WouldBlock.into()),
            Received::Ended => Ok(0),
            Received::Failed(error) => Err(error),
        }
    }
}

impl<S: Read + Write> Write for BlockingStream<S> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self.stream.send(&[Segment::new(bytes)], &mut self.below) {
            Sent::Bytes(count) => Ok(count),
            Sent::Blocked => Err(ErrorKind::WouldBlock.into()),
            Sent::Failed(error) => Err(error),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self.stream.flush(&mut self.below) {
            Sent::Bytes(_) => Ok(()),
            Sent::Blocked => Err(ErrorKind::WouldBlock.into()),
            Sent::Failed(error) => Err(error),
        }
    }
}
