//! Counters: of the commands executed on a partition, and of a listener.

use std::ops::AddAssign;

macro_rules! counters {
    ($($(#[$doc:meta])* $field:ident),* $(,)?) => {
        /// Counters of the commands executed on a partition.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct CommandCounters {
            $($(#[$doc])* pub $field: u64,)*
        }

        impl AddAssign for CommandCounters {
            fn add_assign(&mut self, other: Self) {
                $(self.$field += other.$field;)*
            }
        }
    };
}

counters! {
    /// Keys requested.
    get_count,
    /// Keys found.
    get_hit_count,
    /// Keys not found.
    get_miss_count,
    /// Of these, keys whose pair had expired.
    get_expired_count,
    /// Stores.
    set_count,
    /// Touches.
    touch_count,
    /// Touches of a present key.
    touch_hit_count,
    /// Flushes.
    flush_count,
    /// Meta commands.
    meta_count,
    /// Deletes of a present key.
    delete_hit_count,
    /// Deletes of an absent key.
    delete_miss_count,
    /// Increments of a present key.
    increment_hit_count,
    /// Increments of an absent key.
    increment_miss_count,
    /// Decrements of a present key.
    decrement_hit_count,
    /// Decrements of an absent key.
    decrement_miss_count,
    /// CAS numbers that matched.
    cas_hit_count,
    /// CAS stores to an absent key.
    cas_miss_count,
    /// CAS numbers that did not match.
    cas_bad_count,
    /// Values that were too large.
    too_large_count,
    /// Values for which there was no memory.
    no_memory_count,
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
    /// Memory taken by pairs and index, bytes.
    pub taken_bytes: u64,
    /// Memory taken by the index, bytes.
    pub index_bytes: u64,
}

impl AddAssign for PartitionStats {
    fn add_assign(&mut self, other: Self) {
        self.commands += other.commands;
        let (p, o) = (&mut self.processor, other.processor);
        p.pair_count += o.pair_count;
        p.inline_count += o.inline_count;
        p.pair_bytes += o.pair_bytes;
        p.stored_count += o.stored_count;
        p.evicted_count += o.evicted_count;
        p.evicted_unread_count += o.evicted_unread_count;
        p.expired_count += o.expired_count;
        p.moved_count += o.moved_count;
        p.reclaimed_count += o.reclaimed_count;
        self.limit_bytes += other.limit_bytes;
        self.taken_bytes += other.taken_bytes;
        self.index_bytes += other.index_bytes;
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
}
