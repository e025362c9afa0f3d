//! The state of a target as a small document, once per second for people who watch: `nvlane top` and the live page.
//!
//! It has sums since the start of the target, and the time of the target, so that each reader takes differences of its
//! own, however often it asks. Its size is bounded: of each kind, the [`ROW_COUNT_MAX`] objects with the most work since the
//! last document have rows, and the others are in the totals only.

use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;

use reactor::Durations;
use serde::{Deserialize, Serialize};
use subsystem::lane_counters::{CARAVAN_SIZE_COUNT, LaneTotals, PhaseTotals, Reason};
use subsystem::state::{NamespaceState, ObservedLane, ReactorState, TargetState};

use crate::render::Process;

/// Rows of each kind.
pub const ROW_COUNT_MAX: usize = 64;

/// The state of a target.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Live {
    /// Version of nvlane.
    pub version: String,
    /// Start of the target, s of Unix time.
    pub started_unix_s: f64,
    /// Time since then, ns, by a clock that only goes forward.
    pub age_ns: u64,
    /// Reloads after which every change was in place.
    pub complete_reload_count: u64,
    /// Others.
    pub incomplete_reload_count: u64,
    /// Work of all lanes, including those that have ended.
    pub work: Work,
    /// What lanes send and receive.
    pub traffic: Traffic,
    /// Time of commands by phase, of all namespaces.
    pub phases: Phases,
    /// Namespaces.
    pub namespaces: Rows<NamespaceRow>,
    /// Hosts with controllers.
    pub hosts: Rows<HostRow>,
    /// Lanes of these.
    pub lanes: Rows<LaneRow>,
    /// Reactors.
    pub reactors: Rows<ReactorRow>,
    /// Open NVMe connections.
    pub connection_count: u32,
    /// Open memcached connections.
    pub memcached_connection_count: u32,
    /// Failed commands by status.
    pub failures: BTreeMap<String, u64>,
    /// Connections refused or closed, by reason.
    pub complaints: BTreeMap<String, u64>,
    /// Refused Connects by status.
    pub refused_connects: BTreeMap<String, u64>,
    /// Associations that have ended, by cause.
    pub ended_associations: BTreeMap<String, u64>,
}

/// The objects of a kind with the most work.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Rows<Row> {
    /// All of them, with and without rows.
    pub count: usize,
    /// At most [`ROW_COUNT_MAX`] of them.
    pub rows: Vec<Row>,
}

/// Commands since the start, and their data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)] // As in the counters of a lane.
pub struct Work {
    pub read_count: u64,
    pub write_count: u64,
    pub other_count: u64,
    pub failed_count: u64,
    pub read_bytes: u64,
    pub written_bytes: u64,
}

/// Caravans and their doorbells.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Caravans {
    /// Caravans sent.
    pub caravan_count: u64,
    /// PDUs in them.
    pub pdu_count: u64,
    /// Doorbells by reason; those of rows that never occurred are left out.
    pub doorbells: BTreeMap<String, u64>,
    /// Time that the oldest PDU of each caravan waited, ns.
    pub doorbell_waited_ns: u64,
}

/// What lanes send and receive.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Traffic {
    /// Caravans of all lanes.
    #[serde(flatten)]
    pub caravans: Caravans,
    /// Caravans by the number of their PDUs: up to 1, 2, 4 and so on, the last without an end.
    pub caravan_sizes: Vec<u64>,
    /// Bytes sent, headers included.
    pub sent_bytes: u64,
    /// Bytes received, headers included.
    pub received_bytes: u64,
    /// Sends of which the socket took only a part.
    pub blocked_count: u64,
}

/// Time of the commands that are followed with a clock, one in 64 of each lane.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Phases {
    /// From the beginning of the turn that received the command until it began.
    pub queue: Histogram,
    /// Until the storage had done it.
    pub storage: Histogram,
    /// Until its response was sent.
    pub doorbell: Histogram,
    /// Until the socket had it.
    pub send: Histogram,
}

/// Durations by powers of two.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Histogram {
    /// The bins before the first that has any.
    pub skipped: usize,
    /// Durations in each bin: bin 0 is for less than 128 ns, each further one reaches twice as far, the last one, 25, to the
    /// end. Empty ones at the end are left out.
    pub counts: Vec<u64>,
}

/// A namespace.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct NamespaceRow {
    /// NQN of its subsystem.
    pub subsystem: String,
    /// Its number there.
    pub nsid: u32,
    /// The kind of its storage, as in its specification: ram, file, device, null, pool, kv:ram or kv:file.
    pub kind: String,
    /// Size, bytes.
    pub bytes: u64,
    /// Pairs, if it has keys.
    pub pair_count: Option<u64>,
    /// What is wrong with it: "closed: …", "full", "write-protected"; empty if nothing is.
    pub trouble: String,
    /// Commands in its storage.
    pub work: Work,
    /// Time of these.
    pub phases: Phases,
}

/// A host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostRow {
    /// Its NQN.
    pub host: String,
    /// Its controllers.
    pub controller_count: usize,
    /// Their lanes.
    pub lane_count: usize,
    /// Its commands.
    pub work: Work,
    /// Its caravans.
    pub caravans: Caravans,
}

/// A lane.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaneRow {
    /// Its name, which no other lane of the target ever has.
    pub lane: String,
    /// NQN of its host.
    pub host: String,
    /// NQN of its subsystem.
    pub subsystem: String,
    /// Its controller there.
    pub cntlid: u16,
    /// Its queue: 0 is the admin queue.
    pub qid: u64,
    /// The reactor that serves it.
    pub reactor: u16,
    /// Its commands.
    pub work: Work,
    /// Its caravans.
    pub caravans: Caravans,
    /// Time of its commands.
    pub phases: Phases,
}

/// A reactor. Times are sums since the start, ns; the rest of its age was spent working.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReactorRow {
    /// Its number.
    pub reactor: u16,
    /// Its lanes.
    pub lane_count: usize,
    /// Time since the start of the target.
    pub age_ns: u64,
    /// Time asleep.
    pub asleep_ns: u64,
    /// Time spent spinning.
    pub spun_ns: u64,
    /// Turns with work.
    pub busy_turn_count: u64,
    /// Sleeps.
    pub sleep_count: u64,
    /// Its buffers, bytes.
    pub buffer_bytes: u64,
    /// Of these, free now.
    pub free_buffer_bytes: u64,
    /// Commands that had to wait for a buffer.
    pub buffer_wait_count: u64,
}

impl Work {
    fn of(totals: &LaneTotals) -> Self {
        let LaneTotals {
            read_count, write_count, other_count, failed_count, read_bytes, written_bytes, ..
        } = *totals;
        Self { read_count, write_count, other_count, failed_count, read_bytes, written_bytes }
    }

    /// Commands of all kinds.
    #[must_use]
    pub fn command_count(&self) -> u64 {
        self.read_count + self.write_count + self.other_count + self.failed_count
    }
}

impl Caravans {
    fn of(totals: &LaneTotals) -> Self {
        Self {
            caravan_count: totals.caravan_count,
            pdu_count: totals.pdu_count,
            doorbells: rung(totals).into_iter().filter(|(_, count)| *count > 0).collect(),
            doorbell_waited_ns: totals.doorbell_waited_ns,
        }
    }
}

impl Phases {
    fn of(totals: &PhaseTotals) -> Self {
        let PhaseTotals { socket, backend, doorbell, send } = totals;
        let [queue, storage, doorbell, send] = [socket, backend, doorbell, send].map(Histogram::of);
        Self { queue, storage, doorbell, send }
    }

    /// The phases and their names, in their order.
    #[must_use]
    pub fn named(&self) -> [(&'static str, &Histogram); 4] {
        [
            ("queue", &self.queue),
            ("storage", &self.storage),
            ("doorbell", &self.doorbell),
            ("send", &self.send),
        ]
    }
}

/// Bits of the bound of the first bin.
const FIRST_BIN_BITS: u32 = 7;

impl Histogram {
    fn of(durations: &Durations) -> Self {
        let counts: Vec<u64> = durations.bins().map(|(_, count)| count).collect();
        let is_used = |count: &u64| *count > 0;
        let Some(skipped) = counts.iter().position(is_used) else { return Self::default() };
        let end = counts.iter().rposition(is_used).map_or(skipped, |last| last + 1);
        Self { skipped, counts: counts[skipped..end].to_vec() }
    }

    fn bin(&self, bin: usize) -> u64 {
        bin.checked_sub(self.skipped).and_then(|at| self.counts.get(at)).copied().unwrap_or(0)
    }

    /// The durations that have been added since an earlier histogram of the same.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let bins = self.skipped..self.skipped + self.counts.len();
        let counts = bins.map(|bin| self.bin(bin).saturating_sub(earlier.bin(bin)));
        Self { skipped: self.skipped, counts: counts.collect() }
    }

    /// A percentile, ns: within its bin, durations are taken as equally distributed. `None` if there are none.
    #[must_use]
    pub fn percentile_ns(&self, percent: f64) -> Option<f64> {
        let all: u64 = self.counts.iter().sum();
        if all == 0 {
            return None;
        }
        let mut rest = all as f64 * percent / 100.0;
        for (at, count) in self.counts.iter().enumerate().filter(|(_, count)| **count > 0) {
            let count = *count as f64;
            if rest <= count {
                let bin = u32::try_from(self.skipped + at).unwrap_or(0);
                let bound = 2f64.powi((FIRST_BIN_BITS + bin).cast_signed());
                let below = if bin == 0 { 0.0 } else { bound / 2.0 };
                return Some(below + (bound - below) * rest / count);
            }
            rest -= count;
        }
        None
    }
}

/// Makes documents, and remembers which objects had rows.
#[derive(Debug, Default)]
pub struct LiveMaker {
    namespaces: Ranking<(String, u32)>,
    hosts: Ranking<String>,
    lanes: Ranking<(u16, u32, u32)>,
}

/// The work of objects up to the last document, and whether they had a row in it.
#[derive(Debug)]
struct Ranking<Key>(HashMap<Key, (u64, bool)>);

impl<Key> Default for Ranking<Key> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl<Key: Eq + Hash> Ranking<Key> {
    /// The places of those that get rows, in ascending order: those in trouble first, then those with the most work since
    /// the last document. One that had a row keeps it, unless another one has worked twice as much: readers need two
    /// documents for a rate.
    fn choose(&mut self, all: impl Iterator<Item = (Key, u64, bool)>) -> Vec<usize> {
        let mut ranked: Vec<_> = all
            .enumerate()
            .map(|(at, (key, work, is_in_trouble))| {
                let (before, had_row) = self.0.get(&key).copied().unwrap_or((0, false));
                let done = work.checked_sub(before).unwrap_or(work);
                let rank = if had_row { done.saturating_mul(2).saturating_add(1) } else { done };
                ((is_in_trouble, rank), at, key, work)
            })
            .collect();
        if ranked.len() > ROW_COUNT_MAX {
            ranked.select_nth_unstable_by(ROW_COUNT_MAX, |left, right| {
                right.0.cmp(&left.0).then(left.1.cmp(&right.1))
            });
        }
        let mut chosen: Vec<usize> = ranked.iter().take(ROW_COUNT_MAX).map(|(_, at, ..)| *at).collect();
        let remembered = ranked.into_iter().enumerate();
        self.0 = remembered.map(|(place, (_, _, key, work))| (key, (work, place < ROW_COUNT_MAX))).collect();
        chosen.sort_unstable();
        chosen
    }
}

impl LiveMaker {
    /// The document of a state and its lanes.
    pub fn make(&mut self, process: &Process, target: &TargetState, lanes: &[ObservedLane]) -> Live {
        let connections = &target.connections;
        Live {
            version: process.version.to_owned(),
            started_unix_s: process.started_unix_s,
            age_ns: target.reactors.iter().map(|reactor| reactor.age_ns).max().unwrap_or(0),
            complete_reload_count: process.reloads.complete_count,
            incomplete_reload_count: process.reloads.incomplete_count,
            work: Work::of(&target.totals),
            traffic: traffic(&target.totals),
            phases: all_phases(target),
            namespaces: self.namespaces(target),
            hosts: self.hosts(target),
            lanes: self.lanes(target, lanes),
            reactors: Rows {
                count: target.reactors.len(),
                rows: target.reactors.iter().take(ROW_COUNT_MAX).map(reactor_row).collect(),
            },
            connection_count: connections.count,
            memcached_connection_count: connections.memcached_count,
            failures: failures(&target.reactors),
            complaints: connections.complaints.clone(),
            refused_connects: target.refused_connects.clone(),
            ended_associations: target.ended_associations.clone(),
        }
    }

    fn namespaces(&mut self, target: &TargetState) -> Rows<NamespaceRow> {
        let all: Vec<(&str, &NamespaceState)> = target
            .subsystems
            .iter()
            .flat_map(|subsystem| subsystem.namespaces.iter().map(|of| (subsystem.nqn.as_str(), of)))
            .collect();
        let ranks = all.iter().map(|(nqn, namespace)| {
            let traffic = &namespace.traffic;
            let work = traffic.read_count + traffic.write_count;
            (((*nqn).to_owned(), namespace.nsid), work, !trouble(namespace).is_empty())
        });
        let chosen = self.namespaces.choose(ranks);
        let rows = chosen.into_iter().map(|at| namespace_row(all[at].0, all[at].1)).collect();
        Rows { count: all.len(), rows }
    }

    fn hosts(&mut self, target: &TargetState) -> Rows<HostRow> {
        let hosts = &target.hosts;
        let ranks =
            hosts.iter().map(|host| (host.host.clone(), Work::of(&host.totals).command_count(), false));
        let chosen = self.hosts.choose(ranks);
        let row = |at: usize| {
            let host = &hosts[at];
            HostRow {
                host: host.host.clone(),
                controller_count: host.controller_count,
                lane_count: host.lane_count,
                work: Work::of(&host.totals),
                caravans: Caravans::of(&host.totals),
            }
        };
        Rows { count: hosts.len(), rows: chosen.into_iter().map(row).collect() }
    }

    fn lanes(&mut self, target: &TargetState, lanes: &[ObservedLane]) -> Rows<LaneRow> {
        let ranks = lanes.iter().map(|ObservedLane { lane, counters, .. }| {
            let counts =
                [&counters.read_count, &counters.write_count, &counters.other_count, &counters.failed_count];
            let work = counts.iter().map(|count| count.get()).sum();
            ((lane.reactor, lane.index, lane.generation), work, false)
        });
        let chosen = self.lanes.choose(ranks);
        let rows = chosen.into_iter().map(|at| lane_row(target, &lanes[at])).collect();
        Rows { count: lanes.len(), rows }
    }
}

/// Doorbells by reason.
fn rung(totals: &LaneTotals) -> [(String, u64); Reason::ALL.len()] {
    Reason::ALL.map(|reason| (reason.name().to_owned(), totals.rings[reason as usize]))
}

fn traffic(totals: &LaneTotals) -> Traffic {
    debug_assert_eq!(totals.caravan_sizes.len(), CARAVAN_SIZE_COUNT);
    Traffic {
        caravans: Caravans { doorbells: rung(totals).into(), ..Caravans::of(totals) },
        caravan_sizes: totals.caravan_sizes.to_vec(),
        sent_bytes: totals.sent_bytes,
        received_bytes: totals.received_bytes,
        blocked_count: totals.blocked_count,
    }
}

fn all_phases(target: &TargetState) -> Phases {
    let mut phases = PhaseTotals::default();
    let namespaces = target.subsystems.iter().flat_map(|subsystem| &subsystem.namespaces);
    namespaces.for_each(|namespace| phases.merge(&namespace.traffic.phases));
    Phases::of(&phases)
}

fn failures(reactors: &[ReactorState]) -> BTreeMap<String, u64> {
    let mut failures = BTreeMap::<String, u64>::new();
    for (status, count) in reactors.iter().flat_map(|reactor| &reactor.failed) {
        *failures.entry(status.clone()).or_default() += count;
    }
    failures
}

/// What is wrong with a namespace.
fn trouble(namespace: &NamespaceState) -> String {
    match (&namespace.closed_kind, namespace.full, namespace.write_protected) {
        (Some(kind), ..) => format!("closed: {kind}"),
        (None, true, _) => "full".into(),
        (None, false, true) => "write-protected".into(),
        (None, false, false) => String::new(),
    }
}

fn namespace_row(nqn: &str, namespace: &NamespaceState) -> NamespaceRow {
    let traffic = &namespace.traffic;
    // What is before the size or path, also of `kv:ram:1G`.
    let words = if namespace.storage.starts_with("kv:") { 2 } else { 1 };
    let kind = namespace.storage.split(':').take(words).collect::<Vec<_>>().join(":");
    NamespaceRow {
        subsystem: nqn.to_owned(),
        nsid: namespace.nsid,
        kind,
        bytes: namespace.bytes,
        pair_count: namespace.pairs.as_ref().map(|pairs| pairs.count),
        trouble: trouble(namespace),
        work: Work {
            read_count: traffic.read_count,
            write_count: traffic.write_count,
            other_count: 0,
            failed_count: traffic.media_error_count,
            read_bytes: traffic.read_bytes,
            written_bytes: traffic.written_bytes,
        },
        phases: Phases::of(&traffic.phases),
    }
}

fn lane_row(target: &TargetState, observed: &ObservedLane) -> LaneRow {
    let ObservedLane { lane, host, subsystem, cntlid, counters } = observed;
    let (mut totals, mut phases) = (LaneTotals::default(), PhaseTotals::default());
    totals.add(counters);
    phases.add(&counters.phases);
    LaneRow {
        lane: format!("{}.{}.{}", lane.reactor, lane.index, lane.generation),
        host: target.hosts.get(*host).map(|host| host.host.clone()).unwrap_or_default(),
        subsystem: target.subsystems.get(*subsystem).map(|of| of.nqn.clone()).unwrap_or_default(),
        cntlid: *cntlid,
        qid: counters.qid.get(),
        reactor: lane.reactor,
        work: Work::of(&totals),
        caravans: Caravans::of(&totals),
        phases: Phases::of(&phases),
    }
}

fn reactor_row(reactor: &ReactorState) -> ReactorRow {
    ReactorRow {
        reactor: reactor.reactor,
        lane_count: reactor.lanes,
        age_ns: reactor.age_ns,
        asleep_ns: reactor.asleep_ns,
        spun_ns: reactor.spun_ns,
        busy_turn_count: reactor.busy_turn_count,
        sleep_count: reactor.sleep_count,
        buffer_bytes: reactor.buffers.bytes as u64,
        free_buffer_bytes: reactor.buffers.free_bytes as u64,
        buffer_wait_count: reactor.buffers.waited_count,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use subsystem::lane_counters::LaneCounters;
    use subsystem::lane_id::LaneId;
    use subsystem::state::{HostState, SubsystemState};

    use super::*;

    #[test]
    fn a_percentile_is_within_its_bin() {
        let mut durations = Durations::default();
        (0..99).for_each(|_| durations.add(1_500));
        durations.add(5_000_000);
        let histogram = Histogram::of(&durations);
        let of = |percent| histogram.percentile_ns(percent).expect("there are some");
        assert!((1024.0..2048.0).contains(&of(50.0)), "{}", of(50.0));
        assert!((1024.0..=2048.0).contains(&of(99.0)), "{}", of(99.0));
        assert!((4_194_304.0..=8_388_608.0).contains(&of(100.0)), "{}", of(100.0));
        assert_eq!(Histogram::default().percentile_ns(50.0), None);
        let earlier = histogram.clone();
        (0..10).for_each(|_| durations.add(100));
        let new = Histogram::of(&durations).since(&earlier);
        assert_eq!(new.counts.iter().sum::<u64>(), 10);
        assert!(new.percentile_ns(99.0).expect("ten") <= 128.0);
    }

    #[test]
    fn those_with_the_most_work_have_rows_and_keep_them() {
        let mut ranking = Ranking::default();
        let work = |of: &dyn Fn(u64) -> u64| {
            let of: Vec<_> = (0..1000).map(|key| (key, of(key), key == 999)).collect();
            of.into_iter()
        };
        let first = ranking.choose(work(&|key| key));
        assert_eq!(first.len(), ROW_COUNT_MAX);
        assert_eq!((first[0], first[ROW_COUNT_MAX - 1]), (936, 999));
        // Others have worked more, but not twice as much.
        let second = ranking.choose(work(&|key| if key < 500 { key + 150 } else { key + 100 }));
        assert_eq!(second, first);
        let third = ranking.choose(work(&|key| if key < 63 { key + 1000 } else { key + 200 }));
        assert_eq!(third.len(), ROW_COUNT_MAX);
        assert!(third.starts_with(&[0, 1, 2]) && third.contains(&62), "{third:?}");
        assert!(third.contains(&999), "one in trouble stays: {third:?}");
    }

    /// The largest document: names as long as they can be, and a large number in each counter.
    #[test]
    fn a_document_of_ten_thousand_lanes_is_small() {
        let name = |kind: &str, number: usize| format!("nqn.2026-01.{kind}.{number:0>200}");
        let counters = Arc::new(LaneCounters::default());
        for counter in [&counters.read_count, &counters.write_count, &counters.read_bytes] {
            counter.set(u64::MAX / 4096);
        }
        let mut totals = LaneTotals::default();
        totals.add(&counters);
        totals.rings = [u64::MAX / 16; Reason::ALL.len()];
        let hosts = (0..10_000).map(|number| HostState {
            host: name("host", number),
            controller_count: 1,
            lane_count: 1,
            totals,
        });
        let mut phases = PhaseTotals::default();
        for bits in 0..40 {
            for durations in [&mut phases.socket, &mut phases.backend, &mut phases.doorbell, &mut phases.send]
            {
                (0..bits * 100).for_each(|_| durations.add(1 << bits));
            }
        }
        let subsystems = (0..1000).map(|number| {
            let mut namespace = crate::render::tests::namespace(Default::default());
            namespace.traffic.phases = phases;
            let mut subsystem: SubsystemState = crate::render::tests::subsystem();
            subsystem.nqn = name("subsystem", number);
            subsystem.namespaces = vec![namespace];
            subsystem
        });
        let target = TargetState {
            hosts: hosts.collect(),
            subsystems: subsystems.collect(),
            reactors: vec![ReactorState::default(); 200],
            totals,
            ..TargetState::default()
        };
        let lanes = (0..10_000u32).map(|index| ObservedLane {
            lane: LaneId { reactor: 1, index, generation: 7 },
            host: index as usize,
            subsystem: 0,
            cntlid: 1,
            counters: Arc::clone(&counters),
        });
        let lanes: Vec<_> = lanes.collect();
        let mut maker = LiveMaker::default();
        let live = maker.make(&Process::default(), &target, &lanes);
        let text = serde_json::to_string(&live).expect("plain values");
        assert!(text.len() < 256 << 10, "{} bytes", text.len());
        assert_eq!((live.hosts.count, live.hosts.rows.len()), (10_000, ROW_COUNT_MAX));
        assert_eq!((live.lanes.count, live.lanes.rows.len()), (10_000, ROW_COUNT_MAX));
        assert_eq!((live.namespaces.count, live.namespaces.rows.len()), (1000, ROW_COUNT_MAX));
        assert_eq!((live.reactors.count, live.reactors.rows.len()), (200, ROW_COUNT_MAX));
        let read: Live = serde_json::from_str(&text).expect("as it was written");
        assert_eq!(read, live);
    }
}
