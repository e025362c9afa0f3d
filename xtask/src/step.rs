//! The steps of a check, run in order, each with its time, its share of the total, its budget, and the free disk space
//! after it.

use std::fs::{self, File};
use std::io;
use std::path::PathBuf;
use std::process::{Command, ExitStatus};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
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
    is_beside: bool,
    needs_those_beside: bool,
}

impl Step {
    /// A step on its own.
    pub(crate) const fn new(name: &'static str, budget_s: u64, run: fn() -> Result<()>) -> Self {
        Self { name, budget_s, run, is_beside: false, needs_those_beside: false }
    }

    /// A step beside the steps that follow, at a lower priority, one after the other. Its output is printed when a step beside it
    /// has ended.
    pub(crate) const fn beside(self) -> Self {
        Self { is_beside: true, ..self }
    }

    /// A step that begins when all steps beside it have ended.
    pub(crate) const fn after_those_beside(self) -> Self {
        Self { needs_those_beside: true, ..self }
    }
}

/// How a step ended.
struct Ended {
    step: Step,
    took: Duration,
    /// Of the file system of cargo's target directory, GiB; `None` if it is not known.
    free_gib: Option<u64>,
    result: Result<()>,
}

impl Ended {
    /// A step that has just ended.
    fn now(step: Step, took: Duration, result: Result<()>) -> Self {
        let space = rustix::fs::statvfs(target_dir()).ok();
        Self { step, took, free_gib: space.map(|space| (space.f_bavail * space.f_frsize) >> 30), result }
    }
}

/// Runs the steps in order, up to the first that fails, and prints the time of each.
pub(crate) fn run_steps(steps: &[Step]) -> Result<()> {
    let start = Instant::now();
    let (mut ended, mut beside) = (Vec::new(), Beside::new());
    for step in steps {
        if step.is_beside {
            beside.add(*step);
            continue;
        }
        if step.needs_those_beside {
            ended.extend(beside.all_ended());
            if ended.iter().any(|step| step.result.is_err()) {
                break;
            }
        }
        println!("== {}", step.name);
        let start = Instant::now();
        let result = (step.run)();
        ended.push(Ended::now(*step, start.elapsed(), result));
        ended.extend(beside.ended());
        if ended.iter().any(|step| step.result.is_err()) {
            break;
        }
    }
    let has_failed = ended.iter().any(|step| step.result.is_err());
    ended.extend(beside.finish(has_failed));
    let total = start.elapsed();
    println!("\n{:<18} {:>7} {:>6} {:>8} {:>10}", "step", "took", "share", "budget", "disk free");
    for Ended { step, took, free_gib, .. } in &ended {
        let share = took.as_secs_f64() * 100.0 / total.as_secs_f64();
        let free = free_gib.map_or_else(|| "unknown".to_owned(), |gib| format!("{gib} GiB"));
        let over = if took.as_secs() > step.budget_s { "  over" } else { "" };
        let note = if step.is_beside { "  beside others" } else { "" };
        let (took_s, budget_s) = (took.as_secs(), step.budget_s);
        println!("{:<18} {took_s:>5} s {share:>4.0} % {budget_s:>6} s {free:>10}{over}{note}", step.name);
    }
    println!("{:<18} {:>5} s", "total", total.as_secs());
    let failed = ended.into_iter().find(|step| step.result.is_err());
    failed.map_or(Ok(()), |Ended { step, result, .. }| {
        result.with_context(|| format!("step {} failed", step.name))
    })
}

/// Runs one step, by its name.
pub(crate) fn run_one(steps: &[Step], name: &str) -> Result<()> {
    match steps.iter().find(|step| step.name == name) {
        Some(step) => (step.run)(),
        None => bail!("no step is called {name}"),
    }
}

/// Steps in processes of their own, one at a time and in order.
struct Beside {
    /// `None` once no more are added.
    queue: Option<Sender<Step>>,
    ended: Receiver<(Step, Duration, io::Result<ExitStatus>)>,
    /// Steps that have not ended.
    count: usize,
    /// Set when those that have not begun are left out.
    stops: Arc<AtomicBool>,
}

impl Beside {
    fn new() -> Self {
        let ((queue, steps), (tell, ended)) = (channel::<Step>(), channel());
        let stops = Arc::new(AtomicBool::new(false));
        let is_stopped = Arc::clone(&stops);
        thread::spawn(move || {
            for step in steps {
                if is_stopped.load(Ordering::Relaxed) {
                    break;
                }
                let start = Instant::now();
                let status = run_beside(step);
                // The receiver is gone once the run has ended.
                let _ = tell.send((step, start.elapsed(), status));
            }
        });
        Self { queue: Some(queue), ended, count: 0, stops }
    }

    /// Adds a step, which runs when those before it have ended.
    fn add(&mut self, step: Step) {
        if let Some(queue) = &self.queue {
            // The thread takes steps until there is no queue.
            let _ = queue.send(step);
            self.count += 1;
        }
    }

    /// The steps that have ended by now, whose output is printed.
    fn ended(&mut self) -> Vec<Ended> {
        let ended: Vec<_> = self.ended.try_iter().map(printed).collect();
        self.count -= ended.len();
        ended
    }

    /// Waits for the steps that have not ended.
    fn all_ended(&mut self) -> Vec<Ended> {
        let ended: Vec<_> = self.ended.iter().take(self.count).map(printed).collect();
        self.count = 0;
        ended
    }

    /// Waits for all steps, or for the one that runs if the others are left out.
    fn finish(&mut self, leaves_out: bool) -> Vec<Ended> {
        self.stops.store(leaves_out, Ordering::Relaxed);
        self.queue = None;
        self.ended.iter().map(printed).collect()
    }
}

fn run_beside(step: Step) -> io::Result<ExitStatus> {
    fs::create_dir_all(target_dir().join("steps"))?;
    let log = File::create(log_path(step))?;
    let mut command = Command::new("nice");
    // Little lower: on a busy machine a step of the lowest priority would hardly run.
    command.args(["-n", "3"]).arg(std::env::current_exe()?).args(["ci", "--only", step.name]);
    command.stdout(log.try_clone()?).stderr(log).status()
}

/// Prints the output of a step that has ended.
fn printed((step, took, status): (Step, Duration, io::Result<ExitStatus>)) -> Ended {
    println!("== {}", step.name);
    let printed = File::open(log_path(step)).and_then(|mut log| io::copy(&mut log, &mut io::stdout()));
    let result = status.context("cannot run nice").and_then(|status| {
        printed.context("its output")?;
        ensure!(status.success(), "{status}");
        Ok(())
    });
    Ended::now(step, took, result)
}

fn log_path(step: Step) -> PathBuf {
    target_dir().join("steps").join(step.name.replace(' ', "-"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_that_needs_those_beside_does_not_begin_when_one_of_them_has_failed() {
        static HAS_BEGUN: AtomicBool = AtomicBool::new(false);
        let steps = [
            // This test program, which has no such command.
            Step::new("unknown", 1, || Ok(())).beside(),
            Step::new("first", 1, || Ok(())),
            Step::new("second", 1, || {
                HAS_BEGUN.store(true, Ordering::Relaxed);
                Ok(())
            })
            .after_those_beside(),
        ];
        let error = run_steps(&steps).expect_err("one fails");
        assert_eq!(error.to_string(), "step unknown failed");
        assert!(!HAS_BEGUN.load(Ordering::Relaxed));
    }
}
