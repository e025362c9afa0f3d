//! A lane without its socket: one I/O queue pair on a sequence of connections. wire §8, §24
//!
//! ```text
//!         attach               on_connected            ICResp                Connect
//! Down ───────────▶ Opening ───────────────▶ Handshake ───────▶ Connecting ──(Authenticating)──▶ Live
//!   ▲                  │                          │                  │                    │
//!   └──────────────────┴──── on_lost, detach ─────┴──────────────────┴────────────────────┘      any ──end──▶ Ended
//! ```
//!
//! Commands are accepted in every phase but the last: a command that cannot be sent now waits. Every accepted command
//! ends in exactly one [`Completion`], and its buffer comes back only when no connection refers to it any more.
//!
//! The driver calls inputs (`on_*`, `attach`, `detach`, `end`) and wishes (`submit`, `submit_pair`, `cancel`, `ring`),
//! then drains the outputs: completions go to a sink, [`next_action`](LaneCore::next_action) until `None`, the pieces
//! to send ([`for_each_piece`](LaneCore::for_each_piece)), and [`next_deadline`](LaneCore::next_deadline), at which it
//! calls [`on_time`](LaneCore::on_time).

mod action;
mod ana_states;
mod backlog;
mod command;
mod held;
mod own_commands;
mod phase;
mod timeouts;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use proto::handshake::{Agreement, HostOffer};
use proto::host_queue::{self, DataBuffer, End, Refused as QueueRefused, Transfer, Unfinished};
use proto::{HostQueue, Violation};
use wire::id::Qid;
use wire::sqe::{Fuse, Sqe};
use wire::status::Status;

use crate::attachment::{Attachment, Inaccessible};
use crate::authentication::QueueAuthentication;
use crate::buffer::Data;
use crate::failure::Failure;
use crate::flush_epoch::{FlushEpoch, FlushGate};
use crate::link_error::LinkError;
use crate::queue_map::QueueMap;
use crate::reauthentication::Reauthentication;
use crate::reconnect::{Class, Fate, ReplayPolicy, fate};
use crate::submit::{Command, Completion, Moves, Payload, Refused, RefusedReason};

pub use action::LaneAction;
use backlog::{Backlog, FailedCommand, Retried, RetryLimits};
use command::{IS_CANCELLED, IS_EXACT, IS_LATE, IS_OWN, IS_TIMED, IS_UNCERTAIN, KeptCommand, Tag, misfit};
use held::Release;
use phase::Phase;
use timeouts::{CommandTimeout, abort};

/// Maximum data of one command, bytes: a PDU of it and its headers has a 32-bit length.
const LENGTH_MAX: u32 = u32::MAX - 4096;

/// R2Ts of one command that lanes accept at least from targets that request parts of long values.
const LONG_VALUE_R2T_COUNT: u32 = 2;

/// Configuration of a lane.
#[derive(Clone, Copy, Debug)]
pub struct LaneSettings {
    /// The queue.
    pub qid: Qid,
    /// Maximum outstanding commands.
    pub depth: u16,
    /// Parameters of the ICReq.
    pub offer: HostOffer,
    /// Maximum in-capsule data of a write, bytes.
    pub in_capsule_bytes_max: u32,
    /// Timeout of each step of connecting, ns.
    pub connect_timeout_ns: u64,
    /// Timeout of a command, ns.
    pub command_timeout_ns: u64,
    /// Maximum retries of a command after transient statuses.
    pub retry_limit: u8,
    /// Maximum time that a command is held while its namespace cannot be reached, ns.
    pub path_timeout_ns: u64,
    /// Maximum time that commands wait for a connection, ns; `None` until the association is given up.
    pub fast_fail_ns: Option<u64>,
    /// Which commands are submitted again after a loss.
    pub replay: ReplayPolicy,
    /// Interval at which the queue authenticates again.
    pub reauthenticate: Option<Duration>,
    /// The host's lanes, of which those of the default class are to be near the partitions of keys; `None` if the target
    /// is to place them by its own policy.
    pub partition_queues: Option<QueueMap>,
}

/// A lane without its socket.
#[derive(Debug)]
pub struct LaneCore<B> {
    settings: LaneSettings,
    phase: Phase,
    queue: HostQueue<Data<B>, Tag>,
    attachment: Option<Arc<Attachment>>,
    /// While the host authenticates on the queue.
    authentication: Option<Box<QueueAuthentication>>,
    reauthentication: Reauthentication,
    flush: FlushGate,
    /// Commands accepted and not completed.
    outstanding: u16,
    sequence: u32,
    backlog: Backlog<B>,
    command_timeout: CommandTimeout,
    /// Completions to hand out that do not come from received bytes.
    done: VecDeque<Completion<B>>,
    actions: VecDeque<LaneAction>,
    /// The command whose phases are measured has completed.
    is_timed_done: bool,
    /// Caravans sent or being sent.
    caravan_count: u64,
    /// Commands submitted again, or to be, after a status.
    retry_count: u64,
    /// Authentications that succeeded.
    authentication_count: u64,
}

/// The number before that of a lane's first command. Numbers wrap soon, and not only after an hour of much load.
const FIRST_SEQUENCE: u32 = u32::MAX - 20;

impl<B: DataBuffer> LaneCore<B> {
    /// A lane that is not attached to an association yet.
    #[must_use]
    pub fn new(settings: LaneSettings) -> Self {
        Self {
            settings,
            phase: Phase::Down,
            queue: HostQueue::new(settings.offer, settings.depth),
            attachment: None,
            authentication: None,
            reauthentication: Reauthentication::new(settings.reauthenticate),
            flush: FlushGate::default(),
            outstanding: 0,
            sequence: FIRST_SEQUENCE,
            backlog: Backlog::new(RetryLimits {
                retry_limit: settings.retry_limit,
                path_timeout_ns: settings.path_timeout_ns,
                connection_wait_ns: settings.fast_fail_ns,
            }),
            command_timeout: CommandTimeout::new(settings.command_timeout_ns),
            done: VecDeque::new(),
            actions: VecDeque::new(),
            is_timed_done: false,
            caravan_count: 0,
            retry_count: 0,
            authentication_count: 0,
        }
    }

    /// Shares a flush epoch with other lanes.
    pub fn share_flush_epoch(&mut self, epoch: FlushEpoch) {
        let generation = self.attachment.as_ref().map(|attachment| attachment.generation);
        self.flush.share(epoch, generation);
    }

    /// The queue's id.
    #[must_use]
    pub fn qid(&self) -> Qid {
        self.settings.qid
    }

    /// Whether commands are sent at once.
    #[inline]
    #[must_use]
    pub fn is_live(&self) -> bool {
        self.phase == Phase::Live
    }

    /// Whether the lane ended for good.
    #[must_use]
    pub fn is_ended(&self) -> bool {
        self.phase == Phase::Ended
    }

    /// Commands accepted and not completed.
    #[inline]
    #[must_use]
    pub fn outstanding(&self) -> u16 {
        self.outstanding
    }

    /// Maximum outstanding commands: the requested depth, or the controller's limit if that is lower.
    #[must_use]
    pub fn depth(&self) -> u16 {
        match &self.attachment {
            Some(attachment) => attachment.limits.queue_size(self.settings.depth).1,
            None => self.settings.depth,
        }
    }

    /// The association that the lane belongs to, or belonged to last.
    #[must_use]
    pub fn attachment(&self) -> Option<&Arc<Attachment>> {
        self.attachment.as_ref()
    }

    /// Digests and limits of the connection's handshake.
    #[must_use]
    pub fn agreement(&self) -> Agreement {
        self.queue.agreement()
    }

    /// An association is up: connects to it.
    pub fn attach(&mut self, attachment: &Arc<Attachment>, now_ns: u64) {
        if self.phase != Phase::Down {
            return;
        }
        if self.attachment.is_none() {
            self.flush.begin(attachment.generation);
        }
        let limit = attachment.limits.queue_size(self.settings.depth).1;
        let mut offer = self.settings.offer;
        if attachment.has_long_values {
            offer.r2t_limit = offer.r2t_limit.max(LONG_VALUE_R2T_COUNT);
        }
        self.queue = HostQueue::new(offer, limit);
        self.backlog.on_inaccessible(&attachment.inaccessible);
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

    /// The association of this generation is lost, because of another connection.
    pub fn detach(&mut self, generation: u64) {
        if self.attachment.as_ref().is_some_and(|attachment| attachment.generation == generation) {
            self.disconnect();
        }
    }

    /// The association ended for good.
    pub fn end(&mut self) {
        self.disconnect();
        self.phase = Phase::Ended;
        self.done.extend(self.backlog.stop_all(Failure::Unreachable));
    }

    /// The socket is connected.
    pub fn on_connected(&mut self, now_ns: u64) {
        if let Phase::Opening { .. } = self.phase {
            self.phase = Phase::Handshake { until_ns: self.until(now_ns) };
        }
    }

    /// The connection was lost, or the attempt to connect failed.
    pub fn on_lost(&mut self, cause: LinkError) {
        if matches!(self.phase, Phase::Down | Phase::Ended) {
            return;
        }
        let generation = self.generation();
        let cause = match &self.authentication {
            Some(authentication) => authentication.cause_of_loss(cause),
            None => cause,
        };
        self.disconnect();
        self.actions.push_back(LaneAction::Report { generation, cause });
    }

    /// The connection's phase in words, for messages.
    #[must_use]
    pub fn doing(&self) -> &'static str {
        self.phase.name()
    }

    /// Closes the connection; outstanding commands end or wait for the next one.
    fn disconnect(&mut self) {
        if matches!(self.phase, Phase::Down | Phase::Ended) {
            return;
        }
        self.phase = Phase::Down;
        self.authentication = None;
        self.reauthentication.stop();
        self.backlog.on_down();
        self.actions.push_back(LaneAction::Close);
        let mut unfinished: Vec<_> = std::iter::from_fn(|| self.queue.next_unfinished_command()).collect();
        // In order of submission; the sequence number may have wrapped.
        let newest = self.sequence;
        unfinished
            .sort_unstable_by_key(|command| std::cmp::Reverse(newest.wrapping_sub(command.user.sequence)));
        let mut again = VecDeque::with_capacity(unfinished.len());
        // Commands that were done are reported in this order, behind those reported before, and before a Flush that
        // reports the loss.
        let mut done_at = self.done.len();
        let mut unfinished = unfinished.into_iter().filter(|command| !command.user.has(IS_OWN)).peekable();
        while let Some(mut first) = unfinished.next() {
            let failure = self.failure_of(&mut first);
            let Some(partner) = first.user.partner(&first.sqe) else {
                again.extend(self.finish(&mut done_at, first, failure));
                continue;
            };
            // A pair is submitted again as a whole: half a pair would wait at the controller, or fail there.
            match unfinished.next_if(|next| next.user.sequence == partner) {
                Some(mut second) => {
                    let failure_of_second = self.failure_of(&mut second);
                    again.extend(self.finish(&mut done_at, first, failure.or(failure_of_second)));
                    again.extend(self.finish(&mut done_at, second, failure_of_second.or(failure)));
                }
                None => {
                    again.extend(self.finish(&mut done_at, first, failure.or(Some(Failure::Interrupted))));
                }
            }
        }
        self.backlog.push_before(again);
    }

    /// The failure of a command whose connection was lost; `None` if it may be submitted again.
    fn failure_of(&self, command: &mut Unfinished<Data<B>, Tag>) -> Option<Failure> {
        let Unfinished { user: tag, answer, is_unsent, .. } = command;
        if !*is_unsent && matches!(tag.class, Class::Idempotent | Class::Other) {
            tag.flags |= IS_UNCERTAIN;
        }
        if answer.is_some() {
            return Some(Failure::Interrupted);
        }
        let limits = self.attachment.as_ref().map(|attachment| attachment.limits);
        let has_cache = limits.is_none_or(|limits| limits.has_volatile_cache);
        match fate(tag.class, *is_unsent, self.settings.replay, has_cache) {
            // After a timeout another attempt would time out as well.
            Fate::Replay if tag.has(IS_LATE) => Some(Failure::TimedOut),
            Fate::Replay if tag.has(IS_CANCELLED) => Some(tag.stopped(Failure::Cancelled)),
            Fate::Replay => None,
            Fate::End(Failure::Interrupted) if tag.has(IS_LATE) => Some(Failure::TimedOut),
            Fate::End(failure) => Some(failure),
        }
    }

    /// Ends a command whose connection was lost with its answer or this failure; returns one without either, to be
    /// submitted again. The completion of one that was done goes to `done_at`.
    fn finish(
        &mut self,
        done_at: &mut usize,
        command: Unfinished<Data<B>, Tag>,
        failure: Option<Failure>,
    ) -> Option<KeptCommand<B>> {
        let Unfinished { user: tag, sqe, transfer, answer, .. } = command;
        let mut command = KeptCommand { sqe, transfer, tag };
        let is_write = matches!(tag.class, Class::Idempotent | Class::Other);
        let result = match (answer, failure) {
            // It was done, and a caller has received the report that writes of this association may be lost.
            (Some((status, _)), _)
                if status.is_success() && is_write && !self.flush.may_report(self.generation()) =>
            {
                Err(Failure::Interrupted)
            }
            (Some((status, result)), _) if status.is_success() => Ok(result),
            (Some((status, _)), _) => Err(Failure::Status(status)),
            (None, Some(failure)) => Err(failure),
            (None, None) => {
                command.tag.reset();
                return Some(command);
            }
        };
        if result == Err(Failure::Unflushed) {
            self.flush.on_interrupted(self.generation());
        }
        match result {
            Ok(_) => {
                self.done.insert(*done_at, command.complete(result));
                *done_at += 1;
            }
            Err(_) => self.done.push_back(command.complete(result)),
        }
        None
    }

    /// Accepts a command; see `Lane::submit`.
    ///
    /// # Errors
    /// [`Refused`], with the buffer.
    #[inline]
    pub fn submit(&mut self, command: Command, buffer: Option<B>, user: u64) -> Result<(), Refused<B>> {
        self.submit_with(command, buffer, user, 0)
    }

    /// As [`submit`](Self::submit), for a command whose phases are measured:
    /// [`take_timed_done`](Self::take_timed_done) reports its completion. One at a time.
    ///
    /// # Errors
    /// As [`submit`](Self::submit).
    pub fn submit_timed(&mut self, command: Command, buffer: Option<B>, user: u64) -> Result<(), Refused<B>> {
        self.is_timed_done = false;
        self.submit_with(command, buffer, user, IS_TIMED)
    }

    /// Whether this command, submitted now, joins the next caravan.
    #[must_use]
    pub fn goes_out_at_once(&self, command: &Command) -> bool {
        let is_judged_first = command.class == Class::Flush;
        self.is_live()
            && self.backlog.is_clear()
            && self.queue.room() > 0
            && !is_judged_first
            && !self.backlog.is_selective()
    }

    /// Whether the command whose phases are measured completed since the last call.
    pub fn take_timed_done(&mut self) -> bool {
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
        // Separate arms keep the moved values in registers on their way into the queue.
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

    /// Submits a command without a buffer of the caller.
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
        let tag = Tag::new(user, self.sequence, command.class, flags);
        // The usual case; the others are off this path.
        let goes_out = self.phase == Phase::Live && self.backlog.is_clear() && command.class != Class::Flush;
        if goes_out && !self.backlog.is_selective() && self.queue.has_room() {
            self.queue.submit_where_room(command.sqe, transfer, tag);
        } else {
            self.accept(KeptCommand { sqe: command.sqe, transfer, tag });
        }
    }

    /// The controller takes fewer commands than the lane: this one waits for a completion.
    #[cold]
    fn wait_for_room(&mut self, sqe: Sqe, refused: QueueRefused<Data<B>>, tag: Tag) {
        let (QueueRefused::Full(transfer) | QueueRefused::TooLong(transfer)) = refused;
        self.backlog.push(KeptCommand { sqe, transfer, tag });
    }

    #[cold]
    fn accept(&mut self, command: KeptCommand<B>) {
        if self.phase == Phase::Live && self.backlog.is_clear() {
            self.send(command);
        } else {
            self.backlog.push(command);
        }
    }

    #[cold]
    fn refuse(&self, buffer: Option<B>) -> Refused<B> {
        let is_ended = self.phase == Phase::Ended;
        let reason = if is_ended { RefusedReason::Ended } else { RefusedReason::Full };
        Refused { reason, buffer }
    }

    /// Whether `count` commands can be accepted.
    #[must_use]
    pub fn has_room(&self, count: u16) -> bool {
        self.phase != Phase::Ended && self.settings.depth - self.outstanding >= count
    }

    /// Accepts a fused pair: two commands that are sent one directly after the other.
    ///
    /// # Errors
    /// [`RefusedReason`], with the buffers; neither command was accepted.
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
        // A queue of one command never takes the second half, without which the first does not end.
        if self.phase == Phase::Ended || !self.has_room(2) || self.depth() < 2 {
            let is_ended = self.phase == Phase::Ended;
            return Err((if is_ended { RefusedReason::Ended } else { RefusedReason::Full }, [one, two]));
        }
        for ((command, buffer), user) in [(first, one), (second, two)].into_iter().zip(users) {
            self.outstanding += 1;
            self.sequence = self.sequence.wrapping_add(1);
            // Half a pair is not repeated, whatever its class.
            let tag = Tag::new(user, self.sequence, Class::Other, 0);
            let transfer = Transfer::ToController(Data::Caller(buffer));
            self.backlog.push(KeptCommand { sqe: command.sqe, transfer, tag });
        }
        self.pump();
        Ok(())
    }

    /// Submits a command to the queue, which is live.
    fn send(&mut self, command: KeptCommand<B>) {
        let command = match self.backlog.is_selective() && !command.tag.has(IS_OWN) {
            false => command,
            true => match self.backlog.admit(command) {
                Ok(command) => command,
                Err(ended) => return self.done.extend(ended),
            },
        };
        if command.tag.class == Class::Flush && !self.may_flush() {
            return self.done.push_back(command.end(Failure::Unflushed));
        }
        let KeptCommand { sqe, transfer, tag } = command;
        if let Err(refused) = self.queue.submit(sqe, transfer, tag) {
            self.wait_for_room(sqe, refused, tag);
        }
    }

    /// Whether a Flush covers everything that was reported done before.
    fn may_flush(&mut self) -> bool {
        let Some(attachment) = &self.attachment else { return true };
        !attachment.limits.has_volatile_cache || self.flush.admits(attachment.generation)
    }

    /// Submits waiting commands while the queue has room.
    fn pump(&mut self) {
        while self.phase == Phase::Live
            && let Some(command) = self.backlog.next(self.queue.room())
        {
            self.send(command);
        }
    }

    /// Cancels the commands of `user`: waiting commands end at once, outstanding ones are aborted and end with the
    /// controller's answer or with the connection. Both halves of a waiting pair end. Returns whether there was one.
    pub fn cancel(&mut self, user: u64) -> bool {
        let cancelled = self.backlog.cancel(user);
        let mut found = !cancelled.is_empty();
        self.done.extend(cancelled);
        let actions = &mut self.actions;
        self.queue.for_each_command(|sqe, tag| {
            if tag.user == user && !tag.has(IS_OWN | IS_CANCELLED) {
                found = true;
                tag.flags |= IS_CANCELLED;
                if !tag.has(IS_LATE) {
                    abort(sqe, actions);
                }
            }
        });
        found
    }

    /// Processes received bytes; completions go to `sink`.
    ///
    /// # Errors
    /// The target's protocol violation, or why Connect failed: pass it to [`on_lost`](Self::on_lost).
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
            if completion.status.is_success() && !completion.user.has(IS_OWN | IS_TIMED) {
                self.outstanding -= 1;
                sink(Completion {
                    user: completion.user.user,
                    result: Ok(completion.result),
                    received: completion.received,
                    buffer: completion.buffer.and_then(Data::into_caller),
                });
                // Commands wait only if the controller takes fewer than the lane.
                if !self.backlog.is_clear() {
                    self.pump();
                }
                if self.backlog.is_probing() {
                    let sqe = *self.queue.completed_command().expect("one has just completed");
                    self.release(Release::Namespace(sqe.nsid()));
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

    /// Hands out completions that do not come from received bytes.
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

    /// The completion of one of the queue's own commands, of a failed command, or of the one whose phases are measured.
    #[cold]
    fn on_other_end(
        &mut self,
        completion: host_queue::Completion<Data<B>, Tag>,
        now_ns: u64,
    ) -> Result<(), LinkError> {
        let host_queue::Completion { user: tag, status, result, received, buffer } = completion;
        if tag.has(IS_OWN) {
            let bytes = buffer.as_ref().filter(|_| received > 0).map_or(&[][..], |buffer| buffer.part(0));
            let bytes = &bytes[..bytes.len().min(received as usize)];
            return self.on_own_end(status, result, bytes, now_ns);
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
            let delays_ms =
                self.attachment.as_ref().map_or([0; 3], |attachment| attachment.limits.retry_delays_ms);
            match self.backlog.retry(FailedCommand { sqe, tag, buffer, status }, delays_ms, now_ns) {
                Retried::Kept { wants_ana } => {
                    self.retry_count += 1;
                    if wants_ana {
                        self.actions.push_back(LaneAction::ReadAna);
                    }
                    // The command's slot is free again.
                    self.pump();
                    return Ok(());
                }
                Retried::Ends(buffer, failure) => {
                    if sqe.flags.fuse() != Fuse::NONE && self.backlog.has_held() {
                        self.release(Release::PartnerOf(tag.sequence));
                    }
                    (buffer, failure)
                }
            }
        };
        let failure = match status {
            status if !status.is(Status::ABORT_REQUESTED) => failure,
            _ if tag.has(IS_CANCELLED) => tag.stopped(Failure::Cancelled),
            _ if tag.has(IS_LATE) => Failure::TimedOut,
            status => tag.stopped(Failure::Status(status)),
        };
        let buffer = buffer.and_then(Data::into_caller);
        self.done.push_back(Completion { user: tag.user, result: Err(failure), received, buffer });
        self.pump();
        Ok(())
    }

    /// Submits held commands again.
    #[cold]
    fn release(&mut self, release: Release) {
        let queue = &mut self.queue;
        let is_out = |sequence| {
            let mut is_out = false;
            queue.for_each_command(|_, tag| is_out |= tag.sequence == sequence);
            is_out
        };
        self.done.extend(self.backlog.release(release, self.sequence, is_out));
        self.pump();
    }

    /// The ANA log was read: these namespaces are not accessible, all others are.
    pub fn on_inaccessible(&mut self, inaccessible: &Inaccessible) {
        let release = self.backlog.on_inaccessible(inaccessible);
        self.release(release);
    }

    /// Handles timeouts: call it at [`next_deadline`](Self::next_deadline), or at any other time.
    ///
    /// # Errors
    /// Why the connection must be closed: pass it to [`on_lost`](Self::on_lost).
    #[inline]
    pub fn on_time(&mut self, now_ns: u64) -> Result<(), LinkError> {
        match self.phase {
            Phase::Live
                if now_ns < self.command_timeout.look_ns() && now_ns < self.backlog.held_until_ns() =>
            {
                Ok(())
            }
            _ => self.on_due(now_ns),
        }
    }

    #[cold]
    fn on_due(&mut self, now_ns: u64) -> Result<(), LinkError> {
        if self.phase.until_ns().is_some_and(|until_ns| until_ns <= now_ns) {
            let waited = Duration::from_nanos(self.settings.connect_timeout_ns);
            return Err(LinkError::TimedOut { to: self.doing(), waited });
        }
        if self.phase == Phase::Live {
            self.command_timeout.look(&mut self.queue, &mut self.actions, now_ns)?;
            self.authenticate_again(now_ns)?;
        }
        if self.backlog.held_until_ns() <= now_ns {
            self.done.extend(self.backlog.expire(now_ns, self.sequence));
            self.release(Release::Due { now_ns });
        }
        if self.waits_for_connection() {
            self.done.extend(self.backlog.expire_connection_wait(now_ns));
        }
        self.pump();
        Ok(())
    }

    /// When to call [`on_time`](Self::on_time) at the latest, ns.
    #[must_use]
    pub fn next_deadline(&self) -> Option<u64> {
        let look_ns = self.command_timeout.look_ns();
        let phase_ns = match self.phase {
            Phase::Live if self.queue.outstanding() > 0 => Some(look_ns),
            // A live queue is looked at no earlier: see `on_time`.
            Phase::Live => {
                Some(self.reauthentication.due_ns().max(look_ns)).filter(|at_ns| *at_ns != u64::MAX)
            }
            phase => phase.until_ns(),
        };
        let held_ns = Some(self.backlog.held_until_ns()).filter(|at_ns| *at_ns != u64::MAX);
        let connection_ns = match self.waits_for_connection() {
            true => self.backlog.connection_wait_until_ns(),
            false => None,
        };
        [phase_ns, held_ns, connection_ns].into_iter().flatten().min()
    }

    fn waits_for_connection(&self) -> bool {
        !matches!(self.phase, Phase::Live | Phase::Ended)
    }

    /// The next action for the driver.
    #[inline]
    pub fn next_action(&mut self) -> Option<LaneAction> {
        let action = self.actions.pop_front()?;
        if let LaneAction::Abort { cid } = action {
            self.queue.reserve_cid(cid);
        }
        Some(action)
    }

    /// Whether bytes wait to be sent and none are being sent.
    #[inline]
    #[must_use]
    pub fn has_waiting(&self) -> bool {
        let caravan = self.queue.caravan();
        !caravan.is_leaving() && caravan.waiting_bytes() > 0
    }

    /// Whether bytes wait that came after the last doorbell.
    #[inline]
    #[must_use]
    pub fn has_waiting_behind(&self) -> bool {
        self.queue.caravan().waiting_bytes() > 0
    }

    /// Commands and bytes that wait to be sent. `None` if the doorbell policy does not apply to them: a handshake,
    /// or data requested by R2T.
    #[inline]
    #[must_use]
    pub fn waiting(&self) -> Option<(u32, usize)> {
        let caravan = self.queue.caravan();
        let commands = caravan.waiting_command_count();
        let may_wait = self.phase == Phase::Live && !caravan.is_urgent();
        may_wait.then_some((commands, caravan.waiting_bytes()))
    }

    /// Rings the doorbell: makes the waiting bytes the caravan to send, unless one is being sent. Returns whether one
    /// is.
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

    /// Whether a caravan is being sent.
    #[inline]
    #[must_use]
    pub fn is_leaving(&self) -> bool {
        self.queue.caravan().is_leaving()
    }

    /// Doorbells rung.
    #[must_use]
    pub fn caravan_count(&self) -> u64 {
        self.caravan_count
    }

    /// Retries after a status; see [`retry`](crate::retry).
    #[must_use]
    pub fn retry_count(&self) -> u64 {
        self.retry_count
    }

    /// Authentications of the queue that succeeded.
    #[must_use]
    pub fn authentication_count(&self) -> u64 {
        self.authentication_count
    }

    /// Calls `each` with the pieces of the caravan being sent, in order, until it returns false.
    #[inline]
    pub fn for_each_piece<'a>(&'a self, each: impl FnMut(&'a [u8]) -> bool) {
        self.queue.for_each_piece(each);
    }

    /// Pieces of the caravan being sent: runs of headers, and payloads. A payload may consist of several parts.
    #[inline]
    #[must_use]
    pub fn piece_count(&self) -> usize {
        self.queue.caravan().piece_count()
    }

    /// The kernel accepted `count` bytes.
    #[inline]
    pub fn on_sent(&mut self, count: usize) {
        self.queue.on_sent(count);
    }

    /// Whether the bytes being sent keep their address; see [`HostQueue::is_stable`].
    #[must_use]
    pub fn is_stable(&self) -> bool {
        self.queue.is_stable()
    }

    /// Whether a part of the caravan being sent was sent without a copy.
    #[inline]
    #[must_use]
    pub fn is_kept(&self) -> bool {
        self.queue.caravan().is_kept()
    }

    /// The kernel accepted `count` bytes; see [`HostQueue::on_sent_zero_copy`].
    pub fn on_sent_zero_copy(&mut self, count: usize, is_zero_copy: bool) {
        self.queue.on_sent_zero_copy(count, is_zero_copy);
    }

    /// Whether completions are ready without input: call [`on_bytes`](Self::on_bytes) with none.
    #[inline]
    #[must_use]
    pub fn has_finished(&self) -> bool {
        self.queue.has_finished()
    }

    /// Where the next bytes can be received in place; see [`HostQueue::place`].
    #[inline]
    pub fn place(&mut self) -> Option<&mut [u8]> {
        self.queue.place()
    }

    /// Bytes up to the next PDU boundary or known position; see [`HostQueue::wanted_bytes`].
    #[must_use]
    pub fn wanted_bytes(&self) -> usize {
        self.queue.wanted_bytes()
    }

    /// The first `count` bytes of [`place`](Self::place) were received.
    ///
    /// # Errors
    /// As [`HostQueue::on_placed`].
    #[inline]
    pub fn on_placed(&mut self, count: usize) -> Result<(), Violation> {
        self.queue.on_placed(count)
    }

    /// The TermReq for a violation of the target, if it can be sent now.
    #[must_use]
    pub fn term_req(&self, violation: Violation) -> Option<Vec<u8>> {
        // Within a PDU the target would take it for data of that PDU.
        if self.queue.caravan().is_leaving() { None } else { self.queue.fail(violation) }
    }
}

impl<B> LaneCore<B> {
    /// Checks the consistency of the queue; see [`HostQueue::invariants`].
    pub fn invariants(&self) {
        self.queue.invariants();
    }

    /// Zero-copy sends whose bytes the kernel may still read. The connection must not be dropped before it releases
    /// them.
    #[inline]
    #[must_use]
    pub fn awaited_count(&self) -> u32 {
        self.queue.awaited_count()
    }

    /// The kernel released the bytes of the sends `first..=last`.
    pub fn on_notice(&mut self, first: u32, last: u32) {
        self.queue.on_notice(first, last);
    }
}
