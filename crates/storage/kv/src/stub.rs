//! Pairs without their values: items whose values are only in the log, and pairs read from records.

use crate::heap::Heap;
use crate::item::{AWAY, HEADER_BYTES, Header, LOG_OFFSET_BYTES, Layout, MARKS, WIDE};
use crate::pair::Attributes;
use crate::place::PairPlace;
use crate::touches::Touches;

/// A pair without its value.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stub {
    pub(crate) value_bytes: usize,
    pub(crate) attributes: Attributes,
    pub(crate) marks: u8,
    pub(crate) cas: u64,
    /// When it was last accessed.
    pub(crate) stamp: u8,
    /// First byte of its record in the file.
    pub(crate) log_offset: u64,
}

impl Stub {
    /// In place of the offset of a value that is lost.
    pub(crate) const LOST: u64 = u64::MAX;

    /// The pair of a key whose value is lost.
    pub(crate) fn lost(cas: u64) -> Self {
        let (attributes, log_offset) = (Attributes::default(), Self::LOST);
        Self { value_bytes: 0, attributes, marks: 0, cas, stamp: 0, log_offset }
    }

    /// Whether its value is lost.
    pub(crate) fn is_lost(&self) -> bool {
        self.log_offset == Self::LOST
    }

    /// The pair of an item that is in the log at `log_offset`.
    pub(crate) fn of(heap: &Heap<impl Touches>, item: u32, header: Header, log_offset: u64) -> Self {
        Self {
            value_bytes: heap.pair_bytes(item) - usize::from(header.key_bytes),
            attributes: heap.attributes(PairPlace::of_item(item)),
            marks: header.bits & MARKS,
            cas: header.cas,
            stamp: header.stamp,
            log_offset,
        }
    }

    /// Reads an item; `None` if its value is in memory.
    pub(crate) fn read(heap: &Heap<impl Touches>, item: u32) -> Option<Self> {
        let header = heap.header(item);
        heap.is_stub(item, header)
            .then(|| Self::of(heap, item, header, heap.memory.u64_at(item, header.list_at())))
    }

    /// The layout of its item.
    pub(crate) fn layout(&self, key: &[u8]) -> Layout {
        Layout::stub(key.len(), self.attributes.flags)
    }

    /// Writes the item of `key` to a block with this layout.
    pub(crate) fn write(&self, heap: &mut Heap<impl Touches>, item: u32, layout: &Layout, key: &[u8]) {
        let Attributes { flags, expiry_s } = self.attributes;
        let header = Header {
            cas: self.cas,
            key_bytes: key.len() as u8,
            bits: layout.bits | self.marks,
            value_bytes: 0,
            stamp: self.stamp,
            flags: flags as u16,
            expiry: expiry_s,
        };
        heap.set_header(item, header);
        let block = heap.memory.bytes_mut(item, 0, layout.total_bytes);
        if layout.bits & WIDE != 0 {
            block[HEADER_BYTES..HEADER_BYTES + 4].copy_from_slice(&flags.to_le_bytes());
        }
        let at = layout.pieces_at;
        block[at - 8..at - 4].copy_from_slice(&(self.value_bytes as u32).to_le_bytes());
        block[at - 4..at].copy_from_slice(&(AWAY | layout.piece_count as u32).to_le_bytes());
        block[at..at + LOG_OFFSET_BYTES].copy_from_slice(&self.log_offset.to_le_bytes());
        block[layout.key_at..].copy_from_slice(key);
    }
}
