//! The form for programs: fio's JSON, so that its tools read our results, and an object `nvlane` with ours.
//!
//! Where fio has no place for something, it is in the `nvlane` object only; where we do not measure what fio does
//! (system calls per submission, page faults), its field is zero. In an open loop `clat_ns` is the service time and
//! `lat_ns` the response time, from the moment the operation was due.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::Value;

use super::{KindResult, Latency, Report, Sample};
use crate::environment::Date;
use crate::workload::Kind;

/// Which bins fio's tools can take: their largest latency, ns. Longer ones are counted there.
const FIO_LATENCY_NS_MAX: u64 = 17_112_760_320;

/// The report as JSON text. With `bins` the histograms are in it, as in fio's `json+`.
pub fn to_string(report: &Report, bins: bool) -> String {
    text(&document(report, bins))
}

fn text(document: &Object<'_>) -> String {
    serde_json::to_string_pretty(document).expect("every key is a string and nothing else can fail")
}

/// A JSON object with its keys in this order.
struct Object<'a>(Vec<(String, Member<'a>)>);

/// A value of an [`Object`].
#[derive(Serialize)]
#[serde(untagged)]
enum Member<'a> {
    Value(Value),
    Object(Object<'a>),
    Jobs([Object<'a>; 1]),
    Report(&'a Report),
}

impl Serialize for Object<'_> {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(key, value)| (key, value)))
    }
}

macro_rules! members_of {
    ($($type:ty),*) => {$(
        impl From<$type> for Member<'_> {
            fn from(value: $type) -> Self {
                Self::Value(value.into())
            }
        }
    )*};
}

members_of!(u32, u64, f64, String);

impl<'a> From<Object<'a>> for Member<'a> {
    fn from(object: Object<'a>) -> Self {
        Self::Object(object)
    }
}

fn object<'a, Key: Into<String>, Value: Into<Member<'a>>>(
    members: impl IntoIterator<Item = (Key, Value)>,
) -> Object<'a> {
    Object(members.into_iter().map(|(key, value)| (key.into(), value.into())).collect())
}

fn document(report: &Report, bins: bool) -> Object<'_> {
    let environment = &report.environment;
    let seconds = environment.unix_ms / 1000;
    object::<_, Member<'_>>([
        ("fio version", format!("nvlane-{}", environment.nvlane_version).into()),
        ("timestamp", seconds.into()),
        ("timestamp_ms", environment.unix_ms.into()),
        ("time", Date::from_unix(seconds).ctime().into()),
        ("jobs", Member::Jobs([job(report, bins)])),
        ("nvlane", Member::Report(report)),
    ])
}

fn job(report: &Report, bins: bool) -> Object<'static> {
    let generator = report.cpu.generator.unwrap_or_default();
    let [latency_ns, latency_us, latency_ms] = latency_shares(report.total.latency());
    let has_failed = report.total.error_count + report.counters.mismatch_count > 0;
    let depths = || none(&["0", "4", "8", "16", "32", "64", ">=64"]);
    object::<_, Member<'_>>([
        ("jobname", report.name.clone().into()),
        ("groupid", 0u32.into()),
        ("error", u32::from(has_failed).into()),
        ("eta", 0u32.into()),
        ("elapsed", report.elapsed_ns.div_ceil(1_000_000_000).into()),
        ("job options", options(report).into()),
        ("read", direction(report, Kind::Read, bins).into()),
        ("write", direction(report, Kind::Write, bins).into()),
        ("trim", direction(report, Kind::Trim, bins).into()),
        (
            "sync",
            object::<_, Member<'_>>([
                ("total_ios", 0u32.into()),
                ("lat_ns", latency(None, false, false).into()),
            ])
            .into(),
        ),
        ("job_runtime", (report.elapsed_ns / 1_000_000).into()),
        ("usr_cpu", generator.user_percent.into()),
        ("sys_cpu", generator.system_percent.into()),
        ("ctx", (generator.voluntary_switches + generator.involuntary_switches).into()),
        ("majf", 0u32.into()),
        ("minf", 0u32.into()),
        ("iodepth_level", depth_shares(report).into()),
        ("iodepth_submit", depths().into()),
        ("iodepth_complete", depths().into()),
        ("latency_ns", latency_ns.into()),
        ("latency_us", latency_us.into()),
        ("latency_ms", latency_ms.into()),
        ("latency_depth", report.workload.depth.into()),
        ("latency_target", 0u32.into()),
        ("latency_percentile", 100.0.into()),
        ("latency_window", 0u32.into()),
    ])
}

/// The workload in fio's option names; all values are strings.
fn options(report: &Report) -> Object<'static> {
    let workload = &report.workload;
    let mut options = vec![
        ("name", report.name.clone()),
        ("ioengine", "nvlane".to_owned()),
        ("filename", report.target.clone()),
        ("rw", workload.pattern.to_owned()),
        (if workload.sizes.contains('/') { "bssplit" } else { "bs" }, workload.sizes.clone()),
        ("iodepth", workload.depth.to_string()),
        ("numjobs", workload.lanes.to_string()),
        ("ramp_time", format!("{}s", workload.warm_up_s)),
        ("randseed", workload.seed.to_string()),
        ("random_distribution", workload.distribution.replace("uniform", "random")),
    ];
    // Readers of results want a size even if there are several.
    if workload.sizes.contains('/') {
        options.push(("bs", workload.size_bytes_max.to_string()));
    }
    if matches!(workload.pattern, "rw" | "randrw") {
        options.push(("rwmixread", workload.read_percent.to_string()));
    }
    if let Some(runtime_s) = workload.runtime_s {
        options.push(("runtime", format!("{runtime_s}s")));
        options.push(("time_based", "1".to_owned()));
    }
    if let Some(count) = workload.operation_limit {
        options.push(("number_ios", count.to_string()));
    }
    if let (Some(rate), Some(arrival)) = (workload.rate_per_s, workload.arrival) {
        options.push(("rate_iops", format!("{rate:.0}")));
        options.push(("rate_process", arrival.replace("constant", "linear")));
    }
    if workload.verify {
        options.push(("verify", "nvlane".to_owned()));
    }
    object(options)
}

fn direction(report: &Report, kind: Kind, bins: bool) -> Object<'static> {
    let result = report.kind(kind);
    let service = result.map(|result| &result.service);
    let response = result.map(KindResult::latency);
    let number = |number: fn(&KindResult) -> f64| result.map_or(0.0, number);
    let (bytes, operations) = result.map_or((0, 0), |result| (result.bytes, result.operations));
    let bytes_per_s = number(|result| result.bytes_per_s);
    let total = report.total.bytes_per_s;
    let of_series = |values: fn(&Sample) -> &BTreeMap<&'static str, f64>| {
        let values =
            report.series.iter().map(|sample| values(sample).get(kind.name()).copied().unwrap_or(0.0));
        Series::of(&values.collect::<Vec<_>>())
    };
    let bandwidth = of_series(|sample| &sample.bytes_per_s_by_kind);
    let iops = of_series(|sample| &sample.iops_by_kind);
    object::<_, Member<'_>>([
        ("io_bytes", bytes.into()),
        ("io_kbytes", (bytes / 1024).into()),
        ("bw_bytes", whole(bytes_per_s).into()),
        ("bw", whole(bytes_per_s / 1024.0).into()),
        ("iops", number(|result| result.iops).into()),
        ("runtime", if operations > 0 { report.elapsed_ns / 1_000_000 } else { 0 }.into()),
        ("total_ios", operations.into()),
        ("short_ios", 0u32.into()),
        ("drop_ios", 0u32.into()),
        ("slat_ns", latency(None, false, false).into()),
        ("clat_ns", latency(service, true, bins).into()),
        // Only where it differs is it worth its own percentiles.
        ("lat_ns", latency(response, report.workload.arrival.is_some(), false).into()),
        ("bw_min", whole(bandwidth.min / 1024.0).into()),
        ("bw_max", whole(bandwidth.max / 1024.0).into()),
        ("bw_agg", if total > 0.0 { bytes_per_s * 100.0 / total } else { 0.0 }.into()),
        ("bw_mean", (bandwidth.mean / 1024.0).into()),
        ("bw_dev", (bandwidth.stddev / 1024.0).into()),
        ("bw_samples", bandwidth.count.into()),
        ("iops_min", whole(iops.min).into()),
        ("iops_max", whole(iops.max).into()),
        ("iops_mean", iops.mean.into()),
        ("iops_stddev", iops.stddev.into()),
        ("iops_samples", iops.count.into()),
    ])
}

fn latency(latency: Option<&Latency>, percentiles: bool, bins: bool) -> Object<'static> {
    let none = Latency::default();
    let latency = latency.unwrap_or(&none);
    let mut members = object::<_, Member<'_>>([
        ("min", latency.min_ns.into()),
        ("max", latency.max_ns.into()),
        ("mean", latency.mean_ns.into()),
        ("stddev", latency.stddev_ns.into()),
        ("N", latency.count.into()),
    ]);
    if percentiles && !latency.percentiles.is_empty() {
        let percentile = latency.percentiles.iter().map(|(percent, ns)| (format!("{percent:.6}"), *ns));
        members.0.push(("percentile".to_owned(), object(percentile).into()));
    }
    // fio_jsonplus_clat2csv stumbles over bins that are there but empty.
    if bins && latency.count > 0 {
        members.0.push(("bins".to_owned(), fio_bins(latency).into()));
    }
    members
}

/// Middle of each bin and its count, with all that is too long for fio's tools in their last one.
fn fio_bins(latency: &Latency) -> Object<'static> {
    let mut bins: Vec<(u64, u64)> = Vec::new();
    for bin in &latency.bins {
        let middle = bin.middle.min(FIO_LATENCY_NS_MAX);
        match bins.last_mut() {
            Some((last, count)) if *last == middle => *count += bin.count,
            _ => bins.push((middle, bin.count)),
        }
    }
    object(bins.into_iter().map(|(middle, count)| (middle.to_string(), count)))
}

/// Bounds of fio's coarse table of latencies, in each of its units.
const BOUNDS: [u64; 10] = [2, 4, 10, 20, 50, 100, 250, 500, 750, 1000];

/// Percent of all operations between each bound and the one before, in ns, us and ms.
fn latency_shares(latency: &Latency) -> [Object<'static>; 3] {
    let total = latency.count.max(1) as f64;
    let mut bins = latency.bins.iter().peekable();
    let mut below = |bound_ns: u64| {
        let mut count = 0;
        while let Some(bin) = bins.next_if(|bin| bin.middle < bound_ns) {
            count += bin.count;
        }
        count as f64 * 100.0 / total
    };
    let mut unit = |unit_ns: u64| {
        let share = |bound: u64| (bound.to_string(), below(bound * unit_ns));
        object(BOUNDS.into_iter().map(share))
    };
    let (ns, us, mut ms) = (unit(1), unit(1_000), unit(1_000_000));
    ms.0.push(("2000".to_owned(), below(2_000_000_000).into()));
    ms.0.push((">=2000".to_owned(), below(u64::MAX).into()));
    [ns, us, ms]
}

/// Percent of the operations by the depth at which they were sent.
fn depth_shares(report: &Report) -> Object<'static> {
    let levels = report.counters.depth_levels;
    let total = levels.iter().sum::<u64>().max(1) as f64;
    let names = ["1", "2", "4", "8", "16", "32", ">=64"];
    object(names.into_iter().zip(levels).map(|(name, count)| (name, count as f64 * 100.0 / total)))
}

/// What we do not measure.
fn none(names: &[&str]) -> Object<'static> {
    object(names.iter().map(|&name| (name, 0.0)))
}

/// The nearest whole number.
fn whole(value: f64) -> u64 {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "float casts saturate")]
    let whole = value.round() as u64;
    whole
}

/// Fields that fio reports for a series.
#[derive(Default)]
struct Series {
    count: u64,
    min: f64,
    max: f64,
    mean: f64,
    stddev: f64,
}

impl Series {
    fn of(values: &[f64]) -> Self {
        if values.iter().all(|&value| value == 0.0) {
            return Self::default();
        }
        let count = values.len() as f64;
        let mean = values.iter().sum::<f64>() / count;
        let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / count;
        Self {
            count: values.len() as u64,
            min: values.iter().copied().fold(f64::INFINITY, f64::min),
            max: values.iter().copied().fold(0.0, f64::max),
            mean,
            stddev: variance.sqrt(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::example;
    use super::*;
    use crate::workload::{Arrival, Pace};

    fn parsed(pace: Pace, bins: bool) -> Value {
        serde_json::from_str(&to_string(&example::report(pace), bins)).unwrap()
    }

    #[test]
    fn the_whole_document() {
        let mut report = example::report(Pace::Closed);
        // The percentiles have a test of their own.
        for result in report.kinds.iter_mut().chain([&mut report.total]) {
            result.service.percentiles.retain(|&(percent, _)| percent == 99.0);
        }
        insta::assert_snapshot!(to_string(&report, false), @r#"
            {
              "fio version": "nvlane-0.1.0",
              "timestamp": 1735689599,
              "timestamp_ms": 1735689599123,
              "time": "Tue Dec 31 23:59:59 2024",
              "jobs": [
                {
                  "jobname": "randrw",
                  "groupid": 0,
                  "error": 1,
                  "eta": 0,
                  "elapsed": 2,
                  "job options": {
                    "name": "randrw",
                    "ioengine": "nvlane",
                    "filename": "127.0.0.1:4420",
                    "rw": "randrw",
                    "bs": "4k",
                    "iodepth": "32",
                    "numjobs": "1",
                    "ramp_time": "1s",
                    "randseed": "1",
                    "random_distribution": "random",
                    "rwmixread": "70",
                    "runtime": "10s",
                    "time_based": "1"
                  },
                  "read": {
                    "io_bytes": 2867200,
                    "io_kbytes": 2800,
                    "bw_bytes": 1433600,
                    "bw": 1400,
                    "iops": 350.0,
                    "runtime": 2000,
                    "total_ios": 700,
                    "short_ios": 0,
                    "drop_ios": 0,
                    "slat_ns": {
                      "min": 0,
                      "max": 0,
                      "mean": 0.0,
                      "stddev": 0.0,
                      "N": 0
                    },
                    "clat_ns": {
                      "min": 20000,
                      "max": 119600,
                      "mean": 69800.0,
                      "stddev": 28850.970305841907,
                      "N": 700,
                      "percentile": {
                        "99.000000": 118272
                      }
                    },
                    "lat_ns": {
                      "min": 20000,
                      "max": 119600,
                      "mean": 69800.0,
                      "stddev": 28850.970305841907,
                      "N": 700
                    },
                    "bw_min": 0,
                    "bw_max": 2800,
                    "bw_agg": 69.93006993006993,
                    "bw_mean": 1400.0,
                    "bw_dev": 1400.0,
                    "bw_samples": 2,
                    "iops_min": 0,
                    "iops_max": 700,
                    "iops_mean": 350.0,
                    "iops_stddev": 350.0,
                    "iops_samples": 2
                  },
                  "write": {
                    "io_bytes": 1232896,
                    "io_kbytes": 1204,
                    "bw_bytes": 616448,
                    "bw": 602,
                    "iops": 150.5,
                    "runtime": 2000,
                    "total_ios": 301,
                    "short_ios": 0,
                    "drop_ios": 0,
                    "slat_ns": {
                      "min": 0,
                      "max": 0,
                      "mean": 0.0,
                      "stddev": 0.0,
                      "N": 0
                    },
                    "clat_ns": {
                      "min": 20700,
                      "max": 30000000000,
                      "mean": 99737840.53156146,
                      "stddev": 1722296271.102387,
                      "N": 301,
                      "percentile": {
                        "99.000000": 119296
                      }
                    },
                    "lat_ns": {
                      "min": 20700,
                      "max": 30000000000,
                      "mean": 99737840.53156146,
                      "stddev": 1722296271.102387,
                      "N": 301
                    },
                    "bw_min": 0,
                    "bw_max": 1204,
                    "bw_agg": 30.06993006993007,
                    "bw_mean": 602.0,
                    "bw_dev": 602.0,
                    "bw_samples": 2,
                    "iops_min": 0,
                    "iops_max": 301,
                    "iops_mean": 150.5,
                    "iops_stddev": 150.5,
                    "iops_samples": 2
                  },
                  "trim": {
                    "io_bytes": 0,
                    "io_kbytes": 0,
                    "bw_bytes": 0,
                    "bw": 0,
                    "iops": 0.0,
                    "runtime": 0,
                    "total_ios": 0,
                    "short_ios": 0,
                    "drop_ios": 0,
                    "slat_ns": {
                      "min": 0,
                      "max": 0,
                      "mean": 0.0,
                      "stddev": 0.0,
                      "N": 0
                    },
                    "clat_ns": {
                      "min": 0,
                      "max": 0,
                      "mean": 0.0,
                      "stddev": 0.0,
                      "N": 0
                    },
                    "lat_ns": {
                      "min": 0,
                      "max": 0,
                      "mean": 0.0,
                      "stddev": 0.0,
                      "N": 0
                    },
                    "bw_min": 0,
                    "bw_max": 0,
                    "bw_agg": 0.0,
                    "bw_mean": 0.0,
                    "bw_dev": 0.0,
                    "bw_samples": 0,
                    "iops_min": 0,
                    "iops_max": 0,
                    "iops_mean": 0.0,
                    "iops_stddev": 0.0,
                    "iops_samples": 0
                  },
                  "sync": {
                    "total_ios": 0,
                    "lat_ns": {
                      "min": 0,
                      "max": 0,
                      "mean": 0.0,
                      "stddev": 0.0,
                      "N": 0
                    }
                  },
                  "job_runtime": 2000,
                  "usr_cpu": 0.015,
                  "sys_cpu": 0.025,
                  "ctx": 15,
                  "majf": 0,
                  "minf": 0,
                  "iodepth_level": {
                    "1": 0.0999000999000999,
                    "2": 0.1998001998001998,
                    "4": 0.3996003996003996,
                    "8": 0.7992007992007992,
                    "16": 1.5984015984015985,
                    "32": 96.90309690309691,
                    ">=64": 0.0
                  },
                  "iodepth_submit": {
                    "0": 0.0,
                    "4": 0.0,
                    "8": 0.0,
                    "16": 0.0,
                    "32": 0.0,
                    "64": 0.0,
                    ">=64": 0.0
                  },
                  "iodepth_complete": {
                    "0": 0.0,
                    "4": 0.0,
                    "8": 0.0,
                    "16": 0.0,
                    "32": 0.0,
                    "64": 0.0,
                    ">=64": 0.0
                  },
                  "latency_ns": {
                    "2": 0.0,
                    "4": 0.0,
                    "10": 0.0,
                    "20": 0.0,
                    "50": 0.0,
                    "100": 0.0,
                    "250": 0.0,
                    "500": 0.0,
                    "750": 0.0,
                    "1000": 0.0
                  },
                  "latency_us": {
                    "2": 0.0,
                    "4": 0.0,
                    "10": 0.0,
                    "20": 0.0,
                    "50": 30.16983016983017,
                    "100": 50.14985014985015,
                    "250": 19.58041958041958,
                    "500": 0.0,
                    "750": 0.0,
                    "1000": 0.0
                  },
                  "latency_ms": {
                    "2": 0.0,
                    "4": 0.0,
                    "10": 0.0,
                    "20": 0.0,
                    "50": 0.0,
                    "100": 0.0,
                    "250": 0.0,
                    "500": 0.0,
                    "750": 0.0,
                    "1000": 0.0,
                    "2000": 0.0,
                    ">=2000": 0.0999000999000999
                  },
                  "latency_depth": 32,
                  "latency_target": 0,
                  "latency_percentile": 100.0,
                  "latency_window": 0
                }
              ],
              "nvlane": {
                "name": "randrw",
                "target": "127.0.0.1:4420",
                "environment": {
                  "nvlane_version": "0.1.0",
                  "commit": "abc1234",
                  "command_line": "nvlane perf 127.0.0.1:4420 -q 32 -w randrw",
                  "unix_ms": 1735689599123,
                  "date": "2024-12-31T23:59:59Z",
                  "kernel": "6.12.1",
                  "architecture": "x86_64",
                  "cpu_model": "Some Processor",
                  "core_count": 2,
                  "virtual_machine": true,
                  "mitigations": "mitigated: spectre_v2",
                  "memory_bytes": 8589934592,
                  "congestion_control": "cubic",
                  "interface": {
                    "name": "lo",
                    "mtu": 65536
                  },
                  "jitter": {
                    "duration_ns": 20000000,
                    "gap_ns_max": 31000,
                    "lost_percent": 0.5
                  }
                },
                "workload": {
                  "pattern": "randrw",
                  "read_percent": 70,
                  "write_percent": 30,
                  "trim_percent": 0,
                  "write_zeroes_percent": 0,
                  "sizes": "4k",
                  "size_bytes_max": 4096,
                  "lba_bytes": 512,
                  "depth": 32,
                  "lanes": 1,
                  "first_lba": 0,
                  "block_count": 2048,
                  "shared_range": true,
                  "distribution": "uniform",
                  "runtime_s": 10.0,
                  "warm_up_s": 1.0,
                  "verify": false,
                  "fill": false,
                  "seed": 1
                },
                "elapsed_ns": 2000000000,
                "kinds": [
                  {
                    "kind": "read",
                    "operations": 700,
                    "bytes": 2867200,
                    "iops": 350.0,
                    "bytes_per_s": 1433600.0,
                    "error_count": 0,
                    "service": {
                      "count": 700,
                      "min_ns": 20000,
                      "max_ns": 119600,
                      "mean_ns": 69800.0,
                      "stddev_ns": 28850.970305841907,
                      "percentile_ns": {
                        "99.000000": 118272
                      }
                    }
                  },
                  {
                    "kind": "write",
                    "operations": 301,
                    "bytes": 1232896,
                    "iops": 150.5,
                    "bytes_per_s": 616448.0,
                    "error_count": 1,
                    "errors": {
                      "LBA out of range (0x080)": 1
                    },
                    "service": {
                      "count": 301,
                      "min_ns": 20700,
                      "max_ns": 30000000000,
                      "mean_ns": 99737840.53156146,
                      "stddev_ns": 1722296271.102387,
                      "percentile_ns": {
                        "99.000000": 119296
                      }
                    }
                  }
                ],
                "total": {
                  "kind": "total",
                  "operations": 1001,
                  "bytes": 4100096,
                  "iops": 500.5,
                  "bytes_per_s": 2050048.0,
                  "error_count": 1,
                  "errors": {
                    "LBA out of range (0x080)": 1
                  },
                  "service": {
                    "count": 1001,
                    "min_ns": 20000,
                    "max_ns": 30000000000,
                    "mean_ns": 30039910.08991009,
                    "stddev_ns": 945539453.4042721,
                    "percentile_ns": {
                      "99.000000": 119296
                    }
                  }
                },
                "series": [
                  {
                    "end_s": 1.0,
                    "iops": 1001.0,
                    "bytes_per_s": 4100096.0,
                    "iops_by_kind": {
                      "read": 700.0,
                      "write": 301.0
                    },
                    "bytes_per_s_by_kind": {
                      "read": 2867200.0,
                      "write": 1232896.0
                    },
                    "error_count": 1,
                    "mean_ns": 30039910.08991009,
                    "p50_ns": 70144,
                    "p99_ns": 119296,
                    "p999_ns": 120320,
                    "max_ns": 30000000000
                  },
                  {
                    "end_s": 0.0,
                    "iops": 0.0,
                    "bytes_per_s": 0.0,
                    "iops_by_kind": {},
                    "bytes_per_s_by_kind": {},
                    "error_count": 0,
                    "mean_ns": 0.0,
                    "p50_ns": 0,
                    "p99_ns": 0,
                    "p999_ns": 0,
                    "max_ns": 0
                  }
                ],
                "cpu": {
                  "generator": {
                    "user_ns_per_operation": 299.7002997002997,
                    "system_ns_per_operation": 499.5004995004995,
                    "user_percent": 0.015,
                    "system_percent": 0.025,
                    "voluntary_switches": 12,
                    "involuntary_switches": 3
                  },
                  "target": {
                    "user_ns_per_operation": 199.8001998001998,
                    "system_ns_per_operation": 499.5004995004995,
                    "user_percent": 0.01,
                    "system_percent": 0.025,
                    "voluntary_switches": 12,
                    "involuntary_switches": 3
                  },
                  "steal_percent": 0.25
                },
                "disturbance": [],
                "counters": {
                  "overdue": 0,
                  "unanswered": 0,
                  "held_back": 0,
                  "blocks_checked": 5600,
                  "mismatch_count": 0,
                  "depth_levels": [
                    1,
                    2,
                    4,
                    8,
                    16,
                    970,
                    0
                  ]
                },
                "lanes": [
                  {
                    "lane": 0,
                    "class": "default",
                    "core": 1,
                    "counters": {
                      "caravans": 77,
                      "commands": 308,
                      "rings_turn": 77,
                      "sent_bytes": 22176
                    }
                  }
                ],
                "phases": [
                  {
                    "phase": "doorbell",
                    "count": 3,
                    "mean_ns": 2000,
                    "p50_ns": 1023,
                    "p99_ns": 5000,
                    "max_ns": 5000
                  }
                ]
              }
            }
            "#);
    }

    #[test]
    fn the_keys_that_fio_plot_reads_are_there() {
        let document = parsed(Pace::Closed, false);
        assert!(document["fio version"].is_string());
        let job = &document["jobs"][0];
        for option in ["iodepth", "numjobs", "bs", "rw"] {
            assert!(job["job options"][option].is_string(), "{option}");
        }
        for kind in ["read", "write"] {
            for number in ["bw", "iops", "iops_stddev"] {
                assert!(job[kind][number].is_number(), "{kind} {number}");
            }
            assert!(job[kind]["lat_ns"]["mean"].is_number() && job[kind]["lat_ns"]["stddev"].is_number());
        }
        for table in ["latency_ns", "latency_us", "latency_ms"] {
            assert!(
                job[table].as_object().is_some_and(|table| table.values().all(Value::is_number)),
                "{table}"
            );
        }
        assert!(job["usr_cpu"].is_number() && job["sys_cpu"].is_number());
        assert_eq!(job["jobname"], "randrw");
    }

    #[test]
    fn latency_shares_add_up_to_a_hundred_percent() {
        let document = parsed(Pace::Closed, false);
        let job = &document["jobs"][0];
        let tables =
            ["latency_ns", "latency_us", "latency_ms"].map(|table| job[table].as_object().unwrap().values());
        let sum: f64 = tables.into_iter().flatten().map(|share| share.as_f64().unwrap()).sum();
        assert!((sum - 100.0).abs() < 1e-9, "{sum}");
        assert!(job["latency_ms"][">=2000"].as_f64().unwrap() > 0.0);
    }

    #[test]
    fn bins_are_there_where_something_happened_and_within_what_the_tools_take() {
        let document = parsed(Pace::Closed, true);
        assert_eq!(document["jobs"][0]["trim"]["clat_ns"].get("bins"), None);
        for kind in ["read", "write"] {
            let latency = &document["jobs"][0][kind]["clat_ns"];
            let bins = latency["bins"].as_object().unwrap();
            let sum: u64 = bins.values().map(|count| count.as_u64().unwrap()).sum();
            assert_eq!(sum, latency["N"], "{kind}");
            assert!(bins.keys().all(|middle| middle.parse::<u64>().unwrap() <= FIO_LATENCY_NS_MAX));
        }
        assert_eq!(document["jobs"][0]["write"]["clat_ns"]["bins"][FIO_LATENCY_NS_MAX.to_string()], 1);
    }

    #[test]
    fn percentiles_are_keyed_with_six_decimals() {
        let document = parsed(Pace::Closed, false);
        let percentile = &document["jobs"][0]["read"]["clat_ns"]["percentile"];
        for key in ["1.000000", "50.000000", "99.000000", "99.950000", "99.999999", "100.000000"] {
            assert!(percentile[key].is_u64(), "{key}");
        }
    }

    #[test]
    fn an_open_loop_tells_service_and_response_time_apart() {
        let pace = Pace::Open { rate_per_s: 500.0, arrival: Arrival::Constant };
        let document = parsed(pace, false);
        let job = &document["jobs"][0];
        assert_eq!(job["read"]["clat_ns"]["min"], 20_000);
        assert_eq!(job["read"]["lat_ns"]["min"], 22_000);
        assert!(job["read"]["lat_ns"]["percentile"]["99.000000"].is_u64());
        assert_eq!(job["job options"]["rate_process"], "linear");
        assert_eq!(document["nvlane"]["counters"]["overdue"], 47);
    }
}
