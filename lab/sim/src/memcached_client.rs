//! A client of the memcached protocol: it sends commands of all kinds, many at once, and hands every answer to the
//! model.
//!
//! ```text
//! choose ─▶ model.begin ─▶ bytes ─▶ network ─▶ … ─▶ bytes ─▶ the next expected answer ─▶ model.end
//!                             └── the connection ends: model.lose for all that is out
//! ```

mod answer;
mod binary;
mod choice;

use std::collections::VecDeque;

use answer::{Expected, Taken};
use subsystem::MEMCACHED;

use crate::coverage::Point;
use crate::pair_model::PairModel;
use crate::pair_settings::PairSettings;
use crate::random::Random;
use crate::scenario::{MS, SECOND, US};
use crate::shared::network::{Got, Phase};
use crate::shared::{Actor, Shared, Side};

/// The answer of a partition whose log is being read: the connection may be closed behind it.
const NOT_READY: &[u8] = b"SERVER_ERROR not ready: the log is being read\r\n";

/// Beginnings of the answers of a namespace whose log has failed: the connection ends behind them.
const REFUSALS: [&str; 3] = [
    "SERVER_ERROR the log cannot be read\r\n",
    "SERVER_ERROR the log cannot be written\r\n",
    "SERVER_ERROR the value cannot be read\r\n",
];

/// One client of this number speaks the binary protocol.
const BINARY_ONE_IN: u64 = 4;

/// Time limit of an answer, ns.
const TIMEOUT_NS: u64 = 20 * SECOND;

/// Received in one call, at most, bytes.
const STAGING_BYTES: usize = 16 << 10;

/// Progress of the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Link {
    None,
    Dialling(usize),
    Connected(usize),
}

/// The task of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Task {
    /// Commands, at most this many more.
    Work(u64),
    /// No more commands: it awaits the answers.
    Settle,
    /// It gets every key.
    Read,
    /// It closes its connection.
    Close,
}

/// One client, with one connection at a time.
pub(crate) struct MemcachedClient {
    actor: Actor,
    choice: Random,
    /// Its protocol is the binary one.
    is_binary: bool,
    next_opaque: u32,
    link: Link,
    received: Vec<u8>,
    to_send: Vec<u8>,
    expected: VecDeque<Expected>,
    /// By key: the last command of this connection.
    last: Vec<Option<u64>>,
    /// By key: the CAS number that was seen last.
    cas: Vec<Option<u64>>,
    /// Commands of this connection that have no answer.
    unanswered: Vec<(usize, u64)>,
    next_ns: u64,
    dial_ns: u64,
    /// When it gives up its connection.
    deadline_ns: u64,
    /// Until when it receives nothing.
    deaf_until_ns: u64,
    /// Keys that are still to be read in the end.
    left_to_read: Vec<usize>,
    /// Commands sent, and answers received, since they were last asked for.
    pub(crate) sent_count: u64,
    pub(crate) answer_count: u64,
}

impl MemcachedClient {
    pub(crate) fn new(settings: &PairSettings, seed: u64, index: usize, actor: Actor) -> Self {
        Self {
            actor,
            choice: Random::new(seed, 50 + index as u64),
            is_binary: Random::new(seed, 60 + index as u64).one_in(BINARY_ONE_IN),
            next_opaque: 0,
            link: Link::None,
            received: Vec::new(),
            to_send: Vec::new(),
            expected: VecDeque::new(),
            last: vec![None; settings.key_count],
            cas: vec![None; settings.key_count],
            unanswered: Vec::new(),
            next_ns: 0,
            dial_ns: 0,
            deadline_ns: u64::MAX,
            deaf_until_ns: 0,
            left_to_read: (0..settings.key_count).collect(),
            sent_count: 0,
            answer_count: 0,
        }
    }

    /// Whether every command has been answered.
    pub(crate) fn is_idle(&self) -> bool {
        self.expected.is_empty()
    }

    /// Whether every key has been read.
    pub(crate) fn has_read(&self) -> bool {
        self.left_to_read.is_empty() && self.is_idle()
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.link == Link::None
    }

    pub(crate) fn connection(&self) -> Option<usize> {
        if let Link::Connected(id) = self.link { Some(id) } else { None }
    }

    pub(crate) fn run(
        &mut self,
        shared: &mut Shared,
        model: &mut PairModel,
        settings: &PairSettings,
        task: Task,
    ) {
        match self.link {
            Link::None if task == Task::Close => return,
            Link::None if shared.now_ns >= self.dial_ns => {
                self.deadline_ns = shared.now_ns + TIMEOUT_NS;
                self.link = Link::Dialling(shared.dial(self.actor, MEMCACHED));
            }
            Link::None => {}
            Link::Dialling(id) => match shared.connection(id).phase {
                Phase::Dialling => {}
                Phase::Open => {
                    self.link = Link::Connected(id);
                    self.deadline_ns = u64::MAX;
                }
                Phase::Refused => {
                    self.link = Link::None;
                    self.dial_ns = shared.now_ns + self.choice.scaled(10 * MS, SECOND);
                }
            },
            Link::Connected(_) => {}
        }
        if let Link::Connected(id) = self.link {
            if task == Task::Close && self.is_idle() {
                return self.hang_up(shared, model, true);
            }
            let leaves = self.submit(shared, model, settings, task);
            if !self.exchange(shared, model, id) || leaves {
                self.hang_up(shared, model, false);
            }
        }
        if shared.now_ns >= self.deadline_ns && self.link != Link::None {
            self.hang_up(shared, model, false);
        }
        let has_more = match task {
            Task::Work(left) => left > 0,
            Task::Read => !self.left_to_read.is_empty(),
            Task::Settle | Task::Close => false,
        };
        let is_at_work = has_more && self.expected.len() < settings.depth;
        let at_ns = match self.link {
            Link::None if task == Task::Close => return,
            Link::None => self.dial_ns,
            _ if self.deaf_until_ns > shared.now_ns => self.deaf_until_ns.min(self.deadline_ns),
            Link::Connected(_) if is_at_work => self.next_ns.min(self.deadline_ns),
            _ => self.deadline_ns,
        };
        if at_ns < u64::MAX {
            shared.wake_at(self.actor, at_ns.max(shared.now_ns + 1));
        }
    }

    /// Sends commands of a task. Returns whether the client leaves, with its last command perhaps cut off.
    fn submit(
        &mut self,
        shared: &mut Shared,
        model: &mut PairModel,
        settings: &PairSettings,
        task: Task,
    ) -> bool {
        let mut leaves = false;
        match task {
            Task::Work(mut left) => {
                while left > 0 && self.next_ns <= shared.now_ns && self.expected.len() < settings.depth {
                    match self.is_binary {
                        true => self.choose_binary(shared, model, settings),
                        false => self.choose(shared, model, settings),
                    }
                    left -= 1;
                    if self.choice.one_in(3) {
                        self.next_ns = shared.now_ns + self.choice.below(shared.scenario.load.think_ns) + 1;
                    }
                }
                leaves = self.choice.one_in(400);
                if leaves {
                    let length = self.to_send.len() as u64;
                    self.to_send.truncate(self.choice.below(length + 1) as usize);
                    shared.coverage.reach(Point::Event("memcached client left"));
                }
                if self.choice.one_in(20) {
                    self.deaf_until_ns = shared.now_ns + self.choice.scaled(US, 20 * MS);
                }
            }
            Task::Read => {
                while self.expected.len() < settings.depth
                    && let Some(key) = self.left_to_read.pop()
                {
                    match self.is_binary {
                        true => self.request_in_the_end(shared, model, key),
                        false => self.get_in_the_end(shared, model, key),
                    }
                }
            }
            Task::Settle | Task::Close => {}
        }
        if self.deadline_ns == u64::MAX && !self.expected.is_empty() {
            self.deadline_ns = shared.now_ns + TIMEOUT_NS;
        }
        leaves
    }

    /// Sends and receives all that it can. Returns whether the connection stands.
    fn exchange(&mut self, shared: &mut Shared, model: &mut PairModel, id: usize) -> bool {
        loop {
            if !shared.send_from(id, Side::Host, &mut self.to_send) {
                return false;
            }
            if self.deaf_until_ns > shared.now_ns {
                return true;
            }
            let mut staging = [0; STAGING_BYTES];
            match shared.receive(id, Side::Host, &mut [&mut staging]) {
                Got::Bytes(count) => self.received.extend_from_slice(&staging[..count]),
                Got::Dry => return true,
                Got::Ended | Got::Reset => return false,
            }
            match self.take_answers(shared, model) {
                Ok(true) => {}
                Ok(false) => return false,
                Err(finding) => {
                    shared.find(format!("memcached: {finding}"));
                    return false;
                }
            }
        }
    }

    /// Hands complete answers to the model. Returns whether the connection is of use any more.
    fn take_answers(&mut self, shared: &mut Shared, model: &mut PairModel) -> Result<bool, String> {
        let received = std::mem::take(&mut self.received);
        let mut at = 0;
        let stands = self.take_from(shared, model, &received, &mut at);
        self.received = received;
        self.received.drain(..at);
        stands
    }

    /// Takes the complete answers of `received`, from `at` on.
    fn take_from(
        &mut self,
        shared: &mut Shared,
        model: &mut PairModel,
        received: &[u8],
        at: &mut usize,
    ) -> Result<bool, String> {
        loop {
            let rest = &received[*at..];
            if rest.starts_with(NOT_READY) {
                return Ok(false);
            }
            if let Some(refusal) = REFUSALS.iter().find(|refusal| rest.starts_with(refusal.as_bytes())) {
                if !model.refusals.contains(refusal) {
                    return Err(format!("{refusal:?} comes without an error of the disk"));
                }
                self.be_refused(shared, model);
                return Ok(false);
            }
            if self.is_binary && rest.first() != Some(&b'S') {
                match self.take_response(shared, model, rest)? {
                    binary::Taken::Nothing => break,
                    binary::Taken::Response(bytes) => *at += bytes,
                    binary::Taken::End => return Ok(false),
                }
                self.await_next(shared);
                continue;
            }
            let Some(front) = self.expected.front_mut() else {
                // Commands that want no answer are refused as well.
                let is_begun = |refusal: &[u8]| refusal.starts_with(rest);
                if is_begun(NOT_READY) || REFUSALS.iter().any(|refusal| is_begun(refusal.as_bytes())) {
                    break;
                }
                return Err(format!("{:?} came, and nothing is out", String::from_utf8_lossy(rest)));
            };
            let (bytes, is_over) = match front.take(rest, model, &mut self.cas, shared.now_ns)? {
                Taken::Nothing => break,
                Taken::Part(bytes) => (bytes, false),
                Taken::Whole(bytes) => (bytes, true),
                // Its partition has not been attached yet.
                Taken::Gone if shared.now_ns < shared.started_ns + shared.scenario.order_ns_max() => {
                    shared.reach_event("memcached command before its partition");
                    return Ok(false);
                }
                Taken::Gone => return Err("the namespace is said to be gone".into()),
            };
            *at += bytes;
            if is_over {
                self.expected.pop_front();
                self.answer_count += 1;
                self.await_next(shared);
            }
        }
        Ok(true)
    }

    /// A command is answered: the next answer is awaited from now on.
    fn await_next(&mut self, shared: &Shared) {
        self.deadline_ns = if self.expected.is_empty() { u64::MAX } else { shared.now_ns + TIMEOUT_NS };
    }

    /// A command is refused for an error of the log: those behind it may be executed without it.
    fn be_refused(&mut self, shared: &mut Shared, model: &mut PairModel) {
        shared.reach_event("memcached client told of an error of the log");
        let out = self.expected.iter().flat_map(Expected::commands).chain(self.unanswered.iter().copied());
        out.for_each(|(key, command)| model.unorder(key, command));
        // A value that is lost would be read in the end without end.
        let is_lost_look = |front: &Expected| shared.log_disk.has_lost_blocks && front.last_look().is_some();
        if self.expected.front().is_some_and(is_lost_look)
            && let Some(front) = self.expected.pop_front()
        {
            shared.reach_event("memcached client told in the end of a value that is lost");
            front.commands().iter().for_each(|(key, command)| model.lose(*key, *command, shared.now_ns));
        }
    }

    /// The connection is over, and with it the answers that are still out.
    fn hang_up(&mut self, shared: &mut Shared, model: &mut PairModel, is_done: bool) {
        match std::mem::replace(&mut self.link, Link::None) {
            Link::Connected(id) if is_done => shared.close(id, Side::Host),
            Link::Connected(id) | Link::Dialling(id) => shared.reset(id, Side::Host),
            Link::None => {}
        }
        let expected = std::mem::take(&mut self.expected);
        let lost = expected.iter().flat_map(Expected::commands).chain(self.unanswered.drain(..));
        for (key, command) in lost {
            model.lose(key, command, shared.now_ns);
        }
        // Keys that were to be read in the end are read again.
        self.left_to_read.extend(expected.iter().filter_map(Expected::last_look));
        self.last.fill(None);
        self.received.clear();
        self.to_send.clear();
        self.deadline_ns = u64::MAX;
        self.dial_ns = shared.now_ns + self.choice.scaled(MS, 500 * MS);
    }
}
