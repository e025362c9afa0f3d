//! The transport of a memcached connection: unencrypted, or through TLS.

use std::io::IoSliceMut;

use reactor::{Io, Received, Segment, Sent, SocketId};
use security::tls::{Failure, Stream, WithCertificate};

use crate::io_path::tls_socket::TlsSocket;
use crate::messages::message::Message;

/// The channel of a connection: receives and sends plaintext as a socket does.
#[derive(Debug)]
pub(super) struct Channel {
    socket: SocketId,
    tls: Option<Tls>,
}

#[derive(Debug)]
struct Tls {
    stream: Box<Stream>,
    /// Whether the failure was reported.
    has_failed: bool,
}

impl Channel {
    pub(super) fn new(socket: SocketId, tls: Option<Box<Stream>>) -> Self {
        Self { socket, tls: tls.map(|stream| Tls { stream, has_failed: false }) }
    }

    pub(super) fn socket(&self) -> SocketId {
        self.socket
    }

    /// Receives plaintext.
    pub(super) fn receive<I: Io<Message>>(&mut self, io: &mut I, into: &mut [IoSliceMut<'_>]) -> Received {
        let socket = self.socket;
        let Some(tls) = &mut self.tls else { return io.receive(socket, into) };
        let received = tls.stream.receive(into, &mut TlsSocket { io: &mut *io, socket });
        if tls.stream.has_output() {
            // Output of a handshake; any other goes with the next send.
            io.await_writable(socket);
        }
        received
    }

    /// Sends plaintext.
    pub(super) fn send<I: Io<Message>>(&mut self, io: &mut I, segments: &[Segment<'_>]) -> Sent {
        let socket = self.socket;
        match &mut self.tls {
            None => io.send(socket, segments),
            Some(tls) => tls.stream.send(segments, &mut TlsSocket { io, socket }),
        }
    }

    /// Sends the rest of a handshake. [`Sent::Blocked`] if the socket is full.
    pub(super) fn flush<I: Io<Message>>(&mut self, io: &mut I) -> Sent {
        let socket = self.socket;
        match &mut self.tls {
            Some(tls) if tls.stream.has_output() => tls.stream.flush(&mut TlsSocket { io, socket }),
            _ => Sent::Bytes(0),
        }
    }

    /// Sends close_notify, and closes the socket.
    pub(super) fn close<I: Io<Message>>(&mut self, io: &mut I) {
        let socket = self.socket;
        if let Some(tls) = self.tls.as_mut().filter(|tls| tls.stream.with_certificate().is_some()) {
            tls.stream.close(&mut TlsSocket { io: &mut *io, socket });
        }
        io.close(socket);
    }

    /// Whether plaintext waits here while the socket may be silent.
    pub(super) fn has_input(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.stream.has_input())
    }

    /// Whether plaintext can be sent and received: at once without TLS, else after the handshake.
    pub(super) fn is_open(&self) -> bool {
        self.tls.as_ref().is_none_or(|tls| tls.stream.with_certificate().is_some())
    }

    /// Whether it uses TLS.
    pub(super) fn is_tls(&self) -> bool {
        self.tls.is_some()
    }

    /// The parameters that TLS has agreed on.
    pub(super) fn agreed(&self) -> Option<&WithCertificate> {
        self.tls.as_ref().and_then(|tls| tls.stream.with_certificate())
    }

    /// Why TLS has failed, on the first call after that.
    pub(super) fn newly_failed(&mut self) -> Option<&Failure> {
        let tls = self.tls.as_mut()?;
        let failure = tls.stream.failure()?;
        (!std::mem::replace(&mut tls.has_failed, true)).then_some(failure)
    }

    /// Frees the buffers of an idle connection.
    pub(super) fn shrink(&mut self) {
        if let Some(tls) = &mut self.tls {
            tls.stream.shrink();
        }
    }
}
