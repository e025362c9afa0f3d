//! Subsystems and controllers served over lanes.
//!
//! Reactors run lanes: sockets, queue pairs and the I/O of their commands. Reactor 0 also runs the control
//! plane, which owns everything there is one of: subsystems, controllers, the configuration. They speak
//! through mailboxes.
#![forbid(unsafe_code)]

pub mod admin;
pub mod config;
pub mod control;
pub mod control_record;
pub mod discovery;
pub mod identity;
pub mod lane_counters;
pub mod limits;
pub mod message;
pub mod namespace_table;
pub mod operator;
pub mod subsystem;
