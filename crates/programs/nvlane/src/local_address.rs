//! Addresses of this machine to print and advertise.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

/// An address at which other machines reach a listener: for a wildcard that of an interface, if there is one beside
/// loopback.
pub(crate) fn from_elsewhere(mut address: SocketAddr) -> SocketAddr {
    // A link-local address keeps its zone.
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => outward_v4().map_or(Ipv4Addr::LOCALHOST.into(), IpAddr::V4),
        IpAddr::V6(ip) if ip.is_unspecified() => outward_v6().map_or(Ipv6Addr::LOCALHOST.into(), IpAddr::V6),
        ip => ip,
    };
    address.set_ip(ip);
    address
}

/// An address at which this machine reaches a listener.
pub(crate) fn from_here(mut address: SocketAddr) -> SocketAddr {
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    address.set_ip(ip);
    address
}

/// The source address of packets to other networks, else the first address of an interface.
fn outward_v4() -> Option<Ipv4Addr> {
    // TEST-NET-1: the socket asks the kernel for a route, and nothing is sent.
    let routed =
        match source(SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)), SocketAddr::from(([192, 0, 2, 1], 9))) {
            Some(IpAddr::V4(ip)) => Some(ip),
            _ => None,
        };
    let tables = || std::fs::read_to_string("/proc/net/fib_trie").ok();
    routed.filter(|ip| !ip.is_loopback()).or_else(|| interface_v4(&tables()?))
}

fn outward_v6() -> Option<Ipv6Addr> {
    let documentation = Ipv6Addr::new(0x2001, 0xDB8, 0, 0, 0, 0, 0, 1);
    let routed =
        match source(SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0)), SocketAddr::from((documentation, 9))) {
            Some(IpAddr::V6(ip)) => Some(ip),
            _ => None,
        };
    let tables = || std::fs::read_to_string("/proc/net/if_inet6").ok();
    routed.filter(|ip| !ip.is_loopback()).or_else(|| interface_v6(&tables()?))
}

fn source(from: SocketAddr, to: SocketAddr) -> Option<IpAddr> {
    let socket = UdpSocket::bind(from).ok()?;
    socket.connect(to).ok()?;
    Some(socket.local_addr().ok()?.ip())
}

/// The first address of this machine in the kernel's routes: a line with the address, then one that says "/32 host
/// LOCAL".
fn interface_v4(routes: &str) -> Option<Ipv4Addr> {
    let lines: Vec<&str> = routes.lines().collect();
    let mut pairs = lines.windows(2).filter(|pair| pair[1].contains("host LOCAL"));
    pairs.find_map(|pair| {
        let ip: Ipv4Addr = pair[0].trim_start_matches([' ', '|', '-']).trim().parse().ok()?;
        (!ip.is_loopback()).then_some(ip)
    })
}

/// The first global address of an interface: 32 digits, then its scope in the fourth field.
fn interface_v6(interfaces: &str) -> Option<Ipv6Addr> {
    interfaces.lines().find_map(|line| {
        let mut fields = line.split_ascii_whitespace();
        let (digits, scope) = (fields.next()?, fields.nth(2)?);
        let ip = Ipv6Addr::from(u128::from_str_radix(digits, 16).ok()?);
        (scope == "00").then_some(ip)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROUTES: &str = "\
Main:
  +-- 0.0.0.0/0 3 0 5
     |-- 0.0.0.0
        /0 universe UNICAST
Local:
  +-- 0.0.0.0/0 3 0 5
     +-- 127.0.0.0/8 2 0 2
        |-- 127.0.0.1
           /32 host LOCAL
     |-- 192.0.2.17
        /32 host LOCAL
     |-- 192.0.2.255
        /32 link BROADCAST
";

    #[test]
    fn the_address_of_an_interface_is_found() {
        assert_eq!(interface_v4(ROUTES), Some(Ipv4Addr::new(192, 0, 2, 17)));
        assert_eq!(interface_v4("Main:\n"), None);
        let interfaces = "\
00000000000000000000000000000001 01 80 10 80       lo
fe800000000000000000000000000017 02 40 20 80     eth0
20010db8000000000000000000000017 02 40 00 80     eth0
";
        assert_eq!(interface_v6(interfaces), "2001:db8::17".parse().ok());
        assert_eq!(interface_v6("x\n"), None);
    }

    #[test]
    fn only_wildcards_are_replaced() {
        for text in ["192.0.2.1:4420", "[2001:db8::1]:4420", "[fe80::1%2]:4420", "127.0.0.1:4420"] {
            let address = text.parse().expect("well formed");
            assert_eq!((from_elsewhere(address), from_here(address)), (address, address));
        }
        for text in ["0.0.0.0:4420", "[::]:4420"] {
            let address: SocketAddr = text.parse().expect("well formed");
            assert!(!from_elsewhere(address).ip().is_unspecified());
            assert_eq!(from_elsewhere(address).port(), 4420);
            assert!(from_here(address).ip().is_loopback());
        }
    }
}
