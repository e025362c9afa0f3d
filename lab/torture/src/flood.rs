//! The flood: all attacks that are cheap for a peer, at once, and their effect on a healthy host and on the target's
//! memory.
//!
//! ```text
//! healthy host   ──quiet──▶ ──arriving──▶ ──────────flooded──────────▶ ──────returning──────▶
//! attackers                 half-open, slow, deaf, owing: held ────────────────held──────────▶
//!                                         connects, controllers, wrong digests: over and over │
//! ```
//! Held connections stay open for as long as the target allows.
//!
//! With few cores the attackers disturb the healthy host whatever target they flood. They therefore flood a *decoy*
//! first, a second target on their own core; the healthy host's figures during that flood are the baseline.

pub(crate) mod attack;
mod cores;
mod healthy;
mod report;

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use probe::target::Target as Peer;

pub(crate) use attack::Attack;
use attack::{Held, Tally};
use cores::Cores;
use healthy::Healthy;
use report::{Beside, FloodReport};

use crate::target::{Target, TargetOptions};

/// Time limit for an answer to an attacker.
const PATIENCE: Duration = Duration::from_secs(20);

/// Time after the flood within which all resources must be released.
const RETURN_LIMIT: Duration = Duration::from_secs(35);

/// Sampling interval of the target's resources.
const LOOK: Duration = Duration::from_millis(100);

#[derive(Clone, Debug)]
pub(crate) struct FloodOptions {
    /// Attacks to run.
    pub(crate) attacks: Vec<Attack>,
    /// Number of half-open connections.
    pub(crate) half_open: usize,
    /// Number of connections of each slow or non-reading kind.
    pub(crate) slow: usize,
    /// Duration of the flood.
    pub(crate) time: Duration,
    /// Whether target, healthy host and attackers run on separate cores, which makes timings meaningful.
    pub(crate) is_timed: bool,
    /// Path of the `nvlane` program.
    pub(crate) program: PathBuf,
    /// Directory of the log.
    pub(crate) directory: PathBuf,
    /// Cores of the target, if not the default.
    pub(crate) cores: Option<String>,
    /// Further options of `nvlane target`.
    pub(crate) arguments: Vec<String>,
}

/// State shared by the attackers.
#[derive(Default)]
struct Scene {
    /// All connections to be held are open.
    is_open: AtomicBool,
    has_flood_ended: AtomicBool,
    has_all_ended: AtomicBool,
    held_count: AtomicUsize,
    tally: Tally,
}

/// Resources of the target, measured from outside.
#[derive(Default)]
struct Sight {
    is_over: AtomicBool,
    /// Open descriptors, now and at most.
    descriptor_count: AtomicUsize,
    descriptor_count_max: AtomicUsize,
    /// Peak memory, bytes.
    resident_bytes_max: AtomicU64,
}

/// Runs the flood.
pub(crate) fn run(options: &FloodOptions) -> Result<FloodReport> {
    linux::allow_descriptors();
    let cores = if options.is_timed { Cores::apart()? } else { None };
    let of_target = options.cores.clone().or_else(|| cores.as_ref().map(Cores::of_target));
    let target = start(options, of_target, "target.log")?;
    let decoy = cores.as_ref().map(|cores| start_decoy(options, cores)).transpose()?;
    if let Some(cores) = &cores {
        cores.place_healthy()?;
    }
    let mut healthy = Healthy::connect(&target)?;
    let peer = attack::peer(&target)?;
    std::thread::sleep(Duration::from_millis(500));
    let own_count = descriptors(target.pid())?;
    let mut report = FloodReport {
        placement: cores.as_ref().map(Cores::to_string),
        idle_bytes: resident_bytes(target.pid())?,
        ..FloodReport::default()
    };
    let attackers = Attackers { options, cores: cores.as_ref() };
    let shares_core = attackers.share_core();
    report.quiet = healthy.paced(over(options.time))?;
    report.quiet_closed = healthy.closed(options.time / 2, shares_core)?;
    if let Some(decoy) = decoy {
        let (beside, ()) = attackers.flood(&attack::peer(&decoy)?, &mut healthy, |_| Ok(()))?;
        report.decoy = Some(beside);
    }
    let sight = Sight::default();
    std::thread::scope(|scope| -> Result<()> {
        let watch = scope.spawn(|| attackers.watch(target.pid(), &sight));
        let is_back = || sight.descriptor_count.load(Ordering::Relaxed) <= own_count;
        let outcome = attackers.flood(&peer, &mut healthy, |healthy| {
            report.socket_bytes = socket_bytes();
            let ended = Instant::now();
            report.returning = healthy.paced(|| is_back() || ended.elapsed() > RETURN_LIMIT)?;
            report.returned = is_back().then(|| ended.elapsed());
            Ok(())
        });
        sight.is_over.store(true, Ordering::Relaxed);
        let watched = watch.join().map_err(|_| anyhow!("the watch panicked"))?;
        (report.target, ()) = outcome?;
        watched
    })?;
    let beyond_own = |count: &AtomicUsize| count.load(Ordering::Relaxed).saturating_sub(own_count);
    report.peak_bytes = sight.resident_bytes_max.load(Ordering::Relaxed);
    report.peak_connections = beyond_own(&sight.descriptor_count_max);
    report.left = beyond_own(&sight.descriptor_count);
    report.tell_state(target.state());
    healthy.close();
    Ok(report)
}

fn start(options: &FloodOptions, cores: Option<String>, log: &str) -> Result<Target> {
    let mut arguments = options.arguments.clone();
    arguments.extend(cores.into_iter().flat_map(|list| ["--cores".into(), list]));
    Target::start(TargetOptions {
        program: options.program.clone(),
        namespaces: vec!["ram:64M".into()],
        arguments,
        log: options.directory.join(log),
    })
}

/// A second target that disturbs the healthy host only as attackers do: it inherits the core and priority of its
/// thread.
fn start_decoy(options: &FloodOptions, cores: &Cores) -> Result<Target> {
    let start = move || {
        cores.place_attacker(0)?;
        start(options, Some(cores.of_decoy()), "decoy.log")
    };
    let started = std::thread::scope(|scope| scope.spawn(start).join());
    started.map_err(|_| anyhow!("the start of the decoy panicked"))?.context("the decoy")
}

/// The threads that attack and measure, beside the healthy host's.
#[derive(Clone, Copy)]
struct Attackers<'a> {
    options: &'a FloodOptions,
    cores: Option<&'a Cores>,
}

impl Attackers<'_> {
    /// Floods a target beside the healthy host. Held connections stay open until `afterwards` returns.
    fn flood<T>(
        self,
        peer: &Peer,
        healthy: &mut Healthy,
        afterwards: impl FnOnce(&mut Healthy) -> Result<T>,
    ) -> Result<(Beside, T)> {
        let options = self.options;
        let scene = &Scene::default();
        std::thread::scope(|scope| {
            scope.spawn(move || self.hold(scene, peer));
            for (at, &attack) in options.attacks.iter().enumerate() {
                if let Some(once) = attack.repeated() {
                    scope.spawn(move || self.repeat(scene, peer, at, attack, once));
                }
            }
            let outcome = (|| {
                let arriving = healthy.paced(|| scene.is_open.load(Ordering::Relaxed))?;
                let began = Instant::now();
                let paced = healthy.paced(over(options.time))?;
                let closed = healthy.closed(options.time / 2, self.share_core())?;
                let floods = scene.tally.tell(&options.attacks, began.elapsed());
                scene.has_flood_ended.store(true, Ordering::Relaxed);
                let held = scene.held_count.load(Ordering::Relaxed);
                anyhow::Ok((Beside { arriving, paced, closed, floods, held }, afterwards(healthy)?))
            })();
            // After a failure, too, the other threads must end.
            scene.has_flood_ended.store(true, Ordering::Relaxed);
            scene.has_all_ended.store(true, Ordering::Relaxed);
            outcome.context("the healthy host")
        })
    }

    /// Whether the attackers run on the healthy host's core.
    fn share_core(self) -> bool {
        self.cores.is_some_and(Cores::are_shared)
    }

    /// Opens the connections to be held, and sends one byte per second on the slow ones.
    fn hold(self, scene: &Scene, peer: &Peer) {
        let options = self.options;
        self.place(0);
        let mut held = Held::open(&options.attacks, options.half_open, options.slow, peer);
        scene.held_count.store(held.count(), Ordering::Relaxed);
        scene.is_open.store(true, Ordering::Relaxed);
        let mut next = Instant::now();
        while !scene.has_all_ended.load(Ordering::Relaxed) {
            if next <= Instant::now() {
                held.drip();
                next += Duration::from_secs(1);
            }
            std::thread::sleep(LOOK);
        }
    }

    /// Repeats one attack, once all held connections are open.
    fn repeat(self, scene: &Scene, peer: &Peer, at: usize, attack: Attack, once: fn(&Peer)) {
        self.place(at);
        while !scene.is_open.load(Ordering::Relaxed) {
            std::thread::sleep(LOOK);
        }
        while !scene.has_flood_ended.load(Ordering::Relaxed) {
            once(peer);
            scene.tally.add(attack);
        }
    }

    /// Samples the target's resources.
    fn watch(self, pid: u32, sight: &Sight) -> Result<()> {
        self.place(0);
        while !sight.is_over.load(Ordering::Relaxed) {
            let count = descriptors(pid)?;
            sight.descriptor_count.store(count, Ordering::Relaxed);
            sight.descriptor_count_max.fetch_max(count, Ordering::Relaxed);
            sight.resident_bytes_max.fetch_max(resident_bytes(pid)?, Ordering::Relaxed);
            std::thread::sleep(LOOK);
        }
        Ok(())
    }

    /// Moves the calling thread to its core.
    fn place(self, at: usize) {
        if let Some(Err(error)) = self.cores.map(|cores| cores.place_attacker(at)) {
            eprintln!("an attacker disturbs the healthy host: {error:#}");
        }
    }
}

/// Returns a predicate that is `true` once this duration has passed.
fn over(time: Duration) -> impl FnMut() -> bool {
    let start = Instant::now();
    move || start.elapsed() >= time
}

/// Resident memory of a process, bytes.
pub(crate) fn resident_bytes(pid: u32) -> Result<u64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).context("the target's memory")?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("VmRSS")?;
    Ok(line.trim().trim_end_matches(" kB").parse::<u64>()? * 1024)
}

/// Open descriptors of a process.
pub(crate) fn descriptors(pid: u32) -> Result<usize> {
    Ok(std::fs::read_dir(format!("/proc/{pid}/fd")).context("the target's descriptors")?.count())
}

/// Memory of all TCP sockets of this machine, bytes.
fn socket_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/net/sockstat").unwrap_or_default();
    let line = text.lines().find(|line| line.starts_with("TCP:")).unwrap_or_default();
    let pages = line.split_ascii_whitespace().skip_while(|word| *word != "mem").nth(1);
    pages.and_then(|pages| pages.parse::<u64>().ok()).unwrap_or(0) * rustix::param::page_size() as u64
}
