//! The cost of a wake-up on this machine, measured once.
//!
//! Bare metal takes 5 to 20 µs from the event to the first instruction of the sleeper; a virtual machine, whose core is
//! given to others while it is halted, 25 to 100 µs. Only a measurement shows which.

use std::num::NonZeroU64;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use rustix::thread;
use rustix::time::Timespec;

/// Sleeps measured: odd, for their median.
const SAMPLE_COUNT: usize = 9;

/// Length of each, ns: long enough for a core to be halted.
const SAMPLE_NS: u64 = 100_000;

/// The delay of a wake-up, ns: the median of a few sleeps of the first thread that asks, a millisecond in all.
pub(crate) fn wake_cost_ns() -> u64 {
    static COST_NS: OnceLock<u64> = OnceLock::new();
    *COST_NS.get_or_init(measure)
}

/// Delay that the kernel may add to timers of this thread, to wake once for several, ns.
pub(crate) fn timer_slack_ns() -> u64 {
    thread::current_timer_slack().unwrap_or_default()
}

/// Timers of this thread are not delayed.
pub(crate) fn refuse_timer_slack() {
    // 0 would stand for the default.
    let _ = thread::set_current_timer_slack(NonZeroU64::new(1));
}

fn measure() -> u64 {
    let slack = NonZeroU64::new(timer_slack_ns());
    refuse_timer_slack();
    let duration = Duration::from_nanos(SAMPLE_NS);
    let sample = Timespec::try_from(duration).expect("a short time");
    let mut late_ns: [u64; SAMPLE_COUNT] = std::array::from_fn(|_| {
        let start = Instant::now();
        let _ = thread::nanosleep(&sample);
        u64::try_from(start.elapsed().saturating_sub(duration).as_nanos()).unwrap_or(u64::MAX)
    });
    let _ = thread::set_current_timer_slack(slack);
    late_ns.sort_unstable();
    late_ns[SAMPLE_COUNT / 2]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_measured_once_and_leaves_the_threads_timers_as_they_were() {
        let slack = thread::current_timer_slack().unwrap();
        let cost_ns = wake_cost_ns();
        assert!(cost_ns > 0, "no machine wakes a sleeper in no time");
        assert_eq!(wake_cost_ns(), cost_ns);
        assert_eq!(thread::current_timer_slack().unwrap(), slack);
    }
}
