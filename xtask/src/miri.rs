//! Tests of the crates with unsafe code under an interpreter that detects undefined behaviour, or a tool that detects
//! invalid memory accesses.

use std::process::Command;

use anyhow::Result;

use crate::command::{cargo, root, run as run_command, target_dir};
use crate::deps;

/// Crates with unsafe code, but for ublk, which is system calls alone, the calls of the libraries of TLS and of Ceph, the block of signals before `main`, the Python
/// module, and the C library, whose programs run under memcheck (`interop/c/programs.sh`).
const UNSAFE_CRATES: [&str; 4] = ["nvlane-allocators", "nvlane-linux", "nvlane-memory", "nvlane-reactor"];

/// Tests without system calls that Miri lacks: all of the unsafe code except our own system calls.
const UNDER_MIRI: &str = "buffers:: chunks:: counter:: byte_masks:: lines:: mailbox_tests:: memory:: \
                          of_control_messages poison:: segment:: timers:: wide:: workers::";

/// Tests that valgrind cannot run: io_uring rings, which the kernel writes too, and a file of a tebibyte, which
/// valgrind tracks page by page.
const NOT_UNDER_MEMCHECK: [&str; 3] = ["ring::", "probe::", "growth_beyond_the_reservation"];

/// Random inputs per test: interpreted or emulated, each takes a hundred times as long.
const MIRI_CASES: &str = "4";
const MEMCHECK_CASES: &str = "16";

/// Options of `cargo xtask miri`.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Valgrind's memcheck over all unit tests, for want of a nightly compiler
    #[arg(long)]
    pub(crate) memcheck: bool,
}

/// Runs the unit tests of the crates with unsafe code.
pub(crate) fn run(options: &Options) -> Result<()> {
    if options.memcheck {
        return memcheck();
    }
    // The running cargo only knows its own toolchain.
    let mut command = Command::new("rustup");
    command.args("run nightly cargo miri test --locked --lib".split(' '));
    command
        .args("--package nvlane-allocators --package nvlane-memory --package nvlane-reactor --".split(' '));
    command.current_dir(root()).env_remove("CARGO").env_remove("RUSTC");
    command.args(UNDER_MIRI.split(' ')).env("PROPTEST_CASES", MIRI_CASES);
    run_command(command.env("MIRIFLAGS", "-Zmiri-disable-isolation"))
}

/// Runs memcheck on all tests whose system calls it supports.
pub(crate) fn memcheck() -> Result<()> {
    deps::install_programs(deps::VALGRIND)?;
    let mut command = cargo(&["test", "--locked", "--lib"]);
    command.args(UNSAFE_CRATES.iter().flat_map(|name| ["--package", name]));
    command.arg("--");
    command.args(NOT_UNDER_MEMCHECK.iter().flat_map(|skipped| ["--skip", skipped]));
    command.arg("--test-threads=1");
    // Valgrind runs the test program in cargo's place; the processor it emulates lacks the latest vector instructions.
    let runner = "valgrind --quiet --error-exitcode=1 --leak-check=full --errors-for-leak-kinds=definite";
    command.env("CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUNNER", runner);
    command.env("CARGO_TARGET_DIR", target_dir());
    command.env("PROPTEST_CASES", MEMCHECK_CASES);
    run_command(&mut command)
}
