//! Results: operations, bytes, errors and latency by kind, for the interval and for the whole run.

use std::collections::BTreeMap;
use std::fmt;

use wire::status::Status;

use crate::histogram::Histogram;
use crate::workload::Kind;

/// How an operation failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Failure {
    /// Completed with this status other than success.
    Status {
        /// Status code type.
        sct: u8,
        /// Status code.
        sc: u8,
    },
    /// No completion in time.
    TimedOut,
    /// The connection went away with the operation in flight.
    Disconnected,
    /// Other storage answers under the namespace's id.
    Replaced,
    /// The system refused an operation on local storage with this error number.
    System(i32),
    /// Local storage moved only a part of the data: the file ends there.
    Short,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Status { sct, sc } => Status::from_code(u16::from_be_bytes([*sct, *sc])).fmt(f),
            Self::TimedOut => f.write_str("timed out"),
            Self::Disconnected => f.write_str("disconnected"),
            Self::Replaced => f.write_str("other storage answers under the namespace's id"),
            Self::System(errno) => std::io::Error::from_raw_os_error(*errno).fmt(f),
            Self::Short => f.write_str("the file ends within it"),
        }
    }
}

/// Results of one kind of operation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KindTally {
    /// Bytes of the operations that succeeded.
    pub bytes: u64,
    /// From submission to completion, ns. Counts each operation that succeeded.
    pub service: Histogram,
    /// From the moment the operation was due to its completion, ns. Empty in a closed loop, where both are one.
    pub response: Histogram,
    /// Operations that failed; they are in no histogram.
    pub errors: BTreeMap<Failure, u64>,
}

impl KindTally {
    /// Operations that succeeded.
    pub const fn operations(&self) -> u64 {
        self.service.count()
    }

    /// Operations that failed.
    pub fn error_count(&self) -> u64 {
        self.errors.values().sum()
    }

    /// Adds the results of `other`.
    pub fn merge(&mut self, other: &Self) {
        self.bytes += other.bytes;
        self.service.merge(&other.service);
        self.response.merge(&other.response);
        for (&failure, count) in &other.errors {
            *self.errors.entry(failure).or_default() += count;
        }
    }

    fn clear(&mut self) {
        self.bytes = 0;
        self.service.clear();
        self.response.clear();
        self.errors.clear();
    }

    /// The latency that the caller saw: response time in an open loop, else service time.
    pub const fn latency(&self) -> &Histogram {
        if self.response.count() > 0 { &self.response } else { &self.service }
    }
}

/// Results by kind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    kinds: [KindTally; Kind::ALL.len()],
}

impl Tally {
    /// Results of `kind`.
    pub const fn kind(&self, kind: Kind) -> &KindTally {
        &self.kinds[kind.index()]
    }

    /// All kinds in one.
    pub fn all(&self) -> KindTally {
        let mut all = KindTally::default();
        self.kinds.iter().for_each(|kind| all.merge(kind));
        all
    }

    /// Adds the results of `other`.
    pub fn merge(&mut self, other: &Self) {
        for (mine, theirs) in self.kinds.iter_mut().zip(&other.kinds) {
            mine.merge(theirs);
        }
    }

    /// Forgets everything, keeping the memory.
    pub fn clear(&mut self) {
        self.kinds.iter_mut().for_each(KindTally::clear);
    }
}

/// Takes the results of one thread's lanes. Recording allocates nothing; a failure seen for the first time does.
#[derive(Clone, Debug)]
pub struct Recorder {
    /// Since the last roll.
    current: Tally,
    /// Until the last roll.
    rolled: Tally,
    open_loop: bool,
}

impl Recorder {
    /// An empty recorder, 300 KiB. In an open loop it keeps response times too.
    pub fn new(open_loop: bool) -> Self {
        Self { current: Tally::default(), rolled: Tally::default(), open_loop }
    }

    /// Counts an operation of `bytes` that was due at `due_ns`, submitted at `submitted_ns` and succeeded at
    /// `now_ns`.
    #[inline]
    pub fn record(&mut self, kind: Kind, bytes: u64, due_ns: u64, submitted_ns: u64, now_ns: u64) {
        let tally = &mut self.current.kinds[kind.index()];
        tally.bytes += bytes;
        tally.service.record(now_ns.saturating_sub(submitted_ns));
        if self.open_loop {
            tally.response.record(now_ns.saturating_sub(due_ns));
        }
    }

    /// Counts an operation that failed.
    #[cold]
    pub fn record_failure(&mut self, kind: Kind, failure: Failure) {
        *self.current.kinds[kind.index()].errors.entry(failure).or_default() += 1;
    }

    /// Ends an interval: adds the results since the last call to `interval` as well as to the whole. Some microseconds;
    /// meant for once a second.
    pub fn roll(&mut self, interval: &mut Tally) {
        interval.merge(&self.current);
        self.rolled.merge(&self.current);
        self.current.clear();
    }

    /// Forgets everything so far, such as a warm-up.
    pub fn clear(&mut self) {
        self.current.clear();
        self.rolled.clear();
    }

    /// Everything since the beginning.
    pub fn into_total(mut self) -> Tally {
        self.rolled.merge(&self.current);
        self.rolled
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LBA_OUT_OF_RANGE: Failure = Failure::Status { sct: 0, sc: 0x80 };

    #[test]
    fn intervals_add_up_to_the_total() {
        let mut recorder = Recorder::new(false);
        let mut sum = Tally::default();
        for second in 0..3 {
            for i in 0..10 {
                recorder.record(Kind::Read, 4096, 0, 100, 1_100 + i);
                recorder.record(Kind::Write, 512, 0, 0, second);
            }
            recorder.record_failure(Kind::Write, LBA_OUT_OF_RANGE);
            let mut interval = Tally::default();
            recorder.roll(&mut interval);
            assert_eq!(interval.kind(Kind::Read).operations(), 10);
            assert_eq!(interval.kind(Kind::Read).service.min(), 1_000);
            assert_eq!(interval.kind(Kind::Write).error_count(), 1);
            assert_eq!(interval.all().bytes, 46_080);
            sum.merge(&interval);
        }
        recorder.record(Kind::Trim, 0, 0, 0, 1);
        let mut rest = Tally::default();
        recorder.roll(&mut rest);
        sum.merge(&rest);
        assert_eq!(recorder.into_total(), sum);
        assert_eq!(sum.all().operations(), 61);
        assert_eq!(sum.kind(Kind::Write).errors, BTreeMap::from([(LBA_OUT_OF_RANGE, 3)]));
    }

    #[test]
    fn an_open_loop_counts_the_wait_before_submission_in_the_response_only() {
        let mut recorder = Recorder::new(true);
        recorder.record(Kind::Read, 512, 1_000, 5_000, 6_000);
        let total = recorder.into_total();
        assert_eq!(total.kind(Kind::Read).service.max(), 1_000);
        assert_eq!(total.kind(Kind::Read).response.max(), 5_000);
        assert_eq!(total.kind(Kind::Read).latency().max(), 5_000);
    }

    #[test]
    fn a_closed_loop_has_one_latency() {
        let mut recorder = Recorder::new(false);
        recorder.record(Kind::Read, 512, 1_000, 5_000, 6_000);
        let total = recorder.into_total();
        assert_eq!(total.kind(Kind::Read).response.count(), 0);
        assert_eq!(total.kind(Kind::Read).latency().max(), 1_000);
    }

    #[test]
    fn a_cleared_recorder_has_seen_nothing() {
        let mut recorder = Recorder::new(true);
        recorder.record(Kind::Read, 512, 0, 0, 6_000);
        recorder.record_failure(Kind::Read, Failure::TimedOut);
        recorder.roll(&mut Tally::default());
        recorder.clear();
        assert_eq!(recorder.into_total(), Tally::default());
    }

    #[test]
    fn failures_are_named() {
        assert_eq!(LBA_OUT_OF_RANGE.to_string(), "LBA out of range (0x080)");
        assert_eq!(Failure::Disconnected.to_string(), "disconnected");
    }
}
