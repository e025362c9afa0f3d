//! Queues whose hosts have not authenticated yet: accepted by Connect, but of no controller.
//!
//! The names of their hosts are unproved, so they hold nothing of these: no controller, no queue id, no part of their
//! limits. A new admin queue is promised a controller id, of its own as long as there are enough: else the first that
//! authenticates gets it. Their number is bounded in total and for each source; beyond a bound the oldest makes room:
//! of that source, or in total of the source that has most.

use std::collections::BTreeMap;

use super::pending_connect::PendingConnect;
use crate::names::lane_id::LaneId;
use crate::names::limits::Limits;
use crate::objects::controller::ControllerKey;
use reactor::Source;

/// One source may have this part of all, or as many as a controller may have queues.
const SOURCE_PART: usize = 4;

/// Queues whose hosts have not authenticated yet.
pub(super) struct Unauthenticated {
    queues: BTreeMap<LaneId, Queue>,
    /// The lanes of each source, the oldest first.
    sources: BTreeMap<Source, BTreeMap<u64, LaneId>>,
    /// Ids of their new controllers, and to how many queues each is promised.
    promised: BTreeMap<ControllerKey, usize>,
    next_number: u64,
    count_max: usize,
    count_per_source_max: usize,
}

struct Queue {
    number: u64,
    candidate: Candidate,
}

/// The queue that is to result when its host has authenticated.
pub(super) struct Candidate {
    pub(super) connect: PendingConnect,
    /// The controller that its Connect has promised to an admin queue.
    pub(super) promised: Option<ControllerKey>,
}

impl Unauthenticated {
    /// For these limits.
    pub(super) fn new(limits: &Limits) -> Self {
        let count_max = usize::try_from(limits.unconnected_count_max).unwrap_or(usize::MAX);
        let queue_count_max = usize::from(limits.io_queue_count_max).saturating_add(1);
        Self {
            queues: BTreeMap::new(),
            sources: BTreeMap::new(),
            promised: BTreeMap::new(),
            next_number: 0,
            count_max,
            count_per_source_max: count_max.div_ceil(SOURCE_PART).max(queue_count_max),
        }
    }

    /// Their number.
    pub(super) fn count(&self) -> usize {
        self.queues.len()
    }

    /// Whether this lane is among them.
    pub(super) fn has(&self, lane: LaneId) -> bool {
        self.queues.contains_key(&lane)
    }

    /// Whether the id of this controller is promised to one of them.
    pub(super) fn is_promised(&self, key: ControllerKey) -> bool {
        self.promised.contains_key(&key)
    }

    /// The ids that are promised, with the number of queues that each is promised to.
    pub(super) fn promises(&self) -> impl Iterator<Item = (ControllerKey, usize)> {
        self.promised.iter().map(|(key, count)| (*key, *count))
    }

    /// Adds a queue.
    pub(super) fn add(&mut self, candidate: Candidate) {
        let lane = candidate.connect.command.lane;
        let number = self.next_number;
        self.next_number = number.wrapping_add(1);
        self.sources.entry(Source::from(candidate.connect.peer)).or_default().insert(number, lane);
        if let Some(key) = candidate.promised {
            let count = self.promised.entry(key).or_default();
            *count = count.saturating_add(1);
        }
        self.queues.insert(lane, Queue { number, candidate });
    }

    /// The host of a queue has authenticated. The id of its new controller stays promised until it is
    /// [released](Self::release).
    pub(super) fn prove(&mut self, lane: LaneId) -> Option<Candidate> {
        let Queue { number, candidate } = self.queues.remove(&lane)?;
        let source = Source::from(candidate.connect.peer);
        if let Some(of_source) = self.sources.get_mut(&source) {
            of_source.remove(&number);
            if of_source.is_empty() {
                self.sources.remove(&source);
            }
        }
        Some(candidate)
    }

    /// A queue ends before its host has authenticated.
    pub(super) fn remove(&mut self, lane: LaneId) {
        let candidate = self.prove(lane);
        self.release(candidate.and_then(|candidate| candidate.promised));
    }

    /// The id of this controller is promised to one less.
    pub(super) fn release(&mut self, promised: Option<ControllerKey>) {
        let Some(key) = promised else { return };
        if let Some(count) = self.promised.get_mut(&key) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                self.promised.remove(&key);
            }
        }
    }

    /// The lane that has to make room for another one of this source, if one has to.
    pub(super) fn next_to_leave(&self, newcomer: Source) -> Option<LaneId> {
        let own = self.sources.get(&newcomer);
        if own.is_some_and(|lanes| lanes.len() >= self.count_per_source_max) {
            return own?.values().next().copied();
        }
        if self.queues.len() < self.count_max {
            return None;
        }
        let (_, lanes) = self.sources.iter().max_by_key(|(_, lanes)| lanes.len())?;
        lanes.values().next().copied()
    }
}
