//! One partition of the key space: pairs in memory, in cache lines, and the log that makes them durable.
//!
//! Start reading at [`Partition`]; its [`Processor`] holds the pairs. The crate is sans-io. A partition belongs to one
//! reactor, or lies in a [`PartitionSet`], where all reactors use it. It knows no protocol: the crates above decode
//! requests into calls.

#![forbid(unsafe_code)]
// Units, regions and lengths fit in 32 bits by construction: a partition has at most 2^32 units.
#![allow(clippy::cast_possible_truncation)]

mod access;
#[cfg(test)]
mod access_tests;
mod allocator;
mod arriving;
mod atomic;
mod bucket;
mod changes;
mod chunked;
#[cfg(test)]
mod chunked_tests;
mod clock;
#[cfg(any(test, feature = "colliding-keys"))]
pub mod colliding;
mod counted;
mod counters;
#[cfg(test)]
mod density_tests;
mod evicted;
mod eviction;
#[cfg(test)]
mod eviction_tests;
#[cfg(test)]
mod far_memory_tests;
mod ghosts;
#[cfg(test)]
mod growth_tests;
mod headroom;
mod heap;
mod index;
mod item;
mod journal;
mod kept;
#[cfg(test)]
mod kept_tests;
mod key;
mod leases;
pub mod log;
mod log_header;
mod memory;
mod memory_limit;
#[cfg(test)]
mod model_tests;
mod pair;
mod pair_writer;
mod pairs;
mod partition;
mod parts;
mod pending;
mod pins;
mod place;
mod processor;
mod record;
mod regions;
mod relocation;
mod reserve;
#[cfg(test)]
mod resize_tests;
mod settings;
mod shared;
mod station;
mod stub;
mod table;
mod touches;
mod value;
pub mod vector;

pub use allocator::ResizeStep;
pub use arriving::{ArrivingShare, Begun};
pub use atomic::{Atomic, AtomicResult};
pub use chunked::ChunkList;
pub use clock::Clock;
pub use counted::CountedPairs;
pub use counters::Counters;
pub use evicted::Evicted;
pub use item::{CAS_MAX, HEADER_BYTES as ITEM_HEADER_BYTES, USES_MAX};
pub use journal::LogRoom;
pub use kept::Kept;
pub use key::{KEY_BYTES_MAX, KeyHash};
pub use leases::Leased;
pub use memory_limit::{MemoryLimit, Usage};
pub use pair::{Attributes, Condition, Extension, Marks, Stored};
pub use partition::Partition;
pub use parts::Parts;
pub use place::{Home, PairPlace};
pub use processor::{Processor, Seen};
pub use regions::REGION_BYTES;
pub use settings::{Eviction, Settings};
pub use shared::{ExclusiveGuard, PartitionAccess, PartitionSet, ReadLocks, SharedGuard};
pub use station::{Arrival, Station};
pub use table::ListPosition;
pub use touches::TouchCounts;
pub use value::Value;
