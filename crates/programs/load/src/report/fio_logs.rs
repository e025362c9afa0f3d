//! The course of a run in the form of fio's logs, which programs such as fio-plot draw.
//!
//! A row stands for the operations of one direction in one interval: end of the interval in ms, value, direction (0 reads, 1
//! writes, 2 trims), block size and offset, which is 0 as in logs of means.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::{Report, Sample};
use crate::workload::Kind;

/// A log file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Log {
    /// Its name, which contains pattern, depth and number of lanes, as fio-plot expects.
    pub name: String,
    /// Its rows.
    pub text: String,
}

/// Logs of operations per second, KiB per second, and mean latency in ns.
#[must_use]
pub fn of(report: &Report) -> [Log; 3] {
    let workload = &report.workload;
    let prefix = format!("{}-iodepth-{}-numjobs-{}", workload.pattern, workload.depth, workload.lanes);
    let log = |ending: &str, values: fn(&Sample) -> &BTreeMap<&'static str, f64>, divisor: f64| Log {
        name: format!("{prefix}_{ending}.1.log"),
        text: rows(&report.series, values, divisor, workload.size_bytes_max),
    };
    [
        log("iops", |sample| &sample.iops_by_kind, 1.0),
        log("bw", |sample| &sample.bytes_per_s_by_kind, 1024.0),
        log("lat", |sample| &sample.mean_ns_by_kind, 1.0),
    ]
}

fn rows(
    series: &[Sample],
    values: fn(&Sample) -> &BTreeMap<&'static str, f64>,
    divisor: f64,
    block_bytes: impl std::fmt::Display,
) -> String {
    let mut text = String::new();
    for sample in series {
        for (direction, kind) in [Kind::Read, Kind::Write, Kind::Trim].into_iter().enumerate() {
            if let Some(value) = values(sample).get(kind.name()) {
                let (end_ms, value) = (sample.end_s * 1e3, value / divisor);
                let _ = writeln!(text, "{end_ms:.0}, {value:.0}, {direction}, {block_bytes}, 0");
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_direction_of_an_interval_has_a_row() {
        let sample = |end_s: f64, writes: f64| Sample {
            end_s,
            iops_by_kind: [("read", 1000.4)]
                .into_iter()
                .chain((writes > 0.0).then_some(("write", writes)))
                .collect(),
            ..Sample::default()
        };
        let series = [sample(1.0, 0.0), sample(2.0004, 500.0)];
        let text = rows(&series, |sample| &sample.iops_by_kind, 1.0, 4096);
        assert_eq!(text, "1000, 1000, 0, 4096, 0\n2000, 1000, 0, 4096, 0\n2000, 500, 1, 4096, 0\n");
    }
}
