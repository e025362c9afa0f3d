//! The interface of a backend of a block namespace.
//!
//! A [`BlockStore`] is the namespace's storage as the whole process sees it: opened once, shared by all reactors. Each
//! reactor attaches a [`Backend`] of its own, which it calls without locks and from one thread only.
//!
//! ```text
//! read_now / write_now ──▶ Some: done at once, no queue hop        (RAM, null)
//!           └─None──▶ start(ticket, request) ──▶ … operations of the reactor … ──▶ reply(ticket)
//! ```
//!
//! Every started ticket gets exactly one reply, from `start` itself, `on_completion` or `on_timer`; a withdrawn ticket
//! gets none. Replies come in any order. Offsets and lengths are bytes, multiples of the block size, within the
//! namespace: the caller has checked them against the geometry. If the namespace has shrunk since, the reply is
//! [`StoreError::Truncated`].

use std::sync::Arc;

use linux::Moment;
use memory::{Buffer, Payload, Pool};
use reactor::{Completion, DataMap, Operation};

use crate::health::Health;

/// Range of valid block sizes, bytes: the powers of two in it.
pub(crate) const BLOCK_BYTES: std::ops::RangeInclusive<u32> = 512..=65536;

/// Block size of a namespace unless configured, bytes. The same on every machine: partition tables depend on it.
pub(crate) const BLOCK_BYTES_DEFAULT: u32 = 4096;

/// The shape of a block namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Bytes of a logical block: a power of two, 512 to 65536.
    pub block_bytes: u32,
    /// Logical blocks.
    pub block_count: u64,
    /// Whether writes are refused.
    pub is_read_only: bool,
    /// Whether space can be deallocated: its blocks then read as zeroes.
    pub can_deallocate: bool,
    /// Preferred write granularity and alignment, blocks; 1 for none.
    pub preferred_write_blocks: u32,
    /// Preferred deallocation granularity and alignment, blocks; 1 for none.
    pub preferred_deallocate_blocks: u32,
    /// Whether other machines write to the storage at the same time: what has to be atomic cannot be kept so here.
    pub has_other_writers: bool,
}

impl Geometry {
    /// Writable blocks that can be deallocated, with no preferred granularity.
    #[must_use]
    pub fn new(block_bytes: u32, block_count: u64) -> Self {
        Self {
            block_bytes,
            block_count,
            is_read_only: false,
            can_deallocate: true,
            preferred_write_blocks: 1,
            preferred_deallocate_blocks: 1,
            has_other_writers: false,
        }
    }

    /// Size of the namespace, bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.block_count * u64::from(self.block_bytes)
    }
}

/// The generation of a namespace: counts the openings of its storage. Even while the storage is open, odd once it is
/// closed; reopening gives the next even number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Generation(pub(crate) u64);

impl Generation {
    /// Whether the namespace is closed: it answers every request with [`StoreError::Closed`].
    #[must_use]
    pub fn is_closed(self) -> bool {
        self.0 & 1 == 1
    }

    /// How often the storage was closed.
    #[must_use]
    pub fn closing_count(self) -> u64 {
        self.0.div_ceil(2)
    }

    /// Whether the storage was ever closed: writes of an earlier generation may be lost.
    #[must_use]
    pub fn is_first(self) -> bool {
        self.0 == 0
    }

    /// This generation while the storage is open; the next one to be opened once it is closed.
    #[must_use]
    pub fn open(self) -> Self {
        Self(self.0 + (self.0 & 1))
    }
}

/// A namespace whose storage has grown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grown {
    /// Size of the namespace before, bytes.
    pub before: u64,
    /// Size of the namespace now, bytes.
    pub after: u64,
}

/// Identifies a started request. Chosen by the caller, unique among the requests in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ticket(pub u64);

/// Set in tickets of a backend's own, and in no others.
pub const OWN_TICKET: u64 = 1 << 62;

/// A request to a namespace.
#[derive(Debug)]
pub enum Request {
    /// Fills the whole buffer from `offset` on.
    Read {
        /// First byte.
        offset: u64,
        /// The buffer to fill.
        buffer: Buffer,
    },
    /// Writes the whole buffer at `offset`.
    Write {
        /// First byte.
        offset: u64,
        /// The data to write.
        buffer: Buffer,
        /// Reply only when the data is on stable media (FUA).
        is_durable: bool,
    },
    /// Makes every write that was replied to before this request durable.
    Flush,
    /// Deallocates a range. Its blocks read as the geometry says afterwards.
    Deallocate {
        /// First byte.
        offset: u64,
        /// Bytes, not 0.
        length: u64,
    },
    /// Makes a range read as zeroes.
    WriteZeroes {
        /// First byte.
        offset: u64,
        /// Bytes, not 0.
        length: u64,
        /// Reply only when the zeroes are on stable media (FUA).
        is_durable: bool,
        /// Whether the range may be deallocated to that end.
        may_deallocate: bool,
    },
    /// Finds the parts of a range that have data; all others read as zeroes. A write that was replied to before has left
    /// data. [`StoreError::Unsupported`]: the storage does not know, and all of it may have.
    FindData(Arc<DataMap>),
}

/// The reply to a request.
#[derive(Debug)]
pub struct Reply {
    /// The result.
    pub result: Result<(), StoreError>,
    /// The buffer of a read or write, returned.
    pub buffer: Option<Buffer>,
}

/// The reason why a request failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The namespace is read-only.
    #[error("the namespace is read-only")]
    ReadOnly,
    /// The backing store is full.
    #[error("no space left in the backing store")]
    NoSpace,
    /// The file size limit of the process (`RLIMIT_FSIZE`) is exceeded.
    #[error("the file size limit of the target's process does not reach as far (ulimit -f, LimitFSIZE=)")]
    FileSizeLimit,
    /// The backing store could not read.
    #[error("read failed (system error {0})")]
    ReadFailed(i32),
    /// The backing store could not write, zero or deallocate.
    #[error("write failed (system error {0})")]
    WriteFailed(i32),
    /// The backing store ends before the namespace does: it was cut and the namespace is closed, or the namespace has
    /// just shrunk.
    #[error("the backing store is shorter than the namespace")]
    Truncated,
    /// The backing file has been deleted: data written to it is lost when the target ends.
    #[error("the backing file was deleted or replaced")]
    Gone,
    /// A flush or a durable write has failed, or the storage was changed underneath, so its content is unknown: the
    /// namespace is closed until it is reopened.
    #[error(
        "the namespace is closed until it is reopened: a flush or a durable write failed, or its storage was changed"
    )]
    Closed,
    /// The backend does not support the request.
    #[error("not supported by the backend")]
    Unsupported,
    /// The backing store is unreachable at present. The same request may succeed later.
    #[error("the backing store cannot be reached at present")]
    Unreachable,
    /// The backing store does not answer at present, and the request was not started.
    #[error("the backing store does not answer at present")]
    NotReady,
    /// Another machine may write to the backing store: nothing is written here until the namespace is reopened.
    #[error(
        "the backing store belongs to another client by now: the namespace is closed until it is reopened"
    )]
    Fenced,
    /// An error injected by a filter.
    #[error("injected error")]
    Injected,
}

/// The services of the reactor that a backend uses.
pub trait StoreIo {
    /// The time of this turn, ns since a fixed moment.
    fn now_ns(&self) -> u64;
    /// The present time on the same scale. It reads the clock.
    fn clock_ns(&self) -> u64 {
        self.now_ns()
    }
    /// The moment of this turn, by which keys expire.
    fn moment(&self) -> Moment;
    /// This reactor's buffers.
    fn pool(&self) -> &Pool;
    /// A buffer for work on the critical path: from the pool, else the reserve.
    fn take_critical(&mut self, length: usize) -> Option<Buffer> {
        self.pool().take(length)
    }
    /// Returns a buffer taken with [`take_critical`](Self::take_critical).
    fn give_back(&mut self, buffer: Option<Buffer>) {
        drop(buffer);
    }
    /// Starts an operation for a ticket; its completion arrives through [`Backend::on_completion`] with that ticket. A
    /// ticket has at most one operation in flight. Operations beyond the limit are queued.
    fn start(&mut self, ticket: Ticket, operation: Operation);
    /// Calls [`Backend::on_timer`] with the ticket at or after `deadline_ns`.
    fn set_timer(&mut self, deadline_ns: u64, ticket: Ticket);
    /// Replies to a ticket.
    fn reply(&mut self, ticket: Ticket, reply: Reply);
    /// A ticket of the backend's own, for operations and timers that belong to no request. `number` has 24 bits; the
    /// same number always gives the same ticket.
    fn own(&self, number: u32) -> Ticket {
        Ticket(OWN_TICKET | u64::from(number))
    }
}

/// A reactor whose replies go to `on_reply` instead.
pub(crate) struct Intercepted<'a, F> {
    pub(crate) io: &'a mut dyn StoreIo,
    pub(crate) on_reply: F,
}

impl<F: FnMut(&mut dyn StoreIo, Ticket, Reply)> StoreIo for Intercepted<'_, F> {
    fn now_ns(&self) -> u64 {
        self.io.now_ns()
    }

    fn clock_ns(&self) -> u64 {
        self.io.clock_ns()
    }

    fn moment(&self) -> Moment {
        self.io.moment()
    }

    fn pool(&self) -> &Pool {
        self.io.pool()
    }

    fn take_critical(&mut self, length: usize) -> Option<Buffer> {
        self.io.take_critical(length)
    }

    fn give_back(&mut self, buffer: Option<Buffer>) {
        self.io.give_back(buffer);
    }

    fn start(&mut self, ticket: Ticket, operation: Operation) {
        self.io.start(ticket, operation);
    }

    fn set_timer(&mut self, deadline_ns: u64, ticket: Ticket) {
        self.io.set_timer(deadline_ns, ticket);
    }

    fn reply(&mut self, ticket: Ticket, reply: Reply) {
        (self.on_reply)(self.io, ticket, reply);
    }

    fn own(&self, number: u32) -> Ticket {
        self.io.own(number)
    }
}

/// One reactor's access to a namespace's storage.
pub trait Backend {
    /// The current shape of the namespace.
    fn geometry(&self) -> Geometry;

    /// Reads `length` bytes at once, if this backend can do so without waiting. The payload may refer to the
    /// namespace's memory, and is then read when it is sent; with `needs_stable_copy` it does not change. Without a
    /// `pool` no buffer is taken for it.
    fn read_now(
        &mut self,
        pool: Option<&Pool>,
        offset: u64,
        length: usize,
        needs_stable_copy: bool,
    ) -> Option<Result<Payload, StoreError>> {
        let _ = (pool, offset, length, needs_stable_copy);
        None
    }

    /// Writes `data` at once, if this backend can do so without waiting.
    fn write_now(&mut self, offset: u64, data: &[u8], is_durable: bool) -> Option<Result<(), StoreError>> {
        let _ = (offset, data, is_durable);
        None
    }

    /// Whether the bytes at `offset` equal `data`, if this backend can compare without waiting.
    fn compare_now(&mut self, offset: u64, data: &[u8]) -> Option<Result<bool, StoreError>> {
        let _ = (offset, data);
        None
    }

    /// Starts a request.
    fn start(&mut self, io: &mut dyn StoreIo, ticket: Ticket, request: Request);

    /// Withdraws a request that has not begun, if possible: then no reply follows, and no timer for the ticket may fire
    /// here.
    fn withdraw(&mut self, ticket: Ticket) -> Option<Request> {
        let _ = ticket;
        None
    }

    /// An operation started for `ticket` has completed.
    fn on_completion(&mut self, io: &mut dyn StoreIo, ticket: Ticket, completion: Completion);

    /// A timer set for `ticket` has fired.
    fn on_timer(&mut self, io: &mut dyn StoreIo, ticket: Ticket);

    /// The current generation of the namespace.
    fn generation(&self) -> Generation {
        Generation::default()
    }
}

/// A namespace's storage, shared by all reactors.
pub trait BlockStore: Send + Sync {
    /// The current shape of the namespace.
    fn geometry(&self) -> Geometry;

    /// Attaches the calling reactor.
    ///
    /// # Errors
    /// The reason why this thread cannot use the storage.
    fn attach(&self) -> std::io::Result<Box<dyn Backend>>;

    /// Makes the namespace `bytes` long (a multiple of the block size). Data within stays; growth reads as zeroes.
    ///
    /// # Errors
    /// The reason why it cannot be resized: no space, or a device of fixed size.
    fn resize(&self, bytes: u64) -> std::io::Result<()>;

    /// Reopens the storage after it was closed by a failed flush, or replaced. Requests of earlier generations fail
    /// from then on.
    ///
    /// # Errors
    /// The reason why it cannot be opened; the namespace stays closed.
    fn reopen(&self) -> std::io::Result<()>;

    /// The current generation of the namespace.
    fn generation(&self) -> Generation {
        Generation::default()
    }

    /// Why the namespace is closed; `None` while it is open.
    fn closed_because(&self) -> Option<String> {
        None
    }

    /// The condition of the storage at the last look.
    fn health(&self) -> Health {
        Health::default()
    }

    /// Whether the storage can change without the target, so that [`revalidate`](Self::revalidate) has something to
    /// check.
    fn can_change_underneath(&self) -> bool {
        false
    }

    /// Compares the namespace with the current state of its storage: adopts growth, and closes the namespace if the
    /// storage was cut, deleted or removed. Renews [`health`](Self::health). May block.
    fn revalidate(&self) -> Option<Grown> {
        None
    }

    /// A name of the storage that no other has on any machine; `None` if it has no such name.
    fn identity(&self) -> Option<String> {
        None
    }
}
