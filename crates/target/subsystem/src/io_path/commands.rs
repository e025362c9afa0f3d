//! The I/O commands of a reactor that did not end when they began: with a backend, waiting, or ended and not taken yet.
//! [`IoExecutor`] moves them on.
//!
//! [`IoExecutor`]: crate::io_path::executor::IoExecutor
// Input from a host must never cause a panic: see docs/testing.md.
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
use std::sync::Arc;

use memory::{Buffer, Payload, Pool};
use reactor::{Completion, Io};
use store::{Request, Ticket};
use wire::id::Nsid;
use wire::kv::batch::BatchCollect;
use wire::opcode::KvOpcode;
use wire::sqe::Sqe;
use wire::status::Status;

use crate::io_path::attached::{AttachedIndex, Attachments};
use crate::io_path::buffer_quota::BufferQuota;
use crate::io_path::digest_queue::DigestQueue;
use crate::io_path::io_command::{Caller, Ended, IoLimits};
use crate::io_path::reserve::Reserve;
use crate::io_path::running::{After, LockNumber, Owner, Running, RunningTable, Step, Supply};
use crate::io_path::store_access::{StoreAccess, StoreQueues};
use crate::io_path::throttle::Throttle;
use crate::messages::key_value::arrivals::Arrivals;
use crate::messages::message::Message;
use crate::objects::association::Association;

/// Bytes read at a time by a command whose data does not go to the host.
const CHUNK_BYTES: u64 = 256 * 1024;

/// Key of a Batch Collect that waits: place and generation of its lane, NSID, tag.
pub(crate) type CollectKey = (u32, u32, Nsid, u32);

/// The running commands of a reactor, the buffers that they wait for, and the namespaces that they use.
pub(crate) struct Commands {
    pub(crate) limits: IoLimits,
    pub(crate) namespaces: Attachments,
    pub(crate) running: RunningTable,
    /// This reactor's number.
    reactor: u16,
    pub(crate) next_lock: LockNumber,
    /// Commands that wait for a range, or for a buffer while they hold data, in order.
    waiting: VecDeque<Ticket>,
    /// The quotas of lanes, and the commands that hold no buffer and wait for one.
    pub(crate) quota: BufferQuota,
    pub(crate) queues: StoreQueues,
    /// A buffer for commands that others wait for.
    pub(crate) reserve: Reserve,
    ended: VecDeque<Ended>,
    /// The last command of a removed namespace has ended.
    pub(crate) table_settled: bool,
    /// Batch Collects that wait.
    pub(crate) collecting: HashMap<CollectKey, Ticket>,
    /// For data of vector operations.
    pub(crate) scratch: Vec<u8>,
    /// The values that lanes receive part by part.
    pub(crate) arrivals: Arrivals,
    pub(crate) digests: DigestQueue,
    /// The commands that wait for rate limits.
    pub(crate) throttle: Throttle,
    /// By lane: its association.
    associations: Vec<Option<Arc<Association>>>,
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
            digests: DigestQueue::default(),
            throttle: Throttle::default(),
            associations: Vec::new(),
        }
    }

    /// Sets the reserve aside, before any buffer is taken from the pool.
    pub(crate) fn set_aside(&mut self, pool: &Pool) {
        self.reserve.set_aside(pool, self.limits.transfer_bytes_max as usize);
        self.quota.set_pool(pool);
    }

    /// Bytes moved at a time by a command whose data does not go to the host: at most one transfer, which fits in every
    /// pool.
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

    /// Whether a command may take a buffer of that length from the pool, if one is free.
    #[inline]
    pub(crate) fn may_take(&mut self, pool: &Pool, owner: Owner, length: usize) -> bool {
        !self.quota.is_tight() || self.may_take_if_tight(pool, owner, length)
    }

    #[cold]
    fn may_take_if_tight(&mut self, pool: &Pool, owner: Owner, length: usize) -> bool {
        let Some(lane) = owner.lane() else { return true };
        self.quota.may_take(pool, lane, self.running.taken_bytes(lane), length)
    }

    /// Whether the lane of a command has answers that its peer does not read.
    pub(crate) fn is_blocked(&self, owner: Owner) -> bool {
        owner.lane().is_some_and(|lane| self.quota.is_blocked(lane))
    }

    /// A buffer for a command that others wait for: from the pool, else the reserve.
    pub(crate) fn take_critical(&mut self, pool: &Pool, length: usize) -> Option<Buffer> {
        let buffer = if self.quota.has_first() { None } else { pool.take(length) };
        self.quota.on_taken(pool);
        buffer.or_else(|| self.reserve.take(length))
    }

    /// Releases a buffer: it becomes the reserve if that is empty.
    pub(crate) fn release(&mut self, buffer: Option<Buffer>) {
        self.reserve.release(buffer);
    }

    /// The association that commands of this lane belong to from now on; `None` once the lane has ended.
    pub(crate) fn set_association(&mut self, lane: u32, association: Option<Arc<Association>>) {
        let at = lane as usize;
        if at >= self.associations.len() && association.is_some() {
            self.associations.resize(at.saturating_add(1), None);
        }
        let Some(known) = self.associations.get_mut(at) else { return };
        if let Some(before) = std::mem::replace(known, association) {
            before.flush_epochs.on_lane_ended((self.reactor, lane), before.last_sign_ns());
        }
    }

    /// Whether a Flush may succeed: not the first one of an association after a namespace was reopened, which may have
    /// lost writes of this host.
    pub(crate) fn may_flush(&mut self, owner: Owner, at: AttachedIndex) -> bool {
        let attached = self.namespaces.get_mut(at);
        let (id, generation) = (attached.id, attached.generation());
        let Some(lane) = owner.lane() else { return true };
        let association = self.associations.get(lane as usize).and_then(Option::as_deref);
        association.is_none_or(|association| {
            let now_ns = association.last_sign_ns();
            association.flush_epochs.may_flush(id, generation, (self.reactor, lane), now_ns)
        })
    }

    /// A storage operation has ended.
    pub(crate) fn on_completion<I: Io<Message>>(&mut self, io: &mut I, completion: Completion) {
        let ticket = Ticket(completion.token);
        self.queues.start_waiting(io);
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

    /// The next command that has ended, or that has gone on after a wait.
    pub(crate) fn next_ended(&mut self) -> Option<Ended> {
        self.ended.pop_front()
    }

    /// Lanes that belong to an association.
    pub(crate) fn association_count(&self) -> usize {
        self.associations.iter().flatten().count()
    }

    /// Commands that wait for a range, or for a buffer while they hold data.
    pub(crate) fn waiting_count(&self) -> usize {
        self.waiting.len()
    }

    /// Takes the next of them out.
    pub(crate) fn next_waiting(&mut self) -> Option<Ticket> {
        self.waiting.pop_front()
    }

    /// Commands that have ended and were not taken.
    pub(crate) fn ended_count(&self) -> usize {
        self.ended.len()
    }

    /// Bytes that hosts get from those of them that ended after the first `count`.
    pub(crate) fn ended_bytes(&self, count: usize) -> usize {
        self.ended
            .iter()
            .skip(count)
            .filter_map(|ended| ended.data.as_ref())
            .map(|(payload, _)| payload.len())
            .sum()
    }

    /// Commands of a lane that the backend still has, or whose completion has not been taken.
    pub(crate) fn count_of_lane(&self, lane: u32, generation: u32) -> u32 {
        let ended = self.ended.iter().filter(|ended| ended.owner.is_of_lane(lane, generation)).count();
        self.running.count_of_lane(lane, generation).saturating_add(u32::try_from(ended).unwrap_or(u32::MAX))
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

    /// Queues a command behind all others that wait.
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

    /// Aborts a command of which nothing has been carried out. Returns whether it did; the caller completes the
    /// command.
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
            Step::Throttled { .. } => {
                self.forget_throttled(ticket);
                true
            }
            // A single request, which a filter may hold. Of a command with several, some may have been carried out.
            Step::Backend(
                After::Read { .. }
                | After::Complete
                | After::Compare(_)
                | After::Verify { .. }
                | After::LbaStatus(_),
            ) => {
                let at = running.asked_namespace();
                let Some(request) = self.namespaces.blocks_mut(at).backend.withdraw(ticket) else {
                    return false;
                };
                if let Request::Read { buffer, .. } | Request::Write { buffer, .. } = request {
                    self.release(Some(buffer));
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
            Step::Collecting(_) => {
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
            | Step::Retrieving(_)
            | Step::Scattered(_) => false,
        }
    }

    /// Begins nothing more of a command whose lane has ended, also if some of it has been carried out.
    pub(crate) fn abandon(&mut self, ticket: Ticket) {
        if self.abort(ticket) {
            return;
        }
        if let Some(Running { step: Step::Backend(after), .. }) = self.running.get_mut(ticket)
            && matches!(after, After::Deallocate { .. } | After::Copy(_) | After::Verify { .. })
        {
            *after = After::Complete;
        }
    }

    /// A Collect is not served any more.
    pub(crate) fn forget_collect(&mut self, owner: Owner, sqe: &Sqe) {
        if let Owner::Lane { index, generation, .. } = owner {
            self.collecting.remove(&(index, generation, sqe.nsid(), BatchCollect::from_sqe(sqe).tag));
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
        self.keep(ticket, Running::new(caller.owner, *sqe, Some(at), step))
    }

    /// Keeps a running command, in the place that it has if it has waited.
    pub(crate) fn keep(&mut self, ticket: Option<Ticket>, running: Running) -> Ticket {
        match ticket {
            Some(ticket) => {
                let before = self.running.live_mut(ticket);
                let Running { taken_bytes, kept_bytes, is_paid, share, .. } = *before;
                *before = Running { taken_bytes, kept_bytes, is_paid, share, ..running };
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

    /// Both halves of a pair have ended.
    pub(crate) fn push_ended_pair(&mut self, owner: Owner, sqe: Sqe, first: Status, second: Status) {
        self.ended.push_back(Ended { second: Some(second), ..Ended::new(owner, sqe, first) });
    }

    /// The target-wide name of this reactor's lock with this number.
    pub(crate) fn holder(&self, lock: LockNumber) -> (u16, u64) {
        (self.reactor, lock)
    }

    /// A running command has ended.
    pub(crate) fn end(&mut self, ticket: Ticket, status: Status, result: u64, data: Option<(Payload, u32)>) {
        let running = self.running.end(ticket);
        let mut status = status;
        if let Some(at) = running.namespace {
            self.table_settled |= self.namespaces.end(at);
            // Its Submit has succeeded: repeated alone it would wait for another one.
            if running.sqe.opcode == KvOpcode::STORE_DATA.raw() && !status.is_success() {
                status = status.with_dnr();
            }
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

    pub(crate) fn set_after(&mut self, ticket: Ticket, after: After) {
        self.running.live_mut(ticket).step = Step::Backend(after);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto::Slot;

    fn commands() -> Commands {
        let limits = IoLimits {
            transfer_bytes_max: 4096,
            in_capsule_bytes: 0,
            key_value_in_capsule_bytes: 0,
            compare_and_write_blocks_max: 1,
            copy_range_blocks_max: 1,
            copy_blocks_max: 1,
            copy_range_count_max: 1,
        };
        Commands::new(limits, 0)
    }

    #[test]
    fn a_flush_of_all_fails_with_any_of_its_parts() {
        let failed = Status::WRITE_FAULT;
        for parts in [[failed, Status::SUCCESS], [Status::SUCCESS, failed], [failed, failed]] {
            let mut commands = commands();
            let owner = Owner::Lane { index: 0, generation: 1, slot: Slot::new(0) };
            let step = Step::Backend(After::FlushAll { left: 2, status: Status::SUCCESS });
            let parent = commands.keep(None, Running::new(owner, Sqe::flush(Nsid::ALL), None, step));
            commands.on_part_ended(parent, parts[0]);
            assert!(commands.next_ended().is_none(), "the other part is under way");
            commands.on_part_ended(parent, parts[1]);
            assert_eq!(commands.next_ended().map(|ended| ended.status), Some(failed));
        }
    }
}
