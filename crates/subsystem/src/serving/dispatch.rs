//! The commands of a reactor's lanes: which go where, and their ends.

use std::sync::Arc;

use proto::Slot;
use reactor::{Buffer, Chunk, Io, Payload};
use store::Ticket;
use wire::fabrics::ConnectCommand;
use wire::nvm::BlockCommand;
use wire::opcode::{AdminOpcode, DataDirection, FabricsType, NvmOpcode};
use wire::sgl::DataPointer;
use wire::sqe::{Fuse, Psdt, Sqe};
use wire::status::{Status, StatusKind};
use wire::text::quoted;

use super::{Serving, caller_of};
use crate::admission::reason;
use crate::commands::{Begun, Caller, Ended, Hold};
use crate::fused::{Pairs, Verdict};
use crate::key_value::arriving::Intake;
use crate::key_value::digest;
use crate::lane::{Lane, LaneState, Order, Wait, payload_digest};
use crate::lane_id::{CommandId, LaneId};
use crate::lane_table::LaneLists;
use crate::message::{Answer, ControlMessage, Failure, Message, Request, RequestKind};
use crate::running::{Owner, Running, Step, Supply};
use crate::stopwatch::Stage;
use crate::subsystem::SubsystemId;

/// Data that admin and Fabrics commands may bring, bytes.
const CONTROL_DATA_BYTES_MAX: u32 = 8192;

/// Commands other than Connect that a connection may try before it is closed.
const UNCONNECTED_COMMAND_COUNT_MAX: u8 = 8;

impl Serving {
    /// What follows from the beginning of an I/O command.
    #[inline]
    pub(super) fn on_begun(
        &mut self,
        io: &mut impl Io<Message>,
        index: u32,
        slot: Slot,
        sqe: &Sqe,
        begun: Begun,
    ) {
        let Some((lane, lists)) = self.lanes.entry(index) else { return };
        match begun {
            Begun::Data(payload, length) => {
                lane.counters.read_count.add(1);
                lane.counters.read_bytes.add(length.into());
                lane.queue.complete_with_data(slot, payload, length, 0, payload_digest);
                if lane.is_full() {
                    self.on_full(io, index);
                }
            }
            Begun::Value(payload, length, result) => {
                if lane.needs_stable_copy() && digest::takes_long(&payload, length) {
                    return self.digest_first(index, slot, sqe, payload, length, result);
                }
                lane.counters.read_count.add(1);
                lane.counters.read_bytes.add(length.into());
                lane.queue.complete_with_data(slot, payload, length, result, payload_digest);
                if lane.is_full() {
                    self.on_full_of_values(io, index);
                }
            }
            Begun::Complete(status, result) => {
                count(lane, lists, slot, sqe, status);
                lane.queue.complete(slot, status, result);
                let (is_full, subsystem) = (lane.is_full(), lane.subsystem());
                if status.kind() == StatusKind::Media {
                    self.on_media_error(subsystem, sqe);
                }
                if is_full {
                    self.on_full(io, index);
                }
            }
            Begun::RequestData(length) => self.request_data(io, index, slot, sqe, length),
            Begun::Started { ticket, hold } => {
                lane.queue.set_context(slot, Some(ticket));
                match hold {
                    Hold::None => {}
                    Hold::Line => lane.set_in_line(true),
                    Hold::Capsule => {
                        lists.hold(lane, ticket);
                        if let Some(socket) = lane.socket() {
                            io.pause(socket);
                        }
                    }
                }
            }
        }
    }

    #[cold]
    fn on_media_error(&mut self, subsystem: Option<SubsystemId>, sqe: &Sqe) {
        if let Some(traffic) = self.commands.namespaces.traffic_of(subsystem, sqe.nsid()) {
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
        let ticket = self.commands.digest_first((owner, sqe), payload, length, result, pdu_bytes);
        lane.queue.set_context(slot, Some(ticket));
    }

    /// Computes digests of the long value whose turn it is, and sends it when they are known.
    #[cold]
    pub(super) fn digest(&mut self, io: &mut impl Io<Message>) {
        let Some((running, digested)) = self.commands.digest_next() else { return };
        let Owner::Lane { index, generation, slot } = running.owner else { return };
        let entry = self.lanes.entry(index).filter(|(lane, _)| lane.id.generation == generation);
        let Some((lane, lists)) = entry else { return };
        let (length, result) = (digested.length, digested.result);
        lane.counters.read_count.add(1);
        lane.counters.read_bytes.add(length.into());
        let (payload, digest) = digested.into_parts();
        lane.queue.complete_with_data(slot, payload, length, result, digest);
        lists.mark_dirty(lane);
        if lane.is_full() {
            self.on_full_of_values(io, index);
        }
    }

    /// Notes how the command that the lane's stopwatch follows has begun.
    #[cold]
    #[inline(never)]
    pub(super) fn follow(
        &mut self,
        io: &mut impl Io<Message>,
        index: u32,
        slot: Slot,
        begun_ns: u64,
        begun: &Begun,
    ) {
        let Some(lane) = self.lanes.get_mut(index) else { return };
        let times = &lane.counters.phases;
        match begun {
            Begun::RequestData(_) => lane.watch.await_data(slot),
            Begun::Started { .. } => lane.watch.begin(times, slot, io.now_ns(), begun_ns),
            Begun::Complete(..) | Begun::Data(..) | Begun::Value(..) => {
                lane.watch.begin(times, slot, io.now_ns(), begun_ns);
                lane.watch.on_done(times, io.clock_ns());
            }
        }
    }

    /// Asks for a command's data, or waits for a buffer to ask for it.
    pub(super) fn request_data(
        &mut self,
        io: &mut impl Io<Message>,
        index: u32,
        slot: Slot,
        sqe: &Sqe,
        length: u32,
    ) {
        let Some(lane) = self.lanes.get_mut(index) else { return };
        let owner = Owner::Lane { index, generation: lane.id.generation, slot };
        let buffer = self.commands.take_room(io.pool(), owner, sqe, length);
        let ticket = self.commands.running.insert(Running::new(owner, *sqe, None, Step::Between));
        lane.queue.set_context(slot, Some(ticket));
        match buffer {
            Some(buffer) => {
                self.commands.receive(ticket, &buffer, io.now_ns());
                lane.queue.request_data(slot, Intake::Buffer(buffer), length);
                self.await_data(io, index);
            }
            None => {
                self.commands.line_up(ticket, Step::AwaitingRoom(length));
                lane.set_in_line(true);
            }
        }
    }

    /// A lane's peer owes data from now on: it has a deadline.
    fn await_data(&mut self, io: &mut impl Io<Message>, index: u32) {
        let now_ns = io.now_ns();
        let Some(lane) = self.lanes.get_mut(index) else { return };
        if lane.deadlines.start_once(Wait::Data, now_ns) {
            self.set_lane_timer(io, index);
        }
    }

    /// Puts a command behind those of its lane that wait, if there are any and it brings no data. Says whether it did.
    #[cold]
    pub(super) fn lines_up(&mut self, index: u32, slot: Slot, sqe: &Sqe, data: &[u8]) -> bool {
        let Some(lane) = self.lanes.get_mut(index) else { return false };
        if !data.is_empty() || !self.commands.shares.holds_back(index) {
            return false;
        }
        let owner = Owner::Lane { index, generation: lane.id.generation, slot };
        let ticket = self.commands.enlist(owner, sqe);
        lane.queue.set_context(slot, Some(ticket));
        true
    }

    /// A lane's line for buffers has become empty, or its fused commands are complete: decides anew in which order its commands start.
    pub(super) fn settle(&mut self, index: u32) {
        let holds_back = self.commands.shares.holds_back(index);
        if let Some(lane) = self.lanes.get_mut(index) {
            lane.set_in_line(holds_back);
        }
    }

    /// A command that is not a plain I/O command: for the control plane, or one of a fused pair.
    #[cold]
    #[inline(never)]
    pub(super) fn on_rare_command(
        &mut self,
        io: &mut impl Io<Message>,
        index: u32,
        slot: Slot,
        sqe: &Sqe,
        data: Box<[u8]>,
    ) {
        self.post_superseded(io, index);
        let Some((lane, lists)) = self.lanes.entry(index) else { return };
        if lane.state.io_queue().is_some() && sqe.opcode != AdminOpcode::FABRICS.raw() {
            return self.on_fused_command(io, index, slot, sqe, data);
        }
        let is_connect = sqe.opcode == AdminOpcode::FABRICS.raw() && sqe.fctype() == FabricsType::CONNECT;
        let refusal = match &mut lane.state {
            LaneState::Unconnected { refused_count } if !is_connect => {
                *refused_count += 1;
                Some(Status::COMMAND_SEQUENCE_ERROR.with_dnr())
            }
            // Nothing may follow a Connect before it is answered, and a second one never.
            LaneState::Connecting { .. } => Some(Status::COMMAND_SEQUENCE_ERROR.with_dnr()),
            LaneState::Admin { .. } | LaneState::Io(_) if is_connect => {
                Some(Status::COMMAND_SEQUENCE_ERROR.with_dnr())
            }
            _ if sqe.flags.psdt() != Psdt::SGL
                || sqe.flags.reserved() != 0
                || sqe.flags.fuse() != Fuse::NONE =>
            {
                Some(Status::INVALID_FIELD.with_dnr())
            }
            _ => None,
        };
        if let Some(status) = refusal {
            count(lane, lists, slot, sqe, status);
            lane.queue.complete(slot, status, 0);
            if matches!(lane.state, LaneState::Unconnected { refused_count: UNCONNECTED_COMMAND_COUNT_MAX.. })
            {
                self.complain(io, index, reason::DOES_NOT_CONNECT);
                self.close(io, index);
            }
            return;
        }
        match control_data(sqe, &data) {
            Ok(None) => self.post_to_control(io, index, slot, sqe, data),
            Ok(Some(length)) => self.request_data(io, index, slot, sqe, length),
            Err(status) => {
                count(lane, lists, slot, sqe, status);
                lane.queue.complete(slot, status, 0);
            }
        }
    }

    /// Tells the control plane which event requests a host has completed by itself, before it hears of the commands that have
    /// their ids now.
    pub(super) fn post_superseded(&mut self, io: &mut impl Io<Message>, index: u32) {
        let Some(lane) = self.lanes.get_mut(index) else { return };
        while let Some(slot) = lane.queue.next_superseded() {
            let kind = RequestKind::Superseded { slot };
            io.post(0, Message::Control(ControlMessage::Request(Request { lane: lane.id, kind })));
        }
    }

    pub(super) fn post_to_control(
        &mut self,
        io: &mut impl Io<Message>,
        index: u32,
        slot: Slot,
        sqe: &Sqe,
        data: Box<[u8]>,
    ) {
        let now_ns = io.now_ns();
        let Some((lane, lists)) = self.lanes.entry(index) else { return };
        let is_connect = matches!(lane.state, LaneState::Unconnected { .. });
        if is_connect {
            lane.enter(LaneState::Connecting { qid: ConnectCommand::from_sqe(sqe).qid }, now_ns);
            // It may have to wait for an older association of its host: it is not closed for others meanwhile.
            lists.on_connected(lane);
        }
        let kind = RequestKind::Command {
            slot,
            sqe: *sqe,
            data,
            peer: lane.peer,
            listener: lane.listener,
            local: lane.local,
            counters: Arc::clone(&lane.counters),
        };
        let request = Request { lane: lane.id, kind };
        if is_connect {
            return self.post_connect(io, index, request);
        }
        if matches!(lane.state, LaneState::Admin { .. })
            && sqe.opcode == AdminOpcode::ASYNC_EVENT_REQUEST.raw()
        {
            lane.queue.await_event(slot);
        }
        io.post(0, Message::Control(ControlMessage::Request(request)));
    }

    /// An I/O command on a lane with fused commands under way, or a fused one itself.
    pub(super) fn on_fused_command(
        &mut self,
        io: &mut impl Io<Message>,
        index: u32,
        slot: Slot,
        sqe: &Sqe,
        data: Box<[u8]>,
    ) {
        let Some((caller, fuse)) = self.caller(index, slot).map(|caller| (caller, sqe.flags.fuse())) else {
            return;
        };
        if fuse != Fuse::FIRST && fuse != Fuse::SECOND {
            let Some(lane) = self.lanes.get_mut(index) else { return };
            let verdict = lane.state.pairs().and_then(Pairs::on_other);
            self.on_verdict(io, index, verdict);
            if self.lines_up(index, slot, sqe, &data) {
                return;
            }
            let begun = self.commands.begin(io, &caller, sqe, &data);
            return self.on_begun(io, index, slot, sqe, begun);
        }
        if fuse == Fuse::FIRST {
            let Some(lane) = self.lanes.get_mut(index) else { return };
            let verdict = lane.state.pairs().and_then(Pairs::on_other);
            self.on_verdict(io, index, verdict);
        }
        let needed = self.commands.check_fused(caller, sqe).and_then(|length| match sqe.dptr.classify() {
            DataPointer::InCapsule { length: given, .. } if given >= length => Ok(None),
            DataPointer::Transport { length: given } if given >= length => Ok(Some(length)),
            DataPointer::Other { .. } => Err(Status::SGL_TYPE_INVALID.with_dnr()),
            _ => Err(Status::DATA_SGL_LENGTH_INVALID.with_dnr()),
        });
        let supply = match needed {
            Ok(None) => Ok(Some(Supply::Heap(data))),
            Ok(Some(length)) => {
                self.request_data(io, index, slot, sqe, length);
                Ok(None)
            }
            Err(status) => {
                let Some((lane, lists)) = self.lanes.entry(index) else { return };
                count(lane, lists, slot, sqe, status);
                lane.queue.complete(slot, status, 0);
                Err(())
            }
        };
        let Some(lane) = self.lanes.get_mut(index) else { return };
        let LaneState::Io(io_queue) = &mut lane.state else { return };
        let pairs = io_queue.fused();
        let verdict = match fuse {
            Fuse::FIRST => {
                pairs.on_first(slot, sqe, supply);
                None
            }
            _ => pairs.on_second(slot, sqe, supply),
        };
        self.on_verdict(io, index, verdict);
    }

    /// Carries out what follows for fused commands, and all that follows from that.
    pub(super) fn on_verdict(&mut self, io: &mut impl Io<Message>, index: u32, first: Option<Verdict>) {
        let mut next = first;
        while let Some(verdict) = next {
            match verdict {
                Verdict::Complete(slot, status) => {
                    let Some(lane) = self.lanes.get_mut(index) else { return };
                    if let Some(ticket) = *lane.queue.context(slot) {
                        self.commands.abort(ticket);
                    }
                    lane.counters.failed_count.add(1);
                    lane.queue.complete(slot, status, 0);
                }
                Verdict::Execute { first, second } => {
                    let Some(caller) = self.caller(index, first.0) else { return };
                    let Some(lane) = self.lanes.get(index) else { return };
                    let lane = (index, lane.id.generation);
                    self.commands.begin_pair(io, caller, lane, first, second);
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

    /// Data that was asked for is there.
    pub(super) fn on_data_received(
        &mut self,
        io: &mut impl Io<Message>,
        index: u32,
        slot: Slot,
        is_intact: bool,
    ) {
        if !is_intact {
            self.complain(io, index, reason::DATA_DIGEST);
        }
        let Some(lane) = self.lanes.get_mut(index) else { return };
        let ticket = lane.queue.context(slot).expect("a command that receives is running");
        let buffer = match lane.queue.take_buffer(slot) {
            Intake::Buffer(buffer) => buffer,
            Intake::Chunk(chunk) => return self.on_part_received(io, index, slot, ticket, is_intact, chunk),
        };
        let sqe = self.commands.running.get_mut(ticket).expect("it runs until it is completed").sqe;
        let Some(lane) = self.lanes.get_mut(index) else { return };
        if let Some(pairs) = lane.state.pairs() {
            match pairs.on_data(slot, buffer, is_intact) {
                Ok(()) => {
                    self.commands.running.remove(ticket);
                    lane.queue.set_context(slot, None);
                    if !is_intact {
                        lane.queue.complete(slot, Status::TRANSIENT_TRANSPORT_ERROR, 0);
                    }
                    let verdict = lane.state.pairs().and_then(Pairs::next_verdict);
                    return self.on_verdict(io, index, verdict);
                }
                Err(buffer) => return self.begin_received(io, index, slot, &sqe, ticket, is_intact, buffer),
            }
        }
        self.begin_received(io, index, slot, &sqe, ticket, is_intact, buffer);
    }

    /// A part of a value is there.
    #[cold]
    fn on_part_received(
        &mut self,
        io: &mut impl Io<Message>,
        index: u32,
        slot: Slot,
        ticket: Ticket,
        is_intact: bool,
        chunk: Chunk,
    ) {
        if is_intact {
            let next = self.commands.on_part_arrived(io, ticket, chunk);
            if let (Some((intake, part)), Some(lane)) = (next, self.lanes.get_mut(index)) {
                lane.queue.request_part(slot, intake, part);
                self.await_data(io, index);
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

    #[allow(clippy::too_many_arguments)] // One call, kept apart only for its two callers.
    pub(super) fn begin_received(
        &mut self,
        io: &mut impl Io<Message>,
        index: u32,
        slot: Slot,
        sqe: &Sqe,
        ticket: Ticket,
        is_intact: bool,
        buffer: Buffer,
    ) {
        let Some((lane, lists)) = self.lanes.entry(index) else { return };
        lane.queue.set_context(slot, None);
        let is_followed = lane.watch.stage() == Stage::Data(slot);
        if !is_intact {
            lane.watch.forget(slot);
            // The framing is still good, so only the command fails. wire §3
            self.commands.running.remove(ticket);
            let status = Status::TRANSIENT_TRANSPORT_ERROR;
            count(lane, lists, slot, sqe, status);
            return lane.queue.complete(slot, status, 0);
        }
        if lane.state.io_queue().is_none() || sqe.opcode == AdminOpcode::FABRICS.raw() {
            self.commands.running.remove(ticket);
            return self.post_to_control(io, index, slot, sqe, buffer.to_vec().into());
        }
        let Some(caller) = self.caller(index, slot) else { return };
        let supply = Supply::Buffer(buffer);
        let followed_ns = is_followed.then(|| io.clock_ns());
        let begun = self.commands.begin_with(io, &caller, sqe, &[], supply, Some(ticket));
        if let Some(begun_ns) = followed_ns {
            self.follow(io, index, slot, begun_ns, &begun);
        }
        if !matches!(begun, Begun::Started { .. }) {
            self.commands.running.remove(ticket);
        }
        self.on_begun(io, index, slot, sqe, begun);
    }

    /// Who a command of a lane is, for the commands under way.
    pub(super) fn caller(&mut self, index: u32, slot: Slot) -> Option<Caller> {
        let lane = self.lanes.get(index)?;
        let owner = Owner::Lane { index, generation: lane.id.generation, slot };
        Some(Caller { owner, subsystem: lane.subsystem()?, needs_stable_copy: lane.needs_stable_copy() })
    }

    /// A command that did not end at once has ended.
    pub(super) fn on_ended(&mut self, io: &mut impl Io<Message>, ended: Ended) {
        let (index, generation, slot) = match ended.owner {
            Owner::Lane { index, generation, slot } => (index, generation, slot),
            Owner::Pair { index, generation, first, .. } => (index, generation, first),
            Owner::Control(asked_by) => {
                return io.post(0, Message::Control(ControlMessage::Flushed { asked_by }));
            }
            Owner::Parent(_) => unreachable!("parts end within their command"),
        };
        let entry = self.lanes.entry(index).filter(|(lane, _)| lane.id.generation == generation);
        let Some((lane, lists)) = entry else { return };
        if let Some(closing) = lane.state.closing() {
            closing.in_flight = closing.in_flight.saturating_sub(1);
            return self.remove_if_idle(io, index);
        }
        if let Some((intake, part)) = ended.room {
            lane.queue.request_part(slot, intake, part);
            self.await_data(io, index);
        } else if let (Owner::Pair { second, .. }, Some(status)) = (ended.owner, ended.second) {
            count(lane, lists, slot, &ended.sqe, ended.status);
            lane.queue.complete(slot, ended.status, 0);
            count(lane, lists, second, &ended.sqe, status);
            lane.queue.complete(second, status, 0);
        } else {
            if lane.watch.stage() == Stage::Backend(slot) {
                lane.watch.on_done(&lane.counters.phases, io.clock_ns());
            }
            if let Some(traffic) = self.commands.namespaces.traffic_of(lane.subsystem(), ended.sqe.nsid()) {
                match &ended.data {
                    _ if ended.is_counted && ended.status.is_success() => {}
                    Some((_, length)) => traffic.on_read((*length).into()),
                    None if ended.status.is_success() && ended.sqe.opcode == NvmOpcode::WRITE.raw() => {
                        traffic.on_written(ended.sqe.dptr.length.get().into());
                    }
                    None if ended.status.kind() == StatusKind::Media => traffic.on_media_error(),
                    None => {}
                }
            }
            match ended.data {
                Some((payload, length))
                    if lane.needs_stable_copy() && digest::takes_long(&payload, length) =>
                {
                    return self.digest_first(index, slot, &ended.sqe, payload, length, ended.result);
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
    }

    /// Carries on with everything that backends have replied to.
    pub(super) fn drain_commands(&mut self, io: &mut impl Io<Message>) -> bool {
        let mut worked = false;
        loop {
            let replied = self.commands.on_replies(io);
            let mut ended_any = false;
            while let Some(ended) = self.commands.next_ended() {
                self.on_ended(io, ended);
                ended_any = true;
            }
            if !replied && !ended_any {
                return worked;
            }
            worked = true;
        }
    }

    /// Lets commands go on that waited for buffers, and lanes take in what was put aside. Says whether there may be more to do.
    pub(super) fn go_on(&mut self, io: &mut impl Io<Message>) -> bool {
        let mut worked = false;
        if self.commands.has_waiting() {
            let caller = |owner| caller_of(&self.lanes, owner);
            worked = self.commands.retry(io, caller);
            self.drain_commands(io);
            while let Some(index) = self.commands.shares.next_settled() {
                self.settle(index);
            }
            self.watch_pressure(io);
        }
        let mut held = self.lanes.lists.take_held();
        held.retain(|&index| {
            let Some(ticket) =
                self.lanes.get(index).and_then(|lane| lane.held.as_ref()).map(|held| held.ticket)
            else {
                return false;
            };
            let running = self.commands.running.get_mut(ticket);
            if running.is_some_and(|running| matches!(running.step, Step::Waiting(_))) {
                return true;
            }
            self.resume_input(io, index);
            false
        });
        self.lanes.lists.put_back_held(held);
        worked
    }

    /// Takes in the input of a lane that was held back, and receives again unless that is held back as well.
    fn resume_input(&mut self, io: &mut impl Io<Message>, index: u32) {
        let Some(held) = self.lanes.get_mut(index).and_then(|lane| lane.held.take()) else { return };
        self.take_in(io, index, &held.backlog);
        if let Some(lane) = self.lanes.get(index)
            && lane.held.is_none()
            && lane.takes_commands()
            && let Some(socket) = lane.socket()
        {
            io.resume(socket);
        }
    }

    pub(super) fn report_failures(&mut self, io: &mut impl Io<Message>) {
        for index in self.lanes.lists.take_failing() {
            let Some(lane) = self.lanes.get_mut(index) else { continue };
            let kind = RequestKind::Failures(std::mem::take(&mut lane.failures));
            io.post(0, Message::Control(ControlMessage::Request(Request { lane: lane.id, kind })));
        }
    }

    pub(super) fn on_answer(&mut self, io: &mut impl Io<Message>, answer: Answer) {
        let now_ns = io.now_ns();
        let zero_copy = self.settings.zero_copy;
        let id = answer.command.lane;
        let entry = self.lanes.entry(id.index).filter(|(lane, _)| lane.id == id && lane.takes_commands());
        let Some((lane, lists)) = entry else { return };
        let slot = answer.command.slot;
        let (mut connected, mut joined) = (0, None);
        if let LaneState::Connecting { .. } = lane.state {
            match answer.established {
                Some(established) => {
                    tracing::info!(
                        peer = lane.peer.map(tracing::field::display),
                        qid = %established.qid,
                        host = %quoted(&established.host),
                        "lane connected"
                    );
                    connected = u64::from(!established.qid.is_admin());
                    joined = (!established.qid.is_admin()).then(|| Arc::clone(&established.association));
                    lane.establish(established, now_ns);
                    if let Some(socket) = lane.socket() {
                        io.establish(socket);
                    }
                    if joined.is_some() {
                        lane.set_zero_copy(io, zero_copy);
                    }
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
        if joined.is_some() {
            self.commands.set_association(id.index, joined);
        }
        self.io_lanes_ever += connected;
        self.set_lane_timer(io, id.index);
        if is_refused {
            self.count_unconnected(io, id.index);
        }
    }

    /// Aborts a command of a lane if nothing of it has begun to run. wire §18
    pub(super) fn on_abort(&mut self, io: &mut impl Io<Message>, id: LaneId, cid: u16, asked_by: CommandId) {
        let is_aborted = self.abort(id, cid);
        io.post(0, Message::Control(ControlMessage::Aborted { asked_by, is_aborted }));
    }

    pub(super) fn abort(&mut self, id: LaneId, cid: u16) -> bool {
        let entry = self.lanes.entry(id.index).filter(|(lane, _)| lane.id == id);
        let Some((lane, lists)) = entry else { return false };
        let Some(slot) = lane.queue.find(cid) else { return false };
        let Some(ticket) = *lane.queue.context(slot) else { return false };
        // Halves of fused pairs end together or not at all.
        if lane.state.pairs().is_some() || !self.commands.abort(ticket) {
            return false;
        }
        lane.watch.forget(slot);
        lane.queue.complete(slot, Status::ABORT_REQUESTED, 0);
        lists.mark_dirty(lane);
        true
    }
}

/// How much data a command for the control plane has to be asked for, if any.
fn control_data(sqe: &Sqe, data: &[u8]) -> Result<Option<u32>, Status> {
    let direction = if sqe.opcode == AdminOpcode::FABRICS.raw() {
        DataDirection::of(sqe.fctype().raw())
    } else {
        DataDirection::of(sqe.opcode)
    };
    let brings_data = matches!(direction, DataDirection::HostToController | DataDirection::Both);
    match sqe.dptr.classify() {
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
        // A command that moves no data has no use for a descriptor, whatever it says.
        DataPointer::Other { .. } if direction != DataDirection::None => {
            Err(Status::SGL_TYPE_INVALID.with_dnr())
        }
        DataPointer::Transport { .. } | DataPointer::Other { .. } => Ok(None),
    }
}

/// Counts a command that has ended without data for the host.
fn count(lane: &mut Lane, lists: &mut LaneLists, slot: Slot, sqe: &Sqe, status: Status) {
    let is_io = lane.state.io_queue().is_some();
    if status.is_success() {
        if is_io && sqe.opcode == NvmOpcode::WRITE.raw() {
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
