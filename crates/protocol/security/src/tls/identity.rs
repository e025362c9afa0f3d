//! Identities of PSKs: the names that the peer claims. wire §22.5

use core::fmt;
use core::str::FromStr;

use wire::nqn::{HostName, Nqn};

use crate::psk::{Cipher, IdentityVersion, PskKind};

/// An identity of a PSK, taken apart: `NVMe1R01 HOSTNQN SUBNQN DIGEST`. Generated PSKs have identities of version 1 only.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PskIdentity {
    /// Where the PSK comes from.
    pub kind: PskKind,
    /// Version of the text.
    pub version: IdentityVersion,
    /// The cipher suite that the key is for.
    pub cipher: Cipher,
    /// The host that may use it.
    pub host: HostName,
    /// The subsystem that it may use it with.
    pub subsystem: Nqn,
}

/// The error for a text that is no identity of NVMe/TCP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not an identity of NVMe/TCP")]
pub struct NotAnIdentity;

impl FromStr for PskIdentity {
    type Err = NotAnIdentity;

    fn from_str(text: &str) -> Result<Self, NotAnIdentity> {
        let mut words = text.split(' ');
        let mut next = || words.next().ok_or(NotAnIdentity);
        let (kind, version, cipher) = match next()? {
            "NVMe0R01" => (PskKind::Retained, IdentityVersion::Zero, Cipher::Aes128GcmSha256),
            "NVMe0R02" => (PskKind::Retained, IdentityVersion::Zero, Cipher::Aes256GcmSha384),
            "NVMe1R01" => (PskKind::Retained, IdentityVersion::One, Cipher::Aes128GcmSha256),
            "NVMe1R02" => (PskKind::Retained, IdentityVersion::One, Cipher::Aes256GcmSha384),
            "NVMe1G01" => (PskKind::Generated, IdentityVersion::One, Cipher::Aes128GcmSha256),
            "NVMe1G02" => (PskKind::Generated, IdentityVersion::One, Cipher::Aes256GcmSha384),
            _ => return Err(NotAnIdentity),
        };
        let host = next()?.parse::<HostName>().map_err(|_| NotAnIdentity)?;
        let subsystem = next()?.parse::<Nqn>().map_err(|_| NotAnIdentity)?;
        if version == IdentityVersion::One {
            next()?;
        }
        match words.next() {
            None => Ok(Self { kind, version, cipher, host, subsystem }),
            Some(_) => Err(NotAnIdentity),
        }
    }
}

impl fmt::Display for PskIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let version = match self.version {
            IdentityVersion::Zero => 0,
            IdentityVersion::One => 1,
        };
        let kind = if self.kind == PskKind::Generated { ", generated," } else { "" };
        write!(f, "{}{kind} version {version} for {} and {}", self.cipher, self.host, self.subsystem)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_identity_is_taken_apart() {
        let identity = "NVMe1R02 nqn.2014-08.org.nvmexpress:uuid:h nqn.2016-06.io.nvlane:disk digest=="
            .parse::<PskIdentity>()
            .expect("an identity");
        assert_eq!(identity.version, IdentityVersion::One);
        assert_eq!(identity.cipher, Cipher::Aes256GcmSha384);
        assert_eq!(identity.host.to_string(), "nqn.2014-08.org.nvmexpress:uuid:h");
        assert_eq!(identity.subsystem.to_string(), "nqn.2016-06.io.nvlane:disk");
        assert_eq!(identity.kind, PskKind::Retained);
        let generated = "NVMe1G01 nqn.2014-08.org.nvmexpress:uuid:h nqn.2016-06.io.nvlane:disk digest=";
        let generated = generated.parse::<PskIdentity>().expect("an identity");
        assert_eq!((generated.kind, generated.version), (PskKind::Generated, IdentityVersion::One));
        let zero = "NVMe0R01 nqn.2014-08.org.nvmexpress:uuid:h nqn.2016-06.io.nvlane:disk";
        assert_eq!(zero.parse::<PskIdentity>().map(|identity| identity.version), Ok(IdentityVersion::Zero));
    }

    #[test]
    fn other_texts_are_no_identities() {
        for text in [
            "",
            "Client_identity",
            "NVMe1R01",
            "NVMe1R03 nqn.2014-08.org.nvmexpress:uuid:h nqn.2016-06.io.nvlane:disk d",
            "NVMe0G01 nqn.2014-08.org.nvmexpress:uuid:h nqn.2016-06.io.nvlane:disk",
            "NVMe1G03 nqn.2014-08.org.nvmexpress:uuid:h nqn.2016-06.io.nvlane:disk d",
            "NVMe1R01 nqn.2014-08.org.nvmexpress:uuid:h nqn.2016-06.io.nvlane:disk",
            "NVMe0R01 nqn.2014-08.org.nvmexpress:uuid:h nqn.2016-06.io.nvlane:disk d",
            "NVMe0R01 nqn.2014-08.org.nvmexpress:uuid:h",
            "NVMe0R01  nqn.2016-06.io.nvlane:disk",
        ] {
            assert_eq!(text.parse::<PskIdentity>(), Err(NotAnIdentity), "{text}");
        }
    }
}
