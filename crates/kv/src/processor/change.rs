//! Changing values in place, and keeping them unchanged while they are sent.

use std::sync::Arc;

use reactor::CHUNK_BYTES;

use crate::bucket::{Bucket, BucketMut};
use crate::item::{HEADER_BYTES, HELD, Header, LARGE};
use crate::kept::Kept;
use crate::key::KeyHash;
use crate::pair::Stored;
use crate::place::Place;
use crate::processor::Processor;
use crate::regions::REGION_BYTES;

impl Processor {
    /// The value at a place, to be changed in place; it counts as a new value. `None` if it is in parts, or being sent.
    pub fn value_mut(&mut self, place: Place) -> Option<&mut [u8]> {
        let Some(line) = place.item() else {
            let bucket = BucketMut(self.pairs.heap.memory.line_mut(place.node()));
            let range = {
                let (key, value) = Bucket(bucket.0).inline(place.cell());
                let at = 16 + place.cell() * 4 + key.len();
                at..at + value.len()
            };
            return Some(&mut bucket.0[range]);
        };
        let header = self.pairs.heap.header(line);
        if header.bits & (HELD | LARGE) != 0 {
            return None;
        }
        self.renew(line, header);
        let at = header.key_at(0) + usize::from(header.key_bytes);
        Some(self.pairs.heap.memory.bytes_mut(line, at, header.value_bytes.into()))
    }

    /// Advances the CAS number for `count` changes of a pair that are about to be executed as one.
    pub fn join_changes(&mut self, place: Place, count: u64) {
        if place.item().is_some() {
            self.next_cas += count.saturating_sub(1);
        }
    }

    /// Gives an item a new CAS number.
    pub(super) fn renew(&mut self, line: u32, header: Header) {
        self.next_cas += 1;
        let header = Header { cas: self.next_cas, ..header };
        self.pairs.heap.memory.bytes_mut(line, 0, HEADER_BYTES).copy_from_slice(&header.encode());
    }

    /// Calls `each` with the parts of a value in order, to be changed in place; it counts as a new value. A value that
    /// is being sent is copied first. All parts but the last are multiples of 64 bytes. Returns `false` if there is no
    /// memory for the copy.
    pub fn change(
        &mut self,
        hash: KeyHash,
        key: &[u8],
        place: Place,
        mut each: impl FnMut(&mut [u8]),
    ) -> bool {
        let mut place = place;
        if place.item().is_some_and(|line| !self.pairs.heap.is_own(line)) {
            let Some(pending) = self.copied(key, place) else { return false };
            if self.link(hash, key, pending) != Stored::Done {
                return false;
            }
            place = self.pairs.find_again(hash, key).expect("just stored");
        }
        self.pairs.note(hash, key);
        if let Some(line) = place.item() {
            self.pairs.unplace(line);
        }
        if let Some(value) = self.value_mut(place) {
            each(value);
            return true;
        }
        let line = place.item().expect("pairs in the index are whole");
        let header = self.pairs.heap.header(line);
        self.renew(line, header);
        let (length, list_count) = self.pairs.heap.large(line, header);
        let layout =
            self.pairs.layout(header.key_bytes.into(), length, self.pairs.heap.attributes(place).flags);
        debug_assert_eq!(layout.list_count(), list_count);
        if let Some(chunks) = self.pairs.heap.chunks_mut(line, header) {
            chunks.iter_mut().for_each(|chunk| each(chunk));
        }
        let rest_bytes = length - layout.chunk_count * CHUNK_BYTES;
        for at in 0..layout.extent_count {
            let region = self.pairs.heap.extent_of(line, &layout, at);
            let bytes = REGION_BYTES.min(rest_bytes - at * REGION_BYTES);
            each(self.pairs.heap.memory.bytes_mut(self.pairs.heap.regions.first_line(region), 0, bytes));
        }
        if layout.tail_bytes > 0 {
            each(self.pairs.heap.memory.bytes_mut(line, layout.value_at, layout.tail_bytes));
        }
        true
    }
}

impl Processor {
    /// Keeps the value at a place unchanged; `None` if the pair is in the index.
    pub fn keep(&mut self, place: Place) -> Option<Kept> {
        self.pairs.heap.let_go();
        let hash = self.pairs.table.hash_of_item(&self.pairs.heap, place.item()?);
        let length = self.pairs.heap.value(place).len();
        let pin = self.pairs.heap.pin(place)?;
        Some(Kept { pin: Some(pin), hash, length, returned: Arc::clone(&self.pairs.heap.returned) })
    }
}
