//! The token bucket of rates: start times at even spacing, with a burst.

/// Start times in fractions of a ns, so that rounding does not reduce the rate.
const FRACTION_BITS: u32 = 20;

/// One limited quantity. Each amount reserves its start time when it comes, after all before it.
#[derive(Clone, Copy, Debug)]
pub struct Rate {
    per_s: u64,
    /// The next start time at even spacing.
    next: u128,
}

impl Rate {
    /// A rate with its whole burst at hand; 0 per second counts as 1.
    #[must_use]
    pub fn new(per_s: u64) -> Self {
        Self { per_s: per_s.max(1), next: 0 }
    }

    /// The rate, per second.
    #[must_use]
    pub fn per_s(&self) -> u64 {
        self.per_s
    }

    /// Reserves a start time for `amount`, ns. It may precede an even spacing by at most the burst, which accumulates
    /// while nothing is reserved.
    pub fn take(&mut self, now_ns: u64, burst_ns: u64, amount: u64) -> u64 {
        let even = self.next.max(u128::from(now_ns) << FRACTION_BITS);
        let amount_s = u128::from(amount) << FRACTION_BITS;
        let spacing = amount_s.saturating_mul(1_000_000_000) / u128::from(self.per_s);
        self.next = even.saturating_add(spacing);
        u64::try_from(even.div_ceil(1 << FRACTION_BITS)).unwrap_or(u64::MAX).saturating_sub(burst_ns)
    }
}
