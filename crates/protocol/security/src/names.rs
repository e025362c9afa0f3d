//! The names that a response is bound to.

use wire::nqn::{HostName, Nqn};

/// Host and subsystem of an association.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Names {
    /// The host's name.
    pub host: HostName,
    /// The subsystem's name.
    pub subsystem: Nqn,
}
