//! Key-value: the processor, which holds one partition of the key space in cache lines, and the doors to it.
//!
//! Start reading at [`Processor`]. It is sans-io and belongs to one reactor; the doors decode what peers send
//! into calls of it.

#![forbid(unsafe_code)]
// Lines, regions and lengths are counted in 32 bits by construction: a partition has fewer than 2^32 lines.
#![allow(clippy::cast_possible_truncation)]

mod atomic;
mod batch;
mod bucket;
mod changes;
mod chunked;
#[cfg(test)]
mod chunked_tests;
mod clock;
mod counters;
#[cfg(test)]
mod density_tests;
mod durable;
mod evict;
#[cfg(test)]
mod growth_tests;
mod index;
mod item;
mod kept;
mod key;
pub mod log;
pub mod memcached;
mod memory;
#[cfg(test)]
mod model_tests;
mod pair;
mod partition;
mod pending;
mod pins;
mod place;
mod processor;
mod record;
mod regions;
mod settings;
mod station;
mod value;
pub mod vector;

pub use atomic::{Atomic, AtomicResult};
pub use chunked::ChunkList;
pub use clock::Clock;
pub use counters::Counters;
pub use kept::Kept;
pub use key::{KEY_BYTES_MAX, KeyHash};
#[cfg(any(test, feature = "count-touches"))]
pub use memory::Touches;
pub use pair::{Attributes, Condition, Marks, Stored};
pub use partition::Partition;
pub use pending::Pending;
pub use pins::Pin;
pub use place::Place;
pub use processor::Processor;
pub use settings::{Eviction, Settings};
pub use station::{Arrival, Station};
pub use value::Value;
