//! The result of a read of plaintext.

/// The result of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Read {
    /// This many bytes of plaintext, at least one.
    Bytes(usize),
    /// More bytes of the peer are needed.
    Dry,
    /// The peer has closed the connection.
    Ended,
}
