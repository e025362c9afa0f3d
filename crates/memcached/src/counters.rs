//! Counters: of what clients have done on a partition, and of a listener.

use std::ops::AddAssign;

macro_rules! counters {
    ($($(#[$doc:meta])* $field:ident),* $(,)?) => {
        /// What clients have done on a partition.
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
    /// Keys asked for.
    get_count,
    /// Keys found.
    get_hit_count,
    /// Keys not found.
    get_miss_count,
    /// Values brought.
    set_count,
    /// Touches.
    touch_count,
    /// Touches of something.
    touch_hit_count,
    /// Flushes.
    flush_count,
    /// Meta commands.
    meta_count,
    /// Deletes of something.
    delete_hit_count,
    /// Deletes of nothing.
    delete_miss_count,
    /// Increments of something.
    increment_hit_count,
    /// Increments of nothing.
    increment_miss_count,
    /// Decrements of something.
    decrement_hit_count,
    /// Decrements of nothing.
    decrement_miss_count,
    /// Numbers that fitted.
    cas_hit_count,
    /// Numbers of nothing.
    cas_miss_count,
    /// Numbers that did not fit.
    cas_bad_count,
    /// Values that were too large.
    too_large_count,
    /// Values for which there was no memory.
    no_memory_count,
}

/// What a partition says of itself, to be added up with the others.
#[derive(Clone, Copy, Debug, Default)]
pub struct PartitionStats {
    /// What clients have done.
    pub commands: CommandCounters,
    /// What it holds and has done.
    pub processor: kv::Counters,
    /// Its memory limit.
    pub limit_bytes: u64,
    /// Memory that pairs and index take.
    pub taken_bytes: u64,
    /// Its index.
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

/// What a listener knows of itself.
#[derive(Clone, Copy, Debug, Default)]
pub struct ListenerStats {
    /// Connections now.
    pub connection_count: u64,
    /// Connections ever.
    pub connection_total_count: u64,
    /// Connections that were refused, because there were too many.
    pub rejected_count: u64,
    /// Bytes received.
    pub received_bytes: u64,
    /// Bytes sent.
    pub sent_bytes: u64,
    /// Threads that serve.
    pub thread_count: u64,
}
