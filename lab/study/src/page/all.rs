//! The page of all experiments: three answers, then each talk's numbers beside this machine's, then each experiment.

use load::environment::Environment;
use maud::{Markup, html};

use super::absent::Absent;
use super::answers::{Answer, answers};
use super::table::table;
use super::{chips, figure, needs, numbers, small};
use crate::experiment::Claim;
use crate::format::quantity;
use crate::headline::Verdict;
use crate::results::Study;
use crate::words::words;

/// Figures of an experiment that its section shows; its own page has all.
const FIGURES_MAX: usize = 2;

/// The results of all experiments.
#[derive(Clone, Debug, Default)]
pub struct All {
    /// Experiments that ran, in the order of the catalogue.
    pub studies: Vec<Study>,
    /// Experiments that did not.
    pub absent: Vec<Absent>,
    /// The machine.
    pub environment: Environment,
}

pub(super) fn render(all: &All) -> String {
    let is_between_two = all.studies.iter().any(|study| study.target_machine.is_some());
    let body = html! {
        header {
            p.eyebrow { "nvlane study all" }
            h1 { "NVMe over TCP " @if is_between_two { "between two machines" } @else { "on this machine" } }
            @if let Some(study) = all.studies.first() { (header(all, study)) }
        }
        section.answers {
            @for one in &answers(&all.studies, &all.absent) { (answer(one, &all.studies)) }
        }
        (talks(&all.studies))
        section {
            h2 { "Every experiment" }
            @for study in &all.studies { (experiment(study)) }
        }
        @if !all.absent.is_empty() {
            section {
                h2 { "Not measured" }
                dl { @for Absent { name, title, reason } in &all.absent { dt { (name) } dd { (title) " " (reason) } } }
            }
        }
        section {
            h2 { "Measure it yourself" }
            pre { (all.environment.command_line) }
        }
    };
    super::page("nvlane study all", &body)
}

/// The machine, and the limits of the numbers of all experiments.
fn header(all: &All, study: &Study) -> Markup {
    let mut facts = super::facts(study);
    facts.extend(super::cores(study));
    facts.push(format!("{} experiments, {} not measured", all.studies.len(), all.absent.len()));
    let disturbed = all.studies.iter().filter(|study| study.disturbance().is_some());
    let disturbed: Vec<&str> = disturbed.map(|study| study.about.name).collect();
    html! {
        (chips(&facts, &[]))
        @if let Some(machine) = &study.target_machine {
            (small(&[machine.host_in_words(&study.environment), machine.target_in_words()]))
        }
        @if !disturbed.is_empty() {
            p.warning {
                "The machine was disturbed during " (disturbed.join(", ")) ": measurements were discarded, and what \
                 depends on cells without any is n/a, without a verdict. " (super::CALM)
            }
        }
        (super::warnings(study))
    }
}

fn answer(answer: &Answer, studies: &[Study]) -> Markup {
    let has_report = |source: &&&str| studies.iter().any(|study| study.about.name == **source);
    let (sentence, certainty) = match &answer.sentence {
        Some((sentence, certainty)) => (sentence.as_str(), certainty.as_str()),
        None => ("Not answered: what it needs was not measured, or the machine was disturbed.", ""),
    };
    html! {
        article {
            h2 { (answer.question) }
            p { (sentence) }
            p.small {
                (certainty)
                @for source in answer.sources.iter().filter(has_report) {
                    " " a href={ (source) "/report.html" } { (source) }
                }
            }
            (needs(&answer.needs))
            @if let Some(one) = &answer.figure { (figure(one, 3)) }
        }
    }
}

/// The numbers of each talk, beside this machine's.
fn talks(studies: &[Study]) -> Markup {
    let claims =
        || studies.iter().flat_map(|study| study.about.claims.iter().map(move |claim| (study, claim)));
    let mut sources: Vec<&str> = Vec::new();
    for (_, claim) in claims() {
        if !sources.contains(&claim.source) {
            sources.push(claim.source);
        }
    }
    let rows = |source: &str| {
        html! {
            @for (study, claim) in claims().filter(|(_, claim)| claim.source == source) { (talk(study, claim)) }
        }
    };
    html! {
        @if !sources.is_empty() {
            section {
                h2 { "What the talks report, and this machine" }
                @for source in sources {
                    h3 { (source) }
                    (table(source, "talk", ["claim", "there", "here", "goal", "experiment"], &rows(source)))
                }
            }
        }
    }
}

fn talk(study: &Study, Claim { says, number, ours, .. }: &Claim) -> Markup {
    let headline = study.headline.iter().find(|headline| headline.key == *ours);
    let unknown = study.unmeasured.iter().find(|none| none.key == *ours);
    let value = headline.map(|headline| headline.value);
    let (here, what) = match (value, unknown) {
        (Some(value), _) => (quantity(ours, value), words(ours)),
        (None, Some(_)) => ("n/a".to_owned(), "the machine was disturbed".to_owned()),
        (None, None) => ("n/a".to_owned(), "not measured".to_owned()),
    };
    let bar = headline.and_then(|headline| headline.bar).or_else(|| unknown?.bar);
    let interval = headline.and_then(|headline| headline.interval);
    let name = study.about.name;
    html! {
        tr {
            th scope="row" { (says) }
            td data-label="there" { (number) }
            td data-label="here" { (here) br; span.small { (what) } }
            td data-label="goal" { @if let Some(bar) = bar { (numbers::goal(ours, value, interval, bar)) } }
            td data-label="experiment" { a href={ (name) "/report.html" } { (name) } }
        }
    }
}

fn experiment(study: &Study) -> Markup {
    let name = study.about.name;
    html! {
        details id=(name) {
            summary { h3 { (study.about.title) } " " span.small { (name) } (goals(study)) }
            p.method { (study.about.method) }
            (small(study.only_here.iter().chain(&study.conditions)))
            (needs(&super::lacking(study)))
            @if let Some(disturbance) = study.disturbance() { p.warning { (disturbance) } }
            (super::figures(&study.figures[..study.figures.len().min(FIGURES_MAX)], 4))
            (numbers::section(study, 4))
            p.small {
                a href={ (name) "/report.html" } { "All figures and cells" } ", "
                a href={ (name) "/results.json" } { "results.json" } ", "
                a href={ (name) "/results.csv" } { "results.csv" }
            }
        }
    }
}

/// The numbers of an experiment's goals that were reached, missed and not judged.
fn goals(study: &Study) -> Markup {
    let count =
        |verdict| study.headline.iter().filter(|headline| headline.verdict() == Some(verdict)).count();
    let unknown = study.unmeasured.iter().filter(|none| none.bar.is_some()).count();
    let counts = [
        ("verdict reached", "reached", count(Verdict::Reached)),
        ("verdict missed", "not reached", count(Verdict::Missed)),
        ("verdict", "no verdict", unknown + count(Verdict::Open)),
    ];
    html! {
        @for (class, words, count) in counts.into_iter().filter(|(.., count)| *count > 0) {
            " " span class=(class) { (count) " " (words) }
        }
    }
}

#[cfg(test)]
mod tests {
    use load::disturbance::Disturbance;

    use super::*;
    use crate::catalogue;
    use crate::distribution::Distribution;
    use crate::experiment::Lacking;
    use crate::measured::of_rounds;
    use crate::results::{Settings, example};
    use crate::svg;

    /// Every experiment, as if each of its cells had been measured in three rounds.
    fn simulated() -> All {
        let settings = Settings { is_quick: true, ..example::study().settings };
        let study = |entry: &catalogue::Entry| {
            let experiment = entry.make();
            let columns: Vec<_> = entry.about.columns().chain([entry.about.judged_by]).collect();
            let cells = experiment.cells().into_iter().enumerate().map(|(index, cell)| {
                let value = |round: f64, column: usize| 10.0 + (index * 7 + column) as f64 + round;
                let round = |round: f64| {
                    columns
                        .iter()
                        .enumerate()
                        .map(|(column, name)| (*name, value(round, column)))
                        .collect::<Vec<_>>()
                };
                (cell, vec![round(0.0), round(0.3), round(0.6)])
            });
            let mut measured = of_rounds(cells.collect());
            for cell in &mut measured.cells {
                // As wide as a distribution can be.
                let bins = (0..1000).map(|index| (10_f64.powf(f64::from(index) / 140.0), 10));
                cell.distributions = vec![Distribution::of(bins).unwrap(); 3];
            }
            Study::new(&entry.about, &*experiment, measured, Environment::default(), None, settings)
        };
        let absent =
            Absent { name: "kv-peers", title: "Faster than whom?", reason: "no memcached <1.6.40>".into() };
        All {
            studies: catalogue::ALL.iter().map(study).collect(),
            absent: vec![absent],
            environment: Environment {
                command_line: "nvlane study all --quick".into(),
                ..Environment::default()
            },
        }
    }

    #[test]
    fn all_experiments_fit_on_one_page_that_needs_no_network() {
        let page = render(&simulated());
        assert_eq!(super::super::tests::unclosed(&page), [] as [&str; 0]);
        for outside in ["http:", "https:", "<script", "<link", "url(", "@import", "src=", "NaN", "inf "] {
            assert!(!page.contains(outside), "{outside}");
        }
        assert!(page.len() < 2 << 20, "{} bytes", page.len());
        for entry in catalogue::ALL {
            assert!(page.contains(&format!("<details id=\"{}\">", entry.about.name)));
        }
        assert!(page.contains("no memcached &lt;1.6.40&gt;"));
        super::super::tests::assert_accessible(&page);
    }

    /// The targets of a page's links.
    fn links(page: &str) -> Vec<&str> {
        page.split("href=\"").skip(1).filter_map(|rest| rest.split('"').next()).collect()
    }

    #[test]
    fn every_link_leads_somewhere() {
        let mut all = simulated();
        let mut check = |kept: &[&str]| {
            all.studies.retain(|study| kept.contains(&study.about.name));
            for link in links(&render(&all)) {
                let (name, file) = link.split_once('/').expect("a directory");
                assert!(all.studies.iter().any(|study| study.about.name == name), "{link}");
                assert!(["report.html", "results.json", "results.csv"].contains(&file), "{link}");
            }
        };
        check(&catalogue::ALL.iter().map(|entry| entry.about.name).collect::<Vec<_>>());
        check(&["stacks", "ablation", "idle"]);
        check(&["idle"]);
        check(&[]);
        let page = super::super::render(&example::study());
        assert!(links(&page).iter().all(|link| ["results.json", "results.csv"].contains(link)), "{page}");
    }

    #[test]
    fn a_name_has_one_colour_in_all_figures_of_a_report() {
        for mut study in simulated().studies {
            let entry = catalogue::find(study.about.name).unwrap();
            // Also where a part of the cells was discarded.
            for cell in study.measured.cells.iter_mut().step_by(3) {
                let rounds = std::mem::take(&mut cell.rounds);
                cell.distributions.clear();
                for _ in rounds {
                    cell.push([("iops", 0.0)].into(), Disturbance::default());
                }
            }
            let Study { about, measured, settings, .. } = study.clone();
            let disturbed =
                Study::new(&about, &*entry.make(), measured, Environment::default(), None, settings);
            for figures in [study.figures, disturbed.figures] {
                let mut colours = std::collections::BTreeMap::new();
                for figure in figures.iter().filter(|figure| !figure.plot.is_stacked) {
                    let of_plot = svg::colours(&figure.plot);
                    let different: std::collections::BTreeSet<_> = of_plot
                        .iter()
                        .map(|(_, colour)| colour)
                        .filter(|colour| *colour != "c-reference")
                        .collect();
                    let with_colour = of_plot.iter().filter(|(_, colour)| colour != "c-reference").count();
                    assert_eq!(different.len(), with_colour, "{}: {}", study.about.name, figure.title);
                    for (name, colour) in of_plot {
                        let first = colours.entry(name.clone()).or_insert_with(|| colour.clone());
                        assert_eq!(*first, colour, "{}: {name} in {}", study.about.name, figure.title);
                    }
                }
            }
        }
    }

    #[test]
    fn what_was_not_measured_says_what_it_needs() {
        let mut all = simulated();
        let stacks = all.studies.iter_mut().find(|study| study.about.name == "stacks").unwrap();
        let needs = "modprobe -a nvme-rdma; root; an RDMA <device>";
        stacks.lacking = vec![Lacking { name: "kernel, RDMA".into(), needs: needs.into() }];
        for cell in &mut stacks.measured.cells {
            if cell.cell.text("stack") == "kernel, RDMA" {
                cell.rounds.clear();
            }
        }
        let page = render(&all);
        let (first, _) = page.split_once("What the talks report").unwrap();
        assert!(
            first.contains(
                "<li>kernel, RDMA (needs modprobe -a nvme-rdma; root; an RDMA &lt;device&gt;)</li>"
            ),
            "{first}"
        );
        all.studies.retain(|study| study.about.name != "stacks");
        all.absent = vec![Absent { name: "stacks", title: "", reason: "no room for a file".into() }];
        assert!(render(&all).contains("<li>stacks: no room for a file</li>"));
    }

    #[test]
    fn the_page_of_each_experiment_has_a_bounded_size() {
        for study in simulated().studies {
            let page = super::super::render(&study);
            assert!(page.len() < 2 << 20, "{}: {} bytes", study.about.name, page.len());
            assert_eq!(super::super::tests::unclosed(&page), [] as [&str; 0], "{}", study.about.name);
            super::super::tests::assert_accessible(&page);
            let json = serde_json::to_string_pretty(&study.to_json()).unwrap();
            assert!(json.len() < 8 << 20, "{}: {} bytes", study.about.name, json.len());
        }
    }

    #[test]
    fn the_first_screen_answers_with_numbers_and_their_certainty() {
        let page = render(&simulated());
        let (first, _) = page.split_once("What the talks report").unwrap();
        assert_eq!(first.matches("<article>").count(), 3);
        assert!(!first.contains("Not answered"), "{first}");
        assert_eq!(first.matches("Quartiles: ").count(), 3);
        assert_eq!(first.matches("class=\"plot wide\"").count(), 3);
    }

    #[test]
    fn rdma_is_compared_where_it_was_measured() {
        let mut all = simulated();
        assert!(render(&all).contains("with the kernel over RDMA"));
        all.studies.retain(|study| study.about.name != "stacks");
        let page = render(&all);
        assert!(page.contains("no RDMA device was measured") && !page.contains("with the kernel over RDMA"));
    }

    #[test]
    fn what_was_not_measured_is_not_answered() {
        let page = render(&All { studies: vec![example::study()], ..All::default() });
        assert_eq!(page.matches("Not answered").count(), 3);
        assert!(page.contains("A talk, 2020") && page.contains("1.62 times") && page.contains("12.0×"));
    }
}
