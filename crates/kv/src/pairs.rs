//! The pairs of a partition: stored in its heap, found by its table, and recorded in its journal.
//!
//! Pairs are found and removed here. The processor above makes room for new ones.

mod journaled;
mod leave;

use crate::bucket::{Bucket, BucketMut};
use crate::clock::Clock;
use crate::counters::Counters;
use crate::heap::Heap;
use crate::item::{EXPIRY_AT, Header, Layout};
use crate::journal::Journal;
use crate::key::KeyHash;
use crate::place::Place;
use crate::table::Table;

/// The pairs of a partition.
pub(crate) struct Pairs {
    pub(crate) heap: Heap,
    pub(crate) table: Table,
    pub(crate) counters: Counters,
    pub(crate) clock: Clock,
    /// Changes for the log, if there is one.
    pub(crate) journal: Option<Box<Journal>>,
}

impl Pairs {
    #[inline(always)]
    pub(crate) fn find_again(&mut self, hash: KeyHash, key: &[u8]) -> Option<Place> {
        let place = self.table.locate(&self.heap, hash, key)?;
        if let Some(line) = place.item() {
            let expiry = self.heap.memory.bytes(line, EXPIRY_AT, 4);
            let expiry_s = u32::from_le_bytes(expiry.try_into().expect("four bytes"));
            if self.clock.has_passed(expiry_s) {
                self.counters.expired_count += 1;
                self.unlink(hash, place);
                return None;
            }
        }
        Some(place)
    }

    #[inline]
    pub(crate) fn is_expired(&self, header: &Header) -> bool {
        self.clock.has_passed(header.expiry)
    }

    pub(crate) fn count_out(&mut self, place: Place) {
        let bytes = match place.item() {
            Some(line) => {
                self.table.index.used_cells -= 1;
                self.heap.pair_bytes(line)
            }
            None => {
                self.counters.inline_count -= 1;
                let bucket = Bucket(self.heap.memory.line(place.node()));
                self.table.index.used_cells -= bucket.width(place.cell()) as u64;
                let (key, value) = bucket.inline(place.cell());
                key.len() + value.len()
            }
        };
        self.counters.pair_count -= 1;
        self.counters.pair_bytes -= bytes as u64;
    }

    /// Removes the pair at a place from memory.
    pub(crate) fn unlink(&mut self, hash: KeyHash, place: Place) {
        self.count_out(place);
        BucketMut(self.heap.memory.line_mut(place.node())).clear(place.cell());
        if let Some(line) = place.item() {
            self.heap.free_item(line);
        }
        self.table.settle(&mut self.heap, self.table.home(hash));
    }

    /// The layout of an item in this partition.
    #[inline]
    pub(crate) fn layout(&self, key_bytes: usize, value_bytes: usize, flags: u32) -> Layout {
        Layout::new(key_bytes, value_bytes, flags, self.journal.is_some())
    }
}
