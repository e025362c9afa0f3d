//! Execution of commands on a partition, with answers as bytes.

use std::iter;
use std::sync::Arc;

use memory::{CHUNK_BYTES, Chunk};

use crate::batch_scratch::BatchScratch;
use crate::binary_response as response;
use crate::command::{Command, Mode, Verb};
use crate::counters::CommandCounters;
use crate::incoming::LargeStore;
use crate::number::{self, Digits, LastDigits};
use crate::output::LongValue;
use crate::settings::{COPIED_BYTES_MAX, ListenerSettings, SPARED_BYTES_MAX};
use crate::watch::{WatchLog, Watchers};
use kv::{
    Attributes, Clock, Condition, Extension, KEY_BYTES_MAX, KeyHash, PairPlace, Partition, REGION_BYTES,
    Stored, USES_MAX,
};

/// Longest relative time, s; larger numbers are Unix time.
const RELATIVE_S_MAX: i64 = 30 * 24 * 60 * 60;

/// A number that no value has: a client that expects number 0 expects none, so that it never matches.
const CAS_OF_NONE: u64 = u64::MAX;

const NO_MEMORY: &[u8] = b"SERVER_ERROR out of memory storing object\r\n";
pub(crate) const LOG_FULL: &[u8] = b"SERVER_ERROR log is full, the rest is headroom for cleaning\r\n";
const TOO_LARGE: &[u8] = b"SERVER_ERROR object too large for cache\r\n";

/// The memcached service on one partition: listener settings, counters, and buffers for the command being executed.
#[derive(Debug)]
pub struct Service {
    pub(crate) settings: ListenerSettings,
    pub(crate) counters: CommandCounters,
    /// What was counted before the last reset of the statistics.
    pub(crate) counted_before: CommandCounters,
    /// The processor's counters at the last reset of the statistics.
    pub(crate) reset_at: kv::Counters,
    scratch: Vec<u8>,
    /// Whole mebibytes of the value of the command being executed; the rest is in the command.
    pub(crate) arrived_chunks: Vec<Chunk>,
    /// Values to be inserted into the answer, each with its byte offset in it.
    pub(crate) long_values: Vec<(usize, LongValue)>,
    /// Longest value copied into the answer, bytes.
    pub(crate) copied_bytes_max: usize,
    pub(crate) watch: WatchLog,
    /// Number of the connection whose command is executed; kept only while events are watched.
    pub(crate) client: u32,
    /// For batches of commands on several partitions.
    pub(crate) batch: BatchScratch,
}

impl Service {
    /// The commands since the start, whatever the clients have reset.
    #[must_use]
    pub fn counters_ever(&self) -> CommandCounters {
        let mut all = self.counted_before;
        all += self.counters;
        all
    }

    /// A service with the listener's settings.
    #[must_use]
    pub fn new(settings: ListenerSettings) -> Self {
        Self {
            settings,
            counters: CommandCounters::default(),
            counted_before: CommandCounters::default(),
            reset_at: kv::Counters::default(),
            scratch: Vec::new(),
            arrived_chunks: Vec::new(),
            long_values: Vec::new(),
            copied_bytes_max: COPIED_BYTES_MAX,
            watch: WatchLog::default(),
            client: 0,
            batch: BatchScratch::default(),
        }
    }

    /// The same, with events for these watchers.
    #[must_use]
    pub fn watched_by(self, watchers: Arc<Watchers>) -> Self {
        Self { watch: WatchLog::new(watchers), ..self }
    }

    /// Names the connection whose commands are executed next, if events are watched.
    #[inline]
    pub fn begin_client(&mut self, number: impl FnOnce() -> u32) {
        self.watch.follow();
        if self.watch.is_watched() {
            self.client = number();
        }
    }

    /// The settings of the listener.
    #[must_use]
    pub fn settings(&self) -> &ListenerSettings {
        &self.settings
    }

    /// An executor of commands on the partition.
    #[inline(always)]
    pub fn on<'a>(&'a mut self, partition: &'a mut Partition) -> Executor<'a> {
        Executor { partition, service: self }
    }
}

/// Executes memcached commands on a partition.
pub struct Executor<'a> {
    /// The partition.
    pub partition: &'a mut Partition,
    /// The memcached service on it.
    pub service: &'a mut Service,
}

/// An `incr`: its amount, and whether it is answered.
#[derive(Clone, Copy)]
pub(crate) struct Addition {
    delta: u64,
    is_quiet: bool,
}

impl Addition {
    /// The addition of a command; `None` if it does something else.
    #[inline]
    pub(crate) fn of(command: &Command<'_>) -> Option<Self> {
        match command.verb {
            Verb::Arithmetic { is_decrement: false, delta, is_quiet } => Some(Self { delta, is_quiet }),
            _ => None,
        }
    }
}

/// Why an arithmetic command was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    NotNumeric,
    Stored(Stored),
}

impl Executor<'_> {
    /// The same executor, for a shorter lifetime.
    #[inline(always)]
    pub fn reborrow(&mut self) -> Executor<'_> {
        Executor { partition: self.partition, service: self.service }
    }

    /// The expiry for a client's time value: Unix time is converted now, so a later step of the wall clock changes
    /// nothing.
    #[must_use]
    pub fn expiry(&self, exptime: i64) -> u32 {
        let now_s = i64::from(self.partition.processor.now_s());
        let at_s = match exptime {
            0 => return 0,
            ..0 => return Clock::EXPIRED_S,
            1..=RELATIVE_S_MAX => now_s + exptime,
            _ => exptime.saturating_sub(self.partition.processor.clock().unix_s()).saturating_add(now_s),
        };
        if at_s <= now_s { Clock::EXPIRED_S } else { u32::try_from(at_s).unwrap_or(0) }
    }

    /// Removes all pairs, now or after a delay.
    pub(crate) fn flush(&mut self, delay: i64) {
        match self.expiry(delay) {
            0 | Clock::EXPIRED_S => self.partition.clear(),
            at_s => self.partition.clear_at(at_s),
        }
    }

    /// Whether a command on a partition with a log can be executed and answered now: it changes nothing, its value is
    /// in memory, and its answer reveals no change that is not durable.
    #[cold]
    #[must_use]
    pub fn is_immediate(&self, hash: KeyHash, command: &Command<'_>) -> bool {
        matches!(command.verb, Verb::Get { touch: None, .. })
            && self.partition.processor.awaited(hash).is_none()
            && !self.partition.processor.is_stub(hash, command.key)
    }

    /// Executes a command and appends its answer.
    #[inline]
    pub fn execute(&mut self, hash: KeyHash, command: &Command<'_>, out: &mut Vec<u8>) {
        if self.service.watch.is_watched() {
            return self.reborrow().execute_watched(hash, command, out);
        }
        self.execute_unwatched(hash, command, out);
    }

    #[inline]
    pub(crate) fn execute_unwatched(&mut self, hash: KeyHash, command: &Command<'_>, out: &mut Vec<u8>) {
        let key = command.key;
        match command.verb {
            Verb::Get { with_cas, touch: None } => self.get(hash, key, with_cas, out),
            Verb::Store { mode, cas, flags, exptime, is_quiet } => {
                self.service.counters.set_count += 1;
                let answer = self.store(hash, key, mode, cas, (flags, exptime), command.value);
                if !is_quiet {
                    out.extend_from_slice(answer);
                }
            }
            _ => self.reborrow().execute_rare(hash, command, out),
        }
    }

    #[inline(never)]
    fn execute_rare(mut self, hash: KeyHash, command: &Command<'_>, out: &mut Vec<u8>) {
        let key = command.key;
        match command.verb {
            Verb::Get { with_cas, touch } => {
                if let Some(exptime) = touch {
                    self.service.counters.touch_count += 1;
                    let expiry_s = self.expiry(exptime);
                    // An expiry in the past removes the value after it has been returned once more.
                    if expiry_s != Clock::EXPIRED_S && self.partition.processor.find(hash, key).is_some() {
                        self.service.counters.touch_hit_count += 1;
                        self.partition.processor.set_expiry(hash, key, expiry_s);
                    }
                    self.get(hash, key, with_cas, out);
                    if expiry_s == Clock::EXPIRED_S {
                        self.partition.processor.delete(hash, key);
                    }
                }
            }
            Verb::Store { .. } => unreachable!("executed where it is decoded"),
            Verb::Delete { is_quiet } => {
                let is_there = self.partition.processor.delete(hash, key);
                self.service.counters.delete_hit_count += u64::from(is_there);
                self.service.counters.delete_miss_count += u64::from(!is_there);
                if !is_quiet {
                    out.extend_from_slice(if is_there { b"DELETED\r\n" } else { b"NOT_FOUND\r\n" });
                }
            }
            Verb::Arithmetic { is_decrement, delta, is_quiet } => match Addition::of(command) {
                Some(addition) => {
                    self.add_all(hash, key, iter::once(addition), out);
                }
                None => self.answer_arithmetic(hash, key, is_decrement, delta, is_quiet, out),
            },
            Verb::Touch { exptime, is_quiet } => {
                self.service.counters.touch_count += 1;
                let expiry_s = self.expiry(exptime);
                let is_there = self.partition.processor.find(hash, key).is_some();
                let is_touched = is_there && self.partition.processor.set_expiry(hash, key, expiry_s);
                self.service.counters.touch_hit_count += u64::from(is_touched);
                if !is_quiet {
                    out.extend_from_slice(if is_touched { b"TOUCHED\r\n" } else { b"NOT_FOUND\r\n" });
                }
            }
            Verb::Refused { removes, is_memory, is_quiet, binary } => {
                let c = &mut self.service.counters;
                *(if is_memory { &mut c.no_memory_count } else { &mut c.too_large_count }) += 1;
                let mut room = [0; KEY_BYTES_MAX];
                let key = command.stored_key(&mut room);
                if removes {
                    self.partition.processor.delete(hash, key);
                }
                if self.service.watch.is_watched() {
                    let refused = if is_memory { Stored::NoMemory } else { Stored::TooLarge };
                    self.log_stored(hash, key, (Mode::Set, false), (0, refused));
                }
                match binary {
                    Some(header) if is_memory => response::refuse(out, header, response::NO_MEMORY),
                    Some(header) => response::refuse(out, header, response::TOO_LARGE),
                    None if is_quiet => {}
                    None => out.extend_from_slice(if is_memory { NO_MEMORY } else { TOO_LARGE }),
                }
            }
            Verb::Meta(_) if self.look_up(hash, command, out) => {}
            Verb::Meta(letter) => {
                let mut room = [0; KEY_BYTES_MAX];
                let key = command.stored_key(&mut room);
                self.meta(letter, hash, key, command, out);
            }
            Verb::Binary(header) => self.binary(header, hash, key, command, out),
            Verb::Dump(form) => self.dump(form, key, out),
        }
    }

    #[inline(always)]
    fn get(&mut self, hash: KeyHash, key: &[u8], with_cas: bool, out: &mut Vec<u8>) {
        self.service.counters.get_count += 1;
        if with_cas {
            return self.reborrow().get_with_cas(hash, key, out);
        }
        let expired_count = self.partition.processor.counters().expired_count;
        match self.partition.processor.find(hash, key) {
            Some(place) => self.answer_hit(key, place, None, out),
            None => self.count_miss(expired_count),
        }
    }

    /// Counts the `get` of an absent key. `expired_count` pairs had expired before it.
    pub(crate) fn count_miss(&mut self, expired_count: u64) {
        self.service.counters.get_miss_count += 1;
        let has_expired = self.partition.processor.counters().expired_count > expired_count;
        self.service.counters.get_expired_count += u64::from(has_expired);
    }

    /// Executes the `get` of a key whose pair is expected at a place. Returns whether it was there, so that nothing was
    /// removed.
    #[inline(always)]
    pub(crate) fn get_prefetched(
        &mut self,
        hash: KeyHash,
        key: &[u8],
        place: Option<PairPlace>,
        out: &mut Vec<u8>,
    ) -> bool {
        match place.and_then(|place| self.partition.processor.read_prefetched(place, key)) {
            Some((flags, value)) => {
                self.service.counters.get_count += 1;
                self.service.counters.get_hit_count += 1;
                push_value_line(out, key, flags, value.len(), None);
                out.extend_from_slice(value);
                out.extend_from_slice(b"\r\n");
                true
            }
            None => {
                self.reborrow().get_slow(hash, key, out);
                false
            }
        }
    }

    #[inline(never)]
    fn get_slow(mut self, hash: KeyHash, key: &[u8], out: &mut Vec<u8>) {
        self.get(hash, key, false, out);
    }

    #[inline(never)]
    fn get_with_cas(mut self, hash: KeyHash, key: &[u8], out: &mut Vec<u8>) {
        let expired_count = self.partition.processor.counters().expired_count;
        let cas = self.partition.processor.cas(hash, key).unwrap_or(0);
        // It may have left the index to get a CAS number.
        match self.partition.processor.find(hash, key) {
            Some(place) => self.answer_hit(key, place, Some(cas), out),
            None => self.count_miss(expired_count),
        }
    }

    /// Answers with the pair at a place.
    #[inline(always)]
    fn answer_hit(&mut self, key: &[u8], place: PairPlace, cas: Option<u64>, out: &mut Vec<u8>) {
        self.service.counters.get_hit_count += 1;
        match self.partition.processor.read_whole(place) {
            Some((flags, value)) if value.len() <= self.service.copied_bytes_max => {
                push_value_line(out, key, flags, value.len(), cas);
                out.extend_from_slice(value);
            }
            _ => self.reborrow().answer_long_hit(key, place, cas, out),
        }
        out.extend_from_slice(b"\r\n");
    }

    #[inline(never)]
    fn answer_long_hit(mut self, key: &[u8], place: PairPlace, cas: Option<u64>, out: &mut Vec<u8>) {
        self.partition.processor.touch(place);
        let flags = self.partition.processor.attributes(place).flags;
        push_value_line(out, key, flags, self.partition.processor.value(place).len(), cas);
        self.push_value(place, out);
    }

    /// Appends a value. Whole mebibytes, and a long rest, are recorded in `long_values` instead of being copied;
    /// returns how many bytes these are.
    pub(crate) fn push_value(&mut self, place: PairPlace, out: &mut Vec<u8>) -> usize {
        let length = self.partition.processor.value(place).len();
        let chunks = self.partition.processor.chunks(place).cloned();
        let chunk_bytes = chunks.as_ref().map_or(0, |chunks| chunks.len() * CHUNK_BYTES);
        let mut kept = None;
        if length - chunk_bytes > self.service.copied_bytes_max {
            kept = self.partition.processor.keep(place).map(Arc::new);
        }
        let at = out.len();
        if kept.is_none() {
            self.partition.processor.value(place).append_from(chunk_bytes, out);
        }
        if chunks.is_none() && kept.is_none() {
            return 0;
        }
        let value = LongValue { chunks, kept };
        let noted_bytes = value.len();
        self.service.long_values.push((at, value));
        noted_bytes
    }

    /// Executes a command and appends its answer, copying no values of more than 4 KiB.
    pub fn execute_sparing(&mut self, hash: KeyHash, command: &Command<'_>, out: &mut Vec<u8>) {
        self.service.copied_bytes_max = SPARED_BYTES_MAX;
        self.execute(hash, command, out);
        self.service.copied_bytes_max = COPIED_BYTES_MAX;
    }

    /// Executes a command whose value arrived in chunks, and appends its answer.
    pub fn execute_large(&mut self, store: LargeStore, out: &mut Vec<u8>) {
        let hash = store.hash;
        store.with_command(|command, chunks| {
            self.service.arrived_chunks = chunks;
            self.execute(hash, command, out);
        });
        self.service.arrived_chunks = Vec::new();
    }

    /// Values to be inserted into the answers since the last call, each with its byte offset in them.
    pub fn take_long_values(&mut self) -> std::vec::Drain<'_, (usize, LongValue)> {
        self.service.long_values.drain(..)
    }

    fn store(
        &mut self,
        hash: KeyHash,
        key: &[u8],
        mode: Mode,
        cas: Option<u64>,
        attributes: (u32, i64),
        value: &[u8],
    ) -> &'static [u8] {
        let stored = self.store_value(hash, key, mode, value, attributes, cas);
        if cas.is_some() {
            match stored {
                Stored::Done => self.service.counters.cas_hit_count += 1,
                Stored::NotFound => self.service.counters.cas_miss_count += 1,
                _ => self.service.counters.cas_bad_count += 1,
            }
        }
        match stored {
            Stored::Done => b"STORED\r\n",
            _ if mode.is_too_long(stored) => b"NOT_STORED\r\n",
            Stored::Exists if cas.is_some() => b"EXISTS\r\n",
            Stored::NotFound if cas.is_some() => b"NOT_FOUND\r\n",
            Stored::Exists | Stored::NotFound => b"NOT_STORED\r\n",
            Stored::NoMemory => NO_MEMORY,
            Stored::LogFull => LOG_FULL,
            Stored::TooLarge => TOO_LARGE,
        }
    }

    /// Stores a value in one of the modes. `attributes` are flags and time as the client sent them; a value that is
    /// appended or prepended to keeps its own. Where there is no memory, a set removes the old value.
    pub(crate) fn store_value(
        &mut self,
        hash: KeyHash,
        key: &[u8],
        mode: Mode,
        value: &[u8],
        (flags, exptime): (u32, i64),
        cas: Option<u64>,
    ) -> Stored {
        let attributes = Attributes { flags, expiry_s: self.expiry(exptime) };
        let length = value.len() + self.service.arrived_chunks.len() * CHUNK_BYTES;
        let condition = match (cas, mode) {
            (Some(0), _) => Condition::Unchanged(CAS_OF_NONE),
            (Some(cas), _) => Condition::Unchanged(cas),
            (None, Mode::Set) => Condition::Always,
            (None, Mode::Add) => Condition::Absent,
            (None, Mode::Replace | Mode::Append | Mode::Prepend) => Condition::Present,
        };
        let stored = match mode {
            Mode::Append | Mode::Prepend => {
                let found = self.partition.processor.find(hash, key);
                match (self.partition.processor.check(found, condition), found) {
                    (Ok(()), Some(place)) => self.extend(hash, key, place, mode == Mode::Append, value),
                    (Err(refusal), _) => refusal,
                    (Ok(()), None) => Stored::NotFound,
                }
            }
            _ if self.service.arrived_chunks.is_empty() => {
                self.partition.processor.store(hash, key, value, attributes, condition)
            }
            _ => {
                let chunks = std::mem::take(&mut self.service.arrived_chunks);
                self.partition.processor.store_chunks(hash, key, chunks, value, attributes, condition)
            }
        };
        if self.service.watch.is_watched() {
            self.log_stored(hash, key, (mode, cas.is_some()), (length, stored));
        }
        match stored {
            Stored::NoMemory | Stored::LogFull => {
                let c = &mut self.service.counters;
                *(if stored == Stored::NoMemory { &mut c.no_memory_count } else { &mut c.log_full_count }) +=
                    1;
                if mode == Mode::Set && cas.is_none() {
                    // No value is better than an outdated one.
                    self.partition.processor.delete(hash, key);
                }
            }
            Stored::TooLarge => self.service.counters.too_large_count += 1,
            _ => {}
        }
        stored
    }

    fn extend(&mut self, hash: KeyHash, key: &[u8], place: PairPlace, at_end: bool, more: &[u8]) -> Stored {
        let attributes = self.partition.processor.attributes(place);
        let value = self.partition.processor.value(place);
        let length = value.len() + more.len() + self.service.arrived_chunks.len() * CHUNK_BYTES;
        if length > self.service.settings.value_bytes_max {
            return Stored::TooLarge;
        }
        if length >= CHUNK_BYTES {
            let chunks = &std::mem::take(&mut self.service.arrived_chunks);
            let more = Extension { at_end, chunks, rest: more };
            return self.partition.processor.extend(hash, key, place, more);
        }
        let mut whole = std::mem::take(&mut self.service.scratch);
        whole.clear();
        if at_end {
            value.append_to(&mut whole);
            whole.extend_from_slice(more);
        } else {
            whole.extend_from_slice(more);
            value.append_to(&mut whole);
        }
        let stored = self.partition.processor.put(hash, key, &whole, attributes, Some(place));
        self.keep_scratch(whole);
        stored
    }

    fn keep_scratch(&mut self, scratch: Vec<u8>) {
        if scratch.capacity() <= 64 * 1024 {
            self.service.scratch = scratch;
        }
    }

    /// Executes consecutive additions to one counter. Returns their number: at least one, if there is one.
    pub(crate) fn add_all(
        &mut self,
        hash: KeyHash,
        key: &[u8],
        mut additions: impl Iterator<Item = Addition> + Clone,
        out: &mut Vec<u8>,
    ) -> usize {
        let done = self.add_to_last_digits(hash, key, additions.clone(), out);
        if done > 0 {
            return done;
        }
        let Some(Addition { delta, is_quiet }) = additions.next() else { return 0 };
        self.answer_arithmetic(hash, key, false, delta, is_quiet, out);
        1
    }

    /// Executes additions while only the last eight digits of the counter change. Each uses the result of the previous
    /// one directly: the counter is looked up and written once. Returns their number.
    fn add_to_last_digits(
        &mut self,
        hash: KeyHash,
        key: &[u8],
        additions: impl Iterator<Item = Addition>,
        out: &mut Vec<u8>,
    ) -> usize {
        let Some(place) = self.partition.processor.find(hash, key) else { return 0 };
        let Some(text) = self.partition.processor.value(place).as_whole() else { return 0 };
        let Some(mut last) = LastDigits::of(text) else { return 0 };
        let (before, mut count) = (out.len(), 0);
        for Addition { delta, is_quiet } in additions {
            if !last.add(delta) {
                break;
            }
            count += 1;
            if !is_quiet {
                last.append_to(text, out);
                out.extend_from_slice(b"\r\n");
            }
        }
        (0..count.min(USES_MAX.into())).for_each(|_| self.partition.processor.touch(place));
        let write = |text: &mut [u8]| last.write_to(text);
        if count > 0 && !self.partition.processor.change(hash, key, place, count as u64, write) {
            out.truncate(before);
            return 0;
        }
        self.service.counters.increment_hit_count += count as u64;
        count
    }

    fn answer_arithmetic(
        &mut self,
        hash: KeyHash,
        key: &[u8],
        is_decrement: bool,
        delta: u64,
        is_quiet: bool,
        out: &mut Vec<u8>,
    ) {
        let result = self.arithmetic(hash, key, is_decrement, delta, None, None);
        if is_quiet {
            return;
        }
        match result {
            Ok(number) => {
                Digits::new(number).append_to(out);
                out.extend_from_slice(b"\r\n");
            }
            Err(Refusal::NotNumeric) => {
                out.extend_from_slice(b"CLIENT_ERROR cannot increment or decrement non-numeric value\r\n");
            }
            Err(Refusal::Stored(Stored::NotFound)) => out.extend_from_slice(b"NOT_FOUND\r\n"),
            Err(Refusal::Stored(Stored::LogFull)) => out.extend_from_slice(LOG_FULL),
            Err(Refusal::Stored(_)) => out.extend_from_slice(b"SERVER_ERROR out of memory\r\n"),
        }
    }

    /// Adds to or subtracts from a number stored as text. With `create` (number and time), an absent key is created
    /// with that number.
    pub(crate) fn arithmetic(
        &mut self,
        hash: KeyHash,
        key: &[u8],
        is_decrement: bool,
        delta: u64,
        create: Option<(u64, i64)>,
        cas: Option<u64>,
    ) -> Result<u64, Refusal> {
        let c = &mut self.service.counters;
        let (hits, misses) = if is_decrement {
            (&mut c.decrement_hit_count, &mut c.decrement_miss_count)
        } else {
            (&mut c.increment_hit_count, &mut c.increment_miss_count)
        };
        let Some(place) = self.partition.processor.find(hash, key) else {
            *misses += 1;
            let Some((initial, exptime)) = create else {
                return Err(Refusal::Stored(Stored::NotFound));
            };
            let attributes = Attributes { flags: 0, expiry_s: self.expiry(exptime) };
            self.service.scratch.clear();
            Digits::new(initial).append_to(&mut self.service.scratch);
            return match self.partition.processor.store(
                hash,
                key,
                &self.service.scratch,
                attributes,
                Condition::Absent,
            ) {
                Stored::Done => Ok(initial),
                other => Err(Refusal::Stored(other)),
            };
        };
        if let Some(cas) = cas {
            self.partition
                .processor
                .check(Some(place), Condition::Unchanged(cas))
                .map_err(Refusal::Stored)?;
        }
        let value = self.partition.processor.value(place);
        let text = value.as_whole().ok_or(Refusal::NotNumeric)?;
        let length = text.len();
        let number = number::parse_stored(text).ok_or(Refusal::NotNumeric)?;
        *hits += 1;
        let number = if is_decrement { number.saturating_sub(delta) } else { number.wrapping_add(delta) };
        let digits = Digits::new(number);
        self.partition.processor.touch(place);
        if digits.len() <= length {
            let write = |bytes: &mut [u8]| {
                digits.write_to(bytes);
                bytes[digits.len()..].fill(b' ');
            };
            return match self.partition.processor.change(hash, key, place, 1, write) {
                true => Ok(number),
                false => Err(Refusal::Stored(Stored::NoMemory)),
            };
        }
        self.service.scratch.clear();
        digits.append_to(&mut self.service.scratch);
        let attributes = self.partition.processor.attributes(place);
        match self.partition.processor.put(hash, key, &self.service.scratch, attributes, Some(place)) {
            Stored::Done => Ok(number),
            other => Err(Refusal::Stored(other)),
        }
    }
}

#[inline(always)]
pub(crate) fn push_value_line(out: &mut Vec<u8>, key: &[u8], flags: u32, length: usize, cas: Option<u64>) {
    // For longer values, reserve only for the part that is copied.
    out.reserve(key.len() + length.min(REGION_BYTES) + 64);
    out.extend_from_slice(b"VALUE ");
    out.extend_from_slice(key);
    if let (0, 10..100, None) = (flags, length, cas) {
        return out.extend_from_slice(&[
            b' ',
            b'0',
            b' ',
            number::digit(length as u64 / 10),
            number::digit(length as u64 % 10),
            b'\r',
            b'\n',
        ]);
    }
    if flags == 0 {
        out.extend_from_slice(b" 0 ");
    } else {
        out.push(b' ');
        number::push(out, flags.into());
        out.push(b' ');
    }
    number::push(out, length as u64);
    if let Some(cas) = cas {
        out.push(b' ');
        number::push(out, cas);
    }
    out.extend_from_slice(b"\r\n");
}
