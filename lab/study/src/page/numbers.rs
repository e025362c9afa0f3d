//! The numbers that answer a study's question: those over a direction and a depth as a matrix, all others in a list, each
//! with its goal once.

use std::fmt::Write;

use super::table;
use crate::format::{escape, number, quantity};
use crate::headline::{Bar, Headline, Verdict};
use crate::interval::Interval;
use crate::results::Study;
use crate::words::{known_beginning, words};

/// Entries from which on numbers of one kind are a matrix.
const MATRIX_MIN: usize = 4;

/// A number, or its absence because the machine was disturbed.
#[derive(Clone, Copy, Debug)]
struct Entry<'a> {
    key: &'a str,
    value: Option<f64>,
    interval: Option<Interval>,
    bar: Option<Bar>,
}

impl Entry<'_> {
    fn verdict(&self) -> Option<Verdict> {
        self.value.and(self.bar).map(|bar| bar.verdict(self.interval))
    }

    /// Kind, row and depth of a number over depths: `share_read_qd4` is (`share`, `read`, 4), and `read_4k_qd1_tls_over_clear`
    /// is (`tls_over_clear`, `read_4k`, 1).
    fn place(&self) -> Option<(&str, &str, u32)> {
        let (before, rest) = self.key.rsplit_once("_qd")?;
        let (depth, kind) = rest.split_once('_').unwrap_or((rest, ""));
        let (kind, row) = match kind {
            "" => known_beginning(before).unwrap_or_else(|| before.split_once('_').unwrap_or((before, ""))),
            kind => (kind, before),
        };
        Some((kind, row, depth.parse().ok()?))
    }
}

/// All numbers of a study, in order.
fn entries(study: &Study) -> Vec<Entry<'_>> {
    let known = study.headline.iter();
    let known = known.map(|Headline { key, value, interval, bar }| Entry {
        key,
        value: Some(*value),
        interval: *interval,
        bar: *bar,
    });
    let unknown = study.unmeasured.iter();
    let unknown = unknown.map(|none| Entry { key: &none.key, value: None, interval: None, bar: none.bar });
    known.chain(unknown).collect()
}

/// Writes the section; its headings begin at this level.
pub(super) fn write(page: &mut String, study: &Study, level: u8) {
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
    let _ = writeln!(page, "<section>\n<h{level}>In numbers</h{level}>");
    if entries.iter().any(|entry| entry.verdict() == Some(Verdict::Open)) {
        page.push_str(
            "<p class=\"small\">No verdict (?): the goal is within the interval that the number lies in, with a certainty of 99 %. More \
             rounds make it smaller: --rounds COUNT.</p>\n",
        );
    }
    if entries.iter().any(|entry| entry.value.is_none()) {
        page.push_str(
            "<p class=\"small\">n/a: needs measurements that were discarded, because the machine was disturbed.</p>\n",
        );
    }
    let others: Vec<_> =
        entries.iter().filter(|entry| !kinds.iter().any(|kind| is_of(entry, kind))).collect();
    if !others.is_empty() {
        list(page, &others);
    }
    for kind in kinds {
        let of: Vec<_> = entries.iter().filter(|entry| is_of(entry, kind)).collect();
        matrix(page, kind, &of, level + 1);
    }
    page.push_str("</section>\n");
}

fn is_of(entry: &Entry<'_>, kind: &str) -> bool {
    entry.place().is_some_and(|(of, ..)| of == kind)
}

fn list(page: &mut String, entries: &[&Entry<'_>]) {
    let has_goals = entries.iter().any(|entry| entry.bar.is_some());
    let columns = ["number", "measured", "goal"];
    table::begin(page, "In numbers", "numbers", columns.into_iter().take(if has_goals { 3 } else { 2 }));
    for Entry { key, value, interval, bar } in entries {
        let mut measured = value.map_or("n/a".to_owned(), |value| quantity(key, value));
        if let Some(interval) = interval.filter(|interval| bar.is_some() && interval.low < interval.high) {
            let _ = write!(measured, " <span class=\"spread\">{}</span>", between(key, interval));
        }
        let _ = write!(
            page,
            "<tr><th scope=\"row\" title=\"{}\">{}</th><td>{measured}</td>",
            escape(key),
            escape(&words(key))
        );
        if has_goals {
            let goal = bar.as_ref().map_or(String::new(), |bar| {
                format!("{} {} {}", bar.words(), quantity(key, bar.limit()), verdict(*value, *interval, *bar))
            });
            let _ = write!(page, "<td>{goal}</td>");
        }
        page.push_str("</tr>\n");
    }
    table::end(page);
}

/// The ends of an interval, in words.
pub(super) fn between(key: &str, interval: Interval) -> String {
    format!("{} to {}", quantity(key, interval.low), quantity(key, interval.high))
}

/// Whether a number reaches its goal, as a word in its colour.
pub(super) fn verdict(value: Option<f64>, interval: Option<Interval>, bar: Bar) -> &'static str {
    match value.map(|_| bar.verdict(interval)) {
        Some(Verdict::Reached) => "<span class=\"verdict reached\">reached</span>",
        Some(Verdict::Missed) => "<span class=\"verdict missed\">not reached</span>",
        Some(Verdict::Open) if interval.is_none() => {
            "<span class=\"verdict\" title=\"too few rounds for an interval\">no verdict</span>"
        }
        Some(Verdict::Open) => {
            "<span class=\"verdict\" title=\"the goal is within the interval\">no verdict</span>"
        }
        None => "<span class=\"verdict\">no verdict</span>",
    }
}

fn matrix(page: &mut String, kind: &str, entries: &[&Entry<'_>], level: u8) {
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
    let title = if kind == "share" { "share of the ceiling".to_owned() } else { words(kind) };
    let _ = writeln!(
        page,
        "<h{level}>{}<span class=\"goal\"> over operations in flight{goal}</span></h{level}>",
        escape(&title)
    );
    let heads: Vec<String> = depths.iter().map(u32::to_string).collect();
    // Where small numbers are good, the largest one decides.
    let is_most = bars.first().is_some_and(|bar| !matches!(bar, Bar::AtLeast(_)));
    let extreme = if is_most { "most" } else { "least" };
    let heads = std::iter::once("").chain(heads.iter().map(String::as_str)).chain([extreme]);
    table::begin(page, &format!("{title} over operations in flight"), "matrix", heads);
    for row in rows {
        let of_row: Vec<_> =
            entries.iter().filter(|entry| entry.place().is_some_and(|(_, of, _)| of == row)).collect();
        let name = if row.is_empty() { "measured".to_owned() } else { words(row) };
        let _ = write!(page, "<tr><th scope=\"row\">{}</th>", escape(&name));
        for wanted in &depths {
            let entry = of_row.iter().find(|entry| entry.place().is_some_and(|(.., depth)| depth == *wanted));
            let Some(entry) = entry else {
                page.push_str("<td></td>");
                continue;
            };
            // A sign beside the colour, for those who do not see it.
            let (class, sign) = match entry.verdict() {
                Some(Verdict::Reached) => (" class=\"reached\"", " ✓"),
                Some(Verdict::Missed) => (" class=\"missed\"", " ✗"),
                Some(Verdict::Open) => ("", " ?"),
                None => ("", ""),
            };
            let title = entry.interval.map_or_else(
                || entry.key.to_owned(),
                |interval| format!("{}: {}", entry.key, between(entry.key, interval)),
            );
            let value = entry.value.map_or("n/a".to_owned(), |value| quantity(entry.key, value));
            let _ = write!(page, "<td title=\"{}\"{class}>{value}{sign}</td>", escape(&title));
        }
        // A row that was not measured as a whole has no extreme.
        let values: Option<Vec<(&str, f64)>> =
            of_row.iter().map(|entry| entry.value.map(|value| (entry.key, value))).collect();
        let extreme = values.and_then(|values| {
            let values = values.into_iter();
            if is_most { values.max_by(by_value) } else { values.min_by(by_value) }
        });
        let extreme = extreme.map_or("n/a".to_owned(), |(key, value)| quantity(key, value));
        let _ = writeln!(page, "<td>{extreme}</td></tr>");
    }
    table::end(page);
}

fn by_value((_, a): &(&str, f64), (_, b): &(&str, f64)) -> std::cmp::Ordering {
    a.total_cmp(b)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::{Unmeasurable, example};

    #[test]
    fn numbers_over_depths_are_one_matrix_with_one_goal() {
        let mut study = example::study();
        let goal = Bar::AtLeast(0.9);
        study.headline = vec![Headline::new("share_min", 0.88).with_bar(goal).within(0.865, 0.895)];
        for (row, values) in [("read", [0.95, 0.88]), ("write", [0.91, 0.92])] {
            for (depth, value) in [1, 128].into_iter().zip(values) {
                let headline = Headline::new(format!("share_{row}_qd{depth}"), value).with_bar(goal);
                study.headline.push(headline.within(value - 0.015, value + 0.015));
            }
        }
        study.unmeasured = vec![Unmeasurable { key: "share_mix_qd1".into(), bar: Some(goal) }];
        let mut page = String::new();
        write(&mut page, &study, 2);
        assert_eq!(
            page.matches("at least 0.90").count(),
            2,
            "one goal of the list, one of the matrix: {page}"
        );
        assert!(
            page.contains(
                "<th scope=\"row\">read</th><td title=\"share_read_qd1: 0.93 to 0.96\" class=\"reached\">0.95 ✓</td>"
            ),
            "{page}"
        );
        assert!(
            page.contains(
                "<td title=\"share_read_qd128: 0.86 to 0.90\" class=\"missed\">0.88 ✗</td><td>0.88</td></tr>"
            ),
            "{page}"
        );
        assert!(page.contains(">0.91 ?</td>") && page.contains("No verdict (?)"), "{page}");
        assert!(page.contains(
            "<tr><th scope=\"row\">mix</th><td title=\"share_mix_qd1\">n/a</td><td></td><td>n/a</td></tr>"
        ));
        assert!(
            page.contains(
                "<th scope=\"row\" title=\"share_min\">least share of the ceiling</th><td>0.88 <span class=\"spread\">0.86 to 0.90</span></td>"
            )
        );
    }
}
