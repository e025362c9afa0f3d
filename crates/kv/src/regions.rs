//! Ownership of lines: regions of 64 KiB, each free, cut into blocks of one class, or one extent of a large value.
//!
//! Classes are *split* and *merged* in batches: a free region becomes all the blocks of a class at once, and when its
//! last block is freed it is a free region again, for any class. A bitmap per region records its free blocks. The
//! bitmaps are small enough to stay in the near caches, and neither taking nor freeing a block touches the block.

use reactor::LINE_BYTES;

/// Lines of a region.
pub(crate) const REGION_LINES: usize = 1024;
/// Bytes of a region.
pub const REGION_BYTES: usize = REGION_LINES * LINE_BYTES;

/// Lines of a block, by class. Steps of at most a quarter up to a sixth of a region, then sizes that divide a region
/// well.
const CLASS_LINES: [u16; 32] = [
    1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 56, 64, 73, 85, 102, 113, 128, 146, 170,
    204, 256, 341, 512, 1024,
];
/// Number of classes.
pub(crate) const CLASS_COUNT: usize = CLASS_LINES.len();

/// Marks the end of a list.
const NONE: u32 = u32::MAX;

/// A class of blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Class(u8);

/// What a region is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    /// Not in use.
    Free,
    /// Items of a class.
    Items(Class),
    /// The index.
    Index,
    /// Overflow lines of the index.
    Buckets,
    /// A part of a large value.
    Extent,
}

struct Region {
    use_: Use,
    free_count: u16,
    /// Blocks that may be neither moved nor evicted.
    held_count: u16,
    /// Whether it is in no list although it has free blocks.
    is_shut: bool,
    /// The first word of the bitmap that may have a free block.
    hint: u8,
    /// Neighbours in the list of regions of the same use with free blocks.
    previous: u32,
    next: u32,
    /// Position in the list of all regions of the same use.
    member_at: u32,
    /// Blocks that are taken.
    taken: [u64; REGION_LINES / 64],
}

/// All regions of a partition.
pub(crate) struct Regions {
    regions: Vec<Region>,
    free: Vec<u32>,
    /// Heads of the lists of regions with free blocks, by list number.
    open: [u32; LIST_COUNT],
    /// All regions of a use, by list number.
    members: [Vec<u32>; LIST_COUNT],
    free_blocks: [usize; LIST_COUNT],
    /// Lines of blocks and extents that are taken.
    taken_lines: usize,
    /// Free regions reserved for stubs.
    reserved_count: usize,
    /// Regions whose memory is lent to chunks.
    lent: Vec<u32>,
}

/// One list per class, and one for buckets.
const LIST_COUNT: usize = CLASS_COUNT + 1;
const BUCKET_LIST: usize = CLASS_COUNT;

impl Class {
    /// The smallest class whose blocks hold `bytes`.
    #[inline]
    pub(crate) fn of(bytes: usize) -> Option<Self> {
        let lines = bytes.div_ceil(LINE_BYTES);
        if lines <= 8 {
            return Some(Self(u8::try_from(lines.max(1) - 1).expect("small")));
        }
        let at = CLASS_LINES.partition_point(|&class| usize::from(class) < lines);
        (at < CLASS_COUNT).then(|| Self(u8::try_from(at).expect("few classes")))
    }

    /// Lines of a block.
    #[inline]
    pub(crate) fn lines(self) -> usize {
        CLASS_LINES[usize::from(self.0)].into()
    }

    /// Its number.
    pub(crate) fn number(self) -> usize {
        self.0.into()
    }

    fn blocks(self) -> usize {
        REGION_LINES / self.lines()
    }
}

impl Use {
    fn list(self) -> usize {
        match self {
            Self::Items(class) => class.0.into(),
            Self::Buckets => BUCKET_LIST,
            Self::Free | Self::Index | Self::Extent => unreachable!("not cut into blocks"),
        }
    }

    fn class(self) -> Class {
        match self {
            Self::Items(class) => class,
            _ => Class(0),
        }
    }
}

impl Regions {
    /// Bytes that one region's record takes.
    pub(crate) const RECORD_BYTES: usize = size_of::<Region>() + size_of::<u32>();

    /// `count` free regions.
    pub(crate) fn new(count: usize) -> Self {
        let region = || Region {
            use_: Use::Free,
            free_count: 0,
            held_count: 0,
            is_shut: false,
            hint: 0,
            previous: NONE,
            next: NONE,
            member_at: 0,
            taken: [0; REGION_LINES / 64],
        };
        Self {
            regions: (0..count).map(|_| region()).collect(),
            free: (0..u32::try_from(count).expect("counted in 32 bits")).rev().collect(),
            open: [NONE; LIST_COUNT],
            members: std::array::from_fn(|_| Vec::new()),
            free_blocks: [0; LIST_COUNT],
            taken_lines: 0,
            reserved_count: 0,
            lent: Vec::new(),
        }
    }

    /// Number of regions.
    pub(crate) fn count(&self) -> usize {
        self.regions.len()
    }

    /// Number of free regions.
    pub(crate) fn free_count(&self) -> usize {
        self.free.len()
    }

    /// Lines in use.
    pub(crate) fn taken_lines(&self) -> usize {
        self.taken_lines
    }

    /// What a region is used for.
    pub(crate) fn use_of(&self, region: u32) -> Use {
        self.regions[region as usize].use_
    }

    /// The region of a line.
    #[inline]
    pub(crate) fn region_of(&self, line: u32) -> u32 {
        line / REGION_LINES as u32
    }

    /// The first line of a region.
    #[inline]
    pub(crate) fn first_line(&self, region: u32) -> u32 {
        region * REGION_LINES as u32
    }

    /// Takes a block for an item of `class`.
    #[inline]
    pub(crate) fn take(&mut self, class: Class) -> Option<u32> {
        self.take_for(Use::Items(class))
    }

    /// Reserves `count` free regions for [`take_for_stub`](Self::take_for_stub).
    pub(crate) fn reserve(&mut self, count: usize) {
        self.reserved_count = count;
    }

    /// Takes a block for a stub, which frees more memory than it takes.
    pub(crate) fn take_for_stub(&mut self, class: Class) -> Option<u32> {
        let reserved_count = std::mem::take(&mut self.reserved_count);
        let line = self.take(class);
        self.reserved_count = reserved_count;
        line
    }

    /// Takes a line for a bucket.
    pub(crate) fn take_bucket(&mut self) -> Option<u32> {
        self.take_for(Use::Buckets)
    }

    #[inline]
    fn take_for(&mut self, use_: Use) -> Option<u32> {
        let (list, class) = (use_.list(), use_.class());
        let mut index = self.open[list];
        if index == NONE {
            index = self.split(use_)?;
        }
        let region = &mut self.regions[index as usize];
        let mut word = usize::from(region.hint);
        while region.taken[word] == u64::MAX {
            word += 1;
        }
        let bit = region.taken[word].trailing_ones();
        region.taken[word] |= 1 << bit;
        region.hint = word as u8;
        region.free_count -= 1;
        if region.free_count == 0 {
            self.close(index, list);
        }
        self.free_blocks[list] -= 1;
        self.taken_lines += class.lines();
        let block = word as u32 * 64 + bit;
        Some(self.first_line(index) + block * class.lines() as u32)
    }

    fn pop_free(&mut self) -> Option<u32> {
        if self.free.len() <= self.reserved_count { None } else { self.free.pop() }
    }

    /// Cuts a free region into blocks.
    #[cold]
    fn split(&mut self, use_: Use) -> Option<u32> {
        let index = self.pop_free()?;
        let (list, class) = (use_.list(), use_.class());
        let region = &mut self.regions[index as usize];
        region.use_ = use_;
        region.free_count = class.blocks() as u16;
        region.hint = 0;
        region.taken = [u64::MAX; REGION_LINES / 64];
        for (word, bits) in region.taken.iter_mut().enumerate() {
            let blocks = class.blocks().saturating_sub(word * 64);
            if blocks > 0 {
                *bits = if blocks >= 64 { 0 } else { u64::MAX << blocks };
            }
        }
        region.member_at = self.members[list].len() as u32;
        self.members[list].push(index);
        self.free_blocks[list] += class.blocks();
        self.push_open(index, list);
        Some(index)
    }

    /// Frees a block. The region is merged when it was the last.
    #[inline]
    pub(crate) fn give_back(&mut self, line: u32) {
        let index = self.region_of(line);
        let offset = (line - self.first_line(index)) as usize;
        let region = &mut self.regions[index as usize];
        let (list, class) = (region.use_.list(), region.use_.class());
        let block = offset / class.lines();
        debug_assert!(offset.is_multiple_of(class.lines()), "line {line} begins no block");
        debug_assert!(region.taken[block / 64] >> (block % 64) & 1 == 1, "line {line} is free already");
        region.taken[block / 64] &= !(1 << (block % 64));
        region.hint = region.hint.min((block / 64) as u8);
        region.free_count += 1;
        let free_count = usize::from(region.free_count);
        self.free_blocks[list] += 1;
        self.taken_lines -= class.lines();
        let is_shut = region.is_shut;
        if free_count == class.blocks() {
            if free_count > 1 && !is_shut {
                self.close(index, list);
            }
            self.merge(index, list);
        } else if free_count == 1 && !is_shut {
            self.push_open(index, list);
        }
    }

    #[cold]
    fn merge(&mut self, index: u32, list: usize) {
        let region = &mut self.regions[index as usize];
        debug_assert_eq!(region.held_count, 0);
        self.free_blocks[list] -= usize::from(region.free_count);
        (region.use_, region.is_shut) = (Use::Free, false);
        let at = region.member_at;
        self.members[list].swap_remove(at as usize);
        if let Some(&moved) = self.members[list].get(at as usize) {
            self.regions[moved as usize].member_at = at;
        }
        self.free.push(index);
    }

    /// Overflow lines of the index in use.
    pub(crate) fn bucket_lines(&self) -> usize {
        self.members[BUCKET_LIST].len() * REGION_LINES - self.free_blocks[BUCKET_LIST]
    }

    /// Takes a whole region for the index: its first line.
    pub(crate) fn take_index(&mut self) -> Option<u32> {
        let region = self.pop_free()?;
        self.regions[region as usize].use_ = Use::Index;
        Some(self.first_line(region))
    }

    /// Frees a region of the index.
    pub(crate) fn give_back_index(&mut self, first_line: u32) {
        let region = self.region_of(first_line);
        debug_assert_eq!(self.use_of(region), Use::Index);
        self.regions[region as usize].use_ = Use::Free;
        self.free.push(region);
    }

    /// Takes a whole region for a part of a large value.
    pub(crate) fn take_extent(&mut self) -> Option<u32> {
        let index = self.pop_free()?;
        self.regions[index as usize].use_ = Use::Extent;
        self.taken_lines += REGION_LINES;
        Some(index)
    }

    /// Frees a whole region.
    pub(crate) fn give_back_extent(&mut self, region: u32) {
        debug_assert_eq!(self.use_of(region), Use::Extent);
        self.regions[region as usize].use_ = Use::Free;
        self.taken_lines -= REGION_LINES;
        self.free.push(region);
    }

    /// Lends the memory of `count` free regions, and returns their numbers. Empty if fewer are free.
    pub(crate) fn lend(&mut self, count: usize) -> Vec<u32> {
        if self.free.len() < self.reserved_count + count {
            return Vec::new();
        }
        let lent = self.free.split_off(self.free.len() - count);
        self.lent.extend_from_slice(&lent);
        lent
    }

    /// Takes the memory of `count` lent regions back, and returns their numbers.
    pub(crate) fn take_back(&mut self, count: usize) -> Vec<u32> {
        let taken = self.lent.split_off(self.lent.len() - count);
        self.free.extend_from_slice(&taken);
        taken
    }

    fn push_open(&mut self, index: u32, list: usize) {
        let head = self.open[list];
        let region = &mut self.regions[index as usize];
        (region.previous, region.next) = (NONE, head);
        if head != NONE {
            self.regions[head as usize].previous = index;
        }
        self.open[list] = index;
    }

    fn close(&mut self, index: u32, list: usize) {
        let (previous, next) = (self.regions[index as usize].previous, self.regions[index as usize].next);
        match previous {
            NONE => self.open[list] = next,
            _ => self.regions[previous as usize].next = next,
        }
        if next != NONE {
            self.regions[next as usize].previous = previous;
        }
    }

    /// Records whether a block must stay where it is.
    pub(crate) fn hold(&mut self, line: u32, is_held: bool) {
        let region = self.region_of(line);
        let held_count = &mut self.regions[region as usize].held_count;
        *held_count = if is_held { *held_count + 1 } else { *held_count - 1 };
    }

    /// Number of blocks of a region that must stay where they are.
    pub(crate) fn held_count(&self, region: u32) -> usize {
        self.regions[region as usize].held_count.into()
    }

    /// The regions of a class.
    pub(crate) fn members(&self, class: Class) -> &[u32] {
        &self.members[usize::from(class.0)]
    }

    /// The first taken block at or after block `from` of a region of items: its number and line.
    pub(crate) fn next_taken(&self, region: u32, from: usize) -> Option<(usize, u32)> {
        let class = self.regions[region as usize].use_.class();
        let taken = &self.regions[region as usize].taken;
        let mut block = from;
        while block < class.blocks() {
            let rest = taken[block / 64] >> (block % 64);
            if rest == 0 {
                block = (block / 64 + 1) * 64;
                continue;
            }
            block += rest.trailing_zeros() as usize;
            if block >= class.blocks() {
                break;
            }
            let line = self.first_line(region) + (block * class.lines()) as u32;
            return Some((block, line));
        }
        None
    }

    /// A region of items that could be emptied into the free blocks of its class: the sparsest of those examined.
    pub(crate) fn sparsest(&self) -> Option<u32> {
        let mut best: Option<(usize, u32)> = None;
        for list in 0..CLASS_COUNT {
            let blocks = Class(list as u8).blocks();
            // The class needs a region's worth of free blocks besides those of the region itself.
            if blocks == 1 || self.free_blocks[list] < blocks {
                continue;
            }
            let mut index = self.open[list];
            for _ in 0..16 {
                if index == NONE {
                    break;
                }
                let region = &self.regions[index as usize];
                let taken = blocks - usize::from(region.free_count);
                let elsewhere = self.free_blocks[list] - usize::from(region.free_count);
                let weight = taken * Class(list as u8).lines();
                if region.held_count == 0
                    && taken <= elsewhere
                    && best.is_none_or(|(least, _)| weight < least)
                {
                    best = Some((weight, index));
                }
                index = region.next;
            }
        }
        best.map(|(_, index)| index)
    }

    /// Stops taking blocks from a region of items while it is emptied; [`reopen`](Self::reopen) undoes that if emptying
    /// fails.
    pub(crate) fn shut(&mut self, region: u32) {
        let list = self.use_of(region).list();
        if self.regions[region as usize].free_count > 0 {
            self.close(region, list);
        }
        self.regions[region as usize].is_shut = true;
    }

    /// Allows taking blocks from a shut region again, unless it is free by now.
    pub(crate) fn reopen(&mut self, region: u32) {
        if !std::mem::take(&mut self.regions[region as usize].is_shut) {
            return;
        }
        if self.regions[region as usize].free_count > 0 {
            self.push_open(region, self.use_of(region).list());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    #[test]
    fn classes_waste_little() {
        for bytes in 1..=REGION_BYTES {
            let class = Class::of(bytes).expect("up to a region");
            let have = class.lines() * LINE_BYTES;
            assert!(have >= bytes);
            let lines = bytes.div_ceil(LINE_BYTES);
            if lines <= 170 {
                assert!(class.lines() * 4 <= lines * 5 + 3, "{lines} lines in a block of {}", class.lines());
            }
        }
        assert_eq!(Class::of(REGION_BYTES + 1), None);
    }

    proptest! {
        /// Blocks never overlap, and freed blocks merge into whole regions.
        #[test]
        fn blocks_never_overlap(steps in prop::collection::vec((any::<bool>(), 1usize..70_000), 1..400)) {
            let mut regions = Regions::new(8);
            let mut lines: HashMap<u32, u32> = HashMap::new();
            let mut held: Vec<(u32, usize)> = Vec::new();
            for (take, size) in steps {
                if take || held.is_empty() {
                    let class = Class::of(size.min(REGION_BYTES)).unwrap();
                    if let Some(line) = regions.take(class) {
                        for at in line..line + class.lines() as u32 {
                            prop_assert!((0..8 * 1024).contains(&at));
                            prop_assert!(lines.insert(at, line).is_none());
                        }
                        held.push((line, class.lines()));
                    }
                } else {
                    let (line, count) = held.swap_remove(size % held.len());
                    regions.give_back(line);
                    for at in line..line + count as u32 {
                        prop_assert_eq!(lines.remove(&at), Some(line));
                    }
                }
                prop_assert_eq!(regions.taken_lines(), lines.len());
            }
            for (line, _) in held {
                regions.give_back(line);
            }
            prop_assert_eq!(regions.free_count(), 8);
        }
    }
}
