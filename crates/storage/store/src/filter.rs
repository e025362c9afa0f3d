//! Filters: layers over any storage, or over each other, that delay, fail, limit or log requests.
//!
//! Nothing under a filter is done at once: every request goes through [`Backend::start`], where the filter may hold it.
//! A request is either held by one filter or runs below it, so the holder of a ticket gets its timers.

mod delay;
mod error;
mod limit;
mod trace;

pub use delay::Delay;
pub use error::{Fault, FaultKind, FaultRate};
pub use limit::Limit;

use std::io;
use std::sync::Arc;

use reactor::Completion;

use crate::health::Health;
use crate::namespace::{Backend, BlockStore, Generation, Geometry, Grown, Request, StoreIo, Ticket};

/// The kinds of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// [`Request::Read`] and [`Request::FindData`].
    Read,
    /// [`Request::Write`].
    Write,
    /// [`Request::Flush`].
    Flush,
    /// [`Request::Deallocate`].
    Deallocate,
    /// [`Request::WriteZeroes`].
    WriteZeroes,
}

/// A filter and its settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Filter {
    /// Delays requests.
    Delay(Delay),
    /// Fails requests.
    Error(Fault),
    /// Limits the rate of requests.
    Limit(Limit),
    /// Logs and counts requests.
    Trace,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Self; 5] = [Self::Read, Self::Write, Self::Flush, Self::Deallocate, Self::WriteZeroes];

    /// The kind of a request.
    #[must_use]
    pub fn of(request: &Request) -> Self {
        match request {
            Request::Read { .. } | Request::FindData(_) => Self::Read,
            Request::Write { .. } => Self::Write,
            Request::Flush => Self::Flush,
            Request::Deallocate { .. } => Self::Deallocate,
            Request::WriteZeroes { .. } => Self::WriteZeroes,
        }
    }

    /// The name used in a specification.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Flush => "flush",
            Self::Deallocate => "deallocate",
            Self::WriteZeroes => "zeroes",
        }
    }
}

impl Filter {
    /// Puts the filter over `below`.
    #[must_use]
    pub fn over(&self, below: Arc<dyn BlockStore>) -> Arc<dyn BlockStore> {
        match self {
            Self::Delay(delay) => Arc::new(Filtered { below, setting: delay::Shared::new(delay.clone()) }),
            Self::Error(fault) => Arc::new(Filtered { below, setting: error::Shared::new(fault.clone()) }),
            Self::Limit(limit) => Arc::new(Filtered { below, setting: limit::Shared::new(limit) }),
            Self::Trace => Arc::new(Filtered { below, setting: trace::Counters::default() }),
        }
    }
}

/// The first byte that a request touches, and the number of bytes.
fn range_of(request: &Request) -> (u64, u64) {
    match request {
        Request::Read { offset, buffer } | Request::Write { offset, buffer, .. } => {
            (*offset, buffer.len() as u64)
        }
        Request::Flush => (0, 0),
        Request::Deallocate { offset, length } | Request::WriteZeroes { offset, length, .. } => {
            (*offset, *length)
        }
        Request::FindData(map) => (map.range().start, map.range().end - map.range().start),
    }
}

/// State of a filter that all reactors share.
trait Setting: Send + Sync {
    /// State of a filter on each reactor.
    type Gate: Gate;

    fn gate(&self) -> Self::Gate;
}

/// The handling of requests by a filter on one reactor.
trait Gate: 'static {
    fn on_start(&mut self, below: &mut dyn Backend, io: &mut dyn StoreIo, ticket: Ticket, request: Request);

    /// Takes out a request that waits here for its timer.
    fn kept(&mut self, _: Ticket) -> Option<Request> {
        None
    }

    fn withdraw(&mut self, below: &mut dyn Backend, ticket: Ticket) -> Option<Request> {
        self.kept(ticket).or_else(|| below.withdraw(ticket))
    }

    fn on_completion(
        &mut self,
        below: &mut dyn Backend,
        io: &mut dyn StoreIo,
        ticket: Ticket,
        completion: Completion,
    ) {
        below.on_completion(io, ticket, completion);
    }

    fn on_timer(&mut self, below: &mut dyn Backend, io: &mut dyn StoreIo, ticket: Ticket) {
        match self.kept(ticket) {
            Some(request) => below.start(io, ticket, request),
            None => below.on_timer(io, ticket),
        }
    }
}

/// Storage under a filter.
struct Filtered<S> {
    below: Arc<dyn BlockStore>,
    setting: S,
}

/// One reactor's access to it.
struct FilteredBackend<G> {
    below: Box<dyn Backend>,
    gate: G,
}

impl<S: Setting> BlockStore for Filtered<S> {
    fn geometry(&self) -> Geometry {
        self.below.geometry()
    }

    fn attach(&self) -> io::Result<Box<dyn Backend>> {
        Ok(Box::new(FilteredBackend { below: self.below.attach()?, gate: self.setting.gate() }))
    }

    fn resize(&self, bytes: u64) -> io::Result<()> {
        self.below.resize(bytes)
    }

    fn reopen(&self) -> io::Result<()> {
        self.below.reopen()
    }

    fn generation(&self) -> Generation {
        self.below.generation()
    }

    fn closed_because(&self) -> Option<String> {
        self.below.closed_because()
    }

    fn health(&self) -> Health {
        self.below.health()
    }

    fn can_change_underneath(&self) -> bool {
        self.below.can_change_underneath()
    }

    fn revalidate(&self) -> Option<Grown> {
        self.below.revalidate()
    }

    fn identity(&self) -> Option<String> {
        self.below.identity()
    }
}

impl<G: Gate> Backend for FilteredBackend<G> {
    fn geometry(&self) -> Geometry {
        self.below.geometry()
    }

    fn generation(&self) -> Generation {
        self.below.generation()
    }

    fn start(&mut self, io: &mut dyn StoreIo, ticket: Ticket, request: Request) {
        self.gate.on_start(&mut *self.below, io, ticket, request);
    }

    fn withdraw(&mut self, ticket: Ticket) -> Option<Request> {
        self.gate.withdraw(&mut *self.below, ticket)
    }

    fn on_completion(&mut self, io: &mut dyn StoreIo, ticket: Ticket, completion: Completion) {
        self.gate.on_completion(&mut *self.below, io, ticket, completion);
    }

    fn on_timer(&mut self, io: &mut dyn StoreIo, ticket: Ticket) {
        self.gate.on_timer(&mut *self.below, io, ticket);
    }
}
