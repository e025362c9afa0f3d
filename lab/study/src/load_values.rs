//! Values taken from the report of a load, by name.

use std::time::Duration;

use load::report::Report;

use crate::cell::Values;

/// Percentiles of latency, by the names of their values.
pub(crate) const PERCENTILES: [(&str, f64); 5] =
    [("p50_us", 50.0), ("p90_us", 90.0), ("p99_us", 99.0), ("p999_us", 99.9), ("p9999_us", 99.99)];

/// The name of a value of [`values`] as another program names it.
pub(crate) fn value_named(name: &str) -> Option<&'static str> {
    const OTHERS: [&str; 11] = [
        "iops",
        "mean_us",
        "mib_per_s",
        "host_us",
        "host_user_us",
        "host_kernel_us",
        "machine_us",
        "target_us",
        "target_user_us",
        "target_kernel_us",
        "iops_per_cpu",
    ];
    let names = OTHERS.into_iter().chain(PERCENTILES.map(|(percentile, _)| percentile));
    names.into_iter().find(|known| *known == name)
}

/// Throughput, latency and processor time of a load.
pub(crate) fn values(report: &Report) -> Values {
    let latency = report.total.latency();
    let mut values = Values::from([("iops", report.total.iops), ("mean_us", latency.mean_ns / 1e3)]);
    for (name, percent) in PERCENTILES {
        if let Some(ns) = latency.percentile_ns(percent) {
            values.insert(name, us(ns));
        }
    }
    values.insert("mib_per_s", report.total.bytes_per_s / f64::from(1 << 20));
    if let Some(host) = report.cpu.generator {
        values.insert("host_us", host.ns_per_operation() / 1e3);
        values.insert("host_user_us", host.user_ns_per_operation / 1e3);
        values.insert("host_kernel_us", host.system_ns_per_operation / 1e3);
    }
    if let Some(machine_ns) = report.cpu.machine_ns_per_operation {
        values.insert("machine_us", machine_ns / 1e3);
    }
    if let Some(target) = report.cpu.target {
        values.insert("target_us", target.ns_per_operation() / 1e3);
        values.insert("target_user_us", target.user_ns_per_operation / 1e3);
        values.insert("target_kernel_us", target.system_ns_per_operation / 1e3);
        let cores = (target.user_percent + target.system_percent) / 100.0;
        if cores > 0.0 {
            values.insert("iops_per_cpu", report.total.iops / cores);
        }
    }
    values
}

/// Commands of the host's sends and receives, and how long commands waited for their doorbell.
pub(crate) fn batch_values(report: &Report) -> Values {
    let sum = |counter: &str| -> f64 {
        report.lanes.iter().filter_map(|lane| lane.counters.get(counter)?.as_f64()).sum()
    };
    let doorbell = report.phases.iter().find(|phase| phase.phase == "doorbell");
    Values::from([
        ("commands_per_send", sum("commands") / sum("sends").max(1.0)),
        ("commands_per_receive", sum("commands") / sum("receives").max(1.0)),
        ("doorbell_wait_us", doorbell.map_or(0.0, |phase| us(phase.mean_ns))),
    ])
}

/// Latencies of a load, us, and their numbers of operations.
pub(crate) fn bins(report: &Report) -> Vec<(f64, u64)> {
    report.total.latency().bins.iter().map(|bin| (us(bin.middle), bin.count)).collect()
}

/// Nanoseconds in microseconds.
pub(crate) fn us(ns: u64) -> f64 {
    Duration::from_nanos(ns).as_secs_f64() * 1e6
}
