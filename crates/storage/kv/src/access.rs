//! When items were last accessed, in six bits of their headers.
//!
//! Time is divided into *ticks* of a minute or more. An access leaves the number of the tick, modulo 20, as the item's
//! *stamp*, so a header is written at most once per tick. A hand passes over all items once in six ticks, and converts
//! older stamps to tens of ticks, and later to hundreds, before their numbers recur:
//!
//! ```text
//! stamp  0..20: one of the last 20 ticks │ 20..40: of the last 20 tens │ 40..60: of the last 20 hundreds │ 63: older
//! ```
//!
//! A tick lasts until the hand has passed over its share, which it does in steps while the partition is used. Without
//! requests there are no ticks, and no accesses either; so the start of each tick is recorded.

use crate::clock::Clock;

/// Bits of a stamp.
pub(crate) const STAMP_BITS: u32 = 6;

/// Least length of a tick, s.
const TICK_S: u32 = 60;
/// Numbers of a level.
const NUMBER_COUNT: u32 = 20;
/// Ticks in a number of each level.
const TICKS: [u32; 3] = [1, 10, 100];
/// At this age, in numbers of its level, the hand moves a stamp to the next level. An item that was moved behind the
/// hand is passed after two passes only: until then its stamp is less than 20 numbers old.
const AGES_MAX: [u32; 3] = [6, 16, 18];
/// Ticks of a pass of the hand over all regions.
const PASS_TICKS: u32 = 6;
/// The stamp of accesses before those of all levels.
const OLDER: u8 = (1 << STAMP_BITS) - 1;

/// The present tick, the start of each tick that a stamp may name, and the position of the hand.
#[derive(Debug)]
pub(crate) struct AccessClock {
    tick: u32,
    /// The stamp of the present tick.
    now: u8,
    /// By stamp: the second at which its tick, or its ten or hundred ticks, began.
    began_s: [u32; TICKS.len() * NUMBER_COUNT as usize],
    /// The second at which there is something to do: 0 while the hand moves.
    due_s: u32,
    hand: u32,
    /// Regions that the hand has to pass in this tick.
    left_count: u32,
}

/// The stamp that names a tick on a level.
fn stamp_of(level: usize, tick: u32) -> u8 {
    (level as u32 * NUMBER_COUNT + tick / TICKS[level] % NUMBER_COUNT) as u8
}

impl AccessClock {
    /// A clock that starts with the partition's.
    pub(crate) fn new() -> Self {
        Self {
            tick: 0,
            now: 0,
            began_s: [Clock::FIRST_S; _],
            due_s: Clock::FIRST_S + TICK_S,
            hand: 0,
            left_count: 0,
        }
    }

    /// Has all accesses so far count as of this second: those of pairs that were read from a log.
    pub(crate) fn begin(&mut self, now_s: u32) {
        self.began_s = [now_s; _];
        self.due_s = now_s + TICK_S;
    }

    /// The stamp of an access now.
    #[inline(always)]
    pub(crate) fn now(&self) -> u8 {
        self.now
    }

    /// Whether there is something to do.
    #[inline(always)]
    pub(crate) fn is_due(&self, now_s: u32) -> bool {
        now_s >= self.due_s
    }

    /// Begins a tick if it is time, and returns the region of `count` over which the hand is to pass now.
    pub(crate) fn step(&mut self, now_s: u32, count: u32) -> Option<u32> {
        if self.left_count == 0 {
            self.begin_tick(now_s);
            self.left_count = count.div_ceil(PASS_TICKS);
        }
        let is_left = self.left_count > 0;
        self.left_count = self.left_count.saturating_sub(1);
        self.due_s = if self.left_count > 0 { 0 } else { self.began_s[usize::from(self.now)] + TICK_S };
        is_left.then(|| {
            let region = self.hand % count.max(1);
            self.hand = region + 1;
            region
        })
    }

    fn begin_tick(&mut self, now_s: u32) {
        self.tick = self.tick.wrapping_add(1);
        self.now = stamp_of(0, self.tick);
        for (level, ticks) in TICKS.into_iter().enumerate() {
            if self.tick.is_multiple_of(ticks) {
                self.began_s[usize::from(stamp_of(level, self.tick))] = now_s;
            }
        }
    }

    /// The level of a stamp, and its age there; `None` if it is older than all.
    fn age(&self, stamp: u8) -> Option<(usize, u32)> {
        let level = usize::from(stamp) / NUMBER_COUNT as usize;
        let ticks = TICKS.get(level)?;
        let number = u32::from(stamp) % NUMBER_COUNT;
        Some((level, (self.tick / ticks + NUMBER_COUNT - number) % NUMBER_COUNT))
    }

    /// The stamp that an item gets when the hand passes it.
    #[inline]
    pub(crate) fn passed(&self, stamp: u8) -> u8 {
        match self.age(stamp) {
            Some((level, age)) if age < AGES_MAX[level] => stamp,
            Some((level, age)) if level + 1 < TICKS.len() => {
                stamp_of(level + 1, (self.tick / TICKS[level]).saturating_sub(age) * TICKS[level])
            }
            _ => OLDER,
        }
    }

    /// The second of the access that left a stamp: when the tick, or the ten or hundred ticks, began.
    pub(crate) fn second_of(&self, stamp: u8) -> u32 {
        let oldest = (self.tick / TICKS[2]).saturating_sub(AGES_MAX[2]) * TICKS[2];
        let stamp = if self.age(stamp).is_some() { stamp } else { stamp_of(2, oldest) };
        self.began_s[usize::from(stamp)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every age is known to a tick, to ten, or to a hundred, with the hand as late as it can be; then it stays old.
    #[test]
    fn stamps_age_without_becoming_young_again() {
        for (accessed, lateness) in [(0, 5), (3, 12), (9, 12), (57, 7), (999, 12), (1234, 1)] {
            let mut clock = AccessClock::new();
            let second = |tick: u32| Clock::FIRST_S + tick * TICK_S;
            let mut stamp = clock.now();
            for tick in 1..5000 {
                assert!(clock.is_due(second(tick)) && !clock.is_due(second(tick) - 1));
                assert_eq!(clock.step(second(tick), 0), None);
                match tick {
                    _ if tick == accessed => stamp = clock.now(),
                    _ if tick % lateness == 0 => stamp = clock.passed(stamp),
                    _ => {}
                }
                let age = tick - accessed.min(tick);
                let ticks = match age {
                    0..6 => 1,
                    6..150 => 10,
                    150..1700 => 100,
                    // Older than this, whatever that is.
                    _ => {
                        assert!(clock.second_of(stamp) <= second(tick - 1700));
                        continue;
                    }
                };
                let known = clock.second_of(stamp);
                assert!(known <= second(accessed.min(tick)), "{tick}: in the future");
                if tick >= accessed {
                    assert!(known + ticks * TICK_S > second(accessed), "{accessed} {lateness} {tick}: {age}");
                }
            }
            assert_eq!(stamp, OLDER);
        }
    }

    #[test]
    fn the_hand_passes_over_all_regions_in_six_ticks_and_a_tick_waits_for_it() {
        let mut clock = AccessClock::new();
        let mut passed = vec![0; 100];
        let mut now_s = Clock::FIRST_S;
        for _ in 0..6 {
            now_s += TICK_S;
            let stamp = clock.now();
            let mut steps = 0;
            while clock.is_due(now_s) {
                let region = clock.step(now_s, 100).expect("due");
                passed[region as usize] += 1;
                steps += 1;
            }
            assert_eq!(steps, 17);
            assert_ne!(clock.now(), stamp);
        }
        assert!(passed.iter().all(|&count| count >= 1), "{passed:?}");
    }

    #[test]
    fn a_pause_of_days_is_one_tick() {
        let mut clock = AccessClock::new();
        let stamp = clock.now();
        let later_s = Clock::FIRST_S + 100_000_000;
        assert_eq!(clock.step(later_s, 0), None);
        assert_eq!(clock.second_of(stamp), Clock::FIRST_S);
        assert_eq!(clock.second_of(clock.now()), later_s);
        assert!(!clock.is_due(later_s));
    }
}
