//! Conditions that must not end a target or keep it from serving other hosts.

use std::io::Read;
use std::net::TcpStream;
use std::process::Stdio;
use std::time::{Duration, Instant};

use crate::support::{Target, nvlane, run};

/// A target with these options, started under a limit of `ulimit`.
fn limited_target(limit: &str, options: &str) -> Target {
    let mut command = std::process::Command::new("sh");
    command.env("NVLANE_LOG", "error").env_remove("NVLANE_ADDR");
    let line = format!(
        "ulimit {limit}; exec {} target --listen 127.0.0.1:0 {options} --namespace ram:1M --run \"$@\"",
        env!("CARGO_BIN_EXE_nvlane")
    );
    Target::start_raw(command.args(["-c", &line, "sh"]))
}

#[test]
fn a_log_whose_reader_is_gone_does_not_end_the_target() {
    let mut command = nvlane();
    command.args(["target", "--listen", "127.0.0.1:0", "--namespace", "ram:1M"]);
    command.env("NVLANE_LOG", "debug").stderr(Stdio::piped());
    let mut target = Target::start(&mut command);
    drop(target.stderr());
    for _ in 0..3 {
        run(["list", &target.address]).text();
    }
}

/// hostile R1, wire §28.28
#[test]
fn more_connections_than_the_usual_limit_leave_room_for_others() {
    let target = limited_target("-Sn 512", "");
    let connections: Vec<_> = (0..700).filter_map(|_| TcpStream::connect(target.place()).ok()).collect();
    assert_eq!(connections.len(), 700);
    run(["list", &target.address, "--timeout", "5"]).text();
    // Both connections are still open, as the test requires.
    let mut last = connections.last().expect("many");
    last.set_nonblocking(true).expect("a socket");
    assert!(last.read(&mut [0]).is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock));
}

/// A target without a free descriptor accepts no new connection, keeps those it has, and accepts again once descriptors
/// are free.
///
/// hostile R10
#[test]
fn a_target_out_of_descriptors_accepts_again_once_some_are_free() {
    const LIMIT: usize = 64;
    let target = limited_target(&format!("-n {LIMIT}"), "--cores 0");
    // The kernel completes these connections; the target lacks descriptors for some of them.
    let connections: Vec<_> =
        (0..2 * LIMIT).map(|_| TcpStream::connect(target.place()).expect("accepted")).collect();
    let open = || std::fs::read_dir(format!("/proc/{}/fd", target.id())).expect("its descriptors").count();
    let until = Instant::now() + Duration::from_secs(20);
    while open() < LIMIT {
        assert!(Instant::now() < until, "{} descriptors of {LIMIT}", open());
        std::thread::sleep(Duration::from_millis(10));
    }
    drop(connections);
    run(["list", &target.address, "--timeout", "20"]).text();
}
