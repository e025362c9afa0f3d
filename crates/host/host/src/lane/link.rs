//! The connection of a lane: dialling, connected, or closing while the kernel may still read zero-copy sends.

use std::sync::Arc;
use std::time::Duration;

use host_core::link_error::LinkError;
use proto::zero_copy::{Policy as ZeroCopy, Threshold};
use reactor::{Arrival, Socket, abort_and_await, stays_on_this_machine};

use crate::connect::Dialer;
use crate::error::Error;
use crate::messages::LaneMessage;
use crate::transport::{TLS_HANDSHAKE, Transport};
use crate::waiting::Interest;

/// Interval at which a lingering connection is checked for zero-copy notices, ns.
const LOOK_NS: u64 = 1_000_000;

/// Maximum time that dropping a lane waits for zero-copy notices.
const PATIENCE: Duration = Duration::from_millis(500);

/// State of a lane's connection.
#[derive(Debug)]
pub(super) enum Link {
    None,
    Dialling(Dialer),
    /// TLS negotiates.
    Securing(Transport),
    Connected(Transport),
    /// Reset, while the kernel may still read zero-copy sends.
    Lingering(Box<LingeringClose>),
}

/// A connection that was reset before the kernel released all zero-copy sends. The reset empties the send queue, so the
/// notices of the remaining sends arrive at once, except for packets that a device still has. Until then buffers cannot
/// be returned, and the lane's commands cannot end.
#[derive(Debug)]
pub(super) struct LingeringClose {
    pub(super) socket: Socket,
    pub(super) reason: CloseReason,
    /// Messages of the association that arrived meanwhile.
    pub(super) messages: Vec<LaneMessage>,
}

/// Why a connection is closed.
#[derive(Debug)]
pub(super) enum CloseReason {
    /// The lane lost the connection.
    Lost(LinkError),
    /// The association of this generation is lost.
    Detached(u64),
    /// The association ended for good.
    Ended(Arc<Error>),
}

impl LingeringClose {
    pub(super) fn new(socket: Socket, reason: CloseReason) -> Self {
        socket.abort();
        Self { socket, reason, messages: Vec::new() }
    }
}

impl Link {
    /// The socket, connected or lingering.
    pub(super) fn socket(&self) -> Option<&Socket> {
        match self {
            Self::Connected(transport) => Some(transport.socket()),
            Self::Lingering(lingering) => Some(&lingering.socket),
            Self::None | Self::Dialling(_) | Self::Securing(_) => None,
        }
    }

    /// The error, with the name of the step that failed.
    pub(super) fn named(&self, cause: LinkError) -> LinkError {
        match (cause, self) {
            (LinkError::TimedOut { waited, .. }, Self::Securing(_)) => {
                LinkError::TimedOut { to: TLS_HANDSHAKE, waited }
            }
            (cause, _) => cause,
        }
    }

    /// Whether input waits that the socket does not report.
    #[inline]
    pub(super) fn has_input(&self) -> bool {
        matches!(self, Self::Connected(transport) if transport.has_input())
    }

    /// Whether the socket may have more than the last receive took, although that was not full.
    #[inline]
    pub(super) fn may_have_more(&self) -> bool {
        matches!(self, Self::Connected(transport) if transport.may_have_more())
    }

    /// Where the last packet of the connection arrived, if there is a connection.
    pub(super) fn arrival(&self) -> Arrival {
        match self {
            Self::Connected(transport) => transport.socket().arrival(),
            Self::None | Self::Dialling(_) | Self::Securing(_) | Self::Lingering(_) => Arrival::default(),
        }
    }

    /// Readiness to wait for. `is_blocked`: the socket did not accept all bytes.
    pub(super) fn interest(&self, is_blocked: bool) -> Option<Interest<'_>> {
        match self {
            Self::None | Self::Lingering(_) => None,
            Self::Dialling(dialer) => dialer.interest(),
            Self::Securing(transport) => Some(transport.interest(false)),
            Self::Connected(transport) => Some(transport.interest(is_blocked)),
        }
    }

    /// When to look at the connection at the latest, ns.
    pub(super) fn deadline_ns(&self, now_ns: u64) -> Option<u64> {
        match self {
            Self::Dialling(dialer) => dialer.deadline_ns(),
            Self::Lingering(_) => Some(now_ns.saturating_add(LOOK_NS)),
            Self::None | Self::Securing(_) | Self::Connected(_) => None,
        }
    }

    /// Resets the connection and waits, for half a second at most, until the kernel released all zero-copy sends.
    /// `on_notice` takes the range of released sends, and returns whether there are others.
    pub(super) fn abort_and_await(&self, mut on_notice: impl FnMut(u32, u32) -> bool) {
        if let Some(socket) = self.socket() {
            abort_and_await(socket, PATIENCE, |notice| on_notice(notice.first, notice.last));
        }
    }
}

/// The size from which on a new connection sends without a copy.
pub(super) fn zero_copy_threshold(socket: &Socket, policy: ZeroCopy) -> Threshold {
    let is_local = stays_on_this_machine(socket.local().ok(), socket.peer().ok());
    let threshold = Threshold::new(policy, is_local);
    if threshold.is_on() && socket.allow_zero_copy() { threshold } else { Threshold::NEVER }
}
