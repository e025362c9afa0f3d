//! The processor: one partition of the key space, owned by one reactor, without locks.
//!
//! ```text
//! hash ─▶ bucket (one line) ─▶ inline pair                            1 line
//!               │    └───────▶ item's line ─▶ chunks, extents         1 more, or as many as the value has
//!               └─ overflow ─▶ line of the group
//! ```
//!
//! Its parts, each importing only those below it:
//!
//! ```text
//! processor           stores, changes
//!  ├─ evictor         makes room: a clock hand per block class
//!  └─ pairs           finds, removes
//!      ├─ table       entries of keys: index, buckets, overflow lines
//!      ├─ journal     changes that the log must write
//!      └─ heap        items: lines, regions, chunks, pins
//! ```
//!
//! [`find`](Processor::find) returns a [`Place`], valid until the next call that stores, removes or makes room;
//! everything that reads or changes a value starts from one.

mod change;
mod large;
mod room;
mod store;
mod stubs;

use std::io;

use reactor::{Chunk, Untouched};

use crate::bucket::Bucket;
use crate::chunked::ChunkList;
use crate::clock::Clock;
use crate::counters::Counters;
use crate::eviction::Evictor;
use crate::heap::{Heap, is_equal};
use crate::index::{GROUP_LINES, Index};
use crate::item::{
    BITS_AT, EXPIRY_AT, FETCHED, HEADER_BYTES, Header, LARGE, STALE, USES, USES_MAX, WIDE, WON,
};
use crate::kept::Kept;
use crate::key::{KeyHash, KeyHasher};
use crate::pair::{Attributes, Marks};
use crate::pairs::Pairs;
use crate::pending::Pending;
use crate::pins::Pin;
use crate::place::{Home, Place};
use crate::regions::{Class, REGION_BYTES, REGION_LINES, Regions};
use crate::settings::Settings;
use crate::table::Table;
use crate::value::Value;

/// One partition of the key space.
pub struct Processor {
    pub(crate) pairs: Pairs,
    evictor: Evictor,
    settings: Settings,
    pub(crate) next_cas: u64,
}

impl Processor {
    /// An empty partition.
    ///
    /// # Errors
    /// The system's error when it refuses the memory.
    pub fn new(settings: Settings) -> io::Result<Self> {
        let memory_bytes = settings.memory_bytes.max(Settings::MEMORY_BYTES_MIN);
        let region_count = memory_bytes / (REGION_BYTES + Regions::RECORD_BYTES + Index::RECORD_BYTES);
        let line_count = region_count * REGION_LINES;
        if line_count > u32::MAX as usize {
            let message = "a partition has at most 256 GiB: use more reactors";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        }
        let mut heap = Heap::new(region_count)?;
        let first_line = heap.regions.take_index().expect("all regions are free");
        let table = Table::new(Index::new(first_line, region_count), KeyHasher::new(settings.seed));
        let (counters, clock) = (Counters::default(), Clock::at(0));
        Ok(Self {
            pairs: Pairs { heap, table, counters, clock, journal: None },
            evictor: Evictor::new(settings.eviction),
            settings,
            next_cas: 1,
        })
    }

    /// Pairs held and work done.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.pairs.counters
    }

    /// Its settings.
    #[must_use]
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Memory in use, bytes: regions that are not free, and the records of all regions.
    #[must_use]
    pub fn used_bytes(&self) -> usize {
        let regions = self.pairs.heap.regions.count()
            - self.pairs.heap.regions.free_count()
            - self.pairs.heap.chunked.free_regions();
        regions * REGION_BYTES
            + self.pairs.heap.regions.count() * (Regions::RECORD_BYTES + Index::RECORD_BYTES)
    }

    /// Bytes of buckets, blocks, extents and chunks in use.
    #[must_use]
    pub fn taken_bytes(&self) -> usize {
        self.index_bytes()
            + self.pairs.heap.regions.taken_lines() * reactor::LINE_BYTES
            + self.pairs.heap.chunked.taken_bytes()
    }

    /// Bytes of the buckets and their groups' overflow lines.
    #[must_use]
    pub fn index_bytes(&self) -> usize {
        self.pairs.table.index.group_count() as usize * GROUP_LINES as usize * reactor::LINE_BYTES
    }

    /// The number of the block class for items of `item_bytes`; `None` if they are too large for a block.
    #[must_use]
    pub fn class_number(item_bytes: usize) -> Option<usize> {
        Class::of(item_bytes.min(REGION_BYTES)).map(Class::number)
    }

    /// Lines touched by operations so far.
    #[cfg(any(test, feature = "count-touches"))]
    #[must_use]
    pub fn touches(&self) -> crate::memory::Touches {
        self.pairs.heap.memory.touches()
    }

    /// Pairs removed by expiry or eviction. While it is unchanged, look-ups have changed nothing in the index.
    #[inline]
    pub fn removed_count(&self) -> u64 {
        self.pairs.counters.expired_count + self.pairs.counters.evicted_count
    }

    /// The clock by which pairs expire.
    #[inline]
    #[must_use]
    pub fn clock(&self) -> &Clock {
        &self.pairs.clock
    }

    /// Sets the time by which pairs expire, in seconds of the partition's clock.
    #[cfg(test)]
    pub(crate) fn set_now(&mut self, now_s: u32) {
        self.pairs.clock.now_s = now_s.max(1);
    }

    /// The current second of the partition's clock.
    #[inline]
    #[must_use]
    pub fn now_s(&self) -> u32 {
        self.pairs.clock.now_s
    }

    /// The hash of a key. All partitions with one seed agree on it.
    #[inline]
    #[must_use]
    pub fn hash(&self, key: &[u8]) -> KeyHash {
        self.pairs.table.hasher.hash(key)
    }

    /// Prefetches the bucket of a key that will be looked up.
    #[inline]
    pub fn prefetch(&self, hash: KeyHash) {
        self.prefetch_home(hash);
    }

    /// As [`prefetch`](Self::prefetch); returns the bucket's position.
    #[inline]
    pub fn prefetch_home(&self, hash: KeyHash) -> Home {
        let home = self.pairs.table.home(hash);
        self.pairs.heap.memory.prefetch(home);
        Home(home)
    }

    /// Prefetches the item of a key whose bucket has been prefetched, if it has an item.
    #[inline]
    pub fn prefetch_item(&self, hash: KeyHash) {
        self.prefetch_item_of(hash, Home(self.pairs.table.home(hash)));
    }

    /// Marks the pair of a key as read and returns its flags and value, if it is still where
    /// [`prefetch_item_of`](Self::prefetch_item_of) found it and nothing was removed since. Otherwise, and if it has
    /// expired, is in parts or has long flags, returns `None` and marks nothing.
    #[inline(always)]
    pub fn read_ahead(&mut self, place: Place, key: &[u8]) -> Option<(u32, &[u8])> {
        self.pairs.heap.memory.begin_operation();
        let Some(line) = place.item() else {
            let (own, value) = Bucket(self.pairs.heap.memory.line(place.node())).inline(place.cell());
            return (own == key).then_some((0, value));
        };
        let header = Header::decode(self.pairs.heap.memory.line(line));
        if usize::from(header.key_bytes) != key.len()
            || header.bits & (LARGE | WIDE) != 0
            || self.pairs.is_expired(&header)
            || !is_equal(self.pairs.heap.memory.bytes(line, HEADER_BYTES, key.len()), key)
        {
            return None;
        }
        if header.bits & USES < USES_MAX || header.bits & FETCHED == 0 {
            self.pairs.heap.touch(place);
        }
        let value = self.pairs.heap.memory.bytes(line, HEADER_BYTES + key.len(), header.value_bytes.into());
        Some((header.flags.into(), value))
    }

    /// Looks a key up. Expired pairs are removed and not found.
    #[inline(always)]
    pub fn find(&mut self, hash: KeyHash, key: &[u8]) -> Option<Place> {
        self.pairs.heap.memory.begin_operation();
        self.pairs.find_again(hash, key)
    }

    /// Marks a pair as read and returns its flags and value. If the value is in parts or the flags are long, returns
    /// `None` and marks nothing.
    #[inline(always)]
    pub fn read_whole(&mut self, place: Place) -> Option<(u32, &[u8])> {
        let Some(line) = place.item() else { return Some((0, self.pairs.heap.value(place).head())) };
        let header = self.pairs.heap.header(line);
        if header.bits & (LARGE | WIDE) != 0 {
            return None;
        }
        if header.bits & USES < USES_MAX || header.bits & FETCHED == 0 {
            self.pairs.heap.touch(place);
        }
        let at = HEADER_BYTES + usize::from(header.key_bytes);
        Some((header.flags.into(), self.pairs.heap.memory.bytes(line, at, header.value_bytes.into())))
    }

    /// Sets the marks of a pair, moving it out of the index if necessary. Returns `false` if there was no memory for
    /// that.
    pub fn set_marks(&mut self, hash: KeyHash, key: &[u8], marks: Marks) -> bool {
        let place = self.pairs.find_again(hash, key).and_then(|place| self.take_out(hash, key, place));
        let Some(line) = place.and_then(Place::item) else { return false };
        let bits = &mut self.pairs.heap.memory.bytes_mut(line, BITS_AT, 1)[0];
        *bits &= !(FETCHED | STALE | WON);
        for (is_set, bit) in [(marks.is_fetched, FETCHED), (marks.is_stale, STALE), (marks.is_won, WON)] {
            *bits |= if is_set { bit } else { 0 };
        }
        self.pairs.note_item(hash, key, line);
        true
    }

    /// The CAS number of the current value; every new value gets another one. A pair in the index has none until it is
    /// requested, and then moves out of the index. `None` if there is no memory for that.
    pub fn cas(&mut self, hash: KeyHash, key: &[u8]) -> Option<u64> {
        let place = self.pairs.find_again(hash, key)?;
        let place = self.take_out(hash, key, place)?;
        Some(self.pairs.heap.header(place.item()?).cas)
    }

    /// Sets the CAS number of the value, as caches that replicate from one another do.
    pub fn set_cas(&mut self, hash: KeyHash, key: &[u8], cas: u64) {
        let place = self.pairs.find_again(hash, key).and_then(|place| self.take_out(hash, key, place));
        if let Some(line) = place.and_then(Place::item) {
            let header = Header { cas, ..self.pairs.heap.header(line) };
            self.pairs.heap.memory.bytes_mut(line, 0, HEADER_BYTES).copy_from_slice(&header.encode());
            self.pairs.note_item(hash, key, line);
        }
    }

    /// Gives the current value a number that no value has had; `None` if there is no value.
    pub fn next_cas(&mut self, hash: KeyHash, key: &[u8]) -> Option<u64> {
        self.pairs.find_again(hash, key)?;
        self.next_cas += 1;
        Some(self.next_cas)
    }

    /// Sets the expiry of the pair. Returns whether it could be recorded.
    pub fn set_expiry(&mut self, hash: KeyHash, key: &[u8], expiry_s: u32) -> bool {
        let Some(mut place) = self.pairs.find_again(hash, key) else { return false };
        if place.item().is_none() {
            if expiry_s == 0 {
                return true;
            }
            match self.take_out(hash, key, place) {
                Some(outside) => place = outside,
                None => return false,
            }
        }
        let line = place.item().expect("taken out of the index");
        self.pairs.heap.memory.bytes_mut(line, EXPIRY_AT, 4).copy_from_slice(&expiry_s.to_le_bytes());
        self.pairs.note_item(hash, key, line);
        true
    }

    /// Removes a pair.
    pub fn delete(&mut self, hash: KeyHash, key: &[u8]) -> bool {
        let Some(place) = self.find(hash, key) else { return false };
        self.remove(hash, place);
        true
    }

    /// Removes the pair at a place.
    pub fn remove(&mut self, hash: KeyHash, place: Place) {
        self.pairs.note_removal(hash, place);
        self.pairs.unlink(hash, place);
    }

    /// Marks a pair as read, which delays its eviction.
    #[inline(always)]
    pub fn touch(&mut self, place: Place) {
        self.pairs.heap.touch(place);
    }

    /// The value at a place.
    #[inline(always)]
    #[must_use]
    pub fn value(&self, place: Place) -> Value<'_> {
        self.pairs.heap.value(place)
    }

    /// Length of the value at a place, wherever it is stored.
    #[inline(always)]
    #[must_use]
    pub fn value_bytes(&self, place: Place) -> usize {
        self.pairs.heap.value_bytes(place)
    }

    /// The whole mebibytes of the value at a place; `None` if it is shorter. The value stays unchanged while they are
    /// held.
    #[inline(always)]
    #[must_use]
    pub fn chunks(&self, place: Place) -> Option<&ChunkList> {
        self.pairs.heap.chunks(place)
    }

    /// Attributes of the pair besides key and value.
    #[inline(always)]
    #[must_use]
    pub fn attributes(&self, place: Place) -> Attributes {
        self.pairs.heap.attributes(place)
    }

    /// The marks of the pair. Pairs in the index have none.
    #[must_use]
    pub fn marks(&self, place: Place) -> Marks {
        self.pairs.heap.marks(place)
    }

    /// The memory for the bytes of a value from `offset` on, as far as it is contiguous.
    pub fn room(&mut self, pending: &Pending, offset: usize) -> &mut [u8] {
        self.pairs.heap.room(pending, offset)
    }

    /// Writes bytes of a value at `offset`.
    pub fn fill(&mut self, pending: &Pending, offset: usize, bytes: &[u8]) {
        self.pairs.heap.fill(pending, offset, bytes);
    }

    /// Keeps the value at a place unchanged while it is sent in pieces. `None` for a pair in the index, which is copied
    /// instead.
    pub fn pin(&mut self, place: Place) -> Option<Pin> {
        self.pairs.heap.pin(place)
    }

    /// A pinned value.
    #[must_use]
    pub fn pinned(&self, pin: &Pin) -> Value<'_> {
        self.pairs.heap.pinned(pin)
    }

    /// Ends a pin. Returns whether that freed memory.
    pub fn unpin(&mut self, pin: Pin) -> bool {
        self.pairs.heap.unpin(pin)
    }

    /// Up to `count` bytes of a kept value from `offset` on. `None` past its end, or if another partition keeps it.
    #[must_use]
    pub fn piece(&mut self, kept: &Kept, offset: usize, count: usize) -> Option<Vec<u8>> {
        self.pairs.heap.piece(kept, offset, count)
    }

    /// Has memory touched before it is needed: passes chunks made in advance to `touch`, which may drop each on any
    /// thread once it is touched, and returns whether it accepts more. Returns the rest of the memory, for the caller
    /// to have touched.
    pub fn touch_ahead(&mut self, touch: impl FnMut(Chunk) -> bool + Send + 'static) -> Untouched {
        self.pairs.heap.touch_ahead(touch)
    }

    /// As [`prefetch_item`](Self::prefetch_item), with the bucket known. Has no effect if the bucket has moved
    /// meanwhile. Returns where the pair is, if it is there and the first with its tag.
    #[inline(always)]
    pub fn prefetch_item_of(&self, hash: KeyHash, home: Home) -> Option<Place> {
        self.pairs.table.prefetch_item_of(&self.pairs.heap, hash, home)
    }

    /// Calls `each` with all keys from `start` on, or from its position if it is absent, until `each` returns `false`.
    /// A caller that continues from the last key of a list sees each key that exists throughout exactly once,
    /// regardless of changes to other keys.
    pub fn list(&self, start: Option<&[u8]>, each: impl FnMut(&[u8]) -> bool) {
        self.pairs.table.list(&self.pairs.heap, &self.pairs.clock, start, each);
    }

    /// Checks the consistency of the table, for tests.
    #[cfg(test)]
    pub(crate) fn assert_index(&self) {
        self.pairs.table.assert_index(&self.pairs.heap, self.pairs.counters.pair_count);
    }
}
