//! A namespace whose storage is in another process, behind a connection that can be lost and made again: opening it,
//! reopening it, and what a kind of connection has to bring.
//!
//! ```text
//! reactor: Backend::start ─▶ Tasks ─▶ Wire ═══▶ server       with a connection of its own
//!                     └────▶ Job ─▶ the inbox of a reactor that has one, if the server takes no more
//! thread: connects and negotiates ─▶ inbox of the reactor, which repeats what was not answered
//! ```

mod backend;
mod shared;
#[cfg(test)]
pub(crate) mod suite;
mod task;

use std::fmt::Display;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rustix::io::Errno;

use self::backend::RemoteBackend;
use self::shared::{Shared, lock};
use crate::health::Health;
use crate::namespace::{BLOCK_BYTES, BLOCK_BYTES_DEFAULT, Backend, BlockStore, Generation, Geometry, Grown};
use crate::open_error::OpenError;

pub(crate) use self::task::{Task, Tasks, Verb, place};

/// Time that a server has for a connection and its negotiation.
const CONNECT_LIMIT: Duration = Duration::from_secs(5);

/// Where the storage is, and how it is reached.
pub(crate) trait Remote: Display + Send + Sync + 'static {
    /// A connection.
    type Wire: Wire;

    /// Name of the threads that connect.
    const THREAD: &'static str;

    /// Connects, and negotiates. Takes up to `limit`.
    ///
    /// # Errors
    /// The problem, and what to do about it.
    fn connect(&self, limit: Duration) -> Result<Connected<Self::Wire>, String>;

    /// Time that a request has, s.
    fn deadline_s(&self) -> u32;

    /// The size of the storage, where it can be asked for while connections stand. May block.
    fn bytes_now(&self) -> Option<u64> {
        None
    }
}

/// A connection, which belongs to one reactor: commands go out, replies come in, without waiting.
pub(crate) trait Wire: Send + Sized + 'static {
    /// What it has to know of the command under way of each task.
    type Command: Default;

    /// Readable when the connection has something, or has ended; writable when it takes more.
    fn socket(&self) -> BorrowedFd<'_>;

    /// Readable when replies have come, where that is not the socket.
    fn bell(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Has the prepared command of a task go out.
    fn queue(&mut self, tasks: &mut Tasks<Self>, slot: u32);

    /// Sends what the connection takes. Returns whether the socket takes no more.
    fn send(&mut self, tasks: &mut Tasks<Self>) -> Result<bool, Lost>;

    /// Receives once. Returns whether there was something.
    fn receive(&mut self, tasks: &mut Tasks<Self>) -> Result<bool, Lost>;

    /// The end of the next command whose reply has arrived.
    fn next_ended(&mut self, tasks: &mut Tasks<Self>) -> Result<Option<Ended>, Lost>;

    /// The reactor leaves, and has no command under way that is still waited for.
    fn leave(&mut self) {}
}

/// A connection that was made.
pub(crate) struct Connected<W> {
    pub(super) wire: W,
    pub(super) abilities: Abilities,
}

/// What the storage is and does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Abilities {
    pub(super) bytes: u64,
    pub(super) is_read_only: bool,
    pub(super) has_flush: bool,
    pub(super) has_fua: bool,
    /// Ranges become zeroes without data.
    pub(super) has_zeroes: bool,
    /// It tells which parts have data.
    pub(super) has_map: bool,
    /// Offsets and lengths are multiples of it.
    pub(super) block_bytes_min: u32,
    /// Longest data of a command.
    pub(super) data_bytes_max: u32,
    /// Longest range that becomes zeroes by one command.
    pub(super) zeroed_bytes_max: u64,
    /// Connections at the same time.
    pub(super) connection_count: usize,
}

/// The end of a command: its slot, and its error.
pub(crate) type Ended = (u32, Option<u32>);

/// Why a connection cannot go on.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Lost {
    #[error("the server has ended it")]
    Ended,
    #[error("{0}")]
    Failed(#[from] io::Error),
    #[error("the server broke the protocol: {0}")]
    Violation(String),
}

impl From<Errno> for Lost {
    fn from(errno: Errno) -> Self {
        Self::Failed(errno.into())
    }
}

/// Settings of a namespace in another process.
#[derive(Clone, Debug)]
pub(crate) struct RemoteSettings<R> {
    pub(crate) place: R,
    pub(crate) block_bytes: Option<u32>,
    pub(crate) is_read_only: bool,
}

/// A namespace in another process.
pub(crate) struct RemoteStore<R: Remote> {
    shared: Arc<Shared<R>>,
}

impl<R: Remote> RemoteStore<R> {
    /// Connects to the server.
    ///
    /// # Errors
    /// The problem of the server or its storage, with its remedy.
    pub(crate) fn open(settings: RemoteSettings<R>) -> Result<Self, OpenError> {
        let RemoteSettings { place, block_bytes, is_read_only: wants_read_only } = settings;
        let problem = |why: String| OpenError::Remote { name: place.to_string(), why };
        let block_bytes = block_bytes.unwrap_or(BLOCK_BYTES_DEFAULT);
        if !BLOCK_BYTES.contains(&block_bytes) || !block_bytes.is_power_of_two() {
            return Err(OpenError::BlockSize(block_bytes));
        }
        let connected = place.connect(CONNECT_LIMIT).map_err(problem)?;
        let abilities = connected.abilities;
        let is_read_only = wants_read_only || abilities.is_read_only;
        if !block_bytes.is_multiple_of(abilities.block_bytes_min.max(1)) {
            let needed = abilities.block_bytes_min;
            return Err(problem(format!("its blocks have {needed} bytes: give lba={needed}")));
        }
        // File offsets are signed.
        if abilities.bytes > i64::MAX.cast_unsigned() {
            return Err(problem(format!(
                "it has {} bytes, more than any namespace can have",
                abilities.bytes
            )));
        }
        if abilities.bytes < block_bytes.into() {
            let remedy = "make it larger where its server is";
            return Err(OpenError::Empty { name: place.to_string(), remedy });
        }
        if !is_read_only && !abilities.has_flush {
            let why = "its server has no flush, so nothing would ever be known to be durable: give readonly to serve it for reading";
            return Err(problem(why.into()));
        }
        if is_read_only && !wants_read_only {
            tracing::info!(storage = %place, "read-only, as its server says");
        }
        Ok(Self { shared: Arc::new(Shared::new(place, block_bytes, is_read_only, connected)) })
    }
}

impl<R: Remote> BlockStore for RemoteStore<R> {
    fn geometry(&self) -> Geometry {
        self.shared.geometry()
    }

    fn attach(&self) -> io::Result<Box<dyn Backend>> {
        Ok(Box::new(RemoteBackend::new(Arc::clone(&self.shared))?))
    }

    fn resize(&self, _: u64) -> io::Result<()> {
        let why = "it has the size that its server gives it: change it there";
        Err(io::Error::new(io::ErrorKind::Unsupported, why))
    }

    fn reopen(&self) -> io::Result<()> {
        let shared = &self.shared;
        if !shared.gate().is_closed() {
            return Ok(());
        }
        shared.bytes.store(shared.seen_bytes(), Ordering::Release);
        *lock(&shared.reason) = None;
        shared.gate.fetch_add(1, Ordering::AcqRel);
        tracing::info!(storage = %shared.place, "reopened");
        Ok(())
    }

    fn generation(&self) -> Generation {
        self.shared.gate()
    }

    fn closed_because(&self) -> Option<String> {
        if !self.shared.gate().is_closed() {
            return None;
        }
        // The gate closes a moment before the reason is there.
        Some(lock(&self.shared.reason).clone().unwrap_or_else(|| "it was closed".to_owned()))
    }

    fn health(&self) -> Health {
        Health::when_full(self.shared.is_full.load(Ordering::Relaxed))
    }

    fn can_change_underneath(&self) -> bool {
        true
    }

    /// Adopts growth that a new connection or a look has shown.
    fn revalidate(&self) -> Option<Grown> {
        let shared = &self.shared;
        if let Some(bytes) = shared.place.bytes_now() {
            shared.seen_bytes.store(bytes, Ordering::Release);
        }
        let (before, after) = (shared.bytes(), shared.seen_bytes());
        if shared.gate().is_closed() || after <= before {
            return None;
        }
        shared.bytes.store(after, Ordering::Release);
        Some(Grown { before, after })
    }
}
