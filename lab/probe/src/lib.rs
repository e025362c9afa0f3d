//! Hostile inputs over real sockets, for any NVMe/TCP peer.
//!
//! A *row* is one hostile input and the right reaction to it. Rows for targets connect to the address of any target;
//! rows for hosts run in a fake target that injects faults. After each row the peer must still work: it answers, a
//! neighbour's I/O has continued, and a new association succeeds. Every received PDU is checked as well, including
//! reserved bytes that must be zero.
//!
//! Connections are those of `peer`: blocking sockets with time limits.
#![forbid(unsafe_code)]
#![allow(clippy::missing_errors_doc, reason = "an error of the laboratory ends a run with its message")]

mod client_hello;
pub mod document;
pub mod finding;
pub mod host;
pub mod neighbour;
pub mod report;
mod row;
pub mod rows;
mod stillness;
pub mod target;
pub mod target_run;
mod tls_link;
