//! The behaviour of the clocks of the target's machine.

use super::{Fault, Scenario};
use crate::random::Random;

/// How far the wall clock may be ahead of the time, s: right, ten minutes, in 1970, about to leave 31 and 32 bits.
pub(crate) const WALL_AHEAD_S: [i64; 6] = [0, 600, -600, -1_699_999_990, 447_483_640, 2_594_967_290];

impl Scenario {
    /// Steps of the wall clock, and a machine that is suspended: only keys expire by these clocks.
    pub(super) fn draw_clocks(&mut self) {
        let mut random = Random::new(self.seed, 47);
        let Some(pairs) = self.pairs.as_ref().filter(|_| random.one_in(2)) else { return };
        // The time of a log is marked right after a pause, but reads before that are answered.
        let seconds_max = if pairs.file_bytes() > 0 { 15 } else { 1000 };
        let count = random.between(1, 4);
        self.add_faults(&mut random, count, |r| match r.one_in(3) {
            true => Fault::Suspend { seconds: r.scaled(1, seconds_max) },
            false => Fault::SetClock { ahead_s: r.pick(&WALL_AHEAD_S) },
        });
    }
}
