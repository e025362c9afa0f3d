//! A value that is arriving: it has memory, and is not in the index yet.

use memory::{CHUNK_BYTES, Chunk};

use crate::heap::Heap;
use crate::item::{LARGE, Layout};
use crate::regions::PIECE_BYTES;
use crate::touches::Touches;

/// An arriving value: it has its memory, and cannot be found yet.
#[derive(Debug)]
pub(crate) struct Pending {
    pub(crate) item: u32,
    pub(crate) layout: Layout,
    pub(crate) value_bytes: usize,
}

impl Pending {
    /// The memory for the bytes from `offset` on, as far as it is contiguous.
    fn room<'h>(&self, heap: &'h mut Heap<impl Touches>, offset: usize) -> &'h mut [u8] {
        let layout = &self.layout;
        if layout.bits & LARGE == 0 {
            return heap.memory.bytes_mut(self.item, layout.value_at + offset, layout.tail_bytes - offset);
        }
        if offset / CHUNK_BYTES < layout.chunk_count {
            let header = heap.header(self.item);
            let chunks = heap.chunks_mut(self.item, header).expect("a pending value has one owner");
            return &mut chunks[offset / CHUNK_BYTES][offset % CHUNK_BYTES..];
        }
        let whole = layout.chunk_count * CHUNK_BYTES;
        let (at, within) = ((offset - whole) / PIECE_BYTES, (offset - whole) % PIECE_BYTES);
        if at < layout.piece_count {
            let piece = heap.memory.u32_at(self.item, layout.pieces_at + 4 * at);
            return heap.memory.piece_mut(piece, within, PIECE_BYTES - within);
        }
        heap.memory.bytes_mut(self.item, layout.value_at + within, layout.tail_bytes - within)
    }

    /// Writes whole mebibytes of the value at `offset`, and the bytes after them.
    pub(crate) fn fill_parts(
        &self,
        heap: &mut Heap<impl Touches>,
        mut offset: usize,
        chunks: &[Chunk],
        rest: &[u8],
    ) {
        for chunk in chunks {
            self.fill(heap, offset, chunk);
            offset += CHUNK_BYTES;
        }
        self.fill(heap, offset, rest);
    }

    /// Writes bytes of the value at `offset`.
    pub(crate) fn fill(&self, heap: &mut Heap<impl Touches>, mut offset: usize, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let room = self.room(heap, offset);
            let count = room.len().min(bytes.len());
            memory::copy_bytes(&mut room[..count], &bytes[..count]);
            offset += count;
            bytes = &bytes[count..];
        }
    }
}
