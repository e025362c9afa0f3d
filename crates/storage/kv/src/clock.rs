//! The clock of a partition, by which its pairs expire, and the time that its log keeps.
//!
//! The clock follows the time since the boot of the machine, which no step of the wall clock changes. The wall clock is
//! used where a client gives or gets Unix time, and at the first start after a boot.
//!
//! Expiry times in a log are in *log time*: seconds that go on from one start to the next, at first Unix time. The time
//! between the last mark of a log and a start is known
//!
//! ```text
//! in the same boot  │ by the time since the boot
//! in another one    │ by the wall clock; at least the longest time between marks, unless a stop wrote the last one
//!                   │ if the wall clock shows less than before, not at all: every pair with an expiry has expired
//! ```

use linux::Moment;

/// The longest time without another mark, s, if pairs expire meanwhile.
pub(crate) const UNMARKED_S: i64 = 60;

/// The latest second to which the clock skips: later ones leave no room for expiry times.
const SKIP_TO_S: u32 = 1 << 28;

/// Times that clocks can have, s.
const TIMES_S: std::ops::Range<i64> = 0..1 << 40;

/// A step of the wall clock after which the time is marked again, s.
const STEP_S: u64 = 5;

/// The time of a mark in a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LogTime {
    /// The boot, and the time since then, s.
    pub(crate) boot: u64,
    pub(crate) since_boot_s: i64,
    pub(crate) log_s: i64,
    /// Unix time by the wall clock, s.
    pub(crate) unix_s: i64,
    /// Whether nothing happened after it.
    pub(crate) is_last: bool,
}

/// The clock of a partition, in seconds counted from its own base; no second is 0.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    moment: Moment,
    /// Time since the boot at second 0, s.
    base_s: i64,
    pub(crate) now_s: u32,
    started_s: u32,
    /// Log time at second 0, s.
    log_base_s: i64,
    /// While a log is read that goes on from an earlier boot.
    resumed: Option<Resumed>,
}

/// What is known of the time since an earlier boot.
#[derive(Clone, Copy, Debug)]
struct Resumed {
    /// How far log time was ahead of Unix time, s.
    log_ahead_s: i64,
    /// The longest time that may have passed after the last moment that the log shows, s.
    unmarked_s: i64,
    /// The latest Unix time that the log shows, s.
    unix_s: i64,
}

impl Clock {
    /// The expiry of pairs that expire at once: it has passed before anything is stored.
    pub const EXPIRED_S: u32 = 1;
    /// The second at which it starts.
    pub(crate) const FIRST_S: u32 = Self::EXPIRED_S + 1;

    /// A clock that starts now.
    #[must_use]
    pub fn at(now: Moment) -> Self {
        let first_s = i64::from(Self::FIRST_S);
        Self {
            moment: now,
            base_s: now.since_boot_s - first_s,
            now_s: Self::FIRST_S,
            started_s: Self::FIRST_S,
            log_base_s: now.unix_s - first_s,
            resumed: None,
        }
    }

    /// Sets the time. It never goes back.
    #[inline]
    pub fn set(&mut self, now: Moment) {
        self.moment = now;
        self.now_s = u32::try_from(now.since_boot_s - self.base_s).unwrap_or(0).max(self.now_s);
    }

    /// The moment that was set last.
    pub(crate) fn moment(&self) -> Moment {
        self.moment
    }

    /// Whether a later moment has been set.
    #[inline]
    pub(crate) fn is_ahead_of(&self, now: Moment) -> bool {
        now.boot == self.moment.boot && now.since_boot_s < self.moment.since_boot_s
    }

    /// Whether this moment has been set, or a later one.
    #[inline]
    pub(crate) fn has_come_to(&self, now: Moment) -> bool {
        now == self.moment || self.is_ahead_of(now)
    }

    /// The current second of the partition's clock.
    #[inline]
    #[must_use]
    pub fn now_s(&self) -> u32 {
        self.now_s
    }

    /// The time since the boot at second 0, s.
    #[must_use]
    pub fn start_s(&self) -> i64 {
        self.base_s
    }

    /// Seconds since the start.
    #[must_use]
    pub fn uptime_s(&self) -> u32 {
        self.now_s - self.started_s
    }

    /// Unix time by the wall clock, s.
    #[must_use]
    pub fn unix_s(&self) -> i64 {
        self.moment.unix_s
    }

    /// Unix time of a second of the partition's clock as the wall clock is now, s.
    #[must_use]
    pub fn unix_of(&self, at_s: u32) -> i64 {
        self.moment.unix_s + i64::from(at_s) - i64::from(self.now_s)
    }

    /// Whether this expiry has passed; 0 means no expiry.
    #[inline(always)]
    pub(crate) fn has_passed(&self, expiry_s: u32) -> bool {
        expiry_s != 0 && expiry_s <= self.now_s
    }

    /// Log time, s.
    pub(crate) fn log_s(&self) -> i64 {
        self.log_base_s + i64::from(self.now_s)
    }

    /// An expiry in log time, s, or 0.
    pub(crate) fn logged(&self, expiry_s: u32) -> i64 {
        if expiry_s == 0 { 0 } else { self.log_base_s + i64::from(expiry_s) }
    }

    /// The expiry that the log has as `log_s`; `None` if it has passed.
    pub(crate) fn restored(&self, log_s: i64) -> Option<u32> {
        match log_s {
            0 => Some(0),
            _ if log_s <= self.log_s() => None,
            _ => Some(u32::try_from(log_s.saturating_sub(self.log_base_s)).unwrap_or(u32::MAX)),
        }
    }

    /// The time for a mark in the log.
    pub(crate) fn log_time(&self, is_last: bool) -> LogTime {
        let Moment { boot, since_boot_s, unix_s } = self.moment;
        LogTime { boot, since_boot_s, log_s: self.log_s(), unix_s, is_last }
    }

    /// Whether the wall clock was set since a mark.
    pub(crate) fn is_set_since(&self, mark: &LogTime) -> bool {
        let passed_s = self.moment.since_boot_s.saturating_sub(mark.since_boot_s);
        self.moment.unix_s.saturating_sub(mark.unix_s).abs_diff(passed_s) > STEP_S
    }

    /// Has log time go on from the last mark of the log, which is read next.
    pub(crate) fn resume(&mut self, last: &LogTime) {
        if ![last.since_boot_s, last.log_s, last.unix_s].iter().all(|time_s| TIMES_S.contains(time_s)) {
            return;
        }
        let Moment { boot, since_boot_s, unix_s } = self.moment;
        let is_same_boot = boot != 0 && boot == last.boot && since_boot_s >= last.since_boot_s;
        let passed_s = if is_same_boot {
            since_boot_s - last.since_boot_s
        } else {
            let unmarked_s = if last.is_last { 0 } else { UNMARKED_S };
            let log_ahead_s = last.log_s - last.unix_s;
            self.resumed = Some(Resumed { log_ahead_s, unmarked_s, unix_s: last.unix_s });
            (unix_s - last.unix_s).max(unmarked_s)
        };
        self.log_base_s = last.log_s + passed_s - i64::from(self.now_s);
    }

    /// The log shows that it was written at this log time, s.
    pub(crate) fn on_log_time(&mut self, log_s: i64) {
        if let Some(resumed) = &mut self.resumed
            && TIMES_S.contains(&log_s)
        {
            resumed.unix_s = resumed.unix_s.max(log_s - resumed.log_ahead_s);
            let skipped_s = log_s + resumed.unmarked_s - self.log_s();
            let skipped_s = skipped_s.clamp(0, SKIP_TO_S.saturating_sub(self.now_s).into());
            self.now_s += u32::try_from(skipped_s).expect("clamped");
            self.base_s -= skipped_s;
        }
    }

    /// The log is read: from now on pairs are stored. If the wall clock shows less than when the log was written,
    /// returns how much less at least, s: it is unknown how much time has passed, and log time goes on behind
    /// `expires_until_s`.
    pub(crate) fn end_recovery(&mut self, expires_until_s: i64) -> Option<i64> {
        self.started_s = self.now_s;
        let resumed = self.resumed.take()?;
        let behind_s = resumed.unix_s - self.moment.unix_s;
        if behind_s <= 0 {
            return None;
        }
        let log_s = self.log_s().max(expires_until_s.clamp(TIMES_S.start, TIMES_S.end));
        self.log_base_s = log_s - i64::from(self.now_s);
        Some(behind_s)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNIX_S: i64 = 1_700_000_000;

    fn moment(boot: u64, since_boot_s: i64, unix_s: i64) -> Moment {
        Moment { boot, since_boot_s, unix_s }
    }

    /// The last mark of a log that ran for 100 s from its creation.
    fn log_time(is_last: bool) -> LogTime {
        let mut clock = Clock::at(moment(1, 1000, UNIX_S));
        clock.set(moment(1, 1100, UNIX_S + 100));
        clock.log_time(is_last)
    }

    /// Time left of an expiry 200 s after the mark, s, at this moment of another start, and whether that is known.
    fn left_s(last: &LogTime, now: Moment) -> (i64, bool) {
        let mut clock = Clock::at(now);
        clock.resume(last);
        let expiry_s = clock.restored(UNIX_S + 300);
        let left_s = expiry_s.map_or(0, |expiry_s| i64::from(expiry_s) - i64::from(clock.now_s()));
        (left_s, clock.end_recovery(0).is_none())
    }

    #[test]
    fn steps_of_the_wall_clock_change_unix_time_and_nothing_else() {
        let mut clock = Clock::at(moment(1, 1000, UNIX_S));
        for (since_boot_s, unix_s) in [
            (1010, UNIX_S + 600),
            (1020, UNIX_S - 600),
            (1030, 0),
            (1040, 4_300_000_000),
            (1050, UNIX_S + 50),
        ] {
            clock.set(moment(1, since_boot_s, unix_s));
            assert_eq!(i64::from(clock.uptime_s()), since_boot_s - 1000);
            assert_eq!((clock.unix_s(), clock.unix_of(clock.now_s() + 5)), (unix_s, unix_s + 5));
            assert_eq!(clock.log_s(), UNIX_S + since_boot_s - 1000);
        }
        clock.set(moment(1, 1020, UNIX_S));
        assert_eq!(clock.uptime_s(), 50, "it never goes back");
    }

    #[test]
    fn within_one_boot_the_wall_clock_says_nothing_about_a_log() {
        for is_last in [false, true] {
            for unix_s in [UNIX_S + 130, UNIX_S - 600, 0, 4_300_000_000] {
                assert_eq!(left_s(&log_time(is_last), moment(1, 1130, unix_s)), (170, true));
                assert_eq!(left_s(&log_time(is_last), moment(1, 1300, unix_s)), (0, true));
            }
        }
    }

    #[test]
    fn after_another_boot_the_wall_clock_tells_the_time_unless_it_is_behind() {
        for (is_last, unmarked_s) in [(true, 0), (false, UNMARKED_S)] {
            let last = log_time(is_last);
            for boot in [2, 0] {
                assert_eq!(left_s(&last, moment(boot, 7, UNIX_S + 230)), (70, true));
                assert_eq!(left_s(&last, moment(boot, 7, UNIX_S + 100)), (200 - unmarked_s, true));
                for unix_s in [UNIX_S + 99, UNIX_S - 600, 0] {
                    assert!(!left_s(&last, moment(boot, 7, unix_s)).1, "{unix_s}");
                }
            }
            // The machine does not distinguish its boots, or counts less.
            assert_eq!(left_s(&LogTime { boot: 0, ..last }, moment(0, 1130, UNIX_S + 230)), (70, true));
            assert_eq!(left_s(&last, moment(1, 1099, UNIX_S + 230)), (70, true));
        }
    }

    #[test]
    fn with_a_clock_that_is_behind_log_time_goes_on_behind_all_expiry_times() {
        let mut clock = Clock::at(moment(2, 3, 3));
        clock.resume(&log_time(true));
        assert_eq!(clock.end_recovery(UNIX_S + 5000), Some(UNIX_S + 97));
        assert_eq!(
            (clock.log_s(), clock.restored(UNIX_S + 5000), clock.uptime_s()),
            (UNIX_S + 5000, None, 0)
        );
        clock.set(moment(2, 13, UNIX_S + 200));
        assert_eq!((clock.log_s(), clock.uptime_s()), (UNIX_S + 5010, 10), "the step changes nothing");
        // From now on this is the time of the log.
        let mut again = Clock::at(moment(3, 3, UNIX_S + 230));
        again.resume(&clock.log_time(true));
        assert_eq!((again.end_recovery(0), again.log_s()), (None, UNIX_S + 5040));
    }

    #[test]
    fn records_after_the_last_mark_show_that_time_passed() {
        let mut clock = Clock::at(moment(2, 3, UNIX_S + 150));
        clock.resume(&log_time(false));
        assert_eq!(clock.log_s(), UNIX_S + 160);
        let expiry_s = clock.restored(UNIX_S + 200).expect("it is to come");
        clock.on_log_time(UNIX_S + 90);
        assert_eq!(clock.log_s(), UNIX_S + 160);
        clock.on_log_time(UNIX_S + 140);
        assert_eq!(clock.log_s(), UNIX_S + 200);
        assert!(clock.has_passed(expiry_s));
        let mut behind = clock;
        assert_eq!((clock.end_recovery(0), clock.uptime_s()), (None, 0));
        behind.on_log_time(UNIX_S + 1000);
        assert_eq!(behind.end_recovery(0), Some(850));
        // Within one boot it is known exactly.
        let mut clock = Clock::at(moment(1, 1130, 0));
        clock.resume(&log_time(false));
        clock.on_log_time(UNIX_S + 129);
        assert_eq!(clock.log_s(), UNIX_S + 130);
    }

    #[test]
    fn a_wall_clock_that_was_set_is_seen_and_one_that_is_slewed_is_not() {
        let last = log_time(false);
        for (unix_s, is_set) in [(200, false), (203, false), (197, false), (260, true), (100, true)] {
            let clock = Clock::at(moment(1, 1200, UNIX_S + unix_s));
            assert_eq!(clock.is_set_since(&last), is_set, "{unix_s}");
        }
    }

    /// Times that no clock has: of a forged file, or after a wall clock that was far off.
    #[test]
    fn no_time_is_too_far_away() {
        for extreme in [i64::MIN, -1, 0, 1 << 39, i64::MAX] {
            for last in [
                LogTime { log_s: extreme, ..log_time(false) },
                LogTime { unix_s: extreme, ..log_time(false) },
                LogTime { since_boot_s: extreme, ..log_time(false) },
            ] {
                let mut clock = Clock::at(moment(2, 3, UNIX_S));
                clock.resume(&last);
                clock.on_log_time(extreme);
                let _ = (clock.restored(extreme), clock.logged(5), clock.is_set_since(&last));
                clock.end_recovery(extreme);
                clock.set(moment(2, 4, 9_000_000_000));
                assert!(clock.now_s() <= SKIP_TO_S + 10 && clock.uptime_s() == 1, "{clock:?}");
            }
        }
    }

    #[test]
    fn years_that_do_not_fit_in_32_bits_are_years_like_others() {
        for unix_s in [i64::from(i32::MAX) - 5, i64::from(u32::MAX) - 5] {
            let mut clock = Clock::at(moment(1, 1000, unix_s));
            clock.set(moment(1, 1010, unix_s + 10));
            assert_eq!(clock.unix_of(clock.now_s() + 100), unix_s + 110);
            let logged_s = clock.logged(clock.now_s() + 100);
            assert_eq!(logged_s, unix_s + 110);
            assert_eq!(clock.restored(logged_s), Some(clock.now_s() + 100));
        }
    }
}
