//! `report.html`: a self-contained page, of one experiment or of all.

mod all;
mod answers;
mod numbers;

use std::fmt::Write;

pub use all::{Absent, All};

use load::environment::Environment;

use crate::experiment::Claim;
use crate::figure::Figure;
use crate::format::{bytes, escape, number, quantity, table_number, value_name, words};
use crate::measured::CellRounds;
use crate::results::Study;
use crate::svg::{self, COLOURS, PLOT};
use crate::two_machines::TargetMachine;

const STYLE: &str = include_str!("page.css");

/// The page of one experiment.
#[must_use]
pub fn render(study: &Study) -> String {
    let mut page = begin(&format!("nvlane study {}", study.about.name));
    header(&mut page, study);
    claims(&mut page, study);
    figures(&mut page, &study.figures);
    numbers::write(&mut page, study);
    cells(&mut page, study);
    repeat(&mut page, study);
    end(page)
}

/// The page of all experiments.
#[must_use]
pub fn render_all(all: &All) -> String {
    all::render(all)
}

fn begin(title: &str) -> String {
    let mut page = String::with_capacity(64 << 10);
    let _ = write!(
        page,
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>{}</title>\n<style>\n{COLOURS}{PLOT}{STYLE}</style>\n</head>\n<body>\n<main>\n",
        escape(title)
    );
    page
}

fn end(mut page: String) -> String {
    page.push_str("</main>\n</body>\n</html>\n");
    page
}

fn header(page: &mut String, study: &Study) {
    let about = &study.about;
    let _ = writeln!(
        page,
        "<header>\n<p class=\"eyebrow\">nvlane study {}</p>\n<h1>{}</h1>\n<p class=\"method\">{}</p>",
        about.name,
        escape(about.title),
        escape(about.method)
    );
    chips(page, study);
    if let Some(conditions) = &study.conditions {
        let _ = writeln!(page, "<p class=\"small\">{}</p>", escape(conditions));
    }
    if let Some(machine) = &study.target_machine {
        for line in machine.lines(&study.environment) {
            let _ = writeln!(page, "<p class=\"small\">{}</p>", escape(&line));
        }
    }
    if study.is_emulated() {
        let _ = writeln!(page, "<p class=\"warning\">{EMULATED}</p>");
    }
    if let Some(disturbance) = study.disturbance() {
        let _ = writeln!(page, "<p class=\"warning\">{}</p>", escape(&disturbance));
    }
    for warning in warnings(study) {
        let _ = writeln!(page, "<p class=\"warning\">{warning}</p>");
    }
    page.push_str("</header>\n");
}

/// What is said of figures from an emulated machine.
pub(crate) const EMULATED: &str =
    "This machine is emulated: its figures show that everything works, and compare with no other machine's.";

/// What decides whether numbers can be compared, in a row.
fn chips(page: &mut String, study: &Study) {
    let environment = &study.environment;
    let mut facts = vec![environment.date.clone()];
    facts.extend(environment.cpu_model.clone());
    facts.push(format!("{}, {} cores", environment.machine(), environment.core_count));
    facts.extend(environment.kernel.as_ref().map(|kernel| format!("Linux {kernel}")));
    if study.target_machine.is_some() {
        facts.push("between two machines".to_owned());
    }
    facts.push((if study.settings.is_quick { "quick" } else { "full" }).to_owned());
    facts.push(rounds_in_words(study));
    page.push_str("<div class=\"facts\">");
    for fact in facts.iter().filter(|fact| !fact.is_empty()) {
        let _ = write!(page, "<span>{}</span>", escape(fact));
    }
    page.push_str("</div>\n");
}

/// The number of rounds, and whether the medians are stable.
pub(crate) fn rounds_in_words(study: &Study) -> String {
    let count = study.measured.round_count();
    let rounds = if count == 1 { "round" } else { "rounds" };
    let stable = match (count, study.measured.is_stable) {
        _ if study.measured.unmeasured().next().is_some() => "not all cells measured",
        (..3, _) => "too few to judge stability",
        (_, true) => "medians stable",
        (_, false) => "medians still moving",
    };
    format!("{count} {rounds}, {stable}")
}

/// Warnings at the top of the page.
fn warnings(study: &Study) -> Vec<&'static str> {
    let mut warnings = Vec::new();
    if study.settings.host_core.is_none() {
        warnings.push("Host and target shared one core: speeds mean little.");
    }
    if study.settings.is_quick {
        warnings.push(
            "A quick look: short measurements and few rounds. Run it without --quick for numbers to quote.",
        );
    } else if !study.measured.is_stable {
        warnings.push("The medians were not stable at the end: something else was at work on this machine.");
    }
    warnings
}

fn claims(page: &mut String, study: &Study) {
    if study.about.claims.is_empty() {
        return;
    }
    page.push_str("<section class=\"claims\">\n");
    for Claim { source, says, number: theirs, ours } in study.about.claims {
        let _ = write!(
            page,
            "<div class=\"claim\"><div class=\"theirs\"><p class=\"who\">{}</p><div class=\"big\">{}</div>\
             <p class=\"small\">{}</p></div><div><p class=\"who\">{}</p>",
            escape(source),
            escape(theirs),
            escape(says),
            if study.target_machine.is_some() { "These two machines" } else { "This machine" }
        );
        match study.headline.iter().find(|headline| headline.key == *ours) {
            Some(headline) => {
                let _ = write!(
                    page,
                    "<div class=\"big\">{}</div><p class=\"small\">{} {}</p>",
                    quantity(&headline.key, headline.value),
                    escape(&words(&headline.key)),
                    headline.bar.map_or("", |bar| numbers::verdict(Some(headline.value), bar))
                );
            }
            None if study.unmeasured.iter().any(|none| none.key == *ours) => {
                page.push_str("<div class=\"big\">n/a</div><p class=\"small\">the machine was disturbed</p>");
            }
            None => page.push_str("<div class=\"big\">–</div><p class=\"small\">not measured</p>"),
        }
        page.push_str("</div></div>\n");
    }
    page.push_str("</section>\n");
}

fn figures(page: &mut String, figures: &[Figure]) {
    page.push_str("<section class=\"figures\">\n");
    for Figure { title, note, plot } in figures {
        let _ = writeln!(
            page,
            "<figure>\n<h2>{}</h2>\n{}\n<figcaption>{}</figcaption>\n</figure>",
            escape(title),
            svg::draw(plot),
            escape(note)
        );
    }
    page.push_str("</section>\n");
}

fn cells(page: &mut String, study: &Study) {
    let cells = &study.measured.cells;
    let is_known = |name: &&&str| cells.iter().any(|cell| cell.spread(name).is_some());
    let columns: Vec<&str> = study.about.columns.iter().filter(is_known).copied().collect();
    let bests: Vec<Option<f64>> = columns.iter().map(|name| best(cells, name)).collect();
    page.push_str("<section>\n<h2>Every cell</h2>\n<p class=\"small\">Median, and how far the quartiles lie apart. The best of each column is shaded.</p>\n");
    page.push_str("<div class=\"scroll\"><table class=\"cells\">\n<thead><tr><th></th>");
    for name in &columns {
        let _ = write!(page, "<th>{}</th>", escape(&value_name(name)));
    }
    page.push_str("</tr></thead>\n<tbody>\n");
    let mut group = None;
    for cell in cells {
        let name = &cell.cell.name;
        let group_of_cell = name.rsplit_once(' ').map(|(group, _)| group);
        let class = if group.is_some_and(|group| group != group_of_cell) { " class=\"group\"" } else { "" };
        group = Some(group_of_cell);
        let _ = write!(page, "<tr{class}><td>{}</td>", escape(name));
        for (name, best) in columns.iter().zip(&bests) {
            table_cell(page, cell, name, *best);
        }
        page.push_str("</tr>\n");
    }
    page.push_str("</tbody>\n</table></div>\n</section>\n");
}

/// The best median of a column, if it is known which direction is better.
fn best(cells: &[CellRounds], name: &str) -> Option<f64> {
    if name.starts_with("ceiling") || name.starts_with("offered") {
        return None;
    }
    let has = |word: &str| name.split('_').any(|part| part == word);
    let medians = cells.iter().filter_map(|cell| cell.median(name));
    if has("iops") || has("ops") || has("mib") && has("per") || name == "share" {
        medians.max_by(f64::total_cmp)
    } else if name.ends_with("_us") {
        medians.min_by(f64::total_cmp)
    } else {
        None
    }
}

fn table_cell(page: &mut String, cell: &CellRounds, name: &str, best: Option<f64>) {
    let Some(spread) = cell.spread(name) else {
        if let Some(reason) = cell.unmeasured() {
            let _ = write!(page, "<td title=\"{}\">n/a</td>", escape(&reason.to_string()));
            return;
        }
        page.push_str("<td></td>");
        return;
    };
    let rounds = cell.each(name).into_iter().map(|value| table_number(name, value));
    let rounds: Vec<String> = rounds.collect();
    let _ = write!(
        page,
        "<td title=\"{}\"{}>{} <span class=\"spread\">±{}</span></td>",
        rounds.join(", "),
        if best == Some(spread.median) { " class=\"best\"" } else { "" },
        table_number(name, spread.median),
        table_number(name, spread.interquartile() / 2.0)
    );
}

fn repeat(page: &mut String, study: &Study) {
    let Environment { command_line, .. } = &study.environment;
    let _ = writeln!(
        page,
        "<section>\n<h2>Measure it yourself</h2>\n<pre>{}</pre>\n<p class=\"small\">The numbers of every round: \
             <a href=\"results.json\">results.json</a>, <a href=\"results.csv\">results.csv</a>.</p>\n<dl>",
        escape(command_line)
    );
    for (name, value) in environment(study) {
        let _ = writeln!(page, "<dt>{name}</dt><dd>{}</dd>", escape(&value));
    }
    page.push_str("</dl>\n</section>\n");
}

/// Machine and settings of the run, by name.
fn environment(study: &Study) -> Vec<(&'static str, String)> {
    let environment = &study.environment;
    let settings = &study.settings;
    let cores = match (settings.host_core, settings.target_core) {
        (Some(host), Some(target)) => format!("host on core {host}, target on core {target}"),
        _ => "shared".to_owned(),
    };
    let method = format!(
        "{}; {} s of warm-up and {} s of load for each measurement, cells in turn, every second round backwards",
        rounds_in_words(study),
        settings.warm_up_s,
        settings.measure_s
    );
    let jitter = environment.jitter.map(|jitter| {
        format!(
            "an idle loop lost {:.2} % of its time, at most {} µs at once",
            jitter.lost_percent,
            number(crate::bench::us(jitter.gap_ns_max))
        )
    });
    #[allow(clippy::cast_precision_loss)] // Memory of a machine.
    let memory = environment.memory_bytes.map(|memory| bytes(memory as f64));
    let commit = environment.commit.as_ref().map_or(String::new(), |commit| format!(" ({commit})"));
    let rows = [
        ("measured", Some(method)),
        ("cores", Some(cores)),
        ("nvlane", Some(format!("{}{commit}", environment.nvlane_version))),
        ("beside", Some(study.seen.join(", "))),
        ("kernel", environment.kernel.clone()),
        ("processor", environment.cpu_model.clone()),
        ("machine", Some(format!("{}, {} cores for us", environment.machine(), environment.core_count))),
        ("memory", memory),
        ("target's machine", study.target_machine.as_ref().map(TargetMachine::target_in_words)),
        ("governor", environment.governor.clone()),
        ("mitigations", environment.mitigations.clone()),
        ("congestion control", environment.congestion_control.clone()),
        ("disturbance", jitter),
    ];
    rows.into_iter()
        .filter_map(|(name, value)| Some((name, value.filter(|value| !value.is_empty())?)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::example;

    /// The tags of a page that are not closed, in the order in which they were opened.
    pub(super) fn unclosed(page: &str) -> Vec<&str> {
        const EMPTY: [&str; 7] = ["meta", "br", "line", "circle", "rect", "polygon", "polyline"];
        let mut open = Vec::new();
        for tag in page.split('<').skip(1) {
            let name = tag.split([' ', '>', '/', '\n']).find(|name| !name.is_empty()).unwrap();
            match tag.strip_prefix('/') {
                Some(_) => assert_eq!(open.pop(), Some(name), "{tag}"),
                None if EMPTY.contains(&name) || name.starts_with('!') => {}
                None => open.push(name),
            }
        }
        open
    }

    #[test]
    fn the_page_is_whole_and_needs_nothing_else() {
        let page = render(&example::study());
        assert_eq!(unclosed(&page), [] as [&str; 0]);
        for outside in ["http:", "https:", "<script", "<link", "url(", "@import", "src="] {
            assert!(!page.contains(outside), "{outside}");
        }
    }

    #[test]
    fn both_machines_are_named() {
        let machine = Some(crate::two_machines::example::machine());
        let page = render(&Study { target_machine: machine, ..example::study() });
        assert_eq!(unclosed(&page), [] as [&str; 0]);
        assert!(
            page.contains("Measured between two machines.")
                && page.contains("<span>between two machines</span>")
        );
        assert!(page.contains("target: 192.0.2.2, Linux 6.1.9, A &lt;Processor&gt;, cores 2,3"), "{page}");
    }

    #[test]
    fn claim_and_bars_stand_beside_our_numbers() {
        let page = render(&example::study());
        assert!(page.contains("1.62 times") && page.contains("many are &lt;faster&gt;"));
        assert!(page.contains("<div class=\"big\">12.0×</div>"));
        assert!(page.contains("at least 4.00×") && page.contains(">reached<"));
        assert!(page.contains("at least 0.90 <") && page.contains(">not reached<"));
        assert!(page.contains("nvlane study example --quick"));
        assert!(page.contains("<svg") && page.contains("prefers-color-scheme"));
    }

    #[test]
    fn the_page_without_its_style_is_as_it_always_was() {
        let page = render(&example::study());
        let (_, body) = page.split_once("</style>").unwrap();
        let (before, _) = body.split_once("<svg").unwrap();
        let (_, after) = body.rsplit_once("</svg>").unwrap();
        insta::assert_snapshot!(format!("{before}<svg…</svg>{after}"));
    }
}
