//! Checks a target process over real sockets while it is killed, or flooded, under load, or lives through hours of
//! everything at once: `nvlane-lab crash-loop`, `flood` and `soak`.
#![forbid(unsafe_code)]
#![allow(clippy::missing_errors_doc, reason = "an error of the laboratory ends a run with its message")]

mod checked;
mod clients;
mod flood;
mod hosts;
mod kill_loop;
mod pair_loop;
mod pairs;
mod reader;
mod soak;
mod spawner;
mod target;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use clap::{Args, Subcommand, ValueEnum};

use crate::flood::{Attack, FloodOptions};
use crate::kill_loop::{KillOptions, directory};

/// Commands of the laboratory.
#[derive(Debug, Subcommand)]
pub enum Torture {
    /// Kill a target at random moments under verified load: nothing that it has answered may be lost.
    CrashLoop(CrashLoopArguments),
    /// Flood a target with attacks that are cheap for a peer, beside a host that reads.
    Flood(FloodArguments),
    /// Keep a target busy for hours, with hosts that come and go, attacks, changes and kills: nothing may be lost, and
    /// memory, descriptors and latency have to stay as they are.
    Soak(SoakArguments),
}

/// Options of `crash-loop`.
#[derive(Debug, Args)]
pub struct CrashLoopArguments {
    /// Storage to serve: blocks; pairs, keys and values with a log, through NVMe and memcached [default: both, one
    /// after the other]
    #[arg(long, value_name = "WHAT")]
    of: Option<Served>,
    /// When answers of pairs leave: always, batch or none [default: always for half of the kills, the others for the
    /// rest]
    #[arg(long, value_name = "WHEN")]
    sync: Option<String>,
    /// Number of kills of each kind of storage on each engine
    #[arg(long, value_name = "N", default_value_t = 200)]
    kills: u32,
    /// Seed of the random choices [default: the time]
    #[arg(long, value_name = "S")]
    seed: Option<u64>,
    /// Blocks to serve in place of files, as for --namespace of nvlane target: storage that outlives the target, small.
    /// May be given several times
    #[arg(long, value_name = "SPEC", requires = "of")]
    namespace: Vec<String>,
    /// Only this engine [default: both, one after the other]
    #[arg(long, value_name = "ENGINE")]
    engine: Option<String>,
    /// Path of the nvlane program [default: the one beside this]
    #[arg(long, value_name = "FILE")]
    program: Option<PathBuf>,
    /// Directory of the files [default: a temporary one]
    #[arg(long, value_name = "DIR")]
    directory: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Served {
    Blocks,
    Pairs,
}

/// Options of `flood`.
#[derive(Debug, Args)]
pub struct FloodArguments {
    /// Only these attacks [default: all]
    #[arg(long, value_name = "KIND", value_delimiter = ',')]
    attacks: Vec<Attack>,
    /// Number of connections that never send a byte
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    half_open: usize,
    /// Number of connections of each kind that sends one byte per second, or reads nothing
    #[arg(long, value_name = "N", default_value_t = 64)]
    slow: usize,
    /// Seconds to measure, once without and once with the flood
    #[arg(long, value_name = "SECONDS", default_value_t = 8)]
    seconds: u64,
    /// Assign no cores, and do not judge the healthy host's results: for busy machines, where they mean nothing
    #[arg(long)]
    untimed: bool,
    /// Only this engine [default: both, one after the other]
    #[arg(long, value_name = "ENGINE")]
    engine: Option<String>,
    /// The cores of the target, such as 0 [default: the first; all if untimed]
    #[arg(long, value_name = "LIST")]
    cores: Option<String>,
    /// Path of the nvlane program [default: the one beside this]
    #[arg(long, value_name = "FILE")]
    program: Option<PathBuf>,
    /// Directory of the log [default: a temporary one]
    #[arg(long, value_name = "DIR")]
    directory: Option<PathBuf>,
}

/// Options of `soak`.
#[derive(Debug, Args)]
pub struct SoakArguments {
    /// Hours to go on
    #[arg(long, value_name = "N", default_value_t = 2.0)]
    hours: f64,
    /// Seed of the random choices [default: the time]
    #[arg(long, value_name = "S")]
    seed: Option<u64>,
    /// Engine of the target
    #[arg(long, value_name = "ENGINE", default_value = "uring")]
    engine: String,
    /// Path of the nvlane program [default: the one beside this]
    #[arg(long, value_name = "FILE")]
    program: Option<PathBuf>,
    /// Directory of the files, the target's log and samples.csv, with the resources after each round [default: a
    /// temporary one]
    #[arg(long, value_name = "DIR")]
    directory: Option<PathBuf>,
}

impl Torture {
    /// Runs the command.
    ///
    /// # Errors
    /// The target or its peers cannot be started; what the target does wrong ends with exit code 1.
    pub fn run(&self) -> Result<ExitCode> {
        match self {
            Self::CrashLoop(arguments) => crash_loop(arguments),
            Self::Flood(arguments) => flood(arguments),
            Self::Soak(arguments) => soak_for_hours(arguments),
        }
    }
}

/// The engines of a run: the requested one, or both.
fn engines(only: Option<&str>) -> Vec<String> {
    only.map_or_else(|| vec!["uring".into(), "epoll".into()], |engine| vec![engine.to_owned()])
}

fn program(given: Option<&PathBuf>) -> Result<PathBuf> {
    match given {
        Some(program) => Ok(program.clone()),
        None => Ok(std::env::current_exe()?.with_file_name("nvlane")),
    }
}

fn crash_loop(arguments: &CrashLoopArguments) -> Result<ExitCode> {
    let is_of_blocks = arguments.namespace.is_empty() || arguments.of == Some(Served::Blocks);
    ensure!(is_of_blocks, "--namespace gives blocks to serve: --of blocks goes with it");
    let seed = arguments.seed.unwrap_or_else(load::verify::new_run_id);
    let mut violations = 0;
    for engine in engines(arguments.engine.as_deref()) {
        if arguments.of != Some(Served::Pairs) {
            violations += kill_blocks(arguments, &engine, seed)?;
        }
        if arguments.of != Some(Served::Blocks) {
            violations += kill_pairs(arguments, &engine, seed)?;
        }
    }
    if violations > 0 {
        println!("--seed {seed} repeats the choices, though not the moments");
        return Ok(ExitCode::FAILURE);
    }
    Ok(ExitCode::SUCCESS)
}

fn kill_options(
    arguments: &CrashLoopArguments,
    engine: &str,
    seed: u64,
    kills: u32,
    directory: PathBuf,
) -> Result<KillOptions> {
    let program = program(arguments.program.as_ref())?;
    let namespaces = arguments.namespace.clone();
    let arguments = vec!["--engine".into(), engine.to_owned()];
    Ok(KillOptions { kills, seed, program, directory, namespaces, arguments })
}

/// Runs the loop on blocks and returns the number of violations.
fn kill_blocks(arguments: &CrashLoopArguments, engine: &str, seed: u64) -> Result<u64> {
    let (directory, _made) = directory(arguments.directory.as_deref())?;
    let report = kill_loop::run(&kill_options(arguments, engine, seed, arguments.kills, directory)?)?;
    report.print(engine);
    Ok(report.counts.violations)
}

/// Runs the loop on keys and values and returns the number of violations.
fn kill_pairs(arguments: &CrashLoopArguments, engine: &str, seed: u64) -> Result<u64> {
    let rest = arguments.kills / 4;
    let shares = match &arguments.sync {
        Some(sync) => vec![(sync.as_str(), arguments.kills)],
        None => vec![("always", arguments.kills - 2 * rest), ("batch", rest), ("none", rest)],
    };
    let mut violations = 0;
    for (sync, kills) in shares {
        let (directory, _made) = directory(arguments.directory.as_deref())?;
        let report = pair_loop::run(&kill_options(arguments, engine, seed, kills, directory)?, sync)?;
        report.print(engine, sync);
        violations += report.violations;
    }
    Ok(violations)
}

fn soak_for_hours(arguments: &SoakArguments) -> Result<ExitCode> {
    let time = Duration::try_from_secs_f64(arguments.hours * 3600.0)?;
    let seed = arguments.seed.unwrap_or_else(load::verify::new_run_id);
    let (directory, made) = directory(arguments.directory.as_deref())?;
    let start = Instant::now();
    let report = soak::run(&soak::SoakOptions {
        time,
        seed,
        program: program(arguments.program.as_ref())?,
        directory,
        arguments: vec!["--engine".into(), arguments.engine.clone()],
    });
    let is_good = report.as_ref().is_ok_and(|report| report.findings.is_empty());
    if let Some(made) = made.filter(|_| !is_good) {
        println!("the files and the target's log are kept in {}", made.keep().display());
    }
    report?.print(&arguments.engine, start.elapsed());
    Ok(if is_good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn flood(arguments: &FloodArguments) -> Result<ExitCode> {
    let mut code = ExitCode::SUCCESS;
    for engine in engines(arguments.engine.as_deref()) {
        let (directory, _made) = directory(arguments.directory.as_deref())?;
        let attacks = match arguments.attacks.as_slice() {
            [] => Attack::value_variants(),
            some => some,
        };
        let report = flood::run(&FloodOptions {
            attacks: attacks.to_vec(),
            half_open: arguments.half_open,
            slow: arguments.slow,
            time: Duration::from_secs(arguments.seconds),
            is_timed: !arguments.untimed,
            program: program(arguments.program.as_ref())?,
            directory,
            cores: arguments.cores.clone(),
            arguments: vec!["--engine".into(), engine.clone()],
        })?;
        report.print(&engine);
        for failure in report.failures(!arguments.untimed) {
            println!("  FAILED: {failure}");
            code = ExitCode::FAILURE;
        }
    }
    Ok(code)
}
