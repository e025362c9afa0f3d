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
