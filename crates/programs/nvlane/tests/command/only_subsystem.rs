//! An address without an NQN leads to the only subsystem there, and generated NQNs differ between targets.

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use crate::support::{Target, nvlane, run};

/// Whether an NQN is a generated one.
fn is_default(nqn: &str) -> bool {
    let digits = nqn.strip_prefix("nqn.2026-01.io.nvlane:target-").unwrap_or_default();
    digits.len() == 16 && digits.bytes().all(|byte| byte.is_ascii_hexdigit())
}

#[test]
fn every_command_finds_it() {
    let target = Target::serving(&["ram:4M", "kv:ram:64M"]);
    let place = target.place();
    assert!(is_default(target.nqn()), "{}", target.nqn());
    let report = run(["identify", "-o", "json", place]).json();
    assert_eq!(report["controller"]["subnqn"], target.nqn());
    assert_eq!(run(["smart-log", "-o", "json", place]).json()["critical_warning"], 0);
    run(["kv", "set", &format!("{place}?ns=2"), "key", "value"]).text();
    assert_eq!(run(["kv", "get", &format!("{place}?ns=2"), "key"]).text().trim_end(), "value");
    let perf = ["perf", "-q", "1", "-t", "0.2", "-a", "0"];
    assert_eq!(run(perf.into_iter().chain([format!("{place}?ns=1").as_str()])).code, 0);
}

#[test]
fn several_are_listed_to_choose_from() {
    let directory = tempfile::tempdir().unwrap();
    let config = directory.path().join("nvlane.toml");
    let subsystem = |name: &str, hosts: &str| {
        format!("[[subsystem]]\nnqn = \"nqn.2026-01.io.nvlane:{name}\"\nhosts = {hosts}\n")
    };
    let open = |name| subsystem(name, "\"any\"");
    std::fs::write(&config, open("first") + &open("second")).unwrap();
    let target = Target::configured(&config);
    let line = run(["identify", target.place()]).complaint(2);
    let expected = format!(
        "there are 2 subsystems at {}: name one, as in 127.0.0.1/nqn.2026-01.io.nvlane:first or 127.0.0.1/nqn.2026-01.io.nvlane:second",
        target.place()
    );
    assert_eq!(line, expected);
    std::fs::write(&config, subsystem("private", "[\"nqn.2026-01.io.nvlane:host\"]")).unwrap();
    let target = Target::configured(&config);
    let line = run(["identify", target.place()]).complaint(2);
    assert_eq!(line, format!("the discovery service at {} names no subsystem for this host", target.place()));
    let host = ["identify", "--hostnqn", "nqn.2026-01.io.nvlane:host", target.place()];
    assert!(run(host).text().contains("nqn.2026-01.io.nvlane:private"));
}

#[test]
fn targets_share_identities_only_where_that_is_said() {
    let uuids = |target: &Target| {
        let report = target.ask(&["identify", "-o", "json"]).json();
        let namespaces = report["namespaces"].as_array().unwrap();
        namespaces.iter().map(|namespace| namespace["uuid"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let serve = |more: &[&str]| {
        let mut command = nvlane();
        command.args(["target", "--listen", "127.0.0.1:0"]).args(more).args(["--namespace", "ram:1M"]);
        Target::start(&mut command)
    };
    let targets = [serve(&[]), serve(&[])];
    assert_ne!(targets[0].nqn(), targets[1].nqn());
    assert_ne!(uuids(&targets[0]), uuids(&targets[1]));
    let shared = [
        "--nqn",
        "nqn.2026-01.io.nvlane:shared",
        "--namespace",
        "ram:1M?uuid=11111111-2222-4333-8444-555555555555",
    ];
    let [one, other] = [serve(&shared), serve(&shared)].map(|target| uuids(&target));
    assert_eq!(one[0], other[0]);
    assert_ne!(one[1], other[1]);
}

#[test]
fn port_8009_is_for_discovery_only() {
    let listen = |place: &str| {
        let arguments = ["target", "--listen", place, "--namespace", "ram:1M", "--run", "true"];
        run(arguments)
    };
    let line = listen("127.0.0.1:8009").complaint(2);
    assert!(line.contains("for discovery only") && line.contains("127.0.0.1:8009?subsystems"), "{line}");
    let line = listen("127.0.0.1:0?all").complaint(2);
    assert!(line.contains("no option all"), "{line}");
}

#[test]
fn check_says_what_would_be_served_to_whom() {
    let directory = tempfile::tempdir().unwrap();
    let config = directory.path().join("nvlane.toml");
    let text = "machine = \"one\"\n[[listener]]\naddress = \"192.0.2.1:4420\"\n[[listener]]\naddress = \"127.0.0.1:8009\"\n\
                [[subsystem]]\nnqn = \"nqn.2026-01.io.nvlane:disks\"\nhosts = \"any\"\n\
                namespace = [{ storage = \"ram:1M?uuid=11111111-2222-4333-8444-555555555555\" }, { storage = \"file:new?size=1M\" }]\n";
    std::fs::write(&config, text).unwrap();
    let ended = crate::support::Ended::of(
        nvlane().args(["check", "--config", "nvlane.toml"]).current_dir(directory.path()),
    );
    assert_eq!(ended.code, 0, "{ended:?}");
    assert!(ended.stderr.contains("anyone who reaches the listener on 192.0.2.1:4420"), "{ended:?}");
    let said = &ended.stdout;
    for line in [
        "nvlane.toml: no mistakes found",
        "  192.0.2.1:4420: subsystems and discovery",
        "  127.0.0.1:8009: discovery only, from this machine only",
        "Subsystem nqn.2026-01.io.nvlane:disks",
        "  OPEN TO ANYONE who reaches a listener, for reading and writing: hosts = \"any\"",
        "    in memory: empty at each start",
        "    on Linux hosts: /dev/disk/by-id/nvme-uuid.11111111-2222-4333-8444-555555555555",
        "    in a file, to be created",
    ] {
        assert!(said.lines().any(|known| known == line), "{line} in {said}");
    }
    assert!(!directory.path().join("new").exists());
    std::fs::write(&config, text.replace("file:new?", "file:nowhere/new?")).unwrap();
    let ended = crate::support::Ended::of(
        nvlane().args(["check", "--config", "nvlane.toml"]).current_dir(directory.path()),
    );
    assert_eq!(ended.code, 2, "{ended:?}");
    assert!(
        ended.stdout.contains("but not the storage or the secrets") && ended.stderr.contains("mkdir -p"),
        "{ended:?}"
    );
}

#[test]
fn a_reload_that_changes_nothing_says_so_and_a_wildcard_is_told_as_an_address() {
    let directory = tempfile::tempdir().unwrap();
    let config = directory.path().join("nvlane.toml");
    std::fs::write(&config, "[[subsystem]]\nnqn = \"nqn.2026-01.io.nvlane:disks\"\nhosts = \"any\"\n")
        .unwrap();
    let mut command = nvlane();
    command.env("NVLANE_LOG", "info").args(["target", "--listen", "0.0.0.0:0", "--config"]).arg(&config);
    command.args(["--run", "kill -HUP $PPID; read end"]).stdin(Stdio::piped()).stderr(Stdio::piped());
    let mut target = command.spawn().unwrap();
    let log = BufReader::new(target.stderr.take().unwrap());
    let mut connect = None;
    let mut lines = log.lines().map(Result::unwrap);
    let said = lines.find(|line| {
        if line.contains("connect with: ") {
            connect = Some(line.clone());
        }
        line.contains("reload: ")
    });
    let said = said.expect("the reload is logged");
    assert!(said.ends_with("reload: the configuration is unchanged"), "{said}");
    let connect = connect.expect("the address to connect to is logged first");
    assert!(!connect.contains("-a 0.0.0.0"), "{connect}");
    drop(target.stdin.take());
    for _ in lines {}
    target.wait().unwrap();
}

#[test]
fn an_address_that_nothing_answers_at_does_not_hide_another() {
    let directory = tempfile::tempdir().unwrap();
    let config = directory.path().join("nvlane.toml");
    let text = "[[listener]]\naddress = \"127.0.0.1:0\"\nadvertise = \"127.0.0.1:1\"\n\
                [[listener]]\naddress = \"127.0.0.1:0\"\n\
                [[subsystem]]\nnqn = \"nqn.2026-01.io.nvlane:two-ways\"\nhosts = \"any\"\n\
                [[subsystem.namespace]]\nnsid = 1\nstorage = \"ram:4M\"\n";
    std::fs::write(&config, text).unwrap();
    let target = Target::start(nvlane().args(["target", "--config"]).arg(&config));
    let log = run(["discover", "-o", "json", target.place()]).json();
    let records = log["records"].as_array().unwrap();
    assert!(records.iter().any(|record| record["trsvcid"] == "1"), "{log}");
    for verb in ["identify", "list", "smart-log"] {
        let said = run([verb, "-o", "json", target.place()]).text();
        assert!(!said.is_empty(), "{verb}");
    }
    assert_eq!(run(["perf", "-q", "1", "-t", "0.2", "-a", "0", target.place()]).code, 0);
}
