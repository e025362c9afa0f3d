//! The clock of a partition: Unix time mapped to the 32 bits of an item's expiry.

/// The clock of a partition, in seconds counted from its own base; no second is 0.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    /// Unix time of second 0, s.
    base_s: i64,
    pub(crate) now_s: u32,
}

impl Clock {
    /// The expiry of pairs that expire at once: it has passed before anything is stored.
    pub const EXPIRED_S: u32 = 1;
    /// The second at which it starts.
    pub(crate) const FIRST_S: u32 = Self::EXPIRED_S + 1;

    /// A clock that starts at a moment in Unix time, s.
    #[must_use]
    pub fn at(unix_s: i64) -> Self {
        let now_s = Self::FIRST_S;
        Self { base_s: unix_s - i64::from(now_s), now_s }
    }

    /// Sets the time, Unix time in seconds. It never goes back.
    #[inline]
    pub fn set(&mut self, unix_s: i64) {
        self.now_s = u32::try_from(unix_s - self.base_s).unwrap_or(0).max(self.now_s);
    }

    /// The current second of the partition's clock.
    #[inline]
    #[must_use]
    pub fn now_s(&self) -> u32 {
        self.now_s
    }

    /// Seconds since the start.
    #[must_use]
    pub fn uptime_s(&self) -> u32 {
        self.now_s - Self::FIRST_S
    }

    /// Unix time, s.
    #[must_use]
    pub fn unix_s(&self) -> i64 {
        self.base_s + i64::from(self.now_s)
    }

    /// Unix time of second 0, s.
    #[must_use]
    pub fn base_s(&self) -> i64 {
        self.base_s
    }

    /// Whether this expiry has passed; 0 means no expiry.
    #[inline(always)]
    pub(crate) fn has_passed(&self, expiry_s: u32) -> bool {
        expiry_s != 0 && expiry_s <= self.now_s
    }
}
