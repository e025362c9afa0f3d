//! Room for entries: overflow lines, regions for a growing index, and what is evicted for them.

use crate::bucket::{Bucket, Kind};
use crate::hands::Hands;
use crate::index::{INDEX_LINES_MIN, Index};
use crate::key::KeyHash;
use crate::place::Place;
use crate::processor::Processor;
use crate::regions::{Class, REGION_LINES, Regions};
use crate::settings::Eviction;
use crate::table::lines::{Cell, lengthen};

/// Regions added to the index per stored pair.
const REGIONS_AT_ONCE: usize = 8;
/// Buckets moved per stored pair while the index shrinks: they are nearly empty.
const EMPTY_BUCKETS_AT_ONCE: usize = 8;

impl Processor {
    /// `width` neighbouring empty cells for an entry of a key that has none.
    pub(super) fn cells(&mut self, hash: KeyHash, width: usize) -> Option<Cell> {
        self.tend_index();
        loop {
            let last = match self.pairs.table.free_cells(&mut self.pairs.heap, hash, width) {
                Ok(cell) => return Some(cell),
                Err(last) => last,
            };
            // Taking a line may remove entries where room was sought, so the loop looks again.
            if let Some(line) = self.pairs.table.spare.pop() {
                lengthen(&mut self.pairs.heap, last, line);
                continue;
            }
            match self.take_bucket_line() {
                Some(line) => self.pairs.table.spare.push(line),
                None if self.settings.eviction == Eviction::Clock => self.evict_from_bucket(hash),
                None => return None,
            }
        }
    }

    /// Evicts the first pair in the bucket of a key, when there is no memory for another line.
    fn evict_from_bucket(&mut self, hash: KeyHash) {
        let home = self.pairs.table.home(hash);
        let bucket = Bucket(self.pairs.heap.memory.line(home));
        let cell = bucket.entries().next().expect("a bucket without room has entries");
        let item = (bucket.kind(cell) == Kind::Item).then(|| bucket.cell(cell));
        self.pairs.counters.evicted_count += 1;
        self.pairs.unlink(hash, Place::new(home, cell, item));
    }

    /// Removes all pairs.
    pub fn clear(&mut self) {
        self.pairs.note_clear();
        self.pairs.heap.let_go();
        if self.pairs.heap.pins.is_empty() && self.pairs.heap.pending_count == 0 {
            self.pairs.heap.regions = Regions::new(self.pairs.heap.regions.count());
            // Taken before chunks take their memory.
            let first = self.pairs.heap.regions.take_index().expect("all regions are free");
            self.pairs.table.index = Index::new(first, self.pairs.heap.regions.count());
            self.pairs.heap.memory.zero(first..first + INDEX_LINES_MIN);
            // Chunks keep their memory, those still being sent included.
            self.pairs.heap.chunked.clear();
            let line_count = self.pairs.heap.regions.count() * REGION_LINES;
            self.pairs.heap.memory.allow(0..line_count as u32);
            self.pairs.heap.lend(self.pairs.heap.chunked.lent_regions());
            self.pairs.heap.regions.keep_back(self.pairs.regions_kept_back());
            self.evictor.hands = Hands::default();
            self.pairs.table.spare.clear();
        } else {
            self.pairs.table.clear_entries(&mut self.pairs.heap);
        }
        (self.pairs.counters.pair_count, self.pairs.counters.inline_count, self.pairs.counters.pair_bytes) =
            (0, 0, 0);
    }

    /// Advances a resize of the index, or begins one if necessary. Called before a pair is added; entries may move.
    #[inline]
    pub(super) fn tend_index(&mut self) {
        if !self.pairs.table.index.is_calm() {
            self.adapt_index();
        }
    }

    #[cold]
    fn adapt_index(&mut self) {
        if self.pairs.table.index.is_resizing() {
            let mut left_count = if self.pairs.table.index.is_growing() { 1 } else { EMPTY_BUCKETS_AT_ONCE };
            while left_count > 0 && self.move_bucket() {
                left_count -= 1;
            }
            if !self.pairs.table.index.is_resizing() {
                self.pairs.table.end_resize(&mut self.pairs.heap);
            }
            return;
        }
        match self.pairs.table.wanted_groups(
            &self.pairs.heap,
            self.pairs.counters.pair_count,
            self.pairs.journal.is_some(),
        ) {
            Some(groups) if self.pairs.table.index.regions_missing(groups) == 0 => {
                self.pairs.table.index.begin(groups);
            }
            Some(groups) => self.gather_regions(groups),
            None => self.pairs.table.let_go_of_regions(&mut self.pairs.heap),
        }
    }

    /// Whether stored pairs may be evicted, or their values dropped to the log, for the index.
    fn may_make_room(&self) -> bool {
        self.settings.eviction == Eviction::Clock || self.pairs.journal.is_some()
    }

    /// Takes some of the regions that `groups` groups need. If there are not enough, the index grows as far as it can.
    fn gather_regions(&mut self, groups: u64) {
        for _ in 0..self.pairs.table.index.regions_missing(groups).min(REGIONS_AT_ONCE) {
            if let Some(line) = self.pairs.heap.regions.take_index() {
                self.pairs.table.index.add_region(line);
                continue;
            }
            // Make room by one region's worth of pairs per call.
            if self.may_make_room() && self.make_room(None) {
                return;
            }
            return self.pairs.table.give_up_growing(&mut self.pairs.heap);
        }
    }

    /// Moves the next bucket of a resize. `false` if there is none, or no memory to move it.
    fn move_bucket(&mut self) -> bool {
        let Some(home) = self.pairs.table.index.next_to_move(0) else { return false };
        if !self.set_lines_aside(home) {
            return false;
        }
        self.pairs.table.move_bucket(&mut self.pairs.heap, home);
        true
    }

    /// Takes as many spare lines as moving a bucket may need.
    fn set_lines_aside(&mut self, home: u32) -> bool {
        loop {
            if self.pairs.table.spare.len() >= self.pairs.table.lines_to_move(&self.pairs.heap, home) {
                return true;
            }
            let line = if self.may_make_room() {
                self.take_bucket_line()
            } else {
                self.pairs.heap.regions.take_bucket()
            };
            let Some(line) = line else { return false };
            self.pairs.table.spare.push(line);
        }
    }

    /// Gives an empty index a fixed number of groups, for tests of the cost at a given load.
    #[cfg(test)]
    pub(crate) fn spread_over(&mut self, groups: u64) {
        while self.pairs.table.index.regions_missing(groups) > 0 {
            let line = self.pairs.heap.regions.take_index().expect("free regions");
            self.pairs.table.index.add_region(line);
        }
        self.pairs.table.index.begin(groups);
        while self.pairs.table.index.is_resizing() {
            self.move_bucket();
        }
        self.pairs.table.index.set_calm(0..u64::MAX);
    }

    /// Runs `steps` steps of a resize, beginning one if necessary, for tests.
    #[cfg(test)]
    pub(crate) fn resize_partly(&mut self, groups: u64, steps: usize) {
        if !self.pairs.table.index.is_resizing() && groups != self.pairs.table.index.group_count() {
            let groups = groups.max(crate::index::GROUPS_MIN);
            while self.pairs.table.index.regions_missing(groups) > 0 {
                let Some(line) = self.pairs.heap.regions.take_index() else { return };
                self.pairs.table.index.add_region(line);
            }
            self.pairs.table.index.begin(groups);
        }
        (0..steps).for_each(|_| self.adapt_if_resizing());
    }

    #[cfg(test)]
    fn adapt_if_resizing(&mut self) {
        if self.pairs.table.index.is_resizing() {
            self.adapt_index();
        }
    }

    /// Takes a block for an item, making room if necessary.
    pub(crate) fn take_block(&mut self, class: Class) -> Option<u32> {
        loop {
            if let Some(line) = self.pairs.heap.regions.take(class) {
                return Some(line);
            }
            if !self.make_room(Some(class)) {
                return None;
            }
        }
    }

    /// Takes a whole region, making room if necessary.
    pub(crate) fn take_extent(&mut self) -> Option<u32> {
        loop {
            if let Some(region) = self.pairs.heap.regions.take_extent() {
                return Some(region);
            }
            if !self.make_room(None) {
                return None;
            }
        }
    }

    /// Takes a line for a bucket, making room if necessary.
    pub(crate) fn take_bucket_line(&mut self) -> Option<u32> {
        loop {
            if let Some(line) = self.pairs.heap.regions.take_bucket() {
                return Some(line);
            }
            if !self.make_room(None) {
                return None;
            }
        }
    }

    /// Frees a block of the class, or a region. `false` if nothing could be freed.
    pub(crate) fn make_room(&mut self, class: Option<Class>) -> bool {
        self.evictor.make_room(&mut self.pairs, class)
    }

    /// Drops the values of a region that are in the log from memory, for tests.
    #[cfg(test)]
    pub(crate) fn demote_region(&mut self) -> bool {
        self.evictor.demote_region(&mut self.pairs)
    }

    /// Scans the next `region_count` regions and removes expired items. Returns the number removed. To be called when
    /// idle; it continues where it stopped.
    pub fn crawl(&mut self, region_count: usize) -> usize {
        self.evictor.crawl(&mut self.pairs, region_count)
    }
}
