//! Mutations of the wire-facing crates: which changes their tests do not notice.

use anyhow::{Result, ensure};

use crate::command::{cargo, target_dir};
use crate::deps;

/// Options of `cargo xtask mutants`.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// One part of many, such as 1/20, of mutants all over the crates; without it, all: hours
    #[arg(long, value_name = "K/N")]
    shard: Option<String>,
    /// Only mutants of this file; may be said again
    #[arg(long, value_name = "PATH")]
    file: Vec<String>,
    /// Mutants tested at once
    #[arg(long, value_name = "N", default_value_t = 1)]
    jobs: u32,
}

/// Mutates `wire` and `proto`, runs the tests of both for each mutant, and shows those that live.
///
/// # Errors
/// If the tests fail without a mutation, or a mutant cannot be tested. Mutants that live are no error: docs/testing.md.
pub(crate) fn run(options: &Options) -> Result<()> {
    deps::install_for_mutants()?;
    let mut command = cargo(&["mutants", "--package", "nvlane-wire", "--package", "nvlane-proto"]);
    command.args(["--test-package", "nvlane-wire,nvlane-proto", "--no-shuffle", "--colors", "never"]);
    command.args(["--output".as_ref(), target_dir().join("mutants").as_os_str()]);
    command.args(["--jobs".to_owned(), options.jobs.to_string()]);
    if let Some(shard) = &options.shard {
        command.args(["--shard", shard, "--sharding", "round-robin"]);
    }
    for file in &options.file {
        command.args(["--file", file]);
    }
    // A mutant is built oftener than it runs; each copy of the tree is built in a place of its own.
    command.env("CARGO_PROFILE_DEV_OPT_LEVEL", "0").env("CARGO_PROFILE_DEV_DEBUG", "none");
    command.args(["--cargo-arg", "--config=profile.dev.package.'*'.opt-level=1"]);
    command.env("CARGO_INCREMENTAL", "1").env_remove("CARGO_TARGET_DIR");
    // Proptest is to find a counterexample, not to shrink it.
    command.env("PROPTEST_MAX_SHRINK_ITERS", "0").env("PROPTEST_CASES", "64");
    let status = command.status()?;
    // 2: some live; 3: some ran into the time limit.
    ensure!(matches!(status.code(), Some(0 | 2 | 3)), "cargo mutants: {status}");
    Ok(())
}
