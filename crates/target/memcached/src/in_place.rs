//! All partitions, used by the session's thread where they lie.

use kv::{PartitionAccess, Parts};
use linux::Moment;

use crate::execute::{Executor, Service};
use crate::output::LongValue;

/// All partitions as a session's thread uses them, none of which it holds.
pub struct InPlace<'a> {
    /// The partitions.
    pub access: &'a PartitionAccess,
    /// The memcached service of this thread, on whichever partition.
    pub service: &'a mut Service,
    /// The time.
    pub now: Moment,
}

impl InPlace<'_> {
    /// Calls `execute` with the executor of a partition.
    pub(crate) fn on<T>(&mut self, partition: usize, execute: impl FnOnce(Executor<'_>) -> T) -> T {
        let mut guard = self.access.exclusive_at(partition, self.now);
        execute(self.service.on(&mut guard))
    }
}

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
