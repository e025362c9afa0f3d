//! The flood: everything that costs a peer nothing, all at once, and what a healthy host and the target's memory make of it.
//!
//! ```text
//! healthy host   ──quiet──▶ ──arriving──▶ ──────────flooded──────────▶ ──────returning──────▶
//! attackers                 half-open, slow, deaf, owing: held ────────────────held──────────▶
//!                                         connects, controllers, wrong digests: over and over │
//! ```
//! Attackers that are held keep their connections open for as long as the target lets them.
//!
//! On few cores those who flood are in the healthy host's way whatever they flood. So they do the same to a *decoy* first, a target of the
//! same kind on their own core, and what the healthy host gets beside that is what it is compared with.

mod attack;
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

/// How long any answer to an attacker may take.
const PATIENCE: Duration = Duration::from_secs(20);

/// Everything must have come back this long after the flood.
const RETURN_LIMIT: Duration = Duration::from_secs(35);

/// How often the target is looked at.
const LOOK: Duration = Duration::from_millis(100);

/// What is to be done.
#[derive(Clone, Debug)]
pub(crate) struct FloodOptions {
    /// With what.
    pub(crate) attacks: Vec<Attack>,
    /// Connections that never say a word.
    pub(crate) half_open: usize,
    /// Connections of each slow or deaf kind.
    pub(crate) slow: usize,
    /// How long it lasts.
    pub(crate) time: Duration,
    /// Whether target, healthy host and attackers are kept apart, for what takes time to mean something.
    pub(crate) is_timed: bool,
    /// The `nvlane` program.
    pub(crate) program: PathBuf,
    /// Where the log is.
    pub(crate) directory: PathBuf,
    /// The cores of the target, if they are to be others.
    pub(crate) cores: Option<String>,
    /// More options of `nvlane target`.
    pub(crate) arguments: Vec<String>,
}

/// What attackers share.
#[derive(Default)]
struct Scene {
    /// Everybody is there who is to be held.
    is_open: AtomicBool,
    has_flood_ended: AtomicBool,
    has_all_ended: AtomicBool,
    held_count: AtomicUsize,
    tally: Tally,
}

/// What is seen of the target from outside.
#[derive(Default)]
struct Sight {
    is_over: AtomicBool,
    /// Descriptors, now and at most.
    descriptor_count: AtomicUsize,
    descriptor_count_max: AtomicUsize,
    /// Memory at most, bytes.
    resident_bytes_max: AtomicU64,
}

/// Runs it.
pub(crate) fn run(options: &FloodOptions) -> Result<FloodReport> {
    reactor::allow_descriptors();
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

/// A target that is as little in the healthy host's way as attackers are: it has what the thread has that starts it.
fn start_decoy(options: &FloodOptions, cores: &Cores) -> Result<Target> {
    let start = move || {
        cores.place_attacker(0)?;
        start(options, Some(cores.of_decoy()), "decoy.log")
    };
    let started = std::thread::scope(|scope| scope.spawn(start).join());
    started.map_err(|_| anyhow!("the start of the decoy panicked"))?.context("the decoy")
}

/// Those who flood, and who watches: threads beside the healthy host's.
#[derive(Clone, Copy)]
struct Attackers<'a> {
    options: &'a FloodOptions,
    cores: Option<&'a Cores>,
}

impl Attackers<'_> {
    /// Floods a target beside the healthy host. Those who are held stay until `afterwards` is over.
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
            // Whatever went wrong, the others end now.
            scene.has_flood_ended.store(true, Ordering::Relaxed);
            scene.has_all_ended.store(true, Ordering::Relaxed);
            outcome.context("the healthy host")
        })
    }

    /// Whether the healthy host's core is theirs.
    fn share_core(self) -> bool {
        self.cores.is_some_and(Cores::are_shared)
    }

    /// Opens what is to be held, and says a byte a second where something is said.
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

    /// Does something over and over, once everybody is there.
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

    /// Looks at the target now and then.
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

    /// Puts the calling thread where it belongs.
    fn place(self, at: usize) {
        if let Some(Err(error)) = self.cores.map(|cores| cores.place_attacker(at)) {
            eprintln!("an attacker is in the healthy host's way: {error:#}");
        }
    }
}

/// Whether so much time has passed from now on.
fn over(time: Duration) -> impl FnMut() -> bool {
    let start = Instant::now();
    move || start.elapsed() >= time
}

/// Memory that a process has touched, bytes.
fn resident_bytes(pid: u32) -> Result<u64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).context("the target's memory")?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("VmRSS")?;
    Ok(line.trim().trim_end_matches(" kB").parse::<u64>()? * 1024)
}

/// Open descriptors of a process.
fn descriptors(pid: u32) -> Result<usize> {
    Ok(std::fs::read_dir(format!("/proc/{pid}/fd")).context("the target's descriptors")?.count())
}

/// Memory of all TCP sockets of this machine, bytes.
fn socket_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/net/sockstat").unwrap_or_default();
    let line = text.lines().find(|line| line.starts_with("TCP:")).unwrap_or_default();
    let pages = line.split_ascii_whitespace().skip_while(|word| *word != "mem").nth(1);
    pages.and_then(|pages| pages.parse::<u64>().ok()).unwrap_or(0) * rustix::param::page_size() as u64
}
