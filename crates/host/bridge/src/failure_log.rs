//! Log lines about failures that may be as many as requests.

use std::time::{Duration, Instant};

/// Shortest time between two log lines.
const LOG_TIME: Duration = Duration::from_secs(1);

/// At most one line a second, and the number of failures that had none.
#[derive(Debug, Default)]
pub(crate) struct FailureLog {
    logged: Option<Instant>,
    unlogged: u64,
}

impl FailureLog {
    /// A failure: whether it has a line, after one about this number that had none.
    pub(crate) fn admit(&mut self) -> Option<u64> {
        let now = Instant::now();
        if self.logged.is_some_and(|last| now.duration_since(last) < LOG_TIME) {
            self.unlogged += 1;
            return None;
        }
        self.logged = Some(now);
        Some(self.take_unlogged())
    }

    /// The failures that had no line since the last one.
    pub(crate) fn take_unlogged(&mut self) -> u64 {
        std::mem::take(&mut self.unlogged)
    }
}
