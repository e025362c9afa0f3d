//! Lists of addresses that connections may come from.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

/// An address, or all addresses with the same first bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Prefix {
    /// The first address.
    address: IpAddr,
    /// The bits that count.
    bits: u8,
}

/// Why a text is not a [`Prefix`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PrefixError {
    /// Not an address.
    #[error("'{0}' is no address or prefix: write 192.0.2.7, 10.0.0.0/8 or fd00::/8")]
    Malformed(String),
    /// More bits than an address has.
    #[error("'{text}': the prefix of an address of this kind has 0 to {bits_max} bits")]
    TooLong {
        /// The text.
        text: String,
        /// The bits of an address.
        bits_max: u8,
    },
    /// Bits behind the prefix.
    #[error("'{text}' has bits set behind the first {}: write {network}, or {} for this address alone", network.bits, alone.address)]
    HostBits {
        /// The text.
        text: String,
        /// The prefix that it is in.
        network: Prefix,
        /// Its address alone.
        alone: Prefix,
    },
    /// An IPv4 address in the form of IPv6.
    #[error("'{text}' is an IPv4 address: write {prefix}")]
    Mapped {
        /// The text.
        text: String,
        /// The same in the form of IPv4.
        prefix: Prefix,
    },
}

/// The number of bits of an address.
const fn bits_of(address: IpAddr) -> u8 {
    match address {
        IpAddr::V4(_) => 32,
        IpAddr::V6(_) => 128,
    }
}

impl Prefix {
    /// The prefix with this number of bits that an address is in.
    fn around(address: IpAddr, bits: u8) -> Self {
        let address = match address {
            IpAddr::V4(address) => {
                let kept = u32::MAX.checked_shl(u32::from(32_u8.saturating_sub(bits))).unwrap_or(0);
                Ipv4Addr::from_bits(address.to_bits() & kept).into()
            }
            IpAddr::V6(address) => {
                let kept = u128::MAX.checked_shl(u32::from(128_u8.saturating_sub(bits))).unwrap_or(0);
                Ipv6Addr::from_bits(address.to_bits() & kept).into()
            }
        };
        Self { address, bits }
    }

    /// Whether an address is in it.
    fn has(self, address: IpAddr) -> bool {
        self.address.is_ipv4() == address.is_ipv4() && Self::around(address, self.bits) == self
    }
}

impl FromStr for Prefix {
    type Err = PrefixError;

    fn from_str(text: &str) -> Result<Self, PrefixError> {
        let malformed = || PrefixError::Malformed(text.to_owned());
        let (address, bits) = match text.split_once('/') {
            Some((address, bits)) => (address, Some(bits)),
            None => (text, None),
        };
        let address = address.parse::<IpAddr>().map_err(|_| malformed())?;
        let bits_max = bits_of(address);
        let bits = match bits {
            None => bits_max,
            Some(bits)
                if !bits.is_empty() && bits.len() <= 3 && bits.bytes().all(|byte| byte.is_ascii_digit()) =>
            {
                let bits = bits.parse::<u16>().map_err(|_| malformed())?;
                u8::try_from(bits)
                    .ok()
                    .filter(|bits| *bits <= bits_max)
                    .ok_or_else(|| PrefixError::TooLong { text: text.to_owned(), bits_max })?
            }
            Some(_) => return Err(malformed()),
        };
        let network = Self::around(address, bits);
        if network.address != address {
            let alone = Self { address, bits: bits_max };
            return Err(PrefixError::HostBits { text: text.to_owned(), network, alone });
        }
        // Peers are compared in the form of IPv4, whatever kind of socket they came in through.
        if let (IpAddr::V4(mapped), Some(bits)) = (address.to_canonical(), bits.checked_sub(96))
            && address.is_ipv6()
        {
            return Err(PrefixError::Mapped {
                text: text.to_owned(),
                prefix: Self::around(mapped.into(), bits),
            });
        }
        Ok(network)
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { address, bits } = self;
        if *bits == bits_of(*address) { address.fmt(f) } else { write!(f, "{address}/{bits}") }
    }
}

/// The addresses that connections of a listener may come from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum AllowList {
    /// Any address.
    #[default]
    Any,
    /// Those of one of these prefixes.
    Only(Vec<Prefix>),
}

impl AllowList {
    /// Whether connections from this address are served. A Unix socket has none, and no list.
    #[must_use]
    pub fn admits(&self, address: Option<IpAddr>) -> bool {
        match self {
            Self::Any => true,
            Self::Only(prefixes) => address.is_some_and(|address| {
                let address = address.to_canonical();
                prefixes.iter().any(|prefix| prefix.has(address))
            }),
        }
    }

    /// The prefixes; `None` for any address.
    #[must_use]
    pub fn prefixes(&self) -> Option<Vec<String>> {
        match self {
            Self::Any => None,
            Self::Only(prefixes) => Some(prefixes.iter().map(Prefix::to_string).collect()),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn list(prefixes: &[&str]) -> AllowList {
        AllowList::Only(prefixes.iter().map(|text| text.parse().expect(text)).collect())
    }

    #[test]
    fn addresses_are_compared_by_their_first_bits() {
        let list = list(&["10.0.0.0/8", "fd00::/8", "192.0.2.7", "198.51.100.128/25"]);
        for (address, is_admitted) in [
            ("10.0.0.0", true),
            ("10.255.255.255", true),
            ("11.0.0.0", false),
            ("9.255.255.255", false),
            ("192.0.2.7", true),
            ("192.0.2.8", false),
            ("198.51.100.127", false),
            ("198.51.100.128", true),
            ("fdff::1", true),
            ("fe00::1", false),
            ("::ffff:10.1.2.3", true),
            ("::ffff:11.1.2.3", false),
            ("::10.1.2.3", false),
        ] {
            assert_eq!(list.admits(Some(address.parse().expect(address))), is_admitted, "{address}");
        }
        assert!(!list.admits(None) && AllowList::Any.admits(None));
    }

    #[test]
    fn all_addresses_of_a_kind_are_a_prefix_of_no_bits() {
        let [four, six] = [IpAddr::from([192, 0, 2, 1]), IpAddr::from(Ipv6Addr::LOCALHOST)];
        assert!(list(&["0.0.0.0/0"]).admits(Some(four)) && !list(&["0.0.0.0/0"]).admits(Some(six)));
        assert!(list(&["::/0"]).admits(Some(six)) && !list(&["::/0"]).admits(Some(four)));
    }

    #[test]
    fn mistyped_prefixes_are_refused_with_a_proposal() {
        for (text, error) in [
            (
                "10.0.0.1/8",
                "'10.0.0.1/8' has bits set behind the first 8: write 10.0.0.0/8, or 10.0.0.1 for this address alone",
            ),
            (
                "fd00::1/64",
                "'fd00::1/64' has bits set behind the first 64: write fd00::/64, or fd00::1 for this address alone",
            ),
            ("10.0.0.0/33", "'10.0.0.0/33': the prefix of an address of this kind has 0 to 32 bits"),
            ("::/129", "'::/129': the prefix of an address of this kind has 0 to 128 bits"),
            ("::/999", "'::/999': the prefix of an address of this kind has 0 to 128 bits"),
            ("::ffff:10.0.0.0/104", "'::ffff:10.0.0.0/104' is an IPv4 address: write 10.0.0.0/8"),
            ("::ffff:10.0.0.1", "'::ffff:10.0.0.1' is an IPv4 address: write 10.0.0.1"),
            ("10.0.0/24", "'10.0.0/24' is no address or prefix: write 192.0.2.7, 10.0.0.0/8 or fd00::/8"),
            ("10.0.0.0/", "'10.0.0.0/' is no address or prefix: write 192.0.2.7, 10.0.0.0/8 or fd00::/8"),
            ("10.0.0.0/+8", "'10.0.0.0/+8' is no address or prefix: write 192.0.2.7, 10.0.0.0/8 or fd00::/8"),
            ("localhost", "'localhost' is no address or prefix: write 192.0.2.7, 10.0.0.0/8 or fd00::/8"),
        ] {
            assert_eq!(text.parse::<Prefix>().map_err(|error| error.to_string()), Err(error.to_owned()));
        }
        for text in ["10.0.0.0/8", "192.0.2.7", "fd00::/8", "::/0", "::1"] {
            assert_eq!(text.parse::<Prefix>().map(|prefix| prefix.to_string()), Ok(text.to_owned()));
        }
        assert_eq!("192.0.2.7/32".parse::<Prefix>().map(|prefix| prefix.to_string()), Ok("192.0.2.7".into()));
    }

    proptest! {
        #[test]
        fn an_address_is_in_each_prefix_around_it_and_not_behind_another_bit(address: u32, bits in 0_u8..=32) {
            let prefix = Prefix::around(Ipv4Addr::from_bits(address).into(), bits);
            prop_assert_eq!(prefix.to_string().parse(), Ok(prefix));
            prop_assert!(prefix.has(Ipv4Addr::from_bits(address).into()));
            if bits > 0 {
                let other = address ^ (1 << (32 - u32::from(bits)));
                prop_assert!(!prefix.has(Ipv4Addr::from_bits(other).into()));
            }
        }
    }
}
