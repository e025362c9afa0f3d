//! State that the lanes of one controller share with the control plane.

use std::sync::atomic::{AtomicU64, Ordering};

use wire::nqn::HostName;

use crate::flush_epochs::FlushEpochs;

/// State that the lanes of one controller share with the control plane.
#[derive(Debug)]
pub struct Association {
    /// The host.
    pub(crate) host: HostName,
    /// When a lane last took in a command, or when the command had arrived if it was held back, ns of the reactors'
    /// clock.
    last_sign_ns: AtomicU64,
    /// Which flushes of the association have covered which writes.
    pub(crate) flush_epochs: FlushEpochs,
}

impl Association {
    /// That of a new controller of this host.
    pub(crate) fn new(host: HostName) -> Self {
        Self { host, last_sign_ns: AtomicU64::new(0), flush_epochs: FlushEpochs::default() }
    }

    /// Records that a lane received commands in this turn.
    #[inline]
    pub fn on_sign(&self, now_ns: u64) {
        // Lanes may overwrite each other's time by one turn, less than any keep-alive timer resolves.
        self.last_sign_ns.store(now_ns, Ordering::Relaxed);
    }

    /// Records that a lane took in commands that were held back since `arrived_ns` or before.
    #[cold]
    pub(crate) fn on_late_sign(&self, arrived_ns: u64) {
        self.last_sign_ns.fetch_max(arrived_ns, Ordering::Relaxed);
    }

    /// Time of the last command received on any lane, ns.
    #[must_use]
    pub fn last_sign_ns(&self) -> u64 {
        self.last_sign_ns.load(Ordering::Relaxed)
    }
}
