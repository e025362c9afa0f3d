//! The report of a study on a terminal.

use std::fmt::Write;

use crate::catalogue::{self, Entry};
use crate::format::{quantity, table_number, value_name};
use crate::measured::CellRounds;
use crate::page::rounds_in_words;
use crate::results::Study;

/// All experiments, one per line.
#[must_use]
pub fn list() -> String {
    let mut text = String::new();
    for Entry { about, .. } in catalogue::ALL {
        let _ = writeln!(text, "{:<18}{}", about.name, about.title);
    }
    text
}

/// The cells as a table, then the headline numbers.
#[must_use]
pub fn of(study: &Study) -> String {
    let mut text = String::new();
    if let Some(disturbance) = study.disturbance() {
        let _ = writeln!(text, "{disturbance}\n");
    }
    text += &table(study);
    let _ = writeln!(text, "\n{}", rounds_in_words(study));
    if let Some(conditions) = &study.conditions {
        let _ = writeln!(text, "{conditions}");
    }
    if !study.seen.is_empty() {
        let _ = writeln!(text, "beside {}", study.seen.join(", "));
    }
    let keys = study.headline.iter().map(|headline| &headline.key);
    let width = keys.chain(study.unmeasured.iter().map(|none| &none.key)).map(String::len).max().unwrap_or(0);
    for headline in &study.headline {
        let _ = write!(text, "{:<width$}  {:>9}", headline.key, quantity(&headline.key, headline.value));
        if let (Some(bar), Some(is_reached)) = (headline.bar, headline.is_reached()) {
            let word = if is_reached { "reached" } else { "not reached" };
            let _ = write!(text, "  {word}: {} {}", bar.words(), quantity(&headline.key, bar.limit()));
        }
        text.push('\n');
    }
    for none in &study.unmeasured {
        let _ = writeln!(text, "{:<width$}  {:>9}  no verdict: the machine was disturbed", none.key, "n/a");
    }
    text
}

/// Medians of each cell.
fn table(study: &Study) -> String {
    let cells = &study.measured.cells;
    let is_known = |name: &&&str| cells.iter().any(|cell| cell.median(name).is_some());
    let mut columns: Vec<&str> = study.about.columns.iter().filter(is_known).copied().collect();
    if columns.is_empty() {
        // Each cell is shown as n/a.
        columns = vec![study.about.judged_by];
    }
    let mut rows = vec![vec![String::new()]];
    rows[0].extend(columns.iter().map(|name| value_name(name)));
    for cell in cells {
        let mut row = vec![cell.cell.name.clone()];
        let absent = || if cell.unmeasured().is_some() { "n/a".to_owned() } else { String::new() };
        row.extend(
            columns
                .iter()
                .map(|name| cell.median(name).map_or_else(absent, |value| table_number(name, value))),
        );
        rows.push(row);
    }
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..=columns.len()).map(width).collect();
    let mut text = String::new();
    let reasons = cells.iter().map(CellRounds::unmeasured);
    let reasons = std::iter::once(None).chain(reasons);
    for (row, reason) in rows.iter().zip(reasons) {
        let _ = write!(text, "{:<width$}", row[0], width = widths[0]);
        for (cell, width) in row.iter().zip(&widths).skip(1) {
            let _ = write!(text, "  {cell:>width$}");
        }
        text.push('\n');
        if let Some(reason) = reason {
            let _ = writeln!(text, "  n/a: {reason}");
        }
    }
    text
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
    fn every_experiment_has_a_line() {
        assert_eq!(list().lines().count(), catalogue::ALL.len());
    }
}
