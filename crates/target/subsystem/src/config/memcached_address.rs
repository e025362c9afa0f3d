//! Addresses of memcached listeners.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

use linux::with_numbered_zone;
use reactor::Listener;

/// Where memcached clients connect: `ADDR:PORT`, or `unix:PATH` with `?mode=0666` for the permissions of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MemcachedAddress {
    /// An address and a port; 0 takes a free one.
    Ip(SocketAddr),
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
    /// Longest path, bytes: the limit of the kernel.
    const PATH_BYTES_MAX: usize = 107;
    /// Permissions unless others are given: the user of the target.
    const MODE: u32 = 0o600;

    /// Its IP address and port, if it has one.
    #[must_use]
    pub fn ip(&self) -> Option<SocketAddr> {
        match self {
            Self::Ip(address) => Some(*address),
            Self::Unix { .. } => None,
        }
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
            Self::Ip(_) => listener.address().into(),
            Self::Unix { .. } => self.clone(),
        }
    }
}

impl fmt::Display for MemcachedAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ip(address) => address.fmt(f),
            Self::Unix { path, mode: Self::MODE } => write!(f, "{}{}", Self::PREFIX, path.display()),
            Self::Unix { path, mode } => write!(f, "{}{}?mode={mode:04o}", Self::PREFIX, path.display()),
        }
    }
}

impl FromStr for MemcachedAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let Some(rest) = text.strip_prefix(Self::PREFIX) else {
            let address = with_numbered_zone(text).ok().and_then(|text| text.parse().ok()).map(Self::Ip);
            return address.ok_or_else(|| format!("expected ADDR:PORT or unix:PATH, not '{text}'"));
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
            ("unix:run/x.sock", "expected an absolute path behind unix:, not 'run/x.sock'"),
            (&long, "the path of a Unix socket has at most 107 bytes, not 108"),
            ("unix:/x?mode=0888", "expected mode=0600 or other permissions behind the ?, not 'mode=0888'"),
            ("unix:/x?mode=7777", "expected mode=0600 or other permissions behind the ?, not 'mode=7777'"),
            ("unix:/x?readonly", "expected mode=0600 or other permissions behind the ?, not 'readonly'"),
        ] {
            assert_eq!(text.parse::<MemcachedAddress>(), Err(problem.to_owned()));
        }
    }
}
