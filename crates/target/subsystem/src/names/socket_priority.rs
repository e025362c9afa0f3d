//! The priority of a connection's packets, by the address and port that its peer connected to.
//!
//! A network device may divide its queues between classes of packets, and packets choose their class by this number. An
//! accepted socket starts with priority 0, whatever its listener has.

use std::net::{IpAddr, SocketAddr};

/// The priority of connections to one address and port of this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SocketPriority {
    /// The address, or each address of the machine.
    pub address: Option<IpAddr>,
    /// The port.
    pub port: u16,
    /// The priority of the packets that leave.
    pub priority: u8,
}

impl SocketPriority {
    /// Whether it is for connections to this address. A listener for both versions of IP shows an address of version 4
    /// inside one of version 6.
    #[must_use]
    pub fn matches(&self, local: SocketAddr) -> bool {
        self.port == local.port()
            && self.address.is_none_or(|address| address.to_canonical() == local.ip().to_canonical())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_has_the_priority_of_its_local_address_and_port() {
        let at = |text: &str| text.parse::<SocketAddr>().unwrap();
        let one = SocketPriority { address: Some([192, 0, 2, 10].into()), port: 4420, priority: 1 };
        let every = SocketPriority { address: None, port: 11211, priority: 2 };
        for (local, by_one, by_every) in [
            ("192.0.2.10:4420", true, false),
            ("[::ffff:192.0.2.10]:4420", true, false),
            ("192.0.2.11:4420", false, false),
            ("192.0.2.10:4421", false, false),
            ("192.0.2.10:11211", false, true),
            ("[2001:db8::1]:11211", false, true),
        ] {
            assert_eq!((one.matches(at(local)), every.matches(at(local))), (by_one, by_every), "{local}");
        }
    }
}
