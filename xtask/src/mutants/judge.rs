//! Tests that run on mutants, and the simulation.

use std::collections::BTreeMap;
use std::fmt;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::command::{cargo, target_dir};

/// Memory that a test program may write to, bytes: some mutants take all that there is. Address space that is only
/// reserved does not count: the tests reserve more than that, and would fail without a mutant.
const MEMORY_BYTES: u64 = 12 << 30;

/// Programs that run on mutants.
pub(super) struct Judge {
    pub(super) package: &'static str,
    /// Test programs, as arguments of `cargo test`; none for the package's own program.
    pub(super) tests: &'static [&'static str],
    /// Arguments of the programs: of tests, their names, or none for all.
    pub(super) arguments: &'static [&'static str],
    /// A program that uses this many seconds of processor time counts as endless.
    pub(super) cpu_s: u32,
}

/// Results of a judge.
#[derive(Default)]
pub(super) struct Verdicts {
    pub(super) survivors: Vec<usize>,
    /// Mutants killed because a program did not end.
    pub(super) endless_count: usize,
}

/// Errors of the compiler.
#[derive(Default)]
pub(super) struct Errors {
    /// Files and bytes.
    places: Vec<(PathBuf, usize)>,
    text: String,
}

impl Errors {
    pub(super) fn places(&self) -> impl Iterator<Item = (&Path, usize)> {
        self.places.iter().map(|(file, at)| (file.as_path(), *at))
    }

    fn add(&mut self, message: &Value) {
        self.text += message["rendered"].as_str().unwrap_or_default();
        let spans = message["spans"].as_array().into_iter().flatten();
        for span in spans.filter(|span| span["is_primary"] == true) {
            let at = span["byte_start"].as_u64().and_then(|at| usize::try_from(at).ok());
            self.places.extend(span["file_name"].as_str().map(PathBuf::from).zip(at));
        }
    }
}

impl fmt::Display for Errors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// A program, and the folder of its package.
type Program = (PathBuf, PathBuf);

/// How a program ended.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    Passed,
    Failed,
    Endless,
}

/// The copy of the sources.
pub(super) fn sources() -> PathBuf {
    target_dir().join("mutants/sources")
}

impl Judge {
    pub(super) const fn new(package: &'static str, tests: &'static [&'static str]) -> Self {
        Self { package, tests, arguments: &[], cpu_s: 20 }
    }

    /// Builds the programs from the copy of the sources.
    pub(super) fn build(&self) -> Result<Result<Vec<Program>, Errors>> {
        let is_program = self.tests.is_empty();
        let mut command = cargo(if is_program { &["build"] } else { &["test", "--no-run"] });
        command.args(["--locked", "--message-format=json", "--package", self.package]);
        command.args(self.tests).current_dir(sources());
        command.env("CARGO_TARGET_DIR", target_dir().join("mutants/build"));
        command.env("CARGO_PROFILE_DEV_DEBUG", "none").env("RUSTFLAGS", "--cap-lints=allow");
        let output = command.stderr(Stdio::inherit()).output()?;
        let mut programs: BTreeMap<PathBuf, PathBuf> = BTreeMap::new();
        let mut errors = Errors::default();
        for line in output.stdout.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
            let message: Value = serde_json::from_slice(line)?;
            if message["message"]["level"] == "error" {
                errors.add(&message["message"]);
            }
            let is_ours = message["profile"]["test"] != is_program;
            if let Some(program) = message["executable"].as_str().filter(|_| is_ours) {
                let manifest = Path::new(message["manifest_path"].as_str().context("a manifest")?);
                programs.insert(program.into(), manifest.parent().context("its folder")?.into());
            }
        }
        if !errors.places.is_empty() {
            return Ok(Err(errors));
        }
        ensure!(output.status.success(), "cargo test: {}", output.status);
        Ok(Ok(programs.into_iter().collect()))
    }

    /// Runs the programs on each of these mutants, several at once.
    pub(super) fn try_each(&self, mutants: &[usize], jobs: usize) -> Result<Verdicts> {
        let programs = self.build()?.map_err(|errors| anyhow::anyhow!("{errors}"))?;
        let start = Instant::now();
        for program in &programs {
            let end = self.run(program, None, Duration::MAX)?;
            ensure!(end == End::Passed, "{}: its tests fail without a mutant", program.0.display());
        }
        let patience = Duration::from_secs(30) + start.elapsed() * 10;
        let (next, verdicts) = (Mutex::new(mutants.iter()), Mutex::new(Verdicts::default()));
        let work = || -> Result<()> {
            loop {
                let Some(&mutant) = next.lock().expect("no thread panics").next() else { return Ok(()) };
                let mut end = End::Passed;
                for program in &programs {
                    end = self.run(program, Some(mutant), patience)?;
                    if end != End::Passed {
                        break;
                    }
                }
                let mut verdicts = verdicts.lock().expect("no thread panics");
                match end {
                    End::Passed => verdicts.survivors.push(mutant),
                    End::Failed => {}
                    End::Endless => verdicts.endless_count += 1,
                }
            }
        };
        std::thread::scope(|scope| {
            let workers: Vec<_> = (0..jobs.max(1)).map(|_| scope.spawn(work)).collect();
            workers.into_iter().try_for_each(|worker| worker.join().expect("no thread panics"))
        })?;
        let mut verdicts = verdicts.into_inner().expect("no thread panics");
        verdicts.survivors.sort_unstable();
        Ok(verdicts)
    }

    /// Runs a program until its first test fails.
    fn run(&self, (program, folder): &Program, mutant: Option<usize>, patience: Duration) -> Result<End> {
        let mut command = Command::new("prlimit");
        command.args([format!("--cpu={}", self.cpu_s), format!("--data={MEMORY_BYTES}"), "--".to_owned()]);
        command.arg(program).args(self.arguments).current_dir(folder);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        command.envs(mutant.map(|mutant| ("NVLANE_MUTANT", mutant.to_string())));
        // Proptest must find a counterexample, but need not shrink or keep it.
        command.env("PROPTEST_MAX_SHRINK_ITERS", "0").env("PROPTEST_CASES", "64");
        command.env("PROPTEST_DISABLE_FAILURE_PERSISTENCE", "1").env("INSTA_UPDATE", "no");
        let mut child = command.spawn().context("cannot run prlimit")?;
        let end = watch(&mut child, Instant::now().checked_add(patience));
        if end != End::Passed {
            child.kill()?;
        }
        let status = child.wait()?;
        Ok(if end == End::Passed && !status.success() { End::Failed } else { end })
    }
}

/// Reads the lines of a test program until it ends or a test fails.
fn watch(child: &mut Child, deadline: Option<Instant>) -> End {
    let (to_us, lines) = channel();
    let output = BufReader::new(child.stdout.take().expect("it is piped"));
    std::thread::spawn(move || output.lines().map_while(Result::ok).try_for_each(|line| to_us.send(line)));
    loop {
        let left =
            deadline.map_or(Duration::MAX, |deadline| deadline.saturating_duration_since(Instant::now()));
        match lines.recv_timeout(left) {
            Ok(line) if line.ends_with("FAILED") => return End::Failed,
            Ok(_) => {}
            Err(RecvTimeoutError::Timeout) => return End::Endless,
            Err(RecvTimeoutError::Disconnected) => return End::Passed,
        }
    }
}
