//! Instructions of nvlane's own code per 4 KiB command, compared with the accepted baseline.
//!
//! Instruction counts are equal in every run and on every machine with the same compiler, C library, valgrind and
//! emulated processor: then a difference of 1 % is a change of the code. If one of them differs, the comparison uses a
//! wider limit and reports that.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::command::{cargo, output_of, root, run as run_command, target_dir, text_of};
use crate::deps;

/// Options of `cargo xtask instructions`.
#[derive(clap::Args, Default)]
pub(crate) struct Options {
    /// Accept the current counts as the new baseline
    #[arg(long)]
    accept: bool,
}

/// Path of the baseline.
const BASELINE: &str = "crates/protocol/proto/benches/instructions.json";

/// How to accept a new baseline.
const ACCEPT: &str = "cargo xtask instructions --accept";

/// Commands that each case executes: `BATCH` in crates/protocol/proto/benches/instructions.rs.
const BATCH: f64 = 32.0;

/// Maximum growth of a case: with the baseline's tools, and with others.
const GROWTH_MAX: f64 = 0.01;
const GROWTH_MAX_LOOSE: f64 = 0.25;

/// Instructions of a command on both sides, from submission to completion.
const WHOLE: [(&str, [&str; 3]); 2] = [
    (
        "a read, both sides",
        ["host_submits_reads.plain", "controller_serves_reads.plain", "host_receives_reads.success"],
    ),
    (
        "a write, both sides",
        [
            "host_submits_in_capsule_writes.plain",
            "controller_serves_in_capsule_writes.plain",
            "host_receives_responses.plain",
        ],
    ),
];

/// The tools that affect the counts.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Tools {
    rustc: String,
    libc: String,
    valgrind: String,
    processor: String,
}

/// The accepted counts.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Baseline {
    tools: Tools,
    /// By case, for one command.
    instructions: BTreeMap<String, f64>,
}

/// Counts, and compares with the baseline or replaces it.
pub(crate) fn run(options: &Options) -> Result<()> {
    deps::install_for_counting()?;
    let now = Baseline { instructions: count()?, tools: Tools::here()? };
    let path = root().join(BASELINE);
    if options.accept {
        let text = serde_json::to_string_pretty(&now).context("a baseline as JSON")?;
        std::fs::write(&path, text + "\n").with_context(|| path.display().to_string())?;
        println!("{BASELINE} is written: commit it together with what changed the counts");
        return Ok(());
    }
    let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    let accepted: Baseline = serde_json::from_str(&text).context(BASELINE)?;
    let (lines, faults) = compare(&accepted, &now);
    println!("\n{}", lines.join("\n"));
    ensure!(
        faults.is_empty(),
        "{}\nwhat is meant to be so becomes the baseline, to be committed, with: {ACCEPT}",
        faults.join("\n")
    );
    Ok(())
}

/// Prints a table, and returns the violations.
fn compare(accepted: &Baseline, now: &Baseline) -> (Vec<String>, Vec<String>) {
    let limit = if accepted.tools == now.tools {
        GROWTH_MAX
    } else if accepted.tools.processor == now.tools.processor {
        GROWTH_MAX_LOOSE
    } else {
        f64::INFINITY
    };
    let row = |name: &str, before: f64, count: f64| {
        let growth = (count / before - 1.0) * 100.0;
        format!("{name:<48} {before:>8.1} {count:>8.1} {growth:>+6.1} %")
    };
    let mut lines =
        vec![format!("{:<48} {:>8} {:>8}", "instructions per command of 4 KiB", "accepted", "now")];
    let mut faults = Vec::new();
    for (case, &count) in &now.instructions {
        let Some(&before) = accepted.instructions.get(case) else {
            faults.push(format!("{case} is not in {BASELINE}"));
            continue;
        };
        lines.push(row(case, before, count));
        if count > before * (1.0 + limit) {
            faults.push(format!("{case}: {count:.1} instructions, {before:.1} were accepted"));
        }
    }
    let gone = accepted.instructions.keys().filter(|case| !now.instructions.contains_key(*case));
    faults.extend(gone.map(|case| format!("{case} is in {BASELINE}, but is not counted any more")));
    for (name, cases) in WHOLE {
        let sum = |of: &Baseline| cases.iter().filter_map(|case| of.instructions.get(*case)).sum();
        lines.push(row(name, sum(accepted), sum(now)));
    }
    if accepted.tools != now.tools {
        let how =
            if limit.is_finite() { format!("up to {:+.0} %", limit * 100.0) } else { "with no limit".into() };
        lines.push(format!("other tools than the baseline's, so compared loosely, {how}:"));
        lines.push(format!("  then {}", accepted.tools));
        lines.push(format!("  now  {}", now.tools));
    }
    (lines, faults)
}

/// Counts each case of the bench.
fn count() -> Result<BTreeMap<String, f64>> {
    // As released. The package alone: its dependencies are few.
    let mut build =
        cargo(&["bench", "--no-run", "--locked", "--package", "nvlane-proto", "--bench", "instructions"]);
    let messages = text_of(build.arg("--message-format=json-render-diagnostics"))?;
    let bench = messages.lines().rev().find_map(executable).context("cargo names no program")?;
    let profile = target_dir().join("callgrind.out");
    let mut counts = BTreeMap::new();
    for case in text_of(&mut Command::new(&bench))?.lines() {
        let mut valgrind = Command::new("valgrind");
        valgrind.args(["--tool=callgrind", "--quiet", "--collect-atstart=no", "--toggle-collect=*counted*"]);
        valgrind.arg(format!("--callgrind-out-file={}", profile.display()));
        run_command(valgrind.arg(&bench).arg(case))?;
        let text = std::fs::read_to_string(&profile).with_context(|| profile.display().to_string())?;
        let total = text.lines().find_map(|line| line.strip_prefix("summary: ")?.parse::<f64>().ok());
        let total = total.filter(|&total| total > 0.0).with_context(|| format!("{case} has no count"))?;
        // In tenths: smaller changes are not worth a line of a diff.
        counts.insert(case.to_owned(), (total / BATCH * 10.0).round() / 10.0);
    }
    ensure!(!counts.is_empty(), "nothing was counted");
    Ok(counts)
}

/// The program that one of cargo's messages names.
fn executable(message: &str) -> Option<PathBuf> {
    let message: Value = serde_json::from_str(message).ok()?;
    Some(message["executable"].as_str()?.into())
}

impl Tools {
    fn here() -> Result<Self> {
        let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
        let libc = output_of(Command::new("getconf").arg("GNU_LIBC_VERSION"));
        // valgrind emulates one of a few processors, depending on the real one.
        #[cfg(target_arch = "x86_64")]
        let has_avx2 = if std::arch::is_x86_feature_detected!("avx2") { "AVX2" } else { "no AVX2" };
        #[cfg(not(target_arch = "x86_64"))]
        let has_avx2 = "its own";
        Ok(Self {
            rustc: output_of(Command::new(rustc).arg("--version").current_dir(root()))?,
            libc: libc.unwrap_or_else(|_| "another C library".into()),
            valgrind: output_of(Command::new("valgrind").arg("--version"))?,
            processor: format!("{} with {has_avx2}", std::env::consts::ARCH),
        })
    }
}

impl std::fmt::Display for Tools {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}, {}, {}, {}", self.rustc, self.libc, self.valgrind, self.processor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn baseline(rustc: &str, counts: &[(&str, f64)]) -> Baseline {
        let [libc, valgrind, processor] = ["c", "v", "p"].map(str::to_owned);
        let instructions = counts.iter().map(|(case, count)| ((*case).to_owned(), *count)).collect();
        Baseline { tools: Tools { rustc: rustc.into(), libc, valgrind, processor }, instructions }
    }

    #[test]
    fn more_than_one_percent_is_a_fault() {
        let accepted = baseline("1", &[("a", 100.0), ("b", 200.0)]);
        assert!(compare(&accepted, &baseline("1", &[("a", 101.0), ("b", 90.0)])).1.is_empty());
        let (_, faults) = compare(&accepted, &baseline("1", &[("a", 101.1), ("b", 202.0)]));
        assert_eq!(faults, ["a: 101.1 instructions, 100.0 were accepted"]);
    }

    #[test]
    fn other_tools_are_compared_loosely_and_other_processors_not_at_all() {
        let accepted = baseline("1", &[("a", 100.0)]);
        let (lines, faults) = compare(&accepted, &baseline("2", &[("a", 125.0)]));
        assert!(faults.is_empty() && lines.iter().any(|line| line.contains("loosely, up to +25 %")));
        assert_eq!(compare(&accepted, &baseline("2", &[("a", 126.0)])).1.len(), 1);
        let mut elsewhere = baseline("1", &[("a", 1000.0)]);
        elsewhere.tools.processor = "q".into();
        assert!(compare(&accepted, &elsewhere).1.is_empty());
    }

    #[test]
    fn cases_that_come_and_go_are_told() {
        let (_, faults) = compare(&baseline("1", &[("a", 1.0)]), &baseline("1", &[("b", 1.0)]));
        assert_eq!(faults.len(), 2);
    }
}
