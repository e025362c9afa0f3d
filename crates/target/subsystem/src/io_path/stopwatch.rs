//! Follows one command of a lane at a time with a clock, through the phases of
//! [`PhaseCounters`]: one in [`SAMPLE_INTERVAL`]. No clock is read for the others.

use std::sync::Arc;

use proto::Slot;
use reactor::SharedDurations;

use crate::names::lane_counters::PhaseCounters;
use crate::objects::namespace_traffic::NamespaceTraffic;

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
    /// The namespace of the command that was followed last, and the reactor.
    traffic: Option<(Arc<NamespaceTraffic>, u16)>,
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

    /// The namespace whose histograms have the phases of the next command, too.
    pub(crate) fn set_namespace(&mut self, traffic: Option<&Arc<NamespaceTraffic>>, reactor: u16) {
        let known = self.traffic.as_ref().map(|(known, _)| known);
        // The same namespace again needs no write to its reference count, which other reactors write as well.
        if known.map(Arc::as_ptr) != traffic.map(Arc::as_ptr) {
            self.traffic = traffic.map(|traffic| (Arc::clone(traffic), reactor));
        }
    }

    /// The namespace has it, in a turn that began at `turn_ns`.
    pub(crate) fn begin(&mut self, times: &PhaseCounters, slot: Slot, turn_ns: u64, now_ns: u64) {
        self.add(times, |times| &times.socket, now_ns.saturating_sub(turn_ns));
        (self.stage, self.since_ns) = (Stage::Backend(slot), now_ns);
    }

    /// The namespace has completed it: its answer waits to be sent.
    #[cold]
    pub(crate) fn on_done(&mut self, times: &PhaseCounters, now_ns: u64) {
        self.add(times, |times| &times.backend, now_ns.saturating_sub(self.since_ns));
        (self.stage, self.since_ns) = (Stage::Doorbell, now_ns);
    }

    /// The caravan with its answer is leaving.
    #[cold]
    pub(crate) fn on_rung(&mut self, times: &PhaseCounters, now_ns: u64) {
        self.add(times, |times| &times.doorbell, now_ns.saturating_sub(self.since_ns));
        (self.stage, self.since_ns) = (Stage::Send, now_ns);
    }

    /// That caravan is gone.
    #[cold]
    pub(crate) fn on_taken(&mut self, times: &PhaseCounters, now_ns: u64) {
        self.add(times, |times| &times.send, now_ns.saturating_sub(self.since_ns));
        self.stage = Stage::Idle;
    }

    /// Adds a time to a phase of the lane and of the namespace.
    fn add(&self, lane: &PhaseCounters, phase: impl Fn(&PhaseCounters) -> &SharedDurations, ns: u64) {
        phase(lane).add(ns);
        let of_reactor = self.traffic.as_ref().and_then(|(traffic, reactor)| traffic.of((*reactor).into()));
        if let Some(traffic) = of_reactor {
            phase(traffic.phases()).add(ns);
        }
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
        let traffic = [(); 2].map(|()| Arc::new(NamespaceTraffic::new(2)));
        watch.set_namespace(Some(&traffic[0]), 1);
        watch.set_namespace(Some(&traffic[1]), 1);
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
        let of_namespace = traffic[1].phases();
        let of_namespace =
            [of_namespace.socket, of_namespace.backend, of_namespace.doorbell, of_namespace.send];
        assert_eq!(of_namespace.map(|times| times.sum_ns), sums);
        assert_eq!(traffic[0].phases().socket.count, 0, "another namespace");
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
