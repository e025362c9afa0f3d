//! Addresses of memcached listeners.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

use linux::with_numbered_zone;
use reactor::Listener;

/// Where memcached clients connect: `ADDR:PORT`, with `?partitions` for a port of each partition, or `unix:PATH` with
/// `?mode=0666` for the permissions of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MemcachedAddress {
    /// An address and a port; 0 takes a free one.
    Ip(SocketAddr),
    /// A port for each partition, each with keys of its own: this one and those behind it; 0 takes free ones.
    Partitions(SocketAddr),
    /// One of those ports.
    Partition {
        /// Its address.
        address: SocketAddr,
        /// The number of its partition, from 0.
        number: u16,
    },
    /// A Unix socket.
    Unix {
        /// Its file.
        path: PathBuf,
        /// The permissions of the file.
        mode: u32,
    },
}

impl MemcachedAddress {
    const PREFIX: &str = "unix:";
    const PARTITIONS: &str = "?partitions";
    /// Longest path, bytes: the limit of the kernel.
    const PATH_BYTES_MAX: usize = 107;
    /// Permissions unless others are given: the user of the target.
    const MODE: u32 = 0o600;

    /// Its IP address and port, if it has one.
    #[must_use]
    pub fn ip(&self) -> Option<SocketAddr> {
        match self {
            Self::Ip(address) | Self::Partitions(address) | Self::Partition { address, .. } => Some(*address),
            Self::Unix { .. } => None,
        }
    }

    /// Whether each port of the listener has the keys of one partition.
    #[must_use]
    pub fn is_by_partition(&self) -> bool {
        matches!(self, Self::Partitions(_) | Self::Partition { .. })
    }

    /// The number of the partition whose keys its clients use, if they use only one.
    #[must_use]
    pub fn partition(&self) -> Option<u16> {
        match self {
            Self::Partition { number, .. } => Some(*number),
            _ => None,
        }
    }

    /// The addresses to listen at, with this number of partitions.
    pub(crate) fn of_ports(&self, partition_count: u16) -> Vec<Self> {
        let Self::Partitions(first) = self else { return vec![self.clone()] };
        let port = |number| match first.port() {
            0 => 0,
            // Those that do not fit are refused by the check of the configuration.
            port => port.saturating_add(number),
        };
        let of = |number| Self::Partition { address: with_port(*first, port(number)), number };
        (0..partition_count).map(of).collect()
    }

    /// Whether only one of the two can be listened at: they differ at most in permissions.
    pub(crate) fn is_same_place(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Unix { path: one, .. }, Self::Unix { path: other, .. }) => one == other,
            _ => self == other,
        }
    }

    /// This address with the actual port of its listener.
    pub(crate) fn bound(&self, listener: &Listener) -> Self {
        match self {
            Self::Ip(_) | Self::Partitions(_) => listener.address().into(),
            Self::Partition { number, .. } => {
                Self::Partition { address: listener.address(), number: *number }
            }
            Self::Unix { .. } => self.clone(),
        }
    }
}

impl fmt::Display for MemcachedAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ip(address) | Self::Partition { address, .. } => address.fmt(f),
            Self::Partitions(address) => write!(f, "{address}{}", Self::PARTITIONS),
            Self::Unix { path, mode: Self::MODE } => write!(f, "{}{}", Self::PREFIX, path.display()),
            Self::Unix { path, mode } => write!(f, "{}{}?mode={mode:04o}", Self::PREFIX, path.display()),
        }
    }
}

impl FromStr for MemcachedAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let Some(rest) = text.strip_prefix(Self::PREFIX) else {
            let (address, options) = text.split_at(text.find('?').unwrap_or(text.len()));
            let address = with_numbered_zone(address).ok().and_then(|address| address.parse().ok());
            return match (address, options) {
                (None, _) => Err(format!("expected ADDR:PORT or unix:PATH, not '{text}'")),
                (Some(address), "") => Ok(Self::Ip(address)),
                (Some(address), Self::PARTITIONS) => Ok(Self::Partitions(address)),
                (Some(_), _) => {
                    Err(format!("expected {} or nothing behind the port, not '{options}'", Self::PARTITIONS))
                }
            };
        };
        let (path, options) = rest.split_once('?').unwrap_or((rest, ""));
        if !path.starts_with('/') {
            return Err(format!("expected an absolute path behind unix:, not '{path}'"));
        }
        if path.len() > Self::PATH_BYTES_MAX {
            let max = Self::PATH_BYTES_MAX;
            return Err(format!("the path of a Unix socket has at most {max} bytes, not {}", path.len()));
        }
        let mode = match options {
            "" => Some(Self::MODE),
            _ => options.strip_prefix("mode=").and_then(|mode| u32::from_str_radix(mode, 8).ok()),
        };
        match mode {
            Some(mode) if mode <= 0o777 => Ok(Self::Unix { path: path.into(), mode }),
            _ => Err(format!("expected mode=0600 or other permissions behind the ?, not '{options}'")),
        }
    }
}

fn with_port(mut address: SocketAddr, port: u16) -> SocketAddr {
    address.set_port(port);
    address
}

impl From<SocketAddr> for MemcachedAddress {
    fn from(address: SocketAddr) -> Self {
        Self::Ip(address)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_ip_or_unix() {
        for (text, shown) in [
            ("127.0.0.1:11211", "127.0.0.1:11211"),
            ("[::1]:0", "[::1]:0"),
            ("[::1]:11211?partitions", "[::1]:11211?partitions"),
            ("unix:/run/x.sock", "unix:/run/x.sock"),
            ("unix:/run/x.sock?mode=0600", "unix:/run/x.sock"),
            ("unix:/run/x.sock?mode=666", "unix:/run/x.sock?mode=0666"),
        ] {
            assert_eq!(
                text.parse::<MemcachedAddress>().map(|address| address.to_string()),
                Ok(shown.to_owned())
            );
        }
        let long = format!("unix:/{}", "x".repeat(107));
        for (text, problem) in [
            ("localhost", "expected ADDR:PORT or unix:PATH, not 'localhost'"),
            ("localhost?partitions", "expected ADDR:PORT or unix:PATH, not 'localhost?partitions'"),
            ("[::1]:1?partition", "expected ?partitions or nothing behind the port, not '?partition'"),
            ("unix:/x?partitions", "expected mode=0600 or other permissions behind the ?, not 'partitions'"),
            ("unix:run/x.sock", "expected an absolute path behind unix:, not 'run/x.sock'"),
            (&long, "the path of a Unix socket has at most 107 bytes, not 108"),
            ("unix:/x?mode=0888", "expected mode=0600 or other permissions behind the ?, not 'mode=0888'"),
            ("unix:/x?mode=7777", "expected mode=0600 or other permissions behind the ?, not 'mode=7777'"),
            ("unix:/x?readonly", "expected mode=0600 or other permissions behind the ?, not 'readonly'"),
        ] {
            assert_eq!(text.parse::<MemcachedAddress>(), Err(problem.to_owned()));
        }
    }

    #[test]
    fn each_partition_has_a_port() {
        let ports = |text: &str, count| -> Vec<(String, Option<u16>)> {
            let address = text.parse::<MemcachedAddress>().expect("an address");
            let ports = address.of_ports(count).into_iter();
            ports.map(|port| (port.to_string(), port.partition())).collect()
        };
        let of = |port: &str, number| (format!("127.0.0.1:{port}"), Some(number));
        assert_eq!(ports("127.0.0.1:11211?partitions", 2), [of("11211", 0), of("11212", 1)]);
        assert_eq!(ports("127.0.0.1:0?partitions", 2), [of("0", 0), of("0", 1)]);
        assert_eq!(ports("127.0.0.1:11211", 2), [("127.0.0.1:11211".to_owned(), None)]);
    }
}
