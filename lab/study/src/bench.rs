//! The environment of an experiment: cores, times, and loads on a target.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use host::{Address, Association, Options, Receive};
use load::account::Account;
use load::cache_line;
use load::ceiling::{CeilingResult, CeilingSpec};
use load::disturbance::{Disturbance, Loss, Side};
use load::runner::{self, Finished, LocalStorage, Observer, RunSettings};
use load::workload::{Pattern, Stop, Workload};
use serde::Serialize;

use crate::cell::Values;
use crate::distribution::Distribution;
use crate::error::{Doing, Error};
use crate::load_values::{bins, values};
use crate::process::available_bytes;
use crate::remote::target::RemoteTarget;
use crate::remote::{self, ServerConnection};
use crate::served::Served;
use crate::served_options::ServedOptions;

/// Core of each side.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Cores {
    /// Core of the host and the load.
    pub host: usize,
    /// Core of the target.
    pub target: usize,
}

/// Duration of each measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Times {
    /// Warm-up.
    pub warm_up: Duration,
    /// Measurement under load.
    pub measure: Duration,
    /// Measurement of idle lanes.
    pub idle: Duration,
}

impl Times {
    /// Times for stable medians.
    pub const USUAL: Self = Self {
        warm_up: Duration::from_millis(250),
        measure: Duration::from_millis(1000),
        idle: Duration::from_secs(6),
    };
    /// Times for a first result.
    pub const QUICK: Self = Self {
        warm_up: Duration::from_millis(100),
        measure: Duration::from_millis(350),
        idle: Duration::from_secs(3),
    };

    /// Times with this measurement under load; the others follow from it.
    pub fn of(measure: Duration) -> Self {
        Self { warm_up: measure / 4, measure, idle: measure * 5 }
    }
}

/// Network devices to measure on: two ports of this machine with a cable between them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Devices {
    /// The target's; queues of it are given to the load.
    pub interface: String,
    /// The load's.
    pub peer: String,
}

/// The environment of an experiment.
#[derive(Clone, Debug)]
pub struct Bench {
    /// The nvlane program, which is a target when started with `target`.
    pub program: PathBuf,
    /// One core for each side, if the process may use two.
    pub cores: Option<Cores>,
    /// Duration of each measurement.
    pub times: Times,
    /// Cores of this machine for the load, the one of [`Cores`] first. Several only beside a study server.
    pub host_cores: Vec<usize>,
    /// Pairs of cores, for experiments that use several on each side: [`cores`](Self::cores) first.
    pub pairs: Vec<Cores>,
    /// The study server that starts the targets; `None`: they are processes of this machine.
    pub server: Option<Arc<ServerConnection>>,
    /// Network devices, of experiments that can use them; virtual ones if there are none.
    pub devices: Option<Devices>,
    /// Directory for files to put load on.
    pub scratch: PathBuf,
    /// Set to end the study.
    pub stops: Arc<AtomicBool>,
    /// Processor time that the sides of the current cell lost to other load.
    pub lost: Arc<Mutex<Disturbance>>,
    /// Distribution of latency of the current cell's measurement.
    pub latency: Arc<Mutex<Option<Distribution>>>,
    /// Times of a cache line between both cores in the current cell's measurement, ns.
    pub line_times: Arc<Mutex<Vec<f64>>>,
    /// The largest number of cores of a side that the current cell asked for.
    pub side_cores: Arc<AtomicU32>,
}

/// The far side of a load: a target, as the load reaches it.
#[derive(Clone, Debug)]
pub struct FarSide<'a> {
    /// Its address, with its subsystem.
    pub address: &'a Address,
    /// The account of its process, or of its machine, if there is one.
    pub account: Option<Arc<dyn Account>>,
    /// Whether it is a part of this machine's kernel.
    pub is_of_this_kernel: bool,
}

impl<'a> FarSide<'a> {
    /// A target that is a process.
    pub fn process(address: &'a Address, account: Arc<dyn Account>) -> Self {
        Self { address, account: Some(account), is_of_this_kernel: false }
    }
}

/// A load and its lanes.
#[derive(Clone, Debug)]
pub struct Load {
    /// The load. The bench sets its times.
    pub workload: Workload,
    /// Options of the association, except lanes and depth, which the workload sets.
    pub options: Options,
    /// Whether driver threads drive the lanes.
    pub hand_over: bool,
    /// Cores of the load's threads.
    pub cores: Vec<usize>,
}

impl Bench {
    /// Starts a target on the target's core, with one null namespace: reads return zeroes, writes are discarded.
    pub fn serve(&self) -> Result<Served, Error> {
        self.serve_with(ServedOptions::of(["null:1T"]))
    }

    /// Starts a target on the target's core, or on those of the study server.
    pub fn serve_with(&self, options: ServedOptions) -> Result<Served, Error> {
        if let Some(server) = &self.server {
            return RemoteTarget::start(server, &options).map(Served::remote);
        }
        let mut options = options;
        if let Some(count) = options.core_count {
            let cores: Vec<String> = self.target_side(count).iter().map(usize::to_string).collect();
            if !cores.is_empty() {
                options.arguments.extend(["--cores".to_owned(), cores.join(",")]);
                return Served::start(&self.program, &ServedOptions { core: None, ..options });
            }
        }
        let core = options.core.or(self.cores.map(|cores| cores.target));
        Served::start(&self.program, &ServedOptions { core, ..options })
    }

    /// Number of cores of each side for this number of lanes: one for each lane, as far as there are enough.
    pub fn core_count_for(&self, lanes: u32) -> u32 {
        u32::try_from(self.pairs.len()).unwrap_or(u32::MAX).min(lanes).max(1)
    }

    /// This number of cores of the host's side, or all.
    pub fn host_side(&self, count: u32) -> Vec<usize> {
        self.side_cores.fetch_max(count, Ordering::Relaxed);
        match self.pairs.as_slice() {
            [] => self.host_cores.clone(),
            pairs => pairs.iter().take(count as usize).map(|pair| pair.host).collect(),
        }
    }

    /// This number of cores of the target's side, or all; of a study server, those of its machine.
    pub fn target_side(&self, count: u32) -> Vec<usize> {
        self.side_cores.fetch_max(count, Ordering::Relaxed);
        self.pairs.iter().take(count as usize).map(|pair| pair.target).collect()
    }

    /// Begins to record which cores a cell uses.
    pub(crate) fn forget_cores(&self) {
        self.side_cores.store(0, Ordering::Relaxed);
    }

    /// The cores of this machine that the current cell uses; none, where the scheduler chooses among all.
    pub(crate) fn used_cores(&self) -> Vec<usize> {
        let count = self.side_cores.load(Ordering::Relaxed).max(1) as usize;
        match self.pairs.as_slice() {
            [] => self.host_cores.clone(),
            pairs => pairs.iter().take(count).flat_map(|pair| [pair.host, pair.target]).collect(),
        }
    }

    /// Checks that each side has a core.
    pub(crate) fn check_cores(&self) -> Result<(), Error> {
        match self.cores {
            Some(_) => Ok(()),
            None => Err(Error::Lacking("this needs two cores, and there is one for us".into())),
        }
    }

    /// Checks that this memory is free, bytes, unless a study server has to check its own machine.
    pub(crate) fn check_memory(&self, wanted_bytes: u64) -> Result<(), Error> {
        if self.is_remote() || available_bytes()? >= wanted_bytes {
            return Ok(());
        }
        Err(Error::Lacking(format!("this needs {} GiB of free memory", wanted_bytes >> 30)))
    }

    /// Whether the targets run on another machine.
    pub fn is_remote(&self) -> bool {
        self.server.is_some()
    }

    /// A closed loop of random operations of `io_bytes` on one lane, from the host's core.
    ///
    /// # Panics
    /// On an unknown pattern.
    pub fn load(&self, pattern: &str, read_percent: Option<u8>, io_bytes: u32, depth: u32) -> Load {
        let pattern = Pattern::named(pattern, read_percent).expect("a known pattern");
        let sizes = load::workload::Sizes::one(io_bytes);
        Load {
            workload: Workload { pattern, sizes, depth, ..Workload::default() },
            options: Options::default(),
            hand_over: false,
            cores: self.host_cores.clone(),
        }
    }

    /// Runs a load on the only namespace of a target.
    pub fn run(&self, served: &Served, load: Load) -> Result<Finished, Error> {
        self.run_watched(served, load, &mut || ())
    }

    /// Runs a load on the namespace that the address of a target names.
    pub fn run_at(&self, far: FarSide<'_>, load: Load) -> Result<Finished, Error> {
        self.run_on(far, load, &mut || ())
    }

    /// As [`run`](Self::run); calls `look` several times a second, from before the load begins until it has ended.
    pub fn run_watched(
        &self,
        served: &Served,
        load: Load,
        look: &mut dyn FnMut(),
    ) -> Result<Finished, Error> {
        self.run_on(FarSide::process(served.address(), served.account()), load, look)
    }

    fn run_on(
        &self,
        FarSide { address, account, is_of_this_kernel }: FarSide<'_>,
        load: Load,
        look: &mut dyn FnMut(),
    ) -> Result<Finished, Error> {
        let workload = self.timed(load.workload);
        let clamped = |count: u32| u16::try_from(count).unwrap_or(u16::MAX);
        let options = load
            .options
            .with_lanes(clamped(workload.lanes))
            .with_depth(clamped(workload.depth).min(Options::DEPTH_MAX));
        let association = Association::connect(address, options)?;
        let namespace = association.addressed_namespace()?;
        let settings = RunSettings {
            cores: load.cores,
            hand_over: load.hand_over,
            target: account,
            beside_kernel_threads: is_of_this_kernel,
            ..RunSettings::default()
        };
        let mut observer = Stops { stops: &self.stops, look };
        let finished = runner::run(&association, &namespace, &workload, &settings, &mut observer);
        association.close();
        self.finish(finished?)
    }

    /// Runs a load on local storage, from the host's core.
    pub fn run_local(&self, storage: &LocalStorage, load: Load) -> Result<Finished, Error> {
        self.run_device(storage, None, load)
    }

    /// As [`run_local`](Self::run_local), on the block device that the kernel's host made of a target. `target`: the
    /// account of the target.
    pub fn run_device(
        &self,
        storage: &LocalStorage,
        target: Option<Arc<dyn Account>>,
        load: Load,
    ) -> Result<Finished, Error> {
        let workload = self.timed(load.workload);
        let settings = RunSettings { cores: load.cores, target, ..RunSettings::default() };
        let mut observer = Stops { stops: &self.stops, look: &mut || () };
        self.finish(runner::run_local(storage, &workload, &settings, &mut observer)?)
    }

    /// The values that nvlane's generator measured. The distribution of latency is recorded.
    pub fn values_of(&self, finished: &Finished) -> Values {
        self.note_latency(Distribution::of(bins(&finished.report)));
        values(&finished.report)
    }

    /// A load with the times of the bench.
    fn timed(&self, workload: Workload) -> Workload {
        let stop = Stop { runtime: Some(self.times.measure), ..Stop::default() };
        Workload { warm_up: self.times.warm_up, stop, ..workload }
    }

    fn finish(&self, finished: Finished) -> Result<Finished, Error> {
        self.note(&finished.report.disturbance);
        if let Some(error) = finished.error {
            return Err(error.into());
        }
        match finished.report.total.error_count {
            0 => Ok(finished),
            count => Err(Error::Load(format!("{count} operations failed"))),
        }
    }

    /// Throughput of plain sockets with the bytes of a load, on as many connections as the load has lanes, received as the
    /// load's host receives, and with the same TLS. Both ends are threads of this process, or the far one is a thread of the
    /// study server. `far_memory_bytes`: memory on the target's side that data comes from and goes to.
    ///
    /// # Panics
    /// A thread of the load panics.
    pub fn ceiling(
        &self,
        load: &Load,
        read_percent: u8,
        in_capsule_bytes: u32,
        far_memory_bytes: usize,
    ) -> Result<CeilingResult, Error> {
        self.measure_ceiling(&CeilingSpec {
            depth: load.workload.depth * load.workload.lanes,
            connections: load.workload.lanes,
            io_bytes: load.workload.sizes.largest_bytes(),
            read_percent,
            in_capsule_bytes,
            far_memory_bytes,
            near_receives: load.options.tuning.receive,
            tls: load.options.tls.as_ref().map(|keys| keys.key.cipher()),
            seed: load.workload.seed,
            ..self.ceiling_spec()
        })
    }

    /// Throughput of plain sockets for reads over a number of connections; the target's side sleeps when idle.
    ///
    /// # Panics
    /// A thread of the load panics.
    pub fn ceiling_of_many(
        &self,
        connections: u32,
        depth: u32,
        io_bytes: u32,
    ) -> Result<CeilingResult, Error> {
        let spec = CeilingSpec { depth, connections, io_bytes, far_sleeps: true, ..self.ceiling_spec() };
        self.measure_ceiling(&spec)
    }

    /// Throughput of plain sockets with operations of 1 MiB, one in flight on each of `connections`, each with
    /// `memory` bytes of buffers.
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
            far_memory_bytes: 0,
            near_receives: Receive::default(),
            tls: None,
            duration: self.times.measure,
            warm_up: self.times.warm_up,
            cores: self.cores.map(|cores| (cores.host, cores.target)),
            far_sleeps: false,
            seed: 1,
        }
    }

    fn measure_ceiling(&self, spec: &CeilingSpec) -> Result<CeilingResult, Error> {
        let measure = || match &self.server {
            Some(server) => remote::ceiling::measure(server, spec),
            None => load::ceiling::measure(spec).doing("the ceiling"),
        };
        // It pins its threads itself.
        let measured = on_core(None, measure)?;
        self.note(&measured.disturbance);
        self.note_line_time()?;
        Ok(measured)
    }

    /// Records the time of a cache line from the host's core to the target's, unless both sides share a core or never ran
    /// at the same time.
    pub fn note_line_time(&self) -> Result<(), Error> {
        // Cores of two machines have no cache line in common.
        let Some(Cores { host, target }) = self.cores.filter(|_| !self.is_remote()) else { return Ok(()) };
        let line_ns = cache_line::transfer_ns((host, target)).doing("two threads")?;
        self.line_times.lock().unwrap_or_else(PoisonError::into_inner).extend(line_ns);
        Ok(())
    }

    /// Takes the times recorded since the last call, ns.
    pub fn take_line_times(&self) -> Vec<f64> {
        std::mem::take(&mut *self.line_times.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Records the processor time that a part of the current cell's measurement lost to other load. If both sides share
    /// one core, they take it from each other, and the loss means nothing.
    pub fn note(&self, disturbance: &Disturbance) {
        if self.cores.is_some() {
            self.lost.lock().unwrap_or_else(PoisonError::into_inner).merge(disturbance);
        }
    }

    /// As [`note`](Self::note), of what one side lost.
    pub(crate) fn note_loss(&self, side: Side, loss: Option<Loss>) {
        let mut disturbance = Disturbance::default();
        disturbance.add(side, loss);
        self.note(&disturbance);
    }

    /// Takes the disturbance recorded since the last call.
    pub fn take_noted(&self) -> Disturbance {
        std::mem::take(&mut *self.lost.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Records the distribution of latency of the current cell's measurement.
    pub fn note_latency(&self, distribution: Option<Distribution>) {
        *self.latency.lock().unwrap_or_else(PoisonError::into_inner) = distribution;
    }

    /// Takes the distribution recorded since the last call.
    pub fn take_latency(&self) -> Option<Distribution> {
        self.latency.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Waits until the time has passed or the study ends.
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

    /// Whether the study was asked to end.
    pub fn is_stopped(&self) -> bool {
        self.stops.load(Ordering::Relaxed)
    }

    /// Asks the study to end.
    pub fn stop(&self) {
        self.stops.store(true, Ordering::Relaxed);
    }

    #[cfg(test)]
    pub(crate) fn for_tests() -> Self {
        Self {
            program: "false".into(),
            host_cores: Vec::new(),
            pairs: Vec::new(),
            server: None,
            devices: None,
            scratch: std::env::temp_dir(),
            cores: None,
            times: Times::QUICK,
            stops: Arc::default(),
            lost: Arc::default(),
            latency: Arc::default(),
            line_times: Arc::default(),
            side_cores: Arc::default(),
        }
    }
}

/// Does work in a new thread on this core: targets that are started later must not inherit it.
///
/// # Errors
/// The thread cannot be tied to the core; those of the work.
pub(crate) fn on_core<Done: Send>(
    core: Option<usize>,
    work: impl FnOnce() -> Result<Done, Error> + Send,
) -> Result<Done, Error> {
    let tied = move || {
        if let Some(core) = core {
            linux::pin(core).doing("tie a thread to its core")?;
        }
        work()
    };
    std::thread::scope(|scope| scope.spawn(tied).join().expect("the work does not panic"))
}

/// Ends a load when the study ends.
struct Stops<'a> {
    stops: &'a AtomicBool,
    look: &'a mut dyn FnMut(),
}

impl Observer for Stops<'_> {
    fn stops(&mut self) -> bool {
        (self.look)();
        self.stops.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lanes_have_a_core_each_as_far_as_there_are_pairs() {
        let pairs = [(0, 1), (4, 5), (2, 3)].map(|(host, target)| Cores { host, target }).to_vec();
        let bench = Bench { pairs, host_cores: vec![0], ..Bench::for_tests() };
        assert_eq!([1, 2, 3, 32].map(|lanes| bench.core_count_for(lanes)), [1, 2, 3, 3]);
        assert_eq!((bench.host_side(2), bench.target_side(2)), (vec![0, 4], vec![1, 5]));
        assert_eq!(bench.used_cores(), [0, 1, 4, 5]);
        bench.forget_cores();
        assert_eq!(bench.used_cores(), [0, 1]);
        let without = Bench::for_tests();
        assert_eq!(
            (without.core_count_for(32), without.host_side(1), without.target_side(1)),
            (1, vec![], vec![])
        );
    }
}
