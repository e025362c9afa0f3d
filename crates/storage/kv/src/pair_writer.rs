//! Writing pairs: storing and replacing them, in the index or as items, and changing values in place.

use std::io;

use memory::{CHUNK_BYTES, Chunk};

use crate::allocator::Allocator;
use crate::bucket::{Bucket, BucketMut, INLINE_VALUE_BYTES_MAX, inline_cells};
use crate::item::{
    HEADER_BYTES, HELD, Header, LARGE, LOG_OFFSET_BYTES, Layout, MARKS, USES, WIDE, chunk_count, later_cas,
};
use crate::key::KeyHash;
use crate::pair::{Attributes, Extension, Stored};
use crate::pending::Pending;
use crate::place::PairPlace;
use crate::regions::{PIECE_BYTES, Purpose, Queue, Slots};
use crate::settings::Settings;
use crate::stub::Stub;
use crate::table::lines::Cell;
use crate::touches::{Touches, Usual};

/// Use count of a value fetched from the log: its reader comes next, so it must not be evicted before.
const USED_OFTEN: u8 = 2;

/// Writes pairs into the memory of a partition, and gives each new value a CAS number.
pub(crate) struct PairWriter<T = Usual> {
    pub(crate) allocator: Allocator<T>,
    pub(crate) next_cas: u64,
}

impl<T: Touches> PairWriter<T> {
    /// The writer of an empty partition.
    ///
    /// # Errors
    /// The system's error when it refuses the memory.
    pub(crate) fn new(settings: &Settings) -> io::Result<Self> {
        Ok(Self { allocator: Allocator::new(settings)?, next_cas: 1 })
    }

    /// Stores a pair, replacing the pair that was found: in the index if key and value have up to `inline_bytes_max`
    /// bytes and there is no log.
    #[inline(always)]
    pub(crate) fn put(
        &mut self,
        hash: KeyHash,
        key: &[u8],
        value: &[u8],
        attributes: Attributes,
        found: Option<PairPlace>,
        inline_bytes_max: usize,
    ) -> Stored {
        // A pair in the index has no number by which a record in the log can be recognised as current, and that is kept
        // elsewhere.
        let is_small = attributes == Attributes::default()
            && key.len() + value.len() <= inline_bytes_max
            && self.allocator.pairs.journal.is_none()
            && self.allocator.pairs.notes.is_none()
            && !self.allocator.pairs.is_leased(key);
        match inline_cells(key.len(), value.len()) {
            Some(width) if is_small => self.put_inline(hash, key, value, width, found),
            _ => self.put_item(hash, key, value, attributes, found),
        }
    }

    /// Stores a pair of `width` cells in the index, replacing the pair that was found.
    pub(crate) fn put_inline(
        &mut self,
        hash: KeyHash,
        key: &[u8],
        value: &[u8],
        width: usize,
        found: Option<PairPlace>,
    ) -> Stored {
        let pairs = &mut self.allocator.pairs;
        if let Some(place) = found {
            let bucket = Bucket(pairs.heap.memory.line(place.node()));
            if place.item().is_none() && bucket.width(place.cell()) == width {
                let (old_bytes, tag) = (bucket.inline(place.cell()).1.len(), bucket.tag(place.cell()));
                let mut bucket = BucketMut(pairs.heap.memory.line_mut(place.node()));
                bucket.put_inline(place.cell(), tag, key, value);
                pairs.counters.pair_bytes -= old_bytes as u64;
                pairs.counters.pair_bytes += value.len() as u64;
                pairs.counters.stored_count += 1;
                return Stored::Done;
            }
            pairs.unlink(hash, place);
        }
        let Some(Cell { node, cell, tag }) = self.allocator.take_cells(hash, width) else {
            return Stored::NoMemory;
        };
        let pairs = &mut self.allocator.pairs;
        BucketMut(pairs.heap.memory.line_mut(node)).put_inline(cell, tag, key, value);
        pairs.table.index.used_cells += width as u64;
        pairs.counters.pair_count += 1;
        pairs.counters.inline_count += 1;
        pairs.heap.regions.inline_stored_count += 1;
        pairs.counters.pair_bytes += (key.len() + value.len()) as u64;
        pairs.counters.stored_count += 1;
        Stored::Done
    }

    /// Stores a pair as an item, replacing the pair that was found.
    pub(crate) fn put_item(
        &mut self,
        hash: KeyHash,
        key: &[u8],
        value: &[u8],
        attributes: Attributes,
        found: Option<PairPlace>,
    ) -> Stored {
        let pairs = &self.allocator.pairs;
        let layout = pairs.layout(key.len(), value.len(), attributes.flags);
        // In place, if the block is of the right size and the item is not being sent.
        if let Some(place) = found
            && let Some(item) = place.item()
            && layout.bits & LARGE == 0
        {
            let header = pairs.heap.header(item);
            // Usually the length is the same.
            let is_alike = header.bits & (HELD | LARGE | WIDE) == layout.bits
                && usize::from(header.value_bytes) == value.len();
            if is_alike
                || header.bits & (HELD | LARGE) == 0 && pairs.heap.item_units(item, header) == layout.units()
            {
                let old_bytes = usize::from(header.value_bytes);
                self.write_item(item, &layout, key, value.len(), attributes, header.bits & USES);
                let pairs = &mut self.allocator.pairs;
                memory::copy_bytes(pairs.heap.memory.bytes_mut(item, layout.value_at, value.len()), value);
                pairs.note(hash, key, value.len());
                pairs.counters.pair_bytes -= old_bytes as u64;
                pairs.counters.pair_bytes += value.len() as u64;
                pairs.counters.stored_count += 1;
                return Stored::Done;
            }
        }
        let queue = match found {
            Some(_) => Queue::New,
            None => self.allocator.queue_of_new(hash, key.len() + value.len()),
        };
        let Some(pending) = self.begin_in(queue, key, value.len(), attributes) else {
            return Stored::NoMemory;
        };
        pending.fill(&mut self.allocator.pairs.heap, 0, value);
        self.link(hash, key, pending)
    }

    /// Moves a pair out of the index, if it is there: only items have a CAS number, an expiry and marks.
    pub(crate) fn ensure_item(&mut self, hash: KeyHash, key: &[u8], place: PairPlace) -> Option<u32> {
        if let Some(item) = place.item() {
            return Some(item);
        }
        let mut value = [0; INLINE_VALUE_BYTES_MAX];
        let old = self.allocator.pairs.heap.value(place).head();
        let length = old.len();
        value[..length].copy_from_slice(old);
        match self.put_item(hash, key, &value[..length], Attributes::default(), Some(place)) {
            Stored::Done => self.allocator.pairs.find(hash, key)?.item(),
            _ => None,
        }
    }

    /// Writes the header and key of an item.
    #[inline]
    fn write_item(
        &mut self,
        item: u32,
        layout: &Layout,
        key: &[u8],
        value_bytes: usize,
        attributes: Attributes,
        bits: u8,
    ) {
        self.next_cas += 1;
        let heap = &mut self.allocator.pairs.heap;
        let header = Header {
            cas: self.next_cas,
            key_bytes: key.len() as u8,
            bits: layout.bits | bits,
            value_bytes: if layout.bits & LARGE == 0 { value_bytes as u16 } else { 0 },
            stamp: heap.access.now(),
            flags: attributes.flags as u16,
            expiry: attributes.expiry_s,
        };
        heap.set_header(item, header);
        let block = heap.memory.bytes_mut(item, 0, layout.key_at + key.len());
        if layout.bits & WIDE != 0 {
            block[HEADER_BYTES..HEADER_BYTES + 4].copy_from_slice(&attributes.flags.to_le_bytes());
        }
        if layout.bits & LARGE != 0 {
            let at = header.list_at() - 8;
            block[at..at + 4].copy_from_slice(&(value_bytes as u32).to_le_bytes());
            block[at + 4..at + 8].copy_from_slice(&(layout.list_count() as u32).to_le_bytes());
        }
        block[layout.key_at..].copy_from_slice(key);
        if layout.log_offset_at != 0 {
            heap.memory.bytes_mut(item, layout.log_offset_at, LOG_OFFSET_BYTES).fill(0);
        }
    }

    /// Takes memory for a value that arrives in pieces. `None` if there is none.
    pub(crate) fn begin(
        &mut self,
        key: &[u8],
        value_bytes: usize,
        attributes: Attributes,
    ) -> Option<Pending> {
        self.begin_in(Queue::New, key, value_bytes, attributes)
    }

    /// As [`begin`](Self::begin), for a value that is in the log, with the memory kept for `purpose`.
    pub(crate) fn begin_fetched(
        &mut self,
        key: &[u8],
        value_bytes: usize,
        attributes: Attributes,
        purpose: Purpose,
    ) -> Option<Pending> {
        let before = self.allocator.pairs.heap.regions.set_purpose(purpose);
        let pending = self.begin_in(Queue::Fetched, key, value_bytes, attributes);
        self.allocator.pairs.heap.regions.set_purpose(before);
        pending
    }

    /// As [`begin`](Self::begin), for an item of a queue.
    fn begin_in(
        &mut self,
        queue: Queue,
        key: &[u8],
        value_bytes: usize,
        attributes: Attributes,
    ) -> Option<Pending> {
        let chunks = match chunk_count(value_bytes) {
            0 => Vec::new(),
            count => self.allocator.take_chunks(count)?,
        };
        self.begin_with(queue, key, value_bytes, attributes, chunks)
    }

    /// As [`begin`](Self::begin), for a value read at the start that never leaves memory.
    pub(crate) fn begin_short(
        &mut self,
        key: &[u8],
        value_bytes: usize,
        attributes: Attributes,
    ) -> Option<Pending> {
        self.begin_in(Queue::Kept, key, value_bytes, attributes)
    }

    /// As [`begin_in`](Self::begin_in), for a value whose whole mebibytes already have their memory.
    #[inline]
    fn begin_with(
        &mut self,
        queue: Queue,
        key: &[u8],
        value_bytes: usize,
        attributes: Attributes,
        chunks: Vec<Chunk>,
    ) -> Option<Pending> {
        let layout = self.allocator.pairs.layout(key.len(), value_bytes, attributes.flags);
        debug_assert_eq!(layout.chunk_count, chunks.len());
        let item = self.allocator.take_block(queue, layout.units())?;
        self.write_item(item, &layout, key, value_bytes, attributes, HELD);
        self.allocator.pairs.heap.regions.hold(item, true);
        for at in 0..layout.piece_count {
            let taken = self.allocator.take_piece();
            let heap = &mut self.allocator.pairs.heap;
            let Some(piece) = taken else {
                for at in 0..at {
                    let piece = heap.memory.u32_at(item, layout.pieces_at + 4 * at);
                    heap.regions.give_back_slot(Slots::Pieces, piece);
                }
                heap.regions.hold(item, false);
                heap.regions.give_back(item, layout.units());
                return None;
            };
            heap.put_piece(item, layout.pieces_at, at, piece);
        }
        let heap = &mut self.allocator.pairs.heap;
        if !chunks.is_empty() {
            heap.put_chunks(item, layout.pieces_at - 4, chunks);
        }
        let part_units = heap.part_units(item, heap.header(item));
        heap.regions.add_parts(item, part_units);
        heap.pending_count += 1;
        Some(Pending { item, layout, value_bytes })
    }

    /// Releases the memory of a value that will not be stored.
    #[expect(clippy::needless_pass_by_value, reason = "a pending value ends once")]
    pub(crate) fn abandon(&mut self, pending: Pending) {
        let heap = &mut self.allocator.pairs.heap;
        heap.release_hold(pending.item);
        heap.pending_count -= 1;
        heap.free_item(pending.item);
    }

    /// Puts a filled item into the index, replacing the current pair, and records the change.
    pub(crate) fn link(&mut self, hash: KeyHash, key: &[u8], pending: Pending) -> Stored {
        let value_bytes = pending.value_bytes;
        let stored = self.insert(hash, key, pending);
        if stored == Stored::Done {
            self.allocator.pairs.counters.stored_count += 1;
            self.allocator.pairs.note(hash, key, value_bytes);
        }
        stored
    }

    /// Puts a filled item into the index, replacing the current pair.
    fn insert(&mut self, hash: KeyHash, key: &[u8], pending: Pending) -> Stored {
        let item = pending.item;
        let value_bytes = pending.value_bytes;
        // Making room may have removed the pair that was found before.
        let pairs = &mut self.allocator.pairs;
        match pairs.find(hash, key) {
            Some(place) if let Some(old) = place.item() => {
                pairs.counters.pair_bytes -= pairs.heap.pair_bytes(old) as u64;
                pairs.counters.pair_count -= 1;
                BucketMut(pairs.heap.memory.line_mut(place.node())).set_item(place.cell(), item);
                pairs.heap.free_item(old);
            }
            Some(place) => {
                pairs.uncount(place);
                let mut bucket = BucketMut(pairs.heap.memory.line_mut(place.node()));
                let tag = Bucket(bucket.0).tag(place.cell());
                bucket.clear(place.cell());
                bucket.put_item(place.cell(), tag, item);
                pairs.table.index.used_cells += 1;
            }
            None => match self.allocator.take_cells(hash, 1) {
                Some(Cell { node, cell, tag }) => {
                    let pairs = &mut self.allocator.pairs;
                    BucketMut(pairs.heap.memory.line_mut(node)).put_item(cell, tag, item);
                    pairs.table.index.used_cells += 1;
                }
                None => {
                    self.abandon(pending);
                    return Stored::NoMemory;
                }
            },
        }
        let pairs = &mut self.allocator.pairs;
        pairs.heap.release_hold(item);
        pairs.heap.pending_count -= 1;
        pairs.counters.pair_count += 1;
        let bytes = (key.len() + value_bytes) as u64;
        pairs.counters.pair_bytes += bytes;
        if let Some(journal) = &mut pairs.journal {
            journal.note_length(bytes as usize);
        }
        pairs.heap.regions.stored_bytes += bytes;
        debug_assert!(pairs.can_fetch(), "the longest value could not be fetched");
        if pairs.is_leased(key) {
            self.allocator.set_leased_aside(hash, key);
        }
        Stored::Done
    }

    /// Stores a value whose whole mebibytes are in chunks.
    pub(crate) fn put_chunks(
        &mut self,
        hash: KeyHash,
        key: &[u8],
        chunks: Vec<Chunk>,
        rest: &[u8],
        attributes: Attributes,
    ) -> Stored {
        let offset = chunks.len() * CHUNK_BYTES;
        let length = offset + rest.len();
        let queue = match self.allocator.pairs.find(hash, key) {
            Some(_) => Queue::New,
            None => self.allocator.queue_of_new(hash, key.len() + length),
        };
        let Some(pending) = self.begin_with(queue, key, length, attributes, chunks) else {
            return Stored::NoMemory;
        };
        pending.fill(&mut self.allocator.pairs.heap, offset, rest);
        self.link(hash, key, pending)
    }

    /// Stores a value extended by more bytes before or after it.
    pub(crate) fn extend(
        &mut self,
        hash: KeyHash,
        key: &[u8],
        place: PairPlace,
        more: Extension<'_>,
    ) -> Stored {
        let more_bytes = more.byte_count();
        let old_bytes = self.allocator.pairs.heap.value_bytes(place);
        let (old_at, more_at) = if more.at_end { (0, old_bytes) } else { (more_bytes, 0) };
        let Some(pending) = self.begin_copy(key, place, old_at, more_bytes) else { return Stored::NoMemory };
        pending.fill_parts(&mut self.allocator.pairs.heap, more_at, more.chunks, more.rest);
        self.link(hash, key, pending)
    }

    /// Begins a value that contains that of a place from `at` on, besides `more_bytes` others.
    fn begin_copy(&mut self, key: &[u8], place: PairPlace, at: usize, more_bytes: usize) -> Option<Pending> {
        let heap = &self.allocator.pairs.heap;
        let attributes = heap.attributes(place);
        let value = heap.value(place);
        let (length, chunks) = (value.len(), heap.chunks(place).cloned().unwrap_or_default());
        // Making room may move blocks within regions.
        let mut rest = Vec::new();
        value.append_from(chunks.len() * CHUNK_BYTES, &mut rest);
        let pending = self.begin(key, length + more_bytes, attributes)?;
        pending.fill_parts(&mut self.allocator.pairs.heap, at, &chunks, &rest);
        Some(pending)
    }

    /// Skips CAS numbers of an item, for changes that are executed together with its next one.
    pub(crate) fn skip_cas(&mut self, place: PairPlace, count: u64) {
        if place.item().is_some() {
            self.next_cas += count;
        }
    }

    /// Gives an item a new CAS number.
    fn renew(&mut self, item: u32, header: Header) {
        self.next_cas += 1;
        self.allocator.pairs.heap.set_header(item, Header { cas: self.next_cas, ..header });
    }

    /// The value at a place, to be changed in place; it counts as a new value. `None` if it is in parts, or being sent.
    fn value_mut(&mut self, place: PairPlace) -> Option<&mut [u8]> {
        let Some(item) = place.item() else {
            let bucket = BucketMut(self.allocator.pairs.heap.memory.line_mut(place.node()));
            return Some(bucket.into_inline_value(place.cell()));
        };
        let header = self.allocator.pairs.heap.header(item);
        if header.bits & (HELD | LARGE) != 0 {
            return None;
        }
        self.renew(item, header);
        let at = header.key_at(0) + usize::from(header.key_bytes);
        Some(self.allocator.pairs.heap.memory.bytes_mut(item, at, header.value_bytes.into()))
    }

    /// Calls `each` with the parts of a value in order, to be changed in place; it counts as a new value. A value that
    /// is being sent is copied first. All parts but the last are multiples of 64 bytes. Returns `false` if there is no
    /// memory for the copy.
    pub(crate) fn change(
        &mut self,
        hash: KeyHash,
        key: &[u8],
        mut place: PairPlace,
        mut each: impl FnMut(&mut [u8]),
    ) -> bool {
        if place.item().is_some_and(|item| !self.allocator.pairs.heap.is_unshared(item)) {
            let Some(pending) = self.begin_copy(key, place, 0, 0) else { return false };
            if self.link(hash, key, pending) != Stored::Done {
                return false;
            }
            place = self.allocator.pairs.find(hash, key).expect("just stored");
        }
        if let Some(item) = place.item() {
            self.allocator.pairs.note_item(hash, key, item);
        }
        if let Some(value) = self.value_mut(place) {
            each(value);
            return true;
        }
        let item = place.item().expect("pairs in the index are whole");
        let header = self.allocator.pairs.heap.header(item);
        self.renew(item, header);
        let pairs = &mut self.allocator.pairs;
        let (length, list_count) = pairs.heap.large(item, header);
        let layout = pairs.layout(header.key_bytes.into(), length, pairs.heap.attributes(place).flags);
        debug_assert_eq!(layout.list_count(), list_count);
        if let Some(chunks) = pairs.heap.chunks_mut(item, header) {
            chunks.iter_mut().for_each(|chunk| each(chunk));
        }
        let memory = &mut pairs.heap.memory;
        for at in 0..layout.piece_count {
            let piece = memory.u32_at(item, layout.pieces_at + 4 * at);
            each(memory.piece_mut(piece, 0, PIECE_BYTES));
        }
        if layout.tail_bytes > 0 {
            each(memory.bytes_mut(item, layout.value_at, layout.tail_bytes));
        }
        true
    }

    /// Stores a value fetched from `log_offset`: the stub becomes a whole item again, unless the pair has changed
    /// since.
    pub(crate) fn load(&mut self, hash: KeyHash, key: &[u8], log_offset: u64, pending: Pending) -> bool {
        let pairs = &mut self.allocator.pairs;
        let Some(stub) = pairs.stub(hash, key).filter(|stub| stub.log_offset == log_offset) else {
            self.abandon(pending);
            return false;
        };
        pairs.counters.loaded_count += 1;
        self.restore(hash, key, &stub, pending, USED_OFTEN)
    }

    /// Stores a pair whose value was read from the log, with its CAS number, marks and expiry.
    pub(crate) fn restore(
        &mut self,
        hash: KeyHash,
        key: &[u8],
        pair: &Stub,
        pending: Pending,
        uses: u8,
    ) -> bool {
        let pairs = &mut self.allocator.pairs;
        let mut header = pairs.heap.header(pending.item);
        (header.cas, header.expiry, header.stamp) = (pair.cas, pair.attributes.expiry_s, pair.stamp);
        header.bits = header.bits & !(MARKS | USES) | pair.marks | uses;
        pairs.heap.set_header(pending.item, header);
        pairs.set_log_offset(pending.item, pair.log_offset);
        self.next_cas = later_cas(self.next_cas, pair.cas);
        self.insert(hash, key, pending) == Stored::Done
    }

    /// Stores a pair whose value stays in the log.
    pub(crate) fn restore_stub(&mut self, hash: KeyHash, key: &[u8], pair: &Stub) -> bool {
        let layout = pair.layout(key);
        let Some(item) = self.allocator.take_block(Queue::Kept, layout.units()) else { return false };
        let heap = &mut self.allocator.pairs.heap;
        pair.write(heap, item, &layout, key);
        heap.hold(item);
        heap.pending_count += 1;
        self.next_cas = later_cas(self.next_cas, pair.cas);
        let pending = Pending { item, layout, value_bytes: pair.value_bytes };
        self.insert(hash, key, pending) == Stored::Done
    }
}
