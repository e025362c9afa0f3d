//! What the reactors and the operator share of a namespace in another process.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use reactor::DataMap;
use rustix::event::{EventfdFlags, eventfd};

use super::{Abilities, Connected, Remote};
use crate::namespace::{Generation, Geometry, StoreError};

/// What the reactors and the operator share.
pub(super) struct Shared<R: Remote> {
    pub(super) place: R,
    pub(super) block_bytes: u32,
    pub(super) is_read_only: bool,
    /// As it was when the namespace was opened.
    pub(super) abilities: Abilities,
    pub(super) gate: AtomicU64,
    pub(super) bytes: AtomicU64,
    /// Size of the storage when it was seen last, bytes.
    pub(super) seen_bytes: AtomicU64,
    pub(super) reason: Mutex<Option<String>>,
    pub(super) is_full: AtomicBool,
    /// What the server tells of holes makes no sense.
    is_map_refuted: AtomicBool,
    /// Changes that were answered and need a flush, and how many of them a flush has covered.
    written_count: AtomicU64,
    flushed_count: AtomicU64,
    /// The connection that was made to open the namespace, until a reactor takes it.
    pub(super) first: Mutex<Option<Connected<R::Wire>>>,
    /// The reactors that have a connection, or make one.
    owners: Mutex<Vec<Owner<R>>>,
}

/// The inbox of a reactor that has a connection.
pub(super) type Owner<R> = Arc<Inbox<<R as Remote>::Wire>>;

/// Messages to a reactor from the threads that connect, and from other reactors.
pub(super) struct Inbox<W> {
    bell: OwnedFd,
    /// `None` once the reactor has left.
    messages: Mutex<Option<Vec<Message<W>>>>,
}

pub(super) enum Message<W> {
    /// A connection has been made.
    Connected(Connected<W>),
    /// A request of a reactor that has no connection.
    Job(Job<W>),
    /// The end of a request that another reactor carried out.
    Done(Done),
}

pub(super) struct Job<W> {
    pub(super) from: Arc<Inbox<W>>,
    /// Of the asking reactor.
    pub(super) number: u64,
    pub(super) call: Call,
    /// The data of a write, or room for that of a read.
    pub(super) data: Vec<u8>,
    /// Of a search for data.
    pub(super) map: Option<Arc<DataMap>>,
}

pub(super) struct Done {
    pub(super) number: u64,
    pub(super) result: Result<(), StoreError>,
    pub(super) data: Vec<u8>,
}

/// A request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Call {
    pub(super) kind: Kind,
    pub(super) offset: u64,
    pub(super) length: u64,
    /// Answered when it is on stable media.
    pub(super) is_durable: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Read,
    Write,
    Flush,
    Zero {
        may_deallocate: bool,
    },
    /// Finds the parts of the range that have data.
    Find,
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<W> Inbox<W> {
    pub(super) fn new() -> io::Result<Self> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { bell, messages: Mutex::new(Some(Vec::new())) })
    }

    pub(super) fn bell(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    /// Gives the message back if the reactor has left.
    pub(super) fn post(&self, message: Message<W>) -> Result<(), Message<W>> {
        match &mut *lock(&self.messages) {
            Some(messages) => messages.push(message),
            None => return Err(message),
        }
        // The counter is at its end only if it is readable already.
        let _ = rustix::io::write(&self.bell, &1_u64.to_ne_bytes());
        Ok(())
    }

    pub(super) fn is_closed(&self) -> bool {
        lock(&self.messages).is_none()
    }

    /// Takes what is there.
    pub(super) fn take(&self) -> Vec<Message<W>> {
        let _ = rustix::io::read(&self.bell, &mut [0; 8]);
        lock(&self.messages).as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// The reactor leaves: no more messages.
    pub(super) fn close(&self) -> Vec<Message<W>> {
        lock(&self.messages).take().unwrap_or_default()
    }
}

impl<R: Remote> Shared<R> {
    pub(super) fn new(place: R, block_bytes: u32, is_read_only: bool, connected: Connected<R::Wire>) -> Self {
        let abilities = connected.abilities;
        Self {
            place,
            block_bytes,
            is_read_only,
            abilities,
            gate: AtomicU64::new(0),
            bytes: AtomicU64::new(whole_blocks(abilities.bytes, block_bytes)),
            seen_bytes: AtomicU64::new(abilities.bytes),
            reason: Mutex::default(),
            is_full: AtomicBool::new(false),
            is_map_refuted: AtomicBool::new(false),
            written_count: AtomicU64::new(0),
            flushed_count: AtomicU64::new(0),
            first: Mutex::new(Some(connected)),
            owners: Mutex::default(),
        }
    }

    pub(super) fn geometry(&self) -> Geometry {
        Geometry {
            is_read_only: self.is_read_only,
            // Discarding promises nothing about what is read afterwards.
            can_deallocate: !self.is_read_only && self.abilities.has_zeroes,
            ..Geometry::new(self.block_bytes, self.bytes() / u64::from(self.block_bytes))
        }
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Acquire)
    }

    /// The size that the storage had last, in whole blocks.
    pub(super) fn seen_bytes(&self) -> u64 {
        whole_blocks(self.seen_bytes.load(Ordering::Acquire), self.block_bytes)
    }

    pub(super) fn gate(&self) -> Generation {
        Generation(self.gate.load(Ordering::Acquire))
    }

    pub(super) fn deadline_ns(&self) -> u64 {
        u64::from(self.place.deadline_s()) * 1_000_000_000
    }

    /// Closes the namespace if it is still in this state.
    pub(super) fn close(&self, gate: Generation, why: String) {
        let closed = self.gate.compare_exchange(gate.0, gate.0 + 1, Ordering::AcqRel, Ordering::Acquire);
        if !gate.is_closed() && closed.is_ok() {
            tracing::error!(storage = %self.place, why, "namespace closed");
            *lock(&self.reason) = Some(why);
        }
    }

    /// Whether holes are asked for by a connection with these abilities.
    pub(super) fn has_map(&self, abilities: &Abilities) -> bool {
        abilities.has_map && !self.is_map_refuted.load(Ordering::Relaxed)
    }

    /// What the server tells of holes makes no sense: it is not asked again.
    pub(super) fn refute_map(&self) {
        if !self.is_map_refuted.swap(true, Ordering::Relaxed) {
            let storage = &self.place;
            tracing::warn!(%storage, "what the server tells of holes makes no sense: all counts as data from now on");
        }
    }

    /// A change was answered that no flush covers.
    pub(super) fn add_written(&self) {
        self.written_count.fetch_add(1, Ordering::AcqRel);
    }

    /// The changes that a flush which begins now covers.
    pub(super) fn written_count(&self) -> u64 {
        self.written_count.load(Ordering::Acquire)
    }

    /// A flush has ended.
    pub(super) fn set_flushed(&self, written_count: u64) {
        self.flushed_count.fetch_max(written_count, Ordering::AcqRel);
    }

    /// A connection was lost, perhaps with its server and what that had not flushed. If there was any, the next Flush of
    /// each host fails: the namespace counts as closed and reopened. Returns whether it does.
    pub(super) fn lose_unflushed(&self) -> bool {
        let written_count = self.written_count();
        if written_count <= self.flushed_count.fetch_max(written_count, Ordering::AcqRel) {
            return false;
        }
        // A closed namespace reports the loss itself.
        let _ = self.gate.fetch_update(Ordering::AcqRel, Ordering::Acquire, |gate| {
            (!Generation(gate).is_closed()).then_some(gate + 2)
        });
        true
    }

    /// A reactor wants to send requests: itself, if there is room for another connection, else by another reactor.
    pub(super) fn owner_for(&self, inbox: &Owner<R>) -> Option<Owner<R>> {
        let mut owners = lock(&self.owners);
        if owners.len() < self.abilities.connection_count.max(1) {
            owners.push(Arc::clone(inbox));
            return None;
        }
        // Any number that differs between reactors.
        let number = Arc::as_ptr(inbox) as usize / align_of::<Inbox<R::Wire>>();
        owners.get(number % owners.len()).cloned()
    }

    /// A reactor with a connection leaves.
    pub(super) fn remove_owner(&self, inbox: &Owner<R>) {
        lock(&self.owners).retain(|owner| !Arc::ptr_eq(owner, inbox));
    }

    /// Whether a new connection leads to the same storage, as far as can be seen.
    ///
    /// # Errors
    /// What is different.
    pub(super) fn check(&self, now: &Abilities) -> Result<(), String> {
        let before = &self.abilities;
        let is_less = (before.has_flush && !now.has_flush)
            || (before.has_zeroes && !now.has_zeroes)
            || now.connection_count < before.connection_count
            // It may be writable by now.
            || (now.is_read_only && !self.is_read_only);
        if is_less {
            return Err(format!("the server came back with less than it could before ({now:?})"));
        }
        if !self.block_bytes.is_multiple_of(now.block_bytes_min.max(1)) {
            return Err(format!("its blocks have {} bytes now", now.block_bytes_min));
        }
        if now.bytes < self.bytes() {
            return Err(format!("the storage has {} bytes, {} before", now.bytes, self.bytes()));
        }
        Ok(())
    }
}

/// Of storage that grows beyond what a namespace can have, the rest is not seen.
fn whole_blocks(bytes: u64, block_bytes: u32) -> u64 {
    let bytes = bytes.min(i64::MAX.cast_unsigned());
    bytes - bytes % u64::from(block_bytes)
}
