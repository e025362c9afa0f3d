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
//! [`nbd`] is the protocol without sockets. [`FuseMount`] mounts a directory whose files are namespaces: see [`fuse`].
//! [`VhostUserDevice`] serves a namespace as a block device to virtual machines, and [`UblkDevice`] to this machine's kernel: see the
//! modules [`vhost_user`] and `ublk`. Decisions are in `docs/design/bridges.md`.
#![forbid(unsafe_code)]

mod buffers;
mod client_socket;
mod connection;
mod exports;
mod failure_log;
mod flush_ledger;
pub mod fuse;
mod lanes;
mod memory_pressure;
pub mod nbd;
mod outgoing;
mod server;
mod ublk;
pub mod vhost_user;

pub use self::ublk::{
    UblkDevice, UblkError, UblkSettings, check_ublk, remove_ublk_device, ublk_is_privileged,
};
pub use exports::{ExportSettings, NoExport, block_namespaces};
pub use fuse::{FuseMount, FuseSettings};
pub use memory_pressure::{keep_memory, leave_io_flusher};
pub use server::{Listener, NbdServer, NbdTls};
pub use vhost_user::{VhostUserDevice, VhostUserSettings};
