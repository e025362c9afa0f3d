//! Subsystems and controllers served over lanes.
//!
//! Reactors run lanes: sockets, queue pairs and the I/O of their commands. Reactor 0 also runs the control plane, which
//! owns all singleton state: subsystems, controllers, the configuration. They communicate through mailboxes.
//!
//! Imports between the groups go downward, from each to those behind it. `cargo xtask circles` checks it.
//!
//! ```text
//! server ▶ operator ▶ config, serving ▶ control_plane ▶ io_path ▶ messages ▶ objects ▶ audit ▶ names
//! ```
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::cast_possible_truncation))]

pub mod audit;
pub mod config;
mod control_plane;
mod io_path;
mod messages;
mod names;
mod objects;
pub mod operator;
pub mod server;
mod serving;

pub use control_plane::{admin, control, placement};
pub use messages::{key_value, message, state, trace};
pub use names::{
    allow_list, identity, lane_counters, lane_end, lane_id, limits, listener_gate, machine, memcached_trust,
    placement_policy, slow_threshold, socket_priority,
};
pub use objects::{
    access, association, authentication, controller, discovery, flush_epochs, key_rights, namespace_table,
    namespace_traffic, rate_limit, step_error, subsystem,
};
pub use serving::{MEMCACHED, Serving};
