//! Fuzzing: each function of `lab/fuzz` under libFuzzer, for a limited time.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};

use crate::command::{cargo, root, run as run_command, target_dir};
use crate::deps;

/// Target triple of the fuzzers: the default of `cargo fuzz`.
const TRIPLE: &str = "x86_64-unknown-linux-gnu";

/// Options of `cargo xtask fuzz`.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Which fuzzer; all of them, one after the other, if none is given
    target: Option<String>,
    /// How long each runs
    #[arg(long, value_name = "N", default_value_t = SECONDS)]
    seconds: u64,
    /// Add inputs that reached new code to lab/fuzz/corpus, minimized in number and length
    #[arg(long)]
    merge: bool,
}

/// How long each fuzzer runs by default, s.
const SECONDS: u64 = 60;

impl Default for Options {
    fn default() -> Self {
        Self { target: None, seconds: SECONDS, merge: false }
    }
}

/// The result of one fuzzer.
struct Round {
    name: String,
    executions: u64,
    seconds: f64,
    /// Edges of the control flow that were covered.
    edges: u64,
    corpus_count: usize,
    is_clean: bool,
}

/// Builds the fuzzers and runs them.
pub(crate) fn run(options: &Options) -> Result<()> {
    deps::install_for_fuzzing()?;
    let names = match &options.target {
        Some(name) => vec![name.clone()],
        None => names()?,
    };
    build()?;
    let mut rounds = Vec::new();
    for name in &names {
        rounds.push(fuzz(name, options.seconds)?);
        if options.merge {
            merge(name)?;
        }
    }
    println!("\n{:<18} {:>12} {:>9} {:>8} {:>8}", "fuzzer", "executions", "per s", "edges", "inputs");
    for round in &rounds {
        let word = if round.is_clean { "" } else { "  FOUND SOMETHING" };
        println!(
            "{:<18} {:>12} {:>9.0} {:>8} {:>8}{word}",
            round.name,
            round.executions,
            round.executions as f64 / round.seconds.max(0.001),
            round.edges,
            round.corpus_count,
        );
    }
    let total: u64 = rounds.iter().map(|round| round.executions).sum();
    println!("{:<18} {total:>12}", "all");
    ensure!(rounds.iter().all(|round| round.is_clean), "inputs that break something: {}", found().display());
    Ok(())
}

fn names() -> Result<Vec<String>> {
    let dir = root().join("lab/fuzz/fuzz_targets");
    let entries = std::fs::read_dir(&dir).with_context(|| dir.display().to_string())?;
    let mut names = Vec::new();
    for entry in entries {
        let path = entry?.path();
        names.extend(path.file_stem().and_then(|stem| stem.to_str()).map(str::to_owned));
    }
    names.sort();
    Ok(names)
}

/// Builds all fuzzers. Without a sanitizer: the only unsafe code that they run is the buffer pool's, so the stable
/// compiler suffices.
fn build() -> Result<()> {
    let mut command =
        cargo(&["fuzz", "build", "--fuzz-dir", "lab/fuzz", "--sanitizer", "none", "--features", "libfuzzer"]);
    command.env("CARGO_TARGET_DIR", build_dir()).env("CARGO_PROFILE_RELEASE_DEBUG", "line-tables-only");
    run_command(&mut command)
}

/// Separate from other builds, which have other flags.
fn build_dir() -> PathBuf {
    target_dir().join("fuzz")
}

/// Directory for inputs that trigger a bug.
fn found() -> PathBuf {
    build_dir().join("found")
}

/// Inputs found on this machine, in addition to the repository's corpus.
fn grown(name: &str) -> PathBuf {
    build_dir().join("grown").join(name)
}

fn corpus(name: &str) -> PathBuf {
    root().join("lab/fuzz/corpus").join(name)
}

fn fuzzer(name: &str) -> Command {
    let mut command = Command::new(build_dir().join(TRIPLE).join("release").join(name));
    command.current_dir(root());
    command
}

fn fuzz(name: &str, seconds: u64) -> Result<Round> {
    let (grown, found) = (grown(name), found());
    for dir in [&grown, &found] {
        std::fs::create_dir_all(dir).with_context(|| dir.display().to_string())?;
    }
    println!("== {name}: {seconds} s");
    let start = Instant::now();
    let mut child = fuzzer(name)
        .args([&grown, &corpus(name)])
        .arg(format!("-max_total_time={seconds}"))
        .arg(format!("-artifact_prefix={}/{name}-", found.display()))
        // An input that exceeds these limits of time, chosen for a loaded machine, or memory is a finding too. Value
        // profiles are off: they cost four of five executions.
        .args(["-timeout=300", "-rss_limit_mb=2048", "-print_final_stats=1"])
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot run the fuzzer {name}"))?;
    let stderr = child.stderr.take().context("it has a pipe")?;
    let (mut executions, mut edges, mut last) = (0, 0, Vec::new());
    for line in BufReader::new(stderr).lines() {
        let line = line?;
        if let Some(count) = line.strip_prefix("stat::number_of_executed_units:") {
            executions = count.trim().parse()?;
        }
        edges = edges.max(number_after(&line, "cov: ").unwrap_or(0));
        last.push(line);
        if last.len() > 64 {
            last.remove(0);
        }
    }
    let is_clean = child.wait()?.success();
    if !is_clean {
        println!("{}", last.join("\n"));
        println!(
            "shorter, perhaps: cargo fuzz tmin --fuzz-dir lab/fuzz -s none --features libfuzzer {name} INPUT"
        );
    }
    let corpus_count = count_files(&grown)? + count_files(&corpus(name))?;
    let seconds = start.elapsed().as_secs_f64();
    Ok(Round { name: name.to_owned(), executions, seconds, edges, corpus_count, is_clean })
}

/// Adds inputs that reach new code to the repository's corpus.
fn merge(name: &str) -> Result<()> {
    let status =
        fuzzer(name).arg("-merge=1").args([corpus(name), grown(name)]).stderr(Stdio::null()).status()?;
    if !status.success() {
        bail!("cannot merge the inputs of {name}: {status}");
    }
    Ok(())
}

/// The number after a word in a line of libFuzzer's output.
fn number_after(line: &str, word: &str) -> Option<u64> {
    let (_, rest) = line.split_once(word)?;
    rest.split(' ').next()?.parse().ok()
}

fn count_files(dir: &Path) -> Result<usize> {
    Ok(std::fs::read_dir(dir).with_context(|| dir.display().to_string())?.count())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_found_in_a_line_of_the_fuzzer() {
        let line = "#4096\tpulse  cov: 3195 ft: 9032 corp: 240/41Kb lim: 4096 exec/s: 1365 rss: 92Mb";
        assert_eq!((number_after(line, "cov: "), number_after(line, "corp: ")), (Some(3195), None));
        assert_eq!(number_after("INFO: seed corpus", "cov: "), None);
    }
}
