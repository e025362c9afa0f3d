//! Commands of a lane that are not in its queue: they wait for a connection or for room, or are held while their
//! namespace cannot be reached.

use std::collections::VecDeque;

use proto::host_queue::Transfer;
use wire::opcode::{DataDirection, NvmOpcode};
use wire::sqe::{Fuse, Sqe};
use wire::status::Status;

use super::ana_states::AnaStates;
use super::command::{IS_EXACT, IS_OWN, IS_UNCERTAIN, KeptCommand, Tag};
use super::held::{HeldCommands, Release, Released, gave_up};
use super::timeouts::{ConnectionWait, MS, moment, ms_since};
use crate::attachment::Inaccessible;
use crate::buffer::Data;
use crate::failure::{Failure, Waited};
use crate::retry::{self, Verdict};
use crate::submit::Completion;

/// Limits of retries.
#[derive(Clone, Copy, Debug)]
pub(super) struct RetryLimits {
    /// Maximum retries after transient statuses.
    pub(super) retry_limit: u8,
    /// Maximum time that a command is held, ns.
    pub(super) path_timeout_ns: u64,
    /// Maximum time that commands wait for a connection, ns; `None` for no limit.
    pub(super) connection_wait_ns: Option<u64>,
}

/// A command that ended with a status other than success.
#[derive(Debug)]
pub(super) struct FailedCommand<B> {
    pub(super) sqe: Sqe,
    pub(super) tag: Tag,
    pub(super) buffer: Option<Data<B>>,
    pub(super) status: Status,
}

/// The outcome of a failed command.
#[derive(Debug)]
pub(super) enum Retried<B> {
    /// It is in the backlog again. The ANA log must be read again if `wants_ana`.
    Kept { wants_ana: bool },
    /// It ends with this failure.
    Ends(Option<Data<B>>, Failure),
}

/// The commands of a lane that are not in its queue.
#[derive(Debug)]
pub(super) struct Backlog<B> {
    limits: RetryLimits,
    /// Commands to submit as soon as the queue takes them, in order.
    waiting: VecDeque<KeptCommand<B>>,
    held: HeldCommands<B>,
    ana: AnaStates,
    connection_wait: ConnectionWait,
}

impl<B> Backlog<B> {
    pub(super) fn new(limits: RetryLimits) -> Self {
        Self {
            limits,
            waiting: VecDeque::new(),
            held: HeldCommands::new(),
            ana: AnaStates::default(),
            connection_wait: ConnectionWait::new(limits.connection_wait_ns),
        }
    }

    /// Whether no command waits for the queue.
    #[inline]
    pub(super) fn is_clear(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Whether a namespace is not accessible: [`admit`](Self::admit) decides about each command.
    #[inline]
    pub(super) fn is_selective(&self) -> bool {
        self.ana.has_any()
    }

    /// Whether a command is held for a path status: the success of another one releases it.
    #[inline]
    pub(super) fn is_probing(&self) -> bool {
        self.held.is_probing()
    }

    /// Whether commands are held.
    pub(super) fn has_held(&self) -> bool {
        !self.held.is_empty()
    }

    /// When to call [`expire`](Self::expire) for held commands, ns; `u64::MAX` for never.
    #[inline]
    pub(super) fn held_until_ns(&self) -> u64 {
        self.held.wake_ns()
    }

    /// When commands that wait for a connection end, ns, while there is none.
    pub(super) fn connection_wait_until_ns(&self) -> Option<u64> {
        let has_any = !self.waiting.is_empty() || !self.held.is_empty();
        if has_any { self.connection_wait.until_ns() } else { None }
    }

    /// Adds a command behind all others that wait.
    pub(super) fn push(&mut self, command: KeptCommand<B>) {
        self.waiting.push_back(command);
    }

    /// Adds commands before all others that wait.
    pub(super) fn push_before(&mut self, mut commands: VecDeque<KeptCommand<B>>) {
        commands.append(&mut self.waiting);
        self.waiting = commands;
    }

    /// The next command for a queue with room for `room` commands. Both halves of a pair need room, or the first would
    /// wait for a second that has none.
    pub(super) fn next(&mut self, room: u16) -> Option<KeptCommand<B>> {
        let first = self.waiting.front()?;
        let needed = if first.sqe.flags.fuse() == Fuse::FIRST { 2 } else { 1 };
        if room < needed { None } else { self.waiting.pop_front() }
    }

    /// Admits a command whose namespace is accessible; holds or ends any other.
    ///
    /// # Errors
    /// The completion of a command that ended; `None` if it is held.
    pub(super) fn admit(&mut self, command: KeptCommand<B>) -> Result<KeptCommand<B>, Option<Completion<B>>> {
        match self.ana.of(command.sqe.nsid()) {
            None => Ok(command),
            Some(barrier) => match barrier.awaited() {
                Ok(state) => {
                    self.held.hold_for_state(command, state);
                    Err(None)
                }
                Err(failure) => Err(Some(command.stop(failure))),
            },
        }
    }

    /// Removes the commands of `user`, with the other halves of their pairs: half a pair would wait at the controller.
    pub(super) fn cancel(&mut self, user: u64) -> Vec<Completion<B>> {
        let is_meant = |command: &KeptCommand<B>| command.tag.user == user && !command.tag.has(IS_OWN);
        let mut cancelled = Vec::new();
        let mut waiting = std::mem::take(&mut self.waiting).into_iter().peekable();
        while let Some(first) = waiting.next() {
            let is_pair = first.sqe.flags.fuse() == Fuse::FIRST;
            let second = waiting.next_if(|next| is_pair && next.sqe.flags.fuse() == Fuse::SECOND);
            let is_cancelled = is_meant(&first) || second.as_ref().is_some_and(is_meant);
            for command in [Some(first), second].into_iter().flatten() {
                if is_cancelled { cancelled.push(command) } else { self.waiting.push_back(command) }
            }
        }
        cancelled.extend(self.held.take_user(user));
        cancelled.into_iter().map(|command| command.stop(Failure::Cancelled)).collect()
    }

    /// Keeps a failed command to be submitted again, if that may help. `delays_ms` are the controller's retry delays.
    /// hostile H12
    pub(super) fn retry(&mut self, failed: FailedCommand<B>, delays_ms: [u32; 3], now_ns: u64) -> Retried<B> {
        let FailedCommand { sqe, mut tag, buffer, status } = failed;
        // The second half of a fused pair fails with the first, and is held with it.
        let is_second = sqe.flags.fuse() == Fuse::SECOND && status.is(Status::ABORTED_FAILED_FUSED);
        let verdict = match is_second && self.held.has_partner_of(tag.sequence) {
            true => Verdict::Hold,
            false => retry::verdict(status, tag.class, sqe.opcode),
        };
        let now = moment(now_ns);
        if tag.held_at == 0 {
            tag.held_at = now;
        }
        let waited_ms = ms_since(tag.held_at, now);
        let left_ns = self.limits.path_timeout_ns.saturating_sub(u64::from(waited_ms) * MS);
        let is_over = match verdict {
            Verdict::End => return Retried::Ends(buffer, Failure::Status(status)),
            Verdict::Repeat => tag.retry_count >= self.limits.retry_limit,
            Verdict::Hold => left_ns == 0,
        };
        if is_over {
            return Retried::Ends(buffer, gave_up(status, tag, waited_ms));
        }
        let wants_ana = retry::is_of_ana(status) && self.ana.request();
        let spread = retry::spread_of(sqe.opcode, tag.sequence);
        let delay_ns = retry::delay_ns(status, verdict, tag.retry_count, delays_ms, spread);
        tag.retry_count = tag.retry_count.saturating_add(1);
        tag.reset();
        if sqe.opcode == NvmOpcode::DATASET_MANAGEMENT.raw() {
            // One of its ranges has failed; others may be deallocated.
            tag.flags |= IS_UNCERTAIN;
        }
        let transfer = match (buffer, DataDirection::of(sqe.opcode)) {
            (None, _) => Transfer::None,
            (Some(buffer), DataDirection::ControllerToHost) => {
                Transfer::FromController { buffer, is_exact: tag.has(IS_EXACT) }
            }
            (Some(buffer), _) => Transfer::ToController(buffer),
        };
        let command = KeptCommand { sqe, transfer, tag };
        if delay_ns == 0 {
            self.waiting.push_back(command);
        } else {
            let until_ns = (verdict == Verdict::Hold).then(|| now_ns.saturating_add(left_ns));
            self.held.hold(command, status, now_ns.saturating_add(delay_ns), until_ns);
        }
        Retried::Kept { wants_ana }
    }

    /// Moves held commands to those that wait; returns halves of pairs that end. `newest` is the last sequence number
    /// submitted; `is_out`: whether the command of a sequence number is outstanding.
    pub(super) fn release(
        &mut self,
        release: Release,
        newest: u32,
        is_out: impl FnMut(u32) -> bool,
    ) -> Vec<Completion<B>> {
        let Released { again, ended } = self.held.release(release, newest, is_out);
        self.waiting.extend(again);
        ended
    }

    /// Takes the content of the ANA log; a [`release`](Self::release) of the returned commands follows.
    pub(super) fn on_inaccessible(&mut self, inaccessible: &Inaccessible) -> Release {
        Release::Ana { has_changed: self.ana.update(inaccessible) }
    }

    /// The connection is live; a [`release`](Self::release) of the returned commands follows: commands held for an ANA
    /// state of the last connection are compared with the states of this one.
    pub(super) fn on_live(&mut self) -> Release {
        self.connection_wait.end();
        Release::Ana { has_changed: false }
    }

    /// The connection is lost, and with it its own commands, and the ANA states that its controller reported.
    pub(super) fn on_down(&mut self) {
        self.waiting.retain(|command| !command.tag.has(IS_OWN));
        self.ana = AnaStates::default();
    }

    /// Ends held commands whose time is over; a [`release`](Self::release) of the due commands follows.
    pub(super) fn expire(&mut self, now_ns: u64, newest: u32) -> Vec<Completion<B>> {
        self.held.expire(now_ns, self.limits.path_timeout_ns, newest)
    }

    /// Ends all commands if they have waited too long for a connection. Called while there is none.
    pub(super) fn expire_connection_wait(&mut self, now_ns: u64) -> Vec<Completion<B>> {
        match self.connection_wait.look(now_ns) {
            Some(waited_ms) => self.stop_all(Failure::NoConnection { waited: Waited::from_ms(waited_ms) }),
            None => Vec::new(),
        }
    }

    /// Ends all commands.
    pub(super) fn stop_all(&mut self, failure: Failure) -> Vec<Completion<B>> {
        let commands = self.waiting.drain(..).chain(self.held.take_all());
        commands.map(|command| command.stop(failure)).collect()
    }
}
