//! The metrics: names, kinds, labels and meaning. The operators' guide has them as a table.

/// A metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Metric {
    /// Its name, without the `_total` of a counter and the `_info` of an information.
    pub name: &'static str,
    /// What it is.
    pub kind: Kind,
    /// The labels of its series.
    pub labels: &'static [&'static str],
    /// Its meaning.
    pub help: &'static str,
}

/// The kind of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Never decreases.
    Counter,
    /// A value now.
    Gauge,
    /// Numbers of values below bounds.
    Histogram,
    /// Always 1: its labels say something.
    Info,
}

impl Kind {
    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
            Self::Info => "info",
        }
    }
}

impl Metric {
    /// The name of its samples, as queries have it; that of a histogram has a suffix as well.
    #[must_use]
    pub fn sample_name(&self) -> String {
        let suffix = match self.kind {
            Kind::Counter => "_total",
            Kind::Info => "_info",
            Kind::Gauge | Kind::Histogram => "",
        };
        format!("{}{suffix}", self.name)
    }

    /// The metric of this name, without a suffix.
    #[must_use]
    pub fn named(name: &str) -> Option<&'static Self> {
        METRICS.iter().copied().find(|metric| metric.name == name)
    }
}

/// Hosts that have series of their own; the others have the label `other` together.
pub const HOST_COUNT_MAX: usize = 100;

/// Namespaces that have series of their own; the others have the labels `other` together.
pub const NAMESPACE_COUNT_MAX: usize = 100;

macro_rules! metrics {
    ($($id:ident $kind:ident $name:literal [$($label:literal)*] $help:literal)*) => {
        $(pub(crate) const $id: &Metric =
            &Metric { name: $name, kind: Kind::$kind, labels: &[$($label),*], help: $help };)*

        /// All metrics, in the order of their text.
        pub const METRICS: &[&Metric] = &[$($id),*];
    };
}

metrics! {
    BUILD Info "nvlane_build" ["version"] "Version of nvlane."
    START Gauge "nvlane_start_time_seconds" [] "Start of the target, Unix time."
    RELOADS Counter "nvlane_config_reloads" ["outcome"] "Reloads of the configuration: complete, or incomplete."
    RELOAD_SUCCESSFUL Gauge "nvlane_config_last_reload_successful" [] "Whether the last reload put every change in place; 1 before the first."
    RELOAD_TIME Gauge "nvlane_config_last_reload_success_timestamp_seconds" [] "The last time that the whole configuration was in place, Unix time."

    COMMANDS Counter "nvlane_commands" ["op"] "Commands of NVMe hosts: read, write, other, and failed."
    DATA Counter "nvlane_data_bytes" ["op"] "Data of completed reads and writes of NVMe hosts."
    ERRORS Counter "nvlane_command_errors" ["status"] "Failed commands of NVMe hosts by status."
    PHASES Histogram "nvlane_command_phase_seconds" ["subsystem" "nsid" "phase"] "Time of one in 64 I/O commands by phase: queue (from the beginning of the turn that received it), storage, doorbell (until its response is sent), send (until the socket has it)."
    CARAVANS Histogram "nvlane_caravan_pdus" [] "PDUs per caravan, which is what a lane sends at once."
    DOORBELLS Counter "nvlane_doorbells" ["reason"] "Caravans by the reason for which their doorbell was rung."
    DOORBELL_WAIT Counter "nvlane_doorbell_wait_seconds" [] "Time that the oldest PDU of each caravan waited for the doorbell."
    NETWORK Counter "nvlane_network_bytes" ["direction"] "Bytes sent to and received from NVMe hosts, headers included."
    SENDS Counter "nvlane_sends" ["outcome"] "Sends to NVMe hosts: whole, or partial if the socket did not take all."
    RECEIVES Counter "nvlane_receives" ["outcome"] "Receives from NVMe hosts: data, or empty."
    ZERO_COPY Counter "nvlane_zero_copy_sends" ["outcome"] "Zero-copy sends: zero_copy, or copied if the kernel copied anyway."

    HOST_COMMANDS Counter "nvlane_host_commands" ["host" "op"] "Commands of a host."
    HOST_DATA Counter "nvlane_host_data_bytes" ["host" "op"] "Data of completed reads and writes of a host."
    HOST_THROTTLED Counter "nvlane_host_throttled_commands" ["host"] "Commands of a host that waited for a rate limit, its own or that of a namespace."
    HOST_THROTTLE_WAIT Counter "nvlane_host_throttle_wait_seconds" ["host"] "Time that these waited."
    HOST_CONTROLLERS Gauge "nvlane_host_controllers" ["host"] "Controllers (associations) of a host."
    HOST_LANES Gauge "nvlane_host_lanes" ["host"] "Lanes (admin and I/O queues) of a host."

    NAMESPACE Info "nvlane_namespace" ["subsystem" "nsid" "uuid"] "UUID of a namespace."
    NAMESPACE_COMMANDS Counter "nvlane_namespace_commands" ["subsystem" "nsid" "op"] "Commands of NVMe hosts completed in the storage of a namespace, through any subsystem; Retrieve counts as read and Store as write."
    NAMESPACE_DATA Counter "nvlane_namespace_data_bytes" ["subsystem" "nsid" "op"] "Data of these."
    NAMESPACE_MEDIA_ERRORS Counter "nvlane_namespace_media_errors" ["subsystem" "nsid"] "Commands that failed with a media error."
    NAMESPACE_THROTTLED Counter "nvlane_namespace_throttled_commands" ["subsystem" "nsid"] "Commands on a namespace that waited for a rate limit, its own or that of their host."
    NAMESPACE_THROTTLE_WAIT Counter "nvlane_namespace_throttle_wait_seconds" ["subsystem" "nsid"] "Time that these waited."
    NAMESPACE_SIZE Gauge "nvlane_namespace_size_bytes" ["subsystem" "nsid"] "Size of a namespace."
    NAMESPACE_FREE Gauge "nvlane_namespace_free_bytes" ["subsystem" "nsid"] "Free space of the file system of a namespace, if known."
    NAMESPACE_SPARE Gauge "nvlane_namespace_spare_ratio" ["subsystem" "nsid"] "Space left for the blocks of a namespace that have none yet, as in the SMART log: 0 to 1."
    NAMESPACE_FULL Gauge "nvlane_namespace_full" ["subsystem" "nsid"] "Whether writes are refused for lack of space."
    NAMESPACE_PROTECTED Gauge "nvlane_namespace_write_protected" ["subsystem" "nsid"] "Whether the storage has become read-only."
    NAMESPACE_CLOSED Gauge "nvlane_namespace_closed" ["subsystem" "nsid"] "Whether the namespace is closed until it is reopened: a flush failed, or its storage was cut, deleted or removed."
    NAMESPACE_CLOSED_REASON Gauge "nvlane_namespace_closed_reason" ["subsystem" "nsid" "reason"] "1 while it is closed for this reason: flush (one failed, or a durable write), cut, deleted, removed, reopening or other."
    NAMESPACE_CLOSINGS Counter "nvlane_namespace_closings" ["subsystem" "nsid"] "How often it was closed."

    POOL_TOTAL Gauge "nvlane_pool_size_bytes" ["pool"] "Size of the file system of a pool of volumes, or its quota if that is less."
    POOL_LEFT Gauge "nvlane_pool_left_bytes" ["pool"] "Space that writes can still take, of the file system and of the quota."
    POOL_ALLOCATED Gauge "nvlane_pool_allocated_bytes" ["pool"] "Blocks of all volumes and snapshots; shared ones count in each."
    POOL_COMMITTED Gauge "nvlane_pool_committed_bytes" ["pool"] "What the volumes may come to: their sizes, and the blocks of the snapshots."
    POOL_VOLUMES Gauge "nvlane_pool_volumes" ["pool" "kind"] "Volumes and snapshots."
    POOL_LOW Gauge "nvlane_pool_space_low" ["pool"] "Whether less space is left than space_low of the pool."
    POOL_USABLE Gauge "nvlane_pool_usable" ["pool"] "Whether the directory of the pool can be read; if not, the pool has no other series."

    KV_PAIRS Gauge "nvlane_kv_pairs" ["subsystem" "nsid"] "Pairs of a key-value namespace."
    KV_BYTES Gauge "nvlane_kv_pair_bytes" ["subsystem" "nsid"] "Keys and values of these."
    KV_MEMORY Gauge "nvlane_kv_memory_bytes" ["subsystem" "nsid"] "Memory for index and values."
    KV_MEMORY_USED Gauge "nvlane_kv_memory_used_bytes" ["subsystem" "nsid"] "Of this, in use."
    KV_GETS Counter "nvlane_kv_gets" ["subsystem" "nsid" "outcome"] "Keys that memcached clients requested: hit or miss. A Retrieve of an absent key is in nvlane_command_errors_total."
    KV_STORES Counter "nvlane_kv_stores" ["subsystem" "nsid"] "Pairs stored, by NVMe hosts and memcached clients."
    KV_REFUSED Counter "nvlane_kv_refused_stores" ["subsystem" "nsid" "full"] "Stores refused because the memory or the log was full."
    KV_EVICTIONS Counter "nvlane_kv_evictions" ["subsystem" "nsid"] "Pairs evicted."
    KV_UNREAD Counter "nvlane_kv_unread_evictions" ["subsystem" "nsid"] "Of these, pairs that were never read."
    KV_EXPIRATIONS Counter "nvlane_kv_expirations" ["subsystem" "nsid"] "Pairs removed because they expired."
    KV_READS Counter "nvlane_kv_tier_reads" ["subsystem" "nsid" "tier"] "With a log: commands that needed a value that was in memory (memory), only in the log (log), or nowhere (none)."
    KV_MOVES Counter "nvlane_kv_tier_moves" ["subsystem" "nsid" "to"] "Values dropped from memory because the log has them (log), and fetched from it (memory)."
    KV_PINNED Gauge "nvlane_kv_pinned_pairs" ["subsystem" "nsid"] "Pairs that are not evicted because hosts have pinned them."
    KV_PINNED_BYTES Gauge "nvlane_kv_pinned_bytes" ["subsystem" "nsid"] "Memory of these; at most half of all."
    KV_PINS Counter "nvlane_kv_pins" ["subsystem" "nsid" "outcome"] "Pins of pairs that were made, refused (full), or ended with their time (ended)."
    KV_LOG_USED Gauge "nvlane_kv_log_used_bytes" ["subsystem" "nsid"] "Records of all pairs in the log."
    KV_LOG_USABLE Gauge "nvlane_kv_log_usable_bytes" ["subsystem" "nsid"] "Limit on these."
    KV_LOG_DAMAGE Gauge "nvlane_kv_log_damaged_places" ["subsystem" "nsid"] "Damaged places found in the log and skipped."
    KV_RECOVERING Gauge "nvlane_kv_recovering_partitions" ["subsystem" "nsid"] "Partitions whose logs are being read."

    REACTOR_SECONDS Counter "nvlane_reactor_seconds" ["reactor" "mode"] "Time of a reactor: busy, poll (spinning for work), idle (asleep)."
    REACTOR_TURNS Counter "nvlane_reactor_turns" ["reactor" "mode"] "Turns of a reactor: busy (with work), or poll."
    REACTOR_SLEEPS Counter "nvlane_reactor_sleeps" ["reactor"] "Sleeps of a reactor."
    REACTOR_LANES Gauge "nvlane_reactor_lanes" ["reactor"] "Lanes of a reactor."
    BUFFERS Gauge "nvlane_buffer_bytes" ["reactor"] "Buffer pool of a reactor."
    BUFFERS_FREE Gauge "nvlane_buffer_free_bytes" ["reactor"] "Of this, free now."
    BUFFERS_LOWEST Gauge "nvlane_buffer_lowest_free_bytes" ["reactor"] "The least that was ever free."
    BUFFER_WAITS Counter "nvlane_buffer_waits" ["reactor"] "Commands that had to wait for a buffer."
    BUFFER_WAITING Gauge "nvlane_buffer_waiting_lanes" ["reactor"] "Lanes with commands that wait for a buffer now."
    BUFFER_HELD Counter "nvlane_buffer_held_back" ["reactor"] "Times that a lane was held back because its host did not read."

    CONNECTIONS Gauge "nvlane_connections" ["protocol"] "Open connections: nvme or memcached."
    UNAUTHENTICATED Gauge "nvlane_unauthenticated_queues" [] "Queues that have connected, and whose hosts have not authenticated yet."
    WAITING_CONNECTS Gauge "nvlane_waiting_connects" [] "Connects that wait for an earlier association of their host to end."
    REFUSED_CONNECTIONS Counter "nvlane_refused_connections" ["reason"] "Connections refused or closed, by reason: limits, authentication, TLS, deadlines, protocol errors."
    REFUSED_CONNECTS Counter "nvlane_refused_connects" ["status"] "Refused Connect commands by status."
    ENDED Counter "nvlane_ended_associations" ["cause"] "Associations that have ended, by cause."
    MEMCACHED_ACCEPTED Counter "nvlane_memcached_connections" ["outcome"] "Memcached connections: accepted, rejected for a limit or the allow list, or closed because they were idle."
    MEMCACHED_NETWORK Counter "nvlane_memcached_network_bytes" ["direction"] "Bytes sent to and received from memcached clients."
    MEMCACHED_AUTHENTICATIONS Counter "nvlane_memcached_authentications" ["outcome"] "Authentications of memcached clients: accepted or failed."
    MEMCACHED_TLS Counter "nvlane_memcached_tls_failures" [] "Memcached connections on which TLS failed."
    CERTIFICATE Gauge "nvlane_certificate_expiry_timestamp_seconds" ["listener"] "End of the validity of a memcached listener's certificate, Unix time."
    AUDIT Counter "nvlane_audit_lines" ["outcome"] "Lines of the audit log: written, or left out: rate_limited, queue_full, not_written."
    AUDIT_FAILING Gauge "nvlane_audit_failing" [] "Whether the audit log cannot be written."
    SCRAPE Gauge "nvlane_scrape_duration_seconds" [] "Time that the reactors took to answer this scrape."
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn names_are_in_base_units_and_unique() {
        let names: BTreeSet<_> = METRICS.iter().map(|metric| metric.name).collect();
        assert_eq!(names.len(), METRICS.len());
        for Metric { name, help, labels, .. } in METRICS {
            assert!(
                name.starts_with("nvlane_") && !name.ends_with("_total") && !name.ends_with("_info"),
                "{name}"
            );
            assert!(name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_'), "{name}");
            for unit in ["_ms", "_us", "_ns", "_milliseconds", "_percent", "_kb", "_mb", "_count", "_sum"] {
                assert!(!name.ends_with(unit), "{name}");
            }
            assert!(help.ends_with('.') && !help.contains(['\\', '\n']), "{help}");
            assert!(
                !labels.contains(&"le") && !labels.contains(&"job") && !labels.contains(&"instance"),
                "{name}"
            );
        }
    }
}
