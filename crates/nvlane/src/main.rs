//! `nvlane`: a target, host tools and a laboratory for remote NVMe over plain TCP.
#![forbid(unsafe_code)]

mod check;
mod exit;
mod host_failure;
mod logging;
mod manual;
mod perf;
mod quickstart;
mod run;
mod serve;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::exit::Failure;
use crate::logging::LogOptions;

/// The control path allocates; the data path does not.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Remote NVMe over plain TCP: a target, host tools and a laboratory.
#[derive(Debug, Parser)]
#[command(name = "nvlane", version, max_term_width = 110, after_help = exit::HELP)]
struct Cli {
    #[command(flatten)]
    log: LogOptions,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
#[allow(clippy::large_enum_variant)] // There is one of them, once.
enum Command {
    /// See it work: a target, verified load and a report in a minute, with nothing to configure.
    Quickstart(quickstart::QuickstartArguments),
    /// Serve namespaces to NVMe/TCP hosts.
    Target(serve::TargetArguments),
    /// Check a target's configuration and its storage, and change nothing.
    Check(check::CheckArguments),
    /// Put load on a namespace and measure it; `perf ceiling` measures what plain sockets allow.
    Perf(perf::PerfArguments),
    /// Write a completion script for a shell.
    Completions(manual::CompletionsArguments),
    /// Write the manual pages.
    Man(manual::ManArguments),
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    // A target's log is its voice; tools speak through their output.
    let is_service = matches!(cli.command, Command::Target(_));
    logging::start(&cli.log, if is_service { "info" } else { "warn" });
    let result = match cli.command {
        Command::Quickstart(arguments) => quickstart::quickstart(&arguments),
        Command::Target(arguments) => serve::target(&arguments),
        Command::Check(arguments) => check::check(&arguments),
        Command::Perf(arguments) => perf::perf(&arguments),
        Command::Completions(arguments) => manual::completions(&arguments),
        Command::Man(arguments) => manual::man(&arguments),
    };
    match result {
        Ok(code) => code,
        Err(failure) => exit::report(&failure),
    }
}

/// How a command ends.
type Ended = Result<ExitCode, Failure>;
