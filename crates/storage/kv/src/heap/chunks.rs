//! The chunks of items: the whole mebibytes of their values.

use std::sync::Arc;

use memory::{Chunk, Untouched};

use crate::chunked::{ChunkList, REGIONS_PER_CHUNK};
use crate::heap::Heap;
use crate::item::{HELD, Header, LARGE, chunk_count};
use crate::place::PairPlace;
use crate::regions::REGION_LINES;
use crate::touches::Touches;

/// Chunks kept touched in advance.
const AHEAD_COUNT: usize = 16;

impl<T: Touches> Heap<T> {
    /// Number of the chunk list of an item that is no stub, if it has one.
    #[cold]
    fn chunk_number(&self, item: u32, header: Header) -> Option<u32> {
        if header.bits & LARGE == 0 || chunk_count(self.large(item, header).0) == 0 {
            return None;
        }
        Some(self.memory.u32_at(item, header.list_at()))
    }

    pub(crate) fn chunks_of(&self, item: u32, header: Header) -> Option<&ChunkList> {
        self.chunk_number(item, header).map(|number| self.chunked.list(number))
    }

    /// The chunks of an item, if nothing else refers to them.
    pub(crate) fn chunks_mut(&mut self, item: u32, header: Header) -> Option<&mut Vec<Chunk>> {
        let number = self.chunk_number(item, header)?;
        Arc::get_mut(self.chunked.list_mut(number))
    }

    /// The whole mebibytes of the value at a place; `None` if it is shorter. The value stays unchanged while they are
    /// held.
    pub(crate) fn chunks(&self, place: PairPlace) -> Option<&ChunkList> {
        let item = place.item()?;
        let header = self.header(item);
        if self.is_stub(item, header) { None } else { self.chunks_of(item, header) }
    }

    /// Makes a chunk of free regions.
    pub(crate) fn open_chunk(&mut self) -> bool {
        if !self.lend(REGIONS_PER_CHUNK) {
            return false;
        }
        let is_open = self.chunked.source.open();
        debug_assert!(is_open, "as many as regions give memory for");
        is_open
    }

    /// Lends the memory of `region_count` free regions to chunks.
    pub(crate) fn lend(&mut self, region_count: usize) -> bool {
        let lent = self.regions.lend(region_count);
        for region in &lent {
            let first = self.regions.first_line(*region);
            self.memory.give_back(first..first + REGION_LINES as u32);
        }
        !lent.is_empty()
    }

    /// Has memory touched before it is needed: passes chunks made in advance to `touch`, which may drop each on any
    /// thread once it is touched, and returns whether it accepts more. Returns the rest of the memory, for the caller
    /// to have touched.
    pub(crate) fn touch_ahead(
        &mut self,
        touch: impl FnMut(Chunk) -> bool + Send + Sync + 'static,
    ) -> Untouched {
        self.chunked.touch = Some(Box::new(touch));
        self.memory.untouched()
    }

    /// Replaces a taken chunk by up to two touched ones, while few are free and memory is available.
    pub(crate) fn touch_chunks_ahead(&mut self) {
        let Some(mut touch) = self.chunked.touch.take() else { return };
        for _ in 0..2 {
            let has_enough = self.chunked.free_regions() >= AHEAD_COUNT * REGIONS_PER_CHUNK;
            if has_enough || self.regions.free_count() < self.regions.count() / 8 || !self.open_chunk() {
                break;
            }
            // The chunk just made: the source is last in, first out.
            if !self.chunked.source.take().is_none_or(&mut touch) {
                break;
            }
        }
        self.chunked.touch = Some(touch);
    }

    /// Turns an unused chunk back into regions.
    pub(crate) fn close_chunk(&mut self) -> bool {
        let is_closed = self.chunked.source.close();
        if is_closed {
            for region in self.regions.take_back(REGIONS_PER_CHUNK) {
                let first = self.regions.first_line(region);
                self.memory.allow(first..first + REGION_LINES as u32);
            }
        }
        is_closed
    }

    /// Whether the chunks of an item are being read: freeing the item frees no memory yet.
    pub(crate) fn has_readers(&self, item: u32, header: Header) -> bool {
        header.bits & LARGE != 0
            && !self.is_stub(item, header)
            && self.chunks_of(item, header).is_some_and(|chunks| Arc::strong_count(chunks) > 1)
    }

    /// Releases the chunks of an item that is no stub.
    pub(crate) fn free_chunks(&mut self, item: u32, header: Header) {
        if let Some(number) = self.chunk_number(item, header) {
            self.chunked.remove(number);
        }
    }

    /// Records the chunks of an item whose header is written; they hold its value from the first byte on.
    pub(crate) fn put_chunks(&mut self, item: u32, at: usize, chunks: Vec<Chunk>) {
        let number = self.chunked.insert(chunks);
        self.memory.bytes_mut(item, at, 4).copy_from_slice(&number.to_le_bytes());
    }

    /// Whether the item may be changed in place: nothing else reads it.
    pub(crate) fn is_unshared(&self, item: u32) -> bool {
        let header = self.header(item);
        header.bits & HELD == 0 && !self.has_readers(item, header)
    }
}
