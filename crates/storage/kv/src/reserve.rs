//! Regions that are kept free, so that values stored in a log can be read.
//!
//! Stubs, values that are too short to become one, and the index are *fixed*: only a change of the pairs frees their
//! memory. Everything else can leave memory once it is written. So a value can be fetched if enough regions have
//! nothing fixed in them:
//!
//! ```text
//! all regions │ fixed …
//!             ├ stores end here
//!             │ index      recovery may need some more overflow lines
//!             │ scattered  what is fixed was packed without a hole at best, and each region may have some later
//!             ├ recovery ends here
//!             │ value      the longest that the log may have
//!             ├ fetches end here
//!             │ moves      stubs and moved items, before what they replace is freed
//! ```
//! Values that were fetched have regions of their own, so that nothing fixed comes among them.

use crate::index::Index;
use crate::item::Layout;
use crate::regions::{REGION_BYTES, REGION_UNITS, Regions, Reserve, units};

/// Memory of a region with its records, bytes.
pub(crate) const REGION_MEMORY_BYTES: usize = REGION_BYTES + Regions::RECORD_BYTES + Index::RECORD_BYTES;

/// Regions for moving items without a log, if these are at most an eighth.
const MOVES: usize = 1;
/// The same with a log: for stubs, and for items left where they come from.
const MOVES_WITH_LOG: usize = 2;
/// Units that emptying a region frees at least where pairs are not evicted.
pub(crate) const FREED_MIN: usize = REGION_UNITS / 64;
/// Units of the longest stub.
pub(crate) const STUB_UNITS_MAX: usize = units(Layout::STUB_BYTES_MAX);
/// Of this many regions recovery may need one more for overflow lines.
const INDEX_ONE_IN: usize = 128;
/// Regions for the index, its overflow lines, and stubs and short values.
const FIXED_MIN: usize = 3;

/// The reserve of a partition without a log.
pub(crate) fn without_log(region_count: usize) -> Reserve {
    let moves = MOVES.min(region_count / 8);
    Reserve { moves: 0, fetches: moves, recovery: moves, stores: moves, value: 0, wasted_units: 0 }
}

/// The reserve of a partition with a log of values of up to `value_bytes_max`.
pub(crate) const fn with_log(region_count: usize, value_bytes_max: usize) -> Reserve {
    // Its block, and whole regions of its pieces and chunks.
    let value = 1 + value_bytes_max.div_ceil(REGION_BYTES);
    let recovery = MOVES_WITH_LOG + value;
    // As many units as may be free without the region being emptied, and those at its end that the next item does not
    // fit in. Items that never leave memory are shorter than two stubs. Units needed beyond whole regions take another
    // one.
    let wasted_units = FREED_MIN + 2 * STUB_UNITS_MAX;
    let scattered = region_count * wasted_units / REGION_UNITS + 1;
    let index = region_count / INDEX_ONE_IN + 1;
    let stores = recovery + scattered + index;
    Reserve { moves: 0, fetches: MOVES_WITH_LOG, recovery, stores, value, wasted_units }
}

/// The least memory of a partition with a log of values of up to `value_bytes_max` in which the longest can be stored,
/// bytes.
pub(crate) const fn memory_bytes_min(value_bytes_max: usize) -> usize {
    let mut count = FIXED_MIN;
    loop {
        let Reserve { stores, value, .. } = with_log(count, value_bytes_max);
        if count >= FIXED_MIN + value + stores {
            return count * REGION_MEMORY_BYTES;
        }
        count += 1;
    }
}

/// The memory of a partition with such a log that suffices to recover and read pairs that need `needed_count` regions,
/// bytes.
pub(crate) fn memory_bytes_for(needed_count: usize, value_bytes_max: usize) -> usize {
    let mut count = needed_count;
    loop {
        let reserve = with_log(count, value_bytes_max);
        let wanted = needed_count + reserve.stores - reserve.recovery;
        if wanted <= count {
            return (count * REGION_MEMORY_BYTES).max(memory_bytes_min(value_bytes_max));
        }
        count = wanted;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_memory_has_room_for_one_value_that_is_stored_and_one_that_is_fetched() {
        for value_bytes_max in [8 << 10, 64 << 10, 65_537, 1 << 20, 256 << 20] {
            let count = memory_bytes_min(value_bytes_max) / REGION_MEMORY_BYTES;
            let reserve = with_log(count, value_bytes_max);
            assert!(count - FIXED_MIN - reserve.stores >= reserve.value);
            assert!(reserve.value * REGION_BYTES > value_bytes_max);
            let one_less = with_log(count - 1, value_bytes_max);
            assert!(count - 1 < FIXED_MIN + one_less.stores + one_less.value);
        }
    }
}
