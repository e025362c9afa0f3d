//! The heap of a partition: items in blocks of its regions, pieces and chunks; reading, filling, holding and freeing
//! them.
//!
//! It knows nothing of the index: an item is named by the unit in which it begins.

mod accesses;
mod chunks;
mod hold;
mod pieces;

use std::io;
use std::sync::Arc;

use memory::CHUNK_BYTES;

use crate::access::AccessClock;
use crate::bucket::Bucket;
use crate::chunked::Chunked;
use crate::evicted::{Evicted, EvictedPairs};
use crate::item::{
    AWAY, BITS_AT, FETCHED, HEADER_BYTES, Header, KEY_BYTES_AT, LARGE, Layout, STALE, WIDE, WON,
};
use crate::kept::Returned;
use crate::memory::Memory;
use crate::pair::{Attributes, Marks};
use crate::pins::PinTable;
use crate::place::PairPlace;
use crate::regions::{PIECE_BYTES, Queue, REGION_LINES, REGIONS_MAX, Regions, Use, units};
use crate::touches::{Touches, Usual};
use crate::value::Value;

/// Memory of a partition, with everything outside of the index.
pub(crate) struct Heap<T = Usual> {
    pub(crate) memory: Memory<T>,
    pub(crate) regions: Regions,
    pub(crate) chunked: Chunked,
    pub(crate) pins: PinTable,
    pub(crate) access: AccessClock,
    /// A record of evicted pairs, if one is wanted.
    pub(crate) evicted: Option<Box<EvictedPairs>>,
    /// Whether items hold their offset in a log.
    pub(crate) has_log: bool,
    /// No item has expired up to this second of the partition's clock.
    pub(crate) unexpired_until_s: u32,
    /// Items that came to the queue of kept items after one use and were used there, lately.
    pub(crate) once_used: u64,
    /// Number of values that are arriving.
    pub(crate) pending_count: usize,
    /// Kept values that were dropped, possibly on other threads.
    pub(crate) returned: Arc<Returned>,
}

impl<T: Touches> Heap<T> {
    /// A heap of `region_count` free regions.
    ///
    /// # Errors
    /// The system's error when it refuses the memory.
    pub(crate) fn new(region_count: usize) -> io::Result<Self> {
        Ok(Self {
            memory: Memory::new(region_count * REGION_LINES, REGIONS_MAX * REGION_LINES)?,
            regions: Regions::new(region_count),
            chunked: Chunked::new(region_count)?,
            pins: PinTable::default(),
            access: AccessClock::new(),
            evicted: None,
            has_log: false,
            once_used: 0,
            unexpired_until_s: u32::MAX,
            pending_count: 0,
            returned: Arc::default(),
        })
    }

    #[inline]
    pub(crate) fn header(&self, item: u32) -> Header {
        Header::decode(self.memory.bytes(item, 0, HEADER_BYTES))
    }

    /// Writes the header of an item.
    #[inline]
    pub(crate) fn set_header(&mut self, item: u32, header: Header) {
        // No expiry, 0, becomes the last second.
        self.unexpired_until_s = self.unexpired_until_s.min(header.expiry.wrapping_sub(1));
        self.memory.bytes_mut(item, 0, HEADER_BYTES).copy_from_slice(&header.encode());
    }

    /// Whether an item is set aside from those that are evicted.
    pub(crate) fn is_leased(&self, item: u32) -> bool {
        self.regions.use_of(self.regions.region_of(item)) == Use::Items(Queue::Leased)
    }

    /// The key of an item.
    pub(crate) fn key_of(&self, item: u32) -> &[u8] {
        let header = self.header(item);
        self.memory.bytes(item, self.key_at(item, header), header.key_bytes.into())
    }

    #[inline]
    fn key_at(&self, item: u32, header: Header) -> usize {
        let list_count = if header.bits & LARGE == 0 { 0 } else { self.large(item, header).1 };
        header.key_at(list_count)
    }

    /// Length of the value of an item with a list, and length of that list.
    #[cold]
    pub(crate) fn large(&self, item: u32, header: Header) -> (usize, usize) {
        let at = header.list_at();
        let (length, list_count) = (self.memory.u32_at(item, at - 8), self.memory.u32_at(item, at - 4));
        (length as usize, (list_count & !AWAY) as usize)
    }

    /// Whether an item is a stub: its value is only in the log.
    #[inline]
    pub(crate) fn is_stub(&self, item: u32, header: Header) -> bool {
        header.bits & LARGE != 0 && self.has_stub_mark(item, header)
    }

    #[cold]
    fn has_stub_mark(&self, item: u32, header: Header) -> bool {
        self.memory.u32_at(item, header.list_at() - 4) & AWAY != 0
    }

    #[inline]
    pub(crate) fn item_has_key(&self, item: u32, key: &[u8]) -> bool {
        let bits = self.memory.bytes(item, KEY_BYTES_AT, 2);
        if usize::from(bits[0]) != key.len() {
            return false;
        }
        let at =
            if bits[1] & (LARGE | WIDE) == 0 { HEADER_BYTES } else { self.key_at(item, self.header(item)) };
        is_equal(self.memory.bytes(item, at, key.len()), key)
    }

    /// The value at a place.
    #[inline]
    pub(crate) fn value(&self, place: PairPlace) -> Value<'_> {
        match place.item() {
            None => {
                let bucket = Bucket(self.memory.line(place.node()));
                Value::whole(bucket.inline(place.cell()).1)
            }
            Some(item) => self.item_value(item),
        }
    }

    /// Length of the value at a place, wherever it is stored.
    #[inline]
    pub(crate) fn value_bytes(&self, place: PairPlace) -> usize {
        match place.item() {
            None => self.value(place).len(),
            Some(item) => self.item_value_bytes(item, self.header(item)),
        }
    }

    #[inline]
    fn item_value_bytes(&self, item: u32, header: Header) -> usize {
        if header.bits & LARGE == 0 { header.value_bytes.into() } else { self.large(item, header).0 }
    }

    #[inline]
    pub(crate) fn item_value(&self, item: u32) -> Value<'_> {
        let header = self.header(item);
        if header.bits & LARGE == 0 {
            let at = header.key_at(0) + usize::from(header.key_bytes);
            return Value::whole(self.memory.bytes(item, at, header.value_bytes.into()));
        }
        if self.has_stub_mark(item, header) {
            debug_assert!(false, "the value is to be fetched first");
            return Value::whole(&[]);
        }
        let (length, list_count) = self.large(item, header);
        let chunks = self.chunks_of(item, header).map_or(&[][..], |chunks| chunks);
        let table_at = header.list_at();
        let (table_at, piece_count) =
            if chunks.is_empty() { (table_at, list_count) } else { (table_at + 4, list_count - 1) };
        let tail_at = header.key_at(list_count) + usize::from(header.key_bytes);
        let tail_bytes = (length - chunks.len() * CHUNK_BYTES).saturating_sub(piece_count * PIECE_BYTES);
        Value::parted(
            self.memory.lines(),
            chunks,
            self.memory.bytes(item, table_at, 4 * piece_count),
            self.memory.bytes(item, tail_at, tail_bytes),
            length,
        )
    }

    /// Attributes of the pair besides key and value.
    #[inline]
    pub(crate) fn attributes(&self, place: PairPlace) -> Attributes {
        let Some(item) = place.item() else { return Attributes::default() };
        let header = self.header(item);
        let mut flags = u32::from(header.flags);
        if header.bits & WIDE != 0 {
            flags = self.memory.u32_at(item, HEADER_BYTES);
        }
        Attributes { flags, expiry_s: header.expiry }
    }

    /// The marks of the pair. Pairs in the index have none.
    pub(crate) fn marks(&self, place: PairPlace) -> Marks {
        let bits = place.item().map_or(0, |item| self.memory.bytes(item, BITS_AT, 1)[0]);
        Marks { is_fetched: bits & FETCHED != 0, is_stale: bits & STALE != 0, is_won: bits & WON != 0 }
    }

    /// The layout of an item in this partition.
    #[inline]
    pub(crate) fn layout(&self, key_bytes: usize, value_bytes: usize, flags: u32) -> Layout {
        Layout::new(key_bytes, value_bytes, flags, self.has_log)
    }

    /// Units of an item's block.
    #[inline]
    pub(crate) fn item_units(&self, item: u32, header: Header) -> usize {
        let key_bytes = usize::from(header.key_bytes);
        if self.is_stub(item, header) {
            return units(header.key_at(self.large(item, header).1) + key_bytes);
        }
        let flags = if header.bits & WIDE == 0 { 0 } else { u32::MAX };
        self.layout(key_bytes, self.item_value_bytes(item, header), flags).units()
    }

    /// Records the eviction of an item, if that is wanted.
    #[inline]
    pub(crate) fn note_evicted_item(&mut self, item: u32) {
        if let Some(mut evicted) = self.evicted.take() {
            let header = self.header(item);
            evicted.record(|| Evicted {
                key: self.key_of(item).to_vec(),
                value_bytes: self.item_value_bytes(item, header),
                expiry_s: header.expiry,
                accessed_s: self.access.second_of(header.stamp),
                is_fetched: header.bits & FETCHED != 0,
            });
            self.evicted = Some(evicted);
        }
    }

    /// Records the eviction of a pair in the index, if that is wanted.
    #[inline]
    pub(crate) fn note_evicted_inline(&mut self, key: &[u8], value: &[u8]) {
        if let Some(evicted) = &mut self.evicted {
            let accessed_s = self.access.second_of(self.access.now());
            let (key, value_bytes) = (key.to_vec(), value.len());
            evicted.record(|| Evicted { key, value_bytes, expiry_s: 0, accessed_s, is_fetched: false });
        }
    }

    /// Bytes of key and value of an item.
    pub(crate) fn pair_bytes(&self, item: u32) -> usize {
        let header = self.header(item);
        usize::from(header.key_bytes) + self.item_value_bytes(item, header)
    }
}

/// Whether two keys of one length are equal. Keys are short, so a call to `memcmp` would cost more.
#[inline(always)]
pub(crate) fn is_equal(one: &[u8], other: &[u8]) -> bool {
    let ((one, one_rest), (other, other_rest)) = (one.as_chunks::<8>(), other.as_chunks::<8>());
    let word = |eight: &[u8; 8]| u64::from_le_bytes(*eight);
    let are_equal = one.iter().zip(other).all(|(one, other)| word(one) == word(other));
    are_equal && one_rest.iter().zip(other_rest).all(|(one, other)| one == other)
}
