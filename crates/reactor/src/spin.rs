//! The spin budget: how long a thread spins before it sleeps, learned from the lengths of its sleeps.
//!
//! Waking a sleeper has a cost ([`wake_cost_ns`]). Spinning avoids it if work comes soon, and wastes a core if it does
//! not. The budget grows while sleeps are short (a slightly longer spin would have caught the work) and falls to 0
//! while they are long.
//!
//! The longest spin is a few times the cost of waking. With less, two sides that wait for each other fall into a trap:
//! one that was asleep answers late by the time it takes to wake, the other has given up spinning by then, sleeps, and
//! is late in turn.

use std::str::FromStr;

use crate::wake::wake_cost_ns;

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

/// The learned spin budget of one waiting thread.
///
/// ```text
/// work found while spinning  ──▶ keep (the budget pays)
/// work came within the limit ──▶ double, up to the limit
/// work came later            ──▶ halve; under SPIN_NS_FIRST it is 0
/// ```
///
/// Work came before the sleeper was awake: what waking costs is no part of the wait.
#[derive(Clone, Copy, Debug)]
pub struct SpinBudget {
    budget_ns: u64,
    limit_ns: u64,
    wake_ns: u64,
    /// Least budget, ns.
    floor_ns: u64,
}

impl SpinBudget {
    /// A budget that will not pass `limit_ns`; 0 never spins, `u64::MAX` always does.
    #[must_use]
    pub fn new(limit_ns: u64) -> Self {
        let budget_ns = if limit_ns == u64::MAX { u64::MAX } else { limit_ns.min(SPIN_NS_FIRST) };
        Self { budget_ns, limit_ns, floor_ns: 0, wake_ns: wake_cost_ns() }
    }

    /// The same budget, never below `floor_ns`: a thread that polls a device spins for that time in any case.
    #[must_use]
    pub fn with_floor(self, floor_ns: u64) -> Self {
        Self { budget_ns: self.budget_ns.max(floor_ns), floor_ns, ..self }
    }

    /// Whether to go on spinning when the last work was done `idle_ns` ago.
    #[inline]
    #[must_use]
    pub fn allows(&self, idle_ns: u64) -> bool {
        idle_ns < self.budget_ns
    }

    /// A sleep of `slept_ns` has ended with work to do.
    pub fn on_woken(&mut self, slept_ns: u64) {
        if self.limit_ns == u64::MAX {
            return;
        }
        if slept_ns.saturating_sub(self.wake_ns) <= self.limit_ns {
            self.budget_ns = (self.budget_ns * 2).max(SPIN_NS_FIRST).min(self.limit_ns);
        } else {
            self.budget_ns /= 2;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_sleeps_grow_the_budget_and_long_ones_take_it_away() {
        let limit_ns = 50_000;
        let mut budget = SpinBudget::new(limit_ns);
        assert!(budget.allows(SPIN_NS_FIRST - 1));
        for _ in 0..10 {
            budget.on_woken(20_000);
        }
        assert!(budget.allows(limit_ns - 1));
        assert!(!budget.allows(limit_ns));
        for _ in 0..10 {
            budget.on_woken(10_000_000_000);
        }
        assert!(!budget.allows(0), "an idle thread does not spin at all");
        budget.on_woken(1_000);
        assert!(budget.allows(0), "and starts again when work comes often");
    }

    #[test]
    fn what_waking_costs_is_no_part_of_the_wait() {
        let limit_ns = 50_000;
        let mut budget = SpinBudget { budget_ns: 0, limit_ns, floor_ns: 0, wake_ns: 80_000 };
        budget.on_woken(limit_ns + 80_000);
        assert!(budget.allows(0), "the work was there after {limit_ns} ns");
        let mut late = SpinBudget { budget_ns: 0, limit_ns, floor_ns: 0, wake_ns: 80_000 };
        late.on_woken(limit_ns + 80_001);
        assert!(!late.allows(0));
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
            assert!(budget.allows(79_999) && !budget.allows(80_000));
            budget.on_woken(slept_ns);
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
        let mut never = SpinBudget::new(0);
        never.on_woken(1);
        assert!(!never.allows(0));
        let mut always = SpinBudget::new(u64::MAX);
        always.on_woken(u64::MAX);
        assert!(always.allows(u64::MAX - 1));
    }
}
