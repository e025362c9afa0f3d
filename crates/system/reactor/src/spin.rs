//! The spin budget: how long a thread spins before it sleeps, learned from the lengths of its sleeps.
//!
//! Waking a sleeper has a cost ([`wake_cost_ns`]). Spinning avoids it if work comes soon, and wastes a core if it does
//! not. The budget grows while sleeps are short (a slightly longer spin would have caught the work) and falls to 0
//! while they are long.
//!
//! The longest spin is a few times the cost of waking. With less, two sides that wait for each other fall into a trap:
//! one that was asleep answers late by the time it takes to wake, the other has given up spinning by then, sleeps, and
//! is late in turn.

use std::ops::Range;
use std::str::FromStr;

use crate::wake::{timer_slack_ns, wake_cost_ns};

/// The longest spin that pays, in wakes.
const SPIN_WAKES_MAX: u64 = 6;

/// Bounds of the longest spin, ns, independent of the cost of waking.
const SPIN_NS_BOUNDS: (u64, u64) = (50_000, 1_000_000);

/// First budget above 0, ns.
const SPIN_NS_FIRST: u64 = 5_000;

/// The longest spin that pays on this machine, ns: a few times the cost of waking.
#[must_use]
pub fn spin_ns_max() -> u64 {
    limit_of(wake_cost_ns())
}

fn limit_of(wake_ns: u64) -> u64 {
    wake_ns.saturating_mul(SPIN_WAKES_MAX).clamp(SPIN_NS_BOUNDS.0, SPIN_NS_BOUNDS.1)
}

/// Whether a waiting thread spins before it sleeps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SpinPolicy {
    /// For as long as that has paid recently.
    #[default]
    Auto,
    /// Always: it never sleeps, and burns its core.
    Always,
    /// Never: it sleeps at once.
    Never,
}

impl SpinPolicy {
    /// The longest spin before a sleep, ns; `u64::MAX` for one that never sleeps.
    #[must_use]
    pub fn limit_ns(self) -> u64 {
        match self {
            Self::Auto => spin_ns_max(),
            Self::Always => u64::MAX,
            Self::Never => 0,
        }
    }
}

/// The error for an unknown spin policy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown spin policy {0:?}: write auto, always or never")]
pub struct UnknownSpinPolicy(String);

impl FromStr for SpinPolicy {
    type Err = UnknownSpinPolicy;

    fn from_str(text: &str) -> Result<Self, UnknownSpinPolicy> {
        match text {
            "auto" => Ok(Self::Auto),
            "always" => Ok(Self::Always),
            "never" => Ok(Self::Never),
            _ => Err(UnknownSpinPolicy(text.to_owned())),
        }
    }
}

/// The next action of a thread without work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pause {
    /// It looks for work again.
    Spin,
    /// It sleeps, until there is work or this many nanoseconds are over, and asks again.
    Sleep {
        /// `u64::MAX`: until there is work.
        ns: u64,
    },
}

impl Pause {
    /// Sleep until there is work.
    pub const SLEEP: Self = Self::Sleep { ns: u64::MAX };
}

/// The learned spin budget of one waiting thread, for waits of one kind.
///
/// ```text
/// work found while spinning  ──▶ keep (the budget pays)
/// work came within the limit ──▶ double, up to the limit
/// work came when expected    ──▶ keep what the short waits need
/// work came later            ──▶ halve; under SPIN_NS_FIRST it is 0
/// ```
///
/// Work arrives before the sleeper is awake: the cost of waking is not part of the wait.
///
/// Waits that are longer than the limit but much alike, as those for a device are, are spun at their end: the thread
/// sleeps, wakes a little before the work is expected, and spins while it may come.
#[derive(Clone, Copy, Debug)]
pub struct SpinBudget {
    budget_ns: u64,
    limit_ns: u64,
    wake_ns: u64,
    /// Time that a timer's wake-up takes, ns.
    timer_ns: u64,
    /// Least budget, ns.
    floor_ns: u64,
    /// The longest of the recent short waits, ns: it fades by an eighth with each.
    short_ns: u64,
    /// Forecast from the waits longer than half the limit.
    long: Forecast,
}

impl SpinBudget {
    /// A budget that will not pass `limit_ns`; 0 never spins, `u64::MAX` always does.
    #[must_use]
    pub fn new(limit_ns: u64) -> Self {
        // Delays of a busy machine are no cost of waking.
        let wake_ns = wake_cost_ns().min(SPIN_NS_BOUNDS.1 / SPIN_WAKES_MAX);
        Self::with_costs(limit_ns, wake_ns, wake_ns + timer_slack_ns())
    }

    fn with_costs(limit_ns: u64, wake_ns: u64, timer_ns: u64) -> Self {
        let budget_ns = if limit_ns == u64::MAX { u64::MAX } else { limit_ns.min(SPIN_NS_FIRST) };
        Self { budget_ns, limit_ns, wake_ns, timer_ns, floor_ns: 0, short_ns: 0, long: Forecast::default() }
    }

    /// The same budget, never below `floor_ns`: a thread that polls a device spins for that time in any case.
    #[must_use]
    pub fn with_floor(self, floor_ns: u64) -> Self {
        Self { budget_ns: self.budget_ns.max(floor_ns), floor_ns, ..self }
    }

    /// The next action when the last work was done `idle_ns` ago.
    #[inline]
    #[must_use]
    pub fn pause(&self, idle_ns: u64) -> Pause {
        if idle_ns < self.budget_ns { Pause::Spin } else { self.pause_beyond_budget(idle_ns) }
    }

    fn pause_beyond_budget(&self, idle_ns: u64) -> Pause {
        let Some(window) = self.long.window(self.limit_ns, self.wake_ns) else { return Pause::SLEEP };
        let ns = window.start.saturating_sub(idle_ns.saturating_add(self.timer_ns));
        if idle_ns >= window.end {
            Pause::SLEEP
        } else if ns < self.wake_ns {
            Pause::Spin
        } else {
            Pause::Sleep { ns }
        }
    }

    /// Work has come `waited_ns` after the last, to a thread that was asleep or one that was spinning.
    #[inline]
    pub fn on_work(&mut self, waited_ns: u64, was_asleep: bool) {
        if !was_asleep && waited_ns <= self.limit_ns {
            self.on_short(waited_ns);
        } else if self.limit_ns != u64::MAX {
            self.on_unusual_work(waited_ns.saturating_sub(if was_asleep { self.wake_ns } else { 0 }));
        }
    }

    #[inline]
    fn on_short(&mut self, waited_ns: u64) {
        self.short_ns = waited_ns.max(self.short_ns - self.short_ns / 8);
    }

    /// As [`on_work`](Self::on_work), after a sleep or a long wait.
    fn on_unusual_work(&mut self, waited_ns: u64) {
        let window = self.long.window(self.limit_ns, self.wake_ns);
        if waited_ns > self.limit_ns / 2 {
            self.long.on_wait(waited_ns, self.wake_ns);
        }
        if waited_ns <= self.limit_ns {
            self.on_short(waited_ns);
            self.budget_ns = (self.budget_ns * 2).max(SPIN_NS_FIRST).min(self.limit_ns);
        } else {
            let kept_ns = match window {
                Some(window) if window.contains(&waited_ns) => (self.short_ns * 2).min(self.limit_ns),
                _ => 0,
            };
            self.budget_ns = (self.budget_ns / 2).max(kept_ns);
            if self.budget_ns < SPIN_NS_FIRST {
                self.budget_ns = 0;
            }
        }
        self.budget_ns = self.budget_ns.max(self.floor_ns);
    }
}

impl Default for SpinBudget {
    fn default() -> Self {
        Self::new(spin_ns_max())
    }
}

/// When work is expected, if waits are much alike: their mean and mean deviation, as a TCP timeout has them.
#[derive(Clone, Copy, Debug, Default)]
struct Forecast {
    /// 0: no wait so far.
    mean_ns: u64,
    deviation_ns: u64,
}

/// Longer waits than this are not forecast, in wakes: to wake is a twentieth of them.
const FORECAST_WAKES_MAX: u64 = 20;

impl Forecast {
    fn on_wait(&mut self, waited_ns: u64, wake_ns: u64) {
        // A wait of seconds is soon forgotten.
        let waited_ns = waited_ns.min(wake_ns.saturating_mul(2 * FORECAST_WAKES_MAX));
        if self.mean_ns == 0 {
            (self.mean_ns, self.deviation_ns) = (waited_ns, waited_ns);
            return;
        }
        let error_ns = waited_ns.abs_diff(self.mean_ns);
        self.mean_ns = self.mean_ns - self.mean_ns / 8 + waited_ns / 8;
        self.deviation_ns = self.deviation_ns - self.deviation_ns / 4 + error_ns / 4;
    }

    /// The time span in which work is expected, ns after the last work, no longer than the longest spin; `None` if most
    /// waits would end outside it.
    fn window(&self, limit_ns: u64, wake_ns: u64) -> Option<Range<u64>> {
        let margin_max_ns = limit_ns / 2;
        let margin_ns = (self.deviation_ns * 2).max(wake_ns / 2).min(margin_max_ns);
        let is_near = self.mean_ns > 0 && self.mean_ns <= wake_ns.saturating_mul(FORECAST_WAKES_MAX);
        (is_near && self.deviation_ns <= margin_max_ns)
            .then(|| self.mean_ns.saturating_sub(margin_ns)..self.mean_ns + margin_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WAKE_NS: u64 = 40_000;
    const LIMIT_NS: u64 = 240_000;
    const SLACK_NS: u64 = 50_000;

    fn budget() -> SpinBudget {
        SpinBudget::with_costs(LIMIT_NS, WAKE_NS, WAKE_NS + SLACK_NS)
    }

    /// A wait of `waited_ns` of a thread with this budget: the time it spins, and the time after which it has the work,
    /// ns.
    fn wait(budget: &mut SpinBudget, waited_ns: u64) -> (u64, u64) {
        const STEP_NS: u64 = 1_000;
        let (mut now_ns, mut spun_ns, mut was_asleep) = (0, 0, false);
        while now_ns < waited_ns {
            match budget.pause(now_ns) {
                Pause::Spin => {
                    (now_ns, spun_ns) = (now_ns + STEP_NS, spun_ns + STEP_NS);
                    was_asleep = false;
                }
                Pause::Sleep { ns } => {
                    now_ns = now_ns.saturating_add(ns).saturating_add(SLACK_NS).min(waited_ns) + WAKE_NS;
                    was_asleep = true;
                }
            }
        }
        budget.on_work(now_ns, was_asleep);
        (spun_ns, now_ns)
    }

    #[test]
    fn short_sleeps_grow_the_budget_and_long_ones_take_it_away() {
        let mut budget = budget();
        assert_eq!(budget.pause(SPIN_NS_FIRST - 1), Pause::Spin);
        for _ in 0..10 {
            budget.on_work(20_000 + WAKE_NS, true);
        }
        assert_eq!(budget.pause(LIMIT_NS - 1), Pause::Spin);
        assert_eq!(budget.pause(LIMIT_NS), Pause::SLEEP);
        for _ in 0..10 {
            budget.on_work(10_000_000_000, true);
        }
        assert_eq!(budget.pause(0), Pause::SLEEP, "an idle thread does not spin at all");
        budget.on_work(1_000, true);
        assert_eq!(budget.pause(0), Pause::Spin, "and starts again when work comes often");
    }

    #[test]
    fn what_waking_costs_is_no_part_of_the_wait() {
        let mut late = SpinBudget { budget_ns: 0, ..budget() };
        let mut budget = late;
        budget.on_work(LIMIT_NS + WAKE_NS, true);
        assert_eq!(budget.pause(0), Pause::Spin, "the work was there after {LIMIT_NS} ns");
        late.on_work(LIMIT_NS + WAKE_NS + 1, true);
        assert_eq!(late.pause(0), Pause::SLEEP);
    }

    /// A device that answers after 380 to 420 µs, each time with a few completions that follow each other closely.
    #[test]
    fn long_waits_that_are_alike_are_spun_at_their_end_only() {
        let mut budget = budget();
        let long_ns = |round: u64| 400_000 + (round * 7919 % 40_000) - 20_000;
        for round in 0..100 {
            wait(&mut budget, long_ns(round));
            wait(&mut budget, 8_000);
        }
        for round in 100..200 {
            let (spun_ns, had_ns) = wait(&mut budget, long_ns(round));
            assert!(had_ns < long_ns(round) + 2_000, "it does not wake late: {had_ns}");
            assert!(spun_ns < 160_000, "and sleeps most of the time: {spun_ns}");
            let (_, had_ns) = wait(&mut budget, 8_000);
            assert!(had_ns < 10_000, "short waits between them are spun: {had_ns}");
        }
        for _ in 0..20 {
            wait(&mut budget, 1_000_000_000);
        }
        assert_eq!(wait(&mut budget, 1_000_000_000), (0, 1_000_000_000 + WAKE_NS), "idle again");
    }

    /// Arrivals by chance, a millisecond apart on average: a spin would have to be long, and save little.
    #[test]
    fn long_waits_that_are_not_alike_are_slept() {
        let (mut budget, mut spun_ns, mut all_ns, mut state) = (budget(), 0, 0, 1_u64);
        for _ in 0..10_000 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let uniform = (state >> 11) as f64 / (1_u64 << 53) as f64;
            let waited_ns = (-(1.0 - uniform).ln() * 1e6) as u64;
            spun_ns += wait(&mut budget, waited_ns).0;
            all_ns += waited_ns;
        }
        assert!(spun_ns * 20 < all_ns, "{spun_ns} of {all_ns}");
    }

    #[test]
    fn the_limit_is_a_few_wakes_within_reason() {
        assert_eq!(limit_of(5_000), 50_000);
        assert_eq!(limit_of(30_000), 180_000);
        assert_eq!(limit_of(u64::MAX), 1_000_000);
    }

    #[test]
    fn a_floor_is_kept_whatever_the_sleeps_were() {
        let mut budget = SpinBudget::new(0).with_floor(80_000);
        for slept_ns in [1_000, 10_000_000, 10_000_000, 1_000] {
            assert_eq!(budget.pause(79_999), Pause::Spin);
            assert_ne!(budget.pause(80_000), Pause::Spin);
            budget.on_work(slept_ns, true);
        }
    }

    #[test]
    fn policies_are_read_and_limit_the_spin() {
        let limit_ns = |text: &str| text.parse().map(SpinPolicy::limit_ns);
        assert_eq!(limit_ns("never"), Ok(0));
        assert_eq!(limit_ns("always"), Ok(u64::MAX));
        assert_eq!(limit_ns("auto"), Ok(spin_ns_max()));
        assert!(limit_ns("sometimes").unwrap_err().to_string().contains("auto, always or never"));
    }

    #[test]
    fn the_limit_says_never_or_always() {
        let mut never = SpinBudget::with_costs(0, WAKE_NS, WAKE_NS);
        let mut always = SpinBudget::with_costs(u64::MAX, WAKE_NS, WAKE_NS);
        for _ in 0..20 {
            assert_eq!(wait(&mut never, 400_000), (0, 400_000 + WAKE_NS));
            assert_eq!(wait(&mut always, 400_000), (400_000, 400_000));
        }
    }
}
