//! Bugs planted in a copy of the product's own code: the simulation, or a named test, must find each.
//!
//! All are built into the same programs, each switched on by an environment variable.

mod association;
mod bug;
mod key_value;
mod storage;
mod target;
mod transport;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::command::{cargo, root, run as run_command, target_dir};
use crate::sources;
use bug::{Bug, Judge, SWITCH};

/// Options of `cargo xtask product-bugs`.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Bugs to plant, one after the other [default: all]
    names: Vec<String>,
    /// Seeds within which the simulation must find a bug
    #[arg(long, value_name = "N", default_value_t = SEED_COUNT)]
    seeds: u64,
    /// Keep the seeds that find bugs in xtask/src/product_bugs/seeds.txt
    #[arg(long)]
    keep: bool,
}

const SEED_COUNT: u64 = 10_000;

/// For each bug a seed that found it, which is tried before all others.
const SEEDS: &str = include_str!("product_bugs/seeds.txt");
const SEEDS_PATH: &str = "xtask/src/product_bugs/seeds.txt";

/// Time limit of a test with a bug, and of the simulation, s.
const TEST_S: &str = "60";
const SIMULATION_S: &str = "300";

/// The bugs, by the promise of docs/reliability.md that they break.
const PROMISES: &[(&str, &[Bug])] = &[
    ("Completion", transport::COMPLETION),
    ("Reads", transport::READS),
    ("Atomicity", transport::ATOMICITY),
    ("Durability", storage::DURABILITY),
    ("Keys and values", key_value::KEYS_AND_VALUES),
    ("Failed flushes", storage::FAILED_FLUSHES),
    ("Storage that changes underneath", storage::CHANGING_STORAGE),
    ("Lost connections", association::LOST_CONNECTIONS),
    ("Paths", association::PATHS),
    ("Discovery", association::DISCOVERY_LOGS),
    ("Corruption", transport::CORRUPTION),
    ("Identity", target::IDENTITY),
    ("Under attack", target::UNDER_ATTACK),
];

/// Each bug, with its promise.
fn all_bugs() -> impl Iterator<Item = (&'static str, &'static Bug)> {
    PROMISES.iter().flat_map(|(promise, bugs)| bugs.iter().map(move |bug| (*promise, bug)))
}

/// Enables each bug and checks that its judge finds it.
///
/// # Errors
/// A bug is not found, or a judge finds something without any.
pub(crate) fn run(options: &Options) -> Result<()> {
    let unknown = options.names.iter().find(|name| !all_bugs().any(|(_, bug)| bug.name == **name));
    ensure!(unknown.is_none(), "there is no bug {unknown:?}");
    let is_meant = |bug: &Bug| options.names.is_empty() || options.names.iter().any(|name| name == bug.name);
    let bugs: Vec<_> = all_bugs().filter(|(_, bug)| is_meant(bug)).collect();
    let copy = target_dir().join("product-bugs");
    sources::copy(&copy.join("sources"), plant)?;
    let start = Instant::now();
    let programs = Programs::build(&copy, bugs.iter().map(|(_, bug)| bug.judge).collect())?;
    println!("built in {} s", start.elapsed().as_secs());
    let judges: BTreeSet<Judge> = bugs.iter().map(|(_, bug)| bug.judge).collect();
    let judges: Vec<Judge> = judges.into_iter().collect();
    // Whoever finds something anyway finds no bug.
    side_by_side(&judges, |judge| {
        let output = programs.judge(*judge, None, 0..200)?;
        let text = String::from_utf8_lossy(&output.stdout);
        let is_one_test = !matches!(judge, Judge::Test { .. }) || text.contains(" 1 passed");
        ensure!(output.status.success() && is_one_test, "without a bug {judge:?} says: {text}");
        Ok(())
    })?;
    let unseen = Mutex::new(Vec::new());
    let seeds = Mutex::new(BTreeMap::new());
    side_by_side(&bugs, |(promise, bug)| {
        let start = Instant::now();
        let judge = |seeds| -> Result<Option<String>> {
            Ok(finding(bug.judge, &programs.judge(bug.judge, Some(bug.name), seeds)?))
        };
        let known = known_seed(bug.name).filter(|_| bug.judge == Judge::Simulation);
        let mut finding: Option<String> = known.map_or(Ok(None), |seed| judge(seed..seed + 1))?;
        if finding.is_none() {
            finding = judge(0..options.seeds)?;
        }
        if let Some(seed) = finding.as_deref().and_then(seed_of) {
            seeds.lock().expect("no panic").insert(bug.name.to_owned(), seed);
        }
        if finding.is_none() {
            unseen.lock().expect("no panic").push(bug.name);
        }
        let finding: String = finding.unwrap_or_else(|| "NOT FOUND".to_owned()).chars().take(100).collect();
        println!("{promise:<16.16} {:<36} {:>5.1} s  {finding}", bug.name, start.elapsed().as_secs_f64());
        Ok(())
    })?;
    if options.keep {
        let seeds = seeds.into_inner().expect("no panic");
        let lines: String = seeds.iter().map(|(bug, seed)| format!("{bug} {seed}\n")).collect();
        std::fs::write(root().join(SEEDS_PATH), lines)?;
    }
    let unseen = unseen.into_inner().expect("no panic");
    ensure!(unseen.is_empty(), "not found: {}", unseen.join(", "));
    Ok(())
}

/// Does something with each item, as many at once as there are cores.
fn side_by_side<T: Sync>(items: &[T], act: impl Fn(&T) -> Result<()> + Sync) -> Result<()> {
    let next = AtomicUsize::new(0);
    let work = || {
        while let Some(item) = items.get(next.fetch_add(1, Ordering::Relaxed)) {
            act(item)?;
        }
        Ok(())
    };
    thread::scope(|scope| {
        let count = thread::available_parallelism()?.get();
        let workers: Vec<_> = (0..count).map(|_| scope.spawn(work)).collect();
        workers.into_iter().try_for_each(|worker| worker.join().expect("no panic"))
    })
}

/// What a judge has found; `None` for nothing. A test that does not end has found nothing.
fn finding(judge: Judge, output: &Output) -> Option<String> {
    let text = String::from_utf8_lossy(&output.stdout);
    // 101: a test has failed; 1: a seed has.
    match (judge, output.status.code()) {
        (Judge::Simulation, Some(1)) => {
            text.lines().find(|line| line.starts_with("seed ")).map(str::to_owned)
        }
        (Judge::Test { name, .. }, Some(101)) => Some(name.rsplit("::").next().unwrap_or(name).to_owned()),
        _ => None,
    }
}

/// The seed of a finding of the simulation.
fn seed_of(finding: &str) -> Option<u64> {
    finding.strip_prefix("seed ")?.split(':').next()?.parse().ok()
}

/// A seed that found this bug in an earlier run.
fn known_seed(bug: &str) -> Option<u64> {
    let line = SEEDS.lines().find_map(|line| line.strip_prefix(bug)?.strip_prefix(' '))?;
    line.parse().ok()
}

/// The judges' programs, with all bugs in them.
struct Programs {
    simulation: PathBuf,
    /// By package and test program; the latter is empty for unit tests.
    tests: BTreeMap<(String, String), TestProgram>,
}

struct TestProgram {
    path: PathBuf,
    /// Where cargo runs it.
    directory: PathBuf,
}

impl Programs {
    /// Builds what the judges need. Dependencies are those of the repository's own tests.
    fn build(copy: &Path, judges: BTreeSet<Judge>) -> Result<Self> {
        let build = |arguments: &[&str]| {
            let mut command = cargo(arguments);
            command.current_dir(copy.join("sources"));
            command.env("CARGO_TARGET_DIR", copy.join("build")).env("CARGO_BUILD_BUILD_DIR", target_dir());
            // A bug that only an assertion of debug builds finds is found by nobody in production.
            for setting in ["debug-assertions=false", "overflow-checks=false", "debug='none'"] {
                command.args(["--config", &format!("profile.dev.{setting}")]);
            }
            for setting in ["debug-assertions=true", "overflow-checks=true", "debug='line-tables-only'"] {
                command.args(["--config", &format!("profile.dev.package.'*'.{setting}")]);
            }
            command
        };
        run_command(&mut build(&["build", "--locked", "--package", "nvlane-sim", "--bin", "nvlane-sim"]))?;
        let mut command =
            build(&["test", "--no-run", "--locked", "--message-format=json-render-diagnostics"]);
        let mut selected = BTreeSet::new();
        for judge in judges {
            if let Judge::Test { package, program, .. } = judge {
                selected.insert(format!("--package={package}"));
                selected.insert(if program.is_empty() {
                    "--lib".into()
                } else {
                    format!("--test={program}")
                });
            }
        }
        let mut tests = BTreeMap::new();
        if !selected.is_empty() {
            let output = command.args(selected).stderr(std::process::Stdio::inherit()).output()?;
            ensure!(output.status.success(), "the tests cannot be built");
            for line in String::from_utf8_lossy(&output.stdout).lines() {
                tests.extend(test_program(&serde_json::from_str(line)?));
            }
        }
        Ok(Self { simulation: copy.join("build/debug/nvlane-sim"), tests })
    }

    /// Runs a judge, with a bug or without.
    fn judge(&self, judge: Judge, bug: Option<&str>, seeds: Range<u64>) -> Result<Output> {
        let mut command = Command::new("timeout");
        match judge {
            Judge::Simulation => {
                command.arg(SIMULATION_S).arg(&self.simulation);
                let (first, count) = (seeds.start.to_string(), (seeds.end - seeds.start).to_string());
                command.args(["--jobs", "1", "--seed", &first, "--seeds", &count]);
            }
            Judge::Test { package, program, name } => {
                let Some(test) = self.tests.get(&(package.to_owned(), program.to_owned())) else {
                    bail!("{package} has no test program {program:?}");
                };
                command.arg(TEST_S).arg(&test.path).args([name, "--exact"]).current_dir(&test.directory);
            }
        }
        match bug {
            Some(bug) => command.env(SWITCH, bug),
            None => command.env_remove(SWITCH),
        };
        command.output().with_context(|| format!("cannot run {judge:?}"))
    }
}

/// The test program that a message of cargo tells of.
fn test_program(message: &Value) -> Option<((String, String), TestProgram)> {
    let path = message["executable"].as_str().filter(|_| message["profile"]["test"] == true)?;
    let manifest = Path::new(message["manifest_path"].as_str()?);
    let (_, package) = message["package_id"].as_str()?.rsplit_once('#')?;
    let (package, _) = package.split_once('@')?;
    let is_unit_test = message["target"]["kind"][0] == "lib";
    let program = if is_unit_test { "" } else { message["target"]["name"].as_str()? };
    let test = TestProgram { path: path.into(), directory: manifest.parent()?.to_owned() };
    Some(((package.to_owned(), program.to_owned()), test))
}

/// A file's content with the bugs that lie in it.
fn plant(path: &Path, content: Vec<u8>) -> Result<Vec<u8>> {
    match path.to_str().filter(|file| all_bugs().any(|(_, bug)| bug.is_in(file))) {
        Some(file) => Ok(with_bugs(file, String::from_utf8(content)?)?.into_bytes()),
        None => Ok(content),
    }
}

/// The text of a file with every bug that is in it.
fn with_bugs(file: &str, text: String) -> Result<String> {
    let text = all_bugs().try_fold(text, |text, (_, bug)| bug.put_into(file, text))?;
    Ok(text + &bug::switch())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(file: &str) -> String {
        std::fs::read_to_string(root().join(file)).unwrap()
    }

    #[test]
    fn every_bug_has_its_place_and_a_name_of_its_own() {
        let files: BTreeSet<&str> =
            all_bugs().flat_map(|(_, bug)| bug.sites.iter().map(|site| site.0)).collect();
        for file in files {
            with_bugs(file, read(file)).unwrap();
        }
        let names: BTreeSet<&str> = all_bugs().map(|(_, bug)| bug.name).collect();
        assert_eq!(names.len(), all_bugs().count());
    }

    #[test]
    fn every_promise_has_two_bugs() {
        let text = read("docs/reliability.md");
        let rows = text.lines().skip_while(|line| *line != "| Promise | In short | Tested by |").skip(2);
        let promised: Vec<&str> = rows
            .map_while(|row| row.strip_prefix("| [")?.split_once(']').map(|(promise, _)| promise))
            .collect();
        assert_eq!(promised, PROMISES.iter().map(|(promise, _)| *promise).collect::<Vec<_>>());
        for (promise, bugs) in PROMISES {
            assert!(bugs.len() >= 2, "{promise}");
        }
    }
}
