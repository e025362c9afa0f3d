//! `stats conns`: the listeners, and the connections of all reactors.

use std::net::SocketAddr;

/// An open connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionStats {
    /// Its number, the `cfd` of lines of `watch`.
    pub number: u32,
    /// The number of its listener.
    pub listener: u32,
    /// Address of the client; `None` if it came in through a Unix socket.
    pub peer: Option<SocketAddr>,
    /// Its state.
    pub state: ConnectionState,
    /// Time since something was last received or sent, s.
    pub idle_s: u64,
}

/// The state of a connection, as memcached names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectionState {
    /// It waits for a command.
    Waiting,
    /// A part of a command was received.
    WithinCommand,
    /// Its command is executed.
    Executing,
    /// It waits until the client takes its output.
    Sending,
    /// It gets the lines of `watch`.
    Watching,
    /// It closes once its output is sent.
    Closing,
}

impl ConnectionState {
    fn name(self) -> &'static str {
        match self {
            Self::Waiting => "conn_read",
            Self::WithinCommand => "conn_nread",
            Self::Executing => "conn_parse_cmd",
            Self::Sending => "conn_mwrite",
            Self::Watching => "conn_watch",
            Self::Closing => "conn_closing",
        }
    }
}

/// An open listener: its number, and its address as [`address`] or [`path`] writes it.
pub type ListenerAddress = (u32, String);

/// An IP address as memcached writes it.
#[must_use]
pub fn address(address: SocketAddr) -> String {
    format!("{}:{address}", if address.is_ipv4() { "tcp" } else { "tcp6" })
}

/// The path of a Unix socket as memcached writes it; the clients' sockets have none.
#[must_use]
pub fn path(path: &str) -> String {
    format!("unix:{path}")
}

/// Calls `each` with the name and value of every statistic, by number: listeners, then connections.
pub(crate) fn for_each_connection_stat(
    listeners: &[ListenerAddress],
    connections: &[ConnectionStats],
    mut each: impl FnMut(&str, &str),
) {
    for (number, address) in listeners {
        each(&format!("{number}:addr"), address);
        each(&format!("{number}:state"), "conn_listening");
    }
    for connection in connections {
        let number = connection.number;
        let peer = connection.peer.map_or_else(|| path(""), address);
        each(&format!("{number}:addr"), &peer);
        // Connections of a removed listener outlive it a little.
        if let Some((_, address)) = listeners.iter().find(|(number, _)| *number == connection.listener) {
            each(&format!("{number}:listen_addr"), address);
        }
        each(&format!("{number}:state"), connection.state.name());
        each(&format!("{number}:secs_since_last_cmd"), &connection.idle_s.to_string());
    }
}
