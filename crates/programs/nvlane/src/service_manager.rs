//! Messages of a target to the service manager that has started it: sd_notify(3), `Type=notify` of systemd and others.

use std::fmt;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

/// The environment variable with the manager's socket.
pub(crate) const SOCKET: &str = "NOTIFY_SOCKET";

/// How long a message may wait for a manager that reads none.
const SEND_TIME: Duration = Duration::from_secs(1);

/// The manager's socket, if there is a manager.
pub(crate) struct ServiceManager(Option<UnixDatagram>);

impl ServiceManager {
    /// The manager that the environment names.
    pub(crate) fn of_environment() -> Self {
        let Some(name) = std::env::var_os(SOCKET).filter(|name| !name.is_empty()) else { return Self(None) };
        let connected = match name.as_encoded_bytes() {
            [b'@', name @ ..] => SocketAddr::from_abstract_name(name),
            _ => SocketAddr::from_pathname(&name),
        }
        .and_then(|address| {
            let socket = UnixDatagram::unbound()?;
            socket.connect_addr(&address)?;
            socket.set_write_timeout(Some(SEND_TIME))?;
            Ok(socket)
        });
        if let Err(error) = &connected {
            tracing::warn!(%error, socket = ?name, "service manager unreachable: it considers this target as still starting");
        }
        Self(connected.ok())
    }

    /// Sends assignments, one per line, such as `READY=1`.
    pub(crate) fn tell(&self, message: fmt::Arguments<'_>) {
        if let Some(socket) = &self.0
            && let Err(error) = socket.send(message.to_string().as_bytes())
        {
            tracing::warn!(%error, "service manager does not accept a message");
        }
    }
}
