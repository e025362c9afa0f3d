//! The flood: everything that costs a peer nothing, all at once, and what a healthy lane and the target's memory make of it.
//!
//! ```text
//! healthy lane   ──quiet──▶ ──────────flooded──────────▶ ──────until everything is returned──────▶
//! attackers                 half-open, slow, deaf, owing: held ──────────────────held────────────▶
//!                           connects, wrong digests: over and over │
//! ```
//! Attackers that are held keep their connections open for as long as the target lets them.

use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use host::{Association, Options};
use load::histogram::Histogram;
use probe::draft::Draft;
use probe::finding::Finding;
use probe::peer::{Disk, Peer, Settings};
use probe::queue::{Move, Queue, Step};
use serde_json::Value;
use wire::id::Nsid;
use wire::nqn::{HostId, Nqn};
use wire::pdu::{DataAlignment, Digests, IcReq};
use wire::sqe::Sqe;
use zerocopy::IntoBytes;

use crate::target::{Target, TargetOptions};

/// How long any answer to an attacker may take.
const PATIENCE: Duration = Duration::from_secs(20);

/// Everything must have come back this long after the flood.
const RETURN_LIMIT: Duration = Duration::from_secs(35);

/// Memory over idle, at most.
const MEMORY_LIMIT_BYTES: u64 = 256 << 20;

/// Commands outstanding on the healthy lane.
const DEPTH: u64 = 16;

/// What is to be done.
#[derive(Clone, Debug)]
pub(crate) struct FloodOptions {
    /// Connections that never say a word.
    pub(crate) half_open: usize,
    /// Connections of each slow or deaf kind.
    pub(crate) slow: usize,
    /// How long it lasts.
    pub(crate) time: Duration,
    /// The `nvlane` program.
    pub(crate) program: PathBuf,
    /// Where the log is.
    pub(crate) directory: PathBuf,
    /// More options of `nvlane target`.
    pub(crate) arguments: Vec<String>,
}

/// What a healthy lane got.
#[derive(Clone, Debug, Default)]
pub(crate) struct Health {
    pub(crate) iops: f64,
    pub(crate) p99_us: f64,
    pub(crate) longest_us: f64,
}

/// What came of it.
#[derive(Clone, Debug, Default)]
pub(crate) struct FloodReport {
    pub(crate) quiet: Health,
    pub(crate) flooded: Health,
    /// Memory of the target, idle and at most, bytes.
    pub(crate) idle_bytes: u64,
    pub(crate) peak_bytes: u64,
    /// Of the kernel, for all sockets of this machine.
    pub(crate) socket_bytes: u64,
    /// Connections opened: to be held, and over and over.
    pub(crate) held: usize,
    pub(crate) floods: u64,
    /// Connections of the target at most, and how long until all were gone.
    pub(crate) peak_connections: usize,
    pub(crate) returned: Option<Duration>,
    /// Connections that were still there.
    pub(crate) left: usize,
    /// What the target says of its buffers and of connections that it refused or ended, a line each.
    pub(crate) state: Vec<String>,
}

/// Runs it.
pub(crate) fn run(options: &FloodOptions) -> Result<FloodReport> {
    reactor::allow_descriptors();
    let target = Target::start(TargetOptions {
        program: options.program.clone(),
        namespaces: vec!["ram:64M".into()],
        arguments: options.arguments.clone(),
        log: options.directory.join("target.log"),
    })?;
    let pid = target.pid();
    let mut report = FloodReport { idle_bytes: resident_bytes(pid)?, ..FloodReport::default() };
    let healthy = Association::connect(&target.address(), Options { depth: 64, ..Options::default() })?;
    let gauge = Gauge::default();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| -> Result<()> {
        let reader = scope.spawn(|| read_on(&healthy, &gauge, &is_over));
        let outcome = attack(options, &target, &gauge, &mut report);
        is_over.store(true, Ordering::Release);
        let read = reader.join().map_err(|_| anyhow!("the healthy lane panicked"))?;
        outcome.and(read.context("the healthy lane"))
    })?;
    healthy.close();
    Ok(report)
}

fn attack(options: &FloodOptions, target: &Target, gauge: &Gauge, report: &mut FloodReport) -> Result<()> {
    let pid = target.pid();
    std::thread::sleep(Duration::from_millis(500));
    report.quiet = gauge.over(options.time);
    let own_connections = connections(pid)?;
    let peer = peer(target)?;
    let (is_flooding, is_held, is_watched) =
        (AtomicBool::new(true), AtomicBool::new(true), AtomicBool::new(true));
    let floods = AtomicU64::new(0);
    std::thread::scope(|scope| -> Result<()> {
        let flood = |once: fn(&Peer, SocketAddr)| {
            let (peer, is_flooding, floods) = (&peer, &is_flooding, &floods);
            move || {
                while is_flooding.load(Ordering::Relaxed) {
                    once(peer, peer.settings.address);
                    floods.fetch_add(1, Ordering::Relaxed);
                }
            }
        };
        scope.spawn(flood(|_, place| drop(TcpStream::connect(place))));
        scope.spawn(flood(|peer, _| drop(peer.admin(Digests::empty()))));
        scope.spawn(flood(wrong_digest));
        let watched = &is_watched;
        let watch = scope.spawn(move || -> Result<(u64, usize)> {
            let mut most = (0, 0);
            while watched.load(Ordering::Relaxed) {
                most = (resident_bytes(pid)?.max(most.0), connections(pid)?.max(most.1));
                std::thread::sleep(Duration::from_millis(50));
            }
            Ok(most)
        });
        let mut held = Held::open(options, &peer);
        report.held = held.count();
        scope.spawn({
            let is_held = &is_held;
            move || {
                while is_held.load(Ordering::Relaxed) {
                    held.drip();
                    std::thread::sleep(Duration::from_secs(1));
                }
            }
        });
        report.flooded = gauge.over(options.time);
        is_watched.store(false, Ordering::Relaxed);
        let watched = watch.join();
        is_flooding.store(false, Ordering::Relaxed);
        report.socket_bytes = socket_bytes();
        let returned = await_return(pid, own_connections);
        let left = connections(pid);
        // Whatever went wrong, the others end now.
        is_held.store(false, Ordering::Relaxed);
        (report.returned, report.left) = (returned?, left?.saturating_sub(own_connections));
        report.state = target.state().map(|state| told(&state)).unwrap_or_default();
        let watched = watched.map_err(|_| anyhow!("the watch panicked"))?;
        (report.peak_bytes, report.peak_connections) = watched?;
        Ok(())
    })?;
    report.floods = floods.into_inner();
    Ok(())
}

/// What the target says of its buffers, and of those whom it sent away.
fn told(state: &Value) -> Vec<String> {
    let mib = |value: &Value| value.as_u64().unwrap_or(0) >> 20;
    let mut lines = Vec::new();
    for reactor in state["reactors"].as_array().into_iter().flatten() {
        let buffers = &reactor["buffers"];
        lines.push(format!(
            "reactor {}: {} of {} MiB of buffers free at least, {} now; {} commands waited, {} lanes held back",
            reactor["reactor"],
            mib(&buffers["free_bytes_min"]),
            mib(&buffers["bytes"]),
            mib(&buffers["free_bytes"]),
            buffers["waited_count"],
            buffers["held_back_count"]
        ));
    }
    let complaints = state["connections"]["complaints"].as_object();
    lines.extend(
        complaints.into_iter().flatten().map(|(reason, count)| format!("{count} connections: {reason}")),
    );
    lines
}

/// Waits until the target has no more connections than it had before.
fn await_return(pid: u32, own_connections: usize) -> Result<Option<Duration>> {
    let start = Instant::now();
    while connections(pid)? > own_connections {
        if start.elapsed() > RETURN_LIMIT {
            return Ok(None);
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    Ok(Some(start.elapsed()))
}

/// A peer of the target, as it was before the flood.
fn peer(target: &Target) -> Result<Peer> {
    let host = "nqn.2026-01.io.nvlane:flood".parse::<Nqn>()?;
    Peer::new(Settings {
        address: target.place(),
        subsystem: target.address().subsystem.context("a subsystem")?,
        nsid: Some(Nsid::new(1)),
        host,
        hostid: HostId::from_bytes([0x17; 16]),
        patience: PATIENCE,
        may_overwrite: true,
        pause_limit: PATIENCE,
        memcached: None,
        removal: None,
        log: None,
    })
    .map_err(|finding: Finding| anyhow!("{finding}"))
}

/// A capsule whose header digest is wrong: the target says so, and closes.
fn wrong_digest(peer: &Peer, _: SocketAddr) {
    let Ok(mut link) = peer.link(Digests::all()) else { return };
    let mut bytes = Draft::command(link.form, Sqe::read(Nsid::new(1), 0, 1), &[]).seal();
    if let Some(last) = bytes.last_mut() {
        *last ^= 1;
    }
    let _ = link.send(&bytes);
    let _ = link.receive();
}

/// Connections that are kept for as long as the target lets them.
#[derive(Default)]
struct Held {
    silent: Vec<TcpStream>,
    /// What each has still to say, a byte a second.
    slow: Vec<Slow>,
    deaf: Vec<Queue>,
    owing: Vec<Queue>,
}

impl Held {
    /// What cannot be had is not held: that the target refuses some is what is to be seen.
    fn open(options: &FloodOptions, peer: &Peer) -> Self {
        let mut held = Self::default();
        let place = peer.settings.address;
        for _ in 0..options.half_open {
            held.silent.extend(TcpStream::connect(place).ok());
        }
        let Some(disk) = peer.disk else { return held };
        for at in 0..options.slow {
            held.slow.extend(slow_handshake(place));
            held.slow.extend(slow_capsule(peer));
            held.slow.extend(slow_data(peer, disk));
            held.deaf.extend(deaf(peer, disk, at % 2 == 1));
            held.owing.extend(owing(peer, disk));
        }
        held
    }

    fn count(&self) -> usize {
        self.silent.len() + self.slow.len() + self.deaf.len() + self.owing.len()
    }

    /// Says a byte on each slow connection.
    fn drip(&mut self) {
        for Slow { line, bytes } in &mut self.slow {
            let Some(byte) = bytes.next() else { continue };
            // The target may have had enough of it.
            let _ = match line {
                Line::Bare(stream) => stream.write_all(&[byte]).is_ok(),
                Line::Queue(queue) => queue.link.send(&[byte]).is_ok(),
            };
        }
    }
}

/// A connection that says a byte now and then.
struct Slow {
    line: Line,
    /// What it has still to say.
    bytes: std::vec::IntoIter<u8>,
}

enum Line {
    Bare(TcpStream),
    /// With the association it belongs to.
    Queue(Box<Queue>),
}

fn slow_handshake(place: SocketAddr) -> Option<Slow> {
    let request = IcReq::new(DataAlignment::NONE, Digests::empty(), 1);
    let bytes = request.as_bytes().to_vec().into_iter();
    Some(Slow { line: Line::Bare(TcpStream::connect(place).ok()?), bytes })
}

/// A whole association, on which a command comes byte by byte.
fn slow_capsule(peer: &Peer) -> Option<Slow> {
    let queue = peer.io(Digests::empty()).ok()?;
    let bytes = Draft::command(queue.form(), Sqe::read(Nsid::new(1), 0, 1), &[]).seal().into_iter();
    Some(Slow { line: Line::Queue(Box::new(queue)), bytes })
}

/// The same with data that was asked for.
fn slow_data(peer: &Peer, disk: Disk) -> Option<Slow> {
    let mut queue = peer.io(Digests::empty()).ok()?;
    let data = disk.fill(8, 1);
    let cid = queue.submit(disk.write(0, 8), Move::Asked(&data)).ok()?;
    let Step::Wants(window) = queue.step(cid).ok()? else { return None };
    let bytes = Draft::h2c_data(queue.form(), cid, window.ttag, 0, &data, true).seal().into_iter();
    Some(Slow { line: Line::Queue(Box::new(queue)), bytes })
}

/// A queue full of reads whose data nobody takes; the window of the connection may be next to none from the beginning.
fn deaf(peer: &Peer, disk: Disk, is_narrow: bool) -> Option<Queue> {
    let mut queue = peer.io(Digests::empty()).ok()?;
    if is_narrow {
        // The kernel takes the least that it allows.
        rustix::net::sockopt::set_socket_recv_buffer_size(queue.link.stream(), 1).ok()?;
    }
    // More than the kernel keeps for both sockets.
    for at in 0..31 {
        let read = disk.read(at * 256, 256);
        queue.submit(read, Move::Back(disk.block_bytes * 256)).ok()?;
    }
    Some(queue)
}

/// A queue full of writes whose data never comes.
fn owing(peer: &Peer, disk: Disk) -> Option<Queue> {
    let mut queue = peer.io(Digests::empty()).ok()?;
    let data = vec![0; disk.block_bytes as usize * 256];
    for at in 0..31 {
        queue.submit(disk.write(at * 256, 256), Move::Asked(&data)).ok()?;
    }
    Some(queue)
}

/// How the healthy lane is.
#[derive(Default)]
struct Gauge {
    latencies: std::sync::Mutex<Histogram>,
}

impl Gauge {
    /// What the lane gets from now on for this long.
    fn over(&self, time: Duration) -> Health {
        let start = Instant::now();
        drop(self.take());
        std::thread::sleep(time);
        let histogram = self.take();
        #[expect(clippy::cast_precision_loss, reason = "figures for people")]
        let (count, us) = (histogram.count() as f64, |ns: u64| ns as f64 / 1000.0);
        Health {
            iops: count / start.elapsed().as_secs_f64(),
            p99_us: us(histogram.percentile(99.0)),
            longest_us: us(histogram.max()),
        }
    }

    fn take(&self) -> Histogram {
        std::mem::take(&mut *self.latencies.lock().unwrap_or_else(std::sync::PoisonError::into_inner))
    }

    fn record(&self, latency: Duration) {
        let ns = u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX);
        self.latencies.lock().unwrap_or_else(std::sync::PoisonError::into_inner).record(ns);
    }
}

/// Reads random blocks, all the time.
fn read_on(association: &Association, gauge: &Gauge, is_over: &AtomicBool) -> Result<()> {
    let namespace = association.namespace(Nsid::new(1))?;
    let mut lane = association.lane::<Vec<u8>>()?;
    let mut random = load::random::Prng::new(1);
    let mut started = vec![Instant::now(); usize::try_from(DEPTH)?];
    let mut free: Vec<(u64, Vec<u8>)> = (0..DEPTH).map(|user| (user, vec![0; 4096])).collect();
    let mut ended = Vec::new();
    while !is_over.load(Ordering::Acquire) {
        for (user, buffer) in free.drain(..) {
            started[usize::try_from(user)?] = Instant::now();
            let read = namespace.read(random.below(namespace.block_count()), 1)?;
            lane.submit(read, Some(buffer), user)?;
        }
        ensure!(lane.wait(&mut ended, PATIENCE) > 0, "nothing ends in {PATIENCE:?}");
        for end in ended.drain(..) {
            end.result.context("a read")?;
            gauge.record(started[usize::try_from(end.user)?].elapsed());
            free.push((end.user, end.buffer.unwrap_or_default()));
        }
    }
    Ok(())
}

/// Memory that a process has touched, bytes.
fn resident_bytes(pid: u32) -> Result<u64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).context("the target's memory")?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("VmRSS")?;
    Ok(line.trim().trim_end_matches(" kB").parse::<u64>()? * 1024)
}

/// Sockets of a process.
fn connections(pid: u32) -> Result<usize> {
    let all = std::fs::read_dir(format!("/proc/{pid}/fd")).context("the target's descriptors")?;
    let links = all.filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok());
    Ok(links.filter(|link| link.to_string_lossy().starts_with("socket:")).count())
}

/// Memory of all TCP sockets of this machine, bytes.
fn socket_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/net/sockstat").unwrap_or_default();
    let line = text.lines().find(|line| line.starts_with("TCP:")).unwrap_or_default();
    let pages = line.split_ascii_whitespace().skip_while(|word| *word != "mem").nth(1);
    pages.and_then(|pages| pages.parse::<u64>().ok()).unwrap_or(0) * 4096
}

impl FloodReport {
    /// Memory over idle, bytes.
    fn over_idle_bytes(&self) -> u64 {
        self.peak_bytes.saturating_sub(self.idle_bytes)
    }

    /// The figures.
    pub(crate) fn print(&self, engine: &str) {
        let mib = |bytes: u64| bytes >> 20;
        println!(
            "flood ({engine}): {} connections held, {} floods; {} connections at most",
            self.held, self.floods, self.peak_connections
        );
        println!(
            "  memory: {} MiB idle, {} MiB at most; sockets of the machine: {} MiB",
            mib(self.idle_bytes),
            mib(self.peak_bytes),
            mib(self.socket_bytes)
        );
        for (name, Health { iops, p99_us, longest_us }) in
            [("quiet", &self.quiet), ("flooded", &self.flooded)]
        {
            println!(
                "  healthy lane, {name}: {iops:.0} IOPS, p99 {p99_us:.0} us, longest {longest_us:.0} us"
            );
        }
        match self.returned {
            Some(after) => println!("  everything returned after {:.1} s", after.as_secs_f64()),
            None => println!("  after {RETURN_LIMIT:?} {} connections were left", self.left),
        }
        for line in &self.state {
            println!("  {line}");
        }
    }

    /// What is not as it must be. Times count only if `is_timed`.
    pub(crate) fn failures(&self, is_timed: bool) -> Vec<String> {
        let share = self.flooded.iops / self.quiet.iops;
        let slower = self.flooded.p99_us / self.quiet.p99_us;
        let bars = [
            (
                self.over_idle_bytes() > MEMORY_LIMIT_BYTES,
                format!("{} MiB over idle", self.over_idle_bytes() >> 20),
            ),
            (self.returned.is_none(), format!("not everything returned in {RETURN_LIMIT:?}")),
            // However busy the machine is: between two lanes of one target it is not as unfair as this.
            (share < 0.05, format!("the healthy lane stood still: {:.1} % of its IOPS", share * 100.0)),
            (is_timed && share < 0.8, format!("the healthy lane kept {:.0} % of its IOPS", share * 100.0)),
            (is_timed && slower > 3.0, format!("its p99 became {slower:.1} times as long")),
        ];
        bars.into_iter().filter_map(|(is_missed, what)| is_missed.then_some(what)).collect()
    }
}
