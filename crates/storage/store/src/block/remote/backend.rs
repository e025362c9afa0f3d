//! One reactor's access to a namespace in another process.
//!
//! ```text
//! start ─▶ Task ─▶ Wire ─▶ … the server answers ─▶ reply
//!            ▲        └─ the connection is lost ─┐         what was not answered is sent again
//!            └── connected ◀── thread ◀──────────┘
//! no answer within the deadline ─▶ reply "unreachable"; requests that come then wait 1 s, then end like that
//! ```
//!
//! A request that is answered by its deadline while the connection stands keeps its buffer until the server is done with
//! it: it cannot be cancelled. Without a connection it is dropped.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use reactor::{Completion, File, Operation};
use rustix::event::{EventfdFlags, epoll, eventfd};
use rustix::io::Errno;

use super::shared::{Call, Done, Inbox, Job, Kind, Message, Owner, Shared, lock};
use super::task::{Memory, Origin, Task, Tasks};
use super::{CONNECT_LIMIT, Connected, Lost, Remote, Wire};
use crate::namespace::{Backend, Generation, Geometry, Reply, Request, StoreError, StoreIo, Ticket};

/// Interval between looks at deadlines, ns.
const TICK_NS: u64 = 500_000_000;

/// Time for which a request waits if the server does not answer, ns.
const WAIT_NS: u64 = 1_000_000_000;

/// Receives before others have their turn.
const RECEIVE_COUNT: usize = 32;

/// Pauses between attempts to connect.
const PAUSE_MIN: Duration = Duration::from_millis(10);
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// A connection that lasts this long resets the pause before the next attempt, ns.
const LASTING_NS: u64 = 1_000_000_000;

/// Events, in the numbers of our own tickets.
const WAKE: u32 = 0;
const TICK: u32 = 1;

/// Error numbers of storage.
const EPERM: u32 = 1;
const ENOSPC: u32 = 28;

type TaskOf<R> = Task<<R as Remote>::Wire>;

/// One reactor's access.
pub(super) struct RemoteBackend<R: Remote> {
    shared: Arc<Shared<R>>,
    /// An epoll set of the inbox and the connection, which the reactor awaits.
    set: File,
    inbox: Owner<R>,
    role: Role<R>,
    link: Option<Connected<R::Wire>>,
    /// A thread makes a connection.
    is_connecting: bool,
    /// Before the next attempt to connect.
    pause: Duration,
    connected_ns: u64,
    /// Whether the set has us told when the connection takes more.
    is_blocked: bool,
    tasks: Tasks<R::Wire>,
    /// Tasks that have been answered and are still in flight.
    overdue_count: u32,
    /// The searches for data among them, which are not counted there: a server may do without them.
    overdue_search_count: u32,
    /// Requests that wait for the server to answer again.
    waiting: VecDeque<Waiting<R::Wire>>,
    /// Requests that another reactor carries out.
    guests: HashMap<u64, (Ticket, Call, Memory)>,
    next_guest: u64,
    is_awaiting: bool,
    is_ticking: bool,
}

enum Role<R: Remote> {
    Undecided,
    /// It has a connection of its own.
    Owner,
    /// Its requests go to a reactor that has one.
    Guest(Owner<R>),
}

struct Waiting<W> {
    origin: Origin<W>,
    call: Call,
    memory: Memory,
    until_ns: u64,
}

/// An eventfd that is always readable: added to an epoll set, it ends the wait of an engine for the set.
static ALWAYS_READABLE: LazyLock<Option<OwnedFd>> =
    LazyLock::new(|| eventfd(1, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).ok());

fn add(set: &File, fd: BorrowedFd<'_>) -> io::Result<()> {
    let set = set.descriptor()?;
    Ok(epoll::add(set, fd, epoll::EventData::new_u64(0), epoll::EventFlags::IN)?)
}

impl<R: Remote> RemoteBackend<R> {
    pub(super) fn new(shared: Arc<Shared<R>>) -> io::Result<Self> {
        let set = File::new(epoll::create(epoll::CreateFlags::CLOEXEC)?);
        let inbox = Arc::new(Inbox::new()?);
        add(&set, inbox.bell())?;
        Ok(Self {
            shared,
            set,
            inbox,
            role: Role::Undecided,
            link: None,
            is_connecting: false,
            pause: PAUSE_MIN,
            connected_ns: 0,
            is_blocked: false,
            tasks: Tasks::default(),
            overdue_count: 0,
            overdue_search_count: 0,
            waiting: VecDeque::new(),
            guests: HashMap::new(),
            next_guest: 0,
            is_awaiting: false,
            is_ticking: false,
        })
    }

    /// Whether the request may be done; `Ok(false)` if there is nothing to do.
    fn judge(&self, call: &Call) -> Result<bool, StoreError> {
        let shared = &self.shared;
        if shared.gate().is_closed() {
            return Err(StoreError::Closed);
        }
        // The caller may have checked against the geometry before a resize.
        let end = call.offset.checked_add(call.length).filter(|end| *end <= shared.bytes());
        end.ok_or(StoreError::Truncated)?;
        match call.kind {
            Kind::Read => Ok(true),
            Kind::Find => {
                let abilities = self.link.as_ref().map_or(&shared.abilities, |link| &link.abilities);
                let is_told = shared.has_map(abilities) && self.overdue_search_count == 0;
                if is_told { Ok(true) } else { Err(StoreError::Unsupported) }
            }
            // Nothing was written, so there is nothing to flush.
            Kind::Flush => Ok(!shared.is_read_only),
            _ if shared.is_read_only => Err(StoreError::ReadOnly),
            _ => Ok(true),
        }
    }

    fn begin(&mut self, io: &mut dyn StoreIo, ticket: Ticket, request: Request) {
        // Advice that a server without Write Zeroes cannot follow so that the blocks read as zeroes.
        let is_needless =
            matches!(request, Request::Deallocate { .. }) && !self.shared.geometry().can_deallocate;
        let (call, mut memory) = call_of(request);
        match self.judge(&call) {
            Ok(true) if !is_needless => {}
            judged => return reply::<R::Wire>(io, Origin::Ticket(ticket), memory, judged.map(drop)),
        }
        self.wait_for_events(io);
        if matches!(self.role, Role::Undecided) {
            self.role = self.shared.owner_for(&self.inbox).map_or(Role::Owner, Role::Guest);
        }
        while let Role::Guest(owner) = &self.role {
            let (data, map) = match (&memory, call.kind) {
                (Memory::Map(map), _) => (Vec::new(), Some(Arc::clone(map))),
                (memory, Kind::Write) => (memory.bytes().to_vec(), None),
                (memory, _) => (vec![0; memory.bytes().len()], None),
            };
            let number = self.next_guest;
            let job = Job { from: Arc::clone(&self.inbox), number, call, data, map };
            if owner.post(Message::Job(job)).is_ok() {
                self.next_guest += 1;
                let memory = std::mem::replace(&mut memory, Memory::None);
                self.guests.insert(number, (ticket, call, memory));
                return;
            }
            self.role = self.shared.owner_for(&self.inbox).map_or(Role::Owner, Role::Guest);
        }
        self.submit(io, Origin::Ticket(ticket), call, memory);
    }

    /// Starts a request, or has it wait if the server does not answer.
    fn submit(&mut self, io: &mut dyn StoreIo, origin: Origin<R::Wire>, call: Call, memory: Memory) {
        self.tick(io);
        if self.link.is_none() {
            self.connect(io);
        }
        let now_ns = io.now_ns();
        if self.link.is_none() || self.overdue_count > 0 {
            return self.waiting.push_back(Waiting { origin, call, memory, until_ns: now_ns + WAIT_NS });
        }
        let slot = self.tasks.insert(Task::new(origin, call, memory, self.shared.gate(), now_ns));
        self.issue(slot);
        self.send(io);
    }

    /// Queues the next command of a task.
    fn issue(&mut self, slot: u32) {
        let (Some(link), Some(task)) = (&mut self.link, self.tasks.get_mut(slot)) else { return };
        task.prepare(&link.abilities);
        if task.flushes() {
            task.covered = self.shared.written_count();
        }
        link.wire.queue(&mut self.tasks, slot);
    }

    fn send(&mut self, io: &mut dyn StoreIo) {
        let Some(link) = &mut self.link else { return };
        match link.wire.send(&mut self.tasks) {
            Ok(is_blocked) if is_blocked == self.is_blocked => {}
            Ok(is_blocked) => {
                let out = if is_blocked { epoll::EventFlags::OUT } else { epoll::EventFlags::empty() };
                let flags = epoll::EventFlags::IN | out;
                let data = epoll::EventData::new_u64(0);
                let changed = self.set.descriptor();
                let changed =
                    changed.and_then(|set| Ok(epoll::modify(set, link.wire.socket(), data, flags)?));
                match changed {
                    Ok(()) => self.is_blocked = is_blocked,
                    Err(error) => self.lose(io, &error.into()),
                }
            }
            Err(lost) => self.lose(io, &lost),
        }
    }

    /// Takes in what has arrived.
    fn receive(&mut self, io: &mut dyn StoreIo) {
        for _ in 0..RECEIVE_COUNT {
            let Some(link) = &mut self.link else { return };
            match link.wire.receive(&mut self.tasks) {
                Ok(true) => {}
                Ok(false) => return,
                Err(lost) => return self.lose(io, &lost),
            }
            loop {
                let Some(link) = &mut self.link else { return };
                match link.wire.next_ended(&mut self.tasks) {
                    Ok(Some((slot, errno))) => self.on_ended(io, slot, errno),
                    Ok(None) => break,
                    Err(lost) => return self.lose(io, &lost),
                }
            }
        }
    }

    /// A command has ended: the next one of its request, or the reply.
    fn on_ended(&mut self, io: &mut dyn StoreIo, slot: u32, errno: Option<u32>) {
        let (Some(task), Some(link)) = (self.tasks.get_mut(slot), &self.link) else { return };
        let shared = &self.shared;
        let result = match errno {
            _ if task.call.kind == Kind::Find => {
                let has_ended = task.advance_search(errno.is_some(), io.now_ns());
                if task.is_refuted() {
                    shared.refute_map();
                }
                if !has_ended && !task.is_overdue {
                    task.begin_next(io.now_ns());
                    self.issue(slot);
                    return self.send(io);
                }
                Ok(())
            }
            Some(errno) => Err(failure(shared, task, errno)),
            None => {
                let flushes = task.flushes();
                if !task.advance(&link.abilities) && !task.is_overdue {
                    task.begin_next(io.now_ns());
                    self.issue(slot);
                    return self.send(io);
                }
                if flushes {
                    shared.set_flushed(task.covered);
                } else if matches!(task.call.kind, Kind::Write | Kind::Zero { .. }) {
                    if !task.call.is_durable {
                        shared.add_written();
                    }
                    shared.is_full.store(false, Ordering::Relaxed);
                }
                Ok(())
            }
        };
        let Some(task) = self.tasks.remove(slot) else { return };
        if task.is_overdue && task.call.kind == Kind::Find {
            self.overdue_search_count -= 1;
            return;
        }
        if task.is_overdue {
            self.overdue_count -= 1;
            if self.overdue_count == 0 {
                tracing::info!(storage = %shared.place, "the server answers again");
                self.start_waiting(io);
            }
            return;
        }
        self.end(io, task, result);
    }

    /// Replies. A flush that began before a loss of connection does not cover what was lost by it.
    fn end(&mut self, io: &mut dyn StoreIo, task: TaskOf<R>, result: Result<(), StoreError>) {
        let gate = self.shared.gate();
        let result = result.and_then(|()| match task.call.kind {
            _ if gate.is_closed() => Err(StoreError::Closed),
            Kind::Flush if gate != task.gate => Err(StoreError::WriteFailed(Errno::IO.raw_os_error())),
            _ => Ok(()),
        });
        reply(io, task.origin, task.memory, result);
    }

    /// The connection is gone, perhaps with the server and all that it had not flushed.
    fn lose(&mut self, io: &mut dyn StoreIo, why: &Lost) {
        let Some(link) = self.link.take() else { return };
        // A process that is being started may have copies of the descriptors, which would stay in the epoll set.
        for fd in [Some(link.wire.socket()), link.wire.bell()].into_iter().flatten() {
            let _ = self.set.descriptor().map(|set| epoll::delete(set, fd));
        }
        drop(link);
        self.is_blocked = false;
        let storage = &self.shared.place;
        let seconds = self.shared.place.deadline_s();
        if matches!(why, Lost::Violation(_))
            && !self.tasks.slots(|task| task.call.kind == Kind::Find).is_empty()
        {
            self.shared.refute_map();
        }
        if self.shared.lose_unflushed() {
            tracing::error!(
                %storage, %why,
                "connection lost with writes that no flush covered: the next flush of each host fails"
            );
        } else {
            tracing::warn!(%storage, %why, "connection lost: commands wait up to {seconds} s for another one");
        }
        let gate = self.shared.gate();
        for slot in
            self.tasks.slots(|task| task.is_overdue || (task.call.kind == Kind::Flush && task.gate != gate))
        {
            let Some(task) = self.tasks.remove(slot) else { continue };
            if !task.is_overdue {
                self.end(io, task, Ok(()));
            }
        }
        (self.overdue_count, self.overdue_search_count) = (0, 0);
        if gate.is_closed() {
            return self.end_all(io);
        }
        let has_lasted = io.now_ns().saturating_sub(self.connected_ns) >= LASTING_NS;
        self.pause = if has_lasted { PAUSE_MIN } else { (self.pause * 2).min(PAUSE_MAX) };
        self.connect(io);
    }

    /// Starts a thread that connects, unless there is a connection or such a thread.
    fn connect(&mut self, io: &mut dyn StoreIo) {
        if self.is_connecting || self.link.is_some() || self.shared.gate().is_closed() {
            return;
        }
        let first = lock(&self.shared.first).take();
        if let Some(first) = first {
            return self.on_connected(io, first);
        }
        let (inbox, shared, mut pause) = (Arc::clone(&self.inbox), Arc::clone(&self.shared), self.pause);
        let attempts = move || {
            if pause > PAUSE_MIN {
                std::thread::sleep(pause);
            }
            let storage = &shared.place;
            let mut is_told = false;
            while !inbox.is_closed() {
                match storage.connect(CONNECT_LIMIT) {
                    Ok(connected) => return drop(inbox.post(Message::Connected(connected))),
                    Err(why) if !std::mem::replace(&mut is_told, true) => {
                        tracing::warn!(%storage, why, "not connected: trying on");
                    }
                    Err(why) => tracing::debug!(%storage, why, "not connected"),
                }
                std::thread::sleep(pause);
                pause = (pause * 2).min(PAUSE_MAX);
            }
        };
        self.is_connecting = std::thread::Builder::new().name(R::THREAD.into()).spawn(attempts).is_ok();
    }

    fn on_connected(&mut self, io: &mut dyn StoreIo, connected: Connected<R::Wire>) {
        self.is_connecting = false;
        let shared = &self.shared;
        shared.seen_bytes.store(connected.abilities.bytes, Ordering::Release);
        if let Err(why) = shared.check(&connected.abilities) {
            shared.close(shared.gate(), why);
            return self.end_all(io);
        }
        let fds = [Some(connected.wire.socket()), connected.wire.bell()];
        if let Err(error) = fds.into_iter().flatten().try_for_each(|fd| add(&self.set, fd)) {
            tracing::error!(storage = %shared.place, %error, "connection not used");
            return self.connect(io);
        }
        if self.connected_ns > 0 {
            tracing::info!(storage = %shared.place, "connected again");
        }
        self.connected_ns = io.now_ns();
        self.link = Some(connected);
        let has_map = self.link.as_ref().is_some_and(|link| self.shared.has_map(&link.abilities));
        for slot in self.tasks.slots(|task| task.call.kind == Kind::Find && !has_map) {
            if let Some(mut task) = self.tasks.remove(slot) {
                task.end_search();
                self.end(io, task, Ok(()));
            }
        }
        for slot in self.tasks.slots(|_| true) {
            if let Some(task) = self.tasks.get_mut(slot) {
                task.restart();
            }
            self.issue(slot);
        }
        self.send(io);
        self.start_waiting(io);
    }

    /// The namespace is closed: nothing waits for a connection any more.
    fn end_all(&mut self, io: &mut dyn StoreIo) {
        for slot in self.tasks.slots(|_| true) {
            if let Some(task) = self.tasks.remove(slot) {
                self.end(io, task, Err(StoreError::Closed));
            }
        }
        for Waiting { origin, memory, .. } in std::mem::take(&mut self.waiting) {
            reply(io, origin, memory, Err(StoreError::Closed));
        }
    }

    /// Requests wait no more: the server answers again, or their time is over.
    fn start_waiting(&mut self, io: &mut dyn StoreIo) {
        for _ in 0..self.waiting.len() {
            let is_reachable = self.link.is_some() && self.overdue_count == 0;
            let is_over = self.waiting.front().is_some_and(|first| first.until_ns <= io.now_ns());
            if !is_reachable && !is_over {
                return;
            }
            let Some(Waiting { origin, call, memory, .. }) = self.waiting.pop_front() else { return };
            match self.judge(&call) {
                Ok(true) if is_reachable => self.submit(io, origin, call, memory),
                // Linux retries a path error for as long as it takes, and other errors five times.
                Ok(true) => reply(io, origin, memory, Err(StoreError::Unreachable)),
                judged => reply(io, origin, memory, judged.map(drop)),
            }
        }
    }

    fn on_wake(&mut self, io: &mut dyn StoreIo) {
        self.is_awaiting = false;
        for message in self.inbox.take() {
            match message {
                Message::Connected(connected) => self.on_connected(io, connected),
                Message::Job(Job { from, number, call, data, map }) => {
                    let origin = Origin::Job(from, number);
                    let memory = map.map_or(Memory::Copy(data), Memory::Map);
                    match self.judge(&call) {
                        Ok(true) => self.submit(io, origin, call, memory),
                        judged => reply(io, origin, memory, judged.map(drop)),
                    }
                }
                Message::Done(Done { number, result, data }) => {
                    let Some((ticket, call, mut memory)) = self.guests.remove(&number) else { continue };
                    if let (Kind::Read, Ok(()), Memory::Buffer(buffer)) = (call.kind, &result, &mut memory) {
                        buffer.copy_from_slice(&data);
                    }
                    reply::<R::Wire>(io, Origin::Ticket(ticket), memory, result);
                }
            }
        }
        if self.is_blocked {
            self.send(io);
        }
        self.receive(io);
        self.wait_for_events(io);
    }

    /// Has the reactor wait for messages and the connection.
    fn wait_for_events(&mut self, io: &mut dyn StoreIo) {
        if !std::mem::replace(&mut self.is_awaiting, true) {
            let ticket = io.own(WAKE);
            io.start(ticket, Operation::Await { file: self.set.clone() });
        }
    }

    /// Has the reactor look at deadlines.
    fn tick(&mut self, io: &mut dyn StoreIo) {
        if !std::mem::replace(&mut self.is_ticking, true) {
            let ticket = io.own(TICK);
            io.set_timer(io.now_ns() + TICK_NS, ticket);
        }
    }

    fn on_tick(&mut self, io: &mut dyn StoreIo) {
        self.is_ticking = false;
        self.end_overdue(io);
        self.start_waiting(io);
        // A thread for it may not have been there before.
        self.connect(io);
        if !self.tasks.is_empty() || !self.waiting.is_empty() {
            self.tick(io);
        }
    }

    /// Answers requests that have taken too long.
    fn end_overdue(&mut self, io: &mut dyn StoreIo) {
        let (now_ns, limit_ns) = (io.now_ns(), self.shared.deadline_ns());
        let is_late = |task: &TaskOf<R>| !task.is_overdue && now_ns.saturating_sub(task.begun_ns) >= limit_ns;
        for slot in self.tasks.slots(is_late) {
            if self.link.is_none() {
                if let Some(task) = self.tasks.remove(slot) {
                    reply(io, task.origin, task.memory, Err(StoreError::Unreachable));
                }
                continue;
            }
            let Some(task) = self.tasks.get_mut(slot) else { continue };
            task.is_overdue = true;
            let is_search = task.call.kind == Kind::Find;
            if is_search {
                task.end_search();
                self.overdue_search_count += 1;
                tracing::warn!(
                    storage = %self.shared.place, limit_s = limit_ns / 1_000_000_000,
                    "the server does not tell of holes in time: all counts as data until it does"
                );
            } else {
                self.overdue_count += 1;
            }
            if !is_search && self.overdue_count == 1 {
                tracing::warn!(
                    storage = %self.shared.place, limit_s = limit_ns / 1_000_000_000,
                    "the server does not answer: commands end with a path error until it does"
                );
            }
            let result = if is_search { Ok(()) } else { Err(StoreError::Unreachable) };
            match &task.origin {
                Origin::Ticket(ticket) => io.reply(*ticket, Reply { result, buffer: None }),
                Origin::Job(from, number) => {
                    let done = Done { number: *number, result, data: Vec::new() };
                    let _ = from.post(Message::Done(done));
                }
            }
        }
    }
}

fn call_of(request: Request) -> (Call, Memory) {
    let call = |kind, offset, length, is_durable| Call { kind, offset, length, is_durable };
    match request {
        Request::Read { offset, buffer } => {
            (call(Kind::Read, offset, buffer.len() as u64, false), Memory::Buffer(buffer))
        }
        Request::Write { offset, buffer, is_durable } => {
            (call(Kind::Write, offset, buffer.len() as u64, is_durable), Memory::Buffer(buffer))
        }
        Request::Flush => (call(Kind::Flush, 0, 0, false), Memory::None),
        Request::FindData(map) => {
            let range = map.range();
            (call(Kind::Find, range.start, range.end - range.start, false), Memory::Map(map))
        }
        Request::Deallocate { offset, length } => {
            (call(Kind::Zero { may_deallocate: true }, offset, length, false), Memory::None)
        }
        Request::WriteZeroes { offset, length, is_durable, may_deallocate } => {
            (call(Kind::Zero { may_deallocate }, offset, length, is_durable), Memory::None)
        }
    }
}

fn reply<W>(io: &mut dyn StoreIo, origin: Origin<W>, memory: Memory, result: Result<(), StoreError>) {
    match (origin, memory) {
        (Origin::Ticket(ticket), Memory::Buffer(buffer)) => {
            io.reply(ticket, Reply { result, buffer: Some(buffer) });
        }
        (Origin::Ticket(ticket), _) => io.reply(ticket, Reply { result, buffer: None }),
        (Origin::Job(from, number), memory) => {
            let data = if let Memory::Copy(data) = memory { data } else { Vec::new() };
            // A reactor that has left waits for nothing.
            let _ = from.post(Message::Done(Done { number, result, data }));
        }
    }
}

/// What a failed command means to its request, and to the namespace.
fn failure<R: Remote>(shared: &Shared<R>, task: &TaskOf<R>, errno: u32) -> StoreError {
    let number = i32::try_from(errno).unwrap_or(i32::MAX);
    let error = match (task.call.kind, errno) {
        (Kind::Read, _) => return StoreError::ReadFailed(number),
        (_, EPERM) => StoreError::ReadOnly,
        (_, ENOSPC) => {
            shared.is_full.store(true, Ordering::Relaxed);
            StoreError::NoSpace
        }
        _ => StoreError::WriteFailed(number),
    };
    if task.flushes() {
        let gate: Generation = task.gate;
        shared.close(gate, format!("a flush has failed: {error}"));
        return StoreError::WriteFailed(number);
    }
    error
}

impl<R: Remote> Backend for RemoteBackend<R> {
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
        let is_it =
            |waiting: &Waiting<R::Wire>| matches!(waiting.origin, Origin::Ticket(waits) if waits == ticket);
        let at = self.waiting.iter().position(is_it)?;
        let Waiting { call: Call { kind, offset, length, is_durable }, memory, .. } =
            self.waiting.remove(at)?;
        Some(match (kind, memory) {
            (Kind::Read, Memory::Buffer(buffer)) => Request::Read { offset, buffer },
            (Kind::Write, Memory::Buffer(buffer)) => Request::Write { offset, buffer, is_durable },
            (Kind::Zero { may_deallocate }, _) => {
                Request::WriteZeroes { offset, length, is_durable, may_deallocate }
            }
            (Kind::Find, Memory::Map(map)) => Request::FindData(map),
            _ => Request::Flush,
        })
    }

    fn on_completion(&mut self, io: &mut dyn StoreIo, ticket: Ticket, _: Completion) {
        if ticket == io.own(WAKE) {
            self.on_wake(io);
        }
    }

    fn on_timer(&mut self, io: &mut dyn StoreIo, ticket: Ticket) {
        if ticket == io.own(TICK) {
            self.on_tick(io);
        }
    }
}

impl<R: Remote> Drop for RemoteBackend<R> {
    fn drop(&mut self) {
        self.shared.remove_owner(&self.inbox);
        // Linux retries a path error for as long as it takes, and by then another reactor is asked.
        let unreachable = |from: Owner<R>, number| {
            let done = Done { number, result: Err(StoreError::Unreachable), data: Vec::new() };
            let _ = from.post(Message::Done(done));
        };
        for message in self.inbox.close() {
            if let Message::Job(Job { from, number, .. }) = message {
                unreachable(from, number);
            }
        }
        let waiting = std::mem::take(&mut self.waiting).into_iter().map(|waiting| waiting.origin);
        let slots = self.tasks.slots(|_| true);
        let tasks = slots.into_iter().filter_map(|slot| Some(self.tasks.remove(slot)?.origin));
        for origin in waiting.chain(tasks) {
            if let Origin::Job(from, number) = origin {
                unreachable(from, number);
            }
        }
        if let Some(link) = &mut self.link {
            link.wire.leave();
        }
        if self.is_awaiting
            && let Some(readable) = &*ALWAYS_READABLE
        {
            let _ = add(&self.set, readable.as_fd());
        }
    }
}
