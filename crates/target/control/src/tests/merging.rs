//! The operator edits the configuration while changes are kept.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::{Fixture, TOML, config, specs};
use crate::tree::{self, apply, differences, of_config};

const A: &str = "subsystem nqn.2026-01.io.nvlane:a";

/// A control with one change of each kind.
fn changed() -> Fixture {
    let mut fixture = Fixture::new();
    fixture.done("add", json!({ "noun": "namespace", "values": { "storage": "ram:3M" } }));
    fixture.done(
        "set",
        json!({ "noun": "subsystem", "name": "nqn.2026-01.io.nvlane:a", "values": { "doorbell": "turn" } }),
    );
    fixture.done("add", json!({ "noun": "host", "name": "h2" }));
    fixture.done("remove", json!({ "noun": "namespace", "name": 2 }));
    fixture
}

#[test]
fn edits_of_other_things_go_together_with_changes() {
    let fixture = changed();
    let edited = TOML
        .replace("hosts = [\"h1\"]", "hosts = [\"h0\", \"h1\"]\nmodel = \"M\"")
        .replace(":4420", ":4500")
        + "[[subsystem]]\nnqn = \"nqn.2026-01.io.nvlane:new\"\nhosts = \"any\"\n[[subsystem.namespace]]\nstorage = \"ram:9M\"\n";
    let (control, dropped) = fixture.restarted(&edited);
    assert_eq!(dropped, [""; 0]);
    let config = control.config();
    assert_eq!(specs(config), ["ram:1M", "ram:3M", "ram:9M"]);
    let subsystem = &config.subsystems[0];
    assert_eq!((subsystem.model.as_str(), subsystem.doorbell.is_some()), ("M", true));
    let table = of_config(config);
    assert_eq!(table["subsystem"][0]["hosts"], json!(["h0", "h1", "h2"]));
    assert_eq!(table["listener"][0]["address"], "127.0.0.1:4500");
}

#[test]
fn where_the_operator_has_edited_the_same_thing_the_operator_wins() {
    let fixture = changed();
    for (edited, name, expected) in [
        // Another doorbell than the one that was changed.
        (
            TOML.replace("hosts = ", "doorbell = \"immediate\"\nhosts = "),
            format!("{A} doorbell"),
            vec!["ram:1M", "ram:3M"],
        ),
        // The removed namespace is another one now.
        (TOML.replace("null:1T", "null:2T"), format!("{A} namespace 2"), vec!["ram:1M", "null:2T", "ram:3M"]),
        // The number that was given to a new one is taken.
        (
            format!("{TOML}[[subsystem.namespace]]\nnsid = 3\nstorage = \"null:7T\"\n"),
            format!("{A} namespace 3"),
            vec!["ram:1M", "null:7T"],
        ),
        // The list of hosts has ended.
        (TOML.replace("[\"h1\"]", "\"any\""), format!("{A} hosts h2"), vec!["ram:1M", "ram:3M"]),
    ] {
        let copy = tempfile::tempdir().expect("a directory");
        let file = copy.path().join("changes.json");
        std::fs::copy(&fixture.file, &file).expect("copied");
        let (control, dropped) = super::start(&edited, &file);
        assert_eq!(dropped, [name]);
        assert_eq!(specs(control.config()), expected);
        // Once dropped it stays away, whatever the file says later.
        let (again, dropped) = super::start(&edited, &file);
        assert_eq!((again.config(), dropped.len()), (control.config(), 0));
    }
}

#[test]
fn the_removal_of_a_subsystem_takes_changes_in_it_along() {
    let fixture = changed();
    let edited = TOML.replace(":a\"", ":b\"");
    let (control, dropped) = fixture.restarted(&edited);
    assert_eq!(dropped.len(), 4, "{dropped:?}");
    assert_eq!(specs(control.config()), ["ram:1M", "null:1T"]);
}

#[test]
fn a_change_that_the_operator_makes_too_is_no_difference_any_more() {
    let fixture = changed();
    let edited = "[[listener]]\naddress = \"127.0.0.1\"\n[[subsystem]]\nnqn = \"nqn.2026-01.io.nvlane:a\"\nhosts = [\"h2\", \"h1\"]\n\
        doorbell = \"turn\"\n[[subsystem.namespace]]\nnsid = 1\nstorage = \"ram:1M\"\n[[subsystem.namespace]]\nnsid = 3\nstorage = \"ram:3072K\"\n";
    let (control, dropped) = fixture.restarted(edited);
    assert_eq!(dropped, [""; 0]);
    assert_eq!(control.differences(), []);
    assert_eq!(specs(control.config()), ["ram:1M", "ram:3M"]);
}

#[test]
fn a_reload_takes_the_operators_edits_over() {
    let mut fixture = changed();
    let revision = fixture.control.revision();
    assert_eq!(fixture.control.rebase(&config(TOML)).expect("it fits"), []);
    assert_eq!(fixture.control.revision(), revision, "nothing changed");
    let dropped = fixture.control.rebase(&config(&TOML.replace("null:1T", "null:2T"))).expect("it fits");
    assert_eq!(dropped.len(), 1);
    assert_eq!(fixture.control.revision(), revision + 1);
    // What does not fit as a whole changes nothing.
    fixture.plant.running = fixture.control.config().clone();
    fixture.done("add", json!({ "noun": "listener", "name": "127.0.0.1:4500" }));
    let before = fixture.control.config().clone();
    let error = fixture
        .control
        .rebase(&config(&TOML.replace("127.0.0.1:4420", "0.0.0.0:4500")))
        .expect_err("they overlap");
    assert!(error.contains("overlap"), "{error}");
    assert_eq!(*fixture.control.config(), before);
    let (restarted, _) = fixture.restarted(&TOML.replace("null:1T", "null:2T"));
    assert_eq!(*restarted.config(), before);
    let refusal =
        crate::Control::start(&config(&TOML.replace("127.0.0.1:4420", "0.0.0.0:4500")), Some(&fixture.file));
    let refusal = refusal.map(drop).expect_err("they overlap");
    assert!(refusal.contains("changes.json do not fit the configuration"), "{refusal}");
}

/// Some configurations that differ in many ways.
fn a_configuration() -> impl Strategy<Value = String> {
    let namespace = (any::<bool>(), 1..4_u32).prop_map(|(is_numbered, size)| (is_numbered, size));
    let subsystem =
        (any::<bool>(), prop::collection::vec(namespace, 0..4), prop::collection::btree_set(0..4_u8, 0..4));
    let listeners = prop::collection::btree_set(1..5_u16, 1..4);
    (prop::collection::vec(prop::option::of(subsystem), 3), listeners, prop::option::of(2..9_u32)).prop_map(
        |(subsystems, listeners, connections)| {
            let mut text = String::new();
            if let Some(connections) = connections {
                text += &format!("[limits]\nconnections = {connections}\n");
            }
            for port in listeners {
                text += &format!("[[listener]]\naddress = \"127.0.0.1:{port}\"\n");
            }
            for (at, subsystem) in subsystems.into_iter().enumerate() {
                let Some((is_any, namespaces, hosts)) = subsystem else { continue };
                let hosts: Vec<String> = hosts.iter().map(|host| format!("\"h{host}\"")).collect();
                let hosts = if is_any { "\"any\"".into() } else { format!("[{}]", hosts.join(",")) };
                text += &format!("[[subsystem]]\nnqn = \"nqn.2026-01.io.nvlane:{at}\"\nhosts = {hosts}\n");
                for (number, (is_numbered, size)) in namespaces.into_iter().enumerate() {
                    let nsid = if is_numbered { format!("nsid = {}\n", number + 5) } else { String::new() };
                    text += &format!("[[subsystem.namespace]]\n{nsid}storage = \"ram:{size}M\"\n");
                }
            }
            text
        },
    )
}

/// A tree in which the order of lists means nothing.
fn sorted(mut tree: Value) -> Value {
    fn sort(value: &mut Value) {
        match value {
            Value::Array(list) => {
                list.iter_mut().for_each(sort);
                list.sort_by_key(Value::to_string);
            }
            Value::Object(table) => table.values_mut().for_each(sort),
            _ => {}
        }
    }
    sort(&mut tree);
    tree
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]

    /// The differences of two configurations lead from one to the other, and there are none then.
    #[test]
    fn differences_lead_from_one_configuration_to_another(one in a_configuration(), other in a_configuration()) {
        let (one, other) = (of_config(&config(&one)), of_config(&config(&other)));
        let found = differences(&one, &other);
        let mut tree = one.clone();
        prop_assert_eq!(apply(&mut tree, &found), vec![]);
        prop_assert_eq!(sorted(tree.clone()), sorted(other.clone()));
        // They are applied once.
        prop_assert_eq!(apply(&mut tree, &found), vec![]);
        prop_assert_eq!(sorted(tree.clone()), sorted(other.clone()));
        let back = tree::to_config(&tree).expect("valid");
        prop_assert_eq!(differences(&of_config(&back), &other), vec![]);
    }
}
