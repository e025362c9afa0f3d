//! All partitions, used by the session's thread where they lie.

use kv::PartitionAccess;
use linux::Moment;

use crate::execute::{Executor, Service};

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
