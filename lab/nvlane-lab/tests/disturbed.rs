//! Measurements on a busy machine: no number, no verdict, and the reason.

#[path = "../../../crates/programs/nvlane/tests/support/mod.rs"]
mod support;

use std::process::{Child, Command, Stdio};

use support::{Ended, nvlane};

/// Busy loops on both cores of a study, stopped at the end, or after ten minutes.
struct BusyLoops(Vec<Child>);

impl BusyLoops {
    fn start() -> Self {
        let busy = |core: usize| {
            Command::new("timeout")
                .args(["600", "taskset", "-c", &core.to_string(), "sh", "-c", "while :; do :; done"])
                .stdout(Stdio::null())
                .spawn()
                .expect("timeout and taskset are there")
        };
        let cores = linux::CoreList::allowed().expect("cores");
        // Two on each core, so that not even a favoured thread has its core to itself.
        Self(cores.cores().iter().take(2).flat_map(|core| [busy(*core), busy(*core)]).collect())
    }
}

impl Drop for BusyLoops {
    fn drop(&mut self) {
        for child in &mut self.0 {
            // `timeout` passes the signal on to its command.
            let _ = Command::new("kill").arg(child.id().to_string()).status();
            let _ = child.wait();
        }
    }
}

fn has_two_cores() -> bool {
    linux::CoreList::allowed().expect("cores").cores().len() >= 2
}

#[test]
fn a_study_on_a_busy_machine_gives_no_verdict() {
    if !has_two_cores() {
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    let _busy = BusyLoops::start();
    let ended = Ended::of(
        nvlane()
            .args(["study", "ceiling", "--only", "read qd4", "--rounds", "2", "-t", "0.3", "--extra", "0"])
            .args(["--check", "--out"])
            .arg(directory.path()),
    );
    assert_eq!(ended.code, 1, "--check fails: {ended:?}");
    let first = ended.stdout.lines().next().expect("a line");
    assert!(
        first.starts_with("The machine was disturbed: 2 of 2 measurements were discarded, 1 of 1 cells"),
        "{first}"
    );
    assert!(ended.stdout.contains("n/a") && !ended.stdout.contains("reached"), "{}", ended.stdout);
    assert!(ended.stdout.contains("other programs took"), "{}", ended.stdout);

    let results = std::fs::read(directory.path().join("results.json")).expect("results");
    let results: serde_json::Value = serde_json::from_slice(&results).expect("JSON");
    assert!(results["headline"]["share_read_qd4"].is_null() && results["headline"]["share_min"].is_null());
    assert!(results["headline"].as_object().expect("a map").contains_key("share_read_qd4"));
    let cell = &results["cells"][0];
    assert!(cell["values"].is_null() && cell["rounds"][0].is_null(), "{cell}");
    assert!(cell["reason"].as_str().is_some_and(|reason| !reason.is_empty()));
    let losses = cell["rejected"][0]["disturbance"].as_array().expect("losses");
    let others = losses.iter().filter_map(|loss| loss["others_percent"].as_f64());
    assert!(others.into_iter().all(|percent| percent > 5.0), "{losses:?}");
    assert!(cell["rejected"][0]["values"]["iops"].is_number(), "kept: {cell}");

    let page = std::fs::read_to_string(directory.path().join("report.html")).expect("a page");
    assert!(page.contains("The machine was disturbed") && page.contains(">discarded: other programs took"));
    assert!(!page.contains("verdict reached") && !page.contains("verdict missed"));
}

#[test]
fn a_load_beside_its_ceiling_on_a_busy_machine_has_no_share() {
    if !has_two_cores() {
        return;
    }
    let cores = linux::CoreList::allowed().expect("cores").cores().to_vec();
    let _busy = BusyLoops::start();
    let ended = Ended::of(
        nvlane()
            .args(["target", "--listen", "127.0.0.1:0", "--namespace", "null:1G", "--cores"])
            .arg(cores[1].to_string())
            .args(["--run", "$NVLANE perf -t 1 -a 0.1 -q 4 --ceiling --json - -c $CORE"])
            .env("NVLANE", support::program())
            .env("CORE", cores[0].to_string()),
    );
    let document: serde_json::Value = serde_json::from_str(&ended.stdout).expect("JSON");
    let text = document.to_string();
    assert!(text.contains("\"share\":null") && text.contains("\"reason\":\""), "{text}");
}
