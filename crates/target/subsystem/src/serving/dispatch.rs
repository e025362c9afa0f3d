//! Routes the commands of lanes to the store or to the control plane, and their completions back.

use std::sync::Arc;

use memory::{Buffer, Chunk, Payload};
use proto::Slot;
use reactor::Io;
use store::Ticket;
use wire::fabrics::ConnectCommand;
use wire::nvm::BlockCommand;
use wire::opcode::{AdminOpcode, DataDirection, FabricsType, KvOpcode, NvmOpcode};
use wire::sgl::DataPointer;
use wire::sqe::{Fuse, Sqe};
use wire::status::{Status, StatusKind};

use crate::control_plane::admission::reason;
use crate::io_path::attached::ViewIndex;
use crate::io_path::command_form::check_form;
use crate::io_path::commands::Commands;
use crate::io_path::executor::IoExecutor;
use crate::io_path::fused::FusedExecutor;
use crate::io_path::fused_pairs::{Pairs, Verdict};
use crate::io_path::io_command::{Begun, Caller, Ended, Hold};
use crate::io_path::key_value_io::{ArrivingValues, Awaits};
use crate::io_path::lane::{Lane, LaneState, LaneTimeouts, Order, payload_digest, tls_key};
use crate::io_path::lane_table::{LaneLists, LaneTable};
use crate::io_path::running::{Owner, Running, Step, Supply};
use crate::messages::key_value::arriving::Intake;
use crate::messages::key_value::digested::{self, Digested};
use crate::messages::message::{ControlMessage, Message, Request, RequestKind};
use crate::names::lane_end::LaneEnd;
use crate::names::lane_id::{CommandId, LaneId};
use crate::objects::controller::error_log::Failure;

/// Maximum data of admin and Fabrics commands, bytes.
const CONTROL_DATA_BYTES_MAX: u32 = 8192;

/// Commands other than Connect that a connection may send before it is closed.
const UNCONNECTED_COMMAND_COUNT_MAX: u8 = 8;

/// Takes commands of lanes to where they are executed, and their ends back.
///
/// ```text
/// Event::Command ──I/O──▶ IoExecutor::begin ─▶ on_begun ──────────▶ completed, or running … Ended ─▶ on_ended
///      │                                          └─ R2T … on_data_received ─▶ begin_received ─┘
///      ├──fused──▶ Pairs ─▶ on_verdict
///      └──Fabrics, admin──▶ control plane … Answer
/// ```
pub(super) struct Dispatcher<'a, I> {
    pub(super) io: &'a mut I,
    pub(super) lanes: &'a mut LaneTable,
    pub(super) commands: &'a mut Commands,
    pub(super) timeouts: &'a LaneTimeouts,
}

/// The action that the server of a lane takes after an event.
#[derive(Debug)]
#[must_use]
pub(super) enum After {
    Nothing,
    /// Flush: enough bytes wait for an immediate send.
    Flush,
    /// As `Flush`, but values wait: they hold memory of the store until they are sent.
    FlushValues,
    /// Close the lane.
    Close,
    /// Remove the lane if none of its commands is in flight.
    Remove,
    /// Have the lane of this Connect placed, or execute its Connect.
    Connect(Box<Request>),
    /// Send what waits, and close the lane.
    End,
}

impl<I: Io<Message>> Dispatcher<'_, I> {
    #[inline]
    fn executor(&mut self) -> IoExecutor<'_, I> {
        IoExecutor { commands: self.commands, io: self.io }
    }

    fn fused(&mut self) -> FusedExecutor<'_, I> {
        FusedExecutor { commands: self.commands, io: self.io }
    }

    /// An I/O command has begun: completes it, requests its data, or records its ticket.
    #[inline]
    pub(super) fn on_begun(&mut self, index: u32, slot: Slot, sqe: &Sqe, begun: Begun) -> After {
        let Some((lane, lists)) = self.lanes.entry(index) else { return After::Nothing };
        match begun {
            Begun::Data(payload, length) => {
                lane.counters.read_count.add(1);
                lane.counters.read_bytes.add(length.into());
                lane.queue.complete_with_data(slot, payload, length, 0, payload_digest);
                if lane.is_full() {
                    return After::Flush;
                }
            }
            Begun::Value(payload, length, result) => {
                if lane.needs_stable_copy() && digested::takes_long(&payload, length) {
                    self.digest_first(index, slot, sqe, payload, length, result);
                    return After::Nothing;
                }
                lane.counters.read_count.add(1);
                lane.counters.read_bytes.add(length.into());
                lane.queue.complete_with_data(slot, payload, length, result, payload_digest);
                if lane.is_full() {
                    return After::FlushValues;
                }
            }
            Begun::Complete(status, result) => {
                count(lane, lists, slot, sqe, status);
                lane.queue.complete(slot, status, result);
                let (is_full, view) = (lane.is_full(), lane.view());
                if status.kind() == StatusKind::Media {
                    self.on_media_error(view, sqe);
                }
                if is_full {
                    return After::Flush;
                }
            }
            Begun::RequestData(length) => self.request_data(index, slot, sqe, length),
            Begun::Started { ticket, hold } => {
                lane.queue.set_context(slot, Some(ticket));
                match hold {
                    Hold::None => {}
                    Hold::Line => lane.set_in_line(true),
                    Hold::Capsule => {
                        lists.hold(lane, ticket);
                        if let Some(socket) = lane.socket() {
                            self.io.pause(socket);
                        }
                    }
                }
            }
        }
        After::Nothing
    }

    #[cold]
    fn on_media_error(&mut self, view: Option<ViewIndex>, sqe: &Sqe) {
        if let Some(traffic) = self.commands.namespaces.traffic_of(view, sqe.nsid()) {
            traffic.on_media_error();
        }
    }

    /// Computes the digests of a long value before it is sent.
    #[cold]
    fn digest_first(
        &mut self,
        index: u32,
        slot: Slot,
        sqe: &Sqe,
        payload: Payload,
        length: u32,
        result: u64,
    ) {
        let Some(lane) = self.lanes.get_mut(index) else { return };
        let owner = Owner::Lane { index, generation: lane.id.generation, slot };
        let pdu_bytes = lane.queue.c2h_data_bytes();
        let digested = Digested::new(payload, length, result, pdu_bytes);
        let ticket = self.commands.digests.add(&mut self.commands.running, (owner, sqe), digested);
        lane.queue.set_context(slot, Some(ticket));
    }

    /// Computes digests of the next long value, and queues the value when they are known. Returns its lane then, and
    /// the resulting action.
    #[cold]
    pub(super) fn digest(&mut self) -> Option<(u32, After)> {
        let (running, digested) = self.commands.digests.go_on(&mut self.commands.running)?;
        let Owner::Lane { index, generation, slot } = running.owner else { return None };
        let (lane, lists) = self.lanes.entry(index).filter(|(lane, _)| lane.id.generation == generation)?;
        let (length, result) = (digested.length, digested.result);
        lane.counters.read_count.add(1);
        lane.counters.read_bytes.add(length.into());
        record_later(lane, self.io, slot, Status::SUCCESS);
        let (payload, digest) = digested.into_parts();
        lane.queue.complete_with_data(slot, payload, length, result, digest);
        lists.mark_dirty(lane);
        Some((index, if lane.is_full() { After::FlushValues } else { After::Nothing }))
    }

    /// Notes how the command that the lane's stopwatch follows has begun.
    #[cold]
    #[inline(never)]
    pub(super) fn follow(&mut self, index: u32, slot: Slot, sqe: &Sqe, times: (u64, u64), begun: &Begun) {
        let begun_ns = times.1;
        let Some(lane) = self.lanes.get_mut(index) else { return };
        if lane.watch.is_recording() {
            let is_throttled =
                matches!(begun, Begun::Started { ticket, .. } if self.commands.is_throttled(*ticket));
            return record(lane, self.io, (slot, sqe), times, begun, is_throttled);
        }
        let traffic = self.commands.namespaces.shared_traffic_of(lane.view(), sqe.nsid());
        lane.watch.set_namespace(traffic, lane.id.reactor);
        let times = &lane.counters.phases;
        match begun {
            Begun::RequestData(_) => lane.watch.await_data(slot),
            // It has not begun.
            Begun::Started { ticket, .. } if self.commands.is_throttled(*ticket) => {}
            Begun::Started { .. } => lane.watch.begin(times, slot, self.io.now_ns(), begun_ns),
            Begun::Complete(..) | Begun::Data(..) | Begun::Value(..) => {
                lane.watch.begin(times, slot, self.io.now_ns(), begun_ns);
                lane.watch.on_done(times, self.io.clock_ns());
            }
        }
    }

    /// As [`follow`](Self::follow), for a command that has waited for a rate limit: only a record has it.
    pub(super) fn follow_released(&mut self, index: u32, slot: Slot, sqe: &Sqe, begun: &Begun) {
        if self.lanes.get(index).is_some_and(|lane| lane.watch.is_recording()) {
            let times = (self.io.now_ns(), self.io.clock_ns());
            self.follow(index, slot, sqe, times, begun);
        }
    }

    /// Requests a command's data, or waits for a buffer first.
    fn request_data(&mut self, index: u32, slot: Slot, sqe: &Sqe, length: u32) {
        let Some(lane) = self.lanes.get_mut(index) else { return };
        let owner = Owner::Lane { index, generation: lane.id.generation, slot };
        let buffer = IoExecutor { commands: self.commands, io: self.io }.take_room(owner, sqe, length);
        let ticket = self.commands.running.insert(Running::new(owner, *sqe, None, Step::Between));
        lane.queue.set_context(slot, Some(ticket));
        match buffer {
            Some(buffer) => {
                self.commands.receive(ticket, &buffer, self.io.now_ns());
                lane.queue.request_data(slot, Intake::Buffer(buffer), length);
                lane.await_data(self.io, self.timeouts);
            }
            None => {
                self.commands.line_up(ticket, Step::AwaitingRoom(length));
                lane.set_in_line(true);
            }
        }
    }

    /// Queues a command behind those of its lane that wait for buffers, if there are any and the command brings no
    /// data. Returns whether it did. A Batch Collect or Store Data takes no buffer, and its Submit, which may bring data,
    /// must find it waiting.
    #[cold]
    fn lines_up(&mut self, index: u32, slot: Slot, sqe: &Sqe, data: &[u8]) -> bool {
        let Some(lane) = self.lanes.get_mut(index) else { return false };
        let waits_for_submit =
            [KvOpcode::BATCH_COLLECT, KvOpcode::STORE_DATA].contains(&KvOpcode::from_raw(sqe.opcode));
        if !data.is_empty() || waits_for_submit || !self.commands.quota.holds_back(index) {
            return false;
        }
        let owner = Owner::Lane { index, generation: lane.id.generation, slot };
        let ticket = self.commands.enlist(owner, sqe);
        lane.queue.set_context(slot, Some(ticket));
        if let Some(record) = lane.watch.record() {
            record.note_wait(slot);
        }
        true
    }

    /// No command of a lane waits for buffers any more, or its fused commands are complete: decides again in which
    /// order its commands start.
    pub(super) fn settle(&mut self, index: u32) {
        let holds_back = self.commands.quota.holds_back(index);
        if let Some(lane) = self.lanes.get_mut(index) {
            lane.set_in_line(holds_back);
        }
    }

    /// A command that is not a plain I/O command: for the control plane, or one of a fused pair.
    #[cold]
    #[inline(never)]
    pub(super) fn on_rare_command(&mut self, index: u32, slot: Slot, sqe: &Sqe, data: Box<[u8]>) -> After {
        self.post_superseded(index);
        let Some((lane, lists)) = self.lanes.entry(index) else { return After::Nothing };
        if lane.state.io_queue().is_some() && sqe.opcode != AdminOpcode::FABRICS.raw() {
            return self.on_fused_command(index, slot, sqe, data);
        }
        let is_connect = sqe.opcode == AdminOpcode::FABRICS.raw() && sqe.fctype() == FabricsType::CONNECT;
        let refusal = match &mut lane.state {
            LaneState::Unconnected { refused_count } if !is_connect => {
                *refused_count += 1;
                Some(Status::COMMAND_SEQUENCE_ERROR.with_dnr())
            }
            LaneState::Authenticating { .. } if !is_authentication(sqe) => {
                Some(Status::AUTHENTICATION_REQUIRED.with_dnr())
            }
            // No command may follow a Connect before its answer, and no second Connect ever.
            LaneState::Connecting { .. } => Some(Status::COMMAND_SEQUENCE_ERROR.with_dnr()),
            LaneState::Admin { .. } | LaneState::Io(_) if is_connect => {
                Some(Status::COMMAND_SEQUENCE_ERROR.with_dnr())
            }
            _ => check_form(sqe).err(),
        };
        if let Some(status) = refusal {
            count(lane, lists, slot, sqe, status);
            lane.queue.complete(slot, status, 0);
            if matches!(lane.state, LaneState::Unconnected { refused_count: UNCONNECTED_COMMAND_COUNT_MAX.. })
            {
                lane.end.get_or_insert(LaneEnd::Target(reason::DOES_NOT_CONNECT));
                lane.complain(self.io, reason::DOES_NOT_CONNECT, None);
                return After::Close;
            }
            return After::Nothing;
        }
        match control_data(sqe, &data) {
            Ok(None) if sqe.opcode == AdminOpcode::GET_LBA_STATUS.raw() && lane.state.reached().is_some() => {
                return self.begin_lba_status(index, slot, *sqe);
            }
            Ok(None) => return self.post_to_control(index, slot, sqe, data),
            Ok(Some(length)) => self.request_data(index, slot, sqe, length),
            Err(status) => {
                count(lane, lists, slot, sqe, status);
                lane.queue.complete(slot, status, 0);
            }
        }
        After::Nothing
    }

    /// The one admin command about the content of a namespace is executed as an I/O command of this reactor. wire §14.1
    fn begin_lba_status(&mut self, index: u32, slot: Slot, mut sqe: Sqe) -> After {
        // Reserved on admin queues.
        sqe.cdw14.set(0);
        let Some(caller) = self.caller(index, slot) else { return After::Nothing };
        let begun = self.executor().begin(&caller, &sqe, &[]);
        self.on_begun(index, slot, &sqe, begun)
    }

    /// Reports the event requests that a host has completed by reusing their command ids, before the commands that use
    /// the ids now.
    pub(super) fn post_superseded(&mut self, index: u32) {
        let Some(lane) = self.lanes.get_mut(index) else { return };
        while let Some(slot) = lane.queue.next_superseded() {
            let kind = RequestKind::Superseded { slot };
            self.io.post(0, Message::Control(ControlMessage::Request(Request { lane: lane.id, kind })));
        }
    }

    fn post_to_control(&mut self, index: u32, slot: Slot, sqe: &Sqe, data: Box<[u8]>) -> After {
        let now_ns = self.io.now_ns();
        let Some((lane, lists)) = self.lanes.entry(index) else { return After::Nothing };
        let is_connect = matches!(lane.state, LaneState::Unconnected { .. });
        // Several Connects may have asked for their data before the first one had it: only that one is executed.
        if !is_connect && sqe.opcode == AdminOpcode::FABRICS.raw() && sqe.fctype() == FabricsType::CONNECT {
            let status = Status::COMMAND_SEQUENCE_ERROR.with_dnr();
            count(lane, lists, slot, sqe, status);
            lane.queue.complete(slot, status, 0);
            return After::Nothing;
        }
        if let Some(detail) =
            lane.transport.stream().filter(|_| is_connect).and_then(|tls| tls_key::refusal(tls, &data))
        {
            lane.complain(self.io, reason::OTHER_IDENTITY, Some(detail));
            let status = Status::CONNECT_INVALID_HOST.with_dnr();
            count(lane, lists, slot, sqe, status);
            lane.queue.complete(slot, status, 0);
            return After::End;
        }
        if is_connect {
            lane.enter(LaneState::Connecting { qid: ConnectCommand::from_sqe(sqe).qid }, now_ns);
            // It may wait for a previous association of its host: it is not closed to make room meanwhile.
            lists.on_connected(lane);
        }
        let channel =
            lane.transport.stream().filter(|_| is_connect).map(tls_key::channel).unwrap_or_default();
        let kind = RequestKind::Command {
            slot,
            sqe: *sqe,
            data,
            peer: lane.peer,
            listener: lane.listener,
            channel,
            local: lane.local,
            tls: lane.transport.stream().filter(|_| is_connect).and_then(tls_key::in_use),
            counters: Arc::clone(&lane.counters),
        };
        let request = Request { lane: lane.id, kind };
        if is_connect {
            return After::Connect(Box::new(request));
        }
        if matches!(lane.state, LaneState::Admin { .. })
            && sqe.opcode == AdminOpcode::ASYNC_EVENT_REQUEST.raw()
        {
            lane.queue.await_event(slot);
        }
        self.io.post(0, Message::Control(ControlMessage::Request(request)));
        After::Nothing
    }

    /// Ends the fused pair that waits for its second command, after a command that was refused or that is not part of
    /// the pair: the second command of a later pair must not complete it.
    pub(super) fn break_pair(&mut self, index: u32) {
        let pairs = self.lanes.get_mut(index).and_then(|lane| lane.state.pairs());
        let verdict = pairs.and_then(Pairs::on_other);
        self.on_verdict(index, verdict);
    }

    /// An I/O command on a lane with fused commands under way, or a fused one itself.
    fn on_fused_command(&mut self, index: u32, slot: Slot, sqe: &Sqe, data: Box<[u8]>) -> After {
        let Some((caller, fuse)) = self.caller(index, slot).map(|caller| (caller, sqe.flags.fuse())) else {
            return After::Nothing;
        };
        let now_ns = self.io.now_ns();
        if let Some(lane) = self.lanes.get_mut(index).filter(|lane| lane.watch.is_recording()) {
            let cid = lane.queue.cid(slot);
            lane.watch.record().into_iter().for_each(|record| record.begin(slot, cid, sqe, now_ns, now_ns));
        }
        if fuse != Fuse::FIRST && fuse != Fuse::SECOND {
            self.break_pair(index);
            if self.lines_up(index, slot, sqe, &data) {
                return After::Nothing;
            }
            let begun = self.executor().begin(&caller, sqe, &data);
            if self.lanes.get(index).is_some_and(|lane| lane.watch.is_recording()) {
                self.follow(index, slot, sqe, (now_ns, now_ns), &begun);
            }
            return self.on_begun(index, slot, sqe, begun);
        }
        if fuse == Fuse::FIRST {
            self.break_pair(index);
        }
        let needed = self.fused().check(caller, sqe).and_then(|length| match sqe.dptr.classify() {
            DataPointer::InCapsule { length: given, .. } if given >= length => Ok(None),
            DataPointer::Transport { length: given } if given >= length => Ok(Some(length)),
            DataPointer::Other { .. } => Err(Status::SGL_TYPE_INVALID.with_dnr()),
            _ => Err(Status::DATA_SGL_LENGTH_INVALID.with_dnr()),
        });
        let supply = match needed {
            Ok(None) => Ok(Some(Supply::Heap(data))),
            Ok(Some(length)) => {
                self.request_data(index, slot, sqe, length);
                Ok(None)
            }
            Err(status) => {
                let Some((lane, lists)) = self.lanes.entry(index) else { return After::Nothing };
                count(lane, lists, slot, sqe, status);
                lane.queue.complete(slot, status, 0);
                Err(())
            }
        };
        let Some(lane) = self.lanes.get_mut(index) else { return After::Nothing };
        let LaneState::Io(io_queue) = &mut lane.state else { return After::Nothing };
        let pairs = io_queue.fused();
        let verdict = match fuse {
            Fuse::FIRST => {
                pairs.on_first(slot, sqe, supply);
                None
            }
            _ => pairs.on_second(slot, sqe, supply),
        };
        self.on_verdict(index, verdict);
        After::Nothing
    }

    /// Acts on a verdict about fused commands, and on all that follows from it.
    fn on_verdict(&mut self, index: u32, first: Option<Verdict>) {
        let mut next = first;
        while let Some(verdict) = next {
            match verdict {
                Verdict::Complete(slot, status) => {
                    let Some(lane) = self.lanes.get_mut(index) else { return };
                    if let Some(ticket) = *lane.queue.context(slot) {
                        self.commands.abort(ticket);
                    }
                    lane.counters.failed_count.add(1);
                    lane.watch.forget(slot);
                    lane.queue.complete(slot, status, 0);
                }
                Verdict::Execute { first, second } => {
                    let Some(caller) = self.caller(index, first.0) else { return };
                    let Some(lane) = self.lanes.get(index) else { return };
                    let lane = (index, lane.id.generation);
                    self.fused().begin(caller, lane, first, second);
                }
            }
            next = self.lanes.get_mut(index).and_then(|lane| lane.state.pairs()?.next_verdict());
        }
        if let Some(lane) = self.lanes.get_mut(index)
            && let LaneState::Io(io_queue) = &mut lane.state
            && matches!(&io_queue.order, Order::Fused(pairs) if pairs.is_empty())
        {
            io_queue.order = Order::Arrival;
            self.settle(index);
        }
    }

    /// Requested data has arrived.
    pub(super) fn on_data_received(&mut self, index: u32, slot: Slot, is_intact: bool) -> After {
        let Some(lane) = self.lanes.get_mut(index) else { return After::Nothing };
        if !is_intact {
            lane.complain(self.io, reason::DATA_DIGEST, None);
        }
        let ticket = lane.queue.context(slot).expect("a command that receives is running");
        let buffer = match lane.queue.take_buffer(slot) {
            Intake::Buffer(buffer) => buffer,
            Intake::Chunk(chunk) => {
                self.on_part_received(index, slot, ticket, is_intact, chunk);
                return After::Nothing;
            }
        };
        let sqe = self.commands.running.get_mut(ticket).expect("it runs until it is completed").sqe;
        let Some(lane) = self.lanes.get_mut(index) else { return After::Nothing };
        if let Some(pairs) = lane.state.pairs() {
            match pairs.on_data(slot, buffer, is_intact) {
                Ok(()) => {
                    self.commands.running.remove(ticket);
                    lane.queue.set_context(slot, None);
                    if !is_intact {
                        lane.queue.complete(slot, Status::TRANSIENT_TRANSPORT_ERROR, 0);
                    }
                    let verdict = lane.state.pairs().and_then(Pairs::next_verdict);
                    self.on_verdict(index, verdict);
                    return After::Nothing;
                }
                Err(buffer) => return self.begin_received(index, slot, &sqe, ticket, is_intact, buffer),
            }
        }
        self.begin_received(index, slot, &sqe, ticket, is_intact, buffer)
    }

    /// A part of a value has arrived, and perhaps the one behind it before.
    #[cold]
    fn on_part_received(&mut self, index: u32, slot: Slot, ticket: Ticket, is_intact: bool, first: Chunk) {
        if is_intact {
            let mut arrived = Some(first);
            while let Some(chunk) = arrived {
                let mut values = ArrivingValues { commands: self.commands, io: self.io };
                let next = values.on_part(ticket, chunk);
                let awaits = values.awaits(ticket);
                let Some(lane) = self.lanes.get_mut(index) else { return };
                if awaits.is_some() {
                    lane.await_data(self.io, self.timeouts);
                }
                if let Some((intake, part)) = next {
                    lane.request_part(slot, intake, part);
                }
                lane.expects_part |= awaits == Some(Awaits::Part);
                arrived = match lane.queue.has_data(slot).then(|| lane.queue.take_buffer(slot)) {
                    Some(Intake::Chunk(chunk)) => Some(chunk),
                    _ => None,
                };
            }
            return;
        }
        let sqe = self.commands.running.get_mut(ticket).expect("it runs until it is completed").sqe;
        self.commands.abort(ticket);
        let Some((lane, lists)) = self.lanes.entry(index) else { return };
        lane.watch.forget(slot);
        // The framing is still good, so only the command fails. wire §3
        let status = Status::TRANSIENT_TRANSPORT_ERROR;
        count(lane, lists, slot, &sqe, status);
        lane.queue.complete(slot, status, 0);
    }

    /// All data of a command has arrived: begins the command.
    fn begin_received(
        &mut self,
        index: u32,
        slot: Slot,
        sqe: &Sqe,
        ticket: Ticket,
        is_intact: bool,
        buffer: Buffer,
    ) -> After {
        let Some((lane, lists)) = self.lanes.entry(index) else { return After::Nothing };
        lane.queue.set_context(slot, None);
        let is_followed = lane.watch.follows_data(slot);
        if !is_intact {
            lane.watch.forget(slot);
            // The framing is still good, so only the command fails. wire §3
            self.commands.running.remove(ticket);
            let status = Status::TRANSIENT_TRANSPORT_ERROR;
            count(lane, lists, slot, sqe, status);
            lane.queue.complete(slot, status, 0);
            return After::Nothing;
        }
        if lane.state.io_queue().is_none() || sqe.opcode == AdminOpcode::FABRICS.raw() {
            self.commands.running.remove(ticket);
            return self.post_to_control(index, slot, sqe, buffer.to_vec().into());
        }
        let Some(caller) = self.caller(index, slot) else { return After::Nothing };
        let now_ns = self.io.now_ns();
        let followed_ns = is_followed.then(|| self.io.clock_ns());
        let begun = self.executor().resume(&caller, sqe, buffer, ticket);
        if let Some(begun_ns) = followed_ns {
            self.follow(index, slot, sqe, (now_ns, begun_ns), &begun);
        }
        if !matches!(begun, Begun::Started { .. }) {
            self.commands.running.remove(ticket);
        }
        self.on_begun(index, slot, sqe, begun)
    }

    /// The caller of a command of a lane; `None` if the lane is closing.
    fn caller(&mut self, index: u32, slot: Slot) -> Option<Caller> {
        let lane = self.lanes.get(index)?;
        let owner = Owner::Lane { index, generation: lane.id.generation, slot };
        Some(Caller { owner, view: lane.state.reached()?, needs_stable_copy: lane.needs_stable_copy() })
    }

    /// A command that did not complete at once has completed.
    pub(super) fn on_ended(&mut self, ended: Ended) -> After {
        let (index, generation, slot) = match ended.owner {
            Owner::Lane { index, generation, slot } => (index, generation, slot),
            Owner::Pair { index, generation, first, .. } => (index, generation, first),
            Owner::Control(asked_by) => {
                self.io.post(0, Message::Control(ControlMessage::Flushed { asked_by }));
                return After::Nothing;
            }
            Owner::Parent(_) => unreachable!("parts end within their command"),
        };
        let entry = self.lanes.entry(index).filter(|(lane, _)| lane.id.generation == generation);
        let Some((lane, lists)) = entry else { return After::Nothing };
        if let Some(closing) = lane.state.closing() {
            closing.in_flight = closing.in_flight.saturating_sub(1);
            return After::Remove;
        }
        if let Some((intake, part)) = ended.room {
            lane.request_part(slot, intake, part);
            lane.await_data(self.io, self.timeouts);
            lists.mark_dirty(lane);
            return After::Nothing;
        }
        if let Some(payload) = &ended.data
            && self.commands.throttle.is_used()
        {
            self.commands.debit_late(lane.view(), &ended.sqe, payload);
        }
        if let Some(traffic) = self.commands.namespaces.traffic_of(lane.view(), ended.sqe.nsid()) {
            // The second half of a pair is the Write.
            let status = ended.second.unwrap_or(ended.status);
            match &ended.data {
                _ if ended.is_counted && status.is_success() => {}
                Some(_) if ended.sqe.opcode == NvmOpcode::GET_LBA_STATUS.raw() => {}
                Some((_, length)) => traffic.on_read((*length).into()),
                // Store has the opcode of Write.
                None if status.is_success()
                    && [NvmOpcode::WRITE.raw(), KvOpcode::STORE_DATA.raw()].contains(&ended.sqe.opcode) =>
                {
                    traffic.on_written(ended.sqe.dptr.length.get().into());
                }
                None if [status, ended.status].iter().any(|status| status.kind() == StatusKind::Media) => {
                    traffic.on_media_error();
                }
                None => {}
            }
        }
        if let (Owner::Pair { second, .. }, Some(status)) = (ended.owner, ended.second) {
            let compare = Sqe { opcode: NvmOpcode::COMPARE.raw(), ..ended.sqe };
            count(lane, lists, slot, &compare, ended.status);
            lane.queue.complete(slot, ended.status, 0);
            count(lane, lists, second, &ended.sqe, status);
            lane.queue.complete(second, status, 0);
            record_later(lane, self.io, slot, ended.status);
            record_later(lane, self.io, second, status);
        } else {
            if lane.watch.follows_backend(slot) {
                on_followed_end(lane, self.io, slot, &ended);
            }
            match ended.data {
                Some((payload, length))
                    if lane.needs_stable_copy() && digested::takes_long(&payload, length) =>
                {
                    self.digest_first(index, slot, &ended.sqe, payload, length, ended.result);
                    return After::Nothing;
                }
                Some((payload, length)) => {
                    lane.counters.read_count.add(1);
                    lane.counters.read_bytes.add(length.into());
                    lane.queue.complete_with_data(slot, payload, length, ended.result, payload_digest);
                }
                None => {
                    count(lane, lists, slot, &ended.sqe, ended.status);
                    lane.queue.complete(slot, ended.status, ended.result);
                }
            }
        }
        if let Some((lane, lists)) = self.lanes.entry(index) {
            lists.mark_dirty(lane);
        }
        After::Nothing
    }

    /// Aborts a command of a lane unless it has started to run. wire §18
    pub(super) fn on_abort(&mut self, id: LaneId, cid: u16, asked_by: CommandId) {
        let is_aborted = self.abort(id, cid);
        self.io.post(0, Message::Control(ControlMessage::Aborted { asked_by, is_aborted }));
    }

    fn abort(&mut self, id: LaneId, cid: u16) -> bool {
        let entry = self.lanes.entry(id.index).filter(|(lane, _)| lane.id == id);
        let Some((lane, lists)) = entry else { return false };
        let Some(slot) = lane.queue.find(cid) else { return false };
        let Some(ticket) = *lane.queue.context(slot) else { return false };
        // Halves of fused pairs complete together or not at all.
        let is_half = lane.state.pairs().is_some_and(|pairs| pairs.has(slot));
        if is_half || !self.commands.abort(ticket) {
            return false;
        }
        record_later(lane, self.io, slot, Status::ABORT_REQUESTED);
        lane.watch.forget(slot);
        lane.queue.complete(slot, Status::ABORT_REQUESTED, 0);
        lists.mark_dirty(lane);
        true
    }
}

/// Records how a command has begun.
fn record<I: Io<Message>>(
    lane: &mut Lane,
    io: &I,
    (slot, sqe): (Slot, &Sqe),
    (arrived_ns, begun_ns): (u64, u64),
    begun: &Begun,
    is_throttled: bool,
) {
    let cid = lane.queue.cid(slot);
    let is_digested =
        |payload: &Payload, length| lane.needs_stable_copy() && digested::takes_long(payload, length);
    let end = match begun {
        Begun::Complete(status, _) => Some(*status),
        Begun::Value(payload, length, _) if is_digested(payload, *length) => None,
        Begun::Data(..) | Begun::Value(..) => Some(Status::SUCCESS),
        Begun::RequestData(_) | Begun::Started { .. } => None,
    };
    let Some(record) = lane.watch.record() else { return };
    if !record.go_on(slot, cid, arrived_ns, begun_ns) {
        record.begin(slot, cid, sqe, arrived_ns, begun_ns);
    }
    match begun {
        _ if is_throttled => record.await_limit(slot),
        Begun::RequestData(_) => record.await_data(slot),
        Begun::Started { hold: Hold::Line | Hold::Capsule, .. } => record.note_wait(slot),
        _ => {}
    }
    if let Some(status) = end {
        record.end_now(slot, status, || io.clock_ns());
    }
}

/// Records that a command which was under way ends in this turn.
fn record_later<I: Io<Message>>(lane: &mut Lane, io: &I, slot: Slot, status: Status) {
    if let Some(record) = lane.watch.record() {
        record.end_later(slot, status, io.now_ns(), || io.clock_ns());
    }
}

/// A command that the stopwatch follows has ended.
#[cold]
fn on_followed_end<I: Io<Message>>(lane: &mut Lane, io: &I, slot: Slot, ended: &Ended) {
    if !lane.watch.is_recording() {
        return lane.watch.on_done(&lane.counters.phases, io.clock_ns());
    }
    // Digests of a long value are still to be computed.
    let is_digested = ended
        .data
        .as_ref()
        .is_some_and(|(payload, length)| lane.needs_stable_copy() && digested::takes_long(payload, *length));
    if !is_digested {
        record_later(lane, io, slot, ended.status);
    }
}

/// Whether a command is an Authentication Send or Receive.
fn is_authentication(sqe: &Sqe) -> bool {
    let is_of_kind = [FabricsType::AUTHENTICATION_SEND, FabricsType::AUTHENTICATION_RECEIVE];
    sqe.opcode == AdminOpcode::FABRICS.raw() && is_of_kind.contains(&sqe.fctype())
}

/// Length of the data to request for a command of the control plane; `None` if there is none to request.
fn control_data(sqe: &Sqe, data: &[u8]) -> Result<Option<u32>, Status> {
    let direction = sqe.data_direction();
    let brings_data = matches!(direction, DataDirection::HostToController | DataDirection::Both);
    match sqe.dptr.classify() {
        // The descriptor of a command that moves no data is not judged. wire §5.3
        _ if direction == DataDirection::None && data.is_empty() => Ok(None),
        DataPointer::InCapsule { length, .. } if brings_data || length == 0 => {
            debug_assert_eq!(data.len(), length as usize);
            Ok(None)
        }
        DataPointer::InCapsule { .. } => Err(Status::INVALID_FIELD.with_dnr()),
        DataPointer::Transport { length } if brings_data && length > 0 => {
            if length > CONTROL_DATA_BYTES_MAX {
                return Err(Status::DATA_SGL_LENGTH_INVALID.with_dnr());
            }
            Ok(Some(length))
        }
        // Of no bytes it may be of any kind: some commands of an opcode with data have none.
        DataPointer::Other { .. } if sqe.dptr.length.get() > 0 => Err(Status::SGL_TYPE_INVALID.with_dnr()),
        DataPointer::Transport { .. } | DataPointer::Other { .. } => Ok(None),
    }
}

/// Counts a command that completed without data for the host.
fn count(lane: &mut Lane, lists: &mut LaneLists, slot: Slot, sqe: &Sqe, status: Status) {
    let is_io = lane.state.io_queue().is_some();
    if status.is_success() {
        if is_io && (sqe.opcode == NvmOpcode::WRITE.raw() || sqe.opcode == KvOpcode::STORE_DATA.raw()) {
            lane.counters.write_count.add(1);
            lane.counters.written_bytes.add(sqe.dptr.length.get().into());
        } else {
            lane.counters.other_count.add(1);
        }
        return;
    }
    if status.kind() == StatusKind::Media {
        lane.counters.media_error_count.add(1);
    }
    let lba = if is_io { BlockCommand::from_sqe(sqe).slba } else { 0 };
    let failure =
        Failure { qid: lane.state.qid(), cid: lane.queue.cid(slot), status, nsid: sqe.nsid().get(), lba };
    lists.fail(lane, failure);
}
