//! A namespace on an export of an NBD server: opening and reopening it.
//!
//! ```text
//! reactor: Backend::start ─▶ Tasks ─▶ Wire ═══▶ server       with a connection of its own
//!                     └────▶ Job ─▶ the inbox of a reactor that has one, if the server takes no more
//! thread `nbd-connect`: connects and negotiates ─▶ inbox of the reactor, which repeats what was not answered
//! ```

mod backend;
mod connect;
mod place;
mod shared;
mod task;
#[cfg(test)]
mod tests;
mod wire;

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use nbd_wire::ExportFlags;

use self::backend::NbdBackend;
use self::shared::{Shared, lock};
use crate::health::Health;
use crate::namespace::{BLOCK_BYTES, BLOCK_BYTES_DEFAULT, Backend, BlockStore, Generation, Geometry, Grown};
use crate::open_error::OpenError;

pub(crate) use self::place::{CONNECTION_LIMIT_DEFAULT, NBD_DEADLINE_S_DEFAULT};
pub use self::place::{NbdPlace, NbdServer};

/// Time that a server has for a connection and its negotiation.
const CONNECT_LIMIT: Duration = Duration::from_secs(5);

/// Settings of a namespace on an export.
#[derive(Clone, Debug)]
pub(crate) struct NbdSettings {
    pub(crate) place: NbdPlace,
    pub(crate) block_bytes: Option<u32>,
    pub(crate) is_read_only: bool,
}

/// A namespace on an export.
pub(crate) struct NbdStore {
    shared: Arc<Shared>,
}

impl NbdStore {
    /// Connects to the server.
    ///
    /// # Errors
    /// The problem of the server or the export, with its remedy.
    pub(crate) fn open(settings: &NbdSettings) -> Result<Self, OpenError> {
        let place = &settings.place;
        let problem = |why: String| OpenError::Nbd { name: place.to_string(), why };
        let block_bytes = settings.block_bytes.unwrap_or(BLOCK_BYTES_DEFAULT);
        if !BLOCK_BYTES.contains(&block_bytes) || !block_bytes.is_power_of_two() {
            return Err(OpenError::BlockSize(block_bytes));
        }
        let connected = connect::connect(place, CONNECT_LIMIT).map_err(problem)?;
        let export = connected.export;
        let is_read_only = settings.is_read_only || export.flags.has(ExportFlags::READ_ONLY);
        if export.block_bytes_min > block_bytes {
            let needed = export.block_bytes_min;
            return Err(problem(format!("its blocks have {needed} bytes: give lba={needed}")));
        }
        if export.bytes < block_bytes.into() {
            let remedy = "make it larger where its server is";
            return Err(OpenError::Empty { name: place.to_string(), remedy });
        }
        if !is_read_only && !export.flags.has(ExportFlags::FLUSH) {
            let why = "its server has no flush, so nothing would ever be known to be durable: give readonly to serve it for reading";
            return Err(problem(why.into()));
        }
        if is_read_only && !settings.is_read_only {
            tracing::info!(export = %place, "read-only, as its server says");
        }
        let shared = Shared::new(place.clone(), block_bytes, is_read_only, connected);
        Ok(Self { shared: Arc::new(shared) })
    }
}

impl BlockStore for NbdStore {
    fn geometry(&self) -> Geometry {
        self.shared.geometry()
    }

    fn attach(&self) -> io::Result<Box<dyn Backend>> {
        Ok(Box::new(NbdBackend::new(Arc::clone(&self.shared))?))
    }

    fn resize(&self, _: u64) -> io::Result<()> {
        let why = "an export has the size that its server gives it: change it there, and it is taken over with the next connection";
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
        tracing::info!(export = %shared.place, "reopened");
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

    /// Adopts growth that a new connection has shown.
    fn revalidate(&self) -> Option<Grown> {
        let shared = &self.shared;
        let (before, after) = (shared.bytes(), shared.seen_bytes());
        if shared.gate().is_closed() || after <= before {
            return None;
        }
        shared.bytes.store(after, Ordering::Release);
        Some(Grown { before, after })
    }
}
