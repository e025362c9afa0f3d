//! A load that every stack can carry, whatever makes it.

/// A load of operations of one size on one queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QueueLoad {
    /// The pattern, under the name that nvlane and SPDK have for it: `randread`, `randwrite`.
    pub(crate) pattern: &'static str,
    pub(crate) io_bytes: u32,
    pub(crate) depth: u32,
}
