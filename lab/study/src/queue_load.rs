//! A load that every stack can carry, from any generator.

/// A load of operations of one size.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QueueLoad {
    /// The pattern, under the name that nvlane and SPDK have for it: `randread`, `randwrite`.
    pub(crate) pattern: &'static str,
    pub(crate) io_bytes: u32,
    /// Queues, each with operations of its own in flight. Threads share them, one on each core of the host's side.
    pub(crate) jobs: u32,
    /// Operations in flight on each queue.
    pub(crate) depth: u32,
}
