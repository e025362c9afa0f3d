//! The log of a partition: it makes changes durable, and holds values that do not fit in memory.
//!
//! ```text
//! file      │ superblock, twice │ … │ segment │ segment │ segment │ …        each its generation, in a ring
//!                                      oldest ──────────────▶ head
//! change ─▶ Changes ─▶ fill: records of the keys' present state ─▶ one write ─▶ settled: answers leave
//! short of segments ─▶ the oldest is read, what is current in it written again, the segment free
//! start ─▶ superblocks ─▶ headers of all segments ─▶ records from the oldest to the head, in order ─▶ flush ─▶
//!          superblock ─▶ ready
//! segment begun, segments short, log idle or stopped ─▶ superblock
//! stub wanted ─▶ fetch ─▶ loaded
//! ```
//!
//! A record is the whole state of a key, so any number of changes during a write become one record of the next, and
//! replaying all records in order, even twice, yields the state. Records form groups that are recovered as a whole or
//! not at all, so that what survives is always the state after some change and all before it. A record is current if
//! its number is that of the pair in memory; a segment is freed once its current records are rewritten, and those that
//! newer ones replace are replaced durably. Segments are freed in the order in which they were filled, so a removal
//! record may be dropped with its segment: every older record of the key is gone by then.
//!
//! A long value that does not fit in the rest of a segment goes on in the next one. The segment with its beginning is
//! freed first, and the value is written again then; the rest of it belongs to nothing from then on.
//!
//! The superblock names the newest segment and how far that was written for certain, so that a missing end is known. It
//! is written after each beginning of a segment, before answers leave that depend on it.
//!
//! Sans-io: [`Log::next`] returns the next read, write or flush; `on_*` reports its result.

mod clean;
mod examine;
mod fetch;
mod flush;
mod names;
mod passed_over;
mod rebuild;
mod recover;
mod scan;
mod segment_bytes;
#[cfg(test)]
mod tests;
mod write;

use std::collections::VecDeque;

use crate::clock::UNMARKED_S;
use crate::headroom::Headroom;
use crate::key::KEY_BYTES_MAX;
use crate::log_header::LogSuperblock;
pub use crate::log_header::{decode_numbers, encode_numbers};
use crate::processor::Processor;
use crate::record::RECORD_EXTRA_BYTES;
use clean::Cleaner;
pub use examine::{Certainty, Damage, Examined, Kept};
use fetch::Fetches;
use flush::Flushes;
use names::NameList;
pub use passed_over::DamageKind;
use passed_over::Findings;
pub use rebuild::{WriteAt, rebuild};
use recover::Recovery;
pub use segment_bytes::ReadAt;
use write::{Flight, Groups, Stream};

/// Bytes per read or write of the file.
pub const PIECE_BYTES: usize = 256 * 1024;

/// Minimum number of segments of a log.
pub const SEGMENT_COUNT_MIN: u64 = 12;

/// Interval of the superblocks that show the time while pairs expire, s.
pub const MARKED_S: u32 = 20;
const _: () = assert!(UNMARKED_S >= 3 * MARKED_S as i64, "a mark may be late");

/// Notices that wait to be reported; further ones are only counted.
const NOTICE_COUNT_MAX: usize = 100;

/// When answers to changes are sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Sync {
    /// Once the change survives a power cut.
    #[default]
    Always,
    /// At once. The change survives a little later: each write to the log is durable, and writes follow one another.
    /// Changes survive in their order.
    Batch,
    /// At once. The change survives a power cut once a later Flush completes, and the end of the process shortly after.
    /// Changes survive in their order.
    None,
}

/// Location and geometry of a log, and when answers are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogSettings {
    /// Distinguishes its segments from those of other logs that used the same file.
    pub identity: u64,
    /// Random number of this start; distinguishes its segments from those of earlier starts.
    pub run: u64,
    /// The first byte of its two superblocks in the file, each of which has a block.
    pub superblock_start: u64,
    /// The first byte of its segments in the file.
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
    /// The longest value.
    #[must_use]
    pub fn value_bytes_max(&self) -> usize {
        value_bytes_max(self.segment_bytes, self.segment_count)
    }

    /// The longest record, bytes.
    fn record_bytes_max(&self) -> u64 {
        (RECORD_EXTRA_BYTES + KEY_BYTES_MAX + self.value_bytes_max()) as u64
    }
}

/// The longest value of a log with this many segments of this many bytes: a 512th of it, but an eighth of a segment at
/// least, and a quarter at most.
#[must_use]
pub fn value_bytes_max(segment_bytes: u64, segment_count: u64) -> usize {
    let share = (segment_bytes / 512).saturating_mul(segment_count);
    let bytes = share.clamp(segment_bytes / 8, segment_bytes / 4).min(VALUE_BYTES_MAX);
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

/// The longest value of the largest log.
const VALUE_BYTES_MAX: u64 = 128 << 20;

/// Number of copies of the superblock.
pub const SUPERBLOCK_COUNT: usize = 2;

/// Writes the superblocks of a log without segments: `into` is their place in the file, [`SUPERBLOCK_COUNT`] blocks.
pub fn create(identity: u64, into: &mut [u8]) {
    let block_bytes = into.len() / SUPERBLOCK_COUNT;
    for (copy, sequence) in into.chunks_mut(block_bytes).zip(0..) {
        copy.fill(0);
        LogSuperblock { sequence, ..LogSuperblock::new(identity) }.encode(copy);
    }
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
    /// A write: call [`Log::fill`] with a buffer of [`PIECE_BYTES`], and write the bytes that it returns.
    Write,
    /// A flush, reported to [`Log::on_flushed`].
    Flush,
}

/// The purpose of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Job {
    /// Recovery at start. Several are under way at once, and must be reported in the order in which they were returned.
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
    /// The read failed.
    Unreadable,
    /// The record of the value is damaged, or was.
    Damaged,
    /// Memory is full of values that cannot leave it.
    NoMemory,
}

/// Why a log has stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// Both superblocks are damaged; the first byte of the first one.
    Superblocks {
        /// In the file.
        offset: u64,
    },
    /// A segment is damaged.
    Damaged {
        /// Its generation.
        generation: u64,
        /// The first byte in the file that is not as it was written.
        offset: u64,
    },
    /// The header of a segment is missing.
    Missing {
        /// Its generation.
        generation: u64,
    },
    /// A read failed.
    Unreadable,
    /// A write or flush failed: it is unknown what survives.
    Unwritable,
    /// Not enough memory for the pairs in the log.
    NoMemory {
        /// The least that suffices, bytes.
        needed_bytes: u64,
    },
    /// Its namespace was removed, or the target stopped.
    Stopped,
    /// The cluster that keeps the pairs refuses requests.
    Refused,
}

/// A finding in the log that was passed over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// Damage.
    Passed {
        /// Its kind.
        kind: DamageKind,
        /// Generation of the segment.
        generation: u64,
        /// Its first byte in the file.
        offset: u64,
    },
    /// The value of a key is lost by damage.
    LostKey {
        /// The key.
        key: Box<[u8]>,
    },
    /// One of the superblocks is damaged; the other one suffices.
    Superblock {
        /// Its first byte in the file.
        offset: u64,
    },
    /// Bytes behind the last whole write belong to no write. They are older than the segment, or remains of a write
    /// that had not ended or was damaged.
    Dropped {
        /// Generation of the segment.
        generation: u64,
        /// Their first byte in the file.
        offset: u64,
    },
    /// The wall clock shows less than it did when the log was written, before the boot of the machine: pairs with an
    /// expiry count as expired.
    ClockBehind {
        /// The least difference.
        seconds: i64,
    },
}

/// Work done by a log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogCounters {
    /// Values fetched.
    pub fetch_count: u64,
    /// Writes of records.
    pub write_count: u64,
    /// Flushes.
    pub flush_count: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// Records written.
    pub record_count: u64,
    /// Segments freed.
    pub cleaned_count: u64,
    /// Damage found and passed over.
    pub damage_count: u64,
    /// Keys whose values are lost by that.
    pub lost_key_count: u64,
    /// Records of unknown keys that are lost by that.
    pub lost_unknown_count: u64,
}

/// A segment in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Segment {
    run: u64,
    generation: u64,
    slot: u64,
    /// One past its last record; for the head, so far.
    end: u64,
    /// Where the rest of the last record of the segment before is; 0 if that was whole.
    rest_at: u64,
}

/// The superblock in the file, and the values of the next one.
#[derive(Debug)]
struct Superblock {
    /// The superblock in the file. Only slots of segments older than it names may be overwritten.
    recorded: LogSuperblock,
    /// Whether one with the durable end of the head is wanted.
    is_mark_wanted: bool,
    /// The latest expiry of a pair, in log time.
    expires_until_s: i64,
}

/// State of the head besides its segment, which is the last one in use.
#[derive(Debug, Default)]
struct LogHead {
    /// Whether this run has begun it, so that records can be appended.
    is_own: bool,
    /// Up to here it has whole groups that are durable.
    durable_end: u64,
    /// The names of the keys that were written since the last list of names.
    names: NameList,
    /// The record that is not written as a whole yet.
    stream: Option<Stream>,
}

/// State of the log.
#[derive(Debug)]
enum Phase {
    Recovering(Box<Recovery>),
    /// All is read. Some of the log may be in a volatile cache only, if an earlier process was killed: all is flushed
    /// before anything depends on it. Then a superblock says that CAS numbers of lost values are passed over, so that
    /// no later start gives them again.
    Settling {
        is_flushed: bool,
    },
    Ready,
    Failed(Failure),
}

/// The log of one partition.
#[derive(Debug)]
pub struct Log {
    settings: LogSettings,
    headroom: Headroom,
    phase: Phase,
    /// Bytes of segments read at the start, and to be read.
    recovered_bytes: (u64, u64),
    /// Segments in use, from the oldest to the head.
    segments: VecDeque<Segment>,
    /// Free slots, each with the generation of the segment it held, in the order of generations.
    free: VecDeque<(u64, u64)>,
    superblock: Superblock,
    head: LogHead,
    flight: Option<Flight>,
    groups: Groups,
    flushes: Flushes,
    findings: Findings,
    cleaner: Cleaner,
    fetches: Fetches,
    /// Whether it only makes changes durable.
    is_stopping: bool,
    counters: LogCounters,
}

impl Log {
    /// A log that has not been read yet. The partition must be empty; from now on its changes are recorded.
    pub fn new(settings: LogSettings, processor: &mut Processor) -> Self {
        let answers_wait = settings.sync == Sync::Always;
        let shape = (settings.segment_count, settings.segment_bytes, settings.block_bytes);
        let headroom = Headroom::new(shape, PIECE_BYTES, processor.settings().memory_bytes);
        processor.begin_log(headroom, settings.value_bytes_max(), answers_wait);
        Self {
            settings,
            headroom,
            phase: Phase::Recovering(Box::new(Recovery::new(settings.segment_count))),
            recovered_bytes: (0, 0),
            segments: VecDeque::new(),
            free: VecDeque::new(),
            superblock: Superblock {
                recorded: LogSuperblock::new(settings.identity),
                is_mark_wanted: false,
                expires_until_s: 0,
            },
            head: LogHead::default(),
            flight: None,
            groups: Groups::default(),
            flushes: Flushes::default(),
            findings: Findings::default(),
            cleaner: Cleaner::default(),
            fetches: Fetches::default(),
            is_stopping: false,
            counters: LogCounters::default(),
        }
    }

    /// Whether recovery is complete.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        matches!(self.phase, Phase::Ready)
    }

    /// Bytes of segments read at the start so far, and to be read as far as is known.
    #[must_use]
    pub fn recovered_bytes(&self) -> (u64, u64) {
        self.recovered_bytes
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

    /// Whether no change is left that may become durable, and if it was stopped, whether the file says so.
    #[must_use]
    pub fn is_settled(&self, processor: &mut Processor) -> bool {
        let is_closed = !self.is_stopping || self.superblock.recorded.is_closed;
        !self.is_ready() || is_closed && self.has_settled(processor)
    }

    /// Whether every change is durable.
    fn has_settled(&self, processor: &mut Processor) -> bool {
        let changes = processor.pairs_mut().changes();
        changes.settled() == changes.count()
    }

    /// Whether nothing is to be written, and the superblock does not name the present end: see [`mark`](Self::mark).
    #[must_use]
    pub fn lacks_mark(&self, processor: &mut Processor) -> bool {
        let is_idle = self.flight.is_none() && self.groups.current.is_none() && !self.is_stopping;
        let is_written = self.flushes.written == processor.pairs_mut().changes().count();
        self.is_ready()
            && self.head.is_own
            && is_idle
            && is_written
            && (self.flushes.is_unflushed() || self.superblock.recorded.known_end < self.head.durable_end)
    }

    /// Has the superblock written with the present end of the log, after a flush if writes are not durable. From then
    /// on any damage before that end is detected.
    pub fn mark(&mut self) {
        self.superblock.is_mark_wanted = true;
        if self.flushes.is_unflushed() {
            self.flushes.want_now();
        }
    }

    /// Whether pairs may expire after the time that the superblock shows: every [`MARKED_S`] it may have to be written
    /// again then.
    #[must_use]
    pub fn awaits_expiry(&self) -> bool {
        let marked_s = self.superblock.recorded.time.map_or(i64::MIN, |mark| mark.log_s);
        self.is_ready() && !self.is_stopping && marked_s < self.superblock.expires_until_s
    }

    /// Whether the superblock is to show the present time, so that a later start knows which pairs have expired: some
    /// may do so before the check after the next, or the wall clock was set.
    fn is_time_due(&self, processor: &Processor) -> bool {
        let (clock, marked_s) = (processor.clock(), i64::from(MARKED_S));
        let next_but_one_s = clock.now_s().saturating_add(2 * MARKED_S);
        self.awaits_expiry()
            && self.superblock.recorded.time.is_none_or(|mark| {
                let may_expire = processor.pairs().heap.unexpired_until_s < next_but_one_s;
                may_expire && clock.log_s() - mark.log_s >= marked_s || clock.is_set_since(&mark)
            })
    }

    /// The next operation, if there is one. It counts as under way until `on_*` or [`put_back`](Self::put_back).
    pub fn next(&mut self, processor: &mut Processor) -> Option<Work> {
        let has_stopped = self.is_stopping && self.is_settled(processor);
        match &mut self.phase {
            Phase::Failed(_) => None,
            Phase::Recovering(recovery) => recovery.next(&self.settings),
            Phase::Settling { is_flushed: true } => self.flight.is_none().then_some(Work::Write),
            Phase::Settling { .. } => self.flushes.begin().then_some(Work::Flush),
            Phase::Ready if has_stopped => self.next_fetch(processor),
            Phase::Ready => {
                if self.is_stopping {
                    self.request_flush(processor);
                }
                let mut cleaned_count = None;
                loop {
                    self.advance_cleaning(processor);
                    let work = self.next_when_ready(processor);
                    // A key that needed no work may have been the last that the segment waited for.
                    let now = self.counters.cleaned_count;
                    if work.is_some()
                        || !self.cleaner.is_settling()
                        || cleaned_count.replace(now) == Some(now)
                    {
                        return work;
                    }
                }
            }
        }
    }

    fn next_when_ready(&mut self, processor: &mut Processor) -> Option<Work> {
        self.next_fetch(processor)
            .or_else(|| self.next_clean(processor))
            .or_else(|| self.wants_write(processor).then_some(Work::Write))
            .or_else(|| self.next_flush())
            // A key to be written again may turn out to have its value in the log only.
            .or_else(|| self.next_fetch(processor))
    }

    /// Returns an operation that could not be started; [`next`](Self::next) will return it again.
    pub fn put_back(&mut self, work: Work) {
        match work {
            Work::Read { job: Job::Recover, .. } => {
                if let Phase::Recovering(recovery) = &mut self.phase {
                    recovery.put_back(work);
                }
            }
            Work::Read { job: Job::Clean, .. } => self.cleaner.put_back(),
            Work::Read { job: Job::Fetch(number), .. } => self.fetches.queue.push_front(number),
            Work::Write => {}
            Work::Flush => self.flushes.put_back(),
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
        if self.settings.sync != Sync::None || self.flight.is_some() {
            return None;
        }
        self.flushes.begin_if_due().then_some(Work::Flush)
    }

    /// Handles a completed flush: everything written before it began is durable.
    pub fn on_flushed(&mut self, processor: &mut Processor, is_good: bool) {
        self.flushes.end();
        if !is_good {
            return self.fail(Failure::Unwritable);
        }
        self.counters.flush_count += 1;
        if let Phase::Settling { is_flushed } = &mut self.phase {
            *is_flushed = true;
        }
        // No write runs during a flush.
        if self.groups.is_between() {
            self.head.durable_end = self.head_end();
        }
        processor.pairs_mut().changes().settle(self.flushes.written);
        self.flushes.on_durable();
        self.cleaner.on_settled();
        self.advance_cleaning(processor);
    }

    /// Requests that all changes so far become durable soon. Returns the change to [wait](Self::settled) for.
    pub fn request_flush(&mut self, processor: &mut Processor) -> u64 {
        let count = processor.pairs_mut().changes().count();
        self.flushes.want(count);
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
        let is_behind =
            self.flight.is_some() || self.flushes.written < processor.pairs_mut().changes().count();
        is_behind.then_some(self.counters.write_count)
    }

    /// Whether fetches wait for memory that others use. It may become free without notice to the log.
    #[must_use]
    pub fn awaits_memory(&self) -> bool {
        self.fetches.await_memory
    }

    /// Has fetches that wait for memory look for some again.
    pub fn retry_fetches(&mut self) {
        self.fetches.await_memory = false;
    }

    /// The next key whose fetch has completed or failed.
    pub fn next_loaded(&mut self) -> Option<Loaded> {
        self.fetches.loaded.pop_front()
    }

    /// The next finding that recovery has passed over.
    pub fn next_notice(&mut self) -> Option<Notice> {
        self.findings.notices.pop_front()
    }

    /// Queues a notice of something that is passed over. With [`NOTICE_COUNT_MAX`] waiting, damage is only counted.
    fn notice(&mut self, notice: Notice) {
        self.counters.damage_count += u64::from(matches!(notice, Notice::Passed { .. }));
        if self.findings.notices.len() < NOTICE_COUNT_MAX {
            self.findings.notices.push_back(notice);
        }
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
        self.free.partition_point(|(generation, _)| *generation < self.superblock.recorded.oldest)
    }
}
