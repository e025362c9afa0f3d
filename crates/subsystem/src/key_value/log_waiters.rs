//! Key-value namespaces with a log: commands that wait for values, and answers that wait until what they tell of
//! survives.
//!
//! ```text
//! Run, Act, RunPart, Ask ─▶ not read yet: kept │ value in the log: station, fetch │ else carried out ─▶ answer
//!                                                         └─ loaded ─▶ all that waits, in order ─┘  │
//!                                        settled up to the change that it has seen ─▶ posted ◀──────┘
//! ```
//!
//! What brings a value that there is no memory for waits, and all that comes after it, until more has been written: then values can leave
//! memory that are in the log. Once all is written it is carried out in any case, and refused if there is still none.

mod part;

use std::collections::VecDeque;

use kv::{Arrival, KEY_BYTES_MAX, Station};
use memcached::{AnswerId, Executor, LargeStore, RemoteBatch, Service};
use reactor::{CHUNK_BYTES, Io};
use store::Logged;
use wire::kv::Key;
use wire::status::Status;

use crate::attached::{Attachments, Keys};
use crate::commands::{Commands, StoreAccess};
use crate::key_value::batch::{self, AHEAD_COUNT, PartOfBatch};
use crate::key_value::execute::{self, KvAction, KvOutcome};
use crate::key_value::log_waiters::part::Part;
use crate::key_value::{KeyValueMessage, RemoteAnswers};
use crate::message::Message;
use crate::subsystem::NamespaceId;

/// With more commands than this waiting for values, messages wait.
const PARKED_COUNT_MAX: usize = 16 * 1024;

/// What waits for the log of one namespace on one reactor.
pub(crate) struct LogWaiters {
    station: Station<Parked>,
    /// Parts of batches of which operations wait for values.
    parts: Vec<Option<Part>>,
    held: VecDeque<Held>,
    /// Messages that came before the log was read, or while much waited.
    arrived: VecDeque<KeyValueMessage>,
    /// The first of them waits for memory: until the log has come further than this.
    short_at: Option<u64>,
    /// Counted among what runs in the namespace.
    is_counted: bool,
    was_ready: bool,
}

impl Default for LogWaiters {
    fn default() -> Self {
        Self {
            station: Station::new(usize::MAX),
            parts: Vec::new(),
            held: VecDeque::new(),
            arrived: VecDeque::new(),
            short_at: None,
            is_counted: false,
            was_ready: false,
        }
    }
}

/// A partition with a log.
pub(crate) struct LoggedKeys<'a> {
    pub(crate) logged: &'a mut Logged,
    /// memcached on it.
    pub(crate) memcached: &'a mut Service,
}

impl LoggedKeys<'_> {
    /// The partition as memcached's clients see it.
    fn executor(&mut self) -> Executor<'_> {
        self.memcached.on(self.logged.partition())
    }
}

/// A command that waits for a value.
struct Parked {
    from: usize,
    what: Waiting,
}

enum Waiting {
    /// One of memcached's.
    Command(RemoteBatch),
    /// One of memcached's whose value came in parts.
    Large(u64, AnswerId, LargeStore),
    /// One of NVMe's.
    Action(store::Ticket, Key, KvAction),
    /// One of a batch: its part, and which of it.
    Operation(usize, usize),
}

/// An answer that waits for a change to survive.
struct Held {
    number: u64,
    to: usize,
    message: KeyValueMessage,
}

impl LogWaiters {
    fn is_idle(&self) -> bool {
        self.station.is_empty() && self.held.is_empty() && self.arrived.is_empty()
    }

    /// Counts what waits here among what runs in the namespace, until a look at it shows that nothing does. Says whether that is new.
    pub(crate) fn count_in(&mut self) -> bool {
        !std::mem::replace(&mut self.is_counted, true)
    }

    fn takes(&self, keys: &mut LoggedKeys<'_>) -> bool {
        let is_short = self.short_at.is_some() && self.short_at == keys.logged.progress();
        keys.logged.is_ready() && self.station.len() <= PARKED_COUNT_MAX && !is_short
    }

    /// Whether values of so many bytes can be stored, as far as memory is concerned, or nothing would come of waiting.
    fn has_room(&mut self, keys: &mut LoggedKeys<'_>, bytes: usize) -> bool {
        if keys.logged.has_room(bytes) {
            return true;
        }
        self.short_at = keys.logged.progress();
        self.short_at.is_none()
    }

    /// Puts messages that wait for memory before all others.
    fn put_back(&mut self, messages: impl DoubleEndedIterator<Item = KeyValueMessage>) {
        messages.rev().for_each(|message| self.arrived.push_front(message));
    }

    /// Posts an answer, now or when the change it has seen survives.
    fn answer(
        &mut self,
        io: &mut impl Io<Message>,
        number: Option<u64>,
        to: usize,
        message: KeyValueMessage,
    ) {
        match number {
            None => io.post(to, Message::KeyValue(Box::new(message))),
            Some(number) => self.held.push_back(Held { number, to, message }),
        }
    }

    /// Puts a command aside if the value of its key is on its way, or has to be fetched first.
    fn park(
        &mut self,
        keys: &mut LoggedKeys<'_>,
        key: &[u8],
        needs_value: bool,
        parked: Parked,
    ) -> Option<Parked> {
        if !self.station.is_reserved(key) && (!needs_value || !keys.logged.is_away(key)) {
            return Some(parked);
        }
        match self.station.on_operation(key, parked) {
            Arrival::Fetch => keys.logged.fetch(key),
            Arrival::Waits => {}
            Arrival::Full(_) => unreachable!("it has room for all"),
        }
        None
    }

    /// Carries out commands of memcached's clients, and gives back those that wait for memory.
    fn run(
        &mut self,
        io: &mut impl Io<Message>,
        keys: &mut LoggedKeys<'_>,
        from: usize,
        batch: &RemoteBatch,
    ) -> RemoteBatch {
        let mut answers = RemoteAnswers::default();
        let mut number = None;
        let mut rest = RemoteBatch::default();
        batch.for_each(|session, ticket, hash, command| {
            if !rest.is_empty() || !command.value.is_empty() && !self.has_room(keys, command.value.len()) {
                return rest.push(session, ticket, hash, command);
            }
            let mut room = [0; KEY_BYTES_MAX];
            let key = command.stored_key(&mut room);
            let needs_value = command.verb.needs_value();
            if self.station.is_reserved(key) || needs_value && keys.logged.is_away(key) {
                let mut one = RemoteBatch::default();
                one.push(session, ticket, hash, command);
                self.park(keys, key, needs_value, Parked { from, what: Waiting::Command(one) });
                return;
            }
            answers.push_executed(session, ticket, keys.executor(), |executor, bytes| {
                executor.execute(hash, command, bytes);
            });
            number = number.max(keys.logged.awaited(hash));
        });
        if !answers.is_empty() {
            self.answer(io, number, from, KeyValueMessage::Answers(answers));
        }
        rest
    }

    fn store_large(
        &mut self,
        io: &mut impl Io<Message>,
        keys: &mut LoggedKeys<'_>,
        from: usize,
        (session, ticket): (u64, AnswerId),
        store: LargeStore,
    ) {
        let mut room = [0; KEY_BYTES_MAX];
        let head = store.head();
        let key = head.stored_key(&mut room).to_vec();
        let (hash, needs_value) = (store.hash, head.verb.needs_value());
        let parked = Parked { from, what: Waiting::Large(session, ticket, store) };
        let Some(parked) = self.park(keys, &key, needs_value, parked) else { return };
        let Parked { what: Waiting::Large(_, _, store), .. } = parked else { return };
        let mut answers = RemoteAnswers::default();
        answers.push_executed(session, ticket, keys.executor(), |executor, bytes| {
            executor.execute_large(store, bytes);
        });
        self.answer(io, keys.logged.awaited(hash), from, KeyValueMessage::Answers(answers));
    }

    #[expect(clippy::too_many_arguments, reason = "a message, taken apart")]
    fn act(
        &mut self,
        io: &mut impl Io<Message>,
        keys: &mut LoggedKeys<'_>,
        from: usize,
        namespace: NamespaceId,
        ticket: store::Ticket,
        key: Key,
        action: KvAction,
    ) {
        let needs_value = action.needs_value();
        let is_of_key = !matches!(action, KvAction::List { .. } | KvAction::Flush);
        let parked = Parked { from, what: Waiting::Action(ticket, key, action) };
        let parked =
            if is_of_key { self.park(keys, key.as_bytes(), needs_value, parked) } else { Some(parked) };
        let Some(Parked { what: Waiting::Action(_, _, action), .. }) = parked else { return };
        let number_of_flush = matches!(action, KvAction::Flush).then(|| keys.logged.ask_flush());
        let next = io.reactor() + 1;
        let is_room = matches!(action, KvAction::Reserve { .. });
        let outcome = execute::act(keys.logged.partition(), &key, action, next == io.reactor_count());
        let has_room = is_room && outcome.as_ref().is_ok_and(|outcome| outcome.status.is_success());
        let hash = keys.logged.partition().processor.hash(key.as_bytes());
        let settled = keys.logged.settled();
        let number = match number_of_flush {
            Some(number) => Some(number).filter(|number| *number > settled),
            // Memory for a value tells nothing of the one before.
            None if is_of_key && !has_room => keys.logged.awaited(hash),
            None => None,
        };
        let (to, message) = match outcome {
            Ok(outcome) => (from, KeyValueMessage::Outcome(ticket, outcome)),
            Err(action) => (next, KeyValueMessage::Act { from, namespace, ticket, key, action }),
        };
        self.answer(io, number, to, message);
    }

    fn run_part(
        &mut self,
        io: &mut impl Io<Message>,
        keys: &mut LoggedKeys<'_>,
        (from, ticket): (usize, store::Ticket),
        part: PartOfBatch,
    ) {
        let place = self.parts.iter().position(Option::is_none).unwrap_or_else(|| {
            self.parts.push(None);
            self.parts.len() - 1
        });
        let mut part = Part::new(from, ticket, part);
        for at in 0..part.len() {
            if at % AHEAD_COUNT == 0 {
                part.prefetch(keys.logged.partition(), at..part.len().min(at + AHEAD_COUNT));
            }
            self.run_of_part(keys, &mut part, place, at);
        }
        self.keep_or_answer(io, place, part);
    }

    /// Carries out an operation of a part, unless it has to wait for its value.
    fn run_of_part(&mut self, keys: &mut LoggedKeys<'_>, part: &mut Part, place: usize, at: usize) {
        let operation = part.operation(at);
        let waiting = Parked { from: part.from, what: Waiting::Operation(place, at) };
        if self.park(keys, operation.key, execute::needs_value(operation.opcode), waiting).is_none() {
            return;
        }
        let hash = keys.logged.partition().processor.hash(operation.key);
        part.run(keys.logged.partition(), at);
        part.number = part.number.max(keys.logged.awaited(hash));
    }

    fn keep_or_answer(&mut self, io: &mut impl Io<Message>, place: usize, part: Part) {
        if !part.is_over() {
            self.parts[place] = Some(part);
            return;
        }
        let (ticket, partition, outcomes) = (part.ticket, io.reactor(), part.outcomes());
        let answer = KeyValueMessage::PartOutcomes { ticket, partition, outcomes };
        self.answer(io, part.number, part.from, answer);
    }

    /// A value that an operation of a part has waited for is here, or is not to be had.
    fn go_on_with_part(
        &mut self,
        io: &mut impl Io<Message>,
        keys: &mut LoggedKeys<'_>,
        (place, at): (usize, usize),
        is_good: bool,
    ) {
        let mut part = self.parts[place].take().expect("it waits for this operation");
        if is_good {
            self.run_of_part(keys, &mut part, place, at);
        } else {
            part.refuse(at, Status::KV_UNRECOVERED_ERROR.with_dnr());
        }
        self.keep_or_answer(io, place, part);
    }

    fn ask(
        &mut self,
        io: &mut impl Io<Message>,
        keys: &mut LoggedKeys<'_>,
        (from, session, ticket): (usize, u64, AnswerId),
        flush: Option<i64>,
    ) {
        if let Some(delay) = flush {
            keys.executor().flush(delay);
        }
        let stats = Box::new(keys.executor().stats());
        let number = flush.and_then(|_| keys.logged.awaited_last());
        self.answer(io, number, from, KeyValueMessage::Stats { session, ticket, stats });
    }

    /// Carries out what a message asks for; what waits for memory is put back.
    fn serve(&mut self, io: &mut impl Io<Message>, keys: &mut LoggedKeys<'_>, message: KeyValueMessage) {
        let bytes = brought_bytes(&message);
        if bytes > 0 && !self.has_room(keys, bytes) {
            return self.put_back(std::iter::once(message));
        }
        keys.logged.partition().set_now(store::unix_s());
        match message {
            KeyValueMessage::Run { from, namespace, batch } => {
                let batch = self.run(io, keys, from, &batch);
                if !batch.is_empty() {
                    self.put_back(std::iter::once(KeyValueMessage::Run { from, namespace, batch }));
                }
            }
            KeyValueMessage::Reserve { from, session, count, .. } => {
                let chunks = keys.logged.partition().processor.take_chunks(count).unwrap_or_default();
                let room = KeyValueMessage::Room { session, chunks };
                io.post(from, Message::KeyValue(Box::new(room)));
            }
            KeyValueMessage::Act { from, namespace, ticket, key, action } => {
                self.act(io, keys, from, namespace, ticket, key, action);
            }
            KeyValueMessage::RunPart { from, ticket, part, .. } => {
                self.run_part(io, keys, (from, ticket), part);
            }
            KeyValueMessage::StoreLarge { from, session, ticket, store, .. } => {
                self.store_large(io, keys, from, (session, ticket), store);
            }
            KeyValueMessage::Ask { from, session, ticket, flush, .. } => {
                self.ask(io, keys, (from, session, ticket), flush);
            }
            _ => unreachable!("answers are for those who asked"),
        }
    }

    /// A value is here, or is not to be had.
    fn on_loaded(
        &mut self,
        io: &mut impl Io<Message>,
        keys: &mut LoggedKeys<'_>,
        namespace: NamespaceId,
        key: &[u8],
        is_good: bool,
    ) {
        let mut waiting = Vec::new();
        self.station.on_value(key, |parked| waiting.push(parked));
        self.go_on(io, keys, namespace, waiting, is_good);
    }

    /// Values are here, or are not to be had: carries on with what has waited for them.
    fn go_on(
        &mut self,
        io: &mut impl Io<Message>,
        keys: &mut LoggedKeys<'_>,
        namespace: NamespaceId,
        waiting: Vec<Parked>,
        is_good: bool,
    ) {
        // One that waits for memory has all behind it wait.
        let mut short = Vec::new();
        for Parked { from, what } in waiting {
            match what {
                Waiting::Command(batch) if is_good => {
                    let batch = if short.is_empty() { self.run(io, keys, from, &batch) } else { batch };
                    if !batch.is_empty() {
                        short.push(KeyValueMessage::Run { from, namespace, batch });
                    }
                }
                Waiting::Large(session, ticket, store) if is_good => {
                    let message = KeyValueMessage::StoreLarge { from, namespace, session, ticket, store };
                    self.serve_unless(io, keys, message, &mut short);
                }
                Waiting::Action(ticket, key, action) if is_good => {
                    let message = KeyValueMessage::Act { from, namespace, ticket, key, action };
                    self.serve_unless(io, keys, message, &mut short);
                }
                Waiting::Operation(place, at) => self.go_on_with_part(io, keys, (place, at), is_good),
                Waiting::Command(batch) => {
                    let mut asked = Vec::new();
                    batch.for_each(|session, ticket, _, _| asked.push((session, ticket)));
                    refuse(io, from, &asked);
                }
                Waiting::Large(session, ticket, _) => refuse(io, from, &[(session, ticket)]),
                Waiting::Action(ticket, ..) => io.post(from, Message::KeyValue(Box::new(failed(ticket)))),
            }
        }
        self.put_back(short.into_iter());
    }

    /// Carries out what a message asks for, unless it has to wait for memory, or behind those that do.
    fn serve_unless(
        &mut self,
        io: &mut impl Io<Message>,
        keys: &mut LoggedKeys<'_>,
        message: KeyValueMessage,
        short: &mut Vec<KeyValueMessage>,
    ) {
        let bytes = brought_bytes(&message);
        if !short.is_empty() || bytes > 0 && !self.has_room(keys, bytes) {
            short.push(message);
        } else {
            self.serve(io, keys, message);
        }
    }

    /// Nothing can be carried out any more: everything that waits is told.
    fn give_up(&mut self, io: &mut impl Io<Message>, keys: &mut LoggedKeys<'_>, namespace: NamespaceId) {
        while let Some(loaded) = keys.logged.next_loaded() {
            self.on_loaded(io, keys, namespace, &loaded.key, false);
        }
        let waiting = self.station.drain().collect();
        self.go_on(io, keys, namespace, waiting, false);
        for Held { to, message, .. } in std::mem::take(&mut self.held) {
            let (to, message) = match message {
                KeyValueMessage::Answers(answers) => (to, KeyValueMessage::Answers(answers.refused(REFUSAL))),
                KeyValueMessage::Outcome(ticket, _) => (to, failed(ticket)),
                KeyValueMessage::Act { from, ticket, .. } => (from, failed(ticket)),
                KeyValueMessage::PartOutcomes { ticket, partition, outcomes } => {
                    let outcomes = batch::refused(&outcomes, Status::KV_UNRECOVERED_ERROR.with_dnr());
                    (to, KeyValueMessage::PartOutcomes { ticket, partition, outcomes })
                }
                message => (to, message),
            };
            io.post(to, Message::KeyValue(Box::new(message)));
        }
        // As if the namespace were gone.
        for message in std::mem::take(&mut self.arrived) {
            io.post(io.reactor(), Message::KeyValue(Box::new(message)));
        }
    }
}

/// What memcached's clients are told when a log fails.
const REFUSAL: &[u8] = b"SERVER_ERROR the log cannot be read or written\r\n";

/// Bytes of values that a message wants stored, or memory for. Commands of memcached's clients are looked at one by one.
fn brought_bytes(message: &KeyValueMessage) -> usize {
    match message {
        KeyValueMessage::Act { action, .. } => action.brought_bytes(),
        KeyValueMessage::RunPart { part, .. } => part.operation_bytes(),
        KeyValueMessage::StoreLarge { store, .. } => store.rest_bytes(),
        KeyValueMessage::Reserve { count, .. } => count * CHUNK_BYTES,
        _ => 0,
    }
}

fn failed(ticket: store::Ticket) -> KeyValueMessage {
    KeyValueMessage::Outcome(ticket, KvOutcome::new(Status::KV_UNRECOVERED_ERROR.with_dnr()))
}

fn refuse(io: &mut impl Io<Message>, from: usize, asked: &[(u64, AnswerId)]) {
    let mut answers = RemoteAnswers::default();
    for &(session, ticket) in asked {
        answers.push(session, ticket, |bytes| bytes.extend_from_slice(REFUSAL));
    }
    io.post(from, Message::KeyValue(Box::new(KeyValueMessage::Answers(answers))));
}

/// Takes in what another partition asks of one with a log. Gives back what is for one without.
pub(crate) fn serve(
    io: &mut impl Io<Message>,
    namespaces: &mut Attachments,
    message: KeyValueMessage,
) -> Option<KeyValueMessage> {
    let id = match &message {
        KeyValueMessage::Run { namespace, .. }
        | KeyValueMessage::StoreLarge { namespace, .. }
        | KeyValueMessage::Reserve { namespace, .. }
        | KeyValueMessage::Act { namespace, .. }
        | KeyValueMessage::RunPart { namespace, .. }
        | KeyValueMessage::Ask { namespace, .. } => *namespace,
        _ => return Some(message),
    };
    let Some((waiters, mut keys)) = namespaces.keys_of(id).and_then(Keys::logged) else {
        return Some(message);
    };
    if keys.logged.has_failed() {
        return Some(message);
    }
    if waiters.arrived.is_empty() && waiters.takes(&mut keys) {
        waiters.serve(io, &mut keys, message);
    } else {
        waiters.arrived.push_back(message);
    }
    None
}

impl Commands {
    /// Carries on with all logs. Says whether anything came of it.
    pub(crate) fn tend_logs<I: Io<Message>>(&mut self, io: &mut I) -> bool {
        let mut worked = false;
        let (queues, reserve) = (&mut self.queues, &mut self.reserve);
        let (mut entered, mut left) = (Vec::new(), Vec::new());
        self.namespaces.for_each(|at, attached| {
            let id = attached.id;
            let Some((waiters, mut keys)) = attached.keys().and_then(Keys::logged) else { return };
            let keys = &mut keys;
            keys.logged.poll(&mut StoreAccess {
                io: &mut *io,
                queues: &mut *queues,
                reserve: &mut *reserve,
                at,
            });
            if keys.logged.has_failed() {
                worked |= !waiters.is_idle();
                waiters.give_up(io, keys, id);
            }
            if keys.logged.is_ready() && !std::mem::replace(&mut waiters.was_ready, true) {
                worked = true;
            }
            let mut has_run = false;
            while let Some(loaded) = keys.logged.next_loaded() {
                waiters.on_loaded(io, keys, id, &loaded.key, loaded.is_good);
                has_run = true;
            }
            while waiters.takes(keys)
                && let Some(message) = waiters.arrived.pop_front()
            {
                waiters.serve(io, keys, message);
                has_run = true;
            }
            if has_run {
                keys.logged.poll(&mut StoreAccess {
                    io: &mut *io,
                    queues: &mut *queues,
                    reserve: &mut *reserve,
                    at,
                });
                worked = true;
            }
            let settled = keys.logged.settled();
            // Those with later changes may wait behind those with earlier ones: the first says when to look.
            for _ in 0..waiters.held.len() {
                let held = waiters.held.pop_front().expect("counted");
                if held.number <= settled {
                    io.post(held.to, Message::KeyValue(Box::new(held.message)));
                    worked = true;
                } else {
                    waiters.held.push_back(held);
                }
            }
            let is_busy = keys.logged.is_busy() || !waiters.is_idle();
            if is_busy != waiters.is_counted {
                waiters.is_counted = is_busy;
                if is_busy { entered.push(at) } else { left.push(at) }
            }
        });
        entered.into_iter().for_each(|at| self.namespaces.begin(at));
        for at in left {
            self.table_settled |= self.namespaces.end(at);
        }
        worked
    }
}
