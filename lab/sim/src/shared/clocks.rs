//! The clocks of the target's machine. Time passes while it is suspended or off; its wall clock may be wrong.

use linux::Moment;

use crate::random::Random;
use crate::scenario::{SECOND, WALL_AHEAD_S};

/// When a run begins, s since the beginning of 1970, and how long the machine has been on then.
const START_S: u64 = 1_700_000_000;
const SINCE_BOOT_S: u64 = 1000;

/// The clocks of the target's machine.
pub(crate) struct Clocks {
    boot: u64,
    /// When it began, s since the beginning of 1970.
    booted_s: u64,
    /// For how long the machine was suspended, ns.
    suspended_ns: u64,
    wall_ahead_s: i64,
    /// Whether the wall clock was right all the time.
    pub(crate) is_right: bool,
}

impl Clocks {
    pub(crate) fn new() -> Self {
        Self { boot: 1, booted_s: START_S - SINCE_BOOT_S, suspended_ns: 0, wall_ahead_s: 0, is_right: true }
    }

    /// The time, s since the beginning of 1970.
    pub(crate) fn time_s(&self, now_ns: u64) -> i64 {
        (START_S + (now_ns + self.suspended_ns) / SECOND).cast_signed()
    }

    /// The clocks as the target sees them.
    pub(crate) fn moment(&self, now_ns: u64) -> Moment {
        let time_s = self.time_s(now_ns);
        let since_boot_s = time_s - self.booted_s.cast_signed();
        Moment { boot: self.boot, since_boot_s, unix_s: time_s + self.wall_ahead_s }
    }

    /// Unix time by the wall clock, ns.
    pub(crate) fn unix_ns(&self, now_ns: u64) -> u64 {
        let time_ns = START_S * SECOND + now_ns + self.suspended_ns;
        time_ns.saturating_add_signed(self.wall_ahead_s.saturating_mul(SECOND.cast_signed()))
    }

    /// Whether the machine has been booted since the run began.
    pub(crate) fn is_rebooted(&self) -> bool {
        self.boot > 1
    }

    /// The wall clock is set. Returns by how much, s.
    pub(crate) fn set_wall(&mut self, ahead_s: i64) -> u64 {
        self.is_right &= ahead_s == 0;
        std::mem::replace(&mut self.wall_ahead_s, ahead_s).abs_diff(ahead_s)
    }

    /// The machine is suspended for a while, in which nothing of it runs.
    pub(crate) fn suspend(&mut self, seconds: u64) {
        self.suspended_ns += seconds * SECOND;
    }

    /// The power goes, and the machine is booted with a wall clock that may be wrong.
    pub(crate) fn reboot(&mut self, chance: u64, now_ns: u64) {
        self.boot += 1;
        self.booted_s = self.time_s(now_ns).cast_unsigned();
        let mut random = Random::of(chance, 24, &[self.boot]);
        let ahead_s = if random.one_in(2) { 0 } else { random.pick(&WALL_AHEAD_S) };
        self.set_wall(ahead_s);
    }
}
