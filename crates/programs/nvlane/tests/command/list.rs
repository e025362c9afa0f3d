//! `nvlane list`: the namespaces of one subsystem, or of all subsystems in a discovery log.

use crate::support::{Target, run};

#[test]
fn a_subsystem_has_a_line_for_each_namespace() {
    let target = Target::serving(&["ram:64M", "ram:16M?lba=512"]);
    let text = target.ask(&["list"]).text();
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(lines.len(), 3, "{text}");
    assert!(lines[1].starts_with("1     64 MiB  64 MiB  4096 B  nvlane"), "{text}");
    assert!(lines[2].ends_with(&format!("{}?ns=2", target.address)), "{text}");
}

#[test]
fn json_has_the_names_that_scripts_know_and_addresses_that_lead_there() {
    let target = Target::serving(&["ram:64M", "ram:16M?lba=512"]);
    let list = target.ask(&["list", "-o", "json"]).json();
    let devices = list["Devices"].as_array().unwrap();
    assert_eq!(devices.len(), 2);
    assert_eq!((&devices[1]["NameSpace"], &devices[1]["SectorSize"]), (&2.into(), &512.into()));
    assert_eq!((&devices[0]["PhysicalSize"], &devices[0]["MaximumLBA"]), (&(64 << 20).into(), &16384.into()));
    let path = devices[1]["DevicePath"].as_str().unwrap();
    let only = run(["list", "-o", "json", path]).json();
    assert_eq!(only["Devices"].as_array().unwrap()[..], devices[1..]);
}

#[test]
fn a_discovery_address_lists_every_subsystem() {
    let directory = tempfile::tempdir().unwrap();
    let config = directory.path().join("nvlane.toml");
    let subsystem = |name: &str| {
        format!(
            "[[subsystem]]\nnqn = \"nqn.2026-01.io.nvlane:{name}\"\nhosts = \"any\"\n\
             namespace = [{{ storage = \"ram:1M\" }}]\n"
        )
    };
    std::fs::write(&config, subsystem("first") + &subsystem("second")).unwrap();
    let target = Target::configured(&config);
    let list = run(["list", "-o", "json", target.place()]).json();
    let names: Vec<_> =
        list["Devices"].as_array().unwrap().iter().map(|device| &device["SubsystemNQN"]).collect();
    assert_eq!(names, ["nqn.2026-01.io.nvlane:first", "nqn.2026-01.io.nvlane:second"]);
}
