//! The first namespace: its storage, and when it was closed or shorter than it should be.

use store::Store;

use crate::coverage::{Coverage, Stages};

pub(crate) struct FirstNamespace {
    pub(super) store: Store,
    /// Blocks that it has now.
    pub(super) block_count: u64,
    /// Until when it was closed last: `u64::MAX` if it is now.
    closed_until_ns: Option<u64>,
    /// Since when it is closed, if it is.
    pub(super) closed_since_ns: Option<u64>,
    /// The operator reopens it soon.
    pub(super) is_reopening: bool,
    /// Until when it was short: `u64::MAX` if it is now.
    short_until_ns: Option<u64>,
    /// Blocks that it had then at the least.
    pub(super) shortest_block_count: u64,
    /// The command in the model for the last resize.
    pub(super) resize_command: u64,
    stages: Stages,
}

impl FirstNamespace {
    pub(super) fn new(store: Store, block_count: u64) -> Self {
        Self {
            store,
            block_count,
            closed_until_ns: None,
            closed_since_ns: None,
            is_reopening: false,
            short_until_ns: None,
            shortest_block_count: block_count,
            resize_command: 0,
            stages: Stages::new("first namespace", "open"),
        }
    }

    /// Its storage has failed. Whether the operator learns of it only now.
    pub(super) fn on_failed(&mut self, now_ns: u64) -> bool {
        self.closed_until_ns = Some(u64::MAX);
        // An operation of an earlier opening fails and closes nothing.
        if self.store.generation().is_closed() {
            self.closed_since_ns.get_or_insert(now_ns);
        }
        !std::mem::replace(&mut self.is_reopening, true)
    }

    pub(super) fn on_reopened(&mut self, now_ns: u64) {
        self.is_reopening = false;
        self.closed_until_ns = Some(now_ns);
        self.closed_since_ns = None;
    }

    /// A target starts, and opens it.
    pub(super) fn on_target_start(&mut self, now_ns: u64) {
        self.closed_until_ns = self.closed_until_ns.map(|until_ns| until_ns.min(now_ns));
        self.closed_since_ns = None;
    }

    /// It has fewer blocks than it should have, since a command of the model.
    pub(super) fn on_shrunk(&mut self, block_count: u64, command: u64) {
        self.block_count = block_count;
        self.short_until_ns = Some(u64::MAX);
        self.shortest_block_count = self.shortest_block_count.min(block_count);
        self.resize_command = command;
    }

    /// It has all of its blocks again.
    pub(super) fn on_grown(&mut self, block_count: u64, now_ns: u64) {
        self.block_count = block_count;
        self.short_until_ns = Some(now_ns);
    }

    /// Whether it is closed, since its storage failed.
    pub(super) fn is_closed(&self) -> bool {
        self.closed_until_ns == Some(u64::MAX)
    }

    /// Whether it was closed at this time or later.
    pub(super) fn was_closed_since(&self, since_ns: u64) -> bool {
        self.closed_until_ns.is_some_and(|until_ns| until_ns >= since_ns)
    }

    /// Whether it was short at this time or later.
    pub(super) fn was_short_since(&self, since_ns: u64) -> bool {
        self.short_until_ns.is_some_and(|until_ns| until_ns >= since_ns)
    }

    /// Counts a change of its state.
    pub(super) fn note(&mut self, has_target: bool, coverage: &mut Coverage) {
        let is_short = self.short_until_ns == Some(u64::MAX);
        let now = match (has_target, self.is_closed(), is_short) {
            (false, ..) => "without a target",
            (_, true, true) => "short and closed",
            (_, true, false) => "closed",
            (_, false, true) => "short",
            (_, false, false) => "open",
        };
        self.stages.enter(now, coverage);
    }
}
