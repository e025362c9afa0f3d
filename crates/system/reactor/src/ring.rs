//! The io_uring engine: readiness polls, storage operations and sleeping through one ring.
//!
//! Sockets are polled once per arming and then read and written by plain calls: measured, that is as fast as
//! multishot receive on a busy lane and takes no buffers on an idle one (docs/design/socket-path.md).

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use io_uring::types::{Fd, FsyncFlags, Napi, SubmitArgs, Timespec};
use io_uring::{IoUring, opcode, squeue};

use crate::busy_poll::BusyPoll;
use crate::event::{Event, Interest, Patience};
use crate::in_flight::{Awaited, InFlight};
use crate::mailbox::Bell;
use crate::operation::{Completion, File, Operation, Token, rest_of};
use crate::probe::{Features, RingSetup, is_out_of_memory};
use crate::registered::RegisteredBlocks;
use crate::workers::{Job, OperationEnd, Workers};
use memory::Pool;

/// Entries of the submission queue: what one turn hands over at once.
const SUBMISSION_ENTRIES: u32 = 256;

/// Entries of the completion queue; the kernel keeps what overflows.
const COMPLETION_ENTRIES: u32 = 4096;

/// Rings are made smaller down to this many submission entries where little memory may be locked: from Linux 6.14 on a
/// ring counts as locked memory of an unprivileged process.
const SUBMISSION_ENTRIES_MIN: u32 = 32;

/// Storage operations that may run at once.
const OPERATION_LIMIT: u32 = 1024;

/// Kernel worker threads for operations that block: fdatasync and fallocate always do. The kernel counts those on
/// files and block devices ("bounded" to it) apart from all others.
const BLOCKING_WORKERS: u32 = 8;

/// The owner of a completion: the top byte of its `user_data`; below it a key or a slot.
#[derive(Clone, Copy)]
#[repr(u8)]
enum Kind {
    Readable = 1,
    Writable,
    Operation,
    Bell,
    Ignored,
    Awaited,
    Workers,
}

/// Sleep before the next attempt when the kernel has no memory for what is submitted and nothing has completed that
/// would free some.
const RETRY_PAUSE: Duration = Duration::from_millis(1);

const KIND_SHIFT: u32 = 56;
const BELOW_KIND: u64 = (1 << KIND_SHIFT) - 1;

impl Kind {
    fn user_data(self, below: u64) -> u64 {
        debug_assert!(below <= BELOW_KIND);
        u64::from(self as u8) << KIND_SHIFT | below
    }
}

pub(crate) struct RingEngine {
    ring: IoUring,
    /// Operations whose buffers the kernel may use: each is here from before its entry is queued until its completion
    /// is reaped.
    in_flight: InFlight,
    /// Descriptors that are awaited. The kernel uses no memory of ours for them.
    awaited: Awaited,
    /// The thread for operations that the kernel's ring does not have, made when first needed, and its results.
    workers: Option<Workers>,
    done: Vec<OperationEnd>,
    /// Operations for which no thread could be started, to be reported as failed.
    failed: Vec<Completion>,
    /// Entries for which the submission queue had no room, oldest first. The kernel has not seen them.
    backlog: VecDeque<squeue::Entry>,
    /// Errors for the next calls of the kernel, in place of the calls.
    #[cfg(test)]
    refusals: VecDeque<i32>,
    bell: Option<Arc<Bell>>,
    registered: RegisteredBlocks,
    /// The file at index 0 of the ring's table.
    registered_file: Option<File>,
    /// The pool whose blocks are registered: it must outlive the ring.
    _pool: Pool,
}

impl RingEngine {
    /// Makes a ring with the features the kernel has.
    pub(crate) fn new(pool: &Pool) -> io::Result<Self> {
        Self::with_limit(pool, OPERATION_LIMIT)
    }

    /// As [`new`](Self::new), with at most `limit` storage operations at once.
    pub(crate) fn with_limit(pool: &Pool, limit: u32) -> io::Result<Self> {
        let (ring, setup) = largest_ring()?;
        Self::around(ring, setup, pool, limit)
    }

    fn around(ring: IoUring, setup: RingSetup, pool: &Pool, limit: u32) -> io::Result<Self> {
        let submitter = ring.submitter();
        // Kernels too old for this limit keep their default.
        let _ = submitter.register_iowq_max_workers(&mut [BLOCKING_WORKERS; 2]);
        let registered = RegisteredBlocks::new(&submitter, pool);
        tracing::debug!(?setup, "ring ready");
        Ok(Self {
            ring,
            in_flight: InFlight::new(limit),
            awaited: Awaited::default(),
            workers: None,
            done: Vec::new(),
            failed: Vec::new(),
            backlog: VecDeque::new(),
            #[cfg(test)]
            refusals: VecDeque::new(),
            bell: None,
            registered,
            registered_file: None,
            _pool: pool.clone(),
        })
    }

    pub(crate) fn set_bell(&mut self, bell: Arc<Bell>) -> io::Result<()> {
        self.bell = Some(bell);
        self.arm_bell()
    }

    /// From Linux 6.9. The ring learns which devices to poll from the sockets that it watches.
    pub(crate) fn set_busy_poll(&mut self, wanted: BusyPoll) -> io::Result<()> {
        let napi = Napi::new().set_busy_poll_timeout(wanted.wait_us);
        self.ring.submitter().register_napi(&mut napi.set_prefer_busy_poll(wanted.prefers))
    }

    /// Has the kernel look up this file once, for all operations on it.
    pub(crate) fn register_file(&mut self, file: &File) -> io::Result<()> {
        self.ring.submitter().register_files(&[file.descriptor()?.as_raw_fd()])?;
        // Kept, so that no other file is taken for it.
        self.registered_file = Some(file.clone());
        Ok(())
    }

    /// Whether operations have used fixed buffers.
    pub(crate) fn has_registered_buffers(&self) -> bool {
        self.registered.count() > 0
    }

    fn arm_bell(&mut self) -> io::Result<()> {
        let Some(bell) = &self.bell else { return Ok(()) };
        let fd = bell.as_fd().as_raw_fd();
        let entry = poll(fd, Interest::Read).user_data(Kind::Bell.user_data(0));
        // SAFETY: a poll touches no memory of ours.
        unsafe { self.push(entry) };
        Ok(())
    }

    pub(crate) fn arm(&mut self, key: u64, fd: BorrowedFd<'_>, interest: Interest) -> io::Result<()> {
        let kind = match interest {
            Interest::Read => Kind::Readable,
            Interest::Write => Kind::Writable,
        };
        let entry = poll(fd.as_raw_fd(), interest).user_data(kind.user_data(key));
        // SAFETY: a poll touches no memory of ours.
        unsafe { self.push(entry) };
        Ok(())
    }

    pub(crate) fn disarm(&mut self, key: u64) {
        for kind in [Kind::Readable, Kind::Writable] {
            let entry = opcode::PollRemove::new(kind.user_data(key)).build();
            let entry = entry.user_data(Kind::Ignored.user_data(0));
            // SAFETY: a removal touches no memory of ours.
            unsafe { self.push(entry) };
        }
    }

    pub(crate) fn start(&mut self, token: Token, mut operation: Operation) -> Result<(), Operation> {
        if operation.file().descriptor().is_err() {
            return Err(operation);
        }
        if let Operation::Await { file } = &operation {
            let fd = file.descriptor().expect("checked above").as_raw_fd();
            let slot = self.awaited.insert(token, operation);
            let entry = poll(fd, Interest::Read).user_data(Kind::Awaited.user_data(slot.into()));
            // SAFETY: a poll touches no memory of ours.
            unsafe { self.push(entry) };
            return Ok(());
        }
        if let Operation::FindData { .. } = operation {
            return self.start_on_thread(token, operation);
        }
        // All that may panic comes before the operation counts as running: `drop` waits for each that does.
        let entry = self.entry(&mut operation);
        let slot = self.in_flight.insert(token, operation)?;
        // SAFETY: the buffer that the entry points into belongs to the operation, whose address is not part of it. The
        // operation stays in `in_flight` until its completion is reaped; `drop` waits for that, or leaks it.
        unsafe { self.push(entry.user_data(Kind::Operation.user_data(slot.into()))) };
        Ok(())
    }

    /// Starts an operation that the kernel's ring does not have.
    #[cold]
    fn start_on_thread(&mut self, token: Token, mut operation: Operation) -> Result<(), Operation> {
        if self.workers.is_none() {
            match Workers::new(1) {
                Ok(workers) => self.workers = Some(workers),
                Err(error) => {
                    tracing::error!(%error, "cannot start a storage thread: storage operation failed");
                    self.failed.push(operation.complete(token, Err(error)));
                    return Ok(());
                }
            }
            self.arm_workers();
        }
        let job = Job::of(&mut operation);
        let slot = self.in_flight.insert(token, operation)?;
        if let Some(workers) = &self.workers {
            workers.start(slot, job);
        }
        Ok(())
    }

    fn arm_workers(&mut self) {
        let Some(workers) = &self.workers else { return };
        let fd = workers.as_fd().as_raw_fd();
        let entry = poll(fd, Interest::Read).user_data(Kind::Workers.user_data(0));
        // SAFETY: a poll touches no memory of ours.
        unsafe { self.push(entry) };
    }

    /// The thread has results.
    #[cold]
    fn take_done(&mut self, events: &mut Vec<Event>) {
        if let Some(workers) = &self.workers {
            workers.take_done(&mut self.done);
        }
        for (slot, result) in self.done.drain(..) {
            let (token, operation) = self.in_flight.remove(slot);
            events.push(Event::Completed(operation.complete(token, result)));
        }
        self.arm_workers();
    }

    /// The submission entry for an operation that stays where it is.
    fn entry(&mut self, operation: &mut Operation) -> squeue::Entry {
        let (fd, flags) = match &self.registered_file {
            Some(file) if file.is_same_description(operation.file()) => (Fd(0), squeue::Flags::FIXED_FILE),
            _ => {
                let fd = operation.file().descriptor().expect("checked when started").as_raw_fd();
                (Fd(fd), squeue::Flags::empty())
            }
        };
        let entry = match operation {
            Operation::Read { offset, buffer, skip, .. } => {
                let into = rest_of(buffer, *skip);
                let (start, length) = (into.as_mut_ptr(), length(into));
                match self.fixed_buffer(start, length) {
                    Some(index) => opcode::ReadFixed::new(fd, start, length, index).offset(*offset).build(),
                    None => opcode::Read::new(fd, start, length).offset(*offset).build(),
                }
            }
            Operation::Write { offset, buffer, skip, durable, .. } => {
                let from = rest_of(buffer, *skip);
                let (start, length) = (from.as_ptr(), length(from));
                let flags = if *durable { libc::RWF_DSYNC } else { 0 };
                match self.fixed_buffer(start, length) {
                    Some(index) => {
                        let write = opcode::WriteFixed::new(fd, start, length, index);
                        write.offset(*offset).rw_flags(flags).build()
                    }
                    None => opcode::Write::new(fd, start, length).offset(*offset).rw_flags(flags).build(),
                }
            }
            Operation::Await { .. } | Operation::FindData { .. } => unreachable!("started otherwise"),
            Operation::Sync { .. } => opcode::Fsync::new(fd).flags(FsyncFlags::DATASYNC).build(),
            Operation::Allocate { offset, length, change, .. } => opcode::Fallocate::new(fd, *length)
                .offset(*offset)
                .mode(change.mode().bits().cast_signed())
                .build(),
        };
        entry.flags(flags)
    }

    fn fixed_buffer(&mut self, start: *const u8, length: u32) -> Option<u16> {
        // SAFETY: the engine keeps a clone of the pool longer than its ring: fields drop in order.
        unsafe { self.registered.find(&self.ring.submitter(), start as usize, length) }
    }

    /// Whether storage operations run.
    pub(crate) fn has_operations(&self) -> bool {
        self.in_flight.len() > 0
    }

    pub(crate) fn has_work(&mut self) -> bool {
        let submission = self.ring.submission();
        let asks = submission.taskrun() || submission.cq_overflow() || !submission.is_empty();
        drop(submission);
        asks || !self.backlog.is_empty() || !self.failed.is_empty() || !self.ring.completion().is_empty()
    }

    pub(crate) fn collect(&mut self, patience: Patience, events: &mut Vec<Event>) -> io::Result<()> {
        let patience = if self.failed.is_empty() { patience } else { Patience::None };
        self.enter(patience)?;
        events.extend(self.failed.drain(..).map(Event::Completed));
        let (mut is_rung, mut is_done) = (false, false);
        for completion in self.ring.completion() {
            let below = completion.user_data() & BELOW_KIND;
            match u8::try_from(completion.user_data() >> KIND_SHIFT) {
                Ok(kind) if kind == Kind::Readable as u8 => events.push(Event::Readable(below)),
                Ok(kind) if kind == Kind::Writable as u8 => events.push(Event::Writable(below)),
                Ok(kind) if kind == Kind::Operation as u8 => {
                    let slot = u32::try_from(below).expect("slots are 32 bits");
                    let (token, operation) = self.in_flight.remove(slot);
                    events.push(Event::Completed(operation.complete(token, outcome(completion.result()))));
                }
                Ok(kind) if kind == Kind::Awaited as u8 => {
                    let slot = u32::try_from(below).expect("slots are 32 bits");
                    if let Some((token, operation)) = self.awaited.remove(slot) {
                        let result = outcome(completion.result()).map(|_| 0);
                        events.push(Event::Completed(operation.complete(token, result)));
                    }
                }
                Ok(kind) if kind == Kind::Bell as u8 => is_rung = true,
                Ok(kind) if kind == Kind::Workers as u8 => is_done = true,
                _ => {}
            }
        }
        if is_done {
            self.take_done(events);
        }
        if is_rung {
            if let Some(bell) = &self.bell {
                bell.reset();
            }
            self.arm_bell()?;
            events.push(Event::Rung);
        }
        Ok(())
    }

    /// Submits, lets the kernel run its deferred work, and sleeps as long as `patience` lets it.
    fn enter(&mut self, patience: Patience) -> io::Result<()> {
        self.queue_backlog();
        // An entry not handed over may be the one that would end the sleep.
        let sleeps = if self.backlog.is_empty() { patience } else { Patience::None };
        let Err(error) = self.call_kernel(sleeps) else { return Ok(()) };
        match error.raw_os_error() {
            // The time is over, or a signal came.
            Some(libc::ETIME | libc::EINTR) => Ok(()),
            // EBUSY: the kernel keeps completions for which their queue had no room, and takes nothing until some are
            // reaped. EAGAIN, ENOMEM: it has no memory for the submitted entries, which stay in the queue; running
            // operations free some when they end. Without a completion to reap the next attempt waits, so that a
            // reactor that would sleep does not spin.
            Some(libc::EBUSY | libc::EAGAIN | libc::ENOMEM) => {
                if patience != Patience::None && self.ring.completion().is_empty() {
                    std::thread::sleep(RETRY_PAUSE);
                }
                Ok(())
            }
            _ => Err(error),
        }
    }

    fn call_kernel(&mut self, patience: Patience) -> io::Result<usize> {
        const GET_EVENTS: u32 = 1;
        #[cfg(test)]
        if let Some(errno) = self.refusals.pop_front() {
            return Err(io::Error::from_raw_os_error(errno));
        }
        match patience {
            Patience::None => {
                let waiting = u32::try_from(self.ring.submission().len()).expect("a small queue");
                // SAFETY: no signal set is passed.
                unsafe { self.ring.submitter().enter::<libc::sigset_t>(waiting, 0, GET_EVENTS, None) }
            }
            Patience::Forever => self.ring.submitter().submit_and_wait(1),
            Patience::For(wait_ns) => {
                let nanoseconds = u32::try_from(wait_ns % 1_000_000_000).expect("below a second");
                let timeout = Timespec::new().sec(wait_ns / 1_000_000_000).nsec(nanoseconds);
                self.ring.submitter().submit_with_args(1, &SubmitArgs::new().timespec(&timeout))
            }
        }
    }

    /// Queues an entry, in the order of the calls. It never fails: an entry that the submission queue has no room for,
    /// because the kernel takes nothing (EAGAIN, EBUSY, ENOMEM), waits for the next [`collect`](Self::collect), which
    /// reports errors that last.
    ///
    /// # Safety
    /// Memory that the entry points to stays valid until its completion is reaped.
    #[inline]
    unsafe fn push(&mut self, entry: squeue::Entry) {
        // SAFETY: the caller's contract.
        if !self.backlog.is_empty() || unsafe { self.ring.submission().push(&entry) }.is_err() {
            self.push_late(entry);
        }
    }

    #[cold]
    fn push_late(&mut self, entry: squeue::Entry) {
        self.backlog.push_back(entry);
        // The queue is full: hand its entries over, once. Whatever the kernel says, this entry is not lost.
        if let Err(error) = self.submit() {
            tracing::debug!(%error, waiting = self.backlog.len(), "submission queue full; the kernel accepts no entries");
        }
        self.queue_backlog();
    }

    fn submit(&mut self) -> io::Result<usize> {
        #[cfg(test)]
        if let Some(errno) = self.refusals.pop_front() {
            return Err(io::Error::from_raw_os_error(errno));
        }
        self.ring.submit()
    }

    /// Moves entries from the backlog to the submission queue, as far as it has room.
    fn queue_backlog(&mut self) {
        while let Some(entry) = self.backlog.front() {
            // SAFETY: the contract of `push`, through which every entry of the backlog came.
            if unsafe { self.ring.submission().push(entry) }.is_err() {
                return;
            }
            self.backlog.pop_front();
        }
    }
}

impl Drop for RingEngine {
    /// The kernel may be writing into buffers of running operations: they stay until it is done.
    fn drop(&mut self) {
        let mut events = Vec::new();
        while self.in_flight.len() > 0 {
            if let Err(error) = self.collect(Patience::Forever, &mut events) {
                // Without the ring there is no way to know when the kernel is done: their memory is never used for
                // anything else.
                let count = self.in_flight.len();
                tracing::error!(%error, count, "cannot wait for running storage operations: their buffers are leaked");
                std::mem::forget(std::mem::replace(&mut self.in_flight, InFlight::new(0)));
            }
            events.clear();
        }
    }
}

fn poll(fd: i32, interest: Interest) -> squeue::Entry {
    let mask = match interest {
        Interest::Read => libc::POLLIN | libc::POLLRDHUP,
        Interest::Write => libc::POLLOUT,
    };
    opcode::PollAdd::new(Fd(fd), u32::from(mask.cast_unsigned())).build()
}

/// The largest ring for which there is memory.
fn largest_ring() -> io::Result<(IoUring, RingSetup)> {
    let (mut entries, mut completion_entries) = (SUBMISSION_ENTRIES, COMPLETION_ENTRIES);
    loop {
        match RingSetup::best(entries, completion_entries) {
            Err(error) if is_out_of_memory(&error) && entries > SUBMISSION_ENTRIES_MIN => {
                (entries, completion_entries) = (entries / 2, completion_entries / 2);
            }
            made => return made,
        }
    }
}

fn length(bytes: &[u8]) -> u32 {
    u32::try_from(bytes.len()).expect("buffers are small")
}

fn outcome(result: i32) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::from_raw_os_error(-result))
}

impl Features {
    /// The setup of a ring that can be made here, or the error.
    pub(crate) fn of_ring() -> io::Result<RingSetup> {
        RingSetup::best(8, 16).map(|(_, setup)| setup)
    }
}

#[cfg(test)]
#[allow(clippy::single_range_in_vec_init)] // Lists of ranges.
mod tests {
    use std::sync::mpsc::channel;
    use std::time::Instant;

    use rustix::fd::OwnedFd;

    use super::*;
    use crate::operation::{Allocation, DataMap, File};
    use memory::BLOCK_BYTES_MAX;

    const BYTES: usize = 4096;

    /// Longer than anything takes on a busy machine.
    const PATIENCE: Duration = Duration::from_secs(60);

    /// An engine with room for few entries and completions; `None` where there is no io_uring.
    fn small(pool: &Pool) -> Option<RingEngine> {
        match RingSetup::best(4, 8) {
            Ok((ring, setup)) => Some(RingEngine::around(ring, setup, pool, OPERATION_LIMIT).unwrap()),
            Err(error) => {
                eprintln!("skipped: no io_uring here: {error}");
                None
            }
        }
    }

    /// A file whose pages of [`BYTES`] are full of their number.
    fn numbered(count: u8) -> File {
        let file = tempfile::tempfile().unwrap();
        for number in 0..count {
            rustix::io::pwrite(&file, &[number; BYTES], u64::from(number) * BYTES as u64).unwrap();
        }
        File::new(OwnedFd::from(file))
    }

    fn read(file: &File, pool: &Pool, number: u8) -> Operation {
        let mut buffer = pool.take(BYTES).unwrap();
        buffer.fill(0xEE);
        Operation::Read { file: file.clone(), offset: u64::from(number) * BYTES as u64, buffer, skip: 0 }
    }

    /// Collects the completions of `count` reads: each read completes once, with its own data.
    fn finish(engine: &mut RingEngine, count: u8) {
        let (mut ended, mut events, until) =
            (vec![false; count.into()], Vec::new(), Instant::now() + PATIENCE);
        while ended.contains(&false) {
            assert!(Instant::now() < until, "missing: {ended:?}");
            engine.collect(Patience::For(1_000_000), &mut events).unwrap();
            for event in events.drain(..) {
                let Event::Completed(Completion { token, result, buffer }) = event else { continue };
                assert_eq!(result.unwrap(), BYTES);
                assert!(buffer.unwrap().iter().all(|&byte| u64::from(byte) == token), "read {token}");
                assert!(!std::mem::replace(&mut ended[token as usize], true), "read {token} ended twice");
            }
        }
        assert_eq!((engine.in_flight.len(), engine.backlog.len()), (0, 0));
    }

    /// Calls that wait in the submission queue, as the kernel shows them: opcode, descriptor and flags of each. `None`
    /// before Linux 5.19, which does not show them.
    fn queued(engine: &RingEngine) -> Option<Vec<(String, i32, u32)>> {
        let path = format!("/proc/self/fdinfo/{}", engine.ring.as_raw_fd());
        let text = std::fs::read_to_string(path).unwrap();
        let field = |entry: &str, name: &str| {
            let (_, rest) = entry.split_once(name).expect("an entry has it");
            rest.split(',').next().expect("a value").to_owned()
        };
        let parse = |line: &str| {
            let flags = u32::from_str_radix(&field(line, "rw_flags:0x"), 16).expect("hexadecimal");
            (field(line, "opcode:"), field(line, "fd:").parse().expect("a number"), flags)
        };
        let entries = text.lines().filter(|line| line.contains("rw_flags:"));
        text.contains("SQEs:").then(|| entries.map(parse).collect())
    }

    #[test]
    fn the_kernel_is_asked_for_durability_by_durable_writes_and_flushes_only() {
        const DATASYNC: u32 = 1;
        let pool = Pool::new(1).unwrap();
        let [data, sync] = [numbered(1), numbered(1)];
        let [data_fd, sync_fd] = [&data, &sync].map(|file| file.descriptor().unwrap().as_raw_fd());
        for is_registered in [true, false] {
            let Some(mut engine) = small(&pool) else { return };
            if !is_registered {
                engine.registered.clear();
            }
            let write = |durable| {
                let buffer = pool.take(BYTES).unwrap();
                Operation::Write { file: data.clone(), offset: 0, buffer, skip: 0, durable }
            };
            let zero =
                Operation::Allocate { file: data.clone(), offset: 0, length: 512, change: Allocation::Zero };
            for operation in [write(true), write(false), Operation::Sync { file: sync.clone() }, zero] {
                assert!(engine.start(0, operation).is_ok());
            }
            // No memory may be locked, or Linux is older than 5.13, if nothing is registered.
            let opcode = if engine.registered.count() > 0 { "WRITE_FIXED" } else { "WRITE" };
            let expected = [
                (opcode, data_fd, libc::RWF_DSYNC.cast_unsigned()),
                (opcode, data_fd, 0),
                ("FSYNC", sync_fd, DATASYNC),
                ("FALLOCATE", data_fd, 0),
            ];
            let Some(queued) = queued(&engine) else {
                return eprintln!("skipped: the kernel does not show it");
            };
            assert_eq!(queued, expected.map(|(opcode, fd, flags)| (opcode.to_owned(), fd, flags)));
        }
    }

    #[test]
    fn blocks_become_fixed_buffers_when_they_are_first_used() {
        let pool = Pool::new(3 * BLOCK_BYTES_MAX).unwrap();
        let Some(mut engine) = small(&pool) else { return };
        assert_eq!(engine.registered.count(), 0, "no page is pinned before");
        let file = numbered(3);
        let whole: Vec<_> = (0..2).map(|_| pool.take(BLOCK_BYTES_MAX).unwrap()).collect();
        assert!(engine.start(0, read(&file, &pool, 0)).is_ok());
        let registered = engine.registered.count();
        assert!(registered <= 1, "the block of that buffer only");
        drop(whole);
        for number in 1..3 {
            assert!(engine.start(number.into(), read(&file, &pool, number)).is_ok());
        }
        assert_eq!(engine.registered.count(), registered, "buffers of the same block");
        finish(&mut engine, 3);
    }

    #[test]
    fn operations_that_the_kernel_refuses_for_now_are_carried_out_later() {
        const COUNT: u8 = 20;
        for errno in [libc::EAGAIN, libc::EBUSY, libc::ENOMEM, libc::EINTR] {
            let pool = Pool::new(1).unwrap();
            let Some(mut engine) = small(&pool) else { return };
            let file = numbered(COUNT);
            engine.refusals.extend([errno; 30]);
            for number in 0..COUNT {
                assert!(engine.start(number.into(), read(&file, &pool, number)).is_ok());
            }
            assert!(engine.has_work(), "entries wait that the kernel has not seen");
            assert_eq!(
                (engine.in_flight.len(), engine.backlog.len()),
                (COUNT.into(), usize::from(COUNT) - 4)
            );
            finish(&mut engine, COUNT);
            assert!(engine.refusals.is_empty());
            drop(engine);
            assert_eq!(pool.free_bytes(), pool.capacity_bytes());
        }
    }

    #[test]
    fn the_data_of_a_file_is_found_beside_other_operations() {
        let pool = Pool::new(1).unwrap();
        let Some(mut engine) = small(&pool) else { return };
        let file = numbered(3);
        let whole = 3 * BYTES as u64;
        let maps: Vec<_> = (0..2).map(|_| Arc::new(DataMap::new(0..whole, 10))).collect();
        for map in &maps {
            let find = Operation::FindData { file: file.clone(), map: Arc::clone(map) };
            assert!(engine.start(7, find).is_ok());
        }
        assert!(engine.start(0, read(&file, &pool, 0)).is_ok());
        let (mut ended, mut events, until) = (Vec::new(), Vec::new(), Instant::now() + PATIENCE);
        while ended.len() < 3 {
            assert!(Instant::now() < until, "ended: {ended:?}");
            engine.collect(Patience::For(1_000_000), &mut events).unwrap();
            ended.extend(events.drain(..).map(|event| match event {
                Event::Completed(Completion { token, result, .. }) => (token, result.unwrap()),
                other => panic!("{other:?}"),
            }));
        }
        ended.sort_unstable();
        assert_eq!(ended, [(0, BYTES), (7, 0), (7, 0)]);
        assert!(maps.iter().all(|map| map.take() == [0..whole]));
    }

    #[test]
    fn an_engine_that_the_kernel_gives_no_memory_does_not_spin() {
        const ATTEMPTS: u32 = 5;
        let Some(mut engine) = small(&Pool::new(1).unwrap()) else { return };
        for errno in [libc::EAGAIN, libc::EBUSY, libc::ENOMEM] {
            engine.refusals.extend([errno; ATTEMPTS as usize]);
            let start = Instant::now();
            while !engine.refusals.is_empty() {
                engine.collect(Patience::Forever, &mut Vec::new()).unwrap();
            }
            assert!(start.elapsed() >= ATTEMPTS * RETRY_PAUSE, "{:?}", start.elapsed());
        }
    }

    #[test]
    fn more_completions_than_their_queue_holds_are_all_reaped() {
        const COUNT: u8 = 100;
        let pool = Pool::new(1).unwrap();
        let Some(mut engine) = small(&pool) else { return };
        let file = numbered(COUNT);
        for number in 0..COUNT {
            assert!(engine.start(number.into(), read(&file, &pool, number)).is_ok());
        }
        finish(&mut engine, COUNT);
    }

    #[test]
    fn polls_are_armed_while_the_kernel_takes_nothing() {
        let Some(mut engine) = small(&Pool::new(1).unwrap()) else { return };
        let bells: Vec<_> = (0..10).map(|_| Bell::new().unwrap()).collect();
        engine.refusals.extend([libc::EAGAIN; 10]);
        for (key, bell) in (0..).zip(&bells) {
            bell.announce_sleep();
            bell.ring();
            engine.arm(key, bell.as_fd(), Interest::Read).unwrap();
        }
        let (mut seen, mut events, until) = (Vec::new(), Vec::new(), Instant::now() + PATIENCE);
        while seen.len() < bells.len() {
            assert!(Instant::now() < until, "seen: {seen:?}");
            engine.collect(Patience::For(1_000_000), &mut events).unwrap();
            seen.extend(events.drain(..).map(|event| match event {
                Event::Readable(key) => key,
                other => panic!("{other:?}"),
            }));
        }
        seen.sort_unstable();
        assert_eq!(seen, (0..10).collect::<Vec<u64>>());
    }

    #[test]
    fn a_panic_while_an_operation_is_started_leaves_nothing_to_wait_for() {
        let (done, ended) = channel();
        std::thread::spawn(move || {
            let pool = Pool::new(1).unwrap();
            let Some(mut engine) = small(&pool) else { return done.send(()) };
            let mut broken = read(&numbered(1), &pool, 0);
            if let Operation::Read { skip, .. } = &mut broken {
                *skip = BYTES + 1;
            }
            let start = std::panic::AssertUnwindSafe(|| engine.start(1, broken).is_ok());
            assert!(std::panic::catch_unwind(start).is_err());
            assert_eq!(pool.free_bytes(), pool.capacity_bytes());
            drop(engine);
            done.send(())
        });
        ended.recv_timeout(PATIENCE).expect("an engine without operations is dropped at once");
    }

    #[test]
    fn buffers_are_leaked_where_their_completions_cannot_be_awaited() {
        let pool = Pool::new(1).unwrap();
        let Some(mut engine) = small(&pool) else { return };
        assert!(engine.start(1, read(&numbered(1), &pool, 0)).is_ok());
        engine.refusals.push_back(libc::EBADF);
        drop(engine);
        assert_eq!(pool.free_bytes(), pool.capacity_bytes() - BYTES);
    }

    #[test]
    fn the_kernels_threads_are_bounded_for_files_and_for_the_rest() {
        let Ok(engine) = RingEngine::new(&Pool::new(1).unwrap()) else {
            return eprintln!("skipped: no io_uring here");
        };
        // Zeroes ask for the present limits.
        let mut limits = [0; 2];
        engine.ring.submitter().register_iowq_max_workers(&mut limits).unwrap();
        assert_eq!(limits, [BLOCKING_WORKERS; 2]);
    }
}
