//! `report.html`: a self-contained page.

use std::fmt::Write;

use load::environment::Environment;

use crate::experiment::Claim;
use crate::figure::Figure;
use crate::format::{bytes, escape, number, quantity, value_name};
use crate::headline::Headline;
use crate::measured::CellRounds;
use crate::results::Study;
use crate::svg::{self, COLOURS, PLOT};

const STYLE: &str = include_str!("page.css");

/// The whole page.
#[must_use]
pub fn render(study: &Study) -> String {
    let mut page = String::with_capacity(64 << 10);
    let _ = write!(
        page,
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>nvlane study {}</title>\n<style>\n{COLOURS}{PLOT}{STYLE}</style>\n</head>\n<body>\n<main>\n",
        study.about.name
    );
    header(&mut page, study);
    claims(&mut page, study);
    bars(&mut page, study);
    figures(&mut page, &study.figures);
    cells(&mut page, study);
    headline(&mut page, study);
    repeat(&mut page, study);
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
    let environment = &study.environment;
    let mut facts = vec![environment.date.clone()];
    facts.extend(environment.cpu_model.clone());
    facts.extend(environment.kernel.as_ref().map(|kernel| format!("Linux {kernel}")));
    facts.push(rounds_in_words(study));
    page.push_str("<div class=\"facts\">");
    for fact in facts.iter().filter(|fact| !fact.is_empty()) {
        let _ = write!(page, "<span>{}</span>", escape(fact));
    }
    page.push_str("</div>\n");
    if let Some(conditions) = &study.conditions {
        let _ = writeln!(page, "<p class=\"small\">{}</p>", escape(conditions));
    }
    if let Some(disturbance) = study.disturbance() {
        let _ = writeln!(page, "<p class=\"warning\">{}</p>", escape(&disturbance));
    }
    for warning in warnings(study) {
        let _ = writeln!(page, "<p class=\"warning\">{warning}</p>");
    }
    page.push_str("</header>\n");
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
             <p class=\"small\">{}</p></div><div><p class=\"who\">This machine</p>",
            escape(source),
            escape(theirs),
            escape(says)
        );
        match study.headline.iter().find(|headline| headline.key == *ours) {
            Some(headline) => {
                let _ = write!(
                    page,
                    "<div class=\"big\">{}</div><p class=\"small\"><code>{}</code> {}</p>",
                    quantity(&headline.key, headline.value),
                    escape(&headline.key),
                    verdict(headline)
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

/// The bar of a number, and whether it is reached; empty without a bar.
fn verdict(headline: &Headline) -> String {
    let (Some(bar), Some(is_reached)) = (headline.bar, headline.is_reached()) else {
        return String::new();
    };
    let (class, word) = if is_reached { ("reached", "reached") } else { ("missed", "not reached") };
    format!(
        "<span class=\"goal\">{} {}</span> <span class=\"verdict {class}\">{word}</span>",
        bar.words(),
        quantity(&headline.key, bar.limit())
    )
}

fn bars(page: &mut String, study: &Study) {
    let with_bar: Vec<_> = study.headline.iter().filter(|headline| headline.bar.is_some()).collect();
    let without: Vec<_> = study.unmeasured.iter().filter_map(|none| Some((&none.key, none.bar?))).collect();
    if with_bar.is_empty() && without.is_empty() {
        return;
    }
    page.push_str("<section>\n<h2>Bars</h2>\n<div class=\"tiles\">\n");
    for headline in with_bar {
        let class = if headline.is_reached() == Some(true) { "reached" } else { "missed" };
        let _ = writeln!(
            page,
            "<div class=\"tile {class}\"><b>{}</b><code>{}</code><br>{}</div>",
            quantity(&headline.key, headline.value),
            escape(&headline.key),
            verdict(headline)
        );
    }
    for (key, bar) in without {
        let _ = writeln!(
            page,
            "<div class=\"tile\"><b>n/a</b><code>{}</code><br><span class=\"goal\">{} {}</span> no verdict: the machine \
             was disturbed</div>",
            escape(key),
            bar.words(),
            quantity(key, bar.limit())
        );
    }
    page.push_str("</div>\n</section>\n");
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
    page.push_str("<section>\n<h2>Every cell</h2>\n<p class=\"small\">Median, and how far the quartiles lie apart.</p>\n");
    page.push_str("<div class=\"scroll\"><table>\n<thead><tr><th></th>");
    for name in &columns {
        let _ = write!(page, "<th>{}</th>", escape(&value_name(name)));
    }
    page.push_str("</tr></thead>\n<tbody>\n");
    for cell in cells {
        let _ = write!(page, "<tr><td>{}</td>", escape(&cell.cell.name));
        for name in &columns {
            table_cell(page, cell, name);
        }
        page.push_str("</tr>\n");
    }
    page.push_str("</tbody>\n</table></div>\n</section>\n");
}

fn table_cell(page: &mut String, cell: &CellRounds, name: &str) {
    let Some(spread) = cell.spread(name) else {
        if let Some(reason) = cell.unmeasured() {
            let _ = write!(page, "<td title=\"{}\">n/a</td>", escape(&reason.to_string()));
            return;
        }
        page.push_str("<td></td>");
        return;
    };
    let rounds: Vec<String> = cell.each(name).into_iter().map(number).collect();
    let _ = write!(
        page,
        "<td title=\"{}\">{} <span class=\"spread\">±{}</span></td>",
        rounds.join(", "),
        number(spread.median),
        number(spread.interquartile() / 2.0)
    );
}

fn headline(page: &mut String, study: &Study) {
    if study.headline.is_empty() && study.unmeasured.is_empty() {
        return;
    }
    page.push_str("<section>\n<h2>Headline</h2>\n<div class=\"scroll\"><table>\n<tbody>\n");
    for none in &study.unmeasured {
        let _ = writeln!(page, "<tr><td><code>{}</code></td><td>n/a</td><td></td></tr>", escape(&none.key));
    }
    for headline in &study.headline {
        let _ = writeln!(
            page,
            "<tr><td><code>{}</code></td><td>{}</td><td>{}</td></tr>",
            escape(&headline.key),
            quantity(&headline.key, headline.value),
            verdict(headline)
        );
    }
    page.push_str("</tbody>\n</table></div>\n</section>\n");
}

fn repeat(page: &mut String, study: &Study) {
    let Environment { command_line, .. } = &study.environment;
    let _ =
        writeln!(page, "<section>\n<h2>Measure it yourself</h2>\n<pre>{}</pre>\n<dl>", escape(command_line));
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
    let machine = if environment.virtual_machine { "virtual" } else { "bare" };
    let rows = [
        ("measured", Some(method)),
        ("cores", Some(cores)),
        ("nvlane", Some(format!("{}{commit}", environment.nvlane_version))),
        ("beside", Some(study.seen.join(", "))),
        ("kernel", environment.kernel.clone()),
        ("processor", environment.cpu_model.clone()),
        ("machine", Some(format!("{machine}, {} cores for us", environment.core_count))),
        ("memory", memory),
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
    fn unclosed(page: &str) -> Vec<&str> {
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
    fn claim_and_bars_stand_beside_our_numbers() {
        let page = render(&example::study());
        assert!(page.contains("1.62 times") && page.contains("many are &lt;faster&gt;"));
        assert!(page.contains("<div class=\"big\">12.0×</div>"));
        assert!(page.contains("at least 4.00×") && page.contains(">reached<"));
        assert!(page.contains("at least 0.90<") && page.contains(">not reached<"));
        assert!(page.contains("nvlane study example --quick"));
        assert!(page.contains("<svg") && page.contains("prefers-color-scheme"));
    }

    #[test]
    fn the_page_without_its_style_is_as_it_always_was() {
        let page = render(&example::study());
        let (_, body) = page.split_once("</style>").unwrap();
        let (before, picture) = body.split_once("<svg").unwrap();
        let (_, after) = picture.split_once("</svg>").unwrap();
        insta::assert_snapshot!(format!("{before}<svg…</svg>{after}"));
    }
}
