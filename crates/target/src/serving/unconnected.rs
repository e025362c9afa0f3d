//! Connections that no queue belongs to: each costs its peer next to nothing, so there are only so many. Of more, the oldest makes
//! room: an honest host is connected within milliseconds, while those who flood stay.

use std::collections::VecDeque;

use crate::control_record::LaneId;

/// The lanes of a reactor that no queue belongs to, the oldest first.
#[derive(Debug)]
pub(super) struct Unconnected {
    /// Some may have left since.
    order: VecDeque<LaneId>,
    count: usize,
    count_max: usize,
}

impl Unconnected {
    /// For one of so many reactors.
    pub(super) fn new(count_max: u32, reactor_count: u16) -> Self {
        let share = (count_max as usize).div_ceil(usize::from(reactor_count.max(1)));
        Self { order: VecDeque::new(), count: 0, count_max: share }
    }

    pub(super) fn add(&mut self, id: LaneId) {
        self.count += 1;
        self.order.push_back(id);
    }

    /// A lane has connected, or is gone.
    pub(super) fn on_left(&mut self) {
        debug_assert!(self.count > 0, "a lane left that was not there");
        self.count = self.count.saturating_sub(1);
    }

    /// The lane that has to make room, if one has to.
    pub(super) fn next_to_leave(&mut self, is_there: impl Fn(LaneId) -> bool) -> Option<LaneId> {
        // Those who have left are forgotten at the latest when they are most.
        if self.order.len() > 2 * self.count_max.max(16) {
            self.order.retain(|id| is_there(*id));
        }
        while self.count > self.count_max {
            let id = self.order.pop_front()?;
            if is_there(id) {
                return Some(id);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn id(index: u32) -> LaneId {
        LaneId { reactor: 0, index, generation: 1 }
    }

    #[test]
    fn the_oldest_that_is_still_there_makes_room() {
        let mut unconnected = Unconnected::new(6, 2);
        (0..3).for_each(|index| unconnected.add(id(index)));
        assert_eq!(unconnected.next_to_leave(|_| true), None);
        unconnected.on_left();
        unconnected.add(id(3));
        unconnected.add(id(4));
        assert_eq!(unconnected.next_to_leave(|of| of != id(0)), Some(id(1)));
    }

    #[test]
    fn those_who_leave_are_forgotten() {
        let mut unconnected = Unconnected::new(20, 1);
        let mut there = BTreeSet::new();
        unconnected.add(id(0));
        there.insert(0);
        for index in 1..10_000 {
            unconnected.add(id(index));
            unconnected.on_left();
            assert_eq!(unconnected.next_to_leave(|of| there.contains(&of.index)), None);
        }
        assert!(unconnected.order.len() <= 41, "{}", unconnected.order.len());
    }
}
