//! Making room: moving items together, and letting those go that nobody uses.
//!
//! A hand per class goes over its blocks in order. What was used since it came by loses a use and stays; what
//! was not is evicted. A new pair has no use yet, a pair read once has one, read again two: the used ones are
//! the protected segment of a segmented LRU, without its lists. Every sixteenth time a whole region is taken
//! from whichever class uses its own least, so that memory follows the sizes that are stored.

use crate::item::{BITS_AT, FETCHED, HELD, USES};
use crate::place::Place;
use crate::processor::Processor;
use crate::regions::{Class, Use};
use crate::settings::Eviction;
use crate::table::lines::redirect;

/// Every so often a whole region is taken instead of blocks of the class that wants one.
const REGION_TURN: u32 = 16;
/// Lines that are evicted together.
const BATCH_LINES: usize = 8;
/// Regions that are compared before one is taken.
const CANDIDATE_COUNT: usize = 8;
/// Regions searched for expired items at a time when nothing may be evicted.
const CRAWL_COUNT: usize = 64;

impl Processor {
    /// A block for an item, if need be from others.
    pub(crate) fn take_block(&mut self, class: Class) -> Option<u32> {
        loop {
            if let Some(line) = self.heap.regions.take(class) {
                return Some(line);
            }
            if !self.make_room(Some(class)) {
                return None;
            }
        }
    }

    /// A whole region, if need be from others.
    pub(crate) fn take_extent(&mut self) -> Option<u32> {
        loop {
            if let Some(region) = self.heap.regions.take_extent() {
                return Some(region);
            }
            if !self.make_room(None) {
                return None;
            }
        }
    }

    /// A line for a bucket, if need be from others.
    pub(crate) fn take_bucket_line(&mut self) -> Option<u32> {
        loop {
            if let Some(line) = self.heap.regions.take_bucket() {
                return Some(line);
            }
            if !self.make_room(None) {
                return None;
            }
        }
    }

    /// Frees a block of the class, or a region. `false` if nothing could be done.
    #[cold]
    pub(crate) fn make_room(&mut self, class: Option<Class>) -> bool {
        if self.heap.let_go() || self.heap.close_chunk() {
            return true;
        }
        if let Some(region) = self.heap.regions.sparsest()
            && self.empty_by_moving(region)
        {
            return true;
        }
        if self.journal.is_some() {
            return self.demote_region()
                || self.demote_chunked()
                || self.crawl(self.heap.regions.count()) > 0;
        }
        if self.settings.eviction == Eviction::None {
            // Only what has expired may go; one search over everything, in pieces that say whether it was
            // worth it.
            let mut left = self.heap.regions.count();
            while left > 0 {
                if self.crawl(CRAWL_COUNT.min(left)) > 0 {
                    return true;
                }
                left = left.saturating_sub(CRAWL_COUNT);
            }
            return false;
        }
        self.hands.pressure += 1;
        let is_turn = class.is_none() || self.hands.pressure.is_multiple_of(REGION_TURN);
        if is_turn && self.heap.is_mostly_chunked() && self.evict_chunked() {
            return true;
        }
        let own = class.filter(|&class| !self.heap.regions.members(class).is_empty());
        match own {
            Some(class) if !self.hands.pressure.is_multiple_of(REGION_TURN) => {
                self.evict_in(class) || self.evict_region(own)
            }
            _ => {
                self.evict_region(own)
                    || own.is_some_and(|class| self.evict_in(class))
                    || self.evict_chunked()
            }
        }
    }

    /// Goes on with the hand of a class until it has evicted a few blocks.
    fn evict_in(&mut self, class: Class) -> bool {
        let (mut member, mut block) = self.hands.by_class[class.number()];
        let wanted = (BATCH_LINES / class.lines()).max(1);
        let mut evicted = 0;
        // Each round takes a use from everything: three rounds find something unless all is held.
        let mut regions_left = 3 * self.heap.regions.members(class).len() + 1;
        while evicted < wanted && regions_left > 0 {
            let members = self.heap.regions.members(class);
            if members.is_empty() {
                break;
            }
            member %= members.len();
            let region = members[member];
            let Some((at, line)) = self.heap.regions.next_taken(region, block) else {
                (member, block) = (member + 1, 0);
                regions_left -= 1;
                continue;
            };
            block = at + 1;
            evicted += usize::from(self.pass(line));
            // The region may have become free, and another one has its place.
            if self.heap.regions.use_of(region) != Use::Items(class) {
                block = 0;
            }
        }
        self.hands.by_class[class.number()] = (member, block);
        evicted > 0
    }

    /// The hand comes by an item: it loses a use, or its memory. Says whether it is gone.
    pub(crate) fn pass(&mut self, line: u32) -> bool {
        let header = self.heap.header(line);
        if header.bits & HELD != 0 {
            return false;
        }
        if header.bits & USES != 0 && !self.is_expired(&header) {
            self.heap.memory.bytes_mut(line, BITS_AT, 1)[0] = header.bits - 1;
            return false;
        }
        self.evict(line);
        true
    }

    /// Removes an item from the index.
    pub(crate) fn evict(&mut self, line: u32) {
        let header = self.heap.header(line);
        if self.is_expired(&header) {
            self.counters.expired_count += 1;
        } else {
            self.counters.evicted_count += 1;
            self.counters.evicted_unread_count += u64::from(header.bits & FETCHED == 0);
        }
        let hash = self.table.hash_of_item(&self.heap, line);
        let (node, cell) =
            self.table.entry_of(&self.heap, hash, line).expect("an item that is not held is in the index");
        self.unlink(hash, Place::new(node, cell, Some(line)));
    }

    /// Empties the least used of a few regions; of equals rather one of another class.
    pub(crate) fn evict_region(&mut self, own: Option<Class>) -> bool {
        let count = self.heap.regions.count() as u32;
        let mut best: Option<(usize, u32)> = None;
        let mut seen = 0;
        for step in 0..count {
            let region = (self.hands.region + step) % count;
            if !matches!(self.heap.regions.use_of(region), Use::Items(_))
                || self.heap.regions.held_count(region) > 0
            {
                continue;
            }
            // With them much more memory would go than a region's. They have a hand of their own.
            if self.heap.regions.next_taken(region, 0).is_some_and(|(_, line)| self.heap.is_chunked(line)) {
                continue;
            }
            let is_own = own.is_some_and(|class| self.heap.regions.use_of(region) == Use::Items(class));
            let score = 2 * self.cool(region) + usize::from(is_own);
            if best.is_none_or(|(least, _)| score < least) {
                best = Some((score, region));
            }
            seen += 1;
            if seen == CANDIDATE_COUNT {
                break;
            }
        }
        let Some((_, region)) = best else { return false };
        self.hands.region = (region + 1) % count;
        let class = self.heap.regions.use_of(region);
        let mut block = 0;
        while self.heap.regions.use_of(region) == class
            && let Some((at, line)) = self.heap.regions.next_taken(region, block)
        {
            self.evict(line);
            block = at + 1;
        }
        self.counters.reclaimed_count += 1;
        true
    }

    /// How much a region is used, by a few of its blocks. They lose a use by it: a class that nothing is
    /// stored in has no hand that goes over it.
    pub(crate) fn cool(&mut self, region: u32) -> usize {
        let (mut uses, mut seen, mut block) = (0, 0, 0);
        while seen < 8
            && let Some((at, line)) = self.heap.regions.next_taken(region, block)
        {
            let bits = self.heap.header(line).bits;
            if bits & USES != 0 {
                uses += usize::from(bits & USES);
                self.heap.memory.bytes_mut(line, BITS_AT, 1)[0] = bits - 1;
            }
            seen += 1;
            block = at + 1;
        }
        uses * 64 / seen.max(1)
    }

    /// Moves a region's items to free blocks of other regions of their class. Says whether the region is free
    /// then.
    fn empty_by_moving(&mut self, region: u32) -> bool {
        let Use::Items(class) = self.heap.regions.use_of(region) else { return false };
        self.heap.regions.shut(region);
        let mut block = 0;
        while let Some((at, line)) = self.heap.regions.next_taken(region, block) {
            block = at + 1;
            let Some(to) = self.heap.regions.take(class) else { break };
            let hash = self.table.hash_of_item(&self.heap, line);
            let entry = self
                .table
                .entry_of(&self.heap, hash, line)
                .expect("an item that is not held is in the index");
            self.heap.memory.copy(line, to, class.lines() * reactor::LINE_BYTES);
            redirect(&mut self.heap, entry, to);
            self.heap.on_moved(to);
            self.heap.regions.give_back(line);
            self.counters.moved_count += 1;
            if self.heap.regions.use_of(region) == Use::Free {
                break;
            }
        }
        self.heap.regions.reopen(region);
        let is_free = self.heap.regions.use_of(region) == Use::Free;
        self.counters.reclaimed_count += u64::from(is_free);
        is_free
    }

    /// Looks through the next `region_count` regions for expired items and removes them. Returns how many
    /// there were. For idle moments; it goes on where it stopped.
    pub fn crawl(&mut self, region_count: usize) -> usize {
        let count = self.heap.regions.count() as u32;
        let mut removed = 0;
        for _ in 0..region_count {
            let region = self.hands.crawl % count;
            self.hands.crawl = (region + 1) % count;
            let use_ = self.heap.regions.use_of(region);
            if !matches!(use_, Use::Items(_)) {
                continue;
            }
            let mut block = 0;
            while self.heap.regions.use_of(region) == use_
                && let Some((at, line)) = self.heap.regions.next_taken(region, block)
            {
                block = at + 1;
                let header = self.heap.header(line);
                if header.bits & HELD == 0 && self.is_expired(&header) {
                    self.evict(line);
                    removed += 1;
                }
            }
        }
        removed
    }
}
