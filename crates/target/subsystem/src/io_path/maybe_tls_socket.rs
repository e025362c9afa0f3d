//! A socket with or without TLS, through which plaintext is received and sent.

use std::io::IoSliceMut;

use memory::Segment;
use reactor::{Io, Received, Sent, SocketId};
use security::tls::{ByteSocket, Established, Failure, Stream};

use crate::messages::message::Message;

/// A socket with or without TLS: receives and sends plaintext.
#[derive(Debug)]
pub(crate) struct MaybeTlsSocket {
    id: SocketId,
    tls: Option<Tls>,
}

#[derive(Debug)]
struct Tls {
    stream: Box<Stream>,
    /// Whether the parameters of the handshake were reported.
    is_established: bool,
    /// Whether the failure was reported.
    has_failed: bool,
}

impl MaybeTlsSocket {
    pub(crate) fn new(id: SocketId, stream: Option<Box<Stream>>) -> Self {
        Self { id, tls: stream.map(|stream| Tls { stream, is_established: false, has_failed: false }) }
    }

    /// That of a connection which another reactor has handed over: it has reported its handshake.
    pub(crate) fn taken_over(id: SocketId, stream: Option<Box<Stream>>) -> Self {
        Self { id, tls: stream.map(|stream| Tls { stream, is_established: true, has_failed: false }) }
    }

    #[inline]
    pub(crate) fn id(&self) -> SocketId {
        self.id
    }

    /// Whether it uses TLS.
    #[inline]
    pub(crate) fn is_tls(&self) -> bool {
        self.tls.is_some()
    }

    /// The stream of TLS.
    #[inline]
    pub(crate) fn stream(&self) -> Option<&Stream> {
        self.tls.as_ref().map(|tls| &*tls.stream)
    }

    /// Takes the stream of TLS: to hand the connection over, or because it turned out to be unencrypted.
    pub(crate) fn take_stream(&mut self) -> Option<Box<Stream>> {
        self.tls.take().map(|tls| tls.stream)
    }

    /// Receives plaintext.
    #[inline]
    pub(crate) fn receive<I: Io<Message>>(&mut self, io: &mut I, into: &mut [IoSliceMut<'_>]) -> Received {
        let socket = self.id;
        let Some(tls) = &mut self.tls else { return io.receive(socket, into) };
        let received = tls.stream.receive(into, &mut Below { io: &mut *io, socket });
        if tls.stream.has_output() {
            // Output of a handshake; any other goes with the next send.
            io.await_writable(socket);
        }
        received
    }

    /// Sends plaintext.
    #[inline]
    pub(crate) fn send<I: Io<Message>>(&mut self, io: &mut I, segments: &[Segment<'_>]) -> Sent {
        let socket = self.id;
        match &mut self.tls {
            None => io.send(socket, segments),
            Some(tls) => tls.stream.send(segments, &mut Below { io, socket }),
        }
    }

    /// Sends the rest of a handshake or of a record. [`Sent::Blocked`] if the socket is full.
    #[inline]
    pub(crate) fn flush<I: Io<Message>>(&mut self, io: &mut I) -> Sent {
        let socket = self.id;
        match &mut self.tls {
            Some(tls) if tls.stream.has_output() => tls.stream.flush(&mut Below { io, socket }),
            _ => Sent::Bytes(0),
        }
    }

    /// Sends close_notify, if it uses TLS.
    pub(crate) fn end<I: Io<Message>>(&mut self, io: &mut I) {
        if let Some(tls) = &mut self.tls {
            tls.stream.close(&mut Below { io, socket: self.id });
        }
    }

    /// Whether plaintext waits here while the socket may be silent.
    #[inline]
    pub(crate) fn has_input(&self) -> bool {
        self.stream().is_some_and(Stream::has_input)
    }

    /// The parameters that a handshake with a PSK has agreed on, on the first call after it.
    pub(crate) fn newly_established(&mut self) -> Option<&Established> {
        let tls = self.tls.as_mut()?;
        let established = tls.stream.established()?;
        (!std::mem::replace(&mut tls.is_established, true)).then_some(established)
    }

    /// Why TLS has failed, on the first call after that.
    pub(crate) fn newly_failed(&mut self) -> Option<&Failure> {
        let tls = self.tls.as_mut()?;
        let failure = tls.stream.failure()?;
        (!std::mem::replace(&mut tls.has_failed, true)).then_some(failure)
    }

    /// Frees the buffers of an idle connection.
    pub(crate) fn shrink(&mut self) {
        if let Some(tls) = &mut self.tls {
            tls.stream.shrink();
        }
    }
}

/// The socket below a stream of TLS.
struct Below<'a, I> {
    io: &'a mut I,
    socket: SocketId,
}

impl<I: Io<Message>> ByteSocket for Below<'_, I> {
    fn receive(&mut self, into: &mut [u8]) -> Received {
        self.io.receive(self.socket, &mut [IoSliceMut::new(into)])
    }

    fn send(&mut self, bytes: &[u8]) -> Sent {
        self.io.send(self.socket, &[Segment::new(bytes)])
    }

    fn note_encrypted(&mut self, plaintext: &[u8]) {
        self.io.note_encrypted(self.socket, plaintext);
    }

    fn note_decrypted(&mut self, plaintext: &[u8]) {
        self.io.note_decrypted(self.socket, plaintext);
    }
}
