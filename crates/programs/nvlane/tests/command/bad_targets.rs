//! Storage and options that a target cannot serve are reported in one line, and nothing is changed.

use std::net::TcpListener;

use crate::support::{Ended, nvlane};
use tempfile::TempDir;

/// Runs a target in its own directory, which must be unchanged afterwards.
fn complaint(directory: &TempDir, arguments: &[&str]) -> String {
    let files = || {
        let entries = std::fs::read_dir(directory.path()).unwrap();
        let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        names
    };
    let before = files();
    let ended = Ended::of(nvlane().arg("target").args(arguments).current_dir(directory));
    assert_eq!(files(), before, "nothing half done");
    ended.complaint(2)
}

fn directory() -> TempDir {
    tempfile::tempdir().unwrap()
}

#[test]
fn a_missing_file_is_not_made_without_a_size() {
    let line = complaint(&directory(), &["--namespace", "file:missing.img"]);
    assert_eq!(line, "missing.img does not exist: add size= to have it made");
    let line = complaint(&directory(), &["--namespace", "file:nowhere/disk.img?size=1M"]);
    assert!(line.contains("make its directory first"), "{line}");
}

#[test]
fn a_size_is_a_multiple_of_the_block() {
    for spec in ["ram:1000", "file:disk.img?size=1000", "ram:5000?lba=512"] {
        let line = complaint(&directory(), &["--listen", "127.0.0.1:0", "--namespace", spec]);
        assert!(line.contains("not a multiple of its block size"), "{line}");
    }
}

#[test]
fn a_namespace_that_cannot_be_read_is_one_line_too() {
    for spec in ["rom:1M", "ram", "ram:lots", "ram:1M?colour=red"] {
        let line = complaint(&directory(), &["--namespace", spec]);
        assert!(line.contains(spec), "{line}");
    }
}

#[test]
fn a_busy_port_is_named_and_no_file_is_made_for_it() {
    let busy = TcpListener::bind("127.0.0.1:0").unwrap();
    let place = busy.local_addr().unwrap().to_string();
    let line = complaint(&directory(), &["--listen", &place, "--namespace", "file:disk.img?size=1M"]);
    assert!(line.starts_with(&format!("cannot listen on {place}: ")), "{line}");
    assert!(line.contains("take another port"), "{line}");
}

#[test]
fn configurations_are_wrong_at_a_line_and_column() {
    let directory = directory();
    let config = |text: &str| std::fs::write(directory.path().join("nvlane.toml"), text).unwrap();
    let complaint = || complaint(&directory, &["--config", "nvlane.toml"]);
    config("[[subsystem]]\nnqn = \"nqn.2026-01.io.nvlane:disk\"\nhos");
    assert!(complaint().starts_with("nvlane.toml:3:4: "), "cut short");
    config("[[subsystem]]\nnqn = \"nqn.2026-01.io.nvlane:disk\"\nhosts = \"any\"\nnamespaec = []\n");
    let line = complaint();
    assert!(line.starts_with("nvlane.toml:4:1: unknown key `namespaec`"), "{line}");
}

#[test]
fn nothing_to_serve_and_no_such_file_are_said() {
    assert!(complaint(&directory(), &[]).starts_with("nothing to serve"));
    let line = complaint(&directory(), &["--config", "nowhere.toml"]);
    assert!(line.starts_with("nowhere.toml: cannot be read: "), "{line}");
}
