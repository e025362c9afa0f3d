//! A partition: the keys of one reactor, the clock by which they expire, and the log that keeps them.

use std::io;
use std::sync::Arc;

use linux::Moment;

use crate::clock::Clock;
use crate::log::{Log, LogSettings};
use crate::memory_limit::{MemoryLimit, Usage};
use crate::processor::Processor;

/// One reactor's part of the key space, and the entry point for protocols.
pub struct Partition {
    /// The stored pairs.
    pub processor: Processor,
    log: Option<Box<Log>>,
    /// The second of the partition's clock at which all pairs are removed, if requested.
    clear_at_s: Option<u32>,
    /// The memory of all partitions, if it can change.
    limit: Option<Arc<MemoryLimit>>,
    /// The least memory for the present pairs, as reported there, bytes.
    reported_bytes: u64,
    /// Its usage as reported there, and the number that it was reported under.
    reported: (Usage, Option<usize>),
}

impl Partition {
    /// A partition in memory, whose clock starts now.
    #[must_use]
    pub fn new(mut processor: Processor, now: Moment) -> Self {
        processor.pairs_mut().clock = Clock::at(now);
        Self {
            processor,
            log: None,
            clear_at_s: None,
            limit: None,
            reported_bytes: 0,
            reported: (Usage::default(), None),
        }
    }

    /// A partition with a log, which must be recovered first. The processor must be empty.
    #[must_use]
    pub fn with_log(processor: Processor, now: Moment, settings: LogSettings) -> Self {
        let mut partition = Self::new(processor, now);
        partition.log = Some(Box::new(Log::new(settings, &mut partition.processor)));
        partition
    }

    /// The same, with a share of a limit that can change.
    #[must_use]
    pub fn within(mut self, limit: &Arc<MemoryLimit>) -> Self {
        self.limit = Some(Arc::clone(limit));
        self
    }

    /// Number of partitions that share its limit, itself included.
    #[must_use]
    pub fn sharer_count(&self) -> usize {
        self.limit.as_ref().map_or(1, |limit| limit.partition_count())
    }

    /// Sets the memory of all partitions, and begins to give this one its share of it.
    ///
    /// # Errors
    /// The system's error when it refuses the memory. Nothing has changed then.
    pub fn set_memory_limit(&mut self, bytes: u64) -> io::Result<()> {
        let Some(limit) = &self.limit else { return Err(io::ErrorKind::Unsupported.into()) };
        let before = limit.bytes();
        limit.set(bytes);
        let followed = self.follow_memory_limit();
        if let (Err(_), Some(limit)) = (&followed, &self.limit) {
            limit.set(before);
        }
        followed
    }

    /// Begins to give it its share of the memory of all partitions, if that has changed.
    ///
    /// # Errors
    /// The system's error when it refuses the memory. Nothing has changed then.
    pub fn follow_memory_limit(&mut self) -> io::Result<()> {
        match self.limit.as_ref().map(|limit| limit.share()) {
            Some(share) if share != self.processor.settings().memory_bytes => self.processor.resize(share),
            _ => Ok(()),
        }
    }

    /// Reports the least memory for its pairs to the limit that it shares.
    pub fn report_needed_memory(&mut self) {
        if let Some(limit) = &self.limit {
            let now = self.processor.needed_bytes() as u64;
            limit.report(std::mem::replace(&mut self.reported_bytes, now), now);
        }
    }

    /// The space that its pairs take.
    #[must_use]
    pub fn usage(&self) -> Usage {
        let (counters, log) = (self.processor.counters(), self.processor.log_room().unwrap_or_default());
        Usage {
            pair_count: counters.pair_count,
            pair_bytes: counters.pair_bytes,
            memory_bytes: self.processor.used_bytes() as u64,
            log_bytes: log.live_bytes,
            log_bytes_max: log.live_bytes_max,
            log_headroom_bytes: log.headroom_bytes,
            no_memory_count: counters.no_memory_count,
            pinned_count: counters.pinned_count,
            pinned_bytes: counters.pinned_bytes,
            log_full_count: counters.log_full_count,
        }
    }

    /// Reports the space that its pairs take to the limit that it shares.
    pub fn report_usage(&mut self) {
        let (now, (before, number)) = (self.usage(), self.reported);
        if let Some(limit) = &self.limit
            && (now != before || number.is_none())
        {
            self.reported = (now, Some(limit.report_usage(number, now)));
        }
    }

    /// The log, if there is one.
    #[must_use]
    pub fn log(&self) -> Option<&Log> {
        self.log.as_deref()
    }

    /// The log, if there is one, and the processor whose changes it records.
    pub fn log_mut(&mut self) -> Option<(&mut Log, &mut Processor)> {
        Some((self.log.as_deref_mut()?, &mut self.processor))
    }

    /// Sets the time.
    pub fn set_now(&mut self, now: Moment) {
        let pairs = self.processor.pairs_mut();
        pairs.clock.set(now);
        if pairs.heap.access.is_due(pairs.clock.now_s) {
            self.age_stamps();
        }
        if self.clear_at_s.is_some_and(|at_s| at_s <= self.processor.now_s()) {
            self.clear();
        }
    }

    /// Sets the time, as far as another thread has not set a later one.
    #[inline]
    pub fn follow(&mut self, now: Moment) {
        // Its line is written once a second only, and stays with all threads meanwhile.
        if !self.is_current(now) {
            self.set_later(now);
        }
    }

    #[cold]
    #[inline(never)]
    fn set_later(&mut self, now: Moment) {
        // Another thread may have set a later time, and stamps be due.
        let clock = &self.processor.pairs().clock;
        let now = if clock.is_ahead_of(now) { clock.moment() } else { now };
        self.set_now(now);
    }

    /// Whether nothing is to be done because of the time.
    #[inline]
    pub(crate) fn is_current(&self, now: Moment) -> bool {
        let pairs = self.processor.pairs();
        pairs.clock.has_come_to(now) && !pairs.heap.access.is_due(pairs.clock.now_s)
    }

    #[cold]
    #[inline(never)]
    fn age_stamps(&mut self) {
        let now_s = self.processor.now_s();
        self.processor.pairs_mut().heap.age_stamps(now_s);
    }

    /// Removes all pairs.
    pub fn clear(&mut self) {
        self.clear_at_s = None;
        self.processor.clear();
    }

    /// Removes all pairs at a future second of the partition's clock; replaces an earlier request.
    pub fn clear_at(&mut self, at_s: u32) {
        self.clear_at_s = Some(at_s);
    }
}
