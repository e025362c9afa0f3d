//! The memcached protocol over a partition: three encodings, one set of commands.
//!
//! ```text
//! bytes ─▶ Decoder (text, meta, binary) ─▶ Command, one key each ─▶ Executor ─▶ bytes of the answer
//! ```
//!
//! Everything is sans-io. A command names one key, whatever line it was on: a line with a hundred keys is a hundred
//! commands and an end. So each can go to the partition of its key, and answers are put together in order.

#![forbid(unsafe_code)]
// Lengths of stored values fit in 32 bits by construction.
#![allow(clippy::cast_possible_truncation)]

mod answer;
// No input from a client may cause a panic: see docs/testing.md.
#[cfg_attr(not(test), deny(clippy::arithmetic_side_effects, clippy::indexing_slicing))]
#[cfg_attr(not(test), deny(clippy::expect_used, clippy::unwrap_used))]
mod authentication;
mod batch_scratch;
mod binary_response;
mod collecting;
mod collective;
mod command;
pub mod connection_stats;
mod counters;
mod crawler;
mod dump;
mod execute;
mod gets;
mod in_place;
mod incoming;
mod look_up;
mod meta;
mod number;
mod observe;
mod output;
#[cfg(any(test, feature = "partitions"))]
#[path = "../tests/support/partitions.rs"]
pub mod partitions;
// No input from a client may cause a panic: see docs/testing.md.
#[cfg_attr(not(test), deny(clippy::arithmetic_side_effects, clippy::indexing_slicing))]
#[cfg_attr(not(test), deny(clippy::expect_used, clippy::unwrap_used))]
mod protocol;
mod refusal;
mod remote;
mod router;
mod session;
#[cfg(test)]
mod session_tests;
mod settings;
mod stats;
mod watch;

pub use answer::AnswerId;
pub use collective::CollectiveRequest;
pub use command::{Command, DumpForm, Header, Mode, Verb};
pub use connection_stats::{ConnectionState, ConnectionStats, ListenerAddress};
pub use counters::{CommandCounters, ListenerStats, ListenerTrust, PartitionOfPort, PartitionStats};
pub use execute::{Executor, Service};
pub use in_place::InPlace;
pub use incoming::LargeStore;
pub use output::{LongValue, Output};
pub use protocol::decode::Decoder;
pub use protocol::decoded::Decoded;
pub use refusal::Refusal;
pub use remote::RemoteBatch;
pub use router::Router;
pub use session::{Progress, Session};
pub use settings::{ListenerSettings, PIECE_BYTES};
pub use stats::VERSION;
pub use watch::{WatchLog, Watchers};
