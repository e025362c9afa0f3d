//! Counters of one lane: written by its reactor alone, read by anyone.

use proto::doorbell::{DoorbellCounters, Reason};
use reactor::{Counter, Durations, Notice, SharedDurations};
use serde::Serialize;

/// Counters of a lane, in cache lines of their own: a lane that was handed over has neighbours of another reactor in
/// memory.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct LaneCounters {
    /// Read commands completed.
    pub read_count: Counter,
    /// Write commands completed.
    pub write_count: Counter,
    /// Other commands completed.
    pub other_count: Counter,
    /// Commands that failed.
    pub failed_count: Counter,
    /// Bytes read by the host.
    pub read_bytes: Counter,
    /// Bytes written by the host.
    pub written_bytes: Counter,
    /// Media errors.
    pub media_error_count: Counter,
    /// Caravans: doorbells rung.
    pub caravan_count: Counter,
    /// PDUs in them.
    pub pdu_count: Counter,
    /// Sends, each a caravan or the rest of one.
    pub send_count: Counter,
    /// Sends of which the socket took only a part, or nothing.
    pub blocked_count: Counter,
    /// Bytes sent, headers included.
    pub sent_bytes: Counter,
    /// Receives that brought something.
    pub receive_count: Counter,
    /// Receives that brought nothing.
    pub dry_receive_count: Counter,
    /// Bytes received, headers included.
    pub received_bytes: Counter,
    /// Of these, bytes received in place.
    pub in_place_bytes: Counter,
    /// Zero-copy sends.
    pub zero_copy_count: Counter,
    /// Bytes of these.
    pub zero_copy_bytes: Counter,
    /// Zero-copy sends whose bytes the kernel copied anyway.
    pub zero_copy_copied_count: Counter,
    /// Zero-copy sends whose bytes the kernel may still read.
    pub zero_copy_awaited_count: Counter,
    /// Doorbells by [`Reason`].
    pub rings: [Counter; Reason::ALL.len()],
    /// Time that the oldest of each caravan waited for the doorbell, ns in all.
    pub doorbell_waited_ns: Counter,
    /// The device queue (NAPI id) that its packets came in through at Connect; 0 for none.
    pub napi_id: Counter,
    /// Time of commands by phase.
    pub phases: PhaseCounters,
}

/// How long the commands that are followed with a clock, one in 64, spent in each phase.
///
/// ```text
/// turn begins ──socket──▶ begun ──backend──▶ ended ──doorbell──▶ rung ──send──▶ taken by the socket
/// ```
#[derive(Debug, Default)]
pub struct PhaseCounters {
    /// From the beginning of the turn that received the command (of a write that was asked for its data: the last of
    /// that) until it was begun: the receive, and what came before it.
    pub socket: SharedDurations,
    /// Until the namespace had done it.
    pub backend: SharedDurations,
    /// Until the doorbell was rung for its answer.
    pub doorbell: SharedDurations,
    /// Until the socket had taken its answer.
    pub send: SharedDurations,
}

/// A snapshot of a lane's counters, for people and programs to read.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct LaneReport {
    /// Commands completed.
    pub command_count: u64,
    /// Caravans: doorbells rung.
    pub caravan_count: u64,
    /// PDUs in them.
    pub pdu_count: u64,
    /// Sends, each a caravan or the rest of one.
    pub send_count: u64,
    /// Sends of which the socket took only a part, or nothing.
    pub blocked_count: u64,
    /// Bytes sent, headers included.
    pub sent_bytes: u64,
    /// Receives that brought something.
    pub receive_count: u64,
    /// Receives that brought nothing.
    pub dry_receive_count: u64,
    /// Bytes received, headers included.
    pub received_bytes: u64,
    /// Of these, bytes received in place.
    pub in_place_bytes: u64,
    /// Zero-copy sends.
    pub zero_copy_count: u64,
    /// Bytes of these.
    pub zero_copy_bytes: u64,
    /// Zero-copy sends whose bytes the kernel copied anyway.
    pub zero_copy_copied_count: u64,
    /// Zero-copy sends whose bytes the kernel may still read.
    pub zero_copy_awaited_count: u64,
    /// Doorbells by reason.
    pub rings: Vec<(&'static str, u64)>,
    /// Time that the oldest of each caravan waited for the doorbell, ns in all.
    pub doorbell_waited_ns: u64,
    /// Time of the sampled commands by phase, in the order of the phases.
    pub phases: Vec<PhaseReport>,
}

/// Time that commands spent in one phase.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PhaseReport {
    /// Which.
    pub phase: &'static str,
    /// Commands that were followed.
    pub count: u64,
    /// The mean, ns.
    pub mean_ns: u64,
    /// The 99th percentile, ns, to a factor of two.
    pub p99_ns: u64,
    /// The longest, ns.
    pub max_ns: u64,
}

impl LaneCounters {
    /// Counts a doorbell for this many PDUs.
    #[inline]
    pub(crate) fn on_rung(&self, pdu_count: u32, doorbell: &DoorbellCounters) {
        self.caravan_count.add(1);
        self.pdu_count.add(pdu_count.into());
        self.rings.iter().zip(doorbell.rings).for_each(|(counter, count)| counter.set(count));
        self.doorbell_waited_ns.set(doorbell.waited_ns);
    }

    /// Counts a zero-copy send of this many bytes, and records the number of sends that the kernel reads now.
    pub(crate) fn on_zero_copy(&self, sent_bytes: usize, awaited_count: u32) {
        self.zero_copy_count.add(1);
        self.zero_copy_bytes.add(sent_bytes as u64);
        self.zero_copy_awaited_count.set(awaited_count.into());
    }

    /// Some zero-copy sends have completed: records the number that the kernel still reads.
    pub(crate) fn on_notice(&self, notice: Notice, awaited_count: u32) {
        let copied_count = if notice.is_copied { notice.send_count() } else { 0 };
        self.zero_copy_copied_count.add(copied_count.into());
        self.zero_copy_awaited_count.set(awaited_count.into());
    }

    /// A snapshot of the counters.
    #[must_use]
    pub fn report(&self) -> LaneReport {
        let commands = [&self.read_count, &self.write_count, &self.other_count, &self.failed_count];
        let rings = Reason::ALL.map(|reason| (reason.name(), self.rings[reason as usize].get()));
        let phases = &self.phases;
        let phases = [
            ("socket", &phases.socket),
            ("backend", &phases.backend),
            ("doorbell", &phases.doorbell),
            ("send", &phases.send),
        ];
        LaneReport {
            command_count: commands.iter().map(|counter| counter.get()).sum(),
            caravan_count: self.caravan_count.get(),
            pdu_count: self.pdu_count.get(),
            send_count: self.send_count.get(),
            blocked_count: self.blocked_count.get(),
            sent_bytes: self.sent_bytes.get(),
            receive_count: self.receive_count.get(),
            dry_receive_count: self.dry_receive_count.get(),
            received_bytes: self.received_bytes.get(),
            in_place_bytes: self.in_place_bytes.get(),
            zero_copy_count: self.zero_copy_count.get(),
            zero_copy_bytes: self.zero_copy_bytes.get(),
            zero_copy_copied_count: self.zero_copy_copied_count.get(),
            zero_copy_awaited_count: self.zero_copy_awaited_count.get(),
            rings: rings.into_iter().filter(|(_, count)| *count > 0).collect(),
            doorbell_waited_ns: self.doorbell_waited_ns.get(),
            phases: phases.map(|(phase, times)| PhaseReport::new(phase, &times.get())).to_vec(),
        }
    }
}

impl PhaseReport {
    fn new(phase: &'static str, times: &Durations) -> Self {
        Self {
            phase,
            count: times.count,
            mean_ns: times.mean_ns(),
            p99_ns: times.percentile_ns(99),
            max_ns: times.max_ns,
        }
    }
}

/// Counters of several lanes, summed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LaneTotals {
    /// Read commands completed.
    pub read_count: u64,
    /// Write commands completed.
    pub write_count: u64,
    /// Commands that failed.
    pub failed_count: u64,
    /// Bytes read by the host.
    pub read_bytes: u64,
    /// Bytes written by the host.
    pub written_bytes: u64,
    /// Media errors.
    pub media_error_count: u64,
}

impl LaneTotals {
    /// Adds the counters of other lanes.
    pub fn merge(&mut self, other: &Self) {
        self.read_count = self.read_count.saturating_add(other.read_count);
        self.write_count = self.write_count.saturating_add(other.write_count);
        self.failed_count = self.failed_count.saturating_add(other.failed_count);
        self.read_bytes = self.read_bytes.saturating_add(other.read_bytes);
        self.written_bytes = self.written_bytes.saturating_add(other.written_bytes);
        self.media_error_count = self.media_error_count.saturating_add(other.media_error_count);
    }

    /// Adds a lane's counters so far.
    pub fn add(&mut self, lane: &LaneCounters) {
        self.read_count = self.read_count.saturating_add(lane.read_count.get());
        self.write_count = self.write_count.saturating_add(lane.write_count.get());
        self.failed_count = self.failed_count.saturating_add(lane.failed_count.get());
        self.read_bytes = self.read_bytes.saturating_add(lane.read_bytes.get());
        self.written_bytes = self.written_bytes.saturating_add(lane.written_bytes.get());
        self.media_error_count = self.media_error_count.saturating_add(lane.media_error_count.get());
    }
}
