//! Block devices of this machine's kernel, by ublk.
//!
//! ```text
//! /dev/ublkbN ── kernel ── queue ── thread (worker) ── lane ── target
//! ```
//!
//! A device is added, or taken over from a bridge that has ended while it was in use ([`UblkDevice::start`]), and served by a
//! thread for each queue. Each request is one command, whose data is in the buffer that the kernel fills and reads.

mod device;
mod error;
mod identity;
mod shape;
mod worker;

pub use device::{UblkDevice, UblkSettings, check_ublk, remove_ublk_device, ublk_is_privileged};
pub use error::UblkError;
