//! Memory for new pairs: blocks, pieces, chunks and entries of the index. If none is free, the evictor makes room.

mod resize;

use std::io;

use linux::Moment;
use memory::Chunk;

pub use resize::ResizeStep;
use resize::Resizing;

use crate::arriving::{ArrivingBytes, Begun, bytes_to_begin};
use crate::bucket::{Bucket, Kind};
use crate::clock::Clock;
use crate::counters::Counters;
use crate::eviction::{Demand, Evictor, move_item_to};
use crate::ghosts::Ghosts;
use crate::heap::Heap;
use crate::index::{INDEX_LINES_MIN, Index};
use crate::key::{KeyHash, KeyHasher};
use crate::pairs::Pairs;
use crate::place::PairPlace;
use crate::regions::{Queue, REGION_BYTES, REGION_LINES, REGIONS_MAX, Regions, Slots};
use crate::reserve::REGION_MEMORY_BYTES;
use crate::settings::{Eviction, Settings};
use crate::table::Table;
use crate::table::lines::{Cell, append_line};
use crate::touches::{Touches, Usual};

/// Regions added to the index per stored pair.
const REGIONS_AT_ONCE: usize = 8;
/// Buckets moved per stored pair while the index shrinks: they are nearly empty.
const EMPTY_BUCKETS_AT_ONCE: usize = 8;

/// The memory of a partition with the pairs in it, and the evictor that frees some for new pairs.
pub(crate) struct Allocator<T = Usual> {
    pub(crate) pairs: Pairs<T>,
    evictor: Evictor,
    resizing: Resizing,
    arriving: ArrivingBytes,
}

/// How the memory of a partition is divided.
struct Plan {
    region_count: usize,
    ghost_bytes: usize,
}

impl Plan {
    /// # Errors
    /// If it is more than a partition can have.
    fn new(memory_bytes: usize, remembers: bool) -> io::Result<Self> {
        let memory_bytes = memory_bytes.max(Settings::MEMORY_BYTES_MIN);
        let ghost_bytes = if remembers { Ghosts::bytes_for(memory_bytes) } else { 0 };
        let region_count = (memory_bytes - ghost_bytes) / REGION_MEMORY_BYTES;
        if region_count > REGIONS_MAX {
            let message = "a partition has at most 128 GiB: use more reactors";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        }
        Ok(Self { region_count, ghost_bytes })
    }
}

impl<T: Touches> Allocator<T> {
    /// The memory of an empty partition.
    ///
    /// # Errors
    /// The system's error when it refuses the memory.
    pub(crate) fn new(settings: &Settings) -> io::Result<Self> {
        let plan = Plan::new(settings.memory_bytes, settings.eviction == Eviction::Clock)?;
        let mut heap = Heap::new(plan.region_count)?;
        let first_line = heap.regions.take_index().expect("all regions are free");
        let table = Table::new(
            Index::new(first_line, plan.region_count),
            KeyHasher::new(settings.seed, settings.partition_seed),
        );
        let (counters, clock) = (Counters::default(), Clock::at(Moment::default()));
        let mut pairs = Pairs { heap, table, counters, clock, journal: None, notes: None, leases: None };
        pairs.reserve_regions();
        let evictor = Evictor::new(settings.eviction, Ghosts::new(plan.ghost_bytes));
        Ok(Self { pairs, evictor, resizing: Resizing::No, arriving: ArrivingBytes::default() })
    }

    /// Takes a block of `units` for a new item of a queue.
    pub(crate) fn take_block(&mut self, queue: Queue, units: usize) -> Option<u32> {
        self.take(Demand::Items, |heap| heap.regions.take(queue, units))
    }

    /// The queue for a new item of `bytes`.
    #[inline]
    pub(crate) fn queue_of_new(&mut self, hash: KeyHash, bytes: usize) -> Queue {
        self.evictor.on_stored(&self.pairs, hash, bytes)
    }

    /// Takes a piece for a part of a large value.
    pub(crate) fn take_piece(&mut self) -> Option<u32> {
        self.take(Demand::Items, |heap| heap.regions.take_slot(Slots::Pieces))
    }

    /// Takes a line for a bucket.
    fn take_bucket_line(&mut self) -> Option<u32> {
        self.take(Demand::Index, |heap| heap.regions.take_slot(Slots::Buckets))
    }

    /// Takes memory from the heap, making room until there is some.
    #[inline]
    fn take(&mut self, demand: Demand, take: impl Fn(&mut Heap<T>) -> Option<u32>) -> Option<u32> {
        loop {
            if let Some(taken) = take(&mut self.pairs.heap) {
                return Some(taken);
            }
            if !self.evictor.make_room(&mut self.pairs, demand) {
                return None;
            }
        }
    }

    /// Whether a value of this length may begin to arrive, with `count` chunks, beside those that have begun.
    pub(crate) fn may_begin(&self, value_bytes: usize, count: usize) -> bool {
        let arriving_bytes = self.arriving.get();
        arriving_bytes == 0
            || arriving_bytes + bytes_to_begin(value_bytes, count) <= self.pairs.arriving_bytes_max()
    }

    /// Takes memory for the first `count` mebibytes of a value that begins to arrive.
    pub(crate) fn begin(&mut self, value_bytes: usize, count: usize) -> Begun {
        if !self.may_begin(value_bytes, count) {
            return Begun::Waits;
        }
        match self.take_chunks(count) {
            Some(chunks) => Begun::Arrives(chunks, self.arriving.share(bytes_to_begin(value_bytes, count))),
            None if self.pairs.heap.chunked.has_passing() => Begun::Waits,
            None => Begun::NoMemory,
        }
    }

    /// Takes memory for `count` mebibytes of a value.
    pub(crate) fn take_chunks(&mut self, count: usize) -> Option<Vec<Chunk>> {
        if count > self.pairs.chunk_count_max() {
            return None;
        }
        (0..count).map(|_| self.take_chunk()).collect()
    }

    fn take_chunk(&mut self) -> Option<Chunk> {
        loop {
            if let Some(chunk) = self.pairs.heap.chunked.source.take() {
                self.pairs.heap.touch_chunks_ahead();
                return Some(chunk);
            }
            if !self.pairs.heap.open_chunk() && !self.evictor.make_room(&mut self.pairs, Demand::Items) {
                return None;
            }
        }
    }

    /// Sets the item of a key that has a lease aside from those that are evicted, with another value as well.
    #[cold]
    pub(crate) fn set_leased_aside(&mut self, hash: KeyHash, key: &[u8]) {
        let Some((item, pair_units)) = self.pairs.movable(hash, key) else { return };
        let units_max = self.pairs.leased_units_max();
        let fits = self.pairs.leases.as_mut().is_none_or(|leases| leases.replace(key, pair_units, units_max));
        if !fits {
            self.evictor.end_lease(&mut self.pairs, hash, key);
            return;
        }
        if self.pairs.heap.is_leased(item) {
            return;
        }
        let units = self.pairs.heap.item_units(item, self.pairs.heap.header(item));
        // Making room may move the item, and end leases.
        let Some(to) = self.take_block(Queue::Leased, units) else { return };
        match self.pairs.movable(hash, key) {
            Some((item, _)) if self.pairs.is_leased(key) && !self.pairs.heap.is_leased(item) => {
                move_item_to(&mut self.pairs, item, to);
            }
            _ => self.pairs.heap.regions.give_back(to, units),
        }
    }

    /// Ends some of the leases whose time is over.
    pub(crate) fn end_some_leases(&mut self) {
        self.evictor.end_some_leases(&mut self.pairs, usize::MAX);
    }

    /// Ends the lease of a key: it may be evicted.
    pub(crate) fn end_lease(&mut self, hash: KeyHash, key: &[u8]) {
        self.evictor.end_lease(&mut self.pairs, hash, key);
    }

    /// Removes some of the pairs that have expired. `false` if none has.
    pub(crate) fn remove_some_expired(&mut self) -> bool {
        self.evictor.remove_some_expired(&mut self.pairs)
    }

    /// Whether there is memory for values of `bytes`, if necessary after dropping values that are in the log.
    pub(crate) fn has_room(&mut self, bytes: usize) -> bool {
        while !self.has_free(bytes) {
            if !self.evictor.make_room(&mut self.pairs, Demand::Items) {
                return false;
            }
        }
        true
    }

    /// Whether there is free memory for values of `bytes`.
    pub(crate) fn has_free(&self, bytes: usize) -> bool {
        let heap = &self.pairs.heap;
        // Besides its pieces a value takes a block.
        let wanted = heap.regions.reserved_count() + bytes.div_ceil(REGION_BYTES) + 1;
        let free_count = heap.regions.free_count() + heap.chunked.free_regions();
        free_count >= wanted.min(heap.regions.target())
    }

    /// Takes `width` neighbouring empty cells for an entry of a key that has none.
    pub(crate) fn take_cells(&mut self, hash: KeyHash, width: usize) -> Option<Cell> {
        if !self.resize_if_needed() {
            return None;
        }
        loop {
            let last = match self.pairs.table.free_cells(&mut self.pairs.heap, hash, width) {
                Ok(cell) => return Some(cell),
                Err(last) => last,
            };
            // Taking a line may remove entries where room was sought, so the loop looks again.
            if let Some(line) = self.pairs.table.spare.pop() {
                append_line(&mut self.pairs.heap, last, line);
                continue;
            }
            match self.take_bucket_line() {
                Some(line) => self.pairs.table.spare.push(line),
                None if self.evictor.may_evict()
                    && self.pairs.journal.is_none()
                    && self.evict_from_bucket(hash) => {}
                None => return None,
            }
        }
    }

    /// Evicts the first pair in the bucket of a key, when there is no memory for another line. `false` if all of them
    /// are leased.
    fn evict_from_bucket(&mut self, hash: KeyHash) -> bool {
        let home = self.pairs.table.home(hash);
        let bucket = Bucket(self.pairs.heap.memory.line(home));
        let item_at = |cell: usize| (bucket.kind(cell) == Kind::Item).then(|| bucket.cell(cell));
        let is_leased = |item: u32| self.pairs.is_leased(self.pairs.heap.key_of(item));
        let Some(cell) = bucket.entries().find(|&cell| !item_at(cell).is_some_and(is_leased)) else {
            return false;
        };
        let item = item_at(cell);
        if let Some(item) = item {
            self.pairs.heap.note_evicted_item(item);
        } else {
            let line = *bucket.0;
            let (key, value) = Bucket(&line).inline(cell);
            self.pairs.heap.note_evicted_inline(key, value);
        }
        self.pairs.counters.evicted_count += 1;
        self.pairs.unlink(hash, PairPlace::new(home, cell, item));
        true
    }

    /// Removes all items that have an expiry, as if it had passed.
    pub(crate) fn remove_expiring(&mut self) {
        let now_s = std::mem::replace(&mut self.pairs.clock.now_s, u32::MAX);
        let region_count = self.pairs.heap.regions.count();
        self.evictor.remove_expired(&mut self.pairs, region_count);
        self.pairs.clock.now_s = now_s;
    }

    /// Removes all pairs without recording a change.
    pub(crate) fn clear(&mut self) {
        let Pairs { heap, table, counters, journal, leases, .. } = &mut self.pairs;
        heap.release_returned_pins();
        *leases = None;
        (counters.pair_count, counters.inline_count, counters.pair_bytes) = (0, 0, 0);
        if let Some(journal) = journal {
            journal.forget_lengths();
        }
        if !heap.pins.is_empty() || heap.pending_count > 0 {
            return table.clear_entries(heap);
        }
        let (region_count, target) = (heap.regions.count(), heap.regions.target());
        heap.regions = Regions::new(region_count);
        heap.regions.set_target(target);
        // Taken before chunks take their memory.
        let first = heap.regions.take_index().expect("all regions are free");
        table.index = Index::new(first, region_count);
        heap.memory.zero(first..first + INDEX_LINES_MIN);
        // Chunks keep their memory, those still being sent included.
        heap.chunked.clear();
        heap.memory.allow(0..(region_count * REGION_LINES) as u32);
        heap.lend(heap.chunked.lent_regions());
        table.spare.clear();
        self.evictor.restart();
        self.restart_resize();
        self.pairs.reserve_regions();
    }

    /// Advances a resize of the index, or begins one if necessary. Called before a pair is added; entries may move.
    /// Returns whether one may be added: with a log, the index has the size that a recovery gives it.
    #[inline]
    fn resize_if_needed(&mut self) -> bool {
        self.pairs.table.index.has_right_size() || self.resize()
    }

    #[cold]
    fn resize(&mut self) -> bool {
        if self.pairs.table.index.is_resizing() {
            let mut left_count = if self.pairs.table.index.is_growing() { 1 } else { EMPTY_BUCKETS_AT_ONCE };
            while left_count > 0 && self.move_bucket() {
                left_count -= 1;
            }
            return true;
        }
        let Pairs { heap, table, counters, journal, .. } = &mut self.pairs;
        match table.wanted_groups(heap, counters.pair_count, journal.is_some()) {
            Some(groups) if table.index.regions_missing(groups) == 0 => table.index.begin(groups),
            Some(groups) => return self.gather_regions(groups),
            None => table.free_unused_regions(heap),
        }
        true
    }

    /// Whether stored pairs may be evicted, or their values dropped to the log, for the index.
    fn may_make_room(&self) -> bool {
        self.evictor.may_evict() || self.pairs.journal.is_some()
    }

    /// Takes some of the regions that `groups` groups need. If there are not enough, the index grows as far as it can,
    /// or, with a log, not at all. Returns whether a pair may be added.
    fn gather_regions(&mut self, groups: u64) -> bool {
        for _ in 0..self.pairs.table.index.regions_missing(groups).min(REGIONS_AT_ONCE) {
            if let Some(line) = self.pairs.heap.regions.take_index() {
                self.pairs.table.index.add_region(line);
                continue;
            }
            // Make room by one region's worth of pairs per call.
            if self.may_make_room() && self.evictor.make_room(&mut self.pairs, Demand::Index) {
                return true;
            }
            if self.pairs.journal.is_some() {
                return false;
            }
            self.pairs.table.give_up_growing(&mut self.pairs.heap);
            break;
        }
        true
    }

    /// Moves the next bucket of a resize. `false` if there is none, or no memory to move it.
    fn move_bucket(&mut self) -> bool {
        let Some(home) = self.pairs.table.index.next_to_move(0) else { return false };
        if self.pairs.table.index.is_squeezed() {
            self.pairs.move_bucket(home);
            return true;
        }
        // Making room changes how many spare lines moving the bucket may need.
        while self.pairs.table.spare.len() < self.pairs.table.spare_lines_needed(&self.pairs.heap, home) {
            let line = if self.may_make_room() {
                self.take_bucket_line()
            } else {
                self.pairs.heap.regions.take_slot(Slots::Buckets)
            };
            let Some(line) = line else {
                if !self.evictor.may_evict() || self.pairs.journal.is_some() {
                    return false;
                }
                // An index full of its own pairs still reaches its size.
                self.pairs.table.index.squeeze();
                break;
            };
            self.pairs.table.spare.push(line);
        }
        self.pairs.move_bucket(home);
        true
    }
}

#[cfg(test)]
impl Allocator {
    /// Adds regions to the index and begins a resize to `groups` groups. `false` if there are not enough regions.
    fn begin_resize(&mut self, groups: u64) -> bool {
        while self.pairs.table.index.regions_missing(groups) > 0 {
            let Some(line) = self.pairs.heap.regions.take_index() else { return false };
            self.pairs.table.index.add_region(line);
        }
        self.pairs.table.index.begin(groups);
        true
    }

    /// Gives an empty index a fixed number of groups.
    pub(crate) fn spread_over(&mut self, groups: u64) {
        assert!(self.begin_resize(groups), "free regions");
        while self.pairs.table.index.is_resizing() {
            self.move_bucket();
        }
        self.pairs.table.index.set_right_cells(0..u64::MAX);
    }

    /// Runs `steps` steps of a resize, beginning one if necessary.
    pub(crate) fn resize_partly(&mut self, groups: u64, steps: usize) {
        let index = &self.pairs.table.index;
        if !index.is_resizing()
            && groups != index.group_count()
            && !self.begin_resize(groups.max(crate::index::GROUPS_MIN))
        {
            return;
        }
        for _ in 0..steps {
            if self.pairs.table.index.is_resizing() {
                self.resize();
            }
        }
    }

    /// Drops the values of a region that are in the log from memory.
    pub(crate) fn demote_region(&mut self) -> bool {
        self.evictor.demote_region(&mut self.pairs)
    }

    /// Removes expired items from the next `region_count` regions.
    #[cfg(test)]
    pub(crate) fn remove_expired(&mut self, region_count: usize) {
        self.evictor.remove_expired(&mut self.pairs, region_count);
    }
}
