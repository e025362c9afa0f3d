//! The disks of a run.

use super::{MS, SECOND, US, rate};
use crate::random::Random;

/// Permanent behaviour of the disk.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct DiskSettings {
    pub(crate) latency_ns: u64,
    pub(crate) jitter_ns: u64,
    /// Operations that take very long, per million, and how long.
    pub(crate) slow: u32,
    pub(crate) slow_ns: u64,
    /// Additional time of a flush, ns: much longer than that of a write, on many a disk.
    pub(crate) flush_ns: u64,
    /// Operations that never end by themselves, per million.
    pub(crate) stuck: u32,
    /// Operations that fail in passing, per million.
    pub(crate) passing: u32,
    /// Reads and writes that stop short, per million.
    pub(crate) short: u32,
    /// Reads that fail, per million.
    pub(crate) read_error: u32,
    /// Writes that fail, per million.
    pub(crate) write_error: u32,
    /// Flushes and durable writes that fail, per million.
    pub(crate) sync_error: u32,
    /// Whether ranges can be punched and zeroed.
    pub(crate) supports_ranges: bool,
    /// Operations that may run at once.
    pub(crate) limit: usize,
}

impl DiskSettings {
    pub(super) fn draw(r: &mut Random) -> Self {
        let has_faults = r.one_in(2);
        let error = |r: &mut Random, of: u64, high: u64| if has_faults { rate(r, of, 500, high) } else { 0 };
        Self {
            latency_ns: r.scaled(1, 200 * US),
            jitter_ns: r.scaled(1, MS),
            slow: rate(r, 4, 500, 20_000),
            slow_ns: r.scaled(MS, 3 * SECOND),
            flush_ns: 0,
            stuck: 0,
            passing: error(r, 3, 200_000),
            short: error(r, 3, 300_000),
            read_error: error(r, 3, 20_000),
            write_error: error(r, 3, 20_000),
            sync_error: error(r, 4, 50_000),
            supports_ranges: !r.one_in(4),
            limit: if r.one_in(4) { r.between(1, 4) as usize } else { 256 },
        }
    }

    /// This disk without failures for good, and without passing ones that are as frequent as to come to the same.
    pub(crate) fn without_errors(self) -> Self {
        let (passing, short) = (self.passing / 8, self.short / 8);
        Self { stuck: 0, passing, short, read_error: 0, write_error: 0, sync_error: 0, ..self }
    }
}
