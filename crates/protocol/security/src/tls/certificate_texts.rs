//! The texts that a certificate of a target is made from, and whether clients have to show one of theirs.

use core::fmt;
use core::str::FromStr;

/// Whether clients have to show a certificate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum ClientCertificates {
    /// They are not asked for one.
    #[default]
    Off,
    /// One that is shown must be valid.
    Optional,
    /// Without a valid one the handshake fails.
    Required,
}

/// The error for an unknown word in place of `optional` or `required`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown demand {0:?} for client certificates: write optional or required")]
pub struct UnknownDemand(String);

impl FromStr for ClientCertificates {
    type Err = UnknownDemand;

    fn from_str(text: &str) -> Result<Self, UnknownDemand> {
        match text {
            "optional" => Ok(Self::Optional),
            "required" => Ok(Self::Required),
            _ => Err(UnknownDemand(text.to_owned())),
        }
    }
}

impl fmt::Display for ClientCertificates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Off => "off",
            Self::Optional => "optional",
            Self::Required => "required",
        })
    }
}

/// The texts of a certificate and its key, in PEM (RFC 7468).
#[derive(Clone, Copy)]
pub struct CertificateTexts<'a> {
    /// The certificate, and behind it those that lead to its root.
    pub chain: &'a str,
    /// Its private key.
    pub key: &'a str,
    /// The certificates that those of clients must lead to. `None` if clients are not asked for one.
    pub client_ca: Option<&'a str>,
}

/// Which of the texts an error is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CertificateText {
    /// The certificate chain.
    Chain,
    /// The private key.
    Key,
    /// The certificates of the authorities of clients.
    ClientCa,
}
