//! Mutation tests by `cargo mutants`: changes to the code that the tests do not notice.
//!
//! `.cargo/mutants.toml` has its options, and the mutants that are equivalent to the code.

use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::command::{root, target_dir};
use crate::deps;

/// A crate whose code is changed.
struct Subject {
    /// Its package is `nvlane-` and this.
    name: &'static str,
    /// Only these of its files; all, if none are named.
    files: &'static [&'static str],
    /// Packages whose tests judge; its own, if none are named.
    packages: &'static [&'static str],
    /// Test programs that judge, besides unit tests.
    tests: &'static [&'static str],
}

/// The slowest sweeps of `proto` (`sweep`, `sequences`, `models`) and `allocation` are omitted.
const SUBJECTS: [Subject; 5] = [
    Subject { name: "wire", files: &[], packages: &[], tests: &[] },
    Subject {
        name: "proto",
        files: &[],
        packages: &[],
        tests: &[
            "transitions",
            "golden",
            "host_controller",
            "host_commands",
            "hostile",
            "streams",
            "pair",
            "scattered",
        ],
    },
    Subject { name: "store", files: &[], packages: &[], tests: &[] },
    Subject { name: "kv", files: &["crates/storage/kv/src/log/*.rs"], packages: &[], tests: &[] },
    Subject {
        name: "subsystem",
        files: COMMAND_PATH,
        packages: &["nvlane-subsystem", "nvlane-sim"],
        tests: &["control", "target", "seeds"],
    },
];

/// The files of `subsystem` that parse, check and execute commands.
const COMMAND_PATH: &[&str] = &[
    "crates/target/subsystem/src/control_plane/admin.rs",
    "crates/target/subsystem/src/control_plane/admin/**/*.rs",
    "crates/target/subsystem/src/io_path/attached.rs",
    "crates/target/subsystem/src/io_path/buffer_quota.rs",
    "crates/target/subsystem/src/io_path/commands.rs",
    "crates/target/subsystem/src/io_path/digest_queue.rs",
    "crates/target/subsystem/src/io_path/exclusion.rs",
    "crates/target/subsystem/src/io_path/executor.rs",
    "crates/target/subsystem/src/objects/flush_epochs.rs",
    "crates/target/subsystem/src/io_path/fused.rs",
    "crates/target/subsystem/src/io_path/fused_pairs.rs",
    "crates/target/subsystem/src/messages/key_value/*.rs",
    "crates/target/subsystem/src/io_path/key_value_io/*.rs",
    "crates/target/subsystem/src/io_path/log_waiters.rs",
    "crates/target/subsystem/src/io_path/log_waiters/*.rs",
    "crates/target/subsystem/src/io_path/nvm_io.rs",
    "crates/target/subsystem/src/io_path/nvm_status.rs",
    "crates/target/subsystem/src/io_path/reserve.rs",
    "crates/target/subsystem/src/io_path/running.rs",
    "crates/target/subsystem/src/serving/dispatch.rs",
];

/// Memory that a test program may write to, bytes: some mutants take all that there is.
const MEMORY_BYTES: u64 = 12 << 30;

/// Seeds of the simulation that judge.
const SEED_COUNT: &str = "300";

/// Options of `cargo xtask mutants`.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Only mutants of this crate
    #[arg(value_name = "CRATE", value_parser = SUBJECTS.map(|subject| subject.name))]
    only: Option<String>,
    /// One part of all mutants, such as 1/20, spread over each crate
    #[arg(long, value_name = "K/N", default_value = "0/1")]
    shard: String,
    /// Only mutants of this file, such as crates/protocol/wire/src/pdu.rs; may be given several times
    #[arg(long, value_name = "PATH")]
    file: Vec<String>,
    /// Mutants tested at once
    #[arg(long, value_name = "N", default_value_t = 1)]
    jobs: usize,
}

/// Mutates the crates, runs their judges for each mutant, and prints the survivors.
///
/// # Errors
/// The tests fail without a mutation, or the options are wrong. Survivors are no error: docs/testing.md.
pub(crate) fn run(options: &Options) -> Result<()> {
    deps::cargo_tool("cargo-mutants", "27.1.0", &[])?;
    let is_wanted = |subject: &&Subject| {
        let folder = format!("/{}/src/", subject.name);
        options.only.as_ref().is_none_or(|only| only == subject.name)
            && (options.file.is_empty() || options.file.iter().any(|file| file.contains(&folder)))
    };
    for subject in SUBJECTS.iter().filter(is_wanted) {
        let mut command = Command::new("prlimit");
        command.args([format!("--data={MEMORY_BYTES}").as_str(), "--", "cargo", "mutants"]);
        command.arg("--package").arg(format!("nvlane-{}", subject.name));
        command.args(subject.packages.iter().flat_map(|package| ["--test-package", package]));
        let of_subject = subject.files.iter().copied().filter(|_| options.file.is_empty());
        for file in options.file.iter().map(String::as_str).chain(of_subject) {
            command.args(["--file", file]);
        }
        command.args(["--sharding", "round-robin", "--shard", &options.shard]);
        command.arg("--jobs").arg(options.jobs.to_string());
        let output = target_dir().join("mutants").join(subject.name);
        std::fs::create_dir_all(&output).with_context(|| output.display().to_string())?;
        command.arg("--output").arg(output);
        command.arg("--").args(subject.tests.iter().map(|test| format!("--test={test}")));
        // Proptest must find a counterexample, but need not shrink or keep it.
        command.env("PROPTEST_MAX_SHRINK_ITERS", "0").env("PROPTEST_CASES", "64");
        command.env("PROPTEST_DISABLE_FAILURE_PERSISTENCE", "1").env("INSTA_UPDATE", "no");
        command.env("NVLANE_SEEDS", SEED_COUNT);
        let status = command.current_dir(root()).status().context("cannot run prlimit")?;
        // Survivors, and mutants whose tests do not end.
        let is_judged = status.success() || matches!(status.code(), Some(2 | 3));
        ensure!(is_judged, "cargo mutants: {status}");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::packages;

    #[test]
    fn every_file_and_test_program_that_is_named_exists() {
        for file in SUBJECTS.iter().flat_map(|subject| subject.files) {
            let path = file.split('*').next().expect("a part before the first asterisk");
            assert!(root().join(path).exists(), "{file}");
        }
        let folders: Vec<_> =
            packages().unwrap().iter().map(|package| root().join(package).join("tests")).collect();
        for test in SUBJECTS.iter().flat_map(|subject| subject.tests) {
            let paths = [format!("{test}.rs"), format!("{test}/main.rs")];
            let is_there = paths.iter().any(|path| folders.iter().any(|folder| folder.join(path).is_file()));
            assert!(is_there, "{test}");
        }
    }
}
