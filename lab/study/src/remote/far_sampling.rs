//! Samples of a target's threads, as the study server takes them: one target at a time, for a bounded time.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::limits::TIME_MAX;
use super::measuring::Measuring;
use super::sampled::SentSamples;
use crate::profile::{ProcessSampling, Resolver, Scope};

/// Time from the end of a measurement to the request that ends its sampling.
const END_TIME: Duration = Duration::from_secs(60);

/// Time between two looks at the buffers, which have room for a tenth of a second and more.
const LOOK: Duration = Duration::from_millis(50);

/// The sampling of a study's targets, and the names of sampled code.
#[derive(Default)]
pub(super) struct FarSampling {
    /// Number of the target that is sampled, and the thread that takes the samples.
    running: Option<(u32, Measuring<ProcessSampling>)>,
    resolver: Resolver,
}

impl FarSampling {
    /// Starts to sample the threads of a target's process, for the rest of a measurement of this length; ends the sampling
    /// before.
    pub(super) fn start(&mut self, target: u32, pid: u32, measure: Duration) -> Result<(), String> {
        self.running = None;
        if measure > TIME_MAX {
            return Err(format!("threads are sampled for {} s at most", TIME_MAX.as_secs()));
        }
        let start = || ProcessSampling::start(pid, Scope::permitted()?, |_| true);
        let sampling = start().map_err(|error| error.to_string())?;
        self.running = Some((target, sample(sampling, measure + END_TIME)?));
        Ok(())
    }

    /// Ends the sampling.
    pub(super) fn end(&mut self) -> Result<SentSamples, String> {
        let (_, running) = self.running.take().ok_or("no target is sampled")?;
        let samples = running.cut()?;
        let sampled = samples.place(&mut self.resolver).map_err(|error| error.to_string())?;
        Ok(SentSamples::of(&sampled))
    }

    /// Ends the sampling of a target that is about to end.
    pub(super) fn end_of(&mut self, target: u32) {
        self.running.take_if(|(of, _)| *of == target);
    }
}

/// Takes samples in a thread until a request ends it, for this time at most.
fn sample(mut sampling: ProcessSampling, time: Duration) -> Result<Measuring<ProcessSampling>, String> {
    Measuring::start("the sampling", "nvlane-sampler", move |stops| {
        let end = Instant::now() + time;
        while !stops.load(Ordering::Acquire) {
            if Instant::now() >= end {
                return Err("the sampling has ended: no request asked for its samples in time".to_owned());
            }
            sampling.collect();
            std::thread::park_timeout(LOOK);
        }
        sampling.end();
        Ok(sampling)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn start(sampling: &mut FarSampling, target: u32, measure: Duration) -> Result<(), String> {
        sampling.start(target, std::process::id(), measure)
    }

    #[test]
    fn a_sampling_ends_with_its_target_and_gives_what_it_has() {
        if Scope::permitted().is_err() {
            return;
        }
        let mut sampling = FarSampling::default();
        let measure = Duration::from_secs(1);
        assert_eq!(start(&mut sampling, 1, measure), Ok(()));
        sampling.end_of(2);
        assert!(sampling.running.is_some());
        sampling.end_of(1);
        assert_eq!(sampling.end().unwrap_err(), "no target is sampled");
        assert_eq!(start(&mut sampling, 2, measure), Ok(()));
        let until = Instant::now() + Duration::from_millis(50);
        while Instant::now() < until {}
        assert!(sampling.end().unwrap().into_sampled().unwrap().placed.total() > 0);
        assert!(sampling.end().is_err());
    }

    #[test]
    fn a_sampling_that_nobody_ends_is_bounded() {
        let mut sampling = FarSampling::default();
        let refused = start(&mut sampling, 1, Duration::from_secs(601)).unwrap_err();
        assert_eq!(refused, "threads are sampled for 600 s at most");
        let Ok(scope) = Scope::permitted() else { return };
        let of_process = ProcessSampling::start(std::process::id(), scope, |_| true).unwrap();
        let running = sample(of_process, Duration::ZERO).unwrap();
        assert!(running.end().err().is_some_and(|told| told.contains("in time")));
    }
}
