//! Changes by their numbers: which are written, and which an answer waits for.

use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap};

use kv::KeyHash;

/// In the number of a change that is waited for together with all before it: keys do not wait for each other otherwise.
const ALL: u64 = 1 << 63;

/// Changes, by numbers.
#[derive(Default)]
pub(super) struct Changes {
    count: u64,
    /// Those that are not written yet.
    open: BTreeSet<u64>,
    /// The last one of a key that is not written yet, by its hash.
    of_key: HashMap<u64, u64>,
    /// Bytes of all that are not written yet.
    pub(super) bytes: usize,
}

impl Changes {
    pub(super) fn add(&mut self, hash: KeyHash) -> u64 {
        self.count += 1;
        self.open.insert(self.count);
        self.of_key.insert(hash.raw(), self.count);
        self.count
    }

    pub(super) fn end(&mut self, number: u64, hash: KeyHash) {
        self.open.remove(&number);
        if let Entry::Occupied(last) = self.of_key.entry(hash.raw())
            && *last.get() == number
        {
            last.remove();
        }
    }

    /// Forgets those that are not written: nobody waits for them any more. Numbers go on.
    pub(super) fn forget(&mut self) {
        *self = Self { count: self.count, ..Self::default() };
    }

    pub(super) fn settled(&self) -> u64 {
        self.open.first().map_or(self.count, |first| first - 1)
    }

    /// What an answer about a key waits for.
    pub(super) fn awaited(&self, hash: KeyHash) -> Option<u64> {
        self.of_key.get(&hash.raw()).copied()
    }

    /// What an answer about all keys waits for.
    pub(super) fn all(&self) -> u64 {
        ALL | self.count
    }

    /// As [`all`](Self::all), if anything is not written.
    pub(super) fn all_open(&self) -> Option<u64> {
        (!self.open.is_empty()).then(|| self.all())
    }

    pub(super) fn is_settled(&self, awaited: u64) -> bool {
        match awaited & ALL {
            0 => !self.open.contains(&awaited),
            _ => awaited & !ALL <= self.settled(),
        }
    }
}

/// What an answer that waits for two things waits for.
pub(super) fn both(one: Option<u64>, other: Option<u64>) -> Option<u64> {
    match (one, other) {
        (Some(one), Some(other)) if one != other => Some(ALL | (one & !ALL).max(other & !ALL)),
        _ => one.or(other),
    }
}
