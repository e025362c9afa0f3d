//! The steps of `make test`.

use std::process::Command;

use anyhow::Result;

use crate::command::{build_tested, run as run_command, tested_binary};
use crate::step::{Step, run_one, run_steps};
use crate::{check, clients, deny, deps, instructions, interop, sim, syscalls, torture};

/// Options of `cargo xtask ci`.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Run this step alone, for example "slow tests"
    #[arg(long, value_name = "STEP")]
    only: Option<String>,
}

/// What follows `make check`. What computes runs beside what mostly waits.
const STEPS: &[Step] = &[
    Step::new("programs", 400, build).beside_next(),
    Step::new("dependencies", 400, deny::run).beside_next(),
    Step::new("slow tests", 600, check::slow_tests),
    Step::new("quickstart", 60, quickstart),
    Step::new("system calls", 60, syscalls::run),
    Step::new("instructions", 240, || instructions::run(&instructions::Options::default())).beside_next(),
    Step::new("torture", 200, torture::run_some),
    Step::new("simulation", 240, sim::run_many).beside_next(),
    Step::new("clients", 180, || clients::run(&clients::Options::default())),
    Step::new("interop", 750, || interop::run(&interop::Options::default())),
];

/// Runs every check except measurements and soak tests, or one of them.
///
/// # Errors
/// The first failing step's error.
pub(crate) fn run(options: &Options) -> Result<()> {
    let installation = Step::new("installation", 240, deps::install);
    let steps = [&[installation], check::STEPS, STEPS].concat();
    match &options.only {
        Some(name) => run_one(&steps, name),
        None => run_steps(&steps),
    }
}

/// The programs that later steps run, in one call: their dependencies are compiled side by side.
fn build() -> Result<()> {
    build_tested(&["nvlane", "nvlane-sim", "nvlane-torture"])
}

/// `make run`: verified load, which checks every block.
fn quickstart() -> Result<()> {
    run_command(Command::new(tested_binary("nvlane")?).arg("quickstart"))
}
