//! What judges remember of a host.

#[derive(Clone, Debug, Default)]
pub(crate) struct HostRecord {
    /// Its writes with unknown outcome: block and command.
    pub(super) doubtful: Vec<(u64, u64)>,
    /// Its losses before the last flush that has succeeded began.
    pub(super) covered_losses: u32,
    /// When a flush last began and ended that was the first after a reopening, ns.
    pub(super) told_ns: (u64, u64),
    /// It was refused for a limit, and has no association since.
    pub(super) was_limited: bool,
}
