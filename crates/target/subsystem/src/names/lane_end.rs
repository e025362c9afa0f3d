//! Why a connection has ended, and who has closed it.

/// Why a connection has ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LaneEnd {
    /// Its host has closed it.
    #[default]
    Host,
    /// It was reset, or the network has lost it.
    Lost,
    /// The target has closed it for this reason.
    Target(&'static str),
}

impl LaneEnd {
    /// Who has closed the connection, in the audit log.
    #[must_use]
    pub const fn closed_by(self) -> &'static str {
        match self {
            Self::Host => "host",
            Self::Lost => "network",
            Self::Target(_) => "target",
        }
    }

    /// Why, in words.
    #[must_use]
    pub const fn reason(self) -> &'static str {
        match self {
            Self::Host => "the host has closed its connection",
            Self::Lost => "connection lost",
            Self::Target(reason) => reason,
        }
    }
}
