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

/// The first namespace.
#[derive(Clone, Debug)]
pub(crate) struct FirstScenario {
    /// In RAM that outlives the target; on a disk otherwise.
    pub(crate) is_memory: bool,
    pub(crate) block_bytes: u32,
    pub(crate) block_count: u64,
    /// The LBA of the first block of the model: commands name no lower one.
    pub(crate) first_block: u64,
    pub(crate) bad: BadBlocks,
    /// A page of the kernel.
    pub(crate) page_bytes: usize,
    /// The grains that the storage below prefers for writes, and for deallocation.
    pub(crate) write_grain_bytes: u32,
    pub(crate) deallocate_grain_bytes: u32,
}

impl FirstScenario {
    pub(super) fn draw(r: &mut Random) -> Self {
        Self {
            is_memory: r.one_in(4),
            block_bytes: r.pick(&[512, 512, 512, 512, 4096, 4096, 4096, 1024, 2048, 8192, 16_384, 65_536]),
            block_count: if r.one_in(3) { r.between(4, 8) } else { r.between(8, 96) },
            first_block: 0,
            bad: BadBlocks::default(),
            page_bytes: 4096,
            write_grain_bytes: 512,
            deallocate_grain_bytes: 512,
        }
    }
}

impl Scenario {
    /// A namespace of which only the blocks around a power of two are used, blocks that fail, deallocations of many
    /// ranges, and pairs beside other changes. The other draws stay what they were.
    pub(super) fn draw_blocks(&mut self) {
        let mut random = Random::new(self.seed, 70);
        let r = &mut random;
        if !self.first.is_memory && r.one_in(3) {
            let boundary = r.pick(&BOUNDARIES);
            let of_bytes = boundary / u64::from(self.first.block_bytes);
            let boundary = if r.one_in(2) { of_bytes } else { boundary };
            self.first.first_block = boundary - r.between(0, self.first.block_count);
        }
        if !self.first.is_memory && r.one_in(6) {
            let some = |r: &mut Random| {
                let start = r.below(self.first.block_count);
                start..(start + r.between(1, 2)).min(self.first.block_count)
            };
            let (unreadable, unwritable) = (some(r), some(r));
            let kinds = r.below(3);
            self.first.bad = BadBlocks {
                unreadable: if kinds == 0 { 0..0 } else { unreadable },
                unwritable: if kinds == 1 { 0..0 } else { unwritable },
            };
        }
        // In a long run too many zeroes could explain a read.
        if self.is_long() {
            return;
        }
        if r.one_in(4) {
            self.load.deallocated_ranges_max = r.scaled(1, 256);
            self.load.mix.deallocate += 5;
        }
        if r.one_in(12) {
            self.draw_contention(r);
        }
    }

    /// Few blocks, on which pairs of several hosts meet, and everything else that changes blocks.
    fn draw_contention(&mut self, r: &mut Random) {
        self.hosts.count = self.hosts.count.max(2);
        self.hosts.depth = self.hosts.depth.max(4);
        self.load.think_ns = self.load.think_ns.min(self.disk.jitter_ns.max(1000));
        let mix = &mut self.load.mix;
        mix.compare_and_write = 60;
        for of in [&mut mix.write, &mut mix.write_zeroes, &mut mix.deallocate] {
            *of = r.between(5, 20) as u32;
        }
        mix.copy = r.between(2, 6) as u32;
        if self.first.block_count > 4 {
            let (count, most) = (r.between(0, 3), self.first.block_count - 1);
            self.add_faults(r, count, |r| Fault::Resize { block_count: r.between(4, most) });
        }
    }

    /// Bytes of a disk before the first block of the model.
    pub(crate) fn first_byte(&self) -> u64 {
        self.first.first_block * u64::from(self.first.block_bytes)
    }

    /// The first block that users name, in the namespace that begins with this block of the model.
    pub(crate) fn first_block_of(&self, base: u64) -> u64 {
        if base == 0 { self.first.first_block } else { 0 }
    }
}
