//! Filling items with the bytes of their values as they arrive.

use reactor::CHUNK_BYTES;

use crate::heap::Heap;
use crate::item::{LARGE, Layout};
use crate::pending::Pending;
use crate::regions::REGION_BYTES;

impl Heap {
    pub(crate) fn extent_of(&self, line: u32, layout: &Layout, at: usize) -> u32 {
        let bytes = self.memory.bytes(line, layout.extents_at + 4 * at, 4);
        u32::from_le_bytes(bytes.try_into().expect("four bytes"))
    }

    /// The memory for the bytes of a value from `offset` on, as far as it is contiguous.
    pub(crate) fn room(&mut self, pending: &Pending, offset: usize) -> &mut [u8] {
        let layout = &pending.layout;
        if layout.bits & LARGE != 0 {
            return self.room_in_parts(pending, offset);
        }
        self.memory.bytes_mut(pending.line, layout.value_at + offset, layout.tail_bytes - offset)
    }

    pub(crate) fn room_in_parts(&mut self, pending: &Pending, offset: usize) -> &mut [u8] {
        let layout = &pending.layout;
        if offset / CHUNK_BYTES < layout.chunk_count {
            let header = self.header(pending.line);
            let chunks = self.chunks_mut(pending.line, header).expect("a pending value has one owner");
            return &mut chunks[offset / CHUNK_BYTES][offset % CHUNK_BYTES..];
        }
        let whole = layout.chunk_count * CHUNK_BYTES;
        let (offset, rest_bytes) = (offset - whole, pending.value_bytes - whole);
        let (extent, within) = (offset / REGION_BYTES, offset % REGION_BYTES);
        if extent < layout.extent_count {
            let region = self.extent_of(pending.line, layout, extent);
            let length = REGION_BYTES.min(rest_bytes - extent * REGION_BYTES) - within;
            return self.memory.bytes_mut(self.regions.first_line(region), within, length);
        }
        let within = offset - layout.extent_count * REGION_BYTES;
        self.memory.bytes_mut(pending.line, layout.value_at + within, layout.tail_bytes - within)
    }

    /// Writes bytes of a value at `offset`.
    pub(crate) fn fill(&mut self, pending: &Pending, mut offset: usize, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let room = self.room(pending, offset);
            let count = room.len().min(bytes.len());
            room[..count].copy_from_slice(&bytes[..count]);
            offset += count;
            bytes = &bytes[count..];
        }
    }
}
