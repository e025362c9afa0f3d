//! Conditions that must not end a target or keep it from serving other hosts.

use std::io::Read;
use std::net::TcpStream;
use std::process::Stdio;
use std::time::{Duration, Instant};

use crate::support::{Target, nvlane, run};

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
    let mut command = std::process::Command::new("sh");
    command.env("NVLANE_LOG", "error").env_remove("NVLANE_ADDR");
    let line = format!(
        "ulimit -Sn 512; exec {} target --listen 127.0.0.1:0 --namespace ram:1M --run \"$@\"",
        env!("CARGO_BIN_EXE_nvlane")
    );
    command.args(["-c", &line, "sh"]);
    let target = Target::start_raw(&mut command);
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
    let mut command = std::process::Command::new("sh");
    command.env("NVLANE_LOG", "error").env_remove("NVLANE_ADDR");
    let line = format!(
        "ulimit -n {LIMIT}; exec {} target --listen 127.0.0.1:0 --cores 0 --namespace ram:1M --run \"$@\"",
        env!("CARGO_BIN_EXE_nvlane")
    );
    command.args(["-c", &line, "sh"]);
    let target = Target::start_raw(&mut command);
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
