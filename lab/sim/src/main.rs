//! `nvlane-sim`: runs seeds, and shows and shrinks one that fails.
#![forbid(unsafe_code)]

mod many;
mod options;
mod table;

use std::process::ExitCode;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use clap::Parser;
use nvlane_sim::{Case, CrashReport, RunOutcome, Shrunk, crash_states, run_case, shrink};

use options::Options;

/// A read of memory that was freed while the simulated kernel may still read it shows.
#[global_allocator]
static ALLOCATOR: allocators::PoisoningAllocator = allocators::PoisoningAllocator;

/// Exit code after a signal.
const INTERRUPTED: u8 = 130;

fn main() -> ExitCode {
    let options = Options::parse();
    if let Some(length_max) = options.crash_states {
        return crash(&options, length_max);
    }
    if let Some(seed) = options.seed {
        return show(&options.part.of(seed), options.all);
    }
    if let Some(seed) = options.shrink {
        return shrink_one(&options, &options.part.of(seed));
    }
    let start = Instant::now();
    let totals = many::run(&options);
    totals.report(start.elapsed());
    if totals.is_interrupted {
        return ExitCode::from(INTERRUPTED);
    }
    if options.coverage && !table::print(&totals.coverage, options.part.of(0).has("key-values")) {
        return ExitCode::FAILURE;
    }
    if totals.failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Runs one seed and prints its events.
fn show(case: &Case, shows_all: bool) -> ExitCode {
    let RunOutcome { finding, timeline, command_count, digest, .. } = run_case(case, true);
    timeline.lines(finding.as_deref().filter(|_| !shows_all)).for_each(|line| println!("{line}"));
    println!("{command_count} commands, digest {digest:016x}");
    match finding {
        Some(finding) => {
            println!("{finding}");
            ExitCode::FAILURE
        }
        None => ExitCode::SUCCESS,
    }
}

/// Shrinks a seed that fails, and prints the events of the rest.
fn shrink_one(options: &Options, case: &Case) -> ExitCode {
    let start = Instant::now();
    let report = |shrunk: &Shrunk| {
        let [commands, faults, settings] = shrunk.left.map(|(left, all)| format!("{left} of {all}"));
        let (seconds, runs) = (start.elapsed().as_secs_f64(), shrunk.run_count);
        eprint!(
            "\r{seconds:>6.1} s, {runs} runs: {commands} commands, {faults} faults, {settings} settings are left   "
        );
    };
    let time = Duration::from_secs(options.seconds);
    let Some(shrunk) = shrink(case, options.jobs(), time, &mut { report }) else {
        println!("nothing is wrong");
        return ExitCode::FAILURE;
    };
    report(&shrunk);
    eprintln!();
    show(&shrunk.case, options.all);
    println!("cargo xtask sim {}", shrunk.case.options());
    ExitCode::SUCCESS
}

/// Checks all crash states.
fn crash(options: &Options, length_max: u32) -> ExitCode {
    let start = Instant::now();
    let jobs = options.jobs();
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
