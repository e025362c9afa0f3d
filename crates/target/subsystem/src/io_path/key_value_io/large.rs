//! Values longer than a transfer: received in parts into memory of the store, and sent without a copy.
//!
//! ```text
//! Store ─▶ waits, while its lane receives another ─▶ Reserve ─▶ chunks ─▶ R2T, data ─▶ … ─▶ Commit ─▶ ended
//!                                                       ▲─ the next one, ahead ──┘   ▲─ its flags, if they follow
//! ```
//!
//! A lane receives one value at a time, and the next once all missing parts are requested: a host that announces many
//! values and sends none holds two chunks at most; sending one adds one.
//!
//! A part is a chunk, owned by its holder: if a Store ends early, its chunks are freed and the previous value stays. A
//! Retrieve shares the chunks of the value that it has found.

use std::ops::Range;

use memory::Chunk;
use reactor::Io;
use store::Ticket;
use wire::sqe::Sqe;
use wire::status::Status;

use crate::io_path::commands::Commands;
use crate::io_path::io_command::Ended;
use crate::io_path::running::Step;
use crate::messages::key_value::action::KvOutcome;
use crate::messages::key_value::arrivals::LaneArrivals;
use crate::messages::key_value::arriving::{Arriving, Intake};
use crate::messages::key_value::message::{PartitionRequest, Work};
use crate::messages::message::Message;

/// What a value waits for from its host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Awaits {
    /// A requested part.
    Part,
    /// Its flags, behind its last part.
    Flags,
}

/// The Stores of a reactor whose values arrive in parts.
pub(crate) struct ArrivingValues<'a, I> {
    pub(crate) commands: &'a mut Commands,
    pub(crate) io: &'a mut I,
}

impl<I: Io<Message>> ArrivingValues<'_, I> {
    /// Puts a new Store behind those of its lane.
    pub(crate) fn line_up(&mut self, lane: u32, ticket: Ticket) {
        self.commands.arrivals.lane(lane).waiting.push_back(ticket);
        self.begin_next(lane);
    }

    /// Starts the next values of a lane, as far as earlier ones have arrived.
    fn begin_next(&mut self, lane: u32) {
        loop {
            let LaneArrivals { last, before, .. } = *self.commands.arrivals.lane(lane);
            let mut is_arriving = |ticket: &Ticket| self.arriving(*ticket).is_some_and(|of| !of.is_whole());
            let (last, before) = (last.filter(&mut is_arriving), before.filter(&mut is_arriving));
            let (last, before) = if last.is_some() { (last, before) } else { (before, None) };
            let may_begin = match last {
                None => true,
                Some(last) => before.is_none() && self.arriving(last).is_some_and(|of| of.is_nearly_whole()),
            };
            let of_lane = self.commands.arrivals.lane(lane);
            (of_lane.last, of_lane.before) = (last, before);
            let Some(next) = (if may_begin { of_lane.waiting.pop_front() } else { None }) else { return };
            // Aborted, or its lane has ended.
            let Some(arriving) = self.arriving(next) else { continue };
            arriving.begin(last.is_none());
            let of_lane = self.commands.arrivals.lane(lane);
            (of_lane.last, of_lane.before) = (Some(next), last);
            self.carry_on(next);
        }
    }

    /// Starts values that waited behind aborted ones.
    #[cold]
    pub(crate) fn settle(&mut self) {
        while let Some(lane) = self.commands.arrivals.to_settle.pop() {
            let mut waiting = std::mem::take(&mut self.commands.arrivals.lane(lane).waiting);
            waiting.retain(|ticket| self.arriving(*ticket).is_some());
            self.commands.arrivals.lane(lane).waiting = waiting;
            self.begin_next(lane);
        }
    }

    fn arriving(&mut self, ticket: Ticket) -> Option<&mut Arriving> {
        match self.commands.running.get_mut(ticket).map(|running| &mut running.step) {
            Some(Step::Arriving(arriving)) => Some(arriving),
            _ => None,
        }
    }

    /// Requests the next action from the partition of a value, and starts others of its lane if it is the last.
    fn carry_on(&mut self, ticket: Ticket) {
        self.ask_partition(ticket);
        let is_nearly_whole = self.arriving(ticket).is_some_and(|of| of.is_nearly_whole());
        let lane = self.commands.running.get_mut(ticket).and_then(|running| running.owner.lane());
        if let Some(lane) = lane.filter(|_| is_nearly_whole) {
            self.begin_next(lane);
        }
    }

    fn ask_partition(&mut self, ticket: Ticket) {
        let Some(arriving) = self.arriving(ticket) else { return };
        let Some(action) = arriving.next_action() else { return };
        let key = arriving.key.clone();
        let at = self.commands.running.get_mut(ticket).and_then(|running| running.namespace);
        let at = at.expect("a Store has a namespace");
        let attached = self.commands.namespaces.get_mut(at);
        let namespace = attached.id;
        let keys = attached.keys().expect("a Store is on keys");
        let to = keys.hash(key.as_bytes()).partition(self.io.reactor_count());
        let work = Work::Act { ticket, key, action };
        self.io.post(to, PartitionRequest { from: self.io.reactor(), namespace, work }.into());
    }

    /// The partition of a value has performed the requested action.
    pub(crate) fn on_outcome(&mut self, ticket: Ticket, outcome: KvOutcome) {
        let now_ns = self.io.now_ns();
        let Some(arriving) = self.arriving(ticket) else { return };
        arriving.is_asking = false;
        if !arriving.is_whole() && !outcome.status.is_success() && arriving.requested_count > 0 {
            arriving.failure = Some(outcome.status);
            return;
        }
        if arriving.is_whole() || !outcome.status.is_success() {
            return self.end(ticket, outcome.status);
        }
        arriving.given_count += outcome.room.len();
        arriving.spare.extend(outcome.room);
        arriving.share = arriving.share.take().or(outcome.share);
        let parts: Vec<_> = std::iter::from_fn(|| arriving.next_part(now_ns)).collect();
        let Some(running) = self.commands.running.get_mut(ticket) else { return };
        let (owner, sqe) = (running.owner, running.sqe);
        for room in parts {
            self.commands.push_ended(Ended { room: Some(room), ..Ended::new(owner, sqe, Status::SUCCESS) });
        }
        self.carry_on(ticket);
    }

    fn end(&mut self, ticket: Ticket, status: Status) {
        let lane = self.commands.running.get_mut(ticket).and_then(|running| running.owner.lane());
        self.commands.end(ticket, status, 0, None);
        if let Some(lane) = lane {
            self.begin_next(lane);
        }
    }

    /// What a value waits for from its host.
    pub(crate) fn awaits(&mut self, ticket: Ticket) -> Option<Awaits> {
        let arriving = self.arriving(ticket)?;
        match arriving.requested_count {
            0 => (arriving.awaits_flags && arriving.has_all_parts()).then_some(Awaits::Flags),
            _ => Some(Awaits::Part),
        }
    }

    /// The flags of a value that its lane receives, found by a condition on its Store Data. Returns whether there is one.
    pub(crate) fn on_flags(&mut self, lane: u32, is_of: impl Fn(&Sqe) -> bool, flags: u32) -> bool {
        let LaneArrivals { last, before, .. } = *self.commands.arrivals.lane(lane);
        for ticket in [before, last].into_iter().flatten() {
            let is_it = self.commands.running.get_mut(ticket).is_some_and(|running| is_of(&running.sqe));
            if let Some(arriving) = self.arriving(ticket).filter(|of| is_it && of.awaits_flags) {
                arriving.set_flags(flags);
                self.carry_on(ticket);
                return true;
            }
        }
        false
    }

    /// A part of a value has arrived: returns the next part to request, if memory for it is reserved.
    pub(crate) fn on_part(&mut self, ticket: Ticket, chunk: Chunk) -> Option<(Intake, Range<u32>)> {
        let now_ns = self.io.now_ns();
        let arriving = self.arriving(ticket)?;
        arriving.push(chunk, now_ns);
        if let Some(status) = arriving.failure {
            if arriving.requested_count == 0 {
                self.end(ticket, status);
            }
            return None;
        }
        let next = arriving.next_part(now_ns);
        self.carry_on(ticket);
        next
    }
}
