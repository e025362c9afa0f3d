//! Limits the log rate, so that no peer can flood it: each kind of line has a rate of its own.
//!
//! Omitted lines are counted, and the count precedes the next line of that kind. Lines below info are written only
//! where they are enabled, and then without limit.

use std::collections::HashMap;
use std::io::{Stderr, Write, stderr};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use tracing::callsite::Identifier;
use tracing::{Level, Metadata};
use tracing_subscriber::fmt::MakeWriter;

use crate::journal;

/// Burst of lines of one kind.
const BURST: f64 = 50.0;

/// Sustained lines of one kind per second.
const LINES_PER_S: f64 = 2.0;

/// Standard error behind the limit.
pub(crate) struct LimitedStderr {
    is_json: bool,
    kinds: Mutex<HashMap<Identifier, Kind>>,
}

/// Rate limit of one log statement.
#[derive(Clone, Copy, Debug)]
struct Kind {
    /// Lines that may be written now.
    allowance: f64,
    since: Instant,
    left_out: u64,
}

impl Kind {
    fn new(now: Instant) -> Self {
        Self { allowance: BURST, since: now, left_out: 0 }
    }

    /// Whether a line is written now, and the number of lines omitted before it.
    fn admit(&mut self, now: Instant) -> Option<u64> {
        let earned = now.saturating_duration_since(self.since).as_secs_f64() * LINES_PER_S;
        (self.allowance, self.since) = ((self.allowance + earned).min(BURST), now);
        if self.allowance < 1.0 {
            self.left_out += 1;
            return None;
        }
        self.allowance -= 1.0;
        Some(std::mem::take(&mut self.left_out))
    }
}

impl LimitedStderr {
    pub(crate) fn new(is_json: bool) -> Self {
        Self { is_json, kinds: Mutex::default() }
    }

    fn admit(&self, metadata: &Metadata<'_>) -> Option<u64> {
        if *metadata.level() > Level::INFO {
            return Some(0);
        }
        let now = Instant::now();
        let mut kinds = self.kinds.lock().unwrap_or_else(PoisonError::into_inner);
        kinds.entry(metadata.callsite()).or_insert_with(|| Kind::new(now)).admit(now)
    }

    fn note(&self, left_out: u64) -> String {
        match self.is_json {
            true => format!("{{\"level\":\"INFO\",\"message\":\"lines left out\",\"count\":{left_out}}}\n"),
            false => format!("{left_out} more such lines were omitted\n"),
        }
    }
}

/// Destination of one line.
pub(crate) enum Line {
    /// With the priority of its level, where the journal reads it.
    Written(Stderr, &'static str),
    LeftOut,
}

impl Write for Line {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        match self {
            Self::Written(stderr, "") => stderr.write(bytes),
            // Whole lines come here. One write, so that no other thread's line gets between.
            Self::Written(stderr, priority) => {
                stderr.write_all(&[priority.as_bytes(), bytes].concat()).map(|()| bytes.len())
            }
            Self::LeftOut => Ok(bytes.len()),
        }
    }

    fn flush(&mut self) -> std::io::Result<()> {
        match self {
            Self::Written(stderr, _) => stderr.flush(),
            Self::LeftOut => Ok(()),
        }
    }
}

impl<'a> MakeWriter<'a> for LimitedStderr {
    type Writer = Line;

    fn make_writer(&'a self) -> Line {
        Line::Written(stderr(), "")
    }

    fn make_writer_for(&'a self, metadata: &Metadata<'_>) -> Line {
        match self.admit(metadata) {
            None => Line::LeftOut,
            Some(left_out) => {
                let priority = journal::prefix(*metadata.level());
                if left_out > 0 {
                    // The reader of the log may have closed it.
                    let _ = Line::Written(stderr(), priority).write_all(self.note(left_out).as_bytes());
                }
                Line::Written(stderr(), priority)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_flood_is_cut_to_its_burst_and_a_trickle_is_not() {
        let start = Instant::now();
        let mut kind = Kind::new(start);
        let written = (0..100_000).filter(|_| kind.admit(start).is_some()).count();
        assert_eq!(written, 50);
        assert_eq!(
            kind.admit(start + Duration::from_secs(1)),
            Some(100_000 - 50),
            "what was left out is said"
        );
        assert_eq!(kind.admit(start + Duration::from_secs(1)), Some(0));
        assert_eq!(kind.admit(start + Duration::from_secs(1)), None);
        let mut trickle = Kind::new(start);
        assert!((0..1000).all(|second| trickle.admit(start + Duration::from_secs(second)) == Some(0)));
    }

    #[test]
    fn a_clock_that_stands_still_or_goes_back_earns_nothing() {
        let start = Instant::now();
        let mut kind = Kind::new(start + Duration::from_secs(9));
        assert_eq!((0..1000).filter(|_| kind.admit(start).is_some()).count(), 50);
    }
}
