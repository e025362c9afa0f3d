//! The steps of a check, run in order, each with its time and its budget.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};

/// One step, and its time budget on two cores from a clean clone. Exceeding the budget is reported but is no failure:
/// machines are noisy.
#[derive(Clone, Copy)]
pub(crate) struct Step {
    pub(crate) name: &'static str,
    pub(crate) budget_s: u64,
    pub(crate) run: fn() -> Result<()>,
}

/// Runs the steps in order, up to the first that fails, and prints the time of each.
///
/// # Errors
/// The error of the first failing step.
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
