//! The hands of eviction, which go over what is stored and take what was not used since they came by.

use crate::regions::CLASS_COUNT;

/// Where the hands are.
pub(crate) struct Hands {
    /// By class: which of its regions, and which block.
    pub(crate) by_class: [(usize, usize); CLASS_COUNT],
    pub(crate) region: u32,
    pub(crate) crawl: u32,
    pub(crate) pressure: u32,
}

impl Default for Hands {
    fn default() -> Self {
        Self { by_class: [(0, 0); CLASS_COUNT], region: 0, crawl: 0, pressure: 0 }
    }
}
