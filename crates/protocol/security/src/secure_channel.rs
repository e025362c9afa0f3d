//! Secure channel concatenation: whether an authentication also generates a pre-shared key of TLS. wire §22.3
//!
//! ```text
//! connection without TLS: Connect ─▶ authentication with SC_C 2 ─▶ both ends have the key, the host closes
//! connection with TLS: handshake with the generated key ─▶ Connect of the admin queue, then of I/O queues
//!                      authentication with SC_C 3 on the admin queue ─▶ another key for connections to come
//! ```

/// The request of a host, by SC_C of its Negotiate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SecureChannel {
    /// The authentication generates no key.
    #[default]
    None,
    /// NEWTLSPSK: a key for TLS, requested on an unencrypted connection.
    NewTlsPsk,
    /// REPLACETLSPSK: another key, requested on a connection with TLS by a generated key, in place of that one.
    ReplaceTlsPsk,
}

impl SecureChannel {
    /// The value of SC_C.
    #[must_use]
    pub const fn code(self) -> u8 {
        match self {
            Self::None => 0,
            Self::NewTlsPsk => 2,
            Self::ReplaceTlsPsk => 3,
        }
    }

    /// The meaning of a value of SC_C; `None` for one that has none.
    #[must_use]
    pub const fn from_code(code: u8) -> Option<Self> {
        match code {
            0 => Some(Self::None),
            2 => Some(Self::NewTlsPsk),
            3 => Some(Self::ReplaceTlsPsk),
            _ => None,
        }
    }

    /// Whether the authentication generates a key.
    #[must_use]
    pub const fn generates_key(self) -> bool {
        !matches!(self, Self::None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// wire §22.3
    #[test]
    fn only_three_values_have_a_meaning() {
        let known = (0..=u8::MAX).filter_map(|code| Some((code, SecureChannel::from_code(code)?)));
        let expected =
            [(0, SecureChannel::None), (2, SecureChannel::NewTlsPsk), (3, SecureChannel::ReplaceTlsPsk)];
        assert_eq!(known.collect::<Vec<_>>(), expected);
        assert!(expected.iter().all(|(code, channel)| channel.code() == *code));
    }
}
