//! The lane of each key of an asynchronous handle, where the target tells how it divides keys.

use std::sync::{Arc, Mutex, PoisonError};

use host_core::key_value::PartitionMap;
use wire::id::Nsid;

use crate::association::Association;

/// How keys are divided among lanes. Each outstanding command that was sent by it holds it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct KeyRoute {
    map: PartitionMap,
    lanes: u16,
}

impl KeyRoute {
    /// The index of the lane of a key.
    pub(super) fn lane_of(&self, key: &[u8]) -> Option<u16> {
        self.map.lane_of(key, self.lanes)
    }

    pub(super) fn map(&self) -> (&PartitionMap, u16) {
        (&self.map, self.lanes)
    }
}

/// The route of new commands. It changes only while no command holds the one before: commands on a key keep their order,
/// also when the target is restarted or replaced by another.
#[derive(Debug, Default)]
pub(super) struct KeyRoutes(Mutex<Current>);

#[derive(Debug, Default)]
struct Current {
    /// The scan of the namespaces that the route comes from.
    scan_count: u64,
    /// `None` if any lane will do.
    route: Option<Arc<KeyRoute>>,
}

impl KeyRoutes {
    /// The route of a command that is submitted now.
    pub(super) fn current(&self, association: &Association, nsid: Nsid) -> Option<Arc<KeyRoute>> {
        // No code panics while it holds the lock.
        let mut current = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let scan_count = association.scan_count();
        if scan_count != current.scan_count {
            let new = association.key_lanes(nsid).map(|(map, lanes)| KeyRoute { map, lanes });
            current.follow(scan_count, new);
        }
        current.route.clone()
    }
}

impl Current {
    fn follow(&mut self, scan_count: u64, new: Option<KeyRoute>) {
        let is_same = self.route.as_deref() == new.as_ref();
        let is_free = self.route.as_ref().is_none_or(|route| Arc::strong_count(route) == 1);
        if is_same || is_free {
            self.scan_count = scan_count;
        }
        if !is_same && is_free {
            self.route = new.map(Arc::new);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto::host_namespaces::KeyPartitions;

    fn route(seed: u64) -> KeyRoute {
        KeyRoute { map: PartitionMap::new(KeyPartitions { seed, count: 2 }), lanes: 2 }
    }

    #[test]
    fn a_route_changes_only_while_no_command_holds_it() {
        let mut current = Current::default();
        current.follow(1, Some(route(1)));
        let held = current.route.clone().expect("a route");
        current.follow(2, Some(route(2)));
        assert_eq!((current.scan_count, current.route.as_deref()), (1, Some(&route(1))));
        current.follow(2, None);
        assert_eq!((current.scan_count, current.route.as_deref()), (1, Some(&route(1))));
        current.follow(2, Some(route(1)));
        assert_eq!(current.scan_count, 2, "the same again");
        drop(held);
        current.follow(3, Some(route(2)));
        assert_eq!((current.scan_count, current.route.as_deref()), (3, Some(&route(2))));
        current.follow(4, None);
        assert_eq!((current.scan_count, current.route.as_deref()), (4, None), "a target without a map");
    }
}
