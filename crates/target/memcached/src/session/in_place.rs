//! Batches of a session on all partitions, which its thread uses where they lie.
//!
//! ```text
//! look-ups   in order, under shared locks of all their partitions ─▶ output ─▶ mark what was read
//! others     sorted by partition ─▶ each part under a lock of its own ─▶ answers, put in order ─▶ output
//! ```
//!
//! A batch is executed before the next one is decoded, so the commands of a session on one key keep their order.

use super::batch::{Entry, execute_first};
use super::{OUTPUT_BYTES_MAX, Session};
use crate::batch_scratch::{BatchAnswers, BatchScratch};
use crate::command::Command;
use crate::execute::{Executor, push_value_line};
use crate::gets::{Get, ITEMS_AHEAD, take_gets};
use crate::in_place::InPlace;
use crate::look_up::{LookUp, LookedUp};
use crate::protocol::decode::{GetPosition, next_get};
use crate::settings::COPIED_BYTES_MAX;
use kv::{KeyHash, Partition, Seen};

/// Batches of `get` keys under one lock of each partition: changes wait meanwhile.
const ROUND_COUNT: usize = 4;

/// Distance, in commands, between the prefetch of a bucket and its command. A partition is held meanwhile, so only the first
/// ones are waited for.
const BUCKETS_AHEAD: usize = 32;

/// How far the keys of a batch have been prefetched.
#[derive(Default)]
struct Prefetched {
    bucket_count: usize,
    item_count: usize,
}

/// What is prefetched of a key: first its bucket, then its item.
#[derive(Clone, Copy)]
enum Line {
    Bucket,
    Item,
}

impl Prefetched {
    /// Prefetches what is next before the command with number `at` of `count` is executed.
    #[inline(always)]
    fn ahead(&mut self, at: usize, count: usize, mut prefetch: impl FnMut(usize, Line)) {
        while self.bucket_count < count.min(at + BUCKETS_AHEAD) {
            prefetch(self.bucket_count, Line::Bucket);
            self.bucket_count += 1;
        }
        while self.item_count < count.min(at + ITEMS_AHEAD) {
            prefetch(self.item_count, Line::Item);
            self.item_count += 1;
        }
    }
}

/// Prefetches a line of a key.
#[inline(always)]
fn prefetch(partition: &Partition, hash: KeyHash, line: Line) {
    match line {
        Line::Bucket => partition.processor.prefetch(hash),
        Line::Item => partition.processor.prefetch_item(hash),
    }
}

impl Session {
    /// Takes `get` keys off the input and answers them, until the output is full or other threads are to have the
    /// partitions. Returns whether there was one.
    #[inline]
    pub(super) fn run_gets_in_place<'a>(
        &mut self,
        in_place: &mut InPlace<'_>,
        input: &mut &'a [u8],
        gets: &mut Vec<Get<'a>>,
    ) -> bool {
        let InPlace { access, service, now } = in_place;
        if service.watch.is_watched() {
            return false;
        }
        let Some(mut behind) = self.decoder.get_position() else { return false };
        let mut rest = *input;
        let Some((key, behind_first)) = next_get(&mut rest, behind) else { return false };
        if rest.is_empty() {
            // A single one.
            let (hash, command) = (access.hash(key), Command { key, ..Command::NONE });
            if let Some(look_up) = LookUp::of(&command) {
                self.look_up_alone(in_place, hash, &look_up);
            }
            if behind_first == GetPosition::Line {
                self.output.bytes_mut().extend_from_slice(b"END\r\n");
            }
            self.decoder.set_get_position(behind_first);
            *input = rest;
            return true;
        }
        let mut locks = access.read_locks(*now);
        let mut read: Vec<(KeyHash, &'a [u8])> = Vec::new();
        for _ in 0..ROUND_COUNT {
            let whole = *input;
            // As long as no partition is released, places found ahead stay valid.
            let taken = locks.release_count();
            let prefetch = |key: &[u8]| {
                let hash = access.hash(key);
                (hash, locks.get(access.partition_of(hash)).0.processor.prefetch_home(hash))
            };
            take_gets(prefetch, behind, input, gets);
            if gets.is_empty() {
                break;
            }
            let mut fetched = 0;
            for at in 0..gets.len() {
                let until = gets.len().min(at + ITEMS_AHEAD);
                for ahead in &mut gets[fetched..until] {
                    let (partition, release_count) = locks.get(access.partition_of(ahead.hash));
                    if release_count == taken {
                        ahead.place = partition.processor.prefetch_item_of(ahead.hash, ahead.home);
                    }
                }
                fetched = until;
                let Get { key, hash, place, .. } = gets[at];
                let number = access.partition_of(hash);
                let (partition, release_count) = locks.get(number);
                let place = place.filter(|_| release_count == taken);
                let out = self.output.bytes_mut();
                match partition.processor.see(hash, key, place) {
                    Seen::Whole { flags, value, is_touch_due, .. } if value.len() <= COPIED_BYTES_MAX => {
                        service.counters.get_count += 1;
                        service.counters.get_hit_count += 1;
                        push_value_line(out, key, flags, value.len(), None);
                        out.extend_from_slice(value);
                        out.extend_from_slice(b"\r\n");
                        if is_touch_due {
                            read.push((hash, key));
                        }
                    }
                    Seen::Absent => {
                        service.counters.get_count += 1;
                        service.counters.get_miss_count += 1;
                    }
                    Seen::Whole { .. } | Seen::Other => {
                        locks.release();
                        let command = Command { key, ..Command::NONE };
                        self.execute_alone(&mut InPlace { access, service, now: *now }, hash, &command);
                    }
                }
                behind = gets[at].behind;
                if behind == GetPosition::Line {
                    self.output.bytes_mut().extend_from_slice(b"END\r\n");
                }
                if self.is_full() {
                    *input = &whole[whole.len() - gets[at].left_bytes..];
                    break;
                }
            }
            self.decoder.set_get_position(behind);
            if self.is_full() {
                break;
            }
        }
        drop(locks);
        in_place.access.mark_read(in_place.now, &read);
        true
    }

    /// Looks up one key.
    fn look_up_alone(&mut self, in_place: &mut InPlace<'_>, hash: KeyHash, look_up: &LookUp<'_>) {
        let InPlace { access, service, now } = in_place;
        let partition = access.shared_at(access.partition_of(hash), *now);
        let looked_up = look_up.run(&partition, hash, service, self.output.bytes_mut());
        drop(partition);
        match looked_up {
            LookedUp::Answered { touch_due: None } => {}
            LookedUp::Answered { touch_due: Some(_) } => {
                access.mark_read(*now, &[(hash, look_up.command().key)]);
            }
            LookedUp::NotAnswered => self.execute_alone(in_place, hash, look_up.command()),
        }
    }

    /// Executes the look-ups of a batch in order, until the output is full: then returns the number of those that are done.
    fn run_look_ups(&mut self, in_place: &mut InPlace<'_>, entries: &[Entry<'_>]) -> Option<usize> {
        if let [Entry { hash: Some(hash), command, .. }] = entries
            && let Some(look_up) = LookUp::of(command)
        {
            self.look_up_alone(in_place, *hash, &look_up);
            return self.is_full().then_some(1);
        }
        let InPlace { access, service, now } = in_place;
        let mut locks = access.read_locks(*now);
        let mut read: Vec<(KeyHash, &[u8])> = Vec::new();
        let (mut prefetched, mut full_at) = (Prefetched::default(), None);
        for (at, entry) in entries.iter().enumerate() {
            prefetched.ahead(at, entries.len(), |at, line| {
                if let Some(hash) = entries[at].hash {
                    prefetch(locks.get(access.partition_of(hash)).0, hash, line);
                }
            });
            let (Some(hash), Some(look_up)) = (entry.hash, LookUp::of(&entry.command)) else {
                self.output.bytes_mut().extend_from_slice(entry.answer);
                continue;
            };
            if look_up.tells_use() && !read.is_empty() {
                locks.release();
                access.mark_read(*now, &read);
                read.clear();
            }
            let (partition, _) = locks.get(access.partition_of(hash));
            match look_up.run(partition, hash, service, self.output.bytes_mut()) {
                LookedUp::Answered { touch_due: None } => {}
                LookedUp::Answered { touch_due: Some(_) } => read.push((hash, entry.command.key)),
                LookedUp::NotAnswered => {
                    locks.release();
                    let mut in_place = InPlace { access, service, now: *now };
                    self.execute_alone(&mut in_place, hash, &entry.command);
                }
            }
            if self.is_full() {
                full_at = Some(at + 1);
                break;
            }
        }
        drop(locks);
        access.mark_read(*now, &read);
        full_at
    }

    /// Executes one command.
    fn execute_alone(&mut self, in_place: &mut InPlace<'_>, hash: KeyHash, command: &Command<'_>) {
        let (out, mut long) = (self.output.bytes_mut(), Vec::new());
        in_place.on(in_place.access.partition_of(hash), |mut executor| {
            executor.execute(hash, command, out);
            if !executor.service.long_values.is_empty() {
                long.extend(executor.take_long_values());
            }
        });
        if !long.is_empty() {
            self.output.insert(long.into_iter());
        }
    }

    /// Executes the commands of a batch, each part in its partition. If all are on one partition, stops when the output
    /// is full, and returns the number of those that are done.
    #[inline]
    pub(super) fn run_batch_in_place(
        &mut self,
        in_place: &mut InPlace<'_>,
        entries: &[Entry<'_>],
    ) -> Option<usize> {
        if entries.is_empty() {
            return None;
        }
        if !in_place.service.watch.is_watched() && entries.iter().all(is_look_up) {
            return self.run_look_ups(in_place, entries);
        }
        let InPlace { access, service, now } = in_place;
        let mut numbers = hashes(entries).map(|hash| access.partition_of(hash));
        if let Some(number) = numbers.next()
            && numbers.all(|other| other == number)
        {
            let mut guard = access.exclusive_at(number, *now);
            return self.run_on_one(service.on(&mut guard), entries);
        }
        let mut batch = std::mem::take(&mut service.batch);
        let BatchScratch { parts, answers } = &mut batch;
        answers.begin(entries.len());
        let (_, count) = access.position();
        parts.sort(count, entries.iter().map(|entry| Some(access.partition_of(entry.hash?))));
        let waiting = self.output.len();
        access.for_each_part(parts, *now, |partition, numbers| {
            run_part(&mut service.on(partition), entries, numbers, waiting, answers);
        });
        self.put_in_order(entries, answers);
        service.batch = batch;
        None
    }

    /// Executes the commands of a batch whose keys are all on one partition, until the output is full: then returns the
    /// number of those that are done.
    fn run_on_one(&mut self, mut executor: Executor<'_>, entries: &[Entry<'_>]) -> Option<usize> {
        let (mut at, mut prefetched) = (0, Prefetched::default());
        while let Some(entry) = entries.get(at) {
            if entries.len() > 1 {
                prefetched.ahead(at, entries.len(), |at, line| {
                    if let Some(hash) = entries[at].hash {
                        prefetch(executor.partition, hash, line);
                    }
                });
            }
            match entry.hash {
                None => {
                    self.output.bytes_mut().extend_from_slice(entry.answer);
                    at += 1;
                }
                Some(hash) => {
                    at += execute_first(&mut executor, hash, &entries[at..], self.output.bytes_mut());
                    if !executor.service.long_values.is_empty() {
                        self.output.insert(executor.take_long_values());
                    }
                }
            }
            if self.is_full() {
                return Some(at);
            }
        }
        None
    }

    /// Appends the answers to a batch in the order of its commands.
    fn put_in_order(&mut self, entries: &[Entry<'_>], answers: &mut BatchAnswers) {
        let BatchAnswers { bytes, ranges, long } = answers;
        long.sort_by_key(|(number, ..)| *number);
        let mut long = long.drain(..).peekable();
        for (number, (entry, &(start, end))) in entries.iter().zip(ranges.iter()).enumerate() {
            let out = self.output.bytes_mut();
            if entry.hash.is_none() {
                out.extend_from_slice(entry.answer);
                continue;
            }
            let before = out.len();
            out.extend_from_slice(&bytes[start..end]);
            while let Some((_, at, value)) = long.next_if(|(of, ..)| *of == number) {
                self.output.insert(std::iter::once((before + at, value)));
            }
        }
    }
}

/// The hashes of the keys of commands.
fn hashes<'e>(entries: &'e [Entry<'_>]) -> impl Iterator<Item = KeyHash> + 'e {
    entries.iter().filter_map(|entry| entry.hash)
}

/// Whether nothing is to be executed for an entry but a look-up.
#[inline]
fn is_look_up(entry: &Entry<'_>) -> bool {
    entry.hash.is_none() || LookUp::of(&entry.command).is_some()
}

/// Executes the commands of a batch that are on one partition, in order. `waiting` bytes of output are before them.
fn run_part(
    executor: &mut Executor<'_>,
    entries: &[Entry<'_>],
    numbers: &[u32],
    waiting: usize,
    BatchAnswers { bytes, ranges, long }: &mut BatchAnswers,
) {
    let hash_of = |number: u32| entries[number as usize].hash.expect("on a partition");
    let (mut at, mut prefetched) = (0, Prefetched::default());
    while let Some(&number) = numbers.get(at) {
        prefetched.ahead(at, numbers.len(), |at, line| {
            prefetch(executor.partition, hash_of(numbers[at]), line);
        });
        let (hash, number, start) = (hash_of(number), number as usize, bytes.len());
        if waiting + start > OUTPUT_BYTES_MAX {
            executor.execute_sparing(hash, &entries[number].command, bytes);
            at += 1;
        } else {
            at += execute_first(executor, hash, &entries[number..], bytes);
        }
        if !executor.service.long_values.is_empty() {
            long.extend(executor.take_long_values().map(|(at, value)| (number, at - start, value)));
        }
        ranges[number] = (start, bytes.len());
    }
}
