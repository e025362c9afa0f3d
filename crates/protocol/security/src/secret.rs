//! Secrets of in-band authentication in the representation `DHHC-1:XX:BASE64:`. wire §22.2

use core::fmt;
use core::str::FromStr;

use zeroize::Zeroizing;

pub use crate::interchange::KeyTextError;

use crate::hash::HashFunction;
use crate::interchange;
use crate::secret_bytes::SecretBytes;

const PREFIX: &str = "DHHC-1";
const ALLOWED: &str = "32, 48 or 64";

/// A secret, and the hash function that makes a key of it, if any.
///
/// The function is independent of the negotiated one.
#[derive(Clone)]
pub struct Secret {
    transform: Option<HashFunction>,
    bytes: SecretBytes,
}

impl Secret {
    /// A secret of 32, 48 or 64 bytes.
    ///
    /// # Errors
    /// [`KeyTextError::Length`].
    pub fn new(transform: Option<HashFunction>, bytes: SecretBytes) -> Result<Self, KeyTextError> {
        match bytes.expose().len() {
            32 | 48 | 64 => Ok(Self { transform, bytes }),
            length => Err(KeyTextError::Length { length, allowed: ALLOWED }),
        }
    }

    /// The function that makes a key of the secret; `None`: the secret is the key.
    #[must_use]
    pub const fn transform(&self) -> Option<HashFunction> {
        self.transform
    }

    /// Bytes of the secret.
    #[must_use]
    pub fn length_bytes(&self) -> usize {
        self.bytes.expose().len()
    }

    /// CRC-32 of the secret, as its text carries it.
    #[must_use]
    pub fn checksum(&self) -> u32 {
        interchange::crc32(self.bytes.expose())
    }

    /// The key that the owner of `nqn` proves to have: the host's name for the host's key, the subsystem's for the
    /// controller's.
    ///
    /// Linux before 6.7 truncated or padded it to the length of the secret, so with such a peer the secret needs the
    /// length of the transforming function's digest.
    #[must_use]
    pub fn key_of(&self, nqn: &str) -> SecretBytes {
        match self.transform {
            None => self.bytes.clone(),
            Some(hash) => hash.hmac(self.bytes.expose(), &[nqn.as_bytes(), b"NVMe-over-Fabrics"]),
        }
    }

    /// Whether it is the same secret, in constant time for secrets of one length.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        let (one, other_bytes) = (self.bytes.expose(), other.bytes.expose());
        let difference = one.iter().zip(other_bytes).fold(0, |difference, (a, b)| difference | (a ^ b));
        self.transform == other.transform && one.len() == other_bytes.len() && difference == 0
    }

    /// The text `DHHC-1:XX:BASE64:`, wiped when dropped.
    #[must_use]
    pub fn to_text(&self) -> Zeroizing<String> {
        interchange::to_text(PREFIX, self.transform.map_or(0, HashFunction::id), &self.bytes)
    }
}

impl FromStr for Secret {
    type Err = KeyTextError;

    fn from_str(text: &str) -> Result<Self, KeyTextError> {
        let (form, bytes) = interchange::parse(PREFIX, 3, text)?;
        Self::new(HashFunction::from_id(form), bytes)
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Secret({} bytes)", self.length_bytes())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TEXT: &str = "DHHC-1:01:AQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyAl7OaH:";
    const HOST: &str = "nqn.2014-08.org.nvmexpress:uuid:11111111-2222-3333-4444-555555555555";

    fn error(text: &str) -> String {
        text.parse::<Secret>().expect_err("malformed").to_string()
    }

    /// wire §22.2
    #[test]
    fn a_secret_is_read_written_and_transformed() {
        let secret: Secret = format!(" {TEXT}\n").parse().expect("a secret");
        assert_eq!((secret.transform(), secret.length_bytes()), (Some(HashFunction::Sha256), 32));
        assert_eq!(secret.checksum(), 0x87E6_EC25);
        assert_eq!(*secret.to_text(), TEXT);
        // The known answer of Linux 6.12, which accepted it.
        let key = secret.key_of(HOST);
        assert_eq!(key.expose()[..8], [0x43, 0xC2, 0x6C, 0x6D, 0x50, 0xF0, 0x9A, 0x34]);
    }

    /// hostile A19
    #[test]
    fn a_malformed_secret_is_refused_without_repeating_it() {
        let long = format!("DHHC-1:01:{}:", "A".repeat(300));
        for (text, says) in [
            ("", "does not begin with \"DHHC-1:\""),
            ("DHHC-2:01:AA==:", "does not begin with \"DHHC-1:\""),
            ("DHHC-1", "does not begin with \"DHHC-1:\""),
            ("DHHC-1:", "no form from 00 to 03 after \"DHHC-1:\""),
            (&TEXT.replace(":01:", ":04:"), "no form from 00 to 03 after \"DHHC-1:\""),
            (&TEXT.replace(":01:", ":1:"), "no form from 00 to 03 after \"DHHC-1:\""),
            (&TEXT.replace(":01:", ":+1:"), "no form from 00 to 03 after \"DHHC-1:\""),
            (&TEXT[..TEXT.len() - 1], "does not end with \":\" (cut off?)"),
            (&TEXT.replace('Q', "*"), "the key is not base64"),
            (&TEXT.replace("AQ", "A Q"), "the key is not base64"),
            (&long, "the key is not base64"),
            ("DHHC-1:01:AAAA:", "the checksum is wrong: a character differs from the original"),
            ("DHHC-1:01::", "the checksum is wrong: a character differs from the original"),
            (&TEXT.replace("AQID", "AQIE"), "the checksum is wrong: a character differs from the original"),
        ] {
            assert_eq!(error(text), says, "{text}");
        }
        for length in [0, 31, 33, 49, 65] {
            let error = Secret::new(None, vec![1; length].into()).expect_err("of no such length");
            assert_eq!(error.to_string(), format!("the key has {length} bytes, not 32, 48 or 64"));
        }
    }

    #[test]
    fn debug_shows_no_secret() {
        let secret: Secret = TEXT.parse().expect("a secret");
        assert_eq!(format!("{secret:?} {:?}", secret.key_of(HOST)), "Secret(32 bytes) SecretBytes(32 bytes)");
    }

    proptest! {
        #[test]
        fn any_text_is_refused_or_written_as_it_was(text in "(DHHC-1:)?(0[0-4]:)?[A-Za-z0-9+/=:]{0,100}") {
            if let Ok(secret) = text.parse::<Secret>() {
                prop_assert_eq!(&*secret.to_text(), &text);
            }
        }

        #[test]
        fn a_changed_character_is_noticed(at in 10..58_usize, to in "[A-Za-z0-9+/]") {
            let mut text = TEXT.to_owned();
            text.replace_range(at..=at, &to);
            prop_assert_eq!(text.parse::<Secret>().is_ok(), text == TEXT);
        }
    }
}
