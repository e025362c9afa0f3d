//! The experiments, one file each.

pub(crate) mod ceiling;
pub(crate) mod idle;
