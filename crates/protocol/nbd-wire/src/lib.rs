//! NBD, as both ends of a connection need it: numbers, flags, and the heads of requests and replies.
//!
//! Of the specification: <https://github.com/NetworkBlockDevice/nbd/blob/master/doc/proto.md>.
#![forbid(unsafe_code)]

pub mod block_status;
pub mod chunk;
pub mod command;
pub mod negotiation;

mod export_flags;
mod received;
mod reply_form;
mod request;

pub use export_flags::ExportFlags;
pub use received::{ReceivedHead, ReplyViolation};
pub use reply_form::ReplyForm;
pub use request::{CommandFlags, Request, RequestViolation};

/// The port that IANA assigned to NBD.
pub const PORT: u16 = 10_809;

/// Longest data of a Read or Write, bytes, that peers may assume who know no limit.
pub const PAYLOAD_BYTES_MAX: u32 = 32 << 20;
