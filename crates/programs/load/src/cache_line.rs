//! Time that a cache line takes from one core to another: short if both share a cache.
//!
//! Loopback traffic passes from one core to the other through caches. Where host and target share one, the kernel's part
//! of an operation shrinks to a third, so figures of one regime are not comparable with those of the other.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use serde::Serialize;

/// Round trips timed at once.
const ROUND_TRIPS: u32 = 500;

/// Batches of which the fastest counts: in others one of the threads was interrupted.
const BATCH_COUNT: usize = 20;

/// Time limit of all batches.
const TIME_MAX: Duration = Duration::from_millis(100);

/// Up to this time two cores share a cache, ns. Within one last-level cache a line takes 20 to 60 ns, between two 90 and
/// more.
const SHARED_NS_MAX: f64 = 75.0;

/// The caches of two cores.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Regime {
    /// They share a cache.
    SharedCache,
    /// Each has caches of its own.
    OwnCaches,
}

impl Regime {
    /// The regime of two cores between which a line takes this time, ns.
    #[must_use]
    pub fn of(line_ns: f64) -> Self {
        if line_ns <= SHARED_NS_MAX { Self::SharedCache } else { Self::OwnCaches }
    }

    /// In words.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::SharedCache => "both cores share a cache",
            Self::OwnCaches => "each core has caches of its own",
        }
    }
}

/// The time of one line from one core to the other, ns: half a round trip. `None` if the threads never ran at the same
/// time.
///
/// # Errors
/// If a thread cannot be started or tied to its core.
///
/// # Panics
/// If a thread panics.
pub fn transfer_ns(cores: (usize, usize)) -> io::Result<Option<f64>> {
    let (line, ends) = (AtomicU32::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let far = scope.spawn(|| {
            linux::pin(cores.1).inspect_err(|_| ends.store(true, Ordering::Relaxed))?;
            while !ends.load(Ordering::Relaxed) {
                // Odd numbers are the near side's.
                let seen = line.load(Ordering::Acquire);
                if seen % 2 == 1 {
                    line.store(seen.wrapping_add(1), Ordering::Release);
                }
                std::hint::spin_loop();
            }
            Ok::<_, io::Error>(())
        });
        let near = scope.spawn(|| {
            let fastest = linux::pin(cores.0).map(|()| fastest_batch_ns(&line, &ends));
            ends.store(true, Ordering::Relaxed);
            fastest
        });
        let fastest = near.join().expect("the near thread does not panic")?;
        far.join().expect("the far thread does not panic")?;
        Ok(fastest.map(|ns| ns / f64::from(2 * ROUND_TRIPS)))
    })
}

/// Time of the fastest batch, ns.
fn fastest_batch_ns(line: &AtomicU32, ends: &AtomicBool) -> Option<f64> {
    let began = Instant::now();
    let mut fastest: Option<f64> = None;
    let mut value = 0;
    for _ in 0..BATCH_COUNT {
        let batch = Instant::now();
        for _ in 0..ROUND_TRIPS {
            line.store(value + 1, Ordering::Release);
            value += 2;
            let mut look_count = 0u32;
            while line.load(Ordering::Acquire) != value {
                look_count += 1;
                // A far side that does not run answers nothing.
                if look_count.is_multiple_of(1024)
                    && (began.elapsed() > TIME_MAX || ends.load(Ordering::Relaxed))
                {
                    return fastest;
                }
                std::hint::spin_loop();
            }
        }
        let ns = batch.elapsed().as_secs_f64() * 1e9;
        fastest = Some(fastest.map_or(ns, |fastest| fastest.min(ns)));
    }
    fastest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_takes_nanoseconds_between_two_cores() {
        let allowed = linux::CoreList::allowed().unwrap();
        let &[near, far, ..] = allowed.cores() else {
            eprintln!("skipped: one core");
            return;
        };
        // Others may have the cores for all of the time.
        if let Some(ns) = transfer_ns((near, far)).unwrap() {
            assert!((1.0..100_000.0).contains(&ns), "{ns}");
        }
        assert!(transfer_ns((near, 1_000_000)).is_err(), "there is no such core");
    }

    #[test]
    fn the_time_of_a_line_names_the_regime() {
        assert_eq!(Regime::of(25.0), Regime::SharedCache);
        assert_eq!(Regime::of(110.0), Regime::OwnCaches);
        assert_ne!(Regime::SharedCache.name(), Regime::OwnCaches.name());
    }
}
