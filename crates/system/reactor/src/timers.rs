//! Deadlines of a reactor, earliest first.
//!
//! A timer is never cancelled: its owner knows from its own state whether an expired deadline still has a meaning.
//! Deadlines that move often (keep-alive, PDUs) are therefore checked when their timer expires, which is then set again
//! for the rest of the time.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::operation::Token;

/// Pending deadlines.
#[derive(Debug, Default)]
pub struct Timers {
    heap: BinaryHeap<Reverse<(u64, Token)>>,
}

impl Timers {
    /// Sets a timer that expires with `token` at `deadline_ns`.
    pub fn set(&mut self, deadline_ns: u64, token: Token) {
        self.heap.push(Reverse((deadline_ns, token)));
    }

    /// Time at which the next one expires, ns.
    #[inline]
    #[must_use]
    pub fn next_deadline_ns(&self) -> Option<u64> {
        self.heap.peek().map(|Reverse((deadline_ns, _))| *deadline_ns)
    }

    /// Takes an expired one.
    #[inline]
    pub fn next_due(&mut self, now_ns: u64) -> Option<Token> {
        if self.next_deadline_ns()? > now_ns {
            return None;
        }
        self.heap.pop().map(|Reverse((_, token))| token)
    }

    /// Pending deadlines.
    #[must_use]
    pub fn len(&self) -> usize {
        self.heap.len()
    }

    /// Whether none is pending.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.heap.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timers_ring_in_order_and_never_early() {
        let mut timers = Timers::default();
        for (deadline, token) in [(30, 3), (10, 1), (20, 2)] {
            timers.set(deadline, token);
        }
        assert_eq!(timers.next_due(9), None);
        assert_eq!(timers.next_due(25), Some(1));
        assert_eq!(timers.next_due(25), Some(2));
        assert_eq!(timers.next_due(25), None);
        assert_eq!(timers.next_deadline_ns(), Some(30));
        assert_eq!(timers.next_due(u64::MAX), Some(3));
        assert!(timers.is_empty());
    }
}
