//! A target with a key-value namespace, and a load on it: shared by the key-value experiments.

use std::time::Duration;

use host::{Association, Options};
use load::disturbance::Side;
use load::key_value::{KeyValueLoad, KeyValueResult, Mix, run};

use crate::bench::Bench;
use crate::experiment::{Error, Values};
use crate::load_values::us;
use crate::served::Served;
use crate::served_options::ServedOptions;

/// A target with a key-value namespace that is filled once.
#[derive(Debug)]
pub(crate) struct Pairs {
    served: Served,
    is_filled: bool,
}

impl Pairs {
    /// Starts a target with this namespace, on the target's core unless the options name another.
    pub(crate) fn serve(bench: &Bench, options: ServedOptions) -> Result<Self, Error> {
        Ok(Self { served: bench.serve_with(options)?, is_filled: false })
    }

    /// Starts a target with two reactors, one of them on the load's core.
    pub(crate) fn share(bench: &Bench, options: ServedOptions) -> Result<Self, Error> {
        let mut options = options;
        if let Some(cores) = bench.cores {
            options.arguments.extend(["--cores".into(), format!("{},{}", cores.target, cores.host)]);
        }
        Self::serve_anywhere(bench, &options)
    }

    /// Starts a target of this machine on the cores that the options name.
    pub(crate) fn serve_anywhere(bench: &Bench, options: &ServedOptions) -> Result<Self, Error> {
        Ok(Self { served: Served::start(&bench.program, options)?, is_filled: false })
    }

    /// Stores the keys of a load, unless that was done.
    pub(crate) fn fill(&mut self, bench: &Bench, load: KeyValueLoad) -> Result<(), Error> {
        let no_time = (Duration::ZERO, Duration::from_millis(1));
        if self.is_filled { Ok(()) } else { self.run_for(bench, load, no_time, &mut || ()).map(drop) }
    }

    /// The target.
    pub(crate) fn served(&self) -> &Served {
        &self.served
    }

    /// Runs a load on the target for the warm-up and measurement times of the bench.
    pub(crate) fn run(&mut self, bench: &Bench, load: KeyValueLoad) -> Result<KeyValueResult, Error> {
        self.run_for(bench, load, (bench.times.warm_up, bench.times.measure), &mut || ())
    }

    /// Like [`run`](Self::run), with warm-up and measurement of this duration each; calls `look` periodically.
    pub(crate) fn run_for(
        &mut self,
        bench: &Bench,
        load: KeyValueLoad,
        (warm_up, runtime): (Duration, Duration),
        look: &mut dyn FnMut(),
    ) -> Result<KeyValueResult, Error> {
        let load = KeyValueLoad { warm_up, runtime, fill: load.fill && !self.is_filled, ..load };
        let options = Options::default()
            .with_lanes(load.lanes)
            .with_depth(load.lane_depth().clamp(2, Options::DEPTH_MAX))
            // The first use of memory by the target may be slow: page faults.
            .with_command_timeout(Duration::from_secs(120))
            .tuned(|tuning| tuning.follows_partitions = load.follows_partitions);
        let association = Association::connect(self.served.address(), options)?;
        let namespace = association.addressed_key_value()?;
        let account = self.served.account();
        let result = run(&association, &namespace, &load, &bench.host_cores, Some(&*account), &mut || {
            look();
            bench.is_stopped()
        });
        association.close();
        let result = result.map_err(|error| Error::Load(error.to_string()))?;
        bench.note_loss(Side::Target, result.target_loss);
        self.is_filled |= load.fill;
        match result.first_failure {
            Some(failure) => Err(Error::Load(failure)),
            None => Ok(result),
        }
    }
}

/// A mix of operations of this kind.
///
/// # Panics
/// On an unknown kind.
pub(crate) fn mix(kind: &str) -> Mix {
    kind.parse().expect("a known kind")
}

/// Throughput, latency and processor time of a load, per operation.
pub(crate) fn values(result: &KeyValueResult) -> Values {
    let latency = result.latency();
    let count = result.count().max(1) as f64;
    let mut values = Values::from([
        ("ops", result.per_second()),
        ("p50_us", us(latency.percentile(50.0))),
        ("p99_us", us(latency.percentile(99.0))),
        ("host_ns", result.generator.total_ns() as f64 / count),
        (
            "mib_per_s",
            result.value_bytes as f64 / result.elapsed.as_secs_f64().max(1e-9) / f64::from(1 << 20),
        ),
    ]);
    if let (Some(rate), Some(target)) = (result.per_target_second(), result.target) {
        values.insert("ops_per_cpu", rate);
        values.insert("target_ns", target.total_ns() as f64 / count);
    }
    values
}
