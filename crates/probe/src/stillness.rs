//! Whether this machine stands still now and then: suspended, or without a processor for us. Nothing that took its time
//! then tells of the peer.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const TICK: Duration = Duration::from_millis(20);

/// A tick that is late by so much is one of stillness.
const LATE: Duration = Duration::from_millis(500);

/// Counts the times of stillness.
#[derive(Debug)]
pub(crate) struct Stillness {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    is_over: AtomicBool,
    count: AtomicU64,
}

impl Stillness {
    /// Begins to watch.
    pub(crate) fn watch() -> Self {
        let shared = Arc::new(Shared::default());
        let watched = Arc::clone(&shared);
        let thread = std::thread::spawn(move || {
            while !watched.is_over.load(Ordering::Relaxed) {
                let start = Instant::now();
                std::thread::sleep(TICK);
                if start.elapsed() > TICK + LATE {
                    watched.count.fetch_add(1, Ordering::Relaxed);
                }
            }
        });
        Self { shared, thread: Some(thread) }
    }

    /// Lets the watch see what has just been: whoever wakes with it may be faster.
    pub(crate) fn settle() {
        std::thread::sleep(5 * TICK);
    }

    /// How often so far.
    pub(crate) fn total(&self) -> u64 {
        self.shared.count.load(Ordering::Relaxed)
    }
}

impl Drop for Stillness {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
