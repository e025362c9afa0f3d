//! The place of an export: its server and its name, as a URI.

use std::fmt;
use std::path::PathBuf;

use nbd_wire::PORT;

/// Time that a server has for a request unless configured, s: hosts with Linux wait for 30 s.
pub(crate) const NBD_DEADLINE_S_DEFAULT: u32 = 25;

/// Connections to one server unless configured, if it takes several for one client.
pub(crate) const CONNECTION_LIMIT_DEFAULT: u16 = 64;

/// An export of an NBD server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NbdPlace {
    /// The server.
    pub server: NbdServer,
    /// The export's name; empty for the default export.
    pub export: String,
    /// Connections at most. More than one is made only to servers that take several for one client.
    pub connection_limit: u16,
    /// Time that the server has for a request, s.
    pub deadline_s: u32,
}

/// The address of an NBD server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NbdServer {
    /// A name or an IP address (of version 6 without brackets), and a port.
    Tcp(String, u16),
    /// A Unix socket.
    Unix(PathBuf),
}

impl fmt::Display for NbdServer {
    /// The beginning of the URI, without the path of a socket.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(host, port) => {
                let (open, close) = if host.contains(':') { ("[", "]") } else { ("", "") };
                write!(f, "nbd://{open}{host}{close}")?;
                if *port == PORT { Ok(()) } else { write!(f, ":{port}") }
            }
            Self::Unix(_) => f.write_str("nbd+unix://"),
        }
    }
}

impl fmt::Display for NbdPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.server, self.export)?;
        match &self.server {
            NbdServer::Tcp(..) => Ok(()),
            NbdServer::Unix(path) => write!(f, "?socket={}", path.display()),
        }
    }
}
