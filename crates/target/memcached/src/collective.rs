//! Requests to all partitions at once.

use crate::counters::PartitionStats;
use crate::execute::Executor;

/// A request to all partitions, each of which answers with its statistics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CollectiveRequest {
    /// Changes nothing.
    Stats,
    /// Counts from zero from now on.
    ResetStats,
    /// Removes all pairs.
    Flush {
        /// Seconds, or Unix time.
        delay: i64,
    },
    /// Changes the memory.
    SetMemory {
        /// Memory of all partitions, bytes.
        bytes: u64,
    },
}

impl CollectiveRequest {
    /// Whether it changes pairs: with a log, its answer waits until the change is durable.
    #[must_use]
    pub fn changes_pairs(self) -> bool {
        matches!(self, Self::Flush { .. })
    }
}

impl Executor<'_> {
    /// Carries out a request on this partition.
    pub fn collect(&mut self, request: CollectiveRequest) -> PartitionStats {
        match request {
            CollectiveRequest::Stats => {}
            CollectiveRequest::ResetStats => self.reset_stats(),
            CollectiveRequest::Flush { delay } => self.flush(delay),
            CollectiveRequest::SetMemory { bytes } => {
                // A memory that the system refuses shows in the statistics: the limit is the old one.
                let _ = self.partition.set_memory_limit(bytes);
            }
        }
        self.stats()
    }
}
