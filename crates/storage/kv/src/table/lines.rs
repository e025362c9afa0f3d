//! Lines of entries: a bucket, and the overflow lines shared by the buckets of its group.

use memory::LINE_BYTES;

use crate::bucket::{Bucket, BucketMut, CELL_COUNT, Kind, copy_entry};
use crate::heap::Heap;
use crate::index::OVERFLOW_SLOT;
use crate::regions::Slots;
use crate::touches::Touches;

/// Room for an entry: where its cells are.
#[derive(Clone, Copy)]
pub(crate) struct Cell {
    pub(crate) node: u32,
    pub(crate) cell: usize,
    /// The tag of the key in that line.
    pub(crate) tag: u8,
}

/// The first overflow line for the bucket at `home`.
#[inline]
pub(crate) fn overflow_line(home: u32) -> u32 {
    home | OVERFLOW_SLOT
}

/// Position in its group of the bucket at `home`.
#[inline]
pub(crate) fn slot(home: u32) -> u32 {
    home & OVERFLOW_SLOT
}

/// `width` neighbouring empty cells of a line, which is packed if necessary.
#[inline(always)]
pub(crate) fn empty_cells(heap: &mut Heap<impl Touches>, node: u32, width: usize) -> Option<usize> {
    let bucket = Bucket(heap.memory.line(node));
    if let Some(cell) = bucket.find_empty(width) {
        return Some(cell);
    }
    if bucket.empty_count() < width {
        return None;
    }
    let mut bucket = BucketMut(heap.memory.line_mut(node));
    bucket.pack();
    Bucket(bucket.0).find_empty(width)
}

/// Appends `line` to the chain, behind `node`, its last line.
pub(crate) fn append_line(heap: &mut Heap<impl Touches>, node: u32, line: u32) {
    *heap.memory.line_mut(line) = [0; LINE_BYTES];
    let before = *heap.memory.line(node);
    let old = Bucket(&before);
    let last = CELL_COUNT - 1;
    // The entry in the last cell makes way for the link.
    if old.kind(last) != Kind::Empty {
        let cell = old.entries().last().expect("something begins before the last cell");
        copy_entry(old, cell, &mut BucketMut(heap.memory.line_mut(line)), 0, old.tag(cell));
        BucketMut(heap.memory.line_mut(node)).clear(cell);
    }
    BucketMut(heap.memory.line_mut(node)).set_next(Some(line));
}

/// Moves entries of overflow lines forward as far as they fit, and frees lines that become empty.
pub(crate) fn compact_chain(heap: &mut Heap<impl Touches>, mut node: u32) {
    while let Some(next) = Bucket(heap.memory.line(node)).next() {
        let from = *heap.memory.line(next);
        let from = Bucket(&from);
        for cell in from.entries() {
            if let Some(to) = Bucket(heap.memory.line(node)).find_empty(from.width(cell)) {
                let mut into = BucketMut(heap.memory.line_mut(node));
                copy_entry(from, cell, &mut into, to, from.tag(cell));
                BucketMut(heap.memory.line_mut(next)).clear(cell);
            }
        }
        let rest = Bucket(heap.memory.line(next));
        if rest.entries().next().is_some() {
            node = next;
            continue;
        }
        let after = rest.next();
        BucketMut(heap.memory.line_mut(node)).set_next(after);
        heap.regions.give_back_slot(Slots::Buckets, next);
    }
}

/// Points an entry at another item.
pub(crate) fn set_item(heap: &mut Heap<impl Touches>, (node, cell): (u32, usize), item: u32) {
    BucketMut(heap.memory.line_mut(node)).set_item(cell, item);
}
