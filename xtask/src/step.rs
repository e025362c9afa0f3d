//! The steps of a check, run in order, each with its time and its budget.

use std::fs::{self, File};
use std::io;
use std::path::PathBuf;
use std::process::{Command, ExitStatus};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::command::target_dir;

/// One step, and its time budget on two cores from a clean clone. Exceeding the budget is reported but is no failure:
/// machines are noisy.
#[derive(Clone, Copy)]
pub(crate) struct Step {
    pub(crate) name: &'static str,
    budget_s: u64,
    run: fn() -> Result<()>,
    is_beside_next: bool,
}

impl Step {
    /// A step on its own.
    pub(crate) const fn new(name: &'static str, budget_s: u64, run: fn() -> Result<()>) -> Self {
        Self { name, budget_s, run, is_beside_next: false }
    }

    /// A step at a lower priority beside the next one, which mostly waits. Its output is printed when both have ended.
    pub(crate) const fn beside_next(self) -> Self {
        Self { is_beside_next: true, ..self }
    }
}

/// How a step ended.
struct Ended {
    step: Step,
    took: Duration,
    result: Result<()>,
}

/// Runs the steps in order, up to the first that fails, and prints the time of each.
///
/// # Errors
/// The error of the first failing step.
pub(crate) fn run_steps(steps: &[Step]) -> Result<()> {
    let start = Instant::now();
    let (mut ended, mut beside) = (Vec::new(), Vec::new());
    for step in steps {
        if step.is_beside_next {
            beside.push(Beside::start(*step)?);
            continue;
        }
        println!("== {}", step.name);
        let start = Instant::now();
        let result = (step.run)();
        ended.push(Ended { step: *step, took: start.elapsed(), result });
        for running in beside.drain(..) {
            ended.push(running.wait());
        }
        if ended.iter().any(|step| step.result.is_err()) {
            break;
        }
    }
    println!("\n{:<16} {:>7} {:>8}", "step", "took", "budget");
    for Ended { step, took, .. } in &ended {
        let over = if took.as_secs() > step.budget_s { "  over" } else { "" };
        let note = if step.is_beside_next { "  beside the step above" } else { "" };
        println!("{:<16} {:>5} s {:>6} s{over}{note}", step.name, took.as_secs(), step.budget_s);
    }
    println!("{:<16} {:>5} s", "total", start.elapsed().as_secs());
    let failed = ended.into_iter().find(|step| step.result.is_err());
    failed.map_or(Ok(()), |Ended { step, result, .. }| {
        result.with_context(|| format!("step {} failed", step.name))
    })
}

/// Runs one step, by its name.
///
/// # Errors
/// There is none of this name, or it fails.
pub(crate) fn run_one(steps: &[Step], name: &str) -> Result<()> {
    match steps.iter().find(|step| step.name == name) {
        Some(step) => (step.run)(),
        None => bail!("no step is called {name}"),
    }
}

/// A step in a process of its own.
struct Beside {
    step: Step,
    process: JoinHandle<(io::Result<ExitStatus>, Duration)>,
}

impl Beside {
    fn start(step: Step) -> Result<Self> {
        let log = log_of(step)?;
        let mut command = Command::new("nice");
        // Little lower: on a busy machine a step of the lowest priority would hardly run.
        command.args(["-n", "3"]).arg(std::env::current_exe()?).args(["ci", "--only", step.name]);
        command.stdout(log.try_clone()?).stderr(log);
        let process = thread::spawn(move || {
            let start = Instant::now();
            let status = command.status();
            (status, start.elapsed())
        });
        Ok(Self { step, process })
    }

    /// Waits until the process has ended, and prints its output.
    fn wait(self) -> Ended {
        let (status, took) = self.process.join().expect("waiting does not panic");
        println!("== {}", self.step.name);
        let printed =
            File::open(log_path(self.step)).and_then(|mut log| io::copy(&mut log, &mut io::stdout()));
        let result = status.context("cannot run nice").and_then(|status| {
            printed.context("its output")?;
            ensure!(status.success(), "{status}");
            Ok(())
        });
        Ended { step: self.step, took, result }
    }
}

fn log_path(step: Step) -> PathBuf {
    target_dir().join("steps").join(step.name.replace(' ', "-"))
}

fn log_of(step: Step) -> Result<File> {
    let path = log_path(step);
    fs::create_dir_all(target_dir().join("steps"))?;
    File::create(&path).with_context(|| path.display().to_string())
}
