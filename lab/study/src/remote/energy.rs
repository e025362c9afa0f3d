//! Energy of a study server's machine.

use serde::{Deserialize, Serialize};

use super::connection::ServerConnection;
use super::protocol::Request;
use crate::error::Error;

/// Energy of the machine so far. Only differences of two readings are meaningful.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct RemoteEnergy {
    /// Of the processor packages and their memory, J.
    pub(crate) joules: f64,
    /// Time of the server's clock, s.
    pub(crate) seconds: f64,
    /// Identifier of the machine since its boot: a study on the same machine counts its energy once.
    pub(crate) boot: Option<String>,
}

impl RemoteEnergy {
    /// Reads it.
    ///
    /// # Errors
    /// [`Error::Lacking`]: the machine has no counters for the server. Another: the server is lost.
    pub(crate) fn read(server: &ServerConnection) -> Result<Self, Error> {
        server.request(&Request::Energy).map_err(|error| server.as_lacking(error))
    }

    /// Whether it is of the machine with this identifier.
    pub(crate) fn is_of(&self, boot: Option<&str>) -> bool {
        boot.is_some() && self.boot.as_deref() == boot
    }

    /// Mean power between two readings, W.
    pub(crate) fn watts(before: &Self, after: &Self) -> f64 {
        (after.joules - before.joules) / (after.seconds - before.seconds).max(1e-9)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machines_without_an_identifier_are_not_the_same() {
        let of =
            |boot: Option<&str>| RemoteEnergy { joules: 0.0, seconds: 0.0, boot: boot.map(str::to_owned) };
        assert!(of(Some("a")).is_of(Some("a")) && !of(Some("a")).is_of(Some("b")));
        assert!(!of(None).is_of(None) && !of(None).is_of(Some("a")) && !of(Some("a")).is_of(None));
    }
}
