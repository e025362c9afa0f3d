//! The checks that every commit must pass before it is pushed; `ci` adds the slow tests.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use anyhow::Result;

use crate::command::{cargo, packages, root, run, run_tests};
use crate::step::Step;
use crate::{circles, trace};

/// The package of the protocol, whose test programs need no sockets.
const PROTOCOL: &str = "crates/protocol/proto";

/// The steps of `cargo xtask check`.
pub(crate) const STEPS: &[Step] = &[
    Step::new("format", 30, format),
    Step::new("citations", 2, || trace::run(&trace::Options::default())),
    Step::new("circles", 10, circles::run),
    Step::new("lints", 300, lints),
    Step::new("quick tests", 480, quick_tests).after_those_beside(),
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
    for name in test_programs(&root().join(PROTOCOL))? {
        command.arg("--test").arg(name);
    }
    run_tests(&mut command)
}

/// Test programs over real sockets, storage and processes, corpora, and doc tests: the part of `make test` beyond
/// [`quick_tests`]. By name and not by package: without one of the packages the dependencies would have other features,
/// and all of them would be compiled once more.
pub(crate) fn slow_tests() -> Result<()> {
    let mut slow = BTreeSet::new();
    for package in packages()? {
        slow.append(&mut test_programs(&root().join(package))?);
    }
    let mut command = cargo(&["test", "--workspace", "--locked", "--no-fail-fast"]);
    for name in slow.difference(&test_programs(&root().join(PROTOCOL))?) {
        command.arg("--test").arg(name);
    }
    run_tests(&mut command)?;
    run_tests(&mut cargo(&["test", "--workspace", "--locked", "--doc"]))
}

/// The names of a package's test programs.
fn test_programs(package: &Path) -> Result<BTreeSet<String>> {
    let directory = package.join("tests");
    let mut names = BTreeSet::new();
    if !directory.is_dir() {
        return Ok(names);
    }
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "rs") || path.join("main.rs").is_file() {
            names.extend(path.file_stem().map(|stem| stem.to_string_lossy().into_owned()));
        }
    }
    Ok(names)
}

fn documentation() -> Result<()> {
    let mut command = cargo(&["doc", "--workspace", "--no-deps", "--document-private-items", "--locked"]);
    run(command.env("RUSTDOCFLAGS", "-D warnings"))
}
