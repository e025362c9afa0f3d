//! The library over real sockets, against a target in this process.
#![allow(clippy::cast_possible_truncation)]

mod handles;
mod hostile;
mod lanes;
mod paths;
mod reconnect;
#[path = "../support/target.rs"]
mod target;
mod waits;
mod zero_copy;
