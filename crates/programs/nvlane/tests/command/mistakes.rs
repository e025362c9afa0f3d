//! Users' mistakes and failures of their environment end in one line that says how to fix them, or in silence if the
//! reader of the output is gone.

use std::io::{BufRead, BufReader, Read};
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::support::{Ended, Target, nvlane, run, signal};

const USAGE: i32 = 2;

/// The output of a process that must end soon.
#[track_caller]
pub(crate) fn code_soon(process: &mut Child) -> Option<i32> {
    let since = Instant::now();
    while since.elapsed() < Duration::from_secs(60) {
        if let Some(status) = process.try_wait().expect("it can be waited for") {
            return status.code();
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    process.kill().expect("it ends");
    panic!("it goes on for ever");
}

#[test]
fn a_core_that_is_not_there_is_named() {
    let address = "127.0.0.1:1/nqn.2026-01.io.nvlane:x";
    for command in [
        &["target", "--listen", "127.0.0.1:0", "--namespace", "ram:1M", "--cores", "1023"][..],
        &["perf", address, "-c", "1023"],
        &["perf", "ceiling", "-c", "0,1023"],
        &["kv", "bench", address, "-c", "1023"],
    ] {
        let line = run(command).complaint(USAGE);
        assert!(line.contains("there is no core 1023 for this process, which runs on"), "{line}");
    }
}

/// A port of the range of `--memcached ADDR:PORT?partitions` that cannot be is named.
#[test]
fn ports_of_partitions_are_checked() {
    let directory = tempfile::tempdir().expect("a directory");
    let config = directory.path().join("nvlane.toml");
    let holder = TcpListener::bind("127.9.8.7:0").expect("a port");
    let taken = holder.local_addr().expect("bound").port();
    let whole = "memcached = [\"127.9.8.7:0?partitions\"]\n[reactors]\ncount = 2\n[[listener]]\naddress = \"127.0.0.1:0\"\n[[subsystem]]\n\
                 nqn = \"nqn.2026-01.io.nvlane:x\"\nhosts = \"any\"\n[[subsystem.namespace]]\nstorage = \"kv:ram:16M\"\n";
    for (right, wrong, said) in [
        (":0?partitions\"", ":65535?partitions\"", "the last port is 65535: begin at 65534 or below"),
        ("?partitions\"", "?partitions\", \"127.0.0.1:0\"", "clients of 127.0.0.1:0 would find only in part"),
        ("?partitions", "?ports", "expected ?partitions or nothing behind the port, not '?ports'"),
        ("kv:ram:16M", "kv:file:pairs?size=64M", "take kv:ram, or leave ?partitions out"),
        (
            "kv:ram:16M\"",
            "kv:ram:16M\"\n[[subsystem.namespace]]\nstorage = \"kv:ram:8M\"",
            "there are 2 of them",
        ),
    ] {
        std::fs::write(&config, whole.replace(right, wrong)).expect("written");
        for command in ["check", "target"] {
            let ended = run([command, "--config"].into_iter().chain(config.to_str()));
            let line = ended.stderr.lines().last().unwrap_or_default();
            assert!(ended.code == USAGE && line.contains(said), "{command}: {ended:?}");
        }
    }
    let port = format!("127.9.8.7:{}?partitions", taken - 1);
    std::fs::write(&config, whole.replace("127.9.8.7:0?partitions", &port)).expect("written");
    let line = run(["target", "--config"].into_iter().chain(config.to_str())).complaint(USAGE);
    assert!(line.contains(&format!("cannot listen on 127.9.8.7:{taken}")), "{line}");
    drop(holder);
    let text = run(["check", "--config"].into_iter().chain(config.to_str())).text();
    let expected = format!(
        "memcached clients connect at 127.9.8.7:{} to {taken}, without any restriction: each port has the keys of one partition",
        taken - 1
    );
    assert!(text.contains(&expected) && text.contains("visible to no host"), "{text}");
}

#[test]
fn check_refuses_what_the_target_refuses() {
    let directory = tempfile::tempdir().expect("a directory");
    let config = directory.path().join("nvlane.toml");
    let whole = "[reactors]\ncores = \"0\"\n[[listener]]\naddress = \"127.0.0.1:0\"\n[[subsystem]]\n\
                 nqn = \"nqn.2026-01.io.nvlane:x\"\nhosts = \"any\"\n[[subsystem.namespace]]\nstorage = \"ram:1M\"\n";
    for (right, wrong, said) in [
        ("\"0\"", "\"1023\"", "there is no core 1023"),
        ("127.0.0.1:0", "224.0.0.1:4420", "the address of a group"),
        ("127.0.0.1:0", "[ff02::1]:4420", "the address of a group"),
        ("127.0.0.1:0", "255.255.255.255:4420", "the address of all machines"),
        ("\"any\"", "[\"any\"]", "without brackets"),
        ("ram:1M", "file:/proc/none/none?size=1M", "make its directory first"),
        ("ram:1M", "null:1000", "not a multiple of its block size"),
    ] {
        std::fs::write(&config, whole.replace(right, wrong)).expect("written");
        let config = config.to_str().expect("text");
        let of_check = run(["check", "--config", config]);
        let of_target = run(["target", "--config", config]);
        assert_eq!((of_check.code, of_target.code), (USAGE, USAGE), "{wrong}: {of_check:?} {of_target:?}");
        let [of_check, of_target] =
            [of_check, of_target].map(|ended| ended.stderr.lines().last().map(str::to_owned));
        assert!(of_check.as_ref().is_some_and(|line| line.contains(said)), "{of_check:?}");
        assert_eq!(of_check, of_target);
    }
}

#[test]
fn numbers_and_times_say_what_they_should_be() {
    for (command, hint) in [
        (&["perf", "-q", "many"][..], "write a whole number"),
        (&["perf", "--rate", "fast"], "write a number"),
        (&["perf", "-t", "0"], "at least 0.001 seconds"),
        (&["perf", "-t", "1e300"], "not a number of seconds"),
        (&["kv", "bench", "-t", "0"], "at least 0.001 seconds"),
        (&["kv", "bench", "-b", "70000"], "0..=65535"),
        (&["target", "--busy-poll", "x"], "write a whole number"),
        (&["--log", "inof", "list"], "is not a log level"),
    ] {
        let line = run(command).complaint(USAGE);
        assert!(line.contains(hint), "{command:?}: {line}");
    }
}

#[test]
fn mistyped_names_come_with_what_was_probably_meant() {
    let spec = |text| ["target", "--listen", "127.0.0.1:0", "--namespace", text];
    for (command, meant) in [
        (spec("rma:1G"), "did you mean ram?"),
        (spec("1G"), "did you mean ram:1G?"),
        (spec("/dev/nvme9n9"), "did you mean device:/dev/nvme9n9?"),
        (spec("/srv/disk.img"), "did you mean file:/srv/disk.img?"),
        (spec("ram:1G?ro"), "did you mean readonly?"),
        (spec("file:/srv/disk.img&size=1G"), "write ?size=1G"),
        (spec("kv:ram:1G?evicts=none"), "did you mean evict?"),
    ] {
        let line = run(command).complaint(USAGE);
        assert!(line.contains(meant), "{command:?}: {line}");
    }
}

#[test]
fn too_many_open_files_come_with_the_limit_and_how_to_raise_it() {
    let target = Target::serving(&["ram:1M"]);
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -n 20; exec \"$0\" perf \"$1\" -t 1 -P 64", env!("CARGO_BIN_EXE_nvlane")]);
    let line = Ended::of(command.arg(&target.address)).complaint(1);
    assert!(line.contains("this process may have 20 files and connections open"), "{line}");
    assert!(line.contains("ulimit -n, LimitNOFILE="), "{line}");
    // A limit that the user may raise is raised.
    let mut command = Command::new("sh");
    command.args([
        "-c",
        "ulimit -S -n 20; exec \"$0\" perf \"$1\" -t 0.1 -P 16",
        env!("CARGO_BIN_EXE_nvlane"),
    ]);
    Ended::of(command.arg(&target.address)).text();
}

#[test]
fn results_that_could_not_be_written_are_not_measured() {
    let target = Target::serving(&["ram:1M", "kv:ram:64M"]);
    let (blocks, keys) = (format!("{}?ns=1", target.address), format!("{}?ns=2", target.address));
    for command in [
        &["perf", &blocks, "-t", "600", "--json", "/nowhere/at/all"][..],
        &["perf", &blocks, "-t", "600", "--logs", "/proc/nowhere"],
        &["perf", "ceiling", "-t", "600", "--json", "/nowhere/at/all"],
        &["kv", "bench", &keys, "-t", "600", "--json", "/nowhere/at/all"],
        &["quickstart", "--json", "/nowhere/at/all"],
        &["target", "--listen", "127.0.0.1:0", "--namespace", "ram:1M", "--state", "/nowhere/at/all"],
    ] {
        let line = run(command).complaint(USAGE);
        assert!(line.contains("/nowhere/at/all") || line.contains("/proc/nowhere"), "{line}");
    }
}

#[test]
fn a_state_file_takes_the_place_of_nothing_but_a_file() {
    let directory = tempfile::tempdir().expect("a directory");
    let pipe = directory.path().join("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().is_ok_and(|status| status.success()));
    let pipe = pipe.to_str().expect("text");
    for (path, why) in [(pipe, "pipe: it is no regular file"), ("-", "name a file")] {
        let command = ["target", "--listen", "127.0.0.1:0", "--namespace", "ram:1M", "--state", path];
        let line = run(command).complaint(USAGE);
        assert!(line.contains(why), "{line}");
    }
    assert!(std::fs::metadata(pipe).is_ok_and(|metadata| !metadata.is_file()));
}

#[test]
fn a_reader_that_has_seen_enough_ends_the_command_without_a_word() {
    let target = Target::serving(&["kv:ram:64M"]);
    let stored = run(["kv", "bench", &target.address, "-k", "20000", "-t", "0.01", "-a", "0"]);
    assert_eq!(stored.code, 0, "{}", stored.stderr);
    for command in [
        &["perf", "ceiling", "-q", "1,1,1,1", "-t", "0.01", "-a", "0"][..],
        &["kv", "dump", &target.address],
        &["kv", "list", &target.address],
        &["completions", "bash"],
    ] {
        let mut process =
            nvlane().args(command).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it runs");
        drop(process.stdout.take());
        let code = code_soon(&mut process);
        let mut said = String::new();
        process.stderr.take().expect("piped").read_to_string(&mut said).expect("text");
        assert_eq!((code, said.as_str()), (Some(0), ""), "{command:?}");
    }
}

#[test]
fn a_namespace_of_the_other_kind_is_not_what_was_asked_for() {
    let target = Target::serving(&["ram:1M", "kv:ram:16M"]);
    let (blocks, keys) = (format!("{}?ns=1", target.address), format!("{}?ns=2", target.address));
    for command in [&["kv", "list", &blocks][..], &["kv", "bench", &blocks], &["perf", &keys]] {
        let line = run(command).complaint(4);
        assert!(line.contains("`nvlane identify` shows what it is"), "{line}");
    }
}

#[test]
fn a_target_that_is_told_to_end_ends_its_command_first() {
    let mut target = nvlane()
        .args(["target", "--listen", "127.0.0.1:0", "--namespace", "ram:1M"])
        .args([
            "--run",
            "sh",
            "-c",
            "trap 'echo told; exit 7' TERM; echo ready; while :; do sleep 0.05; done",
        ])
        .stdout(Stdio::piped())
        .spawn()
        .expect("it runs");
    let mut lines =
        BufReader::new(target.stdout.take().expect("piped")).lines().map(|line| line.expect("text"));
    assert_eq!(lines.next().as_deref(), Some("ready"));
    signal(target.id(), Signal::TERM);
    assert_eq!((lines.next().as_deref(), code_soon(&mut target)), (Some("told"), Some(7)));
}

#[test]
fn a_quickstart_that_is_interrupted_ends_and_leaves_nothing() {
    let directory = tempfile::tempdir().expect("a directory");
    let mut quickstart = nvlane()
        .args(["quickstart", "--directory"])
        .arg(directory.path())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("it runs");
    let mut lines = BufReader::new(quickstart.stdout.take().expect("piped")).lines();
    assert!(lines.next().expect("a line").expect("text").starts_with("target at"));
    let file_count = || directory.path().read_dir().expect("a directory").count();
    assert_eq!(file_count(), 1, "the second namespace's");
    signal(quickstart.id(), Signal::TERM);
    assert_eq!(code_soon(&mut quickstart), Some(1));
    assert_eq!(file_count(), 0, "nothing is left");
}
