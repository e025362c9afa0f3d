//! Keys and values: commands of the key-value command set, messages between partitions, and what waits for a log.
//!
//! ```text
//! NVMe lane ─────▶ execute ─▶ command (an SQE, parsed) ─▶ operation, here ─────────────────▶ answer
//!                     │          └▶ batch, large                                              ▲
//!                     └─ key of another reactor ─▶ message ─▶ serve ─▶ perform, there ────────┤
//! memcached session ────────────────────────────────┘          └▶ with a log: log_waiters ────┘
//! ```

pub(crate) mod action;
pub(crate) mod arriving;
pub(crate) mod batch;
mod batch_part;
pub(crate) mod command;
pub(crate) mod digest;
mod execute;
pub(crate) mod large;
pub(crate) mod log_waiters;
pub(crate) mod message;
pub(crate) mod operation;
mod perform;
pub(crate) mod scattered;
mod serve;

pub use action::{KvAction, KvOutcome};
pub use batch_part::PartOfBatch;
pub use message::{CommandReply, KeyValueMessage, MemcachedReply, PartitionRequest, RemoteAnswers, Work};
pub(crate) use serve::serve;
