//! The numbers that answer a study's question: those over a direction and a depth as a matrix, all others in a list, each
//! with its goal once.

use std::fmt::Write;

use crate::format::{escape, number, quantity, words};
use crate::headline::{Bar, Headline};
use crate::results::Study;

/// Entries from which on numbers of one kind are a matrix.
const MATRIX_MIN: usize = 4;

/// A number, or that there is none because the machine was disturbed.
#[derive(Clone, Copy, Debug)]
struct Entry<'a> {
    key: &'a str,
    value: Option<f64>,
    bar: Option<Bar>,
}

impl Entry<'_> {
    fn is_reached(&self) -> Option<bool> {
        Some(self.bar?.is_reached(self.value?))
    }

    /// Kind, row and depth of a number over depths: `share_read_qd4` is ("share", "read", 4).
    fn place(&self) -> Option<(&str, &str, u32)> {
        let (before, depth) = self.key.rsplit_once("_qd")?;
        let (kind, row) = before.split_once('_').unwrap_or((before, ""));
        Some((kind, row, depth.parse().ok()?))
    }
}

/// All numbers of a study, in order.
fn entries(study: &Study) -> Vec<Entry<'_>> {
    let known = study.headline.iter();
    let known = known.map(|Headline { key, value, bar }| Entry { key, value: Some(*value), bar: *bar });
    let unknown = study.unmeasured.iter().map(|none| Entry { key: &none.key, value: None, bar: none.bar });
    known.chain(unknown).collect()
}

/// Writes the section.
pub(super) fn write(page: &mut String, study: &Study) {
    let entries = entries(study);
    if entries.is_empty() {
        return;
    }
    let mut kinds: Vec<&str> = Vec::new();
    for (kind, ..) in entries.iter().filter_map(Entry::place) {
        if !kinds.contains(&kind) {
            kinds.push(kind);
        }
    }
    kinds.retain(|kind| entries.iter().filter(|entry| is_of(entry, kind)).count() >= MATRIX_MIN);
    page.push_str("<section>\n<h2>In numbers</h2>\n");
    let others: Vec<_> =
        entries.iter().filter(|entry| !kinds.iter().any(|kind| is_of(entry, kind))).collect();
    if !others.is_empty() {
        list(page, &others);
    }
    for kind in kinds {
        let of: Vec<_> = entries.iter().filter(|entry| is_of(entry, kind)).collect();
        matrix(page, kind, &of);
    }
    page.push_str("</section>\n");
}

fn is_of(entry: &Entry<'_>, kind: &str) -> bool {
    entry.place().is_some_and(|(of, ..)| of == kind)
}

fn list(page: &mut String, entries: &[&Entry<'_>]) {
    page.push_str("<div class=\"scroll\"><table>\n<thead><tr><th></th><th>measured</th><th>goal</th></tr></thead>\n<tbody>\n");
    for Entry { key, value, bar } in entries {
        let measured = value.map_or("n/a".to_owned(), |value| quantity(key, value));
        let _ = write!(
            page,
            "<tr><td title=\"{}\">{}</td><td>{measured}</td><td>",
            escape(key),
            escape(&words(key))
        );
        if let Some(bar) = bar {
            let _ = write!(page, "{} {} {}", bar.words(), quantity(key, bar.limit()), verdict(*value, *bar));
        }
        page.push_str("</td></tr>\n");
    }
    page.push_str("</tbody>\n</table></div>\n");
}

/// Whether a number reaches its goal, as a word in its colour.
pub(super) fn verdict(value: Option<f64>, bar: Bar) -> &'static str {
    match value.map(|value| bar.is_reached(value)) {
        Some(true) => "<span class=\"verdict reached\">reached</span>",
        Some(false) => "<span class=\"verdict missed\">not reached</span>",
        None => "no verdict: the machine was disturbed",
    }
}

fn matrix(page: &mut String, kind: &str, entries: &[&Entry<'_>]) {
    let places = || entries.iter().filter_map(|entry| entry.place());
    let mut depths: Vec<u32> = places().map(|(_, _, depth)| depth).collect();
    depths.sort_unstable();
    depths.dedup();
    let mut rows: Vec<&str> = Vec::new();
    for (_, row, _) in places() {
        if !rows.contains(&row) {
            rows.push(row);
        }
    }
    let bars: Vec<Bar> = entries.iter().filter_map(|entry| entry.bar).collect();
    let goal = bars.first().filter(|first| bars.iter().all(|bar| bar == *first));
    let goal = goal.map_or(String::new(), |bar| format!(", goal {} {}", bar.words(), number(bar.limit())));
    let _ = write!(
        page,
        "<h3>{}<span class=\"goal\"> over operations in flight{goal}</span></h3>\n<div class=\"scroll\"><table class=\"matrix\">\n<thead><tr><th></th>",
        escape(&words(kind))
    );
    for depth in &depths {
        let _ = write!(page, "<th>{depth}</th>");
    }
    page.push_str("<th>least</th></tr></thead>\n<tbody>\n");
    for row in rows {
        let of_row: Vec<_> =
            entries.iter().filter(|entry| entry.place().is_some_and(|(_, of, _)| of == row)).collect();
        let _ = write!(page, "<tr><td>{}</td>", escape(&words(row)));
        for wanted in &depths {
            let entry = of_row.iter().find(|entry| entry.place().is_some_and(|(.., depth)| depth == *wanted));
            let Some(entry) = entry else {
                page.push_str("<td></td>");
                continue;
            };
            let class = match entry.is_reached() {
                Some(true) => " class=\"reached\"",
                Some(false) => " class=\"missed\"",
                None => "",
            };
            let value = entry.value.map_or("n/a".to_owned(), |value| quantity(entry.key, value));
            let _ = write!(page, "<td title=\"{}\"{class}>{value}</td>", escape(entry.key));
        }
        // A row that was not measured as a whole has no least value.
        let values: Option<Vec<f64>> = of_row.iter().map(|entry| entry.value).collect();
        let least = values.and_then(|values| values.into_iter().min_by(f64::total_cmp));
        let _ = writeln!(page, "<td>{}</td></tr>", least.map_or("n/a".to_owned(), number));
    }
    page.push_str("</tbody>\n</table></div>\n");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::{Unmeasurable, example};

    #[test]
    fn numbers_over_depths_are_one_matrix_with_one_goal() {
        let mut study = example::study();
        let goal = Bar::AtLeast(0.9);
        study.headline = vec![Headline::new("share_min", 0.88).with_bar(goal)];
        for (row, values) in [("read", [0.95, 0.88]), ("write", [0.91, 0.92])] {
            for (depth, value) in [1, 128].into_iter().zip(values) {
                study.headline.push(Headline::new(format!("share_{row}_qd{depth}"), value).with_bar(goal));
            }
        }
        study.unmeasured = vec![Unmeasurable { key: "share_mix_qd1".into(), bar: Some(goal) }];
        let mut page = String::new();
        write(&mut page, &study);
        assert_eq!(page.matches("0.90").count(), 2, "one goal of the list, one of the matrix: {page}");
        assert!(
            page.contains("<tr><td>read</td><td title=\"share_read_qd1\" class=\"reached\">0.95</td>"),
            "{page}"
        );
        assert!(page.contains("<td title=\"share_read_qd128\" class=\"missed\">0.88</td><td>0.88</td></tr>"));
        assert!(
            page.contains("<tr><td>mix</td><td title=\"share_mix_qd1\">n/a</td><td></td><td>n/a</td></tr>")
        );
        assert!(page.contains("<td title=\"share_min\">least share of the ceiling</td><td>0.88</td>"));
    }
}
