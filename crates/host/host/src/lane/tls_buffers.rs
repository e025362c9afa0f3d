//! When a lane frees the buffers of its TLS: in the first poll or wait of its owner, once it has been idle for a while.

/// Time without commands after which the buffers are freed, ns.
const IDLE_NS: u64 = 5_000_000_000;

/// The buffers of a lane's TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TlsBuffers {
    /// There is no TLS.
    None,
    /// There may be some: they were used last at this time.
    Used { at_ns: u64 },
    /// They were freed, and nothing was received or sent since then.
    Freed,
}

impl TlsBuffers {
    /// Whether they are to be freed now, in a lane that is in use or not.
    pub(super) fn is_to_be_freed(&mut self, is_used: bool, now_ns: u64) -> bool {
        if is_used {
            *self = Self::Used { at_ns: now_ns };
        }
        let is_due = self.deadline_ns().is_some_and(|at_ns| at_ns <= now_ns);
        if is_due {
            *self = Self::Freed;
        }
        is_due
    }

    /// When they are to be freed if the lane stays idle.
    pub(super) fn deadline_ns(self) -> Option<u64> {
        if let Self::Used { at_ns } = self { Some(at_ns.saturating_add(IDLE_NS)) } else { None }
    }
}
