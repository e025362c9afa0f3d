//! Block devices for virtual machines, by the vhost-user protocol.
//!
//! A front end, such as QEMU, shares the guest's memory with this process, and gives it the guest's virtqueues of virtio-blk.
//!
//! ```text
//! front end ── socket ── control thread (Session): memory, queues, configuration
//! guest ── virtqueue ── thread (worker) ── lane ── target
//! ```
//!
//! Messages of the protocol are those of rust-vmm's crate `vhost`, rings those of `virtio-queue`, and whatever touches the guest's
//! memory is `vm-memory`'s, which checks each access. A guest may write nonsense to its memory at any time: what is read is read
//! once, and then checked.

mod chain;
mod config;
mod inflight;
mod request;
mod server;
mod session;
mod virtqueue;
mod worker;

pub use chain::{Chain, ChainViolation, Segment, copy_from_guest, copy_to_guest};
pub use inflight::{Inflight, InflightError, InflightQueue};
pub use request::{Kind, Outcome, Request, read_ranges};
pub use server::{VhostUserDevice, VhostUserSettings};
pub use virtqueue::{QueueViolation, Rings, Virtqueue};
