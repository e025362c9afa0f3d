//! The keys of one lane, where the target tells how it divides them: those of the partition that the lane is near.

use std::time::{Duration, Instant};

use host::{Association, Key, KeyValueNamespace, PartitionMap};

/// Interval at which the map is looked at again: the target may have been restarted, or be another one.
const LOOK: Duration = Duration::from_millis(100);

/// Keys whose lanes are computed once.
const TABLE_COUNT_MAX: u64 = 1 << 24;

/// The keys of a lane: all of them without a map.
pub(super) struct OwnKeys {
    /// The lane's index among all, if keys are to be divided.
    lane: Option<u16>,
    lanes: u16,
    map: Option<PartitionMap>,
    /// Whether the key with each number takes this lane; computed from the map. Empty where there are too many.
    table: Vec<bool>,
    key_count: u64,
    due: Instant,
}

impl OwnKeys {
    /// Those of the lane with this number, of `lanes`.
    pub(super) fn new(number: u16, lanes: u16, key_count: u64, is_divided: bool) -> Self {
        let lane = number.checked_sub(1).filter(|lane| is_divided && *lane < lanes && lanes > 1);
        Self { lane, lanes, map: None, table: Vec::new(), key_count, due: Instant::now() }
    }

    /// Learns how the target divides keys, if it is time to. Commands that are outstanding keep their lanes.
    pub(super) fn follow(
        &mut self,
        association: &Association,
        namespace: &KeyValueNamespace,
        now: Instant,
        name: impl Fn(u64) -> Key,
    ) {
        if self.lane.is_none() || now < self.due {
            return;
        }
        self.due = now + LOOK;
        let map =
            association.key_value(namespace.nsid()).ok().and_then(|namespace| namespace.partition_map());
        let map = map.filter(|map| map.count() > 1 && map.count() <= self.lanes);
        if map == self.map {
            return;
        }
        self.map = map;
        self.table.clear();
        if self.map.is_some() && self.key_count <= TABLE_COUNT_MAX {
            self.table = (0..self.key_count).map(|number| self.is_computed_own(&name(number))).collect();
        }
    }

    /// Whether a key takes this lane, by its number where it is one of the stored keys.
    pub(super) fn is_own(&self, number: Option<u64>, name: impl FnOnce() -> Key) -> bool {
        let known = number.and_then(|number| self.table.get(usize::try_from(number).ok()?));
        known.copied().unwrap_or_else(|| self.is_computed_own(&name()))
    }

    fn is_computed_own(&self, key: &Key) -> bool {
        self.map.is_none_or(|map| map.lane_of(key.as_bytes(), self.lanes) == self.lane)
    }

    /// Whether keys are divided now.
    pub(super) fn is_divided(&self) -> bool {
        self.map.is_some()
    }
}
