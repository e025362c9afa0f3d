//! Follows one command of a lane at a time with a clock, through the phases of
//! [`PhaseCounters`]: one in [`SAMPLE_INTERVAL`]. No clock is read for the others.

use proto::Slot;

use crate::names::lane_counters::PhaseCounters;

/// One command in this number is followed; a power of two, so that finding it is one test of the count.
const SAMPLE_INTERVAL: u32 = 64;

/// The phase of the sampled command.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Stage {
    /// No command is sampled.
    #[default]
    Idle,
    /// Data that it has asked for.
    Data(Slot),
    /// The namespace.
    Backend(Slot),
    /// The doorbell.
    Doorbell,
    /// The socket.
    Send,
}

/// Follows one command at a time.
#[derive(Debug, Default)]
pub(crate) struct Stopwatch {
    passed_count: u32,
    stage: Stage,
    /// When its stage began, ns.
    since_ns: u64,
}

impl Stopwatch {
    #[inline]
    pub(crate) fn stage(&self) -> Stage {
        self.stage
    }

    /// A command has arrived: decides whether it is sampled.
    #[inline]
    pub(crate) fn follows_next(&mut self) -> bool {
        let is_due = self.passed_count.is_multiple_of(SAMPLE_INTERVAL);
        self.passed_count = self.passed_count.wrapping_add(1);
        is_due && self.stage == Stage::Idle
    }

    /// It has to be asked for its data.
    pub(crate) fn await_data(&mut self, slot: Slot) {
        self.stage = Stage::Data(slot);
    }

    /// The namespace has it, in a turn that began at `turn_ns`.
    pub(crate) fn begin(&mut self, times: &PhaseCounters, slot: Slot, turn_ns: u64, now_ns: u64) {
        times.socket.add(now_ns.saturating_sub(turn_ns));
        (self.stage, self.since_ns) = (Stage::Backend(slot), now_ns);
    }

    /// The namespace has completed it: its answer waits to be sent.
    #[cold]
    pub(crate) fn on_done(&mut self, times: &PhaseCounters, now_ns: u64) {
        times.backend.add(now_ns.saturating_sub(self.since_ns));
        (self.stage, self.since_ns) = (Stage::Doorbell, now_ns);
    }

    /// The caravan with its answer is leaving.
    #[cold]
    pub(crate) fn on_rung(&mut self, times: &PhaseCounters, now_ns: u64) {
        times.doorbell.add(now_ns.saturating_sub(self.since_ns));
        (self.stage, self.since_ns) = (Stage::Send, now_ns);
    }

    /// That caravan is gone.
    #[cold]
    pub(crate) fn on_taken(&mut self, times: &PhaseCounters, now_ns: u64) {
        times.send.add(now_ns.saturating_sub(self.since_ns));
        self.stage = Stage::Idle;
    }

    /// The command of this slot ends, or leaves the path that is measured.
    pub(crate) fn forget(&mut self, slot: Slot) {
        if matches!(self.stage, Stage::Data(followed) | Stage::Backend(followed) if followed == slot) {
            self.stage = Stage::Idle;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_command_in_64_is_followed_unless_another_is() {
        let mut watch = Stopwatch::default();
        let times = PhaseCounters::default();
        let followed: Vec<_> = (0..200).filter(|_| watch.follows_next()).collect();
        assert_eq!(followed, [0, 64, 128, 192]);
        watch.begin(&times, Slot::new(3), 100, 150);
        assert!(!(0..100).any(|_| watch.follows_next()));
        watch.on_done(&times, 250);
        watch.on_rung(&times, 1_250);
        watch.on_taken(&times, 3_250);
        let sums =
            [&times.socket, &times.backend, &times.doorbell, &times.send].map(|each| each.get().sum_ns);
        assert_eq!((sums, watch.stage()), ([50, 100, 1_000, 2_000], Stage::Idle));
    }

    #[test]
    fn only_the_command_that_is_followed_is_forgotten() {
        let mut watch = Stopwatch::default();
        watch.await_data(Slot::new(3));
        watch.forget(Slot::new(2));
        assert_eq!(watch.stage(), Stage::Data(Slot::new(3)));
        watch.forget(Slot::new(3));
        assert_eq!(watch.stage(), Stage::Idle);
    }
}
