//! The index follows what is stored: how many groups it should have, and a bucket moved with every new pair
//! until it has them.

use reactor::LINE_BYTES;

use super::chain::{shared_line, slot};
use crate::bucket::{Bucket, BucketMut, CELL_COUNT, copy_entry};
use crate::index::{GROUP_BUCKETS, GROUP_LINES, GROUPS_MIN, REGION_GROUPS};
use crate::processor::Processor;
use crate::regions::REGION_LINES;
use crate::settings::Eviction;

/// Cells taken of a bucket, in the mean, when memory is full: so many, less so many for each cell of a pair.
/// More saves memory, fewer saves look-ups of what overflows; wide pairs overflow sooner.
const FULL_CELLS: (f64, f64) = (11.5, 0.75);
/// The share of that at which the index grows as long as there is memory.
const GROWS_AT: f64 = 0.8;
/// Lines behind the shared ones that a full group has, by cell of a pair.
const FURTHER_LINES: f64 = 0.08;
/// Growing by less is not worth moving everything.
const LEAST_GROWTH: f64 = 1.05;
/// The index shrinks when so few cells of a bucket are taken, to where it would have grown to.
const SHRINKS_AT: f64 = 1.5;
/// Regions that are taken for the index with one pair.
const REGIONS_AT_ONCE: usize = 8;
/// Buckets that are moved with one pair where there is hardly anything in them.
const EMPTY_BUCKETS_AT_ONCE: usize = 8;
/// Lines for what overflows that moving a bucket may need, by the lines that it takes itself, and besides: an
/// entry has eight cells at most, so a line that has no room for one has four taken.
const LINES_SET_ASIDE: (usize, usize) = (3, 4);

impl Processor {
    /// A pair is about to come in: the index makes a step, if it has to. Entries may lie elsewhere then.
    #[inline]
    pub(super) fn tend_index(&mut self) {
        if !self.index.is_calm() {
            self.adapt_index();
        }
    }

    #[cold]
    fn adapt_index(&mut self) {
        if self.index.is_resizing() {
            let mut left_count = if self.index.is_growing() { 1 } else { EMPTY_BUCKETS_AT_ONCE };
            while left_count > 0 && self.move_bucket() {
                left_count -= 1;
            }
            if !self.index.is_resizing() {
                self.end_resize();
            }
            return;
        }
        match self.wanted_groups() {
            Some(groups) if self.index.regions_missing(groups) == 0 => self.index.begin(groups),
            Some(groups) => self.gather_regions(groups),
            None => self.let_go_of_regions(),
        }
    }

    /// Whether what is stored makes room for the index.
    fn may_make_room(&self) -> bool {
        self.settings.eviction == Eviction::Clock || self.durable.is_some()
    }

    /// Gives regions back that no group needs.
    pub(super) fn let_go_of_regions(&mut self) {
        while let Some(line) = self.index.remove_region() {
            self.heap.regions.give_back_index(line);
        }
    }

    /// Cells of a bucket that may be taken in the mean when memory is full.
    fn full_cells(&self) -> f64 {
        let width = self.index.used_cells as f64 / self.counters.pair_count.max(1) as f64;
        FULL_CELLS.0 - FULL_CELLS.1 * width.max(1.0)
    }

    /// Groups that the index will have when memory is full of pairs like those that are there.
    fn final_groups(&self) -> f64 {
        let cells = self.index.used_cells.max(1) as f64;
        let width = cells / self.counters.pair_count.max(1) as f64;
        // Values that are in a log need not stay: then there is room for as many pairs as have a line.
        let lines = match &self.durable {
            Some(_) => cells,
            None => {
                let blocks = self.heap.regions.taken_lines() - self.heap.regions.bucket_lines();
                (blocks + self.heap.chunked.taken_bytes() / LINE_BYTES) as f64
            }
        };
        let memory = (self.heap.regions.count() * REGION_LINES) as f64;
        let group_cells = self.full_cells() * GROUP_BUCKETS as f64;
        memory / (group_cells * lines / cells + f64::from(GROUP_LINES) + FURTHER_LINES * width)
    }

    /// How many groups there should be, if there should be others. If not, says when to ask again.
    fn wanted_groups(&mut self) -> Option<u64> {
        let groups = self.index.group_count();
        let cells = self.index.used_cells;
        let grows_at = GROWS_AT * self.full_cells() * GROUP_BUCKETS as f64;
        let (from, to) = self.calm_cells(groups, grows_at);
        if (from..to).contains(&cells) {
            self.index.set_calm(from..to);
            return None;
        }
        if cells < from {
            return Some(((2.0 * cells as f64 / grows_at) as u64).max(GROUPS_MIN));
        }
        let growth = self.final_groups() / groups as f64;
        // The last steps end where memory does, and are not small.
        let growth = match growth {
            ..2.0 => growth,
            ..4.0 => growth.sqrt(),
            _ => 2.0,
        };
        if growth < LEAST_GROWTH {
            self.index.set_calm(from..cells + cells / 32 + 1);
            return None;
        }
        Some((groups as f64 * growth) as u64)
    }

    /// With how many cells taken so many groups are as many as there should be.
    fn calm_cells(&self, groups: u64, grows_at: f64) -> (u64, u64) {
        let from = if groups < 2 * REGION_GROUPS { 0.0 } else { SHRINKS_AT * GROUP_BUCKETS as f64 };
        ((from * groups as f64) as u64, (grows_at * groups as f64) as u64)
    }

    /// Takes some of the regions that so many groups need. If there are not as many, the index grows as far as
    /// it can.
    fn gather_regions(&mut self, groups: u64) {
        for _ in 0..self.index.regions_missing(groups).min(REGIONS_AT_ONCE) {
            if let Some(line) = self.heap.regions.take_index() {
                self.index.add_region(line);
                continue;
            }
            // Others make room for what is stored now, one region's worth of them at a time.
            if self.may_make_room() && self.make_room(None) {
                return;
            }
            return self.give_up_growing();
        }
    }

    /// There is no region for the index: it has what it has, and another look comes later.
    fn give_up_growing(&mut self) {
        let groups = self.index.directory().len() as u64 * REGION_GROUPS;
        if groups as f64 >= LEAST_GROWTH * self.index.group_count() as f64 {
            return self.index.begin(groups);
        }
        self.let_go_of_regions();
        let cells = self.index.used_cells;
        self.index.set_calm(0..cells + cells / 32 + 1);
    }

    fn end_resize(&mut self) {
        self.let_go_of_regions();
        // The next pair says when there is something to do.
        self.index.set_calm(0..0);
    }

    /// Moves the next bucket of a resize, if there is one and memory for that.
    fn move_bucket(&mut self) -> bool {
        let Some(home) = self.index.next_to_move(0) else { return false };
        if !self.set_lines_aside(home) {
            return false;
        }
        let mut moving = std::mem::take(&mut self.moving);
        self.empty_bucket(home, &mut moving);
        for group in self.index.advance() {
            for line in self.index.group_lines(group) {
                *self.heap.memory.line_mut(line) = [0; LINE_BYTES];
            }
        }
        for line in &moving {
            let from = Bucket(line);
            for cell in from.entries() {
                let hash = self.hash_of_entry(from, cell);
                let to = self.cells_moved(hash, from.width(cell));
                copy_entry(from, cell, &mut BucketMut(self.heap.memory.line_mut(to.node)), to.cell, to.tag);
            }
        }
        moving.clear();
        self.moving = moving;
        self.prefetch_moves();
        true
    }

    /// Has fetched what the next steps need: the bucket after the next, and the items of the next, whose keys
    /// say where they belong.
    fn prefetch_moves(&self) {
        if let Some(home) = self.index.next_to_move(2) {
            self.heap.memory.prefetch(home);
            self.heap.memory.prefetch(shared_line(home));
        }
        if let Some(home) = self.index.next_to_move(1) {
            self.heap.memory.prefetch(home);
        }
        if let Some(home) = self.index.next_to_move(0) {
            let bucket = Bucket(self.heap.memory.peek(home));
            for cell in bucket.entries() {
                if bucket.kind(cell) == crate::bucket::Kind::Item {
                    self.heap.memory.prefetch(bucket.cell(cell));
                }
            }
        }
    }

    /// Takes as many lines as moving a bucket may need.
    fn set_lines_aside(&mut self, home: u32) -> bool {
        loop {
            let bucket = Bucket(self.heap.memory.line(home));
            let mut line_count = 1;
            let mut next = bucket.overflows().then(|| shared_line(home));
            while let Some(node) = next {
                line_count += 1;
                next = Bucket(self.heap.memory.line(node)).next();
            }
            if self.spare.len() >= LINES_SET_ASIDE.0 * line_count + LINES_SET_ASIDE.1 {
                return true;
            }
            let line =
                if self.may_make_room() { self.take_bucket_line() } else { self.heap.regions.take_bucket() };
            let Some(line) = line else { return false };
            self.spare.push(line);
        }
    }

    /// Takes all entries of a bucket out.
    fn empty_bucket(&mut self, home: u32, into: &mut Vec<[u8; LINE_BYTES]>) {
        let bucket = *self.heap.memory.line(home);
        if Bucket(&bucket).empty_count() == CELL_COUNT && !Bucket(&bucket).overflows() {
            return;
        }
        into.push(bucket);
        *self.heap.memory.line_mut(home) = [0; LINE_BYTES];
        if !Bucket(&bucket).overflows() {
            return;
        }
        into.push([0; LINE_BYTES]);
        let mut node = shared_line(home);
        loop {
            let from = *self.heap.memory.line(node);
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
                BucketMut(self.heap.memory.line_mut(node)).clear(cell);
            }
            match from.next() {
                Some(next) => node = next,
                None => break,
            }
        }
        self.shorten(shared_line(home));
    }

    /// Gives an empty index so many groups, which it keeps, for tests of what a load costs.
    #[cfg(test)]
    pub(crate) fn spread_over(&mut self, groups: u64) {
        while self.index.regions_missing(groups) > 0 {
            let line = self.heap.regions.take_index().expect("free regions");
            self.index.add_region(line);
        }
        self.index.begin(groups);
        while self.index.is_resizing() {
            self.move_bucket();
        }
        self.index.set_calm(0..u64::MAX);
    }

    /// Goes on with a resize for so many steps, or begins one, for tests.
    #[cfg(test)]
    pub(crate) fn resize_partly(&mut self, groups: u64, steps: usize) {
        if !self.index.is_resizing() && groups != self.index.group_count() {
            let groups = groups.max(GROUPS_MIN);
            while self.index.regions_missing(groups) > 0 {
                let Some(line) = self.heap.regions.take_index() else { return };
                self.index.add_region(line);
            }
            self.index.begin(groups);
        }
        (0..steps).for_each(|_| self.adapt_if_resizing());
    }

    #[cfg(test)]
    fn adapt_if_resizing(&mut self) {
        if self.index.is_resizing() {
            self.adapt_index();
        }
    }
}
