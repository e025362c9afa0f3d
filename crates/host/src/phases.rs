//! Where the time of commands goes: one in [`SAMPLE_INTERVAL`] is followed with a clock.
//!
//! ```text
//! submitted ──doorbell──▶ rung ──send──▶ taken by the socket ──away──▶ received ──reply──▶ handed over
//! ```
//!
//! No clock is read for the others. A lane follows one command at a time; one that is lost with its connection is not counted.

use reactor::Durations;

/// One command in so many is followed; a power of two, so that finding it is one test of the count.
pub(crate) const SAMPLE_INTERVAL: u64 = 64;

/// How long the commands that were followed spent in each phase.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Phases {
    /// From submission until the doorbell was rung for the caravan it was in.
    pub doorbell: Durations,
    /// From there until the socket had taken that caravan whole.
    pub send: Durations,
    /// From there until a receive had brought its completion: both networks, and the target.
    pub away: Durations,
    /// From there until everything that came with it was handed over.
    pub reply: Durations,
}

impl Phases {
    /// Adds those of another lane.
    pub fn merge(&mut self, other: &Self) {
        self.doorbell.merge(&other.doorbell);
        self.send.merge(&other.send);
        self.away.merge(&other.away);
        self.reply.merge(&other.reply);
    }

    /// Each phase with its name, in the order in which a command goes through them.
    #[must_use]
    pub fn named(&self) -> [(&'static str, &Durations); 4] {
        [("doorbell", &self.doorbell), ("send", &self.send), ("away", &self.away), ("reply", &self.reply)]
    }
}

/// What the command that is followed waits for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Stage {
    /// None is followed.
    #[default]
    Idle,
    Doorbell,
    Send,
    Away,
}

/// Follows one command at a time.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Stopwatch {
    stage: Stage,
    /// When its stage began, ns.
    since_ns: u64,
    /// When the last receive returned that it was away in, ns.
    received_ns: u64,
    phases: Phases,
}

impl Stopwatch {
    #[inline]
    pub(crate) fn stage(&self) -> Stage {
        self.stage
    }

    pub(crate) fn phases(&self) -> Phases {
        self.phases
    }

    /// It was submitted.
    #[cold]
    pub(crate) fn start(&mut self, now_ns: u64) {
        (self.stage, self.since_ns) = (Stage::Doorbell, now_ns);
    }

    /// Its caravan is leaving.
    #[cold]
    pub(crate) fn on_rung(&mut self, now_ns: u64) {
        self.phases.doorbell.add(now_ns.saturating_sub(self.since_ns));
        (self.stage, self.since_ns) = (Stage::Send, now_ns);
    }

    /// Its caravan is gone.
    #[cold]
    pub(crate) fn on_taken(&mut self, now_ns: u64) {
        self.phases.send.add(now_ns.saturating_sub(self.since_ns));
        (self.stage, self.since_ns) = (Stage::Away, now_ns);
    }

    /// A receive has brought something while it is away.
    #[cold]
    pub(crate) fn on_received(&mut self, now_ns: u64) {
        self.received_ns = now_ns;
    }

    /// What the last receive brought was its completion, and is handed over.
    #[cold]
    pub(crate) fn stop(&mut self, now_ns: u64) {
        if self.stage == Stage::Away {
            self.phases.away.add(self.received_ns.saturating_sub(self.since_ns));
            self.phases.reply.add(now_ns.saturating_sub(self.received_ns));
        }
        self.stage = Stage::Idle;
    }

    /// It will not come back on this connection.
    #[cold]
    pub(crate) fn forget(&mut self) {
        self.stage = Stage::Idle;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_phase_begins_where_the_one_before_ends() {
        let mut watch = Stopwatch::default();
        watch.start(1_000);
        watch.on_rung(1_300);
        watch.on_taken(4_300);
        watch.on_received(9_000);
        // That brought others' completions.
        watch.on_received(14_300);
        watch.stop(14_800);
        assert_eq!(watch.stage(), Stage::Idle);
        let sums = watch.phases().named().map(|(name, times)| (name, times.count, times.sum_ns));
        assert_eq!(sums, [("doorbell", 1, 300), ("send", 1, 3_000), ("away", 1, 10_000), ("reply", 1, 500)]);
    }

    #[test]
    fn a_command_that_is_lost_leaves_no_times_of_what_it_did_not_go_through() {
        let mut watch = Stopwatch::default();
        watch.start(10);
        watch.on_rung(20);
        watch.forget();
        watch.stop(100);
        assert_eq!((watch.phases().away.count, watch.phases().reply.count), (0, 0));
    }
}
