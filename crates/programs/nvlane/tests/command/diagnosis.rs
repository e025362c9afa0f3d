//! What an operator uses to find a problem: `nvlane doctor`, `nvlane support` and `nvlane trace`.

use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

use base64ct::{Base64, Encoding};
use serde_json::Value;

use crate::ctl::Target;
use crate::metrics::certificate;
use crate::support::{Ended, nvlane, run};

const NQN: &str = "nqn.2026-01.io.nvlane:controlled";
const PASSWORD: &str = "open \"sesame\" 4711";

/// A target with secrets of every kind, and the secrets.
struct Guarded {
    target: Target,
    secrets: Vec<String>,
}

impl Guarded {
    fn start() -> Self {
        let keys = tempfile::tempdir().expect("a directory").keep();
        let place = |name: &str| keys.join(name).to_str().expect("text").to_owned();
        let mut secrets = Vec::new();
        for (name, words) in [
            ("host.key", &["keys", "generate"][..]),
            ("controller.key", &["keys", "generate"]),
            ("variable.key", &["keys", "generate", "--hmac", "2"]),
            ("tls.key", &["keys", "generate", "--tls"]),
        ] {
            let text = run(words).text();
            fs::write(place(name), &text).expect("written");
            secrets.push(text.trim().to_owned());
        }
        certificate(&keys);
        fs::write(place("users"), format!("shop:{PASSWORD}\n")).expect("written");
        for name in ["host.key", "controller.key", "tls.key", "users", "key.pem"] {
            fs::set_permissions(place(name), fs::Permissions::from_mode(0o600)).expect("set");
        }
        // Comments may have anything.
        let text = format!(
            "# the secret of h was {secret}\n[reactors]\ncount = 1\n[[listener]]\naddress = \"127.0.0.1:0\"\ntls = \"allowed\"\n\
             [[memcached]]\naddress = \"127.0.0.1:0\"\ntls_certificate = \"file:{certificate}\"\ntls_key = \"file:{key}\"\nusers = \"file:{users}\"\n\
             [[subsystem]]\nnqn = \"{NQN}\"\nhosts = [\"h\", \"i\"]\nmemcached = \"any\"\n[[subsystem.host]]\nnqn = \"h\"\ndhchap_secret = \"file:{host}\"\n\
             dhchap_ctrl_secret = \"file:{controller}\"\ntls_key = \"file:{tls}\"\n\
             [[subsystem.host]]\nnqn = \"i\"\ndhchap_secret = \"env:NVLANE_TEST_SECRET\"\n\
             [[subsystem.namespace]]\nnsid = 1\nstorage = \"kv:ram:64M\"\n",
            secret = secrets[0],
            certificate = place("certificate.pem"),
            key = place("key.pem"),
            users = place("users"),
            host = place("host.key"),
            controller = place("controller.key"),
            tls = place("tls.key"),
        );
        let variable = secrets[2].clone();
        let target = Target::start_with(&text, &[("NVLANE_TEST_SECRET", &variable)]);
        Self { target, secrets }
    }

    /// Every form that a secret may take, derived without the product's code.
    fn forms(&self) -> Vec<(String, Vec<u8>)> {
        let mut forms = Vec::new();
        let mut add = |name: &str, bytes: &[u8]| {
            let (mut lower, mut upper) = (String::new(), String::new());
            for byte in bytes {
                let _ = write!(lower, "{byte:02x}");
                let _ = write!(upper, "{byte:02X}");
            }
            let encoded = Base64::encode_string(bytes);
            for (form, bytes) in [
                ("plain", bytes.to_vec()),
                ("hex", lower.into_bytes()),
                ("HEX", upper.into_bytes()),
                ("base64", encoded.trim_end_matches('=').as_bytes()[..bytes.len() / 3 * 4].to_vec()),
            ] {
                forms.push((format!("{name} {form}"), bytes));
            }
        };
        for (at, text) in self.secrets.iter().enumerate() {
            add(&format!("text {at}"), text.as_bytes());
            let encoded = text.split(':').nth(2).expect("three parts");
            add(&format!("encoded {at}"), encoded.as_bytes());
            let decoded = Base64::decode_vec(encoded).expect("base64");
            add(&format!("decoded {at}"), &decoded);
            add(&format!("key {at}"), &decoded[..decoded.len() - 4]);
        }
        add("password", PASSWORD.as_bytes());
        add("user and password", format!("shop:{PASSWORD}").as_bytes());
        forms.push(("password in JSON".into(), PASSWORD.replace('"', "\\\"").into_bytes()));
        let pem = self.target.config_text();
        let path =
            pem.split("tls_key = \"file:").nth(1).and_then(|rest| rest.split('"').next()).expect("a path");
        let pem = fs::read_to_string(path).expect("a private key");
        let lines = pem.lines().filter(|line| !line.starts_with('-') && line.len() >= 16);
        forms.extend(lines.map(|line| ("private key".to_owned(), line.as_bytes().to_vec())));
        forms
    }
}

fn contains(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|window| window == part)
}

fn file(directory: &Path, name: &str) -> String {
    let path = directory.join("nvlane-support").join(name);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

#[test]
fn an_archive_for_support_has_no_secret_in_any_form() {
    let guarded = Guarded::start();
    let forms = guarded.forms();
    let target = &guarded.target;
    // A log in which every form of every secret is.
    let mut log = b"the first line\n".to_vec();
    for (_, form) in &forms {
        log.extend_from_slice(b"before ");
        log.extend_from_slice(form);
        log.extend_from_slice(b" after\n");
    }
    let log_file = target.path("secrets.log");
    fs::write(&log_file, &log).expect("written");
    let archive = target.path("support.tar");
    let support = |archive: &Path| {
        let mut command = nvlane();
        command.arg("support").arg(archive).arg("--config").arg(target.path("nvlane.toml"));
        command.arg("--control").arg(target.path("control.sock")).arg("--log-file").arg(&log_file);
        command.env("NVLANE_TEST_SECRET", &guarded.secrets[2]);
        Ended::of(&mut command)
    };
    assert_eq!(support(&archive).text(), format!("{}\n", archive.display()));
    let bytes = fs::read(&archive).expect("an archive");
    for (name, form) in &forms {
        assert!(contains(&log, form), "{name} was there");
        assert!(!contains(&bytes, form), "{name}: {}", form.escape_ascii());
    }
    assert_eq!(fs::metadata(&archive).expect("a file").permissions().mode() & 0o7777, 0o600);

    // Another program reads it.
    let directory = tempfile::tempdir().expect("a directory");
    let listed =
        Command::new("tar").arg("-xvf").arg(&archive).arg("-C").arg(directory.path()).output().expect("tar");
    assert!(
        listed.status.success() && listed.stderr.is_empty(),
        "{}",
        String::from_utf8_lossy(&listed.stderr)
    );
    let config = file(directory.path(), "config.toml");
    assert!(config.contains(NQN) && config.contains("host.key") && !config.contains('#'), "{config}");
    assert!(file(directory.path(), "version.txt").contains(env!("CARGO_PKG_VERSION")));
    let state: Value = serde_json::from_str(&file(directory.path(), "state.json")).expect("JSON");
    assert_eq!(state["subsystems"][0]["nqn"], NQN);
    let report: Value = serde_json::from_str(&file(directory.path(), "doctor.json")).expect("JSON");
    assert!(report["findings"].as_array().is_some_and(|findings| findings.len() > 10), "{report}");
    let lines = file(directory.path(), "log.txt");
    assert!(lines.starts_with("the first line\nbefore ***"), "{lines}");
    assert!(
        lines.lines().skip(1).all(|line| line.starts_with("before ") && line.ends_with(" after")),
        "{lines}"
    );
    assert!(file(directory.path(), "proc-meminfo.txt").contains("MemTotal"));
    assert!(
        file(directory.path(), "README.txt").contains("changes.json: "),
        "it is told that there are none"
    );

    let refused = support(&archive).complaint(2);
    assert!(refused.contains("is not overwritten"), "{refused}");
    assert_eq!(fs::read(&archive).expect("an archive"), bytes);
    let nowhere = support(Path::new("/no/such/directory/x.tar")).complaint(2);
    assert!(nowhere.contains("cannot create /no/such/directory/x.tar"), "{nowhere}");
}

#[test]
fn an_archive_is_made_without_a_target_and_of_a_configuration_with_mistakes() {
    let directory = tempfile::tempdir().expect("a directory");
    let config = directory.path().join("nvlane.toml");
    let secret = run(["keys", "generate"]).text();
    let secret = secret.trim();
    fs::write(
        &config,
        format!("[[subsystem]]\nnqn = \"{NQN}\"\nhosts = \"any\"\ndhchap_secret = \"{secret}\"\n"),
    )
    .expect("written");
    let archive = directory.path().join("support.tar");
    let mut command = nvlane();
    command
        .arg("support")
        .arg(&archive)
        .arg("--config")
        .arg(&config)
        .arg("--control")
        .arg(directory.path().join("none"));
    Ended::of(&mut command).text();
    let bytes = fs::read(&archive).expect("an archive");
    assert!(
        contains(&bytes, b"config-errors.txt")
            && contains(&bytes, b"secrets are not written into the configuration")
    );
    let encoded = secret.split(':').nth(2).expect("three parts");
    assert!(!contains(&bytes, encoded.as_bytes()) && !contains(&bytes, secret.as_bytes()));
}

#[test]
fn doctor_says_what_to_change_with_the_command() {
    let guarded = Guarded::start();
    let target = &guarded.target;
    let doctor = |more: &[&str]| {
        let mut command = nvlane();
        command.arg("doctor").arg("--config").arg(target.path("nvlane.toml")).args(more);
        command
            .arg("--control")
            .arg(target.path("control.sock"))
            .env("NVLANE_TEST_SECRET", &guarded.secrets[2]);
        Ended::of(&mut command)
    };
    let report = doctor(&["-o", "json"]).json();
    let findings = report["findings"].as_array().expect("a list");
    let of = |check: &str| findings.iter().filter(|finding| finding["check"] == check).collect::<Vec<_>>();
    for check in [
        "kernel",
        "io_uring",
        "descriptors",
        "locked memory",
        "memory",
        "cores",
        "configuration",
        "certificate",
        "target",
    ] {
        assert!(!of(check).is_empty(), "{check}: {report}");
    }
    assert_eq!(of("certificate")[0]["level"], "warning", "it is valid for a day");
    assert_eq!(of("certificate")[0]["command"], "nvlane ctl reload");
    assert_eq!(of("target")[0]["level"], "ok", "{report}");
    for finding in findings {
        let has = |key: &str| {
            finding.get(key).is_some_and(|text| text.as_str().is_some_and(|text| !text.is_empty()))
        };
        assert!(
            has("what") && (finding["level"] != "warning" || has("command") || has("change")),
            "{finding}"
        );
    }
    let text = doctor(&[]).stdout;
    assert!(text.contains("ok       target: it runs, process "), "{text}");
    for secret in &guarded.secrets {
        assert!(!text.contains(secret.as_str()));
    }

    // A secret that others can read, and one that is not there.
    let text = target.config_text();
    let path =
        text.split("dhchap_secret = \"file:").nth(1).and_then(|rest| rest.split('"').next()).expect("a path");
    fs::set_permissions(path, fs::Permissions::from_mode(0o644)).expect("set");
    let ended = doctor(&["--quiet"]);
    assert!(ended.stdout.contains(&format!("run: chmod o-r {path}")), "{}", ended.stdout);
    assert!(!ended.stdout.contains("ok       "), "{}", ended.stdout);
    fs::remove_file(path).expect("removed");
    let ended = doctor(&[]);
    assert_eq!(ended.code, 1);
    assert!(
        ended.stdout.contains("error    configuration: ") && ended.stdout.contains("No such file"),
        "{}",
        ended.stdout
    );
    let mistaken = Ended::of(nvlane().args(["doctor", "--config", "/no/such/file"]));
    assert_eq!(mistaken.code, 1);
    assert!(
        mistaken.stdout.contains("error    configuration: /no/such/file: cannot be read"),
        "{}",
        mistaken.stdout
    );
}

#[test]
fn a_trace_has_the_commands_that_are_asked_for_and_ends_by_itself() {
    let target = Target::start(&format!(
        "[reactors]\ncount = 2\n[[listener]]\naddress = \"127.0.0.1:0\"\n[[subsystem]]\nnqn = \"{NQN}\"\nhosts = \"any\"\n\
         [[subsystem.namespace]]\nnsid = 1\nstorage = \"ram:1M\"\n[[subsystem.namespace]]\nnsid = 2\nstorage = \"ram:1M?delay=1ms\"\n"
    ));
    let load = |nsid: u32| {
        let address = format!("{}?ns={nsid}", target.address());
        let words = ["perf", &address, "-t", "300", "-q", "2", "-o", "4096", "-w", "randrw", "-M", "50"];
        nvlane().args(words).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("a load")
    };
    let trace = |words: &[&str]| {
        let mut command = nvlane();
        command.arg("trace").arg("--control").arg(target.path("control.sock")).args(words);
        Ended::of(&mut command)
    };
    let mut loads = [load(1), load(2)];
    // Commands are under way when the next one begins; it leaves them out.
    trace(&["--time", "60", "--events", "1", "--nsid", "2"]).text();
    let traced = trace(&["--time", "60", "--events", "300", "--nsid", "2", "-o", "json"]).json();
    let events = traced["events"].as_array().expect("a list");
    assert_eq!(events.len(), 300, "at an event after the 300th it ends");
    let commands: Vec<&Value> = events.iter().filter(|event| event["event"] == "command").collect();
    assert!(commands.len() > 20 && events.iter().any(|event| event["event"] == "doorbell"));
    for command in &commands {
        assert_eq!(command["nsid"], 2);
        assert!(["Read", "Write"].contains(&command["opcode"].as_str().expect("a name")), "{command}");
        assert!(command["storage_ns"].as_u64().expect("a number") >= 900_000, "{command}");
        assert_eq!((&command["blocks"], &command["bytes"]), (&1.into(), &4096.into()));
    }
    let times: Vec<u64> = events.iter().map(|event| event["at_ns"].as_u64().expect("a number")).collect();
    assert!(times.is_sorted());

    // Another host, of which nothing is seen; few events are kept, and the others counted.
    let nothing = trace(&["--time", "0.2", "--host", "nqn.2026-01.io.nvlane:nobody"]).text();
    assert_eq!(nothing.lines().last(), Some("0 events, 0 lost"), "{nothing}");
    let lossy = trace(&["--time", "0.5", "--events", "100000", "--keep", "1"]).text();
    let lost: u64 =
        lossy.lines().last().and_then(|line| line.rsplit(' ').nth(1)?.parse().ok()).expect("a number");
    assert!(lost > 0, "{lossy}");
    let chrome: Value =
        serde_json::from_str(&trace(&["--events", "50", "-o", "chrome"]).text()).expect("JSON");
    let phases: Vec<&str> = chrome["traceEvents"]
        .as_array()
        .expect("a list")
        .iter()
        .filter_map(|event| event["ph"].as_str())
        .collect();
    assert!(["M", "b", "e"].iter().all(|phase| phases.contains(phase)));
    loads.iter_mut().for_each(|load| drop(load.kill()));
    loads.iter_mut().for_each(|load| drop(load.wait()));

    // Mistakes are named, and a second trace has to wait.
    assert!(trace(&["--keep", "262145"]).complaint(2).contains("keep: write a number from 1 to 262144"));
    assert!(trace(&["--host", ""]).complaint(2).contains("host: "));
    let mut first = nvlane();
    first
        .arg("trace")
        .arg("--control")
        .arg(target.path("control.sock"))
        .args(["--time", "30"])
        .stdout(Stdio::piped());
    let mut first = first.spawn().expect("a trace");
    let until = std::time::Instant::now() + std::time::Duration::from_secs(20);
    // It is the sixth.
    while target.ctl(&["call", "trace_read", "{\"id\":6}"]).code != 0 {
        assert!(std::time::Instant::now() < until, "the first has begun");
    }
    assert!(trace(&["--time", "0.01"]).complaint(1).contains("a trace runs already"));
    rustix::process::kill_process(rustix::process::Pid::from_child(&first), rustix::process::Signal::INT)
        .expect("it runs");
    assert!(first.wait().expect("it ends").success());
    trace(&["--time", "0.01"]).text();
}
