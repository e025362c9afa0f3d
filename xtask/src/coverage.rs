//! Line coverage of the wire-facing crates by their tests.

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::command::{cargo, run as run_command, target_dir};
use crate::deps;

/// The crates, and the minimum share of their lines that tests must run, in percent.
const CRATES: [(&str, f64); 2] = [("nvlane-wire", 95.0), ("nvlane-proto", 95.0)];

/// Runs the tests of each crate with coverage counters, and prints the coverage.
pub(crate) fn run() -> Result<()> {
    deps::install_for_coverage()?;
    let mut lines = Vec::new();
    let mut missed = 0;
    for (package, share) in CRATES {
        let report = target_dir().join(format!("coverage-{package}.json"));
        let path = report.to_str().context("a path in UTF-8")?;
        let mut command =
            cargo(&["llvm-cov", "--locked", "--package", package, "--json", "--output-path", path]);
        run_command(&mut command)?;
        let text = std::fs::read_to_string(&report).with_context(|| report.display().to_string())?;
        let report: Value = serde_json::from_str(&text).context("the report")?;
        let directory = format!("crates/protocol/{}/src/", package.trim_start_matches("nvlane-"));
        let (mut covered, mut count) = (0, 0);
        for file in report["data"][0]["files"].as_array().context("files")? {
            let name = file["filename"].as_str().unwrap_or_default();
            let of_lines = |what| file["summary"]["lines"][what].as_u64().unwrap_or(0);
            if name.contains(&directory) {
                covered += of_lines("covered");
                count += of_lines("count");
                let percent = of_lines("covered") as f64 * 100.0 / of_lines("count").max(1) as f64;
                if percent < share {
                    lines.push(format!("       {percent:6.2} %  {name}"));
                }
            }
        }
        let percent = covered as f64 * 100.0 / f64::from(u32::try_from(count.max(1))?);
        let word = if percent >= share { "ok    " } else { "MISSED" };
        missed += usize::from(percent < share);
        lines.push(format!(
            "{word} {percent:6.2} %  {package}: {covered} of {count} lines (at least {share} %)"
        ));
    }
    println!("\n{}", lines.join("\n"));
    ensure!(missed == 0, "{missed} crates below their share");
    Ok(())
}
