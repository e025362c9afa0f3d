//! Fuzzing entry points: one function for each input that a peer or user controls.
//!
//! The fuzzers (`fuzz_targets`) and the plain test that replays the corpora (`tests/corpus.rs`) call the same
//! functions. Each accepts any bytes and panics on an error: besides panics of the product these are violated
//! invariants, such as buffers that are not returned, commands that do not end exactly once, and answers that depend on
//! how a stream is cut.
#![forbid(unsafe_code)]

mod authentication;
mod configuration;
mod control_requests;
mod discovery_log;
mod fuse_requests;
mod host_association;
mod host_lane;
mod input;
mod key_values;
mod memcached;
mod metrics_request;
mod names;
mod nbd_stream;
mod raw_host;
mod raw_target;
mod reactor;
#[cfg(test)]
mod scarce_buffers_tests;
mod structures;
mod target_commands;
mod target_stream;
mod tls_stream;
mod virtqueues;

pub use authentication::authentication;
pub use configuration::configuration;
pub use control_requests::control_requests;
pub use discovery_log::discovery_log;
pub use fuse_requests::fuse_requests;
pub use host_association::host_association;
pub use host_lane::host_lane;
pub use key_values::key_values;
pub use memcached::memcached;
pub use metrics_request::metrics_request;
pub use names::names;
pub use nbd_stream::nbd_stream;
pub use structures::structures;
pub use target_commands::target_commands;
pub use target_stream::target_stream;
pub use tls_stream::tls_stream;
pub use virtqueues::virtqueues;

/// A fuzzing entry point.
#[derive(Clone, Copy)]
pub struct Target {
    /// Name of the fuzzer and of its corpus directory.
    pub name: &'static str,
    /// The function.
    pub run: fn(&[u8]),
}

/// All entry points.
pub const TARGETS: &[Target] = &[
    Target { name: "authentication", run: authentication },
    Target { name: "configuration", run: configuration },
    Target { name: "control_requests", run: control_requests },
    Target { name: "discovery_log", run: discovery_log },
    Target { name: "fuse_requests", run: fuse_requests },
    Target { name: "host_association", run: host_association },
    Target { name: "host_lane", run: host_lane },
    Target { name: "key_values", run: key_values },
    Target { name: "memcached", run: memcached },
    Target { name: "metrics_request", run: metrics_request },
    Target { name: "names", run: names },
    Target { name: "nbd_stream", run: nbd_stream },
    Target { name: "structures", run: structures },
    Target { name: "target_commands", run: target_commands },
    Target { name: "target_stream", run: target_stream },
    Target { name: "tls_stream", run: tls_stream },
    Target { name: "virtqueues", run: virtqueues },
];
