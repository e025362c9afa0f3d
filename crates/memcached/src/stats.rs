//! The answer to `stats`.

use crate::counters::{ListenerStats, PartitionStats};
use crate::execute::Executor;

/// The version reported by `version`. Clients derive from its number which commands are supported.
pub const VERSION: &str = concat!("1.6.99-nvlane-", env!("CARGO_PKG_VERSION"));

impl Executor<'_> {
    /// The statistics of this partition.
    #[must_use]
    pub fn stats(&self) -> PartitionStats {
        PartitionStats {
            commands: self.service.counters,
            processor: self.partition.processor.counters(),
            limit_bytes: self.partition.processor.settings().memory_bytes as u64,
            taken_bytes: self.partition.processor.taken_bytes() as u64,
            index_bytes: self.partition.processor.index_bytes() as u64,
        }
    }

    /// Calls `each` with the name and value of every statistic of a kind. `false` if there is no such kind.
    pub fn for_each_stat(
        &self,
        of: &[u8],
        stats: &PartitionStats,
        listener: &ListenerStats,
        mut each: impl FnMut(&str, &str),
    ) -> bool {
        let mut number = |name: &str, value: u64| {
            each(name, &value.to_string());
        };
        match of {
            b"" => {}
            b"settings" => {
                number("maxbytes", stats.limit_bytes);
                number("item_size_max", self.service.settings.value_bytes_max as u64);
                number("num_threads", listener.thread_count);
                for (name, value) in [
                    ("cas_enabled", "yes"),
                    ("flush_enabled", if self.service.settings.allows_flush { "yes" } else { "no" }),
                    ("evictions", if self.evicts() { "on" } else { "off" }),
                    ("binding_protocol", "auto-negotiate"),
                ] {
                    each(name, value);
                }
                return true;
            }
            // There are no slab classes to report.
            b"items" | b"slabs" | b"sizes" | b"cachedump" | b"conns" | b"reset" => return true,
            _ => return false,
        }
        let (d, p) = (&stats.commands, &stats.processor);
        number("pid", std::process::id().into());
        number("uptime", self.partition.processor.clock().uptime_s().into());
        number("time", u64::try_from(self.partition.processor.clock().unix_s()).unwrap_or(0));
        each("version", VERSION);
        each("pointer_size", "64");
        let mut number = |name: &str, value: u64| {
            each(name, &value.to_string());
        };
        for (name, value) in [
            ("curr_connections", listener.connection_count),
            ("total_connections", listener.connection_total_count),
            ("rejected_connections", listener.rejected_count),
            ("cmd_get", d.get_count),
            ("cmd_set", d.set_count),
            ("cmd_flush", d.flush_count),
            ("cmd_touch", d.touch_count),
            ("cmd_meta", d.meta_count),
            ("get_hits", d.get_hit_count),
            ("get_misses", d.get_miss_count),
            ("get_expired", p.expired_count),
            ("get_flushed", 0),
            ("delete_misses", d.delete_miss_count),
            ("delete_hits", d.delete_hit_count),
            ("incr_misses", d.increment_miss_count),
            ("incr_hits", d.increment_hit_count),
            ("decr_misses", d.decrement_miss_count),
            ("decr_hits", d.decrement_hit_count),
            ("cas_misses", d.cas_miss_count),
            ("cas_hits", d.cas_hit_count),
            ("cas_badval", d.cas_bad_count),
            ("touch_hits", d.touch_hit_count),
            ("touch_misses", d.touch_count - d.touch_hit_count),
            ("store_too_large", d.too_large_count),
            ("store_no_memory", d.no_memory_count),
            ("bytes_read", listener.received_bytes),
            ("bytes_written", listener.sent_bytes),
            ("limit_maxbytes", stats.limit_bytes),
            ("accepting_conns", 1),
            ("listen_disabled_num", 0),
            ("threads", listener.thread_count),
            ("conn_yields", 0),
            ("hash_bytes", stats.index_bytes),
            ("expired_unfetched", 0),
            ("evicted_unfetched", p.evicted_unread_count),
            ("bytes", stats.taken_bytes - stats.index_bytes),
            ("curr_items", p.pair_count),
            ("total_items", p.stored_count),
            ("evictions", p.evicted_count),
            ("reclaimed", p.expired_count),
        ] {
            number(name, value);
        }
        true
    }

    fn evicts(&self) -> bool {
        self.partition.processor.settings().eviction != kv::Eviction::None
    }
}
