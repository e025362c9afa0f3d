//! The steps of `make test`.

use std::process::Command;

use anyhow::Result;

use crate::command::{build_optimized, build_programs, program, run as run_command};
use crate::step::{Step, run_one, run_steps};
use crate::{check, clients, deny, deps, instructions, interop, package, sim, stranger, syscalls, torture};

/// Options of `cargo xtask ci`.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Run this step alone, for example "slow tests"
    #[arg(long, value_name = "STEP")]
    only: Option<String>,
}

/// What follows `make check`. What computes on its own runs beside what waits, so that no core is idle.
const STEPS: &[Step] = &[
    Step::new("simulator", 400, || build_optimized(&["nvlane-sim"])).beside(),
    Step::new("dependencies", 400, deny::run).beside(),
    Step::new("instructions", 400, || instructions::run(&instructions::Options::default())).beside(),
    Step::new("simulation", 1000, sim::run_many).beside(),
    Step::new("slow tests", 900, check::slow_tests),
    Step::new("programs", 60, || build_programs(&["nvlane", "nvlane-csi", "nvlane-lab"])),
    Step::new("quickstart", 60, quickstart),
    Step::new("stranger", 60, stranger::run),
    Step::new("system calls", 60, syscalls::run),
    // Most of its tests sleep.
    Step::new("clients", 180, || clients::run(&clients::Options::default())).beside(),
    Step::new("packages", 120, package::check_programs).beside(),
    Step::new("torture", 200, torture::run_some),
    Step::new("interop", 600, || interop::run(&interop::Options::default())),
];

/// Runs every check except measurements and soak tests, or one of them.
pub(crate) fn run(options: &Options) -> Result<()> {
    let installation = [
        Step::new("Rust components", 30, deps::rust_components),
        // It waits for the network while lints are compiled.
        Step::new("installation", 240, deps::install).beside(),
    ];
    let steps = [&installation, check::STEPS, STEPS].concat();
    match &options.only {
        Some(name) => run_one(&steps, name),
        None => run_steps(&steps),
    }
}

/// `make run`: verified load, which checks every block.
fn quickstart() -> Result<()> {
    run_command(Command::new(program("nvlane")?).arg("quickstart"))
}
