//! TLS of one connection of a host: its keys, its handshake, and the meaning of its errors, without the socket.

pub use security::tls::{HostKeys, IdentityOffer, Stream};

use security::tls::{Alert, ByteSocket, Failure, Session};
use wire::nqn::Nqn;

use crate::link_error::LinkError;
pub use crate::tls_keys::TlsKeys;

/// Whether a handshake with a configured key that failed so may succeed under other identities of the same key. A target
/// that has no key for any of them answers unknown_psk_identity, and decrypt_error if the key is another: neither depends
/// on the identities. A target that ends the handshake at the first identity that it does not know answers anything else.
pub(crate) fn may_need_other_identities(cause: &LinkError) -> bool {
    let LinkError::Tls(Failure::Alert(alert)) = cause else { return false };
    !matches!(*alert, Alert::UNKNOWN_PSK_IDENTITY | Alert::DECRYPT_ERROR)
}

/// TLS between a host's connection and its socket, or none.
#[derive(Debug, Default)]
pub struct ConnectionTls {
    stream: Option<Box<Stream>>,
    /// The key is one that an authentication has generated.
    is_generated: bool,
}

impl ConnectionTls {
    /// That of a socket which was just connected, with keys between this host and this subsystem.
    ///
    /// # Errors
    /// If TLS cannot begin.
    pub fn new(keys: TlsKeys<'_>, host: &Nqn, subsystem: &Nqn) -> Result<Self, LinkError> {
        let session = match keys {
            TlsKeys::None => return Ok(Self::default()),
            TlsKeys::Configured(keys, identities) => {
                let offer = keys.offer(identities, &host.clone().into(), subsystem);
                Session::host(&offer).map_err(LinkError::Tls)?
            }
            TlsKeys::Generated(key) => {
                Session::host(std::slice::from_ref(key)).map_err(LinkError::GeneratedKey)?
            }
        };
        let stream = Some(Box::new(Stream::new(session)));
        Ok(Self { stream, is_generated: matches!(keys, TlsKeys::Generated(_)) })
    }

    /// The stream, which receives and sends nothing before [`handshake`](Self::handshake) has completed; `None` without
    /// TLS.
    #[inline]
    pub fn stream(&mut self) -> Option<&mut Stream> {
        self.stream.as_deref_mut()
    }

    /// Whether there is TLS.
    #[inline]
    #[must_use]
    pub fn is_some(&self) -> bool {
        self.stream.is_some()
    }

    /// Whether input was received from the socket that the stream has not returned yet.
    #[inline]
    #[must_use]
    pub fn has_input(&self) -> bool {
        self.stream.as_ref().is_some_and(|stream| stream.has_input())
    }

    /// Whether the socket may have more than the last receive took, although that was not full.
    #[inline]
    #[must_use]
    pub fn may_have_more(&self) -> bool {
        self.stream.as_ref().is_some_and(|stream| stream.may_have_more())
    }

    /// Whether bytes of TLS itself must be sent.
    #[must_use]
    pub fn has_output(&self) -> bool {
        self.stream.as_ref().is_some_and(|stream| stream.has_output())
    }

    /// Continues the handshake. Returns whether it is complete; without TLS it is.
    ///
    /// # Errors
    /// Why it failed. Bytes of an alert that the socket has taken should still be sent.
    pub fn handshake(&mut self, socket: &mut impl ByteSocket) -> Result<bool, LinkError> {
        let Some(stream) = &mut self.stream else { return Ok(true) };
        let outcome = stream.handshake(socket);
        if let Some(established) = stream.established() {
            tracing::debug!(cipher = %established.cipher, identity = %established.identity, "TLS established");
        }
        outcome.map_err(|error| match LinkError::from(error) {
            LinkError::Tls(failure) if self.is_generated => LinkError::GeneratedKey(failure),
            other => other,
        })
    }

    /// Sends close_notify, if there is TLS and the socket takes it.
    pub fn close(&mut self, socket: &mut impl ByteSocket) {
        if let Some(stream) = &mut self.stream {
            stream.close(socket);
        }
    }
}
