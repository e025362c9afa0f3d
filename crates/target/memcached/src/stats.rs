//! The answer to `stats`.
//!
//! Dashboards and exporters read fields by name, and fail without one or with one too many, so the fields are those of
//! memcached: with 0 if nvlane has nothing of its kind. All sizes of items are one slab class, number 1, whose chunks
//! are lines and whose pages are regions.

use std::fs;

use kv::REGION_BYTES;
use memory::LINE_BYTES;

use crate::counters::{ListenerStats, PartitionOfPort, PartitionStats};
use crate::execute::Executor;

/// The version reported by `version`. Clients derive from its number which commands are supported.
pub const VERSION: &str = concat!("1.6.99-nvlane-", env!("CARGO_PKG_VERSION"));

/// General fields of features that nvlane does not have. One is `get_flushed`: flushed pairs are removed at once.
const ABSENT: &str = "\
    response_obj_oom response_obj_count response_obj_bytes read_buf_count read_buf_bytes read_buf_bytes_free \
    read_buf_oom reserved_fds get_flushed listen_disabled_num \
    time_in_listen_disabled_us conn_yields hash_is_expanding slab_reassign_rescues \
    slab_reassign_chunk_rescues slab_reassign_inline_reclaim slab_reassign_busy_items \
    slab_reassign_busy_deletes slab_reassign_busy_nomem slab_reassign_running slabs_moved \
    lru_crawler_running lru_crawler_starts lru_maintainer_juggles malloc_fails unexpected_napi_ids \
    round_robin_fallback slab_global_page_pool expired_unfetched evicted_active crawler_reclaimed \
    crawler_items_checked lrutail_reflocked moves_to_cold moves_to_warm moves_within_lru direct_reclaims \
    lru_bumps_dropped";

/// Settings of features that nvlane does not have: numbers, and those that memcached calls `no` when they are off.
const ABSENT_NUMBERS: &str = "\
    tcpport udpport verbosity oldest num_threads_per_udp slab_automove lru_crawler_sleep lru_crawler_tocrawl \
    tcp_backlog hashpower_init reqs_per_event slab_automove_ratio slab_automove_window \
    tail_repair_time hot_lru_pct warm_lru_pct hot_max_factor warm_max_factor temporary_ttl \
    watcher_logbuf_size worker_logbuf_size read_buf_mem_limit umask num_napi_ids";
const ABSENT_SWITCHES: &str = "\
    shutdown_command detail_enabled auth_enabled_sasl slab_reassign lru_crawler \
    dump_enabled lru_maintainer_thread lru_segmented temp_lru track_sizes inline_ascii_response";

/// Fields of the items of a slab class that nvlane does not have.
const ABSENT_OF_ITEMS: &str = "\
    number_hot number_warm number_cold age_hot age_warm age evicted_nonzero evicted_time \
    tailrepairs expired_unfetched evicted_active crawler_reclaimed crawler_items_checked lrutail_reflocked \
    moves_to_cold moves_to_warm moves_within_lru direct_reclaims hits_to_hot hits_to_warm hits_to_cold \
    hits_to_temp";

impl Executor<'_> {
    /// The statistics of this partition since the last reset.
    #[must_use]
    pub(crate) fn stats(&self) -> PartitionStats {
        let (now, before) = (self.partition.processor.counters(), &self.service.reset_at);
        PartitionStats {
            commands: self.service.counters,
            processor: kv::Counters {
                stored_count: now.stored_count - before.stored_count,
                evicted_count: now.evicted_count - before.evicted_count,
                evicted_unread_count: now.evicted_unread_count - before.evicted_unread_count,
                expired_count: now.expired_count - before.expired_count,
                ..now
            },
            limit_bytes: self.partition.processor.settings().memory_bytes as u64,
            needed_bytes: self.partition.processor.needed_bytes() as u64,
            taken_bytes: self.partition.processor.taken_bytes() as u64,
            index_bytes: self.partition.processor.index_bytes() as u64,
            inline_bytes: self.partition.processor.inline_bytes() as u64,
            log: self.partition.processor.log_room(),
            refusal: None,
        }
    }

    /// Counts from zero from now on.
    pub(crate) fn reset_stats(&mut self) {
        let counters = std::mem::take(&mut self.service.counters);
        self.service.counted_before += counters;
        self.service.reset_at = self.partition.processor.counters();
    }

    /// Calls `each` with the name and value of every statistic of a kind. `false` if there is no such kind.
    pub(crate) fn for_each_stat(
        &self,
        of: &[u8],
        stats: &PartitionStats,
        listener: &ListenerStats,
        mut each: impl FnMut(&str, &str),
    ) -> bool {
        match of {
            b"" => self.general(stats, listener, &mut each),
            b"settings" => self.settings(stats, listener, &mut each),
            b"items" => items(stats, &mut each),
            b"slabs" => slabs(stats, &mut each),
            b"sizes" => each("sizes_status", "disabled"),
            // Of the binary protocol; nothing is counted by prefix.
            b"detail on" | b"detail off" | b"detail dump" => {}
            _ => return false,
        }
        true
    }

    fn general(&self, stats: &PartitionStats, listener: &ListenerStats, each: &mut impl FnMut(&str, &str)) {
        let (d, p, clock) = (&stats.commands, &stats.processor, self.partition.processor.clock());
        let w = self.service.watch.watchers().stats();
        each("version", VERSION);
        each("libevent", "none");
        let [user, system] = processor_time();
        each("rusage_user", &user);
        each("rusage_system", &system);
        each("slab_reassign_last_busy_status", "none");
        for (name, value) in [
            ("pid", std::process::id().into()),
            ("uptime", clock.uptime_s().into()),
            ("time", u64::try_from(clock.unix_s()).unwrap_or(0)),
            ("pointer_size", u64::from(usize::BITS)),
            ("max_connections", listener.connection_count_max),
            ("curr_connections", listener.connection_count),
            ("total_connections", listener.connection_total_count),
            ("rejected_connections", listener.rejected_count),
            ("connection_structures", listener.connection_count),
            ("cmd_get", d.get_count),
            ("cmd_set", d.set_count),
            ("cmd_flush", d.flush_count),
            ("cmd_touch", d.touch_count),
            ("cmd_meta", d.meta_count),
            ("get_hits", d.get_hit_count),
            ("get_misses", d.get_miss_count),
            ("get_expired", d.get_expired_count),
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
            ("threads", listener.thread_count),
            ("idle_kicks", listener.idle_closed_count),
            ("auth_cmds", listener.authentication_count),
            ("auth_errors", listener.authentication_failed_count),
            ("hash_power_level", (stats.index_bytes / LINE_BYTES as u64).checked_ilog2().unwrap_or(0).into()),
            ("hash_bytes", stats.index_bytes),
            ("evicted_unfetched", p.evicted_unread_count),
            ("bytes", stats.taken_bytes - stats.index_bytes + stats.inline_bytes),
            ("curr_items", p.pair_count),
            ("total_items", p.stored_count),
            ("evictions", p.evicted_count),
            ("reclaimed", p.expired_count),
            ("pinned_items", p.pinned_count),
            ("pinned_bytes", p.pinned_bytes),
            ("log_watchers", w.watcher_count),
            ("log_worker_written", w.written_count),
            ("log_worker_dropped", w.dropped_count),
            ("log_watcher_sent", w.sent_count),
            ("log_watcher_skipped", w.skipped_count),
        ] {
            each(name, &value.to_string());
        }
        if let Some(log) = &stats.log {
            each("log_bytes", &log.live_bytes.to_string());
            each("log_limit_bytes", &log.live_bytes_max.to_string());
            each("log_headroom_bytes", &log.headroom_bytes.to_string());
            each("store_log_full", &d.log_full_count.to_string());
            each("tier_memory_hits", &p.memory_hit_count.to_string());
            each("tier_log_hits", &p.log_hit_count.to_string());
            each("tier_misses", &p.log_miss_count.to_string());
        }
        if let Some(PartitionOfPort { number, count }) = listener.partition {
            each("partition", &number.to_string());
            each("partition_count", &count.to_string());
        }
        if listener.trust.tls.is_some() {
            each("ssl_handshake_errors", &listener.tls_failed_count.to_string());
        }
        ABSENT.split(' ').for_each(|name| each(name, "0"));
    }

    fn settings(&self, stats: &PartitionStats, listener: &ListenerStats, each: &mut impl FnMut(&str, &str)) {
        let settings = &self.service.settings;
        let yes = |is_so| if is_so { "yes" } else { "no" };
        for (name, value) in [
            ("maxbytes", stats.limit_bytes),
            ("maxconns", listener.connection_count_max),
            ("item_size_max", settings.value_bytes_max as u64),
            ("num_threads", listener.thread_count),
            ("idle_timeout", listener.idle_s_max),
            ("chunk_size", LINE_BYTES as u64),
            ("slab_chunk_max", REGION_BYTES as u64),
        ] {
            each(name, &value.to_string());
        }
        let evicts = self.partition.processor.settings().eviction != kv::Eviction::None;
        for (name, value) in [
            ("evictions", if evicts { "on" } else { "off" }),
            ("cas_enabled", "yes"),
            ("flush_enabled", yes(settings.allows_flush)),
            ("maxconns_fast", "yes"),
            ("binding_protocol", "auto-negotiate"),
            ("client_flags_size", "4"),
            ("inter", "NULL"),
            ("domain_socket", "NULL"),
            ("stat_key_prefix", ":"),
            ("growth_factor", "1"),
            ("hash_algorithm", "none"),
            ("memory_file", "(null)"),
            ("auth_enabled_ascii", yes(listener.trust.authenticates)),
            ("ssl_enabled", yes(listener.trust.tls.is_some())),
        ] {
            each(name, value);
        }
        if let Some(verify_mode) = listener.trust.tls {
            each("ssl_verify_mode", &verify_mode.to_string());
            each("ssl_min_version", "tlsv1.2");
        }
        ABSENT_NUMBERS.split(' ').for_each(|name| each(name, "0"));
        ABSENT_SWITCHES.split(' ').for_each(|name| each(name, "no"));
    }
}

fn items(stats: &PartitionStats, each: &mut impl FnMut(&str, &str)) {
    let (d, p) = (&stats.commands, &stats.processor);
    if p.pair_count == 0 {
        return;
    }
    let mut item = |name: &str, value: u64| each(&format!("items:1:{name}"), &value.to_string());
    for (name, value) in [
        ("number", p.pair_count),
        ("mem_requested", p.pair_bytes),
        ("evicted", p.evicted_count),
        ("evicted_unfetched", p.evicted_unread_count),
        ("outofmemory", d.no_memory_count),
        ("reclaimed", p.expired_count),
    ] {
        item(name, value);
    }
    ABSENT_OF_ITEMS.split(' ').for_each(|name| item(name, 0));
}

fn slabs(stats: &PartitionStats, each: &mut impl FnMut(&str, &str)) {
    const REGION: u64 = REGION_BYTES as u64;
    const LINE: u64 = LINE_BYTES as u64;
    let d = &stats.commands;
    let (chunks, used) = (stats.limit_bytes / LINE, stats.taken_bytes / LINE);
    for (name, value) in [
        ("chunk_size", LINE),
        ("chunks_per_page", REGION / LINE),
        ("total_pages", stats.limit_bytes / REGION),
        ("total_chunks", chunks),
        ("used_chunks", used),
        ("free_chunks", chunks.saturating_sub(used)),
        ("free_chunks_end", 0),
        ("get_hits", d.get_hit_count),
        ("cmd_set", d.set_count),
        ("delete_hits", d.delete_hit_count),
        ("incr_hits", d.increment_hit_count),
        ("decr_hits", d.decrement_hit_count),
        ("cas_hits", d.cas_hit_count),
        ("cas_badval", d.cas_bad_count),
        ("touch_hits", d.touch_hit_count),
    ] {
        each(&format!("1:{name}"), &value.to_string());
    }
    each("active_slabs", "1");
    each("total_malloced", &stats.limit_bytes.to_string());
}

/// The processor time of this process, user and system, s.
fn processor_time() -> [String; 2] {
    /// Of Linux on every architecture.
    const TICKS_PER_S: u64 = 100;
    let text = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // The name of the program, in parentheses, may contain spaces.
    let mut words = text.rsplit(')').next().unwrap_or_default().split_ascii_whitespace().skip(11);
    [(); 2].map(|()| {
        let ticks: u64 = words.next().and_then(|word| word.parse().ok()).unwrap_or(0);
        format!("{}.{:02}0000", ticks / TICKS_PER_S, ticks % TICKS_PER_S)
    })
}
