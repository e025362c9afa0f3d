//! The simulation: many seeds, or one.

use std::process::Command;

use anyhow::Result;

use crate::command::{optimized_program, run as run_command};

/// Options of `cargo xtask sim`.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Options of `nvlane-sim`: --seeds N, --seed S, --coverage, --crash-states N, --twice
    /// (see --help)
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<String>,
}

/// Runs the simulator.
pub(crate) fn run(options: &Options) -> Result<()> {
    let mut command = Command::new(optimized_program("nvlane-sim")?);
    // Each seed allocates and frees the same amounts: glibc keeps the pages instead of asking for them again.
    for name in ["MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_"] {
        command.env(name, KEPT_BYTES);
    }
    run_command(command.args(&options.arguments))
}

/// What glibc keeps of freed memory, bytes.
const KEPT_BYTES: &str = "1073741824";

/// Four thousand seeds, which must reach all of lab/sim/coverage.txt.
const SEEDS: &[&str] = &["--seeds", "4000", "--coverage"];

/// Many more, and other crash states.
const MORE_SEEDS: &[&str] = &["--from", "4000", "--seeds", "106000", "--keep-going"];

/// The simulation part of `make soak`.
pub(crate) fn run_long() -> Result<()> {
    run_each(&[MORE_SEEDS, &["--crash-states", "64"]])
}

/// The simulation part of `make test`: four thousand seeds and what they reach, and the crash states.
pub(crate) fn run_many() -> Result<()> {
    run_each(&[SEEDS, &["--crash-states", "4"]])
}

fn run_each(runs: &[&[&str]]) -> Result<()> {
    for arguments in runs {
        run(&Options { arguments: arguments.iter().map(ToString::to_string).collect() })?;
    }
    Ok(())
}
