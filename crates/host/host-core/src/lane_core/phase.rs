//! The connection phases of a lane.

/// Phase of a lane's connection; `until_ns` is its timeout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// No association to connect to.
    Down,
    /// The driver connects a socket.
    Opening { until_ns: u64 },
    /// ICReq is sent.
    Handshake { until_ns: u64 },
    /// Connect is sent.
    Connecting { until_ns: u64 },
    /// The queue was accepted; the host authenticates on it.
    Authenticating { until_ns: u64 },
    /// Commands are sent.
    Live,
    /// The association ended for good.
    Ended,
}

impl Phase {
    /// When the phase times out, ns.
    pub(super) fn until_ns(self) -> Option<u64> {
        match self {
            Self::Opening { until_ns }
            | Self::Handshake { until_ns }
            | Self::Connecting { until_ns }
            | Self::Authenticating { until_ns } => Some(until_ns),
            Self::Down | Self::Live | Self::Ended => None,
        }
    }

    /// The phase in words, for messages.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Opening { .. } => "TCP connect",
            Self::Handshake { .. } => "handshake",
            Self::Connecting { .. } => "Connect",
            Self::Authenticating { .. } => "authentication",
            Self::Down | Self::Live | Self::Ended => "operation",
        }
    }
}
