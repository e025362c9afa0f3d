//! A connected socket, with or without TLS.

use std::io::IoSliceMut;
use std::os::fd::AsFd;

use host_core::connection_tls::{ConnectionTls, TlsKeys};
use host_core::link_error::LinkError;
use memory::Segment;
use reactor::{Received, Sent, Socket};
use wire::nqn::Nqn;

use crate::waiting::{Interest, reset};

/// The phase of a connection before TLS is established, in words.
pub(crate) const TLS_HANDSHAKE: &str = "the TLS handshake";

/// A connected socket. With TLS it receives and sends nothing before [`secure`](Self::secure) has completed.
#[derive(Debug)]
pub(crate) struct Transport {
    /// Until it is reset.
    socket: Option<Socket>,
    tls: ConnectionTls,
}

impl Transport {
    /// A socket that was just connected, with keys for TLS between this host and this subsystem.
    ///
    /// # Errors
    /// If TLS cannot begin.
    pub(crate) fn new(
        socket: Socket,
        keys: TlsKeys<'_>,
        host: &Nqn,
        subsystem: &Nqn,
    ) -> Result<Self, LinkError> {
        Ok(Self { socket: Some(socket), tls: ConnectionTls::new(keys, host, subsystem)? })
    }

    /// The socket itself.
    #[inline]
    pub(crate) fn socket(&self) -> &Socket {
        self.socket.as_ref().expect("until it is reset")
    }

    /// Whether there is TLS.
    pub(crate) fn has_tls(&self) -> bool {
        self.tls.is_some()
    }

    /// Continues the TLS handshake. Returns whether it is complete; without TLS it is.
    ///
    /// # Errors
    /// Why it failed.
    pub(crate) fn secure(&mut self) -> Result<bool, LinkError> {
        let Self { socket: Some(socket), tls } = self else { return Ok(true) };
        let outcome = tls.handshake(&mut &*socket);
        if outcome.is_err() {
            // The alert: a reset would discard it.
            socket.finish();
        }
        outcome
    }

    /// Receives into several places, in order.
    #[inline]
    pub(crate) fn receive(&mut self, into: &mut [IoSliceMut<'_>]) -> Received {
        let socket = self.socket.as_ref().expect("until it is reset");
        match (self.tls.stream(), into) {
            (None, [one]) => socket.receive(one),
            (None, several) => socket.receive_vectored(several),
            (Some(tls), into) => tls.receive(into, &mut &*socket),
        }
    }

    /// Whether input was received from the socket that [`receive`](Self::receive) has not returned yet.
    #[inline]
    pub(crate) fn has_input(&self) -> bool {
        self.tls.has_input()
    }

    /// Whether the socket may have more than the last [`receive`](Self::receive) took, although that was not full.
    #[inline]
    pub(crate) fn may_have_more(&self) -> bool {
        self.tls.may_have_more()
    }

    /// Sends as much of `segments` as fits.
    #[inline]
    pub(crate) fn send(&mut self, segments: &[Segment<'_>]) -> Sent {
        let socket = self.socket.as_ref().expect("until it is reset");
        match self.tls.stream() {
            None => socket.send(segments, false),
            Some(tls) => tls.send(segments, &mut &*socket),
        }
    }

    /// As [`send`](Self::send) without a copy, which TLS never does. Returns whether a notice will come.
    pub(crate) fn send_zero_copy(&mut self, segments: &[Segment<'_>]) -> (Sent, bool) {
        if self.tls.is_some() {
            return (self.send(segments), false);
        }
        self.socket().send_zero_copy(segments)
    }

    /// Frees the buffers of TLS that are empty.
    #[cold]
    pub(crate) fn shrink(&mut self) {
        if let Some(tls) = self.tls.stream() {
            tls.shrink();
        }
    }

    /// Readiness to wait for. `is_blocked`: the socket did not accept all bytes.
    pub(crate) fn interest(&self, is_blocked: bool) -> Interest<'_> {
        let writable = is_blocked || self.tls.has_output();
        Interest { fd: self.socket().as_fd(), writable, readable: true }
    }

    /// Ends the sending direction.
    pub(crate) fn finish(&mut self) {
        self.close_notify();
        self.socket().finish();
    }

    /// Resets the connection: drops unsent data, and the target notices at once.
    pub(crate) fn reset(mut self) {
        self.socket.take().into_iter().for_each(reset);
    }

    /// The socket of a connection without TLS.
    pub(crate) fn into_socket(mut self) -> Socket {
        self.socket.take().expect("until it is reset")
    }

    fn close_notify(&mut self) {
        if let Self { socket: Some(socket), tls } = self {
            tls.close(&mut &*socket);
        }
    }
}

impl Drop for Transport {
    /// Closes TLS in good order.
    fn drop(&mut self) {
        self.close_notify();
    }
}
