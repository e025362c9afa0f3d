//! The kill loop: a target over files, or over other storage that outlives it, verified load over real sockets, SIGKILL at a random moment, restart, repeat.
//! hostile R12
//!
//! ```text
//! load ──random time──▶ SIGKILL ──▶ start again ──▶ the host library reconnects ──▶ more load ──▶ every block is read
//!   ▲                                   └─ every fourth time: a new host, which has only the ledger ──┘       │
//!   └─────────────────────────────────────────────────────────────────────────────────────────────────────────┘
//! ```
//! The death of the target process loses nothing that was answered: durable writes are on the disk, all others in the
//! kernel, or wherever the storage has them. (Power cuts are covered by the crash states of `nvlane-sim`.)

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use host::Association;
use load::random::Prng;
use load::verify::new_run_id;
use wire::id::Nsid;

use crate::checked::{Account, Checked, Counts};
use crate::hosts::{self, KILLS_PER_HOST};
use crate::target::{Target, TargetOptions};

/// Namespaces: whole pages, and blocks smaller than a page; small, so that each block is used often.
const NAMESPACES: [&str; 2] = ["size=16M", "size=4M&lba=512"];

/// Commands acknowledged after a restart before all blocks are read.
const COMMANDS_AFTER: u64 = 200;

/// Options of the loop.
#[derive(Clone, Debug)]
pub(crate) struct KillOptions {
    pub(crate) kills: u32,
    pub(crate) seed: u64,
    /// Path of the `nvlane` program.
    pub(crate) program: PathBuf,
    /// Directory of the files.
    pub(crate) directory: PathBuf,
    /// Blocks to serve; files if there are none.
    pub(crate) namespaces: Vec<String>,
    /// Further options of `nvlane target`.
    pub(crate) arguments: Vec<String>,
}

/// Results of the loop.
#[derive(Clone, Debug, Default)]
pub(crate) struct KillReport {
    pub(crate) kills: u32,
    pub(crate) hosts: u32,
    pub(crate) counts: Counts,
    pub(crate) findings: Vec<String>,
    pub(crate) took: Duration,
}

/// Runs the loop.
pub(crate) fn run(options: &KillOptions) -> Result<KillReport> {
    let start = Instant::now();
    let files = NAMESPACES.iter().enumerate().map(|(at, options_of)| {
        let path = options.directory.join(format!("namespace-{}", at + 1));
        format!("file:{}?{options_of}", path.display())
    });
    let namespaces = if options.namespaces.is_empty() { files.collect() } else { options.namespaces.clone() };
    let count = u32::try_from(namespaces.len())?;
    let mut target = Target::start(TargetOptions {
        program: options.program.clone(),
        namespaces,
        arguments: options.arguments.clone(),
        log: options.directory.join("target.log"),
    })?;
    let mut random = Prng::new(options.seed);
    let mut report = KillReport::default();
    let mut accounts = Vec::new();
    while report.kills < options.kills && report.counts.violations == 0 {
        let kills = KILLS_PER_HOST.min(options.kills - report.kills);
        run_host(&mut target, count, &mut accounts, kills, &mut random, &mut report)
            .with_context(|| format!("after {} kills (seed {})", report.kills, options.seed))?;
    }
    report.took = start.elapsed();
    Ok(report)
}

/// One host: reads everything, survives some kills, and ends with commands in flight.
fn run_host(
    target: &mut Target,
    namespaces: u32,
    accounts: &mut Vec<Account>,
    kills: u32,
    random: &mut Prng,
    report: &mut KillReport,
) -> Result<()> {
    let association = connect(target, report.hosts)?;
    let is_first = accounts.is_empty();
    if is_first {
        let run_id = new_run_id();
        for nsid in 1..=namespaces {
            accounts.push(Account::new(association.namespace(Nsid::new(nsid))?, run_id));
        }
    }
    report.hosts += 1;
    let mut checked = Checked::new(&association, accounts, random.draw())?;
    if is_first {
        checked.fill()?;
    }
    checked.verify()?;
    for kill in 1..=kills {
        let load_for = Duration::from_micros(2000 + random.below(150_000));
        let dead_for = Duration::from_micros(random.below(30_000));
        let is_last = kill == kills;
        let (is_over, is_lost) = (AtomicBool::new(false), AtomicBool::new(false));
        let killed = std::thread::scope(|scope| {
            let killer = scope.spawn(|| -> Result<()> {
                std::thread::sleep(load_for);
                let killed = target.kill();
                is_lost.store(killed.is_err(), Ordering::Release);
                if is_last || killed.is_err() {
                    is_over.store(true, Ordering::Release);
                }
                killed?;
                std::thread::sleep(dead_for);
                let restarted = target.restart();
                // Without a target no further command is acknowledged.
                is_lost.store(restarted.is_err(), Ordering::Release);
                is_over.store(true, Ordering::Release);
                restarted
            });
            let mut enough = u64::MAX;
            let loaded = checked.run(|counts| {
                if is_last || !is_over.load(Ordering::Acquire) {
                    return is_over.load(Ordering::Acquire);
                }
                enough = enough.min(counts.acknowledged + COMMANDS_AFTER);
                counts.acknowledged >= enough || is_lost.load(Ordering::Acquire)
            });
            let killed = killer.join().map_err(|_| anyhow!("the killer panicked"))?;
            killed.and(loaded)
        });
        killed?;
        report.kills += 1;
        if !is_last {
            checked.drain()?;
            checked.verify()?;
        }
    }
    let (counts, findings) = checked.abandon();
    report.counts.add(counts);
    report.findings.extend(findings);
    Ok(())
}

/// A host with its own NQN. Every second pair of hosts uses digests.
fn connect(target: &Target, number: u32) -> Result<Association> {
    let options = hosts::options(number.into(), 2)?;
    let options = if number % 4 >= 2 { options.with_digests() } else { options };
    Association::connect(&target.address(), options).context("cannot connect")
}

impl KillReport {
    /// The results in a few lines.
    pub(crate) fn print(&self, engine: &str) {
        let Counts { acknowledged, durable, interrupted, blocks_checked, violations } = self.counts;
        println!(
            "{} kills ({engine}), {} hosts, {acknowledged} commands acknowledged ({durable} of them durably), \
             {interrupted} interrupted, {blocks_checked} blocks checked, {violations} violations, {:.1} s",
            self.kills,
            self.hosts,
            self.took.as_secs_f64()
        );
        for finding in &self.findings {
            println!("  {finding}");
        }
    }
}

/// Directory of a run's files: the given one, or a temporary one.
pub(crate) fn directory(given: Option<&Path>) -> Result<(PathBuf, Option<tempfile::TempDir>)> {
    match given {
        Some(path) => {
            std::fs::create_dir_all(path).with_context(|| path.display().to_string())?;
            Ok((path.to_owned(), None))
        }
        None => {
            let made = tempfile::tempdir().context("a directory for the files")?;
            Ok((made.path().to_owned(), Some(made)))
        }
    }
}
