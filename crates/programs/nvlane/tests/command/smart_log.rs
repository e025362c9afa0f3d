//! `nvlane smart-log`: the health log of a controller.

use crate::support::{Target, run};

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
fn a_namespace_that_is_not_there_is_named() {
    let target = Target::serving(&["ram:1M"]);
    let line = target.ask(&["smart-log", "-n", "3"]).complaint(4);
    assert_eq!(line, format!("{} has no namespace 3; there is 1", target.nqn()));
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

#[test]
fn the_log_of_a_namespace_tells_what_hosts_did_with_it() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = format!("file:{}?size=16M", directory.path().join("disk").display());
    let target = Target::serving(&["ram:16M", &file, "ram:16M"]);
    let perf = ["-d", "300", "-a", "0", "-q", "4", "-o", "8192"];
    for (nsid, pattern) in [("1", "randread"), ("2", "randwrite"), ("2", "randread")] {
        let address = format!("{}?ns={nsid}", target.address);
        let load = run([&["perf", address.as_str(), "-w", pattern][..], &perf].concat());
        assert_eq!(load.code, 0, "{load:?}");
    }
    let told = |nsid: Option<&str>| {
        let which = nsid.map_or(vec![], |nsid| vec!["-n", nsid]);
        let log = target.ask(&[&["smart-log", "-o", "json"][..], &which].concat()).json();
        ["host_read_commands", "host_write_commands", "data_units_read", "data_units_written"]
            .map(|key| log[key].as_u64().expect("a number"))
    };
    let (all, each) = (told(None), ["1", "2", "3"].map(|nsid| told(Some(nsid))));
    assert!(each[0][0] >= 300 && each[0][1] == 0, "{each:?}");
    assert!(each[1][0] >= 300 && each[1][1] >= 300, "{each:?}");
    assert!(each[1][2] >= 300 * 8192 / 512_000 && each[1][3] >= 300 * 8192 / 512_000, "{each:?}");
    assert_eq!(each[2], [0; 4]);
    for at in 0..2 {
        assert_eq!(all[at], each[0][at] + each[1][at], "{all:?} {each:?}");
    }
}
