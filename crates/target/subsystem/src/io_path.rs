//! The I/O path of a reactor: from a lane's command to storage and back.

pub(crate) mod attached;
pub(crate) mod buffer_quota;
pub(crate) mod command_effects;
pub(crate) mod command_form;
pub(crate) mod commands;
pub(crate) mod digest_queue;
pub(crate) mod exclusion;
pub(crate) mod executor;
pub(crate) mod fused;
pub(crate) mod fused_pairs;
pub(crate) mod io_command;
pub(crate) mod key_value_io;
pub(crate) mod lane;
pub(crate) mod lane_table;
pub(crate) mod log_waiters;
pub(crate) mod maybe_tls_socket;
pub(crate) mod nvm_io;
pub(crate) mod nvm_status;
pub(crate) mod own_partition;
pub(crate) mod recording;
pub(crate) mod reserve;
pub(crate) mod running;
pub(crate) mod stopwatch;
pub(crate) mod store_access;
pub(crate) mod throttle;
pub(crate) mod throttled;
