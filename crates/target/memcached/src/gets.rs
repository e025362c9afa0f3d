//! Batched execution of `get` keys, the most frequent request.
//!
//! ```text
//! take keys off their lines, prefetch their buckets ─▶ find and prefetch their items ─▶ compare, answer
//! ```
//!
//! A bare key needs little state, and a get moves no other item: places found when items were prefetched stay valid as
//! long as nothing is removed.

use kv::{Home, KeyHash, PairPlace, Processor};

use crate::protocol::decode::{GetPosition, next_get};

/// Keys and commands that are looked up together.
pub(super) const BATCH: usize = 64;
/// Distance, in commands, between the prefetch of an item and its use: the number of misses the CPU keeps under way.
pub(super) const ITEMS_AHEAD: usize = 12;

/// A key of a batch.
#[derive(Clone, Copy)]
pub(super) struct Get<'a> {
    pub(super) key: &'a [u8],
    pub(super) hash: KeyHash,
    pub(super) home: Home,
    /// The place of its pair when it was prefetched.
    pub(super) place: Option<PairPlace>,
    /// Position of the input after the key.
    pub(super) behind: GetPosition,
    /// Bytes of the input after it.
    pub(super) left_bytes: usize,
}

/// Takes up to a batch of `get` keys off the input, and has `prefetch` prefetch their buckets.
#[inline(always)]
pub(super) fn take_gets<'a>(
    mut prefetch: impl FnMut(&[u8]) -> (KeyHash, Home),
    mut behind: GetPosition,
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
        let (hash, home) = prefetch(key);
        gets.push(Get { key, hash, home, place: None, behind, left_bytes: input.len() });
    }
}

/// The hash of a key, and its bucket, which is prefetched.
#[inline(always)]
pub(super) fn prefetch_bucket(processor: &Processor, key: &[u8]) -> (KeyHash, Home) {
    let hash = processor.hash(key);
    (hash, processor.prefetch_home(hash))
}

/// Finds the places of keys whose buckets have been prefetched, and prefetches their items.
#[inline(always)]
pub(super) fn prefetch_items(processor: &Processor, gets: &mut [Get<'_>]) {
    for get in gets {
        get.place = processor.prefetch_item_of(get.hash, get.home);
    }
}
