//! The service manager that has started a target: messages to it (sd_notify(3), `Type=notify` of systemd and others), and the
//! sockets that it has passed.

use std::fmt;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

use subsystem::server::{Observer, Target, Unobserved};
use subsystem::state::Detail;

/// The environment variable with the manager's socket.
pub(crate) const SOCKET: &str = "NOTIFY_SOCKET";

/// The environment variables with the time within which the manager expects signs of life, µs, and the process that it
/// expects them of.
pub(crate) const WATCHDOG: [&str; 2] = ["WATCHDOG_USEC", "WATCHDOG_PID"];

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

    /// The work of a thread that gives signs of life as long as all reactors answer; `None` if the manager expects none. The
    /// main thread may wait for storage, and has no part in it.
    ///
    /// # Errors
    /// No descriptor is left.
    pub(crate) fn watch(&self, mut observer: Observer) -> io::Result<Option<impl FnOnce() + Send + use<>>> {
        let [limit_us, process] = WATCHDOG.map(|name| std::env::var(name).ok()?.parse::<u64>().ok());
        let limit = Duration::from_micros(limit_us.unwrap_or(0));
        let is_for_us = process.is_none_or(|process| process == u64::from(std::process::id()));
        let Some(socket) = self.0.as_ref().filter(|_| is_for_us && !limit.is_zero()) else {
            return Ok(None);
        };
        let manager = Self(Some(socket.try_clone()?));
        let interval = limit / 3;
        Ok(Some(move || {
            loop {
                match observer.state(Detail::Sums, Some(interval)) {
                    Ok(_) => manager.tell(format_args!("WATCHDOG=1")),
                    Err(Unobserved::Ended) => return,
                    Err(silent) => {
                        tracing::error!(%silent, limit_s = limit.as_secs(), "no sign of life for the service manager");
                    }
                }
                std::thread::sleep(interval);
            }
        }))
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
