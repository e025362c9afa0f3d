//! The command without privileges: little locked memory, no `io_uring`.
#![allow(clippy::cast_possible_truncation)]

#[allow(dead_code)] // Each test program uses a part of it.
#[path = "end_to_end/exercise.rs"]
mod exercise;
#[allow(dead_code)]
#[path = "end_to_end/setup.rs"]
mod setup;

use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Command, Stdio};

use host::{Address, Association, LaneSet, Options};
use linux::random::SplitMix64;
use tempfile::TempDir;
use wire::id::Nsid;

use exercise::{Load, Model};
use setup::{engines, options};

/// A target that runs until its command's input ends.
struct Process {
    child: Child,
    address: Address,
}

/// Output and exit status of a target.
struct Ended {
    log: String,
    is_success: bool,
}

impl Process {
    /// Starts `nvlane target` through `wrapper`, a command line that takes a program and its arguments.
    fn start(wrapper: &[&str], program: &str, arguments: &[&str]) -> Self {
        let mut words: Vec<&str> = wrapper.to_vec();
        words.push(program);
        words.extend(["target", "--listen", "127.0.0.1:0"]);
        words.extend(arguments);
        words.extend(["--run", "echo $NVLANE_ADDR; cat >/dev/null"]);
        let mut child = Command::new(words[0])
            .args(&words[1..])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("a program that starts");
        let mut address = String::new();
        let stdout = child.stdout.as_mut().expect("piped");
        BufReader::new(stdout).read_line(&mut address).expect("a line");
        let Ok(parsed) = address.trim().parse() else {
            let mut log = String::new();
            let _ = child.stderr.take().expect("piped").read_to_string(&mut log);
            panic!("no address from {words:?}: {address:?}\n{log}");
        };
        Self { child, address: parsed }
    }

    fn end(mut self) -> Ended {
        drop(self.child.stdin.take());
        let mut log = String::new();
        self.child.stderr.take().expect("piped").read_to_string(&mut log).expect("text");
        Ended { log, is_success: self.child.wait().expect("a child").success() }
    }

    /// Number of open descriptors.
    fn descriptor_count(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/fd", self.child.id())).expect("its descriptors").count()
    }

    fn connect(&self, options: Options) -> Association {
        Association::connect(&self.address, options).expect("a host connects")
    }

    /// Runs verified load on its first two namespaces.
    fn exercise(&self) {
        let association = self.connect(options().with_lanes(2).with_depth(32));
        for nsid in 1..=2 {
            let namespace = association.namespace(Nsid::new(nsid)).expect("a namespace");
            let lanes = (0..2).map(|_| association.lane().expect("a lane")).collect();
            let mut lanes = LaneSet::new(lanes).expect("a set");
            let load = Load { commands: 200, bytes: 8 << 20, blocks_max: 256 };
            let mut random = SplitMix64::new(nsid.into());
            Model::new(&namespace, nsid.into()).run(&mut lanes, &namespace, load, &mut random);
        }
    }
}

/// The program and a directory for files, for a user without access to ours.
fn public_copy() -> (TempDir, String) {
    let directory = tempfile::tempdir().expect("a directory");
    let open = |path: &std::path::Path, mode| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("our own");
    };
    open(directory.path(), 0o1777);
    let program = directory.path().join("nvlane");
    // By another process: one that another test begins meanwhile would have the file open for writing, too, until it has
    // called execve, and a file that is open for writing does not run (ETXTBSY).
    let copied = Command::new("cp").arg(env!("CARGO_BIN_EXE_nvlane")).arg(&program).status();
    assert!(copied.is_ok_and(|status| status.success()));
    open(&program, 0o755);
    (directory, program.display().to_string())
}

/// Command that runs a program as user nobody, with 64 KiB of locked memory.
fn as_nobody() -> Vec<&'static str> {
    let is_root = std::fs::metadata("/proc/self").is_ok_and(|own| {
        use std::os::unix::fs::MetadataExt;
        own.uid() == 0
    });
    let mut wrapper = vec!["prlimit", "--memlock=65536:65536"];
    if is_root {
        wrapper.extend(["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--no-new-privs"]);
        wrapper.push("--bounding-set=-all");
    }
    wrapper
}

#[test]
fn user_nobody_serves_ram_and_files_with_little_locked_memory() {
    let (directory, program) = public_copy();
    // The default engine depends on the memory that this user's other processes have locked.
    for engine in [None, Some("epoll")] {
        let file = directory.path().join(engine.unwrap_or("any"));
        let namespace = format!("file:{}?size=4M", file.display());
        let mut arguments = vec!["--cores", "0", "--namespace", "ram:4M?lba=512", "--namespace", &namespace];
        if let Some(engine) = engine {
            arguments.extend(["--engine", engine]);
        }
        let process = Process::start(&as_nobody(), &program, &arguments);
        process.exercise();
        let ended = process.end();
        assert!(ended.is_success, "{engine:?}: {}", ended.log);
        if engine == Some("epoll") {
            assert!(
                ended.log.contains("engine=\"epoll\"") || ended.log.contains("engine=epoll"),
                "{}",
                ended.log
            );
        }
        assert!(!ended.log.contains("ERROR"), "{}", ended.log);
    }
}

/// Forbids system calls as container profiles do: those of a list of numbers fail with this error.
const WITHOUT_CALLS: &str = r#"
import ctypes, os, platform, struct, sys
numbers, errno = map(int, sys.argv[1].split(",")), int(sys.argv[2])
code = [(0x20, 0, 0, 0)]
for n in numbers:
    code += [(0x15, 0, 1, n), (0x06, 0, 0, 0x00050000 | errno)]
code.append((0x06, 0, 0, 0x7fff0000))
text = b"".join(struct.pack("HBBI", *line) for line in code)
class Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_char_p)]
libc = ctypes.CDLL(None, use_errno=True)
program = Program(len(code), text)
if libc.prctl(38, 1, 0, 0, 0) or libc.prctl(22, 2, ctypes.byref(program), 0, 0):
    sys.exit("cannot forbid system calls")
os.execvp(sys.argv[3], sys.argv[3:])
"#;

#[test]
fn without_io_uring_epoll_serves_and_the_log_says_so() {
    let python = Command::new("python3").arg("--version").output();
    assert!(
        python.is_ok_and(|out| out.status.success()),
        "python3 forbids io_uring here: `cargo xtask deps` installs it"
    );
    let (directory, program) = public_copy();
    // All three calls; io_uring_enter alone, as with a filter that lists calls: EPERM, ENOSYS, ENOMEM.
    for (numbers, errno) in [("425,426,427", "1"), ("426", "1"), ("426", "38"), ("426", "12")] {
        let wrapper = ["python3", "-c", WITHOUT_CALLS, numbers, errno];
        let file = directory.path().join(format!("{numbers}-{errno}"));
        let namespace = format!("file:{}?size=4M", file.display());
        let arguments = ["--cores", "0", "--namespace", "ram:4M", "--namespace", &namespace];
        let process = Process::start(&wrapper, &program, &arguments);
        process.exercise();
        let ended = process.end();
        assert!(ended.is_success, "{wrapper:?}: {}", ended.log);
        assert!(
            ended.log.contains("io_uring unavailable; falling back to epoll"),
            "{wrapper:?}: {}",
            ended.log
        );
        // If io_uring is requested explicitly, the error is reported and nothing starts.
        let output = Command::new(wrapper[0])
            .args(&wrapper[1..])
            .args([
                &program,
                "target",
                "--listen",
                "127.0.0.1:0",
                "--namespace",
                "ram:1M",
                "--engine",
                "uring",
            ])
            .output()
            .expect("a program that starts");
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        assert!(String::from_utf8_lossy(&output.stderr).contains("choose the epoll engine"), "{output:?}");
    }
}

/// As with `DynamicUser=` and a new file under `umask 077`.
#[test]
fn a_reload_says_which_user_may_not_read_a_secret() {
    let (directory, program) = public_copy();
    let path = |name: &str| directory.path().join(name).display().to_string();
    let (key, state) = (path("key"), path("state"));
    let mode = |mode| std::fs::set_permissions(&key, std::fs::Permissions::from_mode(mode)).expect("our own");
    let nvlane = |arguments: &[&str]| Command::new(&program).args(arguments).output().expect("it runs");
    assert!(nvlane(&["keys", "generate", "--out", &key]).status.success());
    mode(0o644);
    let arguments =
        ["--engine", "epoll", "--namespace", "ram:1M", "--dhchap-secret", &key, "--state", &state];
    let process = Process::start(&as_nobody(), &program, &arguments);
    mode(0o600);
    if std::fs::metadata(&state).is_ok_and(|state| std::os::unix::fs::MetadataExt::uid(&state) != 65534) {
        mode(0);
    }
    let output = nvlane(&["reload", "--state", &state]);
    let told = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(
        told.contains(&key) && told.contains("may not read it") && told.contains("setfacl -m u:"),
        "{told}"
    );
    assert!(process.end().is_success);
}

#[test]
fn hosts_that_come_and_go_leave_no_descriptor_behind() {
    for engine in engines() {
        let engine = if engine == reactor::EngineKind::Uring { "uring" } else { "epoll" };
        let arguments = ["--cores", "0", "--namespace", "ram:1M", "--engine", engine];
        let process = Process::start(&[], env!("CARGO_BIN_EXE_nvlane"), &arguments);
        let round = || {
            let association = process.connect(options().with_lanes(3));
            let lanes = association.lanes::<Vec<u8>>().expect("lanes");
            drop((association, lanes));
        };
        // Descriptors that the first hosts open and retain.
        round();
        let settled = || {
            let until = std::time::Instant::now() + setup::PATIENCE;
            let mut least = process.descriptor_count();
            while std::time::Instant::now() < until && least > 0 {
                std::thread::sleep(std::time::Duration::from_millis(50));
                let now = process.descriptor_count();
                if now == least {
                    break;
                }
                least = now;
            }
            least
        };
        let before = settled();
        (0..40).for_each(|_| round());
        assert_eq!(settled(), before, "{engine}");
        assert!(process.end().is_success);
    }
}
