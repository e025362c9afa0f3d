//! Runs many seeds on all cores, and counts.

use std::io::IsTerminal;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use nvlane_sim::{Coverage, RunOutcome, run_case};

use crate::options::Options;

/// Time between two lines of progress.
const PROGRESS_TIME: Duration = Duration::from_secs(1);

/// As above if standard error is not a terminal.
const LOGGED_PROGRESS_TIME: Duration = Duration::from_secs(60);

/// Results of many seeds.
#[derive(Default)]
pub(crate) struct Totals {
    seed_count: u64,
    command_count: u64,
    read_count: u64,
    virtual_ns: u64,
    /// The same for the same seeds, in whatever order they run.
    digest: u64,
    pub(crate) coverage: Coverage,
    pub(crate) failed: Vec<(u64, String)>,
    /// A signal has ended it before all seeds were run.
    pub(crate) is_interrupted: bool,
}

/// Runs the seeds, until one fails or a signal ends it.
pub(crate) fn run(options: &Options) -> Totals {
    let end = options.from.saturating_add(options.seeds);
    let next = AtomicU64::new(options.from);
    let stops = AtomicBool::new(false);
    let is_interrupted = Arc::new(AtomicBool::new(false));
    // `timeout` sends its signal twice, to the program and to its group: a second one must not cut off the summary.
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        let _ = signal_hook::flag::register(signal, Arc::clone(&is_interrupted));
    }
    let totals = Mutex::new(Totals::default());
    let progress = Mutex::new(Progress::new());
    std::thread::scope(|scope| {
        for _ in 0..options.jobs() {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= end || stops.load(Ordering::Relaxed) || is_interrupted.load(Ordering::Relaxed)
                    {
                        return;
                    }
                    let case = options.part.of(seed);
                    let mut outcome = run_case(&case, false);
                    if options.twice && run_case(&case, false).digest != outcome.digest {
                        outcome.finding = Some("a second run was another one".into());
                    }
                    if outcome.finding.is_some() && !options.keep_going {
                        stops.store(true, Ordering::Relaxed);
                    }
                    let mut totals = totals.lock().unwrap_or_else(PoisonError::into_inner);
                    totals.add(seed, outcome);
                    if let Ok(mut progress) = progress.try_lock() {
                        progress.report(totals.seed_count, options.seeds, totals.failed.len());
                    }
                }
            });
        }
    });
    let mut totals = totals.into_inner().unwrap_or_else(PoisonError::into_inner);
    totals.failed.sort_unstable();
    totals.is_interrupted = is_interrupted.load(Ordering::Relaxed) && totals.seed_count < options.seeds;
    totals
}

/// Reports from time to time how far the seeds are.
struct Progress {
    start: Instant,
    next: Instant,
    time: Duration,
}

impl Progress {
    fn new() -> Self {
        let is_watched = std::io::stderr().is_terminal();
        let time = if is_watched { PROGRESS_TIME } else { LOGGED_PROGRESS_TIME };
        let start = Instant::now();
        Self { start, next: start + time, time }
    }

    fn report(&mut self, done: u64, all: u64, failed: usize) {
        let now = Instant::now();
        if now < self.next {
            return;
        }
        self.next = now + self.time;
        let rate = rate(done, now - self.start);
        // As many seeds as are run in years fit a double.
        #[allow(clippy::cast_precision_loss)]
        let left = (all - done) as f64 / rate;
        let end = if self.time == PROGRESS_TIME { "   \r" } else { "\n" };
        eprint!("{done} of {all} seeds, {rate:.0} per second, {left:.0} s left; {failed} failed{end}");
    }
}

/// Items per second.
#[allow(clippy::cast_precision_loss)]
fn rate(count: u64, time: Duration) -> f64 {
    count as f64 / time.as_secs_f64().max(1e-9)
}

impl Totals {
    fn add(&mut self, seed: u64, outcome: RunOutcome) {
        self.seed_count += 1;
        self.command_count += outcome.command_count;
        self.read_count += outcome.read_count;
        self.virtual_ns += outcome.virtual_ns;
        self.digest = self.digest.wrapping_add(outcome.digest);
        self.coverage.add(&outcome.coverage);
        if let Some(finding) = &outcome.finding {
            // At once: the others may take hours.
            eprintln!("seed {seed}: {finding}");
        }
        self.failed.extend(outcome.finding.map(|finding| (seed, finding)));
    }

    /// Prints the counts, and advice for seeds that fail.
    pub(crate) fn report(&self, took: Duration) {
        if self.is_interrupted {
            println!("interrupted by a signal");
        }
        println!(
            "{} seeds ({:.0} per second), {} commands, {} blocks judged, {} s of virtual time in {:.1} s; {} failed; digest {:016x}",
            self.seed_count,
            rate(self.seed_count, took),
            self.command_count,
            self.read_count,
            self.virtual_ns / 1_000_000_000,
            took.as_secs_f64(),
            self.failed.len(),
            self.digest
        );
        for (seed, finding) in self.failed.iter().take(20) {
            println!("seed {seed}: {finding}");
            println!("  cargo xtask sim --seed {seed}      what happened, as a timeline");
            println!("  cargo xtask sim --shrink {seed}    the same with the fewest commands and faults");
        }
    }
}
