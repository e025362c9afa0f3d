//! Making room: moving items together, and evicting unused ones.
//!
//! A hand per class passes over its blocks in order. A pair used since the last pass loses a use and stays; an unused
//! one is evicted. A new pair has no use yet, a pair read once has one, read again two: the used ones form the
//! protected segment of a segmented LRU, without its lists. Every sixteenth time a whole region is taken from the class
//! with the least used regions, so that memory follows the sizes that are stored. In a partition with a log, values that
//! are in the log are dropped from memory instead.

use std::sync::Arc;

use crate::chunked::{Entry, REGIONS_PER_CHUNK};
use crate::item::{BITS_AT, FETCHED, HELD, USES};
use crate::pairs::Pairs;
use crate::place::Place;
use crate::regions::{CLASS_COUNT, Class, Use};
use crate::settings::Eviction;
use crate::stub::Stub;
use crate::table::lines::set_item_line;

/// One in this many times a whole region is taken instead of blocks of the requested class.
const REGION_TURN: u32 = 16;
/// Lines evicted at a time.
const BATCH_LINES: usize = 8;
/// Regions compared before one is emptied.
const CANDIDATE_COUNT: usize = 8;
/// Regions scanned for expired items at a time, when eviction is disabled.
const SCAN_COUNT: usize = 64;

/// The evictor: its policy, and the positions of its hands.
pub(crate) struct Evictor {
    policy: Eviction,
    /// By class: index of the region, and of the block in it.
    class_hands: [(usize, usize); CLASS_COUNT],
    /// The region to compare next.
    region_hand: u32,
    /// The region to scan next for expired items.
    expiry_hand: u32,
    /// Index of the chunk list examined last.
    chunk_hand: usize,
    /// Number of times that a block or region was requested, and a chunk.
    request_count: u32,
    chunk_request_count: u32,
}

impl Evictor {
    /// An evictor with all hands at the start.
    pub(crate) fn new(policy: Eviction) -> Self {
        Self {
            policy,
            class_hands: [(0, 0); CLASS_COUNT],
            region_hand: 0,
            expiry_hand: 0,
            chunk_hand: 0,
            request_count: 0,
            chunk_request_count: 0,
        }
    }

    /// Returns all hands to the start.
    pub(crate) fn restart(&mut self) {
        *self = Self::new(self.policy);
    }

    /// Whether pairs that have not expired may be evicted.
    pub(crate) fn may_evict(&self) -> bool {
        self.policy == Eviction::Clock
    }

    /// Frees a block of the class, or a region. `false` if nothing could be freed.
    #[cold]
    pub(crate) fn make_room(&mut self, pairs: &mut Pairs, class: Option<Class>) -> bool {
        if pairs.heap.release_returned_pins() || pairs.heap.close_chunk() {
            return true;
        }
        if let Some(region) = pairs.heap.regions.sparsest()
            && empty_by_moving(pairs, region)
        {
            return true;
        }
        if pairs.journal.is_some() {
            return self.demote_region(pairs)
                || self.pass_chunked(pairs, demote)
                || self.remove_expired(pairs, pairs.heap.regions.count()) > 0;
        }
        if !self.may_evict() {
            // One scan over all regions, which stops after the first part that freed something.
            let mut left = pairs.heap.regions.count();
            while left > 0 {
                if self.remove_expired(pairs, SCAN_COUNT.min(left)) > 0 {
                    return true;
                }
                left = left.saturating_sub(SCAN_COUNT);
            }
            return false;
        }
        self.request_count += 1;
        let is_region_turn = self.request_count.is_multiple_of(REGION_TURN);
        if (class.is_none() || is_region_turn)
            && pairs.heap.is_mostly_chunked()
            && self.pass_chunked(pairs, pass)
        {
            return true;
        }
        let own = class.filter(|&class| !pairs.heap.regions.members(class).is_empty());
        match own {
            Some(class) if !is_region_turn => self.evict_in(pairs, class) || self.evict_region(pairs, own),
            _ => {
                self.evict_region(pairs, own)
                    || own.is_some_and(|class| self.evict_in(pairs, class))
                    || self.pass_chunked(pairs, pass)
            }
        }
    }

    /// Frees a chunk, or regions for one. `false` if nothing could be freed.
    pub(crate) fn make_room_for_chunk(&mut self, pairs: &mut Pairs) -> bool {
        if pairs.heap.release_returned_pins() {
            return true;
        }
        if pairs.journal.is_some() {
            return self.pass_chunked(pairs, demote) || self.make_room(pairs, None);
        }
        if !self.may_evict() {
            return self.make_room(pairs, None);
        }
        // Usually from its own kind, and regularly from others: memory follows the sizes that are stored.
        self.chunk_request_count += 1;
        let region_turn = if pairs.heap.is_mostly_chunked() { 4 } else { 2 };
        if self.chunk_request_count.is_multiple_of(region_turn)
            && (0..REGIONS_PER_CHUNK).all(|_| self.evict_region(pairs, None))
        {
            return true;
        }
        self.pass_chunked(pairs, pass) || self.make_room(pairs, None)
    }

    /// Advances the hand of a class until it has evicted a few blocks.
    fn evict_in(&mut self, pairs: &mut Pairs, class: Class) -> bool {
        let (mut member, mut block) = self.class_hands[class.number()];
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
            evicted += usize::from(pass(pairs, line));
            // The region may have been freed, and replaced by another one in the list.
            if pairs.heap.regions.use_of(region) != Use::Items(class) {
                block = 0;
            }
        }
        self.class_hands[class.number()] = (member, block);
        evicted > 0
    }

    /// Empties the least used of a few regions; among equals it prefers another class.
    fn evict_region(&mut self, pairs: &mut Pairs, own: Option<Class>) -> bool {
        let count = pairs.heap.regions.count() as u32;
        let mut best: Option<(usize, u32)> = None;
        let mut seen = 0;
        for step in 0..count {
            let region = (self.region_hand + step) % count;
            let Use::Items(class) = pairs.heap.regions.use_of(region) else { continue };
            if pairs.heap.regions.held_count(region) > 0 {
                continue;
            }
            // Evicting these items would free much more than a region. Chunks have a hand of their own.
            if pairs.heap.regions.next_taken(region, 0).is_some_and(|(_, line)| pairs.heap.is_chunked(line)) {
                continue;
            }
            let score = 2 * age(pairs, region) + usize::from(own == Some(class));
            if best.is_none_or(|(least, _)| score < least) {
                best = Some((score, region));
            }
            seen += 1;
            if seen == CANDIDATE_COUNT {
                break;
            }
        }
        let Some((_, region)) = best else { return false };
        self.region_hand = (region + 1) % count;
        each_item(pairs, region, |pairs, line| {
            evict(pairs, line);
            true
        });
        pairs.counters.reclaimed_count += 1;
        true
    }

    /// Removes expired items from the next `region_count` regions. Returns the number removed.
    pub(crate) fn remove_expired(&mut self, pairs: &mut Pairs, region_count: usize) -> usize {
        let count = pairs.heap.regions.count() as u32;
        let mut removed = 0;
        for _ in 0..region_count {
            let region = self.expiry_hand % count;
            self.expiry_hand = (region + 1) % count;
            removed += each_item(pairs, region, |pairs, line| {
                let header = pairs.heap.header(line);
                let is_removed = header.bits & HELD == 0 && pairs.is_expired(&header);
                if is_removed {
                    evict(pairs, line);
                }
                is_removed
            });
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
                let region = (self.region_hand + looked_at) % count;
                looked_at += 1;
                if matches!(pairs.heap.regions.use_of(region), Use::Items(class) if class.lines() >= 2) {
                    candidates[seen] = (age(pairs, region), region);
                    seen += 1;
                }
            }
            let candidates = &mut candidates[..seen];
            candidates.sort_unstable();
            for &(_, region) in &*candidates {
                if each_item(pairs, region, demote) > 0 {
                    self.region_hand = (region + 1) % count;
                    return true;
                }
            }
        }
        false
    }

    /// Advances the hand over values in chunks until `pass` has freed one.
    fn pass_chunked(&mut self, pairs: &mut Pairs, pass: fn(&mut Pairs, u32) -> bool) -> bool {
        let count = pairs.heap.chunked.entries.len();
        // Each round takes a use from every value.
        for _ in 0..3 * count {
            self.chunk_hand = (self.chunk_hand + 1) % count;
            // Evicting a value that is being sent frees nothing yet.
            if let Some(Entry { line, chunks }) = &pairs.heap.chunked.entries[self.chunk_hand]
                && Arc::strong_count(chunks) == 1
                && pass(pairs, *line)
            {
                return true;
            }
        }
        false
    }
}

/// Calls `each` with the items of a region, as long as it is not freed. Returns for how many it returned `true`.
fn each_item(pairs: &mut Pairs, region: u32, mut each: impl FnMut(&mut Pairs, u32) -> bool) -> usize {
    let use_ = pairs.heap.regions.use_of(region);
    let (mut block, mut count) = (0, 0);
    while matches!(use_, Use::Items(_))
        && pairs.heap.regions.use_of(region) == use_
        && let Some((at, line)) = pairs.heap.regions.next_taken(region, block)
    {
        block = at + 1;
        count += usize::from(each(pairs, line));
    }
    count
}

/// Passes the hand over an item, which loses a use, or is evicted if it has none or has expired. Returns whether it was
/// evicted.
fn pass(pairs: &mut Pairs, line: u32) -> bool {
    let header = pairs.heap.header(line);
    if header.bits & HELD != 0 {
        return false;
    }
    if header.bits & USES != 0 && !pairs.is_expired(&header) {
        pairs.heap.memory.bytes_mut(line, BITS_AT, 1)[0] = header.bits - 1;
        return false;
    }
    evict(pairs, line);
    true
}

/// Removes an item that is not held.
fn evict(pairs: &mut Pairs, line: u32) {
    let header = pairs.heap.header(line);
    if pairs.is_expired(&header) {
        pairs.counters.expired_count += 1;
    } else {
        pairs.counters.evicted_count += 1;
        pairs.counters.evicted_unread_count += u64::from(header.bits & FETCHED == 0);
    }
    let hash = pairs.table.hash_of_item(&pairs.heap, line);
    let (node, cell) = pairs.table.entry_of(&pairs.heap, hash, line);
    pairs.unlink(hash, Place::new(node, cell, Some(line)));
}

/// Reduces an item to a stub if its value is in the log; evicts it if it has expired. Returns whether that freed memory.
fn demote(pairs: &mut Pairs, line: u32) -> bool {
    let header = pairs.heap.header(line);
    if header.bits & HELD != 0 {
        return false;
    }
    if pairs.is_expired(&header) {
        evict(pairs, line);
        return true;
    }
    let Some(log_offset) = pairs.log_offset(line) else { return false };
    if pairs.journal.as_ref().is_some_and(|journal| journal.in_flight.contains(&log_offset)) {
        return false;
    }
    let stub = Stub::of(&pairs.heap, line, header, log_offset);
    let (key, length) = pairs.key_of(line);
    let key = &key[..length];
    let layout = stub.layout(key);
    let Some(stub_line) = pairs.heap.regions.take_for_stub(layout.class()) else { return false };
    stub.write(&mut pairs.heap, stub_line, &layout, key);
    let entry = pairs.table.entry_of(&pairs.heap, pairs.table.hasher.hash(key), line);
    set_item_line(&mut pairs.heap, entry, stub_line);
    pairs.heap.free_item(line);
    pairs.counters.demoted_count += 1;
    true
}

/// The use of a region, estimated from a few of its blocks. They lose a use by it, because no hand passes over a class
/// in which nothing is stored.
fn age(pairs: &mut Pairs, region: u32) -> usize {
    let (mut uses, mut seen, mut block) = (0, 0, 0);
    while seen < 8
        && let Some((at, line)) = pairs.heap.regions.next_taken(region, block)
    {
        let bits = pairs.heap.header(line).bits;
        if bits & USES != 0 {
            uses += usize::from(bits & USES);
            pairs.heap.memory.bytes_mut(line, BITS_AT, 1)[0] = bits - 1;
        }
        seen += 1;
        block = at + 1;
    }
    uses * 64 / seen.max(1)
}

/// Moves a region's items to free blocks of other regions of their class. Returns whether the region is then free.
fn empty_by_moving(pairs: &mut Pairs, region: u32) -> bool {
    let Use::Items(class) = pairs.heap.regions.use_of(region) else { return false };
    pairs.heap.regions.shut(region);
    let mut block = 0;
    while let Some((at, line)) = pairs.heap.regions.next_taken(region, block) {
        block = at + 1;
        let Some(to) = pairs.heap.regions.take(class) else { break };
        let hash = pairs.table.hash_of_item(&pairs.heap, line);
        let entry = pairs.table.entry_of(&pairs.heap, hash, line);
        pairs.heap.memory.copy(line, to, class.lines() * reactor::LINE_BYTES);
        set_item_line(&mut pairs.heap, entry, to);
        pairs.heap.on_moved(to);
        pairs.heap.regions.give_back(line);
        pairs.counters.moved_count += 1;
        if pairs.heap.regions.use_of(region) == Use::Free {
            break;
        }
    }
    pairs.heap.regions.reopen(region);
    let is_free = pairs.heap.regions.use_of(region) == Use::Free;
    pairs.counters.reclaimed_count += u64::from(is_free);
    is_free
}
