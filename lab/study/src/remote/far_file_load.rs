//! A load on the server's file, as the study server runs it: with limits on the requests of a study.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use load::runner::{self, Finished, LocalStorage, Observer, RunSettings};
use load::workload::{Pattern, Sizes, Stop, Workload};

use super::limits::{TIME_MAX, memory_is_free, within};
use super::measuring::Measuring;
use super::protocol::{FileLoadOutcome, StartFileLoad};
use crate::load_values::{bins, values};

/// Queues, and operations in flight on all of them together.
const JOBS_MAX: u64 = 1024;
const IN_FLIGHT_MAX: u64 = 1 << 16;

/// Starts a load on a file, from these cores.
///
/// # Errors
/// It asks for more than a study may have: the reason, for the study.
pub(super) fn start(
    start: &StartFileLoad,
    storage: LocalStorage,
    cores: Vec<usize>,
) -> Result<Measuring<FileLoadOutcome>, String> {
    let workload = workload(start)?;
    Measuring::start("the load on the file", "nvlane-study", move |stops| {
        let settings = RunSettings { cores, ..RunSettings::default() };
        let finished = runner::run_local(&storage, &workload, &settings, &mut Ends(stops));
        outcome(finished.map_err(|error| error.to_string())?)
    })
}

/// Ends a load when its study has ended.
struct Ends(Arc<AtomicBool>);

impl Observer for Ends {
    fn stops(&mut self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// The outcome of a load that has ended.
fn outcome(finished: Finished) -> Result<FileLoadOutcome, String> {
    if let Some(error) = finished.error {
        return Err(format!("the load on the file: {error}"));
    }
    let report = finished.report;
    if report.total.error_count > 0 {
        return Err(format!("{} operations on the file failed", report.total.error_count));
    }
    let loss = report.disturbance.worst().map(|(_, loss)| loss);
    Ok(FileLoadOutcome { values: values(&report), bins: bins(&report), loss })
}

/// The requested load, if it is within the limits.
fn workload(start: &StartFileLoad) -> Result<Workload, String> {
    let StartFileLoad { read_percent, io_bytes, jobs, depth, warm_up, measure, .. } = *start;
    within("queues of a load on the file", jobs.into(), JOBS_MAX)?;
    let in_flight = u64::from(depth) * u64::from(jobs);
    within("operations in flight of a load on the file", in_flight, IN_FLIGHT_MAX)?;
    let io_bytes_max = memory::BLOCK_BYTES_MAX as u64;
    within("bytes of an operation of a load on the file", io_bytes.into(), io_bytes_max)?;
    if warm_up.saturating_add(measure) > TIME_MAX {
        return Err(format!("a load on the file lasts {} s at most", TIME_MAX.as_secs()));
    }
    memory_is_free("a load on the file asks", u64::from(io_bytes) * in_flight)?;
    let pattern = Pattern::named(&start.pattern, Some(read_percent));
    let pattern = pattern.map_err(|error| format!("the load on the file: {error}"))?;
    Ok(Workload {
        pattern,
        sizes: Sizes::one(io_bytes),
        lanes: jobs,
        depth,
        warm_up,
        stop: Stop { runtime: Some(measure), ..Stop::default() },
        ..Workload::default()
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn usual() -> StartFileLoad {
        StartFileLoad {
            bytes: 1 << 20,
            pattern: "randread".to_owned(),
            read_percent: 100,
            io_bytes: 4096,
            jobs: 2,
            depth: 8,
            warm_up: Duration::ZERO,
            measure: Duration::from_millis(1),
            core_count: 1,
        }
    }

    #[test]
    fn what_a_study_may_not_have_is_refused() {
        for (start, why) in [
            (StartFileLoad { jobs: 0, ..usual() }, "queues"),
            (StartFileLoad { jobs: 1025, ..usual() }, "queues"),
            (StartFileLoad { depth: u32::MAX, ..usual() }, "operations in flight"),
            (StartFileLoad { io_bytes: 0, ..usual() }, "bytes of an operation"),
            (StartFileLoad { io_bytes: u32::MAX, ..usual() }, "bytes of an operation"),
            (StartFileLoad { measure: Duration::MAX, ..usual() }, "lasts 600 s at most"),
            (StartFileLoad { pattern: "../../etc/passwd".to_owned(), ..usual() }, "the load on the file: "),
        ] {
            let refused = workload(&start).unwrap_err();
            assert!(refused.contains(why), "{refused}");
        }
        let workload = workload(&usual()).unwrap();
        assert_eq!((workload.lanes, workload.depth, workload.pattern.shares().read), (2, 8, 100));
    }

    #[test]
    fn a_file_that_is_gone_is_told() {
        let storage = LocalStorage::new("/nonexistent/file".as_ref(), store::FileKind::Regular);
        let told = start(&usual(), storage, Vec::new()).unwrap().end().unwrap_err();
        assert!(told.contains("/nonexistent/file"), "{told}");
    }

    #[test]
    fn every_value_that_is_sent_has_a_name_that_the_study_knows() {
        let directory = tempfile::tempdir().unwrap();
        let file = match crate::scratch::ScratchFile::new(directory.path(), 1 << 20) {
            Err(crate::error::Error::Run(error)) => return eprintln!("skipped: {error}"),
            file => file.unwrap(),
        };
        let asked = StartFileLoad { measure: Duration::from_millis(50), ..usual() };
        let ended = start(&asked, file.storage(), Vec::new()).unwrap().end();
        let FileLoadOutcome { values, bins, .. } = ended.unwrap();
        for name in values.keys() {
            assert!(crate::load_values::value_named(name).is_some(), "{name}");
        }
        assert!(values["iops"] > 0.0 && values.contains_key("p90_us") && values.contains_key("host_us"));
        assert!(bins.iter().any(|(us, count)| *us > 0.0 && *count > 0));
    }
}
