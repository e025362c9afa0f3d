//! Stubs, whose values are only in the log, and pairs read from records.

use crate::pair::Attributes;

/// The location of a value that is only in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Away {
    /// Place of its record.
    pub(crate) place: u64,
    pub(crate) value_bytes: usize,
    pub(crate) attributes: Attributes,
}

/// A pair as read from its record.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Restored {
    pub(crate) value_bytes: usize,
    pub(crate) attributes: Attributes,
    pub(crate) marks: u8,
    pub(crate) cas: u64,
    pub(crate) place: u64,
}
