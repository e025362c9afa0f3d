//! The trial that the current thread runs: the deadline of all its waits, and notes on deviations that do not affect
//! the result.

use std::cell::RefCell;
use std::time::{Duration, Instant};

/// State of one thread.
#[derive(Debug, Default)]
struct Running {
    until: Option<Instant>,
    notes: Vec<String>,
}

thread_local! {
    static RUNNING: RefCell<Running> = RefCell::default();
}

/// Starts a trial on this thread that may last `limit`.
pub fn begin(limit: Duration) {
    let until = Instant::now().checked_add(limit);
    RUNNING.with_borrow_mut(|running| *running = Running { until, notes: Vec::new() });
}

/// Ends the trial. Returns its notes, each once.
pub fn end() -> Vec<String> {
    RUNNING.with_borrow_mut(std::mem::take).notes
}

/// The earlier of `until` and the trial's deadline.
pub fn earlier(until: Instant) -> Instant {
    RUNNING.with_borrow(|running| running.until.map_or(until, |end| end.min(until)))
}

/// The shorter of `time` and what is left of the trial.
pub fn shorter(time: Duration) -> Duration {
    let left = |end: Instant| end.saturating_duration_since(Instant::now());
    RUNNING.with_borrow(|running| running.until.map_or(time, |end| left(end).min(time)))
}

/// Whether the trial's deadline has passed.
pub fn is_over() -> bool {
    RUNNING.with_borrow(|running| running.until.is_some_and(|end| end <= Instant::now()))
}

/// Whether the trial has this note.
pub fn has_note(text: &str) -> bool {
    RUNNING.with_borrow(|running| running.notes.iter().any(|note| note == text))
}

/// Notes an oddity that does not fail the trial.
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
    fn a_trial_ends_and_keeps_its_notes() {
        let far = Instant::now() + Duration::from_secs(3600);
        assert_eq!((earlier(far), is_over()), (far, false), "no trial");
        begin(Duration::ZERO);
        assert!(is_over() && earlier(far) < far && shorter(Duration::from_secs(1)).is_zero());
        note("a".into());
        note("b".into());
        note("a".into());
        assert!(has_note("b") && !has_note("c"));
        assert_eq!(end(), ["a", "b"]);
        assert!(end().is_empty() && !is_over());
    }
}
