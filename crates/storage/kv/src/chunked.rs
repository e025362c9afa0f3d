//! Chunks for values of a mebibyte and more: their whole mebibytes are in chunks, outside of the regions but within the
//! same memory limit.
//!
//! A chunk is filled by its receiver before its value is stored, and is read by its senders, also on other reactors.
//! Replacing or evicting the value takes it out of the index; its chunks are freed with the last reader.

use std::io;
use std::sync::Arc;

use memory::{CHUNK_BYTES, Chunk, Chunks};

use crate::regions::{REGION_BYTES, REGIONS_MAX};

/// The whole mebibytes of a value. While it is held, the value can be read unchanged.
pub type ChunkList = Arc<Vec<Chunk>>;

/// Regions whose memory makes up a chunk.
pub(crate) const REGIONS_PER_CHUNK: usize = CHUNK_BYTES / REGION_BYTES;

/// The chunks of a partition.
pub(crate) struct Chunked {
    pub(crate) source: Chunks,
    /// The chunks of items, by the number that the item holds.
    lists: Vec<Option<ChunkList>>,
    free: Vec<u32>,
    /// Chunks that all regions have memory for.
    pub(crate) count_max: usize,
    /// Touches chunks in advance.
    pub(crate) touch: Option<Box<dyn FnMut(Chunk) -> bool + Send + Sync>>,
}

impl Chunked {
    pub(crate) fn new(region_count: usize) -> io::Result<Self> {
        let count_max = region_count / REGIONS_PER_CHUNK;
        let source = Chunks::new(count_max, REGIONS_MAX / REGIONS_PER_CHUNK)?;
        Ok(Self { source, lists: Vec::new(), free: Vec::new(), count_max, touch: None })
    }

    /// Regions whose memory is in unused chunks.
    pub(crate) fn free_regions(&self) -> usize {
        (self.source.open_count() - self.source.taken_count()) * REGIONS_PER_CHUNK
    }

    /// Regions whose memory is in chunks.
    pub(crate) fn lent_regions(&self) -> usize {
        self.source.open_count() * REGIONS_PER_CHUNK
    }

    /// Bytes of chunks in use by values.
    pub(crate) fn taken_bytes(&self) -> usize {
        self.source.taken_count() * CHUNK_BYTES
    }

    /// Whether chunks are read, or are not of an item.
    pub(crate) fn is_any_held(&self) -> bool {
        let lists = || self.lists.iter().flatten();
        let item_chunk_count: usize = lists().map(|chunks| chunks.len()).sum();
        item_chunk_count < self.source.taken_count() || lists().any(|chunks| Arc::strong_count(chunks) > 1)
    }

    /// Whether chunks will be free without a change of the pairs: they are being filled, or are read by those who send a value.
    pub(crate) fn has_passing(&self) -> bool {
        let lists = || self.lists.iter().flatten();
        let stored_count: usize = lists().map(|list| list.len()).sum();
        self.source.taken_count() > stored_count || lists().any(|list| Arc::strong_count(list) > 1)
    }

    /// Drops all values.
    pub(crate) fn clear(&mut self) {
        self.lists.clear();
        self.free.clear();
    }

    pub(crate) fn insert(&mut self, chunks: Vec<Chunk>) -> u32 {
        let number = self.free.pop().unwrap_or_else(|| {
            self.lists.push(None);
            self.lists.len() as u32 - 1
        });
        self.lists[number as usize] = Some(Arc::new(chunks));
        number
    }

    pub(crate) fn list(&self, number: u32) -> &ChunkList {
        self.lists[number as usize].as_ref().expect("an item's chunks")
    }

    pub(crate) fn list_mut(&mut self, number: u32) -> &mut ChunkList {
        self.lists[number as usize].as_mut().expect("an item's chunks")
    }

    pub(crate) fn remove(&mut self, number: u32) {
        self.lists[number as usize] = None;
        self.free.push(number);
    }
}
