//! Who has been told that writes may be lost.
//!
//! A target that is lost may have taken its volatile cache with it: the first Flush afterwards fails
//! ([`Failure::Unflushed`](host::Failure::Unflushed)), and the lanes of one export share that answer, so it comes once. A target
//! whose storage failed tells each host once, too. But each NBD connection may belong to another client, and each client must hear
//! of it. So the ledger notes a failed Flush, and fails the next one of every other connection too. A connection that ends before
//! leaves its debt to the next one: it may be the same client's.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use host::FlushEpoch;

/// What the clients of a namespace share about their flushes.
#[derive(Debug, Default)]
pub(crate) struct SharedFlushes {
    epoch: FlushEpoch,
    ledger: Arc<FlushLedger>,
}

impl SharedFlushes {
    /// A new client's part: the epoch of its lanes, and its place in the ledger.
    pub(crate) fn join(&mut self) -> (FlushEpoch, FlushMember) {
        if self.ledger.is_settled() {
            // A loss while nothing was left to flush is no loss.
            *self = Self::default();
        }
        (self.epoch.clone(), self.ledger.join())
    }
}

/// The ledger of one export.
#[derive(Debug, Default)]
pub(crate) struct FlushLedger {
    state: Mutex<State>,
    /// A write has completed that no Flush covers yet.
    is_dirty: AtomicBool,
}

#[derive(Debug, Default)]
struct State {
    /// Losses so far.
    losses: u64,
    /// Losses that each connection has been told.
    told: BTreeMap<u64, u64>,
    /// The number of the next connection.
    next: u64,
    /// A connection ended before it was told.
    is_owed: bool,
}

impl FlushLedger {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A write has completed.
    #[inline]
    pub(crate) fn note_write(&self) {
        if !self.is_dirty.load(Ordering::Relaxed) {
            self.is_dirty.store(true, Ordering::Relaxed);
        }
    }

    /// Unflushed writes may be lost, as the Flush of another export of this lane reported: the next Flush of each connection fails.
    pub(crate) fn note_loss(&self) {
        let mut state = self.lock();
        state.losses += 1;
        state.is_owed |= state.told.is_empty() && self.is_dirty.load(Ordering::Relaxed);
    }

    /// Whether no connection is open, and nothing was written that a Flush must cover: the next connection begins anew.
    pub(crate) fn is_settled(&self) -> bool {
        self.lock().told.is_empty() && !self.is_dirty.load(Ordering::Relaxed)
    }

    /// A new connection.
    pub(crate) fn join(self: &Arc<Self>) -> FlushMember {
        let mut state = self.lock();
        let losses = state.losses;
        let is_behind = state.told.values().any(|told| *told < losses);
        let is_owed = std::mem::take(&mut state.is_owed);
        let told = if is_behind || is_owed { losses.saturating_sub(1) } else { losses };
        let number = state.next;
        state.next += 1;
        state.told.insert(number, told);
        FlushMember { ledger: Arc::clone(self), number }
    }
}

/// A connection in the ledger.
#[derive(Debug)]
pub(crate) struct FlushMember {
    ledger: Arc<FlushLedger>,
    number: u64,
}

impl FlushMember {
    /// A write has completed.
    #[inline]
    pub(crate) fn note_write(&self) {
        self.ledger.note_write();
    }

    /// A Flush is submitted: it covers all writes so far, unless it fails.
    pub(crate) fn on_flush(&self) {
        self.ledger.is_dirty.store(false, Ordering::Relaxed);
    }

    /// Whether this connection's Flush must fail because another one's has. Then it has been told.
    pub(crate) fn take_loss(&self) -> bool {
        let mut state = self.ledger.lock();
        let losses = state.losses;
        state.told.insert(self.number, losses).is_some_and(|told| told < losses)
    }

    /// A Flush of this connection failed.
    pub(crate) fn on_failed(&self) {
        self.note_write();
        // Two at once report the same loss: the second one finds it noted.
        if self.take_loss() {
            return;
        }
        let mut state = self.ledger.lock();
        state.losses += 1;
        let losses = state.losses;
        state.told.insert(self.number, losses);
    }
}

impl Drop for FlushMember {
    fn drop(&mut self) {
        let mut state = self.ledger.lock();
        let told = state.told.remove(&self.number);
        let losses = state.losses;
        state.is_owed |= told.is_some_and(|told| told < losses);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_connection_is_told_once() {
        let ledger = Arc::<FlushLedger>::default();
        let (one, two) = (ledger.join(), ledger.join());
        assert!(!one.take_loss() && !two.take_loss());
        one.on_failed();
        assert!(!one.take_loss());
        assert!(two.take_loss() && !two.take_loss());
        two.on_failed();
        assert!(one.take_loss() && !one.take_loss());
    }

    #[test]
    fn two_answers_about_one_loss_are_one_loss() {
        let ledger = Arc::<FlushLedger>::default();
        let (one, two) = (ledger.join(), ledger.join());
        one.on_failed();
        two.on_failed();
        assert!(!one.take_loss() && !two.take_loss());
    }

    #[test]
    fn a_connection_begins_anew_where_nothing_is_left_to_flush() {
        let ledger = Arc::<FlushLedger>::default();
        assert!(ledger.is_settled());
        let one = ledger.join();
        assert!(!ledger.is_settled());
        one.note_write();
        drop(one);
        assert!(!ledger.is_settled(), "a write that no flush covers");
        let two = ledger.join();
        two.on_flush();
        two.on_failed();
        drop(two);
        assert!(!ledger.is_settled(), "the flush has failed");
        let three = ledger.join();
        three.on_flush();
        drop(three);
        assert!(ledger.is_settled());
    }

    #[test]
    fn a_loss_that_another_export_reports_is_told_once_to_each() {
        let ledger = Arc::<FlushLedger>::default();
        let one = ledger.join();
        ledger.note_loss();
        assert!(one.take_loss() && !one.take_loss());
        drop(one);
        ledger.note_loss();
        assert!(!ledger.join().take_loss(), "nothing was written");
        ledger.note_write();
        ledger.note_loss();
        assert!(ledger.join().take_loss(), "the writer's next Flush fails");
        assert!(!ledger.join().take_loss());
    }

    #[test]
    fn a_new_connection_inherits_what_others_were_not_told() {
        let ledger = Arc::<FlushLedger>::default();
        let (one, two) = (ledger.join(), ledger.join());
        one.on_failed();
        // The client of `two` may have opened it.
        assert!(ledger.join().take_loss());
        assert!(two.take_loss());
        assert!(!ledger.join().take_loss(), "all have been told");
        one.on_failed();
        drop((one, two));
        assert!(ledger.join().take_loss(), "the debt of a connection that has ended");
        assert!(!ledger.join().take_loss());
    }
}
