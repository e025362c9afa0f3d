//! A raw NVMe/TCP peer: speaks the protocol by hand over blocking sockets, so that a test or probe can set every field
//! of every PDU, and checks every PDU it receives down to reserved bytes.
//!
//! ```text
//! RawHost ── connects ──▶ Queue ── sends commands over ──▶ Link ── sends ──▶ Draft::seal()
//!                                                             ◀── receives ── Got
//! ```
//!
//! - [`pdu::Draft`]: builds one PDU; any byte may be overwritten before its digests are computed.
//! - [`link::Link`]: one connection to a target.
//! - [`queue::Queue`]: one queue pair over a link: command identifiers, R2Ts, data, completions.
//! - [`raw_host::RawHost`]: Connect and controller start-up of a well-behaved host.
//! - [`fake_target::FakeTarget`]: a listening target with namespaces in memory, each connection a
//!   [`session::Session`]; a fault may replace its answer to any event.
//! - [`target_end::TargetEnd`] and [`controller::Controller`]: the same without sockets.
//! - [`memcached::Client`]: one connection to a memcached listener.
//! - [`certificates::Authority`]: certificates of TLS, by the program `openssl`.
//! - [`port::free_address`]: a port for a program that a test starts.
//!
//! Operations return a [`finding::Check`]: `Err` says what the other side did wrong, or that it did nothing in time.
//!
//! This crate must not depend on `proto`, `host` or `subsystem`: it is the independent second implementation that they
//! are tested against.
#![forbid(unsafe_code)]

pub mod certificates;
pub mod controller;
pub mod fake_target;
pub mod finding;
pub mod link;
pub mod memcached;
pub mod pdu;
pub mod port;
pub mod queue;
pub mod raw_host;
pub mod session;
pub mod stage;
pub mod target_end;
pub mod trial;
