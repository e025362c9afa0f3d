//! Latency of commands by phase, measured for one in [`SAMPLE_INTERVAL`].
//!
//! ```text
//! submitted ──doorbell──▶ rung ──send──▶ accepted by the socket ──away──▶ received ──reply──▶ handed out
//! ```
//!
//! No clock is read for other commands. A lane measures one command at a time, and drops it if its connection is lost.

use reactor::Durations;

/// One command in this number is measured: a power of two, so that the decision is one test of the count.
pub(crate) const SAMPLE_INTERVAL: u64 = 64;

/// Time of the measured commands in each phase.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Phases {
    /// From submission until the doorbell was rung for the caravan it was in.
    pub doorbell: Durations,
    /// From there until the socket accepted the whole caravan.
    pub send: Durations,
    /// From there until its completion was received: both directions of the network, and the target.
    pub away: Durations,
    /// From there until all completions received with it were handed out.
    pub reply: Durations,
}

impl Phases {
    /// Adds the times of another lane.
    pub fn merge(&mut self, other: &Self) {
        self.doorbell.merge(&other.doorbell);
        self.send.merge(&other.send);
        self.away.merge(&other.away);
        self.reply.merge(&other.reply);
    }

    /// The phases with their names, in order.
    #[must_use]
    pub fn named(&self) -> [(&'static str, &Durations); 4] {
        [("doorbell", &self.doorbell), ("send", &self.send), ("away", &self.away), ("reply", &self.reply)]
    }
}

/// Phase of the measured command.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Stage {
    /// No command is measured.
    #[default]
    Idle,
    Doorbell,
    Send,
    Away,
}

/// Measures one command at a time.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Stopwatch {
    stage: Stage,
    /// Start of the stage, ns.
    since_ns: u64,
    /// Time of the last receive during stage `Away`, ns.
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

    /// The command was submitted.
    #[cold]
    pub(crate) fn start(&mut self, now_ns: u64) {
        (self.stage, self.since_ns) = (Stage::Doorbell, now_ns);
    }

    /// The doorbell was rung for its caravan.
    #[cold]
    pub(crate) fn on_rung(&mut self, now_ns: u64) {
        self.phases.doorbell.add(now_ns.saturating_sub(self.since_ns));
        (self.stage, self.since_ns) = (Stage::Send, now_ns);
    }

    /// The socket accepted its whole caravan.
    #[cold]
    pub(crate) fn on_taken(&mut self, now_ns: u64) {
        self.phases.send.add(now_ns.saturating_sub(self.since_ns));
        (self.stage, self.since_ns) = (Stage::Away, now_ns);
    }

    /// Bytes were received during stage `Away`.
    #[cold]
    pub(crate) fn on_received(&mut self, now_ns: u64) {
        self.received_ns = now_ns;
    }

    /// The last receive contained its completion, which was handed out.
    #[cold]
    pub(crate) fn stop(&mut self, now_ns: u64) {
        if self.stage == Stage::Away {
            self.phases.away.add(self.received_ns.saturating_sub(self.since_ns));
            self.phases.reply.add(now_ns.saturating_sub(self.received_ns));
        }
        self.stage = Stage::Idle;
    }

    /// Its connection was lost.
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
