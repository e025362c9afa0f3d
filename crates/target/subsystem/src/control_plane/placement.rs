//! Which reactor serves a lane. docs/design/placement.md
//!
//! ```text
//! accept ─▶ on_accept: a reactor, by what is known ─▶ ICReq … Connect ─▶ on_connect: stays, or moves, once, before any I/O
//!                                                                              └─▶ on_left, when it ends
//! ```
//!
//! Pure: it derives the number of lanes per reactor from its own decisions and from the ends reported to it.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU32;

use reactor::Arrival;

use crate::messages::message::{Connecting, Left};
use crate::messages::state::{DeviceQueueState, PlacementCounters, PlacementState};
use crate::names::placement_policy::PlacementPolicy;

/// Load of a reactor. May be negative for a moment: a lane has ended on its old reactor and is counted on its new one.
#[derive(Clone, Copy, Debug, Default)]
struct Share {
    /// All its lanes.
    lanes: i64,
    /// Its I/O lanes.
    io_lanes: i64,
    /// Lanes with recent commands.
    active: i64,
}

/// A device queue.
#[derive(Clone, Copy, Debug, Default)]
struct DeviceQueue {
    /// The reactor that polls it, once decided.
    reactor: Option<usize>,
    lanes: u32,
}

/// Maximum number of NAPI ids remembered for statistics; the kernel never reuses one.
const SEEN_COUNT_MAX: usize = 1024;

/// The state of placement.
#[derive(Debug)]
pub struct Placement {
    policy: PlacementPolicy,
    /// The core of each reactor, if it is tied to one.
    cores: Vec<Option<usize>>,
    shares: Vec<Share>,
    /// By NAPI id: the kernel assigns new ones when a device is reset, so those without lanes are dropped.
    devices: BTreeMap<NonZeroU32, DeviceQueue>,
    /// NAPI ids of all queues that ever had lanes, up to a maximum number.
    seen: BTreeSet<NonZeroU32>,
    /// Where the search among equal reactors starts.
    next: usize,
    next_memcached: usize,
    counters: PlacementCounters,
}

impl Placement {
    /// Creates the placement for reactors on these cores, at least one.
    #[must_use]
    pub fn new(policy: PlacementPolicy, cores: Vec<Option<usize>>) -> Self {
        let shares = vec![Share::default(); cores.len()];
        let counters = PlacementCounters::default();
        let (devices, seen) = (BTreeMap::new(), BTreeSet::new());
        Self { policy, cores, shares, devices, seen, next: 0, next_memcached: 0, counters }
    }

    /// The policy for new lanes.
    #[must_use]
    pub fn policy(&self) -> PlacementPolicy {
        self.policy
    }

    /// Changes the policy; existing lanes stay where they are.
    pub fn set_policy(&mut self, policy: PlacementPolicy) {
        self.policy = policy;
    }

    /// Lanes that are counted, of all reactors; more if some are counted wrong.
    #[must_use]
    pub fn lane_count(&self) -> usize {
        let of_devices = self.devices.values().map(|device| device.lanes as usize).sum::<usize>();
        let of = |share: &Share| share.lanes.unsigned_abs().max(share.io_lanes.unsigned_abs());
        let of_reactors = self.shares.iter().map(of).sum::<u64>();
        of_devices.max(usize::try_from(of_reactors).unwrap_or(usize::MAX))
    }

    /// Numbers of lanes by the criterion that placed them.
    #[must_use]
    pub fn counters(&self) -> PlacementCounters {
        self.counters
    }

    /// Device queues with lanes, the reactor that polls each, and its number of lanes.
    pub fn devices(&self) -> impl Iterator<Item = (NonZeroU32, Option<usize>, u32)> + '_ {
        self.devices.iter().map(|(id, device)| (*id, device.reactor, device.lanes))
    }

    /// NAPI ids of all queues that lanes have ever come in through.
    pub fn seen(&self) -> impl Iterator<Item = NonZeroU32> + '_ {
        self.seen.iter().copied()
    }

    /// Places an accepted connection: returns its reactor until Connect.
    pub fn on_accept(&mut self, arrival: Arrival) -> usize {
        self.count_napi(arrival.napi_id);
        let reactor = self.by_fact(arrival).unwrap_or_else(|| {
            let least = self.least(self.next, |share| share.lanes + share.active);
            self.next = (least + 1) % self.shares.len();
            least
        });
        self.shares[reactor].lanes += 1;
        reactor
    }

    /// Places a memcached connection: returns the reactor that owns it until it is closed.
    pub fn on_memcached(&mut self, arrival: Arrival) -> usize {
        self.by_fact(arrival).unwrap_or_else(|| {
            let reactor = self.next_memcached;
            self.next_memcached = (reactor + 1) % self.shares.len();
            reactor
        })
    }

    /// Places an I/O lane that connects: returns its final reactor.
    pub fn on_connect(&mut self, lane: Connecting) -> usize {
        let Connecting { reactor: at, qid, counted_napi, arrival, near_partition } = lane;
        if counted_napi != arrival.napi_id {
            self.counters.napi_changed += u64::from(counted_napi.is_some() && arrival.napi_id.is_some());
            self.forget_napi(counted_napi);
            self.count_napi(arrival.napi_id);
        }
        let wanted = near_partition.map(usize::from).filter(|reactor| *reactor < self.shares.len());
        let to = match (self.policy, self.by_fact(arrival), wanted) {
            (PlacementPolicy::Napi, Some(reactor), _) => {
                self.counters.by_napi += 1;
                reactor
            }
            (PlacementPolicy::Cpu, Some(reactor), _) => {
                self.counters.by_cpu += 1;
                reactor
            }
            // Its keys are there. A reactor that polls the lane's device queue, or shares its core, serves it better.
            (_, _, Some(reactor)) => {
                self.counters.by_partition += 1;
                reactor
            }
            (PlacementPolicy::Queue, ..) => {
                self.counters.by_queue += 1;
                usize::from(qid.get().saturating_sub(1)) % self.shares.len()
            }
            (policy, ..) => {
                let is_asked_for = policy == PlacementPolicy::Load;
                self.counters.by_load += u64::from(is_asked_for);
                self.counters.fell_back += u64::from(!is_asked_for);
                // Where it is, unless another reactor has less to do: no move without gain.
                self.least(at, |share| share.io_lanes + share.active)
            }
        };
        if let Some(share) = self.shares.get_mut(at) {
            share.lanes -= 1;
        }
        let share = &mut self.shares[to];
        share.lanes += 1;
        share.io_lanes += 1;
        self.counters.moved += u64::from(to != at);
        to
    }

    /// A handover from reactor `from` to reactor `to` failed: it was impossible, or the lane has ended.
    pub fn on_not_moved(&mut self, from: usize, to: usize, is_gone: bool) {
        for (reactor, change) in [(to, -1), (from, 1)] {
            if let Some(share) = self.shares.get_mut(reactor) {
                share.lanes += change;
                share.io_lanes += change;
            }
        }
        self.counters.moved = self.counters.moved.saturating_sub(1);
        self.counters.stuck += u64::from(!is_gone);
    }

    /// A lane has ended.
    pub fn on_left(&mut self, left: Left) {
        self.forget_napi(left.napi);
        if let Some(share) = self.shares.get_mut(left.reactor) {
            share.lanes -= 1;
            share.io_lanes -= i64::from(left.is_io);
        }
    }

    /// Records the number of lanes of a reactor with recent commands.
    pub fn on_active(&mut self, reactor: usize, count: u32) {
        if let Some(share) = self.shares.get_mut(reactor) {
            share.active = count.into();
        }
    }

    fn count_napi(&mut self, id: Option<NonZeroU32>) {
        let Some(id) = id else { return };
        self.devices.entry(id).or_default().lanes += 1;
        if self.seen.len() < SEEN_COUNT_MAX {
            self.seen.insert(id);
        }
    }

    fn forget_napi(&mut self, id: Option<NonZeroU32>) {
        if let Some(id) = id
            && let Some(device) = self.devices.get_mut(&id)
        {
            device.lanes = device.lanes.saturating_sub(1);
            if device.lanes == 0 {
                self.devices.remove(&id);
            }
        }
    }

    /// The reactor that the policy selects for this origin, if it is known.
    fn by_fact(&mut self, arrival: Arrival) -> Option<usize> {
        match self.policy {
            PlacementPolicy::Napi => arrival.napi_id.map(|id| self.of_napi(id)),
            PlacementPolicy::Cpu => {
                let cpu = usize::try_from(arrival.cpu?).ok()?;
                self.cores.iter().position(|core| *core == Some(cpu))
            }
            PlacementPolicy::Load | PlacementPolicy::Queue => None,
        }
    }

    /// The reactor of a device queue. A new queue goes to a reactor without one while there is such a reactor: a thread
    /// that polls several queues polls none of them well.
    fn of_napi(&mut self, id: NonZeroU32) -> usize {
        if let Some(reactor) = self.devices.get(&id).and_then(|device| device.reactor) {
            return reactor;
        }
        let mut owned = vec![0u32; self.shares.len()];
        for device in self.devices.values() {
            if let Some(reactor) = device.reactor {
                owned[reactor] += 1;
            }
        }
        let count = self.shares.len();
        let order = (0..count).map(|at| (self.next + at) % count);
        let least = order.min_by_key(|&at| (owned[at], self.shares[at].lanes)).unwrap_or(0);
        self.devices.entry(id).or_default().reactor = Some(least);
        least
    }

    /// The reactor with the lowest load; among equals the first from `begin` on.
    fn least(&self, begin: usize, of: impl Fn(&Share) -> i64) -> usize {
        let count = self.shares.len();
        (0..count).map(|at| (begin + at) % count).min_by_key(|&at| of(&self.shares[at])).unwrap_or(0)
    }
}

impl From<&Placement> for PlacementState {
    fn from(placement: &Placement) -> Self {
        let device =
            |(id, reactor, lanes): (NonZeroU32, _, _)| DeviceQueueState { napi_id: id.get(), reactor, lanes };
        Self {
            policy: placement.policy().to_string(),
            counters: placement.counters(),
            napi_ids_seen: placement.seen().map(NonZeroU32::get).collect(),
            device_queues: placement.devices().map(device).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use wire::id::Qid;

    use super::*;

    const NOWHERE: Arrival = Arrival { napi_id: None, cpu: None };

    fn through(napi: u32) -> Arrival {
        Arrival { napi_id: NonZeroU32::new(napi), cpu: None }
    }

    fn placement(policy: PlacementPolicy, count: usize) -> Placement {
        Placement::new(policy, (0..count).map(Some).collect())
    }

    /// Accepts and connects a lane; returns its reactor.
    fn lane(placement: &mut Placement, qid: u16, arrival: Arrival) -> usize {
        let reactor = placement.on_accept(arrival);
        let qid = Qid::new(qid);
        let counted_napi = arrival.napi_id;
        placement.on_connect(Connecting { reactor, qid, counted_napi, arrival, near_partition: None })
    }

    /// As [`lane`], of a host that wants it near a partition.
    fn lane_near(placement: &mut Placement, partition: u16, arrival: Arrival) -> usize {
        let reactor = placement.on_accept(arrival);
        let (qid, near_partition) = (Qid::new(1), Some(partition));
        let counted_napi = arrival.napi_id;
        placement.on_connect(Connecting { reactor, qid, counted_napi, arrival, near_partition })
    }

    #[test]
    fn hosts_with_one_queue_each_are_spread() {
        let mut placement = placement(PlacementPolicy::Load, 2);
        let mut io = [0; 2];
        for _ in 0..8 {
            placement.on_accept(NOWHERE);
            io[lane(&mut placement, 1, NOWHERE)] += 1;
        }
        // In turn, each host's admin lane would take the first reactor, and each I/O lane the second.
        assert_eq!(io, [4, 4]);
        assert_eq!(placement.counters().by_load, 8);
        assert_eq!(placement.counters().fell_back, 0);
    }

    #[test]
    fn a_lane_that_works_counts_twice() {
        let mut placement = placement(PlacementPolicy::Load, 2);
        let lanes = [lane(&mut placement, 1, NOWHERE), lane(&mut placement, 2, NOWHERE)];
        assert_eq!(lanes, [0, 1]);
        placement.on_active(0, 1);
        assert_eq!([lane(&mut placement, 3, NOWHERE), lane(&mut placement, 4, NOWHERE)], [1, 0]);
    }

    #[test]
    fn lanes_of_one_device_queue_are_together_and_queues_apart() {
        let mut placement = placement(PlacementPolicy::Napi, 2);
        let reactors = [7, 8, 7, 8, 8].map(|napi| lane(&mut placement, 1, through(napi)));
        assert_eq!(reactors, [0, 1, 0, 1, 1]);
        assert_eq!(placement.counters().by_napi, 5);
        assert_eq!(placement.counters().moved, 0, "known when they were accepted");
        // A third queue has to share.
        assert_eq!(lane(&mut placement, 1, through(9)), 0, "with the one of fewer lanes");
        for (reactor, napi) in [(0, 7), (0, 7)] {
            placement.on_left(Left { reactor, napi: NonZeroU32::new(napi), is_io: true });
        }
        let left: Vec<u32> = placement.devices().map(|(id, ..)| id.get()).collect();
        assert_eq!(left, [8, 9], "ids without lanes are forgotten");
    }

    #[test]
    fn without_a_device_queue_napi_falls_back_to_load() {
        let mut placement = placement(PlacementPolicy::Napi, 2);
        let reactors = [1, 2, 3, 4].map(|qid| lane(&mut placement, qid, NOWHERE));
        assert_eq!(reactors, [0, 1, 0, 1]);
        assert_eq!((placement.counters().by_napi, placement.counters().fell_back), (0, 4));
    }

    #[test]
    fn a_lane_whose_packets_take_another_way_follows_them() {
        let mut placement = placement(PlacementPolicy::Napi, 2);
        assert_eq!(lane(&mut placement, 1, through(7)), 0);
        assert_eq!(lane(&mut placement, 2, through(8)), 1);
        let reactor = placement.on_accept(through(7));
        let (qid, counted_napi) = (Qid::new(3), NonZeroU32::new(7));
        let lane = Connecting { reactor, qid, counted_napi, arrival: through(8), near_partition: None };
        assert_eq!((reactor, placement.on_connect(lane)), (0, 1));
        assert_eq!((placement.counters().moved, placement.counters().napi_changed), (1, 1));
    }

    #[test]
    fn a_core_without_a_reactor_is_no_fact() {
        let mut placement = Placement::new(PlacementPolicy::Cpu, vec![Some(4), Some(6)]);
        let on = |cpu| Arrival { napi_id: None, cpu };
        assert_eq!(lane(&mut placement, 1, on(Some(6))), 1);
        assert_eq!(lane(&mut placement, 2, on(Some(6))), 1);
        assert_eq!(lane(&mut placement, 3, on(Some(5))), 0);
        assert_eq!(lane(&mut placement, 4, on(None)), 0);
        assert_eq!((placement.counters().by_cpu, placement.counters().fell_back), (2, 2));
    }

    #[test]
    fn queues_go_round_the_reactors_of_each_controller() {
        let mut placement = placement(PlacementPolicy::Queue, 3);
        assert_eq!([1, 2, 3, 4, 1].map(|qid| lane(&mut placement, qid, NOWHERE)), [0, 1, 2, 0, 0]);
        assert_eq!(placement.counters().by_queue, 5);
    }

    #[test]
    fn a_lane_goes_to_the_partition_that_its_host_names_if_there_is_one() {
        let mut placement = placement(PlacementPolicy::Load, 3);
        assert_eq!([2, 2, 0].map(|partition| lane_near(&mut placement, partition, NOWHERE)), [2, 2, 0]);
        assert_eq!(lane_near(&mut placement, 3, NOWHERE), 1, "by load");
        placement.set_policy(PlacementPolicy::Queue);
        assert_eq!(lane_near(&mut placement, 1, NOWHERE), 1);
        assert_eq!(lane_near(&mut placement, u16::MAX, NOWHERE), 0, "by its queue");
        let PlacementCounters { by_partition, by_load, by_queue, .. } = placement.counters();
        assert_eq!((by_partition, by_load, by_queue), (4, 1, 1));
    }

    #[test]
    fn a_lane_that_is_aligned_with_its_device_queue_stays_so() {
        let mut placement = placement(PlacementPolicy::Napi, 2);
        assert_eq!([7, 8].map(|napi| lane(&mut placement, 1, through(napi))), [0, 1]);
        assert_eq!(lane_near(&mut placement, 0, through(8)), 1);
        assert_eq!(lane_near(&mut placement, 0, NOWHERE), 0);
        assert_eq!((placement.counters().by_napi, placement.counters().by_partition), (3, 1));
    }

    #[test]
    fn a_policy_can_change_while_lanes_are_there() {
        let mut placement = placement(PlacementPolicy::Queue, 2);
        assert_eq!([lane(&mut placement, 1, through(7)), lane(&mut placement, 1, through(8))], [0, 0]);
        placement.set_policy(PlacementPolicy::Napi);
        let reactors = [7, 8, 7].map(|napi| lane(&mut placement, 1, through(napi)));
        assert_eq!(reactors, [1, 0, 1]);
    }

    proptest! {
        /// After any sequence of events, placements name existing reactors, and the load is zero once all lanes have
        /// ended.
        #[test]
        fn what_comes_and_goes_leaves_nothing(
            events in proptest::collection::vec((0u32..4, 0u16..5, 0u8..3, 0usize..4), 1..80),
        ) {
            let mut placement = placement(PlacementPolicy::Load, 3);
            let mut lanes = Vec::new();
            for (napi, qid, fate, policy) in events {
                placement.set_policy(PlacementPolicy::ALL[policy]);
                let arrival = through(napi);
                let reactor = placement.on_accept(arrival);
                prop_assert!(reactor < 3);
                if qid == 0 {
                    lanes.push(Left { reactor, napi: arrival.napi_id, is_io: false });
                    continue;
                }
                let arrival = through(napi / 2);
                let (counted_napi, near_partition) = (NonZeroU32::new(napi), (fate == 1).then_some(qid));
                let connecting =
                    Connecting { reactor, qid: Qid::new(qid), counted_napi, arrival, near_partition };
                let to = placement.on_connect(connecting);
                prop_assert!(to < 3);
                let mut left = Left { reactor: to, napi: arrival.napi_id, is_io: true };
                if to != reactor && fate == 0 {
                    placement.on_not_moved(reactor, to, false);
                    left.reactor = reactor;
                } else if to != reactor && fate == 2 {
                    // It ends before the order to hand it over arrives.
                    left.reactor = reactor;
                    placement.on_left(left);
                    placement.on_not_moved(reactor, to, true);
                    continue;
                }
                if fate == 1 { placement.on_left(left) } else { lanes.push(left) }
            }
            for left in lanes {
                placement.on_left(left);
            }
            prop_assert_eq!(placement.devices().count(), 0);
            prop_assert!(placement.shares.iter().all(|share| share.lanes == 0 && share.io_lanes == 0));
        }
    }
}
