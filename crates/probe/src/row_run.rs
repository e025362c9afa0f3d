//! The row that the present thread tries: by when it must end, and what was seen beside.

use std::cell::RefCell;
use std::time::{Duration, Instant};

/// Of one thread.
#[derive(Debug, Default)]
struct Running {
    until: Option<Instant>,
    notes: Vec<String>,
}

thread_local! {
    static RUNNING: RefCell<Running> = RefCell::default();
}

/// Begins a row in this thread. It has this long.
pub fn begin(limit: Duration) {
    let until = Instant::now().checked_add(limit);
    RUNNING.with_borrow_mut(|running| *running = Running { until, notes: Vec::new() });
}

/// Ends it. Gives what was seen beside, each once.
pub fn end() -> Vec<String> {
    RUNNING.with_borrow_mut(std::mem::take).notes
}

/// The earlier of this moment and the end of the row.
#[must_use]
pub fn earlier(until: Instant) -> Instant {
    RUNNING.with_borrow(|running| running.until.map_or(until, |end| end.min(until)))
}

/// As long as the row may still last, and this long at most.
#[must_use]
pub fn shorter(time: Duration) -> Duration {
    let left = |end: Instant| end.saturating_duration_since(Instant::now());
    RUNNING.with_borrow(|running| running.until.map_or(time, |end| left(end).min(time)))
}

/// Whether the time of the row is over.
#[must_use]
pub fn is_over() -> bool {
    RUNNING.with_borrow(|running| running.until.is_some_and(|end| end <= Instant::now()))
}

/// Takes note of something that is wrong and decides no row.
pub fn note(text: String) {
    RUNNING.with_borrow_mut(|running| {
        if !running.notes.contains(&text) {
            running.notes.push(text);
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_ends_and_keeps_its_notes() {
        let far = Instant::now() + Duration::from_secs(3600);
        assert_eq!((earlier(far), is_over()), (far, false), "no row");
        begin(Duration::ZERO);
        assert!(is_over() && earlier(far) < far && shorter(Duration::from_secs(1)).is_zero());
        note("a".into());
        note("b".into());
        note("a".into());
        assert_eq!(end(), ["a", "b"]);
        assert!(end().is_empty() && !is_over());
    }
}
