//! The checks that every commit must pass before it is pushed; `ci` adds the slow tests.

use std::collections::BTreeSet;
use std::fs;

use anyhow::Result;

use crate::command::{cargo, root, run, run_tests};
use crate::step::Step;
use crate::{circles, trace};

/// The steps of `cargo xtask check`.
pub(crate) const STEPS: &[Step] = &[
    Step::new("format", 30, format),
    Step::new("citations", 2, || trace::run(&trace::Options::default())),
    Step::new("circles", 10, circles::run),
    Step::new("lints", 300, lints),
    Step::new("quick tests", 480, quick_tests),
    Step::new("documentation", 120, documentation),
];

fn format() -> Result<()> {
    run(&mut cargo(&["fmt", "--all", "--check"]))
}

fn lints() -> Result<()> {
    run(&mut cargo(&["clippy", "--workspace", "--all-targets", "--locked", "--", "-D", "warnings"]))
}

/// Unit tests of every crate, and the test programs of the protocol without sockets: those of its names in other crates,
/// too. In one call for the whole workspace: dependencies with the features of one package would be compiled again.
fn quick_tests() -> Result<()> {
    let mut command = cargo(&["test", "--workspace", "--locked", "--lib", "--bins", "--no-fail-fast"]);
    for name in protocol_tests()? {
        command.arg("--test").arg(name);
    }
    run_tests(&mut command)
}

/// The names of the protocol's test programs.
fn protocol_tests() -> Result<BTreeSet<String>> {
    let mut names = BTreeSet::new();
    for entry in fs::read_dir(root().join("crates/proto/tests"))? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "rs") || path.join("main.rs").is_file() {
            names.extend(path.file_stem().map(|stem| stem.to_string_lossy().into_owned()));
        }
    }
    Ok(names)
}

/// Test programs over real sockets, storage and processes, corpora, and doc tests: the part of `make test` beyond
/// [`quick_tests`].
///
/// # Errors
/// A test fails.
pub(crate) fn slow_tests() -> Result<()> {
    let programs = ["--exclude", "nvlane-proto", "--test", "*", "--no-fail-fast"];
    run_tests(cargo(&["test", "--workspace", "--locked"]).args(programs))?;
    run_tests(&mut cargo(&["test", "--workspace", "--locked", "--doc"]))
}

fn documentation() -> Result<()> {
    let mut command = cargo(&["doc", "--workspace", "--no-deps", "--document-private-items", "--locked"]);
    run(command.env("RUSTDOCFLAGS", "-D warnings"))
}
