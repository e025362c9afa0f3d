//! What `make test` does, step by step.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::command::{cargo, run as run_command};
use crate::{check, clients, deny, deps, instructions, interop, sim, syscalls, torture};

/// One step, and how long it should take on two cores from a clean clone. Going over the budget is
/// reported, but no failure: machines are noisy.
#[derive(Clone, Copy)]
pub(crate) struct Step {
    pub(crate) name: &'static str,
    pub(crate) budget_s: u64,
    pub(crate) run: fn() -> Result<()>,
}

/// Runs everything but what times or soaks.
///
/// # Errors
/// Of the first step that fails.
pub(crate) fn run() -> Result<()> {
    let mut steps = vec![Step { name: "installation", budget_s: 240, run: deps::install }];
    steps.extend_from_slice(check::STEPS);
    steps.push(Step { name: "slow tests", budget_s: 600, run: check::slow_tests });
    steps.push(Step { name: "dependencies", budget_s: 240, run: deny::run });
    steps.push(Step {
        name: "instructions",
        budget_s: 180,
        run: || instructions::run(&instructions::Options::default()),
    });
    steps.push(Step { name: "release build", budget_s: 300, run: build });
    steps.push(Step { name: "quickstart", budget_s: 120, run: quickstart });
    steps.push(Step { name: "system calls", budget_s: 60, run: syscalls::run });
    steps.push(Step { name: "simulation", budget_s: 180, run: sim::run_many });
    steps.push(Step { name: "torture", budget_s: 400, run: torture::run_some });
    steps.push(Step { name: "clients", budget_s: 120, run: || clients::run(&clients::Options::default()) });
    steps.push(Step { name: "interop", budget_s: 1200, run: || interop::run(&interop::Options::default()) });
    run_steps(&steps)
}

fn build() -> Result<()> {
    run_command(&mut cargo(&["build", "--release", "--workspace", "--locked"]))
}

/// What `make run` does: loads whose every block is checked.
fn quickstart() -> Result<()> {
    run_command(&mut cargo(&["run", "--release", "--locked", "--package", "nvlane", "--", "quickstart"]))
}

/// Runs the steps in order, up to the first that fails, and prints what each took.
///
/// # Errors
/// Of the first step that fails.
pub(crate) fn run_steps(steps: &[Step]) -> Result<()> {
    let mut times = Vec::new();
    let mut result = Ok(());
    for step in steps {
        println!("== {}", step.name);
        let start = Instant::now();
        result = (step.run)().with_context(|| format!("step {} failed", step.name));
        times.push((step, start.elapsed()));
        if result.is_err() {
            break;
        }
    }
    println!("\n{:<16} {:>7} {:>8}", "step", "took", "budget");
    for (step, took) in &times {
        let over = if took.as_secs() > step.budget_s { "  over" } else { "" };
        println!("{:<16} {:>5} s {:>6} s{over}", step.name, took.as_secs(), step.budget_s);
    }
    let took: Duration = times.iter().map(|(_, took)| *took).sum();
    let budget: u64 = steps.iter().map(|step| step.budget_s).sum();
    println!("{:<16} {:>5} s {budget:>6} s", "total", took.as_secs());
    result
}
