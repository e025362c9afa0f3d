//! `nvlane-lab`: the laboratory of nvlane, for studies, hostile input, kills and floods. `nvlane study` and `nvlane
//! probe` start it.
#![forbid(unsafe_code)]

mod probe;
mod product;
mod study;

use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};
use command_line::logging::LogOptions;
use command_line::{exit, logging, manual, signals};
use torture::Torture;

/// The allocator of nvlane: hosts in both programs cost the same.
#[global_allocator]
static ALLOCATOR: allocators::ProgramAllocator = allocators::ProgramAllocator;

/// The laboratory of nvlane: experiments, hostile input, kills and floods. `nvlane study` and `nvlane probe` start this
/// program.
#[derive(Debug, Parser)]
#[command(name = "nvlane-lab", version, max_term_width = 110, after_help = exit::HELP)]
struct Cli {
    #[command(flatten)]
    log: LogOptions,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
#[allow(clippy::large_enum_variant)] // One value exists per process.
enum Command {
    /// Send hostile input to a target (or host) and check its reaction.
    Probe(probe::ProbeArguments),
    /// Run a named experiment on this machine: variants side by side, with a report and figures.
    Study(study::StudyArguments),
    #[command(flatten)]
    Torture(Torture),
    /// Write a completion script for a shell.
    Completions(manual::CompletionsArguments),
    /// Write the manual pages.
    Man(manual::ManArguments),
}

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return exit::wrong_options(&error),
    };
    // Hosts of a target that is killed lose their associations all the time.
    let usual = if matches!(cli.command, Command::Torture(_)) { "error" } else { "warn" };
    logging::start(&cli.log, usual);
    signals::outlive_file_size_limit();
    linux::allow_descriptors();
    let result = match cli.command {
        Command::Probe(arguments) => probe::probe(&arguments),
        Command::Study(arguments) => study::study(&arguments),
        Command::Torture(torture) => torture.run().map_err(exit::Failure::from),
        Command::Completions(arguments) => manual::completions(&arguments, &mut Cli::command()),
        Command::Man(arguments) => manual::man(&arguments, Cli::command()),
    };
    match result {
        Ok(code) => code,
        Err(failure) => exit::report(&failure),
    }
}
