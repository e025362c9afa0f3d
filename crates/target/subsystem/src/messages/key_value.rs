//! Keys and values as commands and messages see them: requests to a partition, and resources that a command holds until
//! it ends.
//!
//! ```text
//! NVMe lane ─▶ key_value_io ─▶ command (an SQE, parsed) ─▶ operation, in place ─────────────▶ answer
//!                   └─ partition with a log ───▶ message ─▶ key_value_io/serve ─▶ perform ──────┤
//! memcached session ──────────────────────────────┘             └▶ with a log: log_waiters ─────┘
//! ```

pub(crate) mod action;
pub(crate) mod arrivals;
pub(crate) mod arriving;
pub(crate) mod batch_in_place;
pub(crate) mod batch_part;
pub(crate) mod command;
pub(crate) mod digested;
pub(crate) mod key_name;
pub(crate) mod message;
pub(crate) mod operation;
pub(crate) mod perform;
pub(crate) mod retrieving;
pub(crate) mod scattered;
pub(crate) mod waiting_values;

pub use action::{KvAction, KvOutcome};
pub use batch_part::PartOfBatch;
pub use key_name::KeyName;
pub use message::{CommandReply, KeyValueMessage, MemcachedReply, PartitionRequest, RemoteAnswers, Work};
