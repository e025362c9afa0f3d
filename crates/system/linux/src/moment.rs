//! A moment by two clocks: the time since the boot, by which stored pairs expire, and the wall clock.

use std::cell::Cell;
use std::sync::OnceLock;
use std::time::Instant;

use rustix::time::{ClockId, Timespec, clock_gettime};

/// Drift between the wall clock and the time of turns above which all clocks are read, ns. The wall clock is that of
/// the kernel's last tick, and a turn takes time.
const STEP_NS: u64 = 100_000_000;

/// A moment by two clocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moment {
    /// Identifies the boot from which time is counted; 0 if that is unknown.
    pub boot: u64,
    /// Seconds since then, those in which the machine was suspended included. No step of the wall clock changes it.
    pub since_boot_s: i64,
    /// Unix time by the wall clock, s.
    pub unix_s: i64,
}

/// The clocks of a thread that works in turns, read once in a turn in which a moment is asked for.
#[derive(Debug)]
pub struct MomentClock {
    boot: u64,
    /// Monotonic time from which turns count, ns.
    start_ns: i64,
    last: Cell<Last>,
}

#[derive(Clone, Copy, Debug)]
struct Last {
    turn_ns: u64,
    moment: Moment,
    /// How far the wall clock was ahead of monotonic time when all clocks were last read, ns.
    wall_ahead_ns: i64,
    /// How long the machine has been suspended, ns.
    suspended_ns: i64,
}

impl MomentClock {
    /// A clock whose turns count from `start`.
    pub fn new(start: Instant) -> Self {
        let since_start_ns = i64::try_from(start.elapsed().as_nanos()).unwrap_or(i64::MAX);
        let (boot, start_ns) = (boot(), ns(clock_gettime(ClockId::Monotonic)) - since_start_ns);
        let moment = Moment { boot, ..Moment::default() };
        let last = Last { turn_ns: u64::MAX, moment, wall_ahead_ns: i64::MIN, suspended_ns: 0 };
        Self { boot, start_ns, last: Cell::new(last) }
    }

    /// The moment of the turn of this time, ns.
    #[inline]
    pub fn at(&self, turn_ns: u64) -> Moment {
        let last = self.last.get();
        if last.turn_ns == turn_ns { last.moment } else { self.look(turn_ns) }
    }

    fn look(&self, turn_ns: u64) -> Moment {
        let monotonic_ns = self.start_ns.saturating_add_unsigned(turn_ns);
        let wall_ns = ns(clock_gettime(ClockId::RealtimeCoarse));
        let mut last = self.last.get();
        // A step of the wall clock and a suspended machine look the same here; neither happens often.
        let wall_ahead_ns = wall_ns.saturating_sub(monotonic_ns);
        if wall_ahead_ns.abs_diff(last.wall_ahead_ns) > STEP_NS {
            let (since_boot, monotonic) =
                (clock_gettime(ClockId::Boottime), clock_gettime(ClockId::Monotonic));
            last.wall_ahead_ns = wall_ahead_ns;
            last.suspended_ns = ns(since_boot) - ns(monotonic);
        }
        let since_boot_s = monotonic_ns.saturating_add(last.suspended_ns).div_euclid(1_000_000_000);
        let unix_s = wall_ns.div_euclid(1_000_000_000);
        last.moment = Moment { boot: self.boot, since_boot_s, unix_s };
        last.turn_ns = turn_ns;
        self.last.set(last);
        last.moment
    }
}

fn ns(time: Timespec) -> i64 {
    time.tv_sec.saturating_mul(1_000_000_000).saturating_add(time.tv_nsec)
}

/// A number that identifies the boot of this machine; 0 if the kernel does not report it.
fn boot() -> u64 {
    static BOOT: OnceLock<u64> = OnceLock::new();
    *BOOT.get_or_init(|| {
        let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let digits: String = text.chars().filter(char::is_ascii_hexdigit).take(16).collect();
        u64::from_str_radix(&digits, 16).unwrap_or(0)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_is_that_of_the_clocks_and_does_not_change_within_a_turn() {
        let clock = MomentClock::new(Instant::now());
        let seconds = |id| clock_gettime(id).tv_sec;
        let moment = clock.at(0);
        assert!((moment.since_boot_s - seconds(ClockId::Boottime)).abs() <= 1, "{moment:?}");
        assert!((moment.unix_s - seconds(ClockId::Realtime)).abs() <= 1, "{moment:?}");
        assert_eq!(moment.boot, MomentClock::new(Instant::now()).at(0).boot);
        assert_eq!(clock.at(0), moment);
        let later = clock.at(5_000_000_000);
        assert_eq!(later.since_boot_s - moment.since_boot_s, 5);
    }

    /// The wall clock is not the one expected at this time of turns, as if it had been set.
    #[test]
    fn a_step_of_the_wall_clock_does_not_change_the_time_since_the_boot() {
        let clock = MomentClock::new(Instant::now());
        let mut last = clock.last.get();
        let moment = clock.at(0);
        for step_ns in [600, -600, 1_700_000_000].map(|step_s| step_s * 1_000_000_000_i64) {
            (last.turn_ns, last.moment) = (u64::MAX, moment);
            last.wall_ahead_ns = clock.last.get().wall_ahead_ns - step_ns;
            last.suspended_ns = clock.last.get().suspended_ns;
            clock.last.set(last);
            assert!((clock.at(1).since_boot_s - moment.since_boot_s).abs() <= 1);
        }
    }
}
