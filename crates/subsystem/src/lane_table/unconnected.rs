//! Connections that no queue belongs to: each costs its peer next to nothing, so their number is limited. Beyond the
//! limit the oldest is closed: an honest host connects its queue within milliseconds, a flooding peer does not.

use crate::lane_id::LaneId;

/// The end of the list.
const NONE: u32 = u32::MAX;

/// The lanes of a reactor that no queue belongs to, the oldest first: a list through their places, for one that comes
/// or leaves costs the same however many there are.
#[derive(Debug)]
pub(super) struct Unconnected {
    /// By the lane's place.
    links: Vec<Link>,
    oldest: u32,
    newest: u32,
    count: usize,
    count_max: usize,
}

#[derive(Clone, Copy, Debug)]
struct Link {
    older: u32,
    newer: u32,
}

impl Unconnected {
    /// For one of `reactor_count` reactors, which together may have `count_max`.
    pub(super) fn new(count_max: u32, reactor_count: u16) -> Self {
        let share = (count_max as usize).div_ceil(usize::from(reactor_count.max(1)));
        Self { links: Vec::new(), oldest: NONE, newest: NONE, count: 0, count_max: share }
    }

    /// A lane that is not in the list.
    pub(super) fn add(&mut self, id: LaneId) {
        let at = id.index as usize;
        if self.links.len() <= at {
            self.links.resize(at + 1, Link { older: NONE, newer: NONE });
        }
        self.links[at] = Link { older: self.newest, newer: NONE };
        match self.links.get_mut(self.newest as usize) {
            Some(newest) => newest.newer = id.index,
            None => self.oldest = id.index,
        }
        self.newest = id.index;
        self.count += 1;
    }

    /// A lane of the list has connected, or is gone.
    pub(super) fn on_left(&mut self, id: LaneId) {
        debug_assert!(self.count > 0, "a lane left that was not there");
        let Link { older, newer } = self.links[id.index as usize];
        match self.links.get_mut(older as usize) {
            Some(link) => link.newer = newer,
            None => self.oldest = newer,
        }
        match self.links.get_mut(newer as usize) {
            Some(link) => link.older = older,
            None => self.newest = older,
        }
        self.count = self.count.saturating_sub(1);
    }

    /// The place of the lane that has to make room, if one has to.
    pub(super) fn next_to_leave(&self) -> Option<u32> {
        (self.count > self.count_max && self.oldest != NONE).then_some(self.oldest)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    fn id(index: u32) -> LaneId {
        LaneId { reactor: 0, index, generation: 1 }
    }

    #[test]
    fn the_oldest_lane_of_the_list_makes_room() {
        let mut unconnected = Unconnected::new(6, 2);
        (0..3).for_each(|index| unconnected.add(id(index)));
        assert_eq!(unconnected.next_to_leave(), None);
        unconnected.on_left(id(0));
        unconnected.add(id(3));
        unconnected.add(id(4));
        assert_eq!(unconnected.next_to_leave(), Some(1));
        unconnected.on_left(id(1));
        assert_eq!(unconnected.next_to_leave(), None);
    }

    proptest! {
        /// Lanes come and leave in any order; a place is taken again.
        #[test]
        fn lanes_are_listed_in_the_order_of_their_arrival(places in proptest::collection::vec(0u32..20, 0..200)) {
            let mut unconnected = Unconnected::new(5, 1);
            let mut there = VecDeque::new();
            for place in places {
                match there.iter().position(|&other| other == place) {
                    Some(at) => {
                        there.remove(at);
                        unconnected.on_left(id(place));
                    }
                    None => {
                        there.push_back(place);
                        unconnected.add(id(place));
                    }
                }
                let oldest = there.front().copied().filter(|_| there.len() > 5);
                prop_assert_eq!(unconnected.next_to_leave(), oldest);
            }
        }
    }
}
