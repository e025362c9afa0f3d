//! The buckets of the index: room for an entry, overflow and its return, and the entry that leads to an item.

use crate::bucket::{Bucket, BucketMut, Kind, copy_entry, shared_tag};
use crate::heap::Heap;
use crate::key::KeyHash;
use crate::table::Table;
use crate::table::lines::{Cell, empty_cells, lengthen, shared_line, shorten, slot};

impl Table {
    /// `width` neighbouring empty cells where an entry of the key may be; otherwise the last line of its chain.
    #[inline(always)]
    pub(crate) fn free_cells(&mut self, heap: &mut Heap, hash: KeyHash, width: usize) -> Result<Cell, u32> {
        let home = self.home(hash);
        if let Some(cell) = empty_cells(heap, home, width) {
            return Ok(Cell { node: home, cell, tag: hash.tag() });
        }
        let mut node = shared_line(home);
        loop {
            if let Some(cell) = empty_cells(heap, node, width) {
                if !Bucket(heap.memory.line(home)).overflows() {
                    BucketMut(heap.memory.line_mut(home)).set_overflows(true);
                }
                return Ok(Cell { node, cell, tag: shared_tag(slot(home), hash.tag()) });
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
    pub(crate) fn cells_moved(&mut self, heap: &mut Heap, hash: KeyHash, width: usize) -> Cell {
        loop {
            match self.free_cells(heap, hash, width) {
                Ok(cell) => return cell,
                Err(last) => {
                    let line = self.spare.pop().expect("set aside before the bucket was emptied");
                    lengthen(heap, last, line);
                }
            }
        }
    }

    /// Moves entries of a bucket back from the shared lines as far as they fit, after an entry was removed.
    #[inline]
    pub(crate) fn settle(&mut self, heap: &mut Heap, home: u32) {
        if Bucket(heap.memory.line(home)).overflows() {
            self.bring_back(heap, home);
        }
    }

    #[cold]
    fn bring_back(&mut self, heap: &mut Heap, home: u32) {
        let mut node = shared_line(home);
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
        shorten(heap, shared_line(home));
    }

    /// The entry that leads to an item: its line, and the cell.
    pub(crate) fn entry_of(&self, heap: &Heap, hash: KeyHash, item: u32) -> Option<(u32, usize)> {
        let home = self.home(hash);
        let (mut node, mut tag) = (home, hash.tag());
        loop {
            let bucket = Bucket(heap.memory.line(node));
            for cell in bucket.matches(tag) {
                if bucket.kind(cell) == Kind::Item && bucket.cell(cell) == item {
                    return Some((node, cell));
                }
            }
            node = if node != home {
                bucket.next()?
            } else if bucket.overflows() {
                tag = shared_tag(slot(home), tag);
                shared_line(home)
            } else {
                return None;
            };
        }
    }

    /// The hash of an item's key.
    pub(crate) fn hash_of_item(&self, heap: &Heap, line: u32) -> KeyHash {
        let header = heap.header(line);
        let key = heap.memory.bytes(line, heap.key_at(line, header), header.key_bytes.into());
        self.hasher.hash(key)
    }

    /// The hash of an entry's key.
    pub(crate) fn hash_of_entry(&self, heap: &Heap, bucket: Bucket<'_>, cell: usize) -> KeyHash {
        if bucket.kind(cell) == Kind::Item {
            self.hash_of_item(heap, bucket.cell(cell))
        } else {
            self.hasher.hash(bucket.inline(cell).0)
        }
    }
}
