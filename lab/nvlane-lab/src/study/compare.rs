//! `nvlane study compare`: two results beside each other.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use command_line::exit::{Ended, Failure};
use command_line::output;
use study::compare::{Results, compare as compare_results, read};

/// Compares two results of one experiment, or those of all experiments that two directories have in common.
pub(super) fn compare(results: &[PathBuf]) -> Ended {
    let [before, after] = results else {
        return Err(Failure::usage(
            "compare takes two results: directories of reports, or files results.json",
        ));
    };
    let pairs = pairs(before, after)?;
    let mut text = Vec::new();
    for (before, after) in &pairs {
        let compared = compare_results(&open(before)?, &open(after)?);
        let compared = compared.map_err(|error| {
            Failure::usage(format!("{} and {}: {error}", before.display(), after.display()))
        })?;
        text.push(compared.to_text());
    }
    output::write(text.join("\n"))?;
    Ok(ExitCode::SUCCESS)
}

/// The files to compare.
fn pairs(before: &Path, after: &Path) -> Result<Vec<(PathBuf, PathBuf)>, Failure> {
    let of_one = |path: &Path| {
        let file = if path.is_dir() { path.join("results.json") } else { path.to_owned() };
        (!path.is_dir() || file.exists()).then_some(file)
    };
    if let (Some(before), Some(after)) = (of_one(before), of_one(after)) {
        return Ok(vec![(before, after)]);
    }
    let mut names: Vec<_> = std::fs::read_dir(after)
        .map_err(|error| Failure::usage(format!("cannot read {}: {error}", after.display())))?
        .filter_map(|entry| Some(entry.ok()?.file_name()))
        .filter(|name| {
            [before, after].iter().all(|directory| directory.join(name).join("results.json").exists())
        })
        .collect();
    names.sort();
    if names.is_empty() {
        return Err(Failure::usage(format!(
            "{} and {} have no results.json of the same experiment",
            before.display(),
            after.display()
        )));
    }
    let file = |directory: &Path, name| directory.join(name).join("results.json");
    Ok(names.iter().map(|name| (file(before, name), file(after, name))).collect())
}

fn open(path: &Path) -> Result<Results, Failure> {
    let text = std::fs::read_to_string(path)
        .map_err(|error| Failure::usage(format!("cannot read {}: {error}", path.display())))?;
    read(&text).map_err(|error| Failure::usage(format!("{}: {error}", path.display())))
}
