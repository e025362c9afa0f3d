//! `nvlane`: a target, host tools and a laboratory for remote NVMe over plain TCP.
#![forbid(unsafe_code)]

mod check;
mod exit;
mod host_failure;
mod logging;
mod manual;
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
#[allow(clippy::large_enum_variant)] // There is one.
enum Command {
    /// Serve namespaces to NVMe/TCP hosts.
    Target(serve::TargetArguments),
    /// Check a target's configuration and its storage, and change nothing.
    Check(check::CheckArguments),
    /// Write a completion script for a shell.
    Completions(manual::CompletionsArguments),
    /// Write the manual pages.
    Man(manual::ManArguments),
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    logging::start(&cli.log);
    let result = match cli.command {
        Command::Target(arguments) => serve::target(&arguments),
        Command::Check(arguments) => check::check(&arguments),
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
