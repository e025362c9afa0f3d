//! The checks that every commit must pass before it is pushed; `ci` adds the slow tests.

use anyhow::Result;

use crate::command::{cargo, run};
use crate::step::Step;
use crate::{circles, trace};

/// The steps of `cargo xtask check`.
pub(crate) const STEPS: &[Step] = &[
    Step { name: "format", budget_s: 30, run: format },
    Step { name: "citations", budget_s: 2, run: || trace::run(&trace::Options::default()) },
    Step { name: "circles", budget_s: 10, run: circles::run },
    Step { name: "lints", budget_s: 300, run: lints },
    Step { name: "quick tests", budget_s: 60, run: quick_tests },
    Step { name: "documentation", budget_s: 120, run: documentation },
];

fn format() -> Result<()> {
    run(&mut cargo(&["fmt", "--all", "--check"]))
}

fn lints() -> Result<()> {
    run(&mut cargo(&["clippy", "--workspace", "--all-targets", "--locked", "--", "-D", "warnings"]))
}

/// Unit tests of every crate, and the test programs of the protocol without sockets.
fn quick_tests() -> Result<()> {
    run(&mut cargo(&["test", "--workspace", "--locked", "--lib", "--bins"]))?;
    run(&mut cargo(&["test", "--locked", "--package", "nvlane-proto", "--test", "*"]))
}

/// Test programs over real sockets, storage and processes, corpora, and doc tests: the part of `make test` beyond
/// [`quick_tests`].
///
/// # Errors
/// A test fails.
pub(crate) fn slow_tests() -> Result<()> {
    run(&mut cargo(&["test", "--workspace", "--locked", "--exclude", "nvlane-proto", "--test", "*"]))?;
    run(&mut cargo(&["test", "--workspace", "--locked", "--doc"]))
}

fn documentation() -> Result<()> {
    let mut command = cargo(&["doc", "--workspace", "--no-deps", "--document-private-items", "--locked"]);
    run(command.env("RUSTDOCFLAGS", "-D warnings"))
}
