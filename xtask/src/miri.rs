//! The unsafe crate under an interpreter that sees undefined behaviour, or under a tool that sees wrong memory accesses.

use anyhow::Result;

use crate::command::{cargo, run as run_command, target_dir};
use crate::deps;

/// Tests that make no system call but for memory.
const FREE_OF_SYSTEM_CALLS: [&str; 4] = ["lines::", "memory::", "timers::", "segment::"];

/// Those that take no pool: what one reserves Miri would have to allocate.
const FREE_OF_POOLS: [&str; 2] = ["lines::", "timers::"];

/// Options of `cargo xtask miri`.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Valgrind's memcheck over all unit tests, for want of a nightly compiler
    #[arg(long)]
    memcheck: bool,
}

/// Runs the unit tests of `reactor`.
///
/// # Errors
/// If they fail, or do with memory what they must not.
pub(crate) fn run(options: &Options) -> Result<()> {
    if options.memcheck {
        return memcheck();
    }
    let mut command =
        cargo(&["+nightly", "miri", "test", "--locked", "--package", "nvlane-reactor", "--lib", "--"]);
    run_command(command.args(FREE_OF_POOLS).env("MIRIFLAGS", "-Zmiri-disable-isolation"))
}

/// Memcheck over the same tests, and those that make system calls it knows.
///
/// # Errors
/// As [`run`].
pub(crate) fn memcheck() -> Result<()> {
    deps::install_valgrind()?;
    let mut command = cargo(&["test", "--locked", "--package", "nvlane-reactor", "--lib", "--"]);
    command.args(FREE_OF_SYSTEM_CALLS);
    command.arg("--test-threads=1");
    // Valgrind stands between cargo and the test program; the processor it emulates has no later vector instructions.
    let runner = "valgrind --quiet --error-exitcode=1 --leak-check=full --errors-for-leak-kinds=definite";
    command.env("CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUNNER", runner);
    command.env("CARGO_TARGET_DIR", target_dir());
    command.env("PROPTEST_CASES", "16");
    run_command(&mut command)
}
