//! `report.html`: a self-contained page, of one experiment or of all.

mod absent;
mod all;
mod answers;
mod cells;
mod numbers;
mod table;

pub use absent::Absent;
pub use all::All;

use maud::{Markup, PreEscaped, html};

use crate::experiment::{Claim, Lacking};
use crate::figure::Figure;
use crate::format::{bytes, micros, quantity};
use crate::results::Study;
use crate::svg::{self, COLOURS, PLOT};
use crate::two_machines::TargetMachine;
use crate::words::words;

const STYLE: &str = include_str!("page.css");

/// The page of one experiment.
pub fn render(study: &Study) -> String {
    let body = html! {
        (header(study))
        (claims(study))
        (figures(&study.figures, 2))
        (cells::chosen(study))
        (numbers::section(study, 2))
        (cells::section(study))
        (repeat(study))
    };
    page(&format!("nvlane study {}", study.about.name), &body)
}

/// The page of all experiments.
pub fn render_all(all: &All) -> String {
    all::render(all)
}

/// A page with its styles.
fn page(title: &str, body: &Markup) -> String {
    let page = html! {
        (PreEscaped("<!doctype html>"))
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                title { (title) }
                style { (PreEscaped([COLOURS, PLOT, STYLE].concat())) }
            }
            body { main { (body) } }
        }
    };
    page.into_string()
}

fn header(study: &Study) -> Markup {
    let about = &study.about;
    let mut facts = facts(study);
    facts.extend(cores(study));
    facts.push(rounds_in_words(study));
    facts.push(discarded(study));
    let is_moving = !study.settings.is_quick && !study.measured.is_stable;
    html! {
        header {
            p.eyebrow { "nvlane study " (about.name) }
            h1 { (about.title) }
            p.method { (about.method) }
            (chips(&facts, &["results.json", "results.csv"]))
            (small(study.only_here.iter().chain(&study.conditions)))
            (needs(&lacking(study)))
            @if let Some(machine) = &study.target_machine { (small(&machine.lines(&study.environment))) }
            @if let Some(disturbance) = study.disturbance() { p.warning { (disturbance) " " (CALM) } }
            (warnings(study))
            @if is_moving {
                p.warning { "The medians were not stable at the end: something else was at work on this machine." }
            }
        }
    }
}

/// Remarks in small type, one below the other.
fn small<'a>(lines: impl IntoIterator<Item = &'a String>) -> Markup {
    html! { @for line in lines { p.small { (line) } } }
}

/// Missing measurements, a line each.
fn lacking(study: &Study) -> Vec<String> {
    study.lacking.iter().map(Lacking::line).collect()
}

/// The missing measurements and their requirements.
fn needs(lines: &[String]) -> Markup {
    html! {
        @if !lines.is_empty() {
            p.small { "Not measured here:" }
            ul.needs { @for line in lines { li { (line) } } }
        }
    }
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
fn chips(facts: &[String], links: &[&str]) -> Markup {
    html! {
        ul.facts {
            @for fact in facts.iter().filter(|fact| !fact.is_empty()) { li { (fact) } }
            @for link in links { li { a href=(link) { (link) } } }
        }
    }
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
fn warnings(study: &Study) -> Markup {
    html! {
        @if study.is_emulated() { p.warning { (EMULATED) } }
        @if study.settings.host_core.is_none() {
            p.warning { "Host and target shared one core: speeds mean little." }
        }
        @if study.settings.is_quick {
            p.warning {
                "A quick look: short measurements and few rounds. Run it without --quick for numbers to quote."
            }
        }
    }
}

fn claims(study: &Study) -> Markup {
    let here = if study.target_machine.is_some() { "These two machines" } else { "This machine" };
    let claim = |Claim { source, says, number, ours }: &Claim| {
        let headline = study.headline.iter().find(|headline| headline.key == *ours);
        let (value, why) = match headline {
            Some(headline) => (quantity(&headline.key, headline.value), words(&headline.key) + " "),
            None if study.unmeasured.iter().any(|none| none.key == *ours) => {
                ("n/a".to_owned(), "not measured: the machine was disturbed".to_owned())
            }
            None => ("–".to_owned(), "not measured".to_owned()),
        };
        html! {
            div.claim {
                div.theirs { p.who { (source) } div.big { (number) } p.small { (says) } }
                div {
                    p.who { (here) }
                    div.big { (value) }
                    p.small { (why) (headline.map_or_else(Markup::default, numbers::verdict_of)) }
                }
            }
        }
    };
    html! {
        @if !study.about.claims.is_empty() {
            section.claims { @for one in study.about.claims { (claim(one)) } }
        }
    }
}

/// Figures whose titles are headings of this level.
fn figures(figures: &[Figure], level: u8) -> Markup {
    html! {
        @if !figures.is_empty() {
            section.figures { @for one in figures { (figure(one, level)) } }
        }
    }
}

fn figure(figure: &Figure, level: u8) -> Markup {
    let title = html! { (figure.title) };
    html! {
        figure { (heading(level, &title)) (svg::draw(&figure.plot)) figcaption { (figure.note) } }
    }
}

/// A heading of this level.
fn heading(level: u8, text: &Markup) -> Markup {
    html! {
        @match level { 2 => { h2 { (text) } }, 3 => { h3 { (text) } }, 4 => { h4 { (text) } }, _ => { h5 { (text) } } }
    }
}

fn repeat(study: &Study) -> Markup {
    html! {
        section {
            h2 { "Measure it yourself" }
            pre { (study.environment.command_line) }
            p.small {
                "The numbers of every round: " a href="results.json" { "results.json" } ", "
                a href="results.csv" { "results.csv" } "."
            }
            dl { @for (name, value) in environment(study) { dt { (name) } dd { (value) } } }
        }
    }
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
        const EMPTY: [&str; 2] = ["meta", "br"];
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
        // One element per line, for readability.
        insta::assert_snapshot!(format!("{before}<svg…</svg>{after}").replace("><", ">\n<"));
    }
}
