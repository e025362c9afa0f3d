//! Every row of `nvlane probe` for targets, with both engines.

mod support;

use std::thread;

use support::{Target, nvlane};

/// Namespaces: blocks, blocks that are removed meanwhile, and key-value namespaces with and without eviction.
fn configuration(engine: &str, has_second: bool) -> String {
    let mut text = format!(
        "memcached = [\"127.0.0.1:0\"]\n[reactors]\nengine = \"{engine}\"\n[[subsystem]]\nnqn = \"nqn.2026-01.io.nvlane:probed\"\nhosts = \"any\"\n"
    );
    let second = has_second.then_some((2, "ram:16M"));
    let others = [(1, "ram:64M"), (3, "kv:ram:64M"), (4, "kv:ram:32M?evict=none")];
    for (nsid, storage) in others.into_iter().chain(second) {
        text += &format!("[[subsystem.namespace]]\nnsid = {nsid}\nstorage = \"{storage}\"\n");
    }
    text
}

/// Rows that need more access to a target than its sockets, log and configuration.
const SKIPPED: [&str; 5] = ["C15", "A19", "R10", "R11", "R12"];

/// Runs all rows on a target with this engine; returns the failed and the skipped rows.
fn probe(engine: &str) -> (Vec<String>, Vec<String>) {
    let directory = tempfile::tempdir().expect("a directory");
    let path = |name: &str| directory.path().join(name).display().to_string();
    for (name, has_second) in [("with.toml", true), ("without.toml", false), ("target.toml", true)] {
        std::fs::write(path(name), configuration(engine, has_second)).expect("written");
    }
    let log = std::fs::File::create(path("log")).expect("a log");
    let script = r#"
        target=$PPID
        reload() { echo "cp $1.toml target.toml && kill -HUP $target"; }
        "$NVLANE" probe "$NVLANE_ADDR" --overwrite --pause 2000 --json all.json --memcached "$NVLANE_MEMCACHED" \
            --target-log log --removable 2 --remove "$(reload without)" --restore "$(reload with)"
        all=$?
        "$NVLANE" probe "$NVLANE_ADDR?ns=4" --overwrite --json full.json --row K1 --row K4 --row K8 || exit
        exit $all"#;
    let mut command = nvlane();
    command.args(["target", "--listen", "127.0.0.1:0", "--config", "target.toml", "--run", script]);
    command.current_dir(&directory).env("NVLANE", env!("CARGO_BIN_EXE_nvlane")).env("NVLANE_LOG", "info");
    let status = command.stderr(log).stdout(std::process::Stdio::null()).status().expect("the target runs");
    let said = std::fs::read_to_string(path("log")).expect("a log");
    assert!(!said.contains("panicked"), "{said}");
    let (mut wrong, mut skipped) = (Vec::new(), Vec::new());
    for name in ["all.json", "full.json"] {
        let json =
            std::fs::read_to_string(path(name)).unwrap_or_else(|error| panic!("{name}: {error}: {said}"));
        let report: serde_json::Value = serde_json::from_str(&json).expect("JSON");
        for row in report["rows"].as_array().expect("rows") {
            match row["outcome"].as_str() {
                Some("pass") => {}
                Some("skipped") => skipped.push(row["id"].as_str().expect("an id").to_owned()),
                _ => wrong.push(format!("{engine}: {} {}: {}", row["id"], row["outcome"], row["finding"])),
            }
        }
    }
    assert_eq!(status.code(), Some(i32::from(!wrong.is_empty())), "{said}");
    (wrong, skipped)
}

#[test]
fn a_target_bears_every_row_on_both_engines() {
    let engines = ["uring", "epoll"].map(|engine| thread::spawn(move || probe(engine)));
    for engine in engines {
        let (wrong, skipped) = engine.join().expect("no panic");
        assert!(wrong.is_empty(), "{wrong:#?}");
        assert_eq!(skipped, SKIPPED);
    }
}

/// The probe has no secret, so every attempt must fail. A2 is about targets that do not ask.
#[test]
fn a_target_that_authenticates_bears_every_row_of_authentication() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = |name: &str| directory.path().join(name);
    for key in ["host.key", "controller.key"] {
        let mut generate = nvlane();
        generate.args(["keys", "generate", "--out"]).arg(path(key));
        assert!(generate.status().expect("nvlane runs").success());
    }
    let rows: String = (1..=20).map(|row| format!(" --row A{row}")).collect();
    let script =
        format!(r#""$NVLANE" probe "$NVLANE_ADDR" --pause 2000 --row-timeout 300 --json all.json{rows}"#);
    let mut command = nvlane();
    command.args(["target", "--listen", "127.0.0.1:0", "--namespace", "ram:16M"]);
    command.args(["--dhchap-secret", "host.key", "--dhchap-ctrl-secret", "controller.key", "--run", &script]);
    command
        .current_dir(&directory)
        .env("NVLANE", env!("CARGO_BIN_EXE_nvlane"))
        .stdout(std::process::Stdio::null());
    let output = command.output().expect("the target runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!said.contains("panicked"), "{said}");
    let json = std::fs::read_to_string(path("all.json")).unwrap_or_else(|error| panic!("{error}: {said}"));
    let report: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    let others: Vec<String> = report["rows"]
        .as_array()
        .expect("rows")
        .iter()
        .filter(|row| row["outcome"] != "pass" && row["id"] != "A2" && row["id"] != "A19")
        .map(|row| format!("{} {}: {}", row["id"], row["outcome"], row["finding"]))
        .collect();
    assert!(others.is_empty(), "{others:#?}");
}

/// The rows of section 13 in sessions, which take the target's key.
#[test]
fn a_target_with_tls_bears_every_row_in_its_sessions() {
    let directory = tempfile::tempdir().expect("a directory");
    let mut generate = nvlane();
    generate.args(["keys", "generate", "--tls", "--out"]).arg(directory.path().join("tls.key"));
    assert!(generate.status().expect("nvlane runs").success());
    let rows: String =
        (1..=20).filter(|row| ![8, 9].contains(row)).map(|row| format!(" --row T{row}")).collect();
    let script = format!(r#""$NVLANE" probe "$NVLANE_ADDR" --pause 2000 --tls --tls-key tls.key{rows}"#);
    let mut command = nvlane();
    command.args(["target", "--listen", "127.0.0.1:0", "--namespace", "ram:16M"]);
    command.args(["--tls", "allowed", "--tls-key", "tls.key", "--run", &script]);
    let output = command.current_dir(&directory).env("NVLANE", env!("CARGO_BIN_EXE_nvlane")).output();
    let output = output.expect("the target runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!said.contains("panicked"), "{said}");
    let report = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && report.contains(" 18 pass,"), "{report}{said}");
}

#[test]
fn rows_are_chosen_by_name_and_listed() {
    let list = support::run(["probe", "--list"]).text();
    for row in ["  P1   The first PDU is not ICReq: TermReq 02", "  D16  Data for an aborted command"] {
        assert!(list.contains(row), "{list}");
    }
    let line = support::run(["probe", "--row", "X99", "127.0.0.1/nqn.2026-01.io.nvlane:x"]).complaint(2);
    assert_eq!(line, "--row X99: no such row; --list has them");
    let target = Target::serving(&["ram:64M"]);
    let text = target.ask(&["probe", "--row", "p1", "--row", "I4"]).text();
    assert!(
        text.ends_with("2 rows: 2 pass, 0 differs, 0 hangs, 0 dies, 0 skipped  (* our judgement)\n"),
        "{text}"
    );
}

#[test]
fn nothing_is_written_unless_that_is_allowed() {
    let target = Target::serving(&["ram:64M"]);
    let ended = target.ask(&["probe", "--row", "D1", "--row", "N9", "--json", "-"]);
    let report: serde_json::Value = serde_json::from_str(&ended.stdout).expect("JSON");
    for row in report["rows"].as_array().expect("rows") {
        assert_eq!(row["outcome"], "skipped", "{row}");
        assert!(row["finding"].as_str().is_some_and(|why| why.contains("--overwrite")), "{row}");
    }
}
