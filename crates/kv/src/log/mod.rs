//! The log of a partition: what survives, and where values are that memory has no room for.
//!
//! ```text
//! file      │ … │ segment │ segment │ segment │ …        each its generation, in a ring
//!                  oldest ──────────────▶ head
//! change ─▶ Changes ─▶ fill: records of the keys' present state ─▶ one write ─▶ settled: answers leave
//! short of segments ─▶ the oldest is read, what is current in it written again, the segment free
//! start ─▶ headers of all segments ─▶ records from the oldest to the head, in order ─▶ ready
//! stub wanted ─▶ fetch ─▶ loaded
//! ```
//!
//! A record is the whole state of a key, so any number of changes while a write is under way become one record
//! of the next, and reading all records in order, twice as well as once, gives the state. A record is current
//! if its number is that of the pair in memory; whatever is not current need not be kept. Segments are freed in
//! the order in which they were filled, so a note that a key was removed may go when its segment does: every
//! older record of the key has gone before.
//!
//! Sans-io: [`Log::next`] says what to read or write, `on_*` what came of it.

mod clean;
mod fetch;
mod recover;
mod scan;
#[cfg(test)]
mod tests;
mod write;

use std::collections::VecDeque;

use crate::key::KeyHash;
use crate::processor::Processor;
use crate::record::SegmentHeader;
use clean::Cleaner;
use fetch::Fetch;
use recover::Recovery;
use write::{Flight, Stream};

/// Bytes that are read or written in one operation.
pub const PIECE_BYTES: usize = 256 * 1024;

/// Segments that a log needs at least.
pub const SEGMENT_COUNT_MIN: u64 = 12;

/// Free segments that are for writing again only, so that segments can always be freed.
const RESERVE_COUNT: usize = 2;

/// When an answer leaves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Sync {
    /// When what it tells of survives a power cut.
    #[default]
    Always,
    /// At once. What it tells of survives a little later: each write to the log is durable, and they follow one
    /// another.
    Batch,
    /// At once. What it tells of survives when a Flush has ended, and the end of the process in any case soon.
    None,
}

/// Where a log is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogSettings {
    /// Tells its segments from those of others that were there before.
    pub identity: u64,
    /// Tells this start of it from all others: drawn at random.
    pub run: u64,
    /// Its first byte in the file.
    pub start: u64,
    /// Bytes of a segment, a multiple of the block.
    pub segment_bytes: u64,
    /// How many there are.
    pub segment_count: u64,
    /// What reads and writes are multiples of.
    pub block_bytes: u64,
    /// When answers leave.
    pub sync: Sync,
}

impl LogSettings {
    /// The longest value: a record never spans segments, and little is lost where one does not fit.
    #[must_use]
    pub fn value_bytes_max(&self) -> usize {
        usize::try_from(self.segment_bytes / 8).unwrap_or(usize::MAX).min(256 << 20)
    }

    /// What the records of all pairs may take: with more, segments would be written again and again.
    #[must_use]
    pub fn live_bytes_max(&self) -> u64 {
        (self.segment_count - 3) * self.segment_bytes / 5 * 3
    }
}

/// The checksum that logs and their files have.
#[must_use]
pub fn checksum(bytes: &[u8]) -> u32 {
    crc_fast::crc32_iscsi(bytes)
}

/// Something to be done to the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// Read, for [`Log::on_read`].
    Read {
        /// What for.
        job: Job,
        /// First byte.
        offset: u64,
        /// Bytes, at most [`PIECE_BYTES`].
        length: usize,
    },
    /// Have [`Log::fill`] fill [`PIECE_BYTES`] and write what it says.
    Write,
    /// Flush, for [`Log::on_flushed`].
    Flush,
}

/// What is read for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Job {
    /// To find out at the start what is there.
    Recover,
    /// To free a segment.
    Clean,
    /// A value, by the number of its fetch.
    Fetch(u32),
}

/// What to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Write {
    /// First byte in the file.
    pub offset: u64,
    /// So much of the buffer.
    pub length: usize,
    /// It has to survive before [`Log::on_written`].
    pub is_durable: bool,
}

/// The end of a fetch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loaded {
    /// Of which key.
    pub key: Box<[u8]>,
    /// Whether its value is here, or something else has become of the key.
    pub is_good: bool,
}

/// Why a log serves no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// A segment that was complete is not any more; the first byte of it.
    Damaged(u64),
    /// A segment is missing between others; its generation.
    Missing(u64),
    /// It could not be read.
    Unreadable,
    /// It could not be written or flushed: nobody knows what survives.
    Unwritable,
    /// There is not enough memory for the pairs in it.
    NoMemory,
}

/// What a log has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogCounters {
    /// Reads of values.
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
    /// Where its records end. Of the head: so far.
    end: u64,
}

/// How it stands.
#[derive(Debug)]
enum Phase {
    Recovering(Box<Recovery>),
    Ready,
    Failed(Failure),
}

/// The log of one partition.
#[derive(Debug)]
pub struct Log {
    settings: LogSettings,
    phase: Phase,
    /// From the oldest to the head.
    segments: VecDeque<Segment>,
    /// Slots with nothing needed in them, and the generation that they were.
    free: VecDeque<(u64, u64)>,
    /// The oldest generation by the header of the head: only what is older may be overwritten.
    oldest_told: u64,
    /// The header of the newest segment, if there is any.
    newest: Option<SegmentHeader>,
    /// Whether the head is of this run and goes on.
    has_head: bool,
    flight: Option<Flight>,
    stream: Option<Stream>,
    is_flushing: bool,
    /// All changes up to here are written; whether they survive is another question.
    written: u64,
    /// Something was written since the last flush began.
    is_unflushed: bool,
    /// A flush is wanted when all changes up to here are written.
    flush_wanted: u64,
    /// One is wanted in any case.
    wants_flush_now: bool,
    cleaner: Cleaner,
    fetches: Vec<Option<Fetch>>,
    fetch_queue: VecDeque<u32>,
    /// No memory for another value until something was written.
    is_fetch_stuck: bool,
    loaded: VecDeque<Loaded>,
    counters: LogCounters,
}

impl Log {
    /// A log that is not read yet. The partition must be empty; from now on its changes are noted.
    pub fn new(settings: LogSettings, processor: &mut Processor) -> Self {
        processor.begin_log(settings.live_bytes_max(), settings.sync == Sync::Always);
        Self {
            settings,
            phase: Phase::Recovering(Box::new(Recovery::new(settings.segment_count))),
            segments: VecDeque::new(),
            free: VecDeque::new(),
            oldest_told: 1,
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
            is_fetch_stuck: false,
            loaded: VecDeque::new(),
            counters: LogCounters::default(),
        }
    }

    /// Whether everything was read.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        matches!(self.phase, Phase::Ready)
    }

    /// Why it serves no more, if it does not.
    #[must_use]
    pub fn failure(&self) -> Option<Failure> {
        match self.phase {
            Phase::Failed(failure) => Some(failure),
            _ => None,
        }
    }

    /// What it has done.
    #[must_use]
    pub fn counters(&self) -> LogCounters {
        self.counters
    }

    /// Where it is.
    #[must_use]
    pub fn settings(&self) -> &LogSettings {
        &self.settings
    }

    /// What to do next, if anything. It is under way then, until `on_*` or [`put_back`](Self::put_back).
    pub fn next(&mut self, processor: &mut Processor) -> Option<Work> {
        match &mut self.phase {
            Phase::Failed(_) => None,
            Phase::Recovering(recovery) => recovery.next(&self.settings),
            Phase::Ready => {
                self.tend(processor);
                self.next_fetch(processor)
                    .or_else(|| self.next_clean(processor))
                    .or_else(|| self.wants_write(processor).then_some(Work::Write))
                    .or_else(|| self.next_flush())
            }
        }
    }

    /// What was to be done could not be begun: it will be wanted again.
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
            Work::Flush => self.is_flushing = false,
        }
    }

    /// What was read for a job, or that it could not be.
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

    /// A flush has ended: what was written before it began survives.
    pub fn on_flushed(&mut self, processor: &mut Processor, is_good: bool) {
        self.is_flushing = false;
        if !is_good {
            return self.fail(Failure::Unwritable);
        }
        self.counters.flush_count += 1;
        // Nothing is written while it runs.
        processor.changes().settle(self.written);
        if self.written >= self.flush_wanted {
            self.flush_wanted = 0;
        }
        self.cleaner.on_settled();
        self.tend(processor);
    }

    /// Everything that has changed so far is to survive soon. Returns the change to [wait](Self::settled) for.
    pub fn ask_flush(&mut self, processor: &mut Processor) -> u64 {
        let count = processor.changes().count();
        self.flush_wanted = count;
        count
    }

    /// The last change that survives with all before it.
    pub fn settled(&self, processor: &mut Processor) -> u64 {
        processor.changes().settled()
    }

    /// The change that an answer about this key has to wait for, if it has to wait at all.
    #[must_use]
    pub fn awaited(&self, processor: &Processor, hash: KeyHash) -> Option<u64> {
        processor.awaited(hash)
    }

    /// The last change so far, if answers wait until it survives.
    #[must_use]
    pub fn awaited_last(&self, processor: &mut Processor) -> Option<u64> {
        let count = processor.changes().count();
        (self.settings.sync == Sync::Always && count > processor.changes().settled()).then_some(count)
    }

    /// How many writes have ended, as long as there are changes that are not written.
    #[must_use]
    pub fn progress(&self, processor: &mut Processor) -> Option<u64> {
        let is_behind = self.flight.is_some() || self.written < processor.changes().count();
        is_behind.then_some(self.counters.write_count)
    }

    /// The next key whose value was fetched, or could not be.
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

    /// The segment in use with this byte of the file, and where in it that is.
    fn segment_at(&self, offset: u64) -> Option<(Segment, u64)> {
        let offset = offset.checked_sub(self.settings.start)?;
        let slot = offset / self.settings.segment_bytes;
        let segment = self.segments.iter().find(|segment| segment.slot == slot)?;
        Some((*segment, offset % self.settings.segment_bytes))
    }

    /// Free slots that may be overwritten already.
    fn usable_count(&self) -> usize {
        self.free.iter().take_while(|(generation, _)| *generation < self.oldest_told).count()
    }
}
