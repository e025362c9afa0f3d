//! Where an experiment is carried out: cores, times, and a load on a target.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use host::{Association, Options};
use load::ceiling::{CeilingResult, CeilingSpec};
use load::disturbance::Disturbance;
use load::report::Report;
use load::runner::{self, Finished, Observer, RunSettings};
use load::workload::{Pattern, Stop, Workload};
use serde::Serialize;

use crate::cell::Values;
use crate::error::Error;
use crate::served::{Served, ServedOptions};

/// Which core each side has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Cores {
    /// Of the host and the load.
    pub host: usize,
    /// Of the target.
    pub target: usize,
}

/// How long each measurement takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Times {
    /// Under load before anything counts.
    pub warm_up: Duration,
    /// Under load.
    pub measure: Duration,
    /// Watching what does nothing.
    pub idle: Duration,
}

impl Times {
    /// Long enough for good numbers.
    pub const USUAL: Self = Self {
        warm_up: Duration::from_millis(250),
        measure: Duration::from_millis(1000),
        idle: Duration::from_secs(6),
    };
    /// Long enough to see something.
    pub const QUICK: Self = Self {
        warm_up: Duration::from_millis(100),
        measure: Duration::from_millis(350),
        idle: Duration::from_secs(3),
    };

    /// The given time under load; the other times follow from it.
    #[must_use]
    pub fn of(measure: Duration) -> Self {
        Self { warm_up: measure / 4, measure, idle: measure * 5 }
    }
}

/// Where an experiment is carried out.
#[derive(Clone, Debug)]
pub struct Bench {
    /// The program that is a target when started with `target`.
    pub program: PathBuf,
    /// One core for each side, if there are two for us.
    pub cores: Option<Cores>,
    /// How long each measurement takes.
    pub times: Times,
    /// Set when the study is to end.
    pub stops: Arc<AtomicBool>,
    /// What the sides of the present cell lost to other load so far.
    pub lost: Arc<Mutex<Disturbance>>,
}

/// What a load is put on and how.
#[derive(Clone, Debug)]
pub struct Load {
    /// The load. When it begins and ends is the bench's to say.
    pub workload: Workload,
    /// Options of the association; lanes and depth are the workload's.
    pub options: Options,
    /// Whether threads of their own drive the lanes.
    pub hand_over: bool,
    /// Cores of the load's threads.
    pub cores: Vec<usize>,
}

impl Bench {
    /// A target on the target's core, with one namespace that reads as zeroes and forgets what is written.
    ///
    /// # Errors
    /// If it does not start.
    pub fn serve(&self) -> Result<Served, Error> {
        self.serve_with(ServedOptions::of(["null:1T"]))
    }

    /// A target on the target's core.
    ///
    /// # Errors
    /// If it does not start.
    pub fn serve_with(&self, options: ServedOptions) -> Result<Served, Error> {
        let core = options.core.or(self.cores.map(|cores| cores.target));
        Served::start(&self.program, &ServedOptions { core, ..options })
    }

    /// A closed loop of random operations of `io_bytes` on one lane, from the host's core.
    ///
    /// # Panics
    /// On an unknown pattern.
    #[must_use]
    pub fn load(&self, pattern: &str, read_percent: Option<u8>, io_bytes: u32, depth: u32) -> Load {
        let pattern = Pattern::named(pattern, read_percent).expect("a known pattern");
        let sizes = load::workload::Sizes::one(io_bytes);
        Load {
            workload: Workload { pattern, sizes, depth, ..Workload::default() },
            options: Options::default(),
            hand_over: false,
            cores: self.cores.map(|cores| cores.host).into_iter().collect(),
        }
    }

    /// Puts a load on the only namespace of a target.
    ///
    /// # Errors
    /// If it cannot be put there, or anything about it went wrong: then its numbers mean nothing.
    pub fn run(&self, served: &Served, load: Load) -> Result<Finished, Error> {
        let workload = Workload {
            warm_up: self.times.warm_up,
            stop: Stop { runtime: Some(self.times.measure), ..Stop::default() },
            ..load.workload
        };
        let clamped = |count: u32| u16::try_from(count).unwrap_or(u16::MAX);
        let options = Options {
            lanes: clamped(workload.lanes),
            depth: clamped(workload.depth).min(Options::DEPTH_MAX),
            ..load.options
        };
        let association = Association::connect(served.address(), options)?;
        let namespace = association.addressed_namespace()?;
        let settings = RunSettings {
            cores: load.cores,
            hand_over: load.hand_over,
            target_pid: Some(served.pid()),
            ..RunSettings::default()
        };
        let finished = runner::run(&association, &namespace, &workload, &settings, &mut Stops(&self.stops));
        association.close();
        let finished = finished?;
        self.note(&finished.report.disturbance);
        if let Some(error) = finished.error {
            return Err(error.into());
        }
        match finished.report.total.error_count {
            0 => Ok(finished),
            count => Err(Error::Load(format!("{count} operations failed"))),
        }
    }

    /// What plain sockets reach with the bytes of a load on as many connections as it has lanes.
    ///
    /// # Errors
    /// What the system says.
    ///
    /// # Panics
    /// If a thread of it panics.
    pub fn ceiling(
        &self,
        load: &Load,
        read_percent: u8,
        in_capsule_bytes: u32,
    ) -> Result<CeilingResult, Error> {
        self.measure_ceiling(&CeilingSpec {
            depth: load.workload.depth * load.workload.lanes,
            connections: load.workload.lanes,
            io_bytes: load.workload.sizes.largest_bytes(),
            read_percent,
            in_capsule_bytes,
            seed: load.workload.seed,
            ..self.ceiling_spec()
        })
    }

    /// Rate of plain sockets for reads over a number of connections; the target's side sleeps when it has nothing to
    /// do.
    ///
    /// # Errors
    /// What the system says.
    ///
    /// # Panics
    /// If a thread of it panics.
    pub fn ceiling_of_many(
        &self,
        connections: u32,
        depth: u32,
        io_bytes: u32,
    ) -> Result<CeilingResult, Error> {
        let spec = CeilingSpec { depth, connections, io_bytes, far_sleeps: true, ..self.ceiling_spec() };
        self.measure_ceiling(&spec)
    }

    /// What plain sockets reach with operations of a mebibyte, one in flight on each of so many connections whose data
    /// come from and go to so much memory each, for so long.
    ///
    /// # Errors
    /// What the system says.
    ///
    /// # Panics
    /// As [`ceiling_of_many`](Self::ceiling_of_many).
    pub fn ceiling_of_memory(
        &self,
        connections: u32,
        read_percent: u8,
        memory_bytes: usize,
        duration: Duration,
    ) -> Result<CeilingResult, Error> {
        let (depth, io_bytes) = (connections, 1 << 20);
        let spec = self.ceiling_spec();
        self.measure_ceiling(&CeilingSpec {
            depth,
            connections,
            io_bytes,
            read_percent,
            memory_bytes,
            duration,
            ..spec
        })
    }

    fn ceiling_spec(&self) -> CeilingSpec {
        CeilingSpec {
            depth: 1,
            connections: 1,
            io_bytes: 4096,
            read_percent: 100,
            in_capsule_bytes: 0,
            memory_bytes: 0,
            duration: self.times.measure,
            warm_up: self.times.warm_up,
            cores: self.cores.map(|cores| (cores.host, cores.target)),
            far_sleeps: false,
            seed: 1,
        }
    }

    fn measure_ceiling(&self, spec: &CeilingSpec) -> Result<CeilingResult, Error> {
        // In a thread of its own, which is tied to the host's core: targets started later must not inherit that.
        let measured = std::thread::scope(|scope| {
            scope.spawn(|| load::ceiling::measure(spec)).join().expect("the ceiling does not panic")
        });
        let measured = measured.map_err(|error| Error::system("the ceiling", error))?;
        self.note(&measured.disturbance);
        Ok(measured)
    }

    /// Takes note of what a part of the present cell's measurement lost to other load. Where both sides share one core
    /// they take it from each other, which tells nothing.
    pub fn note(&self, disturbance: &Disturbance) {
        if self.cores.is_some() {
            self.lost.lock().unwrap_or_else(PoisonError::into_inner).merge(disturbance);
        }
    }

    /// What was noted since the last call.
    pub fn take_noted(&self) -> Disturbance {
        std::mem::take(&mut *self.lost.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Waits, unless the study is to end.
    pub fn sleep(&self, time: Duration) {
        let end = std::time::Instant::now() + time;
        while !self.is_stopped() {
            let left = end.saturating_duration_since(std::time::Instant::now());
            if left.is_zero() {
                return;
            }
            std::thread::sleep(left.min(Duration::from_millis(50)));
        }
    }

    /// Whether the study is to end.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        self.stops.load(Ordering::Relaxed)
    }

    /// Ends the study.
    pub fn stop(&self) {
        self.stops.store(true, Ordering::Relaxed);
    }

    #[cfg(test)]
    pub(crate) fn for_tests() -> Self {
        Self {
            program: "false".into(),
            cores: None,
            times: Times::QUICK,
            stops: Arc::default(),
            lost: Arc::default(),
        }
    }
}

/// Ends a load when the study is to end.
struct Stops<'a>(&'a AtomicBool);

impl Observer for Stops<'_> {
    fn stops(&mut self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Speed, latency and processor time of a load.
#[must_use]
pub fn values(report: &Report) -> Values {
    let latency = report.total.latency();
    let mut values = Values::from([("iops", report.total.iops), ("mean_us", latency.mean_ns / 1e3)]);
    for (name, percent) in [("p50_us", 50.0), ("p99_us", 99.0), ("p999_us", 99.9), ("p9999_us", 99.99)] {
        if let Some(ns) = latency.percentile_ns(percent) {
            values.insert(name, us(ns));
        }
    }
    values.insert("mib_per_s", report.total.bytes_per_s / f64::from(1 << 20));
    if let Some(host) = report.cpu.generator {
        values.insert("host_us", host.ns_per_operation() / 1e3);
    }
    if let Some(target) = report.cpu.target {
        values.insert("target_us", target.ns_per_operation() / 1e3);
        let cores = (target.user_percent + target.system_percent) / 100.0;
        if cores > 0.0 {
            values.insert("iops_per_cpu", report.total.iops / cores);
        }
    }
    values
}

/// Nanoseconds in microseconds.
pub(crate) fn us(ns: u64) -> f64 {
    Duration::from_nanos(ns).as_secs_f64() * 1e6
}
