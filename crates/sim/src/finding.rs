//! What a run finds wrong.

/// What is wrong.
pub(crate) type Finding = String;
