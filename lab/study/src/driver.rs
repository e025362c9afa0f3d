//! A closed loop on one thread for loads that the generator of `load` does not have: operations of several kinds at
//! once on separate or shared lanes, and operations that use thousands of lanes in turn.

use std::time::{Duration, Instant};

use host::{Address, Completion, LaneSet, Namespace, Options, QueueMap};
use load::disturbance::{Side, Watch};
use load::histogram::Histogram;
use load::random::Prng;

use crate::bench::{Bench, on_core};
use crate::experiment::Error;
use crate::lane_times::LaneTimes;
use crate::lanes::Lanes;
use crate::served::Served;

/// Operations that are recorded by lane, over those that the warm-up lets expect.
const LOG_MARGIN: usize = 2;

/// The longest wait between two looks at the clock.
const WAIT: Duration = Duration::from_millis(10);

/// Operations of one kind.
#[derive(Clone, Debug)]
pub(crate) struct Class {
    pub(crate) is_write: bool,
    pub(crate) io_bytes: u32,
    /// Number in flight.
    pub(crate) depth: usize,
    /// Whether all begin together, when the previous ones have ended.
    pub(crate) is_burst: bool,
}

/// Assignment of operations to lanes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Spread {
    /// This number of lanes in turn, for all classes.
    Round(usize),
    /// The lanes of the class.
    ByClass(QueueMap),
}

/// Result of one kind of operation.
#[derive(Clone, Debug)]
pub(crate) struct Outcome {
    pub(crate) operations: u64,
    pub(crate) latency: Histogram,
}

/// Result of a load.
#[derive(Clone, Debug)]
pub(crate) struct Driven {
    /// In the order of the classes.
    pub(crate) classes: Vec<Outcome>,
    pub(crate) elapsed: Duration,
    /// Processor time of the target, ns.
    pub(crate) target_ns: u64,
    /// Of all classes, by lane.
    pub(crate) lanes: LaneTimes,
}

impl Driven {
    /// Operations of a class per second.
    pub(crate) fn iops(&self, class: usize) -> f64 {
        self.classes[class].operations as f64 / self.elapsed.as_secs_f64()
    }
}

/// Runs the classes on lanes to a target's only namespace, from the host's core.
pub(crate) fn drive(
    bench: &Bench,
    served: &Served,
    spread: Spread,
    classes: &[Class],
) -> Result<Driven, Error> {
    drive_with(bench, served, spread, classes, || Ok(()))
}

/// As [`drive`]; calls `on_edge` as the measurement begins and as it ends, while all lanes are connected.
pub(crate) fn drive_with(
    bench: &Bench,
    served: &Served,
    spread: Spread,
    classes: &[Class],
    mut on_edge: impl FnMut() -> Result<(), Error> + Send,
) -> Result<Driven, Error> {
    on_core(bench.cores.map(|cores| cores.host), || {
        Loop::connect(served.address(), spread, classes)?.run(bench, served, &mut on_edge)
    })
}

/// The closed loop.
struct Slot {
    class: usize,
    begun: Instant,
    buffer: Option<Vec<u8>>,
}

struct Loop<'a> {
    classes: &'a [Class],
    outcomes: Vec<Outcome>,
    lane_times: LaneTimes,
    slots: Vec<Slot>,
    /// Free slots of each class.
    free: Vec<Vec<usize>>,
    spread: Spread,
    /// Next lane of each class, if classes use all lanes in turn.
    next_lane: Vec<usize>,
    random: Prng,
    namespace: Namespace,
    set: LaneSet<Vec<u8>>,
    /// Dropped after the lanes.
    _associations: crate::lanes::Associations,
}

impl<'a> Loop<'a> {
    fn connect(address: &Address, spread: Spread, classes: &'a [Class]) -> Result<Self, Error> {
        let depth: usize = classes.iter().map(|class| class.depth).sum();
        let depth = u16::try_from(depth).unwrap_or(u16::MAX).min(Options::DEPTH_MAX);
        let options = Options::default().with_depth(depth);
        let lanes = match spread {
            Spread::Round(count) => Lanes::connect(address, count, &options)?,
            Spread::ByClass(queues) => Lanes::connect_by_class(address, options.with_queues(queues))?,
        };
        let mut slots = Vec::new();
        let mut free = Vec::new();
        for (index, class) in classes.iter().enumerate() {
            free.push((slots.len()..slots.len() + class.depth).collect());
            slots.extend((0..class.depth).map(|_| Slot {
                class: index,
                begun: Instant::now(),
                buffer: Some(vec![0x5a; class.io_bytes as usize]),
            }));
        }
        Ok(Self {
            classes,
            outcomes: outcomes(classes.len()),
            lane_times: LaneTimes::default(),
            slots,
            free,
            spread,
            next_lane: vec![0; classes.len()],
            random: Prng::new(1),
            namespace: lanes.namespace,
            set: LaneSet::new(lanes.lanes)?,
            _associations: lanes.associations,
        })
    }

    fn run(
        mut self,
        bench: &Bench,
        served: &Served,
        on_edge: &mut dyn FnMut() -> Result<(), Error>,
    ) -> Result<Driven, Error> {
        let start = Instant::now();
        self.until(start + bench.times.warm_up, bench)?;
        let warm_up = std::mem::replace(&mut self.outcomes, outcomes(self.classes.len()));
        let warm_up_count: u64 = warm_up.iter().map(|outcome| outcome.operations).sum();
        let of_measurement = u128::from(warm_up_count) * bench.times.measure.as_nanos();
        let expected_count = of_measurement / start.elapsed().as_nanos().max(1);
        let room = usize::try_from(expected_count).unwrap_or_default().saturating_mul(LOG_MARGIN);
        self.lane_times = LaneTimes::with_room(room);
        on_edge()?;
        let (host, before) = (Watch::thread(), served.reading()?);
        let start = Instant::now();
        self.until(start + bench.times.measure, bench)?;
        let (elapsed, after) = (start.elapsed(), served.reading()?);
        let target_ns = after.run_ns().saturating_sub(before.run_ns());
        on_edge()?;
        bench.note_loss(Side::Host, host.loss());
        bench.note_loss(Side::Target, after.loss_since(&before));
        Ok(Driven { classes: self.outcomes, elapsed, target_ns, lanes: self.lane_times })
    }

    fn until(&mut self, end: Instant, bench: &Bench) -> Result<(), Error> {
        loop {
            let now = Instant::now();
            if now >= end || bench.is_stopped() {
                return Ok(());
            }
            self.give_out(now)?;
            self.take_back()?;
        }
    }

    fn give_out(&mut self, now: Instant) -> Result<(), Error> {
        for (index, class) in self.classes.iter().enumerate() {
            if class.is_burst && self.free[index].len() < class.depth {
                continue;
            }
            let blocks = class.io_bytes / self.namespace.lba_bytes();
            while let Some(slot) = self.free[index].pop() {
                let places = self.namespace.block_count() / u64::from(blocks);
                let lba = self.random.below(places) * u64::from(blocks);
                let command = if class.is_write {
                    self.namespace.write(lba, blocks)
                } else {
                    self.namespace.read(lba, blocks)
                };
                let command = command.map_err(host::Error::Command)?;
                self.slots[slot].begun = now;
                let buffer = self.slots[slot].buffer.take();
                let lane = match self.spread {
                    Spread::Round(count) => {
                        let next = &mut self.next_lane[index];
                        let lane = *next;
                        *next = if lane + 1 < count { lane + 1 } else { 0 };
                        lane
                    }
                    Spread::ByClass(_) => self.set.next_lane(&command),
                };
                self.set
                    .submit(lane, command, buffer, slot as u64)
                    .map_err(|refused| Error::Load(refused.to_string()))?;
            }
        }
        Ok(())
    }

    fn take_back(&mut self) -> Result<(), Error> {
        let Self { set, slots, free, outcomes, lane_times, .. } = self;
        let mut failure = None;
        let mut now = None;
        let mut each = |lane: usize, done: Completion<Vec<u8>>| {
            let index = usize::try_from(done.user).expect("a slot");
            let slot = &mut slots[index];
            // All completions of a batch have arrived when the first is seen: one clock reading serves all.
            let passed = now.get_or_insert_with(Instant::now).duration_since(slot.begun);
            slot.buffer = done.buffer;
            free[slot.class].push(index);
            let outcome = &mut outcomes[slot.class];
            outcome.operations += 1;
            let passed_ns = u64::try_from(passed.as_nanos()).unwrap_or(u64::MAX);
            outcome.latency.record(passed_ns);
            lane_times.record(lane, passed_ns);
            failure = failure.or(done.result.err());
        };
        set.wait_with(&mut each, WAIT);
        match failure {
            None => Ok(()),
            Some(failure) => Err(Error::Load(failure.to_string())),
        }
    }
}

fn outcomes(count: usize) -> Vec<Outcome> {
    vec![Outcome { operations: 0, latency: Histogram::new() }; count]
}
