//! One thread that serves a queue of a device by a lane of its own.
//!
//! ```text
//! queue ──request, buffer──▶ command ──▶ lane
//! queue ◀──outcome, buffer── completion ◀──
//! ```
//!
//! Each tag of the queue has its buffer and its slot, so nothing waits for memory; a request waits only where the lane takes fewer
//! commands than the queue has tags.

use std::collections::VecDeque;
use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use host::{BlockRange, Command, Completion, DataBuffer, Failure, Lane, Namespace, WaitBeside};
use memory::Buffer;
use rustix::io::Errno;
use ublk::commands::{Operation, SECTOR_BYTES};
use ublk::{Arrival, Queue, Request};

use crate::failure_log::FailureLog;
use crate::flush_ledger::FlushMember;

/// Longest sleep: the association's end is looked at after each.
const SLEEP: Duration = Duration::from_secs(3600);

/// The buffer of a request, as the lane has it: its length is that of the command's data.
#[derive(Debug)]
pub(crate) struct Data(Buffer);

impl DataBuffer for Data {
    #[inline]
    fn length(&self) -> usize {
        self.0.len()
    }

    #[inline]
    fn part(&self, offset: usize) -> &[u8] {
        &self.0[offset..]
    }

    #[inline]
    fn part_mut(&mut self, offset: usize) -> &mut [u8] {
        &mut self.0[offset..]
    }
}

/// The namespace of a device, as it is now: workers look whether it has changed.
#[derive(Debug)]
pub(crate) struct CurrentNamespace {
    changes: AtomicU64,
    namespace: Mutex<Namespace>,
}

impl CurrentNamespace {
    pub(crate) fn new(namespace: Namespace) -> Self {
        Self { changes: AtomicU64::new(0), namespace: Mutex::new(namespace) }
    }

    pub(crate) fn get(&self) -> Namespace {
        self.namespace.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn set(&self, namespace: Namespace) {
        *self.namespace.lock().unwrap_or_else(PoisonError::into_inner) = namespace;
        self.changes.fetch_add(1, Ordering::Release);
    }
}

/// What a worker begins with.
pub(crate) struct Settings {
    pub(crate) namespace: Arc<CurrentNamespace>,
    pub(crate) is_read_only: bool,
    pub(crate) flushes: Arc<FlushMember>,
}

/// Serves a queue until the device is stopped.
///
/// # Errors
/// The ring has failed.
pub(crate) fn serve(
    mut queue: Queue,
    depth: u16,
    settings: Settings,
    lane: &mut Lane<Data>,
) -> io::Result<()> {
    let mut state = State {
        namespace: settings.namespace.get(),
        changes: 0,
        settings,
        work: (0..depth).map(|_| None).collect(),
        waiting: VecDeque::with_capacity(depth.into()),
        outcomes: Vec::with_capacity(depth.into()),
        log: FailureLog::default(),
    };
    let served = state.run(&mut queue, lane);
    state.log_unlogged();
    served
}

/// A request in work.
#[derive(Debug)]
struct Work {
    request: Request,
    /// Unless the lane has it.
    buffer: Option<Buffer>,
}

/// A worker, but for its queue and its lane.
struct State {
    settings: Settings,
    namespace: Namespace,
    /// Changes of the namespace that were seen.
    changes: u64,
    /// Requests in work, by tag.
    work: Vec<Option<Work>>,
    /// Tags whose command is still to be submitted, in order.
    waiting: VecDeque<u16>,
    /// Requests that are done, to be given back.
    outcomes: Vec<(u16, i32, Buffer)>,
    log: FailureLog,
}

impl State {
    fn run(&mut self, queue: &mut Queue, lane: &mut Lane<Data>) -> io::Result<()> {
        loop {
            queue.submit()?;
            self.look_for_changes();
            let before = lane.outstanding();
            while let Some(arrival) = queue.next_arrival() {
                match arrival {
                    Arrival::Request(request, buffer) => {
                        let tag = request.tag;
                        self.work[usize::from(tag)] = Some(Work { request, buffer: Some(buffer) });
                        self.waiting.push_back(tag);
                    }
                    Arrival::End(error) => self.on_tag_end(&error),
                }
            }
            self.submit_waiting(lane);
            if lane.outstanding() != before {
                lane.ring();
            }
            self.give_back(queue);
            if queue.has_waiting() {
                continue;
            }
            if queue.is_ended() {
                return Ok(());
            }
            if lane.over().is_some() && lane.outstanding() == 0 {
                // The target is given up. Until the device is stopped its requests fail.
                queue.wait()?;
                continue;
            }
            let beside = WaitBeside::readable(queue.as_fd());
            lane.wait_beside(&mut |completion| self.on_completion(completion), beside, SLEEP);
            self.give_back(queue);
        }
    }

    #[inline]
    fn look_for_changes(&mut self) {
        let changes = self.settings.namespace.changes.load(Ordering::Acquire);
        if changes != self.changes {
            self.changes = changes;
            self.namespace = self.settings.namespace.get();
        }
    }

    /// Submits commands while the lane has room. One whose association has ended refuses them, and so they end.
    fn submit_waiting(&mut self, lane: &mut Lane<Data>) {
        while let Some(&tag) = self.waiting.front() {
            if lane.over().is_none() && !lane.has_room(1) {
                return;
            }
            self.waiting.pop_front();
            self.submit(tag, lane);
        }
    }

    fn submit(&mut self, tag: u16, lane: &mut Lane<Data>) {
        let Some(mut work) = self.work[usize::from(tag)].take() else { return };
        let request = work.request;
        let Some(mut buffer) = work.buffer.take() else { return };
        let command = match self.command_of(&request, buffer.len()) {
            Ok(command) => command,
            Err(errno) => {
                tracing::debug!(?request, ?errno, "request refused");
                return self.outcomes.push((tag, -errno.raw_os_error(), buffer));
            }
        };
        let mut data = None;
        if matches!(request.operation, Operation::Read | Operation::Write) {
            // In range: `command_of` has compared it.
            buffer.set_len(usize::try_from(request.bytes()).unwrap_or(usize::MAX));
            data = Some(Data(buffer));
        } else {
            work.buffer = Some(buffer);
        }
        let submitted = lane.submit(command, data, tag.into());
        self.work[usize::from(tag)] = Some(work);
        if let Err(refused) = submitted {
            tracing::debug!(reason = %refused.reason, "command refused");
            self.end(tag, -Errno::IO.raw_os_error(), refused.buffer);
        }
    }

    /// The command that carries a request out, whose buffer has `buffer_bytes`.
    ///
    /// # Errors
    /// The outcome of a request that has none.
    fn command_of(&self, request: &Request, buffer_bytes: usize) -> Result<Command, Errno> {
        let namespace = &self.namespace;
        let flushes = &self.settings.flushes;
        let durable = |command: Command| if request.is_durable { command.fua() } else { command };
        let changes =
            matches!(request.operation, Operation::Write | Operation::Discard | Operation::WriteZeroes);
        if changes && self.settings.is_read_only {
            return Err(Errno::ROFS);
        }
        let blocks = || blocks_of(request, namespace.lba_bytes()).ok_or(Errno::INVAL);
        let command = match request.operation {
            Operation::Read | Operation::Write if request.bytes() > buffer_bytes as u64 => {
                return Err(Errno::INVAL);
            }
            Operation::Read => blocks().map(|range| namespace.read(range.lba, range.blocks))?,
            Operation::Write => {
                blocks().map(|range| namespace.write(range.lba, range.blocks).map(durable))?
            }
            Operation::Flush if flushes.take_loss() => return Err(Errno::IO),
            Operation::Flush => {
                flushes.on_flush();
                Ok(namespace.flush())
            }
            Operation::Discard => namespace.deallocate(&[blocks()?]),
            Operation::WriteZeroes => {
                let BlockRange { lba, blocks } = blocks()?;
                namespace.write_zeroes(lba, blocks, !request.keeps_blocks).map(durable)
            }
            Operation::Other(_) => return Err(Errno::OPNOTSUPP),
        };
        command.map_err(|error| {
            tracing::debug!(%error, "command invalid");
            Errno::IO
        })
    }

    fn on_completion(&mut self, completion: Completion<Data>) {
        let Ok(tag) = u16::try_from(completion.user) else { return };
        let Some(Work { request, .. }) = &self.work[usize::from(tag)] else { return };
        let request = *request;
        let flushes = &self.settings.flushes;
        let is_flush = request.operation == Operation::Flush;
        let outcome = match completion.result {
            Ok(_) if is_flush && flushes.take_loss() => -Errno::IO.raw_os_error(),
            Ok(_) => {
                let writes = matches!(request.operation, Operation::Write | Operation::WriteZeroes);
                if writes && !request.is_durable {
                    flushes.note_write();
                }
                outcome_of(&request)
            }
            Err(failure) => {
                if is_flush && !matches!(failure, Failure::NoConnection { .. } | Failure::Cancelled) {
                    flushes.on_failed();
                }
                self.log(failure, request.operation);
                -Errno::IO.raw_os_error()
            }
        };
        self.end(tag, outcome, completion.buffer);
    }

    /// A request is done. Its buffer comes from the lane, unless its command had no data.
    fn end(&mut self, tag: u16, outcome: i32, data: Option<Data>) {
        let Some(work) = self.work[usize::from(tag)].take() else { return };
        if let Some(buffer) = data.map(|data| data.0).or(work.buffer) {
            self.outcomes.push((tag, outcome, buffer));
        }
    }

    fn give_back(&mut self, queue: &mut Queue) {
        self.outcomes.drain(..).for_each(|(tag, outcome, buffer)| queue.complete(tag, outcome, buffer));
    }

    /// A tag has no more requests. If the device was stopped, that is no failure.
    fn on_tag_end(&mut self, error: &io::Error) {
        if error.raw_os_error() != Some(Errno::NODEV.raw_os_error()) && self.log.admit().is_some() {
            tracing::warn!(%error, "kernel takes no more requests of a tag");
        }
    }

    #[cold]
    fn log(&mut self, failure: Failure, operation: Operation) {
        if let Some(unlogged) = self.log.admit() {
            let namespace = self.namespace.nsid();
            tracing::warn!(%namespace, ?operation, %failure, unlogged, "request of a block device failed");
        }
    }

    fn log_unlogged(&mut self) {
        let count = self.log.take_unlogged();
        if count > 0 {
            tracing::warn!(count, "requests of a block device failed besides");
        }
    }
}

/// The outcome of a request that is done: the bytes of a Read or Write. They fit: buffers are far smaller.
fn outcome_of(request: &Request) -> i32 {
    match request.operation {
        Operation::Read | Operation::Write => i32::try_from(request.bytes()).unwrap_or(i32::MAX),
        _ => 0,
    }
}

/// The blocks of a request, if they are whole ones.
fn blocks_of(request: &Request, lba_bytes: u32) -> Option<BlockRange> {
    let block_sectors = lba_bytes / SECTOR_BYTES;
    let is_whole = request.first_sector.is_multiple_of(block_sectors.into())
        && request.sectors.is_multiple_of(block_sectors)
        && request.sectors > 0;
    is_whole.then(|| BlockRange {
        lba: request.first_sector / u64::from(block_sectors),
        blocks: request.sectors / block_sectors,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_whole_blocks() {
        let request = |first_sector, sectors| Request {
            tag: 0,
            operation: Operation::Read,
            first_sector,
            sectors,
            is_durable: false,
            keeps_blocks: false,
        };
        let range = |lba, blocks| Some(BlockRange { lba, blocks });
        assert_eq!(blocks_of(&request(16, 24), 4096), range(2, 3));
        assert_eq!(blocks_of(&request(17, 24), 512), range(17, 24));
        for (first_sector, sectors) in [(1, 8), (8, 1), (8, 0)] {
            assert_eq!(blocks_of(&request(first_sector, sectors), 4096), None);
        }
        assert_eq!(outcome_of(&request(0, 8)), 4096);
    }
}
