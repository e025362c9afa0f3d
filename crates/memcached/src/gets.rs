//! Keys to `get`, many together: most of what most clients ask.
//!
//! ```text
//! take keys off their lines, fetch their buckets ─▶ say where their items are, fetch them ─▶ compare, answer
//! ```
//!
//! A bare key needs little state, and a get moves no other item: places seen when items were fetched stay valid as long as
//! nothing is removed.

use kv::{Home, KeyHash, Place, Processor};

use crate::protocol::decode::{Behind, next_get};

/// Keys and commands that are looked up together.
pub(super) const BATCH: usize = 64;
/// How many commands before it is executed a command's item is fetched: as many as the processor fetches at once.
pub(super) const ITEMS_AHEAD: usize = 12;

/// One of them.
#[derive(Clone, Copy)]
pub(super) struct Get<'a> {
    pub(super) key: &'a [u8],
    pub(super) hash: KeyHash,
    home: Home,
    /// Where its pair was seen.
    pub(super) place: Option<Place>,
    /// What is behind it.
    pub(super) behind: Behind,
    /// Bytes of the input behind it.
    pub(super) left_bytes: usize,
}

/// Takes keys to `get` off the input, as many as are looked up together, and has their buckets fetched.
#[inline(always)]
pub(super) fn take_gets<'a>(
    processor: &Processor,
    mut behind: Behind,
    input: &mut &'a [u8],
    gets: &mut Vec<Get<'a>>,
) {
    let whole_bytes = input.len();
    gets.clear();
    while gets.len() < BATCH
        && let Some((key, behind_it)) = next_get(input, behind)
    {
        if gets.is_empty() {
            gets.reserve((whole_bytes / 16 + 1).min(BATCH));
        }
        behind = behind_it;
        let hash = processor.hash(key);
        let home = processor.prefetch_home(hash);
        gets.push(Get { key, hash, home, place: None, behind, left_bytes: input.len() });
    }
}

/// Notes where the pairs of some keys are whose buckets are there by now, and has their items fetched.
#[inline(always)]
pub(super) fn prefetch_items(processor: &Processor, gets: &mut [Get<'_>]) {
    for get in gets {
        get.place = processor.prefetch_item_of(get.hash, get.home);
    }
}
