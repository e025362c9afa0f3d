//! One wait of a thread for work: its pauses, and what the spin budget learns from it.

use crate::spin::{Pause, SpinBudget};

/// A wait of a thread for work, from the last work on.
#[derive(Clone, Copy, Debug)]
pub struct Wait {
    since_ns: u64,
    /// The last pause before the thread looked for work again; `None` if it made none yet.
    last: Option<Pause>,
    has_slept: bool,
}

impl Wait {
    /// A wait of a thread whose last work was at `since_ns`.
    #[inline]
    #[must_use]
    pub fn new(since_ns: u64) -> Self {
        Self { since_ns, last: None, has_slept: false }
    }

    /// The time without work, ns.
    #[inline]
    #[must_use]
    pub fn idle_ns(&self, now_ns: u64) -> u64 {
        now_ns.saturating_sub(self.since_ns)
    }

    /// Whether the thread has slept in it.
    #[inline]
    #[must_use]
    pub fn has_slept(&self) -> bool {
        self.has_slept
    }

    /// Records the pause that the thread makes next, and returns it.
    #[inline]
    pub fn on_pause(&mut self, pause: Pause) -> Pause {
        self.last = Some(pause);
        self.has_slept |= pause != Pause::Spin;
        pause
    }

    /// There is work; the budget learns from the wait, if it was one.
    #[inline]
    pub fn on_work(self, now_ns: u64, budget: &mut SpinBudget) {
        if let Some(last) = self.last {
            budget.on_work(self.idle_ns(now_ns), last != Pause::Spin);
        }
    }
}
