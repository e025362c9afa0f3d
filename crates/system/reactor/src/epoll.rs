//! The epoll engine: for machines and containers that forbid io_uring. Same behaviour, slower storage.

use std::collections::HashSet;
#[cfg(test)]
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::event::{Timespec, epoll};
use rustix::io::Errno;

use crate::busy_poll::{BusyPoll, poll_epoll};
use crate::event::{Event, Interest, Patience};
use crate::in_flight::{Awaited, InFlight};
use crate::mailbox::Bell;
use crate::operation::{Completion, Operation, Token};
use crate::workers::{Job, OperationEnd, THREAD_COUNT, Workers};

/// Events taken in by one call.
const EVENT_COUNT: usize = 256;

/// Storage operations that may be queued or running at once.
const OPERATION_LIMIT: u32 = 256;

/// Keys of our own descriptors; sockets' keys have 56 bits.
const BELL_KEY: u64 = 1 << 60;
const WORKERS_KEY: u64 = 1 << 61;

/// With the slot of an awaited descriptor below.
const AWAITED_KEY: u64 = 1 << 62;

pub(crate) struct EpollEngine {
    set: OwnedFd,
    /// Sockets in the set. They are added once, edge-triggered, and need no call to be armed again.
    watched: HashSet<u64>,
    bell: Option<Arc<Bell>>,
    workers: Option<Workers>,
    in_flight: InFlight,
    awaited: Awaited,
    /// Results of operations that are being collected.
    done: Vec<OperationEnd>,
    /// Operations for which no thread could be started, to be reported as failed.
    failed: Vec<Completion>,
    #[cfg(test)]
    is_without_threads: bool,
    /// Errors for the next calls that change the set, and for the next waits, in place of the calls.
    #[cfg(test)]
    pub(crate) refused_changes: VecDeque<Option<Errno>>,
    #[cfg(test)]
    pub(crate) refused_waits: VecDeque<Option<Errno>>,
    ready: Vec<epoll::Event>,
}

impl EpollEngine {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self {
            set: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            watched: HashSet::new(),
            bell: None,
            workers: None,
            in_flight: InFlight::new(OPERATION_LIMIT),
            awaited: Awaited::default(),
            done: Vec::new(),
            failed: Vec::new(),
            #[cfg(test)]
            is_without_threads: false,
            #[cfg(test)]
            refused_changes: VecDeque::new(),
            #[cfg(test)]
            refused_waits: VecDeque::new(),
            ready: Vec::with_capacity(EVENT_COUNT),
        })
    }

    pub(crate) fn set_bell(&mut self, bell: Arc<Bell>) -> io::Result<()> {
        self.add(BELL_KEY, bell.as_fd(), epoll::EventFlags::IN)?;
        self.bell = Some(bell);
        Ok(())
    }

    /// From Linux 6.9. The set polls the device of the socket that was ready last.
    pub(crate) fn set_busy_poll(&mut self, wanted: BusyPoll) -> io::Result<()> {
        poll_epoll(self.set.as_fd(), wanted)
    }

    fn add(&mut self, key: u64, fd: BorrowedFd<'_>, flags: epoll::EventFlags) -> io::Result<()> {
        #[cfg(test)]
        self.refused_changes.pop_front().flatten().map_or(Ok(()), Err)?;
        Ok(epoll::add(&self.set, fd, epoll::EventData::new_u64(key), flags)?)
    }

    /// Adds a descriptor that is not in the set. Without memory, or with too many descriptors watched (ENOMEM, ENOSPC),
    /// the caller tries again.
    fn watch(&mut self, key: u64, fd: BorrowedFd<'_>, flags: epoll::EventFlags) -> io::Result<()> {
        self.add(key, fd, flags).inspect_err(|_| {
            self.watched.remove(&key);
        })
    }

    /// The first arming adds the descriptor for both directions. Every later change of its state is an edge that
    /// the set reports, and a caller arms only after it has met the end (dry or blocked), so no edge is lost.
    pub(crate) fn arm(&mut self, key: u64, fd: BorrowedFd<'_>, _: Interest) -> io::Result<()> {
        use epoll::EventFlags;
        if self.watched.insert(key) {
            self.watch(key, fd, EventFlags::IN | EventFlags::OUT | EventFlags::RDHUP | EventFlags::ET)?;
        }
        Ok(())
    }

    /// For one event, also if it is ready all the while: a listener is armed with connections still waiting.
    pub(crate) fn arm_once(&mut self, key: u64, fd: BorrowedFd<'_>) -> io::Result<()> {
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ONESHOT;
        if self.watched.insert(key) {
            return self.watch(key, fd, flags);
        }
        #[cfg(test)]
        self.refused_changes.pop_front().flatten().map_or(Ok(()), Err)?;
        Ok(epoll::modify(&self.set, fd, epoll::EventData::new_u64(key), flags)?)
    }

    pub(crate) fn disarm(&mut self, key: u64, fd: BorrowedFd<'_>) {
        if self.watched.remove(&key)
            && let Err(error) = epoll::delete(&self.set, fd)
        {
            tracing::warn!(%error, "a closed socket stays in the epoll set");
        }
    }

    pub(crate) fn start(&mut self, token: Token, mut operation: Operation) -> Result<(), Operation> {
        if operation.file().descriptor().is_err() {
            return Err(operation);
        }
        if let Operation::Await { .. } = operation {
            self.start_to_await(token, operation);
            return Ok(());
        }
        // Threads are made when first needed: a target of RAM namespaces has none.
        if self.workers.is_none() {
            match self.make_workers() {
                Ok(workers) => self.workers = Some(workers),
                Err(error) => {
                    tracing::error!(%error, "cannot start storage threads: storage operation failed");
                    self.failed.push(operation.complete(token, Err(error)));
                    return Ok(());
                }
            }
        }
        let workers = self.workers.as_ref().expect("just made");
        // All that may panic comes before the operation counts as running.
        let job = Job::of(&mut operation);
        let slot = self.in_flight.insert(token, operation)?;
        workers.start(slot, job);
        Ok(())
    }

    fn start_to_await(&mut self, token: Token, operation: Operation) {
        let slot = self.awaited.insert(token, operation);
        let Some(Operation::Await { file }) = self.awaited.get(slot) else { return };
        let file = file.clone();
        let added = file.descriptor().and_then(|fd| {
            self.add(AWAITED_KEY | u64::from(slot), fd, epoll::EventFlags::IN | epoll::EventFlags::ONESHOT)
        });
        if let Err(error) = added
            && let Some((token, operation)) = self.awaited.remove(slot)
        {
            self.failed.push(operation.complete(token, Err(error)));
        }
    }

    fn make_workers(&mut self) -> io::Result<Workers> {
        #[cfg(test)]
        if self.is_without_threads {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let workers = Workers::new(THREAD_COUNT)?;
        self.add(WORKERS_KEY, workers.bell().as_fd(), epoll::EventFlags::IN)?;
        Ok(workers)
    }

    /// Whether storage operations run.
    pub(crate) fn has_operations(&self) -> bool {
        self.in_flight.len() > 0
    }

    /// There is no cheaper look at an epoll set than asking it, which the reactor does every few turns.
    pub(crate) fn has_work(&mut self) -> bool {
        !self.failed.is_empty()
    }

    fn wait(&mut self, timeout: Option<&Timespec>) -> rustix::io::Result<usize> {
        #[cfg(test)]
        self.refused_waits.pop_front().flatten().map_or(Ok(()), Err)?;
        epoll::wait(&self.set, rustix::buffer::spare_capacity(&mut self.ready), timeout)
    }

    pub(crate) fn collect(&mut self, patience: Patience, events: &mut Vec<Event>) -> io::Result<()> {
        let patience = if self.failed.is_empty() { patience } else { Patience::None };
        events.extend(self.failed.drain(..).map(Event::Completed));
        let timeout = match patience {
            Patience::None => Some(Timespec { tv_sec: 0, tv_nsec: 0 }),
            Patience::Forever => None,
            Patience::For(wait_ns) => Some(Timespec {
                tv_sec: i64::try_from(wait_ns / 1_000_000_000).unwrap_or(i64::MAX),
                tv_nsec: i64::try_from(wait_ns % 1_000_000_000).expect("below a second"),
            }),
        };
        self.ready.clear();
        match self.wait(timeout.as_ref()) {
            Ok(_) => {}
            Err(Errno::INTR) => return Ok(()),
            Err(errno) => return Err(errno.into()),
        }
        let mut done = false;
        for event in &self.ready {
            let (key, flags) = (event.data.u64(), event.flags);
            match key {
                BELL_KEY => {
                    if let Some(bell) = &self.bell {
                        bell.reset();
                    }
                    events.push(Event::Rung);
                }
                WORKERS_KEY => done = true,
                _ if key & AWAITED_KEY != 0 => {
                    let slot = u32::try_from(key & !AWAITED_KEY).expect("slots are 32 bits");
                    if let Some((token, operation)) = self.awaited.remove(slot) {
                        if let Ok(fd) = operation.file().descriptor() {
                            let _ = epoll::delete(&self.set, fd);
                        }
                        events.push(Event::Completed(operation.complete(token, Ok(0))));
                    }
                }
                _ => {
                    // Failed connections are both: the first call on the socket returns the error.
                    let failed = flags.intersects(epoll::EventFlags::ERR | epoll::EventFlags::HUP);
                    if failed || flags.intersects(epoll::EventFlags::IN | epoll::EventFlags::RDHUP) {
                        events.push(Event::Readable(key));
                    }
                    if failed || flags.intersects(epoll::EventFlags::OUT) {
                        events.push(Event::Writable(key));
                    }
                }
            }
        }
        if done && let Some(workers) = &self.workers {
            workers.take_done(&mut self.done);
            for (slot, result) in self.done.drain(..) {
                let (token, operation) = self.in_flight.remove(slot);
                events.push(Event::Completed(operation.complete(token, result)));
            }
        }
        Ok(())
    }
}

impl Drop for EpollEngine {
    /// Workers may be using buffers of running operations: they end first.
    fn drop(&mut self) {
        self.workers = None;
    }
}

#[cfg(test)]
mod tests {
    use rustix::fd::OwnedFd;

    use super::*;
    use crate::operation::File;
    use memory::Pool;

    fn read(pool: &Pool, skip: usize) -> Operation {
        let file = File::new(OwnedFd::from(tempfile::tempfile().unwrap()));
        Operation::Read { file, offset: 0, buffer: pool.take(4096).unwrap(), skip }
    }

    #[test]
    fn operations_fail_where_no_thread_can_be_made_for_them() {
        let pool = Pool::new(1).unwrap();
        let mut engine = EpollEngine::new().unwrap();
        engine.is_without_threads = true;
        assert!(engine.start(7, read(&pool, 0)).is_ok() && engine.has_work());
        let mut events = Vec::new();
        // Nothing else would end this wait.
        engine.collect(Patience::Forever, &mut events).unwrap();
        let [Event::Completed(Completion { token: 7, result: Err(_), buffer: Some(_) })] = &events[..] else {
            panic!("{events:?}")
        };
        assert!(!engine.has_work());
        // The next one is tried again.
        engine.is_without_threads = false;
        assert!(engine.start(8, read(&pool, 0)).is_ok());
        events.clear();
        engine.collect(Patience::For(60_000_000_000), &mut events).unwrap();
        assert!(matches!(&events[..], [Event::Completed(Completion { token: 8, result: Ok(0), .. })]));
    }

    #[test]
    fn a_panic_while_an_operation_is_started_frees_its_buffer() {
        let pool = Pool::new(1).unwrap();
        let mut engine = EpollEngine::new().unwrap();
        let broken = read(&pool, 4097);
        let start = std::panic::AssertUnwindSafe(|| engine.start(1, broken).is_ok());
        assert!(std::panic::catch_unwind(start).is_err());
        assert_eq!((pool.free_bytes(), engine.in_flight.len()), (pool.capacity_bytes(), 0));
    }
}
