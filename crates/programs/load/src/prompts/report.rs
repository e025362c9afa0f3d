//! Results of a load of prompts, for people and for programs.

use std::fmt;

use serde::Serialize;

use super::{PromptLoad, PromptResult};
use crate::histogram::Histogram;

/// JSON of a result: the load and its outcome.
#[derive(Debug, Serialize)]
pub struct PromptReport {
    profile: &'static str,
    documents: u64,
    distribution: String,
    shared_chunks: u32,
    own_chunks: u32,
    chunk_bytes: u32,
    seconds: f64,
    prompts: u64,
    prompts_per_s: f64,
    hit_percent: f64,
    retrieved_bytes_per_s: f64,
    stored_bytes_per_s: f64,
    gone: u64,
    failed: u64,
    mismatches: u64,
    calls: [CallReport; 3],
    /// Of the load's thread, ns per MiB moved.
    generator_ns_per_mib: f64,
    /// Of targets on this machine, ns per MiB moved.
    #[serde(skip_serializing_if = "Option::is_none")]
    target_ns_per_mib: Option<f64>,
}

#[derive(Debug, Serialize)]
struct CallReport {
    call: &'static str,
    count: u64,
    mean_us: f64,
    p50_us: f64,
    p99_us: f64,
    max_us: f64,
}

impl PromptReport {
    /// The report of a run. `target_ns`: processor time of the targets meanwhile, if it is known.
    #[must_use]
    pub fn new(load: &PromptLoad, result: &PromptResult, target_ns: Option<u64>) -> Self {
        let seconds = result.elapsed.as_secs_f64().max(1e-9);
        let moved_mib = ((result.retrieved_bytes + result.stored_bytes) as f64 / f64::from(1 << 20))
            .max(f64::MIN_POSITIVE);
        let call = |call, times: &Histogram| {
            let us = |percent| times.percentile(percent) as f64 / 1e3;
            let count = times.count();
            CallReport {
                call,
                count,
                mean_us: times.mean() / 1e3,
                p50_us: us(50.0),
                p99_us: us(99.0),
                max_us: us(100.0),
            }
        };
        Self {
            profile: "kv-cache",
            documents: load.documents,
            distribution: load.distribution.to_string(),
            shared_chunks: load.shared_chunks,
            own_chunks: load.own_chunks,
            chunk_bytes: load.chunk_bytes,
            seconds,
            prompts: result.prompts.len() as u64,
            prompts_per_s: result.prompts.len() as f64 / seconds,
            hit_percent: result.hit_percent(),
            retrieved_bytes_per_s: result.retrieved_per_s(),
            stored_bytes_per_s: result.stored_per_s(),
            gone: result.gone_count,
            failed: result.failed_count,
            mismatches: result.mismatch_count,
            calls: [
                call("exist", &result.exist),
                call("retrieve", &result.retrieve),
                call("store", &result.store),
            ],
            generator_ns_per_mib: result.generator_ns as f64 / moved_mib,
            target_ns_per_mib: target_ns.map(|ns| ns as f64 / moved_mib),
        }
    }
}

impl fmt::Display for PromptReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "prompts of {} shared and {} own chunks of {} bytes, {} documents ({}): {:.1} s",
            self.shared_chunks,
            self.own_chunks,
            self.chunk_bytes,
            self.documents,
            self.distribution,
            self.seconds,
        )?;
        let mib = |bytes: f64| bytes / f64::from(1 << 20);
        writeln!(
            f,
            "{} prompts, {:.1} per second; {:.1} % of the shared chunks were there",
            self.prompts, self.prompts_per_s, self.hit_percent
        )?;
        writeln!(
            f,
            "retrieved at {:.0} MiB/s, stored at {:.0} MiB/s",
            mib(self.retrieved_bytes_per_s),
            mib(self.stored_bytes_per_s)
        )?;
        writeln!(
            f,
            "{:<9} {:>9} {:>11} {:>11} {:>11} {:>11}",
            "", "calls", "mean us", "p50 us", "p99 us", "longest us"
        )?;
        for call in &self.calls {
            writeln!(
                f,
                "{:<9} {:>9} {:>11.1} {:>11.1} {:>11.1} {:>11.1}",
                call.call, call.count, call.mean_us, call.p50_us, call.p99_us, call.max_us
            )?;
        }
        write!(f, "processor time per MiB: {:.1} us of the load", self.generator_ns_per_mib / 1e3)?;
        if let Some(ns) = self.target_ns_per_mib {
            write!(f, ", {:.1} us of the targets", ns / 1e3)?;
        }
        writeln!(f)?;
        if self.gone > 0 {
            writeln!(f, "{} chunks were gone between the question and the retrieval", self.gone)?;
        }
        writeln!(f, "verified: {} chunks differ from the stored ones", self.mismatches)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::prompts::PromptEnd;

    #[test]
    fn a_report_tells_rates_hits_and_what_went_wrong() {
        let mut result = PromptResult {
            elapsed: Duration::from_secs(2),
            shared_count: 40,
            hit_count: 30,
            gone_count: 1,
            mismatch_count: 3,
            retrieved_bytes: 30 << 20,
            stored_bytes: 10 << 20,
            generator_ns: 4_000_000,
            prompts: vec![PromptEnd { at_ns: 1, took_ns: 1, hit_count: 30 }],
            ..PromptResult::default()
        };
        result.retrieve.record(10_000_000);
        result.store.record(10_000_000);
        let load = PromptLoad { chunk_bytes: 1 << 20, ..PromptLoad::default() };
        let report = PromptReport::new(&load, &result, Some(80_000));
        let text = report.to_string();
        for part in [
            "1 prompts, 0.5 per second; 75.0 %",
            "retrieved at 3000 MiB/s, stored at 1000 MiB/s",
            "100.0 us of the load, 2.0 us of the targets",
            "1 chunks were gone",
            "verified: 3 chunks differ",
        ] {
            assert!(text.contains(part), "{part:?} in {text}");
        }
        let json = serde_json::to_value(&report).expect("JSON");
        assert_eq!((&json["profile"], &json["calls"][1]["call"]), (&"kv-cache".into(), &"retrieve".into()));
    }
}
