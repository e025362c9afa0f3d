//! Targets that stop answering: every verb ends within a stated time, and a load reports its measurements so far.

use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use peer::session::Then;
use rustix::process::Signal;

use crate::support::{Ended, Target, answering, nvlane, run, signal, strange_target};

/// Limit of every wait in these tests.
const LIMIT: Duration = Duration::from_secs(60);

/// A process that is stopped (SIGSTOP) until the end of the test.
struct Stopped(u32);

impl Stopped {
    fn new(pid: u32) -> Self {
        signal(pid, Signal::STOP);
        Self(pid)
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        signal(self.0, Signal::CONT);
    }
}

/// Waits for a process that must end by itself, and returns its output.
#[track_caller]
fn ended(mut process: Child) -> Ended {
    let since = Instant::now();
    while process.try_wait().expect("it can be waited for").is_none() {
        if since.elapsed() > LIMIT {
            let _ = process.kill();
            panic!("it goes on for ever");
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    let output = process.wait_with_output().expect("it ended");
    Ended {
        code: output.status.code().expect("no signal"),
        stdout: String::from_utf8(output.stdout).expect("text"),
        stderr: String::from_utf8(output.stderr).expect("text"),
    }
}

fn start(arguments: &[&str]) -> Child {
    nvlane().args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it runs")
}

/// Starts a load, and waits until the target has answered reads or writes of it.
fn start_load(target: &Target, arguments: &[&str]) -> Child {
    let count = || {
        let log = target.ask(&["smart-log", "-o", "json"]).json();
        let of = |key: &str| log[key].as_u64().expect("a number");
        of("host_read_commands") + of("host_write_commands")
    };
    let before = count();
    let load = start(arguments);
    let since = Instant::now();
    while count() == before {
        assert!(since.elapsed() < LIMIT, "the load does not begin");
    }
    load
}

#[test]
fn every_verb_ends_at_a_peer_that_does_not_answer() {
    // Nothing, the handshake only, and the handshake and Connect.
    for count in 0..3 {
        let (_target, peer) = answering(count);
        let waits = ["--timeout", "0.3", "--connect-timeout", "0.3"];
        for verb in [
            &["identify"][..],
            &["list"],
            &["discover"],
            &["smart-log"],
            &["perf", "-t", "1"],
            &["kv", "get"],
            &["kv", "set"],
            &["kv", "delete"],
            &["kv", "exist"],
            &["kv", "list"],
            &["kv", "incr"],
            &["kv", "cas"],
            &["kv", "bench", "-t", "1"],
            &["kv", "load"],
            &["kv", "dump"],
            &["kv", "vector"],
        ] {
            let rest: &[&str] = match verb {
                ["kv", "get" | "delete" | "exist" | "incr"] => &["key"],
                ["kv", "set"] => &["key", "value"],
                ["kv", "cas"] => &["key", "1", "2"],
                ["kv", "load"] => &["-"],
                ["kv", "vector"] => &["key", "reduce"],
                _ => &[],
            };
            let words: Vec<&str> = [verb, &waits, &[peer.as_str()], rest].concat();
            let line = ended(start(&words)).complaint(4);
            assert!(line.contains("answer"), "{verb:?}: {line}");
        }
    }
}

#[test]
fn a_load_on_a_target_that_stops_ends_with_what_it_measured() {
    for more in [
        &["-w", "randread"][..],
        &["-w", "randrw", "--verify", "-P", "3", "-q", "8"],
        &["-w", "randrw", "--rate", "5000"],
        &["-w", "randread", "--submit", "mailbox", "-P", "2"],
        &["-w", "randread", "--queues", "default=1,read=1"],
    ] {
        let target = Target::serving(&["ram:16M"]);
        let base = ["perf", &target.address, "-t", "3", "-a", "0", "--timeout", "0.5", "--spin", "never"];
        let load = start_load(&target, &[&base[..], more].concat());
        let stopped = Stopped::new(target.id());
        let ended = ended(load);
        drop(stopped);
        assert_eq!(ended.code, 1, "{more:?}: {ended:?}");
        assert!(ended.stdout.contains("IOPS"), "{more:?}: {ended:?}");
        let is_told = ended.stderr.contains("did not answer") || ended.stderr.contains("operations failed");
        assert!(is_told, "{more:?}: {ended:?}");
    }
}

#[test]
fn a_load_that_is_interrupted_reports_what_it_measured_even_if_the_target_stopped() {
    for kind in [Signal::INT, Signal::TERM] {
        let target = Target::serving(&["ram:16M"]);
        let load = start_load(&target, &["perf", &target.address, "-t", "600", "-a", "0"]);
        let stopped = Stopped::new(target.id());
        signal(load.id(), kind);
        let ended = ended(load);
        drop(stopped);
        assert_eq!(ended.code, 1, "{ended:?}");
        assert!(ended.stdout.contains("IOPS") && ended.stderr.contains("did not answer"), "{ended:?}");

        // With a target that answers there is no error line.
        let load = start_load(&target, &["perf", &target.address, "-t", "600", "-a", "0"]);
        signal(load.id(), kind);
        let told = self::ended(load).text();
        assert!(told.contains("IOPS"), "{told}");
    }
}

#[test]
fn the_second_interrupt_ends_at_once() {
    let target = Target::serving(&["ram:16M"]);
    let mut load = start_load(&target, &["perf", &target.address, "-t", "600", "-a", "0"]);
    let stopped = Stopped::new(target.id());
    // The second signal counts as one only after the first was handled.
    while load.try_wait().expect("it can be waited for").is_none() {
        signal(load.id(), Signal::INT);
        std::thread::sleep(Duration::from_millis(50));
    }
    drop(stopped);
    let ended = ended(load);
    assert_eq!((ended.code, ended.stdout.as_str()), (130, ""), "{ended:?}");
}

#[test]
fn a_fill_that_gets_no_answer_has_an_end() {
    let target = Target::serving(&["ram:512M"]);
    let arguments =
        ["perf", &target.address, "--fill", "-w", "write", "-t", "1", "-q", "1", "--timeout", "0.5"];
    let load = start_load(
        &target,
        &[&arguments[..], &["--connect-timeout", "0.5", "-o", "4k", "--ctrl-loss-timeout", "1"]].concat(),
    );
    let stopped = Stopped::new(target.id());
    let ended = ended(load);
    drop(stopped);
    assert!(matches!(ended.code, 1 | 4), "{ended:?}");
    assert_eq!(ended.stderr.lines().filter(|line| line.starts_with("nvlane:")).count(), 1, "{ended:?}");
}

#[test]
fn the_waits_are_in_the_help_of_every_verb() {
    for verb in [
        &["identify"][..],
        &["list"],
        &["discover"],
        &["smart-log"],
        &["perf"],
        &["kv", "get"],
        &["kv", "bench"],
        &["kv", "load"],
    ] {
        let help = run([verb, &["--help"]].concat()).text();
        for option in ["--timeout", "--connect-timeout", "-H, --header-digest", "-I, --data-digest"] {
            assert!(help.contains(option), "{verb:?} has no {option}");
        }
    }
}

#[test]
fn ssh_and_http_are_told_from_a_target() {
    for banner in [&b"SSH-2.0-OpenSSH_9.9\r\n"[..], b"HTTP/1.1 400 Bad Request\r\n\r\n"] {
        let (_target, peer) = strange_target(move |session, _| {
            session.send(banner);
            Then::GoOn
        });
        for verb in ["identify", "list", "perf"] {
            let line = run([verb, &peer]).complaint(4);
            assert!(line.contains("is this an NVMe/TCP port?"), "{verb}: {line}");
        }
    }
}

#[test]
fn output_that_nobody_takes_is_said() {
    let target = Target::serving(&["ram:1M"]);
    for verb in ["identify", "list", "smart-log", "discover"] {
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full").expect("it is there");
        let ended = Ended::of_stderr(nvlane().args([verb, &target.address]).stdout(full));
        assert_eq!(ended.code, 1, "{verb}: {ended:?}");
        assert!(ended.stderr.starts_with("nvlane: standard output: "), "{verb}: {ended:?}");
    }
}

#[test]
fn keys_take_the_address_from_the_environment() {
    let target = Target::serving(&["kv:ram:64M"]);
    let kv = |words: &[&str]| Ended::of(nvlane().env("NVLANE_ADDR", &target.address).arg("kv").args(words));
    kv(&["set", "key", "value"]).text();
    assert_eq!(kv(&["get", "key"]).text(), "value");
    kv(&["exist", "key"]).text();
    kv(&["delete", "key"]).text();
    kv(&["incr", "visits", "3", "--initial", "4"]).text();
    kv(&["cas", "visits", "7", "8"]).text();
    kv(&["vector", "visits", "reduce"]).text();
    assert_eq!(kv(&["list"]).text(), "visits\n");
    assert!(kv(&["dump"]).dumped().contains("visits"));
    // The argument comes first.
    let line = kv(&["get", "127.0.0.1:1/nqn.2026-01.io.nvlane:x", "key"]).complaint(4);
    assert!(line.contains("127.0.0.1:1"), "{line}");
    for verb in ["get", "set", "delete", "exist", "list", "incr", "cas", "vector", "load", "dump", "bench"] {
        let line = run(["kv", verb]).complaint(2);
        assert!(line.contains("NVLANE_ADDR"), "{verb}: {line}");
    }
}

#[test]
fn a_pipe_that_is_closed_early_is_no_failure() {
    let target = Target::serving(&["ram:1M", "ram:1M"]);
    let mut list = nvlane()
        .args(["list", &target.address])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it runs");
    let mut first = String::new();
    BufReader::new(list.stdout.take().expect("piped")).read_line(&mut first).expect("a line");
    let ended = ended(list);
    assert_eq!((ended.code, ended.stderr.as_str()), (0, ""));
    assert!(first.starts_with("NSID"), "{first}");
}
