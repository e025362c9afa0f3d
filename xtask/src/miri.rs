//! The unsafe crate under an interpreter that sees undefined behaviour, or under a tool that sees wrong memory
//! accesses.

use std::process::Command;

use anyhow::Result;

use crate::command::{cargo, root, run as run_command, target_dir};
use crate::deps;

/// Tests that need nothing of the kernel that Miri does not know: all that is unsafe and no system call of ours.
const UNDER_MIRI: [&str; 12] = [
    "buffers::",
    "chunks::",
    "counter::",
    "equal_bytes::",
    "lines::",
    "mailbox::",
    "memory::",
    "of_control_messages",
    "segment::",
    "timers::",
    "wide::",
    "workers::",
];

/// Tests of what valgrind does not understand, rings that the kernel and we write to, and one that opens a tebibyte,
/// which valgrind notes down page by page.
const NOT_UNDER_MEMCHECK: [&str; 3] = ["ring::", "probe::", "growth_beyond_the_reservation"];

/// Random inputs to a test: interpreted, or emulated, each takes a hundred times as long.
const MIRI_CASES: &str = "4";
const MEMCHECK_CASES: &str = "16";

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
    // Cargo itself, which runs us, knows no toolchain but its own.
    let mut command = Command::new("rustup");
    command.args([
        "run",
        "nightly",
        "cargo",
        "miri",
        "test",
        "--locked",
        "--package",
        "nvlane-reactor",
        "--lib",
        "--",
    ]);
    command.current_dir(root()).env_remove("CARGO").env_remove("RUSTC");
    command.args(UNDER_MIRI).env("PROPTEST_CASES", MIRI_CASES);
    run_command(command.env("MIRIFLAGS", "-Zmiri-disable-isolation"))
}

/// Memcheck over all tests that make only system calls it knows.
///
/// # Errors
/// As [`run`].
pub(crate) fn memcheck() -> Result<()> {
    deps::install_valgrind()?;
    let mut command = cargo(&["test", "--locked", "--package", "nvlane-reactor", "--lib", "--"]);
    command.args(NOT_UNDER_MEMCHECK.iter().flat_map(|skipped| ["--skip", skipped]));
    command.arg("--test-threads=1");
    // Valgrind stands between cargo and the test program; the processor it emulates has no later vector instructions.
    let runner = "valgrind --quiet --error-exitcode=1 --leak-check=full --errors-for-leak-kinds=definite";
    command.env("CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUNNER", runner);
    command.env("CARGO_TARGET_DIR", target_dir());
    command.env("PROPTEST_CASES", MEMCHECK_CASES);
    run_command(&mut command)
}
