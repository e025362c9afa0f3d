//! Ports for the programs that tests and checks start.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Ports below those that Linux gives to outgoing connections (32768 and up, `ip_local_port_range`), so that
/// none of these takes one between our choice and its listener, or while its listener restarts. A connect to such a
/// port without a listener could even be assigned that port as its source, and so connect to itself.
const PORTS: Range<u16> = 20_000..32_000;

/// A loopback address with a port that nothing listens on now, another one at each call.
///
/// # Errors
/// All ports of tests are in use.
pub fn free_address() -> io::Result<SocketAddr> {
    static CALLS: AtomicUsize = AtomicUsize::new(0);
    // Several processes may choose at once: each begins elsewhere.
    let first = (std::process::id() as usize).wrapping_mul(61);
    for _ in PORTS {
        let offset = first.wrapping_add(CALLS.fetch_add(1, Ordering::Relaxed)) % PORTS.len();
        let port = PORTS.start + u16::try_from(offset).expect("a range of 16-bit numbers");
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        if TcpListener::bind(address).is_ok() {
            return Ok(address);
        }
    }
    let text = format!("no free port of 127.0.0.1 from {} to {}", PORTS.start, PORTS.end - 1);
    Err(io::Error::new(io::ErrorKind::AddrInUse, text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_differ_are_free_and_are_never_given_to_outgoing_connections() {
        let range = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap();
        let first_outgoing: u16 = range.split_whitespace().next().unwrap().parse().unwrap();
        let port = free_address().unwrap().port();
        let _taken = TcpListener::bind((Ipv4Addr::LOCALHOST, port + 1)).unwrap();
        let next = free_address().unwrap().port();
        assert!(next != port && next != port + 1, "{port}, {next}");
        assert!(next < first_outgoing, "{next} of {range}");
    }
}
