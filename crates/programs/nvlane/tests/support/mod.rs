//! The command as users run it: a target on a free port, and other commands that use it.
#![allow(dead_code)] // Each test program uses a part of this.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, ChildStdin, Command, Stdio};
use std::sync::LazyLock;

use peer::fake_target::FakeTarget;
use peer::session::{Event, Session, Then};
use peer::stage::Setup;
use rustix::process::{Pid, Signal, kill_process};

/// Path of the program nvlane, which cargo builds beside the test programs of all packages; with `NVLANE_PROGRAMS` it is
/// in that directory.
pub(crate) fn program() -> &'static str {
    static PROGRAM: LazyLock<String> = LazyLock::new(|| {
        let test = std::env::current_exe().expect("a path");
        let beside = || test.ancestors().nth(2).expect("a directory").to_owned();
        let path = std::env::var_os("NVLANE_PROGRAMS").map_or_else(beside, PathBuf::from).join("nvlane");
        assert!(path.is_file(), "{} is missing: cargo build --workspace --bins", path.display());
        path.into_os_string().into_string().expect("text")
    });
    &PROGRAM
}

/// The command with an environment cleared of nvlane's variables.
pub(crate) fn nvlane() -> Command {
    let mut command = Command::new(program());
    command.env_remove("NVLANE_ADDR").env_remove("RUST_BACKTRACE").env("NVLANE_LOG", "warn");
    command.stdin(Stdio::null());
    command
}

/// Sends a signal to a process, and returns after SIGSTOP once all its threads are stopped: kill(2) may return while those of
/// other cores still answer commands.
pub(crate) fn signal(pid: u32, signal: Signal) {
    let process = Pid::from_raw(pid.cast_signed()).expect("a process");
    kill_process(process, signal).expect("it runs");
    while signal == Signal::STOP && !is_stopped(pid) {
        std::thread::yield_now();
    }
}

fn is_stopped(pid: u32) -> bool {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).expect("it runs");
    threads.flatten().all(|thread| {
        // A thread that has ended meanwhile has no state.
        let stat = std::fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
        stat.rsplit_once(')').is_none_or(|(_, rest)| rest.trim_start().starts_with('T'))
    })
}

/// Output of a command.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Ended {
    pub(crate) fn of(command: &mut Command) -> Self {
        let output = command.output().expect("the command runs");
        let text = |bytes| String::from_utf8(bytes).expect("text");
        Self {
            code: output.status.code().expect("no signal"),
            stdout: text(output.stdout),
            stderr: text(output.stderr),
        }
    }

    /// Runs a command whose standard output goes elsewhere.
    pub(crate) fn of_stderr(command: &mut Command) -> Self {
        let process = command.stderr(Stdio::piped()).spawn().expect("the command runs");
        let output = process.wait_with_output().expect("it ends");
        let stderr = String::from_utf8(output.stderr).expect("text");
        Self { code: output.status.code().expect("no signal"), stdout: String::new(), stderr }
    }

    /// Standard output of a command that succeeded without messages.
    #[track_caller]
    pub(crate) fn text(self) -> String {
        assert_eq!((self.code, self.stderr.as_str()), (0, ""), "{}", self.stdout);
        self.stdout
    }

    /// The output of a study, which shows its progress beside it.
    #[track_caller]
    pub(crate) fn text_beside_progress(self) -> String {
        assert_eq!(self.code, 0, "{self:?}");
        let is_progress = |line: &str| line.contains("  cell ") || line.contains(" of ");
        assert!(self.stderr.lines().all(is_progress), "{}", self.stderr);
        self.stdout
    }

    /// The pairs of `kv dump`, which says what a dump lacks.
    #[track_caller]
    pub(crate) fn dumped(self) -> String {
        assert_eq!(self.code, 0, "{self:?}");
        let lines: Vec<&str> = self.stderr.lines().collect();
        assert!(matches!(lines[..], [line] if line.starts_with("nvlane: not in a dump: ")), "{lines:?}");
        self.stdout
    }

    #[track_caller]
    pub(crate) fn json(self) -> serde_json::Value {
        serde_json::from_str(&self.text()).expect("JSON")
    }

    /// The error line of a command that wrote no output and ended with this exit code.
    #[track_caller]
    pub(crate) fn complaint(self, code: i32) -> String {
        assert_eq!(self.code, code, "{self:?}");
        assert_eq!(self.stdout, "", "nothing half done");
        assert_eq!(self.stderr.lines().count(), 1, "one line: {}", self.stderr);
        let line = self.stderr.trim_end();
        line.strip_prefix("nvlane: ").unwrap_or_else(|| panic!("who speaks: {line}")).to_owned()
    }
}

/// Runs the command with these arguments.
pub(crate) fn run<Argument: AsRef<OsStr>>(arguments: impl IntoIterator<Item = Argument>) -> Ended {
    Ended::of(nvlane().args(arguments))
}

/// A running target, killed on drop.
pub(crate) struct Target {
    process: Child,
    stdin: Option<ChildStdin>,
    /// Address of its first subsystem, as commands take it.
    pub(crate) address: String,
}

impl Target {
    /// Serves these namespaces on a free port.
    pub(crate) fn serving(namespaces: &[&str]) -> Self {
        let specs = namespaces.iter().flat_map(|spec| ["--namespace", spec]);
        Self::start(nvlane().args(["target", "--listen", "127.0.0.1:0"]).args(specs))
    }

    /// Serves a configuration on a free port.
    pub(crate) fn configured(config: &Path) -> Self {
        Self::start(nvlane().args(["target", "--listen", "127.0.0.1:0", "--config"]).arg(config))
    }

    /// Runs `nvlane target` with a `--run` command that prints the address and waits until its input closes.
    pub(crate) fn start(command: &mut Command) -> Self {
        command.arg("--run");
        Self::start_raw(command)
    }

    /// [`start`](Self::start) for a command line that already ends where the command to run belongs.
    pub(crate) fn start_raw(command: &mut Command) -> Self {
        command.arg("echo $NVLANE_ADDR; read end").stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn().expect("the target starts");
        let mut address = String::new();
        BufReader::new(process.stdout.take().expect("piped")).read_line(&mut address).expect("a line");
        let stdin = process.stdin.take();
        Self { process, stdin, address: address.trim().to_owned() }
    }

    /// Its standard error, if that was piped.
    pub(crate) fn stderr(&mut self) -> Option<ChildStderr> {
        self.process.stderr.take()
    }

    /// Its process.
    pub(crate) fn id(&self) -> u32 {
        self.process.id()
    }

    /// The name of its first subsystem.
    pub(crate) fn nqn(&self) -> &str {
        self.address.split_once('/').map_or("", |(_, nqn)| nqn)
    }

    /// Host and port.
    pub(crate) fn place(&self) -> &str {
        self.address.split_once('/').map_or(&self.address, |(place, _)| place)
    }

    /// Runs a command with this target's address as the last argument.
    pub(crate) fn ask(&self, arguments: &[&str]) -> Ended {
        run(arguments.iter().copied().chain([self.address.as_str()]))
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        drop(self.stdin.take());
        let ended = self.process.wait();
        if !std::thread::panicking() {
            assert!(ended.is_ok_and(|status| status.code() == Some(1)), "`read` ends without a line");
        }
    }
}

/// A target that reacts to events as `react` says; returns its address as commands take it, too.
pub(crate) fn strange_target(
    react: impl Fn(&mut Session<'_>, &Event) -> Then + Send + Sync + 'static,
) -> (FakeTarget, String) {
    let listen = "127.0.0.1:0".parse().expect("an address");
    let fault = Box::new(move |session: &mut Session<'_>, event: &Event| Ok(react(session, event)));
    let target = FakeTarget::start(listen, Setup::default(), fault, false).expect("a free port");
    let address = format!("{}/{}", target.stage.address, target.stage.subsystem);
    (target, address)
}

/// A target that answers the first `count` PDUs of each connection, and nothing more.
pub(crate) fn answering(count: usize) -> (FakeTarget, String) {
    strange_target(move |session, event| {
        let number = match event {
            Event::IcReq(_) => 1,
            _ if session.controller.qid.is_none() => 2,
            _ => 3,
        };
        if number <= count { Then::AsUsual } else { Then::GoOn }
    })
}
