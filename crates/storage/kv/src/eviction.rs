//! Making room: emptying sparse regions, and evicting items in the order in which they were stored.
//!
//! ```text
//! stored ─────────────▶ New: regions in the order in which they were begun ──used since──▶ Kept
//!                        └──not used──▶ evicted, its key remembered
//! stored, remembered ─▶ Kept: the same ──used since──▶ Kept
//!                        └──not used──▶ evicted, its key remembered
//! ```
//!
//! A hand passes over the oldest region of one of the two queues, item by item, until there is room: an item that was
//! used since it came to its queue moves to the end of Kept, any other is evicted. So every region becomes free in its
//! turn, for items of any size, pieces, chunks, or the index.
//!
//! New has a share of the items' memory, and the hand passes over it while it has more. A key that is stored again soon
//! after it was evicted goes to Kept. Such a key raises the share of New if New would still hold it, were it longer by
//! a tenth of all items, and lowers the share if Kept would: the share settles where more memory would bring both
//! queues the same number of hits. So new items leave soon during scans, and stay longer while popularity drifts, or
//! where keys are used a second time after a while and then never.
//!
//! An item of New that was used more than once goes to Kept. Of those that were used once a part goes there: the
//! smaller, the fewer of the earlier ones were used in Kept. Keys that are used twice and never again would fill it.
//!
//! Keys that are stored in a loop longer than memory would push each other out of Kept before their next use. Each key
//! that is stored again after it was evicted from Kept lowers the part of such keys that go there, and each that is
//! forgotten raises it. The others go to New, so Kept holds a part of the loop and hits that part in each round.
//!
//! A region of which much was deleted or replaced is emptied before its turn, by moving the rest. In a partition with a
//! log, values that are in the log are dropped from memory instead.

use std::ops::RangeInclusive;

use linux::random::SplitMix64;

use crate::ghosts::{Ghost, Ghosts};
use crate::item::{BITS_AT, FETCHED, HELD, USED_ONCE, USES};
use crate::key::KeyHash;
use crate::pairs::Pairs;
use crate::place::PairPlace;
use crate::regions::{Queue, REGION_BYTES, REGION_UNITS, Regions, Slots, Use, units};
use crate::reserve::{FREED_MIN, STUB_UNITS_MAX};
use crate::settings::Eviction;
use crate::stub::Stub;
use crate::table::lines::set_item;
use crate::touches::Touches;

/// The shortest and longest time for which a region of Kept stays although New has more than its share, in bytes
/// stored, as a multiple of the memory.
const KEPT_FOR: RangeInclusive<u64> = 1..=12;
/// How much that time changes with an item of Kept that was used, with one that is stored again soon after it was
/// evicted from Kept, and with one that was not used, as a multiple of its bytes.
const LONGER_IF_USED: u64 = 24;
const LONGER_IF_MISSED: u64 = 200;
const SHORTER_IF_UNUSED: u64 = 8;
/// The whole of the items' memory, of which New has a share.
const WHOLE: u64 = 1 << 32;
/// The share of New at the start, and its limits.
const SHARE: u64 = WHOLE / 10 * 3;
const SHARES: RangeInclusive<u64> = WHOLE / 50..=WHOLE / 5 * 4;
/// A key that changes the share of New changes it by its bytes, times this and its weight.
const SHARE_STEP: u64 = 4;
/// A key changes the share of New if its queue would still hold it, were it longer by one in this many of all items.
const LONGER_ONE_IN: u64 = 10;
/// The largest weight of such a key, where few keys of its queue are remembered.
const WEIGHT_MAX: u64 = 1 << 16;
/// If this many of ten items that went to Kept after one use were used there, all such items go there; with fewer, a
/// part in proportion.
const ONCE_ENOUGH: u64 = 3;
/// The smallest part: one in this many, so that a change is noticed.
const ONCE_ONE_IN: u64 = 50;
/// Items counted before the part is below all.
const ONCE_KNOWN: u64 = 100;
/// All keys that are stored again after they were evicted, of which a part goes to Kept, and the smallest part.
const ALL_AGAIN: u64 = 1 << 32;
const AGAIN_MIN: u64 = ALL_AGAIN / 32;
/// By how much that part falls or rises, relative to itself, if as many keys as there are items are stored again after
/// they were evicted from Kept, or are forgotten after that.
const FEWER_IF_MISSED: u64 = 5;
const MORE_IF_FORGOTTEN: u64 = 2;
/// Units of used items moved to make room once, before used ones are evicted too: for the first region that a store
/// needs, and for each further one, so that a store of many regions takes no longer than a client waits.
const MOVED_UNITS: (usize, usize) = (4 * REGION_UNITS, 2 * REGION_UNITS);
/// Items, ahead of the hand, whose buckets and fingerprints are prefetched.
const ITEMS_AHEAD: usize = 12;
/// Regions compared before one is emptied or demoted.
const CANDIDATE_COUNT: usize = 8;
/// Regions among which the sparsest is sought at a time, while pairs may be evicted.
const SPARSE_COUNT: usize = 64;
/// Units that emptying a region must free: while pairs may be evicted, and if not.
const LEAST_FREED: (usize, usize) = (REGION_UNITS / 4, FREED_MIN);
/// Buckets moved for a store to end a growth of the index before it can shrink, while there are items to evict.
const GROWTH_STEPS: usize = 1024;
/// Buckets moved to shrink the index while there are items to evict: for the first region that a store needs, and for
/// each further one.
const SHRINK_STEPS: (usize, usize) = (4096, 2048);
/// Leases that are ended each time room is made.
const LEASES_AT_ONCE: usize = 64;
/// Regions scanned for expired items at a time, when eviction is disabled.
const SCAN_COUNT: usize = 64;

/// The purpose of wanted memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Demand {
    /// Items, pieces, or chunks.
    Items,
    /// The index, which does not shrink to grow.
    Index,
}

/// The evictor: its policy, and the positions of its hands.
pub(crate) struct Evictor {
    policy: Eviction,
    /// The share of New of the items' memory.
    new_share: u64,
    /// The time for which a region of Kept stays at most, in bytes stored.
    kept_for: u64,
    /// Items that went to Kept after one use and were evicted from there without another, lately.
    once_unused: u64,
    /// The part of the keys that are stored again after they were evicted that goes to Kept.
    again: u64,
    /// Chooses these keys.
    random: u64,
    /// Keys evicted not long ago.
    ghosts: Ghosts,
    /// By queue: its oldest region, and the unit in it that the hand examines next.
    hands: [(u32, usize); 2],
    /// Moves left to the present store: units of used items, and buckets of an index that grows, or shrinks.
    moves_left: usize,
    growth_steps_left: usize,
    shrink_steps_left: usize,
    /// Number of stores before the present one.
    stored_count: u64,
    /// The regions to examine next: for values to drop, for sparse ones, and for expired items.
    region_hand: u32,
    sparse_hand: u32,
    expiry_hand: u32,
}

impl Evictor {
    /// An evictor with all hands at the start.
    pub(crate) fn new(policy: Eviction, ghosts: Ghosts) -> Self {
        Self {
            policy,
            new_share: SHARE,
            kept_for: 0,
            once_unused: 0,
            again: ALL_AGAIN,
            random: 0,
            ghosts,
            hands: [(0, 0); 2],
            moves_left: 0,
            growth_steps_left: 0,
            shrink_steps_left: 0,
            stored_count: u64::MAX,
            region_hand: 0,
            sparse_hand: 0,
            expiry_hand: 0,
        }
    }

    /// Forgets the keys evicted, for another memory.
    pub(crate) fn replace_ghosts(&mut self, ghosts: Ghosts) {
        self.ghosts = ghosts;
    }

    /// Returns all hands to the start.
    pub(crate) fn restart(&mut self) {
        (self.hands, self.region_hand, self.sparse_hand, self.expiry_hand) = ([(0, 0); 2], 0, 0, 0);
    }

    /// The queue for a new item of `bytes`. A key that was evicted not long ago changes the share of New, the time for
    /// which regions of Kept stay, and the part of such keys that goes to Kept.
    #[inline(always)]
    pub(crate) fn on_stored(&mut self, pairs: &Pairs<impl Touches>, hash: KeyHash, bytes: usize) -> Queue {
        if self.ghosts.is_empty() {
            return Queue::New;
        }
        let counts = [Queue::New, Queue::Kept].map(|queue| self.ghosts.count(queue).max(1) as u64);
        let Some(Ghost { queue, later_count }) = self.ghosts.take(hash) else { return Queue::New };
        let (regions, item_count) = (&pairs.heap.regions, pairs.item_count());
        let [new_units, kept_units] = [Queue::New, Queue::Kept].map(|queue| regions.item_units(queue) as u64);
        let all_units = (new_units + kept_units).max(1);
        let weight = weight(counts, queue, later_count, item_count);
        let step = SHARE_STEP * weight * units(bytes) as u64 * (WHOLE / all_units);
        // Stored since an item evicted from New: the size of New, and then as much as was evicted later.
        let since_stored = WHOLE / all_units * new_units + WHOLE / item_count.max(1) * later_count;
        match queue {
            Queue::New if since_stored > WHOLE => {}
            Queue::New => self.new_share += step,
            Queue::Kept | Queue::Fetched | Queue::Leased => {
                self.new_share = self.new_share.saturating_sub(step);
                self.keep_for(regions, self.kept_for + LONGER_IF_MISSED * bytes as u64);
                self.again -= self.again * FEWER_IF_MISSED / item_count.max(FEWER_IF_MISSED);
                self.again = self.again.max(AGAIN_MIN);
            }
        }
        self.new_share = self.new_share.clamp(*SHARES.start(), *SHARES.end());
        if self.draw() < self.again { Queue::Kept } else { Queue::New }
    }

    /// A random number below 2^32.
    fn draw(&mut self) -> u64 {
        self.random = SplitMix64::nth(self.random, 1);
        self.random >> 32
    }

    /// Whether pairs that have not expired may be evicted.
    pub(crate) fn may_evict(&self) -> bool {
        self.policy == Eviction::Clock
    }

    /// Frees memory of any kind. `false` if nothing could be freed.
    #[cold]
    pub(crate) fn make_room(&mut self, pairs: &mut Pairs<impl Touches>, demand: Demand) -> bool {
        if pairs.heap.release_returned_pins() || pairs.heap.close_chunk() || self.empty_sparse(pairs) {
            return true;
        }
        if pairs.journal.is_some() {
            return self.demote_region(pairs) || self.remove_some_expired(pairs);
        }
        if !self.may_evict() {
            return self.remove_some_expired(pairs);
        }
        self.evict(pairs, demand)
    }

    /// Empties a region of which little is taken. `false` if there is none.
    fn empty_sparse(&mut self, pairs: &mut Pairs<impl Touches>) -> bool {
        let regions = &pairs.heap.regions;
        let all = regions.count();
        let (count, least) = if self.may_evict() && pairs.journal.is_none() {
            let few = regions.usable_count() / 16;
            let has_holes = regions.hole_units() > few * REGION_UNITS
                || [Slots::Pieces, Slots::Buckets]
                    .into_iter()
                    .any(|slots| regions.free_regions_in(slots) > few);
            if !has_holes {
                return false;
            }
            (SPARSE_COUNT.min(all), LEAST_FREED.0)
        } else {
            (all, LEAST_FREED.1)
        };
        let sparsest = regions.sparsest(self.sparse_hand, count, least);
        self.sparse_hand = (self.sparse_hand + count as u32) % all as u32;
        sparsest.is_some_and(|region| empty_by_moving(pairs, region))
    }

    /// Evicts items until there is more room.
    fn evict(&mut self, pairs: &mut Pairs<impl Touches>, demand: Demand) -> bool {
        let before = pairs.heap.room();
        if pairs.leases.is_some() && self.end_some_leases(pairs, before) {
            return true;
        }
        if self.stored_count == pairs.counters.stored_count {
            self.moves_left = (self.moves_left + MOVED_UNITS.1).min(MOVED_UNITS.0);
            self.shrink_steps_left = (self.shrink_steps_left + SHRINK_STEPS.1).min(SHRINK_STEPS.0);
        } else {
            self.stored_count = pairs.counters.stored_count;
            (self.moves_left, self.growth_steps_left) = (MOVED_UNITS.0, GROWTH_STEPS);
            self.shrink_steps_left = SHRINK_STEPS.0;
        }
        // A region of which something is held stays; used items may stay in the first pass.
        let mut regions_left = 4 * pairs.heap.regions.count() + 4;
        // The queue whose oldest region stays.
        let mut blocked = None;
        while regions_left > 0 {
            regions_left -= 1;
            let oldest = self.oldest(&pairs.heap.regions, blocked);
            if is_index_older(pairs, oldest.map(|(_, region)| region)) {
                let is_for_index = demand == Demand::Index;
                if is_for_index && !pairs.table.must_grow_for_items(&pairs.counters) {
                    return false;
                }
                if !is_for_index && self.shrink_index(pairs, before, oldest.is_some()) {
                    return true;
                }
            }
            let Some((queue, region)) = oldest else { break };
            pairs.heap.regions.end_filling(region);
            let (hand_region, mut from) = self.hands[queue as usize];
            if hand_region != region {
                from = 0;
            }
            let mut ahead = Ahead::of(pairs, &self.ghosts, region, from);
            while let Some((at, item)) = pairs.heap.regions.next_item(region, from) {
                from = at + 1;
                ahead.prefetch_next(pairs, &self.ghosts);
                let moved_units = self.pass(pairs, queue, item, self.moves_left > 0);
                self.moves_left = self.moves_left.saturating_sub(moved_units);
                if pairs.heap.room() > before {
                    self.hands[queue as usize] = (region, from);
                    return true;
                }
            }
            self.hands[queue as usize] = (region, 0);
            if pairs.heap.regions.use_of(region) == Use::Items(queue) {
                pairs.heap.regions.renew(region);
                blocked = if blocked.is_none() { Some(queue) } else { None };
            }
        }
        // The remaining items cannot be evicted now: the index shrinks, however many buckets are moved.
        demand == Demand::Items && is_index_older(pairs, None) && self.shrink_index(pairs, before, false)
    }

    /// Ends leases whose time is over. Returns whether that made more room than `before`: it seldom does.
    #[cold]
    pub(crate) fn end_some_leases(&mut self, pairs: &mut Pairs<impl Touches>, before: usize) -> bool {
        let now_s = pairs.clock.now_s();
        for _ in 0..LEASES_AT_ONCE {
            let Some((hash, key)) = pairs.leases.as_ref().and_then(|leases| leases.next_ended(now_s)) else {
                break;
            };
            pairs.counters.pin_ended_count += 1;
            self.end_lease(pairs, hash, &key);
        }
        pairs.heap.room() > before
    }

    /// Ends the leases that would end first, until all others take at most `units_max`.
    pub(crate) fn end_leases_above(&mut self, pairs: &mut Pairs<impl Touches>, units_max: usize) {
        let mut left_count = pairs.leases.as_ref().map_or(0, |leases| leases.len());
        while left_count > 0
            && let Some(leases) = &pairs.leases
            && leases.units() > units_max
            && let Some((_, hash, key)) = leases.first()
        {
            left_count -= 1;
            pairs.counters.pin_ended_count += 1;
            self.end_lease(pairs, hash, &key);
        }
    }

    /// Ends the lease of a key: its item moves to the end of Kept. If there is no memory for that it is evicted, and if
    /// its value is being sent, the lease ends later.
    pub(crate) fn end_lease(&mut self, pairs: &mut Pairs<impl Touches>, hash: KeyHash, key: &[u8]) {
        let item = pairs.item(hash, key).filter(|&item| pairs.heap.is_leased(item));
        if let Some(item) = item {
            if pairs.heap.header(item).bits & HELD != 0 {
                let end_s = pairs.clock.now_s().saturating_add(1);
                if let Some(leases) = &mut pairs.leases {
                    leases.postpone(key, end_s);
                }
                return;
            }
            if move_item(pairs, item, Queue::Kept).is_none() {
                evict(pairs, item);
            }
        }
        pairs.remove_lease(key);
    }

    /// Shrinks the index until there is more room than `before`. Returns whether there is. If something else can be
    /// evicted, a bounded number of buckets is moved.
    fn shrink_index(&mut self, pairs: &mut Pairs<impl Touches>, before: usize, has_items: bool) -> bool {
        while pairs.table.begin_squeeze(&pairs.counters, has_items) {
            while let Some(home) = pairs.table.index.next_to_move(0) {
                if has_items {
                    let left = if pairs.table.index.is_growing() {
                        &mut self.growth_steps_left
                    } else {
                        &mut self.shrink_steps_left
                    };
                    if *left == 0 {
                        return false;
                    }
                    *left -= 1;
                }
                pairs.move_bucket(home);
                if pairs.heap.room() > before {
                    return true;
                }
            }
        }
        false
    }

    /// The region that is emptied next, and its queue: not that of the queue that is blocked, if there is another.
    fn oldest(&self, regions: &Regions, blocked: Option<Queue>) -> Option<(Queue, u32)> {
        let [new, kept] = [Queue::New, Queue::Kept].map(|queue| Some((queue, regions.oldest(queue)?)));
        let (Some((_, oldest_kept)), Some(_)) = (kept, new) else { return new.or(kept) };
        let [new_units, kept_units] = [Queue::New, Queue::Kept].map(|queue| regions.item_units(queue) as u64);
        // New has at least a region: one is filled before it is emptied.
        let wanted = ((u128::from(new_units + kept_units) * u128::from(self.new_share)) >> 32) as usize;
        let is_forgotten = regions.stored_since(oldest_kept) > self.kept_for;
        let is_kept = match blocked {
            Some(queue) => queue == Queue::New,
            None => is_forgotten || new_units as usize <= wanted.max(REGION_UNITS),
        };
        if is_kept { kept } else { new }
    }

    /// Whether an item of New that was used once goes to Kept: not always where few of those that went there are used
    /// again.
    fn keeps_used_once(&mut self, pairs: &mut Pairs<impl Touches>) -> bool {
        let used = pairs.heap.once_used;
        let all = used + self.once_unused;
        if all > (pairs.item_count() / 2).max(2 * ONCE_KNOWN) {
            pairs.heap.once_used /= 2;
            self.once_unused /= 2;
        }
        let chance = (WHOLE / all.max(1) * used * 10 / ONCE_ENOUGH).max(WHOLE / ONCE_ONE_IN);
        all < ONCE_KNOWN || self.draw() < chance
    }

    /// Changes the time for which regions of Kept stay, after an item of `bytes` was passed. If most are used again,
    /// the others are of a scan; if few are, the keys in use have changed.
    fn note_kept(&mut self, regions: &Regions, queue: Queue, bytes: u64, is_used: bool) {
        if queue == Queue::Kept {
            let longer = self.kept_for + if is_used { LONGER_IF_USED * bytes } else { 0 };
            self.keep_for(
                regions,
                longer.saturating_sub(if is_used { 0 } else { SHORTER_IF_UNUSED * bytes }),
            );
        }
    }

    /// Sets the time for which regions of Kept stay, within its limits.
    fn keep_for(&mut self, regions: &Regions, bytes: u64) {
        let memory_bytes = (regions.count() * REGION_BYTES) as u64;
        self.kept_for = bytes.clamp(KEPT_FOR.start() * memory_bytes, KEPT_FOR.end() * memory_bytes);
    }

    /// Passes the hand over an item of a queue, which moves to the end of Kept if it was used, and is evicted
    /// otherwise, or if it has expired. Returns the units moved.
    fn pass(&mut self, pairs: &mut Pairs<impl Touches>, queue: Queue, item: u32, may_move: bool) -> usize {
        let header = pairs.heap.header(item);
        // Evicting a value that is being sent frees nothing yet.
        if header.bits & HELD != 0 || pairs.heap.has_readers(item, header) {
            return 0;
        }
        let is_expired = pairs.is_expired(&header);
        // Its value was being sent when it was leased.
        if pairs.leases.is_some() && !is_expired && pairs.is_leased(pairs.heap.key_of(item)) {
            let to = move_item(pairs, item, Queue::Leased);
            return to.map_or(0, |to| pairs.heap.item_units(to, header));
        }
        let bytes = pairs.heap.pair_bytes(item) as u64;
        let uses = header.bits & USES;
        let is_used_once = queue == Queue::New && uses == 1;
        if may_move
            && !matches!(uses, 0 | USED_ONCE)
            && !is_expired
            && (!is_used_once || self.keeps_used_once(pairs))
            && let Some(to) = move_item(pairs, item, Queue::Kept)
        {
            self.note_kept(&pairs.heap.regions, queue, bytes, true);
            let uses = if is_used_once { USED_ONCE } else { 0 };
            pairs.heap.memory.bytes_mut(to, BITS_AT, 1)[0] = header.bits & !USES | uses;
            return pairs.heap.item_units(to, header);
        }
        self.once_unused += u64::from(uses == USED_ONCE);
        self.note_kept(&pairs.heap.regions, queue, bytes, false);
        let hash = evict(pairs, item);
        if !is_expired {
            let item_count = pairs.item_count();
            let forgotten_count = self.ghosts.record(hash, queue, item_count);
            let more = self.again * MORE_IF_FORGOTTEN / item_count.max(1) * forgotten_count;
            self.again = (self.again + more).min(ALL_AGAIN);
        }
        0
    }

    /// Removes expired items: of one part of the regions in which there are any. `false` if there are none, which costs
    /// nothing until the first of the others expires: memory may be full for long, and each store asks.
    pub(crate) fn remove_some_expired(&mut self, pairs: &mut Pairs<impl Touches>) -> bool {
        if pairs.heap.unexpired_until_s >= pairs.clock.now_s() {
            return false;
        }
        let mut left = pairs.heap.regions.count();
        let mut unexpired_until_s = u32::MAX;
        while left > 0 {
            let (removed, until_s) = self.remove_expired(pairs, SCAN_COUNT.min(left));
            if removed > 0 {
                return true;
            }
            unexpired_until_s = unexpired_until_s.min(until_s);
            left = left.saturating_sub(SCAN_COUNT);
        }
        pairs.heap.unexpired_until_s = unexpired_until_s;
        false
    }

    /// Removes expired items from the next `region_count` regions. Returns the number removed, and the second before
    /// the first of the others expires.
    pub(crate) fn remove_expired(
        &mut self,
        pairs: &mut Pairs<impl Touches>,
        region_count: usize,
    ) -> (usize, u32) {
        let count = pairs.heap.regions.count() as u32;
        let mut removed = 0;
        let mut unexpired_until_s = u32::MAX;
        for _ in 0..region_count {
            let region = self.expiry_hand % count;
            self.expiry_hand = (region + 1) % count;
            removed += each_item(pairs, region, |pairs, item| {
                let header = pairs.heap.header(item);
                let is_removed = header.bits & HELD == 0 && pairs.is_expired(&header);
                if is_removed {
                    evict(pairs, item);
                } else {
                    // One that is held is looked at again in the next second.
                    let last_s = header.expiry.wrapping_sub(1).max(pairs.clock.now_s());
                    unexpired_until_s = unexpired_until_s.min(last_s);
                }
                is_removed
            });
        }
        (removed, unexpired_until_s)
    }

    /// Drops the values of the least used of a few regions from memory, as far as they are in the log. Returns whether
    /// that freed anything. A region without such values is not searched again before it gets one: memory may be full
    /// for long, and each store asks.
    pub(crate) fn demote_region(&mut self, pairs: &mut Pairs<impl Touches>) -> bool {
        if pairs.heap.regions.may_drop_count() == 0 {
            return false;
        }
        let count = pairs.heap.regions.count() as u32;
        let mut looked_at = 0;
        while looked_at < count {
            let mut candidates = [(usize::MAX, 0); CANDIDATE_COUNT];
            let mut seen = 0;
            while looked_at < count && seen < CANDIDATE_COUNT {
                let region = (self.region_hand + looked_at) % count;
                looked_at += 1;
                if pairs.heap.regions.may_drop(region) {
                    candidates[seen] = (age(pairs, region), region);
                    seen += 1;
                }
            }
            let candidates = &mut candidates[..seen];
            candidates.sort_unstable();
            for &(_, region) in &*candidates {
                if !begin_demotion(pairs, region) {
                    continue;
                }
                // Held items, and those that are being read, are left.
                let mut is_any_left = false;
                let demoted_count = each_item(pairs, region, |pairs, item| {
                    let is_demoted = demote(pairs, item);
                    is_any_left |= !is_demoted && pairs.log_offset(item).is_some();
                    is_demoted
                });
                if demoted_count > 0 {
                    self.region_hand = (region + 1) % count;
                    return true;
                }
                pairs.heap.regions.set_may_drop(region, is_any_left);
            }
        }
        false
    }
}

/// Items of a region whose entries, which are anywhere in the index, are prefetched while the items before them are
/// passed.
struct Ahead {
    region: u32,
    /// The unit of the region from which on nothing is prefetched yet.
    from: usize,
}

impl Ahead {
    /// Prefetches for the first items at or after unit `from` of a region.
    fn of(pairs: &Pairs<impl Touches>, ghosts: &Ghosts, region: u32, from: usize) -> Self {
        let mut ahead = Self { region, from };
        (0..ITEMS_AHEAD).for_each(|_| ahead.prefetch_next(pairs, ghosts));
        ahead
    }

    /// Prefetches for the next item.
    fn prefetch_next(&mut self, pairs: &Pairs<impl Touches>, ghosts: &Ghosts) {
        if let Some((at, item)) = pairs.heap.regions.next_item(self.region, self.from) {
            self.from = at + 1;
            let hash = pairs.table.hash_of_item(&pairs.heap, item);
            pairs.heap.memory.prefetch(pairs.table.home(hash));
            ghosts.prefetch(hash);
        }
    }
}

/// Whether the index is larger than its entries need, or has pairs that were stored before the oldest region of items
/// was begun.
fn is_index_older(pairs: &Pairs<impl Touches>, oldest: Option<u32>) -> bool {
    let inline_count = pairs.counters.inline_count;
    pairs.table.is_sparse()
        || inline_count > 0
            && oldest.is_none_or(|region| pairs.heap.regions.inline_stored_since(region) < inline_count)
}

/// Calls `each` with the items of a region. Returns for how many it returned `true`.
fn each_item<T: Touches>(
    pairs: &mut Pairs<T>,
    region: u32,
    mut each: impl FnMut(&mut Pairs<T>, u32) -> bool,
) -> usize {
    let use_ = pairs.heap.regions.use_of(region);
    let (mut from, mut count) = (0, 0);
    while matches!(use_, Use::Items(_))
        && pairs.heap.regions.use_of(region) == use_
        && let Some((at, item)) = pairs.heap.regions.next_item(region, from)
    {
        from = at + 1;
        count += usize::from(each(pairs, item));
    }
    count
}

/// Removes an item that is not held. Returns the hash of its key.
fn evict(pairs: &mut Pairs<impl Touches>, item: u32) -> KeyHash {
    let header = pairs.heap.header(item);
    if pairs.is_expired(&header) {
        pairs.counters.expired_count += 1;
    } else {
        pairs.counters.evicted_count += 1;
        pairs.heap.note_evicted_item(item);
        pairs.counters.evicted_unread_count += u64::from(header.bits & FETCHED == 0);
    }
    let hash = pairs.table.hash_of_item(&pairs.heap, item);
    let (node, cell) = pairs.table.entry_of(&pairs.heap, hash, item);
    pairs.unlink(hash, PairPlace::new(node, cell, Some(item)));
    hash
}

/// Whether the value of an item can leave memory now.
fn may_demote(pairs: &Pairs<impl Touches>, item: u32) -> bool {
    let header = pairs.heap.header(item);
    if header.bits & HELD != 0 || pairs.heap.has_readers(item, header) {
        return false;
    }
    let is_written = || {
        let offset = pairs.log_offset(item);
        let journal = pairs.journal.as_ref();
        offset.is_some_and(|offset| journal.is_none_or(|journal| journal.is_written(offset)))
    };
    pairs.is_expired(&header) || is_written()
}

/// Prepares a region for dropping its values. `false` if that could use up the last free regions: stubs take memory
/// before the region is free, and so do the items left in it, once they are moved.
fn begin_demotion(pairs: &mut Pairs<impl Touches>, region: u32) -> bool {
    let regions = &pairs.heap.regions;
    let free_count = regions.free_count();
    let Use::Items(queue) = regions.use_of(region) else { return false };
    if free_count > regions.kept_for_moves() {
        return true;
    }
    let (mut dropped_units, mut left_units, mut part_units) = (0, 0, 0);
    let dropped_count = each_item(pairs, region, |pairs, item| {
        let header = pairs.heap.header(item);
        let units = pairs.heap.item_units(item, header);
        let is_dropped = may_demote(pairs, item);
        if is_dropped {
            dropped_units += units;
            part_units += pairs.heap.part_units(item, header);
        } else {
            left_units += units;
        }
        is_dropped
    });
    let regions = &mut pairs.heap.regions;
    // The items left can be moved, and the region is free then.
    let is_emptied =
        left_units == 0 || queue != Queue::Fetched && dropped_units >= FREED_MIN && !regions.has_held(region);
    if is_emptied {
        regions.end_filling(region);
        return true;
    }
    // Parts are freed whatever is left in the region.
    let has_room = dropped_count * STUB_UNITS_MAX <= regions.room_in_filling(Queue::Kept);
    part_units > 0 && (free_count > 1 || has_room)
}

/// Reduces an item to a stub if its value is in the log; evicts it if it has expired. Returns whether that freed
/// memory.
fn demote(pairs: &mut Pairs<impl Touches>, item: u32) -> bool {
    if !may_demote(pairs, item) {
        return false;
    }
    let header = pairs.heap.header(item);
    if pairs.is_expired(&header) {
        evict(pairs, item);
        return true;
    }
    let Some(log_offset) = pairs.log_offset(item) else { return false };
    let stub = Stub::of(&pairs.heap, item, header, log_offset);
    let (key, length) = pairs.key_of(item);
    let key = &key[..length];
    let layout = stub.layout(key);
    let Some(to) = pairs.heap.regions.take_for_move(Queue::Kept, layout.units()) else { return false };
    stub.write(&mut pairs.heap, to, &layout, key);
    let entry = pairs.table.entry_of(&pairs.heap, pairs.table.hasher.hash(key), item);
    set_item(&mut pairs.heap, entry, to);
    pairs.heap.free_item(item);
    pairs.counters.demoted_count += 1;
    true
}

/// The use of a region, estimated from a few of its items. They lose a use by it, because no hand passes over items
/// whose values may be dropped.
fn age(pairs: &mut Pairs<impl Touches>, region: u32) -> usize {
    let (mut uses, mut seen, mut from) = (0, 0, 0);
    while seen < 8
        && let Some((at, item)) = pairs.heap.regions.next_item(region, from)
    {
        let bits = pairs.heap.header(item).bits;
        if bits & USES != 0 {
            uses += usize::from(bits & USES);
            pairs.heap.memory.bytes_mut(item, BITS_AT, 1)[0] = bits - 1;
        }
        seen += 1;
        from = at + 1;
    }
    uses * 64 / seen.max(1)
}

/// How much a key weighs that was evicted from a queue `later_count` keys ago: 0 if the queue would not have held it
/// with a tenth more of all items. Where fewer keys of the queue are remembered than that, each of them weighs more.
fn weight(counts: [u64; 2], queue: Queue, later_count: u64, item_count: u64) -> u64 {
    let (own, all) = (counts[queue as usize], counts[0] + counts[1]);
    let remembered = Ghosts::PER_ITEM as u64 * LONGER_ONE_IN;
    if own * remembered < all {
        return (all / (own * remembered)).min(WEIGHT_MAX);
    }
    let later_in_queue = u128::from(later_count) * u128::from(own) / u128::from(all);
    u64::from(later_in_queue * u128::from(LONGER_ONE_IN) <= u128::from(item_count))
}

/// Moves an item that is not held to the end of a queue. `None` if there is no memory for that.
fn move_item(pairs: &mut Pairs<impl Touches>, item: u32, queue: Queue) -> Option<u32> {
    let header = pairs.heap.header(item);
    let units = pairs.heap.item_units(item, header);
    let to = pairs.heap.regions.take_for_move(queue, units)?;
    move_item_to(pairs, item, to);
    Some(to)
}

/// Moves an item that is not held to a block of its length.
pub(crate) fn move_item_to(pairs: &mut Pairs<impl Touches>, item: u32, to: u32) {
    let header = pairs.heap.header(item);
    let units = pairs.heap.item_units(item, header);
    let regions = &mut pairs.heap.regions;
    if regions.may_drop(regions.region_of(item)) {
        regions.set_may_drop(regions.region_of(to), true);
    }
    let hash = pairs.table.hash_of_item(&pairs.heap, item);
    let entry = pairs.table.entry_of(&pairs.heap, hash, item);
    pairs.heap.memory.copy(item, to, units);
    set_item(&mut pairs.heap, entry, to);
    pairs.heap.on_moved(item, to, header);
    pairs.heap.regions.give_back(item, units);
    pairs.counters.moved_count += 1;
}

/// Moves the content of a region elsewhere. Returns whether the region is then free.
fn empty_by_moving(pairs: &mut Pairs<impl Touches>, region: u32) -> bool {
    let use_ = pairs.heap.regions.use_of(region);
    match use_ {
        Use::Items(queue) => {
            pairs.heap.regions.end_filling(region);
            // With a log, stores have the regions of New that they took for themselves.
            let queue = if pairs.journal.is_some() { Queue::Kept } else { queue };
            each_item(pairs, region, |pairs, item| move_item(pairs, item, queue).is_some());
        }
        Use::Slots(slots) => empty_slots(pairs, region, slots),
        Use::Free | Use::Lent | Use::Index => {}
    }
    let is_free = pairs.heap.regions.use_of(region) == Use::Free;
    pairs.counters.reclaimed_count += u64::from(is_free);
    is_free
}

/// Moves the slots taken in a region to the free slots of others, of which there are enough.
fn empty_slots(pairs: &mut Pairs<impl Touches>, region: u32, slots: Slots) {
    pairs.heap.regions.take_last(region);
    let mut from = 0;
    while let Some((at, number)) = pairs.heap.regions.next_slot(region, from) {
        from = at + 1;
        let Some(to) = pairs.heap.regions.take_slot(slots) else { return };
        let is_moved = match slots {
            Slots::Pieces => pairs.heap.move_piece(number, to),
            Slots::Buckets => pairs.table.move_overflow_line(&mut pairs.heap, number, to),
        };
        if !is_moved {
            pairs.heap.regions.give_back_slot(slots, to);
            return;
        }
        pairs.counters.moved_count += 1;
    }
}
