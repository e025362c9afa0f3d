//! Listing all keys in the order of their hashes, which does not depend on the size of the index or on pairs that are
//! stored, removed or moved meanwhile.

use crate::bucket::{Bucket, BucketMut, Kind};
use crate::clock::Clock;
use crate::heap::Heap;
use crate::key::{KeyHash, name_of};
use crate::table::Table;
use crate::table::lines::{overflow_line, slot};
use crate::touches::Touches;

/// Buckets and entries examined at a time: some 0.2 ms.
const STEPS_MAX: usize = 4096;
/// Keys of a bucket that are sorted at a time.
const SORTED_COUNT: usize = 32;

/// A position among all keys, from which a list continues; by default the first. Keys are in the order of their hashes,
/// and those with one hash in that of their names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct ListPosition {
    hash: u64,
    name: u32,
}

impl ListPosition {
    /// Its size, bytes.
    pub const BYTES: usize = 12;

    /// The position of a key, whether it is there or not.
    #[must_use]
    pub fn of(hash: KeyHash, key: &[u8]) -> Self {
        Self { hash: hash.raw(), name: name_of(key) }
    }

    /// Before all keys with these upper bits of the hash.
    fn before(upper: u64) -> Self {
        Self { hash: upper << 32, name: 0 }
    }

    /// The next one.
    fn next(self) -> Self {
        let (name, is_last) = self.name.overflowing_add(1);
        Self { hash: self.hash + u64::from(is_last), name }
    }

    /// Its bytes.
    #[must_use]
    pub fn to_bytes(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..8].copy_from_slice(&self.hash.to_le_bytes());
        bytes[8..].copy_from_slice(&self.name.to_le_bytes());
        bytes
    }

    /// The position with these bytes; the first, if they are none.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Self {
        let Some((hash, name)) = bytes.split_first_chunk() else { return Self::default() };
        let name = name.try_into().map_or(0, u32::from_le_bytes);
        Self { hash: u64::from_le_bytes(*hash), name }
    }
}

/// An entry with the position of its key: its line, and the cell.
type Listed = (ListPosition, u32, u8);

/// The first entries of a bucket, in order.
struct Sorted {
    entries: [Listed; SORTED_COUNT],
    count: usize,
    /// Whether there are more.
    has_more: bool,
}

impl Sorted {
    fn new() -> Self {
        Self { entries: [(ListPosition::default(), 0, 0); SORTED_COUNT], count: 0, has_more: false }
    }

    fn add(&mut self, entry: Listed) {
        let at = self.entries[..self.count].partition_point(|other| *other < entry);
        if self.count == SORTED_COUNT {
            self.has_more = true;
        } else {
            self.count += 1;
        }
        if at < self.count {
            self.entries[at..self.count].rotate_right(1);
            self.entries[at] = entry;
        }
    }
}

impl Table {
    /// Calls `each` with the keys from a position on, until it refuses one by returning `false`, or until there was
    /// enough to do for one call. Returns where the list continues, with the key that was refused, unless this was the
    /// end. Each key that exists throughout a list is in it exactly once, regardless of changes to other keys.
    pub(crate) fn list(
        &self,
        heap: &Heap<impl Touches>,
        clock: &Clock,
        first: ListPosition,
        mut each: impl FnMut(&[u8]) -> bool,
    ) -> Option<ListPosition> {
        let (mut from, mut step_count) = (first.hash >> 32, 0);
        while let Ok(hash) = u32::try_from(from) {
            if step_count >= STEPS_MAX {
                return Some(ListPosition::before(from));
            }
            let range = self.index.bucket_range(hash);
            let mut least = first;
            loop {
                let sorted = self.sorted(heap, range.home, least);
                step_count += 1 + sorted.count;
                for &(position, node, cell) in &sorted.entries[..sorted.count] {
                    let bucket = Bucket(heap.memory.line(node));
                    let goes_on = if bucket.kind(cell.into()) == Kind::Item {
                        let line = bucket.cell(cell.into());
                        clock.has_passed(heap.header(line).expiry) || each(heap.key_of(line))
                    } else {
                        each(bucket.inline(cell.into()).0)
                    };
                    if !goes_on {
                        return Some(position);
                    }
                }
                if !sorted.has_more {
                    break;
                }
                least = sorted.entries[SORTED_COUNT - 1].0.next();
            }
            from = range.end;
        }
        None
    }

    /// The first entries of a bucket from a position on.
    fn sorted(&self, heap: &Heap<impl Touches>, home: u32, least: ListPosition) -> Sorted {
        let mut sorted = Sorted::new();
        let mut add = |node: u32, bucket: Bucket<'_>, cell: usize| {
            let key = self.key_of_entry(heap, bucket, cell);
            let position = ListPosition::of(self.hasher.hash(key), key);
            if position >= least {
                sorted.add((position, node, cell as u8));
            }
        };
        let bucket = Bucket(heap.memory.line(home));
        bucket.entries().for_each(|cell| add(home, bucket, cell));
        let mut next = bucket.overflows().then(|| overflow_line(home));
        while let Some(node) = next {
            let bucket = Bucket(heap.memory.line(node));
            bucket.entries_of(slot(home)).for_each(|cell| add(node, bucket, cell));
            next = bucket.next();
        }
        sorted
    }

    /// Removes all entries one by one, and resets the index to its initial size.
    pub(crate) fn clear_entries(&mut self, heap: &mut Heap<impl Touches>) {
        let mut from = 0;
        while let Ok(hash) = u32::try_from(from) {
            let range = self.index.bucket_range(hash);
            while let Some((node, cell)) = self.first_entry(heap, range.home) {
                let bucket = Bucket(heap.memory.line(node));
                let item = (bucket.kind(cell) == Kind::Item).then(|| bucket.cell(cell));
                BucketMut(heap.memory.line_mut(node)).clear(cell);
                if let Some(line) = item {
                    heap.free_item(line);
                }
            }
            self.take_back_overflow(heap, range.home);
            from = range.end;
        }
        self.index.reset();
        self.free_unused_regions(heap);
    }

    fn first_entry(&self, heap: &Heap<impl Touches>, home: u32) -> Option<(u32, usize)> {
        let sorted = self.sorted(heap, home, ListPosition::default());
        (sorted.count > 0).then(|| (sorted.entries[0].1, sorted.entries[0].2.into()))
    }

    /// Checks that a look-up finds every entry, for tests.
    #[cfg(test)]
    pub(crate) fn assert_index(&self, heap: &Heap<impl Touches>, pair_count: u64) {
        let (mut cells, mut pairs, mut from) = (0, 0, 0);
        while let Ok(hash) = u32::try_from(from) {
            let range = self.index.bucket_range(hash);
            let mut least = ListPosition::default();
            loop {
                let sorted = self.sorted(heap, range.home, least);
                for &(ListPosition { hash, .. }, node, cell) in &sorted.entries[..sorted.count] {
                    assert!((from..range.end).contains(&(hash >> 32)), "a key is in the wrong bucket");
                    let bucket = Bucket(heap.memory.line(node));
                    let key = self.key_of_entry(heap, bucket, cell.into());
                    let place = self.locate(heap, KeyHash::of(hash), key).expect("listed, so found");
                    assert_eq!((place.node(), place.cell()), (node, cell.into()));
                    cells += bucket.width(cell.into()) as u64;
                    pairs += 1;
                }
                if !sorted.has_more {
                    break;
                }
                least = sorted.entries[SORTED_COUNT - 1].0.next();
            }
            from = range.end;
        }
        assert_eq!((self.index.used_cells, pair_count), (cells, pairs));
    }
}
