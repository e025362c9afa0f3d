//! Maximum segment size of TCP (RFC 9293 section 3.7.1).

use std::io;
use std::net::IpAddr;
use std::os::fd::BorrowedFd;

use linux::socket_option::{set_tcp, tcp};

/// Maximum segment size of a connection, bytes: data and TCP options of a packet, without its headers. Set before a
/// connect, it limits what this end sends, and, announced in the SYN, what the peer sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MaxSegment(u16);

impl MaxSegment {
    /// Least that Linux takes, bytes.
    pub const BYTES_MIN: u16 = 88;
    /// Most that Linux takes, bytes.
    pub const BYTES_MAX: u16 = 32767;

    /// A limit; `None` outside of what Linux takes.
    #[must_use]
    pub const fn new(bytes: u16) -> Option<Self> {
        if bytes >= Self::BYTES_MIN && bytes <= Self::BYTES_MAX { Some(Self(bytes)) } else { None }
    }

    /// The limit for packets of at most `mtu` bytes to an address: without the headers of IP and TCP. Timestamps, which
    /// Linux adds by default, take 12 of its bytes.
    #[must_use]
    pub fn of_mtu(mtu: u32, peer: IpAddr) -> Option<Self> {
        let header_bytes = if peer.to_canonical().is_ipv4() { 20 + 20 } else { 40 + 20 };
        Self::new(u16::try_from(mtu.checked_sub(header_bytes)?).ok()?)
    }

    /// Bytes.
    #[must_use]
    pub const fn bytes(self) -> u16 {
        self.0
    }

    /// Sets it on a socket that is not connected yet.
    pub(crate) fn set(self, fd: BorrowedFd<'_>) -> io::Result<()> {
        set_tcp(fd, libc::TCP_MAXSEG, self.0.into())
    }
}

/// Data of a full segment that this end of a connection sends, bytes: without options.
pub(crate) fn sent_segment_bytes(fd: BorrowedFd<'_>) -> io::Result<u32> {
    tcp(fd, libc::TCP_MAXSEG).map(|bytes| u32::try_from(bytes).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_what_linux_takes() {
        assert_eq!(MaxSegment::new(87), None);
        assert_eq!(MaxSegment::new(88).map(MaxSegment::bytes), Some(88));
        assert_eq!(MaxSegment::new(32767).map(MaxSegment::bytes), Some(32767));
        assert_eq!(MaxSegment::new(32768), None);
    }

    #[test]
    fn packets_of_an_mtu_have_room_for_headers() {
        let [v4, v6, mapped] =
            ["192.0.2.1", "2001:db8::1", "::ffff:192.0.2.1"].map(|text| text.parse::<IpAddr>().unwrap());
        let of = |mtu, peer| MaxSegment::of_mtu(mtu, peer).map(MaxSegment::bytes);
        assert_eq!((of(1500, v4), of(1500, v6), of(1500, mapped)), (Some(1460), Some(1440), Some(1460)));
        assert_eq!((of(9000, v4), of(9000, v6)), (Some(8960), Some(8940)));
        assert_eq!((of(20, v4), of(100, v4), of(65536, v4)), (None, None, None));
    }
}
