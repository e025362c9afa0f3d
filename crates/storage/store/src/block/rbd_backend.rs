//! One reactor's access to a namespace on an RBD image: requests become asynchronous calls of librbd.
//!
//! ```text
//! start ─▶ librbd … completes, writes to the image's eventfd ─▶ the collecting reactor takes in all ends
//!                                    its own ─▶ reply          another reactor's ─▶ its inbox, eventfd ─▶ reply
//! no end within the deadline ─▶ reply "unreachable"; requests that come then wait for a moment, and are refused as well
//! ```
//!
//! A request that is answered by its deadline keeps its buffer until librbd is done with it: it cannot be cancelled, and
//! is carried out once the cluster answers, before all that the same reactor writes to that place later.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use ceph::{Ended, Finished, Requests, Unstarted};
use memory::Buffer;
use reactor::{Completion, DataMap, File, Operation};
use rustix::io::Errno;

use super::rbd_shared::{Inbox, Session, Shared};
use crate::namespace::{Backend, Generation, Geometry, Reply, Request, StoreError, StoreIo, Ticket};

/// Interval between looks at deadlines, ns.
const TICK_NS: u64 = 500_000_000;

/// Time for which a request waits if the cluster does not answer, ns.
const WAIT_NS: u64 = 1_000_000_000;

/// Bytes zeroed in one call, so that its many objects do not hold up everything else.
const SLICE_BYTES: u64 = 256 << 20;

/// Events of a link, in the numbers of its own tickets.
const COLLECT: u32 = 0;
const INBOX: u32 = 1;
const TICK: u32 = 2;
const EVENT_COUNT: u32 = 4;

/// Numbers of links before they start again: a ticket has 24 bits.
const LINK_COUNT: u32 = 1 << 20;

/// One reactor's access.
pub(super) struct RbdBackend {
    shared: Arc<Shared>,
    /// The state of the namespace that the last link belongs to.
    gate: Generation,
    /// To the open image, and to those from before a reopening that have requests in flight.
    links: Vec<Link>,
    next_link: u32,
    /// Requests that wait for the cluster to answer again.
    waiting: VecDeque<Waiting>,
    ended: Vec<Ended>,
}

struct Waiting {
    ticket: Ticket,
    request: Request,
    until_ns: u64,
}

/// This reactor at an image.
struct Link {
    number: u32,
    requests: Requests,
    /// By slot of its request.
    tasks: Vec<Option<Task>>,
    inbox: Arc<Inbox>,
    /// The eventfd of the image, and of the inbox.
    bell: File,
    inbox_bell: File,
    is_collecting: bool,
    is_awaiting: bool,
    is_ticking: bool,
    session: Arc<Session>,
}

/// A request in flight.
struct Task {
    ticket: Ticket,
    /// The state in which it was started. It cannot succeed in another one.
    gate: Generation,
    begun_ns: u64,
    work: Work,
    /// It has been answered by its deadline.
    is_overdue: bool,
    /// The buffer of a write that is flushed.
    parked: Option<Buffer>,
}

/// The remaining work of a request.
enum Work {
    Read { length: usize },
    Write { is_flushed: bool },
    Flush,
    Range { offset: u64, end: u64, keeps_space: bool, is_flushed: bool },
    Find(Arc<DataMap>),
}

impl Work {
    fn is_search(&self) -> bool {
        matches!(self, Self::Find(_))
    }
}

impl RbdBackend {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        let (links, waiting, ended) = (Vec::new(), VecDeque::new(), Vec::new());
        Self { shared, gate: Generation::default(), links, next_link: 0, waiting, ended }
    }

    /// Whether requests may start. After a reopening, switches to the new session.
    fn enter(&mut self) -> Result<(), StoreError> {
        let gate = self.shared.gate();
        if gate.is_closed() {
            return Err(self.shared.closed_error());
        }
        if gate != self.gate || self.links.is_empty() {
            let Some(session) = self.shared.session() else { return Err(StoreError::Closed) };
            let link = Link::new(self.next_link, session).map_err(|_| StoreError::NotReady)?;
            self.next_link = (self.next_link + 1) % LINK_COUNT;
            self.links.retain(|link| link.requests.running_count() > 0);
            self.links.push(link);
            self.gate = gate;
        }
        Ok(())
    }

    /// The work of a request, if it may be done; `None` if there is none.
    fn plan(&mut self, request: &Request) -> Result<Option<Work>, StoreError> {
        self.enter()?;
        let shared = &self.shared;
        let (offset, length) = match request {
            Request::Read { offset, buffer } | Request::Write { offset, buffer, .. } => {
                (*offset, buffer.len() as u64)
            }
            Request::Flush => (0, 0),
            Request::Deallocate { offset, length } | Request::WriteZeroes { offset, length, .. } => {
                (*offset, *length)
            }
            Request::FindData(map) => (map.range().start, map.range().end - map.range().start),
        };
        // The caller may have checked against the geometry before a resize.
        let end = offset.checked_add(length).filter(|end| *end <= shared.bytes());
        let end = end.ok_or(StoreError::Truncated)?;
        match request {
            Request::Read { buffer, .. } => return Ok(Some(Work::Read { length: buffer.len() })),
            Request::FindData(map) => return Ok(Some(Work::Find(Arc::clone(map)))),
            // Nothing was written, so there is nothing to flush.
            Request::Flush if shared.is_read_only() => return Ok(None),
            Request::Flush => return Ok(Some(Work::Flush)),
            _ if shared.is_read_only() => return Err(StoreError::ReadOnly),
            _ => {}
        }
        // Without librbd's cache a write ends when all replicas have it on stable media.
        let is_cached = self.links.last().is_some_and(|link| link.session.image().is_cached());
        Ok(Some(match *request {
            Request::Write { is_durable, .. } => Work::Write { is_flushed: is_durable && is_cached },
            Request::WriteZeroes { is_durable, may_deallocate, .. } => {
                Work::Range { offset, end, keeps_space: !may_deallocate, is_flushed: is_durable && is_cached }
            }
            _ => Work::Range { offset, end, keeps_space: false, is_flushed: false },
        }))
    }

    /// Starts a request, or has it wait if the cluster does not answer.
    fn begin(&mut self, io: &mut dyn StoreIo, ticket: Ticket, request: Request) {
        let planned = self.plan(&request);
        let (work, link) = match (planned, self.links.last_mut()) {
            (Ok(Some(work)), Some(link)) => (work, link),
            (planned, _) => {
                let result = planned.map(drop);
                return io.reply(ticket, Reply { result, buffer: buffer_of(request) });
            }
        };
        if link.session.overdue_count.load(Ordering::Relaxed) > 0 {
            let until_ns = io.now_ns() + WAIT_NS;
            self.waiting.push_back(Waiting { ticket, request, until_ns });
            return link.tick(io);
        }
        let task =
            Task { ticket, gate: self.gate, begun_ns: io.now_ns(), work, is_overdue: false, parked: None };
        let call = match request {
            Request::Read { offset, buffer } => ceph::Request::Read { offset, buffer },
            Request::Write { offset, buffer, .. } => ceph::Request::Write { offset, buffer },
            Request::Flush => ceph::Request::Flush,
            Request::Deallocate { .. } | Request::WriteZeroes { .. } => slice_of(&task.work),
            Request::FindData(map) => {
                let slot = link.requests.search(map.range(), Box::new(move |part| map.add(part)));
                return link.follow(io, slot, task);
            }
        };
        link.call(&self.shared, io, task, call);
    }

    /// Requests wait no more: the cluster answers again, or their time is over.
    fn start_waiting(&mut self, io: &mut dyn StoreIo) {
        for _ in 0..self.waiting.len() {
            let is_reachable =
                self.links.last().is_none_or(|link| link.session.overdue_count.load(Ordering::Relaxed) == 0);
            let is_over = self.waiting.front().is_some_and(|first| first.until_ns <= io.now_ns());
            if !is_reachable && !is_over {
                return;
            }
            let Some(Waiting { ticket, request, .. }) = self.waiting.pop_front() else { return };
            if is_reachable || self.shared.gate() != self.gate {
                self.begin(io, ticket, request);
            } else {
                // Linux retries a path error for as long as it takes, and other errors five times.
                io.reply(ticket, Reply { result: Err(StoreError::Unreachable), buffer: buffer_of(request) });
            }
        }
    }

    /// Takes in ends of requests: those of this reactor, from the image or from the inbox.
    fn on_event(&mut self, io: &mut dyn StoreIo, at: usize, event: u32) {
        let Some(link) = self.links.get_mut(at) else { return };
        let mut ended = std::mem::take(&mut self.ended);
        match event {
            COLLECT => {
                link.is_collecting = false;
                if link.session.collector.load(Ordering::Acquire) == link.requests.owner() {
                    let (session, owner) = (&link.session, link.requests.owner());
                    session.image().collect(&mut |end| match end.owner() == owner {
                        true => ended.push(end),
                        false => session.pass_on(end),
                    });
                }
            }
            INBOX => {
                link.is_awaiting = false;
                link.inbox.take(&mut ended);
            }
            _ => {}
        }
        for end in ended.drain(..) {
            if let Ok(finished) = link.requests.finish(end) {
                link.on_finished(&self.shared, io, finished);
            }
        }
        self.ended = ended;
        link.arm(io);
        self.start_waiting(io);
    }

    fn on_tick(&mut self, io: &mut dyn StoreIo, at: usize) {
        let Some(link) = self.links.get_mut(at) else { return };
        link.is_ticking = false;
        link.end_overdue(&self.shared, io);
        link.arm(io);
        let is_needed = link.requests.running_count() > 0 || !self.waiting.is_empty();
        if is_needed {
            link.tick(io);
        }
        self.start_waiting(io);
    }

    /// The link and the event that a ticket of our own names.
    fn own(&self, io: &dyn StoreIo, ticket: Ticket) -> Option<(usize, u32)> {
        self.links.iter().enumerate().find_map(|(at, link)| {
            let events = [COLLECT, INBOX, TICK].into_iter();
            let mut named = events.filter(|event| io.own(link.number * EVENT_COUNT + event) == ticket);
            named.next().map(|event| (at, event))
        })
    }
}

fn buffer_of(request: Request) -> Option<Buffer> {
    match request {
        Request::Read { buffer, .. } | Request::Write { buffer, .. } => Some(buffer),
        _ => None,
    }
}

/// The next call of a range.
fn slice_of(work: &Work) -> ceph::Request {
    match *work {
        Work::Range { offset, end, keeps_space, .. } => {
            ceph::Request::Zero { offset, length: (end - offset).min(SLICE_BYTES), keeps_space }
        }
        _ => ceph::Request::Flush,
    }
}

impl Link {
    fn new(number: u32, session: Arc<Session>) -> std::io::Result<Self> {
        let inbox = Arc::new(Inbox::new()?);
        let (bell, inbox_bell) = (File::new(session.image().bell()?), File::new(inbox.bell()?));
        let requests = Requests::new(Arc::clone(session.image()));
        session.add(requests.owner(), Arc::clone(&inbox));
        Ok(Self {
            number,
            requests,
            tasks: Vec::new(),
            inbox,
            bell,
            inbox_bell,
            is_collecting: false,
            is_awaiting: false,
            is_ticking: false,
            session,
        })
    }

    fn own(&self, io: &dyn StoreIo, event: u32) -> Ticket {
        io.own(self.number * EVENT_COUNT + event)
    }

    /// Has the reactor look at deadlines.
    fn tick(&mut self, io: &mut dyn StoreIo) {
        if !std::mem::replace(&mut self.is_ticking, true) {
            let ticket = self.own(io, TICK);
            io.set_timer(io.now_ns() + TICK_NS, ticket);
        }
    }

    /// Waits for ends of requests: of all reactors if no other one does, and of its own that another has taken in. The
    /// collector waits for the latter too: its predecessor may have passed some on just before it left.
    fn arm(&mut self, io: &mut dyn StoreIo) {
        let owner = self.requests.owner();
        let collector = &self.session.collector;
        let is_collector = match collector.load(Ordering::Acquire) {
            0 if self.requests.running_count() > 0 => {
                collector.compare_exchange(0, owner, Ordering::AcqRel, Ordering::Acquire).is_ok()
            }
            current => current == owner,
        };
        if is_collector && !std::mem::replace(&mut self.is_collecting, true) {
            let ticket = self.own(io, COLLECT);
            io.start(ticket, Operation::Await { file: self.bell.clone() });
        }
        if self.requests.running_count() > 0 && !std::mem::replace(&mut self.is_awaiting, true) {
            let ticket = self.own(io, INBOX);
            io.start(ticket, Operation::Await { file: self.inbox_bell.clone() });
        }
    }

    /// Starts a call for a task.
    fn call(&mut self, shared: &Shared, io: &mut dyn StoreIo, task: Task, call: ceph::Request) {
        match self.requests.start(call) {
            Ok(slot) => self.follow(io, slot, task),
            Err(Unstarted { errno, buffer }) => {
                let error = failure(shared, &task, errno);
                let buffer = buffer.or(task.parked);
                reply(shared, io, task.ticket, task.gate, Err(error), buffer);
            }
        }
    }

    /// A call of a task was started in this slot.
    fn follow(&mut self, io: &mut dyn StoreIo, slot: u32, task: Task) {
        let slot = slot as usize;
        if slot >= self.tasks.len() {
            self.tasks.resize_with(slot + 1, || None);
        }
        self.tasks[slot] = Some(task);
        self.arm(io);
        self.tick(io);
    }

    /// A call has ended: the next one of its request, or the reply.
    fn on_finished(&mut self, shared: &Shared, io: &mut dyn StoreIo, finished: Finished) {
        let Finished { slot, result, buffer } = finished;
        let Some(mut task) = self.tasks.get_mut(slot as usize).and_then(Option::take) else { return };
        if task.is_overdue {
            if task.work.is_search() {
                return;
            }
            if self.session.overdue_count.fetch_sub(1, Ordering::AcqRel) == 1 {
                tracing::info!(image = %shared.name(), "the cluster answers again");
            }
            if let Err(errno) = result {
                // What it means for the namespace holds also if the host has its answer.
                failure(shared, &task, errno);
            }
            return;
        }
        let buffer = buffer.or_else(|| task.parked.take());
        let count = match result {
            Ok(count) => count,
            Err(errno) => {
                let error = failure(shared, &task, errno);
                return reply(shared, io, task.ticket, task.gate, Err(error), buffer);
            }
        };
        let result = match &mut task.work {
            Work::Read { length } if count < *length => Err(StoreError::Truncated),
            Work::Read { .. } | Work::Flush => Ok(()),
            Work::Find(map) => {
                let end = count as u64;
                if end < map.range().end {
                    map.end_early(end);
                }
                Ok(())
            }
            Work::Range { offset, end, .. } if *end - *offset > SLICE_BYTES => {
                *offset += SLICE_BYTES;
                task.begun_ns = io.now_ns();
                let call = slice_of(&task.work);
                return self.call(shared, io, task, call);
            }
            Work::Write { is_flushed: true } | Work::Range { is_flushed: true, .. } => {
                task.work = Work::Flush;
                task.parked = buffer;
                return self.call(shared, io, task, ceph::Request::Flush);
            }
            Work::Write { .. } | Work::Range { .. } => {
                shared.set_full(false);
                Ok(())
            }
        };
        reply(shared, io, task.ticket, task.gate, result, buffer);
    }

    /// Answers requests that have taken too long.
    fn end_overdue(&mut self, shared: &Shared, io: &mut dyn StoreIo) {
        let (now_ns, limit_ns) = (io.now_ns(), shared.deadline_ns());
        for task in self.tasks.iter_mut().flatten() {
            if task.is_overdue || now_ns.saturating_sub(task.begun_ns) < limit_ns {
                continue;
            }
            task.is_overdue = true;
            // It may have waited behind other searches while the cluster answered. Without it all blocks count as allocated.
            if task.work.is_search() {
                reply(shared, io, task.ticket, task.gate, Err(StoreError::Unsupported), None);
                continue;
            }
            if self.session.overdue_count.fetch_add(1, Ordering::AcqRel) == 0 {
                tracing::warn!(
                    image = %shared.name(), limit_s = limit_ns / 1_000_000_000,
                    "the cluster does not answer: commands end with a path error until it does"
                );
            }
            let buffer = task.parked.take();
            reply(shared, io, task.ticket, task.gate, Err(StoreError::Unreachable), buffer);
        }
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.session.remove(self.requests.owner());
        // The engine forgets descriptors that it awaits once they are readable.
        self.inbox.ring();
        if self.is_collecting {
            self.session.image().ring();
        }
    }
}

/// Replies to a request. None succeeds in another state than the one it was started in.
fn reply(
    shared: &Shared,
    io: &mut dyn StoreIo,
    ticket: Ticket,
    gate: Generation,
    result: Result<(), StoreError>,
    buffer: Option<Buffer>,
) {
    let result = if shared.gate() == gate { result } else { result.and(Err(shared.closed_error())) };
    io.reply(ticket, Reply { result, buffer });
}

/// What a failed call means to its request, and to the namespace.
fn failure(shared: &Shared, task: &Task, errno: i32) -> StoreError {
    match Errno::from_raw_os_error(errno) {
        Errno::SHUTDOWN => {
            shared.fence(task.gate, "the cluster has blocklisted this target as a client".into());
            StoreError::Fenced
        }
        Errno::ROFS if !shared.is_read_only() => {
            shared.fence(task.gate, "the exclusive lock of its image was lost to another client".into());
            StoreError::Fenced
        }
        Errno::TIMEDOUT => StoreError::Unreachable,
        Errno::NOSPC | Errno::DQUOT => {
            shared.set_full(true);
            StoreError::NoSpace
        }
        Errno::INVAL => StoreError::Truncated,
        _ => match task.work {
            Work::Read { .. } => StoreError::ReadFailed(errno),
            Work::Find(_) => StoreError::Unsupported,
            Work::Flush => {
                let error = StoreError::WriteFailed(errno);
                shared.close(task.gate, format!("a flush has failed: {error}"));
                error
            }
            Work::Write { .. } | Work::Range { .. } => StoreError::WriteFailed(errno),
        },
    }
}

impl Backend for RbdBackend {
    fn geometry(&self) -> Geometry {
        self.shared.geometry()
    }

    fn generation(&self) -> Generation {
        self.shared.gate()
    }

    fn start(&mut self, io: &mut dyn StoreIo, ticket: Ticket, request: Request) {
        self.begin(io, ticket, request);
    }

    fn withdraw(&mut self, ticket: Ticket) -> Option<Request> {
        let at = self.waiting.iter().position(|waiting| waiting.ticket == ticket)?;
        Some(self.waiting.remove(at)?.request)
    }

    fn on_completion(&mut self, io: &mut dyn StoreIo, ticket: Ticket, _: Completion) {
        if let Some((at, event)) = self.own(io, ticket) {
            self.on_event(io, at, event);
        }
    }

    fn on_timer(&mut self, io: &mut dyn StoreIo, ticket: Ticket) {
        if let Some((at, TICK)) = self.own(io, ticket) {
            self.on_tick(io, at);
        }
    }
}
