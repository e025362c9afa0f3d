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

/// Largest latency of a bin that fio's tools accept, ns. Longer ones are counted there.
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
        // All options are those of the job.
        ("global options", object::<&str, String>([]).into()),
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

/// Fields that are not measured.
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
        insta::assert_snapshot!(to_string(&report, false));
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
