//! Storing values, replacing earlier ones: in the index or as items, at once or as they arrive.

use reactor::Chunk;

use crate::bucket::{Bucket, BucketMut, inline_cells};
use crate::item::{HEADER_BYTES, HELD, Header, LARGE, Layout, PLACE_BYTES, USES, WIDE, chunk_count};
use crate::key::{KEY_BYTES_MAX, KeyHash};
use crate::pair::{Attributes, Condition, Stored};
use crate::pending::Pending;
use crate::place::Place;
use crate::processor::Processor;
use crate::regions::Use;
use crate::table::lines::Cell;

impl Processor {
    /// Moves a pair out of the index, if it is there.
    pub(crate) fn take_out(&mut self, hash: KeyHash, key: &[u8], place: Place) -> Option<Place> {
        if place.item().is_some() {
            return Some(place);
        }
        let mut value = [0; crate::bucket::INLINE_VALUE_BYTES_MAX];
        let length = self.pairs.heap.value(place).len();
        value[..length].copy_from_slice(self.pairs.heap.value(place).head());
        match self.put_item(hash, key, &value[..length], Attributes::default(), Some(place)) {
            Stored::Done => self.pairs.find_again(hash, key),
            _ => None,
        }
    }

    /// Stores a value.
    pub fn store(
        &mut self,
        hash: KeyHash,
        key: &[u8],
        value: &[u8],
        attributes: Attributes,
        condition: Condition,
    ) -> Stored {
        let found = self.find(hash, key);
        if let Err(refusal) = self.check(found, condition) {
            return refusal;
        }
        self.put(hash, key, value, attributes, found)
    }

    /// Checks a condition against the pair that was found.
    ///
    /// # Errors
    /// The result of a store that fails the condition.
    pub fn check(&self, found: Option<Place>, condition: Condition) -> Result<(), Stored> {
        match (condition, found) {
            (Condition::Always, _) | (Condition::Absent, None) | (Condition::Present, Some(_)) => Ok(()),
            (Condition::Absent, Some(_)) => Err(Stored::Exists),
            (Condition::Present | Condition::Unchanged(_), None) => Err(Stored::NotFound),
            (Condition::Unchanged(cas), Some(place)) => match place.item() {
                Some(line) if self.pairs.heap.header(line).cas == cas => Ok(()),
                // The CAS number of a pair in the index has not been requested since it was stored.
                _ => Err(Stored::Exists),
            },
        }
    }

    /// Stores a value, replacing the pair that was found.
    pub fn put(
        &mut self,
        hash: KeyHash,
        key: &[u8],
        value: &[u8],
        attributes: Attributes,
        found: Option<Place>,
    ) -> Stored {
        debug_assert!((1..=KEY_BYTES_MAX).contains(&key.len()));
        if value.len() > self.settings.value_bytes_max {
            return Stored::TooLarge;
        }
        if !self.has_log_room(key.len() + value.len()) {
            return Stored::NoMemory;
        }
        // A pair in the index has no number by which a record in the log can be recognised as current.
        let is_small = attributes == Attributes::default()
            && key.len() + value.len() <= self.settings.inline_bytes_max
            && self.pairs.journal.is_none();
        if is_small && let Some(width) = inline_cells(key.len(), value.len()) {
            return self.put_inline(hash, key, value, width, found);
        }
        self.put_item(hash, key, value, attributes, found)
    }

    pub(super) fn put_inline(
        &mut self,
        hash: KeyHash,
        key: &[u8],
        value: &[u8],
        width: usize,
        found: Option<Place>,
    ) -> Stored {
        if let Some(place) = found {
            if place.item().is_none()
                && Bucket(self.pairs.heap.memory.line(place.node())).width(place.cell()) == width
            {
                let old_bytes = self.pairs.heap.value(place).len();
                let tag = Bucket(self.pairs.heap.memory.line(place.node())).tag(place.cell());
                let mut bucket = BucketMut(self.pairs.heap.memory.line_mut(place.node()));
                bucket.put_inline(place.cell(), tag, key, value);
                self.pairs.counters.pair_bytes -= old_bytes as u64;
                self.pairs.counters.pair_bytes += value.len() as u64;
                self.pairs.counters.stored_count += 1;
                return Stored::Done;
            }
            self.remove(hash, place);
        }
        let Some(Cell { node, cell, tag }) = self.cells(hash, width) else { return Stored::NoMemory };
        BucketMut(self.pairs.heap.memory.line_mut(node)).put_inline(cell, tag, key, value);
        self.pairs.table.index.used_cells += width as u64;
        self.pairs.counters.pair_count += 1;
        self.pairs.counters.inline_count += 1;
        self.pairs.counters.pair_bytes += (key.len() + value.len()) as u64;
        self.pairs.counters.stored_count += 1;
        Stored::Done
    }

    pub(super) fn put_item(
        &mut self,
        hash: KeyHash,
        key: &[u8],
        value: &[u8],
        attributes: Attributes,
        found: Option<Place>,
    ) -> Stored {
        let layout = self.pairs.layout(key.len(), value.len(), attributes.flags);
        // In place, if the block is of the right size and the item is not being sent.
        if let Some(place) = found
            && let Some(line) = place.item()
            && layout.bits & LARGE == 0
        {
            let header = self.pairs.heap.header(line);
            let use_ = self.pairs.heap.regions.use_of(self.pairs.heap.regions.region_of(line));
            if header.bits & (HELD | LARGE) == 0 && use_ == Use::Items(layout.class()) {
                let old_bytes = usize::from(header.value_bytes);
                self.write_item(line, &layout, key, value.len(), attributes, header.bits & USES);
                let at = layout.value_at;
                self.pairs.heap.memory.bytes_mut(line, at, value.len()).copy_from_slice(value);
                self.pairs.note(hash, key);
                self.pairs.counters.pair_bytes -= old_bytes as u64;
                self.pairs.counters.pair_bytes += value.len() as u64;
                self.pairs.counters.stored_count += 1;
                return Stored::Done;
            }
        }
        let Some(pending) = self.begin(key, value.len(), attributes) else { return Stored::NoMemory };
        self.pairs.heap.fill(&pending, 0, value);
        self.link(hash, key, pending)
    }

    /// Writes the header and key of an item.
    #[inline]
    pub(super) fn write_item(
        &mut self,
        line: u32,
        layout: &Layout,
        key: &[u8],
        value_bytes: usize,
        attributes: Attributes,
        bits: u8,
    ) {
        self.next_cas += 1;
        let header = Header {
            cas: self.next_cas,
            key_bytes: key.len() as u8,
            bits: layout.bits | bits,
            value_bytes: if layout.bits & LARGE == 0 { value_bytes as u16 } else { 0 },
            flags: attributes.flags as u16,
            expiry: attributes.expiry_s,
        };
        let block = self.pairs.heap.memory.bytes_mut(line, 0, layout.key_at + key.len());
        block[..HEADER_BYTES].copy_from_slice(&header.encode());
        if layout.bits & WIDE != 0 {
            block[HEADER_BYTES..HEADER_BYTES + 4].copy_from_slice(&attributes.flags.to_le_bytes());
        }
        if layout.bits & LARGE != 0 {
            let at = layout.extents_at - if layout.chunk_count == 0 { 8 } else { 12 };
            block[at..at + 4].copy_from_slice(&(value_bytes as u32).to_le_bytes());
            block[at + 4..at + 8].copy_from_slice(&(layout.list_count() as u32).to_le_bytes());
        }
        block[layout.key_at..].copy_from_slice(key);
        if layout.place_at != 0 {
            self.pairs.heap.memory.bytes_mut(line, layout.place_at, PLACE_BYTES).fill(0);
        }
    }

    /// Takes memory for a value that arrives in pieces. `None` if there is none.
    pub fn begin(&mut self, key: &[u8], value_bytes: usize, attributes: Attributes) -> Option<Pending> {
        let chunks = match chunk_count(value_bytes) {
            0 => Vec::new(),
            count => self.take_chunks(count)?,
        };
        self.begin_with(key, value_bytes, attributes, chunks)
    }

    /// As [`begin`](Self::begin), for a value whose whole mebibytes already have their memory.
    #[inline]
    pub(crate) fn begin_with(
        &mut self,
        key: &[u8],
        value_bytes: usize,
        attributes: Attributes,
        chunks: Vec<Chunk>,
    ) -> Option<Pending> {
        let layout = self.pairs.layout(key.len(), value_bytes, attributes.flags);
        debug_assert_eq!(layout.chunk_count, chunks.len());
        let line = self.take_block(layout.class())?;
        self.write_item(line, &layout, key, value_bytes, attributes, HELD);
        self.pairs.heap.regions.hold(line, true);
        for at in 0..layout.extent_count {
            let Some(region) = self.take_extent() else {
                for taken in 0..at {
                    let region = self.pairs.heap.extent_of(line, &layout, taken);
                    self.pairs.heap.regions.give_back_extent(region);
                }
                self.pairs.heap.regions.hold(line, false);
                self.pairs.heap.regions.give_back(line);
                return None;
            };
            let bytes = self.pairs.heap.memory.bytes_mut(line, layout.extents_at + 4 * at, 4);
            bytes.copy_from_slice(&region.to_le_bytes());
        }
        if !chunks.is_empty() {
            self.pairs.heap.put_chunks(line, layout.extents_at - 4, chunks);
        }
        self.pairs.heap.pending_count += 1;
        Some(Pending { line, layout, value_bytes })
    }

    /// A stub to be put into the index.
    pub(crate) fn pending_stub(&mut self, line: u32, layout: Layout, value_bytes: usize) -> Pending {
        self.pairs.heap.pending_count += 1;
        Pending { line, layout, value_bytes }
    }

    /// Stores a value that has arrived.
    pub fn commit(&mut self, hash: KeyHash, key: &[u8], pending: Pending, condition: Condition) -> Stored {
        self.pairs.heap.memory.begin_operation();
        let found = self.pairs.find_again(hash, key);
        if let Err(refusal) = self.check(found, condition) {
            self.abandon(pending);
            return refusal;
        }
        self.link(hash, key, pending)
    }

    /// Releases the memory of a value that will not be stored.
    #[expect(clippy::needless_pass_by_value, reason = "a pending value ends once")]
    pub fn abandon(&mut self, pending: Pending) {
        self.pairs.heap.release_hold(pending.line);
        self.pairs.heap.pending_count -= 1;
        self.pairs.heap.free_item(pending.line);
    }

    /// Puts a filled item into the index, replacing the current pair, and records the change.
    pub(crate) fn link(&mut self, hash: KeyHash, key: &[u8], pending: Pending) -> Stored {
        let stored = self.insert(hash, key, pending);
        if stored == Stored::Done {
            self.pairs.counters.stored_count += 1;
            self.pairs.note(hash, key);
        }
        stored
    }

    /// Puts a filled item into the index, replacing the current pair.
    pub(crate) fn insert(&mut self, hash: KeyHash, key: &[u8], pending: Pending) -> Stored {
        let line = pending.line;
        let value_bytes = pending.value_bytes;
        // Making room may have removed the pair that was found before.
        let found = self.pairs.find_again(hash, key);
        match found {
            Some(place) if place.item().is_some() => {
                let old = place.item().expect("just seen");
                self.pairs.counters.pair_bytes -= self.pairs.heap.pair_bytes(old) as u64;
                self.pairs.counters.pair_count -= 1;
                BucketMut(self.pairs.heap.memory.line_mut(place.node())).set_item(place.cell(), line);
                self.pairs.heap.free_item(old);
            }
            Some(place) => {
                self.pairs.count_out(place);
                let tag = Bucket(self.pairs.heap.memory.line(place.node())).tag(place.cell());
                let mut bucket = BucketMut(self.pairs.heap.memory.line_mut(place.node()));
                bucket.clear(place.cell());
                bucket.put_item(place.cell(), tag, line);
                self.pairs.table.index.used_cells += 1;
            }
            None => match self.cells(hash, 1) {
                Some(Cell { node, cell, tag }) => {
                    BucketMut(self.pairs.heap.memory.line_mut(node)).put_item(cell, tag, line);
                    self.pairs.table.index.used_cells += 1;
                }
                None => {
                    self.abandon(pending);
                    return Stored::NoMemory;
                }
            },
        }
        self.pairs.heap.release_hold(line);
        self.pairs.heap.pending_count -= 1;
        self.pairs.counters.pair_count += 1;
        self.pairs.counters.pair_bytes += (key.len() + value_bytes) as u64;
        Stored::Done
    }
}
