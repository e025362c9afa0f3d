//! Room for entries: lines for what overflows, regions for an index that grows, and what makes way for them.

use crate::bucket::{Bucket, Kind};
use crate::hands::Hands;
use crate::index::{INDEX_LINES_MIN, Index};
use crate::key::KeyHash;
use crate::place::Place;
use crate::processor::Processor;
use crate::regions::{REGION_LINES, Regions};
use crate::settings::Eviction;
use crate::table::lines::{Cell, lengthen};

/// Regions that are taken for the index with one pair.
const REGIONS_AT_ONCE: usize = 8;
/// Buckets that are moved with one pair where there is hardly anything in them.
const EMPTY_BUCKETS_AT_ONCE: usize = 8;

impl Processor {
    /// So many neighbouring empty cells for an entry of a key, which has none.
    pub(super) fn cells(&mut self, hash: KeyHash, width: usize) -> Option<Cell> {
        self.tend_index();
        loop {
            let last = match self.table.free_cells(&mut self.heap, hash, width) {
                Ok(cell) => return Some(cell),
                Err(last) => last,
            };
            // What follows may take entries away where room is looked for: look again.
            if let Some(line) = self.table.spare.pop() {
                lengthen(&mut self.heap, last, line);
                continue;
            }
            match self.take_bucket_line() {
                Some(line) => self.table.spare.push(line),
                None if self.settings.eviction == Eviction::Clock => self.evict_from_bucket(hash),
                None => return None,
            }
        }
    }

    /// With no memory for another line, the first pair of the bucket of a key goes.
    fn evict_from_bucket(&mut self, hash: KeyHash) {
        let home = self.table.home(hash);
        let bucket = Bucket(self.heap.memory.line(home));
        let cell = bucket.entries().next().expect("a bucket without room has entries");
        let item = (bucket.kind(cell) == Kind::Item).then(|| bucket.cell(cell));
        self.counters.evicted_count += 1;
        self.unlink(hash, Place::new(home, cell, item));
    }

    /// Removes everything.
    pub fn clear(&mut self) {
        self.note_clear();
        self.heap.let_go();
        if self.heap.pins.is_empty() && self.heap.pending_count == 0 {
            self.heap.regions = Regions::new(self.heap.regions.count());
            // Before chunks take what is theirs.
            let first = self.heap.regions.take_index().expect("all regions are free");
            self.table.index = Index::new(first, self.heap.regions.count());
            self.heap.memory.zero(first..first + INDEX_LINES_MIN);
            // Chunks keep the memory that they have, also those that are still being sent.
            self.heap.chunked.clear();
            let line_count = self.heap.regions.count() * REGION_LINES;
            self.heap.memory.allow(0..line_count as u32);
            self.heap.lend(self.heap.chunked.lent_regions());
            self.heap.regions.keep_back(self.regions_kept_back());
            self.hands = Hands::default();
            self.table.spare.clear();
        } else {
            self.table.clear_entries(&mut self.heap);
        }
        (self.counters.pair_count, self.counters.inline_count, self.counters.pair_bytes) = (0, 0, 0);
    }

    /// A pair is about to come in: the index makes a step, if it has to. Entries may lie elsewhere then.
    #[inline]
    pub(super) fn tend_index(&mut self) {
        if !self.table.index.is_calm() {
            self.adapt_index();
        }
    }

    #[cold]
    fn adapt_index(&mut self) {
        if self.table.index.is_resizing() {
            let mut left_count = if self.table.index.is_growing() { 1 } else { EMPTY_BUCKETS_AT_ONCE };
            while left_count > 0 && self.move_bucket() {
                left_count -= 1;
            }
            if !self.table.index.is_resizing() {
                self.table.end_resize(&mut self.heap);
            }
            return;
        }
        match self.table.wanted_groups(&self.heap, self.counters.pair_count, self.journal.is_some()) {
            Some(groups) if self.table.index.regions_missing(groups) == 0 => self.table.index.begin(groups),
            Some(groups) => self.gather_regions(groups),
            None => self.table.let_go_of_regions(&mut self.heap),
        }
    }

    /// Whether what is stored makes room for the index.
    fn may_make_room(&self) -> bool {
        self.settings.eviction == Eviction::Clock || self.journal.is_some()
    }

    /// Takes some of the regions that so many groups need. If there are not as many, the index grows as far as
    /// it can.
    fn gather_regions(&mut self, groups: u64) {
        for _ in 0..self.table.index.regions_missing(groups).min(REGIONS_AT_ONCE) {
            if let Some(line) = self.heap.regions.take_index() {
                self.table.index.add_region(line);
                continue;
            }
            // Others make room for what is stored now, one region's worth of them at a time.
            if self.may_make_room() && self.make_room(None) {
                return;
            }
            return self.table.give_up_growing(&mut self.heap);
        }
    }

    /// Moves the next bucket of a resize, if there is one and memory for that.
    fn move_bucket(&mut self) -> bool {
        let Some(home) = self.table.index.next_to_move(0) else { return false };
        if !self.set_lines_aside(home) {
            return false;
        }
        self.table.move_bucket(&mut self.heap, home);
        true
    }

    /// Takes as many lines as moving a bucket may need.
    fn set_lines_aside(&mut self, home: u32) -> bool {
        loop {
            if self.table.spare.len() >= self.table.lines_to_move(&self.heap, home) {
                return true;
            }
            let line =
                if self.may_make_room() { self.take_bucket_line() } else { self.heap.regions.take_bucket() };
            let Some(line) = line else { return false };
            self.table.spare.push(line);
        }
    }

    /// Gives an empty index so many groups, which it keeps, for tests of what a load costs.
    #[cfg(test)]
    pub(crate) fn spread_over(&mut self, groups: u64) {
        while self.table.index.regions_missing(groups) > 0 {
            let line = self.heap.regions.take_index().expect("free regions");
            self.table.index.add_region(line);
        }
        self.table.index.begin(groups);
        while self.table.index.is_resizing() {
            self.move_bucket();
        }
        self.table.index.set_calm(0..u64::MAX);
    }

    /// Goes on with a resize for so many steps, or begins one, for tests.
    #[cfg(test)]
    pub(crate) fn resize_partly(&mut self, groups: u64, steps: usize) {
        if !self.table.index.is_resizing() && groups != self.table.index.group_count() {
            let groups = groups.max(crate::index::GROUPS_MIN);
            while self.table.index.regions_missing(groups) > 0 {
                let Some(line) = self.heap.regions.take_index() else { return };
                self.table.index.add_region(line);
            }
            self.table.index.begin(groups);
        }
        (0..steps).for_each(|_| self.adapt_if_resizing());
    }

    #[cfg(test)]
    fn adapt_if_resizing(&mut self) {
        if self.table.index.is_resizing() {
            self.adapt_index();
        }
    }
}
