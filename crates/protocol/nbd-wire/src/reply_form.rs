//! The form of replies, which client and server agree on.

/// The form of replies, and of the heads of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplyForm {
    /// An error number, then all data.
    Simple,
    /// Chunks.
    Structured,
    /// Chunks, with lengths of 64 bits.
    Extended,
}
