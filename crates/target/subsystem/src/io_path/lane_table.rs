//! The lanes of a reactor, and lists of lanes with work to do.

use std::collections::BTreeMap;
use std::num::NonZeroU32;

use store::Ticket;
use wire::status::{Status, StatusTable};

use crate::io_path::lane::{Activity, HeldInput, Lane};
use crate::names::lane_id::{FIRST_GENERATION, GENERATION_MASK, LaneId};
use crate::names::unconnected::Unconnected;
use crate::objects::controller::error_log::Failure;

/// The lanes of a reactor, by place. A place is used again when its lane has ended, with another generation.
#[derive(Debug)]
pub(crate) struct LaneTable {
    reactor: u16,
    places: Vec<Place>,
    free: Vec<u32>,
    pub(crate) lists: LaneLists,
}

/// Outcome of a sweep.
pub(crate) struct Swept {
    /// Lanes that took in commands since the sweep before.
    pub(crate) active_count: u32,
    /// Whether any lane has freed memory.
    pub(crate) has_freed: bool,
    /// Whether any lane is left to be looked at.
    pub(crate) is_any_left: bool,
}

/// A place for a lane.
#[derive(Debug)]
struct Place {
    generation: u32,
    lane: Option<Box<Lane>>,
}

/// Lists of lanes. A lane is on each at most once; its [marks](Lane::marks) say on which.
#[derive(Debug)]
pub(crate) struct LaneLists {
    /// Lanes with bytes to send. They stay marked until their mark is cleared.
    pub(crate) dirty: Listed,
    /// Lanes whose input is held back.
    pub(crate) held: Listed,
    /// Lanes with failed commands to report.
    pub(crate) failing: Listed,
    /// Lanes whose sends the kernel may still read.
    awaiting: Vec<LaneId>,
    /// Lanes that took in commands since they last released memory.
    active: Vec<LaneId>,
    unconnected: Unconnected,
    /// Failed commands by the code of their status.
    failed_by_code: BTreeMap<u16, u64>,
}

/// The lanes with one kind of work to do, by index.
#[derive(Debug, Default)]
pub(crate) struct Listed(Vec<u32>);

impl Listed {
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether this lane is listed, and no other.
    #[inline]
    pub(crate) fn is_only(&self, lane: u32) -> bool {
        self.0 == [lane]
    }

    /// Takes all lanes. Those that still have the work to do are [put back](Self::put_back).
    pub(crate) fn take(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.0)
    }

    /// Puts lanes back, before those that were listed since.
    pub(crate) fn put_back(&mut self, mut lanes: Vec<u32>) {
        lanes.append(&mut self.0);
        self.0 = lanes;
    }
}

impl LaneTable {
    /// For one of `reactor_count` reactors, which together may have this number of connections without a queue.
    pub(crate) fn new(reactor: u16, unconnected_count_max: u32, reactor_count: u16) -> Self {
        let lists = LaneLists {
            dirty: Listed::default(),
            held: Listed::default(),
            failing: Listed::default(),
            awaiting: Vec::new(),
            active: Vec::new(),
            unconnected: Unconnected::new(unconnected_count_max, reactor_count),
            failed_by_code: BTreeMap::new(),
        };
        Self { reactor, places: Vec::new(), free: Vec::new(), lists }
    }

    /// The lane in this place.
    #[inline]
    pub(crate) fn get(&self, index: u32) -> Option<&Lane> {
        self.places.get(index as usize)?.lane.as_deref()
    }

    /// The lane in this place.
    #[inline]
    pub(crate) fn get_mut(&mut self, index: u32) -> Option<&mut Lane> {
        self.places.get_mut(index as usize)?.lane.as_deref_mut()
    }

    /// The lane in this place, and the lists to put it on.
    #[inline]
    pub(crate) fn entry(&mut self, index: u32) -> Option<(&mut Lane, &mut LaneLists)> {
        let lane = self.places.get_mut(index as usize)?.lane.as_deref_mut()?;
        Some((lane, &mut self.lists))
    }

    /// The lane of this id, unless it has ended.
    pub(crate) fn by_id(&mut self, id: LaneId) -> Option<&mut Lane> {
        self.get_mut(id.index).filter(|lane| lane.id == id)
    }

    /// The lane of this place and generation, unless it has ended.
    #[inline]
    pub(crate) fn of_generation(&self, index: u32, generation: u32) -> Option<&Lane> {
        self.get(index).filter(|lane| lane.id.generation == generation)
    }

    /// All lanes.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Lane> + Clone {
        self.places.iter().filter_map(|place| place.lane.as_deref())
    }

    /// All lanes.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Lane> {
        self.places.iter_mut().filter_map(|place| place.lane.as_deref_mut())
    }

    /// All places, including empty ones.
    pub(crate) fn indices(&self) -> std::ops::Range<u32> {
        0..u32::try_from(self.places.len()).expect("fewer lanes than descriptors")
    }

    /// Device queues that lanes are counted under, each once, in ascending order.
    pub(crate) fn napi_ids(&self) -> Vec<u32> {
        let mut ids: Vec<u32> = self.iter().filter_map(|lane| lane.napi.map(NonZeroU32::get)).collect();
        ids.sort_unstable();
        ids.dedup();
        ids
    }

    /// Adds a lane. Returns its place.
    pub(crate) fn insert(&mut self, new: impl FnOnce(LaneId) -> Lane) -> u32 {
        let index = self.free.pop().unwrap_or_else(|| {
            self.places.push(Place { generation: FIRST_GENERATION, lane: None });
            u32::try_from(self.places.len() - 1).expect("fewer lanes than descriptors")
        });
        let place = &mut self.places[index as usize];
        place.generation = (place.generation + 1) & GENERATION_MASK;
        let id = LaneId { reactor: self.reactor, index, generation: place.generation };
        place.lane = Some(Box::new(new(id)));
        index
    }

    /// Removes a lane. Lists that still name it skip it.
    pub(crate) fn remove(&mut self, index: u32) -> Option<Box<Lane>> {
        let mut lane = self.places.get_mut(index as usize)?.lane.take()?;
        self.lists.on_connected(&mut lane);
        self.free.push(index);
        Some(lane)
    }
}

impl LaneLists {
    /// A lane has bytes to send.
    #[inline]
    pub(crate) fn mark_dirty(&mut self, lane: &mut Lane) {
        if !std::mem::replace(&mut lane.marks.is_dirty, true) {
            self.dirty.0.push(lane.id.index);
        }
    }

    /// A lane has no more bytes to send: it leaves the list if it is the last there.
    #[inline]
    pub(crate) fn unmark_dirty(&mut self, lane: &mut Lane) {
        if self.dirty.0.pop_if(|last| *last == lane.id.index).is_some() {
            lane.marks.is_dirty = false;
        }
    }

    /// Holds a lane's input back until this command continues.
    pub(crate) fn hold(&mut self, lane: &mut Lane, ticket: Ticket) {
        lane.held = Some(HeldInput { ticket, backlog: Vec::new() });
        self.held.0.push(lane.id.index);
    }

    /// Records a failed command of a lane, to be reported to the control plane.
    #[cold]
    pub(crate) fn fail(&mut self, lane: &mut Lane, failure: Failure) {
        if lane.failures.is_empty() {
            self.failing.0.push(lane.id.index);
        }
        *self.failed_by_code.entry(failure.status.code()).or_default() += 1;
        lane.on_failure(failure);
    }

    /// Failed commands by the name of their status.
    pub(crate) fn failed_by_status(&self) -> BTreeMap<String, u64> {
        let named = |(code, count): (&u16, &u64)| {
            let name = Status::from_wire(code << 1).name_in(StatusTable::Nvm);
            (name.map_or_else(|| format!("{code:#05x}"), str::to_owned), *count)
        };
        self.failed_by_code.iter().map(named).collect()
    }

    /// The kernel may still read what a lane sent. Returns whether the lane is new on the list.
    pub(crate) fn await_notices(&mut self, lane: &mut Lane) -> bool {
        let is_new = !std::mem::replace(&mut lane.marks.awaits_notices, true);
        if is_new {
            self.awaiting.push(lane.id);
        }
        is_new
    }

    /// Whether the kernel may still read what any lane sent.
    #[inline]
    pub(crate) fn has_awaiting(&self) -> bool {
        !self.awaiting.is_empty()
    }

    /// A lane took in commands. Returns whether it is the first on the list of those that did.
    #[inline]
    pub(crate) fn on_commands(&mut self, lane: &mut Lane) -> bool {
        if std::mem::replace(&mut lane.marks.activity, Activity::Active) != Activity::Idle {
            return false;
        }
        self.active.push(lane.id);
        self.active.len() == 1
    }

    /// Counts a lane without a queue. Returns the lane to close if their number exceeds its limit.
    pub(crate) fn on_unconnected(&mut self, lane: &mut Lane) -> Option<u32> {
        if std::mem::replace(&mut lane.marks.is_unconnected, true) {
            return None;
        }
        self.unconnected.add(lane.id.index);
        self.unconnected.next_to_leave()
    }

    /// A queue belongs to a lane now, or the lane is closed.
    pub(crate) fn on_connected(&mut self, lane: &mut Lane) {
        if std::mem::take(&mut lane.marks.is_unconnected) {
            self.unconnected.on_left(lane.id.index);
        }
    }
}

impl LaneTable {
    /// The number of lanes.
    pub(crate) fn count(&self) -> usize {
        self.places.iter().filter(|place| place.lane.is_some()).count()
    }

    /// Visits the lanes of which the kernel may still read what was sent. Those for which `is_awaited` is false leave
    /// the list.
    pub(crate) fn retain_awaiting(&mut self, mut is_awaited: impl FnMut(&mut Lane) -> bool) {
        let mut awaiting = std::mem::take(&mut self.lists.awaiting);
        awaiting.retain(|&id| {
            let Some(lane) = self.by_id(id) else { return false };
            lane.marks.awaits_notices = is_awaited(lane);
            lane.marks.awaits_notices
        });
        self.lists.awaiting = awaiting;
    }

    /// Releases memory of lanes that took in no commands since the last sweep.
    pub(crate) fn sweep(&mut self) -> Swept {
        let mut active = std::mem::take(&mut self.lists.active);
        let mut active_count = 0;
        let mut has_freed = false;
        active.retain(|&id| {
            let Some(lane) = self.by_id(id) else { return false };
            let is_active = lane.marks.activity == Activity::Active;
            active_count += u32::from(is_active);
            let is_idle = !is_active && lane.shrink();
            lane.marks.activity = if is_idle { Activity::Idle } else { Activity::Resting };
            has_freed |= is_idle;
            !is_idle
        });
        self.lists.active = active;
        Swept { active_count, has_freed, is_any_left: !self.lists.active.is_empty() }
    }
}
