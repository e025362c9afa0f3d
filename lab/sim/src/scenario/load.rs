//! The commands that users submit in a run.

use std::collections::BTreeSet;

use super::{CommandId, MS, TRANSFER_BYTES_MAX, US};
use crate::random::Random;

/// Weight of each command.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Mix {
    pub(crate) read: u32,
    pub(crate) write: u32,
    pub(crate) durable_write: u32,
    pub(crate) flush: u32,
    pub(crate) write_zeroes: u32,
    pub(crate) deallocate: u32,
    pub(crate) compare: u32,
    pub(crate) compare_and_write: u32,
    pub(crate) verify: u32,
    pub(crate) copy: u32,
    /// A Flush of all namespaces.
    pub(crate) flush_all: u32,
    /// Dataset Management that only gives hints.
    pub(crate) hint: u32,
    /// Commands that must be refused.
    pub(crate) refused: u32,
    pub(crate) lba_status: u32,
}

/// What users do.
#[derive(Clone, Debug, Default)]
pub(crate) struct LoadScenario {
    pub(crate) command_count: u64,
    /// Those of one lane.
    pub(crate) lane_command_count: u64,
    /// Those that are submitted: all without a list.
    pub(crate) commands: Option<BTreeSet<CommandId>>,
    /// Blocks of one command at most.
    pub(crate) blocks_max: u32,
    /// Ranges that one deallocation names at most.
    pub(crate) deallocated_ranges_max: u64,
    pub(crate) think_ns: u64,
    pub(crate) mix: Mix,
}

impl Mix {
    pub(super) fn draw(r: &mut Random) -> Self {
        let weight = |r: &mut Random, of: u64, high: u64| if r.one_in(of) { 0 } else { r.below(high) as u32 };
        Self {
            read: 10 + weight(r, 9, 60),
            write: 10 + weight(r, 9, 60),
            durable_write: weight(r, 2, 30),
            flush: weight(r, 3, 20),
            write_zeroes: weight(r, 2, 15),
            deallocate: weight(r, 2, 15),
            compare: weight(r, 2, 15),
            compare_and_write: if r.one_in(3) { r.below(50) as u32 } else { 0 },
            verify: weight(r, 2, 5),
            ..Self::default()
        }
    }
}

impl LoadScenario {
    /// Draws how many blocks of this size one command moves, of so many.
    pub(super) fn draw(r: &mut Random, block_bytes: u32, block_count: u64) -> Self {
        let blocks_max = if r.one_in(4) { r.between(1, 64) } else { r.between(1, 8) };
        let blocks_max = blocks_max.min(block_count).min(TRANSFER_BYTES_MAX / u64::from(block_bytes));
        Self { blocks_max: blocks_max as u32, deallocated_ranges_max: 4, ..Self::default() }
    }

    pub(super) fn draw_count(&mut self, r: &mut Random) {
        self.command_count = r.scaled(20, 300);
    }

    pub(super) fn draw_think_time(&mut self, r: &mut Random) {
        self.think_ns = r.scaled(US, 5 * MS);
    }
}
