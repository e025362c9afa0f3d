//! The service manager that has started a target: messages to it (sd_notify(3), `Type=notify` of systemd and others), and the
//! sockets that it has passed.

use std::fmt;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

use subsystem::server::Target;

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

/// Names passed sockets that no listener of the target has: addresses, and the number of other descriptors. Clients would
/// connect there, and wait.
pub(crate) fn warn_about_unused((addresses, others): &(Vec<std::net::SocketAddr>, usize), target: &Target) {
    let memcached: Vec<String> =
        target.memcached_listeners().map(|listener| listener.state().address).collect();
    let is_used = |address: &std::net::SocketAddr| {
        let mut listeners = target.listeners().iter();
        listeners.any(|listener| listener.address == *address) || memcached.contains(&address.to_string())
    };
    for address in addresses.iter().filter(|address| !is_used(address)) {
        tracing::warn!(%address, "socket of the service manager is not used: no listener of the configuration has this address");
    }
    if *others > 0 {
        tracing::warn!(
            count = others,
            "descriptors of the service manager are not used: they do not listen for TCP connections"
        );
    }
}
