//! Configured pre-shared keys of TLS in the interchange format `NVMeTLSkey-1:HH:BASE64:`. wire §22.5

use core::fmt;
use core::str::FromStr;

use zeroize::Zeroizing;

use crate::hash::HashFunction;
use crate::interchange::{self, KeyTextError};
use crate::psk::{self, Cipher, Derivation, Psk, PskKind};
use crate::secret_bytes::SecretBytes;

const PREFIX: &str = "NVMeTLSkey-1";

/// A configured PSK, and the function that makes the retained PSK of it, if any.
#[derive(Clone)]
pub struct TlsKey {
    hash: Option<HashFunction>,
    bytes: SecretBytes,
}

impl TlsKey {
    /// A configured PSK: 32 bytes with SHA-256, 48 with SHA-384, either without a function.
    ///
    /// # Errors
    /// [`KeyTextError::Form`] for another function, [`KeyTextError::Length`].
    pub fn new(hash: Option<HashFunction>, bytes: SecretBytes) -> Result<Self, KeyTextError> {
        let length = bytes.expose().len();
        match (hash, length) {
            (None, 32 | 48) | (Some(HashFunction::Sha256), 32) | (Some(HashFunction::Sha384), 48) => {
                Ok(Self { hash, bytes })
            }
            (None, _) => Err(KeyTextError::Length { length, allowed: "32 or 48" }),
            (Some(HashFunction::Sha256), _) => Err(KeyTextError::Length { length, allowed: "32" }),
            (Some(HashFunction::Sha384), _) => Err(KeyTextError::Length { length, allowed: "48" }),
            (Some(HashFunction::Sha512), _) => Err(KeyTextError::Form { prefix: PREFIX, last: 2 }),
        }
    }

    /// The function that makes the retained PSK; `None`: the configured PSK is the retained one.
    #[must_use]
    pub const fn hash(&self) -> Option<HashFunction> {
        self.hash
    }

    /// Bytes of the configured PSK.
    #[must_use]
    pub fn length_bytes(&self) -> usize {
        self.bytes.expose().len()
    }

    /// The cipher suite that a key of this length is for.
    #[must_use]
    pub fn cipher(&self) -> Cipher {
        if self.length_bytes() == 48 { Cipher::Aes256GcmSha384 } else { Cipher::Aes128GcmSha256 }
    }

    /// CRC-32 of the configured PSK, as its text carries it.
    #[must_use]
    pub fn checksum(&self) -> u32 {
        interchange::crc32(self.bytes.expose())
    }

    /// Equal for equal keys.
    #[cfg(feature = "tls")]
    pub(crate) fn value(&self) -> (Option<u8>, &[u8]) {
        (self.hash.map(HashFunction::id), self.bytes.expose())
    }

    /// The retained PSK of a host.
    #[must_use]
    pub fn retained(&self, host: &str) -> Psk {
        self.retained_by(Derivation::Standard, host)
    }

    /// As [`retained`](Self::retained), derived in this way.
    #[must_use]
    pub fn retained_by(&self, derivation: Derivation, host: &str) -> Psk {
        let cipher = self.cipher();
        let key = match self.hash {
            None => self.bytes.clone(),
            // The configured PSK is as long as the digest, and so is the retained one.
            Some(_) => psk::expand_label(derivation, cipher, &self.bytes, "HostNQN", host.as_bytes()),
        };
        Psk { kind: PskKind::Retained, cipher, key }
    }

    /// The text `NVMeTLSkey-1:HH:BASE64:`, wiped when dropped.
    #[must_use]
    pub fn to_text(&self) -> Zeroizing<String> {
        interchange::to_text(PREFIX, self.hash.map_or(0, HashFunction::id), &self.bytes)
    }
}

impl FromStr for TlsKey {
    type Err = KeyTextError;

    fn from_str(text: &str) -> Result<Self, KeyTextError> {
        let (form, bytes) = interchange::parse(PREFIX, 2, text)?;
        Self::new(HashFunction::from_id(form), bytes)
    }
}

impl fmt::Debug for TlsKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TlsKey({} bytes)", self.length_bytes())
    }
}
