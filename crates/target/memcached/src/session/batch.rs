//! Batches of a session: commands are decoded while their buckets and items are fetched, and executed in order.

use super::{Progress, Session};
use crate::binary_response as response;
use crate::command::Command;
use crate::execute::{Addition, Executor};
use crate::gets::{BATCH, Get, ITEMS_AHEAD, prefetch_bucket, prefetch_items, take_gets};
use crate::incoming::Incoming;
use crate::protocol::decode::{Decoder, GetPosition};
use crate::protocol::decoded::Decoded;
use crate::router::Router;
use kv::{Home, KEY_BYTES_MAX, KeyHash};

/// Commands that are executed together where partitions are used in place: a lock is taken for each part of them. Each may
/// leave 4 KiB in the output beyond its limit.
const BATCH_IN_PLACE: usize = 128;

/// An entry of a batch: a command, or an answer that needs none.
#[derive(Clone, Copy)]
pub(super) struct Entry<'a> {
    pub(super) command: Command<'a>,
    /// Hash of the command's key; `None` if there is nothing to execute.
    pub(super) hash: Option<KeyHash>,
    home: Home,
    /// The answer, if there is nothing to execute.
    pub(super) answer: &'static [u8],
}

impl Entry<'_> {
    const NONE: Entry<'static> = Entry { command: Command::NONE, hash: None, home: Home::NONE, answer: &[] };
}

impl Session {
    /// Takes `get` keys off the input and answers them, until the output is full. Returns whether there was one.
    #[inline]
    fn run_gets<'a>(
        &mut self,
        router: &mut impl Router,
        input: &mut &'a [u8],
        gets: &mut Vec<Get<'a>>,
    ) -> bool {
        let executor = router.executor();
        let processor = &executor.partition.processor;
        if processor.has_log() || executor.service.watch.is_watched() {
            return false;
        }
        let Some(mut behind) = self.decoder.get_position() else { return false };
        let whole = *input;
        take_gets(|key| prefetch_bucket(processor, key), behind, input, gets);
        if gets.is_empty() {
            return false;
        }
        let removed = processor.removed_count();
        let (own, count) = router.position();
        // As long as nothing is removed, places found ahead stay valid.
        let (mut fetched, mut has_removed) = (0, false);
        for at in 0..gets.len() {
            let until = gets.len().min(at + ITEMS_AHEAD);
            prefetch_items(&router.executor().partition.processor, &mut gets[fetched..until]);
            fetched = until;
            let get = &gets[at];
            let (key, hash) = (get.key, get.hash);
            let partition = if count == 1 { own } else { hash.partition(count) };
            if partition == own {
                let mut executor = router.executor();
                let place = if has_removed { None } else { get.place };
                let sink = self.sink();
                if !executor.get_prefetched(hash, key, place, sink.bytes_mut()) {
                    has_removed = executor.partition.processor.removed_count() != removed;
                }
                if !executor.service.long_values.is_empty() {
                    sink.insert(executor.take_long_values());
                }
            } else {
                let command = Command { key, ..Command::NONE };
                let id = self.push_awaited(0, &command.verb);
                router.send(partition, id, hash, &command);
            }
            behind = get.behind;
            if behind == GetPosition::Line {
                self.sink().bytes_mut().extend_from_slice(b"END\r\n");
            }
            if self.is_full() {
                *input = &whole[whole.len() - get.left_bytes..];
                break;
            }
        }
        self.decoder.set_get_position(behind);
        true
    }

    /// Decodes input in batches, and executes them until the input is used up or must wait.
    pub(super) fn process(&mut self, router: &mut impl Router, input: &mut &[u8]) -> Progress {
        // Room for as many commands as the input may hold, unless they are very short.
        let count_max = (input.len() / 16 + 1).min(BATCH);
        let (mut gets, mut batch): (Vec<Get<'_>>, Vec<Entry<'_>>) = (Vec::new(), Vec::new());
        self.needed_bytes = 0;
        loop {
            if self.dump.is_some() {
                return self.request_dump(router);
            }
            if self.watching.is_some() {
                *input = &[];
                return Progress::Open;
            }
            if self.is_full() {
                return Progress::Stalled;
            }
            if self.incoming.is_some()
                && let Some(progress) = self.receive_value(router, input)
            {
                return progress;
            }
            if input.is_empty() {
                return Progress::Open;
            }
            let before;
            let (length, other);
            let done;
            if let Some(mut in_place) = router.in_place() {
                // What was sent to partitions comes before all commands behind it.
                if !self.queue.is_empty() {
                    return Progress::Stalled;
                }
                if self.run_gets_in_place(&mut in_place, input, &mut gets) {
                    continue;
                }
                before = (self.decoder, *input);
                let hash = |key: &[u8]| (in_place.access.hash(key), Home::NONE);
                (length, other) = decode_batch(&mut self.decoder, hash, BATCH_IN_PLACE, input, &mut batch);
                done = self.run_batch_in_place(&mut in_place, &batch[..length]);
            } else {
                if self.run_gets(router, input, &mut gets) {
                    continue;
                }
                if batch.is_empty() {
                    batch.reserve(count_max);
                }
                before = (self.decoder, *input);
                let processor = &router.executor().partition.processor;
                let hash = |key: &[u8]| prefetch_bucket(processor, key);
                (length, other) = decode_batch(&mut self.decoder, hash, BATCH, input, &mut batch);
                done = self.run_batch(router, &batch[..length]);
            }
            if let Some(done) = done {
                // Commands decoded after these will be decoded again.
                (self.decoder, *input) = before;
                for _ in 0..done {
                    self.decoder.next(input, &mut { Command::NONE });
                }
                return Progress::Stalled;
            }
            if let Some(decoded) = other
                && let Some(progress) = self.on_end_of_batch(router, input, &decoded, &batch[length].command)
            {
                return progress;
            }
        }
    }

    /// Executes the commands of a batch, or sends them to the partitions of their keys, until the output is full: then
    /// returns the number of those that are done.
    #[inline]
    fn run_batch(&mut self, router: &mut impl Router, entries: &[Entry<'_>]) -> Option<usize> {
        let position = router.position();
        let (mut at, mut fetched) = (0, 0);
        while let Some(entry) = entries.get(at) {
            while fetched < entries.len().min(at + ITEMS_AHEAD) {
                let Entry { hash, home, .. } = entries[fetched];
                if let Some(hash) = hash
                    && (fetched == 0 || entries[fetched - 1].hash != Some(hash))
                {
                    router.executor().partition.processor.prefetch_item_of(hash, home);
                }
                fetched += 1;
            }
            match entry.hash {
                None => {
                    self.sink().bytes_mut().extend_from_slice(entry.answer);
                    at += 1;
                }
                Some(hash) => at += self.run_command(router, position, hash, &entries[at..]),
            }
            if self.is_full() {
                return Some(at);
            }
        }
        None
    }

    /// Executes the first of these commands, with those behind it that can be executed as one, or sends it to the
    /// partition of its key. Returns how many are done.
    #[inline]
    fn run_command(
        &mut self,
        router: &mut impl Router,
        (own, count): (usize, usize),
        hash: KeyHash,
        entries: &[Entry<'_>],
    ) -> usize {
        let command = &entries[0].command;
        let partition = if count == 1 { own } else { hash.partition(count) };
        if partition != own || !self.is_immediate(router, hash, command) {
            let id = self.push_awaited(command.value.len(), &command.verb);
            if partition == own {
                self.last_by_message = Some(id);
            }
            router.send(partition, id, hash, command);
            return 1;
        }
        Self::count_need(router, hash, command.key);
        let mut executor = router.executor();
        let sink = self.sink();
        let done = execute_first(&mut executor, hash, entries, sink.bytes_mut());
        if !executor.service.long_values.is_empty() {
            sink.insert(executor.take_long_values());
        }
        done
    }

    /// Acts on what was decoded behind a batch; `command` is the one that was being decoded. Returns the progress if
    /// nothing more is decoded now.
    fn on_end_of_batch(
        &mut self,
        router: &mut impl Router,
        input: &mut &[u8],
        decoded: &Decoded<'_>,
        command: &Command<'_>,
    ) -> Option<Progress> {
        match *decoded {
            Decoded::More(needed_bytes) => {
                self.needed_bytes = needed_bytes;
                return Some(Progress::Open);
            }
            Decoded::Close | Decoded::Quit | Decoded::BinaryQuit(_) => {
                self.is_broken = matches!(decoded, Decoded::Close);
                if let Decoded::BinaryQuit(header) = *decoded {
                    let sink = self.sink().bytes_mut();
                    response::respond(sink, header, response::SUCCESS, &[], &[], &[], 0);
                }
                self.is_closing = true;
                *input = &[];
                return Some(Progress::Close);
            }
            Decoded::Large { length, has_line_end } => {
                let (own, count) = router.position();
                let stored_key = &mut [0; KEY_BYTES_MAX];
                let hash = router.executor().partition.processor.hash(command.stored_key(stored_key));
                let partition = if count == 1 { own } else { hash.partition(count) };
                let line_end_bytes = if has_line_end { 2 } else { 0 };
                self.incoming =
                    Some(Box::new(Incoming::new(command, hash, partition, length, line_end_bytes)));
            }
            _ => self.on_other(router, decoded),
        }
        None
    }
}

/// Executes the first of these commands, with those behind it that can be executed as one. Returns their number.
#[inline]
pub(super) fn execute_first(
    executor: &mut Executor<'_>,
    hash: KeyHash,
    entries: &[Entry<'_>],
    out: &mut Vec<u8>,
) -> usize {
    let command = &entries[0].command;
    if Addition::of(command).is_some() && !executor.service.watch.is_watched() {
        return add_all(executor.reborrow(), hash, entries, out);
    }
    executor.execute(hash, command, out);
    1
}

/// Executes an addition, the first of `entries`, together with those directly after it that add to the same counter.
/// Returns their number.
#[inline(never)]
fn add_all(mut executor: Executor<'_>, hash: KeyHash, entries: &[Entry<'_>], out: &mut Vec<u8>) -> usize {
    let Some(first) = entries.first() else { return 0 };
    let key = first.command.key;
    let same = entries.iter().take_while(|entry| entry.hash == Some(hash) && entry.command.key == key);
    executor.add_all(hash, key, same.map_while(|entry| Addition::of(&entry.command)), out)
}

/// Decodes up to `count_max` commands into `batch`. `hash` hashes their keys, and prefetches the buckets. Returns their
/// number, and what was decoded behind them, if that is something else.
#[inline]
fn decode_batch<'a>(
    decoder: &mut Decoder,
    mut hash: impl FnMut(&[u8]) -> (KeyHash, Home),
    count_max: usize,
    input: &mut &'a [u8],
    batch: &mut Vec<Entry<'a>>,
) -> (usize, Option<Decoded<'a>>) {
    let mut length = 0;
    while length < count_max {
        if length == batch.len() {
            batch.push(Entry::NONE);
        }
        let entry = &mut batch[length];
        if decoder.next_key(input, &mut entry.command) {
            let (hash, home) = hash(entry.command.key);
            (entry.hash, entry.home) = (Some(hash), home);
            length += 1;
            continue;
        }
        match decoder.next(input, &mut entry.command) {
            Decoded::Command => {
                let command = &entry.command;
                let (hash, home) = if command.is_base64 {
                    hash(command.stored_key(&mut [0; KEY_BYTES_MAX]))
                } else {
                    hash(command.key)
                };
                (entry.hash, entry.home) = (Some(hash), home);
            }
            Decoded::Answer(answer) => (entry.hash, entry.answer) = (None, answer),
            decoded => return (length, Some(decoded)),
        }
        length += 1;
    }
    (length, None)
}
