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
#[cfg(test)]
mod density_tests;
mod durable;
mod evict;
#[cfg(test)]
mod growth_tests;
mod index;
mod item;
mod kept;
pub mod log;
pub mod memcached;
mod memory;
#[cfg(test)]
mod model_tests;
mod processor;
mod regions;
mod station;
mod value;
pub mod vector;

pub use atomic::{Atomic, AtomicResult};
pub use chunked::ChunkList;
pub use kept::Kept;
#[cfg(any(test, feature = "count-touches"))]
pub use memory::Touches;
pub use processor::{
    Attributes, Condition, Counters, Eviction, KEY_BYTES_MAX, KeyHash, Marks, Pending, Pin, Place, Processor,
    Settings, Stored,
};
pub use station::{Arrival, Station};
pub use value::Value;
