//! State that the lanes of one controller share with the control plane.

use std::sync::atomic::{AtomicU64, Ordering};

use wire::nqn::{HostName, Nqn};

use crate::objects::flush_epochs::FlushEpochs;

/// A sign of life is recorded if it is later than the last recorded one by this much, ns: lanes on several reactors
/// share the record, and each change moves its cache line between them. A host may be 2 s late beyond its timeout.
const RESOLUTION_NS: u64 = 10_000_000;

/// State that the lanes of one controller share with the control plane.
#[derive(Debug)]
pub struct Association {
    /// The host.
    pub(crate) host: HostName,
    /// The subsystem; `None` for that of the discovery service.
    subsystem: Option<Nqn>,
    /// When a lane last took in a command, or up to [`RESOLUTION_NS`] before; when the command had arrived if it was held
    /// back. ns of the reactors' clock.
    last_sign_ns: AtomicU64,
    /// Which flushes of the association have covered which writes.
    pub(crate) flush_epochs: FlushEpochs,
}

impl Association {
    /// That of a new controller of this host in this subsystem; `None` for the discovery service.
    pub(crate) fn new(host: HostName, subsystem: Option<Nqn>) -> Self {
        Self { host, subsystem, last_sign_ns: AtomicU64::new(0), flush_epochs: FlushEpochs::default() }
    }

    /// The host.
    #[must_use]
    pub fn host(&self) -> &HostName {
        &self.host
    }

    /// The subsystem; `None` for that of the discovery service.
    #[must_use]
    pub fn subsystem(&self) -> Option<&Nqn> {
        self.subsystem.as_ref()
    }

    /// Records that a lane received commands in this turn.
    #[inline]
    pub fn on_sign(&self, now_ns: u64) {
        // A thread that was held up since it read the clock has an older time than a lane of another thread.
        let last_ns = self.last_sign_ns();
        if now_ns.saturating_sub(last_ns) >= RESOLUTION_NS {
            self.last_sign_ns.fetch_max(now_ns, Ordering::Relaxed);
        }
        debug_assert!(
            self.last_sign_ns() >= last_ns,
            "the last sign of life of host {} goes back from {last_ns} ns to {now_ns} ns",
            self.host
        );
    }

    /// Records that a lane took in commands that were held back since `arrived_ns` or before.
    #[cold]
    pub(crate) fn on_late_sign(&self, arrived_ns: u64) {
        self.last_sign_ns.fetch_max(arrived_ns, Ordering::Relaxed);
    }

    /// Time of the last command received on any lane, ns; up to 10 ms before it.
    #[must_use]
    pub fn last_sign_ns(&self) -> u64 {
        self.last_sign_ns.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn a_lane_with_an_older_clock_takes_no_sign_of_life_back() {
        let association = Association::new("nqn.2026-01.io.nvlane:host".parse().expect("a good name"), None);
        for (now_ms, last_ms) in [(50, 50), (70, 70), (60, 70), (0, 70), (90, 90)] {
            association.on_sign(now_ms * MS);
            assert_eq!(association.last_sign_ns(), last_ms * MS);
        }
        association.on_late_sign(85 * MS);
        assert_eq!(association.last_sign_ns(), 90 * MS);
    }

    #[test]
    fn signs_of_life_in_quick_succession_are_recorded_once() {
        let association = Association::new("nqn.2026-01.io.nvlane:host".parse().expect("a good name"), None);
        for (now_ns, last_ns) in [
            (50 * MS, 50 * MS),
            (50 * MS + 1, 50 * MS),
            (60 * MS - 1, 50 * MS),
            (60 * MS, 60 * MS),
            (69 * MS, 60 * MS),
            (71 * MS, 71 * MS),
        ] {
            association.on_sign(now_ns);
            assert_eq!(association.last_sign_ns(), last_ns);
        }
    }
}
