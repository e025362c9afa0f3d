//! Values of a mebibyte and more: their whole mebibytes lie in chunks, beside the regions and out of the same
//! memory.
//!
//! A chunk is filled before its value is anyone's, by whoever receives it, and is read by whoever sends it, also
//! on other reactors. What is stored in place of the value, and its eviction, take it out of the index; its
//! chunks are free when the last reader is done.

use std::io;
use std::sync::Arc;

use reactor::{CHUNK_BYTES, Chunk, Chunks, Untouched};

use crate::item::{HEADER_BYTES, HELD, Header, LARGE, WIDE, chunk_count};
use crate::key::KeyHash;
use crate::pair::{Attributes, Condition, Stored};
use crate::pending::Pending;
use crate::place::Place;
use crate::processor::Processor;
use crate::regions::{REGION_BYTES, REGION_LINES};
use crate::settings::Eviction;

/// The whole mebibytes of a value: whoever has them reads the value as it was.
pub type ChunkList = Arc<Vec<Chunk>>;

/// Regions whose memory a chunk has.
const REGIONS_PER_CHUNK: usize = CHUNK_BYTES / REGION_BYTES;

/// Chunks that are touched ahead of what is wanted.
const AHEAD_COUNT: usize = 16;

/// The chunks of a partition, and whose they are.
pub(crate) struct Chunked {
    source: Chunks,
    entries: Vec<Option<Entry>>,
    free: Vec<u32>,
    hand: usize,
    pressure: u32,
    /// Has chunks touched that nobody wants yet.
    touch: Option<Box<dyn FnMut(Chunk) -> bool + Send>>,
}

struct Entry {
    /// Of the item.
    line: u32,
    chunks: ChunkList,
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

    fn insert(&mut self, entry: Entry) -> u32 {
        let number = self.free.pop().unwrap_or_else(|| {
            self.entries.push(None);
            self.entries.len() as u32 - 1
        });
        self.entries[number as usize] = Some(entry);
        number
    }

    fn entry(&self, number: u32) -> &Entry {
        self.entries[number as usize].as_ref().expect("an item's chunks")
    }

    fn entry_mut(&mut self, number: u32) -> &mut Entry {
        self.entries[number as usize].as_mut().expect("an item's chunks")
    }

    fn remove(&mut self, number: u32) {
        self.entries[number as usize] = None;
        self.free.push(number);
    }
}

impl Processor {
    /// Number of the chunks of an item that is no stub, if it has any.
    #[cold]
    fn chunk_number(&self, line: u32, header: Header) -> Option<u32> {
        if header.bits & LARGE == 0 || chunk_count(self.large(line, header).0) == 0 {
            return None;
        }
        let at = HEADER_BYTES + if header.bits & WIDE == 0 { 8 } else { 12 };
        let bytes = self.memory.bytes(line, at, 4);
        Some(u32::from_le_bytes(bytes.try_into().expect("four bytes")))
    }

    pub(crate) fn chunks_of(&self, line: u32, header: Header) -> Option<&ChunkList> {
        self.chunk_number(line, header).map(|number| &self.chunked.entry(number).chunks)
    }

    /// The chunks of an item while nobody else reads them.
    pub(crate) fn chunks_mut(&mut self, line: u32, header: Header) -> Option<&mut Vec<Chunk>> {
        let number = self.chunk_number(line, header)?;
        Arc::get_mut(&mut self.chunked.entry_mut(number).chunks)
    }

    /// The whole mebibytes of the value at a place; `None` if it is shorter. Who keeps them keeps this value.
    #[must_use]
    pub fn chunks(&self, place: Place) -> Option<&ChunkList> {
        let line = place.item()?;
        let header = self.header(line);
        if self.is_stub(line, header) { None } else { self.chunks_of(line, header) }
    }

    /// Takes memory for so many mebibytes of a value that arrives. `None` if there is none.
    pub fn take_chunks(&mut self, count: usize) -> Option<Vec<Chunk>> {
        if count > self.chunked.source.count_max() {
            return None;
        }
        (0..count).map(|_| self.take_chunk()).collect()
    }

    fn take_chunk(&mut self) -> Option<Chunk> {
        loop {
            if let Some(chunk) = self.chunked.source.take() {
                self.touch_more();
                return Some(chunk);
            }
            if !self.open_chunk() && !self.make_room_for_chunk() {
                return None;
            }
        }
    }

    /// Makes a chunk of free regions.
    fn open_chunk(&mut self) -> bool {
        if !self.lend(REGIONS_PER_CHUNK) {
            return false;
        }
        let is_open = self.chunked.source.open();
        debug_assert!(is_open, "as many as regions give memory for");
        is_open
    }

    /// Gives the memory of so many free regions to chunks.
    pub(crate) fn lend(&mut self, region_count: usize) -> bool {
        let lent = self.regions.lend(region_count);
        for region in &lent {
            let first = self.regions.first_line(*region);
            self.memory.give_back(first..first + REGION_LINES as u32);
        }
        !lent.is_empty()
    }

    /// Has memory touched before it is wanted: chunks are made ahead of those that are taken, and given to `touch`, which drops each when
    /// that is done, on any thread; it says whether it takes more. Gives the rest of the memory back for who touches that.
    pub fn touch_ahead(&mut self, touch: impl FnMut(Chunk) -> bool + Send + 'static) -> Untouched {
        self.chunked.touch = Some(Box::new(touch));
        self.memory.untouched()
    }

    /// A chunk was taken: others are touched in its place, two for one, as long as there are few and memory is free.
    fn touch_more(&mut self) {
        let Some(mut touch) = self.chunked.touch.take() else { return };
        for _ in 0..2 {
            let has_enough = self.chunked.free_regions() >= AHEAD_COUNT * REGIONS_PER_CHUNK;
            if has_enough || self.regions.free_count() < self.regions.count() / 8 || !self.open_chunk() {
                break;
            }
            // The one just made: the last that came is the first that is taken.
            if !self.chunked.source.take().is_none_or(&mut touch) {
                break;
            }
        }
        self.chunked.touch = Some(touch);
    }

    /// Makes regions of a chunk that nobody has.
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

    fn make_room_for_chunk(&mut self) -> bool {
        if self.let_go() {
            return true;
        }
        if self.durable.is_some() {
            return self.demote_chunked() || self.make_room(None);
        }
        if self.settings.eviction == Eviction::None {
            return self.make_room(None);
        }
        // Mostly from its own kind, and every so often from others: memory follows the sizes that are stored.
        self.chunked.pressure += 1;
        if self.chunked.pressure.is_multiple_of(if self.is_mostly_chunked() { 4 } else { 2 }) {
            let emptied = (0..REGIONS_PER_CHUNK).take_while(|_| self.evict_region(None)).count();
            if emptied == REGIONS_PER_CHUNK {
                return true;
            }
        }
        self.evict_chunked() || self.make_room(None)
    }

    /// Whether values in chunks have most of the memory.
    pub(crate) fn is_mostly_chunked(&self) -> bool {
        2 * self.chunked.lent_regions() > self.regions.count()
    }

    /// The hand goes on over values in chunks until it has evicted one.
    pub(crate) fn evict_chunked(&mut self) -> bool {
        self.pass_chunked(Self::pass)
    }

    /// The same, and leaves a stub of the value.
    pub(crate) fn demote_chunked(&mut self) -> bool {
        self.pass_chunked(Self::demote)
    }

    fn pass_chunked(&mut self, mut pass: impl FnMut(&mut Self, u32) -> bool) -> bool {
        let count = self.chunked.entries.len();
        // Each round takes a use from everything.
        for _ in 0..3 * count {
            self.chunked.hand = (self.chunked.hand + 1) % count;
            // One that is being sent frees nothing yet.
            let Some(Entry { line, chunks }) = &self.chunked.entries[self.chunked.hand] else { continue };
            if Arc::strong_count(chunks) == 1 && pass(self, *line) {
                return true;
            }
        }
        false
    }

    /// Whether an item has chunks.
    pub(crate) fn is_chunked(&self, line: u32) -> bool {
        let header = self.header(line);
        header.bits & LARGE != 0 && !self.is_stub(line, header) && self.chunk_number(line, header).is_some()
    }

    /// An item lies elsewhere now.
    pub(crate) fn on_moved(&mut self, to: u32) {
        let header = self.header(to);
        if header.bits & LARGE != 0
            && !self.is_stub(to, header)
            && let Some(number) = self.chunk_number(to, header)
        {
            self.chunked.entry_mut(number).line = to;
        }
    }

    /// Lets go of the chunks of an item that is no stub.
    pub(crate) fn free_chunks(&mut self, line: u32, header: Header) {
        if let Some(number) = self.chunk_number(line, header) {
            self.chunked.remove(number);
        }
    }

    /// Notes the chunks of an item whose header is written: they are those of its value from the first byte on.
    pub(crate) fn put_chunks(&mut self, line: u32, at: usize, chunks: Vec<Chunk>) {
        let number = self.chunked.insert(Entry { line, chunks: Arc::new(chunks) });
        self.memory.bytes_mut(line, at, 4).copy_from_slice(&number.to_le_bytes());
    }

    /// Whether a value that is yet to arrive could be stored now, but for memory.
    ///
    /// # Errors
    /// What stands against it.
    pub fn would_store(
        &mut self,
        hash: KeyHash,
        key: &[u8],
        value_bytes: usize,
        condition: Condition,
    ) -> Result<(), Stored> {
        let found = self.find(hash, key);
        self.check(found, condition)?;
        if value_bytes > self.settings.value_bytes_max {
            return Err(Stored::TooLarge);
        }
        let has_memory = chunk_count(value_bytes) <= self.chunked.source.count_max();
        if has_memory && self.has_log_room(key.len() + value_bytes) { Ok(()) } else { Err(Stored::NoMemory) }
    }

    /// Stores a value that has arrived: whole mebibytes, and what follows them, less than another one.
    pub fn store_chunks(
        &mut self,
        hash: KeyHash,
        key: &[u8],
        chunks: Vec<Chunk>,
        rest: &[u8],
        attributes: Attributes,
        condition: Condition,
    ) -> Stored {
        debug_assert!(rest.len() < CHUNK_BYTES);
        let value_bytes = chunks.len() * CHUNK_BYTES + rest.len();
        let found = self.find(hash, key);
        if let Err(refusal) = self.check(found, condition) {
            return refusal;
        }
        if value_bytes > self.settings.value_bytes_max {
            return Stored::TooLarge;
        }
        if chunks.is_empty() {
            return self.put(hash, key, rest, attributes, found);
        }
        if !self.has_log_room(key.len() + value_bytes) {
            return Stored::NoMemory;
        }
        let offset = chunks.len() * CHUNK_BYTES;
        match self.begin_with(key, value_bytes, attributes, chunks) {
            Some(pending) => {
                self.fill(&pending, offset, rest);
                self.link(hash, key, pending)
            }
            None => Stored::NoMemory,
        }
    }

    /// Stores a value together with more, before or behind it, in its place.
    pub fn extend(
        &mut self,
        hash: KeyHash,
        key: &[u8],
        place: Place,
        at_end: bool,
        chunks: &[Chunk],
        rest: &[u8],
    ) -> Stored {
        let attributes = self.attributes(place);
        let value = self.value(place);
        let (old_bytes, old_chunks) = (value.len(), self.chunks(place).cloned().unwrap_or_default());
        // Making room may move what lies in regions.
        let mut old_rest = Vec::new();
        value.append_from(old_chunks.len() * CHUNK_BYTES, &mut old_rest);
        let more_bytes = chunks.len() * CHUNK_BYTES + rest.len();
        if !self.has_log_room(key.len() + old_bytes + more_bytes) {
            return Stored::NoMemory;
        }
        let Some(pending) = self.begin(key, old_bytes + more_bytes, attributes) else {
            return Stored::NoMemory;
        };
        let (old_at, more_at) = if at_end { (0, old_bytes) } else { (more_bytes, 0) };
        for (mut at, chunks, rest) in [(old_at, &**old_chunks, &old_rest[..]), (more_at, chunks, rest)] {
            for chunk in chunks {
                self.fill(&pending, at, chunk);
                at += CHUNK_BYTES;
            }
            self.fill(&pending, at, rest);
        }
        self.link(hash, key, pending)
    }

    /// A copy of the value at a place that nobody else has yet.
    pub(crate) fn copied(&mut self, key: &[u8], place: Place) -> Option<Pending> {
        let attributes = self.attributes(place);
        let value = self.value(place);
        let (length, chunks) = (value.len(), self.chunks(place).cloned().unwrap_or_default());
        // Making room may move what lies in regions.
        let mut rest = Vec::new();
        value.append_from(chunks.len() * CHUNK_BYTES, &mut rest);
        let pending = self.begin(key, length, attributes)?;
        let header = self.header(pending.line);
        if let Some(copies) = self.chunks_mut(pending.line, header) {
            copies.iter_mut().zip(&*chunks).for_each(|(copy, chunk)| copy.copy_from_slice(chunk));
        }
        self.fill(&pending, chunks.len() * CHUNK_BYTES, &rest);
        Some(pending)
    }

    /// Whether the item is free to be changed where it lies.
    pub(crate) fn is_own(&self, line: u32) -> bool {
        let header = self.header(line);
        header.bits & HELD == 0
            && (header.bits & LARGE == 0
                || self.chunks_of(line, header).is_none_or(|chunks| Arc::strong_count(chunks) == 1))
    }
}
