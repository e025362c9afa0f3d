//! The life of a reactor's lanes: accepted, received from, sent to, ended.

use std::io::IoSliceMut;
use std::num::NonZeroU32;

use proto::Violation;
use proto::controller_queue::Event;
use proto::receive::{PLACED_BYTES_MAX, Receive};
use reactor::{Connection, Io, ListenerTag, Received};
use wire::opcode::AdminOpcode;
use wire::sqe::Fuse;
use wire::status::Status;

use super::{NOTICE_TIMER, Place, SWEEP_TIMER, Serving};
use crate::admission::{Visitor, reason, reason_of};
use crate::commands::Caller;
use crate::control_record::LaneId;
use crate::lane::{Activity, Flushed, Lane, LaneState};
use crate::message::{Failure, Message, Request, RequestKind};
use crate::running::Owner;

/// Where each receive brings a PDU's header or data only, there are so many in a turn at most.
const PDU_RECEIVE_COUNT_MAX: usize = 1024;

/// Lanes that took in no command for this long give back memory that they do not need, ns.
const SWEEP_NS: u64 = 5_000_000_000;

/// Notices are looked for so often at least, ns: those of a paused socket wake nobody.
const NOTICE_NS: u64 = 5_000_000;

/// Deadlines of lanes are rounded up to this, ns: thousands of lanes whose time is over, or was, wake the reactor a few times
/// a second and not one by one.
const TIMER_STEP_NS: u64 = 250_000_000;

/// Once lanes have sent so much in a turn, bytes, only those go on in it that have little to send: a turn in which everybody sends all that a
/// lane may takes milliseconds where many read much.
const ALL_BYTES_MAX: u64 = 512 << 10;

/// So much is little, bytes.
const LITTLE_BYTES_MAX: usize = 256 << 10;

impl Serving {
    pub(super) fn lane(&mut self, index: u32) -> Option<&mut Lane> {
        self.lanes.get_mut(index as usize)?.lane.as_deref_mut()
    }

    /// The lane of this id, if it is still the same.
    pub(super) fn lane_of(&mut self, id: LaneId) -> Option<&mut Lane> {
        self.lane(id.index).filter(|lane| lane.id == id)
    }

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
                io.post(0, Message::Gone(Visitor::Host, peer.map(|peer| peer.ip())));
                return None;
            }
        };
        let index = self.free_places.pop().unwrap_or_else(|| {
            self.lanes.push(Place { generation: 0, lane: None });
            u32::try_from(self.lanes.len() - 1).expect("fewer lanes than descriptors")
        });
        let place = &mut self.lanes[index as usize];
        place.generation = (place.generation + 1) & 0x3fff_ffff;
        let id = LaneId { reactor: self.reactor, index, generation: place.generation };
        let now_ns = io.now_ns();
        let mut lane = Lane::new(id, socket, self.settings.queue, self.settings.doorbell, now_ns);
        (lane.peer, lane.local, lane.listener) = (peer, local, listener);
        (lane.napi, lane.is_placed) = (napi, is_placed);
        place.lane = Some(Box::new(lane));
        if self.by_socket.len() <= socket.index() {
            self.by_socket.resize(socket.index() + 1, u32::MAX);
        }
        self.by_socket[socket.index()] = index;
        self.set_lane_timer(io, index);
        Some(index)
    }

    /// Counts a lane among those that no queue belongs to; the oldest of these may have to make room for it.
    pub(super) fn count_unconnected(&mut self, io: &mut impl Io<Message>, index: u32) {
        let Some(lane) = self.lane(index) else { return };
        if std::mem::replace(&mut lane.is_unconnected, true) {
            return;
        }
        let id = lane.id;
        self.unconnected.add(id);
        if let Some(oldest) = self.unconnected.next_to_leave() {
            self.complain(io, oldest, reason::MADE_ROOM);
            self.close(io, oldest);
        }
    }

    /// A queue belongs to a lane now, or the lane is gone.
    pub(super) fn uncount_unconnected(&mut self, index: u32) {
        if let Some(lane) = self.lane(index)
            && std::mem::take(&mut lane.is_unconnected)
        {
            let id = lane.id;
            self.unconnected.on_left(id);
        }
    }

    /// Has it counted, and said if it was not said lately, that something is wrong with a lane.
    #[cold]
    pub(super) fn complain(&mut self, io: &mut impl Io<Message>, index: u32, reason: &'static str) {
        let Some(lane) = self.lane(index) else { return };
        let peer = lane.peer;
        tracing::debug!(?peer, qid = %lane.qid, reason, "complaint");
        io.post(0, Message::Complaint { peer, reason });
    }

    /// Sets the lane's timer to its next deadline, if none rings before that.
    pub(super) fn set_lane_timer(&mut self, io: &mut impl Io<Message>, index: u32) {
        let timeouts = self.settings.timeouts;
        let Some(lane) = self.lane(index) else { return };
        let Some((deadline_ns, _)) = lane.deadline(&timeouts) else { return };
        let deadline_ns = deadline_ns.checked_next_multiple_of(TIMER_STEP_NS).unwrap_or(u64::MAX);
        if lane.timer_ns == 0 || deadline_ns < lane.timer_ns {
            lane.timer_ns = deadline_ns;
            io.set_timer(deadline_ns, u64::from(lane.id.generation) << 32 | u64::from(index));
        }
    }

    pub(super) fn on_lane_timer(&mut self, io: &mut impl Io<Message>, index: u32, generation: u32) {
        let timeouts = self.settings.timeouts;
        let now_ns = io.now_ns();
        let Some(lane) = self.lane(index).filter(|lane| lane.id.generation == generation) else { return };
        if lane.timer_ns > now_ns {
            return;
        }
        lane.timer_ns = 0;
        if lane.asked_since_ns.is_some() {
            let asked_since_ns = self.asked_since_ns(index, now_ns);
            let Some(lane) = self.lane(index) else { return };
            lane.asked_since_ns = asked_since_ns;
        }
        let Some(lane) = self.lane(index) else { return };
        match lane.deadline(&timeouts) {
            Some((deadline_ns, reason)) if deadline_ns <= now_ns => self.expel(io, index, reason),
            _ => self.set_lane_timer(io, index),
        }
    }

    /// Closes a lane whose peer has let time pass. Without it its association is none any more.
    pub(super) fn expel(&mut self, io: &mut impl Io<Message>, index: u32, reason: &'static str) {
        self.complain(io, index, reason);
        if let Some(lane) = self.lane(index) {
            lane.is_expelled = true;
        }
        self.close(io, index);
    }

    /// Since when a lane's peer owes data that it was asked for, ns.
    pub(super) fn asked_since_ns(&mut self, index: u32, now_ns: u64) -> Option<u64> {
        let lane = self.lanes[index as usize].lane.as_deref()?;
        let running = &self.commands.running;
        let oldest_ns = lane.tickets().filter_map(|ticket| running.asked_since_ns(ticket)).min()?;
        // While nothing is taken in from it, it cannot bring any.
        Some(if lane.held.is_some() { now_ns } else { oldest_ns })
    }

    /// Receives, and acts on what came. Says whether anything did.
    pub(super) fn receive(&mut self, io: &mut impl Io<Message>, index: u32) -> bool {
        let mut staging = std::mem::take(&mut self.staging);
        let worked = match self.settings.receive {
            Receive::Staging => {
                self.receive_into(io, index, &mut staging, None, self.settings.in_place_bytes)
            }
            Receive::Pdu => self.receive_pieces(io, index, &mut staging),
        };
        self.staging = staging;
        worked
    }

    /// Receives PDU by PDU: headers, parts of them, and data each by themselves.
    #[cold]
    fn receive_pieces(&mut self, io: &mut impl Io<Message>, index: u32, staging: &mut [u8]) -> bool {
        for count in 0..PDU_RECEIVE_COUNT_MAX {
            // Paused, it is to be left alone.
            let Some(lane) = self.lane(index).filter(|lane| lane.held.is_none()) else { return count > 0 };
            let wanted = lane.queue.wanted_bytes();
            if !self.receive_into(io, index, staging, Some(wanted), 1) {
                return count > 0;
            }
        }
        true
    }

    /// Receives once: data that belongs into a buffer and is `in_place_bytes` long at least goes there, everything else into `staging`.
    /// With a limit so many bytes are received at most, or what goes into a buffer and nothing behind it.
    #[inline]
    fn receive_into(
        &mut self,
        io: &mut impl Io<Message>,
        index: u32,
        staging: &mut [u8],
        limit: Option<usize>,
        in_place_bytes: usize,
    ) -> bool {
        let Some(lane) = self.lane(index) else { return false };
        let Some(socket) = lane.socket else { return false };
        let mut placed_max = 0;
        let received = match lane.queue.place() {
            Some(place) if place.len() >= in_place_bytes => {
                // What does not fit into a turn comes in the next one, after what other lanes have.
                placed_max = place.len().min(PLACED_BYTES_MAX);
                let behind = if limit.is_some() || placed_max < place.len() { 0 } else { staging.len() };
                let place = &mut place[..placed_max];
                io.receive(socket, &mut [IoSliceMut::new(place), IoSliceMut::new(&mut staging[..behind])])
            }
            _ => {
                let count = limit.map_or(staging.len(), |limit| limit.min(staging.len()));
                io.receive(socket, &mut [IoSliceMut::new(&mut staging[..count])])
            }
        };
        match received {
            Received::Bytes(count) => {
                lane.counters.receive_count.add(1);
                lane.counters.received_bytes.add(count as u64);
                let placed = count.min(placed_max);
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
        let Some(lane) = self.lanes[index as usize].lane.as_deref_mut() else { return };
        if !lane.takes_commands() {
            // What a lane that ends is still sent means nothing.
            return;
        }
        let mut had_command = false;
        loop {
            // Borrowed anew each time: what an event causes may end the lane.
            let Some(lane) = self.lanes[index as usize].lane.as_deref_mut() else { return };
            if !lane.takes_commands() {
                return;
            }
            if lane.held.is_some() {
                lane.backlog.extend_from_slice(input);
                break;
            }
            let needs_stable_copy = lane.needs_stable_copy();
            match lane.queue.next_event(&mut input) {
                Ok(None) => break,
                Err(violation) => return self.on_violation(io, index, violation),
                Ok(Some(Event::Initialised(agreement))) => {
                    tracing::debug!(peer = ?lane.peer, ?agreement, "connection initialised");
                    lane.enter(LaneState::Unconnected { refused: 0 }, now_ns);
                }
                Ok(Some(Event::Command { slot, sqe, data })) => {
                    had_command = true;
                    // The common case: an I/O command that is not fused and ends at once.
                    if let Some(subsystem) = lane.subsystem
                        && (lane.is_plain || (lane.pairs.is_none() && !data.is_empty()))
                        && sqe.flags.fuse() == Fuse::NONE
                        && sqe.opcode != AdminOpcode::FABRICS.raw()
                    {
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
                    let failure = Failure { qid: lane.qid, cid, status, nsid: 0, lba: 0 };
                    Self::fail(lane, &mut self.failing, failure);
                    if status.is(Status::TRANSIENT_TRANSPORT_ERROR) {
                        self.complain(io, index, reason::DATA_DIGEST);
                    }
                    self.post_superseded(io, index);
                }
            }
        }
        let Some(lane) = self.lanes[index as usize].lane.as_deref_mut() else { return };
        if had_command && let Some(association) = &lane.association {
            association.on_sign(now_ns);
        }
        if had_command && std::mem::replace(&mut lane.activity, Activity::Active) == Activity::Idle {
            if self.active.is_empty() {
                io.set_timer(now_ns + SWEEP_NS, SWEEP_TIMER);
            }
            self.active.push(lane.id);
        }
        if !lane.is_dirty && !lane.queue.caravan().is_empty() {
            lane.is_dirty = true;
            self.dirty.push(index);
        }
        if lane.queue.is_within_pdu() {
            if lane.pdu_since_ns.is_none() || had_command {
                lane.pdu_since_ns = Some(now_ns);
            }
            if lane.timer_ns == 0 {
                self.set_lane_timer(io, index);
            }
        } else {
            lane.pdu_since_ns = None;
        }
    }

    pub(super) fn on_violation(&mut self, io: &mut impl Io<Message>, index: u32, violation: Violation) {
        let now_ns = io.now_ns();
        self.complain(io, index, reason_of(violation));
        let Some(lane) = self.lane(index) else { return };
        tracing::debug!(peer = ?lane.peer, qid = %lane.qid, %violation, "peer broke the transport protocol");
        if !lane.queue.fail(violation) {
            return self.close(io, index);
        }
        lane.enter(LaneState::Terminating, now_ns);
        lane.pdu_since_ns = None;
        self.abandon_commands(index);
        if let Some(lane) = self.lane(index)
            && !std::mem::replace(&mut lane.is_dirty, true)
        {
            self.dirty.push(index);
        }
        self.set_lane_timer(io, index);
        self.count_unconnected(io, index);
    }

    /// Forgets the commands of a lane that ends, but for those that the backend has.
    pub(super) fn abandon_commands(&mut self, index: u32) {
        let Some(lane) = self.lanes[index as usize].lane.as_deref_mut() else { return };
        for ticket in lane.take_tickets() {
            self.commands.abort(ticket);
        }
        lane.pairs = None;
        lane.is_plain = true;
        lane.held = None;
        lane.backlog = Vec::new();
        lane.queue.clear(|_| {});
        lane.asked_since_ns = None;
        lane.in_flight = self.commands.count_of_lane(index, lane.id.generation);
        self.commands.shares.forget(index);
    }

    /// Closes a lane's socket, and lets the lane go once nothing of it runs.
    pub(super) fn close(&mut self, io: &mut impl Io<Message>, index: u32) {
        let now_ns = io.now_ns();
        self.uncount_unconnected(index);
        let Some(lane) = self.lane(index) else { return };
        lane.close(io);
        if lane.state != LaneState::Draining {
            lane.enter(LaneState::Draining, now_ns);
            (lane.pdu_since_ns, lane.blocked_since_ns) = (None, None);
            lane.queue.caravan().clear(drop);
            self.abandon_commands(index);
        }
        self.let_go(io, index);
    }

    /// Ends a lane by order of the control plane: first what it has started ends, then its socket is closed, so that
    /// the host cannot write elsewhere before.
    pub(super) fn end(&mut self, io: &mut impl Io<Message>, index: u32) {
        let Some(lane) = self.lane(index) else { return };
        if lane.state == LaneState::Draining || lane.is_ending {
            return;
        }
        lane.is_ending = true;
        if let Some(socket) = lane.socket {
            io.pause(socket);
        }
        self.abandon_commands(index);
        // What is answered is still told, the answer to Disconnect above all; whoever does not take it now goes without.
        if let Some(lane) = self.lane(index) {
            let _ = lane.flush(io);
        }
        self.let_go(io, index);
    }

    /// Lets a lane go if it is over and nothing of it runs.
    pub(super) fn let_go(&mut self, io: &mut impl Io<Message>, index: u32) {
        let Some(lane) = self.lane(index) else { return };
        if lane.in_flight > 0 || !(lane.state == LaneState::Draining || lane.is_ending) {
            return;
        }
        lane.close(io);
        let (id, napi, is_placed) = (lane.id, lane.napi, lane.is_placed);
        let address = lane.peer.map(|peer| peer.ip());
        let was_known = !matches!(lane.state, LaneState::Initialising | LaneState::Unconnected { .. });
        tracing::debug!(peer = ?lane.peer, qid = %lane.qid, "lane ended");
        let kind = if lane.is_expelled { RequestKind::Expelled } else { RequestKind::Ended };
        self.uncount_unconnected(index);
        self.commands.shares.forget(index);
        self.commands.set_association(index, None);
        self.lanes[index as usize].lane = None;
        self.free_places.push(index);
        self.post_left(io, napi, is_placed);
        io.post(0, Message::Gone(Visitor::Host, address));
        if was_known {
            io.post(0, Message::Request(Request { lane: id, kind }));
        }
    }

    /// Looks for notices again later, if some are awaited.
    pub(super) fn on_notice_timer(&mut self, io: &mut impl Io<Message>) {
        self.has_notice_timer = false;
        self.take_notices(io);
        if !self.awaiting.is_empty() {
            self.set_notice_timer(io);
        }
    }

    fn set_notice_timer(&mut self, io: &mut impl Io<Message>) {
        if !std::mem::replace(&mut self.has_notice_timer, true) {
            io.set_timer(io.now_ns() + NOTICE_NS, NOTICE_TIMER);
        }
    }

    /// Rings the doorbells of all lanes with something to send, but of those that are to wait for more.
    pub(super) fn ring(&mut self, io: &mut impl Io<Message>) {
        let now_ns = io.now_ns();
        let mut waiting_count = 0;
        let mut count_before_full = None;
        for at in 0..self.dirty.len() {
            let index = self.dirty[at];
            let Some(lane) = self.lane(index) else { continue };
            let waits = !lane.is_due(now_ns) || self.flush(io, index) == Flushed::Left;
            if waits {
                self.dirty[waiting_count] = index;
                waiting_count += 1;
            } else if let Some(lane) = self.lane(index) {
                lane.is_dirty = false;
            }
            if count_before_full.is_none() && self.sent_bytes >= ALL_BYTES_MAX {
                count_before_full = Some(waiting_count);
            }
        }
        self.dirty.truncate(waiting_count);
        // Those that the turn had no room for come first in the next one.
        if let Some(count) = count_before_full {
            self.dirty.rotate_left(count);
        }
    }

    /// So much waits on a lane that it is sent before the turn ends. What is on its way already goes on at the end of the turn, or when the
    /// socket has room; until then it is only counted.
    pub(super) fn on_full(&mut self, io: &mut impl Io<Message>, index: u32) {
        let Some(lane) = self.lane(index) else { return };
        if !lane.queue.caravan().is_leaving() {
            self.flush(io, index);
        } else if lane.needs_stable_copy() || lane.blocked_since_ns.is_some() {
            self.on_unsent(io, index);
        }
    }

    /// The same where what waits is values: what a turn has no room for holds buffers, or memory of the store, all the same.
    #[cold]
    pub(super) fn on_full_of_values(&mut self, io: &mut impl Io<Message>, index: u32) {
        self.on_full(io, index);
        if self.lane(index).is_some_and(|lane| lane.queue.caravan().is_leaving()) {
            self.on_unsent(io, index);
        }
    }

    /// Sends what waits on a lane, as far as its socket takes it and a turn has room for.
    pub(super) fn flush(&mut self, io: &mut impl Io<Message>, index: u32) -> Flushed {
        let place = self.lanes.get_mut(index as usize);
        let Some(lane) = place.and_then(|place| place.lane.as_deref_mut()) else { return Flushed::Empty };
        if self.sent_bytes >= ALL_BYTES_MAX && lane.queue.caravan().unsent_bytes() > LITTLE_BYTES_MAX {
            return self.put_off(io, index);
        }
        let before = lane.counters.sent_bytes.get();
        let flushed = lane.flush(io);
        self.sent_bytes += lane.counters.sent_bytes.get() - before;
        match flushed {
            Flushed::Empty => {
                if lane.state == LaneState::Terminating
                    && let Some(socket) = lane.socket
                {
                    io.finish(socket);
                }
                if lane.is_behind {
                    self.on_unsent(io, index);
                }
            }
            Flushed::Blocked => {
                if lane.timer_ns == 0 {
                    self.set_lane_timer(io, index);
                }
                self.on_unsent(io, index);
            }
            Flushed::Left => {
                let is_behind = lane.is_behind;
                if !std::mem::replace(&mut lane.is_dirty, true) {
                    self.dirty.push(index);
                }
                if is_behind {
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
        let Some(lane) = self.lane(index) else { return Flushed::Empty };
        let is_counted = lane.is_behind || lane.needs_stable_copy();
        if !std::mem::replace(&mut lane.is_dirty, true) {
            self.dirty.push(index);
        }
        if is_counted {
            self.on_unsent(io, index);
        }
        Flushed::Left
    }

    /// Has a lane looked after whose sends the kernel may still read.
    #[inline]
    fn await_notices(&mut self, io: &mut impl Io<Message>, index: u32) {
        let Some(lane) = self.lane(index) else { return };
        if !lane.awaits_notices() || std::mem::replace(&mut lane.is_awaiting, true) {
            return;
        }
        let id = lane.id;
        self.set_lane_timer(io, index);
        self.awaiting.push(id);
        self.set_notice_timer(io);
    }

    /// Lets go of what the kernel does not read any more.
    #[cold]
    pub(super) fn take_notices(&mut self, io: &mut impl Io<Message>) {
        let mut awaiting = std::mem::take(&mut self.awaiting);
        awaiting.retain(|&id| {
            let Some(lane) = self.lane_of(id) else { return false };
            lane.take_notices(io);
            lane.is_awaiting = lane.awaits_notices();
            lane.is_awaiting
        });
        self.awaiting = awaiting;
    }

    /// A lane's socket has no room for what waits, or has it again.
    #[cold]
    fn on_unsent(&mut self, io: &mut impl Io<Message>, index: u32) {
        let Some(lane) = self.lanes[index as usize].lane.as_deref_mut() else { return };
        let unsent_bytes = lane.queue.caravan().unsent_bytes();
        lane.is_behind = unsent_bytes > 0;
        let holds_back = self.commands.shares.on_unsent(io.pool(), index, unsent_bytes);
        lane.is_plain = lane.pairs.is_none() && !holds_back;
    }

    /// Lets lanes that have become idle give memory back. Those that are idle are not looked at, and a reactor whose lanes all are
    /// is not woken for it.
    pub(super) fn sweep(&mut self, io: &mut impl Io<Message>) {
        let mut active = std::mem::take(&mut self.active);
        let mut active_count = 0;
        active.retain(|&id| {
            let Some(lane) = self.lane_of(id) else { return false };
            let is_active = lane.activity == Activity::Active;
            active_count += u32::from(is_active);
            let is_idle = !is_active && lane.shrink();
            lane.activity = if is_idle { Activity::Idle } else { Activity::Resting };
            !is_idle
        });
        self.active = active;
        if std::mem::replace(&mut self.active_count_told, active_count) != active_count {
            io.post(0, Message::Active { reactor: self.reactor.into(), count: active_count });
        }
        if !self.active.is_empty() {
            io.set_timer(io.now_ns() + SWEEP_NS, SWEEP_TIMER);
        }
    }
}
