//! NVMe/TCP host library: connects to any standard target, submits commands, completes them.
//!
//! Three ways to submit, over the same lanes:
//!
//! | Type | For |
//! |---|---|
//! | [`BlockingNamespace`], [`BlockingKeyValue`] | a thread that waits for each result |
//! | [`ValueLanes`] | a thread that moves many long values at once, in place |
//! | [`ValueSpread`] | the same, with keys spread over several targets |
//! | [`AsyncNamespace`], [`AsyncKeyValue`] | any executor |
//! | [`Lane`], [`LaneSet`] | the fast path: the caller's thread submits, polls and takes completions |
//!
//! Connect to a namespace, read, write, flush:
//!
//! ```no_run
//! use nvlane_host::{Address, BlockingNamespace, Options};
//!
//! let address: Address = "192.0.2.1:4420/nqn.2016-06.io.nvlane:disk?ns=1".parse()?;
//! let mut disk = BlockingNamespace::connect(&address, Options::default())?;
//! let mut block = vec![0; disk.namespace().lba_bytes() as usize];
//! disk.read_at(&mut block, 0)?;
//! block[0] ^= 1;
//! disk.write_at(&block, 0)?;
//! disk.flush()?;
//! # Ok::<(), nvlane_host::Error>(())
//! ```
//!
//! Ask a controller about itself and its namespaces:
//!
//! ```no_run
//! use nvlane_host::{Address, Association, Nsid, Options};
//!
//! let address: Address = "192.0.2.1/nqn.2016-06.io.nvlane:disk".parse()?;
//! let association = Association::connect(&address, Options::default().without_lanes())?;
//! let identify = association.identify_controller()?;
//! println!("{} {} {}", identify.model(), identify.serial(), identify.firmware());
//! for info in association.namespaces().iter() {
//!     println!("namespace {}: {:?}", info.nsid, info.geometry);
//! }
//! let block = association.identify_namespace(Nsid::new(1))?;
//! println!("{} blocks", block.nsze);
//! # Ok::<(), nvlane_host::Error>(())
//! ```
//!
//! [`reconnect`] and [`retry`] state which commands are submitted again, and what a caller may rely on after a lost
//! connection. [`wire`] has the structures of every command, log page and status.
//!
//! # Features
//!
//! | Feature | Content | On by default |
//! |---|---|---|
//! | `tls` | TLS 1.3 with keys of [`Options::tls`] or [`Options::concat`]; compiles AWS-LC and s2n-tls, which are C | yes |
//! | `authentication` | in-band authentication with [`Options::credentials`]; part of `tls` | yes |
//!
//! Without a feature its keys and secrets are types that have no value, and options or targets that demand it end with
//! [`Error::NotBuilt`] or [`LinkError::NotBuilt`]. Without `tls` no C is compiled.
//!
//! The state machines below are in `nvlane-host-core`, without sockets, clocks and threads, so that a
//! simulator runs the same code.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::cast_possible_truncation))]

mod address;
mod admin;
mod association;
mod association_state;
mod association_thread;
mod blocking;
mod connect;
pub mod discovery;
mod error;
mod event;
mod futures;
mod handed_over;
mod identify;
mod identity;
mod invalid_spread;
mod key_value_outcome;
mod lane;
mod lane_set;
mod messages;
mod options;
mod phases;
mod shared_association;
mod transport;
mod value_lanes;
mod value_pairs;
mod value_spread;
mod value_targets;
mod value_transfer;
mod waiting;

pub use address::{Address, AddressError, HostName};
pub use admin::AdminCommand;
pub use association::Association;
pub use blocking::{BlockingKeyValue, BlockingNamespace};
pub use error::Error;
pub use event::{Event, Events};
pub use futures::{AsyncKeyValue, AsyncNamespace, BatchOutcomes, Failed};
pub use handed_over::HandedLanes;
pub use identity::HostIdentity;
pub use invalid_spread::InvalidSpread;
pub use lane::{EventDescriptor, Lane, LaneCounters};
pub use lane_set::LaneSet;
pub use options::{Options, Tuning};
pub use phases::Phases;
pub use value_lanes::ValueLanes;
pub use value_spread::{SpreadOptions, SpreadTarget, TargetHealth, ValueSpread};
pub use value_transfer::{Moved, ValueTransfer};
pub use waiting::{WaitBeside, WaitEnded};

// Types of the crates below in the signatures above.
pub use host_core::association_machine::{AdminAnswer, ControllerInfo};
pub use host_core::authentication::Credentials;
pub use host_core::buffer::Vectored;
pub use host_core::connection_tls::HostKeys;
pub use host_core::failure::{Failure, Waited};
pub use host_core::flush_epoch::FlushEpoch;
pub use host_core::key_value::{AtomicOutcome, Batch, KeyValueNamespace, PartitionMap, Pin};
pub use host_core::link_error::{IoError, LinkContext, LinkError};
pub use host_core::namespace::{BlockRange, InvalidCommand, Namespace};
pub use host_core::queue_map::{InvalidQueueMap, LaneClass, QueueMap};
pub use host_core::reconnect::{ReconnectSettings, ReplayPolicy};
pub use host_core::submit::{Command, Completion, Refused, RefusedReason};
pub use host_core::{key_value, reconnect, rendezvous, retry};
pub use proto::Violation;
pub use proto::doorbell::{DoorbellCounters, Policy as DoorbellPolicy, Reason as DoorbellReason};
pub use proto::handshake::Agreement;
pub use proto::host_controller::ControllerError;
pub use proto::host_limits::Limits;
pub use proto::host_namespaces::{
    Geometry, KeyPartitions, KeySpace, KeySpaceVendor, NamespaceInfo, Unusable,
};
pub use proto::host_queue::DataBuffer;
pub use proto::receive::Receive;
pub use proto::zero_copy::Policy as ZeroCopy;
pub use reactor::{Arrival, BusyPoll, Durations, MaxSegment};
#[cfg(feature = "authentication")]
pub use security;
pub use wire;
pub use wire::async_event::AsyncEvent;
pub use wire::discovery::DiscoveryEntry;
pub use wire::feature::{Fid, GetFeatures, SetFeatures};
pub use wire::id::{Cntlid, Csi, Nsid, Qid};
pub use wire::identify::IdentifyCommand;
pub use wire::identify::controller::IdentifyController;
pub use wire::identify::namespace::{DeallocatedValue, IdentifyNamespace};
pub use wire::kv::batch::{Outcome, Outcomes, StoreAttributes};
pub use wire::kv::operation::{
    AtomicFunction, AtomicOperation, ElementCode, VectorComparison, VectorFunction,
};
pub use wire::kv::presence::Presence;
pub use wire::kv::{Key, KeyList, StoreOptions};
pub use wire::lba_status::{AllocatedBlocks, InvalidLbaStatus};
pub use wire::log::error::ErrorEntry;
pub use wire::log::health::{FirmwareSlots, HealthLog};
pub use wire::log::support::{CommandsAndEffects, SupportedPages};
pub use wire::log::{GetLogPage, Lid};
pub use wire::nqn::{HostId, Nqn};
pub use wire::pdu::{DataAlignment, Digests};
pub use wire::property::{Cap, Property, Vs};
pub use wire::sqe::Sqe;
pub use wire::status::Status;
pub use wire::uuid::Uuid;

/// The example of the README compiles.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

/// The example of the developers' guide compiles.
#[cfg(doctest)]
#[doc = include_str!("../../../../docs/guide/developers.md")]
struct DevelopersGuide;
