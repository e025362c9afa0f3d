//! Block devices that a process serves: Linux's ublk, from 6.5 on.
//!
//! ```text
//! /dev/ublk-control ◀── Control: add, start, stop, delete, recover
//! /dev/ublkcN       ◀── Queue: takes requests of /dev/ublkbN, and gives back their outcomes
//! ```
//!
//! Both are commands of io_uring (IORING_OP_URING_CMD). [`commands`] has their numbers and structures, which are those of
//! `linux/ublk_cmd.h`. Decisions are in `docs/design/bridges.md`.
//!
//! The unsafe code passes memory to the kernel until a command completes, and reads memory that the kernel writes: in `control`,
//! `descriptors` and `queue`.

pub mod commands;
mod control;
mod descriptors;
mod queue;

pub use control::{Control, DeviceName};
pub use queue::{Arrival, CharacterDevice, Queue, Request};
