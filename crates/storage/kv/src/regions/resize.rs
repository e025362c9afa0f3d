//! Changing the number of regions. Those to be cut off are the last ones, so their contents make way first.

use super::{List, NONE, REGION_PIECES, REGION_UNITS, Region, Regions, Use};

impl Regions {
    /// Changes the number of regions to `count`. Added ones are free. Those cut off are free, and from the limit on.
    pub(crate) fn set_count(&mut self, count: usize) {
        let before = self.count();
        let record = || Region {
            use_: Use::Free,
            may_drop: false,
            filled: 0,
            skipped: 0,
            held_count: 0,
            previous: NONE,
            next: NONE,
            stored_at: 0,
            inline_stored_at: 0,
            map: [0; REGION_UNITS / 64],
        };
        self.regions.resize_with(count, record);
        self.taken.resize(count, 0);
        self.owners.resize(count * REGION_PIECES, 0);
        if count >= before {
            // The first ones are taken first: the last ones get memory only once they are needed.
            self.free.splice(0..0, (before as u32..count as u32).rev());
        } else {
            self.free_beyond -= before - count;
            self.withheld_count -= before - count;
            self.regions.shrink_to_fit();
            self.taken.shrink_to_fit();
            self.owners.shrink_to_fit();
        }
        self.limit = count as u32;
    }

    /// Sets the number of regions to be reached. All regions can be used again until they are withheld.
    pub(crate) fn set_target(&mut self, target: usize) {
        let beyond = self.limit..self.count() as u32;
        self.free.extend(beyond.filter(|&region| self.regions[region as usize].use_ == Use::Free));
        (self.limit, self.free_beyond, self.withheld_count) = (self.count() as u32, 0, 0);
        self.target = target;
    }

    /// Withholds free regions, as many as are to be cut off. Returns how many more are to be withheld.
    pub(crate) fn withhold(&mut self) -> usize {
        let missing = self.count().saturating_sub(self.target + self.withheld_count);
        let count = self.free_count().saturating_sub(self.reserved_count).min(missing);
        self.withheld_count += count;
        missing - count
    }

    /// Lets withheld regions be used again.
    pub(crate) fn release_withheld(&mut self) {
        self.withheld_count = 0;
    }

    /// Takes no more regions from the target on. As many as are to be cut off are withheld, so enough others are free.
    pub(crate) fn close_beyond(&mut self) {
        self.limit = self.target as u32;
        let before = self.free.len();
        self.free.retain(|&region| region < self.limit);
        self.free_beyond = before - self.free.len();
    }

    /// One past the last region that is not free.
    pub(crate) fn used_end(&self) -> usize {
        self.regions.iter().rposition(|region| region.use_ != Use::Free).map_or(0, |last| last + 1)
    }

    /// Whether an item in a region of items must stay where it is.
    pub(crate) fn has_held(&self, region: u32) -> bool {
        self.regions[region as usize].held_count > 0
    }

    /// Units of a region of items that are filled.
    pub(crate) fn filled_units(&self, region: u32) -> usize {
        self.regions[region as usize].filled.into()
    }

    /// Puts a free region below the limit in the place of one in use, in its list too, whose content the caller moves.
    pub(crate) fn replace(&mut self, from: u32) -> Option<u32> {
        let to = self.free.pop()?;
        let use_ = self.use_of(from);
        let list = match use_ {
            Use::Items(queue) => Some(queue as usize),
            Use::Slots(slots) => {
                let is_full = usize::from(self.taken[from as usize]) == slots.per_region();
                (!is_full).then(|| slots.list())
            }
            Use::Free | Use::Lent | Use::Index => None,
        };
        self.regions.swap(from as usize, to as usize);
        self.taken.swap(from as usize, to as usize);
        let pieces = |region: u32| region as usize * REGION_PIECES;
        self.owners.copy_within(pieces(from)..pieces(from) + REGION_PIECES, pieces(to));
        if let Some(list) = list {
            self.relink(list, from, to);
        }
        for filling in &mut self.filling {
            if *filling == from {
                *filling = to;
            }
        }
        if use_ == Use::Lent {
            self.lent[self.regions[to as usize].next as usize] = to;
        }
        self.release(from);
        Some(to)
    }

    /// Has the neighbours of a record in a list refer to its new number.
    fn relink(&mut self, list: usize, from: u32, to: u32) {
        let Region { previous, next, .. } = self.regions[to as usize];
        let List { first, last } = &mut self.lists[list];
        for end in [first, last] {
            if *end == from {
                *end = to;
            }
        }
        if previous != NONE {
            self.regions[previous as usize].next = to;
        }
        if next != NONE {
            self.regions[next as usize].previous = to;
        }
    }
}
