//! Subsystems and controllers served over lanes.
//!
//! Reactors run lanes: sockets, queue pairs and the I/O of their commands. Reactor 0 also runs the control
//! plane, which owns everything there is one of: subsystems, controllers, the configuration. They speak
//! through mailboxes.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::cast_possible_truncation))]

pub mod admin;
mod admission;
pub mod association;
mod attached;
mod buffer_quota;
mod commands;
pub mod config;
pub mod control;
pub mod controller;
pub mod discovery;
mod exclusion;
mod executor;
pub mod flush_epochs;
mod fused;
mod fused_pairs;
pub mod identity;
mod io_command;
pub mod key_value;
mod key_value_io;
mod lane;
pub mod lane_counters;
pub mod lane_id;
mod lane_table;
pub mod limits;
mod log_waiters;
pub mod machine;
pub mod message;
mod named_uuid;
pub mod namespace_table;
pub mod namespace_traffic;
mod nvm_io;
mod nvm_status;
pub mod operator;
pub mod placement;
mod reserve;
mod running;
pub mod server;
mod serving;
pub mod state;
mod stopwatch;
mod store_access;
pub mod subsystem;

pub use serving::Serving;
