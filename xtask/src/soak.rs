//! `make soak`: judges that take too long for `make test`, and have found defects.

use anyhow::Result;

use crate::command::{cargo, run as run_command};
use crate::step::{Step, run_one, run_steps};
use crate::{
    c_library, ceph, clients, coverage, csi, deps, fuzz, interop, miri, package, product_bugs, sim, torture,
    wheel,
};

/// Options of `cargo xtask soak`.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Run this step alone, for example "planted bugs"
    #[arg(long, value_name = "STEP")]
    only: Option<String>,
    /// Instead, keep one target busy for this many hours, with everything at once: hosts that come and go, attacks,
    /// reloads, control calls, kills; every block and pair is compared, and memory and descriptors have to stay
    #[arg(long, value_name = "N", conflicts_with = "only")]
    hours: Option<f64>,
}

/// The steps, with the time that each takes on two cores.
const STEPS: &[Step] = &[
    Step::new("installation", 240, deps::install),
    Step::new("planted bugs", 3600, || product_bugs::run(&product_bugs::Options::default())),
    Step::new("simulation", 2400, sim::run_long),
    Step::new("fuzzers", 1800, || fuzz::run(&fuzz::Options::default())),
    Step::new("torture", 2400, torture::run_long),
    Step::new("half an hour of everything", 1900, || torture::soak(0.5)),
    Step::new("interop", 1200, || interop::run(&interop::Options::soak("uring"))),
    Step::new("interop, epoll", 1200, || interop::run(&interop::Options::soak("epoll"))),
    Step::new("lost targets", 600, lost_targets),
    Step::new("bridges and NBD servers", 360, || clients::run(&clients::Options::long_bridges())),
    Step::new("live page", 180, || clients::run(&clients::Options::live_page())),
    Step::new("Python wheel", 900, || wheel::build(&wheel::Options::checked())),
    Step::new("Python module with torch", 1200, || clients::run(&clients::Options::python_torch())),
    Step::new("header of the C library", 60, || c_library::header(&c_library::HeaderOptions { check: true })),
    Step::new("driver for Kubernetes", 300, csi::judge),
    Step::new("Ceph", 1500, || ceph::judge(&ceph::Options::default())),
    Step::new("memcheck", 1800, || miri::run(&miri::Options { memcheck: true })),
    Step::new("coverage", 600, coverage::run),
    Step::new("packages, built twice", 1200, package::reproducible),
];

/// Runs every step, or one of them.
pub(crate) fn run(options: &Options) -> Result<()> {
    match (options.hours, &options.only) {
        (Some(hours), _) => torture::soak(hours),
        (None, Some(name)) => run_one(STEPS, name),
        (None, None) => run_steps(STEPS),
    }
}

/// One of three targets, killed or stopped a hundred times under load, without and with second copies.
fn lost_targets() -> Result<()> {
    let mut tests = cargo(&["test", "--locked", "--workspace", "--test", "command", "--", "--nocapture"]);
    run_command(tests.arg("spread::a_lost").env("NVLANE_SPREAD_KILLS", "100"))
}
