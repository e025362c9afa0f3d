//! One connection: bytes in, batches of commands, answers out in order.
//!
//! ```text
//! on_bytes ─▶ decode up to 64 commands ─▶ prefetch their buckets, then their items ─▶ execute ─▶ output
//!                                                    │ of another partition
//!                                                    └─▶ Router::send … on_reply ─▶ inserted in order
//! ```
//!
//! Inputs are `on_*`, queries are nouns. The driver sends [`output`](Session::output) and reports bytes with
//! [`on_sent`](Session::on_sent).

mod watching;

use std::collections::VecDeque;

use memory::{CHUNK_BYTES, Chunk};

use crate::answer::AnswerId;
use crate::authentication::{Authentication, Outcome};
use crate::binary_response as response;
use crate::collecting::{AllRequest, Collecting, limit_refusal, push_collected};
use crate::collective::CollectiveRequest;
use crate::command::{Command, Mode, Verb};
use crate::connection_stats::ConnectionStats;
use crate::counters::PartitionStats;
use crate::dump::Dump;
use crate::execute::{Addition, Executor};
use crate::gets::{BATCH, Get, ITEMS_AHEAD, prefetch_items, take_gets};
use crate::incoming::Incoming;
use crate::output::Output;
use crate::protocol::binary;
use crate::protocol::decode::{Decoder, GetPosition, bad_chunk};
use crate::protocol::decoded::Decoded;
use crate::refusal::{Refusal, RefusalForm};
use crate::router::Router;
use crate::settings::{ListenerSettings, PIECE_BYTES};
use crate::stats::VERSION;
use crate::watch::Watching;
use kv::{Home, KEY_BYTES_MAX, KeyHash, Processor};

/// Output limit, bytes: with more, execution stops until some of it is sent. Awaited answers of other partitions count
/// with their expected length.
const OUTPUT_BYTES_MAX: usize = 256 * 1024;
/// Minimum expected length of an awaited answer, bytes; it bounds their number.
const AWAITED_BYTES_MIN: usize = OUTPUT_BYTES_MAX / 64 + 1;
/// Expected length of an answer before any has arrived, bytes.
const AWAITED_BYTES_FIRST: usize = OUTPUT_BYTES_MAX / 16;
/// Limit on output plus a value of less than a mebibyte, bytes: above it, an arriving value waits for its buffer.
const SHORT_BYTES_MAX: usize = CHUNK_BYTES - 128 * 1024;
/// The answer to a dump while another session has one.
const DUMP_BUSY: &[u8] = b"BUSY currently processing crawler request\r\n";
/// Limit on queued answers behind an awaited one: with more, execution stops as well.
const QUEUE_COUNT_MAX: usize = 4096;

/// State of a session after input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// It accepts more bytes.
    Open,
    /// The output limit is reached: read no more from the peer, and call [`Session::resume`] once some output is sent.
    Stalled,
    /// To be closed once the output is sent.
    Close,
}

/// An answer that cannot be sent yet because of its position.
enum QueuedAnswer {
    Bytes(Output),
    /// Awaited from another partition.
    Awaited {
        expected_bytes: usize,
        refusal_form: RefusalForm,
    },
    /// Awaited from all other partitions.
    Collecting(Box<Collecting>),
}

/// One connection.
pub struct Session {
    decoder: Decoder,
    /// Until the client has authenticated, where it has to.
    authentication: Option<Box<Authentication>>,
    /// Input that is no whole command yet, or must wait.
    backlog: Vec<u8>,
    /// Length of the backlog below which decoding is pointless.
    needed_bytes: usize,
    output: Output,
    /// Whether it is a watcher: it answers no more commands.
    watching: Option<Watching>,
    /// Whether it ends because of the client's input.
    is_broken: bool,
    /// A dump under way: no command after it is executed until its end.
    dump: Option<Box<Dump>>,
    /// A long value that is arriving.
    incoming: Option<Box<Incoming>>,
    /// Answers from the first awaited one on.
    queue: VecDeque<QueuedAnswer>,
    /// Id of the first of them.
    first_id: AnswerId,
    /// Buffered answer bytes (except the last, which may grow) plus expected bytes of awaited answers.
    queued_bytes: usize,
    /// Expected length of the next awaited answer, bytes.
    expected_bytes: usize,
    /// The last answer that is sent, where the connection ends before those behind it.
    last_id: Option<AnswerId>,
    /// Id of the last command routed to the local partition by message. Until it is answered, later ones take the same
    /// path, to keep their order.
    last_by_message: Option<AnswerId>,
    is_closing: bool,
}

/// An entry of a batch: a command, or an answer that needs none.
#[derive(Clone, Copy)]
struct Entry<'a> {
    command: Command<'a>,
    /// Hash of the command's key; `None` if there is nothing to execute.
    hash: Option<KeyHash>,
    home: Home,
    /// The answer, if there is nothing to execute.
    answer: &'static [u8],
}

impl Entry<'_> {
    const NONE: Entry<'static> = Entry { command: Command::NONE, hash: None, home: Home::NONE, answer: &[] };
}

impl Session {
    /// The session of a new connection.
    #[must_use]
    pub fn new(settings: ListenerSettings) -> Self {
        Self {
            decoder: Decoder::new(settings),
            authentication: None,
            backlog: Vec::new(),
            needed_bytes: 0,
            output: Output::default(),
            watching: None,
            is_broken: false,
            dump: None,
            incoming: None,
            queue: VecDeque::new(),
            first_id: 0,
            queued_bytes: 0,
            expected_bytes: AWAITED_BYTES_FIRST,
            last_id: None,
            last_by_message: None,
            is_closing: false,
        }
    }

    /// The session of a new connection whose client has to authenticate first, and uses text only.
    #[must_use]
    pub fn authenticating(settings: ListenerSettings) -> Self {
        Self {
            decoder: Decoder::of_text(settings),
            authentication: Some(Box::new(Authentication::new())),
            ..Self::new(settings)
        }
    }

    /// Whether its client has not authenticated, and has to.
    #[must_use]
    pub fn is_unauthenticated(&self) -> bool {
        self.authentication.is_some()
    }

    /// The first contiguous bytes to send; empty if there are none.
    #[must_use]
    pub fn output(&self) -> &[u8] {
        self.output.pieces().next().unwrap_or_default()
    }

    /// Bytes to send, in order.
    pub fn pieces(&self) -> impl Iterator<Item = &[u8]> {
        self.output.pieces()
    }

    /// Whether answers of other partitions, or pieces of them, are awaited.
    #[must_use]
    pub fn is_awaiting(&self) -> bool {
        !self.queue.is_empty() || self.output.has_long()
    }

    /// Whether a command is only partly received.
    #[must_use]
    pub fn is_within_command(&self) -> bool {
        !self.backlog.is_empty()
            || self.incoming.is_some()
            || self.authentication.as_ref().is_some_and(|waits| waits.is_within_command())
    }

    /// Whether the output limit stops execution.
    #[inline]
    #[must_use]
    pub fn is_full(&self) -> bool {
        if self.queue.is_empty() {
            return self.output.len() > OUTPUT_BYTES_MAX;
        }
        self.waiting_bytes() > OUTPUT_BYTES_MAX || self.queue.len() > QUEUE_COUNT_MAX
    }

    /// Bytes to send, now and later.
    #[inline]
    fn waiting_bytes(&self) -> usize {
        self.output.len() + self.queued_bytes + self.last_bytes()
    }

    /// Whether a stalled session can resume.
    #[must_use]
    pub fn can_resume(&self) -> bool {
        !self.is_full()
            && !self.lacks_buffer()
            && self.dump.as_ref().is_none_or(|dump| dump.awaited.is_none() && self.output.is_empty())
    }

    /// Whether an arriving value must wait for its buffer, so that the session holds no more than a mebibyte.
    fn lacks_buffer(&self) -> bool {
        let wanted = self.incoming.as_ref().map_or(0, |incoming| incoming.short_bytes_wanted());
        let waiting = self.waiting_bytes();
        wanted > 0 && waiting > 0 && wanted + waiting > SHORT_BYTES_MAX
    }

    /// Whether a long value is being sent: call [`fetch`](Self::fetch) before reading the output.
    #[inline]
    #[must_use]
    pub fn has_long(&self) -> bool {
        self.output.has_long()
    }

    /// Requests the next piece of a long value, if that is next. `false` if the value is gone, and the connection must
    /// be closed.
    pub fn fetch(&mut self, router: &mut impl Router) -> bool {
        let Some((kept, offset)) = self.output.wanted() else { return true };
        let (own, count) = router.position();
        let partition = if count == 1 { own } else { kept.partition(count) };
        if partition != own {
            router.fetch(partition, kept, offset);
            return true;
        }
        let piece = router.executor().partition.processor.piece(&kept, offset, PIECE_BYTES);
        piece.is_some_and(|piece| self.on_piece(piece))
    }

    /// Handles a fetched piece. `false` if there is none, and the connection must be closed.
    pub fn on_piece(&mut self, piece: Vec<u8>) -> bool {
        let is_there = !piece.is_empty();
        self.output.on_piece(piece);
        is_there
    }

    /// Accounts for `count` sent bytes of the output.
    pub fn on_sent(&mut self, count: usize) {
        self.output.on_sent(count);
        if let Some(watching) = &self.watching {
            watching.on_sent(count);
        }
        if self.output.is_empty() {
            self.output.shrink_to(OUTPUT_BYTES_MAX);
        }
    }

    /// Whether the connection ends because of the client's input.
    #[must_use]
    pub fn is_broken(&self) -> bool {
        self.is_broken
    }

    /// Frees memory that an idle connection does not need.
    pub fn shrink(&mut self) {
        if self.output.is_empty() {
            self.output = Output::default();
        }
        self.backlog.shrink_to_fit();
        self.queue.shrink_to_fit();
    }

    /// Handles received bytes.
    pub fn on_bytes(&mut self, router: &mut impl Router, input: &[u8]) -> Progress {
        if self.is_closing {
            return Progress::Close;
        }
        let mut input = input;
        if self.authentication.is_some()
            && let Some(progress) = self.authenticate(router, &mut input)
        {
            return progress;
        }
        if self.backlog.is_empty() {
            let mut rest = input;
            let progress = self.process(router, &mut rest);
            self.backlog.extend_from_slice(rest);
            return progress;
        }
        self.backlog.extend_from_slice(input);
        self.resume(router)
    }

    /// Passes input to the authentication. `None` once the client has authenticated, with its commands left in `input`.
    #[cold]
    fn authenticate(&mut self, router: &mut impl Router, input: &mut &[u8]) -> Option<Progress> {
        let mut authentication = self.authentication.take()?;
        let is_known = |user: &[u8], password: &[u8]| router.authenticate(user, password);
        let outcome = authentication.on_bytes(input, self.output.bytes_mut(), is_known);
        match outcome {
            Outcome::Authenticated => return None,
            Outcome::More => {}
            Outcome::Close => {
                self.is_broken = true;
                self.is_closing = true;
            }
        }
        self.authentication = Some(authentication);
        Some(if self.is_closing { Progress::Close } else { Progress::Open })
    }

    /// Whether input can be answered although no pair can be reached: the connection is to be closed at any other.
    #[must_use]
    pub fn needs_no_pairs(&self, input: &[u8]) -> bool {
        let is_general = |line: &[u8]| {
            let mut words = line.trim_ascii().split(|byte| *byte == b' ').filter(|word| !word.is_empty());
            let verb = words.next().unwrap_or_default();
            line.is_empty()
                || [&b"version"[..], b"stats", b"quit", b"mn"].contains(&verb)
                    && words.next() != Some(b"cachedump")
        };
        !self.is_within_command() && input.split(|byte| *byte == b'\n').all(is_general)
    }

    /// Ends the session with an answer behind all others.
    pub fn refuse(&mut self, answer: &[u8]) {
        if !std::mem::replace(&mut self.is_closing, true) {
            self.sink().bytes_mut().extend_from_slice(answer);
        }
    }

    /// Continues with input that had to wait.
    pub fn resume(&mut self, router: &mut impl Router) -> Progress {
        if self.is_closing {
            return Progress::Close;
        }
        if self.dump.is_some() {
            return self.request_dump(router);
        }
        if self.backlog.is_empty() || self.backlog.len() < self.needed_bytes {
            return if self.can_resume() { Progress::Open } else { Progress::Stalled };
        }
        let backlog = std::mem::take(&mut self.backlog);
        let mut rest = &backlog[..];
        let progress = self.process(router, &mut rest);
        let used = backlog.len() - rest.len();
        self.backlog = backlog;
        self.backlog.drain(..used);
        if self.backlog.is_empty() {
            self.backlog.shrink_to(4096);
        }
        progress
    }

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
        take_gets(processor, behind, input, gets);
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

    fn process(&mut self, router: &mut impl Router, input: &mut &[u8]) -> Progress {
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
            if self.run_gets(router, input, &mut gets) {
                continue;
            }
            if batch.is_empty() {
                batch.reserve(count_max);
            }
            let before = (self.decoder, *input);
            let processor = &router.executor().partition.processor;
            let (length, other) = decode_batch(&mut self.decoder, processor, input, &mut batch);
            let (entries, behind) = batch.split_at(length);
            if let Some(done) = self.run_batch(router, entries) {
                // Commands decoded after these will be decoded again.
                (self.decoder, *input) = before;
                for _ in 0..done {
                    self.decoder.next(input, &mut { Command::NONE });
                }
                return Progress::Stalled;
            }
            if let Some(decoded) = other
                && let Some(progress) = self.on_end_of_batch(router, input, &decoded, &behind[0].command)
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
        let mut executor = router.executor();
        let sink = self.sink();
        let mut done = 1;
        if Addition::of(command).is_some() && !executor.service.watch.is_watched() {
            done = add_all(executor.reborrow(), hash, entries, sink.bytes_mut());
        } else {
            executor.execute(hash, command, sink.bytes_mut());
        }
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

    /// Consumes input that belongs to the arriving value. `None` once it is complete.
    fn receive_value(&mut self, router: &mut impl Router, input: &mut &[u8]) -> Option<Progress> {
        let (own, _) = router.position();
        // The namespace may have been replaced, with other hashes for its keys: the value is then discarded.
        let incoming = self.incoming.as_ref()?;
        let key_hash =
            router.executor().partition.processor.hash(incoming.head().stored_key(&mut [0; KEY_BYTES_MAX]));
        if key_hash != incoming.hash() {
            self.incoming = None;
            self.is_closing = true;
            *input = &[];
            return Some(Progress::Close);
        }
        loop {
            let incoming = self.incoming.as_mut()?;
            if incoming.is_whole() {
                break;
            }
            if incoming.lacks_room() {
                if incoming.short_bytes_wanted() > 0 {
                    if self.lacks_buffer() {
                        return Some(Progress::Stalled);
                    }
                    self.incoming.as_mut()?.allocate_short();
                    continue;
                }
                let partition = incoming.partition;
                // With a log, memory may become free as more is written: the request takes the same path as for other
                // partitions.
                if partition != own || router.executor().partition.processor.has_log() {
                    let count = incoming.wanted();
                    if count > 0 {
                        router.reserve(partition, count);
                    }
                    return Some(Progress::Stalled);
                }
                match router.executor().partition.processor.take_chunks(1) {
                    Some(chunks) => incoming.on_room(chunks),
                    None => self.refuse_incoming(router),
                }
                continue;
            }
            if input.is_empty() {
                self.needed_bytes = 0;
                return Some(Progress::Open);
            }
            incoming.on_bytes(input);
            let count = incoming.wanted();
            if count > 0 && (incoming.partition != own || router.executor().partition.processor.has_log()) {
                router.reserve(incoming.partition, count);
            }
        }
        let incoming = self.incoming.take()?;
        let (partition, has_right_line_end) = (incoming.partition, incoming.has_right_line_end());
        let store = incoming.into_store();
        if !has_right_line_end {
            self.sink().bytes_mut().extend_from_slice(bad_chunk(store.verb()));
            return None;
        }
        if partition == own && !router.executor().partition.processor.has_log() {
            let mut executor = router.executor();
            let sink = self.sink();
            executor.execute_large(store, sink.bytes_mut());
            return None;
        }
        let id = self.push_awaited(store.short_bytes().max(1), &store.head().verb);
        if partition == own {
            self.last_by_message = Some(id);
        }
        router.store_large(partition, id, store);
        None
    }

    /// Refuses the arriving value for lack of memory, and discards the rest of it.
    fn refuse_incoming(&mut self, router: &mut impl Router) {
        let Some(incoming) = self.incoming.take() else { return };
        self.decoder.discard(incoming.left());
        let partition = incoming.partition;
        let store = incoming.into_store();
        let (removes, binary) = match store.verb() {
            Verb::Store { mode: Mode::Set, cas: None, .. } | Verb::Meta(_) => (true, None),
            Verb::Binary(header) => (binary::is_set(header.opcode), Some(header)),
            _ => (false, None),
        };
        let verb = Verb::Refused { removes, is_memory: true, is_quiet: store.verb().is_silent(), binary };
        let hash = store.hash;
        store.with_command(|command, _| {
            let command = Command { verb, value: &[], ..*command };
            if partition == router.position().0 && self.is_immediate(router, hash, &command) {
                return router.executor().execute(hash, &command, self.sink().bytes_mut());
            }
            let id = self.push_awaited(0, &verb);
            if partition == router.position().0 {
                self.last_by_message = Some(id);
            }
            router.send(partition, id, hash, &command);
        });
    }

    /// Handles memory for the arriving value; empty if there is none. Call [`resume`](Self::resume) afterwards.
    pub fn on_room(&mut self, router: &mut impl Router, chunks: Vec<Chunk>) {
        match &mut self.incoming {
            Some(_) if chunks.is_empty() => self.refuse_incoming(router),
            Some(incoming) => incoming.on_room(chunks),
            None => {}
        }
    }

    /// Memory of the arriving value into which the next bytes may be received directly.
    pub fn place(&mut self) -> Option<&mut [u8]> {
        if !self.backlog.is_empty() { None } else { self.incoming.as_mut()?.place() }
    }

    /// Accounts for `count` bytes received into [`place`](Self::place). Call it before passing the bytes that follow,
    /// even with a count of 0.
    pub fn on_placed(&mut self, count: usize) {
        if let Some(incoming) = &mut self.incoming {
            incoming.on_placed(count);
        }
    }

    /// Handles requests that are not about a single key.
    fn on_other(&mut self, router: &mut impl Router, decoded: &Decoded<'_>) {
        let (_, count) = router.position();
        match *decoded {
            Decoded::Version => {
                let sink = self.sink().bytes_mut();
                sink.extend_from_slice(b"VERSION ");
                sink.extend_from_slice(VERSION.as_bytes());
                sink.extend_from_slice(b"\r\n");
            }
            Decoded::Binary(header, response::SUCCESS) => {
                let value: &[u8] = if header.opcode == binary::VERSION { VERSION.as_bytes() } else { &[] };
                response::respond(self.sink().bytes_mut(), header, response::SUCCESS, &[], &[], value, 0);
            }
            Decoded::Binary(header, status) => response::refuse(self.sink().bytes_mut(), header, status),
            Decoded::Flush { delay, is_quiet, binary } => {
                router.executor().service.counters.flush_count += 1;
                if !router.executor().service.settings().allows_flush {
                    match binary {
                        Some(header) => response::refuse(self.sink().bytes_mut(), header, 0x81),
                        None if is_quiet => {}
                        None => self
                            .sink()
                            .bytes_mut()
                            .extend_from_slice(b"CLIENT_ERROR flush_all not allowed\r\n"),
                    }
                    return;
                }
                let asked = AllRequest::Flush { binary, is_quiet };
                if router.executor().partition.processor.has_log() {
                    // The local partition answers like the others, once its change is durable.
                    let id = self.push(QueuedAnswer::Collecting(Collecting::new(count, asked)));
                    self.last_by_message = Some(id);
                    return router.send_all(id, CollectiveRequest::Flush { delay }, true);
                }
                self.ask_all(router, asked, CollectiveRequest::Flush { delay });
            }
            Decoded::Stats { of: b"reset", binary } => {
                router.reset_listener_stats();
                self.ask_all(router, AllRequest::ResetStats { binary }, CollectiveRequest::ResetStats);
            }
            Decoded::Stats { of: b"conns", binary } => {
                let asked = AllRequest::Connections { found: Vec::new(), binary };
                let id = self.push(QueuedAnswer::Collecting(Collecting::new(count, asked)));
                router.request_connections(id);
            }
            Decoded::Stats { of, binary } => {
                let asked = AllRequest::Stats { of: of.to_vec(), binary };
                self.ask_all(router, asked, CollectiveRequest::Stats);
            }
            Decoded::Watch(kinds) => self.begin_watch(router, kinds),
            Decoded::Dump(form)
                if let Some(refusal) = form.refusal().filter(|_| self.waiting_bytes() > 0) =>
            {
                self.sink().bytes_mut().extend_from_slice(refusal);
            }
            Decoded::Dump(form) => {
                let executor = router.executor();
                let (crawler, now_s) =
                    (&executor.service.watch.watchers().crawler, executor.partition.processor.now_s());
                self.dump = Dump::begin(form, count, crawler, now_s).map(Box::new);
                let answer = if self.dump.is_some() { form.start() } else { DUMP_BUSY };
                self.sink().bytes_mut().extend_from_slice(answer);
            }
            Decoded::Limit { megabytes, is_quiet } => {
                if let Some(refusal) = limit_refusal(megabytes, count) {
                    if !is_quiet {
                        self.sink().bytes_mut().extend_from_slice(refusal.as_bytes());
                    }
                    return;
                }
                let asked = AllRequest::Limit { megabytes, is_quiet, is_set: false };
                self.ask_all(router, asked, CollectiveRequest::Stats);
            }
            Decoded::Command
            | Decoded::Answer(_)
            | Decoded::More(_)
            | Decoded::BinaryQuit(_)
            | Decoded::Large { .. }
            | Decoded::Quit
            | Decoded::Close => {
                unreachable!("handled with the batch")
            }
        }
    }

    /// Carries out a request on the local partition, and sends it to the others.
    fn ask_all(&mut self, router: &mut impl Router, mut asked: AllRequest, request: CollectiveRequest) {
        let sum = router.executor().collect(request);
        let (_, count) = router.position();
        if count == 1 {
            if let Some((asked, request)) = asked.next(&sum) {
                let id = self.push(QueuedAnswer::Collecting(Collecting::new(1, asked)));
                return router.send_all(id, request, true);
            }
            return push_collected(router, &sum, &mut asked, self.sink());
        }
        let mut collecting = Collecting::new(count - 1, asked);
        collecting.sum = sum;
        let id = self.push(QueuedAnswer::Collecting(collecting));
        router.send_all(id, request, false);
    }

    /// Requests the next piece of the dump, once the piece before it has been sent.
    fn request_dump(&mut self, router: &mut impl Router) -> Progress {
        if self.can_resume()
            && let Some(mut dump) = self.dump.take()
        {
            let command = Command { verb: Verb::Dump(dump.form), key: &dump.position, ..Command::NONE };
            let id = self.push_awaited(0, &command.verb);
            let hash = router.executor().partition.processor.hash(&dump.position);
            router.send(dump.partition, id, hash, &command);
            dump.on_request(id, router.executor().partition.processor.now_s());
            self.dump = Some(dump);
        }
        Progress::Stalled
    }

    /// Whether a command of the local partition can be executed and answered now. While a command of the connection
    /// waits, no later one can: a connection's commands keep their order.
    #[inline]
    fn is_immediate(&self, router: &mut impl Router, hash: KeyHash, command: &Command<'_>) -> bool {
        let executor = router.executor();
        !executor.partition.processor.has_log()
            || self.last_by_message.is_none_or(|id| id < self.first_id)
                && executor.is_immediate(hash, command)
    }

    /// The output for the next answer.
    #[inline]
    fn sink(&mut self) -> &mut Output {
        if self.queue.is_empty() {
            return &mut self.output;
        }
        if !matches!(self.queue.back(), Some(QueuedAnswer::Bytes(_))) {
            self.queue.push_back(QueuedAnswer::Bytes(Output::default()));
        }
        match self.queue.back_mut() {
            Some(QueuedAnswer::Bytes(bytes)) => bytes,
            _ => unreachable!("just made sure of"),
        }
    }

    /// Length of the last answer in the queue, bytes.
    fn last_bytes(&self) -> usize {
        match self.queue.back() {
            Some(QueuedAnswer::Bytes(bytes)) => bytes.len(),
            _ => 0,
        }
    }

    fn push(&mut self, answer: QueuedAnswer) -> AnswerId {
        self.queued_bytes += self.last_bytes() + expected_bytes(&answer);
        self.queue.push_back(answer);
        self.first_id + self.queue.len() as u64 - 1
    }

    /// Queues an awaited answer to a command with `value_bytes` of value. Commands that bring a value have short
    /// answers.
    fn push_awaited(&mut self, value_bytes: usize, verb: &Verb) -> AnswerId {
        let bytes = if value_bytes == 0 { self.expected_bytes } else { AWAITED_BYTES_MIN.max(value_bytes) };
        let refusal_form = RefusalForm::of(verb);
        self.push(QueuedAnswer::Awaited { expected_bytes: bytes, refusal_form })
    }

    /// Handles the refusal of a command by another partition. The connection may end behind it: then
    /// [`is_closing`](Self::is_closing) is true.
    pub fn on_refused(&mut self, id: AnswerId, refusal: Refusal) {
        let at = (id - self.first_id) as usize;
        let QueuedAnswer::Awaited { refusal_form, .. } = self.queue[at] else {
            unreachable!("ids name what was asked")
        };
        if refusal_form == RefusalForm::LastLine {
            self.is_closing = true;
            self.last_id = Some(self.last_id.map_or(id, |last| last.min(id)));
            self.dump = None;
        }
        let mut answer = Output::default();
        refusal_form.write(refusal, answer.bytes_mut());
        self.put(at, answer);
        self.advance();
    }

    /// Whether the connection ends once its output is sent.
    #[must_use]
    pub fn is_closing(&self) -> bool {
        self.is_closing
    }

    /// Handles the answer of another partition to a command.
    pub fn on_reply(&mut self, id: AnswerId, mut answer: Output) {
        let at = (id - self.first_id) as usize;
        if let Some(dump) = self.dump.as_mut().filter(|dump| dump.awaited == Some(id))
            && dump.on_piece(answer.bytes_mut())
        {
            self.dump = None;
        }
        debug_assert!(matches!(self.queue[at], QueuedAnswer::Awaited { .. }));
        // The expected length rises to that of a longer answer at once, and falls by a quarter of the difference with
        // each shorter one.
        let (bytes, expected) =
            (answer.len().clamp(AWAITED_BYTES_MIN, OUTPUT_BYTES_MAX + 1), self.expected_bytes);
        self.expected_bytes = bytes.max(expected - expected.saturating_sub(bytes).div_ceil(4));
        self.put(at, answer);
        self.advance();
    }

    /// Handles the statistics of another partition, or the end of its flush.
    pub fn on_stats(&mut self, router: &mut impl Router, id: AnswerId, stats: &PartitionStats) {
        self.on_collected(router, id, |collecting| collecting.sum += *stats);
    }

    /// Handles the connections of a reactor.
    pub fn on_connections(
        &mut self,
        router: &mut impl Router,
        id: AnswerId,
        connections: &[ConnectionStats],
    ) {
        self.on_collected(router, id, |collecting| {
            if let AllRequest::Connections { found, .. } = &mut collecting.asked {
                found.extend_from_slice(connections);
            }
        });
    }

    /// Adds the answer of one partition or reactor. The last one gives the answer to the client, or the next request.
    fn on_collected(&mut self, router: &mut impl Router, id: AnswerId, add: impl FnOnce(&mut Collecting)) {
        let at = (id - self.first_id) as usize;
        let QueuedAnswer::Collecting(collecting) = &mut self.queue[at] else {
            unreachable!("ids name what was asked")
        };
        collecting.left -= 1;
        add(collecting);
        if collecting.left > 0 {
            return;
        }
        if let Some((asked, request)) = collecting.asked.next(&collecting.sum) {
            let (_, count) = router.position();
            *collecting = Collecting::new(count, asked);
            return router.send_all(id, request, true);
        }
        let mut answer = Output::default();
        push_collected(router, &collecting.sum, &mut collecting.asked, &mut answer);
        self.put(at, answer);
        self.advance();
    }

    /// Puts an awaited answer in its position.
    fn put(&mut self, at: usize, answer: Output) {
        self.queued_bytes -= expected_bytes(&self.queue[at]);
        if at + 1 < self.queue.len() {
            self.queued_bytes += answer.len();
        }
        self.queue[at] = QueuedAnswer::Bytes(answer);
    }

    /// Moves answers that are next in order to the output.
    fn advance(&mut self) {
        while let Some(QueuedAnswer::Bytes(_)) = self.queue.front() {
            let Some(QueuedAnswer::Bytes(bytes)) = self.queue.pop_front() else { unreachable!("just seen") };
            let id = self.first_id;
            self.first_id += 1;
            if !self.queue.is_empty() {
                self.queued_bytes -= bytes.len();
            }
            if self.last_id.is_some_and(|last| id > last) {
                continue;
            }
            if self.output.is_empty() {
                self.output = bytes;
            } else {
                self.output.append(bytes);
            }
        }
    }
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

/// Decodes commands into `batch`, and prefetches the buckets of their keys. Returns their number, and what was decoded
/// behind them, if that is something else.
#[inline]
fn decode_batch<'a>(
    decoder: &mut Decoder,
    processor: &Processor,
    input: &mut &'a [u8],
    batch: &mut Vec<Entry<'a>>,
) -> (usize, Option<Decoded<'a>>) {
    let mut length = 0;
    while length < BATCH {
        if length == batch.len() {
            batch.push(Entry::NONE);
        }
        let entry = &mut batch[length];
        if decoder.next_key(input, &mut entry.command) {
            let hash = processor.hash(entry.command.key);
            (entry.hash, entry.home) = (Some(hash), processor.prefetch_home(hash));
            length += 1;
            continue;
        }
        match decoder.next(input, &mut entry.command) {
            Decoded::Command => {
                let command = &entry.command;
                let hash = if command.is_base64 {
                    processor.hash(command.stored_key(&mut [0; KEY_BYTES_MAX]))
                } else {
                    processor.hash(command.key)
                };
                (entry.hash, entry.home) = (Some(hash), processor.prefetch_home(hash));
            }
            Decoded::Answer(answer) => (entry.hash, entry.answer) = (None, answer),
            decoded => return (length, Some(decoded)),
        }
        length += 1;
    }
    (length, None)
}

/// Expected length of an awaited answer, bytes.
fn expected_bytes(answer: &QueuedAnswer) -> usize {
    match answer {
        QueuedAnswer::Bytes(_) => 0,
        QueuedAnswer::Awaited { expected_bytes, .. } => *expected_bytes,
        // One at a time, because there may be many.
        QueuedAnswer::Collecting(collecting)
            if matches!(collecting.asked, AllRequest::Connections { .. }) =>
        {
            OUTPUT_BYTES_MAX
        }
        QueuedAnswer::Collecting(_) => AWAITED_BYTES_MIN,
    }
}
