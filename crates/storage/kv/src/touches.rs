//! Counts of the cache lines that operations access, in tests and studies only.

use std::cell::RefCell;
use std::ops::Range;

/// Counts accesses to lines. In partitions that serve, the type has no size and its calls compile to nothing.
pub(crate) trait Touches: Default {
    /// Begins an operation.
    fn begin_operation(&self);

    /// An operation reads or writes these lines.
    fn touch(&self, lines: Range<u32>, is_write: bool);
}

/// The type of partitions: counts only in the tests of this crate.
#[cfg(test)]
pub(crate) type Usual = Counted;
#[cfg(not(test))]
pub(crate) type Usual = Uncounted;

/// No count.
#[cfg(not(test))]
#[derive(Default)]
pub(crate) struct Uncounted;

#[cfg(not(test))]
impl Touches for Uncounted {
    #[inline(always)]
    fn begin_operation(&self) {}

    #[inline(always)]
    fn touch(&self, _: Range<u32>, _: bool) {}
}

/// Lines that operations have read and written, each line once per operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TouchCounts {
    /// Lines read.
    pub read_count: u64,
    /// Lines written.
    pub written_count: u64,
}

/// A count of the lines that operations touch.
#[derive(Default)]
pub(crate) struct Counted(RefCell<Counter>);

impl Counted {
    /// Lines touched by operations so far.
    pub(crate) fn counts(&self) -> TouchCounts {
        self.0.borrow().counts
    }
}

impl Touches for Counted {
    fn begin_operation(&self) {
        let mut counter = self.0.borrow_mut();
        counter.read.clear();
        counter.written.clear();
    }

    fn touch(&self, lines: Range<u32>, is_write: bool) {
        let mut counter = self.0.borrow_mut();
        lines.for_each(|line| counter.count(line, is_write));
    }
}

#[derive(Default)]
struct Counter {
    counts: TouchCounts,
    /// Lines touched by the current operation, as far as they are remembered: enough for small pairs.
    read: Vec<u32>,
    written: Vec<u32>,
}

impl Counter {
    fn count(&mut self, line: u32, is_write: bool) {
        const REMEMBERED_COUNT: usize = 32;
        // A line that was written is in the cache.
        let is_known = self.written.contains(&line) || !is_write && self.read.contains(&line);
        if is_known {
            return;
        }
        let (lines, count) = if is_write {
            (&mut self.written, &mut self.counts.written_count)
        } else {
            (&mut self.read, &mut self.counts.read_count)
        };
        *count += 1;
        if lines.len() < REMEMBERED_COUNT {
            lines.push(line);
        }
    }
}
