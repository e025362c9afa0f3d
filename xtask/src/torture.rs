//! Torture of a target process over real sockets: kills, floods, and hours of everything.

use anyhow::Result;

use crate::command::{build_programs, program_path, run as run_command};

/// Options of `cargo xtask crash-loop` and `cargo xtask flood`.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Options of this command of `nvlane-lab` (see --help)
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<String>,
}

/// Kills a target under verified load: `--of blocks|pairs`, `--kills N`, `--engine uring|epoll`, `--seed S`.
pub(crate) fn crash_loop(options: &Options) -> Result<()> {
    build()?;
    run("crash-loop", &options.arguments)
}

/// Floods a target beside a host that reads: `--attacks KIND,...`, `--half-open N`, `--seconds N`, `--engine
/// uring|epoll`, `--untimed`.
pub(crate) fn flood(options: &Options) -> Result<()> {
    build()?;
    run("flood", &options.arguments)
}

/// The torture part of `make test`: on each engine forty kills of a target with blocks, twenty of one with keys and
/// values, and a flood.
pub(crate) fn run_some() -> Result<()> {
    for (of, kills) in [("blocks", "40"), ("pairs", "20")] {
        run("crash-loop", &["--of", of, "--kills", kills].map(str::to_owned))?;
    }
    let flood = ["--half-open", "1000", "--slow", "8", "--seconds", "2", "--untimed"];
    run("flood", &flood.map(String::from))
}

/// The torture part of `make soak`: twenty times as many kills, and all floods with their bars of time.
pub(crate) fn run_long() -> Result<()> {
    build()?;
    for (of, kills) in [("blocks", "1000"), ("pairs", "400")] {
        run("crash-loop", &["--of", of, "--kills", kills].map(str::to_owned))?;
    }
    run("flood", &[])
}

/// Keeps a target busy for hours, with everything at once.
pub(crate) fn soak(hours: f64) -> Result<()> {
    build()?;
    run("soak", &["--hours".to_owned(), hours.to_string()])
}

fn build() -> Result<()> {
    build_programs(&["nvlane", "nvlane-lab"])
}

fn run(task: &str, arguments: &[String]) -> Result<()> {
    let mut command = std::process::Command::new(program_path("nvlane-lab"));
    run_command(command.arg(task).args(arguments))
}
