//! Serves the lanes of a reactor: accepts connections, receives, sends, and ends lanes.

mod placing;
mod sending;
mod throttled;

use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::sync::Arc;

use memory::Payload;
use proto::Violation;
use proto::controller_queue::Event;
use proto::receive::ReceiveTurn;
use reactor::{Connection, Io, ListenerTag, Received, SocketId};
use security::tls::{Failure as TlsFailure, Stream};
use wire::opcode::AdminOpcode;
use wire::sqe::Fuse;
use wire::status::Status;
use wire::text::quoted;

use super::dispatch::{After, Dispatcher};
use super::pressure::{self, PressureWatch};
use super::recorder::Recorder;
use super::settings::ServingSettings;
use super::timers::SWEEP_TIMER;
use crate::control_plane::admission::{reason, reason_of};
use crate::io_path::commands::{CollectKey, Commands};
use crate::io_path::executor::IoExecutor;
use crate::io_path::io_command::Caller;
use crate::io_path::key_value_io::ArrivingValues;
use crate::io_path::lane::{ClosingStep, Lane, LaneState, Order, Wait, payload_digest, tls_key};
use crate::io_path::lane_table::{LaneTable, Swept};
use crate::io_path::maybe_tls_socket::MaybeTlsSocket;
use crate::io_path::running::{Owner, Step};
use crate::messages::message::{
    AdmissionMessage, Answer, ControlMessage, Joined, Message, PlacementMessage, Request, RequestKind,
    Visitor,
};
use crate::messages::state::{BusyPollState, ReactorState};
use crate::messages::trace::{TraceKind, TraceOrder};
use crate::names::lane_end::LaneEnd;
use crate::names::lane_id::{CommandId, LaneId};
use crate::names::listener_gate::{ListenerGate, Passage};
use crate::names::slow_threshold::SlowThreshold;
use crate::objects::controller::error_log::Failure;
use crate::objects::namespace_table::NamespaceTable;

/// Interval of the sweep that releases memory of lanes which took in no command since the one before, ns.
const SWEEP_NS: u64 = 5_000_000_000;

/// The lanes of a reactor.
pub(super) struct LaneServer {
    settings: ServingSettings,
    tls: Arc<ListenerGate>,
    reactor: u16,
    pub(super) lanes: LaneTable,
    /// Bytes that lanes have sent in this turn.
    sent_bytes: u64,
    /// Lanes that had input in this turn, and whether there were several in the turn before.
    read_lane_count: u32,
    were_several_read: bool,
    has_notice_timer: bool,
    pressure: PressureWatch,
    /// Lanes with recent commands, as last reported to the placement.
    active_count_told: u32,
    is_sweep_set: bool,
    /// Lanes have freed memory in the last sweep.
    has_freed: bool,
    /// I/O lanes that have connected here.
    io_lanes_ever: u64,
    /// Whether it was logged that a lane's device cannot be polled.
    has_told_unpolled: bool,
    recorder: Recorder,
}

/// The caller of an in-flight command; `None` if its lane is closing.
fn caller_of(lanes: &LaneTable, owner: Owner) -> Option<Caller> {
    let Owner::Lane { index, generation, .. } = owner else { return None };
    let lane = lanes.of_generation(index, generation)?;
    Some(Caller { owner, view: lane.state.reached()?, needs_stable_copy: lane.needs_stable_copy() })
}

impl LaneServer {
    pub(super) fn new(settings: ServingSettings, tls: Arc<ListenerGate>, reactor: u16) -> Self {
        Self {
            settings,
            tls,
            reactor,
            lanes: LaneTable::new(reactor, settings.unconnected_count_max, settings.reactor_count),
            sent_bytes: 0,
            read_lane_count: 0,
            were_several_read: false,
            has_notice_timer: false,
            pressure: PressureWatch::default(),
            active_count_told: 0,
            is_sweep_set: false,
            has_freed: false,
            io_lanes_ever: 0,
            has_told_unpolled: false,
            recorder: Recorder::new(),
        }
    }

    #[inline]
    fn dispatcher<'a, I>(&'a mut self, io: &'a mut I, commands: &'a mut Commands) -> Dispatcher<'a, I> {
        Dispatcher { io, lanes: &mut self.lanes, commands, timeouts: &self.settings.timeouts }
    }

    /// Acts on the outcome of a lane event.
    #[inline]
    fn follow_up(&mut self, io: &mut impl Io<Message>, commands: &mut Commands, index: u32, after: After) {
        match after {
            After::Nothing => {}
            After::Flush => self.on_full(io, commands, index),
            After::FlushValues => self.on_full_of_values(io, commands, index),
            After::Close => self.close(io, commands, index),
            After::Remove => self.remove_if_idle(io, commands, index),
            After::Connect(request) => self.post_connect(io, commands, index, *request),
            After::End => {
                if let Some(id) = self.lanes.get(index).map(|lane| lane.id) {
                    self.end(io, commands, id);
                }
            }
        }
    }

    /// Adopts an accepted connection. Returns its socket and the place of its lane.
    pub(super) fn adopt(
        &mut self,
        io: &mut impl Io<Message>,
        commands: &mut Commands,
        connection: Connection,
        listener: ListenerTag,
        napi: Option<NonZeroU32>,
    ) -> Option<(SocketId, u32)> {
        let (socket, index) = self.begin_lane(io, connection, listener, napi, false)?;
        self.count_unconnected(io, commands, index);
        Some((socket, index))
    }

    /// Begins a lane; `is_placed` if another reactor has handed it over.
    fn begin_lane(
        &mut self,
        io: &mut impl Io<Message>,
        connection: Connection,
        listener: ListenerTag,
        napi: Option<NonZeroU32>,
        is_placed: bool,
    ) -> Option<(SocketId, u32)> {
        let (peer, local) = (connection.peer, connection.local);
        // A lane that was handed over brings its own.
        let passage = if is_placed { Some(Passage::Clear) } else { self.tls.passage(listener, io.now_ns()) };
        let Some(passage) = passage else {
            let complaint = AdmissionMessage::Complaint { peer, reason: reason::NO_POLICY, detail: None };
            io.post(0, Message::Admission(complaint));
            self.post_unserved(io, peer, napi, is_placed);
            return None;
        };
        let socket = match io.adopt(connection) {
            Ok(socket) => socket,
            Err(error) => {
                tracing::debug!(%error, ?peer, "connection died before it was served");
                self.post_unserved(io, peer, napi, is_placed);
                return None;
            }
        };
        let (queue, doorbell, now_ns) = (self.settings.queue, self.settings.doorbell, io.now_ns());
        let tls = match passage {
            Passage::Clear => None,
            Passage::Tls(stream) => Some(stream),
        };
        let index = self.lanes.insert(|id| {
            let mut lane = Lane::new(id, MaybeTlsSocket::new(socket, tls), queue, doorbell, now_ns);
            (lane.peer, lane.local, lane.listener) = (peer, local, listener);
            (lane.napi, lane.is_placed) = (napi, is_placed);
            lane
        });
        if let Some(lane) = self.lanes.get_mut(index) {
            lane.arm_timer(io, &self.settings.timeouts);
        }
        Some((socket, index))
    }

    /// A connection that was admitted is not served.
    fn post_unserved(
        &self,
        io: &mut impl Io<Message>,
        peer: Option<SocketAddr>,
        napi: Option<NonZeroU32>,
        is_placed: bool,
    ) {
        self.post_left(io, napi, is_placed);
        io.post(0, Message::Admission(AdmissionMessage::Gone(Visitor::Host, peer.map(|peer| peer.ip()))));
    }

    /// Counts a lane among those that no queue belongs to. If their number exceeds its limit, the oldest one is closed.
    fn count_unconnected(&mut self, io: &mut impl Io<Message>, commands: &mut Commands, index: u32) {
        let Some((lane, lists)) = self.lanes.entry(index) else { return };
        if let Some(oldest) = lists.on_unconnected(lane) {
            if let Some(lane) = self.lanes.get_mut(oldest) {
                lane.end.get_or_insert(LaneEnd::Target(reason::MADE_ROOM));
                lane.complain(io, reason::MADE_ROOM, None);
            }
            self.close(io, commands, oldest);
        }
    }

    pub(super) fn on_lane_timer(
        &mut self,
        io: &mut impl Io<Message>,
        commands: &mut Commands,
        index: u32,
        generation: u32,
    ) {
        let now_ns = io.now_ns();
        let Some(lane) = self.lanes.get_mut(index).filter(|lane| lane.id.generation == generation) else {
            return;
        };
        if !lane.deadlines.on_timer(now_ns) {
            return;
        }
        let awaits_data = lane.deadlines.is_on(Wait::Data);
        let asked_since_ns = if awaits_data { lane.asked_since_ns(&commands.running, now_ns) } else { None };
        lane.deadlines.set(Wait::Data, asked_since_ns);
        if lane.held.is_some() {
            // Its socket is not read: the rest of a record or a PDU may have come.
            lane.deadlines.stop(Wait::Record);
            lane.deadlines.stop(Wait::Pdu);
        }
        match lane.deadlines.next(&self.settings.timeouts) {
            Some((deadline_ns, wait)) if deadline_ns <= now_ns => {
                self.expel(io, commands, index, wait.reason());
            }
            _ => lane.arm_timer(io, &self.settings.timeouts),
        }
    }

    /// Closes a lane whose peer missed a deadline, and reports it at once: the association ends before the commands of
    /// the lane that a backend still has, because its other lanes may hold buffers, and its host may reconnect.
    fn expel(
        &mut self,
        io: &mut impl Io<Message>,
        commands: &mut Commands,
        index: u32,
        reason: &'static str,
    ) {
        if let Some(lane) = self.lanes.get_mut(index).filter(|lane| lane.socket().is_some()) {
            lane.complain(io, reason, None);
            lane.end.get_or_insert(LaneEnd::Target(reason));
            let request = Request { lane: lane.id, kind: RequestKind::Expelled(reason) };
            io.post(0, Message::Control(ControlMessage::Request(request)));
        }
        self.close(io, commands, index);
    }

    /// Receives within the turn's budget, and acts on the input. Returns whether there was any.
    #[inline]
    pub(super) fn receive(
        &mut self,
        io: &mut impl Io<Message>,
        commands: &mut Commands,
        index: u32,
        socket: SocketId,
        staging: &mut [u8],
    ) -> bool {
        if self.lanes.get(index).is_none_or(|lane| lane.socket() != Some(socket)) {
            return false;
        }
        let mut turn = self.settings.receive.turn();
        let mut worked = false;
        while turn.goes_on() || self.has_tls_input(index) {
            // A lane whose input is held back does not receive.
            let is_paused = worked && self.lanes.get(index).is_none_or(|lane| lane.held.is_some());
            if is_paused || !self.receive_once(io, commands, index, staging, &mut turn) {
                break;
            }
            worked = true;
        }
        if worked {
            self.read_lane_count += 1;
            if self.were_several_read {
                self.send_answers(io, commands, index);
            }
        }
        worked
    }

    /// Whether plaintext of a lane waits while its socket may be silent.
    #[inline]
    fn has_tls_input(&self, index: u32) -> bool {
        self.lanes.get(index).is_some_and(|lane| lane.transport.has_input())
    }

    /// A lane with TLS has received, or could not send: its handshake may be complete, it may turn out to be
    /// unencrypted, and it may have failed.
    #[cold]
    fn on_tls(io: &mut impl Io<Message>, lane: &mut Lane) {
        if let Some(established) = lane.transport.newly_established() {
            tls_key::log_established(established, lane.peer);
        }
        if lane.transport.stream().is_some_and(Stream::is_clear) {
            lane.transport.take_stream();
        } else if let Some(failure) = lane.transport.newly_failed() {
            let (reason, mut detail) = match failure {
                TlsFailure::NotTls => (reason::IN_CLEAR, None),
                TlsFailure::UnknownIdentity(_) => (reason::UNKNOWN_IDENTITY, Some(failure.to_string())),
                _ => (reason::TLS, Some(failure.to_string())),
            };
            let claimed = lane.transport.stream().and_then(Stream::claimed);
            if let (Some(detail), Some(claimed)) = (&mut detail, claimed) {
                // Offered by the host, and not proved.
                detail.push_str(", with the identity ");
                detail.push_str(&quoted(claimed).to_string());
            }
            lane.end.get_or_insert(LaneEnd::Target(reason));
            lane.complain(io, reason, detail);
        }
    }

    /// The socket of a lane is writable again.
    pub(super) fn on_writable(&mut self, index: u32, socket: SocketId) {
        if let Some((lane, lists)) = self.lanes.entry(index)
            && lane.socket() == Some(socket)
        {
            lists.mark_dirty(lane);
        }
    }

    /// Receives once. Returns whether there was input.
    #[inline]
    fn receive_once(
        &mut self,
        io: &mut impl Io<Message>,
        commands: &mut Commands,
        index: u32,
        staging: &mut [u8],
        turn: &mut ReceiveTurn,
    ) -> bool {
        let Some(lane) = self.lanes.get_mut(index) else { return false };
        let Some(socket) = lane.socket() else { return false };
        let plan = lane.receive_plan(self.settings.receive);
        let staging_bytes = plan.staging_bytes(staging.len(), || lane.queue.wanted_bytes());
        let staging = &mut staging[..staging_bytes];
        let transport = &mut lane.transport;
        let (received, extent) =
            plan.receive(lane.queue.place(), staging, |into| transport.receive(io, into));
        if lane.transport.is_tls() {
            Self::on_tls(io, lane);
            lane.watch_record(io, &self.settings.timeouts, matches!(received, Received::Bytes(_)));
        }
        match received {
            Received::Bytes(count) => {
                turn.on_received(extent, count);
                let expected_part = std::mem::take(&mut lane.expects_part);
                let arrived_ns = if lane.is_catching_up {
                    lane.is_catching_up = turn.has_more();
                    io.arrived_ns(socket)
                } else {
                    io.now_ns()
                };
                lane.counters.receive_count.add(1);
                lane.counters.received_bytes.add(count as u64);
                let placed = extent.in_place(count);
                lane.counters.in_place_bytes.add(placed as u64);
                if placed > 0
                    && let Err(violation) = lane.queue.on_placed(placed)
                {
                    self.on_violation(io, commands, index, violation);
                    return true;
                }
                self.take_in(io, commands, index, &staging[..count - placed], arrived_ns);
                if expected_part && let Some(lane) = self.lanes.get_mut(index) {
                    lane.expects_part |= lane.queue.place().is_some();
                }
                true
            }
            Received::Dry => {
                lane.is_catching_up = false;
                lane.counters.dry_receive_count.add(1);
                false
            }
            Received::Ended => {
                lane.end.get_or_insert(LaneEnd::Host);
                self.close(io, commands, index);
                true
            }
            Received::Failed(error) => {
                tracing::debug!(%error, peer = ?lane.peer, "connection broken");
                lane.end.get_or_insert(LaneEnd::Lost);
                self.close(io, commands, index);
                true
            }
        }
    }

    /// Acts on received bytes that had arrived by `arrived_ns`.
    fn take_in(
        &mut self,
        io: &mut impl Io<Message>,
        commands: &mut Commands,
        index: u32,
        mut input: &[u8],
        arrived_ns: u64,
    ) {
        let now_ns = io.now_ns();
        let mut had_command = false;
        loop {
            // Borrowed anew each time: an event may end the lane. Input that arrives after it starts closing is
            // discarded.
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
                Err(violation) => return self.on_violation(io, commands, index, violation),
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
                        let view = io_queue.view;
                        let (index, generation) = (lane.id.index, lane.id.generation);
                        let owner = Owner::Lane { index, generation, slot };
                        let caller = Caller { owner, view, needs_stable_copy };
                        let followed_ns =
                            lane.watch.follows_next().then(|| lane.watch.begin_ns(now_ns, || io.clock_ns()));
                        let mut executor = IoExecutor { commands, io: &mut *io };
                        let begun = executor.begin(&caller, &sqe, data);
                        let mut dispatcher = self.dispatcher(io, commands);
                        if let Some(begun_ns) = followed_ns {
                            dispatcher.follow(index, slot, &sqe, (arrived_ns.min(now_ns), begun_ns), &begun);
                        }
                        let after = dispatcher.on_begun(index, slot, &sqe, begun);
                        self.follow_up(io, commands, index, after);
                        continue;
                    }
                    let data: Box<[u8]> = data.into();
                    let after = self.dispatcher(io, commands).on_rare_command(index, slot, &sqe, data);
                    self.follow_up(io, commands, index, after);
                }
                Ok(Some(Event::DataReceived { slot, is_intact })) => {
                    let after = self.dispatcher(io, commands).on_data_received(index, slot, is_intact);
                    self.follow_up(io, commands, index, after);
                }
                Ok(Some(Event::Refused { cid, status })) => {
                    let failure = Failure { qid: lane.state.qid(), cid, status, nsid: 0, lba: 0 };
                    lists.fail(lane, failure);
                    if status.is(Status::TRANSIENT_TRANSPORT_ERROR) {
                        lane.complain(io, reason::DATA_DIGEST, None);
                    }
                    self.dispatcher(io, commands).break_pair(index);
                    self.dispatcher(io, commands).post_superseded(index);
                }
            }
        }
        let Some((lane, lists)) = self.lanes.entry(index) else { return };
        if had_command {
            if let Some(association) = lane.state.association() {
                // Its host may be silent since then.
                if arrived_ns < now_ns {
                    association.on_late_sign(arrived_ns);
                } else {
                    association.on_sign(now_ns);
                }
            }
            if lists.on_commands(lane) {
                set_sweep(&mut self.is_sweep_set, io);
            }
        }
        if !lane.queue.caravan().is_empty() {
            lists.mark_dirty(lane);
        }
        if lane.queue.is_within_pdu() {
            if had_command || !lane.deadlines.is_on(Wait::Pdu) {
                lane.deadlines.start(Wait::Pdu, now_ns);
                lane.arm_timer(io, &self.settings.timeouts);
            }
        } else {
            lane.deadlines.stop(Wait::Pdu);
        }
    }

    fn on_violation(
        &mut self,
        io: &mut impl Io<Message>,
        commands: &mut Commands,
        index: u32,
        violation: Violation,
    ) {
        let now_ns = io.now_ns();
        let Some(lane) = self.lanes.get_mut(index) else { return };
        lane.complain(io, reason_of(violation), None);
        lane.end.get_or_insert(match violation {
            Violation::EndedByPeer { .. } => LaneEnd::Host,
            _ => LaneEnd::Target(reason_of(violation)),
        });
        tracing::debug!(peer = ?lane.peer, qid = %lane.state.qid(), %violation, "peer broke the transport protocol");
        self.recorder.on_lane_event(lane, now_ns, TraceKind::Error { reason: reason_of(violation) });
        if !lane.queue.fail(violation) {
            return self.close(io, commands, index);
        }
        lane.begin_closing(ClosingStep::Terminating, now_ns);
        self.abandon_commands(commands, index);
        if let Some((lane, lists)) = self.lanes.entry(index) {
            lists.mark_dirty(lane);
            lane.arm_timer(io, &self.settings.timeouts);
        }
        self.count_unconnected(io, commands, index);
    }

    /// Forgets the commands of a lane that is closing, and counts those that a backend still has.
    fn abandon_commands(&mut self, commands: &mut Commands, index: u32) {
        let Some(lane) = self.lanes.get_mut(index) else { return };
        for ticket in lane.tickets() {
            commands.abandon(ticket);
        }
        lane.held = None;
        lane.queue.clear(|_| {});
        lane.deadlines.stop(Wait::Data);
        let in_flight = commands.count_of_lane(index, lane.id.generation);
        if let Some(closing) = lane.state.closing() {
            closing.in_flight = in_flight;
        }
        commands.quota.forget(index);
    }

    /// Closes a lane's socket, and removes the lane once none of its commands is in flight.
    fn close(&mut self, io: &mut impl Io<Message>, commands: &mut Commands, index: u32) {
        let Some((lane, lists)) = self.lanes.entry(index) else { return };
        lists.on_connected(lane);
        if lane.socket().is_some() {
            let reason = lane.end.unwrap_or_default().reason();
            self.recorder.on_lane_event(lane, io.now_ns(), TraceKind::Ended { reason });
        }
        if lane.close(io) {
            lane.queue.caravan().clear(drop);
            self.abandon_commands(commands, index);
        }
        self.remove_if_idle(io, commands, index);
    }

    /// Ends a lane by order of the control plane, or after a refusal: its socket is closed when the commands that it has started have
    /// ended, so that the host cannot write elsewhere before.
    pub(super) fn end(&mut self, io: &mut impl Io<Message>, commands: &mut Commands, id: LaneId) {
        let (now_ns, index) = (io.now_ns(), id.index);
        let entry = self.lanes.entry(index).filter(|(lane, _)| lane.id == id);
        let Some((lane, lists)) = entry else { return };
        if lane.state.closing().is_some_and(|closing| closing.step != ClosingStep::Terminating) {
            return;
        }
        lists.on_connected(lane);
        let reason = lane.end.map_or("the controller has ended", LaneEnd::reason);
        self.recorder.on_lane_event(lane, now_ns, TraceKind::Ended { reason });
        lane.begin_closing(ClosingStep::Ending, now_ns);
        if let Some(socket) = lane.socket() {
            io.pause(socket);
        }
        self.abandon_commands(commands, index);
        // Queued responses are flushed once, Disconnect's above all; what the socket does not take is dropped.
        if let Some(lane) = self.lanes.get_mut(index) {
            let _ = lane.flush(io);
        }
        self.remove_if_idle(io, commands, index);
    }

    /// Removes a lane that is closed, or ends, once none of its commands is in flight.
    fn remove_if_idle(&mut self, io: &mut impl Io<Message>, commands: &mut Commands, index: u32) {
        let Some(closing) = self.lanes.get_mut(index).and_then(|lane| lane.state.closing()) else { return };
        match closing.step {
            _ if closing.in_flight > 0 => return,
            ClosingStep::Terminating => return,
            ClosingStep::Ending | ClosingStep::Closed => {}
        }
        commands.quota.forget(index);
        commands.set_association(index, None);
        let Some(mut lane) = self.lanes.remove(index) else { return };
        lane.close_socket(io);
        tracing::debug!(peer = ?lane.peer, qid = %lane.state.qid(), "lane ended");
        self.post_left(io, lane.napi, lane.is_placed);
        io.post(
            0,
            Message::Admission(AdmissionMessage::Gone(Visitor::Host, lane.peer.map(|peer| peer.ip()))),
        );
        let request = Request { lane: lane.id, kind: RequestKind::Ended(lane.end.unwrap_or_default()) };
        io.post(0, Message::Control(ControlMessage::Request(request)));
    }

    /// Releases memory of lanes that have become idle. Idle lanes are not visited, and a reactor with idle lanes only
    /// is not woken for it.
    pub(super) fn sweep(&mut self, io: &mut impl Io<Message>, commands: &Commands) {
        self.is_sweep_set = false;
        self.recorder.look(&mut self.lanes, commands, io.now_ns());
        let Swept { active_count, has_freed, is_any_left } = self.lanes.sweep();
        if std::mem::replace(&mut self.has_freed, has_freed) {
            allocators::give_back_freed_memory();
        }
        if std::mem::replace(&mut self.active_count_told, active_count) != active_count {
            io.post(
                0,
                Message::Placement(PlacementMessage::Active {
                    reactor: self.reactor.into(),
                    count: active_count,
                }),
            );
        }
        if is_any_left || has_freed {
            set_sweep(&mut self.is_sweep_set, io);
        }
    }

    /// Continues the commands that backends have replied to, and delivers their completions to their lanes.
    pub(super) fn drain_commands(&mut self, io: &mut impl Io<Message>, commands: &mut Commands) -> bool {
        let mut worked = false;
        loop {
            let replied = IoExecutor { commands, io: &mut *io }.on_replies();
            let mut ended_any = false;
            while let Some(ended) = commands.next_ended() {
                let index = ended.owner.lane();
                let after = self.dispatcher(io, commands).on_ended(ended);
                if let Some(index) = index {
                    self.follow_up(io, commands, index, after);
                }
                ended_any = true;
            }
            if !replied && !ended_any {
                return worked;
            }
            worked = true;
        }
    }

    /// Continues commands that waited for buffers, and lanes whose input is held back. Returns whether there may be
    /// more to do.
    fn go_on(&mut self, io: &mut impl Io<Message>, commands: &mut Commands) -> bool {
        let mut worked = false;
        if commands.has_waiting() {
            let caller = |owner| caller_of(&self.lanes, owner);
            worked = IoExecutor { commands, io: &mut *io }.retry(caller);
            self.drain_commands(io, commands);
            while let Some(index) = commands.quota.next_settled() {
                self.dispatcher(io, commands).settle(index);
            }
            self.pressure.arm(io, commands);
        }
        let mut held = self.lanes.lists.held.take();
        held.retain(|&index| {
            let Some(ticket) =
                self.lanes.get(index).and_then(|lane| lane.held.as_ref()).map(|held| held.ticket)
            else {
                return false;
            };
            let running = commands.running.get_mut(ticket);
            let waits = |step: &Step| matches!(step, Step::Waiting(_) | Step::Throttled { .. });
            if running.is_some_and(|running| waits(&running.step)) {
                return true;
            }
            self.resume_input(io, commands, index);
            false
        });
        self.lanes.lists.held.put_back(held);
        worked
    }

    /// Takes in the input of a lane that was held back, and receives again unless that is held back as well.
    fn resume_input(&mut self, io: &mut impl Io<Message>, commands: &mut Commands, index: u32) {
        let Some(lane) = self.lanes.get_mut(index) else { return };
        let Some((held, socket)) = lane.held.take().zip(lane.socket()) else { return };
        let arrived_ns = io.arrived_ns(socket);
        self.take_in(io, commands, index, &held.backlog, arrived_ns);
        if let Some(lane) = self.lanes.get_mut(index)
            && lane.held.is_none()
            && lane.takes_commands()
            && let Some(socket) = lane.socket()
        {
            lane.is_catching_up = true;
            io.resume(socket);
        }
    }

    /// Switches to another table of namespaces: each lane reaches those that its host sees from now on.
    pub(super) fn on_table(
        &mut self,
        io: &mut impl Io<Message>,
        commands: &mut Commands,
        table: Arc<NamespaceTable>,
        reactor: u16,
    ) {
        commands.namespaces.replace(table, reactor.into(), io.moment());
        commands.replace_meters();
        for lane in self.lanes.iter_mut() {
            lane.state.on_table(&commands.namespaces);
        }
        // No Submit will come for them.
        let Commands { collecting, namespaces, .. } = &*commands;
        let is_lost = |(index, generation, nsid, _): &&CollectKey| {
            let view = self.lanes.of_generation(*index, *generation).and_then(Lane::view);
            view.is_some_and(|view| !namespaces.find_unlimited(view, *nsid).is_keys())
        };
        let lost: Vec<CollectKey> = collecting.keys().filter(is_lost).copied().collect();
        for ticket in lost.iter().filter_map(|key| commands.collecting.remove(key)).collect::<Vec<_>>() {
            commands.end(ticket, Status::INVALID_NAMESPACE.with_dnr(), 0, None);
        }
        self.drain_commands(io, commands);
    }

    /// Logs commands that take longer than this from now on.
    pub(super) fn set_slow(&mut self, io: &impl Io<Message>, commands: &Commands, threshold: SlowThreshold) {
        self.recorder.set_slow(&mut self.lanes, commands, threshold, io.now_ns());
    }

    /// Begins, reads or ends a trace.
    pub(super) fn on_trace(&mut self, io: &impl Io<Message>, commands: &Commands, order: TraceOrder) {
        self.recorder.on_trace(&mut self.lanes, commands, order, io.now_ns());
    }

    fn report_failures(&mut self, io: &mut impl Io<Message>) {
        for index in self.lanes.lists.failing.take() {
            let Some(lane) = self.lanes.get_mut(index) else { continue };
            let kind = RequestKind::Failures(std::mem::take(&mut lane.failures));
            io.post(0, Message::Control(ControlMessage::Request(Request { lane: lane.id, kind })));
        }
    }

    /// The control plane has completed a command, possibly the Connect of its lane.
    pub(super) fn on_answer(&mut self, io: &mut impl Io<Message>, commands: &mut Commands, answer: Answer) {
        let now_ns = io.now_ns();
        let id = answer.command.lane;
        let entry = self.lanes.entry(id.index).filter(|(lane, _)| lane.id == id && lane.takes_commands());
        let Some((lane, lists)) = entry else { return };
        let slot = answer.command.slot;
        let mut joined = None;
        if let LaneState::Connecting { .. } = lane.state {
            match answer.established {
                Some(established) => {
                    tracing::debug!(
                        peer = lane.peer.map(tracing::field::display),
                        qid = %established.qid,
                        host = %quoted(&established.host),
                        must_authenticate = established.joined.is_none(),
                        "queue connected"
                    );
                    joined = lane.establish(established, now_ns);
                }
                None => lane.enter(LaneState::Unconnected { refused_count: 0 }, now_ns),
            }
        }
        match answer.data {
            Some(data) if answer.status.is_success() && !data.is_empty() => {
                let length = u32::try_from(data.len()).expect("at most a log page");
                let payload = Payload::Heap(data);
                lane.queue.complete_with_data(slot, payload, length, answer.result, payload_digest);
            }
            _ => lane.queue.complete(slot, answer.status, answer.result),
        }
        let is_refused = matches!(lane.state, LaneState::Unconnected { .. });
        lists.mark_dirty(lane);
        lane.arm_timer(io, &self.settings.timeouts);
        if let Some(joined) = joined {
            self.join(io, commands, id, joined);
        }
        if is_refused {
            self.count_unconnected(io, commands, id.index);
        }
    }

    /// A lane that has connected, and authenticated if it must, is a queue of a controller from now on.
    pub(super) fn join(
        &mut self,
        io: &mut impl Io<Message>,
        commands: &mut Commands,
        id: LaneId,
        joined: Joined,
    ) {
        let Some(lane) = self.lanes.by_id(id) else { return };
        let LaneState::Authenticating { qid } = lane.state else { return };
        let association = Arc::clone(&joined.association);
        tracing::info!(
            peer = lane.peer.map(tracing::field::display),
            %qid,
            host = %quoted(&association.host),
            "lane connected"
        );
        lane.join(joined, &commands.namespaces, io.now_ns());
        self.recorder.attach(lane);
        self.recorder.on_lane_event(lane, io.now_ns(), TraceKind::Connected);
        if let Some(socket) = lane.socket() {
            io.establish(socket);
        }
        if !qid.is_admin() {
            lane.set_zero_copy(io, self.settings.zero_copy);
            commands.set_association(id.index, Some(association));
            self.io_lanes_ever += 1;
        }
    }

    /// Closes the lanes whose peers withhold buffers that others wait for, if any do.
    pub(super) fn relieve_pressure(&mut self, io: &mut impl Io<Message>, commands: &mut Commands) {
        let now_ns = io.now_ns();
        self.pressure.on_timer();
        if !commands.is_contended() {
            return;
        }
        for index in self.lanes.indices() {
            let Some(lane) = self.lanes.get_mut(index) else { continue };
            let reason =
                pressure::withholds_buffers(lane, &commands.running, &self.settings.timeouts, now_ns);
            if let Some(reason) = reason {
                self.expel(io, commands, index, reason);
            }
        }
        self.pressure.arm(io, commands);
    }

    /// Ends a turn: continues what waited, and flushes. Returns whether there was anything to do.
    pub(super) fn end_turn(&mut self, io: &mut impl Io<Message>, commands: &mut Commands) -> bool {
        let mut worked = false;
        if self.lanes.lists.has_awaiting() {
            self.take_notices(io);
        }
        if commands.throttle.has_waiting() {
            worked |= self.release_throttled(io, commands);
        }
        if commands.has_waiting() || !self.lanes.lists.held.is_empty() {
            worked |= self.go_on(io, commands);
        }
        if commands.arrivals.has_changed() {
            ArrivingValues { commands, io }.settle();
        }
        if !commands.digests.is_empty() {
            if let Some((index, after)) = self.dispatcher(io, commands).digest() {
                self.follow_up(io, commands, index, after);
            }
            worked = true;
        }
        if !self.lanes.lists.dirty.is_empty() {
            self.ring(io, commands);
            worked = true;
        }
        if commands.throttle.has_window() {
            worked |= commands.throttle.end_turn(io.now_ns(), io.clock_ns(), &mut commands.running.flows);
        }
        self.sent_bytes = 0;
        self.were_several_read = std::mem::take(&mut self.read_lane_count) > 1;
        if !self.lanes.lists.failing.is_empty() {
            self.report_failures(io);
        }
        worked
    }

    /// Aborts a command of a lane unless it has started to run. wire §18
    pub(super) fn on_abort(
        &mut self,
        io: &mut impl Io<Message>,
        commands: &mut Commands,
        id: LaneId,
        cid: u16,
        asked_by: CommandId,
    ) {
        self.dispatcher(io, commands).on_abort(id, cid, asked_by);
    }

    /// Closes every socket: the reactor ends.
    pub(super) fn close_all(&mut self, io: &mut impl Io<Message>) {
        for lane in self.lanes.iter_mut() {
            lane.close_socket(io);
        }
    }

    /// The state of this reactor and its lanes.
    pub(super) fn describe(&self, io: &impl Io<Message>, commands: &Commands) -> ReactorState {
        let polling = io.busy_polling();
        let lanes = self.lanes.iter();
        ReactorState {
            reactor: self.reactor,
            lanes: lanes.clone().count(),
            io_lanes: lanes.filter(|lane| lane.state.io_queue().is_some()).count(),
            io_lanes_ever: self.io_lanes_ever,
            napi_ids: self.lanes.napi_ids(),
            busy_poll: BusyPollState {
                wait_us: polling.wanted.wait_us,
                engine: polling.engine.text(),
                sockets: polling.socket.poll.text(),
                prefer: polling.socket.prefer.text(),
                budget: polling.socket.budget.text(),
                socket_count: polling.socket_count,
                refused_count: polling.refused_count,
                spins: polling.spin_count,
                spin_hits: polling.spin_hit_count,
                polled_sleeps: polling.sleep_count,
                polled_hits: polling.sleep_hit_count,
            },
            buffers: commands.quota.state(io.pool()),
            failed: self.lanes.lists.failed_by_status(),
            age_ns: io.now_ns(),
            // Its turns are counted where it runs.
            ..ReactorState::default()
        }
    }
}

/// Sets the timer of the next [`sweep`](LaneServer::sweep), unless it is set.
fn set_sweep(is_set: &mut bool, io: &mut impl Io<Message>) {
    if !std::mem::replace(is_set, true) {
        io.set_timer(io.now_ns() + SWEEP_NS, SWEEP_TIMER);
    }
}
