//! A configuration as a tree of tables, its differences to another one, and their application.
//!
//! Tables in a list have a key that names them: a subsystem its NQN, a namespace its number. Differences refer to these
//! names, and to single entries of lists of hosts and addresses, so that they do not depend on an order.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use subsystem::config::{ConfigErrors, ConfigFile, TargetConfig};

use crate::error::CallError;

/// Key of a namespace whose number was assigned, and is not written: `false`.
pub(crate) const IS_NUMBERED: &str = "numbered";

/// Lists of tables by their path, and the key that names a table.
const NAMED: [(&[&str], &str); 7] = [
    (&["subsystem"], "nqn"),
    (&["subsystem", "namespace"], "nsid"),
    (&["subsystem", "host"], "nqn"),
    (&["listener"], "address"),
    (&["memcached"], "address"),
    (&["pool"], "name"),
    (&["discovery", "referral"], "address"),
];

/// Lists of texts whose order has no meaning.
const SETS: [&str; 3] = ["hosts", "write_hosts", "allow"];

/// One difference between two configurations.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Difference {
    /// Names of tables, and a key or an entry of a list at the end.
    pub place: Vec<String>,
    /// The value in the operator's configuration.
    pub was: Option<Value>,
    /// The value that was set.
    pub now: Option<Value>,
}

impl Difference {
    /// The place for people: `subsystem nqn.… namespace 3 storage`.
    #[must_use]
    pub fn title(&self) -> String {
        self.place.join(" ")
    }
}

/// The tree of a configuration.
pub(crate) fn of_config(config: &TargetConfig) -> Value {
    let mut tree = serde_json::to_value(config.to_toml()).unwrap_or_default();
    let subsystems = tree.get_mut("subsystem").and_then(Value::as_array_mut);
    for (subsystem, numbers) in subsystems.into_iter().flatten().zip(config.namespace_numbers()) {
        let namespaces = subsystem.get_mut("namespace").and_then(Value::as_array_mut);
        for (namespace, number) in namespaces.into_iter().flatten().zip(numbers) {
            let Some(table) = namespace.as_object_mut().filter(|table| !table.contains_key("nsid")) else {
                continue;
            };
            table.insert("nsid".into(), number.get().into());
            table.insert(IS_NUMBERED.into(), false.into());
        }
    }
    tree
}

/// The tree as a configuration file.
pub(crate) fn to_text(tree: &Value) -> Result<String, String> {
    let mut tree = tree.clone();
    let subsystems = tree.get_mut("subsystem").and_then(Value::as_array_mut);
    for subsystem in subsystems.into_iter().flatten() {
        let Some(namespaces) = subsystem.get_mut("namespace").and_then(Value::as_array_mut) else { continue };
        // Assigned numbers are those in order.
        namespaces.sort_by_key(|namespace| namespace.get("nsid").and_then(Value::as_u64));
        for table in namespaces.iter_mut().filter_map(Value::as_object_mut) {
            if table.remove(IS_NUMBERED).is_some() {
                table.remove("nsid");
            }
        }
    }
    toml::to_string(&tree).map_err(|error| error.to_string())
}

/// The configuration of a tree.
///
/// # Errors
/// What is wrong with it, each with its key.
pub(crate) fn to_config(tree: &Value) -> Result<TargetConfig, CallError> {
    let text = to_text(tree).map_err(|error| CallError::invalid(None, error))?;
    match ConfigFile::parse("configuration", &text) {
        Ok(file) => Ok(file.config),
        Err(errors) => Err(of_errors(&errors, &text)),
    }
}

/// Errors of a written configuration, with the keys in place of the positions.
fn of_errors(errors: &ConfigErrors, text: &str) -> CallError {
    let found = errors.0.iter().map(|error| {
        let line = error.position.map_or(0, |(line, _)| line);
        (field(text, line), error.message.clone())
    });
    CallError::invalid_fields(found.collect())
}

/// The key at a line of a configuration: `subsystem.namespace.storage`.
fn field(text: &str, line: usize) -> Option<String> {
    let lines: Vec<&str> = text.lines().take(line).collect();
    let last = lines.last()?;
    let header = lines.iter().rev().find(|line| line.starts_with('['));
    let table = header.map_or("", |header| header.trim_matches(['[', ']']));
    let key = last.split_once('=').map_or("", |(key, _)| key.trim());
    let parts: Vec<&str> = [table, key].into_iter().filter(|part| !part.is_empty()).collect();
    (!parts.is_empty()).then(|| parts.join("."))
}

/// Names of the tables in a list. A listener on a free port may be there twice.
pub(crate) fn names(key: &str, list: &[Value]) -> Vec<String> {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    let name = |table: &Value| {
        let name = match table.get(key) {
            Some(Value::String(text)) => text.clone(),
            Some(other) => other.to_string(),
            None => String::new(),
        };
        let count = counts.entry(name.clone()).or_insert(0);
        *count += 1;
        if *count == 1 { name } else { format!("{name}#{count}") }
    };
    list.iter().map(name).collect()
}

/// The key that names the tables of a list.
fn key_of(path: &[String]) -> Option<&'static str> {
    NAMED.iter().find(|(known, _)| path.iter().eq(known.iter())).map(|(_, key)| *key)
}

/// Whether a path leads to a table that is in no list.
fn is_table(path: &[String]) -> bool {
    matches!(path, [one] if ["reactors", "limits", "timeouts", "discovery", "audit", "control", "metrics"].contains(&one.as_str()))
}

fn is_set(path: &[String]) -> bool {
    path.last().is_some_and(|key| SETS.contains(&key.as_str()))
}

/// The differences that lead from one tree to another.
pub(crate) fn differences(was: &Value, now: &Value) -> Vec<Difference> {
    let mut found = Vec::new();
    compare(&mut Vec::new(), &mut Vec::new(), Some(was), Some(now), &mut found);
    found
}

/// `path` has the keys that lead to a value, `place` also the names of tables in lists.
fn compare(
    path: &mut Vec<String>,
    place: &mut Vec<String>,
    was: Option<&Value>,
    now: Option<&Value>,
    found: &mut Vec<Difference>,
) {
    if was == now {
        return;
    }
    let empty_list = Value::Array(Vec::new());
    let empty_table = Value::Object(Map::new());
    let (was, now) = match key_of(path) {
        Some(_) => (Some(was.unwrap_or(&empty_list)), Some(now.unwrap_or(&empty_list))),
        None if is_table(path) => (Some(was.unwrap_or(&empty_table)), Some(now.unwrap_or(&empty_table))),
        None => (was, now),
    };
    match (was, now, key_of(path)) {
        (Some(Value::Array(was)), Some(Value::Array(now)), Some(key)) => {
            let (before, after) = (names(key, was), names(key, now));
            let (in_was, in_now): (BTreeMap<_, _>, BTreeMap<_, _>) =
                (before.iter().zip(was).collect(), after.iter().zip(now).collect());
            let new = after.iter().filter(|name| !in_was.contains_key(name));
            for name in before.iter().chain(new) {
                place.push(name.clone());
                match (in_was.get(name).copied(), in_now.get(name).copied()) {
                    (Some(was), Some(now)) => compare(path, place, Some(was), Some(now), found),
                    (was, now) => {
                        found.push(Difference { place: place.clone(), was: was.cloned(), now: now.cloned() });
                    }
                }
                place.pop();
            }
        }
        (Some(Value::Array(was)), Some(Value::Array(now)), None) if is_set(path) => {
            let mut add = |entry: &String, was: Option<Value>, now: Option<Value>| {
                let mut place = place.clone();
                place.push(entry.clone());
                found.push(Difference { place, was, now });
            };
            let texts = |list: &[Value]| -> BTreeSet<String> {
                list.iter().filter_map(Value::as_str).map(str::to_owned).collect()
            };
            let (in_was, in_now) = (texts(was), texts(now));
            for entry in in_was.difference(&in_now) {
                add(entry, Some(entry.as_str().into()), None);
            }
            for entry in in_now.difference(&in_was) {
                add(entry, None, Some(entry.as_str().into()));
            }
        }
        (Some(Value::Object(was)), Some(Value::Object(now)), _) => {
            let new = now.keys().filter(|key| !was.contains_key(*key));
            for key in was.keys().chain(new) {
                path.push(key.clone());
                place.push(key.clone());
                compare(path, place, was.get(key), now.get(key), found);
                place.pop();
                path.pop();
            }
        }
        (was, now, _) => {
            found.push(Difference { place: place.clone(), was: was.cloned(), now: now.cloned() });
        }
    }
}

/// A place that a difference refers to.
enum Spot<'a> {
    /// A key of a table.
    Key(&'a mut Map<String, Value>, String),
    /// A table in a list, which may not be there.
    Element(&'a mut Vec<Value>, Option<usize>),
    /// An entry of a list of texts.
    Entry(&'a mut Vec<Value>, String),
}

/// Finds a place; `None` if a table on the way is missing.
fn find<'a>(mut at: &'a mut Value, place: &[String]) -> Option<Spot<'a>> {
    let mut path: Vec<String> = Vec::new();
    let mut words = place.iter().peekable();
    loop {
        let word = words.next()?;
        let table = at.as_object_mut()?;
        path.push(word.clone());
        if let Some(key) = key_of(&path) {
            let name = words.next()?;
            let list =
                table.entry(word.clone()).or_insert_with(|| Value::Array(Vec::new())).as_array_mut()?;
            let found = names(key, list).iter().position(|known| known == name);
            if words.peek().is_none() {
                return Some(Spot::Element(list, found));
            }
            at = list.get_mut(found?)?;
            continue;
        }
        match words.peek() {
            None => return Some(Spot::Key(table, word.clone())),
            Some(entry) if is_set(&path) => {
                let entry = (*entry).clone();
                return Some(Spot::Entry(table.get_mut(word)?.as_array_mut()?, entry));
            }
            Some(_) => {
                at = table.entry(word.clone()).or_insert_with(|| Value::Object(Map::new()));
            }
        }
    }
}

impl Spot<'_> {
    fn value(&self) -> Option<Value> {
        match self {
            Self::Key(table, key) => table.get(key).cloned(),
            Self::Element(list, at) => at.and_then(|at| list.get(at).cloned()),
            Self::Entry(list, entry) => list.iter().find(|known| known.as_str() == Some(entry)).cloned(),
        }
    }

    fn set(self, value: Option<Value>) {
        match (self, value) {
            (Self::Key(table, key), Some(value)) => drop(table.insert(key, value)),
            (Self::Key(table, key), None) => drop(table.remove(&key)),
            (Self::Element(list, Some(at)), Some(value)) => list[at] = value,
            (Self::Element(list, Some(at)), None) => drop(list.remove(at)),
            (Self::Element(list, None), Some(value)) => list.push(value),
            (Self::Element(_, None), None) => {}
            (Self::Entry(list, entry), value) => {
                list.retain(|known| known.as_str() != Some(&entry));
                list.extend(value);
            }
        }
    }
}

/// Applies differences. Returns those that do not fit: the operator has changed the same thing since, and wins.
pub(crate) fn apply(tree: &mut Value, differences: &[Difference]) -> Vec<Difference> {
    let mut refused = Vec::new();
    for difference in differences {
        let spot = find(tree, &difference.place);
        let is_as_it_was = spot.as_ref().is_some_and(|spot| spot.value() == difference.was);
        match spot {
            Some(spot) if is_as_it_was => spot.set(difference.now.clone()),
            // The operator has made the same change.
            Some(spot) if spot.value() == difference.now => {}
            _ => refused.push(difference.clone()),
        }
    }
    drop_empty(tree);
    refused
}

/// Removes tables and lists that are empty, as they are not written.
pub(crate) fn drop_empty(tree: &mut Value) {
    let empties = |path: &[&str], value: &Value| {
        let path: Vec<String> = path.iter().map(|&word| word.to_owned()).collect();
        let is_meant = key_of(&path).is_some() || is_table(&path);
        is_meant
            && (value.as_array().is_some_and(Vec::is_empty) || value.as_object().is_some_and(Map::is_empty))
    };
    let Some(root) = tree.as_object_mut() else { return };
    if let Some(discovery) = root.get_mut("discovery").and_then(Value::as_object_mut) {
        discovery.retain(|key, value| !empties(&["discovery", key], value));
    }
    for subsystem in root.get_mut("subsystem").and_then(Value::as_array_mut).into_iter().flatten() {
        if let Some(subsystem) = subsystem.as_object_mut() {
            subsystem.retain(|key, value| !empties(&["subsystem", key], value));
        }
    }
    // Without listeners a configuration has the default ones.
    root.retain(|key, value| key == "listener" || !empties(&[key], value));
}
