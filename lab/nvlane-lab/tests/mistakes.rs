//! What people mistype, and what is not there: one line that says so.

#[path = "../../../crates/programs/nvlane/tests/support/mod.rs"]
mod support;

use std::path::Path;
use std::process::{Command, Stdio};

use support::{Ended, Target, answering, nvlane, run};

/// Exit code of wrong options.
const USAGE: i32 = 2;

#[test]
fn options_that_are_wrong_are_named() {
    for (command, hint) in [
        (&["study", "ceiling", "-c", "0,1023"][..], "there is no core 1023 for this process, which runs on"),
        (&["--log", "inof", "study", "list"], "is not a log level"),
        (&["study", "cieling"], "did you mean ceiling?"),
        (&["study", "lst"], "did you mean list?"),
        (&["study", "kv-hitratio", "--quick"], "did you mean kv-hit-ratio?"),
        (&["study", "nothing-like-it"], "there are ceiling, "),
    ] {
        let line = run(command).complaint(USAGE);
        assert!(line.contains(hint), "{command:?}: {line}");
    }
}

#[test]
fn results_that_could_not_be_written_are_not_measured() {
    let target = Target::serving(&["ram:1M"]);
    for command in [
        &["probe", &target.address, "--json", "/nowhere/at/all"][..],
        &["study", "ceiling", "--out", "/proc/nowhere"],
    ] {
        let line = run(command).complaint(USAGE);
        assert!(line.contains("/nowhere/at/all") || line.contains("/proc/nowhere"), "{line}");
    }
}

#[test]
fn a_reader_that_has_seen_enough_ends_the_command_without_a_word() {
    for command in [["probe", "--list"], ["study", "list"]] {
        let mut process =
            nvlane().args(command).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it runs");
        drop(process.stdout.take());
        let output = process.wait_with_output().expect("it ends");
        assert_eq!((output.status.code(), &output.stderr[..]), (Some(0), &b""[..]), "{command:?}");
    }
}

#[test]
fn a_peer_that_is_not_there_or_does_not_answer_ends_a_probe_with_its_exit_code() {
    let line = run(["probe", "127.0.0.1:1/nqn.2026-01.io.nvlane:x"]).complaint(4);
    assert!(line.contains("before any row"), "{line}");
    for count in 0..3 {
        let (_target, peer) = answering(count);
        let words = ["probe", "--row", "P1", "--timeout", "0.5", "--connect-timeout", "0.5", &peer];
        let line = run(words).complaint(4);
        assert!(line.contains("before any row"), "after {count} PDUs: {line}");
    }
    let help = run(["probe", "--help"]).text();
    for option in ["--timeout", "--connect-timeout", "-H, --header-digest", "-I, --data-digest"] {
        assert!(help.contains(option), "no {option}");
    }
}

#[test]
fn a_program_without_the_other_beside_it_says_what_is_missing() {
    let directory = tempfile::tempdir().expect("a directory");
    let alone = |name: &str| {
        let copy = directory.path().join(name).join(name);
        std::fs::create_dir(copy.parent().expect("its directory")).expect("a directory");
        // By another process: one that another test begins meanwhile would have the file open for writing, too, until it
        // has called execve, and a file that is open for writing does not run (ETXTBSY).
        let program = Path::new(support::program()).with_file_name(name);
        let copied = Command::new("cp").arg(program).arg(&copy).status();
        assert!(copied.is_ok_and(|status| status.success()));
        copy
    };
    for (name, words, missing) in [
        ("nvlane", &["study", "list"][..], "cargo install --path lab/nvlane-lab"),
        ("nvlane-lab", &["study", "ceiling", "--quick"], "there is no program nvlane beside this one"),
    ] {
        let mut command = Command::new(alone(name));
        command.args(words).env("PATH", "/nowhere").current_dir(&directory);
        let line = Ended::of(&mut command).complaint(USAGE);
        assert!(line.contains(missing), "{line}");
    }
}
