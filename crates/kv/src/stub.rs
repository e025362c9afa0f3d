//! Stubs: pairs whose values are in the log only, and pairs as their records have them.

use crate::pair::Attributes;

/// A value that is in the log only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Away {
    /// Where its record is.
    pub(crate) place: u64,
    pub(crate) value_bytes: usize,
    pub(crate) attributes: Attributes,
}

/// A pair as its record has it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Restored {
    pub(crate) value_bytes: usize,
    pub(crate) attributes: Attributes,
    pub(crate) marks: u8,
    pub(crate) cas: u64,
    pub(crate) place: u64,
}
