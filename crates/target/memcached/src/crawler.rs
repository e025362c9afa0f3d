//! Dumps by memcached's crawler: a target serves one at a time.

use std::sync::{Arc, Mutex, MutexGuard};

/// Time after which a client that takes nothing of its dump no longer keeps others from theirs, s.
const STALLED_S: u32 = 10;

/// The dumps of the crawler of a target.
#[derive(Debug, Default)]
pub(crate) struct Crawler(Mutex<Turns>);

#[derive(Debug, Default)]
struct Turns {
    /// Number of the last turn.
    number: u64,
    /// The second in which the turn under way last had a piece.
    last_s: Option<u32>,
}

impl Crawler {
    fn turns(&self) -> MutexGuard<'_, Turns> {
        self.0.lock().expect("no holder panics")
    }
}

/// The turn of the only session of a target that has a dump of the crawler, until it is dropped.
#[derive(Debug)]
pub(crate) struct CrawlerTurn {
    crawler: Arc<Crawler>,
    number: u64,
}

impl CrawlerTurn {
    /// `None` while another session has it, and takes its dump.
    pub(crate) fn take(crawler: &Arc<Crawler>, now_s: u32) -> Option<Self> {
        let mut turns = crawler.turns();
        if turns.last_s.is_some_and(|last_s| now_s.saturating_sub(last_s) < STALLED_S) {
            return None;
        }
        turns.number += 1;
        turns.last_s = Some(now_s);
        Some(Self { crawler: Arc::clone(crawler), number: turns.number })
    }

    /// Notes that the client has taken a piece, unless the turn is that of another session by now.
    pub(crate) fn note(&self, now_s: u32) {
        let mut turns = self.crawler.turns();
        if turns.number == self.number {
            turns.last_s = Some(now_s);
        }
    }
}

impl Drop for CrawlerTurn {
    fn drop(&mut self) {
        let mut turns = self.crawler.turns();
        if turns.number == self.number {
            turns.last_s = None;
        }
    }
}
