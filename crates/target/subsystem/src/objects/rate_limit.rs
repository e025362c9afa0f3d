//! Rate limits of a namespace or of a host: what a configuration says, and the rates that all reactors share.
// Input from a host must never cause a panic: see docs/testing.md.
#![cfg_attr(
    not(test),
    deny(
        clippy::arithmetic_side_effects,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::unwrap_used
    )
)]

use std::fmt;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use serde::Serialize;
use store::{Rate, Size};

/// Rate limits, for the whole target; none by default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RateLimits {
    /// Operations per second.
    pub iops: Option<u64>,
    /// Of these, reads.
    pub read_iops: Option<u64>,
    /// Of these, writes.
    pub write_iops: Option<u64>,
    /// Bytes read and written per second.
    pub bytes_per_s: Option<u64>,
    /// Of these, bytes read.
    pub read_bytes_per_s: Option<u64>,
    /// Of these, bytes written.
    pub write_bytes_per_s: Option<u64>,
    /// The time whose allowance may be used at once after a pause, ms.
    pub burst_ms: Option<u32>,
    /// Operations per second that are served while it has commands, before those of others.
    pub min_iops: Option<u64>,
}

/// Quantities that have a rate of their own.
pub(crate) const QUANTITY_COUNT: usize = 6;

/// The quantities that reads and writes have together.
pub(crate) const OPERATIONS: usize = 0;
pub(crate) const BYTES: usize = 3;

/// The burst where none is configured, ms.
pub const BURST_MS_DEFAULT: u32 = 10;

impl RateLimits {
    /// The keys of the configuration, each with its value.
    #[must_use]
    pub fn keys(&self) -> [(&'static str, Option<u64>); 8] {
        [
            ("iops", self.iops),
            ("read_iops", self.read_iops),
            ("write_iops", self.write_iops),
            ("bytes_per_s", self.bytes_per_s),
            ("read_bytes_per_s", self.read_bytes_per_s),
            ("write_bytes_per_s", self.write_bytes_per_s),
            ("burst_ms", self.burst_ms.map(u64::from)),
            ("min_iops", self.min_iops),
        ]
    }

    /// Whether a key has a number of bytes.
    #[must_use]
    pub fn is_size(key: &str) -> bool {
        key.ends_with("bytes_per_s")
    }

    /// Whether nothing is limited, and nothing is guaranteed.
    #[must_use]
    pub fn is_none(&self) -> bool {
        self.keys().iter().all(|(key, value)| *key == "burst_ms" || value.is_none())
    }

    /// The rates, by quantity.
    fn rates(&self) -> [Option<u64>; QUANTITY_COUNT] {
        [
            self.iops,
            self.read_iops,
            self.write_iops,
            self.bytes_per_s,
            self.read_bytes_per_s,
            self.write_bytes_per_s,
        ]
    }
}

impl fmt::Display for RateLimits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut is_first = true;
        for (key, value) in self.keys() {
            let Some(value) = value else { continue };
            let comma = if std::mem::take(&mut is_first) { "" } else { ", " };
            match Self::is_size(key) {
                true => write!(f, "{comma}{key} {}", Size(value))?,
                false => write!(f, "{comma}{key} {value}")?,
            }
        }
        if is_first { f.write_str("none") } else { Ok(()) }
    }
}

/// What a command takes of the rates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Work {
    pub(crate) is_write: bool,
    pub(crate) operations: u64,
    pub(crate) bytes: u64,
}

impl Work {
    /// The amounts, by quantity.
    pub(crate) fn amounts(self) -> [u64; QUANTITY_COUNT] {
        let Self { is_write, operations, bytes } = self;
        let split = |amount| if is_write { [amount, 0, amount] } else { [amount, amount, 0] };
        let ([a, b, c], [d, e, f]) = (split(operations), split(bytes));
        [a, b, c, d, e, f]
    }
}

/// How far commands without a guaranteed rate stand back, on all reactors of a target.
#[derive(Debug, Default)]
pub struct Pressure {
    /// 0 for not at all.
    level: AtomicU32,
    changed_ns: AtomicU64,
}

/// The highest pressure: one command at a time on each reactor.
const LEVEL_MAX: u32 = 9;

impl Pressure {
    /// The number of their commands that a reactor has under way at a time.
    pub(crate) fn window(&self) -> u32 {
        match self.level.load(Ordering::Relaxed).min(LEVEL_MAX) {
            0 => u32::MAX,
            level => (1u32 << LEVEL_MAX) >> level,
        }
    }

    /// Raises it by some steps, unless it was changed within `period_ns`.
    pub(crate) fn raise(&self, now_ns: u64, steps: u32, period_ns: u64) {
        if self.may_change(now_ns, period_ns) {
            let level = self.level.load(Ordering::Relaxed);
            self.level.store(level.saturating_add(steps).min(LEVEL_MAX), Ordering::Relaxed);
        }
    }

    /// Lowers it by a step, unless it was changed within `hold_ns`.
    pub(crate) fn relax(&self, now_ns: u64, hold_ns: u64) {
        let level = self.level.load(Ordering::Relaxed);
        if level > 0 && self.may_change(now_ns, hold_ns) {
            self.level.store(level.saturating_sub(1), Ordering::Relaxed);
        }
    }

    /// One reactor at a time changes it.
    fn may_change(&self, now_ns: u64, after_ns: u64) -> bool {
        let changed_ns = self.changed_ns.load(Ordering::Relaxed);
        now_ns >= changed_ns.saturating_add(after_ns)
            && self
                .changed_ns
                .compare_exchange(changed_ns, now_ns, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok()
    }
}

/// The limits of one namespace or host, and their rates. A change of the limits replaces it.
#[derive(Debug)]
pub struct Meter {
    /// The limits.
    pub limits: RateLimits,
    per_s: [Option<u64>; QUANTITY_COUNT],
    /// By quantity. Reactors take lots from them, each long before the next.
    rates: [Option<Mutex<Rate>>; QUANTITY_COUNT],
}

/// By the limits.
impl PartialEq for Meter {
    fn eq(&self, other: &Self) -> bool {
        self.limits == other.limits
    }
}

impl Eq for Meter {}

impl Meter {
    /// The meter of these limits; `None` if there are none.
    #[must_use]
    pub fn new(limits: RateLimits) -> Option<Arc<Self>> {
        let rates = limits.rates().map(|per_s| per_s.map(|per_s| Mutex::new(Rate::new(per_s))));
        (!limits.is_none()).then(|| Arc::new(Self { limits, per_s: limits.rates(), rates }))
    }

    /// A meter that limits nothing.
    pub(crate) fn unlimited() -> Self {
        Self { limits: RateLimits::default(), per_s: <_>::default(), rates: <_>::default() }
    }

    /// The meter of these limits: the one before if they have not changed.
    pub(crate) fn renewed(before: Option<&Arc<Self>>, limits: RateLimits) -> Option<Arc<Self>> {
        match before {
            Some(before) if before.limits == limits => Some(Arc::clone(before)),
            _ => Self::new(limits),
        }
    }

    /// The time whose allowance may be used at once, ns.
    pub(crate) fn burst_ns(&self) -> u64 {
        u64::from(self.limits.burst_ms.unwrap_or(BURST_MS_DEFAULT)).saturating_mul(1_000_000)
    }

    /// The rate of a quantity, per second.
    pub(crate) fn per_s(&self, quantity: usize) -> Option<u64> {
        self.per_s.get(quantity).copied().flatten()
    }

    /// Reserves a lot of a quantity. Returns the time from which it may be used, ns.
    pub(crate) fn reserve(&self, quantity: usize, now_ns: u64, lot: u64) -> u64 {
        let Some(Some(rate)) = self.rates.get(quantity) else { return now_ns };
        rate.lock().unwrap_or_else(PoisonError::into_inner).take(now_ns, self.burst_ns(), lot)
    }
}
