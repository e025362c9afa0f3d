//! Values that lanes receive in parts, and the Stores that wait for their turn.

use std::collections::VecDeque;

use store::Ticket;

/// The values that lanes receive in parts.
#[derive(Debug, Default)]
pub(crate) struct Arrivals {
    lanes: Vec<LaneArrivals>,
    /// Lanes where a value has ended.
    pub(crate) to_settle: Vec<u32>,
}

/// The values that one lane receives in parts.
#[derive(Debug, Default)]
pub(crate) struct LaneArrivals {
    /// The one that began last.
    pub(crate) last: Option<Ticket>,
    /// The one before, with only its last part missing.
    pub(crate) before: Option<Ticket>,
    /// Those that have not begun, in order.
    pub(crate) waiting: VecDeque<Ticket>,
}

impl Arrivals {
    pub(crate) fn lane(&mut self, lane: u32) -> &mut LaneArrivals {
        let at = lane as usize;
        if self.lanes.len() <= at {
            self.lanes.resize_with(at + 1, LaneArrivals::default);
        }
        &mut self.lanes[at]
    }

    /// A value of a lane has stopped arriving.
    pub(crate) fn on_aborted(&mut self, lane: u32) {
        self.to_settle.push(lane);
    }

    /// Whether there are lanes where a value has ended.
    pub(crate) fn has_changed(&self) -> bool {
        !self.to_settle.is_empty()
    }
}
