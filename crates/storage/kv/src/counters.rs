//! Counters of a partition.

/// A struct of counters, which can be added up over partitions.
#[macro_export]
macro_rules! counters {
    ($(#[$about:meta])* pub struct $name:ident { $($(#[$doc:meta])* pub $field:ident: u64,)* }) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct $name {
            $($(#[$doc])* pub $field: u64,)*
        }

        impl ::std::ops::AddAssign for $name {
            fn add_assign(&mut self, other: Self) {
                $(self.$field += other.$field;)*
            }
        }
    };
}

counters! {
    /// Pairs held and work done by a partition.
    pub struct Counters {
        /// Pairs, including expired ones that were not removed yet.
        pub pair_count: u64,
        /// Pairs stored in the index.
        pub inline_count: u64,
        /// Bytes of keys and values.
        pub pair_bytes: u64,
        /// Stores ever.
        pub stored_count: u64,
        /// Pairs evicted.
        pub evicted_count: u64,
        /// Pairs evicted without ever being read.
        pub evicted_unread_count: u64,
        /// Pairs removed because they expired.
        pub expired_count: u64,
        /// Items moved to free a region.
        pub moved_count: u64,
        /// Regions emptied by eviction or moving.
        pub reclaimed_count: u64,
        /// Values dropped from memory because they are in the log.
        pub demoted_count: u64,
        /// Values fetched from the log.
        pub loaded_count: u64,
        /// Commands that needed a value which was in memory, of a partition with a log.
        pub memory_hit_count: u64,
        /// Commands that needed a value which was only in the log.
        pub log_hit_count: u64,
        /// Commands that needed a value of a key that does not exist, of a partition with a log.
        pub log_miss_count: u64,
        /// Stores refused because memory was full.
        pub no_memory_count: u64,
        /// Stores refused because the log was full.
        pub log_full_count: u64,
        /// Pairs that are not evicted because a client has pinned them.
        pub pinned_count: u64,
        /// Memory of these pairs and of their leases, bytes.
        pub pinned_bytes: u64,
        /// Pins ever.
        pub pin_count: u64,
        /// Pins refused because pinned pairs would take too much memory.
        pub pin_refused_count: u64,
        /// Pins that ended because their time was over, or because memory became less.
        pub pin_ended_count: u64,
    }
}
