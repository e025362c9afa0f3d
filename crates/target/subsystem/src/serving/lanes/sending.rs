//! Sends of a reactor's lanes: their doorbells, the send budget of a turn, and notifications of zero-copy sends.

use reactor::Io;

use super::LaneServer;
use crate::io_path::commands::Commands;
use crate::io_path::lane::{ClosingStep, Flushed, Wait};
use crate::messages::message::Message;
use crate::names::lane_end::LaneEnd;
use crate::serving::timers::NOTICE_TIMER;

/// Poll interval for zero-copy notifications, ns: a paused socket raises no event for them.
const NOTICE_NS: u64 = 5_000_000;

/// Send budget of all lanes in a turn, bytes. Once it is spent, only lanes with at most [`LITTLE_BYTES_MAX`] to send
/// are flushed: a turn in which many lanes send their whole budget takes milliseconds.
const ALL_BYTES_MAX: u64 = 512 << 10;

/// Unsent bytes of a lane that is flushed although the budget of the turn is spent.
const LITTLE_BYTES_MAX: usize = 256 << 10;

impl LaneServer {
    /// Schedules the next poll for zero-copy notifications, if some are outstanding.
    pub(in crate::serving) fn on_notice_timer(&mut self, io: &mut impl Io<Message>) {
        self.has_notice_timer = false;
        self.take_notices(io);
        if self.lanes.lists.has_awaiting() {
            self.set_notice_timer(io);
        }
    }

    fn set_notice_timer(&mut self, io: &mut impl Io<Message>) {
        if !std::mem::replace(&mut self.has_notice_timer, true) {
            io.set_timer(io.now_ns() + NOTICE_NS, NOTICE_TIMER);
        }
    }

    /// Flushes every lane with bytes to send whose doorbell rings.
    pub(super) fn ring(&mut self, io: &mut impl Io<Message>, commands: &mut Commands) {
        let now_ns = io.now_ns();
        let mut dirty = self.lanes.lists.dirty.take();
        let mut waiting_count = 0;
        let mut count_before_full = None;
        dirty.retain(|&index| {
            let Some(lane) = self.lanes.get_mut(index) else { return false };
            let waits = !lane.is_due(now_ns) || self.flush(io, commands, index) == Flushed::Left;
            if waits {
                waiting_count += 1;
            } else if let Some(lane) = self.lanes.get_mut(index) {
                lane.marks.is_dirty = false;
            }
            if count_before_full.is_none() && self.sent_bytes >= ALL_BYTES_MAX {
                count_before_full = Some(waiting_count);
            }
            waits
        });
        // Lanes that the turn's budget left out come first in the next turn.
        if let Some(count) = count_before_full {
            dirty.rotate_left(count);
        }
        self.lanes.lists.dirty.put_back(dirty);
    }

    /// Sends the answers to a lane's input before the next lane is read, if it is answered completely and no other lane
    /// waits to send: its host works on them meanwhile, and more input gathers on the lanes that are read later, so that
    /// both sides do more with each call. Other answers leave at the end of the turn.
    pub(super) fn send_answers(&mut self, io: &mut impl Io<Message>, commands: &mut Commands, index: u32) {
        let now_ns = io.now_ns();
        let Some((lane, lists)) = self.lanes.entry(index) else { return };
        // Lanes that the budget of the turn before has left out come first.
        let is_alone = lists.dirty.is_only(index);
        if !is_alone
            || !lane.is_answered()
            || !lane.is_due(now_ns)
            || self.flush(io, commands, index) == Flushed::Left
        {
            return;
        }
        if let Some((lane, lists)) = self.lanes.entry(index) {
            lists.unmark_dirty(lane);
        }
    }

    /// Enough bytes wait on a lane to flush it before the turn ends. A caravan that is leaving continues at the end of
    /// the turn, or when the socket has room; until then its bytes are only counted.
    pub(super) fn on_full(&mut self, io: &mut impl Io<Message>, commands: &mut Commands, index: u32) {
        let Some(lane) = self.lanes.get_mut(index) else { return };
        if !lane.queue.caravan().is_leaving() {
            self.flush(io, commands, index);
        } else if lane.needs_stable_copy() || lane.deadlines.is_on(Wait::Read) {
            self.on_unsent(io, commands, index);
        }
    }

    /// As above for values: bytes that the turn's budget leaves out hold buffers, or memory of the store.
    #[cold]
    pub(super) fn on_full_of_values(
        &mut self,
        io: &mut impl Io<Message>,
        commands: &mut Commands,
        index: u32,
    ) {
        self.on_full(io, commands, index);
        if self.lanes.get_mut(index).is_some_and(|lane| lane.queue.caravan().is_leaving()) {
            self.on_unsent(io, commands, index);
        }
    }

    /// Flushes a lane, as far as its socket has room and the turn's budget allows.
    fn flush(&mut self, io: &mut impl Io<Message>, commands: &mut Commands, index: u32) -> Flushed {
        let Some((lane, lists)) = self.lanes.entry(index) else { return Flushed::Empty };
        if self.sent_bytes >= ALL_BYTES_MAX && lane.queue.caravan().unsent_bytes() > LITTLE_BYTES_MAX {
            return self.put_off(io, commands, index);
        }
        let before = lane.counters.sent_bytes.get();
        let flushed = lane.flush(io);
        self.sent_bytes += lane.counters.sent_bytes.get() - before;
        if lane.watch.is_recording() {
            self.recorder.collect(lane, &commands.namespaces);
        }
        match flushed {
            Flushed::Empty => {
                let is_terminating =
                    lane.state.closing().is_some_and(|closing| closing.step == ClosingStep::Terminating);
                if let Some(socket) = lane.socket().filter(|_| is_terminating) {
                    io.finish(socket);
                }
                if lane.is_behind {
                    self.on_unsent(io, commands, index);
                }
            }
            Flushed::Blocked => {
                lane.arm_timer(io, &self.settings.timeouts);
                self.on_unsent(io, commands, index);
            }
            Flushed::Left => {
                lists.mark_dirty(lane);
                if lane.is_behind {
                    self.on_unsent(io, commands, index);
                }
            }
            Flushed::Broken => {
                if lane.transport.is_tls() {
                    Self::on_tls(io, lane);
                }
                lane.end.get_or_insert(LaneEnd::Lost);
                self.close(io, commands, index);
            }
        }
        self.await_notices(io, index);
        flushed
    }

    /// Leaves the waiting bytes of a lane to the next turn.
    #[cold]
    fn put_off(&mut self, io: &mut impl Io<Message>, commands: &mut Commands, index: u32) -> Flushed {
        let Some((lane, lists)) = self.lanes.entry(index) else { return Flushed::Empty };
        lists.mark_dirty(lane);
        if lane.is_behind || lane.needs_stable_copy() {
            self.on_unsent(io, commands, index);
        }
        Flushed::Left
    }

    /// Polls for zero-copy notifications of a lane whose sends the kernel may still read.
    #[inline]
    fn await_notices(&mut self, io: &mut impl Io<Message>, index: u32) {
        let Some((lane, lists)) = self.lanes.entry(index) else { return };
        if lane.awaits_notices() && lists.await_notices(lane) {
            lane.arm_timer(io, &self.settings.timeouts);
            self.set_notice_timer(io);
        }
    }

    /// Releases buffers that the kernel has finished reading.
    #[cold]
    pub(super) fn take_notices(&mut self, io: &mut impl Io<Message>) {
        self.lanes.retain_awaiting(|lane| {
            lane.take_notices(io);
            lane.awaits_notices()
        });
    }

    /// A lane's socket has no room for the waiting bytes, or has room again.
    #[cold]
    fn on_unsent(&mut self, io: &mut impl Io<Message>, commands: &mut Commands, index: u32) {
        let Some(lane) = self.lanes.get_mut(index) else { return };
        let unsent_bytes = lane.queue.caravan().unsent_bytes();
        lane.is_behind = unsent_bytes > 0;
        let holds_back = commands.quota.on_unsent(io.pool(), index, unsent_bytes);
        lane.set_in_line(holds_back);
    }
}
