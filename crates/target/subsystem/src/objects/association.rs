//! State that the lanes of one controller share with the control plane.

use std::sync::atomic::{AtomicU64, Ordering};

use wire::nqn::HostName;

use crate::objects::flush_epochs::FlushEpochs;

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

    /// The host.
    #[must_use]
    pub fn host(&self) -> &HostName {
        &self.host
    }

    /// Records that a lane received commands in this turn.
    #[inline]
    pub fn on_sign(&self, now_ns: u64) {
        // A thread that was held up since it read the clock has an older time than a lane of another thread.
        let last_ns = self.last_sign_ns();
        if now_ns > last_ns {
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

    /// Time of the last command received on any lane, ns.
    #[must_use]
    pub fn last_sign_ns(&self) -> u64 {
        self.last_sign_ns.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lane_with_an_older_clock_takes_no_sign_of_life_back() {
        let association = Association::new("nqn.2026-01.io.nvlane:host".parse().expect("a good name"));
        for (now_ns, last_ns) in [(50, 50), (70, 70), (60, 70), (0, 70), (71, 71)] {
            association.on_sign(now_ns);
            assert_eq!(association.last_sign_ns(), last_ns);
        }
        association.on_late_sign(65);
        assert_eq!(association.last_sign_ns(), 71);
    }
}
