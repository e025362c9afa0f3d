//! `nvlane study all`: every experiment that this machine can run, each with its report, and one page for all.

use std::path::Path;
use std::process::ExitCode;

use anyhow::Context;
use command_line::exit::{Ended, Failure, Kind};
use command_line::output;
use command_line::signals::EndOnSignal;
use study::bench::Bench;
use study::catalogue::{self, Entry};
use study::experiment::Error;
use study::headline::Verdict;
use study::page::{self, Absent, All};
use study::results::Study;

use super::{StudyArguments, failure, find, make, measure, write};

/// Runs the experiments one after the other. One that cannot run here, or fails, is named with the reason, and the others
/// follow.
pub(super) fn run(arguments: &StudyArguments) -> Ended {
    let entries = chosen(arguments)?;
    if !arguments.storage.is_empty() {
        return Err(Failure::usage("--storage: not with all, as only one experiment has it"));
    }
    if arguments.interface.is_some() {
        return Err(Failure::usage(
            "--interface: not with all, as only adq measures on a device of the machine",
        ));
    }
    let out = arguments.out("all");
    let mut bench = arguments.bench(&out)?;
    let _handlers = EndOnSignal::new(&bench.stops)?;
    arguments.far.connect(&mut bench)?;
    make(&out)?;
    output::check_file(Some(&out.join("report.html")))?;
    let mut all = All { environment: arguments.far.environment(&bench), ..All::default() };
    let (mut has_failed, mut lost) = (false, None);
    for (index, entry) in entries.iter().enumerate() {
        let name = entry.about.name;
        eprintln!("{} of {}: {name}", index + 1, entries.len());
        let out = out.join(name);
        // Targets may run in another directory.
        let scratch = std::path::absolute(&out).context("the directory of the report")?;
        match run_one(arguments, entry, &Bench { scratch, ..bench.clone() }, &out)? {
            Ok(study) => all.studies.push(study),
            Err(Error::Stopped) => break,
            Err(error) => {
                has_failed |= !matches!(error, Error::Lacking(_));
                all.absent.push(Absent { name, title: entry.about.title, reason: error.to_string() });
                lost = bench.server.as_ref().and_then(|server| server.loss());
            }
        }
        // Without the server the others have no targets.
        if bench.is_stopped() || lost.is_some() {
            break;
        }
    }
    let done = all.studies.len() + all.absent.len();
    let left = entries[done.min(entries.len())..].iter().map(|entry| Absent {
        name: entry.about.name,
        title: entry.about.title,
        reason: "stopped before it began".to_owned(),
    });
    all.absent.extend(left);
    let report = out.join("report.html");
    std::fs::write(&report, page::render_all(&all))
        .with_context(|| format!("cannot write {}", report.display()))?;
    output::write(format!("{}report: {}\n", outcome(&all), report.display()))?;
    if let Some(lost) = lost {
        return Err(failure(lost));
    }
    let is_missed = arguments.check && !(all.absent.is_empty() && all.studies.iter().all(Study::is_reached));
    if has_failed || is_missed {
        return Err(Failure::new(Kind::Failed, "not every experiment was measured and reached its bars"));
    }
    Ok(ExitCode::SUCCESS)
}

/// All experiments, or those that `--only` names.
fn chosen(arguments: &StudyArguments) -> Result<Vec<&'static Entry>, Failure> {
    if arguments.only.is_empty() {
        return Ok(catalogue::ALL.iter().collect());
    }
    arguments.only.iter().map(|name| find(name)).collect()
}

/// Runs one experiment and writes its report. The outer error ends everything.
fn run_one(
    arguments: &StudyArguments,
    entry: &Entry,
    bench: &Bench,
    out: &Path,
) -> Result<Result<Study, Error>, Failure> {
    make(out)?;
    let mut experiment = entry.make();
    let cells = arguments.usual_cells(&*experiment, bench)?;
    let measured = measure(arguments, entry, &mut *experiment, cells, bench);
    if let Ok(study) = &measured {
        write(study, out)?;
    }
    Ok(measured)
}

/// A line for each experiment: its first number, or why there is none.
fn outcome(all: &All) -> String {
    let mut text = String::new();
    for study in &all.studies {
        let reached =
            study.headline.iter().filter(|headline| headline.verdict() == Some(Verdict::Reached)).count();
        let with_bar = study.headline.iter().filter(|headline| headline.bar.is_some()).count();
        let unknown = study.unmeasured.iter().filter(|none| none.bar.is_some()).count() + study.open_count();
        let unknown = if unknown > 0 { format!(", {unknown} without a verdict") } else { String::new() };
        let lost = study.measured.unmeasured().count();
        let disturbed = if lost > 0 { format!(", {lost} cells disturbed") } else { String::new() };
        text +=
            &format!("{:<18}{reached} of {with_bar} bars reached{unknown}{disturbed}\n", study.about.name);
    }
    for absent in &all.absent {
        text += &format!("{:<18}not measured: {}\n", absent.name, absent.reason);
    }
    text
}
