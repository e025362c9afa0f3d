//! `make soak`: judges that take too long for `make test`, and have found defects.

use anyhow::Result;

use crate::step::{Step, run_one, run_steps};
use crate::{coverage, deps, fuzz, interop, miri, package, product_bugs, sim, torture};

/// Options of `cargo xtask soak`.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Run this step alone, for example "planted bugs"
    #[arg(long, value_name = "STEP")]
    only: Option<String>,
}

/// The steps, with the time that each takes on two cores.
const STEPS: &[Step] = &[
    Step::new("installation", 240, deps::install),
    Step::new("planted bugs", 3600, || product_bugs::run(&product_bugs::Options::default())),
    Step::new("simulation", 2400, sim::run_long),
    Step::new("fuzzers", 1800, || fuzz::run(&fuzz::Options::default())),
    Step::new("torture", 2400, torture::run_long),
    Step::new("interop", 1200, || interop::run(&interop::Options::soak("uring"))),
    Step::new("interop, epoll", 1200, || interop::run(&interop::Options::soak("epoll"))),
    Step::new("memcheck", 1800, || miri::run(&miri::Options { memcheck: true })),
    Step::new("coverage", 600, coverage::run),
    Step::new("packages, built twice", 1200, package::reproducible),
];

/// Runs every step, or one of them.
///
/// # Errors
/// The first failing step's error.
pub(crate) fn run(options: &Options) -> Result<()> {
    match &options.only {
        Some(name) => run_one(STEPS, name),
        None => run_steps(STEPS),
    }
}
