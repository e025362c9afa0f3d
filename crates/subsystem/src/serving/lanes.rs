//! The life of a reactor's lanes: accepted, received from, sent to, ended.

use std::num::NonZeroU32;

use proto::Violation;
use proto::controller_queue::Event;
use proto::receive::ReceiveTurn;
use reactor::{Connection, Io, ListenerTag, Received};
use wire::opcode::AdminOpcode;
use wire::sqe::Fuse;
use wire::status::Status;

use super::{NOTICE_TIMER, SWEEP_TIMER, Serving};
use crate::admission::{Visitor, reason, reason_of};
use crate::commands::Caller;
use crate::lane::{ClosingStep, Flushed, Lane, LaneState, Order, Wait};
use crate::message::{
    AdmissionMessage, ControlMessage, Failure, Message, PlacementMessage, Request, RequestKind,
};
use crate::running::Owner;

/// Lanes that took in no command for this long give back memory that they do not need, ns.
const SWEEP_NS: u64 = 5_000_000_000;

/// Notices are looked for so often at least, ns: those of a paused socket wake nobody.
const NOTICE_NS: u64 = 5_000_000;

/// Once lanes have sent so much in a turn, bytes, only those go on in it that have little to send: a turn in which everybody sends all that a
/// lane may takes milliseconds where many read much.
const ALL_BYTES_MAX: u64 = 512 << 10;

/// So much is little, bytes.
const LITTLE_BYTES_MAX: usize = 256 << 10;

impl Serving {
    /// Takes a connection over; one that another reactor has begun `is_placed`. Gives the lane's place.
    pub(super) fn begin_lane(
        &mut self,
        io: &mut impl Io<Message>,
        connection: Connection,
        listener: ListenerTag,
        napi: Option<NonZeroU32>,
        is_placed: bool,
    ) -> Option<u32> {
        let (peer, local) = (connection.peer, connection.local);
        let socket = match io.adopt(connection) {
            Ok(socket) => socket,
            Err(error) => {
                tracing::debug!(%error, ?peer, "connection died before it was served");
                self.post_left(io, napi, is_placed);
                io.post(
                    0,
                    Message::Admission(AdmissionMessage::Gone(Visitor::Host, peer.map(|peer| peer.ip()))),
                );
                return None;
            }
        };
        let (queue, doorbell, now_ns) = (self.settings.queue, self.settings.doorbell, io.now_ns());
        let index = self.lanes.insert(|id| {
            let mut lane = Lane::new(id, socket, queue, doorbell, now_ns);
            (lane.peer, lane.local, lane.listener) = (peer, local, listener);
            (lane.napi, lane.is_placed) = (napi, is_placed);
            lane
        });
        if self.by_socket.len() <= socket.index() {
            self.by_socket.resize(socket.index() + 1, u32::MAX);
        }
        self.by_socket[socket.index()] = index;
        self.set_lane_timer(io, index);
        Some(index)
    }

    /// Counts a lane among those that no queue belongs to. If these are too many, the oldest of them is closed.
    pub(super) fn count_unconnected(&mut self, io: &mut impl Io<Message>, index: u32) {
        let Some((lane, lists)) = self.lanes.entry(index) else { return };
        if let Some(oldest) = lists.on_unconnected(lane) {
            self.complain(io, oldest, reason::MADE_ROOM);
            self.close(io, oldest);
        }
    }

    /// Reports a fault of a lane's peer, which is counted, and logged at most once in a while.
    #[cold]
    pub(super) fn complain(&mut self, io: &mut impl Io<Message>, index: u32, reason: &'static str) {
        let Some(lane) = self.lanes.get(index) else { return };
        let peer = lane.peer;
        tracing::debug!(?peer, qid = %lane.state.qid(), reason, "complaint");
        io.post(0, Message::Admission(AdmissionMessage::Complaint { peer, reason }));
    }

    /// Sets the lane's timer to its next deadline, if no timer fires before.
    pub(super) fn set_lane_timer(&mut self, io: &mut impl Io<Message>, index: u32) {
        let Some(lane) = self.lanes.get_mut(index) else { return };
        if let Some(deadline_ns) = lane.deadlines.next_timer(&self.settings.timeouts) {
            io.set_timer(deadline_ns, u64::from(lane.id.generation) << 32 | u64::from(index));
        }
    }

    pub(super) fn on_lane_timer(&mut self, io: &mut impl Io<Message>, index: u32, generation: u32) {
        let now_ns = io.now_ns();
        let Some(lane) = self.lanes.get_mut(index).filter(|lane| lane.id.generation == generation) else {
            return;
        };
        if !lane.deadlines.on_timer(now_ns) {
            return;
        }
        let awaits_data = lane.deadlines.is_on(Wait::Data);
        let asked_since_ns = if awaits_data { self.asked_since_ns(index, now_ns) } else { None };
        let Some(lane) = self.lanes.get_mut(index) else { return };
        lane.deadlines.set(Wait::Data, asked_since_ns);
        match lane.deadlines.next(&self.settings.timeouts) {
            Some((deadline_ns, wait)) if deadline_ns <= now_ns => self.expel(io, index, wait.reason()),
            _ => self.set_lane_timer(io, index),
        }
    }

    /// Closes a lane whose peer missed a deadline; the association ends with it.
    pub(super) fn expel(&mut self, io: &mut impl Io<Message>, index: u32, reason: &'static str) {
        self.complain(io, index, reason);
        self.close_as(io, index, true);
    }

    /// Since when a lane's peer owes data that was asked for, ns.
    pub(super) fn asked_since_ns(&mut self, index: u32, now_ns: u64) -> Option<u64> {
        let lane = self.lanes.get(index)?;
        let running = &self.commands.running;
        let oldest_ns = lane.tickets().filter_map(|ticket| running.asked_since_ns(ticket)).min()?;
        // While nothing is taken in from it, it cannot bring any.
        Some(if lane.held.is_some() { now_ns } else { oldest_ns })
    }

    /// Receives as much as a turn allows, and acts on it. Returns whether anything came.
    pub(super) fn receive(&mut self, io: &mut impl Io<Message>, index: u32) -> bool {
        let mut staging = std::mem::take(&mut self.staging);
        let mut turn = self.settings.receive.turn();
        let mut worked = false;
        while turn.goes_on() {
            // A lane that was paused receives no more until it goes on.
            let is_paused = worked && self.lanes.get(index).is_none_or(|lane| lane.held.is_some());
            if is_paused || !self.receive_once(io, index, &mut staging, &mut turn) {
                break;
            }
            worked = true;
        }
        self.staging = staging;
        worked
    }

    /// Receives once. Returns whether anything came.
    #[inline]
    fn receive_once(
        &mut self,
        io: &mut impl Io<Message>,
        index: u32,
        staging: &mut [u8],
        turn: &mut ReceiveTurn,
    ) -> bool {
        let plan = self.settings.receive;
        let Some(lane) = self.lanes.get_mut(index) else { return false };
        let Some(socket) = lane.socket() else { return false };
        let staging_bytes = plan.staging_bytes(staging.len(), || lane.queue.wanted_bytes());
        let staging = &mut staging[..staging_bytes];
        let (received, extent) = plan.receive(lane.queue.place(), staging, |into| io.receive(socket, into));
        match received {
            Received::Bytes(count) => {
                turn.on_received(extent, count);
                lane.counters.receive_count.add(1);
                lane.counters.received_bytes.add(count as u64);
                let placed = extent.in_place(count);
                lane.counters.in_place_bytes.add(placed as u64);
                if placed > 0
                    && let Err(violation) = lane.queue.on_placed(placed)
                {
                    self.on_violation(io, index, violation);
                    return true;
                }
                self.take_in(io, index, &staging[..count - placed]);
                true
            }
            Received::Dry => {
                lane.counters.dry_receive_count.add(1);
                false
            }
            Received::Ended => {
                self.close(io, index);
                true
            }
            Received::Failed(error) => {
                tracing::debug!(%error, peer = ?lane.peer, "connection broken");
                self.close(io, index);
                true
            }
        }
    }

    /// Acts on received bytes.
    pub(super) fn take_in(&mut self, io: &mut impl Io<Message>, index: u32, mut input: &[u8]) {
        let now_ns = io.now_ns();
        let mut had_command = false;
        loop {
            // Borrowed anew each time: an event may end the lane. Input that arrives after it starts closing is discarded.
            let Some((lane, lists)) = self.lanes.entry(index) else { return };
            if !lane.takes_commands() {
                return;
            }
            if let Some(held) = &mut lane.held {
                held.backlog.extend_from_slice(input);
                break;
            }
            let needs_stable_copy = lane.needs_stable_copy();
            match lane.queue.next_event(&mut input) {
                Ok(None) => break,
                Err(violation) => return self.on_violation(io, index, violation),
                Ok(Some(Event::Initialised(agreement))) => {
                    tracing::debug!(peer = ?lane.peer, ?agreement, "connection initialised");
                    lane.enter(LaneState::Unconnected { refused_count: 0 }, now_ns);
                }
                Ok(Some(Event::Command { slot, sqe, data })) => {
                    had_command = true;
                    // The common case: an I/O command that is not fused and ends at once.
                    if let LaneState::Io(io_queue) = &lane.state
                        && match io_queue.order {
                            Order::Arrival => true,
                            Order::Line => !data.is_empty(),
                            Order::Fused(_) => false,
                        }
                        && sqe.flags.fuse() == Fuse::NONE
                        && sqe.opcode != AdminOpcode::FABRICS.raw()
                    {
                        let subsystem = io_queue.subsystem;
                        let (index, generation) = (lane.id.index, lane.id.generation);
                        let owner = Owner::Lane { index, generation, slot };
                        let caller = Caller { owner, subsystem, needs_stable_copy };
                        let followed_ns = lane.watch.follows_next().then(|| io.clock_ns());
                        let begun = self.commands.begin(io, &caller, &sqe, data);
                        if let Some(begun_ns) = followed_ns {
                            self.follow(io, index, slot, begun_ns, &begun);
                        }
                        self.on_begun(io, index, slot, &sqe, begun);
                        continue;
                    }
                    let data: Box<[u8]> = data.into();
                    self.on_rare_command(io, index, slot, &sqe, data);
                }
                Ok(Some(Event::DataReceived { slot, is_intact })) => {
                    self.on_data_received(io, index, slot, is_intact);
                }
                Ok(Some(Event::Refused { cid, status })) => {
                    let failure = Failure { qid: lane.state.qid(), cid, status, nsid: 0, lba: 0 };
                    lists.fail(lane, failure);
                    if status.is(Status::TRANSIENT_TRANSPORT_ERROR) {
                        self.complain(io, index, reason::DATA_DIGEST);
                    }
                    self.post_superseded(io, index);
                }
            }
        }
        let Some((lane, lists)) = self.lanes.entry(index) else { return };
        if had_command {
            if let Some(association) = lane.state.association() {
                association.on_sign(now_ns);
            }
            if lists.on_commands(lane) {
                io.set_timer(now_ns + SWEEP_NS, SWEEP_TIMER);
            }
        }
        if !lane.queue.caravan().is_empty() {
            lists.mark_dirty(lane);
        }
        if lane.queue.is_within_pdu() {
            if had_command || !lane.deadlines.is_on(Wait::Pdu) {
                lane.deadlines.start(Wait::Pdu, now_ns);
            }
            if !lane.deadlines.has_timer() {
                self.set_lane_timer(io, index);
            }
        } else {
            lane.deadlines.stop(Wait::Pdu);
        }
    }

    pub(super) fn on_violation(&mut self, io: &mut impl Io<Message>, index: u32, violation: Violation) {
        let now_ns = io.now_ns();
        self.complain(io, index, reason_of(violation));
        let Some(lane) = self.lanes.get_mut(index) else { return };
        tracing::debug!(peer = ?lane.peer, qid = %lane.state.qid(), %violation, "peer broke the transport protocol");
        if !lane.queue.fail(violation) {
            return self.close(io, index);
        }
        lane.begin_closing(ClosingStep::Terminating, now_ns);
        self.abandon_commands(index);
        if let Some((lane, lists)) = self.lanes.entry(index) {
            lists.mark_dirty(lane);
        }
        self.set_lane_timer(io, index);
        self.count_unconnected(io, index);
    }

    /// Forgets the commands of a lane that is closing, and counts those that a backend still has.
    fn abandon_commands(&mut self, index: u32) {
        let Some(lane) = self.lanes.get_mut(index) else { return };
        for ticket in lane.tickets() {
            self.commands.abort(ticket);
        }
        lane.held = None;
        lane.queue.clear(|_| {});
        lane.deadlines.stop(Wait::Data);
        let in_flight = self.commands.count_of_lane(index, lane.id.generation);
        if let Some(closing) = lane.state.closing() {
            closing.in_flight = in_flight;
        }
        self.commands.shares.forget(index);
    }

    /// Closes a lane's socket, and removes the lane once none of its commands is in flight.
    pub(super) fn close(&mut self, io: &mut impl Io<Message>, index: u32) {
        self.close_as(io, index, false);
    }

    fn close_as(&mut self, io: &mut impl Io<Message>, index: u32, is_expelled: bool) {
        let Some((lane, lists)) = self.lanes.entry(index) else { return };
        lists.on_connected(lane);
        if lane.close(io, is_expelled) {
            lane.queue.caravan().clear(drop);
            self.abandon_commands(index);
        }
        self.remove_if_idle(io, index);
    }

    /// Ends a lane by order of the control plane: its socket is closed when the commands that it has started have ended, so that the host
    /// cannot write elsewhere before.
    pub(super) fn end(&mut self, io: &mut impl Io<Message>, index: u32) {
        let now_ns = io.now_ns();
        let Some((lane, lists)) = self.lanes.entry(index) else { return };
        if lane.state.closing().is_some_and(|closing| closing.step != ClosingStep::Terminating) {
            return;
        }
        lists.on_connected(lane);
        lane.begin_closing(ClosingStep::Ending, now_ns);
        if let Some(socket) = lane.socket() {
            io.pause(socket);
        }
        self.abandon_commands(index);
        // Queued responses are flushed once, Disconnect's above all; what the socket does not take is dropped.
        if let Some(lane) = self.lanes.get_mut(index) {
            let _ = lane.flush(io);
        }
        self.remove_if_idle(io, index);
    }

    /// Removes a lane that is closed, or ends, once none of its commands is in flight.
    pub(super) fn remove_if_idle(&mut self, io: &mut impl Io<Message>, index: u32) {
        let Some(closing) = self.lanes.get_mut(index).and_then(|lane| lane.state.closing()) else { return };
        let kind = match closing.step {
            _ if closing.in_flight > 0 => return,
            ClosingStep::Terminating => return,
            ClosingStep::Closed { is_expelled: true } => RequestKind::Expelled,
            ClosingStep::Ending | ClosingStep::Closed { is_expelled: false } => RequestKind::Ended,
        };
        self.commands.shares.forget(index);
        self.commands.set_association(index, None);
        let Some(mut lane) = self.lanes.remove(index) else { return };
        lane.close_socket(io);
        tracing::debug!(peer = ?lane.peer, qid = %lane.state.qid(), "lane ended");
        self.post_left(io, lane.napi, lane.is_placed);
        io.post(
            0,
            Message::Admission(AdmissionMessage::Gone(Visitor::Host, lane.peer.map(|peer| peer.ip()))),
        );
        io.post(0, Message::Control(ControlMessage::Request(Request { lane: lane.id, kind })));
    }

    /// Looks for notices again later, if some are awaited.
    pub(super) fn on_notice_timer(&mut self, io: &mut impl Io<Message>) {
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
    pub(super) fn ring(&mut self, io: &mut impl Io<Message>) {
        let now_ns = io.now_ns();
        let mut dirty = self.lanes.lists.take_dirty();
        let mut waiting_count = 0;
        let mut count_before_full = None;
        dirty.retain(|&index| {
            let Some(lane) = self.lanes.get_mut(index) else { return false };
            let waits = !lane.is_due(now_ns) || self.flush(io, index) == Flushed::Left;
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
        self.lanes.lists.put_back_dirty(dirty);
    }

    /// So much waits on a lane that it is sent before the turn ends. What is on its way already goes on at the end of the turn, or when the
    /// socket has room; until then it is only counted.
    pub(super) fn on_full(&mut self, io: &mut impl Io<Message>, index: u32) {
        let Some(lane) = self.lanes.get_mut(index) else { return };
        if !lane.queue.caravan().is_leaving() {
            self.flush(io, index);
        } else if lane.needs_stable_copy() || lane.deadlines.is_on(Wait::Read) {
            self.on_unsent(io, index);
        }
    }

    /// The same where what waits is values: what a turn has no room for holds buffers, or memory of the store, all the same.
    #[cold]
    pub(super) fn on_full_of_values(&mut self, io: &mut impl Io<Message>, index: u32) {
        self.on_full(io, index);
        if self.lanes.get_mut(index).is_some_and(|lane| lane.queue.caravan().is_leaving()) {
            self.on_unsent(io, index);
        }
    }

    /// Sends what waits on a lane, as far as its socket takes it and a turn has room for.
    pub(super) fn flush(&mut self, io: &mut impl Io<Message>, index: u32) -> Flushed {
        let Some((lane, lists)) = self.lanes.entry(index) else { return Flushed::Empty };
        if self.sent_bytes >= ALL_BYTES_MAX && lane.queue.caravan().unsent_bytes() > LITTLE_BYTES_MAX {
            return self.put_off(io, index);
        }
        let before = lane.counters.sent_bytes.get();
        let flushed = lane.flush(io);
        self.sent_bytes += lane.counters.sent_bytes.get() - before;
        match flushed {
            Flushed::Empty => {
                let is_terminating =
                    lane.state.closing().is_some_and(|closing| closing.step == ClosingStep::Terminating);
                if let Some(socket) = lane.socket().filter(|_| is_terminating) {
                    io.finish(socket);
                }
                if lane.is_behind {
                    self.on_unsent(io, index);
                }
            }
            Flushed::Blocked => {
                if !lane.deadlines.has_timer() {
                    self.set_lane_timer(io, index);
                }
                self.on_unsent(io, index);
            }
            Flushed::Left => {
                lists.mark_dirty(lane);
                if lane.is_behind {
                    self.on_unsent(io, index);
                }
            }
            Flushed::Broken => self.close(io, index),
        }
        self.await_notices(io, index);
        flushed
    }

    /// Leaves what waits on a lane to the next turn.
    #[cold]
    fn put_off(&mut self, io: &mut impl Io<Message>, index: u32) -> Flushed {
        let Some((lane, lists)) = self.lanes.entry(index) else { return Flushed::Empty };
        lists.mark_dirty(lane);
        if lane.is_behind || lane.needs_stable_copy() {
            self.on_unsent(io, index);
        }
        Flushed::Left
    }

    /// Has a lane looked after whose sends the kernel may still read.
    #[inline]
    fn await_notices(&mut self, io: &mut impl Io<Message>, index: u32) {
        let Some((lane, lists)) = self.lanes.entry(index) else { return };
        if lane.awaits_notices() && lists.await_notices(lane) {
            self.set_lane_timer(io, index);
            self.set_notice_timer(io);
        }
    }

    /// Releases what the kernel does not read any more.
    #[cold]
    pub(super) fn take_notices(&mut self, io: &mut impl Io<Message>) {
        self.lanes.retain_awaiting(|lane| {
            lane.take_notices(io);
            lane.awaits_notices()
        });
    }

    /// A lane's socket has no room for what waits, or has it again.
    #[cold]
    fn on_unsent(&mut self, io: &mut impl Io<Message>, index: u32) {
        let Some(lane) = self.lanes.get_mut(index) else { return };
        let unsent_bytes = lane.queue.caravan().unsent_bytes();
        lane.is_behind = unsent_bytes > 0;
        let holds_back = self.commands.shares.on_unsent(io.pool(), index, unsent_bytes);
        lane.set_in_line(holds_back);
    }

    /// Lets lanes that have become idle give memory back. Those that are idle are not looked at, and a reactor whose lanes all are
    /// is not woken for it.
    pub(super) fn sweep(&mut self, io: &mut impl Io<Message>) {
        let (active_count, is_any_left) = self.lanes.sweep();
        if std::mem::replace(&mut self.active_count_told, active_count) != active_count {
            io.post(
                0,
                Message::Placement(PlacementMessage::Active {
                    reactor: self.reactor.into(),
                    count: active_count,
                }),
            );
        }
        if is_any_left {
            io.set_timer(io.now_ns() + SWEEP_NS, SWEEP_TIMER);
        }
    }
}
