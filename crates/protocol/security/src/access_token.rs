//! A token that both ends of a control connection know: one end sends a challenge, the other proves with an HMAC-SHA-256
//! that it has the token. The token itself never crosses the network.

use core::fmt;
use core::str::FromStr;

use wire::text::to_hex;

use crate::hash::HashFunction;
use crate::secret_bytes::SecretBytes;

/// Random bytes of a generated token.
pub const RANDOM_BYTES: usize = 16;
/// Bytes of a challenge, new for each connection.
pub const CHALLENGE_BYTES: usize = 32;
/// Shortest and longest text of a token, bytes.
pub const TEXT_BYTES_MIN: usize = 16;
/// See [`TEXT_BYTES_MIN`].
pub const TEXT_BYTES_MAX: usize = 256;

/// A token: printable ASCII without spaces.
#[derive(Clone, Debug)]
pub struct AccessToken(SecretBytes);

/// The error of a malformed token. It never has a part of the token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AccessTokenError {
    /// Too short or too long.
    #[error("a token has {TEXT_BYTES_MIN} to {TEXT_BYTES_MAX} characters, and this one has {0}")]
    Length(usize),
    /// A character that is not printable ASCII, or a space.
    #[error("a token has printable ASCII characters without spaces only")]
    Character,
}

impl AccessToken {
    /// The token of these random bytes, which come from the system's generator: its text are their hexadecimal digits.
    #[must_use]
    pub fn from_random(random: &[u8; RANDOM_BYTES]) -> Self {
        Self(to_hex(random).into_bytes().into())
    }

    /// Its text.
    #[must_use]
    pub fn text(&self) -> &str {
        core::str::from_utf8(self.0.expose()).unwrap_or_default()
    }

    /// Proves to the sender of the challenge that this end has the token. A proof is of no use for another `purpose`.
    #[must_use]
    pub fn prove(&self, purpose: &str, challenge: &[u8; CHALLENGE_BYTES]) -> SecretBytes {
        HashFunction::Sha256.hmac(self.0.expose(), &[purpose.as_bytes(), challenge])
    }

    /// Whether a proof shows the token. Takes the same time wherever the proof is wrong.
    #[must_use]
    pub fn is_proven(&self, purpose: &str, challenge: &[u8; CHALLENGE_BYTES], proof: &[u8]) -> bool {
        HashFunction::Sha256.hmac_is(self.0.expose(), &[purpose.as_bytes(), challenge], proof)
    }
}

impl FromStr for AccessToken {
    type Err = AccessTokenError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if !(TEXT_BYTES_MIN..=TEXT_BYTES_MAX).contains(&text.len()) {
            return Err(AccessTokenError::Length(text.chars().count()));
        }
        if !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(AccessTokenError::Character);
        }
        Ok(Self(text.as_bytes().into()))
    }
}

impl fmt::Display for AccessToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_token_proves_itself_and_only_for_its_challenge_and_purpose() {
        let token = AccessToken::from_random(&[0xa5; RANDOM_BYTES]);
        assert_eq!(token.text(), "a5".repeat(16));
        assert_eq!(token.text().parse::<AccessToken>().unwrap().text(), token.text());
        let proof = token.prove("study", &[1; CHALLENGE_BYTES]);
        assert!(token.is_proven("study", &[1; CHALLENGE_BYTES], proof.expose()));
        assert!(!token.is_proven("study", &[2; CHALLENGE_BYTES], proof.expose()));
        assert!(!token.is_proven("other", &[1; CHALLENGE_BYTES], proof.expose()));
        assert!(!token.is_proven("study", &[1; CHALLENGE_BYTES], &proof.expose()[..31]));
        assert!(!token.is_proven("study", &[1; CHALLENGE_BYTES], &[]));
        let other = AccessToken::from_random(&[0xa4; RANDOM_BYTES]);
        assert!(!other.is_proven("study", &[1; CHALLENGE_BYTES], proof.expose()));
    }

    #[test]
    fn wrong_texts_are_refused_and_never_shown() {
        assert_eq!("short".parse::<AccessToken>().unwrap_err(), AccessTokenError::Length(5));
        assert_eq!("x".repeat(257).parse::<AccessToken>().unwrap_err(), AccessTokenError::Length(257));
        assert_eq!("sixteen char acters".parse::<AccessToken>().unwrap_err(), AccessTokenError::Character);
        let token: AccessToken = "0123456789abcdef".parse().unwrap();
        assert!(!format!("{token:?}").contains("0123"));
    }
}
