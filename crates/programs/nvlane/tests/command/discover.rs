//! `nvlane discover`: the log of a discovery service, and of the services it refers to.

use crate::support::{Target, nvlane, run};
use serde_json::Value;

#[test]
fn the_table_has_a_line_for_each_record() {
    let target = Target::serving(&["ram:1M"]);
    let text = run(["discover", target.place()]).text();
    let (port, lines) = (target.place().rsplit_once(':').unwrap().1, text.lines().collect::<Vec<_>>());
    assert!(lines[0].starts_with(&format!("Discovery log of {}, generation ", target.place())), "{text}");
    assert!(lines[0].ends_with(": 2 records"), "{text}");
    let subsystem = lines.iter().find(|line| line.ends_with(target.nqn())).expect("it is listed");
    let words: Vec<_> = subsystem.split_whitespace().collect();
    assert_eq!(words[..6], ["tcp", "ipv4", "127.0.0.1", port, "nvme", "subsystem"]);
}

#[test]
fn json_has_the_names_that_scripts_know() {
    let target = Target::serving(&["ram:1M"]);
    let log = run(["discover", "-o", "json", target.place()]).json();
    assert!(log["genctr"].as_u64().unwrap() > 0);
    let records = log["records"].as_array().unwrap();
    let [subsystem] =
        &records.iter().filter(|record| record["subnqn"] == target.nqn()).collect::<Vec<_>>()[..]
    else {
        panic!("once: {log}")
    };
    for (key, value) in [
        ("trtype", "tcp"),
        ("adrfam", "ipv4"),
        ("subtype", "nvme subsystem"),
        ("traddr", "127.0.0.1"),
        ("trsvcid", target.place().rsplit_once(':').unwrap().1),
    ] {
        assert_eq!(subsystem[key], value, "{key}");
    }
    assert_eq!(subsystem["cntlid"], 0xffff);
    assert!(records.iter().any(|record| record["subtype"] == "current discovery subsystem"));
    assert_eq!(log.get("referrals"), None);
}

#[test]
fn the_address_may_come_from_the_environment_and_name_a_subsystem() {
    let target = Target::serving(&["ram:1M"]);
    let mut command = nvlane();
    command.args(["discover", "--output-format", "json"]).env("NVLANE_ADDR", &target.address);
    let log = crate::support::Ended::of(&mut command).json();
    assert_eq!(log["records"].as_array().unwrap().len(), 2);
}

/// Two services that refer to each other, and one that does not exist.
#[test]
fn referrals_are_followed_once_each() {
    let directory = tempfile::tempdir().unwrap();
    let refer = |name: &str, ports: &[&str]| {
        let path = directory.path().join(name);
        let referrals: String =
            ports.iter().map(|place| format!("[[discovery.referral]]\naddress = \"{place}\"\n")).collect();
        let subsystem = format!("[[subsystem]]\nnqn = \"nqn.2026-01.io.nvlane:{name}\"\nhosts = \"any\"\n");
        std::fs::write(&path, format!("{referrals}{subsystem}")).unwrap();
        path
    };
    // The second one gets the port of the first, and the first refers to the former port of the second.
    let second_place = {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.local_addr().unwrap().to_string()
    };
    let first = Target::configured(&refer("first", &[&second_place, "127.0.0.1:1"]));
    let config = refer("second", &[first.place()]);
    let mut command = nvlane();
    command.args(["target", "--listen", &second_place, "--config"]).arg(&config);
    let _second = Target::start(&mut command);
    let log = run(["discover", "-o", "json", first.place()]).json();
    let names = |log: &Value| -> Vec<String> {
        let records = log["records"].as_array().unwrap().iter();
        let subsystems = records.filter(|record| record["subtype"] == "nvme subsystem");
        subsystems.map(|record| record["subnqn"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(names(&log), ["nqn.2026-01.io.nvlane:first"]);
    let [second] = &log["referrals"].as_array().unwrap()[..] else { panic!("one: {log}") };
    assert_eq!(second["service"], second_place.as_str());
    assert_eq!(names(second), ["nqn.2026-01.io.nvlane:second"]);
    let [unreachable] = &log["unreachable"].as_array().unwrap()[..] else { panic!("one: {log}") };
    assert_eq!(unreachable["service"], "127.0.0.1:1");
    let text = run(["discover", first.place()]).text();
    assert!(text.contains("\nReferral to 127.0.0.1:1: "), "{text}");
}
