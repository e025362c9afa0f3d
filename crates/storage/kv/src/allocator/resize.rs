//! Changing the memory of a partition that is in use, a bounded step at a time.
//!
//! ```text
//! grow    more regions are free at once, or after a few steps
//! shrink  Evicting: items make way until as many regions are free and withheld as are to be cut off
//!         Moving: what is left in the last regions moves to free ones before them; their pages go back to the system
//! ```
//!
//! The regions cut off are the last ones of the address space, so that whole huge pages go back, and everything behind
//! it is as in a partition that began with the new size. Stores continue meanwhile, in regions that were not withheld.
//! A resize waits for values in the last regions that are held because they are sent or received.

use std::io;
use std::ops::Range;

use super::{Allocator, Plan};
use crate::chunked::REGIONS_PER_CHUNK;
use crate::eviction::Demand;
use crate::ghosts::Ghosts;
use crate::index::GROUP_LINES;
use crate::pairs::Pairs;
use crate::regions::{REGION_BYTES, REGION_LINES, Slots, Use};
use crate::relocation::relocate;
use crate::reserve::REGION_MEMORY_BYTES;
use crate::settings::Settings;
use crate::touches::Touches;

/// Regions added in one step: a gibibyte.
const GROWN_AT_ONCE: usize = 16 << 10;
/// Attempts to free a region in one step.
const ATTEMPT_COUNT: usize = 32;
/// Free regions of which the pages go back to the system in one step: two huge pages.
const FREED_COUNT: usize = 64;
/// Buckets that a shrinking index moves in one step.
const BUCKET_COUNT: usize = 64;
/// The size of the index, as a multiple of what the new memory needs, above which it shrinks.
const INDEX_EXCESS: f64 = 1.15;

/// Progress of a resize.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Resizing {
    /// None is under way.
    No,
    /// Regions are added.
    Growing,
    /// Regions are emptied and withheld.
    Evicting,
    /// The last regions are emptied, down from this one.
    Moving { before: u32 },
}

/// The result of a step of a resize. Of several partitions the greatest counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ResizeStep {
    /// The resize is complete, or there was none.
    Done,
    /// Nothing: the items that must make way are in use, or not in the log yet.
    Waits,
    /// There is more to do at once.
    More,
}

impl<T: Touches> Allocator<T> {
    /// Begins a resize to `memory_bytes`; one under way is changed.
    ///
    /// # Errors
    /// The system's error when it refuses the memory. Nothing has changed then.
    pub(crate) fn resize_to(&mut self, memory_bytes: usize) -> io::Result<()> {
        let plan = Plan::new(memory_bytes, self.evictor.may_evict())?;
        let Self { pairs, evictor, .. } = self;
        let before = pairs.heap.regions.count();
        if plan.region_count > before {
            pairs.heap.memory.resize(plan.region_count * REGION_LINES)?;
        }
        pairs.heap.regions.set_target(plan.region_count);
        evictor.replace_ghosts(Ghosts::new(plan.ghost_bytes));
        pairs.heap.chunked.count_max = plan.region_count / REGIONS_PER_CHUNK;
        pairs.reserve_regions();
        evictor.end_leases_above(pairs, pairs.leased_units_max());
        if plan.region_count < before {
            self.resizing = Resizing::Evicting;
        } else {
            self.resizing = Resizing::Growing;
            self.grow();
        }
        Ok(())
    }

    /// Whether a resize is under way.
    pub(crate) fn is_resizing(&self) -> bool {
        self.resizing != Resizing::No
    }

    /// Continues a resize by a bounded amount of work. Places of pairs are no longer valid then.
    pub(crate) fn resize_step(&mut self) -> ResizeStep {
        match self.resizing {
            Resizing::No => ResizeStep::Done,
            Resizing::Growing => self.grow(),
            Resizing::Evicting => self.withhold(),
            Resizing::Moving { before } => self.cut_off(before),
        }
    }

    fn grow(&mut self) -> ResizeStep {
        let regions = &mut self.pairs.heap.regions;
        let count = regions.target().min(regions.count() + GROWN_AT_ONCE);
        regions.set_count(count);
        if count == regions.target() { self.end_resize() } else { ResizeStep::More }
    }

    /// Withholds one more region, or, once they are enough, has the last ones emptied.
    fn withhold(&mut self) -> ResizeStep {
        let is_index_right = self.shrink_index();
        let before = self.pairs.heap.regions.withhold();
        if before == 0 {
            if is_index_right {
                let regions = &mut self.pairs.heap.regions;
                regions.close_beyond();
                self.resizing = Resizing::Moving { before: regions.count() as u32 };
            }
            return ResizeStep::More;
        }
        for _ in 0..ATTEMPT_COUNT {
            if !self.evictor.make_room(&mut self.pairs, Demand::Items) {
                return ResizeStep::Waits;
            }
            if self.pairs.heap.regions.withhold() < before {
                break;
            }
        }
        ResizeStep::More
    }

    /// Shrinks the index a little, if the new memory needs a smaller one. Returns whether there is no more to do.
    fn shrink_index(&mut self) -> bool {
        if self.pairs.table.index.is_resizing() {
            // Its overflow may take regions for a while; in the end it frees more.
            self.pairs.heap.regions.release_withheld();
            let moved_count = (0..BUCKET_COUNT).take_while(|_| self.move_bucket()).count();
            return moved_count == 0;
        }
        let Self { pairs, .. } = self;
        let has_log = pairs.journal.is_some();
        let Some(groups) =
            pairs.table.smaller_groups(&pairs.heap, pairs.counters.pair_count, has_log, INDEX_EXCESS)
        else {
            return true;
        };
        pairs.table.index.begin(groups);
        false
    }

    /// Empties the last regions before `before`, and returns their pages to the system.
    fn cut_off(&mut self, before: u32) -> ResizeStep {
        let Self { pairs, .. } = self;
        let target = pairs.heap.regions.target() as u32;
        let first = target.max(before.saturating_sub(FREED_COUNT as u32));
        let (mut region, mut end, mut is_one_moved) = (before, before, false);
        while region > first && !is_one_moved {
            region -= 1;
            is_one_moved = pairs.heap.regions.use_of(region) != Use::Free;
            if !relocate(pairs, region) {
                give_back(pairs, region + 1..end);
                end = region;
            }
        }
        give_back(pairs, region..end);
        if region > target {
            self.resizing = Resizing::Moving { before: region };
            return ResizeStep::More;
        }
        let used_end = pairs.heap.regions.used_end() as u32;
        if used_end > target {
            self.resizing = Resizing::Moving { before: used_end };
            return ResizeStep::Waits;
        }
        pairs.heap.regions.set_count(target as usize);
        self.end_resize()
    }

    fn end_resize(&mut self) -> ResizeStep {
        self.resizing = Resizing::No;
        let heap = &mut self.pairs.heap;
        let is_resized = heap.memory.resize(heap.regions.count() * REGION_LINES);
        debug_assert!(
            is_resized.is_ok(),
            "what is added was taken at the beginning, and the rest is cut off"
        );
        self.pairs.reserve_regions();
        ResizeStep::Done
    }

    /// Adds memory beyond the limit, if the system has some: for pairs that are not served, to find how much they need.
    pub(crate) fn exceed_limit(&mut self) {
        let count = self.pairs.heap.regions.target();
        let grown = self.resize_to((count + count / 4 + 1) * REGION_MEMORY_BYTES);
        while grown.is_ok() && self.is_resizing() && self.grow() == ResizeStep::More {}
    }

    /// The least memory for the present pairs if none may be evicted, bytes.
    pub(crate) fn needed_bytes(&self) -> usize {
        let Self { pairs, .. } = self;
        if self.evictor.may_evict() && pairs.journal.is_none() {
            return 0;
        }
        let heap = &pairs.heap;
        let least = pairs.table.least_groups(pairs.counters.pair_count) as u64;
        let group_count = pairs.table.index.group_count().min(least + 1);
        let index_lines =
            group_count as usize * GROUP_LINES as usize + heap.regions.taken_slots(Slots::Buckets);
        // With a log, a line for each pair that can be dropped from memory.
        let pair_lines = heap.regions.taken_lines();
        let lines = match pairs.journal {
            None => index_lines + pair_lines,
            Some(_) => index_lines + pair_lines.min(pairs.counters.pair_count as usize),
        };
        // Regions end in a part that no block fits in, and some are filled only in part.
        let regions = (lines + lines / 32).div_ceil(REGION_LINES) + PARTIAL_REGIONS;
        let chunk_bytes = if pairs.journal.is_none() { heap.chunked.taken_bytes() } else { 0 };
        let bytes = regions * REGION_MEMORY_BYTES + chunk_bytes / REGION_BYTES * REGION_MEMORY_BYTES;
        if pairs.journal.is_some() { bytes.max(Settings::MEMORY_BYTES_MIN_WITH_LOG) } else { bytes }
    }

    /// After all pairs were removed: begins a shrink that is under way once more.
    pub(super) fn restart_resize(&mut self) {
        if let Resizing::Moving { .. } = self.resizing {
            self.resizing = Resizing::Evicting;
        }
    }
}

/// Regions that are filled only in part: of each queue and of each kind of slots, and those reserved.
const PARTIAL_REGIONS: usize = 6;

/// Returns the pages of regions to the system.
fn give_back(pairs: &mut Pairs<impl Touches>, regions: Range<u32>) {
    let lines = regions.start * REGION_LINES as u32..regions.end * REGION_LINES as u32;
    if !lines.is_empty() {
        pairs.heap.memory.give_back(lines);
    }
}
