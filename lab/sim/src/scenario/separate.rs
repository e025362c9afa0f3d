//! The choices of a seed for a host with separate queues and for its namespaces.

use super::{DiskSettings, MS, Scenario, US};
use crate::random::Random;

/// The choices of a seed.
#[derive(Clone, Debug)]
pub(crate) struct SeparateSettings {
    pub(crate) queue_count: u16,
    /// Namespaces, each on a file and a disk of its own.
    pub(crate) file_count: usize,
    pub(crate) block_bytes: u32,
    pub(crate) block_count: u64,
    pub(crate) depth: u16,
    pub(crate) think_ns: u64,
    pub(crate) command_count: u64,
    /// One of this number of its acts closes a queue.
    pub(crate) closes_one_in: u64,
    /// One of this number makes the next flush of a disk fail, or the operator reopen a namespace.
    pub(crate) loses_one_in: u64,
    /// How the disks behave. Errors of flushes are those of the first disk alone.
    pub(crate) disk: DiskSettings,
}

impl SeparateSettings {
    pub(super) fn new(r: &mut Random, scenario: &Scenario) -> Self {
        Self {
            queue_count: r.between(2, 4) as u16,
            file_count: r.between(2, 3) as usize,
            block_bytes: r.pick(&[512, 512, 4096]),
            block_count: r.between(4, 12),
            depth: r.between(1, 6) as u16,
            think_ns: r.scaled(10 * US, 5 * MS),
            command_count: r.scaled(50, 400),
            closes_one_in: r.scaled(8, 100),
            loses_one_in: r.scaled(10, 100),
            disk: DiskSettings {
                sync_error: if r.one_in(4) { r.scaled(500, 50_000) as u32 } else { 0 },
                ..scenario.disk.without_errors()
            },
        }
    }
}
