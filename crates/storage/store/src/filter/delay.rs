//! The delay filter: requests wait for a fixed or random time before they start.

use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicU64, Ordering};

use linux::random::SplitMix64;

use super::{Gate, Kind, Setting};
use crate::namespace::{Backend, Request, StoreIo, Ticket};
use crate::tickets::Tickets;

/// Settings of the delay filter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delay {
    /// The kind of requests to delay; all if `None`.
    pub kind: Option<Kind>,
    /// Delay, us: uniformly distributed over this range.
    pub wait_us: RangeInclusive<u64>,
}

pub(super) struct Shared {
    delay: Delay,
    gate_count: AtomicU64,
}

pub(super) struct Waits {
    delay: Delay,
    seed: u64,
    count: u64,
    kept: Tickets<Request>,
}

impl Shared {
    pub(super) fn new(delay: Delay) -> Self {
        Self { delay, gate_count: AtomicU64::new(0) }
    }
}

impl Setting for Shared {
    type Gate = Waits;

    fn gate(&self) -> Waits {
        let seed = SplitMix64::nth(0, self.gate_count.fetch_add(1, Ordering::Relaxed));
        Waits { delay: self.delay.clone(), seed, count: 0, kept: Tickets::default() }
    }
}

impl Gate for Waits {
    fn on_start(&mut self, below: &mut dyn Backend, io: &mut dyn StoreIo, ticket: Ticket, request: Request) {
        if self.delay.kind.is_some_and(|kind| kind != Kind::of(&request)) {
            return below.start(io, ticket, request);
        }
        let (from, to) = (*self.delay.wait_us.start(), *self.delay.wait_us.end());
        self.count += 1;
        let width = to.saturating_sub(from).saturating_add(1);
        let wait_us = from + SplitMix64::nth(self.seed, self.count) % width;
        self.kept.insert(ticket, request);
        // The turn may have begun long before.
        io.set_timer(io.clock_ns().saturating_add(wait_us.saturating_mul(1000)), ticket);
    }

    fn kept(&mut self, ticket: Ticket) -> Option<Request> {
        self.kept.remove(&ticket)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::block::NullStore;
    use crate::filter::Filter;
    use crate::testing::{Double, Media, Step};

    fn delayed(kind: Option<Kind>, wait_us: RangeInclusive<u64>) -> Double {
        let null = Arc::new(NullStore::new(1 << 20, 4096, false).unwrap());
        Double::attach(&*Filter::Delay(Delay { kind, wait_us }).over(null), &Media::new(0))
    }

    const READ: Step = Step::Read { offset: 0, length: 4096 };

    #[test]
    fn a_request_waits_as_long_as_told_and_not_longer() {
        let mut double = delayed(Some(Kind::Read), 100..=100);
        let (read, flush) = (double.start(READ), double.start(Step::Flush));
        assert!(double.outcomes.contains_key(&flush), "only reads wait");
        double.pass(99_999);
        assert!(!double.outcomes.contains_key(&read));
        double.pass(1);
        assert_eq!(double.outcomes[&read], Ok(vec![0; 4096]));
        double.settle();
    }

    #[test]
    fn a_long_turn_is_no_part_of_the_wait() {
        let mut double = delayed(None, 100..=100);
        double.io.turn_ns = 99_000;
        let read = double.start(READ);
        double.io.turn_ns = 0;
        double.pass(198_999);
        assert!(!double.outcomes.contains_key(&read));
        double.pass(1);
        assert!(double.outcomes.contains_key(&read));
    }

    #[test]
    fn random_waits_spread_over_the_whole_range() {
        let mut double = delayed(None, 10..=20);
        let tickets: Vec<_> = (0..1000).map(|_| double.start(Step::Flush)).collect();
        double.pass(9_999);
        assert!(double.outcomes.is_empty(), "none comes early");
        let mut before = 0;
        for _ in 10..=20 {
            double.pass(if before == 0 { 1 } else { 1000 });
            let count = double.outcomes.len();
            assert!((50..140).contains(&(count - before)), "{} ended in one microsecond", count - before);
            before = count;
        }
        assert_eq!(before, tickets.len());
    }

    #[test]
    fn a_request_that_waits_can_be_withdrawn() {
        let null = Arc::new(NullStore::new(1 << 20, 4096, false).unwrap());
        let delay = Filter::Delay(Delay { kind: Some(Kind::Read), wait_us: 5..=5 });
        let store =
            Filter::Delay(Delay { kind: None, wait_us: 7..=7 }).over(Filter::Trace.over(delay.over(null)));
        let mut double = Double::attach(&*store, &Media::new(0));
        // One that waits above, one that has come to wait below, and one that has ended.
        let mut started = Vec::new();
        for step in [READ, Step::Flush] {
            started.push(double.start(step));
        }
        double.pass(7_000);
        started.push(double.start(READ));
        assert!(double.outcomes.contains_key(&started[1]));
        let withdrawn: Vec<_> =
            started.iter().map(|&ticket| double.backend.withdraw(ticket).is_some()).collect();
        assert_eq!(withdrawn, [true, false, true]);
        assert!(started.iter().all(|&ticket| double.backend.withdraw(ticket).is_none()));
    }

    #[test]
    fn delays_add_up() {
        let null = Arc::new(NullStore::new(1 << 20, 4096, false).unwrap());
        let delay = |wait_us| Filter::Delay(Delay { kind: None, wait_us: wait_us..=wait_us });
        let mut double = Double::attach(&*delay(5).over(delay(7).over(null)), &Media::new(0));
        let ticket = double.start(READ);
        double.pass(5_000);
        double.pass(6_999);
        assert!(!double.outcomes.contains_key(&ticket));
        double.pass(1);
        assert!(double.outcomes.contains_key(&ticket));
    }
}
