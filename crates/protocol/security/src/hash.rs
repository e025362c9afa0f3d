//! Hash functions of authentication, and their uses.

use core::fmt;

use hmac::digest::KeyInit;
use hmac::{EagerHash, Hmac, Mac};
use sha2::{Digest, Sha256, Sha384, Sha512};
use zeroize::Zeroize;

use crate::secret_bytes::SecretBytes;

/// A hash function. wire §22.3
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs)]
pub enum HashFunction {
    Sha256,
    Sha384,
    Sha512,
}

/// Bytes of the longest digest.
pub const DIGEST_BYTES_MAX: usize = 64;

impl HashFunction {
    /// All of them, the shortest first.
    pub const ALL: [Self; 3] = [Self::Sha256, Self::Sha384, Self::Sha512];

    /// The function with this identifier, which messages and both text forms of keys share.
    #[must_use]
    pub const fn from_id(id: u8) -> Option<Self> {
        match id {
            1 => Some(Self::Sha256),
            2 => Some(Self::Sha384),
            3 => Some(Self::Sha512),
            _ => None,
        }
    }

    /// Its identifier.
    #[must_use]
    pub const fn id(self) -> u8 {
        match self {
            Self::Sha256 => 1,
            Self::Sha384 => 2,
            Self::Sha512 => 3,
        }
    }

    /// Bytes of a digest.
    #[must_use]
    pub const fn digest_bytes(self) -> usize {
        match self {
            Self::Sha256 => 32,
            Self::Sha384 => 48,
            Self::Sha512 => 64,
        }
    }

    /// The digest of secret data.
    pub(crate) fn digest(self, data: &[u8]) -> SecretBytes {
        #[inline(never)]
        fn run<D: Digest>(data: &[u8]) -> SecretBytes {
            let mut digest = D::digest(data);
            let secret = SecretBytes::from(digest.as_slice());
            digest.as_mut_slice().zeroize();
            secret
        }
        let _wiped = StackWiped;
        match self {
            Self::Sha256 => run::<Sha256>(data),
            Self::Sha384 => run::<Sha384>(data),
            Self::Sha512 => run::<Sha512>(data),
        }
    }

    /// HMAC of the concatenated parts.
    pub(crate) fn hmac(self, key: &[u8], parts: &[&[u8]]) -> SecretBytes {
        #[inline(never)]
        fn run<D: EagerHash>(key: &[u8], parts: &[&[u8]]) -> SecretBytes {
            let mut tag = mac::<D>(key, parts).finalize().into_bytes();
            let secret = SecretBytes::from(tag.as_slice());
            tag.as_mut_slice().zeroize();
            secret
        }
        let _wiped = StackWiped;
        match self {
            Self::Sha256 => run::<Sha256>(key, parts),
            Self::Sha384 => run::<Sha384>(key, parts),
            Self::Sha512 => run::<Sha512>(key, parts),
        }
    }

    /// Whether `expected` is the HMAC of the concatenated parts. Takes the same time wherever they differ.
    pub(crate) fn hmac_is(self, key: &[u8], parts: &[&[u8]], expected: &[u8]) -> bool {
        #[inline(never)]
        fn run<D: EagerHash>(key: &[u8], parts: &[&[u8]], expected: &[u8]) -> bool {
            mac::<D>(key, parts).verify_slice(expected).is_ok()
        }
        let _wiped = StackWiped;
        match self {
            Self::Sha256 => run::<Sha256>(key, parts, expected),
            Self::Sha384 => run::<Sha384>(key, parts, expected),
            Self::Sha512 => run::<Sha512>(key, parts, expected),
        }
    }
}

/// Overwrites the stack below, when dropped. The libraries wipe the state of a hash function when it is dropped, but
/// not the copies that its moves leave behind: the last bytes that it took in, be they of a password, and the block of
/// a key.
struct StackWiped;

impl Drop for StackWiped {
    #[inline(never)]
    fn drop(&mut self) {
        // Above what the computation uses, also in a build without optimizations.
        const BYTES: usize = 4096;
        let mut room = [0_u8; BYTES];
        core::hint::black_box(&mut room);
    }
}

#[expect(clippy::expect_used, reason = "HMAC has no key that it cannot use")]
fn mac<D: EagerHash>(key: &[u8], parts: &[&[u8]]) -> Hmac<D> {
    let mut mac = Hmac::<D>::new_from_slice(key).expect("a key of any length");
    for part in parts {
        mac.update(part);
    }
    mac
}

impl fmt::Display for HashFunction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Sha256 => "SHA-256",
            Self::Sha384 => "SHA-384",
            Self::Sha512 => "SHA-512",
        })
    }
}
