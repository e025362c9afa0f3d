//! Block status: the context that tells which parts of an export are allocated, and its bits.

/// The context.
pub const ALLOCATION: &str = "base:allocation";

/// Status bit of [`ALLOCATION`]: a hole.
pub const STATE_HOLE: u32 = 1;
/// Status bit of [`ALLOCATION`]: it reads as zeroes.
pub const STATE_ZERO: u32 = 1 << 1;
