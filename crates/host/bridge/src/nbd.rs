//! The NBD protocol, server side, without sockets: bytes and values in, bytes and values out.
//!
//! Of the specification (<https://github.com/NetworkBlockDevice/nbd/blob/master/doc/proto.md>): fixed newstyle negotiation,
//! simple, structured and extended replies, block size constraints, and the metadata context `base:allocation`.
//!
//! ```text
//! Handshake::on_bytes ─▶ options are answered ─▶ Progress::Chosen ─▶ accept ─▶ Session
//! Session: head bytes ─▶ Request::from_bytes ─▶ judge ─▶ Task, or a Refusal ─▶ ReplyHead
//! ```

mod export;
mod extents;
mod handshake;
mod reply;
mod session;

pub use export::Export;
pub use extents::{extent_bytes, write_extents};
pub use handshake::{
    Handshake, HandshakeViolation, OPTION_BYTES_MAX, OPTION_COUNT_MAX, Progress, SKIPPED_BYTES_MAX, TlsPolicy,
};
pub use nbd_wire::block_status::{STATE_HOLE, STATE_ZERO};
pub use nbd_wire::{
    CommandFlags, ExportFlags, PAYLOAD_BYTES_MAX, PORT, ReplyForm, Request, RequestViolation,
};
pub use reply::{REPLY_HEAD_BYTES_MAX, ReplyHead};
pub use session::{Session, Task};

use std::fmt;

/// An error number of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Errno {
    /// Not permitted: the export is read-only.
    Perm = 1,
    /// Input or output failed.
    Io = 5,
    /// The request is invalid.
    Inval = 22,
    /// Beyond the end, or no space is left.
    NoSpace = 28,
    /// The answer does not fit into one chunk.
    Overflow = 75,
    /// Not supported.
    NotSup = 95,
    /// The server ends.
    Shutdown = 108,
}

/// Why a request is not carried out. The text goes to clients that take structured replies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The error number.
    pub errno: Errno,
    /// Its reason; at most 80 bytes are sent.
    pub reason: &'static str,
}

impl Refusal {
    /// A refusal.
    #[must_use]
    pub const fn new(errno: Errno, reason: &'static str) -> Self {
        Self { errno, reason }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.reason)
    }
}
