//! `nvlane smart-log`: health, as the controller counts it.

mod support;

use support::Target;

#[test]
fn the_log_is_told_in_text_and_in_json() {
    let target = Target::serving(&["ram:1M"]);
    let log = target.ask(&["smart-log", "-o", "json"]).json();
    assert_eq!((&log["critical_warning"], &log["avail_spare"]), (&0.into(), &100.into()));
    for key in ["data_units_read", "host_write_commands", "power_on_hours", "media_errors"] {
        assert_eq!(log[key], 0, "{key}");
    }
    let text = target.ask(&["smart-log"]).text();
    assert!(text.contains("  Spare left            100 %\n"), "{text}");
}

#[test]
fn a_namespace_without_a_log_is_named() {
    let target = Target::serving(&["ram:1M"]);
    let line = target.ask(&["smart-log", "-n", "3"]).complaint(4);
    assert_eq!(line, format!("{} has no namespace 3; there is 1", target.nqn()));
    let line = target.ask(&["smart-log", "-n", "1"]).complaint(1);
    assert!(line.contains("namespace 1 may have no log of its own"), "{line}");
}

#[test]
fn the_log_tells_what_every_host_did() {
    let target = Target::serving(&["ram:16M"]);
    let load = target.ask(&["perf", "-d", "300", "-a", "0", "-w", "randread", "-q", "4"]);
    assert_eq!(load.code, 0, "{load:?}");
    let log = target.ask(&["smart-log", "-o", "json"]).json();
    assert!(log["host_read_commands"].as_u64().expect("a number") >= 300, "{log}");
    assert!(log["data_units_read"].as_u64().expect("a number") >= 2, "{log}");
}
