//! Parts of long values that are in the pool, or may be, and those that are to be removed.

use std::collections::{HashMap, VecDeque};

/// Parts of a key's values: by the version of the value, how many.
pub(super) type Versions = HashMap<u64, u64>;

/// The parts of one reactor's keys.
#[derive(Default)]
pub(super) struct Parts {
    versions: HashMap<Box<[u8]>, Versions>,
    removals: VecDeque<(Box<[u8]>, u64, u64)>,
}

impl Parts {
    pub(super) fn new(versions: HashMap<Box<[u8]>, Versions>) -> Self {
        Self { versions, removals: VecDeque::new() }
    }

    /// They are there, or will be.
    pub(super) fn note(&mut self, key: &[u8], version: u64, count: u64) {
        self.versions.entry(key.into()).or_default().insert(version, count);
    }

    /// The head of a key refers to this version and number of parts, if to any: all others are removed.
    pub(super) fn keep_only(&mut self, key: &[u8], current: Option<(u64, u64)>) {
        let Some(versions) = self.versions.remove(key) else { return };
        for (version, count) in versions {
            if current.is_none_or(|(current, _)| current != version) {
                self.removals.extend((0..count).map(|number| (key.into(), version, number)));
            }
        }
        if let Some((version, count)) = current {
            self.versions.insert(key.into(), HashMap::from([(version, count)]));
        }
    }

    /// The next part to be removed: its key, the version, and its number.
    pub(super) fn next_removal(&mut self) -> Option<(Box<[u8]>, u64, u64)> {
        self.removals.pop_front()
    }

    pub(super) fn has_removals(&self) -> bool {
        !self.removals.is_empty()
    }
}
