//! `nvlane ctl` and the control socket of a target: changes reach hosts, survive restarts and kills, and are refused whole.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use host::{Address, Association, Options};
use rustix::process::{Pid, Signal, Uid, kill_process};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::{self, Ended, nvlane, run};

const PATIENCE: Duration = Duration::from_secs(60);
const NQN: &str = "nqn.2026-01.io.nvlane:controlled";

const TOML: &str = "[reactors]\ncount = 1\n[[listener]]\naddress = \"127.0.0.1:0\"\n[[subsystem]]\n\
    nqn = \"nqn.2026-01.io.nvlane:controlled\"\nhosts = \"any\"\n[[subsystem.namespace]]\nnsid = 1\nstorage = \"ram:1M\"\n";

/// A target with a control socket, which can be killed and started again.
pub(crate) struct Target {
    process: Option<Child>,
    directory: TempDir,
    variables: Vec<(String, String)>,
}

impl Target {
    pub(crate) fn start(text: &str) -> Self {
        Self::start_with(text, &[])
    }

    /// With these variables in its environment.
    pub(crate) fn start_with(text: &str, variables: &[(&str, &str)]) -> Self {
        let variables =
            variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let target = Self { process: None, directory: tempfile::tempdir().expect("a directory"), variables };
        target.configure(text);
        target.started()
    }

    pub(crate) fn config_text(&self) -> String {
        fs::read_to_string(self.path("nvlane.toml")).expect("a configuration")
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub(crate) fn configure(&self, text: &str) {
        fs::write(self.path("nvlane.toml"), text).expect("written");
    }

    fn command(&self) -> Command {
        let mut command = nvlane();
        command.args(["target", "--config"]).arg(self.path("nvlane.toml"));
        command.arg("--control").arg(self.path("control.sock")).arg("--audit").arg(self.path("audit"));
        command.env_remove("STATE_DIRECTORY").envs(self.variables.iter().map(|(name, value)| (name, value)));
        command
    }

    fn started(mut self) -> Self {
        let log = fs::File::create(self.path("log")).expect("a file");
        let mut process = self.command().stderr(log).spawn().expect("a target");
        let until = Instant::now() + PATIENCE;
        // It answers once it serves.
        while self.ctl(&["state"]).code != 0 {
            assert!(
                Instant::now() < until && process.try_wait().expect("a process").is_none(),
                "{}",
                self.log()
            );
            std::thread::sleep(Duration::from_millis(10));
        }
        self.process = Some(process);
        self
    }

    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.path("log")).expect("a log")
    }

    pub(crate) fn ctl(&self, words: &[&str]) -> Ended {
        Ended::of(nvlane().arg("ctl").arg("--control").arg(self.path("control.sock")).args(words))
    }

    pub(crate) fn json(&self, words: &[&str]) -> Value {
        self.ctl(&[words, &["-o", "json"]].concat()).json()
    }

    /// The storage of each namespace by its number.
    fn namespaces(&self) -> Vec<(String, String)> {
        let listed = self.json(&["namespace", "list"]);
        let text = |value: &Value| value.as_str().expect("text").to_owned();
        let objects = listed["objects"].as_array().expect("a list");
        objects.iter().map(|object| (text(&object["name"]), text(&object["values"]["storage"]))).collect()
    }

    pub(crate) fn address(&self) -> String {
        let listed = self.json(&["listener", "list"]);
        let address = listed["objects"][0]["running"]["address"].as_str().expect("an address");
        format!("{address}/{NQN}")
    }

    /// The namespaces that a host finds.
    fn seen(&self) -> Vec<u64> {
        let listed = run(["list", &self.address(), "-o", "json"]).json();
        let devices = listed["Devices"].as_array().expect("a list");
        devices.iter().map(|device| device["NameSpace"].as_u64().expect("a number")).collect()
    }

    pub(crate) fn pid(&self) -> u32 {
        self.process.as_ref().expect("it runs").id()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        support::signal(self.pid(), signal);
    }

    /// Kills it, and starts it again.
    pub(crate) fn restarted(mut self) -> Self {
        self.signal(Signal::KILL);
        self.process.take().expect("it runs").wait().expect("it ends");
        self.started()
    }

    pub(crate) fn end(mut self) {
        self.signal(Signal::TERM);
        let status = self.process.take().expect("it runs").wait().expect("it ends");
        assert!(status.success(), "{status}");
        assert!(!self.path("control.sock").exists(), "the socket goes with the target");
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        if let Some(process) = &mut self.process {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

fn pairs(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    pairs.iter().map(|(name, storage)| ((*name).to_owned(), (*storage).to_owned())).collect()
}

#[test]
fn changes_reach_hosts_and_survive_a_kill() {
    let target = Target::start(TOML);
    let added = target.ctl(&["namespace", "add", "--size", "2M"]).text();
    assert_eq!(added, format!("add {NQN} namespace 2 (ram:2M): done\n"));
    let image = format!("file:{}", target.path("a.img").display());
    target.ctl(&["namespace", "add", "7", "--storage", &image, "--size", "4M"]).text();
    let resized = target.ctl(&["namespace", "set", "7", "--size", "8M"]).text();
    assert_eq!(resized, format!("resize {NQN} namespace 7 to 8M: done\n"));
    assert_eq!(target.seen(), [1, 2, 7]);
    target.ctl(&["namespace", "remove", "1"]).text();
    assert_eq!(target.seen(), [2, 7]);
    assert_eq!(
        target.ctl(&["limit", "set", "--connections", "500"]).text(),
        "change limits: takes a restart\n"
    );
    let diff = target.ctl(&["diff"]).text();
    for line in [
        format!("- subsystem {NQN} namespace 1: "),
        format!("+ subsystem {NQN} namespace 2: "),
        "+ limits connections: 500\n".into(),
    ] {
        assert!(diff.contains(&line), "{diff}");
    }
    let (before, identity) =
        (target.namespaces(), target.json(&["namespace", "show", "7"])["running"]["uuid"].clone());
    assert_eq!(
        fs::read_to_string(target.path("nvlane.toml")).expect("there"),
        TOML,
        "the file stays untouched"
    );
    let target = target.restarted();
    assert_eq!(target.namespaces(), before);
    assert_eq!(target.json(&["namespace", "show", "7"])["running"]["uuid"], identity);
    assert_eq!(target.seen(), [2, 7]);
    assert_eq!(target.json(&["limit", "show"])["values"]["connections"], 500);
    // One file of all means the same to a target without changes.
    let exported = target.ctl(&["export"]).text();
    fs::write(target.path("all.toml"), &exported).expect("written");
    let checked = run([
        "check".as_ref(),
        "--text-only".as_ref(),
        "--config".as_ref(),
        target.path("all.toml").as_os_str(),
    ]);
    assert!(checked.text().contains("namespace 7: file:"), "{exported}");
    target.end();
}

#[test]
fn the_operators_file_and_changes_go_together() {
    let target = Target::start(TOML);
    target.ctl(&["namespace", "add", "--size", "2M"]).text();
    target.ctl(&["subsystem", "set", NQN, "--doorbell", "turn"]).text();
    // An edit of something else, and of the same thing.
    target.configure(
        &TOML
            .replace("hosts = ", "doorbell = \"immediate\"\nhosts = ")
            .replace("nsid = 1", "nsid = 5\nstorage = \"ram:9M\"\n[[subsystem.namespace]]\nnsid = 1"),
    );
    let reloaded = target.ctl(&["reload"]).text();
    let dropped = format!(
        "the configuration says something else of subsystem {NQN} doorbell by now: its control change is dropped\n"
    );
    assert!(reloaded.contains(&dropped), "{reloaded}");
    assert!(reloaded.contains(&format!("add {NQN} namespace 5 (ram:9M): done")), "{reloaded}");
    assert_eq!(target.namespaces(), pairs(&[("1", "ram:1M"), ("2", "ram:2M"), ("5", "ram:9M")]));
    assert_eq!(target.json(&["subsystem", "show", NQN])["values"]["doorbell"], "immediate");
    // What does not fit is refused with its name, and everything stays.
    target.ctl(&["listener", "add", "127.0.0.2:45217"]).text();
    target.configure(&TOML.replace("127.0.0.1:0", "0.0.0.0:45217"));
    let refused = target.ctl(&["reload"]);
    assert_eq!(refused.code, 1);
    assert!(refused.stdout.contains("127.0.0.2:45217 overlap"), "{refused:?}");
    assert_eq!(target.namespaces().len(), 3);
    target.end();
}

#[test]
fn refusals_say_what_would_be_right_and_change_nothing() {
    let target = Target::start(TOML);
    let before = target.json(&["diff"]);
    for (words, code, message) in [
        (&["namespace", "add", "--storage", "ram:2X"][..], 2, "no size ends in 'X': use K, M, G or T"),
        (&["namespace", "add", "ram:1M"], 2, "found \"ram:1M\": storage is a key of its own (--storage)"),
        (&["namespace", "remove", "3"], 1, "no namespace 3: there is 1"),
        (&["namespace", "set", "1", "--storage", "ram:1M?lba=512"], 1, "it is open as ram:1M"),
        (
            &["subsystem", "show", "nqn.2026-01.io.nvlane:contrlled"],
            1,
            "did you mean nqn.2026-01.io.nvlane:controlled?",
        ),
        (&["host", "add", "h1"], 1, "any host may connect"),
        (&["limit", "set", "--connections", "1"], 2, "connections is 1: take 2"),
        (&["listener", "remove", "127.0.0.1:0"], 2, "there is no listener"),
        (&["call", "nvmf_get_subsytems"], 2, "did you mean nvmf_get_subsystems?"),
        (&["namespace", "add", "--size", "1M", "--revision", "9"], 1, "the configuration has revision 0"),
        (
            &["key", "add", "h1", "--dhchap-secret", "DHHC-1:00:c2VjcmV0:"],
            2,
            "secrets are not written into the configuration",
        ),
    ] {
        let complaint = target.ctl(words).complaint(code);
        assert!(complaint.contains(message), "{words:?}: {complaint}");
    }
    // clap's own.
    for (words, message) in [
        (&["namespac", "list"][..], "'namespace'"),
        (&["namespace", "lst"], "'list'"),
        (&["namespace", "add", "--sise", "1M"], "'--size'"),
    ] {
        let refused = target.ctl(words);
        assert_eq!(refused.code, 2);
        assert!(refused.stderr.contains(message), "{refused:?}");
    }
    // A port that is in use: nothing of the change is done.
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let taken = taken.local_addr().expect("an address").to_string();
    let refused = target.ctl(&["listener", "add", &taken]).complaint(1);
    assert!(refused.contains("not done"), "{refused}");
    assert_eq!(target.json(&["diff"]), before);
    assert!(!fs::read_to_string(target.path("audit")).expect("a log").contains("c2VjcmV0"));
    let elsewhere = run(["ctl", "--control", "/nowhere/control.sock", "diff"]).complaint(4);
    assert!(elsewhere.contains("no target serves it"), "{elsewhere}");
    target.end();
}

#[test]
fn what_hosts_use_is_removed_only_by_force() {
    let target = Target::start(TOML);
    target.ctl(&["namespace", "add", "--size", "2M"]).text();
    let address: Address = target.address().parse().expect("an address");
    let association = Association::connect(&address, Options::default()).expect("a connection");
    let refused = target.ctl(&["namespace", "remove", "2"]).complaint(1);
    assert!(
        refused.contains("1 host is connected and would lose it") && refused.contains("--force"),
        "{refused}"
    );
    assert_eq!(target.namespaces().len(), 2);
    target.ctl(&["namespace", "remove", "2", "--force"]).text();
    assert_eq!(target.namespaces().len(), 1);
    drop(association);
    target.end();
}

/// Kills a target at any moment while changes are made: every answered one is there afterwards, and no other but the last.
#[test]
fn a_kill_at_any_moment_loses_no_answered_change() {
    let mut target = Target::start(TOML);
    let mut expected: Vec<u64> = vec![1];
    // More rounds, with later kills, where a busy machine answers few calls.
    for round in 0_u64..60 {
        if round >= 6 && expected.len() > 3 {
            break;
        }
        let mut connection = UnixStream::connect(target.path("control.sock")).expect("it listens");
        let process = Pid::from_child(target.process.as_ref().expect("it runs"));
        let killer = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_micros(3_000 + 4_700 * round));
            kill_process(process, Signal::KILL).expect("it runs");
        });
        let mut buffer = [0; 4096];
        loop {
            let next = expected.len() as u64 + 1;
            let request = json!({ "id": next, "method": "add", "params": { "noun": "namespace", "values": { "storage": "ram:64K" } } });
            let answered = connection
                .write_all(request.to_string().as_bytes())
                .and_then(|()| connection.read(&mut buffer));
            let Ok(count) = answered else { break };
            if count == 0 {
                break;
            }
            let answer: Value = serde_json::from_slice(&buffer[..count]).expect("one whole answer");
            assert_eq!(answer["result"]["name"], next.to_string(), "{answer}");
            expected.push(next);
        }
        killer.join().expect("no panic");
        target.process.take().expect("it ran").wait().expect("it ends");
        target = target.started();
        let found: Vec<u64> =
            target.namespaces().iter().map(|(name, _)| name.parse().expect("a number")).collect();
        let is_kept = found == expected || found[..found.len() - 1] == expected[..];
        assert!(is_kept, "round {round}: answered {expected:?}, found {found:?}");
        assert_eq!(target.seen(), found, "what hosts find is what is kept");
        expected = found;
    }
    assert!(expected.len() > 3, "changes were made: {expected:?}");
    let beside = fs::read_dir(target.directory.path()).expect("a directory");
    let left = beside
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter(|name| name.ends_with(".new"));
    assert_eq!(left.count(), 0);
    target.end();
}

#[test]
fn other_users_are_refused_and_recorded() {
    let target = Target::start(TOML);
    let socket = target.path("control.sock");
    assert_eq!(fs::metadata(&socket).expect("a socket").permissions().mode() & 0o777, 0o600);
    let second = Ended::of(target.command().stdin(Stdio::null())).complaint(2);
    assert!(second.contains("another target (process"), "{second}");
    if rustix::process::geteuid().is_root() {
        // Permissions that let others in do not: the kernel names the caller.
        fs::set_permissions(target.directory.path(), PermissionsExt::from_mode(0o755)).expect("set");
        fs::set_permissions(&socket, PermissionsExt::from_mode(0o666)).expect("set");
        let asked = std::thread::spawn(move || {
            // Of this thread only.
            let nobody = Uid::from_raw(65_534);
            rustix::thread::set_thread_res_uid(nobody, nobody, nobody).expect("root may");
            let mut said = String::new();
            let mut connection = UnixStream::connect(socket).expect("it listens");
            connection.set_read_timeout(Some(Duration::from_secs(5))).expect("set");
            // One who is served gets no answer before a request.
            let _ = connection.read_to_string(&mut said);
            said
        });
        let said = asked.join().expect("no panic");
        assert!(said.contains("only the target's user and root may use this socket"), "{said}");
        // A thread of its own writes the audit log.
        let until = Instant::now() + PATIENCE;
        loop {
            let audit = fs::read_to_string(target.path("audit")).expect("a log");
            if audit.contains("\"event\":\"control_refused\"") && audit.contains("\"uid\":65534") {
                break;
            }
            assert!(Instant::now() < until, "{audit}");
            std::thread::sleep(Duration::from_millis(10));
        }
        assert!(target.log().contains("a process of another user was refused"));
    }
    target.end();
}

/// Waits until the audit log has a line with all of these.
fn wait_for_audit(target: &Target, parts: &[&str]) {
    // A thread of its own writes the audit log.
    let until = Instant::now() + PATIENCE;
    loop {
        let audit = fs::read_to_string(target.path("audit")).expect("a log");
        if audit.lines().any(|line| parts.iter().all(|part| line.contains(part))) {
            return;
        }
        assert!(Instant::now() < until, "{parts:?}: {audit}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn callers_on_other_machines_have_a_name_and_a_key() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = |name: &str| directory.path().join(name);
    let new_key = |name: &str| {
        fs::write(file(name), run(["keys", "generate", "--tls"]).text()).expect("written");
        fs::set_permissions(file(name), PermissionsExt::from_mode(0o600)).expect("set");
    };
    new_key("ops.key");
    new_key("other.key");
    let table = |keys: &str| format!("{TOML}[control]\ntls = \"127.0.0.1:0\"\n{keys}");
    let keys = format!("tls_keys = {{ ops = \"file:{}\" }}\n", file("ops.key").display());
    let target = Target::start_with(&table(&keys), &[("NVLANE_LOG", "info")]);
    let log = target.log();
    let (_, behind) = log.split_once("control port open for callers with a key").expect("it listens");
    let (_, behind) = behind.split_once("127.0.0.1:").expect("its address");
    let port: String = behind.chars().take_while(char::is_ascii_digit).collect();
    let call = |caller: &str, key: Option<&str>, words: &[&str]| {
        let mut command = nvlane();
        command.arg("ctl").args(["--control", &format!("tls://{caller}@127.0.0.1:{port}")]);
        if let Some(key) = key {
            let named = if key.contains(':') { key.into() } else { file(key) };
            command.arg("--control-key").arg(named);
        }
        Ended::of(command.args(words))
    };
    call("ops", Some("ops.key"), &["namespace", "add", "--size", "1M"]).text();
    assert_eq!(target.namespaces(), pairs(&[("1", "ram:1M"), ("2", "ram:1M")]));
    wait_for_audit(
        &target,
        &["\"event\":\"control_changed\"", "\"peer\":\"127.0.0.1:", "\"caller\":\"ops\""],
    );
    for (caller, key, code, part) in [
        ("ops", Some("other.key"), 4, "another key of it"),
        ("web", Some("ops.key"), 4, "may know no caller web"),
        ("ops", None, 2, "with --control-key"),
        ("ops", Some("none.key"), 2, "No such file"),
        ("ops", Some("NVMeTLSkey-1:01:c2VjcmV0:"), 2, "cannot be an argument"),
    ] {
        let why = call(caller, key, &["namespace", "add", "--size", "1M"]).complaint(code);
        assert!(why.contains(part) && !why.contains("c2VjcmV0"), "{why}");
    }
    let key = "ops=NVMeTLSkey-1:01:c2VjcmV0:";
    let words = ["target", "--namespace", "ram:1M", "--control-tls", "127.0.0.1:0", "--control-key", key];
    let why = run(words).complaint(2);
    assert!(why.contains("cannot be an argument") && !why.contains("c2VjcmV0"), "{why}");
    wait_for_audit(&target, &["\"event\":\"control_refused\"", "\"peer\":\"127.0.0.1:", "NVMe0R01 ops "]);
    wait_for_audit(&target, &["\"event\":\"control_refused\"", "NVMe1R01 web "]);
    assert_eq!(target.namespaces().len(), 2, "nothing was changed");
    // A key is replaced, and an unreadable one keeps the last.
    new_key("ops.key");
    let told = target.ctl(&["reload"]).text();
    assert!(told.contains("take the changed keys of the control port"), "{told}");
    new_key("next.key");
    call("ops", Some("next.key"), &["diff"]).complaint(4);
    call("ops", Some("ops.key"), &["diff"]).text();
    fs::write(file("ops.key"), "nonsense").expect("written");
    let failed = target.ctl(&["reload"]);
    assert!(failed.code == 1 && failed.stdout.contains("the key of ops"), "{failed:?}");
    // What cannot work is found before it runs.
    for (keys, part) in [
        (String::new(), "nobody has a key for the control port"),
        ("tls_keys = { \"a b\" = \"file:x\" }\n".into(), "the name of a caller"),
        ("tls_keys = { ops = \"NVMeTLSkey-1:01:c2VjcmV0:\" }\n".into(), "file:PATH"),
    ] {
        fs::write(file("wrong.toml"), table(&keys)).expect("written");
        let checked = Ended::of(nvlane().args(["check", "--config"]).arg(file("wrong.toml")));
        assert!(checked.code != 0 && checked.stderr.contains(part), "{checked:?}");
        assert!(!checked.stderr.contains("c2VjcmV0"), "{checked:?}");
    }
    target.end();
}

#[test]
fn no_secret_leaves_its_file() {
    let target = Target::start(TOML);
    let key = run(["keys", "generate"]).text();
    let secret = key.trim().to_owned();
    let file = target.path("host.key");
    fs::write(&file, &key).expect("written");
    fs::set_permissions(&file, PermissionsExt::from_mode(0o600)).expect("set");
    let reference = format!("file:{}", file.display());
    target.ctl(&["subsystem", "set", NQN, "--dhchap-secret", &reference]).text();
    target.ctl(&["host", "add", "h1", "--dhchap-secret", &reference]).text();
    assert_eq!(target.json(&["key", "show", "h1"])["values"]["dhchap_secret"], reference.as_str());
    let answers = [&["state"][..], &["diff"], &["export"], &["call", "nvmf_get_subsystems"]];
    let mut texts: Vec<String> = answers.iter().map(|words| target.ctl(words).stdout).collect();
    for name in ["nvlane.toml.changes", "audit", "log"] {
        texts.push(fs::read_to_string(target.path(name)).expect("there"));
    }
    let bytes = secret.split(':').nth(2).expect("the secret itself");
    assert!(bytes.len() > 20 && texts.iter().all(|text| !text.contains(bytes)), "{texts:?}");
    let mode = fs::metadata(target.path("nvlane.toml.changes")).expect("there").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    target.end();
}

#[test]
fn changes_without_a_file_are_said_to_end_with_the_target() {
    let directory = tempfile::tempdir().expect("a directory");
    let socket = directory.path().join("c.sock");
    let mut target = nvlane();
    target.args(["target", "--listen", "127.0.0.1:0", "--namespace", "ram:1M", "--control"]).arg(&socket);
    target.env_remove("STATE_DIRECTORY");
    let _target = crate::support::Target::start(&mut target);
    let ctl = |words: &[&str]| Ended::of(nvlane().arg("ctl").arg("--control").arg(&socket).args(words));
    let added = ctl(&["namespace", "add", "--size", "1M"]);
    assert_eq!(added.code, 0);
    assert!(added.stderr.contains("start it with --changes FILE"), "{added:?}");
}

#[test]
fn help_teaches_with_examples() {
    let help = run(["ctl", "--help"]).text();
    for part in
        ["nvlane ctl namespace add --size 10G", "nvlane ctl diff", "namespace", "subsystem", "listener"]
    {
        assert!(help.contains(part), "{part}");
    }
    let bare = run(["ctl"]);
    assert!((bare.code, bare.stderr.contains("namespace list")) == (2, true), "its help: {bare:?}");
    let why = run(["ctl", "--control", "none"]).complaint(2);
    assert!(why.contains("nvlane ctl namespace list"), "{why}");
    let help = run(["ctl", "namespace", "add", "--help"]).text();
    for part in ["--storage <SPEC>", "--size <SIZE>", "--write-hosts <HOSTS>", "--subsystem <NQN>"] {
        assert!(help.contains(part), "{part}: {help}");
    }
    let completion = run(["completions", "bash"]).text();
    assert!(
        completion.contains("nvlane__ctl__namespace__add")
            || completion.contains("nvlane__subcmd__ctl__subcmd__namespace__subcmd__add")
    );
}

/// What bash offers after this line, by the completion script.
fn completed(target: &Target, line: &str) -> Vec<String> {
    let script = target.path("completion");
    fs::write(&script, run(["completions", "bash"]).text()).expect("written");
    let program = crate::support::program();
    let line = line.replacen("nvlane", program, 1);
    let ask = "source \"$1\"; COMP_LINE=$2 COMP_POINT=${#2}; read -ra COMP_WORDS <<< \"$2\"; COMP_CWORD=${#COMP_WORDS[@]}; \
               _nvlane_ctl nvlane \"\" \"\"; printf '%s\\n' \"${COMPREPLY[@]}\"";
    let mut command = Command::new("bash");
    command.args(["-c", ask, "bash"]).arg(script).arg(line);
    let output = command.env("NVLANE_CONTROL", target.path("control.sock")).output().expect("bash");
    let text = String::from_utf8(output.stdout).expect("text");
    text.lines().map(str::to_owned).collect()
}

#[test]
fn a_shell_completes_names_of_the_running_target() {
    let target = Target::start(TOML);
    target.ctl(&["namespace", "add", "7", "--size", "1M"]).text();
    let found = completed(&target, "nvlane ctl namespace remove ");
    assert!(found.contains(&"1".to_owned()) && found.contains(&"7".to_owned()), "{found:?}");
    // Behind a colon, bash replaces only the rest.
    let found = completed(&target, "nvlane ctl subsystem show nqn.2026-01.io.nvlane:con");
    assert!(found.contains(&"controlled".to_owned()), "{found:?}");
    let found = completed(&target, "nvlane ctl namespace list --subsystem ");
    assert!(found.contains(&NQN.to_owned()), "{found:?}");
    let found = completed(&target, "nvlane ctl namespace add ");
    assert!(!found.contains(&"7".to_owned()), "a new one has another number: {found:?}");
}

/// As that of a container, whose socket is in a directory of the host.
#[test]
fn a_target_in_another_pid_namespace_answers() {
    let directory = tempfile::tempdir().expect("a directory");
    let socket = directory.path().join("control.sock");
    let mut command = Command::new("unshare");
    command.args([
        "--map-root-user",
        "--pid",
        "--fork",
        "--kill-child",
        env!("CARGO_BIN_EXE_nvlane"),
        "target",
    ]);
    command.args(["--listen", "127.0.0.1:0", "--namespace", "ram:1M", "--control"]).arg(&socket);
    let mut target = command.stderr(Stdio::piped()).spawn().expect("unshare");
    let mut stderr = BufReader::new(target.stderr.take().expect("piped"));
    let mut log = String::new();
    while !log.contains("control socket open") {
        assert!(stderr.read_line(&mut log).expect("a line") > 0, "the target has ended: {log}");
    }
    let ended = Ended::of(nvlane().args(["ctl", "state", "--control"]).arg(&socket));
    target.kill().expect("it runs");
    target.wait().expect("it ends");
    assert_eq!(ended.code, 0, "{ended:?}");
}
