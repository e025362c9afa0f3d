//! Every row of `nvlane probe` for targets, with both engines.

#[path = "../../../crates/programs/nvlane/tests/support/mod.rs"]
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
        reload() { echo "cp $1.toml target.toml && $NVLANE reload --force --state state.json"; }
        "$NVLANE" probe "$NVLANE_ADDR" --overwrite --pause 2000 --json all.json --memcached "$NVLANE_MEMCACHED" \
            --target-log log --removable 2 --remove "$(reload without)" --restore "$(reload with)"
        all=$?
        "$NVLANE" probe "$NVLANE_ADDR?ns=4" --overwrite --json full.json --row K1 --row K4 --row K8 || exit
        exit $all"#;
    let mut command = nvlane();
    command.args(["target", "--listen", "127.0.0.1:0", "--config", "target.toml", "--state", "state.json"]);
    command.args(["--run", script]);
    command.current_dir(&directory).env("NVLANE", support::program()).env("NVLANE_LOG", "info");
    let status = command.stderr(log).stdout(std::process::Stdio::null()).status().expect("the target runs");
    let said = std::fs::read_to_string(path("log")).expect("a log");
    assert!(!said.contains("panicked"), "{said}");
    let (mut wrong, mut noted, mut skipped) = (Vec::new(), Vec::new(), Vec::new());
    for name in ["all.json", "full.json"] {
        let json =
            std::fs::read_to_string(path(name)).unwrap_or_else(|error| panic!("{name}: {error}: {said}"));
        let report: serde_json::Value = serde_json::from_str(&json).expect("JSON");
        for row in report["rows"].as_array().expect("rows") {
            // What other targets may do, and this one must not.
            let notes = row["notes"].as_array().into_iter().flatten().filter_map(|note| note.as_str());
            let is_own =
                |note: &&str| note.contains("leaves the connection open") || note.contains("is judged");
            noted.extend(notes.filter(is_own).map(|note| format!("{engine}: {}: {note}", row["id"])));
            match row["outcome"].as_str() {
                Some("pass") => {}
                Some("skipped") => skipped.push(row["id"].as_str().expect("an id").to_owned()),
                _ => wrong.push(format!("{engine}: {} {}: {}", row["id"], row["outcome"], row["finding"])),
            }
        }
    }
    assert_eq!(status.code(), Some(i32::from(!wrong.is_empty())), "{said}");
    wrong.append(&mut noted);
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
    let directory = keys();
    let path = |name: &str| directory.path().join(name);
    let rows: String = (1..=20).map(|row| format!(" --row A{row}")).collect();
    let script =
        format!(r#""$NVLANE" probe "$NVLANE_ADDR" --pause 2000 --row-timeout 300 --json all.json{rows}"#);
    let mut command = nvlane();
    command.args(["target", "--listen", "127.0.0.1:0", "--namespace", "ram:16M"]);
    command.args(["--dhchap-secret", "host.key", "--dhchap-ctrl-secret", "controller.key", "--run", &script]);
    command.current_dir(&directory).env("NVLANE", support::program()).stdout(std::process::Stdio::null());
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

/// A directory with `host.key`, `controller.key` and `tls.key`.
fn keys() -> tempfile::TempDir {
    let directory = tempfile::tempdir().expect("a directory");
    for (key, options) in [("host.key", &[][..]), ("controller.key", &[]), ("tls.key", &["--tls"])] {
        let mut generate = nvlane();
        generate.args(["keys", "generate"]).args(options).arg("--out").arg(directory.path().join(key));
        assert!(generate.status().expect("nvlane runs").success());
    }
    directory
}

/// Probes a target with these options. Returns the outcome of each row, with its reason if it did not pass.
fn outcomes(keys: &tempfile::TempDir, target: &str, probe: &str, rows: &[&str]) -> Vec<(String, String)> {
    let rows: String = rows.iter().map(|row| format!(" --row {row}")).collect();
    let script = format!(
        r#""$NVLANE" probe "$NVLANE_ADDR" --pause 2000 --row-timeout 300 --json all.json {probe}{rows}; true"#
    );
    let mut command = nvlane();
    command.args(["target", "--listen", "127.0.0.1:0", "--namespace", "ram:64M"]);
    command.args(target.split_whitespace()).args(["--run", &script]).current_dir(keys);
    let output = command.env("NVLANE", support::program()).stdout(std::process::Stdio::null()).output();
    let said = String::from_utf8_lossy(&output.expect("the target runs").stderr).into_owned();
    assert!(!said.contains("panicked"), "{said}");
    let json = std::fs::read_to_string(keys.path().join("all.json"))
        .unwrap_or_else(|error| panic!("{error}: {said}"));
    std::fs::remove_file(keys.path().join("all.json")).expect("removed");
    let report: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    let text = |row: &serde_json::Value, field: &str| row[field].as_str().unwrap_or_default().to_owned();
    let rows = report["rows"].as_array().expect("rows").iter();
    rows.map(|row| (text(row, "id"), format!("{}: {}", text(row, "outcome"), text(row, "finding")))).collect()
}

/// The rows of section 13 in sessions, which take the target's key.
#[test]
fn a_target_with_tls_bears_every_row_in_its_sessions() {
    let keys = keys();
    let ids: Vec<String> = (1..=20).map(|row| format!("T{row}")).collect();
    let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
    let secrets = "--dhchap-secret host.key --dhchap-ctrl-secret controller.key";
    for policy in ["allowed", "required"] {
        for authentication in ["", secrets] {
            let target = format!("--tls {policy} --tls-key tls.key {authentication}");
            for (id, outcome) in outcomes(&keys, &target, "--tls --tls-key tls.key", &ids) {
                let right = if id == "T8" { "skipped: it takes 2^24.5 records" } else { "pass" };
                assert!(outcome.starts_with(right), "{target}: {id} {outcome}");
            }
        }
    }
}

/// What a listener demands decides which rows get in; the others say what keeps them out.
#[test]
fn rows_that_a_listener_keeps_out_are_skipped_with_the_reason() {
    const NOT_ASKED: &str = "skipped: the target wants authentication";
    const NO_CHANNEL: &str = "skipped: the target demands a secure channel";
    const NOT_CLEAR: &str = "skipped: the target takes no connection in cleartext";
    const NO_KEY: &str = "skipped: it takes a session";
    let keys = keys();
    let secrets = "--dhchap-secret host.key --dhchap-ctrl-secret controller.key";
    let concatenated = [
        ("P5", NOT_ASKED),
        ("I5", NOT_ASKED),
        ("C14", NOT_ASKED),
        ("D6", NOT_ASKED),
        ("A1", "pass"),
        ("A6", "pass"),
        ("A9", NO_CHANNEL),
        ("A17", NO_CHANNEL),
        ("Q9", NOT_ASKED),
        ("M6", NOT_ASKED),
        ("K1", NOT_ASKED),
        ("R7", NOT_ASKED),
        ("T1", "pass"),
        ("T10", NO_KEY),
    ];
    let authenticated =
        [("I5", NOT_ASKED), ("C14", NOT_ASKED), ("A9", "pass"), ("A17", "pass"), ("Q9", NOT_ASKED)];
    let allowed = [("I5", "pass"), ("C14", "pass"), ("Q9", "pass"), ("T1", "pass"), ("T10", NO_KEY)];
    let required = [("P1", NOT_CLEAR), ("A1", NOT_CLEAR), ("T1", "pass"), ("T2", "pass"), ("T10", NO_KEY)];
    for (target, expected) in [
        (format!("--tls concatenated {secrets}"), &concatenated[..]),
        (secrets.to_owned(), &authenticated),
        ("--tls allowed --tls-key tls.key".to_owned(), &allowed),
        ("--tls required --tls-key tls.key".to_owned(), &required),
    ] {
        let ids: Vec<&str> = expected.iter().map(|(id, _)| *id).collect();
        let have = outcomes(&keys, &target, "", &ids);
        assert_eq!(have.len(), expected.len());
        for ((id, outcome), (row, right)) in have.iter().zip(expected) {
            assert!(id == row && outcome.starts_with(right), "{target}: {id} {outcome}, not {right}");
        }
    }
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
