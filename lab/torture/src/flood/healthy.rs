//! The healthy host: one lane issues reads on a schedule, another as fast as completions arrive.
//!
//! The first lane is judged: its reads are due at fixed times, and latency counts from the due time. The second shows
//! the target's remaining capacity; its host shares a core with others, so its IOPS are also given per unit of CPU
//! time.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use host::{Association, Namespace, Options};
use linux::step_back;
use load::histogram::Histogram;
use rustix::time::{ClockId, clock_gettime};
use wire::id::Nsid;

use crate::reader::{Reader, ns};
use crate::target::Target;

/// Reads that are due together, and their interval.
pub(super) const BURST: usize = 32;
pub(super) const PERIOD: Duration = Duration::from_micros(500);

/// Wake-up margin before reads are due, which hides the latency of sleeping.
const LEAD: Duration = Duration::from_micros(150);

/// Outstanding reads of the closed loop.
pub(super) const DEPTH: usize = 16;

/// Reads overdue by more than this are dropped and counted as missing.
const LATE_MAX: Duration = Duration::from_millis(100);

/// Result of a lane.
#[derive(Clone, Debug, Default)]
pub(super) struct Health {
    pub(super) iops: f64,
    pub(super) p99_us: f64,
    pub(super) longest_us: f64,
    /// Fraction of the time in which the host had a core.
    pub(super) ran_share: f64,
}

impl Health {
    /// IOPS per second of CPU time of the host.
    pub(super) fn iops_of_ran(&self) -> f64 {
        if self.ran_share > 0.0 { self.iops / self.ran_share } else { 0.0 }
    }
}

/// The healthy host.
pub(super) struct Healthy {
    association: Association,
    namespace: Namespace,
    paced: Reader,
    closed: Reader,
}

/// A measurement on one thread.
struct Window {
    start: Instant,
    ran_before: Duration,
    latencies: Histogram,
}

impl Healthy {
    pub(super) fn connect(target: &Target) -> Result<Self> {
        let options = Options::default().with_depth(64).with_lanes(2);
        let association = Association::connect(&target.address(), options)?;
        let namespace = association.namespace(Nsid::new(1))?;
        let (paced, closed) =
            (Reader::new(association.lane()?, BURST), Reader::new(association.lane()?, DEPTH));
        Ok(Self { association, namespace, paced, closed })
    }

    /// Issues reads on schedule until the end.
    pub(super) fn paced(&mut self, mut is_over: impl FnMut() -> bool) -> Result<Health> {
        let reader = &mut self.paced;
        let mut window = Window::begin();
        let mut due = Instant::now() + LEAD;
        while !is_over() {
            if let Some(rest) = due.checked_duration_since(Instant::now() + LEAD) {
                std::thread::sleep(rest);
            }
            while Instant::now() < due {
                std::hint::spin_loop();
            }
            if due.elapsed() < LATE_MAX {
                reader.submit_all(&self.namespace)?;
                while reader.free_count() < BURST {
                    reader.take(|_| window.latencies.record(ns(due.elapsed())))?;
                }
            }
            due += PERIOD;
        }
        Ok(window.end())
    }

    /// Reads for this long as fast as completions arrive, on a thread of its own. If `steps_back`, the thread has no
    /// more right to its core than the attackers.
    pub(super) fn closed(&mut self, time: Duration, steps_back: bool) -> Result<Health> {
        let Self { namespace, closed: reader, .. } = self;
        let measure = move || -> Result<Health> {
            if steps_back {
                step_back().context("cannot lower the priority of the closed loop")?;
            }
            let mut window = Window::begin();
            while window.start.elapsed() < time {
                reader.submit_all(namespace)?;
                reader.take(|latency| window.latencies.record(ns(latency)))?;
            }
            let health = window.end();
            while reader.free_count() < DEPTH {
                reader.take(|_| {})?;
            }
            Ok(health)
        };
        let read = std::thread::scope(|scope| scope.spawn(measure).join());
        read.map_err(|_| anyhow!("the closed loop panicked"))?
    }

    pub(super) fn close(self) {
        drop((self.paced, self.closed));
        self.association.close();
    }
}

impl Window {
    fn begin() -> Self {
        Self { start: Instant::now(), ran_before: ran(), latencies: Histogram::new() }
    }

    fn end(self) -> Health {
        let time = self.start.elapsed().as_secs_f64();
        let (count, us) = (self.latencies.count() as f64, |ns: u64| ns as f64 / 1000.0);
        Health {
            iops: count / time,
            p99_us: us(self.latencies.percentile(99.0)),
            longest_us: us(self.latencies.max()),
            ran_share: ran().saturating_sub(self.ran_before).as_secs_f64() / time,
        }
    }
}

/// CPU time of the calling thread.
fn ran() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap_or_default()
}
