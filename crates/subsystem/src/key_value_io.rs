//! Commands of the key-value command set: from the parsed command to the partition, here or on another reactor, and
//! back.

pub(crate) mod batch;
mod digest;
mod execute;
pub(crate) mod large;
mod serve;

pub(crate) use serve::serve;
