//! Making room: moving items together, and evicting unused ones.
//!
//! A hand per class passes over its blocks in order. A pair used since the last pass loses a use and stays; an unused
//! one is evicted. A new pair has no use yet, a pair read once has one, read again two: the used ones form the
//! protected segment of a segmented LRU, without its lists. Every sixteenth time a whole region is taken from the class
//! with the least used regions, so that memory follows the sizes that are stored.

use crate::chunked::REGIONS_PER_CHUNK;
use crate::hands::Hands;
use crate::item::HELD;
use crate::pairs::Pairs;
use crate::regions::{Class, Use};
use crate::settings::Eviction;

/// One in this many times a whole region is taken instead of blocks of the requested class.
const REGION_TURN: u32 = 16;
/// Lines evicted at a time.
const BATCH_LINES: usize = 8;
/// Regions compared before one is emptied.
const CANDIDATE_COUNT: usize = 8;
/// Regions scanned for expired items at a time, when eviction is disabled.
const CRAWL_COUNT: usize = 64;

/// The evictor: its policy, and the positions of its hands.
pub(crate) struct Evictor {
    policy: Eviction,
    pub(crate) hands: Hands,
}

impl Evictor {
    /// An evictor with all hands at the start.
    pub(crate) fn new(policy: Eviction) -> Self {
        Self { policy, hands: Hands::default() }
    }

    /// Frees a block of the class, or a region. `false` if nothing could be freed.
    #[cold]
    pub(crate) fn make_room(&mut self, pairs: &mut Pairs, class: Option<Class>) -> bool {
        if pairs.heap.let_go() || pairs.heap.close_chunk() {
            return true;
        }
        if let Some(region) = pairs.heap.regions.sparsest()
            && pairs.empty_by_moving(region)
        {
            return true;
        }
        if pairs.journal.is_some() {
            return self.demote_region(pairs)
                || pairs.demote_chunked()
                || self.crawl(pairs, pairs.heap.regions.count()) > 0;
        }
        if self.policy == Eviction::None {
            // Only expired pairs may be removed: one scan over everything, which stops after the first piece that freed
            // something.
            let mut left = pairs.heap.regions.count();
            while left > 0 {
                if self.crawl(pairs, CRAWL_COUNT.min(left)) > 0 {
                    return true;
                }
                left = left.saturating_sub(CRAWL_COUNT);
            }
            return false;
        }
        self.hands.pressure += 1;
        let is_turn = class.is_none() || self.hands.pressure.is_multiple_of(REGION_TURN);
        if is_turn && pairs.heap.is_mostly_chunked() && pairs.evict_chunked() {
            return true;
        }
        let own = class.filter(|&class| !pairs.heap.regions.members(class).is_empty());
        match own {
            Some(class) if !self.hands.pressure.is_multiple_of(REGION_TURN) => {
                self.evict_in(pairs, class) || self.evict_region(pairs, own)
            }
            _ => {
                self.evict_region(pairs, own)
                    || own.is_some_and(|class| self.evict_in(pairs, class))
                    || pairs.evict_chunked()
            }
        }
    }

    /// Advances the hand of a class until it has evicted a few blocks.
    pub(crate) fn evict_in(&mut self, pairs: &mut Pairs, class: Class) -> bool {
        let (mut member, mut block) = self.hands.by_class[class.number()];
        let wanted = (BATCH_LINES / class.lines()).max(1);
        let mut evicted = 0;
        // Each round takes a use from every pair, so three rounds find something unless all is held.
        let mut regions_left = 3 * pairs.heap.regions.members(class).len() + 1;
        while evicted < wanted && regions_left > 0 {
            let members = pairs.heap.regions.members(class);
            if members.is_empty() {
                break;
            }
            member %= members.len();
            let region = members[member];
            let Some((at, line)) = pairs.heap.regions.next_taken(region, block) else {
                (member, block) = (member + 1, 0);
                regions_left -= 1;
                continue;
            };
            block = at + 1;
            evicted += usize::from(pairs.pass(line));
            // The region may have been freed, and replaced by another one in the list.
            if pairs.heap.regions.use_of(region) != Use::Items(class) {
                block = 0;
            }
        }
        self.hands.by_class[class.number()] = (member, block);
        evicted > 0
    }

    /// Empties the least used of a few regions; among equals it prefers another class.
    pub(crate) fn evict_region(&mut self, pairs: &mut Pairs, own: Option<Class>) -> bool {
        let count = pairs.heap.regions.count() as u32;
        let mut best: Option<(usize, u32)> = None;
        let mut seen = 0;
        for step in 0..count {
            let region = (self.hands.region + step) % count;
            if !matches!(pairs.heap.regions.use_of(region), Use::Items(_))
                || pairs.heap.regions.held_count(region) > 0
            {
                continue;
            }
            // Evicting these items would free much more than a region. Chunks have a hand of their own.
            if pairs.heap.regions.next_taken(region, 0).is_some_and(|(_, line)| pairs.heap.is_chunked(line)) {
                continue;
            }
            let is_own = own.is_some_and(|class| pairs.heap.regions.use_of(region) == Use::Items(class));
            let score = 2 * pairs.cool(region) + usize::from(is_own);
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
        let class = pairs.heap.regions.use_of(region);
        let mut block = 0;
        while pairs.heap.regions.use_of(region) == class
            && let Some((at, line)) = pairs.heap.regions.next_taken(region, block)
        {
            pairs.evict(line);
            block = at + 1;
        }
        pairs.counters.reclaimed_count += 1;
        true
    }

    /// Scans the next `region_count` regions and removes expired items. Returns the number removed. To be called when
    /// idle; it continues where it stopped.
    pub(crate) fn crawl(&mut self, pairs: &mut Pairs, region_count: usize) -> usize {
        let count = pairs.heap.regions.count() as u32;
        let mut removed = 0;
        for _ in 0..region_count {
            let region = self.hands.crawl % count;
            self.hands.crawl = (region + 1) % count;
            let use_ = pairs.heap.regions.use_of(region);
            if !matches!(use_, Use::Items(_)) {
                continue;
            }
            let mut block = 0;
            while pairs.heap.regions.use_of(region) == use_
                && let Some((at, line)) = pairs.heap.regions.next_taken(region, block)
            {
                block = at + 1;
                let header = pairs.heap.header(line);
                if header.bits & HELD == 0 && pairs.is_expired(&header) {
                    pairs.evict(line);
                    removed += 1;
                }
            }
        }
        removed
    }

    /// Drops the values of the least used of a few regions from memory, as far as they are in the log. Returns whether
    /// that freed anything.
    pub(crate) fn demote_region(&mut self, pairs: &mut Pairs) -> bool {
        let count = pairs.heap.regions.count() as u32;
        let mut looked_at = 0;
        while looked_at < count {
            let mut candidates = [(usize::MAX, 0); CANDIDATE_COUNT];
            let mut seen = 0;
            while looked_at < count && seen < CANDIDATE_COUNT {
                let region = (self.hands.region + looked_at) % count;
                looked_at += 1;
                if matches!(pairs.heap.regions.use_of(region), Use::Items(class) if class.lines() >= 2) {
                    candidates[seen] = (pairs.cool(region), region);
                    seen += 1;
                }
            }
            let candidates = &mut candidates[..seen];
            candidates.sort_unstable();
            for &(_, region) in &*candidates {
                let class = pairs.heap.regions.use_of(region);
                let (mut block, mut has_freed) = (0, false);
                while pairs.heap.regions.use_of(region) == class
                    && let Some((at, line)) = pairs.heap.regions.next_taken(region, block)
                {
                    block = at + 1;
                    has_freed |= pairs.demote(line);
                }
                if has_freed {
                    self.hands.region = (region + 1) % count;
                    return true;
                }
            }
        }
        false
    }

    pub(crate) fn make_room_for_chunk(&mut self, pairs: &mut Pairs) -> bool {
        if pairs.heap.let_go() {
            return true;
        }
        if pairs.journal.is_some() {
            return pairs.demote_chunked() || self.make_room(pairs, None);
        }
        if self.policy == Eviction::None {
            return self.make_room(pairs, None);
        }
        // Usually from its own kind, and regularly from others: memory follows the sizes that are stored.
        pairs.heap.chunked.pressure += 1;
        if pairs.heap.chunked.pressure.is_multiple_of(if pairs.heap.is_mostly_chunked() { 4 } else { 2 }) {
            let emptied = (0..REGIONS_PER_CHUNK).take_while(|_| self.evict_region(pairs, None)).count();
            if emptied == REGIONS_PER_CHUNK {
                return true;
            }
        }
        pairs.evict_chunked() || self.make_room(pairs, None)
    }
}
