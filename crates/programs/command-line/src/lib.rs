//! Code shared by nvlane's programs: options of connections and logs, output, errors and exit codes.
//!
//! ```text
//! connection ─▶ host_config, secret_argument, survey      options that say which target, as whom, with which keys
//! control_place                                         where a target takes control calls
//! values                                                  durations and lists of cores
//! logging ─▶ log_limit, journal                           standard error
//! output, manual                                          standard output
//! exit ◀─ host_failure ◀─ host_advice; load_failure       the error line, and the exit code
//! ```
#![forbid(unsafe_code)]

pub mod connection;
pub mod control_place;
pub mod exit;
pub mod host_advice;
mod host_config;
mod host_failure;
mod journal;
mod load_failure;
mod log_limit;
pub mod logging;
pub mod manual;
pub mod output;
pub mod secret_argument;
pub mod signals;
pub mod survey;
pub mod values;
