//! One reactor's access to a namespace on a file or block device: requests become operations of the reactor.
//!
//! ```text
//! Read, Write ──▶ read or write ──short──▶ the rest ──▶ … ──▶ reply
//! Flush ──▶ waits for the running flush, shares the next one ──▶ reply
//! FindData ──▶ a thread looks for it ──▶ reply
//! Deallocate, WriteZeroes ──▶ its turn ──▶ slices: punch ─▶ zero ─▶ write zeroes ──▶ (durable: as a Flush) ──▶ reply
//!                                            └ what is not supported leaves it to the next ┘
//! ```
//!
//! Transient failures (EINTR, EAGAIN, no buffer for zeroes) are retried, at once or a little later.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

use memory::Buffer;
use reactor::{Allocation, Completion, DataMap, Operation};
use rustix::io::Errno;

use super::file_shared::{Descriptions, Shared};
use crate::namespace::{Backend, Generation, Geometry, Reply, Request, StoreError, StoreIo, Ticket};
use crate::space::is_unsupported;
use crate::tickets::Tickets;

/// Maximum attempts at an operation that fails transiently or makes no progress.
pub(super) const ATTEMPT_LIMIT: u32 = 10;

/// Retries made without a delay; the later ones wait, each twice as long as the one before.
const PROMPT_ATTEMPT_COUNT: u32 = 3;

/// The first delay, ns.
const RETRY_NS: u64 = 1_000_000;

/// Interval between attempts to get a buffer of zeroes, ns.
pub(super) const BUFFER_WAIT_NS: u64 = 200_000;

/// Ranges punched or zeroed concurrently. Each may block a thread, and holds the file's lock.
pub(super) const RANGE_LIMIT: usize = 2;

/// Bytes punched or zeroed in one operation, so that reads and writes get their turn between.
const SLICE_BYTES: u64 = 1 << 30;

/// Zeroes written in one operation, bytes.
const ZEROES_BYTES: u64 = 256 << 10;

/// One reactor's access.
pub(super) struct FileBackend {
    shared: Arc<Shared>,
    /// The state of the namespace that `files` belong to.
    gate: Generation,
    files: Descriptions,
    tasks: Tickets<Task>,
    flushes: Flushes,
    ranges: Ranges,
}

/// A request in flight.
struct Task {
    /// The state in which it was started. It cannot succeed in another one.
    gate: Generation,
    attempt_count: u32,
    work: Work,
    /// The buffer of a read or write that waits for another attempt.
    parked: Option<Buffer>,
    /// Of a search for data.
    map: Option<Arc<DataMap>>,
}

/// The remaining work of a request.
#[derive(Clone, Copy)]
enum Work {
    Read {
        offset: u64,
        done: usize,
    },
    Write {
        offset: u64,
        done: usize,
        is_durable: bool,
    },
    /// Waits for a flush: the one in flight or the next.
    Flush,
    /// Bytes `offset..end` are still to be changed.
    Range {
        offset: u64,
        end: u64,
        way: Way,
        is_durable: bool,
    },
    /// Finds data.
    FindData,
}

/// The way in which a range is changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// Deallocate, or do nothing.
    GiveBack,
    /// Zero by deallocating; if that is not supported, in the next way.
    Punch,
    /// Zero and keep the space; if that is not supported, in the next way.
    Zero,
    /// Write zeroes.
    Write,
}

/// Flushes that arrive while one runs share the next: the running one may have begun before their writes ended.
#[derive(Default)]
struct Flushes {
    /// Requests that the flush in flight serves. It runs under the first ticket.
    running: Vec<Ticket>,
    waiting: Vec<Ticket>,
}

/// Ranges take turns.
#[derive(Default)]
struct Ranges {
    running_count: usize,
    waiting: VecDeque<Ticket>,
    is_starting: bool,
}

impl FileBackend {
    pub(super) fn new(shared: Arc<Shared>, gate: Generation, files: Descriptions) -> Self {
        let (tasks, flushes, ranges) = (Tickets::default(), Flushes::default(), Ranges::default());
        Self { shared, gate, files, tasks, flushes, ranges }
    }

    /// Whether requests may start. After a reopen, switches to the new file.
    fn enter(&mut self) -> Result<(), StoreError> {
        let gate = self.shared.gate();
        if gate.is_closed() {
            return Err(StoreError::Closed);
        }
        if gate != self.gate {
            match self.shared.describe() {
                Ok(files) => (self.files, self.gate) = (files, gate),
                Err(error) => {
                    self.shared.close(gate, &format_args!("a reactor cannot open the file anew: {error}"));
                    return Err(StoreError::Closed);
                }
            }
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
            Request::Flush => (0, shared.bytes()),
            Request::Deallocate { offset, length } | Request::WriteZeroes { offset, length, .. } => {
                (*offset, *length)
            }
            Request::FindData(map) => (map.range().start, map.range().end - map.range().start),
        };
        // The caller may have checked against the geometry before a resize.
        let end = offset.checked_add(length).filter(|end| *end <= shared.bytes());
        let end = end.ok_or(StoreError::Truncated)?;
        match request {
            Request::Read { .. } | Request::FindData(_) => {}
            // Nothing was written, so there is nothing to flush.
            Request::Flush if shared.is_read_only() => return Ok(None),
            Request::Flush => {}
            _ if shared.refuses_writes() => return Err(StoreError::ReadOnly),
            _ => {}
        }
        Ok(match *request {
            Request::Read { .. } => Some(Work::Read { offset, done: 0 }),
            Request::Write { is_durable, .. } => Some(Work::Write { offset, done: 0, is_durable }),
            Request::Flush => Some(Work::Flush),
            Request::FindData(_) => Some(Work::FindData),
            Request::Deallocate { .. } if shared.can_punch() => {
                Some(Work::Range { offset, end, way: Way::GiveBack, is_durable: false })
            }
            // Deallocation is a hint.
            Request::Deallocate { .. } => None,
            Request::WriteZeroes { is_durable, may_deallocate, .. } => {
                let way = if may_deallocate { Way::Punch } else { Way::Zero };
                Some(Work::Range { offset, end, way, is_durable })
            }
        })
    }

    /// Starts the next operation of a task, which owns `buffer` if it reads or writes.
    fn issue(&mut self, io: &mut dyn StoreIo, ticket: Ticket, buffer: Option<Buffer>) {
        let Some(task) = self.tasks.get_mut(&ticket) else { return };
        if task.gate != self.shared.gate() {
            return self.end(io, ticket, Err(StoreError::Closed), buffer);
        }
        // Checked before each operation, also before those that continue a request: a write would extend the file.
        if !matches!(task.work, Work::Read { .. })
            && let Err(error) = self.shared.inspect(&self.files, task.gate)
        {
            return self.end(io, ticket, Err(error), buffer);
        }
        let file = self.files.data.clone();
        let operation = match (&mut task.work, buffer) {
            (Work::Read { offset, done }, Some(buffer)) => {
                Operation::Read { file, offset: *offset + *done as u64, buffer, skip: *done }
            }
            (Work::Write { offset, done, is_durable }, Some(buffer)) => {
                let (offset, skip, durable) = (*offset + *done as u64, *done, *is_durable);
                Operation::Write { file, offset, buffer, skip, durable }
            }
            (Work::Range { offset, end, way, .. }, buffer) => {
                way.turn_to_supported(&self.shared);
                let length = (*end - *offset).min(SLICE_BYTES);
                let change = match way {
                    Way::GiveBack | Way::Punch => Allocation::Punch,
                    Way::Zero => Allocation::Zero,
                    Way::Write => {
                        let block_bytes = self.shared.block_bytes();
                        let Some(buffer) = zeroes(io, buffer, length, block_bytes) else {
                            return io.set_timer(io.now_ns() + BUFFER_WAIT_NS, ticket);
                        };
                        let operation =
                            Operation::Write { file, offset: *offset, buffer, skip: 0, durable: false };
                        return io.start(ticket, operation);
                    }
                };
                Operation::Allocate { file, offset: *offset, length, change }
            }
            (Work::FindData, _) => {
                let Some(map) = task.map.clone() else { return };
                Operation::FindData { file, map }
            }
            (Work::Flush | Work::Read { .. } | Work::Write { .. }, _) => {
                unreachable!("flushes are not issued here, and reads and writes have buffers")
            }
        };
        io.start(ticket, operation);
    }

    /// Starts the ranges that are next. One that ends at once makes room for another in this same loop.
    fn start_ranges(&mut self, io: &mut dyn StoreIo) {
        if std::mem::replace(&mut self.ranges.is_starting, true) {
            return;
        }
        while self.ranges.running_count < RANGE_LIMIT
            && let Some(ticket) = self.ranges.waiting.pop_front()
        {
            self.ranges.running_count += 1;
            self.issue(io, ticket, None);
        }
        self.ranges.is_starting = false;
    }

    /// A range has ended: starts the next one.
    fn on_range_end(&mut self, io: &mut dyn StoreIo) {
        self.ranges.running_count -= 1;
        self.start_ranges(io);
    }

    fn flush(&mut self, io: &mut dyn StoreIo, ticket: Ticket) {
        self.flushes.waiting.push(ticket);
        if self.flushes.running.is_empty() {
            self.start_flush(io);
        }
    }

    /// Starts one flush for all waiting requests.
    fn start_flush(&mut self, io: &mut dyn StoreIo) {
        // No flush makes data durable that a cut or deleted file has lost.
        let found = self.shared.inspect_whole(&self.files, self.gate);
        let gate = self.shared.gate();
        let mut waiting = std::mem::take(&mut self.flushes.waiting);
        waiting.retain(|ticket| {
            let Some(task) = self.tasks.get(ticket) else { return false };
            let is_current = task.gate == gate;
            if !is_current || found.is_err() {
                let is_of_these_files = task.gate == self.gate;
                let result = if is_of_these_files { found } else { Err(StoreError::Closed) };
                self.finish(io, *ticket, result.and(Err(StoreError::Closed)), None);
                return false;
            }
            true
        });
        // Both vectors keep their capacity.
        self.flushes.waiting = std::mem::replace(&mut self.flushes.running, waiting);
        if let Some(leader) = self.flushes.running.first() {
            io.start(*leader, Operation::Sync { file: self.files.sync.clone() });
        }
    }

    /// The flush in flight has completed, for all requests that it serves.
    fn end_flush(&mut self, io: &mut dyn StoreIo, result: Result<(), StoreError>) {
        let mut ended = std::mem::take(&mut self.flushes.running);
        for ticket in ended.drain(..) {
            self.finish(io, ticket, result, None);
        }
        self.flushes.running = ended;
        if !self.flushes.waiting.is_empty() {
            self.start_flush(io);
        }
    }

    /// Completes a request that was begun; every request passes here. A durable one that fails closes the namespace,
    /// whatever the cause; no request succeeds in another state than the one it was started in.
    fn finish(
        &mut self,
        io: &mut dyn StoreIo,
        ticket: Ticket,
        result: Result<(), StoreError>,
        buffer: Option<Buffer>,
    ) {
        let Some(task) = self.tasks.remove(&ticket) else { return };
        if let (Err(error), Some(what)) = (result, task.work.durable_name())
            && (matches!(task.work, Work::Flush) || !self.shared.is_refusal(error))
        {
            self.shared.close(task.gate, &format_args!("{what}: {error}"));
        }
        let is_current = self.shared.gate() == task.gate;
        let result = if is_current { result } else { result.and(Err(StoreError::Closed)) };
        io.reply(ticket, Reply { result, buffer });
    }

    fn fail_flush(&mut self, io: &mut dyn StoreIo, errno: Errno) {
        let error = write_error(errno);
        self.shared.on_refusal(error);
        self.end_flush(io, Err(error));
    }

    /// Retries a task, now or later; fails it with `errno` after too many attempts.
    fn retry(&mut self, io: &mut dyn StoreIo, ticket: Ticket, errno: Errno, buffer: Option<Buffer>) {
        let Some(task) = self.tasks.get_mut(&ticket) else { return };
        task.attempt_count += 1;
        if task.attempt_count >= ATTEMPT_LIMIT {
            self.fail(io, ticket, errno, buffer);
        } else if task.attempt_count > PROMPT_ATTEMPT_COUNT {
            task.parked = buffer;
            let wait_ns = RETRY_NS << (task.attempt_count - PROMPT_ATTEMPT_COUNT - 1);
            io.set_timer(io.now_ns() + wait_ns, ticket);
        } else {
            self.try_again(io, ticket, buffer);
        }
    }

    fn try_again(&mut self, io: &mut dyn StoreIo, ticket: Ticket, buffer: Option<Buffer>) {
        match self.tasks.get(&ticket).map(|task| task.work) {
            Some(Work::Flush) => io.start(ticket, Operation::Sync { file: self.files.sync.clone() }),
            Some(_) => self.issue(io, ticket, buffer),
            None => {}
        }
    }

    /// Completes a task that reads, writes or changes a range.
    fn end(
        &mut self,
        io: &mut dyn StoreIo,
        ticket: Ticket,
        result: Result<(), StoreError>,
        buffer: Option<Buffer>,
    ) {
        let Some(task) = self.tasks.get(&ticket) else { return };
        if !matches!(task.work, Work::Range { .. }) {
            return self.finish(io, ticket, result, buffer);
        }
        // A buffer of zeroes is ours, not the request's.
        io.give_back(buffer);
        self.finish(io, ticket, result, None);
        self.on_range_end(io);
    }

    /// An operation has failed for good.
    fn fail(&mut self, io: &mut dyn StoreIo, ticket: Ticket, errno: Errno, buffer: Option<Buffer>) {
        let Some(task) = self.tasks.get(&ticket) else { return };
        let gate = task.gate;
        match task.work {
            Work::Flush => self.fail_flush(io, errno),
            // Block devices and some file systems do not know.
            Work::FindData if is_unsupported(errno) || errno == Errno::INVAL => {
                self.end(io, ticket, Err(StoreError::Unsupported), buffer);
            }
            Work::FindData => {
                self.end(io, ticket, Err(StoreError::ReadFailed(errno.raw_os_error())), buffer);
            }
            Work::Read { .. } => {
                self.end(io, ticket, Err(StoreError::ReadFailed(errno.raw_os_error())), buffer);
            }
            Work::Write { .. } | Work::Range { .. } => {
                // A device that has shrunk also reports lack of space.
                let error = match write_error(errno) {
                    StoreError::NoSpace if self.shared.is_cut(&self.files, gate) => StoreError::Truncated,
                    error => error,
                };
                self.shared.on_refusal(error);
                self.end(io, ticket, Err(error), buffer);
            }
        }
    }

    /// Bytes were read, written or changed: continues, or completes.
    fn on_progress(&mut self, io: &mut dyn StoreIo, ticket: Ticket, count: usize, buffer: Option<Buffer>) {
        let block_bytes = self.shared.block_bytes() as usize;
        let Some(task) = self.tasks.get_mut(&ticket) else { return };
        let (has_progress, is_complete) = match &mut task.work {
            Work::Read { done, .. } | Work::Write { done, .. } => {
                let length = buffer.as_ref().map_or(0, |buffer| buffer.len());
                let before = *done;
                *done = (*done + count).min(length);
                let is_complete = *done == length;
                // Direct I/O continues at whole blocks only.
                if !is_complete {
                    *done -= *done % block_bytes;
                }
                (*done > before, is_complete)
            }
            Work::Range { offset, end, way: Way::Write, .. } => {
                let count = (count - count % block_bytes) as u64;
                *offset = (*offset + count).min(*end);
                (count > 0, offset == end)
            }
            Work::Range { offset, end, .. } => {
                *offset += (*end - *offset).min(SLICE_BYTES);
                (true, offset == end)
            }
            Work::Flush | Work::FindData => unreachable!("they end elsewhere"),
        };
        if is_complete {
            return self.complete(io, ticket, buffer);
        }
        if has_progress {
            task.attempt_count = 0;
            return self.issue(io, ticket, buffer);
        }
        if let Work::Read { .. } = task.work {
            // The storage returned nothing, or a part of a block, although the namespace has not ended.
            let gate = task.gate;
            if self.shared.is_cut(&self.files, gate) || count == 0 {
                return self.end(io, ticket, Err(StoreError::Truncated), buffer);
            }
        }
        self.retry(io, ticket, Errno::IO, buffer);
    }

    /// The way tried for a range is not supported: the next way, or none.
    fn on_unsupported(&mut self, io: &mut dyn StoreIo, ticket: Ticket, way: Way) {
        match way {
            Way::GiveBack | Way::Punch => self.shared.on_punch_unsupported(),
            Way::Zero | Way::Write => self.shared.on_zero_unsupported(),
        }
        if way == Way::GiveBack {
            self.end(io, ticket, Ok(()), None);
        } else {
            self.issue(io, ticket, None);
        }
    }

    /// All bytes of a task are done.
    fn complete(&mut self, io: &mut dyn StoreIo, ticket: Ticket, buffer: Option<Buffer>) {
        let Some(task) = self.tasks.get_mut(&ticket) else { return };
        if let Work::Range { is_durable: true, .. } = task.work {
            // A flush replaces a durable write that the storage cannot do directly.
            task.work = Work::Flush;
            task.attempt_count = 0;
            io.give_back(buffer);
            self.flush(io, ticket);
            return self.on_range_end(io);
        }
        self.end(io, ticket, Ok(()), buffer);
    }
}

impl Work {
    /// The failure to report if its reply promises durability.
    fn durable_name(&self) -> Option<&'static str> {
        match self {
            Self::Flush => Some("a flush has failed"),
            Self::Write { is_durable: true, .. } => Some("a durable write has failed"),
            Self::Range { is_durable: true, .. } => Some("durable zeroing has failed"),
            Self::Read { .. } | Self::Write { .. } | Self::Range { .. } | Self::FindData => None,
        }
    }
}

impl Way {
    /// Skips the ways known to be unsupported.
    fn turn_to_supported(&mut self, shared: &Shared) {
        if *self == Self::Punch && !shared.can_punch() {
            *self = Self::Zero;
        }
        if *self == Self::Zero && !shared.can_zero() {
            *self = Self::Write;
        }
    }
}

impl Backend for FileBackend {
    fn geometry(&self) -> Geometry {
        self.shared.geometry()
    }

    fn generation(&self) -> Generation {
        self.shared.gate()
    }

    fn start(&mut self, io: &mut dyn StoreIo, ticket: Ticket, request: Request) {
        let planned = self.plan(&request);
        let (buffer, map) = match request {
            Request::Read { buffer, .. } | Request::Write { buffer, .. } => (Some(buffer), None),
            Request::FindData(map) => (None, Some(map)),
            _ => (None, None),
        };
        let work = match planned {
            Ok(Some(work)) => work,
            Ok(None) => return io.reply(ticket, Reply { result: Ok(()), buffer }),
            Err(error) => return io.reply(ticket, Reply { result: Err(error), buffer }),
        };
        let task = Task { gate: self.gate, attempt_count: 0, work, parked: None, map };
        let before = self.tasks.insert(ticket, task);
        debug_assert!(before.is_none(), "{ticket:?} runs already");
        match work {
            Work::Read { .. } | Work::Write { .. } | Work::FindData => self.issue(io, ticket, buffer),
            Work::Flush => self.flush(io, ticket),
            Work::Range { .. } => {
                self.ranges.waiting.push_back(ticket);
                self.start_ranges(io);
            }
        }
    }

    fn on_completion(&mut self, io: &mut dyn StoreIo, ticket: Ticket, completion: Completion) {
        let Completion { result, buffer, .. } = completion;
        let result = result.map_err(|error| errno_of(&error));
        let Some(task) = self.tasks.get_mut(&ticket) else {
            debug_assert!(false, "nothing runs for {ticket:?}");
            return;
        };
        match (result, &task.work) {
            (Err(errno), _) if is_passing(errno) => self.retry(io, ticket, errno, buffer),
            (Ok(_), Work::Flush) => self.end_flush(io, Ok(())),
            (Ok(_), _) if task.gate != self.shared.gate() => {
                self.end(io, ticket, Err(StoreError::Closed), buffer);
            }
            // Behind the end of a file that was cut there is no data, but no hole either.
            (Ok(_), Work::FindData) => {
                let is_cut = self.shared.is_cut(&self.files, self.gate);
                let result = if is_cut { Err(StoreError::Truncated) } else { Ok(()) };
                self.end(io, ticket, result, buffer);
            }
            (Ok(count), _) => self.on_progress(io, ticket, count, buffer),
            (Err(errno), Work::Range { way, .. }) if is_unsupported(errno) && *way != Way::Write => {
                let way = *way;
                self.on_unsupported(io, ticket, way);
            }
            (Err(errno), _) => self.fail(io, ticket, errno, buffer),
        }
    }

    fn on_timer(&mut self, io: &mut dyn StoreIo, ticket: Ticket) {
        if let Some(task) = self.tasks.get_mut(&ticket) {
            let buffer = task.parked.take();
            self.try_again(io, ticket, buffer);
        }
    }
}

/// A buffer of zeroes for the next write of a range of `length` bytes: the previous one, or a new one as large as the
/// pool provides. A fused pair may wait for the range, and lanes that hold the pool's buffers may wait for the pair.
fn zeroes(io: &mut dyn StoreIo, used: Option<Buffer>, length: u64, block_bytes: u32) -> Option<Buffer> {
    let wanted = usize::try_from(length.min(ZEROES_BYTES)).expect("a small number");
    if let Some(mut buffer) = used {
        // It held zeroes up to its old length, and the rest of a range only shrinks.
        buffer.set_len(wanted.min(buffer.len()));
        return Some(buffer);
    }
    let least = wanted.min(block_bytes as usize);
    let mut buffer = io.pool().take(wanted).or_else(|| io.take_critical(least))?;
    buffer.fill(0);
    Some(buffer)
}

/// Whether the same operation may succeed later.
fn is_passing(errno: Errno) -> bool {
    matches!(errno, Errno::INTR | Errno::AGAIN)
}

fn write_error(errno: Errno) -> StoreError {
    match errno {
        Errno::NOSPC | Errno::DQUOT => StoreError::NoSpace,
        Errno::FBIG => StoreError::FileSizeLimit,
        Errno::ROFS | Errno::PERM => StoreError::ReadOnly,
        _ => StoreError::WriteFailed(errno.raw_os_error()),
    }
}

fn errno_of(error: &io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}
