//! Options of `nvlane-sim`.

use clap::{Args, Parser};
use nvlane_sim::Case;

/// The real host and target under virtual time, a hostile network and a failing disk
#[derive(Parser)]
#[command(name = "cargo xtask sim", bin_name = "cargo xtask sim")]
pub(crate) struct Options {
    /// Seeds to run
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    pub(crate) seeds: u64,
    /// The first of them: several machines can share the work
    #[arg(long, value_name = "S", default_value_t = 0)]
    pub(crate) from: u64,
    /// Run one seed, and print a timeline of what concerns its finding
    #[arg(long, value_name = "S", conflicts_with = "shrink")]
    pub(crate) seed: Option<u64>,
    /// Find the fewest commands and faults, and the plainest settings, with which a seed still fails in the same way
    #[arg(long, value_name = "S")]
    pub(crate) shrink: Option<u64>,
    #[command(flatten)]
    pub(crate) part: Part,
    /// The timeline of everything
    #[arg(long)]
    pub(crate) all: bool,
    /// Shrink for this long at most
    #[arg(long, value_name = "SECONDS", default_value_t = 120)]
    pub(crate) seconds: u64,
    /// Every state that a power cut can leave of all workloads of up to N requests on the file store
    #[arg(long, value_name = "N")]
    pub(crate) crash_states: Option<u32>,
    /// Threads [default: one for each core]
    #[arg(long, value_name = "N")]
    jobs: Option<usize>,
    /// Go on after a seed that fails
    #[arg(long)]
    pub(crate) keep_going: bool,
    /// Print what the seeds have reached; fail unless that is all of lab/sim/coverage.txt
    #[arg(long)]
    pub(crate) coverage: bool,
    /// Run each seed twice: both runs must be the same
    #[arg(long)]
    pub(crate) twice: bool,
}

/// The part of a seed's run that takes place, as --shrink prints it
#[derive(Args)]
pub(crate) struct Part {
    /// Only these commands: HOST.LANE.PLACE, with commas, or none
    #[arg(long, value_name = "LIST")]
    commands: Option<String>,
    /// Only these faults of the scenario, by their place there, or none
    #[arg(long, value_name = "LIST")]
    faults: Option<String>,
    /// Other settings: NAME=VALUE, with commas
    #[arg(long, value_name = "LIST")]
    set: Option<String>,
    /// What happens by chance, as another seed would have it
    #[arg(long, value_name = "N", default_value_t = 0)]
    chance: u64,
}

impl Part {
    /// The case of a seed. Ends the program if there is none.
    pub(crate) fn of(&self, seed: u64) -> Case {
        let Self { commands, faults, set, chance } = self;
        match Case::parse(seed, commands.as_deref(), faults.as_deref(), set.as_deref(), *chance) {
            Ok(case) => case,
            Err(error) => {
                eprintln!("{error}");
                std::process::exit(2);
            }
        }
    }
}

impl Options {
    /// Number of threads.
    pub(crate) fn jobs(&self) -> usize {
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        self.jobs.unwrap_or(cores).max(1)
    }
}
