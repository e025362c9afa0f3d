//! Events of an association, and their receivers.

use std::future::poll_fn;
use std::sync::mpsc::{Receiver, RecvError, RecvTimeoutError, Sender, TryRecvError, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use host_core::link_error::LinkError;
use wire::async_event::AsyncEvent;
use wire::id::Nsid;

use crate::error::Error;

/// A change of an association or of its controller; see [`Association::events`](crate::Association::events).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Event {
    /// The association is up, for the first time or again.
    Up,
    /// The association is lost; reconnecting begins.
    Down {
        /// Why.
        cause: LinkError,
    },
    /// An attempt to reconnect failed; another follows.
    AttemptFailed {
        /// Attempts so far.
        attempts: u32,
        /// Why the last one failed.
        cause: LinkError,
    },
    /// The admin queue was to authenticate again ([`Options::reauthenticate`](crate::Options::reauthenticate)), and the
    /// controller has refused. The host tries again after the interval, unless the controller ends the association.
    AuthenticationFailed {
        /// Why.
        cause: LinkError,
    },
    /// These namespaces were added, removed or changed: get them again.
    NamespacesChanged(Vec<Nsid>),
    /// The discovery log changed: read it again.
    DiscoveryChanged,
    /// Any other asynchronous event of the controller.
    Controller(AsyncEvent),
    /// The association ended for good.
    Over(Arc<Error>),
}

/// The events of an association, from a subscription on, in order; they end with the association, after
/// [`Event::Over`]. A thread waits for the next one by [`recv`](Self::recv) or as an iterator, a task by
/// [`next_event`](Self::next_event), on any executor. Dropping it unsubscribes.
#[derive(Debug)]
pub struct Events {
    receiver: Receiver<Event>,
    waker: Arc<EventWaker>,
}

impl Events {
    /// Waits for the next event.
    ///
    /// # Errors
    /// The association has ended, and all its events were received.
    pub fn recv(&self) -> Result<Event, RecvError> {
        self.receiver.recv()
    }

    /// Waits for the next event, at most for this time.
    ///
    /// # Errors
    /// As [`recv`](Self::recv), or no event arrived.
    pub fn recv_timeout(&self, timeout: Duration) -> Result<Event, RecvTimeoutError> {
        self.receiver.recv_timeout(timeout)
    }

    /// The events that have arrived.
    pub fn try_iter(&self) -> impl Iterator<Item = Event> {
        self.receiver.try_iter()
    }

    /// The next event; `None` once the association has ended, and all its events were received.
    pub async fn next_event(&mut self) -> Option<Event> {
        poll_fn(|context| self.poll_next(context)).await
    }

    /// As [`next_event`](Self::next_event), for a `Stream` of the caller's executor.
    pub fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Event>> {
        // An event that arrives after the second look wakes the task.
        for is_registered in [false, true] {
            match self.receiver.try_recv() {
                Ok(event) => return Poll::Ready(Some(event)),
                Err(TryRecvError::Disconnected) => return Poll::Ready(None),
                Err(TryRecvError::Empty) if !is_registered => {
                    *self.waker.lock() = Some(context.waker().clone());
                }
                Err(TryRecvError::Empty) => {}
            }
        }
        Poll::Pending
    }
}

impl Iterator for Events {
    type Item = Event;

    /// Waits for the next event.
    fn next(&mut self) -> Option<Event> {
        self.recv().ok()
    }
}

/// The task that waits for an event.
#[derive(Debug, Default)]
struct EventWaker(Mutex<Option<Waker>>);

impl EventWaker {
    fn lock(&self) -> MutexGuard<'_, Option<Waker>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake(&self) {
        if let Some(waker) = self.lock().take() {
            waker.wake();
        }
    }
}

/// Sends events to one [`Events`].
#[derive(Debug)]
pub(crate) struct Subscriber {
    /// Present until it is dropped.
    sender: Option<Sender<Event>>,
    waker: Arc<EventWaker>,
}

impl Subscriber {
    /// A sender and its receiver.
    pub(crate) fn new() -> (Self, Events) {
        let (sender, receiver) = channel();
        let waker = Arc::<EventWaker>::default();
        (Self { sender: Some(sender), waker: Arc::clone(&waker) }, Events { receiver, waker })
    }

    /// Sends an event. Returns whether the receiver still exists.
    pub(crate) fn send(&self, event: Event) -> bool {
        let is_sent = self.sender.as_ref().is_some_and(|sender| sender.send(event).is_ok());
        self.waker.wake();
        is_sent
    }
}

impl Drop for Subscriber {
    /// Wakes the task, for which no further event will arrive.
    fn drop(&mut self) {
        self.sender = None;
        self.waker.wake();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::task::Wake;

    use super::*;

    #[derive(Default)]
    struct Count(AtomicU32);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn a_task_is_woken_by_each_event_and_by_their_end() {
        let (subscriber, mut events) = Subscriber::new();
        let woken = Arc::<Count>::default();
        let waker = Waker::from(Arc::clone(&woken));
        let mut context = Context::from_waker(&waker);
        let count = || woken.0.load(Ordering::Relaxed);
        assert!(events.poll_next(&mut context).is_pending() && count() == 0);
        assert!(subscriber.send(Event::Up) && count() == 1);
        assert!(matches!(events.poll_next(&mut context), Poll::Ready(Some(Event::Up))));
        assert!(events.poll_next(&mut context).is_pending() && count() == 1);
        drop(subscriber);
        assert_eq!(count(), 2);
        assert!(matches!(events.poll_next(&mut context), Poll::Ready(None)));
    }

    #[test]
    fn a_receiver_that_is_gone_is_noticed() {
        let (subscriber, events) = Subscriber::new();
        drop(events);
        assert!(!subscriber.send(Event::Up));
    }
}
