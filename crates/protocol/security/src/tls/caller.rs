//! Callers of a target's control port: TLS with a pre-shared key, under a name in place of a host's NQN.

use core::fmt;
use core::str::FromStr;
use std::sync::Arc;

use wire::nqn::{HostName, Nqn, NqnError};

use super::{Failure, HostKeys, IdentityOffer, Keyring, KnownKey, Session};
use crate::psk::Derivation;
use crate::tls_key::TlsKey;

/// In the place of the subsystem's NQN in identities: no host's key is good for the control port, and none of a caller
/// for a subsystem.
const CONTROL_NQN: &str = "nqn.2026-01.io.nvlane:control";

/// Limit of a caller's name, bytes.
const NAME_BYTES_MAX: usize = 64;

/// The name of a caller: letters, digits, `.`, `_` and `-`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CallerName(String);

/// The error for a text that is no caller's name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the name of a caller has 1 to {NAME_BYTES_MAX} letters, digits, dots, dashes and underscores, such as csi"
)]
pub struct NotACallerName;

impl FromStr for CallerName {
    type Err = NotACallerName;

    fn from_str(text: &str) -> Result<Self, NotACallerName> {
        let is_good = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        match (1..=NAME_BYTES_MAX).contains(&text.len()) && text.bytes().all(is_good) {
            true => Ok(Self(text.to_owned())),
            false => Err(NotACallerName),
        }
    }
}

impl fmt::Display for CallerName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

/// Both names in an identity.
fn names(caller: &CallerName) -> Result<(HostName, Nqn), NqnError> {
    Ok((caller.0.parse()?, CONTROL_NQN.parse()?))
}

impl Keyring {
    /// The keyring of a control port: each caller has a key of its own.
    #[must_use]
    pub fn of_callers(keys: impl IntoIterator<Item = (CallerName, TlsKey)>) -> Self {
        let known = |(name, key): (CallerName, TlsKey)| {
            let (host, subsystem) = names(&name).ok()?;
            Some(KnownKey { subsystem: Some(subsystem), host: Some(host), key })
        };
        Self::new(keys.into_iter().filter_map(known).collect())
    }
}

impl Session {
    /// A session of a caller, as the host.
    ///
    /// # Errors
    /// If the library cannot use the key.
    pub fn caller(name: &CallerName, key: TlsKey) -> Result<Self, Failure> {
        let Ok((host, subsystem)) = names(name) else { return Err(Failure::NoProof) };
        let keys = HostKeys { key, derivation: Derivation::Standard };
        Self::host(&keys.offer(IdentityOffer::Both, &host, &subsystem))
    }

    /// A session of a control port.
    #[must_use]
    pub fn control_port(callers: Arc<Keyring>) -> Self {
        Self::target(callers)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_words() {
        for name in ["csi", "web-1.example_2", "A"] {
            assert_eq!(name.parse::<CallerName>().expect("a name").to_string(), name);
        }
        for name in ["", "a b", "a/b", "a@b", "\u{e4}", &"x".repeat(65)] {
            assert!(name.parse::<CallerName>().is_err(), "{name}");
        }
    }

    #[test]
    fn a_caller_s_key_is_for_its_name_and_the_control_port_only() {
        let key = |byte| TlsKey::new(None, vec![byte; 32].into()).expect("a key");
        let name = |text: &str| text.parse::<CallerName>().expect("a name");
        let ring = Keyring::of_callers([(name("csi"), key(1)), (name("ops"), key(2))]);
        let find = |caller: &str, subsystem: &str, byte| {
            let keys = HostKeys { key: key(byte), derivation: Derivation::Standard };
            let (host, subsystem) = (caller.parse().expect("a name"), subsystem.parse().expect("a name"));
            ring.find(&keys.offer(IdentityOffer::Both, &host, &subsystem)[0].identity).is_some()
        };
        assert!(find("csi", CONTROL_NQN, 1) && find("ops", CONTROL_NQN, 2));
        assert!(!find("csi", CONTROL_NQN, 2) && !find("other", CONTROL_NQN, 1));
        assert!(!find("csi", "nqn.2016-06.io.nvlane:disk", 1));
    }
}
