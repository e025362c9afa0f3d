//! Attributes and marks of a pair, conditions of a store, and its result.

use memory::{CHUNK_BYTES, Chunk};

/// Attributes of a pair besides key and value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attributes {
    /// The client's flags.
    pub flags: u32,
    /// The second at which it expires, or 0 if it does not.
    pub expiry_s: u32,
}

/// Marks of a pair for memcached's meta commands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Marks {
    /// Whether it was read since it was stored.
    pub is_fetched: bool,
    /// Whether it should be recomputed.
    pub is_stale: bool,
    /// Whether a client is recomputing it.
    pub is_won: bool,
}

/// Bytes that extend a value: whole mebibytes, and those after them.
#[derive(Clone, Copy, Debug)]
pub struct Extension<'a> {
    /// Whether they go behind the value, not before it.
    pub at_end: bool,
    /// Whole mebibytes.
    pub chunks: &'a [Chunk],
    /// The bytes after them.
    pub rest: &'a [u8],
}

impl Extension<'_> {
    pub(crate) fn byte_count(&self) -> usize {
        self.chunks.len() * CHUNK_BYTES + self.rest.len()
    }
}

/// Condition of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition {
    /// No condition: the value is always stored.
    Always,
    /// The key must be absent.
    Absent,
    /// The key must be present.
    Present,
    /// The value must still be the one with this CAS number.
    Unchanged(u64),
}

/// Result of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stored {
    /// Stored.
    Done,
    /// The key is present, or its value has another CAS number.
    Exists,
    /// The key is absent.
    NotFound,
    /// Not enough memory.
    NoMemory,
    /// The log is full, but for the headroom of its cleaning.
    LogFull,
    /// The value exceeds the longest permitted length.
    TooLarge,
}
