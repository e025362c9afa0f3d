//! Counters of one lane: written by its reactor alone, read by anyone.

use proto::doorbell::DoorbellCounters;
pub use proto::doorbell::Reason;
use reactor::{Counter, Durations, Notice, SharedDurations};
use serde::{Serialize, Serializer};

/// Bins of the numbers of PDUs in caravans: up to 1, 2, 4 ... 256, and more.
pub const CARAVAN_SIZE_COUNT: usize = 10;

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
    /// Caravans by the number of their PDUs: the first bin is for one, each further one reaches twice as far, the last to
    /// the end.
    pub caravan_sizes: [Counter; CARAVAN_SIZE_COUNT],
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
    /// Commands that waited for a rate limit.
    pub throttled_count: Counter,
    /// Time that these waited, ns in all.
    pub throttled_ns: Counter,
    /// Time that the oldest of each caravan waited for the doorbell, ns in all.
    pub doorbell_waited_ns: Counter,
    /// The device queue (NAPI id) that its packets came in through at Connect; 0 for none.
    pub napi_id: Counter,
    /// Its queue id; the control plane alone sets it, at Connect.
    pub qid: Counter,
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
    /// Commands that waited for a rate limit.
    pub throttled_count: u64,
    /// Time that these waited, ns in all.
    pub throttled_ns: u64,
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
        self.caravan_sizes[caravan_size(pdu_count)].add(1);
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
        let mut phases = PhaseTotals::default();
        phases.add(&self.phases);
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
            throttled_count: self.throttled_count.get(),
            throttled_ns: self.throttled_ns.get(),
            rings: rings.into_iter().filter(|(_, count)| *count > 0).collect(),
            doorbell_waited_ns: self.doorbell_waited_ns.get(),
            phases: phases.reports().to_vec(),
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

/// The bin of a caravan of this many PDUs.
fn caravan_size(pdu_count: u32) -> usize {
    let doublings = u32::BITS - pdu_count.saturating_sub(1).leading_zeros();
    (doublings as usize).min(CARAVAN_SIZE_COUNT - 1)
}

/// Declares [`LaneTotals`]: counters of [`LaneCounters`] under the same names.
macro_rules! lane_totals {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Counters of several lanes, summed.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
        pub struct LaneTotals {
            $($(#[$doc])* pub $name: u64,)*
            /// Caravans by the number of their PDUs: up to 1, 2, 4 and so on, the last without an end.
            pub caravan_sizes: [u64; CARAVAN_SIZE_COUNT],
            /// Doorbells by [`Reason`].
            #[serde(serialize_with = "rings_by_name")]
            pub rings: [u64; Reason::ALL.len()],
        }

        impl LaneTotals {
            /// Adds the counters of other lanes.
            pub fn merge(&mut self, other: &Self) {
                $(self.$name = self.$name.saturating_add(other.$name);)*
                let more = self.caravan_sizes.iter_mut().zip(&other.caravan_sizes);
                let more = more.chain(self.rings.iter_mut().zip(&other.rings));
                more.for_each(|(sum, count)| *sum = sum.saturating_add(*count));
            }

            /// Adds a lane's counters so far.
            pub fn add(&mut self, lane: &LaneCounters) {
                self.merge(&Self {
                    $($name: lane.$name.get(),)*
                    caravan_sizes: lane.caravan_sizes.each_ref().map(Counter::get),
                    rings: lane.rings.each_ref().map(Counter::get),
                });
            }
        }
    };
}

lane_totals! {
    /// Read commands completed.
    read_count,
    /// Write commands completed.
    write_count,
    /// Other commands completed.
    other_count,
    /// Commands that failed.
    failed_count,
    /// Bytes read by the host.
    read_bytes,
    /// Bytes written by the host.
    written_bytes,
    /// Media errors.
    media_error_count,
    /// Caravans: doorbells rung.
    caravan_count,
    /// PDUs in them.
    pdu_count,
    /// Sends, each a caravan or the rest of one.
    send_count,
    /// Sends of which the socket took only a part, or nothing.
    blocked_count,
    /// Bytes sent, headers included.
    sent_bytes,
    /// Receives that brought something.
    receive_count,
    /// Receives that brought nothing.
    dry_receive_count,
    /// Bytes received, headers included.
    received_bytes,
    /// Of these, bytes received in place.
    in_place_bytes,
    /// Zero-copy sends.
    zero_copy_count,
    /// Bytes of these.
    zero_copy_bytes,
    /// Zero-copy sends whose bytes the kernel copied anyway.
    zero_copy_copied_count,
    /// Commands that waited for a rate limit.
    throttled_count,
    /// Time that these waited, ns in all.
    throttled_ns,
    /// Time that the oldest of each caravan waited for the doorbell, ns in all.
    doorbell_waited_ns,
}

fn rings_by_name<S: Serializer>(rings: &[u64; Reason::ALL.len()], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(Reason::ALL.map(|reason| (reason.name(), rings[reason as usize])))
}

/// Histograms of the phases of commands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PhaseTotals {
    /// See [`PhaseCounters`].
    pub socket: Durations,
    /// See [`PhaseCounters`].
    pub backend: Durations,
    /// See [`PhaseCounters`].
    pub doorbell: Durations,
    /// See [`PhaseCounters`].
    pub send: Durations,
}

impl PhaseTotals {
    /// Adds the durations so far.
    pub fn add(&mut self, phases: &PhaseCounters) {
        self.socket.merge(&phases.socket.get());
        self.backend.merge(&phases.backend.get());
        self.doorbell.merge(&phases.doorbell.get());
        self.send.merge(&phases.send.get());
    }

    fn reports(&self) -> [PhaseReport; 4] {
        let Self { socket, backend, doorbell, send } = self;
        let phases = [("socket", socket), ("backend", backend), ("doorbell", doorbell), ("send", send)];
        phases.map(|(phase, times)| PhaseReport::new(phase, times))
    }

    /// Adds those of others.
    pub fn merge(&mut self, other: &Self) {
        self.socket.merge(&other.socket);
        self.backend.merge(&other.backend);
        self.doorbell.merge(&other.doorbell);
        self.send.merge(&other.send);
    }
}

impl Serialize for PhaseTotals {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.reports())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn caravans_are_counted_by_powers_of_two() {
        let sizes = [0, 1, 2, 3, 4, 5, 255, 256, 257, u32::MAX].map(caravan_size);
        assert_eq!(sizes, [0, 0, 1, 2, 2, 3, 8, 8, 9, 9]);
    }

    #[test]
    fn totals_have_every_counter_of_each_lane() {
        let lane = LaneCounters::default();
        lane.on_rung(3, &DoorbellCounters { rings: [1, 2, 3, 4, 5, 6], waited_ns: 7 });
        lane.sent_bytes.add(100);
        let mut totals = LaneTotals::default();
        totals.add(&lane);
        totals.add(&lane);
        assert_eq!((totals.caravan_count, totals.pdu_count, totals.caravan_sizes[2]), (2, 6, 2));
        assert_eq!((totals.sent_bytes, totals.doorbell_waited_ns, totals.rings[5]), (200, 14, 12));
        let json = serde_json::to_value(totals).expect("plain values");
        assert_eq!((&json["rings"]["asked"], &json["sent_bytes"]), (&12.into(), &200.into()));
    }
}
