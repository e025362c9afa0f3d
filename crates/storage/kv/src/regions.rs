//! Ownership of memory: regions of 64 KiB, each free, or in one use at a time.
//!
//! A region of items is filled from its start on with blocks of any size, and is free again once the last of them is
//! freed or moved away: no size has memory that others cannot get. Regions of items are in two queues, in the order in
//! which they were begun. Regions of *slots* are cut into equal parts: pieces of large values, or overflow lines of the
//! index. A bitmap per region records where its blocks begin, or which slots are taken, so that neither taking nor
//! freeing a block touches it.

mod resize;

use memory::LINE_BYTES;

/// Bytes of a region.
pub const REGION_BYTES: usize = 64 << 10;
/// Lines of a region.
pub(crate) const REGION_LINES: usize = REGION_BYTES / LINE_BYTES;
/// The unit in which blocks are measured and addressed, bytes.
pub(crate) const UNIT_BYTES: usize = LINE_BYTES / 2;
/// Units of a region.
pub(crate) const REGION_UNITS: usize = REGION_BYTES / UNIT_BYTES;
/// Bytes of a piece of a large value.
pub(crate) const PIECE_BYTES: usize = 4 << 10;
/// Pieces of a region.
pub(crate) const REGION_PIECES: usize = REGION_BYTES / PIECE_BYTES;
/// Units of a line: a block of this size does not cross a line.
const LINE_UNITS: usize = LINE_BYTES / UNIT_BYTES;

/// Regions for which address space is reserved: as many as have 32-bit numbers of units, fewer under Miri, to which
/// address space is memory.
pub(crate) const REGIONS_MAX: usize = if cfg!(miri) { 64 } else { u32::MAX as usize / REGION_UNITS };

/// Marks the end of a list.
const NONE: u32 = u32::MAX;

/// A queue of regions of items.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Queue {
    /// New items.
    New,
    /// Items that were moved, because they had been used or to empty a region; stubs, and short values read at the
    /// start.
    Kept,
    /// Items whose values were fetched from the log, or read at the start: each can leave memory once it is written.
    Fetched,
    /// Items that are not evicted for a while.
    Leased,
}

/// The purpose of taking memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Moving items, and stubs of values that leave memory.
    Moves,
    /// A value fetched from the log.
    Fetches,
    /// Pairs read at the start.
    Recovery,
    /// New pairs, and the index.
    Stores,
}

/// Numbers of regions that are kept free, by the purpose for which others are taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Reserve {
    pub(crate) moves: usize,
    pub(crate) fetches: usize,
    pub(crate) recovery: usize,
    pub(crate) stores: usize,
    /// Regions for the longest value that may be fetched.
    pub(crate) value: usize,
    /// Units that a region of fixed items may waste.
    pub(crate) wasted_units: usize,
}

/// The purpose of the slots of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Slots {
    /// Pieces of large values.
    Pieces,
    /// Overflow lines of the index.
    Buckets,
}

/// The use of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    /// Not in use.
    Free,
    /// Its memory is lent to chunks.
    Lent,
    /// Items.
    Items(Queue),
    /// The index.
    Index,
    /// Slots.
    Slots(Slots),
}

struct Region {
    use_: Use,
    /// Items in it may have values that are in the log.
    may_drop: bool,
    /// Units of items up to which it is filled.
    filled: u16,
    /// Units of those that were skipped so that a block of one line lies in one line.
    skipped: u16,
    /// Items that may be neither moved nor evicted.
    held_count: u16,
    /// Neighbours in its list. `next` of a lent region is its place among those.
    previous: u32,
    next: u32,
    /// Bytes of items, and pairs in the index, that were stored before it was begun.
    stored_at: u64,
    inline_stored_at: u64,
    /// The first units of items, or the slots taken.
    map: [u64; REGION_UNITS / 64],
}

/// A list of regions, from the oldest to the newest.
#[derive(Clone, Copy)]
struct List {
    first: u32,
    last: u32,
}

/// All regions of a partition.
pub(crate) struct Regions {
    regions: Vec<Region>,
    /// By region: units of blocks, or slots, in use.
    taken: Vec<u16>,
    /// By piece: the item that it belongs to.
    owners: Vec<u32>,
    /// Free regions below the limit, and the number of those from the limit on.
    free: Vec<u32>,
    free_beyond: usize,
    /// Regions from here on are not taken any more.
    limit: u32,
    /// The number of regions to be reached, and how many fewer than there are may be used by now.
    target: usize,
    withheld_count: usize,
    /// The queues of items, and the regions with free slots of each kind.
    lists: [List; LIST_COUNT],
    /// The region of each queue that is being filled.
    filling: [u32; QUEUE_COUNT],
    /// Free slots of each kind.
    free_slots: [usize; 2],
    slot_regions: [usize; 2],
    /// Units of the blocks of items of each queue, and of their pieces and chunks.
    item_units: [usize; QUEUE_COUNT],
    part_units: [usize; QUEUE_COUNT],
    /// Units of items that were freed or skipped in regions that are in use.
    hole_units: usize,
    /// The free regions to be kept, the present purpose of taking memory, and how many regions are kept free then.
    reserve: Reserve,
    purpose: Purpose,
    reserved_count: usize,
    /// Whether blocks of one line may cross lines: no unit is skipped then, whatever the order of the blocks.
    is_packed: bool,
    /// Regions with items whose values may be in the log.
    may_drop_count: usize,
    /// Regions whose memory is lent to chunks.
    lent: Vec<u32>,
    /// Bytes of keys and values of items that were stored so far.
    pub(crate) stored_bytes: u64,
    /// Pairs that were added to the index so far.
    pub(crate) inline_stored_count: u64,
}

const QUEUE_COUNT: usize = 4;
const LIST_COUNT: usize = QUEUE_COUNT + 2;

/// Units that a block of `bytes` takes.
#[inline]
pub(crate) const fn units(bytes: usize) -> usize {
    bytes.div_ceil(UNIT_BYTES)
}

impl Slots {
    fn list(self) -> usize {
        QUEUE_COUNT + self.number()
    }

    fn number(self) -> usize {
        self as usize
    }

    /// Slots of a region.
    fn per_region(self) -> usize {
        match self {
            Self::Pieces => REGION_PIECES,
            Self::Buckets => REGION_LINES,
        }
    }
}

impl Regions {
    /// Bytes that one region's record takes.
    pub(crate) const RECORD_BYTES: usize =
        size_of::<Region>() + size_of::<u16>() + (REGION_PIECES + 1) * size_of::<u32>();

    /// `count` free regions.
    pub(crate) fn new(count: usize) -> Self {
        let mut regions = Self {
            regions: Vec::new(),
            taken: Vec::new(),
            owners: Vec::new(),
            free: Vec::new(),
            free_beyond: 0,
            limit: 0,
            target: count,
            withheld_count: 0,
            lists: [List { first: NONE, last: NONE }; LIST_COUNT],
            filling: [NONE; QUEUE_COUNT],
            free_slots: [0; 2],
            slot_regions: [0; 2],
            item_units: [0; QUEUE_COUNT],
            part_units: [0; QUEUE_COUNT],
            hole_units: 0,
            reserve: Reserve::default(),
            purpose: Purpose::Stores,
            reserved_count: 0,
            is_packed: false,
            may_drop_count: 0,
            lent: Vec::new(),
            stored_bytes: 0,
            inline_stored_count: 0,
        };
        regions.set_count(count);
        regions
    }

    /// Number of regions.
    pub(crate) fn count(&self) -> usize {
        self.regions.len()
    }

    /// Takes only those of the free regions from now on for which this holds.
    #[cfg(test)]
    pub(crate) fn keep_free(&mut self, is_kept: impl Fn(u32) -> bool) {
        self.free.retain(|region| is_kept(*region));
    }

    /// Number of regions to be reached by a resize, else that of all.
    pub(crate) fn target(&self) -> usize {
        self.target
    }

    /// Number of regions that stores may take, after a resize.
    pub(crate) fn usable_count(&self) -> usize {
        self.target.saturating_sub(self.reserve.stores)
    }

    /// Number of free regions that are kept for other purposes than the present one.
    pub(crate) fn reserved_count(&self) -> usize {
        self.reserved_count
    }

    /// Number of free regions, without those that a resize withholds.
    pub(crate) fn free_count(&self) -> usize {
        (self.free.len() + self.free_beyond).saturating_sub(self.withheld_count)
    }

    /// Number of regions that are not free.
    pub(crate) fn used_count(&self) -> usize {
        self.count() - self.free.len() - self.free_beyond
    }

    /// Units that were freed or skipped in regions of items, and cannot be taken before the region is empty.
    pub(crate) fn hole_units(&self) -> usize {
        self.hole_units
    }

    /// Lines of items and pieces in use.
    pub(crate) fn taken_lines(&self) -> usize {
        let pieces = self.taken_slots(Slots::Pieces) * (PIECE_BYTES / LINE_BYTES);
        self.item_units.iter().sum::<usize>() / LINE_UNITS + pieces
    }

    /// Units of the items of a queue, with their pieces and chunks.
    pub(crate) fn item_units(&self, queue: Queue) -> usize {
        self.item_units[queue as usize] + self.part_units[queue as usize]
    }

    /// Records the units of the pieces and chunks of an item.
    pub(crate) fn add_parts(&mut self, item: u32, units: usize) {
        self.part_units[self.queue_of(item) as usize] += units;
    }

    /// Records that the pieces and chunks of an item are freed, or belong to another.
    pub(crate) fn remove_parts(&mut self, item: u32, units: usize) {
        self.part_units[self.queue_of(item) as usize] -= units;
    }

    /// The queue of an item.
    fn queue_of(&self, item: u32) -> Queue {
        let Use::Items(queue) = self.use_of(self.region_of(item)) else {
            unreachable!("a block is in a region of items")
        };
        queue
    }

    /// Slots in use.
    pub(crate) fn taken_slots(&self, slots: Slots) -> usize {
        self.slot_regions[slots.number()] * slots.per_region() - self.free_slots[slots.number()]
    }

    /// Free slots in regions of slots.
    pub(crate) fn free_slots(&self, slots: Slots) -> usize {
        self.free_slots[slots.number()]
    }

    /// Free slots, counted in regions.
    pub(crate) fn free_regions_in(&self, slots: Slots) -> usize {
        self.free_slots(slots) / slots.per_region()
    }

    /// The use of a region.
    pub(crate) fn use_of(&self, region: u32) -> Use {
        debug_assert!((region as usize) < self.regions.len(), "region {region} of {}", self.regions.len());
        self.regions[region as usize].use_
    }

    /// The first line of a region.
    #[inline]
    pub(crate) fn first_line(&self, region: u32) -> u32 {
        region * REGION_LINES as u32
    }

    /// Sets how many free regions are kept, and whether blocks may cross lines.
    pub(crate) fn set_reserve(&mut self, reserve: Reserve, is_packed: bool) {
        (self.reserve, self.is_packed) = (reserve, is_packed);
        self.set_purpose(self.purpose);
    }

    /// Sets the purpose of taking memory from now on. Returns the previous one.
    pub(crate) fn set_purpose(&mut self, purpose: Purpose) -> Purpose {
        self.reserved_count = match purpose {
            Purpose::Moves => self.reserve.moves,
            Purpose::Fetches => self.reserve.fetches,
            Purpose::Recovery => self.reserve.recovery,
            Purpose::Stores => self.reserve.stores,
        };
        std::mem::replace(&mut self.purpose, purpose)
    }

    /// Number of regions needed for `fixed_units` of fixed items, however they are scattered, for everything besides
    /// items, for the longest value, and for moving.
    pub(crate) fn needed_for_fetches(&self, fixed_units: usize) -> usize {
        let full_units = REGION_UNITS - self.reserve.wasted_units;
        let items = fixed_units.div_ceil(full_units);
        let is_other = |region: &&Region| matches!(region.use_, Use::Index | Use::Slots(Slots::Buckets));
        items + self.regions.iter().filter(is_other).count() + self.reserve.fetches + self.reserve.value
    }

    /// Takes a block of `units` for an item of a queue; its first unit.
    #[inline]
    pub(crate) fn take(&mut self, queue: Queue, units: usize) -> Option<u32> {
        let index = self.filling[queue as usize];
        if index != NONE
            && let Some(at) = self.fill(index, queue, units)
        {
            return Some(at);
        }
        self.take_in_next(queue, units)
    }

    /// As [`take`](Self::take), for an item that is moved or reduced to a stub. Uses reserved regions.
    pub(crate) fn take_for_move(&mut self, queue: Queue, units: usize) -> Option<u32> {
        let purpose = self.set_purpose(Purpose::Moves);
        let at = self.take(queue, units);
        self.set_purpose(purpose);
        at
    }

    #[inline]
    fn fill(&mut self, index: u32, queue: Queue, units: usize) -> Option<u32> {
        let region = &mut self.regions[index as usize];
        let filled = usize::from(region.filled);
        // A block of one line lies in one line.
        let first =
            if units == LINE_UNITS && !self.is_packed { filled.next_multiple_of(LINE_UNITS) } else { filled };
        if first + units > REGION_UNITS {
            return None;
        }
        region.map[first / 64] |= 1 << (first % 64);
        region.filled = (first + units) as u16;
        region.skipped += (first - filled) as u16;
        self.hole_units += first - filled;
        self.taken[index as usize] += units as u16;
        self.item_units[queue as usize] += units;
        Some(index * REGION_UNITS as u32 + first as u32)
    }

    #[cold]
    fn take_in_next(&mut self, queue: Queue, units: usize) -> Option<u32> {
        let index = self.pop_free()?;
        let region = &mut self.regions[index as usize];
        (region.use_, region.filled, region.skipped) = (Use::Items(queue), 0, 0);
        (region.stored_at, region.inline_stored_at) = (self.stored_bytes, self.inline_stored_count);
        region.map = [0; REGION_UNITS / 64];
        self.append(index, queue as usize);
        self.filling[queue as usize] = index;
        self.fill(index, queue, units)
    }

    fn pop_free(&mut self) -> Option<u32> {
        if self.free_count() <= self.reserved_count { None } else { self.free.pop() }
    }

    /// Notes whether a region may have items whose values are in the log.
    pub(crate) fn set_may_drop(&mut self, region: u32, may_drop: bool) {
        let before = std::mem::replace(&mut self.regions[region as usize].may_drop, may_drop);
        self.may_drop_count += usize::from(may_drop);
        self.may_drop_count -= usize::from(before);
    }

    /// Whether a region may have items whose values are in the log.
    pub(crate) fn may_drop(&self, region: u32) -> bool {
        self.regions[region as usize].may_drop
    }

    /// Number of regions with items whose values may be in the log.
    pub(crate) fn may_drop_count(&self) -> usize {
        self.may_drop_count
    }

    /// The region that contains a unit of items.
    #[inline]
    pub(crate) fn region_of(&self, at: u32) -> u32 {
        at / REGION_UNITS as u32
    }

    /// Frees a block of `units`.
    #[inline]
    pub(crate) fn give_back(&mut self, at: u32, units: usize) {
        let (index, first) = (self.region_of(at), at as usize % REGION_UNITS);
        let region = &mut self.regions[index as usize];
        let Use::Items(queue) = region.use_ else { unreachable!("a block is in a region of items") };
        debug_assert!(region.map[first / 64] >> (first % 64) & 1 == 1, "unit {at} begins no block");
        debug_assert!(
            usize::from(self.taken[index as usize]) >= units,
            "a block of {units} units at unit {at}, in region {index} with {} in use",
            self.taken[index as usize]
        );
        region.map[first / 64] &= !(1 << (first % 64));
        self.taken[index as usize] -= units as u16;
        self.item_units[queue as usize] -= units;
        self.hole_units += units;
        if self.taken[index as usize] == 0 {
            self.free_items(index, queue);
        }
    }

    #[cold]
    fn free_items(&mut self, index: u32, queue: Queue) {
        debug_assert_eq!(self.regions[index as usize].held_count, 0);
        self.hole_units -= usize::from(self.regions[index as usize].filled);
        if self.filling[queue as usize] == index {
            self.filling[queue as usize] = NONE;
        }
        self.unlink(index, queue as usize);
        self.release(index);
    }

    /// Makes a region free.
    fn release(&mut self, index: u32) {
        self.set_may_drop(index, false);
        self.regions[index as usize].use_ = Use::Free;
        if index < self.limit {
            self.free.push(index);
        } else {
            self.free_beyond += 1;
        }
    }

    fn append(&mut self, index: u32, list: usize) {
        let last = std::mem::replace(&mut self.lists[list].last, index);
        debug_assert!(
            last == NONE || self.regions[last as usize].next == NONE,
            "the last region {last} of list {list} has another behind it"
        );
        let region = &mut self.regions[index as usize];
        (region.previous, region.next) = (last, NONE);
        match last {
            NONE => self.lists[list].first = index,
            _ => self.regions[last as usize].next = index,
        }
    }

    fn unlink(&mut self, index: u32, list: usize) {
        let Region { previous, next, .. } = self.regions[index as usize];
        debug_assert!(
            match previous {
                NONE => self.lists[list].first == index,
                _ => self.regions[previous as usize].next == index,
            },
            "region {index} is not behind region {previous} in list {list}"
        );
        debug_assert!(
            match next {
                NONE => self.lists[list].last == index,
                _ => self.regions[next as usize].previous == index,
            },
            "region {index} is not before region {next} in list {list}"
        );
        match previous {
            NONE => self.lists[list].first = next,
            _ => self.regions[previous as usize].next = next,
        }
        match next {
            NONE => self.lists[list].last = previous,
            _ => self.regions[next as usize].previous = previous,
        }
    }

    /// The oldest region of a queue.
    pub(crate) fn oldest(&self, queue: Queue) -> Option<u32> {
        let first = self.lists[queue as usize].first;
        (first != NONE).then_some(first)
    }

    /// Takes no more blocks from a region of items.
    pub(crate) fn end_filling(&mut self, index: u32) {
        for filling in &mut self.filling {
            if *filling == index {
                *filling = NONE;
            }
        }
    }

    /// Units that the next blocks of a queue have without another region.
    pub(crate) fn room_in_filling(&self, queue: Queue) -> usize {
        match self.filling[queue as usize] {
            NONE => 0,
            index => REGION_UNITS - usize::from(self.regions[index as usize].filled),
        }
    }

    /// Number of free regions down to which values are fetched: the rest is for moving.
    pub(crate) fn kept_for_moves(&self) -> usize {
        self.reserve.fetches
    }

    /// Bytes of items stored since this region of items was begun.
    pub(crate) fn stored_since(&self, index: u32) -> u64 {
        self.stored_bytes - self.regions[index as usize].stored_at
    }

    /// Pairs that were added to the index since this region of items was begun.
    pub(crate) fn inline_stored_since(&self, index: u32) -> u64 {
        self.inline_stored_count - self.regions[index as usize].inline_stored_at
    }

    /// Makes a region of items the newest of its queue.
    pub(crate) fn renew(&mut self, index: u32) {
        let Use::Items(queue) = self.use_of(index) else { return };
        self.unlink(index, queue as usize);
        self.append(index, queue as usize);
        let region = &mut self.regions[index as usize];
        (region.stored_at, region.inline_stored_at) = (self.stored_bytes, self.inline_stored_count);
    }

    /// Records whether an item must stay where it is.
    pub(crate) fn hold(&mut self, at: u32, is_held: bool) {
        let region = self.region_of(at);
        let held_count = &mut self.regions[region as usize].held_count;
        *held_count = if is_held { *held_count + 1 } else { *held_count - 1 };
    }

    /// The first item at or after unit `from` of a region of items: its number in the region, and the item.
    pub(crate) fn next_item(&self, region: u32, from: usize) -> Option<(usize, u32)> {
        let at = next_bit(&self.regions[region as usize].map, from, REGION_UNITS)?;
        Some((at, region * REGION_UNITS as u32 + at as u32))
    }

    /// The first slot taken at or after slot `from` of a region of slots: its number in the region, and among all.
    pub(crate) fn next_slot(&self, region: u32, from: usize) -> Option<(usize, u32)> {
        let Use::Slots(slots) = self.use_of(region) else { return None };
        let at = next_bit(&self.regions[region as usize].map, from, slots.per_region())?;
        Some((at, (region as usize * slots.per_region() + at) as u32))
    }

    /// Takes a slot: its number among all of its kind, which for a bucket is its line.
    pub(crate) fn take_slot(&mut self, slots: Slots) -> Option<u32> {
        let mut index = self.lists[slots.list()].first;
        if index == NONE {
            index = self.pop_free()?;
            let region = &mut self.regions[index as usize];
            region.use_ = Use::Slots(slots);
            region.map = [0; REGION_UNITS / 64];
            self.free_slots[slots.number()] += slots.per_region();
            self.slot_regions[slots.number()] += 1;
            self.append(index, slots.list());
        }
        let map = &mut self.regions[index as usize].map;
        let word = map.iter().position(|&word| word != u64::MAX).expect("a slot is free");
        let bit = map[word].trailing_ones() as usize;
        map[word] |= 1 << bit;
        self.taken[index as usize] += 1;
        self.free_slots[slots.number()] -= 1;
        if usize::from(self.taken[index as usize]) == slots.per_region() {
            self.unlink(index, slots.list());
        }
        Some((index as usize * slots.per_region() + word * 64 + bit) as u32)
    }

    /// Frees a slot.
    pub(crate) fn give_back_slot(&mut self, slots: Slots, number: u32) {
        let (index, at) = (number as usize / slots.per_region(), number as usize % slots.per_region());
        let region = &mut self.regions[index];
        debug_assert_eq!(region.use_, Use::Slots(slots));
        debug_assert!(region.map[at / 64] >> (at % 64) & 1 == 1, "slot {number} is free already");
        region.map[at / 64] &= !(1 << (at % 64));
        self.free_slots[slots.number()] += 1;
        if usize::from(self.taken[index]) == slots.per_region() {
            self.append(index as u32, slots.list());
        }
        self.taken[index] -= 1;
        if self.taken[index] == 0 {
            self.free_slots[slots.number()] -= slots.per_region();
            self.slot_regions[slots.number()] -= 1;
            self.unlink(index as u32, slots.list());
            self.release(index as u32);
        }
    }

    /// The item that a piece belongs to.
    pub(crate) fn owner(&self, piece: u32) -> u32 {
        debug_assert!((piece as usize) < self.owners.len(), "piece {piece} of {}", self.owners.len());
        self.owners[piece as usize]
    }

    /// Records the item that a piece belongs to.
    pub(crate) fn set_owner(&mut self, piece: u32, item: u32) {
        debug_assert!((piece as usize) < self.owners.len(), "piece {piece} of {}", self.owners.len());
        self.owners[piece as usize] = item;
    }

    /// Makes a region with free slots the last whose slots are taken, so that it can be emptied into the others.
    pub(crate) fn take_last(&mut self, region: u32) {
        if let Use::Slots(slots) = self.use_of(region) {
            self.unlink(region, slots.list());
            self.append(region, slots.list());
        }
    }

    /// Takes a whole region for the index: its first line.
    pub(crate) fn take_index(&mut self) -> Option<u32> {
        let region = self.pop_free()?;
        self.regions[region as usize].use_ = Use::Index;
        Some(self.first_line(region))
    }

    /// Frees a region of the index.
    pub(crate) fn give_back_index(&mut self, first_line: u32) {
        let region = first_line / REGION_LINES as u32;
        debug_assert_eq!(self.use_of(region), Use::Index);
        self.release(region);
    }

    /// Lends the memory of `count` free regions, and returns their numbers. Empty if fewer are free.
    pub(crate) fn lend(&mut self, count: usize) -> Vec<u32> {
        if self.free_count() < self.reserved_count + count {
            return Vec::new();
        }
        let lent = self.free.split_off(self.free.len() - count);
        for &region in &lent {
            let at = self.lent.len();
            self.lend_as(at, region);
        }
        lent
    }

    fn lend_as(&mut self, at: usize, region: u32) {
        if at == self.lent.len() {
            self.lent.push(region);
        } else {
            self.lent[at] = region;
        }
        let record = &mut self.regions[region as usize];
        (record.use_, record.next) = (Use::Lent, at as u32);
    }

    /// Takes the memory of `count` lent regions back, and returns their numbers.
    pub(crate) fn take_back(&mut self, count: usize) -> Vec<u32> {
        let taken = self.lent.split_off(self.lent.len() - count);
        taken.iter().for_each(|&region| self.release(region));
        taken
    }

    /// The sparsest of `count` regions from region `from` on that can be emptied by moving its content, which frees at
    /// least `least` units.
    pub(crate) fn sparsest(&self, from: u32, count: usize, least: usize) -> Option<u32> {
        let mut best: Option<(usize, u32)> = None;
        for step in 0..count {
            let index = (from as usize + step) % self.regions.len();
            let taken = usize::from(self.taken[index]);
            let region = &self.regions[index];
            let (weight, freed) = match region.use_ {
                Use::Items(queue)
                    if queue != Queue::Fetched
                        && (self.is_packed || self.filling[queue as usize] != index as u32)
                        && region.held_count == 0 =>
                {
                    // Moving the items skips as many units again: if they counted, emptying regions would never end.
                    (taken, usize::from(region.filled - region.skipped) - taken)
                }
                Use::Slots(slots) => {
                    let per_region = slots.per_region();
                    let free_elsewhere = self.free_slots[slots.number()] - (per_region - taken);
                    if taken == per_region || taken > free_elsewhere {
                        continue;
                    }
                    (taken * (REGION_UNITS / per_region), REGION_UNITS)
                }
                _ => continue,
            };
            if freed >= least && best.is_none_or(|(lightest, _)| weight < lightest) {
                best = Some((weight, index as u32));
            }
        }
        best.map(|(_, index)| index)
    }
}

/// The first bit of `map` that is set, from bit `from` on and before `end`.
fn next_bit(map: &[u64], from: usize, end: usize) -> Option<usize> {
    let mut at = from;
    while at < end {
        let rest = map[at / 64] >> (at % 64);
        if rest != 0 {
            return Some(at + rest.trailing_zeros() as usize);
        }
        at = (at / 64 + 1) * 64;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    #[derive(Clone, Copy, Debug)]
    enum Taken {
        Block(u32, usize),
        Slot(Slots, u32),
    }

    impl Taken {
        /// Its units.
        fn units(self) -> std::ops::Range<u32> {
            let (first, count) = match self {
                Self::Block(at, units) => (at, units),
                Self::Slot(slots, number) => {
                    let units = REGION_UNITS / slots.per_region();
                    (number * units as u32, units)
                }
            };
            first..first + count as u32
        }
    }

    /// Two regions of a queue, one behind the other.
    #[cfg(debug_assertions)]
    fn two_in_a_list() -> (Regions, [u32; 2]) {
        let mut regions = Regions::new(4);
        let starts = [(); 2].map(|()| regions.take(Queue::New, REGION_UNITS).expect("memory"));
        (regions, starts)
    }

    #[cfg(debug_assertions)]
    #[test]
    #[should_panic(expected = "is not behind region")]
    fn a_list_whose_regions_do_not_know_each_other_is_named() {
        let (mut regions, [first, second]) = two_in_a_list();
        let (first, second) = (regions.region_of(first), regions.region_of(second));
        regions.regions[first as usize].next = NONE;
        regions.unlink(second, Queue::New as usize);
    }

    #[cfg(debug_assertions)]
    #[test]
    #[should_panic(expected = "a block of 2 units at unit")]
    fn a_block_that_is_not_counted_is_named() {
        let (mut regions, [first, _]) = two_in_a_list();
        let region = regions.region_of(first);
        regions.taken[region as usize] = 1;
        regions.give_back(first, 2);
    }

    proptest! {
        /// Blocks and slots never overlap, the counts agree, and what was freed becomes whole regions.
        #[test]
        fn blocks_never_overlap(steps in prop::collection::vec((0u8..6, 1usize..5_000), 1..600)) {
            let mut regions = Regions::new(8);
            let mut units: HashMap<u32, u32> = HashMap::new();
            let mut held: Vec<Taken> = Vec::new();
            for (kind, size) in steps {
                let taken = match kind {
                    0 | 1 => regions.take(Queue::New, super::units(size)).map(|at| Taken::Block(at, super::units(size))),
                    2 => regions.take(Queue::Kept, super::units(size)).map(|at| Taken::Block(at, super::units(size))),
                    3 if size % 2 == 0 => regions.take_slot(Slots::Pieces).map(|at| Taken::Slot(Slots::Pieces, at)),
                    3 => regions.take_slot(Slots::Buckets).map(|at| Taken::Slot(Slots::Buckets, at)),
                    _ if held.is_empty() => None,
                    _ => {
                        let taken = held.swap_remove(size % held.len());
                        taken.units().for_each(|unit| assert!(units.remove(&unit).is_some()));
                        match taken {
                            Taken::Block(at, count) => regions.give_back(at, count),
                            Taken::Slot(slots, number) => regions.give_back_slot(slots, number),
                        }
                        None
                    }
                };
                if let Some(taken) = taken {
                    for unit in taken.units() {
                        prop_assert!((0..8 * REGION_UNITS as u32).contains(&unit));
                        prop_assert!(units.insert(unit, taken.units().start).is_none());
                    }
                    if let Taken::Block(at, 2) = taken {
                        prop_assert_eq!(at % 2, 0, "a block of a line crosses a line");
                    }
                    held.push(taken);
                }
                let items: usize = regions.item_units.iter().sum();
                let buckets = regions.taken_slots(Slots::Buckets) * LINE_UNITS;
                let pieces = regions.taken_slots(Slots::Pieces) * (PIECE_BYTES / UNIT_BYTES);
                prop_assert_eq!(items + buckets + pieces, units.len());
                prop_assert!(regions.hole_units() + items <= 8 * REGION_UNITS);
            }
            for taken in held {
                match taken {
                    Taken::Block(at, count) => regions.give_back(at, count),
                    Taken::Slot(slots, number) => regions.give_back_slot(slots, number),
                }
            }
            prop_assert_eq!((regions.free_count(), regions.hole_units()), (8, 0));
        }
    }
}
