//! The hands of eviction, which pass over stored pairs and evict those unused since the last pass.

use crate::regions::CLASS_COUNT;

/// Positions of the hands.
pub(crate) struct Hands {
    /// By class: index of the region, and of the block in it.
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
