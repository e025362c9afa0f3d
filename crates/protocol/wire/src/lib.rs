//! Bytes to typed values and back: no state, no I/O, no unsafe.
//!
//! Codes, flags, packed fields, structures and commands are written as the tables of the reference, a row each
//! (`macros.rs`). Every structure is the wire's own: cast from and to bytes with the traits of [`zerocopy`],
//! little-endian, size and offsets asserted at compile time. Raw fields bear the wire's names; 0-based
//! counts, log2 sizes and dword units stay in them, and accessors return counts and bytes. Codes are newtypes,
//! so an unknown value stays visible. Lists and logs are written into the caller's buffer and read
//! by iterators that stop at its end.
//!
//! In comments of any crate the word `wire` with a section number names a section of docs/wire.md, the wire reference.
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

#[macro_use]
mod macros;
mod bits;

pub mod admin;
pub mod async_event;
pub mod cqe;
pub mod digest;
pub mod discovery;
pub mod fabrics;
pub mod feature;
pub mod field;
pub mod id;
pub mod identify;
pub mod kv;
pub mod lba_status;
pub mod log;
pub mod nqn;
pub mod nvm;
pub mod opcode;
pub mod pdu;
pub mod property;
pub mod reservation;
pub mod sgl;
pub mod sqe;
pub mod status;
pub mod text;
pub mod uuid;

pub use zerocopy;
pub use zerocopy::little_endian::{U16, U32, U64, U128};
