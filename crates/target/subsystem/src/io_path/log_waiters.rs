//! Key-value namespaces whose pairs are kept in a log or in a cluster: commands that wait for values, and answers that wait until the changes they report
//! are durable.
//!
//! ```text
//! Run, Act, RunPart, Ask ─▶ not read yet: kept │ value in the log: station, fetch │ else carried out ─▶ answer
//!                                                         └─ loaded ─▶ all that waits, in order ─┘  │
//!                                        settled up to the change that it has seen ─▶ posted ◀──────┘
//! ```
//!
//! A Store that does not fit in memory waits, and so does everything behind it, until more of the log is written:
//! values in the log can then leave memory. Once all is written the Store is executed in any case, and refused if there
//! is still no memory. A change waits likewise while the changes to be written fill a write of the log.

mod part;

use std::collections::VecDeque;

use kv::log::{Failure, FetchError};
use kv::{Arrival, KEY_BYTES_MAX, ListPosition, Station};
use memcached::{
    AnswerId, CollectiveRequest, Command, Executor, LargeStore, PIECE_BYTES, RemoteBatch, Service, Verb,
};
use memory::CHUNK_BYTES;
use reactor::Io;
use store::{DurablePartition, KeyList, Need, Pause};
use wire::status::Status;

use crate::io_path::log_waiters::part::Part;
use crate::messages::key_value::action::{self, KvAction, KvOutcome};
use crate::messages::key_value::batch_part::{self, AHEAD_COUNT, PartOfBatch};
use crate::messages::key_value::key_name::KeyName;
use crate::messages::key_value::message::{
    CommandReply, Copied, KeyValueMessage, MemcachedReply, PartitionRequest, RemoteAnswers, Work,
};
use crate::messages::key_value::perform::{listed, perform};
use crate::messages::message::Message;
use crate::objects::subsystem::NamespaceId;

/// Messages wait while more commands than this wait for values.
const PARKED_COUNT_MAX: usize = 16 * 1024;

/// The commands and answers that wait for the log of one namespace on one reactor.
pub(crate) struct LogWaiters {
    station: Station<Parked>,
    /// Parts of batches with operations that wait for values.
    parts: Vec<Option<Part>>,
    held: VecDeque<Held>,
    /// Lists of keys that are made below: who asks, and for which.
    lists: Vec<(usize, store::Ticket, KeyName, KvAction)>,
    /// Requests that arrived before the log was read, or while too many commands waited.
    arrived: VecDeque<PartitionRequest>,
    /// The resource that the first of them waits for.
    shortage: Option<Shortage>,
    /// Whether it is counted as running in the namespace.
    is_counted: bool,
    was_ready: bool,
    was_slow: bool,
    /// Whether commands go on that have waited for values.
    is_resuming: bool,
    was_failed: bool,
}

impl Default for LogWaiters {
    fn default() -> Self {
        Self {
            station: Station::new(usize::MAX),
            parts: Vec::new(),
            held: VecDeque::new(),
            lists: Vec::new(),
            arrived: VecDeque::new(),
            shortage: None,
            is_counted: false,
            was_ready: false,
            was_slow: false,
            is_resuming: false,
            was_failed: false,
        }
    }
}

/// The resource that a request waits for.
#[derive(Clone, Copy)]
enum Shortage {
    /// Memory: there may be some once the log has written more than this.
    Memory(u64),
    /// The log, until it admits a change of this many bytes.
    Log(usize),
}

/// A partition with a log.
pub(crate) struct LoggedKeys<'a> {
    pub(crate) logged: &'a mut dyn DurablePartition,
    /// The memcached server on it.
    pub(crate) memcached: &'a mut Service,
}

impl LoggedKeys<'_> {
    /// The partition as the memcached protocol sees it.
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
    /// A memcached command.
    Command(RemoteBatch),
    /// A memcached command whose value arrived in parts.
    Large(u64, AnswerId, LargeStore),
    /// An NVMe command.
    Action(store::Ticket, KeyName, KvAction),
    /// An operation of a batch: its part, and its index.
    Operation(usize, usize),
}

/// An answer that waits until a change is durable.
struct Held {
    number: u64,
    to: usize,
    message: KeyValueMessage,
}

impl LogWaiters {
    pub(super) fn is_idle(&self) -> bool {
        self.station.is_empty() && self.held.is_empty() && self.lists.is_empty() && self.arrived.is_empty()
    }

    /// Counts the waiting work as running in the namespace, until a check finds none. Returns whether it was newly
    /// counted.
    pub(crate) fn count_in(&mut self) -> bool {
        !std::mem::replace(&mut self.is_counted, true)
    }

    fn takes(&self, keys: &mut LoggedKeys<'_>) -> bool {
        let is_short = match self.shortage {
            None => false,
            _ if keys.logged.is_full() => false,
            Some(Shortage::Memory(at)) => keys.logged.progress() == Some(at),
            Some(Shortage::Log(bytes)) => !keys.logged.admits(bytes),
        };
        let is_behind = self.arrived.front().is_some_and(|request| self.is_behind_values(request));
        keys.logged.is_ready() && self.station.len() <= PARKED_COUNT_MAX && !is_short && !is_behind
    }

    /// Whether a request changes all pairs, and commands from before it still wait for values.
    fn is_behind_values(&self, request: &PartitionRequest) -> bool {
        let changes_all = matches!(&request.work, Work::Collect { request, .. } if request.changes_pairs());
        changes_all && !self.station.is_empty()
    }

    /// Whether a request may be executed: the log admits its change, if it may make one, and the values that it brings
    /// fit in memory, or waiting would not help.
    fn has_room(&mut self, keys: &mut LoggedKeys<'_>, needs: Needs<'_>) -> bool {
        self.shortage = match needs {
            _ if keys.logged.is_full() => None,
            Needs { change_bytes: Some(bytes), .. } if !keys.logged.admits(bytes) => {
                Some(Shortage::Log(bytes))
            }
            Needs { brought_bytes: 1.., needed, .. }
                if !keys.logged.has_room(needs.brought_bytes, needed) =>
            {
                keys.logged.progress().map(Shortage::Memory)
            }
            _ => None,
        };
        self.shortage.is_none()
    }

    /// Puts requests that have to wait in front of all others.
    fn put_back(&mut self, requests: impl DoubleEndedIterator<Item = PartitionRequest>) {
        requests.rev().for_each(|request| self.arrived.push_front(request));
    }

    /// Posts an answer, now or when the change it depends on is durable.
    fn answer(
        &mut self,
        io: &mut impl Io<Message>,
        number: Option<u64>,
        to: usize,
        message: impl Into<KeyValueMessage>,
    ) {
        match number {
            None => io.post(to, message.into().into()),
            Some(number) => self.held.push_back(Held { number, to, message: message.into() }),
        }
    }

    /// Counts a command by where the value that it needs is, the first time.
    fn count_need(&self, keys: &mut LoggedKeys<'_>, key: &[u8], need: Need) {
        if !self.is_resuming {
            keys.logged.count_need(key, need);
        }
    }

    /// Queues a command if the value of its key is being fetched, or has to be.
    fn park(&mut self, keys: &mut LoggedKeys<'_>, key: &[u8], need: Need, parked: Parked) -> Option<Parked> {
        self.count_need(keys, key, need);
        if !self.station.is_reserved(key) && !keys.logged.must_fetch(key, need) {
            return Some(parked);
        }
        match self.station.on_operation(key, parked) {
            Arrival::Fetch => keys.logged.fetch(key),
            Arrival::Waits => {}
            Arrival::Full(_) => unreachable!("it has room for all"),
        }
        None
    }

    /// Executes memcached commands, and returns those that have to wait.
    fn run(
        &mut self,
        io: &mut impl Io<Message>,
        keys: &mut LoggedKeys<'_>,
        from: usize,
        batch: &RemoteBatch,
    ) -> RemoteBatch {
        let mut answers = RemoteAnswers::default();
        let (mut number, mut copied) = (None, Copied::default());
        let mut rest = RemoteBatch::default();
        batch.for_each(|session, ticket, hash, command| {
            let mut room = [0; KEY_BYTES_MAX];
            let key = command.stored_key(&mut room);
            if !rest.is_empty() || !self.has_room(keys, Needs::of_command(command, key)) {
                return rest.push(session, ticket, hash, command);
            }
            if command.may_change() && keys.logged.is_full() {
                return answers.push_refused(session, ticket, Refusal::NO_SPACE.answer);
            }
            let need = need_of(&command.verb);
            if self.station.is_reserved(key) || keys.logged.must_fetch(key, need) {
                let mut one = RemoteBatch::default();
                one.push(session, ticket, hash, command);
                self.park(keys, key, need, Parked { from, what: Waiting::Command(one) });
                return;
            }
            self.count_need(keys, key, need);
            answers.push_command(&mut copied, (session, ticket), keys.executor(), (hash, command));
            let awaited = keys.logged.awaited(hash);
            number = keys.logged.both(number, awaited);
            if answers.is_full() {
                self.answer(io, number, from, MemcachedReply::Answers(std::mem::take(&mut answers)));
            }
        });
        if !answers.is_empty() {
            self.answer(io, number, from, MemcachedReply::Answers(answers));
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
        let (hash, need) = (store.hash, need_of(&head.verb));
        let parked = Parked { from, what: Waiting::Large(session, ticket, store) };
        let Some(parked) = self.park(keys, &key, need, parked) else { return };
        let Parked { what: Waiting::Large(_, _, store), .. } = parked else { return };
        let mut answers = RemoteAnswers::default();
        answers.push_executed(session, ticket, keys.executor(), |executor, bytes| {
            executor.execute_large(store, bytes);
        });
        self.answer(io, keys.logged.awaited(hash), from, MemcachedReply::Answers(answers));
    }

    #[expect(clippy::too_many_arguments, reason = "a message, taken apart")]
    fn act(
        &mut self,
        io: &mut impl Io<Message>,
        keys: &mut LoggedKeys<'_>,
        from: usize,
        namespace: NamespaceId,
        ticket: store::Ticket,
        key: KeyName,
        action: KvAction,
    ) {
        if let KvAction::List { from: place, .. } = &action
            && keys.logged.lists_below()
        {
            keys.logged.begin_list(*place == ListPosition::default());
            return self.lists.push((from, ticket, key, action));
        }
        let need = action.need();
        let is_of_key = !matches!(action, KvAction::List { .. } | KvAction::Flush);
        let parked = Parked { from, what: Waiting::Action(ticket, key.clone(), action) };
        let parked = if is_of_key { self.park(keys, key.as_bytes(), need, parked) } else { Some(parked) };
        let Some(Parked { what: Waiting::Action(_, _, action), .. }) = parked else { return };
        let number_of_flush = matches!(action, KvAction::Flush).then(|| keys.logged.request_flush());
        let next = io.reactor() + 1;
        let is_room = matches!(action, KvAction::Reserve { .. });
        let outcome = perform(keys.logged.partition(), key.as_bytes(), action, next == io.reactor_count());
        let has_room = is_room && outcome.as_ref().is_ok_and(|outcome| outcome.status.is_success());
        let hash = keys.logged.partition().processor.hash(key.as_bytes());
        let number = match number_of_flush {
            Some(number) => Some(number).filter(|number| !keys.logged.is_settled(*number)),
            // A list shows all keys.
            None if !is_of_key => keys.logged.awaited_last(),
            // The memory check of one value does not cover the next.
            None if !has_room => keys.logged.awaited(hash),
            None => None,
        };
        match outcome {
            Ok(outcome) => self.answer(io, number, from, CommandReply::Outcome(ticket, outcome)),
            Err(action) => {
                let next = if action.continues_here() { io.reactor() } else { next };
                let work = Work::Act { ticket, key, action };
                self.answer(io, number, next, PartitionRequest { from, namespace, work });
            }
        }
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

    /// Executes an operation of a part, unless it has to wait for its value.
    fn run_of_part(&mut self, keys: &mut LoggedKeys<'_>, part: &mut Part, place: usize, at: usize) {
        let operation = part.operation(at);
        if action::changes(operation.opcode) && keys.logged.is_full() {
            return part.refuse(at, Refusal::NO_SPACE.status);
        }
        let waiting = Parked { from: part.from, what: Waiting::Operation(place, at) };
        let need = action::need(operation.opcode, operation.options);
        if self.park(keys, operation.key, need, waiting).is_none() {
            return;
        }
        let hash = keys.logged.partition().processor.hash(operation.key);
        part.run(keys.logged.partition(), at);
        let awaited = keys.logged.awaited(hash);
        part.number = keys.logged.both(part.number, awaited);
    }

    fn keep_or_answer(&mut self, io: &mut impl Io<Message>, place: usize, part: Part) {
        if !part.is_over() {
            self.parts[place] = Some(part);
            return;
        }
        let (ticket, partition, outcomes) = (part.ticket, io.reactor(), part.outcomes());
        let answer = CommandReply::PartOutcomes { ticket, partition, outcomes };
        self.answer(io, part.number, part.from, answer);
    }

    /// The value that an operation of a part waited for has arrived or is unavailable.
    fn go_on_with_part(
        &mut self,
        io: &mut impl Io<Message>,
        keys: &mut LoggedKeys<'_>,
        (place, at): (usize, usize),
        result: Result<(), Refusal>,
    ) {
        let mut part = self.parts[place].take().expect("it waits for this operation");
        match result {
            Ok(()) => self.run_of_part(keys, &mut part, place, at),
            Err(refusal) => part.refuse(at, refusal.status),
        }
        self.keep_or_answer(io, place, part);
    }

    fn ask(
        &mut self,
        io: &mut impl Io<Message>,
        keys: &mut LoggedKeys<'_>,
        (from, session, ticket): (usize, u64, AnswerId),
        request: CollectiveRequest,
    ) {
        let stats = Box::new(keys.executor().collect(request));
        let number = if request.changes_pairs() { keys.logged.awaited_last() } else { None };
        self.answer(io, number, from, MemcachedReply::Stats { session, ticket, stats });
    }

    /// Serves a request; one that has to wait is queued again.
    fn serve(&mut self, io: &mut impl Io<Message>, keys: &mut LoggedKeys<'_>, request: PartitionRequest) {
        if self.is_behind_values(&request)
            || !self.has_room(keys, Needs::of(&request.work, &mut [0; KEY_BYTES_MAX]))
        {
            return self.put_back(std::iter::once(request));
        }
        keys.logged.partition().set_now(io.moment());
        let PartitionRequest { from, namespace, work } = request;
        let is_full = keys.logged.is_full();
        match work {
            Work::Act { ticket, action, .. } if is_full && action.change_bytes().is_some() => {
                io.post(from, failed(ticket, Refusal::NO_SPACE.status).into());
            }
            Work::StoreLarge { session, ticket, store } if is_full => {
                drop(store);
                refuse(io, from, &[(session, ticket)], Refusal::NO_SPACE);
            }
            Work::Execute(batch) => {
                let batch = self.run(io, keys, from, &batch);
                if !batch.is_empty() {
                    let work = Work::Execute(batch);
                    self.put_back(std::iter::once(PartitionRequest { from, namespace, work }));
                }
            }
            Work::Reserve { session, count } => {
                let chunks = keys.logged.partition().processor.take_chunks(count).unwrap_or_default();
                io.post(from, MemcachedReply::Room { session, chunks }.into());
            }
            Work::Fetch { session, kept, offset } => {
                let piece = keys.logged.partition().processor.piece(&kept, offset, PIECE_BYTES);
                io.post(from, MemcachedReply::Piece { session, piece: piece.unwrap_or_default() }.into());
            }
            Work::Act { ticket, key, action } => self.act(io, keys, from, namespace, ticket, key, action),
            Work::RunPart { ticket, part } => self.run_part(io, keys, (from, ticket), part),
            Work::StoreLarge { session, ticket, store } => {
                self.store_large(io, keys, from, (session, ticket), store);
            }
            Work::Collect { session, ticket, request } => {
                self.ask(io, keys, (from, session, ticket), request);
            }
        }
    }

    /// A value has arrived or is unavailable.
    fn on_loaded(
        &mut self,
        io: &mut impl Io<Message>,
        keys: &mut LoggedKeys<'_>,
        namespace: NamespaceId,
        key: &[u8],
        result: Result<(), Refusal>,
    ) {
        let mut waiting = Vec::new();
        self.station.on_value(key, |parked| waiting.push(parked));
        self.go_on(io, keys, namespace, waiting, result);
    }

    /// Values have arrived or are unavailable: resumes the commands that waited for them.
    fn go_on(
        &mut self,
        io: &mut impl Io<Message>,
        keys: &mut LoggedKeys<'_>,
        namespace: NamespaceId,
        waiting: Vec<Parked>,
        result: Result<(), Refusal>,
    ) {
        // A request that waits for memory or the log blocks all behind it.
        let mut short = Vec::new();
        self.is_resuming = true;
        for Parked { from, what } in waiting {
            match (what, result) {
                (Waiting::Command(batch), Ok(())) => {
                    let batch = if short.is_empty() { self.run(io, keys, from, &batch) } else { batch };
                    if !batch.is_empty() {
                        short.push(PartitionRequest { from, namespace, work: Work::Execute(batch) });
                    }
                }
                (Waiting::Large(session, ticket, store), Ok(())) => {
                    let work = Work::StoreLarge { session, ticket, store };
                    self.serve_unless(io, keys, PartitionRequest { from, namespace, work }, &mut short);
                }
                (Waiting::Action(ticket, key, action), Ok(())) => {
                    let work = Work::Act { ticket, key, action };
                    self.serve_unless(io, keys, PartitionRequest { from, namespace, work }, &mut short);
                }
                (Waiting::Operation(place, at), _) => self.go_on_with_part(io, keys, (place, at), result),
                (Waiting::Command(batch), Err(refusal)) => {
                    let mut asked = Vec::new();
                    batch.for_each(|session, ticket, _, _| asked.push((session, ticket)));
                    refuse(io, from, &asked, refusal);
                }
                (Waiting::Large(session, ticket, _), Err(refusal)) => {
                    refuse(io, from, &[(session, ticket)], refusal);
                }
                (Waiting::Action(ticket, ..), Err(refusal)) => {
                    io.post(from, failed(ticket, refusal.status).into());
                }
            }
        }
        self.is_resuming = false;
        self.put_back(short.into_iter());
    }

    /// Serves a request, unless it must wait, for memory or the log or behind others that do.
    fn serve_unless(
        &mut self,
        io: &mut impl Io<Message>,
        keys: &mut LoggedKeys<'_>,
        request: PartitionRequest,
        short: &mut Vec<PartitionRequest>,
    ) {
        if !short.is_empty() || !self.has_room(keys, Needs::of(&request.work, &mut [0; KEY_BYTES_MAX])) {
            short.push(request);
        } else {
            self.serve(io, keys, request);
        }
    }

    /// Fails everything that waits: nothing can be executed, for now or any more.
    pub(super) fn give_up(
        &mut self,
        io: &mut impl Io<Message>,
        keys: &mut LoggedKeys<'_>,
        namespace: NamespaceId,
        refusal: Refusal,
    ) {
        for (from, ticket, ..) in std::mem::take(&mut self.lists) {
            io.post(from, failed(ticket, refusal.status).into());
        }
        while let Some(loaded) = keys.logged.next_loaded() {
            self.on_loaded(io, keys, namespace, &loaded.key, Err(refusal));
        }
        let waiting = self.station.drain().collect();
        self.go_on(io, keys, namespace, waiting, Err(refusal));
        self.refuse_held(io, refusal);
        self.take_in_again(io);
    }

    /// Sends the waiting requests to this reactor again, which answers them.
    fn take_in_again(&mut self, io: &mut impl Io<Message>) {
        for request in std::mem::take(&mut self.arrived) {
            io.post(io.reactor(), request.into());
        }
    }

    /// Without space for the log, fails the answers that wait for a change that is not settled: it is unknown whether it
    /// survives. Returns whether there were any.
    pub(super) fn refuse_unsettled(&mut self, io: &mut impl Io<Message>, keys: &mut LoggedKeys<'_>) -> bool {
        self.post_settled(io, keys);
        let has_held = !self.held.is_empty();
        self.refuse_held(io, Refusal::NO_SPACE);
        has_held
    }

    /// Fails the answers that wait for changes.
    fn refuse_held(&mut self, io: &mut impl Io<Message>, refusal: Refusal) {
        for Held { to, message, .. } in std::mem::take(&mut self.held) {
            match message {
                KeyValueMessage::Request(PartitionRequest {
                    from, work: Work::Act { ticket, .. }, ..
                }) => {
                    io.post(from, failed(ticket, refusal.status).into());
                }
                KeyValueMessage::ToMemcached(MemcachedReply::Answers(answers)) => {
                    io.post(to, MemcachedReply::Answers(answers.refused(refusal.answer)).into());
                }
                KeyValueMessage::ToMemcached(MemcachedReply::Stats { session, ticket, mut stats }) => {
                    stats.refusal = Some(refusal.answer);
                    io.post(to, MemcachedReply::Stats { session, ticket, stats }.into());
                }
                KeyValueMessage::ToCommand(CommandReply::Outcome(ticket, _)) => {
                    io.post(to, failed(ticket, refusal.status).into());
                }
                KeyValueMessage::ToCommand(CommandReply::PartOutcomes { ticket, partition, outcomes }) => {
                    let outcomes = batch_part::refused(&outcomes, refusal.status);
                    io.post(to, CommandReply::PartOutcomes { ticket, partition, outcomes }.into());
                }
                message => io.post(to, message.into()),
            }
        }
    }

    /// Accepts a request, and serves it unless it has to wait. Returns it if the log has failed, or is read for so long
    /// that it does not wait.
    pub(super) fn take_in(
        &mut self,
        io: &mut impl Io<Message>,
        keys: &mut LoggedKeys<'_>,
        request: PartitionRequest,
    ) -> Option<PartitionRequest> {
        // A request to all partitions cannot report that one of them did not take part.
        let waits = matches!(request.work, Work::Collect { .. });
        let is_refused = match keys.logged.pause() {
            None => false,
            Some(Pause::Reading) => !waits,
            Some(Pause::Unreachable | Pause::Taken) => true,
        };
        if keys.logged.failure().is_some() || is_refused {
            return Some(request);
        }
        if self.arrived.is_empty() && self.takes(keys) {
            self.serve(io, keys, request);
        } else {
            self.arrived.push_back(request);
        }
        None
    }

    /// Serves the requests that have become ready since the log was polled. Returns whether there were any.
    pub(super) fn resume(
        &mut self,
        io: &mut impl Io<Message>,
        keys: &mut LoggedKeys<'_>,
        namespace: NamespaceId,
    ) -> bool {
        let mut has_run = false;
        while let Some(loaded) = keys.logged.next_loaded() {
            self.on_loaded(io, keys, namespace, &loaded.key, loaded.result.map_err(Refusal::from));
            has_run = true;
        }
        while let Some(listed) = keys.logged.next_listed() {
            self.answer_lists(io, listed.as_ref());
            has_run = true;
        }
        while self.takes(keys)
            && let Some(request) = self.arrived.pop_front()
        {
            self.serve(io, keys, request);
            has_run = true;
        }
        has_run
    }

    /// Answers the lists that were asked for.
    fn answer_lists(&mut self, io: &mut impl Io<Message>, all: Option<&KeyList>) {
        for (from, ticket, key, action) in std::mem::take(&mut self.lists) {
            let KvAction::List { from: place, scope, room, .. } = action else { unreachable!("only lists") };
            let first: &[u8] = if place == ListPosition::default() { &[] } else { key.as_bytes() };
            let reply = match all {
                Some(all) => {
                    let rest = &all[all.partition_point(|key| &**key < first)..];
                    CommandReply::Outcome(ticket, listed(rest, scope.as_deref(), room))
                }
                None => failed(ticket, Refusal::UNREACHABLE.status),
            };
            io.post(from, reply.into());
        }
    }

    /// Posts the answers whose changes are durable. Returns whether there were any.
    pub(super) fn post_settled(&mut self, io: &mut impl Io<Message>, keys: &mut LoggedKeys<'_>) -> bool {
        let mut has_posted = false;
        // Later changes may queue behind earlier ones: the first gives the time of the next check.
        for _ in 0..self.held.len() {
            let held = self.held.pop_front().expect("counted");
            if keys.logged.is_settled(held.number) {
                io.post(held.to, held.message.into());
                has_posted = true;
            } else {
                self.held.push_back(held);
            }
        }
        has_posted
    }

    /// Commands are refused for now, or no longer. Returns whether there was anything to do.
    pub(super) fn follow_pause(
        &mut self,
        io: &mut impl Io<Message>,
        keys: &mut LoggedKeys<'_>,
        namespace: NamespaceId,
    ) -> bool {
        let pause = keys.logged.pause();
        let is_new = !std::mem::replace(&mut self.was_slow, pause.is_some());
        match pause {
            Some(Pause::Reading) if is_new => self.take_in_again(io),
            // What was begun may end later, or not at all.
            Some(Pause::Unreachable) if !self.is_idle() => {
                self.give_up(io, keys, namespace, Refusal::UNREACHABLE);
            }
            Some(Pause::Taken) => {
                let has_waiting = !self.is_idle();
                if has_waiting {
                    self.give_up(io, keys, namespace, Refusal::TAKEN);
                }
                keys.logged.begin_anew();
                return has_waiting;
            }
            _ => return false,
        }
        true
    }

    /// Whether its log has become ready since the last call.
    pub(super) fn has_become_ready(&mut self, is_ready: bool) -> bool {
        is_ready && !std::mem::replace(&mut self.was_ready, true)
    }

    /// The log has failed. Returns whether this is the first call.
    pub(super) fn has_become_failed(&mut self) -> bool {
        !std::mem::replace(&mut self.was_failed, true)
    }

    /// Whether it is now counted as running in the namespace or no longer; `None` if that has not changed.
    pub(super) fn count_change(&mut self, is_busy: bool) -> Option<bool> {
        let is_busy = is_busy || !self.is_idle();
        (std::mem::replace(&mut self.is_counted, is_busy) != is_busy).then_some(is_busy)
    }
}

/// The answers to commands that a log keeps from being executed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Refusal {
    /// To memcached clients.
    pub(crate) answer: memcached::Refusal,
    /// To NVMe hosts.
    pub(crate) status: Status,
}

impl Refusal {
    /// The file system has no space for the log.
    const NO_SPACE: Self = Self::new(
        b"SERVER_ERROR out of space\r\n",
        memcached::Refusal::OUT_OF_MEMORY,
        Status::CAPACITY_EXCEEDED,
    );

    /// The log is read at the start, and that takes long.
    const NOT_READY: Self = Self::new(
        b"SERVER_ERROR not ready: the log is being read\r\n",
        memcached::Refusal::TEMPORARY_FAILURE,
        Status::NAMESPACE_NOT_READY,
    );

    /// The cluster does not answer.
    const UNREACHABLE: Self = Self::new(
        b"SERVER_ERROR the cluster does not answer\r\n",
        memcached::Refusal::TEMPORARY_FAILURE,
        Status::INTERNAL_PATH_ERROR,
    );

    /// Another target owns the keys: there may be a path through it.
    const TAKEN: Self = Self::new(
        b"SERVER_ERROR another target owns the keys\r\n",
        memcached::Refusal::INTERNAL_ERROR,
        Status::INTERNAL_PATH_ERROR,
    );

    const fn new(line: &'static [u8], binary_status: u16, status: Status) -> Self {
        Self { answer: memcached::Refusal { line, status: binary_status }, status }
    }
}

impl From<Pause> for Refusal {
    fn from(pause: Pause) -> Self {
        match pause {
            Pause::Reading => Self::NOT_READY,
            Pause::Unreachable => Self::UNREACHABLE,
            Pause::Taken => Self::TAKEN,
        }
    }
}

impl From<Failure> for Refusal {
    fn from(failure: Failure) -> Self {
        let answer: &[u8] = match failure {
            Failure::Superblocks { .. } | Failure::Damaged { .. } => b"SERVER_ERROR the log is damaged\r\n",
            Failure::Missing { .. } => b"SERVER_ERROR a part of the log is missing\r\n",
            Failure::Unreadable => b"SERVER_ERROR the log cannot be read\r\n",
            Failure::Unwritable => b"SERVER_ERROR the log cannot be written\r\n",
            Failure::NoMemory { .. } => b"SERVER_ERROR the log does not fit in memory\r\n",
            Failure::Stopped => b"SERVER_ERROR the namespace is gone\r\n",
            Failure::Refused => b"SERVER_ERROR the cluster refuses requests\r\n",
        };
        let status = match failure {
            // There may be a path through another target.
            Failure::Refused => {
                return Self::new(answer, memcached::Refusal::INTERNAL_ERROR, Status::INTERNAL_PATH_ERROR);
            }
            Failure::NoMemory { .. } | Failure::Stopped => Status::NAMESPACE_NOT_READY,
            _ => Status::KV_UNRECOVERED_ERROR,
        };
        Self::new(answer, memcached::Refusal::INTERNAL_ERROR, status.with_dnr())
    }
}

impl From<FetchError> for Refusal {
    fn from(error: FetchError) -> Self {
        match error {
            FetchError::Unreadable => Self::new(
                b"SERVER_ERROR the value cannot be read\r\n",
                memcached::Refusal::INTERNAL_ERROR,
                Status::KV_UNRECOVERED_ERROR.with_dnr(),
            ),
            FetchError::Damaged => Self::new(
                b"SERVER_ERROR the value is damaged\r\n",
                memcached::Refusal::INTERNAL_ERROR,
                Status::KV_UNRECOVERED_ERROR.with_dnr(),
            ),
            FetchError::NoMemory => Self::new(
                b"SERVER_ERROR out of memory reading the value\r\n",
                memcached::Refusal::OUT_OF_MEMORY,
                Status::COMMAND_INTERRUPTED,
            ),
        }
    }
}

/// The resources that a request needs.
#[derive(Clone, Copy, Default)]
struct Needs<'a> {
    /// Bytes of values that it stores or reserves.
    brought_bytes: usize,
    /// If it may change pairs, bytes to be written to the log for that.
    change_bytes: Option<usize>,
    /// The key whose value must be in memory.
    needed: Option<&'a [u8]>,
}

impl<'a> Needs<'a> {
    /// The needs of a request; memcached commands are checked one by one. `room` receives a key that must be decoded.
    fn of(work: &'a Work, room: &'a mut [u8; KEY_BYTES_MAX]) -> Self {
        let (brought_bytes, change_bytes) = match work {
            Work::Act { key, action, .. } => {
                let change_bytes = action.change_bytes();
                (action.brought_bytes(), change_bytes.map(|bytes| key.as_bytes().len() + bytes))
            }
            Work::RunPart { part, .. } => (part.operation_bytes(), Some(part.operation_bytes())),
            Work::StoreLarge { store, .. } => {
                let head = store.head();
                let change_bytes = Some(store.value_bytes());
                let needed = head.verb.needs_value().then(|| head.stored_key(room));
                return Self { brought_bytes: store.rest_bytes(), change_bytes, needed };
            }
            Work::Reserve { count, .. } => (count * CHUNK_BYTES, None),
            Work::Execute(_) | Work::Fetch { .. } | Work::Collect { .. } => (0, None),
        };
        // No NVMe command that brings a value needs another one.
        Self { brought_bytes, change_bytes, needed: None }
    }

    /// The needs of a memcached command on `key`.
    fn of_command(command: &Command<'_>, key: &'a [u8]) -> Self {
        let change_bytes = command.key.len() + command.value.len();
        Self {
            brought_bytes: command.value.len(),
            change_bytes: command.may_change().then_some(change_bytes),
            needed: command.verb.needs_value().then_some(key),
        }
    }
}

/// What a memcached command needs to know of its key.
fn need_of(verb: &Verb) -> Need {
    match verb {
        verb if verb.needs_value() => Need::Value,
        verb if verb.needs_presence() => Need::Presence,
        _ => Need::Nothing,
    }
}

fn failed(ticket: store::Ticket, status: Status) -> CommandReply {
    CommandReply::Outcome(ticket, KvOutcome::new(status))
}

fn refuse(io: &mut impl Io<Message>, from: usize, asked: &[(u64, AnswerId)], refusal: Refusal) {
    let mut answers = RemoteAnswers::default();
    for &(session, ticket) in asked {
        answers.push_refused(session, ticket, refusal.answer);
    }
    io.post(from, MemcachedReply::Answers(answers).into());
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A value that memory is too short for still exists: the host may repeat the command.
    #[test]
    fn a_host_is_told_why_a_value_cannot_be_had() {
        let of_fetch = |error| Refusal::from(error).status;
        assert_eq!(of_fetch(FetchError::NoMemory), Status::COMMAND_INTERRUPTED, "it may be repeated");
        assert_eq!(of_fetch(FetchError::Unreadable), Status::KV_UNRECOVERED_ERROR.with_dnr());
        let of_log = |failure| Refusal::from(failure).status;
        for failure in [Failure::NoMemory { needed_bytes: 1 }, Failure::Stopped] {
            assert_eq!(of_log(failure), Status::NAMESPACE_NOT_READY.with_dnr(), "{failure:?}");
        }
        assert_eq!(Refusal::NOT_READY.status, Status::NAMESPACE_NOT_READY, "it may be repeated");
        for failure in [Failure::Unreadable, Failure::Unwritable, Failure::Missing { generation: 1 }] {
            assert_eq!(of_log(failure), Status::KV_UNRECOVERED_ERROR.with_dnr(), "{failure:?}");
        }
    }
}
