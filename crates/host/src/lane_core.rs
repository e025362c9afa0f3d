//! A lane without its socket: one I/O queue pair over one connection after the other. wire §8, §24
//!
//! ```text
//!         attach               on_connected            ICResp                Connect
//! Down ───────────▶ Opening ───────────────▶ Handshake ───────▶ Connecting ───────────▶ Live
//!   ▲                  │                          │                  │                    │
//!   └──────────────────┴──── on_lost, detach ─────┴──────────────────┴────────────────────┘      any ──end──▶ Ended
//! ```
//!
//! Commands are taken in every state but the last: what cannot be sent now waits. Every command taken ends in exactly one
//! [`Completion`], and its buffer comes back only when no connection refers to it any more.
//!
//! Inputs are `on_*` and [`attach`](LaneCore::attach), [`detach`](LaneCore::detach), [`end`](LaneCore::end); wishes are
//! `submit` and `cancel`; outputs are completions (handed to a sink), [`next_action`](LaneCore::next_action), the pieces
//! to send, and [`next_deadline`](LaneCore::next_deadline).

mod due;
mod held;

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;

use proto::handshake::HostOffer;
use proto::host_controller::QueueConnect;
use proto::host_queue::{self, DataBuffer, End, Refused as QueueRefused, Transfer, Unfinished};
use proto::{HostQueue, Violation};
use wire::id::Qid;
use wire::sqe::{Fuse, Sqe};
use wire::status::Status;
use zerocopy::IntoBytes;

use crate::attachment::{Attachment, Inaccessible};
use crate::buffer::Data;
use crate::error::LinkError;
use crate::failure::Failure;
use crate::flush_epoch::{FlushEpoch, FlushGate};
use crate::reconnect::{Class, Fate, ReplayPolicy, fate};
use crate::submit::{Command, Completion, Moves, Payload, Refused, RefusedReason};

/// More data than this does not fit a PDU, with what is around it.
const LENGTH_MAX: u32 = u32::MAX - 4096;

const MS: u64 = 1_000_000;

/// How a lane is to be.
#[derive(Clone, Copy, Debug)]
pub struct LaneSettings {
    /// Its queue.
    pub qid: Qid,
    /// Commands taken at once.
    pub depth: u16,
    /// What it says in the handshake.
    pub offer: HostOffer,
    /// Most in-capsule data to use, bytes.
    pub in_capsule_bytes_max: u32,
    /// How long each step of connecting may take, ns.
    pub connect_timeout_ns: u64,
    /// How long a command may take, ns.
    pub command_timeout_ns: u64,
    /// How often a command is submitted again that ended with a transient status.
    pub retry_limit: u8,
    /// How long a command is held whose namespace cannot be reached, ns.
    pub path_timeout_ns: u64,
    /// How long commands wait for a connection, ns; `None` for as long as the association is not given up.
    pub fast_fail_ns: Option<u64>,
    /// What is submitted again.
    pub replay: ReplayPolicy,
}

/// What the driver has to do.
#[derive(Clone, Debug)]
pub enum LaneAction {
    /// Connect a socket to this address; say [`on_connected`](LaneCore::on_connected) or
    /// [`on_lost`](LaneCore::on_lost).
    Open(SocketAddr),
    /// Close the socket, dropping what it has not sent.
    Close,
    /// Have this command of the lane aborted.
    Abort {
        /// Its id on the wire.
        cid: u16,
    },
    /// Have the ANA log read again; its content comes as [`on_inaccessible`](LaneCore::on_inaccessible).
    ReadAna,
    /// Tell the association that the lane has lost its connection.
    Report {
        /// The association that the connection belonged to.
        generation: u64,
        /// Why.
        cause: LinkError,
    },
}

/// Where a lane is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// No association to connect to.
    Down,
    /// The driver is connecting a socket.
    Opening { until_ns: u64 },
    /// ICReq is on its way.
    Handshake { until_ns: u64 },
    /// Connect is on its way.
    Connecting { until_ns: u64 },
    /// Commands go out.
    Live,
    /// For good.
    Ended,
}

/// What a command of a lane is known by while it is out.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tag {
    user: u64,
    /// Order of submission.
    sequence: u32,
    /// When it was first seen outstanding, or was aborted, ms; 0 before.
    seen_ms: u32,
    /// When it was held for the first time, ms; 0 for never.
    held_ms: u32,
    class: Class,
    retry_count: u8,
    flags: u8,
}

/// The Connect of the queue itself.
const IS_CONNECT: u8 = 1 << 0;
/// A read that must bring every byte.
const IS_EXACT: u8 = 1 << 1;
/// The caller does not want it any more.
const IS_CANCELLED: u8 = 1 << 2;
/// It took too long.
const IS_LATE: u8 = 1 << 3;
/// An Abort was sent for it.
const IS_ABORTED: u8 = 1 << 4;
/// Its phases are timed.
const IS_TIMED: u8 = 1 << 5;
/// It was out on a connection that is lost, and may have happened.
const IS_UNCERTAIN: u8 = 1 << 6;

impl Tag {
    fn has(self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    /// What to say of a command that will not happen, or not again.
    fn stopped(self, failure: Failure) -> Failure {
        if self.has(IS_UNCERTAIN) { Failure::Interrupted } else { failure }
    }
}

/// A command that waits to be sent.
#[derive(Debug)]
struct Pending<B> {
    sqe: Sqe,
    transfer: Transfer<Data<B>>,
    tag: Tag,
}

/// A lane without its socket.
#[derive(Debug)]
pub struct LaneCore<B> {
    settings: LaneSettings,
    phase: Phase,
    queue: HostQueue<Data<B>, Tag>,
    attachment: Option<Arc<Attachment>>,
    flush: FlushGate,
    /// Commands taken and not ended.
    outstanding: u16,
    sequence: u32,
    waiting: VecDeque<Pending<B>>,
    /// Commands to be submitted again later.
    held: Vec<held::Held<B>>,
    /// When to look at those at the latest, ns; `u64::MAX` if there are none.
    held_ns: u64,
    /// How many of those are held for a status of their path.
    probing_count: u16,
    /// Namespaces that the ANA log names as not accessible.
    inaccessible: Inaccessible,
    /// There are such namespaces: each command is compared with them before it is sent.
    is_barred: bool,
    /// The ANA log was asked for and has not come.
    asks_ana: bool,
    /// Since when there is no connection, ns; 0 for not seen yet.
    missing_ns: u64,
    /// Completions that no input brings.
    done: VecDeque<Completion<B>>,
    actions: VecDeque<LaneAction>,
    /// When to look for commands that take too long.
    look_ns: u64,
    /// The command whose phases are timed has completed.
    is_timed_done: bool,
    /// Doorbells rung: caravans that left, or are leaving.
    caravan_count: u64,
}

impl<B: DataBuffer> LaneCore<B> {
    /// A lane that waits to be attached.
    #[must_use]
    pub fn new(settings: LaneSettings) -> Self {
        Self {
            settings,
            phase: Phase::Down,
            queue: HostQueue::new(settings.offer, settings.depth),
            attachment: None,
            flush: FlushGate::default(),
            outstanding: 0,
            sequence: 0,
            waiting: VecDeque::new(),
            held: Vec::new(),
            held_ns: u64::MAX,
            probing_count: 0,
            inaccessible: Arc::new([]),
            is_barred: false,
            asks_ana: false,
            missing_ns: 0,
            done: VecDeque::new(),
            actions: VecDeque::new(),
            look_ns: 0,
            is_timed_done: false,
            caravan_count: 0,
        }
    }

    /// Shares a flush epoch with other lanes.
    pub fn share_flush_epoch(&mut self, epoch: FlushEpoch) {
        let generation = self.attachment.as_ref().map(|attachment| attachment.generation);
        self.flush.share(epoch, generation);
    }

    /// Its queue.
    #[must_use]
    pub fn qid(&self) -> Qid {
        self.settings.qid
    }

    /// Whether commands go out at once.
    #[inline]
    #[must_use]
    pub fn is_live(&self) -> bool {
        self.phase == Phase::Live
    }

    /// Whether it has ended for good.
    #[must_use]
    pub fn is_ended(&self) -> bool {
        self.phase == Phase::Ended
    }

    /// Commands taken and not ended.
    #[inline]
    #[must_use]
    pub fn outstanding(&self) -> u16 {
        self.outstanding
    }

    /// Commands that can be outstanding at once: fewer than asked for if the controller takes fewer.
    #[must_use]
    pub fn depth(&self) -> u16 {
        match &self.attachment {
            Some(attachment) => attachment.limits.queue_size(self.settings.depth).1,
            None => self.settings.depth,
        }
    }

    /// The association it belongs to, or belonged to last.
    #[must_use]
    pub fn attachment(&self) -> Option<&Arc<Attachment>> {
        self.attachment.as_ref()
    }

    /// Digests and limits agreed on the connection.
    #[must_use]
    pub fn agreement(&self) -> proto::handshake::Agreement {
        self.queue.agreement()
    }

    /// An association is up: connect to it.
    pub fn attach(&mut self, attachment: &Arc<Attachment>, now_ns: u64) {
        if self.phase != Phase::Down {
            return;
        }
        if self.attachment.is_none() {
            self.flush.begin(attachment.generation);
        }
        let limit = attachment.limits.queue_size(self.settings.depth).1;
        self.queue = HostQueue::new(self.settings.offer, limit);
        self.actions.push_back(LaneAction::Open(attachment.peer));
        self.attachment = Some(Arc::clone(attachment));
        self.phase = Phase::Opening { until_ns: self.until(now_ns) };
    }

    /// The number of the association that the lane belongs to, or belonged to last; 0 for none yet.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.attachment.as_ref().map_or(0, |attachment| attachment.generation)
    }

    fn until(&self, now_ns: u64) -> u64 {
        now_ns.saturating_add(self.settings.connect_timeout_ns)
    }

    /// The association of this generation is lost, by another connection's fault.
    pub fn detach(&mut self, generation: u64) {
        if self.attachment.as_ref().is_some_and(|attachment| attachment.generation == generation) {
            self.disconnect();
        }
    }

    /// There will be no further association.
    pub fn end(&mut self) {
        self.disconnect();
        self.phase = Phase::Ended;
        let held: Vec<_> = self.take_all_held().collect();
        for pending in self.waiting.drain(..).chain(held) {
            let failure = pending.tag.stopped(Failure::Unreachable);
            self.done.push_back(ended(pending, failure));
        }
    }

    /// The socket is connected.
    pub fn on_connected(&mut self, now_ns: u64) {
        if let Phase::Opening { .. } = self.phase {
            self.phase = Phase::Handshake { until_ns: self.until(now_ns) };
        }
    }

    /// The connection was lost, or could not be made.
    pub fn on_lost(&mut self, cause: LinkError) {
        if matches!(self.phase, Phase::Down | Phase::Ended) {
            return;
        }
        let generation = self.generation();
        self.disconnect();
        self.actions.push_back(LaneAction::Report { generation, cause });
    }

    /// What the connection was at, for messages.
    #[must_use]
    pub fn doing(&self) -> &'static str {
        match self.phase {
            Phase::Opening { .. } => "TCP connect",
            Phase::Handshake { .. } => "handshake",
            Phase::Connecting { .. } => "Connect",
            Phase::Down | Phase::Live | Phase::Ended => "operation",
        }
    }

    /// Judges everything that was in flight.
    fn disconnect(&mut self) {
        if matches!(self.phase, Phase::Down | Phase::Ended) {
            return;
        }
        self.phase = Phase::Down;
        self.forget_inaccessible();
        self.actions.push_back(LaneAction::Close);
        let mut unfinished: Vec<_> = std::iter::from_fn(|| self.queue.next_unfinished_command()).collect();
        // In the order of submission, which a counter tells that may have wrapped.
        let newest = self.sequence;
        unfinished
            .sort_unstable_by_key(|command| std::cmp::Reverse(newest.wrapping_sub(command.user.sequence)));
        let mut again = VecDeque::with_capacity(unfinished.len() + self.waiting.len());
        for command in unfinished {
            if !command.user.has(IS_CONNECT) {
                again.extend(self.judge(command));
            }
        }
        again.append(&mut self.waiting);
        self.waiting = again;
    }

    /// Ends a command whose connection is gone, or gives it back to be submitted again.
    fn judge(&mut self, command: Unfinished<Data<B>, Tag>) -> Option<Pending<B>> {
        let Unfinished { user: mut tag, sqe, transfer, answer, is_unsent } = command;
        if !is_unsent && matches!(tag.class, Class::Idempotent | Class::Other) {
            tag.flags |= IS_UNCERTAIN;
        }
        let mut pending = Pending { sqe, transfer, tag };
        if let Some((status, result)) = answer {
            let result = if status.is_success() { Ok(result) } else { Err(Failure::Status(status)) };
            let buffer = take_buffer(pending.transfer);
            self.done.push_back(Completion { user: tag.user, result, received: 0, buffer });
            return None;
        }
        let limits = self.attachment.as_ref().map(|attachment| attachment.limits);
        let has_cache = limits.is_none_or(|limits| limits.has_volatile_cache);
        let fate = match fate(tag.class, is_unsent, self.settings.replay, has_cache) {
            // One that took too long before would only take too long again.
            Fate::Replay if tag.has(IS_LATE) => Fate::End(Failure::TimedOut),
            Fate::Replay if tag.has(IS_CANCELLED) => Fate::End(tag.stopped(Failure::Cancelled)),
            Fate::End(Failure::Interrupted) if tag.has(IS_LATE) => Fate::End(Failure::TimedOut),
            other => other,
        };
        match fate {
            Fate::Replay => {
                pending.tag.seen_ms = 0;
                pending.tag.flags &= !(IS_ABORTED | IS_TIMED);
                Some(pending)
            }
            Fate::End(failure) => {
                if failure == Failure::Unflushed {
                    self.flush.on_interrupted(self.generation());
                }
                self.done.push_back(ended(pending, failure));
                None
            }
        }
    }

    /// Takes a command; see [`Lane::submit`](crate::Lane::submit).
    ///
    /// # Errors
    /// [`Refused`], with the buffer.
    #[inline]
    pub fn submit(&mut self, command: Command, buffer: Option<B>, user: u64) -> Result<(), Refused<B>> {
        self.submit_with(command, buffer, user, 0)
    }

    /// As [`submit`](Self::submit), for a command whose phases are timed: its completion is told by
    /// [`take_timed_done`](Self::take_timed_done). One at a time.
    ///
    /// # Errors
    /// As [`submit`](Self::submit).
    pub(crate) fn submit_timed(
        &mut self,
        command: Command,
        buffer: Option<B>,
        user: u64,
    ) -> Result<(), Refused<B>> {
        self.is_timed_done = false;
        self.submit_with(command, buffer, user, IS_TIMED)
    }

    /// Whether this command, submitted now, joins the caravan that fills.
    pub(crate) fn goes_out_at_once(&self, command: &Command) -> bool {
        let is_judged_first = command.class == Class::Flush;
        self.is_live()
            && self.waiting.is_empty()
            && self.queue.room() > 0
            && !is_judged_first
            && !self.is_barred
    }

    /// Whether the command whose phases are timed has completed since this was asked last.
    pub(crate) fn take_timed_done(&mut self) -> bool {
        std::mem::take(&mut self.is_timed_done)
    }

    #[inline]
    fn submit_with(
        &mut self,
        command: Command,
        buffer: Option<B>,
        user: u64,
        flags: u8,
    ) -> Result<(), Refused<B>> {
        if self.outstanding >= self.settings.depth || self.phase == Phase::Ended {
            return Err(self.refuse(buffer));
        }
        let fits = |buffer: &B| buffer.length() == command.length as usize && command.length <= LENGTH_MAX;
        // Each of these by itself: what is moved stays in registers on its way into the queue.
        match (command.moves, buffer) {
            (Moves::FromController | Moves::AtMostFromController, Some(buffer)) if fits(&buffer) => {
                let is_exact = command.moves == Moves::FromController;
                let transfer = Transfer::FromController { buffer: Data::Caller(buffer), is_exact };
                self.submit_transfer(&command, transfer, user, flags | if is_exact { IS_EXACT } else { 0 });
            }
            (Moves::ToController, Some(buffer)) if fits(&buffer) => {
                self.submit_transfer(&command, Transfer::ToController(Data::Caller(buffer)), user, flags);
            }
            (_, None) => return self.submit_without_buffer(command, user, flags),
            (_, buffer) => return Err(misfit(&command, buffer)),
        }
        Ok(())
    }

    /// Submits what neither fills a buffer of the caller's nor sends one.
    #[inline(never)]
    fn submit_without_buffer(
        &mut self,
        mut command: Command,
        user: u64,
        flags: u8,
    ) -> Result<(), Refused<B>> {
        let transfer = match (command.moves, &mut command.payload) {
            (Moves::Payload, Payload::Range(range)) => Transfer::ToController(Data::Range(*range)),
            (Moves::Payload, Payload::Own(bytes)) => Transfer::ToController(Data::Own(std::mem::take(bytes))),
            (Moves::Nothing, _) | (Moves::Payload, Payload::None) => Transfer::None,
            _ => return Err(misfit(&command, None)),
        };
        self.submit_transfer(&command, transfer, user, flags);
        Ok(())
    }

    #[inline(always)]
    fn submit_transfer(&mut self, command: &Command, transfer: Transfer<Data<B>>, user: u64, flags: u8) {
        self.outstanding += 1;
        self.sequence = self.sequence.wrapping_add(1);
        let sequence = self.sequence;
        let tag = Tag { user, sequence, seen_ms: 0, held_ms: 0, class: command.class, retry_count: 0, flags };
        // Nearly always it goes out as it is; everything else is sorted out elsewhere.
        let goes_out = self.phase == Phase::Live && self.waiting.is_empty() && command.class != Class::Flush;
        if goes_out && !self.is_barred && self.queue.has_room() {
            self.queue.submit_where_room(command.sqe, transfer, tag);
        } else {
            self.take_in(Pending { sqe: command.sqe, transfer, tag });
        }
    }

    /// The controller takes fewer commands than the lane: this one waits for one to end.
    #[cold]
    fn hold(&mut self, sqe: Sqe, refused: QueueRefused<Data<B>>, tag: Tag) {
        let (QueueRefused::Full(transfer) | QueueRefused::TooLong(transfer)) = refused;
        self.waiting.push_back(Pending { sqe, transfer, tag });
    }

    #[cold]
    fn take_in(&mut self, pending: Pending<B>) {
        if self.phase == Phase::Live && self.waiting.is_empty() {
            self.send(pending);
        } else {
            self.waiting.push_back(pending);
        }
    }

    #[cold]
    fn refuse(&self, buffer: Option<B>) -> Refused<B> {
        let is_ended = self.phase == Phase::Ended;
        let reason = if is_ended { RefusedReason::Ended } else { RefusedReason::Full };
        Refused { reason, buffer }
    }

    /// Whether so many commands can be taken.
    #[must_use]
    pub fn has_room(&self, count: u16) -> bool {
        self.phase != Phase::Ended && self.settings.depth - self.outstanding >= count
    }

    /// Takes two commands that go out one directly after the other: a fused pair. Both fit their buffers.
    ///
    /// # Errors
    /// [`RefusedReason`], with the buffers; nothing was taken then.
    pub fn submit_pair(
        &mut self,
        [first, second]: [Command; 2],
        [one, two]: [B; 2],
        users: [u64; 2],
    ) -> Result<(), (RefusedReason, [B; 2])> {
        let misfit = |command: &Command, buffer: &B| {
            let expected = command.buffer_bytes().unwrap_or(0);
            let given = buffer.length();
            (given != expected as usize).then_some(RefusedReason::Length { expected, given })
        };
        if let Some(reason) = misfit(&first, &one).or_else(|| misfit(&second, &two)) {
            return Err((reason, [one, two]));
        }
        // A queue that takes one command at a time never gets to the second, without which the first does not end.
        if self.phase == Phase::Ended || !self.has_room(2) || self.depth() < 2 {
            let is_ended = self.phase == Phase::Ended;
            return Err((if is_ended { RefusedReason::Ended } else { RefusedReason::Full }, [one, two]));
        }
        for ((command, buffer), user) in [(first, one), (second, two)].into_iter().zip(users) {
            self.outstanding += 1;
            self.sequence = self.sequence.wrapping_add(1);
            let tag = Tag {
                user,
                sequence: self.sequence,
                seen_ms: 0,
                held_ms: 0,
                class: command.class,
                retry_count: 0,
                flags: 0,
            };
            let transfer = Transfer::ToController(Data::Caller(buffer));
            self.waiting.push_back(Pending { sqe: command.sqe, transfer, tag });
        }
        self.pump();
        Ok(())
    }

    /// Hands a command to the queue, which is live.
    fn send(&mut self, mut pending: Pending<B>) {
        if self.is_barred {
            let Some(other) = self.hold_back(pending) else { return };
            pending = other;
        }
        let Pending { sqe, transfer, tag } = pending;
        if tag.class == Class::Flush && !self.may_flush() {
            self.done.push_back(ended(Pending { sqe, transfer, tag }, Failure::Unflushed));
        } else if let Err(refused) = self.queue.submit(sqe, transfer, tag) {
            self.hold(sqe, refused, tag);
        }
    }

    /// Whether a Flush covers everything that was reported done before.
    fn may_flush(&mut self) -> bool {
        let Some(attachment) = &self.attachment else { return true };
        !attachment.limits.has_volatile_cache || self.flush.admits(attachment.generation)
    }

    /// Sends what waits, as far as the queue has room.
    fn pump(&mut self) {
        while self.phase == Phase::Live
            && let Some(next) = self.waiting.front()
        {
            // The two of a pair go out together, or the first would wait for a second that finds no room.
            let needed = if next.sqe.flags.fuse() == Fuse::FIRST { 2 } else { 1 };
            if self.queue.room() < needed {
                return;
            }
            let pending = self.waiting.pop_front().expect("it is there");
            self.send(pending);
        }
    }

    /// Cancels the commands known as `user`: what waits ends at once, what is out is aborted and ends when the controller says
    /// so, or with the connection. A pair that waits ends as a whole. Says whether there was one.
    pub fn cancel(&mut self, user: u64) -> bool {
        let mut found = false;
        let mut cancel = |pending: &Pending<B>| {
            let is_meant = pending.tag.user == user;
            found |= is_meant;
            is_meant
        };
        let mut ended_now = Vec::new();
        let mut waiting = std::mem::take(&mut self.waiting).into_iter().peekable();
        while let Some(first) = waiting.next() {
            let is_pair = first.sqe.flags.fuse() == Fuse::FIRST;
            let second = waiting.next_if(|next| is_pair && next.sqe.flags.fuse() == Fuse::SECOND);
            // Half a pair would wait at the controller for the other half.
            let is_meant = cancel(&first) | second.as_ref().is_some_and(&mut cancel);
            for pending in [Some(first), second].into_iter().flatten() {
                if is_meant { ended_now.push(pending) } else { self.waiting.push_back(pending) }
            }
        }
        let held = self.take_held(user);
        found |= !held.is_empty();
        ended_now.extend(held);
        self.done.extend(ended_now.into_iter().map(|pending| {
            let failure = pending.tag.stopped(Failure::Cancelled);
            ended(pending, failure)
        }));
        let actions = &mut self.actions;
        self.queue.for_each_command(|sqe, tag| {
            if tag.user == user && !tag.has(IS_CONNECT | IS_CANCELLED) {
                found = true;
                tag.flags |= IS_CANCELLED;
                abort(sqe, tag, actions);
            }
        });
        found
    }

    /// Takes in received bytes; completions go to `sink`.
    ///
    /// # Errors
    /// How the target broke the protocol, or why its Connect failed: report it with [`on_lost`](Self::on_lost).
    #[inline]
    pub fn on_bytes(
        &mut self,
        input: &mut &[u8],
        now_ns: u64,
        sink: &mut impl FnMut(Completion<B>),
    ) -> Result<(), LinkError> {
        while let Some(end) = self.queue.next_end(input)? {
            let ended = match end {
                End::Command(ended) => ended,
                End::Initialised => {
                    self.connect(now_ns);
                    continue;
                }
            };
            let completion = self.queue.take(ended);
            if completion.status.is_success() && !completion.user.has(IS_CONNECT | IS_TIMED) {
                self.outstanding -= 1;
                sink(Completion {
                    user: completion.user.user,
                    result: Ok(completion.result),
                    received: completion.received,
                    buffer: completion.buffer.and_then(Data::into_caller),
                });
                // Only a controller that takes fewer commands than we do makes commands wait.
                if !self.waiting.is_empty() {
                    self.pump();
                }
                if self.probing_count > 0 {
                    let sqe = *self.queue.completed_command().expect("one has just completed");
                    self.on_reached(sqe.nsid());
                }
            } else {
                self.on_other_end(completion, now_ns)?;
            }
        }
        if !self.done.is_empty() {
            self.drain(sink);
        }
        Ok(())
    }

    /// Hands out completions that no input brings.
    #[inline]
    pub fn drain(&mut self, sink: &mut impl FnMut(Completion<B>)) {
        while let Some(completion) = self.done.pop_front() {
            self.outstanding -= 1;
            sink(completion);
        }
        self.flush.on_drained();
    }

    /// Whether [`drain`](Self::drain) has something to hand out.
    #[inline]
    #[must_use]
    pub fn has_done(&self) -> bool {
        !self.done.is_empty()
    }

    fn queue_connect(&self, attachment: &Attachment) -> QueueConnect {
        let entries = attachment.limits.queue_size(self.settings.depth).0;
        QueueConnect { qid: self.settings.qid, cntlid: attachment.cntlid, entries }
    }

    fn connect(&mut self, now_ns: u64) {
        let Some(attachment) = self.attachment.clone() else { return };
        let (sqe, data) = self.queue_connect(&attachment).command(&attachment.settings);
        let tag = Tag {
            user: 0,
            sequence: self.sequence,
            seen_ms: 0,
            held_ms: 0,
            class: Class::Other,
            retry_count: 0,
            flags: IS_CONNECT,
        };
        let transfer = Transfer::ToController(Data::Own(data.as_bytes().into()));
        self.queue.submit(sqe, transfer, tag).unwrap_or_else(|_| unreachable!("the queue is empty"));
        self.phase = Phase::Connecting { until_ns: self.until(now_ns) };
    }

    /// The end of the Connect, or a failure.
    #[cold]
    fn on_other_end(
        &mut self,
        completion: host_queue::Completion<Data<B>, Tag>,
        now_ns: u64,
    ) -> Result<(), LinkError> {
        let host_queue::Completion { user: tag, status, result, received, buffer } = completion;
        if tag.has(IS_CONNECT) {
            let Some(attachment) = self.attachment.clone() else { return Ok(()) };
            self.queue_connect(&attachment).on_completion(status, result).map_err(LinkError::Controller)?;
            let in_capsule = attachment.limits.in_capsule_bytes.min(self.settings.in_capsule_bytes_max);
            self.queue.set_in_capsule_bytes(in_capsule);
            self.phase = Phase::Live;
            self.look_ns = now_ns.saturating_add(self.look_interval_ns());
            self.on_live();
            return Ok(());
        }
        if tag.has(IS_TIMED) {
            self.is_timed_done = true;
            if status.is_success() {
                let buffer = buffer.and_then(Data::into_caller);
                self.done.push_back(Completion { user: tag.user, result: Ok(result), received, buffer });
                self.pump();
                return Ok(());
            }
        }
        let (buffer, failure) = if tag.has(IS_CANCELLED | IS_LATE) {
            (buffer, Failure::Status(status))
        } else {
            let sqe = *self.queue.completed_command().expect("one has just completed");
            match self.retry(sqe, tag, buffer, status, now_ns) {
                Ok(()) => return Ok(()),
                Err(ended) => {
                    if sqe.flags.fuse() != Fuse::NONE && !self.held.is_empty() {
                        self.on_half_ended(tag.sequence);
                    }
                    ended
                }
            }
        };
        let failure = match status {
            status if !status.is(Status::ABORT_REQUESTED) => failure,
            _ if tag.has(IS_LATE) => Failure::TimedOut,
            _ if tag.has(IS_CANCELLED) => tag.stopped(Failure::Cancelled),
            status => tag.stopped(Failure::Status(status)),
        };
        let buffer = buffer.and_then(Data::into_caller);
        self.done.push_back(Completion { user: tag.user, result: Err(failure), received, buffer });
        self.pump();
        Ok(())
    }

    /// The next thing the driver has to do.
    #[inline]
    pub fn next_action(&mut self) -> Option<LaneAction> {
        self.actions.pop_front()
    }

    /// Whether anything waits to leave and none is on its way.
    #[inline]
    #[must_use]
    pub fn has_waiting(&self) -> bool {
        let caravan = self.queue.caravan();
        !caravan.is_leaving() && caravan.waiting_bytes() > 0
    }

    /// Whether anything waits that the last doorbell was not rung for.
    #[inline]
    pub(crate) fn has_waiting_behind(&self) -> bool {
        self.queue.caravan().waiting_bytes() > 0
    }

    /// What waits: commands and bytes. `None` if it is to leave whatever the doorbell says: a handshake, data that was asked
    /// for.
    #[inline]
    #[must_use]
    pub fn waiting(&self) -> Option<(u32, usize)> {
        let caravan = self.queue.caravan();
        let commands = caravan.waiting_command_count();
        let may_wait = self.phase == Phase::Live && !caravan.is_urgent();
        may_wait.then_some((commands, caravan.waiting_bytes()))
    }

    /// Rings the doorbell: what waits leaves now, unless something is on its way. Says whether anything is on its way.
    #[inline]
    pub fn ring(&mut self) -> bool {
        if matches!(self.phase, Phase::Down | Phase::Opening { .. } | Phase::Ended) {
            return false;
        }
        if self.queue.ring() {
            self.caravan_count += 1;
            return true;
        }
        self.is_leaving()
    }

    /// Whether anything is on its way.
    #[inline]
    pub(crate) fn is_leaving(&self) -> bool {
        self.queue.caravan().is_leaving()
    }

    /// Doorbells rung so far.
    pub(crate) fn caravan_count(&self) -> u64 {
        self.caravan_count
    }

    /// Calls `each` with the bytes on their way, in order, until it says false.
    #[inline]
    pub fn for_each_piece<'a>(&'a self, each: impl FnMut(&'a [u8]) -> bool) {
        self.queue.for_each_piece(each);
    }

    /// Pieces that are on their way, runs of headers and payloads; a payload may consist of several parts.
    #[inline]
    #[must_use]
    pub fn piece_count(&self) -> usize {
        self.queue.caravan().piece_count()
    }

    /// The kernel has taken `count` bytes.
    #[inline]
    pub fn on_sent(&mut self, count: usize) {
        self.queue.on_sent(count);
    }

    /// Whether the bytes on their way keep their address; see [`HostQueue::is_stable`].
    pub(crate) fn is_stable(&self) -> bool {
        self.queue.is_stable()
    }

    /// Whether a part of the caravan on its way was sent without a copy.
    #[inline]
    pub(crate) fn is_kept(&self) -> bool {
        self.queue.caravan().is_kept()
    }

    /// The kernel has taken `count` bytes; see [`HostQueue::on_sent_zero_copy`].
    pub(crate) fn on_sent_zero_copy(&mut self, count: usize, is_zero_copy: bool) {
        self.queue.on_sent_zero_copy(count, is_zero_copy);
    }

    /// Whether completions wait that need no input: call [`on_bytes`](Self::on_bytes) with none.
    #[inline]
    #[must_use]
    pub fn has_finished(&self) -> bool {
        self.queue.has_finished()
    }

    /// Where the next bytes may be received in place; see [`HostQueue::place`].
    #[inline]
    pub fn place(&mut self) -> Option<&mut [u8]> {
        self.queue.place()
    }

    /// Bytes up to the next place where what follows is known; see [`HostQueue::wanted_bytes`].
    #[must_use]
    pub fn wanted_bytes(&self) -> usize {
        self.queue.wanted_bytes()
    }

    /// The first `count` bytes of [`place`](Self::place) have been received.
    ///
    /// # Errors
    /// As [`HostQueue::on_placed`].
    #[inline]
    pub fn on_placed(&mut self, count: usize) -> Result<(), Violation> {
        self.queue.on_placed(count)
    }

    /// The TermReq that tells the target what it did wrong, if one may be sent now.
    #[must_use]
    pub fn term_req(&self, violation: Violation) -> Option<Vec<u8>> {
        // In the middle of a PDU it would be taken for that PDU's bytes.
        if self.queue.caravan().is_leaving() { None } else { self.queue.fail(violation) }
    }
}

impl<B> LaneCore<B> {
    /// Checks what the queue knows against itself; see [`HostQueue::invariants`].
    pub fn invariants(&self) {
        self.queue.invariants();
    }

    /// Sends whose bytes the kernel may still read. The connection must not be given up before it is done with them.
    #[inline]
    pub(crate) fn awaited_count(&self) -> u32 {
        self.queue.awaited_count()
    }

    /// The kernel is done with the bytes of the sends `first..=last`.
    pub(crate) fn on_notice(&mut self, first: u32, last: u32) {
        self.queue.on_notice(first, last);
    }
}

/// A command whose buffer does not fit it.
#[cold]
fn misfit<B: DataBuffer>(command: &Command, buffer: Option<B>) -> Refused<B> {
    let expected = command.buffer_bytes().unwrap_or(0);
    let given = buffer.as_ref().map_or(0, DataBuffer::length);
    let reason = match given == expected as usize {
        true => RefusedReason::TooLong { length: expected },
        false => RefusedReason::Length { expected, given },
    };
    Refused { reason, buffer }
}

/// Has a command aborted, once.
fn abort(sqe: &Sqe, tag: &mut Tag, actions: &mut VecDeque<LaneAction>) {
    if !tag.has(IS_ABORTED) {
        tag.flags |= IS_ABORTED;
        actions.push_back(LaneAction::Abort { cid: sqe.cid.get() });
    }
}

fn take_buffer<B>(transfer: Transfer<Data<B>>) -> Option<B> {
    match transfer {
        Transfer::None => None,
        Transfer::ToController(buffer) | Transfer::FromController { buffer, .. } => buffer.into_caller(),
    }
}

fn ended<B>(pending: Pending<B>, failure: Failure) -> Completion<B> {
    let buffer = take_buffer(pending.transfer);
    Completion { user: pending.tag.user, result: Err(failure), received: 0, buffer }
}
