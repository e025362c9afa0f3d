//! The table of a partition: the entries of keys, and look-ups.
//!
//! Its lines belong to the heap; the table knows which of them are buckets. The processor makes room for entries,
//! because that may evict.

mod chain;
pub(crate) mod lines;
mod list;
mod resize;

pub use list::ListPosition;

use crate::bucket::{Bucket, Kind, overflow_tag};
use crate::heap::Heap;
use crate::index::Index;
use crate::key::{KeyHash, KeyHasher};
use crate::place::{Home, PairPlace};
use crate::table::lines::{overflow_line, slot};
use crate::touches::Touches;

/// Capacity reserved at the start for spare lines and for lines being moved. More are needed only if the index could
/// not grow for a long time.
const SPARE_COUNT: usize = 32;
const MOVING_COUNT: usize = 8;

/// The entries of a partition.
pub(crate) struct Table {
    pub(crate) index: Index,
    pub(crate) hasher: KeyHasher,
    /// Spare lines for overflow.
    pub(crate) spare: Vec<u32>,
    /// Lines that a resize is moving; empty otherwise.
    moving: Vec<[u8; memory::LINE_BYTES]>,
}

impl Table {
    /// A table without entries, over this index.
    pub(crate) fn new(index: Index, hasher: KeyHasher) -> Self {
        let (spare, moving) = (Vec::with_capacity(SPARE_COUNT), Vec::with_capacity(MOVING_COUNT));
        Self { index, hasher, spare, moving }
    }

    /// The line of the bucket of a key.
    #[inline(always)]
    pub(crate) fn home(&self, hash: KeyHash) -> u32 {
        self.index.home((hash.0 >> 32) as u32)
    }

    #[inline(always)]
    pub(crate) fn locate(&self, heap: &Heap<impl Touches>, hash: KeyHash, key: &[u8]) -> Option<PairPlace> {
        let home = self.home(hash);
        let bucket = Bucket(heap.memory.line(home));
        let place = self.locate_in(heap, home, bucket, hash.tag(), key);
        if place.is_none() && bucket.overflows() {
            self.locate_in_overflow(heap, home, hash, key)
        } else {
            place
        }
    }

    #[inline(always)]
    fn locate_in(
        &self,
        heap: &Heap<impl Touches>,
        node: u32,
        bucket: Bucket<'_>,
        tag: u8,
        key: &[u8],
    ) -> Option<PairPlace> {
        for cell in bucket.matches(tag) {
            let (is_it, item) = if bucket.kind(cell) == Kind::Item {
                let line = bucket.cell(cell);
                (heap.item_has_key(line, key), Some(line))
            } else {
                (bucket.inline(cell).0 == key, None)
            };
            if is_it {
                return Some(PairPlace::new(node, cell, item));
            }
        }
        None
    }

    /// Looks for a key in the overflow lines of its bucket.
    #[cold]
    fn locate_in_overflow(
        &self,
        heap: &Heap<impl Touches>,
        home: u32,
        hash: KeyHash,
        key: &[u8],
    ) -> Option<PairPlace> {
        let tag = overflow_tag(slot(home), hash.tag());
        let mut node = overflow_line(home);
        loop {
            let bucket = Bucket(heap.memory.line(node));
            if let Some(place) = self.locate_in(heap, node, bucket, tag, key) {
                return Some(place);
            }
            node = bucket.next()?;
        }
    }

    /// Prefetches the item of a key whose bucket was at `home` and has been prefetched. Has no effect if the bucket has
    /// moved meanwhile. Returns where the pair is, if it is there and the first with its tag.
    #[inline(always)]
    pub(crate) fn prefetch_item_of(
        &self,
        heap: &Heap<impl Touches>,
        hash: KeyHash,
        Home(home): Home,
    ) -> Option<PairPlace> {
        let bucket = Bucket(heap.memory.peek(home));
        let Some(cell) = bucket.matches(hash.tag()).next() else {
            if bucket.overflows() {
                heap.memory.prefetch(overflow_line(home));
            }
            return None;
        };
        if bucket.kind(cell) != Kind::Item {
            return Some(PairPlace::new(home, cell, None));
        }
        let item = bucket.cell(cell);
        heap.memory.prefetch_item(item);
        Some(PairPlace::new(home, cell, Some(item)))
    }
}
