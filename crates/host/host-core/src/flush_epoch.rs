//! Flush epochs: which Flush may report success after an association was lost.
//!
//! Writes that were reported done before the loss may be gone from the target's volatile cache. The first Flush after
//! the loss therefore ends with [`Failure::Unflushed`], and no Flush succeeds until a caller
//! has received that answer. See [`reconnect`](crate::reconnect).
//!
//! A lane may report a write late: its thread did not run while another lane reconnected, or the task that awaits the
//! write was not polled. Once a caller has received `Unflushed` for the association of that write, the write is no longer
//! reported done: it ends with [`Failure::Interrupted`].

#[cfg(test)]
mod interleavings;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::failure::Failure;

/// Flush epoch: the newest association in which a successful Flush still covers all earlier writes. Shared by all lanes
/// of one handle.
///
/// By default the epoch advances when a lane hands out [`Failure::Unflushed`].
#[derive(Clone, Debug, Default)]
pub struct FlushEpoch {
    shared: Arc<Generations>,
    /// The handle calls [`acknowledge`](Self::acknowledge); handing out a completion does not.
    is_acknowledged_by_handle: bool,
}

/// Generations of the association; 0 for none yet.
#[derive(Debug, Default)]
struct Generations {
    /// A Flush succeeds in associations up to this one.
    covered: AtomicU64,
    /// `covered` once callers have received the `Unflushed` completions that are on their way.
    answered: AtomicU64,
}

impl FlushEpoch {
    /// An epoch of a handle whose callers receive completions later than its lanes hand them out: it advances with
    /// [`receive`](Self::receive).
    #[must_use]
    pub fn acknowledged_by_handle() -> Self {
        Self { is_acknowledged_by_handle: true, ..Self::default() }
    }

    /// The first lane that shares the epoch attaches to association `generation`: nothing was written before.
    fn begin(&self, generation: u64) {
        let _ = self.shared.covered.compare_exchange(0, generation, Ordering::Relaxed, Ordering::Relaxed);
    }

    fn covers(&self, generation: u64) -> bool {
        self.shared.covered.load(Ordering::Relaxed) >= generation
    }

    /// An `Unflushed` completion for the writes before association `generation` is on its way.
    fn answer(&self, generation: u64) {
        self.shared.answered.fetch_max(generation, Ordering::Relaxed);
    }

    /// A caller has received an `Unflushed` completion.
    fn acknowledge(&self) {
        self.shared.covered.fetch_max(self.shared.answered.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    /// Whether a caller has received the report that writes of association `generation` may be lost.
    fn has_told(&self, generation: u64) -> bool {
        self.shared.covered.load(Ordering::Relaxed) > generation
    }

    /// The result that a caller of the handle receives now for a completion. `written_in` is the association of a
    /// command that changed data.
    ///
    /// # Errors
    /// The failure of the completion, or [`Failure::Interrupted`] if no later Flush covers the write.
    pub fn receive(&self, result: Result<u64, Failure>, written_in: Option<u64>) -> Result<u64, Failure> {
        match (result, written_in) {
            (Err(Failure::Unflushed), _) => self.acknowledge(),
            // No Flush of a later association covers it, and a caller has received `Unflushed` for writes reported done
            // before.
            (Ok(_), Some(generation)) if self.has_told(generation) => return Err(Failure::Interrupted),
            _ => {}
        }
        result
    }
}

/// The flush epoch as one lane uses it.
#[derive(Debug, Default)]
pub(crate) struct FlushGate {
    epoch: FlushEpoch,
    /// Other lanes have the same epoch.
    is_shared: bool,
    /// An `Unflushed` completion waits to be handed out.
    has_answer: bool,
}

impl FlushGate {
    /// Shares an epoch with other lanes, in association `generation` if the lane is attached to one.
    pub(crate) fn share(&mut self, epoch: FlushEpoch, generation: Option<u64>) {
        (self.epoch, self.is_shared) = (epoch, true);
        if let Some(generation) = generation {
            self.begin(generation);
        }
    }

    /// The lane attaches to its first association: it has written nothing yet, lanes that share the epoch may have.
    pub(crate) fn begin(&self, generation: u64) {
        self.epoch.begin(generation);
    }

    /// Whether a Flush may be sent in association `generation`. If not, it ends with `Unflushed`.
    pub(crate) fn admits(&mut self, generation: u64) -> bool {
        let is_covered = self.epoch.covers(generation);
        if !is_covered {
            self.answer(generation);
        }
        is_covered
    }

    /// A Flush was outstanding when association `generation` was lost, and ends with `Unflushed`. That advances the
    /// epoch only if the lane is alone: another lane, not yet aware of the loss, may still hand out completions of
    /// writes that are lost with it. Then the next association's first Flush reports the loss.
    pub(crate) fn on_interrupted(&mut self, generation: u64) {
        if !self.is_shared {
            self.answer(generation + 1);
        }
    }

    /// Whether a write of association `generation`, which is lost, may still be reported done: a Flush that reports the
    /// loss follows.
    pub(crate) fn may_report(&self, generation: u64) -> bool {
        !self.epoch.has_told(generation)
    }

    fn answer(&mut self, generation: u64) {
        self.epoch.answer(generation);
        self.has_answer = true;
    }

    /// All completions of the lane were handed out.
    #[inline]
    pub(crate) fn on_drained(&mut self) {
        if std::mem::take(&mut self.has_answer) && !self.epoch.is_acknowledged_by_handle {
            self.epoch.acknowledge();
        }
    }
}
