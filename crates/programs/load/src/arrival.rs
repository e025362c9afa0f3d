//! When operations are due: at once (closed loop), or at moments fixed beforehand (open loop).
//!
//! In an open loop latency counts from the moment an operation was due, so that a stall of the target is seen by
//! every operation that it kept waiting. Those moments are a function of the seed: the ones passed over during a
//! stall are computed when their turn comes, and no queue of them exists.

use crate::random::Prng;
use crate::workload::{Arrival, Pace};

/// The moments at which one lane's operations are due.
#[derive(Clone, Debug)]
pub struct Schedule {
    /// `None` in a closed loop.
    open: Option<Open>,
}

#[derive(Clone, Debug)]
struct Open {
    /// The next moment to hand out.
    clock: Clock,
    /// Moments handed out.
    taken: u64,
    /// The same moments again, run ahead up to the last question about what is due.
    ahead: Clock,
    /// Moments that `ahead` has passed.
    passed: u64,
}

/// A sequence of moments.
#[derive(Clone, Debug)]
struct Clock {
    /// The next moment, in 2^-32 ns.
    next: u128,
    /// Mean gap, in 2^-32 ns.
    mean: u128,
    /// Draws the gaps; `None` if they are all alike.
    prng: Option<Prng>,
}

/// Fraction bits of moments, gaps and logarithms.
const FRACTION_BITS: u32 = 32;

impl Clock {
    #[inline]
    fn next_ns(&self) -> u64 {
        #[expect(clippy::cast_possible_truncation, reason = "moments stay below 2^64 ns, 584 years")]
        let ns = (self.next >> FRACTION_BITS) as u64;
        ns
    }

    #[inline]
    fn advance(&mut self) {
        self.next += match &mut self.prng {
            None => self.mean,
            Some(prng) => (self.mean * u128::from(exponential(prng.draw()))) >> FRACTION_BITS,
        };
    }
}

impl Schedule {
    /// A closed loop: always due.
    pub const fn closed() -> Self {
        Self { open: None }
    }

    /// An open loop of `rate_per_s` operations per second from `start_ns` on. With constant gaps the first is due
    /// after `phase` (0 to 1) of a gap, with Poisson arrivals after one drawn gap.
    pub fn open(rate_per_s: f64, arrival: Arrival, start_ns: u64, phase: f64, seed: u64) -> Self {
        let mean = fixed_point(1e9 / rate_per_s);
        let start = u128::from(start_ns) << FRACTION_BITS;
        let clock = match arrival {
            Arrival::Constant => {
                Clock { next: start + fixed_point(1e9 / rate_per_s * phase), mean, prng: None }
            }
            Arrival::Poisson => {
                let mut clock = Clock { next: start, mean, prng: Some(Prng::new(seed)) };
                clock.advance();
                clock
            }
        };
        Self { open: Some(Open { ahead: clock.clone(), clock, taken: 0, passed: 0 }) }
    }

    /// The schedule of lane `lane` of `lanes`, which share the rate and are spread over the gap.
    pub fn of_lane(pace: Pace, lane: u32, lanes: u32, start_ns: u64, seed: u64) -> Self {
        match pace {
            Pace::Closed => Self::closed(),
            Pace::Open { rate_per_s, arrival } => {
                let (lane_f, lanes_f) = (f64::from(lane), f64::from(lanes));
                let seed = Prng::stream(!seed, lane.into()).draw();
                Self::open(rate_per_s / lanes_f, arrival, start_ns, lane_f / lanes_f, seed)
            }
        }
    }

    /// Whether moments are fixed beforehand.
    pub const fn is_open(&self) -> bool {
        self.open.is_some()
    }

    /// Takes the next operation if it is due at `now_ns`, and returns the moment it was due. A closed loop is due
    /// now.
    #[inline]
    pub fn take(&mut self, now_ns: u64) -> Option<u64> {
        let Some(open) = &mut self.open else { return Some(now_ns) };
        let due_ns = open.clock.next_ns();
        if due_ns > now_ns {
            return None;
        }
        open.clock.advance();
        open.taken += 1;
        Some(due_ns)
    }

    /// Number of operations due at `now_ns` and not taken; `u64::MAX` in a closed loop. Work in proportion to the
    /// moments that passed since the last question.
    pub fn due(&mut self, now_ns: u64) -> u64 {
        let Some(open) = &mut self.open else { return u64::MAX };
        while open.ahead.next_ns() <= now_ns {
            open.ahead.advance();
            open.passed += 1;
        }
        open.passed.saturating_sub(open.taken)
    }

    /// The moment at which the next operation is due; `None` in a closed loop.
    #[inline]
    pub fn next_due_ns(&self) -> Option<u64> {
        self.open.as_ref().map(|open| open.clock.next_ns())
    }
}

/// Nanoseconds in 2^-32 ns, saturating.
fn fixed_point(ns: f64) -> u128 {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "float casts saturate")]
    let fixed = (ns * 2f64.powi(32)) as u128;
    fixed
}

/// Index bits of the table of logarithms.
const TABLE_BITS: u32 = 10;

/// `LOGARITHMS[i]` is the logarithm of 2 / (1 + i / 1024), in 2^-32.
static LOGARITHMS: [u64; (1 << TABLE_BITS) + 1] = logarithms();

/// The natural logarithm of 2, in 2^-32.
const LN_2: u64 = 2_977_044_472;

/// An exponentially distributed number of mean 1, in 2^-32, from uniform bits.
///
/// Minus the logarithm of the fraction that the bits make: the leading zeroes give the power of two, a table with
/// linear interpolation the rest. Within 2e-7 of the exact one, a few nanoseconds, the same on every machine.
#[inline]
fn exponential(random: u64) -> u64 {
    let random = random | 1;
    let zeroes = random.leading_zeros();
    // The mantissa without its leading one, left-aligned.
    let mantissa = (random << zeroes) << 1;
    let index = (mantissa >> (64 - TABLE_BITS)) as usize;
    let fraction = (mantissa << TABLE_BITS) >> 32;
    let (from, to) = (LOGARITHMS[index], LOGARITHMS[index + 1]);
    u64::from(zeroes) * LN_2 + from - (((from - to) * fraction) >> 32)
}

/// Fills the table with integer arithmetic only: the logarithm's bits by repeated squaring.
const fn logarithms() -> [u64; (1 << TABLE_BITS) + 1] {
    let mut table = [0; (1 << TABLE_BITS) + 1];
    let mut i = 0;
    while i < table.len() {
        // 1 + i / 1024 in 2^-62; its binary logarithm in 2^-40, bit by bit.
        let mut value = ((1u128 << TABLE_BITS) + i as u128) << (62 - TABLE_BITS);
        let mut log2 = 0u128;
        let mut bit = 40;
        if value >> 63 == 1 {
            log2 = 1 << 40;
            bit = 0;
        }
        while bit > 0 {
            bit -= 1;
            value = (value * value) >> 62;
            if value >> 63 == 1 {
                log2 |= 1 << bit;
                value >>= 1;
            }
        }
        #[expect(clippy::cast_possible_truncation, reason = "at most the logarithm of 2, 32 bits")]
        let logarithm = ((((1u128 << 40) - log2) * LN_2 as u128) >> 40) as u64;
        table[i] = logarithm;
        i += 1;
    }
    table
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_closed_loop_is_always_due_now() {
        let mut schedule = Schedule::closed();
        assert_eq!(schedule.take(17), Some(17));
        assert_eq!(schedule.due(17), u64::MAX);
        assert_eq!(schedule.next_due_ns(), None);
    }

    #[test]
    fn constant_gaps_do_not_drift() {
        let mut schedule = Schedule::open(3.0, Arrival::Constant, 1_000, 0.0, 0);
        let mut last = 0;
        for _ in 0..=3_000_000 {
            last = schedule.take(u64::MAX).unwrap();
        }
        assert!(last.abs_diff(1_000 + 1_000_000 * 1_000_000_000) <= 1, "{last}");
    }

    #[test]
    fn nothing_is_due_before_its_moment() {
        let mut schedule = Schedule::open(1e6, Arrival::Constant, 5_000, 0.5, 0);
        assert_eq!(schedule.take(5_499), None);
        assert_eq!(schedule.next_due_ns(), Some(5_500));
        assert_eq!(schedule.take(5_600), Some(5_500));
        assert_eq!(schedule.take(5_600), None);
    }

    #[test]
    fn operations_that_a_stall_kept_waiting_come_with_their_own_moments() {
        let mut schedule = Schedule::open(1e6, Arrival::Constant, 0, 0.0, 0);
        let after_stall = 10_500;
        assert_eq!(schedule.due(after_stall), 11);
        let moments: Vec<u64> = std::iter::from_fn(|| schedule.take(after_stall)).collect();
        assert!(moments.into_iter().eq((0..=10).map(|i| i * 1_000)));
        assert_eq!(schedule.due(after_stall), 0);
    }

    #[test]
    fn lanes_share_the_rate_and_interleave() {
        let pace = Pace::Open { rate_per_s: 4e6, arrival: Arrival::Constant };
        let mut moments: Vec<u64> = (0..4)
            .flat_map(|lane| {
                let mut schedule = Schedule::of_lane(pace, lane, 4, 0, 1);
                std::iter::from_fn(move || schedule.take(9_999)).collect::<Vec<_>>()
            })
            .collect();
        moments.sort_unstable();
        assert!(moments.into_iter().eq((0..40).map(|i| i * 250)));
    }

    #[test]
    fn poisson_gaps_have_the_mean_and_the_spread_of_an_exponential() {
        let mut schedule = Schedule::open(200_000.0, Arrival::Poisson, 0, 0.0, 42);
        let mut moments: Vec<f64> = Vec::new();
        let mut at = 0;
        for _ in 0..500_000 {
            at = schedule.take(u64::MAX).unwrap();
            moments.push(at as f64);
        }
        let mean = at as f64 / 500_000.0;
        let gaps: Vec<f64> = moments.windows(2).map(|pair| pair[1] - pair[0]).collect();
        let variance = gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / gaps.len() as f64;
        let above_mean = gaps.iter().filter(|&&gap| gap > mean).count() as f64 / gaps.len() as f64;
        assert!((mean - 5_000.0).abs() < 25.0, "{mean}");
        assert!((variance.sqrt() - 5_000.0).abs() < 50.0, "{}", variance.sqrt());
        assert!((above_mean - (-1f64).exp()).abs() < 0.003, "{above_mean}");
    }

    #[test]
    fn poisson_moments_that_are_counted_are_the_ones_taken() {
        let mut schedule = Schedule::open(1e6, Arrival::Poisson, 0, 0.0, 3);
        for now in (0..1_000_000).step_by(10_000) {
            let due = schedule.due(now);
            let taken = std::iter::from_fn(|| schedule.take(now)).count();
            assert_eq!(due, taken as u64);
        }
    }

    proptest! {
        #[test]
        fn the_exponential_is_minus_the_logarithm(random: u64) {
            let exact = -((random | 1) as f64 / 2f64.powi(64)).ln();
            let ours = exponential(random) as f64 / 2f64.powi(32);
            prop_assert!((ours - exact).abs() < 2e-7, "{} {}", ours, exact);
        }

        #[test]
        fn moments_never_go_back(rate in 0.001f64..1e9, poisson: bool, seed: u64) {
            let arrival = if poisson { Arrival::Poisson } else { Arrival::Constant };
            let mut schedule = Schedule::open(rate, arrival, 0, 0.0, seed);
            let mut last = 0;
            for _ in 0..100 {
                let moment = schedule.take(u64::MAX).unwrap();
                prop_assert!(moment >= last);
                last = moment;
            }
        }
    }
}
