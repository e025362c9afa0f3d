//! Bugs planted in a copy of the product's own code: the simulation, or a named test, must find each.
//!
//! All are built into the same programs, each switched on by an environment variable.

mod bug;

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

use crate::command::{OPTIMIZED, cargo, run as run_command, target_dir};
use crate::{deps, sources, syscalls};
use bug::{Bug, Judge, SWITCH};

/// Options of `cargo xtask product-bugs`.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Bugs to plant, one after the other [default: all]
    names: Vec<String>,
    /// Seeds within which the simulation must find a bug
    #[arg(long, value_name = "N", default_value_t = SEED_COUNT)]
    seeds: u64,
    /// Note the seeds that find bugs in the bugs' files
    #[arg(long)]
    keep: bool,
    /// Only the first bug of each promise
    #[arg(long, conflicts_with = "names")]
    one_each: bool,
}

const SEED_COUNT: u64 = 10_000;

impl Default for Options {
    fn default() -> Self {
        Self { names: Vec::new(), seeds: SEED_COUNT, keep: false, one_each: false }
    }
}

/// Seeds in which the simulation must find nothing without a bug.
const CLEAN_SEED_COUNT: u64 = 200;

/// Time limits of a test with a bug, s: of processor time, and in total on a machine that has other work as well.
const TEST_CPU_S: &str = "--cpu=60";
const TEST_S: &str = "300";

/// Time limit of the simulation, s.
const SIMULATION_S: &str = "600";

/// Enables each bug and checks that its judge finds it.
pub(crate) fn run(options: &Options) -> Result<()> {
    let all = Bug::read_all()?;
    let unknown = options.names.iter().find(|name| !all.iter().any(|bug| bug.name == **name));
    ensure!(unknown.is_none(), "there is no bug {unknown:?}");
    let mut bugs: Vec<&Bug> = all.iter().collect();
    if options.one_each {
        bugs.dedup_by_key(|bug| &bug.promise);
    } else if !options.names.is_empty() {
        bugs.retain(|bug| options.names.contains(&bug.name));
    }
    let copy = target_dir().join("product-bugs");
    sources::copy(&copy.join("sources"), |path, content| plant(&all, path, content))?;
    let judges: BTreeSet<&Judge> = bugs.iter().map(|bug| &bug.judge).collect();
    let start = Instant::now();
    let programs = Programs::build(&copy, &judges)?;
    println!("built in {} s", start.elapsed().as_secs());
    // A judge that finds something without any bug proves nothing.
    let judges: Vec<&Judge> = judges.into_iter().collect();
    side_by_side(&judges, |judge| {
        let found = programs.judge(judge, None, 0..CLEAN_SEED_COUNT)?;
        ensure!(found.is_none(), "without a bug {judge:?} finds {found:?}");
        Ok(())
    })?;
    let unseen = Mutex::new(Vec::new());
    side_by_side(&bugs, |bug| {
        let start = Instant::now();
        let mut finding = bug.seed.map_or(Ok(None), |seed| programs.judge_bug(bug, seed..seed + 1))?;
        if finding.is_none() {
            finding = programs.judge_bug(bug, 0..options.seeds)?;
        }
        if let Some(seed) = finding.as_deref().and_then(seed_of).filter(|_| options.keep) {
            bug.keep(seed)?;
        }
        if finding.is_none() {
            unseen.lock().expect("no panic").push(bug.name.as_str());
        }
        let finding: String = finding.unwrap_or_else(|| "NOT FOUND".to_owned()).chars().take(100).collect();
        println!(
            "{:<16.16} {:<36} {:>5.1} s  {finding}",
            bug.promise,
            bug.name,
            start.elapsed().as_secs_f64()
        );
        Ok(())
    })?;
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

/// The seed of a finding of the simulation.
fn seed_of(finding: &str) -> Option<u64> {
    finding.strip_prefix("seed ")?.split(':').next()?.parse().ok()
}

/// The judges' programs, with all bugs in them.
struct Programs {
    /// Of the copy.
    directory: PathBuf,
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
    fn build(copy: &Path, judges: &BTreeSet<&Judge>) -> Result<Self> {
        let directory = copy.join("build");
        let cargo_in_copy = |arguments: &[&str]| {
            let mut command = cargo(arguments);
            command.current_dir(copy.join("sources"));
            command.env("CARGO_TARGET_DIR", &directory).env("CARGO_BUILD_BUILD_DIR", target_dir());
            command
        };
        let build = |arguments: &[&str]| {
            let mut command = cargo_in_copy(arguments);
            // Release builds have no debug assertions, so none may find a bug here.
            for setting in ["debug-assertions=false", "overflow-checks=false"] {
                command.args(["--config", &format!("profile.dev.{setting}")]);
            }
            for setting in ["debug-assertions=true", "overflow-checks=true"] {
                command.args(["--config", &format!("profile.dev.package.'*'.{setting}")]);
            }
            command
        };
        let (mut simulates, mut traces, mut selected) = (false, false, BTreeSet::new());
        for judge in judges {
            match judge {
                Judge::Simulation | Judge::KeySimulation => simulates = true,
                Judge::DurableCalls => traces = true,
                Judge::Test { package, program, .. } if program.is_empty() => {
                    selected.extend([format!("--package={package}"), "--lib".into()]);
                }
                Judge::Test { package, program, .. } => {
                    selected.extend([format!("--package={package}"), format!("--test={program}")]);
                }
            }
        }
        if simulates {
            let package = ["build", "--locked", "--bins", "--package=nvlane-sim"];
            run_command(cargo_in_copy(&package).args(["--profile", OPTIMIZED]))?;
        }
        if traces {
            deps::install_programs(deps::STRACE)?;
            run_command(&mut build(&["build", "--locked", "--bins", "--package=nvlane"]))?;
        }
        let mut tests = BTreeMap::new();
        if !selected.is_empty() {
            let mut command =
                build(&["test", "--no-run", "--locked", "--message-format=json-render-diagnostics"]);
            let output = command.args(selected).stderr(std::process::Stdio::inherit()).output()?;
            ensure!(output.status.success(), "the tests cannot be built");
            for line in String::from_utf8_lossy(&output.stdout).lines() {
                tests.extend(test_program(&serde_json::from_str(line)?));
            }
        }
        Ok(Self { directory, tests })
    }

    /// The first finding with a bug that the same judge does not make without it.
    fn judge_bug(&self, bug: &Bug, mut seeds: Range<u64>) -> Result<Option<String>> {
        while !seeds.is_empty() {
            let finding = self.judge(&bug.judge, Some(&bug.name), seeds.clone())?;
            let Some(seed) = finding.as_deref().and_then(seed_of) else { return Ok(finding) };
            if self.judge(&bug.judge, None, seed..seed + 1)?.is_none() {
                return Ok(finding);
            }
            seeds.start = seed + 1;
        }
        Ok(None)
    }

    /// The finding of a judge, with a bug or without. A program that does not end has found nothing.
    fn judge(&self, judge: &Judge, bug: Option<&str>, seeds: Range<u64>) -> Result<Option<String>> {
        match judge {
            Judge::Simulation => self.simulate(bug, seeds, &["--set", "key-values=0"]),
            Judge::KeySimulation => self.simulate(bug, seeds, &[]),
            Judge::DurableCalls => {
                let directory = self.directory.join("durable-calls").join(bug.unwrap_or("none"));
                let switch = bug.map(|bug| (SWITCH, bug));
                syscalls::durable_calls(&self.directory.join("debug/nvlane"), &directory, switch)
            }
            Judge::Test { package, program, name } => {
                let Some(test) = self.tests.get(&(package.clone(), program.clone())) else {
                    bail!("{package} has no test program {program:?}");
                };
                let mut command = Command::new("timeout");
                command.args([TEST_S, "prlimit", TEST_CPU_S, "--"]).arg(&test.path).args([name, "--exact"]);
                command.current_dir(&test.directory).env("NVLANE_PROGRAMS", self.directory.join("debug"));
                let output = switched(&mut command, bug)?;
                let text = String::from_utf8_lossy(&output.stdout);
                match output.status.code() {
                    Some(0) if text.contains(" 1 passed") => Ok(None),
                    Some(101) => Ok(Some(name.rsplit("::").next().unwrap_or(name).to_owned())),
                    _ if bug.is_some() => Ok(None),
                    _ => bail!("without a bug {name} says: {text}"),
                }
            }
        }
    }

    fn simulate(&self, bug: Option<&str>, seeds: Range<u64>, settings: &[&str]) -> Result<Option<String>> {
        let mut command = Command::new("timeout");
        command.arg(SIMULATION_S).arg(self.directory.join(OPTIMIZED).join("nvlane-sim"));
        let (first, count) = (seeds.start.to_string(), (seeds.end - seeds.start).to_string());
        command.args(["--jobs", "1", "--from", &first, "--seeds", &count]).args(settings);
        let output = switched(&mut command, bug)?;
        let text = String::from_utf8_lossy(&output.stdout);
        let finding = text.lines().find(|line| line.starts_with("seed ") && output.status.code() == Some(1));
        Ok(finding.map(str::to_owned))
    }
}

/// Runs a program with a bug or without.
fn switched(command: &mut Command, bug: Option<&str>) -> Result<Output> {
    match bug {
        Some(bug) => command.env(SWITCH, bug),
        None => command.env_remove(SWITCH),
    };
    command.output().with_context(|| format!("cannot run {command:?}"))
}

/// The test program that a message of cargo names.
fn test_program(message: &Value) -> Option<((String, String), TestProgram)> {
    let path = message["executable"].as_str().filter(|_| message["profile"]["test"] == true)?;
    let manifest = Path::new(message["manifest_path"].as_str()?);
    let (source, package) = message["package_id"].as_str()?.rsplit_once('#')?;
    // Cargo leaves out a name that is that of the directory.
    let package = match package.split_once('@') {
        Some((package, _)) => package,
        None => source.rsplit('/').next()?,
    };
    let is_unit_test = message["target"]["kind"][0] == "lib";
    let program = if is_unit_test { "" } else { message["target"]["name"].as_str()? };
    let test = TestProgram { path: path.into(), directory: manifest.parent()?.to_owned() };
    Some(((package.to_owned(), program.to_owned()), test))
}

/// A file's content with the bugs that lie in it.
fn plant(bugs: &[Bug], path: &Path, content: Vec<u8>) -> Result<Vec<u8>> {
    match path.to_str().filter(|path| bugs.iter().any(|bug| bug.files().any(|file| file == *path))) {
        Some(file) => Ok(bug::plant(bugs, file, String::from_utf8(content)?)?.into_bytes()),
        None => Ok(content),
    }
}

#[cfg(test)]
mod tests {
    use std::slice::from_ref;

    use super::*;
    use crate::command::root;

    #[test]
    fn every_bug_has_its_place_and_a_name_of_its_own() {
        let bugs = Bug::read_all().unwrap();
        let alone = bugs.iter().flat_map(|bug| bug.files().map(move |file| (from_ref(bug), file)));
        let files: BTreeSet<&str> = bugs.iter().flat_map(Bug::files).collect();
        let together = files.into_iter().map(|file| (&bugs[..], file));
        let planted = |(bugs, file): (&[Bug], &str)| {
            let text = std::fs::read_to_string(root().join(file))
                .with_context(|| format!("{}: {file}", bugs[0].name))?;
            bug::plant(bugs, file, text)
        };
        let wrong = alone.chain(together).filter_map(|place| planted(place).err());
        let wrong: BTreeSet<String> = wrong.map(|error| format!("{error:#}")).collect();
        assert!(wrong.is_empty(), "{}", Vec::from_iter(wrong).join("\n"));
        let names: BTreeSet<&str> = bugs.iter().map(|bug| bug.name.as_str()).collect();
        assert_eq!(names.len(), bugs.len());
    }

    #[test]
    fn every_judge_is_there() {
        let metadata = cargo(&["metadata", "--no-deps", "--format-version=1"]).output().unwrap();
        let metadata = serde_json::from_slice(&metadata.stdout).unwrap();
        let missing = Bug::read_all().unwrap().into_iter().filter_map(|bug| match bug.judge {
            Judge::Test { package, program, name } => {
                let is_there =
                    root_of_tests(&metadata, &package, &program).is_some_and(|root| has(root, &name));
                (!is_there).then(|| format!("{}: {package} {program} has no test {name}", bug.name))
            }
            _ => None,
        });
        let missing = Vec::from_iter(missing);
        assert!(missing.is_empty(), "{}", missing.join("\n"));
    }

    /// The file where a test program, or a library, begins.
    fn root_of_tests<'a>(metadata: &'a Value, package: &str, program: &str) -> Option<&'a Path> {
        let package = metadata["packages"].as_array()?.iter().find(|it| it["name"] == package)?;
        let root = package["targets"].as_array()?.iter().find(|target| match program {
            "" => target["kind"][0] == "lib",
            _ => target["kind"][0] == "test" && target["name"] == program,
        })?;
        root["src_path"].as_str().map(Path::new)
    }

    /// Whether the file or the inline module that the path of a test names has a function of its name.
    fn has(root: &Path, name: &str) -> bool {
        let mut directory = root.parent().unwrap().to_owned();
        let mut text = std::fs::read_to_string(root).unwrap();
        let mut path: Vec<&str> = name.split("::").collect();
        let function = path.pop().unwrap_or_default();
        for module in path {
            if ![";", " {"].iter().any(|end| text.contains(&format!("mod {module}{end}"))) {
                return false;
            }
            let file = directory.join(format!("{module}.rs"));
            directory.push(module);
            let inline = text;
            text = std::fs::read_to_string(file)
                .or_else(|_| std::fs::read_to_string(directory.join("mod.rs")))
                .unwrap_or(inline);
        }
        text.contains(&format!("fn {function}("))
    }

    #[test]
    fn a_test_program_is_known_by_its_package_also_if_cargo_leaves_out_its_name() {
        let message = |id: &str| {
            serde_json::json!({
                "executable": "/target/deps/end_to_end-1", "profile": { "test": true }, "package_id": id,
                "manifest_path": "/crates/programs/nvlane/Cargo.toml", "target": { "kind": ["test"], "name": "end_to_end" },
            })
        };
        for id in ["path+file:///crates/programs/nvlane#0.1.0", "path+file:///crates/command#nvlane@0.1.0"] {
            let (name, program) = test_program(&message(id)).unwrap();
            assert_eq!(name, ("nvlane".to_owned(), "end_to_end".to_owned()));
            assert_eq!(program.path, Path::new("/target/deps/end_to_end-1"));
            assert_eq!(program.directory, Path::new("/crates/programs/nvlane"));
        }
    }

    #[test]
    fn every_promise_has_two_bugs() {
        let text = std::fs::read_to_string(root().join("docs/reliability.md")).unwrap();
        let rows = text.lines().skip_while(|line| *line != "| Promise | In short | Tested by |").skip(2);
        let promised: BTreeSet<String> = rows
            .map_while(|row| row.strip_prefix("| [")?.split_once(']'))
            .map(|(promise, _)| promise.to_lowercase().replace(' ', "-"))
            .collect();
        let mut counts = BTreeMap::new();
        for bug in Bug::read_all().unwrap() {
            *counts.entry(bug.promise).or_insert(0) += 1;
        }
        assert_eq!(promised, counts.keys().cloned().collect());
        for (promise, count) in counts {
            assert!(count >= 2, "{promise}");
        }
    }
}
