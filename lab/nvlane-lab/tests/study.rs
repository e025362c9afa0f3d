//! Studies as users run them. Measured values are not checked, as machines differ.

#[path = "../../../crates/programs/nvlane/tests/support/mod.rs"]
mod support;

use std::fs;

use support::run;

#[test]
fn a_study_leaves_a_report_for_people_and_one_for_programs() {
    let directory = tempfile::tempdir().expect("a directory");
    let out = directory.path().join("ceiling");
    let words =
        ["study", "ceiling", "--only", "read qd4", "--rounds", "2", "-t", "0.05", "--extra", "0", "--out"];
    let ended = run(words.iter().copied().chain([out.to_str().expect("text")]));
    let first = ended.stderr.lines().next();
    assert_eq!(first, Some("ceiling  round 1 of 2  cell 1 of 1: read qd4"), "progress on a pipe");
    let told = ended.text_beside_progress();
    assert!(told.contains("read qd4") && told.contains("least share of the ceiling"), "{told}");

    let results = fs::read(out.join("results.json")).expect("results");
    let results: serde_json::Value = serde_json::from_slice(&results).expect("JSON");
    assert_eq!(results["experiment"], "ceiling");
    assert_eq!(results["rounds"], 2);
    assert!(results["environment"]["command_line"].as_str().expect("text").contains("--only 'read qd4'"));
    let cells = results["cells"].as_array().expect("cells");
    assert_eq!(cells.len(), 1);
    assert_eq!(cells[0]["parameters"]["depth"], 4);
    assert_eq!(cells[0]["rounds"].as_array().expect("rounds").len(), 2);
    let page = fs::read_to_string(out.join("report.html")).expect("a page");
    assert!(page.starts_with("<!doctype html>") && page.trim_end().ends_with("</html>"));
    assert!(page.contains("--only 'read qd4'"));
    let figure = fs::read_to_string(out.join("share-of-the-ceiling.svg"));
    // On a busy machine there are no numbers and no figures, and a reason for each.
    let rejected = cells[0]["rejected"].as_array().map_or(0, Vec::len);
    let share = &results["headline"]["share_read_qd4"];
    if rejected < 2 {
        assert_eq!(cells[0]["values"]["iops"]["count"], 2 - rejected);
        assert!(share.as_f64().expect("a number") > 0.0);
        assert!(page.contains("<svg"));
        let figure = figure.expect("a figure");
        assert!(figure.starts_with("<svg xmlns") && figure.contains("<title>Share of the ceiling</title>"));
    } else {
        assert!(cells[0]["values"].is_null() && share.is_null());
        assert!(cells[0]["reason"].as_str().is_some_and(|reason| !reason.is_empty()));
        assert!(page.contains("n/a") && !page.contains("<svg") && figure.is_err());
    }
}

#[test]
fn all_experiments_leave_one_page_and_can_be_compared() {
    let directory = tempfile::tempdir().expect("a directory");
    let out = directory.path().join("all");
    let words =
        ["study", "all", "--only", "inline-send", "--rounds", "2", "-t", "0.05", "--extra", "0", "--out"];
    let out = out.to_str().expect("text");
    let told = run(words.iter().copied().chain([out])).text_beside_progress();
    assert!(told.contains("inline-send") && told.contains("report: "), "{told}");
    let page = fs::read_to_string(format!("{out}/report.html")).expect("a page");
    assert!(page.contains("TCP or RDMA?") && page.contains("<details id=\"inline-send\">"));
    let rows = fs::read_to_string(format!("{out}/inline-send/results.csv")).expect("rows");
    assert!(rows.starts_with("experiment,cell,round,value,number,discarded\ninline-send,"), "{rows}");

    for (before, after) in [
        (out.to_owned(), out.to_owned()),
        (format!("{out}/inline-send"), format!("{out}/inline-send/results.json")),
    ] {
        let compared = run(["study", "compare", &before, &after]).text();
        assert!(compared.starts_with("inline-send\n"), "{compared}");
        // On a busy machine no cell has numbers.
        let has_numbers = compared.contains("IOPS") && compared.contains("1.00");
        assert!(has_numbers || compared.contains("measured in neither"), "{compared}");
    }
}

#[test]
fn processor_time_is_told_by_layer_where_threads_can_be_sampled() {
    let directory = tempfile::tempdir().expect("a directory");
    let out = directory.path().join("layers");
    let words =
        ["study", "layers", "--only", "read qd32 caravans", "--rounds", "2", "-t", "0.5", "--extra", "0"];
    let words = words.iter().map(AsRef::as_ref).chain(["--out".as_ref(), out.as_os_str()]);
    let ended = run(words);
    if ended.code != 0 {
        let complaint = ended.complaint(1);
        assert!(
            complaint.contains("perf_event_open") && complaint.contains("perf_event_paranoid"),
            "{complaint}"
        );
        return;
    }
    assert!(ended.text_beside_progress().contains("Samples of cpu-clock"));
    let results = fs::read(out.join("results.json")).expect("results");
    let results: serde_json::Value = serde_json::from_slice(&results).expect("JSON");
    let of =
        |side: &str, layer: &str| results["functions"][side][layer]["percent"].as_f64().expect("a share");
    for side in ["host", "target"] {
        assert!(of(side, "NVMe/TCP") > 0.0, "{}", results["functions"]);
        let sum: f64 =
            results["functions"][side].as_object().expect("layers").keys().map(|layer| of(side, layer)).sum();
        assert!((99.0..101.0).contains(&sum), "{side}: {sum}");
    }
    // On a busy machine no round counts.
    let cell = &results["cells"][0];
    if let Some(values) = cell["values"].as_object() {
        let us = |key: &str| values[key]["median"].as_f64().expect("a number");
        assert!(us("host_nvme_us") > 0.0 && us("host_nvme_us") < us("host_us"), "{values:?}");
    }
}

#[test]
fn results_that_cannot_be_compared_say_why() {
    let directory = tempfile::tempdir().expect("a directory");
    let empty = directory.path().to_str().expect("text");
    assert!(run(["study", "compare", empty]).complaint(2).contains("two results"));
    assert!(run(["study", "compare", empty, empty]).complaint(2).contains("no results.json"));
    let file = directory.path().join("results.json");
    fs::write(&file, "{").expect("a file");
    let complaint = run(["study", "compare", empty, empty]).complaint(2);
    assert!(complaint.contains("results.json") && complaint.contains("not a results.json"), "{complaint}");
    assert!(run(["study", "ceiling", "idle"]).complaint(2).contains("one name at a time"));
}

#[test]
fn all_experiments_are_listed() {
    let listed = run(["study", "list"]).text();
    assert!(listed.lines().any(|line| line.starts_with("ceiling ")), "{listed}");
    assert_eq!(run(["study"]).text(), listed);
}

#[test]
fn what_there_is_not_is_said_with_what_there_is() {
    let complaint = run(["study", "no-such"]).complaint(2);
    assert!(complaint.contains("no-such") && complaint.contains("ceiling, "), "{complaint}");
    let complaint = run(["study", "ceiling", "--only", "nothing"]).complaint(2);
    assert!(complaint.contains("read qd1, "), "{complaint}");
    let complaint = run(["study", "ceiling", "-c", "0"]).complaint(2);
    assert!(complaint.contains("an even number of cores"), "{complaint}");
    let complaint = run(["study", "core-latency", "--storage", "null,ram"]).complaint(2);
    assert!(complaint.contains("--storage ram: this experiment has null, delay, file"), "{complaint}");
}
