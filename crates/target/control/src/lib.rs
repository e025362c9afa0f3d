//! Changes of a running target by callers: JSON-RPC over a Unix socket, or over TLS.
//!
//! ```text
//! import, socket, port ▶ dispatch ▶ spdk ▶ methods, volumes ▶ control ▶ changes_file, tree
//! ```
//!
//! A change is an edit of the configuration as a tree of tables. [`Control`] holds the tree of the operator's
//! configuration and the edited one; their difference is kept in a file and applied again at the next start.
//! docs/design/control-socket.md
#![forbid(unsafe_code)]

pub mod changes_file;
mod control;
mod dispatch;
mod edits;
mod error;
pub mod import;
mod methods;
mod names;
pub mod noun;
pub mod port;
pub mod rpc;
pub mod socket;
mod spdk;
pub mod trace;
mod tree;
mod volumes;

#[cfg(test)]
mod tests;

pub use control::{Control, Plant, Started};
pub use error::CallError;
pub use tree::Difference;
