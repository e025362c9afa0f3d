//! The steps of `make test`.

use anyhow::Result;

use crate::command::{cargo, run as run_command};
use crate::step::{Step, run_steps};
use crate::{check, clients, deny, deps, instructions, interop, sim, syscalls, torture};

/// Runs every check except measurements and soak tests.
///
/// # Errors
/// The first failing step's error.
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
    steps.push(Step { name: "system calls", budget_s: 90, run: syscalls::run });
    steps.push(Step { name: "simulation", budget_s: 180, run: sim::run_many });
    steps.push(Step { name: "torture", budget_s: 400, run: torture::run_some });
    steps.push(Step { name: "clients", budget_s: 180, run: || clients::run(&clients::Options::default()) });
    steps.push(Step { name: "interop", budget_s: 1200, run: || interop::run(&interop::Options::default()) });
    run_steps(&steps)
}

fn build() -> Result<()> {
    run_command(&mut cargo(&["build", "--release", "--workspace", "--locked"]))
}

/// `make run`: verified load, which checks every block.
fn quickstart() -> Result<()> {
    run_command(&mut cargo(&["run", "--release", "--locked", "--package", "nvlane", "--", "quickstart"]))
}
