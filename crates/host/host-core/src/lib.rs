//! The host of NVMe/TCP as state machines, and the commands that it sends: no sockets, clocks or threads.
//!
//! Programs use [`nvlane-host`](https://docs.rs/nvlane-host), which drives these machines by sockets and threads; a
//! simulator drives the same ones in virtual time.
//!
//! | Module | Content |
//! |---|---|
//! | [`association_machine`] | the admin queue: brings the controller up, keeps it alive, reconnects |
//! | [`lane_core`] | an I/O queue: commands, their timeouts and retries, on a sequence of connections |
//! | [`attachment`], [`flush_epoch`] | what lanes learn of their association, and share |
//! | [`rendezvous`] | which of several targets has a key |
//! | [`reconnect`], [`retry`] | which commands are submitted again, and when |
//! | [`namespace`], [`key_value`], [`submit`] | commands, their completions, and how they fail |
//! | [`connection_tls`] | TLS between a machine and any socket |
//! | [`discovery_log`] | reads a discovery log in parts |
//!
//! The features `authentication` and `tls`, which are on by default, are in-band authentication and TLS. Without `tls` no C
//! is compiled. Without a feature its keys are types that have no value.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::cast_possible_truncation))]

pub mod association_machine;
pub mod attachment;
#[cfg_attr(not(feature = "authentication"), path = "no_authentication.rs")]
pub mod authentication;
pub mod buffer;
#[cfg_attr(not(feature = "tls"), path = "no_tls.rs")]
pub mod connection_tls;
pub mod discovery_log;
pub mod duration;
pub mod failure;
pub mod flush_epoch;
pub mod key_value;
mod known_namespaces;
pub mod lane_core;
pub mod link_error;
pub mod namespace;
pub mod queue_map;
mod reauthentication;
pub mod reconnect;
pub mod rendezvous;
pub mod retry;
pub mod submit;
mod tls_keys;

pub use authentication::Credentials;
pub use buffer::Vectored;
pub use failure::Failure;
pub use key_value::{Batch, KeyValueNamespace, Pin};
pub use link_error::LinkError;
pub use namespace::{BlockRange, InvalidCommand, Namespace};
pub use proto::host_queue::DataBuffer;
pub use reconnect::{ReconnectSettings, ReplayPolicy};
pub use submit::{Command, Completion};
