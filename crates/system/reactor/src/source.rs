//! The source of a connection, as limits count it: a machine may have all addresses of an IPv6 network.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

/// Bits of an IPv6 address that name the network: the rest is its owner's choice.
const NETWORK_BITS: u32 = 64;

/// An IPv4 address or the first 64 bits of an IPv6 address; `None` of a peer without an address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Source(Option<IpAddr>);

impl From<IpAddr> for Source {
    fn from(address: IpAddr) -> Self {
        Self(Some(match address.to_canonical() {
            IpAddr::V6(address) => {
                IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & (u128::MAX << NETWORK_BITS)))
            }
            address => address,
        }))
    }
}

impl From<Option<SocketAddr>> for Source {
    fn from(peer: Option<SocketAddr>) -> Self {
        peer.map_or_else(Self::default, |peer| Self::from(peer.ip()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ipv6_network_is_one_source_and_each_ipv4_address_another() {
        let source = |text: &str| Source::from(Some(text.parse::<SocketAddr>().expect("an address")));
        assert_eq!(source("[2001:db8:0:1::1]:1"), source("[2001:db8:0:1:ffff::7]:2"));
        assert_ne!(source("[2001:db8:0:1::1]:1"), source("[2001:db8:0:2::1]:1"));
        assert_eq!(source("192.0.2.1:1"), source("[::ffff:192.0.2.1]:2"));
        assert_ne!(source("192.0.2.1:1"), source("192.0.2.2:1"));
        assert_ne!(source("192.0.2.1:1"), Source::default());
    }
}
