//! Stands in for TLS in a build without the feature `tls`: no value of its keys exists, and every connection is
//! unencrypted.

use wire::nqn::Nqn;

use crate::link_error::LinkError;
pub use crate::tls_keys::TlsKeys;

/// Keys of TLS that a host is configured with: none in this build.
#[derive(Clone, Debug)]
pub enum HostKeys {}

/// The identities under which a host offers a configured key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IdentityOffer {
    /// There is no key to offer.
    #[default]
    None,
}

impl IdentityOffer {
    pub(crate) fn other(self) -> Self {
        self
    }
}

pub(crate) fn may_need_other_identities(_cause: &LinkError) -> bool {
    false
}

/// A stream of TLS over a socket: none in this build.
#[derive(Debug)]
pub enum Stream {}

impl Stream {
    /// Receives plaintext.
    pub fn receive<I: ?Sized, S, R>(&mut self, _into: &mut I, _socket: &mut S) -> R {
        match *self {}
    }

    /// Sends plaintext.
    pub fn send<I: ?Sized, S, R>(&mut self, _segments: &I, _socket: &mut S) -> R {
        match *self {}
    }

    /// Frees buffers that are empty.
    pub fn shrink(&mut self) {
        match *self {}
    }
}

/// TLS between a host's connection and its socket: always none.
#[derive(Debug, Default)]
pub struct ConnectionTls;

impl ConnectionTls {
    /// That of a socket which was just connected.
    ///
    /// # Errors
    /// There is a key, for which this build has no TLS.
    pub fn new(keys: TlsKeys<'_>, _host: &Nqn, _subsystem: &Nqn) -> Result<Self, LinkError> {
        match keys {
            TlsKeys::None => Ok(Self),
            TlsKeys::Configured(..) | TlsKeys::Generated(_) => {
                Err(LinkError::NotBuilt { needed: "TLS", feature: "tls" })
            }
        }
    }

    /// Always `None`.
    #[inline]
    pub fn stream(&mut self) -> Option<&mut Stream> {
        None
    }

    /// Always false.
    #[inline]
    #[must_use]
    pub fn is_some(&self) -> bool {
        false
    }

    /// Always false.
    #[inline]
    #[must_use]
    pub fn has_input(&self) -> bool {
        false
    }

    /// Always false.
    #[inline]
    #[must_use]
    pub fn may_have_more(&self) -> bool {
        false
    }

    /// Always false.
    #[must_use]
    pub fn has_output(&self) -> bool {
        false
    }

    /// A connection without TLS has nothing to negotiate.
    ///
    /// # Errors
    /// None.
    pub fn handshake<S>(&mut self, _socket: &mut S) -> Result<bool, LinkError> {
        Ok(true)
    }

    /// Nothing.
    pub fn close<S>(&mut self, _socket: &mut S) {}
}
