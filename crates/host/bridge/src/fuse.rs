//! Namespaces as files in a directory, by the kernel's FUSE protocol (`linux/fuse.h`), version 7.31 and later.
//!
//! [`Request`], [`Directory`] and [`Reply`] are the protocol without a device: bytes and values in, bytes and values out.
//!
//! ```text
//! program ── file ── kernel ── /dev/fuse ── thread (worker) ── lane ── target
//!                    Request::from_bytes ─▶ Directory::judge ─▶ Task, or a Reply
//! ```
//!
//! [`FuseMount`] mounts the directory, and serves it with one thread and one lane.

mod directory;
mod init;
mod mount;
mod reply;
mod request;
mod server;
mod shared;
mod wire;
mod worker;

pub use directory::{Directory, FileInfo, FileSettings, ROOT, Task, Turn};
pub use init::{Init, InitRefused};
pub use mount::MountError;
pub use reply::{Listing, REPLY_BYTES_MAX, Reply};
pub use request::{Operation, Request, RequestViolation, WRITE_HEAD_BYTES};
pub use server::{FuseError, FuseMount, MountedFile, Unmounted};
pub use shared::FuseSettings;
