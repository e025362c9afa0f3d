//! Pins: items whose value stays unchanged while it is sent or written.

use std::collections::HashMap;

/// A value that stays unchanged until it is unpinned, whatever happens to its key.
#[derive(Debug)]
pub(crate) struct Pin {
    pub(crate) item: u32,
}

/// The pins of one item.
pub(crate) struct Pins {
    pub(crate) count: u32,
    /// Whether the pair is no longer in the index.
    pub(crate) is_detached: bool,
}

/// The pins of items.
pub(crate) type PinTable = HashMap<u32, Pins>;
