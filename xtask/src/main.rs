//! Tasks of the repository, in one program: `cargo xtask help`.
#![forbid(unsafe_code)]

mod bench;
mod check;
mod ci;
mod command;
mod deps;
mod instructions;
mod interop;
mod sim;
mod torture;

use std::process::ExitCode;

use clap::Parser;

/// Tasks of the repository
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
enum Task {
    /// Format, lints (warnings denied), tests and documentation
    Check,
    /// Everything `make test` does, with the time each step took beside its budget
    Ci,
    /// Everything `make bench` does: what measures time, and the bars that hang on it
    Bench,
    /// What the other tasks need: Debian packages, Rust components, the lab's kernels
    Deps,
    /// Instructions per command, beside those accepted last: 3 % more is an error
    Instructions(instructions::Options),
    /// Behaviours between nvlane and stock Linux kernels, in emulated guests
    Interop(interop::Options),
    /// The real host and target under virtual time: many seeds, or one
    #[command(disable_help_flag = true)]
    Sim(sim::Options),
    /// A target killed at random moments under verified load, and started again
    #[command(disable_help_flag = true)]
    CrashLoop(torture::Options),
    /// A target flooded with half-open, slow and deaf connections, beside a lane that reads
    #[command(disable_help_flag = true)]
    Flood(torture::Options),
}

fn main() -> ExitCode {
    let result = match Task::parse() {
        Task::Check => ci::run_steps(check::STEPS),
        Task::Ci => ci::run(),
        Task::Bench => bench::run(),
        Task::Deps => deps::install(),
        Task::Instructions(options) => instructions::run(&options),
        Task::Interop(options) => interop::run(&options),
        Task::Sim(options) => sim::run(&options),
        Task::CrashLoop(options) => torture::crash_loop(&options),
        Task::Flood(options) => torture::flood(&options),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
