//! Pins: items that keep their value while it is sent or written.

use std::collections::HashMap;

/// A value that stays as it is until it is unpinned, whatever becomes of its key.
#[derive(Debug)]
pub struct Pin {
    pub(crate) line: u32,
}

/// The pins of one item.
pub(crate) struct Pins {
    pub(crate) count: u32,
    /// The pair is no longer in the index.
    pub(crate) is_detached: bool,
}

/// The pinned items, by line.
pub(crate) type PinTable = HashMap<u32, Pins>;
