//! Fast passes over bytes: [`copy_bytes`], [`crc32c`], masks of sixteen bytes, and loops for wide vectors.
//!
//! The unsafe code, in `byte_masks`, `crc32c` and `wide`, executes instructions that not every processor has.

#![cfg_attr(test, allow(clippy::cast_possible_truncation))]

mod byte_masks;
mod copy;
pub mod crc32c;
mod wide;

pub use byte_masks::{controls, equal_bytes};
pub use copy::copy_bytes;
pub use wide::with_wide_vectors;
