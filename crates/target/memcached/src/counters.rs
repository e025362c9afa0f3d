//! Counters: of the commands executed on a partition, and of a listener.

use std::ops::AddAssign;

use kv::LogRoom;

use crate::refusal::Refusal;

kv::counters! {
    /// Counters of the commands executed on a partition.
    pub struct CommandCounters {
        /// Keys requested.
        pub get_count: u64,
        /// Keys found.
        pub get_hit_count: u64,
        /// Keys not found.
        pub get_miss_count: u64,
        /// Of these, keys whose pair had expired.
        pub get_expired_count: u64,
        /// Stores.
        pub set_count: u64,
        /// Touches.
        pub touch_count: u64,
        /// Touches of a present key.
        pub touch_hit_count: u64,
        /// Flushes.
        pub flush_count: u64,
        /// Meta commands.
        pub meta_count: u64,
        /// Deletes of a present key.
        pub delete_hit_count: u64,
        /// Deletes of an absent key.
        pub delete_miss_count: u64,
        /// Increments of a present key.
        pub increment_hit_count: u64,
        /// Increments of an absent key.
        pub increment_miss_count: u64,
        /// Decrements of a present key.
        pub decrement_hit_count: u64,
        /// Decrements of an absent key.
        pub decrement_miss_count: u64,
        /// CAS numbers that matched.
        pub cas_hit_count: u64,
        /// CAS stores to an absent key.
        pub cas_miss_count: u64,
        /// CAS numbers that did not match.
        pub cas_bad_count: u64,
        /// Values that were too large.
        pub too_large_count: u64,
        /// Values for which there was no memory.
        pub no_memory_count: u64,
        /// Values for which there was no room in the log.
        pub log_full_count: u64,
    }
}

/// Statistics of a partition, added up over all partitions for `stats`.
#[derive(Clone, Copy, Debug, Default)]
pub struct PartitionStats {
    /// Commands executed.
    pub commands: CommandCounters,
    /// Pairs held and work done.
    pub processor: kv::Counters,
    /// Its memory limit.
    pub limit_bytes: u64,
    /// The least memory for its pairs, bytes: 0 if they may be evicted.
    pub needed_bytes: u64,
    /// Memory taken by pairs and index, bytes.
    pub taken_bytes: u64,
    /// Memory taken by the index, bytes.
    pub index_bytes: u64,
    /// Of this, by pairs that are in the index itself.
    pub inline_bytes: u64,
    /// The space of the log that pairs take, if there is one.
    pub log: Option<LogRoom>,
    /// Why the change of the request may not survive.
    pub refusal: Option<Refusal>,
}

impl AddAssign for PartitionStats {
    fn add_assign(&mut self, other: Self) {
        self.commands += other.commands;
        self.processor += other.processor;
        self.limit_bytes += other.limit_bytes;
        self.needed_bytes += other.needed_bytes;
        self.taken_bytes += other.taken_bytes;
        self.index_bytes += other.index_bytes;
        self.inline_bytes += other.inline_bytes;
        if let Some(more) = other.log {
            *self.log.get_or_insert_default() += more;
        }
        self.refusal = self.refusal.or(other.refusal);
    }
}

/// Statistics of a listener.
#[derive(Clone, Copy, Debug, Default)]
pub struct ListenerStats {
    /// Open connections.
    pub connection_count: u64,
    /// Connections accepted since the start.
    pub connection_total_count: u64,
    /// Connections refused because of the connection limit.
    pub rejected_count: u64,
    /// Connections admitted at the same time, at most.
    pub connection_count_max: u64,
    /// Bytes received.
    pub received_bytes: u64,
    /// Bytes sent.
    pub sent_bytes: u64,
    /// Serving threads.
    pub thread_count: u64,
    /// Connections closed because they were idle.
    pub idle_closed_count: u64,
    /// How long a connection may be idle, s; 0 for ever.
    pub idle_s_max: u64,
    /// Attempts to authenticate.
    pub authentication_count: u64,
    /// Of these, those that failed.
    pub authentication_failed_count: u64,
    /// Connections that failed to set up TLS.
    pub tls_failed_count: u64,
    /// The requirements of the connection's listener.
    pub trust: ListenerTrust,
    /// The partition that the connection's listener is for, if it is for one only.
    pub partition: Option<PartitionOfPort>,
}

/// The partition whose keys are those of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartitionOfPort {
    /// Its number, from 0.
    pub number: usize,
    /// Number of partitions.
    pub count: usize,
}

/// The requirements of a listener.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ListenerTrust {
    /// If clients use TLS, memcached's number for their certificates: 0 for none, 1 if they have one, 2 for all.
    pub tls: Option<u8>,
    /// Whether clients authenticate with a user and a password.
    pub authenticates: bool,
}
