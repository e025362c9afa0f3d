//! Where a target takes control calls: its socket, or its port for callers on other machines. The programs that call have one
//! way to name it, and one to connect.

use std::ffi::OsString;
use std::fmt;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use clap::builder::{OsStringValueParser, TypedValueParser, ValueParser};
use host::security::tls::{BlockingStream, Session};
use host::security::tls_key::TlsKey;
use subsystem::config::{CONTROL_PORT, CallerName};

use crate::secret_argument::source_of;

/// Where a target listens that says nothing else.
pub const CONTROL_SOCKET: &str = "/run/nvlane/control.sock";

/// What names of ports begin with.
const SCHEME: &str = "tls://";

/// The options that name a target to call.
#[derive(Clone, Debug, Args)]
pub struct ControlOptions {
    /// The control socket of the target (its option --control), or its port on another machine (--control-tls), with the name
    /// of this caller there.
    #[arg(
        long,
        value_name = "SOCKET|tls://NAME@HOST:PORT",
        env = "NVLANE_CONTROL",
        default_value = CONTROL_SOCKET,
        value_parser = ControlPlace::parser()
    )]
    pub control: ControlPlace,
    /// File with the key of that name (NVMeTLSkey-1:…, see `nvlane keys generate --tls`), or keyring:NAME. Sockets need none.
    // Made a reference later: an error of the parser would show a key that is given in its place.
    #[arg(long, value_name = "FILE", env = "NVLANE_CONTROL_KEY")]
    pub control_key: Option<PathBuf>,
}

impl ControlOptions {
    /// Those for a socket of this machine.
    #[must_use]
    pub fn of_socket(path: &Path) -> Self {
        Self { control: ControlPlace::Socket(path.to_owned()), control_key: None }
    }

    /// Connects: [`ControlPlace::connect`].
    ///
    /// # Errors
    /// As there.
    pub fn connect(&self, timeout: Duration) -> io::Result<ControlConnection> {
        self.control.connect(self.control_key.as_deref(), timeout)
    }
}

/// Where a target takes control calls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ControlPlace {
    /// A Unix socket.
    Socket(PathBuf),
    /// A port of a machine, and the name of the caller there.
    Port {
        /// The name, to which the key belongs.
        caller: CallerName,
        /// Name or address of the machine, and the port.
        machine: String,
    },
}

impl ControlPlace {
    /// Parses the value of an option.
    #[must_use]
    pub fn parser() -> ValueParser {
        OsStringValueParser::new().try_map(Self::named).into()
    }

    /// The place that a word names.
    ///
    /// # Errors
    /// It begins as the name of a port, and is none.
    pub fn named(word: OsString) -> Result<Self, String> {
        let Some(rest) = word.to_str().and_then(|word| word.strip_prefix(SCHEME)) else {
            return Ok(Self::Socket(word.into()));
        };
        const FORM: &str =
            "write tls://NAME@HOST:PORT, with the name that the target has for this caller's key";
        let (caller, machine) = rest.split_once('@').ok_or(FORM)?;
        let caller = caller.parse::<CallerName>().map_err(|error| error.to_string())?;
        let machine = machine.trim_end_matches('/');
        let has_port = machine.rsplit_once(':').is_some_and(|(before, port)| {
            port.parse::<u16>().is_ok() && (!before.contains(':') || before.ends_with(']'))
        });
        match machine {
            "" => Err(FORM.into()),
            machine if has_port => Ok(Self::Port { caller, machine: machine.into() }),
            machine => Ok(Self::Port { caller, machine: format!("{machine}:{CONTROL_PORT}") }),
        }
    }

    /// The socket, if it is one.
    #[must_use]
    pub fn socket(&self) -> Option<&Path> {
        match self {
            Self::Socket(path) => Some(path),
            Self::Port { .. } => None,
        }
    }

    /// Connects. Reads and writes of the connection end with an error after `timeout`.
    ///
    /// # Errors
    /// It cannot connect: of a port, with the reason.
    pub fn connect(&self, key: Option<&Path>, timeout: Duration) -> io::Result<ControlConnection> {
        match self {
            Self::Socket(path) => {
                let socket = UnixStream::connect(path)?;
                socket.set_read_timeout(Some(timeout))?;
                socket.set_write_timeout(Some(timeout))?;
                Ok(ControlConnection::Socket(socket))
            }
            Self::Port { caller, machine } => {
                let key = key.ok_or_else(|| {
                    io::Error::new(
                        ErrorKind::InvalidInput,
                        "a key is needed: name the file that has the one of this caller, with --control-key",
                    )
                })?;
                let wrong = |why: String| io::Error::new(ErrorKind::InvalidInput, why);
                let key = source_of(key).map_err(|failure| wrong(failure.to_string()))?;
                let key = key.read::<TlsKey>().map_err(wrong)?;
                let socket = connect_to(machine, timeout)?;
                let session = Session::caller(caller, key).map_err(io::Error::other)?;
                let mut stream = BlockingStream::new(session, socket);
                match stream.handshake() {
                    Ok(true) => Ok(ControlConnection::Port(Box::new(stream))),
                    Ok(false) => Err(ErrorKind::TimedOut.into()),
                    Err(error) => Err(io::Error::new(
                        ErrorKind::PermissionDenied,
                        format!(
                            "{error}. The target may know no caller {caller}, or another key of it, or have no control port there \
                             (nvlane target --control-tls)"
                        ),
                    )),
                }
            }
        }
    }

    /// What to do about an error of [`connect`](Self::connect), to be written behind it; empty if nothing is known.
    #[must_use]
    pub fn hint(&self, error: &io::Error) -> &'static str {
        match (self, error.kind()) {
            (Self::Socket(_), ErrorKind::NotFound | ErrorKind::ConnectionRefused) => {
                ": no target serves it. Start one with nvlane target --control SOCKET, or name its socket with --control"
            }
            (Self::Socket(_), ErrorKind::PermissionDenied) => {
                ": this program must run as the target's user, or as root"
            }
            (Self::Port { .. }, ErrorKind::ConnectionRefused) => {
                ": no target listens there. Start one with nvlane target --control-tls ADDR:PORT"
            }
            _ => "",
        }
    }
}

/// Connects to the first address of a machine that answers.
fn connect_to(machine: &str, timeout: Duration) -> io::Result<TcpStream> {
    let mut last = io::Error::new(ErrorKind::NotFound, "this name has no address");
    for address in machine.to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, timeout) {
            Ok(socket) => {
                socket.set_read_timeout(Some(timeout))?;
                socket.set_write_timeout(Some(timeout))?;
                socket.set_nodelay(true)?;
                return Ok(socket);
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}

impl fmt::Display for ControlPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Socket(path) => path.display().fmt(f),
            Self::Port { caller, machine } => write!(f, "{SCHEME}{caller}@{machine}"),
        }
    }
}

/// A connection to a target.
#[derive(Debug)]
pub enum ControlConnection {
    /// To its socket.
    Socket(UnixStream),
    /// To its port.
    Port(Box<BlockingStream<TcpStream>>),
}

impl Read for ControlConnection {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Socket(socket) => socket.read(into),
            Self::Port(stream) => stream.read(into),
        }
    }
}

impl Write for ControlConnection {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Socket(socket) => socket.write(bytes),
            Self::Port(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Socket(socket) => socket.flush(),
            Self::Port(stream) => stream.flush(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_told_from_sockets() {
        let of = |word: &str| ControlPlace::named(word.into()).map(|place| place.to_string());
        assert_eq!(
            ControlPlace::named("/run/x".into()).expect("a place"),
            ControlPlace::Socket("/run/x".into())
        );
        for (word, shown) in [
            ("tls://csi@192.0.2.1:9000", "tls://csi@192.0.2.1:9000"),
            ("tls://csi@target.example.com/", "tls://csi@target.example.com:9421"),
            ("tls://csi@[2001:db8::1]", "tls://csi@[2001:db8::1]:9421"),
            ("tls://csi@[2001:db8::1]:1", "tls://csi@[2001:db8::1]:1"),
        ] {
            assert_eq!(of(word).as_deref(), Ok(shown));
        }
        for (word, part) in [
            ("tls://192.0.2.1:9421", "tls://NAME@HOST:PORT"),
            ("tls://csi@", "tls://NAME@HOST:PORT"),
            ("tls://@192.0.2.1", "the name of a caller"),
            ("tls://a b@192.0.2.1", "the name of a caller"),
        ] {
            assert!(of(word).is_err_and(|why| why.contains(part)), "{word}");
        }
    }

    #[test]
    fn a_port_is_not_called_without_a_key() {
        let place = ControlPlace::named("tls://csi@127.0.0.1:1".into()).expect("a place");
        let error = place.connect(None, Duration::from_secs(1)).expect_err("no key");
        assert!(error.to_string().contains("--control-key"), "{error}");
    }
}
