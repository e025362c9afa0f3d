//! A thread of the server that measures for a bounded time, and whose outcome a later request asks for.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Time for a thread whose measurement is over to end.
const END_TIME: Duration = Duration::from_secs(10);

/// A thread that measures. It ends with this value.
#[derive(Debug)]
pub(super) struct Measuring<Outcome> {
    /// Its work, for errors: "the program".
    what: &'static str,
    stops: Arc<AtomicBool>,
    thread: Option<JoinHandle<Result<Outcome, String>>>,
}

impl<Outcome: Send + 'static> Measuring<Outcome> {
    /// Starts work in a thread of this name, which ends early once the flag that it gets is set.
    pub(super) fn start(
        what: &'static str,
        thread: &str,
        work: impl FnOnce(Arc<AtomicBool>) -> Result<Outcome, String> + Send + 'static,
    ) -> Result<Self, String> {
        let stops = Arc::new(AtomicBool::new(false));
        let is_stopped = Arc::clone(&stops);
        let thread = std::thread::Builder::new().name(thread.into()).spawn(move || work(is_stopped));
        let thread = thread.map_err(|error| format!("cannot start a thread: {error}"))?;
        Ok(Self { what, stops, thread: Some(thread) })
    }

    /// Ends the work now. Its outcome.
    pub(super) fn cut(self) -> Result<Outcome, String> {
        self.stop();
        self.end()
    }

    /// The outcome of a measurement whose time is over.
    pub(super) fn end(mut self) -> Result<Outcome, String> {
        let thread = self.thread.take().ok_or("it has ended")?;
        let until = Instant::now() + END_TIME;
        while !thread.is_finished() {
            if Instant::now() >= until {
                self.thread = Some(thread);
                return Err(format!("{} still runs", self.what));
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        thread.join().map_err(|_| format!("{} panicked", self.what))?
    }
}

impl<Outcome> Measuring<Outcome> {
    fn stop(&self) {
        self.stops.store(true, Ordering::Release);
        if let Some(thread) = &self.thread {
            thread.thread().unpark();
        }
    }
}

impl<Outcome> Drop for Measuring<Outcome> {
    fn drop(&mut self) {
        self.stop();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
