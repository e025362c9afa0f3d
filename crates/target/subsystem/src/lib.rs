//! Subsystems and controllers served over lanes.
//!
//! Reactors run lanes: sockets, queue pairs and the I/O of their commands. Reactor 0 also runs the control plane, which
//! owns all singleton state: subsystems, controllers, the configuration. They communicate through mailboxes.
//!
//! The modules below are listed from the top floor down: a group uses those under it.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::cast_possible_truncation))]

// The running target: its threads, and what each reactor runs.
pub mod server;
mod serving;

// Configuration, and the operator's thread that puts it in place.
pub mod config;
pub mod operator;

// The control plane on reactor 0: Connect, admin commands, which connections are admitted, and to which reactor.
pub mod admin;
mod admission;
pub mod control;
pub mod placement;
pub mod socket_priority;

// The I/O path of a reactor: from a lane's command to storage and back.
mod attached;
mod buffer_quota;
mod command_effects;
mod command_form;
mod commands;
mod digest_queue;
mod exclusion;
mod executor;
mod fused;
mod fused_pairs;
mod io_command;
mod key_value_io;
mod lane;
mod lane_table;
mod log_waiters;
mod nvm_io;
mod nvm_status;
mod reserve;
mod running;
mod stopwatch;
mod store_access;
mod tls_socket;

// The audit log: events of the control plane, written by a thread of its own.
pub mod audit;

// Messages between reactors, the control plane and the operator.
pub mod key_value;
pub mod message;
pub mod state;

// The objects of a target: subsystems, namespaces, controllers and associations, the discovery log.
pub mod access;
pub mod association;
pub mod authentication;
mod catalog;
pub mod controller;
pub mod discovery;
pub mod flush_epochs;
pub mod key_rights;
pub mod namespace_table;
pub mod namespace_traffic;
pub mod subsystem;

// Names, numbers and limits, which know nothing of the rest.
pub mod allow_list;
mod allowance;
pub mod identity;
pub mod lane_counters;
pub mod lane_end;
pub mod lane_id;
pub mod limits;
pub mod listener_gate;
pub mod machine;
pub mod memcached_trust;
mod named_uuid;
mod unconnected;

pub use serving::{MEMCACHED, Serving};
