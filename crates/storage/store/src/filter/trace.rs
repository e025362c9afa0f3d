//! The trace filter: logs and counts requests: kind, offset, length, outcome and latency.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use reactor::Completion;

use super::{Gate, Kind, Setting, range_of};
use crate::namespace::{Backend, Intercepted, Reply, Request, StoreIo, Ticket};
use crate::tickets::Tickets;

/// Counters of one kind.
#[derive(Clone, Copy, Debug)]
struct KindCounters {
    /// Requests that completed.
    count: u64,
    failed_count: u64,
    /// Bytes of requests that succeeded.
    bytes: u64,
    /// Sum of the times from start to reply, ns.
    latency_ns_sum: u64,
    latency_ns_max: u64,
}

/// Counters of all reactors. They are logged when the last reactor has detached the storage.
#[derive(Clone, Default)]
pub(super) struct Counters(Arc<Cells>);

/// Counters by kind.
#[derive(Default)]
struct Cells([Cell; Kind::ALL.len()]);

#[derive(Default)]
struct Cell {
    count: AtomicU64,
    failed_count: AtomicU64,
    bytes: AtomicU64,
    latency_ns_sum: AtomicU64,
    latency_ns_max: AtomicU64,
}

pub(super) struct Log {
    counters: Counters,
    running: Tickets<Passage>,
}

/// A request in flight below.
#[derive(Clone, Copy)]
struct Passage {
    kind: Kind,
    offset: u64,
    length: u64,
    start_ns: u64,
}

impl Cells {
    fn read(&self, kind: Kind) -> KindCounters {
        let cell = &self.0[kind as usize];
        KindCounters {
            count: cell.count.load(Ordering::Relaxed),
            failed_count: cell.failed_count.load(Ordering::Relaxed),
            bytes: cell.bytes.load(Ordering::Relaxed),
            latency_ns_sum: cell.latency_ns_sum.load(Ordering::Relaxed),
            latency_ns_max: cell.latency_ns_max.load(Ordering::Relaxed),
        }
    }
}

impl Setting for Counters {
    type Gate = Log;

    fn gate(&self) -> Log {
        Log { counters: self.clone(), running: Tickets::default() }
    }
}

impl Log {
    fn on_reply(&mut self, now_ns: u64, ticket: Ticket, reply: &Reply) {
        let Some(passage) = self.running.remove(&ticket) else { return };
        let Passage { kind, offset, length, start_ns } = passage;
        let latency_ns = now_ns.saturating_sub(start_ns);
        let cell = &self.counters.0.0[kind as usize];
        cell.count.fetch_add(1, Ordering::Relaxed);
        match reply.result {
            Ok(()) => cell.bytes.fetch_add(length, Ordering::Relaxed),
            Err(_) => cell.failed_count.fetch_add(1, Ordering::Relaxed),
        };
        cell.latency_ns_sum.fetch_add(latency_ns, Ordering::Relaxed);
        cell.latency_ns_max.fetch_max(latency_ns, Ordering::Relaxed);
        let (kind, latency_us) = (kind.name(), latency_ns / 1000);
        match reply.result {
            Ok(()) => tracing::debug!(kind, offset, length, latency_us, "done"),
            Err(error) => tracing::debug!(kind, offset, length, latency_us, %error, "failed"),
        }
    }
}

impl Log {
    /// A reactor whose replies are counted.
    fn over<'a>(&'a mut self, io: &'a mut dyn StoreIo) -> impl StoreIo + 'a {
        let on_reply = |io: &mut dyn StoreIo, ticket, reply: Reply| {
            self.on_reply(io.now_ns(), ticket, &reply);
            io.reply(ticket, reply);
        };
        Intercepted { io, on_reply }
    }
}

impl Gate for Log {
    fn on_start(&mut self, below: &mut dyn Backend, io: &mut dyn StoreIo, ticket: Ticket, request: Request) {
        let (offset, length) = range_of(&request);
        let passage = Passage { kind: Kind::of(&request), offset, length, start_ns: io.now_ns() };
        self.running.insert(ticket, passage);
        below.start(&mut self.over(io), ticket, request);
    }

    fn withdraw(&mut self, below: &mut dyn Backend, ticket: Ticket) -> Option<Request> {
        let request = below.withdraw(ticket)?;
        self.running.remove(&ticket);
        Some(request)
    }

    fn on_completion(
        &mut self,
        below: &mut dyn Backend,
        io: &mut dyn StoreIo,
        ticket: Ticket,
        completion: Completion,
    ) {
        below.on_completion(&mut self.over(io), ticket, completion);
    }

    fn on_timer(&mut self, below: &mut dyn Backend, io: &mut dyn StoreIo, ticket: Ticket) {
        below.on_timer(&mut self.over(io), ticket);
    }
}

impl Drop for Cells {
    fn drop(&mut self) {
        for kind in Kind::ALL {
            let counters = self.read(kind);
            if counters.count > 0 {
                tracing::info!(kind = kind.name(), %counters, "traced");
            }
        }
    }
}

impl fmt::Display for KindCounters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { count, failed_count, bytes, latency_ns_sum, latency_ns_max } = *self;
        let mean_us = latency_ns_sum / count.max(1) / 1000;
        let max_us = latency_ns_max / 1000;
        write!(
            f,
            "{count} requests, {failed_count} failed, {bytes} bytes, mean {mean_us} us, longest {max_us} us"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block::NullStore;
    use crate::filter::{Delay, Fault, FaultKind, FaultRate, Filter, Filtered};
    use crate::testing::{Bench, Double, Media, Step};

    #[test]
    fn everything_that_passes_is_counted() {
        let null = Arc::new(NullStore::new(1 << 20, 512, false).unwrap());
        let faulty = Filter::Error(Fault {
            kind: Some(Kind::Write),
            rate: FaultRate::Every(2),
            range: None,
            error: FaultKind::NoSpace,
            seed: 0,
        });
        let slow = Filter::Delay(Delay { kind: Some(Kind::Read), wait_us: 100..=100 });
        let counters = Counters::default();
        let traced = Filtered { below: slow.over(faulty.over(null)), setting: counters.clone() };
        let mut double = Double::attach(&traced, &Media::new(0));
        for _ in 0..4 {
            double.read(0, 1024).unwrap();
            let _ = double.write(0, &[0; 512]);
        }
        double.run(Step::Deallocate { offset: 0, length: 4096 }).unwrap();
        insta::assert_snapshot!(
            Kind::ALL.map(|kind| format!("{}: {}", kind.name(), counters.0.read(kind))).join("\n"), @r#"
        read: 4 requests, 0 failed, 4096 bytes, mean 100 us, longest 100 us
        write: 4 requests, 2 failed, 1024 bytes, mean 0 us, longest 0 us
        flush: 0 requests, 0 failed, 0 bytes, mean 0 us, longest 0 us
        deallocate: 1 requests, 0 failed, 4096 bytes, mean 0 us, longest 0 us
        zeroes: 0 requests, 0 failed, 0 bytes, mean 0 us, longest 0 us
        "#);
    }

    #[test]
    fn operations_from_below_find_their_way_through() {
        let (store, place, _) = Double::file(4096, 512);
        let counters = Counters::default();
        let traced = Filtered { below: Arc::new(store), setting: counters.clone() };
        let mut double = Double::attach(&traced, &place);
        double.write(512, &[5; 512]).unwrap();
        assert_eq!(double.read(512, 512), Ok(vec![5; 512]));
        assert_eq!(counters.0.read(Kind::Write).count, 1);
    }
}
