//! Values longer than a transfer: received in parts into memory of the store, and sent without a copy.
//!
//! ```text
//! Store ─▶ waits, while its lane receives another ─▶ Reserve ─▶ chunks ─▶ R2T, data ─▶ … ─▶ Commit ─▶ ended
//!                                                       ▲─ the next one, ahead ──┘
//! ```
//!
//! A lane receives one value at a time, and the next once all missing parts are requested: a host that announces many
//! values and sends none holds two chunks at most; sending one adds one.
//!
//! A part is a chunk, owned by its holder: if a Store ends early, its chunks are freed and the previous value stays. A
//! Retrieve shares the chunks of the value that it has found.

use std::ops::Range;

use reactor::{CHUNK_BYTES, Chunk, Io};
use store::Ticket;
use wire::sgl::DataPointer;
use wire::status::Status;

use crate::attached::AttachedIndex;
use crate::commands::Commands;
use crate::io_command::{Begun, Ended, Hold};
use crate::key_value::action::KvOutcome;
use crate::key_value::arrivals::LaneArrivals;
use crate::key_value::arriving::{Arriving, Intake, Stage};
use crate::key_value::command::KeyedCommand;
use crate::key_value::message::{PartitionRequest, Work};
use crate::message::Message;
use crate::nvm_io::{Checked, Start};
use crate::running::Step;

impl<I: Io<Message>> Start<'_, I> {
    /// Whether the value of a Store is received in parts.
    pub(crate) fn comes_in_parts(&self, length: u32) -> bool {
        let is_asked_for = matches!(self.sqe.dptr.classify(), DataPointer::Transport { .. });
        length > self.commands.limits.transfer_bytes_max || length as usize >= CHUNK_BYTES && is_asked_for
    }

    /// The longest value advertised to hosts.
    fn value_bytes_max(&mut self, at: AttachedIndex) -> Checked<usize> {
        let value_bytes_max = self.partition(at)?.processor.settings().value_bytes_max;
        // Beside block namespaces one command's transfer is limited.
        let all = self.commands.namespaces.all_of(self.caller.subsystem);
        let is_limited = all.into_iter().any(|at| !self.commands.namespaces.has_keys(at));
        let transfer_bytes_max = self.commands.limits.transfer_bytes_max as usize;
        Ok(if is_limited { value_bytes_max.min(transfer_bytes_max) } else { value_bytes_max })
    }

    /// Begins a Store whose value is received in parts.
    pub(crate) fn store_in_parts(&mut self, at: AttachedIndex, command: &KeyedCommand) -> Checked<Begun> {
        let length = command.brought_bytes;
        if length as usize > self.value_bytes_max(at)? {
            return Err(Status::INVALID_VALUE_SIZE.with_dnr());
        }
        self.check_room(length as usize)?;
        let arriving = Arriving {
            key: command.key,
            options: command.options,
            length,
            chunks: Vec::new(),
            spare: Vec::new(),
            given_count: 0,
            stage: Stage::Waiting,
            is_asking: false,
            asked_since_ns: None,
            failure: None,
        };
        let ticket = self.run(at, Step::Arriving(Box::new(arriving)));
        if let Some(lane) = self.caller.owner.lane() {
            self.commands.arrivals.lane(lane).waiting.push_back(ticket);
            self.commands.begin_arrivals(self.io, lane);
        }
        Ok(Begun::Started { ticket, hold: Hold::None })
    }
}

impl Commands {
    /// Starts the next values of a lane, as far as earlier ones have arrived.
    fn begin_arrivals<I: Io<Message>>(&mut self, io: &mut I, lane: u32) {
        loop {
            let LaneArrivals { last, before, .. } = *self.arrivals.lane(lane);
            let mut is_arriving = |ticket: &Ticket| self.arriving(*ticket).is_some_and(|of| !of.is_whole());
            let (last, before) = (last.filter(&mut is_arriving), before.filter(&mut is_arriving));
            let (last, before) = if last.is_some() { (last, before) } else { (before, None) };
            let may_begin = match last {
                None => true,
                Some(last) => before.is_none() && self.arriving(last).is_some_and(|of| of.is_nearly_whole()),
            };
            let of_lane = self.arrivals.lane(lane);
            (of_lane.last, of_lane.before) = (last, before);
            let Some(next) = (if may_begin { of_lane.waiting.pop_front() } else { None }) else { return };
            // Aborted, or its lane has ended.
            let Some(arriving) = self.arriving(next) else { continue };
            arriving.stage = Stage::Arriving;
            let of_lane = self.arrivals.lane(lane);
            (of_lane.last, of_lane.before) = (Some(next), last);
            self.carry_on_arriving(io, next);
        }
    }

    /// Starts values that waited behind aborted ones.
    #[cold]
    pub(crate) fn settle_arrivals<I: Io<Message>>(&mut self, io: &mut I) {
        while let Some(lane) = self.arrivals.to_settle.pop() {
            let mut waiting = std::mem::take(&mut self.arrivals.lane(lane).waiting);
            waiting.retain(|ticket| self.arriving(*ticket).is_some());
            self.arrivals.lane(lane).waiting = waiting;
            self.begin_arrivals(io, lane);
        }
    }

    fn arriving(&mut self, ticket: Ticket) -> Option<&mut Arriving> {
        match self.running.get_mut(ticket).map(|running| &mut running.step) {
            Some(Step::Arriving(arriving)) => Some(arriving),
            _ => None,
        }
    }

    /// Requests the next action from the partition of a value, and starts others of its lane if it is the last.
    fn carry_on_arriving<I: Io<Message>>(&mut self, io: &mut I, ticket: Ticket) {
        self.ask_partition(io, ticket);
        let is_nearly_whole = self.arriving(ticket).is_some_and(|of| of.is_nearly_whole());
        let lane = self.running.get_mut(ticket).and_then(|running| running.owner.lane());
        if let Some(lane) = lane.filter(|_| is_nearly_whole) {
            self.begin_arrivals(io, lane);
        }
    }

    fn ask_partition<I: Io<Message>>(&mut self, io: &mut I, ticket: Ticket) {
        let Some(arriving) = self.arriving(ticket) else { return };
        let Some(action) = arriving.next_action() else { return };
        let key = arriving.key;
        let at = self.running.get_mut(ticket).and_then(|running| running.namespace);
        let at = at.expect("a Store has a namespace");
        let attached = self.namespaces.get_mut(at);
        let namespace = attached.id;
        let keys = attached.keys().expect("a Store is on keys");
        let to = keys.partition_unread().processor.hash(key.as_bytes()).partition(io.reactor_count());
        let work = Work::Act { ticket, key, action };
        io.post(to, PartitionRequest { from: io.reactor(), namespace, work }.into());
    }

    /// The partition of a value has performed the requested action.
    pub(crate) fn on_arriving_outcome<I: Io<Message>>(
        &mut self,
        io: &mut I,
        ticket: Ticket,
        outcome: KvOutcome,
    ) {
        let Some(arriving) = self.arriving(ticket) else { return };
        arriving.is_asking = false;
        if !arriving.is_whole() && !outcome.status.is_success() && arriving.asked_since_ns.is_some() {
            arriving.failure = Some(outcome.status);
            return;
        }
        if arriving.is_whole() || !outcome.status.is_success() {
            return self.end_arriving(io, ticket, outcome.status);
        }
        arriving.given_count += outcome.room.len();
        arriving.spare.extend(outcome.room);
        let part = arriving.next_part(io.now_ns());
        let Some(running) = self.running.get_mut(ticket) else { return };
        let (owner, sqe) = (running.owner, running.sqe);
        if let Some(room) = part {
            self.push_ended(Ended { room: Some(room), ..Ended::new(owner, sqe, Status::SUCCESS) });
        }
        self.carry_on_arriving(io, ticket);
    }

    fn end_arriving<I: Io<Message>>(&mut self, io: &mut I, ticket: Ticket, status: Status) {
        let lane = self.running.get_mut(ticket).and_then(|running| running.owner.lane());
        self.end(ticket, status, 0, None);
        if let Some(lane) = lane {
            self.begin_arrivals(io, lane);
        }
    }

    /// A part of a value has arrived: returns the next part to request, if memory for it is reserved.
    pub(crate) fn on_part_arrived<I: Io<Message>>(
        &mut self,
        io: &mut I,
        ticket: Ticket,
        chunk: Chunk,
    ) -> Option<(Intake, Range<u32>)> {
        let arriving = self.arriving(ticket)?;
        arriving.asked_since_ns = None;
        if let Some(status) = arriving.failure {
            self.end_arriving(io, ticket, status);
            return None;
        }
        arriving.chunks.push(chunk);
        let next = arriving.next_part(io.now_ns());
        self.carry_on_arriving(io, ticket);
        next
    }
}
