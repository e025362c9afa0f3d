//! Two results of one experiment compared: before and after a change, or one machine and another.
//!
//! Reads `results.json` as [`results`](crate::results) writes it.

use std::collections::BTreeMap;
use std::fmt::Write;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::format::{quantity, table_number, value_name};
use crate::results::SCHEMA;
use crate::words::words;

/// The part of `results.json` that a comparison reads.
#[derive(Debug, Deserialize)]
pub struct Results {
    /// Version of the form. Files without this field are of version 1.
    #[serde(default = "first")]
    schema: u32,
    experiment: String,
    environment: Machine,
    /// The targets' machine, if that was another one.
    #[serde(default)]
    target_machine: Option<TargetMachine>,
    settings: Settings,
    #[serde(default)]
    conditions: Option<String>,
    headline: Map<String, Value>,
    cells: Vec<CellResult>,
}

fn first() -> u32 {
    SCHEMA
}

#[derive(Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default)]
struct Machine {
    cpu_model: Option<String>,
    kernel: Option<String>,
    core_count: usize,
    emulated: bool,
}

#[derive(Debug, Deserialize, PartialEq, Eq)]
struct TargetMachine {
    environment: Machine,
}

#[derive(Debug, Deserialize, PartialEq, Eq)]
struct Settings {
    is_quick: bool,
}

#[derive(Debug, Deserialize)]
struct CellResult {
    name: String,
    /// `null` for a cell without a measurement.
    values: Option<BTreeMap<String, Quartiles>>,
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq)]
struct Quartiles {
    median: f64,
    quartile_1: f64,
    quartile_3: f64,
}

impl Results {
    /// The values of a cell, if it was measured.
    fn values(&self, cell: &str) -> Option<&BTreeMap<String, Quartiles>> {
        self.cells.iter().find(|other| other.name == cell)?.values.as_ref()
    }

    fn is_emulated(&self) -> bool {
        let target = self.target_machine.as_ref();
        self.environment.emulated || target.is_some_and(|target| target.environment.emulated)
    }
}

/// Why two results cannot be compared.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "each variant is documented by its message")]
pub enum Incomparable {
    #[error("not a results.json of nvlane study: {0}")]
    Form(String),
    #[error("version {found} of results.json: this nvlane reads version {SCHEMA}")]
    Schema { found: u32 },
    #[error("two experiments: {0} and {1}")]
    Experiments(String, String),
    #[error("one was measured on an emulated machine, whose figures compare with no other machine's")]
    Emulated,
}

/// A comparison.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Comparison {
    /// The experiment.
    pub experiment: String,
    /// Differences between the two runs beside the numbers.
    pub notes: Vec<String>,
    /// Values of cells that both have, in the order of the second.
    pub rows: Vec<Row>,
    /// Headline numbers that at least one has.
    pub headline: Vec<Pair>,
    /// Cells without a comparison.
    pub lacking: Lacking,
}

/// Cells that were not measured in both results, or that only one of them has.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Lacking {
    /// Measured in the first only.
    pub before_only: Vec<String>,
    /// Measured in the second only.
    pub after_only: Vec<String>,
    /// Measured in neither.
    pub neither: Vec<String>,
}

/// A value of a cell in both results.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// The cell.
    pub cell: String,
    /// The value.
    pub value: String,
    /// Median of the first.
    pub before: f64,
    /// Median of the second.
    pub after: f64,
    /// Second over first.
    pub ratio: f64,
    /// The quartiles of the two do not overlap.
    pub is_apart: bool,
}

/// A headline number; `None` in a result that has no value for it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Pair {
    /// Key.
    pub key: String,
    /// Of the first.
    pub before: Option<f64>,
    /// Of the second.
    pub after: Option<f64>,
}

/// Reads a result.
pub fn read(text: &str) -> Result<Results, Incomparable> {
    let results: Results =
        serde_json::from_str(text).map_err(|error| Incomparable::Form(error.to_string()))?;
    if results.schema != SCHEMA {
        return Err(Incomparable::Schema { found: results.schema });
    }
    Ok(results)
}

/// Compares two results.
pub fn compare(before: &Results, after: &Results) -> Result<Comparison, Incomparable> {
    if before.experiment != after.experiment {
        return Err(Incomparable::Experiments(before.experiment.clone(), after.experiment.clone()));
    }
    if before.is_emulated() != after.is_emulated() {
        return Err(Incomparable::Emulated);
    }
    let (mut rows, mut lacking) = (Vec::new(), Lacking::default());
    let is_in_after = |cell: &&CellResult| after.cells.iter().any(|other| other.name == cell.name);
    let only_in_before = before.cells.iter().filter(|cell| !is_in_after(cell));
    for CellResult { name, .. } in after.cells.iter().chain(only_in_before) {
        match (before.values(name), after.values(name)) {
            (Some(old), Some(new)) => {
                rows.extend(
                    new.iter().filter_map(|(value, new)| Some(row(name, value, old.get(value)?, new))),
                );
            }
            (Some(_), None) => lacking.before_only.push(name.clone()),
            (None, Some(_)) => lacking.after_only.push(name.clone()),
            (None, None) => lacking.neither.push(name.clone()),
        }
    }
    Ok(Comparison {
        experiment: after.experiment.clone(),
        notes: notes(before, after),
        rows,
        headline: pairs(before, after),
        lacking,
    })
}

/// The headline numbers of both, in the order of the second.
fn pairs(before: &Results, after: &Results) -> Vec<Pair> {
    let only_in_before = before.headline.keys().filter(|key| !after.headline.contains_key(*key));
    let value = |results: &Results, key: &str| results.headline.get(key)?.as_f64();
    let pair = |key: &String| {
        let pair = Pair { key: key.clone(), before: value(before, key), after: value(after, key) };
        (pair.before.is_some() || pair.after.is_some()).then_some(pair)
    };
    after.headline.keys().chain(only_in_before).filter_map(pair).collect()
}

fn row(cell: &str, value: &str, before: &Quartiles, after: &Quartiles) -> Row {
    Row {
        cell: cell.to_owned(),
        value: value.to_owned(),
        before: before.median,
        after: after.median,
        ratio: after.median / before.median,
        is_apart: after.quartile_1 > before.quartile_3 || after.quartile_3 < before.quartile_1,
    }
}

impl Results {
    /// The conditions without their numbers: of those of `ceiling` the regimes are compared, and not how many rounds each had.
    fn conditions_without_numbers(&self) -> Option<String> {
        let of = |text: &String| text.chars().filter(|letter| !letter.is_ascii_digit()).collect();
        self.conditions.as_ref().map(of)
    }
}

fn notes(before: &Results, after: &Results) -> Vec<String> {
    let mut notes = Vec::new();
    if before.target_machine.is_some() != after.target_machine.is_some() {
        notes.push(
            "one was measured on one machine, the other between two: speeds and latencies compare the network, too"
                .to_owned(),
        );
    } else if (&before.environment, &before.target_machine) != (&after.environment, &after.target_machine) {
        notes.push("measured on two machines or kernels: speeds compare these, too".to_owned());
    }
    if before.settings != after.settings {
        notes.push("one was measured with --quick, the other without".to_owned());
    } else if after.settings.is_quick {
        notes.push("both were measured with --quick".to_owned());
    }
    if before.conditions_without_numbers() != after.conditions_without_numbers() {
        let of = |results: &Results| results.conditions.clone().unwrap_or_else(|| "none".to_owned());
        notes.push(format!("conditions differ: {} Then: {}", of(before), of(after)));
    }
    notes
}

impl Comparison {
    /// The comparison as a table for a terminal: values whose quartiles do not overlap are marked.
    pub fn to_text(&self) -> String {
        let mut text = format!("{}\n", self.experiment);
        for note in &self.notes {
            let _ = writeln!(text, "note: {note}");
        }
        if !self.rows.is_empty() {
            text += &self.table();
        }
        let names: Vec<String> = self.headline.iter().map(|pair| words(&pair.key)).collect();
        let width = names.iter().map(|name| name.chars().count()).max().unwrap_or(0);
        if !names.is_empty() {
            let _ = writeln!(text, "{:<width$}  {:>9}  {:>9}", "number", "before", "after");
        }
        for (name, Pair { key, before, after }) in names.iter().zip(&self.headline) {
            let told =
                |value: &Option<f64>| value.map_or_else(|| "n/a".to_owned(), |value| quantity(key, value));
            let _ = writeln!(text, "{name:<width$}  {:>9}  {:>9}", told(before), told(after));
        }
        let Lacking { before_only, after_only, neither } = &self.lacking;
        for (what, cells) in [
            ("measured before only", before_only),
            ("measured after only", after_only),
            ("measured in neither", neither),
        ] {
            if !cells.is_empty() {
                let _ = writeln!(text, "{what}: {}", cells.join(", "));
            }
        }
        text
    }

    /// The values of the cells that both have.
    fn table(&self) -> String {
        let mut rows = vec![["cell", "value", "before", "after", "after/before", ""].map(str::to_owned)];
        rows.extend(self.rows.iter().map(|row| {
            [
                row.cell.clone(),
                value_name(&row.value),
                table_number(&row.value, row.before),
                table_number(&row.value, row.after),
                if row.ratio.is_finite() { format!("{:.2}", row.ratio) } else { "-".to_owned() },
                (if row.is_apart { "quartiles apart" } else { "" }).to_owned(),
            ]
        }));
        let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
        let [w0, w1, w2, w3, w4] = [0, 1, 2, 3, 4].map(width);
        let mut text = String::new();
        for [cell, value, before, after, ratio, apart] in &rows {
            let line =
                format!("{cell:<w0$}  {value:<w1$}  {before:>w2$}  {after:>w3$}  {ratio:>w4$}  {apart}");
            let _ = writeln!(text, "{}", line.trim_end());
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::example;

    fn results(change: impl FnOnce(&mut Value)) -> Results {
        let mut json = example::study().to_json();
        change(&mut json);
        read(&json.to_string()).unwrap()
    }

    #[test]
    fn values_of_both_are_compared_and_those_apart_are_marked() {
        let before = results(|_| {});
        let after = results(|json| {
            for quartile in ["median", "quartile_1", "quartile_3"] {
                json["cells"][0]["values"]["iops"][quartile] = 150_000.0.into();
            }
            json["cells"][1]["values"] = Value::Null;
            json["headline"]["gain"] = 8.0.into();
            json["settings"]["is_quick"] = false.into();
        });
        let compared = compare(&before, &after).unwrap();
        let iops = compared.rows.iter().find(|row| row.value == "iops").unwrap();
        assert_eq!((iops.cell.as_str(), iops.ratio, iops.is_apart), ("one", 1.5, true));
        let p50 = compared.rows.iter().find(|row| row.value == "p50_us").unwrap();
        assert_eq!((p50.ratio, p50.is_apart), (1.0, false));
        assert_eq!(compared.lacking.before_only, ["many"]);
        assert_eq!(compared.headline[0], Pair { key: "gain".into(), before: Some(12.0), after: Some(8.0) });
        assert_eq!(compared.notes, ["one was measured with --quick, the other without"]);
        let text = compared.to_text();
        assert!(text.contains("150 k") && text.contains("quartiles apart"), "{text}");
        assert!(text.lines().any(|line| line.starts_with("cell ")), "{text}");
        assert!(text.ends_with("\nmeasured before only: many\n"), "{text}");
    }

    #[test]
    fn what_one_of_the_two_lacks_is_said_of_that_one() {
        let without = |cell: usize| {
            results(|json| {
                json["cells"][cell]["values"] = Value::Null;
                json["headline"]["gain"] = Value::Null;
            })
        };
        let all = results(|_| {});
        let (one, many) = (without(0), without(1));
        let compared = compare(&one, &all).unwrap();
        assert_eq!(compared.lacking, Lacking { after_only: vec!["one".into()], ..Lacking::default() });
        let gain = compared.headline.iter().find(|pair| pair.key == "gain").unwrap();
        assert_eq!((gain.before, gain.after), (None, Some(12.0)));
        let none = compare(&one, &many).unwrap();
        let expected =
            Lacking { before_only: vec!["many".into()], after_only: vec!["one".into()], neither: Vec::new() };
        assert_eq!(none.lacking, expected);
        assert!(none.headline.iter().all(|pair| pair.key != "gain"), "neither has it");
        let text = none.to_text();
        assert!(!text.contains("after/before"), "no head of a table without rows: {text}");
        assert!(text.lines().any(|line| line.starts_with("number ") && line.ends_with("  after")), "{text}");
        assert!(text.contains("measured before only: many\nmeasured after only: one\n"), "{text}");
        let renamed = results(|json| {
            json["cells"][0]["name"] = "first".into();
            json["cells"][1]["values"] = Value::Null;
            json["headline"] = serde_json::json!({ "gain": 3.0 });
        });
        let compared = compare(&many, &renamed).unwrap();
        let expected = Lacking {
            before_only: vec!["one".into()],
            after_only: vec!["first".into()],
            neither: vec!["many".into()],
        };
        assert_eq!(compared.lacking, expected);
        assert_eq!(compared.headline[0].after, Some(3.0));
        assert!(compared.headline.iter().any(|pair| pair.key == "p50_us" && pair.after.is_none()));
    }

    #[test]
    fn other_conditions_are_noted_and_other_counts_are_not() {
        let with = |conditions: &str| results(|json| json["conditions"] = conditions.into());
        let (some, more) = (with("Rounds: 3 with a shared cache."), with("Rounds: 14 with a shared cache."));
        assert_eq!(compare(&some, &more).unwrap().notes, ["both were measured with --quick"]);
        let other = with("Rounds: 3 with own caches.");
        let notes = compare(&some, &other).unwrap().notes;
        let expected = "conditions differ: Rounds: 3 with a shared cache. Then: Rounds: 3 with own caches.";
        assert_eq!(notes[1], expected);
    }

    #[test]
    fn one_machine_and_two_are_told_apart() {
        let one = results(|_| {});
        let between_two = |kernel: &str| {
            results(|json| {
                json["target_machine"] = serde_json::json!({ "environment": { "kernel": kernel } });
            })
        };
        let notes = compare(&one, &between_two("6.1")).unwrap().notes;
        assert!(notes[0].contains("on one machine, the other between two"), "{notes:?}");
        let notes = compare(&between_two("6.1"), &between_two("6.12")).unwrap().notes;
        assert!(notes[0].contains("two machines or kernels"), "{notes:?}");
        let notes = compare(&between_two("6.1"), &between_two("6.1")).unwrap().notes;
        assert_eq!(notes, ["both were measured with --quick"]);
    }

    #[test]
    fn what_cannot_be_compared_says_why() {
        let (one, other) = (results(|_| {}), results(|json| json["experiment"] = "idle".into()));
        assert_eq!(
            compare(&one, &other).unwrap_err(),
            Incomparable::Experiments("example".into(), "idle".into())
        );
        let emulated = results(|json| json["environment"]["emulated"] = true.into());
        assert_eq!(compare(&one, &emulated).unwrap_err(), Incomparable::Emulated);
        assert!(compare(&emulated, &emulated).is_ok());
        assert!(matches!(read("{}"), Err(Incomparable::Form(_))));
        let newer = example::study().to_json().to_string().replace("\"schema\":1", "\"schema\":2");
        assert_eq!(read(&newer).unwrap_err(), Incomparable::Schema { found: 2 });
    }
}
