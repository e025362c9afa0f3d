//! The NVMe/TCP host library: connect to any standard target, submit, complete.
//!
//! [`association_machine`] and [`lane_core`] are the machines that decide: no sockets, clocks, threads or random numbers of their own, so that a
//! simulator runs the same code. Everything else drives them.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::cast_possible_truncation))]

mod address;
mod admin;
mod association;
pub mod association_machine;
mod association_state;
mod association_thread;
pub mod attachment;
pub mod blocking;
mod buffer;
mod connect;
pub mod discovery;
mod error;
mod event;
mod failure;
pub mod flush_epoch;
pub mod futures;
mod handed_over;
mod identify;
mod identity;
pub mod key_value;
mod lane;
pub mod lane_core;
mod lane_set;
mod messages;
mod namespace;
mod options;
mod phases;
mod queue_map;
pub mod reconnect;
pub mod retry;
mod shared_association;
mod submit;

pub use address::{Address, AddressError, HostName};
pub use admin::AdminCommand;
pub use association::Association;
pub use association_machine::{AdminAnswer, ControllerInfo};
pub use buffer::Vectored;
pub use error::{Error, LinkContext, LinkError};
pub use event::Event;
pub use failure::Failure;
pub use handed_over::HandedLanes;
pub use identity::HostIdentity;
pub use key_value::{AtomicOutcome, Batch, KeyValueNamespace};
pub use lane::{Lane, LaneCounters};
pub use lane_set::LaneSet;
pub use namespace::{BlockRange, InvalidCommand, Namespace};
pub use options::Options;
pub use phases::Phases;
pub use proto::doorbell::{DoorbellCounters, Policy as DoorbellPolicy, Reason as DoorbellReason};
pub use proto::host_queue::DataBuffer;
pub use proto::receive::Receive;
pub use proto::zero_copy::Policy as ZeroCopy;
pub use queue_map::{InvalidQueueMap, LaneClass, QueueMap};
pub use reactor::{Arrival, BusyPoll};
pub use reconnect::{ReconnectSettings, ReplayPolicy};
pub use submit::{Command, Completion, Refused, RefusedReason};
pub use wire::kv::batch::{Outcome, Outcomes};
pub use wire::kv::operation::{
    AtomicFunction, AtomicOperation, ElementCode, VectorComparison, VectorFunction,
};
pub use wire::kv::{Key, StoreOptions};

/// The example of the developers' guide compiles.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/guide/developers.md")]
struct DevelopersGuide;
