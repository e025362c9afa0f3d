//! The table of all cells: medians with their spread, the best of each column shaded; and tables of some of them.

use std::fmt::Write;

use super::table;
use crate::experiment::About;
use crate::format::{escape, table_number, table_spread, value_name};
use crate::measured::CellRounds;
use crate::results::Study;
use crate::table::{Row, Table};

/// Processor times of a side, and their parts, which follow them.
const PARTS: [(&str, [&str; 2]); 2] =
    [("host_us", ["host_user_us", "host_kernel_us"]), ("target_us", ["target_user_us", "target_kernel_us"])];

/// The columns of an experiment, processor times with their parts.
fn columns(about: &About) -> Vec<&'static str> {
    let mut columns = Vec::new();
    for name in about.columns {
        columns.push(*name);
        if let Some((_, parts)) = PARTS.iter().find(|(whole, _)| whole == name) {
            columns.extend(parts.iter().filter(|part| !about.columns.contains(part)));
        }
    }
    columns
}

/// Writes the section.
pub(super) fn write(page: &mut String, study: &Study) {
    let cells = &study.measured.cells;
    let mut columns = columns(&study.about);
    columns.retain(|name| {
        cells.iter().any(|cell| cell.spread(name).or_else(|| cell.discarded_spread(name)).is_some())
    });
    let bests: Vec<Option<f64>> = columns.iter().map(|name| best(cells, name)).collect();
    page.push_str("<section>\n<h2>Every cell</h2>\n<p class=\"small\">Median of the rounds, ± half the distance of the quartiles");
    page.push_str(if bests.iter().any(Option::is_some) {
        "; the best of a column is shaded.</p>\n"
    } else {
        ".</p>\n"
    });
    let names: Vec<String> = columns.iter().map(|name| value_name(name)).collect();
    table::begin(
        page,
        "Every cell",
        "cells",
        std::iter::once("cell").chain(names.iter().map(String::as_str)),
    );
    let groups: Vec<&str> = cells.iter().map(|cell| group(&cell.cell.name)).collect();
    let has_groups = groups.windows(2).any(|pair| pair[0] == pair[1]);
    for (index, cell) in cells.iter().enumerate() {
        let is_first = has_groups && index > 0 && groups[index] != groups[index - 1];
        row(page, is_first, &cell.cell.name, cell, columns.iter().copied().zip(bests.iter().copied()));
    }
    table::end(page);
    page.push_str("</section>\n");
}

/// Writes a section for each table that has rows.
pub(super) fn write_chosen(page: &mut String, study: &Study) {
    for Table { title, note, columns, groups } in &study.tables {
        let cell = |row: &'_ Row| study.measured.cell(&row.cell);
        if groups.iter().flatten().all(|row| cell(row).is_none()) {
            continue;
        }
        let _ =
            writeln!(page, "<section>\n<h2>{}</h2>\n<p class=\"small\">{}</p>", escape(title), escape(note));
        let names: Vec<String> = columns.iter().map(|name| value_name(name)).collect();
        table::begin(page, title, "cells", std::iter::once("cell").chain(names.iter().map(String::as_str)));
        for (index, group) in groups.iter().enumerate() {
            let rows = group.iter().filter_map(|row| Some((&row.name, cell(row)?)));
            for (at, (name, cell)) in rows.enumerate() {
                row(page, index > 0 && at == 0, name, cell, columns.iter().map(|name| (*name, None)));
            }
        }
        table::end(page);
        page.push_str("</section>\n");
    }
}

/// A row: the medians of a cell, or why it has none.
fn row<'a>(
    page: &mut String,
    begins_group: bool,
    name: &str,
    cell: &CellRounds,
    columns: impl ExactSizeIterator<Item = (&'a str, Option<f64>)>,
) {
    let reason = cell.not_available();
    let is_discarded = reason.is_some() && !cell.rejected.is_empty();
    let classes = [("group", begins_group), ("discarded", is_discarded)];
    let classes: Vec<_> = classes.into_iter().filter_map(|(class, is_of)| is_of.then_some(class)).collect();
    let class = if classes.is_empty() { String::new() } else { format!(" class=\"{}\"", classes.join(" ")) };
    let _ = write!(page, "<tr{class}><th scope=\"row\">{}", escape(name));
    if let Some(reason) = cell.unmeasured().filter(|_| is_discarded) {
        let _ = write!(page, "<span class=\"reason\">discarded: {}</span></th>", escape(&reason.to_string()));
        for (name, _) in columns {
            let spread = cell.discarded_spread(name);
            let text = spread.map_or(String::new(), |spread| table_number(name, spread.median));
            let _ = write!(page, "<td>{text}</td>");
        }
        page.push_str("</tr>\n");
        return;
    }
    page.push_str("</th>");
    if let Some(reason) = reason {
        let _ = writeln!(
            page,
            "<td class=\"none\" colspan=\"{}\"><span>{}</span></td></tr>",
            columns.len().max(1),
            escape(&reason)
        );
        return;
    }
    for (name, best) in columns {
        value(page, cell, name, best);
    }
    page.push_str("</tr>\n");
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

fn value(page: &mut String, cell: &CellRounds, name: &str, best: Option<f64>) {
    let Some(spread) = cell.spread(name) else {
        page.push_str("<td></td>");
        return;
    };
    let rounds: Vec<String> = cell.each(name).into_iter().map(|value| table_number(name, value)).collect();
    let _ = write!(
        page,
        "<td title=\"{}\"{}>{}",
        rounds.join(", "),
        if best == Some(spread.median) { " class=\"best\"" } else { "" },
        table_number(name, spread.median)
    );
    if spread.count > 1 {
        let _ = write!(
            page,
            " <span class=\"spread\">±{}</span>",
            table_spread(name, spread.median, spread.interquartile() / 2.0)
        );
    }
    page.push_str("</td>");
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
        let mut page = String::new();
        write_chosen(&mut page, &study);
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
        study.about.columns = &["iops", "host_us", "target_user_us", "target_us"];
        for round in &mut study.measured.cells[0].rounds {
            round.extend([("host_us", 5.0), ("host_user_us", 1.0), ("host_kernel_us", 4.0)]);
            round.extend([("target_us", 3.0), ("target_user_us", 1.0)]);
        }
        let mut page = String::new();
        write(&mut page, &study);
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
