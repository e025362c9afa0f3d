//! The log of a partition: it makes changes durable, and holds values that do not fit in memory.
//!
//! ```text
//! file      │ … │ segment │ segment │ segment │ …        each its generation, in a ring
//!                  oldest ──────────────▶ head
//! change ─▶ Changes ─▶ fill: records of the keys' present state ─▶ one write ─▶ settled: answers leave
//! short of segments ─▶ the oldest is read, what is current in it written again, the segment free
//! start ─▶ headers of all segments ─▶ records from the oldest to the head, in order ─▶ flush ─▶ ready
//! stub wanted ─▶ fetch ─▶ loaded
//! ```
//!
//! A record is the whole state of a key, so any number of changes during a write become one record of the next, and
//! replaying all records in order, even twice, yields the state. A record is current if its number is that of the pair
//! in memory; a segment is freed once its current records are rewritten, and those that newer ones replace are replaced
//! durably. Segments are freed in the order in which they were filled, so a removal record may be dropped with its
//! segment: every older record of the key is gone by then.
//!
//! Sans-io: [`Log::next`] returns the next read, write or flush; `on_*` reports its result.

mod clean;
mod fetch;
mod recover;
mod scan;
#[cfg(test)]
mod tests;
mod write;

use std::collections::VecDeque;

use crate::processor::Processor;
use crate::record::SegmentHeader;
use clean::Cleaner;
use fetch::Fetch;
use recover::Recovery;
use write::{Flight, Stream};

/// Bytes per read or write of the file.
pub const PIECE_BYTES: usize = 256 * 1024;

/// Minimum number of segments of a log.
pub const SEGMENT_COUNT_MIN: u64 = 12;

/// Free segments reserved for rewriting current records, so that cleaning can always proceed.
const RESERVE_COUNT: usize = 2;

/// When answers to changes are sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Sync {
    /// Once the change survives a power cut.
    #[default]
    Always,
    /// At once. The change survives a little later: each write to the log is durable, and writes follow one another.
    Batch,
    /// At once. The change survives a power cut once a later Flush completes, and the end of the process shortly after.
    None,
}

/// Location and geometry of a log, and when answers are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogSettings {
    /// Distinguishes its segments from those of other logs that used the same file.
    pub identity: u64,
    /// Random number of this start; distinguishes its segments from those of earlier starts.
    pub run: u64,
    /// Its first byte in the file.
    pub start: u64,
    /// Bytes of a segment, a multiple of the block.
    pub segment_bytes: u64,
    /// Number of segments.
    pub segment_count: u64,
    /// Alignment of reads and writes, bytes.
    pub block_bytes: u64,
    /// When answers are sent.
    pub sync: Sync,
}

impl LogSettings {
    /// The longest value. It is a fraction of a segment: a record never spans segments, and skipping to the next wastes
    /// little.
    #[must_use]
    pub fn value_bytes_max(&self) -> usize {
        usize::try_from(self.segment_bytes / 8).unwrap_or(usize::MAX).min(256 << 20)
    }

    /// Limit on the sum of all pairs' records, bytes. Above it, cleaning would rewrite segments over and over.
    #[must_use]
    pub fn live_bytes_max(&self) -> u64 {
        (self.segment_count - 3) * self.segment_bytes / 5 * 3
    }
}

/// The checksum used by logs and their files.
#[must_use]
pub fn checksum(bytes: &[u8]) -> u32 {
    crc_fast::crc32_iscsi(bytes)
}

/// An operation on the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// A read, reported to [`Log::on_read`].
    Read {
        /// Purpose of the read.
        job: Job,
        /// First byte.
        offset: u64,
        /// Bytes, at most [`PIECE_BYTES`].
        length: usize,
    },
    /// A write: call [`Log::fill`] with a buffer of [`PIECE_BYTES`], and write what it returns.
    Write,
    /// A flush, reported to [`Log::on_flushed`].
    Flush,
}

/// The purpose of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Job {
    /// Recovery at start.
    Recover,
    /// Cleaning a segment.
    Clean,
    /// Fetching a value; the number of the fetch.
    Fetch(u32),
}

/// A write to the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Write {
    /// First byte in the file.
    pub offset: u64,
    /// Bytes to write, from the start of the buffer.
    pub length: usize,
    /// Whether it must survive a power cut before [`Log::on_written`] is called.
    pub is_durable: bool,
}

/// A completed fetch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loaded {
    /// Its key.
    pub key: Box<[u8]>,
    /// Whether the value is in memory, or the key has changed.
    pub result: Result<(), FetchError>,
}

/// Why a value could not be fetched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FetchError {
    /// The read failed, or found something else.
    Unreadable,
    /// Memory is full of what cannot leave it.
    NoMemory,
}

/// Why a log has stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// A complete segment is damaged; its first byte.
    Damaged(u64),
    /// A segment between others is missing; its generation.
    Missing(u64),
    /// A read failed.
    Unreadable,
    /// A write or flush failed: it is unknown what survives.
    Unwritable,
    /// Not enough memory for the pairs in the log.
    NoMemory,
    /// Its namespace was removed, or the target stopped.
    Stopped,
}

/// Work done by a log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogCounters {
    /// Values fetched.
    pub fetch_count: u64,
    /// Writes.
    pub write_count: u64,
    /// Flushes.
    pub flush_count: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// Records written.
    pub record_count: u64,
    /// Segments freed.
    pub cleaned_count: u64,
}

/// A segment in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Segment {
    run: u64,
    generation: u64,
    slot: u64,
    /// One past its last record; for the head, so far.
    end: u64,
}

/// State of the log.
#[derive(Debug)]
enum Phase {
    Recovering(Box<Recovery>),
    /// All is read. A header says that CAS numbers of lost values are passed over, so that no later start gives them
    /// again. Some of the log may be in a volatile cache only, if an earlier process was killed: all is flushed before
    /// anything depends on it.
    Settling {
        is_header_written: bool,
    },
    Ready,
    Failed(Failure),
}

/// The log of one partition.
#[derive(Debug)]
pub struct Log {
    settings: LogSettings,
    phase: Phase,
    /// Segments in use, from the oldest to the head.
    segments: VecDeque<Segment>,
    /// Free slots, each with the generation of the segment it held.
    free: VecDeque<(u64, u64)>,
    /// The oldest live generation named by the head's header: only slots of older segments may be overwritten.
    recorded_oldest: u64,
    /// The header of the newest segment, if there is any.
    newest: Option<SegmentHeader>,
    /// Whether the head was begun by this run, so that records can be appended.
    has_head: bool,
    flight: Option<Flight>,
    stream: Option<Stream>,
    is_flushing: bool,
    /// All changes up to this one are written, but not necessarily durable.
    written: u64,
    /// Whether anything was written since the last flush began.
    is_unflushed: bool,
    /// A flush is wanted once all changes up to this one are written.
    flush_wanted: u64,
    /// Whether a flush is wanted regardless.
    wants_flush_now: bool,
    cleaner: Cleaner,
    fetches: Vec<Option<Fetch>>,
    fetch_queue: VecDeque<u32>,
    /// Whether fetches wait for memory, until the next write or read of a fetch completes.
    fetches_await_memory: bool,
    /// Whether it does only what makes changes durable.
    is_stopping: bool,
    loaded: VecDeque<Loaded>,
    counters: LogCounters,
}

impl Log {
    /// A log that has not been read yet. The partition must be empty; from now on its changes are recorded.
    pub fn new(settings: LogSettings, processor: &mut Processor) -> Self {
        processor.begin_log(settings.live_bytes_max(), settings.sync == Sync::Always);
        Self {
            settings,
            phase: Phase::Recovering(Box::new(Recovery::new(settings.segment_count))),
            segments: VecDeque::new(),
            free: VecDeque::new(),
            recorded_oldest: 1,
            newest: None,
            has_head: false,
            flight: None,
            stream: None,
            is_flushing: false,
            written: 0,
            is_unflushed: false,
            flush_wanted: 0,
            wants_flush_now: false,
            cleaner: Cleaner::default(),
            fetches: Vec::new(),
            fetch_queue: VecDeque::new(),
            fetches_await_memory: false,
            is_stopping: false,
            loaded: VecDeque::new(),
            counters: LogCounters::default(),
        }
    }

    /// Whether recovery is complete.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        matches!(self.phase, Phase::Ready)
    }

    /// Why the log has stopped, if it has.
    #[must_use]
    pub fn failure(&self) -> Option<Failure> {
        match self.phase {
            Phase::Failed(failure) => Some(failure),
            _ => None,
        }
    }

    /// Work done so far.
    #[must_use]
    pub fn counters(&self) -> LogCounters {
        self.counters
    }

    /// Its settings.
    #[must_use]
    pub fn settings(&self) -> &LogSettings {
        &self.settings
    }

    /// Restricts it to making changes durable and to fetches, or ends it if it is not ready.
    pub fn stop(&mut self) {
        self.is_stopping = true;
        if !self.is_ready() {
            self.give_up();
        }
    }

    /// Ends it, whether all changes are durable or not.
    pub fn give_up(&mut self) {
        self.fail(Failure::Stopped);
    }

    /// Whether no change is left that may become durable.
    #[must_use]
    pub fn is_settled(&self, processor: &mut Processor) -> bool {
        let changes = processor.pairs_mut().changes();
        !self.is_ready() || changes.settled() == changes.count()
    }

    /// The next operation, if there is one. It counts as under way until `on_*` or [`put_back`](Self::put_back).
    pub fn next(&mut self, processor: &mut Processor) -> Option<Work> {
        if self.is_stopping {
            if self.is_settled(processor) {
                return self.next_fetch(processor);
            }
            self.request_flush(processor);
        }
        match &mut self.phase {
            Phase::Failed(_) => None,
            Phase::Recovering(recovery) => recovery.next(&self.settings),
            Phase::Settling { is_header_written: false } => self.flight.is_none().then_some(Work::Write),
            Phase::Settling { .. } => {
                self.is_unflushed = false;
                (!std::mem::replace(&mut self.is_flushing, true)).then_some(Work::Flush)
            }
            Phase::Ready => {
                self.advance_cleaning(processor);
                self.next_fetch(processor)
                    .or_else(|| self.next_clean(processor))
                    .or_else(|| self.wants_write(processor).then_some(Work::Write))
                    .or_else(|| self.next_flush())
            }
        }
    }

    /// Returns an operation that could not be started; [`next`](Self::next) will return it again.
    pub fn put_back(&mut self, work: Work) {
        match work {
            Work::Read { job: Job::Recover, .. } => {
                if let Phase::Recovering(recovery) = &mut self.phase {
                    recovery.is_reading = false;
                }
            }
            Work::Read { job: Job::Clean, .. } => self.cleaner.is_reading = false,
            Work::Read { job: Job::Fetch(number), .. } => self.fetch_queue.push_front(number),
            Work::Write => {}
            Work::Flush => {
                (self.is_flushing, self.is_unflushed, self.wants_flush_now) = (false, true, true);
            }
        }
    }

    /// Handles a completed read; `None` if it failed.
    pub fn on_read(&mut self, processor: &mut Processor, job: Job, bytes: Option<&[u8]>) {
        match job {
            Job::Recover => self.on_recovered(processor, bytes),
            Job::Clean => self.on_clean(processor, bytes),
            Job::Fetch(number) => self.on_fetched(processor, number, bytes),
        }
    }

    fn next_flush(&mut self) -> Option<Work> {
        if self.settings.sync != Sync::None || self.is_flushing || self.flight.is_some() {
            return None;
        }
        let is_due = self.is_unflushed
            && (self.wants_flush_now || self.written >= self.flush_wanted)
            && (self.wants_flush_now || self.flush_wanted > 0);
        if !is_due {
            return None;
        }
        self.is_flushing = true;
        self.is_unflushed = false;
        self.wants_flush_now = false;
        Some(Work::Flush)
    }

    /// Handles a completed flush: everything written before it began is durable.
    pub fn on_flushed(&mut self, processor: &mut Processor, is_good: bool) {
        self.is_flushing = false;
        if !is_good {
            return self.fail(Failure::Unwritable);
        }
        self.counters.flush_count += 1;
        if let Phase::Settling { .. } = self.phase {
            self.phase = Phase::Ready;
        }
        // No write runs during a flush.
        processor.pairs_mut().changes().settle(self.written);
        if self.written >= self.flush_wanted {
            self.flush_wanted = 0;
        }
        self.cleaner.on_settled();
        self.advance_cleaning(processor);
    }

    /// Requests that all changes so far become durable soon. Returns the change to [wait](Self::settled) for.
    pub fn request_flush(&mut self, processor: &mut Processor) -> u64 {
        let count = processor.pairs_mut().changes().count();
        self.flush_wanted = count;
        count
    }

    /// The last change that is durable together with all before it.
    pub fn settled(&self, processor: &mut Processor) -> u64 {
        processor.pairs_mut().changes().settled()
    }

    /// The last change so far, if answers wait for durability.
    #[must_use]
    pub fn awaited_last(&self, processor: &mut Processor) -> Option<u64> {
        let count = processor.pairs_mut().changes().count();
        (self.settings.sync == Sync::Always && count > processor.pairs_mut().changes().settled())
            .then_some(count)
    }

    /// Writes completed so far, while there are unwritten changes; `None` if there are none.
    #[must_use]
    pub fn progress(&self, processor: &mut Processor) -> Option<u64> {
        let is_behind = self.flight.is_some() || self.written < processor.pairs_mut().changes().count();
        is_behind.then_some(self.counters.write_count)
    }

    /// The next key whose fetch has completed or failed.
    pub fn next_loaded(&mut self) -> Option<Loaded> {
        self.loaded.pop_front()
    }

    fn fail(&mut self, failure: Failure) {
        if !matches!(self.phase, Phase::Failed(_)) {
            self.phase = Phase::Failed(failure);
        }
    }

    /// First byte of a slot in the file.
    fn slot_start(&self, slot: u64) -> u64 {
        self.settings.start + slot * self.settings.segment_bytes
    }

    /// The segment in use that contains this byte of the file, and the offset in it.
    fn segment_at(&self, offset: u64) -> Option<(Segment, u64)> {
        let offset = offset.checked_sub(self.settings.start)?;
        let slot = offset / self.settings.segment_bytes;
        let segment = self.segments.iter().find(|segment| segment.slot == slot)?;
        Some((*segment, offset % self.settings.segment_bytes))
    }

    /// Free slots that may already be overwritten.
    fn usable_count(&self) -> usize {
        self.free.iter().take_while(|(generation, _)| *generation < self.recorded_oldest).count()
    }
}
