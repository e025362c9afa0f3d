//! `report.html`: a self-contained page, of one experiment or of all.

mod absent;
mod all;
mod answers;
mod cells;
mod numbers;
mod table;

use std::fmt::Write;

pub use absent::Absent;
pub use all::All;

use load::environment::Environment;

use crate::experiment::{Claim, Lacking};
use crate::figure::Figure;
use crate::format::{bytes, escape, micros, quantity};
use crate::results::Study;
use crate::svg::{self, COLOURS, PLOT};
use crate::two_machines::TargetMachine;
use crate::words::words;

const STYLE: &str = include_str!("page.css");

/// The page of one experiment.
#[must_use]
pub fn render(study: &Study) -> String {
    let mut page = begin(&format!("nvlane study {}", study.about.name));
    header(&mut page, study);
    claims(&mut page, study);
    figures(&mut page, &study.figures, 2);
    cells::write_chosen(&mut page, study);
    numbers::write(&mut page, study, 2);
    cells::write(&mut page, study);
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
    let mut facts = facts(study);
    facts.extend(cores(study));
    facts.push(rounds_in_words(study));
    facts.push(discarded(study));
    chips(page, &facts, &["results.json", "results.csv"]);
    for conditions in study.only_here.iter().chain(&study.conditions) {
        let _ = writeln!(page, "<p class=\"small\">{}</p>", escape(conditions));
    }
    needs(page, &lacking(study));
    if let Some(machine) = &study.target_machine {
        for line in machine.lines(&study.environment) {
            let _ = writeln!(page, "<p class=\"small\">{}</p>", escape(&line));
        }
    }
    if let Some(disturbance) = study.disturbance() {
        let _ = writeln!(page, "<p class=\"warning\">{} {CALM}</p>", escape(&disturbance));
    }
    warnings(page, study);
    if !study.settings.is_quick && !study.measured.is_stable {
        page.push_str(
            "<p class=\"warning\">The medians were not stable at the end: something else was at work on this machine.</p>\n",
        );
    }
    page.push_str("</header>\n");
}

/// Missing measurements, a line each.
fn lacking(study: &Study) -> Vec<String> {
    study.lacking.iter().map(Lacking::line).collect()
}

/// Writes the missing measurements, and their requirements.
fn needs(page: &mut String, lines: &[String]) {
    if lines.is_empty() {
        return;
    }
    page.push_str("<p class=\"small\">Not measured here:</p>\n<ul class=\"needs\">");
    for line in lines {
        let _ = write!(page, "<li>{}</li>", escape(line));
    }
    page.push_str("</ul>\n");
}

/// The remark on figures from an emulated machine.
pub(crate) const EMULATED: &str =
    "This machine is emulated: its figures show that everything works, and compare with no other machine's.";

/// The advice for disturbed measurements.
pub(crate) const CALM: &str = "End other load, or allow more rounds with --extra SECONDS.";

/// Facts that decide whether numbers can be compared: date, machine and method.
fn facts(study: &Study) -> Vec<String> {
    let environment = &study.environment;
    let mut facts = vec![minute(&environment.date)];
    facts.extend(environment.cpu_model.clone());
    facts.push(format!("{}, {} cores", environment.machine(), environment.core_count));
    facts.extend(environment.kernel.as_ref().map(|kernel| format!("Linux {kernel}")));
    if study.target_machine.is_some() {
        facts.push("between two machines".to_owned());
    }
    facts.push((if study.settings.is_quick { "quick" } else { "full" }).to_owned());
    facts
}

/// A date without its seconds: `2026-05-17 09:41 UTC` of `2026-05-17T09:41:08Z`.
fn minute(date: &str) -> String {
    match date.strip_suffix('Z').and_then(|date| date.rsplit_once(':')) {
        Some((minute, _)) => format!("{} UTC", minute.replace('T', " ")),
        None => date.to_owned(),
    }
}

/// The core of each side.
fn cores(study: &Study) -> Option<String> {
    let settings = &study.settings;
    let (host, target) = settings.host_core.zip(settings.target_core)?;
    study.target_machine.is_none().then(|| format!("host on core {host}, target on core {target}"))
}

/// The number of discarded measurements, in words.
fn discarded(study: &Study) -> String {
    let cells = &study.measured.cells;
    let all: usize = cells.iter().map(|cell| cell.rounds.len()).sum();
    match cells.iter().map(|cell| cell.rejected.len()).sum::<usize>() {
        0 => "no measurement discarded".to_owned(),
        count => format!("{count} of {all} measurements discarded"),
    }
}

/// Facts in a row, and links to the data.
fn chips(page: &mut String, facts: &[String], links: &[&str]) {
    page.push_str("<ul class=\"facts\">");
    for fact in facts.iter().filter(|fact| !fact.is_empty()) {
        let _ = write!(page, "<li>{}</li>", escape(fact));
    }
    for link in links {
        let _ = write!(page, "<li><a href=\"{link}\">{link}</a></li>");
    }
    page.push_str("</ul>\n");
}

/// The number of rounds, and whether the medians are stable.
pub(crate) fn rounds_in_words(study: &Study) -> String {
    let count = study.measured.round_count();
    let rounds = if count == 1 { "round" } else { "rounds" };
    let stable = match (count, study.measured.is_stable) {
        _ if study.measured.unmeasured().count() == study.measured.cells.len() => "no cell measured",
        _ if study.measured.unmeasured().next().is_some() => "not all cells measured",
        (..3, _) => "too few to judge stability",
        (_, true) => "medians stable",
        (_, false) => "medians still moving",
    };
    format!("{count} {rounds}, {stable}")
}

/// Warnings at the top of the page: limits of the numbers.
fn warnings(page: &mut String, study: &Study) {
    let mut warnings = Vec::new();
    if study.is_emulated() {
        warnings.push(EMULATED);
    }
    if study.settings.host_core.is_none() {
        warnings.push("Host and target shared one core: speeds mean little.");
    }
    if study.settings.is_quick {
        warnings.push(
            "A quick look: short measurements and few rounds. Run it without --quick for numbers to quote.",
        );
    }
    for warning in warnings {
        let _ = writeln!(page, "<p class=\"warning\">{warning}</p>");
    }
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
                    headline.bar.map_or("", |bar| numbers::verdict(
                        Some(headline.value),
                        headline.interval,
                        bar
                    ))
                );
            }
            None if study.unmeasured.iter().any(|none| none.key == *ours) => {
                page.push_str("<div class=\"big\">n/a</div><p class=\"small\">not measured: the machine was disturbed</p>");
            }
            None => page.push_str("<div class=\"big\">–</div><p class=\"small\">not measured</p>"),
        }
        page.push_str("</div></div>\n");
    }
    page.push_str("</section>\n");
}

/// Figures whose titles are headings of this level.
fn figures(page: &mut String, figures: &[Figure], level: u8) {
    if figures.is_empty() {
        return;
    }
    page.push_str("<section class=\"figures\">\n");
    for Figure { title, note, plot } in figures {
        let _ = writeln!(
            page,
            "<figure>\n<h{level}>{}</h{level}>\n{}\n<figcaption>{}</figcaption>\n</figure>",
            escape(title),
            svg::draw(plot),
            escape(note)
        );
    }
    page.push_str("</section>\n");
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
    let cores = cores(study).or_else(|| study.target_machine.is_none().then(|| "shared".to_owned()));
    let method = format!(
        "{}; {} s of warm-up and {} s of load for each measurement, cells in turn, every second round backwards",
        rounds_in_words(study),
        settings.warm_up_s,
        settings.measure_s
    );
    let jitter = environment.jitter.map(|jitter| {
        format!(
            "an idle loop lost {:.2} % of its time, at most {} at once",
            jitter.lost_percent,
            micros(crate::load_values::us(jitter.gap_ns_max))
        )
    });
    #[allow(clippy::cast_precision_loss)] // Memory of a machine.
    let memory = environment.memory_bytes.map(|memory| bytes(memory as f64));
    let commit = environment.commit.as_ref().map_or(String::new(), |commit| format!(" ({commit})"));
    let rows = [
        ("measured", Some(method)),
        ("cores", cores),
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
    use load::disturbance::Disturbance;

    use super::*;
    use crate::headline::Bar;
    use crate::measured::CellRounds;
    use crate::results::{Unmeasurable, example};

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

    /// Checks the needs of a screen reader and a keyboard: headings without gaps in their levels, tables whose cells
    /// have headers and that can be scrolled by keyboard, drawings with a text.
    pub(super) fn assert_accessible(page: &str) {
        assert!(page.contains("<html lang=\"en\">") && page.contains("<title>nvlane study "));
        let levels =
            page.split("<h").skip(1).filter_map(|rest| rest.get(..2)?.strip_suffix('>')?.parse().ok());
        let levels: Vec<u8> = levels.collect();
        assert_eq!(levels.iter().filter(|level| **level == 1).count(), 1);
        assert!(levels.windows(2).all(|pair| pair[1] <= pair[0] + 1), "{levels:?}");
        for table in page.split("<table").skip(1) {
            let table = table.split("</table>").next().unwrap();
            let (head, body) = table.split_once("</thead>").unwrap();
            assert!(head.contains("<th scope=\"col\">"), "{head}");
            assert_eq!(body.matches("<tr").count(), body.matches("<th scope=\"row\"").count());
        }
        assert_eq!(page.matches("<table").count(), page.matches("role=\"region\" aria-label=\"").count());
        assert_eq!(page.matches("<table").count(), page.matches("tabindex=\"0\"").count());
        assert_eq!(page.matches("<svg").count(), page.matches("role=\"img\" aria-label=\"").count());
    }

    #[test]
    fn the_page_can_be_heard_and_used_by_keyboard() {
        assert_accessible(&render(&example::study()));
        assert_accessible(&render(&disturbed()));
    }

    /// The example on a machine that was disturbed while its first cell was measured.
    fn disturbed() -> Study {
        let mut study = example::study();
        let cell = study.measured.cells[0].cell.clone();
        let mut cell = CellRounds::new(cell);
        cell.push([("iops", 0.0)].into(), Disturbance::default());
        study.measured.cells[0] = cell;
        study.figures[0].plot.series[0].points.clear();
        study.unmeasured = vec![Unmeasurable { key: "gain".into(), bar: Some(Bar::AtLeast(4.0)) }];
        study.headline.retain(|headline| headline.key != "gain");
        study
    }

    #[test]
    fn what_was_disturbed_has_a_reason_and_no_number() {
        let page = render(&disturbed());
        assert!(page.contains("<li>1 of 4 measurements discarded</li>"), "{page}");
        assert!(page.contains("The machine was disturbed: 1 of 4 measurements were discarded, 1 of 2 cells"));
        assert!(page.contains("<div class=\"big\">n/a</div>"));
        assert!(
            page.contains("<td>n/a</td><td>at least 4.00× <span class=\"verdict\">no verdict</span></td>")
        );
        let row = "<tr class=\"discarded\"><th scope=\"row\">one<span class=\"reason\">discarded: no operation finished</span></th><td>0</td><td></td></tr>";
        assert!(page.contains(row), "{page}");
        assert!(page.contains(">no data</text>"));
    }

    #[test]
    fn both_machines_are_named() {
        let machine = Some(crate::two_machines::example::machine());
        let page = render(&Study { target_machine: machine, ..example::study() });
        assert_eq!(unclosed(&page), [] as [&str; 0]);
        assert!(
            page.contains("Measured between two machines.") && page.contains("<li>between two machines</li>")
        );
        assert!(page.contains("target: 192.0.2.2, Linux 6.1.9, A &lt;Processor&gt;, cores 2,3"), "{page}");
    }

    #[test]
    fn a_date_is_for_people() {
        assert_eq!(minute("2026-05-17T09:41:08Z"), "2026-05-17 09:41 UTC");
        assert_eq!(minute("today"), "today");
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
