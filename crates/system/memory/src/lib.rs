//! Memory that the kernel or several threads read and write, and fast passes over bytes. No call knows a reactor.
//!
//! | Subject | Modules |
//! |---|---|
//! | Buffers of commands | `buffers` (the pool of a reactor), `segment` (pieces of a vectored send), `payload` |
//! | Storage in memory | `memory` (RAM namespaces), `lines` and `chunks` (keys and values) |
//! | Pages of the system | `mapping` |
//! | Passes over bytes | `copy`, [`crc32c`], `byte_masks`, `partitioner` (hashes of keys), `wide` |
//!
//! The unsafe code accesses mapped memory, in `buffers`, `chunks`, `lines`, `mapping`, `memory` and `segment`, or
//! executes instructions that not every processor has, in `byte_masks`, `crc32c` and `wide`.

#![cfg_attr(test, allow(clippy::cast_possible_truncation))]

mod buffers;
mod byte_masks;
mod chunks;
mod copy;
pub mod crc32c;
mod lines;
mod mapping;
mod memory;
mod partitioner;
mod payload;
mod payload_ranges;
mod segment;
mod wide;

pub use buffers::{BLOCK_BYTES_MAX, BLOCK_BYTES_MIN, Buffer, Pool};
pub use byte_masks::{controls, equal_bytes};
pub use chunks::{CHUNK_BYTES, Chunk, Chunks};
pub use copy::copy_bytes;
pub use lines::{LINE_BYTES, Line, Lines, Untouched, prefetch};
pub use mapping::page_bytes;
pub use memory::{Memory, MemoryAccess, MemoryRef, PastEnd, STRIPE_BYTES};
pub use partitioner::{Partitioner, partition_of};
pub use payload::{Payload, Torn};
pub use payload_ranges::PayloadRanges;
pub use segment::Segment;
pub use wide::with_wide_vectors;
