//! Follows one command of a lane at a time with a clock, through the phases of
//! [`PhaseCounters`]: one in [`SAMPLE_INTERVAL`]. No clock is read for the others, unless all commands are
//! [recorded](LaneRecord).

use std::sync::Arc;

use proto::Slot;
use proto::doorbell::Doorbell;
use reactor::SharedDurations;

use crate::io_path::recording::LaneRecord;
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
    /// Each command is at a phase of its own: the record has them.
    Recording,
    /// The socket.
    Send,
}

/// Follows one command at a time, or records all.
#[derive(Debug)]
pub(crate) struct Stopwatch {
    passed_count: u32,
    /// Bits of the count that are zero for commands to follow: none while all are recorded.
    mask: u32,
    stage: Stage,
    /// When its stage began, ns.
    since_ns: u64,
    /// The namespace of the command that was followed last, and the reactor.
    traffic: Option<(Arc<NamespaceTraffic>, u16)>,
    /// While the stage is [`Stage::Recording`].
    record: Option<Box<LaneRecord>>,
}

impl Default for Stopwatch {
    fn default() -> Self {
        Self {
            passed_count: 0,
            mask: SAMPLE_INTERVAL - 1,
            stage: Stage::Idle,
            since_ns: 0,
            traffic: None,
            record: None,
        }
    }
}

impl Stopwatch {
    /// A command has arrived: decides whether it is sampled.
    #[inline]
    pub(crate) fn follows_next(&mut self) -> bool {
        let is_due = self.passed_count & self.mask == 0;
        self.passed_count = self.passed_count.wrapping_add(1);
        is_due && matches!(self.stage, Stage::Idle | Stage::Recording)
    }

    /// When the command to follow begins, ns, in a turn that began at `turn_ns`.
    #[cold]
    pub(crate) fn begin_ns(&mut self, turn_ns: u64, clock: impl FnOnce() -> u64) -> u64 {
        match &mut self.record {
            Some(record) => record.begin_ns(turn_ns, clock),
            None => clock(),
        }
    }

    /// Whether the stopwatch follows the command of this slot, whose data was asked for.
    #[inline]
    pub(crate) fn follows_data(&self, slot: Slot) -> bool {
        self.stage == Stage::Data(slot) || self.stage == Stage::Recording
    }

    /// Whether the stopwatch follows the command of this slot, which its namespace has.
    #[inline]
    pub(crate) fn follows_backend(&self, slot: Slot) -> bool {
        self.stage == Stage::Backend(slot) || self.stage == Stage::Recording
    }

    /// Whether the stopwatch follows a command to its doorbell.
    #[inline]
    pub(crate) fn follows_doorbell(&self) -> bool {
        matches!(self.stage, Stage::Doorbell | Stage::Recording)
    }

    /// Whether the stopwatch follows a command into the socket.
    #[inline]
    pub(crate) fn follows_send(&self) -> bool {
        matches!(self.stage, Stage::Recording | Stage::Send)
    }

    /// Whether all commands are recorded.
    #[inline]
    pub(crate) fn is_recording(&self) -> bool {
        self.stage == Stage::Recording
    }

    /// The record of all commands, if there is one.
    pub(crate) fn record(&mut self) -> Option<&mut LaneRecord> {
        self.record.as_deref_mut()
    }

    /// Records all commands from now on, or none. A command that is followed is not timed.
    pub(crate) fn set_record(&mut self, record: Option<Box<LaneRecord>>) {
        (self.mask, self.stage) = match record {
            Some(_) => (0, Stage::Recording),
            None => (SAMPLE_INTERVAL - 1, Stage::Idle),
        };
        self.record = record;
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
    pub(crate) fn on_rung(&mut self, times: &PhaseCounters, now_ns: u64, pdus: u32, doorbell: &Doorbell) {
        if let Some(record) = &mut self.record {
            return record.on_rung(now_ns, pdus, &doorbell.counters());
        }
        self.add(times, |times| &times.doorbell, now_ns.saturating_sub(self.since_ns));
        (self.stage, self.since_ns) = (Stage::Send, now_ns);
    }

    /// That caravan is gone.
    #[cold]
    pub(crate) fn on_taken(&mut self, times: &PhaseCounters, now_ns: u64) {
        if let Some(record) = &mut self.record {
            return record.on_taken(now_ns);
        }
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
        if let Some(record) = &mut self.record {
            return record.forget(slot);
        }
        if matches!(self.stage, Stage::Data(followed) | Stage::Backend(followed) if followed == slot) {
            self.stage = Stage::Idle;
        }
    }
}

#[cfg(test)]
mod tests {
    use proto::doorbell::Policy;

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
        watch.on_rung(&times, 1_250, 1, &Doorbell::new(Policy::default()));
        watch.on_taken(&times, 3_250);
        let sums =
            [&times.socket, &times.backend, &times.doorbell, &times.send].map(|each| each.get().sum_ns);
        assert_eq!((sums, watch.stage), ([50, 100, 1_000, 2_000], Stage::Idle));
        let of_namespace = traffic[1].phases();
        let of_namespace =
            [of_namespace.socket, of_namespace.backend, of_namespace.doorbell, of_namespace.send];
        assert_eq!(of_namespace.map(|times| times.sum_ns), sums);
        assert_eq!(traffic[0].phases().socket.count, 0, "another namespace");
    }

    #[test]
    fn every_command_is_followed_while_there_is_a_record() {
        let mut watch = Stopwatch::default();
        watch.await_data(Slot::new(3));
        watch.set_record(Some(Box::new(LaneRecord::new(
            0,
            false,
            Doorbell::new(Policy::default()).counters(),
        ))));
        assert!((0..100).all(|_| watch.follows_next()));
        let of_slot = [watch.follows_data(Slot::new(4)), watch.follows_backend(Slot::new(5))];
        assert!(
            of_slot.into_iter().all(|follows| follows) && watch.follows_doorbell() && watch.follows_send()
        );
        watch.set_record(None);
        assert_eq!((0..128).filter(|_| watch.follows_next()).count(), 2);
        assert!(!watch.follows_data(Slot::new(3)) && !watch.is_recording());
    }

    #[test]
    fn only_the_command_that_is_followed_is_forgotten() {
        let mut watch = Stopwatch::default();
        watch.await_data(Slot::new(3));
        watch.forget(Slot::new(2));
        assert_eq!(watch.stage, Stage::Data(Slot::new(3)));
        watch.forget(Slot::new(3));
        assert_eq!(watch.stage, Stage::Idle);
    }
}
