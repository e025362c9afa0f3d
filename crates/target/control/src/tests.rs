//! Changes, what is kept of them, and crashes in between.

mod crashes;
mod imports;
mod merging;
mod port;
mod requests;
mod spdk_methods;
mod volumes;

use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};
use subsystem::config::{ConfigFile, TargetConfig};
use subsystem::operator::{ChangeOutcome, Outline, Report, ReportLine};

use crate::changes_file::ChangesFile;
use crate::error::{MISSING, PARAMETERS, REFUSED, REVISION};
use crate::noun::NOUNS;
use crate::rpc::Call;
use crate::{CallError, Control, Plant};

const TOML: &str = "[[listener]]\naddress = \"127.0.0.1:4420\"\n[[subsystem]]\nnqn = \"nqn.2026-01.io.nvlane:a\"\nhosts = [\"h1\"]\n\
    [[subsystem.namespace]]\nstorage = \"ram:1M\"\n[[subsystem.namespace]]\nstorage = \"null:1T\"\n";

fn config(text: &str) -> TargetConfig {
    ConfigFile::parse("nvlane.toml", text).unwrap_or_else(|errors| panic!("{errors}")).config
}

/// A plant that runs what it is told.
struct FakePlant {
    running: TargetConfig,
    /// Refuses each change.
    refuses: bool,
    change_count: usize,
    look_count: usize,
}

impl FakePlant {
    fn new(control: &Control) -> Self {
        Self { running: control.config().clone(), refuses: false, change_count: 0, look_count: 0 }
    }
}

fn report(outcome: ChangeOutcome, text: &str) -> Report {
    Report { lines: vec![ReportLine { outcome, text: text.into() }] }
}

impl Plant for FakePlant {
    fn change(&mut self, before: &TargetConfig, wanted: &TargetConfig, _: bool) -> Result<Report, Report> {
        assert_eq!(*before, self.running, "a change begins where the last one ended");
        if self.refuses {
            return Err(report(ChangeOutcome::Failed, "add it: not done, it is broken"));
        }
        self.change_count += 1;
        self.running = wanted.clone();
        Ok(report(ChangeOutcome::Done, "change it: done"))
    }

    fn running(&self) -> Option<&Outline> {
        None
    }

    fn bound(&self, _: &str) -> Option<String> {
        None
    }

    fn look_after_storage(&mut self) {
        self.look_count += 1;
    }

    fn state(&self) -> Option<Value> {
        None
    }
}

fn start(text: &str, file: &Path) -> (Control, Vec<String>) {
    let started = Control::start(&config(text), Some(file)).unwrap_or_else(|error| panic!("{error}"));
    let dropped = started.dropped.iter().map(crate::Difference::title).collect();
    (started.control, dropped)
}

/// A control with a file in a new directory.
struct Fixture {
    _directory: tempfile::TempDir,
    file: PathBuf,
    control: Control,
    plant: FakePlant,
}

impl Fixture {
    fn new() -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let file = directory.path().join("changes.json");
        let (control, _) = start(TOML, &file);
        let plant = FakePlant::new(&control);
        Self { _directory: directory, file, control, plant }
    }

    fn call(&mut self, method: &str, params: Value) -> Result<Value, CallError> {
        call(&mut self.control, &mut self.plant, method, params)
    }

    #[track_caller]
    fn done(&mut self, method: &str, params: Value) -> Value {
        self.call(method, params).unwrap_or_else(|error| panic!("{}", error.message))
    }

    #[track_caller]
    fn refused(&mut self, method: &str, params: Value) -> CallError {
        let before = (self.control.config().clone(), self.control.revision(), std::fs::read(&self.file).ok());
        let error = self.call(method, params).expect_err("it is refused");
        let after = (self.control.config().clone(), self.control.revision(), std::fs::read(&self.file).ok());
        assert_eq!(after, before, "nothing changed");
        assert_eq!(self.plant.running, before.0);
        error
    }

    /// The names of the differences to the file.
    fn differences(&self) -> Vec<String> {
        self.control.differences().iter().map(crate::Difference::title).collect()
    }

    /// The same after a restart with this configuration.
    fn restarted(&self, text: &str) -> (Control, Vec<String>) {
        start(text, &self.file)
    }
}

fn call(
    control: &mut Control,
    plant: &mut FakePlant,
    method: &str,
    params: Value,
) -> Result<Value, CallError> {
    let Value::Object(params) = params else { panic!("parameters have names") };
    control.perform(&Call { method: method.into(), params }, plant)
}

fn specs(config: &TargetConfig) -> Vec<String> {
    let namespaces = config.subsystems.iter().flat_map(|subsystem| &subsystem.namespaces);
    namespaces.map(|namespace| namespace.storage.to_string()).collect()
}

#[test]
fn changes_are_applied_and_kept() {
    let mut fixture = Fixture::new();
    let answer = fixture.done("add", json!({ "noun": "namespace", "values": { "storage": "ram:2M" } }));
    assert_eq!(
        (&answer["name"], &answer["revision"], &answer["kept"]),
        (&json!("3"), &json!(1), &json!(true))
    );
    assert_eq!(answer["changes"], json!([{ "outcome": "done", "text": "change it: done" }]));
    fixture.done("set", json!({ "noun": "namespaces", "name": 3, "values": { "hosts": ["h1"] } }));
    fixture.done("add", json!({ "noun": "subsystem", "name": "nqn.2026-01.io.nvlane:b", "values": {} }));
    let host = json!({ "noun": "host", "subsystem": "nqn.2026-01.io.nvlane:b", "name": "h2", "values": { "dhchap_secret": "file:/s" } });
    fixture.done("add", host);
    fixture.done(
        "add",
        json!({ "noun": "listener", "name": "127.0.0.1:4421", "values": { "doorbell": "turn" } }),
    );
    fixture.done("set", json!({ "noun": "limit", "values": { "connections": 99 } }));
    fixture.done("set", json!({ "noun": "reactor", "values": { "doorbell": "immediate" } }));
    fixture
        .done("remove", json!({ "noun": "namespace", "subsystem": "nqn.2026-01.io.nvlane:a", "name": "1" }));
    assert_eq!(fixture.plant.change_count, 8);
    assert_eq!(fixture.plant.running, *fixture.control.config());
    let (restarted, dropped) = fixture.restarted(TOML);
    assert_eq!(dropped, [""; 0]);
    assert_eq!(restarted.config(), fixture.control.config());
    assert_eq!(restarted.revision(), 8);
    let config = restarted.config();
    assert_eq!(specs(config), ["null:1T", "ram:2M"], "the numbers of those behind it stay");
    assert_eq!(config.namespace_numbers()[0].iter().map(|nsid| nsid.get()).collect::<Vec<_>>(), [2, 3]);
    assert_eq!(config.limits.connection_count_max, 99);
    assert_eq!(config.subsystems[1].authentication.hosts.len(), 1);
    let mode = std::os::unix::fs::PermissionsExt::mode(
        &std::fs::metadata(&fixture.file).expect("a file").permissions(),
    );
    assert_eq!(mode & 0o777, 0o600);
    // One file of all, which means the same.
    let exported = fixture.done("export", json!({}));
    assert_eq!(
        ConfigFile::parse("x", exported["toml"].as_str().expect("text")).expect("valid").config,
        *config
    );
    // Taking changes back leaves no difference.
    fixture.done("set", json!({ "noun": "limit", "values": { "connections": null } }));
    fixture.done("set", json!({ "noun": "reactor", "values": { "doorbell": null } }));
    for (noun, name) in
        [("subsystem", "nqn.2026-01.io.nvlane:b"), ("namespace", "3"), ("listener", "127.0.0.1:4421")]
    {
        fixture.done("remove", json!({ "noun": noun, "name": name }));
    }
    let namespace = "subsystem nqn.2026-01.io.nvlane:a namespace";
    assert_eq!(fixture.differences(), [format!("{namespace} 1"), format!("{namespace} 2 numbered")]);
}

#[test]
fn what_is_there_is_listed_and_shown() {
    let mut fixture = Fixture::new();
    let listed = fixture.done("list", json!({ "noun": "namespace" }));
    let names: Vec<_> =
        listed["objects"].as_array().expect("a list").iter().map(|object| &object["name"]).collect();
    assert_eq!(names, ["1", "2"]);
    let shown = fixture.done("show", json!({ "noun": "namespace", "name": 2 }));
    assert_eq!(shown["values"], json!({ "nsid": 2, "storage": "null:1T" }));
    assert_eq!(shown["subsystem"], "nqn.2026-01.io.nvlane:a");
    let shown = fixture.done("show", json!({ "noun": "listener", "name": "127.0.0.1" }));
    assert_eq!(shown["name"], "127.0.0.1:4420");
    for noun in NOUNS {
        let listed = fixture.done("list", json!({ "noun": noun.name }));
        assert!(listed["objects"].is_array(), "{}", noun.name);
    }
    let hosts = fixture.done("list", json!({ "noun": "host" }));
    assert_eq!(hosts["objects"][0]["name"], "h1");
    assert_eq!(fixture.done("diff", json!({}))["differences"], json!([]));
}

#[test]
fn wrong_calls_name_the_field_and_what_would_be_right() {
    let mut fixture = Fixture::new();
    let add = |values: Value| json!({ "noun": "namespace", "values": values });
    for (method, params, code, message) in [
        ("ad", json!({}), -32601, "no method ad: did you mean add?"),
        ("nvmf_create_subsytem", json!({}), -32601, "did you mean nvmf_create_subsystem?"),
        ("list", json!({ "noun": "namespce" }), -32601, "no noun namespce: did you mean namespace?"),
        ("list", json!({ "nown": "namespace" }), PARAMETERS, "unknown field `nown`"),
        ("add", add(json!({})), PARAMETERS, "storage: missing"),
        (
            "add",
            add(json!({ "storage": "ram:2X" })),
            PARAMETERS,
            "subsystem.namespace.storage: namespace 'ram:2X', character 6: no size",
        ),
        ("add", add(json!({ "storge": "ram:2M", "storage": "ram:1M" })), PARAMETERS, "unknown key `storge`"),
        (
            "add",
            add(json!({ "storage": "ram:2M", "nsid": "x" })),
            PARAMETERS,
            "subsystem.namespace.nsid: invalid type",
        ),
        ("add", add(json!({ "storage": "ram:2M", "nsid": 1 })), REFUSED, "namespace 1 is there already"),
        (
            "add",
            add(json!({ "storage": "ram:2M", "hosts": ["h7"] })),
            PARAMETERS,
            "h7 is in hosts of namespace 3, but not",
        ),
        (
            "set",
            json!({ "noun": "namespace", "name": 7, "values": { "uuid": "x" } }),
            MISSING,
            "no namespace 7: there is 1, 2",
        ),
        (
            "set",
            json!({ "noun": "namespace", "name": 1, "values": { "nsid": 5 } }),
            PARAMETERS,
            "nsid: it names the namespace",
        ),
        (
            "set",
            json!({ "noun": "limit", "values": { "connections": 0 } }),
            PARAMETERS,
            "connections is 0: take 2",
        ),
        (
            "set",
            json!({ "noun": "limit", "values": { "conections": 9 } }),
            PARAMETERS,
            "did you mean `connections`?",
        ),
        ("add", json!({ "noun": "host", "name": "h1" }), REFUSED, "host h1 is there already"),
        ("remove", json!({ "noun": "host", "name": "h12" }), MISSING, "no host h12: did you mean h1?"),
        ("remove", json!({ "noun": "listener", "name": "127.0.0.1" }), PARAMETERS, "there is no listener"),
        ("remove", json!({ "noun": "limit" }), PARAMETERS, "limit is always there"),
        ("add", json!({ "noun": "subsystem", "name": "disks" }), PARAMETERS, "subsystem.nqn: "),
        (
            "set",
            json!({ "noun": "subsystem", "name": "nqn.2026-01.io.nvlane:a", "values": { "dhchap_secret": "DHHC-1:00:secret:" } }),
            PARAMETERS,
            "subsystem.dhchap_secret: secrets are not written into the configuration",
        ),
    ] {
        let error = fixture.refused(method, params.clone());
        assert!(error.message.contains(message), "{method} {params}: {}", error.message);
        assert_eq!(error.code, code, "{method} {params}: {}", error.message);
        assert!(!serde_json::to_string(&error).expect("JSON").contains("DHHC-1:00:secret"));
    }
}

#[test]
fn a_change_for_another_revision_is_refused() {
    let mut fixture = Fixture::new();
    let add = |revision: u64| json!({ "noun": "namespace", "values": { "storage": "ram:1M" }, "revision": revision });
    fixture.done("add", add(0));
    let error = fixture.refused("add", add(0));
    assert_eq!((error.code, error.data), (REVISION, Some(json!({ "revision": 1 }))));
    fixture.done("add", add(1));
    assert_eq!(fixture.control.revision(), 2);
}

#[test]
fn a_refused_change_leaves_everything_as_it_was() {
    let mut fixture = Fixture::new();
    fixture.plant.refuses = true;
    let error = fixture.refused("add", json!({ "noun": "namespace", "values": { "storage": "ram:1M" } }));
    assert_eq!((error.code, error.message.as_str()), (REFUSED, "add it: not done, it is broken"));
    let directory = fixture.file.parent().expect("a directory");
    assert_eq!(
        std::fs::read_dir(directory).expect("a directory").count(),
        0,
        "nothing is left beside the file"
    );
}

#[test]
fn a_change_that_cannot_be_kept_is_not_made() {
    let mut fixture = Fixture::new();
    std::fs::remove_dir(fixture.file.parent().expect("a directory")).expect("it is empty");
    let error = fixture.refused("add", json!({ "noun": "namespace", "values": { "storage": "ram:1M" } }));
    assert!(error.message.contains(&format!("kept in {}: ", fixture.file.display())), "{}", error.message);
}

#[test]
fn without_a_file_changes_end_with_the_target() {
    let mut control = Control::start(&config(TOML), None).unwrap_or_else(|error| panic!("{error}")).control;
    let mut plant = FakePlant::new(&control);
    let add = json!({ "noun": "namespace", "values": { "storage": "ram:1M" } });
    let answer = call(&mut control, &mut plant, "add", add).expect("done");
    assert_eq!((&answer["kept"], &answer["revision"]), (&json!(false), &json!(1)));
}

#[test]
fn a_file_of_others_or_of_another_kind_is_refused() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("changes.json");
    let refusal = || ChangesFile::open(&path).map(drop).expect_err("refused");
    std::fs::write(&path, "{}").expect("written");
    assert!(refusal().contains("it is not what a target of this version keeps changes in"), "{}", refusal());
    std::fs::write(&path, "{\"version\":2,\"revision\":1,\"changes\":[]}").expect("written");
    assert!(refusal().contains("its version is 2, and this target knows 1"), "{}", refusal());
    std::fs::remove_file(&path).expect("there");
    std::os::unix::fs::symlink("/dev/null", &path).expect("a link");
    assert!(refusal().contains("symbolic link"), "{}", refusal());
    std::fs::remove_file(&path).expect("there");
    if rustix::process::geteuid().is_root() {
        // Root trusts its own files only.
        std::fs::write(&path, "{\"version\":1,\"revision\":1,\"changes\":[]}").expect("written");
        std::os::unix::fs::chown(&path, Some(1), None).expect("root may");
        assert!(refusal().contains("it belongs to user 1"), "{}", refusal());
    }
}

/// The keys that the reader of the file knows, from its own error.
fn known_keys(place: &[&str]) -> Vec<String> {
    let table = place.join(".");
    let is_list =
        !["limits", "timeouts", "reactors", "discovery", "audit", "metrics", "log"].contains(&table.as_str());
    let header = match (table.as_str(), is_list) {
        (table, true) => format!("[[{table}]]"),
        (table, false) => format!("[{table}]"),
    };
    let base = if place.len() > 1 && place[0] == "subsystem" { "[[subsystem]]\n" } else { "" };
    let error =
        ConfigFile::parse("x", &format!("{base}{header}\nno_such_key = 1\n")).expect_err("an unknown key");
    let error = error.to_string();
    let list = error.split_once("expected ").unwrap_or_else(|| panic!("{error}")).1.to_owned();
    list.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

#[test]
fn nouns_have_the_keys_of_the_file() {
    for noun in NOUNS.iter().filter(|noun| noun.name != "host") {
        let place: Vec<&str> =
            noun.in_subsystem.then_some("subsystem").into_iter().chain(noun.place.iter().copied()).collect();
        // Lists of tables are objects of their own.
        // And earlier versions had another name.
        let lists = ["namespace", "host", "referral", "pressed_s"];
        let mut known = known_keys(&place);
        known.retain(|key| Some(key.as_str()) != noun.id && !lists.contains(&key.as_str()));
        let mut named: Vec<&str> = noun.keys.iter().map(|key| key.name).collect();
        known.sort_unstable();
        named.sort_unstable();
        assert_eq!(named, known, "{}", noun.name);
    }
}

#[test]
fn a_call_is_named_without_its_values() {
    let params = Map::from_iter([
        ("noun".to_owned(), json!("host")),
        ("name".into(), json!(3)),
        ("values".into(), json!({ "x": "secret" })),
    ]);
    let call = Call { method: "set".into(), params };
    assert_eq!(call.object(), "host 3");
    assert!(call.is_change() && !call.is_reload());
}
