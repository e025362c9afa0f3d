//! A partition in front of objects: turns its changes into writes, and keys that it does not know into reads.
//!
//! ```text
//! change ─▶ the newest state of its key waits ─▶ parts written ─▶ head written ─▶ settled; old parts removed
//! fetch  ─▶ behind the writes of its key: head read ─▶ parts read ─▶ pair in memory │ known to be absent
//! ```
//!
//! A key has at most one of these at a time, so that they are carried out in their order; keys do not wait for each other.
//! A change is taken as it is made: the value is copied (a long one shared), so that the pair may leave memory at once.

use std::collections::VecDeque;
use std::io;
use std::mem::take;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use ceph::ObjectRequest;
use kv::log::{Failure, FetchError, Loaded};
use kv::{Attributes, KeyHash, Partition};
use memory::CHUNK_BYTES;
use reactor::Completion;
use rustix::io::Errno;

use super::absent::Absent;
use super::changes::{Changes, both};
use super::flight::{End, Flight, Task};
use super::format::{HEAD_BYTES, Head, PART_BYTES, part_count};
use super::parts::Parts;
use super::session::Session;
use super::tenure::Tenure;
use super::work::{Change, Read, Running, Work, Works, Write, length_of, part_bytes, part_length};
use crate::key_value::durable::{DurablePartition, KeyList, Need, Pause};
use crate::namespace::{StoreIo, Ticket};

/// Parts of one value in flight at most.
const PART_COUNT_MAX: u32 = 4;

/// Bytes of changes that wait or are in flight, above which further ones wait.
const CHANGE_BYTES_MAX: usize = 64 << 20;

/// Bytes of the first read of an object.
const FIRST_BYTES: usize = HEAD_BYTES + (64 << 10);

/// Interval between looks at what does not go on by itself, ns.
const TICK_NS: u64 = 1_000_000_000;

/// The longest wait of a stop, ns.
const STOP_NS: u64 = 10_000_000_000;

/// The numbers of its tickets.
const BELL: u32 = 0;
const TICK: u32 = 1;

/// One reactor's partition.
pub(super) struct ObjectPartition {
    partition: Partition,
    /// Its number, and that of all.
    which: (usize, usize),
    tenure: Arc<Tenure>,
    session: Arc<Session>,
    flight: Flight,
    works: Works,
    parts: Parts,
    absent: Absent,
    loaded: VecDeque<Loaded>,
    changes: Changes,
    is_full: bool,
    is_ticking: bool,
    /// The list that is waited for.
    list: Option<u64>,
    failure: Option<Failure>,
    stop: Stop,
    /// Unix time at second 0 of the partition's clock.
    clock_start_s: i64,
}

/// How far it is on its way to its end.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stop {
    Unasked,
    /// It gives up at this time, ns.
    Until(u64),
    GivenUp,
}

impl ObjectPartition {
    pub(super) fn new(partition: Partition, which: (usize, usize), tenure: Arc<Tenure>) -> io::Result<Self> {
        let flight = Flight::new()?;
        tenure.add(flight.waker());
        let session = tenure.session();
        let mut this = Self {
            partition,
            which,
            tenure,
            session,
            flight,
            works: Works::default(),
            parts: Parts::default(),
            absent: Absent::default(),
            loaded: VecDeque::new(),
            changes: Changes::default(),
            is_full: false,
            is_ticking: false,
            list: None,
            failure: None,
            stop: Stop::Unasked,
            clock_start_s: 0,
        };
        this.enter();
        Ok(this)
    }

    /// Begins to serve the keys as the session has found them: what it knew of an earlier one is forgotten.
    fn enter(&mut self) {
        let (session, processor) = (&self.session, &mut self.partition.processor);
        processor.begin_notes(session.lease.cas_start);
        let (number, count) = self.which;
        let found = session.found_of(|key| processor.hash(key).partition(count) == number);
        // The partition's clock counts the seconds since the boot, and so does the one of the session.
        let (unix_s, since_boot_s) = session.opened;
        self.clock_start_s = unix_s - since_boot_s + processor.clock().start_s();
        (self.works, self.parts, self.absent) = (Works::default(), Parts::new(found), Absent::default());
        self.loaded.clear();
        self.changes.forget();
        (self.is_full, self.list) = (false, None);
    }

    /// Takes the changes that were made since the last call.
    fn take_changes(&mut self) {
        for (hash, key) in self.partition.processor.take_notes() {
            let change = self.state_of(hash, &key);
            match change {
                Change::Removed => self.absent.insert(&key),
                _ => self.absent.remove(&key),
            }
            let number = self.changes.add(hash);
            self.session.open_changes.fetch_add(1, Ordering::SeqCst);
            self.changes.bytes += change.bytes();
            let work = self.works.keys.entry(key.clone()).or_default();
            work.numbers.push((number, hash));
            if let Some(before) = work.next.replace(change) {
                self.changes.bytes -= before.bytes();
            }
            self.works.ready.push_back(key);
        }
        self.session.lease.note_cas(self.partition.processor.last_cas());
    }

    /// The present state of a key in memory.
    fn state_of(&mut self, hash: KeyHash, key: &[u8]) -> Change {
        let version = self.partition.processor.last_cas();
        let Some(place) = self.partition.processor.find(hash, key) else { return Change::Removed };
        let processor = &self.partition.processor;
        let Attributes { flags, expiry_s } = processor.attributes(place);
        let head = Head {
            flags,
            marks: processor.marks(place),
            cas: processor.present_cas(place).unwrap_or(0),
            expires_s: if expiry_s == 0 { 0 } else { self.clock_start_s + i64::from(expiry_s) },
            value_bytes: processor.value_bytes(place) as u64,
            version,
        };
        let value = processor.value(place);
        match processor.chunks(place) {
            Some(chunks) if head.part_count() > 0 => {
                let mut rest = Vec::new();
                value.append_from(chunks.len() * CHUNK_BYTES, &mut rest);
                Change::Parts(head, Arc::clone(chunks), rest)
            }
            _ => {
                let mut bytes = Vec::with_capacity(HEAD_BYTES + value.len());
                bytes.extend_from_slice(&head.encode());
                value.append_to(&mut bytes);
                Change::Whole(bytes)
            }
        }
    }

    /// Starts what can be started.
    fn advance(&mut self) {
        if self.failure.is_some() || self.stop == Stop::GivenUp {
            return;
        }
        // What was handed over may still land; nothing is added.
        while self.flight.has_room() && self.session.lease.is_valid() {
            if let Some(key) = self.works.ready.pop_front() {
                self.go_on(&key);
            } else if let Some((key, version, number)) = self.parts.next_removal() {
                self.start(Task::Removal, &key, Some((version, number)), ObjectRequest::Remove);
            } else {
                break;
            }
        }
    }

    /// Goes on with a key.
    fn go_on(&mut self, key: &[u8]) {
        let Some(work) = self.works.keys.get_mut(key) else { return };
        match &mut work.running {
            Running::Nothing => {
                if let Some(change) = work.next.take() {
                    let numbers = take(&mut work.numbers);
                    let write = Write {
                        change,
                        numbers,
                        next_part: 0,
                        part_runs: 0,
                        is_head_started: false,
                        errno: None,
                    };
                    work.running = Running::Write(write);
                    self.go_on_writing(key);
                } else if work.is_wanted {
                    work.running = Running::Read(Read::default());
                    let request = ObjectRequest::Read { offset: 0, buffer: vec![0; FIRST_BYTES] };
                    self.start(Task::Head(key.into()), key, None, request);
                } else {
                    self.works.keys.remove(key);
                }
            }
            Running::Write(_) => self.go_on_writing(key),
            Running::Read(_) => self.go_on_reading(key),
        }
    }

    fn go_on_writing(&mut self, key: &[u8]) {
        let Some(Work { running: Running::Write(write), .. }) = self.works.keys.get_mut(key) else { return };
        if write.is_head_started {
            return;
        }
        let head = match &mut write.change {
            Change::Removed => ObjectRequest::Remove,
            Change::Whole(bytes) => ObjectRequest::Write { bytes: take(bytes) },
            Change::Parts(head, chunks, rest) => {
                let count = head.part_count();
                if write.errno.is_none() && write.next_part < count && write.part_runs < PART_COUNT_MAX {
                    let (version, number) = (head.version, write.next_part);
                    let bytes = part_bytes(chunks, rest, number);
                    write.next_part += 1;
                    write.part_runs += 1;
                    if write.next_part < count && write.part_runs < PART_COUNT_MAX {
                        self.works.ready.push_back(key.into());
                    }
                    // Known before they are written: whatever happens, they are removed.
                    self.parts.note(key, version, count);
                    let task = Task::Part(key.into(), number);
                    return self.start(task, key, Some((version, number)), ObjectRequest::Write { bytes });
                }
                if write.part_runs > 0 {
                    return;
                }
                if let Some(errno) = write.errno {
                    return self.on_unwritten(key, errno);
                }
                ObjectRequest::Write { bytes: head.encode().to_vec() }
            }
        };
        write.is_head_started = true;
        self.start(Task::Head(key.into()), key, None, head);
    }

    fn go_on_reading(&mut self, key: &[u8]) {
        let Some(Work { running: Running::Read(read), .. }) = self.works.keys.get_mut(key) else { return };
        let Some(head) = read.head else { return };
        let count = head.part_count();
        if count == 0 {
            return;
        }
        if read.next_part == 0 {
            if !self.works.long.may_begin(key) {
                return;
            }
            read.value = vec![0; length_of(head.value_bytes)];
        }
        if read.error.is_none() && read.next_part < count && read.part_runs < PART_COUNT_MAX {
            let number = read.next_part;
            read.next_part += 1;
            read.part_runs += 1;
            if read.next_part < count && read.part_runs < PART_COUNT_MAX {
                self.works.ready.push_back(key.into());
            }
            let buffer = vec![0; part_length(head.value_bytes, number)];
            let request = ObjectRequest::Read { offset: 0, buffer };
            return self.start(Task::Part(key.into(), number), key, Some((head.version, number)), request);
        }
        if read.part_runs == 0 {
            self.works.ready.extend(self.works.long.end());
            let (value, error) = (take(&mut read.value), read.error);
            let result = match error {
                None => self.restore(key, &head, &value),
                Some(error) => Err(error),
            };
            self.end_read(key, result);
        }
    }

    /// Starts a request to the head of a key, or to a part of its value.
    fn start(&mut self, task: Task, key: &[u8], part: Option<(u64, u64)>, request: ObjectRequest) {
        if let Err(end) = self.flight.start(&self.session, task, key, part, request) {
            self.on_end(end);
        }
    }

    fn on_end(&mut self, End { task, result, bytes }: End) {
        if result == Err(Errno::SHUTDOWN.raw_os_error()) {
            let why = "the cluster has blocklisted this target: another one took its keys, or an administrator did it";
            self.session.lease.lose(why.into());
        }
        let (key, number) = match task {
            // Whatever is not removed is found at the next start.
            Task::Removal => return,
            Task::Head(key) => (key, None),
            Task::Rest(key) => (key, Some(0)),
            Task::Part(key, number) => (key, Some(number)),
        };
        let Some(work) = self.works.keys.get_mut(&key) else { return };
        match (&mut work.running, number) {
            (Running::Nothing, _) => {}
            (Running::Write(write), Some(_)) => {
                write.part_runs -= 1;
                write.errno = write.errno.or(result.err());
                self.works.ready.push_back(key);
            }
            (Running::Write(write), None) => {
                if let Change::Whole(whole) = &mut write.change {
                    *whole = bytes;
                }
                let is_removal = matches!(write.change, Change::Removed);
                match result {
                    Ok(_) => self.on_written(&key),
                    Err(errno) if is_removal && errno == Errno::NOENT.raw_os_error() => self.on_written(&key),
                    Err(errno) => self.on_unwritten(&key, errno),
                }
            }
            (Running::Read(_), None) => self.on_head(&key, result, bytes),
            (Running::Read(read), Some(number)) => match read.head {
                Some(head) if head.part_count() > 0 => {
                    read.part_runs -= 1;
                    let start = usize::try_from(number).expect("few parts") * PART_BYTES;
                    match result {
                        Ok(count) if count == bytes.len() => {
                            read.value[start..start + count].copy_from_slice(&bytes);
                        }
                        Ok(_) => read.error = Some(FetchError::Damaged),
                        Err(errno) => read.error = Some(fetch_error(errno)),
                    }
                    self.works.ready.push_back(key);
                }
                Some(head) => {
                    let mut value = take(&mut read.value);
                    let result = match result {
                        Ok(count) if value.len() + count == length_of(head.value_bytes) => {
                            value.extend_from_slice(&bytes[..count]);
                            self.restore(&key, &head, &value)
                        }
                        Ok(_) => Err(FetchError::Damaged),
                        Err(errno) => Err(fetch_error(errno)),
                    };
                    self.end_read(&key, result);
                }
                None => {}
            },
        }
    }

    /// The first bytes of an object have been read.
    fn on_head(&mut self, key: &[u8], result: Result<usize, i32>, mut bytes: Vec<u8>) {
        if self.is_outdated(key) {
            return self.end_read(key, Ok(()));
        }
        let count = match result {
            Ok(count) => count,
            Err(errno) if errno == Errno::NOENT.raw_os_error() => {
                self.absent.insert(key);
                return self.end_read(key, Ok(()));
            }
            Err(errno) => return self.end_read(key, Err(fetch_error(errno))),
        };
        bytes.truncate(count);
        let Some(head) = Head::decode(&bytes) else { return self.end_read(key, Err(FetchError::Damaged)) };
        if head.value_bytes > self.partition.processor.settings().value_bytes_max as u64 {
            return self.end_read(key, Err(FetchError::Damaged));
        }
        if self.is_expired(&head) {
            self.absent.insert(key);
            self.versions_of(key, &head);
            if let Some(work) = self.works.keys.get_mut(key) {
                // Nobody waits for this change.
                self.changes.bytes += Change::Removed.bytes();
                work.next = Some(Change::Removed);
            }
            return self.end_read(key, Ok(()));
        }
        let value = &bytes[HEAD_BYTES..];
        let length = length_of(head.value_bytes);
        if head.part_count() == 0 && value.len() == length {
            let result = self.restore(key, &head, value);
            return self.end_read(key, result);
        }
        if head.part_count() == 0 && (value.len() > length || bytes.len() < FIRST_BYTES) {
            return self.end_read(key, Err(FetchError::Damaged));
        }
        self.versions_of(key, &head);
        let Some(Work { running: Running::Read(read), .. }) = self.works.keys.get_mut(key) else { return };
        read.head = Some(head);
        if head.part_count() > 0 {
            return self.works.ready.push_back(key.into());
        }
        let offset = bytes.len() as u64;
        let buffer = vec![0; length - value.len()];
        read.value = bytes.split_off(HEAD_BYTES);
        self.start(Task::Rest(key.into()), key, None, ObjectRequest::Read { offset, buffer });
    }

    /// Notes the parts that a head refers to.
    fn versions_of(&mut self, key: &[u8], head: &Head) {
        if head.part_count() > 0 {
            self.parts.note(key, head.version, part_count(head.value_bytes));
        }
    }

    fn is_expired(&self, head: &Head) -> bool {
        let now_s = self.clock_start_s + i64::from(self.partition.processor.now_s());
        head.expires_s != 0 && head.expires_s <= now_s
    }

    /// Whether a key has changed since its read began: whoever waited for it was refused meanwhile.
    fn is_outdated(&self, key: &[u8]) -> bool {
        self.works.keys.get(key).is_some_and(|work| work.next.is_some())
    }

    /// Puts a pair that was read into memory.
    fn restore(&mut self, key: &[u8], head: &Head, value: &[u8]) -> Result<(), FetchError> {
        if self.is_outdated(key) {
            return Ok(());
        }
        let processor = &mut self.partition.processor;
        let expiry_s = match head.expires_s {
            0 => 0,
            expires_s => u32::try_from(expires_s - self.clock_start_s).unwrap_or(u32::MAX),
        };
        let (hash, attributes) = (processor.hash(key), Attributes { flags: head.flags, expiry_s });
        match processor.restore((hash, key), value, attributes, (head.cas, head.marks)) {
            true => Ok(()),
            false => Err(FetchError::NoMemory),
        }
    }

    /// A read has ended, and a change may be next.
    fn end_read(&mut self, key: &[u8], result: Result<(), FetchError>) {
        if let Some(work) = self.works.keys.get_mut(key) {
            work.running = Running::Nothing;
            work.is_wanted = false;
        }
        self.loaded.push_back(Loaded { key: key.into(), result });
        self.works.ready.push_back(key.into());
    }

    /// A change is durable.
    fn on_written(&mut self, key: &[u8]) {
        let Some(work) = self.works.keys.get_mut(key) else { return };
        let Running::Write(write) = take(&mut work.running) else { return };
        self.end_changes(&write);
        self.is_full = false;
        self.parts.keep_only(key, write.change.parts());
        self.works.ready.push_back(key.into());
    }

    fn end_changes(&mut self, write: &Write) {
        self.changes.bytes -= write.change.bytes();
        for &(number, hash) in &write.numbers {
            self.changes.end(number, hash);
        }
        self.session.open_changes.fetch_sub(write.numbers.len() as u64, Ordering::SeqCst);
    }

    /// A change was not written.
    fn on_unwritten(&mut self, key: &[u8], errno: i32) {
        let Some(work) = self.works.keys.get_mut(key) else { return };
        let Running::Write(Write { change, mut numbers, .. }) = take(&mut work.running) else { return };
        numbers.append(&mut work.numbers);
        work.numbers = numbers;
        match &work.next {
            Some(_) => self.changes.bytes -= change.bytes(),
            None => work.next = Some(change),
        }
        match Errno::from_raw_os_error(errno) {
            Errno::NOSPC | Errno::DQUOT => {
                if !std::mem::replace(&mut self.is_full, true) {
                    tracing::warn!(place = %self.session.place, "no space in the pool: writes are repeated");
                }
                self.works.refused.push(key.into());
            }
            // Not taken by librados: it has no room.
            Errno::AGAIN => self.works.refused.push(key.into()),
            Errno::SHUTDOWN => {}
            error => {
                if self.failure.is_none() {
                    let place = &self.session.place;
                    tracing::error!(%place, %error, "the cluster refuses a write: keys are served no more");
                }
                self.failure = self.failure.or(Some(Failure::Refused));
            }
        }
    }

    /// Waits for ends of requests, the list, and what the tenure has to say.
    fn arm(&mut self, io: &mut dyn StoreIo) {
        let bell = io.own(BELL);
        self.flight.arm(io, bell);
        let is_due = !self.works.keys.is_empty()
            || self.parts.has_removals()
            || self.list.is_some()
            || self.stop != Stop::Unasked;
        let is_over = self.failure.is_some() || self.stop == Stop::GivenUp;
        if is_due && !is_over && !std::mem::replace(&mut self.is_ticking, true) {
            io.set_timer(io.now_ns() + TICK_NS, io.own(TICK));
        }
    }
}

/// What a failed read says about a value.
fn fetch_error(errno: i32) -> FetchError {
    if errno == Errno::NOENT.raw_os_error() { FetchError::Damaged } else { FetchError::Unreadable }
}

impl DurablePartition for ObjectPartition {
    fn is_ready(&self) -> bool {
        self.failure.is_none() && self.session.lease.is_valid()
    }

    fn pause(&self) -> Option<Pause> {
        if self.session.lease.is_lost() {
            return Some(Pause::Taken);
        }
        (!self.is_ready() && self.failure.is_none()).then_some(Pause::Unreachable)
    }

    fn begin_anew(&mut self) {
        // What is on its way ends soon: the cluster refuses it.
        if !self.session.lease.is_lost() || !self.flight.is_empty() {
            return;
        }
        let session = self.tenure.session();
        if !session.lease.is_lost() {
            self.session = session;
            self.partition.clear();
            self.enter();
        }
    }

    fn failure(&self) -> Option<Failure> {
        self.failure
    }

    fn is_busy(&self) -> bool {
        !self.flight.is_empty() && self.stop != Stop::GivenUp
    }

    fn ready_partition(&mut self) -> Option<&mut Partition> {
        self.is_ready().then_some(&mut self.partition)
    }

    fn partition(&mut self) -> &mut Partition {
        &mut self.partition
    }

    fn must_fetch(&mut self, key: &[u8], need: Need) -> bool {
        let processor = &self.partition.processor;
        // A pair that has expired in memory is found to be gone there.
        need != Need::Nothing
            && processor.look(processor.hash(key), key).is_none()
            && !self.absent.contains(key)
    }

    fn fetch(&mut self, key: &[u8]) {
        self.works.keys.entry(key.into()).or_default().is_wanted = true;
        self.works.ready.push_back(key.into());
    }

    fn next_loaded(&mut self) -> Option<Loaded> {
        self.loaded.pop_front()
    }

    fn awaited(&mut self, hash: KeyHash) -> Option<u64> {
        self.take_changes();
        self.changes.awaited(hash)
    }

    fn awaited_last(&mut self) -> Option<u64> {
        self.take_changes();
        self.changes.all_open()
    }

    fn settled(&mut self) -> u64 {
        self.changes.settled()
    }

    fn is_settled(&mut self, awaited: u64) -> bool {
        self.changes.is_settled(awaited)
    }

    fn both(&self, one: Option<u64>, other: Option<u64>) -> Option<u64> {
        both(one, other)
    }

    fn has_room(&mut self, _: usize, _: Option<&[u8]>) -> bool {
        true
    }

    fn admits(&mut self, bytes: usize) -> bool {
        self.take_changes();
        let has_numbers = self.session.lease.has_cas(self.partition.processor.last_cas());
        has_numbers && (self.changes.bytes == 0 || self.changes.bytes + bytes <= CHANGE_BYTES_MAX)
    }

    fn is_full(&self) -> bool {
        self.is_full
    }

    fn progress(&mut self) -> Option<u64> {
        None
    }

    fn request_flush(&mut self) -> u64 {
        self.take_changes();
        self.changes.all()
    }

    fn lists_below(&self) -> bool {
        true
    }

    fn begin_list(&mut self, is_first: bool) {
        let wanted = self.session.listing.want(is_first, self.flight.waker());
        self.list = Some(self.list.unwrap_or(0).max(wanted));
    }

    fn next_listed(&mut self) -> Option<Option<KeyList>> {
        let listed = self.session.listing.listed(self.list?)?;
        self.list = None;
        Some(listed)
    }

    fn stop(&mut self, io: &mut dyn StoreIo) {
        if self.stop == Stop::Unasked {
            self.stop = Stop::Until(io.now_ns() + STOP_NS);
            self.arm(io);
        }
    }

    fn has_stopped(&mut self) -> bool {
        let is_over = self.failure.is_some() || self.session.lease.is_lost();
        let is_idle = || self.works.keys.is_empty() && !self.parts.has_removals() && !self.is_busy();
        match self.stop {
            Stop::Unasked => false,
            Stop::Until(_) => is_over || is_idle(),
            Stop::GivenUp => true,
        }
    }

    fn poll(&mut self, io: &mut dyn StoreIo) {
        self.partition.set_now(io.moment());
        self.take_changes();
        self.advance();
        self.arm(io);
    }

    fn on_completion(&mut self, io: &mut dyn StoreIo, ticket: Ticket, _: Completion) {
        if ticket == io.own(BELL) {
            self.flight.disarm();
            self.partition.set_now(io.moment());
            self.flight.collect().into_iter().for_each(|end| self.on_end(end));
        }
        self.poll(io);
    }

    fn on_timer(&mut self, io: &mut dyn StoreIo, ticket: Ticket) {
        if ticket == io.own(TICK) {
            self.is_ticking = false;
            self.works.ready.extend(self.works.refused.drain(..));
            // The timer may be that of an earlier namespace.
            let is_late = matches!(self.stop, Stop::Until(until_ns) if until_ns <= io.now_ns());
            if is_late && !self.has_stopped() {
                tracing::error!("changes of keys in a cluster not written before the time limit of the stop");
                self.stop = Stop::GivenUp;
            }
        }
        self.poll(io);
    }
}

#[cfg(test)]
impl ObjectPartition {
    /// What is readable when requests have ended.
    pub(super) fn bell_of_test(&self) -> &impl std::os::fd::AsFd {
        &self.flight.bell_of_test
    }
}

impl std::fmt::Debug for ObjectPartition {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ObjectPartition({})", self.session.place)
    }
}
