//! Connections that no queue belongs to, or whose memcached client is not admitted yet: each costs its peer next to
//! nothing, so their number is limited. Beyond the limit the oldest is closed: an honest peer gets past this within
//! milliseconds, a flooding one does not.

/// The end of the list.
const NONE: u32 = u32::MAX;

/// The connections of a reactor that are not established, the oldest first: a list through their places, for one that comes
/// or leaves costs the same however many there are.
#[derive(Debug)]
pub(crate) struct Unconnected {
    /// By place.
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
    pub(crate) fn new(count_max: u32, reactor_count: u16) -> Self {
        let share = (count_max as usize).div_ceil(usize::from(reactor_count.max(1)));
        Self { links: Vec::new(), oldest: NONE, newest: NONE, count: 0, count_max: share }
    }

    /// A place that is not in the list.
    pub(crate) fn add(&mut self, index: u32) {
        let at = index as usize;
        if self.links.len() <= at {
            self.links.resize(at + 1, Link { older: NONE, newer: NONE });
        }
        self.links[at] = Link { older: self.newest, newer: NONE };
        match self.links.get_mut(self.newest as usize) {
            Some(newest) => newest.newer = index,
            None => self.oldest = index,
        }
        self.newest = index;
        self.count += 1;
    }

    /// A connection of the list is established, or gone.
    pub(crate) fn on_left(&mut self, index: u32) {
        debug_assert!(self.count > 0, "a connection left that was not there");
        let Link { older, newer } = self.links[index as usize];
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

    /// The place of the connection that has to make room, if one has to.
    pub(crate) fn next_to_leave(&self) -> Option<u32> {
        (self.count > self.count_max && self.oldest != NONE).then_some(self.oldest)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_oldest_lane_of_the_list_makes_room() {
        let mut unconnected = Unconnected::new(6, 2);
        (0..3).for_each(|index| unconnected.add(index));
        assert_eq!(unconnected.next_to_leave(), None);
        unconnected.on_left(0);
        unconnected.add(3);
        unconnected.add(4);
        assert_eq!(unconnected.next_to_leave(), Some(1));
        unconnected.on_left(1);
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
                        unconnected.on_left(place);
                    }
                    None => {
                        there.push_back(place);
                        unconnected.add(place);
                    }
                }
                let oldest = there.front().copied().filter(|_| there.len() > 5);
                prop_assert_eq!(unconnected.next_to_leave(), oldest);
            }
        }
    }
}
