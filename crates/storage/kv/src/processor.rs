//! The processor: one partition of the key space, owned by one reactor, without locks.
//!
//! ```text
//! hash ─▶ bucket (one line) ─▶ inline pair                            1 line
//!               │    └───────▶ item ─▶ chunks, pieces                 1 more, or as many as the value has
//!               └─ overflow ─▶ item of the group
//! ```
//!
//! Its parts, each importing only those below it:
//!
//! ```text
//! processor              the operations: conditions and limits
//!  ├─ atomic, vector     changes of numbers and of arrays
//!  └─ pair writer        stores and replaces pairs, changes values in place
//!      └─ allocator      memory for items, pieces, chunks and entries of the index
//!          ├─ evictor    makes room: the oldest region of a queue at a time
//!          └─ pairs      finds, removes
//!              ├─ table      entries of keys: index, buckets, overflow lines
//!              ├─ journal    changes that the log must write
//!              └─ heap       items: lines, regions, chunks, pins
//! ```
//!
//! [`find`](Processor::find) returns a [`PairPlace`], valid until the next call that stores, removes or makes room;
//! everything that reads or changes a value starts from one.

use std::io;
use std::sync::Arc;

use memory::{CHUNK_BYTES, Chunk, Untouched};

use crate::allocator::ResizeStep;
use crate::arriving::Begun;
use crate::atomic::{Atomic, AtomicResult};
use crate::bucket::{Bucket, CELL_BYTES};
use crate::chunked::ChunkList;
use crate::clock::Clock;
use crate::counters::Counters;
use crate::evicted::Evicted;
use crate::headroom::Headroom;
use crate::heap::is_equal;
use crate::index::{GROUP_LINES, Index};
use crate::item::{BITS_AT, FETCHED, HEADER_BYTES, Header, LARGE, STALE, WIDE, WON, chunk_count};
use crate::journal::{Journal, LogRoom};
use crate::kept::Kept;
use crate::key::{KEY_BYTES_MAX, KeyHash};
use crate::leases::Leased;
use crate::pair::{Attributes, Condition, Extension, Marks, Stored};
use crate::pair_writer::PairWriter;
use crate::pairs::Pairs;
use crate::place::{Home, PairPlace};
use crate::regions::{Purpose, REGION_BYTES, Regions, Slots};
use crate::settings::{Eviction, Settings};
use crate::table::ListPosition;
use crate::value::Value;
use crate::vector::{self, Comparison, Element, Function, Operand, VectorError};

/// What a look-up finds that changes nothing.
#[derive(Debug)]
pub enum Seen<'a> {
    /// No pair.
    Absent,
    /// A pair whose value is in one part, and whose flags are short.
    Whole {
        /// Its place.
        place: PairPlace,
        /// The flags.
        flags: u32,
        /// The value.
        value: &'a [u8],
        /// Whether the pair is yet to be [marked as read](Processor::touch).
        is_touch_due: bool,
    },
    /// A pair that has expired, is in parts or has long flags.
    Other,
}

/// One partition of the key space.
pub struct Processor {
    pub(crate) writer: PairWriter,
    settings: Settings,
}

impl Processor {
    /// An empty partition.
    ///
    /// # Errors
    /// The system's error when it refuses the memory.
    pub fn new(settings: Settings) -> io::Result<Self> {
        Ok(Self { writer: PairWriter::new(&settings)?, settings })
    }

    #[inline(always)]
    pub(crate) fn pairs(&self) -> &Pairs {
        &self.writer.allocator.pairs
    }

    #[inline(always)]
    pub(crate) fn pairs_mut(&mut self) -> &mut Pairs {
        &mut self.writer.allocator.pairs
    }

    /// Pairs held and work done.
    #[must_use]
    pub fn counters(&self) -> Counters {
        let Pairs { counters, leases, .. } = self.pairs();
        let (pinned_count, pinned_bytes) = match leases {
            Some(leases) => (leases.len() as u64, leases.bytes() as u64),
            None => (0, 0),
        };
        Counters { pinned_count, pinned_bytes, ..*counters }
    }

    /// Its settings.
    #[must_use]
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Begins to change its memory to `memory_bytes`, while it is used. [`resize_step`](Self::resize_step) continues.
    ///
    /// # Errors
    /// The system's error when it refuses the memory. Nothing has changed then.
    pub fn resize(&mut self, memory_bytes: usize) -> io::Result<()> {
        self.writer.allocator.resize_to(memory_bytes)?;
        self.settings.memory_bytes = memory_bytes;
        Ok(())
    }

    /// Whether a resize is under way.
    #[inline]
    #[must_use]
    pub fn is_resizing(&self) -> bool {
        self.writer.allocator.is_resizing()
    }

    /// Continues a resize by a bounded amount of work.
    pub fn resize_step(&mut self) -> ResizeStep {
        self.writer.allocator.resize_step()
    }

    /// The least memory for the present pairs, bytes: 0 if they may be evicted.
    #[must_use]
    pub fn needed_bytes(&self) -> usize {
        self.writer.allocator.needed_bytes()
    }

    /// Memory in use, bytes: regions that are not free, and the records of all regions.
    #[must_use]
    pub fn used_bytes(&self) -> usize {
        let heap = &self.pairs().heap;
        let used_count = heap.regions.used_count() - heap.chunked.free_regions();
        used_count * REGION_BYTES + heap.regions.count() * (Regions::RECORD_BYTES + Index::RECORD_BYTES)
    }

    /// Bytes of buckets, blocks, pieces and chunks in use.
    #[must_use]
    pub fn taken_bytes(&self) -> usize {
        self.index_bytes()
            + self.pairs().heap.regions.taken_lines() * memory::LINE_BYTES
            + self.pairs().heap.regions.taken_slots(Slots::Buckets) * memory::LINE_BYTES
            + self.pairs().heap.chunked.taken_bytes()
    }

    /// Bytes of the cells of pairs that are stored in the index itself.
    #[must_use]
    pub fn inline_bytes(&self) -> usize {
        let cells = self.pairs().table.index.used_cells - self.pairs().item_count();
        cells as usize * CELL_BYTES
    }

    /// Bytes of the buckets and their groups' overflow lines.
    #[must_use]
    pub fn index_bytes(&self) -> usize {
        self.pairs().table.index.group_count() as usize * GROUP_LINES as usize * memory::LINE_BYTES
    }

    /// Lines touched by operations so far.
    #[cfg(test)]
    pub(crate) fn touches(&self) -> crate::touches::TouchCounts {
        self.pairs().heap.memory.touches().counts()
    }

    /// Pairs removed by expiry or eviction. While it is unchanged, look-ups have changed nothing in the index.
    #[inline]
    pub fn removed_count(&self) -> u64 {
        self.pairs().counters.expired_count + self.pairs().counters.evicted_count
    }

    /// The clock by which pairs expire.
    #[inline]
    #[must_use]
    pub fn clock(&self) -> &Clock {
        &self.pairs().clock
    }

    /// The current second of the partition's clock.
    #[inline]
    #[must_use]
    pub fn now_s(&self) -> u32 {
        self.pairs().clock.now_s
    }

    /// The hash of a key. All partitions with one seed agree on it.
    #[inline]
    #[must_use]
    pub fn hash(&self, key: &[u8]) -> KeyHash {
        self.pairs().table.hasher.hash(key)
    }

    /// Prefetches the bucket of a key that will be looked up.
    #[inline]
    pub fn prefetch(&self, hash: KeyHash) {
        self.prefetch_home(hash);
    }

    /// As [`prefetch`](Self::prefetch); returns the bucket's position.
    #[inline]
    pub fn prefetch_home(&self, hash: KeyHash) -> Home {
        let home = self.pairs().table.home(hash);
        self.pairs().heap.memory.prefetch(home);
        Home(home)
    }

    /// Prefetches the item of a key whose bucket has been prefetched, if it has an item.
    #[inline]
    pub fn prefetch_item(&self, hash: KeyHash) {
        self.prefetch_item_of(hash, Home(self.pairs().table.home(hash)));
    }

    /// Marks the pair of a key as read and returns its flags and value, if it is still where
    /// [`prefetch_item_of`](Self::prefetch_item_of) found it and nothing was removed since. Otherwise, and if it has
    /// expired, is in parts or has long flags, returns `None` and marks nothing.
    #[inline(always)]
    pub fn read_prefetched(&mut self, place: PairPlace, key: &[u8]) -> Option<(u32, &[u8])> {
        self.pairs().heap.memory.begin_operation();
        let Some(item) = place.item() else {
            let (own, value) = Bucket(self.pairs().heap.memory.line(place.node())).inline(place.cell());
            return (own == key).then_some((0, value));
        };
        let header = self.pairs().heap.header(item);
        if usize::from(header.key_bytes) != key.len()
            || header.bits & (LARGE | WIDE) != 0
            || self.pairs().is_expired(&header)
            || !is_equal(self.pairs().heap.memory.bytes(item, HEADER_BYTES, key.len()), key)
        {
            return None;
        }
        if self.pairs().heap.is_touch_due(&header) {
            self.pairs_mut().heap.touch(place);
        }
        let value = self.pairs().heap.memory.bytes(item, HEADER_BYTES + key.len(), header.value_bytes.into());
        Some((header.flags.into(), value))
    }

    /// Looks a key up and changes nothing. `place` is where [`prefetch_item_of`](Self::prefetch_item_of) found the pair,
    /// if it did and nothing has been changed since.
    #[inline(always)]
    #[must_use]
    pub fn see(&self, hash: KeyHash, key: &[u8], place: Option<PairPlace>) -> Seen<'_> {
        let heap = &self.pairs().heap;
        heap.memory.begin_operation();
        match place.map(|place| (place, place.item())) {
            Some((place, Some(item))) => {
                let header = heap.header(item);
                if usize::from(header.key_bytes) == key.len()
                    && header.bits & (LARGE | WIDE) == 0
                    && is_equal(heap.memory.bytes(item, HEADER_BYTES, key.len()), key)
                    && !self.pairs().is_expired(&header)
                {
                    return self.seen(place, item, &header);
                }
            }
            Some((place, None)) => {
                let (own, value) = Bucket(heap.memory.line(place.node())).inline(place.cell());
                if own == key {
                    return Seen::Whole { place, flags: 0, value, is_touch_due: false };
                }
            }
            None => {}
        }
        self.look_and_see(hash, key)
    }

    #[inline(never)]
    fn look_and_see(&self, hash: KeyHash, key: &[u8]) -> Seen<'_> {
        let heap = &self.pairs().heap;
        let Some(place) = self.pairs().locate(hash, key) else { return Seen::Absent };
        let Some(item) = place.item() else {
            let (_, value) = Bucket(heap.memory.line(place.node())).inline(place.cell());
            return Seen::Whole { place, flags: 0, value, is_touch_due: false };
        };
        let header = heap.header(item);
        if header.bits & (LARGE | WIDE) != 0 || self.pairs().is_expired(&header) {
            return Seen::Other;
        }
        self.seen(place, item, &header)
    }

    /// What is in an item of one part.
    #[inline(always)]
    fn seen(&self, place: PairPlace, item: u32, header: &Header) -> Seen<'_> {
        let heap = &self.pairs().heap;
        let at = HEADER_BYTES + usize::from(header.key_bytes);
        let value = heap.memory.bytes(item, at, header.value_bytes.into());
        Seen::Whole { place, flags: header.flags.into(), value, is_touch_due: heap.is_touch_due(header) }
    }

    /// Looks a key up. Expired pairs are removed and not found.
    #[inline(always)]
    pub fn find(&mut self, hash: KeyHash, key: &[u8]) -> Option<PairPlace> {
        self.pairs().heap.memory.begin_operation();
        self.pairs_mut().find(hash, key)
    }

    /// Length of the value of a key, and whether the pair has expired; changes nothing. `None` if the key is absent.
    #[must_use]
    pub fn look(&self, hash: KeyHash, key: &[u8]) -> Option<(usize, bool)> {
        let place = self.pairs().locate(hash, key)?;
        let is_expired =
            place.item().is_some_and(|item| self.pairs().is_expired(&self.pairs().heap.header(item)));
        Some((self.value_bytes(place), is_expired))
    }

    /// Has pairs that are evicted from now on recorded, or no longer.
    pub fn record_evictions(&mut self, are_wanted: bool) {
        let evicted = &mut self.pairs_mut().heap.evicted;
        if are_wanted != evicted.is_some() {
            *evicted = are_wanted.then(Box::default);
        }
    }

    /// The pairs that were evicted since the last call, and the number of those that found no room in the record.
    pub fn take_evicted(&mut self) -> (Vec<Evicted>, u64) {
        self.pairs_mut().heap.evicted.as_mut().map_or((Vec::new(), 0), |evicted| evicted.take())
    }

    /// Marks a pair as read and returns its flags and value. If the value is in parts or the flags are long, returns
    /// `None` and marks nothing.
    #[inline(always)]
    pub fn read_whole(&mut self, place: PairPlace) -> Option<(u32, &[u8])> {
        let Some(item) = place.item() else { return Some((0, self.pairs().heap.value(place).head())) };
        let header = self.pairs().heap.header(item);
        if header.bits & (LARGE | WIDE) != 0 {
            return None;
        }
        if self.pairs().heap.is_touch_due(&header) {
            self.pairs_mut().heap.touch(place);
        }
        let at = HEADER_BYTES + usize::from(header.key_bytes);
        Some((header.flags.into(), self.pairs().heap.memory.bytes(item, at, header.value_bytes.into())))
    }

    /// The item of a key. A pair in the index moves out of it. `None` if the key is absent or there is no memory.
    fn item(&mut self, hash: KeyHash, key: &[u8]) -> Option<u32> {
        let place = self.pairs_mut().find(hash, key)?;
        self.writer.ensure_item(hash, key, place)
    }

    /// Sets the marks of a pair, moving it out of the index if necessary. Returns `false` if there was no memory for
    /// that.
    pub fn set_marks(&mut self, hash: KeyHash, key: &[u8], marks: Marks) -> bool {
        let Some(item) = self.item(hash, key) else { return false };
        let pairs = self.pairs_mut();
        let bits = &mut pairs.heap.memory.bytes_mut(item, BITS_AT, 1)[0];
        *bits &= !(FETCHED | STALE | WON);
        for (is_set, bit) in [(marks.is_fetched, FETCHED), (marks.is_stale, STALE), (marks.is_won, WON)] {
            *bits |= if is_set { bit } else { 0 };
        }
        pairs.note_item(hash, key, item);
        true
    }

    /// Pins a pair: it is not evicted before `seconds` are over, or before it has been [unpinned](Self::unpin) as often
    /// as it was pinned. It is removed, replaced and expires as any other; a replaced one stays pinned as far as there
    /// is room. Where pairs are not evicted anyway, or are kept elsewhere as well, there is nothing to do.
    pub fn pin(&mut self, hash: KeyHash, key: &[u8], seconds: u32) -> Leased {
        let Some(place) = self.find(hash, key) else { return Leased::Absent };
        if self.settings.eviction == Eviction::None || self.has_log() {
            return Leased::Done;
        }
        // A pair in the index moves out of it.
        let leased = match self.writer.ensure_item(hash, key, place) {
            Some(item) => self.lease(hash, key, item, seconds),
            None => Leased::Full,
        };
        let counters = &mut self.pairs_mut().counters;
        counters.pin_count += u64::from(leased == Leased::Done);
        counters.pin_refused_count += u64::from(leased == Leased::Full);
        leased
    }

    fn lease(&mut self, hash: KeyHash, key: &[u8], item: u32, seconds: u32) -> Leased {
        let pairs = self.pairs_mut();
        let header = pairs.heap.header(item);
        let units = pairs.heap.item_units(item, header) + pairs.heap.part_units(item, header);
        let now_s = pairs.clock.now_s();
        let (times, units_max) = ((now_s, now_s.saturating_add(seconds)), pairs.leased_units_max());
        let leases = pairs.leases.get_or_insert_default();
        let is_new = !leases.contains(key);
        if !leases.add((hash, key), units, times, units_max) {
            // Those that have ended give way at once.
            self.writer.allocator.end_some_leases();
            let leases = &mut self.pairs_mut().leases;
            if !leases.get_or_insert_default().add((hash, key), units, times, units_max) {
                leases.take_if(|leases| leases.len() == 0);
                return Leased::Full;
            }
        }
        if is_new {
            self.writer.allocator.set_leased_aside(hash, key);
        }
        Leased::Done
    }

    /// Takes one pin back. `false` if there is no pair; a pair that is not pinned stays as it is.
    pub fn unpin(&mut self, hash: KeyHash, key: &[u8]) -> bool {
        if self.find(hash, key).is_none() {
            return false;
        }
        if self.pairs_mut().leases.as_mut().is_some_and(|leases| leases.release(key)) {
            self.writer.allocator.end_lease(hash, key);
        }
        true
    }

    /// The CAS number of the current value; every new value gets another one. A pair in the index has none until it is
    /// requested, and then moves out of the index. `None` if there is no memory for that.
    pub fn cas(&mut self, hash: KeyHash, key: &[u8]) -> Option<u64> {
        let item = self.item(hash, key)?;
        Some(self.pairs().heap.header(item).cas)
    }

    /// The CAS number of the pair at a place; `None` if it is in the index and has none yet.
    #[must_use]
    pub fn present_cas(&self, place: PairPlace) -> Option<u64> {
        place.item().map(|item| self.pairs().heap.header(item).cas)
    }

    /// Sets the CAS number of the value, as caches that replicate from one another do.
    pub fn set_cas(&mut self, hash: KeyHash, key: &[u8], cas: u64) {
        let Some(item) = self.item(hash, key) else { return };
        let pairs = self.pairs_mut();
        pairs.heap.set_header(item, Header { cas, ..pairs.heap.header(item) });
        pairs.note_item(hash, key, item);
    }

    /// A CAS number that no value has had, for the current value of a key; `None` if the key is absent.
    pub fn next_cas(&mut self, hash: KeyHash, key: &[u8]) -> Option<u64> {
        self.pairs_mut().find(hash, key)?;
        self.writer.next_cas += 1;
        Some(self.writer.next_cas)
    }

    /// Sets the expiry of the pair. Returns whether it could be recorded.
    pub fn set_expiry(&mut self, hash: KeyHash, key: &[u8], expiry_s: u32) -> bool {
        let Some(place) = self.pairs_mut().find(hash, key) else { return false };
        if place.item().is_none() && expiry_s == 0 {
            return true;
        }
        let Some(item) = self.writer.ensure_item(hash, key, place) else { return false };
        let pairs = self.pairs_mut();
        pairs.heap.set_header(item, Header { expiry: expiry_s, ..pairs.heap.header(item) });
        pairs.note_item(hash, key, item);
        true
    }

    /// Checks a condition against the pair that was found.
    ///
    /// # Errors
    /// The result of a store that fails the condition.
    pub fn check(&self, found: Option<PairPlace>, condition: Condition) -> Result<(), Stored> {
        match (condition, found) {
            (Condition::Always, _) | (Condition::Absent, None) | (Condition::Present, Some(_)) => Ok(()),
            (Condition::Absent, Some(_)) => Err(Stored::Exists),
            (Condition::Present | Condition::Unchanged(_), None) => Err(Stored::NotFound),
            (Condition::Unchanged(cas), Some(place)) => match place.item() {
                Some(item) if self.pairs().heap.header(item).cas == cas => Ok(()),
                // The CAS number of a pair in the index has not been requested since it was stored.
                _ => Err(Stored::Exists),
            },
        }
    }

    /// Stores a value.
    pub fn store(
        &mut self,
        hash: KeyHash,
        key: &[u8],
        value: &[u8],
        attributes: Attributes,
        condition: Condition,
    ) -> Stored {
        let found = self.find(hash, key);
        match self.check(found, condition) {
            Ok(()) => self.put(hash, key, value, attributes, found),
            Err(refusal) => refusal,
        }
    }

    /// Stores a value, replacing the pair that was found.
    pub fn put(
        &mut self,
        hash: KeyHash,
        key: &[u8],
        value: &[u8],
        attributes: Attributes,
        found: Option<PairPlace>,
    ) -> Stored {
        debug_assert!((1..=KEY_BYTES_MAX).contains(&key.len()));
        if value.len() > self.settings.value_bytes_max {
            return Stored::TooLarge;
        }
        let Some(found) = self.make_log_room(hash, key, value.len(), found) else {
            return self.counted(Stored::LogFull);
        };
        let stored = self.writer.put(hash, key, value, attributes, found, self.settings.inline_bytes_max);
        self.counted(stored)
    }

    /// The result of a store, counted if it was refused for lack of room.
    #[inline]
    fn counted(&mut self, stored: Stored) -> Stored {
        if stored != Stored::Done {
            let counters = &mut self.pairs_mut().counters;
            counters.no_memory_count += u64::from(stored == Stored::NoMemory);
            counters.log_full_count += u64::from(stored == Stored::LogFull);
        }
        stored
    }

    /// Checks whether a value that has not arrived yet could be stored now, memory aside.
    ///
    /// # Errors
    /// The reason why it could not.
    pub fn would_store(
        &mut self,
        hash: KeyHash,
        key: &[u8],
        value_bytes: usize,
        condition: Condition,
    ) -> Result<(), Stored> {
        let found = self.find(hash, key);
        self.check(found, condition)?;
        if value_bytes > self.settings.value_bytes_max {
            return Err(Stored::TooLarge);
        }
        if chunk_count(value_bytes) > self.pairs().chunk_count_max() {
            return Err(self.counted(Stored::NoMemory));
        }
        match self.make_log_room(hash, key, value_bytes, found) {
            Some(_) => Ok(()),
            None => Err(self.counted(Stored::LogFull)),
        }
    }

    /// Makes room in the log, if there is one, for a value of a key in place of the pair that was found, if necessary
    /// by removing expired pairs. Returns where the pair is then; `None` if there is no room.
    #[inline(always)]
    fn make_log_room(
        &mut self,
        hash: KeyHash,
        key: &[u8],
        value_bytes: usize,
        found: Option<PairPlace>,
    ) -> Option<Option<PairPlace>> {
        let pair_bytes = key.len() + value_bytes;
        if !self.has_log() || self.pairs().has_log_room(pair_bytes, found) {
            return Some(found);
        }
        self.make_log_room_of_expired(hash, key, pair_bytes)
    }

    #[cold]
    fn make_log_room_of_expired(
        &mut self,
        hash: KeyHash,
        key: &[u8],
        pair_bytes: usize,
    ) -> Option<Option<PairPlace>> {
        while self.writer.allocator.remove_some_expired() {
            let found = self.pairs_mut().find(hash, key);
            if self.pairs().has_log_room(pair_bytes, found) {
                return Some(found);
            }
        }
        None
    }

    /// Whether a value of this length may [begin to arrive](Self::begin) beside those that have begun.
    #[must_use]
    pub fn may_begin(&self, value_bytes: usize, count: usize) -> bool {
        self.writer.allocator.may_begin(value_bytes, count)
    }

    /// Takes memory for the first `count` mebibytes of a value that begins to arrive.
    pub fn begin(&mut self, value_bytes: usize, count: usize) -> Begun {
        self.writer.allocator.begin(value_bytes, count)
    }

    /// Takes memory for `count` further mebibytes of an arriving value. `None` if there is none.
    pub fn take_chunks(&mut self, count: usize) -> Option<Vec<Chunk>> {
        self.writer.allocator.take_chunks(count)
    }

    /// Stores an arrived value: its whole mebibytes, and the rest, which is less than a mebibyte.
    pub fn store_chunks(
        &mut self,
        hash: KeyHash,
        key: &[u8],
        chunks: Vec<Chunk>,
        rest: &[u8],
        attributes: Attributes,
        condition: Condition,
    ) -> Stored {
        debug_assert!(rest.len() < CHUNK_BYTES);
        if chunks.is_empty() {
            return self.store(hash, key, rest, attributes, condition);
        }
        let value_bytes = chunks.len() * CHUNK_BYTES + rest.len();
        match self.would_store(hash, key, value_bytes, condition) {
            Ok(()) => {
                let stored = self.writer.put_chunks(hash, key, chunks, rest, attributes);
                self.counted(stored)
            }
            Err(refusal) => refusal,
        }
    }

    /// Stores a value extended by more bytes before or after it.
    pub fn extend(&mut self, hash: KeyHash, key: &[u8], place: PairPlace, more: Extension<'_>) -> Stored {
        let value_bytes = self.value_bytes(place) + more.byte_count();
        let stored = match self.make_log_room(hash, key, value_bytes, Some(place)) {
            Some(Some(place)) => self.writer.extend(hash, key, place, more),
            _ => Stored::LogFull,
        };
        self.counted(stored)
    }

    /// Calls `each` with the parts of a value in order, to be changed in place; it counts as a new value, or as
    /// `change_count` new values one after the other. A value that is being sent is copied first. All parts but the
    /// last are multiples of 64 bytes. Returns `false` if there is no memory for the copy.
    pub fn change(
        &mut self,
        hash: KeyHash,
        key: &[u8],
        place: PairPlace,
        change_count: u64,
        each: impl FnMut(&mut [u8]),
    ) -> bool {
        self.writer.skip_cas(place, change_count.saturating_sub(1));
        self.writer.change(hash, key, place, each)
    }

    /// Changes the number that is the value of a key, just found at `place`.
    pub fn atomic(&mut self, hash: KeyHash, key: &[u8], place: PairPlace, atomic: Atomic) -> AtomicResult {
        atomic.execute(&mut self.writer, hash, key, place)
    }

    /// Applies a function to each element of the value of a key, just found at `place`. Copies the old value to `old`,
    /// if given.
    ///
    /// # Errors
    /// The reason why it was refused.
    pub fn vector_update(
        &mut self,
        key: (KeyHash, &[u8], PairPlace),
        kind: (Element, Function),
        operand: Operand<'_>,
        old: Option<&mut Vec<u8>>,
    ) -> Result<(), VectorError> {
        vector::update(&mut self.writer, key, kind, operand, old)
    }

    /// Folds the elements of a value into `state`.
    ///
    /// # Errors
    /// The reason why it was refused.
    pub fn vector_reduce(
        &mut self,
        place: PairPlace,
        kind: (Element, Function),
        state: &mut [u8],
    ) -> Result<(), VectorError> {
        vector::reduce_value(&mut self.pairs_mut().heap, place, kind, state)
    }

    /// Appends to `kept` the elements of a value for which the comparison with the operand holds.
    ///
    /// # Errors
    /// The reason why it was refused.
    pub fn vector_filter(
        &mut self,
        place: PairPlace,
        kind: (Element, Comparison),
        operand: &[u8],
        kept: &mut Vec<u8>,
    ) -> Result<(), VectorError> {
        vector::filter_value(&mut self.pairs_mut().heap, place, kind, operand, kept)
    }

    /// Removes a pair.
    pub fn delete(&mut self, hash: KeyHash, key: &[u8]) -> bool {
        let Some(place) = self.find(hash, key) else { return false };
        self.remove(hash, place);
        true
    }

    /// Removes the pair at a place.
    pub fn remove(&mut self, hash: KeyHash, place: PairPlace) {
        self.pairs_mut().note_removal(hash, place);
        self.pairs_mut().unlink(hash, place);
    }

    /// Removes all pairs.
    pub fn clear(&mut self) {
        if let Some(journal) = &mut self.pairs_mut().journal {
            journal.note_clear();
        }
        self.writer.allocator.clear();
    }

    /// Marks a pair as read, which delays its eviction.
    #[inline(always)]
    pub fn touch(&mut self, place: PairPlace) {
        self.pairs_mut().heap.touch(place);
    }

    /// The value at a place.
    #[inline(always)]
    #[must_use]
    pub fn value(&self, place: PairPlace) -> Value<'_> {
        self.pairs().heap.value(place)
    }

    /// Length of the value at a place, wherever it is stored.
    #[inline(always)]
    #[must_use]
    pub fn value_bytes(&self, place: PairPlace) -> usize {
        self.pairs().heap.value_bytes(place)
    }

    /// The whole mebibytes of the value at a place; `None` if it is shorter. The value stays unchanged while they are
    /// held.
    #[inline(always)]
    #[must_use]
    pub fn chunks(&self, place: PairPlace) -> Option<&ChunkList> {
        self.pairs().heap.chunks(place)
    }

    /// Attributes of the pair besides key and value.
    #[inline(always)]
    #[must_use]
    pub fn attributes(&self, place: PairPlace) -> Attributes {
        self.pairs().heap.attributes(place)
    }

    /// The marks of the pair. Pairs in the index have none.
    #[must_use]
    pub fn marks(&self, place: PairPlace) -> Marks {
        self.pairs().heap.marks(place)
    }

    /// The second of the last access to the pair, as far as it is known: the start of a minute for accesses of the last
    /// six, of ten minutes for those of the last two and a half hours, of a hundred for those of the last 28 hours, and
    /// for older ones the start of these. Minutes are longer while there are few requests. `None` if the pair is in the
    /// index.
    #[must_use]
    pub fn last_access_s(&self, place: PairPlace) -> Option<u32> {
        self.pairs().heap.last_access_s(place)
    }

    /// Keeps the value at a place unchanged; `None` if the pair is in the index.
    pub fn keep(&mut self, place: PairPlace) -> Option<Kept> {
        let Pairs { heap, table, .. } = self.pairs_mut();
        heap.release_returned_pins();
        let hash = table.hash_of_item(heap, place.item()?);
        let length = heap.value(place).len();
        let pin = heap.pin(place)?;
        Some(Kept { pin: Some(pin), hash, length, returned: Arc::clone(&heap.returned) })
    }

    /// Up to `count` bytes of a kept value from `offset` on. `None` past its end, or if another partition keeps it.
    #[must_use]
    pub fn piece(&mut self, kept: &Kept, offset: usize, count: usize) -> Option<Vec<u8>> {
        self.pairs_mut().heap.piece(kept, offset, count)
    }

    /// Has memory touched before it is needed: passes chunks made in advance to `touch`, which may drop each on any
    /// thread once it is touched, and returns whether it accepts more. Returns the rest of the memory, for the caller
    /// to have touched.
    pub fn touch_ahead(&mut self, touch: impl FnMut(Chunk) -> bool + Send + Sync + 'static) -> Untouched {
        self.pairs_mut().heap.touch_ahead(touch)
    }

    /// As [`prefetch_item`](Self::prefetch_item), with the bucket known. Has no effect if the bucket has moved
    /// meanwhile. Returns where the pair is, if it is there and the first with its tag.
    #[inline(always)]
    pub fn prefetch_item_of(&self, hash: KeyHash, home: Home) -> Option<PairPlace> {
        self.pairs().table.prefetch_item_of(&self.pairs().heap, hash, home)
    }

    /// As [`prefetch`](Self::prefetch) and [`prefetch_item`](Self::prefetch_item), for operations on several keys.
    #[inline]
    pub fn prefetch_all(&self, hashes: &[KeyHash]) {
        hashes.iter().for_each(|&hash| self.prefetch(hash));
        hashes.iter().for_each(|&hash| self.prefetch_item(hash));
    }

    /// Calls `each` with the keys from a position on, until it refuses one by returning `false`, or until there was
    /// enough to do for one call. Returns where the list continues, with the key that was refused, unless this was the
    /// end. Each key that exists throughout a list is in it exactly once, regardless of changes to other keys.
    pub fn list(&self, first: ListPosition, each: impl FnMut(&[u8]) -> bool) -> Option<ListPosition> {
        self.pairs().table.list(&self.pairs().heap, &self.pairs().clock, first, each)
    }

    /// Attaches a log that is read next: changes are recorded from now on. `headroom` limits the records of all pairs,
    /// `value_bytes_max` each value.
    pub(crate) fn begin_log(&mut self, headroom: Headroom, value_bytes_max: usize, answers_wait: bool) {
        let journal = Journal::new(headroom, value_bytes_max, answers_wait);
        self.pairs_mut().journal = Some(Box::new(journal));
        self.pairs_mut().heap.has_log = true;
        self.pairs_mut().reserve_regions();
    }

    /// Ends the reading of the log: from now on pairs are stored. Returns by how much the wall clock is behind the log,
    /// s, if it is: then no pair has an expiry.
    pub(crate) fn end_recovery(&mut self, expires_until_s: i64) -> Option<i64> {
        let behind_s = self.pairs_mut().clock.end_recovery(expires_until_s);
        if behind_s.is_some() {
            self.writer.allocator.remove_expiring();
        }
        let pairs = self.pairs_mut();
        pairs.heap.access.begin(pairs.clock.now_s());
        pairs.journal.as_mut().expect("there is a log").purpose = Purpose::Stores;
        pairs.reserve_regions();
        behind_s
    }

    /// The space of the log that the pairs take, if there is one.
    #[must_use]
    pub fn log_room(&self) -> Option<LogRoom> {
        Some(self.pairs().journal.as_ref()?.room(&self.pairs().counters))
    }

    /// Whether pairs are kept in a log or elsewhere. If so, some commands cannot be executed and answered at once.
    #[inline]
    #[must_use]
    pub fn has_log(&self) -> bool {
        self.pairs().journal.is_some() || self.pairs().notes.is_some()
    }

    /// Has the keys of changes noted from now on: its owner keeps the pairs elsewhere as well, and this partition is a
    /// cache of them. CAS numbers begin after `last_cas`.
    pub fn begin_notes(&mut self, last_cas: u64) {
        self.pairs_mut().notes = Some(Vec::new());
        self.writer.next_cas = last_cas;
    }

    /// The keys of the changes since the last call, in order.
    pub fn take_notes(&mut self) -> Vec<(KeyHash, Box<[u8]>)> {
        self.pairs_mut().notes.as_mut().map_or_else(Vec::new, std::mem::take)
    }

    /// The last CAS number given.
    #[must_use]
    pub fn last_cas(&self) -> u64 {
        self.writer.next_cas
    }

    /// Puts a pair that was kept elsewhere into memory, with the CAS number and marks that it has. Returns whether there
    /// is memory for it. Nothing is noted.
    pub fn restore(
        &mut self,
        (hash, key): (KeyHash, &[u8]),
        value: &[u8],
        attributes: Attributes,
        (cas, marks): (u64, Marks),
    ) -> bool {
        let (notes, last_cas) = (self.pairs_mut().notes.take(), self.writer.next_cas);
        let found = self.find(hash, key);
        let is_stored = self.writer.put_item(hash, key, value, attributes, found) == Stored::Done;
        if is_stored {
            self.set_cas(hash, key, cas);
            self.set_marks(hash, key, marks);
        }
        self.writer.next_cas = last_cas;
        self.pairs_mut().notes = notes;
        is_stored
    }

    /// The change that an answer about a key must wait for, if any.
    #[must_use]
    pub fn awaited(&self, hash: KeyHash) -> Option<u64> {
        self.pairs().journal.as_ref()?.awaited(hash)
    }

    /// Whether the value of a key is only in the log, or lost. It must be fetched before it can be used.
    #[must_use]
    pub fn is_stub(&self, hash: KeyHash, key: &[u8]) -> bool {
        self.pairs().stub(hash, key).is_some() || self.is_hidden(hash, key)
    }

    /// Counts a command that needs the value of a key, of a partition with a log, by where the value is.
    pub fn count_need(&mut self, hash: KeyHash, key: &[u8]) {
        if self.is_stub(hash, key) {
            self.pairs_mut().counters.log_hit_count += 1;
        } else {
            self.count_need_of_memory(hash, key);
        }
    }

    /// As [`count_need`](Self::count_need), of a key whose value is not only in the log.
    pub fn count_need_of_memory(&mut self, hash: KeyHash, key: &[u8]) {
        let is_present = self.pairs().locate(hash, key).is_some();
        let counters = &mut self.pairs_mut().counters;
        counters.memory_hit_count += u64::from(is_present);
        counters.log_miss_count += u64::from(!is_present);
    }

    /// Whether nothing is known of a key, and its only record may be damaged.
    pub(crate) fn is_hidden(&self, hash: KeyHash, key: &[u8]) -> bool {
        let is_hidden = self.pairs().journal.as_ref().is_some_and(|journal| journal.is_hidden(key));
        is_hidden && self.pairs().locate(hash, key).is_none()
    }

    /// Whether there is memory for values of `bytes`, if necessary by dropping values that are in the log: but not the
    /// value of `needed`, which may have been fetched for the command that brings the others. If not, there will be
    /// once more has been written.
    pub fn has_room(&mut self, bytes: usize, needed: Option<&[u8]>) -> bool {
        if self.writer.allocator.has_free(bytes) {
            return true;
        }
        let pin = needed.and_then(|key| {
            let hash = self.hash(key);
            let place = self.pairs().locate(hash, key).filter(|_| !self.is_stub(hash, key))?;
            self.pairs_mut().heap.pin(place)
        });
        let has_room = self.writer.allocator.has_room(bytes);
        if let Some(pin) = pin {
            self.pairs_mut().heap.unpin(pin);
        }
        has_room
    }
}

#[cfg(test)]
impl Processor {
    /// Sets the time by which pairs expire, in seconds of the partition's clock.
    pub(crate) fn set_now(&mut self, now_s: u32) {
        self.pairs_mut().clock.now_s = now_s.max(1);
    }

    /// Checks the consistency of the table.
    pub(crate) fn assert_index(&self) {
        let pairs = self.pairs();
        pairs.table.assert_index(&pairs.heap, pairs.counters.pair_count);
    }
}
