//! Futures of blocking work (name resolution, files, the wait for a target), which runs on a thread of its own: a task
//! that connects does not delay other tasks of its executor.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use crate::association::Association;
use crate::error::Error;

/// The future of the work's outcome.
#[must_use = "a future that is not awaited ends what it began"]
pub(super) struct OnThread<T> {
    shared: Arc<Shared<T>>,
}

struct Shared<T>(Mutex<State<T>>);

struct State<T> {
    outcome: Outcome<T>,
    /// The association that the work started. It ends if the future is dropped before the work is done.
    begun: Option<Association>,
    is_dropped: bool,
}

enum Outcome<T> {
    Waiting(Option<Waker>),
    Done(Result<T, Error>),
    Taken,
}

/// Registers the association that the work starts.
pub(super) struct Began<'a, T>(&'a Shared<T>);

impl<T> Shared<T> {
    fn lock(&self) -> MutexGuard<'_, State<T>> {
        // No code panics while it holds the lock.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn finish(&self, outcome: Result<T, Error>) {
        let mut state = self.lock();
        state.begun = None;
        if state.is_dropped {
            drop(state);
            // On this thread, where the drop may block.
            return drop(outcome);
        }
        let before = std::mem::replace(&mut state.outcome, Outcome::Done(outcome));
        drop(state);
        if let Outcome::Waiting(Some(waker)) = before {
            waker.wake();
        }
    }
}

impl<T> Began<'_, T> {
    /// Registers an association: it ends if the future is dropped before the work is done.
    pub(super) fn association(&self, association: &Association) {
        // A task may drop the last handle, and must not block.
        association.detach();
        let mut state = self.0.lock();
        if state.is_dropped {
            association.close_soon();
        } else {
            state.begun = Some(association.clone());
        }
    }
}

/// Runs work on a thread of its own. Dropping the future ends the association that the work started, and with it the
/// work.
pub(super) fn on_thread<T: Send + 'static>(
    name: &'static str,
    work: impl FnOnce(&Began<'_, T>) -> Result<T, Error> + Send + 'static,
) -> OnThread<T> {
    let state = State { outcome: Outcome::Waiting(None), begun: None, is_dropped: false };
    let shared = Arc::new(Shared(Mutex::new(state)));
    let theirs = Arc::clone(&shared);
    let run = move || {
        let outcome = work(&Began(&theirs));
        theirs.finish(outcome);
    };
    if let Err(error) = std::thread::Builder::new().name(name.into()).spawn(run) {
        shared.finish(Err(Error::system("start a thread", error)));
    }
    OnThread { shared }
}

impl<T> Future for OnThread<T> {
    type Output = Result<T, Error>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.shared.lock();
        match std::mem::replace(&mut state.outcome, Outcome::Taken) {
            Outcome::Done(outcome) => Poll::Ready(outcome),
            Outcome::Waiting(_) => {
                state.outcome = Outcome::Waiting(Some(context.waker().clone()));
                Poll::Pending
            }
            Outcome::Taken => panic!("a future is not polled after its end"),
        }
    }
}

impl<T> Drop for OnThread<T> {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.is_dropped = true;
        let begun = state.begun.take();
        drop(state);
        if let Some(association) = begun {
            association.close_soon();
        }
    }
}
