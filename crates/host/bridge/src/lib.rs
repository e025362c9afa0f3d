//! Bridges: namespaces of a target for programs that do not know NVMe.
//!
//! [`NbdServer`] serves block namespaces of one [`Association`](host::Association) to NBD clients: qemu, fio, nbdcopy, libnbd,
//! the kernel's `nbd`. Each NBD connection has a thread and a lane of its own:
//!
//! ```text
//! client ── NBD connection ── thread ── lane ── target
//!           nbd::Handshake, then requests ─▶ commands
//!                             replies     ◀─ completions
//! ```
//!
//! [`nbd`] is the protocol without sockets. [`VhostUserDevice`] serves a namespace as a block device to virtual machines: see
//! the module `vhost_user`. Decisions are in `docs/design/bridges.md`.
#![forbid(unsafe_code)]

mod buffers;
mod connection;
mod exports;
mod failure_log;
mod flush_ledger;
mod lanes;
mod memory_pressure;
pub mod nbd;
mod outgoing;
mod server;
mod vhost_user;

pub use exports::{ExportSettings, NoExport, block_namespaces};
pub use memory_pressure::{keep_memory, leave_io_flusher};
pub use server::{Listener, NbdServer};
pub use vhost_user::{VhostUserDevice, VhostUserSettings};
