//! Keys and values: commands of the key-value command set, messages between partitions, and what waits for a log.
//!
//! ```text
//! NVMe lane ─────▶ execute ─▶ command (an SQE, parsed) ─▶ operation, here ─────────────────▶ answer
//!                     │          └▶ batch, large                                              ▲
//!                     └─ key of another reactor ─▶ message ─▶ serve ─▶ operation, there ──────┤
//! memcached session ────────────────────────────────┘          └▶ with a log: log_waiters ────┘
//! ```

pub(crate) mod batch;
pub(crate) mod command;
pub(crate) mod digest;
pub(crate) mod execute;
pub(crate) mod large;
pub(crate) mod log_waiters;
mod message;
pub(crate) mod operation;
mod serve;

pub use execute::{KvAction, KvOutcome};
pub use message::{KeyValueMessage, RemoteAnswers};
pub(crate) use serve::serve;
