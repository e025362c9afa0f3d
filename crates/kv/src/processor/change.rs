//! Changing values where they lie, and keeping them as they are while they are sent.

use reactor::CHUNK_BYTES;

use crate::bucket::{Bucket, BucketMut};
use crate::item::{BITS_AT, HEADER_BYTES, HELD, Header, LARGE, WIDE, chunk_count};
use crate::key::KeyHash;
use crate::pair::Stored;
use crate::pins::{Pin, Pins};
use crate::place::Place;
use crate::processor::Processor;
use crate::regions::REGION_BYTES;
use crate::value::Value;

impl Processor {
    pub(super) fn release_hold(&mut self, line: u32) {
        self.memory.bytes_mut(line, BITS_AT, 1)[0] &= !HELD;
        self.regions.hold(line, false);
    }

    /// Gives an item's memory back, now or when it was sent.
    pub(crate) fn free_item(&mut self, line: u32) {
        let header = self.header(line);
        if header.bits & HELD != 0 {
            let pins = self.pins.get_mut(&line).expect("only pinned items are held in the index");
            pins.is_detached = true;
            return;
        }
        if header.bits & LARGE != 0 && !self.is_stub(line, header) {
            let (length, list_count) = self.large(line, header);
            let table_at = HEADER_BYTES + if header.bits & WIDE == 0 { 8 } else { 12 };
            for at in usize::from(chunk_count(length) > 0)..list_count {
                let bytes = self.memory.bytes(line, table_at + 4 * at, 4);
                let region = u32::from_le_bytes(bytes.try_into().expect("four bytes"));
                self.regions.give_back_extent(region);
            }
            self.free_chunks(line, header);
        }
        self.regions.give_back(line);
    }

    /// The value at a place, to be changed as it lies; it counts as stored anew. `None` if it is in parts, or
    /// being sent.
    pub fn value_mut(&mut self, place: Place) -> Option<&mut [u8]> {
        let Some(line) = place.item() else {
            let bucket = BucketMut(self.memory.line_mut(place.node()));
            let range = {
                let (key, value) = Bucket(bucket.0).inline(place.cell());
                let at = 16 + place.cell() * 4 + key.len();
                at..at + value.len()
            };
            return Some(&mut bucket.0[range]);
        };
        let header = self.header(line);
        if header.bits & (HELD | LARGE) != 0 {
            return None;
        }
        self.renew(line, header);
        let at = header.key_at(0) + usize::from(header.key_bytes);
        Some(self.memory.bytes_mut(line, at, header.value_bytes.into()))
    }

    /// So many changes of a pair are about to be carried out as one: its number goes up as if each were on its own.
    pub fn join_changes(&mut self, place: Place, count: u64) {
        if place.item().is_some() {
            self.next_cas += count.saturating_sub(1);
        }
    }

    /// Gives an item a new number.
    pub(super) fn renew(&mut self, line: u32, header: Header) {
        self.next_cas += 1;
        let header = Header { cas: self.next_cas, ..header };
        self.memory.bytes_mut(line, 0, HEADER_BYTES).copy_from_slice(&header.encode());
    }

    /// Calls `each` with the parts of a value in order, to be changed as they lie: it counts as stored anew.
    /// A value that is being sent is copied first. Parts but the last are multiples of 64 bytes. `false` if
    /// there is no memory for that.
    pub fn change(
        &mut self,
        hash: KeyHash,
        key: &[u8],
        place: Place,
        mut each: impl FnMut(&mut [u8]),
    ) -> bool {
        let mut place = place;
        if place.item().is_some_and(|line| !self.is_own(line)) {
            let Some(pending) = self.copied(key, place) else { return false };
            if self.link(hash, key, pending) != Stored::Done {
                return false;
            }
            place = self.find_again(hash, key).expect("just stored");
        }
        self.note(hash, key);
        if let Some(line) = place.item() {
            self.unplace(line);
        }
        if let Some(value) = self.value_mut(place) {
            each(value);
            return true;
        }
        let line = place.item().expect("pairs in the index are whole");
        let header = self.header(line);
        self.renew(line, header);
        let (length, list_count) = self.large(line, header);
        let layout = self.layout(header.key_bytes.into(), length, self.attributes(place).flags);
        debug_assert_eq!(layout.list_count(), list_count);
        if let Some(chunks) = self.chunks_mut(line, header) {
            chunks.iter_mut().for_each(|chunk| each(chunk));
        }
        let rest_bytes = length - layout.chunk_count * CHUNK_BYTES;
        for at in 0..layout.extent_count {
            let region = self.extent_of(line, &layout, at);
            let bytes = REGION_BYTES.min(rest_bytes - at * REGION_BYTES);
            each(self.memory.bytes_mut(self.regions.first_line(region), 0, bytes));
        }
        if layout.tail_bytes > 0 {
            each(self.memory.bytes_mut(line, layout.value_at, layout.tail_bytes));
        }
        true
    }

    /// Keeps the value at a place as it is, to be sent piece by piece. A pair in the index is copied instead:
    /// `None`.
    pub fn pin(&mut self, place: Place) -> Option<Pin> {
        let line = place.item()?;
        let pins = self.pins.entry(line).or_insert(Pins { count: 0, is_detached: false });
        pins.count += 1;
        if pins.count == 1 {
            self.memory.bytes_mut(line, BITS_AT, 1)[0] |= HELD;
            self.regions.hold(line, true);
        }
        Some(Pin { line })
    }

    /// A pinned value.
    #[must_use]
    pub fn pinned(&self, pin: &Pin) -> Value<'_> {
        self.item_value(pin.line)
    }

    /// Ends a pin. Says whether that has freed memory.
    #[expect(clippy::needless_pass_by_value, reason = "a pin ends once")]
    pub fn unpin(&mut self, pin: Pin) -> bool {
        let pins = self.pins.get_mut(&pin.line).expect("pinned");
        pins.count -= 1;
        if pins.count > 0 {
            return false;
        }
        let is_detached = pins.is_detached;
        self.pins.remove(&pin.line);
        self.release_hold(pin.line);
        if is_detached {
            self.free_item(pin.line);
        }
        is_detached
    }
}
