//! Detects that this machine stood still: suspended, or without a processor for this process. Times measured meanwhile
//! say nothing about the peer.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const TICK: Duration = Duration::from_millis(20);

/// A tick late by more than this counts as a standstill.
const LATE: Duration = Duration::from_millis(500);

/// Counts standstills.
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
    /// Starts the watch.
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

    /// Waits for the watch's next tick, as the caller may wake up before it.
    pub(crate) fn settle() {
        std::thread::sleep(5 * TICK);
    }

    /// Number of standstills so far.
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
