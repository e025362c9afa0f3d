//! Memory for batches of commands on several partitions.

use kv::Parts;

use crate::output::LongValue;

/// A batch of commands that are executed partition by partition; kept for the next one.
#[derive(Debug, Default)]
pub(crate) struct BatchScratch {
    pub(crate) parts: Parts,
    pub(crate) answers: BatchAnswers,
}

/// The answers to such a batch.
#[derive(Debug, Default)]
pub(crate) struct BatchAnswers {
    pub(crate) bytes: Vec<u8>,
    /// By command: start and end of its answer in the bytes.
    pub(crate) ranges: Vec<(usize, usize)>,
    /// Values to be inserted: the command, the offset in its answer, and the value.
    pub(crate) long: Vec<(usize, usize, LongValue)>,
}

impl BatchAnswers {
    /// Largest buffer that is kept for the next batch, bytes.
    const KEPT_BYTES: usize = 64 << 10;

    /// Begins a batch of `count` commands.
    pub(crate) fn begin(&mut self, count: usize) {
        self.bytes.clear();
        self.bytes.shrink_to(Self::KEPT_BYTES);
        self.ranges.clear();
        self.ranges.resize(count, (0, 0));
    }
}
