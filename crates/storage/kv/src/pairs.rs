//! The pairs of a partition: stored in its heap, found by its table, and recorded in its journal.
//!
//! In a partition with a log, changes are recorded, and values may leave memory for the log:
//!
//! ```text
//! whole, not in the log ──written──▶ whole, in the log ──memory is short──▶ stub ──fetched──▶ whole, in the log …
//!       ▲──────────────────────────── changed ───────────────────────┘         └─replaced─▶ whole, not in the log
//! ```
//!
//! Pairs whose stub would take more than half as many lines always stay whole.

use memory::CHUNK_BYTES;

use crate::bucket::{Bucket, BucketMut};
use crate::changes::Changes;
use crate::clock::Clock;
use crate::counters::Counters;
use crate::heap::Heap;
use crate::item::{EXPIRY_AT, HELD, Header, LOG_OFFSET_BYTES, Layout, expiry_in};
use crate::journal::Journal;
use crate::key::{KEY_BYTES_MAX, KeyHash};
use crate::leases::Leases;
use crate::place::PairPlace;
use crate::regions::{Purpose, REGION_BYTES, REGION_UNITS, Use};
use crate::reserve;
use crate::stub::Stub;
use crate::table::Table;
use crate::touches::{Touches, Usual};

/// Regions of the largest memory of which debug builds check after each store that all values can be fetched.
const CHECKED_REGIONS_MAX: usize = 16;

/// The pairs of a partition.
pub(crate) struct Pairs<T = Usual> {
    pub(crate) heap: Heap<T>,
    pub(crate) table: Table,
    pub(crate) counters: Counters,
    pub(crate) clock: Clock,
    /// Changes for the log, if there is one.
    pub(crate) journal: Option<Box<Journal>>,
    /// Keys that have changed, in order, of a partition whose pairs its owner keeps elsewhere as well.
    pub(crate) notes: Option<Vec<(KeyHash, Box<[u8]>)>>,
    /// Pairs that are not evicted for a while, if there are any.
    pub(crate) leases: Option<Box<Leases>>,
}

impl<T: Touches> Pairs<T> {
    /// Pairs that are not inline.
    #[inline]
    pub(crate) fn item_count(&self) -> u64 {
        self.counters.pair_count - self.counters.inline_count
    }

    /// Looks a key up. An expired pair is removed and not found.
    #[inline(always)]
    pub(crate) fn find(&mut self, hash: KeyHash, key: &[u8]) -> Option<PairPlace> {
        let place = self.locate(hash, key)?;
        if let Some(item) = place.item()
            && self.clock.has_passed(expiry_in(self.heap.memory.u32_at(item, EXPIRY_AT)))
        {
            self.counters.expired_count += 1;
            self.unlink(hash, place);
            return None;
        }
        Some(place)
    }

    /// Looks a key up, expired or not.
    #[inline(always)]
    pub(crate) fn locate(&self, hash: KeyHash, key: &[u8]) -> Option<PairPlace> {
        self.table.locate(&self.heap, hash, key)
    }

    /// The item of a key, expired or not; `None` if the pair is in the index.
    pub(crate) fn item(&self, hash: KeyHash, key: &[u8]) -> Option<u32> {
        self.locate(hash, key)?.item()
    }

    #[inline]
    pub(crate) fn is_expired(&self, header: &Header) -> bool {
        self.clock.has_passed(header.expiry)
    }

    /// Removes the pair at a place from the counters.
    pub(crate) fn uncount(&mut self, place: PairPlace) {
        let bytes = match place.item() {
            Some(item) => {
                self.table.index.used_cells -= 1;
                self.heap.pair_bytes(item)
            }
            None => {
                self.counters.inline_count -= 1;
                let bucket = Bucket(self.heap.memory.line(place.node()));
                self.table.index.used_cells -= bucket.width(place.cell()) as u64;
                let (key, value) = bucket.inline(place.cell());
                key.len() + value.len()
            }
        };
        self.counters.pair_count -= 1;
        self.counters.pair_bytes -= bytes as u64;
    }

    /// Removes the pair at a place from memory.
    pub(crate) fn unlink(&mut self, hash: KeyHash, place: PairPlace) {
        if self.leases.is_some()
            && let Some(item) = place.item()
        {
            let (key, length) = self.key_of(item);
            self.remove_lease(&key[..length]);
        }
        self.uncount(place);
        BucketMut(self.heap.memory.line_mut(place.node())).clear(place.cell());
        if let Some(item) = place.item() {
            self.heap.free_item(item);
        }
        self.table.take_back_overflow(&mut self.heap, self.table.home(hash));
    }

    /// Whether a key has a lease.
    #[inline]
    pub(crate) fn is_leased(&self, key: &[u8]) -> bool {
        self.leases.as_ref().is_some_and(|leases| leases.contains(key))
    }

    /// The item of a key and the units that it takes with its parts, unless it must stay where it is.
    pub(crate) fn movable(&self, hash: KeyHash, key: &[u8]) -> Option<(u32, usize)> {
        let item = self.item(hash, key)?;
        let header = self.heap.header(item);
        let pair_units = self.heap.item_units(item, header) + self.heap.part_units(item, header);
        (header.bits & HELD == 0).then_some((item, pair_units))
    }

    /// Ends the lease of a key, if it has one.
    pub(crate) fn remove_lease(&mut self, key: &[u8]) {
        if let Some(leases) = &mut self.leases {
            leases.remove(key);
            if leases.len() == 0 {
                self.leases = None;
            }
        }
    }

    /// Units that leased pairs may take: half of the memory.
    pub(crate) fn leased_units_max(&self) -> usize {
        self.heap.regions.target() * REGION_UNITS / 2
    }

    /// Whole mebibytes of a value for which there may be memory: what is leased does not make way.
    pub(crate) fn chunk_count_max(&self) -> usize {
        let leased_bytes = self.leases.as_ref().map_or(0, |leases| leases.bytes());
        self.heap.chunked.count_max.saturating_sub(leased_bytes / CHUNK_BYTES)
    }

    /// Memory that values which arrive at the same time may begin with, bytes: three quarters of what can make way. The rest is for the
    /// index, and for values that come in one piece.
    pub(crate) fn arriving_bytes_max(&self) -> usize {
        let leased_bytes = self.leases.as_ref().map_or(0, |leases| leases.bytes());
        (self.heap.regions.count() * REGION_BYTES).saturating_sub(leased_bytes) / 4 * 3
    }

    /// Moves the next bucket of a resize, which is at `home`.
    pub(crate) fn move_bucket(&mut self, home: u32) {
        self.table.move_bucket(&mut self.heap, &mut self.counters, home);
        if !self.table.index.is_resizing() {
            self.table.end_resize(&mut self.heap);
        }
    }

    /// The layout of an item in this partition.
    #[inline]
    pub(crate) fn layout(&self, key_bytes: usize, value_bytes: usize, flags: u32) -> Layout {
        self.heap.layout(key_bytes, value_bytes, flags)
    }

    /// Records that a pair has changed, and has a value of this length now, or was removed.
    #[inline]
    pub(crate) fn note(&mut self, hash: KeyHash, key: &[u8], value_bytes: usize) {
        if let Some(journal) = &mut self.journal {
            journal.note(hash, key, value_bytes);
        } else if let Some(notes) = &mut self.notes {
            notes.push((hash, key.into()));
        }
    }

    /// Whether changes are recorded.
    #[inline]
    fn records_changes(&self) -> bool {
        self.journal.is_some() || self.notes.is_some()
    }

    /// Records that an item was changed in place.
    #[inline]
    pub(crate) fn note_item(&mut self, hash: KeyHash, key: &[u8], item: u32) {
        if self.records_changes() {
            self.note(hash, key, self.heap.pair_bytes(item) - key.len());
            self.clear_log_offset(item);
        }
    }

    /// Records that the pair at a place will be removed.
    #[inline]
    pub(crate) fn note_removal(&mut self, hash: KeyHash, place: PairPlace) {
        if self.records_changes()
            && let Some(item) = place.item()
        {
            let (key, length) = self.key_of(item);
            self.note(hash, &key[..length], 0);
        }
    }

    /// The changes to be written to the log, of a partition that has one.
    pub(crate) fn changes(&mut self) -> &mut Changes {
        &mut self.journal.as_mut().expect("there is a log").changes
    }

    /// Has the record of an unchanged item written again. Until it is written, the item must not become a stub.
    pub(crate) fn rewrite(&mut self, hash: KeyHash, key: &[u8], item: u32) {
        self.clear_log_offset(item);
        let pair_bytes = self.heap.pair_bytes(item);
        self.changes().request_rewrite(hash, key, pair_bytes);
    }

    /// Whether the log, if there is one, has room for a pair of `pair_bytes`, in place of the one that was found.
    #[inline]
    pub(crate) fn has_log_room(&self, pair_bytes: usize, found: Option<PairPlace>) -> bool {
        self.journal.as_ref().is_none_or(|journal| {
            let replaced_bytes = found.and_then(PairPlace::item).map(|item| self.heap.pair_bytes(item));
            journal.has_room(&self.counters, pair_bytes, replaced_bytes)
        })
    }

    /// Number of free segments of the log below which the oldest is cleaned.
    pub(crate) fn cleaned_below(&self) -> usize {
        self.journal.as_ref().map_or(0, |journal| journal.cleaned_below(&self.counters))
    }

    /// Number of regions that the pairs need so that each value can be fetched, once all changes are written and
    /// nothing is sent: for items that then stay in memory, however they are scattered, for the longest value, and for
    /// moving.
    pub(crate) fn needed_regions(&self) -> usize {
        let mut fixed_units = 0;
        for region in 0..self.heap.regions.count() as u32 {
            let is_of_items = matches!(self.heap.regions.use_of(region), Use::Items(_));
            let mut from = 0;
            while is_of_items && let Some((at, item)) = self.heap.regions.next_item(region, from) {
                from = at + 1;
                let header = self.heap.header(item);
                let (key_bytes, pair_bytes) = (header.key_bytes.into(), self.heap.pair_bytes(item));
                let flags = self.heap.attributes(PairPlace::of_item(item)).flags;
                let layout = self.layout(key_bytes, pair_bytes - key_bytes, flags);
                let is_short = layout.log_offset_at == 0 && !self.heap.is_stub(item, header);
                fixed_units += if is_short { layout.units() } else { Layout::stub(key_bytes, flags).units() };
            }
        }
        self.heap.regions.needed_for_fetches(fixed_units)
    }

    /// Whether each value can be fetched, if that is checked: in debug builds, in a small memory that keeps its size.
    pub(crate) fn can_fetch(&self) -> bool {
        let regions = &self.heap.regions;
        let is_small = regions.count() <= CHECKED_REGIONS_MAX && regions.count() == regions.target();
        let is_checked = self.journal.as_ref().is_some_and(|journal| journal.purpose == Purpose::Stores);
        !is_small || !is_checked || self.needed_regions() <= regions.count()
    }

    /// The pair of a key whose value is only in the log.
    pub(crate) fn stub(&self, hash: KeyHash, key: &[u8]) -> Option<Stub> {
        self.journal.as_ref()?;
        Stub::read(&self.heap, self.item(hash, key)?)
    }

    /// Whether the value of an item is lost.
    pub(crate) fn is_lost(&self, item: u32) -> bool {
        Stub::read(&self.heap, item).is_some_and(|stub| stub.is_lost())
    }

    /// Records that the value of a key, which is only in the log, is lost.
    pub(crate) fn lose(&mut self, hash: KeyHash, key: &[u8]) {
        let Some(item) = self.item(hash, key) else { return };
        let header = self.heap.header(item);
        if self.heap.is_stub(item, header) {
            let offset = self.heap.memory.bytes_mut(item, header.list_at(), LOG_OFFSET_BYTES);
            offset.copy_from_slice(&Stub::LOST.to_le_bytes());
        }
    }

    /// The key of an item, padded, and its length.
    pub(crate) fn key_of(&self, item: u32) -> ([u8; KEY_BYTES_MAX], usize) {
        let bytes = self.heap.key_of(item);
        let mut key = [0; KEY_BYTES_MAX];
        key[..bytes.len()].copy_from_slice(bytes);
        (key, bytes.len())
    }

    /// Where an item holds its offset in the log. A stub holds that of its value instead.
    fn log_offset_at(&self, item: u32) -> Option<usize> {
        self.journal.as_ref()?;
        let header = self.heap.header(item);
        if self.heap.is_stub(item, header) {
            return None;
        }
        let value_bytes = self.heap.pair_bytes(item) - usize::from(header.key_bytes);
        let flags = self.heap.attributes(PairPlace::of_item(item)).flags;
        let layout = self.layout(header.key_bytes.into(), value_bytes, flags);
        (layout.log_offset_at != 0).then_some(layout.log_offset_at)
    }

    /// Offset of an item's record in the log, if its present state is there.
    pub(crate) fn log_offset(&self, item: u32) -> Option<u64> {
        let offset = self.heap.memory.u64_at(item, self.log_offset_at(item)?);
        (offset != 0).then_some(offset)
    }

    /// Records where the present state of an item is in the log.
    pub(crate) fn set_log_offset(&mut self, item: u32, offset: u64) {
        if let Some(at) = self.log_offset_at(item) {
            self.heap.memory.bytes_mut(item, at, LOG_OFFSET_BYTES).copy_from_slice(&offset.to_le_bytes());
            if offset != 0 {
                let regions = &mut self.heap.regions;
                regions.set_may_drop(regions.region_of(item), true);
            }
        }
    }

    /// Records that the present state of an item is not in the log.
    #[inline]
    pub(crate) fn clear_log_offset(&mut self, item: u32) {
        if self.journal.is_some() {
            self.set_log_offset(item, 0);
        }
    }

    /// Sets how many regions are kept free.
    pub(crate) fn reserve_regions(&mut self) {
        let count = self.heap.regions.target();
        let (reserve, purpose) = match &self.journal {
            None => (reserve::without_log(count), Purpose::Stores),
            Some(journal) => (reserve::with_log(count, journal.value_bytes_max), journal.purpose),
        };
        self.heap.regions.set_reserve(reserve, self.journal.is_some());
        self.heap.regions.set_purpose(purpose);
    }
}
