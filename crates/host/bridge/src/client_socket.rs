//! The socket of an NBD client, with TLS or without. It does not block.

use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Instant;

use memory::Segment;
use reactor::{Received, Sent};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, readv};
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags, recv, send, sendmsg};
use security::tls::{ByteSocket, ServerCertificate, Session, Stream};

/// Pieces of one send, at most.
pub(crate) const SEND_PIECES_MAX: usize = 64;

const SEND_FLAGS: SendFlags = SendFlags::NOSIGNAL.union(SendFlags::DONTWAIT);

/// Whether the other end has closed a connection.
pub(crate) fn is_gone(socket: BorrowedFd<'_>) -> bool {
    let mut fds = [PollFd::from_borrowed_fd(socket, PollFlags::RDHUP)];
    let gone = PollFlags::HUP | PollFlags::RDHUP | PollFlags::ERR;
    poll(&mut fds, Some(&Timespec::default())).is_ok() && fds[0].revents().intersects(gone)
}

/// A client's socket.
#[derive(Debug)]
pub(crate) struct ClientSocket<'a> {
    below: Below<'a>,
    tls: Option<Box<Stream>>,
}

/// What TLS reads and writes.
#[derive(Clone, Copy, Debug)]
struct Below<'a>(BorrowedFd<'a>);

impl ByteSocket for Below<'_> {
    fn receive(&mut self, into: &mut [u8]) -> Received {
        received(|| recv(self.0, &mut *into, RecvFlags::DONTWAIT).map(|(count, _)| count))
    }

    fn send(&mut self, bytes: &[u8]) -> Sent {
        sent(|| send(self.0, bytes, SEND_FLAGS))
    }
}

#[inline]
fn received(mut receive: impl FnMut() -> Result<usize, Errno>) -> Received {
    loop {
        return match receive() {
            Ok(0) => Received::Ended,
            Ok(count) => Received::Bytes(count),
            Err(Errno::INTR) => continue,
            Err(Errno::AGAIN) => Received::Dry,
            Err(error) => Received::Failed(error.into()),
        };
    }
}

#[inline]
fn sent(mut send: impl FnMut() -> Result<usize, Errno>) -> Sent {
    loop {
        return match send() {
            Ok(count) => Sent::Bytes(count),
            Err(Errno::INTR) => continue,
            Err(Errno::AGAIN) => Sent::Blocked,
            Err(error) => Sent::Failed(error.into()),
        };
    }
}

impl<'a> ClientSocket<'a> {
    /// Without TLS.
    ///
    /// # Errors
    /// The descriptor is no socket.
    pub(crate) fn new(fd: BorrowedFd<'a>) -> io::Result<Self> {
        rustix::io::ioctl_fionbio(fd, true)?;
        Ok(Self { below: Below(fd), tls: None })
    }

    /// The descriptor, to wait for.
    pub(crate) fn fd(&self) -> BorrowedFd<'a> {
        self.below.0
    }

    /// Speaks TLS from now on: the first bytes that are received are those of its handshake.
    pub(crate) fn start_tls(&mut self, certificate: Arc<ServerCertificate>) {
        self.tls = Some(Box::new(Stream::new(Session::target_with_certificate(certificate))));
    }

    /// Receives what has arrived.
    #[inline]
    pub(crate) fn receive(&mut self, into: &mut [IoSliceMut<'_>]) -> Received {
        match &mut self.tls {
            None => received(|| readv(self.below.0, into)),
            Some(stream) => stream.receive(into, &mut self.below),
        }
    }

    /// Whether there is more to receive, although no event of the descriptor says so.
    #[inline]
    pub(crate) fn has_more(&self) -> bool {
        self.tls.as_ref().is_some_and(|stream| stream.has_input() || stream.may_have_more())
    }

    /// Sends as much as fits, of at most [`SEND_PIECES_MAX`] pieces.
    #[inline]
    pub(crate) fn send(&mut self, pieces: &[IoSlice<'_>]) -> Sent {
        let Some(stream) = &mut self.tls else {
            return sent(|| sendmsg(self.below.0, pieces, &mut SendAncillaryBuffer::default(), SEND_FLAGS));
        };
        let mut segments = [Segment::EMPTY; SEND_PIECES_MAX];
        for (segment, piece) in segments.iter_mut().zip(pieces) {
            *segment = Segment::new(piece);
        }
        stream.send(&segments[..pieces.len().min(SEND_PIECES_MAX)], &mut self.below)
    }

    /// Tells the client that no more comes.
    pub(crate) fn close(&mut self) {
        if let Some(stream) = &mut self.tls {
            stream.close(&mut self.below);
        }
    }

    /// Receives at least a byte, until this time. 0 at the end of the stream.
    ///
    /// # Errors
    /// The connection is broken; [`TimedOut`](io::ErrorKind::TimedOut).
    pub(crate) fn read(&mut self, into: &mut [u8], until: Instant) -> io::Result<usize> {
        loop {
            match self.receive(&mut [IoSliceMut::new(into)]) {
                Received::Bytes(count) => return Ok(count),
                Received::Ended => return Ok(0),
                Received::Failed(error) => return Err(error),
                Received::Dry => {}
            }
            let has_output = self.tls.as_ref().is_some_and(|stream| stream.has_output());
            let out = if has_output { PollFlags::OUT } else { PollFlags::empty() };
            self.wait(PollFlags::IN | out, until)?;
        }
    }

    /// Sends all, until this time.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub(crate) fn write_all(&mut self, mut bytes: &[u8], until: Instant) -> io::Result<()> {
        while !bytes.is_empty() {
            match self.send(&[IoSlice::new(bytes)]) {
                Sent::Bytes(count) => bytes = &bytes[count..],
                Sent::Failed(error) => return Err(error),
                Sent::Blocked => self.wait(PollFlags::OUT, until)?,
            }
        }
        Ok(())
    }

    fn wait(&self, events: PollFlags, until: Instant) -> io::Result<()> {
        let left = until.saturating_duration_since(Instant::now());
        let timeout = Timespec { tv_sec: left.as_secs().cast_signed(), tv_nsec: left.subsec_nanos().into() };
        let mut fds = [PollFd::from_borrowed_fd(self.below.0.as_fd(), events)];
        match poll(&mut fds, Some(&timeout)) {
            Ok(0) => Err(io::ErrorKind::TimedOut.into()),
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}
