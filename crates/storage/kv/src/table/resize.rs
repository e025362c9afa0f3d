//! Resizing of the index: the wanted number of groups, and moving a bucket with every new pair until it is reached.

use memory::LINE_BYTES;

use crate::bucket::{Bucket, BucketMut, CELL_COUNT, Kind, copy_entry};
use crate::counters::Counters;
use crate::heap::Heap;
use crate::index::{GROUP_BUCKETS, GROUP_LINES, GROUPS_MIN, REGION_GROUPS};
use crate::key::KeyHash;
use crate::regions::REGION_LINES;
use crate::table::Table;
use crate::table::lines::{compact_chain, overflow_line, slot};
use crate::touches::Touches;

/// Mean cells taken per bucket when memory is full: the first number, less the second for each cell of a pair. More
/// saves memory, fewer saves look-ups of overflow lines; wide pairs overflow sooner.
const FULL_CELLS: (f64, f64) = (11.5, 0.75);
/// Fraction of these cells at which the index grows while there is memory.
const GROWS_AT: f64 = 0.8;
/// Overflow lines beyond the first of a full group, per cell of a pair.
const FURTHER_LINES: f64 = 0.08;
/// Minimum growth factor: less is not worth moving all entries.
const LEAST_GROWTH: f64 = 1.05;
/// Mean cells taken per bucket below which the index shrinks, to the size from which it would have grown.
const SHRINKS_AT: f64 = 1.5;
/// Cells of a bucket up to which an index that is shrunk to make room takes inline pairs: fewer than those at which it
/// grows.
const SQUEEZED_CELLS: usize = 7;
/// The largest part of its size to which the index is shrunk to make room while there are items to evict.
const LEAST_SQUEEZE: (u64, u64) = (3, 4);
/// Spare lines that moving a bucket may need: per line of its own, and in addition. An entry has at most eight cells,
/// so a line without room for one has at least four taken.
const SPARE_LINES: (usize, usize) = (3, 4);

impl Table {
    /// Returns regions that no group needs to the heap.
    pub(crate) fn free_unused_regions(&mut self, heap: &mut Heap<impl Touches>) {
        while let Some(line) = self.index.remove_region() {
            heap.regions.give_back_index(line);
        }
    }

    /// Mean cells taken per bucket when memory is full.
    fn full_cells(&self, pair_count: u64) -> f64 {
        let width = self.index.used_cells as f64 / pair_count.max(1) as f64;
        FULL_CELLS.0 - FULL_CELLS.1 * width.max(1.0)
    }

    /// Number of groups once memory is full of pairs like the present ones.
    fn final_groups(&self, heap: &Heap<impl Touches>, pair_count: u64, has_log: bool) -> f64 {
        let cells = self.index.used_cells.max(1) as f64;
        let width = cells / pair_count.max(1) as f64;
        // Values in a log can be dropped from memory: then memory holds as many pairs as fit with one line each.
        let lines = if has_log {
            cells
        } else {
            (heap.regions.taken_lines() + heap.chunked.taken_bytes() / LINE_BYTES) as f64
        };
        let memory = (heap.regions.usable_count() * REGION_LINES) as f64;
        let group_cells = self.full_cells(pair_count) * GROUP_BUCKETS as f64;
        memory / (group_cells * lines / cells + f64::from(GROUP_LINES) + FURTHER_LINES * width)
    }

    /// The wanted number of groups, if it differs from the present one. Otherwise sets the range of cells without a new
    /// check.
    pub(crate) fn wanted_groups(
        &mut self,
        heap: &Heap<impl Touches>,
        pair_count: u64,
        has_log: bool,
    ) -> Option<u64> {
        let groups = self.index.group_count();
        let cells = self.index.used_cells;
        let grows_at = GROWS_AT * self.full_cells(pair_count) * GROUP_BUCKETS as f64;
        let (from, to) = self.right_cells(groups, grows_at);
        if (from..to).contains(&cells) {
            self.index.set_right_cells(from..to);
            return None;
        }
        if cells < from {
            return Some(((2.0 * cells as f64 / grows_at) as u64).max(GROUPS_MIN));
        }
        let growth = self.final_groups(heap, pair_count, has_log) / groups as f64;
        // The last steps reach the final size, and none of them is small.
        let growth = match growth {
            ..2.0 => growth,
            ..4.0 => growth.sqrt(),
            _ => 2.0,
        };
        if growth < LEAST_GROWTH {
            self.index.set_right_cells(from..cells + cells / 32 + 1);
            return None;
        }
        Some((groups as f64 * growth) as u64)
    }

    /// The wanted number of groups once memory has shrunk, if there are more than `excess` times as many.
    pub(crate) fn smaller_groups(
        &self,
        heap: &Heap<impl Touches>,
        pair_count: u64,
        has_log: bool,
        excess: f64,
    ) -> Option<u64> {
        let least = self.least_groups(pair_count);
        let wanted = self.final_groups(heap, pair_count, has_log).max(least).max(REGION_GROUPS as f64);
        (wanted * excess < self.index.group_count() as f64).then_some(wanted as u64)
    }

    /// Number of groups from which the index would grow with the present entries.
    pub(crate) fn least_groups(&self, pair_count: u64) -> f64 {
        self.index.used_cells as f64 / (GROWS_AT * self.full_cells(pair_count) * GROUP_BUCKETS as f64)
    }

    /// The range of cells taken for which `groups` groups are adequate.
    fn right_cells(&self, groups: u64, grows_at: f64) -> (u64, u64) {
        let from = if groups < 2 * REGION_GROUPS { 0.0 } else { SHRINKS_AT * GROUP_BUCKETS as f64 };
        ((from * groups as f64) as u64, (grows_at * groups as f64) as u64)
    }

    /// Ends growth for lack of a region: uses the regions at hand, or sets when to check again.
    pub(crate) fn give_up_growing(&mut self, heap: &mut Heap<impl Touches>) {
        let groups = self.index.directory().len() as u64 * REGION_GROUPS;
        if groups as f64 >= LEAST_GROWTH * self.index.group_count() as f64 {
            return self.index.begin(groups);
        }
        self.free_unused_regions(heap);
        let cells = self.index.used_cells;
        self.index.set_right_cells(0..cells + cells / 32 + 1);
    }

    pub(crate) fn end_resize(&mut self, heap: &mut Heap<impl Touches>) {
        self.free_unused_regions(heap);
        // The next pair triggers a new check.
        self.index.set_right_cells(0..0);
    }

    /// Spare lines that moving a bucket may need.
    pub(crate) fn spare_lines_needed(&self, heap: &Heap<impl Touches>, home: u32) -> usize {
        let bucket = Bucket(heap.memory.line(home));
        let mut line_count = 1;
        let mut next = bucket.overflows().then(|| overflow_line(home));
        while let Some(node) = next {
            line_count += 1;
            next = Bucket(heap.memory.line(node)).next();
        }
        SPARE_LINES.0 * line_count + SPARE_LINES.1
    }

    /// Whether so few cells are taken that the index shrinks.
    pub(crate) fn is_sparse(&self) -> bool {
        let groups = self.index.group_count();
        groups >= 2 * REGION_GROUPS
            && (self.index.used_cells as f64) < SHRINKS_AT * (GROUP_BUCKETS * groups) as f64
    }

    /// Number of groups from which the index would grow with the entries of items alone.
    fn groups_for_items(counters: &Counters) -> u64 {
        let item_cells = (counters.pair_count - counters.inline_count) as f64;
        (item_cells / (GROWS_AT * (FULL_CELLS.0 - FULL_CELLS.1) * GROUP_BUCKETS as f64)) as u64 + 1
    }

    /// Whether the entries of items alone need a larger index.
    pub(crate) fn must_grow_for_items(&self, counters: &Counters) -> bool {
        Self::groups_for_items(counters) > self.index.group_count()
    }

    /// Begins to shrink the index to make room, evicting the inline pairs that do not fit: to half of its size, or as
    /// far as the entries of items allow. A resize under way is continued. `false` if that would free nothing, or with
    /// `has_items`, which can be evicted instead, little for moving all entries.
    pub(crate) fn begin_squeeze(&mut self, counters: &Counters, has_items: bool) -> bool {
        if self.index.is_resizing() {
            self.index.squeeze();
            return true;
        }
        let groups = self.index.group_count();
        let wanted = (groups / 2).max(Self::groups_for_items(counters)).max(GROUPS_MIN);
        let most = if has_items { groups / LEAST_SQUEEZE.1 * LEAST_SQUEEZE.0 } else { groups };
        if wanted.next_multiple_of(REGION_GROUPS) + REGION_GROUPS > groups || wanted > most {
            return false;
        }
        self.index.begin_squeeze(wanted);
        true
    }

    /// Moves an entry as far as there is room without another line. Returns whether there is.
    fn squeeze_entry(
        &mut self,
        heap: &mut Heap<impl Touches>,
        from: Bucket<'_>,
        cell: usize,
        hash: KeyHash,
    ) -> bool {
        let width = from.width(cell);
        let taken = CELL_COUNT - Bucket(heap.memory.line(self.home(hash))).empty_count();
        if from.kind(cell) != Kind::Item && taken + width > SQUEEZED_CELLS && !self.index.is_growing() {
            return false;
        }
        let Ok(to) = self.free_cells(heap, hash, width) else { return false };
        copy_entry(from, cell, &mut BucketMut(heap.memory.line_mut(to.node)), to.cell, to.tag);
        true
    }

    /// Removes an entry that is in no bucket any more.
    fn drop_entry(
        &mut self,
        heap: &mut Heap<impl Touches>,
        counters: &mut Counters,
        from: Bucket<'_>,
        cell: usize,
    ) {
        self.index.used_cells -= from.width(cell) as u64;
        counters.pair_count -= 1;
        counters.evicted_count += 1;
        if from.kind(cell) == Kind::Item {
            let item = from.cell(cell);
            heap.note_evicted_item(item);
            counters.pair_bytes -= heap.pair_bytes(item) as u64;
            heap.free_item(item);
        } else {
            let (key, value) = from.inline(cell);
            heap.note_evicted_inline(key, value);
            counters.pair_bytes -= (key.len() + value.len()) as u64;
            counters.inline_count -= 1;
        }
    }

    /// Removes an entry from a bucket that has no room. `false` if all of them are leased.
    fn drop_one_of(&mut self, heap: &mut Heap<impl Touches>, counters: &mut Counters, home: u32) -> bool {
        let line = *heap.memory.line(home);
        let bucket = Bucket(&line);
        let Some(cell) = bucket.entries().find(|&cell| !is_leased(heap, bucket, cell)) else { return false };
        self.drop_entry(heap, counters, bucket, cell);
        BucketMut(heap.memory.line_mut(home)).clear(cell);
        true
    }

    /// Moves the next bucket of a resize. Its [spare lines](Self::spare_lines_needed) are set aside, unless the index
    /// is squeezed.
    pub(crate) fn move_bucket(&mut self, heap: &mut Heap<impl Touches>, counters: &mut Counters, home: u32) {
        let is_squeezed = self.index.is_squeezed();
        let mut moving = std::mem::take(&mut self.moving);
        self.empty_bucket(heap, home, &mut moving);
        for group in self.index.advance() {
            for line in self.index.group_lines(group) {
                *heap.memory.line_mut(line) = [0; LINE_BYTES];
            }
        }
        for line in &moving {
            let from = Bucket(line);
            for cell in from.entries() {
                let hash = self.hash_of_entry(heap, from, cell);
                if is_squeezed {
                    if !self.squeeze_entry(heap, from, cell, hash) {
                        // For a leased item another pair makes way.
                        let is_placed = is_leased(heap, from, cell)
                            && self.drop_one_of(heap, counters, self.home(hash))
                            && self.squeeze_entry(heap, from, cell, hash);
                        if !is_placed {
                            self.drop_entry(heap, counters, from, cell);
                        }
                    }
                    continue;
                }
                let to = self.cells_moved(heap, hash, from.width(cell));
                copy_entry(from, cell, &mut BucketMut(heap.memory.line_mut(to.node)), to.cell, to.tag);
            }
        }
        moving.clear();
        self.moving = moving;
        if let Some(line) = self.index.remove_emptied() {
            heap.regions.give_back_index(line);
        }
        self.prefetch_moves(heap);
    }

    /// Prefetches for the next steps: the bucket after the next, and the items of the next, whose keys determine their
    /// new buckets.
    fn prefetch_moves(&self, heap: &Heap<impl Touches>) {
        if let Some(home) = self.index.next_to_move(2) {
            heap.memory.prefetch(home);
            heap.memory.prefetch(overflow_line(home));
        }
        if let Some(home) = self.index.next_to_move(1) {
            heap.memory.prefetch(home);
        }
        if let Some(home) = self.index.next_to_move(0) {
            let bucket = Bucket(heap.memory.peek(home));
            for cell in bucket.entries() {
                if bucket.kind(cell) == Kind::Item {
                    heap.memory.prefetch_item(bucket.cell(cell));
                }
            }
        }
    }

    /// Takes all entries out of a bucket.
    fn empty_bucket(&mut self, heap: &mut Heap<impl Touches>, home: u32, into: &mut Vec<[u8; LINE_BYTES]>) {
        let bucket = *heap.memory.line(home);
        if Bucket(&bucket).empty_count() == CELL_COUNT && !Bucket(&bucket).overflows() {
            return;
        }
        into.push(bucket);
        *heap.memory.line_mut(home) = [0; LINE_BYTES];
        if !Bucket(&bucket).overflows() {
            return;
        }
        into.push([0; LINE_BYTES]);
        let mut node = overflow_line(home);
        loop {
            let from = *heap.memory.line(node);
            let from = Bucket(&from);
            for cell in from.entries_of(slot(home)) {
                let width = from.width(cell);
                let last = into.last().expect("just pushed");
                let to = Bucket(last).find_empty(width).unwrap_or_else(|| {
                    into.push([0; LINE_BYTES]);
                    0
                });
                let last = into.last_mut().expect("just pushed");
                copy_entry(from, cell, &mut BucketMut(last), to, from.tag(cell));
                BucketMut(heap.memory.line_mut(node)).clear(cell);
            }
            match from.next() {
                Some(next) => node = next,
                None => break,
            }
        }
        compact_chain(heap, overflow_line(home));
    }
}

/// Whether an entry is that of an item that is not evicted for a while.
fn is_leased(heap: &Heap<impl Touches>, from: Bucket<'_>, cell: usize) -> bool {
    from.kind(cell) == Kind::Item && heap.is_leased(from.cell(cell))
}
