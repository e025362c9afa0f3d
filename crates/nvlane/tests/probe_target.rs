//! Every hostile input that a target can be tried with, on both engines.

mod support;

use std::thread;

use support::{Ended, Target, nvlane};

/// Runs all rows on a target of this engine; what was wrong, and how many rows passed.
fn probe(engine: &str) -> (Vec<String>, usize) {
    let mut command = nvlane();
    command.args(["target", "--listen", "127.0.0.1:0", "--engine", engine, "--namespace", "ram:64M"]);
    command.env("NVLANE_LOG", "error");
    let target = Target::start(&mut command);
    let probe = ["probe", &target.address, "--overwrite", "--pause", "2000", "--json", "-"];
    let ended = Ended::of(nvlane().args(probe));
    let report: serde_json::Value = serde_json::from_str(&ended.stdout).expect("JSON");
    let rows = report["rows"].as_array().expect("rows");
    let with = |outcome: &'static str| rows.iter().filter(move |row| row["outcome"] == outcome);
    let wrong = ["differs", "hangs", "dies"]
        .into_iter()
        .flat_map(with)
        .map(|row| format!("{engine}: {} {}: {}", row["id"], row["outcome"], row["finding"]));
    let wrong: Vec<_> = wrong.collect();
    assert_eq!(ended.code, i32::from(!wrong.is_empty()), "{}", ended.stderr);
    (wrong, with("pass").count())
}

#[test]
fn a_target_bears_every_row_on_both_engines() {
    let engines = ["uring", "epoll"].map(|engine| thread::spawn(move || probe(engine)));
    for engine in engines {
        let (wrong, passed) = engine.join().expect("no panic");
        assert!(wrong.is_empty(), "{wrong:#?}");
        assert!(passed >= 111, "only {passed} rows pass, the others are skipped");
    }
}

#[test]
fn rows_are_chosen_by_name_and_listed() {
    let list = support::run(["probe", "--list"]).text();
    for row in ["  P1   first bytes that are no ICReq: TermReq 02", "  D16  data for a command"] {
        assert!(list.contains(row), "{list}");
    }
    let line = support::run(["probe", "--row", "X99", "127.0.0.1/nqn.2026-01.io.nvlane:x"]).complaint(2);
    assert_eq!(line, "--row X99: no such row; --list has them");
    let target = Target::serving(&["ram:64M"]);
    let text = target.ask(&["probe", "--row", "p1", "--row", "I4"]).text();
    assert!(
        text.ends_with("2 rows: 2 pass, 0 differs, 0 hangs, 0 dies, 0 skipped  (* our judgement)\n"),
        "{text}"
    );
}

#[test]
fn nothing_is_written_unless_that_is_allowed() {
    let target = Target::serving(&["ram:64M"]);
    let ended = target.ask(&["probe", "--row", "D1", "--row", "N9", "--json", "-"]);
    let report: serde_json::Value = serde_json::from_str(&ended.stdout).expect("JSON");
    for row in report["rows"].as_array().expect("rows") {
        assert_eq!(row["outcome"], "skipped", "{row}");
        assert!(row["finding"].as_str().is_some_and(|why| why.contains("--overwrite")), "{row}");
    }
}
