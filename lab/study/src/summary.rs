//! The report of a study on a terminal.

use std::fmt::Write;
use std::ops::Range;

use crate::catalogue::{self, Entry};
use crate::format::{quantity, table_number, value_name};
use crate::headline::Verdict;
use crate::interval::Interval;
use crate::measured::CellRounds;
use crate::page::{CALM, EMULATED, rounds_in_words};
use crate::results::Study;
use crate::words::words;

/// Width of a table; columns beyond it follow below, with the names of the cells again.
const WIDTH_MAX: usize = 160;

/// All experiments, one per line.
pub fn list() -> String {
    let mut text = String::new();
    for Entry { about, .. } in catalogue::ALL {
        let _ = writeln!(text, "{:<18}{}", about.name, about.title);
    }
    text
}

/// The cells as a table, then the headline numbers.
pub fn of(study: &Study) -> String {
    let mut text = String::new();
    if let Some(disturbance) = study.disturbance() {
        let _ = writeln!(text, "{disturbance} {CALM}\n");
    }
    text += &table(study);
    let _ = writeln!(text, "\n{}", rounds_in_words(study));
    if let Some(machine) = &study.target_machine {
        for line in machine.lines(&study.environment) {
            let _ = writeln!(text, "{line}");
        }
    }
    if study.is_emulated() {
        let _ = writeln!(text, "{EMULATED}");
    }
    for conditions in study.only_here.iter().chain(&study.conditions) {
        let _ = writeln!(text, "{conditions}");
    }
    if !study.lacking.is_empty() {
        text.push_str("Not measured here:\n");
        for lacking in &study.lacking {
            let _ = writeln!(text, "  {}", lacking.line());
        }
    }
    if !study.seen.is_empty() {
        let _ = writeln!(text, "beside {}", study.seen.join(", "));
    }
    let keys = study.headline.iter().map(|headline| &headline.key);
    let names = keys.chain(study.unmeasured.iter().map(|none| &none.key)).map(|key| words(key));
    let width = names.map(|name| name.chars().count()).max().unwrap_or(0);
    for headline in &study.headline {
        let _ =
            write!(text, "{:<width$}  {:>9}", words(&headline.key), quantity(&headline.key, headline.value));
        if let (Some(bar), Some(verdict)) = (headline.bar, headline.verdict()) {
            let word = match verdict {
                Verdict::Reached => "reached",
                Verdict::Missed => "not reached",
                Verdict::Open => "no verdict",
            };
            let _ = write!(text, "  {word}: {} {}", bar.words(), quantity(&headline.key, bar.limit()));
            match headline.interval {
                Some(Interval { low, high }) if low < high => {
                    let [low, high] = [low, high].map(|end| quantity(&headline.key, end));
                    let _ = write!(text, "  (between {low} and {high})");
                }
                Some(_) => {}
                None => text.push_str("  (too few rounds)"),
            }
        }
        text.push('\n');
    }
    for none in &study.unmeasured {
        let verdict = if none.bar.is_some() { "no verdict: " } else { "" };
        let name = words(&none.key);
        let _ = writeln!(text, "{name:<width$}  {:>9}  {verdict}the machine was disturbed", "n/a");
    }
    text
}

/// Medians of each cell.
fn table(study: &Study) -> String {
    let cells = &study.measured.cells;
    let is_known = |name: &&str| cells.iter().any(|cell| cell.median(name).is_some());
    let mut columns: Vec<&str> = study.about.columns().filter(is_known).collect();
    if columns.is_empty() {
        // Each cell is shown as n/a.
        columns = vec![study.about.judged_by];
    }
    let mut rows = vec![vec![String::new()]];
    rows[0].extend(columns.iter().map(|name| value_name(name)));
    for cell in cells {
        let mut row = vec![cell.cell.name.clone()];
        let told =
            |name: &&str| cell.median(name).map_or_else(String::new, |value| table_number(name, value));
        row.extend(columns.iter().map(told));
        rows.push(row);
    }
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..=columns.len()).map(width).collect();
    let reasons: Vec<_> = std::iter::once(None).chain(cells.iter().map(CellRounds::not_available)).collect();
    let mut text = String::new();
    for (index, part) in parts(&widths).into_iter().enumerate() {
        if index > 0 {
            text.push('\n');
        }
        for (row, reason) in rows.iter().zip(&reasons) {
            let _ = write!(text, "{:<width$}", row[0], width = widths[0]);
            match reason {
                Some(reason) if index == 0 => {
                    let _ = write!(text, "  {reason}");
                }
                Some(_) => text.push_str("  n/a"),
                None => {
                    for column in part.clone() {
                        let _ = write!(text, "  {:>width$}", row[column], width = widths[column]);
                    }
                }
            }
            text.push('\n');
        }
    }
    text
}

/// The columns behind the first, in parts that fit beside it.
fn parts(widths: &[usize]) -> Vec<Range<usize>> {
    let mut parts: Vec<Range<usize>> = Vec::new();
    let mut used = 0;
    for (column, width) in widths.iter().enumerate().skip(1) {
        match parts.last_mut() {
            Some(part) if used + 2 + width <= WIDTH_MAX => {
                part.end = column + 1;
                used += 2 + width;
            }
            _ => {
                parts.push(column..column + 1);
                used = widths[0] + 2 + width;
            }
        }
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::example;

    #[test]
    fn a_study_is_told_in_a_table_and_its_bars() {
        insta::assert_snapshot!(of(&example::study()));
    }

    #[test]
    fn both_machines_are_named() {
        let machine = Some(crate::two_machines::example::machine());
        let text = of(&crate::results::Study { target_machine: machine, ..example::study() });
        assert!(text.contains("Measured between two machines."), "{text}");
        assert!(text.contains("host: Linux 6.12.1, core 0, nvlane"), "{text}");
        assert!(text.contains(
            "target: 192.0.2.2, Linux 6.1.9, A <Processor>, cores 2,3, eth0 with an MTU of 9000 bytes"
        ));
        assert!(text.contains("n/a between two machines: the ceiling, because of the method."), "{text}");
    }

    #[test]
    fn columns_that_do_not_fit_follow_below() {
        assert_eq!(parts(&[20, 68, 68, 10, 150, 7]), [1..3, 3..4, 4..5, 5..6]);
        assert_eq!(parts(&[20, 150, 10]), [1..2, 2..3]);
        let mut study = example::study();
        let names: [&'static str; 30] = std::array::from_fn(|index| &*format!("value_{index}_us").leak());
        study.about.columns = names.join(" ").leak();
        for round in &mut study.measured.cells[1].rounds {
            round.extend(names.map(|name| (name, 1.5)));
        }
        let text = of(&study);
        assert!(text.lines().all(|line| line.chars().count() <= WIDTH_MAX), "{text}");
        assert!(names.iter().all(|name| text.contains(&value_name(name))), "{text}");
        assert_eq!(text.lines().filter(|line| line.starts_with("many")).count(), 3, "{text}");
    }

    #[test]
    fn every_experiment_has_a_line() {
        assert_eq!(list().lines().count(), catalogue::ALL.len());
    }
}
