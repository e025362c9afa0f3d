//! Hostile inputs over real sockets, against any NVMe/TCP peer.
//!
//! A *row* is one hostile input with the answer that is right. Rows for targets are run from here against whatever listens at an
//! address; rows for hosts by a target of our own that misbehaves. After each row the peer must still be sound: it answers,
//! a neighbour's I/O has gone on, and a new association works. Every PDU that comes is checked as well, down to reserved
//! bytes that must be zero.
//!
//! The connections are those of `peer`: blocking sockets with time limits.
#![forbid(unsafe_code)]

pub mod finding;
pub mod host;
pub mod neighbour;
pub mod report;
pub mod row;
pub mod rows;
mod stillness;
pub mod target;
pub mod target_run;
