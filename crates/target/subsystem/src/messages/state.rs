//! The state of a target: the data that `nvlane list` and its JSON show.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Serialize;
use wire::id::Cntlid;
use wire::nqn::HostName;

pub use crate::audit::AuditState;
use crate::names::lane_counters::{LaneCounters, LaneReport, LaneTotals, PhaseTotals};
use crate::names::lane_id::LaneId;
use crate::objects::namespace_traffic::NamespaceTraffic;
use crate::objects::rate_limit::RateLimits;
use crate::objects::subsystem::{NamespaceId, SubsystemId};

/// What a state lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Detail {
    /// Controllers with their queues, and the hosts that may use each subsystem and namespace.
    Lanes,
    /// None of these: sums of hosts only.
    Sums,
}

/// The state of a target, for people and programs to read.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct TargetState {
    /// Unique name of the discovery service.
    pub discovery_nqn: String,
    /// Generation of the discovery log.
    pub discovery_generation: u64,
    /// Listeners.
    pub listeners: Vec<ListenerState>,
    /// Memcached listeners.
    pub memcached_listeners: Vec<MemcachedListenerState>,
    /// Subsystems.
    pub subsystems: Vec<SubsystemState>,
    /// Hosts that use the discovery service.
    pub discovery_controllers: Vec<ControllerState>,
    /// Connects that wait for an earlier association of their host to end.
    pub waiting_connect_count: usize,
    /// Queues that have connected, and whose hosts have not authenticated yet.
    pub unauthenticated_count: usize,
    /// Connections, and counts of those refused or closed.
    pub connections: ConnectionsState,
    /// The reactors; empty if they were not asked.
    pub reactors: Vec<ReactorState>,
    /// Placement of lanes; `None` if it was not asked.
    pub placement: Option<PlacementState>,
    /// Packets received by busy polling, by any process in this network namespace.
    pub busy_polled_packets: Option<u64>,
    /// The audit log; `None` if there is none.
    pub audit: Option<AuditState>,
    /// Lanes of all hosts since the start, including those that have ended.
    pub totals: LaneTotals,
    /// Hosts that have controllers of subsystems.
    pub hosts: Vec<HostState>,
    /// Associations that have ended, by cause.
    pub ended_associations: BTreeMap<String, u64>,
    /// Refused Connects, by status.
    pub refused_connects: BTreeMap<String, u64>,
    /// Memcached connections.
    pub memcached: MemcachedState,
}

/// A host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct HostState {
    /// Its NQN.
    pub host: String,
    /// Its controllers of subsystems.
    pub controller_count: usize,
    /// Their lanes.
    pub lane_count: usize,
    /// Its lanes since its first controller, including those that have ended.
    #[serde(flatten)]
    pub totals: LaneTotals,
}

/// Memcached connections of all reactors since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct MemcachedState {
    /// Bytes received.
    pub received_bytes: u64,
    /// Bytes sent.
    pub sent_bytes: u64,
    /// Connections accepted.
    pub accepted_count: u64,
    /// Connections refused because of a limit or the allow list.
    pub rejected_count: u64,
    /// Connections closed because they were idle.
    pub idle_closed_count: u64,
    /// Attempts to authenticate.
    pub authentication_count: u64,
    /// Of these, those that failed.
    pub authentication_failed_count: u64,
    /// Connections on which TLS failed.
    pub tls_failed_count: u64,
}

/// The reasons of [`ConnectionsState::complaints`] for which peers were not trusted.
pub const TRUST_REASONS: [&str; 9] = [
    "address not in the allow list of the listener",
    "host not authenticated",
    "host refused when it authenticated again",
    "memcached client not authenticated",
    "memcached client without TLS or authentication in time",
    "TLS failed",
    "in cleartext, where TLS is required",
    "TLS identity without a key",
    "Connect under other names than those of the TLS identity",
];

/// NVMe and memcached connections.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ConnectionsState {
    /// Open NVMe connections.
    pub count: u32,
    /// Open memcached connections.
    pub memcached_count: u32,
    /// Connections refused or closed, and protocol errors answered, by reason.
    pub complaints: BTreeMap<String, u64>,
}

/// A listener.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ListenerState {
    /// The bound address.
    pub address: String,
    /// Address advertised to hosts instead.
    pub advertise: Option<String>,
    /// Hosts may connect to subsystems here.
    pub subsystems: bool,
    /// Hosts may connect to the discovery service here.
    pub discovery: bool,
}

/// A memcached listener and its requirements on clients.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MemcachedListenerState {
    /// The bound address.
    pub address: String,
    /// The number of the partition whose keys its clients use, from 0; `None` if they use those of all.
    pub partition: Option<u16>,
    /// Whether clients use TLS.
    pub tls: bool,
    /// Whether they show a certificate: "off", "optional" or "required"; `None` without TLS.
    pub client_certificates: Option<String>,
    /// Subject of the listener's certificate; `None` without TLS.
    pub certificate_subject: Option<String>,
    /// The last second of its validity, Unix time.
    pub certificate_expires_unix_s: Option<i64>,
    /// Number of users' passwords; `None` if clients do not authenticate.
    pub user_count: Option<usize>,
    /// Addresses that clients may connect from; `None` for any.
    pub allow: Option<Vec<String>>,
}

/// A subsystem.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SubsystemState {
    /// NQN.
    pub nqn: String,
    /// Serial number.
    pub serial: String,
    /// Model.
    pub model: String,
    /// Hosts that may connect; `None` for any.
    pub hosts: Option<Vec<String>>,
    /// Rate limits of hosts.
    pub host_rate_limits: BTreeMap<String, RateLimits>,
    /// Its namespaces.
    pub namespaces: Vec<NamespaceState>,
    /// Its controllers.
    pub controllers: Vec<ControllerState>,
}

/// A namespace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NamespaceState {
    /// Namespace id.
    pub nsid: u32,
    /// UUID.
    pub uuid: String,
    /// The storage as the configuration specifies it.
    pub storage: String,
    /// Size, bytes.
    pub bytes: u64,
    /// Bytes of a logical block.
    pub block_bytes: u32,
    /// Whether it is read-only, by the configuration or because its storage is.
    pub read_only: bool,
    /// Whether its storage has become read-only.
    pub write_protected: bool,
    /// Whether writes are refused for lack of space.
    pub full: bool,
    /// Space left, percent, as in the SMART log: of the file system where the file needs more of it, else 100.
    pub spare_percent: u8,
    /// Free space of the file system; `None` if unknown.
    pub free_bytes: Option<u64>,
    /// Hosts that see it; `None` for all hosts of the subsystem.
    pub hosts: Option<Vec<String>>,
    /// Hosts that may write to it; `None` for all that see it.
    pub write_hosts: Option<Vec<String>>,
    /// The prefixes of the keys that each host may use; `None` if every host may use all keys.
    pub key_prefixes: Option<BTreeMap<String, Vec<String>>>,
    /// Its rate limits; `None` without any.
    pub rate_limits: Option<RateLimits>,
    /// Whether every reactor serves it to these hosts.
    pub shown: bool,
    /// Why it is closed until it is reopened; `None` while it is open.
    pub closed: Option<String>,
    /// The kind of that reason: "flush", "cut", "deleted", "removed", "lock", "reopening" or "other".
    pub closed_kind: Option<&'static str>,
    /// How often it was closed since the target opened it.
    pub closing_count: u64,
    /// Traffic of NVMe hosts with its storage, through any subsystem.
    pub traffic: TrafficState,
    /// How far its logs have been read; `None` once they are, or without logs.
    pub recovery: Option<RecoveryState>,
    /// Its keys and values; `None` if it has blocks.
    pub pairs: Option<PairsState>,
    /// Damage found and skipped in its logs; `None` if there is none, or without logs.
    pub damage: Option<DamageState>,
}

/// Traffic of NVMe hosts with a namespace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct TrafficState {
    /// Reads, and Retrieves, completed.
    pub read_count: u64,
    /// Bytes of these.
    pub read_bytes: u64,
    /// Writes, and Stores, completed.
    pub write_count: u64,
    /// Bytes of these.
    pub written_bytes: u64,
    /// Commands that failed with a media error.
    pub media_error_count: u64,
    /// Commands that waited for a rate limit.
    pub throttled_count: u64,
    /// Time that these waited, ns in all.
    pub throttled_ns: u64,
    /// Time of the sampled commands by phase.
    pub phases: PhaseTotals,
}

/// The keys and values of a namespace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PairsState {
    /// Pairs.
    pub count: u64,
    /// Bytes of keys and values.
    pub bytes: u64,
    /// Memory, bytes.
    pub memory_bytes: u64,
    /// Memory in use, bytes.
    pub used_memory_bytes: u64,
    /// Stores refused because memory was full.
    pub refused_memory_count: u64,
    /// Pairs that are not evicted because hosts have pinned them.
    pub pinned_count: u64,
    /// Memory of these, bytes.
    pub pinned_bytes: u64,
    /// Work since the start.
    pub counters: PairCounters,
    /// The log; `None` without one.
    pub log: Option<LogState>,
}

/// Work of all partitions of a key-value namespace since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PairCounters {
    /// Keys that memcached clients requested and that were found.
    pub hit_count: u64,
    /// Keys that memcached clients requested and that were not found.
    pub miss_count: u64,
    /// Stores, of NVMe hosts and memcached clients.
    pub stored_count: u64,
    /// Pairs evicted.
    pub evicted_count: u64,
    /// Of these, pairs that were never read.
    pub evicted_unread_count: u64,
    /// Pairs removed because they expired.
    pub expired_count: u64,
    /// Values dropped from memory because they are in the log.
    pub demoted_count: u64,
    /// Values fetched from the log.
    pub loaded_count: u64,
    /// Commands that needed a value which was in memory, with a log.
    pub memory_hit_count: u64,
    /// Commands that needed a value which was only in the log.
    pub log_hit_count: u64,
    /// Commands that needed a value of a key that does not exist, with a log.
    pub log_miss_count: u64,
    /// Pins of pairs.
    pub pin_count: u64,
    /// Pins refused because pinned pairs would have more than half of the memory.
    pub pin_refused_count: u64,
    /// Pins that ended with their time, or because memory became less.
    pub pin_ended_count: u64,
}

/// The log of a key-value namespace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LogState {
    /// Bytes of the records of all pairs.
    pub used_bytes: u64,
    /// Limit on these.
    pub usable_bytes: u64,
    /// The rest: for cleaning, headers, and the ends of writes and of segments.
    pub headroom_bytes: u64,
    /// Stores refused because the log was full.
    pub refused_count: u64,
}

/// Damage in the logs of a key-value namespace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DamageState {
    /// Damaged places.
    pub count: u64,
    /// Keys whose values are lost by the damage.
    pub lost_key_count: u64,
    /// Records of unknown keys that are lost by the damage.
    pub lost_unknown_count: u64,
}

/// The reading of the logs of a key-value namespace at the start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RecoveryState {
    /// Partitions whose logs are being read.
    pub partition_count: usize,
    /// Bytes read so far, of all partitions.
    pub read_bytes: u64,
    /// Bytes to be read, of the partitions for which that is known.
    pub bytes: u64,
}

/// A controller: a host's association.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ControllerState {
    /// Controller id.
    pub cntlid: u16,
    /// NQN of the host.
    pub host: String,
    /// Identifier of the host.
    pub hostid: String,
    /// "disabled", "ready", "shutting down", "shut down", "resetting" or "ending".
    pub state: &'static str,
    /// Keep-alive timeout, ms; 0 for none.
    pub keep_alive_ms: u32,
    /// Its I/O queues.
    pub queues: Vec<QueueState>,
    /// Reads completed.
    pub read_count: u64,
    /// Writes completed.
    pub write_count: u64,
    /// Bytes read by the host.
    pub read_bytes: u64,
    /// Bytes written by the host.
    pub written_bytes: u64,
    /// Commands that failed.
    pub failed_count: u64,
}

/// An I/O queue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct QueueState {
    /// Queue id.
    pub qid: u16,
    /// The reactor that serves it.
    pub reactor: u16,
    /// The device queue (NAPI id) that its packets came in through at Connect; 0 for none.
    pub napi_id: u64,
    /// How its host was authenticated: hash function and group.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub authentication: Option<String>,
    /// Doorbell policy.
    pub doorbell: String,
    /// Reads completed.
    pub read_count: u64,
    /// Writes completed.
    pub write_count: u64,
    /// Sends.
    pub send_count: u64,
    /// PDUs sent.
    pub pdu_count: u64,
    /// Receives that returned data.
    pub receive_count: u64,
    /// Counters of its lane.
    pub counters: LaneReport,
}

/// A reactor.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ReactorState {
    /// Its index.
    pub reactor: u16,
    /// Its lanes.
    pub lanes: usize,
    /// Its I/O lanes.
    pub io_lanes: usize,
    /// I/O lanes that it has ever served.
    pub io_lanes_ever: u64,
    /// The device queues (NAPI ids) that packets of its lanes came in through.
    pub napi_ids: Vec<u32>,
    /// Turns with work.
    pub busy_turn_count: u64,
    /// Turns spent spinning.
    pub spin_turn_count: u64,
    /// Sleeps.
    pub sleep_count: u64,
    /// Time asleep, ns.
    pub asleep_ns: u64,
    /// Time spent spinning, ns.
    pub spun_ns: u64,
    /// Time since the start of the target, ns: the rest of it was spent working.
    pub age_ns: u64,
    /// Commands of its lanes that failed, by status.
    pub failed: BTreeMap<String, u64>,
    /// Busy polling.
    pub busy_poll: BusyPollState,
    /// Its buffer pool.
    pub buffers: BuffersState,
}

/// A reactor's buffer pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct BuffersState {
    /// Total size, bytes.
    pub bytes: usize,
    /// Free now, bytes.
    pub free_bytes: usize,
    /// Lowest free amount so far, bytes.
    pub free_bytes_min: usize,
    /// Commands that had to wait for a buffer.
    pub waited_count: u64,
    /// Lanes with commands that wait for a buffer now.
    pub waiting_lanes: usize,
    /// Times that a lane was held back because its host did not read.
    pub held_back_count: u64,
}

/// Busy polling of a reactor as the kernel granted it: "off", "on", or "refused: " and the reason.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct BusyPollState {
    /// Busy polling time of waits, µs; 0 for off.
    pub wait_us: u32,
    /// On its ring or epoll set.
    pub engine: String,
    /// On sockets.
    pub sockets: String,
    /// Before interrupts.
    pub prefer: String,
    /// Packets per pass.
    pub budget: String,
    /// Sockets that poll.
    pub socket_count: u64,
    /// Sockets that the kernel refused to poll.
    pub refused_count: u64,
    /// Times that an idle reactor spun before it slept.
    pub spins: u64,
    /// Of these, those that found work.
    pub spin_hits: u64,
    /// Sleeps that polled devices first.
    pub polled_sleeps: u64,
    /// Of these, those that ended within the polling time.
    pub polled_hits: u64,
}

/// Placement of I/O lanes. Each lane counts once, when it connects.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PlacementState {
    /// The policy for new lanes.
    pub policy: String,
    /// Lanes by the criterion that placed them.
    #[serde(flatten)]
    pub counters: PlacementCounters,
    /// NAPI ids of all device queues that lanes have ever come in through.
    pub napi_ids_seen: Vec<u32>,
    /// Device queues that lanes come in through now.
    pub device_queues: Vec<DeviceQueueState>,
}

/// Numbers of I/O lanes by the criterion that placed them. Each lane counts once, when it connects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PlacementCounters {
    /// By load, as configured.
    pub by_load: u64,
    /// By the device queue.
    pub by_napi: u64,
    /// By the core that receives packets.
    pub by_cpu: u64,
    /// By the queue id.
    pub by_queue: u64,
    /// By the partition of keys that the host wants the lane near.
    pub by_partition: u64,
    /// By load, because the configured criterion is unknown: no such device, or no reactor on that core.
    pub fell_back: u64,
    /// Lanes handed over to another reactor at Connect.
    pub moved: u64,
    /// Lanes that should have been handed over, but more than their Connect had arrived.
    pub stuck: u64,
    /// Lanes that came in through different device queues at accept and at Connect.
    pub napi_changed: u64,
}

/// A device queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct DeviceQueueState {
    /// Its NAPI id.
    pub napi_id: u32,
    /// The reactor that all its lanes are assigned to, if decided.
    pub reactor: Option<usize>,
    /// Lanes that come in through it.
    pub lanes: u32,
}

/// A reactor's answer to a query of its state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReactorReport {
    /// Its state.
    pub reactor: ReactorState,
    /// The placement of lanes, from the reactor that decides it.
    pub placement: Option<PlacementState>,
    /// Counters of its partitions of keys.
    pub key_values: Vec<(NamespaceId, KeyValueCounters)>,
}

/// Counters of one reactor for a key-value namespace, since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeyValueCounters {
    /// Of its partition.
    pub pairs: kv::Counters,
    /// Of the commands of memcached clients that it executed.
    pub commands: memcached::CommandCounters,
}

/// The state as the control plane knows it, and references to the counters that complete it: the thread that asked reads
/// those, so that reactor 0 does not spend its time on them.
#[derive(Debug)]
pub struct StateParts {
    /// Without these counters.
    pub state: TargetState,
    /// The hosts.
    pub hosts: Vec<HostParts>,
    /// Totals of hosts that have no controllers left.
    pub gone: LaneTotals,
    /// The namespaces.
    pub namespaces: Vec<NamespaceParts>,
    /// The subsystems, in the order of the state.
    pub subsystem_ids: Vec<SubsystemId>,
}

/// A host, and the counters of its lanes.
#[derive(Debug)]
pub struct HostParts {
    /// Its name.
    pub host: HostName,
    /// Its controllers of subsystems.
    pub controller_count: usize,
    /// Totals of lanes that have ended.
    pub past: LaneTotals,
    /// The others.
    pub lanes: Vec<LaneParts>,
}

/// A lane of a controller of a subsystem, and its counters.
#[derive(Debug)]
pub struct LaneParts {
    /// Its name.
    pub lane: LaneId,
    /// The subsystem.
    pub subsystem: SubsystemId,
    /// The controller.
    pub cntlid: Cntlid,
    /// Its counters.
    pub counters: Arc<LaneCounters>,
}

/// A lane as an observer sees it: its counters go on.
#[derive(Clone, Debug)]
pub struct ObservedLane {
    /// Its name, which no other lane of the target ever has.
    pub lane: LaneId,
    /// The place of its host among those of the state.
    pub host: usize,
    /// The place of its subsystem among those of the state.
    pub subsystem: usize,
    /// The controller.
    pub cntlid: u16,
    /// Its counters.
    pub counters: Arc<LaneCounters>,
}

/// The counters of a namespace.
#[derive(Debug)]
pub struct NamespaceParts {
    /// The place of its subsystem, and its own place there.
    pub at: (usize, usize),
    /// The id by which reactors know its storage.
    pub id: NamespaceId,
    /// Its traffic.
    pub traffic: Arc<NamespaceTraffic>,
}

impl StateParts {
    /// The whole state, with the reports of reactors, and the lanes of all hosts.
    #[must_use]
    pub fn complete(self, reports: Vec<ReactorReport>) -> (TargetState, Vec<ObservedLane>) {
        let Self { mut state, hosts, gone, namespaces, subsystem_ids } = self;
        let mut observed = Vec::with_capacity(hosts.iter().map(|host| host.lanes.len()).sum());
        state.totals = gone;
        for HostParts { host, controller_count, past, lanes } in hosts {
            let mut totals = past;
            lanes.iter().for_each(|lane| totals.add(&lane.counters));
            state.totals.merge(&totals);
            let (at, host, lane_count) = (state.hosts.len(), host.to_string(), lanes.len());
            observed.extend(lanes.into_iter().filter_map(
                |LaneParts { lane, subsystem, cntlid, counters }| {
                    let subsystem = subsystem_ids.iter().position(|id| *id == subsystem)?;
                    Some(ObservedLane { lane, host: at, subsystem, cntlid: cntlid.get(), counters })
                },
            ));
            state.hosts.push(HostState { host, controller_count, lane_count, totals });
        }
        let mut key_values = BTreeMap::<NamespaceId, PairCounters>::new();
        let counters = reports.iter().flat_map(|report| &report.key_values);
        counters.for_each(|(id, counters)| key_values.entry(*id).or_default().add(counters));
        for NamespaceParts { at: (subsystem, namespace), id, traffic } in namespaces {
            let Some(subsystem) = state.subsystems.get_mut(subsystem) else { continue };
            let Some(namespace) = subsystem.namespaces.get_mut(namespace) else { continue };
            namespace.traffic = TrafficState::of(&traffic);
            if let (Some(pairs), Some(counters)) = (&mut namespace.pairs, key_values.get(&id)) {
                pairs.counters = *counters;
            }
        }
        for report in reports {
            state.reactors.push(report.reactor);
            state.placement = state.placement.or(report.placement);
        }
        state.reactors.sort_unstable_by_key(|reactor| reactor.reactor);
        (state, observed)
    }
}

impl TrafficState {
    fn of(traffic: &NamespaceTraffic) -> Self {
        let totals = traffic.totals();
        Self {
            read_count: totals.read_count,
            read_bytes: totals.read_bytes,
            write_count: totals.write_count,
            written_bytes: totals.written_bytes,
            media_error_count: totals.media_error_count,
            throttled_count: totals.throttled_count,
            throttled_ns: totals.throttled_ns,
            phases: traffic.phases(),
        }
    }
}

impl PairCounters {
    /// Adds those of others.
    pub fn merge(&mut self, other: &Self) {
        self.hit_count += other.hit_count;
        self.miss_count += other.miss_count;
        self.stored_count += other.stored_count;
        self.evicted_count += other.evicted_count;
        self.evicted_unread_count += other.evicted_unread_count;
        self.expired_count += other.expired_count;
        self.demoted_count += other.demoted_count;
        self.loaded_count += other.loaded_count;
        self.memory_hit_count += other.memory_hit_count;
        self.log_hit_count += other.log_hit_count;
        self.log_miss_count += other.log_miss_count;
        self.pin_count += other.pin_count;
        self.pin_refused_count += other.pin_refused_count;
        self.pin_ended_count += other.pin_ended_count;
    }

    fn add(&mut self, reactor: &KeyValueCounters) {
        let KeyValueCounters { pairs, commands } = reactor;
        self.merge(&Self {
            hit_count: commands.get_hit_count,
            miss_count: commands.get_miss_count,
            stored_count: pairs.stored_count,
            evicted_count: pairs.evicted_count,
            evicted_unread_count: pairs.evicted_unread_count,
            expired_count: pairs.expired_count,
            demoted_count: pairs.demoted_count,
            loaded_count: pairs.loaded_count,
            memory_hit_count: pairs.memory_hit_count,
            log_hit_count: pairs.log_hit_count,
            log_miss_count: pairs.log_miss_count,
            pin_count: pairs.pin_count,
            pin_refused_count: pairs.pin_refused_count,
            pin_ended_count: pairs.pin_ended_count,
        });
    }
}
