//! `nvlane`: a target, host tools and a laboratory for remote NVMe over plain TCP.
#![forbid(unsafe_code)]

mod check;
mod columns;
mod connection;
mod discover;
mod disk_path;
mod exit;
mod host_failure;
mod human_size;
mod identify;
mod kv;
mod list;
mod local_address;
mod log_limit;
mod logging;
mod manual;
mod output;
mod perf;
mod probe;
mod quickstart;
mod reload;
mod run;
mod serve;
mod signals;
mod smart_log;
mod study;

use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

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
    /// Have a running target read its configuration again and reopen closed namespaces, and show what came of it.
    Reload(reload::ReloadArguments),
    /// Check a target's configuration and its storage, and change nothing.
    Check(check::CheckArguments),
    /// List the subsystems that a discovery service knows.
    Discover(discover::DiscoverArguments),
    /// Show what a controller and its namespaces say of themselves.
    Identify(identify::IdentifyArguments),
    /// List the namespaces of a subsystem, or of all that a discovery service knows.
    List(list::ListArguments),
    /// Show a controller's health and the traffic of its subsystem.
    SmartLog(smart_log::SmartLogArguments),
    /// Keys and values: get, set, count, compute, load, dump and measure.
    Kv(kv::KvArguments),
    /// Put load on a namespace and measure it; `perf ceiling` measures what plain sockets allow.
    Perf(perf::PerfArguments),
    /// Try hostile inputs on a target, and whether it bears them.
    Probe(probe::ProbeArguments),
    /// Run a named experiment on this machine: variants side by side, a report with pictures.
    Study(study::StudyArguments),
    /// Write a completion script for a shell.
    Completions(manual::CompletionsArguments),
    /// Write the manual pages.
    Man(manual::ManArguments),
}

fn main() -> ExitCode {
    let words = std::env::args_os().collect();
    let words = match kv::address::complete(words, &Cli::command(), std::env::var_os("NVLANE_ADDR")) {
        Ok(words) => words,
        Err(failure) => return exit::report(&failure),
    };
    let cli = match Cli::try_parse_from(words) {
        Ok(cli) => cli,
        Err(error) => return exit::wrong_options(&error),
    };
    // A target's log is its voice; tools speak through their output.
    let is_service = matches!(cli.command, Command::Target(_));
    logging::start(&cli.log, if is_service { "info" } else { "warn" });
    signals::outlive_file_size_limit();
    let result = match cli.command {
        Command::Quickstart(arguments) => quickstart::quickstart(&arguments),
        Command::Target(arguments) => serve::target(&arguments),
        Command::Reload(arguments) => reload::reload(&arguments),
        Command::Check(arguments) => check::check(&arguments),
        Command::Discover(arguments) => discover::discover(&arguments),
        Command::Identify(arguments) => identify::identify(&arguments),
        Command::List(arguments) => list::list(&arguments),
        Command::SmartLog(arguments) => smart_log::smart_log(&arguments),
        Command::Kv(arguments) => kv::kv(&arguments),
        Command::Perf(arguments) => perf::perf(&arguments),
        Command::Probe(arguments) => probe::probe(&arguments),
        Command::Study(arguments) => study::study(&arguments),
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
