//! The error filter: fails every n-th request, or a random fraction, of a kind or in a range.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use linux::random::SplitMix64;

use super::{Gate, Kind, Setting, range_of};
use crate::namespace::{Backend, Reply, Request, StoreError, StoreIo, Ticket};

/// Settings of the error filter. A request that fails is not executed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The kind of requests to fail; all if `None`.
    pub kind: Option<Kind>,
    /// The rate of failures among these.
    pub rate: FaultRate,
    /// Only requests that touch these bytes.
    pub range: Option<Range<u64>>,
    /// The error.
    pub error: FaultKind,
    /// Random seed. The same seed and order of requests give the same faults.
    pub seed: u64,
}

/// A rate of failures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultRate {
    /// The n-th, the 2n-th, and so on, counted over all reactors. Not 0.
    Every(u64),
    /// A random fraction, in millionths.
    PerMillion(u32),
}

/// The error that a request fails with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FaultKind {
    /// [`StoreError::Injected`].
    #[default]
    Injected,
    /// [`StoreError::ReadFailed`] or [`StoreError::WriteFailed`] with EIO.
    Io,
    /// [`StoreError::NoSpace`].
    NoSpace,
    /// [`StoreError::ReadOnly`].
    ReadOnly,
    /// [`StoreError::Truncated`].
    Truncated,
    /// [`StoreError::Closed`].
    Closed,
    /// [`StoreError::Unsupported`].
    Unsupported,
    /// [`StoreError::Unreachable`].
    Unreachable,
}

impl FaultKind {
    /// All errors.
    pub const ALL: [Self; 8] = [
        Self::Injected,
        Self::Io,
        Self::NoSpace,
        Self::ReadOnly,
        Self::Truncated,
        Self::Closed,
        Self::Unsupported,
        Self::Unreachable,
    ];

    /// The name used in a specification.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Injected => "injected",
            Self::Io => "eio",
            Self::NoSpace => "nospace",
            Self::ReadOnly => "readonly",
            Self::Truncated => "truncated",
            Self::Closed => "closed",
            Self::Unsupported => "unsupported",
            Self::Unreachable => "unreachable",
        }
    }

    fn error(self, kind: Kind) -> StoreError {
        let eio = rustix::io::Errno::IO.raw_os_error();
        match self {
            Self::Injected => StoreError::Injected,
            Self::Io if kind == Kind::Read => StoreError::ReadFailed(eio),
            Self::Io => StoreError::WriteFailed(eio),
            Self::NoSpace => StoreError::NoSpace,
            Self::ReadOnly => StoreError::ReadOnly,
            Self::Truncated => StoreError::Truncated,
            Self::Closed => StoreError::Closed,
            Self::Unsupported => StoreError::Unsupported,
            Self::Unreachable => StoreError::Unreachable,
        }
    }
}

#[derive(Clone)]
pub(super) struct Shared {
    fault: Fault,
    /// Candidate requests so far.
    count: Arc<AtomicU64>,
}

impl Shared {
    pub(super) fn new(fault: Fault) -> Self {
        Self { fault, count: Arc::default() }
    }

    fn hits(&self, request: &Request) -> bool {
        let fault = &self.fault;
        if fault.kind.is_some_and(|kind| kind != Kind::of(request)) {
            return false;
        }
        let (offset, length) = range_of(request);
        let touches = |range: &Range<u64>| offset < range.end && range.start < offset + length;
        if !fault.range.as_ref().is_none_or(touches) {
            return false;
        }
        let count = self.count.fetch_add(1, Ordering::Relaxed) + 1;
        match fault.rate {
            FaultRate::Every(n) => count.is_multiple_of(n),
            FaultRate::PerMillion(share) => SplitMix64::nth(fault.seed, count) % 1_000_000 < share.into(),
        }
    }
}

impl Setting for Shared {
    type Gate = Self;

    fn gate(&self) -> Self {
        self.clone()
    }
}

impl Gate for Shared {
    fn on_start(&mut self, below: &mut dyn Backend, io: &mut dyn StoreIo, ticket: Ticket, request: Request) {
        if !self.hits(&request) {
            return below.start(io, ticket, request);
        }
        let result = Err(self.fault.error.error(Kind::of(&request)));
        let buffer = match request {
            Request::Read { buffer, .. } | Request::Write { buffer, .. } => Some(buffer),
            _ => None,
        };
        io.reply(ticket, Reply { result, buffer });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block::NullStore;
    use crate::filter::Filter;
    use crate::testing::{Bench, Double, Media, Step};

    const FAULT: Fault =
        Fault { kind: None, rate: FaultRate::Every(1), range: None, error: FaultKind::Injected, seed: 0 };

    /// Two reactors.
    fn faulty(fault: Fault) -> [Double; 2] {
        let null = Arc::new(NullStore::new(1 << 20, 512, false).unwrap());
        let store = Filter::Error(fault).over(null);
        let place = Media::new(0);
        [Double::attach(&*store, &place), Double::attach(&*store, &place)]
    }

    const WRITE: Step = Step::Write { offset: 0, data: Vec::new(), is_durable: false };

    fn write(offset: u64, count: usize) -> Step {
        Step::Write { offset, data: vec![0; count], is_durable: false }
    }

    #[test]
    fn every_nth_fails_counted_over_all_reactors() {
        let mut doubles = faulty(Fault { rate: FaultRate::Every(3), kind: Some(Kind::Read), ..FAULT });
        let outcomes: Vec<bool> = (0..9)
            .map(|n| {
                assert_eq!(doubles[n % 2].run(write(0, 512)), Ok(vec![]), "writes are not counted");
                doubles[n % 2].read(0, 512) == Err(StoreError::Injected)
            })
            .collect();
        assert_eq!(outcomes, [false, false, true, false, false, true, false, false, true]);
    }

    #[test]
    fn chance_keeps_to_its_share_and_to_its_seed() {
        let run = |seed| {
            let [mut double, _] = faulty(Fault { rate: FaultRate::PerMillion(100_000), seed, ..FAULT });
            (0..5000).map(|_| double.flush().is_err()).collect::<Vec<bool>>()
        };
        let (first, second, other) = (run(1), run(1), run(2));
        assert_eq!(first, second);
        assert_ne!(first, other);
        let failed = first.iter().filter(|failed| **failed).count();
        assert!((400..600).contains(&failed), "{failed} of 5000");
    }

    #[test]
    fn only_requests_that_touch_the_range_fail() {
        let [mut double, _] = faulty(Fault { range: Some(1024..2048), ..FAULT });
        for (offset, count, fails) in
            [(0, 1024, false), (512, 1024, true), (1536, 512, true), (2048, 512, false)]
        {
            assert_eq!(double.run(write(offset, count)).is_err(), fails, "{offset} + {count}");
        }
        assert_eq!(double.flush(), Ok(vec![]));
    }

    #[test]
    fn each_error_is_the_one_asked_for() {
        for error in FaultKind::ALL {
            let [mut double, _] = faulty(Fault { error, ..FAULT });
            let (read, written) = (double.read(0, 512).unwrap_err(), double.run(WRITE).unwrap_err());
            match error {
                FaultKind::Io => {
                    assert_eq!((read, written), (StoreError::ReadFailed(5), StoreError::WriteFailed(5)));
                }
                _ => assert_eq!(read, written),
            }
        }
    }
}
