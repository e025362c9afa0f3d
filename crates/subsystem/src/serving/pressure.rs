//! Peers that keep buffers which others wait for: those that neither read nor send what they were asked for go first.

use reactor::Io;

use super::{PRESSURE_TIMER, Serving};
use crate::admission::reason;
use crate::message::Message;

/// How often lanes are looked at while commands wait for buffers, ns.
const LOOK_NS: u64 = 250_000_000;

/// A peer that sends less than this in [`LaneTimeouts::pressed_ns`](crate::lane::LaneTimeouts::pressed_ns) while it owes data sends
/// none, bytes.
const PROGRESS_BYTES_MIN: u64 = 64 << 10;

impl Serving {
    /// Sees to it that somebody looks, as long as commands wait for buffers.
    pub(super) fn watch_pressure(&mut self, io: &mut impl Io<Message>) {
        if self.commands.is_pressed() && !std::mem::replace(&mut self.is_watching_pressure, true) {
            io.set_timer(io.now_ns() + LOOK_NS, PRESSURE_TIMER);
        }
    }

    /// Closes the lanes of peers that have done nothing for long with what others wait for.
    pub(super) fn relieve(&mut self, io: &mut impl Io<Message>) {
        self.is_watching_pressure = false;
        if !self.commands.is_pressed() {
            return;
        }
        for index in 0..u32::try_from(self.lanes.len()).expect("fewer lanes than descriptors") {
            if let Some(reason) = self.keeps_buffers(index, io.now_ns()) {
                self.expel(io, index, reason);
            }
        }
        self.watch_pressure(io);
    }

    /// Why a lane is to give back what it has, if it is.
    fn keeps_buffers(&mut self, index: u32, now_ns: u64) -> Option<&'static str> {
        let pressed_ns = self.settings.timeouts.pressed_ns;
        let is_over = |since_ns: u64| now_ns.saturating_sub(since_ns) >= pressed_ns;
        let taken_bytes = self.commands.running.taken_bytes(index);
        // The answers of admin queues take none of them.
        let lane = self.lane(index).filter(|lane| lane.subsystem.is_some() && lane.socket.is_some())?;
        if lane.blocked_since_ns.is_some_and(is_over) {
            return Some(reason::READS_NOTHING_PRESSED);
        }
        lane.asked_since_ns?;
        // Parts of long values go into memory of the store, which others do not wait for here.
        if taken_bytes == 0 {
            return None;
        }
        let received_bytes = lane.counters.received_bytes.get();
        let (before_bytes, since_ns) = lane.progress;
        let sends_nothing = received_bytes - before_bytes < PROGRESS_BYTES_MIN;
        if !is_over(since_ns) {
            return None;
        }
        lane.progress = (received_bytes, now_ns);
        let owes = self.asked_since_ns(index, now_ns).is_some_and(is_over);
        (sends_nothing && owes).then_some(reason::SENDS_NOTHING_PRESSED)
    }
}
