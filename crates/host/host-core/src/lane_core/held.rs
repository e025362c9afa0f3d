//! Commands that a lane holds while their namespace cannot be reached. [`crate::retry`] defines which statuses hold a
//! command.

use std::cmp::Reverse;

use wire::id::Nsid;
use wire::log::ana::AnaState;
use wire::status::Status;

use super::command::{KeptCommand, Tag};
use super::timeouts::{MS, moment, ms_since};
use crate::failure::{Failure, Waited};
use crate::retry;
use crate::submit::Completion;

/// A held command.
#[derive(Debug)]
struct Held<B> {
    /// When it is submitted again, ns; `u64::MAX` for not by time.
    due_ns: u64,
    /// When it ends, ns; 0 until the next look at the clock sets it, `u64::MAX` for not by time.
    until_ns: u64,
    /// Its last status, or the status of its ANA state.
    status: Status,
    command: KeptCommand<B>,
}

impl<B> Held<B> {
    fn sequence(&self) -> u32 {
        self.command.tag.sequence
    }

    /// Whether it is held for a path status and submitted again from time to time.
    fn is_probing(&self) -> bool {
        self.due_ns != u64::MAX && self.until_ns != u64::MAX
    }

    /// When it is submitted again or ends, ns.
    fn wake_ns(&self) -> u64 {
        self.due_ns.min(self.until_ns)
    }
}

/// The held commands of a lane.
#[derive(Debug)]
pub(super) struct HeldCommands<B> {
    commands: Vec<Held<B>>,
    /// When to look at them, ns; `u64::MAX` if there are none.
    wake_ns: u64,
    /// Number of commands held for a path status.
    probing_count: u16,
}

/// Which held commands to release.
#[derive(Clone, Copy, Debug)]
pub(super) enum Release {
    /// Those held for their ANA state, and if the ANA log has changed also those that ended with an ANA status. Where
    /// the log says nothing new, a command that ended with such a status keeps its delay.
    Ana { has_changed: bool },
    /// Those held for a path status of this namespace.
    Namespace(Nsid),
    /// The other half of the fused pair of this command, which ended.
    PartnerOf(u32),
    /// Those that are due.
    Due { now_ns: u64 },
}

/// Commands that are held no longer.
#[derive(Debug)]
pub(super) struct Released<B> {
    /// Commands to submit, in their first order of submission.
    pub(super) again: Vec<KeptCommand<B>>,
    /// Halves of fused pairs whose other half ended.
    pub(super) ended: Vec<Completion<B>>,
}

impl<B> HeldCommands<B> {
    pub(super) fn new() -> Self {
        Self { commands: Vec::new(), wake_ns: u64::MAX, probing_count: 0 }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.commands.is_empty()
    }

    /// When to call [`expire`](Self::expire), ns; `u64::MAX` for never.
    #[inline]
    pub(super) fn wake_ns(&self) -> u64 {
        self.wake_ns
    }

    /// Whether a command is held for a path status: the success of another one releases it.
    #[inline]
    pub(super) fn is_probing(&self) -> bool {
        self.probing_count > 0
    }

    /// Whether the other half of the fused pair of command `sequence` is held.
    pub(super) fn has_partner_of(&self, sequence: u32) -> bool {
        self.commands.iter().any(|held| held.command.partner() == Some(sequence))
    }

    /// Holds a command after this status until `due_ns`; it ends at `until_ns` at the latest, or never by time.
    pub(super) fn hold(
        &mut self,
        command: KeptCommand<B>,
        status: Status,
        due_ns: u64,
        until_ns: Option<u64>,
    ) {
        self.keep(Held { due_ns, until_ns: until_ns.unwrap_or(u64::MAX), status, command });
    }

    /// Holds a command whose namespace is in this ANA state, until the state changes.
    pub(super) fn hold_for_state(&mut self, command: KeptCommand<B>, state: AnaState) {
        let status = match state {
            AnaState::CHANGE => Status::ANA_TRANSITION,
            _ => Status::ANA_INACCESSIBLE,
        };
        self.keep(Held { due_ns: u64::MAX, until_ns: 0, status, command });
    }

    fn keep(&mut self, held: Held<B>) {
        self.wake_ns = self.wake_ns.min(held.wake_ns());
        self.probing_count += u16::from(held.is_probing());
        self.commands.push(held);
    }

    /// Releases commands. Both halves of a fused pair are released, or neither: a half whose other half is outstanding
    /// stays held, one whose other half has ended ends with its own status. `newest` is the last sequence number
    /// submitted; `is_out`: whether the command of a sequence number is outstanding.
    pub(super) fn release(
        &mut self,
        release: Release,
        newest: u32,
        mut is_out: impl FnMut(u32) -> bool,
    ) -> Released<B> {
        let is_meant = |held: &Held<B>| match release {
            Release::Ana { has_changed } => {
                held.due_ns == u64::MAX || (has_changed && retry::is_of_ana(held.status))
            }
            Release::Namespace(nsid) => held.command.sqe.nsid() == nsid && held.is_probing(),
            Release::PartnerOf(sequence) => held.command.partner() == Some(sequence),
            Release::Due { now_ns } => held.due_ns <= now_ns,
        };
        let partners: Vec<u32> = self
            .commands
            .iter()
            .filter(|held| is_meant(held))
            .filter_map(|held| held.command.partner())
            .collect();
        let (mut out, kept): (Vec<_>, Vec<_>) = std::mem::take(&mut self.commands)
            .into_iter()
            .partition(|held| is_meant(held) || partners.contains(&held.sequence()));
        self.commands = kept;
        sort_by_submission(&mut out, newest);
        let sequences: Vec<u32> = match partners.is_empty() {
            true => Vec::new(),
            false => out.iter().map(Held::sequence).collect(),
        };
        let mut released = Released { again: Vec::new(), ended: Vec::new() };
        for held in out {
            match held.command.partner() {
                Some(partner) if !sequences.contains(&partner) => {
                    if is_out(partner) {
                        self.commands.push(Held { due_ns: u64::MAX, ..held });
                    } else {
                        released.ended.push(held.command.stop(Failure::Status(held.status)));
                    }
                }
                _ => released.again.push(held.command),
            }
        }
        self.recount();
        released
    }

    /// Updates the totals after commands were removed.
    fn recount(&mut self) {
        self.wake_ns = self.commands.iter().map(Held::wake_ns).min().unwrap_or(u64::MAX);
        let count = self.commands.iter().filter(|held| held.is_probing()).count();
        self.probing_count = u16::try_from(count).expect("at most the depth");
    }

    /// Ends commands that were held for longer than `timeout_ns`, and sets the limit of those that have none yet.
    /// A [`release`](Self::release) of those that are due follows.
    pub(super) fn expire(&mut self, now_ns: u64, timeout_ns: u64, newest: u32) -> Vec<Completion<B>> {
        let now = moment(now_ns);
        let mut late = Vec::new();
        let mut index = 0;
        while let Some(held) = self.commands.get_mut(index) {
            if held.until_ns == 0 {
                let tag = &mut held.command.tag;
                tag.held_at = if tag.held_at == 0 { now } else { tag.held_at };
                let waited_ns = u64::from(ms_since(tag.held_at, now)) * MS;
                held.until_ns = now_ns.saturating_add(timeout_ns.saturating_sub(waited_ns)).max(1);
            }
            if held.until_ns <= now_ns {
                late.push(self.commands.swap_remove(index));
            } else {
                index += 1;
            }
        }
        sort_by_submission(&mut late, newest);
        let ended = late.into_iter().map(|Held { status, command, .. }| {
            let waited_ms = ms_since(command.tag.held_at, now);
            let failure = gave_up(status, command.tag, waited_ms);
            command.stop(failure)
        });
        ended.collect()
    }

    /// Removes the commands of `user`, with the other halves of their pairs.
    pub(super) fn take_user(&mut self, user: u64) -> Vec<KeptCommand<B>> {
        let mut meant: Vec<u32> = Vec::new();
        for held in self.commands.iter().filter(|held| held.command.tag.user == user) {
            meant.push(held.sequence());
            meant.extend(held.command.partner());
        }
        let (taken, kept): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.commands).into_iter().partition(|held| meant.contains(&held.sequence()));
        self.commands = kept;
        self.recount();
        taken.into_iter().map(|held| held.command).collect()
    }

    /// Removes all commands.
    pub(super) fn take_all(&mut self) -> impl Iterator<Item = KeptCommand<B>> + use<B> {
        std::mem::replace(self, Self::new()).commands.into_iter().map(|held| held.command)
    }
}

/// Sorts commands in the order of their submission, of which `newest` is the last. Their numbers wrap.
fn sort_by_submission<B>(commands: &mut [Held<B>], newest: u32) {
    commands.sort_unstable_by_key(|held| Reverse(newest.wrapping_sub(held.sequence())));
}

/// The failure of a command that is not submitted again after this status.
pub(super) fn gave_up(status: Status, tag: Tag, waited_ms: u32) -> Failure {
    match (tag.retry_count, waited_ms) {
        (0, 0) => Failure::Status(status),
        (retry_count, waited_ms) => {
            Failure::GaveUp { status, retry_count, waited: Waited::from_ms(waited_ms) }
        }
    }
}

#[cfg(test)]
mod tests {
    use proto::host_queue::Transfer;
    use wire::sqe::Sqe;

    use super::*;
    use crate::reconnect::Class;

    #[test]
    fn commands_end_in_the_order_of_their_submission_when_its_numbers_wrap() {
        let mut held = HeldCommands::<Vec<u8>>::new();
        for (user, sequence) in [(3, 1), (0, u32::MAX - 1), (2, 0), (1, u32::MAX)] {
            let tag = Tag::new(user, sequence, Class::Other, 0);
            let command = KeptCommand { sqe: Sqe::keep_alive(), transfer: Transfer::None, tag };
            held.hold(command, Status::INTERNAL_ERROR, u64::MAX, Some(5));
        }
        let ended: Vec<u64> = held.expire(10, 0, 1).into_iter().map(|completion| completion.user).collect();
        assert_eq!(ended, [0, 1, 2, 3]);
    }
}
