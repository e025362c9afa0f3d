//! The accept pace of a reactor: a flood of connections leaves it time for those it has.

/// Connections accepted at once after a time without any.
const ACCEPT_BURST: u32 = 256;

/// The pace at which connections are accepted: even, but for a burst after a pause.
pub(crate) struct AcceptPace {
    interval_ns: u64,
    /// Time up to which the pace is used up by the connections accepted so far, ns.
    due_ns: u64,
}

impl AcceptPace {
    pub(crate) fn new(per_s: u32) -> Self {
        Self { interval_ns: 1_000_000_000 / u64::from(per_s.max(1)), due_ns: 0 }
    }

    /// Checks whether a connection may be accepted.
    ///
    /// # Errors
    /// The time from which it may be, ns.
    pub(crate) fn check(&self, now_ns: u64) -> Result<(), u64> {
        let at_ns = self.due_ns.saturating_sub(self.interval_ns * u64::from(ACCEPT_BURST));
        if at_ns <= now_ns { Ok(()) } else { Err(at_ns) }
    }

    pub(crate) fn on_accepted(&mut self, now_ns: u64) {
        self.due_ns = self.due_ns.max(now_ns) + self.interval_ns;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn after_a_burst_connections_are_accepted_evenly() {
        let mut pace = AcceptPace::new(1000);
        let now_ns = 5_000_000_000;
        for _ in 0..=ACCEPT_BURST {
            assert_eq!(pace.check(now_ns), Ok(()));
            pace.on_accepted(now_ns);
        }
        assert_eq!(pace.check(now_ns), Err(now_ns + 1_000_000));
        assert_eq!(pace.check(now_ns + 1_000_000), Ok(()));
    }
}
