//! The numbers that answer a study's question: those over a direction and a depth as a matrix, all others in a list, each
//! with its goal once.

use maud::{Markup, html};

use super::heading;
use super::table::table;
use crate::format::{number, quantity};
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

/// The section; its headings begin at this level.
pub(super) fn section(study: &Study, level: u8) -> Markup {
    let entries = entries(study);
    let mut kinds: Vec<&str> = Vec::new();
    for (kind, ..) in entries.iter().filter_map(Entry::place) {
        if !kinds.contains(&kind) {
            kinds.push(kind);
        }
    }
    kinds.retain(|kind| entries.iter().filter(|entry| is_of(entry, kind)).count() >= MATRIX_MIN);
    let others: Vec<_> =
        entries.iter().filter(|entry| !kinds.iter().any(|kind| is_of(entry, kind))).collect();
    let of = |kind: &str| entries.iter().filter(|entry| is_of(entry, kind)).collect::<Vec<_>>();
    html! {
        @if !entries.is_empty() {
            section {
                (heading(level, &html! { "In numbers" }))
                @if entries.iter().any(|entry| entry.verdict() == Some(Verdict::Open)) {
                    p.small {
                        "No verdict (?): the goal is within the interval that the number lies in, with a certainty of \
                         99 %. More rounds make it smaller: --rounds COUNT."
                    }
                }
                @if entries.iter().any(|entry| entry.value.is_none()) {
                    p.small { "n/a: needs measurements that were discarded, because the machine was disturbed." }
                }
                @if !others.is_empty() { (list(&others)) }
                @for kind in kinds { (matrix(kind, &of(kind), level + 1)) }
            }
        }
    }
}

fn is_of(entry: &Entry<'_>, kind: &str) -> bool {
    entry.place().is_some_and(|(of, ..)| of == kind)
}

fn list(entries: &[&Entry<'_>]) -> Markup {
    let has_goals = entries.iter().any(|entry| entry.bar.is_some());
    let columns = ["number", "measured", "goal"].into_iter().take(if has_goals { 3 } else { 2 });
    let rows = html! {
        @for Entry { key, value, interval, bar } in entries {
            tr {
                th scope="row" title=(key) { (words(key)) }
                td {
                    (value.map_or("n/a".to_owned(), |value| quantity(key, value)))
                    @if let Some(interval) = interval.filter(|at| bar.is_some() && at.low < at.high) {
                        " " span.spread { (between(key, interval)) }
                    }
                }
                @if has_goals { td { @if let Some(bar) = bar { (goal(key, *value, *interval, *bar)) } } }
            }
        }
    };
    table("In numbers", "numbers", columns, &rows)
}

/// A goal, and whether a number reaches it.
pub(super) fn goal(key: &str, value: Option<f64>, interval: Option<Interval>, bar: Bar) -> Markup {
    html! { (bar.words()) " " (quantity(key, bar.limit())) " " (verdict(value, interval, bar)) }
}

/// Whether a number reaches its goal, if it has one.
pub(super) fn verdict_of(headline: &Headline) -> Markup {
    html! { @if let Some(bar) = headline.bar { (verdict(Some(headline.value), headline.interval, bar)) } }
}

/// The ends of an interval, in words.
pub(super) fn between(key: &str, interval: Interval) -> String {
    format!("{} to {}", quantity(key, interval.low), quantity(key, interval.high))
}

/// Whether a number reaches its goal, as a word in its colour.
fn verdict(value: Option<f64>, interval: Option<Interval>, bar: Bar) -> Markup {
    html! {
        @match value.map(|_| bar.verdict(interval)) {
            Some(Verdict::Reached) => { span.verdict.reached { "reached" } },
            Some(Verdict::Missed) => { span.verdict.missed { "not reached" } },
            Some(Verdict::Open) if interval.is_none() => {
                span.verdict title="too few rounds for an interval" { "no verdict" }
            },
            Some(Verdict::Open) => { span.verdict title="the goal is within the interval" { "no verdict" } },
            None => { span.verdict { "no verdict" } },
        }
    }
}

fn matrix(kind: &str, entries: &[&Entry<'_>], level: u8) -> Markup {
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
    // Where small numbers are good, the largest one decides.
    let is_most = bars.first().is_some_and(|bar| !matches!(bar, Bar::AtLeast(_)));
    let heads = depths.iter().map(u32::to_string);
    let extreme = if is_most { "most" } else { "least" }.to_owned();
    let heads = std::iter::once(String::new()).chain(heads).chain([extreme]);
    let row = |row: &str| {
        let of_row: Vec<_> =
            entries.iter().filter(|entry| entry.place().is_some_and(|(_, of, _)| of == row)).collect();
        let at = |depth| of_row.iter().find(|entry| entry.place().is_some_and(|(.., at)| at == depth));
        // A row that was not measured as a whole has no extreme.
        let values: Option<Vec<(&str, f64)>> =
            of_row.iter().map(|entry| entry.value.map(|value| (entry.key, value))).collect();
        let extreme = values.and_then(|values| {
            let values = values.into_iter();
            if is_most { values.max_by(by_value) } else { values.min_by(by_value) }
        });
        html! {
            tr {
                th scope="row" { @if row.is_empty() { "measured" } @else { (words(row)) } }
                @for depth in &depths {
                    @if let Some(entry) = at(*depth) { (matrix_value(entry)) } @else { td {} }
                }
                td { (extreme.map_or("n/a".to_owned(), |(key, value)| quantity(key, value))) }
            }
        }
    };
    let rows = html! { @for name in rows { (row(name)) } };
    html! {
        (heading(level, &html! { (title) span.goal { " over operations in flight" (goal) } }))
        (table(&format!("{title} over operations in flight"), "matrix", heads, &rows))
    }
}

fn matrix_value(entry: &Entry<'_>) -> Markup {
    // A sign beside the colour, for those who do not see it.
    let (class, sign) = match entry.verdict() {
        Some(Verdict::Reached) => (Some("reached"), " ✓"),
        Some(Verdict::Missed) => (Some("missed"), " ✗"),
        Some(Verdict::Open) => (None, " ?"),
        None => (None, ""),
    };
    let interval = entry.interval.map(|interval| format!(": {}", between(entry.key, interval)));
    let value = entry.value.map_or("n/a".to_owned(), |value| quantity(entry.key, value));
    html! { td title={ (entry.key) (interval.unwrap_or_default()) } class=[class] { (value) (sign) } }
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
        let page = section(&study, 2).into_string();
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
