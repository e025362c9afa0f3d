//! The processor: one partition of the key space, owned by one reactor, without locks.
//!
//! ```text
//! hash ─▶ bucket (one line) ─▶ inline pair                            1 line
//!               │    └───────▶ item's line ─▶ extents of 64 KiB       1 more, or as many as the value has
//!               └─ overflow ─▶ next bucket
//! ```
//!
//! [`find`](Processor::find) gives a [`Place`], good until the next call that stores, removes or makes room;
//! everything that reads or changes a value starts from one.

use std::collections::HashMap;
use std::io;

use rapidhash::v3::{RapidSecrets, rapidhash_v3_micro_inline};

use crate::bucket::{Bucket, BucketMut, Kind, copy_entry, inline_cells};
use crate::evict::Hands;
use crate::item::{
    BITS_AT, EXPIRY_AT, FETCHED, HEADER_BYTES, HELD, Header, KEY_BYTES_AT, LARGE, Layout, STALE, USES, WIDE,
    WON,
};
use crate::memory::Memory;
use crate::regions::{REGION_BYTES, REGION_LINES, Regions, Use};
use crate::value::Value;

/// Longest key, bytes.
pub const KEY_BYTES_MAX: usize = 250;

/// Entries that a bucket has in the mean when memory is full. More saves memory, fewer saves look-ups in the
/// next bucket.
const ENTRIES_PER_BUCKET: f64 = 10.5;

/// What is done when memory is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Eviction {
    /// Nothing new is stored.
    None,
    /// Pairs not used lately make room. A pair used twice since stays for two rounds of the hand, a new one
    /// for none.
    Clock,
}

/// How a partition is to be.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Memory for index, pairs and the records about them.
    pub memory_bytes: usize,
    /// Key and value of the pairs to expect, in the mean: decides the share of the index.
    pub pair_bytes: usize,
    /// The largest pair, key and value, that lies in the index itself.
    pub inline_bytes_max: usize,
    /// What is done when memory is full.
    pub eviction: Eviction,
    /// The longest value.
    pub value_bytes_max: usize,
    /// Where keys go, secret from peers.
    pub seed: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            memory_bytes: 64 << 20,
            pair_bytes: 48,
            inline_bytes_max: 20,
            eviction: Eviction::Clock,
            value_bytes_max: 256 << 20,
            seed: 0,
        }
    }
}

/// The hash of a key: where it is looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyHash(u64);

impl KeyHash {
    /// Which of `count` partitions the key belongs to.
    #[inline]
    #[must_use]
    pub fn partition(self, count: usize) -> usize {
        // Bits that neither bucket nor tag depend on.
        (((self.0 >> 8 & 0xff_ffff) * count as u64) >> 24) as usize
    }

    #[inline]
    fn tag(self) -> u8 {
        self.0 as u8
    }
}

/// Where a pair is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    pub(crate) node: u32,
    pub(crate) cell: u8,
    /// The item's line; `None` if the pair lies in the index.
    pub(crate) item: Option<u32>,
}

/// What a pair has beside key and value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attributes {
    /// The client's.
    pub flags: u32,
    /// The second at which it ends, or 0 if it does not.
    pub expiry_s: u32,
}

/// What memcached's meta commands know of a pair.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Marks {
    /// It was read since it was stored.
    pub is_fetched: bool,
    /// It should be made anew.
    pub is_stale: bool,
    /// Somebody makes it anew.
    pub is_won: bool,
}

/// When a value is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition {
    /// In any case.
    Always,
    /// If there is none.
    Absent,
    /// If there is one.
    Present,
    /// If it is still the one that had this number.
    Unchanged(u64),
}

/// What became of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stored {
    /// It was done.
    Done,
    /// There is a value, or another than was meant.
    Exists,
    /// There is no value.
    NotFound,
    /// Memory is full.
    NoMemory,
    /// The value is longer than values may be.
    TooLarge,
}

/// What a partition holds and has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Pairs, expired ones included until they are met.
    pub pair_count: u64,
    /// Those of them that lie in the index.
    pub inline_count: u64,
    /// Bytes of keys and values.
    pub pair_bytes: u64,
    /// Stores ever.
    pub stored_count: u64,
    /// Pairs that made room for others.
    pub evicted_count: u64,
    /// Pairs evicted that nobody had read.
    pub evicted_unread_count: u64,
    /// Pairs that ended by their expiry.
    pub expired_count: u64,
    /// Items moved so that a region became free.
    pub moved_count: u64,
    /// Regions emptied by eviction or moving.
    pub reclaimed_count: u64,
}

/// A value on its way in: it has its memory, and is no one's yet.
#[derive(Debug)]
pub struct Pending {
    pub(crate) line: u32,
    pub(crate) layout: Layout,
    value_bytes: usize,
}

impl Pending {
    /// Bytes of the value.
    #[must_use]
    pub fn len(&self) -> usize {
        self.value_bytes
    }

    /// Whether the value has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.value_bytes == 0
    }
}

/// A value that stays as it is until it is unpinned, whatever becomes of its key.
#[derive(Debug)]
pub struct Pin {
    line: u32,
}

struct Pins {
    count: u32,
    /// The pair is no longer in the index.
    is_detached: bool,
}

/// One partition of the key space.
pub struct Processor {
    pub(crate) memory: Memory,
    pub(crate) regions: Regions,
    pub(crate) settings: Settings,
    pub(crate) counters: Counters,
    pub(crate) now_s: u32,
    pub(crate) hands: Hands,
    /// Grows whenever making room has taken entries away or moved them.
    pub(crate) change_count: u64,
    bucket_count: u32,
    secrets: RapidSecrets,
    next_cas: u64,
    /// Lines for the next buckets that overflow.
    spare: Vec<u32>,
    pins: HashMap<u32, Pins>,
    pending_count: usize,
}

impl Processor {
    /// A partition with nothing in it.
    ///
    /// # Errors
    /// What the system says when it refuses the memory.
    pub fn new(settings: Settings) -> io::Result<Self> {
        let memory_bytes = settings.memory_bytes.max(4 * REGION_BYTES);
        let bucket_count = bucket_count(&settings, memory_bytes);
        let heap_bytes = memory_bytes.saturating_sub(bucket_count as usize * reactor::LINE_BYTES);
        let region_count = (heap_bytes / (REGION_BYTES + Regions::RECORD_BYTES)).max(2);
        let line_count = bucket_count as usize + region_count * REGION_LINES;
        if line_count > u32::MAX as usize {
            let message = "a partition has at most 256 GiB: use more reactors";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        }
        Ok(Self {
            memory: Memory::new(line_count)?,
            regions: Regions::new(bucket_count, region_count),
            counters: Counters::default(),
            now_s: 1,
            hands: Hands::default(),
            change_count: 0,
            bucket_count,
            secrets: RapidSecrets::seed(settings.seed),
            settings,
            next_cas: 1,
            spare: Vec::with_capacity(2),
            pins: HashMap::new(),
            pending_count: 0,
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

    /// Memory in use: the index, and the regions that are not free.
    #[must_use]
    pub fn used_bytes(&self) -> usize {
        let regions = self.regions.count() - self.regions.free_count();
        self.bucket_count as usize * reactor::LINE_BYTES
            + regions * REGION_BYTES
            + self.regions.count() * Regions::RECORD_BYTES
    }

    /// Bytes of blocks, extents and buckets in use, and of the index.
    #[must_use]
    pub fn taken_bytes(&self) -> usize {
        (self.bucket_count as usize + self.regions.taken_lines()) * reactor::LINE_BYTES
    }

    /// Bytes of the buckets that each key has one of.
    #[must_use]
    pub fn index_bytes(&self) -> usize {
        self.bucket_count as usize * reactor::LINE_BYTES
    }

    /// The lines that operations have touched so far.
    #[cfg(any(test, feature = "count-touches"))]
    #[must_use]
    pub fn touches(&self) -> crate::memory::Touches {
        self.memory.touches()
    }

    /// Sets the time by which pairs expire. Seconds from a moment of the caller's choice, not 0.
    pub fn set_now(&mut self, now_s: u32) {
        self.now_s = now_s.max(1);
    }

    /// Seconds as set last.
    #[must_use]
    pub fn now_s(&self) -> u32 {
        self.now_s
    }

    /// The hash of a key. All partitions with one seed agree on it.
    #[inline]
    #[must_use]
    pub fn hash(&self, key: &[u8]) -> KeyHash {
        KeyHash(rapidhash_v3_micro_inline::<true, false>(key, &self.secrets))
    }

    #[inline]
    pub(crate) fn bucket_of(&self, hash: KeyHash) -> u32 {
        (((hash.0 >> 32) * u64::from(self.bucket_count)) >> 32) as u32
    }

    /// A key will be looked up: has its bucket fetched.
    #[inline]
    pub fn prefetch(&self, hash: KeyHash) {
        self.memory.prefetch(self.bucket_of(hash));
    }

    /// A key will be looked up and its bucket is there by now: has its item fetched, if it has one.
    #[inline]
    pub fn prefetch_item(&self, hash: KeyHash) {
        let bucket = Bucket(self.memory.peek(self.bucket_of(hash)));
        let mut matches = bucket.matches(hash.tag());
        match matches.next() {
            Some(cell) if bucket.kind(cell) == Kind::Item => self.memory.prefetch(bucket.cell(cell)),
            Some(_) => {}
            None => {
                if let Some(next) = bucket.next() {
                    self.memory.prefetch(next);
                }
            }
        }
    }

    /// Looks a key up. Pairs that have expired are not found, and are gone then.
    #[inline]
    pub fn find(&mut self, hash: KeyHash, key: &[u8]) -> Option<Place> {
        self.memory.begin_operation();
        self.find_again(hash, key)
    }

    #[inline]
    pub(crate) fn find_again(&mut self, hash: KeyHash, key: &[u8]) -> Option<Place> {
        let place = self.locate(hash, key)?;
        if let Some(line) = place.item {
            let expiry = self.memory.bytes(line, EXPIRY_AT, 4);
            let expiry_s = u32::from_le_bytes(expiry.try_into().expect("four bytes"));
            if expiry_s != 0 && expiry_s <= self.now_s {
                self.counters.expired_count += 1;
                self.remove(hash, place);
                return None;
            }
        }
        Some(place)
    }

    #[inline]
    pub(crate) fn is_expired(&self, header: &Header) -> bool {
        header.expiry != 0 && header.expiry <= self.now_s
    }

    #[inline]
    pub(crate) fn header(&self, line: u32) -> Header {
        Header::decode(self.memory.bytes(line, 0, HEADER_BYTES))
    }

    #[inline]
    fn locate(&self, hash: KeyHash, key: &[u8]) -> Option<Place> {
        let tag = hash.tag();
        let mut node = self.bucket_of(hash);
        loop {
            let bucket = Bucket(self.memory.line(node));
            for cell in bucket.matches(tag) {
                let (is_it, item) = if bucket.kind(cell) == Kind::Item {
                    let line = bucket.cell(cell);
                    (self.item_has_key(line, key), Some(line))
                } else {
                    (bucket.inline(cell).0 == key, None)
                };
                if is_it {
                    return Some(Place { node, cell: cell as u8, item });
                }
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
        self.memory.bytes(line, at, key.len()) == key
    }

    #[inline]
    fn key_at(&self, line: u32, header: Header) -> usize {
        let extent_count = if header.bits & LARGE == 0 { 0 } else { self.extent_count(line, header) };
        header.key_at(extent_count)
    }

    /// Bytes of the value of an item with extents, and how many it has.
    #[cold]
    pub(crate) fn large(&self, line: u32, header: Header) -> (usize, usize) {
        let at = HEADER_BYTES + if header.bits & WIDE == 0 { 0 } else { 4 };
        let bytes = self.memory.bytes(line, at, 8);
        let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes")) as usize;
        (word(0), word(4))
    }

    fn extent_count(&self, line: u32, header: Header) -> usize {
        self.large(line, header).1
    }

    /// Notes that a pair is read: it stays longer.
    #[inline]
    pub fn touch(&mut self, place: Place) {
        let Some(line) = place.item else { return };
        let bits = self.memory.bytes(line, BITS_AT, 1)[0];
        if bits & USES < 2 || bits & FETCHED == 0 {
            let uses = (bits & USES).saturating_add(1).min(2);
            self.memory.bytes_mut(line, BITS_AT, 1)[0] = bits & !USES | FETCHED | uses;
        }
    }

    /// The value at a place.
    #[inline]
    #[must_use]
    pub fn value(&self, place: Place) -> Value<'_> {
        match place.item {
            None => {
                let bucket = Bucket(self.memory.line(place.node));
                Value::whole(bucket.inline(place.cell.into()).1)
            }
            Some(line) => self.item_value(line),
        }
    }

    #[inline]
    pub(crate) fn item_value(&self, line: u32) -> Value<'_> {
        let header = self.header(line);
        if header.bits & LARGE == 0 {
            let at = header.key_at(0) + usize::from(header.key_bytes);
            return Value::whole(self.memory.bytes(line, at, header.value_bytes.into()));
        }
        let (length, extent_count) = self.large(line, header);
        let table_at = HEADER_BYTES + if header.bits & WIDE == 0 { 8 } else { 12 };
        let tail_at = header.key_at(extent_count) + usize::from(header.key_bytes);
        let tail_bytes = length.saturating_sub(extent_count * REGION_BYTES);
        Value::parted(
            self,
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
        let Some(line) = place.item else { return Attributes::default() };
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
        let bits = place.item.map_or(0, |line| self.memory.bytes(line, BITS_AT, 1)[0]);
        Marks { is_fetched: bits & FETCHED != 0, is_stale: bits & STALE != 0, is_won: bits & WON != 0 }
    }

    /// Sets the marks of a pair; one in the index leaves it for that. Says whether there was memory for it.
    pub fn set_marks(&mut self, hash: KeyHash, key: &[u8], marks: Marks) -> bool {
        let place = self.find_again(hash, key).and_then(|place| self.take_out(hash, key, place));
        let Some(line) = place.and_then(|place| place.item) else { return false };
        let bits = &mut self.memory.bytes_mut(line, BITS_AT, 1)[0];
        *bits &= !(FETCHED | STALE | WON);
        for (is_set, bit) in [(marks.is_fetched, FETCHED), (marks.is_stale, STALE), (marks.is_won, WON)] {
            *bits |= if is_set { bit } else { 0 };
        }
        true
    }

    /// The number of this very value: another is stored under another one. A pair in the index has none until
    /// somebody asks, and leaves the index for it. `None` if there is no memory for that.
    pub fn cas(&mut self, hash: KeyHash, key: &[u8]) -> Option<u64> {
        let place = self.find_again(hash, key)?;
        let place = self.take_out(hash, key, place)?;
        Some(self.header(place.item?).cas)
    }

    /// Gives the value this number, as caches that copy from one another do.
    pub fn set_cas(&mut self, hash: KeyHash, key: &[u8], cas: u64) {
        let place = self.find_again(hash, key).and_then(|place| self.take_out(hash, key, place));
        if let Some(line) = place.and_then(|place| place.item) {
            let header = Header { cas, ..self.header(line) };
            self.memory.bytes_mut(line, 0, HEADER_BYTES).copy_from_slice(&header.encode());
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
        if place.item.is_none() {
            if expiry_s == 0 {
                return true;
            }
            match self.take_out(hash, key, place) {
                Some(outside) => place = outside,
                None => return false,
            }
        }
        let line = place.item.expect("taken out of the index");
        self.memory.bytes_mut(line, EXPIRY_AT, 4).copy_from_slice(&expiry_s.to_le_bytes());
        true
    }

    /// Moves a pair out of the index, if it lies there.
    pub(crate) fn take_out(&mut self, hash: KeyHash, key: &[u8], place: Place) -> Option<Place> {
        if place.item.is_some() {
            return Some(place);
        }
        let mut value = [0; crate::bucket::INLINE_VALUE_BYTES_MAX];
        let length = self.value(place).len();
        value[..length].copy_from_slice(self.value(place).head());
        match self.put_item(hash, key, &value[..length], Attributes::default(), Some(place)) {
            Stored::Done => self.find_again(hash, key),
            _ => None,
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
        if let Err(refusal) = self.check(found, condition) {
            return refusal;
        }
        self.put(hash, key, value, attributes, found)
    }

    /// Whether a condition holds for what was found.
    pub(crate) fn check(&self, found: Option<Place>, condition: Condition) -> Result<(), Stored> {
        match (condition, found) {
            (Condition::Always, _) | (Condition::Absent, None) | (Condition::Present, Some(_)) => Ok(()),
            (Condition::Absent, Some(_)) => Err(Stored::Exists),
            (Condition::Present | Condition::Unchanged(_), None) => Err(Stored::NotFound),
            (Condition::Unchanged(cas), Some(place)) => match place.item {
                Some(line) if self.header(line).cas == cas => Ok(()),
                // Nobody has asked for the number of a pair in the index since it was stored.
                _ => Err(Stored::Exists),
            },
        }
    }

    /// Stores a value in place of what was found.
    pub(crate) fn put(
        &mut self,
        hash: KeyHash,
        key: &[u8],
        value: &[u8],
        attributes: Attributes,
        found: Option<Place>,
    ) -> Stored {
        debug_assert!((1..=KEY_BYTES_MAX).contains(&key.len()));
        if value.len() > self.settings.value_bytes_max {
            return Stored::TooLarge;
        }
        let is_small =
            attributes == Attributes::default() && key.len() + value.len() <= self.settings.inline_bytes_max;
        if is_small && let Some(width) = inline_cells(key.len(), value.len()) {
            return self.put_inline(hash, key, value, width, found);
        }
        self.put_item(hash, key, value, attributes, found)
    }

    fn put_inline(
        &mut self,
        hash: KeyHash,
        key: &[u8],
        value: &[u8],
        width: usize,
        found: Option<Place>,
    ) -> Stored {
        if let Some(place) = found {
            if place.item.is_none() && Bucket(self.memory.line(place.node)).width(place.cell.into()) == width
            {
                let old_bytes = self.value(place).len();
                BucketMut(self.memory.line_mut(place.node)).put_inline(
                    place.cell.into(),
                    hash.tag(),
                    key,
                    value,
                );
                self.counters.pair_bytes -= old_bytes as u64;
                self.counters.pair_bytes += value.len() as u64;
                self.counters.stored_count += 1;
                return Stored::Done;
            }
            self.remove(hash, place);
        }
        let Some((node, cell)) = self.cells(hash, width) else { return Stored::NoMemory };
        BucketMut(self.memory.line_mut(node)).put_inline(cell, hash.tag(), key, value);
        self.counters.pair_count += 1;
        self.counters.inline_count += 1;
        self.counters.pair_bytes += (key.len() + value.len()) as u64;
        self.counters.stored_count += 1;
        Stored::Done
    }

    fn put_item(
        &mut self,
        hash: KeyHash,
        key: &[u8],
        value: &[u8],
        attributes: Attributes,
        found: Option<Place>,
    ) -> Stored {
        let layout = Layout::new(key.len(), value.len(), attributes.flags);
        // In place, if the block is of the right size and nobody sends from it.
        if let Some(place) = found
            && let Some(line) = place.item
            && layout.extent_count == 0
        {
            let header = self.header(line);
            let use_ = self.regions.use_of(self.regions.region_of(line));
            if header.bits & (HELD | LARGE) == 0 && use_ == Use::Items(layout.class()) {
                let old_bytes = usize::from(header.value_bytes);
                self.write_item(line, &layout, key, value.len(), attributes, header.bits & USES);
                let at = layout.value_at;
                self.memory.bytes_mut(line, at, value.len()).copy_from_slice(value);
                self.counters.pair_bytes -= old_bytes as u64;
                self.counters.pair_bytes += value.len() as u64;
                self.counters.stored_count += 1;
                return Stored::Done;
            }
        }
        let Some(pending) = self.begin(key, value.len(), attributes) else { return Stored::NoMemory };
        self.fill(&pending, 0, value);
        self.link(hash, key, pending)
    }

    /// Writes header and key of an item.
    #[inline]
    fn write_item(
        &mut self,
        line: u32,
        layout: &Layout,
        key: &[u8],
        value_bytes: usize,
        attributes: Attributes,
        bits: u8,
    ) {
        self.next_cas += 1;
        let header = Header {
            cas: self.next_cas,
            key_bytes: key.len() as u8,
            bits: layout.bits | bits,
            value_bytes: if layout.extent_count == 0 { value_bytes as u16 } else { 0 },
            flags: attributes.flags as u16,
            expiry: attributes.expiry_s,
        };
        let block = self.memory.bytes_mut(line, 0, layout.key_at + key.len());
        block[..HEADER_BYTES].copy_from_slice(&header.encode());
        if layout.bits & WIDE != 0 {
            block[HEADER_BYTES..HEADER_BYTES + 4].copy_from_slice(&attributes.flags.to_le_bytes());
        }
        if layout.bits & LARGE != 0 {
            let at = layout.extents_at - 8;
            block[at..at + 4].copy_from_slice(&(value_bytes as u32).to_le_bytes());
            block[at + 4..at + 8].copy_from_slice(&(layout.extent_count as u32).to_le_bytes());
        }
        block[layout.key_at..].copy_from_slice(key);
    }

    /// Takes memory for a value that arrives piece by piece. `None` if there is none.
    pub fn begin(&mut self, key: &[u8], value_bytes: usize, attributes: Attributes) -> Option<Pending> {
        let layout = Layout::new(key.len(), value_bytes, attributes.flags);
        let line = self.take_block(layout.class())?;
        self.write_item(line, &layout, key, value_bytes, attributes, HELD);
        self.regions.hold(line, true);
        for at in 0..layout.extent_count {
            let Some(region) = self.take_extent() else {
                for taken in 0..at {
                    let region = self.extent_of(line, &layout, taken);
                    self.regions.give_back_extent(region);
                }
                self.regions.hold(line, false);
                self.regions.give_back(line);
                return None;
            };
            let bytes = self.memory.bytes_mut(line, layout.extents_at + 4 * at, 4);
            bytes.copy_from_slice(&region.to_le_bytes());
        }
        self.pending_count += 1;
        Some(Pending { line, layout, value_bytes })
    }

    fn extent_of(&self, line: u32, layout: &Layout, at: usize) -> u32 {
        let bytes = self.memory.bytes(line, layout.extents_at + 4 * at, 4);
        u32::from_le_bytes(bytes.try_into().expect("four bytes"))
    }

    /// The room for the bytes of a value from `offset` on, as far as it is contiguous.
    pub fn room(&mut self, pending: &Pending, offset: usize) -> &mut [u8] {
        let layout = &pending.layout;
        let (extent, within) = (offset / REGION_BYTES, offset % REGION_BYTES);
        if extent < layout.extent_count {
            let region = self.extent_of(pending.line, layout, extent);
            let length = REGION_BYTES.min(pending.value_bytes - extent * REGION_BYTES) - within;
            return self.memory.bytes_mut(self.regions.first_line(region), within, length);
        }
        let within = offset - layout.extent_count * REGION_BYTES;
        self.memory.bytes_mut(pending.line, layout.value_at + within, layout.tail_bytes - within)
    }

    /// Puts bytes of a value where they belong.
    pub fn fill(&mut self, pending: &Pending, mut offset: usize, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let room = self.room(pending, offset);
            let count = room.len().min(bytes.len());
            room[..count].copy_from_slice(&bytes[..count]);
            offset += count;
            bytes = &bytes[count..];
        }
    }

    /// Stores a value that has arrived.
    pub fn commit(&mut self, hash: KeyHash, key: &[u8], pending: Pending, condition: Condition) -> Stored {
        self.memory.begin_operation();
        let found = self.find_again(hash, key);
        if let Err(refusal) = self.check(found, condition) {
            self.abandon(pending);
            return refusal;
        }
        self.link(hash, key, pending)
    }

    /// Lets go of a value that will not be stored.
    #[expect(clippy::needless_pass_by_value, reason = "a pending value ends once")]
    pub fn abandon(&mut self, pending: Pending) {
        self.release_hold(pending.line);
        self.pending_count -= 1;
        self.free_item(pending.line);
    }

    fn release_hold(&mut self, line: u32) {
        self.memory.bytes_mut(line, BITS_AT, 1)[0] &= !HELD;
        self.regions.hold(line, false);
    }

    /// Puts a filled item into the index, in place of what is there.
    fn link(&mut self, hash: KeyHash, key: &[u8], pending: Pending) -> Stored {
        let line = pending.line;
        let value_bytes = pending.value_bytes;
        // Room may have been made since: what was found before may be gone.
        let found = self.find_again(hash, key);
        match found {
            Some(place) if place.item.is_some() => {
                let old = place.item.expect("just seen");
                self.counters.pair_bytes -= self.pair_bytes(old) as u64;
                self.counters.pair_count -= 1;
                BucketMut(self.memory.line_mut(place.node)).put_item(place.cell.into(), hash.tag(), line);
                self.free_item(old);
            }
            Some(place) => {
                self.count_out(place);
                let mut bucket = BucketMut(self.memory.line_mut(place.node));
                bucket.clear(place.cell.into());
                bucket.put_item(place.cell.into(), hash.tag(), line);
            }
            None => match self.cells(hash, 1) {
                Some((node, cell)) => BucketMut(self.memory.line_mut(node)).put_item(cell, hash.tag(), line),
                None => {
                    self.abandon(pending);
                    return Stored::NoMemory;
                }
            },
        }
        self.release_hold(line);
        self.pending_count -= 1;
        self.counters.pair_count += 1;
        self.counters.pair_bytes += (key.len() + value_bytes) as u64;
        self.counters.stored_count += 1;
        Stored::Done
    }

    /// Bytes of key and value of an item.
    fn pair_bytes(&self, line: u32) -> usize {
        let header = self.header(line);
        let value_bytes = if header.bits & LARGE == 0 {
            usize::from(header.value_bytes)
        } else {
            self.large(line, header).0
        };
        usize::from(header.key_bytes) + value_bytes
    }

    fn count_out(&mut self, place: Place) {
        let bytes = match place.item {
            Some(line) => self.pair_bytes(line),
            None => {
                self.counters.inline_count -= 1;
                let (key, value) = Bucket(self.memory.line(place.node)).inline(place.cell.into());
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
        self.count_out(place);
        self.change_count += 1;
        BucketMut(self.memory.line_mut(place.node)).clear(place.cell.into());
        if let Some(line) = place.item {
            self.free_item(line);
        }
        if Bucket(self.memory.line(self.bucket_of(hash))).next().is_some() {
            self.shorten(self.bucket_of(hash));
        }
    }

    /// Moves entries of a chain forward as far as they fit, and lets go of buckets that are empty then.
    fn shorten(&mut self, mut node: u32) {
        while let Some(next) = Bucket(self.memory.line(node)).next() {
            let from = *self.memory.line(next);
            let mut moved = false;
            for cell in Bucket(&from).entries() {
                let width = Bucket(&from).width(cell);
                if let Some(to) = Bucket(self.memory.line(node)).find_empty(width) {
                    copy_entry(Bucket(&from), cell, &mut BucketMut(self.memory.line_mut(node)), to);
                    BucketMut(self.memory.line_mut(next)).clear(cell);
                    moved = true;
                }
            }
            self.change_count += u64::from(moved);
            let rest = Bucket(self.memory.line(next));
            if rest.entries().next().is_some() {
                node = next;
                continue;
            }
            let after = rest.next();
            BucketMut(self.memory.line_mut(node)).set_next(after);
            self.regions.give_back(next);
        }
    }

    /// Gives an item's memory back, now or when it was sent.
    fn free_item(&mut self, line: u32) {
        let header = self.header(line);
        if header.bits & HELD != 0 {
            let pins = self.pins.get_mut(&line).expect("only pinned items are held in the index");
            pins.is_detached = true;
            return;
        }
        if header.bits & LARGE != 0 {
            let (_, extent_count) = self.large(line, header);
            let table_at = HEADER_BYTES + if header.bits & WIDE == 0 { 8 } else { 12 };
            for at in 0..extent_count {
                let bytes = self.memory.bytes(line, table_at + 4 * at, 4);
                let region = u32::from_le_bytes(bytes.try_into().expect("four bytes"));
                self.regions.give_back_extent(region);
            }
        }
        self.regions.give_back(line);
    }

    /// So many neighbouring empty cells in the chain of a key, which has none of its own.
    fn cells(&mut self, hash: KeyHash, width: usize) -> Option<(u32, usize)> {
        let first = self.bucket_of(hash);
        loop {
            let mut node = first;
            loop {
                let bucket = Bucket(self.memory.line(node));
                if let Some(cell) = bucket.find_empty(width) {
                    return Some((node, cell));
                }
                if bucket.empty_count() >= width {
                    let mut bucket = BucketMut(self.memory.line_mut(node));
                    bucket.pack();
                    let cell = Bucket(bucket.0).find_empty(width)?;
                    return Some((node, cell));
                }
                match bucket.next() {
                    Some(next) => node = next,
                    None => break,
                }
            }
            // What follows may take entries of this very chain away: look again.
            if let Some(line) = self.spare.pop() {
                self.lengthen(node, line);
                continue;
            }
            match self.take_bucket_line() {
                Some(line) => self.spare.push(line),
                None if self.settings.eviction == Eviction::Clock => self.evict_from_bucket(first),
                None => return None,
            }
        }
    }

    /// Makes `line` the bucket after `node`, the last of its chain.
    fn lengthen(&mut self, node: u32, line: u32) {
        *self.memory.line_mut(line) = [0; reactor::LINE_BYTES];
        let before = *self.memory.line(node);
        let old = Bucket(&before);
        let last = crate::bucket::CELL_COUNT - 1;
        // Whatever lies in the last cell makes way for the link.
        if old.kind(last) != Kind::Empty {
            let cell = old.entries().last().expect("something begins before the last cell");
            copy_entry(old, cell, &mut BucketMut(self.memory.line_mut(line)), 0);
            BucketMut(self.memory.line_mut(node)).clear(cell);
        }
        BucketMut(self.memory.line_mut(node)).set_next(Some(line));
    }

    /// With no memory for another bucket, the first pair of this chain goes.
    fn evict_from_bucket(&mut self, first: u32) {
        let bucket = Bucket(self.memory.line(first));
        let cell = bucket.entries().next().expect("a chain without room has entries");
        let item = (bucket.kind(cell) == Kind::Item).then(|| bucket.cell(cell));
        let place = Place { node: first, cell: cell as u8, item };
        self.count_out(place);
        self.counters.evicted_count += 1;
        self.change_count += 1;
        BucketMut(self.memory.line_mut(first)).clear(cell);
        if let Some(line) = item {
            self.free_item(line);
        }
    }

    /// The entry that leads to an item: the line of its bucket, and the cell.
    pub(crate) fn entry_of(&self, hash: KeyHash, item: u32) -> Option<(u32, usize)> {
        let mut node = self.bucket_of(hash);
        loop {
            let bucket = Bucket(self.memory.line(node));
            for cell in bucket.matches(hash.tag()) {
                if bucket.kind(cell) == Kind::Item && bucket.cell(cell) == item {
                    return Some((node, cell));
                }
            }
            node = bucket.next()?;
        }
    }

    /// The hash of an item's key.
    pub(crate) fn hash_of_item(&self, line: u32) -> KeyHash {
        let header = self.header(line);
        let key = self.memory.bytes(line, self.key_at(line, header), header.key_bytes.into());
        self.hash(key)
    }

    /// Points the entry of a key at another line.
    pub(crate) fn redirect(&mut self, hash: KeyHash, (node, cell): (u32, usize), line: u32) {
        BucketMut(self.memory.line_mut(node)).put_item(cell, hash.tag(), line);
    }

    /// The value at a place, to be changed as it lies; it counts as stored anew. `None` if it is in parts, or
    /// being sent.
    pub fn value_mut(&mut self, place: Place) -> Option<&mut [u8]> {
        let Some(line) = place.item else {
            let bucket = BucketMut(self.memory.line_mut(place.node));
            let Place { cell, .. } = place;
            let range = {
                let (key, value) = Bucket(bucket.0).inline(cell.into());
                let at = 16 + usize::from(cell) * 4 + key.len();
                at..at + value.len()
            };
            return Some(&mut bucket.0[range]);
        };
        let header = self.header(line);
        if header.bits & (HELD | LARGE) != 0 {
            return None;
        }
        self.renew(line, header);
        let at = header.key_at(0) + usize::from(header.key_bytes);
        Some(self.memory.bytes_mut(line, at, header.value_bytes.into()))
    }

    /// Gives an item a new number.
    fn renew(&mut self, line: u32, header: Header) {
        self.next_cas += 1;
        let header = Header { cas: self.next_cas, ..header };
        self.memory.bytes_mut(line, 0, HEADER_BYTES).copy_from_slice(&header.encode());
    }

    /// Calls `each` with the parts of a value in order, to be changed as they lie: it counts as stored anew.
    /// A value that is being sent is copied first. Parts but the last are multiples of 64 bytes. `false` if
    /// there is no memory for that.
    pub fn change(
        &mut self,
        hash: KeyHash,
        key: &[u8],
        place: Place,
        mut each: impl FnMut(&mut [u8]),
    ) -> bool {
        let mut place = place;
        if let Some(line) = place.item
            && self.header(line).bits & HELD != 0
        {
            let attributes = self.attributes(place);
            let value = self.value(place).to_vec();
            let Some(pending) = self.begin(key, value.len(), attributes) else { return false };
            self.fill(&pending, 0, &value);
            if self.link(hash, key, pending) != Stored::Done {
                return false;
            }
            place = self.find_again(hash, key).expect("just stored");
        }
        if let Some(value) = self.value_mut(place) {
            each(value);
            return true;
        }
        let line = place.item.expect("pairs in the index are whole");
        let header = self.header(line);
        self.renew(line, header);
        let (length, extent_count) = self.large(line, header);
        let layout = Layout::new(header.key_bytes.into(), length, self.attributes(place).flags);
        debug_assert_eq!(layout.extent_count, extent_count);
        for at in 0..extent_count {
            let region = self.extent_of(line, &layout, at);
            let bytes = REGION_BYTES.min(length - at * REGION_BYTES);
            each(self.memory.bytes_mut(self.regions.first_line(region), 0, bytes));
        }
        if layout.tail_bytes > 0 {
            each(self.memory.bytes_mut(line, layout.value_at, layout.tail_bytes));
        }
        true
    }

    /// Keeps the value at a place as it is, to be sent piece by piece. A pair in the index is copied instead:
    /// `None`.
    pub fn pin(&mut self, place: Place) -> Option<Pin> {
        let line = place.item?;
        let pins = self.pins.entry(line).or_insert(Pins { count: 0, is_detached: false });
        pins.count += 1;
        if pins.count == 1 {
            self.memory.bytes_mut(line, BITS_AT, 1)[0] |= HELD;
            self.regions.hold(line, true);
        }
        Some(Pin { line })
    }

    /// A pinned value.
    #[must_use]
    pub fn pinned(&self, pin: &Pin) -> Value<'_> {
        self.item_value(pin.line)
    }

    /// Ends a pin.
    #[expect(clippy::needless_pass_by_value, reason = "a pin ends once")]
    pub fn unpin(&mut self, pin: Pin) {
        let pins = self.pins.get_mut(&pin.line).expect("pinned");
        pins.count -= 1;
        if pins.count > 0 {
            return;
        }
        let is_detached = pins.is_detached;
        self.pins.remove(&pin.line);
        self.release_hold(pin.line);
        if is_detached {
            self.free_item(pin.line);
        }
    }

    /// Removes everything.
    pub fn clear(&mut self) {
        self.change_count += 1;
        if self.pins.is_empty() && self.pending_count == 0 {
            self.memory.zero(0..self.bucket_count);
            self.regions = Regions::new(self.bucket_count, self.regions.count());
            self.hands = Hands::default();
            self.spare.clear();
        } else {
            for bucket in 0..self.bucket_count {
                loop {
                    let first = Bucket(self.memory.line(bucket));
                    let Some(cell) = first.entries().next() else { break };
                    let item = (first.kind(cell) == Kind::Item).then(|| first.cell(cell));
                    BucketMut(self.memory.line_mut(bucket)).clear(cell);
                    if let Some(line) = item {
                        self.free_item(line);
                    }
                    self.shorten(bucket);
                }
            }
        }
        (self.counters.pair_count, self.counters.inline_count, self.counters.pair_bytes) = (0, 0, 0);
    }

    /// Calls `each` with keys in an order that stays while nothing is stored or removed, from `start` on if
    /// it is there, else from where it would be; until `each` says that it wants no more.
    pub fn list(&self, start: Option<&[u8]>, mut each: impl FnMut(&[u8]) -> bool) {
        let hash = start.map(|key| self.hash(key));
        let found = start.zip(hash).and_then(|(key, hash)| self.locate(hash, key));
        let first = hash.map_or(0, |hash| self.bucket_of(hash));
        let mut skips = found;
        for bucket in first..self.bucket_count {
            let mut node = bucket;
            loop {
                let view = Bucket(self.memory.line(node));
                for cell in view.entries() {
                    if let Some(place) = skips {
                        if (node, cell) != (place.node, usize::from(place.cell)) {
                            continue;
                        }
                        skips = None;
                    }
                    let goes_on = if view.kind(cell) == Kind::Item {
                        let line = view.cell(cell);
                        let header = self.header(line);
                        let at = self.key_at(line, header);
                        self.is_expired(&header) || each(self.memory.bytes(line, at, header.key_bytes.into()))
                    } else {
                        each(view.inline(cell).0)
                    };
                    if !goes_on {
                        return;
                    }
                }
                match view.next() {
                    Some(next) => node = next,
                    None => break,
                }
            }
        }
    }
}

/// Buckets for the pairs that fit into memory.
fn bucket_count(settings: &Settings, memory_bytes: usize) -> u32 {
    let entry_bytes = reactor::LINE_BYTES as f64 / ENTRIES_PER_BUCKET;
    let is_inline = settings.pair_bytes <= settings.inline_bytes_max;
    let item_bytes = if is_inline {
        // Everything is index: leave a quarter for what is larger after all.
        return (memory_bytes / reactor::LINE_BYTES * 3 / 4) as u32;
    } else {
        let whole = (settings.pair_bytes + HEADER_BYTES).min(REGION_BYTES);
        crate::regions::Class::of(whole).expect("at most a region").lines() * reactor::LINE_BYTES
    };
    // A chain's further buckets come from the regions.
    let pairs = memory_bytes as f64 / (item_bytes as f64 + entry_bytes * 1.26);
    ((pairs / ENTRIES_PER_BUCKET) as u32).max(16)
}
