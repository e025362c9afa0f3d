//! Operating a running target: reloads, limits, signals.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::support::{nvlane, run};
use host::BlockingNamespace;
use host::{Address, Association, Error, Failure, Options};
use rustix::process::{Pid, Resource, Rlimit, Signal, kill_process, prlimit};
use serde_json::Value;
use tempfile::TempDir;
use wire::id::Nsid;
use wire::status::Status;

const PATIENCE: Duration = Duration::from_secs(60);
const ENGINES: [&str; 2] = ["uring", "epoll"];
const MEBIBYTE: u64 = 1 << 20;

/// A target with a configuration and a state file.
struct Target {
    process: Child,
    directory: TempDir,
    storage: Vec<String>,
    address: String,
}

impl Target {
    /// Serves this configuration on a free port; `DIR` in it stands for a new directory.
    fn start(engine: &str, storage: &[&str]) -> Self {
        Self::start_as(nvlane(), engine, storage)
    }

    fn start_as(mut command: Command, engine: &str, storage: &[&str]) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let storage = storage.iter().map(|&spec| spec.to_owned()).collect();
        let mut target = Self {
            process: Command::new("true").spawn().expect("a command"),
            directory,
            storage,
            address: String::new(),
        };
        let _ = target.process.wait();
        target.configure();
        command.args(["target", "--listen", "127.0.0.1:0", "--engine", engine, "--config"]);
        command.arg(target.path("nvlane.toml")).arg("--state").arg(target.path("state.json"));
        target.process = command.stderr(Stdio::null()).spawn().expect("a target");
        target.await_state(|_| true);
        let state = target.state();
        let address = state["listeners"][0]["address"].as_str().expect("an address");
        let nqn = state["subsystems"][0]["nqn"].as_str().expect("a name");
        target.address = format!("{address}/{nqn}");
        target
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Writes the configuration.
    fn configure(&self) {
        let here = self.directory.path().to_str().expect("text");
        let namespaces = self
            .storage
            .iter()
            .map(|spec| format!("[[subsystem.namespace]]\nstorage = \"{}\"\n", spec.replace("DIR", here)));
        let text = format!(
            "[reactors]\ncount = 2\n[[listener]]\naddress = \"127.0.0.1:0\"\n[[subsystem]]\n\
             nqn = \"nqn.2026-01.io.nvlane:operated\"\nhosts = \"any\"\n{}",
            namespaces.collect::<String>()
        );
        fs::write(self.path("nvlane.toml"), text).expect("written");
    }

    fn state(&self) -> Value {
        serde_json::from_slice(&fs::read(self.path("state.json")).expect("it was written")).expect("JSON")
    }

    /// Waits until the target has written a state that satisfies the condition.
    fn await_state(&self, is_it: impl Fn(&Value) -> bool) {
        let until = Instant::now() + PATIENCE;
        let path = self.path("state.json");
        while !(path.exists() && is_it(&self.state())) {
            assert!(Instant::now() < until, "no such state");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn reload(&self) -> crate::support::Ended {
        let state = self.path("state.json");
        run([Path::new("reload"), "--state".as_ref(), &state])
    }

    fn pid(&self) -> Pid {
        Pid::from_child(&self.process)
    }

    fn connect(&self) -> BlockingNamespace {
        let address: Address = self.address.parse().expect("an address");
        let association = Association::connect(&address, Options::default()).expect("a connection");
        let namespace = association.namespace(Nsid::new(1)).expect("a namespace");
        BlockingNamespace::new(&association, namespace).expect("a lane")
    }

    /// Ends the target and returns its output.
    fn end(mut self) {
        kill_process(self.pid(), Signal::TERM).expect("it runs");
        let status = self.process.wait().expect("it ends");
        assert!(status.success(), "{status}");
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn open_file(path: &Path) -> fs::File {
    fs::OpenOptions::new().write(true).open(path).expect("a file")
}

#[test]
fn reload_shows_what_came_of_it() {
    let mut target = Target::start("epoll", &["ram:1M"]);
    assert_eq!(target.reload().text(), "nothing to change\n");
    target.storage.push("file:DIR/a.img?size=1M".into());
    target.configure();
    let text = target.reload().text();
    assert!(
        text.starts_with("add nqn.2026-01.io.nvlane:operated namespace 2") && text.ends_with("done\n"),
        "{text}"
    );
    target.storage.push("file:DIR/missing.img".into());
    target.configure();
    let ended = target.reload();
    assert_eq!(ended.code, 1);
    assert!(ended.stdout.contains("not done") && ended.stdout.contains("does not exist"), "{ended:?}");
    assert_eq!(ended.stderr, "nvlane: not every change is in place\n");
    fs::write(target.path("nvlane.toml"), "listeners = 1").expect("written");
    let ended = target.reload();
    assert_eq!(ended.code, 1);
    assert!(ended.stdout.contains("nvlane.toml:1"), "{ended:?}");
    target.storage.pop();
    target.configure();
    let state = target.path("state.json");
    let json = run([Path::new("reload"), "-o".as_ref(), "json".as_ref(), "--state".as_ref(), &state]).json();
    assert_eq!((&json["is_complete"], &json["changes"]), (&Value::Bool(true), &Value::Array(vec![])));
}

#[test]
fn a_namespace_under_connected_hosts_is_removed_with_force_only() {
    let mut target = Target::start("epoll", &["ram:1M", "ram:1M"]);
    let host = target.connect();
    target.storage.pop();
    target.configure();
    let ended = target.reload();
    assert_eq!(ended.code, 1);
    assert!(
        ended.stdout.contains("not done, 1 host is connected")
            && ended.stdout.contains("nvlane reload --force"),
        "{ended:?}"
    );
    let count = || target.state()["subsystems"][0]["namespaces"].as_array().map(Vec::len);
    assert_eq!(count(), Some(2));
    let state = target.path("state.json");
    let text = run([Path::new("reload"), "--force".as_ref(), "--state".as_ref(), &state]).text();
    assert!(text.starts_with("remove ") && text.ends_with("done\n"), "{text}");
    assert_eq!(count(), Some(1));
    assert!(!target.path("state.json.force").exists());
    drop(host);
}

#[test]
fn a_full_disk_is_told_by_the_state_the_smart_log_and_the_log() {
    let disk = tempfile::tempdir().expect("a directory");
    let mounted =
        Command::new("mount").args(["-t", "tmpfs", "-o", "size=4M", "tmpfs"]).arg(disk.path()).output();
    if !mounted.as_ref().is_ok_and(|output| output.status.success()) {
        eprintln!("skipped: no file system can be mounted here (that takes root): {mounted:?}");
        return;
    }
    let other = disk.path().join("other");
    fs::write(&other, vec![1; 2 << 20]).expect("written");
    let target = Target::start("epoll", &[&format!("file:{}/a?size=16M", disk.path().display())]);
    let namespace = |state: &Value| state["subsystems"][0]["namespaces"][0].clone();
    assert_eq!(namespace(&target.state())["full"], false);
    let mut host = target.connect();
    let refused = (0..16).find_map(|at| status(host.write_at(&vec![1; 1 << 20], at << 20)));
    assert_eq!(refused, Some(Status::CAPACITY_EXCEEDED.with_dnr()));
    target.await_state(|state| namespace(state)["full"] == true && namespace(state)["spare_percent"] == 0);
    let log = run(["smart-log", &target.address, "-o", "json"]).json();
    assert_eq!((&log["critical_warning"], &log["avail_spare"]), (&1.into(), &0.into()), "{log}");
    fs::remove_file(other).expect("removed");
    target.await_state(|state| namespace(state)["full"] == false);
    let log = run(["smart-log", &target.address, "-o", "json"]).json();
    assert_eq!((&log["critical_warning"], &log["spare_thresh"]), (&0.into(), &10.into()), "{log}");
    assert_eq!(status(host.write_at(&vec![1; 1 << 20], 15 << 20)), None);
    drop(host);
    target.end();
    let _ = Command::new("umount").arg(disk.path()).status();
}

#[test]
fn reload_says_why_it_reaches_no_target() {
    let complain = |state: &Path| run([Path::new("reload"), "--state".as_ref(), state]);
    let directory = tempfile::tempdir().expect("a directory");
    let missing = complain(&directory.path().join("none")).complaint(2);
    assert!(missing.contains("nvlane target --state FILE"), "{missing}");
    let other = directory.path().join("other");
    fs::write(&other, "{}").expect("written");
    let other = complain(&other).complaint(2);
    assert!(other.contains("is not what a target of this version writes"), "{other}");

    let target = Target::start("epoll", &["ram:1M"]);
    let kept = directory.path().join("kept");
    fs::copy(target.path("state.json"), &kept).expect("copied");
    target.end();
    let ended = complain(&kept).complaint(4);
    assert!(ended.contains("has ended"), "{ended}");
    // Another process may have the same id by now.
    let mut state: Value = serde_json::from_slice(&fs::read(&kept).expect("there")).expect("JSON");
    state["process"]["pid"] = std::process::id().into();
    fs::write(&kept, state.to_string()).expect("written");
    let ended = complain(&kept).complaint(4);
    assert!(ended.contains("has ended"), "{ended}");
}

/// The state file may be in the hands of a user that is trusted less than the one that reloads.
#[test]
fn reload_signals_nothing_but_a_target_of_the_file_s_owner() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("state.json");
    let complain = |code| {
        let began = Instant::now();
        let line = run([Path::new("reload"), "--timeout".as_ref(), "2".as_ref(), "--state".as_ref(), &path])
            .complaint(code);
        assert!(began.elapsed() < PATIENCE / 2, "{line}");
        fs::remove_file(&path).expect("there");
        line
    };
    let mut victim = Command::new("sleep").arg("600").spawn().expect("a process");
    let stat = fs::read_to_string(format!("/proc/{}/stat", victim.id())).expect("it runs");
    let start_ticks: u64 = stat
        .rsplit_once(')')
        .and_then(|(_, rest)| rest.split_whitespace().nth(19))
        .expect("a start")
        .parse()
        .expect("ticks");
    let process = serde_json::json!({ "process": { "pid": victim.id(), "start_ticks": start_ticks } });
    fs::write(&path, process.to_string()).expect("written");
    let line = complain(4);
    assert!(line.contains("which is not an nvlane target: no signal was sent"), "{line}");
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(victim.try_wait().expect("a child"), None, "it runs on");
    victim.kill().and_then(|()| victim.wait()).expect("it ends");

    assert!(Command::new("mkfifo").arg(&path).status().expect("mkfifo").success());
    assert!(complain(2).contains("a pipe"));
    for place in ["/dev/zero", "/etc/passwd"] {
        std::os::unix::fs::symlink(place, &path).expect("a link");
        assert!(complain(2).contains("a symbolic link"));
    }
    fs::write(&path, "\"words of another file\"").expect("written");
    assert!(!complain(2).contains("words"), "a file of root's");

    let target = Target::start("epoll", &["ram:1M"]);
    let state = target.path("state.json");
    let ask = |pid: u32| {
        let pid = pid.to_string();
        run([Path::new("reload"), "--pid".as_ref(), pid.as_ref(), "--state".as_ref(), &state])
    };
    let line = ask(std::process::id()).complaint(4);
    assert!(line.contains("was written by process"), "{line}");
    assert_eq!(ask(target.process.id()).text(), "nothing to change\n");
    // Others may have written it, unless it belongs to the target's user.
    fs::copy(&state, &path).expect("copied");
    if std::os::unix::fs::chown(&path, Some(12345), None).is_ok() {
        let line = complain(4);
        assert!(line.contains("but the file belongs to user 12345: no signal was sent"), "{line}");
    }
    target.end();
}

#[test]
fn a_closed_namespace_is_reopened_by_a_reload() {
    for engine in ENGINES {
        let target = Target::start(engine, &["file:DIR/a.img?size=1M"]);
        let file = open_file(&target.path("a.img"));
        file.set_len(MEBIBYTE / 2).expect("cut");
        target.await_state(|state| !state["subsystems"][0]["namespaces"][0]["closed"].is_null());
        let mut namespace = target.connect();
        assert_eq!(
            status(namespace.read_at(&mut [0; 4096], 0)),
            Some(Status::NAMESPACE_NOT_READY.with_dnr())
        );
        let ended = target.reload();
        assert_eq!(ended.code, 1);
        assert!(ended.stdout.contains("not done") && ended.stdout.contains("it was cut"), "{ended:?}");
        file.set_len(MEBIBYTE).expect("restored");
        let text = target.reload().text();
        assert!(text.starts_with("reopen ") && text.contains(": done, it has 1M"), "{text}");
        assert_eq!(status(namespace.read_at(&mut [0; 4096], 0)), None);
        assert!(target.state()["subsystems"][0]["namespaces"][0]["closed"].is_null());
        target.end();
    }
}

fn status(result: Result<(), Error>) -> Option<Status> {
    match result {
        Ok(()) => None,
        Err(Error::Failed { failure: Failure::Status(status), .. }) => Some(status),
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn a_file_size_limit_is_an_answer_and_not_the_end_of_the_target() {
    for engine in ENGINES {
        let target = Target::start(engine, &["file:DIR/a.img?size=4M"]);
        let limit = Rlimit { current: Some(2 * MEBIBYTE), maximum: Some(2 * MEBIBYTE) };
        prlimit(Some(target.pid()), Resource::Fsize, limit).expect("a limit");
        let mut namespace = target.connect();
        let full = Some(Status::CAPACITY_EXCEEDED.with_dnr());
        for _ in 0..3 {
            assert_eq!(status(namespace.write_at(&[1; 4096], 3 * MEBIBYTE)), full, "{engine}");
            assert_eq!(status(namespace.write_durably_at(&[1; 4096], 3 * MEBIBYTE)), full, "{engine}");
        }
        assert_eq!(status(namespace.write_at(&[1; 4096], MEBIBYTE)), None);
        assert_eq!(status(namespace.flush()), None, "nothing was lost");
        target.end();
    }
}

#[test]
fn a_file_that_may_not_be_made_so_large_is_not_left_half_made() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("a.img");
    for engine in ENGINES {
        let mut command = Command::new("prlimit");
        command.args(["--fsize=1048576", env!("CARGO_BIN_EXE_nvlane"), "target", "--listen", "127.0.0.1:0"]);
        command.args(["--engine", engine, "--namespace"]).arg(format!("file:{}?size=8M", path.display()));
        command.env("NVLANE_LOG", "error");
        let complaint = crate::support::Ended::of(&mut command).complaint(2);
        assert!(
            complaint.contains("File too large") && complaint.contains("files of 1M (ulimit -f"),
            "{complaint}"
        );
        assert!(!path.exists());
    }
}

/// The signals that a thread blocks.
fn blocked(task: &Path) -> Option<u64> {
    let status = fs::read_to_string(task.join("status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("SigBlk:"))?;
    u64::from_str_radix(line.trim(), 16).ok()
}

/// Checks that every I/O thread blocks signals. Returns the threads' names.
fn check_masks(pid: u32) -> Vec<String> {
    let mut names = Vec::new();
    for task in fs::read_dir(format!("/proc/{pid}/task")).expect("threads") {
        let task = task.expect("a thread").path();
        let name = fs::read_to_string(task.join("comm")).expect("its name");
        if name.starts_with("reactor-") || name.starts_with("storage-") {
            let blocked = blocked(&task).expect("its mask");
            for signal in [Signal::HUP, Signal::USR1, Signal::TERM, Signal::XFSZ, Signal::CHILD] {
                assert_ne!(blocked >> (signal.as_raw() - 1) & 1, 0, "{name} takes {signal:?}");
            }
            names.push(name);
        }
    }
    names
}

#[test]
fn a_storm_of_signals_holds_up_no_storage() {
    for engine in ENGINES {
        let target = Target::start(engine, &["file:DIR/a.img?size=4M"]);
        let mut namespace = target.connect();
        // Storage threads start with the first operation.
        assert_eq!(status(namespace.write_at(&[1; 4096], 0)), None);
        let names = check_masks(target.process.id());
        let is_there = |prefix: &str| names.iter().any(|name| name.starts_with(prefix));
        assert_eq!((is_there("reactor-"), is_there("storage-")), (true, engine == "epoll"), "{names:?}");
        std::thread::scope(|scope| {
            let load = scope.spawn(|| {
                for round in 0..10 {
                    assert_eq!(status(namespace.write_at(&[1; 4096], round * 4096)), None);
                    assert_eq!(status(namespace.write_durably_at(&[1; 4096], round * 4096)), None);
                    assert_eq!(status(namespace.flush()), None);
                }
            });
            while !load.is_finished() {
                kill_process(target.pid(), Signal::USR1).expect("it runs");
                std::thread::sleep(Duration::from_micros(200));
            }
        });
        target.end();
    }
}

#[test]
fn a_namespace_follows_its_file_without_any_signal() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("disk.img");
    fs::write(&path, vec![7; 1 << 20]).expect("a file");
    let spec = format!("file:{}", path.display());
    let target = Target::start("epoll", &[&spec]);
    open_file(&path).write_all_at(&[8; 4096], MEBIBYTE).expect("longer");
    target.await_state(|state| state["subsystems"][0]["namespaces"][0]["bytes"] == MEBIBYTE + 4096);
    let mut namespace = target.connect();
    let mut data = [0; 4096];
    assert_eq!(status(namespace.read_at(&mut data, MEBIBYTE)), None);
    assert_eq!(data, [8; 4096]);
    target.end();
}
