//! Load on a namespace, described, produced, checked, measured and reported. No sockets here: everything
//! takes `now` and gives values, so that a driver of any host library stays a short loop.
//!
//! Times are nanoseconds on one monotonic clock of the caller's choice, named `*_ns`.
#![forbid(unsafe_code)]

pub mod arrival;
pub mod cpu;
pub mod environment;
pub mod generator;
pub mod histogram;
pub mod keys;
pub mod ledger;
pub mod random;
pub mod recorder;
pub mod report;
pub mod steady;
pub mod stream;
pub mod verify;
pub mod workload;
