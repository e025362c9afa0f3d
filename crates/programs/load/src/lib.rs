//! Load on a namespace or on local storage: described, produced, checked, measured and reported. No sockets and files but
//! in [`runner`] and [`ceiling`]: everything else takes `now` and gives values, so that a driver of any host library stays a short loop
//! (see [`generator`]).
//!
//! ```text
//! workload ─▶ plan ─▶ generator per lane ──operations──▶ driver ──completions──▶ generator ─▶ recorder per thread
//!                       stream  (what)                                             ledger       tally, every second
//!                       keys    (where)                                            verify           │
//!                       arrival (when)                                                              ▼
//!                                                           cpu, environment, steady ─────────▶ report
//! ```
//!
//! Times are nanoseconds on one monotonic clock of the caller's choice, named `*_ns`. Nothing is allocated per
//! operation, which costs 15 to 20 ns in all, or 120 ns with a stamped block of 4 KiB (`cargo bench -p nvlane-load`).
#![forbid(unsafe_code)]

pub mod account;
pub mod arrival;
pub mod cache_line;
pub mod ceiling;
pub mod cpu;
pub mod disturbance;
pub mod environment;
pub mod generator;
pub mod histogram;
mod invalid;
pub mod kernel_threads;
pub mod key_value;
pub mod keys;
pub mod ledger;
pub mod others;
mod pattern;
pub mod prompts;
pub mod random;
pub mod recorder;
pub mod report;
pub mod runner;
pub mod steady;
pub mod stream;
pub mod target_process;
pub mod terminal;
pub mod verify;
pub mod workload;
