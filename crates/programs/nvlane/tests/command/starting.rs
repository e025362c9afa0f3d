//! The start of a target: what it waits for, signals that arrive meanwhile, and what the service manager is told.

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;
use tempfile::TempDir;

use crate::support::{self, Ended, Target, nvlane, run};

const PATIENCE: Duration = Duration::from_secs(60);

/// A `nvlane target` process, killed on drop.
struct Started {
    process: Child,
    directory: TempDir,
}

impl Started {
    /// Starts a target on a free port, with a state file. `DIR` in the arguments stands for a directory.
    fn new(directory: TempDir, arguments: &[&str], change: impl FnOnce(&mut Command)) -> Self {
        let mut command = nvlane();
        command.args(["target", "--engine", "epoll", "--listen", "127.0.0.1:0", "--state"]);
        command.arg(directory.path().join("state.json")).stderr(Stdio::null());
        command
            .args(arguments.iter().map(|word| word.replace("DIR", directory.path().to_str().expect("text"))));
        change(&mut command);
        Self { process: command.spawn().expect("a target"), directory }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn signal(&self, signal: Signal) {
        support::signal(self.process.id(), signal);
    }

    /// Waits for a state that satisfies the condition.
    fn await_state(&mut self, is_it: impl Fn(&Value) -> bool) {
        let until = Instant::now() + PATIENCE;
        loop {
            let state = fs::read(self.path("state.json")).ok();
            if state.is_some_and(|text| serde_json::from_slice(&text).is_ok_and(|state| is_it(&state))) {
                return;
            }
            assert_eq!(self.process.try_wait().expect("a child"), None, "it runs");
            assert!(Instant::now() < until, "no such state");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn end(&mut self) -> ExitStatus {
        self.signal(Signal::TERM);
        self.process.wait().expect("it ends")
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn directory() -> TempDir {
    tempfile::tempdir().expect("a directory")
}

fn make_pipe(path: &Path) {
    assert!(Command::new("mkfifo").args(["-m", "600"]).arg(path).status().expect("mkfifo").success());
}

/// Waits until the target reads the pipe, and returns its other end.
fn writer_of(pipe: &Path) -> fs::File {
    fs::OpenOptions::new().write(true).open(pipe).expect("a pipe with a reader")
}

const CONFIG: &str = "[[subsystem]]\nnqn = \"nqn.2026-01.io.nvlane:started\"\nhosts = \"any\"\n[[subsystem.namespace]]\nstorage = \"ram:1M\"\n";

/// Address space that each of them reserves to grow in must not be all that there is.
#[test]
fn three_hundred_namespaces_of_memory_leave_address_space_to_reactors() {
    let target = Target::serving(&["ram:1M"; 300]);
    let listed = run(["list", target.place(), "-o", "json"]).json();
    assert_eq!(listed["Devices"].as_array().map(Vec::len), Some(300));
}

/// logrotate at boot, or a manager that reloads what it has just started.
#[test]
fn signals_that_come_before_the_target_serves_are_handled_once_it_does() {
    let directory = directory();
    let config = directory.path().join("nvlane.toml");
    make_pipe(&config);
    let mut target = Started::new(directory, &["--config", "DIR/nvlane.toml"], |_| {});
    let mut writer = writer_of(&config);
    for signal in [Signal::HUP, Signal::USR1, Signal::USR2] {
        target.signal(signal);
    }
    // The reload reads a file.
    fs::remove_file(&config).expect("removed");
    fs::write(&config, CONFIG).expect("written");
    writer.write_all(CONFIG.as_bytes()).expect("it reads");
    drop(writer);
    target.await_state(|state| state["reload"]["is_complete"] == true);
    assert!(target.end().success());
}

#[test]
fn a_start_that_waits_ends_at_once_with_sigterm() {
    for signal in [Signal::TERM, Signal::INT] {
        let directory = directory();
        let key = directory.path().join("key");
        make_pipe(&key);
        let arguments = ["--namespace", "ram:1M", "--dhchap-secret", "DIR/key"];
        let mut target = Started::new(directory, &arguments, |_| {});
        let _writer = writer_of(&key);
        target.signal(signal);
        let ended = target.process.wait().expect("it ends");
        assert_eq!(ended.signal(), Some(signal.as_raw()), "{ended}");
    }
}

#[test]
fn a_key_that_never_comes_is_an_error() {
    let directory = directory();
    let key = directory.path().join("key");
    make_pipe(&key);
    for (path, part) in
        [(key.as_path(), "a pipe that delivers nothing within 5 s"), (Path::new("/dev/zero"), "a device")]
    {
        let mut command = nvlane();
        command.args(["target", "--listen", "127.0.0.1:0", "--namespace", "ram:1M", "--dhchap-secret"]);
        let complaint = Ended::of(command.arg(path)).complaint(2);
        assert!(complaint.contains(part), "{complaint}");
    }
}

#[test]
fn the_service_manager_is_told_of_the_start_of_reloads_and_of_the_end() {
    let directory = directory();
    let manager = UnixDatagram::bind(directory.path().join("manager")).expect("a socket");
    manager.set_read_timeout(Some(PATIENCE)).expect("a time limit");
    let told = || {
        let mut message = [0; 1024];
        let length = manager.recv(&mut message).expect("a message");
        String::from_utf8(message[..length].to_vec()).expect("text")
    };
    let arguments = ["--namespace", "ram:1M"];
    let name = directory.path().join("manager");
    let mut target = Started::new(directory, &arguments, |command| {
        command.env("NOTIFY_SOCKET", name);
    });
    let ready = told();
    assert!(ready.starts_with("READY=1\nSTATUS=1 namespaces at 127.0.0.1:"), "{ready}");
    target.signal(Signal::HUP);
    let reloading = told();
    assert!(reloading.starts_with("RELOADING=1\nMONOTONIC_USEC="), "{reloading}");
    assert!(told().starts_with("READY=1\n"));
    target.await_state(|state| state["reload"]["is_complete"] == true);
    assert!(target.end().success());
    assert!(told().starts_with("STOPPING=1\n"));
}

/// A target takes over the socket that the manager passes at its address: a host that connects between two targets is served
/// by the second. The log names a passed socket that no listener has.
#[test]
fn sockets_of_the_service_manager_are_taken_over() {
    let directory = directory();
    let listeners = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").expect("a free port"));
    let addresses = listeners.each_ref().map(|listener| listener.local_addr().expect("bound").to_string());
    let [held, other] = listeners.map(OwnedFd::from);
    let log = directory.path().join("log");
    for _ in 0..2 {
        // It waits until the target serves.
        let mut early = TcpStream::connect(&addresses[0]).expect("the manager listens");
        let line = format!(
            "exec 3<&0 4<&1 0</dev/null 1>/dev/null; export LISTEN_PID=$$ LISTEN_FDS=2; exec {} target --listen {} --namespace ram:1M 2>{}",
            env!("CARGO_BIN_EXE_nvlane"),
            addresses[0],
            log.display()
        );
        let mut command = Command::new("sh");
        command.args(["-c", &line]);
        command
            .stdin(held.try_clone().expect("a descriptor"))
            .stdout(other.try_clone().expect("a descriptor"));
        let mut target = command.spawn().expect("a shell");
        let listed = Ended::of(nvlane().args(["list", &addresses[0]])).text();
        assert!(listed.contains("1 M"), "{listed}");
        early.set_read_timeout(Some(PATIENCE)).expect("a time limit");
        early.write_all(&[0xFF; 128]).expect("sent");
        assert!(early.read(&mut [0; 128]).is_ok(), "it is answered or closed");
        support::signal(target.id(), Signal::TERM);
        assert!(target.wait().expect("ended").success());
        let said = fs::read_to_string(&log).expect("a log");
        let unused = format!(
            "socket of the service manager is not used: no listener of the configuration has this address address={}",
            addresses[1]
        );
        assert!(said.contains(&unused), "{said}");
        assert!(
            !said.contains(&format!(
                "not used: no listener of the configuration has this address address={}",
                addresses[0]
            )),
            "{said}"
        );
    }
}

/// The manager gets signs of life while all reactors answer, and only from the process of which it expects them.
#[test]
fn the_service_manager_gets_signs_of_life() {
    for is_expected in [true, false] {
        let directory = directory();
        let manager = UnixDatagram::bind(directory.path().join("manager")).expect("a socket");
        manager.set_read_timeout(Some(Duration::from_millis(500))).expect("a time limit");
        let name = directory.path().join("manager");
        let mut target = Started::new(directory, &["--namespace", "ram:1M"], |command| {
            command.env("NOTIFY_SOCKET", name).env("WATCHDOG_USEC", "60000");
            if !is_expected {
                command.env("WATCHDOG_PID", "1");
            }
        });
        target.await_state(|_| true);
        let mut told = [0; 1024];
        let mut count = 0;
        while count < 10
            && let Ok(length) = manager.recv(&mut told)
        {
            count += usize::from(&told[..length] == b"WATCHDOG=1");
        }
        assert_eq!(count, if is_expected { 10 } else { 0 });
        assert!(target.end().success());
    }
}

#[test]
fn the_command_of_a_target_does_not_speak_to_its_service_manager() {
    let directory = directory();
    let name = directory.path().join("manager");
    let _manager = UnixDatagram::bind(&name).expect("a socket");
    let mut command = nvlane();
    command.args(["target", "--listen", "127.0.0.1:0", "--namespace", "ram:1M", "--run"]);
    command.arg("echo \"${NOTIFY_SOCKET-none} $(grep SigBlk /proc/self/status)\"").env("NOTIFY_SOCKET", name);
    assert_eq!(Ended::of(&mut command).text(), "none SigBlk:\t0000000000000000\n");
}

#[test]
fn an_address_that_comes_later_is_listened_on() {
    let line = format!(
        "ip link set lo up && exec {0} target --engine epoll --listen 192.0.2.77:0 --listen '[2001:db8::77]:0' --namespace ram:1M --run \
         'ip address add 192.0.2.77/32 dev lo && ip address add 2001:db8::77/128 dev lo nodad && {0} list $NVLANE_ADDR'",
        env!("CARGO_BIN_EXE_nvlane")
    );
    let mut command = Command::new("unshare");
    command.args(["-rn", "sh", "-c", &line]).env_remove("NVLANE_ADDR").env("NVLANE_LOG", "warn");
    let ended = Ended::of(&mut command);
    if ended.stderr.starts_with("unshare: ") {
        return eprintln!("skipped: {}", ended.stderr);
    }
    assert_eq!(ended.code, 0, "{ended:?}");
    assert!(ended.stdout.contains("1 MiB") || ended.stdout.contains("ram"), "{ended:?}");
    for address in ["192.0.2.77:0", "[2001:db8::77]:0"] {
        let told = |line: &str| {
            line.contains("no interface of this machine has this address") && line.contains(address)
        };
        assert!(ended.stderr.lines().any(told), "{ended:?}");
    }
}

/// logrotate must not apply a configuration that is being edited.
#[test]
fn sigusr2_opens_the_audit_log_again_and_reloads_nothing() {
    let directory = directory();
    let audit = directory.path().join("audit");
    fs::write(directory.path().join("nvlane.toml"), CONFIG).expect("written");
    let mut target =
        Started::new(directory, &["--config", "DIR/nvlane.toml", "--audit", "DIR/audit"], |_| {});
    target.await_state(|_| true);
    fs::write(target.path("nvlane.toml"), CONFIG.replace("ram:1M", "ram:2M")).expect("written");
    fs::rename(&audit, target.path("audit.1")).expect("renamed");
    target.signal(Signal::USR2);
    let until = Instant::now() + PATIENCE;
    while !audit.exists() {
        assert!(Instant::now() < until, "no new file");
        std::thread::sleep(Duration::from_millis(10));
    }
    target.await_state(|state| state["audit"]["error"].is_null());
    target.await_state(|state| {
        state["reload"].is_null() && state["subsystems"][0]["namespaces"][0]["bytes"] == 1 << 20
    });
    assert!(target.end().success());
    assert!(fs::read_to_string(&audit).expect("a log").contains("\"stopped\""));
}

#[test]
fn a_time_limit_is_at_most_a_day() {
    let complaint = run(["reload", "--state", "/none", "--timeout", "18446744073709551615"]).complaint(2);
    assert!(complaint.contains("86400"), "{complaint}");
}
