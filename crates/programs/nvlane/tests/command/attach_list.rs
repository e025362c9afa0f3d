//! `nvlane attach list` and `nvlane attach auto`.

use std::path::Path;
use std::process::Command;

use crate::support::{Ended, Target, nvlane, program, run};

#[test]
fn a_bridge_is_listed_until_it_ends() {
    let target = Target::serving(&["ram:1M"]);
    let directory = tempfile::tempdir().expect("a directory");
    let here = |arguments: &[&str]| -> Command {
        let mut command = nvlane();
        command.env("XDG_RUNTIME_DIR", directory.path()).env("TMPDIR", directory.path());
        command.args(arguments);
        command
    };
    let line = format!("echo \"$NVLANE_DEVICE\"; echo $PPID; {} attach list -o json", program());
    let text = Ended::of(&mut here(&["attach", "nbd", &target.address, "--run", &line])).text();
    let (uri, rest) = text.split_once('\n').expect("three parts");
    let (process, listing) = rest.split_once('\n').expect("three parts");
    let process: u64 = process.parse().expect("a number");
    let listing: serde_json::Value = serde_json::from_str(listing).expect("JSON");
    let of_it = |bridge: &&serde_json::Value| bridge["process"].as_u64() == Some(process);
    let found = listing["bridges"].as_array().expect("a list").iter().find(of_it);
    let found = found.unwrap_or_else(|| panic!("process {process} in {listing}"));
    assert_eq!((&found["kind"], &found["devices"]), (&"nbd".into(), &serde_json::json!([uri])));
    let address = found["addresses"][0].as_str().expect("text");
    assert!(address.starts_with(&target.address) || target.address.starts_with(address), "{address}");
    let killed = here(&["attach", "nbd", &target.address, "--run", "kill -KILL $PPID"]).output();
    assert!(!killed.expect("it runs").status.success());
    let text = Ended::of(&mut here(&["attach", "list"])).text();
    assert!(!text.contains(&format!("{}", directory.path().display())), "{text}");
}

#[test]
fn auto_says_what_it_takes_and_why() {
    let text = run(["attach", "auto", "192.0.2.1", "--explain", "--run", "true"]).text();
    assert!(text.contains("kernel: left: --run is for bridges"), "{text}");
    assert_eq!(text.lines().filter(|line| line.contains(": taken: ")).count(), 1, "{text}");
    let command = text.lines().last().expect("a command");
    assert!(command.starts_with("nvlane attach ") && command.ends_with("192.0.2.1 --run true"), "{text}");
    let json = run(["attach", "auto", "-o", "json", "--explain", "192.0.2.1", "--run", "true"]).json();
    assert_eq!(json["ways"].as_array().expect("a list").len(), 4);
    run(["attach", "auto", "http://x"]).complaint(2);
    if Path::new("/dev/ublk-control").exists() {
        return;
    }
    let target = Target::serving(&["ram:1M"]);
    let ended = run(["attach", "auto", &target.address, "--run", "echo \"$NVLANE_DEVICE\""]);
    if ended.stderr.contains("fuse: taken: the kernel has FUSE") {
        // Who may open the device may still not mount.
        assert!(ended.stdout.ends_with("/ns1\n") || ended.stderr.contains("may not mount"), "{ended:?}");
    } else {
        assert!(ended.stderr.contains("nbd: taken: needs nothing of the kernel"), "{ended:?}");
        assert!(ended.stdout.starts_with("nbd+unix:///"), "{ended:?}");
    }
}
