//! Changes to be written to the log: keys, each once, in the order of their first change.
//!
//! Changes are numbered. A change is *settled* once it and all before it are durable.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};

use crate::key::{KEY_BYTES_MAX, KeyHash};
use crate::record::RECORD_EXTRA_BYTES;

/// A map by the hash of a key, which is uniformly distributed.
type ByHash<T> = HashMap<u64, T, BuildHasherDefault<IdentityHasher>>;

/// A hasher that returns its input.
#[derive(Default)]
struct IdentityHasher(u64);

impl Hasher for IdentityHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _: &[u8]) {
        unreachable!("keys are numbers");
    }

    fn write_u64(&mut self, value: u64) {
        self.0 = value;
    }
}

/// Changes of a partition.
#[derive(Debug, Default)]
pub(crate) struct Changes {
    /// Bytes of the keys of `entries`.
    keys: Vec<u8>,
    entries: Vec<Entry>,
    /// The first entry that was not taken.
    next: usize,
    /// Bytes of the records of the entries that were not taken.
    pending_bytes: usize,
    /// Index of a key's entry, by its hash; of two keys with one hash, the later.
    by_hash: ByHash<usize>,
    count: u64,
    settled: u64,
    /// The last change of a key, by its hash, until it is settled.
    unsettled: ByHash<u64>,
    /// The change that removed everything, if there was one.
    cleared: u64,
    /// Whether that change is to be written, and the last change that was taken before it: those between are written by
    /// none but it.
    is_clear_due: bool,
    taken_before_clear: u64,
    /// Keys to be rewritten without a change, each with the bytes of its record, and all of these.
    rewrites: VecDeque<(KeyHash, Box<[u8]>, usize)>,
    rewrite_bytes: usize,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    hash: KeyHash,
    /// The first change.
    number: u64,
    at: usize,
    length: usize,
    value_bytes: usize,
}

/// An entry to be written.
#[derive(Clone, Copy, Debug)]
#[expect(clippy::large_enum_variant, reason = "one at a time, on the stack")]
pub(crate) enum Due {
    /// All pairs were removed.
    Clear,
    /// The current pair of this key, or its removal.
    Key {
        /// Its hash.
        hash: KeyHash,
        /// The key, padded.
        key: [u8; KEY_BYTES_MAX],
        /// Length of the key.
        length: usize,
        /// Whether it is rewritten without a change.
        is_rewrite: bool,
    },
    /// The group is complete.
    GroupEnd,
}

impl Entry {
    fn record_bytes(&self) -> usize {
        RECORD_EXTRA_BYTES + self.length + self.value_bytes
    }
}

impl Due {
    fn of(hash: KeyHash, key: &[u8], is_rewrite: bool) -> Self {
        let mut room = [0; KEY_BYTES_MAX];
        room[..key.len()].copy_from_slice(key);
        Self::Key { hash, key: room, length: key.len(), is_rewrite }
    }
}

impl Changes {
    /// Records that a key's pair has changed, and has a value of this length now, or was removed.
    pub(crate) fn note(&mut self, hash: KeyHash, key: &[u8], value_bytes: usize) {
        self.count += 1;
        self.unsettled.insert(hash.raw(), self.count);
        if let Some(at) = self.position(hash, key) {
            let before = std::mem::replace(&mut self.entries[at].value_bytes, value_bytes);
            self.pending_bytes = self.pending_bytes - before + value_bytes;
            return;
        }
        let at = self.keys.len();
        self.keys.extend_from_slice(key);
        self.by_hash.insert(hash.raw(), self.entries.len());
        let entry = Entry { hash, number: self.count, at, length: key.len(), value_bytes };
        self.pending_bytes += entry.record_bytes();
        self.entries.push(entry);
    }

    /// Index of a key's entry that was not taken.
    fn position(&self, hash: KeyHash, key: &[u8]) -> Option<usize> {
        let last = *self.by_hash.get(&hash.raw())?;
        if last < self.next {
            return None;
        }
        if self.key(self.entries[last]) == key { Some(last) } else { self.position_before(last, hash, key) }
    }

    /// As [`position`](Self::position), when another key with this hash has the entry at `last`.
    #[cold]
    fn position_before(&self, last: usize, hash: KeyHash, key: &[u8]) -> Option<usize> {
        let is_it = |entry: &Entry| entry.hash == hash && self.key(*entry) == key;
        Some(self.next + self.entries[self.next..last].iter().position(is_it)?)
    }

    /// Whether a key has changed and that is not written yet.
    pub(crate) fn is_pending(&self, hash: KeyHash, key: &[u8]) -> bool {
        self.is_clear_due || self.position(hash, key).is_some()
    }

    /// Bytes of the records of all changes to be written.
    pub(crate) fn pending_bytes(&self) -> usize {
        self.pending_bytes
    }

    /// Records that all pairs were removed, and drops the changes before.
    pub(crate) fn note_clear(&mut self) {
        self.taken_before_clear = self.taken();
        self.count += 1;
        self.cleared = self.count;
        self.is_clear_due = true;
        self.next = self.entries.len();
        self.pending_bytes = 0;
        self.rewrites.clear();
        self.rewrite_bytes = 0;
        self.drop_taken();
    }

    /// Requests that a key is rewritten, because the segment with its record will be reused. Its pair has `pair_bytes`.
    pub(crate) fn request_rewrite(&mut self, hash: KeyHash, key: &[u8], pair_bytes: usize) {
        let record_bytes = RECORD_EXTRA_BYTES + pair_bytes;
        self.rewrites.push_back((hash, key.into(), record_bytes));
        self.rewrite_bytes += record_bytes;
    }

    /// Bytes of the records of keys to be rewritten.
    pub(crate) fn rewrite_bytes(&self) -> usize {
        self.rewrite_bytes
    }

    /// Number of keys to be rewritten.
    pub(crate) fn rewrite_count(&self) -> usize {
        self.rewrites.len()
    }

    fn key(&self, entry: Entry) -> &[u8] {
        &self.keys[entry.at..entry.at + entry.length]
    }

    /// Whether anything is to be written.
    pub(crate) fn has_due(&self) -> bool {
        !self.rewrites.is_empty() || self.is_clear_due || self.next < self.entries.len()
    }

    /// Whether the removal of all pairs is to be written.
    pub(crate) fn is_clear_due(&self) -> bool {
        self.is_clear_due
    }

    /// The next change to be written. It stays the next until it is [taken](Self::take).
    pub(crate) fn due_change(&self) -> Option<Due> {
        if self.is_clear_due {
            return Some(Due::Clear);
        }
        let entry = *self.entries.get(self.next)?;
        Some(Due::of(entry.hash, self.key(entry), false))
    }

    /// The next key to be rewritten, likewise.
    pub(crate) fn due_rewrite(&self) -> Option<Due> {
        let (hash, key, _) = self.rewrites.front()?;
        Some(Due::of(*hash, key, true))
    }

    /// Marks an entry that was [due](Self::due_change) as being written.
    pub(crate) fn take(&mut self, due: &Due) {
        match due {
            Due::Clear => self.is_clear_due = false,
            Due::Key { is_rewrite: true, .. } => {
                self.rewrite_bytes -= self.rewrites.pop_front().map_or(0, |(.., record_bytes)| record_bytes);
            }
            Due::Key { .. } => {
                self.pending_bytes -= self.entries[self.next].record_bytes();
                self.next += 1;
                self.drop_taken();
            }
            Due::GroupEnd => {}
        }
    }

    fn drop_taken(&mut self) {
        if self.next == self.entries.len() {
            self.next = 0;
            self.entries.clear();
            self.keys.clear();
            self.by_hash.clear();
        } else if self.next > 4096 && self.next > self.entries.len() / 2 {
            let start = self.entries[self.next].at;
            self.keys.drain(..start);
            self.entries.drain(..self.next);
            self.by_hash.retain(|_, at| *at >= self.next);
            self.by_hash.values_mut().for_each(|at| *at -= self.next);
            self.entries.iter_mut().for_each(|entry| entry.at -= start);
            self.next = 0;
        }
    }

    /// The last change so far.
    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    /// All changes up to this one have been taken.
    pub(crate) fn taken(&self) -> u64 {
        if self.is_clear_due {
            return self.taken_before_clear;
        }
        self.entries.get(self.next).map_or(self.count, |entry| entry.number - 1)
    }

    /// Marks all changes up to this one as durable.
    pub(crate) fn settle(&mut self, number: u64) {
        debug_assert!(number >= self.settled, "settled changes go back from {} to {number}", self.settled);
        debug_assert!(number <= self.count, "change {number} of {} is settled", self.count);
        self.settled = self.settled.max(number);
        if self.settled == self.count {
            self.unsettled.clear();
        } else {
            let settled = self.settled;
            self.unsettled.retain(|_, last| *last > settled);
        }
    }

    /// The last change that is durable together with all before it.
    pub(crate) fn settled(&self) -> u64 {
        self.settled
    }

    /// The change that removed all pairs, unless it is settled.
    pub(crate) fn unsettled_clear(&self) -> Option<u64> {
        (self.cleared > self.settled).then_some(self.cleared)
    }

    /// The last change visible to a reader of this key, unless it is settled.
    pub(crate) fn unsettled(&self, hash: KeyHash) -> Option<u64> {
        let last = self.unsettled.get(&hash.raw()).copied().unwrap_or(0).max(self.cleared);
        (last > self.settled).then_some(last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rapidhash::v3::{RapidSecrets, rapidhash_v3_micro_inline};

    fn hash(key: &[u8]) -> KeyHash {
        KeyHash::of(rapidhash_v3_micro_inline::<true, false>(key, &RapidSecrets::seed(1)))
    }

    fn next(changes: &mut Changes) -> Option<Vec<u8>> {
        let due = changes.due_change()?;
        changes.take(&due);
        Some(match due {
            Due::Key { key, length, .. } => key[..length].to_vec(),
            _ => b"(clear)".to_vec(),
        })
    }

    #[test]
    fn a_key_that_changes_often_is_written_once_and_settles_with_its_last_change() {
        let mut changes = Changes::default();
        for key in [b"a", b"b", b"a", b"a"] {
            changes.note(hash(key), key, 10);
        }
        assert_eq!((changes.count(), changes.taken()), (4, 0));
        assert_eq!(changes.pending_bytes(), 2 * (RECORD_EXTRA_BYTES + 11));
        assert_eq!(next(&mut changes), Some(b"a".to_vec()));
        assert_eq!(changes.taken(), 1);
        changes.note(hash(b"a"), b"a", 0);
        assert_eq!(next(&mut changes), Some(b"b".to_vec()));
        assert_eq!(changes.taken(), 4);
        changes.settle(4);
        assert_eq!((changes.unsettled(hash(b"a")), changes.unsettled(hash(b"b"))), (Some(5), None));
        assert_eq!((next(&mut changes), next(&mut changes)), (Some(b"a".to_vec()), None));
        assert_eq!(changes.pending_bytes(), 0);
    }

    #[test]
    fn what_was_removed_with_everything_else_is_not_written() {
        let mut changes = Changes::default();
        changes.note(hash(b"a"), b"a", 5);
        changes.note_clear();
        assert_eq!(changes.pending_bytes(), 0);
        changes.note(hash(b"b"), b"b", 0);
        assert_eq!(changes.taken(), 0, "not written, and only the removal of everything makes up for that");
        assert!(changes.unsettled(hash(b"any")).is_some());
        assert_eq!(next(&mut changes), Some(b"(clear)".to_vec()));
        assert_eq!((next(&mut changes), next(&mut changes)), (Some(b"b".to_vec()), None));
        changes.settle(changes.taken());
        assert_eq!(changes.unsettled(hash(b"any")), None);
    }

    #[test]
    fn room_is_used_again_when_writing_never_catches_up() {
        let mut changes = Changes::default();
        for number in 0..100_000u32 {
            let key = number.to_le_bytes();
            changes.note(hash(&key), &key, 0);
            if number > 100 {
                assert_eq!(next(&mut changes), Some((number - 101).to_le_bytes().to_vec()));
            }
        }
        assert!(changes.keys.capacity() < 200_000 && changes.entries.len() < 20_000);
    }
}
