//! Values of a mebibyte and more: allocating, storing and evicting them.

use reactor::{CHUNK_BYTES, Chunk};

use crate::item::chunk_count;
use crate::key::KeyHash;
use crate::pair::{Attributes, Condition, Stored};
use crate::pending::Pending;
use crate::place::Place;
use crate::processor::Processor;

impl Processor {
    /// Takes memory for `count` mebibytes of an arriving value. `None` if there is none.
    pub fn take_chunks(&mut self, count: usize) -> Option<Vec<Chunk>> {
        if count > self.pairs.heap.chunked.source.count_max() {
            return None;
        }
        (0..count).map(|_| self.take_chunk()).collect()
    }

    fn take_chunk(&mut self) -> Option<Chunk> {
        loop {
            if let Some(chunk) = self.pairs.heap.chunked.source.take() {
                self.pairs.heap.touch_more();
                return Some(chunk);
            }
            if !self.pairs.heap.open_chunk() && !self.evictor.make_room_for_chunk(&mut self.pairs) {
                return None;
            }
        }
    }

    /// Checks whether a value that has not arrived yet could be stored now, memory aside.
    ///
    /// # Errors
    /// The reason why it could not.
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
        let has_memory = chunk_count(value_bytes) <= self.pairs.heap.chunked.source.count_max();
        if has_memory && self.has_log_room(key.len() + value_bytes) { Ok(()) } else { Err(Stored::NoMemory) }
    }

    /// Stores an arrived value: its whole mebibytes, and the rest, which is less than a mebibyte.
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
                self.pairs.heap.fill(&pending, offset, rest);
                self.link(hash, key, pending)
            }
            None => Stored::NoMemory,
        }
    }

    /// Stores a value extended by more bytes before or after it.
    pub fn extend(
        &mut self,
        hash: KeyHash,
        key: &[u8],
        place: Place,
        at_end: bool,
        chunks: &[Chunk],
        rest: &[u8],
    ) -> Stored {
        let attributes = self.pairs.heap.attributes(place);
        let value = self.pairs.heap.value(place);
        let (old_bytes, old_chunks) =
            (value.len(), self.pairs.heap.chunks(place).cloned().unwrap_or_default());
        // Making room may move blocks within regions.
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
                self.pairs.heap.fill(&pending, at, chunk);
                at += CHUNK_BYTES;
            }
            self.pairs.heap.fill(&pending, at, rest);
        }
        self.link(hash, key, pending)
    }

    /// A copy of the value at a place that nothing else refers to yet.
    pub(crate) fn copied(&mut self, key: &[u8], place: Place) -> Option<Pending> {
        let attributes = self.pairs.heap.attributes(place);
        let value = self.pairs.heap.value(place);
        let (length, chunks) = (value.len(), self.pairs.heap.chunks(place).cloned().unwrap_or_default());
        // Making room may move blocks within regions.
        let mut rest = Vec::new();
        value.append_from(chunks.len() * CHUNK_BYTES, &mut rest);
        let pending = self.begin(key, length, attributes)?;
        let header = self.pairs.heap.header(pending.line);
        if let Some(copies) = self.pairs.heap.chunks_mut(pending.line, header) {
            copies.iter_mut().zip(&*chunks).for_each(|(copy, chunk)| copy.copy_from_slice(chunk));
        }
        self.pairs.heap.fill(&pending, chunks.len() * CHUNK_BYTES, &rest);
        Some(pending)
    }
}
