//! The keys with which a connection of a host may begin TLS.

use crate::authentication::TlsPsk;
use crate::connection_tls::{HostKeys, IdentityOffer};

/// The keys that a connection may use for TLS.
#[derive(Clone, Copy, Debug)]
pub enum TlsKeys<'a> {
    /// No TLS.
    None,
    /// A configured one, under these identities.
    Configured(&'a HostKeys, IdentityOffer),
    /// One that an authentication has generated.
    Generated(&'a TlsPsk),
}

impl<'a> TlsKeys<'a> {
    /// The generated key if there is one, else the configured one under these identities.
    #[must_use]
    pub fn of(
        configured: Option<&'a HostKeys>,
        identities: IdentityOffer,
        generated: Option<&'a TlsPsk>,
    ) -> Self {
        match (configured, generated) {
            (_, Some(generated)) => Self::Generated(generated),
            (Some(configured), None) => Self::Configured(configured, identities),
            (None, None) => Self::None,
        }
    }
}
