//! Why the records of a peer cannot be read.

use super::Alert;

/// Why no more can be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RecordError {
    /// The peer has sent this alert.
    Alert(Alert),
    /// The peer violated TLS: the reason, and the alert that it is sent.
    Broken(&'static str, Alert),
}
