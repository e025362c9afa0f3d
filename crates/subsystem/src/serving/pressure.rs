//! Peers that keep buffers which others wait for: those that neither read nor send what they were asked for go first.

use reactor::Io;

use super::{PRESSURE_TIMER, Serving};
use crate::admission::reason;
use crate::lane::{Lane, Wait};
use crate::message::Message;

/// How often lanes are looked at while commands wait for buffers, ns.
const LOOK_NS: u64 = 250_000_000;

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
        for index in self.lanes.indices() {
            if let Some(reason) = self.keeps_buffers(index, io.now_ns()) {
                self.expel(io, index, reason);
            }
        }
        self.watch_pressure(io);
    }

    /// Why a lane is to give back what it has, if it is.
    fn keeps_buffers(&mut self, index: u32, now_ns: u64) -> Option<&'static str> {
        let timeouts = self.settings.timeouts;
        let taken_bytes = self.commands.running.taken_bytes(index);
        // The answers of admin queues take none of them.
        let is_io = |lane: &&mut Lane| !lane.state.qid().is_admin() && lane.socket().is_some();
        let lane = self.lanes.get_mut(index).filter(is_io)?;
        if lane.deadlines.is_unread(&timeouts, now_ns) {
            return Some(reason::READS_NOTHING_PRESSED);
        }
        // Parts of long values go into memory of the store, which others do not wait for here.
        if !lane.deadlines.is_on(Wait::Data) || taken_bytes == 0 {
            return None;
        }
        let received_bytes = lane.counters.received_bytes.get();
        let makes_progress = lane.deadlines.check_progress(&timeouts, now_ns, received_bytes)?;
        let asked_since_ns = self.asked_since_ns(index, now_ns)?;
        let owes = now_ns.saturating_sub(asked_since_ns) >= timeouts.contended_ns;
        (!makes_progress && owes).then_some(reason::SENDS_NOTHING_PRESSED)
    }
}
