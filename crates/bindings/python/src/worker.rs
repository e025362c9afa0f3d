//! A thread that runs calls of the host library which keep their thread, one after the other.

use std::future::Future;
use std::pin::Pin;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

use host::Error;

/// What the thread has, opened by its first job, and again after its end.
pub(crate) trait State: 'static {
    /// Whether its connection has ended for good.
    fn is_over(&self) -> bool;
}

type Job<S> = Box<dyn FnOnce(Result<&mut S, Error>) + Send>;

/// Jobs of the thread, which ends after the last of them once this is dropped.
pub(crate) struct Worker<S> {
    jobs: Sender<Job<S>>,
}

impl<S: State> Worker<S> {
    /// Starts the thread. The first job calls `open`, which connects to the target; so does the first job after a loss.
    ///
    /// # Errors
    /// The process has no more threads.
    pub(crate) fn start(open: impl Fn() -> Result<S, Error> + Send + 'static) -> std::io::Result<Self> {
        let (jobs, to_do) = channel::<Job<S>>();
        std::thread::Builder::new().name("nvlane-values".into()).spawn(move || {
            let mut state: Option<S> = None;
            for job in to_do {
                state = state.filter(|state| !state.is_over());
                match &mut state {
                    Some(state) => job(Ok(state)),
                    none => match open() {
                        Ok(opened) => job(Ok(none.insert(opened))),
                        Err(error) => job(Err(error)),
                    },
                }
            }
        })?;
        Ok(Self { jobs })
    }

    /// The future of a job's result.
    pub(crate) fn run<T: Send + 'static>(
        &self,
        job: impl FnOnce(&mut S) -> Result<T, Error> + Send + 'static,
    ) -> impl Future<Output = Result<T, Error>> + Send + 'static {
        let slot = Arc::new(Mutex::new(Slot { result: None, waker: None }));
        let end = End(Arc::clone(&slot));
        // A thread that has ended drops the job, and with it `end`.
        let _ = self.jobs.send(Box::new(move |state| {
            let result = state.and_then(job);
            end.finish(result);
        }));
        Reply(slot)
    }
}

struct Slot<T> {
    result: Option<Result<T, Error>>,
    waker: Option<Waker>,
}

/// Ends a job, also if it is dropped.
struct End<T>(Arc<Mutex<Slot<T>>>);

impl<T> End<T> {
    /// The first result counts.
    fn finish(&self, result: Result<T, Error>) {
        let mut slot = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        slot.result.get_or_insert(result);
        let waker = slot.waker.take();
        drop(slot);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl<T> Drop for End<T> {
    fn drop(&mut self) {
        self.finish(Err(Error::Ended));
    }
}

struct Reply<T>(Arc<Mutex<Slot<T>>>);

impl<T> Future for Reply<T> {
    type Output = Result<T, Error>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut slot = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match slot.result.take() {
            Some(result) => Poll::Ready(result),
            None => {
                slot.waker = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }
}
