//! The network of a run.

use super::{MS, SECOND, US, rate};
use crate::random::Random;

/// Permanent behaviour of the network.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NetworkSettings {
    /// The shortest way, ns; each connection adds its own.
    pub(crate) latency_ns: u64,
    pub(crate) jitter_ns: u64,
    /// Bytes that may be on their way in one direction.
    pub(crate) capacity: usize,
    /// Maximum bytes of the pieces that sends are cut into.
    pub(crate) piece_max: usize,
    /// Pieces that arrive late, per million, and how late.
    pub(crate) late: u32,
    pub(crate) late_ns: u64,
    /// Sends that take less than would fit, per million.
    pub(crate) short: u32,
    /// Pieces with a wrong bit, per million.
    pub(crate) corrupt: u32,
}

impl NetworkSettings {
    /// Draws a network, with this rate of wrong bits at most.
    pub(super) fn draw(r: &mut Random, is_prompt: bool, corrupt: u32) -> Self {
        let network = Self {
            latency_ns: r.scaled(2 * US, if is_prompt { 200 * US } else { 2 * MS }),
            jitter_ns: r.scaled(1, if is_prompt { 200 * US } else { 2 * MS }),
            capacity: r.scaled(2048, 256 << 10) as usize,
            piece_max: if r.one_in(3) { r.scaled(16, 512) } else { r.scaled(512, 64 << 10) } as usize,
            late: if is_prompt { 0 } else { rate(r, 3, 1000, 50_000) },
            late_ns: r.scaled(MS, 2 * SECOND),
            short: rate(r, 2, 1000, 500_000),
            corrupt,
        };
        // Small pieces are many: a connection is to live for a while.
        Self { corrupt: corrupt.min(network.piece_max as u32 * 20), ..network }
    }
}
