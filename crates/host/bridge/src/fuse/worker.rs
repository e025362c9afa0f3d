//! The thread that moves requests from the device to a lane, and replies back.
//!
//! ```text
//!  /dev/fuse ─read─▶ head, intake ─▶ request ─▶ parts ─▶ lane
//!  /dev/fuse ◀─write─ reply, buffers ◀──────────────────┘ completions
//! ```
//!
//! Memory is fixed at the start. The payload of a write is received into the buffers of its commands. A request that finds no
//! buffer waits, and no further one is taken meanwhile.

use std::collections::VecDeque;
use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use host::{Command, Completion, Failure, FlushEpoch, InvalidCommand, Lane, Namespace, Status, WaitBeside};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::{Errno, readv, writev};

use super::directory::{Directory, FileInfo, Task, Turn};
use super::init::Init;
use super::reply::{Listing, Reply};
use super::request::{Operation, Request, WRITE_HEAD_BYTES};
use super::shared::{Served, Shared};
use crate::buffers::{Buffer, Pool};
use crate::failure_log::FailureLog;
use crate::flush_ledger::{FlushLedger, FlushMember};
use crate::lanes::submit;

/// Requests in work at once.
const REQUEST_COUNT: u16 = 128;

/// Longest read or write, bytes.
const TRANSFER_BYTES_MAX: u32 = 1 << 20;

/// Buffers that a payload arrives in, at most: a quarter of all.
const INTAKE_COUNT_MAX: u32 = 16;

/// Parts of a request, at most: those of the longest transfer, which may begin and end within blocks.
const PARTS_MAX: usize = INTAKE_COUNT_MAX as usize + 2;

/// Bytes of a request that is no write: names have 255.
const REQUEST_BYTES_MAX: usize = 1024;

/// Longest sleep.
const SLEEP: Duration = Duration::from_secs(3600);

/// Why the thread has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// The directory was unmounted.
    Unmounted,
    /// The bridge ends.
    Asked,
    /// The device failed, or the kernel's protocol is another one.
    Failed,
}

/// What the thread does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// A request is taken.
    Head,
    /// Commands of a request are still to be submitted.
    Parts { slot: u16 },
    /// A write that begins or ends within a block changes it. No other request is taken meanwhile.
    Modify { slot: u16, step: Step },
}

/// Steps of a write within blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// Other changes are under way, or buffers are missing.
    Wait,
    /// The blocks at both ends are read.
    Read,
    /// All blocks are written.
    Write,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Read,
    Write,
    Modify,
    Zero { may_deallocate: bool },
    Flush,
}

/// A request in work: one or more commands.
#[derive(Debug)]
struct Work {
    unique: u64,
    /// Index in the list of files.
    file: usize,
    kind: Kind,
    /// The handle of a Flush.
    handle: u64,
    /// The bytes that were asked for.
    offset: u64,
    length: u64,
    /// The blocks around them, bytes.
    start: u64,
    bytes: u64,
    /// Bytes of each command but the last.
    part_bytes: u64,
    parts: u32,
    submitted: u32,
    done: u32,
    failure: Option<Errno>,
    /// Data of a read, and of blocks that are changed.
    data: Vec<Option<Buffer>>,
}

impl Work {
    /// First byte and bytes of a part.
    #[inline]
    fn part(&self, part: u32) -> (u64, u64) {
        let before = u64::from(part) * self.part_bytes;
        (self.start + before, self.bytes.saturating_sub(before).min(self.part_bytes))
    }

    /// Whether the request changes only some of a part's bytes.
    fn is_partly_covered(&self, part: u32) -> bool {
        let (start, bytes) = self.part(part);
        start < self.offset || start + bytes > self.offset + self.length
    }
}

/// A file, beside what the directory knows of it.
#[derive(Debug)]
struct File {
    node: u64,
    namespace: Namespace,
    ledger: Arc<FlushLedger>,
}

/// The thread, but for its lane.
pub(crate) struct Worker {
    shared: Arc<Shared>,
    directory: Directory,
    files: Vec<File>,
    infos: Vec<FileInfo>,
    /// Files that programs have open.
    handles: Vec<Option<FlushMember>>,
    listing: Listing,
    pool: Pool,
    /// Bytes of the data of one command.
    part_bytes: u32,
    head: [u8; WRITE_HEAD_BYTES],
    intake: VecDeque<Buffer>,
    intake_count: usize,
    stage: Stage,
    work: Vec<Work>,
    free: Vec<u16>,
    /// Requests in work that change data.
    changing: usize,
    may_receive: bool,
    ended: Option<Ended>,
    log: FailureLog,
}

impl Worker {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        let served = shared.served();
        let part_bytes = part_bytes(&served);
        let block_bytes = served.iter().map(|served| served.namespace.lba_bytes()).max().unwrap_or(512);
        let intake_count = (TRANSFER_BYTES_MAX / part_bytes).clamp(1, INTAKE_COUNT_MAX) as usize;
        let idle = || Work {
            unique: 0,
            file: 0,
            kind: Kind::Flush,
            handle: 0,
            offset: 0,
            length: 0,
            start: 0,
            bytes: 0,
            part_bytes: 1,
            parts: 0,
            submitted: 0,
            done: 0,
            failure: None,
            data: Vec::with_capacity(PARTS_MAX),
        };
        let mut worker = Self {
            directory: Directory::new(shared.file_settings(), Vec::new()),
            shared,
            files: Vec::new(),
            infos: Vec::new(),
            handles: Vec::new(),
            listing: Listing::default(),
            pool: Pool::new(block_bytes),
            part_bytes,
            head: [0; WRITE_HEAD_BYTES],
            intake: VecDeque::with_capacity(intake_count),
            intake_count,
            stage: Stage::Head,
            work: (0..REQUEST_COUNT).map(|_| idle()).collect(),
            free: (0..REQUEST_COUNT).rev().collect(),
            changing: 0,
            may_receive: true,
            ended: None,
            log: FailureLog::default(),
        };
        worker.set_files(served);
        worker
    }

    /// Serves the directory until its end.
    pub(crate) fn run(&mut self, lane: &mut Lane<Buffer>) -> Ended {
        loop {
            let before = lane.outstanding();
            self.advance(lane);
            if lane.outstanding() != before {
                lane.ring();
            }
            let is_idle = self.is_idle();
            if self.shared.is_ending.load(Ordering::Relaxed) && is_idle {
                self.ended.get_or_insert(Ended::Asked);
            }
            if let Some(ended) = self.ended.filter(|_| is_idle) {
                self.log_unlogged();
                return ended;
            }
            let shared = Arc::clone(&self.shared);
            if lane.over().is_some() && is_idle {
                // Whatever needs the target fails, until the directory is unmounted.
                let mut fds = [PollFd::new(&shared.device, PollFlags::IN)];
                let _ = poll(&mut fds, None);
                self.may_receive = true;
                continue;
            }
            let beside = WaitBeside::new(shared.device.as_fd(), self.wants_request(), false);
            let ended = lane.wait_beside(&mut |completion| self.on_completion(completion), beside, SLEEP);
            // Programs that were answered may have gone on meanwhile.
            self.may_receive |= ended.is_ready || (ended.completions > 0 && !self.is_idle());
        }
    }

    fn is_idle(&self) -> bool {
        self.free.len() == self.work.len()
    }

    /// Whether a request may be taken: there are a slot, and buffers for a payload.
    #[inline]
    fn wants_request(&self) -> bool {
        self.stage == Stage::Head
            && self.ended.is_none()
            && !self.shared.is_ending.load(Ordering::Relaxed)
            && !self.free.is_empty()
            && (self.intake.len() == self.intake_count || self.pool.has_some())
    }

    /// Goes on with what is begun, and takes what has arrived, as far as there is room for it.
    fn advance(&mut self, lane: &mut Lane<Buffer>) {
        loop {
            let is_on_its_way = match self.stage {
                Stage::Head => self.may_receive && self.take_request(lane),
                Stage::Parts { slot } => self.submit_parts(slot, lane),
                Stage::Modify { slot, step } => self.modify(slot, step, lane),
            };
            if !is_on_its_way {
                return;
            }
        }
    }

    /// Takes a request. Returns whether another one may be there.
    #[inline]
    fn take_request(&mut self, lane: &mut Lane<Buffer>) -> bool {
        if self.free.is_empty() || self.ended.is_some() || self.shared.is_ending.load(Ordering::Relaxed) {
            return false;
        }
        while self.intake.len() < self.intake_count {
            let Some(buffer) = self.pool.take(self.part_bytes) else { return false };
            self.intake.push_back(buffer);
        }
        let length = match self.receive() {
            Ok(length) => length,
            Err(error) => return self.on_receive_error(error),
        };
        if self.shared.has_changed.swap(false, Ordering::Relaxed) {
            let served = self.shared.served();
            self.set_files(served);
        }
        self.begin(length, lane);
        // A program that waits for its only request sends no other one: looking costs a call.
        self.may_receive = self.free.len() + 1 < self.work.len();
        true
    }

    /// Reads a request: its head, and the rest into the intake.
    #[inline]
    fn receive(&mut self) -> Result<usize, Errno> {
        let device = self.shared.device.as_fd();
        let count = self.intake.len() + 1;
        let mut buffers = self.intake.iter_mut();
        let mut slices: [IoSliceMut<'_>; PARTS_MAX] = std::array::from_fn(|index| match index {
            0 => IoSliceMut::new(&mut []),
            _ => IoSliceMut::new(buffers.next().map_or(&mut [], Buffer::as_mut_bytes)),
        });
        slices[0] = IoSliceMut::new(&mut self.head);
        readv(device, &mut slices[..count])
    }

    #[cold]
    fn on_receive_error(&mut self, error: Errno) -> bool {
        match error {
            Errno::AGAIN => {
                self.may_receive = false;
                false
            }
            // The request was interrupted before it was read.
            Errno::INTR | Errno::NOENT => true,
            Errno::NODEV => {
                self.ended = Some(Ended::Unmounted);
                false
            }
            error => {
                tracing::error!(%error, "FUSE device cannot be read");
                self.ended = Some(Ended::Failed);
                false
            }
        }
    }

    /// Begins the request that was read.
    #[inline]
    fn begin(&mut self, length: usize, lane: &mut Lane<Buffer>) {
        let mut bytes = [0; REQUEST_BYTES_MAX];
        let bytes = if length <= WRITE_HEAD_BYTES {
            &self.head[..length]
        } else {
            let behind = self.intake.front().map_or(&[][..], Buffer::as_bytes);
            let count = behind.len().min(length - WRITE_HEAD_BYTES).min(bytes.len() - WRITE_HEAD_BYTES);
            bytes[..WRITE_HEAD_BYTES].copy_from_slice(&self.head);
            bytes[WRITE_HEAD_BYTES..][..count].copy_from_slice(&behind[..count]);
            &bytes[..WRITE_HEAD_BYTES + count]
        };
        let request = match Request::from_bytes(bytes, length) {
            Ok(request) => request,
            Err(error) => {
                tracing::warn!(%error, "FUSE request is not understood");
                if let Some(unique) = Request::unique_of(bytes) {
                    self.reply(&Reply::failed(unique, Errno::INVAL));
                }
                return;
            }
        };
        let unique = request.unique;
        if let Operation::Init { major, minor, max_readahead, flags } = request.operation {
            return self.init(unique, (major, minor), max_readahead, flags);
        }
        match self.directory.judge(&request, &mut self.listing) {
            Turn::Nothing => {}
            Turn::Reply(reply) => self.reply(&reply),
            Turn::Listing => {
                let listing = self.listing.as_bytes();
                let head = Reply::data(unique, u32::try_from(listing.len()).unwrap_or(u32::MAX));
                self.send(&[IoSlice::new(head.as_bytes()), IoSlice::new(listing)]);
            }
            Turn::Task(task) => self.begin_task(unique, task, lane),
        }
    }

    /// Longest read or write, bytes.
    fn transfer_bytes_max(&self) -> u32 {
        self.part_bytes.saturating_mul(u32::try_from(self.intake_count).unwrap_or(1))
    }

    fn init(&mut self, unique: u64, version: (u32, u32), max_readahead: u32, flags: u64) {
        let transfer_bytes_max = self.transfer_bytes_max();
        match Init::answer(unique, version, max_readahead, flags, transfer_bytes_max) {
            Ok(init) => {
                tracing::debug!(minor = init.minor, transfer_bytes_max, "FUSE connection begins");
                self.reply(&init.reply);
            }
            Err(error) => {
                tracing::error!(%error, "FUSE connection fails");
                self.reply(&Reply::failed(unique, Errno::PROTO));
                self.ended = Some(Ended::Failed);
            }
        }
    }

    #[inline]
    fn begin_task(&mut self, unique: u64, task: Task, lane: &mut Lane<Buffer>) {
        let (file, kind, offset, length, handle) = match task {
            Task::Open { file, is_direct } => {
                let handle = self.open(file, lane);
                return self.reply(&Directory::opened(unique, handle, is_direct));
            }
            Task::Release { handle } => {
                if let Some(handle) = usize::try_from(handle).ok().and_then(|at| self.handles.get_mut(at)) {
                    *handle = None;
                }
                return self.reply(&Reply::done(unique));
            }
            Task::Read { file, offset, length } => (file, Kind::Read, offset, length.into(), 0),
            Task::Write { file, offset, length } => (file, Kind::Write, offset, length.into(), 0),
            Task::Zero { file, offset, length, may_deallocate } => {
                (file, Kind::Zero { may_deallocate }, offset, length, 0)
            }
            Task::Flush { file, handle } => {
                if let Some(member) = self.member(handle) {
                    if member.take_loss() {
                        return self.reply(&Reply::failed(unique, Errno::IO));
                    }
                    member.on_flush();
                }
                (file, Kind::Flush, 0, 0, handle)
            }
        };
        if matches!(kind, Kind::Read | Kind::Write) && length > self.transfer_bytes_max().into() {
            return self.reply(&Reply::failed(unique, Errno::INVAL));
        }
        let namespace = &self.files[file].namespace;
        let block_bytes = u64::from(namespace.lba_bytes());
        let start = offset / block_bytes * block_bytes;
        let bytes = (offset + length).next_multiple_of(block_bytes) - start;
        let part_bytes = match kind {
            Kind::Zero { .. } => u64::from(namespace.write_zeroes_blocks_max()) * block_bytes,
            _ => self.part_bytes.into(),
        };
        let is_whole = start == offset && bytes == length;
        let kind = if kind == Kind::Write && !is_whole { Kind::Modify } else { kind };
        // A Flush is one command without a range.
        let parts = u32::try_from(bytes.div_ceil(part_bytes).max(1)).unwrap_or(u32::MAX);
        let Some(slot) = self.free.pop() else { return };
        let work = &mut self.work[usize::from(slot)];
        let mut data = std::mem::take(&mut work.data);
        data.clear();
        if matches!(kind, Kind::Read | Kind::Modify) {
            data.resize_with(parts as usize, || None);
        }
        *work = Work {
            unique,
            file,
            kind,
            handle,
            offset,
            length,
            start,
            bytes,
            part_bytes,
            parts,
            submitted: 0,
            done: 0,
            failure: None,
            data,
        };
        self.stage = match kind {
            Kind::Modify => Stage::Modify { slot, step: Step::Wait },
            _ => Stage::Parts { slot },
        };
        self.shared.in_work.store(self.work.len() - self.free.len(), Ordering::Relaxed);
        self.changing += usize::from(matches!(kind, Kind::Write | Kind::Zero { .. }));
    }

    /// A new handle of a file.
    fn open(&mut self, file: usize, lane: &mut Lane<Buffer>) -> u64 {
        let is_settled = self.files.iter().all(|file| file.ledger.is_settled());
        if is_settled && lane.outstanding() == 0 {
            // A loss while nothing was left to flush is no loss.
            lane.share_flush_epoch(FlushEpoch::default());
            self.files.iter_mut().for_each(|file| file.ledger = Arc::default());
        }
        let handle = Some(self.files[file].ledger.join());
        let place = self.handles.iter().position(Option::is_none);
        let place = place.unwrap_or(self.handles.len());
        match self.handles.get_mut(place) {
            Some(free) => *free = handle,
            None => self.handles.push(handle),
        }
        place as u64
    }

    fn member(&self, handle: u64) -> Option<&FlushMember> {
        self.handles.get(usize::try_from(handle).ok()?)?.as_ref()
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
            let length = data_bytes(work.part(work.submitted).1);
            let buffer = match work.kind {
                Kind::Read => match self.pool.take(length) {
                    Some(buffer) => Some(buffer),
                    None => return false,
                },
                Kind::Write => self.intake.pop_front().map(|mut buffer| {
                    buffer.set_length(length);
                    buffer
                }),
                _ => None,
            };
            let part = work.submitted;
            self.submit(slot, part, work.kind, buffer, lane);
        }
    }

    /// Submits a command of a request. The lane has room.
    #[inline]
    fn submit(&mut self, slot: u16, part: u32, kind: Kind, buffer: Option<Buffer>, lane: &mut Lane<Buffer>) {
        let work = &mut self.work[usize::from(slot)];
        work.submitted += 1;
        let (start, bytes) = work.part(part);
        let command = command_of(&self.files[work.file].namespace, kind, start, bytes);
        let user = u64::from(slot) | u64::from(part) << 32;
        if let Some(buffer) = submit(lane, command, buffer, user) {
            self.on_part(slot, part, Err(Errno::IO), buffer);
        }
    }

    /// Goes on with a write within blocks: other changes end before, and none begins until it has ended. Returns whether
    /// there is more to do now.
    fn modify(&mut self, slot: u16, step: Step, lane: &mut Lane<Buffer>) -> bool {
        let work = &mut self.work[usize::from(slot)];
        match step {
            Step::Wait => {
                if self.changing > 0 {
                    return false;
                }
                for part in 0..work.parts {
                    let length = data_bytes(work.part(part).1);
                    let place = &mut work.data[part as usize];
                    if place.is_none() {
                        *place = self.pool.take(length);
                    }
                    if place.is_none() {
                        return false;
                    }
                }
                // Only the first and the last part may have bytes to keep.
                if !lane.has_room(2) {
                    return false;
                }
                self.stage = Stage::Modify { slot, step: Step::Read };
                for part in 0..work.parts {
                    let work = &mut self.work[usize::from(slot)];
                    if work.is_partly_covered(part) {
                        let buffer = work.data[part as usize].take();
                        self.submit(slot, part, Kind::Read, buffer, lane);
                    }
                }
                true
            }
            Step::Read => {
                if work.done < work.submitted {
                    return false;
                }
                if work.failure.is_some() {
                    self.finish(slot);
                    return true;
                }
                self.merge(slot);
                let work = &mut self.work[usize::from(slot)];
                (work.submitted, work.done) = (0, 0);
                self.stage = Stage::Modify { slot, step: Step::Write };
                true
            }
            Step::Write => {
                while self.work[usize::from(slot)].submitted < self.work[usize::from(slot)].parts {
                    if !lane.has_room(1) {
                        return false;
                    }
                    let work = &mut self.work[usize::from(slot)];
                    let part = work.submitted;
                    let buffer = work.data[part as usize].take();
                    self.submit(slot, part, Kind::Write, buffer, lane);
                }
                if self.work[usize::from(slot)].done < self.work[usize::from(slot)].parts {
                    return false;
                }
                self.finish(slot);
                true
            }
        }
    }

    /// Puts the payload over the blocks that were read.
    fn merge(&mut self, slot: u16) {
        let work = &mut self.work[usize::from(slot)];
        let part_bytes = data_bytes(work.part_bytes) as usize;
        let mut at = data_bytes(work.offset - work.start) as usize;
        let mut left = data_bytes(work.length) as usize;
        for payload in &self.intake {
            let mut payload = &payload.as_bytes()[..payload.as_bytes().len().min(left)];
            left -= payload.len();
            while !payload.is_empty() {
                let Some(blocks) = work.data.get_mut(at / part_bytes).and_then(Option::as_mut) else {
                    return;
                };
                let room = &mut blocks.as_mut_bytes()[at % part_bytes..];
                let (now, later) = payload.split_at(payload.len().min(room.len()));
                room[..now.len()].copy_from_slice(now);
                at += now.len();
                payload = later;
            }
        }
    }

    #[inline]
    fn on_completion(&mut self, completion: Completion<Buffer>) {
        let [low, high, _, _, part @ ..] = completion.user.to_le_bytes();
        let (slot, part) = (u16::from_le_bytes([low, high]), u32::from_le_bytes(part));
        let work = &self.work[usize::from(slot)];
        let (kind, file) = (work.kind, work.file);
        let result = match completion.result {
            Ok(_) => match kind {
                Kind::Flush if self.member(work.handle).is_some_and(FlushMember::take_loss) => Err(Errno::IO),
                Kind::Read | Kind::Flush => Ok(()),
                Kind::Write | Kind::Modify | Kind::Zero { .. } => {
                    self.files[file].ledger.note_write();
                    Ok(())
                }
            },
            Err(failure) => {
                self.on_failure(failure, kind, file, work.handle);
                Err(errno_of(failure))
            }
        };
        self.on_part(slot, part, result, completion.buffer);
    }

    #[cold]
    fn on_failure(&mut self, failure: Failure, kind: Kind, file: usize, handle: u64) {
        if kind == Kind::Flush && !matches!(failure, Failure::NoConnection { .. } | Failure::Cancelled) {
            match self.member(handle) {
                Some(member) => member.on_failed(),
                None => self.files[file].ledger.note_write(),
            }
            if failure == Failure::Unflushed {
                // The lane says so once, for all namespaces.
                let others = self.files.iter().enumerate().filter(|(other, _)| *other != file);
                others.for_each(|(_, other)| other.ledger.note_loss());
            }
        }
        if let Some(unlogged) = self.log.admit() {
            let namespace = self.files[file].namespace.nsid();
            tracing::warn!(%namespace, ?kind, %failure, unlogged, "request of a file failed");
        }
    }

    fn log_unlogged(&mut self) {
        let count = self.log.take_unlogged();
        if count > 0 {
            tracing::warn!(count, "requests of files failed besides");
        }
    }

    /// A command of a request has ended.
    #[inline]
    fn on_part(&mut self, slot: u16, part: u32, result: Result<(), Errno>, buffer: Option<Buffer>) {
        let is_read = self.stage == (Stage::Modify { slot, step: Step::Read });
        let work = &mut self.work[usize::from(slot)];
        work.done += 1;
        if let Err(errno) = result {
            work.failure.get_or_insert(errno);
        }
        match (work.kind, buffer) {
            (Kind::Read, buffer) => work.data[part as usize] = buffer,
            (Kind::Modify, buffer) if is_read => work.data[part as usize] = buffer,
            (_, Some(buffer)) => self.pool.put(buffer),
            (_, None) => {}
        }
        if work.done >= work.parts && work.kind != Kind::Modify {
            self.finish(slot);
        }
    }

    /// All commands of a request have ended.
    #[inline]
    fn finish(&mut self, slot: u16) {
        let work = &mut self.work[usize::from(slot)];
        let Work { unique, kind, length, .. } = *work;
        let reply = match (work.failure, kind) {
            (Some(errno), _) => Reply::failed(unique, errno),
            (None, Kind::Read) => Reply::data(unique, data_bytes(length)),
            (None, Kind::Write | Kind::Modify) => Reply::written(unique, data_bytes(length)),
            (None, Kind::Flush | Kind::Zero { .. }) => Reply::done(unique),
        };
        let mut data = std::mem::take(&mut work.data);
        if kind == Kind::Read && work.failure.is_none() {
            let (mut skipped, mut left) = (data_bytes(work.offset - work.start) as usize, length);
            let mut slices = [IoSlice::new(&[]); PARTS_MAX];
            slices[0] = IoSlice::new(reply.as_bytes());
            let count = data.len() + 1;
            for (slice, buffer) in slices[1..].iter_mut().zip(data.iter().flatten()) {
                let bytes = &buffer.as_bytes()[std::mem::take(&mut skipped)..];
                let bytes = &bytes[..bytes.len().min(data_bytes(left) as usize)];
                left -= bytes.len() as u64;
                *slice = IoSlice::new(bytes);
            }
            self.send(&slices[..count]);
        } else {
            self.reply(&reply);
        }
        data.drain(..).flatten().for_each(|buffer| self.pool.put(buffer));
        self.work[usize::from(slot)].data = data;
        self.free.push(slot);
        self.shared.in_work.store(self.work.len() - self.free.len(), Ordering::Relaxed);
        match kind {
            Kind::Write | Kind::Zero { .. } => self.changing -= 1,
            Kind::Modify => self.stage = Stage::Head,
            Kind::Read | Kind::Flush => {}
        }
    }

    #[inline]
    fn reply(&mut self, reply: &Reply) {
        self.send(&[IoSlice::new(reply.as_bytes())]);
    }

    /// Sends a reply, which the device takes whole or not at all.
    #[inline]
    fn send(&self, slices: &[IoSlice<'_>]) {
        let device: BorrowedFd<'_> = self.shared.device.as_fd();
        if let Err(error) = writev(device, slices) {
            // The program was killed meanwhile, or the directory is unmounted.
            let is_usual = matches!(error, Errno::NOENT | Errno::NODEV);
            if !is_usual {
                tracing::warn!(%error, "FUSE reply was not taken");
            }
        }
    }

    /// The namespaces as they are now. Each file keeps its place in the list.
    fn set_files(&mut self, served: Vec<Served>) {
        self.infos.iter_mut().for_each(|info| info.is_present = false);
        for Served { info, namespace } in served {
            if namespace.lba_bytes() > self.part_bytes {
                tracing::warn!(
                    namespace = %namespace.nsid(), block_bytes = namespace.lba_bytes(),
                    "namespace is no file: its blocks are larger than those that were there at the start allow"
                );
                continue;
            }
            match self.files.iter().position(|file| file.node == info.node) {
                Some(place) => {
                    self.files[place].namespace = namespace;
                    self.infos[place] = info;
                }
                None => {
                    self.files.push(File { node: info.node, namespace, ledger: Arc::default() });
                    self.infos.push(info);
                }
            }
        }
        self.directory.set_files(self.infos.clone());
    }
}

/// Bytes of one command's data, for all of these namespaces: a power of two.
fn part_bytes(served: &[Served]) -> u32 {
    let parts = served.iter().map(|served| {
        let namespace = &served.namespace;
        Pool::part_bytes(namespace.lba_bytes(), namespace.transfer_blocks_max())
    });
    let least = parts.min().unwrap_or(4096).max(512);
    1 << least.ilog2()
}

/// Length of a part that has data, which is at most that of a buffer.
#[inline]
fn data_bytes(length: u64) -> u32 {
    u32::try_from(length).unwrap_or(u32::MAX)
}

/// The command for a part of a request.
#[inline]
fn command_of(namespace: &Namespace, kind: Kind, start: u64, bytes: u64) -> Result<Command, InvalidCommand> {
    let lba_bytes = u64::from(namespace.lba_bytes());
    let (lba, blocks) = (start / lba_bytes, u32::try_from(bytes / lba_bytes).unwrap_or(u32::MAX));
    match kind {
        Kind::Read => namespace.read(lba, blocks),
        Kind::Write | Kind::Modify => namespace.write(lba, blocks),
        Kind::Zero { may_deallocate } => namespace.write_zeroes(lba, blocks, may_deallocate),
        Kind::Flush => Ok(namespace.flush()),
    }
}

/// The error of a program for a command that failed.
#[cold]
fn errno_of(failure: Failure) -> Errno {
    let Some(status) = failure.status() else { return Errno::IO };
    let is = |code| status.is(code);
    if is(Status::LBA_OUT_OF_RANGE) || is(Status::CAPACITY_EXCEEDED) {
        Errno::NOSPC
    } else if is(Status::NAMESPACE_WRITE_PROTECTED) || is(Status::WRITE_TO_READ_ONLY_RANGE) {
        Errno::ROFS
    } else {
        Errno::IO
    }
}
