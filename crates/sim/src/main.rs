//! `nvlane-sim`: runs seeds, and shows one that fails.
#![forbid(unsafe_code)]

use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use clap::Parser;
use nvlane_sim::{Coverage, CrashReport, Outcome, crash_states, run_seed};

/// What is freed while the simulated kernel may still read it shows.
#[global_allocator]
static ALLOCATOR: reactor::PoisoningAllocator = reactor::PoisoningAllocator;

/// The real host and target under virtual time, a hostile network and a failing disk
#[derive(Parser)]
#[command(name = "cargo xtask sim", bin_name = "cargo xtask sim")]
struct Options {
    /// Seeds to run
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    seeds: u64,
    /// The first seed; alone it is the only one, and its trace is printed
    #[arg(long, value_name = "S")]
    seed: Option<u64>,
    /// Every state that a power cut can leave of all workloads of up to N requests on the file store
    #[arg(long, value_name = "N")]
    crash_states: Option<u32>,
    /// Threads [default: one for each core]
    #[arg(long, value_name = "N")]
    jobs: Option<usize>,
    /// Go on after a seed that fails
    #[arg(long)]
    keep_going: bool,
    /// Print what the seeds have reached; fail unless that is all of crates/sim/coverage.txt
    #[arg(long)]
    coverage: bool,
    /// Run each seed twice: both runs must be the same
    #[arg(long)]
    twice: bool,
}

/// What ten thousand seeds must reach.
const COVERAGE: &str = include_str!("../coverage.txt");

/// Results of many seeds.
#[derive(Default)]
struct Totals {
    seed_count: u64,
    command_count: u64,
    read_count: u64,
    virtual_ns: u64,
    coverage: Coverage,
    failed: Vec<(u64, String)>,
}

fn main() -> ExitCode {
    let options = Options::parse();
    if let Some(length_max) = options.crash_states {
        return crash(&options, length_max);
    }
    let is_alone = options.seed.is_some() && std::env::args().all(|argument| argument != "--seeds");
    if let (Some(seed), true) = (options.seed, is_alone) {
        return show(seed);
    }
    let start = Instant::now();
    let totals = run_all(&options);
    report(&totals, start.elapsed());
    for (seed, finding) in totals.failed.iter().take(20) {
        println!("seed {seed}: {finding}");
        println!("  cargo xtask sim --seed {seed}");
    }
    if options.coverage && !covers(&totals.coverage) {
        return ExitCode::FAILURE;
    }
    if totals.failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Prints what was reached. Says whether that is all of the list.
fn covers(coverage: &Coverage) -> bool {
    coverage.iter().for_each(|(point, count)| println!("{count:>10}  {point}"));
    let missing = coverage.missing(COVERAGE);
    missing.iter().for_each(|point| println!("NOT REACHED  {point}"));
    missing.is_empty()
}

/// Runs one seed and prints everything that happens.
fn show(seed: u64) -> ExitCode {
    let outcome = run_seed(seed, true);
    for line in &outcome.trace {
        println!("{line}");
    }
    println!("seed {seed}: {} commands, digest {:016x}", outcome.command_count, outcome.digest);
    match outcome.finding {
        Some(finding) => {
            println!("{finding}");
            ExitCode::FAILURE
        }
        None => ExitCode::SUCCESS,
    }
}

fn jobs(options: &Options) -> usize {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    options.jobs.unwrap_or(cores).max(1)
}

/// Looks at all crash states.
fn crash(options: &Options, length_max: u32) -> ExitCode {
    let start = Instant::now();
    let jobs = jobs(options);
    let total = Mutex::new(CrashReport::default());
    std::thread::scope(|scope| {
        for share in 0..jobs {
            let total = &total;
            scope.spawn(move || {
                let report = crash_states(length_max, share, jobs);
                total.lock().unwrap_or_else(PoisonError::into_inner).add(report);
            });
        }
    });
    let total = total.into_inner().unwrap_or_else(PoisonError::into_inner);
    println!(
        "{} workloads of up to {length_max} requests, {} runs, {} power cuts, {} states in {:.1} s; {} wrong",
        total.workload_count,
        total.run_count,
        total.cut_count,
        total.state_count,
        start.elapsed().as_secs_f64(),
        total.findings.len()
    );
    total.findings.iter().for_each(|finding| println!("{finding}"));
    if total.findings.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn run_all(options: &Options) -> Totals {
    let (jobs, first) = (jobs(options), options.seed.unwrap_or(0));
    let next = AtomicU64::new(first);
    let end = first.saturating_add(options.seeds);
    let totals = Mutex::new(Totals::default());
    std::thread::scope(|scope| {
        for _ in 0..jobs {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= end {
                        return;
                    }
                    let mut outcome = run_seed(seed, false);
                    if options.twice && run_seed(seed, false).digest != outcome.digest {
                        outcome.finding = Some("a second run was another one".into());
                    }
                    let has_failed = outcome.finding.is_some();
                    totals.lock().unwrap_or_else(PoisonError::into_inner).add(seed, outcome);
                    if has_failed && !options.keep_going {
                        next.store(u64::MAX / 2, Ordering::Relaxed);
                    }
                }
            });
        }
    });
    let mut totals = totals.into_inner().unwrap_or_else(PoisonError::into_inner);
    totals.failed.sort_unstable();
    totals
}

impl Totals {
    fn add(&mut self, seed: u64, outcome: Outcome) {
        self.seed_count += 1;
        self.command_count += outcome.command_count;
        self.read_count += outcome.read_count;
        self.virtual_ns += outcome.virtual_ns;
        self.coverage.add(&outcome.coverage);
        self.failed.extend(outcome.finding.map(|finding| (seed, finding)));
    }
}

fn report(totals: &Totals, took: Duration) {
    let seconds = took.as_secs_f64();
    // Counts of a run fit a double.
    #[allow(clippy::cast_precision_loss)]
    let rate = totals.command_count as f64 / seconds;
    println!(
        "{} seeds, {} commands ({rate:.0} per second), {} blocks judged, {} s of virtual time in {seconds:.1} s; {} failed",
        totals.seed_count,
        totals.command_count,
        totals.read_count,
        totals.virtual_ns / 1_000_000_000,
        totals.failed.len()
    );
}
