//! Keys of which is known that there is no object.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;

/// So many are remembered.
const COUNT_MAX: usize = 64 << 10;

/// Keys without an object, the oldest of which are forgotten.
#[derive(Default)]
pub(super) struct Absent {
    keys: HashSet<Arc<[u8]>>,
    order: VecDeque<Arc<[u8]>>,
}

impl Absent {
    pub(super) fn contains(&self, key: &[u8]) -> bool {
        self.keys.contains(key)
    }

    pub(super) fn insert(&mut self, key: &[u8]) {
        if self.keys.contains(key) {
            return;
        }
        if self.order.len() == COUNT_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.keys.remove(&oldest);
        }
        let key: Arc<[u8]> = key.into();
        self.keys.insert(Arc::clone(&key));
        self.order.push_back(key);
    }

    pub(super) fn remove(&mut self, key: &[u8]) {
        // Its place in the order stays: who comes back is forgotten a little earlier.
        self.keys.remove(key);
    }
}
