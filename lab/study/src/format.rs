//! Formatting of numbers and names for people.

/// A number with about three significant digits, and k, M or G if it is large.
pub(crate) fn number(value: f64) -> String {
    let size = value.abs();
    let (scaled, unit) = match size {
        _ if size >= 999.5e6 => (value / 1e9, " G"),
        _ if size >= 999.5e3 => (value / 1e6, " M"),
        _ if size >= 9_999.5 => (value / 1e3, " k"),
        _ => (value, ""),
    };
    format!("{}{unit}", plain(scaled))
}

/// A number with about three significant digits.
fn plain(value: f64) -> String {
    let size = value.abs();
    let decimals = match size {
        _ if !(0.000_05..99.95).contains(&size) => 0,
        _ if size >= 9.995 => 1,
        _ if size >= 0.01 => 2,
        _ => 4,
    };
    format!("{value:.decimals$}")
}

/// A number with the unit that its key ends in or implies: `p99_us`, `cpu_percent_1000`, `bytes_per_idle_lane`,
/// `batching_gain`. Quotients are named `_over_`, differences `_above_`.
pub(crate) fn quantity(name: &str, value: f64) -> String {
    let has = |word: &str| name.split('_').any(|part| part == word);
    let unit = match () {
        () if has("percent") => " %",
        () if has("us") => return micros(value),
        () if has("ms") => return micros(value * 1e3),
        () if has("mib") => " MiB/s",
        () if has("kib") => return bytes(value * 1024.0),
        () if has("bytes") || has("from") => return bytes(value),
        () if has("gain") || has("ratio") || has("over") => "×",
        () => "",
    };
    format!("{}{unit}", number(value))
}

/// A time in microseconds, in the unit that suits it.
pub(crate) fn micros(value: f64) -> String {
    match value.abs() {
        size if size >= 999_950.0 => format!("{} s", plain(value / 1e6)),
        size if size >= 999.5 => format!("{} ms", plain(value / 1e3)),
        _ => format!("{} µs", plain(value)),
    }
}

/// A value of a table whose head names it with [`value_name`]: times from a millisecond on carry their own unit.
pub(crate) fn table_number(name: &str, value: f64) -> String {
    match unit_of(name) {
        Some(us) if value.abs() * us >= 999.5 => micros(value * us),
        Some(us) if us < 1.0 && value.abs() >= 9_999.5 => micros(value * us),
        _ => number(value),
    }
}

/// The spread of a value of a table, in a unit of its own where the median has one.
pub(crate) fn table_spread(name: &str, median: f64, spread: f64) -> String {
    match unit_of(name) {
        Some(us) if table_number(name, median) != number(median) => micros(spread * us),
        _ => number(spread),
    }
}

/// Microseconds of one of a value's unit, if it is a time in microseconds or nanoseconds.
fn unit_of(name: &str) -> Option<f64> {
    [("_us", 1.0), ("_ns", 1e-3)].into_iter().find_map(|(ending, us)| name.ends_with(ending).then_some(us))
}

/// A percentage with two significant digits of its distance from a hundred: 97, 99.87, 99.9951.
pub(crate) fn nearly_all(percent: f64) -> String {
    let lacking = 100.0 - percent;
    #[allow(clippy::cast_possible_truncation)] // At most six decimals.
    let decimals =
        if lacking > 0.0 { (1.0 - (lacking + 1e-9).log10().floor()).clamp(0.0, 6.0) as usize } else { 0 };
    let text = format!("{percent:.decimals$}");
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

pub(crate) fn bytes(value: f64) -> String {
    let units = ["bytes", "KiB", "MiB", "GiB", "TiB"];
    let (mut value, mut unit) = (value, 0);
    while value.abs() >= 1024.0 && unit + 1 < units.len() {
        (value, unit) = (value / 1024.0, unit + 1);
    }
    format!("{} {}", plain(value), units[unit])
}

/// A number without trailing zeroes, for the ticks of an axis.
pub(crate) fn tick(value: f64) -> String {
    let text = number(value);
    let (digits, unit) = text.split_once(' ').map_or((text.as_str(), ""), |(digits, unit)| (digits, unit));
    let short =
        if digits.contains('.') { digits.trim_end_matches('0').trim_end_matches('.') } else { digits };
    format!("{short}{unit}")
}

/// Label and unit of a value, from its key, which ends in the unit.
pub(crate) fn value_name(name: &str) -> String {
    if let Some((side, layer)) = side_and_layer(name) {
        return format!("{side} {layer} µs");
    }
    let known = match name {
        "iops" => "IOPS",
        "ops" => "operations per second",
        "ops_per_cpu" => "operations per core",
        "whole_cores_ops" => "operations of whole cores",
        "target_ops_per_cpu" => "operations per core, target",
        "host_ops_per_cpu" => "operations per core, host",
        "both_ops_per_cpu" => "operations per core, both",
        "target_gb_per_cpu" => "GB/s per core, target",
        "both_gb_per_cpu" => "GB/s per core, both",
        "gb_per_s" => "GB/s",
        "joules_per_million" => "joules per million operations",
        "is_shared" => "shared cores",
        "iops_per_cpu" => "IOPS per core",
        "ceiling_iops" => "ceiling IOPS",
        "ceiling_iops_per_cpu" => "ceiling IOPS per core",
        "offered_iops" => "offered IOPS",
        "write_mib_per_s" => "writer's MiB/s",
        "memory_mib" => "target MiB",
        "mib_per_s" => "MiB/s",
        "share" => "share of ceiling",
        "over_sockets" => "over plain sockets",
        "iops_over_sockets" => "IOPS over plain sockets",
        "p99_over_sockets" => "p99 over plain sockets",
        "lane_p99_worst_over_median" => "p99, worst lane over median",
        "share_shared_cache" => "share, cores share a cache",
        "share_own_caches" => "share, each core has its own caches",
        "p999_us" => "p99.9 µs",
        "p9999_us" => "p99.99 µs",
        "host_us" => "host µs/op",
        "target_us" => "target µs/op",
        "machine_us" => "machine µs/op",
        "iops_per_side_core" => "IOPS per core of a side",
        "cores_per_side" => "cores per side",
        "host_user_us" => "host user µs/op",
        "host_kernel_us" => "host kernel µs/op",
        "target_user_us" => "target user µs/op",
        "target_kernel_us" => "target kernel µs/op",
        _ => "",
    };
    if !known.is_empty() {
        return known.to_owned();
    }
    for (ending, unit) in [("_us", "µs"), ("_ns", "ns"), ("_percent", "%"), ("_s", "s")] {
        if let Some(what) = name.strip_suffix(ending) {
            return format!("{} {unit}", what.replace('_', " "));
        }
    }
    name.split('_').map(|part| if part == "cpu" { "core" } else { part }).collect::<Vec<_>>().join(" ")
}

/// Side and layer of a key of the experiment `layers`, where its words do not say them.
fn side_and_layer(name: &str) -> Option<(&str, &'static str)> {
    let (side, layer) = name.strip_suffix("_us")?.split_once('_')?;
    let layer = match layer {
        "nvme" => "NVMe/TCP",
        "transmit" => "TCP transmit",
        "receive" => "TCP receive",
        _ => return None,
    };
    matches!(side, "host" | "target").then_some((side, layer))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_three_figures_or_so() {
        for (value, text) in [
            (0.0, "0"),
            (0.000_018, "0"),
            (0.004, "0.0040"),
            (0.912_3, "0.91"),
            (8.76, "8.76"),
            (53.02, "53.0"),
            (910.4, "910"),
            (9_321.0, "9321"),
            (107_820.0, "108 k"),
            (1_443_000.0, "1.44 M"),
            (2.5e9, "2.50 G"),
            (-12_500.0, "-12.5 k"),
        ] {
            assert_eq!(number(value), text);
        }
        assert_eq!([0.5, 20.0, 1e6, 1.5e6, 0.0].map(tick), ["0.5", "20", "1M", "1.5M", "0"]);
    }

    #[test]
    fn numbers_have_the_unit_of_their_name() {
        for (name, value, text) in [
            ("cpu_percent_1000", 0.031, "0.03 %"),
            ("adaptive_p99_added_us", 1.5, "1.50 µs"),
            ("bytes_per_idle_lane", 4668.0, "4.56 KiB"),
            ("batching_gain", 4.2, "4.20×"),
            ("iops_per_cpu_1024_over_1", 0.9, "0.90×"),
            ("share_min", 0.9, "0.90"),
            ("steady_above_best", -0.0077, "-0.0077"),
            ("knee_iops_turn", 5e5, "500 k"),
        ] {
            assert_eq!(quantity(name, value), text);
        }
        assert_eq!([100.0, 24_684_092.0 * 1024.0].map(bytes), ["100 bytes", "23.5 GiB"]);
    }

    #[test]
    fn percentages_near_a_hundred_tell_how_near() {
        let percents = [0.0, 50.0, 90.0, 97.04, 99.0, 99.9, 99.87, 99.99, 99.9951, 100.0, 12.34];
        let told = ["0", "50", "90", "97", "99", "99.9", "99.87", "99.99", "99.9951", "100", "12"];
        assert_eq!(percents.map(nearly_all), told);
        assert_eq!(nearly_all(100.0 * (1.0 - 0.001)), "99.9");
    }

    #[test]
    fn times_have_the_unit_that_suits_them() {
        assert_eq!([8.76, 999.0, 12_100.0, 2.5e6].map(micros), ["8.76 µs", "999 µs", "12.1 ms", "2.50 s"]);
        assert_eq!(quantity("p99_us", 12_100.0), "12.1 ms");
        assert_eq!(table_number("p99_us", 12_100.0), "12.1 ms");
        assert_eq!(table_number("p99_us", 121.0), "121");
        assert_eq!(table_number("iops", 12_100.0), "12.1 k");
        assert_eq!([845.0, 8.93e6].map(|ns| table_number("target_ns", ns)), ["845", "8.93 ms"]);
        assert_eq!(table_spread("p99_us", 12_100.0, 219.0), "219 µs");
        assert_eq!(table_spread("p99_us", 121.0, 3.0), "3.00");
        assert_eq!(table_spread("iops", 12_100.0, 219.0), "219");
    }

    #[test]
    fn values_are_named_with_their_unit() {
        let names =
            ["iops", "p50_us", "ceiling_p99_us", "cpu_percent", "bytes_per_idle_lane"].map(value_name);
        assert_eq!(names, ["IOPS", "p50 µs", "ceiling p99 µs", "cpu %", "bytes per idle lane"]);
        let names = ["host_nvme_us", "target_receive_us", "target_copies_us"].map(value_name);
        assert_eq!(names, ["host NVMe/TCP µs", "target TCP receive µs", "target copies µs"]);
    }
}
