//! The table of all cells: medians with their spread, the best of each column shaded; and tables of some of them.

use maud::{Markup, html};

use super::table::table;
use crate::experiment::About;
use crate::format::{table_number, table_spread, value_name};
use crate::measured::CellRounds;
use crate::results::Study;
use crate::table::{Row, Table};

/// Processor times of a side, and their parts, which follow them.
const PARTS: [(&str, [&str; 2]); 2] =
    [("host_us", ["host_user_us", "host_kernel_us"]), ("target_us", ["target_user_us", "target_kernel_us"])];

/// The columns of an experiment, processor times with their parts.
fn columns(about: &About) -> Vec<&'static str> {
    let mut columns = Vec::new();
    for name in about.columns() {
        columns.push(name);
        if let Some((_, parts)) = PARTS.iter().find(|(whole, _)| *whole == name) {
            columns.extend(parts.iter().filter(|part| !about.columns().any(|column| column == **part)));
        }
    }
    columns
}

/// The section of all cells.
pub(super) fn section(study: &Study) -> Markup {
    let cells = &study.measured.cells;
    let mut columns = columns(&study.about);
    columns.retain(|name| {
        cells.iter().any(|cell| cell.spread(name).or_else(|| cell.discarded_spread(name)).is_some())
    });
    let columns: Vec<_> = columns.into_iter().map(|name| (name, best(cells, name))).collect();
    let groups: Vec<&str> = cells.iter().map(|cell| group(&cell.cell.name)).collect();
    let has_groups = groups.windows(2).any(|pair| pair[0] == pair[1]);
    let begins = |index: usize| has_groups && index > 0 && groups[index] != groups[index - 1];
    let rows = html! {
        @for (index, cell) in cells.iter().enumerate() { (row(begins(index), &cell.cell.name, cell, &columns)) }
    };
    html! {
        section {
            h2 { "Every cell" }
            p.small {
                "Median of the rounds, ± half the distance of the quartiles"
                @if columns.iter().any(|(_, best)| best.is_some()) { "; the best of a column is shaded" } "."
            }
            (of_cells("Every cell", columns.iter().map(|(name, _)| *name), &rows))
        }
    }
}

/// A section for each table that has rows.
pub(super) fn chosen(study: &Study) -> Markup {
    let section = |Table { title, note, columns, groups }: &Table| {
        let columns: Vec<_> = columns.iter().map(|name| (*name, None)).collect();
        let rows = groups.iter().enumerate().flat_map(|(index, group)| {
            let known =
                group.iter().filter_map(|Row { name, cell }| Some((name, study.measured.cell(cell)?)));
            known.enumerate().map(move |(at, (name, cell))| (index > 0 && at == 0, name, cell))
        });
        let rows: Vec<_> = rows.map(|(begins, name, cell)| row(begins, name, cell, &columns)).collect();
        let all = html! { @for row in &rows { (row) } };
        html! {
            @if !rows.is_empty() {
                section {
                    h2 { (title) }
                    p.small { (note) }
                    (of_cells(title, columns.iter().map(|(name, _)| *name), &all))
                }
            }
        }
    };
    html! { @for table in &study.tables { (section(table)) } }
}

fn of_cells<'a>(label: &str, columns: impl Iterator<Item = &'a str>, rows: &Markup) -> Markup {
    table(label, "cells", std::iter::once("cell".to_owned()).chain(columns.map(value_name)), rows)
}

/// A row: the medians of a cell, or why it has none.
fn row(begins_group: bool, name: &str, cell: &CellRounds, columns: &[(&str, Option<f64>)]) -> Markup {
    let reason = cell.not_available();
    let is_discarded = reason.is_some() && !cell.rejected.is_empty();
    let classes = [("group", begins_group), ("discarded", is_discarded)];
    let classes: Vec<_> = classes.into_iter().filter_map(|(class, is_of)| is_of.then_some(class)).collect();
    let discarded = cell.unmeasured().filter(|_| is_discarded);
    html! {
        tr class=[(!classes.is_empty()).then(|| classes.join(" "))] {
            th scope="row" {
                (name)
                @if let Some(reason) = &discarded { span.reason { "discarded: " (reason) } }
            }
            @if discarded.is_some() {
                @for (name, _) in columns {
                    td { @if let Some(spread) = cell.discarded_spread(name) { (table_number(name, spread.median)) } }
                }
            } @else if let Some(reason) = reason {
                td.none colspan=(columns.len().max(1)) { span { (reason) } }
            } @else {
                @for (name, best) in columns { (value(cell, name, *best)) }
            }
        }
    }
}

/// The cells that stand together: the name but for its last word.
fn group(name: &str) -> &str {
    name.rsplit_once(' ').map_or(name, |(group, _)| group)
}

/// The best median of a column, if it is known which direction is better and there are several to choose from.
fn best(cells: &[CellRounds], name: &str) -> Option<f64> {
    if name.starts_with("ceiling") || name.starts_with("offered") {
        return None;
    }
    let has = |word: &str| name.split('_').any(|part| part == word);
    let medians: Vec<f64> = cells.iter().filter_map(|cell| cell.median(name)).collect();
    let best = if has("iops") || has("ops") || has("mib") && has("per") || name == "share" {
        medians.iter().copied().max_by(f64::total_cmp)?
    } else if name.ends_with("_us") {
        medians.iter().copied().min_by(f64::total_cmp)?
    } else {
        return None;
    };
    medians.iter().any(|median| *median != best).then_some(best)
}

fn value(cell: &CellRounds, name: &str, best: Option<f64>) -> Markup {
    let Some(spread) = cell.spread(name) else { return html! { td {} } };
    let rounds: Vec<String> = cell.each(name).into_iter().map(|value| table_number(name, value)).collect();
    let half = spread.interquartile() / 2.0;
    html! {
        td title=(rounds.join(", ")) class=[(best == Some(spread.median)).then_some("best")] {
            (table_number(name, spread.median))
            @if spread.count > 1 { " " span.spread { "±" (table_spread(name, spread.median, half)) } }
        }
    }
}

#[cfg(test)]
mod tests {
    use load::disturbance::Disturbance;

    use super::*;
    use crate::results::example;

    #[test]
    fn a_table_of_some_cells_has_their_values_or_the_reason() {
        let mut study = example::study();
        study.measured.cells[1] = CellRounds::new(study.measured.cells[1].cell.clone());
        study.measured.cells[1].push([("iops", 0.0), ("p50_us", 700.0)].into(), Disturbance::default());
        let row = |name: &str, cell: &str| Row { name: name.into(), cell: cell.into() };
        let empty = Table {
            title: "Latency of nothing".into(),
            note: String::new(),
            columns: vec!["p50_us"],
            groups: vec![Vec::new(), vec![row("none", "no such")]],
        };
        let some = Table {
            title: "Latency <of> reads".into(),
            note: "Lower is better.".into(),
            columns: vec!["p50_us", "p99_us"],
            groups: vec![vec![row("depth 1", "one")], vec![row("depth 128", "many"), row("none", "no such")]],
        };
        study.tables = vec![empty, some];
        let page = chosen(&study).into_string();
        assert!(page.contains("<h2>Latency &lt;of&gt; reads</h2>"), "{page}");
        assert!(
            page.contains("<tr><th scope=\"row\">depth 1</th><td title=\"8.50, 8.50, 8.50\">8.50"),
            "{page}"
        );
        let none = "<tr class=\"group discarded\"><th scope=\"row\">depth 128<span class=\"reason\">discarded: no operation finished</span></th><td>700 µs</td><td></td></tr>";
        let none = none.replace("700 µs", "700");
        assert!(page.contains(&none), "{page}");
        assert_eq!(page.matches("<th scope=\"row\">").count(), 2);
        assert!(!page.contains("Latency of nothing"), "{page}");
    }

    #[test]
    fn processor_time_is_followed_by_its_parts() {
        let mut study = example::study();
        study.about.columns = "iops host_us target_user_us target_us";
        for round in &mut study.measured.cells[0].rounds {
            round.extend([("host_us", 5.0), ("host_user_us", 1.0), ("host_kernel_us", 4.0)]);
            round.extend([("target_us", 3.0), ("target_user_us", 1.0)]);
        }
        let page = section(&study).into_string();
        let (head, _) = page.split_once("</thead>").unwrap();
        let heads: Vec<&str> = head.split("<th scope=\"col\">").skip(1).collect();
        let names: Vec<&str> = heads.iter().map(|head| head.split('<').next().unwrap()).collect();
        let expected = [
            "cell",
            "IOPS",
            "host µs/op",
            "host user µs/op",
            "host kernel µs/op",
            "target user µs/op",
            "target µs/op",
        ];
        assert_eq!(names, expected);
    }
}
