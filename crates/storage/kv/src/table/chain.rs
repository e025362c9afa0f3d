//! The buckets of the index: room for an entry, overflow and its return, and the entry that leads to an item.

use crate::bucket::{Bucket, BucketMut, Kind, copy_entry, overflow_tag};
use crate::heap::Heap;
use crate::key::KeyHash;
use crate::regions::Slots;
use crate::table::Table;
use crate::table::lines::{Cell, append_line, compact_chain, empty_cells, overflow_line, slot};
use crate::touches::Touches;

impl Table {
    /// `width` neighbouring empty cells where an entry of the key may be; otherwise the last line of its chain.
    #[inline(always)]
    pub(crate) fn free_cells(
        &mut self,
        heap: &mut Heap<impl Touches>,
        hash: KeyHash,
        width: usize,
    ) -> Result<Cell, u32> {
        let home = self.home(hash);
        if let Some(cell) = empty_cells(heap, home, width) {
            return Ok(Cell { node: home, cell, tag: hash.tag() });
        }
        let mut node = overflow_line(home);
        loop {
            if let Some(cell) = empty_cells(heap, node, width) {
                if !Bucket(heap.memory.line(home)).overflows() {
                    BucketMut(heap.memory.line_mut(home)).set_overflows(true);
                }
                return Ok(Cell { node, cell, tag: overflow_tag(slot(home), hash.tag()) });
            }
            match Bucket(heap.memory.line(node)).next() {
                Some(next) => node = next,
                None => return Err(node),
            }
        }
    }

    /// As [`free_cells`](Self::free_cells), for an entry that a resize moves. The spare lines that this may need are
    /// set aside.
    #[inline(always)]
    pub(crate) fn cells_moved(&mut self, heap: &mut Heap<impl Touches>, hash: KeyHash, width: usize) -> Cell {
        loop {
            match self.free_cells(heap, hash, width) {
                Ok(cell) => return cell,
                Err(last) => {
                    let line = self.spare.pop().expect("set aside before the bucket was emptied");
                    append_line(heap, last, line);
                }
            }
        }
    }

    /// Moves entries of a bucket back from the overflow lines as far as they fit, after an entry was removed.
    #[inline]
    pub(crate) fn take_back_overflow(&mut self, heap: &mut Heap<impl Touches>, home: u32) {
        if Bucket(heap.memory.line(home)).overflows() {
            self.move_overflow_back(heap, home);
        }
    }

    #[cold]
    fn move_overflow_back(&mut self, heap: &mut Heap<impl Touches>, home: u32) {
        let mut node = overflow_line(home);
        let mut is_left = false;
        loop {
            let from = *heap.memory.line(node);
            let from = Bucket(&from);
            for cell in from.entries_of(slot(home)) {
                let Some(to) = empty_cells(heap, home, from.width(cell)) else {
                    is_left = true;
                    continue;
                };
                let tag = self.hash_of_entry(heap, from, cell).tag();
                copy_entry(from, cell, &mut BucketMut(heap.memory.line_mut(home)), to, tag);
                BucketMut(heap.memory.line_mut(node)).clear(cell);
            }
            match from.next() {
                Some(next) => node = next,
                None => break,
            }
        }
        if !is_left {
            BucketMut(heap.memory.line_mut(home)).set_overflows(false);
        }
        compact_chain(heap, overflow_line(home));
    }

    /// Moves a line of a chain, or a spare one, to `to`. Returns whether it was moved.
    pub(crate) fn move_overflow_line(&mut self, heap: &mut Heap<impl Touches>, line: u32, to: u32) -> bool {
        let is_moved = self.copy_overflow_line(heap, line, to);
        if is_moved {
            heap.regions.give_back_slot(Slots::Buckets, line);
        }
        is_moved
    }

    /// As [`move_overflow_line`](Self::move_overflow_line), without freeing the line.
    pub(crate) fn copy_overflow_line(&mut self, heap: &mut Heap<impl Touches>, line: u32, to: u32) -> bool {
        if let Some(spare) = self.spare.iter_mut().find(|spare| **spare == line) {
            *spare = to;
            return true;
        }
        let content = *heap.memory.line(line);
        let Some(cell) = Bucket(&content).entries().next() else { return false };
        let mut node = overflow_line(self.home(self.hash_of_entry(heap, Bucket(&content), cell)));
        loop {
            match Bucket(heap.memory.line(node)).next() {
                Some(next) if next == line => break,
                Some(next) => node = next,
                None => return false,
            }
        }
        *heap.memory.line_mut(to) = content;
        BucketMut(heap.memory.line_mut(node)).set_next(Some(to));
        true
    }

    /// Whether a line of overflow can be moved: it is a spare one, or an entry in it leads to its chain.
    pub(crate) fn can_move_overflow_line(&self, heap: &Heap<impl Touches>, line: u32) -> bool {
        self.spare.contains(&line) || Bucket(heap.memory.line(line)).entries().next().is_some()
    }

    /// The entry that leads to an item that is not held: its line, and the cell.
    pub(crate) fn entry_of(&self, heap: &Heap<impl Touches>, hash: KeyHash, item: u32) -> (u32, usize) {
        let home = self.home(hash);
        let (mut node, mut tag) = (home, hash.tag());
        loop {
            let bucket = Bucket(heap.memory.line(node));
            for cell in bucket.matches(tag) {
                if bucket.kind(cell) == Kind::Item && bucket.cell(cell) == item {
                    return (node, cell);
                }
            }
            node = if node == home {
                tag = overflow_tag(slot(home), tag);
                overflow_line(home)
            } else {
                bucket.next().expect("an item that is not held is in the index")
            };
        }
    }

    /// The hash of an item's key.
    pub(crate) fn hash_of_item(&self, heap: &Heap<impl Touches>, line: u32) -> KeyHash {
        self.hasher.hash(heap.key_of(line))
    }

    /// The hash of an entry's key, for the index only.
    pub(crate) fn hash_of_entry(
        &self,
        heap: &Heap<impl Touches>,
        bucket: Bucket<'_>,
        cell: usize,
    ) -> KeyHash {
        self.hasher.index_hash(self.key_of_entry(heap, bucket, cell))
    }

    /// An entry's key.
    pub(crate) fn key_of_entry<'a>(
        &self,
        heap: &'a Heap<impl Touches>,
        bucket: Bucket<'a>,
        cell: usize,
    ) -> &'a [u8] {
        if bucket.kind(cell) == Kind::Item { heap.key_of(bucket.cell(cell)) } else { bucket.inline(cell).0 }
    }
}
