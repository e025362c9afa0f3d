//! A connected socket, in clear or with TLS.

use std::io::IoSliceMut;
use std::os::fd::AsFd;

use reactor::{Received, Segment, Sent, Socket};
use security::psk::TlsPsk;
use security::tls::{HostKeys, Session, Stream};
use wire::nqn::Nqn;

use crate::error::LinkError;
use crate::waiting::{Interest, reset};

/// The phase of a connection before TLS is established, in words.
pub(crate) const TLS_HANDSHAKE: &str = "the TLS handshake";

/// The keys that a connection may use for TLS.
#[derive(Clone, Copy, Debug)]
pub(crate) enum TlsKeys<'a> {
    /// None: in clear.
    None,
    /// A configured one.
    Configured(&'a HostKeys),
    /// One that an authentication has generated.
    Generated(&'a TlsPsk),
}

impl<'a> TlsKeys<'a> {
    /// The generated key if there is one, else the configured one.
    pub(crate) fn of(configured: Option<&'a HostKeys>, generated: Option<&'a TlsPsk>) -> Self {
        match (configured, generated) {
            (_, Some(generated)) => Self::Generated(generated),
            (Some(configured), None) => Self::Configured(configured),
            (None, None) => Self::None,
        }
    }
}

/// A connected socket. With TLS it receives and sends nothing before [`secure`](Self::secure) has completed.
#[derive(Debug)]
pub(crate) struct Transport {
    /// Until it is reset.
    socket: Option<Socket>,
    tls: Option<Box<Stream>>,
    /// TLS uses a key that an authentication has generated.
    is_generated: bool,
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
        let session = match keys {
            TlsKeys::None => None,
            TlsKeys::Configured(keys) => {
                Some(Session::host(&keys.offer(&host.clone().into(), subsystem)).map_err(LinkError::Tls)?)
            }
            TlsKeys::Generated(key) => {
                Some(Session::host(std::slice::from_ref(key)).map_err(LinkError::GeneratedKey)?)
            }
        };
        let tls = session.map(|session| Box::new(Stream::new(session)));
        Ok(Self { socket: Some(socket), tls, is_generated: matches!(keys, TlsKeys::Generated(_)) })
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
        let Self { socket: Some(socket), tls: Some(tls), is_generated } = self else { return Ok(true) };
        let outcome = tls.handshake(&mut &*socket);
        if outcome.is_err() {
            // The alert: a reset would discard it.
            socket.finish();
        }
        if let Some(established) = tls.established() {
            tracing::debug!(cipher = %established.cipher, identity = %established.identity, "TLS established");
        }
        outcome.map_err(|error| match LinkError::from(error) {
            LinkError::Tls(failure) if *is_generated => LinkError::GeneratedKey(failure),
            other => other,
        })
    }

    /// Receives into several places, in order.
    #[inline]
    pub(crate) fn receive(&mut self, into: &mut [IoSliceMut<'_>]) -> Received {
        let socket = self.socket.as_ref().expect("until it is reset");
        match (&mut self.tls, into) {
            (None, [one]) => socket.receive(one),
            (None, several) => socket.receive_vectored(several),
            (Some(tls), into) => tls.receive(into, &mut &*socket),
        }
    }

    /// Whether input was received from the socket that [`receive`](Self::receive) has not returned yet.
    #[inline]
    pub(crate) fn has_input(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.has_input())
    }

    /// Whether the socket may have more than the last [`receive`](Self::receive) took, although that was not full.
    #[inline]
    pub(crate) fn may_have_more(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.may_have_more())
    }

    /// Sends as much of `segments` as fits.
    #[inline]
    pub(crate) fn send(&mut self, segments: &[Segment<'_>]) -> Sent {
        let socket = self.socket.as_ref().expect("until it is reset");
        match &mut self.tls {
            None => socket.send(segments, false),
            Some(tls) => tls.send(segments, &mut &*socket),
        }
    }

    /// As [`send`](Self::send) without a copy, which TLS never does. Returns whether a notice will come.
    pub(crate) fn send_zero_copy(&mut self, segments: &[Segment<'_>]) -> (Sent, bool) {
        match self.tls {
            None => self.socket().send_zero_copy(segments),
            Some(_) => (self.send(segments), false),
        }
    }

    /// Frees the buffers of TLS that are empty.
    #[cold]
    pub(crate) fn shrink(&mut self) {
        if let Some(tls) = &mut self.tls {
            tls.shrink();
        }
    }

    /// Readiness to wait for. `is_blocked`: the socket did not accept all bytes.
    pub(crate) fn interest(&self, is_blocked: bool) -> Interest<'_> {
        let writable = is_blocked || self.tls.as_ref().is_some_and(|tls| tls.has_output());
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

    /// The socket of a connection in clear.
    pub(crate) fn into_socket(mut self) -> Socket {
        self.socket.take().expect("until it is reset")
    }

    fn close_notify(&mut self) {
        if let Self { socket: Some(socket), tls: Some(tls), .. } = self {
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
