//! A bucket of the index: one cache line of twelve cells.
//!
//! ```text
//! 0         12      16                                              64
//! │ 12 tags  │ kinds │ cell 0 │ cell 1 │ …                 │ cell 11 │
//! ```
//!
//! A cell of four bytes is empty, the line of an item outside the index, or a part of an *inline pair*: a small pair
//! stored in the bucket itself, in two or more neighbouring cells. The tag of its first cell is the tag of the key,
//! that of the second holds both lengths.
//!
//! A bucket that *overflows* has further entries in the last line of its group; a bit of the kinds records this, so it
//! costs no cell. There the tag consists of the number of the entry's bucket in the group and five bits of the key's
//! tag. When such a line is full, its last cell links the next one.

use memory::LINE_BYTES;
use memory::equal_bytes;

/// Cells of a bucket.
pub(crate) const CELL_COUNT: usize = 12;
/// Bytes of a cell.
pub(crate) const CELL_BYTES: usize = 4;
/// Longest key of an inline pair: its length less one fits in four bits.
pub(crate) const INLINE_KEY_BYTES_MAX: usize = 16;
/// Longest value of an inline pair: its length fits in four bits.
pub(crate) const INLINE_VALUE_BYTES_MAX: usize = 15;

const KINDS_AT: usize = 12;
const CELLS_AT: usize = 16;
/// The bit of the kinds that marks the last cell as a link.
const CHAINED: u32 = 1 << 31;
/// The bit of the kinds that marks further entries in the last line of the group.
const OVERFLOWS: u32 = 1 << 30;
/// Bits of a key's tag that remain in a line shared by several buckets.
const OVERFLOW_TAG_BITS: u32 = 5;
/// One bit per cell. The kinds are two such sets: which cells begin an entry, and above them which are inline.
const ALL: u32 = (1 << CELL_COUNT) - 1;

/// The content type of a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Not in use.
    Empty,
    /// The line of an item.
    Item,
    /// The first cell of an inline pair.
    Inline,
    /// A further cell of an inline pair, or the link to the next line.
    Rest,
}

/// A line, read as a bucket.
#[derive(Clone, Copy)]
pub(crate) struct Bucket<'a>(pub(crate) &'a [u8; LINE_BYTES]);

/// A line, changed as a bucket.
pub(crate) struct BucketMut<'a>(pub(crate) &'a mut [u8; LINE_BYTES]);

/// Cells of an inline pair; `None` if the pair is too large for one.
#[inline]
pub(crate) fn inline_cells(key_bytes: usize, value_bytes: usize) -> Option<usize> {
    if key_bytes > INLINE_KEY_BYTES_MAX || value_bytes > INLINE_VALUE_BYTES_MAX {
        return None;
    }
    Some((key_bytes + value_bytes).div_ceil(CELL_BYTES).max(2))
}

/// The tag, in a shared line, of an entry of the bucket in `slot` of its group.
#[inline]
pub(crate) fn overflow_tag(slot: u32, tag: u8) -> u8 {
    (slot << OVERFLOW_TAG_BITS) as u8 | tag & ((1 << OVERFLOW_TAG_BITS) - 1)
}

/// A set of cells, lowest first.
#[derive(Clone, Copy)]
pub(crate) struct Cells(u32);

impl Iterator for Cells {
    type Item = usize;

    #[inline]
    fn next(&mut self) -> Option<usize> {
        if self.0 == 0 {
            return None;
        }
        let cell = self.0.trailing_zeros() as usize;
        self.0 &= self.0 - 1;
        Some(cell)
    }
}

impl<'a> Bucket<'a> {
    #[inline]
    fn kinds(self) -> u32 {
        u32::from_le_bytes(self.0[KINDS_AT..KINDS_AT + 4].try_into().expect("four bytes"))
    }

    /// The content type of `cell`.
    #[inline]
    pub(crate) fn kind(self, cell: usize) -> Kind {
        let kinds = self.kinds() >> cell;
        match (kinds & 1, kinds >> CELL_COUNT & 1) {
            (0, 0) => Kind::Empty,
            (1, 0) => Kind::Item,
            (1, _) => Kind::Inline,
            _ => Kind::Rest,
        }
    }

    #[inline]
    fn empty(self) -> u32 {
        let kinds = self.kinds();
        !(kinds | kinds >> CELL_COUNT) & ALL
    }

    /// The content of a cell.
    #[inline]
    pub(crate) fn cell(self, cell: usize) -> u32 {
        let at = CELLS_AT + cell * CELL_BYTES;
        u32::from_le_bytes(self.0[at..at + 4].try_into().expect("four bytes"))
    }

    /// The tag of a cell.
    #[inline]
    pub(crate) fn tag(self, cell: usize) -> u8 {
        self.0[cell]
    }

    /// Cells that begin an entry with this tag.
    #[inline]
    pub(crate) fn matches(self, tag: u8) -> Cells {
        // The last four bytes are not tags but the kinds: cells beyond the last begin nothing.
        let tags = self.0.first_chunk().expect("a line has more");
        Cells(equal_bytes(tags, tag) & self.kinds() & ALL)
    }

    /// Cells that begin an entry.
    pub(crate) fn entries(self) -> Cells {
        Cells(self.kinds() & ALL)
    }

    /// Cells of a line shared by several buckets that begin an entry of the bucket in `slot`.
    pub(crate) fn entries_of(self, slot: u32) -> Cells {
        let mut cells = 0;
        for cell in self.entries() {
            cells |= u32::from(u32::from(self.tag(cell)) >> OVERFLOW_TAG_BITS == slot) << cell;
        }
        Cells(cells)
    }

    /// Whether the last line of the group has entries of this bucket.
    #[inline]
    pub(crate) fn overflows(self) -> bool {
        self.kinds() & OVERFLOWS != 0
    }

    /// The next line of a chain of shared lines.
    #[inline]
    pub(crate) fn next(self) -> Option<u32> {
        (self.kinds() & CHAINED != 0).then(|| self.cell(CELL_COUNT - 1))
    }

    /// Key and value of the inline pair at `cell`.
    #[inline]
    pub(crate) fn inline(self, cell: usize) -> (&'a [u8], &'a [u8]) {
        let (key_bytes, value_bytes) = lengths(self.0[cell + 1]);
        let at = CELLS_AT + cell * CELL_BYTES;
        let (key, rest) = self.0[at..].split_at(key_bytes);
        (key, &rest[..value_bytes])
    }

    /// Number of cells of the entry at `cell`.
    #[inline]
    pub(crate) fn width(self, cell: usize) -> usize {
        if self.kind(cell) == Kind::Item {
            return 1;
        }
        let (key_bytes, value_bytes) = lengths(self.0[cell + 1]);
        (key_bytes + value_bytes).div_ceil(CELL_BYTES).max(2)
    }

    /// Number of empty cells.
    #[inline]
    pub(crate) fn empty_count(self) -> usize {
        self.empty().count_ones() as usize
    }

    /// The first of `count` neighbouring empty cells.
    #[inline]
    pub(crate) fn find_empty(self, count: usize) -> Option<usize> {
        let empty = self.empty();
        let mut runs = empty;
        for shift in 1..count {
            runs &= empty >> shift;
        }
        (runs != 0).then(|| runs.trailing_zeros() as usize)
    }
}

impl<'a> BucketMut<'a> {
    /// The value of the inline pair at `cell`.
    #[inline]
    pub(crate) fn into_inline_value(self, cell: usize) -> &'a mut [u8] {
        let (key_bytes, value_bytes) = lengths(self.0[cell + 1]);
        let at = CELLS_AT + cell * CELL_BYTES + key_bytes;
        &mut self.0[at..at + value_bytes]
    }

    /// Sets for `count` cells from `cell` on whether they begin an entry and whether they are inline.
    #[inline]
    fn set_kinds(&mut self, cell: usize, count: usize, begins: u32, inline: u32) {
        let mask = ((1u32 << count) - 1) << cell;
        let mut kinds = Bucket(self.0).kinds() & !(mask | mask << CELL_COUNT);
        kinds |= begins << cell & mask | (inline << cell & mask) << CELL_COUNT;
        self.0[KINDS_AT..KINDS_AT + 4].copy_from_slice(&kinds.to_le_bytes());
    }

    /// Puts an item's line into an empty cell, or replaces the line there.
    #[inline]
    pub(crate) fn put_item(&mut self, cell: usize, tag: u8, line: u32) {
        self.set_kinds(cell, 1, 1, 0);
        self.0[cell] = tag;
        let at = CELLS_AT + cell * CELL_BYTES;
        self.0[at..at + 4].copy_from_slice(&line.to_le_bytes());
    }

    /// Puts an inline pair into the cells from `cell` on.
    #[inline]
    pub(crate) fn put_inline(&mut self, cell: usize, tag: u8, key: &[u8], value: &[u8]) {
        let count = inline_cells(key.len(), value.len()).expect("small enough");
        self.set_kinds(cell, count, 1, ALL);
        self.0[cell] = tag;
        self.0[cell + 1] = u8::try_from((key.len() - 1) << 4 | value.len()).expect("four bits each");
        let at = CELLS_AT + cell * CELL_BYTES;
        self.0[at..at + key.len()].copy_from_slice(key);
        self.0[at + key.len()..at + key.len() + value.len()].copy_from_slice(value);
    }

    /// Empties the cells of the entry at `cell`.
    #[inline]
    pub(crate) fn clear(&mut self, cell: usize) {
        let width = Bucket(self.0).width(cell);
        self.set_kinds(cell, width, 0, 0);
    }

    /// Points the item at `cell` at another line.
    #[inline]
    pub(crate) fn set_item(&mut self, cell: usize, line: u32) {
        let at = CELLS_AT + cell * CELL_BYTES;
        self.0[at..at + 4].copy_from_slice(&line.to_le_bytes());
    }

    /// Sets whether the last line of the group has entries of this bucket.
    pub(crate) fn set_overflows(&mut self, overflows: bool) {
        let mut kinds = Bucket(self.0).kinds() & !OVERFLOWS;
        if overflows {
            kinds |= OVERFLOWS;
        }
        self.0[KINDS_AT..KINDS_AT + 4].copy_from_slice(&kinds.to_le_bytes());
    }

    /// Sets the link to the next line, or removes it. The last cell is empty or the link.
    pub(crate) fn set_next(&mut self, next: Option<u32>) {
        let last = CELL_COUNT - 1;
        // The link is marked as a cell that begins no entry and is inline.
        self.set_kinds(last, 1, 0, u32::from(next.is_some()));
        let mut kinds = Bucket(self.0).kinds() & !CHAINED;
        if let Some(line) = next {
            kinds |= CHAINED;
            let at = CELLS_AT + last * CELL_BYTES;
            self.0[at..at + 4].copy_from_slice(&line.to_le_bytes());
        }
        self.0[KINDS_AT..KINDS_AT + 4].copy_from_slice(&kinds.to_le_bytes());
    }

    /// Moves all entries to the front, so that the empty cells are contiguous.
    pub(crate) fn pack(&mut self) {
        let before = *self.0;
        let old = Bucket(&before);
        *self.0 = [0; LINE_BYTES];
        let mut to = 0;
        for cell in old.entries() {
            copy_entry(old, cell, self, to, old.tag(cell));
            to += old.width(cell);
        }
        self.set_next(old.next());
        self.set_overflows(old.overflows());
    }
}

/// Copies the entry at `cell` to the empty cells from `to` on, with this tag.
#[inline(always)]
pub(crate) fn copy_entry(from: Bucket<'_>, cell: usize, into: &mut BucketMut<'_>, to: usize, tag: u8) {
    if from.kind(cell) == Kind::Item {
        into.put_item(to, tag, from.cell(cell));
    } else {
        let (key, value) = from.inline(cell);
        into.put_inline(to, tag, key, value);
    }
}

#[inline]
fn lengths(byte: u8) -> (usize, usize) {
    (usize::from(byte >> 4) + 1, usize::from(byte & 15))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_holds_items_and_pairs_and_finds_them_by_tag() {
        let mut line = [0; LINE_BYTES];
        let mut bucket = BucketMut(&mut line);
        bucket.put_item(0, 7, 1000);
        bucket.put_inline(1, 7, b"key", b"value");
        bucket.put_item(3, 0, 2000);
        let bucket = Bucket(&line);
        assert_eq!(bucket.matches(7).collect::<Vec<_>>(), [0, 1]);
        // Tag 0 and the lengths of the pair do not match empty cells or other tags.
        assert_eq!(bucket.matches(0).collect::<Vec<_>>(), [3]);
        assert_eq!(bucket.matches(line[2]).collect::<Vec<_>>(), [] as [usize; 0]);
        assert_eq!(bucket.inline(1), (&b"key"[..], &b"value"[..]));
        assert_eq!((bucket.cell(0), bucket.cell(3)), (1000, 2000));
        assert_eq!(bucket.find_empty(8), Some(4));
        assert_eq!(bucket.find_empty(9), None);
        assert_eq!(bucket.empty_count(), 8);
    }

    #[test]
    fn packing_brings_empty_cells_together_and_keeps_the_link() {
        let mut line = [0; LINE_BYTES];
        let mut bucket = BucketMut(&mut line);
        bucket.put_inline(0, 1, b"0123456789abcdef", b"");
        bucket.put_inline(4, 2, b"k", b"");
        bucket.put_item(8, 3, 99);
        bucket.clear(4);
        bucket.set_next(Some(5));
        assert_eq!(Bucket(&line).find_empty(5), None);
        let mut bucket = BucketMut(&mut line);
        bucket.pack();
        let bucket = Bucket(&line);
        assert_eq!(bucket.find_empty(6), Some(5));
        assert_eq!(bucket.next(), Some(5));
        assert_eq!(bucket.entries().collect::<Vec<_>>(), [0, 4]);
        assert_eq!(bucket.inline(0).0, b"0123456789abcdef");
        assert_eq!(bucket.cell(4), 99);
    }

    #[test]
    fn shared_lines_tell_whose_an_entry_is_and_buckets_overflow_without_a_cell_for_it() {
        let mut line = [0; LINE_BYTES];
        let mut bucket = BucketMut(&mut line);
        bucket.put_item(0, overflow_tag(6, 0xff), 1);
        bucket.put_inline(1, overflow_tag(0, 0xff), b"key", b"value");
        bucket.put_item(3, overflow_tag(0, 0xe0), 2);
        bucket.set_overflows(true);
        bucket.pack();
        let view = Bucket(&line);
        assert!(view.overflows() && view.next().is_none());
        assert_eq!(view.empty_count(), 8);
        assert_eq!(view.entries_of(0).collect::<Vec<_>>(), [1, 3]);
        assert_eq!(view.entries_of(6).collect::<Vec<_>>(), [0]);
        assert_eq!(view.matches(overflow_tag(0, 0x1f)).collect::<Vec<_>>(), [1]);
        let mut bucket = BucketMut(&mut line);
        bucket.set_item(3, 9);
        bucket.set_overflows(false);
        let view = Bucket(&line);
        assert!(!view.overflows() && view.cell(3) == 9 && view.tag(3) == overflow_tag(0, 0));
    }

    #[test]
    fn pairs_take_two_cells_at_least_and_have_limits() {
        assert_eq!(inline_cells(1, 0), Some(2));
        assert_eq!(inline_cells(8, 8), Some(4));
        assert_eq!(inline_cells(16, 15), Some(8));
        assert_eq!(inline_cells(17, 0), None);
        assert_eq!(inline_cells(1, 16), None);
    }
}
