//! The place of a pair: its entry in the index, and its item.

use std::num::NonZeroU64;

/// The place of a pair. It is two numbers, so that a look-up returns it in registers: smaller fields would be written
/// to memory, and read back in other widths before the writes complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PairPlace {
    /// The line of the entry, and the cell there; never 0.
    entry: NonZeroU64,
    /// The item's line plus 1, or 0 if the pair is in the index.
    item: u64,
}

impl PairPlace {
    #[inline(always)]
    pub(crate) fn new(node: u32, cell: usize, item: Option<u32>) -> Self {
        let entry = NonZeroU64::MIN | ((u64::from(node) << 8) | ((cell as u64) << 1));
        Self { entry, item: item.map_or(0, |line| u64::from(line) + 1) }
    }

    /// A place without an entry, for reading an item alone.
    pub(crate) fn of_item(line: u32) -> Self {
        Self::new(0, 0, Some(line))
    }

    /// The line of the entry.
    #[inline(always)]
    pub(crate) fn node(self) -> u32 {
        (self.entry.get() >> 8) as u32
    }

    /// The cell in that line.
    #[inline(always)]
    pub(crate) fn cell(self) -> usize {
        (self.entry.get() as u8 >> 1).into()
    }

    /// The item's line; `None` if the pair is in the index.
    #[inline(always)]
    pub fn item(self) -> Option<u32> {
        self.item.checked_sub(1).map(|line| line as u32)
    }
}

/// The bucket of a key at the time of its prefetch.
#[derive(Clone, Copy, Debug)]
pub struct Home(pub(crate) u32);

impl Home {
    /// No bucket, for a key whose bucket was not prefetched.
    pub const NONE: Self = Self(0);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_places_of_the_last_lines_read_back() {
        for node in [0, 1, u32::MAX / 2, u32::MAX - 1, u32::MAX] {
            for (cell, item) in [(0, None), (11, Some(0)), (11, Some(u32::MAX)), (3, Some(1 << 31))] {
                let place = PairPlace::new(node, cell, item);
                assert_eq!((place.node(), place.cell(), place.item()), (node, cell, item));
            }
        }
    }
}
