//! The heap of a partition: items in blocks of its regions, extents and chunks; reading, filling, holding and freeing
//! them.
//!
//! It knows nothing of the index: an item is named by its line.

mod chunks;
mod hold;

use std::io;
use std::sync::Arc;

use reactor::CHUNK_BYTES;

use crate::bucket::Bucket;
use crate::chunked::Chunked;
use crate::item::{
    AWAY, BITS_AT, FETCHED, HEADER_BYTES, Header, KEY_BYTES_AT, LARGE, STALE, USES, USES_MAX, WIDE, WON,
};
use crate::kept::Returned;
use crate::memory::Memory;
use crate::pair::{Attributes, Marks};
use crate::pins::PinTable;
use crate::place::Place;
use crate::regions::{REGION_BYTES, REGION_LINES, Regions};
use crate::value::Value;

/// Memory of a partition, with everything outside of the index.
pub(crate) struct Heap {
    pub(crate) memory: Memory,
    pub(crate) regions: Regions,
    pub(crate) chunked: Chunked,
    pub(crate) pins: PinTable,
    /// Number of values that are arriving.
    pub(crate) pending_count: usize,
    /// Kept values that were dropped, possibly on other threads.
    pub(crate) returned: Arc<Returned>,
}

impl Heap {
    /// A heap of `region_count` free regions.
    ///
    /// # Errors
    /// The system's error when it refuses the memory.
    pub(crate) fn new(region_count: usize) -> io::Result<Self> {
        Ok(Self {
            memory: Memory::new(region_count * REGION_LINES)?,
            regions: Regions::new(region_count),
            chunked: Chunked::new(region_count)?,
            pins: PinTable::default(),
            pending_count: 0,
            returned: Arc::default(),
        })
    }

    #[inline]
    pub(crate) fn header(&self, line: u32) -> Header {
        Header::decode(self.memory.bytes(line, 0, HEADER_BYTES))
    }

    pub(crate) fn set_header(&mut self, line: u32, header: Header) {
        self.memory.bytes_mut(line, 0, HEADER_BYTES).copy_from_slice(&header.encode());
    }

    /// The key of an item.
    pub(crate) fn key_of(&self, line: u32) -> &[u8] {
        let header = self.header(line);
        self.memory.bytes(line, self.key_at(line, header), header.key_bytes.into())
    }

    #[inline]
    fn key_at(&self, line: u32, header: Header) -> usize {
        let list_count = if header.bits & LARGE == 0 { 0 } else { self.large(line, header).1 };
        header.key_at(list_count)
    }

    /// Length of the value of an item with a list, and length of that list.
    #[cold]
    pub(crate) fn large(&self, line: u32, header: Header) -> (usize, usize) {
        let at = header.list_at();
        let (length, list_count) = (self.memory.u32_at(line, at - 8), self.memory.u32_at(line, at - 4));
        (length as usize, (list_count & !AWAY) as usize)
    }

    /// Whether an item is a stub: its value is only in the log.
    #[inline]
    pub(crate) fn is_stub(&self, line: u32, header: Header) -> bool {
        header.bits & LARGE != 0 && self.has_stub_mark(line, header)
    }

    #[cold]
    fn has_stub_mark(&self, line: u32, header: Header) -> bool {
        self.memory.u32_at(line, header.list_at() - 4) & AWAY != 0
    }

    #[inline]
    pub(crate) fn item_has_key(&self, line: u32, key: &[u8]) -> bool {
        let bits = self.memory.bytes(line, KEY_BYTES_AT, 2);
        if usize::from(bits[0]) != key.len() {
            return false;
        }
        let at =
            if bits[1] & (LARGE | WIDE) == 0 { HEADER_BYTES } else { self.key_at(line, self.header(line)) };
        is_equal(self.memory.bytes(line, at, key.len()), key)
    }

    /// Marks a pair as read, which delays its eviction.
    #[inline]
    pub(crate) fn touch(&mut self, place: Place) {
        let Some(line) = place.item() else { return };
        let bits = self.memory.bytes(line, BITS_AT, 1)[0];
        if bits & USES < USES_MAX || bits & FETCHED == 0 {
            let uses = (bits & USES).saturating_add(1).min(USES_MAX);
            self.memory.bytes_mut(line, BITS_AT, 1)[0] = bits & !USES | FETCHED | uses;
        }
    }

    /// The value at a place.
    #[inline]
    pub(crate) fn value(&self, place: Place) -> Value<'_> {
        match place.item() {
            None => {
                let bucket = Bucket(self.memory.line(place.node()));
                Value::whole(bucket.inline(place.cell()).1)
            }
            Some(line) => self.item_value(line),
        }
    }

    /// Length of the value at a place, wherever it is stored.
    #[inline]
    pub(crate) fn value_bytes(&self, place: Place) -> usize {
        match place.item() {
            None => self.value(place).len(),
            Some(line) => self.item_value_bytes(line, self.header(line)),
        }
    }

    #[inline]
    fn item_value_bytes(&self, line: u32, header: Header) -> usize {
        if header.bits & LARGE == 0 { header.value_bytes.into() } else { self.large(line, header).0 }
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
        let table_at = header.list_at();
        let (table_at, extent_count) =
            if chunks.is_empty() { (table_at, list_count) } else { (table_at + 4, list_count - 1) };
        let tail_at = header.key_at(list_count) + usize::from(header.key_bytes);
        let tail_bytes = (length - chunks.len() * CHUNK_BYTES).saturating_sub(extent_count * REGION_BYTES);
        Value::parted(
            (&self.memory, &self.regions),
            chunks,
            self.memory.bytes(line, table_at, 4 * extent_count),
            self.memory.bytes(line, tail_at, tail_bytes),
            length,
        )
    }

    /// Attributes of the pair besides key and value.
    #[inline]
    pub(crate) fn attributes(&self, place: Place) -> Attributes {
        let Some(line) = place.item() else { return Attributes::default() };
        let header = self.header(line);
        let mut flags = u32::from(header.flags);
        if header.bits & WIDE != 0 {
            flags = self.memory.u32_at(line, HEADER_BYTES);
        }
        Attributes { flags, expiry_s: header.expiry }
    }

    /// The marks of the pair. Pairs in the index have none.
    pub(crate) fn marks(&self, place: Place) -> Marks {
        let bits = place.item().map_or(0, |line| self.memory.bytes(line, BITS_AT, 1)[0]);
        Marks { is_fetched: bits & FETCHED != 0, is_stale: bits & STALE != 0, is_won: bits & WON != 0 }
    }

    /// Bytes of key and value of an item.
    pub(crate) fn pair_bytes(&self, line: u32) -> usize {
        let header = self.header(line);
        usize::from(header.key_bytes) + self.item_value_bytes(line, header)
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
