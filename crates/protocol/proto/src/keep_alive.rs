//! The keep-alive timer of an association. wire §9

/// Granularity of the timer, ms: the KAS that Identify reports. Linux refuses 0.
pub const GRANULARITY_MS: u32 = 1000;

/// Time that a host may be late beyond its timeout, ms: it may be busy connecting many queues at once.
const GRACE_MS: u64 = 2000;

/// Watches that a host is alive. Any command on any of its queues counts as a sign of life (traffic based).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeepAlive {
    timeout_ms: u32,
    last_sign_ns: u64,
}

impl KeepAlive {
    /// A timer that starts now; 0 ms never expires. Others are rounded up to the granularity.
    #[must_use]
    pub fn new(timeout_ms: u32, now_ns: u64) -> Self {
        Self { timeout_ms: round_up(timeout_ms), last_sign_ns: now_ns }
    }

    /// Another timeout, from now on.
    pub fn set_timeout(&mut self, timeout_ms: u32, now_ns: u64) {
        *self = Self::new(timeout_ms, now_ns);
    }

    /// The timeout in use, ms; 0 if there is none.
    #[must_use]
    pub fn timeout_ms(&self) -> u32 {
        self.timeout_ms
    }

    /// The host gave a sign of life at `at_ns`.
    pub fn on_sign(&mut self, at_ns: u64) {
        self.last_sign_ns = self.last_sign_ns.max(at_ns);
    }

    /// When the association expires if no further sign comes, ns; `None` without a timeout.
    #[must_use]
    pub fn deadline_ns(&self) -> Option<u64> {
        let wait_ms = u64::from(self.timeout_ms).saturating_add(GRACE_MS);
        (self.timeout_ms > 0).then(|| self.last_sign_ns.saturating_add(wait_ms.saturating_mul(1_000_000)))
    }

    /// Whether the host has been silent for too long.
    #[must_use]
    pub fn is_expired(&self, now_ns: u64) -> bool {
        self.deadline_ns().is_some_and(|deadline_ns| now_ns >= deadline_ns)
    }
}

fn round_up(timeout_ms: u32) -> u32 {
    timeout_ms.checked_next_multiple_of(GRANULARITY_MS).unwrap_or(u32::MAX - u32::MAX % GRANULARITY_MS)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND_NS: u64 = 1_000_000_000;

    #[test]
    fn silence_expires_and_a_sign_of_life_does_not() {
        let mut keep_alive = KeepAlive::new(5000, SECOND_NS);
        assert!(!keep_alive.is_expired(6 * SECOND_NS), "a host may be a little late");
        keep_alive.on_sign(6 * SECOND_NS);
        keep_alive.on_sign(3 * SECOND_NS);
        assert_eq!(keep_alive.deadline_ns(), Some(13 * SECOND_NS));
        assert!(keep_alive.is_expired(13 * SECOND_NS));
    }

    #[test]
    fn timeouts_are_rounded_up_and_zero_means_never() {
        assert_eq!(KeepAlive::new(0, 0).deadline_ns(), None);
        assert_eq!(KeepAlive::new(1, 0).timeout_ms(), 1000);
        assert_eq!(KeepAlive::new(15_000, 0).timeout_ms(), 15_000);
        let longest = KeepAlive::new(u32::MAX, u64::MAX - 1);
        assert!(longest.timeout_ms() > u32::MAX - 1000 && !longest.is_expired(0));
    }
}
