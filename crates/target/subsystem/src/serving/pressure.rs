//! Closes peers that withhold buffers while other lanes wait for them: peers that neither read responses nor send
//! requested data.

use reactor::Io;

use super::timers::{PRESSURE_TIMER, WINDOW_TIMER};
use crate::control_plane::admission::reason;
use crate::io_path::commands::Commands;
use crate::io_path::lane::{Lane, LaneTimeouts, Wait};
use crate::io_path::running::RunningTable;
use crate::messages::message::Message;

/// Interval between checks of lanes while commands wait for buffers, ns.
const CHECK_NS: u64 = 250_000_000;

/// The timers that run as long as commands wait for buffers: by one, lanes are checked; one ends the window in which a
/// lane is served strictly first.
#[derive(Debug, Default)]
pub(super) struct PressureWatch {
    is_armed: bool,
    /// The last end of a window for which a timer was set, ns.
    window_end_ns: u64,
}

impl PressureWatch {
    /// Sets the timers if commands wait for buffers, unless they are set.
    pub(super) fn arm(&mut self, io: &mut impl Io<Message>, commands: &Commands) {
        if let Some(end_ns) = commands.quota.window_end_ns()
            && std::mem::replace(&mut self.window_end_ns, end_ns) != end_ns
        {
            io.set_timer(end_ns, WINDOW_TIMER);
        }
        if commands.is_contended() && !std::mem::replace(&mut self.is_armed, true) {
            io.set_timer(io.now_ns() + CHECK_NS, PRESSURE_TIMER);
        }
    }

    /// The timer for the check fires.
    pub(super) fn on_timer(&mut self) {
        self.is_armed = false;
    }
}

/// The reason to close a lane while others wait for buffers, if any: for [`LaneTimeouts::contended_ns`] its peer has
/// not read, or has sent next to none of the requested data.
pub(super) fn withholds_buffers(
    lane: &mut Lane,
    running: &RunningTable,
    timeouts: &LaneTimeouts,
    now_ns: u64,
) -> Option<&'static str> {
    // Responses on admin queues use no buffers.
    if lane.state.qid().is_admin() || lane.socket().is_none() {
        return None;
    }
    if lane.deadlines.is_unread(timeouts, now_ns) {
        return Some(reason::READS_NOTHING_CONTENDED);
    }
    // Parts of long values use memory of the store, which no lane waits for here.
    if !lane.deadlines.is_on(Wait::Data) || running.taken_bytes(lane.id.index) == 0 {
        return None;
    }
    let received_bytes = lane.counters.received_bytes.get();
    let makes_progress = lane.deadlines.check_progress(timeouts, now_ns, received_bytes)?;
    let asked_since_ns = lane.asked_since_ns(running, now_ns)?;
    let owes = now_ns.saturating_sub(asked_since_ns) >= timeouts.contended_ns;
    (!makes_progress && owes).then_some(reason::SENDS_NOTHING_CONTENDED)
}
