//! Batched look-ups: while one runs, the cache lines of the following ones are being fetched.
//!
//! ```text
//! key i + 2w: hash, prefetch its bucket │ key i + w: read its bucket, prefetch its item │ key i: look it up
//! ```

use crate::key::KeyHash;
use crate::place::Place;
use crate::processor::Processor;

/// Keys between two stages. The CPU keeps about 16 misses under way; measured flat from 8 to 24.
const WINDOW: usize = 12;

impl Processor {
    /// Looks up all keys in order, and calls `each` with the place of each before the next is looked up, so that later
    /// look-ups see its changes.
    #[inline]
    pub fn find_each<'k>(
        &mut self,
        count: usize,
        key: impl Fn(usize) -> &'k [u8],
        mut each: impl FnMut(&mut Self, usize, KeyHash, Option<Place>),
    ) {
        let mut hashes = [self.hash(&[]); (2 * WINDOW).next_power_of_two()];
        let slots = hashes.len();
        for at in 0..count + 2 * WINDOW {
            if at < count {
                let hash = self.hash(key(at));
                self.prefetch(hash);
                hashes[at % slots] = hash;
            }
            if at >= WINDOW && at - WINDOW < count {
                self.prefetch_item(hashes[(at - WINDOW) % slots]);
            }
            if at >= 2 * WINDOW {
                let at = at - 2 * WINDOW;
                let hash = hashes[at % slots];
                let place = self.find(hash, key(at));
                each(self, at, hash, place);
            }
        }
    }

    /// Prefetches buckets and items for operations on these keys, in two passes. For callers that iterate over their
    /// operations themselves.
    #[inline]
    pub fn prefetch_all(&self, hashes: &[KeyHash]) {
        hashes.iter().for_each(|&hash| self.prefetch(hash));
        hashes.iter().for_each(|&hash| self.prefetch_item(hash));
    }
}
