//! State that all connections of a fake target share.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use wire::nqn::Nqn;

/// Block size of the namespace, bytes.
pub const BLOCK_BYTES: u32 = 4096;

/// Size of the namespace, blocks.
pub const BLOCK_COUNT: u64 = 4096;

/// CNTLID of the only controller.
const CNTLID: u16 = 1;

/// Shared state of a fake target.
#[derive(Debug)]
pub struct Stage {
    /// Where the target listens.
    pub address: SocketAddr,
    /// Its subsystem.
    pub subsystem: Nqn,
    is_injected: AtomicBool,
    is_over: AtomicBool,
    pdu_count: AtomicU64,
    content: Mutex<Vec<u8>>,
}

impl Stage {
    /// The state of a target that has just started: its namespace is zeroed.
    #[must_use]
    pub fn new(address: SocketAddr, subsystem: Nqn) -> Self {
        let bytes = usize::try_from(BLOCK_COUNT).expect("small") * BLOCK_BYTES as usize;
        Self {
            address,
            subsystem,
            is_injected: AtomicBool::new(false),
            is_over: AtomicBool::new(false),
            pdu_count: AtomicU64::new(0),
            content: Mutex::new(vec![0; bytes]),
        }
    }

    /// Marks the fault as injected. A fault that waits for the host's reaction calls this before it waits.
    pub fn mark(&self) {
        self.is_injected.store(true, Ordering::SeqCst);
    }

    /// Whether the fault was injected.
    #[must_use]
    pub fn is_injected(&self) -> bool {
        self.is_injected.load(Ordering::SeqCst)
    }

    /// Ends all sessions.
    pub fn end(&self) {
        self.is_over.store(true, Ordering::SeqCst);
    }

    /// Whether the target ends.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.is_over.load(Ordering::SeqCst)
    }

    /// Counts a PDU from a host.
    pub fn count_pdu(&self) {
        self.pdu_count.fetch_add(1, Ordering::SeqCst);
    }

    /// Number of PDUs received from hosts.
    #[must_use]
    pub fn pdu_count(&self) -> u64 {
        self.pdu_count.load(Ordering::SeqCst)
    }

    /// The controller's identifier.
    #[must_use]
    pub fn cntlid(&self) -> u16 {
        CNTLID
    }

    fn content(&self) -> MutexGuard<'_, Vec<u8>> {
        self.content.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads `length` bytes of the namespace from byte `start` on.
    ///
    /// # Panics
    /// If the range is outside the namespace.
    #[must_use]
    pub fn read(&self, start: usize, length: usize) -> Vec<u8> {
        self.content()[start..start + length].to_vec()
    }

    /// Writes `data` to the namespace from byte `start` on.
    ///
    /// # Panics
    /// If the range is outside the namespace.
    pub fn write(&self, start: usize, data: &[u8]) {
        self.content()[start..start + data.len()].copy_from_slice(data);
    }
}
