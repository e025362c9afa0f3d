//! A partition with a log: turns the log's reads and writes into requests to the storage below.
//!
//! ```text
//! target ─▶ partition ─▶ changes ─▶ poll: Log::next ─▶ requests with tickets of our own ─▶ below
//!    ▲                                                                                      │
//!    └── settled, next_loaded ◀─ Log::on_* ◀────────────────────────────────────── replies ─┘
//! ```

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::Arc;

use kv::log::{DamageKind, Failure, Job, Loaded, Log, MARKED_S, Notice, PIECE_BYTES, Work};
use kv::{KeyHash, LogRoom, Partition, Processor};
use memory::{Buffer, Pool};
use reactor::Completion;

use super::durable::{DurablePartition, Need, Pause};
use super::recovery::{DamagePassedOver, Reading, SharedProgress, WAIT_NS};
use crate::namespace::{Backend, Intercepted, Reply, Request, StoreError, StoreIo, Ticket};
use crate::size::Size;

/// Maximum requests in flight below.
const RUN_COUNT_MAX: usize = 64;

/// Interval between attempts to get a buffer, ns.
const BUFFER_WAIT_NS: u64 = 200_000;

/// Interval between attempts to get memory for a value, while others are sent, ns.
const MEMORY_WAIT_NS: u64 = 5_000_000;

/// Time without changes after which the end of the log is marked in the file, ns.
const MARK_NS: u64 = 1_000_000_000;

/// The longest wait of [`Logged::stop`], ns.
const STOP_NS: u64 = 10_000_000_000;

/// The numbers of the timers' tickets.
const TIMER: u32 = 0x00ff_ffff;
const STOP_TIMER: u32 = 0x00ff_fffe;
const MARK_TIMER: u32 = 0x00ff_fffd;
const SPACE_TIMER: u32 = 0x00ff_fffc;
const READING_TIMER: u32 = 0x00ff_fffb;
const MEMORY_TIMER: u32 = 0x00ff_fffa;
const TIME_TIMER: u32 = 0x00ff_fff9;

/// Interval between attempts at a write for which there was no space, ns.
const SPACE_NS: u64 = 1_000_000_000;

/// One reactor's partition and its log.
pub(super) struct Logged {
    /// It has a log.
    partition: Partition,
    below: Box<dyn Backend>,
    /// Path of the file, and number of the partition in it.
    place: (PathBuf, usize),
    /// Requests in flight below, by the number of their ticket.
    runs: Vec<Option<Run>>,
    run_count: usize,
    replies: Vec<(Ticket, Reply)>,
    /// Reads of recovery by the number of their ticket, in order, with the data that has arrived: `None` if it failed.
    recovered: VecDeque<(usize, Option<Option<Buffer>>)>,
    recovery: Recovery,
    /// Where damage is reported, and the damage reported so far.
    shared: Arc<SharedProgress>,
    damage: DamagePassedOver,
    is_timer_set: bool,
    is_memory_timer_set: bool,
    is_time_timer_set: bool,
    /// Log write count when the timer of the mark was set; `None` if it does not run.
    mark_timer: Option<u64>,
    is_failure_reported: bool,
    /// Stores refused by the log and for lack of memory, as last logged.
    refused: (u64, u64),
    is_full_reported: bool,
    space: Space,
    /// Once it was stopped: when the log gives up, ns.
    stop_until_ns: Option<u64>,
}

#[derive(Clone, Copy, Debug)]
enum Run {
    Read(Job),
    Write { offset: u64, is_durable: bool },
    Flush,
}

/// The reading of the log at the start.
enum Recovery {
    /// It begins at the first [poll](Logged::poll).
    Due(Arc<SharedProgress>),
    Reading(Reading),
    /// The log is read, or has failed.
    Over,
}

/// Whether the file system has space for the last write.
#[derive(Default)]
enum Space {
    #[default]
    Enough,
    /// It had none: this write is tried again when the timer fires.
    Refused { offset: u64, buffer: Buffer, is_durable: bool },
    /// The write is tried again.
    Trying,
}

/// The reactor as the storage below sees it.
fn beneath<'a>(io: &'a mut dyn StoreIo, replies: &'a mut Vec<(Ticket, Reply)>) -> impl StoreIo + 'a {
    Intercepted { io, on_reply: |_: &mut dyn StoreIo, ticket, reply| replies.push((ticket, reply)) }
}

impl Logged {
    pub(super) fn new(
        partition: Partition,
        below: Box<dyn Backend>,
        place: (PathBuf, usize),
        progress: Arc<SharedProgress>,
    ) -> Self {
        Self {
            partition,
            below,
            place,
            runs: Vec::new(),
            run_count: 0,
            replies: Vec::new(),
            recovered: VecDeque::new(),
            recovery: Recovery::Due(Arc::clone(&progress)),
            shared: progress,
            damage: DamagePassedOver::default(),
            is_timer_set: false,
            is_memory_timer_set: false,
            is_time_timer_set: false,
            mark_timer: None,
            is_failure_reported: false,
            refused: (0, 0),
            is_full_reported: false,
            space: Space::Enough,
            stop_until_ns: None,
        }
    }

    /// Whether answers wait until the changes they report are durable.
    #[cfg(test)]
    fn settles_answers(&self) -> bool {
        self.log().settings().sync == kv::log::Sync::Always
    }

    fn log(&self) -> &Log {
        self.partition.log().expect("a partition with a log")
    }

    fn with_log<T>(&mut self, each: impl FnOnce(&mut Log, &mut Processor) -> T) -> T {
        let (log, processor) = self.partition.log_mut().expect("a partition with a log");
        each(log, processor)
    }

    /// Statistics of the log.
    fn counters(&self) -> kv::log::LogCounters {
        self.log().counters()
    }

    /// Whether the value of a key is only in the log.
    fn is_stub(&self, key: &[u8]) -> bool {
        let processor = &self.partition.processor;
        processor.is_stub(processor.hash(key), key)
    }

    fn advance(&mut self, io: &mut dyn StoreIo) {
        loop {
            self.take_replies(io);
            if self.run_count >= RUN_COUNT_MAX {
                break;
            }
            let Some(work) = self.with_log(Log::next) else { break };
            let (run, request) = match work {
                Work::Flush => (Run::Flush, Request::Flush),
                Work::Read { job, offset, length } => match self.buffer(io, length) {
                    Some(buffer) => (Run::Read(job), Request::Read { offset, buffer }),
                    None => return self.with_log(|log, _| log.put_back(work)),
                },
                Work::Write => {
                    let Some(mut buffer) = self.write_buffer(io) else {
                        return self.with_log(|log, _| log.put_back(work));
                    };
                    let Some(write) = self.with_log(|log, processor| log.fill(processor, &mut buffer)) else {
                        continue;
                    };
                    buffer.set_len(write.length);
                    let (offset, is_durable) = (write.offset, write.is_durable);
                    (Run::Write { offset, is_durable }, Request::Write { offset, buffer, is_durable })
                }
            };
            self.begin(io, run, request);
        }
        if !self.is_memory_timer_set && self.log().awaits_memory() {
            self.is_memory_timer_set = true;
            io.set_timer(io.now_ns() + MEMORY_WAIT_NS, io.own(MEMORY_TIMER));
        }
        if self.mark_timer.is_none() && self.with_log(|log, processor| log.lacks_mark(processor)) {
            self.mark_timer = Some(self.counters().write_count);
            io.set_timer(io.now_ns() + MARK_NS, io.own(MARK_TIMER));
        }
        if !self.is_time_timer_set && self.log().awaits_expiry() {
            self.is_time_timer_set = true;
            io.set_timer(io.now_ns() + u64::from(MARKED_S) * 1_000_000_000, io.own(TIME_TIMER));
        }
    }

    /// Reports the progress of recovery.
    fn follow_recovery(&mut self, io: &mut dyn StoreIo) {
        let (now_ns, place) = (io.now_ns(), (&*self.place.0, self.place.1));
        let log = self.partition.log().expect("a partition with a log");
        let is_over = log.is_ready() || log.failure().is_some();
        match std::mem::replace(&mut self.recovery, Recovery::Over) {
            Recovery::Over => {}
            Recovery::Due(progress) => {
                io.set_timer(now_ns + WAIT_NS, io.own(READING_TIMER));
                self.recovery = Recovery::Reading(Reading::begin(progress, now_ns));
            }
            Recovery::Reading(reading) if is_over => reading.end(now_ns, place),
            Recovery::Reading(mut reading) => {
                reading.on_progress(now_ns, log.recovered_bytes(), place);
                self.recovery = Recovery::Reading(reading);
            }
        }
    }

    /// A buffer for a write: of the pool, or of its own memory while others use up the pool. Those may be commands of
    /// other storage that hangs, and changes that were answered before they are durable would wait as long.
    fn write_buffer(&mut self, io: &mut dyn StoreIo) -> Option<Buffer> {
        let own = || Pool::new(PIECE_BYTES).ok()?.take(PIECE_BYTES);
        io.pool().take(PIECE_BYTES).or_else(own).or_else(|| self.buffer(io, PIECE_BYTES))
    }

    fn buffer(&mut self, io: &mut dyn StoreIo, length: usize) -> Option<Buffer> {
        let buffer = io.pool().take(length);
        if buffer.is_none() && !self.is_timer_set {
            self.is_timer_set = true;
            io.set_timer(io.now_ns() + BUFFER_WAIT_NS, io.own(TIMER));
        }
        buffer
    }

    fn begin(&mut self, io: &mut dyn StoreIo, run: Run, request: Request) {
        let number = self.runs.iter().position(Option::is_none).unwrap_or_else(|| {
            self.runs.push(None);
            self.runs.len() - 1
        });
        if matches!(run, Run::Read(Job::Recover)) {
            self.recovered.push_back((number, None));
        }
        self.runs[number] = Some(run);
        self.run_count += 1;
        let ticket = io.own(u32::try_from(number).expect("few run at once"));
        self.below.start(&mut beneath(io, &mut self.replies), ticket, request);
    }

    /// Repeats the write for which there was no space.
    fn try_again(&mut self, io: &mut dyn StoreIo) {
        match std::mem::replace(&mut self.space, Space::Trying) {
            Space::Refused { offset, buffer, is_durable } => {
                let request = Request::Write { offset, buffer, is_durable };
                self.begin(io, Run::Write { offset, is_durable }, request);
            }
            // The timer is that of an earlier namespace.
            space => self.space = space,
        }
    }

    fn take_replies(&mut self, io: &mut dyn StoreIo) {
        while let Some((ticket, mut reply)) = self.replies.pop() {
            let number = usize::try_from(ticket.0 & u64::from(TIMER)).expect("24 bits");
            let run = self.runs.get_mut(number).and_then(Option::take).expect("a run ends once");
            self.run_count -= 1;
            if let Run::Write { offset, is_durable } = run
                && let Some(buffer) = reply.buffer.take_if(|_| reply.result == Err(StoreError::NoSpace))
            {
                if !self.is_full() {
                    let path = self.place.0.display();
                    tracing::error!(%path, "no space for a key-value namespace: changes are refused until space is free");
                }
                self.space = Space::Refused { offset, buffer, is_durable };
                io.set_timer(io.now_ns() + SPACE_NS, io.own(SPACE_TIMER));
                continue;
            }
            if let Err(error) = reply.result {
                tracing::error!(%error, ?run, "the log of a key-value namespace");
            }
            let is_good = reply.result.is_ok();
            if is_good && matches!((run, &self.space), (Run::Write { .. }, Space::Trying)) {
                self.space = Space::Enough;
                tracing::info!(path = %self.place.0.display(), "a key-value namespace has space again");
            }
            let buffer = reply.buffer.filter(|_| is_good);
            if matches!(run, Run::Read(Job::Recover)) {
                let read = self.recovered.iter_mut().find(|(of, arrived)| *of == number && arrived.is_none());
                read.expect("it is under way").1 = Some(buffer);
                self.take_recovered();
                continue;
            }
            self.with_log(|log, processor| match run {
                Run::Read(job) => log.on_read(processor, job, buffer.as_deref()),
                Run::Write { .. } => log.on_written(processor, is_good),
                Run::Flush => log.on_flushed(processor, is_good),
            });
        }
    }

    /// Gives the log the reads of recovery that have arrived, in their order.
    fn take_recovered(&mut self) {
        while self.recovered.front().is_some_and(|(_, arrived)| arrived.is_some())
            && let Some((_, arrived)) = self.recovered.pop_front()
        {
            let buffer = arrived.flatten();
            self.with_log(|log, processor| log.on_read(processor, Job::Recover, buffer.as_deref()));
        }
    }

    /// Logs when stores begin to be refused because the log or memory is full, and when the log has room again.
    fn report_refusals(&mut self) {
        let counters = self.partition.processor.counters();
        let now = (counters.log_full_count, counters.no_memory_count);
        let before = std::mem::replace(&mut self.refused, now);
        if now == before && !self.is_full_reported {
            return;
        }
        let Some(LogRoom { live_bytes, live_bytes_max, headroom_bytes }) =
            self.partition.processor.log_room()
        else {
            return;
        };
        let (path, partition) = (self.place.0.display(), self.place.1);
        if self.is_full_reported && live_bytes < live_bytes_max / 20 * 19 {
            self.is_full_reported = false;
            tracing::info!(%path, partition, live_bytes, live_bytes_max, "key-value log has room again");
        }
        if now.0 > before.0 && !std::mem::replace(&mut self.is_full_reported, true) {
            tracing::warn!(
                %path, partition, live_bytes, live_bytes_max, headroom_bytes,
                "key-value log is full: stores that need more are refused; the rest of it is headroom for cleaning"
            );
        }
        if now.1 > before.1 && before.1 == 0 {
            let bytes = self.partition.processor.settings().memory_bytes;
            tracing::warn!(
                %path, partition, bytes, live_bytes, live_bytes_max,
                "memory of a key-value namespace is full of keys and short values: stores that need more are refused"
            );
        }
    }

    /// Reports the damage found since the last call.
    fn report_damage(&mut self) {
        let counters = self.log().counters();
        let now = DamagePassedOver {
            count: counters.damage_count,
            lost_key_count: counters.lost_key_count,
            lost_unknown_count: counters.lost_unknown_count,
        };
        if now == self.damage {
            return;
        }
        let before = std::mem::replace(&mut self.damage, now);
        self.shared.add_damage(before, now);
        if self.is_ready() {
            let DamagePassedOver { count, lost_key_count, lost_unknown_count } = now;
            tracing::warn!(
                path = %self.place.0.display(), partition = self.place.1, count, lost_key_count, lost_unknown_count,
                "damage in the log of a key-value namespace is passed over; `nvlane kv check` tells all of it"
            );
        }
    }

    /// Logs the findings in the log that were passed over, and the failure of the log once.
    fn report(&mut self) {
        self.report_refusals();
        self.report_damage();
        while let Some(notice) = self.with_log(|log, _| log.next_notice()) {
            let (path, partition) = (self.place.0.display(), self.place.1);
            match notice {
                Notice::Superblock { offset } => {
                    tracing::warn!(%path, partition, offset, "one of the two superblocks of a log is damaged");
                }
                Notice::Dropped { generation, offset } => tracing::warn!(
                    %path, partition, generation, offset,
                    "bytes behind the last whole write of a log are dropped: they are older, or of one write that the end \
                     of the target cut before it was answered, or damaged"
                ),
                Notice::ClockBehind { seconds } => tracing::warn!(
                    %path, partition, seconds,
                    "the wall clock shows less than it did when a log was written, before the boot: the log's pairs with \
                     a time to live count as expired"
                ),
                Notice::Passed { kind, generation, offset } => tracing::warn!(
                    %path, partition, generation, offset,
                    "damage in the log of a key-value namespace: {}", what_is_damaged(kind)
                ),
                Notice::LostKey { key } => tracing::error!(
                    %path, partition, key = %key.escape_ascii(),
                    "the value of a key is lost by damage: commands that need it are refused"
                ),
            }
        }
        if let Some(failure) = self.log().failure()
            && !std::mem::replace(&mut self.is_failure_reported, true)
        {
            let (path, partition) = (self.place.0.display(), self.place.1);
            let remedy = match failure {
                Failure::Superblocks { .. } | Failure::Damaged { .. } | Failure::Missing { .. } => {
                    ": see what is damaged with `nvlane kv check`, and save the rest with `nvlane kv repair`"
                        .into()
                }
                Failure::NoMemory { needed_bytes } => {
                    let bytes = needed_bytes * self.partition.sharer_count() as u64;
                    format!(": its pairs need `memory={}` or more", Size(bytes.next_multiple_of(1 << 16)))
                }
                _ => String::new(),
            };
            tracing::error!(
                %path, partition, ?failure,
                "the key-value namespace is closed until the target is started again{remedy}"
            );
        }
    }
}

impl DurablePartition for Logged {
    fn is_ready(&self) -> bool {
        self.log().is_ready()
    }

    fn pause(&self) -> Option<Pause> {
        matches!(&self.recovery, Recovery::Reading(reading) if reading.is_slow).then_some(Pause::Reading)
    }

    fn failure(&self) -> Option<Failure> {
        self.log().failure()
    }

    fn is_busy(&self) -> bool {
        self.run_count > 0
    }

    fn ready_partition(&mut self) -> Option<&mut Partition> {
        self.is_ready().then_some(&mut self.partition)
    }

    fn partition(&mut self) -> &mut Partition {
        &mut self.partition
    }

    fn must_fetch(&mut self, key: &[u8], need: Need) -> bool {
        // Every key is in memory.
        need == Need::Value && self.is_stub(key)
    }

    fn count_need(&mut self, key: &[u8], need: Need) {
        if need == Need::Value {
            let processor = &mut self.partition.processor;
            processor.count_need(processor.hash(key), key);
        }
    }

    fn fetch(&mut self, key: &[u8]) {
        self.with_log(|log, processor| log.fetch(processor, key));
    }

    fn next_loaded(&mut self) -> Option<Loaded> {
        self.with_log(|log, _| log.next_loaded())
    }

    fn awaited(&mut self, hash: KeyHash) -> Option<u64> {
        self.partition.processor.awaited(hash)
    }

    fn awaited_last(&mut self) -> Option<u64> {
        self.with_log(|log, processor| log.awaited_last(processor))
    }

    fn settled(&mut self) -> u64 {
        self.with_log(|log, processor| log.settled(processor))
    }

    fn has_room(&mut self, bytes: usize, needed: Option<&[u8]>) -> bool {
        self.partition.processor.has_room(bytes, needed)
    }

    fn admits(&mut self, bytes: usize) -> bool {
        self.with_log(|log, processor| log.admits(processor, bytes))
    }

    fn is_full(&self) -> bool {
        !matches!(self.space, Space::Enough)
    }

    fn progress(&mut self) -> Option<u64> {
        self.with_log(|log, processor| log.progress(processor))
    }

    fn request_flush(&mut self) -> u64 {
        self.with_log(Log::request_flush)
    }

    fn stop(&mut self, io: &mut dyn StoreIo) {
        if self.stop_until_ns.is_none() {
            let until_ns = io.now_ns() + STOP_NS;
            self.stop_until_ns = Some(until_ns);
            io.set_timer(until_ns, io.own(STOP_TIMER));
            self.is_failure_reported |= !self.is_ready();
            self.with_log(|log, _| log.stop());
        }
    }

    fn has_stopped(&mut self) -> bool {
        let has_stopped = self.stop_until_ns.is_some()
            && !self.is_busy()
            && self.with_log(|log, processor| log.is_settled(processor));
        if has_stopped {
            // A write that waits for space has no changes that are still to be settled.
            self.space = Space::Enough;
        }
        has_stopped
    }

    fn poll(&mut self, io: &mut dyn StoreIo) {
        self.partition.set_now(io.moment());
        self.advance(io);
        self.follow_recovery(io);
        self.report();
    }

    fn on_completion(&mut self, io: &mut dyn StoreIo, ticket: Ticket, completion: Completion) {
        self.below.on_completion(&mut beneath(io, &mut self.replies), ticket, completion);
        self.poll(io);
    }

    fn on_timer(&mut self, io: &mut dyn StoreIo, ticket: Ticket) {
        if ticket == io.own(TIMER) {
            self.is_timer_set = false;
        } else if ticket == io.own(MARK_TIMER) {
            // Writes since then set it again.
            if self.mark_timer.take() == Some(self.counters().write_count) {
                self.with_log(|log, _| log.mark());
            }
        } else if ticket == io.own(TIME_TIMER) {
            self.is_time_timer_set = false;
        } else if ticket == io.own(MEMORY_TIMER) {
            self.is_memory_timer_set = false;
            self.with_log(|log, _| log.retry_fetches());
        } else if ticket == io.own(SPACE_TIMER) {
            self.try_again(io);
        } else if ticket == io.own(READING_TIMER) {
            // The poll below notes the time.
        } else if ticket == io.own(STOP_TIMER) {
            // The timer may be that of an earlier namespace.
            if self.stop_until_ns.is_some_and(|until_ns| until_ns <= io.now_ns()) && !self.has_stopped() {
                tracing::error!(
                    limit_ns = STOP_NS,
                    "key-value log not written completely before the time limit of the stop"
                );
                self.with_log(|log, _| log.give_up());
            }
        } else {
            self.below.on_timer(&mut beneath(io, &mut self.replies), ticket);
        }
        self.poll(io);
    }
}

/// The meaning of damage that a log passes over.
fn what_is_damaged(kind: DamageKind) -> &'static str {
    match kind {
        DamageKind::Bit => "one bit, which is corrected or does not matter",
        DamageKind::Header => "one bit of the header of a segment, which is corrected",
        DamageKind::Value => "the value of a record",
        DamageKind::Names => "the names of keys in other records, which are there",
        DamageKind::Records => "records that cannot be read",
        DamageKind::Segment => "a segment",
        DamageKind::Superblock | DamageKind::Superblocks => "a superblock",
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::rc::Rc;

    use kv::log::{LogSettings, Sync};
    use kv::{Attributes, Condition, Eviction, Settings, Stored};
    use linux::Moment;
    use reactor::Operation;
    use rustix::io::Errno;

    use super::*;
    use crate::namespace::{BlockStore, Geometry};
    use crate::testing::{Double, Fault, SharedMedia};

    const SEGMENT_BYTES: u64 = 256 << 10;
    const FILE_BYTES: usize = 13 * SEGMENT_BYTES as usize;

    /// Lets a [`Double`] drive a partition with a log.
    struct Driven(Rc<RefCell<Logged>>);

    impl Backend for Driven {
        fn geometry(&self) -> Geometry {
            Geometry::new(512, FILE_BYTES as u64 / 512)
        }

        fn start(&mut self, _: &mut dyn StoreIo, _: Ticket, _: Request) {
            unreachable!("a partition has no requests")
        }

        fn on_completion(&mut self, io: &mut dyn StoreIo, ticket: Ticket, completion: Completion) {
            self.0.borrow_mut().on_completion(io, ticket, completion);
        }

        fn on_timer(&mut self, io: &mut dyn StoreIo, ticket: Ticket) {
            self.0.borrow_mut().on_timer(io, ticket);
        }
    }

    /// A partition with a log on a disk, of which nothing has been read yet.
    fn open(sync: Sync) -> (Rc<RefCell<Logged>>, SharedMedia, Double) {
        let (store, place, mut double) = Double::file(FILE_BYTES, 512);
        kv::log::create(1, &mut place.borrow_mut().bytes[..1024]);
        let settings = LogSettings {
            identity: 1,
            run: 1,
            superblock_start: 0,
            start: SEGMENT_BYTES,
            segment_bytes: SEGMENT_BYTES,
            segment_count: 12,
            block_bytes: 512,
            sync,
        };
        let processor = Processor::new(Settings {
            memory_bytes: 1 << 20,
            inline_bytes_max: 0,
            eviction: Eviction::None,
            value_bytes_max: settings.value_bytes_max(),
            ..Settings::default()
        });
        let partition = Partition::with_log(processor.unwrap(), Moment::default(), settings);
        let logged = Rc::new(RefCell::new(Logged::new(
            partition,
            store.attach().unwrap(),
            Default::default(),
            Default::default(),
        )));
        double.backend = Box::new(Driven(Rc::clone(&logged)));
        (logged, place, double)
    }

    fn poll(logged: &Rc<RefCell<Logged>>, double: &mut Double) {
        logged.borrow_mut().poll(&mut double.io);
        double.settle();
    }

    fn set(logged: &Rc<RefCell<Logged>>, key: &[u8], value: &[u8]) -> Stored {
        let processor = &mut logged.borrow_mut().partition.processor;
        let hash = processor.hash(key);
        processor.store(hash, key, value, Attributes::default(), Condition::Always)
    }

    #[test]
    fn a_change_settles_with_its_write_or_without_durable_writes_with_a_flush() {
        for sync in [Sync::Always, Sync::Batch, Sync::None] {
            let (logged, place, mut double) = open(sync);
            assert!(!logged.borrow().is_ready());
            poll(&logged, &mut double);
            assert!(logged.borrow().is_ready() && !logged.borrow().is_busy());
            assert_eq!(logged.borrow().settles_answers(), sync == Sync::Always);
            assert_eq!(set(&logged, b"key", b"value"), Stored::Done);
            assert_eq!(logged.borrow_mut().settled(), 0);
            assert_eq!(logged.borrow_mut().awaited_last(), (sync == Sync::Always).then_some(1), "{sync:?}");
            let before = place.borrow().log.len();
            poll(&logged, &mut double);
            // The segment, the superblock that names it, and without durable writes a flush and another superblock once
            // the log is idle.
            let idle: &[_] = if sync == Sync::None { &["sync", "write durably"] } else { &[] };
            let expected = [&["write durably", "write durably"], idle].concat();
            assert_eq!(place.borrow().log[before..], expected, "{sync:?}");
            assert_eq!(logged.borrow_mut().settled(), 1);
            assert_eq!(logged.borrow_mut().awaited_last(), None, "{sync:?}");
            let before = place.borrow().log.len();
            assert_eq!(set(&logged, b"key", b"other"), Stored::Done);
            assert_eq!(logged.borrow_mut().request_flush(), 2);
            poll(&logged, &mut double);
            let written: &[_] =
                if sync == Sync::None { &["write", "sync", "write durably"] } else { &["write durably"; 2] };
            assert_eq!(place.borrow().log[before..], *written, "{sync:?}, and the mark");
            assert_eq!(logged.borrow_mut().settled(), 2);
            poll(&logged, &mut double);
            assert_eq!(place.borrow().log.len(), before + written.len(), "an idle log is left alone");
            assert_eq!(place.borrow().bytes, place.borrow().durable);
        }
    }

    #[test]
    fn reads_of_recovery_may_end_in_any_order_and_its_progress_is_known() {
        let (logged, place, mut double) = open(Sync::Always);
        poll(&logged, &mut double);
        for key in 0..30_u8 {
            assert_eq!(set(&logged, &[b'k', key], &[key; 4000]), Stored::Done);
            poll(&logged, &mut double);
        }
        let written = place.borrow().bytes.clone();
        let (logged, place, mut double) = open(Sync::Always);
        place.borrow_mut().bytes = written;
        logged.borrow_mut().poll(&mut double.io);
        double.pass(WAIT_NS / 2);
        assert!(logged.borrow().pause().is_none(), "commands wait");
        double.pass(WAIT_NS / 2);
        assert!(logged.borrow().pause().is_some(), "commands are refused");
        let mut at_once = 0;
        while !logged.borrow().is_ready() {
            let running = double.io.running.len();
            at_once = at_once.max(running);
            double.perform(running - 1);
        }
        assert!(at_once > 2 && logged.borrow().pause().is_none());
        let progress = logged.borrow().log().recovered_bytes();
        assert!(progress.0 >= 30 * 4000 && progress.0 <= progress.1, "{progress:?}");
        double.settle();
        for key in 0..30_u8 {
            assert!(
                logged.borrow().is_stub(&[b'k', key]) || {
                    let processor = &mut logged.borrow_mut().partition.processor;
                    let hash = processor.hash(&[b'k', key]);
                    processor.find(hash, &[b'k', key]).is_some()
                }
            );
        }
    }

    /// Pairs expire while nothing is requested and nothing is written but the time.
    #[test]
    fn the_time_is_marked_while_pairs_may_expire() {
        let (logged, place, mut double) = open(Sync::Always);
        poll(&logged, &mut double);
        let perform_all = |double: &mut Double| {
            while !double.io.running.is_empty() {
                double.perform(0);
            }
        };
        let set_for = |double: &mut Double, seconds: u32| {
            {
                let partition = &mut logged.borrow_mut().partition;
                partition.set_now(double.io.moment());
                let processor = &mut partition.processor;
                let expiry_s = if seconds == 0 { 0 } else { processor.now_s() + seconds };
                let hash = processor.hash(b"key");
                let attributes = Attributes { flags: 0, expiry_s };
                let stored = processor.store(hash, b"key", b"value", attributes, Condition::Always);
                assert_eq!(stored, Stored::Done);
            }
            logged.borrow_mut().poll(&mut double.io);
            perform_all(double);
        };
        let marks_within = |double: &mut Double, seconds: u64| {
            let before = place.borrow().log.len();
            for _ in 0..seconds {
                double.pass(1_000_000_000);
                perform_all(double);
            }
            place.borrow().log.len() - before
        };
        set_for(&mut double, 0);
        assert_eq!(marks_within(&mut double, 600), 0, "no pair expires");
        set_for(&mut double, 500);
        assert_eq!(marks_within(&mut double, 5), 1, "the end of the log");
        assert_eq!(marks_within(&mut double, 400), 0, "no pair expires yet");
        let count = marks_within(&mut double, 120);
        assert!((2..7).contains(&count), "{count} marks");
        assert_eq!(marks_within(&mut double, 600), 0, "every pair has expired");
    }

    #[test]
    fn it_waits_for_buffers() {
        let (logged, _, mut double) = open(Sync::Always);
        let all: Vec<_> = std::iter::from_fn(|| double.io.pool.take(1)).collect();
        logged.borrow_mut().poll(&mut double.io);
        for _ in 0..3 {
            assert!(double.io.running.is_empty() && !logged.borrow().is_ready());
            double.pass(BUFFER_WAIT_NS);
        }
        drop(all);
        double.settle();
        assert!(logged.borrow().is_ready());
    }

    #[test]
    fn changes_are_written_while_others_hold_the_whole_pool() {
        let (logged, place, mut double) = open(Sync::Batch);
        poll(&logged, &mut double);
        let all: Vec<_> = std::iter::from_fn(|| double.io.pool.take(1)).collect();
        assert_eq!(set(&logged, b"key", b"value"), Stored::Done);
        logged.borrow_mut().poll(&mut double.io);
        while !double.io.running.is_empty() {
            double.perform(0);
        }
        assert_eq!(logged.borrow_mut().settled(), 1);
        assert_eq!(place.borrow().bytes, place.borrow().durable);
        drop(all);
        double.settle();
    }

    #[test]
    fn a_write_without_space_is_repeated_until_there_is_some() {
        // Without passing time: the write is repeated by a timer.
        fn perform_all(double: &mut Double) {
            while !double.io.running.is_empty() {
                double.perform(0);
            }
        }
        for sync in [Sync::Always, Sync::Batch, Sync::None] {
            let (logged, place, mut double) = open(sync);
            poll(&logged, &mut double);
            assert_eq!(set(&logged, b"key", b"value"), Stored::Done);
            place.borrow_mut().fault = Box::new(|_, operation| {
                matches!(operation, Operation::Write { .. }).then_some(Fault::Error(Errno::NOSPC))
            });
            logged.borrow_mut().poll(&mut double.io);
            perform_all(&mut double);
            for _ in 0..3 {
                assert!(logged.borrow().is_full() && logged.borrow().is_ready(), "{sync:?}");
                assert!(!logged.borrow().is_busy() && logged.borrow_mut().settled() == 0);
                double.pass(SPACE_NS);
                perform_all(&mut double);
            }
            place.borrow_mut().fault = Box::new(|_, _| None);
            double.pass(SPACE_NS);
            double.settle();
            assert!(!logged.borrow().is_full(), "{sync:?}");
            let wanted = logged.borrow_mut().request_flush();
            poll(&logged, &mut double);
            assert_eq!(logged.borrow_mut().settled(), wanted, "{sync:?}");
        }
    }

    #[test]
    fn storage_that_fails_ends_it() {
        let (logged, place, mut double) = open(Sync::Always);
        place.borrow_mut().fault = Box::new(|_, _| Some(Fault::Error(Errno::IO)));
        poll(&logged, &mut double);
        assert!(
            logged.borrow().failure() == Some(Failure::Unreadable)
                && logged.borrow_mut().ready_partition().is_none()
        );
    }
}
