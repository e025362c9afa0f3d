//! Values of a mebibyte and more: their whole mebibytes lie in chunks, beside the regions and out of the same
//! memory.
//!
//! A chunk is filled before its value is anyone's, by whoever receives it, and is read by whoever sends it, also
//! on other reactors. What is stored in place of the value, and its eviction, take it out of the index; its
//! chunks are free when the last reader is done.

use std::io;
use std::sync::Arc;

use reactor::{CHUNK_BYTES, Chunk, Chunks};

use crate::regions::REGION_BYTES;

/// The whole mebibytes of a value: whoever has them reads the value as it was.
pub type ChunkList = Arc<Vec<Chunk>>;

/// Regions whose memory a chunk has.
pub(crate) const REGIONS_PER_CHUNK: usize = CHUNK_BYTES / REGION_BYTES;

/// The chunks of a partition, and whose they are.
pub(crate) struct Chunked {
    pub(crate) source: Chunks,
    pub(crate) entries: Vec<Option<Entry>>,
    free: Vec<u32>,
    pub(crate) hand: usize,
    pub(crate) pressure: u32,
    /// Has chunks touched that nobody wants yet.
    pub(crate) touch: Option<Box<dyn FnMut(Chunk) -> bool + Send>>,
}

/// The chunks of one item.
pub(crate) struct Entry {
    /// Of the item.
    pub(crate) line: u32,
    pub(crate) chunks: ChunkList,
}

impl Chunked {
    pub(crate) fn new(region_count: usize) -> io::Result<Self> {
        let source = Chunks::new(region_count / REGIONS_PER_CHUNK)?;
        Ok(Self { source, entries: Vec::new(), free: Vec::new(), hand: 0, pressure: 0, touch: None })
    }

    /// Regions whose memory is in chunks that nobody has.
    pub(crate) fn free_regions(&self) -> usize {
        (self.source.open_count() - self.source.taken_count()) * REGIONS_PER_CHUNK
    }

    /// Regions whose memory is in chunks.
    pub(crate) fn lent_regions(&self) -> usize {
        self.source.open_count() * REGIONS_PER_CHUNK
    }

    /// Bytes of chunks that values have.
    pub(crate) fn taken_bytes(&self) -> usize {
        self.source.taken_count() * CHUNK_BYTES
    }

    /// Forgets all values.
    pub(crate) fn clear(&mut self) {
        self.entries.clear();
        self.free.clear();
        self.hand = 0;
    }

    pub(crate) fn insert(&mut self, entry: Entry) -> u32 {
        let number = self.free.pop().unwrap_or_else(|| {
            self.entries.push(None);
            self.entries.len() as u32 - 1
        });
        self.entries[number as usize] = Some(entry);
        number
    }

    pub(crate) fn entry(&self, number: u32) -> &Entry {
        self.entries[number as usize].as_ref().expect("an item's chunks")
    }

    pub(crate) fn entry_mut(&mut self, number: u32) -> &mut Entry {
        self.entries[number as usize].as_mut().expect("an item's chunks")
    }

    pub(crate) fn remove(&mut self, number: u32) {
        self.entries[number as usize] = None;
        self.free.push(number);
    }
}
