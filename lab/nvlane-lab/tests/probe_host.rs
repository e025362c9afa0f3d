//! Every fault that `nvlane probe` injects into a target, against the host library and nvlane's commands.

#[path = "../../../crates/programs/nvlane/tests/support/mod.rs"]
mod support;

use serde_json::Value;
use support::{Ended, nvlane};

fn probe(arguments: &[&str]) -> (Ended, Value) {
    let ended = Ended::of(nvlane().args(["probe", "--role", "host", "--json", "-"]).args(arguments));
    let report = serde_json::from_str(&ended.stdout).expect("JSON");
    (ended, report)
}

/// Rows with this outcome.
fn with<'a>(report: &'a Value, outcome: &str) -> Vec<&'a Value> {
    let rows = report["rows"].as_array().expect("rows").iter();
    rows.filter(|row| row["outcome"] == outcome).collect()
}

#[track_caller]
fn assert_good((ended, report): &(Ended, Value), passed: usize) {
    let wrong: Vec<_> =
        ["differs", "hangs", "dies"].iter().flat_map(|outcome| with(report, outcome)).collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    assert!(!ended.stderr.contains("panicked"), "{}", ended.stderr);
    assert!(with(report, "pass").len() >= passed, "{:?}", with(report, "skipped"));
}

#[test]
fn our_library_bears_every_row() {
    assert_good(&probe(&[]), 23);
}

#[test]
fn our_commands_bear_what_they_meet() {
    let command = |verb: &str| format!("{} --log error {verb} --timeout 2", support::program());
    assert_good(&probe(&["--run", &command("identify")]), 7);
    let rows = ["--row", "H1", "--row", "H16", "--row", "H17", "--row", "H18", "--row", "H22"];
    assert_good(&probe(&[&rows[..], &["--run", &command("discover")]].concat()), 5);
    for verb in ["list", "list -o json", "identify -o json", "discover -o json"] {
        assert_good(&probe(&["--row", "H17", "--run", &command(verb)]), 1);
    }
    assert_good(&probe(&["--row", "H22", "--run", &command("smart-log")]), 1);
}

/// JSON output has the target's strings unchanged, whatever they contain.
#[test]
fn json_has_what_the_target_has_said() {
    let directory = tempfile::tempdir().unwrap();
    let (nvlane, place) = (support::program(), directory.path().display());
    let command = format!("{nvlane} --log error identify --timeout 2 -o json > {place}/$$.json");
    assert_good(&probe(&["--row", "H17", "--run", &command]), 1);
    let shown = std::fs::read_dir(directory.path()).unwrap().map(|entry| {
        let text = std::fs::read_to_string(entry.unwrap().path()).unwrap();
        assert!(!text.contains(['\u{202e}', '\u{2028}', '\u{9b}', '\x1b']), "{text}");
        let json: Value = serde_json::from_str(&text).expect("JSON");
        json["controller"]["mn"].as_str().expect("a model").to_owned()
    });
    let shown: Vec<_> = shown.collect();
    let model = "\u{202e}\u{2028}\u{2029}\u{200b}\u{9b}2J \" cntlid=1\n\u{feff}";
    assert!(shown.iter().any(|shown| shown.starts_with(model)), "{shown:?}");
}

/// The load knows the expected content of every block.
#[test]
fn our_load_bears_what_comes_in_place_of_data() {
    let perf = "perf -t 0.1 -a 0 -q 2 -o 4k/50:64k/50 -w randrw --verify -H -I $NVLANE_ADDR";
    let command = format!("{} --log error {perf}", support::program());
    let rows = ["H4", "H5", "H6", "H8", "H9", "H10", "H12"].map(|row| ["--row", row]).concat();
    assert_good(&probe(&[&rows[..], &["--run", &command]].concat()), 7);
}

#[test]
fn a_command_that_gets_along_with_no_target_is_not_probed() {
    let ended = Ended::of(nvlane().args(["probe", "--role", "host", "--run", "exit 4"]));
    let line = ended.complaint(1);
    assert_eq!(line, "before any row: a target without a fault: exit code 4");
}
