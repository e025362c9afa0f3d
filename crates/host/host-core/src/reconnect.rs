//! Reconnecting after the loss of an association, and what happens to outstanding commands.
//!
//! The loss of any connection ends the association, as on Linux: all lanes close, a new controller is brought up, and
//! each lane connects to it from the thread that owns the lane.
//!
//! # Commands that are submitted again
//!
//! | Command | By default | With [`ReplayPolicy::Idempotent`] |
//! |---|---|---|
//! | any that was not sent, not even in part | again | again |
//! | Read, Compare, Verify, and commands marked [`read_only`](crate::Command::read_only) | again | again |
//! | Write, Write Zeroes, Deallocate | [`Failure::Interrupted`] | again |
//! | Flush | [`Failure::Unflushed`], unless there is no volatile cache: then again | the same |
//! | Compare-and-write, Copy, anything raw | [`Failure::Interrupted`] | [`Failure::Interrupted`] |
//!
//! # Interrupted commands
//!
//! An interrupted command **may have been executed, may not have been executed, and may still be executed later**:
//! bytes that the target had received stay with the old controller until the target has torn it down, and no message on
//! the new connection reports when that is. So an interrupted write may overwrite a later write to the same blocks,
//! even after that completed:
//!
//! ```text
//! write A ─▶ (connection lost; A waits in the old controller)
//!                            write B to the same block ─▶ completed
//!                                                            A is executed: the block holds A
//! ```
//!
//! Because of this *delayed duplicate*, writes are not submitted again by default. With [`ReplayPolicy::Idempotent`]
//! the library sends the write a second time; it completes, and its first incarnation may then overwrite later writes.
//! Choose it where blocks are not written again soon after a loss, where the last writer does not matter, or where the
//! target is known to drop outstanding commands of an association before it accepts a new one from the same host.
//! Connections are reset, not closed with FIN, when an association ends: unsent data of the host is dropped, and the
//! target notices the end at once, which shortens the window without closing it.
//!
//! # When attempts end
//!
//! The first attempt of an association is made once, and its error is the caller's: a wrong key or secret is reported at
//! once. Once the association has been up, each loss is followed by attempts to reconnect until
//! [`give_up_after`](ReconnectSettings::give_up_after) has passed; `Error::GaveUp` then holds the error
//! of the last one.
//!
//! | Attempt fails by | Then |
//! |---|---|
//! | anything on the way: no connection, no answer in time, a close | attempts go on |
//! | TLS: an alert, a failed handshake, a target without TLS | attempts go on |
//! | authentication refused by either side; a target that demands it, or a secure channel, or does neither | attempts go on |
//! | a status of Connect with Do Not Retry | the association ends at once |
//! | a controller that cannot be used: its Identify data, or its answer to the ICReq | the association ends at once |
//!
//! A refused key or secret is no reason to end: the target may have been restarted before its keys are in place, an
//! operator may be replacing them, and a bit error on the way fails a handshake as a wrong key does. An operator
//! who removes the key of a host therefore ends its associations when their connections end, and the host reports the
//! refusal with each attempt (in the log, and as `Event::AttemptFailed`) until it gives up.
//!
//! # Flush after a reconnect
//!
//! A completed write stays in the target's volatile cache, if there is one, until a Flush. A restart of the target
//! loses that cache, and the host cannot tell a restart from a broken cable. So the first Flush on a lane after a
//! reconnect ends with [`Failure::Unflushed`] and is not sent: **data that was written without FUA before the
//! reconnect, and not flushed before it, may be lost and must be written again**. The next Flush is an ordinary one.
//!
//! The lanes of one handle (`AsyncNamespace`, `BlockingNamespace` with read or poll lanes), and lanes that were given
//! one by `Lane::share_flush_epoch`, share one flush epoch: until a caller has received that answer, no Flush succeeds
//! on any lane, so no success covers lost writes before the loss is reported. A Flush that was outstanding when the
//! connection was lost ends with [`Failure::Unflushed`] as well; with several lanes the first one after the reconnect
//! does so once more, since writes of other lanes may have completed meanwhile. A write that had completed before the
//! loss, and whose caller receives its completion only after a caller has received [`Failure::Unflushed`], ends with
//! [`Failure::Interrupted`]: no later Flush covers it.

use std::time::Duration;

use linux::random::SplitMix64;

use crate::duration::ns;
use crate::failure::Failure;

/// Delays between attempts to reconnect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReconnectSettings {
    /// Delay before the first attempt; it doubles with each attempt.
    pub delay_first: Duration,
    /// Maximum delay between two attempts.
    pub delay_max: Duration,
    /// Time after the loss at which reconnecting is given up; `None` for never.
    pub give_up_after: Option<Duration>,
}

impl Default for ReconnectSettings {
    fn default() -> Self {
        Self {
            delay_first: Duration::from_millis(20),
            delay_max: Duration::from_secs(10),
            give_up_after: Some(Duration::from_secs(600)),
        }
    }
}

impl ReconnectSettings {
    /// With this delay before the first attempt.
    #[must_use]
    pub fn with_delay_first(self, delay_first: Duration) -> Self {
        Self { delay_first, ..self }
    }

    /// With this maximum delay between two attempts.
    #[must_use]
    pub fn with_delay_max(self, delay_max: Duration) -> Self {
        Self { delay_max, ..self }
    }

    /// With this time after the loss at which reconnecting is given up; `None` for never.
    #[must_use]
    pub fn with_give_up_after(self, give_up_after: impl Into<Option<Duration>>) -> Self {
        Self { give_up_after: give_up_after.into(), ..self }
    }

    /// No reconnect: the association ends for good with its first loss.
    #[must_use]
    pub fn never() -> Self {
        Self { give_up_after: Some(Duration::ZERO), ..Self::default() }
    }
}

/// Commands that are submitted again after a reconnect, in addition to those that are always safe.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReplayPolicy {
    /// No commands that change data; see the [module](crate::reconnect).
    #[default]
    ReadsOnly,
    /// Write, Write Zeroes and Deallocate, with the hazard of the delayed duplicate.
    Idempotent,
}

/// Effect of repeating a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// The command changes nothing.
    ReadOnly,
    /// A repetition writes the same data again.
    Idempotent,
    /// Flush: makes earlier writes durable.
    Flush,
    /// A repetition may have another effect.
    Other,
}

/// What happens to an outstanding command after a loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    Replay,
    End(Failure),
}

/// Decides about a command whose connection was lost.
pub(crate) fn fate(class: Class, is_unsent: bool, policy: ReplayPolicy, has_volatile_cache: bool) -> Fate {
    match class {
        // Sent or not: its success must not cover writes before the loss.
        Class::Flush if has_volatile_cache => Fate::End(Failure::Unflushed),
        _ if is_unsent => Fate::Replay,
        Class::ReadOnly | Class::Flush => Fate::Replay,
        Class::Idempotent if policy == ReplayPolicy::Idempotent => Fate::Replay,
        Class::Idempotent | Class::Other => Fate::End(Failure::Interrupted),
    }
}

/// Schedule of attempts to reconnect.
///
/// ```text
/// Up ──on_lost──▶ Waiting ──(due) on_failed──▶ Waiting … ──▶ given up
///  ▲                 └────────on_up────────────────┘
/// ```
#[derive(Clone, Debug)]
pub struct Backoff {
    settings: ReconnectSettings,
    random: SplitMix64,
    /// Attempts since the last stable association.
    attempt_count: u32,
    /// Time of the loss that is being recovered, ns.
    lost_ns: Option<u64>,
    up_ns: u64,
}

impl Backoff {
    /// With this seed of the jitter.
    #[must_use]
    pub fn new(settings: ReconnectSettings, seed: u64) -> Self {
        Self { settings, random: SplitMix64::new(seed), attempt_count: 0, lost_ns: None, up_ns: 0 }
    }

    /// The association is up.
    pub fn on_up(&mut self, now_ns: u64) {
        self.up_ns = now_ns;
    }

    /// The association was lost. Returns when the next attempt is due; `None` to give up.
    pub fn on_lost(&mut self, now_ns: u64) -> Option<u64> {
        // An association that is lost soon after it came up continues the schedule of the last loss.
        if now_ns.saturating_sub(self.up_ns) >= ns(self.settings.delay_max) || self.lost_ns.is_none() {
            self.attempt_count = 0;
            self.lost_ns = Some(now_ns);
        }
        self.next_attempt(now_ns)
    }

    /// An attempt failed. Returns when the next attempt is due; `None` to give up.
    pub fn on_failed(&mut self, now_ns: u64) -> Option<u64> {
        self.next_attempt(now_ns)
    }

    fn next_attempt(&mut self, now_ns: u64) -> Option<u64> {
        let settings = self.settings;
        let wait_ns = ns(settings.delay_first)
            .saturating_mul(1u64.checked_shl(self.attempt_count).unwrap_or(u64::MAX))
            .min(ns(settings.delay_max));
        self.attempt_count = self.attempt_count.saturating_add(1);
        // Jitter, 50 to 100 % of the delay: hosts that lost the same target must not reconnect in lockstep.
        let wait_ns = wait_ns / 2 + self.random.draw() % (wait_ns / 2 + 1);
        let due_ns = now_ns.saturating_add(wait_ns);
        let lost_ns = self.lost_ns.unwrap_or(now_ns);
        match settings.give_up_after.map(ns) {
            Some(give_up_ns) if due_ns >= lost_ns.saturating_add(give_up_ns) => None,
            _ => Some(due_ns),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SECOND: u64 = 1_000_000_000;

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
        let mut teased = backoff.clone();
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
            let (delay_first, delay_max) = (Duration::from_nanos(first), Duration::from_nanos(max));
            let settings = ReconnectSettings { delay_first, delay_max, give_up_after: None };
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
