//! Answers as text, and as the JSON that the target sent.

use std::fmt;

use control::noun::Noun;
use serde::Serialize;
use serde_json::Value;

use crate::columns::Columns;

/// A value as in the configuration, without quotes around text.
fn text(value: &Value) -> String {
    match value {
        Value::Null => "-".into(),
        Value::String(text) => text.clone(),
        Value::Array(list) => list.iter().map(text).collect::<Vec<_>>().join(","),
        other => other.to_string(),
    }
}

/// The objects of a noun.
#[derive(Serialize)]
#[serde(transparent)]
pub(super) struct Objects(#[serde(skip)] pub(super) &'static Noun, pub(super) Value);

impl fmt::Display for Objects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(noun, answer) = self;
        let objects = answer["objects"].as_array().map_or(&[][..], Vec::as_slice);
        if objects.is_empty() {
            return writeln!(f, "there is no {}", noun.name);
        }
        // Columns in which some object has a value; what runs, where the configuration says nothing.
        let value = |object: &Value, key: &str| -> Option<String> {
            let configured = object["values"].get(key).or_else(|| object["running"].get(key))?;
            Some(text(configured))
        };
        let mut keys: Vec<&str> = noun.keys.iter().map(|key| key.name).collect();
        keys.retain(|key| objects.iter().any(|object| value(object, key).is_some()));
        let titles =
            noun.id.into_iter().chain(noun.in_subsystem.then_some("subsystem")).chain(keys.iter().copied());
        let mut table = Columns::titled_by(titles.map(str::to_uppercase).collect());
        for object in objects {
            let mut row = vec![text(&object["name"])];
            if noun.in_subsystem {
                row.push(text(&object["subsystem"]));
            }
            row.extend(keys.iter().map(|key| value(object, key).unwrap_or_else(|| "-".into())));
            table.row_of(&row);
        }
        table.fmt(f)
    }
}

/// One object.
#[derive(Serialize)]
#[serde(transparent)]
pub(super) struct Object(pub(super) Value);

impl fmt::Display for Object {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut list = Columns::list();
        let object = &self.0;
        for (key, value) in object["values"].as_object().into_iter().flatten() {
            list.fact(key, text(value));
        }
        for (key, value) in object["running"].as_object().into_iter().flatten() {
            if object["values"].get(key) != Some(value) {
                list.fact(&format!("{key} (running)"), text(value));
            }
        }
        writeln!(f, "{}", text(&object["name"]))?;
        list.fmt(f)?;
        writeln!(f, "revision {}", object["revision"])
    }
}

/// The outcome of a change.
#[derive(Serialize)]
#[serde(transparent)]
pub(super) struct Changed(pub(super) Value);

impl fmt::Display for Changed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let changes = self.0["changes"].as_array().map_or(&[][..], Vec::as_slice);
        if changes.is_empty() {
            return f.write_str("nothing to change\n");
        }
        changes.iter().try_for_each(|change| writeln!(f, "{}", text(&change["text"])))
    }
}

/// What differs from the configuration file.
#[derive(Serialize)]
#[serde(transparent)]
pub(super) struct Differences(pub(super) Value);

impl fmt::Display for Differences {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let differences = self.0["differences"].as_array().map_or(&[][..], Vec::as_slice);
        if differences.is_empty() {
            return f.write_str("nothing differs from the configuration file\n");
        }
        for difference in differences {
            let place: Vec<String> = difference["place"].as_array().into_iter().flatten().map(text).collect();
            // A number that was assigned in order, and is written down since others have changed.
            if let [above @ .., last] = &place[..]
                && last == "numbered"
            {
                writeln!(f, "~ {}: its number is given", above.join(" "))?;
                continue;
            }
            let place = place.join(" ");
            match (&difference["was"], &difference["now"]) {
                (Value::Null, now) => writeln!(f, "+ {place}: {}", text(now))?,
                (was, Value::Null) => writeln!(f, "- {place}: {}", text(was))?,
                (was, now) => writeln!(f, "~ {place}: {} -> {}", text(was), text(now))?,
            }
        }
        Ok(())
    }
}
