//! Leases: pairs that clients have pinned are not evicted until their leases end.
//!
//! ```text
//! pinned ─▶ the item moves to a queue that no hand passes over ──unpinned as often, or the lease has ended──▶ Kept
//! ```
//!
//! So eviction costs the same whatever is leased. Leases end when room is made, in the order of their ends.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use crate::key::KeyHash;
use crate::regions::{UNIT_BYTES, units};

/// Bytes charged for the record of a lease, besides its key.
const RECORD_BYTES: usize = 192;
/// Most leases of a partition.
const COUNT_MAX: usize = 1 << 17;

/// The outcome of a request for a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leased {
    /// The pair is not evicted before the lease ends.
    Done,
    /// There is no pair.
    Absent,
    /// All leased pairs would take more than half of the memory, or there is no memory to set this one aside.
    Full,
}

/// The lease of one pair.
struct Lease {
    hash: KeyHash,
    /// How often it was pinned, and not unpinned since.
    count: u32,
    /// The second of the partition's clock at which it ends.
    end_s: u32,
    /// Units of the pair and of this record.
    units: usize,
}

/// The leases of a partition.
#[derive(Default)]
pub(crate) struct Leases {
    by_key: HashMap<Arc<[u8]>, Lease>,
    by_end: BTreeSet<(u32, Arc<[u8]>)>,
    units: usize,
}

impl Leases {
    /// Units charged for a pair of `pair_units`.
    fn charge(key: &[u8], pair_units: usize) -> usize {
        pair_units + units(RECORD_BYTES + key.len())
    }

    /// Number of leases.
    pub(crate) fn len(&self) -> usize {
        self.by_key.len()
    }

    /// Units of the leased pairs and of their records.
    pub(crate) fn units(&self) -> usize {
        self.units
    }

    /// Bytes of the leased pairs and of their records.
    pub(crate) fn bytes(&self) -> usize {
        self.units * UNIT_BYTES
    }

    /// Whether a key has a lease.
    pub(crate) fn contains(&self, key: &[u8]) -> bool {
        self.by_key.contains_key(key)
    }

    /// Counts one more pin of a pair of `pair_units`, from `now_s` until `end_s` at least. `false` if all would take more
    /// than `units_max`.
    pub(crate) fn add(
        &mut self,
        (hash, key): (KeyHash, &[u8]),
        pair_units: usize,
        (now_s, end_s): (u32, u32),
        units_max: usize,
    ) -> bool {
        if let Some((key, lease)) = self.by_key.get_key_value(key) {
            let (key, before_s) = (Arc::clone(key), lease.end_s);
            let lease = self.by_key.get_mut(&key).expect("just found");
            lease.count = if before_s <= now_s { 1 } else { lease.count.saturating_add(1) };
            if end_s > before_s {
                lease.end_s = end_s;
                self.by_end.remove(&(before_s, Arc::clone(&key)));
                self.by_end.insert((end_s, key));
            }
            return true;
        }
        let charged = Self::charge(key, pair_units);
        if self.units + charged > units_max || self.by_key.len() >= COUNT_MAX {
            return false;
        }
        let key: Arc<[u8]> = key.into();
        self.units += charged;
        self.by_end.insert((end_s, Arc::clone(&key)));
        self.by_key.insert(key, Lease { hash, count: 1, end_s, units: charged });
        true
    }

    /// Counts one pin less. Returns whether that was the last one: the lease is then to be [removed](Self::remove).
    pub(crate) fn release(&mut self, key: &[u8]) -> bool {
        let Some(lease) = self.by_key.get_mut(key) else { return false };
        lease.count = lease.count.saturating_sub(1);
        lease.count == 0
    }

    /// Ends a lease.
    pub(crate) fn remove(&mut self, key: &[u8]) {
        if let Some((key, lease)) = self.by_key.remove_entry(key) {
            self.units -= lease.units;
            self.by_end.remove(&(lease.end_s, key));
        }
    }

    /// The pair of a lease has another value, of `pair_units`. `false` if all would take more than `units_max` now.
    pub(crate) fn replace(&mut self, key: &[u8], pair_units: usize, units_max: usize) -> bool {
        let Some(lease) = self.by_key.get_mut(key) else { return true };
        let charged = Self::charge(key, pair_units);
        self.units = self.units - std::mem::replace(&mut lease.units, charged) + charged;
        self.units <= units_max
    }

    /// The lease that ends first, if it has ended by `now_s`.
    pub(crate) fn next_ended(&self, now_s: u32) -> Option<(KeyHash, Arc<[u8]>)> {
        self.first().filter(|(end_s, ..)| *end_s <= now_s).map(|(_, hash, key)| (hash, key))
    }

    /// The lease that ends first, and when.
    pub(crate) fn first(&self) -> Option<(u32, KeyHash, Arc<[u8]>)> {
        let (end_s, key) = self.by_end.first()?;
        Some((*end_s, self.by_key.get(key)?.hash, Arc::clone(key)))
    }

    /// Has a lease that has ended end later: its value is being sent.
    pub(crate) fn postpone(&mut self, key: &[u8], end_s: u32) {
        if let Some((key, lease)) = self.by_key.get_key_value(key) {
            let (key, before_s) = (Arc::clone(key), lease.end_s);
            self.by_end.remove(&(before_s, Arc::clone(&key)));
            self.by_key.get_mut(&key).expect("just found").end_s = end_s;
            self.by_end.insert((end_s, key));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_ends_with_its_last_pin_or_its_time_and_is_bounded() {
        let mut leases = Leases::default();
        let hash = KeyHash::of(1);
        let record = Leases::charge(b"a", 0);
        let limit = 2 * record + 30;
        assert!(leases.add((hash, b"a"), 10, (1, 5), limit) && leases.add((hash, b"b"), 20, (1, 3), limit));
        assert!(!leases.add((hash, b"c"), 1, (1, 9), limit), "more than the limit");
        assert!(leases.add((hash, b"b"), 20, (3, 6), limit), "one that has a lease takes no more");
        assert!(leases.add((hash, b"b"), 20, (4, 7), limit), "and pins before its end are forgotten");
        assert_eq!((leases.len(), leases.units()), (2, limit));
        assert_eq!(leases.next_ended(4), None);
        assert_eq!(leases.next_ended(5).expect("the first").1[..], b"a"[..]);
        assert!(!leases.release(b"b") && leases.release(b"b") && !leases.release(b"x"));
        leases.remove(b"b");
        assert!(leases.replace(b"a", 12, limit) && !leases.replace(b"a", 40 + record, limit));
        leases.postpone(b"a", 8);
        assert_eq!((leases.next_ended(7), leases.first().expect("one").0), (None, 8));
        leases.remove(b"a");
        assert_eq!((leases.len(), leases.units(), leases.first()), (0, 0, None));
    }
}
