//! The processor: one partition of the key space, owned by one reactor, without locks.
//!
//! ```text
//! hash ─▶ bucket (one line) ─▶ inline pair                            1 line
//!               │    └───────▶ item's line ─▶ chunks, extents         1 more, or as many as the value has
//!               └─ overflow ─▶ line of the group
//! ```
//!
//! [`find`](Processor::find) gives a [`Place`], good until the next call that stores, removes or makes room;
//! everything that reads or changes a value starts from one.

mod chain;
mod change;
mod list;
mod resize;
mod store;

use std::collections::HashMap;
use std::io;
use std::sync::Arc;

use rapidhash::v3::{RapidSecrets, rapidhash_v3_micro_inline};
use reactor::CHUNK_BYTES;

use self::chain::{shared_line, slot};
use crate::bucket::{Bucket, BucketMut, Kind, shared_tag};
use crate::chunked::Chunked;
use crate::clock::Clock;
use crate::counters::Counters;
use crate::durable::Durable;
use crate::evict::Hands;
use crate::index::{GROUP_LINES, Index};
use crate::item::{
    AWAY, BITS_AT, EXPIRY_AT, FETCHED, HEADER_BYTES, Header, KEY_BYTES_AT, LARGE, STALE, USES, USES_MAX,
    WIDE, WON,
};
use crate::kept::Returned;
use crate::key::KeyHash;
use crate::memory::Memory;
use crate::pair::{Attributes, Marks};
use crate::pins::Pins;
use crate::place::{Home, Place};
use crate::regions::{Class, REGION_BYTES, REGION_LINES, Regions};
use crate::settings::Settings;
use crate::value::Value;

/// Lines for what overflows, and lines being moved, that there is room for from the start. More are needed if
/// the index could not grow for long.
const SPARE_COUNT: usize = 32;
const MOVING_COUNT: usize = 8;

/// One partition of the key space.
pub struct Processor {
    pub(crate) memory: Memory,
    pub(crate) regions: Regions,
    pub(crate) chunked: Chunked,
    pub(crate) settings: Settings,
    pub(crate) counters: Counters,
    pub(crate) clock: Clock,
    pub(crate) hands: Hands,
    index: Index,
    secrets: RapidSecrets,
    pub(crate) next_cas: u64,
    /// Lines for what overflows next.
    spare: Vec<u32>,
    /// What a resize is moving: empty but then.
    moving: Vec<[u8; reactor::LINE_BYTES]>,
    pins: HashMap<u32, Pins>,
    pub(crate) returned: Arc<Returned>,
    pending_count: usize,
    /// What a log has to know, if there is one.
    pub(crate) durable: Option<Box<Durable>>,
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
        let mut regions = Regions::new(region_count);
        let first_line = regions.take_index().expect("all regions are free");
        Ok(Self {
            memory: Memory::new(line_count)?,
            regions,
            index: Index::new(first_line, region_count),
            chunked: Chunked::new(region_count)?,
            counters: Counters::default(),
            clock: Clock::at(0),
            hands: Hands::default(),
            secrets: RapidSecrets::seed(settings.seed),
            settings,
            next_cas: 1,
            spare: Vec::with_capacity(SPARE_COUNT),
            moving: Vec::with_capacity(MOVING_COUNT),
            pins: HashMap::new(),
            returned: Arc::default(),
            pending_count: 0,
            durable: None,
        })
    }

    /// What it holds and has done.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// How it was made.
    #[must_use]
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Memory in use: the regions that are not free, and what there is to know of all of them.
    #[must_use]
    pub fn used_bytes(&self) -> usize {
        let regions = self.regions.count() - self.regions.free_count() - self.chunked.free_regions();
        regions * REGION_BYTES + self.regions.count() * (Regions::RECORD_BYTES + Index::RECORD_BYTES)
    }

    /// Bytes of buckets, blocks, extents and chunks in use.
    #[must_use]
    pub fn taken_bytes(&self) -> usize {
        self.index_bytes() + self.regions.taken_lines() * reactor::LINE_BYTES + self.chunked.taken_bytes()
    }

    /// Bytes of the buckets, with what they share for what overflows.
    #[must_use]
    pub fn index_bytes(&self) -> usize {
        self.index.group_count() as usize * GROUP_LINES as usize * reactor::LINE_BYTES
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
        self.memory.touches()
    }

    /// Pairs that are gone though nobody removed them: as long as it is the same, look-ups have changed nothing in the index.
    #[inline]
    pub fn removed_count(&self) -> u64 {
        self.counters.expired_count + self.counters.evicted_count
    }

    /// The time by which pairs expire.
    #[inline]
    #[must_use]
    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    /// Sets the time by which pairs expire, in seconds of the partition.
    #[cfg(test)]
    pub(crate) fn set_now(&mut self, now_s: u32) {
        self.clock.now_s = now_s.max(1);
    }

    /// The second of the partition that it is.
    #[inline]
    #[must_use]
    pub fn now_s(&self) -> u32 {
        self.clock.now_s
    }

    /// The hash of a key. All partitions with one seed agree on it.
    #[inline]
    #[must_use]
    pub fn hash(&self, key: &[u8]) -> KeyHash {
        KeyHash(rapidhash_v3_micro_inline::<true, false>(key, &self.secrets))
    }

    /// The line of the bucket of a key.
    #[inline(always)]
    pub(crate) fn home(&self, hash: KeyHash) -> u32 {
        self.index.home((hash.0 >> 32) as u32)
    }

    /// A key will be looked up: has its bucket fetched.
    #[inline]
    pub fn prefetch(&self, hash: KeyHash) {
        self.prefetch_home(hash);
    }

    /// As [`prefetch`](Self::prefetch); says where the bucket is.
    #[inline]
    pub fn prefetch_home(&self, hash: KeyHash) -> Home {
        let home = self.home(hash);
        self.memory.prefetch(home);
        Home(home)
    }

    /// A key will be looked up and its bucket is there by now: has its item fetched, if it has one.
    #[inline]
    pub fn prefetch_item(&self, hash: KeyHash) {
        self.prefetch_item_of(hash, Home(self.home(hash)));
    }

    /// As [`prefetch_item`](Self::prefetch_item), with the bucket known. If that has moved meanwhile, nothing comes of it. Says where the pair is,
    /// if it is there and the first with its tag.
    #[inline(always)]
    pub fn prefetch_item_of(&self, hash: KeyHash, Home(home): Home) -> Option<Place> {
        let bucket = Bucket(self.memory.peek(home));
        let Some(cell) = bucket.matches(hash.tag()).next() else {
            if bucket.overflows() {
                self.memory.prefetch(shared_line(home));
            }
            return None;
        };
        if bucket.kind(cell) != Kind::Item {
            return Some(Place::new(home, cell, None));
        }
        let line = bucket.cell(cell);
        self.memory.prefetch(line);
        Some(Place::new(home, cell, Some(line)))
    }

    /// Notes that the pair of a key is read, and gives its flags and its value, if it is where [`prefetch_item_of`](Self::prefetch_item_of) has said, and nothing
    /// was removed since. `None`, and nothing is noted, if it is not, has expired, is in parts, or its flags are long.
    #[inline(always)]
    pub fn read_ahead(&mut self, place: Place, key: &[u8]) -> Option<(u32, &[u8])> {
        self.memory.begin_operation();
        let Some(line) = place.item() else {
            let (own, value) = Bucket(self.memory.line(place.node())).inline(place.cell());
            return (own == key).then_some((0, value));
        };
        let header = Header::decode(self.memory.line(line));
        if usize::from(header.key_bytes) != key.len()
            || header.bits & (LARGE | WIDE) != 0
            || self.is_expired(&header)
            || !is_equal(self.memory.bytes(line, HEADER_BYTES, key.len()), key)
        {
            return None;
        }
        if header.bits & USES < USES_MAX || header.bits & FETCHED == 0 {
            self.touch(place);
        }
        let value = self.memory.bytes(line, HEADER_BYTES + key.len(), header.value_bytes.into());
        Some((header.flags.into(), value))
    }

    /// Looks a key up. Pairs that have expired are not found, and are gone then.
    #[inline(always)]
    pub fn find(&mut self, hash: KeyHash, key: &[u8]) -> Option<Place> {
        self.memory.begin_operation();
        self.find_again(hash, key)
    }

    #[inline(always)]
    pub(crate) fn find_again(&mut self, hash: KeyHash, key: &[u8]) -> Option<Place> {
        let place = self.locate(hash, key)?;
        if let Some(line) = place.item() {
            let expiry = self.memory.bytes(line, EXPIRY_AT, 4);
            let expiry_s = u32::from_le_bytes(expiry.try_into().expect("four bytes"));
            if expiry_s != 0 && expiry_s <= self.clock.now_s {
                self.counters.expired_count += 1;
                self.unlink(hash, place);
                return None;
            }
        }
        Some(place)
    }

    #[inline]
    pub(crate) fn is_expired(&self, header: &Header) -> bool {
        header.expiry != 0 && header.expiry <= self.clock.now_s
    }

    #[inline]
    pub(crate) fn header(&self, line: u32) -> Header {
        Header::decode(self.memory.bytes(line, 0, HEADER_BYTES))
    }

    #[inline(always)]
    pub(crate) fn locate(&self, hash: KeyHash, key: &[u8]) -> Option<Place> {
        let home = self.home(hash);
        let bucket = Bucket(self.memory.line(home));
        let place = self.locate_in(home, bucket, hash.tag(), key);
        if place.is_none() && bucket.overflows() { self.locate_beyond(home, hash, key) } else { place }
    }

    #[inline(always)]
    fn locate_in(&self, node: u32, bucket: Bucket<'_>, tag: u8, key: &[u8]) -> Option<Place> {
        for cell in bucket.matches(tag) {
            let (is_it, item) = if bucket.kind(cell) == Kind::Item {
                let line = bucket.cell(cell);
                (self.item_has_key(line, key), Some(line))
            } else {
                (bucket.inline(cell).0 == key, None)
            };
            if is_it {
                return Some(Place::new(node, cell, item));
            }
        }
        None
    }

    /// Looks for a key among what overflows from its bucket.
    #[cold]
    fn locate_beyond(&self, home: u32, hash: KeyHash, key: &[u8]) -> Option<Place> {
        let tag = shared_tag(slot(home), hash.tag());
        let mut node = shared_line(home);
        loop {
            let bucket = Bucket(self.memory.line(node));
            if let Some(place) = self.locate_in(node, bucket, tag, key) {
                return Some(place);
            }
            node = bucket.next()?;
        }
    }

    #[inline]
    fn item_has_key(&self, line: u32, key: &[u8]) -> bool {
        let bits = self.memory.bytes(line, KEY_BYTES_AT, 2);
        if usize::from(bits[0]) != key.len() {
            return false;
        }
        let at =
            if bits[1] & (LARGE | WIDE) == 0 { HEADER_BYTES } else { self.key_at(line, self.header(line)) };
        is_equal(self.memory.bytes(line, at, key.len()), key)
    }

    #[inline]
    pub(crate) fn key_at(&self, line: u32, header: Header) -> usize {
        let list_count = if header.bits & LARGE == 0 { 0 } else { self.list_count(line, header) };
        header.key_at(list_count)
    }

    /// Bytes of the value of an item with a list, and how long that is.
    #[cold]
    pub(crate) fn large(&self, line: u32, header: Header) -> (usize, usize) {
        let at = HEADER_BYTES + if header.bits & WIDE == 0 { 0 } else { 4 };
        let bytes = self.memory.bytes(line, at, 8);
        let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes")) as usize;
        (word(0), word(4) & !(AWAY as usize))
    }

    /// Whether an item is a stub: its value is in the log only.
    #[inline]
    pub(crate) fn is_stub(&self, line: u32, header: Header) -> bool {
        header.bits & LARGE != 0 && self.has_stub_mark(line, header)
    }

    #[cold]
    fn has_stub_mark(&self, line: u32, header: Header) -> bool {
        let at = HEADER_BYTES + if header.bits & WIDE == 0 { 4 } else { 8 };
        self.memory.bytes(line, at + 3, 1)[0] & 0x80 != 0
    }

    fn list_count(&self, line: u32, header: Header) -> usize {
        self.large(line, header).1
    }

    /// Notes that a pair is read: it stays longer.
    #[inline]
    pub fn touch(&mut self, place: Place) {
        let Some(line) = place.item() else { return };
        let bits = self.memory.bytes(line, BITS_AT, 1)[0];
        if bits & USES < USES_MAX || bits & FETCHED == 0 {
            let uses = (bits & USES).saturating_add(1).min(USES_MAX);
            self.memory.bytes_mut(line, BITS_AT, 1)[0] = bits & !USES | FETCHED | uses;
        }
    }

    /// Notes that a pair is read, and gives its flags and its value. `None`, and nothing is noted, if that is in parts or the flags are long.
    #[inline(always)]
    pub fn read_whole(&mut self, place: Place) -> Option<(u32, &[u8])> {
        let Some(line) = place.item() else { return Some((0, self.value(place).head())) };
        let header = self.header(line);
        if header.bits & (LARGE | WIDE) != 0 {
            return None;
        }
        if header.bits & USES < USES_MAX || header.bits & FETCHED == 0 {
            self.touch(place);
        }
        let at = HEADER_BYTES + usize::from(header.key_bytes);
        Some((header.flags.into(), self.memory.bytes(line, at, header.value_bytes.into())))
    }

    /// The value at a place.
    #[inline]
    #[must_use]
    pub fn value(&self, place: Place) -> Value<'_> {
        match place.item() {
            None => {
                let bucket = Bucket(self.memory.line(place.node()));
                Value::whole(bucket.inline(place.cell()).1)
            }
            Some(line) => self.item_value(line),
        }
    }

    /// Bytes of the value at a place, wherever the value is.
    #[inline]
    #[must_use]
    pub fn value_bytes(&self, place: Place) -> usize {
        match place.item() {
            None => self.value(place).len(),
            Some(line) => {
                let header = self.header(line);
                if header.bits & LARGE == 0 { header.value_bytes.into() } else { self.large(line, header).0 }
            }
        }
    }

    #[inline]
    pub(crate) fn item_value(&self, line: u32) -> Value<'_> {
        let header = self.header(line);
        if header.bits & LARGE == 0 {
            let at = header.key_at(0) + usize::from(header.key_bytes);
            return Value::whole(self.memory.bytes(line, at, header.value_bytes.into()));
        }
        if self.has_stub_mark(line, header) {
            debug_assert!(false, "the value is to be fetched first");
            return Value::whole(&[]);
        }
        let (length, list_count) = self.large(line, header);
        let chunks = self.chunks_of(line, header).map_or(&[][..], |chunks| chunks);
        let table_at = HEADER_BYTES + if header.bits & WIDE == 0 { 8 } else { 12 };
        let (table_at, extent_count) =
            if chunks.is_empty() { (table_at, list_count) } else { (table_at + 4, list_count - 1) };
        let tail_at = header.key_at(list_count) + usize::from(header.key_bytes);
        let tail_bytes = (length - chunks.len() * CHUNK_BYTES).saturating_sub(extent_count * REGION_BYTES);
        Value::parted(
            self,
            chunks,
            self.memory.bytes(line, table_at, 4 * extent_count),
            self.memory.bytes(line, tail_at, tail_bytes),
            length,
        )
    }

    pub(crate) fn extent(&self, region: u32) -> &[u8] {
        self.memory.bytes(self.regions.first_line(region), 0, REGION_BYTES)
    }

    /// What the pair has beside key and value.
    #[inline]
    #[must_use]
    pub fn attributes(&self, place: Place) -> Attributes {
        let Some(line) = place.item() else { return Attributes::default() };
        let header = self.header(line);
        let mut flags = u32::from(header.flags);
        if header.bits & WIDE != 0 {
            let bytes = self.memory.bytes(line, HEADER_BYTES, 4);
            flags = u32::from_le_bytes(bytes.try_into().expect("four bytes"));
        }
        Attributes { flags, expiry_s: header.expiry }
    }

    /// The marks of the pair. Those in the index carry none.
    #[must_use]
    pub fn marks(&self, place: Place) -> Marks {
        let bits = place.item().map_or(0, |line| self.memory.bytes(line, BITS_AT, 1)[0]);
        Marks { is_fetched: bits & FETCHED != 0, is_stale: bits & STALE != 0, is_won: bits & WON != 0 }
    }

    /// Sets the marks of a pair; one in the index leaves it for that. Says whether there was memory for it.
    pub fn set_marks(&mut self, hash: KeyHash, key: &[u8], marks: Marks) -> bool {
        let place = self.find_again(hash, key).and_then(|place| self.take_out(hash, key, place));
        let Some(line) = place.and_then(Place::item) else { return false };
        let bits = &mut self.memory.bytes_mut(line, BITS_AT, 1)[0];
        *bits &= !(FETCHED | STALE | WON);
        for (is_set, bit) in [(marks.is_fetched, FETCHED), (marks.is_stale, STALE), (marks.is_won, WON)] {
            *bits |= if is_set { bit } else { 0 };
        }
        self.note_item(hash, key, line);
        true
    }

    /// The number of this very value: another is stored under another one. A pair in the index has none until
    /// somebody asks, and leaves the index for it. `None` if there is no memory for that.
    pub fn cas(&mut self, hash: KeyHash, key: &[u8]) -> Option<u64> {
        let place = self.find_again(hash, key)?;
        let place = self.take_out(hash, key, place)?;
        Some(self.header(place.item()?).cas)
    }

    /// Gives the value this number, as caches that copy from one another do.
    pub fn set_cas(&mut self, hash: KeyHash, key: &[u8], cas: u64) {
        let place = self.find_again(hash, key).and_then(|place| self.take_out(hash, key, place));
        if let Some(line) = place.and_then(Place::item) {
            let header = Header { cas, ..self.header(line) };
            self.memory.bytes_mut(line, 0, HEADER_BYTES).copy_from_slice(&header.encode());
            self.note_item(hash, key, line);
        }
    }

    /// A number that no value has had, for the value there is; `None` if there is none.
    pub fn next_cas(&mut self, hash: KeyHash, key: &[u8]) -> Option<u64> {
        self.find_again(hash, key)?;
        self.next_cas += 1;
        Some(self.next_cas)
    }

    /// Sets when the pair ends. Says whether that could be kept.
    pub fn set_expiry(&mut self, hash: KeyHash, key: &[u8], expiry_s: u32) -> bool {
        let Some(mut place) = self.find_again(hash, key) else { return false };
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
        self.memory.bytes_mut(line, EXPIRY_AT, 4).copy_from_slice(&expiry_s.to_le_bytes());
        self.note_item(hash, key, line);
        true
    }

    /// Bytes of key and value of an item.
    pub(crate) fn pair_bytes(&self, line: u32) -> usize {
        let header = self.header(line);
        let value_bytes = if header.bits & LARGE == 0 {
            usize::from(header.value_bytes)
        } else {
            self.large(line, header).0
        };
        usize::from(header.key_bytes) + value_bytes
    }

    fn count_out(&mut self, place: Place) {
        let bytes = match place.item() {
            Some(line) => {
                self.index.used_cells -= 1;
                self.pair_bytes(line)
            }
            None => {
                self.counters.inline_count -= 1;
                let bucket = Bucket(self.memory.line(place.node()));
                self.index.used_cells -= bucket.width(place.cell()) as u64;
                let (key, value) = bucket.inline(place.cell());
                key.len() + value.len()
            }
        };
        self.counters.pair_count -= 1;
        self.counters.pair_bytes -= bytes as u64;
    }

    /// Removes a pair.
    pub fn delete(&mut self, hash: KeyHash, key: &[u8]) -> bool {
        let Some(place) = self.find(hash, key) else { return false };
        self.remove(hash, place);
        true
    }

    /// Removes the pair at a place.
    pub fn remove(&mut self, hash: KeyHash, place: Place) {
        self.note_removal(hash, place);
        self.unlink(hash, place);
    }

    /// Removes the pair at a place from memory.
    pub(crate) fn unlink(&mut self, hash: KeyHash, place: Place) {
        self.count_out(place);
        BucketMut(self.memory.line_mut(place.node())).clear(place.cell());
        if let Some(line) = place.item() {
            self.free_item(line);
        }
        self.settle(self.home(hash));
    }
}

/// Whether two keys of one length are the same. They are short: no call is worth it.
#[inline(always)]
fn is_equal(one: &[u8], other: &[u8]) -> bool {
    let ((one, one_rest), (other, other_rest)) = (one.as_chunks::<8>(), other.as_chunks::<8>());
    let word = |eight: &[u8; 8]| u64::from_le_bytes(*eight);
    let are_equal = one.iter().zip(other).all(|(one, other)| word(one) == word(other));
    are_equal && one_rest.iter().zip(other_rest).all(|(one, other)| one == other)
}
