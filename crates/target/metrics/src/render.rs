//! The state of a target as text for Prometheus.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeCounterValue, MetricEncoder, NoLabelSet, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit};
use reactor::Durations;
use subsystem::config::PoolState;
use subsystem::lane_counters::{CARAVAN_SIZE_COUNT, LaneTotals, PhaseTotals, Reason};
use subsystem::state::{
    HostState, LogState, NamespaceState, PairCounters, PairsState, ReactorState, TRUST_REASONS, TargetState,
    TrafficState,
};

use crate::bounded::{Bounded, Sums};
use crate::metric::{self, HOST_COUNT_MAX, Kind, Metric, NAMESPACE_COUNT_MAX};

/// Facts about the process of a target.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Process {
    /// Version of nvlane.
    pub version: &'static str,
    /// Start, s of Unix time.
    pub started_unix_s: f64,
    /// Reloads of its configuration.
    pub reloads: Reloads,
    /// The pools of volumes, as last seen.
    pub pools: Vec<PoolState>,
}

/// Outcomes of reloads.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Reloads {
    /// Reloads after which every change was in place.
    pub complete_count: u64,
    /// Others.
    pub incomplete_count: u64,
    /// Whether the last one was complete; `None` before the first.
    pub is_last_complete: Option<bool>,
    /// The last time that the whole configuration was in place, s of Unix time.
    pub complete_unix_s: f64,
}

/// A state, and how long it took.
#[derive(Clone, Debug)]
pub struct Scrape {
    /// The state.
    pub target: TargetState,
    /// The process.
    pub process: Process,
    /// Time that the answers took.
    pub took: Duration,
}

/// Writes scrapes as text. Remembers what keeps series bounded in number, and counters from going back.
#[derive(Debug, Default)]
pub struct Renderer {
    hosts: Bounded<String, HostSums, HOST_COUNT_MAX>,
    namespaces: Bounded<(String, u32), NamespaceSums, NAMESPACE_COUNT_MAX>,
    /// Time that each reactor was busy, ns. Its parts are read one after the other.
    busy_ns: BTreeMap<u16, u64>,
}

/// Label of owners without series of their own.
const OTHER: &str = "other";

impl Renderer {
    /// The text of a scrape, in the format of OpenMetrics 1.0.
    pub fn render(&mut self, scrape: &Scrape) -> String {
        let mut page = Page::default();
        page.process(&scrape.process);
        page.lanes(&scrape.target.totals);
        self.hosts(&scrape.target.hosts, &mut page);
        self.namespaces(&scrape.target, &mut page);
        self.reactors(&scrape.target.reactors, &mut page);
        page.connections(&scrape.target);
        page.set(metric::SCRAPE, &[], scrape.took.as_secs_f64());
        let mut registry = Registry::default();
        registry.register_collector(Box::new(page));
        let mut text = String::with_capacity(64 << 10);
        text::encode(&mut text, &registry).expect("a String takes everything");
        text
    }

    fn hosts(&mut self, hosts: &[HostState], page: &mut Page) {
        // A host that sends no name is known by its identifier only.
        let mut present = BTreeMap::<String, HostSums>::new();
        for host in hosts {
            present.entry(host.host.clone()).or_default().merge(&HostSums::of(host));
        }
        let rest = self.hosts.follow(&present);
        let own = present.iter().filter(|(host, _)| self.hosts.is_own(host));
        for (host, sums) in own {
            page.host(host, sums);
        }
        if let Some(sums) = rest {
            page.host(OTHER, &sums);
        }
    }

    fn namespaces(&mut self, target: &TargetState, page: &mut Page) {
        let all = target.subsystems.iter().flat_map(|subsystem| {
            subsystem.namespaces.iter().map(|namespace| (subsystem.nqn.as_str(), namespace))
        });
        let sums = all
            .clone()
            .map(|(nqn, namespace)| ((nqn.to_owned(), namespace.nsid), NamespaceSums::of(namespace)));
        let present: BTreeMap<_, _> = sums.collect();
        let rest = self.namespaces.follow(&present);
        for (nqn, namespace) in all {
            let key = (nqn.to_owned(), namespace.nsid);
            if !self.namespaces.is_own(&key) {
                continue;
            }
            let nsid = namespace.nsid.to_string();
            let labels = [nqn, &nsid];
            page.set(metric::NAMESPACE, &[nqn, &nsid, &namespace.uuid], 1.0);
            page.set(metric::NAMESPACE_SPARE, &labels, f64::from(namespace.spare_percent) / 100.0);
            if let Some(reason) = namespace.closed_kind {
                page.set(metric::NAMESPACE_CLOSED_REASON, &[nqn, &nsid, reason], 1.0);
            }
            if let Some(free_bytes) = namespace.free_bytes {
                page.set(metric::NAMESPACE_FREE, &labels, float(free_bytes));
            }
            page.namespace(&labels, &present[&key]);
        }
        if let Some(sums) = rest {
            page.namespace(&[OTHER, OTHER], &sums);
        }
    }

    fn reactors(&mut self, reactors: &[ReactorState], page: &mut Page) {
        let mut failed = BTreeMap::<&str, u64>::new();
        for reactor in reactors {
            let number = reactor.reactor.to_string();
            let rest_ns = reactor.age_ns.saturating_sub(reactor.asleep_ns.saturating_add(reactor.spun_ns));
            let busy_ns = self.busy_ns.entry(reactor.reactor).or_default();
            *busy_ns = rest_ns.max(*busy_ns);
            for (mode, ns) in [("busy", *busy_ns), ("poll", reactor.spun_ns), ("idle", reactor.asleep_ns)] {
                page.count_seconds(metric::REACTOR_SECONDS, &[&number, mode], ns);
            }
            page.count(metric::REACTOR_TURNS, &[&number, "busy"], reactor.busy_turn_count);
            page.count(metric::REACTOR_TURNS, &[&number, "poll"], reactor.spin_turn_count);
            let labels = [number.as_str()];
            page.count(metric::REACTOR_SLEEPS, &labels, reactor.sleep_count);
            page.set(metric::REACTOR_LANES, &labels, float(reactor.lanes as u64));
            let buffers = &reactor.buffers;
            page.set(metric::BUFFERS, &labels, float(buffers.bytes as u64));
            page.set(metric::BUFFERS_FREE, &labels, float(buffers.free_bytes as u64));
            page.set(metric::BUFFERS_LOWEST, &labels, float(buffers.free_bytes_min as u64));
            page.count(metric::BUFFER_WAITS, &labels, buffers.waited_count);
            page.set(metric::BUFFER_WAITING, &labels, float(buffers.waiting_lanes as u64));
            page.count(metric::BUFFER_HELD, &labels, buffers.held_back_count);
            for (status, count) in &reactor.failed {
                *failed.entry(status).or_default() += count;
            }
        }
        for (status, count) in failed {
            page.count(metric::ERRORS, &[status], count);
        }
    }
}

/// What a host has counted.
#[derive(Clone, Copy, Debug, Default)]
struct HostSums {
    totals: LaneTotals,
    controller_count: u64,
    lane_count: u64,
}

impl HostSums {
    fn of(host: &HostState) -> Self {
        let (controller_count, lane_count) = (host.controller_count as u64, host.lane_count as u64);
        Self { totals: host.totals, controller_count, lane_count }
    }
}

impl Sums for HostSums {
    fn merge(&mut self, other: &Self) {
        self.totals.merge(&other.totals);
        self.controller_count += other.controller_count;
        self.lane_count += other.lane_count;
    }

    fn settle(&mut self) {
        (self.controller_count, self.lane_count) = (0, 0);
    }

    fn progress(&self) -> u64 {
        let LaneTotals { read_count, write_count, other_count, failed_count, .. } = self.totals;
        [read_count, write_count, other_count, failed_count].iter().sum()
    }
}

/// What a namespace has counted, and what adds up of its state.
#[derive(Clone, Copy, Debug, Default)]
struct NamespaceSums {
    traffic: TrafficState,
    closing_count: u64,
    pairs: Option<PairSums>,
    now: NamespaceNow,
}

/// The state of a namespace, or of several.
#[derive(Clone, Copy, Debug, Default)]
struct NamespaceNow {
    bytes: u64,
    full_count: u64,
    write_protected_count: u64,
    closed_count: u64,
}

/// The pairs of a namespace.
#[derive(Clone, Copy, Debug, Default)]
struct PairSums {
    counters: PairCounters,
    refused_memory_count: u64,
    refused_log_count: u64,
    now: PairsNow,
}

/// The state of the pairs of a namespace, or of several.
#[derive(Clone, Copy, Debug, Default)]
struct PairsNow {
    count: u64,
    bytes: u64,
    memory_bytes: u64,
    used_memory_bytes: u64,
    pinned_count: u64,
    pinned_bytes: u64,
    log_used_bytes: u64,
    log_usable_bytes: u64,
    damage_count: u64,
    recovering_count: u64,
}

impl NamespaceSums {
    fn of(namespace: &NamespaceState) -> Self {
        let pairs = namespace.pairs.as_ref().map(|pairs: &PairsState| {
            let log = pairs.log.as_ref();
            let of_log = |field: fn(&LogState) -> u64| log.map_or(0, field);
            PairSums {
                counters: pairs.counters,
                refused_memory_count: pairs.refused_memory_count,
                refused_log_count: of_log(|log| log.refused_count),
                now: PairsNow {
                    count: pairs.count,
                    bytes: pairs.bytes,
                    memory_bytes: pairs.memory_bytes,
                    used_memory_bytes: pairs.used_memory_bytes,
                    pinned_count: pairs.pinned_count,
                    pinned_bytes: pairs.pinned_bytes,
                    log_used_bytes: of_log(|log| log.used_bytes),
                    log_usable_bytes: of_log(|log| log.usable_bytes),
                    damage_count: namespace.damage.as_ref().map_or(0, |damage| damage.count),
                    recovering_count: namespace
                        .recovery
                        .as_ref()
                        .map_or(0, |read| read.partition_count as u64),
                },
            }
        });
        Self {
            traffic: namespace.traffic,
            closing_count: namespace.closing_count,
            pairs,
            now: NamespaceNow {
                bytes: namespace.bytes,
                full_count: namespace.full.into(),
                write_protected_count: namespace.write_protected.into(),
                closed_count: namespace.closed.is_some().into(),
            },
        }
    }
}

impl Sums for NamespaceSums {
    fn merge(&mut self, other: &Self) {
        let (traffic, more) = (&mut self.traffic, &other.traffic);
        traffic.read_count += more.read_count;
        traffic.read_bytes += more.read_bytes;
        traffic.write_count += more.write_count;
        traffic.written_bytes += more.written_bytes;
        traffic.media_error_count += more.media_error_count;
        traffic.throttled_count += more.throttled_count;
        traffic.throttled_ns += more.throttled_ns;
        traffic.phases.merge(&more.phases);
        self.closing_count += other.closing_count;
        if let Some(more) = &other.pairs {
            self.pairs.get_or_insert_default().merge(more);
        }
        let (now, more) = (&mut self.now, &other.now);
        now.bytes += more.bytes;
        now.full_count += more.full_count;
        now.write_protected_count += more.write_protected_count;
        now.closed_count += more.closed_count;
    }

    fn settle(&mut self) {
        self.now = NamespaceNow::default();
        if let Some(pairs) = &mut self.pairs {
            pairs.now = PairsNow::default();
        }
    }

    fn progress(&self) -> u64 {
        let TrafficState { read_count, write_count, media_error_count, .. } = self.traffic;
        let pairs = self.pairs.map_or(0, |pairs| {
            let PairCounters { hit_count, miss_count, stored_count, loaded_count, .. } = pairs.counters;
            hit_count + miss_count + stored_count + loaded_count
        });
        read_count + write_count + media_error_count + self.closing_count + pairs
    }
}

impl PairSums {
    fn merge(&mut self, other: &Self) {
        self.counters.merge(&other.counters);
        self.refused_memory_count += other.refused_memory_count;
        self.refused_log_count += other.refused_log_count;
        let (now, more) = (&mut self.now, &other.now);
        now.count += more.count;
        now.bytes += more.bytes;
        now.memory_bytes += more.memory_bytes;
        now.used_memory_bytes += more.used_memory_bytes;
        now.pinned_count += more.pinned_count;
        now.pinned_bytes += more.pinned_bytes;
        now.log_used_bytes += more.log_used_bytes;
        now.log_usable_bytes += more.log_usable_bytes;
        now.damage_count += more.damage_count;
        now.recovering_count += more.recovering_count;
    }
}

/// The samples of a scrape.
#[derive(Debug, Default)]
struct Page {
    samples: BTreeMap<&'static str, Vec<Sample>>,
}

/// A sample: the values of the labels of its metric, and its own.
#[derive(Debug)]
struct Sample {
    labels: Vec<String>,
    value: Value,
}

#[derive(Debug)]
enum Value {
    Count(u64),
    Seconds(f64),
    Gauge(f64),
    Histogram { sum: f64, buckets: Vec<(f64, u64)> },
}

impl Page {
    fn add(&mut self, metric: &'static Metric, labels: &[&str], value: Value) {
        debug_assert_eq!(metric.labels.len(), labels.len(), "{}", metric.name);
        let labels = labels.iter().map(|&label| label.to_owned()).collect();
        self.samples.entry(metric.name).or_default().push(Sample { labels, value });
    }

    fn count(&mut self, metric: &'static Metric, labels: &[&str], count: u64) {
        self.add(metric, labels, Value::Count(count));
    }

    fn count_seconds(&mut self, metric: &'static Metric, labels: &[&str], ns: u64) {
        self.add(metric, labels, Value::Seconds(seconds(ns)));
    }

    fn set(&mut self, metric: &'static Metric, labels: &[&str], value: f64) {
        self.add(metric, labels, Value::Gauge(value));
    }

    fn process(&mut self, process: &Process) {
        let Process { version, started_unix_s, reloads, pools } = process;
        pools.iter().for_each(|pool| self.pool(pool));
        self.set(metric::BUILD, &[version], 1.0);
        self.set(metric::START, &[], *started_unix_s);
        self.count(metric::RELOADS, &["complete"], reloads.complete_count);
        self.count(metric::RELOADS, &["incomplete"], reloads.incomplete_count);
        let is_complete = reloads.is_last_complete.unwrap_or(true);
        self.set(metric::RELOAD_SUCCESSFUL, &[], f64::from(u8::from(is_complete)));
        self.set(metric::RELOAD_TIME, &[], reloads.complete_unix_s);
    }

    fn pool(&mut self, pool: &PoolState) {
        let labels = [pool.name.as_str()];
        let flag = |is_set: bool| f64::from(u8::from(is_set));
        self.set(metric::POOL_USABLE, &labels, flag(pool.error.is_none()));
        if pool.error.is_some() {
            return;
        }
        self.set(metric::POOL_TOTAL, &labels, float(pool.total));
        self.set(metric::POOL_LEFT, &labels, float(pool.left));
        self.set(metric::POOL_ALLOCATED, &labels, float(pool.allocated));
        self.set(metric::POOL_COMMITTED, &labels, float(pool.committed));
        self.set(metric::POOL_VOLUMES, &[labels[0], "volume"], float(pool.volumes));
        self.set(metric::POOL_VOLUMES, &[labels[0], "snapshot"], float(pool.snapshots));
        self.set(metric::POOL_LOW, &labels, flag(pool.is_low));
    }

    fn lanes(&mut self, totals: &LaneTotals) {
        for (op, count) in commands(totals) {
            self.count(metric::COMMANDS, &[op], count);
        }
        self.count(metric::DATA, &["read"], totals.read_bytes);
        self.count(metric::DATA, &["write"], totals.written_bytes);
        let buckets = (0u32..).zip(totals.caravan_sizes);
        let bound = |bin: u32| match bin as usize + 1 {
            CARAVAN_SIZE_COUNT => f64::INFINITY,
            _ => f64::from(1 << bin),
        };
        let buckets = buckets.map(|(bin, count)| (bound(bin), count)).collect();
        let sum = float(totals.pdu_count);
        self.add(metric::CARAVANS, &[], Value::Histogram { sum, buckets });
        for reason in Reason::ALL {
            self.count(metric::DOORBELLS, &[reason.name()], totals.rings[reason as usize]);
        }
        self.count_seconds(metric::DOORBELL_WAIT, &[], totals.doorbell_waited_ns);
        self.count(metric::NETWORK, &["sent"], totals.sent_bytes);
        self.count(metric::NETWORK, &["received"], totals.received_bytes);
        self.count(metric::SENDS, &["whole"], totals.send_count.saturating_sub(totals.blocked_count));
        self.count(metric::SENDS, &["partial"], totals.blocked_count);
        self.count(metric::RECEIVES, &["data"], totals.receive_count);
        self.count(metric::RECEIVES, &["empty"], totals.dry_receive_count);
        let copied_count = totals.zero_copy_copied_count;
        self.count(metric::ZERO_COPY, &["zero_copy"], totals.zero_copy_count.saturating_sub(copied_count));
        self.count(metric::ZERO_COPY, &["copied"], copied_count);
    }

    fn host(&mut self, host: &str, sums: &HostSums) {
        let totals = &sums.totals;
        for (op, count) in commands(totals) {
            self.count(metric::HOST_COMMANDS, &[host, op], count);
        }
        self.count(metric::HOST_DATA, &[host, "read"], totals.read_bytes);
        self.count(metric::HOST_DATA, &[host, "write"], totals.written_bytes);
        self.count(metric::HOST_THROTTLED, &[host], totals.throttled_count);
        self.count_seconds(metric::HOST_THROTTLE_WAIT, &[host], totals.throttled_ns);
        self.set(metric::HOST_CONTROLLERS, &[host], float(sums.controller_count));
        self.set(metric::HOST_LANES, &[host], float(sums.lane_count));
    }

    fn namespace(&mut self, labels: &[&str; 2], sums: &NamespaceSums) {
        let [subsystem, nsid] = *labels;
        let traffic = &sums.traffic;
        self.count(metric::NAMESPACE_COMMANDS, &[subsystem, nsid, "read"], traffic.read_count);
        self.count(metric::NAMESPACE_COMMANDS, &[subsystem, nsid, "write"], traffic.write_count);
        self.count(metric::NAMESPACE_DATA, &[subsystem, nsid, "read"], traffic.read_bytes);
        self.count(metric::NAMESPACE_DATA, &[subsystem, nsid, "write"], traffic.written_bytes);
        self.count(metric::NAMESPACE_MEDIA_ERRORS, labels, traffic.media_error_count);
        self.count(metric::NAMESPACE_THROTTLED, labels, traffic.throttled_count);
        self.count_seconds(metric::NAMESPACE_THROTTLE_WAIT, labels, traffic.throttled_ns);
        self.count(metric::NAMESPACE_CLOSINGS, labels, sums.closing_count);
        let NamespaceNow { bytes, full_count, write_protected_count, closed_count } = sums.now;
        self.set(metric::NAMESPACE_SIZE, labels, float(bytes));
        self.set(metric::NAMESPACE_FULL, labels, float(full_count));
        self.set(metric::NAMESPACE_PROTECTED, labels, float(write_protected_count));
        self.set(metric::NAMESPACE_CLOSED, labels, float(closed_count));
        let PhaseTotals { socket, backend, doorbell, send } = &traffic.phases;
        let phases = [("queue", socket), ("storage", backend), ("doorbell", doorbell), ("send", send)];
        for (phase, durations) in phases {
            let value = Value::Histogram { sum: seconds(durations.sum_ns), buckets: buckets(durations) };
            self.add(metric::PHASES, &[subsystem, nsid, phase], value);
        }
        if let Some(pairs) = &sums.pairs {
            self.pairs(labels, pairs);
        }
    }

    fn pairs(&mut self, labels: &[&str; 2], pairs: &PairSums) {
        let [subsystem, nsid] = *labels;
        let (counters, now) = (&pairs.counters, &pairs.now);
        self.count(metric::KV_GETS, &[subsystem, nsid, "hit"], counters.hit_count);
        self.count(metric::KV_GETS, &[subsystem, nsid, "miss"], counters.miss_count);
        self.count(metric::KV_STORES, labels, counters.stored_count);
        self.count(metric::KV_REFUSED, &[subsystem, nsid, "memory"], pairs.refused_memory_count);
        self.count(metric::KV_REFUSED, &[subsystem, nsid, "log"], pairs.refused_log_count);
        self.count(metric::KV_EVICTIONS, labels, counters.evicted_count);
        self.count(metric::KV_UNREAD, labels, counters.evicted_unread_count);
        self.count(metric::KV_EXPIRATIONS, labels, counters.expired_count);
        self.count(metric::KV_READS, &[subsystem, nsid, "memory"], counters.memory_hit_count);
        self.count(metric::KV_READS, &[subsystem, nsid, "log"], counters.log_hit_count);
        self.count(metric::KV_READS, &[subsystem, nsid, "none"], counters.log_miss_count);
        self.count(metric::KV_MOVES, &[subsystem, nsid, "log"], counters.demoted_count);
        self.count(metric::KV_MOVES, &[subsystem, nsid, "memory"], counters.loaded_count);
        self.count(metric::KV_PINS, &[subsystem, nsid, "made"], counters.pin_count);
        self.count(metric::KV_PINS, &[subsystem, nsid, "full"], counters.pin_refused_count);
        self.count(metric::KV_PINS, &[subsystem, nsid, "ended"], counters.pin_ended_count);
        let gauges = [
            (metric::KV_PAIRS, now.count),
            (metric::KV_BYTES, now.bytes),
            (metric::KV_MEMORY, now.memory_bytes),
            (metric::KV_MEMORY_USED, now.used_memory_bytes),
            (metric::KV_PINNED, now.pinned_count),
            (metric::KV_PINNED_BYTES, now.pinned_bytes),
            (metric::KV_LOG_USED, now.log_used_bytes),
            (metric::KV_LOG_USABLE, now.log_usable_bytes),
            (metric::KV_LOG_DAMAGE, now.damage_count),
            (metric::KV_RECOVERING, now.recovering_count),
        ];
        gauges.into_iter().for_each(|(metric, value)| self.set(metric, labels, float(value)));
    }

    fn connections(&mut self, target: &TargetState) {
        let connections = &target.connections;
        self.set(metric::CONNECTIONS, &["nvme"], connections.count.into());
        self.set(metric::CONNECTIONS, &["memcached"], connections.memcached_count.into());
        self.set(metric::UNAUTHENTICATED, &[], float(target.unauthenticated_count as u64));
        self.set(metric::WAITING_CONNECTS, &[], float(target.waiting_connect_count as u64));
        // A reason that first occurs between two scrapes is seen as a change of its counter.
        let mut complaints = connections.complaints.clone();
        TRUST_REASONS.into_iter().for_each(|reason| *complaints.entry(reason.to_owned()).or_default() += 0);
        let by_label = [
            (metric::REFUSED_CONNECTIONS, &complaints),
            (metric::REFUSED_CONNECTS, &target.refused_connects),
            (metric::ENDED, &target.ended_associations),
        ];
        for (metric, counts) in by_label {
            counts.iter().for_each(|(label, count)| self.count(metric, &[label], *count));
        }
        if !target.memcached_listeners.is_empty() {
            self.memcached(target);
        }
        if let Some(audit) = &target.audit {
            self.count(metric::AUDIT, &["written"], audit.written_count);
            self.count(metric::AUDIT, &["rate_limited"], audit.rate_limited_count);
            self.count(metric::AUDIT, &["queue_full"], audit.queue_full_count);
            self.count(metric::AUDIT, &["not_written"], audit.not_written_count);
            self.set(metric::AUDIT_FAILING, &[], f64::from(u8::from(audit.error.is_some())));
        }
    }

    fn memcached(&mut self, target: &TargetState) {
        let memcached = &target.memcached;
        self.count(metric::MEMCACHED_ACCEPTED, &["accepted"], memcached.accepted_count);
        self.count(metric::MEMCACHED_ACCEPTED, &["rejected"], memcached.rejected_count);
        self.count(metric::MEMCACHED_ACCEPTED, &["idle_closed"], memcached.idle_closed_count);
        self.count(metric::MEMCACHED_NETWORK, &["sent"], memcached.sent_bytes);
        self.count(metric::MEMCACHED_NETWORK, &["received"], memcached.received_bytes);
        let failed_count = memcached.authentication_failed_count;
        let accepted_count = memcached.authentication_count.saturating_sub(failed_count);
        self.count(metric::MEMCACHED_AUTHENTICATIONS, &["accepted"], accepted_count);
        self.count(metric::MEMCACHED_AUTHENTICATIONS, &["failed"], failed_count);
        self.count(metric::MEMCACHED_TLS, &[], memcached.tls_failed_count);
        for listener in &target.memcached_listeners {
            if let Some(expires_unix_s) = listener.certificate_expires_unix_s {
                // Dates are far from the limits of the number.
                self.set(metric::CERTIFICATE, &[&listener.address], expires_unix_s as f64);
            }
        }
    }
}

impl Collector for Page {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        for metric in metric::METRICS {
            let Some(samples) = self.samples.get(metric.name) else { continue };
            let (name, unit) = match metric.name.rsplit_once('_') {
                Some((name, "seconds")) => (name, Some(Unit::Seconds)),
                Some((name, "bytes")) => (name, Some(Unit::Bytes)),
                _ => (metric.name, None),
            };
            let kind = match metric.kind {
                Kind::Counter => MetricType::Counter,
                Kind::Gauge => MetricType::Gauge,
                Kind::Histogram => MetricType::Histogram,
                Kind::Info => MetricType::Info,
            };
            let mut family = encoder.encode_descriptor(name, metric.help, unit.as_ref(), kind)?;
            for Sample { labels, value } in samples {
                let labels: Vec<(&str, &str)> =
                    metric.labels.iter().copied().zip(labels.iter().map(String::as_str)).collect();
                if metric.kind == Kind::Info {
                    family.encode_info(&labels)?;
                } else if labels.is_empty() {
                    value.encode(&mut family)?;
                } else {
                    value.encode(&mut family.encode_family(&labels)?)?;
                }
            }
        }
        Ok(())
    }
}

impl Value {
    fn encode(&self, encoder: &mut MetricEncoder<'_>) -> fmt::Result {
        match self {
            Self::Count(count) => counter(encoder, count),
            Self::Seconds(seconds) => counter(encoder, seconds),
            Self::Gauge(value) => encoder.encode_gauge(value),
            Self::Histogram { sum, buckets } => {
                let count = buckets.iter().map(|(_, count)| count).sum();
                encoder.encode_histogram::<NoLabelSet>(*sum, count, buckets, None)
            }
        }
    }
}

fn counter(encoder: &mut MetricEncoder<'_>, value: &impl EncodeCounterValue) -> fmt::Result {
    encoder.encode_counter::<NoLabelSet, _, f64>(value, None)
}

fn commands(totals: &LaneTotals) -> [(&'static str, u64); 4] {
    [
        ("read", totals.read_count),
        ("write", totals.write_count),
        ("other", totals.other_count),
        ("failed", totals.failed_count),
    ]
}

/// Bounds of the histograms of phases: from about 1 µs to 2 s, each twice the one before.
fn buckets(durations: &Durations) -> Vec<(f64, u64)> {
    const FIRST_NS: u64 = 1 << 10;
    let mut buckets = Vec::with_capacity(24);
    let mut below = 0;
    for (bound_ns, count) in durations.bins() {
        match bound_ns {
            ..FIRST_NS => below += count,
            u64::MAX => buckets.push((f64::INFINITY, count)),
            _ => buckets.push((seconds(bound_ns), count + std::mem::take(&mut below))),
        }
    }
    buckets
}

fn seconds(ns: u64) -> f64 {
    float(ns) / 1e9
}

/// Numbers of Prometheus have 53 bits.
fn float(number: u64) -> f64 {
    number as f64
}

/// The same as Prometheus' text format 0.0.4, for clients that do not read OpenMetrics.
#[must_use]
pub fn plain_text(open_metrics: &str) -> String {
    let mut text = String::with_capacity(open_metrics.len());
    for line in open_metrics.lines() {
        let mut words = line.splitn(4, ' ');
        let comment = (words.next(), words.next(), words.next(), words.next());
        match comment {
            (Some("#"), Some("EOF"), ..) | (Some("#"), Some("UNIT"), ..) => {}
            (Some("#"), Some(keyword), Some(name), Some(rest)) => {
                let sample_name = Metric::named(name).map_or_else(|| name.to_owned(), Metric::sample_name);
                let rest = if (keyword, rest) == ("TYPE", "info") { "gauge" } else { rest };
                text.extend(["# ", keyword, " ", &sample_name, " ", rest, "\n"]);
            }
            _ => text.extend([line, "\n"]),
        }
    }
    text
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;
    use subsystem::state::{BuffersState, SubsystemState};

    use super::*;

    fn scrape(target: TargetState) -> Scrape {
        Scrape { target, process: Process::default(), took: Duration::from_millis(1) }
    }

    fn host(name: &str, read_count: u64) -> HostState {
        let totals = LaneTotals { read_count, ..LaneTotals::default() };
        HostState { host: name.to_owned(), controller_count: 1, lane_count: 2, totals }
    }

    /// The value of a series.
    fn value(text: &str, series: &str) -> Option<f64> {
        text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' ')?.parse().ok())
    }

    #[test]
    fn the_number_of_series_is_bounded_and_no_command_is_lost() {
        let mut renderer = Renderer::default();
        let mut hosts: Vec<_> =
            (0..10_000).map(|number| host(&format!("host {number:05}"), number)).collect();
        let text = renderer.render(&scrape(TargetState { hosts: hosts.clone(), ..TargetState::default() }));
        let series = text.lines().filter(|line| line.starts_with("nvlane_host_lanes{")).count();
        assert_eq!(series, HOST_COUNT_MAX + 1);
        let reads = |text: &str, host: &str| {
            value(text, &format!("nvlane_host_commands_total{{host=\"{host}\",op=\"read\"}}"))
        };
        let of_others: u64 = (HOST_COUNT_MAX as u64..10_000).sum();
        assert_eq!(reads(&text, "other"), Some(float(of_others)));
        assert_eq!(value(&text, "nvlane_host_lanes{host=\"other\"}"), Some(19_800.0));
        // One with series of its own goes, and one of the others.
        hosts.remove(9_999);
        hosts.remove(0);
        let text = renderer.render(&scrape(TargetState { hosts, ..TargetState::default() }));
        assert_eq!(reads(&text, "other"), Some(float(of_others)), "it never decreases");
        assert_eq!(value(&text, "nvlane_host_lanes{host=\"other\"}"), Some(19_798.0));
        assert_eq!(reads(&text, "host 00000"), None);
    }

    #[test]
    fn the_guide_says_how_many_series_there_are() {
        let pairs = PairsState {
            count: 0,
            bytes: 0,
            memory_bytes: 0,
            used_memory_bytes: 0,
            pinned_count: 0,
            pinned_bytes: 0,
            refused_memory_count: 0,
            counters: PairCounters::default(),
            log: None,
        };
        let samples = |namespace_count: u32, has_pairs: bool| {
            let namespace = |nsid| NamespaceState {
                nsid,
                free_bytes: Some(1),
                pairs: has_pairs.then(|| pairs.clone()),
                ..namespace(TrafficState::default())
            };
            let subsystem =
                SubsystemState { namespaces: (1..=namespace_count).map(namespace).collect(), ..subsystem() };
            let target = TargetState { subsystems: vec![subsystem], ..TargetState::default() };
            Renderer::default().render(&scrape(target)).lines().filter(|line| !line.starts_with('#')).count()
        };
        let none = samples(0, false);
        assert_eq!(none, 53);
        assert_eq!(samples(1, false) - none, 115);
        assert_eq!(samples(1, true) - samples(1, false), 26);
        let mut with_pool = scrape(TargetState::default());
        with_pool.process.pools = vec![PoolState::default()];
        let text = Renderer::default().render(&with_pool);
        assert_eq!(text.lines().filter(|line| !line.starts_with('#')).count() - none, 8);
        // The sum of the others has no UUID, no free and no spare space.
        assert_eq!(samples(1000, false) - none, NAMESPACE_COUNT_MAX * 115 + 112);
    }

    #[test]
    fn the_busy_time_of_a_reactor_never_decreases() {
        let mut renderer = Renderer::default();
        let mut busy = |age_ns, asleep_ns| {
            let buffers = BuffersState::default();
            let reactor = ReactorState {
                age_ns,
                asleep_ns,
                spun_ns: 1_000_000_000,
                buffers,
                ..ReactorState::default()
            };
            let text =
                renderer.render(&scrape(TargetState { reactors: vec![reactor], ..TargetState::default() }));
            value(&text, "nvlane_reactor_seconds_total{reactor=\"0\",mode=\"busy\"}")
        };
        assert_eq!(busy(5_000_000_000, 2_000_000_000), Some(2.0));
        // It has slept between the answer and the look at its clock.
        assert_eq!(busy(6_000_000_000, 3_500_000_000), Some(2.0));
        assert_eq!(busy(7_000_000_000, 3_500_000_000), Some(2.5));
    }

    #[test]
    fn histograms_are_cumulative_and_in_seconds() {
        let mut durations = Durations::default();
        [100, 900, 1_500, 3_000_000_000].into_iter().for_each(|ns| durations.add(ns));
        let traffic = TrafficState {
            phases: PhaseTotals { backend: durations, ..PhaseTotals::default() },
            ..TrafficState::default()
        };
        let subsystem = SubsystemState { namespaces: vec![namespace(traffic)], ..subsystem() };
        let text = Renderer::default()
            .render(&scrape(TargetState { subsystems: vec![subsystem], ..TargetState::default() }));
        let storage = |suffix: &str, more: &str| {
            let labels = format!("{more}subsystem=\"s\",nsid=\"1\",phase=\"storage\"");
            value(&text, &format!("nvlane_command_phase_seconds{suffix}{{{labels}}}"))
        };
        assert_eq!(storage("_bucket", "le=\"0.000001024\","), Some(2.0), "{text}");
        assert_eq!(storage("_bucket", "le=\"0.000002048\","), Some(3.0), "{text}");
        assert_eq!(storage("_bucket", "le=\"2.147483648\","), Some(3.0), "{text}");
        assert_eq!(
            (storage("_bucket", "le=\"+Inf\","), storage("_count", "")),
            (Some(4.0), Some(4.0)),
            "{text}"
        );
        assert_eq!(storage("_sum", ""), Some(3.0000025), "{text}");
    }

    pub(crate) fn subsystem() -> SubsystemState {
        SubsystemState {
            nqn: "s".into(),
            serial: String::new(),
            model: String::new(),
            hosts: None,
            host_rate_limits: BTreeMap::new(),
            namespaces: Vec::new(),
            controllers: Vec::new(),
        }
    }

    pub(crate) fn namespace(traffic: TrafficState) -> NamespaceState {
        NamespaceState {
            nsid: 1,
            uuid: String::new(),
            storage: String::new(),
            bytes: 0,
            block_bytes: 4096,
            read_only: false,
            write_protected: false,
            full: false,
            spare_percent: 100,
            free_bytes: None,
            hosts: None,
            write_hosts: None,
            key_prefixes: None,
            rate_limits: None,
            shown: true,
            closed: None,
            closed_kind: None,
            closing_count: 0,
            traffic,
            recovery: None,
            pairs: None,
            damage: None,
        }
    }

    #[test]
    fn plain_text_has_the_names_of_its_samples() {
        let open_metrics = Renderer::default().render(&scrape(TargetState::default()));
        let text = plain_text(&open_metrics);
        for line in [
            "# TYPE nvlane_build_info gauge",
            "# TYPE nvlane_network_bytes_total counter",
            "# TYPE nvlane_caravan_pdus histogram",
            "# TYPE nvlane_connections gauge",
        ] {
            assert!(text.lines().any(|known| known == line), "{line}: {text}");
        }
        assert!(!text.contains("# UNIT") && !text.contains("# EOF"));
        let samples = |text: &str| {
            text.lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(samples(&text), samples(&open_metrics));
    }

    proptest! {
        /// Whatever a host calls itself is the value of one label.
        #[test]
        fn a_name_of_a_host_makes_no_lines_and_no_labels(name in "[ -~\n\t\"\\\\{}λ\u{202e}]{0,40}") {
            let hosts = vec![host(&name, 7)];
            let text = Renderer::default().render(&scrape(TargetState { hosts, ..TargetState::default() }));
            let lines: Vec<&str> = text.lines().filter(|line| line.starts_with("nvlane_host_lanes{")).collect();
            prop_assert_eq!(lines.len(), 1);
            let escaped = name.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
            prop_assert_eq!(lines[0], format!("nvlane_host_lanes{{host=\"{escaped}\"}} 2.0"));
        }
    }
}
