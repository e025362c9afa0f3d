//! One NBD connection in its transmission: a thread that moves requests from a socket to a lane, and replies back.
//!
//! ```text
//!  socket ─receive─▶ staging ─▶ request ─▶ parts ─▶ lane
//!                       └─payload─▶ buffers ──────────┘ │ completions
//!  socket ◀─send─ outgoing ◀─ heads, buffers ───────────┘
//! ```
//!
//! Memory is fixed at the start. A request that finds no buffer waits, and no further one is received meanwhile.

use std::io::{self, IoSliceMut};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use host::{
    AllocatedBlocks, Association, BlockRange, Command, Completion, DeallocatedValue, Failure, Lane,
    Namespace, Status, WaitBeside,
};
use reactor::Received;

use crate::buffers::{Buffer, Pool, resident};
use crate::client_socket::ClientSocket;
use crate::failure_log::FailureLog;
use crate::flush_ledger::FlushMember;
use crate::lanes::submit;
use crate::nbd::{
    CommandFlags, Errno, Refusal, ReplyHead, Request, RequestViolation, STATE_HOLE, STATE_ZERO, Session,
    Task, write_extents,
};
use crate::outgoing::Outgoing;

/// Requests of a connection in work at once.
const REQUEST_COUNT: u16 = 128;

/// Bytes received at once.
const STAGING_BYTES: usize = 128 << 10;

/// From this length on the rest of a payload is received into its buffer.
const DIRECT_BYTES: usize = 8 << 10;

/// Longest list of allocated blocks, bytes. Extents of 16 bytes for all of it, and for the holes between, fit into a buffer.
const STATUS_BYTES: u32 = 16 << 10;

/// For a list of one range.
const SINGLE_STATUS_BYTES: u32 = 24;

/// The metadata context `base:allocation`.
const ALLOCATION: u32 = 1;

/// Longest sleep: whether the server ends is looked at after each.
const SLEEP: Duration = Duration::from_secs(3600);

const FAILED: Refusal = Refusal::new(Errno::Io, "the command failed; the bridge's log says why");
const LOST: Refusal =
    Refusal::new(Errno::Io, "the target was lost since the last flush: unflushed writes may be lost");
const ENDING: Refusal = Refusal::new(Errno::Shutdown, "the bridge ends");

/// Why a connection ended, other than by its client.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConnectionError {
    /// The client broke the protocol.
    #[error("{0}")]
    Protocol(#[from] RequestViolation),
    /// The socket failed.
    #[error("{0}")]
    Socket(#[from] io::Error),
    /// The association ended for good.
    #[error("the target is given up")]
    TargetGone,
}

/// What the thread does with the bytes that arrive next.
#[derive(Debug)]
enum Stage {
    /// A request begins.
    Head,
    /// The payload of a write arrives, part by part.
    Payload { slot: u16, part: Option<(Buffer, usize)> },
    /// The payload of a refused request arrives.
    Drop { left: u64, reply: ReplyHead },
    /// Commands of a request are still to be submitted.
    Parts { slot: u16 },
}

/// A request in work: one or more commands.
#[derive(Debug)]
struct Work {
    request: Request,
    task: Task,
    /// Bytes of each command but the last.
    part_bytes: u64,
    parts: u32,
    submitted: u32,
    done: u32,
    failure: Option<Refusal>,
    /// The commands are done, and a Flush makes them durable.
    is_flushing: bool,
    /// Data of a read that is sent in one piece.
    whole: Vec<Option<Buffer>>,
}

/// Bytes that were received, and not yet looked at.
#[derive(Debug)]
struct Staging {
    bytes: Box<[u8]>,
    start: usize,
    end: usize,
}

impl Staging {
    fn new(first: &[u8]) -> Self {
        let mut bytes = resident(STAGING_BYTES.max(first.len()));
        bytes[..first.len()].copy_from_slice(first);
        Self { bytes, start: 0, end: first.len() }
    }

    #[inline]
    fn filled(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }

    #[inline]
    fn take(&mut self, count: usize) {
        self.start += count;
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
    }

    /// Room behind what is there.
    fn room(&mut self) -> &mut [u8] {
        if self.start > 0 {
            self.bytes.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        &mut self.bytes[self.end..]
    }
}

/// A connection, but for its lane.
struct State<'a> {
    socket: ClientSocket<'a>,
    session: Session,
    association: &'a Association,
    namespace: Namespace,
    flushes: FlushMember,
    pool: Pool,
    staging: Staging,
    stage: Stage,
    work: Vec<Work>,
    free: Vec<u16>,
    /// Requests whose Flush is to be submitted.
    to_flush: Vec<u16>,
    outgoing: Outgoing,
    /// The socket may have bytes.
    may_receive: bool,
    /// No more requests: the client has ended, or is gone.
    is_ended: bool,
    log: FailureLog,
}

/// Serves a connection until its end. `first` are bytes that have arrived behind the handshake.
///
/// # Errors
/// Why it ended, if the client did not end it.
pub(crate) fn serve(
    socket: ClientSocket<'_>,
    session: Session,
    (association, namespace): (&Association, Namespace),
    flushes: FlushMember,
    lane: &mut Lane<Buffer>,
    first: &[u8],
    is_ending: &AtomicBool,
) -> Result<(), ConnectionError> {
    let pool = Pool::new(session.export.block_bytes);
    let nothing = Request { flags: CommandFlags::default(), command: 0, cookie: 0, offset: 0, length: 0 };
    let idle = || Work {
        request: nothing,
        task: Task::Cache,
        part_bytes: 0,
        parts: 0,
        submitted: 0,
        done: 0,
        failure: None,
        is_flushing: false,
        whole: Vec::new(),
    };
    let mut state = State {
        socket,
        session,
        association,
        namespace,
        flushes,
        pool,
        staging: Staging::new(first),
        stage: Stage::Head,
        work: (0..REQUEST_COUNT).map(|_| idle()).collect(),
        free: (0..REQUEST_COUNT).rev().collect(),
        to_flush: Vec::with_capacity(REQUEST_COUNT.into()),
        outgoing: Outgoing::new(),
        may_receive: true,
        is_ended: false,
        log: FailureLog::default(),
    };
    let served = state.run(lane, is_ending);
    state.tell_unlogged();
    state.socket.close();
    if served.is_err() {
        // What is under way may change data: no later connection finds it still to come.
        state.outgoing.close(&mut state.pool);
        state.drain(lane);
    }
    served
}

impl State<'_> {
    fn run(&mut self, lane: &mut Lane<Buffer>, is_ending: &AtomicBool) -> Result<(), ConnectionError> {
        loop {
            self.outgoing.send(&mut self.socket, &mut self.pool)?;
            self.is_ended |= is_ending.load(Ordering::Relaxed) && matches!(self.stage, Stage::Head);
            let before = lane.outstanding();
            self.submit_flushes(lane);
            self.advance(lane)?;
            if lane.outstanding() != before {
                lane.ring();
            }
            // What could be answered at once.
            self.outgoing.send(&mut self.socket, &mut self.pool)?;
            if self.is_done(lane) {
                return Ok(());
            }
            let beside =
                WaitBeside::new(self.socket.fd(), self.wants_input(lane), self.outgoing.is_blocked());
            let ended = lane.wait_beside(&mut |completion| self.on_completion(completion), beside, SLEEP);
            if ended.is_ready {
                self.may_receive = true;
                self.outgoing.on_writable();
            } else if ended.completions == 0 && lane.over().is_some() {
                self.outgoing.send(&mut self.socket, &mut self.pool)?;
                return Err(ConnectionError::TargetGone);
            }
        }
    }

    /// Waits until all commands have ended.
    fn drain(&mut self, lane: &mut Lane<Buffer>) {
        self.is_ended = true;
        while lane.outstanding() > 0 {
            lane.wait_with(&mut |completion| self.on_completion(completion), SLEEP);
        }
    }

    /// Whether the client's last request is answered.
    fn is_done(&self, lane: &Lane<Buffer>) -> bool {
        let is_between = matches!(self.stage, Stage::Head | Stage::Payload { .. } | Stage::Drop { .. });
        self.is_ended
            && is_between
            && lane.outstanding() == 0
            && self.to_flush.is_empty()
            && self.outgoing.is_empty()
    }

    /// Whether bytes that arrive can be used.
    fn wants_input(&self, lane: &Lane<Buffer>) -> bool {
        !self.is_ended
            && match &self.stage {
                Stage::Head => self.can_begin(),
                Stage::Payload { part, .. } => (part.is_some() || self.pool.has_some()) && lane.has_room(1),
                Stage::Drop { .. } => true,
                Stage::Parts { .. } => false,
            }
    }

    /// Whether a request can be taken up.
    fn can_begin(&self) -> bool {
        !self.free.is_empty() && self.outgoing.has_room()
    }

    /// Takes up what has arrived, as far as there is room for it.
    fn advance(&mut self, lane: &mut Lane<Buffer>) -> Result<(), ConnectionError> {
        loop {
            let is_on_its_way = match &self.stage {
                Stage::Head => self.begin_request()?,
                Stage::Parts { slot } => {
                    let slot = *slot;
                    self.submit_parts(slot, lane)
                }
                Stage::Payload { .. } => self.fill_payload(lane)?,
                Stage::Drop { .. } => self.drop_payload(),
            };
            if is_on_its_way {
                continue;
            }
            if !(self.may_receive && self.wants_input(lane)) {
                return Ok(());
            }
            self.receive()?;
        }
    }

    /// Receives into the staging buffer.
    fn receive(&mut self) -> Result<(), ConnectionError> {
        let room = self.staging.room();
        let wanted = room.len();
        let received = self.socket.receive(&mut [IoSliceMut::new(room)]);
        let count = self.count_of(received)?;
        self.staging.end += count;
        self.may_receive = count == wanted || self.socket.has_more();
        Ok(())
    }

    /// Bytes that were received. The end of the stream ends the requests.
    fn count_of(&mut self, received: Received) -> Result<usize, ConnectionError> {
        match received {
            Received::Bytes(count) => Ok(count),
            Received::Dry => Ok(0),
            Received::Ended => {
                self.is_ended = true;
                Ok(0)
            }
            Received::Failed(error) => Err(error.into()),
        }
    }

    /// Begins the next request, if it has arrived. Returns whether it has.
    #[inline]
    fn begin_request(&mut self) -> Result<bool, ConnectionError> {
        if self.is_ended || !self.can_begin() {
            return Ok(false);
        }
        let form = self.session.form;
        let Some(request) = Request::from_bytes(form, self.staging.filled())? else { return Ok(false) };
        self.staging.take(Request::head_bytes(form));
        let payload_bytes = self.session.payload_bytes(&request)?;
        match self.session.judge(&request) {
            Ok(Task::Disconnect) => self.is_ended = true,
            Ok(task) => self.begin(request, task),
            Err(refusal) => {
                tracing::debug!(?request, %refusal, "NBD request refused");
                let reply = ReplyHead::failed(form, request.cookie, request.offset, refusal);
                self.stage = Stage::Drop { left: payload_bytes, reply };
            }
        }
        Ok(true)
    }

    fn begin(&mut self, request: Request, task: Task) {
        let form = self.session.form;
        let Request { cookie, offset, length, .. } = request;
        let block_bytes = u64::from(self.namespace.lba_bytes());
        let part_blocks = match task {
            Task::Read { .. } | Task::Write { .. } => {
                let block_bytes = self.namespace.lba_bytes();
                Pool::part_bytes(block_bytes, self.namespace.transfer_blocks_max()) / block_bytes
            }
            Task::Trim { .. } => {
                self.namespace.limits().deallocate_range_blocks_max.unwrap_or(u32::MAX).max(1)
            }
            Task::WriteZeroes { .. } => self.namespace.write_zeroes_blocks_max(),
            Task::Flush if self.flushes.take_loss() => {
                return self.outgoing.push_head(ReplyHead::failed(form, cookie, offset, LOST));
            }
            Task::Flush => {
                self.flushes.on_flush();
                1
            }
            Task::BlockStatus { .. } if !self.namespace.has_lba_status() => {
                let (length, status) = self.ask_by_admin_queue(offset, length);
                let head = ReplyHead::one_extent(form, cookie, offset, ALLOCATION, length, status);
                return self.outgoing.push_head(head);
            }
            Task::BlockStatus { .. } => 1,
            Task::Cache | Task::Disconnect => {
                return self.outgoing.push_head(ReplyHead::done(form, cookie, offset));
            }
        };
        let part_bytes = u64::from(part_blocks) * block_bytes;
        // A Flush is one command without a range, and one command asks for the status of all.
        let parts = match task {
            Task::BlockStatus { .. } => 1,
            _ => u32::try_from(length.div_ceil(part_bytes).max(1)).unwrap_or(u32::MAX),
        };
        let part_bytes = if let Task::BlockStatus { .. } = task { length } else { part_bytes };
        let Some(slot) = self.free.pop() else { return };
        let work = &mut self.work[usize::from(slot)];
        let whole = std::mem::take(&mut work.whole);
        *work = Work {
            request,
            task,
            part_bytes,
            parts,
            submitted: 0,
            done: 0,
            failure: None,
            is_flushing: false,
            whole,
        };
        if let Task::Read { is_whole: true } = task {
            work.whole.clear();
            work.whole.resize_with(parts as usize, || None);
        }
        self.stage = match task {
            Task::Write { .. } => Stage::Payload { slot, part: None },
            _ => Stage::Parts { slot },
        };
    }

    /// Drops what has arrived of a payload. Returns whether that was all of it.
    fn drop_payload(&mut self) -> bool {
        let Stage::Drop { left, reply } = &mut self.stage else { return false };
        let count = usize::try_from(*left).unwrap_or(usize::MAX).min(self.staging.filled().len());
        self.staging.take(count);
        *left -= count as u64;
        if *left > 0 {
            return false;
        }
        self.outgoing.push_head(*reply);
        self.stage = Stage::Head;
        true
    }

    /// Moves the payload of a write into buffers, and submits each. Returns whether the payload is complete.
    fn fill_payload(&mut self, lane: &mut Lane<Buffer>) -> Result<bool, ConnectionError> {
        loop {
            let Stage::Payload { slot, part } = &mut self.stage else { return Ok(false) };
            let slot = *slot;
            let length = data_bytes(part_of(&self.work[usize::from(slot)], None).1);
            let (buffer, filled) = match part {
                Some((buffer, filled)) => (buffer, filled),
                None => {
                    let Some(buffer) = self.pool.take(length) else { return Ok(false) };
                    let (buffer, filled) = part.insert((buffer, 0));
                    (buffer, filled)
                }
            };
            let arrived = self.staging.filled();
            let count = arrived.len().min(length as usize - *filled);
            buffer.as_mut_bytes()[*filled..*filled + count].copy_from_slice(&arrived[..count]);
            *filled += count;
            self.staging.take(count);
            let left = length as usize - *filled;
            if left > 0 {
                if left < DIRECT_BYTES || !self.may_receive {
                    return Ok(false);
                }
                self.receive_payload()?;
                if self.is_ended {
                    return Ok(false);
                }
                continue;
            }
            if !lane.has_room(1) {
                return Ok(false);
            }
            let Stage::Payload { part, .. } = &mut self.stage else { return Ok(false) };
            let Some((buffer, _)) = part.take() else { return Ok(false) };
            self.submit(slot, Some(buffer), lane);
            let work = &self.work[usize::from(slot)];
            if work.submitted == work.parts {
                self.stage = Stage::Head;
                return Ok(true);
            }
        }
    }

    /// Receives the rest of a part into its buffer, and what follows into the staging buffer, which is empty.
    fn receive_payload(&mut self) -> Result<(), ConnectionError> {
        let Stage::Payload { part: Some((buffer, filled)), .. } = &mut self.stage else { return Ok(()) };
        let room = &mut buffer.as_mut_bytes()[*filled..];
        let (room_bytes, staging_bytes) = (room.len(), self.staging.bytes.len());
        let mut slices = [IoSliceMut::new(room), IoSliceMut::new(&mut self.staging.bytes)];
        let received = self.socket.receive(&mut slices);
        let received = match received {
            Received::Bytes(count) => count,
            ended => return self.count_of(ended).map(|_| self.may_receive = false),
        };
        self.may_receive = received == room_bytes + staging_bytes || self.socket.has_more();
        let direct = received.min(room_bytes);
        *filled += direct;
        self.staging.end = received - direct;
        Ok(())
    }

    /// Submits commands of a request while there is room. Returns whether all are submitted.
    #[inline]
    fn submit_parts(&mut self, slot: u16, lane: &mut Lane<Buffer>) -> bool {
        loop {
            let work = &self.work[usize::from(slot)];
            if work.submitted == work.parts {
                self.stage = Stage::Head;
                return true;
            }
            if !lane.has_room(1) {
                return false;
            }
            let buffer = match work.task {
                Task::Read { .. } => {
                    let length = data_bytes(part_of(work, None).1);
                    match self.pool.take(length) {
                        Some(buffer) => Some(buffer),
                        None => return false,
                    }
                }
                Task::BlockStatus { is_single } => {
                    match self.pool.take(status_bytes(&self.namespace, is_single)) {
                        Some(buffer) => Some(buffer),
                        None => return false,
                    }
                }
                _ => None,
            };
            self.submit(slot, buffer, lane);
        }
    }

    /// Submits the next command of a request. The lane has room.
    #[inline]
    fn submit(&mut self, slot: u16, buffer: Option<Buffer>, lane: &mut Lane<Buffer>) {
        let work = &mut self.work[usize::from(slot)];
        let part = work.submitted;
        work.submitted += 1;
        let (offset, bytes) = part_of(work, Some(part));
        let user = user_of(slot, part);
        let command = command_of(&self.namespace, work.task, offset, bytes);
        if let Some(buffer) = submit(lane, command, buffer, user) {
            self.on_part(slot, part, Err(ENDING), buffer);
        }
    }

    /// Submits the Flush of each request that is durable only by one.
    fn submit_flushes(&mut self, lane: &mut Lane<Buffer>) {
        while lane.has_room(1)
            && let Some(slot) = self.to_flush.pop()
        {
            let part = self.work[usize::from(slot)].parts;
            let user = user_of(slot, part);
            self.flushes.on_flush();
            if lane.submit(self.namespace.flush(), None, user).is_err() {
                self.on_part(slot, part, Err(ENDING), None);
            }
        }
    }

    #[inline]
    fn on_completion(&mut self, mut completion: Completion<Buffer>) {
        let (slot, part) = slot_and_part(completion.user);
        let work = &self.work[usize::from(slot)];
        let is_flush = work.is_flushing || work.task == Task::Flush;
        if let (Task::BlockStatus { .. }, Some(buffer)) = (work.task, &mut completion.buffer) {
            buffer.set_length(completion.received);
        }
        let result = match completion.result {
            Ok(_) if is_flush && self.flushes.take_loss() => Err(LOST),
            Ok(_) => {
                if work.task.leaves_unflushed() {
                    self.flushes.note_write();
                }
                Ok(())
            }
            Err(failure) => {
                let task = work.task;
                self.log(failure, task);
                if is_flush && !matches!(failure, Failure::NoConnection { .. } | Failure::Cancelled) {
                    self.flushes.on_failed();
                }
                if failure == Failure::Unflushed { Err(LOST) } else { Err(refusal_of(failure, task)) }
            }
        };
        self.on_part(slot, part, result, completion.buffer);
    }

    /// A command of a request has ended.
    #[inline]
    fn on_part(&mut self, slot: u16, part: u32, result: Result<(), Refusal>, buffer: Option<Buffer>) {
        let form = self.session.form;
        let work = &mut self.work[usize::from(slot)];
        let Request { cookie, offset, .. } = work.request;
        work.done += 1;
        let is_last = work.done >= work.parts;
        if let Err(refusal) = result {
            work.failure.get_or_insert(refusal);
        }
        match (work.task, buffer) {
            (Task::Read { is_whole: false }, buffer) => {
                let (at, bytes) = part_of(work, Some(part));
                match (result, buffer) {
                    (Ok(()), Some(buffer)) => {
                        let bytes = data_bytes(bytes);
                        self.outgoing.push_head(ReplyHead::data(form, cookie, offset, at, bytes, is_last));
                        self.outgoing.push_data(buffer, &mut self.pool);
                    }
                    (result, buffer) => {
                        let refusal = result.err().unwrap_or(FAILED);
                        let head = ReplyHead::failed_at(form, cookie, offset, refusal, at, is_last);
                        self.outgoing.push_head(head);
                        buffer.into_iter().for_each(|buffer| self.pool.put(buffer));
                    }
                }
                if is_last {
                    self.free.push(slot);
                }
                return;
            }
            (Task::Read { is_whole: true }, Some(buffer)) => {
                work.whole[part as usize] = Some(buffer);
            }
            (Task::BlockStatus { is_single }, Some(buffer)) if result.is_ok() => {
                self.free.push(slot);
                return self.send_extents(slot, is_single, buffer);
            }
            (_, Some(buffer)) => self.pool.put(buffer),
            (_, None) => {}
        }
        if is_last {
            self.finish(slot);
        }
    }

    /// The first extent of a range of a target that tells of it on its admin queue, if at all: its length and status. What
    /// is not known to be a hole is data. The client's other requests wait meanwhile.
    #[cold]
    fn ask_by_admin_queue(&mut self, offset: u64, length: u64) -> (u64, u32) {
        let namespace = &self.namespace;
        if !namespace.has_admin_lba_status() {
            return (length, 0);
        }
        let block_bytes = u64::from(namespace.lba_bytes());
        let (lba, blocks) = (offset / block_bytes, length / block_bytes);
        match self.association.allocated_blocks(namespace, lba, blocks, SINGLE_STATUS_BYTES) {
            Ok(AllocatedBlocks { range, allocated }) => match allocated.first() {
                Some(first) if first.start == lba => ((first.end - lba) * block_bytes, 0),
                first => {
                    let end = first.map_or(range.end, |first| first.start);
                    ((end - lba) * block_bytes, hole_status(namespace))
                }
            },
            Err(error) => {
                if let Some(unlogged) = self.log.admit() {
                    let export = &self.session.export.name;
                    tracing::warn!(export, %error, unlogged, "the target does not tell which blocks are allocated");
                }
                (length, 0)
            }
        }
    }

    /// Answers a request for block status with what its command has received.
    #[cold]
    fn send_extents(&mut self, slot: u16, is_single: bool, mut buffer: Buffer) {
        let form = self.session.form;
        let Request { cookie, offset, length, .. } = self.work[usize::from(slot)].request;
        let block_bytes = u64::from(self.namespace.lba_bytes());
        let told =
            self.namespace.allocated_blocks(offset / block_bytes, length / block_bytes, buffer.as_bytes());
        let AllocatedBlocks { range, allocated } = match told {
            Ok(told) => told,
            Err(error) => {
                if let Some(unlogged) = self.log.admit() {
                    let export = &self.session.export.name;
                    tracing::warn!(export, %error, unlogged, "the target's list of allocated blocks is invalid");
                }
                self.outgoing.push_head(ReplyHead::failed(form, cookie, offset, FAILED));
                return self.pool.put(buffer);
            }
        };
        let hole_status = hole_status(&self.namespace);
        let in_bytes = |blocks: std::ops::Range<u64>| blocks.start * block_bytes..blocks.end * block_bytes;
        buffer.set_whole();
        let data = allocated.into_iter().map(in_bytes);
        let bytes = write_extents(form, in_bytes(range), data, hole_status, is_single, buffer.as_mut_bytes());
        let bytes = u32::try_from(bytes).unwrap_or(0);
        buffer.set_length(bytes);
        self.outgoing.push_head(ReplyHead::extents(form, cookie, offset, ALLOCATION, bytes));
        self.outgoing.push_data(buffer, &mut self.pool);
    }

    /// All commands of a request have ended.
    #[inline]
    fn finish(&mut self, slot: u16) {
        let form = self.session.form;
        let work = &mut self.work[usize::from(slot)];
        let Request { cookie, offset, length, .. } = work.request;
        if let (Task::Trim { is_durable: true }, None, false) = (work.task, work.failure, work.is_flushing) {
            // Dataset Management has no FUA.
            work.is_flushing = true;
            self.to_flush.push(slot);
            return;
        }
        match work.failure {
            Some(refusal) => {
                self.outgoing.push_head(ReplyHead::failed(form, cookie, offset, refusal));
                work.whole.drain(..).flatten().for_each(|buffer| self.pool.put(buffer));
            }
            None => match work.task {
                Task::Read { .. } => {
                    let bytes = data_bytes(length);
                    self.outgoing.push_head(ReplyHead::data(form, cookie, offset, offset, bytes, true));
                    for buffer in work.whole.drain(..).flatten() {
                        self.outgoing.push_data(buffer, &mut self.pool);
                    }
                }
                _ => self.outgoing.push_head(ReplyHead::done(form, cookie, offset)),
            },
        }
        self.free.push(slot);
    }

    /// Logs a failure, at most one a second.
    #[cold]
    fn log(&mut self, failure: Failure, task: Task) {
        if let Some(unlogged) = self.log.admit() {
            tracing::warn!(export = self.session.export.name, ?task, %failure, unlogged, "NBD request failed");
        }
    }

    fn tell_unlogged(&mut self) {
        let count = self.log.take_unlogged();
        if count > 0 {
            tracing::warn!(export = self.session.export.name, count, "NBD requests failed besides");
        }
    }
}

/// The `user` of a part's command.
#[inline]
fn user_of(slot: u16, part: u32) -> u64 {
    u64::from(slot) | u64::from(part) << 32
}

/// The request and part of a `user`.
#[inline]
fn slot_and_part(user: u64) -> (u16, u32) {
    let [low, high, _, _, part @ ..] = user.to_le_bytes();
    (u16::from_le_bytes([low, high]), u32::from_le_bytes(part))
}

/// First byte and length of a part, or of the next one.
#[inline]
fn part_of(work: &Work, part: Option<u32>) -> (u64, u64) {
    let start = u64::from(part.unwrap_or(work.submitted)) * work.part_bytes;
    let length = work.request.length.saturating_sub(start).min(work.part_bytes);
    (work.request.offset + start, length)
}

/// The status of deallocated blocks.
fn hole_status(namespace: &Namespace) -> u32 {
    let reads_zeroes = namespace.info().deallocated_value == DeallocatedValue::ZEROES;
    if reads_zeroes { STATE_HOLE | STATE_ZERO } else { STATE_HOLE }
}

/// Bytes of a list of allocated blocks.
fn status_bytes(namespace: &Namespace, is_single: bool) -> u32 {
    let most = if is_single { SINGLE_STATUS_BYTES } else { STATUS_BYTES };
    most.min(namespace.limits().transfer_bytes_max)
}

/// Length of a part that has data, which is at most that of a buffer.
#[inline]
fn data_bytes(length: u64) -> u32 {
    u32::try_from(length).unwrap_or(u32::MAX)
}

/// The command for a part of a request.
#[inline]
fn command_of(
    namespace: &Namespace,
    task: Task,
    offset: u64,
    bytes: u64,
) -> Result<Command, host::InvalidCommand> {
    let lba_bytes = u64::from(namespace.lba_bytes());
    let (lba, blocks) = (offset / lba_bytes, u32::try_from(bytes / lba_bytes).unwrap_or(u32::MAX));
    let durable = |command: Command, is_durable| if is_durable { command.fua() } else { command };
    match task {
        Task::Read { .. } => namespace.read(lba, blocks),
        Task::Write { is_durable } => Ok(durable(namespace.write(lba, blocks)?, is_durable)),
        Task::WriteZeroes { may_deallocate, is_durable } => {
            Ok(durable(namespace.write_zeroes(lba, blocks, may_deallocate)?, is_durable))
        }
        Task::Trim { .. } => namespace.deallocate(&[BlockRange { lba, blocks }]),
        Task::BlockStatus { is_single } => {
            namespace.lba_status(lba, bytes / lba_bytes, status_bytes(namespace, is_single))
        }
        Task::Flush | Task::Cache | Task::Disconnect => Ok(namespace.flush()),
    }
}

/// The error of a client for a command that failed.
#[cold]
fn refusal_of(failure: Failure, task: Task) -> Refusal {
    let Some(status) = failure.status() else { return FAILED };
    let is = |code| status.is(code);
    if is(Status::LBA_OUT_OF_RANGE) {
        let is_read = matches!(task, Task::Read { .. } | Task::Trim { .. });
        let errno = if is_read { Errno::Inval } else { Errno::NoSpace };
        Refusal::new(errno, "beyond the end of the namespace, which was made smaller")
    } else if is(Status::CAPACITY_EXCEEDED) {
        Refusal::new(Errno::NoSpace, "the storage of the target is full")
    } else if is(Status::NAMESPACE_WRITE_PROTECTED) || is(Status::WRITE_TO_READ_ONLY_RANGE) {
        Refusal::new(Errno::Perm, "the namespace is write protected")
    } else {
        FAILED
    }
}
