//! Commands that a lane holds because their namespace cannot be reached at present: what is held, until when, and what lets it go.
//! [`crate::retry`] says which statuses have a command held.

use std::sync::Arc;

use proto::host_queue::{DataBuffer, Transfer};
use wire::id::Nsid;
use wire::log::ana::AnaState;
use wire::opcode::DataDirection;
use wire::sqe::{Fuse, Sqe};
use wire::status::Status;

use super::{IS_ABORTED, IS_EXACT, IS_TIMED, LaneAction, LaneCore, MS, Pending, Phase, Tag, ended};
use crate::attachment::Inaccessible;
use crate::buffer::Data;
use crate::failure::Failure;
use crate::retry::{self, Verdict};

/// A command that is held.
#[derive(Debug)]
pub(super) struct Held<B> {
    /// When it is submitted again, ns; `u64::MAX` for not by time.
    due_ns: u64,
    /// When it ends, ns; 0 until the next look at the clock sets it, `u64::MAX` for not by time.
    until_ns: u64,
    /// Its last status, or the one that its ANA state stands for.
    status: Status,
    pending: Pending<B>,
}

impl<B> Held<B> {
    fn sequence(&self) -> u32 {
        self.pending.tag.sequence
    }

    /// The number of the other half, if this is one of a fused pair.
    fn partner(&self) -> Option<u32> {
        match self.pending.sqe.flags.fuse() {
            Fuse::FIRST => Some(self.sequence().wrapping_add(1)),
            Fuse::SECOND => Some(self.sequence().wrapping_sub(1)),
            _ => None,
        }
    }

    /// It is held for a status of its path, and submitted again from time to time.
    fn is_probing(&self) -> bool {
        self.due_ns != u64::MAX && self.until_ns != u64::MAX
    }

    /// When something becomes of it, ns.
    fn wake_ns(&self) -> u64 {
        self.due_ns.min(self.until_ns)
    }
}

/// ms of a clock in ns; never 0. Wraps after 49 days: only differences count.
pub(super) fn clock_ms(now_ns: u64) -> u32 {
    u32::try_from((now_ns / MS) & u64::from(u32::MAX)).expect("masked").max(1)
}

/// What a command is held with whose namespace is in this state.
fn status_of(state: AnaState) -> Status {
    match state {
        AnaState::CHANGE => Status::ANA_TRANSITION,
        _ => Status::ANA_INACCESSIBLE,
    }
}

impl<B: DataBuffer> LaneCore<B> {
    /// Holds or repeats a command that ended with a status, if that may help; else gives it back with why it ends. hostile H12
    pub(super) fn retry(
        &mut self,
        sqe: Sqe,
        mut tag: Tag,
        buffer: Option<Data<B>>,
        status: Status,
        now_ns: u64,
    ) -> Result<(), (Option<Data<B>>, Failure)> {
        let verdict = self.verdict(&sqe, tag, status);
        let now_ms = clock_ms(now_ns);
        if tag.held_ms == 0 {
            tag.held_ms = now_ms;
        }
        let waited_ms = now_ms.wrapping_sub(tag.held_ms);
        let left_ns = self.settings.path_timeout_ns.saturating_sub(u64::from(waited_ms) * MS);
        let is_over = match verdict {
            Verdict::End => return Err((buffer, Failure::Status(status))),
            Verdict::Repeat => tag.retry_count >= self.settings.retry_limit,
            Verdict::Hold => left_ns == 0,
        };
        if is_over {
            return Err((buffer, gave_up(status, tag, waited_ms)));
        }
        if retry::is_of_ana(status) && !self.asks_ana {
            self.asks_ana = true;
            self.actions.push_back(LaneAction::ReadAna);
        }
        let asked_ms =
            self.attachment.as_ref().map_or([0; 3], |attachment| attachment.limits.retry_delays_ms);
        let delay_ns = retry::delay_ns(status, verdict, tag.retry_count, asked_ms, tag.sequence);
        tag.retry_count = tag.retry_count.saturating_add(1);
        tag.seen_ms = 0;
        tag.flags &= !(IS_ABORTED | IS_TIMED);
        let transfer = match (buffer, DataDirection::of(sqe.opcode)) {
            (None, _) => Transfer::None,
            (Some(buffer), DataDirection::ControllerToHost) => {
                Transfer::FromController { buffer, is_exact: tag.has(IS_EXACT) }
            }
            (Some(buffer), _) => Transfer::ToController(buffer),
        };
        let pending = Pending { sqe, transfer, tag };
        let until_ns = match verdict {
            Verdict::Hold => now_ns.saturating_add(left_ns),
            _ => u64::MAX,
        };
        if delay_ns == 0 {
            self.waiting.push_back(pending);
        } else {
            self.keep(Held { due_ns: now_ns.saturating_add(delay_ns), until_ns, status, pending });
        }
        // Its slot is free.
        self.pump();
        Ok(())
    }

    /// The second half of a fused pair fails with the first, and is held with it.
    fn verdict(&self, sqe: &Sqe, tag: Tag, status: Status) -> Verdict {
        let is_second = sqe.flags.fuse() == Fuse::SECOND && status.is(Status::ABORTED_FAILED_FUSED);
        if is_second && self.held.iter().any(|held| held.partner() == Some(tag.sequence)) {
            return Verdict::Hold;
        }
        retry::verdict(status, tag.class)
    }

    fn keep(&mut self, held: Held<B>) {
        self.held_ns = self.held_ns.min(held.wake_ns());
        self.probing_count += u16::from(held.is_probing());
        self.held.push(held);
    }

    /// The state of a namespace that is not accessible.
    fn barrier(&self, nsid: Nsid) -> Option<AnaState> {
        let at = self.inaccessible.binary_search_by_key(&nsid, |(nsid, _)| *nsid).ok()?;
        self.inaccessible.get(at).map(|(_, state)| *state)
    }

    /// Holds a command of a namespace that is not accessible, without sending it; gives back any other one.
    #[cold]
    pub(super) fn hold_back(&mut self, pending: Pending<B>) -> Option<Pending<B>> {
        let Some(state) = self.barrier(pending.sqe.nsid()) else { return Some(pending) };
        if state == AnaState::PERSISTENT_LOSS {
            let failure = pending.tag.stopped(Failure::Status(Status::ANA_PERSISTENT_LOSS));
            self.done.push_back(ended(pending, failure));
            return None;
        }
        let status = status_of(state);
        self.keep(Held { due_ns: u64::MAX, until_ns: 0, status, pending });
        None
    }

    /// These namespaces are not accessible now, and all others are, for all that the ANA log says.
    pub fn on_inaccessible(&mut self, inaccessible: &Inaccessible) {
        let has_changed = self.inaccessible != *inaccessible;
        self.inaccessible = Arc::clone(inaccessible);
        self.is_barred = !inaccessible.is_empty();
        self.asks_ana = false;
        // Where the log says nothing new, a command that met such a status all the same keeps to its delay.
        self.release(|held| held.due_ns == u64::MAX || (has_changed && retry::is_of_ana(held.status)));
    }

    /// A command of this namespace has succeeded: what is held for a status of its path may follow it.
    #[cold]
    pub(super) fn on_reached(&mut self, nsid: Nsid) {
        self.release(|held| held.pending.sqe.nsid() == nsid && held.is_probing());
    }

    /// The connection is gone, and what its controller said of its namespaces with it.
    pub(super) fn forget_inaccessible(&mut self) {
        self.inaccessible = Arc::new([]);
        (self.is_barred, self.asks_ana) = (false, false);
    }

    /// Looks at what is held: ends what has waited too long, submits what is due.
    #[cold]
    pub(super) fn look_at_held(&mut self, now_ns: u64) {
        let now_ms = clock_ms(now_ns);
        let timeout_ns = self.settings.path_timeout_ns;
        let mut late = Vec::new();
        let mut index = 0;
        while let Some(held) = self.held.get_mut(index) {
            if held.until_ns == 0 {
                let tag = &mut held.pending.tag;
                tag.held_ms = if tag.held_ms == 0 { now_ms } else { tag.held_ms };
                let waited_ns = u64::from(now_ms.wrapping_sub(tag.held_ms)) * MS;
                held.until_ns = now_ns.saturating_add(timeout_ns.saturating_sub(waited_ns)).max(1);
            }
            if held.until_ns <= now_ns {
                late.push(self.held.swap_remove(index));
            } else {
                index += 1;
            }
        }
        late.sort_unstable_by_key(|held| held.pending.tag.sequence);
        for Held { status, pending, .. } in late {
            let waited_ms = now_ms.wrapping_sub(pending.tag.held_ms);
            let failure = pending.tag.stopped(gave_up(status, pending.tag, waited_ms));
            self.done.push_back(ended(pending, failure));
        }
        self.release(|held| held.due_ns <= now_ns);
    }

    /// Submits those held commands that `is_meant` says, in the order in which they were submitted first. Of a pair both halves go, or
    /// neither; a half whose other half has ended ends too.
    fn release(&mut self, is_meant: impl Fn(&Held<B>) -> bool) {
        let partners: Vec<u32> =
            self.held.iter().filter(|held| is_meant(held)).filter_map(Held::partner).collect();
        let (mut out, mut kept) = (Vec::new(), Vec::new());
        for held in std::mem::take(&mut self.held) {
            if is_meant(&held) || partners.contains(&held.sequence()) {
                out.push(held);
            } else {
                kept.push(held);
            }
        }
        self.held = kept;
        let newest = self.sequence;
        out.sort_unstable_by_key(|held| std::cmp::Reverse(newest.wrapping_sub(held.sequence())));
        let there: Vec<u32> = match partners.is_empty() {
            true => Vec::new(),
            false => out.iter().map(Held::sequence).collect(),
        };
        for held in out {
            match held.partner() {
                Some(partner) if !there.contains(&partner) => self.part_from(held, partner),
                _ => self.waiting.push_back(held.pending),
            }
        }
        self.count_held();
        self.pump();
    }

    /// What is known of all that is held, after some of it has gone.
    fn count_held(&mut self) {
        self.held_ns = self.held.iter().map(Held::wake_ns).min().unwrap_or(u64::MAX);
        let count = self.held.iter().filter(|held| held.is_probing()).count();
        self.probing_count = u16::try_from(count).expect("at most the depth");
    }

    /// One half of a fused pair has ended: the other does not wait for it any more.
    #[cold]
    pub(super) fn on_half_ended(&mut self, sequence: u32) {
        self.release(|held| held.partner() == Some(sequence));
    }

    /// The connection is live: what was held for the state of an ANA group on the last one is compared with that of this one.
    pub(super) fn on_live(&mut self) {
        self.missing_ns = 0;
        self.release(|held| held.due_ns == u64::MAX);
    }

    /// Half of a pair is to go without the other: it waits while that is out, and ends with its status otherwise.
    fn part_from(&mut self, held: Held<B>, partner: u32) {
        let mut is_out = false;
        self.queue.for_each_command(|_, tag| is_out |= tag.sequence == partner);
        if is_out {
            // Until the other half has ended.
            self.held.push(Held { due_ns: u64::MAX, ..held });
            return;
        }
        let Held { status, pending, .. } = held;
        let failure = pending.tag.stopped(Failure::Status(status));
        self.done.push_back(ended(pending, failure));
    }

    /// Takes out those held commands that are cancelled: those of `user`, with the other halves of their pairs.
    pub(super) fn take_held(&mut self, user: u64) -> Vec<Pending<B>> {
        let is_meant = |held: &Held<B>| held.pending.tag.user == user;
        let mut meant: Vec<u32> = Vec::new();
        for held in self.held.iter().filter(|held| is_meant(held)) {
            meant.push(held.sequence());
            meant.extend(held.partner());
        }
        let mut taken = Vec::new();
        for held in std::mem::take(&mut self.held) {
            if meant.contains(&held.sequence()) { taken.push(held.pending) } else { self.held.push(held) }
        }
        self.count_held();
        taken
    }

    /// Takes out all of them: the lane ends.
    pub(super) fn take_all_held(&mut self) -> impl Iterator<Item = Pending<B>> + use<B> {
        (self.held_ns, self.probing_count) = (u64::MAX, 0);
        std::mem::take(&mut self.held).into_iter().map(|held| held.pending)
    }

    /// Ends what waits for a connection that has been missing for too long.
    pub(super) fn look_at_missing(&mut self, now_ns: u64) {
        if matches!(self.phase, Phase::Live | Phase::Ended) {
            return;
        }
        if self.missing_ns == 0 {
            self.missing_ns = now_ns.max(1);
        }
        if let Some(until_ns) = self.missing_until_ns()
            && until_ns <= now_ns
        {
            let waited_ms = u32::try_from(now_ns.saturating_sub(self.missing_ns) / MS).unwrap_or(u32::MAX);
            let held: Vec<_> = self.take_all_held().collect();
            for pending in self.waiting.drain(..).chain(held) {
                let failure = pending.tag.stopped(Failure::NoConnection { waited_ms });
                self.done.push_back(ended(pending, failure));
            }
        }
    }

    /// When what waits for a connection ends, ns, if anything waits and there is such a limit.
    pub(super) fn missing_until_ns(&self) -> Option<u64> {
        let has_any = !self.waiting.is_empty() || !self.held.is_empty();
        if !has_any || matches!(self.phase, Phase::Live | Phase::Ended) {
            return None;
        }
        let limit_ns = self.settings.fast_fail_ns?;
        // Not seen yet: at the next look at the clock.
        Some(if self.missing_ns == 0 { 0 } else { self.missing_ns.saturating_add(limit_ns) })
    }
}

/// How a command ends that is not submitted again.
fn gave_up(status: Status, tag: Tag, waited_ms: u32) -> Failure {
    match (tag.retry_count, waited_ms) {
        (0, 0) => Failure::Status(status),
        (retry_count, waited_ms) => Failure::GaveUp { status, retry_count, waited_ms },
    }
}
