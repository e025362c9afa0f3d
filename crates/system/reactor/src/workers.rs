//! Threads that do blocking storage operations: all of the epoll engine, and those that io_uring does not have.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use crate::mailbox::Bell;
use crate::operation::{Allocation, DataMap, Operation, rest_of};

/// Threads of an epoll engine: as many blocking operations run at once.
pub(crate) const THREAD_COUNT: usize = 4;

pub(crate) struct Workers {
    queue: Arc<Queue>,
    done: Arc<Done>,
    threads: Vec<JoinHandle<()>>,
}

/// The queue of operations that wait for a thread. It keeps its capacity, so that a push does not allocate.
#[derive(Default)]
struct Queue {
    jobs: Mutex<Jobs>,
    changed: Condvar,
}

#[derive(Default)]
struct Jobs {
    waiting: VecDeque<(u32, Job)>,
    is_over: bool,
}

/// The end of the operation in a slot.
pub(crate) type OperationEnd = (u32, io::Result<usize>);

/// Where results wait for the reactor.
struct Done {
    results: Mutex<Vec<OperationEnd>>,
    bell: Bell,
}

/// An operation as another thread may see it: addresses in place of buffers.
pub(crate) struct Job {
    fd: RawFd,
    work: Work,
}

enum Work {
    Read { start: *mut u8, length: usize, offset: u64 },
    Write { start: *const u8, length: usize, offset: u64, durable: bool },
    Sync,
    Allocate { offset: u64, length: u64, change: Allocation },
    FindData(Arc<DataMap>),
}

// SAFETY: the addresses are those of a buffer whose operation stays in the engine's `in_flight`, untouched, until the
// result of this job was taken; the engine joins the threads before it drops its operations.
unsafe impl Send for Job {}

impl Job {
    /// The job of an operation on a file of the system. The operation may be moved: its buffer's address stays.
    ///
    /// # Panics
    /// If the file is simulated, or if more of the buffer is to be skipped than there is.
    pub(crate) fn of(operation: &mut Operation) -> Self {
        let fd = operation.file().descriptor().expect("checked when started").as_raw_fd();
        let work = match operation {
            Operation::Read { offset, buffer, skip, .. } => {
                let into = rest_of(buffer, *skip);
                Work::Read { start: into.as_mut_ptr(), length: into.len(), offset: *offset }
            }
            Operation::Write { offset, buffer, skip, durable, .. } => {
                let from = rest_of(buffer, *skip);
                let (start, length) = (from.as_ptr(), from.len());
                Work::Write { start, length, offset: *offset, durable: *durable }
            }
            Operation::Sync { .. } => Work::Sync,
            Operation::Await { .. } => unreachable!("the engine watches descriptors itself"),
            Operation::Allocate { offset, length, change, .. } => {
                Work::Allocate { offset: *offset, length: *length, change: *change }
            }
            Operation::FindData { map, .. } => Work::FindData(Arc::clone(map)),
        };
        Self { fd, work }
    }
}

impl Workers {
    pub(crate) fn new(thread_count: usize) -> io::Result<Self> {
        let queue = Arc::new(Queue::default());
        let done = Arc::new(Done { results: Mutex::default(), bell: Bell::new()? });
        // The engine looks at the bell in its epoll set: it always wants to be rung.
        done.bell.announce_sleep();
        let mut workers = Self { queue, done, threads: Vec::new() };
        workers.threads = start_threads(thread_count, |index| {
            let (queue, done) = (Arc::clone(&workers.queue), Arc::clone(&workers.done));
            std::thread::Builder::new().name(format!("storage-{index}")).spawn(move || run(&queue, &done))
        })?;
        Ok(workers)
    }

    /// Hands over the work of an operation, which must be kept, and its buffer not used, until its slot comes back from
    /// [`take_done`](Self::take_done).
    pub(crate) fn start(&self, slot: u32, job: Job) {
        self.queue.lock().waiting.push_back((slot, job));
        self.queue.changed.notify_one();
    }

    /// Rung when there are results.
    pub(crate) fn bell(&self) -> &Bell {
        &self.done.bell
    }

    /// Puts the results that have come into `into`, which is empty.
    pub(crate) fn take_done(&self, into: &mut Vec<OperationEnd>) {
        self.done.bell.reset();
        self.done.bell.announce_sleep();
        std::mem::swap(into, &mut *self.done.results.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

/// Starts the threads of an engine, or as many as the system allows.
fn start_threads<T>(count: usize, start: impl Fn(usize) -> io::Result<T>) -> io::Result<Vec<T>> {
    let mut threads = Vec::with_capacity(count);
    for index in 0..count {
        match start(index) {
            Ok(thread) => threads.push(thread),
            Err(error) if index > 0 => {
                tracing::warn!(%error, started = index, of = count, "storage has fewer threads than usual");
                break;
            }
            Err(error) => return Err(error),
        }
    }
    Ok(threads)
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.queue.lock().is_over = true;
        self.queue.changed.notify_all();
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, Jobs> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next operation; `None` when all are done and no more will come.
    fn next(&self) -> Option<(u32, Job)> {
        let mut jobs = self.lock();
        loop {
            if let Some(job) = jobs.waiting.pop_front() {
                return Some(job);
            }
            if jobs.is_over {
                return None;
            }
            jobs = self.changed.wait(jobs).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

fn run(queue: &Queue, done: &Done) {
    while let Some((slot, job)) = queue.next() {
        let result = perform(&job);
        done.results.lock().unwrap_or_else(PoisonError::into_inner).push((slot, result));
        done.bell.ring();
    }
}

fn perform(job: &Job) -> io::Result<usize> {
    use rustix::io::{Errno, ReadWriteFlags};
    // SAFETY: the file stays open while its operation is in flight.
    let fd = unsafe { BorrowedFd::borrow_raw(job.fd) };
    loop {
        let result = match &job.work {
            &Work::Read { start, length, offset } => {
                // SAFETY: see `Send for Job`; pool memory is always initialised.
                let into = unsafe { std::slice::from_raw_parts_mut(start, length) };
                rustix::io::pread(fd, into, offset)
            }
            &Work::Write { start, length, offset, durable } => {
                // SAFETY: see `Send for Job`.
                let from = unsafe { std::slice::from_raw_parts(start, length) };
                if durable {
                    rustix::io::pwritev2(fd, &[io::IoSlice::new(from)], offset, ReadWriteFlags::DSYNC)
                } else {
                    rustix::io::pwrite(fd, from, offset)
                }
            }
            Work::Sync => rustix::fs::fdatasync(fd).map(|()| 0),
            &Work::Allocate { offset, length, change } => {
                rustix::fs::fallocate(fd, change.mode(), offset, length).map(|()| 0)
            }
            Work::FindData(map) => map.find_in(fd).map(|()| 0),
        };
        if result != Err(Errno::INTR) {
            return Ok(result?);
        }
    }
}

impl AsFd for Workers {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.done.bell.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;
    use crate::operation::File;
    use memory::Pool;

    /// Time within which operations end.
    const PATIENCE: Duration = Duration::from_secs(60);

    /// Carries operations out, and the rest of those that stop short.
    fn run_all(workers: &Workers, operations: &mut [Operation]) {
        for (slot, operation) in (0..).zip(&mut *operations) {
            workers.start(slot, Job::of(operation));
        }
        let (mut running, mut done) = (operations.len(), Vec::new());
        let until = Instant::now() + PATIENCE;
        while running > 0 {
            assert!(Instant::now() < until, "{running} operations do not end");
            workers.take_done(&mut done);
            for (slot, result) in done.drain(..) {
                let count = result.unwrap();
                let operation = &mut operations[slot as usize];
                let is_whole = match operation {
                    Operation::Read { offset, buffer, skip, .. }
                    | Operation::Write { offset, buffer, skip, .. } => {
                        (*offset, *skip) = (*offset + count as u64, *skip + count);
                        *skip == buffer.len()
                    }
                    _ => true,
                };
                if is_whole {
                    running -= 1;
                } else {
                    workers.start(slot, Job::of(operation));
                }
            }
            std::thread::yield_now();
        }
    }

    #[test]
    fn buffers_are_written_and_read_while_their_owner_keeps_them() {
        const BYTES: usize = 512;
        let workers = Workers::new(THREAD_COUNT).unwrap();
        let pool = Pool::new(1).unwrap();
        let file = File::new(tempfile::tempfile().unwrap().into());
        let write = |number: u8| {
            let mut buffer = pool.take(BYTES).unwrap();
            buffer.fill(number);
            let offset = u64::from(number) * BYTES as u64;
            Operation::Write { file: file.clone(), offset, buffer, skip: 2, durable: false }
        };
        let mut writes: Vec<_> = (0..8).map(write).collect();
        run_all(&workers, &mut writes);
        drop(writes);
        run_all(&workers, &mut [Operation::Sync { file: file.clone() }]);
        let read = |number: u64| {
            let buffer = pool.take(BYTES).unwrap();
            Operation::Read { file: file.clone(), offset: number * BYTES as u64, buffer, skip: 2 }
        };
        let mut reads: Vec<_> = (0..8).map(read).collect();
        run_all(&workers, &mut reads);
        for (number, read) in (0..8).zip(reads) {
            let buffer = read.complete(0, Ok(0)).buffer.unwrap();
            assert_eq!(buffer[2..], [number; BYTES - 2]);
        }
    }

    #[test]
    fn storage_has_as_many_threads_as_can_be_started() {
        for allowed in 0..=THREAD_COUNT + 1 {
            let start =
                |index| if index < allowed { Ok(index) } else { Err(io::ErrorKind::WouldBlock.into()) };
            let started =
                start_threads(THREAD_COUNT, start).map(|threads| threads.len()).map_err(|error| error.kind());
            let expected = allowed.min(THREAD_COUNT);
            assert_eq!(started, if expected > 0 { Ok(expected) } else { Err(io::ErrorKind::WouldBlock) });
        }
    }

    /// Errors that [`answer_durable_calls`] gives, one for each call.
    const DURABLE_WRITE: i32 = libc::EXDEV;
    const FLUSH: i32 = libc::ESTALE;
    const PLAIN_WRITE: i32 = libc::EMLINK;

    /// Lets the kernel fail the calls that this thread and its later children make to write durably, to flush, and to
    /// write: each with an error of its own, so that a test sees which was made.
    fn answer_durable_calls() -> io::Result<()> {
        use libc::{BPF_ABS, BPF_JEQ, BPF_JMP, BPF_K, BPF_LD, BPF_RET, BPF_W};
        use libc::{SECCOMP_RET_ALLOW, SECCOMP_RET_ERRNO};
        const NUMBER_AT: u32 = 0;
        // The low half of the sixth argument, on a little-endian machine.
        const FLAGS_AT: u32 = 16 + 5 * 8;
        let make = |code: u32, jt, jf, k| libc::sock_filter { code: code as u16, jt, jf, k };
        let load = |at| make(BPF_LD | BPF_W | BPF_ABS, 0, 0, at);
        let fail = |errno: i32| make(BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ERRNO | errno.cast_unsigned());
        let equal = |value, jt, jf| make(BPF_JMP | BPF_JEQ | BPF_K, jt, jf, value);
        let mut filter = [
            load(NUMBER_AT),
            equal(libc::SYS_fdatasync as u32, 0, 1),
            fail(FLUSH),
            equal(libc::SYS_pwrite64 as u32, 3, 0),
            equal(libc::SYS_pwritev2 as u32, 0, 4),
            load(FLAGS_AT),
            equal(libc::RWF_DSYNC.cast_unsigned(), 1, 0),
            fail(PLAIN_WRITE),
            fail(DURABLE_WRITE),
            make(BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ALLOW),
        ];
        let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
        // SAFETY: the program is as long as it says, and is copied by the call.
        let result = unsafe {
            match libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) {
                0 => libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program),
                failed => failed,
            }
        };
        if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    #[test]
    #[cfg(target_endian = "little")]
    #[cfg_attr(miri, ignore = "no seccomp")]
    fn the_kernel_is_asked_for_durability_by_durable_writes_and_flushes_only() {
        if let Err(error) = answer_durable_calls() {
            return eprintln!("skipped: no seccomp here: {error}");
        }
        let workers = Workers::new(THREAD_COUNT).unwrap();
        let pool = Pool::new(1).unwrap();
        let file = File::new(tempfile::tempfile().unwrap().into());
        let write = |durable| {
            let buffer = pool.take(512).unwrap();
            Operation::Write { file: file.clone(), offset: 0, buffer, skip: 0, durable }
        };
        let mut operations = [write(true), write(false), Operation::Sync { file: file.clone() }];
        for (slot, operation) in (0..).zip(&mut operations) {
            workers.start(slot, Job::of(operation));
        }
        let (mut results, mut done) = ([None; 3], Vec::new());
        let until = Instant::now() + PATIENCE;
        while results.contains(&None) {
            assert!(Instant::now() < until, "operations do not end: {results:?}");
            workers.take_done(&mut done);
            for (slot, result) in done.drain(..) {
                results[slot as usize] = result.unwrap_err().raw_os_error();
            }
            std::thread::yield_now();
        }
        assert_eq!(results, [DURABLE_WRITE, PLAIN_WRITE, FLUSH].map(Some));
    }

    #[test]
    fn dropping_the_workers_waits_for_their_operations() {
        let pool = Pool::new(1).unwrap();
        let file = File::new(tempfile::tempfile().unwrap().into());
        let workers = Workers::new(THREAD_COUNT).unwrap();
        let mut operations: Vec<_> = (0..8)
            .map(|_| Operation::Read {
                file: file.clone(),
                offset: 0,
                buffer: pool.take(4096).unwrap(),
                skip: 0,
            })
            .collect();
        for (slot, operation) in (0..).zip(&mut operations) {
            workers.start(slot, Job::of(operation));
        }
        drop(workers);
        drop(operations);
        assert_eq!(pool.free_bytes(), pool.capacity_bytes());
    }
}
