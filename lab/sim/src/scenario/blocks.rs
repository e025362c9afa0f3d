//! The blocks of the first namespace: their place on its disk, those that fail for good, and commands that meet on
//! them.

use std::ops::Range;

use super::{Fault, Scenario};
use crate::random::Random;

/// Bytes, and blocks, around which a namespace lies that does not begin with its first block: a truncated address loses
/// these.
const BOUNDARIES: [u64; 5] = [1 << 31, 1 << 32, 1 << 33, 1 << 40, 1 << 44];

/// Blocks of the first namespace that fail for good while things go wrong, as the model has them.
#[derive(Clone, Debug, Default)]
pub(crate) struct BadBlocks {
    /// Every read fails.
    pub(crate) unreadable: Range<u64>,
    /// Every write, and every change of the allocation.
    pub(crate) unwritable: Range<u64>,
}

impl Scenario {
    /// A namespace of which only the blocks around a power of two are used, blocks that fail, deallocations of many
    /// ranges, and pairs beside other changes. The other draws stay what they were.
    pub(super) fn draw_blocks(&mut self) {
        let mut random = Random::new(self.seed, 70);
        let r = &mut random;
        if !self.is_memory && r.one_in(3) {
            let boundary = r.pick(&BOUNDARIES);
            let of_bytes = boundary / u64::from(self.block_bytes);
            let boundary = if r.one_in(2) { of_bytes } else { boundary };
            self.first_block = boundary - r.between(0, self.block_count);
        }
        if !self.is_memory && r.one_in(6) {
            let some = |r: &mut Random| {
                let start = r.below(self.block_count);
                start..(start + r.between(1, 2)).min(self.block_count)
            };
            let (unreadable, unwritable) = (some(r), some(r));
            let kinds = r.below(3);
            self.bad = BadBlocks {
                unreadable: if kinds == 0 { 0..0 } else { unreadable },
                unwritable: if kinds == 1 { 0..0 } else { unwritable },
            };
        }
        // In a long run too many zeroes could explain a read.
        if self.is_long() {
            return;
        }
        if r.one_in(4) {
            self.deallocated_ranges_max = r.scaled(1, 256);
            self.mix.deallocate += 5;
        }
        if r.one_in(12) {
            self.draw_contention(r);
        }
    }

    /// Few blocks, on which pairs of several hosts meet, and everything else that changes blocks.
    fn draw_contention(&mut self, r: &mut Random) {
        self.host_count = self.host_count.max(2);
        self.depth = self.depth.max(4);
        self.think_ns = self.think_ns.min(self.disk.jitter_ns.max(1000));
        let mix = &mut self.mix;
        mix.compare_and_write = 60;
        for of in [&mut mix.write, &mut mix.write_zeroes, &mut mix.deallocate] {
            *of = r.between(5, 20) as u32;
        }
        mix.copy = r.between(2, 6) as u32;
        if self.block_count > 4 {
            for _ in 0..r.between(0, 3) {
                let block_count = r.between(4, self.block_count - 1);
                self.faults.push((r.below(self.command_count), Fault::Resize { block_count }));
            }
            self.faults.sort_by_key(|(at, _)| *at);
        }
    }

    /// Bytes of a disk before the first block of the model.
    pub(crate) fn first_byte(&self) -> u64 {
        self.first_block * u64::from(self.block_bytes)
    }

    /// The first block that users name, in the namespace that begins with this block of the model.
    pub(crate) fn first_block_of(&self, base: u64) -> u64 {
        if base == 0 { self.first_block } else { 0 }
    }
}
