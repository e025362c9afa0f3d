//! One thread that serves virtqueues by a lane of its own.
//!
//! ```text
//!  available ring ─take─▶ request ─▶ parts ─▶ lane
//!                                    └ data of writes ─copy─▶ buffers
//!  used ring ◀─put─ status ◀─ data of reads ◀─copy─ buffers ◀─ completions
//! ```
//!
//! Memory is fixed at the start. Where no buffer is free, requests wait, and where all slots are taken, the ring.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use host::{BlockRange, Command, Completion, Failure, Lane, WaitBeside};
use rustix::event::{EventfdFlags, Timespec, epoll, eventfd};
use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};

use super::chain::{Chain, Segment, copy_from_guest, copy_to_guest};
use super::config::Device;
use super::request::{Kind, Outcome, Request, SECTOR_BYTES, blocks_of, read_ranges};
use super::virtqueue::{QueueViolation, Virtqueue, signal};
use crate::buffers::{Buffer, Pool};
use crate::failure_log::FailureLog;
use crate::flush_ledger::FlushMember;
use crate::lanes::submit;

/// Requests of a worker in work at once.
const REQUEST_COUNT: u16 = 128;

/// Longest sleep: the association's end is looked at after each.
const SLEEP: Duration = Duration::from_secs(3600);

/// Key of the bell in the epoll set; queues have their index.
const BELL: u64 = u64::MAX;

/// What the control thread asks for.
pub(crate) enum Message {
    /// Serve a queue.
    Start(Box<Virtqueue>),
    /// End the requests of a queue, and serve it no more. The answer is the index at which its ring would be read on.
    Stop { index: u16, answer: Sender<u16> },
    /// The guest wants to be interrupted by another descriptor.
    Call { index: u16, file: Option<File> },
    /// The front end wants to be told by another descriptor that a queue is closed.
    Error { index: u16, file: Option<File> },
    /// Take requests of a queue, or leave them.
    Enable { index: u16, is_enabled: bool },
    /// The guest has other memory. Answered once the former one is not used any more.
    Memory { memory: Arc<GuestMemoryMmap>, answer: Sender<()> },
    /// The namespace has changed.
    Device(Device),
    /// End. The requests under way are given back, unless the front end is gone.
    End { is_gone: bool },
}

/// The control thread's end of a worker.
pub(crate) struct Worker {
    messages: Sender<Message>,
    bell: File,
    thread: Option<JoinHandle<()>>,
}

impl Worker {
    /// Starts a worker, whose lane `connect` makes on its thread. `on_end` is called there if the worker ends by itself,
    /// because the target is given up.
    ///
    /// # Errors
    /// There is no thread, or no lane.
    pub(crate) fn start(
        name: String,
        settings: Settings,
        connect: impl FnOnce() -> Result<Lane<Buffer>, host::Error> + Send + 'static,
        on_end: impl FnOnce() + Send + 'static,
    ) -> io::Result<Self> {
        let bell = File::from(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(
            &epoll,
            &bell,
            epoll::EventData::new_u64(BELL),
            epoll::EventFlags::IN | epoll::EventFlags::ET,
        )?;
        let (messages, receiver) = channel();
        let (answer, connected) = channel();
        let thread = std::thread::Builder::new().name(name).spawn(move || {
            let mut lane = match connect() {
                Ok(lane) => lane,
                Err(error) => return drop(answer.send(Err(error))),
            };
            let _ = answer.send(Ok(()));
            let mut state = State::new(settings, receiver, epoll.as_fd());
            if state.run(&mut lane) == Ended::TargetGone {
                on_end();
            }
        })?;
        match connected.recv() {
            Ok(Ok(())) => Ok(Self { messages, bell, thread: Some(thread) }),
            Ok(Err(error)) => Err(io::Error::other(error)),
            Err(_) => Err(io::Error::other("the thread has ended")),
        }
    }

    /// Sends a message. A worker that has ended by itself answers none.
    pub(crate) fn send(&self, message: Message) {
        let _ = self.messages.send(message);
        signal(&self.bell);
    }

    /// Waits for its end, after [`Message::End`].
    pub(crate) fn join(&mut self) {
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// What a worker begins with.
pub(crate) struct Settings {
    pub(crate) device: Device,
    pub(crate) memory: Arc<GuestMemoryMmap>,
    /// A write is durable before it has ended, since the guest knows no flush.
    pub(crate) is_write_through: bool,
    pub(crate) flushes: Arc<FlushMember>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ended {
    Asked,
    TargetGone,
}

/// A request in work: one or more commands.
#[derive(Debug)]
struct Work {
    /// Index in the list of queues.
    queue: usize,
    head: u16,
    kind: Kind,
    status: GuestAddress,
    data: Vec<Segment>,
    /// Blocks of a Read, Write or Write Zeroes; ranges of a Discard.
    ranges: Vec<BlockRange>,
    lba: u64,
    blocks: u64,
    /// Blocks of each command but the last.
    part_blocks: u64,
    may_deallocate: bool,
    parts: u32,
    submitted: u32,
    done: u32,
    outcome: Outcome,
}

/// A worker, but for its lane.
struct State<'a> {
    device: Device,
    memory: Arc<GuestMemoryMmap>,
    is_write_through: bool,
    flushes: Arc<FlushMember>,
    receiver: Receiver<Message>,
    /// Messages that wait for the end of what is in work.
    messages: VecDeque<Message>,
    epoll: BorrowedFd<'a>,
    events: Vec<epoll::Event>,
    queues: Vec<Option<Virtqueue>>,
    first: usize,
    pool: Pool,
    work: Vec<Work>,
    free: Vec<u16>,
    /// Slots with commands to submit, in order.
    waiting: VecDeque<u16>,
    chain: Chain,
    /// The front end is gone, or the target is: rings are left as they are.
    is_gone: bool,
    is_ending: bool,
    log: FailureLog,
}

impl<'a> State<'a> {
    fn new(settings: Settings, receiver: Receiver<Message>, epoll: BorrowedFd<'a>) -> Self {
        let Settings { device, memory, is_write_through, flushes } = settings;
        let idle = || Work {
            queue: 0,
            head: 0,
            kind: Kind::Flush,
            status: GuestAddress(0),
            data: Vec::new(),
            ranges: Vec::new(),
            lba: 0,
            blocks: 0,
            part_blocks: 1,
            may_deallocate: false,
            parts: 0,
            submitted: 0,
            done: 0,
            outcome: Outcome::Done,
        };
        Self {
            pool: Pool::lazy(device.namespace.lba_bytes()),
            device,
            memory,
            is_write_through,
            flushes,
            receiver,
            messages: VecDeque::new(),
            epoll,
            events: Vec::with_capacity(16),
            queues: Vec::new(),
            first: 0,
            work: (0..REQUEST_COUNT).map(|_| idle()).collect(),
            free: (0..REQUEST_COUNT).rev().collect(),
            waiting: VecDeque::with_capacity(REQUEST_COUNT.into()),
            chain: Chain::default(),
            is_gone: false,
            is_ending: false,
            log: FailureLog::default(),
        }
    }

    fn run(&mut self, lane: &mut Lane<Buffer>) -> Ended {
        loop {
            self.messages.extend(self.receiver.try_iter());
            self.obey();
            self.is_gone |= lane.over().is_some();
            let before = lane.outstanding();
            self.take_requests();
            self.submit_waiting(lane);
            if lane.outstanding() != before {
                lane.ring();
            }
            self.notify_guest();
            if self.is_idle() && !self.messages.is_empty() {
                continue;
            }
            if self.is_idle() && self.is_ending {
                self.log_unlogged();
                return Ended::Asked;
            }
            if self.wants_to_take() && self.ask_for_kicks() {
                continue;
            }
            let beside = WaitBeside::readable(self.epoll);
            let ended = lane.wait_beside(&mut |completion| self.on_completion(completion), beside, SLEEP);
            if ended.is_ready {
                self.events.clear();
                let none = Timespec::default();
                // Which one it is does not matter: all are looked at.
                let _ =
                    epoll::wait(self.epoll, rustix::buffer::spare_capacity(&mut self.events), Some(&none));
            } else if ended.completions == 0 && lane.over().is_some() && self.is_idle() {
                self.notify_guest();
                self.log_unlogged();
                return Ended::TargetGone;
            }
        }
    }

    fn is_idle(&self) -> bool {
        self.free.len() == self.work.len()
    }

    /// Whether another request may be taken.
    fn wants_to_take(&self) -> bool {
        !self.is_ending && !self.is_gone && self.messages.is_empty() && !self.free.is_empty()
    }

    /// Carries out messages, until one must wait for the requests in work.
    fn obey(&mut self) {
        while let Some(message) = self.messages.pop_front() {
            let must_wait = matches!(message, Message::Stop { .. } | Message::Memory { .. });
            if must_wait && !self.is_idle() {
                self.messages.push_front(message);
                return;
            }
            match message {
                Message::Start(queue) => self.start(*queue),
                Message::Stop { index, answer } => {
                    let _ = answer.send(self.stop(index));
                }
                Message::Call { index, file } => {
                    if let Some(queue) = self.queue(index) {
                        queue.call = file;
                    }
                }
                Message::Error { index, file } => {
                    if let Some(queue) = self.queue(index) {
                        queue.error = file;
                    }
                }
                Message::Enable { index, is_enabled } => {
                    if let Some(queue) = self.queue(index) {
                        queue.is_enabled = is_enabled;
                    }
                }
                Message::Memory { memory, answer } => {
                    self.memory = memory;
                    for queue in
                        self.queues.iter_mut().flatten().filter(|queue| !queue.is_inside(&self.memory))
                    {
                        tracing::warn!(
                            queue = queue.index,
                            "queue closed: its rings are in no memory any more"
                        );
                        queue.close();
                    }
                    let _ = answer.send(());
                }
                Message::Device(device) => self.device = device,
                Message::End { is_gone } => {
                    self.is_ending = true;
                    self.is_gone = is_gone;
                }
            }
        }
    }

    fn queue(&mut self, index: u16) -> Option<&mut Virtqueue> {
        self.queues.iter_mut().flatten().find(|queue| queue.index == index)
    }

    fn start(&mut self, queue: Virtqueue) {
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
        let key = epoll::EventData::new_u64(queue.index.into());
        if let Err(error) = epoll::add(self.epoll, &queue.kick, key, flags) {
            tracing::warn!(queue = queue.index, %error, "queue not served: its kick is no event descriptor");
            return;
        }
        if queue.again_count() > 0 {
            tracing::info!(
                queue = queue.index,
                requests = queue.again_count(),
                "requests that were in work when an earlier bridge ended are begun again"
            );
        }
        match self.queues.iter_mut().find(|place| place.is_none()) {
            Some(place) => *place = Some(queue),
            None => self.queues.push(Some(queue)),
        }
    }

    fn stop(&mut self, index: u16) -> u16 {
        let place =
            self.queues.iter_mut().find(|place| place.as_ref().is_some_and(|queue| queue.index == index));
        let Some(mut queue) = place.and_then(Option::take) else { return 0 };
        // Others may have the descriptor open, too: the set would keep it.
        let _ = epoll::delete(self.epoll, &queue.kick);
        queue.notify(&self.memory);
        queue.next_available()
    }

    /// Takes what the rings have, as far as slots are free.
    fn take_requests(&mut self) {
        // Each queue is the first one in turn: where slots are few, none waits for ever.
        self.first = self.first.wrapping_add(1);
        for offset in 0..self.queues.len() {
            let at = self.first.wrapping_add(offset) % self.queues.len();
            // A guest that offers more than is answered meanwhile must not keep the thread from all else.
            for _ in 0..REQUEST_COUNT {
                if !self.wants_to_take() {
                    break;
                }
                let Some(queue) = self.queues[at].as_mut().filter(|queue| queue.is_open()) else { break };
                let taken = queue.take(&self.memory, &mut self.chain);
                let begun = taken.and_then(|head| head.map(|head| self.begin(at, head)).transpose());
                match begun {
                    Ok(Some(())) => {}
                    Ok(None) => break,
                    Err(error) => self.close(at, &error),
                }
            }
        }
    }

    /// The guest has broken the rules of a queue.
    #[cold]
    fn close(&mut self, at: usize, why: &QueueViolation) {
        if let Some(queue) = &mut self.queues[at] {
            tracing::warn!(queue = queue.index, %why, "queue closed: the guest breaks the rules of virtqueues");
            queue.close();
        }
    }

    /// Begins the request whose chain was read.
    fn begin(&mut self, at: usize, head: u16) -> Result<(), QueueViolation> {
        let Some(slot) = self.free.pop() else { return Ok(()) };
        let work = &mut self.work[usize::from(slot)];
        let request = match Request::take(&*self.memory, &mut self.chain, &mut work.data) {
            Ok(request) => request,
            Err(violation) => {
                self.free.push(slot);
                return Err(violation.into());
            }
        };
        work.queue = at;
        work.head = head;
        work.kind = request.kind;
        work.status = request.status;
        (work.parts, work.submitted, work.done) = (0, 0, 0);
        work.outcome = Outcome::Done;
        match prepare(&self.device, &self.memory, &self.flushes, work, &request) {
            Ok(()) if work.parts > 0 => self.waiting.push_back(slot),
            Ok(()) => self.end(slot),
            Err(outcome) => {
                tracing::debug!(?request, ?outcome, "request refused");
                work.outcome = outcome;
                self.end(slot);
            }
        }
        Ok(())
    }

    /// Submits commands while the lane has room, and buffers are free.
    fn submit_waiting(&mut self, lane: &mut Lane<Buffer>) {
        while let Some(&slot) = self.waiting.front() {
            if !self.submit_parts(slot, lane) {
                return;
            }
            self.waiting.pop_front();
            let work = &self.work[usize::from(slot)];
            if work.done == work.submitted {
                self.end(slot);
            }
        }
    }

    /// Submits the commands of a request. Returns whether all are submitted, or one has failed.
    fn submit_parts(&mut self, slot: u16, lane: &mut Lane<Buffer>) -> bool {
        loop {
            let work = &mut self.work[usize::from(slot)];
            if work.submitted == work.parts || work.outcome != Outcome::Done {
                return true;
            }
            if self.is_gone {
                work.outcome = Outcome::Failed;
                return true;
            }
            if !lane.has_room(1) {
                return false;
            }
            let part = work.submitted;
            let (lba, blocks) = part_of(work, part);
            let namespace = &self.device.namespace;
            let lba_bytes = namespace.lba_bytes();
            let mut buffer = None;
            if matches!(work.kind, Kind::Read | Kind::Write) {
                let Some(mut taken) = self.pool.take(blocks.saturating_mul(lba_bytes)) else { return false };
                if work.kind == Kind::Write {
                    let offset = offset_of(work, part, lba_bytes);
                    if copy_from_guest(&*self.memory, &work.data, offset, taken.as_mut_bytes()).is_none() {
                        self.pool.put(taken);
                        work.outcome = Outcome::Failed;
                        return true;
                    }
                }
                buffer = Some(taken);
            }
            let durable = |command: Command| if self.is_write_through { command.fua() } else { command };
            let command = match work.kind {
                Kind::Read => namespace.read(lba, blocks),
                Kind::Write => namespace.write(lba, blocks).map(durable),
                Kind::WriteZeroes => namespace.write_zeroes(lba, blocks, work.may_deallocate).map(durable),
                Kind::Discard => namespace.deallocate(&work.ranges),
                Kind::Flush | Kind::Id | Kind::Unknown(_) => Ok(namespace.flush()),
            };
            let user = u64::from(slot) | u64::from(part) << 32;
            match submit(lane, command, buffer, user) {
                None => work.submitted += 1,
                Some(buffer) => {
                    buffer.into_iter().for_each(|buffer| self.pool.put(buffer));
                    work.outcome = Outcome::Failed;
                    return true;
                }
            }
        }
    }

    fn on_completion(&mut self, completion: Completion<Buffer>) {
        let [low, high, _, _, part @ ..] = completion.user.to_le_bytes();
        let (slot, part) = (u16::from_le_bytes([low, high]), u32::from_le_bytes(part));
        let work = &mut self.work[usize::from(slot)];
        work.done += 1;
        let is_flush = work.kind == Kind::Flush;
        match completion.result {
            Ok(_) if is_flush && self.flushes.take_loss() => work.outcome = Outcome::Failed,
            Ok(_) => {
                if matches!(work.kind, Kind::Write | Kind::WriteZeroes) && !self.is_write_through {
                    self.flushes.note_write();
                }
                if work.kind == Kind::Read
                    && let Some(buffer) = &completion.buffer
                    && !self.is_gone
                {
                    let offset = offset_of(work, part, self.device.namespace.lba_bytes());
                    let copied = copy_to_guest(&*self.memory, &work.data, offset, buffer.as_bytes());
                    if copied.is_none() {
                        work.outcome = Outcome::Failed;
                    }
                }
            }
            Err(failure) => {
                work.outcome = Outcome::Failed;
                let kind = work.kind;
                // The bridge ends. Its successor takes up what is in work.
                self.is_gone |= failure == Failure::Unreachable;
                if is_flush && !matches!(failure, Failure::NoConnection { .. } | Failure::Cancelled) {
                    self.flushes.on_failed();
                }
                self.log(failure, kind);
            }
        }
        completion.buffer.into_iter().for_each(|buffer| self.pool.put(buffer));
        let work = &self.work[usize::from(slot)];
        let is_submitted = work.submitted == work.parts || work.outcome != Outcome::Done;
        // One that still waits ends when its turn to submit comes.
        if work.done == work.submitted && is_submitted && !self.waiting.contains(&slot) {
            self.end(slot);
        }
    }

    /// Gives a request back to the guest.
    fn end(&mut self, slot: u16) {
        let work = &self.work[usize::from(slot)];
        let (at, head) = (work.queue, work.head);
        self.free.push(slot);
        if self.is_gone {
            return;
        }
        let is_data = work.outcome == Outcome::Done && matches!(work.kind, Kind::Read | Kind::Id);
        let data_bytes = work.data.iter().fold(0u32, |sum, segment| sum.saturating_add(segment.length));
        let length = if is_data { data_bytes.saturating_add(1) } else { 1 };
        let Some(queue) = self.queues[at].as_mut() else { return };
        let put = self
            .memory
            .write_obj(work.outcome as u8, work.status)
            .map_err(|_| QueueViolation::Outside)
            .and_then(|()| queue.put(&self.memory, head, length));
        if let Err(error) = put {
            self.close(at, &error);
        }
    }

    fn notify_guest(&mut self) {
        if !self.is_gone {
            self.queues.iter_mut().flatten().for_each(|queue| queue.notify(&self.memory));
        }
    }

    /// Asks for kicks of all queues. Returns whether one has requests already.
    fn ask_for_kicks(&mut self) -> bool {
        let mut has_some = false;
        for at in 0..self.queues.len() {
            let Some(queue) = self.queues[at].as_mut().filter(|queue| queue.is_open()) else { continue };
            match queue.want_kicks(&self.memory) {
                Ok(is_there) => has_some |= is_there,
                Err(error) => self.close(at, &error),
            }
        }
        has_some
    }

    #[cold]
    fn log(&mut self, failure: Failure, kind: Kind) {
        if let Some(unlogged) = self.log.admit() {
            let namespace = self.device.namespace.nsid();
            tracing::warn!(%namespace, ?kind, %failure, unlogged, "request of a guest failed");
        }
    }

    fn log_unlogged(&mut self) {
        let count = self.log.take_unlogged();
        if count > 0 {
            tracing::warn!(count, "requests of a guest failed besides");
        }
    }
}

/// What a request is made of: its commands. None if it is done already.
fn prepare(
    device: &Device,
    memory: &GuestMemoryMmap,
    flushes: &FlushMember,
    work: &mut Work,
    request: &Request,
) -> Result<(), Outcome> {
    let namespace = &device.namespace;
    let lba_bytes = namespace.lba_bytes();
    if !request.is_inside {
        return Err(Outcome::Failed);
    }
    let changes = matches!(request.kind, Kind::Write | Kind::Discard | Kind::WriteZeroes);
    if changes && device.is_read_only {
        return Err(Outcome::Failed);
    }
    match request.kind {
        Kind::Read | Kind::Write => {
            (work.lba, work.blocks) =
                blocks_of(request.sector, request.data_bytes, lba_bytes).ok_or(Outcome::Failed)?;
            let end = work.lba.checked_add(work.blocks).ok_or(Outcome::Failed)?;
            if end > namespace.block_count() {
                return Err(Outcome::Failed);
            }
            let part_bytes = Pool::part_bytes(lba_bytes, namespace.transfer_blocks_max());
            work.part_blocks = u64::from(part_bytes / lba_bytes);
            work.parts = parts_of(work)?;
        }
        Kind::WriteZeroes => {
            work.may_deallocate = read_ranges(memory, request, &work.data, lba_bytes, 1, &mut work.ranges)?;
            let range = work.ranges.first().ok_or(Outcome::Failed)?;
            (work.lba, work.blocks) = (range.lba, range.blocks.into());
            work.part_blocks = namespace.write_zeroes_blocks_max().into();
            work.parts = parts_of(work)?;
        }
        Kind::Discard => {
            let count_max = device.discard_ranges_max();
            read_ranges(memory, request, &work.data, lba_bytes, count_max, &mut work.ranges)?;
            work.parts = 1;
        }
        Kind::Flush if flushes.take_loss() => return Err(Outcome::Failed),
        Kind::Flush => {
            flushes.on_flush();
            work.parts = 1;
        }
        Kind::Id => {
            let serial = device.serial();
            let length = usize::try_from(request.data_bytes).unwrap_or(usize::MAX).min(serial.len());
            copy_to_guest(memory, &work.data, 0, &serial[..length]).ok_or(Outcome::Failed)?;
        }
        Kind::Unknown(_) => return Err(Outcome::Unsupported),
    }
    Ok(())
}

/// Commands of a request of blocks.
fn parts_of(work: &Work) -> Result<u32, Outcome> {
    u32::try_from(work.blocks.div_ceil(work.part_blocks)).map_err(|_| Outcome::Failed)
}

/// First block and blocks of a part.
fn part_of(work: &Work, part: u32) -> (u64, u32) {
    let start = u64::from(part) * work.part_blocks;
    let blocks = work.blocks.saturating_sub(start).min(work.part_blocks);
    (work.lba + start, u32::try_from(blocks).unwrap_or(u32::MAX))
}

/// Where the data of a part is, within that of its request.
fn offset_of(work: &Work, part: u32, lba_bytes: u32) -> u64 {
    u64::from(part) * work.part_blocks * u64::from(lba_bytes)
}

const _: () = assert!(SECTOR_BYTES == 512);
