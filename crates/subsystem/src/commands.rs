//! I/O commands under way on a reactor: started on backends, waiting, ended.
//!
//! ```text
//! begin ─▶ Complete / Data            done at once: RAM and null, errors
//!    ├──▶ RequestData ─(R2T)─▶ begin with the data
//!    └──▶ Started ─▶ … on_completion, on_timer, retry … ─▶ next_ended
//! ```
// What a host has sent must not be able to end us: see docs/testing.md.
#![cfg_attr(
    not(test),
    deny(
        clippy::arithmetic_side_effects,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::unwrap_used
    )
)]

use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;

use reactor::{Buffer, Completion, Io, Operation, Payload, Pool};
use store::{Reply, Request, StoreError, StoreIo, Ticket};
use wire::id::Nsid;
use wire::sqe::{Fuse, Sqe};
use wire::status::Status;

use crate::association::Association;
use crate::attached::{AttachedIndex, Attachments};
use crate::buffer_quota::{BufferQuota, UNSENT_BYTES_MAX};
use crate::exclusion::LockMessage;
use crate::key_value::arriving::Intake;
use crate::key_value::batch::{self, CollectKey};
use crate::key_value::large::Arrivals;
use crate::lane_id::CommandId;
use crate::message::Message;
use crate::nvm_io::{compare_failure, failed_pair, status_of};
use crate::reserve::Reserve;
use crate::running::{After, Copy, LockNumber, Owner, Running, RunningTable, Step, Supply};
use crate::subsystem::SubsystemId;

/// Bytes that are read at a time where the host gets none of them.
const CHUNK_BYTES: u64 = 256 * 1024;

/// Set in a timer's token if it belongs to a ticket.
pub(crate) const TICKET_TIMER: u64 = 1 << 63;

/// What hosts are told, and held to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct IoLimits {
    /// MDTS, bytes.
    pub(crate) transfer_bytes_max: u32,
    /// In-capsule data of I/O commands, bytes.
    pub(crate) in_capsule_bytes: u32,
    /// The same of commands on keys and values, where nothing else is.
    pub(crate) key_value_in_capsule_bytes: u32,
    /// Blocks of a fused Compare and Write (ACWU).
    pub(crate) compare_and_write_blocks_max: u32,
    /// Blocks of one source range of a Copy (MSSRL).
    pub(crate) copy_range_blocks_max: u32,
    /// Blocks of a Copy in all (MCL).
    pub(crate) copy_blocks_max: u32,
    /// Source ranges of a Copy (MSRC).
    pub(crate) copy_range_count_max: u16,
}

/// Who begins a command.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Caller {
    pub(crate) owner: Owner,
    /// Whose namespaces it reaches.
    pub(crate) subsystem: SubsystemId,
    /// Data sent must stay as it is: a digest is computed over it.
    pub(crate) needs_stable_copy: bool,
}

/// What became of a command at once.
#[derive(Debug)]
pub(crate) enum Begun {
    /// It has ended, without data for the host.
    Complete(Status, u64),
    /// It has succeeded: the payload's first so many bytes are for the host.
    Data(Payload, u32),
    /// It has succeeded with this result: the payload's first so many bytes are for the host.
    Value(Payload, u32, u64),
    /// So many bytes are to be asked for; begin it again with them.
    RequestData(u32),
    /// It goes on by itself and comes out of [`Commands::next_ended`].
    Started { ticket: Ticket, hold: Hold },
}

/// What a command that goes on by itself means for those behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hold {
    /// Nothing.
    None,
    /// Its in-capsule data had to be kept aside because no buffer is free: nothing is taken in from its lane until it goes on.
    Capsule,
    /// It waits in its lane's line, and so do those behind it that bring no data.
    Line,
}

/// A command that did not end at once has ended.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) owner: Owner,
    pub(crate) sqe: Sqe,
    pub(crate) status: Status,
    pub(crate) result: u64,
    /// What the host is to be sent, and how much of it.
    pub(crate) data: Option<(Payload, u32)>,
    /// How the second of a fused pair has ended; `status` is that of the first.
    pub(crate) second: Option<Status>,
    /// The command has waited for this room, to receive this part of its data into. It has not ended.
    pub(crate) room: Option<(Intake, Range<u32>)>,
    /// Its success is in the traffic of its namespace already: it waited, and then succeeded as it began.
    pub(crate) is_counted: bool,
}

impl Ended {
    pub(crate) fn new(owner: Owner, sqe: Sqe, status: Status) -> Self {
        Self { owner, sqe, status, result: 0, data: None, second: None, room: None, is_counted: false }
    }
}

/// All commands under way on a reactor, and the namespaces they work on.
pub(crate) struct Commands {
    pub(crate) limits: IoLimits,
    pub(crate) namespaces: Attachments,
    pub(crate) running: RunningTable,
    /// This reactor's number.
    reactor: u16,
    pub(crate) next_lock: LockNumber,
    /// Commands that wait for a range, or that wait for a buffer and have one already or data in its place, in order.
    waiting: VecDeque<Ticket>,
    /// What lanes hold of the pool, and the commands that hold nothing and wait for some of it.
    pub(crate) quota: BufferQuota,
    pub(crate) queues: StoreQueues,
    /// For commands that others wait for.
    pub(crate) reserve: Reserve,
    ended: VecDeque<Ended>,
    /// A removed namespace has nothing running any more.
    pub(crate) table_settled: bool,
    /// Batch Collects that wait.
    pub(crate) collecting: HashMap<CollectKey, Ticket>,
    /// For data of vector operations.
    pub(crate) scratch: Vec<u8>,
    /// The values that lanes receive part by part.
    pub(crate) arrivals: Arrivals,
    /// Retrieves of long values whose digests are computed, in turn.
    pub(crate) digesting: VecDeque<Ticket>,
    /// By lane: its association.
    associations: Vec<Option<Arc<Association>>>,
}

/// What backends have left to be done.
#[derive(Default)]
pub(crate) struct StoreQueues {
    /// Operations beyond what the engine takes at once.
    overflow: VecDeque<(Ticket, Operation)>,
    replies: VecDeque<(Ticket, Reply)>,
}

/// The reactor, as backends see it.
pub(crate) struct StoreAccess<'a, I> {
    pub(crate) io: &'a mut I,
    pub(crate) queues: &'a mut StoreQueues,
    pub(crate) reserve: &'a mut Reserve,
    /// Who sees it.
    pub(crate) at: AttachedIndex,
}

impl<I: Io<Message>> StoreIo for StoreAccess<'_, I> {
    fn now_ns(&self) -> u64 {
        self.io.now_ns()
    }

    fn pool(&self) -> &Pool {
        self.io.pool()
    }

    fn take_critical(&mut self, length: usize) -> Option<Buffer> {
        self.io.pool().take(length).or_else(|| self.reserve.take(length))
    }

    fn give_back(&mut self, buffer: Option<Buffer>) {
        self.reserve.give_back(buffer);
    }

    fn start(&mut self, ticket: Ticket, operation: Operation) {
        // Behind others that wait: operations of a namespace keep their order as far as they have one.
        if !self.queues.overflow.is_empty() {
            self.queues.overflow.push_back((ticket, operation));
        } else if let Err(operation) = self.io.start(ticket.0, operation) {
            self.queues.overflow.push_back((ticket, operation));
        }
    }

    fn set_timer(&mut self, deadline_ns: u64, ticket: Ticket) {
        self.io.set_timer(deadline_ns, ticket.0 | TICKET_TIMER);
    }

    fn reply(&mut self, ticket: Ticket, reply: Reply) {
        self.queues.replies.push_back((ticket, reply));
    }

    fn own(&self, number: u32) -> Ticket {
        self.at.own_ticket(number)
    }
}

impl Commands {
    pub(crate) fn new(limits: IoLimits, reactor: u16) -> Self {
        Self {
            limits,
            namespaces: Attachments::default(),
            running: RunningTable::default(),
            reactor,
            next_lock: 0,
            waiting: VecDeque::new(),
            quota: BufferQuota::default(),
            queues: StoreQueues::default(),
            reserve: Reserve::default(),
            ended: VecDeque::new(),
            table_settled: false,
            collecting: HashMap::new(),
            scratch: Vec::new(),
            arrivals: Arrivals::default(),
            digesting: VecDeque::new(),
            associations: Vec::new(),
        }
    }

    /// Sets the reserve aside, before anybody else takes from the pool.
    pub(crate) fn set_aside(&mut self, pool: &Pool) {
        self.reserve.set_aside(pool, self.limits.transfer_bytes_max as usize);
        self.quota.set_pool(pool);
    }

    /// How much a command moves at once that the target itself reads or writes for: as much as a transfer at most, for which every pool has
    /// room.
    pub(crate) fn chunk_bytes(&self, block_bytes: u32) -> u64 {
        CHUNK_BYTES.min(self.limits.transfer_bytes_max.max(block_bytes).into())
    }

    /// A buffer of the pool for a command that waits in its lane's line if it may not have one.
    #[inline]
    pub(crate) fn take(&mut self, pool: &Pool, owner: Owner, length: usize) -> Option<Buffer> {
        if !self.may_take(pool, owner, length) {
            return None;
        }
        let buffer = pool.take(length);
        self.quota.on_taken(pool);
        buffer
    }

    /// Whether a command may have a buffer of the pool, if there is one of that length.
    #[inline]
    pub(crate) fn may_take(&mut self, pool: &Pool, owner: Owner, length: usize) -> bool {
        !self.quota.is_tight() || self.may_take_if_tight(pool, owner, length)
    }

    #[cold]
    fn may_take_if_tight(&mut self, pool: &Pool, owner: Owner, length: usize) -> bool {
        let Some(lane) = owner.lane() else { return true };
        self.quota.may_take(pool, lane, self.running.taken_bytes(lane), length)
    }

    /// Whether the lane of a command has answers that its peer does not take.
    pub(crate) fn is_blocked(&self, owner: Owner) -> bool {
        owner.lane().is_some_and(|lane| self.quota.is_blocked(lane))
    }

    /// A buffer of the pool, or the reserve, for a command that others wait for.
    pub(crate) fn take_critical(&mut self, pool: &Pool, length: usize) -> Option<Buffer> {
        let buffer = if self.quota.has_first() { None } else { pool.take(length) };
        self.quota.on_taken(pool);
        buffer.or_else(|| self.reserve.take(length))
    }

    /// A buffer that may have been the reserve has done its work.
    pub(crate) fn give_back(&mut self, buffer: Option<Buffer>) {
        self.reserve.give_back(buffer);
    }

    /// The association that commands of this lane belong to from now on; `None` once the lane has ended.
    pub(crate) fn set_association(&mut self, lane: u32, association: Option<Arc<Association>>) {
        let at = lane as usize;
        if at >= self.associations.len() && association.is_some() {
            self.associations.resize(at.saturating_add(1), None);
        }
        if let Some(known) = self.associations.get_mut(at) {
            *known = association;
        }
    }

    /// Whether a Flush may succeed: not the first one of an association after a namespace was reopened, which may have lost
    /// what this host has written.
    pub(crate) fn may_flush(&mut self, owner: Owner, at: AttachedIndex) -> bool {
        let attached = self.namespaces.get_mut(at);
        let (id, generation) = (attached.id, attached.generation());
        let association = owner.lane().and_then(|lane| self.associations.get(lane as usize)?.as_deref());
        association.is_none_or(|association| association.flush_epochs.may_flush(id, generation))
    }

    /// Begins an I/O command with the data of its capsule.
    #[inline]
    pub(crate) fn begin<I: Io<Message>>(
        &mut self,
        io: &mut I,
        caller: &Caller,
        sqe: &Sqe,
        data: &[u8],
    ) -> Begun {
        self.begin_with(io, caller, sqe, data, Supply::None, None)
    }

    /// A storage operation has ended.
    pub(crate) fn on_completion<I: Io<Message>>(&mut self, io: &mut I, completion: Completion) {
        let ticket = Ticket(completion.token);
        while let Some((waiting, operation)) = self.queues.overflow.pop_front() {
            if let Err(operation) = io.start(waiting.0, operation) {
                self.queues.overflow.push_front((waiting, operation));
                break;
            }
        }
        let Some(at) = self.namespace_of(ticket) else { return };
        let mut access = StoreAccess { io, queues: &mut self.queues, reserve: &mut self.reserve, at };
        self.namespaces.get_mut(at).on_completion(&mut access, ticket, completion);
    }

    /// A timer of a ticket rings.
    pub(crate) fn on_timer<I: Io<Message>>(&mut self, io: &mut I, ticket: Ticket) {
        let Some(at) = self.namespace_of(ticket) else { return };
        let mut access = StoreAccess { io, queues: &mut self.queues, reserve: &mut self.reserve, at };
        self.namespaces.get_mut(at).on_timer(&mut access, ticket);
    }

    fn namespace_of(&mut self, ticket: Ticket) -> Option<AttachedIndex> {
        if let Some(at) = AttachedIndex::of_own_ticket(ticket) {
            return self.namespaces.is_there(at).then_some(at);
        }
        self.running.get_mut(ticket)?.namespace
    }

    /// Carries on with what backends have replied to. Says whether there was anything.
    pub(crate) fn on_replies<I: Io<Message>>(&mut self, io: &mut I) -> bool {
        let mut worked = false;
        while let Some((ticket, reply)) = self.queues.replies.pop_front() {
            self.on_reply(io, ticket, reply);
            worked = true;
        }
        worked
    }

    /// The next command that has ended, or that has gone on after a wait.
    pub(crate) fn next_ended(&mut self) -> Option<Ended> {
        self.ended.pop_front()
    }

    /// Commands of a lane that the backend still has, or whose end has not been taken.
    pub(crate) fn count_of_lane(&self, lane: u32, generation: u32) -> u32 {
        let ended = self.ended.iter().filter(|ended| ended.owner.is_of_lane(lane, generation)).count();
        self.running.count_of_lane(lane, generation).saturating_add(u32::try_from(ended).unwrap_or(u32::MAX))
    }

    /// Lets commands that wait go on, as far as there are buffers. Says whether there may be more to do at once.
    pub(crate) fn retry<I: Io<Message>>(
        &mut self,
        io: &mut I,
        caller: impl Fn(Owner) -> Option<Caller>,
    ) -> bool {
        self.reserve.refill(io.pool());
        for _ in 0..self.waiting.len() {
            let Some(ticket) = self.waiting.pop_front() else { break };
            self.go_on(io, ticket, &caller);
        }
        let mut has_served = false;
        for _ in 0..self.quota.waiting_count() {
            let Some(lane) = self.quota.next_turn() else { break };
            let wanted_bytes = self.serve_line(io, lane, &caller);
            has_served |= wanted_bytes.is_none();
            let (now_ns, taken_bytes) = (io.now_ns(), self.running.taken_bytes(lane));
            self.quota.end_turn(io.pool(), now_ns, lane, taken_bytes, wanted_bytes);
        }
        has_served
    }

    /// Lets commands in a lane's line go on, in their order: one, if others wait as well. Gives how large a buffer the next one needs if
    /// it cannot.
    fn serve_line<I: Io<Message>>(
        &mut self,
        io: &mut I,
        lane: u32,
        caller: &impl Fn(Owner) -> Option<Caller>,
    ) -> Option<usize> {
        let is_alone = self.quota.waiting_count() == 0;
        // What ends at once is not sent before the end of the turn: until then nobody knows whether the peer takes it.
        let mut ended_bytes = 0usize;
        while let Some(ticket) = self.quota.first_in_line(lane) {
            let ended_count = self.ended.len();
            self.go_on(io, ticket, caller);
            match self.running.get_mut(ticket) {
                Some(Running { step: Step::AwaitingRoom(length), .. }) => return Some(*length as usize),
                // Values may be longer: their chunks take no buffers.
                Some(Running { step: Step::InLine, sqe, .. }) => {
                    return Some(sqe.dptr.length.get().min(self.limits.transfer_bytes_max) as usize);
                }
                // It has gone on, or waits for something else now.
                _ => self.quota.leave_line(lane),
            }
            let data = self.ended.range(ended_count..).filter_map(|ended| ended.data.as_ref());
            ended_bytes = ended_bytes.saturating_add(data.map(|(payload, _)| payload.len()).sum());
            if !is_alone || ended_bytes >= UNSENT_BYTES_MAX {
                break;
            }
        }
        None
    }

    /// Lets a command that waits go on, or wait again.
    fn go_on<I: Io<Message>>(
        &mut self,
        io: &mut I,
        ticket: Ticket,
        caller: &impl Fn(Owner) -> Option<Caller>,
    ) {
        // Aborted, or its lane has ended.
        let Some(running) = self.running.get_mut(ticket) else { return };
        let (owner, sqe) = (running.owner, running.sqe);
        let ended = Ended::new(owner, sqe, Status::SUCCESS);
        let supply = match std::mem::replace(&mut running.step, Step::Between) {
            Step::Waiting(supply) => supply,
            Step::InLine => Supply::None,
            Step::AwaitingRoom(length) => return self.room(io, ticket, length),
            _ => unreachable!("what waits has not begun"),
        };
        let Some(caller) = caller(owner) else {
            self.running.remove(ticket);
            return;
        };
        let ended = match self.begin_with(io, &caller, &sqe, &[], supply, Some(ticket)) {
            Begun::Started { .. } => return,
            Begun::Complete(status, result) => Ended { status, result, is_counted: true, ..ended },
            Begun::Data(payload, length) => {
                Ended { data: Some((payload, length)), is_counted: true, ..ended }
            }
            Begun::Value(payload, length, result) => {
                Ended { data: Some((payload, length)), result, is_counted: true, ..ended }
            }
            Begun::RequestData(length) => return self.room(io, ticket, length),
        };
        self.running.remove(ticket);
        self.ended.push_back(ended);
    }

    /// Takes a buffer to receive a waiting command's data into, or waits for one.
    fn room<I: Io<Message>>(&mut self, io: &mut I, ticket: Ticket, length: u32) {
        let running = self.running.live_mut(ticket);
        let (owner, sqe) = (running.owner, running.sqe);
        let Some(buffer) = self.take_room(io.pool(), owner, &sqe, length) else {
            return self.line_up(ticket, Step::AwaitingRoom(length));
        };
        self.receive(ticket, &buffer, io.now_ns());
        let room = Some((Intake::Buffer(buffer), 0..length));
        self.ended.push_back(Ended { room, ..Ended::new(owner, sqe, Status::SUCCESS) });
    }

    /// A buffer to receive a command's data into, if it may have one.
    pub(crate) fn take_room(&mut self, pool: &Pool, owner: Owner, sqe: &Sqe, length: u32) -> Option<Buffer> {
        // Half of a pair waits for nobody: the other half has its buffer already, which may be what they wait for.
        if sqe.flags.fuse() != Fuse::NONE {
            return pool.take(length as usize);
        }
        let length = batch::room_bytes(sqe, length, self.limits.transfer_bytes_max);
        self.take(pool, owner, length as usize)
    }

    /// A command's data is asked for.
    pub(crate) fn receive(&mut self, ticket: Ticket, buffer: &Buffer, now_ns: u64) {
        self.running.charge(ticket, buffer.capacity());
        self.running.live_mut(ticket).step = Step::Receiving { since_ns: now_ns };
    }

    /// Puts a new command at the end of its lane's line.
    pub(crate) fn enlist(&mut self, owner: Owner, sqe: &Sqe) -> Ticket {
        let ticket = self.running.insert(Running::new(owner, *sqe, None, Step::Between));
        self.line_up(ticket, Step::InLine);
        ticket
    }

    /// Puts a command at the end of its lane's line.
    #[expect(clippy::expect_used, reason = "only commands of lanes take buffers")]
    pub(crate) fn line_up(&mut self, ticket: Ticket, step: Step) {
        let running = self.running.live_mut(ticket);
        running.step = step;
        let lane = running.owner.lane().expect("only commands of lanes take buffers");
        self.quota.line_up(lane, ticket);
    }

    /// Puts a command at the end of the line of those that wait.
    pub(crate) fn wait(&mut self, ticket: Ticket, supply: Supply) {
        let running = self.running.live_mut(ticket);
        running.step = Step::Waiting(supply);
        self.waiting.push_back(ticket);
    }

    /// Whether commands wait for buffers or ranges.
    pub(crate) fn has_waiting(&self) -> bool {
        !self.waiting.is_empty() || self.quota.waiting_count() > 0
    }

    /// Whether commands wait for buffers that peers withhold.
    pub(crate) fn is_contended(&self) -> bool {
        self.quota.is_tight() && self.has_waiting()
    }

    /// Flushes all namespaces of a subsystem for the control plane. The end comes out of
    /// [`next_ended`](Self::next_ended).
    pub(crate) fn flush_all<I: Io<Message>>(
        &mut self,
        io: &mut I,
        subsystem: SubsystemId,
        asked_by: CommandId,
    ) {
        let caller = Caller { owner: Owner::Control(asked_by), subsystem, needs_stable_copy: false };
        let sqe = Sqe::flush(Nsid::ALL);
        if let Begun::Complete(status, result) = self.begin(io, &caller, &sqe, &[]) {
            self.ended.push_back(Ended { result, ..Ended::new(caller.owner, sqe, status) });
        }
    }

    /// Aborts a command if nothing of it has begun to run. Says whether it did; the caller completes it.
    pub(crate) fn abort(&mut self, ticket: Ticket) -> bool {
        let Some(running) = self.running.get_mut(ticket) else { return false };
        match running.step {
            Step::Between
            | Step::Receiving { .. }
            | Step::AwaitingRoom(_)
            | Step::InLine
            | Step::Digesting(_)
            | Step::Waiting(_) => {
                self.running.remove(ticket);
                true
            }
            // One request, which a filter may be keeping. Commands of several may have done some of them.
            Step::Backend(
                After::Read { .. } | After::Complete | After::Compare(_) | After::Verify { .. },
            ) => {
                let at = running.asked_namespace();
                let Some(request) = self.namespaces.blocks_mut(at).backend.withdraw(ticket) else {
                    return false;
                };
                if let Request::Read { buffer, .. } | Request::Write { buffer, .. } = request {
                    self.give_back(Some(buffer));
                }
                self.running.remove(ticket);
                self.table_settled |= self.namespaces.end(at);
                true
            }
            Step::Arriving(ref arriving) if !arriving.is_whole() => {
                let at = running.asked_namespace();
                if let Some(lane) = running.owner.lane() {
                    self.arrivals.on_aborted(lane);
                }
                self.running.remove(ticket);
                self.table_settled |= self.namespaces.end(at);
                true
            }
            Step::Collecting => {
                let (owner, sqe) = (running.owner, running.sqe);
                self.running.remove(ticket);
                self.forget_collect(owner, &sqe);
                true
            }
            Step::Backend(_)
            | Step::Partition
            | Step::Locking(_)
            | Step::Arriving(_)
            | Step::Collected
            | Step::Scattered(_) => false,
        }
    }

    /// A running command, its namespace entered.
    pub(crate) fn run(
        &mut self,
        start: (Caller, &Sqe, Option<Ticket>),
        at: AttachedIndex,
        step: Step,
    ) -> Ticket {
        let (caller, sqe, ticket) = start;
        self.namespaces.begin(at);
        let running = Running::new(caller.owner, *sqe, Some(at), step);
        match ticket {
            Some(ticket) => {
                let before = self.running.live_mut(ticket);
                *before = Running { taken_bytes: before.taken_bytes, ..running };
                ticket
            }
            None => self.running.insert(running),
        }
    }

    pub(crate) fn start_in<I: Io<Message>>(
        &mut self,
        io: &mut I,
        at: AttachedIndex,
        ticket: Ticket,
        request: Request,
    ) {
        let mut access = StoreAccess { io, queues: &mut self.queues, reserve: &mut self.reserve, at };
        self.namespaces.blocks_mut(at).backend.start(&mut access, ticket, request);
    }

    /// The backend is done with a ticket: the next step of its command, or its end.
    #[expect(
        clippy::expect_used,
        clippy::indexing_slicing,
        reason = "a backend of ours gives back the buffer it got"
    )]
    fn on_reply<I: Io<Message>>(&mut self, io: &mut I, ticket: Ticket, reply: Reply) {
        let running = self.running.live_mut(ticket);
        let at = running.asked_namespace();
        let Step::Backend(after) = std::mem::replace(&mut running.step, Step::Between) else {
            unreachable!("only commands that the backend has are replied to")
        };
        if let Err(error) = reply.result {
            self.give_back(reply.buffer);
            return self.on_failure(io, ticket, after, error);
        }
        match after {
            After::Complete => {
                self.give_back(reply.buffer);
                self.end(ticket, Status::SUCCESS, 0, None);
            }
            After::Read { length } => {
                let payload = Payload::Buffer(reply.buffer.expect("a read has a buffer"));
                self.end(ticket, Status::SUCCESS, 0, Some((payload, length)));
            }
            After::Compare(expected) => {
                let buffer = reply.buffer.expect("a read has a buffer");
                let is_equal = expected.bytes()[..buffer.len()] == buffer[..];
                let status = if is_equal { Status::SUCCESS } else { compare_failure() };
                self.give_back(Some(buffer));
                self.end(ticket, status, 0, None);
            }
            After::Verify { range } => match reply.buffer {
                Some(buffer) if !range.is_empty() => self.verify(io, ticket, at, range, buffer),
                _ => self.end(ticket, Status::SUCCESS, 0, None),
            },
            After::Deallocate { ranges } => self.deallocate(io, ticket, at, ranges),
            After::Copy(copy) => {
                let buffer = reply.buffer.expect("a read or write has a buffer");
                self.copy(io, ticket, at, copy, buffer);
            }
            After::FlushAll { .. } => unreachable!("a parent is not replied to"),
            After::FusedCompare(pair) => {
                let buffer = reply.buffer.expect("a read has a buffer");
                self.on_fused_read(io, ticket, &pair, buffer);
            }
            After::FusedWrite(lock) => {
                self.give_back(reply.buffer);
                self.end_pair(io, ticket, lock, Status::SUCCESS, Status::SUCCESS);
            }
        }
    }

    fn on_failure<I: Io<Message>>(&mut self, io: &mut I, ticket: Ticket, after: After, error: StoreError) {
        let running = self.running.live_mut(ticket);
        let is_read = !matches!(after, After::Complete | After::Deallocate { .. } | After::FusedWrite(_));
        let status = status_of(error, is_read);
        tracing::debug!(%error, opcode = running.sqe.opcode, "command failed");
        match after {
            // The result says which range was the first not to be copied.
            After::Copy(copy) => self.end(ticket, status, copy.range.into(), None),
            After::FusedCompare(pair) => self.end_pair(io, ticket, pair.lock, status, failed_pair()),
            After::FusedWrite(lock) => self.end_pair(io, ticket, lock, Status::SUCCESS, status),
            _ => self.end(ticket, status, 0, None),
        }
    }

    /// A fused pair has ended: its range is free again.
    pub(crate) fn end_pair<I: Io<Message>>(
        &mut self,
        io: &mut I,
        ticket: Ticket,
        lock: LockNumber,
        first: Status,
        second: Status,
    ) {
        io.post(0, Message::Lock(LockMessage::Unlock(self.holder(lock))));
        let running = self.running.end(ticket);
        if let Some(at) = running.namespace {
            self.table_settled |= self.namespaces.end(at);
        }
        self.push_ended_pair(running.owner, running.sqe, first, second);
    }

    /// Both halves of a pair have ended.
    pub(crate) fn push_ended_pair(&mut self, owner: Owner, sqe: Sqe, first: Status, second: Status) {
        self.ended.push_back(Ended { second: Some(second), ..Ended::new(owner, sqe, first) });
    }

    /// How the lock of this number on this reactor is called everywhere.
    pub(crate) fn holder(&self, lock: LockNumber) -> (u16, u64) {
        (self.reactor, lock)
    }

    /// A running command has ended.
    pub(crate) fn end(&mut self, ticket: Ticket, status: Status, result: u64, data: Option<(Payload, u32)>) {
        let running = self.running.end(ticket);
        if let Some(at) = running.namespace {
            self.table_settled |= self.namespaces.end(at);
        }
        match running.owner {
            Owner::Parent(parent) => self.on_part_ended(parent, status),
            owner => {
                self.ended.push_back(Ended { result, data, ..Ended::new(owner, running.sqe, status) });
            }
        }
    }

    pub(crate) fn push_ended(&mut self, ended: Ended) {
        self.ended.push_back(ended);
    }

    #[expect(clippy::arithmetic_side_effects, reason = "each of its parts ends once")]
    fn on_part_ended(&mut self, parent: Ticket, part: Status) {
        let running = self.running.live_mut(parent);
        let Step::Backend(After::FlushAll { left, status }) = &mut running.step else {
            unreachable!("only flushes have parts")
        };
        *left -= 1;
        if status.is_success() {
            *status = part;
        }
        if *left == 0 {
            let status = *status;
            self.end(parent, status, 0, None);
        }
    }

    #[expect(
        clippy::arithmetic_side_effects,
        clippy::expect_used,
        reason = "a chunk of a range in the namespace"
    )]
    fn verify<I: Io<Message>>(
        &mut self,
        io: &mut I,
        ticket: Ticket,
        at: AttachedIndex,
        range: Range<u64>,
        mut buffer: Buffer,
    ) {
        let count = (buffer.capacity() as u64).min(range.end - range.start);
        buffer.set_len(usize::try_from(count).expect("a chunk"));
        let offset = range.start;
        self.set_after(ticket, After::Verify { range: offset + count..range.end });
        self.start_in(io, at, ticket, Request::Read { offset, buffer });
    }

    #[expect(clippy::arithmetic_side_effects, reason = "a range ends after it begins")]
    fn deallocate<I: Io<Message>>(
        &mut self,
        io: &mut I,
        ticket: Ticket,
        at: AttachedIndex,
        mut ranges: Vec<Range<u64>>,
    ) {
        let Some(range) = ranges.pop() else { return self.end(ticket, Status::SUCCESS, 0, None) };
        self.set_after(ticket, After::Deallocate { ranges });
        let request = Request::Deallocate { offset: range.start, length: range.end - range.start };
        self.start_in(io, at, ticket, request);
    }

    #[expect(
        clippy::arithmetic_side_effects,
        clippy::expect_used,
        reason = "a chunk of a range in the namespace"
    )]
    fn copy<I: Io<Message>>(
        &mut self,
        io: &mut I,
        ticket: Ticket,
        at: AttachedIndex,
        mut copy: Box<Copy>,
        mut buffer: Buffer,
    ) {
        let request = if copy.is_reading {
            // What was read goes out.
            copy.is_reading = false;
            Request::Write { offset: copy.part_destination, buffer, is_durable: copy.is_durable }
        } else {
            let Some(part) = copy.next_part(buffer.capacity() as u64) else {
                self.give_back(Some(buffer));
                return self.end(ticket, Status::SUCCESS, 0, None);
            };
            copy.is_reading = true;
            buffer.set_len(usize::try_from(part.end - part.start).expect("a chunk"));
            Request::Read { offset: part.start, buffer }
        };
        self.set_after(ticket, After::Copy(copy));
        self.start_in(io, at, ticket, request);
    }

    pub(crate) fn set_after(&mut self, ticket: Ticket, after: After) {
        self.running.live_mut(ticket).step = Step::Backend(after);
    }
}
