//! Pairs of a partition with a log: changes are recorded, and values may leave memory for the log.
//!
//! ```text
//! whole, place 0 ──written──▶ whole, place in the log ──memory is short──▶ stub ──fetched──▶ whole, its place …
//!       ▲──────────────────────────── changed ───────────────────────┘         └─replaced─▶ whole, place 0
//! ```
//!
//! Pairs whose stub would take more than half as many lines always stay whole.

use crate::item::{AWAY, HEADER_BYTES, HELD, Header, Layout, MARKS, PLACE_BYTES, WIDE};
use crate::key::{KEY_BYTES_MAX, KeyHash};
use crate::pairs::Pairs;
use crate::place::Place;
use crate::table::lines::redirect;

/// Free regions reserved for stubs: one for each possible number of lines of a stub, and one more.
const KEPT_BACK_COUNT: usize = 6;

impl Pairs {
    /// Records that a pair has changed.
    #[inline]
    pub(crate) fn note(&mut self, hash: KeyHash, key: &[u8]) {
        if let Some(journal) = &mut self.journal {
            journal.changes.note(hash, key);
        }
    }

    /// Records that an item was changed in place.
    #[inline]
    pub(crate) fn note_item(&mut self, hash: KeyHash, key: &[u8], line: u32) {
        self.note(hash, key);
        self.unplace(line);
    }

    #[inline]
    pub(crate) fn note_removal(&mut self, hash: KeyHash, place: Place) {
        if self.journal.is_some()
            && let Some(line) = place.item()
        {
            let (key, length) = self.key_of(line);
            self.note(hash, &key[..length]);
        }
    }

    pub(crate) fn note_clear(&mut self) {
        if let Some(journal) = &mut self.journal {
            journal.changes.note_clear();
        }
    }

    pub(crate) fn key_of(&self, line: u32) -> ([u8; KEY_BYTES_MAX], usize) {
        let header = self.heap.header(line);
        let length = usize::from(header.key_bytes);
        let mut key = [0; KEY_BYTES_MAX];
        key[..length].copy_from_slice(self.heap.memory.bytes(line, self.heap.key_at(line, header), length));
        (key, length)
    }

    pub(crate) fn flags_of(&self, line: u32) -> u32 {
        self.heap.attributes(Place::of_item(line)).flags
    }

    /// Offset of the place in an item. A stub has none: its place is the location of its value.
    pub(crate) fn place_at(&self, line: u32) -> Option<usize> {
        self.journal.as_ref()?;
        let header = self.heap.header(line);
        if self.heap.is_stub(line, header) {
            return None;
        }
        let value_bytes = self.heap.pair_bytes(line) - usize::from(header.key_bytes);
        let layout = self.layout(header.key_bytes.into(), value_bytes, self.flags_of(line));
        (layout.place_at != 0).then_some(layout.place_at)
    }

    /// The place of an item in the log, if its present state is there.
    pub(crate) fn place_of(&self, line: u32) -> Option<u64> {
        let at = self.place_at(line)?;
        let bytes = self.heap.memory.bytes(line, at, PLACE_BYTES);
        let place = u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
        (place != 0).then_some(place)
    }

    /// Records the place of an item in the log.
    pub(crate) fn set_place(&mut self, line: u32, place: u64) {
        if let Some(at) = self.place_at(line) {
            self.heap.memory.bytes_mut(line, at, PLACE_BYTES).copy_from_slice(&place.to_le_bytes());
        }
    }

    /// Records that the present state of an item is not in the log.
    #[inline]
    pub(crate) fn unplace(&mut self, line: u32) {
        if self.journal.is_some() {
            self.set_place(line, 0);
        }
    }

    /// Reduces an item to a stub, if its value is in the log.
    pub(crate) fn demote(&mut self, line: u32) -> bool {
        let header = self.heap.header(line);
        if header.bits & HELD != 0 {
            return false;
        }
        if self.is_expired(&header) {
            self.evict(line);
            return true;
        }
        let Some(place) = self.place_of(line) else { return false };
        if self.journal.as_ref().is_some_and(|journal| journal.in_flight.contains(&place)) {
            return false;
        }
        let (key, length) = self.key_of(line);
        let key = &key[..length];
        let flags = self.flags_of(line);
        let value_bytes = self.heap.pair_bytes(line) - length;
        let layout = Layout::stub(length, flags);
        let Some(stub) = self.heap.regions.take_for_stub(layout.class()) else { return false };
        self.write_stub(stub, &layout, key, header, flags, value_bytes, place);
        let hash = self.table.hasher.hash(key);
        let entry =
            self.table.entry_of(&self.heap, hash, line).expect("an item that is not held is in the index");
        redirect(&mut self.heap, entry, stub);
        self.heap.free_item(line);
        self.counters.demoted_count += 1;
        true
    }

    #[expect(clippy::too_many_arguments, reason = "all that a stub consists of")]
    pub(crate) fn write_stub(
        &mut self,
        line: u32,
        layout: &Layout,
        key: &[u8],
        header: Header,
        flags: u32,
        value_bytes: usize,
        place: u64,
    ) {
        let bits = layout.bits | header.bits & MARKS;
        let header = Header { bits, value_bytes: 0, flags: flags as u16, ..header };
        let block = self.heap.memory.bytes_mut(line, 0, layout.total_bytes);
        block[..HEADER_BYTES].copy_from_slice(&header.encode());
        if bits & WIDE != 0 {
            block[HEADER_BYTES..HEADER_BYTES + 4].copy_from_slice(&flags.to_le_bytes());
        }
        let at = layout.extents_at;
        block[at - 8..at - 4].copy_from_slice(&(value_bytes as u32).to_le_bytes());
        block[at - 4..at].copy_from_slice(&(AWAY | layout.extent_count as u32).to_le_bytes());
        block[at..at + PLACE_BYTES].copy_from_slice(&place.to_le_bytes());
        block[layout.key_at..].copy_from_slice(key);
    }

    pub(crate) fn regions_kept_back(&self) -> usize {
        if self.journal.is_some() { KEPT_BACK_COUNT.min(self.heap.regions.count() / 4) } else { 0 }
    }
}
