//! Threads that use a target beside a measured lane, and disturb that lane as little as the number of cores allows.
//!
//! They run on cores of their own if there are any. Else they share the host's core at idle priority (`SCHED_IDLE`): they
//! run while the measured lane's host has nothing to do.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use linux::{CoreList, pin, step_back};

use crate::bench::{Bench, Cores};
use crate::error::{Doing, Error};

/// The place of the threads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// On cores that neither side of the measurement has.
    Apart(Vec<usize>),
    /// On the host's core, while it is idle.
    Shared(usize),
    /// Anywhere: there is one core for everything, and timings mean little.
    Anywhere,
}

impl Place {
    /// The place on this bench.
    pub(crate) fn of(bench: &Bench) -> Result<Self, Error> {
        let allowed = CoreList::allowed().doing("the cores")?;
        // A study server has the target's core on its own machine.
        let cores =
            bench.cores.map(|Cores { host, target }| (host, if bench.is_remote() { host } else { target }));
        Ok(Self::among(allowed.cores(), cores))
    }

    /// Beside the cores of host and target.
    fn among(allowed: &[usize], cores: Option<(usize, usize)>) -> Self {
        let Some((host, target)) = cores else { return Self::Anywhere };
        let rest: Vec<_> = allowed.iter().copied().filter(|core| ![host, target].contains(core)).collect();
        if rest.is_empty() { Self::Shared(host) } else { Self::Apart(rest) }
    }

    /// Whether they share the host's core.
    pub(crate) const fn is_shared(&self) -> bool {
        matches!(self, Self::Shared(_))
    }

    /// The core of a target beside these threads.
    pub(crate) fn first_core(&self) -> Option<usize> {
        match self {
            Self::Apart(cores) => cores.first().copied(),
            Self::Shared(core) => Some(*core),
            Self::Anywhere => None,
        }
    }

    /// Moves the calling thread, number `at`, there, and all threads and processes that it starts.
    pub(crate) fn enter(&self, at: usize) -> Result<(), Error> {
        let moved = match self {
            Self::Apart(cores) => pin(cores[at % cores.len()]),
            Self::Shared(core) => pin(*core).and_then(|()| step_back()),
            Self::Anywhere => Ok(()),
        };
        moved.doing("place a thread")
    }
}

/// The work of the threads.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Done {
    /// Operations per second.
    pub(crate) per_second: f64,
}

/// Calls `operation`, which returns whether it counts, on `threads` threads again and again while `measure` runs.
/// `rate_per_s`: on schedule, all threads together; `None`: without a pause. The first failure of an operation is the
/// result.
pub(crate) fn beside<T>(
    place: &Place,
    threads: usize,
    rate_per_s: Option<f64>,
    operation: impl Fn() -> Result<bool, Error> + Sync,
    measure: impl FnOnce() -> Result<T, Error>,
) -> Result<(T, Done), Error> {
    let (is_over, count) = (AtomicBool::new(false), AtomicU64::new(0));
    let failure = Mutex::new(None);
    let schedule = AtomicU64::new(0);
    let start = Instant::now();
    let turn = || -> Result<(), Error> {
        if let Some(rate) = rate_per_s {
            let due = schedule.fetch_add(1, Ordering::Relaxed) as f64 / rate;
            let due = Duration::from_secs_f64(due);
            while let Some(rest) = due.checked_sub(start.elapsed()).filter(|rest| !rest.is_zero()) {
                if is_over.load(Ordering::Relaxed) {
                    return Ok(());
                }
                std::thread::sleep(rest.min(Duration::from_millis(20)));
            }
        }
        count.fetch_add(operation()?.into(), Ordering::Relaxed);
        Ok(())
    };
    let work = |at| {
        let mut outcome = place.enter(at);
        while outcome.is_ok() && !is_over.load(Ordering::Relaxed) {
            outcome = turn();
        }
        if let (Err(error), Ok(mut failure)) = (outcome, failure.lock()) {
            failure.get_or_insert(error);
        }
    };
    let (measured, done) = std::thread::scope(|scope| {
        let work = &work;
        for at in 0..threads {
            scope.spawn(move || work(at));
        }
        let measured = measure();
        let elapsed = start.elapsed();
        is_over.store(true, Ordering::Relaxed);
        let per_second = count.load(Ordering::Relaxed) as f64 / elapsed.as_secs_f64();
        (measured, Done { per_second })
    });
    let measured = measured?;
    match failure.into_inner() {
        Ok(None) => Ok((measured, done)),
        Ok(Some(error)) => Err(error),
        Err(_) => Err(Error::Load("a thread beside the measured lane panicked".into())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_have_cores_of_their_own_where_there_are_any() {
        let cores = Some((0, 1));
        assert_eq!(Place::among(&[0, 1, 2, 3], cores), Place::Apart(vec![2, 3]));
        assert_eq!(Place::among(&[0, 1], cores), Place::Shared(0));
        assert_eq!(Place::among(&[0], None), Place::Anywhere);
        assert_eq!(Place::Apart(vec![2, 3]).first_core(), Some(2));
        assert!(Place::Shared(0).is_shared() && !Place::Anywhere.is_shared());
    }

    #[test]
    fn a_schedule_bounds_the_rate_and_ends_with_the_measurement() {
        let measure = || {
            std::thread::sleep(Duration::from_millis(300));
            Ok(7)
        };
        let (value, done) = beside(&Place::Anywhere, 3, Some(100.0), || Ok(true), measure).unwrap();
        assert_eq!(value, 7);
        assert!(done.per_second > 10.0 && done.per_second < 110.0, "{done:?}");
        let (_, unbounded) = beside(&Place::Anywhere, 2, None, || Ok(true), measure).unwrap();
        assert!(unbounded.per_second > 1000.0, "{unbounded:?}");
        let (_, uncounted) = beside(&Place::Anywhere, 2, None, || Ok(false), measure).unwrap();
        assert!(uncounted.per_second < 0.5, "{uncounted:?}");
    }

    #[test]
    fn a_failed_operation_fails_the_measurement() {
        let measure = || {
            std::thread::sleep(Duration::from_millis(50));
            Ok(())
        };
        let fails = || Err(Error::Load("refused".into()));
        let error = beside(&Place::Anywhere, 2, None, fails, measure).unwrap_err();
        assert_eq!(error.to_string(), "the load went wrong: refused");
    }
}
