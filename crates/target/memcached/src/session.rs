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

mod arriving_value;
mod batch;
mod in_place;
mod watching;

use std::collections::VecDeque;

use memory::CHUNK_BYTES;

use crate::answer::AnswerId;
use crate::authentication::{Authentication, AuthenticationOutcome};
use crate::binary_response as response;
use crate::collecting::{AllRequest, Collecting, limit_refusal, push_collected};
use crate::collective::CollectiveRequest;
use crate::command::{Command, Verb};
use crate::connection_stats::ConnectionStats;
use crate::counters::PartitionStats;
use crate::dump::Dump;
use crate::incoming::Incoming;
use crate::output::Output;
use crate::protocol::binary;
use crate::protocol::decode::Decoder;
use crate::protocol::decoded::Decoded;
use crate::refusal::{Refusal, RefusalForm};
use crate::router::Router;
use crate::settings::{ListenerSettings, PIECE_BYTES};
use crate::stats::VERSION;
use crate::watch::Watching;
use kv::KeyHash;

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
/// The answer to `cache_memlimit` where a port is for one partition: the limit is that of all.
const LIMIT_OF_PORT: &str = "CLIENT_ERROR cache_memlimit not allowed on the port of one partition\r\n";
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
            AuthenticationOutcome::Authenticated => return None,
            AuthenticationOutcome::More => {}
            AuthenticationOutcome::Close => {
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

    /// Handles requests that are not about a single key.
    fn on_other(&mut self, router: &mut impl Router, decoded: &Decoded<'_>) {
        let (own, count) = router.position();
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
                let partitions = if count == 1 { own..own + 1 } else { 0..count };
                self.dump = Dump::begin(form, partitions, crawler, now_s).map(Box::new);
                let answer = if self.dump.is_some() { form.start() } else { DUMP_BUSY };
                self.sink().bytes_mut().extend_from_slice(answer);
            }
            Decoded::Limit { megabytes, is_quiet } => {
                let of_port = router.listener_stats().partition.map(|_| LIMIT_OF_PORT.to_owned());
                if let Some(refusal) = of_port.or_else(|| limit_refusal(megabytes, count)) {
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

    /// With a log, counts a command that is executed now by the place of its value: in memory, or nowhere. Commands that must
    /// wait are counted by the target when they are queued.
    #[inline]
    fn count_need(router: &mut impl Router, hash: KeyHash, key: &[u8]) {
        let executor = router.executor();
        if executor.partition.processor.has_log() {
            executor.partition.processor.count_need_of_memory(hash, key);
        }
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
