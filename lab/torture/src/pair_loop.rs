//! The kill loop for keys and values: a target over a file, load through NVMe and memcached, SIGKILL at a random
//! moment, sometimes a second one while the target reads its log, and every key compared with what was answered.
//!
//! ```text
//! workers with their own keys ──random time──▶ SIGKILL ──▶ restart (─▶ SIGKILL ─▶ restart) ──▶ every key is read
//!    ▲                                                       through the client of another worker ──┘         │
//!    └──────────────────────────────────────────────────────────────────────────────────────────────────────┘
//! ```
//! With `sync=always` every answered change survives; with other policies every change answered before a Flush does,
//! and all but the last two groups of the log, and the changes of each worker survive in their order: the target runs
//! on one core then, with one partition. A change that was not answered has happened as a whole or not at all.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::Scope;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use host::Association;
use host::BlockingKeyValue;
use linux::CoreList;
use load::random::Prng;
use peer::port::free_address;

use crate::clients::{Client, Flushed, MemcachedClient, NvmeClient};
use crate::hosts::{self, KILLS_PER_HOST};
use crate::kill_loop::KillOptions;
use crate::pairs::{Deed, End, Form, Ledger};
use crate::target::{Target, TargetOptions};

/// Keys of each worker. Their values together exceed the target's memory.
const KEY_COUNT: usize = 400;

/// Workers of each protocol.
const WORKERS: u64 = 2;

/// Maximum deeds in one send.
const DEED_COUNT_MAX: u64 = 24;

/// Attempts to flush: the library refuses the first flush after a restart.
const FLUSH_TRIES: u32 = 3;

/// The longest value that a file of this size accepts with up to four partitions.
const VALUE_BYTES_MAX: u64 = 30 << 10;

/// Bytes of a group of changes in the log, unless one command has more.
const GROUP_BYTES_MAX: u64 = 256 << 10;

/// The namespace, without the path of its file.
const STORAGE: &str = "size=64M&memory=5M";

/// Results of the loop.
#[derive(Clone, Debug, Default)]
pub(crate) struct PairReport {
    pub(crate) kills: u32,
    /// Kills while a target read its log.
    pub(crate) kills_at_start: u32,
    pub(crate) acknowledged: u64,
    /// Deeds that change a key.
    pub(crate) changes: u64,
    pub(crate) flushes: u64,
    pub(crate) interrupted: u64,
    pub(crate) checked: u64,
    /// The most bytes of answered changes that a kill took.
    pub(crate) lost_bytes_max: u64,
    pub(crate) violations: u64,
    pub(crate) findings: Vec<String>,
    pub(crate) took: Duration,
}

/// A client, and the expected state of its keys.
struct Worker {
    client: Box<dyn Client>,
    ledger: Ledger,
    random: Prng,
    /// The most bytes that a send has stored; a batch is a command.
    sent_bytes_max: u64,
    report: PairReport,
}

/// Runs the loop with the sync policy `sync`: always, batch or none.
pub(crate) fn run(options: &KillOptions, sync: &str) -> Result<PairReport> {
    let start = Instant::now();
    let [listen, memcached] = [free_address()?, free_address()?];
    let path = options.directory.join(format!("pairs-{sync}"));
    let mut arguments = options.arguments.clone();
    arguments.extend(["--memcached".into(), memcached.to_string()]);
    let settles = sync == "always";
    let allowed = CoreList::allowed().context("the cores of this machine")?;
    let mut partition_count = allowed.cores().len();
    if !settles {
        arguments.extend(["--cores".into(), allowed.cores()[0].to_string()]);
        partition_count = 1;
    }
    let mut target = Target::start_at(
        TargetOptions {
            program: options.program.clone(),
            namespaces: vec![format!("kv:file:{}?{STORAGE}&sync={sync}", path.display())],
            arguments,
            log: options.directory.join("target.log"),
        },
        listen,
    )?;
    let mut random = Prng::new(options.seed);
    let mut workers = Workers::connect(&target, memcached, partition_count, settles, &mut random)?;
    let mut report = PairReport::default();
    while report.kills < options.kills && report.violations == 0 {
        cycle(&mut target, &mut workers, &mut random, &mut report)
            .with_context(|| format!("after {} kills (seed {})", report.kills, options.seed))?;
        if report.kills.is_multiple_of(KILLS_PER_HOST) {
            workers.replace_hosts(&target, u64::from(report.kills))?;
        }
        report.add(workers.take_report());
    }
    report.took = start.elapsed();
    Ok(report)
}

/// Runs load, kills the target in the middle of it, and reads every key.
fn cycle(
    target: &mut Target,
    workers: &mut Workers,
    random: &mut Prng,
    report: &mut PairReport,
) -> Result<()> {
    let load_for = Duration::from_micros(2000 + random.below(150_000));
    let starts_for = (random.below(3) == 0).then(|| Duration::from_micros(random.below(40_000)));
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let killer = scope.spawn(|| -> Result<()> {
            std::thread::sleep(load_for);
            let killed = target.kill();
            is_over.store(true, Ordering::Release);
            killed?;
            if let Some(starts_for) = starts_for {
                target.restart_and_kill(starts_for)?;
            }
            target.restart()
        });
        workers.load(scope, &is_over);
        killer.join().map_err(|_| anyhow!("the killer panicked"))?
    })?;
    report.kills += 1 + u32::from(starts_for.is_some());
    report.kills_at_start += u32::from(starts_for.is_some());
    workers.after_kill()?;
    workers.verify(random);
    // Each kill takes the group that is written and the one that is collected.
    let (lost_bytes, group_bytes) = workers.take_lost_bytes();
    let kill_count = 1 + u64::from(starts_for.is_some());
    if lost_bytes > 2 * group_bytes * kill_count {
        report.find(format!("{kill_count} kills took {lost_bytes} bytes of answered changes"));
    }
    report.lost_bytes_max = report.lost_bytes_max.max(lost_bytes / kill_count);
    Ok(())
}

/// The workers of a namespace, half of them memcached clients and half NVMe hosts.
pub(crate) struct Workers {
    workers: Vec<Worker>,
    /// Partitions of the namespace.
    partition_count: usize,
}

impl Workers {
    /// Connects them. `settles`: whether an answer means that its change is durable.
    pub(crate) fn connect(
        target: &Target,
        memcached: SocketAddr,
        partition_count: usize,
        settles: bool,
        random: &mut Prng,
    ) -> Result<Self> {
        let mut workers = Vec::new();
        for number in 0..2 * WORKERS {
            let form = if number < WORKERS { Form::Digits } else { Form::Word };
            let client: Box<dyn Client> = match form {
                Form::Digits => Box::new(MemcachedClient::new(memcached)?),
                Form::Word => connect(target, number)?,
            };
            workers.push(Worker {
                client,
                ledger: Ledger::new(number << 32, KEY_COUNT, form, settles, VALUE_BYTES_MAX),
                random: Prng::new(random.draw()),
                sent_bytes_max: 0,
                report: PairReport::default(),
            });
        }
        Ok(Self { workers, partition_count })
    }

    /// Starts a thread for each, which changes and reads its keys until `is_over`.
    pub(crate) fn load<'scope>(
        &'scope mut self,
        scope: &'scope Scope<'scope, '_>,
        is_over: &'scope AtomicBool,
    ) {
        for worker in &mut self.workers {
            scope.spawn(|| worker.load(is_over));
        }
    }

    /// Connects to the restarted target, and flushes: repeated commands were answered after the restart, perhaps before
    /// their log write, and what is read next must be durable.
    pub(crate) fn after_kill(&mut self) -> Result<()> {
        for worker in &mut self.workers {
            worker.client.reconnect()?;
            worker.ledger.killed();
        }
        let mut refusals = Vec::new();
        let is_flushed = self.workers.iter_mut().any(|worker| {
            (0..FLUSH_TRIES).any(|_| match worker.client.flush() {
                Flushed::Done => true,
                refused => {
                    refusals.push(refused);
                    false
                }
            })
        });
        ensure!(is_flushed, "no host could flush: {refusals:?}");
        Ok(())
    }

    /// Reads every key, through the client of another worker: changes by one client are visible to the others.
    pub(crate) fn verify(&mut self, random: &mut Prng) {
        let count = self.workers.len();
        let turn = usize::try_from(random.below(count as u64)).expect("few workers");
        for at in 0..count {
            let through = (at + turn) % count;
            let mut client = std::mem::replace(&mut self.workers[through].client, Box::new(Shut));
            self.workers[at].verify(client.as_mut());
            self.workers[through].client = client;
            if let Err(finding) = self.workers[at].ledger.judge_order(self.partition_count) {
                self.workers[at].report.find(finding);
            }
        }
    }

    /// Gives the NVMe workers new hosts, whose names begin at `number`.
    pub(crate) fn replace_hosts(&mut self, target: &Target, number: u64) -> Result<()> {
        for (at, worker) in (0..).zip(&mut self.workers).skip(usize::try_from(WORKERS).expect("few workers"))
        {
            worker.client = connect(target, at + number)?;
        }
        Ok(())
    }

    /// Gives all workers new clients.
    pub(crate) fn replace_clients(
        &mut self,
        target: &Target,
        memcached: SocketAddr,
        number: u64,
    ) -> Result<()> {
        for worker in self.workers.iter_mut().take(usize::try_from(WORKERS).expect("few workers")) {
            worker.client = Box::new(MemcachedClient::new(memcached)?);
        }
        self.replace_hosts(target, number)
    }

    /// Ends all connections.
    pub(crate) fn disconnect(&mut self) {
        self.workers.iter_mut().for_each(|worker| worker.client = Box::new(Shut));
    }

    /// The counts since the last call.
    pub(crate) fn take_report(&mut self) -> PairReport {
        let mut sum = PairReport::default();
        self.workers.iter_mut().for_each(|worker| sum.add(std::mem::take(&mut worker.report)));
        sum
    }

    /// Bytes of answered changes that the last kill took, and the most that one group of the log has.
    fn take_lost_bytes(&mut self) -> (u64, u64) {
        let lost_bytes = self.workers.iter_mut().map(|worker| worker.ledger.take_lost_bytes()).sum();
        let sent_bytes_max = self.workers.iter().map(|worker| worker.sent_bytes_max);
        (lost_bytes, sent_bytes_max.fold(GROUP_BYTES_MAX, u64::max))
    }
}

/// Placeholder for a client that is in use.
struct Shut;

impl Client for Shut {
    fn run(&mut self, deeds: &[(host::Key, &Deed)]) -> Vec<End> {
        vec![End::NotBegun; deeds.len()]
    }

    fn reconnect(&mut self) -> Result<()> {
        Ok(())
    }
}

impl Worker {
    /// Executes random deeds until the target is gone.
    fn load(&mut self, is_over: &AtomicBool) {
        while !is_over.load(Ordering::Acquire) {
            self.ledger.begin_send();
            let count = 1 + self.random.below(DEED_COUNT_MAX);
            let first = self.random.below(KEY_COUNT as u64);
            // Consecutive keys from a random start, so that each occurs once.
            let keys = (first..first + count).map(|at| usize::try_from(at).expect("few keys") % KEY_COUNT);
            let deeds: Vec<_> = keys.map(|at| (at, self.ledger.deed(at, &mut self.random))).collect();
            let asked: Vec<_> = deeds.iter().map(|(at, deed)| (self.ledger.key(*at), deed)).collect();
            let stored_bytes = deeds.iter().map(|(_, deed)| match deed {
                Deed::Set(value) => value.len() as u64,
                Deed::Delete | Deed::Get | Deed::Add(_) => 0,
            });
            self.sent_bytes_max = self.sent_bytes_max.max(stored_bytes.sum());
            let ends = self.client.run(&asked);
            let is_cut = ends.contains(&End::Unknown);
            if is_over.load(Ordering::Acquire) {
                // Commands that a host repeats are answered by the restarted target.
                self.ledger.cut();
            }
            for ((at, deed), end) in deeds.iter().zip(ends) {
                let is_answered = matches!(end, End::Done | End::Found(_) | End::Sum(_));
                self.report.acknowledged += u64::from(is_answered);
                self.report.changes += u64::from(is_answered && *deed != Deed::Get);
                self.report.interrupted += u64::from(end == End::Unknown && *deed != Deed::Get);
                if let Err(finding) = self.ledger.end(*at, deed, end) {
                    self.report.find(finding);
                }
            }
            if is_cut {
                return;
            }
            if self.random.below(16) == 0 {
                match self.client.flush() {
                    Flushed::Done => {
                        self.report.flushes += 1;
                        self.ledger.flushed();
                    }
                    // The library may notice the kill before the killer has reported it.
                    Flushed::Lost => self.ledger.cut(),
                    Flushed::Not(_) => {}
                }
            }
        }
    }

    /// Reads all keys through `client`.
    fn verify(&mut self, client: &mut dyn Client) {
        let mut next = 0;
        while next < self.ledger.len() {
            let end = self.ledger.len().min(next + 16);
            let asked: Vec<_> = (next..end).map(|at| (self.ledger.key(at), &Deed::Get)).collect();
            let ends = client.run(&asked);
            let count = ends.iter().take_while(|end| **end != End::NotBegun).count();
            for (at, end) in (next..end).zip(ends).take(count) {
                let ended = match end {
                    End::Unknown => Err("a read was not answered by a target that is there".to_owned()),
                    end => self.ledger.end(at, &Deed::Get, end),
                };
                match ended {
                    Ok(()) => self.report.checked += 1,
                    Err(finding) => self.report.find(finding),
                }
            }
            if count == 0 {
                return self.report.find("nothing could be read".to_owned());
            }
            next += count;
        }
    }
}

/// An NVMe host with one lane.
fn connect(target: &Target, number: u64) -> Result<Box<dyn Client>> {
    let association =
        Association::connect(&target.address(), hosts::options(number, 1)?).context("cannot connect")?;
    let namespace = association.addressed_key_value()?;
    Ok(Box::new(NvmeClient::new(BlockingKeyValue::new(&association, namespace)?)))
}

impl PairReport {
    fn find(&mut self, finding: String) {
        self.violations += 1;
        if self.findings.len() < 20 {
            self.findings.push(finding);
        }
    }

    pub(crate) fn add(&mut self, other: Self) {
        self.acknowledged += other.acknowledged;
        self.changes += other.changes;
        self.flushes += other.flushes;
        self.interrupted += other.interrupted;
        self.checked += other.checked;
        self.violations += other.violations;
        self.findings.extend(other.findings);
    }

    /// The results in a few lines.
    pub(crate) fn print(&self, engine: &str, sync: &str) {
        println!(
            "{} kills ({engine}, sync={sync}; {} of them at the start), {} commands acknowledged ({} of them changes), {} flushes, \
             {} changes interrupted, at most {} KiB of answered changes lost by a kill, {} keys checked, {} violations, {:.1} s",
            self.kills,
            self.kills_at_start,
            self.acknowledged,
            self.changes,
            self.flushes,
            self.interrupted,
            self.lost_bytes_max.div_ceil(1024),
            self.checked,
            self.violations,
            self.took.as_secs_f64()
        );
        for finding in &self.findings {
            println!("  {finding}");
        }
    }
}
