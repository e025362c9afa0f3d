//! Events between the control plane and the writer: a bounded queue, whose lock is held for moments only.

use std::collections::VecDeque;
use std::fs::File;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use reactor::Source;
use serde::Serialize;

use super::Event;
use super::line::Line;
use crate::names::allowance::{Allowances, Rate};

/// Maximum number of events in the queue: about 2 MiB.
const EVENT_COUNT_MAX: usize = 4096;

/// Lines of one kind for one source.
const OF_SOURCE: Rate = Rate { burst: 500.0, per_s: 10.0 };

/// Lines of one kind for all sources.
const OF_ALL: Rate = Rate { burst: 4000.0, per_s: 80.0 };

/// Where lines go.
#[derive(Debug)]
pub(super) enum Destination {
    /// Nowhere: there is no audit log.
    None,
    /// To a file; it is opened again by this name if it is not open.
    File { path: PathBuf, file: Option<File> },
}

/// Lines that were left out, by cause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Omitted {
    /// More lines of a kind and source than their limit.
    pub(super) rate_limit: u64,
    /// The writer was slower than the events.
    pub(super) queue_full: u64,
    /// They could not be written.
    pub(super) not_written: u64,
}

impl Omitted {
    pub(super) fn write(self, line: &mut Line<'_>) {
        line.number("rate_limit", self.rate_limit);
        line.number("queue_full", self.queue_full);
        line.number("not_written", self.not_written);
    }

    /// Those that came since `earlier`.
    pub(super) fn since(self, earlier: Self) -> Self {
        Self {
            rate_limit: self.rate_limit - earlier.rate_limit,
            queue_full: self.queue_full - earlier.queue_full,
            not_written: self.not_written - earlier.not_written,
        }
    }
}

/// The audit log, for people and programs to read.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct AuditState {
    /// The file.
    pub file: String,
    /// Lines written since the target started.
    pub written_count: u64,
    /// Lines left out because there were too many of their kind from one source, or from all.
    pub rate_limited_count: u64,
    /// Lines left out because the file is slower than the events.
    pub queue_full_count: u64,
    /// Lines lost because they could not be written.
    pub not_written_count: u64,
    /// Why the file cannot be written; `None` if it can.
    pub error: Option<String>,
}

/// Work for the writer.
pub(super) struct Work {
    pub(super) events: VecDeque<(SystemTime, Event)>,
    /// New destinations, in order.
    pub(super) destinations: Vec<Destination>,
    pub(super) omitted: Omitted,
    /// This is the last work.
    pub(super) is_last: bool,
}

/// The queue of one audit log.
#[derive(Debug)]
pub(super) struct Queue {
    is_on: AtomicBool,
    begun: Instant,
    state: Mutex<State>,
    /// For the writer: there is work.
    work: Condvar,
    /// For the thread that closes the queue: the writer has ended.
    ended: Condvar,
}

#[derive(Debug)]
struct State {
    events: VecDeque<(SystemTime, Event)>,
    allowances: Allowances,
    omitted: Omitted,
    /// The writer knows of omitted lines and waits until it may count them in a line: further ones do not wake it.
    is_omission_known: bool,
    written_count: u64,
    error: Option<String>,
    destinations: Vec<Destination>,
    /// The file of the last destination.
    file: Option<String>,
    is_closed: bool,
    has_ended: bool,
}

impl Default for Queue {
    fn default() -> Self {
        let state = State {
            events: VecDeque::new(),
            allowances: Allowances::new(OF_SOURCE, OF_ALL),
            omitted: Omitted::default(),
            is_omission_known: false,
            written_count: 0,
            error: None,
            destinations: Vec::new(),
            file: None,
            is_closed: false,
            has_ended: false,
        };
        Self {
            is_on: AtomicBool::new(false),
            begun: Instant::now(),
            state: Mutex::new(state),
            work: Condvar::new(),
            ended: Condvar::new(),
        }
    }
}

impl Queue {
    /// Whether events are recorded.
    pub(super) fn is_on(&self) -> bool {
        self.is_on.load(Ordering::Relaxed)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds an event, or counts it as omitted.
    pub(super) fn push(&self, event: Event) {
        self.push_at(Instant::now(), event);
    }

    fn push_at(&self, now: Instant, event: Event) {
        let passed = now.saturating_duration_since(self.begun).as_nanos();
        let now_ns = u64::try_from(passed).unwrap_or(u64::MAX);
        let mut state = self.lock();
        let is_news = if !state.allowances.take(now_ns, event.kind(), Source::from(event.peer())) {
            state.omitted.rate_limit += 1;
            !state.is_omission_known
        } else if state.events.len() >= EVENT_COUNT_MAX {
            state.omitted.queue_full += 1;
            !state.is_omission_known
        } else {
            state.events.push_back((SystemTime::now(), event));
            true
        };
        drop(state);
        if is_news {
            self.work.notify_one();
        }
    }

    /// Changes the destination, before any event that is recorded from now on.
    pub(super) fn send_to(&self, destination: Destination) {
        let file = match &destination {
            Destination::None => None,
            Destination::File { path, .. } => Some(path.display().to_string()),
        };
        self.is_on.store(file.is_some(), Ordering::Relaxed);
        let mut state = self.lock();
        state.file = file;
        state.destinations.push(destination);
        drop(state);
        self.work.notify_one();
    }

    /// Waits for work. Lines that were omitted are work once `summary_at` has passed.
    pub(super) fn wait(&self, told: Omitted, summary_at: Instant) -> Work {
        let mut state = self.lock();
        loop {
            state.is_omission_known = state.omitted != told;
            let is_due = state.is_omission_known && Instant::now() >= summary_at;
            let has_work = !state.events.is_empty() || !state.destinations.is_empty();
            if has_work || state.is_closed || is_due {
                return Work {
                    events: std::mem::take(&mut state.events),
                    destinations: std::mem::take(&mut state.destinations),
                    omitted: state.omitted,
                    is_last: state.is_closed,
                };
            }
            state = if state.is_omission_known {
                let wait = summary_at.saturating_duration_since(Instant::now());
                self.work.wait_timeout(state, wait).unwrap_or_else(PoisonError::into_inner).0
            } else {
                self.work.wait(state).unwrap_or_else(PoisonError::into_inner)
            };
        }
    }

    /// Counts lines that were written and lost.
    pub(super) fn count(&self, written: u64, lost: u64, error: Option<&str>) {
        let mut state = self.lock();
        state.written_count += written;
        state.omitted.not_written += lost;
        state.error = error.map(str::to_owned);
    }

    /// The counters, if there is a file.
    pub(super) fn state(&self) -> Option<AuditState> {
        let state = self.lock();
        Some(AuditState {
            file: state.file.clone()?,
            written_count: state.written_count,
            rate_limited_count: state.omitted.rate_limit,
            queue_full_count: state.omitted.queue_full,
            not_written_count: state.omitted.not_written,
            error: state.error.clone(),
        })
    }

    /// Ends the writer, and waits for that at most this long.
    pub(super) fn close(&self, wait: Duration) {
        self.is_on.store(false, Ordering::Relaxed);
        let mut state = self.lock();
        state.is_closed = true;
        self.work.notify_one();
        let waited = self.ended.wait_timeout_while(state, wait, |state| !state.has_ended);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }

    /// The writer has ended.
    pub(super) fn end(&self) {
        self.lock().has_ended = true;
        self.ended.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(reason: &'static str) -> Event {
        refused_of(1, reason)
    }

    fn refused_of(host: u8, reason: &'static str) -> Event {
        let peer = Some(([192, 0, 2, host], 4000).into());
        Event::ConnectionRefused { peer, reason, detail: None }
    }

    #[test]
    fn a_flood_of_one_address_hides_no_other_kind_and_no_other_address() {
        let queue = Queue::default();
        let now = Instant::now();
        (0..100_000).for_each(|_| queue.push_at(now, refused("flood")));
        queue.push_at(now, refused("other"));
        queue.push_at(now, refused_of(2, "flood"));
        let work = queue.wait(Omitted::default(), now + Duration::from_secs(3600));
        assert_eq!(work.events.len(), 502);
        assert_eq!(work.omitted, Omitted { rate_limit: 99_500, ..Omitted::default() });
        let last: Vec<_> =
            work.events.iter().skip(500).map(|(_, event)| (event.kind(), event.peer())).collect();
        assert_eq!(last, [("other", refused_of(1, "").peer()), ("flood", refused_of(2, "").peer())]);
    }

    #[test]
    fn a_queue_that_is_full_counts_what_it_leaves_out() {
        let queue = Queue::default();
        let kinds = ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j"];
        for kind in kinds {
            (0..500).for_each(|_| queue.push(refused(kind)));
        }
        queue.send_to(Destination::File { path: "audit".into(), file: None });
        let state = queue.state().expect("a file");
        assert_eq!((state.queue_full_count, state.rate_limited_count), (5000 - EVENT_COUNT_MAX as u64, 0));
    }
}
