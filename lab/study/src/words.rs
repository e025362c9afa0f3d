//! Keys of headline numbers in words, for people. Units are left out: they stand with the number.

/// Keys whose words do not follow from their parts; also the beginnings of keys over depth, before `_read_qd32`.
const KNOWN_KEYS: &[(&str, &str)] = &[
    ("share_min", "least share of the ceiling"),
    ("batching_gain", "all kinds of batching over none"),
    ("gain_caravans_of_requests", "gain of caravans of requests"),
    ("gain_and_of_responses", "gain with caravans of responses too"),
    ("gain_and_delayed_doorbells", "gain with delayed doorbells too"),
    ("gain_and_warm_receives", "gain with warm receives too"),
    ("adaptive_p99_added_us", "added p99, adaptive doorbell"),
    ("fixed_p99_added_us", "added p99, fixed doorbell"),
    ("turn_p99_added_us", "added p99, doorbell of each turn"),
    ("bytes_per_idle_lane", "memory of an idle lane"),
    ("iops_per_cpu_1024_over_1", "IOPS per core, 1,024 lanes over 1"),
    ("iops_per_cpu_4096_over_1", "IOPS per core, 4,096 lanes over 1"),
    ("ceiling_1024_over_1", "the ceiling's IOPS per core, 1,024 connections over 1"),
    ("share_of_ceiling_1", "share of the ceiling, 1 lane"),
    ("share_of_ceiling_1024", "share of the ceiling, 1,024 lanes"),
    ("cpu_percent_0", "processor time, no lanes"),
    ("cpu_percent_1000", "processor time, 1,000 idle lanes"),
    ("cpu_percent_10000", "processor time, 10,000 idle lanes"),
    ("read_iops_gain", "reads, separate over shared lanes"),
    ("read_p9999_ratio", "p99.99 of reads, separate over shared lanes"),
    ("read_mean_ratio", "mean of reads, separate over shared lanes"),
    ("write_gain", "writes, separate over shared lanes"),
    ("perf_over_fio", "IOPS of nvlane perf over fio"),
    ("iops_over_rbd", "least IOPS of nvlane over fio's rbd engine"),
    ("rbd_added_p50_us", "most that nvlane adds to the p50 of fio's rbd engine"),
    ("right_over_wrong_core", "IOPS, threads on the right core over the wrong one"),
    ("load_over_wrong_core", "IOPS, placement by load over the wrong core"),
    ("iops_over_local", "IOPS of nvlane over the file itself"),
    ("iops_over_kernel", "IOPS of nvlane over the kernel's host and target"),
    ("iops_over_spdk", "IOPS of nvlane over SPDK's host and target"),
    ("spdks_host_on_nvlane_over_spdk", "IOPS of SPDK's host on nvlane's target over SPDK's"),
    ("caravans_gain_one_core", "gain of caravans, one core for each side"),
    ("caravans_gain_most_cores", "gain of caravans, the most cores"),
    ("iops_over_rdma", "IOPS of nvlane over the kernel's RDMA"),
    ("tls_over_clear", "IOPS with TLS over in cleartext"),
    ("cost_percent_4k", "IOPS lost to both digests, 4 KiB"),
    ("network_percent", "host's time in TCP, reads at depth 128, single"),
    ("network_percent_caravans", "host's time in TCP, reads at depth 128, caravans"),
    ("transmit_over_receive", "host's TCP, transmit over receive, single"),
    ("transmit_over_receive_caravans", "host's TCP, transmit over receive, caravans"),
    ("scheduling_us", "host's thread switches and wake-ups per read, single"),
    ("scheduling_us_caravans", "host's thread switches and wake-ups per read, caravans"),
    ("copies_percent", "host's time in copies, reads at depth 128, single"),
    ("copies_percent_caravans", "host's time in copies, reads at depth 128, caravans"),
    ("other_percent_max", "functions without a layer, most in a cell"),
    ("iops_beside_100_connects_over_alone", "IOPS beside 100 connects per second, over alone"),
    (
        "iops_beside_100_connects_over_other_target",
        "IOPS beside 100 connects per second, over those to another target",
    ),
    ("p99_beside_ffdhe4096_flood_over_alone", "p99 beside a flood of ffdhe4096, over alone"),
    (
        "p99_beside_ffdhe4096_flood_over_other_target",
        "p99 beside a flood of ffdhe4096, over that of another target",
    ),
    ("ffdhe4096_exponentiations_per_s", "ffdhe4096 exponentiations per second"),
    ("idle_lane_added_bytes", "memory that TLS adds to an idle lane"),
    ("idle_1000_lanes_cpu_percent", "processor time, 1,000 idle lanes with TLS"),
    ("ops_per_cpu_of_target", "operations per core of the target"),
    ("ops_per_cpu_of_both", "operations per core of host and target together"),
    ("gb_per_cpu_of_target", "GB/s per core of the target"),
    ("joules_per_million", "joules of a million operations"),
    ("watts", "watts"),
    ("hot_over_million_one", "one counter over a million, one reactor"),
    ("hot_over_million_two", "one counter over a million, two reactors"),
    ("rate_within_1ms_gain", "rate within 1 ms of p99.9, device queues over none"),
    ("ops_within_1ms_gain", "operations within 1 ms of p99.9, device queues over none"),
    ("arfs_over_on", "operations, aRFS over device queues"),
    ("polled_percent_1", "packets taken in by polling, 1 connection"),
    ("host_napi_id", "NAPI id of the host's socket"),
    ("target_napi_id", "NAPI id of the target's socket"),
];

/// Beginning, placeholder and ending of keys, and their words. `{}` is any text, and written in words; `#` is a number.
const FORMS: &[(&str, &str)] = &[
    ("knee_gain_{}_over_immediate", "rate at the knee, {} over immediate"),
    ("knee_iops_{}", "rate at the knee, {}"),
    ("share_{}", "share of the ceiling, {}"),
    ("over_sockets_{}", "IOPS over plain sockets, {}"),
    ("mib_per_s_max_{}", "largest throughput, {}"),
    ("cost_{}_percent", "IOPS lost to both digests, {}"),
    ("bytes_per_pair_16_#", "memory of a pair, key of 16 bytes and value of {} bytes"),
    ("in_place_from_{}", "size from which receiving in place pays, {}"),
    ("in_place_gain_{}", "gain of receiving in place, {}"),
    ("zero_copy_from_{}", "size from which zero copy pays, {}"),
    ("zero_copy_gain_{}", "gain of zero copy, {}"),
    ("{}_batch_added_p50_us", "p50 that a batch adds to one operation, {}"),
    ("{}_batch_added_p99_us", "p99 that a batch adds to one operation, {}"),
    ("{}_over_single", "operations per core, {} in a capsule over one"),
    ("{}_over_sparse", "operations per core, {} in a capsule over one with as few in flight"),
    ("{}_above_best", "hit ratio above the best simulated policy, {}"),
    ("{}_above_memcached", "hit ratio above memcached, {}"),
    ("{}_clients_share", "share of the ceiling, 16 clients, {}"),
    ("{}_clients_connection_kib", "memory of a connection, 16 clients, {}"),
    ("#_over_elements", "vectors of {} bytes, one command over one for each element"),
    ("#_over_fetch", "vectors of {} bytes, one command over retrieve and store"),
    ("#_batch_over_fetch", "vectors of {} bytes, commands in batches over retrieve and store"),
    ("get_lines_inline_#", "lines of a GET, pairs of up to {} bytes in the index"),
    ("get_lines_full_{}", "lines of a GET in full memory, key and value of {} bytes"),
    ("get_lines_{}", "lines of a GET, key and value of {} bytes"),
    ("put_lines_{}", "lines of a PUT, key and value of {} bytes"),
    ("utilisation_percent_inline_#", "keys and values in full memory, pairs of up to {} bytes in the index"),
    ("utilisation_percent_{}", "keys and values in full memory, key and value of {} bytes"),
    ("store_us_{}", "store, values of {} bytes"),
    ("delete_us_{}", "delete, values of {} bytes"),
    ("moved_per_store_{}", "pairs moved for a store, values of {} bytes"),
    ("rounding_percent_{}", "memory lost to rounding, values of {} bytes"),
    ("zipf_over_uniform_{}", "GETs per core, Zipf over uniform keys, {}"),
    ("largest_over_smallest_{}", "GETs per core, store of 512 MiB over one of 1 MiB, {}"),
    ("prefetch_gain_{}", "gain of prefetching in a partition, uniform keys, {}"),
    ("get_#_reactors_over_1", "gets of whole cores, a target with {} reactors over one reactor"),
    ("set_#_reactors_over_1", "sets of whole cores, a target with {} reactors over one reactor"),
    ("get_#_targets_over_1", "gets of whole cores, {} targets over one"),
    ("set_#_targets_over_1", "sets of whole cores, {} targets over one"),
    ("random_beside_{}_over_alone", "random reads of a program, beside {}s over alone"),
    ("sequential_beside_{}_over_alone", "sequential reads of a program, beside {}s over alone"),
    ("target_cores_{}", "cores that the target takes, {}s"),
    ("ops_per_cpu_of_target_{}", "operations per core of the target, {}"),
    ("ops_per_cpu_of_both_{}", "operations per core of host and target together, {}"),
    ("gb_per_cpu_of_target_{}", "GB/s per core of the target, {}"),
    ("joules_per_million_{}", "joules of a million operations, {}"),
    ("kops_per_watt_{}", "thousand operations per second for each watt, {}"),
    ("watts_{}", "watts, {}"),
    ("{}_zipf_small_ops_per_cpu", "operations per core, mix {}, Zipf, small values"),
    ("caravans_gain_{}", "gain of caravans, {}"),
    ("gain_without_offloads_{}", "gain without offloads, {}"),
    ("added_p50_us_{}", "p50 above the file itself, {}"),
    ("machine_time_over_{}_read_qd32", "machine's time for a read at depth 32, nvlane over {}"),
    ("iops_of_32_jobs_over_one_{}", "IOPS of 32 jobs of depth 1 over one of depth 32, reads, {}"),
    ("host_kernel_percent_{}", "host's time in the kernel, reads at depth 32, {}"),
    ("target_kernel_percent_{}", "target's time in the kernel, reads at depth 32, {}"),
    ("linear_share_{}", "throughput of the most cores over as many times one core, {}"),
    ("most_iops_{}", "IOPS of the most cores, {}"),
    ("gain_of_caravans_reads_#", "gain of caravans, {} % reads"),
    ("timer_#_added_p99_us", "added p99 at depth 8, doorbell timer of {} µs"),
    ("timer_#_iops_over_none", "IOPS at depth 128, doorbell timer of {} µs over none"),
    ("batch_#_iops_over_one", "IOPS, batches of {} commands over one"),
    ("batch_{}_iops_over_4k", "IOPS, batches of {} over 4 KiB"),
    ("{}_added_p50_us", "added p50, {}"),
    ("connect_{}_ms", "connect, {}"),
    ("memcached_{}", "memcached: {}"),
    ("nvme_{}", "NVMe: {}"),
    ("ops_gain_#", "operations, device queues over none, {} connections"),
    ("mean_ratio_#", "mean latency, device queues over none, {} connections"),
    ("p999_ratio_#", "p99.9, device queues over none, {} connections"),
    ("most_connections_within_1ms_{}", "most connections within 1 ms of p99.9, device queues {}"),
    ("neighbour_p999_ratio_{}", "p99.9 beside other load over alone, device queues {}"),
    ("rate_within_1ms_{}", "rate within 1 ms of p99.9, device queues {}"),
];

/// A headline key in words: `knee_iops_turn` is "rate at the knee, turn".
pub(crate) fn words(key: &str) -> String {
    if let Some((_, words)) = KNOWN_KEYS.iter().find(|(known, _)| *known == key) {
        return (*words).to_owned();
    }
    if let Some(told) = FORMS.iter().find_map(|(form, told)| Some(told.replace("{}", &placed(form, key)?))) {
        return told;
    }
    let mut words = String::new();
    for part in key.split('_') {
        let word = match part {
            "us" | "ms" | "percent" | "mib" | "kib" | "s" => continue,
            "per" if key.contains("mib_per_s") => continue,
            "iops" => "IOPS",
            "cpu" => "core",
            "p999" => "p99.9",
            "p9999" => "p99.99",
            "kv" => "key-value",
            "nvme" => "NVMe",
            "pdu" => "PDU",
            "ram" => "RAM",
            "rdma" => "RDMA",
            "spdk" => "SPDK",
            "spdks" => "SPDK's",
            "tls" => "TLS",
            "zipf" => "Zipf",
            other => other,
        };
        let is_depth = |depth: &&str| !depth.is_empty() && depth.bytes().all(|byte| byte.is_ascii_digit());
        if let Some(depth) = part.strip_prefix("qd").filter(is_depth) {
            words.push_str(if words.is_empty() { "depth " } else { ", depth " });
            words.push_str(depth);
            continue;
        }
        if !words.is_empty() {
            words.push(' ');
        }
        words.push_str(&size(word).unwrap_or_else(|| word.to_owned()));
    }
    words
}

/// The longest known beginning of a key over depth, and the rest: `iops_over_local_read` is (`iops_over_local`, `read`).
pub(crate) fn known_beginning(key: &str) -> Option<(&str, &str)> {
    let begins = |known: &str| {
        let rest = key.strip_prefix(known)?;
        let rest = if rest.is_empty() { rest } else { rest.strip_prefix('_')? };
        Some((&key[..known.len()], rest))
    };
    let found = KNOWN_KEYS.iter().filter_map(|(known, _)| begins(known));
    found.max_by_key(|(beginning, _)| beginning.len())
}

/// The text at the placeholder of a form, in words.
fn placed(form: &str, key: &str) -> Option<String> {
    let is_number = form.contains('#');
    let (before, after) = form.split_once(if is_number { "#" } else { "{}" })?;
    let text = key.strip_prefix(before)?.strip_suffix(after)?;
    match text {
        "" => None,
        text if is_number => text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.to_owned()),
        text => Some(words(text)),
    }
}

/// A size such as `64k`, with its unit.
fn size(word: &str) -> Option<String> {
    let units = [("k", "KiB"), ("m", "MiB"), ("g", "GiB")];
    let (digits, unit) = units.iter().find_map(|(letter, unit)| Some((word.strip_suffix(letter)?, unit)))?;
    let is_size = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    is_size.then(|| format!("{digits} {unit}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalogue;
    use crate::measured::of_rounds;

    #[test]
    fn keys_are_told_in_words() {
        for (key, told) in [
            ("adaptive_p99_added_us", "added p99, adaptive doorbell"),
            ("share_pdu_host_read_qd32", "share of the ceiling, PDU host read, depth 32"),
            ("gain_qd1", "gain, depth 1"),
            ("mib_per_s_max_read", "largest throughput, read"),
            ("set_4k_mib_per_s", "set 4 KiB"),
            ("knee_gain_fixed_over_immediate", "rate at the knee, fixed over immediate"),
            ("64_over_elements", "vectors of 64 bytes, one command over one for each element"),
            ("memcached_p999_ratio_16", "memcached: p99.9, device queues over none, 16 connections"),
            ("p999_ratio_qd1", "p99.9 ratio, depth 1"),
            ("connect_ffdhe2048_tls_ms", "connect, ffdhe2048 TLS"),
        ] {
            assert_eq!(words(key), told);
        }
    }

    #[test]
    fn a_key_over_depth_begins_with_its_kind() {
        assert_eq!(known_beginning("iops_over_local_read"), Some(("iops_over_local", "read")));
        assert_eq!(known_beginning("perf_over_fio"), Some(("perf_over_fio", "")));
        assert_eq!(known_beginning("iops_over_locality"), None);
    }

    #[test]
    fn every_number_of_an_experiment_has_other_words() {
        for entry in catalogue::ALL {
            let experiment = entry.make();
            let columns: Vec<_> = entry.about.columns().chain([entry.about.judged_by]).collect();
            let round = || vec![columns.iter().map(|name| (*name, 1.0)).collect()];
            let cells = experiment.cells().into_iter().map(|cell| (cell, round()));
            let headline = experiment.headline(&of_rounds(cells.collect()));
            let mut told: Vec<String> = headline.iter().map(|headline| words(&headline.key)).collect();
            assert!(told.iter().all(|words| !words.contains('_') && !words.is_empty()), "{told:?}");
            let count = told.len();
            told.sort();
            told.dedup();
            assert_eq!(told.len(), count, "{}: {told:?}", entry.about.name);
        }
    }
}
