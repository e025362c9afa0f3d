//! Event trace of a run: a digest of all events, and their lines if they are to be printed.

use reactor::random::mix;

/// The record of one run.
#[derive(Debug, Default)]
pub(crate) struct Trace {
    /// Whether lines are kept.
    pub(crate) is_kept: bool,
    /// One line for each event.
    pub(crate) lines: Vec<String>,
    pub(crate) digest: u64,
}

impl Trace {
    /// Notes an event by its numbers.
    #[inline]
    pub(crate) fn note(&mut self, now_ns: u64, what: u64) {
        self.digest = mix(self.digest ^ now_ns.rotate_left(20) ^ what);
    }

    /// Notes an event in words.
    pub(crate) fn say(&mut self, now_ns: u64, line: impl FnOnce() -> String) {
        self.note(now_ns, 0x5a);
        if self.is_kept {
            let (seconds, rest) = (now_ns / 1_000_000_000, now_ns % 1_000_000_000);
            self.lines.push(format!("{seconds:>4}.{rest:09} {}", line()));
        }
    }

    /// Digest, equal for equal runs.
    #[must_use]
    pub(crate) fn digest(&self) -> u64 {
        self.digest
    }
}
