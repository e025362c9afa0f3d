//! Fetching values from the log.

use std::collections::VecDeque;

use super::{FetchError, Job, Loaded, Log, Notice, PIECE_BYTES, Segment, Work};
use crate::key::KeyHash;
use crate::pending::Pending;
use crate::processor::Processor;
use crate::record::{Checksum, HEAD_BYTES, Head, Kind, Location, RECORD_EXTRA_BYTES, TAIL_BYTES};
use crate::regions::Purpose;
use crate::stub::Stub;

/// The values that are wanted from the log.
#[derive(Debug, Default)]
pub(super) struct Fetches {
    table: FetchTable,
    /// Those that read next, in this order.
    pub(super) queue: VecDeque<u32>,
    /// Whether they wait for memory, until the next write or read of a fetch completes, or
    /// [`retry_fetches`](Log::retry_fetches).
    pub(super) await_memory: bool,
    /// Those that ended and that operations wait for.
    pub(super) loaded: VecDeque<Loaded>,
}

/// A value being fetched.
#[derive(Debug)]
struct Fetch {
    hash: KeyHash,
    key: Box<[u8]>,
    /// Whether it is to be rewritten.
    is_rewrite: bool,
    /// Whether an operation waits for it.
    is_wanted: bool,
    is_reading: bool,
    reading: Option<Reading>,
}

/// Progress of reading a value.
#[derive(Debug)]
struct Reading {
    stub: Stub,
    pending: Pending,
    /// Bytes of the value read from the record where it begins, once the rest of it is being read.
    begun_bytes: usize,
    /// Bytes of the present record processed.
    done: usize,
    checksum: Checksum,
    tail: [u8; TAIL_BYTES],
}

/// A record with a value, or with a part of it.
#[derive(Clone, Copy, Debug)]
struct Part {
    kind: Kind,
    location: Location,
    /// First byte in the file.
    offset: u64,
    /// The length of the value in its head.
    headed_bytes: usize,
    value_bytes: usize,
}

/// The fetches under way, by number.
#[derive(Debug, Default)]
struct FetchTable(Vec<Option<Fetch>>);

impl FetchTable {
    fn insert(&mut self, fetch: Fetch) -> u32 {
        let number = self.0.iter().position(Option::is_none).unwrap_or_else(|| {
            self.0.push(None);
            self.0.len() - 1
        });
        self.0[number] = Some(fetch);
        number as u32
    }

    fn all(&mut self) -> impl Iterator<Item = &mut Fetch> {
        self.0.iter_mut().flatten()
    }

    /// The fetch of this number.
    ///
    /// # Panics
    /// If it has ended, or never began.
    fn get(&self, number: u32) -> &Fetch {
        let fetch = self.0.get(number as usize).and_then(Option::as_ref);
        fetch.unwrap_or_else(|| not_under_way(number, self.0.len()))
    }

    fn get_mut(&mut self, number: u32) -> &mut Fetch {
        let count = self.0.len();
        let fetch = self.0.get_mut(number as usize).and_then(Option::as_mut);
        fetch.unwrap_or_else(|| not_under_way(number, count))
    }

    fn remove(&mut self, number: u32) -> Fetch {
        let count = self.0.len();
        let fetch = self.0.get_mut(number as usize).and_then(Option::take);
        fetch.unwrap_or_else(|| not_under_way(number, count))
    }
}

fn not_under_way(number: u32, count: usize) -> ! {
    panic!("fetch {number} of {count} is not under way")
}

impl Fetch {
    /// Takes its progress.
    ///
    /// # Panics
    /// If it has none.
    fn take_reading(&mut self, number: u32) -> Reading {
        self.reading.take().unwrap_or_else(|| panic!("fetch {number} has not begun to read"))
    }
}

impl Log {
    /// Requests the value of a key; [`next_loaded`](Self::next_loaded) reports it.
    pub fn fetch(&mut self, processor: &mut Processor, key: &[u8]) {
        let hash = processor.hash(key);
        self.queue_fetch(hash, key, false);
    }

    pub(super) fn fetch_for_rewrite(&mut self, processor: &mut Processor, hash: KeyHash, key: &[u8]) {
        if processor.pairs().stub(hash, key).is_some() {
            self.queue_fetch(hash, key, true);
        }
    }

    fn queue_fetch(&mut self, hash: KeyHash, key: &[u8], is_rewrite: bool) {
        let known = self.fetches.table.all().find(|fetch| *fetch.key == *key);
        if let Some(fetch) = known {
            self.cleaner.fetch_count += usize::from(is_rewrite && !fetch.is_rewrite);
            fetch.is_rewrite |= is_rewrite;
            fetch.is_wanted |= !is_rewrite;
            return;
        }
        self.cleaner.fetch_count += usize::from(is_rewrite);
        let fetch = Fetch {
            hash,
            key: key.into(),
            is_rewrite,
            is_wanted: !is_rewrite,
            is_reading: false,
            reading: None,
        };
        let number = self.fetches.table.insert(fetch);
        self.fetches.queue.push_back(number);
    }

    /// The next read of a fetch.
    pub(super) fn next_fetch(&mut self, processor: &mut Processor) -> Option<Work> {
        // A value that has arrived is used before another one takes its memory.
        if !self.fetches.loaded.is_empty() {
            return None;
        }
        while let Some(&number) = self.fetches.queue.front() {
            if self.fetches.await_memory {
                return None;
            }
            let is_reading = self.fetches.table.all().any(|fetch| fetch.is_reading);
            let fetch = self.fetches.table.get_mut(number);
            if fetch.reading.is_none() {
                let stub = processor.pairs().stub(fetch.hash, &fetch.key);
                let Some(stub) = stub.filter(|stub| !stub.is_lost()) else {
                    let is_lost = stub.is_some() || processor.is_hidden(fetch.hash, &fetch.key);
                    let result = if is_lost { Err(FetchError::Damaged) } else { Ok(()) };
                    self.fetches.queue.pop_front();
                    self.end_fetch(processor, number, result);
                    continue;
                };
                let Some(pending) = processor.writer.begin_fetched(
                    &fetch.key,
                    stub.value_bytes,
                    stub.attributes,
                    Purpose::Fetches,
                ) else {
                    self.fetches.await_memory = true;
                    // A value can leave memory once it is written, was fetched, or is not sent any more. Without
                    // the changes written, segments that are short could not be cleaned.
                    let changes = processor.pairs_mut().changes();
                    self.groups.wants_changes |= changes.due_change().is_some();
                    let is_writing = self.flight.is_some() || self.head.stream.is_some() || changes.has_due();
                    if is_reading || is_writing || processor.pairs().heap.is_any_held() {
                        return None;
                    }
                    debug_assert!(processor.is_resizing(), "no memory for a value of {}", stub.value_bytes);
                    if !fetch.is_rewrite {
                        self.fetches.queue.pop_front();
                        self.end_fetch(processor, number, Err(FetchError::NoMemory));
                    } else if std::mem::take(&mut fetch.is_wanted) {
                        let (key, result) = (fetch.key.clone(), Err(FetchError::NoMemory));
                        self.fetches.loaded.push_back(Loaded { key, result });
                    }
                    return None;
                };
                let (checksum, tail) = (Checksum::behind(&[0; HEAD_BYTES]), [0; TAIL_BYTES]);
                let begun_bytes = 0;
                fetch.reading = Some(Reading { stub, pending, begun_bytes, done: 0, checksum, tail });
            }
            let fetch = self.fetches.table.get(number);
            let reading = fetch.reading.as_ref().expect("just begun");
            let Some(part) = self.part_of(fetch.key.len(), reading) else {
                // Its segment has been freed since, or the rest was not found at the start.
                self.fetches.queue.pop_front();
                self.fail_fetch(processor, number, FetchError::Damaged);
                continue;
            };
            let record_bytes = RECORD_EXTRA_BYTES + fetch.key.len() + part.value_bytes;
            let block_bytes = self.settings.block_bytes;
            let from = part.offset + reading.done as u64;
            let offset = from / block_bytes * block_bytes;
            let end = (part.offset + record_bytes as u64).next_multiple_of(block_bytes);
            let length = usize::try_from(end - offset).unwrap_or(usize::MAX).min(PIECE_BYTES);
            self.fetches.table.get_mut(number).is_reading = true;
            self.counters.fetch_count += 1;
            self.fetches.queue.pop_front();
            return Some(Work::Read { job: Job::Fetch(number), offset, length });
        }
        None
    }

    pub(super) fn on_fetched(&mut self, processor: &mut Processor, number: u32, bytes: Option<&[u8]>) {
        self.fetches.await_memory = false;
        let fetch = self.fetches.table.get_mut(number);
        fetch.is_reading = false;
        let mut reading = fetch.take_reading(number);
        let fetch = self.fetches.table.get(number);
        let part = self.part_of(fetch.key.len(), &reading);
        let is_good = match (bytes, &part) {
            (Some(bytes), Some(part)) => {
                let skip = ((part.offset + reading.done as u64) % self.settings.block_bytes) as usize;
                reading.on_bytes(processor, &fetch.key, part, &bytes[skip..])
            }
            _ => false,
        };
        let value_bytes = part.map_or(0, |part| part.value_bytes);
        let is_read = is_good && reading.done == RECORD_EXTRA_BYTES + fetch.key.len() + value_bytes;
        let is_sound = is_good && (!is_read || reading.tail == reading.checksum.finish().to_le_bytes());
        let is_whole = is_read && reading.begun_bytes + value_bytes == reading.stub.value_bytes;
        if is_sound && is_whole {
            processor.writer.load(fetch.hash, &fetch.key, reading.stub.log_offset, reading.pending);
            return self.end_fetch(processor, number, Ok(()));
        }
        if is_sound && is_read {
            (reading.begun_bytes, reading.done) = (value_bytes, 0);
        }
        self.fetches.table.get_mut(number).reading = Some(reading);
        if is_sound {
            return self.fetches.queue.push_front(number);
        }
        let error = if bytes.is_some() { FetchError::Damaged } else { FetchError::Unreadable };
        self.fail_fetch(processor, number, error);
    }

    /// The record that a fetch reads; `None` if its segment was freed, or the rest of its value was never found.
    fn part_of(&self, key_bytes: usize, reading: &Reading) -> Option<Part> {
        let Stub { log_offset, value_bytes, .. } = reading.stub;
        let (segment, position) = self.segment_at(log_offset)?;
        let Segment { run, generation, .. } = segment;
        let room_bytes = self.settings.segment_bytes - position;
        if reading.begun_bytes == 0 {
            let extra_bytes = RECORD_EXTRA_BYTES + key_bytes;
            let is_whole = (extra_bytes + value_bytes) as u64 <= room_bytes;
            let kind = if is_whole { Kind::Pair } else { Kind::Begun };
            let part_bytes = value_bytes.min((room_bytes as usize).checked_sub(extra_bytes)?);
            let location = Location { run, generation, position };
            let headed_bytes = value_bytes;
            return Some(Part { kind, location, offset: log_offset, headed_bytes, value_bytes: part_bytes });
        }
        let next = self.segments.iter().find(|next| next.generation == generation + 1 && next.rest_at > 0)?;
        let location = Location { run: next.run, generation: next.generation, position: next.rest_at };
        let rest_bytes = value_bytes - reading.begun_bytes;
        let offset = self.slot_start(next.slot) + next.rest_at;
        Some(Part { kind: Kind::Rest, location, offset, headed_bytes: rest_bytes, value_bytes: rest_bytes })
    }

    /// A value cannot be read, unless the pair has changed since, or its record has moved.
    fn fail_fetch(&mut self, processor: &mut Processor, number: u32, error: FetchError) {
        let fetch = self.fetches.table.get_mut(number);
        let reading = fetch.take_reading(number);
        processor.writer.abandon(reading.pending);
        let now = processor.pairs().stub(fetch.hash, &fetch.key);
        if now.is_some_and(|stub| stub.log_offset != reading.stub.log_offset) {
            return self.fetches.queue.push_back(number);
        }
        let result = if now.is_none() { Ok(()) } else { Err(error) };
        self.end_fetch(processor, number, result);
    }

    fn end_fetch(&mut self, processor: &mut Processor, number: u32, result: Result<(), FetchError>) {
        let fetch = self.fetches.table.remove(number);
        if fetch.is_rewrite {
            self.cleaner.fetch_count -= 1;
            match result {
                Ok(()) => {
                    let pairs = processor.pairs_mut();
                    match pairs.item(fetch.hash, &fetch.key) {
                        Some(item) => pairs.rewrite(fetch.hash, &fetch.key, item),
                        None => self.await_change(processor, fetch.hash),
                    }
                }
                // The segment is freed: from now on a record says that the value is lost.
                Err(FetchError::Damaged) => {
                    let pairs = processor.pairs_mut();
                    let offset = pairs.stub(fetch.hash, &fetch.key).map(|stub| stub.log_offset);
                    pairs.lose(fetch.hash, &fetch.key);
                    pairs.changes().request_rewrite(fetch.hash, &fetch.key, fetch.key.len());
                    if offset.is_none_or(|offset| !self.findings.lost_offsets.remove(&offset)) {
                        self.counters.lost_key_count += 1;
                        self.notice(Notice::LostKey { key: fetch.key.clone() });
                    }
                }
                // Its segment must not be freed.
                Err(_) => self.fail(super::Failure::Unreadable),
            }
        }
        if fetch.is_wanted {
            self.fetches.loaded.push_back(Loaded { key: fetch.key, result });
        }
    }
}

impl Reading {
    /// Processes the next bytes of the record. Returns whether they match the written ones.
    fn on_bytes(&mut self, processor: &mut Processor, key: &[u8], part: &Part, mut bytes: &[u8]) -> bool {
        let value_at = HEAD_BYTES + key.len();
        if self.done == 0 {
            let Some(mut first) = bytes.get(..value_at) else { return false };
            let (mut head, mut corrected) = (Head::read(first, part.location), Vec::new());
            if head.is_none() {
                // A wrong bit was corrected when the record was read at the start.
                corrected.extend_from_slice(first);
                head = Head::correct(&mut corrected, part.location);
                first = &corrected;
            }
            let is_it = head.is_some_and(|head| {
                (head.kind, head.value_bytes, head.cas) == (part.kind, part.headed_bytes, self.stub.cas)
            });
            if !is_it || first[HEAD_BYTES..] != *key {
                return false;
            }
            self.checksum = Checksum::behind(first);
            self.done = value_at;
            bytes = &bytes[value_at..];
        }
        let tail_at = value_at + part.value_bytes;
        let value = &bytes[..tail_at.saturating_sub(self.done).min(bytes.len())];
        if !value.is_empty() {
            self.checksum.update(value);
            let at = self.begun_bytes + self.done - value_at;
            self.pending.fill(&mut processor.pairs_mut().heap, at, value);
            self.done += value.len();
        }
        for &byte in bytes[value.len()..].iter().take(tail_at + TAIL_BYTES - self.done) {
            self.tail[self.done - tail_at] = byte;
            self.done += 1;
        }
        true
    }
}
