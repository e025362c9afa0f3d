//! The NVMe/TCP state machines of host and controller: no sockets, clocks or threads.
//!
//! They take bytes, values and the time; they give values. The same code runs under the reactor, a simulator,
//! a fuzzer and a C program. Each machine has four kinds of methods: input from outside (`on_*`), wishes of our
//! side (verbs), output to carry out (`next_*`) and questions (nouns).
#![forbid(unsafe_code)]
// Input of a peer must not cause a panic: see docs/testing.md.
#![cfg_attr(
    not(test),
    deny(
        clippy::arithmetic_side_effects,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::unwrap_used
    )
)]
#![cfg_attr(test, allow(clippy::cast_possible_truncation))]

pub mod async_events;
pub mod caravan;
mod command_table;
pub mod controller;
pub mod controller_queue;
mod data_digest;
pub mod doorbell;
pub mod framer;
pub mod handshake;
mod host_ana;
pub mod host_controller;
pub mod host_limits;
pub mod host_namespaces;
pub mod host_queue;
pub mod keep_alive;
pub mod receive;
mod send_budget;
mod violation;
mod write_data;
pub mod zero_copy;

pub use caravan::{Caravan, Piece};
pub use command_table::{SLOT_COUNT_MAX, Slot};
pub use controller_queue::ControllerQueue;
pub use data_digest::DataDigest;
pub use host_queue::HostQueue;
pub use receive::ReceivePlan;
pub use send_budget::SendBudget;
pub use violation::Violation;
pub use write_data::WINDOW_COUNT_MAX;
