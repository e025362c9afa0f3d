//! The processor: one partition of the key space, owned by one reactor, without locks.
//!
//! ```text
//! hash ─▶ bucket (one line) ─▶ inline pair                            1 line
//!               │    └───────▶ item's line ─▶ chunks, extents         1 more, or as many as the value has
//!               └─ overflow ─▶ line of the group
//! ```
//!
//! What it is composed of, each importing only what stands below it:
//!
//! ```text
//! processor           stores, changes
//!  ├─ evictor         makes room: a hand for each class of blocks
//!  └─ pairs           finds, removes
//!      ├─ table       entries of keys: index, buckets, what overflows from them
//!      ├─ journal     what a log has to write: changes
//!      └─ heap        items: lines, regions, chunks, pins
//! ```
//!
//! [`find`](Processor::find) gives a [`Place`], good until the next call that stores, removes or makes room;
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
    /// A partition with nothing in it.
    ///
    /// # Errors
    /// What the system says when it refuses the memory.
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

    /// What it holds and has done.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.pairs.counters
    }

    /// How it was made.
    #[must_use]
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Memory in use: the regions that are not free, and what there is to know of all of them.
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

    /// Bytes of the buckets, with what they share for what overflows.
    #[must_use]
    pub fn index_bytes(&self) -> usize {
        self.pairs.table.index.group_count() as usize * GROUP_LINES as usize * reactor::LINE_BYTES
    }

    /// The number of the class of blocks that items of so many bytes have; `None` if they have no block of their own.
    #[must_use]
    pub fn class_number(item_bytes: usize) -> Option<usize> {
        Class::of(item_bytes.min(REGION_BYTES)).map(Class::number)
    }

    /// The lines that operations have touched so far.
    #[cfg(any(test, feature = "count-touches"))]
    #[must_use]
    pub fn touches(&self) -> crate::memory::Touches {
        self.pairs.heap.memory.touches()
    }

    /// Pairs that are gone though nobody removed them: as long as it is the same, look-ups have changed nothing in the index.
    #[inline]
    pub fn removed_count(&self) -> u64 {
        self.pairs.counters.expired_count + self.pairs.counters.evicted_count
    }

    /// The time by which pairs expire.
    #[inline]
    #[must_use]
    pub fn clock(&self) -> &Clock {
        &self.pairs.clock
    }

    /// Sets the time by which pairs expire, in seconds of the partition.
    #[cfg(test)]
    pub(crate) fn set_now(&mut self, now_s: u32) {
        self.pairs.clock.now_s = now_s.max(1);
    }

    /// The second of the partition that it is.
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

    /// A key will be looked up: has its bucket fetched.
    #[inline]
    pub fn prefetch(&self, hash: KeyHash) {
        self.prefetch_home(hash);
    }

    /// As [`prefetch`](Self::prefetch); says where the bucket is.
    #[inline]
    pub fn prefetch_home(&self, hash: KeyHash) -> Home {
        let home = self.pairs.table.home(hash);
        self.pairs.heap.memory.prefetch(home);
        Home(home)
    }

    /// A key will be looked up and its bucket is there by now: has its item fetched, if it has one.
    #[inline]
    pub fn prefetch_item(&self, hash: KeyHash) {
        self.prefetch_item_of(hash, Home(self.pairs.table.home(hash)));
    }

    /// Notes that the pair of a key is read, and gives its flags and its value, if it is where [`prefetch_item_of`](Self::prefetch_item_of) has said, and nothing
    /// was removed since. `None`, and nothing is noted, if it is not, has expired, is in parts, or its flags are long.
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

    /// Looks a key up. Pairs that have expired are not found, and are gone then.
    #[inline(always)]
    pub fn find(&mut self, hash: KeyHash, key: &[u8]) -> Option<Place> {
        self.pairs.heap.memory.begin_operation();
        self.pairs.find_again(hash, key)
    }

    /// Notes that a pair is read, and gives its flags and its value. `None`, and nothing is noted, if that is in parts or the flags are long.
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

    /// Sets the marks of a pair; one in the index leaves it for that. Says whether there was memory for it.
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

    /// The number of this very value: another is stored under another one. A pair in the index has none until
    /// somebody asks, and leaves the index for it. `None` if there is no memory for that.
    pub fn cas(&mut self, hash: KeyHash, key: &[u8]) -> Option<u64> {
        let place = self.pairs.find_again(hash, key)?;
        let place = self.take_out(hash, key, place)?;
        Some(self.pairs.heap.header(place.item()?).cas)
    }

    /// Gives the value this number, as caches that copy from one another do.
    pub fn set_cas(&mut self, hash: KeyHash, key: &[u8], cas: u64) {
        let place = self.pairs.find_again(hash, key).and_then(|place| self.take_out(hash, key, place));
        if let Some(line) = place.and_then(Place::item) {
            let header = Header { cas, ..self.pairs.heap.header(line) };
            self.pairs.heap.memory.bytes_mut(line, 0, HEADER_BYTES).copy_from_slice(&header.encode());
            self.pairs.note_item(hash, key, line);
        }
    }

    /// A number that no value has had, for the value there is; `None` if there is none.
    pub fn next_cas(&mut self, hash: KeyHash, key: &[u8]) -> Option<u64> {
        self.pairs.find_again(hash, key)?;
        self.next_cas += 1;
        Some(self.next_cas)
    }

    /// Sets when the pair ends. Says whether that could be kept.
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

    /// Notes that a pair is read: it stays longer.
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

    /// Bytes of the value at a place, wherever the value is.
    #[inline(always)]
    #[must_use]
    pub fn value_bytes(&self, place: Place) -> usize {
        self.pairs.heap.value_bytes(place)
    }

    /// The whole mebibytes of the value at a place; `None` if it is shorter. As long as they are held, so is this value.
    #[inline(always)]
    #[must_use]
    pub fn chunks(&self, place: Place) -> Option<&ChunkList> {
        self.pairs.heap.chunks(place)
    }

    /// What the pair has beside key and value.
    #[inline(always)]
    #[must_use]
    pub fn attributes(&self, place: Place) -> Attributes {
        self.pairs.heap.attributes(place)
    }

    /// The marks of the pair. Those in the index carry none.
    #[must_use]
    pub fn marks(&self, place: Place) -> Marks {
        self.pairs.heap.marks(place)
    }

    /// The room for the bytes of a value from `offset` on, as far as it is contiguous.
    pub fn room(&mut self, pending: &Pending, offset: usize) -> &mut [u8] {
        self.pairs.heap.room(pending, offset)
    }

    /// Puts bytes of a value where they belong.
    pub fn fill(&mut self, pending: &Pending, offset: usize, bytes: &[u8]) {
        self.pairs.heap.fill(pending, offset, bytes);
    }

    /// Keeps the value at a place as it is, to be sent piece by piece. A pair in the index is copied instead: `None`.
    pub fn pin(&mut self, place: Place) -> Option<Pin> {
        self.pairs.heap.pin(place)
    }

    /// A pinned value.
    #[must_use]
    pub fn pinned(&self, pin: &Pin) -> Value<'_> {
        self.pairs.heap.pinned(pin)
    }

    /// Ends a pin. Says whether that has freed memory.
    pub fn unpin(&mut self, pin: Pin) -> bool {
        self.pairs.heap.unpin(pin)
    }

    /// Up to `count` bytes of a kept value from `offset` on. `None` if it is not this partition that keeps it, or it has no more.
    #[must_use]
    pub fn piece(&mut self, kept: &Kept, offset: usize, count: usize) -> Option<Vec<u8>> {
        self.pairs.heap.piece(kept, offset, count)
    }

    /// Has memory touched before it is wanted: chunks are made ahead of those that are taken, and given to `touch`, which drops each when
    /// that is done, on any thread; it says whether it takes more. Gives the rest of the memory back for who touches that.
    pub fn touch_ahead(&mut self, touch: impl FnMut(Chunk) -> bool + Send + 'static) -> Untouched {
        self.pairs.heap.touch_ahead(touch)
    }

    /// As [`prefetch_item`](Self::prefetch_item), with the bucket known. If that has moved meanwhile, nothing comes of it. Says where the pair is,
    /// if it is there and the first with its tag.
    #[inline(always)]
    pub fn prefetch_item_of(&self, hash: KeyHash, home: Home) -> Option<Place> {
        self.pairs.table.prefetch_item_of(&self.pairs.heap, hash, home)
    }

    /// Calls `each` with all keys from `start` on, or from where it would be if it is not there, until `each`
    /// says that it wants no more. Keys that are there all the while are listed once by whoever goes on with
    /// the last key of a list, whatever happens to others in between.
    pub fn list(&self, start: Option<&[u8]>, each: impl FnMut(&[u8]) -> bool) {
        self.pairs.table.list(&self.pairs.heap, &self.pairs.clock, start, each);
    }

    /// Holds the table against itself, for tests.
    #[cfg(test)]
    pub(crate) fn assert_index(&self) {
        self.pairs.table.assert_index(&self.pairs.heap, self.pairs.counters.pair_count);
    }
}
