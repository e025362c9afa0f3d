//! What every commit passes.

use anyhow::Result;

use crate::ci::Step;
use crate::command::{cargo, run};
use crate::trace;

/// The steps of `cargo xtask check`.
pub(crate) const STEPS: &[Step] = &[
    Step { name: "format", budget_s: 30, run: format },
    Step { name: "citations", budget_s: 2, run: || trace::run(&trace::Options::default()) },
    Step { name: "lints", budget_s: 300, run: lints },
    Step { name: "tests", budget_s: 600, run: tests },
    Step { name: "documentation", budget_s: 120, run: documentation },
];

fn format() -> Result<()> {
    run(&mut cargo(&["fmt", "--all", "--check"]))
}

fn lints() -> Result<()> {
    run(&mut cargo(&["clippy", "--workspace", "--all-targets", "--locked", "--", "-D", "warnings"]))
}

fn tests() -> Result<()> {
    run(&mut cargo(&["test", "--workspace", "--locked"]))
}

fn documentation() -> Result<()> {
    let mut command = cargo(&["doc", "--workspace", "--no-deps", "--document-private-items", "--locked"]);
    run(command.env("RUSTDOCFLAGS", "-D warnings"))
}
