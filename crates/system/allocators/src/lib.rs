//! Global allocators: [`ProgramAllocator`] is that of the programs. Tests use [`CountingAllocator`], which counts
//! allocations, or [`PoisoningAllocator`], which overwrites freed memory.
//!
//! A program or a test names one in `#[global_allocator]`. The trait of allocators is unsafe, so they are no part of
//! the tests that use them.

mod counting;
mod poison;
mod program;

pub use counting::{Allocations, CountingAllocator};
pub use poison::{POISON, PoisoningAllocator};
pub use program::{ProgramAllocator, give_back_freed_memory};
