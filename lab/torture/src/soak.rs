//! The soak: one target for hours, with everything that a target goes through at once, and every block and pair compared
//! after each round. Memory, descriptors, buffers and latency have to stay as they were.
//!
//! ```text
//! round: ┌ two hosts of blocks, four of pairs, that come and go ┐
//!        │ strangers: short visits, floods, nonsense            ├─▶ end of load ─▶ every block and pair is read ─▶ all leave:
//!        └ an operator: reloads and control calls               ┘   or SIGKILL    resources are those of the first round
//! ```
//! The target is killed in the last quarter of the time only, so that a leak shows in a process that is hours old.

mod block_host;
mod health;
mod operator;
mod visitors;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use host::{Association, Options};
use linux::CoreList;
use load::random::Prng;
use peer::port::free_address;

use self::block_host::BlockHost;
use self::health::{Health, Sample};
use self::operator::Operator;
use crate::checked::Counts;
use crate::pair_loop::{PairReport, Workers};
use crate::target::{NQN, Target, TargetOptions};

/// Part of the time after which the target is killed, now and then.
const CALM_SHARE: f64 = 0.75;

/// Rounds, of which one is killed, in the rest of the time.
const ROUNDS_PER_KILL: u64 = 3;

/// Duration of a round's load: at least, and at most this much more.
const ROUND_MIN: Duration = Duration::from_secs(8);
const ROUND_SPREAD_MS: u64 = 16_000;

/// Time within which a host must be able to connect, beside floods from its own address.
const CONNECT_LIMIT: Duration = Duration::from_secs(30);

/// Findings that are kept.
const FINDING_COUNT_MAX: usize = 50;

/// The namespaces: one of which the contents do not matter, files with whole pages and with small blocks, memory, keys.
const OPEN_NSID: u32 = 1;
const FILE_NSIDS: [u32; 2] = [2, 3];
const MEMORY_NSID: u32 = 4;
const BASE_NSID_MAX: u32 = 5;

#[derive(Clone, Debug)]
pub(crate) struct SoakOptions {
    pub(crate) time: Duration,
    pub(crate) seed: u64,
    /// Path of the `nvlane` program.
    pub(crate) program: PathBuf,
    /// Directory of the files, the log and the samples.
    pub(crate) directory: PathBuf,
    /// Further options of `nvlane target`.
    pub(crate) arguments: Vec<String>,
}

/// Results of a soak.
#[derive(Debug, Default)]
pub(crate) struct SoakReport {
    rounds: u64,
    kills: u32,
    blocks: Counts,
    pairs: PairReport,
    health: Health,
    visits: u64,
    changes: u64,
    refusals: u64,
    pub(crate) findings: Vec<String>,
}

/// What the threads of a round share.
#[derive(Default)]
struct Round {
    is_over: AtomicBool,
    /// Whether the target was, or is about to be, killed.
    is_killed: AtomicBool,
    findings: Mutex<Vec<String>>,
}

impl Round {
    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Acquire)
    }

    fn is_killed(&self) -> bool {
        self.is_killed.load(Ordering::Acquire)
    }

    fn find(&self, finding: String) {
        self.findings.lock().expect("no thread panics with it").push(finding);
    }

    /// Notes an error, unless a kill explains it.
    fn judge(&self, who: &str, result: Result<()>) {
        if let Err(error) = result
            && !self.is_killed()
        {
            self.find(format!("{who}: {error:#}"));
        }
    }

    /// Waits, or until the round is over.
    fn pause(&self, time: Duration) {
        let until = Instant::now() + time;
        while !self.is_over() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// Everything that outlives a round.
struct Soak {
    target: Target,
    memcached: SocketAddr,
    hosts: [BlockHost; 2],
    workers: Workers,
    operator: Operator,
    random: Prng,
    report: SoakReport,
}

/// Runs a soak. Findings end it, and are part of the report.
pub(crate) fn run(options: &SoakOptions) -> Result<SoakReport> {
    linux::allow_descriptors();
    let mut random = Prng::new(options.seed);
    let [listen, memcached] = [free_address()?, free_address()?];
    let metrics = free_address()?;
    let operator = Operator::new(&options.directory, metrics, random.draw())?;
    let mut arguments = options.arguments.clone();
    arguments.extend(operator.arguments());
    arguments.extend(["--memcached".into(), memcached.to_string()]);
    let target_options = TargetOptions {
        program: options.program.clone(),
        namespaces: Vec::new(),
        arguments,
        log: options.directory.join("target.log"),
    };
    let target = Target::start_at(target_options, listen)?;
    let partition_count = CoreList::allowed().context("the cores of this machine")?.cores().len();
    let workers = Workers::connect(&target, memcached, partition_count, true, &mut random)?;
    let hosts = [BlockHost::new(&FILE_NSIDS, true), BlockHost::new(&[MEMORY_NSID], false)];
    let report = SoakReport::default();
    let mut soak = Soak { target, memcached, hosts, workers, operator, random, report };
    let start = Instant::now();
    let (mut said, mut csv) = (Instant::now(), health::Csv::create(&options.directory.join("samples.csv"))?);
    while start.elapsed() < options.time && soak.report.findings.is_empty() {
        let is_calm = start.elapsed() < options.time.mul_f64(CALM_SHARE);
        let is_killed = !is_calm && soak.random.below(ROUNDS_PER_KILL) == 0;
        let sample = soak.round(is_killed).with_context(|| format!("round {}", soak.report.rounds))?;
        csv.write(start.elapsed(), soak.report.kills, &sample)?;
        let findings = soak.report.health.add(sample);
        soak.report.findings.extend(findings);
        if said.elapsed() > Duration::from_secs(60) {
            said = Instant::now();
            soak.report.tell(start.elapsed(), options.time);
        }
    }
    let flat = soak.report.health.judge();
    soak.report.findings.extend(flat);
    Ok(soak.report)
}

impl Soak {
    /// Load, its end or a kill, a comparison of everything, and what is left when all have gone.
    fn round(&mut self, is_killed: bool) -> Result<Sample> {
        self.report.rounds += 1;
        let number = self.report.rounds;
        let round = Round::default();
        let load_for = ROUND_MIN + Duration::from_millis(self.random.below(ROUND_SPREAD_MS));
        let (address, place, pid) = (self.target.address(), self.target.place(), self.target.pid());
        let peer = crate::flood::attack::peer(&self.target)?;
        let Self { hosts, workers, operator, target, memcached, .. } = self;
        let (round_of, memcached) = (&round, *memcached);
        let latencies = std::thread::scope(|scope| -> Result<_> {
            for host in hosts.iter_mut() {
                let address = &address;
                scope.spawn(move || round_of.judge("a host of blocks", host.load(address, round_of)));
            }
            workers.load(scope, &round_of.is_over);
            scope.spawn(move || round_of.judge("the operator", operator.run(pid, round_of)));
            let visits = visitors::start(scope, &address, [place, memcached], &peer, number, round_of);
            let reader = scope.spawn(|| visitors::read_steadily(&address, round_of));
            std::thread::sleep(load_for);
            if is_killed {
                round_of.is_killed.store(true, Ordering::Release);
                target.kill()?;
            }
            round_of.is_over.store(true, Ordering::Release);
            if is_killed {
                target.restart()?;
            }
            let latencies = reader.join().map_err(|_| anyhow!("the reader panicked"))?;
            round_of.judge(
                "the steady reader",
                latencies.as_ref().map(|_| ()).map_err(|error| anyhow!("{error:#}")),
            );
            let visits: u64 = visits.into_iter().filter_map(|visitor| visitor.join().ok()).sum();
            Ok((latencies.unwrap_or_default(), visits))
        });
        let (latencies, visits) = latencies?;
        self.report.visits += visits;
        self.report.kills += u32::from(is_killed);
        if is_killed {
            self.operator.after_kill(&round)?;
        }
        round.judge("the operator", self.operator.settle(&round));
        self.compare(is_killed, &round)?;
        self.leave()?;
        let mut findings = round.findings.into_inner().expect("no thread holds it");
        let pairs = self.workers.take_report();
        findings.extend(pairs.findings.iter().cloned());
        self.report.pairs.add(pairs);
        for host in &mut self.hosts {
            let (counts, found) = host.take_report();
            self.report.blocks.add(counts);
            findings.extend(found);
        }
        (self.report.changes, self.report.refusals) = self.operator.counts();
        let room = FINDING_COUNT_MAX.saturating_sub(self.report.findings.len());
        self.report.findings.extend(findings.into_iter().take(room));
        if is_killed {
            self.report.health.forget();
        }
        Sample::take(&self.target, &latencies, &self.report.health)
    }

    /// Reads every block and pair.
    fn compare(&mut self, is_killed: bool, round: &Round) -> Result<()> {
        let address = self.target.address();
        for host in &mut self.hosts {
            host.verify(&address, is_killed, round)?;
        }
        self.workers.replace_clients(&self.target, self.memcached, self.report.rounds * 100)?;
        if is_killed {
            self.workers.after_kill()?;
        }
        self.workers.verify(&mut self.random);
        Ok(())
    }

    /// All hosts and clients leave, and the workers come back for the next round.
    fn leave(&mut self) -> Result<()> {
        self.workers.disconnect();
        let until = Instant::now() + CONNECT_LIMIT;
        while Instant::now() < until && !health::is_deserted(&self.target) {
            std::thread::sleep(Duration::from_millis(100));
        }
        Ok(())
    }
}

/// Connects to a target that may refuse for a moment, because strangers of the same address flood it.
fn connect(address: &host::Address, options: &Options, round: &Round) -> Result<Option<Association>> {
    let until = Instant::now() + CONNECT_LIMIT;
    loop {
        match Association::connect(address, options.clone()) {
            Ok(association) => return Ok(Some(association)),
            Err(_) if round.is_killed() => return Ok(None),
            Err(_) if Instant::now() < until => std::thread::sleep(Duration::from_millis(50)),
            Err(error) => return Err(error).context("cannot connect"),
        }
    }
}

impl SoakReport {
    /// Progress, as a line.
    fn tell(&self, so_far: Duration, of: Duration) {
        println!(
            "{:.1} of {:.1} h: {} rounds, {} kills, {} commands, {} visits, {} changes, {}",
            so_far.as_secs_f64() / 3600.0,
            of.as_secs_f64() / 3600.0,
            self.rounds,
            self.kills,
            self.blocks.acknowledged + self.pairs.acknowledged,
            self.visits,
            self.changes,
            self.health.last(),
        );
    }

    /// The results, as lines.
    pub(crate) fn print(&self, engine: &str, took: Duration) {
        println!(
            "{:.2} h ({engine}): {} rounds, {} kills; {} commands on blocks, {} blocks checked; {} on pairs, {} keys checked; \
             {} visits of strangers; {} changes and {} refused calls of the operator",
            took.as_secs_f64() / 3600.0,
            self.rounds,
            self.kills,
            self.blocks.acknowledged,
            self.blocks.blocks_checked,
            self.pairs.acknowledged,
            self.pairs.checked,
            self.visits,
            self.changes,
            self.refusals,
        );
        self.health.print();
        for finding in &self.findings {
            println!("  FAILED: {finding}");
        }
    }
}

/// The configuration of the subsystem, but for what the operator edits.
fn configuration(directory: &std::path::Path) -> String {
    let file = |name: &str| directory.join(name).display().to_string();
    format!(
        "[[subsystem]]\nnqn = \"{NQN}\"\nhosts = \"any\"\n\
         [[subsystem.namespace]]\nnsid = {OPEN_NSID}\nstorage = \"ram:64M\"\n\
         [[subsystem.namespace]]\nnsid = 2\nstorage = \"file:{}?size=16M\"\n\
         [[subsystem.namespace]]\nnsid = 3\nstorage = \"file:{}?size=4M&lba=512\"\n\
         [[subsystem.namespace]]\nnsid = {MEMORY_NSID}\nstorage = \"ram:32M\"\n\
         [[subsystem.namespace]]\nnsid = {BASE_NSID_MAX}\nstorage = \"kv:file:{}?size=64M&memory=5M&sync=always\"\n",
        file("pages"),
        file("sectors"),
        file("pairs"),
    )
}
