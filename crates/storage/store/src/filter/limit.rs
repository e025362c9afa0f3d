//! The limit filter: bounds operations and bytes per second over all reactors together, in order of arrival.
//!
//! Each request reserves its start time on arrival, after all before it. That time may precede an even spacing by at
//! most the burst, which an idle namespace accumulates.

use std::sync::{Arc, Mutex, PoisonError};

use super::{Gate, Setting};
use crate::namespace::{Backend, Request, StoreIo, Ticket};
use crate::rate::Rate;
use crate::tickets::Tickets;

/// Settings of the limit filter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limit {
    /// Requests per second, of all kinds. Not 0.
    pub operations_per_s: Option<u64>,
    /// Bytes read and written per second. Not 0.
    pub bytes_per_s: Option<u64>,
    /// Burst: the time whose allowance may be used at once after a pause, us.
    pub burst_us: u64,
}

impl Limit {
    /// Default burst, us.
    pub const BURST_US_DEFAULT: u64 = 10_000;
}

struct Bucket {
    operations: Option<Rate>,
    bytes: Option<Rate>,
    burst_ns: u64,
}

#[derive(Clone)]
pub(super) struct Shared {
    bucket: Arc<Mutex<Bucket>>,
}

pub(super) struct Queue {
    bucket: Arc<Mutex<Bucket>>,
    kept: Tickets<Request>,
    /// Start of the last one: timers for the same moment would fire in any order.
    last_ns: u64,
}

impl Bucket {
    /// The start time of a request, ns.
    fn take(&mut self, now_ns: u64, byte_count: u64) -> u64 {
        let burst_ns = self.burst_ns;
        let by_operations = self.operations.as_mut().map(|rate| rate.take(now_ns, burst_ns, 1));
        let by_bytes = self.bytes.as_mut().map(|rate| rate.take(now_ns, burst_ns, byte_count));
        by_operations.max(by_bytes).unwrap_or(0).max(now_ns)
    }
}

impl Shared {
    pub(super) fn new(limit: &Limit) -> Self {
        let bucket = Bucket {
            operations: limit.operations_per_s.map(Rate::new),
            bytes: limit.bytes_per_s.map(Rate::new),
            burst_ns: limit.burst_us.saturating_mul(1000),
        };
        Self { bucket: Arc::new(Mutex::new(bucket)) }
    }
}

impl Setting for Shared {
    type Gate = Queue;

    fn gate(&self) -> Queue {
        Queue { bucket: Arc::clone(&self.bucket), kept: Tickets::default(), last_ns: 0 }
    }
}

impl Gate for Queue {
    fn on_start(&mut self, below: &mut dyn Backend, io: &mut dyn StoreIo, ticket: Ticket, request: Request) {
        let byte_count = match &request {
            Request::Read { buffer, .. } | Request::Write { buffer, .. } => buffer.len() as u64,
            _ => 0,
        };
        let now_ns = io.now_ns();
        let start_ns = self.bucket.lock().unwrap_or_else(PoisonError::into_inner).take(now_ns, byte_count);
        if start_ns <= now_ns && self.kept.is_empty() {
            return below.start(io, ticket, request);
        }
        self.last_ns = start_ns.max(self.last_ns.saturating_add(1));
        self.kept.insert(ticket, request);
        io.set_timer(self.last_ns, ticket);
    }

    fn kept(&mut self, ticket: Ticket) -> Option<Request> {
        self.kept.remove(&ticket)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block::NullStore;
    use crate::filter::Filter;
    use crate::testing::{Double, Media, Step};

    fn limited(limit: Limit) -> [Double; 2] {
        let null = Arc::new(NullStore::new(1 << 30, 512, false).unwrap());
        let store = Filter::Limit(limit).over(null);
        let place = Media::new(0);
        [Double::attach(&*store, &place), Double::attach(&*store, &place)]
    }

    fn read(length: usize) -> Step {
        Step::Read { offset: 0, length }
    }

    #[test]
    fn operations_are_evenly_spaced_in_the_order_they_came() {
        let limit = Limit { operations_per_s: Some(3000), bytes_per_s: None, burst_us: 0 };
        let [mut double, _] = limited(limit);
        let tickets: Vec<_> = (0..3001).map(|_| double.start(read(512))).collect();
        for ended in 1..=3001_usize {
            assert_eq!(double.outcomes.len(), ended);
            assert!(
                tickets[..ended].iter().all(|ticket| double.outcomes.contains_key(ticket)),
                "out of order"
            );
            let next_ns = ended as u64 * 1_000_000_000 / 3000;
            double.pass((next_ns - 1).saturating_sub(double.io.now_ns));
            assert_eq!(double.outcomes.len(), ended, "before its time");
            double.pass(2);
        }
        assert_eq!(double.io.now_ns / 1_000_000, 1000);
    }

    #[test]
    fn what_a_pause_has_saved_may_pass_at_once() {
        let limit = Limit { operations_per_s: Some(1000), bytes_per_s: None, burst_us: 9_000 };
        let [mut double, _] = limited(limit);
        let start = |double: &mut Double| {
            for _ in 0..50 {
                double.start(read(512));
            }
            double.pass(0);
            double.outcomes.len()
        };
        assert_eq!(start(&mut double), 10, "one, and what nine milliseconds allow");
        double.settle();
        double.outcomes.clear();
        double.pass(4_000_000);
        assert_eq!(start(&mut double), 4, "what was saved since");
    }

    #[test]
    fn bytes_are_limited_and_only_those_that_move() {
        let limit = Limit { operations_per_s: None, bytes_per_s: Some(1 << 20), burst_us: 0 };
        let [mut double, _] = limited(limit);
        double.start(read(1 << 20));
        double.start(Step::Flush);
        double.start(Step::WriteZeroes {
            offset: 0,
            length: 1 << 20,
            is_durable: false,
            may_deallocate: false,
        });
        double.start(read(512));
        double.pass(999_999_000);
        assert_eq!(double.outcomes.len(), 1, "who comes later waits for who came before");
        double.pass(2_000);
        assert_eq!(double.outcomes.len(), 4);
    }

    #[test]
    fn reactors_share_a_limit() {
        let limit = Limit { operations_per_s: Some(1000), bytes_per_s: Some(1 << 30), burst_us: 0 };
        let mut doubles = limited(limit);
        for _ in 0..50 {
            for double in &mut doubles {
                double.start(read(512));
            }
        }
        for double in &mut doubles {
            double.pass(50_000_000);
        }
        let ended: Vec<usize> = doubles.iter().map(|double| double.outcomes.len()).collect();
        assert_eq!(ended.iter().sum::<usize>(), 51);
        assert!(ended[0].abs_diff(ended[1]) <= 1, "{ended:?}");
    }
}
