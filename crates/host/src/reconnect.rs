//! What happens when an association is lost: when to try again, and what becomes of commands that were in flight.
//!
//! The loss of any connection ends the association, as it does on Linux: all lanes close, a new controller is brought up, and each
//! lane connects to it from the thread that owns it.
//!
//! # What is submitted again
//!
//! | Command | By default | With [`ReplayPolicy::Idempotent`] |
//! |---|---|---|
//! | not a byte of it has left | again | again |
//! | Read, Compare, Verify, and what is marked [`read_only`](crate::Command::read_only) | again | again |
//! | Write, Write Zeroes, Deallocate | [`Failure::Interrupted`] | again |
//! | Flush | [`Failure::Unflushed`], unless there is no volatile cache: then again | the same |
//! | Compare-and-write, Copy, anything raw | [`Failure::Interrupted`] | [`Failure::Interrupted`] |
//!
//! # What an interrupted command leaves behind
//!
//! A command that was interrupted **may have happened, may not have happened, and may still happen**: bytes that the target had received
//! stay with the old controller until the target has torn that down, and nothing on the new connection tells when this is. So
//! another write to the same blocks may be overtaken by the interrupted one, even after it was reported done:
//!
//! ```text
//! write A ─▶ (connection lost; A waits in the old controller)
//!                            write B to the same block ─▶ done
//!                                                            A is executed: the block holds A
//! ```
//!
//! This *delayed duplicate* is why writes are not submitted again by default. With [`ReplayPolicy::Idempotent`] the library does the same
//! in the caller's place: the write is sent a second time and reported done, and its first incarnation may then
//! overwrite what the caller wrote after that. Choose it where blocks are not written again soon after a loss, where the last
//! writer does not matter, or where the target is known to drop what an association had in flight before it accepts a new one
//! from the same host. Connections are reset, not closed gently, when an association ends: what our side had not sent yet
//! is dropped, and the target learns of the end at once, which makes the window small without closing it.
//!
//! # What a flush after a reconnect means
//!
//! A write that was reported done sits in the target's volatile cache, if there is one, until it is flushed. If the
//! target was restarted, that cache is gone, and the host cannot tell a restart from a broken cable. So the first flush
//! on a lane after a reconnect ends with [`Failure::Unflushed`] and is not sent: **whatever was written without FUA before the
//! reconnect and not flushed then may be lost, and is to be written again**. The flush after that is an ordinary one.
//!
//! A handle with several lanes (futures, and blocking with read or poll lanes) is told once for all of them: until somebody has that answer no
//! flush succeeds on any lane, so none vouches for what is lost before it is known to be. A flush that was in flight when the
//! connection was lost ends with [`Failure::Unflushed`] as well; there the first one after the reconnect does so once more, as
//! other lanes may have had writes answered meanwhile.

use crate::failure::Failure;

/// When to connect again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReconnectSettings {
    /// Wait before the first attempt, ns; it doubles with each attempt.
    pub delay_ns_first: u64,
    /// The longest wait between two attempts, ns.
    pub delay_ns_max: u64,
    /// Time after which an association that cannot be had back is given up, ns; `None` for never.
    pub give_up_ns: Option<u64>,
}

const SECOND: u64 = 1_000_000_000;

impl Default for ReconnectSettings {
    fn default() -> Self {
        Self { delay_ns_first: 20_000_000, delay_ns_max: 10 * SECOND, give_up_ns: Some(600 * SECOND) }
    }
}

impl ReconnectSettings {
    /// No second attempt: the association ends with its first loss.
    #[must_use]
    pub fn never() -> Self {
        Self { give_up_ns: Some(0), ..Self::default() }
    }
}

/// What of a lost association is submitted again, beside what is always safe.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReplayPolicy {
    /// Nothing that changes data. [The module's documentation](crate::reconnect) says why.
    #[default]
    ReadsOnly,
    /// Also writes, Write Zeroes and Deallocate: with the hazard of the delayed duplicate.
    Idempotent,
}

/// What kind of command one is, as far as doing it twice goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// Changes nothing.
    ReadOnly,
    /// Changes data to the same again.
    Idempotent,
    /// Makes earlier writes durable.
    Flush,
    /// Anything may depend on how often it is done.
    Other,
}

/// What becomes of a command that was in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    Replay,
    End(Failure),
}

/// Judges a command whose connection was lost.
pub(crate) fn fate(class: Class, is_unsent: bool, policy: ReplayPolicy, has_volatile_cache: bool) -> Fate {
    match class {
        // Whether it was sent or not: it may not vouch for what came before the loss.
        Class::Flush if has_volatile_cache => Fate::End(Failure::Unflushed),
        _ if is_unsent => Fate::Replay,
        Class::ReadOnly | Class::Flush => Fate::Replay,
        Class::Idempotent if policy == ReplayPolicy::Idempotent => Fate::Replay,
        Class::Idempotent | Class::Other => Fate::End(Failure::Interrupted),
    }
}

/// When the next attempt is due.
///
/// ```text
/// Up ──on_lost──▶ Waiting ──(due) on_failed──▶ Waiting … ──▶ given up
///  ▲                 └────────on_up────────────────┘
/// ```
#[derive(Clone, Copy, Debug)]
pub(crate) struct Backoff {
    settings: ReconnectSettings,
    random: u64,
    /// Attempts since the last time of calm.
    attempt_count: u32,
    /// When the loss was that is being recovered.
    lost_ns: Option<u64>,
    up_ns: u64,
}

impl Backoff {
    pub(crate) fn new(settings: ReconnectSettings, seed: u64) -> Self {
        Self { settings, random: seed, attempt_count: 0, lost_ns: None, up_ns: 0 }
    }

    /// The association is up.
    pub(crate) fn on_up(&mut self, now_ns: u64) {
        self.up_ns = now_ns;
    }

    /// It was up and is lost. When to try again; `None` if never.
    pub(crate) fn on_lost(&mut self, now_ns: u64) -> Option<u64> {
        // One that comes up only to be lost at once does not start from the shortest wait again, and is given up as if
        // it had not come up.
        if now_ns.saturating_sub(self.up_ns) >= self.settings.delay_ns_max || self.lost_ns.is_none() {
            self.attempt_count = 0;
            self.lost_ns = Some(now_ns);
        }
        self.next_attempt(now_ns)
    }

    /// An attempt has failed. When to try again; `None` if it is time to give up.
    pub(crate) fn on_failed(&mut self, now_ns: u64) -> Option<u64> {
        self.next_attempt(now_ns)
    }

    fn next_attempt(&mut self, now_ns: u64) -> Option<u64> {
        let settings = self.settings;
        let wait_ns = settings
            .delay_ns_first
            .saturating_mul(1u64.checked_shl(self.attempt_count).unwrap_or(u64::MAX))
            .min(settings.delay_ns_max);
        self.attempt_count = self.attempt_count.saturating_add(1);
        // Half to whole: many hosts that lost one target do not come back in step.
        let wait_ns = wait_ns / 2 + self.draw() % (wait_ns / 2 + 1);
        let due_ns = now_ns.saturating_add(wait_ns);
        let lost_ns = self.lost_ns.unwrap_or(now_ns);
        match settings.give_up_ns {
            Some(give_up_ns) if due_ns >= lost_ns.saturating_add(give_up_ns) => None,
            _ => Some(due_ns),
        }
    }

    /// SplitMix64.
    fn draw(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut value = self.random;
        value = (value ^ value >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        value = (value ^ value >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        value ^ value >> 31
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_changes_data_is_not_repeated_unless_asked_for() {
        use Class::{Flush, Idempotent, Other, ReadOnly};
        let interrupted = Fate::End(Failure::Interrupted);
        for (class, cautious, idempotent) in [
            (ReadOnly, Fate::Replay, Fate::Replay),
            (Idempotent, interrupted, Fate::Replay),
            (Flush, Fate::End(Failure::Unflushed), Fate::End(Failure::Unflushed)),
            (Other, interrupted, interrupted),
        ] {
            assert_eq!(fate(class, false, ReplayPolicy::ReadsOnly, true), cautious);
            assert_eq!(fate(class, false, ReplayPolicy::Idempotent, true), idempotent);
            let unsent = if class == Flush { cautious } else { Fate::Replay };
            assert_eq!(fate(class, true, ReplayPolicy::ReadsOnly, true), unsent);
        }
        assert_eq!(fate(Flush, false, ReplayPolicy::ReadsOnly, false), Fate::Replay);
    }

    #[test]
    fn the_first_attempt_is_soon_and_the_last_is_the_last() {
        let mut backoff = Backoff::new(ReconnectSettings::default(), 1);
        backoff.on_up(0);
        let mut now_ns = 100 * SECOND;
        let mut due = backoff.on_lost(now_ns);
        assert!(due.unwrap() - now_ns <= 20_000_000);
        let mut count = 0;
        while let Some(due_ns) = due {
            assert!(due_ns - now_ns <= 10 * SECOND);
            now_ns = due_ns;
            count += 1;
            due = backoff.on_failed(now_ns);
        }
        assert!(now_ns > 685 * SECOND && now_ns < 700 * SECOND, "gave up after {now_ns}");
        assert!((60..160).contains(&count), "{count} attempts");
    }

    #[test]
    fn a_target_that_only_teases_is_not_hammered_and_given_up() {
        let mut backoff = Backoff::new(ReconnectSettings::default(), 1);
        let (mut now_ns, mut count) = (0, 0);
        while now_ns < 100 * SECOND {
            backoff.on_up(now_ns);
            now_ns = backoff.on_lost(now_ns).unwrap();
            count += 1;
        }
        assert!(count < 30, "{count} attempts");
        let mut teased = backoff;
        while let Some(due_ns) = teased.on_lost(now_ns) {
            now_ns = due_ns;
            teased.on_up(now_ns);
        }
        assert!(now_ns > 585 * SECOND && now_ns < 600 * SECOND);
        backoff.on_up(now_ns);
        now_ns += 60 * SECOND;
        assert!(backoff.on_lost(now_ns).unwrap() - now_ns <= 20_000_000, "soon again after a time of calm");
    }

    #[test]
    fn never_is_never() {
        assert_eq!(Backoff::new(ReconnectSettings::never(), 1).on_lost(5), None);
    }

    proptest! {
        #[test]
        fn waits_stay_within_their_bounds(seed: u64, first in 0u64..SECOND, max in 1u64..20 * SECOND, now: u64) {
            let settings = ReconnectSettings { delay_ns_first: first, delay_ns_max: max, give_up_ns: None };
            let mut backoff = Backoff::new(settings, seed);
            let mut due_ns = backoff.on_lost(now).unwrap();
            for attempt in 0..80u32 {
                let whole = first.saturating_mul(1u64.checked_shl(attempt).unwrap_or(u64::MAX)).min(max);
                prop_assert!(due_ns - now >= (whole / 2).min(u64::MAX - now) && due_ns - now <= whole);
                due_ns = backoff.on_failed(now).unwrap();
            }
        }
    }
}
