//! Pairs that are evicted or moved to make room.

use std::sync::Arc;

use crate::chunked::Entry;
use crate::item::{BITS_AT, FETCHED, HELD, USES};
use crate::pairs::Pairs;
use crate::place::Place;
use crate::regions::Use;
use crate::table::lines::redirect;

impl Pairs {
    /// Passes the hand over an item, which loses a use, or is evicted if it has none or has
    /// expired. Returns whether it is gone.
    pub(crate) fn pass(&mut self, line: u32) -> bool {
        let header = self.heap.header(line);
        if header.bits & HELD != 0 {
            return false;
        }
        if header.bits & USES != 0 && !self.is_expired(&header) {
            self.heap.memory.bytes_mut(line, BITS_AT, 1)[0] = header.bits - 1;
            return false;
        }
        self.evict(line);
        true
    }

    /// Removes an item from the index.
    pub(crate) fn evict(&mut self, line: u32) {
        let header = self.heap.header(line);
        if self.is_expired(&header) {
            self.counters.expired_count += 1;
        } else {
            self.counters.evicted_count += 1;
            self.counters.evicted_unread_count += u64::from(header.bits & FETCHED == 0);
        }
        let hash = self.table.hash_of_item(&self.heap, line);
        let (node, cell) =
            self.table.entry_of(&self.heap, hash, line).expect("an item that is not held is in the index");
        self.unlink(hash, Place::new(node, cell, Some(line)));
    }

    /// The use of a region, estimated from a few of its blocks. They lose a use by it, because no hand passes over a
    /// class in which nothing is stored.
    pub(crate) fn cool(&mut self, region: u32) -> usize {
        let (mut uses, mut seen, mut block) = (0, 0, 0);
        while seen < 8
            && let Some((at, line)) = self.heap.regions.next_taken(region, block)
        {
            let bits = self.heap.header(line).bits;
            if bits & USES != 0 {
                uses += usize::from(bits & USES);
                self.heap.memory.bytes_mut(line, BITS_AT, 1)[0] = bits - 1;
            }
            seen += 1;
            block = at + 1;
        }
        uses * 64 / seen.max(1)
    }

    /// Moves a region's items to free blocks of other regions of their class. Returns whether the region is then free.
    pub(crate) fn empty_by_moving(&mut self, region: u32) -> bool {
        let Use::Items(class) = self.heap.regions.use_of(region) else { return false };
        self.heap.regions.shut(region);
        let mut block = 0;
        while let Some((at, line)) = self.heap.regions.next_taken(region, block) {
            block = at + 1;
            let Some(to) = self.heap.regions.take(class) else { break };
            let hash = self.table.hash_of_item(&self.heap, line);
            let entry = self
                .table
                .entry_of(&self.heap, hash, line)
                .expect("an item that is not held is in the index");
            self.heap.memory.copy(line, to, class.lines() * reactor::LINE_BYTES);
            redirect(&mut self.heap, entry, to);
            self.heap.on_moved(to);
            self.heap.regions.give_back(line);
            self.counters.moved_count += 1;
            if self.heap.regions.use_of(region) == Use::Free {
                break;
            }
        }
        self.heap.regions.reopen(region);
        let is_free = self.heap.regions.use_of(region) == Use::Free;
        self.counters.reclaimed_count += u64::from(is_free);
        is_free
    }

    /// Advances the hand over values in chunks until it has evicted one.
    pub(crate) fn evict_chunked(&mut self) -> bool {
        self.pass_chunked(Self::pass)
    }

    /// As [`evict_chunked`](Self::evict_chunked), but leaves a stub of the value.
    pub(crate) fn demote_chunked(&mut self) -> bool {
        self.pass_chunked(Self::demote)
    }

    pub(crate) fn pass_chunked(&mut self, mut pass: impl FnMut(&mut Self, u32) -> bool) -> bool {
        let count = self.heap.chunked.entries.len();
        // Each round takes a use from every value.
        for _ in 0..3 * count {
            self.heap.chunked.hand = (self.heap.chunked.hand + 1) % count;
            // Evicting a value that is being sent frees nothing yet.
            let Some(Entry { line, chunks }) = &self.heap.chunked.entries[self.heap.chunked.hand] else {
                continue;
            };
            if Arc::strong_count(chunks) == 1 && pass(self, *line) {
                return true;
            }
        }
        false
    }
}
