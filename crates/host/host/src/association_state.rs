//! State of an association that its thread publishes and its handles read or wait for.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use host_core::association_machine::ControllerInfo;
use host_core::attachment::Attachment;
use proto::host_namespaces::NamespaceInfo;

use crate::error::Error;
use crate::event::{Event, Subscriber};

/// The state, behind a lock.
#[derive(Debug, Default)]
pub(crate) struct AssociationState {
    state: Mutex<State>,
    changed: Condvar,
    /// Scans of the namespaces so far.
    scan_count: AtomicU64,
}

/// The state itself.
#[derive(Debug, Default)]
pub(crate) struct State {
    /// Present while the association is up.
    pub(crate) attachment: Option<Arc<Attachment>>,
    /// As of the last time the association came up.
    pub(crate) controller: Option<Arc<ControllerInfo>>,
    /// As of the last scan.
    pub(crate) namespaces: Arc<[NamespaceInfo]>,
    /// Why the association ended for good.
    pub(crate) over: Option<Arc<Error>>,
    /// Receivers of events: registered here, not by a message, so that none is missed between a subscription and its
    /// effect.
    pub(crate) subscribers: Vec<Arc<Subscriber>>,
    /// Queue ids of existing lanes.
    pub(crate) qids: BTreeSet<u16>,
}

impl AssociationState {
    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        // A panic elsewhere leaves every field whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The number of scans so far: another number says that the namespaces may have changed.
    pub(crate) fn scan_count(&self) -> u64 {
        self.scan_count.load(Ordering::Acquire)
    }

    /// As [`change`](Self::change), of the namespaces.
    pub(crate) fn change_namespaces(&self, change: impl FnOnce(&mut State)) -> Vec<Arc<Subscriber>> {
        self.change(|state| {
            change(state);
            // A thread that sees the change sees this number, too.
            self.scan_count.fetch_add(1, Ordering::Release);
        })
    }

    /// Changes the state, and wakes threads in [`wait_up`](Self::wait_up). Returns the receivers of the event of this
    /// change: not those who subscribe after it.
    pub(crate) fn change(&self, change: impl FnOnce(&mut State)) -> Vec<Arc<Subscriber>> {
        let mut state = self.lock();
        change(&mut state);
        self.changed.notify_all();
        state.subscribers.clone()
    }

    /// Sends an event to these subscribers, and forgets those that have gone.
    pub(crate) fn tell(&self, subscribers: &[Arc<Subscriber>], event: &Event) {
        for gone in subscribers.iter().filter(|subscriber| !subscriber.send(event.clone())) {
            self.lock().subscribers.retain(|subscriber| !Arc::ptr_eq(subscriber, gone));
        }
    }

    /// Sends an event to all subscribers.
    pub(crate) fn publish(&self, event: &Event) {
        let all = self.lock().subscribers.clone();
        self.tell(&all, event);
    }

    /// Why the association ended for good, if it has.
    pub(crate) fn over(&self) -> Option<Arc<Error>> {
        self.lock().over.clone()
    }

    /// Blocks until the association is up, at most `limit`. Returns `None` if it is not up by then.
    ///
    /// # Errors
    /// Why it ended for good.
    pub(crate) fn wait_up(&self, limit: Duration) -> Result<Option<Arc<Attachment>>, Error> {
        let is_down = |state: &mut State| state.over.is_none() && state.attachment.is_none();
        let waited = self.changed.wait_timeout_while(self.lock(), limit, is_down);
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        match &state.over {
            Some(over) => Err(Error::clone(over)),
            None => Ok(state.attachment.clone()),
        }
    }
}
