//! How long to spin before sleeping, learned from how long the sleeps were.
//!
//! Waking a sleeper costs 5 to 20 µs, which is worth spinning for if work comes soon and is a burnt core if it does
//! not. The budget grows while sleeps turn out to be short (spinning a little longer would have caught the
//! work) and falls to nothing while they are long.

/// The longest it pays to spin, ns: a few times what waking up costs.
pub const SPIN_NS_MAX: u64 = 50_000;

/// Where growth starts, ns.
const SPIN_NS_FIRST: u64 = 5_000;

/// The learned spin budget of one waiting thread.
///
/// ```text
/// work found while spinning  ──▶ keep (the budget pays)
/// slept ≤ SPIN_NS_MAX        ──▶ double, up to SPIN_NS_MAX
/// slept longer               ──▶ halve; under SPIN_NS_FIRST it is 0
/// ```
#[derive(Clone, Copy, Debug)]
pub struct SpinBudget {
    budget_ns: u64,
    limit_ns: u64,
}

impl SpinBudget {
    /// A budget that will not pass `limit_ns`; 0 never spins, `u64::MAX` always does.
    #[must_use]
    pub fn new(limit_ns: u64) -> Self {
        let budget_ns = if limit_ns == u64::MAX { u64::MAX } else { limit_ns.min(SPIN_NS_FIRST) };
        Self { budget_ns, limit_ns }
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
        if slept_ns <= self.limit_ns {
            self.budget_ns = (self.budget_ns * 2).clamp(SPIN_NS_FIRST, SPIN_NS_MAX).min(self.limit_ns);
        } else {
            self.budget_ns /= 2;
            if self.budget_ns < SPIN_NS_FIRST {
                self.budget_ns = 0;
            }
        }
    }
}

impl Default for SpinBudget {
    fn default() -> Self {
        Self::new(SPIN_NS_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_sleeps_grow_the_budget_and_long_ones_take_it_away() {
        let mut budget = SpinBudget::default();
        assert!(budget.allows(SPIN_NS_FIRST - 1));
        for _ in 0..10 {
            budget.on_woken(20_000);
        }
        assert!(budget.allows(SPIN_NS_MAX - 1));
        assert!(!budget.allows(SPIN_NS_MAX));
        for _ in 0..10 {
            budget.on_woken(10_000_000);
        }
        assert!(!budget.allows(0), "an idle thread does not spin at all");
        budget.on_woken(1_000);
        assert!(budget.allows(0), "and starts again when work comes often");
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
