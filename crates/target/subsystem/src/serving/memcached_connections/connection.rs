//! One memcached connection and its state.

use std::net::SocketAddr;

use memcached::{ConnectionState, ListenerTrust, Progress, Session};
use reactor::{Io, ListenerTag};
use security::tls::Stream;

use crate::audit::OfMemcached;
use crate::io_path::maybe_tls_socket::MaybeTlsSocket;
use crate::messages::message::Message;

/// One memcached connection.
pub(super) struct MemcachedConnection {
    pub(super) transport: MaybeTlsSocket,
    pub(super) listener: ListenerTag,
    pub(super) peer: Option<SocketAddr>,
    /// The address that the client connected to.
    pub(super) local: Option<SocketAddr>,
    /// The requirements of its listener.
    pub(super) trust: ListenerTrust,
    /// Its listener is for the partition of this reactor only.
    pub(super) is_of_partition: bool,
    /// The user that the client has authenticated as.
    pub(super) user: Option<String>,
    /// When it was accepted; `None` once TLS is set up and the client has authenticated, where it has to.
    pub(super) unestablished_since_ns: Option<u64>,
    pub(super) generation: u32,
    pub(super) session: Session,
    pub(super) input: Input,
    /// It is on the list of connections with output to send.
    pub(super) is_dirty: bool,
    /// Its socket is full.
    pub(super) is_blocked: bool,
    /// Time of the last progress.
    pub(super) moved_ns: u64,
}

/// The input of a connection.
///
/// ```text
/// Open ◀──────────▶ Stalled        the output has room ◀──▶ is full
///   │                  │
///   ▼ close            ▼ close     by quit, by an error, or because its listener was removed
/// Closing ◀──────── Draining
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Input {
    /// It is received and executed.
    Open,
    /// It waits until output has been sent.
    Stalled,
    /// As `Stalled`, and no more is received.
    Draining,
    /// No more is received: the connection closes once every command is answered.
    Closing,
}

impl Input {
    /// After the session has taken in what it could.
    pub(super) fn after(self, progress: Progress) -> Self {
        match progress {
            Progress::Stalled if self.is_closing() => Self::Draining,
            Progress::Stalled => Self::Stalled,
            Progress::Open if !self.is_closing() => Self::Open,
            Progress::Open | Progress::Close => Self::Closing,
        }
    }

    /// No more is received from now on.
    pub(super) fn closing(self) -> Self {
        match self {
            Self::Open | Self::Closing => Self::Closing,
            Self::Stalled | Self::Draining => Self::Draining,
        }
    }

    /// Whether input waits until output has been sent.
    pub(super) fn is_stalled(self) -> bool {
        matches!(self, Self::Stalled | Self::Draining)
    }

    /// Whether the connection closes once every command is answered.
    pub(super) fn is_closing(self) -> bool {
        matches!(self, Self::Draining | Self::Closing)
    }

    /// Whether the socket is not read.
    pub(super) fn is_paused(self) -> bool {
        !matches!(self, Self::Open)
    }
}

impl MemcachedConnection {
    /// Whether TLS is set up and the client has authenticated, where it has to.
    pub(super) fn is_established(&self) -> bool {
        self.unestablished_since_ns.is_none()
    }

    /// Whether plaintext can be sent and received: at once without TLS, else after the handshake.
    pub(super) fn is_open(&self) -> bool {
        self.transport.stream().is_none_or(|stream| stream.with_certificate().is_some())
    }

    /// Whether input waits, and the session has room for it again.
    pub(super) fn can_resume(&self) -> bool {
        self.input.is_stalled() && self.session.can_resume()
    }

    /// Changes the state of the input. The socket is paused while none is received: unread bytes would wake the reactor
    /// again and again.
    pub(super) fn enter(&mut self, io: &mut impl Io<Message>, input: Input) {
        let was_paused = std::mem::replace(&mut self.input, input).is_paused();
        let socket = self.transport.id();
        match (was_paused, input.is_paused()) {
            (false, true) => io.pause(socket),
            (true, false) => io.resume(socket),
            _ => {}
        }
    }

    /// The client, for the audit log.
    pub(super) fn client(&self) -> OfMemcached {
        let tls = self.transport.stream().and_then(Stream::with_certificate).cloned();
        OfMemcached { peer: self.peer, listener: self.local, user: self.user.clone(), tls }
    }

    /// Its state for `stats conns`, which it asks for itself if `is_asking`.
    pub(super) fn state(&self, is_asking: bool) -> ConnectionState {
        if is_asking {
            ConnectionState::Executing
        } else if self.input.is_closing() {
            ConnectionState::Closing
        } else if self.session.is_watching() {
            ConnectionState::Watching
        } else if self.is_blocked {
            ConnectionState::Sending
        } else if self.session.is_within_command() {
            ConnectionState::WithinCommand
        } else if self.session.is_awaiting() {
            ConnectionState::Executing
        } else {
            ConnectionState::Waiting
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_transition_of_the_input() {
        use Input::{Closing, Draining, Open, Stalled};
        let next = |input: Input| {
            let after =
                [Progress::Open, Progress::Stalled, Progress::Close].map(|progress| input.after(progress));
            (after, input.closing())
        };
        assert_eq!(next(Open), ([Open, Stalled, Closing], Closing));
        assert_eq!(next(Stalled), ([Open, Stalled, Closing], Draining));
        assert_eq!(next(Draining), ([Closing, Draining, Closing], Draining));
        assert_eq!(next(Closing), ([Closing, Draining, Closing], Closing));
    }
}
