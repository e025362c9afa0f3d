//! The system calls of a target, traced under load with both engines and compared with `packaging/system-calls.txt`,
//! from which seccomp profiles are made, and with the filter of `packaging/nvlane.service`; and its durable calls.

mod durable;

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use peer::port::free_address;
use rustix::process::{Pid, Signal, kill_process};

use crate::command::{program_path, root, run as run_command, target_dir};
use crate::deps;

/// Time limit for the start of a traced target, which is slow.
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// Paths of a traced target, in its directory.
const LOG: &str = "strace.txt";
const IMAGE: &str = "namespace.img";
const CONFIG: &str = "nvlane.toml";
const ADQ_RECORDS: &str = "adq";
const CONTROL: &str = "control.sock";

/// A record of `nvlane adq` for the loopback interface, whose class has the connections to `PORT`: the target compares the
/// interface with it.
const ADQ_RECORD: &str = include_str!("syscalls/adq-record.json");

/// The subsystem under test.
const NQN: &str = "nqn.2026-01.io.nvlane:traced";

/// Traces targets and compares their system calls with the lists.
pub(crate) fn run() -> Result<()> {
    deps::install_programs(deps::STRACE)?;
    let listed = listed()?;
    let in_unit = in_unit()?;
    ensure!(
        listed == in_unit,
        "packaging/system-calls.txt and packaging/nvlane.service differ in {:?}",
        listed.symmetric_difference(&in_unit).collect::<Vec<_>>()
    );
    let mut made = BTreeSet::new();
    for engine in ["uring", "epoll"] {
        let of_engine = trace(engine).with_context(|| format!("engine {engine}"))?;
        println!("{engine}: {}", of_engine.iter().map(String::as_str).collect::<Vec<_>>().join(" "));
        made.extend(of_engine);
    }
    let missing: Vec<_> = made.difference(&listed).collect();
    ensure!(missing.is_empty(), "packaging/system-calls.txt lacks {missing:?}, which a target makes");
    println!("{} system calls made, all of {} listed", made.len(), listed.len());
    for engine in ["uring", "epoll"] {
        durable::check(engine).with_context(|| format!("durable calls, engine {engine}"))?;
    }
    Ok(())
}

/// The first difference between the durable calls of a target (with epoll) and those that its commands must make. Its
/// files are in `directory`; a variable of the environment may switch a planted bug on.
pub(crate) fn durable_calls(
    program: &Path,
    directory: &Path,
    variable: Option<(&str, &str)>,
) -> Result<Option<String>> {
    let found = durable::Subject { engine: "epoll", program, directory, variable }.observe()?.judge();
    Ok(found.err().and_then(|error| error.to_string().lines().next().map(str::to_owned)))
}

/// The list: one name per line, `#` begins a comment.
fn listed() -> Result<BTreeSet<String>> {
    let path = root().join("packaging/system-calls.txt");
    let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    let names = text.lines().filter_map(|line| line.split('#').next()).flat_map(str::split_whitespace);
    Ok(names.map(str::to_owned).collect())
}

/// The system calls that the unit's filter allows.
fn in_unit() -> Result<BTreeSet<String>> {
    let path = root().join("packaging/nvlane.service");
    let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    let filters = text.lines().filter_map(|line| line.strip_prefix("SystemCallFilter="));
    Ok(filters.flat_map(str::split_whitespace).map(str::to_owned).collect())
}

/// The system calls of one target from start to end, with hosts, clients and an operator.
fn trace(engine: &str) -> Result<BTreeSet<String>> {
    let dir = target_dir().join("syscalls").join(engine);
    let (port, memcached) = (free_address()?.port(), free_address()?.port());
    let metrics = free_address()?;
    // Namespaces of an earlier trace would not be created again.
    let _ = std::fs::remove_dir_all(&dir);
    std::fs::create_dir_all(dir.join(ADQ_RECORDS)).with_context(|| dir.display().to_string())?;
    std::fs::write(dir.join(ADQ_RECORDS).join("lo.json"), ADQ_RECORD.replace("PORT", &port.to_string()))?;
    let image = format!("file:{}?size=64M", dir.join(IMAGE).display());
    let storage = ["ram:64M".to_owned(), image, "kv:ram:64M".to_owned()];
    let config = write_config(&dir, (engine, 2), [port, memcached], storage)?;
    let log = dir.join(LOG);
    let program = program_path("nvlane");
    let child = Command::new("strace")
        .args(["-f", "-qq", "-o"])
        .arg(&log)
        .arg(&program)
        .args(["target", "--config"])
        .arg(&config)
        .arg("--state")
        .arg(dir.join("state.json"))
        .args(["--metrics", &metrics.to_string()])
        .arg("--adq-record")
        .arg(dir.join(ADQ_RECORDS))
        .arg("--control")
        .arg(dir.join(CONTROL))
        .stdin(Stdio::null())
        .spawn()
        .context("cannot run strace")?;
    let mut traced = Traced { child, log: &log };
    use_target(&program, &dir, [port, memcached, metrics.port()], &mut traced)?;
    let status = traced.child.wait()?;
    ensure!(status.success(), "the target ended with {status}");
    let text = std::fs::read_to_string(&log).with_context(|| log.display().to_string())?;
    Ok(text.lines().filter_map(name_of).map(str::to_owned).collect())
}

/// A running strace and its target. Dropping it ends both: a target whose strace is killed would run on.
struct Traced<'a> {
    child: Child,
    log: &'a Path,
}

impl Drop for Traced<'_> {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(Some(_))) {
            return;
        }
        if let Ok(target) = target_of(self.log) {
            let _ = kill_process(target, Signal::KILL);
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Exercises every function of a target.
fn use_target(program: &Path, dir: &Path, ports: [u16; 3], traced: &mut Traced<'_>) -> Result<()> {
    let [port, memcached, metrics] = ports;
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    await_listener(address, &mut traced.child)?;
    let ask = |arguments: &[&str]| run_command(Command::new(program).args(arguments).stdout(Stdio::null()));
    let of_namespace = |nsid: u32| format!("{address}/{NQN}?ns={nsid}");
    ask(&["discover", &address.to_string()])?;
    for nsid in [1, 2] {
        for load in [
            &["-w", "randrw", "-o", "4k/50:128k/50", "--verify"][..],
            &["-w", "randtrim", "-o", "64k"],
            &["-w", "writezeroes", "-o", "64k"],
        ] {
            let namespace = of_namespace(nsid);
            let mut arguments = vec!["perf", &namespace, "-q", "16", "-P", "2", "-a", "0", "-t", "1"];
            arguments.extend(load);
            ask(&arguments)?;
        }
    }
    let mut client = TcpStream::connect((Ipv4Addr::LOCALHOST, memcached))?;
    client.write_all(b"set k 0 0 1\r\nv\r\nget k\r\nquit\r\n")?;
    client.read_to_end(&mut Vec::new())?;
    let mut scraper = TcpStream::connect((Ipv4Addr::LOCALHOST, metrics))?;
    scraper.write_all(b"GET /metrics HTTP/1.1\r\n\r\n")?;
    scraper.read_to_end(&mut Vec::new())?;
    let target = target_of(traced.log)?;
    operate(program, dir, target)?;
    kill_process(target, Signal::TERM)?;
    Ok(())
}

fn await_listener(address: SocketAddr, target: &mut Child) -> Result<()> {
    let start = Instant::now();
    while TcpStream::connect(address).is_err() {
        if let Some(status) = target.try_wait()? {
            bail!("the target ended with {status}");
        }
        ensure!(start.elapsed() < START_TIMEOUT, "the target does not listen");
        sleep(Duration::from_millis(50));
    }
    Ok(())
}

/// Executes every operation of an operator: storage that shrinks and grows; reloads that reopen it, add and remove a
/// namespace, and fail; and a state snapshot.
fn operate(program: &Path, dir: &Path, target: Pid) -> Result<()> {
    let state = dir.join("state.json");
    let text = std::fs::read_to_string(&state)?;
    ensure!(text.contains("\"interface\": \"lo\""), "the target has not read the record of nvlane adq");
    let reload = || {
        let output =
            Command::new(program).args(["reload", "--timeout", "120", "--state"]).arg(&state).output()?;
        Ok::<_, anyhow::Error>(String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let await_closed = |is_closed: bool| -> Result<()> {
        let start = Instant::now();
        while std::fs::read_to_string(&state)?.contains("\"closed\": \"") != is_closed {
            ensure!(start.elapsed() < START_TIMEOUT, "the target does not look after its storage");
            sleep(Duration::from_millis(50));
        }
        Ok(())
    };
    let ctl = |words: &[&str]| {
        let mut command = Command::new(program);
        run_command(
            command.args(["ctl", "--control"]).arg(dir.join(CONTROL)).args(words).stdout(Stdio::null()),
        )
    };
    let storage = format!("file:{}", dir.join("by-ctl.img").display());
    ctl(&["namespace", "add", "77", "--storage", &storage, "--size", "16M"])?;
    ctl(&["namespace", "set", "77", "--size", "32M"])?;
    ctl(&["namespace", "remove", "77"])?;
    ctl(&["diff"])?;
    let file = std::fs::OpenOptions::new().write(true).open(dir.join(IMAGE))?;
    let bytes = file.metadata()?.len();
    file.set_len(bytes / 2)?;
    await_closed(true)?;
    let refused = reload()?;
    ensure!(refused.contains("it was cut"), "a cut file was reopened: {refused}");
    file.set_len(bytes)?;
    let reopened = reload()?;
    ensure!(reopened.contains("done, it has"), "not reopened: {reopened}");
    await_closed(false)?;
    let config = dir.join(CONFIG);
    let text = std::fs::read_to_string(&config)?;
    let more = format!(
        "{text}[[subsystem.namespace]]\nstorage = \"file:{}?size=16M\"\n",
        dir.join("added.img").display()
    );
    for (text, expected) in [(&*more, "done"), (&text, "done"), ("mistaken", "failed")] {
        std::fs::write(&config, text)?;
        reload()?;
        let state = std::fs::read_to_string(&state)?;
        ensure!(state.contains(&format!("\"outcome\": \"{expected}\"")), "not {expected}: {text}");
    }
    kill_process(target, Signal::USR1)?;
    Ok(())
}

/// The target's process: the first one in the trace.
fn target_of(log: &Path) -> Result<Pid> {
    let text = std::fs::read_to_string(log).with_context(|| log.display().to_string())?;
    let word = text.split_whitespace().next().context("an empty trace")?;
    Pid::from_raw(word.parse()?).context("no process")
}

/// Writes the configuration of a target with this number of reactors, these two ports and this storage.
fn write_config(
    dir: &Path,
    (engine, reactor_count): (&str, u32),
    [port, memcached]: [u16; 2],
    storage: impl IntoIterator<Item = String>,
) -> Result<PathBuf> {
    let storage = storage.into_iter();
    let namespaces: String =
        storage.map(|spec| format!("[[subsystem.namespace]]\nstorage = \"{spec}\"\n")).collect();
    let text = format!(
        "memcached = [\"127.0.0.1:{memcached}\"]\n\
         [reactors]\ncount = {reactor_count}\nengine = \"{engine}\"\n\
         [[listener]]\naddress = \"127.0.0.1:{port}\"\n\
         [[subsystem]]\nnqn = \"{NQN}\"\nhosts = \"any\"\n{namespaces}"
    );
    let path = dir.join(CONFIG);
    std::fs::write(&path, text).with_context(|| path.display().to_string())?;
    Ok(path)
}

/// The call in a line of strace output: `PID name(...) = ...` or `PID <... name resumed> ...`.
fn name_of(line: &str) -> Option<&str> {
    let (_, rest) = line.split_once(' ')?;
    let rest = rest.trim_start();
    let rest = rest.strip_prefix("<... ").unwrap_or(rest);
    let length = rest.find(|char: char| !(char.is_ascii_alphanumeric() || char == '_'))?;
    let (name, after) = rest.split_at(length);
    (!name.is_empty() && (after.starts_with('(') || after.starts_with(" resumed"))).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_in_the_lines_of_a_trace() {
        assert_eq!(name_of("12 openat(AT_FDCWD, \"x\", 0) = 3"), Some("openat"));
        assert_eq!(name_of("12    <... epoll_wait resumed>[], 8, 1) = 0"), Some("epoll_wait"));
        assert_eq!(name_of("12 +++ exited with 0 +++"), None);
        assert_eq!(name_of("12 --- SIGTERM {si_signo=SIGTERM} ---"), None);
    }

    #[test]
    fn a_failing_step_leaves_no_target_behind() {
        let dir = tempfile::tempdir().expect("a directory");
        let log = dir.path().join(LOG);
        // As strace: the first word of its log is the process that it has started.
        let line = format!("sleep 600 & echo \"$! execve()\" > {}; wait", log.display());
        let child = Command::new("sh").args(["-c", &line]).spawn().expect("a shell");
        let traced = Traced { child, log: &log };
        let target = loop {
            if let Ok(target) = target_of(&log) {
                break target;
            }
            sleep(Duration::from_millis(1));
        };
        drop(traced);
        let start = Instant::now();
        while is_running(target) {
            assert!(start.elapsed() < START_TIMEOUT, "{target:?} still runs");
            sleep(Duration::from_millis(1));
        }
    }

    /// Whether the process exists and is no zombie, which waits for a parent that may take its time.
    fn is_running(process: Pid) -> bool {
        let status = std::fs::read_to_string(format!("/proc/{}/status", process.as_raw_nonzero()));
        status.is_ok_and(|status| !status.contains("State:\tZ"))
    }

    #[test]
    fn the_unit_lets_through_what_is_listed() {
        assert_eq!(listed().expect("a list"), in_unit().expect("a filter"));
    }
}
