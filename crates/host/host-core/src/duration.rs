//! Durations as the numbers that the machines count in.

use std::time::Duration;

/// A duration in ns, limited to 64 bits.
#[must_use]
pub fn ns(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// A duration in ms, limited to 32 bits; a duration above zero gives at least 1.
#[must_use]
pub fn ms(duration: Duration) -> u32 {
    let ms = u32::try_from(duration.as_millis()).unwrap_or(u32::MAX);
    if ms == 0 && !duration.is_zero() { 1 } else { ms }
}
