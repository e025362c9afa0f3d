//! A value that is arriving: it has memory, and is not in the index yet.

use crate::item::Layout;

/// An arriving value: it has its memory, and cannot be found yet.
#[derive(Debug)]
pub struct Pending {
    pub(crate) line: u32,
    pub(crate) layout: Layout,
    pub(crate) value_bytes: usize,
}

impl Pending {
    /// Bytes of the value.
    #[must_use]
    pub fn len(&self) -> usize {
        self.value_bytes
    }

    /// Whether the value has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.value_bytes == 0
    }
}
